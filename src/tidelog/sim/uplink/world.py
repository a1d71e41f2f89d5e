"""Boats, a cloud and the links between them: everything that can happen to an uplink, by seed.

The code under test is the production code: journal, ring and `BoatUplink` on each boat, a log and an `UplinkChannel`
per boat in the cloud. The world drives them on virtual time and brings flapping and half-open links, power cuts with
torn writes on either side, wiped and restored journals, cloned cards, full disks, clock jumps, bursts and silence.
Checks run with every ack and commit; at the end the faults stop, and the world must reach a stable state: no holes, the
cursor at the head, every journaled frame in the cloud once (design.md, section 10). A run is decided by its seed alone:
`tidelog sim uplink --seed N` shows a failure again.

Counters say how often each thing really happened, so that a run over many seeds in which one never did fails
instead of promising too much.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Final

from tidelog.sim.network import Connection, Scheduler, SimLink, Way, Weather
from tidelog.sim.power import PluggedDisk
from tidelog.sim.seeds import WorldResult, run_world, seeds_runner
from tidelog.sim.uplink.boat import FOLDER, SimBoat
from tidelog.sim.uplink.choices import random_journal, random_protocol
from tidelog.sim.uplink.cloud import SimCloud
from tidelog.sim.uplink.fed import FedBoat, fed_boat
from tidelog.sim.uplink.hostile import HostileBoat, HostileModel
from tidelog.sim.uplink.lplex import LplexBoat, LplexModel
from tidelog.sim.uplink.model import UplinkBroken, UplinkModel, UplinkViolation

DURATION_MS: Final = 232_000
SHORT_MS: Final = 100_000
"""A run long enough to meet every fault, for tests that run many seeds in little time."""
REST_MS: Final = 600_000
"""The time within which the world must be stable after the last fault."""
HOSTILE: Final = "hostile"
LPLEX: Final = "lplex"
SOMETIMES: Final = (
    "boat_crash",
    "boat_restart",
    "bomb",
    "burst",
    "carried",
    "clock_jump",
    "clone",
    "cloud_crash",
    "cloud_lag",
    "cloud_restart",
    "dead_link",
    "fed_crash",
    "fed_gone",
    "fed_hole",
    "fed_session",
    "fed_void",
    "fence",
    "flapping",
    "fork",
    "full",
    "half_open",
    "hole",
    "hole_told_live",
    "hostile",
    "lag_exit",
    "late",
    "lost",
    "lplex_again",
    "lplex_dictionaries",
    "lplex_fallen_behind",
    "lplex_lag_exit",
    "lplex_lost",
    "lplex_none",
    "lplex_odd",
    "lplex_old_files",
    "lplex_restart",
    "lplex_session",
    "lplex_short_lag",
    "lplex_step",
    "lplex_switch",
    "name_in_use",
    "one_way",
    "reconnect",
    "refused_block_corrupt",
    "refused_foreign_lineage",
    "refused_invalid_record",
    "refused_rate_exceeded",
    "restore",
    "ring_exit",
    "silence",
    "snapshot_trim",
    "stall",
    "torn",
    "void",
    "window",
    "wiped",
)
"""What must have happened at least once in a run over many seeds."""


def run_uplink_world(seed: int, *, duration_ms: int = DURATION_MS) -> WorldResult:
    """Run one seed; raises `UplinkViolation` when a promise is broken."""
    world = _World(seed)
    return run_world(
        seed, world, lambda: world.run(duration_ms), violation=UplinkViolation, clock_ms=lambda: world.scheduler.now_ms
    )


run_uplink_seeds: Final = seeds_runner(run_uplink_world, SOMETIMES)
run_short_uplink_seeds: Final = seeds_runner(run_uplink_world, SOMETIMES, duration_ms=SHORT_MS)


class _World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.scheduler = Scheduler()
        self.counters: Counter[str] = Counter()
        self.last_event = "none"
        self.healed = False
        self.sender_config, limits = random_protocol(rng)
        names = [f"boat-{number}" for number in range(1, rng.choice((1, 1, 1, 2, 3)) + 1)]
        self.models: dict[str, UplinkModel] = {name: UplinkModel(self.counters) for name in names}
        has_hostile, has_lplex = rng.random() < 0.25, rng.random() < 0.35
        lplex_model = LplexModel(self.counters)
        if has_hostile:
            self.models[HOSTILE] = HostileModel(self.counters)
        if has_lplex:
            self.models[LPLEX] = lplex_model
        self.cloud = SimCloud(
            scheduler=self.scheduler, rng=rng, limits=limits, models=self.models, counters=self.counters
        )
        self.cloud.on_down = self._cloud_down
        self.timelines = 0
        self.boats = [self._boat(name, PluggedDisk(random.Random(rng.getrandbits(64)))) for name in names]
        self.clones: list[SimBoat] = []
        self.backups: dict[str, tuple[PluggedDisk, dict[bytes, set[int]]]] = {}
        for boat in self.boats:
            boat.open()
        self.hostile = self._hostile() if has_hostile else None
        self.lplex = self._lplex(lplex_model) if has_lplex else None
        self.fed: FedBoat | None = fed_boat(seed, self.scheduler, self.counters)
        """A Tidelog boat with an lplex cloud; nothing that happens to the others touches it."""

    @property
    def events(self) -> int:
        return self.scheduler.events

    @property
    def checks(self) -> int:
        return sum(model.checks for model in self.models.values()) + (self.fed.model.checks if self.fed else 0)

    def _link(self) -> SimLink:
        rng = self.rng
        return SimLink(self.scheduler, rng, Weather(delay_ms=rng.choice((1, 20, 300)), jitter_ms=rng.choice((0, 20))))

    def _hostile(self) -> HostileBoat:
        return HostileBoat(
            name=HOSTILE,
            scheduler=self.scheduler,
            rng=self.rng,
            link=self._link(),
            cloud=self.cloud,
            counters=self.counters,
            lineages=lambda: [boat.journal.lineage for boat in self.boats],
        )

    def _lplex(self, model: LplexModel) -> LplexBoat:
        return LplexBoat(
            name=LPLEX,
            scheduler=self.scheduler,
            rng=self.rng,
            link=self._link(),
            cloud=self.cloud,
            model=model,
            counters=self.counters,
            settings=random.Random(f"lplex boat {self.seed}"),
        )

    def _guests(self) -> list[HostileBoat | LplexBoat]:
        return [guest for guest in (self.hostile, self.lplex) if guest is not None]

    def _boat(self, name: str, disk: PluggedDisk) -> SimBoat:
        rng = self.rng
        boat = SimBoat(
            name=name,
            scheduler=self.scheduler,
            rng=rng,
            link=self._link(),
            cloud=self.cloud,
            model=self.models[name],
            counters=self.counters,
            journal_options=random_journal(rng),
            sender_config=self.sender_config,
            ring_frames=rng.choice((450, 800, 2_000)),
            disk=disk,
        )
        self._new_timeline(boat)
        return boat

    def _new_timeline(self, boat: SimBoat) -> None:
        self.timelines += 1
        boat.timeline = self.timelines

    # --- a run -----------------------------------------------------------------------------------

    def run(self, duration_ms: int) -> None:
        names, weights = zip(*((name, weight) for name, (weight, _) in _FAULTS.items()), strict=True)
        pause_ms = SHORT_MS // self.rng.randrange(4, 24)
        while self.scheduler.now_ms < duration_ms:
            self.scheduler.run_until(self.scheduler.now_ms + 1 + int(self.rng.random() * 2 * pause_ms))
            self.last_event = f"{self.rng.choices(names, weights)[0]} at {self.scheduler.now_ms} ms"
            self.counters["faults"] += 1
            boat = self.rng.choice(self.boats)
            _FAULTS[self.last_event.split(" at ")[0]][1](self, boat)
        self.heal()
        began_ms = self.scheduler.now_ms
        if not self.scheduler.run_until(began_ms + REST_MS, self.at_rest):
            raise UplinkBroken(f"14: {REST_MS // 1000} s after the last fault there is no rest: {self._unrest()}")
        self.check_end()

    def heal(self) -> None:
        """The faults stop, the buses fall silent, clones go away."""
        self.healed = True
        for clone in self.clones:
            if clone.running:
                clone.stop()
            clone.open = lambda: None  # type: ignore[method-assign]
        self.cloud.disk.faults.capacity_bytes = self.cloud.disk.cut_after = None
        self.cloud.commit_stall_ms = 0
        self.cloud.reopen()
        for boat in self.boats:
            boat.disk.faults.capacity_bytes = boat.disk.cut_after = None
            weather = boat.link.weather
            weather.up, weather.spike_chance, weather.swallows = True, 0.0, None
            boat.bus_frames = boat.burst_frames = 0
            boat.open()
        for guest in self._guests():
            guest.heal()
        if self.fed is not None:
            self.fed.heal()

    def at_rest(self) -> bool:
        if self.fed is not None and self.fed.is_restless():
            return False
        if self.lplex is not None and self.lplex.is_restless():
            return False
        return not any(self._restless(boat) for boat in self.boats)

    def _restless(self, boat: SimBoat) -> bool:
        if not boat.running:
            return True
        journal = boat.journal
        head = journal.head
        channel = self.cloud.channels.get(boat.name)
        if channel is None or not boat.is_connected():
            return True
        receiver = channel.channel.receiver
        if receiver.session != boat.uplink.sender.session or receiver.lineage != journal.lineage or receiver.holes():
            return True  # the last message of a clone may still be in flight
        if boat.uplink._re_recording.pending:
            return True
        return boat.model.held[journal.lineage].cursor != head or journal.acked != head

    def _unrest(self) -> str:
        boat = next((boat for boat in self.boats if self._restless(boat)), None)
        if boat is None and self.fed is not None and self.fed.is_restless():
            return self.fed.unrest()
        if boat is None:
            return self.lplex.unrest() if self.lplex is not None else "nobody"
        if not boat.running or not self.cloud.running:
            return "something is off"
        receiver = self.cloud.channels[boat.name].channel.receiver
        return (
            f"{boat.name} head {boat.journal.head} acked {boat.journal.acked} durable {boat.journal.durable_head}, "
            f"cloud cursor {receiver.cursor} holes {receiver.holes()}, boat {boat.uplink.statistics()}"
        )

    def check_end(self) -> None:
        if self.fed is not None:
            self.fed.check_end()
        if self.lplex is not None:
            self.lplex.check_end()
        for boat in self.boats:
            journal = boat.journal
            journal.flush(boat.clock_us())
            boat.note_forced_out()
            boat.check_journal()
            known = self.cloud.channels[boat.name]
            boat.model.check_end(journal.lineage, journal.head, boat.journaled(), boat.own[journal.lineage])
            boat.check_carried()
            if known.channel.receiver.holes():
                raise UplinkBroken(f"holes are left: {known.channel.receiver.holes()}")
            if known.fold_again().to_state() != known.channel.receiver.fold.to_state():
                raise UplinkBroken("F1: the fold over the log is not the running fold")

    # --- links -----------------------------------------------------------------------------------

    def _cut(self, boat: SimBoat | HostileBoat | LplexBoat) -> None:
        """Both sides notice the cut, at different times or never. Earlier messages may arrive later."""
        for connection in boat.link.cut():
            if isinstance(boat, SimBoat) and self.rng.random() < 0.3:
                self.scheduler.after(self.rng.randrange(30_000), lambda c=connection: self._late(boat, c))  # type: ignore[misc]
            if self.rng.random() < 0.7:
                delay_ms = self.rng.randrange(2_000)
                self.scheduler.after(delay_ms, lambda connection=connection: boat.broken(connection))  # type: ignore[misc]
            channel = self.cloud.channels.get(boat.name)
            if channel is not None and self.rng.random() < 0.5:
                channel.ended(channel.channel.receiver.session)

    def _late(self, boat: SimBoat, connection: Connection) -> bool:
        """A message of a connection that is long gone arrives, perhaps for the second time: it must be fenced.

        Only after the boat's next Handshake. Before that it would be a second message in a stream that knows none.
        """
        known = self.cloud.channels.get(boat.name)
        if known is None or known.connection in (None, connection) or connection.newest is None:
            return False
        self.counters["late"] += 1
        self.cloud.receive(boat.name, connection, connection.newest)
        return True

    def _cloud_down(self) -> None:
        for boat in (*self.boats, *self.clones, *self._guests()):
            self._cut(boat)

    def flap(self, boat: SimBoat) -> None:
        """The link is gone for a while."""
        boat.link.weather.up = False
        self._cut(boat)

        def back() -> None:
            boat.link.weather.up = True

        self.scheduler.after(self.rng.randrange(1_000, 40_000), back)

    def blip(self, boat: SimBoat) -> None:
        self._cut(boat)

    def one_way(self, boat: SimBoat) -> None:
        """One direction is dead for a while, for new connections too: the boat dials and dials."""
        weather = boat.link.weather
        weather.swallows = self.rng.choice((Way.UP, Way.DOWN))
        boat.link.half_open(weather.swallows)
        self.counters["one_way"] += 1

        def back() -> None:
            weather.swallows = None

        self.scheduler.after(self.rng.randrange(5_000, 60_000), back)

    def guests_link(self, _: SimBoat) -> None:
        """The link of a foreign boat is gone for a while, or only its connection."""
        for guest in self._guests():
            self._cut(guest)
            if self.rng.random() < 0.5:
                guest.link.weather.up = False

                def back(link: SimLink = guest.link) -> None:
                    link.weather.up = True

                self.scheduler.after(self.rng.randrange(1_000, 30_000), back)

    def half_open(self, boat: SimBoat) -> None:
        self.counters["half_open"] += boat.link.half_open(self.rng.choice((Way.UP, Way.DOWN)))

    def slow_link(self, boat: SimBoat) -> None:
        """Messages are held up, and arrive in bunches."""
        weather = boat.link.weather
        weather.spike_chance, weather.spike_ms = self.rng.choice((0.02, 0.2)), self.rng.choice((1_000, 10_000, 40_000))

        def back() -> None:
            weather.spike_chance = 0.0

        self.scheduler.after(self.rng.randrange(5_000, 40_000), back)

    # --- boats -----------------------------------------------------------------------------------

    def boat_crash(self, boat: SimBoat) -> None:
        if not boat.running:
            return
        if self.rng.random() < 0.6:
            # In the middle of a later call.
            boat.disk.cut_in_sync = self.rng.random() < 0.5
            boat.disk.cut_after = self.rng.randrange(1, 4 if boat.disk.cut_in_sync else 40)
            return
        boat.power_cut()
        self.scheduler.after(self.rng.randrange(30_000), boat.open)

    def boat_restart(self, boat: SimBoat) -> None:
        if boat.running:
            boat.guarded(boat.stop)
            self.scheduler.after(self.rng.randrange(5_000), boat.open)

    def wipe(self, boat: SimBoat) -> None:
        """The journal's folder is gone: a new lineage."""
        if not boat.running:
            return
        boat.power_cut()
        boat.disk.remove_folder(FOLDER)
        boat.disk.sync_folder("")
        for lineage, own in boat.own.items():
            boat.model.issued[lineage].gone |= own
        boat.own.clear()
        self.counters["wiped"] += 1
        self.scheduler.after(self.rng.randrange(5_000), boat.open)

    def back_up(self, boat: SimBoat) -> None:
        """A copy of the disk, of a running or of a cleanly closed journal."""
        if not boat.running:
            return
        clean = self.rng.random() < 0.5
        if clean:
            boat.guarded(boat.stop)
        own = {lineage: set(seqs) for lineage, seqs in boat.own.items()}
        if not clean:
            journal = boat.journal
            own[journal.lineage] = {seq for seq in own.get(journal.lineage, ()) if seq <= journal.durable_head}
        self.backups[boat.name] = _copy(boat.disk, self.rng), own
        if clean:
            self.scheduler.after(self.rng.randrange(5_000), boat.open)

    def restore(self, boat: SimBoat) -> None:
        """The machine dies and comes back with its backup (B7)."""
        backup = self.backups.pop(boat.name, None)
        if not boat.running or backup is None:
            self.back_up(boat)
            return
        boat.power_cut()
        boat.model.backup_put_back(boat.journal.lineage, boat.journal.declared)
        boat.disk, own = backup
        for lineage, seqs in boat.own.items():
            boat.model.issued[lineage].gone |= seqs - own.get(lineage, set())
        boat.own.clear()
        for lineage, seqs in own.items():
            boat.own[lineage] |= seqs
        self._new_timeline(boat)
        self.counters["restore"] += 1
        self.scheduler.after(self.rng.randrange(30_000), boat.open)

    def clone(self, boat: SimBoat) -> None:
        """A second machine with a copy of the card, on the same account: sessions fence each other."""
        if not boat.running or self.clones:
            return
        twin = self._boat(boat.name, _copy(boat.disk, self.rng))
        for lineage, seqs in boat.own.items():
            twin.own[lineage] |= seqs
        twin.own[boat.journal.lineage] -= set(range(boat.journal.durable_head + 1, boat.journal.head + 1))
        boat.model.contested.add(boat.journal.lineage)
        twin.journal_options = boat.journal_options
        self.clones.append(twin)
        self.counters["clone"] += 1
        twin.open()

    def clock_jump(self, boat: SimBoat) -> None:
        boat.clock_jump_us += self.rng.choice((-3600, -5, 5, 3600, 86400 * 400)) * 1_000_000
        self.counters["clock_jump"] += 1

    def burst(self, boat: SimBoat) -> None:
        boat.burst_frames = self.rng.choice((self.rng.randrange(50, 300), self.rng.randrange(50, 300), 800))
        self.counters["burst"] += 1

    def busy(self, boat: SimBoat) -> None:
        boat.bus_frames, boat.bus_pause_ms = self.rng.choice(((1, 60), (4, 150), (3, 400), (15, 1_000)))

    def silence(self, boat: SimBoat) -> None:
        """The bus is silent; acks on a timer keep the link up."""
        frames, boat.bus_frames = boat.bus_frames, 0
        self.counters["silence"] += 1

        def back() -> None:
            if not self.healed:
                boat.bus_frames = frames or 3

        self.scheduler.after(self.rng.randrange(10_000, 90_000), back)

    def fill_boat(self, boat: SimBoat) -> None:
        boat.disk.faults.capacity_bytes = boat.disk._used_bytes + self.rng.choice((0, 500, 5_000))

        def back() -> None:
            boat.disk.faults.capacity_bytes = None

        self.scheduler.after(self.rng.randrange(2_000, 40_000), back)

    # --- the cloud -------------------------------------------------------------------------------

    def cloud_crash(self, _: SimBoat) -> None:
        cloud = self.cloud
        if not cloud.running:
            return
        if self.rng.random() < 0.5:
            cloud.disk.cut_in_sync = self.rng.random() < 0.5
            cloud.disk.cut_after = self.rng.randrange(1, 4 if cloud.disk.cut_in_sync else 20)
            return
        cloud.crash()
        self.scheduler.after(self.rng.randrange(100, 20_000), cloud.reopen)

    def cloud_restart(self, _: SimBoat) -> None:
        if self.cloud.running:
            self.cloud.guarded(self.cloud.stop)
            self.scheduler.after(self.rng.randrange(100, 5_000), self.cloud.reopen)

    def stall(self, _: SimBoat) -> None:
        """The cloud's disk is slow: commits take seconds, while more arrives."""
        self.cloud.commit_stall_ms = self.rng.choice((200, 2_000, 8_000))
        self.counters["stall"] += 1

        def back() -> None:
            self.cloud.commit_stall_ms = 0

        self.scheduler.after(self.rng.randrange(2_000, 40_000), back)

    def fill_cloud(self, _: SimBoat) -> None:
        disk = self.cloud.disk
        disk.faults.capacity_bytes = disk._used_bytes + self.rng.choice((0, 500, 3_000))

        def back() -> None:
            disk.faults.capacity_bytes = None

        self.scheduler.after(self.rng.randrange(1_000, 20_000), back)

    def snapshot(self, boat: SimBoat) -> None:
        self.cloud.snapshot(boat.name)


