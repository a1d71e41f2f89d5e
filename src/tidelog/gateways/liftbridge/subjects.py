"""PublishToSubject over NATS, as Liftbridge does it: an envelope on the subject, and acks to an inbox of the gateway.

Leaders of channels attached to the subject receive it like any other NATS message, on whichever node or cluster they
are; so do other programs that listen. One subscription takes the acks of all calls.

The caller calls `forget` with a publish's number when its call has ended.

LJ1  An ack is passed to the call whose inbox it was sent to; acks without a call are dropped.
LJ2  At most `WAITING_MAX` calls wait for acks at once.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from tidelog.codecs.liftbridge_envelope import MessageType, encode_envelope, open_envelope
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.errors import BadEnvelope
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError, Status

if TYPE_CHECKING:
    from tidelog.transports.nats.connection import NatsConnection, NatsMessage

WAITING_MAX: Final = 8_192

Told = Callable[[pb.Ack | GatewayRefusedError], None]

_REFUSALS: Final = {
    pb.Ack.INCORRECT_OFFSET: (Status.UNKNOWN, "incorrect expected offset; read what is new and decide again"),
    pb.Ack.TOO_LARGE: (Status.INVALID_ARGUMENT, "the message is too large for the stream; split it"),
    pb.Ack.ENCRYPTION: (Status.FAILED_PRECONDITION, "the message could not be encrypted"),
}


class SubjectPublishing:
    """One per gateway of a node with NATS."""

    def __init__(self, nats: NatsConnection) -> None:
        self._nats = nats
        self._inbox = f"_INBOX.{secrets.token_hex(12)}"
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Told] = {}
        self._subscription: int | None = None

    def start(self) -> None:
        self._subscription = self._nats.subscribe(f"{self._inbox}.*", self._arrived)

    def close(self) -> None:
        if self._subscription is not None:
            self._nats.unsubscribe(self._subscription)
            self._subscription = None

    @property
    def is_up(self) -> bool:
        """Whether the NATS connection is up."""
        return self._subscription is not None and self._nats.is_up

    def publish(self, subject: str, message: pb.Message, told: Told | None) -> int:
        """Publish; returns a number to `forget`. `told` is called with each ack: one per listening stream, or none."""
        number = next(self._numbers)
        if told is not None:
            if len(self._waiting) >= WAITING_MAX:
                raise GatewayRefusedError(Status.UNAVAILABLE, f"{WAITING_MAX} calls wait for acks already; ask again")
            message.ackInbox = f"{self._inbox}.{number}"
        envelope = encode_envelope(MessageType.PUBLISH, message.SerializeToString())
        if len(envelope) > self._nats.max_payload:
            words = f"a message of {len(envelope)} bytes is over the NATS server's limit of {self._nats.max_payload}"
            raise GatewayRefusedError(Status.INVALID_ARGUMENT, f"{words}; split it")
        if not self._nats.publish(subject, [envelope]):
            raise GatewayRefusedError(
                Status.UNAVAILABLE, "the NATS server is not reached or does not keep up; ask again"
            )
        if told is not None:
            self._waiting[number] = told
        return number

    def forget(self, number: int) -> None:
        self._waiting.pop(number, None)

    def _arrived(self, messages: list[NatsMessage]) -> None:
        for message in messages:
            number = message.subject.rpartition(".")[2]
            told = self._waiting.get(int(number)) if number.isdecimal() else None
            ack = _ack_of(message.payload)
            if told is not None and ack is not None:
                told(ack if ack.ackError == pb.Ack.OK else _refusal(ack))  # LJ1


def _ack_of(payload: bytes) -> pb.Ack | None:
    """None if the payload is no ack: any NATS client can send to an inbox."""
    try:
        return pb.Ack.FromString(bytes(open_envelope(payload, MessageType.ACK)))
    except (BadEnvelope, DecodeError):
        return None


def _refusal(ack: pb.Ack) -> GatewayRefusedError:
    status, words = _REFUSALS.get(ack.ackError, (Status.UNKNOWN, "the stream did not take the message"))
    return GatewayRefusedError(status, f"{ack.stream[:80]!a}: {words}")
