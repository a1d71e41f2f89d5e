"""The way into the log for messages of Liftbridge clients: a native producer for each channel and ack policy.

Messages of all clients of this node that go to one channel share its producers, so that single messages become blocks.
Memory is bounded for the whole gateway: beyond `bytes_max` whoever publishes waits, and so does its connection.

PS1  A message is answered once: with its offset when its ack policy is satisfied, or with a typed error.
PS2  Messages of one connection with one ack policy are in a partition in the order they were sent. NONE shares the
     producer of LEADER; between that and ALL there is no order, as there is none between two connections.
PS3  At most `producers_max` producers are open that have nothing to wait for; the one unused longest makes room.
PS4  A block that a pause stopped half way may be in the log, so its messages cannot be sent anew: it waits in its
     producer, and whoever published them is asked for the right to resume the partition.
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
"""Liftbridge's own default: key, value and headers together."""
RESENT_S: Final = 30.0
"""How long a message is sent again each time its partition is paused while it is under way."""
_RECORD_BYTES: Final = 128
"""More than a record costs beyond its bytes, so that the gateway's count is never below the producer's."""
_TIMEOUT_MS: Final = 10_000

ReceiptT = TypeVar("ReceiptT")

Answered = Callable[[int, LogError | None], None]
"""Told the offset, or why there is none."""
RunAnswered = Callable[[range, int, LogError | None], None]
"""Told which messages of a run were answered, and the offset of the first of them, or why they have none."""


OnPause = Callable[[int, list[str]], None]
"""Told of a channel that is paused while messages of these principals wait for it (PS4)."""


class OutgoingMessage(NamedTuple):
    """One message on its way into a channel."""

    value: bytes
    key: bytes | None
    headers: Sequence[tuple[str, bytes]]
    expected_offset: int | None = None

    @property
    def size(self) -> int:
        return size_of(Message(0, self.value, self.key, self.headers))


def size_of(message: Message) -> int:
    """What counts against `MESSAGE_BYTES_MAX`."""
    size = len(message.value or b"") + len(message.key or b"")
    if not message.headers:
        return size
    return size + sum(len(name) * 4 + len(content) + _RECORD_BYTES for name, content in message.headers)


class GatewayProducers:
    """One for each gateway."""

    def __init__(self, client: Client, *, node: str, bytes_max: int = 64 * MIB, producers_max: int = 1_024) -> None:
        self._client = client
        # The same name after a restart: the catalog does not grow with every start of a node.
        self._name = hashlib.sha256(node.encode()).hexdigest()[:16]
        self._bytes_max = bytes_max
        self._producers_max = producers_max
        self._open: OrderedDict[tuple[int, str], Producer] = OrderedDict()
        self._unanswered: dict[Producer, Counter[str]] = {}
        """Messages by principal."""
        self.on_pause: OnPause | None = None
        self._room = asyncio.Event()
        self._room.set()
        self.bytes = 0
        """Taken and not answered yet."""

    async def wait_room(self) -> None:
        """Until `send` may be called."""
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
        """Take messages that came together, values alone or with keys and headers, each at most `MESSAGE_BYTES_MAX`;
        every one is told of once, later, unless this raises. Cheaper by far than one by one."""
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
            # It ended with an error that its last messages were told. A new one may fare better.
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
            # One of an older channel of this name must not follow into the new one: it would fence its successor.
            channel_id=key[0],
            on_paused=partial(self._paused, key),
        )
        return producer

    def _make_room(self) -> None:
        """One that still waits for answers stays: under its name the next would fence it. There are then more than
        wanted, as many as messages that wait (PS3)."""
        for key, producer in self._open.items():
            if producer not in self._unanswered:
                producer.abort()
                del self._open[key]
                return

    async def close(self) -> None:
        """Everything that was taken is answered, or has an error."""
        producers = list(self._open.values())
        self._open.clear()
        await asyncio.gather(*map(_closed, producers))


async def _closed(producer: Producer) -> None:
    try:
        await producer.close()
    except LogError:
        pass  # whoever sent what failed was told (PS1)
