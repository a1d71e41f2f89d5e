"""Acceptance: the scenarios of lplex's own tests, and those that none of them covers. Letters and numbers are lplex's.

Bad input and bad certificates have modules of their own; so have real processes.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest
import zstandard

from tests.patience import patient, wait_until
from tests.uplink.parties import (
    BoatParty,
    CloudParty,
    Fleet,
    LplexBoat,
    answer,
    assert_equal_logs,
    backfill_block,
    code_of,
    dialed,
    holes,
    lpj_block,
    row,
    send_frames,
    target,
)
from tests.uplink.proxy import LinkProxy
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import encode_frames
from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.core.uplink.sender import SenderConfig
from tidelog.storage.log.writer import wall_clock_us

NAME = "boat-001"
LINEAGE = bytes(15) + b"\x09"
RINGLESS = ReceiverLimits(ring_frames=0)
"""Nothing is asked of a boat's ring: the lplex boats of these tests have a journal alone."""
SEED = int(os.environ.get("TIDELOG_TEST_SEED", "5"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


def head_and_cursor(cloud: CloudParty, name: str) -> tuple[int, int]:
    """What the cloud has committed of the boat's current lineage."""
    instance = cloud.service.instances.get(name)
    if instance is None:
        return 0, 0
    fold = instance.channel.receiver.fold
    current = fold.lineages.get(fold.current or b"")
    return (current.head, current.cursor) if current is not None else (0, 0)


# --- replication_server_test.go ------------------------------------------------------------------


async def test_a_known_boat_keeps_its_instance_and_an_unknown_one_has_none(tmp_path: Path, fleet: Fleet) -> None:
    async with (
        CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS).running() as cloud,
        dialed(cloud.port, fleet, fleet.boat(NAME)) as channel,
    ):
        boat = LplexBoat(channel, NAME)
        await boat.handshake(0)
        first = cloud.service.instances[NAME]
        assert (await boat.handshake(0)).known
        assert cloud.service.instances[NAME] is first
        assert "boat-002" not in cloud.service.instances


@pytest.mark.parametrize("how", ["closed", "crashed"])
async def test_cursor_head_and_two_holes_are_there_after_a_restart(tmp_path: Path, fleet: Fleet, how: str) -> None:
    cloud = CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS)
    await cloud.start()
    hello = {"lineage": LINEAGE, "life": b"1", "sent_through": 8_000}
    async with dialed(cloud.port, fleet, fleet.boat(NAME)) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(8_000, **hello)  # type: ignore[arg-type]
        backfill = boat.backfill()
        for seqs in (range(1, 5_001), range(6_001, 7_001)):
            made = encode_frames(FrameColumns.from_rows(map(row, seqs)), base_seq=seqs.start, producer=LINEAGE)
            data = b"".join(map(bytes, made.buffers))
            await backfill.write(pb.BackfillUpstream(made_blocks=[data]).SerializeToString())
        while (ack := pb.BackfillDownstream.FromString(await answer(backfill))).answered < 2:
            pass
        assert (ack.continuous_through, holes(ack)) == (5_000, [(5_001, 6_001), (7_001, 8_001)])
    await (cloud.stop() if how == "closed" else cloud.crash())
    async with cloud.running(), dialed(cloud.port, fleet, fleet.boat(NAME)) as channel:
        welcome = await LplexBoat(channel, NAME).handshake(8_000, **hello)  # type: ignore[arg-type]
        assert (welcome.cursor, holes(welcome)) == (5_000, [(5_001, 6_001), (7_001, 8_001)])
        assert (welcome.known, welcome.live_start_from, welcome.fork) == (True, 8_001, False)


async def test_a_channel_in_which_nothing_was_ever_said_loads_with_cursor_0(tmp_path: Path, fleet: Fleet) -> None:
    cloud = CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS)
    await cloud.start()
    await cloud.service.boats.instance(NAME)
    await cloud.stop()
    async with cloud.running(), dialed(cloud.port, fleet, fleet.boat(NAME)) as channel:
        welcome = await LplexBoat(channel, NAME).handshake(0)
        assert (welcome.cursor, holes(welcome), welcome.live_start_from) == (0, [], 1)


