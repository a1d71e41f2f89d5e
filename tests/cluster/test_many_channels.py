"""Three real nodes with very many channels come to rest by themselves after all of them were killed (RRE3).

`MANY_CHANNELS` says how many; 20,000 take minutes. What it took is printed (`pytest -s`).
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cluster.idle_bench import rss_mb
from benchmarks.kits.channel_kit import ask, create_channels, dial_node
from benchmarks.kits.cluster_kit import ClusterKit

from tests.patience import patient
from tidelog.codecs.client_codec import DESCRIBE
from tidelog.errors import LogError

CHANNELS = int(os.environ.get("MANY_CHANNELS", "20000"))
PAGE = 500
PAGE_S = 20.0
"""A page of a description that takes longer has timed out at most clients; on an idle machine it is far less."""
SECONDS_PER_CHANNEL = 0.06
POLL_S = 1.0
REST_S = 20.0
"""How long the nodes are watched after everything was whole."""


class Watcher:
    """Pages through all channels and counts those that are not whole."""

    def __init__(self, kit: ClusterKit) -> None:
        self.kit = kit
        self.slowest_page_s = 0.0
        self.refused = 0

    async def unwhole(self) -> int | None:
        """Channels without a leader or with a replica that is not in sync; None while nobody says."""
        for name in self.kit.names:
            try:
                return await self._unwhole(name)
            except (LogError, OSError):
                self.refused += 1
        return None

    async def _unwhole(self, name: str) -> int:
        link = await dial_node(self.kit, name)
        try:
            after, seen, count = "", 0, 0
            while True:
                start = time.perf_counter()
                request = {"channels": None, "barrier": False, "after": after, "limit": PAGE}
                page: dict[str, Any] = await ask(link, DESCRIBE, request)
                self.slowest_page_s = max(self.slowest_page_s, time.perf_counter() - start)
                for channel in page["channels"]:
                    seen += 1
                    count += channel["leader"] is None or len(channel["isr"]) < len(channel["replicas"])
                after = page["next"] or ""
                if not after:
                    return count + CHANNELS - seen
        finally:
            await link.close()

    async def wait_whole(self, *, deadline_s: float, what: str) -> float:
        start = time.monotonic()
        while (count := await self.unwhole()) != 0:
            self.kit.require_alive()
            elapsed_s = time.monotonic() - start
            print(f"{what}: {elapsed_s:.0f} s, {count} channels are not whole", flush=True)
            assert elapsed_s < patient(deadline_s), f"{count} channels are not whole after {elapsed_s:.0f} s"
            await asyncio.sleep(POLL_S)
        return time.monotonic() - start

    async def require_rest(self) -> None:
        """Everything stays whole, and no node loses its session: who registers anew has another incarnation."""
        before = await self.incarnations()
        end = time.monotonic() + REST_S
        while time.monotonic() < end:
            await asyncio.sleep(POLL_S)
            assert await self.unwhole() == 0, "it was at rest, and is not any more"
            assert await self.incarnations() == before, "a node lost its session while nothing happened"

    async def incarnations(self) -> dict[str, int]:
        found = {}
        async with self.kit.caller() as caller:
            for name in self.kit.names:
                status = await self.kit.status(caller, name)
                assert status is not None, f"{name} does not answer"
                found[name] = status["incarnation"]
        return found


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_very_many_channels_are_whole_again_after_all_nodes_were_killed(tmp_path: Path) -> None:
    with ClusterKit(tmp_path, nodes=3) as kit:
        kit.start_all()
        asyncio.run(_kill_and_watch(kit))


async def _kill_and_watch(kit: ClusterKit) -> None:
    watcher = Watcher(kit)
    deadline_s = 120 + CHANNELS * SECONDS_PER_CHANNEL
    async with kit.caller() as caller:
        leader = await kit.wait_formed(caller)
    link = await dial_node(kit, leader)
    try:
        start = time.monotonic()
        await create_channels(link, [f"many-{number:06d}" for number in range(CHANNELS)], factor=3)
    finally:
        await link.close()
    created_s = time.monotonic() - start
    whole_s = await watcher.wait_whole(deadline_s=deadline_s, what="created")
    print(f"{CHANNELS} channels: created in {created_s:.0f} s, whole after {whole_s:.0f} s more")
    print("rss MB", {name: round(rss_mb(kit, name)) for name in kit.names}, flush=True)
    await watcher.require_rest()
    kit.kill_all()
    watcher.slowest_page_s = 0.0
    kit.start_all()
    rest_s = await watcher.wait_whole(deadline_s=deadline_s, what="restarted")
    print(f"{CHANNELS} channels: at rest {rest_s:.0f} s after the restart")
    print("rss MB", {name: round(rss_mb(kit, name)) for name in kit.names})
    print(f"slowest page {watcher.slowest_page_s:.2f} s, refused {watcher.refused}", flush=True)
    await watcher.require_rest()
    assert watcher.slowest_page_s < patient(PAGE_S)
