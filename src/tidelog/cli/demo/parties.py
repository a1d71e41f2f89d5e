"""The demo's boats and nodes: real processes over mTLS in one folder, started, killed and asked how they are.

All are `tidelog boat` and `tidelog node` as anybody would start them, with certificates that `tidelog ca` made. They
are asked over HTTP how they are. What they log lies in `NAME.log`. Every wait here has a deadline, and ends at once
when a process that should run has ended by itself.

DP1  Nothing that was started outlives `close`.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tidelog.cli.demo.link import HOST, DemoLink
from tidelog.cli.demo.ports import free_port
from tidelog.errors import WaitTimedOut

BOATS: Final = ("boat-001", "boat-002")
NODES: Final = ("n1", "n2", "n3")
OPERATOR: Final = "anna"
START_S_MAX: Final = 90.0
_STOP_S_MAX: Final = 30.0
_ASK_S_MAX: Final = 5.0
_POLL_S: Final = 0.05
_LAST_LINES: Final = 4


class DemoPartyFailed(RuntimeError):
    """A process of the demo did what it must not: it ended by itself, or with a bad exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """Where a node listens: for nodes and clients, for boats, and for who looks."""

    link: int
    grpc: int
    http: int


class Parties:
    """Three nodes, the boats, and the link between them. `close` ends whatever still runs (DP1).

    A boat dials `entry`, behind which any node answers, and is then told where the leader of its channel is. So every
    node is behind a link of its own too, and is known to boats by that address alone: there is no way around a cut.
    """

    def __init__(self, folder: Path, *, boats: Sequence[str] = BOATS) -> None:
        self.folder = folder
        self.boats = tuple(boats)
        taken: set[int] = set()
        self.nodes = {name: _ports(taken) for name in NODES}
        self.entry = DemoLink([ports.grpc for ports in self.nodes.values()])
        self._fronts = {name: DemoLink([ports.grpc]) for name, ports in self.nodes.items()}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._boat_ports: dict[str, int] = {}
        self._asked_last = NODES[0]

    @property
    def running(self) -> list[str]:
        return list(self._processes)

    def data(self, node: str) -> Path:
        return self.folder / f"{node}-data"

    def journal(self, boat: str) -> Path:
        return self.folder / f"{boat}-journal"

    def certificate(self, name: str, file: str) -> str:
        return str(self.folder / "certificates" / name / file)

    # --- certificates ----------------------------------------------------------------------------

    def make_certificates(self) -> None:
        """What an operator types: `tidelog ca init`, then `tidelog ca issue` for each boat, each node and herself."""
        from tidelog.cli.main import run

        ca = str(self.folder / "ca")
        issued: dict[str, list[str]] = {boat: [] for boat in self.boats}
        issued |= {node: ["--node", "--server-name", HOST] for node in self.nodes}
        issued[OPERATOR] = ["--operator"]
        calls = [["init", ca]]
        calls += [
            ["issue", name, *kind, "--ca", ca, "--out", str(self.folder / "certificates" / name)]
            for name, kind in issued.items()
        ]
        for arguments in calls:
            with contextlib.redirect_stdout(io.StringIO()):
                code = run(["ca", *arguments])
            if code != 0:
                raise DemoPartyFailed(f"`tidelog ca {' '.join(arguments)}` ended with exit code {code}")

    # --- starting and ending ---------------------------------------------------------------------

    def start_nodes(self, *names: str) -> None:
        """Start them all, then wait until each takes part and serves boats."""
        for name in names:
            self._launch(name, "node", self._node_arguments(name))
        for name in names:
            ready = partial(self._is_ready, name)
            self.wait(ready, what=f"the start of node {name}", deadline_s=START_S_MAX)

    def _is_ready(self, node: str) -> bool:
        return ask(self.nodes[node].http, "/readyz") is not None

    def _node_arguments(self, name: str) -> list[str]:
        ports, revoked = self.nodes[name], self.folder / "ca"
        peers = ",".join(f"{node}={HOST}:{its.link}" for node, its in self.nodes.items())
        arguments = ["-id", name, "-peers", peers, "-listen", f"{HOST}:{ports.link}", "-host", name]
        arguments += ["-data-dir", str(self.data(name)), "-tls-ca", self.certificate(name, "ca.crt")]
        arguments += ["-tls-cert", self.certificate(name, f"{name}.crt")]
        arguments += ["-tls-key", self.certificate(name, f"{name}.key")]
        arguments += ["-tls-revocations", str(revoked / "nodes" / "revoked.txt")]
        arguments += ["-grpc-listen", f"{HOST}:{ports.grpc}"]
        arguments += ["-grpc-advertise", f"{HOST}:{self._fronts[name].port}"]
        arguments += ["-grpc-tls-client-ca", self.certificate(name, "client-ca.crt")]
        arguments += ["-grpc-tls-revocations", str(revoked / "boats" / "revoked.txt")]
        return [*arguments, "-http-listen", f"{HOST}:{ports.http}", "-http-anonymous"]

    def start_boats(self, settings: dict[str, list[str]]) -> None:
        """Start these boats with settings of their own, then wait until each can be asked."""
        said = {boat: len(self.said(boat)) for boat in settings}
        for boat, own in settings.items():
            self._launch(boat, "boat", [*self._boat_arguments(boat), *own])
        for boat, began in said.items():
            self._boat_ports[boat] = int(self._said_at_start(boat, r"http up port=(\d+)", began))

    def _boat_arguments(self, boat: str) -> list[str]:
        arguments = ["-journal-dir", str(self.journal(boat)), "-replication-instance-id", boat]
        arguments += ["-replication-target", f"{HOST}:{self.entry.port}"]
        arguments += ["-replication-tls-ca", self.certificate(boat, "ca.crt")]
        arguments += ["-replication-tls-cert", self.certificate(boat, f"{boat}.crt")]
        arguments += ["-replication-tls-key", self.certificate(boat, f"{boat}.key")]
        return [*arguments, "-http-listen", f"{HOST}:0", "-http-anonymous"]

    def _launch(self, name: str, command: str, arguments: list[str]) -> None:
        # A real boat or node may be set up on this machine: its settings are not for the demo.
        settings = self.folder / "no-settings.conf"
        settings.touch()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TIDELOG_")}
        line = [sys.executable, "-m", "tidelog.cli", command, *arguments, "-config", str(settings)]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=log, env=environment)

    def _said_at_start(self, name: str, pattern: str, began: int) -> str:
        found: list[str] = []

        def is_up() -> bool:
            found[:] = re.findall(pattern, self.said(name)[began:])
            return bool(found)

        self.wait(is_up, what=f"the start of {name}", deadline_s=START_S_MAX)
        return found[0]

    def kill(self, name: str) -> None:
        """kill -9: it is told nothing, and can write nothing more."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self, *names: str) -> None:
        """Ask all of them for a clean stop and wait for it."""
        for name in names:
            self._processes[name].send_signal(signal.SIGTERM)
        for name in names:
            self.wait_ended(name, deadline_s=_STOP_S_MAX)

    def wait_ended(self, name: str, *, deadline_s: float, each: Callable[[], object] = lambda: None) -> None:
        """Wait until a process ends by itself, as it should, with exit code 0."""
        process = self._processes[name]
        end = time.monotonic() + deadline_s
        while process.poll() is None:
            if time.monotonic() > end:
                raise WaitTimedOut(waiting_for=f"the end of {name}", deadline_s=deadline_s)
            each()
            time.sleep(_POLL_S)
        del self._processes[name]
        if process.returncode != 0:
            raise DemoPartyFailed(f"{name} ended with exit code {process.returncode}: {self._last_words(name)}")

    def close(self) -> None:
        for name in list(self._processes):
            self.kill(name)
        for link in self._links:
            link.close()

    @property
    def _links(self) -> list[DemoLink]:
        return [self.entry, *self._fronts.values()]

    def cut_links(self) -> None:
        """No boat reaches any node."""
        for link in self._links:
            link.cut()

    def restore_links(self) -> None:
        for link in self._links:
            link.restore()

    # --- looking ---------------------------------------------------------------------------------

    def said(self, name: str) -> str:
        """All that a party of this name has logged in this demo."""
        log = self.folder / f"{name}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def ask_boat(self, boat: str) -> dict[str, Any] | None:
        """Its replication status; None when it is down."""
        return ask(self._boat_ports[boat], "/replication/status") if boat in self._processes else None

    def ask_nodes(self, path: str) -> dict[str, Any] | None:
        """The answer of some node, whichever gives one first; None while none does."""
        others = [node for node in self.nodes if node != self._asked_last]
        for node in [self._asked_last, *others]:
            if node in self._processes and (answer := ask(self.nodes[node].http, path)) is not None:
                self._asked_last = node
                return answer
        return None

    def channel(self, boat: str) -> dict[str, Any]:
        """What the catalog says of a boat's channel: `leader`, `isr` and more; empty while no node answers."""
        return self.ask_nodes(f"/channels/{boat}") or {}

    def wait(self, condition: Callable[[], bool], *, what: str, deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            for name, process in self._processes.items():
                # A boat whose voyage is over may end well at any moment.
                if process.poll() not in (None, 0):
                    raise DemoPartyFailed(f"{name} ended by itself: {self._last_words(name)}")
            if time.monotonic() > end:
                raise WaitTimedOut(waiting_for=what, deadline_s=deadline_s)
            time.sleep(_POLL_S)

    def _last_words(self, name: str) -> str:
        return " / ".join(self.said(name).splitlines()[-_LAST_LINES:]) or "it said nothing"


def _ports(taken: set[int]) -> NodePorts:
    found = []
    for _ in range(3):
        found.append(free_port(random.SystemRandom(), taken=taken))
        taken.add(found[-1])
    return NodePorts(link=found[0], grpc=found[1], http=found[2])


def ask(port: int, path: str) -> dict[str, Any] | None:
    """What a process of the demo answers over HTTP; None unless it answers well."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_ASK_S_MAX)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if answer.status != http.client.OK:
        return None
    found: dict[str, Any] = json.loads(body)
    return found
