"""A raw client of the NATS text protocol, for the peer of our benchmarks: little Python per message, acks checked.

    client = await NatsClient.connect(HOST, port)
    answer = await client.request("$JS.API.INFO", b"", timeout_s=2.0)
    rate = await client.run(SinglePump(subject="s", size=64, in_flight=4_000), seconds=5.0)

A request is one message with a reply subject of its own. A pump keeps a window of publishes in flight and is given
whole lines: a publish's ack has no line end inside, so a pump counts acks with `bytes.count` and never walks them.

What a caller must keep: one pump at a time, no request while it runs, and a look at how much the stream holds
afterwards, since counting instead of parsing rests on what acks look like.

NCL1  Whatever is not an ack ends the pump with an error that quotes it; no refusal counts as a record.
NCL2  Every wait has a deadline, and a connection that is lost ends all of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tidelog.errors import WaitTimedOut

CONNECT_S: Final = 5.0
DRAIN_S: Final = 30.0
"""For the acks of what is in flight when a pump stops."""
_LINE: Final = b"\r\n"
_NO_RESPONDERS: Final = b"NATS/1.0 503"
_QUOTED: Final = 300
_HELLO: Final = json.dumps(
    {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1, "name": "tidelog"}
).encode()


class NatsRefused(RuntimeError):
    """The server said no, or something that is no ack."""


class NobodyThere(NatsRefused):
    """Nobody takes messages of this subject now: the stream has no leader. Nothing was stored."""


class NatsLost(RuntimeError):
    """The connection ended."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Records that were acknowledged while the clock ran, and in all."""

    records: int
    seconds: float
    acked: int
    """Also before and after: what the stream must hold."""

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds


class Pump(Protocol):
    """Publishes in flight: what to send first, and what to send for the acks that came."""

    acked: int

    def open(self, inbox: bytes) -> bytes:
        """The first window; acks are to come to subjects below `inbox`."""

    def feed(self, lines: bytes) -> bytes:
        """Whole lines that came; returns what is to be sent next."""

    def stop(self) -> bytes:
        """Send no more records; returns what ends the sending."""

    @property
    def is_idle(self) -> bool:
        """Nothing is in flight."""


