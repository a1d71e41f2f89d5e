"""The boat's half of the uplink: dialing, pace, lag, acks, and what to send again."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.core.uplink.messages import BackfillAck, LiveAck, Refused, Welcome
from tidelog.core.uplink.sender import Dial, Hangup, LinkState, SenderConfig, SendStatus, UplinkSender
from tidelog.errors import InvalidConfig


def sender(*, jitter: float = 1.0, **config: Any) -> UplinkSender:
    return UplinkSender(config=SenderConfig(**config), jitter=lambda: jitter, now_ms=0)


def welcome(*, live_start: int = 1, holes: tuple[range, ...] = (), **more: Any) -> Welcome:
    fields: dict[str, Any] = {
        "session": 1,
        "cursor": 0,
        "holes": holes,
        "live_start": live_start,
        "known": True,
        "rate_frames_per_s": 2_000,
        "burst_frames": 500,
    }
    return Welcome(**(fields | more))


def connected(*, at_ms: int = 0, config: dict[str, Any] | None = None, **answer: Any) -> UplinkSender:
    core = sender(**(config or {}))
    assert core.wake(at_ms) == [Dial()]
    core.welcomed(welcome(**answer), now_ms=at_ms)
    return core


def live_ack(through: int, *, cursor: int = 0, holes: tuple[range, ...] = (), **more: Any) -> LiveAck:
    return LiveAck(session=1, cursor=cursor, committed_through=through, holes=holes, **more)


def backfill_ack(answered: int, *, cursor: int = 0, remaining: tuple[range, ...] = ()) -> BackfillAck:
    return BackfillAck(session=1, cursor=cursor, answered=answered, remaining=remaining)


# --- the connection ------------------------------------------------------------------------------


def test_one_dial_at_a_time() -> None:
    """US1."""
    core = sender()
    assert core.wake(0) == [Dial()]
    assert core.wake(1) == []
    assert core.link is LinkState.DIALING


def test_back_off_doubles_from_one_second_to_a_minute() -> None:
    core = sender(jitter=1.0)
    now_ms, waits = 0, []
    for _ in range(8):
        assert core.wake(now_ms) == [Dial()]
        core.disconnected(now_ms=now_ms)
        waits.append(core.wake_at_ms() - now_ms)
        now_ms = core.wake_at_ms()
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


def test_jitter_spreads_a_fleet_over_half_of_the_wait() -> None:
    waits = []
    for jitter in (0.0, 0.5):
        core = sender(jitter=jitter)
        core.wake(0)
        core.disconnected(now_ms=0)
        waits.append(core.wake_at_ms())
    assert waits == [500, 750]


def failed_dials(core: UplinkSender, count: int) -> int:
    now_ms = 0
    for _ in range(count):
        now_ms = core.wake_at_ms()
        core.wake(now_ms)
        core.disconnected(now_ms=now_ms)
    return core.wake_at_ms()


def session_of(core: UplinkSender, now_ms: int, *, acked_for_ms: int) -> int:
    """A session from `now_ms` on that delivers frames and is acked for so long; returns when the next dial is due."""
    core.wake(now_ms)
    core.welcomed(welcome(), now_ms=now_ms)
    for after_ms in sorted({*range(0, acked_for_ms, 2_000), acked_for_ms}):
        core.next_live(core.live_position(), now_ms=now_ms + after_ms)
        core.live_acked(live_ack(core.live_position() - 1, cursor=core.live_position() - 1), now_ms=now_ms + after_ms)
    core.disconnected(now_ms=now_ms + acked_for_ms)
    return core.wake_at_ms()


@pytest.mark.parametrize("acked_for_ms", [0, 5_000, 60_000])
def test_every_failed_dial_doubles_the_back_off_whatever_came_before(acked_for_ms: int) -> None:
    """A session that had made progress counted for all the failed dials after it: 24 of them in 20 s."""
    core = sender()
    dial_at_ms = session_of(core, 0, acked_for_ms=acked_for_ms)
    waits = [dial_at_ms - acked_for_ms]
    for _ in range(7):
        core.wake(dial_at_ms)
        core.disconnected(now_ms=dial_at_ms)
        waits.append(core.wake_at_ms() - dial_at_ms)
        dial_at_ms = core.wake_at_ms()
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


def test_a_session_that_was_acked_for_as_long_as_the_back_off_starts_it_over() -> None:
    core = sender()
    now_ms = failed_dials(core, 5)
    assert session_of(core, now_ms, acked_for_ms=32_000) - (now_ms + 32_000) == 1_000


def test_a_session_that_was_acked_for_less_does_not() -> None:
    core = sender()
    now_ms = failed_dials(core, 5)
    assert session_of(core, now_ms, acked_for_ms=31_000) - (now_ms + 31_000) == 32_000


@pytest.mark.parametrize("session_ms", [0, 100, 1_000, 5_000, 9_000])
def test_a_cloud_that_welcomes_and_breaks_is_not_dialed_without_end(session_ms: int) -> None:
    core = sender(jitter=0.0)
    now_ms, dials = 0, []
    while now_ms < 600_000:
        dials.append(now_ms)
        now_ms = session_of(core, now_ms, acked_for_ms=session_ms)
    assert max(sum(start <= at < start + 20_000 for at in dials) for start in dials) <= 6
    assert len(dials) <= 6 + 600 / 30


def test_a_lag_reconnect_is_immediate_and_neither_starts_the_back_off_over_nor_doubles_it() -> None:
    """It doubled it: a boat that fell behind a few times waited a minute after the first dial that failed."""
    core = sender(max_live_lag=100, lag_check_interval=10, live_window_blocks=1_000, min_lag_reconnect_interval_ms=1)
    now_ms = failed_dials(core, 3)
    for _ in range(4):
        core.wake(now_ms)
        core.welcomed(welcome(), now_ms=now_ms)
        while isinstance(core.next_live(10_000, now_ms=now_ms), range):
            pass
        assert core.wake_at_ms() <= now_ms + 1
        now_ms = core.wake_at_ms()
    core.wake(now_ms)
    core.disconnected(now_ms=now_ms)
    assert core.wake_at_ms() - now_ms == 8_000


def test_a_boat_that_rests_until_the_next_day_has_met_no_failure() -> None:
    core = sender()
    core.wake(0)
    core.welcomed(welcome(), now_ms=0)
    core.rest_until(50_000, now_ms=0)
    assert core.wake_at_ms() == 50_000
    core.wake(50_000)
    core.disconnected(now_ms=50_000)
    assert core.wake_at_ms() - 50_000 == 1_000


def test_a_link_without_an_answer_is_dead_within_thirty_seconds() -> None:
    core = connected()
    core.live_acked(live_ack(0, statuses=0), now_ms=1_000)
    assert not any(isinstance(effect, Hangup) for now_ms in range(1_000, 26_000, 500) for effect in core.wake(now_ms))
    assert isinstance(core.wake(26_000)[0], Hangup)


def test_a_dial_without_an_answer_is_dead_too() -> None:
    core = sender()
    core.wake(0)
    assert core.wake_at_ms() == 25_000
    assert isinstance(core.wake(25_000)[0], Hangup)


def test_acks_on_a_timer_keep_a_silent_bus_connected() -> None:
    core = connected()
    statuses = 0
    for now_ms in range(0, 300_000, 100):
        effects = core.wake(now_ms)
        assert not any(isinstance(effect, Hangup) for effect in effects)
        statuses += SendStatus(1) in effects
        if now_ms % 5_000 == 0:
            core.live_acked(live_ack(0, statuses=statuses), now_ms=now_ms)
    assert statuses >= 58


def test_a_cloud_that_talks_but_no_longer_hears_is_noticed_within_thirty_seconds() -> None:
    """Half-open on the way up: acks on a timer go on, the boat's reports are not among what was heard."""
    core = connected()
    died_ms = None
    for now_ms in range(0, 60_000, 100):
        if any(isinstance(effect, Hangup) for effect in core.wake(now_ms)):
            died_ms = now_ms
            break
        if now_ms % 5_000 == 0:
            core.live_acked(live_ack(0, statuses=0), now_ms=now_ms)
    assert died_ms is not None
    assert died_ms <= 30_000


