"""The peak of a link is what transfers have shown, 1 Gbit/s until then (R10; LME1, LME2)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.liveness import PEAK_BYTES_PER_S_FIRST, LivenessConfig, PairHeartbeats
from tidelog.core.liveness.measures import Peak

MIB = 1024 * 1024
MINUTE_MS = 60_000


def transfer(peak: Peak, bytes_per_s: int, now_ms: int, *, limited: bool = False, size: int = 8 * MIB) -> None:
    peak.record(size, size * 1_000_000 // bytes_per_s, now_ms, limited=limited)


def near(value: int, wanted: int) -> bool:
    return abs(value - wanted) <= wanted // 1_000 + 1


def test_a_peak_is_one_gigabit_until_a_transfer_has_shown_another() -> None:
    peak = Peak(bytes_min=MIB)
    assert peak.bytes_per_s(0) == PEAK_BYTES_PER_S_FIRST == 125_000_000
    assert peak.shown_bytes_per_s(0) == 0
    transfer(peak, 10_000_000, 0)
    assert near(peak.bytes_per_s(0), 10_000_000)


def test_a_short_burst_never_counts() -> None:
    peak = Peak(bytes_min=MIB)
    peak.record(MIB - 1, 1, 0, limited=False)
    peak.record(100 * MIB, 0, 0, limited=False)
    assert peak.shown_bytes_per_s(0) == 0


def test_the_highest_of_ten_minutes_counts() -> None:
    peak = Peak(bytes_min=MIB)
    transfer(peak, 50_000_000, 0)
    transfer(peak, 20_000_000, MINUTE_MS)
    transfer(peak, 30_000_000, 5 * MINUTE_MS)
    assert near(peak.bytes_per_s(9 * MINUTE_MS), 50_000_000)
    assert near(peak.bytes_per_s(10 * MINUTE_MS), 30_000_000)


def test_an_idle_link_keeps_the_highest_it_has_shown() -> None:
    peak = Peak(bytes_min=MIB)
    transfer(peak, 50_000_000, 0)
    assert near(peak.bytes_per_s(1_000 * MINUTE_MS), 50_000_000)


def test_a_congested_time_does_not_stay_for_ever() -> None:
    peak = Peak(bytes_min=MIB)
    transfer(peak, 50_000_000, 0)
    transfer(peak, 3_000_000, 9 * MINUTE_MS)
    assert near(peak.bytes_per_s(12 * MINUTE_MS), 3_000_000)
    assert near(peak.bytes_per_s(20 * MINUTE_MS), 50_000_000)
    transfer(peak, 3_000_000, 21 * MINUTE_MS)
    assert near(peak.bytes_per_s(21 * MINUTE_MS), 3_000_000), "if the link is that slow, one transfer says so again"


@given(fraction=st.floats(0.05, 1.0), real=st.integers(1_000_000, 4_000_000_000))
def test_a_budget_never_ratchets_the_peak_down(fraction: float, real: int) -> None:
    """LME2: for an hour every transfer runs at the budget, which is a fraction of the peak."""
    peak = Peak(bytes_min=MIB)
    transfer(peak, real, 0, size=64 * MIB)
    for minute in range(60):
        budget = int(peak.bytes_per_s(minute * MINUTE_MS) * fraction)
        transfer(peak, budget, minute * MINUTE_MS, limited=True, size=64 * MIB)
    assert abs(peak.bytes_per_s(60 * MINUTE_MS) - real) <= real // 100


def test_without_the_word_that_it_was_limited_the_same_hour_would_ruin_the_peak() -> None:
    """The test above can fail: this is what it guards against."""
    peak = Peak(bytes_min=MIB)
    transfer(peak, 50_000_000, 0)
    for minute in range(60):
        transfer(peak, max(1, peak.bytes_per_s(minute * MINUTE_MS) // 2), minute * MINUTE_MS)
    assert peak.bytes_per_s(60 * MINUTE_MS) < 5_000_000


def test_a_limited_transfer_may_raise_the_peak() -> None:
    peak = Peak(bytes_min=MIB)
    transfer(peak, 100_000_000, 0, limited=True)
    assert peak.shown_bytes_per_s(0) == 0, "a budget below 1 Gbit/s says nothing"
    transfer(peak, 400_000_000, 0, limited=True)
    assert near(peak.bytes_per_s(0), 400_000_000)


def test_a_pair_tells_others_only_what_was_shown() -> None:
    heartbeats = PairHeartbeats(node="n1", incarnation=1, config=LivenessConfig(), now_ms=0)
    heartbeats.set_peers(["n2", "n3"], 0)
    heartbeats.record_transfer("n2", 10 * MIB, 1_000_000, 0)
    heartbeats.record_transfer("n9", 10 * MIB, 1_000_000, 0)
    assert (heartbeats.peak_bytes_per_s("n2"), heartbeats.peak_bytes_per_s("n3")) == (10 * MIB, 125_000_000)
    assert [hearing.peak_bytes_per_s for hearing in heartbeats.report(0).hearings] == [10 * MIB, 0]
