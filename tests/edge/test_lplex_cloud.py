"""A Tidelog boat feeds an lplex cloud: one written here by hand, after reference notes on what lplex's own code does.

It acks only after a frame, knows no sessions, adds holes only above a cursor that is not 0, asks a new boat for its
whole past over Live, answers each block of Backfill once, and refuses a boat that is too fast.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.patience import patient, slowness, wait_until
from tests.uplink.parties import BoatParty, row
from tidelog.blocks.lpj import decode_lpj_block, inflate_lpj
from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.core.ranges import RangeSet
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.uplink.client import UplinkClient
from tidelog.edge.uplink.lplex_cloud import NO_FRAME_ID, NO_FRAME_PAYLOAD
from tidelog.edge.uplink.target import UplinkTarget
from tidelog.edge.uplink.uplink import LiveFrames, Out
from tidelog.storage.log.writer import steady_clock_ms

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
    live_through: int = 0
    live_at_close: int = 0
    """How far Live was beyond the head of the Handshake when the last hole closed."""
    is_deaf: bool = False
    """It takes nothing from Live, and answers nothing."""
    is_status_late: bool = False
    """A status is heard after the block that came behind it, as a cloud with much to do may."""

    @property
    def duplicates(self) -> int:
        return sum(len(taken) - 1 for taken in self.rows.values())

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
        is_known = False
        async for data in requests:
            if self.is_deaf:
                continue
            message = pb.LiveUpstream.FromString(data)
            if message.WhichOneof("msg") == "status":
                if is_known and not self.is_status_late:  # before the first frame it does not know whose it is
                    self.head = message.status.head_seq
                self.statuses += 1
                continue
            is_known = True
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
        self.live_through = frame.seq
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
            if not self.holes:
                self.live_at_close = self.live_through - block.base_seq - block.frame_count
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
    client = UplinkClient(uplink=boat.uplink, target=target, log=boat.hear, **more)
    task = asyncio.ensure_future(client.run())
    boat._client = client
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        boat.uplink.disconnected(steady_clock_ms())


def assert_has(cloud: LplexCloud, seqs: range, *, without: Sequence[range] = ()) -> None:
    """Each frame once; of seqs `without` a frame, what stands in for it."""
    assert sorted(cloud.rows) == list(seqs)
    assert cloud.duplicates == 0
    for seq in seqs:
        if any(seq in part for part in without):
            assert cloud.rows[seq][0][1:] == (NO_FRAME_ID, NO_FRAME_PAYLOAD)
        else:
            assert cloud.rows[seq] == [row(seq)]


def crashed(boat: BoatParty, folder: Path) -> tuple[BoatParty, range]:
    """The boat after a power cut, and the seqs that were leased and never used, or lost with the memory."""
    durable = boat.journal.durable_head
    boat.journal.let_go(0)
    boat = BoatParty(folder, config=FAST)
    void = range(durable + 1, boat.journal.head + 1)
    assert len(void) > 10_000
    return boat, void


def record_blocks(boat: BoatParty) -> None:
    """So many blocks that Backfill takes a while with `slow_backfill`."""
    for _ in range(10):
        boat.record(500)
        boat.journal.flush(0)


FAST = SenderConfig(backoff_first_ms=50, backoff_max_ms=200, status_interval_ms=200, silence_max_ms=60_000)
"""On a busy machine a living cloud may be silent for a while: a boat that gave it up would dial and send again."""


def slow_backfill() -> SenderConfig:
    """Slower on a slow machine: Live needs the time to go on meanwhile."""
    return replace(FAST, status_interval_ms=900, backfill_bytes_per_s=int(4_000 / slowness()))


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
        config = replace(FAST, silence_max_ms=int(1_000 * patient(1)))
        cloud, boat = LplexCloud(), BoatParty(tmp_path, config=config)
        async with serving(cloud) as port, dialled(boat, port):
            await boat.sail(30, each=10)
            await wait_until(lambda: boat.journal.acked > 0, "it is heard")
            await asyncio.sleep(0.15)
            boat.record(10)
            await wait_until(lambda: boat.uplink.sender._live_unanswered_ms is None, "the last frame was answered")
            # An lplex cloud says nothing while the bus is silent: that must not look like a dead link.
            await asyncio.sleep(config.silence_max_ms / 1000 * 1.5)
            assert cloud.handshakes == 1, boat.downs
            cloud.is_deaf = True
            boat.record(10)
            deadline_s = 30 + 2 * config.silence_max_ms / 1000
            await wait_until(lambda: cloud.handshakes > 1, "a cloud that does not answer is given up", deadline_s)
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


def test_after_a_crash_the_cursor_passes_the_void_seqs_and_nothing_is_sent_twice(tmp_path: Path) -> None:
    """The cursor stood still at the first void seq for ever, and each Handshake asked for all that came after it."""

    async def play() -> None:
        cloud, boat, voids = LplexCloud(), BoatParty(tmp_path, config=FAST), []

        def is_told() -> bool:
            return cloud.cursor == boat.journal.head

        async with serving(cloud) as port:
            for _ in range(2):
                async with dialled(boat, port):
                    await boat.sail(20, each=10)
                    await wait_until(is_told, f"the cursor moves on; {boat.downs}")
                boat.journal.flush(0)
                boat, void = crashed(boat, tmp_path)
                voids.append(void)
            boat.record(300)
            async with dialled(boat, port):
                await wait_until(lambda: cloud.cursor >= boat.journal.head - 1, "Backfill brings the rest")
                await boat.sail(10, each=10)
                await wait_until(lambda: cloud.cursor == boat.journal.head, "Live goes on from there")
            handshakes = cloud.handshakes
            async with dialled(boat, port):
                await wait_until(lambda: cloud.handshakes > handshakes, "it dials again")
                await boat.sail(10, each=10)
                await wait_until(lambda: cloud.cursor == boat.journal.head, "and has nothing to send again")
        assert_has(cloud, range(1, boat.journal.head + 1), without=voids)
        await boat.close()

    asyncio.run(play())


def test_a_new_lplex_cloud_hears_of_void_seqs_over_live_and_of_many_by_backfill(tmp_path: Path) -> None:
    async def play() -> None:
        cloud, boat = LplexCloud(), BoatParty(tmp_path, config=FAST)
        boat.record(200)
        boat.journal.flush(0)
        boat, void = crashed(boat, tmp_path)
        boat.record(50)
        async with serving(cloud) as port, dialled(boat, port):
            await wait_until(lambda: cloud.cursor == boat.journal.head, f"the cursor moves on; {boat.downs}")
            assert cloud.handshakes == 2
        assert_has(cloud, range(1, boat.journal.head + 1), without=[void])
        await boat.close()

    asyncio.run(play())


def test_live_goes_on_while_holes_are_filled_and_the_cursor_does_not_stand_still_after(tmp_path: Path) -> None:
    """When the last hole closes, lplex's cursor jumps to the head that it last heard of. Live was beyond that, so the
    cursor never moved again, and the next Handshake asked for everything since."""

    async def play() -> None:
        cloud, boat = LplexCloud(), BoatParty(tmp_path, config=slow_backfill())
        async with serving(cloud) as port:
            async with dialled(boat, port):
                await boat.sail(10)
                await wait_until(lambda: cloud.cursor == 100, "Live is contiguous")
            record_blocks(boat)
            async with dialled(boat, port):
                while cloud.holes or cloud.handshakes < 2:
                    await boat.sail(1)
                await boat.sail(5)
                await wait_until(lambda: cloud.cursor == boat.journal.head, "the cursor moves with Live")
        assert cloud.live_at_close > 50, "Live went on meanwhile"
        assert_has(cloud, range(1, boat.journal.head + 1))
        await boat.close()

    asyncio.run(play())


def test_a_cloud_that_hears_of_the_head_too_late_gets_those_frames_again_and_moves_on(tmp_path: Path) -> None:
    async def play() -> None:
        cloud, boat = LplexCloud(), BoatParty(tmp_path, config=slow_backfill())
        async with serving(cloud) as port:
            async with dialled(boat, port):
                await boat.sail(10)
                await wait_until(lambda: cloud.cursor == 100, "Live is contiguous")
            record_blocks(boat)
            cloud.is_status_late = True
            async with dialled(boat, port):
                while cloud.holes or cloud.handshakes < 2:
                    await boat.sail(1)
                await boat.sail(5)
                await wait_until(lambda: cloud.cursor == boat.journal.head, "the cursor moves with Live")
        assert cloud.live_at_close > 50, "Live went on meanwhile"
        assert sorted(cloud.rows) == list(range(1, boat.journal.head + 1))
        assert 0 < cloud.duplicates <= cloud.live_at_close, "those that Live had sent since the Handshake, once more"
        await boat.close()

    asyncio.run(play())


def test_a_boat_that_has_nothing_new_does_not_send_its_newest_frame_again(tmp_path: Path) -> None:
    async def play() -> None:
        cloud, boat = LplexCloud(), BoatParty(tmp_path, config=FAST)
        async with serving(cloud) as port:
            for _ in range(3):
                async with dialled(boat, port):
                    handshakes = cloud.handshakes
                    await wait_until(lambda: cloud.handshakes > handshakes, "it dials")  # noqa: B023
                    await wait_until(lambda: boat.is_connected, "and is welcome")
                    await boat.sail(2)
                    await wait_until(lambda: cloud.cursor == boat.journal.head, "all arrived")
        assert_has(cloud, range(1, 61))
        await boat.close()

    asyncio.run(play())


@pytest.mark.parametrize("trimmed", [0, 1_000])
def test_what_the_boat_no_longer_has_does_not_keep_the_cursor_from_passing(tmp_path: Path, trimmed: int) -> None:
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
            await wait_until(lambda: cloud.cursor == 2_000, f"the cursor passes what is gone; {boat.downs}")
        assert_has(cloud, range(101, 2_001), without=[range(101, trimmed + 1)])
        boat.journal.close(0)

    asyncio.run(play())
