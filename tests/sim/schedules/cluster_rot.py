"""Rot in the logs of a cluster that nobody sees before it is read, and records that a disk never wrote.

Bytes of a block flip in a file that the next process has no reason to doubt. Who reads it finds out: a leader for its
followers, a fold, the next opening. Somebody whose log is whole has the records for the repair.
"""

from __future__ import annotations

from tests.sim.schedules.cluster import ClusterSchedule
from tests.sim.schedules.cluster_lies import FLIPPED_BYTES, HEARTBEAT_MS, MANY, state_of
from tidelog.core.catalog import NodeState
from tidelog.core.liveness import LivenessConfig
from tidelog.sim.lying import durable_files, end_process, flip_bytes
from tidelog.storage.store.parts import CHANNELS_FOLDER


def rot_block(plan: ClusterSchedule, name: str, number: int = -1) -> None:
    """The node was stopped cleanly. Bytes in the middle of a block of its log flip (of the last one, unless told), in a
    file that its next process has no reason to doubt."""
    node, channel = plan.node(name), plan.channel
    head = channel.copies[name].entries[number].head
    found = 0
    end_process(node.disk)
    for path in durable_files(node.disk, ".tidelog"):
        place = node.disk.durable_bytes(path).find(head)
        if place >= 0:
            flip_bytes(node.disk, path, place + len(head) + 4, place + len(head) + 4 + FLIPPED_BYTES)
            found += 1
    plan.must(found > 0, "the block lies in a file")
    node.tampered = node.rotten = True


def rot_that_a_leader_finds() -> ClusterSchedule:
    """TE2: the pinned leader holds two records more than the others, and the second rots while all are off. Its opening
    has no reason to look. It leads, for its log is the longest, reads the record for its followers, and cannot:
    somebody whose log is whole leads then."""
    plan = ClusterSchedule(
        3, leader="n3", leader_pinned="n3", heartbeat_ms=HEARTBEAT_MS, liveness=LivenessConfig(), lag_ms=300
    )
    producer = plan.producer()
    plan.written(producer, 3)
    plan.until_in_sync("n1", "n2", "n3")
    end = plan.channel.end
    plan.cut_data("n3")
    for more in (1, 2):  # the followers get the first, so that its leader is not silent to them
        plan.write(producer)
        plan.until(lambda more=more: plan.replica("n3").held_end == end + more, "only n3 holds it")  # type: ignore[misc]
    for name in plan.world.nodes:
        plan.node(name).stop()
    plan.world.drops = None
    rot_block(plan, "n3")
    for name in plan.world.nodes:
        plan.node(name).start()
    plan.until(lambda: not producer.pending, "writes go on", 5_000)
    plan.must(plan.channel.record.leader_epoch > 2, "n3 led, and found the rot")
    plan.settle()
    return plan


def lost_start_of_an_epoch() -> ClusterSchedule:
    """FW6: n3 is elected, and the disk loses the first record of its epoch after the write-ahead file is gone. Its
    store knows that there was one, and not of which epoch. That is nobody's history: the others go on, n3 cuts it."""
    plan = ClusterSchedule(3, leader="n2", heartbeat_ms=HEARTBEAT_MS, liveness=LivenessConfig())
    producer, liar = plan.producer(), plan.node("n3")
    plan.written(producer, 6)
    plan.until_in_sync("n1", "n2", "n3")
    plan.run(6_000)  # all of it is in segments
    end, epoch = plan.channel.end, plan.channel.record.leader_epoch
    faults = liar.disk.faults
    faults.lying_syncs, faults.lying_folder, liar.tampered = MANY, CHANNELS_FOLDER, True
    plan.change_leader("n3")
    plan.until(lambda: plan.replica("n3").committed_end > end, "n3 has committed the first record of its epoch")
    plan.run(6_000)  # and that is taken for written to a segment
    plan.must(faults.lying_syncs < MANY, "there is something to lose")
    for name in plan.world.nodes:
        plan.node(name).kill()
    liar.disk.crash()
    faults.lying_syncs, faults.lying_folder = 0, ""
    for name in plan.world.nodes:
        plan.node(name).start()

    def misses_it() -> bool:
        replica = plan.core("n3").channels.replicas.replica(plan.channel.channel_id)
        return replica is not None and replica.damaged == (range(end, end + 1),)

    plan.until(misses_it, "n3 misses that record")
    plan.must(plan.replica("n3").epochs.newest == epoch, "n3 does not know its epoch")
    plan.settle()
    plan.written(producer)
    plan.settle()
    return plan


