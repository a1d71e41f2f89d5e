"""Directed schedules of channels: what random runs do not find, or find too seldom, step by step."""

from __future__ import annotations

from enum import StrEnum

from tests.sim.schedules.cluster import ClusterSchedule
from tidelog.core.catalog import NodeState
from tidelog.core.liveness import LivenessConfig
from tidelog.sim.metadata.model import ClusterBroken

HEARTBEAT_MS = 200
FAILOVER_MS = 2_500
"""Within so long writes go on after the leader of a channel is lost (design, section 10)."""


def joiner_counts() -> ClusterSchedule:
    """R3: who is joining counts from the proposal on, though the leader has not heard what became of it."""
    plan = ClusterSchedule(3, min_isr=1)
    producer = plan.producer()
    plan.written(producer, 3)
    plan.cut_data("n3")
    plan.write(producer)
    plan.until_in_sync("n1", "n2")
    plan.until(lambda: not producer.pending, "the ISR goes on without n3")
    plan.deaf("n2")
    plan.until_in_sync("n1", "n2", "n3")
    plan.cut_data("n3")
    data = plan.world.drops
    plan.deaf("n2")
    metadata = plan.world.drops
    assert data is not None
    assert metadata is not None
    plan.world.drops = lambda *sent: data(*sent) or metadata(*sent)
    plan.write(producer)
    plan.run(300)
    plan.must(bool(producer.pending), "5: a block is acked that the joining replica does not hold")
    plan.join_links()
    plan.until(lambda: not producer.pending, "the block is acked")
    plan.settle()
    return plan


def fold_is_made_anew() -> ClusterSchedule:
    """F2: what a truncation took away is not remembered: a block that comes again is where it was committed."""
    plan = ClusterSchedule(3, leader_pinned="n2", heartbeat_ms=HEARTBEAT_MS, liveness=LivenessConfig())
    producer = plan.producer()
    plan.written(producer, 2)
    held = plan.replica("n2").log_end
    plan.cut("n2")
    plan.write(producer)
    batch = producer.pending[0]
    plan.until(lambda: plan.replica("n2").log_end > held, "the old leader has appended it")
    plan.until(lambda: plan.leads_channel("n1") or plan.leads_channel("n3"), "another one leads")
    plan.until(lambda: not producer.pending, "the new leader has taken it")
    plan.join_links()
    plan.until(lambda: plan.leads_channel("n2"), "leadership is handed back")
    plan.until(lambda: plan.replica("n2").serves, "it serves")
    producer.pending.append(batch)
    acked = producer.acked
    plan.until(lambda: producer.acked > acked, "the repeated block is answered")
    plan.must(plan.world.counters["repeated"] > 0, "6: the block was not recognized")
    plan.settle()
    return plan


def empty_memory_is_not_trusted() -> ClusterSchedule:
    """R5, 7: a member in memory that was restarted holds nothing, and leads nothing, though it was in sync."""
    plan = ClusterSchedule(3, factor=2, replicas=("n2", "n3"), persistent=False, heartbeat_ms=HEARTBEAT_MS, min_isr=1)
    producer = plan.producer()
    plan.written(producer, 3)
    plan.cut_data("n3")
    plan.node("n3").kill()
    plan.node("n3").start()
    plan.until(lambda: plan.core("n3").is_registered, "n3 is back")
    plan.cut("n2")
    plan.run(5_000)
    plan.must(not plan.leads_channel("n3"), "1: n3 leads and holds nothing")
    plan.join_links()
    plan.settle()
    return plan


def refused_append_ends_the_epoch() -> ClusterSchedule:
    """RP2: blocks that others have already, and the leader's own disk refused, are not given out again."""
    plan = ClusterSchedule(3, heartbeat_ms=HEARTBEAT_MS)
    producer = plan.producer()
    plan.written(producer, 3)
    node = plan.node("n2")
    node.store_ms = 100
    node.disk.faults.fail_kind, node.disk.faults.fail_after = "full", 1
    plan.write(producer)
    plan.until(lambda: plan.channel.record.leader_epoch > 1, "the leader has resigned")
    plan.until(lambda: not producer.pending, "the block is taken in the next epoch")
    plan.settle()
    return plan


def leader_dies() -> ClusterSchedule:
    """14: writes go on within five heartbeats and an election after the leader of a channel has died."""
    plan = ClusterSchedule(3, heartbeat_ms=HEARTBEAT_MS, liveness=LivenessConfig())
    producer = plan.producer()
    plan.written(producer, 3)
    plan.node("n2").crash()
    began_ms = plan.world.scheduler.now_ms
    plan.written(producer)
    took_ms = plan.world.scheduler.now_ms - began_ms
    # The producer's own patience is in it: what it sent to the dead leader it sends again only after that.
    if took_ms > 5 * HEARTBEAT_MS + 1_000 + 1_500:
        raise ClusterBroken(f"14: the first write after a leader's death took {took_ms} ms")
    plan.node("n2").start()
    plan.settle()
    return plan


def two_of_three_gone() -> ClusterSchedule:
    """Two of three members of the ISR are gone, the metadata of five nodes is there: the third goes on where it may."""
    plan = ClusterSchedule(
        5, leader="n3", replicas=("n3", "n4", "n5"), min_isr=1, heartbeat_ms=HEARTBEAT_MS, liveness=LivenessConfig()
    )
    producer = plan.producer()
    plan.written(producer, 3)
    plan.node("n3").crash()
    plan.node("n4").crash()
    plan.written(producer)
    plan.until(lambda: plan.leads_channel("n5"), "the third leads")
    plan.node("n3").start()
    plan.node("n4").start()
    plan.settle()
    return plan


