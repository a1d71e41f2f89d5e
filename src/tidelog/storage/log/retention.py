"""Trimming a log from the front, in whole segments.

Retention is judged by the leader's append time, by bytes and by records. It never goes above the
lowest floor (high watermark, fold snapshot, a named cursor, a boat's acked position), never removes
the newest segment (so the log end survives an empty log), and removes the oldest first, so that a
crash in the middle leaves a log that merely starts a little earlier.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import SyncFailed
from tidelog.storage.log.options import Retention
from tidelog.storage.log.segments import LogSegments


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What one sweep removed, and what held it back."""

    segments: int
    bytes: int
    records: int
    held_back: int
    """Segments that retention would have removed but a floor kept."""


def sweep(log: LogSegments, now_us: int, limits: Retention | None = None) -> Sweep:
    """Apply the log's retention options, or these limits instead. Hold the log's mutex."""
    limits = limits or log.options.retention
    indexes = [segment.index for segment in log.segments]
    bytes_left = sum(index.size for index in indexes)
    records_left = log.log_end - log.log_start
    through = log.log_start
    for index in indexes:
        # A segment of placeholders alone has no age; it goes with its neighbours, by bytes or records.
        dated = index.append_max_us >= index.append_min_us
        expired = dated and limits.max_age_ms is not None and now_us - index.append_max_us > limits.max_age_ms * 1000
        too_many_bytes = limits.max_bytes is not None and bytes_left > limits.max_bytes
        too_many_events = limits.max_events is not None and records_left - index.records >= limits.max_events
        if not index.blocks or not (expired or too_many_bytes or too_many_events):
            break
        bytes_left -= index.size
        records_left -= index.records
        through = index.end_offset
    return drop_through(log, through, now_us)


def drop_through(log: LogSegments, offset: int, now_us: int) -> Sweep:
    """Remove the segments that end at or before `offset`, as far as the floors allow."""
    floor = min(log.floor(), log.durable_end)
    wanted = [segment for segment in log.segments if segment.index.blocks and segment.index.end_offset <= offset]
    allowed = [segment for segment in wanted if segment.index.end_offset <= floor]
    if allowed and allowed[-1] is log.segments[-1]:
        # The newest segment may go too, once an empty one remembers where the log ends.
        log.roll(now_us)
    try:
        for segment in allowed:
            log.disk.remove(segment.index_path)
            log.disk.remove(segment.path)
            log.files.drop(segment.path)
            log.segments.remove(segment)
        if allowed:
            log.disk.sync_folder(log.segment_folder)
    except SyncFailed as error:
        log.poison(str(error))
        raise
    finally:
        log.epochs.trim(log.log_start)
    return Sweep(
        segments=len(allowed),
        bytes=sum(segment.index.size for segment in allowed),
        records=sum(segment.index.records for segment in allowed),
        held_back=len(wanted) - len(allowed),
    )
