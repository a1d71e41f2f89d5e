"""A store, read without changing it: which channels it has, and what waits in its write-ahead files.

What opening the store would replay is folded here in memory: channels created and deleted, blocks that are acked but
not yet written back, and how far each channel's segments were synced. It may belong to a running node: the write-ahead
files are read before the segments, so what a checkpoint moves from the one to the other meanwhile is found in both,
and never in neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidelog.blocks.block import Block
from tidelog.blocks.header import DEFAULT_LIMITS
from tidelog.errors import FileMissing, NotALog
from tidelog.storage.atomic import read_either_mark
from tidelog.storage.disk import Disk
from tidelog.storage.store.parts import CHANNELS_FOLDER, TABLE_PATH, WAL_FOLDER, StoreChannel, parse_folder, wal_path
from tidelog.storage.store.wal import WalEntry, WalEntryKind, scan_wal, wal_numbers


class WaitingBlock(NamedTuple):
    """A block of a write-ahead file, and the file."""

    path: str
    block: Block


@dataclass(slots=True, kw_only=True)
class StoredChannel:
    """A channel of the store, as table and write-ahead files have it."""

    channel_id: int
    name: str
    base_offset: int = 0
    log_generation: int = 0
    synced_end: int = 0
    """Its segments should reach at least this far."""
    waiting: list[WaitingBlock] = field(default_factory=list)
    """Acknowledged, and perhaps not in a segment yet; oldest first."""

    @property
    def folder(self) -> str:
        return StoreChannel(channel_id=self.channel_id, name=self.name, log_generation=self.log_generation).folder


def stored_channels(disk: Disk) -> dict[int, StoredChannel]:
    """Every channel of the store, by id."""
    table = read_either_mark(disk, TABLE_PATH) or {}
    channels = channels_before_replay(disk, table)
    floor, newest = int(table.get("wal_floor", 0)), int(table.get("wal_newest", 0))
    for number in wal_numbers(disk, WAL_FOLDER):
        if number < floor:
            continue
        try:
            scan = scan_wal(disk, WAL_FOLDER, number, DEFAULT_LIMITS)
        except FileMissing:
            continue  # a checkpoint has just put all of it into segments
        for entry in scan.entries:
            fold_entry(channels, entry, wal_path(number), in_table=number < newest)
    return channels


def channels_before_replay(disk: Disk, table: dict[str, Any]) -> dict[int, StoredChannel]:
    """As the store's table has them; from their folders where there is none."""
    if table and table.get("format") != 1:
        raise NotALog(path=TABLE_PATH, problem=f"store format {table.get('format')} needs a newer Tidelog")
    return _of_table(table) if table else _of_folders(disk)


def _of_table(table: dict[str, Any]) -> dict[int, StoredChannel]:
    places = {int(place[0]): place for place in table.get("places", ())}
    channels = {}
    for channel_id, name, synced_end in table["channels"]:
        _, base_offset, generation, *_ = places.get(int(channel_id), (channel_id, 0, 0))
        channels[int(channel_id)] = StoredChannel(
            channel_id=int(channel_id),
            name=str(name),
            base_offset=int(base_offset),
            log_generation=int(generation),
            synced_end=int(synced_end),
        )
    return channels


def _of_folders(disk: Disk) -> dict[int, StoredChannel]:
    """The channels of a store whose table is lost or not written yet, from the folders."""
    try:
        folders = disk.list_folder(CHANNELS_FOLDER)
    except FileMissing:
        return {}
    channels: dict[int, StoredChannel] = {}
    for name, channel_id, generation in filter(None, map(parse_folder, folders)):
        known = channels.get(channel_id)
        if known is None or known.log_generation < generation:
            channels[channel_id] = StoredChannel(channel_id=channel_id, name=name, log_generation=generation)
    return channels


def fold_entry(channels: dict[int, StoredChannel], entry: WalEntry, path: str, *, in_table: bool) -> None:
    """Apply one entry. What older files say of synced ends is in the table already; they count for their blocks."""
    channel = channels.get(entry.subject)
    match entry.kind:
        case WalEntryKind.CREATE:
            _create(channels, entry, channel)
        case WalEntryKind.DELETE if channel is not None:
            if channel.log_generation <= int(entry.fields.get("life", 0)):
                del channels[entry.subject]
            else:
                channel.waiting = []
        case WalEntryKind.TRUNCATE if channel is not None:
            offset = int(entry.fields["offset"])
            channel.waiting = [one for one in channel.waiting if one.block.leader.base_offset < offset]
            channel.synced_end = channel.synced_end if in_table else min(channel.synced_end, offset)
        case WalEntryKind.DIRECT if channel is not None:
            channel.synced_end = channel.synced_end if in_table else int(entry.fields["end"])
        case WalEntryKind.BLOCK if channel is not None and entry.block is not None:
            channel.waiting.append(WaitingBlock(path, entry.block))
        case _:
            pass


def _create(channels: dict[int, StoredChannel], entry: WalEntry, known: StoredChannel | None) -> None:
    """A creation with a higher log generation replaces what was known; blocks before it belong to another log."""
    generation, base = int(entry.fields.get("life", 0)), int(entry.fields.get("base", 0))
    if known is None or generation > known.log_generation:
        channels[entry.subject] = StoredChannel(
            channel_id=entry.subject,
            name=str(entry.fields["name"]),
            base_offset=base,
            log_generation=generation,
            synced_end=base,
        )
    elif generation == known.log_generation and not entry.fields.get("again"):
        known.waiting = []
