"""Blocks into a channel under one producer that is kept across processes: the same seq is taken once.

The client's own producers open a new epoch in every process and number their records from 1 again, so a restarted one
cannot repeat blocks safely. A sink must: its producer (id and epoch) is opened once, stored beside the checkpoint and
used by every later driver. A leader takes a producer's seqs without a gap and each once, so sending a whole batch again
is always safe: blocks already in the log are answered as such.

SPU1  Blocks go one after the other, each sent again until it is answered or its time is up.
SPU2  `publish` returns only after the last block was acknowledged as committed; all earlier ones then are too.
SPU3  A channel that expects an earlier seq than was published has lost records: that is an error, and nothing is sent
      behind a hole.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from tidelog.blocks.block import MadeBlock
from tidelog.client import Client, connect
from tidelog.codecs.client_codec import (
    CLOSE_PRODUCER,
    OPEN_PRODUCER,
    PRODUCE,
    PRODUCED,
    decode_answer,
    decode_produced,
    encode_json,
    encode_produce,
)
from tidelog.core.client_messages import AckPolicy, Produce, Produced
from tidelog.errors import (
    BadMessage,
    LinkClosed,
    LogError,
    NotChannelLeader,
    OutOfSequence,
    PeerUnreachable,
    ProducerFenced,
    SinkRefused,
    WaitTimedOut,
)
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pki.identity import Kind, identity_of
from tidelog.pki.tls_files import read_pem
from tidelog.transports.link.link import Buffers, Link, LinkEnd, LinkIdentity, LinkTls, LinkTlsFiles, dial_link

BLOCK_S: Final = 60.0
"""How long one block may take, with all its attempts."""
_ANSWER_S: Final = 10.0
_PAUSE_S: Final = 0.1
_NUMBER_BYTES: Final = 8


class Publisher:
    """The publisher of one channel; use it in `async with`."""

    def __init__(self, address: LogsAddress, channel: str) -> None:
        self._address = address
        self._channel = channel
        self._tls: LinkTlsFiles | None = None
        kind: Kind = "client"
        name = "spark"
        if not address.insecure:
            self._tls = LinkTlsFiles(
                certificate=Path(address.certificate), key=Path(address.key), authority=Path(address.authority)
            )
            identity = identity_of(read_pem(self._tls.certificate))
            name, kind = identity.name, identity.kind
        self._end = LinkEnd(
            identity=lambda: LinkIdentity(node=name, cluster=b""),
            tls=LinkTls(self._tls) if self._tls is not None else None,
            insecure_dev=address.insecure,
            kind=kind,
        )
        self._client: Client | None = None
        self._link: Link | None = None
        self._leader_epoch = 0
        self._tokens = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Produced]] = {}

    async def __aenter__(self) -> Publisher:
        self._client = await connect(
            self._address.cluster, tls=self._tls, insecure_dev=self._address.insecure, name="spark"
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._link is not None:
            await self._link.close()
        if self._client is not None:
            await self._client.close(flush=False)

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    async def channel_id(self) -> int:
        return int((await self.client.describe(self._channel))["channel_id"])

    async def open_producer(self, name: str) -> bytes:
        """The id and epoch of a producer, as blocks contain them. Opening an existing one fences its earlier user."""
        link = await self._leader_link(BLOCK_S)
        body = await link.request(
            OPEN_PRODUCER, encode_json({"channel": self._channel, "name": name}), timeout_ms=int(_ANSWER_S * 1000)
        )
        answer = decode_answer(body)
        try:
            numbers = [int(answer[field]).to_bytes(_NUMBER_BYTES, "little") for field in ("producer_id", "epoch")]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise BadMessage(problem=f"an opened producer cannot be read: {error!r}") from error
        return b"".join(numbers)

    async def close_producer(self, identity: bytes) -> None:
        """Close the producer, which is not used again. If no node answers, the channel's leader closes it after a
        while."""
        numbers = (identity[:_NUMBER_BYTES], identity[_NUMBER_BYTES:])
        producer_id, epoch = (int.from_bytes(number, "little") for number in numbers)
        request = {"channel": self._channel, "name": "", "producer_id": producer_id, "epoch": epoch}
        try:
            link = await self._leader_link(_ANSWER_S)
            decode_answer(await link.request(CLOSE_PRODUCER, encode_json(request), timeout_ms=int(_ANSWER_S * 1000)))
        except LogError:
            return  # everything was acknowledged; see above

    async def publish(self, blocks: Iterable[MadeBlock], *, channel_id: int) -> int:
        """Send numbered blocks in order; returns how many records they hold (SPU2)."""
        records = 0
        last: Produced | LogError | None = None
        for block in blocks:
            last = await self._put(block, channel_id)
            records += block.maker.record_count
        if isinstance(last, LogError):
            raise self._refused("another process publishes under the same producer; let only one run") from last
        return records

    async def _put(self, block: MadeBlock, channel_id: int) -> Produced | LogError:
        """Send one block until it is answered (SPU1). Some errors mean that it is already in the leader's log."""
        give_up_s = time.monotonic() + BLOCK_S
        while True:
            try:
                answer = await self._attempt(block, channel_id, give_up_s)
            except LogError as error:
                problem: LogError = error
            else:
                if answer.error is None:
                    return answer
                problem = answer.error
            if isinstance(problem, OutOfSequence):
                return self._judged(block, problem)
            if isinstance(problem, ProducerFenced):
                raise self._refused("its producer was opened by somebody else; give the sink a staging of its own")
            is_lost_link = isinstance(problem, LinkClosed | WaitTimedOut | PeerUnreachable)
            if not (problem.retriable or is_lost_link) or time.monotonic() >= give_up_s:
                raise problem
            if is_lost_link or isinstance(problem, NotChannelLeader):
                await self._drop_link()
            await asyncio.sleep(_PAUSE_S)

    def _judged(self, block: MadeBlock, problem: OutOfSequence) -> LogError:
        seqs = block.maker.seqs
        if problem.expected >= seqs.stop:
            return problem  # it is there, and so much behind it that the leader no longer says where
        if problem.expected > seqs.start:
            raise self._refused(
                f"seq {problem.expected} of its producer comes next, in the middle of a block: "
                "somebody else published under it"
            )
        raise self._refused(
            f"the channel expects seq {problem.expected} of its producer and {seqs.start - 1} were published: it has "
            "lost records (an unclean election), or forgotten a producer that was silent for long; compare the channel "
            "with what was published, then begin with a new staging folder"
        )

    def _refused(self, problem: str) -> SinkRefused:
        return SinkRefused(channel=self._channel, problem=problem)

    async def _attempt(self, block: MadeBlock, channel_id: int, give_up_s: float) -> Produced:
        link = await self._leader_link(max(_PAUSE_S, give_up_s - time.monotonic()))
        token = next(self._tokens)
        answered: asyncio.Future[Produced] = asyncio.get_running_loop().create_future()
        self._waiting[token] = answered
        try:
            request = Produce(
                token=token,
                channel_id=channel_id,
                leader_epoch=self._leader_epoch,
                ack=AckPolicy.ALL,
                block=block.buffers,
            )
            link.post(PRODUCE, [bytes(part) for part in encode_produce([request])])
            link.flush()
            async with asyncio.timeout(_ANSWER_S):
                return await answered
        except TimeoutError:
            raise WaitTimedOut(
                waiting_for=f"the answer to a block of {self._channel!r}", deadline_s=_ANSWER_S
            ) from None
        finally:
            del self._waiting[token]

    # --- the way to the leader ---------------------------------------------------------------------

    async def _leader_link(self, within_s: float) -> Link:
        if self._link is not None and self._link.is_usable:
            return self._link
        give_up_s = time.monotonic() + within_s
        while True:
            try:
                return await self._dialled()
            except LogError as error:
                if not error.retriable or time.monotonic() >= give_up_s:
                    raise
                await asyncio.sleep(_PAUSE_S)

    async def _dialled(self) -> Link:
        found = await self.client.describe(self._channel)
        leader = found["leader"]
        if leader is None:
            raise NotChannelLeader(channel=self._channel, leader=None)
        nodes: list[dict[str, Any]] = (await self.client.cluster())["nodes"]
        address = next((str(node["addresses"].get("link", "")) for node in nodes if node["node"] == leader), "")
        if not address:
            raise NotChannelLeader(channel=self._channel, leader=str(leader))
        link = await dial_link(address, end=self._end, handler=self, expected=str(leader))
        link.on_close.append(self._closed)
        self._link, self._leader_epoch = link, int(found["leader_epoch"])
        return link

    async def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    def _closed(self, link: Link, reason: str) -> None:
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(LinkClosed(peer=link.peer, reason=reason))

    # --- what the node says ------------------------------------------------------------------------

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        if kind != PRODUCED:
            raise BadMessage(problem=f"a sink takes no messages of kind {kind:#06x}")
        for answer in decode_produced(body):
            waiting = self._waiting.get(answer.token)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def on_turn(self) -> None:
        """A sink delays no message."""

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        raise BadMessage(problem="a sink answers nothing")
