"""What a checkpoint of a store decides and what a store says of itself: channels carried over, table, statistics.

A channel with little to write back need not get its file yet: its blocks are written once more, to the next
write-ahead file, with all others like it in one write. `copy_bytes_max` bounds what that may cost.
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
    """Ids of the channels that the next write-ahead file may have, those with least to write first."""
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
    """What only older write-ahead files hold of these channels, for a newer one.

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
    """A segment that cannot be written must not pin the write-ahead file for the others (S3).

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

    `places` has a row for channels that are not at their first place, or lost a part; `entered` says where channels end
    whose newest records only the write-ahead files have: should those be lost, that much of it is known.
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
