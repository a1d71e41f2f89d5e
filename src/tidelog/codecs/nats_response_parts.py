"""Answers of a leader over NATS: LeaderEpoch and HW as seed 002 has them, then our blocks, in parts the server takes.

    0   8  envelope of type 3            24  4  ff 54 4c 52: what follows is Tidelog's
    8   8  LeaderEpoch, big-endian       28  4  length of the head, big-endian
    16  8  HW, inclusive, -1: none       32     the head (`ReplicationAnswer`), then the data of this part

The data are whole blocks as they lie in the leader's log, cut wherever a payload is full. A record of Liftbridge begins
with its offset, which is not negative, so its first byte is never ff: neither side can take the other's for its own.

What a caller must keep: send the parts of an answer in order, over one connection; leave its buffers alone until then.

NRP1  What is encoded, decoded and joined is the same answer. Every part is complete in itself but for its data.
NRP2  No input makes decoding raise anything but `BadEnvelope`, `BadMessage` or `WrongCluster`.
NRP3  An answer is handed out whole or not at all. A part that is lost, late or repeated costs that answer; the replica
      that needs it asks again, as for any lost message.
NRP4  One answer of each channel is being joined, and all of them together hold no more than their limit: the oldest go.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tidelog.codecs.liftbridge_envelope import HEAD_BYTES, MessageType, decode_envelope, envelope_head
from tidelog.codecs.nats_replication_codec import (
    NatsSender,
    ReceivedRefusal,
    check_cluster,
    check_numbers,
    checked_node,
    checked_text,
    decode_diverged,
    encode_diverged,
    parse,
    short_text,
)
from tidelog.codecs.proto import liftbridge_internal_pb2 as pb
from tidelog.codecs.replication_codec import NUMBER_BITS
from tidelog.core.replication.messages import Buffer, SyncError, SyncNack, SyncResponse
from tidelog.errors import BadEnvelope, BadMessage, PayloadTooSmall
from tidelog.units import KIB

PAYLOAD_BYTES_MIN: Final = 4 * KIB
"""What the server must take: any refusal fits, and so does some data."""
MARK: Final = b"\xffTLR"
"""What follows LeaderEpoch and HW is ours, and no Liftbridge record."""

_FIXED: Final = struct.Struct(">Qq")
_OURS: Final = struct.Struct(">4sI")
_RESPONSE_HEAD: Final = envelope_head(MessageType.REPLICATION_RESPONSE)
_OVERHEAD_BYTES_MAX: Final = HEAD_BYTES + _FIXED.size + _OURS.size + 256
"""The most bytes of the head of a part with data: it has no text, so with the longest names and numbers it stays below
256 bytes."""
_DATA_BYTES_MAX: Final = 2**32 - 1
_WHAT: Final = "a replication response"
_ERRORS: Final = {error.value: error for error in SyncError}


class ResponseHead(NamedTuple):
    """What every replication response begins with, Liftbridge's too."""

    leader_epoch: int
    committed_end: int
    rest: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedPart:
    leader: str
    part: int
    parts: int
    data_bytes: int
    """The bytes of all parts."""
    response: SyncResponse
    """With the data of this part."""


# --- encoding ----------------------------------------------------------------------------------------


