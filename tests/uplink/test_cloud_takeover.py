"""A data folder of a cloud from before there were clusters is taken over as it is: cursors, holes and acks go on.

The folders in `data/` were written by the release before: "cloud" was stopped cleanly, "crashed" is what lay on the
disk a moment before. boat-001 is an lplex boat with a hole, Zephyr one of ours, whose journal is in "boat".
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from tests.patience import wait_until
from tests.uplink.clouds import running_cloud, saved
from tests.uplink.parties import HOST, BoatParty, LplexBoat, dialed, holes, send_frames
from tidelog.blocks.control import EpochStarted, decode_control
from tidelog.blocks.header import BlockKind
from tidelog.edge.uplink.client import UplinkTarget

OLD = Path(__file__).parents[1] / "cluster" / "data" / "cloud_before_clusters.tar.xz"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.parametrize("how", ["cloud", "crashed"])
async def test_an_older_clouds_folder_opens_with_its_cursors_holes_and_sessions(old: Path, how: str) -> None:
    for opening in range(2):
        async with running_cloud(old / how) as house:
            await house.wait_ready()
            assert [status.id for status in house.view.instances()] == ["Zephyr", "boat-001"]
            lplex, ours = house.status("boat-001"), house.status("Zephyr")
            assert (lplex.cursor, lplex.head, lplex.holes) == (100, 210, (range(101, 200),))
            assert (lplex.session, ours.session, ours.cursor) == (2, 1, 200)
            assert lplex.lineage == saved(old / how, "boat-001")["lineage"]
            catalog = house.node.core.catalog
            assert catalog is not None
            ids = {record.name: record.channel_id for record in catalog.channels()}
            assert ids == {"boat-001": 1, "Zephyr": 2}, "the ids that the blocks bear"
            epochs = house.log("boat-001").epochs.pairs()
            assert [epoch for epoch, _ in epochs] == list(range(1, 3 + opening)), "each opening begins an epoch (R1)"


@pytest.mark.parametrize("how", ["cloud", "crashed"])
async def test_boats_go_on_where_the_older_cloud_left_off(old: Path, how: str) -> None:
    boat = BoatParty(old / "boat")
    assert boat.journal.acked == 200
    async with running_cloud(old / how) as house:
        boat.dial(UplinkTarget(address=f"{HOST}:{house.port}", instance="Zephyr", insecure_dev=True))
        await boat.sail(10)
        await boat.wait_acked()
        status = house.status("Zephyr")
        assert (status.cursor, status.holes, status.session) == (boat.journal.head, (), 2)
        async with dialed(house.port) as channel:
            lplex = LplexBoat(channel, "boat-001")
            welcome = await lplex.handshake(210)
            assert (welcome.cursor, holes(welcome), welcome.session) == (100, [(101, 200)], 3)
            await send_frames(lplex.live(), range(211, 221))
        await wait_until(lambda: house.status("boat-001").head == 220, "the lplex boat goes on")
        kept = [seq for block in house.log("Zephyr").blocks() for part in block.counted_seqs() for seq in part]
        assert sorted(kept) == list(range(1, boat.journal.head + 1)), "every frame once"
        await boat.close()


async def test_a_new_boat_gets_an_id_of_its_own_beside_adopted_ones(old: Path) -> None:
    async with running_cloud(old / "cloud") as house:
        async with dialed(house.port) as channel:
            boat = LplexBoat(channel, "boat-002")
            await boat.handshake(1)
            await send_frames(boat.live(), range(1, 11))
        assert house.node.channels.channel_named("boat-002").channel_id == 3
        first = next(block for block in house.log("boat-001").blocks() if block.leader.leader_epoch == 2)
        assert first.maker.kind == BlockKind.CONTROL
        assert isinstance(decode_control(first.maker, first.raw_body())[0], EpochStarted)


async def test_a_cloud_that_lost_its_metadata_founds_its_cluster_anew_from_the_logs(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, "boat-001")
        await boat.handshake(1)
        await send_frames(boat.live(), range(1, 101))
        name = house.node.core.node
    for damage in (_remove, _scribble):
        damage(tmp_path / ".tidelog" / "metadata")
        async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
            await house.wait_ready()
            assert house.status("boat-001").cursor == 100
            assert house.node.core.node == name
            assert any("metadata lost" in line for line in house.lines)
            assert (await LplexBoat(channel, "boat-001").handshake(100)).cursor == 100


def _remove(metadata: Path) -> None:
    shutil.rmtree(metadata)


def _scribble(metadata: Path) -> None:
    for path in metadata.rglob("*"):
        if path.is_file():
            path.write_bytes(b"x" * path.stat().st_size)
