"""Messages of a NATS subject on their way into the attached channel. Nothing in this file does I/O.

The leader of an attached channel listens to its subject. A message is a Liftbridge envelope, or a plain payload of any
publisher; it waits here until the channel takes it, and is acknowledged to the inbox that it names once its policy is
satisfied. NATS has no backpressure: messages that do not fit are dropped.

What a caller must keep: `take` received messages; append each batch of `next_batch` in order, and report it once, with
`refused` (the channel did not take it) or `answered`; `drop_all` when the node no longer leads.

A deposed leader that does not know it yet may take a message that the new leader takes too. That does no harm: the
deposed one's append is of an old epoch and never commits, its ALL acks never leave, and its log is cut back when it
follows. Its LEADER ack means what it always means: one disk has the message.

AT1  Messages of one subject are appended in the order in which they came, whatever their policies.
AT2  Waiting messages and those being appended are at most `bytes_max`; a message beyond it is dropped and counted, and
     so are all waiting ones when leadership ends.
AT3  An ack without an error leaves only when its policy is satisfied, with the message's offset. An ack with an error
     leaves only if the message is certainly not in the log and no other leader may have taken it.
AT4  Only a good envelope of type 0 that holds a message is one. Everything else is a plain message: stored unchanged,
     never acknowledged. An ack is sent only to a literal subject outside of the cluster's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.messages import Message, encode_messages
from tidelog.codecs.liftbridge_envelope import MessageType, PublishedMessage, encode_envelope, try_message
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.codecs.stream_names import place_of
from tidelog.core.client_messages import ANY_OFFSET, AckPolicy
from tidelog.core.subjects import is_reply_subject
from tidelog.errors import (
    InvalidRecord,
    LogError,
    NoReplicaHere,
    NotChannelLeader,
    NotEnoughReplicas,
    OffsetConflict,
    TooManyInFlight,
    UnknownChannel,
)
from tidelog.units import MIB

CHECKS_OFFSETS: Final = "liftbridge.occ"
"""In a channel's placement metadata: "1" if a message must name the offset that it will get."""
REPLY: Final = "reply"
OWN_HEADERS: Final = frozenset({"subject", REPLY})
"""Headers that Liftbridge sets itself: about the message's delivery, not its content."""
MESSAGE_BYTES_MAX: Final = 8 * MIB
"""Half of what a block may hold."""
BATCH_RECORDS_MAX: Final = 4_096
BATCH_BYTES_MAX: Final = 1 * MIB
_FIELD_BYTES: Final = 16
"""The most that a header costs in a block beside its own bytes."""
_NS_PER_US: Final = 1_000
_TOKEN_MAX: Final = 1_024
"""The most bytes of a correlation id that is returned."""

_WAITS: Final = (NotEnoughReplicas, TooManyInFlight, NotChannelLeader)
"""Temporary refusals while this node leads: the messages wait."""


class MessageArrived(NamedTuple):
    """A message as it came from NATS."""

    subject: str
    reply: str
    payload: bytes


class IncomingMessage(NamedTuple):
    """One message to append, and the receiver of its ack."""

    message: Message
    size: int
    policy: int
    """Liftbridge's number."""
    inbox: str
    """The inbox for the ack; empty for none."""
    correlation: str
    expected_offset: int
    received_ns: int
    subject: str


class SubjectBatch(NamedTuple):
    """Neighbouring messages that become one block."""

    incoming: tuple[IncomingMessage, ...]
    size: int
    ack: AckPolicy
    expected_offset: int


