"""What a node does for the boats it leads beside serving them: state files, devices, fold snapshots.

Boats whose channel this node comes to lead are read one after the other, also those that have not spoken yet, so that
readers hear of all of them. Trimming is done by every replica for itself; here the leader writes the snapshots that
this waits for.

KP1  A state file is written at a Handshake, at a disconnect, at the stop, and while something moves at most every
     `state_interval_ms`; off the event loop, one at a time; by the leader alone.
KP2  A fold snapshot is appended at most every `snapshot_interval_ms`, when enough was appended since the last one or
     retention waits for it. Retention never passes the newest committed one (F3).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, TypeAlias

from tidelog.cluster.boats.state_file import SavedState, write_devices, write_state
from tidelog.cluster.boats.watch import Identity
from tidelog.cluster.uplink.boats import Boats
from tidelog.cluster.uplink.instance import Instance
from tidelog.cluster.uplink.options import MaintenanceOptions as MaintenanceOptions
from tidelog.errors import LogError
from tidelog.nmea.devices import Device
from tidelog.storage.log.writer import steady_clock_ms, wall_clock_us
from tidelog.units import US_PER_MS

_TICK_S: Final = 0.25
_OPEN_AGAIN_S: Final = 0.5
_SAVES_PER_TICK: Final = 40
_URGENT_INTERVAL_MS: Final = 1_000
"""A boat that shakes hands all the time must not keep the disk busy with its holes."""
_SAVED_TOGETHER: Final = 16
_LOOK_INTERVAL_MS: Final = 1_000
"""Folding costs more per call than per frame. Readers of the feed and of devices do not wait for it."""
_LONG_AGO_MS: Final = -(2**62)

Mark: TypeAlias = tuple[int, int, int]
Work: TypeAlias = tuple[SavedState, list[Device] | None]


class BoatMaintenance:
    def __init__(self, *, boats: Boats, options: MaintenanceOptions, log: Callable[[str], None]) -> None:
        self._boats = boats
        self._disk = boats.disk
        self._options = options
        self._log = log
        self._urgent: set[str] = set()
        self._woken = asyncio.Event()
        self._marks: dict[str, Mark] = {}
        self._saved_ms: dict[str, int] = {}
        self._identities: dict[str, Identity] = {}
        self._complaints: dict[str, str] = {}
        self._stopping = False

    def save_soon(self, instance: Instance) -> None:
        """Something happened that the file should show at once."""
        self._urgent.add(instance.name)
        self._woken.set()

    async def run(self) -> None:
        """Run until `stop`. An error that ends it earlier is a bug of ours."""
        async with asyncio.TaskGroup() as group:
            loading = group.create_task(self._run_openings())
            sweeping = group.create_task(self._run_sweeps())
            await self._run_saves()
            loading.cancel()
            sweeping.cancel()

    def stop(self) -> None:
        """End after what is being written now; `save_all` comes after it."""
        self._stopping = True
        self._woken.set()

    # --- boats that have not spoken yet ----------------------------------------------------------

    async def _run_openings(self) -> None:
        """Read the logs of boats that are led here since a moment ago, unless their Handshake was faster."""
        boats = self._boats
        while True:
            await boats.led.wait()
            boats.led.clear()
            failed: list[str] = []
            while boats.unopened:
                name = next(iter(boats.unopened))
                del boats.unopened[name]
                try:
                    await boats.instance(name, create=False)
                except LogError as error:
                    if not error.retriable:
                        self._complain(name, "open", error)
                    failed.append(name)
                await asyncio.sleep(0)
            if failed:
                await asyncio.sleep(_OPEN_AGAIN_S)
                boats.look_again(failed)

    # --- state files -----------------------------------------------------------------------------

    async def _run_saves(self) -> None:
        look_due_ms = 0
        while not self._stopping:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._woken.wait()
            self._woken.clear()
            due = self._urgent_due()
            if steady_clock_ms() >= look_due_ms:
                look_due_ms = steady_clock_ms() + _LOOK_INTERVAL_MS
                await self._fold_frames()
                due += self._moved()
            # Never so many at once that commits suffer.
            for instance in due[:_SAVES_PER_TICK]:
                await self._save(instance)

    def _urgent_due(self) -> list[Instance]:
        instances = self._boats.instances
        urgent = [instances[name] for name in self._urgent if name in instances]
        return [each for each in urgent if self._waited_ms(each) >= _URGENT_INTERVAL_MS]

    def _moved(self) -> list[Instance]:
        """Boats whose file is old, the oldest first."""
        interval_ms = self._options.state_interval_ms
        moved = [
            each
            for name, each in self._boats.instances.items()
            if self._marks.get(name) != _mark(each) and name not in self._urgent
        ]
        old = [each for each in moved if self._waited_ms(each) >= interval_ms]
        return sorted(old, key=self._waited_ms, reverse=True)

    def _waited_ms(self, instance: Instance) -> int:
        return steady_clock_ms() - self._saved_ms.get(instance.name, _LONG_AGO_MS)

    async def save_all(self, *, deadline_s: float) -> None:
        """At the stop: every boat that moved, with its devices as they are, as many as there is time for."""
        self._identities.clear()
        moved = [each for name, each in self._boats.instances.items() if self._marks.get(name) != _mark(each)]
        give_up_ms = steady_clock_ms() + round(1000 * deadline_s)
        for start in range(0, len(moved), _SAVED_TOGETHER):
            if steady_clock_ms() > give_up_ms:
                self._log(f"state files left as they were count={len(moved) - start}, the logs are read at the start")
                return
            await asyncio.gather(*map(self._save, moved[start : start + _SAVED_TOGETHER]))

    async def _save(self, instance: Instance) -> None:
        name = instance.name
        self._urgent.discard(name)
        self._marks[name], self._saved_ms[name] = _mark(instance), steady_clock_ms()
        identities = instance.watch.identities()
        devices = None
        if identities and self._identities.get(name) != identities:
            devices = instance.watch.devices.devices()
            self._identities[name] = identities
        try:
            await asyncio.to_thread(self._write, (instance.saved_state(), devices))
        except LogError as error:
            self._complain(name, "save", error)
            self._identities.pop(name, None)
        else:
            self._settle(name, "save")

    def _write(self, work: Work) -> None:
        saved, devices = work
        write_state(self._disk, saved)
        if devices is not None:
            write_devices(self._disk, saved.status.id, devices)

    async def _fold_frames(self) -> None:
        """Readers and devices hear of what nobody was waiting for."""
        idle_ms = self._options.device_idle_ms
        for instance in list(self._boats.instances.values()):
            watch = instance.watch
            if not watch.has_news:
                continue
            watch.has_news = False
            watch.fold()
            for frames in watch.take_backfilled():
                watch.learn_devices(frames)
                await asyncio.sleep(0)  # others first: a block may hold thousands of frames
            if idle_ms is not None:
                watch.forget_idle(idle_ms * US_PER_MS)

    # --- snapshots and retention -----------------------------------------------------------------

    async def _run_sweeps(self) -> None:
        while True:
            await asyncio.sleep(self._options.sweep_interval_ms / 1000)
            for instance in list(self._boats.instances.values()):
                try:
                    await self.sweep(instance)
                except LogError as error:
                    self._complain(instance.name, "sweep", error)
                else:
                    self._settle(instance.name, "sweep")

    async def sweep(self, instance: Instance) -> None:
        """Write a snapshot where one is due, and have the channel trimmed."""
        led_channel = instance.led_channel
        if not led_channel.is_held:
            return
        waits = await asyncio.to_thread(led_channel.waits_for_snapshot, wall_clock_us())
        if self._snapshot_is_due(instance, waits=waits):
            await instance.write_snapshot()
            self.save_soon(instance)
        led_channel.apply_retention()

    def _snapshot_is_due(self, instance: Instance, *, waits: bool) -> bool:
        snapshot = instance.snapshot
        if snapshot is not None:
            age_us = wall_clock_us() - snapshot.time_us
            if (
                instance.committed_end <= snapshot.offsets.stop
                or age_us < self._options.snapshot_interval_ms * US_PER_MS
            ):
                return False
        return waits or instance.bytes_since_snapshot >= self._options.snapshot_bytes_min

    def _complain(self, name: str, action: str, error: LogError) -> None:
        """Once for each fault, not at every try."""
        if self._complaints.get(f"{action} {name}") != error.code:
            self._complaints[f"{action} {name}"] = error.code
            self._log(f"{action} failed instance={name} code={error.code} detail={str(error)!r}")

    def _settle(self, name: str, action: str) -> None:
        if self._complaints.pop(f"{action} {name}", None) is not None:
            self._log(f"{action} works again instance={name}")


def _mark(instance: Instance) -> Mark:
    return instance.committed_end, instance.watch.last_seen_us, instance.channel.receiver.session
