"""The operations of directed schedules.

A `Schedule` is a quiet world in which nothing happens by itself: the network loses the messages it is told to lose,
`elect` makes a leader. Every check of the model runs here too; a schedule raises `ClusterBroken` when one fires, or
when an expected event does not happen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tidelog.cluster.metadata.member import MetadataOptions
from tidelog.cluster.node.core import NodeCore, NodeOptions
from tidelog.core.catalog import SCOPES, AddGrant, Change
from tidelog.core.liveness import LivenessConfig
from tidelog.core.node_messages import ForMember
from tidelog.core.raft import AppendEntries, RaftConfig, TimeoutNow
from tidelog.sim.metadata.faults import lose_disk
from tidelog.sim.metadata.model import ClusterBroken
from tidelog.sim.metadata.node import SimNode
from tidelog.sim.metadata.scene import MetadataWorld

WAIT_MS: Final = 30_000
SLOW: Final = LivenessConfig(session_timeout_ms=60_000)
"""No node is fenced during a schedule."""
PATIENT: Final = RaftConfig(election_timeout_ms=10_000, append_bytes_max=1)
"""No node asks for votes by itself, and entries are sent one by one."""


class Schedule:
    def __init__(
        self,
        nodes: int = 3,
        *,
        raft: RaftConfig = PATIENT,
        liveness: LivenessConfig = SLOW,
        snapshot_entries: int = 4_096,
        voters_max: int = 5,
        seed: int = 1,
        start: bool = True,
    ) -> None:
        metadata = MetadataOptions(raft=raft, snapshot_entries=snapshot_entries, keep_entries=0)
        options = NodeOptions(metadata=metadata, liveness=liveness, voters_max=voters_max)
        self.world = self._make_world(seed, nodes, options)
        self.model = self.world.model
        self._grants = 0
        if start:
            for name in self.world.nodes:
                self.node(name).start()
            self.settle()

    def _make_world(self, seed: int, nodes: int, options: NodeOptions) -> MetadataWorld:
        return MetadataWorld(seed, nodes=nodes, quiet=True, options=replace(options, serves_channels=False))

    # --- words ---------------------------------------------------------------------------------------------

    def node(self, name: str) -> SimNode:
        return self.world.nodes[name]

    def core(self, name: str) -> NodeCore:
        core = self.node(name).core
        assert core is not None, f"{name} is off"
        return core

    def commit(self, name: str) -> int:
        member = self.core(name).member
        return 0 if member is None else member.raft.log.commit

    def last_index(self, name: str) -> int:
        member = self.core(name).member
        return 0 if member is None else member.raft.log.last_index

    def leads(self, name: str) -> bool:
        core = self.node(name).core
        return core is not None and core.member is not None and core.member.raft.leading is not None

    def leader(self) -> str:
        leader = self.world.leader()
        if leader is None:
            raise ClusterBroken("14: nobody leads")
        return leader.name

    def others(self) -> list[str]:
        """All but the leader, by name."""
        leader = self.leader()
        return [name for name in self.world.nodes if name != leader]

    def run(self, time_ms: int) -> None:
        self.world.scheduler.run_until(self.world.scheduler.now_ms + time_ms)

    def until(self, done: Callable[[], bool], what: str, limit_ms: int = WAIT_MS) -> None:
        end_ms = self.world.scheduler.now_ms + limit_ms
        while not done():
            if self.world.scheduler.now_ms >= end_ms:
                raise ClusterBroken(f"14: {what}: not within {limit_ms} ms; {self.world.unrest()}")
            self.run(5)

    def settle(self) -> None:
        """All that are on are members, registered and equal."""
        self.until(lambda: not self.world.unrest(), "the cluster comes to rest")
        self.world.check_end()

    def cut(self, *names: str, off: set[str] | None = None) -> None:
        """These nodes are cut off from the others; or all but those of `off` are."""
        side = set(names)
        others = (set(self.world.nodes) - side) if off is None else off
        self.world.cuts |= {(a, b) for a in side for b in others} | {(b, a) for a in side for b in others}

    def join_links(self) -> None:
        self.world.cuts.clear()
        self.world.drops = None

    def elect(self, name: str) -> None:
        """As if its leader had told it to ask for votes, as often as it takes."""
        cores = [node.core for node in self.world.nodes.values() if node.core is not None]
        self.until(lambda: not any(core.standing.on_probation for core in cores), "all take part")
        for _ in range(5):
            self.node(name).do(self._told_to_lead)
            self.run(100)
            if self.leads(name):
                return
        raise ClusterBroken(f"14: {name} is not elected")

    @staticmethod
    def _told_to_lead(core: NodeCore) -> None:
        member = core.member
        assert member is not None
        member.receive(member.member, TimeoutNow(term=member.raft.term), member.raft._now_ms)

    def change(self, name: str, change: Change | None = None) -> list[bool]:
        """Propose at this node. The outcome is in the list once it is known."""
        self._grants += 1
        outcome: list[bool] = []
        what = change or AddGrant(principal="operator:anna", scope=SCOPES[0], channels=f"x{self._grants}*")
        self.world.clients.change(self.node(name), what, outcome.append)
        return outcome

    def changed(self, name: str, change: Change | None = None) -> None:
        """Propose, and wait for the outcome."""
        outcome = self.change(name, change)
        self.until(lambda: bool(outcome), "a change has an outcome")
        if outcome != [True]:
            raise ClusterBroken("14: a change failed")

    def read(self, name: str) -> list[bool]:
        outcome: list[bool] = []
        self.world.clients.read(self.node(name), "c0", outcome.append)
        return outcome

    def lose(self, name: str, *, whole: bool = True) -> None:
        """Its disk is replaced, or its metadata alone is gone; it stays off."""
        lose_disk(self.world, self.node(name), whole=whole)

    def capture(self, wanted: Callable[[str, str, Any], bool]) -> list[tuple[str, str, Any]]:
        """Record these messages as they leave; they arrive all the same."""
        found: list[tuple[str, str, Any]] = []

        def listen(source: str, target: str, message: Any) -> bool:
            if wanted(source, target, message):
                found.append((source, target, message))
            return False

        self.world.drops = listen
        return found


def is_append(message: Any) -> bool:
    """An append with entries."""
    return (
        isinstance(message, ForMember) and isinstance(message.message, AppendEntries) and bool(message.message.entries)
    )
