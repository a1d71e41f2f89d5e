"""Founding: the same start command is right for a new cluster, a restart and a lost disk."""

from __future__ import annotations

from tidelog.core.founding import ANSWER_FRESH_MS, Found, Founding, Join, WaitForVoters

NODES = ("n1", "n2", "n3")
CLUSTER, OTHER = b"c" * 16, b"d" * 16


def reason(founding: Founding, now_ms: int = 0) -> str:
    decision = founding.decide(now_ms)
    assert isinstance(decision, WaitForVoters)
    return decision.reason


def test_a_node_alone_founds_at_once() -> None:
    assert Founding(node="n1", peers=("n1",)).decide(0) == Found()
    assert Founding(node="n1", peers=()).decide(0) == Found()


def test_the_smallest_founds_only_when_all_others_have_said_that_they_are_blank() -> None:
    """O1."""
    founding = Founding(node="n1", peers=NODES)
    assert "n2, n3" in reason(founding)
    founding.answered("n2", b"", 0)
    assert "n3" in reason(founding)
    founding.answered("n3", b"", 0)
    assert founding.decide(0) == Found()


def test_another_than_the_smallest_waits_for_it() -> None:
    """O1."""
    founding = Founding(node="n2", peers=NODES)
    for peer in ("n1", "n3"):
        founding.answered(peer, b"", 0)
    assert "n1 founds" in reason(founding)


def test_an_old_answer_says_nothing_about_now() -> None:
    """O1: a peer that was blank a while ago may have joined a cluster since."""
    founding = Founding(node="n1", peers=NODES)
    founding.answered("n2", b"", 0)
    founding.answered("n3", b"", 0)
    assert "n2, n3" in reason(founding, ANSWER_FRESH_MS + 1)


def test_one_peer_with_metadata_is_enough_to_join_and_never_found() -> None:
    """O1: what a smallest node with a lost disk must do."""
    founding = Founding(node="n1", peers=NODES)
    founding.answered("n2", b"", 0)
    founding.answered("n3", CLUSTER, 0)
    assert founding.decide(0) == Join(CLUSTER)


def test_who_belonged_to_a_cluster_joins_that_one_and_no_other() -> None:
    """O2."""
    founding = Founding(node="n1", peers=NODES, belonged_to=CLUSTER)
    for peer in ("n2", "n3"):
        founding.answered(peer, b"", 0)
    assert CLUSTER.hex() in reason(founding)
    founding.answered("n2", OTHER, 0)
    assert CLUSTER.hex() in reason(founding)
    founding.answered("n3", CLUSTER, 0)
    assert founding.decide(0) == Join(CLUSTER)


def test_peers_of_different_clusters_are_a_mistake_that_is_said() -> None:
    founding = Founding(node="n1", peers=NODES)
    founding.answered("n2", CLUSTER, 0)
    founding.answered("n3", OTHER, 0)
    assert "different clusters" in reason(founding)


def test_answers_of_strangers_do_not_count() -> None:
    founding = Founding(node="n1", peers=NODES)
    founding.answered("n9", CLUSTER, 0)
    assert "n2, n3" in reason(founding)


def test_a_founder_that_was_configured_alone_finds_its_cluster_by_who_speaks_to_it() -> None:
    """O2: its metadata is lost, and it was never told the names of the nodes that joined."""
    founding = Founding(node="n1", peers=("n1",), belonged_to=CLUSTER)
    founding.answered("n2", CLUSTER, 0)
    assert isinstance(founding.decide(0), WaitForVoters), "nobody asked it"
    founding.heard("n2")
    assert founding.peers == ["n2"]
    founding.answered("n2", CLUSTER, 0)
    assert founding.decide(0) == Join(CLUSTER)


def test_a_new_node_queries_its_configured_peers_only() -> None:
    founding = Founding(node="n1", peers=("n1",))
    founding.heard("n2")
    assert founding.peers == []
    assert founding.decide(0) == Found()
