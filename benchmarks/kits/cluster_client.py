"""Raw pipelined clients of a channel's leader: the least Python per record that the protocol allows, answers checked.

A pump keeps a window of requests in flight on one link. `ProducePump` sends made blocks, one to a request;
`PublishPump` sends records, one to a request, and its answers come as runs. `publish_latency` has one in flight.

What a caller must keep: one pump per link, and a look at what the channel holds afterwards.

KCC1  Whatever is not an ack ends the pump with the error; no refusal counts as a record.
KCC2  Every wait has a deadline, and a link that is lost ends all of them.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final, Protocol

from benchmarks.kits.channel_kit import BenchChannel, dial_node
from benchmarks.kits.cluster_kit import ClusterKit
from benchmarks.nats.client import Rate
from tidelog.blocks.messages import encode_values
from tidelog.codecs.client_codec import PRODUCE, PRODUCED, decode_produced, encode_produce
from tidelog.codecs.publish_codec import PUBLISH, PUBLISHED, decode_published, encode_publish
from tidelog.core.client_messages import AckPolicy, Produce
from tidelog.errors import BadMessage, LinkClosed, LogError, WaitTimedOut
from tidelog.transports.link.link import Buffers, Link

DRAIN_S: Final = 30.0
FILL_S: Final = 300.0
FILL_LOOK_S: Final = 0.01


class ChannelPump(Protocol):
    acked: int
    """Records."""

    def open(self, link: Link) -> None:
        """Send the first window."""

    def answered(self, link: Link, kind: int, body: memoryview) -> None:
        """An answer came; whatever it makes room for is sent."""

    def stop(self) -> None:
        """Send no more."""

    @property
    def is_idle(self) -> bool:
        """Nothing is in flight."""


class ProducePump:
    """Blocks of `records` values, made once and sent again and again, `requests` of them in flight."""

    def __init__(self, channel: BenchChannel, *, size: int, records: int, requests: int) -> None:
        self.acked = 0
        values = [os.urandom(size) for _ in range(records)]
        made = encode_values(values, time_us=time.time_ns() // 1000)
        whole = b"".join(
            encode_produce(
                [
                    Produce(
                        token=0,
                        channel_id=channel.channel_id,
                        leader_epoch=channel.leader_epoch,
                        ack=AckPolicy.ALL,
                        block=made.buffers,
                    )
                ]
            )
        )
        self._before, self._behind = whole[:8], whole[16:]
        self._records = records
        self._requests = requests
        self.allowed: int | None = None
        """Blocks that may be sent in all; None: as many as there is room for."""
        self._sent = self._answered = 0
        self._stopped = False

    def open(self, link: Link) -> None:
        self.send_some(link)

    def answered(self, link: Link, kind: int, body: memoryview) -> None:
        if kind != PRODUCED:
            raise BadMessage(problem=f"a producer is not told {kind:#06x}")
        answers = decode_produced(body)
        for answer in answers:
            if answer.error is not None:
                raise answer.error
        self._answered += len(answers)
        self.acked += self._records * len(answers)
        if not self._stopped:
            self.send_some(link)

    def stop(self) -> None:
        self._stopped = True

    @property
    def is_idle(self) -> bool:
        return self._sent == self._answered

    def send_some(self, link: Link) -> None:
        """As many blocks as there is room for and as are allowed."""
        end = self._answered + self._requests
        if self.allowed is not None:
            end = max(self._sent, min(end, self.allowed))
        before, behind = self._before, self._behind
        for token in range(self._sent, end):
            link.post(PRODUCE, b"".join((before, token.to_bytes(8, "little"), behind)))
        self._sent = end


class PublishPump:
    """One record per request, `in_flight` of them."""

    def __init__(self, channel: BenchChannel, *, size: int, in_flight: int) -> None:
        self.acked = 0
        whole = encode_publish(
            os.urandom(size), token=0, channel_id=channel.channel_id, leader_epoch=channel.leader_epoch
        )
        self._before, self._behind = whole[:8], whole[16:]
        self._in_flight = in_flight
        self._sent = 0
        self._stopped = False

    def open(self, link: Link) -> None:
        self._fill(link)

    def answered(self, link: Link, kind: int, body: memoryview) -> None:
        if kind != PUBLISHED:
            raise BadMessage(problem=f"a publisher is not told {kind:#06x}")
        for answer in decode_published(body):
            if answer.error is not None:
                raise answer.error
            self.acked += answer.count
        if not self._stopped:
            self._fill(link)

    def stop(self) -> None:
        self._stopped = True

    @property
    def is_idle(self) -> bool:
        return self._sent == self.acked

    def _fill(self, link: Link) -> None:
        before, behind, post = self._before, self._behind, link.post
        for token in range(self._sent, self.acked + self._in_flight):
            post(PUBLISH, before + token.to_bytes(8, "little") + behind)
        self._sent = self.acked + self._in_flight


class PumpLink:
    """One link to a channel's leader. Use `connect`, then `close`."""

    def __init__(self) -> None:
        self._link: Link | None = None
        self._pump: ChannelPump | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle: asyncio.Future[None] | None = None
        """Somebody waits for the last ack; one future, as the peer's client has it."""

    @classmethod
    async def connect(cls, kit: ClusterKit, channel: BenchChannel) -> PumpLink:
        client = cls()
        client._link = await dial_node(kit, channel.leader, client)
        client._link.on_close.append(client._closed)
        return client

    @property
    def link(self) -> Link:
        assert self._link is not None, "use connect()"
        return self._link

    async def close(self) -> None:
        await self.link.close(drain_ms=100)

    async def run(self, pump: ChannelPump, *, seconds: float, warm_up_s: float = 0.0) -> Rate:
        """Keep the pump's window full for so long; returns when everything in flight is acknowledged."""
        self.begin(pump)
        try:
            pump.open(self.link)
            await self._for(warm_up_s)
            acked, start = pump.acked, time.perf_counter()
            await self._for(seconds)
            records, elapsed = pump.acked - acked, time.perf_counter() - start
            pump.stop()
            if not pump.is_idle:
                await self._drained()
        finally:
            self._pump = None
        return Rate(records=records, seconds=elapsed, acked=pump.acked)

    def begin(self, pump: ChannelPump) -> None:
        """Take answers for this pump, whichever caller makes it send."""
        self._pump = pump

    def require_good(self) -> None:
        """Raises what the pump or the link ended with, if it did."""
        if self._ended.done():
            self._ended.result()

    async def end(self, pump: ChannelPump) -> None:
        """Everything that it sent is acknowledged."""
        pump.stop()
        if not pump.is_idle:
            await self._drained()
        self._pump = None

    async def fill(self, pump: ChannelPump, *, records: int) -> None:
        """Run until at least so many records are acknowledged."""
        self.begin(pump)
        pump.open(self.link)
        end = time.monotonic() + FILL_S
        while pump.acked < records:
            await self._for(FILL_LOOK_S)
            if time.monotonic() >= end:
                raise WaitTimedOut(waiting_for=f"{records} records to be taken", deadline_s=FILL_S)
        await self.end(pump)

    async def once(self, pump: ChannelPump) -> float:
        """Send a window of the pump and wait for its answers; returns the seconds it took."""
        self.begin(pump)
        start = time.perf_counter()
        pump.open(self.link)
        self.link.flush()
        await self.end(pump)
        return time.perf_counter() - start

    async def _for(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._ended)
        except TimeoutError:
            return

    async def _drained(self) -> None:
        self.require_good()
        self._idle = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._idle
        except TimeoutError:
            raise WaitTimedOut(waiting_for="the acks of what was in flight", deadline_s=DRAIN_S) from None
        finally:
            self._idle = None

    # --- as a LinkHandler ------------------------------------------------------------------------------

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        if self._pump is None:
            raise BadMessage(problem="an answer that nobody waits for")
        try:
            self._pump.answered(link, kind, body)
        except LogError as error:
            self._fail(error)
            return
        if self._idle is not None and self._pump.is_idle and not self._idle.done():
            self._idle.set_result(None)

    def on_turn(self) -> None:
        """Nothing is put off."""

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        raise BadMessage(problem="a benchmark answers nothing")

    def _closed(self, link: Link, reason: str) -> None:
        self._fail(LinkClosed(peer=link.peer, reason=reason))

    def _fail(self, error: LogError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)
            self._ended.exception()
            if self._idle is not None and not self._idle.done():
                self._idle.set_exception(error)
