"""Rounds of one broken disk under three real nodes: a fault, what a supervisor does about it, and all well again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Final

from tests.cluster.chaos_faults import WHOLE_S
from tests.cluster.chaos_load import ChaosLoad
from tests.cluster.chaos_world import ChaosWorld
from tests.faults import faulty_disk as calls
from tests.faults.faulty_disk import FaultyDisk
from tidelog.errors import LogError

EXIT_DISK: Final = 74
HOLDS_S: Final = (0.5, 1.5, 3.0)
RESTART_S: Final = 0.3
"""A supervisor's pause."""
BACK_S: Final = WHOLE_S + 60.0
"""A replica whose write was refused tries again after half a minute."""
LARGE: Final = "large"
"""Channels of one node each, whose records lie in segments."""
LARGE_BYTES: Final = 48 * 1024
"""Above what the write-ahead file takes."""
LEADS_S: Final = 6.0
"""A node that was killed leads again what only it holds."""
RENAMES_S: Final = 7.0
"""In quiet times only the watermarks are replaced, every five seconds."""
MORE_ROUNDS_MAX: Final = 6
_SOON: Final = (0, 0, 1)
"""For calls that are few."""
_ALL: Final = calls.READ | calls.WRITE | calls.SYNC

Strike = Callable[[FaultyDisk, random.Random], None]


@dataclass(frozen=True, slots=True)
class Kind:
    strike: Strike
    at_start: bool = False
    """The node is killed first, and comes up on the broken disk."""
    is_fresh: bool = False
    """The node is killed first, and comes back before its disk breaks: what it held in memory would meet no fault."""
    at_least_s: float = 0.0
    """Free space is asked for every two seconds."""


def _strike(
    error: int, mask: int, part: str = "", *, once: bool = False, after: tuple[int, ...] = (0, 0, 1, 3, 10)
) -> Strike:
    def strike(disk: FaultyDisk, rng: random.Random) -> None:
        disk.strike(error, mask, part=part, after=rng.choice(after), times=1 if once else 0)

    return strike


EIO, ENOSPC, EROFS = errno.EIO, errno.ENOSPC, errno.EROFS
KINDS: Final = {
    "EIO write-ahead sync": Kind(_strike(EIO, calls.SYNC, "/wal/")),
    "EIO write-ahead sync once": Kind(_strike(EIO, calls.SYNC, "/wal/", once=True)),
    "EIO write-ahead write": Kind(_strike(EIO, calls.WRITE, "/wal/")),
    "EIO segment write": Kind(
        lambda disk, _: disk.strike(EIO, calls.WRITE | calls.SYNC, part="/channels/"), at_least_s=3.0
    ),
    "EIO segment read": Kind(_strike(EIO, calls.READ, "/channels/", after=_SOON), is_fresh=True, at_least_s=3.0),
    "EIO segment read at start": Kind(
        _strike(EIO, calls.READ, "/channels/", after=_SOON), at_start=True, at_least_s=LEADS_S
    ),
    "EIO metadata": Kind(_strike(EIO, calls.WRITE | calls.SYNC, "/metadata/")),
    "EIO metadata read at start": Kind(_strike(EIO, calls.READ, "/metadata/"), at_start=True),
    "EIO everything": Kind(_strike(EIO, _ALL)),
    "EIO everything at start": Kind(_strike(EIO, _ALL), at_start=True),
    "EIO rename": Kind(_strike(EIO, calls.RENAME, after=_SOON), at_least_s=RENAMES_S),
    "one EIO at start": Kind(_strike(EIO, _ALL | calls.RENAME | calls.OPEN, once=True), at_start=True),
    "full": Kind(lambda disk, _: disk.fill()),
    "full at start": Kind(lambda disk, _: disk.fill(), at_start=True),
    "full at a moment": Kind(_strike(ENOSPC, calls.FULL, once=True)),
    "reserve used up": Kind(lambda disk, _: disk.strike(ENOSPC, calls.SPACE), at_least_s=3.0),
    "read-only": Kind(_strike(EROFS, calls.READ_ONLY)),
    "read-only at start": Kind(_strike(EROFS, calls.READ_ONLY), at_start=True),
}
QUICK: Final = ("EIO write-ahead sync", "full at start", "EIO metadata")
"""Faults after which nobody waits for the half minute of a replica that withdrew."""


