"""A day's bytes: Live first, Backfill in what is left, and nothing forgotten at a restart."""

from __future__ import annotations

from tidelog.core.uplink.metering import Meter

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
MORNING_US = 20_000 * DAY_US


def test_without_a_budget_bytes_are_counted_and_never_refused() -> None:
    meter = Meter()
    meter.spend(MORNING_US, live=10, backfill=1_000_000)
    assert (meter.left(MORNING_US), meter.backfill_left(MORNING_US)) == (None, None)
    assert (meter.live_today, meter.backfill_today) == (10, 1_000_000)


def test_live_and_backfill_use_one_budget_and_a_new_day_brings_a_new_one() -> None:
    meter = Meter(daily_bytes=1_000)
    meter.spend(MORNING_US, live=300, backfill=500)
    assert meter.left(MORNING_US + HOUR_US) == 200
    meter.spend(MORNING_US + HOUR_US, live=900)
    assert meter.left(MORNING_US + HOUR_US) == 0
    assert meter.left(MORNING_US + DAY_US) == 1_000
    assert (meter.live_total, meter.backfill_total) == (1_200, 500)


def test_the_day_begins_at_the_hour_that_was_set() -> None:
    meter = Meter(daily_bytes=1_000, reset_hour=6)
    meter.spend(MORNING_US, live=1_000)
    assert meter.left(MORNING_US + 6 * HOUR_US - 1) == 0
    assert meter.next_day_us(MORNING_US) == MORNING_US + 6 * HOUR_US
    assert meter.left(MORNING_US + 6 * HOUR_US) == 1_000


def test_backfill_leaves_live_its_share_for_the_rest_of_the_day() -> None:
    meter = Meter(daily_bytes=2_400)
    meter.spend(MORNING_US, live=0)
    meter.spend(MORNING_US + 2 * HOUR_US, live=100)
    # 50 an hour, and 22 hours to go.
    assert meter.backfill_left(MORNING_US + 2 * HOUR_US) == 2_300 - 1_100
    meter.spend(MORNING_US + 2 * HOUR_US, backfill=1_200)
    assert meter.backfill_left(MORNING_US + 2 * HOUR_US) == 0
    assert meter.left(MORNING_US + 2 * HOUR_US) == 1_100


def test_in_the_morning_yesterday_says_what_live_will_need() -> None:
    meter = Meter(daily_bytes=10_000)
    for hour in range(24):
        meter.spend(MORNING_US + hour * HOUR_US, live=100)
    assert meter.backfill_left(MORNING_US + DAY_US) == 10_000 - 2_400


def test_a_restart_forgets_nothing() -> None:
    meter = Meter(daily_bytes=1_000)
    meter.spend(MORNING_US, live=400, backfill=100)
    again = Meter(daily_bytes=1_000, state=meter.to_state())
    assert again.left(MORNING_US + 1) == 500
    assert again.to_state() == meter.to_state()


def test_a_clock_that_is_set_back_brings_no_new_budget() -> None:
    meter = Meter(daily_bytes=1_000)
    meter.spend(MORNING_US, live=1_000)
    assert meter.left(0) == 0
    assert meter.left(MORNING_US + DAY_US) == 1_000, "the next real day does"
