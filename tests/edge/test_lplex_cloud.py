"""A Tidelog boat feeds an lplex cloud: one written here by hand, after reference notes on what lplex's own code does.

It acks only after a frame, knows no sessions, adds holes only above a cursor that is not 0, asks a new boat for its
whole past over Live, answers each block of Backfill once, and refuses a boat that is too fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.cluster.parties import BoatParty, row, wait_until
from tidelog.blocks.lpj import decode_lpj_block, inflate_lpj
from tidelog.core.ranges import RangeSet
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.uplink import LiveFrames, Out
from tidelog.edge.uplink_client import UplinkClient
from tidelog.edge.uplink_target import UplinkTarget
from tidelog.wire.proto import replication_pb2 as pb

Row = tuple[int, int, bytes]
ACK_S = 0.1


@dataclass
class LplexCloud:
    """What lplex-cloud does with one boat; `rows` is what it would have in its files, by seq."""

    rate: float = 100_000.0
    burst: float = 100_000.0
    cursor: int = 0
    head: int = 0
    holes: RangeSet = field(default_factory=RangeSet)
    rows: dict[int, list[Row]] = field(default_factory=dict)
    seeds: list[Row] = field(default_factory=list)
    refusals: int = 0
    handshakes: int = 0
    backfills_ended: int = 0
    statuses: int = 0

    def handler(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "lplex.replication.v1.Replication",
            {
                "Handshake": grpc.unary_unary_rpc_method_handler(self._handshake),
                "Live": grpc.stream_stream_rpc_method_handler(self._live),
                "Backfill": grpc.stream_stream_rpc_method_handler(self._backfill),
            },
        )

    async def _handshake(self, request: bytes, context: Any) -> bytes:
        hello = pb.HandshakeRequest.FromString(request)
        self.handshakes += 1
        self.head = hello.head_seq
        if self.cursor and self.head > self.cursor + 1:
            self.holes.add(range(self.cursor + 1, self.head))
        answer = pb.HandshakeResponse(
            cursor=self.cursor,
            holes=[pb.SeqRange(start=hole.start, end=hole.stop) for hole in self.holes],
            live_start_from=self.head if self.cursor else 1,
        )
        return answer.SerializeToString()

    async def _live(self, requests: AsyncIterator[bytes], context: Any) -> None:
        tokens, refilled, acked = self.burst, time.monotonic(), time.monotonic()
        async for data in requests:
            message = pb.LiveUpstream.FromString(data)
            if message.WhichOneof("msg") == "status":
                self.head = message.status.head_seq
                self.statuses += 1
                continue
            assert message.WhichOneof("msg") == "frame", "an lplex cloud knows nothing else"
            now = time.monotonic()
            tokens, refilled = min(self.burst, tokens + (now - refilled) * self.rate), now
            if tokens < 1:
                self.refusals += 1
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rate limit exceeded")
            tokens -= 1
            self._take(message.frame)
            if now - acked >= ACK_S:
                acked = now
                await context.write(pb.LiveDownstream(acked_through=self.cursor).SerializeToString())

    def _take(self, frame: Any) -> None:
        taken = (frame.timestamp_us, frame.can_id, frame.data)
        if not frame.seq:
            self.seeds.append(taken)
            return
        self.rows.setdefault(frame.seq, []).append(taken)
        if frame.seq == self.cursor + 1:
            self.cursor = frame.seq

    async def _backfill(self, requests: AsyncIterator[bytes], context: Any) -> None:
        async for data in requests:
            block = pb.BackfillUpstream.FromString(data).block
            assert block.compressed
            decoded = decode_lpj_block(inflate_lpj(block.data, block_size=block.block_size), version=2)
            assert (decoded.base_seq, len(decoded.frames)) == (block.base_seq, block.frame_count)
            for place, found in enumerate(decoded.frames.rows()):
                self.rows.setdefault(block.base_seq + place, []).append(found)
            self.holes.remove(range(block.base_seq, block.base_seq + block.frame_count))
            self.cursor = max(self.cursor, self.holes.start - 1 if self.holes else self.head)
            answer = pb.BackfillDownstream(
                continuous_through=self.cursor,
                remaining=[pb.SeqRange(start=hole.start, end=hole.stop) for hole in self.holes],
            )
            await context.write(answer.SerializeToString())
        self.backfills_ended += 1


@contextlib.asynccontextmanager
async def serving(cloud: LplexCloud, port: int = 0) -> AsyncIterator[int]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((cloud.handler(),))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@contextlib.asynccontextmanager
async def dialled(boat: BoatParty, port: int, **more: Any) -> AsyncIterator[None]:
    target = UplinkTarget(address=f"127.0.0.1:{port}", instance="boat-001", insecure_dev=True)
    client = UplinkClient(uplink=boat.uplink, target=target, log=boat.downs.append, **more)
    task = asyncio.ensure_future(client.run())
    boat._client = client
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def assert_has(cloud: LplexCloud, seqs: range) -> None:
    assert sorted(cloud.rows) == list(seqs)
    for seq in seqs:
        assert set(cloud.rows[seq]) == {row(seq)}


FAST = SenderConfig(backoff_first_ms=50, backoff_max_ms=200, status_interval_ms=200, silence_max_ms=1_000)


def test_a_new_lplex_cloud_gets_the_past_and_the_present_over_live(tmp_path: Path) -> None:
    async def play() -> None:
        cloud, boat = LplexCloud(), BoatParty(tmp_path, config=FAST)
        boat.record(300)
        async with serving(cloud) as port, dialled(boat, port, seeds=lambda: [(0x18EEFF01, b"\x01" * 8)]):
            await boat.sail(30, each=10)
            await wait_until(lambda: len(cloud.rows) == 600, "all frames arrived")
            assert_has(cloud, range(1, 601))
            assert cloud.seeds[0][1:] == (0x18EEFF01, b"\x01" * 8)
            await wait_until(lambda: boat.journal.acked > 300, "the cursor is an ack")
            assert cloud.statuses > 0
        boat.journal.close(0)

    asyncio.run(play())


def test_what_was_recorded_offline_goes_by_backfill_as_lpj_blocks(tmp_path: Path) -> None:
    async def play() -> None:
        cloud, boat = LplexCloud(), BoatParty(tmp_path, config=FAST)
        async with serving(cloud) as port:
            async with dialled(boat, port):
                await boat.sail(20, each=10)
                await wait_until(lambda: cloud.cursor == 200, "Live is contiguous")
            boat.record(30_000)
            async with dialled(boat, port):
                await wait_until(lambda: not cloud.holes and cloud.cursor >= 30_199, "Backfill is complete")
                await wait_until(lambda: cloud.backfills_ended == 1, "the boat ends its Backfill, so state is saved")
                await boat.sail(10, each=10)
                await wait_until(lambda: len(cloud.rows) == 30_300, "Live goes on after Backfill has ended")
                assert cloud.handshakes == 2
        assert_has(cloud, range(1, 30_301))
        boat.journal.close(0)

    asyncio.run(play())


def test_a_quiet_bus_is_no_dead_link_and_a_deaf_cloud_is(tmp_path: Path) -> None:
    async def play() -> None:
        cloud, boat = LplexCloud(), BoatParty(tmp_path, config=FAST)
        async with serving(cloud) as port, dialled(boat, port):
            await boat.sail(30, each=10)
            await wait_until(lambda: boat.journal.acked > 0, "it is heard")
            await asyncio.sleep(0.15)
            boat.record(10)
            await wait_until(lambda: boat.uplink.sender._unanswered_ms is None, "the last frame was answered")
            # An lplex cloud says nothing while the bus is silent: that must not look like a dead link.
            await asyncio.sleep(FAST.silence_max_ms / 1000 * 1.5)
            assert cloud.handshakes == 1, boat.downs
        boat.journal.close(0)

    asyncio.run(play())


def test_the_boat_stays_so_far_below_the_rate_of_lplex_that_a_link_may_hold_frames_back(tmp_path: Path) -> None:
    """Judged when the boat sends: how this machine delays and bunches frames is no doing of the boat's.

    The cloud's bucket is kept here as if every frame that the boat sent in 0.2 s came at the end of it.
    """
    rate, burst, held_back_ms = 2_000.0, 500.0, 200
    sent: list[tuple[int, int]] = []

    async def play() -> None:
        cloud, boat = LplexCloud(), BoatParty(tmp_path, config=FAST)
        poll = boat.uplink.poll

        def watched(now_ms: int, **more: Any) -> list[Out]:
            out = poll(now_ms, **more)
            sent.extend((now_ms, len(each.frames)) for each in out if isinstance(each, LiveFrames))
            return out

        boat.uplink.poll = watched  # type: ignore[method-assign]
        boat.record(3_000)
        async with serving(cloud) as port, dialled(boat, port):
            await wait_until(lambda: len(cloud.rows) == 3_000, "the past came over Live")
        boat.journal.close(0)

    asyncio.run(play())
    assert sum(frames for _, frames in sent) == 3_000
    for first, (start_ms, _) in enumerate(sent):
        taken = 0
        for at_ms, frames in sent[first:]:
            taken += frames
            assert taken <= burst + rate * max(0, at_ms - start_ms - held_back_ms) / 1_000


def test_a_boat_that_lplex_refused_for_its_rate_loses_nothing(tmp_path: Path) -> None:
    async def play() -> None:
        cloud, boat = LplexCloud(rate=500.0, burst=100.0), BoatParty(tmp_path, config=FAST)
        boat.record(400)
        async with serving(cloud) as port, dialled(boat, port):
            await wait_until(lambda: cloud.refusals > 0, "an lplex cloud with other limits than the usual refuses")
            cloud.rate = cloud.burst = 100_000.0
            await wait_until(lambda: len(cloud.rows) == 400, "all frames arrived")
            assert_has(cloud, range(1, 401))
        boat.journal.close(0)

    asyncio.run(play())


@pytest.mark.parametrize("trimmed", [0, 500])
def test_holes_that_cannot_be_filled_do_not_keep_the_rest_from_coming(tmp_path: Path, trimmed: int) -> None:
    async def play() -> None:
        cloud, boat = LplexCloud(), BoatParty(tmp_path, config=FAST)
        boat.record(1_000)
        cloud.cursor, cloud.head = 100, 1_000
        if trimmed:
            # As after a disk limit: the first frames of the hole are gone.
            boat.journal.seal_all(0)
            boat.journal.sealed.roll(0)
            boat.journal.sealed.trim(boat.journal.sealed.log_end, 0)
        boat.record(1_000)
        async with serving(cloud) as port, dialled(boat, port):
            expected = range(1_001 if trimmed else 1, 2_001)
            await wait_until(lambda: set(expected) <= set(cloud.rows), "what the boat has arrived")
        assert_has(cloud, expected)
        boat.journal.close(0)

    asyncio.run(play())
