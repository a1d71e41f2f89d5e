"""An lplex-like boat over gRPC: it restarts with its old files, its clock is set back, its blocks are odd.

What it does at a Handshake, on Live and on Backfill is what lplex does; its journal blocks are `.lpj` blocks.
"""

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
from tests.uplink.parties import START_US, CloudParty, Fleet, LplexBoat, Row, answer, code_of, dialed
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.lpj import encode_lpj_block
from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.sim.uplink.lplex_blocks import journal_times, overwritten_lpj_block

NAME = "boat-001"
BLOCK_BYTES = 4_096
BLOCK_FRAMES = 40
SECOND_US = 1_000_000


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


class Voyage:
    """One lplex boat: its runs, its ring, its files and the block that is not written yet."""

    def __init__(self, *, journal: str = "zstd") -> None:
        self.journal = journal
        self.run = 1
        self.head = 0
        self.rows: dict[int, dict[int, Row]] = {1: {}}
        self.files: list[pb.Block] = []
        self.clock_us = START_US
        self.spoil_next = 0
        self._flushed = 0
        self._live: Any = None

    def record(self, count: int) -> None:
        for _ in range(count):
            self.head += 1
            self.clock_us += 5_000
            payload = b"%02d%06d" % (self.run, self.head)
            self.rows[self.run][self.head] = (self.clock_us, 0x09F80100 + self.head % 7, payload)
            if self.journal != "none" and self.head - self._flushed >= BLOCK_FRAMES:
                self._flush()

    def _flush(self) -> None:
        seqs = range(self._flushed + 1, self.head + 1)
        self._flushed = self.head
        frames = journal_times(FrameColumns.from_rows(self.rows[self.run][seq] for seq in seqs))
        if self.spoil_next:
            data = overwritten_lpj_block(frames, base_seq=seqs.start, block_size=BLOCK_BYTES, records=self.spoil_next)
        else:
            data = encode_lpj_block(frames, base_seq=seqs.start, block_size=BLOCK_BYTES)
        self.spoil_next = 0
        data = zstandard.ZstdCompressor().compress(data)
        if self.journal == "dictionaries":
            # As lplex sends it: the length, the dictionary, and a part of the frame.
            data = len(data).to_bytes(4, "little") + (0xEC30A437).to_bytes(4, "little") + bytes(900) + data[:-908]
        self.files.append(
            pb.Block(
                base_seq=seqs.start,
                base_time_us=int(frames.times_us[0]),
                frame_count=len(seqs),
                data=data,
                compressed=True,
                block_size=BLOCK_BYTES,
            )
        )

    def restart(self, *, clean: bool = True) -> None:
        if clean and self.journal != "none" and self.head > self._flushed:
            self._flush()
        self.run += 1
        self.rows[self.run] = {}
        self.head = self._flushed = 0
        self.clock_us += 30 * SECOND_US

    async def connect(self, boat: LplexBoat) -> pb.HandshakeResponse:
        """Handshake, Live from where it is asked, one pass over the files for each hole, the newest hole first."""
        journal_bytes = 0 if self.journal == "none" else 16 + sum(len(block.data) for block in self.files)
        welcome = await boat.handshake(self.head, journal_bytes=journal_bytes)
        self._live = boat.live()
        self._next = welcome.live_start_from
        await self.send_live()
        if welcome.holes and self.journal != "none":
            await self._backfill(boat, welcome)
        return welcome

    async def send_live(self) -> None:
        for seq in range(self._next, self.head + 1):
            time_us, can_id, payload = self.rows[self.run][seq]
            frame = pb.LiveFrame(seq=seq, timestamp_us=time_us, can_id=can_id, data=payload)
            await self._live.write(pb.LiveUpstream(frame=frame).SerializeToString())
        sent, self._next = self._next <= self.head, self.head + 1
        while sent and pb.LiveDownstream.FromString(await answer(self._live)).live_committed_through < self.head:
            pass

    async def _backfill(self, boat: LplexBoat, welcome: pb.HandshakeResponse) -> None:
        stream = boat.backfill()
        for hole in sorted(welcome.holes, key=lambda hole: hole.start, reverse=True):
            for block in self.files:
                if hole.start < block.base_seq + block.frame_count and block.base_seq < hole.end:
                    await stream.write(pb.BackfillUpstream(block=block).SerializeToString())
        await stream.done_writing()
        assert await code_of(stream) is grpc.StatusCode.OK

    async def told_to_come_again(self) -> None:
        """The session ends so that the boat hears of what is missing."""
        assert await code_of(self._live) is grpc.StatusCode.UNAVAILABLE
        assert (await self._live.details()).startswith("holes_left")

    async def hang_up(self) -> None:
        self._live.cancel()
        await asyncio.sleep(0)


