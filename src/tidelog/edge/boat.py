"""The boat process: a source of frames, the journal, the ring, and the uplink, on one event loop.

A shell: it moves frames from the source into the journal and the ring, wakes what is due, and stops
cleanly. The journal's flush and sync run on the loop, once a second; frames wait in the source meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.journal import Journal, JournalOptions, open_journal
from tidelog.edge.ring import Ring
from tidelog.edge.sources import Source
from tidelog.edge.uplink import BoatUplink
from tidelog.edge.uplink_client import UplinkClient, UplinkTarget
from tidelog.errors import DiskFull, SourceFailed
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.writer import wall_clock_us
from tidelog.units import US_PER_S

_TICK_S = 0.01
_SOURCE_BACKOFF_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoatOptions:
    journal_dir: Path
    target: UplinkTarget | None = None
    """None records only."""
    ring_frames: int = 65_536
    journal: JournalOptions = field(default_factory=JournalOptions)
    sender: SenderConfig = field(default_factory=SenderConfig)


class Boat:
    """Runs until `stop` is called or its source has ended and everything is acked."""

    def __init__(
        self, options: BoatOptions, *, open_source: Callable[[], Source], log: Callable[[str], None] = lambda _: None
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
        self._client: UplinkClient | None = None

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        journal = self.journal
        self._log(f"boat up lineage={journal.lineage.hex()} head={journal.head} journal={self._options.journal_dir}")
        uplink_task = self._start_uplink()
        try:
            await self._record()
        finally:
            if uplink_task is not None:
                uplink_task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await uplink_task
            journal.close(wall_clock_us())
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
            now_ms=time.monotonic_ns() // 1_000_000,
        )
        self._client = UplinkClient(uplink=self.uplink, target=target, log=self._log)
        return asyncio.ensure_future(self._client.run())

    async def _record(self) -> None:
        while not self._stopping.is_set():
            source = self._open_source()
            try:
                await self._record_from(source)
                return
            except SourceFailed as error:
                self._log(f"source failed reason={str(error)!r} retry_s={_SOURCE_BACKOFF_S:g}")
            finally:
                source.close()
            await self._pause(_SOURCE_BACKOFF_S)

    async def _record_from(self, source: Source) -> None:
        while not self._stopping.is_set():
            now_us = wall_clock_us()
            frames = source.read(now_us)
            for time_us, can_id, payload in frames.rows():
                self._take(time_us, can_id, payload, now_us)
            if len(frames) and self._client is not None:
                self._client.notify()
            if now_us >= self.journal.wake_at_us():
                self._wake_journal(now_us)
            if source.ended and self._all_said():
                return
            due_us = source.wake_at_us()
            wait_s = _TICK_S if due_us is None else (due_us - wall_clock_us()) / US_PER_S
            await self._pause(min(max(wait_s, 0.0), _TICK_S))

    def _take(self, time_us: int, can_id: int, payload: bytes, now_us: int) -> None:
        try:
            seq = self.journal.record(time_us, can_id, payload, now_us)
        except DiskFull as error:
            if not self.frames_refused:
                self._log(f"recording stopped reason={str(error)!r}")
            self.frames_refused += 1
            return
        self.ring.append(seq, time_us, can_id, payload)

    def _wake_journal(self, now_us: int) -> None:
        try:
            self.journal.wake(now_us)
        except DiskFull as error:
            self._log(f"the journal waits for room reason={str(error)!r}")

    def _all_said(self) -> bool:
        """The source has ended: everything is durable, and acked where there is a cloud."""
        if self.journal.durable_head < self.journal.head:
            return False
        return self._client is None or self.journal.acked >= self.journal.head

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), max(seconds, 0.001))
