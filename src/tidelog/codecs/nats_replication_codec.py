"""Replication over NATS, from our messages to Liftbridge's bytes and back: docs/protocols/nats.md has the tables.

Seed 002's requests, notifications and answers, with what our protocol needs beyond in fields that Liftbridge's readers
skip. Four of our messages travel so: SyncRequest, SyncResponse (`nats_response_parts`), SyncNack and Notify. All others
are for the metadata leader or from it, and stay on the link.

Offsets in Liftbridge's fields are those of the last record, -1 for none; ours are ends. They are turned into each other
here and nowhere else. No link proves who speaks, so every message names its sender and its cluster.

What a caller must keep: take only what comes from a server on which nobody but the nodes may publish to these subjects.

NR1  What is encoded decodes to the same message; what a Liftbridge reader sees of it are the bytes of Liftbridge's own.
NR2  No input makes decoding raise anything but `BadEnvelope`, `BadMessage` or `WrongCluster`.
NR3  Nobody listening becomes NOT_LEADER, which makes a follower ask again and nothing else. Only what the leader itself
     says, in its epoch and to the latest request, makes a follower cut its log or begin anew (FW1, FW3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from tidelog.codecs.liftbridge_envelope import Buffer, MessageType, decode_envelope, encode_envelope, open_envelope
from tidelog.codecs.nats_subjects import checked_channel
from tidelog.codecs.proto import liftbridge_internal_pb2 as pb
from tidelog.codecs.replication_codec import NUMBER_BITS, TEXT_BYTES_MAX
from tidelog.codecs.stream_names import place_of
from tidelog.core.replication.messages import Notify, SyncError, SyncNack, SyncRequest, SyncResponse
from tidelog.errors import BadEnvelope, BadMessage, BadSubject, WrongCluster
from tidelog.pki.identity import is_name

CLUSTER_BYTES: Final = 16
NATS_MESSAGES: Final = (SyncRequest, SyncResponse, SyncNack, Notify)
"""What travels over NATS, if a cluster is told to use it."""

MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSender:
    """Whose messages these are; the link says it once, here every message does."""

    node: str
    cluster: bytes

    def __post_init__(self) -> None:
        assert is_name(self.node), "node names are checked where they enter"
        assert len(self.cluster) == CLUSTER_BYTES, "a node without a cluster replicates nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    replica: str
    request: SyncRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRefusal:
    leader: str
    nack: SyncNack


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedNotify:
    leader: str
    channel: str
    notify: Notify


# --- requests ----------------------------------------------------------------------------------------


def encode_request(request: SyncRequest, *, sender: NatsSender) -> bytes:
    """For the subject `replicate`."""
    return encode_envelope(MessageType.REPLICATION_REQUEST, _request(request, sender).SerializeToString())


def encode_offset_request(request: SyncRequest, *, sender: NatsSender) -> bytes:
    """For the subject `offset`: the same request, put as the question where its last epoch ends.

    Sent instead of the other one by a replica that holds records and has not heard its leader in this epoch yet.
    """
    message = pb.LeaderEpochOffsetRequest(leaderEpoch=request.last_epoch, request=_request(request, sender))
    return encode_envelope(MessageType.LEADER_EPOCH_OFFSET_REQUEST, message.SerializeToString())


def _request(request: SyncRequest, sender: NatsSender) -> pb.ReplicationRequest:
    return pb.ReplicationRequest(
        replicaID=sender.node,
        offset=request.fetch_from - 1,
        leaderEpoch=request.leader_epoch,
        cluster=sender.cluster,
        channelID=request.channel_id,
        requestID=request.request_id,
        lastEpoch=request.last_epoch,
        heldEnd=request.held_end,
        committedEnd=request.committed_end,
        incarnation=request.incarnation,
        channelEpoch=request.channel_epoch,
        chunkBytesMax=request.chunk_bytes_max,
        again=request.again,
    )


def decode_request(payload: Buffer, *, cluster: bytes) -> ReceivedRequest:
    """What came to `replicate` or `offset`; a leader answers both alike."""
    envelope = decode_envelope(payload)
    if envelope.kind is MessageType.REPLICATION_REQUEST:
        message = parse(pb.ReplicationRequest, envelope.payload, "a replication request")
    elif envelope.kind is MessageType.LEADER_EPOCH_OFFSET_REQUEST:
        question = parse(pb.LeaderEpochOffsetRequest, envelope.payload, "an offset request")
        message = question.request
        if question.leaderEpoch != message.lastEpoch:
            raise BadMessage(problem="an offset request asks for another epoch than its replica's last, or is not ours")
    else:
        raise BadEnvelope(problem=f"a message of type {envelope.kind} came where requests of replicas are due")
    check_cluster(message.cluster, cluster, "a replication request")
    request = SyncRequest(
        channel_id=message.channelID,
        leader_epoch=message.leaderEpoch,
        request_id=message.requestID,
        fetch_from=message.offset + 1,
        last_epoch=message.lastEpoch,
        held_end=message.heldEnd,
        committed_end=message.committedEnd,
        incarnation=message.incarnation,
        channel_epoch=message.channelEpoch,
        chunk_bytes_max=message.chunkBytesMax,
        again=message.again,
    )
    numbers = request.leader_epoch | request.request_id | request.fetch_from | request.last_epoch | request.held_end
    numbers |= request.committed_end | request.incarnation | request.channel_epoch
    check_numbers("a replication request", request.channel_id, numbers)
    return ReceivedRequest(replica=checked_node(message.replicaID), request=request)


# --- where histories part --------------------------------------------------------------------------------


def encode_diverged(nack: SyncNack, *, sender: NatsSender) -> bytes:
    """The answer to an offset request, and to any other whose history is not the leader's."""
    assert nack.error is SyncError.DIVERGED
    assert not nack.retry_after_ms, "a replica that is to cut its log need not wait"
    message = pb.LeaderEpochOffsetResponse(
        endOffset=nack.end - 1,
        cluster=sender.cluster,
        channelID=nack.channel_id,
        requestID=nack.request_id,
        leader=sender.node,
        leaderEpoch=nack.leader_epoch,
        epoch=nack.epoch,
        logStart=nack.log_start,
        detail=short_text(nack.detail),
    )
    return encode_envelope(MessageType.LEADER_EPOCH_OFFSET_RESPONSE, message.SerializeToString())


