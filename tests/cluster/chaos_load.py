"""Producers and readers that run while a cluster suffers, and what each of them saw."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.cluster.chaos_world import ChaosWorld
from tests.patience import patient
from tidelog.client import Client, CommittedLost, FrameRecord, Producer, Reader, Receipt, Record
from tidelog.errors import LogError, NotChannelLeader

PRODUCE_MS = 45_000
"""From `send` to the answer: longer than most faults last."""
UNANSWERED_MAX = 400
PAUSE_S = 0.1
"""Between two bursts of a producer, on average half of it."""
BURST_MAX = 12
PADDING_MAX = 240
WATCH_S = 0.1


@dataclass(slots=True)
class Sent:
    """One record of one producer, and what it was told."""

    stream: str
    number: int
    sent_ns: int
    outcome: str = "open"
    """open, acked, refused (certainly without effect) or unknown."""
    offset: int = -1
    answered_ns: int = 0
    answered_ms: int = 0
    """By the clock on the wall, as the catalog tells time."""


@dataclass(slots=True)
class Seen:
    """What one reader was given, in order. A reader that was told of a loss starts again, as another one."""

    channel: str
    name: str
    records: list[tuple[int, bytes]] = field(default_factory=list)
    was_told_of_loss: bool = False
    skips: bool = False


def plain(records: Sequence[Record | FrameRecord]) -> list[tuple[int, bytes]]:
    """Offsets and values: the producers of the load send messages alone."""
    found = []
    for record in records:
        assert isinstance(record, Record), record
        found.append((record.offset, record.value or b""))
    return found


@dataclass(slots=True, kw_only=True)
class ChaosChannel:
    name: str
    config: dict[str, Any]

    @property
    def is_trimmed(self) -> bool:
        return "retention" in self.config

    @property
    def is_memory(self) -> bool:
        return not self.config.get("persistent", True)


def value_of(stream: str, number: int, padding: int) -> bytes:
    return f"{stream}:{number}:".encode() + b"." * padding


def sender_of(value: bytes) -> tuple[str, int]:
    stream, number, _ = value.split(b":", 2)
    return stream.decode(), int(number)


class ChaosLoad:
    """`problems` must stay empty; `troubles` are errors that clients may see."""

    def __init__(self, world: ChaosWorld, client: Client, channels: list[ChaosChannel], *, seed: int) -> None:
        self.world = world
        self.client = client
        self.channels = {channel.name: channel for channel in channels}
        self.sent: dict[str, list[Sent]] = {name: [] for name in self.channels}
        self.seen: list[Seen] = []
        self.problems: list[str] = []
        self.troubles: dict[str, int] = {}
        self.transports: dict[str, Any] = {}
        """What nodes said of their transports, when all was well again."""
        self._rng = random.Random(seed)
        self._is_over = False
        self._open: dict[str, int] = {}
        self._producers: list[asyncio.Task[None]] = []
        self._followers: list[tuple[asyncio.Task[None], list[Reader], str]] = []
        self._watchers: list[asyncio.Task[None]] = []

    async def create(self) -> None:
        for channel in self.channels.values():
            await self.client.create_channel(channel.name, **channel.config)

    def begin(self, *, producers: int = 2) -> None:
        """Start everything; `end` stops it."""
        spawn = asyncio.get_running_loop().create_task
        for name in self.channels:
            for number in range(producers):
                rng = random.Random(self._rng.random())
                self._producers.append(spawn(self._guard(self._produce(name, f"{name}-p{number}", rng))))
            for nearest in (False, True):
                live: list[Reader] = []
                task = spawn(self._guard(self._follow(name, "nearest" if nearest else "leader", live, nearest=nearest)))
                self._followers.append((task, live, name))
            self._watchers.append(spawn(self._guard(self._watch(name))))

    async def _guard(self, work: Any) -> None:
        """What a worker did not expect is a problem, not the end of the others."""
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.problems.append(f"a worker ended: {error!r}")

    def _goes_on(self) -> bool:
        return not self._is_over

    def trouble(self, what: str, error: LogError) -> None:
        key = f"{what} {error.code}"
        self.troubles[key] = self.troubles.get(key, 0) + 1

    # --- producers -----------------------------------------------------------------------------------------

    async def _produce(self, channel: str, first_stream: str, rng: random.Random) -> None:
        restarts = number = 0
        while self._goes_on():
            restarts += 1
            stream = f"{first_stream}.{restarts}"
            producer = self.client.producer(channel, name=stream, timeout_ms=PRODUCE_MS)
            try:
                while self._goes_on():
                    if self._open.get(stream, 0) < UNANSWERED_MAX:
                        for _ in range(rng.randint(1, BURST_MAX)):
                            number += 1
                            self._send(producer, channel, stream, number, rng)
                    await asyncio.sleep(rng.random() * PAUSE_S)
                await producer.close()
            except LogError as error:
                self.trouble(f"{channel} producer", error)
                producer.abort()
                await asyncio.sleep(0.2)

    def _send(self, producer: Producer, channel: str, stream: str, number: int, rng: random.Random) -> None:
        entry = Sent(stream, number, time.monotonic_ns())
        receipt = producer.send(value_of(stream, number, rng.randrange(PADDING_MAX)))
        self.sent[channel].append(entry)
        self._open[stream] = self._open.get(stream, 0) + 1
        receipt.when_done(partial(self._answered, channel, entry, receipt))

    def _answered(self, channel: str, entry: Sent, receipt: Receipt) -> None:
        self._open[entry.stream] -= 1
        entry.answered_ns, entry.answered_ms = time.monotonic_ns(), time.time_ns() // 1_000_000
        try:
            entry.offset = receipt.result()
            entry.outcome = "acked"
        except LogError as error:
            entry.outcome = "refused" if error.definite else "unknown"
            self.trouble(f"{channel} record {entry.outcome}", error)

    # --- readers -------------------------------------------------------------------------------------------

    async def _follow(self, channel: str, name: str, live: list[Reader], *, nearest: bool) -> None:
        while True:
            on_trim = "skip" if self.channels[channel].is_trimmed else "raise"
            seen = Seen(channel, name, skips=on_trim == "skip")
            self.seen.append(seen)
            reader = self.client.reader(channel, nearest=nearest, on_trim=on_trim)
            live[:] = [reader]
            try:
                while True:
                    try:
                        seen.records += plain(await reader.read())
                    except CommittedLost:
                        raise
                    except LogError as error:
                        if not error.retriable:
                            self.problems.append(f"the {name} reader of {channel} ended: {error!r}")
                            return
                        self.trouble(f"{channel} reader", error)
                        await asyncio.sleep(0.2)
            except CommittedLost as error:
                seen.was_told_of_loss = True
                self.trouble(f"{channel} reader", error)
                if not self.channels[channel].is_memory:
                    self.problems.append(f"the {name} reader of {channel} was told of a loss: {error}")
                    return
            finally:
                await reader.close()

    async def _watch(self, channel: str) -> None:
        """The committed end that one client hears of never goes back (invariant 4)."""
        epoch = end = 0
        while self._goes_on():
            await asyncio.sleep(WATCH_S)
            try:
                found = await self.client.offsets(channel, timeout_ms=5_000)
            except LogError as error:
                if not error.retriable and not isinstance(error, NotChannelLeader):
                    raise
                continue
            may_lose = self.channels[channel].is_memory and found.leader_epoch > epoch
            if found.leader_epoch < epoch or (found.committed_end < end and not may_lose):
                self.problems.append(f"{channel} went back from {(epoch, end)} to {found}")
            epoch, end = found.leader_epoch, found.committed_end

    # --- the end -------------------------------------------------------------------------------------------

    def acked(self, channel: str) -> int:
        return sum(one.outcome == "acked" for one in self.sent[channel])

    async def wait_acked(self, count: int, *, deadline_s: float) -> None:
        """Until so many more records of each channel are acknowledged."""
        enough = {name: self.acked(name) + count for name in self.channels}

        async def is_enough() -> bool:
            return all(self.acked(name) >= wanted for name, wanted in enough.items())

        try:
            await self.world.kit.wait(is_enough, deadline_s=deadline_s, what=f"{count} more records in each channel")
        except LogError as error:
            error.add_note(f"acked { ({name: self.acked(name) for name in self.channels}) }, wanted {enough}")
            raise

    async def end_producers(self, *, deadline_s: float) -> None:
        """Every record has its answer afterwards."""
        self._is_over = True
        async with asyncio.timeout(patient(deadline_s)):
            await asyncio.gather(*self._producers, *self._watchers)

    async def end_readers(self, ends: dict[str, int], *, deadline_s: float) -> None:
        """Readers stop when they have seen everything."""

        async def has_seen_all() -> bool:
            return all(task.done() or (live[0].offset or 0) >= ends[name] for task, live, name in self._followers)

        try:
            await self.world.kit.wait(has_seen_all, deadline_s=deadline_s, what="readers to reach the end")
        except LogError as error:
            error.add_note(f"at {[(name, live[0].offset) for _, live, name in self._followers]}, ends {ends}")
            raise
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Whatever still runs ends."""
        tasks = [*self._producers, *self._watchers, *(task for task, _, _ in self._followers)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def counts(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for name, entries in self.sent.items():
            held = found.setdefault(name, {})
            for entry in entries:
                held[entry.outcome] = held.get(entry.outcome, 0) + 1
        return found

    def recovery_ms(self, struck_ns: int) -> dict[str, float]:
        """Per channel: from a fault to the first answer to a record that was sent after it."""
        found = {}
        for name, entries in self.sent.items():
            answers = (one.answered_ns for one in entries if one.outcome == "acked" and one.sent_ns >= struck_ns)
            first = min(answers, default=None)
            if first is not None:
                found[name] = (first - struck_ns) / 1e6
        return found
