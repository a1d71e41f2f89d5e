"""A boat that is gone without a word: its cloud, a real process with the real settings, lets go of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.patience import patient
from tests.uplink.parties import Fleet, LplexBoat, dialed, run, send_frames
from tests.uplink.processes import CloudProcess
from tests.uplink.proxy import LinkProxy


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path / "fleet")


def sockets(process: Any) -> int:
    found = 0
    for name in os.listdir(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/{process.pid}/fd/{name}").startswith("socket:")
    return found


@pytest.mark.slow
def test_a_boat_that_vanished_without_a_word_is_noticed_within_30_s(tmp_path: Path, fleet: Fleet) -> None:
    node = (fleet.node.certificate, fleet.node.key)
    cloud = CloudProcess(tmp_path, node=node, boats_authority=fleet.boats.certificate_pem)
    cloud.start()

    async def scenario() -> None:
        with LinkProxy(cloud.port).running() as proxy:
            async with dialed(proxy.port, fleet, fleet.boat("boat-001")) as channel:
                boat = LplexBoat(channel, "boat-001")
                await boat.handshake(0)
                live = boat.live()
                await send_frames(live, range(1, 4))
                before = sockets(cloud.process)
                proxy.swallow()
                began = time.monotonic()
                while sockets(cloud.process) >= before:
                    assert time.monotonic() < began + patient(30), "the cloud still thinks that the boat is there"
                    await asyncio.sleep(0.2)

    try:
        run(scenario(), 60)
    finally:
        cloud.kill()
