"""Read-only access to a store: its table, its write-ahead files, its channels.

What opening the store would replay is folded in memory (`storage.stored_channels`); here is what inspecting and
verifying say of it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fastcrc.crc32 import iscsi as crc32c

from tidelog.blocks.header import DEFAULT_LIMITS
from tidelog.cli.log.files import BlockInFile, LogFiles, Managed, load_mark
from tidelog.errors import UnknownChannel
from tidelog.storage.disk import Disk
from tidelog.storage.store.parts import STATE_PATH, TABLE_PATH, WAL_FOLDER, WAL_MARK_PATH, wal_path
from tidelog.storage.store.stored_channels import StoredChannel, channels_before_replay, fold_entry
from tidelog.storage.store.wal import WAL_HEAD_BYTES, WAL_MAGIC, scan_wal, wal_numbers
from tidelog.storage.store.wal_mark import wal_mark_problems

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


class StoreFiles:
    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.table_mark, self.state_mark = load_mark(disk, TABLE_PATH), load_mark(disk, STATE_PATH)
        self.table, self.state = self.table_mark.value, self.state_mark.value
        self._channels = channels_before_replay(disk, self.table)
        self.wals = [self._replay(number) for number in wal_numbers(disk, WAL_FOLDER)]

    @property
    def clean(self) -> bool:
        return bool(self.state.get("clean")) and not any(facts.live and facts.entries for facts in self.wals)

    def wal_mark_problems(self) -> list[tuple[str, str]]:
        """(path, problem) of the mark that says how far the write-ahead files were durable."""
        problems = wal_mark_problems(self.disk, WAL_MARK_PATH, clean=bool(self.state.get("clean")))
        return [(WAL_MARK_PATH, problem) for problem in problems]

    def names(self) -> list[str]:
        return sorted(channel.name for channel in self._channels.values())

    def logs(self, only: str | None = None) -> list[LogFiles]:
        """The log of each channel, or of one, by name."""
        if only is not None and only not in self.names():
            raise UnknownChannel(channel=only)
        chosen = [channel for channel in self._channels.values() if only in (None, channel.name)]
        return [self._log(channel) for channel in sorted(chosen, key=lambda channel: channel.name)]

    def _log(self, channel: StoredChannel) -> LogFiles:
        managed = Managed(
            channel_id=channel.channel_id,
            clean=self.clean,
            synced_end=channel.synced_end,
            waiting=tuple(BlockInFile(one.path, None, one.block) for one in channel.waiting),
        )
        return LogFiles(self.disk, channel.folder, name=channel.name, managed=managed)

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
                fold_entry(self._channels, entry, path, in_table=in_table)
        return WalFacts(
            path=path,
            bytes=size,
            entries=len(scan.entries),
            bytes_cut=scan.bytes_cut,
            damaged_bytes=scan.damaged_bytes,
            head_good=_head_is_good(head, number),
            live=live,
        )


def _head_is_good(head: bytes, number: int) -> bool:
    if len(head) < WAL_HEAD_BYTES or head[:8] != WAL_MAGIC:
        return False
    return bool(struct.unpack_from("<Q", head, 8)[0] == number and crc32c(head[:60]) == _CRC.unpack_from(head, 60)[0])
