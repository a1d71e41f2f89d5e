"""Token buckets: the cloud's hard limit, and the boat's pace under it (U4)."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.uplink.budget import TokenBucket


def test_a_bucket_starts_full_and_refuses_what_is_beyond_it() -> None:
    bucket = TokenBucket(per_s=2_000, burst=500, now_ms=0)
    assert bucket.take(500, 0)
    assert not bucket.take(1, 0)


def test_a_refused_request_takes_nothing() -> None:
    bucket = TokenBucket(per_s=2_000, burst=500, now_ms=0)
    assert not bucket.take(501, 0)
    assert bucket.available(0) == 500


def test_a_bucket_refills_at_its_rate_and_not_beyond_its_burst() -> None:
    bucket = TokenBucket(per_s=2_000, burst=500, now_ms=0)
    assert bucket.take(500, 0)
    assert bucket.available(100) == 200
    assert bucket.available(10_000) == 500


def test_2501_frames_at_once_are_refused_however_they_are_cut() -> None:
    bucket = TokenBucket(per_s=2_000, burst=500, now_ms=0)
    assert sum(bucket.take(1, 0) for _ in range(2_501)) == 500


def test_time_that_goes_back_refills_nothing() -> None:
    bucket = TokenBucket(per_s=1_000, burst=100, now_ms=1_000)
    assert bucket.take(100, 1_000)
    assert bucket.available(500) == 0
    assert bucket.available(1_010) == 10


def test_ready_at_names_the_moment_when_the_tokens_are_there() -> None:
    bucket = TokenBucket(per_s=100, burst=10, now_ms=0)
    assert bucket.ready_at_ms(10, 0) == 0
    assert bucket.take(10, 0)
    ready_ms = bucket.ready_at_ms(3, 0)
    assert bucket.available(ready_ms) >= 3
    assert bucket.available(ready_ms) < 4


def test_spending_may_go_below_zero_and_is_paid_back() -> None:
    bucket = TokenBucket(per_s=1_000, burst=10, now_ms=0)
    bucket.spend(110, 0)
    assert bucket.available(0) == -100
    assert bucket.available(101) == 1


def test_held_tokens_do_not_come_back_before_they_are_released() -> None:
    bucket = TokenBucket(per_s=1_000, burst=100, now_ms=0)
    assert bucket.take_and_hold(60, 0)
    assert bucket.available(10_000) == 40
    bucket.release(60, 10_000)
    assert bucket.available(10_000) == 40
    assert bucket.available(10_010) == 50


@given(seed=st.integers(0, 2**32), burst=st.integers(2, 60), rate=st.sampled_from((50, 300, 2_000)))
def test_what_a_holding_sender_lets_go_is_never_refused_however_the_link_bunches_it(
    seed: int, burst: int, rate: int
) -> None:
    """US3: the sender's level is never above the receiver's less what is on its way."""
    rng = random.Random(seed)
    receiver = TokenBucket(per_s=rate, burst=burst, now_ms=0)
    sender = TokenBucket(per_s=rate * 0.95, burst=max(1.0, burst * 0.95), now_ms=0)
    flight: list[tuple[int, int]] = []
    answers: list[tuple[int, int]] = []
    for now_ms in range(0, 4_000, 7):
        while flight and flight[0][0] <= now_ms:
            _, count = flight.pop(0)
            assert receiver.take(count, now_ms), "an honest boat met the rate limit"
            answers.append((now_ms + rng.randrange(400), count))
        for answer in [answer for answer in answers if answer[0] <= now_ms]:
            answers.remove(answer)
            sender.release(answer[1], now_ms)
        count = min(int(sender.available(now_ms)), rng.randrange(1, 80))
        if count > 0 and sender.take_and_hold(count, now_ms):
            arrives_ms = now_ms + rng.choice((1, 20, rng.randrange(900)))
            flight.append((max(arrives_ms, flight[-1][0] if flight else 0), count))