@asynccontextmanager
async def at_sea(tmp_path: Path, fleet: Fleet, **limits: int) -> AsyncIterator[tuple[CloudParty, LplexBoat]]:
    cloud = CloudParty(tmp_path / "cloud", fleet, limits=ReceiverLimits(**limits))
    async with cloud.running(), dialed(cloud.port, fleet, fleet.boat(NAME)) as channel:
        yield cloud, LplexBoat(channel, NAME)


def held_by_run(cloud: CloudParty) -> dict[int, list[int]]:
    """Seqs by run, as the payloads say. A lineage with two runs fails, and so does a frame that is there twice."""
    found: dict[int, list[int]] = {}
    for lineage in cloud.service.instances[NAME].channel.receiver.fold.lineages:
        held = cloud.held(NAME, lineage)
        runs = {int(row[2][:2]) for _, row in held}
        assert len(runs) <= 1, "a lineage mixes two runs"
        for seq, row in held:
            assert int(row[2][2:]) == seq
            found.setdefault(int(row[2][:2]), []).append(seq)
    assert all(len(seqs) == len(set(seqs)) for seqs in found.values()), "each frame once"
    return {number: sorted(seqs) for number, seqs in found.items()}


def lost(cloud: CloudParty) -> list[range]:
    receiver = cloud.service.instances[NAME].channel.receiver
    return list(receiver.fold.lineages[receiver.lineage or b""].lost)


async def test_boat_that_restarts_with_its_old_files_has_every_frame_of_both_runs_there_once(
    tmp_path: Path, fleet: Fleet
) -> None:
    voyage = Voyage()
    async with at_sea(tmp_path, fleet, max_live_lag=50, ring_frames=2_000) as (cloud, boat):
        voyage.record(100)
        await voyage.connect(boat)  # from its ring
        await voyage.hang_up()
        voyage.record(400)  # nobody hears of these
        voyage.restart()
        voyage.record(130)  # its bus speaks before the Handshake
        for _ in range(6):
            await voyage.connect(boat)
            voyage.record(10)
            await voyage.send_live()
            await voyage.hang_up()
        assert held_by_run(cloud) == {1: list(range(1, 501)), 2: list(range(1, voyage.head + 1))}
        receiver = cloud.service.instances[NAME].channel.receiver
        assert (receiver.cursor, receiver.holes()) == (voyage.head, [])
        assert len(receiver.fold.lineages) == 2


async def test_boat_that_restarted_and_counted_past_what_is_known_keeps_its_session(
    tmp_path: Path, fleet: Fleet
) -> None:
    voyage = Voyage()
    async with at_sea(tmp_path, fleet) as (cloud, boat):
        voyage.record(100)
        await voyage.connect(boat)
        await voyage.hang_up()
        voyage.restart(clean=False)
        voyage.record(150)
        assert (await voyage.connect(boat)).live_start_from == 85
        assert held_by_run(cloud) == {1: list(range(1, 101)), 2: list(range(85, 151))}
        await voyage.told_to_come_again()
        assert (await voyage.connect(boat)).live_start_from == 1
        assert held_by_run(cloud) == {1: list(range(1, 101)), 2: list(range(1, 151))}


async def test_a_boat_that_is_to_come_again_for_what_is_missing_was_not_refused(tmp_path: Path, fleet: Fleet) -> None:
    """Every few minutes, as long as something is missing: `refused`, `recovered`, and an event for each."""

    voyage = Voyage()
    async with at_sea(tmp_path, fleet) as (cloud, boat):
        voyage.record(100)
        await voyage.connect(boat)
        await voyage.hang_up()
        voyage.restart(clean=False)
        voyage.record(150)
        await voyage.connect(boat)
        await voyage.told_to_come_again()
        await voyage.connect(boat)
        events = cloud.service.instances[NAME].watch.events.newest(100)
        ends = [event.detail.get("reason") for event in events if event.type == "live_stop"]
        assert ends[0] == "holes_left"
        assert not [event for event in events if event.type == "refused"]
        assert [line.split()[1] for line in cloud.lines] == ["connected"] * 3


