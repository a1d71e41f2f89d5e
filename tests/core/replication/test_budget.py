"""Catch-up stays within its fraction of a link, for each channel and for all together (seed 001, R10)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.core.catalog.channel_config import BandwidthClass
from tidelog.core.replication.budget import RETRY_MS_MAX, Granted, LinkBudget, LinkBudgets, Verdict, WaitForBudget

FOREGROUND = BandwidthClass.FOREGROUND
BACKGROUND = BandwidthClass.BACKGROUND
REALTIME = BandwidthClass.REALTIME
HALF = 500_000
SECOND_US = 1_000_000


@dataclass
class Link:
    """A link of 1,000 bytes a second, of which channel 1 may use one half: a bucket of 500 bytes."""

    budget: LinkBudget
    now_us: int = 0

    def spend(
        self,
        byte_count: int,
        *,
        channel_id: int = 1,
        fraction_ppm: int = HALF,
        bandwidth_class: BandwidthClass = FOREGROUND,
        live: bool = False,
    ) -> Verdict:
        return self.budget.spend(
            channel_id,
            byte_count,
            fraction_ppm=fraction_ppm,
            bandwidth_class=bandwidth_class,
            now_us=self.now_us,
            live=live,
        )

    @property
    def available(self) -> int:
        return self.budget.statistics(now_us=self.now_us).available_bytes


@pytest.fixture
def link() -> Link:
    return Link(LinkBudget(now_us=0, peak_bytes_per_s=1_000))


# --- the bucket ----------------------------------------------------------------------------------------


def test_a_bucket_holds_one_second_and_starts_full(link: Link) -> None:
    assert link.spend(500) == Granted(500)
    assert isinstance(link.spend(1), WaitForBudget)


def test_a_refusal_takes_nothing_and_says_when_to_come_back(link: Link) -> None:
    assert link.spend(400) == Granted(400)
    assert link.spend(200) == WaitForBudget(200), "100 bytes lack, at 500 a second"
    assert link.available == 100
    link.now_us += 199_999
    assert isinstance(link.spend(200), WaitForBudget)
    link.now_us += 1
    assert link.spend(200) == Granted(200)


def test_a_bucket_never_holds_more_than_its_second(link: Link) -> None:
    assert link.spend(500) == Granted(500)
    link.now_us += 3_600 * SECOND_US
    assert isinstance(link.spend(501), Granted), "as one request larger than a full bucket"
    assert isinstance(link.spend(1), WaitForBudget)


def test_time_that_goes_back_fills_nothing(link: Link) -> None:
    link.now_us = 5 * SECOND_US
    assert link.spend(500) == Granted(500)
    link.now_us = 0
    assert isinstance(link.spend(1), WaitForBudget)
    link.now_us = 5 * SECOND_US + 2_000
    assert link.spend(1) == Granted(1)


def test_nothing_costs_nothing(link: Link) -> None:
    assert link.spend(500) == Granted(500)
    assert link.spend(0) == Granted(0)


def test_a_request_larger_than_a_bucket_waits_for_a_full_one_and_is_paid_back(link: Link) -> None:
    assert link.spend(1) == Granted(1)
    assert link.spend(2_000) == WaitForBudget(2)
    link.now_us += 2_000
    assert link.spend(2_000) == Granted(2_000)
    assert link.available == -1_500
    assert link.spend(1) == WaitForBudget(RETRY_MS_MAX)
    link.now_us += 3 * SECOND_US
    assert isinstance(link.spend(1), WaitForBudget)
    link.now_us += 2_000
    assert link.spend(1) == Granted(1)


def test_live_traffic_is_never_held_back_nor_charged(link: Link) -> None:
    assert link.spend(500) == Granted(500)
    assert link.spend(10**9, live=True) == Granted(0)
    assert link.available == 0


# --- the peak --------------------------------------------------------------------------------------------


def test_a_link_starts_at_one_gigabit() -> None:
    link = Link(LinkBudget(now_us=0))
    assert link.spend(62_500_000) == Granted(62_500_000)
    assert isinstance(link.spend(1), WaitForBudget)


@pytest.mark.parametrize(("peak", "available"), [(2_000, 400), (100, 20), (1_000, 200)])
def test_a_new_peak_keeps_the_proportion(link: Link, peak: int, available: int) -> None:
    assert link.spend(300) == Granted(300)
    link.budget.set_peak(peak, now_us=link.now_us)
    assert link.available == available
    link.now_us += 10 * SECOND_US
    assert link.available == peak // 2


def test_a_peak_that_changes_back_and_forth_makes_no_tokens(link: Link) -> None:
    assert link.spend(400) == Granted(400)
    for peak in (7, 123_457, 1, 1_000):
        link.budget.set_peak(peak, now_us=link.now_us)
    assert link.available <= 100


def test_a_tiny_peak_still_lets_something_through() -> None:
    link = Link(LinkBudget(now_us=0, peak_bytes_per_s=1))
    assert link.spend(1_000, fraction_ppm=1) == Granted(1_000), "larger than the bucket, which is full"


# --- sharing ---------------------------------------------------------------------------------------------


def test_channels_of_equal_fractions_share_one_budget(link: Link) -> None:
    assert link.spend(300, channel_id=1) == Granted(300)
    assert link.spend(200, channel_id=2) == Granted(200)
    assert isinstance(link.spend(1, channel_id=3), WaitForBudget)


def test_a_channel_stays_at_its_own_fraction_beside_a_larger_one(link: Link) -> None:
    assert link.spend(100, channel_id=1, fraction_ppm=900_000) == Granted(100)
    assert link.spend(100, channel_id=2, fraction_ppm=100_000) == Granted(100)
    assert isinstance(link.spend(1, channel_id=2, fraction_ppm=100_000), WaitForBudget)
    assert link.spend(700, channel_id=1, fraction_ppm=900_000) == Granted(700)
    assert isinstance(link.spend(1, channel_id=1, fraction_ppm=900_000), WaitForBudget)


def test_the_link_follows_the_largest_fraction_that_uses_it_now(link: Link) -> None:
    assert link.spend(50, channel_id=2, fraction_ppm=100_000) == Granted(50)
    assert link.budget.statistics(now_us=0).rate_bytes_per_s == 100
    link.spend(10, channel_id=1, fraction_ppm=900_000)
    assert link.budget.statistics(now_us=0).rate_bytes_per_s == 900
    link.now_us += 2 * SECOND_US
    link.spend(10, channel_id=2, fraction_ppm=100_000)
    assert link.budget.statistics(now_us=link.now_us).rate_bytes_per_s == 100


def test_an_altered_fraction_counts_at_once(link: Link) -> None:
    assert link.spend(250) == Granted(250)
    assert isinstance(link.spend(100, fraction_ppm=100_000), WaitForBudget), "half of a bucket of 100 is left"
    assert link.spend(50, fraction_ppm=100_000) == Granted(50)


def test_channels_that_are_idle_are_forgotten_and_too_many_wait() -> None:
    link = Link(LinkBudget(now_us=0, peak_bytes_per_s=1_000, channels_max=2))
    assert isinstance(link.spend(10, channel_id=1), Granted)
    assert isinstance(link.spend(10, channel_id=2), Granted)
    assert link.spend(10, channel_id=3) == WaitForBudget(RETRY_MS_MAX)
    link.now_us += SECOND_US
    assert isinstance(link.spend(10, channel_id=3), Granted)
    assert link.budget.statistics(now_us=link.now_us).channels == 1


# --- classes ---------------------------------------------------------------------------------------------


def test_background_leaves_seven_tenths_to_the_others(link: Link) -> None:
    assert link.spend(150, bandwidth_class=BACKGROUND) == Granted(150)
    assert isinstance(link.spend(1, bandwidth_class=BACKGROUND), WaitForBudget)
    assert link.spend(350, channel_id=2) == Granted(350)


def test_background_alone_still_gets_the_whole_rate(link: Link) -> None:
    granted = 0
    for _ in range(10_000):
        granted += isinstance(link.spend(1, bandwidth_class=BACKGROUND), Granted)
        link.now_us += 1_000
    assert 4_500 <= granted - 150 <= 5_001


def test_background_larger_than_its_part_passes_on_a_full_bucket(link: Link) -> None:
    assert link.spend(400, bandwidth_class=BACKGROUND) == Granted(400)
    assert isinstance(link.spend(400, bandwidth_class=BACKGROUND), WaitForBudget)


def starve(link: Link, seconds: int) -> None:
    """Foreground takes everything there is."""
    for _ in range(seconds):
        link.now_us += SECOND_US
        assert link.spend(500, channel_id=2) == Granted(500)


def test_starved_background_passes_once_with_a_tenth_of_a_bucket(link: Link) -> None:
    assert link.spend(10, bandwidth_class=BACKGROUND) == Granted(10)
    starve(link, 60)
    assert isinstance(link.spend(50, bandwidth_class=BACKGROUND), WaitForBudget), "60 s and not more"
    link.now_us += 1
    assert isinstance(link.spend(51, bandwidth_class=BACKGROUND), WaitForBudget), "too much, and no turn is used up"
    assert link.spend(50, bandwidth_class=BACKGROUND) == Granted(50)
    assert isinstance(link.spend(1, bandwidth_class=BACKGROUND), WaitForBudget)


def test_without_a_part_of_its_own_background_has_an_idle_link_only() -> None:
    link = Link(LinkBudget(now_us=0, peak_bytes_per_s=1_000, background_ppm=0))
    assert link.spend(10, channel_id=2) == Granted(10)
    assert isinstance(link.spend(10, bandwidth_class=BACKGROUND), WaitForBudget)
    link.now_us += SECOND_US
    assert link.spend(10, bandwidth_class=BACKGROUND) == Granted(10)


def test_realtime_passes_on_an_empty_bucket_with_at_most_half_a_bucket(link: Link) -> None:
    assert link.spend(500) == Granted(500)
    assert link.spend(250, bandwidth_class=REALTIME) == Granted(250)
    assert isinstance(link.spend(251, bandwidth_class=REALTIME), WaitForBudget)
    assert link.available == 0


def test_a_large_realtime_request_has_no_privilege_and_is_not_refused_for_ever(link: Link) -> None:
    assert link.spend(400, bandwidth_class=REALTIME) == Granted(400)
    assert link.spend(400, bandwidth_class=REALTIME) == WaitForBudget(600)


def test_what_realtime_took_beyond_the_bucket_is_not_paid_back_by_time(link: Link) -> None:
    assert link.spend(500) == Granted(500)
    assert link.spend(200, bandwidth_class=REALTIME) == Granted(200)
    link.now_us += SECOND_US // 2
    assert link.available == 250


# --- what always holds -----------------------------------------------------------------------------------

requests = st.lists(
    st.tuples(
        st.integers(1, 3),  # channel
        st.integers(1, 900),  # bytes
        st.integers(0, 700_000),  # microseconds until then
        st.sampled_from([FOREGROUND, BACKGROUND]),
    ),
    max_size=80,
)
FRACTIONS = {1: 100_000, 2: 500_000, 3: 500_000}


@given(requests=requests)
@settings(max_examples=100, deadline=None)
def test_no_stretch_of_time_has_more_than_its_rate_and_one_bucket(
    requests: list[tuple[int, int, int, BandwidthClass]],
) -> None:
    """BU1, for every stretch between two grants, of each channel and of all."""
    budget = LinkBudget(now_us=0, peak_bytes_per_s=1_000)
    grants: list[tuple[int, int, int]] = []
    now_us = 0
    for channel_id, byte_count, elapsed_us, bandwidth_class in requests:
        now_us += elapsed_us
        verdict = budget.spend(
            channel_id,
            byte_count,
            fraction_ppm=FRACTIONS[channel_id],
            bandwidth_class=bandwidth_class,
            now_us=now_us,
        )
        if isinstance(verdict, WaitForBudget):
            assert 1 <= verdict.retry_after_ms <= RETRY_MS_MAX
        else:
            grants.append((now_us, channel_id, byte_count))
    for wanted, rate in (({1}, 100), ({2}, 500), ({3}, 500), ({1, 2, 3}, 500)):
        mine = [(at_us, byte_count) for at_us, channel_id, byte_count in grants if channel_id in wanted]
        largest = max((byte_count for _, byte_count in mine), default=0)
        for first in range(len(mine)):
            total = 0
            for at_us, byte_count in mine[first:]:
                total += byte_count
                # A refill of what a rising fraction's proportion brought is at most one bucket as well.
                allowed = rate * (at_us - mine[first][0]) / SECOND_US + max(rate, largest) + 1
                assert total <= allowed, (wanted, mine[first:])


@given(
    peak=st.integers(1_000, 10**9),
    fraction_ppm=st.integers(10_000, 1_000_000),
    chunk=st.integers(1, 1 << 20),
    bandwidth_class=st.sampled_from([FOREGROUND, BACKGROUND]),
    seconds=st.integers(20, 40),
)
@settings(max_examples=40, deadline=None)
def test_who_comes_back_when_told_gets_the_fraction_within_a_tenth(
    peak: int, fraction_ppm: int, chunk: int, bandwidth_class: BandwidthClass, seconds: int
) -> None:
    rate = peak * fraction_ppm // 1_000_000
    chunk = min(max(chunk, rate // 50), 2 * rate)  # as many requests as a test can make
    link = Link(LinkBudget(now_us=0, peak_bytes_per_s=peak))
    sent = 0
    while link.now_us < seconds * SECOND_US:
        verdict = link.spend(chunk, fraction_ppm=fraction_ppm, bandwidth_class=bandwidth_class)
        if isinstance(verdict, Granted):
            sent += chunk
        else:
            link.now_us += verdict.retry_after_ms * 1_000
    bucket = max(rate, chunk)
    assert sent <= rate * link.now_us / SECOND_US + bucket
    assert sent >= 0.9 * rate * seconds - bucket


def test_two_channels_that_both_catch_up_get_the_fraction_together(link: Link) -> None:
    sent = {1: 0, 2: 0}
    turn = 0
    while link.now_us < 60 * SECOND_US:
        for channel_id in (1, 2) if turn % 2 else (2, 1):
            if isinstance(link.spend(50, channel_id=channel_id), Granted):
                sent[channel_id] += 50
        turn += 1
        link.now_us += 10_000
    assert 27_000 <= sum(sent.values()) <= 30_500
    assert min(sent.values()) >= 0.4 * sum(sent.values())


def test_who_was_refused_first_is_served_first(link: Link) -> None:
    assert link.spend(500, channel_id=1) == Granted(500)
    assert link.spend(100, channel_id=2) == WaitForBudget(200)
    assert link.spend(50, channel_id=3) == WaitForBudget(300), "after the 100 bytes of the one before"
    link.now_us += 150_000
    assert isinstance(link.spend(50, channel_id=3), WaitForBudget), "there are 75 bytes, and they are not for it"
    link.now_us += 50_000
    assert link.spend(100, channel_id=2) == Granted(100)
    link.now_us += 100_000
    assert link.spend(50, channel_id=3) == Granted(50)


def test_who_does_not_come_back_loses_its_turn(link: Link) -> None:
    assert link.spend(500, channel_id=1) == Granted(500)
    assert link.spend(500, channel_id=2) == WaitForBudget(1_000)
    link.now_us += 1_250_000
    assert isinstance(link.spend(10, channel_id=3), WaitForBudget)
    link.now_us += 1
    assert link.spend(10, channel_id=3) == Granted(10)


def test_a_large_request_is_served_among_many_small_ones(link: Link) -> None:
    assert link.spend(500, channel_id=1) == Granted(500)
    back_us = 0
    while link.now_us < 20 * SECOND_US:
        for channel_id in (2, 3, 4):
            link.spend(20, channel_id=channel_id)
        if link.now_us >= back_us:
            verdict = link.spend(800, channel_id=1)
            if isinstance(verdict, Granted):
                return
            back_us = link.now_us + verdict.retry_after_ms * 1_000
        link.now_us += 10_000
    pytest.fail("800 bytes were never granted")


# --- the links of a node ---------------------------------------------------------------------------------


def test_links_do_not_share_their_budgets() -> None:
    budgets = LinkBudgets()
    one, other = budgets.link("n2", now_us=0), budgets.link("n3", now_us=0)
    assert Link(one).spend(62_500_000) == Granted(62_500_000)
    assert Link(other).spend(62_500_000) == Granted(62_500_000)
    assert budgets.link("n2", now_us=5) is one


def test_links_are_bounded() -> None:
    budgets = LinkBudgets(links_max=2)
    first, second, _ = (budgets.link(peer, now_us=0) for peer in ("n1", "n2", "n3"))
    assert budgets.link("n2", now_us=0) is second
    assert budgets.link("n1", now_us=0) is not first, "it made room"
