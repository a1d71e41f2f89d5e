"""Opening a store: read the table, replay the write-ahead files, hand back what was acked.

Replay is idempotent. A channel's segments are the truth for what was written back; the write-ahead
files add what came after. Truncations in them only undo earlier blocks of the same files: the segments
were cut and synced before the truncation returned, and may hold newer blocks by now. A creation with a
higher log generation replaces what was known under its id: the blocks before it belong to another log.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.blocks.block import Block
from tidelog.errors import LogError
from tidelog.storage.atomic import marks_agree, read_either_mark
from tidelog.storage.disk import Disk
from tidelog.storage.store.losses import StoreState
from tidelog.storage.store.parts import (
    CHANNELS_FOLDER,
    INTERNALS,
    STATE_PATH,
    TABLE_PATH,
    WAL_FOLDER,
    WAL_MARK_PATH,
    StoreChannel,
    StoreOptions,
    StoreRecovery,
    parse_folder,
)
from tidelog.storage.store.store import Store
from tidelog.storage.store.wal import WalEntry, WalEntryKind, WalScan
from tidelog.storage.store.wal_mark import read_wal_end
from tidelog.storage.store.wals import WalChain


def open_store(disk: Disk, *, now_us: int, options: StoreOptions | None = None) -> Store:
    """Open the store on this disk, replaying its write-ahead files if it was not closed."""
    options = options or StoreOptions()
    disk.make_folder(WAL_FOLDER)
    disk.make_folder(CHANNELS_FOLDER)
    lock = disk.lock_folder(INTERNALS)
    try:
        saved = read_either_mark(disk, STATE_PATH)
        state = StoreState(
            incarnation=int((saved or {}).get("incarnation", 0)) + 1,
            marked=bool((saved or {}).get("marked")),
            lost=str((saved or {}).get("lost", "")),
        )
        state.save(disk)
        store = Store(disk=disk, options=options, lock=lock, state=state)
        table = _load_table(store)
        if saved is None and (table.wal_floor or table.rebuilt):
            # It is written before anything else, twice, and synced each time.
            state.lose([f"{STATE_PATH} and its copy are missing or damaged, with what they knew of earlier losses"])
        _replay(store, table, now_us=now_us, clean=bool((saved or {}).get("clean")))
        return store
    except BaseException:
        lock.release()
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    wal_floor: int = 0
    """Older write-ahead files are done with."""
    wal_newest: int = 0
    """What older files say is in the table already; they are kept for their blocks."""
    rebuilt: bool = False
    absent: bool = False
    """Neither copy is there: lost, or never written."""
    complete: bool = False
    """Both copies are there. If one is missing, both are written again at once, so that one more loss does no harm."""


def _load_table(store: Store) -> _Table:
    table = read_either_mark(store.disk, TABLE_PATH)
    if table is None:
        return _Table(rebuilt=_rebuild_table(store), absent=True)
    complete = marks_agree(store.disk, TABLE_PATH)
    store.next_channel_id = int(table["next_channel_id"])
    places = {channel_id: place for channel_id, *place in table.get("places", ())}
    entered = dict(table.get("entered", ()))
    for channel_id, name, synced_end in table["channels"]:
        base_offset, generation, lost_part = places.get(channel_id, (0, 0, 0))
        channel = StoreChannel(
            channel_id=channel_id, name=name, synced_end=synced_end, base_offset=base_offset, log_generation=generation
        )
        channel.lost_part = bool(lost_part)
        channel.entered_end = entered.get(channel_id, 0)
        store.channels[name] = channel
    return _Table(wal_floor=int(table["wal_floor"]), wal_newest=int(table["wal_newest"]), complete=complete)


def _rebuild_table(store: Store) -> bool:
    """The table is lost: the folders name their channels, and nothing is ever deleted for lack of it."""
    folders = store.disk.list_folder(CHANNELS_FOLDER)
    for name, channel_id, generation in filter(None, map(parse_folder, folders)):
        known = store.channels.get(name)
        if known is None or (known.channel_id, known.log_generation) < (channel_id, generation):
            store.channels[name] = StoreChannel(
                channel_id=channel_id, name=name, clean=False, log_generation=generation
            )
        store.next_channel_id = max(store.next_channel_id, channel_id + 1)
    return bool(folders)


def _replay(store: Store, table: _Table, *, now_us: int, clean: bool) -> None:
    wals, state = store.wals, store.state
    mark = read_wal_end(store.disk, WAL_MARK_PATH)
    chain = WalChain(store.disk, table_floor=table.wal_floor, mark=mark)
    numbers = chain.numbers
    newest = [number + 1 for number in numbers] + ([mark.floor, mark.number + 1] if mark else [])
    wals.next_number = max([table.wal_floor, table.wal_newest, 1, *newest])
    waiting: dict[int, list[Block]] = {}
    scans = {number: chain.scan(number, store.options.log.limits) for number in numbers if number >= table.wal_floor}
    for number, scan in scans.items():
        _fold(store, scan.entries, waiting, in_table=number < table.wal_newest)
    entries = sum(len(scan.entries) for scan in scans.values())
    bytes_cut = sum(scan.bytes_cut for scan in scans.values())
    damaged_bytes = sum(scan.damaged_bytes for scan in scans.values())
    lost_before = state.lost
    state.lose(chain.losses(scans, marked=state.marked, table_absent=table.absent))
    if state.lost != lost_before:
        state.save(store.disk)  # the evidence is removed below
    _set_next_log_generation(store)
    replayed = _open_waiting(store, waiting, now_us)
    wals.old = {number: scans[number].sync_point if number in scans else 0 for number in numbers}
    _begin_mark(store, table, scans, idle=not entries)
    if entries or bytes_cut or damaged_bytes or not table.complete or state.lost:
        store.checkpoint_or_keep(now_us)
        store.check_usable()
    elif wals.trouble is None:
        wals.drop_old()
    if not table.rebuilt:
        _remove_strays(store)
    recovery = StoreRecovery(
        clean=clean and not (bytes_cut or damaged_bytes or state.reason()),
        entries=entries,
        blocks_replayed=replayed,
        bytes_cut=bytes_cut,
        damaged_bytes=damaged_bytes,
        channels_opened=len(waiting),
        table_rebuilt=table.rebuilt,
    )
    store.recovery = state.added_to(recovery)


def _begin_mark(store: Store, table: _Table, scans: dict[int, WalScan], *, idle: bool) -> None:
    """Remember which write-ahead files must be there from now on. Without entries they are removed without a table."""
    wals, state = store.wals, store.state
    if idle and table.complete and not state.lost:
        remembered = wals.remember(wals.next_number, {})
    else:
        floor = 0 if table.wal_floor == 0 else max(table.wal_floor, min(scans, default=wals.next_number))
        remembered = wals.remember(floor, {number: scan.sync_point for number, scan in scans.items()})
    if remembered and not state.marked:
        state.marked = True
        state.save(store.disk)


def _fold(store: Store, entries: list[WalEntry], waiting: dict[int, list[Block]], *, in_table: bool) -> None:
    """Apply creations and deletions; gather the blocks of each channel that were not truncated."""
    by_id = {channel.channel_id: channel for channel in store.channels.values()}
    for entry in entries:
        subject = entry.subject
        if entry.kind is WalEntryKind.CREATE:
            store.next_channel_id = max(store.next_channel_id, subject + 1)
            _fold_creation(store, by_id, waiting, entry)
        elif entry.kind is WalEntryKind.DELETE:
            waiting.pop(subject, None)
            # The table may know a later generation already.
            if subject in by_id and by_id[subject].log_generation <= int(entry.fields.get("life", 0)):
                _forget(store, by_id.pop(subject))
        elif entry.kind is WalEntryKind.TRUNCATE:
            offset = int(entry.fields["offset"])
            waiting[subject] = [block for block in waiting.get(subject, []) if block.leader.base_offset < offset]
            if subject in by_id and not in_table:
                by_id[subject].synced_end = min(by_id[subject].synced_end, offset)
                by_id[subject].entered_end = min(by_id[subject].entered_end, offset)
        elif entry.kind is WalEntryKind.DIRECT:
            waiting.setdefault(subject, [])
            if subject in by_id and not in_table:
                by_id[subject].synced_end = int(entry.fields["end"])
        elif entry.block is not None:
            waiting.setdefault(subject, []).append(entry.block)


def _fold_creation(
    store: Store, by_id: dict[int, StoreChannel], waiting: dict[int, list[Block]], entry: WalEntry
) -> None:
    known, generation = by_id.get(entry.subject), int(entry.fields.get("life", 0))
    store.next_log_generation = max(store.next_log_generation, generation + 1)
    if known is not None and generation < known.log_generation:
        return
    if not entry.fields.get("again"):
        waiting.pop(entry.subject, None)  # blocks of an earlier generation
    if known is not None and generation == known.log_generation:
        return
    if known is not None:
        _forget(store, known)
    channel = StoreChannel(
        channel_id=entry.subject,
        name=entry.fields["name"],
        base_offset=int(entry.fields.get("base", 0)),
        log_generation=generation,
    )
    by_id[channel.channel_id] = store.channels[channel.name] = channel


def _forget(store: Store, channel: StoreChannel) -> None:
    if store.channels.get(channel.name) is channel:
        del store.channels[channel.name]


def _set_next_log_generation(store: Store) -> None:
    """Set the next log generation above every one found in the table, the write-ahead files or the folders."""
    folders = filter(None, map(parse_folder, store.disk.list_folder(CHANNELS_FOLDER)))
    generations = [channel.log_generation for channel in store.channels.values()] + [folder[2] for folder in folders]
    store.next_log_generation = max([store.next_log_generation, *(generation + 1 for generation in generations)])


def _open_waiting(store: Store, waiting: dict[int, list[Block]], now_us: int) -> int:
    """Hand the blocks to their channels; returns how many their segments lacked."""
    by_id = {channel.channel_id: channel for channel in store.channels.values()}
    for channel in store.channels.values():
        if channel.entered_end > channel.synced_end:
            waiting.setdefault(channel.channel_id, [])  # if its entries are gone, that is reported now
    replayed = 0
    for channel_id, blocks in waiting.items():
        if channel_id not in by_id:
            continue
        channel = by_id[channel_id]
        channel.clean = False
        channel.unsynced = blocks
        try:
            store.open_channel(channel, now_us)
        except LogError as error:
            # One damaged channel must not keep the node from starting (S3). Its blocks stay in the write-ahead file,
            # and requests for the channel get the error.
            store.trouble = channel.relogged = error
            continue
        replayed += len(channel.unsynced)
    return replayed


def _remove_strays(store: Store) -> None:
    """Folders of deleted channels whose removal a crash interrupted."""
    known = {channel.folder.rpartition("/")[2] for channel in store.channels.values()}
    for folder in store.disk.list_folder(CHANNELS_FOLDER):
        if folder not in known and parse_folder(folder) is not None:
            store.disk.remove_folder(f"{CHANNELS_FOLDER}/{folder}")
