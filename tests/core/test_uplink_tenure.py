"""Which process speaks for a boat."""

from __future__ import annotations

from tidelog.core.uplink.tenure import SILENT_MS, TAKEOVERS_MAX, TAKEOVERS_MS, InUse, Tenure

ONE, OTHER, UNKNOWN = b"one", b"other", b""


def held(boot_id: bytes, *, at_ms: int = 1_000) -> Tenure:
    tenure = Tenure()
    assert tenure.admit(boot_id, now_ms=at_ms) is None
    tenure.opened(1, boot_id, now_ms=at_ms, now_us=1_000 * at_ms)
    tenure.heard(1, now_ms=at_ms)
    return tenure


def test_a_process_takes_over_its_own_session_at_once() -> None:
    """UT1."""
    tenure = held(ONE)
    assert tenure.admit(ONE, now_ms=1_000) is None
    tenure.opened(2, ONE, now_ms=1_500, now_us=1_500_000)
    assert tenure.admit(OTHER, now_ms=2_000) == InUse(since_us=1_000_000, silent_ms=500)


def test_another_process_waits_while_the_session_is_heard() -> None:
    """UT2."""
    tenure = held(ONE)
    for now_ms in range(1_000, 100_000, 5_000):
        tenure.heard(1, now_ms=now_ms)
        assert tenure.admit(OTHER, now_ms=now_ms + 4_999) == InUse(since_us=1_000_000, silent_ms=4_999)
    assert tenure.refusals == 20


def test_another_process_is_let_in_once_the_session_is_over_or_silent() -> None:
    tenure = held(ONE)
    assert tenure.admit(OTHER, now_ms=1_000 + SILENT_MS - 1) is not None
    assert tenure.admit(OTHER, now_ms=1_000 + SILENT_MS) is None
    tenure.ended(1)
    assert tenure.admit(OTHER, now_ms=1_001) is None


def test_a_late_word_or_end_of_an_older_session_changes_nothing() -> None:
    tenure = held(ONE)
    tenure.opened(2, ONE, now_ms=2_000, now_us=2_000_000)
    tenure.heard(1, now_ms=9_000)
    tenure.ended(1)
    assert tenure.admit(OTHER, now_ms=9_000) == InUse(since_us=1_000_000, silent_ms=7_000)


def test_processes_without_a_boot_id_take_over_at_once_but_not_in_turns() -> None:
    """UT3: lplex boats."""
    tenure = held(UNKNOWN)
    takeovers = 0
    for now_ms in range(2_000, 62_000, 500):
        tenure.heard(1 + takeovers, now_ms=now_ms)
        if tenure.admit(UNKNOWN, now_ms=now_ms) is None:
            takeovers += 1
            tenure.opened(1 + takeovers, UNKNOWN, now_ms=now_ms, now_us=0)
    assert takeovers == TAKEOVERS_MAX * 60_000 // TAKEOVERS_MS


def test_a_boat_of_ours_and_one_of_lplex_under_one_name_are_two_processes() -> None:
    assert held(ONE).admit(UNKNOWN, now_ms=2_000) is not None
    assert held(UNKNOWN).admit(ONE, now_ms=2_000) is not None
