"""A group on real processes: its coordinator is killed without a word, and nothing is skipped."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.client.group_kit import FORM_S, Member, all_values, created, shared_out
from tests.client.running import run
from tests.gateways.gateway_kit import HOST, NodeProcess
from tests.patience import patient, wait_until
from tests.ports import free_port
from tidelog.client import connect

CHANNELS = [f"bus/{number}" for number in range(6)]


@pytest.mark.slow
def test_a_killed_coordinator_costs_no_record(tmp_path: Path) -> None:
    async def work(nodes: dict[str, NodeProcess], addresses: dict[str, str]) -> None:
        everywhere = list(addresses.values())
        client = await connect(everywhere, insecure_dev=True)
        await created(client, CHANNELS, 3)
        readers = []
        for number in range(2):
            own = await connect(everywhere, insecure_dev=True)
            readers.append(Member(own, "billing", ["bus/*"], member=f"m{number}"))
            await readers[-1].group.join()
            readers[-1].start()
        await wait_until(lambda: shared_out(readers, CHANNELS), "all is shared out")
        coordinator = (await client.describe_group("billing"))["coordinator"]
        wanted: set[tuple[str, bytes]] = set()
        for number in range(40):
            if number == 20:
                nodes[coordinator].kill()
            for channel in CHANNELS:
                await client.producer(channel).send(b"%d" % number)
                wanted.add((channel, b"%d" % number))
        await wait_until(lambda: all_values(readers) >= wanted, "nothing is skipped")
        described = await client.describe_group("billing")
        give_up = time.monotonic() + patient(FORM_S)
        while described["coordinator"] == coordinator:
            assert time.monotonic() < give_up, "the coordinator was never replaced"
            await asyncio.sleep(0.05)
            described = await client.describe_group("billing")
        assert [member["member"] for member in described["members"]] == ["m0", "m1"], "nobody was expelled for it"
        assert all(member.failure is None for member in readers)
        for member in readers:
            await member.stop()
        await client.close()

    addresses = {f"n{number}": f"{HOST}:{free_port()}" for number in (1, 2, 3)}
    nodes = {name: NodeProcess(tmp_path, name, addresses) for name in addresses}
    try:
        for node in nodes.values():
            node.start()
        for node in nodes.values():
            node.wait_served()
        run(work(nodes, addresses))
    finally:
        for node in nodes.values():
            node.kill()