def test_a_cloud_that_does_not_count_reports_is_not_called_deaf() -> None:
    """An lplex cloud."""
    core = connected()
    for now_ms in range(0, 120_000, 100):
        assert not any(isinstance(effect, Hangup) for effect in core.wake(now_ms))
        if now_ms % 5_000 == 0:
            core.live_acked(live_ack(0), now_ms=now_ms)


def lplex_session(**answer: Any) -> UplinkSender:
    return connected(session=0, **answer)


def test_an_lplex_cloud_that_leaves_blocks_unanswered_is_given_up_though_it_answered_others() -> None:
    """The connection died behind the first answer. Live may be paused for the last hole, and asks for none then."""
    core = lplex_session(live_start=501, holes=(range(1, 10), range(200, 300)))
    for seqs in (range(200, 300), range(1, 10)):
        core.backfilled(seqs, size_bytes=1, now_ms=0)
    core.backfill_acked(BackfillAck(session=0, cursor=0, answered=1, remaining=(range(1, 10),)), now_ms=100)
    assert not any(isinstance(effect, Hangup) for effect in core.wake(25_099))
    assert [Hangup] == [type(effect) for effect in core.wake(25_100)]


def test_answers_to_backfill_are_none_to_the_frames_of_an_lplex_clouds_live() -> None:
    core = lplex_session(live_start=501, holes=(range(1, 500),))
    assert core.next_live(501, now_ms=5_000) == range(501, 502)
    for answered in range(1, 30):
        now_ms = 5_000 + 1_000 * answered
        if any(isinstance(effect, Hangup) for effect in core.wake(now_ms)):
            assert answered == 25
            return
        core.backfilled(range(answered, answered + 1), size_bytes=1, now_ms=now_ms)
        ack = BackfillAck(session=0, cursor=answered, answered=answered, remaining=(range(answered + 1, 500),))
        core.backfill_acked(ack, now_ms=now_ms)
    raise AssertionError("a Live that nobody answers goes on")


