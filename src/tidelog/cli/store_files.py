"""Read-only access to a store: its table, its write-ahead files, its channels.

What opening the store would replay is folded here in memory: channels created and deleted, blocks that
are acked but not yet written back, and how far each channel's segments were synced.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from fastcrc.crc32 import iscsi as crc32c

from tidelog.blocks.header import DEFAULT_LIMITS
from tidelog.cli.log_files import LogFiles, Managed, Placed, load_mark
from tidelog.errors import FileMissing, NotALog, UnknownChannel
from tidelog.storage.disk import Disk
from tidelog.storage.store import CHANNELS_FOLDER, STATE_PATH, TABLE_PATH, WAL_FOLDER, StoreChannel, wal_path
from tidelog.storage.store_parts import parse_folder
from tidelog.storage.wal import WAL_HEAD_BYTES, WAL_MAGIC, Entry, EntryKind, scan_wal, wal_numbers

_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class WalFacts:
    """What reading one write-ahead file found."""

    path: str
    bytes: int
    entries: int
    bytes_cut: int
    damaged_bytes: int
    head_good: bool
    live: bool
    """It is at or above the floor, so opening the store replays it."""


@dataclass(slots=True)
class _Channel:
    channel_id: int
    name: str
    synced_end: int = 0
    life: int = 0
    waiting: list[Placed] = field(default_factory=list)


class StoreFiles:
    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.table_mark, self.state_mark = load_mark(disk, TABLE_PATH), load_mark(disk, STATE_PATH)
        self.table, self.state = self.table_mark.value, self.state_mark.value
        if self.table and self.table.get("format") != 1:
            raise NotALog(path=TABLE_PATH, problem=f"store format {self.table.get('format')} needs a newer Tidelog")
        self._channels: dict[int, _Channel] = {}
        self._load_channels()
        self.wals = [self._replay(number) for number in wal_numbers(disk, WAL_FOLDER)]

    @property
    def clean(self) -> bool:
        return bool(self.state.get("clean")) and not any(facts.live and facts.entries for facts in self.wals)

    def names(self) -> list[str]:
        return sorted(channel.name for channel in self._channels.values())

    def logs(self, only: str | None = None) -> list[LogFiles]:
        """The log of each channel, or of one, by name."""
        if only is not None and only not in self.names():
            raise UnknownChannel(channel=only)
        chosen = [channel for channel in self._channels.values() if only in (None, channel.name)]
        return [self._log(channel) for channel in sorted(chosen, key=lambda channel: channel.name)]

    def _log(self, channel: _Channel) -> LogFiles:
        folder = StoreChannel(channel_id=channel.channel_id, name=channel.name, life=channel.life).folder
        managed = Managed(
            channel_id=channel.channel_id,
            clean=self.clean,
            synced_end=channel.synced_end,
            waiting=tuple(channel.waiting),
        )
        return LogFiles(self.disk, folder, name=channel.name, managed=managed)

    def _load_channels(self) -> None:
        if self.table:
            lives = {channel_id: life for channel_id, _, life, _ in self.table.get("places", ())}
            for channel_id, name, synced_end in self.table["channels"]:
                self._channels[channel_id] = _Channel(channel_id, name, synced_end, lives.get(channel_id, 0))
            return
        try:
            folders = self.disk.list_folder(CHANNELS_FOLDER)
        except FileMissing:
            return
        for name, channel_id, life in filter(None, map(parse_folder, folders)):
            known = self._channels.get(channel_id)
            if known is None or known.life < life:
                self._channels[channel_id] = _Channel(channel_id, name, life=life)

    def _replay(self, number: int) -> WalFacts:
        path = wal_path(number)
        file = self.disk.open(path, writable=False)
        try:
            head, size = file.read_at(0, WAL_HEAD_BYTES), file.size()
        finally:
            file.close()
        scan = scan_wal(self.disk, WAL_FOLDER, number, DEFAULT_LIMITS)
        live = number >= int(self.table.get("wal_floor", 0))
        if live:
            in_table = number < int(self.table.get("wal_newest", 0))
            for entry in scan.entries:
                self._fold(entry, path, in_table=in_table)
        return WalFacts(
            path=path,
            bytes=size,
            entries=len(scan.entries),
            bytes_cut=scan.bytes_cut,
            damaged_bytes=scan.damaged_bytes,
            head_good=_head_is_good(head, number),
            live=live,
        )

    def _fold(self, entry: Entry, path: str, *, in_table: bool) -> None:
        """Apply one entry. What older files say of synced ends is in the table already; they count for their blocks."""
        channel = self._channels.get(entry.subject)
        if entry.kind is EntryKind.CREATE:
            self._create(entry, channel)
        elif entry.kind is EntryKind.DELETE:
            if channel is not None and channel.life <= int(entry.fields.get("life", 0)):
                del self._channels[entry.subject]
            elif channel is not None:
                channel.waiting = []
        elif channel is None:
            return
        elif entry.kind is EntryKind.TRUNCATE:
            offset = int(entry.fields["offset"])
            channel.waiting = [part for part in channel.waiting if part.block.leader.base_offset < offset]
            channel.synced_end = channel.synced_end if in_table else min(channel.synced_end, offset)
        elif entry.kind is EntryKind.DIRECT:
            channel.synced_end = channel.synced_end if in_table else int(entry.fields["end"])
        elif entry.block is not None:
            channel.waiting.append(Placed(path, None, entry.block))

    def _create(self, entry: Entry, known: _Channel | None) -> None:
        """A creation with a higher life replaces what was known; blocks before it were another log's."""
        life = int(entry.fields.get("life", 0))
        if known is None or life > known.life:
            base = int(entry.fields.get("base", 0))
            self._channels[entry.subject] = _Channel(entry.subject, entry.fields["name"], base, life)
        elif life == known.life and not entry.fields.get("again"):
            known.waiting = []


def _head_is_good(head: bytes, number: int) -> bool:
    if len(head) < WAL_HEAD_BYTES or head[:8] != WAL_MAGIC:
        return False
    return bool(struct.unpack_from("<Q", head, 8)[0] == number and crc32c(head[:60]) == _CRC.unpack_from(head, 60)[0])
