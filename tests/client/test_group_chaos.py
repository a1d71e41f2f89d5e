"""A group under load, while members and nodes come and go: every record is processed, none is skipped."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from tests.client.group_kit import Member, Nodes, all_values, created, hasty, opened
from tests.patience import wait_until
from tidelog.client import Client
from tidelog.errors import LogError

CHANNELS = [f"bus/{number}" for number in range(8)]
LOAD_S = 12.0


class Load:
    """Writes to all channels until it is told to stop, and remembers what was acked."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.acked: set[tuple[str, bytes]] = set()
        self.is_over = False

    async def run(self) -> None:
        await asyncio.gather(*(self._write(channel) for channel in CHANNELS))

    async def _write(self, channel: str) -> None:
        producer = self._client.producer(channel)
        number = 0
        while not self.is_over:
            value = b"%d" % number
            number += 1
            try:
                await producer.send(value)
            except LogError:
                producer = self._client.producer(channel)  # what was not acked need not be read
            else:
                self.acked.add((channel, value))
            await asyncio.sleep(0.02)


async def joined(nodes: Nodes, number: int) -> Member:
    member = Member(await nodes.client(), "billing", ["bus/*"], work_s=0.05, member=f"m{number}")
    await member.group.join()
    member.start()
    return member


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_record_is_skipped_while_members_and_nodes_come_and_go(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    async with opened(tmp_path, count=3, groups=hasty()) as nodes:
        client = await nodes.client()
        await created(client, CHANNELS, 3)
        load = Load(client)
        writing = asyncio.get_running_loop().create_task(load.run())
        everybody = [await joined(nodes, number) for number in range(3)]
        alive = list(everybody)
        stopped = False
        end = time.monotonic() + LOAD_S
        while time.monotonic() < end:
            await asyncio.sleep(dice.uniform(0.3, 1.2))
            happening = dice.choice(["joins", "dies", "leaves", "node"])
            if happening == "joins" or len(alive) <= 1:
                alive.append(await joined(nodes, len(everybody)))
                everybody.append(alive[-1])
            elif happening == "dies":
                await alive.pop(dice.randrange(len(alive))).die()
            elif happening == "leaves":
                await alive.pop(dice.randrange(len(alive))).stop()
            elif not stopped:
                stopped = True
                await nodes.nodes.pop(dice.choice(list(nodes.nodes))).stop()
        load.is_over = True
        await writing
        await wait_until(lambda: all_values(everybody) >= load.acked, f"all is read, seed {seed}")
        assert all(member.failure is None for member in alive), f"seed {seed}: {[m.failure for m in alive]}"
        for member in alive:
            await member.stop()
        # What is committed is the end: nobody is left who would be given anything.
        for channel in CHANNELS:
            position = (await client.cursors(channel))["group.billing"]
            async with client.reader(channel, start=position, follow=False) as reader:
                assert [record async for record in reader] == [], f"seed {seed}: {channel}"
        await client.close()
