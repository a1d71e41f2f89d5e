"""What the cloud makes of a boat's frames for its readers: the feed, the devices, the history."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.patience import patient, wait_until
from tests.uplink.clouds import CloudHouse, TlsFolder, running_cloud
from tests.uplink.parties import (
    START_US,
    BoatParty,
    Fleet,
    LplexBoat,
    answer,
    backfill_block,
    dialed,
    live_frame,
    lpj_block,
    row,
    send_frames,
    target,
)
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.lpj import encode_lpj_block
from tidelog.cluster.boats.history import frames_between
from tidelog.cluster.boats.view import FrameBlock
from tidelog.cluster.boats.watch import InstanceWatch
from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import UnknownChannel
from tidelog.http.feed import FeedBlock, Subscription
from tidelog.nmea.devices import Name, Product, introductions
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.recovery import open_log
from tidelog.storage.os_disk import OsDisk

NAME = "boat-001"
FAST = ReceiverLimits(rate_frames_per_s=1e6, burst_frames=100_000)
GPS = (35, Name(77, 229, 0, 145, 60, 4), Product(1234, "GPS 19x", "5.40", "1", "00001"))
WIND = (36, Name(78, 135, 0, 130, 85, 4), Product(4321, "WS310", "1.0", "2", "00002"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


def frame_message(seq: int, time_us: int, can_id: int, payload: bytes) -> bytes:
    frame = pb.LiveFrame(seq=seq, timestamp_us=time_us, can_id=can_id, data=payload)
    return pb.LiveUpstream(frame=frame).SerializeToString()


def taken(subscription: Subscription) -> list[tuple[int, tuple[int, int, bytes]]]:
    found: list[tuple[int, tuple[int, int, bytes]]] = []
    while (item := subscription.take_nowait()) is not None:
        if isinstance(item, FeedBlock):
            seqs = range(item.base_seq, item.base_seq + len(item.frames)) if item.base_seq else [0] * len(item.frames)
            found += zip(seqs, item.frames.rows(), strict=True)
    return found


# --- the feed ------------------------------------------------------------------------------------


async def test_feed_shows_committed_live_frames_once_and_no_backfill(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(11)
        reader = house.view.feed(NAME).subscribe()
        live = boat.live()
        await send_frames(live, range(11, 31))
        backfill = boat.backfill()
        await backfill.write(backfill_block(range(1, 15), lpj_block(range(1, 15))))
        await answer(backfill)
        await send_frames(live, range(25, 41))  # 25 to 30 are held already
        assert taken(reader) == [(seq, row(seq)) for seq in range(11, 41)]


async def test_feed_of_a_boat_of_ours(tmp_path: Path, fleet: Fleet) -> None:
    tls = TlsFolder(tmp_path / "tls", fleet)
    boat = BoatParty(tmp_path / "boat")
    async with running_cloud(tmp_path / "cloud", tls) as house:
        boat.dial(target(fleet, house.port, NAME))
        await wait_until(lambda: boat.is_connected, "the boat is there")
        reader = house.view.feed(NAME).subscribe()
        await boat.sail(20)
        await boat.wait_acked()
        shown = taken(reader)
        assert shown == [(seq, row(seq)) for seq in range(shown[0][0], boat.journal.head + 1)]
        assert len(shown) > 100
        await boat.close()


async def test_feed_without_readers_still_keeps_the_latest_values_and_devices(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        await send_frames(boat.live(), range(1, 31))
        await wait_until(lambda: house.view.feed(NAME).frames_published == 30, "the frames were published")
        assert sum(device.packet_count for device in house.view.devices(NAME)) == 30


async def test_feed_of_an_unknown_boat_is_refused(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house:
        with pytest.raises(UnknownChannel):
            house.view.feed("nobody")
        assert house.view.devices("nobody") == []
        assert house.view.events("nobody", 10) == []


# --- devices -------------------------------------------------------------------------------------


async def test_device_seeds_reach_the_devices_and_the_feed_but_not_the_log(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        reader = house.view.feed(NAME).subscribe()
        live = boat.live()
        seeds = introductions([GPS, WIND])
        for can_id, payload in seeds:
            await live.write(frame_message(0, START_US, can_id, payload))
        await send_frames(live, range(1, 4))
        assert [seq for seq, _ in taken(reader)] == [0, 0, 0, 0, 1, 2, 3]
        devices = {device.source: device for device in house.view.devices(NAME)}
        assert (devices[35].name, devices[35].product) == (GPS[1].to_int(), GPS[2])
        assert (devices[36].name, devices[36].product) == (WIND[1].to_int(), WIND[2])
        status = house.status(NAME)
        assert (status.cursor, status.frames_received) == (3, 3)


async def test_a_flood_of_device_seeds_is_refused(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        live = boat.live()
        can_id, payload = introductions([GPS])[0]
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for _ in range(5_000):
                await live.write(frame_message(0, START_US, can_id, payload))
        await wait_until(lambda: ("refused", {"code": "rate_exceeded", "count": 1}) in house.events(NAME), "enough")
        assert house.view.devices(NAME)[0].packet_count == 1_024


def with_devices(house: CloudHouse) -> dict[int, tuple[int, Product]]:
    return {device.source: (device.name, device.product) for device in house.view.devices(NAME)}


@pytest.mark.parametrize("is_kept", [True, False], ids=["from-the-file", "from-the-log"])
async def test_devices_survive_a_restart(tmp_path: Path, is_kept: bool) -> None:
    frames = introductions([GPS, WIND])

    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        live = boat.live()
        for seq, (can_id, payload) in enumerate(frames, 1):
            await live.write(frame_message(seq, START_US + seq, can_id, payload))
        await send_frames(live, range(5, 10))
        before = with_devices(house)
        assert before[35] == (GPS[1].to_int(), GPS[2])
    if not is_kept:
        (tmp_path / NAME / "devices.json").unlink()
    async with running_cloud(tmp_path) as house:
        await wait_until(lambda: with_devices(house) == before, "the devices are back")


async def test_backfilled_claims_name_the_devices_that_live_only_counts(tmp_path: Path) -> None:
    """A boat that booted without a link: the claims are in the journal, Live has data alone."""
    claims = [(START_US + place, can_id, payload) for place, (can_id, payload) in enumerate(introductions([GPS]))]
    data = encode_lpj_block(FrameColumns.from_rows(claims), base_seq=1, block_size=4096)

    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(3)
        live = boat.live()
        late_us = START_US + 10**9
        await live.write(frame_message(3, late_us, 0x09F80100 | 35, b"12345678"))
        await wait_until(lambda: 35 in with_devices(house), "the device is known by its address")
        assert with_devices(house)[35] == (0, Product())
        backfill = boat.backfill()
        await backfill.write(backfill_block(range(1, 3), data, base_time_us=START_US))
        await answer(backfill)
        await wait_until(lambda: with_devices(house)[35] == (GPS[1].to_int(), GPS[2]), "it has a name now")
        [device] = house.view.devices(NAME)
        assert device.last_seen_us == late_us, "an old claim does not make the device older"


def test_older_frames_do_not_rename_a_device_that_is_known() -> None:
    watch = InstanceWatch()
    new = [(2_000 + place, can_id, payload) for place, (can_id, payload) in enumerate(introductions([GPS]))]
    old_name = (35, WIND[1], WIND[2])
    old = [(1_000 + place, can_id, payload) for place, (can_id, payload) in enumerate(introductions([old_name]))]
    watch.learn_devices(FrameColumns.from_rows(new))
    watch.learn_devices(FrameColumns.from_rows(old))
    [device] = watch.devices.devices()
    assert (device.name, device.product, device.last_seen_us) == (GPS[1].to_int(), GPS[2], 2_001)
    newer = [(time_us + 5_000, can_id, payload) for time_us, can_id, payload in old]
    watch.learn_devices(FrameColumns.from_rows(newer))
    assert watch.devices.devices()[0].name == WIND[1].to_int()


# --- history -------------------------------------------------------------------------------------


async def history(house: CloudHouse, from_us: int, to_us: int) -> list[tuple[int, Any]]:
    blocks = [block async for block in house.view.history(NAME, from_us=from_us, to_us=to_us)]
    return rows_of(blocks)


def rows_of(blocks: list[FrameBlock]) -> list[tuple[int, Any]]:
    return [(block.base_seq + place, found) for block in blocks for place, found in enumerate(block.frames.rows())]


async def test_history_gives_live_and_foreign_frames_between_two_times(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(101)
        await send_frames(boat.live(), range(101, 201))
        backfill = boat.backfill()
        await backfill.write(backfill_block(range(1, 111), lpj_block(range(1, 111))))
        await answer(backfill)
        everything = await history(house, 0, 2**62)
        assert [seq for seq, _ in everything] == [*range(101, 201), *range(1, 101)], "log order, each once"
        assert everything == [(seq, row(seq)) for seq, _ in everything]
        some = await history(house, row(50)[0], row(150)[0])
        assert sorted(some) == [(seq, row(seq)) for seq in range(50, 150)], "half-open"
        assert await history(house, row(150)[0], row(150)[0]) == []
        with pytest.raises(UnknownChannel):
            house.view.history("nobody", from_us=0, to_us=1)


async def test_history_of_a_long_log_is_read_in_pieces_and_can_be_left(tmp_path: Path) -> None:
    async with running_cloud(tmp_path, limits=FAST) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1, lineage=bytes(range(16)), life=b"1")
        backfill = boat.backfill((("x-instance-id", NAME),))
        await backfill_blocks(backfill, count=40, each=5_000)
        blocks = house.view.history(NAME, from_us=0, to_us=2**62)
        first = await anext(blocks)
        assert first.base_seq == 1
        await blocks.aclose()  # type: ignore[attr-defined]
        count = 0
        async for block in house.view.history(NAME, from_us=0, to_us=2**62):
            assert block.base_seq == count + 1
            count += len(block.frames)
        assert count == 200_000
        started = time.monotonic()
        found = await history(house, START_US + 150_000, START_US + 150_010)
        assert [seq for seq, _ in found] == list(range(150_000, 150_010))
        assert time.monotonic() - started < patient(2.0)


async def backfill_blocks(stream: Any, *, count: int, each: int) -> None:
    for place in range(count):
        seqs = np.arange(1 + place * each, 1 + (place + 1) * each, dtype=np.int64)
        frames = FrameColumns(
            times_us=START_US + seqs,
            can_ids=np.full(each, 0x09F80101, np.uint32),
            payload_offsets=np.arange(0, 8 * each + 1, 8, dtype=np.int32),
            payload=seqs.view(np.uint8),
        )
        made = encode_frames(frames, base_seq=int(seqs[0]), producer=bytes(range(16)))
        message = pb.BackfillUpstream(made_blocks=[b"".join(map(bytes, made.buffers))])
        await stream.write(message.SerializeToString())
        ack = pb.BackfillDownstream.FromString(await answer(stream))
        assert ack.continuous_through <= 1 + (place + 1) * each


def random_log(tmp_path: Path, rng: random.Random) -> tuple[Log, list[tuple[int, Any]]]:
    """Blocks in any order of time, with windows; and what of them counts, in log order."""
    options = LogOptions(reserve_bytes=0, segment_bytes_max=8_192, index_interval_bytes=512)
    log = open_log(OsDisk(tmp_path), "log", now_us=1, options=options)
    counted: list[tuple[int, Any]] = []
    for place in range(60):
        count, base_seq = rng.randrange(1, 30), 1 + 100 * place
        rows = [(rng.randrange(10_000), 0x09F80100, rng.randbytes(8)) for _ in range(count)]
        windows: tuple[range, ...] = ()
        if rng.random() < 0.5 and count >= 4:
            cuts = sorted(rng.sample(range(count + 1), 4))
            windows = (range(cuts[0], cuts[1]), range(cuts[2], cuts[3]))
        made = encode_frames(FrameColumns.from_rows(rows), base_seq=base_seq)
        log.stage(made, epoch=1, now_us=1, windows=windows)
        log.commit(1)
        counted += [(base_seq + i, rows[i]) for part in windows or (range(count),) for i in part]
    return log, counted


def test_history_agrees_with_a_plain_filter(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    log, counted = random_log(tmp_path, rng)
    for _ in range(100):
        from_us, to_us = rng.randrange(-10, 10_010), rng.randrange(-10, 10_010)
        found = rows_of(list(frames_between(log, from_us=from_us, to_us=to_us)))
        assert found == [(seq, each) for seq, each in counted if from_us <= each[0] < to_us]
    log.close(1)


def test_history_passes_over_what_retention_takes_meanwhile(tmp_path: Path) -> None:
    log, counted = random_log(tmp_path, random.Random(3))
    found = frames_between(log, from_us=0, to_us=10_001)
    rows = rows_of([next(found)])
    log.trim(log.segments[-1].base_offset, 2)
    rows += rows_of(list(found))
    assert rows[-1] == counted[-1]
    assert [each for each in counted if each in rows] == rows
    log.close(1)


# --- single frames of an lplex boat --------------------------------------------------------------


async def test_ten_thousand_frames_of_an_lplex_boat_become_few_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a disk whose sync takes 5 ms, so that the bound does not depend on how fast this one is."""
    sync, sync_s = os.fdatasync, 0.005

    def slow_sync(descriptor: int) -> None:
        time.sleep(sync_s)
        sync(descriptor)

    async with running_cloud(tmp_path, limits=FAST) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        monkeypatch.setattr(os, "fdatasync", slow_sync)
        started = time.monotonic()
        assert await send_frames(boat.live(), range(1, 10_001)) == 10_000
        elapsed_s = time.monotonic() - started
        blocks = [block.maker.record_count for block in house.log(NAME).blocks() if block.maker.base_seq]
        print(f"{len(blocks)} blocks for 10,000 frames in {elapsed_s:.1f} s, largest {max(blocks)}")
        assert sum(blocks) == 10_000
        assert len(blocks) <= 1 + elapsed_s / sync_s, "frames that come during an append share the next one"
        assert len(blocks) < 10_000
        assert max(blocks) <= 256
        found = await history(house, 0, 2**62)
        assert found == [(seq, row(seq)) for seq in range(1, 10_001)]


