"""A leader compares a follower's log with its own: where they part, and who of the two lacks what was committed."""

from __future__ import annotations

from tidelog.cluster.replication.state import ReplicaState
from tidelog.core.catalog import ShrinkIsr, ShrinkReason
from tidelog.core.replication.messages import SyncError, SyncNack, SyncRequest


def history_problem(replica: ReplicaState, leader_epoch: int, request: SyncRequest) -> SyncNack | None:
    """RLE3: where the sender's log parts from this one, or begins before it."""
    start, last_epoch = request.fetch_from, request.last_epoch
    error, epoch, end = None, 0, 0
    if start < replica.log_start or (last_epoch == 0 and start > replica.log_end):
        error = SyncError.BAD_RANGE
    elif last_epoch:
        found = replica.epochs.end_of(last_epoch, replica.log_end)
        if found is None:
            # Its records are older than this log remembers: they cannot be compared.
            error = SyncError.BAD_RANGE
        elif found[0] != last_epoch or found[1] < start:
            error, (epoch, end) = SyncError.DIVERGED, found
    if error is None:
        return None
    return SyncNack(
        channel_id=replica.channel_id,
        leader_epoch=leader_epoch,
        request_id=request.request_id,
        error=error,
        log_start=replica.log_start,
        epoch=epoch,
        end=end,
    )


def lacks_committed(replica: ReplicaState, leader_epoch: int, peer: str, request: SyncRequest, nack: SyncNack) -> str:
    """RLE4: why another should lead, in words: the sender would have to cut what it knows to be committed. Empty if
    not.

    Where an election with loss made this log the one that counts, that is as it should be.
    """
    agreed = min(nack.end, request.fetch_from) if nack.error is SyncError.DIVERGED else nack.log_start
    unclean = replica.record.unclean
    if request.committed_end <= agreed or (unclean and unclean[-1].leader_epoch >= leader_epoch):
        return ""
    return f"it lacks records {agreed} to {request.committed_end}, which {peer} knows to be committed"


def short_member(replica: ReplicaState, peer: str, request: SyncRequest) -> ShrinkIsr | None:
    """RLE4: who was in sync held all that is committed. If it does not, its disk has lost a part: it leaves the ISR, is
    not eligible either, catches up and joins again."""
    record = replica.record
    if record.member(peer) is None or request.fetch_from >= replica.committed_end:
        return None
    replica.out.say(
        "member lost records", channel=replica.name, node=peer, ends=request.fetch_from, was=replica.committed_end
    )
    return ShrinkIsr(
        channel_id=replica.channel_id,
        expected_channel_epoch=record.channel_epoch,
        members=(peer,),
        reason=ShrinkReason.WITHDRAWN,
    )


def refuse(replica: ReplicaState, peer: str, request: SyncRequest) -> None:
    """Answer a request to a node that does not lead."""
    gone = replica.record.paused or peer not in replica.record.replicas
    replica.out.send(
        peer,
        SyncNack(
            channel_id=request.channel_id,
            leader_epoch=replica.record.leader_epoch,
            request_id=request.request_id,
            error=SyncError.CHANNEL_CLOSED if gone else SyncError.NOT_LEADER,
        ),
    )
