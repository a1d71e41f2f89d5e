"""Channels in the catalog, rule by rule: compare-and-set, the ISR, eligible replicas, settings, ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.catalog_kit import Cluster, three
from tidelog.core.catalog import (
    AdmitNode,
    AdoptChannel,
    AlterChannel,
    Batch,
    Catalog,
    Change,
    ChannelConfig,
    ChannelRetention,
    CreateChannel,
    DeleteChannel,
    ExpandIsr,
    FenceNode,
    FsyncPolicy,
    Keeps,
    PauseChannel,
    Placement,
    RaiseChannelEpoch,
    ResumeChannel,
    SetReadonly,
    ShrinkReason,
)
from tidelog.errors import (
    CatalogFull,
    ChannelExists,
    ConfigMismatch,
    InvalidChange,
    InvalidConfig,
    LastHolder,
    LeaderOutsideIsr,
    NodeFenced,
    NoLiveLeader,
    NothingToChange,
    NotInIsr,
    NotInReplicas,
    StaleChannelEpoch,
    StaleIncarnation,
    UnknownChannel,
    UnknownNode,
)


def creation(name: str = "spray", **fields: Any) -> CreateChannel:
    change = CreateChannel(name=name, config=ChannelConfig(), replicas=("n1",), leader="n1", at_ms=7)
    return replace(change, **fields)


# --- creation ----------------------------------------------------------------------------------------


def test_a_new_channel_counts_every_replica_as_in_sync() -> None:
    cluster, channel_id = three()
    channel = cluster.channel(channel_id)
    assert (channel.channel_id, channel.leader_epoch, channel.channel_epoch) == (1, 1, 1)
    assert (channel.leader, channel.leader_incarnation) == ("n1", 1)
    assert cluster.isr(channel_id) == ["n1", "n2", "n3"]
    assert (channel.eligible, channel.paused, channel.readonly) == ((), False, False)
    assert channel.created_index == cluster.index
    assert {member.keeps for member in channel.isr} == {Keeps.SYNCED}
    assert cluster.catalog.channel("spray") == channel
    assert (cluster.catalog.leader_count("n1"), cluster.catalog.leader_count("n2")) == (1, 0)
    assert cluster.catalog.channels_on("n2") == [channel]


def test_c9_a_name_is_taken_in_every_spelling() -> None:
    cluster, _ = three()
    assert isinstance(cluster.refused(creation("spray")), ChannelExists)
    assert isinstance(cluster.refused(creation("Spray")), ChannelExists)
    assert cluster.catalog.channel("Spray") is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "../up"},
        {"name": "a b"},
        {"name": "x" * 201},
        {"replicas": ()},
        {"replicas": ("n1", "n1")},
        {"config": ChannelConfig(factor=1), "replicas": ("n1", "n2")},
        {"config": ChannelConfig(factor=0)},
        {"config": ChannelConfig(placement=Placement.PINNED, pinned_nodes=("n2",))},
    ],
)
def test_a_creation_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    cluster = Cluster("n1", "n2")
    assert isinstance(cluster.refused(creation(**wrong)), InvalidChange)


def test_all_problems_of_a_creation_are_said_at_once() -> None:
    error = Cluster("n1").refused(creation(name="", replicas=(), config=ChannelConfig(factor=17, heartbeat_ms=99)))
    assert isinstance(error, InvalidChange)
    assert len(error.problems) == 4


def test_c4_a_channel_is_created_on_active_nodes_only() -> None:
    cluster = Cluster("n1", "n2")
    cluster.take(AdmitNode(node="n3"))
    cluster.fence("n2")
    assert isinstance(cluster.refused(creation(replicas=("n1", "n9"))), UnknownNode)
    assert isinstance(cluster.refused(creation(replicas=("n1", "n2"))), NodeFenced)
    assert isinstance(cluster.refused(creation(replicas=("n1", "n3"))), NodeFenced)
    assert isinstance(cluster.refused(creation(leader="n2")), NotInReplicas)


def test_c12_there_are_no_more_channels_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.core.catalog.channel_rules.CHANNELS_MAX", 2)
    cluster = Cluster("n1")
    cluster.create("n1", name="a")
    cluster.create("n1", name="b")
    error = cluster.refused(creation("c"))
    assert isinstance(error, CatalogFull)
    assert error.retriable


# --- compare and set -----------------------------------------------------------------------------------


def all_channel_changes(cluster: Cluster, channel_id: int) -> list[Change]:
    """One acceptable change of every kind, all for the present epoch."""
    epoch = cluster.channel(channel_id).channel_epoch
    return [
        cluster.elect(channel_id, "n2"),
        cluster.elect(channel_id, None),
        cluster.shrink(channel_id, "n3"),
        cluster.alter(channel_id, config=ChannelConfig(heartbeat_ms=200)),
        PauseChannel(channel_id=channel_id, expected_channel_epoch=epoch),
        SetReadonly(channel_id=channel_id, expected_channel_epoch=epoch, readonly=True),
        DeleteChannel(channel_id=channel_id, expected_channel_epoch=epoch, at_ms=1),
    ]


@pytest.mark.parametrize("first", range(7))
@pytest.mark.parametrize("second", range(7))
def test_c2_of_two_changes_for_one_epoch_exactly_one_lands(first: int, second: int) -> None:
    cluster, channel_id = three()
    changes = all_channel_changes(cluster, channel_id)
    cluster.take(changes[first])
    error = cluster.refused(changes[second])
    assert isinstance(error, UnknownChannel if isinstance(changes[first], DeleteChannel) else StaleChannelEpoch)


@pytest.mark.parametrize("which", range(6))
def test_c2_every_change_raises_the_channel_epoch_and_a_leader_change_both(which: int) -> None:
    cluster, channel_id = three()
    change = all_channel_changes(cluster, channel_id)[which]
    assert cluster.take(change).touched.channels == (channel_id,)
    channel = cluster.channel(channel_id)
    assert channel.channel_epoch == 2
    assert channel.leader_epoch == (2 if which < 2 else 1)
    assert channel.changed_index == cluster.index


def test_c2_a_change_from_the_future_is_stale_too() -> None:
    cluster, channel_id = three()
    error = cluster.refused(replace(cluster.shrink(channel_id, "n3"), expected_channel_epoch=2))
    assert isinstance(error, StaleChannelEpoch)
    assert (error.expected, error.current) == (2, 1)


# --- the ISR -------------------------------------------------------------------------------------------


def test_c3_the_leader_is_not_shrunk_out_of_the_isr() -> None:
    cluster, channel_id = three()
    assert isinstance(cluster.refused(cluster.shrink(channel_id, "n1")), LeaderOutsideIsr)
    assert isinstance(cluster.refused(cluster.shrink(channel_id, "n2", "n1")), LeaderOutsideIsr)


def test_c3_a_shrink_never_empties_the_isr() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.elect(channel_id, None))
    assert isinstance(cluster.refused(cluster.shrink(channel_id, "n1", "n2", "n3")), LastHolder)


def test_c3_only_members_leave_and_each_once() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n3"))
    assert isinstance(cluster.refused(cluster.shrink(channel_id, "n3")), NotInIsr)
    assert isinstance(cluster.refused(cluster.shrink(channel_id, "n9")), NotInIsr)
    assert isinstance(cluster.refused(cluster.shrink(channel_id)), InvalidChange)
    assert isinstance(cluster.refused(cluster.shrink(channel_id, "n2", "n2")), InvalidChange)


def test_c4_a_joiner_is_active_as_the_incarnation_that_caught_up() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n3"))
    assert isinstance(cluster.refused(cluster.expand(channel_id, "n3", incarnation=2)), StaleIncarnation)
    proposed = cluster.expand(channel_id, "n3")
    cluster.restart("n3")
    assert isinstance(cluster.refused(proposed), StaleIncarnation), "R3: it caught up in an earlier run"
    cluster.fence("n3")
    assert isinstance(cluster.refused(cluster.expand(channel_id, "n3")), NodeFenced)
    cluster.restart("n3")
    cluster.take(cluster.expand(channel_id, "n3"))
    assert cluster.isr(channel_id) == ["n1", "n2", "n3"]
    assert cluster.channel(channel_id).isr[2].incarnation == 3


def test_c3_a_joiner_is_a_replica() -> None:
    cluster = Cluster("n1", "n2", "n3", "n4")
    channel_id = cluster.create("n1", "n2", "n3")
    assert isinstance(cluster.refused(cluster.expand(channel_id, "n4")), NotInReplicas)
    assert isinstance(cluster.refused(cluster.expand(channel_id, "n3")), NothingToChange)


def test_c4_only_a_live_leader_says_who_has_caught_up() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n3"))
    proposed = cluster.expand(channel_id, "n3")
    cluster.fence("n1")
    assert isinstance(cluster.refused(proposed), NoLiveLeader)
    cluster.reconnect("n1")
    assert isinstance(cluster.refused(proposed), NoLiveLeader), "R1: elected as another incarnation"
    cluster.take(cluster.elect(channel_id, None))
    assert isinstance(cluster.refused(cluster.expand(channel_id, "n3")), NoLiveLeader)


# --- eligible replicas ---------------------------------------------------------------------------------


def test_c6_who_leaves_while_the_isr_is_full_is_not_eligible() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n3"))
    assert (cluster.isr(channel_id), cluster.eligible(channel_id)) == (["n1", "n2"], [])


def test_c6_who_takes_the_isr_below_its_minimum_stays_eligible() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n3"))
    cluster.take(cluster.shrink(channel_id, "n2"))
    assert (cluster.isr(channel_id), cluster.eligible(channel_id)) == (["n1"], ["n2"])


def test_c6_who_leaves_together_is_eligible_together() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n3", "n2"))
    assert (cluster.isr(channel_id), cluster.eligible(channel_id)) == (["n1"], ["n2", "n3"])


def test_c6_nobody_is_eligible_once_records_can_be_committed_again() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n2", "n3"))
    cluster.take(cluster.expand(channel_id, "n3"))
    assert (cluster.isr(channel_id), cluster.eligible(channel_id)) == (["n1", "n3"], [])


def test_c6_a_lower_minimum_ends_eligibility_and_a_higher_one_gives_none() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n2", "n3"))
    cluster.take(cluster.alter(channel_id, config=ChannelConfig(min_isr=1)))
    assert cluster.eligible(channel_id) == []
    cluster.take(cluster.alter(channel_id, config=ChannelConfig(min_isr=3)))
    assert cluster.eligible(channel_id) == []


def test_c6_a_withdrawn_replica_is_not_eligible_and_may_say_so_later() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n2", "n3"))
    cluster.take(cluster.shrink(channel_id, "n2", reason=ShrinkReason.WITHDRAWN))
    assert cluster.eligible(channel_id) == ["n3"]
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n2", "n3", reason=ShrinkReason.WITHDRAWN))
    assert cluster.eligible(channel_id) == []


def test_r5_a_member_that_may_have_lost_records_leaves_without_a_claim() -> None:
    cluster = Cluster("n1", "n2")
    channel_id = cluster.create("n1", "n2", config=ChannelConfig(min_isr=2, fsync=FsyncPolicy.NEVER))
    cluster.restart("n2")
    cluster.take(cluster.shrink(channel_id, "n2"))
    assert (cluster.isr(channel_id), cluster.eligible(channel_id)) == (["n1"], [])


# --- holders are not let go ------------------------------------------------------------------------------


def test_c8_the_last_live_holder_is_not_shrunk_away() -> None:
    cluster = Cluster("n1", "n2")
    channel_id = cluster.create("n1", "n2", config=ChannelConfig(factor=2, min_isr=1))
    cluster.fence("n1")
    cluster.take(cluster.elect(channel_id, None))
    error = cluster.refused(cluster.shrink(channel_id, "n2"))
    assert isinstance(error, LastHolder)
    assert "n2" in str(error)
    cluster.take(cluster.shrink(channel_id, "n1", reason=ShrinkReason.FENCED))


def test_c8_nobody_in_doubt_is_let_go_while_all_are_in_doubt() -> None:
    """Else the longest log could be thrown away before anybody looked (R5)."""
    cluster = Cluster("n1", "n2")
    channel_id = cluster.create("n1", "n2", config=ChannelConfig(factor=2, fsync=FsyncPolicy.NEVER))
    cluster.restart("n1")
    cluster.restart("n2")
    cluster.take(cluster.elect(channel_id, None))
    assert isinstance(cluster.refused(cluster.shrink(channel_id, "n1")), LastHolder)


def test_c8_a_lower_minimum_waits_for_a_live_leader() -> None:
    cluster, channel_id = three()
    cluster.take(cluster.shrink(channel_id, "n2", "n3"))
    cluster.fence("n1")
    assert isinstance(cluster.refused(cluster.alter(channel_id, config=ChannelConfig(min_isr=1))), LastHolder)
    assert cluster.eligible(channel_id) == ["n2", "n3"], "they can still lead"


def test_c8_replicas_move_without_ever_falling_below_the_minimum() -> None:
    cluster = Cluster("n1", "n2", "n3", "n4", "n5")
    channel_id = cluster.create("n1", "n2", "n3")
    assert isinstance(cluster.refused(cluster.alter(channel_id, replicas=("n1", "n4", "n5"))), LastHolder)
    cluster.take(cluster.alter(channel_id, replicas=("n4", "n1", "n2", "n3", "n5")))
    assert cluster.isr(channel_id) == ["n1", "n2", "n3"]
    cluster.take(cluster.expand(channel_id, "n4"))
    assert cluster.isr(channel_id) == ["n4", "n1", "n2", "n3"], "in the order of the replicas"
    assert isinstance(cluster.refused(cluster.alter(channel_id, replicas=("n4", "n2", "n5"))), LeaderOutsideIsr)
    cluster.take(cluster.elect(channel_id, "n4"))
    cluster.take(cluster.alter(channel_id, replicas=("n4", "n2", "n5")))
    assert cluster.isr(channel_id) == ["n4", "n2"]
    assert cluster.catalog.channels_on("n1") == []


def test_c8_replicas_do_not_move_away_from_a_dead_leader() -> None:
    cluster, channel_id = three()
    cluster.fence("n1", "n2", "n3")
    cluster.take(cluster.elect(channel_id, None))
    assert isinstance(cluster.refused(cluster.alter(channel_id, replicas=("n1", "n2"))), LastHolder)


# --- settings --------------------------------------------------------------------------------------------


def test_an_alteration_is_judged_as_a_whole() -> None:
    cluster, channel_id = three()
    wrong = ChannelConfig(factor=0, heartbeat_ms=1)
    error = cluster.refused(cluster.alter(channel_id, config=wrong, replicas=("n1", "n1")))
    assert isinstance(error, InvalidChange)
    assert len(error.problems) == 3
    assert isinstance(cluster.refused(cluster.alter(channel_id, config=wrong)), InvalidChange)
    assert isinstance(cluster.refused(cluster.alter(channel_id, config=ChannelConfig())), NothingToChange)
    assert isinstance(cluster.refused(cluster.alter(channel_id)), NothingToChange)
    assert isinstance(
        cluster.refused(cluster.alter(channel_id, config=ChannelConfig(persistent=False))), ConfigMismatch
    )
    assert isinstance(cluster.refused(cluster.alter(channel_id, replicas=("n1", "n2", "n9"))), UnknownNode)


def test_replicas_are_at_most_twice_the_factor_while_they_move() -> None:
    cluster = Cluster("n1", "n2", "n3")
    channel_id = cluster.create("n1", config=ChannelConfig(factor=1))
    assert isinstance(cluster.refused(cluster.alter(channel_id, replicas=("n1", "n2", "n3"))), InvalidChange)
    cluster.take(cluster.alter(channel_id, replicas=("n1", "n2")))


def test_a_pinned_channel_gets_new_replicas_on_pinned_nodes_only() -> None:
    cluster = Cluster("n1", "n2", "n3", "n4")
    pinned = ChannelConfig(placement=Placement.PINNED, pinned_nodes=("n1", "n2"))
    channel_id = cluster.create("n1", "n2", config=pinned)
    assert isinstance(cluster.refused(cluster.alter(channel_id, replicas=("n1", "n2", "n3"))), InvalidChange)
    moved = replace(pinned, pinned_nodes=("n1", "n3"))
    cluster.take(cluster.alter(channel_id, config=moved, replicas=("n1", "n2", "n3")))


def test_r5_a_stronger_fsync_counts_for_a_member_once_it_is_confirmed() -> None:
    cluster = Cluster("n1", "n2")
    weak = ChannelConfig(factor=2, fsync=FsyncPolicy.NEVER)
    channel_id = cluster.create("n1", "n2", config=weak)
    strong = replace(weak, fsync=FsyncPolicy.ALWAYS)
    cluster.take(cluster.alter(channel_id, config=strong))
    cluster.take(cluster.expand(channel_id, "n2"))
    assert [member.keeps for member in cluster.channel(channel_id).isr] == [Keeps.WRITTEN, Keeps.SYNCED]
    cluster.restart("n1")
    cluster.restart("n2")
    assert cluster.catalog.doubtful(channel_id) == ("n1",), "n1 may have records from before that were never synced"


def test_r5_a_weaker_fsync_counts_at_once_and_is_not_forgotten() -> None:
    cluster = Cluster("n1", "n2")
    channel_id = cluster.create("n1", "n2")
    cluster.take(cluster.alter(channel_id, config=ChannelConfig(fsync=FsyncPolicy.INTERVAL)))
    cluster.take(cluster.alter(channel_id, config=ChannelConfig()))
    cluster.restart("n2")
    assert cluster.catalog.doubtful(channel_id) == ("n2",)


def test_pausing_resuming_and_making_read_only() -> None:
    cluster, channel_id = three()

    def at() -> dict[str, int]:
        return {"channel_id": channel_id, "expected_channel_epoch": cluster.channel(channel_id).channel_epoch}

    assert isinstance(cluster.refused(ResumeChannel(**at())), NothingToChange)
    cluster.take(PauseChannel(**at()))
    assert isinstance(cluster.refused(PauseChannel(**at())), NothingToChange)
    cluster.fence("n1")
    cluster.take(ResumeChannel(**at()))
    channel = cluster.channel(channel_id)
    assert (channel.paused, channel.leader_epoch) == (False, 2), "R1: its log was closed"
    assert not cluster.catalog.has_live_leader(channel)
    assert isinstance(cluster.refused(SetReadonly(**at(), readonly=False)), NothingToChange)
    cluster.take(SetReadonly(**at(), readonly=True))
    assert cluster.channel(channel_id).readonly


# --- deletion ----------------------------------------------------------------------------------------------


def test_c9_a_deleted_channel_leaves_a_tombstone_and_its_id_is_never_used_again() -> None:
    cluster, channel_id = three()
    cluster.take(DeleteChannel(channel_id=channel_id, expected_channel_epoch=1, at_ms=77))
    assert cluster.catalog.channel(channel_id) is None
    assert cluster.catalog.was_deleted(channel_id)
    assert not cluster.catalog.was_deleted(channel_id + 1), "not known is not deleted"
    (stone,) = cluster.catalog.tombstones()
    assert (stone.channel_id, stone.name, stone.deleted_at_ms) == (channel_id, "spray", 77)
    assert cluster.create("n1", "n2", "n3") == channel_id + 1
    assert cluster.channel(channel_id + 1).leader_epoch == 1
    error = cluster.refused(DeleteChannel(channel_id=channel_id, expected_channel_epoch=1, at_ms=1))
    assert isinstance(error, UnknownChannel)
    assert "deleted" in str(error)


def test_c9_a_refused_creation_uses_up_no_id() -> None:
    cluster, channel_id = three()
    cluster.refused(Batch(changes=(creation("b"), creation("b"))))
    assert cluster.create("n1", name="c") == channel_id + 1


def test_c12_old_tombstones_make_room_and_their_ids_stay_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.core.catalog.channel_rules.TOMBSTONES_MAX", 2)
    cluster = Cluster("n1")
    for name in "abc":
        channel_id = cluster.create("n1", name=name)
        cluster.take(DeleteChannel(channel_id=channel_id, expected_channel_epoch=1, at_ms=0))
    assert [stone.name for stone in cluster.catalog.tombstones()] == ["b", "c"]
    assert cluster.catalog.was_deleted(1)


# --- batches -----------------------------------------------------------------------------------------------


def test_c1_a_batch_fences_elects_and_shrinks_at_once() -> None:
    cluster, channel_id = three()
    shrink = cluster.shrink(channel_id, "n1", reason=ShrinkReason.FENCED)
    applied = cluster.take(
        Batch(
            changes=(
                FenceNode(node="n1", expected_incarnation=1),
                cluster.elect(channel_id, "n2"),
                replace(shrink, expected_channel_epoch=2),
            )
        )
    )
    assert (applied.touched.nodes, applied.touched.channels) == (("n1",), (channel_id,))
    channel = cluster.channel(channel_id)
    assert (channel.leader, channel.channel_epoch, cluster.isr(channel_id)) == ("n2", 3, ["n2", "n3"])


def test_c1_a_batch_with_one_refusal_has_no_effect_at_all() -> None:
    cluster, channel_id = three()
    batch = Batch(changes=(creation("other"), cluster.elect(channel_id, "n2"), cluster.shrink(channel_id, "n2")))
    assert isinstance(cluster.refused(batch), StaleChannelEpoch)
    assert cluster.catalog.check(batch).position == 2  # type: ignore[union-attr]
    assert cluster.catalog.leader_count("n2") == 0, "indexes are rolled back too"


def test_c12_an_empty_batch_is_refused() -> None:
    assert isinstance(Cluster("n1").refused(Batch(changes=())), InvalidChange)


# --- configs -------------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_seed() -> None:
    config = ChannelConfig()
    assert (config.factor, config.heartbeat_ms, config.replication_budget_fraction) == (3, 500, 0.5)
    assert (config.effective_min_isr, config.skip_threshold_bytes) == (2, 100 * 1024 * 1024)
    assert config.problems() == []


@pytest.mark.parametrize(("factor", "least"), [(1, 1), (2, 1), (3, 2), (16, 2)])
def test_r4_the_minimum_follows_the_effective_factor(factor: int, least: int) -> None:
    assert ChannelConfig(factor=factor).effective_min_isr == least
    nodes = tuple(f"n{number}" for number in range(factor))
    assert ChannelConfig(placement=Placement.PINNED, pinned_nodes=nodes).effective_min_isr == least
    assert ChannelConfig(factor=factor, replicated=False).effective_min_isr == 1


@pytest.mark.parametrize(
    "config",
    [
        ChannelConfig(factor=0),
        ChannelConfig(factor=17),
        ChannelConfig(heartbeat_ms=99),
        ChannelConfig(replication_budget_ppm=0),
        ChannelConfig(replication_budget_ppm=1_000_001),
        ChannelConfig(min_isr=0),
        ChannelConfig(min_isr=4),
        ChannelConfig(skip_threshold_bytes=0),
        ChannelConfig(fsync_interval_ms=0),
        ChannelConfig(retention=ChannelRetention(max_age_ms=0)),
        ChannelConfig(retention=ChannelRetention(max_bytes=0)),
        ChannelConfig(retention=ChannelRetention(max_events=0)),
        ChannelConfig(placement=Placement.PINNED),
        ChannelConfig(placement=Placement.PINNED, pinned_nodes=("n1", "n1")),
        ChannelConfig(placement=Placement.PINNED, pinned_nodes=tuple(f"n{number}" for number in range(17))),
        ChannelConfig(placement=Placement.PINNED, pinned_nodes=("n 1",)),
        ChannelConfig(placement=Placement.PINNED, pinned_nodes=("n1",), leader_pinned="n2"),
        ChannelConfig(placement=Placement.PINNED, pinned_nodes=("n1", "n2"), replicated=False),
        ChannelConfig(pinned_nodes=("n1",)),
        ChannelConfig(leader_pinned=""),
        ChannelConfig(placement=Placement.COLOCATION_STRICT),
        ChannelConfig(placement_metadata=(("metadata.colocate-with", "xyz"),)),
        ChannelConfig(placement_metadata=(("b", ""), ("a", ""))),
        ChannelConfig(placement_metadata=tuple((f"k{number:02}", "") for number in range(17))),
        ChannelConfig(placement_metadata=(("", "value"),)),
        ChannelConfig(placement_metadata=(("key", "\u00e9"),)),
    ],
)
def test_a_config_out_of_its_range_has_exactly_one_problem(config: ChannelConfig) -> None:
    assert len(config.problems()) == 1, config.problems()
    with pytest.raises(InvalidConfig):
        config.validate()


def test_the_limits_of_a_config_are_inside_its_range() -> None:
    chain = (("metadata.colocate-with-strict", "0123456789abcdef"),)
    for config in (
        ChannelConfig(factor=1, heartbeat_ms=100, replication_budget_ppm=1, min_isr=1),
        ChannelConfig(factor=16, heartbeat_ms=2**64 - 1, replication_budget_ppm=1_000_000, min_isr=16),
        ChannelConfig(placement=Placement.COLOCATION_STRICT, placement_metadata=chain),
        ChannelConfig(placement=Placement.PINNED, pinned_nodes=("n1",), leader_pinned="n1", factor=16),
    ):
        config.validate()


def test_a_change_touches_its_own_channel_and_nothing_else() -> None:
    cluster, channel_id = three()
    other = cluster.channel(cluster.create("n1", "n2", "n3", name="other"))
    node = cluster.node("n3")
    cluster.take(cluster.shrink(channel_id, "n3"))
    assert cluster.channel(other.channel_id) is other, "not even a copy"
    assert cluster.node("n3") is node


# --- logs that were there before the catalog ---------------------------------------------------------


def adoption(**fields: Any) -> AdoptChannel:
    change = AdoptChannel(name="old", config=ChannelConfig(factor=3), node="n2", channel_id=40, newest_epoch=6, at_ms=7)
    return replace(change, **fields)


def test_r1_an_adopted_log_keeps_its_id_and_its_leader_begins_above_every_epoch_in_it() -> None:
    cluster, _ = three()
    cluster.take(adoption())
    channel = cluster.channel(40)
    assert (channel.name, channel.leader_epoch, channel.channel_epoch) == ("old", 7, 7)
    assert (channel.replicas, channel.leader, cluster.isr(40)) == (("n2",), "n2", ["n2"])
    cluster.take(creation("next"))
    assert cluster.catalog.channel("next").channel_id == 41  # type: ignore[union-attr]
    assert Catalog.restore(cluster.catalog.snapshot()).digest() == cluster.catalog.digest()


def test_an_adopted_channel_is_joined_by_others_as_any_other() -> None:
    cluster, _ = three()
    cluster.take(adoption())
    channel = cluster.channel(40)
    cluster.take(AlterChannel(channel_id=40, expected_channel_epoch=channel.channel_epoch, replicas=("n2", "n1", "n3")))
    assert cluster.isr(40) == ["n2"], "who joins holds nothing yet"


def test_an_adopted_log_that_was_never_written_begins_with_epoch_1() -> None:
    cluster, _ = three()
    cluster.take(adoption(newest_epoch=0))
    assert cluster.channel(40).leader_epoch == 1


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"channel_id": 1}, "given out already"),
        ({"channel_id": 0}, "given out already"),
        ({"channel_id": 2**64 - 1}, "at most"),
        ({"newest_epoch": 2**64 - 1}, "at most"),
        ({"name": "not a name"}, "not a channel name"),
        ({"config": ChannelConfig(factor=0)}, "factor"),
    ],
)
def test_an_adoption_that_would_break_the_counting_is_refused(fields: dict[str, Any], problem: str) -> None:
    cluster, _ = three()
    refused = cluster.refused(adoption(**fields))
    assert isinstance(refused, InvalidChange)
    assert problem in str(refused)


def test_an_adoption_needs_a_free_name_and_an_active_node() -> None:
    cluster, _ = three()
    assert isinstance(cluster.refused(adoption(name="spray")), ChannelExists)
    assert isinstance(cluster.refused(adoption(node="n9")), UnknownNode)
    cluster.fence("n2")
    assert isinstance(cluster.refused(adoption()), NodeFenced)


# --- fencing a proposal ------------------------------------------------------------------------------


def test_r3_raising_the_channel_epoch_changes_nothing_else_and_fences_what_was_proposed_before() -> None:
    cluster, channel_id = three()
    before = cluster.channel(channel_id)
    pending = ExpandIsr(channel_id=channel_id, expected_channel_epoch=1, member="n3", incarnation=1)
    raising = RaiseChannelEpoch(channel_id=channel_id, expected_channel_epoch=1)
    cluster.take(raising)
    after = cluster.channel(channel_id)
    assert after == replace(before, channel_epoch=2, changed_index=cluster.index)
    assert isinstance(cluster.refused(pending), StaleChannelEpoch)
    assert isinstance(cluster.refused(raising), StaleChannelEpoch), "repeated, it does nothing"
    assert isinstance(cluster.refused(RaiseChannelEpoch(channel_id=9, expected_channel_epoch=1)), UnknownChannel)
