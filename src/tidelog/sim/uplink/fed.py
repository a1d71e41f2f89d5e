"""A Tidelog boat with an lplex cloud, under power cuts, trims, silence and bad links.

It shares the clock with the rest of the uplink world and nothing else: its own generator decides what happens to it.
Its link delays no message for long. An lplex cloud learns Live's position only by timing (a status, and half a second
later the block that closes the last hole), so it would count frames that a slow link has not delivered.

What must hold, besides what its cloud checks: once the world has healed and the bus went on for a while, the cursor is
at the head, and every frame that the boat did not lose is there.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tidelog.core.uplink.messages import BackfillDone, LiveStatus
from tidelog.edge.uplink.uplink import ForeignBlock, LiveFrames
from tidelog.sim.network import Scheduler, SimLink, Way, Weather
from tidelog.sim.power import PluggedDisk
from tidelog.sim.uplink.boat import SimBoat
from tidelog.sim.uplink.choices import random_journal, random_protocol
from tidelog.sim.uplink.lplex_cloud import SimLplexCloud
from tidelog.sim.uplink.model import UplinkBroken, UplinkModel

FED_CHANCE: Final = 0.1
_MISHAPS_MS: Final = 100_000
"""What happens to it ends then at the latest: it is not what most of the time is for."""
_TIMELINE: Final = 1
_TALKS_ON_MS: Final = 40_000
"""After the last fault the bus goes on for so long: Live beside Backfill is what an lplex cloud makes hard."""


def fed_boat(seed: int, scheduler: Scheduler, counters: Counter[str]) -> FedBoat | None:
    """Some seeds have one. It changes nothing for the others."""
    rng = random.Random(f"lplex cloud {seed}")
    return FedBoat.of(rng, scheduler, counters) if rng.random() < FED_CHANCE else None


class FedBoat(SimBoat):
    live_messages = (LiveFrames, LiveStatus)
    backfill_messages = (ForeignBlock, BackfillDone)
    cloud: SimLplexCloud
    healed = False

    @classmethod
    def of(cls, rng: random.Random, scheduler: Scheduler, counters: Counter[str]) -> FedBoat:
        model = UplinkModel(counters)
        sender_config, _ = random_protocol(rng)
        weather = Weather(delay_ms=rng.choice((1, 20, 200)), jitter_ms=rng.choice((0, 20)))
        boat = cls(
            name="fed",
            scheduler=scheduler,
            rng=rng,
            link=SimLink(scheduler, rng, weather),
            cloud=SimLplexCloud(scheduler=scheduler, model=model, counters=counters, timeline=_TIMELINE),
            model=model,
            counters=counters,
            journal_options=replace(random_journal(rng), disk_bytes_max=rng.choice((None, 16_384))),
            sender_config=sender_config,
            ring_frames=rng.choice((450, 800, 2_000)),
            disk=PluggedDisk(random.Random(rng.getrandbits(64))),
        )
        boat.timeline = _TIMELINE
        if rng.random() < 0.3:
            boat._lose_link()  # it has a past when it first meets its cloud
        boat.open()
        scheduler.after(rng.randrange(10_000), boat._mishap)
        scheduler.after(_MISHAPS_MS, boat.heal)
        return boat

    # --- what happens ----------------------------------------------------------------------------

    def _mishap(self) -> bool:
        if self.healed:
            return False
        names, weights = zip(*((name, weight) for name, (weight, _) in _MISHAPS.items()), strict=True)
        _MISHAPS[self.rng.choices(names, weights)[0]][1](self)
        self.scheduler.after(1_000 + self.rng.randrange(14_000), self._mishap)
        return True

    def _cut(self) -> None:
        """The boat notices at once, later, or by the cloud's silence."""
        for connection in self.link.cut():
            if self.rng.random() < 0.7:
                delay_ms = self.rng.randrange(2_000)
                self.scheduler.after(delay_ms, lambda connection=connection: self.broken(connection))  # type: ignore[misc]

    def _lose_link(self) -> None:
        self.link.weather.up = False
        self._cut()

        def back() -> None:
            self.link.weather.up = True

        self.bus_frames, self.bus_pause_ms = self.rng.choice(((3, 400), (15, 400)))
        self.scheduler.after(self.rng.randrange(1_000, 40_000), back)

    def _half_open(self) -> None:
        self.link.half_open(self.rng.choice((Way.UP, Way.DOWN)))

    def _crash(self) -> None:
        if not self.running:
            return
        self.counters["fed_crash"] += 1
        if self.rng.random() < 0.5:
            self.disk.cut_in_sync = self.rng.random() < 0.5
            self.disk.cut_after = self.rng.randrange(1, 4 if self.disk.cut_in_sync else 40)
            return
        self.power_cut()
        self.scheduler.after(self.rng.randrange(30_000), self.open)

    def _restart(self) -> None:
        if self.running:
            self.guarded(self.stop)
            self.scheduler.after(self.rng.randrange(5_000), self.open)

    def _go_silent(self) -> None:
        self.bus_frames = 0

        def back() -> None:
            if not self.healed:
                self.bus_frames = self.bus_frames or 3

        self.scheduler.after(self.rng.randrange(5_000, 60_000), back)

    def _burst(self) -> None:
        self.burst_frames = self.rng.choice((100, 300, 800))

    def _step_clock(self) -> None:
        self.clock_jump_us += self.rng.choice((-3600, -5, 5, 3600)) * 1_000_000

    # --- the end ---------------------------------------------------------------------------------

    def heal(self) -> None:
        if self.healed:
            return
        self.healed = True
        self.disk.cut_after = None
        self.link.weather.up = True
        for connection in self.link.cut():
            self.broken(connection)
        self.open()
        self.bus_frames, self.bus_pause_ms = 3, 400

        def fall_silent() -> None:
            self.bus_frames = self.burst_frames = 0

        self.scheduler.after(_TALKS_ON_MS, fall_silent)

    def is_restless(self) -> bool:
        if not self.healed or not self.running or self.bus_frames or not self.is_connected():
            return True
        return self.cloud.cursor != self.journal.head

    def unrest(self) -> str:
        cloud = self.cloud
        return (
            f"a boat at an lplex cloud has head {self.journal.head}, the cursor is {cloud.cursor}, holes "
            f"{list(cloud.holes)[:3]}, {self.uplink.statistics()}"
        )

    def check_end(self) -> None:
        journal, rows = self.journal, self.cloud.rows
        journal.flush(self.clock_us())
        self.note_forced_out()
        self.check_journal()
        content = self.model.issued[journal.lineage].contents[_TIMELINE]
        lost = [seq for seq in self.own[journal.lineage] if rows.get(seq) != content[seq]]
        if lost or len(rows) != journal.head:
            raise UplinkBroken(f"an lplex cloud lacks {len(lost)} frames that the boat has, from {lost[:1]} on")


_MISHAPS: Final[dict[str, tuple[float, Callable[[FedBoat], None]]]] = {
    "the link is gone": (4, FedBoat._lose_link),
    "the connection is gone": (4, FedBoat._cut),
    "half open": (2, FedBoat._half_open),
    "crash": (4, FedBoat._crash),
    "restart": (2, FedBoat._restart),
    "silence": (3, FedBoat._go_silent),
    "burst": (3, FedBoat._burst),
    "clock": (1, FedBoat._step_clock),
}
