"""Nodes of a simulated cluster whose disks lie about channels: which may, how they lie, and when they are whole again.

A minority of the holders of each channel at a time, so that nothing that was acked may be lost. What lies is the store:
its write-ahead files, its segments, its own state, the watermarks; sometimes all of them are an older copy. The files
of the metadata stay as they are: `metadata.lies` is about those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Final, Protocol

from tidelog.core.catalog import ShrinkIsr
from tidelog.core.catalog.changes import decode_change
from tidelog.core.raft import EntryKind
from tidelog.core.replication.roles import Role
from tidelog.sim.cluster.account import ChannelAccount, end_of
from tidelog.sim.cluster.model import ClusterModel
from tidelog.sim.cluster.node import ClusterNode
from tidelog.sim.lying import Lie, Picture, durable_files, end_process, put_back, take_picture, tell_lie, write_all
from tidelog.sim.metadata.faults import _switch_off
from tidelog.sim.metadata.node import FOLDER, METADATA
from tidelog.sim.network import Scheduler
from tidelog.storage.log.segment import base_offset_of
from tidelog.storage.store.parts import CHANNELS_FOLDER, WAL_FOLDER

NODE_STATE: Final = f"{FOLDER}/node.state"
"""Files of the metadata: the node's identity, and how its last process ended."""


# --- who may lie -----------------------------------------------------------------------------------------------------


class TamperedWorld(Protocol):
    """What the faults here use of the world."""

    @property
    def rng(self) -> Random: ...

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def counters(self) -> Counter[str]: ...

    @property
    def model(self) -> ClusterModel: ...

    @property
    def nodes(self) -> Mapping[str, ClusterNode]: ...


def may_lie(world: TamperedWorld, name: str) -> bool:
    """Whether a disk may lose what it had synced: of every channel at least half of those in sync (or eligible) stay
    whole. An election after an unclean stop hears more than half of them (CE2), and so a whole one; of two it waits for
    both. What was not committed yet may be gone for good, and the channel goes on without it.

    A copy that the catalog doubts is not counted as whole: beside a short one that it trusts it is not elected (C7).
    Nor is one that is about to leave the ISR: a change that was proposed before the lie may be decided after it."""
    forgive(world)
    undecided = _undecided(world)
    liars = {node.name for node in world.nodes.values() if node.tampered or _lost_metadata(world, node)} | {name}
    for channel in world.model.channels.values():
        record = channel.record
        holders = {member.node for member in (*record.isr, *record.eligible)}
        leaving = holders if channel.channel_id in undecided else _withdrawn(world, channel.channel_id)
        not_whole = holders & (liars | leaving | set(world.model.reference.doubtful(channel.channel_id)))
        if name in holders and (len(record.isr) < 2 or 2 * len(not_whole) > len(holders)):
            return False
    return True


def _undecided(world: TamperedWorld) -> set[int]:
    """Channels of which a member leaves the ISR by a change that lies in some log, and is not committed yet."""
    model = world.model
    logs = [durable.entries for durable in model.durable.values()]
    entries = {entry for log in logs for entry in log if entry.index > model.last_index}
    changes = [decode_change(entry.data) for entry in entries if entry.kind is EntryKind.CHANGE]
    return {change.channel_id for change in changes if isinstance(change, ShrinkIsr)}


def _withdrawn(world: TamperedWorld, channel_id: int) -> set[str]:
    """Nodes that have given up their copy, while the catalog still counts it."""
    cores = {node.name: node.core for node in world.nodes.values() if node.core is not None}
    replicas = {name: core.channels.replicas.replica(channel_id) for name, core in cores.items()}
    return {name for name, replica in replicas.items() if replica is not None and replica.role is Role.IDLE}


def _lost_metadata(world: TamperedWorld, node: ClusterNode) -> bool:
    """Its disk will be another one to the catalog."""
    durable = world.model.durable.get(node.member)
    return durable is not None and durable.is_gone


def forgive(world: TamperedWorld) -> None:
    """Who lied and is in sync and equal again may lie again, and others beside it."""
    for node in world.nodes.values():
        if node.tampered and not node.disk.faults.lying_folder and is_whole(world, node):
            node.tampered = node.rotten = False
            world.counters["whole_again"] += 1


def is_whole(world: TamperedWorld, node: ClusterNode) -> bool:
    """Whether it was let into every ISR in which it counts since its process began, and holds what was committed, byte
    for byte, as it is read from the disk."""
    core = node.core
    disk = node.disk
    if core is None or node.paused or node.orders or not core.is_registered:
        return False
    if disk.cut_after is not None or disk.faults.fail_after is not None:
        return False  # to read the log is what may bring it about
    for channel in world.model.channels.values():
        record = channel.record
        if record.eligible_member(node.name) is not None:
            return False
        member = record.member(node.name)
        if member is None:
            if node.name in record.replicas:
                return False
            continue
        if member.incarnation != core.incarnation or not _holds_all(node, channel):
            return False
    return True


