"""A cluster's nodes, its clients and the links between them: everything that can happen to the metadata, by seed.

The code under test is the production code: a `NodeCore` per node, with its Raft, catalog, sessions and storage, on a
simulated disk and a clock of its own that runs up to 5 % wrong. Nodes boot blank: founding and joining are part of
every run. Checks run after each event; at the end the faults stop, and the cluster must reach a stable state: one
leader, every node registered, every disk a voter, equal catalogs. `tidelog sim metadata --seed N` shows a failure
again.

Counters say how often each thing really happened, so that a run over many seeds in which one never did fails
instead of promising too much.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, TypeAlias

from tidelog.cluster.metadata.member import MetadataOptions
from tidelog.cluster.node.core import NodeOptions
from tidelog.core.catalog import SCOPES, AddGrant, Change, NodeState
from tidelog.core.membership import member_name
from tidelog.core.node_messages import ForMember
from tidelog.core.raft import Members, RaftConfig, SnapshotChunk
from tidelog.sim.metadata.clients import OPEN_MAX, Clients
from tidelog.sim.metadata.model import ClusterBroken, MetadataModel
from tidelog.sim.metadata.node import ClientMessage, SimNode
from tidelog.sim.network import Scheduler
from tidelog.sim.seeds import WorldResult, WorldViolation, run_world

REST_MS: Final = 40_000
"""The time within which the cluster must be stable after the last fault."""
REST_CHECK_MS: Final = 200
FaultTable: TypeAlias = Mapping[str, tuple[int, Callable[[Any, Any], None]]]
"""Faults with their weights; each takes the world and a node."""


@dataclass(slots=True)
class MetadataWeather:
    """The state of the links. Change the fields at any time."""

    delay_ms: int = 1
    jitter_ms: int = 4
    loss: float = 0.0
    twice: float = 0.0
    spike: float = 0.0
    """Chance of a message that is delayed for long, and so overtaken."""
    spike_ms: int = 2_000
    mangled: float = 0.0
    """Chance of a snapshot chunk with wrong bytes: only its checksum shows it."""


class MetadataWorld:
    node_counts: ClassVar[tuple[int, ...]] = (1, 3, 3, 3, 3, 4, 5)

    def __init__(
        self, seed: int, *, nodes: int | None = None, quiet: bool = False, options: NodeOptions | None = None
    ) -> None:
        """`quiet` has even clocks, fast disks and nothing random but the elections: for directed schedules."""
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.scheduler = Scheduler()
        self.counters: Counter[str] = Counter()
        self.model = self._make_model()
        self.model.on_fence = self._on_fence
        self.clients = Clients(self)
        self.last_event = "none"
        self.healed = quiet
        self._after_rest = False
        """The change that was proposed in the stable state went through."""
        self.quiet = quiet
        self.weather = MetadataWeather()
        self.cuts: set[tuple[str, str]] = set()
        """(from, to) where nothing arrives."""
        self.drops: Callable[[str, str, Any], bool] | None = None
        """A directed schedule decides what is lost."""
        self.options = options or self._make_options(rng)
        self.nodes: dict[str, SimNode] = {}
        self.removals: set[str] = set()
        """Nodes that the operator wants to be gone and that may still be members."""
        count = nodes or rng.choice(self.node_counts)
        names = tuple(f"n{number}" for number in range(1, count + 1))
        for name in names:
            self.add_node(name, names)
        if not quiet:
            self.weather = MetadataWeather(jitter_ms=rng.choice((2, 10, 40)))

    @property
    def events(self) -> int:
        return self.scheduler.events

    @property
    def checks(self) -> int:
        return self.model.checks

    def run_seed(self, duration_ms: int, faults: FaultTable, violation: type[WorldViolation]) -> WorldResult:
        return run_world(
            self.seed,
            self,
            lambda: self.run(duration_ms, faults),
            violation=violation,
            clock_ms=lambda: self.scheduler.now_ms,
        )

    def _make_model(self) -> MetadataModel:
        return MetadataModel(self.counters)

    def _make_options(self, rng: random.Random) -> NodeOptions:
        return random_options(rng)

    def _make_node(self, name: str, peers: tuple[str, ...]) -> SimNode:
        return SimNode(self, name, peers, self.options)

    def add_node(self, name: str, peers: tuple[str, ...]) -> SimNode:
        node = self._make_node(name, peers)
        if not self.quiet:
            node.rate = 0.95 + 0.1 * self.rng.random()
            node.offset_ms = self.rng.randrange(1_000_000)
            node.disk_ms = node.disk_usual_ms = self.rng.choice((0, 0, 1, 5, 20))
        self.nodes[name] = node
        return node

    # --- links -------------------------------------------------------------------------------------------

    def send(self, source: SimNode, target: str, message: Any) -> None:
        node = self.nodes.get(target)
        if node is None or node.core is None:
            return
        pair = (source.name, target)
        weather, draw = self.weather, self.rng.random
        lost = (bool(self.cuts) and pair in self.cuts) or (weather.loss and draw() < weather.loss)
        if lost or (self.drops is not None and self.drops(source.name, target, message)):
            self.counters["lost_message"] += 1
            if isinstance(message, ForMember) and isinstance(message.message, SnapshotChunk):
                self.counters["snapshot_chunk_lost"] += 1
            return
        if weather.mangled and draw() < weather.mangled:
            message = self._mangled(message)
        copies = 1
        if weather.twice and draw() < weather.twice:
            copies = 2
            self.counters["duplicated"] += 1
        process, name = node.process, source.name
        for _ in range(copies):
            delay_ms = weather.delay_ms + int(draw() * weather.jitter_ms)
            if weather.spike and draw() < weather.spike:
                delay_ms += int(draw() * weather.spike_ms)
            self.scheduler.after(delay_ms, lambda: node.process == process and node.deliver(name, message))

    def _mangled(self, message: Any) -> Any:
        if not isinstance(message, ForMember) or not isinstance(message.message, SnapshotChunk):
            return message
        chunk = message.message
        if not chunk.data:
            return message
        self.counters["chunk_mangled"] += 1
        data = bytearray(chunk.data)
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        return replace(message, message=replace(chunk, data=bytes(data)))

    def client_message(self, node: SimNode, sender: str, message: ClientMessage) -> None:
        self.clients.arrived(node, sender, message)

    def node_is_off(self, node: SimNode) -> None:
        """It comes back, sooner or later."""
        if self.quiet or node.retired:
            return
        delay_ms = 100 if self.healed else self.rng.choice((50, 500, 3_000, 10_000))

        def again() -> bool:
            if not self.healed and self.rng.random() < 0.5:
                node.disk.faults.capacity_bytes = None
            return node.start()

        self.scheduler.after(delay_ms, again)

    def _on_fence(self, name: str, incarnation: int) -> None:
        """L1, at the very moment: a node whose session ends has stopped relying on it before."""
        node = self.nodes[name]
        core = node.core
        if core is not None and core.holder.incarnation == incarnation and core.holder.is_valid(node.clock_ms()):
            raise ClusterBroken(f"L1: {name} believes in incarnation {incarnation}, which is being fenced")

    # --- who is who --------------------------------------------------------------------------------------

    def leader(self) -> SimNode | None:
        """The leader of the highest term."""
        leaders = [
            node
            for node in self.nodes.values()
            if node.core is not None and node.core.member is not None and node.core.member.raft.leading is not None
        ]
        return max(leaders, key=_term_of, default=None)

    def memberships(self) -> list[Members]:
        """Every membership that may be in force anywhere."""
        found = [self.model.members]
        for node in self.nodes.values():
            if node.core is not None and node.core.member is not None:
                members = node.core.member.raft.members
                if members not in found:
                    found.append(members)
        return found

    def may_lose(self, member: str) -> bool:
        """Whether the group survives the loss of this disk: a minority of the voters, and nobody is leaving now."""
        gone = {name for name, durable in self.model.durable.items() if durable.is_gone} | {member}
        for members in self.memberships():
            if any(name.partition("/")[0] in self.removals for name in members.all):
                return False
            # A learner that is gone may still be made a voter by a leader that does not know.
            voters = set(members.voters) | (gone & set(members.learners))
            if len(voters - gone) < len(voters) // 2 + 1:
                return False
        return True

    def may_remove(self, name: str) -> bool:
        """Whether an operator may remove this node: no disk of the group is lost, and enough stay."""
        for members in self.memberships():
            if any(self.model.durable[member].is_gone for member in members.all if member in self.model.durable):
                return False
            if any(member.partition("/")[0] in self.removals for member in members.all):
                return False
        return len(self.model.members.voters) >= 2

    # --- a run -------------------------------------------------------------------------------------------

    def run(self, duration_ms: int, faults: FaultTable) -> None:
        for node in self.nodes.values():
            self.scheduler.after(self.rng.randrange(500), node.start)
        self._start_clients()
        names, weights = zip(*((name, weight) for name, (weight, _) in faults.items()), strict=True)
        pause_ms = self.rng.choice((300, 1_000, 3_000))
        self.scheduler.run_until(self.rng.choice((0, 3_000)))
        while self.scheduler.now_ms < duration_ms:
            self.scheduler.run_until(self.scheduler.now_ms + 1 + int(self.rng.random() * 2 * pause_ms))
            fault = self.rng.choices(names, weights)[0]
            self.last_event = f"{fault} at {self.scheduler.now_ms} ms"
            self.counters["faults"] += 1
            faults[fault][1](self, self.rng.choice(list(self.nodes.values())))
        self.heal()
        end_ms = self.scheduler.now_ms + REST_MS
        while not self.at_rest():
            if self.scheduler.now_ms >= end_ms:
                raise ClusterBroken(f"14: {REST_MS // 1000} s after the last fault there is no rest: {self.unrest()}")
            self.scheduler.run_until(self.scheduler.now_ms + REST_CHECK_MS)
        self.check_end()

    def _start_clients(self) -> None:
        pause_ms = self.rng.choice((20, 60, 200))

        def act() -> None:
            if not self.healed:
                self.clients.act(self.rng)
                self.scheduler.after(1 + int(self.rng.random() * 2 * pause_ms), act)

        self.scheduler.after(1_000, act)

    def heal(self) -> None:
        """The faults stop, clients fall silent, everything is switched on."""
        self.healed = True
        self.cuts.clear()
        self.weather = MetadataWeather()
        for node in self.nodes.values():
            record = self.model.reference.node(node.name)
            node.retired = node.retired and record is not None and record.state is NodeState.REMOVED
            node.disk.faults.capacity_bytes = node.disk.faults.fail_after = node.disk.cut_after = None
            node.disk_ms = node.disk_usual_ms
            if node.core is None or not node.core.is_registered:
                # The peers that it was told to ask may have left the cluster, or it was alone when it was set up and
                # finds now that its metadata is damaged. Its operator corrects that, and starts it again.
                node.peers = tuple(self.nodes)
                node.stop()
            node.start()

    def _start_those_taken_back(self) -> None:
        """Requests from before the end of the faults may have been done since: a removed node is admitted again."""
        for node in self.nodes.values():
            record = self.model.reference.node(node.name)
            if node.retired and record is not None and record.state is not NodeState.REMOVED:
                node.retired = False
                node.peers = tuple(self.nodes)
                node.start()

    def at_rest(self) -> bool:
        """There is a leader and every node is settled; then one more change must go through."""
        self._start_those_taken_back()
        if self.unrest():
            return False
        if not self._after_rest:
            leader = self.leader()
            assert leader is not None

            def done(taken: bool) -> None:
                self._after_rest = taken

            change = _last_change(leader)
            self.clients.change(leader, change, done)
            return False
        return True

    def unrest(self) -> str:
        leader = self.leader()
        if leader is None or leader.core is None or not leader.core.is_leader:
            return "nobody leads"
        catalog = leader.core.catalog
        assert catalog is not None
        wanted = [record for record in catalog.nodes() if record.state is not NodeState.REMOVED]
        members = self.model.members
        assert leader.core.member is not None
        if leader.core.member.raft.log.last_index != self.model.last_index:
            return "the leader has entries that are not committed"
        live = {name: node for name, node in self.nodes.items() if not node.retired}
        for record in wanted:
            node = live.get(record.node)
            if node is None:
                continue
            core = node.core
            if core is None or core.member is None:
                return f"{record.node} has no metadata: {None if core is None else core.decision}"
            if not core.is_registered or record.state is not NodeState.ACTIVE:
                return f"{record.node} is not registered: {core.registration.refusal}, {record.state.value}"
            if core.member.applied_index != self.model.last_index:
                return f"{record.node} has applied {core.member.applied_index} of {self.model.last_index}"
            if member_name(record.node, record.disk_id) not in members:
                return f"the disk of {record.node} is not in {members}"
        if len(members.voters) != min(self.options.voters_max, len(wanted)) or len(members.all) != len(wanted):
            return f"{members} are not the members for {[record.node for record in wanted]}"
        return ""

    def check_end(self) -> None:
        self._check_hearing()
        # Time went by: a leader may just have been handed back to where it is pinned, say.
        if not self.scheduler.run_until(self.scheduler.now_ms + REST_MS, self.at_rest):
            raise ClusterBroken(f"14: the rest did not last: {self.unrest()}")
        for node in self.nodes.values():
            core = node.core
            record = self.model.reference.node(node.name)
            if core is None or core.member is None or record is None or record.state is not NodeState.ACTIVE:
                continue
            self.model.check_end(core.member)
            member = core.member
            kept = (
                len(member._held),
                len(core.member_controller._own),
                len(member._places),
                len(member._reads),
                len(node.queue),
            )
            if max(kept) > OPEN_MAX or len(core.holder._unanswered) > 16:
                raise ClusterBroken(f"12: {node.name} keeps what nobody waits for: {kept}")
            self.counters["session_grace"] += core.member_controller.sessions.statistics().graces

    def _check_hearing(self) -> None:
        """Heartbeats flow between all that are registered (R7)."""
        active = [record.node for record in self.model.reference.nodes() if record.state is NodeState.ACTIVE]
        cores = {name: core for name in active if (core := self.nodes[name].core) is not None}
        silence_ms = 3 * self.options.liveness.heartbeat_ms
        self.scheduler.run_until(self.scheduler.now_ms + silence_ms)
        for name, core in cores.items():
            for peer in core.heartbeats.peers():
                silent_ms = core.heartbeats.silence_ms(peer, self.nodes[name].clock_ms())
                if peer in cores and silent_ms > silence_ms:
                    raise ClusterBroken(f"R7: {name} has not heard {peer} for {silent_ms} ms")


def _term_of(node: SimNode) -> int:
    assert node.core is not None
    assert node.core.member is not None
    return node.core.member.raft.term


def _last_change(leader: SimNode) -> Change:
    assert leader.core is not None
    return AddGrant(principal=f"operator:{leader.name}", scope=SCOPES[0], channels=f"x{leader.core.new_token()}*")


def random_options(rng: random.Random) -> NodeOptions:
    return NodeOptions(
        metadata=MetadataOptions(
            raft=RaftConfig(
                append_bytes_max=rng.choice((1, 400, 100_000)),
                inflight_max=rng.choice((1, 4, 64)),
                snapshot_chunk_bytes=rng.choice((500, 2_000, 100_000)),
                promote_lag_entries=rng.choice((0, 8, 64)),
                disk_stall_ms=rng.choice((300, 5_000)),
            ),
            snapshot_entries=rng.choice((8, 20, 60, 1_000)),
            keep_entries=rng.choice((0, 4, 20)),
        ),
        voters_max=rng.choice((1, 3, 3, 5, 5, 5)),
        serves_channels=False,
    )
