"""Real node processes on one machine, for fault tests and benchmarks: real certificates, ports, folders and signals.

    with ClusterKit(folder, nodes=3) as kit:
        kit.start_all()
        async with kit.caller() as caller:
            await kit.wait_formed(caller)

What a caller must keep: use it as a context manager, from one thread. Every wait has a deadline and ends at once, with
the node's last words, when a node that should run has ended by itself.

CT1  Nothing that was started outlives the kit, also when the test fails.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.kits.cluster_load import ClusterCaller
from tidelog.cli.demo.ports import free_port
from tidelog.cluster.node.cluster_client import ClusterClient
from tidelog.codecs.node_codec import STATUS
from tidelog.errors import LogError, WaitTimedOut
from tidelog.pki.authority import Authority
from tidelog.pki.certificates import AuthorityOptions
from tidelog.pki.identity import Kind
from tidelog.transports.link.link import LinkEnd, LinkIdentity, LinkOptions, LinkTls, LinkTlsFiles

HOST: Final = "127.0.0.1"
OPERATOR: Final = "op"
LOAD: Final = "load1"
"""The caller that speaks as a node does, and takes part in nothing."""
FORMED_S: Final = 60.0
STOP_S: Final = 30.0
POLL_S: Final = 0.02
_LAST_WORDS: Final = 2_000
_STATUS_MS: Final = 2_000
_STANDS: Final = frozenset({"leader", "voter"})


def _as_it_says(seconds: float) -> float:
    return seconds


patience: Callable[[float], float] = _as_it_says
"""What a deadline comes to on this machine; tests on a busy one have more of it."""


class NodeEnded(RuntimeError):
    """A node ended by itself; its last words say why."""


@dataclass(slots=True)
class KitNode:
    """One node: where it is, and its process while there is one."""

    name: str
    port: int
    folder: Path
    data: Path
    process: subprocess.Popen[bytes] | None = None
    is_paused: bool = False
    may_end: bool = False
    """It was asked to end, or is expected to."""
    starts: int = 0
    command: tuple[str, ...] = ()
    """The command line of the last start."""
    said_before: int = 0
    """Characters of its log before the last start."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that its process has beside those of ours."""

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class ClusterKit:
    def __init__(
        self, folder: Path, *, nodes: int = 3, settings: Sequence[str] = (), rng: random.Random | None = None
    ) -> None:
        """`settings` are given to every node, as on the command line."""
        self.folder = folder
        self.nodes: dict[str, KitNode] = {}
        self._settings = tuple(settings)
        self._rng = rng or random.Random()
        self.authority = Authority.create(
            folder / "authority", AuthorityOptions(kind="node"), now_us=time.time_ns() // 1000
        )
        self.issue(OPERATOR, kind="operator")
        self.issue(LOAD, kind="node")
        for number in range(1, nodes + 1):
            self.add(f"n{number}")

    def __enter__(self) -> Self:
        atexit.register(self.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        atexit.unregister(self.close)

    def close(self) -> None:
        """Nothing runs afterwards (CT1)."""
        for node in self.nodes.values():
            if node.process is not None:
                self.kill(node.name)

    # --- who there is ------------------------------------------------------------------------------

    def issue(self, name: str, *, kind: Kind) -> None:
        """A certificate and its key as files, beside the authority's."""
        names = (HOST,) if kind == "node" else ()
        issued = self.authority.issue(name, kind=kind, server_names=names, now_us=time.time_ns() // 1000)
        assert issued.key_pem is not None
        place = self.folder / "certificates"
        place.mkdir(parents=True, exist_ok=True)
        (place / "ca.crt").write_bytes(self.authority.certificate_pem)
        (place / f"{name}.crt").write_bytes(issued.certificate_pem)
        (place / f"{name}.key").touch(mode=0o600)
        (place / f"{name}.key").write_bytes(issued.key_pem)

    def add(self, name: str, *, data: Path | None = None) -> KitNode:
        """Another node, or one that was dropped: a certificate, a port and a folder. It is not started."""
        if not (self.folder / "certificates" / f"{name}.key").exists():
            self.issue(name, kind="node")
        taken = {node.port for node in self.nodes.values()}
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        node = KitNode(name, free_port(self._rng, taken=taken), folder, data or folder / "data")
        self.nodes[name] = node
        return node

    def drop(self, name: str) -> None:
        """Kill a node if it runs, and know it no more. Its folder stays."""
        node = self.nodes[name]
        if node.process is not None:
            self.kill(name)
        del self.nodes[name]

    @property
    def names(self) -> list[str]:
        return list(self.nodes)

    @property
    def running(self) -> list[str]:
        """Nodes that run and are not paused."""
        return [node.name for node in self.nodes.values() if node.is_running and not node.is_paused]

    def address(self, name: str) -> str:
        return f"{HOST}:{self.nodes[name].port}"

    def peers(self, **instead: str) -> str:
        """For -peers: every node, at its own address or at another one, such as a proxy's."""
        return ",".join(f"{name}={instead.get(name, self.address(name))}" for name in self.nodes)

    def tls_settings(self, name: str) -> list[str]:
        place = self.folder / "certificates"
        files = {"tls-cert": f"{name}.crt", "tls-key": f"{name}.key", "tls-ca": "ca.crt"}
        return [part for flag, file in files.items() for part in (f"-{flag}", str(place / file))]

    # --- what is done to them ------------------------------------------------------------------------

    def command(self, name: str, *settings: str, peers: str | None = None) -> list[str]:
        node = self.nodes[name]
        command = [sys.executable, "-m", "tidelog.cli", "node", "-id", name, "-peers", peers or self.peers()]
        command += ["-listen", self.address(name), "-data-dir", str(node.data), *self.tls_settings(name)]
        return [*command, *self._settings, *settings]

    def start(self, name: str, *settings: str, peers: str | None = None) -> None:
        """Start a node's process; it may take a moment until it serves. Without settings, as it was started last."""
        node = self.nodes[name]
        assert not node.is_running, f"{name} runs already"
        if settings or peers or not node.starts:
            node.command = tuple(self.command(name, *settings, peers=peers))
        node.starts += 1
        node.said_before = len(self.said(name))
        node.is_paused = node.may_end = False
        with (node.folder / "log").open("ab") as log:
            node.process = subprocess.Popen(
                node.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | node.environment
            )

    def start_all(self) -> None:
        for name in self.nodes:
            if not self.nodes[name].is_running:
                self.start(name)

    def kill(self, name: str) -> None:
        """As a power cut of this process: SIGKILL, also while it is paused."""
        process = self._process(name)
        self.expect_end(name)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        self.nodes[name].is_paused = False

    def kill_all(self) -> None:
        """All at once: no node sees another one go first and has time to act on it."""
        started = [node for node in self.nodes.values() if node.process is not None]
        for node in started:
            self.expect_end(node.name)
            with contextlib.suppress(ProcessLookupError):
                self._process(node.name).kill()
        for node in started:
            self.kill(node.name)

    def pause(self, name: str) -> None:
        """Frozen, as by a full swap or a moved virtual machine; nobody is told."""
        self._process(name).send_signal(signal.SIGSTOP)
        self.nodes[name].is_paused = True

    def resume(self, name: str) -> None:
        self._process(name).send_signal(signal.SIGCONT)
        self.nodes[name].is_paused = False

    def terminate(self, name: str) -> None:
        """Ask for a clean stop, and do not wait for it."""
        self.expect_end(name)
        self._process(name).send_signal(signal.SIGTERM)

    def wait_ended(self, name: str, *, deadline_s: float = STOP_S) -> int:
        """The exit code of a node that is to end by itself."""
        try:
            return self._process(name).wait(patience(deadline_s))
        except subprocess.TimeoutExpired:
            raise WaitTimedOut(waiting_for=f"the end of {name}", deadline_s=deadline_s) from None

    def expect_end(self, name: str) -> None:
        """From now on it is no failure if this process of the node ends."""
        self.nodes[name].may_end = True

    def wipe(self, name: str) -> None:
        """Its disk is lost; only while it does not run."""
        assert not self.nodes[name].is_running
        shutil.rmtree(self.nodes[name].data)

    def said(self, name: str) -> str:
        """All that every process of this node has logged."""
        log = self.nodes[name].folder / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    def last_words(self) -> str:
        """The end of every node's log, for a failure's message."""
        return "\n".join(f"--- {name}\n{self.said(name)[-_LAST_WORDS:]}" for name in self.nodes)

    def require_alive(self) -> None:
        """Whatever was started and not stopped by the kit is still there."""
        for node in self.nodes.values():
            if node.process is not None and not node.may_end and not node.is_running:
                code = node.process.returncode
                raise NodeEnded(f"{node.name} ended by itself with {code}: {self.said(node.name)[-_LAST_WORDS:]}")

    def _process(self, name: str) -> subprocess.Popen[bytes]:
        process = self.nodes[name].process
        assert process is not None, f"{name} was never started"
        return process

    # --- asking them -----------------------------------------------------------------------------------

    def tls(self, name: str) -> LinkTls:
        place = self.folder / "certificates"
        return LinkTls(
            LinkTlsFiles(certificate=place / f"{name}.crt", key=place / f"{name}.key", authority=place / "ca.crt")
        )

    def caller(self, name: str = LOAD, *, kind: Kind = "node") -> ClusterCaller:
        """A way to ask the nodes, as another node would; close it."""
        end = LinkEnd(
            identity=lambda: LinkIdentity(node=name, cluster=b""),
            tls=self.tls(name),
            kind=kind,
            options=LinkOptions(handshake_timeout_ms=round(patience(1_000))),
        )
        return ClusterCaller({name: self.address(name) for name in self.nodes}, end=end)

    def operator(self, *names: str) -> ClusterClient:
        """A way to command the nodes, trying these in turn; close it."""
        addresses = [self.address(name) for name in names or self.running]
        return ClusterClient(addresses, tls=self.tls(OPERATOR), name=OPERATOR)

    async def status(self, caller: ClusterCaller, name: str) -> dict[str, Any] | None:
        """What a node says of itself; None while it does not answer."""
        try:
            return await caller.ask(name, STATUS, b"", timeout_ms=round(patience(_STATUS_MS)))
        except LogError:
            return None

    async def wait_formed(
        self, caller: ClusterCaller, *names: str, deadline_s: float = FORMED_S, voters: int | None = None
    ) -> str:
        """Until these nodes (all that run) are voters under one leader, hold a session and are level with it.

        Returns the leader. With `voters`, so many of them vote and the others are learners.
        """
        expected = names or tuple(self.running)
        found: str | None = None

        async def is_formed() -> bool:
            nonlocal found
            statuses = {name: await self.status(caller, name) for name in expected}
            found = _leader_of(statuses, voters=len(expected) if voters is None else voters)
            return found is not None

        await self.wait(is_formed, deadline_s=deadline_s, what=f"the cluster of {', '.join(expected)}")
        assert found is not None
        return found

    async def wait_leader(self, caller: ClusterCaller, *, other_than: str = "", deadline_s: float = FORMED_S) -> str:
        """The node that leads, by its own word."""
        found: str | None = None

        async def is_led() -> bool:
            nonlocal found
            for name in self.running:
                status = await self.status(caller, name) if name != other_than else None
                if status is not None and status["standing"] == "leader":
                    found = name
            return found is not None

        await self.wait(is_led, deadline_s=deadline_s, what="a leader")
        assert found is not None
        return found

    async def wait(self, condition: Callable[[], Awaitable[bool]], *, deadline_s: float, what: str) -> None:
        end = time.monotonic() + patience(deadline_s)
        while not await condition():
            self.require_alive()
            if time.monotonic() >= end:
                raise WaitTimedOut(waiting_for=f"{what}\n{self.last_words()}\n", deadline_s=deadline_s)
            await asyncio.sleep(POLL_S)


def _leader_of(statuses: dict[str, dict[str, Any] | None], *, voters: int) -> str | None:
    """The leader of a cluster in which all is well; None if it is not."""
    answered = [status for status in statuses.values() if status is not None]
    leaders = {status["leader"] for status in answered}
    if len(answered) < len(statuses) or len(leaders) != 1 or None in leaders:
        return None
    (leader,) = leaders
    standing = [status["standing"] for status in answered]
    if standing.count("leader") != 1 or sum(stands in _STANDS for stands in standing) != voters:
        return None
    if not all(status["session_valid"] for status in answered):
        return None
    at_leader = statuses.get(str(leader))
    if at_leader is None or sum(member["role"] == "voter" for member in at_leader["members"]) != voters:
        return None
    # A node that follows has at least what its leader had committed when the round began, or the next round decides.
    level = all(status["metadata"]["applied"] >= status["metadata"]["commit"] for status in answered)
    return str(leader) if level else None
