"""Who holds a chain, what is told of channels, and the lag that metrics show: from the catalog and real replicas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.replication.replica_kit import Kit
from tidelog.cluster.metadata.channel_controller import ChannelController
from tidelog.cluster.replication.replicas import Replicas
from tidelog.cluster.status.chain_holders import advertised_chains, find_chain_holders
from tidelog.cluster.status.channel_status import channel_detail, channel_state, channels_page, channels_summary
from tidelog.core.catalog import Catalog, PauseChannel
from tidelog.core.replication.metrics import Lag
from tidelog.core.replication.roles import Cause, Role
from tidelog.errors import WithdrawnByHand


class Distances:
    def __init__(self, **rtt_us: int) -> None:
        self._rtt_us = rtt_us

    def rtt_us(self, a: str, b: str) -> int | None:
        return self._rtt_us.get(f"{a}_{b}")


@dataclass
class Channels:
    replicas: Replicas
    controller: ChannelController


class KitCore:
    """A node's core, as far as this file needs one."""

    def __init__(self, kit: Kit, name: str, *, is_leader: bool = False, **rtt_us: int) -> None:
        self.node = name
        self.is_leader = is_leader
        self.proximity = Distances(**rtt_us)
        self.channels = Channels(kit[name].core, kit.controller)
        self._kit = kit

    @property
    def catalog(self) -> Catalog:
        return self._kit.catalog


def whole(*names: str, **config: Any) -> Kit:
    kit = Kit(*names)
    kit.create(**config)
    kit.write(b"one", b"two")
    kit.run_until(kit.is_whole)
    return kit


def core(kit: Kit, name: str, **more: Any) -> Any:
    return KitCore(kit, name, **more)


# --- holders -------------------------------------------------------------------------------------


def test_holders_are_this_node_then_the_nearest_then_the_unmeasured_by_name() -> None:
    kit = whole("a", "b", "c", "d", "e", factor=5)
    near = core(kit, "c", c_e=100, c_a=900)
    assert find_chain_holders(near, "spray") == ["c", "e", "a", "b", "d"]
    assert find_chain_holders(near, 1) == ["c", "e", "a", "b", "d"]
    assert find_chain_holders(core(kit, "c", c_a=5, c_b=5, c_d=5, c_e=5), "spray") == ["c", "a", "b", "d", "e"]
    assert find_chain_holders(near, "nothing of this name") == []


def test_a_node_without_a_replica_is_no_holder_and_knows_who_is() -> None:
    kit = whole("a", "b", "c", factor=2)
    outside = next(name for name in kit.nodes if name not in kit.record().replicas)
    assert sorted(find_chain_holders(core(kit, outside), "spray")) == sorted(kit.record().replicas)


def test_a_replica_that_goes_idle_withdraws_its_own_channels_tag_at_once() -> None:
    kit = whole("a", "b", "c", leader_pinned="a")
    kit.create("foam", leader_pinned="a")
    kit.write(b"three", channel_id=2)
    kit.run_until(lambda: kit.is_whole(2))
    assert [find_chain_holders(core(kit, "b"), name)[0] for name in ("spray", "foam")] == ["b", "b"]
    kit["b"].replica().withdraw(WithdrawnByHand(channel="spray"), kit.now_ms)
    assert "b" not in find_chain_holders(core(kit, "b"), "spray"), "at once"
    assert "b" in find_chain_holders(core(kit, "b"), "foam"), "the other one stays"
    kit.run(100)
    assert "b" in find_chain_holders(core(kit, "a"), "foam")


def test_a_replica_that_withdrew_is_not_let_in_again_on_what_it_held_before() -> None:
    kit = whole("a", "b", "c", leader_pinned="a", persistent=False)
    kit["b"].replica().withdraw(WithdrawnByHand(channel="spray"), kit.now_ms)
    kit.run(100)
    assert "b" not in kit.record().isr_nodes, "its copy is gone: nobody may be elected on the strength of it"
    assert "b" not in find_chain_holders(core(kit, "a"), "spray")
    kit.write(b"three")
    assert kit["a"].committed() == [b"one", b"two", b"three"]


