"""Ten boats over mTLS and a real cloud that is killed for a minute: dials, losses, and when all are back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.patience import wait_until
from tests.uplink.parties import BoatParty, Fleet, run, target
from tests.uplink.processes import CloudProcess, frames_of, seed_of_the_day
from tidelog.core.uplink.sender import SenderConfig
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.recovery import open_store

BOATS = 10
OUTAGE_S = 60.0
CONFIG = SenderConfig()
SLACK_S = 10.0
"""For the dial itself, on a machine with much to do."""


def dials(boats: dict[str, BoatParty]) -> list[int]:
    return [boat.uplink.statistics().dials for boat in boats.values()]


async def talk(boats: dict[str, BoatParty]) -> None:
    """Their buses, 50 frames/s each."""
    while True:
        for boat in boats.values():
            boat.record(5)
            if wall_clock_us() >= boat.journal.wake_at_us():
                boat.journal.wake(wall_clock_us())
        await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fleet_that_loses_its_cloud_for_a_minute_backs_off_loses_nothing_and_is_back_in_time(tmp_path: Path) -> None:
    seed = seed_of_the_day(1)
    fleet = Fleet(tmp_path / "fleet")
    folder = tmp_path / "cloud"
    folder.mkdir()
    cloud = CloudProcess(
        folder, node=(fleet.node.certificate, fleet.node.key), boats_authority=fleet.boats.certificate_pem
    )
    names = [f"boat-{number:03}" for number in range(1, BOATS + 1)]
    boats = {
        name: BoatParty(tmp_path / name, config=CONFIG, jitter_seed=seed + number) for number, name in enumerate(names)
    }

    async def scenario() -> None:
        cloud.start()
        try:
            for name, boat in boats.items():
                boat.dial(target(fleet, cloud.port, name))
            talking = asyncio.ensure_future(talk(boats))
            await wait_until(lambda: all(boat.is_connected for boat in boats.values()), "all are connected", 60)
            # Steady sessions: the back-off begins at its first step, whatever the start was like.
            await asyncio.sleep(CONFIG.backoff_steady_ms / 1000 + 6)
            before = dials(boats)
            cloud.kill()
            await asyncio.sleep(OUTAGE_S)
            during = [after - first for after, first in zip(dials(boats), before, strict=True)]
            assert all(4 <= count <= 7 for count in during), during
            await asyncio.to_thread(cloud.start)
            back = time.monotonic()
            longest_s = CONFIG.backoff_max_ms / 1000 + SLACK_S
            await wait_until(lambda: all(boat.is_connected for boat in boats.values()), "all are back", longest_s)
            recovered_s = time.monotonic() - back
            after = [last - first for last, first in zip(dials(boats), before, strict=True)]
            talking.cancel()
            for boat in boats.values():
                await boat.wait_acked(60)
            print(f"dials in the outage {sum(during)} ({min(during)}-{max(during)} each), {sum(after)} with the last;")
            print(f"all back after {recovered_s:.1f} s; frames {sum(boat.journal.head for boat in boats.values())}")
            for boat in boats.values():
                await boat.hang_up()
            await asyncio.to_thread(cloud.stop)
        finally:
            if cloud.process.poll() is None:
                cloud.kill()

    run(scenario(), 400)
    now_us = wall_clock_us()
    store = open_store(OsDisk(folder / "data"), now_us=now_us)
    for name, boat in boats.items():
        held = frames_of(store.log(name, now_us=now_us).blocks())
        boat.journal.flush(now_us)
        recorded = frames_of(boat.journal.blocks())
        assert len(recorded) == boat.journal.head > 1_000
        assert held == recorded, f"{name}: each frame once, as it was recorded"
        boat.journal.close(now_us)
    store.close(now_us)
