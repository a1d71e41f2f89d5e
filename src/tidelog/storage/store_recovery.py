"""Opening a store: read the table, replay the write-ahead files, hand back what was acked.

Replay is idempotent. A channel's segments are the truth for what was written back; the write-ahead
files add what came after. Truncations in them only undo earlier blocks of the same files, because the
segments themselves were cut and synced before the truncation was entered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.blocks.block import Block, missing_block
from tidelog.storage.atomic import read_mark, write_mark
from tidelog.storage.disk import Disk
from tidelog.storage.wal import Entry, EntryKind, scan_wal, wal_numbers

if TYPE_CHECKING:
    from tidelog.storage.store import Store, StoreChannel, StoreOptions


def open_store(disk: Disk, *, now_us: int, options: StoreOptions) -> Store:
    from tidelog.storage import store as parts

    disk.make_folder(parts.WAL_FOLDER)
    disk.make_folder(parts.CHANNELS_FOLDER)
    lock = disk.lock_folder(parts.INTERNALS)
    try:
        state = read_mark(disk, parts.STATE_PATH) or {}
        incarnation = int(state.get("incarnation", 0)) + 1
        write_mark(disk, parts.STATE_PATH, {"clean": False, "incarnation": incarnation})
        store = parts.Store(disk=disk, options=options, lock=lock, incarnation=incarnation)
        wal_floor = _load_table(store)
        _replay(store, wal_floor, now_us=now_us, clean=bool(state.get("clean")))
        return store
    except BaseException:
        lock.release()
        raise


def _load_table(store: Store) -> int:
    from tidelog.storage import store as parts

    table = read_mark(store.disk, parts.TABLE_PATH)
    if table is None:
        _rebuild_table(store)
        return 0
    store.next_channel_id = int(table["next_channel_id"])
    for channel_id, name, synced_end in table["channels"]:
        store.channels[name] = parts.StoreChannel(channel_id=channel_id, name=name, synced_end=synced_end)
    return int(table["wal_floor"])


def _rebuild_table(store: Store) -> None:
    """The table is lost: the folders name their channels, and nothing is ever deleted for lack of it."""
    from tidelog.storage import store as parts
    from tidelog.storage.names import unescape_name

    for folder in store.disk.list_folder(parts.CHANNELS_FOLDER):
        escaped, _, number = folder.rpartition("~")
        if number.isdecimal():
            channel = parts.StoreChannel(channel_id=int(number), name=unescape_name(escaped), clean=False)
            known = store.channels.get(channel.name)
            if known is None or known.channel_id < channel.channel_id:
                store.channels[channel.name] = channel
            store.next_channel_id = max(store.next_channel_id, int(number) + 1)


def _replay(store: Store, wal_floor: int, *, now_us: int, clean: bool) -> None:
    from tidelog.storage import store as parts

    numbers = wal_numbers(store.disk, parts.WAL_FOLDER)
    store.next_wal_number = max([wal_floor, *(number + 1 for number in numbers), 1])
    entries: list[Entry] = []
    bytes_cut = damaged_bytes = 0
    for number in numbers:
        if number >= wal_floor:
            scan = scan_wal(store.disk, parts.WAL_FOLDER, number, store.options.log.limits)
            entries += scan.entries
            bytes_cut += scan.bytes_cut
            damaged_bytes += scan.damaged_bytes
    waiting = _fold(store, entries)
    replayed = 0
    for channel_id, blocks in waiting.items():
        channel = next((part for part in store.channels.values() if part.channel_id == channel_id), None)
        if channel is not None:
            channel.clean = False
            replayed += _restage(store, channel, blocks, now_us)
    if entries or bytes_cut or damaged_bytes:
        store.checkpoint(now_us)
    for number in numbers:
        store.disk.remove(parts.wal_path(number))
    _remove_strays(store)
    store.recovery = parts.StoreRecovery(
        clean=clean and not entries,
        entries=len(entries),
        blocks_replayed=replayed,
        bytes_cut=bytes_cut,
        damaged_bytes=damaged_bytes,
        channels_opened=len(waiting),
    )


def _fold(store: Store, entries: list[Entry]) -> dict[int, list[Block]]:
    """Apply creations and deletions; gather the blocks of each channel that were not truncated."""
    from tidelog.storage import store as parts

    waiting: dict[int, list[Block]] = {}
    by_id = {channel.channel_id: channel for channel in store.channels.values()}
    for entry in entries:
        if entry.kind is EntryKind.CREATE:
            store.next_channel_id = max(store.next_channel_id, entry.subject + 1)
            if entry.subject not in by_id:
                channel = parts.StoreChannel(channel_id=entry.subject, name=entry.fields["name"])
                by_id[entry.subject] = store.channels[channel.name] = channel
        elif entry.kind is EntryKind.DELETE:
            waiting.pop(entry.subject, None)
            gone = by_id.pop(entry.subject, None)
            if gone is not None and store.channels.get(gone.name) is gone:
                del store.channels[gone.name]
        elif entry.kind is EntryKind.TRUNCATE:
            offset = int(entry.fields["offset"])
            waiting[entry.subject] = [b for b in waiting.get(entry.subject, []) if b.leader.base_offset < offset]
            if entry.subject in by_id:
                by_id[entry.subject].synced_end = min(by_id[entry.subject].synced_end, offset)
        elif entry.kind is EntryKind.DIRECT:
            waiting.setdefault(entry.subject, [])
            if entry.subject in by_id:
                by_id[entry.subject].synced_end = int(entry.fields["end"])
        elif entry.block is not None:
            waiting.setdefault(entry.subject, []).append(entry.block)
    return waiting


def _restage(store: Store, channel: StoreChannel, blocks: list[Block], now_us: int) -> int:
    """Stage what the segments lack. A gap (damage in the write-ahead file) becomes a placeholder."""
    log = store.open_channel(channel, now_us)
    replayed = 0
    for block in blocks:
        if block.offsets.stop <= log.log_end:
            continue
        if block.leader.base_offset > log.log_end:
            gap = missing_block(
                offsets=range(log.log_end, block.leader.base_offset),
                channel_id=channel.channel_id,
                leader_epoch=log.epochs.newest,
                append_time_us=now_us,
                durable_end=log.log_end,
            )
            log.stage_stamped(gap)
        log.stage_stamped(block)
        replayed += 1
    log.note_durable(log.log_end)
    return replayed


def _remove_strays(store: Store) -> None:
    """Folders of deleted channels whose removal a crash interrupted."""
    from tidelog.storage import store as parts

    known = {channel.folder.rpartition("/")[2] for channel in store.channels.values()}
    for folder in store.disk.list_folder(parts.CHANNELS_FOLDER):
        if folder not in known and folder.rpartition("~")[2].isdecimal():
            store.disk.remove_folder(f"{parts.CHANNELS_FOLDER}/{folder}")
