"""The address of the pipeline's logs, and opening them.

A `LogsAddress` is pickled into Spark tasks: addresses and the paths of certificate files, never a connection or a key.
A task opens the logs where it runs; `open_shared` keeps one connection open per process and address, because Spark
reuses its Python workers and a TLS handshake for every task would cost more than small tasks do.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog.client.sync import SyncClient, connect_sync
from tidelog.errors import InvalidConfig
from tidelog.pipeline.local_paths import local_path
from tidelog.pipeline.sources.cluster_logs import ClusterLogs
from tidelog.pipeline.sources.folder_logs import FolderLogs
from tidelog.pipeline.sources.logs import Logs
from tidelog.transports.link.tls import LinkTlsFiles

_IDLE_MAX_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsAddress:
    """A cluster (addresses, and certificate files by path) or a folder of logs. Goes through pickle as it is."""

    cluster: tuple[str, ...] = ()
    certificate: str = ""
    key: str = ""
    authority: str = ""
    insecure: bool = False
    path: str = ""

    def __post_init__(self) -> None:
        problems: list[str] = []
        for name in ("certificate", "key", "authority", "path"):
            try:
                # A task runs in another folder than the driver (PLP1).
                object.__setattr__(self, name, local_path(getattr(self, name), name=name))
            except InvalidConfig as error:
                problems += error.problems
        if bool(self.cluster) == bool(self.path):
            problems.append("give either `cluster` (host:port of some nodes) or `path` (a folder of logs)")
        tls = {"certificate": self.certificate, "key": self.key, "authority": self.authority}
        absent = [name for name, value in tls.items() if not value]
        if self.cluster and not self.insecure and absent:
            problems.append(f"{', '.join(absent)} missing: name the files, or say insecure=true to a cluster without")
        if self.insecure and len(absent) < len(tls):
            problems.append("insecure=true and certificate files contradict each other")
        if self.path and (self.insecure or len(absent) < len(tls)):
            problems.append("certificates are for a cluster; a folder needs none")
        if problems:
            raise InvalidConfig(section="logs", problems=problems)

    def open(self) -> Logs:
        """A connection of the caller's own; `close` it."""
        return FolderLogs(self.path) if self.path else ClusterLogs(self.connect())

    def connect(self) -> SyncClient:
        """A client of the cluster; the caller closes it."""
        tls = None
        if not self.insecure:
            tls = LinkTlsFiles(certificate=Path(self.certificate), key=Path(self.key), authority=Path(self.authority))
        return connect_sync(self.cluster, tls=tls, insecure_dev=self.insecure, name="spark")

    def open_shared(self) -> Logs:
        """The process's one connection to this address. Never close it, and request it anew for every piece of work: it
        is closed after two minutes without a request or a reader."""
        with _shared_guard:
            held = _shared.get(self)
            logs = held[0] if held is not None else self.open()
            _shared[self] = (logs, time.monotonic())
            _sweep_later()
            return logs


_shared: dict[LogsAddress, tuple[Logs, float]] = {}
_shared_guard = threading.Lock()
_sweeper: list[threading.Timer] = []


def _sweep_later() -> None:
    """Hold the guard. One timer at a time, which does not keep the process alive."""
    if not _sweeper:
        timer = threading.Timer(_IDLE_MAX_S / 4, _sweep)
        timer.daemon = True
        _sweeper.append(timer)
        timer.start()


def _sweep() -> None:
    with _shared_guard:
        _sweeper.clear()
        now_s = time.monotonic()
        idle = [key for key, (logs, used_s) in _shared.items() if now_s - used_s > _IDLE_MAX_S and not logs.is_busy]
        closing = [_shared.pop(key)[0] for key in idle]
        if _shared:
            _sweep_later()
    for logs in closing:
        logs.close()