async def test_a_stop_of_the_cloud_keeps_what_every_boat_had_sent(tmp_path: Path, fleet: Fleet) -> None:
    names = ["boat-001", "boat-002", "boat-003"]
    cloud = CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS)
    await cloud.start()
    for count, name in enumerate(names, 1):
        async with dialed(cloud.port, fleet, fleet.boat(name)) as channel:
            boat = LplexBoat(channel, name)
            await boat.handshake(0)
            await send_frames(boat.live(), range(1, 10 * count + 1))
    await cloud.stop()
    async with cloud.running():
        for count, name in enumerate(names, 1):
            async with dialed(cloud.port, fleet, fleet.boat(name)) as channel:
                assert (await LplexBoat(channel, name).handshake(10 * count)).cursor == 10 * count
            assert cloud.held(name) == [(seq, row(seq)) for seq in range(1, 10 * count + 1)]


# --- replication_integration_test.go -------------------------------------------------------------


async def test_d_end_to_end_with_fifty_frames_recorded_offline(tmp_path: Path, fleet: Fleet) -> None:
    boat = BoatParty(tmp_path / "boat")
    async with CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS).running() as cloud:
        boat.record(50)
        boat.dial(target(fleet, cloud.port, NAME))
        await boat.sail(5)
        await boat.wait_acked()
        assert boat.is_connected
        assert [seq for seq, _ in sorted(cloud.held(NAME))][:20] == list(range(1, 21)), "a consumer reads 1 to 20"
        await boat.hang_up()
        boat.record(50)
        boat.dial(target(fleet, cloud.port, NAME))
        await wait_until(lambda: head_and_cursor(cloud, NAME) == (150, 150), "what was recorded offline arrives")
        await boat.sail(5)
        await boat.wait_acked()
        assert head_and_cursor(cloud, NAME) == (200, 200)
        assert_equal_logs(boat, cloud, NAME)
        await boat.close()


async def test_f_three_readers_at_once_each_read_everything(tmp_path: Path, fleet: Fleet) -> None:
    boat = BoatParty(tmp_path / "boat")
    async with CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS).running() as cloud:
        boat.dial(target(fleet, cloud.port, NAME))
        boat.record(20)
        await boat.wait_acked()
        sailing = asyncio.ensure_future(boat.sail(20))
        found = await asyncio.gather(*(asyncio.to_thread(cloud.held, NAME) for _ in range(3)))
        for read in found:
            assert read[:20] == [(seq, row(seq)) for seq in range(1, 21)]
        await sailing
        await boat.wait_acked()
        await boat.close()


async def test_h_a_backlog_of_15000_is_caught_up_under_a_continuous_feed(tmp_path: Path, fleet: Fleet) -> None:
    boat = BoatParty(tmp_path / "boat")
    boat.record(15_000)
    async with CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS).running() as cloud:
        boat.dial(target(fleet, cloud.port, NAME))
        sailing = asyncio.ensure_future(boat.sail(100))

        def is_near() -> bool:
            head, cursor = head_and_cursor(cloud, NAME)
            return cursor > 15_000 and boat.journal.head - head < 1_000

        await wait_until(is_near, "the cloud is within 1,000 frames of the boat", 15)
        await sailing
        await boat.wait_acked()
        assert not boat.downs, "at the cloud's own limits, and not refused for the rate once"
        assert_equal_logs(boat, cloud, NAME)
        await boat.close()


async def test_i_a_restarted_cloud_goes_on_at_its_cursor(tmp_path: Path, fleet: Fleet) -> None:
    cloud = CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS)
    await cloud.start()
    async with dialed(cloud.port, fleet, fleet.boat(NAME)) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(0)
        assert await send_frames(boat.live(), range(1, 101)) == 100
    await cloud.stop()
    async with cloud.running(), dialed(cloud.port, fleet, fleet.boat(NAME)) as channel:
        boat = LplexBoat(channel, NAME)
        welcome = await boat.handshake(200)
        assert (welcome.cursor, holes(welcome)) == (100, [(101, 200)])
        live = boat.live()
        assert await send_frames(live, range(200, 211)) == 100, "the cursor stands below the hole"
        backfill = boat.backfill()
        await backfill.write(backfill_block(range(101, 200), lpj_block(range(101, 200))))
        ack = pb.BackfillDownstream.FromString(await answer(backfill))
        assert (ack.continuous_through, holes(ack)) == (210, [])
        assert sorted(cloud.held(NAME)) == [(seq, row(seq)) for seq in range(1, 211)]


