"""Where replicas go, why not elsewhere, and how they move until nodes carry alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.core.catalog.channel_config import ChannelConfig, Keeps, Placement
from tidelog.core.catalog.records import ChannelRecord, Member, NodeRecord, NodeState
from tidelog.core.replication.placement import (
    Move,
    MoveLeader,
    NodeLoad,
    PlacedReplicas,
    RttUs,
    chain_id,
    chain_text,
    choose_replicas,
    plan_rebalance,
    preview,
)
from tidelog.errors import PlacementRefused

GB = 10**9
CHAIN = "00000000000000ab"


def count_load(channels: Iterable[ChannelRecord]) -> dict[str, tuple[int, int]]:
    """(replicas, leaders) by node."""
    held: Counter[str] = Counter()
    led: Counter[str] = Counter()
    for channel in channels:
        held.update(channel.replicas)
        if channel.leader is not None:
            led[channel.leader] += 1
    return {node: (held[node], led[node]) for node in sorted(held | led)}


def node(
    name: str, host: str | None = None, state: NodeState = NodeState.ACTIVE, tags: Sequence[str] = ()
) -> NodeRecord:
    return NodeRecord(
        node=name, state=state, incarnation=1, host=f"h-{name}" if host is None else host, tags=tuple(sorted(tags))
    )


def nodes(count: int) -> list[NodeRecord]:
    return [node(f"n{number}") for number in range(1, count + 1)]


def unknown(_one: str, _other: str) -> int | None:
    return None


def choose(
    records: Sequence[NodeRecord],
    *,
    loads: Mapping[str, NodeLoad] | None = None,
    rtt_us: RttUs = unknown,
    keep: Sequence[str] = (),
    leader: str | None = None,
    avoid: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
    **settings: Any,
) -> PlacedReplicas:
    config = ChannelConfig(placement_metadata=tuple(sorted((metadata or {}).items())), **settings)
    assert config.problems() == []
    return choose_replicas(
        channel="c",
        config=config,
        nodes=records,
        loads=loads or {},
        rtt_us=rtt_us,
        keep=keep,
        leader=leader,
        avoid=avoid,
    )


# --- standard ------------------------------------------------------------------------------------------


def test_standard_takes_as_many_as_the_factor_and_ties_go_to_the_smaller_ids() -> None:
    """RedEX: factor 2 of 3 picks the two lowest ids, the third stays idle."""
    placed = choose(nodes(3)[::-1], factor=2)
    assert placed.nodes == ("n1", "n2")
    assert placed.wanted == 2
    assert placed.refused == {}
    assert list(placed.reasons) == ["n1", "n2"]


def test_fewer_nodes_than_the_factor_are_all_taken() -> None:
    placed = choose(nodes(2), factor=3)
    assert placed.nodes == ("n1", "n2")
    assert placed.wanted == 3


@pytest.mark.parametrize("state", [NodeState.FENCED, NodeState.EXPECTED, NodeState.REMOVED])
def test_only_active_nodes_are_taken_and_the_others_are_told_why(state: NodeState) -> None:
    placed = choose([node("n1", state=state), node("n2")])
    assert placed.nodes == ("n2",)
    assert placed.refused == {"n1": f"n1 is {state.value}"}


def test_without_a_candidate_placement_is_refused_with_a_reason_for_each_node() -> None:
    with pytest.raises(PlacementRefused) as caught:
        choose(
            [node("n1", state=NodeState.FENCED), node("n2"), node("n3")],
            loads={"n3": NodeLoad(free_bytes=0, capacity_bytes=GB)},
            avoid={"n2": "withdrew from it: its disk is full"},
        )
    assert caught.value.problems == ["n1 is fenced", "n2 withdrew from it: its disk is full", "n3 has no free disk"]
    assert "n1 is fenced" in str(caught.value)
    assert caught.value.retriable


def test_an_empty_cluster_is_refused_in_words() -> None:
    with pytest.raises(PlacementRefused) as caught:
        choose([])
    assert caught.value.problems == ["there are no nodes"]


def test_a_channel_that_is_not_replicated_has_one_node() -> None:
    assert choose(nodes(3), replicated=False).nodes == ("n1",)


def test_replicas_go_to_different_hosts_before_any_score() -> None:
    records = [node("n1", "a"), node("n2", "a"), node("n3", "a"), node("n4", "b")]
    loads = {"n4": NodeLoad(replicas=1_000, free_bytes=1, capacity_bytes=GB)}
    loads |= {name: NodeLoad(free_bytes=10**13, capacity_bytes=10**13) for name in ("n1", "n2", "n3")}
    assert choose(records, loads=loads, factor=2).nodes == ("n1", "n4")
    assert choose(records, loads=loads, factor=3).nodes == ("n1", "n4", "n2")


def test_more_replicas_than_hosts_are_spread_evenly() -> None:
    records = [node(f"n{number}", "a" if number <= 4 else "b") for number in range(1, 7)]
    placed = choose(records, factor=4)
    assert sum(name in ("n5", "n6") for name in placed.nodes) == 2


def test_nodes_without_a_host_are_hosts_of_their_own() -> None:
    records = [node("n1", "n2"), node("n2", ""), node("n3", "")]
    assert len(choose(records, factor=3).nodes) == 3
    records = [node("n1", "a"), node("n2", "a"), node("n3", ""), node("n4", "")]
    assert choose(records, factor=3).nodes == ("n1", "n3", "n4")


def test_nodes_that_hold_fewer_replicas_come_first() -> None:
    loads = {"n1": NodeLoad(replicas=9), "n2": NodeLoad(replicas=7), "n3": NodeLoad(replicas=8)}
    assert choose(nodes(3), loads=loads, factor=2).nodes == ("n2", "n3")


def test_many_new_channels_end_up_evenly() -> None:
    counts = {f"n{number}": 0 for number in range(1, 6)}
    for _ in range(100):
        loads = {name: NodeLoad(replicas=count) for name, count in counts.items()}
        for name in choose(nodes(5), loads=loads).nodes:
            counts[name] += 1
    assert set(counts.values()) == {60}


def test_free_disk_draws_replicas() -> None:
    loads = {
        "n1": NodeLoad(free_bytes=10 * GB, capacity_bytes=1_000 * GB),
        "n2": NodeLoad(free_bytes=900 * GB, capacity_bytes=1_000 * GB),
    }
    assert choose(nodes(2), loads=loads, factor=1).nodes == ("n2",)
    assert choose(nodes(2), loads=loads, factor=1, persistent=False).nodes == ("n1",), "memory needs no disk"


def test_a_node_is_not_chosen_for_saying_nothing() -> None:
    loads = {
        "n2": NodeLoad(free_bytes=900 * GB, capacity_bytes=1_000 * GB),
        "n3": NodeLoad(free_bytes=10 * GB, capacity_bytes=1_000 * GB),
    }
    assert choose(nodes(3), loads=loads).nodes == ("n2", "n1", "n3")


def test_near_nodes_are_taken_together() -> None:
    distance = {frozenset(("n1", "n2")): 80_000, frozenset(("n1", "n3")): 2_000}

    def rtt_us(one: str, other: str) -> int | None:
        return distance.get(frozenset((one, other)))

    assert choose(nodes(3), rtt_us=rtt_us, factor=2).nodes == ("n1", "n3")


def test_distances_below_a_millisecond_are_noise() -> None:
    def rtt_us(one: str, other: str) -> int | None:
        return 999 if "n2" in (one, other) else 1

    assert choose(nodes(3), rtt_us=rtt_us, factor=2).nodes == ("n1", "n2")


def test_an_unmeasured_distance_counts_as_the_furthest() -> None:
    def rtt_us(one: str, other: str) -> int | None:
        return 5_000 if "n2" in (one, other) else None

    assert choose(nodes(3), rtt_us=rtt_us, factor=2).nodes == ("n1", "n2"), "equal, so the id decides"


def test_a_scope_is_a_condition_and_any_of_several_is_enough() -> None:
    records = [node("n1"), node("n2", tags=["scope:eu"]), node("n3", tags=["scope:us", "other"])]
    placed = choose(records, metadata={"scope:eu": ""})
    assert placed.nodes == ("n2",)
    assert placed.refused["n3"] == "n3 has none of the scopes scope:eu"
    assert choose(records, metadata={"scope:eu": "", "scope:us": ""}).nodes == ("n2", "n3")


def test_an_intent_draws_and_does_not_exclude() -> None:
    records = [node("n1"), node("n2"), node("n3", tags=["intent:telemetry"])]
    assert choose(records, metadata={"metadata.intent": "telemetry"}, factor=2).nodes == ("n3", "n1")


def test_colocation_draws_and_does_not_exclude() -> None:
    loads = {"n1": NodeLoad(), "n2": NodeLoad(), "n3": NodeLoad(chains={0xAB})}
    assert choose(nodes(3), loads=loads, metadata={"metadata.colocate-with": CHAIN}, factor=2).nodes == ("n3", "n1")


def test_a_strict_key_excludes_under_standard_placement_too() -> None:
    loads = {"n2": NodeLoad(chains={0xAB})}
    placed = choose(nodes(2), loads=loads, metadata={"metadata.colocate-with-strict": CHAIN})
    assert placed.nodes == ("n2",)


def test_the_pinned_leader_gets_a_replica_wherever_it_can_have_one() -> None:
    placed = choose(nodes(3), factor=2, leader_pinned="n3")
    assert placed.nodes == ("n3", "n1")
    placed = choose([*nodes(2), node("n3", state=NodeState.FENCED)], factor=2, leader_pinned="n3")
    assert placed.nodes == ("n1", "n2")


# --- strict colocation and pins ------------------------------------------------------------------------


def strict(records: Sequence[NodeRecord], loads: Mapping[str, NodeLoad], **settings: Any) -> PlacedReplicas:
    return choose(
        records,
        loads=loads,
        placement=Placement.COLOCATION_STRICT,
        metadata={"metadata.colocate-with-strict": CHAIN},
        **settings,
    )


def test_strict_colocation_takes_holders_only_even_if_the_factor_is_larger() -> None:
    placed = strict(nodes(3), {"n1": NodeLoad(chains={0xAB}), "n3": NodeLoad(chains={0xAB, 1})}, factor=3)
    assert placed.nodes == ("n1", "n3")
    assert placed.refused == {"n2": f"n2 does not hold all records of chain {CHAIN}"}


def test_strict_colocation_without_holders_is_refused_in_words() -> None:
    with pytest.raises(PlacementRefused) as caught:
        strict(
            [*nodes(3), node("n4", state=NodeState.FENCED)],
            {"n2": NodeLoad(partial={0xAB: (3, 10)}), "n3": NodeLoad(chains={1})},
        )
    assert caught.value.problems == [
        f"n1 does not hold all records of chain {CHAIN}",
        f"n2 holds 3 of 10 records of chain {CHAIN}, and all are needed",
        f"n3 does not hold all records of chain {CHAIN}",
        "n4 is fenced",
    ]


def test_a_chain_is_written_as_16_hex_digits() -> None:
    assert chain_text(0xAB) == CHAIN
    assert chain_id(CHAIN) == 0xAB


def test_pinned_is_the_literal_list_in_its_order() -> None:
    placed = choose(nodes(4), placement=Placement.PINNED, pinned_nodes=("n4", "n2"), metadata={"scope:eu": ""})
    assert placed.nodes == ("n4", "n2")
    assert placed.wanted == 2


def test_a_pinned_node_that_cannot_is_refused_in_words() -> None:
    with pytest.raises(PlacementRefused) as caught:
        choose(
            [node("n1"), node("n2", state=NodeState.FENCED)],
            placement=Placement.PINNED,
            pinned_nodes=("n1", "n2", "n9"),
        )
    assert caught.value.problems == ["n2 is fenced", "there is no node n9"]


def test_a_pinned_node_that_holds_a_replica_may_be_away() -> None:
    records = [node("n1"), node("n2", state=NodeState.FENCED)]
    placed = choose(records, placement=Placement.PINNED, pinned_nodes=("n1", "n2"), keep=["n2"])
    assert placed.nodes == ("n1", "n2")


# --- replicas that are there already -------------------------------------------------------------------


def test_lost_replicas_are_replaced_and_the_others_stay_in_their_order() -> None:
    records = [*nodes(2), node("n3", state=NodeState.REMOVED), node("n4", "h-n1"), node("n5")]
    placed = choose(records, keep=["n2", "n1"])
    assert placed.nodes == ("n2", "n1", "n5"), "n4 is on the host of n1"


def test_a_kept_replica_may_be_away_for_a_while() -> None:
    placed = choose([node("n1"), node("n2", state=NodeState.FENCED), node("n3")], keep=["n2"], factor=2)
    assert placed.nodes == ("n2", "n1")
    assert placed.refused == {}


def test_a_smaller_factor_keeps_the_leader_and_the_hosts() -> None:
    records = [node("n1", "a"), node("n2", "a"), node("n3", "b")]
    assert set(choose(records, keep=["n1", "n2", "n3"], leader="n2", factor=2).nodes) == {"n2", "n3"}


def test_a_smaller_factor_lets_those_go_first_that_are_away() -> None:
    records = [node("n1", state=NodeState.FENCED), node("n2"), node("n3")]
    assert choose(records, keep=["n1", "n2", "n3"], leader="n2", factor=2).nodes == ("n2", "n3")
    records = [node("n1", state=NodeState.FENCED), node("n2", state=NodeState.FENCED), node("n3")]
    assert choose(records, keep=["n1", "n2", "n3"], leader="n3", factor=2).nodes == ("n3", "n1")


@given(
    hosts=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    active=st.lists(st.booleans(), min_size=8, max_size=8),
    replicas=st.lists(st.integers(0, 20), min_size=8, max_size=8),
    factor=st.integers(1, 6),
    seed=st.randoms(use_true_random=False),
)
def test_standard_always_uses_as_many_hosts_as_it_can(
    hosts: list[int], active: list[bool], replicas: list[int], factor: int, seed: Any
) -> None:
    """PL1, PL2, PL4."""
    records = [
        node(f"n{number}", f"h{host}", NodeState.ACTIVE if active[number] else NodeState.FENCED)
        for number, host in enumerate(hosts)
    ]
    loads = {record.node: NodeLoad(replicas=replicas[number]) for number, record in enumerate(records)}
    ready = [record for record in records if record.state is NodeState.ACTIVE]
    if not ready:
        with pytest.raises(PlacementRefused):
            choose(records, loads=loads, factor=factor)
        return
    placed = choose(records, loads=loads, factor=factor)
    shuffled = list(records)
    seed.shuffle(shuffled)
    assert choose(shuffled, loads=loads, factor=factor) == placed
    by_name = {record.node: record for record in records}
    assert len(placed.nodes) == len(set(placed.nodes)) == min(factor, len(ready))
    used = {by_name[name].host for name in placed.nodes}
    assert len(used) == min(factor, len({record.host for record in ready}))
    assert set(placed.refused) == {record.node for record in records} - {record.node for record in ready}


# --- rebalancing ---------------------------------------------------------------------------------------


def channel(
    channel_id: int, *replicas: str, leader: str | None = None, isr: Sequence[str] | None = None, **settings: Any
) -> ChannelRecord:
    paused = settings.pop("paused", False)
    config = ChannelConfig(**({"factor": len(replicas)} | settings))
    return ChannelRecord(
        channel_id=channel_id,
        name=f"c{channel_id}",
        config=config,
        replicas=replicas,
        leader=leader or replicas[0],
        leader_incarnation=1,
        isr=tuple(Member(node=name, incarnation=1, keeps=Keeps.SYNCED) for name in (replicas if isr is None else isr)),
        eligible=(),
        leader_epoch=1,
        channel_epoch=1,
        paused=paused,
        readonly=False,
        created_index=1,
        created_at_ms=0,
        changed_index=1,
    )


def plan(channels: Sequence[ChannelRecord], records: Sequence[NodeRecord], **settings: Any) -> list[Move | MoveLeader]:
    return plan_rebalance(channels=channels, nodes=records, loads=settings.pop("loads", {}), **settings)


def test_a_balanced_cluster_gives_no_moves() -> None:
    channels = [
        channel(1, "n1", "n2", leader="n1"),
        channel(2, "n2", "n3", leader="n2"),
        channel(3, "n3", "n1", leader="n3"),
    ]
    assert plan(channels, nodes(3)) == []
    assert plan([], nodes(3)) == []
    assert plan([], []) == []


def test_a_new_node_is_filled() -> None:
    channels = [channel(number, "n1", "n2", leader=f"n{1 + number % 2}") for number in range(1, 13)]
    steps = plan(channels, nodes(3))
    after = count_load(preview(channels, steps))
    assert after == {"n1": (8, 4), "n2": (8, 4), "n3": (8, 4)}
    assert sum(isinstance(step, Move) for step in steps) == 8, "as few moves as it takes"
    assert plan(preview(channels, steps), nodes(3)) == []


def test_a_replica_that_does_not_lead_is_moved_first() -> None:
    channels = [channel(1, "n1"), channel(2, "n1", "n2", leader="n2"), channel(3, "n1", "n2", leader="n1")]
    steps = plan(channels, [*nodes(2), node("n3", "h-n1")])
    assert steps[0] == Move(channel_id=2, add="n3", remove="n1")


def test_a_leader_that_is_alone_moves_with_its_replica() -> None:
    channels = [channel(1, "n1"), channel(2, "n1")]
    steps = plan(channels, nodes(2))
    assert steps == [Move(channel_id=1, add="n2", remove="n1")]
    assert count_load(preview(channels, steps)) == {"n1": (1, 1), "n2": (1, 1)}


def test_leaders_are_evened_out_without_moving_replicas() -> None:
    channels = [channel(number, "n1", "n2", "n3", leader="n1") for number in range(1, 7)]
    steps = plan(channels, nodes(3))
    assert all(isinstance(step, MoveLeader) for step in steps)
    assert len(steps) == 4
    assert {led for _, led in count_load(preview(channels, steps)).values()} == {2}


def test_leaders_go_by_way_of_a_third_node_where_there_is_no_direct_one() -> None:
    """n1 leads two and shares channels with n2 only, n2 shares one with n3: both pass one on."""
    channels = [
        channel(1, "n1", "n2", leader="n1", placement=Placement.PINNED, pinned_nodes=("n1", "n2")),
        channel(2, "n1", "n2", leader="n1", placement=Placement.PINNED, pinned_nodes=("n1", "n2")),
        channel(3, "n2", "n3", leader="n2", placement=Placement.PINNED, pinned_nodes=("n2", "n3")),
    ]
    steps = plan(channels, nodes(3))
    assert steps == [MoveLeader(channel_id=1, to="n2"), MoveLeader(channel_id=3, to="n3")]


def test_a_leader_goes_only_where_the_records_are() -> None:
    channels = [channel(number, "n1", "n2", leader="n1", isr=["n1"]) for number in range(1, 5)]
    assert plan(channels, nodes(2)) == []


def test_pinned_replicas_and_pinned_leaders_stay() -> None:
    pinned = [channel(number, "n1", placement=Placement.PINNED, pinned_nodes=("n1",)) for number in range(1, 5)]
    leading = [channel(number, "n1", "n2", leader="n1", leader_pinned="n1") for number in range(5, 9)]
    steps = plan([*pinned, *leading], nodes(3))
    assert all(isinstance(step, Move) and step.remove == "n2" for step in steps)


def test_paused_and_leaderless_channels_and_those_on_the_way_stay() -> None:
    channels = [
        channel(1, "n1", paused=True),
        channel(2, "n1", "n9", leader="n9"),
        channel(3, "n1", "n4", leader="n1", factor=1),
        channel(4, "n1", paused=True),
    ]
    assert plan(channels, [*nodes(2), node("n4")]) == []


def test_fenced_nodes_neither_give_nor_take() -> None:
    channels = [channel(number, "n1", "n3", leader="n1") for number in range(1, 5)]
    steps = plan(channels, [*nodes(2), node("n3", state=NodeState.FENCED)])
    assert steps
    assert all(isinstance(step, Move) and (step.remove, step.add) == ("n1", "n2") for step in steps)


def test_two_replicas_on_one_host_are_parted_whatever_the_counts() -> None:
    records = [node("n1", "a"), node("n2", "a"), node("n3", "b")]
    others = [channel(number, "n3") for number in range(10, 15)]
    steps = plan([channel(1, "n1", "n2", leader="n1"), *others], records)
    assert Move(channel_id=1, add="n3", remove="n2") in steps


def test_evening_out_never_puts_two_replicas_on_one_host() -> None:
    records = [node("n1", "a"), node("n2", "a"), node("n3", "b")]
    channels = [channel(number, "n1", "n3", leader="n1") for number in range(1, 7)]
    steps = plan(channels, records)
    assert steps
    assert all(step.remove != "n3" for step in steps if isinstance(step, Move))


def test_replicas_are_not_moved_where_they_could_not_be_placed() -> None:
    records = [node("n1", tags=["scope:eu"]), node("n2")]
    scoped = [channel(number, "n1", placement_metadata=(("scope:eu", ""),)) for number in range(1, 5)]
    assert plan(scoped, records) == []
    strict = [
        channel(number, "n1", placement_metadata=(("metadata.colocate-with-strict", CHAIN),)) for number in range(1, 5)
    ]
    held = {"n1": NodeLoad(chains={0xAB})}
    assert plan(strict, records, loads=held) == []
    assert len(plan(strict, records, loads=held | {"n2": NodeLoad(chains={0xAB})})) == 2


def test_replicas_are_not_moved_to_where_they_are_preferred_less() -> None:
    records = [node("n1", tags=["intent:x"]), node("n2")]
    channels = [channel(number, "n1", placement_metadata=(("metadata.intent", "x"),)) for number in range(1, 5)]
    assert plan(channels, records) == []


def test_a_way_that_a_move_has_opened_is_used() -> None:
    """While n0 gives to n2, nothing there can go on to n3. Then channel 1 comes from n1, and can."""
    records = [
        node("n0", tags=["scope:d"]),
        node("n1", tags=["scope:a", "scope:b"]),
        node("n2", tags=["scope:a", "scope:b", "scope:d"]),
        node("n3", tags=["scope:a"]),
        node("n4"),  # can take nothing, so that no search ends early
    ]

    def scoped(first: int, count: int, name: str, scope: str) -> list[ChannelRecord]:
        return [channel(number, name, placement_metadata=((scope, ""),)) for number in range(first, first + count)]

    def pinned(first: int, count: int, name: str) -> list[ChannelRecord]:
        return [
            channel(number, name, placement=Placement.PINNED, pinned_nodes=(name,))
            for number in range(first, first + count)
        ]

    channels = [*scoped(1, 1, "n1", "scope:a"), *scoped(2, 10, "n1", "scope:b"), *scoped(101, 12, "n0", "scope:d")]
    channels += [*pinned(201, 1, "n2"), *pinned(301, 5, "n3")]
    steps = plan(channels, records)
    after = preview(channels, steps)
    assert Move(channel_id=1, add="n3", remove="n1") in steps, "once, and not by way of n2"
    assert sorted(held for held, _ in count_load(after).values()) == [6, 7, 8, 8]
    assert plan(after, records) == []


def test_a_plan_is_bounded_and_parts_of_it_lead_to_the_whole() -> None:
    channels = [channel(number, "n1", "n2", leader="n1") for number in range(1, 41)]
    rounds = 0
    while steps := plan(channels, nodes(4), moves_max=5):
        assert len(steps) <= 5
        channels = preview(channels, steps)
        rounds += 1
        assert rounds < 30
    assert set(count_load(channels).values()) == {(20, 10)}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[ChannelRecord], list[NodeRecord], dict[str, NodeLoad]]:
    count = draw(st.integers(1, 6))
    names = [f"n{number}" for number in range(count)]
    records = [
        node(
            name,
            draw(st.sampled_from(["", "a", "b", "c"])),
            draw(st.sampled_from([NodeState.ACTIVE, NodeState.ACTIVE, NodeState.ACTIVE, NodeState.FENCED])),
            draw(st.sampled_from([[], ["scope:eu"], ["intent:x"], ["intent:x", "scope:eu"]])),
        )
        for name in names
    ]
    loads = {name: NodeLoad(chains=draw(st.sampled_from([frozenset(), frozenset({0xAB})]))) for name in names}
    channels = []
    for channel_id in range(1, draw(st.integers(0, 14)) + 1):
        replicas = draw(st.lists(st.sampled_from(names), min_size=1, max_size=min(4, count), unique=True))
        leader = draw(st.sampled_from(replicas))
        isr = [name for name in replicas if name == leader or draw(st.booleans())]
        settings: dict[str, Any] = draw(
            st.sampled_from(
                [
                    {},
                    {},
                    {"leader_pinned": replicas[0]},
                    {"placement": Placement.PINNED, "pinned_nodes": tuple(replicas)},
                    {"placement_metadata": (("scope:eu", ""),)},
                    {"placement_metadata": (("metadata.intent", "x"),)},
                    {"placement_metadata": (("metadata.colocate-with", CHAIN),)},
                    {"paused": True},
                    {"factor": 1},
                ]
            )
        )
        channels.append(channel(channel_id, *replicas, leader=leader, isr=isr, **settings))
    return channels, records, loads


def host_count(record: ChannelRecord, records: Sequence[NodeRecord]) -> int:
    hosts = {item.node: item.host or f"of {item.node} alone" for item in records}
    return len({hosts[name] for name in record.replicas})


@given(cluster=clusters())
@settings(max_examples=100, deadline=None)
def test_a_whole_plan_leaves_nothing_to_plan_and_harms_no_channel(
    cluster: tuple[list[ChannelRecord], list[NodeRecord], dict[str, NodeLoad]],
) -> None:
    """PL5, PL6."""
    channels, records, loads = cluster
    active = {record.node for record in records if record.state is NodeState.ACTIVE}
    steps = plan(channels, records, loads=loads)
    assert steps == plan(channels[::-1], records[::-1], loads=loads), "PL1"
    now = {item.channel_id: item for item in channels}
    for step in steps:
        before = now[step.channel_id]
        assert not before.paused
        if isinstance(step, MoveLeader):
            assert step.to in before.replicas
            assert step.to in active
            assert before.leader not in (step.to, before.config.leader_pinned)
        else:
            assert step.remove in before.replicas
            assert step.add not in before.replicas
            assert {step.add, step.remove} <= active
            assert before.config.placement is not Placement.PINNED
            assert step.remove != before.config.leader_pinned
        now = {item.channel_id: item for item in preview(now.values(), [step])}
    after = list(now.values())
    for old, new in zip(channels, after, strict=True):
        assert len(new.replicas) == len(set(new.replicas)) == len(old.replicas)
        assert new.leader in new.replicas
        assert host_count(new, records) >= host_count(old, records)
    assert plan(after, records, loads=loads) == [], "PL6"


@given(cluster=clusters())
@settings(max_examples=100, deadline=None)
def test_a_plan_never_makes_the_counts_less_even_when_hosts_are_as_they_should_be(
    cluster: tuple[list[ChannelRecord], list[NodeRecord], dict[str, NodeLoad]],
) -> None:
    channels, records, loads = cluster
    records = [node(record.node, "", record.state, record.tags) for record in records]
    active = {record.node for record in records if record.state is NodeState.ACTIVE}

    def unevenness(items: list[ChannelRecord], which: int) -> int:
        counts = count_load(items)
        return sum(counts.get(name, (0, 0))[which] ** 2 for name in active)

    after = preview(channels, plan(channels, records, loads=loads))
    assert unevenness(after, 0) <= unevenness(channels, 0)
