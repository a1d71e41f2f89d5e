"""What the cloud remembers of each boat: replication events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from tests.patience import wait_until
from tests.uplink.clouds import CloudHouse, running_cloud
from tests.uplink.parties import LplexBoat, answer, backfill_block, code_of, dialed, live_frame, lpj_block, send_frames
from tidelog.cluster.boats.events import CHECKPOINT_FRAMES, EventRing
from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.core.uplink.receiver import ReceiverLimits

NAME = "boat-001"
FAST = ReceiverLimits(rate_frames_per_s=1e6, burst_frames=100_000)


def types(house: CloudHouse) -> list[str]:
    return [kind for kind, _ in house.events(NAME)]


def detail(house: CloudHouse, kind: str) -> dict[str, Any]:
    """The detail of the newest event of this type."""
    return next(event.detail for event in house.view.events(NAME, 1_024) if event.type == kind)


async def test_a_session_leaves_its_events_newest_first(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(50)
        live = boat.live()
        await send_frames(live, range(50, 61))
        backfill = boat.backfill()
        for start in range(1, 50, 7):
            seqs = range(start, start + 7)
            await backfill.write(backfill_block(seqs, lpj_block(seqs)))
        await backfill.done_writing()
        assert await code_of(backfill) is grpc.StatusCode.OK
        await wait_until(lambda: "backfill_stop" in types(house), "Backfill is over")
        await live.done_writing()
        assert await code_of(live) is grpc.StatusCode.OK
        await wait_until(lambda: "live_stop" in types(house), "Live is over")
        assert types(house) == [
            "lineage_opened",
            "session_opened",
            "live_start",
            "backfill_start",
            "block_received",
            "backfill_stop",
            "live_stop",
        ]
        assert detail(house, "live_start") == {"boat_head_seq": 50}
        assert detail(house, "backfill_start") == {"holes": 1}
        received = detail(house, "block_received")
        assert (received["blocks"], received["base_seq"], received["frame_count"]) == (7, 1, 49)
        assert (received["bytes"], received["compressed"]) == (7 * 4096, False)
        assert detail(house, "backfill_stop") == {"blocks_received": 7}
        assert detail(house, "live_stop") == {"frames_received": 11}
        assert [event.type for event in house.view.events(NAME, 2)] == ["live_stop", "backfill_stop"]
        times = [event.time_us for event in house.view.events(NAME, 100)]
        assert times == sorted(times, reverse=True)


async def test_one_live_stop_with_the_reason_when_the_rate_is_exceeded(tmp_path: Path) -> None:
    limits = ReceiverLimits(rate_frames_per_s=1, burst_frames=5)
    async with running_cloud(tmp_path, limits=limits) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        live = boat.live()
        for seq in range(1, 8):
            await live.write(live_frame(seq))
        assert await code_of(live) is grpc.StatusCode.RESOURCE_EXHAUSTED
        await wait_until(lambda: "live_stop" in types(house), "Live is over")
        assert types(house).count("live_stop") == 1
        assert detail(house, "live_stop")["reason"] == "rate_limit_exceeded"
        assert detail(house, "refused") == {"code": "rate_exceeded", "count": 1}
        await wait_until(lambda: house.status(NAME).frames_received == 5, "what the rate allows was taken")


async def test_lag_is_a_reason_too(tmp_path: Path) -> None:
    limits = ReceiverLimits(max_live_lag=100)
    async with running_cloud(tmp_path, limits=limits) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        live = boat.live()
        await live.write(live_frame(1))
        status = pb.LiveUpstream(status=pb.LiveStatus(head_seq=500, journal_bytes=1))
        await live.write(status.SerializeToString())
        assert await code_of(live) is grpc.StatusCode.RESOURCE_EXHAUSTED
        await wait_until(lambda: "live_stop" in types(house), "Live is over")
        assert detail(house, "live_stop") == {"frames_received": 1, "reason": "cloud_lag_exceeded"}


async def test_a_newer_session_leaves_a_fence_and_one_stop(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        live = boat.live()
        await send_frames(live, range(1, 4))
        await boat.handshake(3)
        assert await code_of(live) is grpc.StatusCode.FAILED_PRECONDITION
        await wait_until(lambda: "live_stop" in types(house), "Live is over")
        assert detail(house, "fenced") == {"session": 1, "by": 2}
        assert detail(house, "live_stop")["reason"] == "session_fenced"
        assert types(house).count("live_stop") == 1
        again = boat.live()
        assert await send_frames(again, range(3, 6)) == 5, "the old stream's end does not end the new session"
        assert house.status(NAME).connected


async def test_lost_ranges_and_new_lineages_are_events(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(20, journal_bytes=0)
        lost = detail(house, "range_lost")
        assert (lost["start"], lost["end"], lost["ranges"]) == (1, 20, 1)
        await send_frames(boat.live(), range(20, 30))
        await boat.handshake(3)
        assert types(house).count("lineage_opened") == 2
        assert detail(house, "lineage_opened")["reason"] == "its seq went backwards"


async def test_a_refused_handshake_is_counted_not_repeated(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        for _ in range(5):
            call = boat.handshake(10, lost=[pb.SeqRange(start=50, end=60)])
            assert await _refusal(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert detail(house, "refused") == {"code": "invalid_record", "count": 5}
        assert types(house).count("refused") == 1


async def _refusal(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    raise AssertionError("it was not refused")


async def test_a_checkpoint_comes_every_50_000_frames(tmp_path: Path) -> None:
    async with running_cloud(tmp_path, limits=FAST) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        live = boat.live()
        await send_frames(live, range(1, 3))
        session = house.instance(NAME).session
        assert session is not None
        session.live_frames = CHECKPOINT_FRAMES - 5  # sending them all takes its time
        await send_frames(live, range(3, 20))
        assert types(house).count("checkpoint") == 1
        found = detail(house, "checkpoint")
        assert found["frames_received"] == CHECKPOINT_FRAMES
        assert found["boat_head_seq"] >= found["cursor"] >= 2


def test_the_ring_forgets_the_oldest_and_blocks_do_not_flood_it() -> None:
    ring = EventRing(events_max=10)
    for time_us in range(100):
        ring.block_received(time_us, base_seq=time_us + 1, frame_count=2, size=10, compressed=time_us == 5)
    assert len(ring.newest(100)) == 1
    assert ring.newest(1)[0].detail == {
        "base_seq": 1,
        "frame_count": 200,
        "bytes": 1_000,
        "compressed": True,
        "blocks": 100,
    }
    for time_us in range(100, 120):
        ring.add(time_us, "live_start", boat_head_seq=time_us)
    assert [event.time_us for event in ring.newest(3)] == [119, 118, 117]
    assert len(ring.newest(1_000)) == 10
    assert ring.newest(0) == []


async def test_a_passing_backfill_is_seen_in_the_counters(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(11)
        await send_frames(boat.live(), range(11, 21))
        backfill = boat.backfill()
        await backfill.write(backfill_block(range(5, 15), lpj_block(range(5, 15))))
        ack = pb.BackfillDownstream.FromString(await answer(backfill))
        assert ack.continuous_through == 0
        status = house.status(NAME)
        assert (status.frames_received, status.frames_by_live, status.frames_by_backfill) == (16, 10, 6)


async def test_events_survive_a_restart_and_a_snapshot(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house:
        async with dialed(house.port) as channel:
            boat = LplexBoat(channel, NAME)
            await boat.handshake(21)
            await send_frames(boat.live(), range(21, 31))
            backfill = boat.backfill()
            await backfill.write(backfill_block(range(1, 11), lpj_block(range(1, 11))))
            await answer(backfill)
        await wait_until(lambda: not house.status(NAME).connected, "the boat has hung up")
        await wait_until(lambda: "live_stop" in types(house), "and that is noted")
        for _ in range(3):
            assert await _refusal(boat_of(house, lost=60)) is grpc.StatusCode.INVALID_ARGUMENT
        before = house.events(NAME)
    for place in range(3):
        async with running_cloud(tmp_path) as house:
            await house.wait_ready()
            after = house.events(NAME)
            assert sorted(after, key=lambda event: event[0]) == sorted(before, key=lambda event: event[0]), place
            times = [event.time_us for event in house.view.events(NAME, 100)]
            assert times == sorted(times, reverse=True)
            if place == 1:
                await house.instance(NAME).write_snapshot()


async def boat_of(house: CloudHouse, *, lost: int) -> None:
    async with dialed(house.port) as channel:
        await LplexBoat(channel, NAME).handshake(30, lost=[pb.SeqRange(start=lost, end=lost + 1)])
