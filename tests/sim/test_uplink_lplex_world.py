"""Proof that the simulator would notice broken promises to lplex boats: each new rule is broken on purpose."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.mutations import Edit, plant
from tests.sim.test_uplink_world import first_violation
from tests.uplink import test_uplink_channel
from tidelog.cluster.boats.channel import UplinkChannel
from tidelog.cluster.boats.runs import RunJudge
from tidelog.core.uplink.lplex_requests import LplexRequests
from tidelog.core.uplink.receiver import UplinkReceiver, Via
from tidelog.core.uplink.sender import UplinkSender
from tidelog.edge.uplink import uplink as edge_uplink
from tidelog.edge.uplink.uplink import BoatUplink
from tidelog.sim.network import Scheduler
from tidelog.sim.uplink.fed import FedBoat
from tidelog.sim.uplink.model import UplinkBroken
from tidelog.sim.uplink.world import REST_MS, SHORT_MS

BUGS: dict[str, tuple[str, list[Edit]]] = {
    "old files count for the run that speaks": (
        "F6: ",
        [
            Edit(
                UplinkChannel,
                "_receive_lplex",
                "lineage = home if isinstance(home, bytes) else new_lineage",
                "lineage = receiver.lineage or b''",
            )
        ],
    ),
    "a restart that Live shows is overlooked": (
        "F6: ",
        [Edit(UplinkChannel, "_receive_lplex", "if runs.is_later_run(frames, message.seqs):", "if False:")],
    ),
    "what cannot be told is taken for the run that speaks": (
        "",
        [
            Edit(
                RunJudge,
                "_judge",
                "if fits is None:\n            return Verdict.UNDECIDED",
                "if fits is None:\n            return current",
            )
        ],
    ),
    "times are compared": (
        "",
        [
            Edit(
                RunJudge,
                "_match",
                "if not is_same or bool(np.any(late_us < 0)) or bool(np.any(steps_us < 0)):",
                "if True:",
            )
        ],
    ),
    "all that a boat without a journal has is lost at once": (
        "F5: ",
        [Edit(UplinkReceiver, "_note_declared", "[range(1, live_start)]", "[range(1, max(2, hello.head))]")],
    ),
    "Live is always asked from the head": (
        "",
        [Edit(LplexRequests, "open", "start = wanted\n", "start = newest\n")],
    ),
    "a boat's largest lag is never learned": (
        "14: ",
        [Edit(LplexRequests, "_learn_lag", "self._early += 1", "pass")],
    ),
    "older runs are never asked for": (
        "14: ",
        [Edit(LplexRequests, "holes_named", "or not known.held", "or True")],
    ),
}

RARE_BUGS: dict[str, tuple[Callable[[], None], *tuple[Edit, ...]]] = {
    "equal frames at other times are of the same run": (
        test_uplink_channel.test_steady_bus_of_a_run_between_is_not_taken_for_late_times_of_the_one_before,
        Edit(RunJudge, "_match", " and (first > start or int(late_us[0]) == 0)", ""),
    ),
    "a run began as soon as the block before its first one ended": (
        test_uplink_channel.test_block_that_continues_an_older_run_is_of_it_although_a_later_run_was_seen_to_begin,
        Edit(RunJudge, "_note_run_change", "before.last_us, found.first_us)", "before.last_us, before.last_us + 1)"),
    ),
    "a spoiled record counts as one that is held": (
        test_uplink_channel.test_good_records_of_a_damaged_block_are_kept_and_the_others_lost_with_the_reason,
        Edit(UplinkReceiver, "backfill", "if message.lost:", "if False:"),
    ),
    "a run may go on behind a later one": (
        test_uplink_channel.test_block_of_an_older_run_does_not_pass_over_the_run_that_followed_it,
        Edit(RunJudge, "_lies_between", "return any(", "return False and any("),
    ),
    "Live that comes before what is held is not compared by time": (
        test_uplink_channel.test_live_of_a_later_run_before_all_that_is_held_shows_a_restart_by_its_times,
        Edit(RunJudge, "is_later_run", "not is_compared and", "False and"),
    ),
    "blocks on their way into the log are not compared": (
        test_uplink_channel.test_block_over_one_that_is_on_its_way_into_the_log_is_of_another_run,
        Edit(RunJudge, "_match_sent", "if place < 0:", "if True:"),
    ),
    "frames that retention deleted are not compared": (
        test_uplink_channel.test_steady_bus_of_a_later_run_is_told_when_the_log_was_trimmed_too,
        Edit(RunJudge, "_match_times", "if span_us is None or not both:", "if True:"),
        Edit(RunJudge, "_comes_before_and_is_later", "if span_us is None or", "if True or"),
    ),
}
"""Needs more coincidences than 400 seeds bring: a directed test shows each."""

FED_BUGS: dict[str, tuple[str, list[Edit]]] = {
    "void seqs are skipped": (
        "14: ",
        [
            Edit(
                BoatUplink,
                "_lplex_backfill",
                "frames = no_frames(len(seqs), now_us if block is None else block.maker.time_min_us)",
                "self.sender.backfilled(seqs, size_bytes=0, now_ms=now_ms); return []",
            ),
            Edit(
                edge_uplink,
                "without_gaps",
                "yield next_seq, no_frames(base_seq - next_seq, int(frames.times_us[0]))",
                "pass",
            ),
        ],
    ),
    "void seqs have a frame of the bus": (
        "",
        [
            Edit(
                edge_uplink,
                "no_frames",
                "np.full(count, NO_FRAME_ID, dtype=np.uint32)",
                "np.full(count, 0x09F80100, dtype=np.uint32)",
            )
        ],
    ),
    "Live is not held while the last hole closes": (
        "twice",
        [
            Edit(UplinkSender, "live_room", " or self._settled_at_ms is not None", ""),
            Edit(UplinkSender, "live_ready_at_ms", " or self._settled_at_ms is not None", ""),
        ],
    ),
    "the newest frame is sent again to a cloud that has all": (
        "twice",
        [
            Edit(
                UplinkSender,
                "welcomed",
                "self._live_next = welcome.live_start + has_all",
                "self._live_next = welcome.live_start",
            )
        ],
    ),
}


@pytest.mark.parametrize("bug", RARE_BUGS)
def test_planted_bug_that_few_runs_of_an_lplex_boat_meet_is_noticed(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    directed, *edits = RARE_BUGS[bug]
    directed()
    plant(monkeypatch, *edits)
    with pytest.raises(AssertionError):
        directed()


@pytest.mark.parametrize("bug", FED_BUGS)
def test_planted_bug_in_what_an_lplex_cloud_is_given_is_noticed(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    words, edits = FED_BUGS[bug]
    plant(monkeypatch, *edits)
    found = first_fed_violation(60)
    assert found, bug
    assert words in found


def test_a_boat_that_feeds_an_lplex_cloud_loses_nothing_and_sends_nothing_twice() -> None:
    assert first_fed_violation(15) == ""


def first_fed_violation(seeds: int) -> str:
    """Runs only the boat with the lplex cloud."""
    for seed in range(seeds):
        scheduler = Scheduler()
        boat = FedBoat.of(random.Random(f"fed {seed}"), scheduler, Counter())
        try:
            scheduler.run_until(SHORT_MS)
            boat.heal()
            if not scheduler.run_until(scheduler.now_ms + REST_MS, lambda: not boat.is_restless()):  # noqa: B023
                return f"14: seed {seed}: {boat.unrest()}"
            boat.check_end()
        except UplinkBroken as broken:
            return f"seed {seed}: {broken}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_in_what_is_asked_or_believed_of_an_lplex_boat_is_noticed(
    monkeypatch: pytest.MonkeyPatch, bug: str
) -> None:
    words, edits = BUGS[bug]
    plant(monkeypatch, *edits)
    found = first_violation(400)
    assert found, bug
    assert words in found


@pytest.mark.slow
def test_unreadable_blocks_that_say_nothing_keep_the_cursor_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """F5: a journal with dictionaries."""

    def deaf(core: UplinkReceiver[Any], message: Any, *, is_current: bool) -> list[Any]:
        return core._settle_answer(Via.BACKFILL, range(0))

    monkeypatch.setattr(UplinkReceiver, "unread", deaf)
    assert "14: " in first_violation(400)
