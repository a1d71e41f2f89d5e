"""The catalog in a small world with real logs: a cleanly elected leader holds every committed record (R5, C5 to C8).

The world is deliberately simple: one channel, four nodes, logs as lists. A leader commits what every member of the
catalog's ISR has confirmed, while the ISR is not below its minimum. Nodes crash and lose what their policy lets them
lose, disks are wiped or replaced by an older copy, sessions are lost, and changes are proposed at random, late ones
too. The world knows what every node really holds; the catalog knows only what it is told. Each planted bug below
makes the world find a clean leader without a committed record.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.core.catalog_kit import registration
from tidelog.core.catalog import (
    AdmitNode,
    AlterChannel,
    Catalog,
    Change,
    ChangeLeader,
    ChannelConfig,
    ChannelRecord,
    CreateChannel,
    ExpandIsr,
    FenceNode,
    FsyncPolicy,
    LogReport,
    NodeState,
    ShrinkIsr,
    ShrinkReason,
    channel_rules,
    election_rules,
    node_rules,
)
from tidelog.core.catalog.channel_config import Keeps
from tidelog.core.catalog.records import Member
from tidelog.core.catalog.state import State

NODES = ("n1", "n2", "n3", "n4")
STEPS = 160
SEEDS = 300
SEEDS_PER_BUG = 1_000


@dataclass
class Entry:
    epoch: int
    value: int
    synced: bool


@dataclass
class Machine:
    """What a node really is."""

    name: str
    up: bool = True
    process: int = 1
    disk: int = 0
    incarnation: int = 1
    """As it registered last; it acts as this one."""
    disk_incarnation: int = 1
    mark: int | None = None
    log: list[Entry] = field(default_factory=list)
    copy: tuple[int, int | None, list[Entry]] | None = None
    """An old image of its disk."""


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.catalog = Catalog()
        self.index = 0
        self.machines = {name: Machine(name, disk=number) for number, name in enumerate(NODES)}
        self.committed: list[int] = []
        self.matched: dict[str, int] = {}
        """What the leader believes each follower to hold."""
        self.late: list[Change] = []
        self.values = 0
        self.clean_elections = self.unclean_elections = self.commits = 0
        for name in NODES:
            self.apply(AdmitNode(node=name))
            self.apply(registration(name, 1, disk_id=self.disk_id(name), process_id="00000001"))
        config = self.some_config(replace(ChannelConfig(), persistent=self.random.random() < 0.8))
        replicas = tuple(self.random.sample(NODES, 3))
        change = CreateChannel(name="c", config=config, replicas=replicas, leader=replicas[0], at_ms=0)
        assert self.apply(change)

    def disk_id(self, name: str) -> str:
        return f"{self.machines[name].disk:08x}"

    def some_config(self, config: ChannelConfig) -> ChannelConfig:
        fsync = self.random.choice([FsyncPolicy.ALWAYS, FsyncPolicy.ALWAYS, FsyncPolicy.NEVER])
        return replace(config, fsync=fsync, min_isr=self.random.choice([1, 2, 2, 3]))

    def apply(self, change: Change) -> bool:
        self.index += 1
        return self.catalog.apply(self.index, change).refusal is None

    @property
    def channel(self) -> ChannelRecord:
        channel = self.catalog.channel(1)
        assert channel is not None
        return channel

    def leader(self) -> Machine | None:
        """The machine that leads: it is up, and was elected as what it is now."""
        channel = self.channel
        if channel.leader is None:
            return None
        machine = self.machines[channel.leader]
        record = self.catalog.node(channel.leader)
        assert record is not None
        current = machine.up and machine.incarnation == channel.leader_incarnation == record.incarnation
        return machine if current and record.state is NodeState.ACTIVE else None

    # --- what a leader does --------------------------------------------------------------------------

    def append(self) -> None:
        if (leader := self.leader()) is not None:
            self.values += 1
            leader.log.append(Entry(self.channel.leader_epoch, self.values, self.syncs()))
            self.commit(leader)

    def syncs(self) -> bool:
        return self.channel.config.keeps is Keeps.SYNCED

    def replicate(self) -> None:
        """A follower cuts what the leader has not, and takes some of what it lacks."""
        leader = self.leader()
        followers = [self.machines[name] for name in self.channel.replicas if self.machines[name] is not leader]
        if leader is None or not followers or not (follower := self.random.choice(followers)).up:
            return
        same = 0
        while (
            same < min(len(leader.log), len(follower.log))
            and leader.log[same].epoch == follower.log[same].epoch
            and leader.log[same].value == follower.log[same].value
        ):
            same += 1
        end = self.random.randint(same, len(leader.log)) if self.random.random() < 0.3 else len(leader.log)
        taken = [Entry(entry.epoch, entry.value, self.syncs()) for entry in leader.log[same:end]]
        follower.log[same:] = taken
        self.matched[follower.name] = len(follower.log)
        self.commit(leader)

    def commit(self, leader: Machine) -> None:
        channel = self.channel
        # Who was proposed counts in the minimum at once, and never toward min ISR (R3).
        joining = {
            change.member
            for change in self.late
            if isinstance(change, ExpandIsr) and change.expected_channel_epoch == channel.channel_epoch
        }
        nodes = joining.union(channel.isr_nodes)
        ends = [len(leader.log) if node == leader.name else self.matched.get(node, 0) for node in nodes]
        assert channel.config.min_isr is not None
        if len(channel.isr) >= channel.config.min_isr and min(ends) > len(self.committed):
            self.committed = [entry.value for entry in leader.log[: min(ends)]]
            self.commits += 1

    def expand(self) -> None:
        """Proposed by the leader for a follower that has, by its own fetch, all that is committed."""
        leader = self.leader()
        node = self.random.choice(self.channel.replicas)
        machine = self.machines[node]
        if leader is None or not machine.up:
            return
        if node != leader.name:
            self.matched[node] = min(self.matched.get(node, 0), len(machine.log))
            if self.values_of(machine)[: len(self.committed)] != self.committed:
                return
        if self.syncs():
            for entry in machine.log:
                entry.synced = True
        change = ExpandIsr(
            channel_id=1,
            expected_channel_epoch=self.channel.channel_epoch,
            member=node,
            incarnation=machine.incarnation,
        )
        self.propose(change)

    # --- what the metadata leader does -----------------------------------------------------------------

    def propose(self, change: Change) -> None:
        """Now, or much later, when it may no longer fit."""
        if self.random.random() < 0.2 and len(self.late) < 8:
            self.late.append(change)
        else:
            self.decide(change)

    def decide(self, change: Change) -> None:
        before = self.channel
        if not self.apply(change):
            return
        after = self.channel
        if after.leader_epoch != before.leader_epoch:
            self.matched.clear()
        if after.leader is not None and after.leader_epoch != before.leader_epoch:
            held = self.values_of(self.machines[after.leader])
            if len(after.unclean) > len(before.unclean):
                self.unclean_elections += 1
                same = [a == b for a, b in zip(held, self.committed, strict=False)]
                self.committed = self.committed[: same.index(False) if False in same else len(same)]
            elif self.leader() is not None:
                # One that has crashed and was not heard of yet never leads as what it was elected as (R1).
                self.clean_elections += 1
                assert held[: len(self.committed)] == self.committed, (
                    f"{after.leader} was elected cleanly and lacks committed records: {before} -> {after}"
                )

    def values_of(self, machine: Machine) -> list[int]:
        return [entry.value for entry in machine.log]

    def late_change(self) -> None:
        if self.late:
            self.decide(self.late.pop(self.random.randrange(len(self.late))))

    def elect(self) -> None:
        channel = self.channel
        if self.leader() is not None and self.random.random() < 0.8:
            return
        node: str | None = self.random.choice(channel.replicas)
        if self.random.random() < 0.05:
            node = None
        elif self.random.random() < 0.7:
            node = self.random.choice(self.catalog.candidates(1).nodes or channel.replicas)
        record = self.catalog.node(node) if node else None
        reports: tuple[LogReport, ...] = ()
        if self.random.random() < 0.3:
            reports = tuple(self.report(member.node) for member in (*channel.isr, *channel.eligible))
        change = ChangeLeader(
            channel_id=1,
            expected_channel_epoch=channel.channel_epoch,
            leader=node,
            incarnation=record.incarnation if record else 0,
            at_ms=0,
            reports=reports if node else (),
        )
        self.decide(change)

    def report(self, node: str) -> LogReport:
        machine = self.machines[node]
        last = machine.log[-1].epoch if machine.log else 0
        return LogReport(node=node, incarnation=machine.incarnation, last_epoch=last, log_end=len(machine.log))

    def shrink(self) -> None:
        nodes = self.channel.isr_nodes
        members = tuple(self.random.sample(nodes, self.random.randint(1, min(2, len(nodes)))))
        epoch = self.channel.channel_epoch
        self.propose(
            ShrinkIsr(channel_id=1, expected_channel_epoch=epoch, members=members, reason=ShrinkReason.LAGGING)
        )

    def alter(self) -> None:
        epoch = self.channel.channel_epoch
        if self.random.random() < 0.5:
            config = self.some_config(self.channel.config)
            self.decide(AlterChannel(channel_id=1, expected_channel_epoch=epoch, config=config))
        else:
            replicas = tuple(self.random.sample(NODES, self.random.randint(2, 4)))
            before = set(self.channel.replicas)
            self.decide(AlterChannel(channel_id=1, expected_channel_epoch=epoch, replicas=replicas))
            for gone in before - set(self.channel.replicas):
                self.machines[gone].log.clear()

    def fence(self) -> None:
        record = self.catalog.node(self.random.choice(NODES))
        assert record is not None
        self.apply(FenceNode(node=record.node, expected_incarnation=record.incarnation))

    def cut_off(self) -> None:
        """The metadata leader hears nobody of the ISR any more."""
        for member in self.channel.isr:
            record = self.catalog.node(member.node)
            assert record is not None
            self.apply(FenceNode(node=record.node, expected_incarnation=record.incarnation))

    # --- what happens to machines --------------------------------------------------------------------

    def crash(self) -> None:
        machine = self.machines[self.random.choice(NODES)]
        if not machine.up:
            return
        machine.up = False
        machine.mark = None
        if self.channel.config.keeps is Keeps.MEMORY:
            machine.log.clear()
            return
        unsynced = [place for place, entry in enumerate(machine.log) if not entry.synced]
        if unsynced:
            del machine.log[self.random.randint(unsynced[0], len(machine.log)) :]
        self.copy_disk(machine)

    def stop(self) -> None:
        machine = self.machines[self.random.choice(NODES)]
        if not machine.up:
            return
        machine.up = False
        machine.mark = machine.incarnation
        for entry in machine.log:
            entry.synced = True
        if self.channel.config.keeps is Keeps.MEMORY:
            machine.log.clear()
        self.copy_disk(machine)

    def lose_disk(self) -> None:
        machine = self.machines[self.random.choice(NODES)]
        if machine.up:
            return
        machine.disk += 100
        machine.disk_incarnation, machine.mark, machine.copy = 0, None, None
        machine.log.clear()

    def copy_disk(self, machine: Machine) -> None:
        """A backup, now and then, of a node that is down."""
        if machine.copy is None or self.random.random() < 0.2:
            machine.copy = (machine.disk_incarnation, machine.mark, [replace(entry) for entry in machine.log])

    def restore_disk(self) -> None:
        down = [machine for machine in self.machines.values() if not machine.up and machine.copy is not None]
        if down and self.channel.config.keeps is not Keeps.MEMORY:
            machine = self.random.choice(down)
            assert machine.copy is not None
            machine.disk_incarnation, machine.mark, entries = machine.copy
            machine.log = [replace(entry) for entry in entries]

    def start(self) -> None:
        """A new process, or the same one whose session was lost."""
        away = [name for name in NODES if not self.machines[name].up or not self.is_active(name)]
        if not away:
            return
        machine = self.machines[self.random.choice(away)]
        record = self.catalog.node(machine.name)
        assert record is not None
        if not machine.up:
            machine.process += 1
        known, mark = machine.disk_incarnation, machine.mark
        incarnation = max(known, record.incarnation) + 1
        change = registration(
            machine.name,
            incarnation,
            known_incarnation=known,
            disk_id=self.disk_id(machine.name),
            process_id=f"{machine.process:08x}",
            clean_incarnation=mark if not machine.up else None,
        )
        assert self.apply(change)
        machine.up, machine.mark = True, None
        machine.incarnation = machine.disk_incarnation = incarnation

    def is_active(self, name: str) -> bool:
        record = self.catalog.node(name)
        return record is not None and record.state is NodeState.ACTIVE

    def checkpoint(self) -> None:
        self.catalog = Catalog.restore(self.catalog.snapshot())

    # --- one run -------------------------------------------------------------------------------------

    def live(self, steps: int) -> None:
        actions: dict[Callable[[], None], int] = {
            self.append: 10,
            self.replicate: 30,
            self.expand: 12,
            self.elect: 14,
            self.shrink: 4,
            self.late_change: 3,
            self.alter: 2,
            self.fence: 2,
            self.crash: 3,
            self.stop: 2,
            self.start: 8,
            self.lose_disk: 1,
            self.restore_disk: 3,
            self.cut_off: 1,
            self.checkpoint: 1,
        }
        for action in self.random.choices(list(actions), weights=list(actions.values()), k=steps):
            action()
            assert self.catalog.contradictions() == []


def run_worlds(seeds: range) -> Iterator[World]:
    for seed in seeds:
        world = World(seed)
        try:
            world.live(STEPS)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        yield world


def test_a_clean_leader_holds_every_committed_record() -> None:
    worlds = list(run_worlds(range(SEEDS)))
    assert sum(world.clean_elections for world in worlds) > SEEDS, "the world is too quiet to show anything"
    assert sum(world.unclean_elections for world in worlds) > SEEDS // 20
    assert sum(world.commits for world in worlds) > 2 * SEEDS
    assert sum(bool(world.channel.eligible) for world in worlds) > SEEDS // 20


# --- planted bugs ----------------------------------------------------------------------------------------


def always_trusted(self: State, channel_id: int, member: Member) -> bool:
    return True


def believes_any_disk(record: Any, change: Any) -> bool:
    return True


def believes_old_copies(record: Any, change: Any) -> bool:
    return bool(record.disk_id) and change.disk_id == record.disk_id


def calls_every_stop_clean(record: Any, change: Any) -> tuple[int, int, int]:
    return change.incarnation, record.written_since, record.synced_since


def keeps_memory_over_restarts(record: Any, change: Any) -> tuple[int, int, int]:
    return record.memory_since, record.written_since, record.synced_since


def strengthens_at_once(members: list[Member], config: ChannelConfig) -> list[Member]:
    return [replace(member, keeps=config.keeps) for member in members]


def keeps_the_eligible(state: State, before: ChannelRecord, index: int, **fields: Any) -> ChannelRecord:
    after = replace(before, channel_epoch=before.channel_epoch + 1, changed_index=index, **fields)
    state.put_channel(after.channel_id, after)
    return after


def sees_a_higher_minimum(self: ChannelConfig) -> int:
    return 4


BUGS: dict[str, list[tuple[Any, str, Any]]] = {
    "who may have lost records is trusted": [(State, "is_trusted", always_trusted)],
    "any disk is believed": [(node_rules, "_same_disk", believes_any_disk)],
    "an old copy of a disk is believed": [(node_rules, "_same_disk", believes_old_copies)],
    "a crash counts as a clean stop": [(node_rules, "_kept", calls_every_stop_clean)],
    "memory survives its process": [(node_rules, "_kept", keeps_memory_over_restarts)],
    "a stronger fsync counts for old records": [(channel_rules, "_weakened", strengthens_at_once)],
    "who leaves a full ISR is eligible": [(ChannelConfig, "effective_min_isr", property(sees_a_higher_minimum))],
    "the eligible stay when records are committed without them": [
        (channel_rules, "write_channel", keeps_the_eligible),
        (election_rules, "write_channel", keeps_the_eligible),
        (Catalog, "contradictions", lambda self: []),
        (World, "checkpoint", lambda self: None),
    ],
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, planted in BUGS[bug]:
        monkeypatch.setattr(owner, name, planted)
    with pytest.raises(AssertionError, match=r"seed \d+: n\d was elected cleanly and lacks committed records"):
        for _ in run_worlds(range(SEEDS_PER_BUG)):
            pass
