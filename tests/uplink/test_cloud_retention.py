"""Fold snapshots and retention in a running cloud: the log gets shorter, the cursor never goes back."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from tests.patience import wait_until
from tests.uplink.clouds import CloudHouse, running_cloud, saved
from tests.uplink.parties import LplexBoat, dialed, holes, send_frames
from tidelog.blocks.control import FoldSnapshot, decode_control
from tidelog.blocks.header import BlockKind
from tidelog.cluster.node.cloud import CloudOptions
from tidelog.cluster.uplink.maintenance import MaintenanceOptions
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import InvalidConfig, OffsetOutOfRange
from tidelog.storage.log.options import LogOptions, Retention
from tidelog.storage.store.parts import StoreOptions
from tidelog.units import KIB

NAME = "boat-001"
FAST = ReceiverLimits(rate_frames_per_s=1e6, burst_frames=100_000)
SMALL = StoreOptions(log=LogOptions(reserve_bytes=0, segment_bytes_max=4 * KIB), checkpoint_interval_ms=50)


def keeping(**options: object) -> MaintenanceOptions:
    settings = {
        "retention": Retention(max_bytes=32 * KIB),
        "state_interval_ms": 50,
        "sweep_interval_ms": 20,
        "snapshot_interval_ms": 1,
        "snapshot_bytes_min": 1 * KIB,
        **options,
    }
    return MaintenanceOptions(**settings)  # type: ignore[arg-type]


def snapshots(house: CloudHouse) -> list[int]:
    """Offsets of the fold snapshots that the log still holds."""
    while True:
        try:
            return [
                block.offsets.start
                for block in house.log(NAME).blocks()
                if block.maker.kind == BlockKind.CONTROL
                and any(isinstance(record, FoldSnapshot) for record in decode_control(block.maker, block.raw_body()))
            ]
        except OffsetOutOfRange:
            continue  # the maintenance trimmed what was being read, as it may: read what there is now


async def sail(house: CloudHouse, seqs: range, head: int = 1) -> None:
    """In bursts, so that there are many blocks."""
    async with dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(head)
        live = boat.live()
        for start in range(seqs.start, seqs.stop, 50):
            await send_frames(live, range(start, min(start + 50, seqs.stop)))


async def test_log_start_passes_what_a_snapshot_covers_and_the_cursor_stays(tmp_path: Path) -> None:
    async with running_cloud(tmp_path, store=SMALL, limits=FAST, maintenance=keeping()) as house:
        await sail(house, range(1, 3_001))
        await wait_until(lambda: house.log(NAME).log_start > 1_000, "old frames are gone")
        log = house.log(NAME)
        assert snapshots(house)[-1] >= log.log_start, "F3"
        await wait_until(lambda: log.statistics().bytes < 64 * KIB, "retention has caught up with a burst")
        assert house.status(NAME).cursor == 3_000
        await wait_until(lambda: saved(tmp_path, NAME)["snapshot"] is not None, "the file names the snapshot")
    for _ in range(2):
        async with running_cloud(tmp_path, store=SMALL, limits=FAST, maintenance=keeping()) as house:
            await house.wait_ready()
            assert house.status(NAME).cursor == 3_000, "the log start has passed most of it"
    async with running_cloud(tmp_path, store=SMALL, limits=FAST) as house, dialed(house.port) as channel:
        welcome = await LplexBoat(channel, NAME).handshake(3_100)
        assert (welcome.cursor, holes(welcome)) == (3_000, [(3_001, 3_100)])


async def test_cursor_survives_a_crash_after_retention(tmp_path: Path) -> None:
    image = tmp_path / "image"
    async with running_cloud(tmp_path / "cloud", store=SMALL, limits=FAST, maintenance=keeping()) as house:
        await sail(house, range(1, 2_001))
        await wait_until(lambda: house.log(NAME).log_start > 500, "old frames are gone")
        storage = house.node.storage
        assert storage is not None
        # Between two commits, as a crash would leave it: nothing is flushed or closed.
        store, copied = tmp_path / "cloud" / ".tidelog", threading.Event()

        def copy(_: int) -> None:
            shutil.copytree(store, image / ".tidelog")
            copied.set()

        storage.writer.run_exclusive(copy)
        assert await asyncio.to_thread(copied.wait, 20)
    async with running_cloud(image, store=SMALL, limits=FAST) as house:
        await house.wait_ready()
        assert house.status(NAME).cursor == 2_000


async def test_without_a_snapshot_nothing_is_trimmed(tmp_path: Path) -> None:
    options = keeping(snapshot_interval_ms=3_600_000)
    async with running_cloud(tmp_path, store=SMALL, limits=FAST, maintenance=options) as house:
        await sail(house, range(1, 501))
        await wait_until(lambda: len(snapshots(house)) == 1, "the first snapshot")
        first = snapshots(house)[0]
        await sail(house, range(501, 2_501), head=500)
        await wait_until(lambda: house.log(NAME).statistics().bytes > 32 * KIB, "the segments are written")
        maintenance = house.cloud.maintenance
        assert maintenance is not None
        await maintenance.sweep(house.instance(NAME))
        assert snapshots(house) == [first], "the next one is due in an hour"
        log = house.log(NAME)
        assert log.log_start <= first, "F3"
        assert log.statistics().bytes > 32 * KIB, "although there is too much"


async def test_old_segments_of_a_boat_that_went_away_are_dropped_by_age(tmp_path: Path) -> None:
    options = keeping(retention=Retention(max_age_ms=1_500), snapshot_bytes_min=1 << 30)
    async with running_cloud(tmp_path, store=SMALL, limits=FAST, maintenance=options) as house:
        await sail(house, range(1, 501))
        await wait_until(lambda: house.log(NAME).log_start > 0, "the first segments have expired")
        await wait_until(lambda: house.log(NAME).statistics().records < 10, "only the snapshot is left")
        end = house.log(NAME).log_end
        for _ in range(3):
            maintenance = house.cloud.maintenance
            assert maintenance is not None
            await maintenance.sweep(house.instance(NAME))
        assert house.log(NAME).log_end == end, "a boat that is away gets no snapshot after snapshot"
        assert house.status(NAME).cursor == 500
    async with running_cloud(tmp_path, store=SMALL, limits=FAST, maintenance=options) as house:
        await house.wait_ready()
        assert house.status(NAME).cursor == 500


async def test_a_snapshot_in_the_middle_of_traffic_counts_every_frame_once(tmp_path: Path) -> None:
    options = keeping(retention=Retention(), snapshot_bytes_min=1)
    async with running_cloud(tmp_path, store=SMALL, limits=FAST, maintenance=options) as house:
        await sail(house, range(1, 4_001))
        assert len(snapshots(house)) > 3
        assert house.status(NAME).cursor == 4_000
        before = house.status(NAME)
        assert house.log(NAME).log_start == 0, "without limits everything is kept"
    async with running_cloud(tmp_path, store=SMALL, limits=FAST) as house:
        await house.wait_ready()
        after = house.status(NAME)
        assert (after.cursor, after.holes, after.session) == (before.cursor, (), before.session)
        found = [seq for block in house.log(NAME).blocks() for part in block.counted_seqs() for seq in part]
        assert found == list(range(1, 4_001))


def test_retention_in_the_stores_own_options_is_refused(tmp_path: Path) -> None:
    store = StoreOptions(log=LogOptions(retention=Retention(max_bytes=1)))
    with pytest.raises(InvalidConfig, match="belongs to the maintenance of boats"):
        CloudOptions(data_dir=tmp_path, insecure_dev=True, store=store)


async def test_retention_that_is_set_anew_holds_for_boats_that_are_there_already(tmp_path: Path) -> None:
    async with running_cloud(tmp_path, store=SMALL, limits=FAST) as house:
        await sail(house, range(1, 3_001))
        assert house.log(NAME).log_start == 0
    async with running_cloud(tmp_path, store=SMALL, limits=FAST, maintenance=keeping()) as house:
        kept = house.node.channels.channel_named(NAME).config.retention
        assert kept.max_bytes == 32 * KIB
        await wait_until(lambda: house.log(NAME).log_start > 1_000, "old frames are gone")
        assert house.status(NAME).cursor == 3_000
