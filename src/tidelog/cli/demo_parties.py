"""The demo's boat and cloud: real processes over mTLS in one folder, started, killed and asked how they are.

Both are `tidelog boat` and `tidelog cloud` as anybody would start them. The boat is asked over HTTP how it is; what
the cloud has is read from its disk, where it must be. What they log lies in `boat.log` and `cloud.log`. Every wait
here has a deadline.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tidelog.cli.demo_link import HOST, Link
from tidelog.cli.log_files import Placed
from tidelog.cli.sources import open_source
from tidelog.cluster.uplink_channel import fold_log
from tidelog.core.uplink.fold import LineageFold
from tidelog.errors import LogError, WaitTimedOut

NAME: Final = "boat-001"
NODE: Final = "cloud-1"
START_S_MAX: Final = 60.0
_STOP_S_MAX: Final = 30.0
_ASK_S_MAX: Final = 5.0
_POLL_S: Final = 0.05
_LAST_LINES: Final = 4


class PartyFailed(RuntimeError):
    """A process of the demo did what it must not: it ended by itself, or with a bad exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """How boat and cloud are at one moment; of a boat that is down, what it said last."""

    head: int = 0
    """The newest seq the boat has recorded."""
    durable_head: int = 0
    """The newest seq on the boat's disk."""
    boat_void: tuple[range, ...] = ()
    connected: bool = False
    acked: int = 0
    """The cursor that the cloud has told the boat."""
    cursor: int = 0
    """The cursor that the cloud's log gives."""
    held_end: int = 1
    """One past the newest seq the cloud has heard of."""
    holes: tuple[range, ...] = ()
    void: tuple[range, ...] = ()
    session: int = 0

    @property
    def missing(self) -> int:
        return sum(map(len, self.holes))


