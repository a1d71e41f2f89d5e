"""What is done to a cluster under load: one fault after the other, drawn from a seed, sometimes two at once."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from benchmarks.kits.cluster_load import ClusterCaller
from benchmarks.kits.fault_proxy import NOBODY

from tests.cluster.chaos_load import ChaosLoad
from tests.cluster.chaos_world import NATS, NEARLY_BYTES, ChaosWorld
from tests.patience import patient
from tidelog.errors import LogError

HOLDS_S = (0.3, 1.0, 2.5, 4.0)
"""How long a fault lasts: hardly noticed, or long enough for the others to go on without."""
WHOLE_S = 120.0
STOP_S = 60.0
REFUSED_S = 15.0
"""For a node to come up and to find that its disk is full; no failure if it takes longer."""
REFUSED = "append refused"
POLL_S = 0.1


@dataclass(slots=True)
class Struck:
    words: str
    kind: str
    at_ns: int


class Faults:
    """Strikes; each method is one fault, from the blow to the end of it."""

    def __init__(self, world: ChaosWorld, load: ChaosLoad, caller: ClusterCaller, rng: random.Random) -> None:
        self.world = world
        self.load = load
        self.rng = rng
        self.done: list[Struck] = []
        self._kit = world.kit
        self._caller = caller
        self.kinds: dict[str, Callable[[], Awaitable[None]]] = {
            "kill leader": self.kill_leader,
            "kill follower": self.kill_follower,
            "kill metadata leader": self.kill_metadata_leader,
            "pause leader": self.pause_leader,
            "two-way cut": self.cut_two_ways,
            "one-way cut": self.cut_one_way,
            "cut pair": self.cut_pair,
            "cut clients": self.cut_clients,
            "kill and pause": self.kill_and_pause,
            "all killed": self.kill_all,
            "rolling restart": self.rolling_restart,
        }
        if world.nats is not None:
            self.kinds |= {"kill nats": self.kill_nats, "pause nats": self.pause_nats, "cut nats": self.cut_nats}
        if world.disks:
            self.kinds |= {"full disk": self.fill_disk, "nearly full disk": self.nearly_fill_disk}

    async def run(self, kinds: list[str], *, waits: float = 0.7) -> None:
        """These in turn; after most of them until all is well again, after some not."""
        for kind in kinds:
            await self.kinds[kind]()
            self.world.heal()
            if self.rng.random() < waits and "disk" not in kind:
                await self.world.wait_whole(self.load.client, deadline_s=WHOLE_S)
            else:
                await asyncio.sleep(self.rng.random() * 2)
            if self.load.problems:
                return

    def _struck(self, kind: str, words: str) -> None:
        self.done.append(Struck(f"{kind}: {words}", kind, time.monotonic_ns()))

    async def _hold(self) -> None:
        await asyncio.sleep(self.rng.choice(HOLDS_S))

    # --- whom ------------------------------------------------------------------------------------------------

    async def _leader(self) -> tuple[str, str]:
        """A channel and its leader."""
        channel = self.rng.choice(list(self.load.channels))
        found: str | None = None

        async def is_led() -> bool:
            nonlocal found
            try:
                found = (await self.load.client.describe(channel, timeout_ms=5_000))["leader"]
            except LogError as error:
                if not error.retriable:
                    raise
            return found is not None

        await self._kit.wait(is_led, deadline_s=WHOLE_S, what=f"a leader of {channel}")
        assert found is not None
        return channel, found

    async def _metadata_leader(self) -> str:
        return await self._kit.wait_leader(self._caller)

    def _others(self, *names: str) -> list[str]:
        return [name for name in self.world.names if name not in names]

    # --- processes -------------------------------------------------------------------------------------------

    async def _kill(self, kind: str, name: str, why: str) -> None:
        self._struck(kind, f"{name} ({why})")
        self._kit.kill(name)
        await self._hold()
        self._kit.start(name)

    async def kill_leader(self) -> None:
        channel, leader = await self._leader()
        await self._kill("kill leader", leader, channel)

    async def kill_follower(self) -> None:
        channel, leader = await self._leader()
        await self._kill("kill follower", self.rng.choice(self._others(leader)), channel)

    async def kill_metadata_leader(self) -> None:
        await self._kill("kill metadata leader", await self._metadata_leader(), "metadata")

    async def pause_leader(self) -> None:
        channel, leader = await self._leader()
        self._struck("pause leader", f"{leader} ({channel})")
        self._kit.pause(leader)
        await self._hold()
        self._kit.resume(leader)

    async def kill_and_pause(self) -> None:
        """The mix of N7567: one crashes while another one is frozen."""
        channel, leader = await self._leader()
        other = self.rng.choice(self._others(leader))
        self._struck("kill and pause", f"kill {leader}, pause {other} ({channel})")
        self._kit.pause(other)
        self._kit.kill(leader)
        await self._hold()
        self._kit.start(leader)
        await asyncio.sleep(self.rng.random())
        self._kit.resume(other)

    async def kill_all(self) -> None:
        self._struck("all killed", "and restarted")
        self._kit.kill_all()
        for name in self.rng.sample(self.world.names, len(self.world.names)):
            self._kit.start(name)
            await asyncio.sleep(self.rng.random() * 0.5)

    async def rolling_restart(self) -> None:
        for name in self.rng.sample(self.world.names, len(self.world.names)):
            await self.world.wait_whole(self.load.client, deadline_s=WHOLE_S)
            self._struck("rolling restart", name)
            said = len(self._kit.said(name))
            # A process that has said nothing yet is still loading: it has nothing open, and ends like any other.
            is_loading = said == self._kit.nodes[name].said_before
            self._kit.terminate(name)
            code = await asyncio.to_thread(self._kit.wait_ended, name, deadline_s=STOP_S)
            if code != 0 and not (is_loading and code == -signal.SIGTERM):
                self.load.problems.append(f"{name} stopped with {code}: {self._kit.said(name)[-2_000:]}")
            if "registered incarnation" in self._kit.said(name)[said:]:
                self.load.problems.append(f"{name} was to stop and registered again, so others counted on it")
            self._kit.start(name)

    # --- the network -----------------------------------------------------------------------------------------

    async def cut_two_ways(self) -> None:
        """A leader, or anybody, is alone: connections break, or just say nothing any more."""
        channel, leader = await self._leader()
        victim = self.rng.choice((leader, self.rng.choice(self.world.names)))
        others = self._others(victim)
        if self.world.nats is not None and self.rng.random() < 0.5:
            others.append(NATS)
        if self.rng.random() < 0.5:
            self._struck("two-way cut", f"{victim} reset ({channel} led by {leader})")
            self.world.proxy.cut([victim], others)
        else:
            self._struck("two-way cut", f"{victim} stalled ({channel} led by {leader})")
            self.world.proxy.stall(*((victim, one) for one in others), *((one, victim) for one in others))
        await self._hold()
        self.world.proxy.heal()

    async def cut_one_way(self) -> None:
        """A leader hears nothing, or is not heard."""
        channel, leader = await self._leader()
        others = self._others(leader)
        if self.rng.random() < 0.5:
            self._struck("one-way cut", f"{leader} hears nothing ({channel})")
            self.world.proxy.stall(*((one, leader) for one in others))
        else:
            self._struck("one-way cut", f"{leader} is not heard ({channel})")
            self.world.proxy.stall(*((leader, one) for one in others))
        await self._hold()
        self.world.proxy.heal()

    async def cut_pair(self) -> None:
        """Two nodes do not reach each other, and all others reach both; one way or both ways."""
        one, other = self.rng.sample(self.world.names, 2)
        is_both = self.rng.random() < 0.5
        self._struck("cut pair", f"{one} to {other}{' and back' if is_both else ''}")
        self.world.proxy.stall((one, other), *([(other, one)] if is_both else []))
        await self._hold()
        self.world.proxy.heal()

    async def cut_clients(self) -> None:
        """Clients do not reach the leader of a channel, and everybody else does (A4 row 16)."""
        channel, leader = await self._leader()
        self._struck("cut clients", f"{leader} ({channel})")
        self.world.proxy.stall((NOBODY, leader), (leader, NOBODY))
        await self._hold()
        self.world.proxy.heal()

    # --- the NATS server -------------------------------------------------------------------------------------

    async def kill_nats(self) -> None:
        assert self.world.nats is not None
        self._struck("kill nats", "and restarted")
        self.world.nats.kill()
        await self._hold()
        self.world.nats.start()

    async def pause_nats(self) -> None:
        assert self.world.nats is not None
        self._struck("pause nats", "the server")
        self.world.nats.pause()
        await self._hold()
        self.world.nats.resume()

    async def cut_nats(self) -> None:
        """A node does not reach the server, and everybody else does; it knows or not."""
        channel, leader = await self._leader()
        victim = self.rng.choice((leader, self.rng.choice(self.world.names)))
        if self.rng.random() < 0.5:
            self._struck("cut nats", f"{victim} reset ({channel} led by {leader})")
            self.world.proxy.cut([victim], [NATS])
        else:
            self._struck("cut nats", f"{victim} stalled ({channel} led by {leader})")
            self.world.proxy.stall((victim, NATS), (NATS, victim))
        await self._hold()
        self.world.proxy.heal()

    # --- disks -----------------------------------------------------------------------------------------------

    async def _victim(self, kind: str) -> str:
        """The leader of some channel, or a follower."""
        channel, leader = await self._leader()
        victim = self.rng.choice((leader, self.rng.choice(self._others(leader))))
        self._struck(kind, f"{victim} ({channel} led by {leader})")
        return victim

    async def fill_disk(self) -> None:
        """Not a byte is left: the node may stop, and is started again when there is space."""
        victim = await self._victim("full disk")
        self._kit.expect_end(victim)
        self.world.fill(victim)
        await asyncio.sleep(self.rng.choice((2.0, 4.0)))
        self.world.free(victim)
        if not self._kit.nodes[victim].is_running:
            self._kit.start(victim)

    async def nearly_fill_disk(self) -> None:
        """A node comes up and finds only the reserve: channels take nothing there, and the node keeps running (S4)."""
        victim = await self._victim("nearly full disk")
        self._kit.kill(victim)
        self.world.fill(victim, leave_bytes=NEARLY_BYTES)
        said = len(self._kit.said(victim))
        self._kit.start(victim)
        end = time.monotonic() + patient(REFUSED_S)
        while REFUSED not in self._kit.said(victim)[said:] and time.monotonic() < end:
            self._kit.require_alive()
            await asyncio.sleep(POLL_S)
        self.world.free(victim)