# --- replication_chaos_test.go -------------------------------------------------------------------


async def test_chaos_random_short_sessions_lose_nothing(tmp_path: Path, fleet: Fleet) -> None:
    rng = random.Random(SEED)
    print(f"TIDELOG_TEST_SEED={SEED}")

    boat = BoatParty(tmp_path / "boat")
    boat.record(500)
    async with CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS).running() as cloud:
        for _ in range(5):
            boat.dial(target(fleet, cloud.port, NAME))
            boat.record(100)
            await asyncio.sleep(rng.uniform(0.05, 0.2))
            await boat.hang_up()
        boat.dial(target(fleet, cloud.port, NAME))
        await boat.wait_acked()
        assert head_and_cursor(cloud, NAME) == (1_000, 1_000)
        assert_equal_logs(boat, cloud, NAME)
        await boat.close()


async def test_chaos_twenty_sessions_of_30_ms_never_claim_what_was_not_sent(tmp_path: Path, fleet: Fleet) -> None:
    boat = BoatParty(tmp_path / "boat")
    async with CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS).running() as cloud:
        cursors = []
        for _ in range(20):
            boat.record(20)
            boat.dial(target(fleet, cloud.port, NAME))
            await asyncio.sleep(0.03)
            await boat.hang_up()
            cursors.append(head_and_cursor(cloud, NAME)[1])
            assert cursors[-1] <= boat.journal.head
        assert cursors == sorted(cursors), "the cursor never goes back"
        boat.dial(target(fleet, cloud.port, NAME))
        await boat.wait_acked()
        assert_equal_logs(boat, cloud, NAME)
        await boat.close()


async def test_chaos_three_boats_with_jitter_do_not_disturb_each_other(tmp_path: Path, fleet: Fleet) -> None:
    rng = random.Random(SEED)
    print(f"TIDELOG_TEST_SEED={SEED}")

    async def one(cloud: CloudParty, name: str) -> None:
        boat = BoatParty(tmp_path / name)
        boat.dial(target(fleet, cloud.port, name))
        for _ in range(60):
            boat.record(5)
            await asyncio.sleep(rng.uniform(0, 0.02))
        await boat.wait_acked()
        assert boat.journal.head == 300
        assert_equal_logs(boat, cloud, name)
        await boat.close()

    async with CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS).running() as cloud:
        await asyncio.gather(*(one(cloud, f"boat-00{number}") for number in (1, 2, 3)))


async def test_chaos_disconnect_in_the_middle_of_backfill(tmp_path: Path, fleet: Fleet) -> None:
    boat = BoatParty(tmp_path / "boat", config=SenderConfig(backoff_first_ms=40, backfill_window_blocks=1))
    for _ in range(50):  # many small blocks, so that Backfill takes a while
        boat.record(10)
        boat.journal.flush(wall_clock_us())
    async with CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS).running() as cloud:
        boat.dial(target(fleet, cloud.port, NAME))
        await wait_until(lambda: len(cloud.held(NAME)) >= 200, "some of it is there")
        await boat.hang_up()
        assert len(cloud.held(NAME)) < 500, "it was the middle"
        boat.record(500)
        boat.dial(target(fleet, cloud.port, NAME))
        await boat.wait_acked()
        assert head_and_cursor(cloud, NAME) == (1_000, 1_000)
        assert_equal_logs(boat, cloud, NAME)
        await boat.close()


# --- what no test of lplex covers ----------------------------------------------------------------


async def test_cursor_goes_on_with_live_after_a_complete_backfill(tmp_path: Path, fleet: Fleet) -> None:
    """lplex sets it to the head of the last Handshake and then freezes until the next one."""

    async with (
        CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS).running() as cloud,
        dialed(cloud.port, fleet, fleet.boat(NAME)) as channel,
    ):
        boat = LplexBoat(channel, NAME)
        await boat.handshake(0)
        await send_frames(boat.live(), range(1, 11))
        await boat.handshake(50)
        live, backfill = boat.live(), boat.backfill()
        assert await send_frames(live, range(50, 81)) == 10
        await backfill.write(backfill_block(range(11, 50), lpj_block(range(11, 50))))
        ack = pb.BackfillDownstream.FromString(await answer(backfill))
        assert (ack.continuous_through, holes(ack)) == (80, []), "what came by Live meanwhile counts"
        assert await send_frames(live, range(81, 101)) == 100, "and the cursor follows Live from there"


