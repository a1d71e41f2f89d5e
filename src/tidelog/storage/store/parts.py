"""What a store is made of: where its files lie, its options, a channel, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidelog.blocks.block import Block
from tidelog.errors import DamagedRange, InvalidConfig, LogError, NotABlockBoundary, OffsetOutOfRange
from tidelog.storage.disk import Disk
from tidelog.storage.files import FileCache
from tidelog.storage.log.index import SegmentIndex
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.parts import Segment
from tidelog.storage.log.recovery import StoreKnowledge, open_log
from tidelog.storage.log.segment import segment_name
from tidelog.storage.store.names import escape_name, unescape_name
from tidelog.storage.store.wal import wal_name
from tidelog.units import KIB, MIB

INTERNALS = ".tidelog"
WAL_FOLDER = f"{INTERNALS}/wal"
CHANNELS_FOLDER = f"{INTERNALS}/channels"
TABLE_PATH = f"{INTERNALS}/store.table"
STATE_PATH = f"{INTERNALS}/store.state"
WAL_MARK_PATH = f"{INTERNALS}/store.wal-mark"
"""Beside the folder of the write-ahead files, so that losing that folder is noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    log: LogOptions = field(default_factory=LogOptions)
    """Options of channels that `options_of` does not know."""
    options_of: Callable[[str], LogOptions | None] | None = None
    """Per-channel options, asked when a channel's log is opened."""
    large_block_bytes: int = 32 * KIB
    """Blocks from this size on are written once, straight to their segment (S1)."""
    wal_bytes_max: int = 64 * MIB
    """A checkpoint starts when the write-ahead file has grown to this."""
    checkpoint_interval_ms: int = 30_000
    """A checkpoint starts at the latest after this, if anything was written."""
    open_files_max: int = 256
    scrub_bytes_per_s: int = 4 * MIB
    """How fast everything is read again in the background, looking for rot; 0 turns it off."""
    copy_bytes_max: int = 0
    """A checkpoint copies the blocks of channels with little to write back to the next write-ahead file, up to this
    many bytes together: thousands of channels with a few records each then need no file each. 0 writes all of them
    back."""
    copy_channel_bytes_max: int = 16 * KIB
    """A channel with more than this waiting gets its file."""

    def __post_init__(self) -> None:
        problems = []
        if self.large_block_bytes < 1 or self.wal_bytes_max < 4 * KIB:
            problems.append("large_block_bytes must be positive and wal_bytes_max at least 4 KiB")
        if self.checkpoint_interval_ms <= 0 or self.open_files_max < 8:
            problems.append("checkpoint_interval_ms must be positive and open_files_max at least 8")
        if not 0 <= self.copy_bytes_max <= self.wal_bytes_max // 2 or self.copy_channel_bytes_max < 0:
            problems.append("copy_bytes_max must be at most half of wal_bytes_max, and neither copy limit negative")
        if self.scrub_bytes_per_s < 0:
            problems.append("scrub_bytes_per_s must not be negative")
        if problems:
            raise InvalidConfig(section="store", problems=problems)


class StoreChannel:
    """A channel of the store. `log` is opened on first use."""

    __slots__ = (
        "base_offset",
        "channel_id",
        "clean",
        "driven",
        "entered",
        "entered_end",
        "gap_staged",
        "log",
        "log_generation",
        "lost_part",
        "name",
        "options",
        "relogged",
        "synced_end",
        "unsynced",
        "waiting",
    )

    def __init__(
        self,
        *,
        channel_id: int,
        name: str,
        synced_end: int = 0,
        clean: bool = True,
        base_offset: int = 0,
        log_generation: int = 0,
        entered: bool = True,
    ) -> None:
        self.channel_id = channel_id
        self.name = name
        self.synced_end = max(synced_end, base_offset)
        self.clean = clean
        """Nothing was written since the index beside its newest segment, so that can be trusted."""
        self.base_offset = base_offset
        """Where the log began; its segments know better once there are any."""
        self.log_generation = log_generation
        """Rises whenever the channel's log is created or reset. It is part of the folder's name, so that
        what an earlier log left behind is never taken for this one's."""
        self.entered = entered
        """The store's files know of it. If not, its first commit enters it."""
        self.entered_end = 0
        """The end up to which the write-ahead files should have the channel, according to the table; 0 if not known."""
        self.gap_staged = False
        """Placeholders wait to be written back: they are found, and filled from a peer, only in a segment."""
        self.driven = False
        """The caller decides about retention, not the store."""
        self.options: LogOptions | None = None
        """These take precedence over the options that the store would choose."""
        self.log: Log | None = None
        self.waiting: list[Block] = []
        """Staged, and not yet durable anywhere."""
        self.unsynced: list[Block] = []
        """In a write-ahead file, and not yet known to be synced in a segment (ST2)."""
        self.relogged: LogError | None = None
        """Why the last checkpoint could not write this channel back."""
        self.lost_part = False
        """Its log had placeholders when it was last looked at."""

    @property
    def folder(self) -> str:
        generation = f".{self.log_generation}" if self.log_generation else ""
        return f"{CHANNELS_FOLDER}/{escape_name(self.name)}~{self.channel_id}{generation}"

    @property
    def damaged(self) -> bool:
        """Some of its records are known to be lost here."""
        return bool(self.log.damaged()) if self.log is not None else self.lost_part

    def creation(self) -> dict[str, Any]:
        """The payload of its entry in a write-ahead file."""
        if not (self.log_generation or self.base_offset):
            return {"name": self.name}
        return {"name": self.name, "base": self.base_offset, "life": self.log_generation}