class Parties:
    """One cloud, one boat, and the link between them. `close` ends whatever still runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "cloud-data"
        self.journal = folder / "journal"
        self.link = Link()
        self.sight = Sight()
        self.cursor_went_back: str = ""
        """Says so if the cloud's log ever gave less than it had given, or than the cloud had acked."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._http_port = 0
        self._grpc_port = 0

    # --- certificates ----------------------------------------------------------------------------

    def make_certificates(self) -> None:
        """What an operator types: `tidelog ca init`, then `tidelog ca issue` for the boat and for the cloud."""
        from tidelog.cli.main import run

        ca = str(self.folder / "ca")
        node = ["--node", "--server-name", HOST]
        for arguments in (
            ["init", ca],
            ["issue", NAME, "--ca", ca, "--out", str(self.folder / "boat")],
            ["issue", NODE, *node, "--ca", ca, "--out", str(self.folder / "cloud")],
        ):
            with contextlib.redirect_stdout(io.StringIO()):
                code = run(["ca", *arguments])
            if code != 0:
                raise PartyFailed(f"`tidelog ca {' '.join(arguments)}` ended with exit code {code}")

    # --- starting and ending ---------------------------------------------------------------------

    def start_cloud(self) -> None:
        files = self.folder / "cloud"
        arguments = ["-grpc-listen", f"{HOST}:{self._grpc_port}", "-data-dir", str(self.data)]
        arguments += ["-tls-cert", str(files / f"{NODE}.crt"), "-tls-key", str(files / f"{NODE}.key")]
        arguments += ["-tls-client-ca", str(files / "client-ca.crt")]
        arguments += ["-tls-revocations", str(self.folder / "ca" / "boats" / "revoked.txt"), "-http-listen", "off"]
        said = self._start("cloud", arguments, until=r"cloud up port=(\d+)")
        # The same port after a restart: that is where the boat looks for it.
        self._grpc_port = self.link.target_port = int(said)

    def start_boat(self, *settings: str) -> None:
        files = self.folder / "boat"
        arguments = ["-journal-dir", str(self.journal), "-replication-target", f"{HOST}:{self.link.port}"]
        arguments += ["-replication-instance-id", NAME, "-replication-tls-ca", str(files / "ca.crt")]
        arguments += ["-replication-tls-cert", str(files / f"{NAME}.crt")]
        arguments += ["-replication-tls-key", str(files / f"{NAME}.key"), *settings]
        arguments += ["-http-listen", f"{HOST}:0", "-http-anonymous"]
        self._http_port = int(self._start("boat", arguments, until=r"http up port=(\d+)"))

    def _start(self, name: str, arguments: list[str], *, until: str) -> str:
        """Start it and wait until it has said so; what `until` found."""
        # A real boat or cloud may be set up on this machine: its settings are not for the demo.
        settings = self.folder / "no-settings.conf"
        settings.touch()
        command = [sys.executable, "-m", "tidelog.cli", name, *arguments, "-config", str(settings)]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("TIDELOG_")}
        began = len(self.said(name))
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=environment)
        found: list[str] = []

        def is_up() -> bool:
            found[:] = re.findall(until, self.said(name)[began:])
            return bool(found)

        self._wait(is_up, what=f"the start of the {name}", deadline_s=START_S_MAX)
        return found[0]

    def kill(self, name: str) -> None:
        """kill -9: it is told nothing, and can write nothing more."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self, name: str) -> None:
        """Ask for a clean stop and wait for it."""
        self._processes[name].send_signal(signal.SIGTERM)
        self.wait_ended(name, deadline_s=_STOP_S_MAX)

    def wait_ended(self, name: str, *, deadline_s: float, each: Callable[[Sight], None] = lambda _: None) -> None:
        """Wait until a process ends by itself, as it should, with exit code 0."""
        process = self._processes[name]
        end = time.monotonic() + deadline_s
        while process.poll() is None:
            if time.monotonic() > end:
                raise WaitTimedOut(waiting_for=f"the end of the {name}", deadline_s=deadline_s)
            each(self.look())
            time.sleep(_POLL_S)
        del self._processes[name]
        if process.returncode != 0:
            raise PartyFailed(f"the {name} ended with exit code {process.returncode}: {self._last_words(name)}")

    def close(self) -> None:
        for name in list(self._processes):
            self.kill(name)
        self.link.close()

    # --- looking ---------------------------------------------------------------------------------

    def said(self, name: str) -> str:
        """All that every boat or cloud of this demo has logged."""
        log = self.folder / f"{name}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def look(self) -> Sight:
        """See how both are, the cloud first: it never looks better than it is."""
        held = self._read_cloud()
        if held is not None:
            session, lineage = held
            known = max(self.sight.cursor, self.sight.acked)
            if lineage.cursor < known:
                self.cursor_went_back = f"the cursor went back from {known} to {lineage.cursor}"
            self.sight = replace(
                self.sight,
                cursor=lineage.cursor,
                held_end=lineage.head + 1,
                holes=tuple(lineage.holes()),
                void=tuple(lineage.void),
                session=session,
            )
        status = self._ask_boat()
        if status is not None:
            self.sight = replace(
                self.sight,
                head=status["local_head_seq"],
                durable_head=status["durable_head_seq"],
                boat_void=tuple(range(part["start"], part["end"]) for part in status["void"]),
                connected=status["connected"],
                acked=status["cloud_cursor"],
            )
        return self.sight

    def wait(
        self,
        condition: Callable[[Sight], bool],
        *,
        what: str,
        deadline_s: float,
        each: Callable[[Sight], None] = lambda _: None,
    ) -> Sight:
        """Look until the condition holds; `each` gets every look."""

        def holds() -> bool:
            each(self.look())
            return condition(self.sight)

        self._wait(holds, what=what, deadline_s=deadline_s)
        return self.sight

    def _wait(self, condition: Callable[[], bool], *, what: str, deadline_s: float) -> None:
        end = time.monotonic() + deadline_s
        while not condition():
            for name, process in self._processes.items():
                # A boat whose voyage is over may end well at any moment.
                if process.poll() not in (None, 0):
                    raise PartyFailed(f"the {name} ended by itself: {self._last_words(name)}")
            if time.monotonic() > end:
                raise WaitTimedOut(waiting_for=what, deadline_s=deadline_s)
            time.sleep(_POLL_S)

    def _last_words(self, name: str) -> str:
        return " / ".join(self.said(name).splitlines()[-_LAST_LINES:]) or "it said nothing"

    def _read_cloud(self) -> tuple[int, LineageFold] | None:
        """The newest session and what the log holds. None before the first one, or when the log changed in between."""
        try:
            (stream,) = open_source(str(self.data), channel=NAME).streams
            items = list(stream.items())
        except LogError:
            return None
        placed = [item.block for item in items if isinstance(item, Placed)]
        if len(placed) < len(items):
            return None
        fold = fold_log(placed)
        return None if fold.current is None else (fold.session, fold.lineage(fold.current))

    def _ask_boat(self) -> dict[str, Any] | None:
        """Its replication status; None when it is down."""
        if "boat" not in self._processes:
            return None
        connection = http.client.HTTPConnection(HOST, self._http_port, timeout=_ASK_S_MAX)
        try:
            connection.request("GET", "/replication/status")
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        if answer.status != http.client.OK:
            return None
        status: dict[str, Any] = json.loads(body)
        return status