_FAULTS: Final[dict[str, tuple[float, Callable[[_World, SimBoat], None]]]] = {
    "flap": (10, _World.flap),
    "blip": (8, _World.blip),
    "flapping": (3, lambda world, boat: boat.flap_for(world.rng.randrange(3, 30))),
    "half open": (6, _World.half_open),
    "one way": (4, _World.one_way),
    "guests' link": (4, _World.guests_link),
    "slow link": (6, _World.slow_link),
    "boat crash": (8, _World.boat_crash),
    "boat restart": (5, _World.boat_restart),
    "wipe": (1.5, _World.wipe),
    "back up": (3, _World.back_up),
    "restore": (3, _World.restore),
    "clone": (2, _World.clone),
    "clock jump": (4, _World.clock_jump),
    "burst": (10, _World.burst),
    "busy": (6, _World.busy),
    "silence": (4, _World.silence),
    "fill boat": (4, _World.fill_boat),
    "cloud crash": (7, _World.cloud_crash),
    "cloud restart": (4, _World.cloud_restart),
    "stall": (6, _World.stall),
    "fill cloud": (4, _World.fill_cloud),
    "snapshot": (9, _World.snapshot),
}


def _copy(disk: PluggedDisk, rng: random.Random) -> PluggedDisk:
    twin = PluggedDisk(random.Random(rng.getrandbits(64)))
    twin._root = disk.clone(random.Random(0))._root
    twin._boot(twin._root)
    return twin