class NatsClient(asyncio.Protocol):
    """One connection. Use `connect`, then `close`."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._inbox = b"_INBOX." + os.urandom(8).hex().encode()
        self._greeted: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        for future in (self._greeted, self._ended):
            future.add_done_callback(_look_at)
        self._requests: dict[bytes, asyncio.Future[bytes]] = {}
        self._number = 0
        self._tail = b""
        self._pump: Pump | None = None
        self._idle: asyncio.Event = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, host: str, port: int, *, timeout_s: float = CONNECT_S) -> NatsClient:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                _, client = await loop.create_connection(cls, host, port)
                try:
                    await asyncio.shield(client._greeted)
                except BaseException:
                    client.close()
                    raise
        except TimeoutError:
            raise WaitTimedOut(waiting_for=f"the greeting of nats-server at {port}", deadline_s=timeout_s) from None
        return client

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- one message, one answer -----------------------------------------------------------------------

    async def request(self, subject: str, body: bytes, *, timeout_s: float) -> bytes:
        """The body of the answer. `NobodyThere` is told at once, by the server."""
        assert self._pump is None, "no request while a pump runs"
        self._number += 1
        token = b"%d" % self._number
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._requests[token] = answer
        try:
            self._write(b"PUB %b %b.%b %d\r\n%b\r\n" % (subject.encode(), self._inbox, token, len(body), body))
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise WaitTimedOut(waiting_for=f"an answer to {subject}", deadline_s=timeout_s) from None
        finally:
            del self._requests[token]

    async def ask(self, subject: str, question: object, *, timeout_s: float) -> dict[str, Any]:
        """A request of the JetStream API; an error in its answer is raised."""
        body = b"" if question is None else json.dumps(question).encode()
        return _good(subject, await self.request(subject, body, timeout_s=timeout_s))

    async def publish(self, subject: str, body: bytes, *, timeout_s: float) -> int:
        """One record; returns its sequence number once it is acknowledged."""
        return int(_good(subject, await self.request(subject, body, timeout_s=timeout_s))["seq"])

    # --- many in flight --------------------------------------------------------------------------------

    async def run(self, pump: Pump, *, seconds: float, warm_up_s: float = 0.0) -> Rate:
        """Keep the pump's window full for so long; returns when everything in flight is acknowledged."""
        assert self._pump is None, "one pump at a time"
        assert not self._tail, "no pump while an answer is half here"
        self._pump = pump
        self._idle.clear()
        try:
            self._write(pump.open(self._inbox))
            await self._for(warm_up_s)
            acked, start = pump.acked, time.perf_counter()
            await self._for(seconds)
            records, elapsed = pump.acked - acked, time.perf_counter() - start
            self._write(pump.stop())
            if not pump.is_idle:
                await self._drained()
        finally:
            self._pump = None
        return Rate(records=records, seconds=elapsed, acked=pump.acked)

    async def _for(self, seconds: float) -> None:
        """That long, or until the connection fails."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._ended)
        except TimeoutError:
            return

    async def _drained(self) -> None:
        idle = asyncio.ensure_future(self._idle.wait())
        waiting: set[asyncio.Future[Any]] = {idle, self._ended}
        try:
            await asyncio.wait(waiting, timeout=DRAIN_S, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                self._ended.result()
            if not idle.done():
                raise WaitTimedOut(waiting_for="the acks of what was in flight", deadline_s=DRAIN_S)
        finally:
            idle.cancel()

    # --- bytes -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(NatsLost(f"nats-server hung up: {error or 'no reason given'}"))

    def data_received(self, data: bytes) -> None:
        if self._tail:
            data = self._tail + data
        try:
            if self._pump is not None:
                self._tail = self._feed(self._pump, data)
            else:
                self._tail = self._parse(data)
        except NatsRefused as error:
            self._fail(error)
            self.close()

    def _feed(self, pump: Pump, data: bytes) -> bytes:
        end = data.rfind(_LINE) + len(_LINE)
        if end < len(_LINE):
            return data
        lines, tail = data[:end], data[end:]
        if b"PING\r\n" in lines:
            self._write(b"PONG\r\n")
        more = pump.feed(lines)
        if more:
            self._write(more)
        elif pump.is_idle:
            self._idle.set()
        return tail

    def _parse(self, data: bytes) -> bytes:
        """Take every whole message; returns the rest."""
        at = 0
        while (end := data.find(_LINE, at)) >= 0:
            line = data[at:end]
            at_next = end + len(_LINE)
            if line.startswith((b"MSG ", b"HMSG ")):
                body_end = at_next + int(line[line.rindex(b" ") + 1 :])
                if len(data) < body_end + len(_LINE):
                    break
                self._deliver(line.split(b" "), data[at_next:body_end])
                at_next = body_end + len(_LINE)
            else:
                self._obey(line)
            at = at_next
        return data[at:]

    def _deliver(self, words: list[bytes], body: bytes) -> None:
        answer = self._requests.get(words[1][len(self._inbox) + 1 :])
        if answer is None or answer.done():
            return  # it came after its deadline
        if words[0] == b"MSG":
            answer.set_result(body)
        elif body.startswith(_NO_RESPONDERS):
            answer.set_exception(NobodyThere("nobody takes messages of this subject; wait for a leader"))
        else:
            answer.set_result(body[int(words[-2]) :])

    def _obey(self, line: bytes) -> None:
        if line == b"PING":
            self._write(b"PONG\r\n")
        elif line == b"PONG":
            if not self._greeted.done():
                self._greeted.set_result(None)
        elif line.startswith(b"INFO "):
            if not self._greeted.done():
                self._write(b"CONNECT %b\r\nSUB %b.> 1\r\nPING\r\n" % (_HELLO, self._inbox))
        elif line != b"+OK":
            raise NatsRefused(line.decode(errors="replace"))

    def _write(self, data: bytes) -> None:
        if self._ended.done():
            self._ended.result()
        assert self._transport is not None
        self._transport.write(data)

    def _fail(self, error: Exception) -> None:
        if self._ended.done():
            return
        self._ended.set_exception(error)
        waiting: list[asyncio.Future[Any]] = [self._greeted, *self._requests.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(error)


def _good(subject: str, body: bytes) -> dict[str, Any]:
    """An answer of JetStream that is no error."""
    answer: dict[str, Any] = json.loads(body)
    if "error" in answer:
        raise NatsRefused(f"{subject}: {answer['error']}")
    return answer


def _look_at(future: asyncio.Future[None]) -> None:
    """A connection that ends unwatched, as by `close`, is no news."""
    if not future.cancelled():
        future.exception()


# --- pumps -------------------------------------------------------------------------------------------------


class SinglePump:
    """One record per publish, an ack each. With `records`, sent anew only when so many acks have come: a request of
    that many publishes."""

    def __init__(self, *, subject: str, size: int, in_flight: int, records: int = 1) -> None:
        assert in_flight % records == 0, "whole requests"
        self.acked = 0
        self._sent = 0
        self._subject = subject.encode()
        self._payload = os.urandom(size)
        self._in_flight = in_flight
        self._records = records
        self._frame = b""
        self._stopped = False

    def open(self, inbox: bytes) -> bytes:
        self._frame = _publish(self._subject, inbox + b".s", self._payload)
        return self._fill()

    def feed(self, lines: bytes) -> bytes:
        _require_acks(lines)
        self.acked += lines.count(b'"seq":')
        return b"" if self._stopped else self._fill()

    def stop(self) -> bytes:
        self._stopped = True
        return b""

    @property
    def is_idle(self) -> bool:
        return self.acked == self._sent

    def _fill(self) -> bytes:
        room = self._in_flight - (self._sent - self.acked)
        room -= room % self._records
        self._sent += room
        return self._frame * room


class AtomicPump:
    """Batches of the stream's atomic publish (2.12 and later): stored together or not at all, one ack a batch.

    A batch's name is its place in the window, used again once its ack has come, so its bytes are made once. A stream
    takes at most 50 batches at a time.
    """

    _DONE: Final = re.compile(rb'"batch":"(\d+)","count":(\d+)')

    def __init__(self, *, subject: str, size: int, requests: int, records: int) -> None:
        assert requests <= 50, "a stream takes no more batches at a time"
        self.acked = 0
        self._subject = subject.encode()
        self._payload = os.urandom(size)
        self._requests = requests
        self._records = records
        self._batches: list[bytes] = []
        self._in_flight = 0
        self._stopped = False

    def open(self, inbox: bytes) -> bytes:
        self._batches = [self._batch(number, inbox) for number in range(self._requests)]
        self._in_flight = self._requests
        return b"".join(self._batches)

    def feed(self, lines: bytes) -> bytes:
        _require_acks(lines)
        done = self._DONE.findall(lines)
        for _, count in done:
            if int(count) != self._records:
                raise NatsRefused(f"a batch of {count} records, sent were {self._records}")
        self.acked += len(done) * self._records
        if self._stopped:
            self._in_flight -= len(done)
            return b""
        return b"".join([self._batches[int(number)] for number, _ in done])

    def stop(self) -> bytes:
        self._stopped = True
        return b""

    @property
    def is_idle(self) -> bool:
        return self._in_flight == 0

    def _batch(self, number: int, inbox: bytes) -> bytes:
        parts = []
        for place in range(1, self._records + 1):
            header = b"NATS/1.0\r\nNats-Batch-Id:%d\r\nNats-Batch-Sequence:%d\r\n" % (number, place)
            reply = b""
            if place == self._records:
                header += b"Nats-Batch-Commit:1\r\n"
                reply = inbox + b".a "
            header += _LINE
            total = len(header) + len(self._payload)
            parts.append(b"HPUB %b %b%d %d\r\n" % (self._subject, reply, len(header), total))
            parts += [header, self._payload, _LINE]
        return b"".join(parts)


class FastPump:
    """The stream's fast ingest (2.14 and later): one batch without end, an ack for every `records` of them.

    An ack names the last record that is stored; the server may send acks more often, never more seldom.
    """

    _ACK: Final = re.compile(rb'"type":"ack","seq":(\d+)')
    _END: Final = re.compile(rb'"batch":"[^"]*","count":(\d+)')
    _START, _ADD, _COMMIT_ONLY = 0, 1, 3

    def __init__(self, *, subject: str, size: int, requests: int, records: int) -> None:
        self.acked = 0
        self._sent = 0
        self._subject = subject.encode()
        self._payload = os.urandom(size)
        self._window = requests * records
        self._records = records
        self._head = self._foot = b""
        self._ended = False
        self._stopped = False

    def open(self, inbox: bytes) -> bytes:
        # The word before the settings names the batch.
        self._head = b"PUB %b %b.f%d.%d.fail." % (self._subject, inbox, time.monotonic_ns(), self._records)
        self._foot = b".%d.$FI %d\r\n%b\r\n" % (self._ADD, len(self._payload), self._payload)
        self._sent = 1
        start = self._head + b"1.%d.$FI %d\r\n%b\r\n" % (self._START, len(self._payload), self._payload)
        return start + self._more(self._window - 1)

    def feed(self, lines: bytes) -> bytes:
        _require_acks(lines)
        if acks := self._ACK.findall(lines):
            self.acked = max(self.acked, int(acks[-1]))
        if end := self._END.search(lines):
            if not self._stopped:
                raise NatsRefused(f"the batch ended: {_quoted(lines)}")
            self.acked = int(end[1])
            self._ended = True
        if self._stopped:
            return b""
        room = self._window - (self._sent - self.acked)
        return self._more(room - room % self._records)

    def stop(self) -> bytes:
        self._stopped = True
        return self._head + b"%d.%d.$FI 0\r\n\r\n" % (self._sent + 1, self._COMMIT_ONLY)

    @property
    def is_idle(self) -> bool:
        return self._ended

    def _more(self, count: int) -> bytes:
        head, foot = self._head, self._foot
        first = self._sent + 1
        self._sent += count
        return b"".join([b"%b%d%b" % (head, number, foot) for number in range(first, first + count)])


def _publish(subject: bytes, reply: bytes, payload: bytes) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


def _require_acks(lines: bytes) -> None:
    """No refusal among them (NCL1): an error of the stream, of the protocol, or the status of "nobody there"."""
    if b'"error"' in lines or b"-ERR" in lines or b"HMSG " in lines or b'"type":"gap"' in lines:
        raise NatsRefused(f"not an ack: {_quoted(lines)}")


def _quoted(lines: bytes) -> str:
    at = max(
        0, min((lines.find(word) for word in (b'"error"', b"-ERR", b"HMSG ", b'"gap"') if word in lines), default=0)
    )
    return lines[max(0, at - 20) : at + _QUOTED].decode(errors="replace")