def _holds_all(node: ClusterNode, channel: ChannelAccount) -> bool:
    copy = channel.copies.get(node.name)
    assert node.core is not None
    replica = node.core.channels.replicas.replica(channel.channel_id)
    if replica is None or replica.storage.value != "ready" or copy is None or copy.unsure or channel.in_doubt:
        return False
    held = {entry.base: entry.head for entry in node.entries(channel.channel_id)}
    if node.logs.log(channel.channel_id).damaged() or copy.held_end < channel.end:
        return False
    return all(end_of(one) <= copy.start or held.get(one.base) == one.head for one in channel.entries)


# --- how -------------------------------------------------------------------------------------------------------------


def lie(world: TamperedWorld, node: ClusterNode) -> None:
    """A disk loses what it had synced to a file of its store while its node is down, before or after a power cut."""
    if not may_lie(world, node.name) or node.core is None:
        return
    (node.crash if world.rng.random() < 0.5 else node.kill)()
    _switch_off(node)
    node.disk.crash()  # what was not synced is gone as well, so the lie is about what was
    kind = world.rng.choice(list(Lie))
    folder = world.rng.choice((WAL_FOLDER, WAL_FOLDER, CHANNELS_FOLDER, FOLDER))
    if tell_lie(node.disk, world.rng, folder, kind, choose=_is_of_store) is not None:
        node.tampered = True
        node.rotten |= kind in (Lie.FLIPPED, Lie.ZEROED)  # in the middle of a file that is rot, and is repaired as such
        node.rotten |= folder != WAL_FOLDER  # a segment that lost its end, or is gone, leaves a hole
        world.counters["lied"] += 1
        world.counters[f"lied_{kind}"] += 1


def lie_to_all(world: TamperedWorld, node: ClusterNode) -> None:
    """The power of the whole site goes, and one disk comes back with less than it had synced."""
    if not may_lie(world, node.name):
        return
    for other in world.nodes.values():
        if other is not node and other.core is not None:
            other.crash()
    lie(world, node)


def _is_of_store(path: str) -> bool:
    """Not of the metadata. Not a channel's first segment either: that it is gone looks like retention, and nothing here
    tells the two apart."""
    if path.startswith((METADATA, NODE_STATE)) or "/quarantine/" in path:
        return False
    return base_offset_of(path.rpartition("/")[2].removesuffix(".index")) != 0


def copy_store(world: TamperedWorld, node: ClusterNode) -> None:
    """A backup of all that a node keeps."""
    if node.core is not None and (node.store_copy is None or world.rng.random() < 0.3):
        node.store_copy = node.member, take_picture(node.disk, FOLDER)


def restore_store(world: TamperedWorld, _: ClusterNode) -> None:
    """A node dies, and what it holds of channels is put back from the backup; what it holds of the metadata stays."""
    found = [
        (node, node.store_copy[1])
        for node in world.nodes.values()
        # (Not of a disk that was wiped since.)
        if node.store_copy is not None and node.core is not None and node.store_copy[0] == node.member
    ]
    found = [(node, picture) for node, picture in found if may_lie(world, node.name)]
    if not found:
        return
    node, picture = world.rng.choice(found)
    node.store_copy = None
    (node.crash if world.rng.random() < 0.5 else node.kill)()
    _switch_off(node)
    end_process(node.disk)
    put_store_back(node, picture)
    node.tampered = True
    world.counters["old_copy"] += 1


def put_store_back(node: ClusterNode, picture: Picture) -> None:
    metadata = take_picture(node.disk, METADATA)
    states = {
        path: node.disk.durable_bytes(path) for path in durable_files(node.disk, FOLDER) if path.startswith(NODE_STATE)
    }
    put_back(node.disk, picture)
    put_back(node.disk, metadata)
    for path, data in states.items():
        node.disk.replace_bytes(path, data)


def lying_syncs(world: TamperedWorld, node: ClusterNode) -> None:
    """Some syncs of the store report success and save nothing; soon after that the power goes."""
    if node.core is None or not may_lie(world, node.name):
        return
    faults = node.disk.faults
    faults.lying_syncs, faults.lying_folder = world.rng.randint(1, 6), world.rng.choice((WAL_FOLDER, CHANNELS_FOLDER))
    node.tampered = True
    world.counters["lying_syncs"] += 1
    process = node.process

    def cut() -> bool:
        if node.process == process:
            node.crash()
        return True

    world.scheduler.after(world.rng.randrange(20, 1_500), cut)


def power_is_gone(world: TamperedWorld, node: ClusterNode) -> None:
    """Just before the disk crashes. Who may not lose it any more, because the others have left meanwhile, does not: the
    disk has written it after all. That hides no loss: the records would be those of the only whole copy, of which
    nothing is promised, and what a node finds after it is held against the model like after any crash."""
    faults = node.disk.faults
    if not faults.lying_folder:
        return
    faults.lying_syncs, faults.lying_folder = 0, ""
    if not may_lie(world, node.name):
        write_all(node.disk)
