"""What happens to a simulated cluster with channels: all that happens to its metadata, and to logs and links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidelog.core.catalog import Basis, ChangeLeader, RemoveNode
from tidelog.sim.cluster.admin import random_change
from tidelog.sim.cluster.liars import copy_store, lie, lie_to_all, lying_syncs, may_lie, restore_store
from tidelog.sim.cluster.node import ClusterNode
from tidelog.sim.cluster.scene import ClusterWorld
from tidelog.sim.metadata import faults as metadata_faults
from tidelog.sim.metadata.faults import _later, _switch_off


def channel_leader(world: ClusterWorld) -> ClusterNode | None:
    """A node that leads some channel."""
    leaders = [
        node
        for node in world.nodes.values()
        if node.core is not None and any(replica.leading for replica in node.core.channels.replicas.replicas())
    ]
    return world.rng.choice(leaders) if leaders else None


def crash_channel_leader(world: ClusterWorld, _: ClusterNode) -> None:
    leader = channel_leader(world)
    if leader is not None:
        (leader.crash if world.rng.random() < 0.5 else leader.kill)()


def pause_channel_leader(world: ClusterWorld, _: ClusterNode) -> None:
    leader = channel_leader(world)
    if leader is not None:
        metadata_faults.pause(world, leader)


def isolate_channel_leader(world: ClusterWorld, _: ClusterNode) -> None:
    """It may hear the others, or be heard by them, or neither."""
    leader = channel_leader(world)
    if leader is None:
        return
    others, way = [name for name in world.nodes if name != leader.name], world.rng.randrange(3)
    cut = {(leader.name, other) for other in others if way != 1} | {(other, leader.name) for other in others if way}
    world.cuts |= cut
    world.counters["one_way" if way < 2 else "cut"] += 1
    _later(world, lambda: world.cuts.difference_update(cut), 5_000)


def cut_leader_from_followers(world: ClusterWorld, _: ClusterNode) -> None:
    """A channel's leader and its other replicas do not hear each other; everybody else does."""
    leader = channel_leader(world)
    if leader is None or leader.core is None:
        return
    led = [replica for replica in leader.core.channels.replicas.replicas() if replica.leading is not None]
    others = [name for name in world.rng.choice(led).record.replicas if name != leader.name]
    cut = {(leader.name, other) for other in others} | {(other, leader.name) for other in others}
    world.cuts |= cut
    world.counters["cut_from_followers"] += 1
    _later(world, lambda: world.cuts.difference_update(cut), 5_000)


def reset_link(world: ClusterWorld, node: ClusterNode) -> None:
    """A connection breaks: what was on its way is lost, and both sides know."""
    other = world.rng.choice(list(world.nodes.values()))
    if other is node:
        return
    world.counters["link_reset"] += 1
    world.break_link(node.name, other.name)


def slow_store(world: ClusterWorld, node: ClusterNode) -> None:
    node.store_ms = world.rng.choice((50, 300, 2_000, 6_000))
    world.counters["slow_store"] += 1

    def back() -> None:
        node.store_ms = node.store_usual_ms

    _later(world, back, 6_000)


def full_leader(world: ClusterWorld, _: ClusterNode) -> None:
    leader = channel_leader(world)
    if leader is not None:
        metadata_faults.full(world, leader)


def failing_sync_leader(world: ClusterWorld, _: ClusterNode) -> None:
    leader = channel_leader(world)
    if leader is not None:
        metadata_faults.failing_sync(world, leader)


def rolling_restart(world: ClusterWorld, _: ClusterNode) -> None:
    """One after the other, cleanly."""
    world.counters["rolling_restart"] += 1
    for number, node in enumerate(world.nodes.values()):
        world.scheduler.after(1 + 1_500 * number, lambda node=node: None if world.healed else node.stop())  # type: ignore[misc]


