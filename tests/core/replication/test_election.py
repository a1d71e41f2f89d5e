"""Who leads: the pinned one, else the nearest, else the smallest id, and the same for everybody (R8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.replication.election import (
    first_leader,
    hand_back_to,
    most_complete,
    winner,
)
from tidelog.core.replication.messages import LogFacts, LogMemory

NAMES = ["n1", "n2", "n3", "n4", "n5"]

distances = st.fixed_dictionaries({name: st.none() | st.integers(0, 3) for name in NAMES})
sets_of_nodes = st.lists(st.sampled_from(NAMES), unique=True)


def unknown(_node: str) -> int | None:
    return None


def rtt(**known: int) -> Callable[[str], int | None]:
    return known.get


def test_the_nearest_candidate_wins() -> None:
    assert winner(["n1", "n2"], pinned=None, median_rtt_us=rtt(n1=900, n2=300)) == "n2"


def test_a_candidate_of_unknown_distance_comes_last() -> None:
    assert winner(["n1", "n2"], pinned=None, median_rtt_us=rtt(n2=10**9)) == "n2"


def test_a_distance_of_zero_is_known_and_near() -> None:
    assert winner(["n1", "n2", "n3"], pinned=None, median_rtt_us=rtt(n2=1, n3=0)) == "n3"


def test_equal_distances_go_to_the_smaller_id() -> None:
    assert winner(["n3", "n2"], pinned=None, median_rtt_us=rtt(n3=5, n2=5)) == "n2"
    assert winner(["n3", "n2"], pinned=None, median_rtt_us=unknown) == "n2"


def test_the_pinned_leader_wins_over_any_distance() -> None:
    assert winner(["n1", "n2"], pinned="n2", median_rtt_us=rtt(n1=1)) == "n2"


def test_a_pinned_leader_that_is_no_candidate_is_passed_over() -> None:
    assert winner(["n1", "n2"], pinned="n3", median_rtt_us=rtt(n1=2, n2=1)) == "n2"


def test_without_candidates_nobody_is_eligible() -> None:
    assert winner([], pinned="n1", median_rtt_us=unknown) is None


def dumb_winner(candidates: list[str], pinned: str | None, known: dict[str, int | None]) -> str | None:
    """A tournament: somebody wins whom nobody beats."""

    def beats(one: str, other: str) -> bool:
        if pinned in (one, other):
            return pinned == one
        mine, theirs = known[one], known[other]
        if (mine is None) != (theirs is None):
            return theirs is None
        if mine != theirs:
            assert mine is not None
            assert theirs is not None
            return mine < theirs
        return one < other

    unbeaten = [one for one in candidates if not any(beats(other, one) for other in candidates if other != one)]
    assert len(unbeaten) == (1 if candidates else 0)
    return unbeaten[0] if unbeaten else None


@given(candidates=sets_of_nodes, pinned=st.none() | st.sampled_from(NAMES), known=distances)
def test_the_winner_is_whom_nobody_beats(
    candidates: list[str], pinned: str | None, known: dict[str, int | None]
) -> None:
    expected = dumb_winner(candidates, pinned, known)
    for order in (candidates, candidates[::-1], sorted(candidates), set(candidates)):
        assert winner(order, pinned=pinned, median_rtt_us=known.get) == expected, "EL1"


def test_first_leaders_are_drawn_evenly() -> None:
    drawn = [first_leader(["n3", "n1", "n2"], pinned=None, rng_fraction=step / 300) for step in range(300)]
    assert {name: drawn.count(name) for name in ("n1", "n2", "n3")} == {"n1": 100, "n2": 100, "n3": 100}


def test_the_first_leader_does_not_depend_on_the_order_of_replicas() -> None:
    assert first_leader(["n2", "n1"], pinned=None, rng_fraction=0.9) == first_leader(
        ["n1", "n2"], pinned=None, rng_fraction=0.9
    )


def test_the_first_leader_is_the_pinned_one_if_it_has_a_replica() -> None:
    assert first_leader(["n1", "n2"], pinned="n2", rng_fraction=0.0) == "n2"
    assert first_leader(["n1", "n2"], pinned="n9", rng_fraction=0.0) == "n1"


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.999_999_999_999_999_9])
def test_every_fraction_of_a_generator_draws_somebody(fraction: float) -> None:
    assert first_leader(NAMES, pinned=None, rng_fraction=fraction) in NAMES


@pytest.mark.parametrize(
    ("leader", "pinned", "candidates", "expected"),
    [
        ("n1", "n2", ["n1", "n2"], "n2"),
        ("n2", "n2", ["n1", "n2"], None),
        ("n1", "n2", ["n1"], None),
        ("n1", None, ["n1", "n2"], None),
        (None, "n2", ["n2"], None),
    ],
)
def test_leadership_is_handed_back_to_a_pinned_leader_that_could(
    leader: str | None, pinned: str | None, candidates: list[str], expected: str | None
) -> None:
    assert hand_back_to(leader=leader, pinned=pinned, candidates=candidates) == expected


def facts(epoch: int, end: int, *, memory_epoch: int = 0, committed: int = 0, **ends: int) -> LogFacts:
    memory = LogMemory(epoch=memory_epoch, committed_end=committed, ends=tuple(sorted(ends.items())))
    return LogFacts(channel_id=1, channel_epoch=1, incarnation=1, last_epoch=epoch, log_end=end, memory=memory)


def test_the_most_complete_log_leads_by_epoch_then_by_end() -> None:
    answers = {"n1": facts(3, 100), "n2": facts(3, 120), "n3": facts(2, 500)}
    assert most_complete(["n1", "n2", "n3"], answers, all_answered=True) == ["n2"]
    assert most_complete(["n1", "n3"], answers, all_answered=True) == ["n1"]
    assert most_complete(["n4"], answers, all_answered=True) == [], "who has not answered does not lead"


def test_equal_logs_leave_the_choice_to_the_pin_and_the_distance() -> None:
    answers = {name: facts(3, 120) for name in ("n3", "n1", "n2")}
    assert most_complete(["n3", "n1"], answers, all_answered=False) == ["n1", "n3"]


def test_nobody_leads_who_lacks_what_a_replica_outside_the_isr_knows_to_be_committed() -> None:
    answers = {"n1": facts(3, 62), "n4": facts(3, 50, memory_epoch=3, committed=120)}
    assert most_complete(["n1"], answers, all_answered=True) == []


def test_who_holds_less_than_it_once_did_leads_only_if_all_holders_have_answered() -> None:
    answers = {"n1": facts(3, 62), "n2": facts(2, 40, memory_epoch=3, n1=120)}
    assert most_complete(["n1"], answers, all_answered=False) == []
    assert most_complete(["n1"], answers, all_answered=True) == ["n1"], "then there is nobody better"


def test_what_is_remembered_of_an_older_epoch_says_nothing_of_a_log_that_went_on() -> None:
    answers = {"n1": facts(4, 110), "n2": facts(2, 40, memory_epoch=3, n1=120)}
    assert most_complete(["n1"], answers, all_answered=False) == ["n1"]
