"""Administration of channels: placed, compared and set, allowed or denied; against a real catalog."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import pytest

from tests.core.catalog_kit import Cluster
from tidelog.cluster.clients.access import ClientAccess
from tidelog.cluster.clients.channel_admin import BATCH_CHANNELS, ChannelAdministration
from tidelog.codecs.client_codec import (
    ALTER,
    CREATE,
    OPEN_PRODUCER,
    REBALANCE,
    decode_json,
    encode_answer,
    encode_error_answer,
)
from tidelog.core.catalog import (
    AddGrant,
    Batch,
    Catalog,
    Change,
    ChannelConfig,
    ChannelRecord,
    CreateChannel,
    DeleteChannel,
    OpenProducer,
    SetReadonly,
)
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.replication.placement import NodeLoad
from tidelog.errors import (
    AccessDenied,
    BadMessage,
    InvalidConfig,
    LogError,
    NotElectable,
    NotInReplicas,
    NotLeader,
    PeerUnreachable,
    PlacementRefused,
    ProducerOwned,
    StaleChannelEpoch,
    UnknownChannel,
    WaitTimedOut,
)

ANNA = "operator:anna"
PLOTTER = "client:plotter"
T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class Distances:
    """Milliseconds between nodes; unknown where nothing is said."""

    def __init__(self) -> None:
        self.medians: dict[str, int] = {}

    def rtt_us(self, a: str, b: str, /) -> int | None:
        return None

    def median_rtt_us(self, candidate: str, others: Sequence[str], /) -> int | None:
        return self.medians.get(candidate)


class Metadata:
    """A node that leads the metadata, or knows who does."""

    def __init__(self, *nodes: str) -> None:
        self.cluster = Cluster(*nodes)
        self.proximity = Distances()
        self.is_metadata_leader = True
        self.proposed: list[Change] = []
        self.meanwhile: list[Callable[[], object]] = []
        """What others do before the next proposals land, one each."""
        self.fails: list[LogError] = []
        """What the next proposals end with."""
        self.leader: Callable[[int, bytes], Coroutine[Any, Any, bytes]] | None = None
        self.waited: list[int] = []

    @property
    def catalog(self) -> Catalog:
        return self.cluster.catalog

    def node_loads(self) -> Mapping[str, NodeLoad]:
        return {
            node.node: NodeLoad(
                replicas=self.catalog.replica_count(node.node), leaders=self.catalog.leader_count(node.node)
            )
            for node in self.catalog.nodes()
        }

    def wall_ms(self) -> int:
        return 7_000

    async def propose(self, change: Change, *, timeout_ms: int) -> int:
        await asyncio.sleep(0)
        self.proposed.append(change)
        if self.fails:
            raise self.fails.pop(0)
        if self.meanwhile:
            self.meanwhile.pop(0)()
        applied = self.cluster.apply(change)
        applied.raise_refusal()
        return applied.index

    async def ask_node(self, node: str | None, kind: int, body: bytes, *, timeout_ms: int) -> memoryview:
        if self.leader is None:
            raise NotLeader(leader=None)
        return memoryview(await self.leader(kind, body))

    async def wait_applied(self, index: int, *, timeout_ms: int) -> None:
        self.waited.append(index)


def admin_of(
    node: Metadata, *, insecure_dev: bool = False, seed: int = 1, limits: ReplicationOptions | None = None
) -> ChannelAdministration:
    access = ClientAccess(catalog=lambda: node.catalog, now_ms=lambda: 0, insecure_dev=insecure_dev)
    # The part of `LocalChannels` that administration needs.
    return ChannelAdministration(node, access=access, rng=random.Random(seed), limits=limits)  # type: ignore[arg-type]


class Desk:
    """A node, its administration, and shorthands for what is asked."""

    def __init__(self, *nodes: str, **options: Any) -> None:
        self.node = Metadata(*nodes)
        self.admin = admin_of(self.node, **options)

    def ask(self, kind: int, request: dict[str, Any], principal: str = ANNA) -> dict[str, Any]:
        found = run(self.admin.ask(kind, request, principal=principal, timeout_ms=2_000))
        json.dumps(found)
        return found

    def create(self, name: str = "bus", principal: str = ANNA, **config: Any) -> dict[str, Any]:
        result: dict[str, Any] = self.ask(CREATE, {"channels": [{"name": name, "config": config}]}, principal)[
            "results"
        ][0]
        return result

    def alter(self, operation: str, principal: str = ANNA, channel: str = "bus", **more: Any) -> dict[str, Any]:
        return self.ask(ALTER, {"channel": channel, "op": operation, **more}, principal)

    def channel(self, name: str = "bus") -> ChannelRecord:
        channel = self.node.catalog.channel(name)
        assert channel is not None
        return channel


@pytest.fixture
def desk() -> Desk:
    return Desk("n1", "n2", "n3", "n4")


# --- creation ----------------------------------------------------------------------------------------


def test_a_new_channel_is_placed_and_led_by_one_of_its_replicas(desk: Desk) -> None:
    result = desk.create(factor=3)
    channel = desk.channel()
    assert result == {"channel_id": channel.channel_id, "existed": False}
    assert len(channel.replicas) == 3
    assert channel.leader in channel.replicas
    assert channel.created_at_ms == 7_000


def test_the_first_leader_is_drawn_unless_it_is_pinned(desk: Desk) -> None:
    names = [f"c{number}" for number in range(60)]
    desk.ask(CREATE, {"channels": [{"name": name, "config": {}} for name in names]})
    leaders = Counter(desk.channel(name).leader for name in names)
    assert len(leaders) == 4
    desk.create("pinned", leader_pinned="n4")
    assert desk.channel("pinned").leader == "n4"


def test_channels_of_one_request_are_spread_over_the_nodes(desk: Desk) -> None:
    desk.ask(CREATE, {"channels": [{"name": f"c{number}", "config": {"factor": 2}} for number in range(40)]})
    counts = {node: desk.node.catalog.replica_count(node) for node in ("n1", "n2", "n3", "n4")}
    assert sum(counts.values()) == 80
    assert max(counts.values()) - min(counts.values()) <= 1


def test_many_channels_cost_few_changes_of_the_catalog(desk: Desk) -> None:
    desk.ask(CREATE, {"channels": [{"name": f"c{number}", "config": {}} for number in range(2 * BATCH_CHANNELS)]})
    assert [type(change) for change in desk.node.proposed] == [Batch, Batch]


def test_creating_it_again_is_answered_with_the_one_that_is_there(desk: Desk) -> None:
    first = desk.create(factor=2)
    assert desk.create(factor=2) == {**first, "existed": True}
    assert len(desk.node.proposed) == 1


def test_creating_it_with_another_config_says_what_differs(desk: Desk) -> None:
    desk.create(factor=2)
    error = desk.create(factor=3)["error"]
    assert (error["code"], error["fields"]) == ("config_mismatch", {"channel": "bus", "setting": "factor"})


def test_each_channel_of_a_request_has_its_own_answer(desk: Desk) -> None:
    wanted = [
        {"name": "good", "config": {}},
        {"name": "bad name", "config": {}},
        {"name": "wrong", "config": {"factor": 99, "heartbeat_ms": 1}},
        {"name": "unknown", "config": {"speed": 1}},
        {"name": "nowhere", "config": {"placement": "pinned", "pinned_nodes": ["n9"]}},
        {"name": "also-good", "config": {}},
    ]
    results = desk.ask(CREATE, {"channels": wanted})["results"]
    codes = [result["error"]["code"] if "error" in result else None for result in results]
    assert codes == [None, "invalid_change", "invalid_config", "invalid_config", "placement_refused", None]
    assert len(results[2]["error"]["fields"]["problems"]) == 2


def test_two_that_create_the_same_channel_both_get_it(desk: Desk) -> None:
    def other() -> None:
        desk.node.cluster.create("n1", "n2", "n3", name="bus")

    desk.node.meanwhile.append(other)
    assert desk.create() == {"channel_id": desk.channel().channel_id, "existed": True}


def test_a_batch_that_may_have_happened_is_not_proposed_again(desk: Desk) -> None:
    desk.node.fails.append(WaitTimedOut(waiting_for="the commit", deadline_s=5))
    results = desk.ask(CREATE, {"channels": [{"name": name, "config": {}} for name in ("a", "b")]})["results"]
    assert [(result["error"]["code"], result["error"]["definite"]) for result in results] == [
        ("wait_timed_out", False)
    ] * 2
    assert len(desk.node.proposed) == 1


def test_a_channel_that_is_not_replicated_has_one_replica(desk: Desk) -> None:
    desk.create(replicated=False)
    assert len(desk.channel().replicas) == 1


@pytest.mark.parametrize("request_", [{}, {"channels": []}, {"channels": [{"name": 1}]}, {"channels": [[]]}])
def test_a_create_request_that_makes_no_sense_is_refused(desk: Desk, request_: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        desk.ask(CREATE, request_)


# --- compare and set ---------------------------------------------------------------------------------


def test_a_change_is_decided_anew_when_the_channel_moved_on(desk: Desk) -> None:
    desk.create()

    def other() -> None:
        channel = desk.channel()
        desk.node.cluster.take(
            SetReadonly(channel_id=channel.channel_id, expected_channel_epoch=channel.channel_epoch, readonly=True)
        )

    desk.node.meanwhile.append(other)
    answer = desk.alter("pause")
    assert (answer["changed"], answer["channel"]["paused"], answer["channel"]["readonly"]) == (True, True, True)


def test_a_change_for_an_epoch_that_is_gone_is_refused(desk: Desk) -> None:
    desk.create()
    epoch = desk.channel().channel_epoch
    assert desk.alter("readonly", expected_channel_epoch=epoch)["changed"]
    with pytest.raises(StaleChannelEpoch):
        desk.alter("writable", expected_channel_epoch=epoch)
    assert desk.channel().readonly


def test_a_change_is_not_made_on_another_channel_of_the_same_name(desk: Desk) -> None:
    desk.create()

    def deleted_and_made_again() -> None:
        channel = desk.channel()
        desk.node.cluster.take(
            DeleteChannel(channel_id=channel.channel_id, expected_channel_epoch=channel.channel_epoch, at_ms=1)
        )
        desk.node.cluster.create("n1", "n2", "n3", name="bus")

    desk.node.meanwhile.append(deleted_and_made_again)
    with pytest.raises(UnknownChannel):
        desk.alter("delete")
    assert desk.channel().channel_epoch == 1


@pytest.mark.parametrize("operation", ["pause", "readonly"])
def test_asking_twice_is_harmless(desk: Desk, operation: str) -> None:
    desk.create()
    assert desk.alter(operation)["changed"]
    assert not desk.alter(operation)["changed"]
    back = {"pause": "resume", "readonly": "writable"}[operation]
    assert desk.alter(back)["changed"]
    assert not desk.alter(back)["changed"]


def test_a_deleted_channel_is_gone(desk: Desk) -> None:
    desk.create()
    answer = desk.alter("delete")
    assert (answer["channel"], answer["changed"]) == (None, True)
    with pytest.raises(UnknownChannel):
        desk.alter("delete")


# --- settings and replicas -----------------------------------------------------------------------------


def test_only_the_settings_that_are_named_change(desk: Desk) -> None:
    desk.create(factor=2, retention={"max_age_ms": 5, "max_bytes": 6})
    answer = desk.alter("alter", config={"retention": {"max_age_ms": None}, "leader_pinned": "n1"})
    config = answer["channel"]["config"]
    assert config["retention"] == {"max_age_ms": None, "max_bytes": 6, "max_events": None}
    assert (config["factor"], config["leader_pinned"]) == (2, "n1")
    assert not desk.alter("alter", config={"factor": 2})["changed"]


def test_a_larger_factor_adds_replicas_and_keeps_those_there_are(desk: Desk) -> None:
    desk.create(factor=2)
    before = desk.channel()
    desk.alter("alter", config={"factor": 4})
    assert desk.channel().replicas[:2] == before.replicas
    assert len(desk.channel().replicas) == 4
    assert desk.channel().isr == before.isr


def test_a_smaller_factor_puts_those_that_leave_last(desk: Desk) -> None:
    desk.create(factor=4)
    before = desk.channel()
    desk.alter("alter", config={"factor": 2})
    after = desk.channel()
    assert set(after.replicas) == set(before.replicas)
    assert after.leader in after.replicas[:2]


def test_replicas_that_are_named_come_first_and_the_others_leave_later(desk: Desk) -> None:
    desk.create(placement="pinned", pinned_nodes=["n1", "n2"])
    desk.alter("alter", config={"pinned_nodes": ["n3", "n4"]})
    assert desk.channel().replicas == ("n3", "n4", "n1", "n2")
    assert desk.channel().isr_nodes == ("n1", "n2"), "nothing is let go before the others have caught up"


def test_explicit_replicas_must_be_as_many_as_the_factor(desk: Desk) -> None:
    desk.create(factor=2)
    with pytest.raises(InvalidConfig):
        desk.alter("alter", replicas=["n1", "n2", "n3"])
    desk.alter("alter", replicas=["n3", "n4"])
    assert desk.channel().replicas[:2] == ("n3", "n4")


def test_all_problems_of_a_config_are_told_at_once(desk: Desk) -> None:
    desk.create()
    with pytest.raises(InvalidConfig) as caught:
        desk.alter("alter", config={"factor": 0, "heartbeat_ms": 1})
    assert len(caught.value.problems) == 2


def test_a_placement_that_cannot_be_says_why(desk: Desk) -> None:
    desk.create()
    with pytest.raises(PlacementRefused, match="n9"):
        desk.alter("alter", config={"placement": "pinned", "pinned_nodes": ["n9"]})


# --- elections -----------------------------------------------------------------------------------------


def test_an_operator_moves_leadership_to_a_replica(desk: Desk) -> None:
    desk.create(placement="pinned", pinned_nodes=["n1", "n2", "n3"], leader_pinned="n1")
    answer = desk.alter("elect", leader="n2")
    assert (answer["channel"]["leader"], answer["channel"]["leader_epoch"]) == ("n2", 2)
    assert not desk.alter("elect", leader="n2")["changed"]
    with pytest.raises(NotInReplicas):
        desk.alter("elect", leader="n4")


def test_without_a_name_the_nearest_leads(desk: Desk) -> None:
    desk.create(placement="pinned", pinned_nodes=["n1", "n2", "n3"])
    desk.node.proximity.medians = {"n1": 900, "n2": 400, "n3": 700}
    desk.alter("elect")
    assert desk.channel().leader == "n2"


def test_nobody_is_elected_when_nobody_can_lead(desk: Desk) -> None:
    desk.create(placement="pinned", pinned_nodes=["n1"])
    desk.node.cluster.fence("n1")
    with pytest.raises(NotElectable, match="n1"):
        desk.alter("elect")


def lost_channel(desk: Desk) -> None:
    """Its only holder is gone, and n2 has an old copy."""
    desk.create(placement="pinned", pinned_nodes=["n1", "n2"], min_isr=1, leader_pinned="n1")
    cluster = desk.node.cluster
    cluster.take(cluster.shrink(desk.channel().channel_id, "n2"))
    cluster.fence("n1")


def test_an_election_with_loss_is_an_operators_and_is_recorded(desk: Desk) -> None:
    lost_channel(desk)
    with pytest.raises(NotElectable):
        desk.alter("elect", leader="n2")
    with pytest.raises(BadMessage):
        desk.alter("elect", unclean=True)
    answer = desk.alter("elect", leader="n2", unclean=True, operator="somebody else")
    (unclean,) = answer["channel"]["unclean"]
    assert (unclean["leader"], unclean["operator"]) == ("n2", ANNA), "the certificate counts, not what is said"


def test_no_grant_lets_a_client_elect_with_loss(desk: Desk) -> None:
    lost_channel(desk)
    desk.node.cluster.take(AddGrant(principal=PLOTTER, scope="admin:channels", channels="*"))
    with pytest.raises(AccessDenied):
        desk.alter("elect", PLOTTER, leader="n2", unclean=True)
    assert desk.channel().unclean == ()


def test_an_election_with_loss_is_refused_while_somebody_can_lead(desk: Desk) -> None:
    desk.create(placement="pinned", pinned_nodes=["n1", "n2"], leader_pinned="n1")
    with pytest.raises(NotElectable):
        desk.alter("elect", leader="n2", unclean=True)


def test_the_leader_is_named_so_that_its_log_counts(desk: Desk) -> None:
    """What a follower that knows more than its leader says first: `elect NAME LEADER --unclean` (FW6)."""
    desk.create(placement="pinned", pinned_nodes=["n1", "n2", "n3"], leader_pinned="n1")
    assert not desk.alter("elect", leader="n1")["changed"], "without --unclean there is nothing to do"
    answer = desk.alter("elect", leader="n1", unclean=True)
    assert answer["changed"]
    assert (answer["channel"]["leader"], answer["channel"]["isr"]) == ("n1", ["n1"])
    assert answer["channel"]["leader_epoch"] == 2, "the followers learn of it by the epoch"
    assert [unclean["operator"] for unclean in answer["channel"]["unclean"]] == [ANNA]


def leaderless(desk: Desk) -> None:
    """The power of the whole site went; n1 and n2 are back, and the cluster has elected nobody yet."""
    desk.create(placement="pinned", pinned_nodes=["n1", "n2", "n3"], leader_pinned="n1")
    cluster = desk.node.cluster
    cluster.fence("n1", "n2", "n3")
    for node in ("n1", "n2"):
        cluster.restart(node)
    assert desk.channel().leader is None or not cluster.catalog.has_live_leader(desk.channel())


def test_a_candidate_whose_log_was_not_compared_leads_only_by_name_and_with_loss(desk: Desk) -> None:
    leaderless(desk)
    requests: tuple[dict[str, str], ...] = ({"leader": "n2"}, {})
    for named in requests:
        with pytest.raises(NotElectable, match=r"has not been compared .* elect it with --unclean"):
            desk.alter("elect", **named)
    assert desk.channel().unclean == ()
    answer = desk.alter("elect", leader="n2", unclean=True)
    assert (answer["channel"]["leader"], answer["channel"]["isr"]) == ("n2", ["n2"])
    assert [unclean["operator"] for unclean in answer["channel"]["unclean"]] == [ANNA]


def test_an_eligible_replica_whose_log_was_not_compared_leads_no_sooner(desk: Desk) -> None:
    """It counts as whole by the catalog, for its node syncs every append; its disk may have lied all the same."""
    desk.create(placement="pinned", pinned_nodes=["n1", "n2"], leader_pinned="n1", min_isr=2)
    cluster = desk.node.cluster
    cluster.take(cluster.shrink(desk.channel().channel_id, "n2"))
    assert cluster.eligible(desk.channel().channel_id) == ["n2"]
    cluster.fence("n1", "n2")
    cluster.restart("n2")
    with pytest.raises(NotElectable, match="has not been compared"):
        desk.alter("elect", leader="n2")


def test_an_eligible_replica_that_never_stopped_is_elected_when_the_isr_is_gone(desk: Desk) -> None:
    desk.create(placement="pinned", pinned_nodes=["n1", "n2"], leader_pinned="n1", min_isr=2)
    cluster = desk.node.cluster
    cluster.take(cluster.shrink(desk.channel().channel_id, "n2"))
    cluster.fence("n1")
    answer = desk.alter("elect", leader="n2")
    assert (answer["channel"]["leader"], answer["channel"]["unclean"]) == ("n2", [])


def test_a_leader_is_named_for_elections_only(desk: Desk) -> None:
    desk.create()
    with pytest.raises(BadMessage):
        desk.alter("pause", leader="n1")


# --- producers -----------------------------------------------------------------------------------------


def open_producer(desk: Desk, principal: str = ANNA, name: str = "p") -> tuple[int, int]:
    found = desk.ask(OPEN_PRODUCER, {"channel": "bus", "name": name}, principal)
    return found["producer_id"], found["epoch"]


def test_a_producer_keeps_its_id_and_every_opening_has_an_epoch_of_its_own(desk: Desk) -> None:
    desk.create()
    first, second = open_producer(desk), open_producer(desk)
    assert first[0] == second[0]
    assert (first[1], second[1]) == (1, 2)
    assert open_producer(desk, name="q")[0] != first[0]


def test_two_that_open_a_producer_at_once_never_share_an_epoch(desk: Desk) -> None:
    desk.create()
    open_producer(desk)

    def other() -> None:
        desk.node.cluster.take(
            OpenProducer(channel_id=desk.channel().channel_id, name="p", owner=ANNA, at_ms=1, expected_epoch=1)
        )

    desk.node.meanwhile.append(other)
    assert open_producer(desk)[1] == 3


def test_a_producer_belongs_to_the_principal_that_opened_it(desk: Desk) -> None:
    desk.create()
    desk.node.cluster.take(AddGrant(principal=PLOTTER, scope="write:data", channels="bus"))
    open_producer(desk, PLOTTER)
    with pytest.raises(ProducerOwned):
        open_producer(desk)


def test_opening_a_producer_needs_the_channel(desk: Desk) -> None:
    with pytest.raises(UnknownChannel):
        open_producer(desk)


# --- rebalancing ---------------------------------------------------------------------------------------


def crowded() -> Desk:
    """Everything is on n1 and n2; n3 and n4 came later."""
    desk = Desk("n1", "n2", "n3", "n4")
    for number in range(8):
        desk.node.cluster.create("n1", "n2", name=f"c{number}", config=ChannelConfig(factor=2), leader="n1")
    return desk


def test_a_dry_run_shows_the_moves_and_changes_nothing() -> None:
    desk = crowded()
    before = desk.node.catalog.snapshot()
    answer = desk.ask(REBALANCE, {"dry_run": True})
    assert answer["moves"]
    assert not answer["applied"]
    assert desk.node.catalog.snapshot() == before


def test_a_rebalance_brings_new_replicas_before_old_ones_leave() -> None:
    desk = crowded()
    planned = desk.ask(REBALANCE, {"dry_run": True})["moves"]
    answer = desk.ask(REBALANCE, {})
    assert (answer["moves"], answer["applied"], answer["refused"]) == (planned, True, {})
    added = {(move["channel"], move["add"]) for move in planned if "add" in move}
    assert added
    for name, node in added:
        channel = desk.channel(name)
        assert node in channel.replicas[: channel.config.effective_factor]
        assert set(channel.replicas) >= {"n1", "n2"}
        assert channel.isr_nodes == tuple(node for node in channel.replicas if node in ("n1", "n2"))


def test_a_rebalance_of_some_channels_touches_only_those() -> None:
    desk = crowded()
    before = {f"c{number}": desk.channel(f"c{number}") for number in range(8)}
    desk.ask(REBALANCE, {"channels": ["c0", "c7"]})
    changed = {name for name, channel in before.items() if desk.channel(name) != channel}
    assert changed <= {"c0", "c7"}
    with pytest.raises(UnknownChannel):
        desk.ask(REBALANCE, {"channels": ["c99"]})


def test_what_cannot_be_moved_is_told_and_the_rest_is_moved() -> None:
    desk = crowded()
    moves = desk.ask(REBALANCE, {"dry_run": True})["moves"]
    first = moves[0]["channel"]

    def other() -> None:
        channel = desk.channel(first)
        desk.node.cluster.take(
            SetReadonly(channel_id=channel.channel_id, expected_channel_epoch=channel.channel_epoch, readonly=True)
        )

    desk.node.meanwhile.append(other)
    answer = desk.ask(REBALANCE, {})
    assert list(answer["refused"]) == [first]
    assert answer["refused"][first]["code"] == "stale_channel_epoch"
    assert len(desk.node.proposed) > 1


# --- who may -------------------------------------------------------------------------------------------


def test_without_a_grant_nothing_is_proposed(desk: Desk) -> None:
    desk.create()
    desk.node.proposed.clear()
    assert desk.create("other", PLOTTER)["error"]["code"] == "access_denied"
    for work in (
        lambda: desk.alter("pause", PLOTTER),
        lambda: open_producer(desk, PLOTTER),
        lambda: desk.ask(REBALANCE, {"dry_run": True}, PLOTTER),
    ):
        with pytest.raises(AccessDenied):
            work()
    assert desk.node.proposed == []


def test_a_grant_reaches_as_far_as_its_channels(desk: Desk) -> None:
    desk.node.cluster.take(AddGrant(principal=PLOTTER, scope="admin:channels", channels="charts/*"))
    results = desk.ask(
        CREATE,
        {"channels": [{"name": "charts/a", "config": {}}, {"name": "bus", "config": {}}]},
        PLOTTER,
    )["results"]
    assert "channel_id" in results[0]
    assert results[1]["error"]["code"] == "access_denied"
    assert desk.alter("pause", PLOTTER, "charts/a")["changed"]
    assert "moves" in desk.ask(REBALANCE, {"dry_run": True, "channels": ["charts/a"]}, PLOTTER)
    with pytest.raises(AccessDenied):
        desk.ask(REBALANCE, {"dry_run": True}, PLOTTER)


def test_in_development_everybody_may_everything() -> None:
    desk = Desk("n1", insecure_dev=True)
    assert "channel_id" in desk.create(principal=PLOTTER, factor=1)
    assert open_producer(desk, PLOTTER)[1] == 1


# --- wherever the metadata leader is -----------------------------------------------------------------------


def follower_of(leader: Desk) -> Desk:
    """A node that passes everything on to the leader, over the protocol."""
    follower = Desk()

    async def answer(kind: int, body: bytes) -> bytes:
        try:
            return encode_answer(await leader.admin.carry_out(kind, decode_json(body)))
        except LogError as error:
            return encode_error_answer(error)

    follower.node.is_metadata_leader = False
    follower.node.leader = answer
    return follower


def test_another_node_passes_the_request_on_and_waits_for_the_outcome_to_arrive(desk: Desk) -> None:
    follower = follower_of(desk)
    answer = follower.ask(CREATE, {"channels": [{"name": "bus", "config": {}}]})
    assert answer["results"][0]["channel_id"] == desk.channel().channel_id
    assert follower.node.waited == [answer["index"]]


def test_who_asked_is_passed_on_too(desk: Desk) -> None:
    follower = follower_of(desk)
    desk.create()
    with pytest.raises(AccessDenied) as caught:
        follower.alter("pause", PLOTTER)
    assert caught.value.principal == PLOTTER


def test_a_request_waits_for_a_leader_of_the_metadata(desk: Desk) -> None:
    follower = follower_of(desk)
    answer, tries = follower.node.leader, []
    assert answer is not None

    async def at_first_nobody(kind: int, body: bytes) -> bytes:
        tries.append(kind)
        if len(tries) == 1:
            raise PeerUnreachable(address="h:1", problem="refused")
        if len(tries) == 2:
            return encode_error_answer(NotLeader(leader=None))
        return await answer(kind, body)

    follower.node.leader = at_first_nobody
    assert "channel_id" in follower.create()
    assert len(tries) == 3


def test_what_may_have_happened_is_not_asked_again(desk: Desk) -> None:
    follower = follower_of(desk)
    tries = []

    async def lost(kind: int, body: bytes) -> bytes:
        tries.append(kind)
        raise WaitTimedOut(waiting_for="an answer", deadline_s=1)

    follower.node.leader = lost
    with pytest.raises(WaitTimedOut):
        follower.create()
    assert len(tries) == 1


def test_a_node_that_does_not_lead_carries_nothing_out(desk: Desk) -> None:
    desk.node.is_metadata_leader = False
    with pytest.raises(NotLeader):
        run(desk.admin.carry_out(ALTER, {"for": ANNA, "ask": {"channel": "bus", "op": "pause"}}))
    desk.node.is_metadata_leader = True
    for odd in ({}, {"for": "anna", "ask": {}}, {"for": ANNA, "ask": []}, {"for": ANNA, "ask": {}, "x": 1}):
        with pytest.raises(BadMessage):
            run(desk.admin.carry_out(ALTER, odd))


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"channel": "bus"},
        {"channel": "bus", "op": "explode"},
        {"channel": "bus", "op": []},
        {"channel": 1, "op": "pause"},
        {"channel": "bus", "op": "pause", "unclean": 1},
        {"channel": "bus", "op": "pause", "expected_channel_epoch": -1},
        {"channel": "bus", "op": "elect", "leader": "../n1"},
        {"channel": "bus", "op": "alter", "replicas": ["../n1"]},
        {"channel": "bus", "op": "alter", "replicas": "n1"},
        {"channel": "bus", "op": "pause", "surprise": True},
    ],
)
def test_an_alter_request_that_makes_no_sense_is_refused(desk: Desk, odd: dict[str, Any]) -> None:
    desk.create()
    with pytest.raises(BadMessage):
        desk.ask(ALTER, odd)


def test_a_channel_that_was_created_and_deleted_at_once_is_no_success(desk: Desk) -> None:
    real = desk.node.propose

    async def and_gone(change: Change, *, timeout_ms: int) -> int:
        index = await real(change, timeout_ms=timeout_ms)
        if isinstance(change, CreateChannel):
            channel = desk.channel()
            desk.node.cluster.take(
                DeleteChannel(channel_id=channel.channel_id, expected_channel_epoch=channel.channel_epoch, at_ms=1)
            )
        return index

    desk.node.propose = and_gone  # type: ignore[method-assign]
    assert desk.create()["error"]["code"] == "unknown_channel"
