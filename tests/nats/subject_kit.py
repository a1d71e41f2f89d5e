"""A publisher on a NATS server who asks for acks, as Liftbridge's clients do without its gRPC API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.patience import patient, wait_until
from tidelog.client import Client, Record
from tidelog.codecs.liftbridge_envelope import MessageType, encode_envelope, open_envelope
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.transports.nats.connection import NatsConnection, NatsMessage, NatsOptions

WAIT_S = 30.0


def enveloped(*, checksum: bool = False, **fields: Any) -> bytes:
    """A message as a Liftbridge client sends it."""
    return encode_envelope(MessageType.PUBLISH, pb.Message(**fields).SerializeToString(), checksum=checksum)


def ack_of(payload: bytes) -> pb.Ack:
    return pb.Ack.FromString(bytes(open_envelope(payload, MessageType.ACK)))


class Publisher:
    """One connection, one ack inbox."""

    def __init__(self, url: str, *, on_ack: Callable[[pb.Ack], None] = lambda _: None) -> None:
        self.acks: dict[str, pb.Ack] = {}
        """By correlation id; the last one of each."""
        self.inbox = "acks.of.test"
        self._on_ack = on_ack
        self._probes = 0
        self.nats = NatsConnection(
            NatsOptions(servers=(url,), name="publisher"),
            on_up=lambda: None,
            on_down=lambda _: None,
            log=lambda _: None,
        )

    async def __aenter__(self) -> Publisher:
        self.nats.subscribe(self.inbox, self._take)
        self.nats.subscribe("probes", self._probed)
        await self.nats.start()
        await wait_until(lambda: self.nats.is_up, "the publisher's connection")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.nats.close()

    def _take(self, messages: list[NatsMessage]) -> None:
        for message in messages:
            ack = ack_of(message.payload)
            self.acks[ack.correlationId] = ack
            self._on_ack(ack)

    def _probed(self, messages: list[NatsMessage]) -> None:
        self._probes += len(messages)

    async def hears(self, other: NatsConnection) -> None:
        """Until the server has done what the other asked of it before."""
        before = self._probes
        assert other.publish("probes", [b""])
        await wait_until(lambda: self._probes > before, "the other's word")

    def send(self, subject: str, value: bytes, *, token: str = "", policy: int = pb.ALL, **fields: Any) -> bool:
        """In an envelope, to be acknowledged under this token."""
        inbox = self.inbox if token else ""
        payload = enveloped(value=value, ackInbox=inbox, correlationId=token, ackPolicy=policy, **fields)
        return self.nats.publish(subject, [payload])

    async def acked(self, *tokens: str) -> list[pb.Ack]:
        await wait_until(lambda: all(token in self.acks for token in tokens), f"acks of {tokens}")
        return [self.acks[token] for token in tokens]


async def records_of(client: Client, channel: str, count: int, *, deadline_s: float = WAIT_S) -> list[Record]:
    """The first messages of a channel."""
    found: list[Record] = []
    async with asyncio.timeout(patient(deadline_s)):
        async with client.reader(channel, start="earliest") as reader:
            while len(found) < count:
                found += [record for record in await reader.read() if isinstance(record, Record)]
    return found
