"""Faults of a simulated cluster: links, power, disks, operators. Each fault takes the world and a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog.cluster.node.core import NodeCore
from tidelog.core.catalog import AdmitNode, NodeState, RemoveNode
from tidelog.errors import LogError
from tidelog.sim.metadata.node import FOLDER, METADATA, SimNode
from tidelog.sim.metadata.scene import MetadataWorld

NODES_MAX: Final = 7


# --- links ---------------------------------------------------------------------------------------------


def _later(world: MetadataWorld, undo: Callable[[], None], longest_ms: int = 8_000) -> None:
    world.scheduler.after(world.rng.randrange(200, longest_ms), undo)


def partition(world: MetadataWorld, _: SimNode) -> None:
    """Two sides that do not hear each other; sometimes only in one direction."""
    names = list(world.nodes)
    world.rng.shuffle(names)
    side = set(names[: world.rng.randint(1, max(1, len(names) // 2))])
    one_way = world.rng.random() < 0.3
    cut = {
        (a, b) for a in world.nodes for b in world.nodes if (a in side) != (b in side) and (a in side or not one_way)
    }
    world.cuts |= cut
    world.counters["one_way" if one_way else "cut"] += 1
    _later(world, lambda: world.cuts.difference_update(cut))


def cut_pair(world: MetadataWorld, node: SimNode) -> None:
    """One direction between two nodes is dead."""
    pair = (node.name, world.rng.choice(list(world.nodes)))
    world.cuts.add(pair)
    world.counters["one_way"] += 1
    _later(world, lambda: world.cuts.discard(pair))


def isolate_leader(world: MetadataWorld, _: SimNode) -> None:
    leader = world.leader()
    if leader is not None:
        cut = {(leader.name, other) for other in world.nodes} | {(other, leader.name) for other in world.nodes}
        world.cuts |= cut
        world.counters["cut"] += 1
        _later(world, lambda: world.cuts.difference_update(cut), 4_000)


def bad_weather(world: MetadataWorld, _: SimNode) -> None:
    """Messages are lost, repeated, overtaken."""
    weather, rng = world.weather, world.rng
    weather.loss = rng.choice((0.0, 0.02, 0.1, 0.3))
    weather.twice = rng.choice((0.0, 0.05, 0.3))
    weather.spike, weather.spike_ms = rng.choice((0.0, 0.02, 0.1)), rng.choice((300, 3_000))

    weather.mangled = rng.choice((0.0, 0.1))

    def calm() -> None:
        weather.mangled = weather.loss = weather.twice = weather.spike = 0.0

    _later(world, calm)


# --- nodes ---------------------------------------------------------------------------------------------


def crash(world: MetadataWorld, node: SimNode) -> None:
    node.crash()


def crash_all(world: MetadataWorld, _: SimNode) -> None:
    """The power of the whole site."""
    for node in list(world.nodes.values()):
        node.crash()


def kill(world: MetadataWorld, node: SimNode) -> None:
    node.kill()


def restart(world: MetadataWorld, node: SimNode) -> None:
    node.stop()


def crash_leader(world: MetadataWorld, _: SimNode) -> None:
    leader = world.leader()
    if leader is not None:
        (leader.crash if world.rng.random() < 0.5 else leader.kill)()


def crash_in_call(world: MetadataWorld, node: SimNode) -> None:
    """The power goes at some disk call to come."""
    if node.core is not None:
        node.disk.cut_in_sync = world.rng.random() < 0.5
        node.disk.cut_after = world.rng.randint(1, 12)
        world.counters["crash_in_call"] += 1


def pause(world: MetadataWorld, node: SimNode) -> None:
    world.counters["pause"] += 1
    node.pause(world.rng.choice((100, 700, 2_000, 10_000)))


def pause_leader(world: MetadataWorld, _: SimNode) -> None:
    leader = world.leader()
    if leader is not None:
        pause(world, leader)


# --- disks ---------------------------------------------------------------------------------------------


def slow_disk(world: MetadataWorld, node: SimNode) -> None:
    node.disk_ms = world.rng.choice((100, 400, 1_500, 7_000))
    world.counters["slow_disk"] += 1

    def back() -> None:
        node.disk_ms = node.disk_usual_ms

    _later(world, back)


def slow_leader(world: MetadataWorld, _: SimNode) -> None:
    leader = world.leader()
    if leader is not None:
        slow_disk(world, leader)


def failing_sync(world: MetadataWorld, node: SimNode) -> None:
    if node.core is not None:
        faults = node.disk.faults
        faults.fail_kind = world.rng.choice(("sync", "io"))
        faults.fail_after = world.rng.randint(1, 6)


def full(world: MetadataWorld, node: SimNode) -> None:
    """The disk is full until an operator makes room."""
    if node.core is not None:
        node.disk.faults.capacity_bytes = node.disk._used_bytes + world.rng.randrange(2_000)
        world.counters["full"] += 1

        def room() -> None:
            node.disk.faults.capacity_bytes = None

        _later(world, room)


def _switch_off(node: SimNode) -> None:
    """For an operator's work: pending faults are cancelled."""
    node.kill()
    node.disk.faults.fail_after = node.disk.cut_after = None