class LostWay(StrEnum):
    """Which messages of a pair are lost."""

    BOTH = "both"
    MUTE = "mute"
    """Those that the leader sends."""
    DEAF = "deaf"
    """Those that are sent to the leader."""


def leader_cut_from_its_followers(
    min_isr: int = 2, lag_ms: int | None = None, way: LostWay = LostWay.BOTH
) -> ClusterSchedule:
    """14, R6: the metadata leader hears a channel's leader and its followers do not, or it does not hear them. Another
    one leads and serves within the failover bar, and stays: who was deposed does not come back while it is cut off, and
    does once it is not."""
    plan = ClusterSchedule(
        5,
        leader="n3",
        replicas=("n3", "n4", "n5"),
        min_isr=min_isr,
        heartbeat_ms=HEARTBEAT_MS,
        liveness=LivenessConfig(),
        lag_ms=lag_ms,
    )
    producer = plan.producer()
    plan.written(producer, 3)
    followers = ("n4", "n5")
    if way is not LostWay.DEAF:
        plan.world.cuts |= {("n3", other) for other in followers}
    if way is not LostWay.MUTE:
        plan.world.cuts |= {(other, "n3") for other in followers}
    began_ms = plan.world.scheduler.now_ms
    plan.write(producer)
    if plan.transport == "link":
        # (Over NATS the leader and its followers reach each other all the same.)
        plan.until(lambda: any(plan.leads_channel(one) and plan.replica(one).serves for one in followers), "one serves")
        took_ms = plan.world.scheduler.now_ms - began_ms
        if took_ms > FAILOVER_MS:
            raise ClusterBroken(f"14: the next leader serves {took_ms} ms after the leader was cut off")
    plan.until(lambda: not producer.pending, "the block is acked")
    took_ms = plan.world.scheduler.now_ms - began_ms
    # (The producer's patience is in it: what it sent to the old leader it sends again only after that.)
    if took_ms > FAILOVER_MS + 1_500:
        raise ClusterBroken(f"14: the first write after the leader was cut off took {took_ms} ms")
    # (Over NATS the write needs no new leader: it is elected a little later, when the channel is quiet.)
    plan.run(5_000)
    epoch = plan.channel.record.leader_epoch
    plan.run(10_000)
    plan.written(producer)
    plan.must(plan.channel.record.leader_epoch == epoch, "14: leadership goes to and fro")
    plan.must(not plan.leads_channel("n3"), "14: the leader that is cut off leads")
    plan.join_links()
    plan.settle()
    return plan


def one_bad_link() -> ClusterSchedule:
    """R6: two in sync that do not hear each other. No election would help, so there is none."""
    plan = ClusterSchedule(
        5,
        leader="n4",
        replicas=("n4", "n5"),
        factor=2,
        min_isr=2,
        heartbeat_ms=HEARTBEAT_MS,
        liveness=LivenessConfig(),
    )
    producer = plan.producer()
    plan.written(producer, 3)
    epoch = plan.channel.record.leader_epoch
    plan.cut("n4", off={"n5"})
    plan.run(10_000)
    plan.must(plan.channel.record.leader_epoch == epoch, "14: an election that does not help")
    plan.join_links()
    plan.settle()
    return plan


def fenced_as_it_commits() -> ClusterSchedule:
    """RLE1: a leader hears in one go that the others have left the ISR, so that it may commit, and that it was fenced.
    What it acks was committed, though it leads no more once it has heard."""
    plan = ClusterSchedule(3, min_isr=1, heartbeat_ms=HEARTBEAT_MS, lag_ms=300, liveness=LivenessConfig())
    producer = plan.producer()
    plan.written(producer, 3)
    plan.until_in_sync("n1", "n2", "n3")
    plan.cut_data("n1", "n3")
    data = plan.world.drops
    plan.deaf("n2")
    metadata = plan.world.drops
    assert data is not None
    assert metadata is not None
    plan.world.drops = lambda *sent: data(*sent) or metadata(*sent)
    plan.write(producer)
    plan.until_in_sync("n2")
    plan.world.drops = lambda source, target, message: "n2" in (source, target)
    record = plan.world.model.reference
    plan.until(lambda: (node := record.node("n2")) is not None and node.state is NodeState.FENCED, "n2 is fenced")
    plan.must(plan.replica("n2").leads, "n2 has heard of nothing")
    acked = producer.acked
    plan.join_links()
    plan.until(lambda: producer.acked > acked, "the block is acked")
    plan.settle()
    return plan


def paused_as_it_reads() -> ClusterSchedule:
    """RLE5: a leader is paused, not long enough to be deposed, while it reads old blocks for a follower. It sends them
    when it goes on."""
    plan = ClusterSchedule(3, min_isr=1, tail_bytes=1)
    producer = plan.producer()
    plan.written(producer, 3)
    plan.cut_data("n3")
    plan.write(producer, 8)
    plan.until(lambda: not producer.pending, "the ISR goes on without n3")
    plan.world.drops = None
    leading = plan.replica("n2").leading
    assert leading is not None, "n2 leads"
    scheduler, progress = plan.world.scheduler, leading._progress["n3"]
    plan.must(scheduler.run_until(scheduler.now_ms + 30_000, lambda: progress.reading), "n2 reads for n3")
    plan.node("n2").pause(100)
    plan.until_in_sync("n1", "n2", "n3")
    plan.must(plan.channel.record.leader_epoch == 1, "n2 was deposed: the schedule shows nothing")
    plan.settle()
    return plan


SCHEDULES = (
    fenced_as_it_commits,
    paused_as_it_reads,
    leader_cut_from_its_followers,
    one_bad_link,
    joiner_counts,
    fold_is_made_anew,
    empty_memory_is_not_trusted,
    refused_append_ends_the_epoch,
    leader_dies,
    two_of_three_gone,
)