def rot_in_log(world: ClusterWorld, node: ClusterNode) -> None:
    """A bit of a log flips while the node is down."""
    if not world.may_tamper(node.name):
        return
    _switch_off(node)
    if files := node.channel_files():
        path = world.rng.choice(files)
        cut = node.torn_bytes(path)
        position, bit = node.disk.flip_random_bit(path)
        if node.torn_bytes(path) > cut:
            # In the last commit of a write-ahead file, which no later one vouches for, a flipped bit is a torn write to
            # the next opening (B4): nothing shows that it had been synced, so that is not required.
            node.disk.flip_bit(path, position, bit)
            return
        node.tampered = node.rotten = True
        world.counters["log_rot"] += 1


def rot_in_metadata(world: ClusterWorld, node: ClusterNode) -> None:
    """A bit of the metadata flips while the node is down. The catalog doubts all copies on that disk from then on."""
    if may_lie(world, node.name):
        metadata_faults.rot(world, node)


def wipe(world: ClusterWorld, node: ClusterNode) -> None:
    if world.may_tamper(node.name) and node.member and world.may_lose(node.member):
        whole = world.rng.random() < 0.5
        metadata_faults.lose_disk(world, node, whole=whole)
        node.tampered = True


def administer(world: ClusterWorld, node: ClusterNode) -> None:
    """An operator changes a channel."""
    if node.core is None or node.core.catalog is None:
        return
    change = random_change(world.rng, node.core.catalog, world.channel_count)
    if change is not None:
        world.counters["administered"] += 1
        world.clients.change(node, change)


def remove_node(world: ClusterWorld, node: ClusterNode) -> None:
    """Only one on which nothing rests: the catalog refuses others."""
    asked = world.rng.choice(list(world.nodes.values()))
    if not world.may_remove(node.name) or node.name in world.removals or len(world.nodes) < 4:
        return
    world.removals.add(node.name)
    world.clients.change(asked, RemoveNode(node=node.name))
    metadata_faults._watch_removal(world, node)


def unclean_election(world: ClusterWorld, node: ClusterNode) -> None:
    """An operator is tired of waiting; the catalog lets it be only where nobody else can lead."""
    core = node.core
    if core is None or core.catalog is None:
        return
    for channel in core.catalog.channels():
        record = core.catalog.node(node.name)
        if node.name not in channel.replicas or record is None or core.catalog.has_live_leader(channel):
            continue
        standing = core.catalog.candidates(channel.channel_id)
        if standing.nodes and standing.basis is not Basis.REPORTS:
            continue  # somebody can lead, and will
        change = ChangeLeader(
            channel_id=channel.channel_id,
            expected_channel_epoch=channel.channel_epoch,
            leader=node.name,
            incarnation=record.incarnation,
            at_ms=1,
            operator="anna",
        )
        world.clients.change(node, change, lambda taken: world.counters.update(operator_elected=int(taken)))


FAULTS: Final[dict[str, tuple[int, Callable[[Any, Any], None]]]] = {
    **metadata_faults.FAULTS,
    "crash_channel_leader": (4, crash_channel_leader),
    "pause_channel_leader": (3, pause_channel_leader),
    "isolate_channel_leader": (4, isolate_channel_leader),
    "cut_leader_from_followers": (3, cut_leader_from_followers),
    "reset_link": (3, reset_link),
    "slow_store": (3, slow_store),
    "full_leader": (2, full_leader),
    "failing_sync_leader": (1, failing_sync_leader),
    "rolling_restart": (1, rolling_restart),
    "rot_in_log": (1, rot_in_log),
    "lie": (4, lie),
    "lie_to_all": (2, lie_to_all),
    "lying_syncs": (2, lying_syncs),
    "copy_store": (4, copy_store),
    "restore_store": (3, restore_store),
    "wipe": (1, wipe),
    "rot": (1, rot_in_metadata),
    "administer": (10, administer),
    "add_node": (1, metadata_faults.add_node),
    "remove_node": (1, remove_node),
    "unclean_election": (1, unclean_election),
}
"""Name to weight and what it does."""
