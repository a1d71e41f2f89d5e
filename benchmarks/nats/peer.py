"""Three nats-server processes with JetStream on one machine: the peer of `tidelog bench cluster` and `failover`.

    with NatsPeer(folder) as peer:
        peer.start_all()
        peer.wait_formed()
        await peer.create_stream("S")
        leader = peer.wait_stream("S")
        peer.kill(leader)

What they promise is what we promise, or the comparison would not be one: three copies in files and
`sync_interval: always`, so that an ack means synced on a majority.

What a caller must keep: use it as a context manager. The blocking methods (all but those of streams) are for one
thread at a time; under asyncio call the waits with `asyncio.to_thread`.

NP1  Nothing that was started outlives this process, however it ends: the servers are one process group whose first
     member reads a pipe of ours and kills the group when the pipe ends.
NP2  Every wait has a deadline and ends at once, with the last words, when a server ended by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.kits.cluster_kit import HOST
from benchmarks.nats.client import NatsClient
from tidelog.cli.demo.ports import free_port
from tidelog.errors import InvalidConfig, WaitTimedOut

NODES: Final = 3
FORMED_S: Final = 60.0
API_S: Final = 20.0
_POLL_S: Final = 0.05
_MONITOR_S: Final = 1.0
_LAST_WORDS: Final = 2_000
_CLUSTER: Final = "peer"
_GUARD: Final = "read -r _; kill -KILL 0"


class ServerEnded(RuntimeError):
    """A nats-server ended by itself; its last words say why."""


@dataclass(slots=True)
class PeerNode:
    """One server: where it is, and its process while there is one."""

    name: str
    folder: Path
    port: int
    route_port: int
    monitor_port: int
    process: subprocess.Popen[bytes] | None = None
    is_paused: bool = False

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None


def nats_server_path() -> str:
    """The program, from beside this Python or from the path."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        problem = "there is no nats-server to compare with; install the development dependencies (make setup)"
        raise InvalidConfig(section="bench", problems=[problem])
    return found


def nats_server_version() -> str:
    """Such as 2.15.1."""
    said = subprocess.run([nats_server_path(), "--version"], capture_output=True, check=True, text=True, timeout=10)
    return said.stdout.split()[-1].removeprefix("v")


