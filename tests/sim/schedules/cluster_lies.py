"""Disks that lie: what was synced is gone, zeroed or flipped, while its node is off, on a minority of the replicas.

The damages are those of real disks and of people who tidy up: a write-ahead file is removed, its second half is
zero, its last bytes are flipped. The schedules here put them in front of an election. Nothing that was acked may be
lost while one in-sync replica is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tests.sim.schedules.cluster import ClusterSchedule
from tidelog.core.catalog import NodeState
from tidelog.core.liveness import LivenessConfig
from tidelog.core.replication.messages import SyncRequest, SyncResponse
from tidelog.sim.cluster.liars import put_store_back
from tidelog.sim.cluster.node import ClusterNode
from tidelog.sim.lying import end_process, flip_bytes, remove_file, take_picture, zero_bytes
from tidelog.sim.metadata.faults import lose_disk
from tidelog.sim.metadata.node import FOLDER
from tidelog.storage.store.channel_logs import ChannelLogConfig, ChannelLogs
from tidelog.storage.store.parts import WAL_FOLDER
from tidelog.storage.store.recovery import open_store
from tidelog.storage.store.watermarks import WATERMARKS_PATH

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


OLD_COPY: Final = "old copy"
"""All that the node keeps of channels is as it was six blocks ago."""
LYING_SYNCS: Final = "lying syncs"
"""For six blocks every sync of a write-ahead file reported success and saved nothing; then the power went."""
MANY: Final = 10_000

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
    producer, liar = plan.producer(), plan.node("n3")
    plan.written(producer, 6)
    picture, faults = take_picture(liar.disk, FOLDER), liar.disk.faults
    if damage == LYING_SYNCS:
        faults.lying_syncs, faults.lying_folder, liar.tampered = MANY, WAL_FOLDER, True
    plan.written(producer, 6)
    plan.until_in_sync(*plan.world.nodes)
    for name in plan.world.nodes:
        getattr(plan.node(name), stop)()
    if damage == LYING_SYNCS:
        plan.must(stop == "crash" or 0 < faults.lying_syncs < MANY, "there is something to lose")
        liar.disk.crash()
    elif damage == OLD_COPY:
        end_process(liar.disk)
        put_store_back(liar, picture)
    else:
        plan.must(DAMAGES[damage](liar), "there is something to damage")
    liar.tampered = True
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
    """The metadata is on n1, n2 and further nodes; the channel on n3, n4 and n5. n4 leads it."""
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
    plan.until(lambda: plan.core("n3").is_registered and not is_led(plan), "n3 is back, and nobody leads")
    plan.change_leader("n3")  # past the comparison
    plan.until(lambda: plan.leads_channel("n3") and plan.isr() == {"n3"}, "n3 leads alone")
    plan.until(lambda: plan.replica("n3").serves, "n3 has committed its first record")
    plan.node("n4").start()
    plan.until(lambda: plan.core("n4").is_registered and bool(plan.replica("n4").problem), "n4 says what is wrong")
    plan.run(3_000)
    plan.must(plan.replica("n4").log_end == end, f"1: n4 cut what it knew to be committed up to {end}")
    plan.node("n3").kill()
    plan.until(lambda: not is_led(plan), "nobody leads again")
    plan.world.model.tolerates_short_leaders = False
    plan.change_leader("n4", operator="anna")
    plan.until(lambda: plan.leads_channel("n4"), "n4 leads")
    plan.must(plan.channel.end >= end, "1: the operator's choice lost what it holds")
    for name in ("n3", "n5"):
        plan.node(name).start()
    plan.settle()
    plan.written(producer)
    plan.settle()
    return plan


def whole_copy_in_doubt() -> ClusterSchedule:
    """CE3, C7: the log of n3 is short and the catalog trusts it; n2 holds everything, and has lost its metadata, so the
    catalog doubts its disk. Nobody leads until an operator stops n3 and elects n2: nothing is lost."""
    plan = ClusterSchedule(
        5, leader="n3", replicas=("n2", "n3"), factor=2, min_isr=1, heartbeat_ms=HEARTBEAT_MS, liveness=LivenessConfig()
    )
    producer = plan.producer()
    plan.written(producer, 3)
    kept = plan.channel.end
    plan.written(producer, 3)
    end = plan.channel.end
    plan.until_in_sync("n2", "n3")
    plan.until(lambda: plan.replica("n2").committed_end == end, "n2 has heard what is committed")
    for name in ("n2", "n3"):
        plan.node(name).stop()
    shorten(plan, "n3", kept)
    lose_disk(plan.world, plan.node("n2"), whole=False)
    for name in ("n2", "n3"):
        plan.node(name).start()
    plan.until(lambda: plan.core("n2").is_registered and plan.core("n3").is_registered, "both are back")
    plan.run(5_000)
    plan.must(not is_led(plan), "1: one of the two leads, and no operator has decided")
    plan.node("n3").kill()
    plan.until(lambda: state_of(plan, "n3") is NodeState.FENCED, "n3 is gone")
    plan.change_leader("n2", operator="anna")
    plan.until(lambda: plan.leads_channel("n2"), "n2 leads")
    plan.must(plan.channel.end >= end, "1: the operator's choice lost what it holds")
    plan.node("n3").start()
    plan.written(producer)
    plan.settle()
    return plan


def is_led(plan: ClusterSchedule) -> bool:
    return plan.world.model.reference.has_live_leader(plan.channel.record)


def state_of(plan: ClusterSchedule, name: str) -> NodeState:
    record = plan.world.model.reference.node(name)
    assert record is not None
    return record.state


def old_copy_as_long_as_the_log() -> ClusterSchedule:
    """RLE4: n4 had a record that nobody committed, cut it, and took another one in its place. Then the copy with the
    first record is put back, and nothing that n4 asks arrives. What its last process had asked for must not be sent to
    this one: by its length its log fits, by its records it does not."""
    plan = five_nodes(min_isr=1)
    producer = plan.producer()
    plan.written(producer, 3)
    plan.until_in_sync("n3", "n4", "n5")
    end = plan.channel.end
    plan.cut_data("n5")
    hasty = plan.producer()
    hasty.idempotent = False
    hasty.pending.append(next(batch for batch in iter(hasty._make, None) if batch.count == 1))
    plan.until(lambda: plan.replica("n4").held_end == end + 1, "n4 holds what n5 does not")
    n4 = plan.node("n4")
    picture = take_picture(n4.disk, FOLDER)
    for name in ("n3", "n4"):
        plan.node(name).kill()
    plan.join_links()
    plan.until(lambda: plan.leads_channel("n5"), "n5 leads")
    n4.start()
    plan.until(lambda: plan.replica("n5").committed_end == end + 1, "another record is committed in its place")
    plan.until_in_sync("n4", "n5")
    plan.until(lambda: plan.replica("n4").committed_end == end + 1, "n4 knows")
    n4.kill()
    end_process(n4.disk)
    put_store_back(n4, picture)
    n4.tampered = True
    plan.world.drops = lambda source, _, message: source == "n4" and isinstance(message, SyncRequest)
    n4.start()
    plan.until(lambda: plan.core("n4").is_registered, "n4 is back")
    plan.until(lambda: plan.replica("n4").log_end == end + 1, "its log is open")
    plan.write(producer)
    plan.until(lambda: plan.replica("n5").log_end > end + 1, "n5 has appended more")
    plan.run(500)
    plan.join_links()
    plan.node("n3").start()
    plan.until(lambda: not producer.pending, "the block is acked")
    plan.settle()
    return plan


# --- a member that comes back short (RLE4) ---------------------------------------------------------------------------


def _lose_data_for(plan: ClusterSchedule, name: str) -> None:
    """Its leader hears it, and what it is sent is lost: it does not catch up."""
    plan.world.drops = lambda _, target, message: (
        target == name and isinstance(message, SyncResponse) and bool(message.data)
    )


def short_member_leaves() -> ClusterSchedule:
    """RLE4: a member of the ISR is killed, loses a part of its log and is back before its session ends. It leaves the
    ISR at once and is not eligible; when its leader dies it leads nothing."""
    plan = ClusterSchedule(
        5, leader="n4", replicas=("n3", "n4"), factor=2, min_isr=1, heartbeat_ms=HEARTBEAT_MS, liveness=LivenessConfig()
    )
    producer = plan.producer()
    plan.written(producer, 3)
    kept = plan.channel.end
    plan.written(producer, 3)
    plan.until_in_sync("n3", "n4")
    plan.node("n3").kill()
    shorten(plan, "n3", kept)
    _lose_data_for(plan, "n3")
    plan.node("n3").start()
    plan.until(lambda: plan.core("n3").is_registered, "n3 is back")
    plan.until(lambda: plan.isr() == {"n4"}, "n3 left the ISR, of which it holds less than was committed", 1_000)
    plan.must(plan.channel.record.eligible_member("n3") is None, "1: n3 is eligible and holds less than was committed")
    plan.must(plan.leads_channel("n4"), "14: n4 leads on")
    plan.node("n4").crash()
    plan.run(6_000)
    plan.must(not plan.leads_channel("n3"), "1: n3 leads and holds less than was committed")
    plan.world.drops = None
    plan.node("n4").start()
    plan.settle()
    plan.written(producer)
    plan.settle()
    return plan


def short_leader_resigns() -> ClusterSchedule:
    """RLE4: a short log was made to lead, alone, and cannot commit. A follower comes that knows more to be committed:
    the leader resigns before it has served anything, and the follower leads."""
    plan = five_nodes()
    producer = plan.producer()
    plan.written(producer, 3)
    kept = plan.channel.end
    plan.written(producer, 3)
    end = plan.channel.end
    plan.until_in_sync("n3", "n4", "n5")
    plan.until(lambda: plan.replica("n4").committed_end == end, "n4 has heard what is committed")
    plan.node("n3").crash()
    for name in ("n4", "n5"):
        plan.node(name).stop()
    shorten(plan, "n3", kept)
    plan.node("n3").start()
    plan.until(lambda: plan.core("n3").is_registered and not is_led(plan), "n3 is back, and nobody leads")
    plan.world.model.tolerates_short_leaders = True
    plan.change_leader("n3")  # past the comparison
    plan.until(lambda: plan.leads_channel("n3"), "n3 leads")
    plan.must(not plan.replica("n3").serves, "4: n3 serves alone")
    plan.node("n4").start()
    plan.until(lambda: plan.leads_channel("n4"), "the follower that holds more leads", 5_000)
    plan.must(plan.replica("n4").log_end >= end, f"1: n4 cut what it knew to be committed up to {end}")
    plan.world.model.tolerates_short_leaders = False
    plan.node("n5").start()
    plan.settle()
    plan.written(producer)
    plan.settle()
    return plan


def short_pinned_leader(look: Callable[[ClusterSchedule], None] = lambda _: None) -> ClusterSchedule:
    """CD2: the pinned leader comes back short before its session ends, so it is in the ISR still, and is not heard by
    the one who leads now. It is not handed leadership before they were compared. `look` is called meanwhile."""
    plan = ClusterSchedule(
        3, leader="n3", leader_pinned="n3", heartbeat_ms=HEARTBEAT_MS, liveness=LivenessConfig(), lag_ms=20_000
    )
    producer = plan.producer()
    plan.written(producer, 3)
    kept = plan.channel.end
    plan.written(producer, 3)
    plan.until_in_sync("n1", "n2", "n3")
    plan.node("n3").kill()
    shorten(plan, "n3", kept)
    plan.world.drops = lambda source, _, message: source == "n3" and isinstance(message, SyncRequest)
    plan.node("n3").start()
    plan.until(lambda: plan.leads_channel("n1") or plan.leads_channel("n2"), "another one leads")
    for _ in range(3):
        plan.run(2_000)
        plan.must("n3" in plan.isr(), "n3 is in the ISR still")
        plan.must(not plan.leads_channel("n3"), "1: leadership is handed back to who holds less than was committed")
    look(plan)
    plan.world.drops = None
    plan.until(lambda: plan.leads_channel("n3"), "leadership is handed back once they were compared")
    plan.settle()
    plan.written(producer)
    plan.settle()
    return plan


SHORT_LOGS: Final = (
    alone_after_a_crash,
    short_among_all,
    remembered_end,
    committed_is_kept,
    short_member_leaves,
    short_leader_resigns,
    short_pinned_leader,
    whole_copy_in_doubt,
)

LIES: Final[dict[str, Callable[[], ClusterSchedule]]] = {
    f"{damage}, {'some' if start else 'all'} start, min_isr {min_isr}, {nodes} nodes, {stop}": partial(
        lying_disk,
        damage,
        start=start or tuple(f"n{number + 1}" for number in range(nodes)),
        nodes=nodes,
        min_isr=min_isr,
        stop=stop,
    )
    for damage in (*DAMAGES, OLD_COPY, LYING_SYNCS)
    for nodes, some in ((3, ("n1", "n3")), (5, ("n3", "n4", "n5")))
    for start in (some, ())
    for min_isr in (1, 2)
    for stop in ("kill", "crash")
}
"""By name, every damage in front of an election, with a part of the nodes and with all of them."""
