"""Three nodes as real processes, a boat that dials one that does not lead, and SIGKILL for the one that does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import wait_until
from tests.ports import free_port
from tests.uplink.parties import HOST, BoatParty, run
from tests.uplink.processes import Process, frames_of, kill
from tidelog.edge.uplink.client import UplinkTarget
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.recovery import open_store

NAME = "boat-001"
NODES = ("n1", "n2", "n3")
UP_S = 90.0


class NodeProcesses:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = [free_port() for _ in range(6)]
        self.links = dict(zip(NODES, ports[:3], strict=True))
        self.uplinks = dict(zip(NODES, ports[3:], strict=True))
        self.running: dict[str, Process] = {}

    def start(self, node: str) -> None:
        peers = ",".join(f"{name}={HOST}:{port}" for name, port in self.links.items())
        arguments = ["-id", node, "-data-dir", str(self.folder / node), "-peers", peers, "-insecure-dev"]
        arguments += ["-grpc-listen", f"{HOST}:{self.uplinks[node]}"]
        with (self.folder / f"{node}.log").open("a") as log:
            command = [sys.executable, "-m", "tidelog.cli", "node", *arguments]
            self.running[node] = subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL, text=True)

    def said(self, node: str) -> str:
        log = self.folder / f"{node}.log"
        return log.read_text() if log.exists() else ""

    def are_up(self) -> bool:
        return all("uplink up" in self.said(node) for node in self.running)

    def leader(self) -> str | None:
        """The node that writes the state file of the boat (KP1)."""
        found = [node for node in self.running if (self.folder / node / NAME / "state.json").exists()]
        return max(found, key=self._cursor, default=None)

    def _cursor(self, node: str) -> int:
        return int(json.loads((self.folder / node / NAME / "state.json").read_text())["cursor"])

    def stop(self) -> None:
        for process in self.running.values():
            kill(process)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodeProcesses]:
    found = NodeProcesses(tmp_path)
    for node in NODES:
        found.start(node)
    yield found
    found.stop()


@pytest.mark.slow
def test_a_leader_that_is_killed_costs_the_boat_nothing(nodes: NodeProcesses, tmp_path: Path) -> None:
    async def scenario() -> list[tuple[int, tuple[int, int, bytes]]]:
        await wait_until(nodes.are_up, f"three nodes; {[nodes.said(node)[-500:] for node in NODES]}", UP_S)
        boat = BoatParty(tmp_path / "boat")
        address = f"{HOST}:{nodes.uplinks['n1']}"
        boat.dial(UplinkTarget(address=address, instance=NAME, insecure_dev=True))
        await boat.sail(20)
        await wait_until(lambda: nodes.leader() is not None, "somebody leads")
        victim = nodes.leader()
        assert victim is not None
        if victim == "n1":  # the boat was given the leader: it dials another one from here on
            await boat.hang_up()
            boat.dial(UplinkTarget(address=f"{HOST}:{nodes.uplinks['n2']}", instance=NAME, insecure_dev=True))
        await boat.sail(20)
        acked = boat.journal.acked
        kill(nodes.running.pop(victim))
        await boat.sail(50)
        await boat.wait_acked(UP_S)
        assert boat.journal.acked >= acked
        held = boat.held()
        await boat.close()
        return held

    held = run(scenario(), 3 * UP_S)
    survivors = list(nodes.running)
    nodes.stop()
    logs = []
    for node in survivors:
        store = open_store(OsDisk(tmp_path / node), now_us=wall_clock_us())
        try:
            found = frames_of(store.log(NAME, now_us=wall_clock_us()).blocks())
            logs.append(sorted((seq, row) for (_, seq), row in found.items()))
        finally:
            store.close(wall_clock_us())
    assert held in logs, "every frame once, unchanged"
    assert all(set(log) <= set(held) for log in logs)