class AckOut(NamedTuple):
    """An ack to publish, in an envelope."""

    inbox: str
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A channel and the subject that it is fed from."""

    channel_id: int
    channel: str
    subject: str
    queue_group: str | None = None
    checks_offsets: bool = False


@dataclass(slots=True)
class FeedCounts:
    """The counters of one channel since this node leads it, or of all of them since the start."""

    messages_in: int = 0
    plain: int = 0
    """Messages without a good envelope."""
    appended: int = 0
    acked: int = 0
    refused: int = 0
    """Not appended, for a reason that the publisher got if it asked for an ack."""
    dropped: int = 0
    """Not appended, because too much was waiting or leadership ended."""

    def add(self, other: FeedCounts) -> None:
        self.messages_in += other.messages_in
        self.plain += other.plain
        self.appended += other.appended
        self.acked += other.acked
        self.refused += other.refused
        self.dropped += other.dropped


class ChannelFeed:
    """One attached channel while this node leads it."""

    def __init__(self, attachment: Attachment, *, namespace: str, bytes_max: int) -> None:
        self.attachment = attachment
        self.counts = FeedCounts()
        self._namespace = namespace
        self._bytes_max = bytes_max
        self._waiting: deque[IncomingMessage] = deque()
        self.waiting_bytes = 0
        self.in_flight_bytes = 0
        self.problem = ""
        """Why messages wait, if they do."""
        place = place_of(attachment.channel)
        self._stream = place.stream

    @property
    def held_bytes(self) -> int:
        return self.waiting_bytes + self.in_flight_bytes

    # --- what comes ---------------------------------------------------------------------------------------

    def take(self, arrived: Iterable[MessageArrived], *, now_ns: int, room_bytes: int) -> list[AckOut]:
        """Take messages that arrived together; `room_bytes` is the room left for all channels together. Returns
        refusals of those that cannot be stored at all."""
        acks: list[AckOut] = []
        bytes_max = min(self._bytes_max, self.held_bytes + room_bytes)
        for one in arrived:
            self.counts.messages_in += 1
            incoming = self._read(one, now_ns)
            if incoming.size > MESSAGE_BYTES_MAX:
                self.counts.refused += 1
                acks += self._ack(incoming, 0, pb.Ack.TOO_LARGE)
            elif self.held_bytes + incoming.size > bytes_max:
                self.counts.dropped += 1  # AT2
            else:
                self._waiting.append(incoming)
                self.waiting_bytes += incoming.size
        return acks

    def _read(self, arrived: MessageArrived, now_ns: int) -> IncomingMessage:
        found = try_message(arrived.payload)
        parsed = _parsed(found) if isinstance(found, PublishedMessage) else None
        headers = [(REPLY, arrived.reply.encode())] if arrived.reply else []
        time_us = now_ns // _NS_PER_US
        if parsed is None:
            self.counts.plain += 1
            message = Message(time_us=time_us, value=arrived.payload, headers=headers)
            policy, inbox, correlation, expected = int(pb.NONE), "", "", ANY_OFFSET
        else:
            headers += [(name, parsed.headers[name]) for name in sorted(parsed.headers) if name not in OWN_HEADERS]
            message = Message(time_us=time_us, value=parsed.value, key=parsed.key or None, headers=headers)
            policy, inbox = int(parsed.ackPolicy), self._inbox(parsed)
            correlation = parsed.correlationId[:_TOKEN_MAX]
            expected = parsed.offset if self.attachment.checks_offsets else ANY_OFFSET
        size = len(arrived.payload) + _FIELD_BYTES * (4 + len(headers))
        return IncomingMessage(message, size, policy, inbox, correlation, expected, now_ns, arrived.subject)

    def _inbox(self, parsed: pb.Message) -> str:
        """Where the ack goes; empty for nowhere (AT4)."""
        inbox = parsed.ackInbox
        if parsed.ackPolicy not in (pb.LEADER, pb.ALL) or not is_reply_subject(inbox):
            return ""
        return "" if inbox.split(".", 1)[0] == self._namespace or inbox.startswith("$") else inbox

    # --- what goes on -------------------------------------------------------------------------------------

    def next_batch(self) -> SubjectBatch | None:
        """The messages to append next, in their order (AT1); None if none waits."""
        if not self._waiting:
            return None
        first = self._waiting[0]
        waits_for_all = first.policy == pb.ALL
        count = size = 0
        for one in islice(self._waiting, BATCH_RECORDS_MAX):
            is_alone = count and (self.attachment.checks_offsets or size + one.size > BATCH_BYTES_MAX)
            if is_alone or (one.policy == pb.ALL) is not waits_for_all:
                break
            count += 1
            size += one.size
        batch = tuple(self._waiting.popleft() for _ in range(count))
        self.waiting_bytes -= size
        self.in_flight_bytes += size
        # Messages without an ack policy also count until they are on this disk, or there would be no limit (AT2).
        ack = AckPolicy.ALL if waits_for_all else AckPolicy.LEADER
        return SubjectBatch(batch, size, ack, first.expected_offset)

    @staticmethod
    def block_of(batch: SubjectBatch) -> MadeBlock:
        return encode_messages([one.message for one in batch.incoming])

    def refused(self, batch: SubjectBatch, error: LogError) -> tuple[bool, list[AckOut]]:
        """The channel did not take it. True: the batch waits; try again after a moment, or when the channel's state
        changed."""
        if isinstance(error, _WAITS):
            self.problem = error.code
            self._waiting.extendleft(reversed(batch.incoming))
            self.waiting_bytes += batch.size
            self.in_flight_bytes -= batch.size
            return True, []
        return False, self.answered(batch, 0, error, now_ns=0)

    def answered(self, batch: SubjectBatch, first_offset: int, error: LogError | None, *, now_ns: int) -> list[AckOut]:
        """The outcome of a batch that the channel took."""
        self.in_flight_bytes -= batch.size
        count = len(batch.incoming)
        if error is None:
            self.problem = ""
            self.counts.appended += count
            acks = [
                ack
                for place, one in enumerate(batch.incoming)
                for ack in self._ack(one, first_offset + place, pb.Ack.OK, now_ns=now_ns)
            ]
            self.counts.acked += len(acks)
            return acks
        self.problem = error.code
        code = _ack_error(error)
        if code is None:
            self.counts.dropped += count
            return []
        self.counts.refused += count
        return [ack for one in batch.incoming for ack in self._ack(one, 0, code)]

    def drop_all(self) -> int:
        """Leadership ended: the new leader has its own copy of messages since it subscribed (AT2)."""
        count = len(self._waiting)
        self.counts.dropped += count
        self._waiting.clear()
        self.waiting_bytes = 0
        return count

    def _ack(self, incoming: IncomingMessage, offset: int, error: pb.Ack.Error, *, now_ns: int = 0) -> Sequence[AckOut]:
        if not incoming.inbox:
            return ()
        ack = pb.Ack(
            stream=self._stream,
            partitionSubject=self.attachment.subject,
            msgSubject=incoming.subject,
            offset=offset,
            ackInbox=incoming.inbox,
            correlationId=incoming.correlation,
            ackPolicy=incoming.policy,  # type: ignore[arg-type]
            receptionTimestamp=incoming.received_ns,
            commitTimestamp=now_ns,
            ackError=error,
        )
        return (AckOut(incoming.inbox, encode_envelope(MessageType.ACK, ack.SerializeToString())),)


def _parsed(found: PublishedMessage) -> pb.Message | None:
    try:
        return pb.Message.FromString(bytes(found.message))
    except DecodeError:
        return None


def _ack_error(error: LogError) -> pb.Ack.Error | None:
    """The ack for the publisher; None: none, since the message may be in the log after all, or with another leader
    (AT3)."""
    if not error.definite or isinstance(error, NotChannelLeader | NoReplicaHere | UnknownChannel):
        return None
    if isinstance(error, OffsetConflict):
        return pb.Ack.INCORRECT_OFFSET
    if isinstance(error, InvalidRecord):
        return pb.Ack.TOO_LARGE
    return pb.Ack.UNKNOWN
