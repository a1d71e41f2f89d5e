"""Three real nodes with disks that fail: nothing acknowledged is lost, and every node comes back without a hand.

`TIDELOG_DISK_ROUNDS` is the number of rounds in the slow lane.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from tests.cluster.chaos_faults import WHOLE_S
from tests.cluster.chaos_load import ChaosChannel, ChaosLoad
from tests.cluster.chaos_world import ChaosWorld, chaos_world
from tests.cluster.test_channel_chaos import GOES_ON, judge, settle
from tests.faults.disk_rounds import EXIT_DISK, KINDS, QUICK, Rounds
from tests.faults.faulty_disk import FaultyDisk, require_faulty_disks
from tests.uplink.processes import seed_of_the_day

ROUNDS = int(os.environ.get("TIDELOG_DISK_ROUNDS", "60"))


def channels() -> list[ChaosChannel]:
    return [ChaosChannel(name="default", config={}), ChaosChannel(name="two", config={"factor": 2})]


async def under_broken_disks(
    world: ChaosWorld, folder: Path, *, seed: int, kinds: list[str], until_met: bool = False
) -> Rounds:
    disks = {name: FaultyDisk(folder / f"{name}.control", world.kit.nodes[name].data) for name in world.names}
    for name, disk in disks.items():
        world.kit.nodes[name].environment = disk.environment
    world.start_all()
    for name in world.names:
        world.kit.expect_end(name)
    async with world.kit.caller() as caller:
        await world.kit.wait_formed(caller)
        async with await world.connect() as client:
            load = ChaosLoad(world, client, channels(), seed=seed)
            rounds = Rounds(world, load, disks, random.Random(seed))
            await load.create()
            await world.wait_whole(client, deadline_s=WHOLE_S)
            load.begin()
            try:
                await load.wait_acked(GOES_ON, deadline_s=WHOLE_S)
                await rounds.run(kinds, until_met=until_met)
                await settle(world, load)
                await judge(world, load)
            except BaseException as error:
                error.add_note(f"seed {seed}\n{rounds.story()}")
                raise
            finally:
                await load.stop()
            print(rounds.story())
            return rounds


@pytest.mark.timeout(300)
def test_nodes_survive_failing_disks_and_come_back_by_themselves(tmp_path: Path) -> None:
    require_faulty_disks()
    seed = seed_of_the_day(7_001)
    with chaos_world(tmp_path, nodes=3) as world:
        asyncio.run(under_broken_disks(world, tmp_path, seed=seed, kinds=list(QUICK)))


@pytest.mark.slow
@pytest.mark.timeout(120 * ROUNDS + 600)
def test_nothing_acknowledged_is_lost_in_rounds_of_failing_disks(tmp_path: Path) -> None:
    """Every kind of fault in turn, in an order that the seed decides, until there were enough rounds."""
    require_faulty_disks()
    seed = seed_of_the_day(7_060)
    rng = random.Random(seed)
    kinds: list[str] = []
    while len(kinds) < ROUNDS:
        kinds += rng.sample(list(KINDS), len(KINDS))
    with chaos_world(tmp_path, nodes=3) as world:
        story = under_broken_disks(world, tmp_path, seed=seed, kinds=kinds[:ROUNDS], until_met=True)
        rounds = asyncio.run(story)
    assert rounds.unmet() == [], "no node ran into these faults"
    assert rounds.exits[EXIT_DISK] > 0, "no supervisor was told by the exit code"
    assert len(rounds.struck) == min(ROUNDS, len(KINDS))