class NatsPeer:
    def __init__(self, folder: Path, *, nodes: int = NODES, rng: random.Random | None = None) -> None:
        self.folder = folder
        self._program = nats_server_path()
        rng = rng or random.Random()
        ports: list[int] = []
        for _ in range(3 * nodes):
            ports.append(free_port(rng, taken=set(ports)))
        self.nodes = {
            name: PeerNode(name, folder / name, port=ports.pop(), route_port=ports.pop(), monitor_port=ports.pop())
            for name in [f"nats{number}" for number in range(1, nodes + 1)]
        }
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # The guard's group is not the terminal's: an interrupt there is for us alone, and we clean up.
        self._guard = subprocess.Popen(["/bin/sh", "-c", _GUARD], stdin=subprocess.PIPE, process_group=0)
        atexit.register(self.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        atexit.unregister(self.close)

    def close(self) -> None:
        """Nothing runs afterwards (NP1). The files stay."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        assert guard.stdin is not None
        # Not yet waited for, so its number is nobody else's.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(guard.pid, signal.SIGKILL)
        guard.stdin.close()
        guard.wait()
        for node in self.nodes.values():
            if node.process is not None:
                node.process.wait()

    # --- what is done to them --------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a server's process, with the files it had; it may take a moment until it serves."""
        node = self.nodes[name]
        assert self._guard is not None, "use it as a context manager"
        assert not node.is_running, f"{name} runs already"
        node.folder.mkdir(parents=True, exist_ok=True)
        file = node.folder / "nats.conf"
        file.write_text(self._config(node))
        node.is_paused = False
        with (node.folder / "log").open("ab") as log:
            node.process = subprocess.Popen(
                [self._program, "-c", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=self._guard.pid,
            )

    def start_all(self) -> None:
        for node in self.nodes.values():
            if not node.is_running:
                self.start(node.name)

    def kill(self, name: str) -> None:
        """SIGKILL, also while it is paused."""
        process = self._process(name)
        process.kill()
        process.wait()
        self.nodes[name].process = None
        self.nodes[name].is_paused = False

    def pause(self, name: str) -> None:
        """Frozen; returns once it is."""
        process = self._process(name)
        process.send_signal(signal.SIGSTOP)
        # Its threads run on for a moment, in which it could still acknowledge. No need of a deadline: it cannot refuse.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.nodes[name].is_paused = True

    def resume(self, name: str) -> None:
        self._process(name).send_signal(signal.SIGCONT)
        self.nodes[name].is_paused = False

    @property
    def running(self) -> list[str]:
        """Servers that run and are not paused."""
        return [node.name for node in self.nodes.values() if node.is_running and not node.is_paused]

    def last_words(self) -> str:
        """The end of every server's log, for a failure's message."""
        return "\n".join(f"--- {node.name}\n{_end_of(node.folder / 'log')}" for node in self.nodes.values())

    def require_alive(self) -> None:
        """Whatever was started and not killed is still there."""
        for node in self.nodes.values():
            if node.process is not None and node.process.poll() is not None:
                code = node.process.returncode
                raise ServerEnded(f"{node.name} ended by itself with {code}: {_end_of(node.folder / 'log')}")

    def _process(self, name: str) -> subprocess.Popen[bytes]:
        process = self.nodes[name].process
        assert process is not None, f"{name} does not run"
        return process

    def _config(self, node: PeerNode) -> str:
        routes = ", ".join(json.dumps(f"nats://{HOST}:{other.route_port}") for other in self.nodes.values())
        store = json.dumps(str(node.folder / "store"))
        return (
            f"server_name: {node.name}\n"
            f"listen: {json.dumps(f'{HOST}:{node.port}')}\n"
            f"http: {json.dumps(f'{HOST}:{node.monitor_port}')}\n"
            f"jetstream {{ store_dir: {store}, sync_interval: always }}\n"
            f"cluster {{ name: {_CLUSTER}, listen: {json.dumps(f'{HOST}:{node.route_port}')}, routes: [{routes}] }}\n"
        )

    # --- asking them -----------------------------------------------------------------------------------

    def monitor(self, name: str, path: str) -> dict[str, Any] | None:
        """What a server's monitoring page says; None while it does not answer."""
        connection = http.client.HTTPConnection(HOST, self.nodes[name].monitor_port, timeout=_MONITOR_S)
        try:
            connection.request("GET", path)
            found: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return found

    def meta_leader(self) -> str | None:
        """Who leads the cluster's own group, once all that run agree and have caught up; else None."""
        answers = [self.monitor(name, "/jsz") for name in self.running]
        groups = [answer.get("meta_cluster") or {} for answer in answers if answer is not None]
        leaders = {group.get("leader") for group in groups}
        if len(groups) < len(self.nodes) or len(leaders) != 1:
            return None
        (leader,) = leaders
        told = [group["replicas"] for group in groups if group.get("replicas")]
        level = any(_are_current(replicas, len(self.nodes)) for replicas in told)
        return leader if leader and level else None

    def stream_leader(self, stream: str, *, whole: bool = False) -> str | None:
        """The server that leads this stream by the word of all that run; None while they do not agree.

        One that was paused still calls itself the leader for a moment. With `whole`, only once every server of the
        cluster runs and every copy has caught up.
        """
        groups = {name: self._stream_group(name, stream) for name in self.running}
        leaders = {group.get("leader") for group in groups.values()}
        leader: str | None = next(iter(leaders)) if len(leaders) == 1 else None
        if leader is None or leader not in groups:
            return None
        is_level = _are_current(groups[leader].get("replicas"), len(self.nodes))
        return leader if is_level or not whole else None

    def _stream_group(self, name: str, stream: str) -> dict[str, Any]:
        answer = self.monitor(name, "/jsz?streams=1") or {}
        for account in answer.get("account_details") or []:
            for detail in account.get("stream_detail") or []:
                if detail["name"] == stream:
                    group: dict[str, Any] = detail.get("cluster") or {}
                    return group
        return {}

    def wait_formed(self, *, deadline_s: float = FORMED_S) -> str:
        """Until all servers are one cluster that can place streams; returns who leads it."""
        return self._wait(self.meta_leader, deadline_s=deadline_s, what="a cluster of nats-server")

    def wait_stream(self, stream: str, *, deadline_s: float = FORMED_S) -> str:
        """Until the stream has a leader and every copy has caught up; returns the leader."""
        return self._wait(
            lambda: self.stream_leader(stream, whole=True), deadline_s=deadline_s, what=f"all copies of stream {stream}"
        )

    def _wait(self, found: Callable[[], str | None], *, deadline_s: float, what: str) -> str:
        end = time.monotonic() + deadline_s
        while (answer := found()) is None:
            self.require_alive()
            if time.monotonic() >= end:
                raise WaitTimedOut(waiting_for=f"{what}\n{self.last_words()}\n", deadline_s=deadline_s)
            time.sleep(_POLL_S)
        return answer

    # --- streams ---------------------------------------------------------------------------------------

    async def connect(self, name: str) -> NatsClient:
        """A connection to this server; close it."""
        return await NatsClient.connect(HOST, self.nodes[name].port)

    async def create_stream(self, stream: str, **more: object) -> None:
        """Copies on all servers, in files; its subject is its name. `more` is put into its configuration."""
        config = {
            "name": stream,
            "subjects": [stream],
            "storage": "file",
            "num_replicas": len(self.nodes),
            "retention": "limits",
            "discard": "old",
            **more,
        }
        await self._ask(f"$JS.API.STREAM.CREATE.{stream}", config)

    async def delete_stream(self, stream: str) -> None:
        await self._ask(f"$JS.API.STREAM.DELETE.{stream}", None)

    async def stream_records(self, stream: str) -> int:
        """How many records its leader holds."""
        return int((await self._ask(f"$JS.API.STREAM.INFO.{stream}", None))["state"]["messages"])

    async def _ask(self, subject: str, question: object) -> dict[str, Any]:
        client = await self.connect(self.running[0])
        try:
            return await client.ask(subject, question, timeout_s=API_S)
        finally:
            client.close()


def _are_current(replicas: list[dict[str, Any]] | None, nodes: int) -> bool:
    """A leader lists all others, each of them here and level with it."""
    return replicas is not None and [bool(one.get("current")) and not one.get("offline") for one in replicas] == [
        True
    ] * (nodes - 1)


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-_LAST_WORDS:] if log.exists() else ""
