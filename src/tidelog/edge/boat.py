"""The boat process: a source of frames, the journal, the ring, the uplink and HTTP, on one event loop.

A shell: it moves frames from the source into the journal and the ring, wakes what is due, and stops
cleanly. The journal's flush and sync run on the loop, once a second; frames wait in the source meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidelog.blocks.columns import FrameColumns
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.boat_http import BoatHttp, BoatView
from tidelog.edge.journal.journal import Journal, JournalOptions, open_journal
from tidelog.edge.journal.ring import Ring
from tidelog.edge.sources.source import FrameSource
from tidelog.edge.sources.transmitting import BusSender, SendOptions
from tidelog.edge.uplink.client import UplinkClient
from tidelog.edge.uplink.target import UplinkTarget
from tidelog.edge.uplink.uplink import BoatUplink
from tidelog.errors import DiskError, SourceFailed, SyncFailed
from tidelog.http.feed import FrameFeed
from tidelog.http.server import HttpOptions
from tidelog.http.sessions import BUFFER_MS_MAX, SessionBook
from tidelog.nmea.devices import DeviceRegistry, introductions_again
from tidelog.storage.log.writer import steady_clock_ms, wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.units import US_PER_S

_TICK_S = 0.01
_SOURCE_BACKOFF_S = 5.0
_UPLINK_CLOSE_S = 5.0
_DEVICES_CHECK_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BoatOptions:
    journal_dir: Path
    target: UplinkTarget | Callable[[], UplinkTarget] | None = None
    """None records only. A function is called at every dial, so that it may read renewed certificates."""
    daily_bytes: int | None = None
    """Most bytes that the uplink may use in a day."""
    daily_reset_hour: int = 0
    """The hour (UTC) at which that day begins."""
    instance: str = ""
    """The boat's name in the cloud."""
    http: HttpOptions | None = None
    """None serves no HTTP."""
    device_idle_ms: int | None = 300_000
    """A device that was silent for this long is no longer listed."""
    bus_silence_ms: int | None = None
    """A bus that was silent for this long is reported as unhealthy."""
    ring_frames: int = 65_536
    journal: JournalOptions = field(default_factory=JournalOptions)
    sender: SenderConfig = field(default_factory=SenderConfig)
    send: SendOptions | None = None
    """What HTTP callers may put on the bus; None for nothing."""
    buffer_ms_max: int = BUFFER_MS_MAX
    """How long a reader's buffered session is kept for it while it is away, at most."""


