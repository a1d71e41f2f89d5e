"""Native producers for the messages of Liftbridge clients: one per channel and ack policy.

All clients of this node that publish to a channel share its producers, so that single messages are batched into blocks.
Memory is bounded for the whole gateway: above `bytes_max` publishers wait, and their connections with them.

PS1  Each message is answered once: with its offset when its ack policy is satisfied, or with a typed error.
PS2  Messages of one connection under one ack policy keep their order in a partition. NONE shares the producer of
     LEADER; there is no order between that and ALL, as there is none between two connections.
PS3  At most `producers_max` idle producers are open; the least recently used is closed first.
PS4  A block that was being sent when its channel was paused may be in the log, so its messages cannot be sent anew: it
     stays in its producer, and the channel is resumed if a principal of its messages may resume it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple, TypeVar, cast

from tidelog.blocks.messages import Message
from tidelog.client import Client, Producer
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.core.catalog import ChannelRecord
from tidelog.errors import InvalidRecord, LogError, QueueFull
from tidelog.units import MIB

MESSAGE_BYTES_MAX: Final = MIB
"""Liftbridge's default limit for key, value and headers together."""
RESENT_S: Final = 30.0
"""How long a message is sent again whenever its partition is paused on the way."""
_RECORD_BYTES: Final = 128
"""At least what a record costs beyond its bytes, so that the gateway's count is never below the producer's."""
_TIMEOUT_MS: Final = 10_000

ReceiptT = TypeVar("ReceiptT")

Answered = Callable[[int, LogError | None], None]
"""Called with the offset, or with the error."""
RunAnswered = Callable[[range, int, LogError | None], None]
"""Called with a range of a run's messages and the offset of the first, or with their error."""
OnPause = Callable[[int, list[str]], None]
"""Called when a channel is paused while messages of these principals wait for it (PS4)."""


class OutgoingMessage(NamedTuple):
    """One message to publish to a channel."""

    value: bytes
    key: bytes | None
    headers: Sequence[tuple[str, bytes]]
    expected_offset: int | None = None

    @property
    def size(self) -> int:
        return size_of(Message(0, self.value, self.key, self.headers))


def size_of(message: Message) -> int:
    """The size that counts against `MESSAGE_BYTES_MAX`."""
    size = len(message.value or b"") + len(message.key or b"")
    if not message.headers:
        return size
    return size + sum(len(name) * 4 + len(content) + _RECORD_BYTES for name, content in message.headers)


