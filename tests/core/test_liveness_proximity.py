"""The proximity graph: distances for election and placement, and who cannot hear whom (PY1-G3)."""

from __future__ import annotations

import json

import pytest

from tidelog.core.liveness import Hearing, HearingReport, LivenessConfig, ProximityGraph
from tidelog.errors import TooManyNames

CONFIG = LivenessConfig()


def graph_of(*nodes: str, config: LivenessConfig = CONFIG) -> ProximityGraph:
    graph = ProximityGraph(config=config)
    graph.set_nodes(nodes)
    return graph


def hears(*hearings: Hearing) -> HearingReport:
    return HearingReport(hearings=hearings)


def silent(node: str, silence_ms: int = 0, interval_ms: int = 500) -> Hearing:
    return Hearing(node=node, silence_ms=silence_ms, interval_ms=interval_ms)


def far(node: str, rtt_us: int, peak_bytes_per_s: int = 0) -> Hearing:
    return Hearing(node=node, silence_ms=0, interval_ms=500, rtt_us=rtt_us, peak_bytes_per_s=peak_bytes_per_s)


def told(graph: ProximityGraph, silences_ms: dict[tuple[str, str], int], now_ms: int) -> None:
    """Every node reports; who is not named was heard just now."""
    nodes = graph.snapshot(now_ms)["nodes"]
    for node in nodes:
        others = [silent(other, silences_ms.get((node, other), 0)) for other in nodes if other != node]
        graph.report(node, hears(*others), now_ms)


# --- distances -----------------------------------------------------------------------------------


def test_a_distance_is_the_middle_of_both_directions_or_the_one_that_is_known() -> None:
    graph = graph_of("n1", "n2", "n3")
    assert graph.rtt_us("n1", "n2") is None
    graph.report("n1", hears(far("n2", 300), far("n3", 0)), 0)
    assert graph.rtt_us("n1", "n2") == graph.rtt_us("n2", "n1") == 300
    graph.report("n2", hears(far("n1", 500)), 0)
    assert graph.rtt_us("n1", "n2") == graph.rtt_us("n2", "n1") == 400
    assert graph.rtt_us("n1", "n3") is None, "0 means not measured"


def test_an_election_reads_the_median_to_the_other_replicas() -> None:
    """R8"""
    graph = graph_of("n1", "n2", "n3", "n4")
    graph.report("n1", hears(far("n2", 100), far("n3", 900), far("n4", 300)), 0)
    assert graph.median_rtt_us("n1", ["n1", "n2", "n3", "n4"]) == 300
    assert graph.median_rtt_us("n1", ["n2", "n3"]) == 500
    assert graph.median_rtt_us("n1", ["n2"]) == 100
    assert graph.median_rtt_us("n1", ["n1"]) is None


def test_nobody_wins_an_election_by_being_unknown() -> None:
    graph = graph_of("n1", "n2", "n3", "n4")
    graph.report("n1", hears(far("n2", 100), far("n3", 200)), 0)
    assert graph.median_rtt_us("n1", ["n2", "n3", "n4"]) == 200
    assert graph.median_rtt_us("n1", ["n2", "n4"]) is None
    assert graph.median_rtt_us("n4", ["n1", "n2"]) is None


def test_reports_fade_and_nodes_that_left_are_forgotten() -> None:
    graph = graph_of("n1", "n2", "n3")
    graph.report("n1", hears(far("n2", 100), far("n3", 200)), 0)
    graph.report("n9", hears(far("n1", 1)), 0)
    graph.report("n2", hears(far("n9", 1), far("n2", 1)), 59_000)
    assert graph.rtt_us("n1", "n2") == 100
    assert graph.rtt_us("n2", "n9") is None
    assert graph.rtt_us("n2", "n2") is None
    graph.report("n2", hears(), 60_001)
    assert graph.rtt_us("n1", "n2") is None
    graph.report("n2", hears(far("n3", 70)), 60_002)
    graph.set_nodes(["n1", "n2"])
    assert graph.rtt_us("n2", "n3") is None


def test_there_is_a_limit_to_the_number_of_nodes() -> None:
    """PY3"""
    graph = graph_of("n1")
    with pytest.raises(TooManyNames):
        graph.set_nodes([f"n{number}" for number in range(65)])
    assert graph.snapshot(0)["nodes"] == ["n1"]


def test_the_freshest_sign_of_a_node_is_what_anybody_has_had() -> None:
    """R6"""
    graph = graph_of("n1", "n2", "n3")
    assert graph.silence_ms("n3", 0) is None
    graph.report("n1", hears(silent("n3", 2_000)), 1_000)
    graph.report("n2", hears(silent("n3", 300)), 1_100)
    assert graph.silence_ms("n3", 1_200) == 400
    graph.report("n3", hears(), 1_250)
    assert graph.silence_ms("n3", 1_300) == 50


# --- cuts ----------------------------------------------------------------------------------------


def test_one_lost_heartbeat_is_no_cut() -> None:
    """PY2"""
    graph = graph_of("n1", "n2")
    told(graph, {("n1", "n2"): 1_240}, 0)
    assert graph.cannot_hear(0) == []
    told(graph, {("n1", "n2"): 1_250}, 10)
    assert graph.cannot_hear(10) == [("n1", "n2")]