async def test_cursor_after_a_complete_backfill_is_not_the_head_that_was_announced(
    tmp_path: Path, fleet: Fleet
) -> None:
    """An lplex boat announces a head that it sends by Live; until it has, it is not there."""

    async with (
        CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS).running() as cloud,
        dialed(cloud.port, fleet, fleet.boat(NAME)) as channel,
    ):
        boat = LplexBoat(channel, NAME)
        await boat.handshake(50)
        backfill = boat.backfill()
        await backfill.write(backfill_block(range(1, 50), lpj_block(range(1, 50))))
        ack = pb.BackfillDownstream.FromString(await answer(backfill))
        assert (ack.continuous_through, holes(ack)) == (49, [])
        assert len(cloud.held(NAME)) == 49


@pytest.mark.parametrize("size", [4_096, 65_536, 262_144])
async def test_zstd_blocks_of_every_size_fill_the_hole(tmp_path: Path, fleet: Fleet, size: int) -> None:
    async with (
        CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS).running() as cloud,
        dialed(cloud.port, fleet, fleet.boat(NAME)) as channel,
    ):
        boat = LplexBoat(channel, NAME)
        await boat.handshake(201)
        backfill = boat.backfill()
        for seqs in (range(101, 201), range(1, 101)):
            squeezed = zstandard.ZstdCompressor().compress(lpj_block(seqs, size))
            await backfill.write(backfill_block(seqs, squeezed, block_size=size, compressed=True))
            ack = pb.BackfillDownstream.FromString(await answer(backfill))
        assert (ack.continuous_through, holes(ack)) == (200, [])
        assert sorted(cloud.held(NAME)) == [(seq, row(seq)) for seq in range(1, 201)]


def dictionary_block(seqs: range) -> bytes:
    """What lplex sends of a block that is compressed with a dictionary: it begins 4 bytes early and ends too soon."""
    raw = lpj_block(seqs)
    samples: list[bytes | bytearray | memoryview] = [
        lpj_block(range(start, start + 50)) for start in range(1, 2_000, 50)
    ]
    dictionary = zstandard.train_dictionary(8_192, samples)
    squeezed = zstandard.ZstdCompressor(dict_data=dictionary).compress(raw)
    stored = len(squeezed).to_bytes(4, "little") + dictionary.as_bytes() + squeezed
    return stored[: len(squeezed)]


async def test_dictionary_block_that_lplex_sends_wrongly_closes_no_hole(tmp_path: Path, fleet: Fleet) -> None:
    async with (
        CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS).running() as cloud,
        dialed(cloud.port, fleet, fleet.boat(NAME)) as channel,
    ):
        boat = LplexBoat(channel, NAME)
        await boat.handshake(51)
        backfill = boat.backfill()
        await backfill.write(backfill_block(range(1, 21), dictionary_block(range(1, 21)), compressed=True))
        # It goes on; but nothing passes for filled.
        answer = pb.BackfillDownstream.FromString(await backfill.read())
        assert [(hole.start, hole.end) for hole in answer.remaining] == [(1, 51)]
        squeezed = zstandard.compress(lpj_block(range(21, 51)))
        await backfill.write(backfill_block(range(21, 51), squeezed, compressed=True))
        answer = pb.BackfillDownstream.FromString(await backfill.read())
        assert [(hole.start, hole.end) for hole in answer.remaining] == [(1, 21)]
        assert [seq for seq, _ in cloud.held(NAME)] == list(range(21, 51))


async def test_live_of_an_lplex_boat_with_dictionary_blocks_goes_on(tmp_path: Path, fleet: Fleet) -> None:
    async with (
        CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS).running() as cloud,
        dialed(cloud.port, fleet, fleet.boat(NAME)) as channel,
    ):
        boat = LplexBoat(channel, NAME)
        await boat.handshake(51)
        live, backfill = boat.live(), boat.backfill()
        await send_frames(live, range(51, 61))
        await backfill.write(backfill_block(range(1, 51), dictionary_block(range(1, 51)), compressed=True))
        await backfill.done_writing()
        await code_of(backfill)
        await send_frames(live, range(61, 71))


