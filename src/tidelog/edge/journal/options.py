"""The options and statistics of a boat's journal."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.errors import InvalidConfig
from tidelog.storage.log.index import SegmentIndex
from tidelog.storage.log.options import Fsync, LogOptions, Retention
from tidelog.units import MIB

FRAMES_MAX = 65_536
"""The most frames in one block: delta planes know no more kinds of frame than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    flush_interval_ms: int = 900
    """The longest time a frame stays in memory only; write and sync fit into the rest of the second."""
    flush_frames_max: int = 16_384
    """A burst is written out at this many frames, without waiting for the interval."""
    buffer_frames_max: int = 262_144
    """Frames kept in memory while the disk refuses writes; beyond that recording is refused."""
    seal_frames: int = 16_384
    seal_age_ms: int = 60_000
    """Small blocks are sealed when this many frames have gathered or the oldest is this old."""
    lease_seqs: int = 16_384
    """Seqs leased per durable write: larger means fewer writes and a larger void after a power cut."""
    zstd_level: int = 3
    disk_bytes_max: int | None = None
    """Checked after every flush: data over the limit is removed at the next `wake`, acked or not."""
    retention: Retention = field(default_factory=Retention)
    keep_unacked: bool = True
    """Retention keeps unacked frames, however old. False where no cloud will ever ack: age then removes them."""
    retention_interval_ms: int = 10_000
    fresh_segment_bytes: int = 1 * MIB
    sealed_segment_bytes: int = 16 * MIB
    segment_age_max_ms: int | None = None
    """A sealed segment is also ended at this age, so that retention by age can remove it sooner."""
    reserve_bytes: int = 16 * MIB

    def __post_init__(self) -> None:
        counts = {
            "flush_interval_ms": self.flush_interval_ms,
            "flush_frames_max": self.flush_frames_max,
            "seal_frames": self.seal_frames,
            "seal_age_ms": self.seal_age_ms,
            "lease_seqs": self.lease_seqs,
            "retention_interval_ms": self.retention_interval_ms,
        }
        problems = [f"{name} must be positive" for name, value in counts.items() if value <= 0]
        if max(self.flush_frames_max, self.seal_frames) > FRAMES_MAX:
            problems.append(f"flush_frames_max and seal_frames must not be above {FRAMES_MAX}")
        if self.buffer_frames_max < self.flush_frames_max:
            problems.append("buffer_frames_max must not be below flush_frames_max")
        if self.disk_bytes_max is not None and self.disk_bytes_max < 4 * self.fresh_segment_bytes:
            problems.append("disk_bytes_max must hold at least four fresh segments")
        if problems:
            raise InvalidConfig(section="journal", problems=problems)

    def is_outlived(self, oldest: SegmentIndex, now_us: int) -> bool:
        """Whether a segment is removed for its age though it may hold unacked frames."""
        max_age_ms = self.retention.max_age_ms
        dated = oldest.append_max_us >= oldest.append_min_us
        return bool(
            not self.keep_unacked and max_age_ms and dated and now_us - oldest.append_max_us > max_age_ms * 1000
        )

    def fresh_log(self) -> LogOptions:
        return LogOptions(
            segment_bytes_max=self.fresh_segment_bytes, fsync=Fsync.ALWAYS, reserve_bytes=self.reserve_bytes
        )

    def sealed_log(self) -> LogOptions:
        # Segments go whole, so one must be a small part of what may be kept.
        limit = self.disk_bytes_max
        segment_bytes = self.sealed_segment_bytes if limit is None else min(self.sealed_segment_bytes, limit // 4)
        return LogOptions(
            segment_bytes_max=segment_bytes,
            segment_age_max_ms=self.segment_age_max_ms,
            fsync=Fsync.ALWAYS,
            retention=self.retention,
            reserve_bytes=self.reserve_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatistics:
    lineage: str
    head: int
    """The newest seq issued."""
    durable_head: int
    leased_end: int
    acked: int
    frames_buffered: int
    fresh_bytes: int
    sealed_bytes: int
    sealed_end: int
    log_end: int
    forced_lost: tuple[range, ...]
    """Seqs above the acked cursor that the disk limit removed since the journal was opened (JJ3)."""
    void: tuple[range, ...]
    """Seqs declared void when the journal was opened."""
