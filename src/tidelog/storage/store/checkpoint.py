"""What a checkpoint of a store writes back, which blocks it copies instead, the store's table and its statistics.

A channel with little to write back gets no segment file yet: its blocks are copied to the next write-ahead file,
together with those of other such channels in one write. `copy_bytes_max` limits the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidelog.errors import DiskError, SyncFailed
from tidelog.storage.disk import Buffer
from tidelog.storage.store.open_channels import OpenChannels
from tidelog.storage.store.parts import StoreChannel, StoreOptions, StoreStatistics
from tidelog.storage.store.wal import WalEntryKind, WalWriter


def carried(channels: Iterable[StoreChannel], options: StoreOptions) -> set[int]:
    """Ids of the channels whose blocks are copied to the next write-ahead file, those with the fewest bytes first."""
    room, chosen = options.copy_bytes_max, set[int]()
    if not room:
        return chosen
    most = options.copy_channel_bytes_max
    small = [
        (log.staged_bytes, channel.channel_id)
        for channel in channels
        if (log := channel.log) is not None and channel.unsynced and not (log.poisoned or channel.gap_staged)
        if log.staged_bytes <= most
    ]
    for size, channel_id in sorted(small):
        room -= size
        if room < 0:
            break
        chosen.add(channel_id)
    return chosen


def entries_again(wal: WalWriter, channels: Iterable[StoreChannel]) -> list[Buffer]:
    """The entries that copy what only older write-ahead files hold of these channels to a newer one.

    A channel without a folder is named too, or a lost table would orphan its blocks.
    """
    entries: list[Buffer] = []
    for channel in channels:
        if channel.log is not None and not channel.log.on_disk:
            fields = {**channel.creation(), "again": True}
            entries.append(wal.other_entry(WalEntryKind.CREATE, channel.channel_id, fields))
        for block in channel.unsynced:
            entries.extend(wal.block_entry(block))
    return entries


def log_again(store: OpenChannels, stuck: list[StoreChannel], now_us: int) -> bool:
    """Copy the blocks of segments that cannot be written, so that they do not pin the old write-ahead files (S3).

    Returns whether the old files may go: not while the disk is too full even for this.
    """
    if not stuck:
        return True
    try:
        wal = store.wal(now_us)
        wal.write(entries_again(wal, stuck))
        store.sync_wal()
    except SyncFailed as error:
        store.poison(str(error))
        raise
    except DiskError as error:
        if store.wals.current is not None and store.wals.current.undo_failed:
            store.poison(str(error))
            raise
        store.trouble = error
        return False
    return True


def table_of(store: OpenChannels, *, wal_floor: int, wal_newest: int) -> dict[str, Any]:
    """The table as it is saved.

    `places` has a row for channels that are not in their first place, or lost records; `entered` has the ends of
    channels whose newest records only the write-ahead files have: should those be lost, the loss is noticed.
    """
    channels = store.channels.values()
    rows = [[channel.channel_id, channel.name, channel.synced_end] for channel in channels]
    places = [
        [channel.channel_id, channel.base_offset, channel.log_generation, int(damaged)]
        for channel in channels
        if (damaged := channel.damaged) or channel.base_offset or channel.log_generation
    ]
    entered = [
        [channel.channel_id, channel.unsynced[-1].offsets.stop]
        for channel in channels
        if channel.unsynced and channel.entered
    ]
    return {
        "format": 1,
        "next_channel_id": store.next_channel_id,
        "wal_floor": wal_floor,
        "wal_newest": wal_newest,
        "channels": rows,
        "places": places,
        "entered": entered,
    }


def statistics_of(
    store: OpenChannels, *, wal_bytes: int, commits: int, syncs: int, checkpoints: int
) -> StoreStatistics:
    logs = [channel.log for channel in store.channels.values() if channel.log is not None]
    return StoreStatistics(
        channels=len(store.channels),
        open_logs=len(logs),
        open_files=store.files.open_count(),
        wal_bytes=wal_bytes,
        staged_bytes=sum(log.staged_bytes for log in logs),
        commits=commits,
        syncs=syncs,
        checkpoints=checkpoints,
        incarnation=store.incarnation,
    )
