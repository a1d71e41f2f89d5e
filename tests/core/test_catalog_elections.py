"""Who may lead (C7), and the metadata mistakes of Liftbridge that must be impossible here (W4 to W8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.catalog_kit import MEMORY, WEAK, Cluster, three
from tidelog.core.catalog import (
    Basis,
    Batch,
    Candidates,
    ChannelConfig,
    FenceNode,
    RemoveNode,
    ShrinkReason,
    UncleanCause,
)
from tidelog.errors import (
    CatalogFull,
    InvalidChange,
    LeaderOutsideIsr,
    NodeFenced,
    NoLiveLeader,
    NotElectable,
    NothingToChange,
    NotInIsr,
    NotInReplicas,
    StaleChannelEpoch,
    StaleIncarnation,
    UnknownNode,
)

# --- from the ISR ----------------------------------------------------------------------------------------


def test_c7_any_live_isr_member_can_be_elected() -> None:
    cluster, channel_id = three()
    assert cluster.catalog.candidates(channel_id) == Candidates(
        basis=Basis.ISR, nodes=("n1", "n2", "n3"), waiting_for=()
    )
    cluster.take(cluster.elect(channel_id, "n3"))
    channel = cluster.channel(channel_id)
    assert (channel.leader, channel.leader_epoch, channel.channel_epoch) == ("n3", 2, 2)
    assert cluster.isr(channel_id) == ["n1", "n2", "n3"]
    assert channel.unclean == ()


def test_c4_neither_a_fenced_node_nor_a_stranger_nor_another_incarnation_is_elected() -> None:
    cluster = Cluster("n1", "n2", "n3", "n4")
    channel_id = cluster.create("n1", "n2", "n3")
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n4")), NotInReplicas)
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n2", incarnation=2)), StaleIncarnation)
    proposed = cluster.elect(channel_id, "n2")
    cluster.fence("n2")
    assert isinstance(cluster.refused(proposed), NodeFenced)
    cluster.restart("n2")
    assert isinstance(cluster.refused(proposed), StaleIncarnation)
    cluster.take(cluster.elect(channel_id, "n2"))


def test_a_leader_can_be_deposed_without_another() -> None:
    cluster, channel_id = three()
    assert isinstance(cluster.refused(cluster.elect(channel_id, None, incarnation=1)), InvalidChange)
    cluster.take(cluster.elect(channel_id, None))
    channel = cluster.channel(channel_id)
    assert (channel.leader, channel.leader_incarnation, channel.leader_epoch) == (None, 0, 2)
    assert cluster.catalog.leader_count("n1") == 0
    assert not cluster.catalog.has_live_leader(channel)
    assert isinstance(cluster.refused(cluster.elect(channel_id, None)), NothingToChange)


def test_r5_a_member_in_doubt_is_not_elected_before_it_is_confirmed() -> None:
    cluster = Cluster("n1", "n2", "n3")
    channel_id = cluster.create("n1", "n2", "n3", config=WEAK)
    cluster.restart("n2")
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n2")), NotElectable)
    cluster.take(cluster.expand(channel_id, "n2"))
    cluster.take(cluster.elect(channel_id, "n2"))


def test_r5_a_node_that_syncs_every_append_leads_again_after_a_crash() -> None:
    cluster, channel_id = three()
    for node in ("n1", "n2", "n3"):
        cluster.restart(node)
    cluster.take(cluster.elect(channel_id, "n2"))
    assert cluster.channel(channel_id).unclean == ()


def test_r5_an_elected_leader_is_trusted_as_the_incarnation_that_leads() -> None:
    cluster = Cluster("n1", "n2")
    channel_id = cluster.create("n1", "n2", config=WEAK)
    cluster.restart("n1", clean=True)
    cluster.take(cluster.elect(channel_id, "n1"))
    assert cluster.channel(channel_id).isr[0].incarnation == 2
    cluster.restart("n1")
    assert cluster.catalog.doubtful(channel_id) == ("n1",)


# --- from the eligible -------------------------------------------------------------------------------------


def test_c7_an_eligible_replica_is_elected_beside_an_isr_that_could_lead_while_nobody_does() -> None:
    """The metadata leader takes it if its log turned out to hold more than theirs: a disk of theirs lied."""
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n2", "n3"))
    cluster.take(cluster.elect(channel_id, None))
    assert cluster.catalog.candidates(channel_id) == Candidates(basis=Basis.ISR, nodes=("n1",), waiting_for=())
    cluster.take(cluster.elect(channel_id, "n2"))
    channel = cluster.channel(channel_id)
    assert (channel.leader, cluster.isr(channel_id)) == ("n2", ["n2"])
    assert cluster.eligible(channel_id) == ["n1", "n3"], "the ISR that it replaced holds as much, as far as is known"
    assert channel.unclean == (), "nothing is lost"


def test_c7_an_eligible_replica_leads_when_nobody_of_the_isr_can() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n2", "n3"))
    cluster.fence("n1")
    assert cluster.catalog.candidates(channel_id) == Candidates(
        basis=Basis.ELIGIBLE, nodes=("n2", "n3"), waiting_for=("n1",)
    )
    cluster.take(cluster.elect(channel_id, "n3"))
    channel = cluster.channel(channel_id)
    assert (channel.leader, cluster.isr(channel_id)) == ("n3", ["n3"])
    assert cluster.eligible(channel_id) == ["n1", "n2"], "nothing was committed without them either"
    assert channel.unclean == (), "nothing is lost"


def test_c7_an_eligible_replica_does_not_pass_a_live_isr_member() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n2", "n3"))
    error = cluster.refused(cluster.elect(channel_id, "n2"))
    assert isinstance(error, NotElectable)
    assert "n1" in error.problem


def test_c7_an_eligible_replica_in_doubt_does_not_lead() -> None:
    cluster = Cluster("n1", "n2", "n3")
    channel_id = cluster.create("n1", "n2", "n3", config=WEAK)
    cluster.take(cluster.shrink(channel_id, "n2", "n3"))
    cluster.fence("n1")
    cluster.restart("n2")
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n2")), NotElectable)
    assert cluster.catalog.candidates(channel_id).nodes == ("n3",)
    cluster.take(cluster.elect(channel_id, "n3"))
    assert cluster.eligible(channel_id) == ["n1"], "n2 has no claim any more"


def test_c7_an_isr_in_doubt_yields_to_a_trusted_eligible_replica() -> None:
    cluster = Cluster("n1", "n2", "n3")
    channel_id = cluster.create("n1", "n2", "n3", config=WEAK)
    cluster.take(cluster.shrink(channel_id, "n2", "n3"))
    cluster.restart("n1")
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n1")), NotElectable)
    cluster.take(cluster.elect(channel_id, "n2"))
    assert (cluster.isr(channel_id), cluster.eligible(channel_id)) == (["n2"], ["n3"])


def test_a_replica_that_is_neither_in_sync_nor_eligible_does_not_lead() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n3"))
    cluster.fence("n1", "n2")
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n3")), NotElectable)
    assert cluster.catalog.candidates(channel_id) == Candidates(
        basis=Basis.ELIGIBLE, nodes=(), waiting_for=("n1", "n2")
    )


# --- by reports (R5) -----------------------------------------------------------------------------------------


def all_in_doubt(config: ChannelConfig = WEAK) -> tuple[Cluster, int]:
    cluster = Cluster("n1", "n2", "n3")
    channel_id = cluster.create("n1", "n2", "n3", config=config)
    for node in ("n1", "n2", "n3"):
        cluster.restart(node)
    return cluster, channel_id


def test_r5_with_all_in_doubt_the_longest_log_leads_once_all_have_reported() -> None:
    cluster, channel_id = all_in_doubt()
    assert cluster.catalog.candidates(channel_id) == Candidates(
        basis=Basis.REPORTS, nodes=("n1", "n2", "n3"), waiting_for=()
    )
    n1, n2, n3 = (
        cluster.report("n1", 1, 90),
        cluster.report("n2", 2, 10),
        cluster.report("n3", 2, 12),
    )
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n3")), NotElectable), "without reports"
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n3", reports=(n2, n3))), NotElectable)
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n3", reports=(n2, n3, n3))), NotElectable)
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n1", reports=(n1, n2, n3))), NotElectable)
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n2", reports=(n1, n2, n3))), NotElectable)
    cluster.take(cluster.elect(channel_id, "n3", reports=(n1, n2, n3)))
    channel = cluster.channel(channel_id)
    assert (channel.leader, cluster.isr(channel_id), cluster.eligible(channel_id)) == ("n3", ["n3"], [])
    (election,) = channel.unclean
    assert (election.cause, election.leader_epoch, election.leader) == (UncleanCause.REPORTS, 2, "n3")


def test_r5_a_report_is_of_the_present_incarnation() -> None:
    cluster, channel_id = all_in_doubt()
    reports = tuple(cluster.report(node, 1, 5) for node in ("n1", "n2", "n3"))
    cluster.restart("n2")
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n1", reports=reports)), StaleIncarnation)


def test_r5_a_report_of_a_node_that_is_away_does_not_count() -> None:
    cluster, channel_id = all_in_doubt()
    reports = tuple(cluster.report(node, 1, 5) for node in ("n1", "n2", "n3"))
    cluster.fence("n2")
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n1", reports=reports)), NodeFenced)
    assert cluster.catalog.candidates(channel_id).waiting_for == ("n2",)


def test_r5_a_holder_that_is_certain_is_waited_for() -> None:
    cluster = Cluster("n1", "n2", "n3")
    channel_id = cluster.create("n1", "n2", "n3", config=WEAK)
    cluster.restart("n1")
    cluster.restart("n2")
    cluster.fence("n3")
    reports = tuple(cluster.report(node, 1, 5) for node in ("n1", "n2", "n3"))
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n1", reports=reports)), NotElectable)
    cluster.restart("n3", clean=True)
    cluster.take(cluster.elect(channel_id, "n3"))


def test_r5_a_holder_that_was_removed_is_not_waited_for() -> None:
    cluster, channel_id = all_in_doubt()
    cluster.take(RemoveNode(node="n2", force=True))
    reports = (cluster.report("n1", 1, 5), cluster.report("n3", 1, 5))
    cluster.take(cluster.elect(channel_id, "n3", reports=reports))


def test_r5_a_memory_channel_starts_again_when_every_process_ended() -> None:
    cluster, channel_id = all_in_doubt(MEMORY)
    reports = tuple(cluster.report(node, 0, 0) for node in ("n1", "n2", "n3"))
    cluster.take(cluster.elect(channel_id, "n2", reports=reports))
    assert len(cluster.channel(channel_id).unclean) == 1


# --- by an operator --------------------------------------------------------------------------------------------


def test_c7_an_operator_names_a_replica_and_it_is_recorded_for_ever() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n3"))
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n3", operator="anna")), NotElectable)
    cluster.fence("n1", "n2")
    cluster.take(cluster.elect(channel_id, "n3", operator="anna"))
    channel = cluster.channel(channel_id)
    assert (channel.leader, cluster.isr(channel_id), channel.eligible) == ("n3", ["n3"], ())
    (election,) = channel.unclean
    assert (election.operator, election.at_ms, election.cause) == ("anna", 9_000, UncleanCause.OPERATOR)
    cluster.restart("n1")
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n1")), NotElectable), "its log is not the channel's"


def test_c7_an_operator_names_who_leads_so_that_its_log_counts_whatever_others_remember() -> None:
    """The first way out of a follower that knows more to be committed than its leader holds (FW6)."""
    cluster, channel_id = three()
    cluster.take(cluster.elect(channel_id, "n1", operator="anna"))
    channel = cluster.channel(channel_id)
    assert (channel.leader, channel.leader_epoch, cluster.isr(channel_id)) == ("n1", 2, ["n1"])
    assert cluster.eligible(channel_id) == [], "everybody else compares its log with the leader's first"
    (election,) = channel.unclean
    assert (election.leader_epoch, election.leader, election.operator) == (2, "n1", "anna")
    for node in ("n2", "n3"):
        assert isinstance(cluster.refused(cluster.elect(channel_id, node)), NotElectable)


def test_c7_an_operator_names_one_of_several_that_could_lead_while_nobody_does() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n3"))
    error = cluster.refused(cluster.elect(channel_id, "n2", operator="anna"))
    assert isinstance(error, NotElectable)
    assert "can lead without loss" in error.problem, "n1 leads, so nobody else is named"
    cluster.take(cluster.elect(channel_id, None))
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n3", operator="anna")), NotElectable)
    cluster.take(cluster.elect(channel_id, "n2", operator="anna"))
    channel = cluster.channel(channel_id)
    assert (channel.leader, cluster.isr(channel_id), len(channel.unclean)) == ("n2", ["n2"], 1)


def test_an_operator_elects_no_dead_node() -> None:
    cluster, channel_id = three()
    cluster.fence("n1", "n2", "n3")
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n3", operator="anna")), NodeFenced)
    cluster.restart("n3")
    reports = (cluster.report("n3", 1, 1),)
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n3", operator="anna", reports=reports)), InvalidChange)


def test_c12_what_an_operator_did_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.core.catalog.election_rules.UNCLEAN_MAX", 2)
    cluster = Cluster("n1", "n2")
    channel_id = cluster.create("n1", "n2", config=MEMORY)

    def everybody_forgets() -> None:
        cluster.restart("n1")
        cluster.restart("n2")

    def by_reports() -> None:
        everybody_forgets()
        holders = cluster.isr(channel_id)
        reports = tuple(cluster.report(node, 0, 0) for node in holders)
        cluster.take(cluster.elect(channel_id, holders[0], reports=reports))

    def by_operator() -> None:
        everybody_forgets()
        cluster.take(cluster.elect(channel_id, "n2", operator="anna"))

    by_reports()
    by_operator()
    by_operator()
    assert [election.cause for election in cluster.channel(channel_id).unclean] == [UncleanCause.OPERATOR] * 2
    everybody_forgets()
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n1", operator="anna")), CatalogFull)


# --- the weaknesses of Liftbridge -----------------------------------------------------------------------------


def test_w4_a_shrink_that_lands_after_the_election_of_that_replica_is_refused() -> None:
    """Liftbridge applies it and has a leader outside the ISR."""
    cluster, channel_id = three()
    shrink = cluster.shrink(channel_id, "n2")
    cluster.take(cluster.elect(channel_id, "n2"))
    assert isinstance(cluster.refused(shrink), StaleChannelEpoch)
    assert isinstance(cluster.refused(cluster.shrink(channel_id, "n2")), LeaderOutsideIsr), "nor when decided anew"


def test_w4_an_election_that_lands_after_the_shrink_of_that_replica_is_refused() -> None:
    cluster, channel_id = three()
    election = cluster.elect(channel_id, "n2")
    cluster.take(cluster.shrink(channel_id, "n2"))
    assert isinstance(cluster.refused(election), StaleChannelEpoch)
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n2")), NotElectable)


def test_w4_what_check_allowed_is_asked_again_when_it_is_applied() -> None:
    cluster, channel_id = three()
    election = cluster.elect(channel_id, "n2")
    assert cluster.catalog.check(election) is None
    cluster.fence("n2")
    assert isinstance(cluster.refused(election), NodeFenced)


def test_w5_an_expansion_of_a_deposed_leader_does_not_land() -> None:
    """The joiner was judged by a log that is no longer the channel's."""
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n3"))
    expansion = cluster.expand(channel_id, "n3")
    cluster.take(cluster.elect(channel_id, "n2"))
    assert isinstance(cluster.refused(expansion), StaleChannelEpoch)


