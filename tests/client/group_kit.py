"""Nodes in this process, and members of a group that write down what they are given."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.patience import patient, wait_until
from tests.ports import free_port
from tidelog.client import Client, ClientOptions, Group, GroupBatch, Rebalance, Record, connect
from tidelog.cluster.node.process import Node, NodeProcessOptions
from tidelog.core.groups.coordinator import GroupOptions
from tidelog.errors import LogError
from tidelog.storage.log.options import LogOptions
from tidelog.storage.store.parts import StoreOptions

HOST = "127.0.0.1"
FORM_S = 60.0
PATIENT = GroupOptions()


def hasty() -> GroupOptions:
    """Members that fall silent are missed soon; still far above what this machine needs between two heartbeats."""
    silence_ms = int(patient(1_500))
    return GroupOptions(consumer_timeout_ms=silence_ms, coordinator_timeout_ms=silence_ms)


class Nodes:
    """n1, n2, ..."""

    def __init__(self, folder: Path, count: int, groups: GroupOptions) -> None:
        self._folder = folder
        self._groups = groups
        self.peers = {f"n{number}": f"{HOST}:{free_port()}" for number in range(1, count + 1)}
        self.nodes: dict[str, Node] = {}
        self.lines: list[str] = []

    async def start(self) -> None:
        for name, address in self.peers.items():
            node = self.nodes[name] = Node(
                NodeProcessOptions(
                    node=name,
                    listen=address,
                    peers=self.peers,
                    data_dir=self._folder / name,
                    insecure_dev=True,
                    groups=self._groups,
                    store=StoreOptions(log=LogOptions(reserve_bytes=0)),
                ),
                log=self.lines.append,
            )
            await node.start()
        await wait_until(
            lambda: all(node.core.is_registered for node in self.nodes.values()), f"the nodes are up; {self.lines}"
        )

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()

    async def client(self, **options: Any) -> Client:
        addresses = list(self.peers.values())
        return await connect(addresses, insecure_dev=True, options=ClientOptions(fetch_wait_ms=100, **options))


@contextlib.asynccontextmanager
async def opened(folder: Path, count: int = 1, groups: GroupOptions = PATIENT) -> AsyncIterator[Nodes]:
    nodes = Nodes(folder, count, groups)
    try:
        await nodes.start()
        yield nodes
    finally:
        await nodes.stop()


async def created(client: Client, channels: list[str], factor: int) -> None:
    """Create channels, once as many nodes are there as that needs."""
    give_up = time.monotonic() + patient(FORM_S)
    while True:
        refused = [one for one in await client.create_channels(channels, factor=factor) if isinstance(one, LogError)]
        if not refused:
            return
        assert time.monotonic() < give_up, refused[0]
        await asyncio.sleep(0.05)


class Member:
    """One process of a group: a client of its own, and a task that reads."""

    def __init__(self, client: Client, group: str, channels: list[str], *, work_s: float = 0.0, **options: Any) -> None:
        self.client = client
        self._work_s = work_s
        """How long it works on a batch; dying in between, it has done nothing of it."""
        self.rebalances: list[Rebalance] = []
        self.group: Group = client.group(
            group, channels, on_rebalance=self.rebalances.append, commit_interval_ms=50, **options
        )
        self.batches: list[GroupBatch] = []
        self.task: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None

    def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            async for batch in self.group:
                await asyncio.sleep(self._work_s)
                self.batches.append(batch)
        except Exception as error:
            self.failure = error

    @property
    def values(self) -> list[tuple[str, bytes]]:
        return [
            (batch.channel, record.value)
            for batch in self.batches
            for record in batch.records
            if isinstance(record, Record) and record.value is not None
        ]

    async def stop(self) -> None:
        """As a program ends that closes what it opened, and is not done with its last batch."""
        await self._end()
        await self.group.close(is_done=not self._work_s)
        await self.client.close()

    async def die(self) -> None:
        """As a process that is killed: its links drop, and nobody was told."""
        await self._end()
        await self.group.abandon()
        await self.client.close(flush=False)

    async def _end(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)


async def members(
    nodes: Nodes, count: int, channels: list[str], group: str = "billing", **options: Any
) -> list[Member]:
    found = []
    for number in range(count):
        member = Member(await nodes.client(), group, channels, member=f"m{number}", **options)
        await member.group.join()
        member.start()
        found.append(member)
    return found


def all_values(readers: list[Member]) -> set[tuple[str, bytes]]:
    return {value for member in readers for value in member.values}


def shared_out(readers: list[Member], channels: list[str]) -> bool:
    """Whether every channel is read by exactly one of them, as they know it."""
    return sorted(name for member in readers for name in member.group.channels) == sorted(channels)