def rot(world: MetadataWorld, node: SimNode) -> None:
    """A bit of the metadata flips while the node is down. It must notice, or not be harmed."""
    if not node.member or not world.may_lose(node.member):
        return
    _switch_off(node)
    if files := node.files():
        node.disk.flip_random_bit(world.rng.choice(files))
        world.model.durable[node.member].is_gone = True
        world.counters["rot"] += 1


def wipe(world: MetadataWorld, node: SimNode) -> None:
    """The disk is replaced by an empty one, or the metadata alone is gone."""
    if node.member and world.may_lose(node.member):
        lose_disk(world, node, whole=world.rng.random() < 0.5)


def lose_disk(world: MetadataWorld, node: SimNode, *, whole: bool) -> None:
    _switch_off(node)
    node.disk.crash()
    node.disk.remove_folder(FOLDER if whole else METADATA)
    if whole:
        node.forget_quarantine()
        world.model.forget_incarnations(node.name)
        # Who sets a machine up anew names the cluster as it is now: by a list from before it grew, the founder would
        # find that all its peers are blank, and found again.
        node.peers = tuple(world.nodes)
    world.model.durable[node.member].is_gone = True
    node.member = ""
    world.counters["wiped" if whole else "wiped_metadata"] += 1


# --- operators -----------------------------------------------------------------------------------------


def transfer(world: MetadataWorld, _: SimNode) -> None:
    leader = world.leader()
    if leader is None:
        return

    def hand_over(core: NodeCore) -> None:
        assert core.member is not None
        others = [voter for voter in core.member.raft.members.voters if voter != core.member.member]
        try:
            core.member.transfer(world.rng.choice(others), leader.clock_ms())
        except (LogError, IndexError):
            return
        world.counters["transfer"] += 1

    leader.do(hand_over)


def add_node(world: MetadataWorld, node: SimNode) -> None:
    """A new name, or one that was removed and is taken back."""
    back = [other for other in world.nodes.values() if other.retired]
    if back and world.rng.random() < 0.5:
        new = back[0]
        record = world.model.reference.node(new.name)
        if record is None or record.state is not NodeState.REMOVED or new.name in world.removals:
            return
        new.retired = False
    elif len(world.nodes) < NODES_MAX:
        name = f"n{len(world.nodes) + 1}"
        new = world.add_node(name, (*world.nodes, name))
    else:
        return
    world.counters["admitted"] += 1
    _admit(world, new.name)
    world.scheduler.after(world.rng.randrange(2_000), new.start)


def _admit(world: MetadataWorld, name: str) -> None:
    """Ask until the catalog has it."""

    def ask() -> bool:
        record = world.model.reference.node(name)
        if world.healed or (record is not None and record.state is not NodeState.REMOVED):
            return False
        world.clients.change(world.rng.choice(list(world.nodes.values())), AdmitNode(node=name))
        world.scheduler.after(1_500, ask)
        return True

    ask()


def remove_node(world: MetadataWorld, node: SimNode) -> None:
    asked = world.rng.choice(list(world.nodes.values()))
    if not world.may_remove(node.name) or node.name in world.removals:
        return
    leader = world.leader()
    if leader is node:
        world.counters["removed_leader"] += 1
    world.removals.add(node.name)
    world.clients.change(asked, RemoveNode(node=node.name, force=True))
    _watch_removal(world, node)


def _watch_removal(world: MetadataWorld, node: SimNode) -> None:
    """Switch the node off some time after it is gone; take the wish back if it was never heard."""
    began_ms = world.scheduler.now_ms

    def look() -> None:
        record = world.model.reference.node(node.name)
        if record is not None and record.state is NodeState.REMOVED:
            members = {member.partition("/")[0] for found in world.memberships() for member in found.all}
            if node.name not in members:
                world.removals.discard(node.name)
                node.retired = True
                node.kill()
                return
        elif world.scheduler.now_ms - began_ms > 20_000:
            world.removals.discard(node.name)
            return
        world.scheduler.after(1_000, look)

    world.scheduler.after(1_000, look)


FAULTS: Final[dict[str, tuple[int, Callable[[MetadataWorld, SimNode], None]]]] = {
    "partition": (4, partition),
    "cut_pair": (3, cut_pair),
    "isolate_leader": (3, isolate_leader),
    "bad_weather": (4, bad_weather),
    "crash": (4, crash),
    "crash_all": (1, crash_all),
    "crash_leader": (2, crash_leader),
    "crash_in_call": (3, crash_in_call),
    "kill": (2, kill),
    "restart": (2, restart),
    "pause": (3, pause),
    "pause_leader": (2, pause_leader),
    "slow_disk": (3, slow_disk),
    "slow_leader": (1, slow_leader),
    "failing_sync": (2, failing_sync),
    "full": (2, full),
    "rot": (2, rot),
    "wipe": (2, wipe),
    "transfer": (3, transfer),
    "add_node": (2, add_node),
    "remove_node": (2, remove_node),
}
"""Name to weight and what it does."""
