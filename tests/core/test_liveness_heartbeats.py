"""Heartbeats between two nodes: silence and round trips without a common clock (H1, H2, H4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.liveness import Echo, Heartbeat, LivenessConfig, PairHeartbeats
from tidelog.errors import InvalidConfig, TooManyNames

CONFIG = LivenessConfig()


def pair(*peers: str, node: str = "n1", incarnation: int = 1, config: LivenessConfig = CONFIG) -> PairHeartbeats:
    """A node that has all its links up at time 0."""
    heartbeats = PairHeartbeats(node=node, incarnation=incarnation, config=config, now_ms=0)
    heartbeats.set_peers(peers, 0)
    for peer in peers:
        heartbeats.peer_up(peer, 0)
    return heartbeats


def beat(counter: int, *, incarnation: int = 1, interval_ms: int = 500, echo: Echo | None = None) -> Heartbeat:
    return Heartbeat(incarnation=incarnation, counter=counter, interval_ms=interval_ms, echo=echo)


# --- when heartbeats leave -----------------------------------------------------------------------


def test_one_heartbeat_per_peer_leaves_at_once_and_then_every_interval() -> None:
    heartbeats = pair("n2", "n3")
    assert heartbeats.wake_at_ms() == 0
    assert [peer for peer, _ in heartbeats.wake(0)] == ["n2", "n3"]
    assert heartbeats.wake_at_ms() == 500
    assert heartbeats.wake(499) == []
    assert [(peer, message.counter) for peer, message in heartbeats.wake(500)] == [("n2", 2), ("n3", 2)]


def test_nothing_is_sent_without_a_link_but_the_node_still_wants_to_be_woken() -> None:
    heartbeats = pair("n2")
    heartbeats.peer_down("n2", 0)
    assert heartbeats.wake(0) == []
    assert heartbeats.wake_at_ms() == 500
    heartbeats.peer_up("n2", 100)
    assert heartbeats.wake_at_ms() == 100
    assert [peer for peer, _ in heartbeats.wake(100)] == ["n2"]


def test_a_node_alone_has_nothing_to_do() -> None:
    heartbeats = pair()
    assert heartbeats.wake_at_ms() is None
    assert heartbeats.wake(10_000) == []


def test_the_smaller_wish_of_the_two_sets_the_pace_and_is_given_up_again() -> None:
    ours, theirs = pair("n2"), pair("n1", node="n2")
    theirs.set_interval("n1", 100)
    for _, message in theirs.wake(0):
        ours.receive("n2", message, 0)
    assert ours.interval_ms("n2") == 100
    assert ours.wake_at_ms() == 100
    assert ours.wake(100)[0][1].interval_ms == 500, "each says its own wish, or the smallest would stay for ever"
    theirs.set_interval("n1", 500)
    for _, message in theirs.wake(500):
        ours.receive("n2", message, 500)
    assert ours.interval_ms("n2") == 500


def test_there_is_a_limit_to_the_number_of_nodes() -> None:
    heartbeats = pair("n2", config=LivenessConfig(nodes_max=3))
    heartbeats.set_peers(["n1", "n2", "n3"], 0)
    with pytest.raises(TooManyNames):
        heartbeats.set_peers(["n2", "n3", "n4"], 0)
    assert heartbeats.peers() == ["n2", "n3"]


# --- silence -------------------------------------------------------------------------------------


def test_silence_counts_from_the_last_heartbeat_and_before_that_from_when_it_became_a_peer() -> None:
    heartbeats = pair("n2")
    for now_ms in (500, 1_000):
        heartbeats.wake(now_ms)
    assert heartbeats.silence_ms("n2", 1_200) == 1_200
    heartbeats.receive("n2", beat(1), 1_250)
    assert heartbeats.silence_ms("n2", 1_300) == 50


def test_time_in_which_this_node_was_stopped_is_nobodys_silence() -> None:
    """H4: SIGSTOP of a node must not make it accuse all the others when it goes on."""
    heartbeats = pair("n2")
    heartbeats.wake(0)
    heartbeats.receive("n2", beat(1), 100)
    assert heartbeats.silence_ms("n2", 60_000) == 500, "asked before it was woken"
    heartbeats.wake(60_000)
    assert heartbeats.silence_ms("n2", 60_000) == 500
    heartbeats.wake(60_500)
    assert heartbeats.silence_ms("n2", 60_500) == 1_000, "and from then on it counts again"
    assert heartbeats.statistics().paused_ms == 59_400


def test_a_node_that_always_wakes_late_still_notices_silence() -> None:
    heartbeats = pair("n2")
    for now_ms in range(0, 20_000, 1_900):
        heartbeats.wake(now_ms)
    assert heartbeats.silence_ms("n2", 19_000) >= 3 * 500


def test_silence_is_told_in_steps_and_never_beyond_the_most_that_can_be_told() -> None:
    heartbeats = pair("n2")
    for now_ms in range(0, 700_000, 500):
        heartbeats.wake(now_ms)
        if now_ms == 1_000:
            assert heartbeats.report(1_237).hearings[0].silence_ms == 1_230
    assert heartbeats.report(700_000).hearings[0].silence_ms == 655_350


# --- what is old or strange ----------------------------------------------------------------------


def test_old_repeated_and_strange_heartbeats_change_nothing() -> None:
    """H2"""
    heartbeats = pair("n2")
    heartbeats.wake(0)
    heartbeats.receive("n2", beat(5, incarnation=7), 100)
    repeated, overtaken, former = beat(5, incarnation=7), beat(4, incarnation=7), beat(9, incarnation=6)
    for now_ms, message in [(200, repeated), (300, overtaken), (400, former)]:
        assert not heartbeats.accepts("n2", message)
        assert heartbeats.receive("n2", message, now_ms) == []
    assert heartbeats.receive("n9", beat(1), 450) == []
    assert heartbeats.silence_ms("n2", 500) == 400
    statistics = heartbeats.statistics()
    assert (statistics.received, statistics.stale, statistics.strangers) == (1, 3, 1)


def test_a_higher_incarnation_is_answered_at_once() -> None:
    heartbeats = pair("n2")
    assert heartbeats.receive("n2", beat(8, incarnation=3), 0)
    assert heartbeats.receive("n2", beat(9, incarnation=3), 10) == []
    assert heartbeats.receive("n2", beat(1, incarnation=4), 20)
    assert heartbeats.receive("n2", beat(1, incarnation=5), 30)
    assert heartbeats.incarnation("n2") == 5


def test_first_contact_settles_in_three_messages() -> None:
    one, two = pair("n2"), pair("n1", node="n2")
    ((_, hello),) = one.wake(0, 0)
    ((_, answer),) = two.receive("n1", hello, 1, 1_000)
    ((_, closing),) = one.receive("n2", answer, 2, 2_000)
    assert two.receive("n1", closing, 3, 3_000) == []
    assert one.rtt_median_us("n2") == 2_000
    assert two.rtt_median_us("n1") == 2_000


def test_an_echo_of_a_former_incarnation_measures_nothing() -> None:
    heartbeats = pair("n2", incarnation=4)
    heartbeats.wake(0)
    heartbeats.receive("n2", beat(1, echo=Echo(incarnation=3, counter=1, held_us=0)), 10)
    assert heartbeats.rtt_median_us("n2") is None


def test_a_node_that_comes_back_after_a_fence_speaks_with_its_new_incarnation_at_once() -> None:
    heartbeats = pair("n2")
    heartbeats.wake(0)
    heartbeats.restart(2, 100)
    ((_, message),) = heartbeats.wake(100)
    assert (message.incarnation, message.counter) == (2, 1)


# --- round trips ---------------------------------------------------------------------------------


@given(
    offset_us=st.integers(-(10**15), 10**15),
    there_us=st.integers(0, 40_000),
    back_us=st.integers(0, 40_000),
    held_ms=st.integers(0, 499),
)
def test_a_round_trip_is_right_however_the_clocks_are_set(
    offset_us: int, there_us: int, back_us: int, held_ms: int
) -> None:
    """H1"""
    heartbeats = pair("n2")
    heartbeats.receive("n2", beat(1), 0, 0)
    ((_, message),) = heartbeats.wake(500, 500_000)
    received_us = 500_000 + there_us + offset_us
    sent_us = received_us + held_ms * 1_000
    arrives_us = sent_us - offset_us + back_us
    echo = Echo(incarnation=1, counter=message.counter, held_us=sent_us - received_us)
    heartbeats.receive("n2", beat(2, echo=echo), arrives_us // 1_000, arrives_us)
    assert heartbeats.rtt_median_us("n2") == max(1, there_us + back_us)


def measured(heartbeats: PairHeartbeats, rtts_us: list[int]) -> None:
    for number, rtt_us in enumerate(rtts_us):
        now_ms = (number + 1) * 500
        ((_, message),) = heartbeats.wake(now_ms, now_ms * 1_000)
        arrives_us = now_ms * 1_000 + rtt_us
        echo = Echo(incarnation=1, counter=message.counter, held_us=0)
        heartbeats.receive("n2", beat(number + 2, echo=echo), arrives_us // 1_000, arrives_us)


def started() -> PairHeartbeats:
    heartbeats = pair("n2")
    heartbeats.receive("n2", beat(1), 0)
    return heartbeats


def test_a_wild_round_trip_is_ignored() -> None:
    heartbeats = started()
    measured(heartbeats, [300, 310, 290, 305, 295, 300, 200_000, 300, 190_000, 300])
    assert heartbeats.rtt_median_us("n2") == 300
    assert heartbeats.statistics().round_trips_ignored == 2


def test_round_trips_that_stay_long_are_believed() -> None:
    heartbeats = started()
    measured(heartbeats, [300] * 10 + [40_000] * 3)
    assert heartbeats.rtt_median_us("n2") == 40_000


def test_round_trips_of_long_ago_are_forgotten() -> None:
    heartbeats = started()
    measured(heartbeats, [300] * 16 + [900] * 16)
    assert heartbeats.rtt_median_us("n2") == 900


def test_a_round_trip_that_two_clocks_make_negative_says_nothing() -> None:
    heartbeats = started()
    ((_, message),) = heartbeats.wake(500)
    echo = Echo(incarnation=1, counter=message.counter, held_us=400_000)
    heartbeats.receive("n2", beat(2, echo=echo), 600)
    assert heartbeats.rtt_median_us("n2") is None


def test_one_heartbeat_is_measured_once_and_an_unknown_one_never() -> None:
    heartbeats = started()
    ((_, message),) = heartbeats.wake(500)
    echo = Echo(incarnation=1, counter=message.counter, held_us=0)
    heartbeats.receive("n2", beat(2, echo=echo), 510)
    heartbeats.receive("n2", beat(3, echo=echo), 900)
    heartbeats.receive("n2", beat(4, echo=Echo(incarnation=1, counter=99, held_us=0)), 950)
    assert heartbeats.rtt_median_us("n2") == 10_000


# --- config --------------------------------------------------------------------------------------


def test_a_config_names_all_its_problems_at_once() -> None:
    with pytest.raises(InvalidConfig) as caught:
        LivenessConfig(
            heartbeat_ms=50,
            session_timeout_ms=100,
            session_margin_percent=0,
            deaf_percent=200,
            hears_percent=250,
            fade_ms=1,
            transfer_bytes_min=0,
            nodes_max=65,
        )
    assert len(caught.value.problems) == 8
    assert LivenessConfig().session_timeout_ms == 3 * LivenessConfig().heartbeat_ms


def test_a_peer_that_went_and_came_back_is_heard_at_once() -> None:
    """H2: the other side remembers our counters, so they go on."""
    here = PairHeartbeats(node="a", incarnation=1, config=LivenessConfig(), now_ms=0)
    there = PairHeartbeats(node="b", incarnation=1, config=LivenessConfig(), now_ms=0)
    for pair, peer in ((here, "b"), (there, "a")):
        pair.set_peers([peer], 0)
        pair.peer_up(peer, 0)
    for now_ms in range(0, 5_000, 500):
        for _, beat in here.wake(now_ms):
            there.receive("a", beat, now_ms)
    here.set_peers([], 5_000)
    here.set_peers(["b"], 5_000)
    here.peer_up("b", 5_000)
    beats = here.wake(5_000)
    assert beats
    assert there.accepts("a", beats[0][1])
