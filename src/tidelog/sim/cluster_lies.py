"""Disks that lie: what was synced is gone, zeroed or flipped, while its node is off, on a minority of the replicas.

The damages are those of real disks and of people who tidy up: a write-ahead file is removed, its second half is
zero, its last bytes are flipped. The schedules here put them in front of an election. Nothing that was acked may be
lost while one in-sync replica is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tidelog.core.catalog import ChangeLeader
from tidelog.core.liveness import LivenessConfig
from tidelog.core.replication.messages import SyncResponse
from tidelog.sim.cluster_node import ClusterNode
from tidelog.sim.cluster_schedule import ClusterSchedule
from tidelog.sim.lying import flip_bytes, remove_file, zero_bytes
from tidelog.storage.channel_logs import ChannelLogConfig, ChannelLogs
from tidelog.storage.store import open_store
from tidelog.storage.watermarks import WATERMARKS_PATH

HEARTBEAT_MS: Final = 200
FLIPPED_BYTES: Final = 4


def wal_files(node: ClusterNode) -> list[str]:
    """The write-ahead files that hold something, oldest first."""
    return [path for path in node.channel_files() if path.endswith(".wal")]


def remove_wal(node: ClusterNode) -> bool:
    """The newest write-ahead file is gone."""
    files = wal_files(node)
    if files:
        remove_file(node.disk, files[-1])
    return bool(files)


def zero_wal(node: ClusterNode) -> bool:
    """From its middle on the newest write-ahead file is zero."""
    files = wal_files(node)
    if files:
        zero_bytes(node.disk, files[-1], len(node.disk.durable_bytes(files[-1])) // 2)
    return bool(files)


def flip_wal(node: ClusterNode) -> bool:
    """The last bytes that the newest write-ahead file holds are flipped."""
    files = wal_files(node)
    if files:
        end = len(node.disk.durable_bytes(files[-1]).rstrip(b"\0"))
        flip_bytes(node.disk, files[-1], end - FLIPPED_BYTES, end)
    return bool(files)


DAMAGES: Final[dict[str, Callable[[ClusterNode], bool]]] = {
    "removed": remove_wal,
    "zeroed": zero_wal,
    "flipped": flip_wal,
}


def lying_disk(
    damage: str, *, start: tuple[str, ...] = ("n1", "n3"), nodes: int = 3, min_isr: int = 2, stop: str = "kill"
) -> ClusterSchedule:
    """All nodes stop, the disk of n3 has lost what it had synced, and n3 is the one that is meant to lead."""
    plan = ClusterSchedule(
        nodes,
        leader="n2",
        factor=nodes,
        leader_pinned="n3",
        min_isr=min_isr,
        heartbeat_ms=HEARTBEAT_MS,
        liveness=LivenessConfig(),
    )
    plan.until(lambda: plan.leads_channel("n3"), "the pinned leader leads")
    producer = plan.producer()
    plan.written(producer, 12)
    plan.until_in_sync(*plan.world.nodes)
    for name in plan.world.nodes:
        getattr(plan.node(name), stop)()
    plan.must(DAMAGES[damage](plan.node("n3")), "there is something to damage")
    plan.node("n3").tampered = True
    for name in start:
        plan.node(name).start()
    plan.until(lambda: any(map(plan.leads_channel, plan.world.nodes)), "somebody leads")
    plan.until(lambda: bool(plan.isr() & set(start)), "somebody is in sync")
    plan.run(2_000)
    for name in plan.world.nodes:
        plan.node(name).start()
    plan.settle()
    plan.written(producer)
    plan.settle()
    return plan


# --- a log that is shorter than it was, and whose store cannot know ------------------------------------------------


def shorten(plan: ClusterSchedule, name: str, end: int) -> None:
    """The node is off. Its log ends here now, as if it had been told to cut it: nothing in its store says otherwise."""
    node, channel = plan.node(name), plan.channel
    store = open_store(node.disk, now_us=node.now_us(), options=plan.world.store_options)
    logs = ChannelLogs(store)
    config = ChannelLogConfig(
        channel_id=channel.channel_id, name=channel.name, persistent=True, options=plan.world.log_options
    )
    logs.open(config, node.now_us())
    logs.truncate(channel.channel_id, end, node.now_us())
    logs.close_all(node.now_us())
    node.tampered = True


def five_nodes(min_isr: int = 2) -> ClusterSchedule:
    """The metadata lives on n1, n2 and whoever else is there; the channel on n3, n4 and n5. n4 leads it."""
    return ClusterSchedule(
        5,
        leader="n4",
        replicas=("n3", "n4", "n5"),
        min_isr=min_isr,
        heartbeat_ms=HEARTBEAT_MS,
        liveness=LivenessConfig(),
    )


def _waits_for_a_whole_copy(plan: ClusterSchedule, whole: str, last: str, *, wrong: str) -> ClusterSchedule:
    """All are off and the log of n3 is short. It comes back first and does not lead; the first whole copy does."""
    plan.node("n3").start()
    plan.until(lambda: plan.core("n3").is_registered, "n3 is back")
    plan.run(6_000)
    plan.must(not plan.leads_channel("n3"), wrong)
    plan.node(whole).start()
    plan.until(lambda: plan.leads_channel(whole), "the whole copy leads")
    plan.node(last).start()
    plan.settle()
    return plan


def alone_after_a_crash(min_isr: int = 2) -> ClusterSchedule:
    """KIP-966: of three that lost their power the first that is back holds less than it had synced, and has forgotten
    what it knew. It does not lead before a majority was compared."""
    plan = five_nodes(min_isr)
    producer = plan.producer()
    plan.written(producer, 3)
    kept = plan.channel.end
    plan.written(producer, 3)
    plan.until_in_sync("n3", "n4", "n5")
    for name in ("n3", "n4", "n5"):
        plan.node(name).crash()
    shorten(plan, "n3", kept)
    if plan.node("n3").disk.exists(WATERMARKS_PATH):
        remove_file(plan.node("n3").disk, WATERMARKS_PATH)
    return _waits_for_a_whole_copy(plan, "n5", "n4", wrong="1: n3 leads alone, and holds less than was committed")


def short_among_all() -> ClusterSchedule:
    """All lose their power. The log of the one that is meant to lead was cut without a trace, and it has forgotten what
    it knew: when all are back it is the shortest, and another one leads."""
    plan = ClusterSchedule(3, leader="n3", leader_pinned="n3", heartbeat_ms=HEARTBEAT_MS, liveness=LivenessConfig())
    producer = plan.producer()
    plan.written(producer, 3)
    kept = plan.channel.end
    plan.written(producer, 3)
    plan.until_in_sync("n1", "n2", "n3")
    for name in plan.world.nodes:
        plan.node(name).crash()
    shorten(plan, "n3", kept)
    if plan.node("n3").disk.exists(WATERMARKS_PATH):
        remove_file(plan.node("n3").disk, WATERMARKS_PATH)
    for name in plan.world.nodes:
        plan.node(name).start()
    plan.settle()
    plan.written(producer)
    plan.settle()
    return plan


def remembered_end() -> ClusterSchedule:
    """A log that was cut without a trace, after a clean stop: its node remembers that it was longer. What was committed
    behind it the node had not heard of yet."""
    plan = five_nodes()
    producer = plan.producer()
    plan.written(producer, 3)
    kept = plan.channel.end
    plan.until(lambda: plan.replica("n3").committed_end == kept, "n3 has heard what is committed")
    plan.world.drops = lambda _, target, message: (
        target == "n3" and isinstance(message, SyncResponse) and not message.data
    )
    plan.written(producer)
    plan.must(plan.replica("n3").committed_end == kept, "n3 has not heard of the last block's commit")
    for name in ("n3", "n4", "n5"):
        plan.node(name).stop()
    plan.world.drops = None
    shorten(plan, "n3", kept)
    return _waits_for_a_whole_copy(plan, "n4", "n5", wrong="1: n3 leads though it remembers that its log was longer")


def committed_is_kept() -> ClusterSchedule:
    """FW6: a short log was made to lead, alone, and has committed a record. Nobody else cuts what it knows to be
    committed; an operator then decides, and the catalog has it on record."""
    plan = five_nodes(min_isr=1)
    producer = plan.producer()
    plan.written(producer, 3)
    kept = plan.channel.end
    plan.written(producer, 3)
    end = plan.channel.end
    plan.until_in_sync("n3", "n4", "n5")
    for name in ("n4", "n5"):
        plan.until(lambda name=name: plan.replica(name).committed_end == end, "it has heard what is committed")  # type: ignore[misc]
    plan.node("n3").crash()
    for name in ("n4", "n5"):
        plan.node(name).stop()
    shorten(plan, "n3", kept)
    plan.world.model.tolerates_short_leaders = True
    plan.node("n3").start()
    plan.until(lambda: plan.core("n3").is_registered and not _is_led(plan), "n3 is back, and nobody leads")
    _elect(plan, "n3")  # past the comparison
    plan.until(lambda: plan.leads_channel("n3") and plan.isr() == {"n3"}, "n3 leads alone")
    plan.until(lambda: plan.replica("n3").serves, "n3 has committed its first record")
    plan.node("n4").start()
    plan.until(lambda: plan.core("n4").is_registered and bool(plan.replica("n4").problem), "n4 says what is wrong")
    plan.run(3_000)
    plan.must(plan.replica("n4").log_end == end, f"1: n4 cut what it knew to be committed up to {end}")
    plan.node("n3").kill()
    plan.until(lambda: not _is_led(plan), "nobody leads again")
    plan.world.model.tolerates_short_leaders = False
    _elect(plan, "n4", operator="anna")
    plan.until(lambda: plan.leads_channel("n4"), "n4 leads")
    plan.must(plan.channel.end >= end, "1: the operator's choice lost what it holds")
    for name in ("n3", "n5"):
        plan.node(name).start()
    plan.settle()
    plan.written(producer)
    plan.settle()
    return plan


def _is_led(plan: ClusterSchedule) -> bool:
    return plan.world.model.reference.has_live_leader(plan.channel.record)


def _elect(plan: ClusterSchedule, name: str, operator: str = "") -> None:
    record = plan.channel.record
    change = ChangeLeader(
        channel_id=record.channel_id,
        expected_channel_epoch=record.channel_epoch,
        leader=name,
        incarnation=plan.core(name).incarnation,
        at_ms=1,
        operator=operator,
    )
    plan.changed("n1", change)


SHORT_LOGS: Final = (alone_after_a_crash, short_among_all, remembered_end, committed_is_kept)


LIES: Final[dict[str, Callable[[], ClusterSchedule]]] = {
    f"{damage}, {'some' if start else 'all'} start, min_isr {min_isr}, {nodes} nodes, {stop}": partial(
        lying_disk,
        damage,
        start=start or tuple(f"n{number + 1}" for number in range(nodes)),
        nodes=nodes,
        min_isr=min_isr,
        stop=stop,
    )
    for damage in DAMAGES
    for nodes, some in ((3, ("n1", "n3")), (5, ("n3", "n4", "n5")))
    for start in (some, ())
    for min_isr in (1, 2)
    for stop in ("kill", "crash")
}
"""By name, every damage in front of an election, with a part of the nodes and with all of them."""
