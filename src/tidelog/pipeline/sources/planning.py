"""From the ends of channels to pieces, and from pieces to tasks: shared by batches and streams.

SPL1  Pieces of one plan are disjoint, and together they are exactly the offsets between start and end of each channel.
SPL2  A share of a limit goes to every channel that has something, so that a large backlog starves none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from tidelog.errors import OffsetOutOfRange
from tidelog.pipeline.sources.logs import FAIL, SKIP, BlockFilter, ChannelEnds, Logs, Piece, trimmed
from tidelog.pipeline.sources.source_options import LATEST, StartPlace, micros

TASKS: Final = 32
"""The number of tasks of a read without a configured size: enough for some machines, and for a short last task."""
TASK_RECORDS_MIN: Final = 500_000
TASK_RECORDS_MAX: Final = 2_000_000

ABOUT: Final = ""
"""The entry of a stream's offset that is no channel: channel names are not empty."""

Pieces = tuple[Piece, ...]
Offset = dict[str, dict[str, Any]]
"""The offset of a stream, see `stream_source`."""


def offset_of(place: StartPlace, ends: ChannelEnds, logs: Logs, *, default: int, on_trimmed: str) -> int:
    """The offset of a place in this channel; `default` for a channel that it does not name."""
    match place.kind:
        case "earliest":
            return ends.log_start
        case "latest":
            return ends.committed_end
        case "time":
            assert place.time_us is not None
            return min(logs.offset_at(ends.channel, time_us=place.time_us), ends.committed_end)
    offset = place.offsets.get(ends.channel, default)
    if offset < ends.log_start:
        if on_trimmed == FAIL:
            raise trimmed(ends.channel, offset, ends.log_start)
        return ends.log_start
    if offset > ends.committed_end:
        error = OffsetOutOfRange(offset=offset, log_start=ends.log_start, log_end=ends.committed_end)
        error.add_note(f"of channel {ends.channel!r}")
        raise error
    return offset


def piece_between(ends: ChannelEnds, starting: StartPlace, ending: StartPlace, logs: Logs, *, on_trimmed: str) -> Piece:
    start = offset_of(starting, ends, logs, default=ends.log_start, on_trimmed=on_trimmed)
    if ending.kind == LATEST:
        end = ends.committed_end
    else:
        end = offset_of(ending, ends, logs, default=ends.committed_end, on_trimmed=SKIP)
    return Piece(
        channel=ends.channel,
        channel_id=ends.channel_id,
        leader_epoch=ends.leader_epoch,
        start=start,
        end=max(start, end),
    )


def pieces_of_batch(start: Offset, end: Offset) -> list[Piece]:
    """The range between two offsets of a stream, by channel."""
    pieces = []
    for name, entry in sorted(end.items()):
        if name == ABOUT:
            continue
        first = start[name]["next"] if name in start else entry.get("from", 0)
        if first < entry["next"]:
            pieces.append(
                Piece(
                    channel=name,
                    channel_id=entry["id"],
                    leader_epoch=entry["epoch"],
                    start=first,
                    end=entry["next"],
                )
            )
    return pieces


def split(pieces: Sequence[Piece], records_max: int | None) -> list[Pieces]:
    """The pieces of each task: large ones are cut, small ones grouped. None: the size is chosen here."""
    if records_max is None:
        # Every task costs some 50 ms of Java and Python before its first row; too few tasks leave processors idle.
        everything = sum(piece.end - piece.start for piece in pieces)
        records_max = min(TASK_RECORDS_MAX, max(TASK_RECORDS_MIN, everything // TASKS))
    tasks: list[Pieces] = []
    group: list[Piece] = []
    held = 0
    for piece in pieces:
        for start in range(piece.start, piece.end, records_max):
            part = replace(piece, start=start, end=min(start + records_max, piece.end))
            size = part.end - part.start
            if group and held + size > records_max:
                tasks.append(tuple(group))
                group, held = [], 0
            group.append(part)
            held += size
    if group:
        tasks.append(tuple(group))
    return tasks


def shares(available: Mapping[str, int], limit: int) -> dict[str, int]:
    """How much of each channel fits into the limit, as evenly as possible (SPL2)."""
    given: dict[str, int] = {}
    left = limit
    waiting = sorted(available.items(), key=lambda item: (item[1], item[0]))
    for place, (channel, amount) in enumerate(waiting):
        # Rounded up, so that a limit below the number of channels still moves some of them.
        share = min(amount, -(-left // (len(waiting) - place)))
        given[channel] = share
        left -= share
    return given


# --- filters -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bounds:
    """Values that a filter allows: at or after `low`, before `high`, and in `values` if there are."""

    low: int | None = None
    high: int | None = None
    values: frozenset[Any] | None = None

    def at_least(self, value: int) -> Bounds:
        return replace(self, low=value if self.low is None else max(self.low, value))

    def below(self, value: int) -> Bounds:
        return replace(self, high=value if self.high is None else min(self.high, value))

    def among(self, values: Iterable[Any]) -> Bounds:
        held = frozenset(values)
        return replace(self, values=held if self.values is None else self.values & held)

    @property
    def span(self) -> tuple[int | None, int | None]:
        """The smallest half-open range that holds every allowed value."""
        if self.values is None:
            return self.low, self.high
        numbers = [value for value in self.values if isinstance(value, int)]
        inside = self.at_least(min(numbers)).below(max(numbers) + 1) if numbers else self.at_least(0).below(0)
        return inside.low, inside.high


def tightened(bounds: dict[str, Bounds], name: str, column: str, value: Any) -> None:
    """Add one of Spark's filters, by its name; filters that are no ranges change nothing."""
    if column not in ("channel", "offset", "seq", "time", "pgn"):
        return
    known = bounds.get(column, Bounds())
    if isinstance(value, datetime):
        value = micros(value)
    if name == "In":
        plain = [micros(one) if isinstance(one, datetime) else one for one in value]
        bounds[column] = known.among(one for one in plain if one is not None)
    elif name == "EqualTo":
        bounds[column] = known.among([value])
    elif type(value) is int:
        match name:
            case "GreaterThan":
                bounds[column] = known.at_least(value + 1)
            case "GreaterThanOrEqual":
                bounds[column] = known.at_least(value)
            case "LessThan":
                bounds[column] = known.below(value)
            case "LessThanOrEqual":
                bounds[column] = known.below(value + 1)


def block_filter(bounds: Mapping[str, Bounds]) -> BlockFilter:
    seq_low, seq_high = bounds.get("seq", Bounds()).span
    time_low, time_high = bounds.get("time", Bounds()).span
    return BlockFilter(from_seq=seq_low, before_seq=seq_high, from_time_us=time_low, before_time_us=time_high)


def within(pieces: Sequence[Piece], bounds: Mapping[str, Bounds]) -> list[Piece]:
    """The pieces without channels and offsets that the filters rule out."""
    channels = bounds.get("channel", Bounds()).values
    low, high = bounds.get("offset", Bounds()).span
    kept = []
    for piece in pieces:
        if channels is not None and piece.channel not in channels:
            continue
        start = piece.start if low is None else max(piece.start, low)
        end = piece.end if high is None else min(piece.end, high)
        if start < end:
            kept.append(replace(piece, start=start, end=end))
    return kept
