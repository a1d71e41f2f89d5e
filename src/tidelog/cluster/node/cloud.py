"""A cloud: a cluster of one node, which serves boats over gRPC and readers over HTTP.

Everything of the node's own lies under `.tidelog` in the data folder; beside it each boat has a folder with its
state file, which people may read. A folder of a cloud from before there were clusters is taken over as it is.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tidelog.cluster.http.cloud_http import CloudHttp
from tidelog.cluster.http.store_view import StoreView
from tidelog.cluster.node.core import NodeOptions
from tidelog.cluster.node.node_file import forget_cluster, stored_node
from tidelog.cluster.node.process import INTERNAL_FOLDER, Node, NodeProcessOptions
from tidelog.cluster.uplink.maintenance import BoatMaintenance, MaintenanceOptions
from tidelog.cluster.uplink.options import UplinkOptions
from tidelog.cluster.uplink.service import UplinkService
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import InvalidConfig
from tidelog.http.server import HttpOptions
from tidelog.pki.identity import is_fleet, is_name
from tidelog.pki.revocation import RevocationList
from tidelog.storage.log.options import Retention
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.parts import StoreOptions
from tidelog.units import KIB, MIB

_UNNAMED: Final = "cloud"
_ALONE: Final = ReplicationOptions(tail_bytes_max=256 * KIB, tails_bytes_max=16 * MIB)
"""No replica waits for the newest blocks, so few of them stay in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudOptions:
    data_dir: Path
    node: str | None = None
    """Its name in the catalog; the one it had before, or the host's, by default."""
    grpc_listen: str = ":9443"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    """The authority that signs boats; every boat must show a certificate of it."""
    revocations: Path | None = None
    fleet: str | None = None
    """Boats whose certificate names another fleet are refused. One that names none is not."""
    http: HttpOptions | None = None
    """None serves no HTTP."""
    insecure_dev: bool = False
    limits: ReceiverLimits = field(default_factory=ReceiverLimits)
    store: StoreOptions = field(default_factory=StoreOptions)
    maintenance: MaintenanceOptions = field(default_factory=MaintenanceOptions)

    def __post_init__(self) -> None:
        problems = []
        if not self.insecure_dev and None in (self.tls_cert, self.tls_key, self.tls_client_ca):
            problems.append("tls-cert, tls-key and tls-client-ca are needed; insecure-dev serves plaintext for tests")
        if self.fleet is not None and not is_fleet(self.fleet):
            problems.append(f"{self.fleet!a} is not a fleet: use lower-case letters, digits, dots and dashes")
        if self.node is not None and not is_name(self.node):
            problems.append(f"{self.node!a} is not a name for a node; use letters, digits, dots, dashes, underscores")
        if self.store.log.retention != Retention():
            # The store's own sweep does not know of fold snapshots (F3).
            problems.append("retention belongs to the maintenance of boats, not to the store's log options")
        if problems:
            raise InvalidConfig(section="cloud", problems=problems)


class Cloud:
    """Started and stopped once. `port` is the one that was bound, for a listen address ending in :0."""

    def __init__(self, options: CloudOptions, *, log: Callable[[str], None] = lambda _: None) -> None:
        self._options = options
        self._log = log
        self.node: Node | None = None
        self.maintenance: BoatMaintenance | None = None
        self.service: UplinkService | None = None
        self.view: StoreView | None = None
        self.http: CloudHttp | None = None
        self.port = 0
        self._is_stopped = False

    async def start(self) -> None:
        """Open everything; what was opened before a failure is closed again."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        options = self._options
        options.data_dir.mkdir(parents=True, exist_ok=True)
        if options.http is not None:
            # Before the store, which may take its time: alive, and not ready.
            revocations = None
            if options.revocations is not None:
                revocations = RevocationList(options.revocations, now_us=wall_clock_us())
            self.http = CloudHttp(options.http, revocations=revocations, log=self._log)
            await self.http.start()
        node = self.node = Node(self._node_options(), log=self._log)
        await node.start()
        if node.core.member is None and node.core.file.state.cluster:
            node = await self._found_again(node)
        uplink = node.uplink
        assert uplink is not None
        self.maintenance, self.service, self.view, self.port = (
            uplink.maintenance,
            uplink.service,
            uplink.view,
            uplink.port,
        )
        await _first(uplink.wait_open(), node.wait_stopped())
        if self.http is not None:
            self.http.view = self.view
        channels = len(node.channel_logs.known())
        self._log(f"cloud up port={self.port} channels={channels} verified={node.channel_logs.verified}")

    async def _found_again(self, node: Node) -> Node:
        """The metadata is gone. In a cluster of one it said nothing that the logs do not say, and no other node can
        have it: a new one is founded, and takes the channels over."""
        options = self._node_options()
        self._log(f"metadata lost cluster={node.core.file.state.cluster}, founded anew; channels are adopted")
        await node.stop()
        await asyncio.to_thread(forget_cluster, OsDisk(self._options.data_dir), INTERNAL_FOLDER)
        self.node = Node(options, log=self._log)
        await self.node.start()
        return self.node

    def _node_options(self) -> NodeProcessOptions:
        options = self._options
        name = options.node or stored_node(OsDisk(options.data_dir), INTERNAL_FOLDER) or _host_name()
        return NodeProcessOptions(
            node=name,
            listen=None,
            peers={name: ""},
            data_dir=options.data_dir,
            store=options.store,
            core=NodeOptions(replication=_ALONE),
            uplink=UplinkOptions(
                listen=options.grpc_listen,
                tls_cert=options.tls_cert,
                tls_key=options.tls_key,
                tls_client_ca=options.tls_client_ca,
                revocations=options.revocations,
                fleet=options.fleet,
                insecure_dev=options.insecure_dev,
                limits=options.limits,
                maintenance=options.maintenance,
                factor=1,
                is_alone=True,
            ),
        )

    async def wait_stopped(self) -> None:
        """Until the cloud is stopped; raises what made it impossible to go on."""
        assert self.node is not None, "start() first"
        await self.node.wait_stopped()

    async def stop(self) -> None:
        """Refuse new streams, end the running ones, commit what is queued, write the state files, close the store."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self.http is not None:
            await self.http.stop()
        if self.node is not None:
            await self.node.stop()
        if self.view is not None:
            self._log("cloud down")


async def _first(*ends: Coroutine[Any, Any, None]) -> None:
    """Until one of them ends; raises what it raises."""
    tasks = [asyncio.ensure_future(end) for end in ends]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()


def _host_name() -> str:
    """The host's name as far as it can be a node's."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:63].lstrip("._-")
    return name if is_name(name) else _UNNAMED