def young_log(disk: Disk, channel: StoreChannel, options: LogOptions, files: FileCache) -> Log:
    """The log of a channel that has no files yet (LLO7)."""
    base, folder = channel.base_offset, channel.folder
    index = SegmentIndex(base_offset=base, size=0, interval_bytes=options.index_interval_bytes)
    return Log(
        disk=disk,
        folder=folder,
        channel_id=channel.channel_id,
        generation=0,
        options=options,
        files=files,
        segments=[Segment(f"{folder}/{segment_name(base)}", index)],
        durable_end=base,
        on_disk=False,
    )


def grown_log(disk: Disk, channel: StoreChannel, options: LogOptions, files: FileCache, now_us: int) -> Log:
    """The log of a channel from its files, which are made if they are not there."""
    knowledge = StoreKnowledge(channel_id=channel.channel_id, clean=channel.clean, synced_end=channel.synced_end)
    return open_log(
        disk,
        channel.folder,
        now_us=now_us,
        options=options,
        base_offset=channel.base_offset,
        files=files,
        managed=knowledge,
    )


def lost_offsets(channel: StoreChannel, gone: list[range]) -> str:
    """In words: which records of a channel are gone although its segments had been synced."""
    parts = ", ".join(f"{part.start} to {part.stop - 1}" for part in gone[:5])
    more = f" and {len(gone) - 5} more ranges" if len(gone) > 5 else ""
    return (
        f"channel {channel.name!r}: its segments in {channel.folder} were synced up to offset {channel.synced_end}, "
        f"and offsets {parts}{more} are gone or cannot be read"
    )


def parse_folder(folder: str) -> tuple[str, int, int] | None:
    """Name (perhaps cut), id and log generation of the channel in a folder; None for other folders."""
    escaped, _, numbers = folder.rpartition("~")
    channel_id, dot, generation = numbers.partition(".")
    if not channel_id.isdecimal() or (dot and not generation.isdecimal()):
        return None
    return unescape_name(escaped), int(channel_id), int(generation or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRecovery:
    clean: bool
    entries: int
    blocks_replayed: int
    bytes_cut: int
    damaged_bytes: int
    channels_opened: int
    table_rebuilt: bool = False
    """Both copies of the table were lost, so the folders had to name the channels."""
    synced_loss: bool = False
    """Something that had been synced is provably gone: a channel may be shorter than what was acked from here. Kept
    over restarts until `Store.forget_loss`, which is called once the channels have been compared with whole copies."""
    synced_loss_reason: str = ""
    """In plain words: which file, what was expected, what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatistics:
    channels: int
    open_logs: int
    open_files: int
    wal_bytes: int
    staged_bytes: int
    commits: int
    syncs: int
    checkpoints: int
    incarnation: int


def wal_path(number: int) -> str:
    return f"{WAL_FOLDER}/{wal_name(number)}"


def check_boundary(log: Log, offset: int) -> None:
    """Refuse what `Log.truncate` would refuse, before the entry is written."""
    if offset < log.log_start:
        raise OffsetOutOfRange(offset=offset, log_start=log.log_start, log_end=log.log_end)
    try:
        block = log.read(offset, bytes_max=1)[0]
    except DamagedRange:
        return  # a placeholder can be cut anywhere
    if block.leader.base_offset != offset:
        raise NotABlockBoundary(offset=offset, block=block.offsets)