class Boat:
    """Runs until `stop` is called or its source has ended and everything is acked."""

    def __init__(
        self,
        options: BoatOptions,
        *,
        open_source: Callable[[], FrameSource],
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._options = options
        self._open_source = open_source
        self._log = log
        self._stopping = asyncio.Event()
        self.frames_refused = 0
        options.journal_dir.parent.mkdir(parents=True, exist_ok=True)
        self.journal: Journal = open_journal(
            OsDisk(options.journal_dir.parent),
            options.journal_dir.name,
            now_us=wall_clock_us(),
            new_lineage=lambda: uuid.uuid4().bytes,
            options=options.journal,
        )
        self.ring = Ring(frames_max=options.ring_frames)
        self.uplink: BoatUplink | None = None
        self.feed = FrameFeed()
        self.devices = DeviceRegistry()
        self.http: BoatHttp | None = None
        self._source: FrameSource | None = None
        """The open source."""
        self._client: UplinkClient | None = None
        self._source_problem: str | None = None
        self._refused: DiskError | None = None
        """Why the last frame was dropped; None while frames are recorded."""
        self._stuck_since_ms: int | None = None
        """When writing began to fail."""
        self._upkeep_failed_ms: int | None = None
        """When sealing, retention, leasing or reading for Backfill began to fail."""
        self._heard_ms = steady_clock_ms()
        self._bus_us = wall_clock_us()
        """The newest frame's time."""
        self._devices_checked_ms = steady_clock_ms()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        journal = self.journal
        self._log(f"boat up lineage={journal.lineage.hex()} head={journal.head} journal={self._options.journal_dir}")
        uplink_task = self._start_uplink()
        try:
            await self._start_http()
            await self._record()
        finally:
            self.feed.close()
            try:
                await self._close_ways(uplink_task)
            finally:
                self._close_journal()

    async def _close_ways(self, uplink_task: asyncio.Task[None] | None) -> None:
        if self.http is not None:
            await self.http.stop()
        if uplink_task is None:
            return
        uplink_task.cancel()
        # Not awaited itself: a cancellation of ours could not be told from the task's own, and would be swallowed.
        await asyncio.wait({uplink_task}, timeout=_UPLINK_CLOSE_S)
        if uplink_task.done() and not uplink_task.cancelled():
            uplink_task.result()  # what it ended with is a bug

    def _close_journal(self) -> None:
        journal = self.journal
        try:
            journal.close(wall_clock_us())
        except DiskError:
            lost = journal.statistics().frames_buffered
            self._log(f"boat down, not everything is written head={journal.head} frames_lost={lost}")
            raise
        self._log(f"boat down head={journal.head} acked={journal.acked} frames_refused={self.frames_refused}")

    def _start_uplink(self) -> asyncio.Task[None] | None:
        target = self._options.target
        if target is None:
            return None
        self.uplink = BoatUplink(
            journal=self.journal,
            ring=self.ring,
            config=self._options.sender,
            jitter=random.random,
            now_ms=steady_clock_ms(),
            daily_bytes=self._options.daily_bytes,
            reset_hour=self._options.daily_reset_hour,
        )
        self._client = UplinkClient(uplink=self.uplink, target=target, seeds=self._introductions, log=self._log)
        return asyncio.ensure_future(self._client.run())

    def _introductions(self) -> list[tuple[int, bytes]]:
        """The frames in which the devices of the bus describe themselves, for an lplex cloud."""
        return introductions_again(self.devices.devices())

    async def _start_http(self) -> None:
        options = self._options
        if options.http is None:
            return
        view = BoatView(
            instance=options.instance,
            journal=self.journal,
            feed=self.feed,
            devices=self.devices.devices,
            uplink=lambda: None if self.uplink is None else self.uplink.statistics(),
            now_us=wall_clock_us,
            now_ms=steady_clock_ms,
            frames_refused=lambda: self.frames_refused,
            written=lambda: self.journal.written,
            ring=lambda: (len(self.ring.seqs), options.ring_frames),
            recent=self.ring,
            sessions=SessionBook(buffer_ms_max=options.buffer_ms_max),
            sender=BusSender(options.send, transmit=lambda: getattr(self._source, "send", None)),
            problem=self._what_is_wrong,
            trouble=self._what_is_left_undone,
            extra=self._metering,
        )
        self.http = BoatHttp(view, options.http, log=self._log)
        await self.http.start()

    def _what_is_wrong(self) -> str | None:
        refusal = self._refused or self.journal.refusal
        if refusal is not None:
            since_ms = steady_clock_ms() if self._stuck_since_ms is None else self._stuck_since_ms
            return (
                f"nothing reaches the disk for {(steady_clock_ms() - since_ms) // 1000} s: {refusal}; "
                f"{self._memory_in_words()}, {self.frames_refused} were dropped so far; free space and it goes on"
            )
        limit_ms = self._options.bus_silence_ms
        silent_ms = steady_clock_ms() - self._heard_ms
        if self._source_problem is None and limit_ms is not None and silent_ms > limit_ms:
            return f"no frame came from the bus for {silent_ms // 1000} s"
        return self._source_problem

    def _what_is_left_undone(self) -> str | None:
        problem = self.journal.upkeep.problem
        if problem is None:
            return None
        since_ms = steady_clock_ms() if self._upkeep_failed_ms is None else self._upkeep_failed_ms
        return (
            f"{problem}; so for {(steady_clock_ms() - since_ms) // 1000} s. Frames are recorded all the same; free "
            "space or repair the disk, and it goes on by itself"
        )

    def _memory_in_words(self) -> str:
        held, most = self.journal.statistics().frames_buffered, self._options.journal.buffer_frames_max
        return f"{held} frames are in memory only (at most {most})"

    def _look_at_journal(self) -> None:
        """Log when writing begins to fail and when it works again, each once."""
        refusal = self._refused or self.journal.refusal
        if refusal is not None and self._stuck_since_ms is None:
            self._stuck_since_ms = steady_clock_ms()
            self._log(f"nothing reaches the disk reason={str(refusal)!r} do='free space; {self._memory_in_words()}'")
        elif refusal is None and self._stuck_since_ms is not None:
            stuck_s = (steady_clock_ms() - self._stuck_since_ms) / 1000
            self._stuck_since_ms = None
            durable = self.journal.durable_head
            self._log(f"the disk takes frames again after_s={stuck_s:.0f} durable_head={durable}")
        self._look_at_upkeep()

    def _look_at_upkeep(self) -> None:
        """Log the same for the journal's maintenance (UK1): the journal could otherwise grow unnoticed until the disk
        is full."""
        problem, since_ms = self.journal.upkeep.problem, self._upkeep_failed_ms
        if problem is not None and since_ms is None:
            self._upkeep_failed_ms = steady_clock_ms()
            self._log(f"the journal is not kept in order reason={problem!r} do='free space, or repair the disk'")
        elif problem is None and since_ms is not None:
            self._upkeep_failed_ms = None
            self._log(f"the journal is kept in order again after_s={(steady_clock_ms() - since_ms) / 1000:.0f}")

    def _metering(self) -> dict[str, Any]:
        if self.uplink is None:
            return {}
        statistics = self.uplink.statistics()
        return {
            "metering": {
                "live_bytes_today": statistics.live_bytes_today,
                "backfill_bytes_today": statistics.backfill_bytes_today,
                "live_bytes_total": statistics.live_bytes_total,
                "backfill_bytes_total": statistics.backfill_bytes_total,
                "daily_bytes": statistics.daily_bytes,
            }
        }

    async def _record(self) -> None:
        while not self._stopping.is_set():
            source = self._source = self._open_source()
            try:
                await self._record_from(source)
                return
            except SourceFailed as error:
                self._source_problem = f"the bus cannot be read: {error}"
                self._log(f"source failed reason={str(error)!r} retry_s={_SOURCE_BACKOFF_S:g}")
            finally:
                self._source = None
                source.close()
            await self._pause(_SOURCE_BACKOFF_S)

    async def _record_from(self, source: FrameSource) -> None:
        while not self._stopping.is_set():
            now_us = wall_clock_us()
            frames = source.read(now_us)
            if len(frames):
                self._take(frames, now_us)
            if now_us >= self.journal.wake_at_us():
                self._wake_journal(now_us)
            self._forget_idle_devices()
            if source.ended and self._all_said():
                return
            due_us = source.wake_at_us()
            wait_s = _TICK_S if due_us is None else (due_us - wall_clock_us()) / US_PER_S
            await self._pause(min(max(wait_s, 0.0), _TICK_S))

    def _take(self, frames: FrameColumns, now_us: int) -> None:
        """Record the frames in journal and ring, then publish them to readers. Refused frames get no seq."""
        seqs: list[int] = []
        for time_us, can_id, payload in frames.rows():
            try:
                seq = self.journal.record(time_us, can_id, payload, now_us)
            except SyncFailed:
                raise
            except DiskError as error:
                self._refuse(len(frames) - len(seqs), error)
                break
            self.ring.append(seq, time_us, can_id, payload)
            seqs.append(seq)
        else:
            self._refused = self._source_problem = None
        self._look_at_journal()
        self._heard_ms, self._bus_us = steady_clock_ms(), int(frames.times_us[-1])
        if seqs and self._client is not None:
            self._client.notify()
        changes = self.devices.receive(frames)
        if seqs and self.http is not None:
            self.feed.publish(seqs[0], frames.slice(0, len(seqs)))
            self.feed.publish_devices(changes)

    def _refuse(self, count: int, error: DiskError) -> None:
        if self._refused is None:
            self._log(f"frames are dropped reason={str(error)!r} dropped_before={self.frames_refused}")
        self.frames_refused += count
        self._refused = error

    def _forget_idle_devices(self) -> None:
        idle_ms, now_ms = self._options.device_idle_ms, steady_clock_ms()
        if idle_ms is not None and now_ms - self._devices_checked_ms > _DEVICES_CHECK_MS:
            self._devices_checked_ms = now_ms
            # By the clock of the bus: a replayed capture may be years old.
            bus_us = self._bus_us + 1000 * (now_ms - self._heard_ms)
            self.feed.publish_devices(self.devices.forget_idle(bus_us, 1000 * idle_ms))

    def _wake_journal(self, now_us: int) -> None:
        try:
            self.journal.wake(now_us)
        except SyncFailed:
            raise  # what the disk holds is unknown until the journal was opened anew
        except DiskError:
            pass  # it is tried again; the journal remembers it and `_look_at_journal` logs it
        self._look_at_journal()

    def _all_said(self) -> bool:
        """The source has ended: everything is durable, and acked where there is a cloud."""
        if self.journal.durable_head < self.journal.head:
            return False
        return self._client is None or self.journal.acked >= self.journal.head

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.001)):
                await self._stopping.wait()