def decode_diverged(payload: memoryview, *, cluster: bytes) -> ReceivedRefusal:
    """From the payload inside the envelope."""
    what = "an offset response"
    message = parse(pb.LeaderEpochOffsetResponse, payload, what)
    check_cluster(message.cluster, cluster, what)
    nack = SyncNack(
        channel_id=message.channelID,
        leader_epoch=message.leaderEpoch,
        request_id=message.requestID,
        error=SyncError.DIVERGED,
        log_start=message.logStart,
        epoch=message.epoch,
        end=message.endOffset + 1,
        detail=checked_text(message.detail, what),
    )
    numbers = nack.leader_epoch | nack.request_id | nack.log_start | nack.epoch | nack.end
    check_numbers(what, nack.channel_id, numbers)
    return ReceivedRefusal(leader=checked_node(message.leader), nack=nack)


def nobody_listens(*, channel_id: int, request_id: int) -> SyncNack:
    """What the server's "no responders" means to the follower that asked: no leader listens yet, ask again (NR3)."""
    return SyncNack(
        channel_id=channel_id,
        leader_epoch=0,
        request_id=request_id,
        error=SyncError.NOT_LEADER,
        detail="nobody listens on the channel's subject",
    )


# --- notifications -----------------------------------------------------------------------------------------


def encode_notify(notify: Notify, *, channel: str, sender: NatsSender) -> bytes:
    """For the subject of the node that is to ask again."""
    stream, partition = place_of(channel)
    message = pb.PartitionNotification(
        stream=stream,
        partition=partition,
        cluster=sender.cluster,
        channelID=notify.channel_id,
        leader=sender.node,
        leaderEpoch=notify.leader_epoch,
    )
    return encode_envelope(MessageType.PARTITION_NOTIFICATION, message.SerializeToString())


def decode_notify(payload: Buffer, *, cluster: bytes) -> ReceivedNotify:
    what = "a notification"
    inner = open_envelope(payload, MessageType.PARTITION_NOTIFICATION)
    message = parse(pb.PartitionNotification, inner, what)
    check_cluster(message.cluster, cluster, what)
    check_numbers(what, message.channelID, message.leaderEpoch)
    try:
        channel = checked_channel(message.stream, message.partition)
    except BadSubject as error:
        raise BadMessage(problem="a notification names a partition that cannot be") from error
    return ReceivedNotify(
        leader=checked_node(message.leader),
        channel=channel,
        notify=Notify(channel_id=message.channelID, leader_epoch=message.leaderEpoch),
    )


# --- checks, also of the answers in parts --------------------------------------------------------------------


def parse(shape: type[MessageT], payload: Buffer, what: str) -> MessageT:
    """A protobuf, or `BadMessage`."""
    message = shape()
    try:
        message.ParseFromString(bytes(payload))
    except DecodeError as error:
        raise BadMessage(problem=f"{what} is no protobuf of its type") from error
    return message


def check_cluster(theirs: bytes, ours: bytes, what: str) -> None:
    """Two clusters in one namespace must not replicate into each other's logs."""
    if len(theirs) != CLUSTER_BYTES:
        raise BadMessage(problem=f"{what} is not of a Tidelog node; give this cluster a namespace of its own")
    if theirs != ours:
        raise WrongCluster(ours=ours.hex(), theirs=theirs.hex())


def check_numbers(what: str, channel_id: int, others: int) -> None:
    """Ids, epochs and offsets as the rest of replication has them: a channel is not 0, and all are below 2^62.

    `others` are all other numbers, or-ed into one: this is done for every message.
    """
    if not channel_id or (channel_id | others) >> NUMBER_BITS:
        raise BadMessage(problem=f"{what} holds numbers that cannot be")


def checked_node(name: str) -> str:
    if not is_name(name):
        raise BadMessage(problem="a message of replication names a node that cannot be one")
    return name


def checked_text(text: str, what: str) -> str:
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise BadMessage(problem=f"{what} has a text of more than {TEXT_BYTES_MAX} bytes")
    return text


def short_text(text: str) -> str:
    """Without its end, if it is too long; cut between two characters."""
    data = text.encode(errors="replace")
    return data.decode() if len(data) <= TEXT_BYTES_MAX else data[:TEXT_BYTES_MAX].decode(errors="ignore")
