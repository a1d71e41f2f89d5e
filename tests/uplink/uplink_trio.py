"""Three nodes that serve boats, in this process, over real sockets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.patience import wait_until
from tests.ports import free_port
from tests.uplink.parties import HOST, Fleet, Row, blocks_of
from tidelog.blocks.decode import counted_frames
from tidelog.cluster.boats.channel import FRAME_KINDS
from tidelog.cluster.node.process import Node, NodeProcessOptions
from tidelog.cluster.uplink.options import MaintenanceOptions, UplinkOptions
from tidelog.core.catalog import ChannelRecord
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.edge.uplink.client import UplinkTarget
from tidelog.http.access import AccessOptions
from tidelog.http.server import HttpOptions

FORM_S = 60.0
LIMITS = ReceiverLimits(rate_frames_per_s=1e6, burst_frames=100_000)


class UplinkTrio:
    """n1, n2 and n3. `kill` leaves a node as a power cut would leave it to the others: silent."""

    def __init__(self, folder: Path, *, http: bool = False, fleet: Fleet | None = None, **options: Any) -> None:
        self.folder = folder
        self.peers = {name: f"{HOST}:{free_port()}" for name in ("n1", "n2", "n3")}
        self.nodes: dict[str, Node] = {}
        self.lines: list[str] = []
        self._http = http
        self._fleet = fleet
        self._options = options
        self._dead: list[Node] = []

    def _files(self, name: str) -> dict[str, Any]:
        """A node's certificate, its key, and both authorities."""
        if self._fleet is None:
            return {}
        folder = self.folder / f"{name}-tls"
        folder.mkdir(parents=True, exist_ok=True)
        issued = self._fleet.nodes.issue(name, now_us=self._fleet.now_us, server_names=[HOST, "localhost"])
        assert issued.key_pem is not None
        contents = {
            "tls_cert": issued.certificate_pem,
            "tls_key": issued.key_pem,
            "tls_ca": self._fleet.nodes.certificate_pem,
            "tls_client_ca": self._fleet.boats.certificate_pem,
        }
        for file, content in contents.items():
            (folder / file).write_bytes(content)
            (folder / file).chmod(0o600)
        return {file: folder / file for file in contents}

    async def start(self, name: str) -> Node:
        http = HttpOptions(listen=f"{HOST}:0", access=AccessOptions(anonymous=True)) if self._http else None
        files = self._files(name)
        boats_authority = files.pop("tls_client_ca", None)
        uplink_files: dict[str, Any] = {file: files[file] for file in ("tls_cert", "tls_key") if file in files}
        node = Node(
            NodeProcessOptions(
                node=name,
                listen=self.peers[name],
                peers=self.peers,
                data_dir=self.folder / name,
                insecure_dev=self._fleet is None,
                **files,
                http=http,
                uplink=UplinkOptions(
                    listen=f"{HOST}:0",
                    insecure_dev=self._fleet is None,
                    tls_client_ca=boats_authority,
                    **uplink_files,
                    limits=LIMITS,
                    maintenance=MaintenanceOptions(state_interval_ms=50),
                    **self._options,
                ),
            ),
            log=lambda line: self.lines.append(f"{name} {line}"),
        )
        await node.start()
        self.nodes[name] = node
        return node

    def is_formed(self) -> bool:
        def serves(node: Node) -> bool:
            return node.core.is_registered and node.uplink is not None and node.uplink.service.is_open

        return all(map(serves, self.nodes.values())) and any(node.core.is_leader for node in self.nodes.values())

    def record(self, boat: str) -> ChannelRecord | None:
        """As the metadata leader has it."""
        for node in self.nodes.values():
            if node.core.is_leader and node.uplink is not None:
                return node.uplink.boats.record(boat)
        return None

    def leader_of(self, boat: str) -> Node | None:
        record = self.record(boat)
        leader = None if record is None or record.leader is None else self.nodes.get(record.leader)
        if leader is None or leader.uplink is None or boat not in leader.uplink.boats.instances:
            return None
        return leader

    def others(self, boat: str) -> list[Node]:
        """Nodes that do not lead it; that which leads the metadata last, so that it is spared."""
        found = [node for node in self.nodes.values() if node is not self.leader_of(boat)]
        return sorted(found, key=lambda node: node.core.is_leader)

    async def kill(self, name: str) -> None:
        """No hand-over, no last words: its sockets close, as those of a killed process do."""
        node = self.nodes.pop(name)
        assert node.uplink is not None
        server = node.uplink._server
        assert server is not None
        node.driver.stopping = True  # the core says nothing more
        if node.driver._timer is not None:
            node.driver._timer.cancel()
        if node._http is not None:
            await node._http.stop()
        if node._listener is not None:
            await node._listener.close()
        await node.pool.close()
        await server.stop(0)
        for task in node.uplink._tasks:
            task.cancel()
        await node.uplink.relay.close()
        await node.uplink.http_relay.close()
        node.driver.stopping = False
        self._dead.append(node)

    async def stop(self) -> None:
        for node in [*self.nodes.values()]:
            await node.stop()
        self.nodes.clear()
        for node in self._dead:
            node.driver.stopping = True
            if node._repairing is not None:
                node._repairing.cancel()
            if node._pool_task is not None:
                await node._pool_task
            if node.writer is not None:
                node.writer.stop()
            node.channels.close()
            assert node.storage is not None
            await node.storage.close()

    def held(self, boat: str, node: Node) -> list[tuple[int, Row]]:
        """Every (seq, frame) that counts on this node, in the order of its log."""
        found: list[tuple[int, Row]] = []
        for block in blocks_of(node, boat):
            if block.maker.kind in FRAME_KINDS:
                seqs = [seq for part in block.counted_seqs() for seq in part]
                found += zip(seqs, counted_frames(block).rows(), strict=True)
        return found


def uplink_port(node: Node) -> int:
    assert node.uplink is not None
    return node.uplink.port


def plain_target(node: Node, boat: str) -> UplinkTarget:
    return UplinkTarget(address=f"{HOST}:{uplink_port(node)}", instance=boat, insecure_dev=True)


@contextlib.asynccontextmanager
async def uplink_trio(folder: Path, **options: Any) -> AsyncIterator[UplinkTrio]:
    trio = UplinkTrio(folder, **options)
    try:
        for name in trio.peers:
            await trio.start(name)
        await wait_until(trio.is_formed, f"three nodes that serve boats; {trio.lines}", FORM_S)
        yield trio
    finally:
        await trio.stop()
