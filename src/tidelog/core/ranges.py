"""Sets of positions kept as ranges: what a receiver holds, what it lacks, what a log has lost.

Positions are offsets or seqs: integers in [0, 2^64). A `RangeSet` holds any number of them in the
memory of its ranges, so millions of records with three holes cost four ranges. Two parallel sorted
lists, starts and ends, are searched by bisection: every operation costs O(log n) plus the ranges it
touches. (A change in the middle also moves list tails, but that is one memmove; a tree would lose to
it at any number of holes a configuration allows.)

What a caller must keep: spans are `range`s of step 1 inside [0, 2^64). An empty or inverted span
(stop <= start) holds nothing and changes nothing. A set is not safe to share between threads.

RS1  Every range is non-empty and inside [0, POSITION_END).
RS2  Ranges ascend, and at least one missing position lies between two neighbours: overlapping and
     adjacent ranges are always merged. Two sets with the same members have the same ranges.
RS3  There are as many starts as ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

POSITION_END = 2**64
"""One past the largest position: offsets and seqs travel as unsigned 64-bit numbers."""


class RangeSet:
    """A mutable set of positions. `len` counts ranges, so an empty set is false; `count` counts positions."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, spans: Iterable[range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        # In ascending order every add lands at the tail, where a list is cheap to change.
        for span in sorted(spans, key=lambda span: span.start):
            self.add(span)

    @classmethod
    def from_pairs(cls, pairs: Iterable[Sequence[int]]) -> RangeSet:
        """The inverse of `pairs`, from data that came over the wire or from a file.

        Accepts any order and overlap. Raises ValueError for what is no pair of positions; the caller
        knows where the data came from and translates it into its own typed error.
        """
        spans = []
        for pair in pairs:
            # A bool is an int to Python, and a float can equal one; neither is a position in JSON.
            if not isinstance(pair, list | tuple) or len(pair) != 2 or any(type(bound) is not int for bound in pair):
                raise ValueError(f"{pair!r} is not a [start, end) pair of integers")
            if min(pair) < 0 or max(pair) > POSITION_END:
                raise ValueError(f"{pair!r} reaches outside [0, 2^64)")
            spans.append(range(pair[0], pair[1]))
        return cls(spans)

    # --- changes ---------------------------------------------------------------------------------

    def add(self, span: range) -> None:
        """Hold every position of `span`, merging with what overlaps or touches it."""
        if _is_empty(span):
            return
        start, end = span.start, span.stop
        # The neighbours that merely touch are taken in too: bisect on the far side of equality.
        low = bisect_left(self._ends, start)
        high = bisect_right(self._starts, end, low)
        if low < high:
            start = min(start, self._starts[low])
            end = max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]
        assert low == 0 or self._ends[low - 1] < start, "RS2"
        assert low + 1 == len(self._starts) or end < self._starts[low + 1], "RS2"

    def remove(self, span: range) -> bool:
        """Hold no position of `span`. True when any was held: for a set of holes, when it filled something."""
        if _is_empty(span):
            return False
        low, high = self._touched(span)
        if low == high:
            return False
        kept = [(self._starts[low], span.start), (span.stop, self._ends[high - 1])]
        kept = [(start, end) for start, end in kept if start < end]
        self._starts[low:high] = [start for start, _ in kept]
        self._ends[low:high] = [end for _, end in kept]
        assert len(self._starts) == len(self._ends), "RS3"
        return True

    # --- questions about a place -----------------------------------------------------------------

    def __contains__(self, position: int) -> bool:
        return self.end_of_run(position) > position

    def covers(self, span: range) -> bool:
        """Whether every position of `span` is held; true of an empty span."""
        return _is_empty(span) or self.end_of_run(span.start) >= span.stop

    def overlap(self, span: range) -> list[range]:
        """The parts of `span` that are held, ascending."""
        if _is_empty(span):
            return []
        low, high = self._touched(span)
        bounds = zip(self._starts[low:high], self._ends[low:high], strict=True)
        return [range(max(start, span.start), min(end, span.stop)) for start, end in bounds]

    def gaps(self, span: range) -> list[range]:
        """The parts of `span` that are not held, ascending. Every position is in `overlap` or in `gaps`."""
        if _is_empty(span):
            return []
        low, high = self._touched(span)
        gap_starts = [span.start, *self._ends[low:high]]
        gap_ends = [*self._starts[low:high], span.stop]
        # A held range that reaches over an edge of the span leaves an inverted gap there.
        return [range(start, end) for start, end in zip(gap_starts, gap_ends, strict=True) if start < end]

    def end_of_run(self, start: int) -> int:
        """The first position from `start` on that is not held: `start` itself if that is missing."""
        index = bisect_right(self._ends, start)
        if index < len(self._starts) and self._starts[index] <= start:
            return self._ends[index]
        return start

    def next_held(self, start: int) -> int | None:
        """The first position from `start` on that is held, if there is one: the mirror of `end_of_run`.

        Over a set of holes this is the end of the gap-free run from `start`. lplex's
        contiguous-through(cursor) is the same number, inclusive: one less, or 2^64 - 1 for None.
        """
        index = bisect_right(self._ends, start)
        if index == len(self._starts):
            return None
        return max(start, self._starts[index])

    def start_of_run(self, end: int) -> int:
        """Where the run that reaches up to `end` begins: `end` itself if the position before it is missing."""
        index = bisect_left(self._starts, end) - 1
        return self._starts[index] if index >= 0 and self._ends[index] >= end else end

    def end_before(self, position: int) -> int:
        """The end of the last range that begins below `position`; 0 if there is none."""
        index = bisect_left(self._starts, position) - 1
        return self._ends[index] if index >= 0 else 0

    # --- questions about the whole ---------------------------------------------------------------

    @property
    def start(self) -> int:
        """The lowest position held. The empty set spans [0, 0)."""
        return self._starts[0] if self._starts else 0

    @property
    def end(self) -> int:
        """One past the highest position held. The empty set spans [0, 0)."""
        return self._ends[-1] if self._ends else 0

    @property
    def last(self) -> range | None:
        """The highest range: of a set of holes, the newest."""
        return range(self._starts[-1], self._ends[-1]) if self._starts else None

    def count(self) -> int:
        """How many positions are held. Not `len`, which cannot exceed 2^63 - 1 in Python."""
        return sum(self._ends) - sum(self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[range]:
        """Ascending, over a snapshot: the loop body may change the set."""
        return iter(self.freeze())

    def freeze(self) -> tuple[range, ...]:
        """The ranges as they are now, ascending; immutable and hashable, unlike the set."""
        return tuple(map(range, self._starts, self._ends))

    def pairs(self) -> list[list[int]]:
        """The ranges as [start, end) pairs, ascending: the form in JSON and on the wire."""
        return [[start, end] for start, end in zip(self._starts, self._ends, strict=True)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._starts == other._starts and self._ends == other._ends

    def __repr__(self) -> str:
        ranges = ", ".join(f"[{start}, {end})" for start, end in self.pairs())
        return f"RangeSet({ranges})"

    # --- new sets --------------------------------------------------------------------------------

    def copy(self) -> RangeSet:
        twin = RangeSet()
        twin._starts = self._starts.copy()
        twin._ends = self._ends.copy()
        return twin

    def intersection(self, other: RangeSet) -> RangeSet:
        return RangeSet(part for held in self for part in other.overlap(held))

    # --- invariants ------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert every invariant. Linear, so for tests and simulators, not for hot paths."""
        assert len(self._starts) == len(self._ends), "RS3"
        previous_end = -1
        for start, end in zip(self._starts, self._ends, strict=True):
            assert 0 <= start < end <= POSITION_END, "RS1"
            assert previous_end < start, "RS2"
            previous_end = end

    def _touched(self, span: range) -> tuple[int, int]:
        """The indexes [low, high) of the ranges that share a position with a non-empty `span`."""
        low = bisect_right(self._ends, span.start)
        return low, bisect_left(self._starts, span.stop, low)


def _is_empty(span: range) -> bool:
    """Whether `span` holds nothing; the one place where spans are checked."""
    assert span.step == 1, f"{span} has a step"
    if span.stop <= span.start:
        return True
    assert span.start >= 0, f"RS1: {span} starts below 0"
    assert span.stop <= POSITION_END, f"RS1: {span} ends above 2^64"
    return False