def test_w5_a_joiner_that_restarted_meanwhile_does_not_join() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n3"))
    expansion = cluster.expand(channel_id, "n3")
    cluster.restart("n3", disk_id="bbbbbbbb")
    assert isinstance(cluster.refused(expansion), StaleIncarnation)


def test_w5_a_fenced_leader_expands_nothing() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n3"))
    expansion = cluster.expand(channel_id, "n3")
    cluster.fence("n1")
    assert isinstance(cluster.refused(expansion), NoLiveLeader)


def test_w6_with_two_of_three_gone_the_third_leads_and_the_dead_leave_the_isr() -> None:
    """Liftbridge waits for two witnesses and for the dead leader to shrink its ISR, for ever."""
    cluster, channel_id = three()
    first = cluster.shrink(channel_id, "n1", "n2", reason=ShrinkReason.FENCED)
    cluster.take(
        Batch(
            changes=(
                FenceNode(node="n1", expected_incarnation=1),
                FenceNode(node="n2", expected_incarnation=1),
                cluster.elect(channel_id, "n3"),
                replace(first, expected_channel_epoch=2),
            )
        )
    )
    channel = cluster.channel(channel_id)
    assert (channel.leader, cluster.isr(channel_id)) == ("n3", ["n3"])
    assert cluster.eligible(channel_id) == ["n1", "n2"]
    cluster.restart("n1")
    cluster.take(cluster.expand(channel_id, "n1"))
    assert cluster.isr(channel_id) == ["n1", "n3"]