def damaged_batch_comes_again() -> ClusterSchedule:
    """FO3: a follower folds its log while the last batch of a producer is damaged there. The batch is repaired, the
    follower leads, and the producer sends it again."""
    plan = ClusterSchedule(3, heartbeat_ms=HEARTBEAT_MS, liveness=LivenessConfig())
    producer = plan.producer()
    plan.written(producer, 3)
    plan.write(producer)
    batch = producer.pending[0]
    plan.until(lambda: not producer.pending, "the batch is acked")
    last = len(plan.channel.copies["n2"].entries) - 1
    plan.written(plan.producer(), 6)  # so that the batch lies in a segment that is sealed
    plan.until_in_sync("n1", "n2", "n3")
    plan.node("n3").stop()
    plan.until_in_sync("n1", "n2")
    rot_block(plan, "n3", last)
    plan.node("n3").start()
    plan.until_in_sync("n1", "n2", "n3")
    replica = plan.replica("n3")
    replica.order_fold()
    plan.until(lambda: bool(replica.damaged), "the fold has found the rot", 5_000)
    plan.until(lambda: not replica.damaged, "it is repaired", 20_000)
    plan.until_in_sync("n1", "n2", "n3")
    plan.change_leader("n3")
    plan.until(lambda: plan.leads_channel("n3") and plan.replica("n3").served_epoch > 0, "n3 leads and serves")
    acked = producer.acked
    producer.pending.append(batch)
    plan.until(lambda: producer.acked > acked, "the repeated batch is answered")
    plan.must(plan.world.counters["repeated"] > 0, "6: the batch was not recognized")
    plan.settle()
    return plan


def session_lost_beside_damage() -> ClusterSchedule:
    """R5: a member of the ISR loses its session while nobody leads, and is back in the same process. It has lost
    nothing, so it can lead; and it must, for the log of the only other member is damaged above what was committed."""
    plan = ClusterSchedule(
        5, leader="n3", replicas=("n2", "n3"), factor=2, min_isr=1, heartbeat_ms=HEARTBEAT_MS, liveness=LivenessConfig()
    )
    producer = plan.producer()
    plan.written(producer, 3)
    plan.until_in_sync("n2", "n3")
    end = plan.channel.end
    plan.cut_data("n2")
    plan.write(producer)
    plan.until(lambda: plan.replica("n3").held_end == end + 1, "only n3 holds it")
    plan.node("n3").stop()
    plan.run(HEARTBEAT_MS)  # so that its session ends first, and nobody takes n2 out of the ISR
    plan.cut("n2")
    plan.until(lambda: state_of(plan, "n2") is NodeState.FENCED, "n2 lost its session")
    plan.must(plan.isr() == {"n2", "n3"} and plan.channel.end == end, "both are in the ISR, nothing more is committed")
    rot_block(plan, "n3")
    plan.join_links()
    plan.until(lambda: state_of(plan, "n2") is NodeState.ACTIVE, "n2 is back")
    plan.must(not plan.world.model.reference.doubtful(plan.channel.channel_id), "R5: n2 has lost nothing")
    plan.node("n3").start()
    plan.until(lambda: not producer.pending, "writes go on", 10_000)
    plan.settle()
    return plan
