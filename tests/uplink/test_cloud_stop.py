"""A cloud stops within seconds, whatever its boats do, and loses nothing that it took."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.patience import patient, wait_until
from tests.uplink.clouds import CloudHouse, TlsFolder, running_cloud, saved
from tests.uplink.parties import HOST, BoatParty, Fleet, LplexBoat, code_of, dialed, live_frame, send_frames, target
from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.core.uplink.receiver import ReceiverLimits

NAME = "boat-001"
STOP_S = 5.0
HEAD = 2_000
FRAMES = 60
STOPPED = {"frames_received": FRAMES, "reason": "session_fenced"}
FAST = ReceiverLimits(rate_frames_per_s=1e6, burst_frames=100_000)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


async def test_endless_live_streams_are_told_at_once_that_the_cloud_stops(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        house = await stack.enter_async_context(running_cloud(tmp_path))
        streams = []
        for place in range(5):
            channel = await stack.enter_async_context(dialed(house.port))
            boat = LplexBoat(channel, f"boat-{place}")
            await boat.handshake(1)
            live, backfill = boat.live(), boat.backfill()
            await send_frames(live, range(1, 4))
            streams += [live, backfill]
        endings = [asyncio.ensure_future(code_of(stream)) for stream in streams]
        started = time.monotonic()
        await house.cloud.stop()
        assert time.monotonic() - started < patient(STOP_S)
        assert set(await asyncio.gather(*endings)) == {grpc.StatusCode.UNAVAILABLE}
        assert (await streams[0].details()).startswith("log_closed")
    assert saved(tmp_path, "boat-4")["cursor"] == 3


def narrow_channel(port: int) -> Any:
    """Its side of the connection buffers next to nothing for a reader that does not come."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
    return grpc.aio.insecure_channel(f"{HOST}:{port}", options=options)


def _has_taken(house: CloudHouse, count: int) -> bool:
    return house.instance(NAME).watch.frames_by_live == count


async def talk_without_listening(house: CloudHouse, boat: LplexBoat) -> Any:
    """Frames, and never a read: each ack names thousands of holes, until flow control stops them."""
    lost = [pb.SeqRange(start=seq, end=seq + 1) for seq in range(2, HEAD, 2)]
    await boat.handshake(HEAD, lineage=bytes(range(16)), life=b"1", sent_through=HEAD, lost=lost)
    live = boat.live()
    for seq in range(HEAD + 1, HEAD + 1 + FRAMES):
        await live.write(live_frame(seq))
        await wait_until(functools.partial(_has_taken, house, seq - HEAD), "it is committed")
    return live


async def test_boats_that_do_not_read_do_not_hold_up_the_stop(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        house = await stack.enter_async_context(running_cloud(tmp_path, limits=FAST))
        channel = await stack.enter_async_context(narrow_channel(house.port))
        live = await talk_without_listening(house, LplexBoat(channel, NAME))
        started = time.monotonic()
        await house.cloud.stop()
        elapsed_s = time.monotonic() - started
        assert elapsed_s < patient(STOP_S), f"{elapsed_s:.1f} s"
        live.cancel()
    assert saved(tmp_path, NAME)["boat_head_seq"] == HEAD + FRAMES


async def test_a_stream_that_is_fenced_ends_although_its_boat_does_not_read(tmp_path: Path) -> None:
    async with running_cloud(tmp_path, limits=FAST) as house, narrow_channel(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        live = await talk_without_listening(house, boat)
        await boat.handshake(HEAD + FRAMES, lineage=bytes(range(16)), life=b"1", sent_through=HEAD + FRAMES)
        await wait_until(lambda: ("live_stop", STOPPED) in house.events(NAME), "the old stream is over", STOP_S)
        live.cancel()


async def test_what_was_queued_is_committed_and_the_store_is_clean(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        house = await stack.enter_async_context(running_cloud(tmp_path, limits=FAST))
        channel = await stack.enter_async_context(dialed(house.port))
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        live = boat.live()
        for seq in range(1, 501):
            await live.write(live_frame(seq))
        await wait_until(lambda: house.instance(NAME).channel.receiver.cursor > 0, "some have arrived")
        await house.cloud.stop()
        cursor, log_end = house.instance(NAME).channel.receiver.cursor, house.instance(NAME).committed_end
        state = saved(tmp_path, NAME)
        assert (state["cursor"], state["log_end"]) == (cursor, log_end)
    async with running_cloud(tmp_path) as house:
        await house.wait_ready()
        assert house.store.recovery is not None
        assert house.store.recovery.clean
        assert house.log(NAME).log_end == log_end + 1, "and the first record of a new epoch (R1)"
        assert house.status(NAME).cursor == cursor


async def test_a_stopping_cloud_takes_no_new_boats(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        assert house.cloud.service is not None
        house.cloud.service.close()
        assert house.view.ready() == (False, "the cloud is stopping")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await boat.handshake(1)
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await code_of(boat.live()) is grpc.StatusCode.UNAVAILABLE


async def test_a_boat_of_ours_goes_on_after_a_restart_of_the_cloud(tmp_path: Path, fleet: Fleet) -> None:
    tls = TlsFolder(tmp_path / "tls", fleet)
    boat = BoatParty(tmp_path / "boat")
    async with running_cloud(tmp_path / "cloud", tls) as house:
        boat.dial(target(fleet, house.port, NAME))
        await boat.sail(10)
        await wait_until(lambda: boat.is_connected, "the boat is there")
        await wait_until(lambda: house.status(NAME).cursor > 20, "some frames are held")
        before = house.status(NAME)
    await boat.sail(10)
    await boat.hang_up()
    async with running_cloud(tmp_path / "cloud", tls) as house:
        await house.wait_ready()
        assert house.status(NAME).cursor >= before.cursor
        boat.dial(target(fleet, house.port, NAME))
        await boat.wait_acked()
        assert house.status(NAME).cursor == boat.journal.head
        assert house.status(NAME).lineage == before.lineage
        await boat.close()
