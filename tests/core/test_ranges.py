"""RangeSet against a plain set of integers, and lplex's hole tracker cases in our terms.

lplex keeps a set of holes: its Add is `add`, its Fill is `remove`, and its contiguous-through(cursor)
is the position before `next_held(cursor)`.
"""

from __future__ import annotations

import json
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tidelog.core.ranges import POSITION_END, RangeSet

UNIVERSE = 48
"""Small, so that random spans meet, touch and swallow each other all the time."""

POSITIONS = st.integers(0, UNIVERSE)
SPANS = st.builds(range, POSITIONS, POSITIONS)
"""Half of these are empty or inverted."""


def ranges_of(members: set[int]) -> list[range]:
    """The dumb way to write a set of integers as ranges."""
    ranges = []
    for member in sorted(members):
        if member - 1 not in members:
            start = member
        if member + 1 not in members:
            ranges.append(range(start, member + 1))
    return ranges


class RangeSetAgainstSet(RuleBasedStateMachine):
    """Whatever happens to it, a RangeSet answers every question as a plain set of integers would."""

    @initialize(base=st.sampled_from([0, 2**32 - 7, 2**63 - UNIVERSE // 2, POSITION_END - UNIVERSE]))
    def start(self, base: int) -> None:
        self.base = base
        self.universe = range(base, base + UNIVERSE)
        self.members: set[int] = set()
        self.ranges = RangeSet()

    def shifted(self, span: range) -> range:
        return range(self.base + span.start, self.base + span.stop)

    @rule(span=SPANS)
    def add(self, span: range) -> None:
        self.ranges.add(self.shifted(span))
        self.members.update(self.shifted(span))

    @rule(span=SPANS)
    def remove(self, span: range) -> None:
        span = self.shifted(span)
        held = not self.members.isdisjoint(span)
        assert self.ranges.remove(span) == held
        self.members.difference_update(span)

    @rule(span=SPANS)
    def ask_about_a_span(self, span: range) -> None:
        span = self.shifted(span)
        assert self.ranges.covers(span) == self.members.issuperset(span)
        assert self.ranges.overlap(span) == ranges_of(self.members.intersection(span))
        assert self.ranges.gaps(span) == ranges_of(set(span) - self.members)

    @rule(position=st.integers(0, UNIVERSE - 1))
    def ask_about_a_position(self, position: int) -> None:
        position += self.base
        assert (position in self.ranges) == (position in self.members)
        rest = range(position, self.universe.stop)
        missing = [number for number in rest if number not in self.members]
        held = [number for number in rest if number in self.members]
        assert self.ranges.end_of_run(position) == (missing[0] if missing else self.universe.stop)
        assert self.ranges.next_held(position) == (held[0] if held else None)

    @rule(spans=st.lists(SPANS, max_size=6))
    def combine(self, spans: list[range]) -> None:
        other = RangeSet(map(self.shifted, spans))
        others = {member for span in spans for member in self.shifted(span)}
        before = self.ranges.freeze(), other.freeze()
        combined = self.ranges.intersection(other)
        combined.check()
        assert list(combined) == ranges_of(self.members & others)
        assert (self.ranges == other) == (self.members == others)
        assert before == (self.ranges.freeze(), other.freeze()), "combining changed an operand"

    @rule(span=SPANS)
    def copies_are_independent(self, span: range) -> None:
        before = self.ranges.freeze()
        twin = self.ranges.copy()
        assert twin == self.ranges
        twin.add(self.shifted(span))
        twin.remove(self.universe)
        assert not twin
        assert self.ranges.freeze() == before

    @rule()
    def travel(self) -> None:
        assert RangeSet.from_pairs(json.loads(json.dumps(self.ranges.pairs()))) == self.ranges
        assert pickle.loads(pickle.dumps(self.ranges)) == self.ranges
        assert RangeSet(reversed(self.ranges.freeze())) == self.ranges

    @invariant()
    def agrees_with_the_set(self) -> None:
        self.ranges.check()
        expected = ranges_of(self.members)
        assert list(self.ranges) == list(self.ranges.freeze()) == expected
        assert self.ranges.pairs() == [[span.start, span.stop] for span in expected]
        assert len(self.ranges) == len(expected)
        assert bool(self.ranges) == bool(self.members)
        assert self.ranges.count() == len(self.members)
        assert self.ranges.last == (expected[-1] if expected else None)
        assert self.ranges.start == min(self.members, default=0)
        assert self.ranges.end == max(self.members, default=-1) + 1


TestRangeSetAgainstSet = RangeSetAgainstSet.TestCase


# --- lplex's hole tracker, case by case -----------------------------------------------------------

LPLEX_MAX = 2**64 - 1


def holes(*pairs: tuple[int, int]) -> RangeSet:
    tracker = RangeSet()
    for start, end in pairs:
        tracker.add(range(start, end))
        tracker.check()
    return tracker


def contiguous_through(tracker: RangeSet, cursor: int) -> int:
    """lplex's question, asked through our API: the last seq of the gap-free run at the cursor."""
    hole_start = tracker.next_held(cursor)
    return LPLEX_MAX if hole_start is None else hole_start - 1


def test_lplex_empty_tracker_has_no_holes() -> None:
    tracker = holes()
    assert not tracker
    assert len(tracker) == 0
    assert tracker.pairs() == []
    assert tracker.count() == 0


def test_lplex_add_before_and_after_without_overlap_keeps_order() -> None:
    assert holes((30, 40), (10, 20), (50, 60)).pairs() == [[10, 20], [30, 40], [50, 60]]


def test_lplex_bridging_add_joins_two_holes() -> None:
    assert holes((10, 20), (30, 40), (15, 35)).pairs() == [[10, 40]]


@pytest.mark.parametrize("added", [[(10, 20), (20, 30)], [(20, 30), (10, 20)]], ids=["after", "before"])
def test_lplex_adjacent_holes_merge(added: list[tuple[int, int]]) -> None:
    assert holes(*added).pairs() == [[10, 30]]


@pytest.mark.parametrize("empty", [(10, 10), (20, 10), (0, 0), (35, 32)])
def test_lplex_empty_or_inverted_add_changes_nothing(empty: tuple[int, int]) -> None:
    assert holes(empty).pairs() == []
    assert holes((5, 40), empty).pairs() == [[5, 40]]


@pytest.mark.parametrize("subsumed", [(20, 30), (10, 40), (10, 11), (39, 40)])
def test_lplex_subsumed_add_changes_nothing(subsumed: tuple[int, int]) -> None:
    assert holes((10, 40), subsumed).pairs() == [[10, 40]]


def test_lplex_fill_on_an_empty_tracker_is_false() -> None:
    assert holes().remove(range(10, 20)) is False


@pytest.mark.parametrize("miss", [(1, 5), (1, 10), (20, 25), (30, 40), (21, 29)])
def test_lplex_fill_that_misses_is_false(miss: tuple[int, int]) -> None:
    tracker = holes((10, 20), (40, 50))
    assert tracker.remove(range(*miss)) is False
    assert tracker.pairs() == [[10, 20], [40, 50]]


@pytest.mark.parametrize(
    ("filled", "left"),
    [
        pytest.param((10, 40), [], id="whole"),
        pytest.param((5, 45), [], id="whole, with room to spare"),
        pytest.param((20, 25), [[10, 20], [25, 40]], id="split"),
        pytest.param((10, 20), [[20, 40]], id="left trim"),
        pytest.param((5, 20), [[20, 40]], id="left trim from before"),
        pytest.param((30, 40), [[10, 30]], id="right trim"),
        pytest.param((30, 45), [[10, 30]], id="right trim to beyond"),
    ],
)
def test_lplex_fill_of_one_hole(filled: tuple[int, int], left: list[list[int]]) -> None:
    tracker = holes((10, 40))
    assert tracker.remove(range(*filled)) is True
    tracker.check()
    assert tracker.pairs() == left


def test_lplex_fill_spans_three_holes() -> None:
    tracker = holes((10, 20), (30, 40), (50, 60))
    assert tracker.remove(range(15, 55)) is True
    assert tracker.pairs() == [[10, 15], [55, 60]]


@pytest.mark.parametrize("empty", [(15, 15), (18, 12), (10, 10), (20, 20)])
def test_lplex_empty_or_inverted_fill_is_false(empty: tuple[int, int]) -> None:
    tracker = holes((10, 20))
    assert tracker.remove(range(*empty)) is False
    assert tracker.pairs() == [[10, 20]]


@pytest.mark.parametrize(
    ("tracker", "cursor", "through"),
    [
        pytest.param(holes(), 100, LPLEX_MAX, id="no holes: everything"),
        pytest.param(holes((150, 200)), 100, 149, id="hole after the cursor: up to it"),
        pytest.param(holes((150, 200), (300, 400)), 100, 149, id="several holes after: up to the first"),
        pytest.param(holes((100, 200)), 100, 99, id="hole at the cursor: nothing more"),
        pytest.param(holes((50, 200)), 100, 99, id="hole around the cursor: nothing more"),
        pytest.param(holes((10, 20), (30, 50)), 100, LPLEX_MAX, id="all holes before: everything"),
        pytest.param(holes((10, 100)), 100, LPLEX_MAX, id="hole that ends at the cursor is before it"),
        pytest.param(holes((10, 20), (150, 200)), 100, 149, id="holes on both sides: up to the next"),
    ],
)
def test_lplex_contiguous_through(tracker: RangeSet, cursor: int, through: int) -> None:
    assert contiguous_through(tracker, cursor) == through


@given(spans=st.lists(SPANS), cursor=POSITIONS)
def test_lplex_contiguous_through_follows_its_three_rules(spans: list[range], cursor: int) -> None:
    tracker = RangeSet(spans)
    after = [hole for hole in tracker if hole.stop > cursor]
    if not after:
        expected = LPLEX_MAX
    elif cursor in after[0]:
        expected = cursor - 1
    else:
        expected = after[0].start - 1
    assert contiguous_through(tracker, cursor) == expected


def test_lplex_total_missing() -> None:
    assert holes((10, 20), (30, 35), (100, 200)).count() == 115


def test_lplex_reconnect_hole_filled_newest_half_first() -> None:
    tracker = holes((5001, 7001))
    assert contiguous_through(tracker, 5000) == 5000
    assert tracker.count() == 2000

    assert tracker.remove(range(6001, 7001)) is True
    assert tracker.pairs() == [[5001, 6001]]
    assert contiguous_through(tracker, 5000) == 5000

    assert tracker.remove(range(5001, 6001)) is True
    assert not tracker
    assert contiguous_through(tracker, 5000) == LPLEX_MAX


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lplex_five_thousand_random_fills_stay_ordered_and_disjoint(seed: int) -> None:
    print(f"seed {seed}")  # pytest shows it when the test fails
    rng = random.Random(seed)
    head = 100_001
    tracker = holes((1, head))
    missing = head - 1
    for _ in range(5_000):
        start = rng.randrange(1, head)
        filled = range(start, min(head, start + rng.randrange(1, 100)))
        newly = sum(map(len, tracker.overlap(filled)))
        assert tracker.remove(filled) == (newly > 0)
        missing -= newly
        tracker.check()
        assert tracker.count() == missing
        assert tracker.remove(filled) is False, "a duplicate fill fills nothing"
        assert tracker.count() == missing


# --- large numbers, many ranges, wrong use -------------------------------------------------------


def test_the_whole_universe_fits_and_can_be_split() -> None:
    everything = RangeSet([range(POSITION_END)])
    assert everything.count() == 2**64
    assert len(everything) == 1
    assert everything.covers(range(POSITION_END))
    assert everything.end_of_run(2**63) == POSITION_END
    assert LPLEX_MAX in everything
    assert POSITION_END not in everything
    assert everything.remove(range(2**63, 2**63 + 1))
    assert everything.pairs() == [[0, 2**63], [2**63 + 1, 2**64]]
    assert everything.count() == 2**64 - 1
    assert everything.gaps(range(POSITION_END)) == [range(2**63, 2**63 + 1)]
    assert RangeSet.from_pairs(json.loads(json.dumps(everything.pairs()))) == everything
    everything.check()


def test_the_last_position_is_one_like_any_other() -> None:
    last = RangeSet([range(LPLEX_MAX, POSITION_END)])
    assert last.pairs() == [[2**64 - 1, 2**64]]
    assert last.next_held(0) == LPLEX_MAX
    assert last.next_held(POSITION_END) is None
    assert contiguous_through(last, 7) == LPLEX_MAX - 1


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled", "odd then even"])
def test_a_hundred_thousand_adjacent_adds_collapse_to_one_range(order: str) -> None:
    count = 100_000
    positions = list(range(count))
    if order == "descending":
        positions.reverse()
    elif order == "shuffled":
        random.Random(20_260_306).shuffle(positions)
    elif order == "odd then even":
        positions = positions[1::2] + positions[0::2]
    held = RangeSet()
    for position in positions:
        held.add(range(position, position + 1))
    held.check()
    assert held.freeze() == (range(count),)


def test_a_loop_over_the_set_may_change_it() -> None:
    tracker = holes((10, 20), (30, 40), (50, 60))
    seen = []
    for hole in tracker:
        seen.append(hole)
        tracker.remove(hole)
    assert seen == [range(10, 20), range(30, 40), range(50, 60)]
    assert not tracker


def test_a_snapshot_stays_as_it_was() -> None:
    tracker = holes((10, 20))
    snapshot = tracker.freeze()
    tracker.add(range(20, 30))
    assert snapshot == (range(10, 20),)
    assert hash(snapshot) == hash((range(10, 20),))


def test_repr_shows_half_open_ranges() -> None:
    assert repr(holes((10, 20), (30, 40))) == "RangeSet([10, 20), [30, 40))"
    assert repr(RangeSet()) == "RangeSet()"


def test_a_set_equals_only_its_like_and_has_no_hash() -> None:
    assert holes((10, 20)) != (range(10, 20),)
    with pytest.raises(TypeError):
        hash(holes())


def test_pairs_from_outside_may_be_unordered_and_overlap() -> None:
    assert RangeSet.from_pairs([(30, 40), [10, 20], [15, 30], [7, 7], [9, 3]]).pairs() == [[10, 40]]


@pytest.mark.parametrize(
    "pair", [[1], [1, 2, 3], [-1, 5], [0, 2**64 + 1], [1.0, 2], [True, 2], ["1", "2"], "12", 7, None, {1: 2, 3: 4}]
)
def test_pairs_from_outside_are_checked_not_asserted(pair: object) -> None:
    with pytest.raises(ValueError, match=r"pair of integers|reaches outside"):
        RangeSet.from_pairs([[1, 2], pair])  # type: ignore[list-item]


@pytest.mark.parametrize("span", [range(0, 10, 2), range(-1, 5), range(POSITION_END + 1)], ids=str)
def test_a_span_that_is_no_span_is_a_bug_of_the_caller(span: range) -> None:
    tracker = holes((10, 20))
    for method in (tracker.add, tracker.remove, tracker.covers, tracker.overlap, tracker.gaps):
        with pytest.raises(AssertionError):
            method(span)
    assert tracker.pairs() == [[10, 20]]


@pytest.mark.parametrize(
    ("starts", "ends", "broken"),
    [
        ([10], [], "RS3"),
        ([10], [10], "RS1"),
        ([10], [2**64 + 1], "RS1"),
        ([10, 20], [20, 30], "RS2"),
        ([30, 10], [40, 20], "RS2"),
    ],
)
def test_check_names_the_broken_invariant(starts: list[int], ends: list[int], broken: str) -> None:
    tracker = RangeSet()
    tracker._starts, tracker._ends = starts, ends
    with pytest.raises(AssertionError, match=broken):
        tracker.check()