async def test_one_odd_block_costs_its_bad_records_only_and_live_goes_on(tmp_path: Path, fleet: Fleet) -> None:
    voyage = Voyage()
    async with at_sea(tmp_path, fleet, max_live_lag=50, ring_frames=60) as (cloud, boat):
        voyage.record(20)
        await voyage.connect(boat)
        await voyage.hang_up()
        voyage.record(40)
        voyage.spoil_next = 2
        voyage.record(140)
        assert [hole.start for hole in (await voyage.connect(boat)).holes] == [21], "is it the same run?"
        await voyage.told_to_come_again()
        await voyage.connect(boat)  # the odd block comes
        voyage.record(10)
        await voyage.send_live()
        receiver = cloud.service.instances[NAME].channel.receiver
        await wait_until(lambda: receiver.cursor == 210, "the cursor passes what is lost")
        assert held_by_run(cloud)[1] == [*range(1, 79), *range(81, 211)]
        assert lost(cloud) == [range(79, 81)]


async def test_clock_that_was_set_back_uploads_nothing_twice(tmp_path: Path, fleet: Fleet) -> None:
    voyage = Voyage()
    async with at_sea(tmp_path, fleet, max_live_lag=50) as (cloud, boat):
        voyage.record(30)
        await voyage.connect(boat)
        await voyage.hang_up()
        voyage.record(20)
        voyage.clock_us -= 3_600 * SECOND_US  # within a block: the journal tells the rest of it an hour too late
        voyage.record(150)
        for _ in range(3):
            await voyage.connect(boat)
            voyage.record(5)
            await voyage.send_live()
            await voyage.hang_up()
        assert held_by_run(cloud) == {1: list(range(1, voyage.head + 1))}
        assert len(cloud.service.instances[NAME].channel.receiver.fold.lineages) == 1


async def test_newest_part_of_a_gap_comes_in_the_same_session_from_the_boat_s_ring(
    tmp_path: Path, fleet: Fleet
) -> None:
    voyage = Voyage()
    async with at_sea(tmp_path, fleet) as (cloud, boat):
        voyage.record(100)
        await voyage.connect(boat)
        await voyage.hang_up()
        voyage.record(6_950)  # as fast as it can: far above the rate limit, and asked for
        welcome = await voyage.connect(boat)
        assert (welcome.live_start_from, list(welcome.holes)) == (85, [])
        assert cloud.service.instances[NAME].channel.receiver.cursor == 7_050
        assert held_by_run(cloud) == {1: list(range(1, 7_051))}


async def test_boat_without_a_journal_loses_nothing_that_its_ring_holds(tmp_path: Path, fleet: Fleet) -> None:
    voyage = Voyage(journal="none")
    async with at_sea(tmp_path, fleet) as (cloud, boat):
        for count in (3_000, 6_926, 500):
            voyage.record(count)
            await voyage.connect(boat)
            await voyage.hang_up()
        assert held_by_run(cloud) == {1: list(range(1, voyage.head + 1))}
        assert lost(cloud) == []


async def test_blocks_with_dictionaries_end_no_session_and_what_only_they_hold_is_lost_in_the_end(
    tmp_path: Path, fleet: Fleet
) -> None:
    voyage = Voyage(journal="dictionaries")
    async with at_sea(tmp_path, fleet, max_live_lag=50, ring_frames=60) as (cloud, boat):
        voyage.record(20)
        await voyage.connect(boat)
        await voyage.hang_up()
        voyage.record(300)
        for _ in range(4):
            await voyage.connect(boat)
            voyage.record(5)
            await voyage.send_live()
            await voyage.hang_up()
        receiver = cloud.service.instances[NAME].channel.receiver
        await wait_until(lambda: receiver.cursor == voyage.head, "the cursor passes what is lost")
        (gone,) = lost(cloud)
        assert held_by_run(cloud)[1] == [*range(1, gone.start), *range(gone.stop, voyage.head + 1)]
        assert (gone.start, gone.stop >= 250) == (21, True)