def test_w7_a_report_about_the_old_leader_does_not_depose_the_new_one() -> None:
    """Liftbridge keeps its witnesses after the election; here the second election was decided on an older epoch."""
    cluster, channel_id = three()
    late = cluster.elect(channel_id, "n3")
    cluster.take(cluster.elect(channel_id, "n2"))
    assert isinstance(cluster.refused(late), StaleChannelEpoch)
    assert cluster.channel(channel_id).leader == "n2"


def test_w8_a_dead_replica_is_not_elected() -> None:
    cluster, channel_id = three()
    cluster.fence("n2")
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n2")), NodeFenced)
    assert cluster.catalog.candidates(channel_id).nodes == ("n1", "n3")
    cluster.take(RemoveNode(node="n2"))
    assert isinstance(cluster.refused(cluster.elect(channel_id, "n2")), NodeFenced)


def test_a_replica_on_a_node_that_nobody_knows_is_refused_in_words() -> None:
    cluster, channel_id = three()
    change = replace(cluster.elect(channel_id, "n2"), leader="n9")
    assert isinstance(cluster.refused(change), NotInReplicas)
    assert isinstance(cluster.refused(cluster.alter(channel_id, replicas=("n1", "n2", "n9"))), UnknownNode)
    assert isinstance(cluster.refused(cluster.shrink(channel_id, "n9")), NotInIsr)
