"""Disks of the metadata group that lose synced data: a folder is an older copy of itself, files are cut, zeroed,
flipped or gone.

Always on a minority of the voters (`may_lose`): a group cannot survive more. Damage must be noticed by the folder
itself, or be harmless; an older copy is whole, and only others can notice it.

An old copy is put back only where a member that will be asked remembers more and can be reached. Elsewhere it cannot be
noticed (docs/decisions/0019), and a group that counts on such a disk may lose anything. No new fault begins until the
copy is noticed; everything else goes on, and the power of the restored node may fail while it sets the copy aside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog.sim.lying import Lie, end_process, tell_lie
from tidelog.sim.metadata.faults import _switch_off
from tidelog.sim.metadata.model import ClusterBroken
from tidelog.sim.metadata.node import FOLDER, OldCopy, SimNode
from tidelog.sim.metadata.scene import MetadataWorld

NOTICE_MS: Final = 20_000
"""Within this time an old copy is noticed, also if its node loses its power meanwhile and stays off for a while."""


def copy_folder(world: MetadataWorld, node: SimNode) -> None:
    """A backup is made, of the metadata or of everything that the node keeps."""
    core, copy = node.core, node.old_copy
    if core is None or core.storage is None or not node._noted:
        return
    if copy is None or copy.member != node.member or world.rng.random() < 0.2:  # others grow old
        node.copy_folder(whole=world.rng.random() < 0.5)


def restore_folder(world: MetadataWorld, _: SimNode) -> None:
    """An operator restores a backup, although docs/formats/metadata.md says not to."""
    found = [(node, node.old_copy) for node in world.nodes.values() if node.old_copy is not None]
    found = [(node, copy) for node, copy in found if copy.member == node.member and _may_be_put_back(world, node)]
    if not found or not _is_fair(world):
        return
    told = [(node, copy) for node, copy in found if _is_told(world, node, copy)]
    if not told:
        world.counters["restore_unnoticeable"] += 1
        return
    node, copy = world.rng.choice(told)
    _switch_off(node)
    node.disk.faults.capacity_bytes = None
    node.restore_folder()
    world.counters["restored"] += 1
    node.start()
    if world.rng.random() < 0.3:
        # The next calls are those that set the copy aside: nothing else touches the disk before.
        node.disk.cut_after = world.rng.randint(1, 12)
        node.disk.cut_in_sync = world.rng.random() < 0.5
    noticed = world.counters["old_copy_noticed"]

    def is_noticed() -> bool:
        # The power may go when the copy was just moved away: the next process finds nothing, and begins as a new disk.
        return world.counters["old_copy_noticed"] > noticed or node.member != copy.member

    if not world.scheduler.run_until(world.scheduler.now_ms + NOTICE_MS, is_noticed):
        raise ClusterBroken(f"NC3: {copy.member} is an older copy of its disk, and nobody noticed")


def _may_be_put_back(world: MetadataWorld, node: SimNode) -> bool:
    return world.may_lose(node.member) and not node.retired and node.name not in world.removals


def _is_told(world: MetadataWorld, node: SimNode, copy: OldCopy) -> bool:
    return any(_can_tell(world, node, other, copy) for other in world.nodes.values())


def _is_fair(world: MetadataWorld) -> bool:
    """No message of the one second that counts is lost or held up for longer."""
    return not (world.weather.loss or world.weather.spike)


def _can_tell(world: MetadataWorld, node: SimNode, other: SimNode, copy: OldCopy) -> bool:
    """It remembers more, and goes on until it was asked."""
    if other is node or other.core is None or other.paused or other.retired or other.name in world.removals:
        return False
    if {(node.name, other.name), (other.name, node.name)} & world.cuts:
        return False
    faults = other.disk.faults
    is_sound = other.disk.cut_after is None and faults.fail_after is None and faults.capacity_bytes is None
    return is_sound and other.remembers_more(copy)


def lie(world: MetadataWorld, node: SimNode) -> None:
    """A file of what was written, all of it durable, is damaged or gone while the node is off.

    Not after a power cut: the mark of the last moments is gone then as well, as it may be, and only the peers tell what
    was acked in them from a torn write.
    """
    if node.core is None or not node.member or not world.may_lose(node.member):
        return
    _switch_off(node)
    end_process(node.disk)
    kind, files = world.rng.choice(list(Lie)), set(node.files())
    if tell_lie(node.disk, world.rng, FOLDER, kind, choose=lambda path: path in files) is not None:
        world.model.durable[node.member].is_gone = True
        world.counters["lied"] += 1
        world.counters[f"lied_{kind}"] += 1


LIES: Final[dict[str, tuple[int, Callable[[MetadataWorld, SimNode], None]]]] = {
    "copy_folder": (5, copy_folder),
    "restore_folder": (6, restore_folder),
    "lie": (3, lie),
}
"""Name to weight and what it does."""