def encode_response(response: SyncResponse, *, sender: NatsSender, payload_bytes_max: int) -> list[list[Buffer]]:
    """The payloads for the reply inbox, in order, each as buffers; the blocks are not copied."""
    if payload_bytes_max < PAYLOAD_BYTES_MIN:
        raise PayloadTooSmall(bytes_max=payload_bytes_max, needed=PAYLOAD_BYTES_MIN)
    data_bytes = response.data_bytes
    assert data_bytes <= _DATA_BYTES_MAX, "chunks are far smaller"
    room = payload_bytes_max - _OVERHEAD_BYTES_MAX
    parts = max(1, -(-data_bytes // room))
    fixed = _RESPONSE_HEAD + _FIXED.pack(response.leader_epoch, response.committed_end - 1)
    head = pb.ReplicationAnswer(
        cluster=sender.cluster,
        channelID=response.channel_id,
        requestID=response.request_id,
        leader=sender.node,
        logStart=response.log_start,
        logEnd=response.log_end,
        firstOffset=response.first_offset,
        dataBytes=data_bytes,
        parts=parts,
    )
    if parts == 1:
        return [[_with_head(fixed, head), *response.data]]
    payloads: list[list[Buffer]] = []
    for part, data in enumerate(_cut(response.data, room)):
        head.part = part
        payloads.append([_with_head(fixed, head), *data])
    assert len(payloads) == parts
    return payloads


def encode_nack(nack: SyncNack, *, sender: NatsSender) -> bytes:
    """A refusal, for the reply inbox. Where histories part it is Liftbridge's answer to an offset request."""
    if nack.error is SyncError.DIVERGED:
        return encode_diverged(nack, sender=sender)
    assert not nack.epoch, "only where histories part"
    assert not nack.end, "only where histories part"
    head = pb.ReplicationAnswer(
        cluster=sender.cluster,
        channelID=nack.channel_id,
        requestID=nack.request_id,
        leader=sender.node,
        logStart=nack.log_start,
        error=nack.error.value,
        retryAfterMs=nack.retry_after_ms,
        detail=short_text(nack.detail),
    )
    return _with_head(_RESPONSE_HEAD + _FIXED.pack(nack.leader_epoch, -1), head)


def _with_head(fixed: bytes, head: pb.ReplicationAnswer) -> bytes:
    data = head.SerializeToString()
    return b"".join((fixed, _OURS.pack(MARK, len(data)), data))


def _cut(data: Sequence[Buffer], room: int) -> Iterator[list[memoryview]]:
    """The buffers again, in runs of `room` bytes."""
    run: list[memoryview] = []
    left = room
    for buffer in data:
        view = memoryview(buffer)
        while view:
            piece, view = view[:left], view[left:]
            run.append(piece)
            left -= len(piece)
            if not left:
                yield run
                run, left = [], room
    if run:
        yield run


# --- decoding ----------------------------------------------------------------------------------------


def decode_answer(payload: Buffer, *, cluster: bytes) -> ReceivedPart | ReceivedRefusal:
    """What came to the reply inbox."""
    envelope = decode_envelope(payload)
    if envelope.kind is MessageType.LEADER_EPOCH_OFFSET_RESPONSE:
        return decode_diverged(envelope.payload, cluster=cluster)
    if envelope.kind is not MessageType.REPLICATION_RESPONSE:
        raise BadEnvelope(problem=f"a message of type {envelope.kind} came where answers of leaders are due")
    leader_epoch, committed_end, rest = read_response_head(envelope.payload)
    mark, head_bytes = _OURS.unpack_from(rest) if len(rest) >= _OURS.size else (b"", 0)
    if mark != MARK:
        raise BadMessage(problem=f"{_WHAT} is not of a Tidelog node; give this cluster a namespace of its own")
    if head_bytes > len(rest) - _OURS.size:
        raise BadMessage(problem=f"{_WHAT} claims a head of {head_bytes} bytes, more than there are")
    head = parse(pb.ReplicationAnswer, rest[_OURS.size : _OURS.size + head_bytes], _WHAT)
    data = rest[_OURS.size + head_bytes :]
    check_cluster(head.cluster, cluster, _WHAT)
    numbers = leader_epoch | head.requestID | head.logStart | head.logEnd | head.firstOffset | head.retryAfterMs
    check_numbers(_WHAT, head.channelID, numbers)
    leader = checked_node(head.leader)
    if head.error:
        return ReceivedRefusal(leader=leader, nack=_refusal(head, leader_epoch, data))
    _check_part(head, len(data))
    response = SyncResponse(
        channel_id=head.channelID,
        leader_epoch=leader_epoch,
        request_id=head.requestID,
        committed_end=committed_end,
        log_start=head.logStart,
        log_end=head.logEnd,
        first_offset=head.firstOffset,
        data=(data,) if data else (),
    )
    return ReceivedPart(leader=leader, part=head.part, parts=head.parts, data_bytes=head.dataBytes, response=response)


def read_response_head(payload: memoryview) -> ResponseHead:
    """The 16 bytes that seed 002 guarantees, from inside the envelope; of a Liftbridge server's responses too."""
    if len(payload) < _FIXED.size:
        raise BadMessage(problem=f"{_WHAT} of {len(payload)} bytes has no LeaderEpoch and HW")
    leader_epoch, high_watermark = _FIXED.unpack_from(payload)
    if leader_epoch >> NUMBER_BITS or not -1 <= high_watermark < (1 << NUMBER_BITS) - 1:
        raise BadMessage(problem=f"{_WHAT} has LeaderEpoch {leader_epoch} and HW {high_watermark}, which cannot be")
    return ResponseHead(leader_epoch, high_watermark + 1, payload[_FIXED.size :])


def _refusal(head: pb.ReplicationAnswer, leader_epoch: int, data: memoryview) -> SyncNack:
    error = _ERRORS.get(head.error)
    if error is None or error is SyncError.DIVERGED or data:
        raise BadMessage(problem=f"{_WHAT} refuses with error {head.error}, which it cannot")
    return SyncNack(
        channel_id=head.channelID,
        leader_epoch=leader_epoch,
        request_id=head.requestID,
        error=error,
        log_start=head.logStart,
        retry_after_ms=head.retryAfterMs,
        detail=checked_text(head.detail, _WHAT),
    )


def _check_part(head: pb.ReplicationAnswer, data_bytes: int) -> None:
    """Its numbers agree with each other and with the data that are there."""
    fits = head.part < head.parts <= max(1, head.dataBytes) and head.dataBytes <= _DATA_BYTES_MAX
    if head.parts == 1:
        fits = fits and data_bytes == head.dataBytes
    else:
        fits = fits and 0 < data_bytes < head.dataBytes
    if not fits:
        raise BadMessage(
            problem=f"{_WHAT} is part {head.part} of {head.parts}, with {data_bytes} of {head.dataBytes} bytes"
        )


# --- joining -----------------------------------------------------------------------------------------


class _Joining:
    """An answer of which some parts are here."""

    def __init__(self, first: ReceivedPart) -> None:
        self.first = first
        self.pieces: list[Buffer] = list(first.response.data)
        self.next_part = 1
        self.bytes = first.response.data_bytes

    def is_same_answer(self, part: ReceivedPart) -> bool:
        mine, other = self.first.response, part.response
        return (
            self.first.leader == part.leader
            and (mine.leader_epoch, mine.request_id, mine.first_offset)
            == (other.leader_epoch, other.request_id, other.first_offset)
            and (self.first.parts, self.first.data_bytes) == (part.parts, part.data_bytes)
        )


class ResponseJoiner:
    """Puts the answers together that came in parts (NRP3, NRP4)."""

    def __init__(self, *, bytes_max: int) -> None:
        assert bytes_max > 0
        self._bytes_max = bytes_max
        self._joining: dict[int, _Joining] = {}
        """By channel; the oldest first."""
        self.bytes = 0
        """The bytes that wait for the rest of their answer."""
        self.parts_dropped = 0
        """Since the beginning: more than a few mean a lossy or overloaded server."""

    def take(self, part: ReceivedPart) -> SyncResponse | None:
        """A part that came; the whole answer, once it is here."""
        if part.parts == 1:
            return part.response
        joining = self._joining.get(part.response.channel_id)
        if part.part == 0:
            self._begin(part, joining)
            return None
        if joining is None or not joining.is_same_answer(part):
            self.parts_dropped += 1  # of an answer whose beginning was lost, or that is older
            return None
        data_bytes = joining.bytes + part.response.data_bytes
        is_last = part.part == part.parts - 1
        fits = data_bytes == part.data_bytes if is_last else data_bytes < part.data_bytes
        if part.part != joining.next_part or not fits:
            self.parts_dropped += 1
            self.forget(part.response.channel_id)
            return None
        joining.pieces += part.response.data
        joining.next_part += 1
        joining.bytes = data_bytes
        self.bytes += part.response.data_bytes
        if is_last:
            self._remove(part.response.channel_id)
            return replace(part.response, data=tuple(joining.pieces))
        self._make_room(keep=part.response.channel_id)
        return None

    def forget(self, channel_id: int) -> None:
        """Drop what is there of an answer: it is incomplete for good, or nobody wants it any more."""
        if channel_id in self._joining:
            self.parts_dropped += self._remove(channel_id).next_part

    def _begin(self, part: ReceivedPart, before: _Joining | None) -> None:
        is_stale = before is not None and before.first.response.leader_epoch > part.response.leader_epoch
        if is_stale or part.data_bytes > self._bytes_max:
            self.parts_dropped += 1
            return
        channel_id = part.response.channel_id
        self.forget(channel_id)  # the rest of it was lost, or it is not wanted any more
        self._joining[channel_id] = _Joining(part)
        self.bytes += part.response.data_bytes
        self._make_room(keep=channel_id)

    def _make_room(self, *, keep: int) -> None:
        while self.bytes > self._bytes_max:
            oldest = next(channel_id for channel_id in self._joining if channel_id != keep)
            self.forget(oldest)

    def _remove(self, channel_id: int) -> _Joining:
        joining = self._joining.pop(channel_id)
        self.bytes -= joining.bytes
        return joining
