"""What a log is made of and what it reports: a segment, the findings of an opening, the statistics."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.storage.log.index import SegmentIndex
from tidelog.storage.log.segment import INDEX_SUFFIX


class Segment:
    """One segment file and what is known of it. `version` changes whenever positions in it may have moved."""

    __slots__ = ("index", "opening_epoch", "path", "version")

    def __init__(self, path: str, index: SegmentIndex, *, opening_epoch: int = 0) -> None:
        self.path = path
        self.opening_epoch = opening_epoch
        self.index = index
        self.version = 0

    @property
    def base_offset(self) -> int:
        return self.index.base_offset

    @property
    def index_path(self) -> str:
        return self.path + INDEX_SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What opening a log found and did."""

    clean: bool
    """The log had been closed properly; nothing needed to be scanned."""
    segments: int
    bytes_scanned: int
    bytes_cut: int
    """Bytes after the last good block that were never known to be durable, and are gone (B4)."""
    quarantined: tuple[range, ...]
    """Offsets that were durable and can no longer be read; placeholders stand for them."""
    sync_point: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatistics:
    log_start: int
    log_end: int
    durable_end: int
    segments: int
    bytes: int
    records: int
    blocks: int
    staged_bytes: int
    damaged: tuple[range, ...]
    epoch: int
    incarnation: int
