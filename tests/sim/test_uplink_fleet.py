"""A fleet of ten boats loses its cloud for a minute, in virtual time: how often they dial, and when all are back."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.journal.journal import JournalOptions
from tidelog.sim.network import Scheduler, SimLink, Weather
from tidelog.sim.power import PluggedDisk
from tidelog.sim.uplink.boat import SimBoat
from tidelog.sim.uplink.cloud import SimCloud
from tidelog.sim.uplink.model import UplinkModel

BOATS = 10
OUTAGE_MS = 60_000
CONFIG = SenderConfig()


class Fleet:
    def __init__(self, seed: int) -> None:
        rng, self.scheduler, counters = random.Random(seed), Scheduler(), Counter[str]()
        models = {f"boat-{number:03}": UplinkModel(counters) for number in range(1, BOATS + 1)}
        self.cloud = SimCloud(
            scheduler=self.scheduler, rng=rng, limits=ReceiverLimits(), models=models, counters=counters
        )
        self.boats = [
            SimBoat(
                name=name,
                scheduler=self.scheduler,
                rng=rng,
                link=SimLink(self.scheduler, rng, Weather(delay_ms=20, jitter_ms=20)),
                cloud=self.cloud,
                model=model,
                counters=counters,
                journal_options=JournalOptions(reserve_bytes=0),
                sender_config=CONFIG,
                ring_frames=65_536,
                disk=PluggedDisk(random.Random(rng.getrandbits(64))),
            )
            for name, model in models.items()
        ]
        for boat in self.boats:
            boat.open()

    def run(self, duration_ms: int) -> None:
        self.scheduler.run_until(self.scheduler.now_ms + duration_ms)

    def dials(self) -> list[int]:
        return [boat.uplink.statistics().dials for boat in self.boats]

    def lose_cloud(self) -> None:
        self.cloud.stop()
        for boat in self.boats:
            boat.link.weather.up = False
            for connection in boat.link.cut():
                boat.broken(connection)

    def bring_cloud_back(self) -> None:
        self.cloud.reopen()
        for boat in self.boats:
            boat.link.weather.up = True


@pytest.mark.parametrize("seed", range(3))
def test_a_fleet_that_loses_its_cloud_for_a_minute_backs_off_loses_nothing_and_is_back_in_time(seed: int) -> None:
    fleet = Fleet(seed)
    fleet.run(20_000)
    assert all(boat.is_connected() for boat in fleet.boats)
    assert fleet.dials() == [1] * BOATS
    fleet.lose_cloud()
    fleet.run(OUTAGE_MS)
    during = [count - 1 for count in fleet.dials()]
    assert all(5 <= count <= 7 for count in during), during
    fleet.bring_cloud_back()
    back_ms = fleet.scheduler.now_ms
    is_back = fleet.scheduler.run_until(
        back_ms + CONFIG.backoff_max_ms + 1_000, lambda: all(boat.is_connected() for boat in fleet.boats)
    )
    assert is_back, "within the largest back-off"
    recovered_ms = fleet.scheduler.now_ms - back_ms
    assert all(after <= count + 2 for after, count in zip(fleet.dials(), during, strict=True)), "one more each"
    for boat in fleet.boats:
        boat.bus_frames = 0
    fleet.run(30_000)
    for boat in fleet.boats:
        journal = boat.journal
        assert boat.model.held[journal.lineage].cursor == journal.head == journal.acked, boat.name
        journal.flush(boat.clock_us())
        boat.model.check_end(journal.lineage, journal.head, boat.journaled(), boat.own[journal.lineage])
    print(f"seed={seed} dials={sum(during)} in the outage, at most {max(during)} each; back after {recovered_ms} ms")