def test_a_node_that_is_fenced_is_passed_over_before_the_isr_shrinks() -> None:
    kit = whole("a", "b", "c", leader_pinned="a")
    kit.controller_on = False
    kit.fence("c")
    assert "c" in kit.record().isr_nodes
    assert find_chain_holders(core(kit, "b"), "spray") == ["b", "a"]


def test_nobody_holds_a_paused_channel() -> None:
    kit = whole("a", "b")
    kit.take(PauseChannel(channel_id=1, expected_channel_epoch=kit.record().channel_epoch))
    assert find_chain_holders(core(kit, "a"), "spray") == []


def test_the_metadata_leader_is_told_how_many_chains_everybody_advertises() -> None:
    kit = whole("a", "b", "c")
    for node in kit.nodes.values():
        kit.controller.loads[node.name] = node.core.load_report()
    assert advertised_chains(core(kit, "a", is_leader=True)) == {"a": 1, "b": 1, "c": 1}
    assert advertised_chains(core(kit, "a")) == {}


# --- what is told of channels ----------------------------------------------------------------------


def test_the_state_of_a_channel_is_the_worst_that_holds() -> None:
    kit = whole("a", "b", "c", leader_pinned="a", min_isr=2)
    assert channel_state(kit.catalog, kit.record()) == "ok"
    kit.stop("c")
    assert channel_state(kit.catalog, kit.record()) == "under_replicated"
    kit.stop("b")
    assert channel_state(kit.catalog, kit.record()) == "below_min_isr"
    counts = channels_summary(core(kit, "a"))
    assert (counts["total"], counts["under_replicated"], counts["below_min_isr"], counts["leaderless"]) == (1, 1, 1, 0)
    assert (counts["here"], counts["led"], counts["advertised"]) == (1, 1, 1)
    kit.stop("a")
    assert channel_state(kit.catalog, kit.record()) == "leaderless"
    assert channels_summary(core(kit, "b"))["leaderless"] == 1


def test_a_paused_channel_is_paused_and_nothing_worse() -> None:
    kit = whole("a", "b")
    kit.take(PauseChannel(channel_id=1, expected_channel_epoch=kit.record().channel_epoch))
    assert channel_state(kit.catalog, kit.record()) == "paused"
    counts = channels_summary(core(kit, "a"))
    assert (counts["paused"], counts["leaderless"], counts["under_replicated"]) == (1, 0, 0)


