"""A real node gives back what thousands of idle connections took, to any of its listeners.

`IDLE_CONNECTIONS` says how many of each kind. The figures are printed (`pytest -s`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from benchmarks.cluster.idle_bench import rss_mb
from benchmarks.kits.cluster_kit import HOST, OPERATOR, ClusterKit

from tests.cluster.idle_crowd import IdleCrowd, raise_open_files
from tests.patience import patient
from tests.ports import free_port

CONNECTIONS = int(os.environ.get("IDLE_CONNECTIONS", "5000"))
KEPT_MB_MAX = 100
"""More than before the first of them came."""
OPEN_MB_MAX = 500
"""While all of one kind are open."""
GIVEN_BACK_S = 30.0
POLL_S = 0.5
NODE = "n1"

Come = Callable[[IdleCrowd], Awaitable[int]]


def silent(listener: str) -> Come:
    return lambda crowd: asyncio.to_thread(crowd.silent, listener, CONNECTIONS)


def greeted(listener: str) -> Come:
    return lambda crowd: asyncio.to_thread(crowd.greeted, listener, CONNECTIONS)


KINDS: dict[str, tuple[Come, int]] = {
    "connected to HTTPS, silent": (silent("http"), CONNECTIONS),
    "HTTPS kept alive": (greeted("http"), min(CONNECTIONS, 256)),
    "connected to Liftbridge, silent": (silent("liftbridge"), CONNECTIONS),
    "Liftbridge with TLS": (greeted("liftbridge"), min(CONNECTIONS, 4_096)),
    "connected to the link, silent": (silent("link"), CONNECTIONS),
    "links": (lambda crowd: crowd.links(CONNECTIONS), min(CONNECTIONS, 200)),
}
"""How they come, and how many of them the node's limits leave at least."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_of_thousands_of_idle_connections_is_given_back(tmp_path: Path) -> None:
    raise_open_files(CONNECTIONS)
    with ClusterKit(tmp_path, nodes=1) as kit:
        asyncio.run(_come_and_go(kit))


async def _come_and_go(kit: ClusterKit) -> None:
    crowd = await _started(kit)
    before_mb = rss_mb(kit, NODE)
    for kind, (come, least) in KINDS.items():
        came = await come(crowd)
        open_mb = rss_mb(kit, NODE)
        await crowd.leave_links()
        crowd.leave()
        kept_mb = await _wait_given_back(kit, kind, before_mb)
        print(f"{kind}: {came} came, {open_mb:.0f} MB open, {kept_mb:.0f} MB kept of {before_mb:.0f}", flush=True)
        assert came >= least
        assert open_mb < OPEN_MB_MAX


async def _wait_given_back(kit: ClusterKit, kind: str, before_mb: float) -> float:
    """Megabytes more than before, as soon as they are few enough."""
    give_up = time.monotonic() + patient(GIVEN_BACK_S)
    while True:
        kit.require_alive()
        kept_mb = rss_mb(kit, NODE) - before_mb
        if kept_mb <= KEPT_MB_MAX:
            return kept_mb
        assert time.monotonic() < give_up, f"{kind}: {kept_mb:.0f} MB are kept {GIVEN_BACK_S:.0f} s after all had left"
        await asyncio.sleep(POLL_S)


async def _started(kit: ClusterKit) -> IdleCrowd:
    http = free_port()
    liftbridge = free_port()
    place = kit.folder / "certificates"
    settings = {
        "http-listen": f"{HOST}:{http}",
        "http-tls-cert": str(place / f"{NODE}.crt"),
        "http-tls-key": str(place / f"{NODE}.key"),
        "liftbridge-listen": f"{HOST}:{liftbridge}",
        "liftbridge-link-cert": str(place / f"{OPERATOR}.crt"),
        "liftbridge-link-key": str(place / f"{OPERATOR}.key"),
    }
    kit.start(NODE, *(part for flag, value in settings.items() for part in (f"-{flag}", value)))
    async with kit.caller() as caller:
        await kit.wait_formed(caller)

    async def is_up() -> bool:
        return "liftbridge gateway up" in kit.said(NODE)

    await kit.wait(is_up, deadline_s=GIVEN_BACK_S, what="the listener for Liftbridge's clients")
    return IdleCrowd(kit, NODE, http=http, liftbridge=liftbridge)