def test_an_lplex_cloud_with_nothing_to_answer_may_be_silent() -> None:
    core = lplex_session(live_start=501, holes=(range(1, 10),))
    core.backfilled(range(1, 10), size_bytes=1, now_ms=0)
    core.next_live(501, now_ms=5_000)
    core.backfill_acked(BackfillAck(session=0, cursor=500, answered=1, remaining=()), now_ms=5_100)
    core.live_acked(LiveAck(session=0, cursor=501, committed_through=501, holes=()), now_ms=5_200)
    for now_ms in range(6_000, 600_000, 1_000):
        assert not any(isinstance(effect, Hangup) for effect in core.wake(now_ms))


def test_a_refusal_hangs_up_with_its_reason() -> None:
    hangup = connected().refused(Refused(session=1, code="rate_exceeded", detail="slow down"))
    assert hangup == Hangup("rate_exceeded: slow down")


def test_answers_of_another_session_change_nothing() -> None:
    core = connected()
    assert not core.live_acked(LiveAck(session=9, cursor=5, committed_through=5, holes=()), now_ms=0)
    assert not core.backfill_acked(BackfillAck(session=9, cursor=5, answered=1, remaining=()), now_ms=0)
    assert core.cursor == 0


# --- Live ----------------------------------------------------------------------------------------