def test_pages_go_on_by_name_and_hold_every_channel_once() -> None:
    kit = Kit("a", "b")
    names = sorted(f"c{number:02}" for number in range(7))
    for name in reversed(names):
        kit.create(name, factor=2)
    view, seen, after = core(kit, "a"), [], ""
    while True:
        page = channels_page(view, after=after, limit=3)
        assert len(page["channels"]) <= 3
        seen += [line["name"] for line in page["channels"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert seen == names


def test_one_channel_is_told_with_this_nodes_own_replica() -> None:
    kit = whole("a", "b", "c", leader_pinned="a", factor=3)
    found = channel_detail(core(kit, "b"), "spray", now_ms=kit.now_ms)
    assert found is not None
    assert (found["leader"], found["state"], found["tag"]) == ("a", "ok", "causal:0000000000000001")
    assert found["holders"][0] == "b"
    assert (found["here"]["role"], found["here"]["committed_end"], found["here"]["lag_records"]) == ("replica", 3, 0)
    assert found["here"]["leader_silence_ms"] >= 0
    led = channel_detail(core(kit, "a"), "spray", now_ms=kit.now_ms)
    assert led is not None
    assert (led["here"]["role"], led["here"]["leader_silence_ms"]) == ("leader", None)
    assert channel_detail(core(kit, "a"), "foam", now_ms=kit.now_ms) is None


# --- lag -------------------------------------------------------------------------------------------


def lag(kit: Kit, name: str) -> Lag | None:
    kit[name].core.observe(kit.now_ms)
    return kit[name].counts().lag


def test_lag_is_absent_until_somebody_looks() -> None:
    kit = whole("a", "b", "c")
    assert kit["a"].counts().lag is None
    assert lag(kit, "a") is not None


def test_the_leaders_lag_is_the_longest_silence_of_a_replica() -> None:
    kit = whole("a", "b", "c", leader_pinned="a")
    kit.run(100)
    shown = lag(kit, "a")
    assert shown is not None
    assert (shown.role, shown.records, shown.byte_count) == ("leader", 0, 0)
    assert shown.silence_us < 1_000_000
    before_ms = kit.now_ms
    kit.controller_on = False
    kit.isolate("c")
    kit.run(3_000)
    shown = lag(kit, "a")
    assert shown is not None
    assert 2_900_000 <= shown.silence_us <= (kit.now_ms - before_ms + 1_000) * 1_000


def test_lag_in_records_and_bytes_grows_with_what_a_replica_lacks_and_ends_with_it() -> None:
    kit = whole("a", "b", "c", leader_pinned="a")
    kit.isolate("c")
    kit.write(*(b"%d" % number for number in range(20)))
    shown = lag(kit, "a")
    assert shown is not None
    assert shown.records == 20
    assert shown.byte_count > 20 * 100, "a block has a head"
    kit.heal()
    kit.run_until(kit.is_whole)
    shown = lag(kit, "a")
    assert shown is not None
    assert (shown.records, shown.byte_count) == (0, 0)


def test_a_replicas_lag_is_the_silence_of_its_leader() -> None:
    kit = whole("a", "b", "c", leader_pinned="a")
    kit.run(100)
    kit.controller_on = False
    kit["a"].kill()
    kit.run(3_000)
    shown = lag(kit, "b")
    assert shown is not None
    assert shown.role == "replica", "a candidate is a replica without its leader"
    assert shown.silence_us >= 2_900_000


def test_a_role_that_ended_shows_no_lag() -> None:
    kit = whole("a", "b", "c", leader_pinned="a")
    assert lag(kit, "c") is not None
    kit["c"].replica().withdraw(WithdrawnByHand(channel="spray"), kit.now_ms)
    assert lag(kit, "c") is None
    text = kit["c"].core.metrics.snapshot().prometheus_text()
    assert "dataforts_replication_lag_seconds{" not in text
    assert 'dataforts_replication_sync_bytes_total{channel="spray"}' in text


# --- stepping down -----------------------------------------------------------------------------------


def test_a_leader_that_steps_down_is_idle_then_a_replica_and_never_leads_in_that_epoch_again() -> None:
    kit = whole("a", "b", "c")
    leader = kit.leader()
    epoch = kit.record().leader_epoch
    leader.replica().relinquish("by hand", kit.now_ms)
    assert leader.replica().role is Role.REPLICA
    kit.run_until(lambda: kit.record().leader_epoch > epoch and bool(kit.leading()), ms=5_000)
    lines = [line for line in leader.lines if "role channel=spray" in line]
    assert any(f"was=leader now=idle cause={Cause.GRACEFUL_RELINQUISH.value}" in line for line in lines), lines
    assert kit.record().leader != leader.name
    kit.write(b"three")
    kit.run_until(kit.is_whole)
    kit.check()


def test_a_leader_without_anybody_else_leads_again_in_an_epoch_of_its_own() -> None:
    kit = whole("a", factor=1)
    epoch = kit.record().leader_epoch
    kit["a"].replica().relinquish("by hand", kit.now_ms)
    kit.run_until(lambda: kit.record().leader_epoch > epoch and kit.leading() == ["a"], ms=5_000)
    kit.write(b"three")
    assert kit["a"].committed() == [b"one", b"two", b"three"]