class GatewayProducers:
    """One for each gateway."""

    def __init__(self, client: Client, *, node: str, bytes_max: int = 64 * MIB, producers_max: int = 1_024) -> None:
        self._client = client
        # The same name after a restart, so that the catalog does not grow with every start of a node.
        self._name = hashlib.sha256(node.encode()).hexdigest()[:16]
        self._bytes_max = bytes_max
        self._producers_max = producers_max
        self._open: OrderedDict[tuple[int, str], Producer] = OrderedDict()
        self._unanswered: dict[Producer, Counter[str]] = {}
        """Number of unanswered messages by principal."""
        self.on_pause: OnPause | None = None
        self._room = asyncio.Event()
        self._room.set()
        self.bytes = 0
        """Size of the messages that were taken and not answered yet."""

    async def wait_room(self) -> None:
        """Wait until `send` may be called."""
        while self.bytes >= self._bytes_max:
            self._room.clear()
            await self._room.wait()

    def send(
        self, record: ChannelRecord, policy: int, message: OutgoingMessage, answered: Answered, *, principal: str = ""
    ) -> None:
        """Take one message; `answered` is called once, later, unless this raises."""
        size = message.size
        if size > MESSAGE_BYTES_MAX:
            raise InvalidRecord(problem=f"a message of {size} bytes is over the limit of {MESSAGE_BYTES_MAX}; split it")
        value, key, headers, expected_offset = message
        producer, receipt = self._given(
            record, policy, lambda producer: producer.send(value, key, headers, expected_offset=expected_offset)
        )
        self._take(producer, principal, 1, size)

        def done() -> None:
            self._settled(producer, principal, 1, size)
            try:
                offset = receipt.result()
            except LogError as error:
                answered(-1, error)
            else:
                answered(offset, None)

        receipt.when_done(done)

    def send_run(
        self,
        record: ChannelRecord,
        policy: int,
        messages: list[bytes] | list[Message],
        answered: RunAnswered,
        *,
        principal: str = "",
    ) -> None:
        """Take messages that came together, as values alone or with keys and headers, each at most `MESSAGE_BYTES_MAX`.
        `answered` covers each of them once, later, unless this raises. Much cheaper than `send` for each."""
        if type(messages[0]) is bytes:
            values = messages
            producer, receipt = self._given(record, policy, lambda producer: producer.send_many(values))
            ends = list(accumulate(map(len, values), initial=0))
        else:
            rows = cast(list[Message], messages)
            producer, receipt = self._given(record, policy, lambda producer: producer.send_rows(rows))
            ends = list(accumulate(map(size_of, rows), initial=0))
        self._take(producer, principal, len(messages), ends[-1])

        def done(which: range, offset: int, error: LogError | None) -> None:
            self._settled(producer, principal, len(which), ends[which.stop] - ends[which.start])
            answered(which, offset, error)

        receipt.when_each_done(done)

    def _given(
        self, record: ChannelRecord, policy: int, give: Callable[[Producer], ReceiptT]
    ) -> tuple[Producer, ReceiptT]:
        key = (record.channel_id, "all" if policy == pb.ALL else "leader")
        producer = self._producer(key, record.name)
        try:
            return producer, give(producer)
        except (InvalidRecord, QueueFull):
            raise
        except LogError:
            # The producer failed; its last messages got the error. A new one may succeed.
            self._open.pop(key).abort()
            producer = self._producer(key, record.name)
            return producer, give(producer)

    def _take(self, producer: Producer, principal: str, count: int, size: int) -> None:
        self.bytes += size + _RECORD_BYTES * count
        self._unanswered.setdefault(producer, Counter())[principal] += count

    def _settled(self, producer: Producer, principal: str, count: int, size: int) -> None:
        self.bytes -= size + _RECORD_BYTES * count
        self._room.set()
        unanswered = self._unanswered[producer]
        unanswered[principal] -= count
        if not unanswered[principal]:
            del unanswered[principal]
            if not unanswered:
                del self._unanswered[producer]

    def _paused(self, key: tuple[int, str]) -> None:
        producer = self._open.get(key)
        if producer is not None and self.on_pause is not None:
            self.on_pause(key[0], list(self._unanswered.get(producer, ())))

    def _producer(self, key: tuple[int, str], channel: str) -> Producer:
        producer = self._open.get(key)
        if producer is not None and not producer.is_closed:
            self._open.move_to_end(key)
            return producer
        if len(self._open) >= self._producers_max:
            self._make_room()
        acks = key[1]
        producer = self._open[key] = self._client.producer(
            channel,
            name=f"liftbridge-{acks}-{self._name}",
            acks=acks,
            in_flight_max_bytes=2 * self._bytes_max,
            timeout_ms=_TIMEOUT_MS,
            # A producer of a deleted channel must not write to a new one of that name: it would fence its successor.
            channel_id=key[0],
            on_paused=partial(self._paused, key),
        )
        return producer

    def _make_room(self) -> None:
        """Close an idle producer. A producer that waits for answers stays open, since the next of its name would fence
        it; so there may be more than `producers_max`, at most one per unanswered message (PS3)."""
        for key, producer in self._open.items():
            if producer not in self._unanswered:
                producer.abort()
                del self._open[key]
                return

    async def close(self) -> None:
        """Wait until every message taken has an answer."""
        producers = list(self._open.values())
        self._open.clear()
        await asyncio.gather(*map(_closed, producers))


async def _closed(producer: Producer) -> None:
    try:
        await producer.close()
    except LogError:
        pass  # the senders of the failed messages got the error (PS1)
