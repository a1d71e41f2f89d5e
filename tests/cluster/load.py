"""Clients that read and change channels of a cluster, several on each, and write down what they saw."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.kits.cluster_kit import ClusterKit
from benchmarks.kits.cluster_load import ClusterCaller, MetadataClient

from tests.cluster.histories import History, Operation, violations
from tests.patience import patient
from tidelog.core.catalog import AlterChannel, ChannelConfig, CreateChannel, DeleteChannel, PauseChannel
from tidelog.errors import LogError

TIMEOUT_MS = 700
"""For one answer: about as long as it takes until somebody else can lead."""
DEADLINE_S = 30.0
THINK_S = 0.005
PROBE = "probe"
"""The channel of `next_ack` alone."""
FIRST_EPOCH = 2
"""The leader epoch of a channel that was created and paused."""
_LOST_RACE = "stale_channel_epoch"


def marked(mark: str) -> ChannelConfig:
    return ChannelConfig(factor=1, placement_metadata=(("mark", mark),))


def mark_of(record: dict[str, Any]) -> str:
    metadata: dict[str, str] = dict(record["config"]["placement_metadata"])
    return metadata["mark"]


class Load:
    """`errors` are those that say that something had no effect and are no lost race: none is expected."""

    def __init__(self, caller: ClusterCaller, *, channels: int, seed: int, timeout_ms: int = TIMEOUT_MS) -> None:
        self.history = History()
        self.errors: list[str] = []
        self.channels = [f"c{number}" for number in range(channels)]
        self._ids: dict[str, int] = {}
        self._caller = caller
        self._rng = random.Random(seed)
        self._timeout_ms = timeout_ms
        self._is_over = False
        self._marks = 0
        self._probe_epoch: int | None = None

    def client(self, *, timeout_ms: int | None = None) -> MetadataClient:
        return MetadataClient(self._caller, timeout_ms=timeout_ms or self._timeout_ms, deadline_s=DEADLINE_S)

    async def create(self, replica: str) -> None:
        """The channels, before anything goes wrong."""
        client = self.client(timeout_ms=10_000)
        for name in (*self.channels, PROBE):
            change = CreateChannel(name=name, config=marked(""), replicas=(replica,), leader=replica, at_ms=0)
            await client.propose(change)
            record = await client.read_channel(name)
            assert record is not None
            self._ids[name] = record["channel_id"]
            # Paused, so that the cluster itself changes nothing about it: the workers' epochs are the whole history.
            await client.propose(PauseChannel(channel_id=record["channel_id"], expected_channel_epoch=1))
        self._probe_epoch = FIRST_EPOCH

    def adopt(self, other: Load) -> None:
        """Go on with the channels and the history of another one."""
        self.channels, self._ids, self.history = other.channels, other._ids, other.history

    async def delete(self) -> None:
        """Leave the catalog as it was found, for the next test on the same cluster."""
        client = self.client(timeout_ms=10_000)
        for name in (*self.channels, PROBE):
            record = await client.read_channel(name)
            assert record is not None
            await client.propose(
                DeleteChannel(channel_id=record["channel_id"], expected_channel_epoch=record["channel_epoch"], at_ms=0)
            )

    @asynccontextmanager
    async def running(self, *, workers_per_channel: int = 2) -> AsyncIterator[None]:
        """Under load while the block runs; every worker has finished its last operation afterwards."""
        self._is_over = False
        async with asyncio.TaskGroup() as group:
            for name in self.channels:
                for _ in range(workers_per_channel):
                    group.create_task(self._work(name, random.Random(self._rng.random())))
            try:
                yield
            finally:
                self._is_over = True

    async def _work(self, channel: str, rng: random.Random) -> None:
        client = self.client()
        epoch: int | None = None
        while not self._is_over:
            if epoch is None or rng.random() < 0.4:
                epoch = await self.read(client, channel, at=rng.choice(self._caller.nodes))
            else:
                epoch = await self._write(client, channel, epoch)
            await asyncio.sleep(rng.random() * THINK_S)

    async def read(self, client: MetadataClient, channel: str, *, at: str | None) -> int | None:
        operation = self.history.begin(channel, is_write=False, node=at or "the leader")
        try:
            record = await client.read_channel(channel, at=at)
        except LogError as error:
            operation.outcome = "refused"  # a read that was not answered says nothing
            if at is None:
                self.errors.append(f"read {error.code}: {error}")
            return None
        assert record is not None, f"{channel} is gone"
        self._returned(operation)
        operation.epoch, operation.mark = record["channel_epoch"], mark_of(record)
        return operation.epoch

    async def _write(self, client: MetadataClient, channel: str, epoch: int) -> int | None:
        self._marks += 1
        mark = f"w{self._marks}"
        operation = self.history.begin(channel, is_write=True, epoch=epoch + 1, mark=mark, node=client.node)
        change = AlterChannel(channel_id=self._ids[channel], expected_channel_epoch=epoch, config=marked(mark))
        try:
            await client.propose(change)
        except LogError as error:
            if error.definite:
                operation.outcome = "refused"
                if error.code != _LOST_RACE:
                    self.errors.append(f"write {error.code}: {error}")
            return None
        self._returned(operation)
        return epoch + 1

    @staticmethod
    def _returned(operation: Operation) -> None:
        operation.returned_ns = time.monotonic_ns()
        operation.outcome = "ok"

    async def next_ack(self, nodes: Sequence[str], *, deadline_s: float = 30.0) -> int:
        """When a change that is asked for from now on, of these nodes alone, is first acknowledged.

        The workers may hang on a frozen node until their time is up, which says nothing about the others.
        """
        client = MetadataClient(self._caller, nodes, timeout_ms=self._timeout_ms, deadline_s=deadline_s)
        async with asyncio.timeout(patient(deadline_s)):
            while True:
                # Nobody else changes this channel, so its epoch is known unless the last change's outcome is not.
                if self._probe_epoch is None:
                    self._probe_epoch = await self.read(client, PROBE, at=None)
                else:
                    self._probe_epoch = await self._write(client, PROBE, self._probe_epoch)
                    if self._probe_epoch is not None:
                        return time.monotonic_ns()

    async def wait_acked(self, kit: ClusterKit, count: int, *, deadline_s: float = 60.0) -> None:
        """Until so many more changes are acknowledged."""
        enough = len(self.history.acked()) + count

        async def is_enough() -> bool:
            return len(self.history.acked()) >= enough

        await kit.wait(is_enough, deadline_s=deadline_s, what=f"{count} more acknowledged changes")

    async def check(self, nodes: Sequence[str]) -> None:
        """Read everything once more, at each of these nodes, and judge the whole history."""
        client = self.client(timeout_ms=20_000)
        for name in (*self.channels, PROBE):
            assert await self.read(client, name, at=None) is not None, self.errors
            for node in nodes:
                assert await self.read(client, name, at=node) is not None, f"no read of {name} at {node}"
        found = violations(self.history, first_epoch=FIRST_EPOCH)
        assert not found, "\n".join(found[:20])