def test_live_leaves_at_once_and_what_arrives_meanwhile_rides_in_the_next() -> None:
    """U1, US2."""
    core = connected(config={"live_window_blocks": 2})
    assert core.next_live(1, now_ms=0) == range(1, 2)
    assert core.next_live(2, now_ms=0) == range(2, 3)
    assert core.next_live(90, now_ms=5) is None
    core.live_acked(live_ack(1), now_ms=10)
    assert core.next_live(90, now_ms=10) == range(3, 91)


def test_live_is_clocked_by_what_is_committed_of_live_and_not_by_the_cursor() -> None:
    core = connected(live_start=101, holes=(range(1, 101),), config={"live_window_blocks": 1})
    assert core.next_live(110, now_ms=0) == range(101, 111)
    core.live_acked(live_ack(110, cursor=0, holes=(range(1, 101),)), now_ms=1)
    assert core.next_live(111, now_ms=1) == range(111, 112)


def test_live_never_has_more_on_its_way_than_the_burst() -> None:
    """US3: the link may bunch it all into one moment."""
    core = connected(config={"max_live_lag": 10**9, "live_window_blocks": 100})
    sent = 0
    for now_ms in range(0, 60_000, 10):
        while isinstance(seqs := core.next_live(10**6, now_ms=now_ms), range):
            sent += len(seqs)
    assert sent == 475


def test_the_pace_stays_below_the_rate_that_came_with_the_welcome() -> None:
    core = connected(config={"max_live_lag": 10**9, "live_window_blocks": 100})
    sent = 0
    for now_ms in range(0, 10_000, 10):
        while isinstance(seqs := core.next_live(10**6, now_ms=now_ms), range):
            sent += len(seqs)
            core.live_acked(live_ack(seqs.stop - 1), now_ms=now_ms)
    assert 18_000 < sent <= 475 + 19_000


def test_a_wait_for_answers_is_no_reason_to_be_woken() -> None:
    core = connected(config={"live_window_blocks": 100})
    while core.next_live(10_000, now_ms=0) is not None:
        pass
    assert core.live_ready_at_ms(10_000, now_ms=0) is None


def lag_exit(core: UplinkSender, now_ms: int, head: int) -> tuple[int, Hangup]:
    """Send, with answers at once, until the lag check ends the session; returns the frames sent."""
    sent = 0
    while True:
        seqs = core.next_live(head, now_ms=now_ms)
        if isinstance(seqs, Hangup):
            return sent, seqs
        if seqs is None:
            now_ms += 100
            continue
        sent += len(seqs)
        core.live_acked(live_ack(seqs.stop - 1), now_ms=now_ms)


def test_the_lag_is_checked_every_thousand_frames_and_ends_live_beyond_ten_thousand() -> None:
    core = connected()
    sent, hangup = lag_exit(core, 0, 20_000)
    assert 1_000 <= sent < 1_000 + 475
    assert "Backfill" in hangup.reason
    assert core.link is LinkState.DOWN


def test_a_lag_of_exactly_ten_thousand_is_allowed() -> None:
    core = connected()
    sent = 0
    while sent < 5_000:
        seqs = core.next_live(core.live_position() + 9_999, now_ms=sent * 10)
        assert isinstance(seqs, range)
        sent += len(seqs)
        core.live_acked(live_ack(seqs.stop - 1), now_ms=sent * 10)


def test_a_lag_exit_reconnects_at_once_the_next_one_waits_for_thirty_seconds() -> None:
    core = sender()
    core.wake(0)
    core.welcomed(welcome(), now_ms=0)
    lag_exit(core, 0, 50_000)
    exited_ms = core.wake_at_ms()
    assert exited_ms < 1_000
    assert core.wake(exited_ms) == [Dial()]
    core.welcomed(welcome(), now_ms=exited_ms)
    lag_exit(core, exited_ms, 50_000)
    assert core.wake_at_ms() == exited_ms + 30_000


# --- Backfill ------------------------------------------------------------------------------------