# --- idle and half-open links --------------------------------------------------------------------

SILENCE_S = 1.2


def quick() -> SenderConfig:
    """The defaults are 25 s and 5 s; a busy machine is given more time before its silence counts."""
    silence_max_ms = int(patient(SILENCE_S) * 1_000)
    return SenderConfig(backoff_first_ms=40, backoff_max_ms=160, silence_max_ms=silence_max_ms, status_interval_ms=200)


NOTICED_S = 2.0
"""The silence of `quick` must have been noticed so long after it: a report, and a busy machine."""


async def test_a_bus_that_is_silent_for_longer_than_the_silence_limit_keeps_the_link(
    tmp_path: Path, fleet: Fleet
) -> None:
    config = quick()
    boat = BoatParty(tmp_path / "boat", config=config)
    cloud = CloudParty(tmp_path / "cloud", fleet, limits=ReceiverLimits(ack_interval_ms=200))
    async with cloud.running():
        boat.dial(target(fleet, cloud.port, NAME))
        await boat.sail(3)
        await boat.wait_acked()
        heard = [boat.uplink.statistics().last_ack_us]
        for _ in range(3):
            await wait_until(lambda: boat.uplink.statistics().last_ack_us != heard[-1], "the next ack comes")
            heard.append(boat.uplink.statistics().last_ack_us)
            await asyncio.sleep(config.silence_max_ms / 2_000)
        assert not boat.downs
        assert boat.is_connected
        await boat.sail(3)
        await boat.wait_acked()
        assert cloud.session(NAME) == 1
        await boat.close()


DIRECTIONS = [{"up": True, "down": True}, {"up": True, "down": False}, {"up": False, "down": True}]


async def notices(boat: BoatParty, proxy: LinkProxy, direction: dict[str, bool], within_s: float) -> float:
    """How long it took the boat to give up a link that swallows."""
    downs = len(boat.downs)
    proxy.swallow(**direction)
    began = time.monotonic()
    while len(boat.downs) == downs:
        assert time.monotonic() < began + patient(within_s), f"not noticed: {direction}"
        boat.record(1)
        await asyncio.sleep(0.05)
    return time.monotonic() - began


@pytest.mark.parametrize("direction", DIRECTIONS, ids=str)
async def test_half_open_link_is_noticed_in_every_direction_and_heals(
    tmp_path: Path, fleet: Fleet, direction: dict[str, bool]
) -> None:
    config = quick()
    boat = BoatParty(tmp_path / "boat", config=config)
    cloud = CloudParty(tmp_path / "cloud", fleet, limits=ReceiverLimits(ack_interval_ms=200))
    async with cloud.running():
        with LinkProxy(cloud.port).running() as proxy:
            boat.dial(target(fleet, proxy.port, NAME))
            await boat.sail(5)
            await boat.wait_acked()
            await notices(boat, proxy, direction, config.silence_max_ms / 1_000 + NOTICED_S)
            assert proxy.bytes_swallowed
            proxy.heal()
            await boat.sail(5)
            await boat.wait_acked()
            assert_equal_logs(boat, cloud, NAME)
            await boat.close()


@pytest.mark.slow
async def test_half_open_link_is_noticed_within_30_s_with_the_settings_of_every_day(
    tmp_path: Path, fleet: Fleet
) -> None:
    async def one(cloud: CloudParty, name: str, direction: dict[str, bool]) -> float:
        boat = BoatParty(tmp_path / name, config=SenderConfig())
        with LinkProxy(cloud.port).running() as proxy:
            boat.dial(target(fleet, proxy.port, name))
            await boat.sail(5)
            await boat.wait_acked()
            noticed_s = await notices(boat, proxy, direction, 30)
            proxy.heal()
            await boat.wait_acked()
            assert_equal_logs(boat, cloud, name)
            await boat.close()
        return noticed_s

    async with CloudParty(tmp_path / "cloud", fleet, limits=RINGLESS).running() as cloud:
        found = [one(cloud, f"boat-00{place}", each) for place, each in enumerate(DIRECTIONS, 1)]
        print(f"noticed after {await asyncio.gather(*found)} s")