@dataclass(slots=True)
class Rounds:
    world: ChaosWorld
    load: ChaosLoad
    disks: dict[str, FaultyDisk]
    rng: random.Random
    struck: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    """Rounds in which the node ran into the fault: what was never met was not tested."""
    exits: Counter[int] = field(default_factory=Counter)
    back_s: list[float] = field(default_factory=list)
    _restarts: list[asyncio.Task[None]] = field(default_factory=list)

    async def run(self, kinds: list[str], *, until_met: bool = False) -> None:
        """A round for each; with `until_met` a few more for those that no node has run into."""
        supervisor = asyncio.get_running_loop().create_task(self._supervise())
        try:
            for number, kind in enumerate(kinds, start=1):
                await self._round(number, kind)
            for _ in range(MORE_ROUNDS_MAX if until_met else 0):
                for kind in self.unmet():
                    await self._round(sum(self.struck.values()) + 1, kind)
        finally:
            supervisor.cancel()
            for disk in self.disks.values():
                disk.heal()

    def unmet(self) -> list[str]:
        return [kind for kind in self.struck if not self.met[kind]]

    async def _round(self, number: int, kind: str) -> None:
        kit, fault = self.world.kit, KINDS[kind]
        victim = self.rng.choice(self.world.names)
        disk = self.disks[victim]
        self.struck[kind] += 1
        await self._fill_a_segment(victim)
        kit.expect_end(victim)
        if fault.at_start or fault.is_fresh:
            kit.kill(victim)  # its supervisor starts it
        if fault.is_fresh:
            await self._fill_a_segment(victim)  # once it leads again; of the one before it has nothing in memory
        fault.strike(disk, self.rng)
        hold_s = max(self.rng.choice(HOLDS_S), fault.at_least_s)
        await self._prod(number, victim, hold_s + (2.0 if fault.at_start else 0.0))
        hits = disk.hits
        self.met[kind] += bool(hits)
        disk.heal()
        healed = time.monotonic()
        try:
            await self.world.wait_whole(self.load.client, deadline_s=BACK_S)
        except BaseException as error:
            error.add_note(f"round {number}: {kind} on {victim}, {hits} calls failed\n{kit.said(victim)[-3_000:]}")
            raise
        self.back_s.append(time.monotonic() - healed)
        await self._remove_scratch()
        print(f"round {number}: {kind} on {victim}, {hits} calls failed, back after {self.back_s[-1]:.1f} s")
        assert not self.load.problems, (number, kind, victim, self.load.problems[:5])

    async def _fill_a_segment(self, victim: str) -> None:
        """A record too large for the write-ahead file, in a channel of the victim's own: small ones stay there and in
        memory for long, and of the others readers may ask another node."""
        client, channel = self.load.client, f"{LARGE}-{victim}"
        await client.create_channel(channel, factor=1, placement="pinned", pinned_nodes=[victim])
        async with client.producer(channel, timeout_ms=60_000) as producer:
            await producer.send(os.urandom(LARGE_BYTES))

    async def _prod(self, number: int, victim: str, hold_s: float) -> None:
        """While the disk is broken somebody changes the metadata and reads from the beginning: what is in memory only
        would meet no fault."""

        async def change() -> None:
            name = f"scratch-{number}"
            await self.load.client.create_channel(name, factor=3)
            producer = self.load.client.producer(name)
            try:
                await producer.send(b"the first record enters the channel")
                await producer.send(os.urandom(LARGE_BYTES))  # straight to a segment, past the write-ahead file
            finally:
                producer.abort()
            await self.load.client.delete(name)

        async def read(channel: str, *, nearest: bool = False) -> None:
            async with self.load.client.reader(channel, follow=False, nearest=nearest, on_trim="skip") as reader:
                while await reader.read():
                    pass

        async def one(work: Coroutine[None, None, None]) -> None:
            with contextlib.suppress(LogError, TimeoutError):
                async with asyncio.timeout(hold_s):
                    await work

        await asyncio.gather(
            asyncio.sleep(hold_s),
            one(change()),
            one(read("default")),
            one(read("default", nearest=True)),
            one(read(f"{LARGE}-{victim}")),
        )

    async def _remove_scratch(self) -> None:
        """What a change that was cut short has left."""
        for channel in await self.load.client.channels(timeout_ms=30_000):
            if channel["name"].startswith("scratch-"):
                await self.load.client.delete(channel["name"])

    async def _supervise(self) -> None:
        """Starts what ended, as systemd would; notes with which code."""
        kit = self.world.kit
        while True:
            await asyncio.sleep(RESTART_S)
            for name, node in kit.nodes.items():
                if node.process is None or node.is_running:
                    continue
                code = node.process.returncode
                self.exits[code] += 1
                said = kit.said(name)[node.said_before :]
                if code not in (EXIT_DISK, -9):
                    self.load.problems.append(f"{name} ended with {code}: {said[-2_000:]}")
                if "Traceback" in said:
                    self.load.problems.append(f"{name} showed a traceback: {said[-2_000:]}")
                kit.start(name)
                kit.expect_end(name)

    def story(self) -> str:
        acked = {name: self.load.acked(name) for name in self.load.channels}
        worst_s = max(self.back_s, default=0.0)
        return (
            f"{sum(self.struck.values())} rounds, faults {dict(self.struck)}, met {dict(self.met)}, acked {acked}, "
            f"exits by code {dict(self.exits)}, back after {worst_s:.1f} s at most\n"
            f"records: {self.load.counts()}\nwhat clients saw: {self.load.troubles}"
        )