def test_the_newest_hole_goes_first() -> None:
    """US4."""
    core = connected(live_start=501, holes=(range(1, 10), range(100, 200)))
    assert core.next_backfill(now_ms=0) == range(100, 200)
    core.backfilled(range(100, 200), size_bytes=1, now_ms=0)
    assert core.next_backfill(now_ms=0) == range(1, 10)


def test_backfill_goes_on_until_nothing_is_missing() -> None:
    core = connected(live_start=501, holes=(range(100, 200),))
    core.backfilled(range(90, 150), size_bytes=1, now_ms=0)
    assert core.missing() == [range(150, 200)]
    core.backfilled(range(150, 200), size_bytes=1, now_ms=0)
    core.backfill_acked(backfill_ack(2, cursor=500, remaining=()), now_ms=1)
    assert core.next_backfill(now_ms=1) is None
    assert core.cursor == 500


def test_what_is_on_its_way_is_not_sent_again_while_the_cloud_still_lists_it() -> None:
    core = connected(live_start=501, holes=(range(100, 200),))
    core.backfilled(range(100, 200), size_bytes=1, now_ms=0)
    core.live_acked(live_ack(0, holes=(range(100, 200),)), now_ms=1)
    assert core.next_backfill(now_ms=1) is None


def test_what_the_cloud_still_lacks_after_its_answer_is_sent_again() -> None:
    core = connected(live_start=501, holes=(range(100, 200),))
    core.backfilled(range(100, 200), size_bytes=1, now_ms=0)
    core.backfill_acked(backfill_ack(1, remaining=(range(150, 160),)), now_ms=1)
    assert core.next_backfill(now_ms=1) == range(150, 160)


def test_a_hole_told_in_the_running_session_is_backfilled() -> None:
    """U3."""
    core = connected()
    assert core.next_live(20, now_ms=0) == range(1, 21)
    core.live_acked(live_ack(20, holes=(range(5, 9),)), now_ms=1)
    assert core.next_backfill(now_ms=1) == range(5, 9)


def test_what_live_has_yet_to_send_is_no_hole() -> None:
    core = connected(live_start=11, holes=(range(5, 30),))
    assert core.missing() == [range(5, 11)]


def test_backfill_has_a_window() -> None:
    core = connected(live_start=501, holes=(range(1, 100),), config={"backfill_window_blocks": 2})
    for start in (1, 11):
        core.backfilled(range(start, start + 10), size_bytes=1, now_ms=0)
    assert core.next_backfill(now_ms=0) is None
    assert core.backfill_ready_at_ms(now_ms=0) is None
    core.backfill_acked(backfill_ack(1, remaining=(range(21, 100),)), now_ms=1)
    assert core.next_backfill(now_ms=1) == range(21, 100)


def test_what_the_disk_has_not_taken_is_left_out() -> None:
    core = connected(live_start=501, holes=(range(1, 10), range(100, 200)))
    assert core.next_backfill(now_ms=0, through=149) == range(100, 150)
    assert core.next_backfill(now_ms=0, through=50) == range(1, 10)
    assert core.next_backfill(now_ms=0, through=0) is None


def test_a_metered_link_gets_its_bytes_per_second() -> None:
    core = connected(live_start=501, holes=(range(1, 500),), config={"backfill_bytes_per_s": 1_000})
    core.backfilled(range(1, 100), size_bytes=3_000, now_ms=0)
    assert core.next_backfill(now_ms=0) is None
    ready_ms = core.backfill_ready_at_ms(now_ms=0)
    assert ready_ms is not None
    assert 2_000 <= ready_ms <= 2_002
    assert core.next_backfill(now_ms=ready_ms) is not None


def test_a_config_that_makes_no_sense_names_everything_wrong() -> None:
    with pytest.raises(InvalidConfig) as caught:
        SenderConfig(max_live_lag=0, backoff_max_ms=1, silence_max_ms=5_000, pace_fraction=2, backfill_bytes_per_s=0)
    assert len(caught.value.problems) == 5
