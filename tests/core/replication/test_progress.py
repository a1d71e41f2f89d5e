"""How far replicas are, and what is committed because of that (PG1 to PG3)."""

from __future__ import annotations

import random

import pytest

from tidelog.core.replication.progress import Lags, ReplicaProgress, Uncommitted, committed_end


def at(held_end: int, *, known: bool = True) -> ReplicaProgress:
    progress = ReplicaProgress(0)
    progress.held_end, progress.is_known = held_end, known
    return progress


def end(*held: ReplicaProgress, current: int = 0, own_end: int = 10, isr_count: int = 3, min_isr: int = 2) -> int:
    return committed_end(current=current, own_end=own_end, counted=held, isr_count=isr_count, min_isr=min_isr)


def test_pg1_it_is_the_smallest_end_of_all_that_count() -> None:
    assert end(at(7), at(9)) == 7
    assert end(at(17), at(19)) == 10, "the leader's own disk counts too"
    assert end(at(10), at(0)) == 0


def test_pg1_it_never_falls() -> None:
    assert end(at(3), at(9), current=5) == 5


def test_pg2_below_the_minimum_it_stands_still() -> None:
    assert end(at(9), current=4, isr_count=1, min_isr=2) == 4
    assert end(at(9), current=4, isr_count=2, min_isr=2) == 9
    assert end(current=4, isr_count=1, min_isr=1) == 10


def test_pg3_who_has_not_spoken_holds_nothing_that_counts() -> None:
    assert end(at(9), at(99, known=False), current=4) == 4


@pytest.mark.parametrize("seed", range(5))
def test_pg1_whatever_comes_it_is_held_by_everybody_that_counts(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(2_000):
        held = [at(rng.randrange(20), known=rng.random() < 0.9) for _ in range(rng.randrange(4))]
        current, own_end = rng.randrange(10), rng.randrange(20)
        isr_count, min_isr = rng.randrange(1, 4), rng.randrange(1, 4)
        found = end(*held, current=current, own_end=own_end, isr_count=isr_count, min_isr=min_isr)
        assert found >= current, f"seed {seed}"
        if found > current:
            assert isr_count >= min_isr, f"seed {seed}"
            assert found <= own_end, f"seed {seed}"
            assert all(one.is_known and one.held_end >= found for one in held), f"seed {seed}"


# --- lags --------------------------------------------------------------------------------------------


def test_a_replica_is_behind_since_the_first_record_that_it_lacks() -> None:
    lags = Lags(10, 0)
    lags.grew(10, 11, 1_000)
    lags.grew(11, 12, 2_000)
    lags.grew(12, 13, 3_000)
    assert lags.behind_since_ms(13) is None
    assert lags.behind_since_ms(12) == 3_000
    assert lags.behind_since_ms(11) == 2_000
    assert lags.behind_since_ms(10) == 1_000
    assert lags.behind_since_ms(4) == 0, "it was behind when this began"


def test_after_a_pause_it_is_behind_since_the_new_record_and_not_since_the_old_one() -> None:
    lags = Lags(0, 0)
    lags.grew(0, 1, 100)
    lags.forget_before(1)
    assert lags.behind_since_ms(1) is None
    lags.grew(1, 2, 3_600_000)
    assert lags.behind_since_ms(1) == 3_600_000


def test_records_in_quick_succession_share_a_mark_and_nobody_looks_more_in_time_than_it_is() -> None:
    lags = Lags(0, 0)
    for step in range(100):
        lags.grew(step, step + 1, 1_000 + step)
    for held in range(100):
        since_ms = lags.behind_since_ms(held)
        assert since_ms is not None
        assert 1_000 + held - 50 <= since_ms <= 1_000 + held
    assert len(lags._marks) <= 3


def test_marks_that_everybody_has_passed_are_forgotten() -> None:
    lags = Lags(0, 0)
    for step in range(1_000):
        lags.grew(step, step + 1, step * 100)
        lags.forget_before(step)
    assert len(lags._marks) <= 3
    assert lags.behind_since_ms(999) == 99_900


# --- what is not committed yet -----------------------------------------------------------------------


def test_bytes_are_counted_until_they_are_committed() -> None:
    waiting = Uncommitted()
    for number in range(5):
        waiting.grew(2 * (number + 1), 100 + number)
    assert waiting.bytes == 510
    waiting.settled(5)
    assert waiting.bytes == 510 - 100 - 101, "a block counts until all of it is committed"
    waiting.cut(8)
    assert waiting.bytes == 102 + 103
    waiting.settled(99)
    assert waiting.bytes == 0
    waiting.settled(99)
    waiting.cut(0)
    assert waiting.bytes == 0
