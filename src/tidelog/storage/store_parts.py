"""What a store is made of: where its files lie, its options, a channel, and what it reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tidelog.blocks.block import Block
from tidelog.errors import InvalidConfig, LogError
from tidelog.storage.log import Log
from tidelog.storage.names import escape_name
from tidelog.storage.options import LogOptions
from tidelog.storage.wal import wal_name
from tidelog.units import KIB, MIB

INTERNALS = ".tidelog"
WAL_FOLDER = f"{INTERNALS}/wal"
CHANNELS_FOLDER = f"{INTERNALS}/channels"
TABLE_PATH = f"{INTERNALS}/store.table"
STATE_PATH = f"{INTERNALS}/store.state"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    log: LogOptions = field(default_factory=LogOptions)
    """For channels that `options_of` does not know."""
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

    def __post_init__(self) -> None:
        problems = []
        if self.large_block_bytes < 1 or self.wal_bytes_max < 4 * KIB:
            problems.append("large_block_bytes must be positive and wal_bytes_max at least 4 KiB")
        if self.checkpoint_interval_ms <= 0 or self.open_files_max < 8:
            problems.append("checkpoint_interval_ms must be positive and open_files_max at least 8")
        if self.scrub_bytes_per_s < 0:
            problems.append("scrub_bytes_per_s must not be negative")
        if problems:
            raise InvalidConfig(section="store", problems=problems)


class StoreChannel:
    """A channel of the store. `log` is opened on first use."""

    __slots__ = ("channel_id", "clean", "log", "name", "relogged", "synced_end", "unsynced", "waiting")

    def __init__(self, *, channel_id: int, name: str, synced_end: int = 0, clean: bool = True) -> None:
        self.channel_id = channel_id
        self.name = name
        self.synced_end = synced_end
        self.clean = clean
        """Nothing was written since the index beside its newest segment, so that can be trusted."""
        self.log: Log | None = None
        self.waiting: list[Block] = []
        """Staged, and not yet durable anywhere."""
        self.unsynced: list[Block] = []
        """Durable in a write-ahead file, and not yet known to be synced in a segment (ST2)."""
        self.relogged: LogError | None = None
        """Why the last checkpoint could not write this channel back."""

    @property
    def folder(self) -> str:
        return f"{CHANNELS_FOLDER}/{escape_name(self.name)}~{self.channel_id}"


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
