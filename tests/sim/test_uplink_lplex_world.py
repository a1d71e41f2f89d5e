"""Proof that the simulator would notice broken promises to lplex boats: each new rule is broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.mutations import Edit, plant
from tests.sim.test_uplink_world import first_violation
from tidelog.cluster import uplink_channel
from tidelog.cluster.uplink_channel import UplinkChannel
from tidelog.cluster.uplink_runs import RunJudge
from tidelog.core.uplink.lplex_asks import LplexAsks
from tidelog.core.uplink.receiver import UplinkReceiver

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
    "equal frames at other times are of the same run": (
        "F6: ",
        [Edit(RunJudge, "_match", " and (first > start or int(late_us[0]) == 0)", "")],
    ),
    "a run began as soon as the block before its first one ended": (
        "",
        [Edit(RunJudge, "_note_run_change", "before.last_us, found.first_us)", "before.last_us, before.last_us + 1)")],
    ),
    "all that a boat without a journal has is lost at once": (
        "F5: ",
        [Edit(UplinkReceiver, "_note_declared", "[range(1, live_start)]", "[range(1, max(2, hello.head))]")],
    ),
    "Live is always asked from the head": (
        "",
        [Edit(LplexAsks, "open", "start = wanted\n", "start = newest\n")],
    ),
    "older runs are never asked for": (
        "14: ",
        [Edit(LplexAsks, "holes_named", "or not known.held", "or True")],
    ),
    "a spoiled record counts as one that is held": (
        "",
        [Edit(UplinkReceiver, "backfill", "if message.lost:", "if False:")],
    ),
}


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
        return core._settle_answer(uplink_channel.Via.BACKFILL, range(0))

    monkeypatch.setattr(UplinkReceiver, "unread", deaf)
    assert "14: " in first_violation(400)