def test_silence_is_judged_by_the_interval_of_the_pair() -> None:
    graph = graph_of("n1", "n2", "n3")
    graph.report("n1", hears(silent("n2", 260, 100), silent("n3", 260, 500)), 0)
    assert graph.cannot_hear(0) == [("n1", "n2")]


def test_a_cut_does_not_flap() -> None:
    """PY2: one heartbeat that gets through ends nothing, nor do many reports of the same good moment."""
    graph = graph_of("n1", "n2")
    told(graph, {("n1", "n2"): 1_300}, 0)
    for now_ms in (100, 200, 300):
        told(graph, {("n1", "n2"): now_ms - 100}, now_ms)
        assert graph.cannot_hear(now_ms) == [("n1", "n2")]
    told(graph, {("n1", "n2"): 800}, 900)
    told(graph, {}, 1_000)
    assert graph.cannot_hear(1_000) == [("n1", "n2")]
    told(graph, {}, 1_250)
    assert graph.cannot_hear(1_250) == []


def test_what_a_silent_node_said_last_is_no_evidence_for_long() -> None:
    """PY1"""
    graph = graph_of("n1", "n2")
    told(graph, {("n1", "n2"): 2_000}, 0)
    assert graph.cannot_hear(1_249) == [("n1", "n2")]
    assert graph.cannot_hear(1_250) == []
    assert graph.unheard(1_249) == []
    assert graph.unheard(1_250) == ["n1", "n2"]
    told(graph, {("n1", "n2"): 1_000}, 5_000)
    assert graph.cannot_hear(5_000) == [], "between the two limits, and nothing is left of the old verdict"


def test_a_cut_one_way_is_seen_and_said_as_one_way() -> None:
    """PY1"""
    graph = graph_of("n1", "n2", "n3")
    told(graph, {("n2", "n3"): 2_100}, 0)
    assert graph.cannot_hear(0) == [("n2", "n3")]
    assert graph.explain(0) == ["n2 has not heard n3 for 2.1 s; n3 hears n2: the way from n3 to n2 is cut"]
    assert graph.partitions(0) == [frozenset({"n1", "n2", "n3"})], "n1 still connects the two"


def test_a_cut_both_ways_is_said_once() -> None:
    graph = graph_of("n1", "n2", "n3")
    told(graph, {("n2", "n3"): 2_100, ("n3", "n2"): 1_900}, 0)
    assert graph.explain(0) == ["n2 and n3 have not heard each other for 1.9 s: both ways are cut"]


def test_a_dead_node_is_said_once_and_not_once_per_pair() -> None:
    graph = graph_of("n1", "n2", "n3")
    for node, other in [("n1", "n2"), ("n2", "n1")]:
        graph.report(node, hears(silent(other), silent("n3", 3_000)), 0)
    assert graph.cannot_hear(0) == [("n1", "n3"), ("n2", "n3")]
    assert graph.explain(0) == [
        "nobody has heard n3 for 3.0 s: it is down or cut off",
        "the cluster is in 2 parts: n1, n2 | n3",
    ]


def test_what_cannot_be_known_is_said_to_be_unknown() -> None:
    """Seen by the one node that is cut off from n3: n2 is dead and says nothing."""
    graph = graph_of("n1", "n2", "n3")
    graph.report("n1", hears(silent("n2"), silent("n3", 2_000)), 0)
    assert graph.explain(0) == ["n1 has not heard n3 for 2.0 s; whether n3 hears n1 is not known"]


def test_partitions_are_groups_that_hear_each_other_the_largest_first() -> None:
    nodes = [f"n{number}" for number in range(1, 6)]
    left, right = {"n1", "n5"}, {"n2", "n3", "n4"}
    graph = graph_of(*nodes)
    assert graph.partitions(0) == [frozenset(nodes)], "without any report nobody is known to be cut off"
    told(graph, {(a, b): 9_000 for a in nodes for b in nodes if (a in left) != (b in left)}, 0)
    assert graph.partitions(0) == [frozenset(right), frozenset(left)]
    assert graph.explain(0)[-1] == "the cluster is in 2 parts: n2, n3, n4 | n1, n5"


def test_words_are_few_however_much_is_cut() -> None:
    nodes = [f"n{number:02}" for number in range(64)]
    graph = graph_of(*nodes)
    told(graph, {(a, b): 9_000 for a in nodes for b in nodes if b not in ("n00", a)}, 0)
    sentences = graph.explain(0)
    assert len(sentences) <= 66
    assert sentences[-1].startswith("the cluster is in 64 parts: ")


def test_a_snapshot_is_plain_json() -> None:
    graph = graph_of("n1", "n2", "n3")
    graph.report("n1", hears(far("n2", 250, 7_000_000), silent("n3", 3_000)), 100)
    snapshot = json.loads(json.dumps(graph.snapshot(150)))
    assert snapshot["links"][0] == {
        "from": "n2",
        "to": "n1",
        "silence_ms": 0,
        "interval_ms": 500,
        "rtt_us": 250,
        "peak_bytes_per_s": 7_000_000,
        "cut": False,
        "reported_ago_ms": 50,
    }
    assert [link["cut"] for link in snapshot["links"]] == [False, True]
    assert snapshot["cannot_hear"] == [["n1", "n3"]]
    assert snapshot["unheard"] == ["n2", "n3"]
    assert snapshot["partitions"] == [["n1", "n2", "n3"]], "n2 may still connect the two"
    assert len(snapshot["words"]) == 1
