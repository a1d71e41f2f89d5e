"""The catalog against a deliberately dumb second model, change by change, in any order (C1, C2, C3, C9, C10, C14).

The model keeps sets and counters and knows nothing of trust, which `test_catalog_world` is about. It says beforehand
whether a change must be refused (a stale epoch, a wrong state, a node that is not active) and afterwards what exactly
an accepted one has changed. A second catalog applies the same changes and is replaced by its own snapshot after every
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.core.catalog_kit import registration
from tidelog.core.catalog import (
    AdmitNode,
    Applied,
    Batch,
    Catalog,
    Change,
    ChangeLeader,
    ChannelConfig,
    CreateChannel,
    DeleteChannel,
    ExpandIsr,
    FenceNode,
    PauseChannel,
    RemoveNode,
    ResumeChannel,
    SetReadonly,
    ShrinkIsr,
    ShrinkReason,
    decode_change,
    encode_change,
)

NODES = ("n1", "n2", "n3", "n4")
NAMES = ("a", "b", "A")
PICK = st.integers(0, 7)
NODE = st.sampled_from(NODES)
STALE = st.sampled_from([0, 0, 0, 0, 1])


@dataclass
class DumbNode:
    state: str
    incarnation: int


@dataclass
class DumbChannel:
    name: str
    replicas: list[str]
    leader: str | None
    isr: set[str]
    epoch: int = 1
    leader_epoch: int = 1
    paused: bool = False
    readonly: bool = False


class CatalogAgainstModel(RuleBasedStateMachine):
    @initialize(count=st.integers(0, 4))
    def start(self, count: int) -> None:
        self.catalog = Catalog()
        self.twin = Catalog()
        self.index = 0
        self.nodes: dict[str, DumbNode] = {}
        self.channels: dict[int, DumbChannel] = {}
        self.ids_given = 0
        self.ever: dict[int, str] = {}
        for node in NODES[:count]:
            self.admit(node)
            self.register(node, 1)

    def apply(self, change: Change) -> Applied:
        self.index += 1
        checked = self.catalog.check(change)
        applied = self.catalog.apply(self.index, change)
        same = self.twin.apply(self.index, decode_change(encode_change(change)))
        assert str(same.refusal) == str(applied.refusal) == str(checked)
        assert same.touched == applied.touched
        self.twin = Catalog.restore(self.twin.snapshot())
        return applied

    def lands(self, change: Change) -> bool:
        return self.apply(change).refusal is None

    def active(self, node: str) -> bool:
        return node in self.nodes and self.nodes[node].state == "active"

    # --- nodes -----------------------------------------------------------------------------------------

    @rule(node=NODE)
    def admit(self, node: str) -> None:
        known = self.nodes.get(node)
        fits = known is None or known.state == "removed"
        assert self.lands(AdmitNode(node=node)) is fits
        if fits:
            self.nodes[node] = DumbNode("expected", known.incarnation if known else 0)

    @rule(node=NODE, rise=st.integers(0, 2))
    def register(self, node: str, rise: int) -> None:
        known = self.nodes.get(node)
        incarnation = max((known.incarnation if known else 0) + rise, 1)
        fits = known is not None and known.state != "removed" and incarnation > known.incarnation
        assert self.lands(registration(node, incarnation)) is fits
        if known is not None and fits:
            self.nodes[node] = DumbNode("active", incarnation)

    @rule(node=NODE, stale=STALE)
    def fence(self, node: str, stale: int) -> None:
        known = self.nodes.get(node)
        expected = (known.incarnation if known else 0) + stale
        fits = self.active(node) and not stale
        assert self.lands(FenceNode(node=node, expected_incarnation=expected)) is fits
        if known is not None and fits:
            known.state = "fenced"

    @rule(node=NODE, force=st.booleans())
    def remove(self, node: str, force: bool) -> None:
        known = self.nodes.get(node)
        there = known is not None and known.state != "removed"
        leads = any(channel.leader == node for channel in self.channels.values())
        landed = self.lands(RemoveNode(node=node, force=force))
        assert landed is there if force else not landed or (there and not leads)
        if known is not None and landed:
            known.state = "removed"

    # --- channels --------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), replicas=st.lists(NODE, min_size=1, max_size=3, unique=True))
    def create(self, name: str, replicas: list[str]) -> None:
        taken = any(channel.name.lower() == name.lower() for channel in self.channels.values())
        fits = not taken and all(map(self.active, replicas))
        change = CreateChannel(
            name=name, config=ChannelConfig(), replicas=tuple(replicas), leader=replicas[-1], at_ms=self.index
        )
        applied = self.apply(change)
        assert (applied.refusal is None) is fits
        if fits:
            self.ids_given += 1
            assert applied.touched.channels == (self.ids_given,), "C9: ids come from a counter and are never reused"
            self.ever[self.ids_given] = name
            self.channels[self.ids_given] = DumbChannel(name, replicas, replicas[-1], set(replicas))

    def pick(self, number: int, stale: int) -> tuple[int, DumbChannel, dict[str, Any]]:
        """A channel, and where a change for it is aimed."""
        channel_id = sorted(self.channels)[number % len(self.channels)]
        channel = self.channels[channel_id]
        return channel_id, channel, {"channel_id": channel_id, "expected_channel_epoch": channel.epoch - stale}

    def settle(self, landed: bool, stale: int, channel: DumbChannel) -> bool:
        assert not (landed and stale), "C2: a change for an older epoch landed"
        channel.epoch += landed
        return landed

    @precondition(lambda self: self.channels)
    @rule(number=PICK, stale=STALE, node=st.none() | NODE)
    def elect(self, number: int, stale: int, node: str | None) -> None:
        _, channel, at = self.pick(number, stale)
        incarnation = self.nodes[node].incarnation if node in self.nodes else 0
        landed = self.lands(ChangeLeader(**at, leader=node, incarnation=incarnation, at_ms=0))
        if node is not None:
            assert not landed or (self.active(node) and node in channel.replicas), "C4"
        if self.settle(landed, stale, channel):
            channel.leader_epoch += 1
            channel.leader = node
            if node is not None and node not in channel.isr:
                channel.isr = {node}

    @precondition(lambda self: self.channels)
    @rule(number=PICK, stale=STALE, members=st.lists(NODE, min_size=1, max_size=2, unique=True))
    def shrink(self, number: int, stale: int, members: list[str]) -> None:
        _, channel, at = self.pick(number, stale)
        landed = self.lands(ShrinkIsr(**at, members=tuple(members), reason=ShrinkReason.LAGGING))
        possible = channel.isr > set(members) and channel.leader not in members
        assert not landed or possible, "C3"
        if self.settle(landed, stale, channel):
            channel.isr -= set(members)

    @precondition(lambda self: self.channels)
    @rule(number=PICK, stale=STALE, member=NODE, off=STALE)
    def expand(self, number: int, stale: int, member: str, off: int) -> None:
        _, channel, at = self.pick(number, stale)
        incarnation = self.nodes[member].incarnation + off if member in self.nodes else 1
        landed = self.lands(ExpandIsr(**at, member=member, incarnation=incarnation))
        possible = self.active(member) and not off and member in channel.replicas and channel.leader is not None
        assert not landed or possible, "C4"
        if self.settle(landed, stale, channel):
            channel.isr.add(member)

    @precondition(lambda self: self.channels)
    @rule(number=PICK, stale=STALE, pause=st.booleans())
    def pause_or_resume(self, number: int, stale: int, pause: bool) -> None:
        _, channel, at = self.pick(number, stale)
        landed = self.lands(PauseChannel(**at) if pause else ResumeChannel(**at))
        assert landed is (not stale and channel.paused is not pause)
        if self.settle(landed, stale, channel):
            channel.paused = pause
            channel.leader_epoch += not pause and channel.leader is not None

    @precondition(lambda self: self.channels)
    @rule(number=PICK, stale=STALE, readonly=st.booleans())
    def make_readonly(self, number: int, stale: int, readonly: bool) -> None:
        _, channel, at = self.pick(number, stale)
        landed = self.lands(SetReadonly(**at, readonly=readonly))
        assert landed is (not stale and channel.readonly is not readonly)
        if self.settle(landed, stale, channel):
            channel.readonly = readonly

    @precondition(lambda self: self.channels)
    @rule(number=PICK, stale=STALE)
    def delete(self, number: int, stale: int) -> None:
        channel_id, _, at = self.pick(number, stale)
        assert self.lands(DeleteChannel(**at, at_ms=0)) is not bool(stale)
        if not stale:
            del self.channels[channel_id]

    @precondition(lambda self: self.channels)
    @rule(number=PICK)
    def race(self, number: int) -> None:
        """Two changes were decided on one epoch: the first that fits lands, the second never does."""
        _, channel, at = self.pick(number, 0)
        assert self.lands(SetReadonly(**at, readonly=not channel.readonly))
        assert not self.lands(SetReadonly(**at, readonly=channel.readonly))
        channel.readonly = not channel.readonly
        channel.epoch += 1

    @precondition(lambda self: self.channels)
    @rule(number=PICK, node=NODE)
    def batch_that_fails(self, number: int, node: str) -> None:
        """Whatever comes before it in the batch, a stale change takes all of it back."""
        _, channel, at = self.pick(number, 0)
        first: Any = SetReadonly(**at, readonly=not channel.readonly)
        before = self.catalog.snapshot()
        assert not self.lands(Batch(changes=(first, AdmitNode(node="n9"), first)))
        undone = Catalog.restore(before)
        undone.advance(self.index)
        assert undone.snapshot() == self.catalog.snapshot()

    # --- what holds after every change --------------------------------------------------------------------

    @invariant()
    def both_catalogs_are_the_same_bytes(self) -> None:
        assert self.catalog.snapshot() == self.twin.snapshot()
        assert self.catalog.digest() == self.twin.digest()
        assert self.catalog.contradictions() == []

    @invariant()
    def the_catalog_is_what_the_model_says(self) -> None:
        for name, node in self.nodes.items():
            record = self.catalog.node(name)
            assert record is not None
            assert (record.state.value, record.incarnation) == (node.state, node.incarnation)
        assert [channel.channel_id for channel in self.catalog.channels()] == sorted(self.channels)
        for channel_id, channel in self.channels.items():
            found = self.catalog.channel(channel_id)
            assert found is not None
            assert found == self.catalog.channel(channel.name)
            assert (found.channel_epoch, found.leader_epoch) == (channel.epoch, channel.leader_epoch)
            assert (found.leader, set(found.isr_nodes)) == (channel.leader, channel.isr)
            assert (found.paused, found.readonly) == (channel.paused, channel.readonly)
            assert list(found.replicas) == channel.replicas
            assert found.leader is None or found.leader in found.isr_nodes
        for channel_id in range(self.ids_given + 3):
            assert self.catalog.was_deleted(channel_id) is (channel_id in self.ever and channel_id not in self.channels)

    @invariant()
    def the_indexes_say_what_the_tables_say(self) -> None:
        for node in NODES:
            led = [channel_id for channel_id, channel in self.channels.items() if channel.leader == node]
            assert self.catalog.leader_count(node) == len(led)
            placed = [channel_id for channel_id, channel in self.channels.items() if node in channel.replicas]
            assert [channel.channel_id for channel in self.catalog.channels_on(node)] == sorted(placed)


TestCatalogAgainstModel = CatalogAgainstModel.TestCase
TestCatalogAgainstModel.settings = settings(max_examples=150, stateful_step_count=40)