async def test_a_gap_in_seq_starts_a_new_block(tmp_path: Path) -> None:
    async with running_cloud(tmp_path, limits=FAST) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        live = boat.live()
        instance = house.instance(NAME)
        seqs = [*range(1, 50), *range(60, 90), *range(85, 100), 200]
        for seq in seqs:
            await live.write(live_frame(seq))
        await wait_until(lambda: instance.channel.receiver.holes()[-1:] == [range(100, 200)], "all has come")
        await instance.wait_settled()
        held = [part for block in house.log(NAME).blocks() if block.maker.base_seq for part in block.counted_seqs()]
        assert [seq for part in held for seq in part] == [*range(1, 50), *range(60, 100), 200]
        assert house.status(NAME).holes == (range(50, 60), range(100, 200))


async def test_a_single_frame_is_committed_without_waiting_for_another(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        live = boat.live()
        for seq in range(1, 6):
            await send_frames(live, range(seq, seq + 1))
            assert house.status(NAME).cursor == seq
            await asyncio.sleep(0)


def test_a_device_that_falls_silent_while_others_speak_is_forgotten() -> None:
    watch = InstanceWatch()
    claims = introductions([GPS, WIND])
    watch.learn_devices(FrameColumns.from_rows((1_000, can_id, payload) for can_id, payload in claims))
    reader = watch.feed.subscribe()
    watch.forget_idle(500)
    assert len(watch.devices) == 2, "time passes by what the bus says, not by the clock"
    watch.learn_devices(FrameColumns.from_rows([(1_501, 0x09F80100 | 36, b"12345678")]))
    watch.forget_idle(500)
    assert [device.source for device in watch.devices.devices()] == [36]
    assert reader.take_nowait() is not None, "readers are told"
