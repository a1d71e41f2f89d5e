"""An lplex boat, spoken by hand over gRPC, and boats that speak nonsense. Letters are those of lplex's own tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import zstandard

from tests.patience import wait_until
from tests.uplink.parties import (
    BoatParty,
    CloudParty,
    Fleet,
    LplexBoat,
    answer,
    assert_equal_logs,
    backfill_block,
    blast,
    code_of,
    dialed,
    holes,
    live_frame,
    lpj_block,
    row,
    send_frames,
    target,
)
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.header import Codec
from tidelog.blocks.lpj import encode_lpj_block
from tidelog.cluster.uplink.service import MESSAGE_BYTES_MAX
from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.sim.uplink.lplex_blocks import overwritten_lpj_block

NAME = "boat-001"
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


@asynccontextmanager
async def cloud_and_boat(
    tmp_path: Path, fleet: Fleet, *, limits: ReceiverLimits | None = None
) -> AsyncIterator[tuple[CloudParty, LplexBoat]]:
    async with (
        CloudParty(tmp_path / "cloud", fleet, limits=limits).running() as cloud,
        dialed(cloud.port, fleet, fleet.boat(NAME)) as channel,
    ):
        yield cloud, LplexBoat(channel, NAME)


SHORT_LAG = ReceiverLimits(max_live_lag=20, ack_interval_ms=200)
"""A boat that is asked for more than 20 frames of Live leaves, and comes again. Frames that are held already are
acked by the timer alone, so a test that repeats them waits for it each time."""


async def with_a_hole(boat: LplexBoat) -> Any:
    """1 to 100 by Live, then offline until 200, of which the ring gives those from 180 on; the Backfill stream."""
    await boat.handshake(0)
    assert await send_frames(boat.live(), range(1, 101)) == 100
    assert (await boat.handshake(200)).live_start_from == 85, "does its run go on?"
    await send_frames(boat.live(), range(85, 101))
    await hole_again(boat)
    return boat.backfill()


async def hole_again(boat: LplexBoat) -> Any:
    welcome = await boat.handshake(200)
    if welcome.live_start_from == 85:
        await send_frames(boat.live(), range(85, 101))
        welcome = await boat.handshake(200)
    await send_frames(boat.live(), range(180, 201))
    return welcome


async def hang_up(cloud: CloudParty, boat: LplexBoat) -> None:
    """The boat ends its session, and the cloud knows: one that takes over session after session has to wait (UT3)."""
    boat.hang_up()
    session = cloud.service.instances[NAME].session
    await wait_until(lambda: session is None or session.streams == 0, "the session is over")


async def backfill_ack(stream: Any) -> pb.BackfillDownstream:
    return pb.BackfillDownstream.FromString(await answer(stream))


async def test_a_new_boat_is_at_zero_and_its_frames_are_readable_in_order(tmp_path: Path, fleet: Fleet) -> None:
    async with cloud_and_boat(tmp_path, fleet) as (cloud, boat):
        welcome = await boat.handshake(0)
        assert (welcome.cursor, holes(welcome), welcome.live_start_from, welcome.known) == (0, [], 1, False)
        assert await send_frames(boat.live(), range(1, 11)) == 10
        assert cloud.held(NAME) == [(seq, row(seq)) for seq in range(1, 11)]


async def test_b_c_hole_after_a_reconnect_is_filled_by_a_block(tmp_path: Path, fleet: Fleet) -> None:
    async with cloud_and_boat(tmp_path, fleet, limits=SHORT_LAG) as (cloud, boat):
        backfill = await with_a_hole(boat)
        seqs = range(101, 151)
        await backfill.write(backfill_block(seqs, lpj_block(seqs)))
        ack = await backfill_ack(backfill)
        assert (ack.continuous_through, holes(ack)) == (150, [(151, 180)])
        assert sorted(cloud.held(NAME)) == [(seq, row(seq)) for seq in (*range(1, 151), *range(180, 201))]


async def test_zstd_block_and_overlapping_block_fill_the_rest_each_once(tmp_path: Path, fleet: Fleet) -> None:
    async with cloud_and_boat(tmp_path, fleet, limits=SHORT_LAG) as (cloud, boat):
        backfill = await with_a_hole(boat)
        squeezed = zstandard.ZstdCompressor().compress(lpj_block(range(141, 231), 8192))
        message = backfill_block(range(141, 231), squeezed, block_size=8192, compressed=True)
        await backfill.write(message)
        await backfill.write(backfill_block(range(91, 171), lpj_block(range(91, 171))))
        await backfill.write(b"")  # lplex skips a message without a block
        await backfill.done_writing()
        while (ack := await backfill_ack(backfill)).continuous_through < 230:
            pass
        assert not holes(ack)
        assert await code_of(backfill) is grpc.StatusCode.OK
        assert sorted(cloud.held(NAME)) == [(seq, row(seq)) for seq in range(1, 231)]


async def test_g_2501_frames_at_once_exhaust_the_rate_and_the_boat_may_come_back(tmp_path: Path, fleet: Fleet) -> None:
    # A lower rate than the seed's, or it would depend on how fast this machine can send.
    limits = ReceiverLimits(rate_frames_per_s=100, burst_frames=500)
    cloud = CloudParty(tmp_path / "cloud", fleet, limits=limits)
    async with cloud.running(), dialed(cloud.port, fleet, fleet.boat(NAME)) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(0)
        code, details = await asyncio.to_thread(blast, fleet, cloud.port, NAME, range(1, 2_502))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details.startswith("rate_exceeded")
        welcome = await boat.handshake(2_501)
        there = [seq for seq, _ in cloud.held(NAME)]
        assert there == list(range(1, len(there) + 1)), "what was taken is whole"
        assert 500 <= len(there) < 2_501, "the burst is allowed, and no more"
        assert welcome.cursor == len(there)
        assert (holes(welcome), welcome.live_start_from) == ([], len(there) + 1 - 16), "its ring has the rest"


async def test_device_seeds_are_not_logged(tmp_path: Path, fleet: Fleet) -> None:
    async with cloud_and_boat(tmp_path, fleet) as (cloud, boat):
        await boat.handshake(0)
        live = boat.live()
        for _ in range(5):
            await live.write(live_frame(0))
        assert await send_frames(live, range(1, 6)) == 5
        assert [seq for seq, _ in cloud.held(NAME)] == [1, 2, 3, 4, 5]


async def test_restarted_boat_begins_a_new_lineage(tmp_path: Path, fleet: Fleet) -> None:
    """lplex counts from 1 again after every restart; no seq may mean two frames."""

    async with cloud_and_boat(tmp_path, fleet) as (cloud, boat):
        await boat.handshake(0)
        await send_frames(boat.live(), range(1, 51))
        welcome = await boat.handshake(0)
        assert welcome.cursor == 0
        assert await send_frames(boat.live(), range(1, 21)) == 20
        assert [seq for seq, _ in cloud.held(NAME)] == [*range(1, 51), *range(1, 21)]
        assert len(cloud.service.instances[NAME].channel.receiver.fold.lineages) == 2


async def test_boat_without_a_journal_has_lost_at_once_what_its_ring_is_not_asked_for(
    tmp_path: Path, fleet: Fleet
) -> None:
    async with cloud_and_boat(tmp_path, fleet, limits=SHORT_LAG) as (_, boat):
        await boat.handshake(0)
        await send_frames(boat.live(), range(1, 11))
        welcome = await boat.handshake(50, journal_bytes=0)
        assert (welcome.cursor, holes(welcome), welcome.live_start_from) == (10, [], 1)
        await send_frames(boat.live(), range(1, 6))  # its run goes on; then it leaves for its lag
        welcome = await boat.handshake(50, journal_bytes=0)
        assert (welcome.cursor, holes(welcome), welcome.live_start_from) == (29, [], 30)


async def test_hole_is_lost_after_two_passes_that_the_boat_finished(tmp_path: Path, fleet: Fleet) -> None:
    """A pass that broke off does not count (F5)."""

    async def one_pass(boat: LplexBoat, *, finished: bool) -> None:
        backfill = boat.backfill()
        await backfill.write(backfill_block(range(151, 200), lpj_block(range(151, 200))))
        await answer(backfill)
        if finished:
            await backfill.done_writing()
            assert await code_of(backfill) is grpc.StatusCode.OK
        else:
            backfill.cancel()

    async with cloud_and_boat(tmp_path, fleet, limits=SHORT_LAG) as (cloud, boat):
        await with_a_hole(boat)
        receiver = cloud.service.instances[NAME].channel.receiver
        for finished in (False, False, True):
            await hang_up(cloud, boat)
            await boat.handshake(200)
            await send_frames(boat.live(), range(185, 201))
            await one_pass(boat, finished=finished)
        await hang_up(cloud, boat)
        assert holes(await boat.handshake(200)) == [(101, 151)], "one finished pass is not enough"
        await send_frames(boat.live(), range(185, 201))
        await one_pass(boat, finished=True)
        await wait_until(lambda: receiver.cursor == 200, "the cursor passes what is lost")
        await hang_up(cloud, boat)
        assert (await boat.handshake(200)).cursor == 200


async def test_quiet_boat_still_hears_acks(tmp_path: Path, fleet: Fleet) -> None:
    cloud = CloudParty(tmp_path / "cloud", fleet, limits=ReceiverLimits(ack_interval_ms=100))
    async with cloud.running(), dialed(cloud.port, fleet, fleet.boat(NAME)) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(0)
        live = boat.live()
        for _ in range(3):
            assert pb.LiveDownstream.FromString(await answer(live)).acked_through == 0


# --- bad input -----------------------------------------------------------------------------------


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def odd_block(*, base_seq: int, count: int = 20) -> bytes:
    """A whole block, and a message that says what the block does."""
    frames = FrameColumns.from_rows(map(row, range(101, 101 + count)))
    data = encode_lpj_block(frames, base_seq=base_seq, block_size=4096)
    return backfill_block(range(101, 101 + count), data, base_seq=base_seq)


def spoiled_block(*, base_seq: int, can_id: int | None = None) -> bytes:
    """The last of 20 records is bad."""
    rows = [row(seq) for seq in range(101, 121)]
    frames = FrameColumns.from_rows(rows)
    if can_id is not None:
        frames.can_ids[0] = can_id
    data = overwritten_lpj_block(frames, base_seq=base_seq, block_size=4096)
    return backfill_block(range(101, 121), data, base_seq=base_seq)


def bad_backfills() -> dict[str, tuple[bytes, grpc.StatusCode]]:
    """Blocks of an lplex journal that cannot be read end nothing: the boat would send them again and again."""
    skipped = grpc.StatusCode.OK
    seqs = range(101, 151)
    good = lpj_block(seqs)
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(64 * 1024 * 1024))
    unsized = zstandard.ZstdCompressor(level=19, write_content_size=False).compress(bytes(64 * 1024 * 1024))
    frames = FrameColumns.from_rows(map(row, seqs))
    foreign = encode_frames(frames, base_seq=101, producer=b"another lineage!", codec=Codec.NONE)
    made = b"".join(map(bytes, foreign.buffers))
    precondition = grpc.StatusCode.FAILED_PRECONDITION
    return {
        "garbage": (b"\xff" * 100, INVALID),
        "lying count": (backfill_block(seqs, good, frame_count=99), skipped),
        "lying base": (backfill_block(seqs, good, base_seq=120), skipped),
        "wrong checksum": (backfill_block(seqs, flipped(good, 40)), skipped),
        "cut off": (backfill_block(seqs, good[:2000]), skipped),
        "wrong block size": (backfill_block(seqs, good, block_size=5000), skipped),
        "no block size": (backfill_block(seqs, good, block_size=0), skipped),
        "huge block size": (backfill_block(seqs, good, block_size=2**31), skipped),
        "zstd that is none": (backfill_block(seqs, good, compressed=True), skipped),
        "zstd bomb": (backfill_block(seqs, bomb, compressed=True), skipped),
        "zstd bomb that hides its size": (backfill_block(seqs, unsized, compressed=True), skipped),
        "seq beyond all": (backfill_block(seqs, good, base_seq=2**64 - 1), skipped),
        "block of seqs beyond all": (odd_block(base_seq=2**63 - 10), skipped),
        "spoiled block that ends beyond all": (spoiled_block(base_seq=2**63 - 12), skipped),
        "block from seq 0": (odd_block(base_seq=0), skipped),
        "spoiled block from seq 0": (spoiled_block(base_seq=0), skipped),
        "block of no frames": (odd_block(base_seq=101, count=0), skipped),
        "spoiled block with an id of 30 bits": (spoiled_block(base_seq=101, can_id=1 << 29), skipped),
        "range that runs backwards": (
            pb.BackfillUpstream(gone=pb.SeqRange(start=9, end=3)).SerializeToString(),
            INVALID,
        ),
        "gone beyond the head": (
            pb.BackfillUpstream(gone=pb.SeqRange(start=1, end=10**9)).SerializeToString(),
            INVALID,
        ),
        "block of another lineage": (pb.BackfillUpstream(made_blocks=[made]).SerializeToString(), precondition),
        "made block of noise": (pb.BackfillUpstream(made_blocks=[b"\x5a" * 500]).SerializeToString(), INVALID),
        "made block, one bit off": (pb.BackfillUpstream(made_blocks=[flipped(made, 70)]).SerializeToString(), INVALID),
        "oversized": (bytes(MESSAGE_BYTES_MAX + 1), grpc.StatusCode.RESOURCE_EXHAUSTED),
    }


async def test_bad_backfill_fills_nothing_and_is_skipped_or_refused_by_type(tmp_path: Path, fleet: Fleet) -> None:
    honest = BoatParty(tmp_path / "boat")
    async with cloud_and_boat(tmp_path, fleet, limits=SHORT_LAG) as (cloud, boat):
        honest.dial(target(fleet, cloud.port, "boat-002"))
        await with_a_hole(boat)
        for what, (message, code) in bad_backfills().items():
            honest.record(5)
            await hang_up(cloud, boat)
            assert holes(await boat.handshake(200)) == [(101, 180)], f"after {what}"
            live = boat.live()
            await send_frames(live, range(185, 201))
            backfill = boat.backfill()
            await backfill.write(message)
            if code is grpc.StatusCode.OK:
                await send_frames(live, range(185, 201))
                backfill.cancel()  # a pass that broke off
            else:
                assert await code_of(backfill) is code, what
        await hang_up(cloud, boat)
        await boat.handshake(200)
        await send_frames(boat.live(), range(185, 201))
        backfill = boat.backfill()
        await backfill.write(backfill_block(range(101, 151), lpj_block(range(101, 151))))
        assert (await backfill_ack(backfill)).continuous_through == 150, "the service goes on"
        await honest.wait_acked()
        assert not honest.downs, "the other boat noticed nothing"
        assert_equal_logs(honest, cloud, "boat-002")
        assert sorted(seq for seq, _ in cloud.held(NAME)) == [*range(1, 151), *range(180, 201)]
        await honest.close()


def bad_live_messages() -> dict[str, bytes]:
    def frame(**fields: Any) -> bytes:
        return pb.LiveUpstream(frame=pb.LiveFrame(**{"seq": 1, "timestamp_us": 1, **fields})).SerializeToString()

    return {
        "garbage": b"\xff" * 50,
        "nothing": b"",
        "seq beyond all": frame(seq=2**64 - 1),
        "id of 32 bits": frame(can_id=2**32 - 1),
        "payload too long": frame(data=bytes(2000)),
        "made block of noise": pb.LiveUpstream(made_block=b"\x5a" * 500).SerializeToString(),
        "head beyond all": pb.LiveUpstream(status=pb.LiveStatus(head_seq=2**64 - 1)).SerializeToString(),
    }


async def test_bad_live_message_is_refused_by_type_and_nothing_is_logged(tmp_path: Path, fleet: Fleet) -> None:
    async with cloud_and_boat(tmp_path, fleet) as (cloud, boat):
        for what, message in bad_live_messages().items():
            await boat.handshake(0)
            live, backfill = boat.live(), boat.backfill()
            await live.write(message)
            assert await code_of(live) is INVALID, what
            assert await code_of(backfill) is INVALID, f"{what}: the session is over on both streams"
        assert not cloud.held(NAME)
        await boat.handshake(0)
        assert await send_frames(boat.live(), range(1, 4)) == 3


async def test_bad_handshake_is_refused_and_the_running_session_goes_on(tmp_path: Path, fleet: Fleet) -> None:
    many = [pb.SeqRange(start=3 * place + 1, end=3 * place + 2) for place in range(100_001)]
    bad = {
        "garbage": b"\xff" * 50,
        "head": pb.HandshakeRequest(instance_id=NAME, head_seq=2**64 - 1).SerializeToString(),
        "lineage": pb.HandshakeRequest(instance_id=NAME, lineage=b"short").SerializeToString(),
        "void beyond the head": pb.HandshakeRequest(
            instance_id=NAME, lineage=bytes(15) + b"1", void=[pb.SeqRange(start=1, end=9)]
        ).SerializeToString(),
        "too many ranges": pb.HandshakeRequest(instance_id=NAME, head_seq=10**6, lost=many).SerializeToString(),
    }
    async with cloud_and_boat(tmp_path, fleet) as (cloud, boat):
        await boat.handshake(0)
        live = boat.live()
        await send_frames(live, range(1, 4))
        for what, message in bad.items():
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await boat.handshake_raw(message)
            assert refusal.value.code() is INVALID, what
        assert await send_frames(live, range(4, 7)) == 6, "what was refused changed nothing (UR4)"
        assert cloud.session(NAME) == 1


async def test_second_stream_of_a_kind_is_refused(tmp_path: Path, fleet: Fleet) -> None:
    async with cloud_and_boat(tmp_path, fleet) as (_, boat):
        await boat.handshake(0)
        live = boat.live()
        await send_frames(live, range(1, 4))
        assert await code_of(boat.live()) is INVALID
        assert await send_frames(live, range(4, 7)) == 6


async def test_two_handshakes_at_once_leave_one_session(tmp_path: Path, fleet: Fleet) -> None:
    async with cloud_and_boat(tmp_path, fleet) as (cloud, boat):
        await boat.handshake(0)
        answers = await asyncio.gather(*(boat.handshake(0) for _ in range(20)), return_exceptions=True)
        won = [found.session for found in answers if isinstance(found, pb.HandshakeResponse)]
        lost = [found.code() for found in answers if isinstance(found, grpc.aio.AioRpcError)]
        assert len(won) + len(lost) == 20
        assert max(won) == cloud.session(NAME) == 21
        assert set(lost) <= {grpc.StatusCode.FAILED_PRECONDITION}


async def test_lplex_boat_in_plaintext_is_who_it_says(tmp_path: Path) -> None:
    """Development only: lplex sends no metadata with its Handshake, and x-instance-id with its streams."""

    async with CloudParty(tmp_path / "cloud", None).running() as cloud, dialed(cloud.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(0)
        assert await send_frames(boat.live(), range(1, 4)) == 3
        assert await code_of(boat.live((("x-instance-id", "boat-009"),))) is grpc.StatusCode.FAILED_PRECONDITION
        assert await code_of(boat.live((("x-instance-id", "../x"),))) is grpc.StatusCode.PERMISSION_DENIED
