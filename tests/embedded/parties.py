"""Three nodes in this process, over real sockets, each with a manager that a program would have."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.patience import patient, wait_until
from tests.ports import free_port
from tidelog.cluster.node.core import NodeOptions
from tidelog.cluster.node.process import Node, NodeProcessOptions
from tidelog.core.replication.metrics import ChannelSample
from tidelog.core.replication.options import ReplicationOptions
from tidelog.embedded import FileConfig, LogManager, Record, ReplicationConfig, Role
from tidelog.embedded.replicated_file import ReplicatedFile

DEADLINE_S = 60.0
MEMORY = FileConfig().with_persistent(False)
NAMES = ("n1", "n2", "n3")


def replicated(**changes: Any) -> FileConfig:
    """On all three nodes, in memory, with heartbeats that a loaded machine can keep."""
    return MEMORY.with_replication(ReplicationConfig(**{"factor": 3, "heartbeat_ms": 500, **changes}))


class Harbour:
    """The nodes, their managers, and the files that were opened."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder = folder
        self.peers = {name: f"127.0.0.1:{free_port()}" for name in names}
        self.nodes: dict[str, Node] = {}
        self.managers: dict[str, LogManager] = {}
        self.lines: list[str] = []

    async def start(self, name: str) -> None:
        options = NodeProcessOptions(
            node=name,
            listen=self.peers[name],
            peers=self.peers,
            data_dir=self.folder / name,
            host=name,
            insecure_dev=True,
            core=NodeOptions(replication=ReplicationOptions(load_report_ms=200)),
        )
        node = Node(options, log=lambda line: self.lines.append(f"{name} {line}"))
        await node.start()
        self.nodes[name] = node
        manager = self.managers[name] = LogManager(self.folder / f"{name}-local")
        manager.enable_replication(node)

    async def stop(self, name: str) -> None:
        """The node first: a manager must stand that its node is gone."""
        await self.nodes.pop(name).stop()
        await self.managers.pop(name).close()

    def is_formed(self) -> bool:
        def stands(node: Node) -> bool:
            member = node.core.member
            return node.core.is_registered and member is not None and member.raft.is_voter

        return all(map(stands, self.nodes.values())) and any(node.core.is_leader for node in self.nodes.values())

    async def open(self, channel: str, config: FileConfig) -> dict[str, ReplicatedFile]:
        """On every node."""
        files = {}
        for name, manager in self.managers.items():
            file = await manager.open_file(channel, config)
            assert isinstance(file, ReplicatedFile)
            files[name] = file
        return files

    async def leader(self, files: dict[str, ReplicatedFile]) -> str:
        """Once there is one that serves, and everybody knows it."""

        def leading() -> list[str]:
            return [name for name, file in files.items() if self.role(file) is Role.LEADER and not file.is_closed]

        def settled() -> bool:
            named = {file.leader for file in files.values() if not file.is_closed}
            return len(leading()) == 1 and named == set(leading())

        await self.until(settled, "one leader that all know")
        return leading()[0]

    @staticmethod
    def role(file: ReplicatedFile) -> Role:
        return file.coordinator.role

    def counts(self, name: str, channel: str) -> ChannelSample:
        snapshot = self.managers[name].metrics.snapshot()
        return next(sample for sample in snapshot.channels if sample.channel == channel)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        await wait_until(holds, f"{what}; {self.lines[-30:]}", DEADLINE_S)


async def values(file: ReplicatedFile) -> list[bytes | None]:
    return [record.value for record in await file.read_range(0, 1 << 40) if isinstance(record, Record)]


@contextlib.asynccontextmanager
async def harbour(folder: Path, names: tuple[str, ...] = NAMES) -> AsyncIterator[Harbour]:
    made = Harbour(folder, names)
    try:
        for name in names:
            await made.start(name)
        await made.until(made.is_formed, "a formed cluster")
        yield made
    finally:
        for manager in made.managers.values():
            await manager.close()
        for node in made.nodes.values():
            await node.stop()


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, patient(4 * DEADLINE_S)))
