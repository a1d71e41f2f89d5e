"""The first leader founds the cluster, whatever came into its catalog before."""

from __future__ import annotations

from tests.cluster.test_metadata_member import Desk, leading
from tidelog.cluster.metadata.member_controller import MemberController
from tidelog.core.catalog import AdmitNode
from tidelog.core.liveness import LivenessConfig

CLUSTER = bytes(range(16))
PEERS = ("n1", "n2", "n3")


def tended(desk: Desk, controller: MemberController) -> None:
    """A few turns of the node that leads."""
    for now_ms in range(3):
        controller.lead(desk.member, CLUSTER, now_ms)
        desk.pump()
        for result in desk.results:
            if controller.owns(result):
                controller.settle(desk.member, result, now_ms)
        desk.results.clear()


def new_controller() -> MemberController:
    return MemberController(node="n1", peers=PEERS, liveness=LivenessConfig(), voters_max=3, say=lambda *_, **__: None)


def test_the_first_leader_founds_the_cluster_with_its_peers() -> None:
    desk = leading()
    tended(desk, new_controller())
    assert desk.member.catalog.cluster_id == CLUSTER.hex()
    assert [record.node for record in desk.member.catalog.nodes()] == list(PEERS)


def test_a_node_that_was_let_in_before_does_not_keep_the_others_outside() -> None:
    desk = leading()
    desk.member.propose(AdmitNode(node="n2"), 7)
    desk.pump()
    tended(desk, new_controller())
    assert desk.member.catalog.cluster_id == CLUSTER.hex()
    assert [record.node for record in desk.member.catalog.nodes()] == list(PEERS)


def test_a_node_that_is_let_in_while_the_founding_is_under_way_does_not_either() -> None:
    desk = leading()
    desk.member.propose(AdmitNode(node="n2"), 7)  # in the log before the founding, applied after it was proposed
    tended(desk, new_controller())
    assert desk.member.catalog.cluster_id == CLUSTER.hex()
    assert [record.node for record in desk.member.catalog.nodes()] == list(PEERS)


def test_a_cluster_is_founded_once() -> None:
    desk = leading()
    controller = new_controller()
    tended(desk, controller)
    index = desk.member.raft.log.last_index
    tended(desk, controller)
    assert desk.member.raft.log.last_index == index
