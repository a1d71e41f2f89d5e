"""Boat and cloud over real sockets and real certificates: nothing lost, each record once, whatever the link does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.patience import wait_until
from tests.uplink.parties import BoatParty, CloudParty, Fleet, Proxy, assert_equal_logs, run, target
from tidelog.blocks.block import MadeBlock
from tidelog.cluster.uplink import service as uplink_service
from tidelog.cluster.uplink.instance import Instance
from tidelog.cluster.uplink.session import Session
from tidelog.cluster.uplink.streams import take_backfill
from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.uplink.client import UplinkClient
from tidelog.storage.log.writer import steady_clock_ms, wall_clock_us

NAME = "boat-001"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


async def test_history_and_live_frames_arrive_each_once(tmp_path: Path, fleet: Fleet) -> None:
    boat = BoatParty(tmp_path / "boat")
    boat.record(5_000)
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        boat.dial(target(fleet, cloud.port, NAME))
        await boat.sail(80)
        await boat.wait_acked()
        assert_equal_logs(boat, cloud, NAME)
        statistics = boat.uplink.statistics()
        assert statistics.backfill_blocks_sent, "history goes by Backfill"
        assert statistics.live_frames_sent, "new frames go by Live"
        assert not boat.downs
        await boat.close()


async def test_two_boats_do_not_mix(tmp_path: Path, fleet: Fleet) -> None:
    names = ["boat-001", "boat-002"]
    boats = {name: BoatParty(tmp_path / name) for name in names}
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        for name, boat in boats.items():
            boat.record(300)
            boat.dial(target(fleet, cloud.port, name))
        await asyncio.gather(*(boat.sail(30) for boat in boats.values()))
        for name, boat in boats.items():
            await boat.wait_acked()
            assert_equal_logs(boat, cloud, name)
            await boat.close()
        assert sorted(cloud.names()) == names


async def test_a_boat_that_was_closed_goes_on_where_it_was(tmp_path: Path, fleet: Fleet) -> None:
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        for _ in range(3):
            boat = BoatParty(tmp_path / "boat")
            boat.record(200)
            boat.dial(target(fleet, cloud.port, NAME))
            await boat.sail(10)
            await boat.wait_acked()
            boat.record(50)  # these may or may not leave before the end
            await boat.close()
        boat = BoatParty(tmp_path / "boat")
        boat.dial(target(fleet, cloud.port, NAME))
        await boat.wait_acked()
        assert boat.journal.head == 3 * 350
        assert_equal_logs(boat, cloud, NAME)
        await boat.close()


@pytest.mark.parametrize("how", ["closed", "crashed"])
async def test_cloud_stopped_in_the_middle_loses_nothing(tmp_path: Path, fleet: Fleet, how: str) -> None:
    boat = BoatParty(tmp_path / "boat")
    boat.record(20_000)
    cloud = CloudParty(tmp_path / "cloud", fleet)
    await cloud.start()
    boat.dial(target(fleet, cloud.port, NAME))
    for _ in range(2):
        await boat.sail(10)
        await wait_until(lambda: len(cloud.held(NAME)) > 0, "something arrived")
        acked = boat.journal.acked
        await (cloud.stop() if how == "closed" else cloud.crash())
        await boat.sail(10)
        assert not boat.is_done
        await cloud.start()
        there = {seq for seq, _ in cloud.held(NAME)}
        assert there.issuperset(range(1, acked + 1)), "what was acked is there after the crash"
    await boat.sail(10)
    await boat.wait_acked()
    assert boat.downs
    assert_equal_logs(boat, cloud, NAME)
    await boat.close()
    await cloud.stop()


async def test_link_cut_again_and_again_loses_nothing(tmp_path: Path, fleet: Fleet) -> None:
    boat = BoatParty(tmp_path / "boat")
    boat.record(3_000)
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud, Proxy(cloud.port).running() as proxy:
        boat.dial(target(fleet, proxy.port, NAME))
        for number in range(1, 6):
            await boat.sail(15)
            await wait_until(lambda: boat.is_connected, "the boat is back")
            proxy.refusing = number % 2 == 0
            proxy.cut()
            await wait_until(lambda number=number: len(boat.downs) >= number, "the boat noticed")  # type: ignore[misc]
            await boat.sail(5)
            proxy.refusing = False
        await boat.wait_acked()
        assert proxy.connections > 5
        assert_equal_logs(boat, cloud, NAME)
        await boat.close()


async def test_half_open_link_is_noticed_by_silence_and_heals(tmp_path: Path, fleet: Fleet) -> None:
    config = SenderConfig(backoff_first_ms=40, backoff_max_ms=160, silence_max_ms=700, status_interval_ms=200)

    boat = BoatParty(tmp_path / "boat", config=config)
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud, Proxy(cloud.port).running() as proxy:
        boat.dial(target(fleet, proxy.port, NAME))
        await boat.sail(10)
        await boat.wait_acked()
        proxy.swallow()
        await boat.sail(10)
        await wait_until(lambda: any("no answer" in reason for reason in boat.downs), "silence is noticed")
        assert not boat.is_done
        proxy.heal()
        await boat.sail(10)
        await boat.wait_acked()
        assert_equal_logs(boat, cloud, NAME)
        await boat.close()


async def test_cloud_that_is_not_there_yet_is_found_when_it_comes(tmp_path: Path, fleet: Fleet) -> None:
    cloud = CloudParty(tmp_path / "cloud", fleet)
    await cloud.start()
    await cloud.stop()
    boat = BoatParty(tmp_path / "boat")
    boat.record(100)
    boat.dial(target(fleet, cloud.port, NAME))
    await wait_until(lambda: boat.uplink.statistics().dials >= 4, "the boat tried")
    assert all("UNAVAILABLE" in reason for reason in boat.downs)
    await cloud.start()
    await boat.wait_acked()
    assert_equal_logs(boat, cloud, NAME)
    await boat.close()
    await cloud.stop()


async def test_second_process_with_a_boats_certificate_waits_until_the_first_is_gone(
    tmp_path: Path, fleet: Fleet
) -> None:
    """They took the session from each other every second, and both delivered."""

    boat, other = BoatParty(tmp_path / "boat"), BoatParty(tmp_path / "other")
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        boat.dial(target(fleet, cloud.port, NAME))
        await boat.sail(5)
        await boat.wait_acked()
        other.record(70)
        other.dial(target(fleet, cloud.port, NAME))
        await wait_until(lambda: bool(other.downs), "the second is told")
        assert f"name_in_use: another process has used the name {NAME} since 20" in other.downs[0]
        await boat.sail(20)
        await boat.wait_acked()
        assert (cloud.session(NAME), boat.downs, other.journal.acked) == (1, [], 0)
        assert cloud.service.instances[NAME].status().name_in_use >= 1
        assert sum("name_in_use" in line for line in other.downs) == 1, "once, and not for every dial"
        await boat.hang_up()
        await other.wait_acked()
        assert "after='name_in_use'" in other.ups[0]
        # Two journals of one boat are two lineages: no seq ever means two frames.
        for party in (boat, other):
            there = cloud.held(NAME, party.journal.lineage)
            assert sorted(there) == party.held()
        assert [line.split()[1] for line in cloud.lines] == ["connected", "refused", "recovered"]
        await boat.close()
        await other.close()


async def test_a_boat_that_dials_again_over_a_half_open_link_takes_its_own_session_over_at_once(
    tmp_path: Path, fleet: Fleet
) -> None:
    """U2: the cloud has not noticed that the link is dead, and the same process is there again."""

    boat = BoatParty(tmp_path / "boat")
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        boat.dial(target(fleet, cloud.port, NAME))
        await boat.sail(5)
        await boat.wait_acked()
        # What a half-open link leaves behind: the old streams run on, as far as the cloud knows.
        old = cloud.service.instances[NAME].session
        client = UplinkClient(uplink=boat.uplink, target=target(fleet, cloud.port, NAME))
        boat.uplink.disconnected(steady_clock_ms())
        boat.record(10)
        task = asyncio.ensure_future(client.run())
        await wait_until(lambda: cloud.session(NAME) == 2, "it is let in")
        assert old is not None
        assert old.refusal is not None
        assert old.refusal.code == "session_fenced"
        await wait_until(lambda: "boat fenced name=boat-001 session=1 by=2" in cloud.lines, "the log says so")
        await boat.wait_acked()
        task.cancel()
        await asyncio.wait({task})
        await boat.close()


async def test_full_disk_of_the_cloud_refuses_until_there_is_room_and_loses_nothing(
    tmp_path: Path, fleet: Fleet
) -> None:
    boat = BoatParty(tmp_path / "boat")
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        boat.dial(target(fleet, cloud.port, NAME))
        await boat.sail(10)
        await boat.wait_acked()
        cloud.disk.is_full = True
        await boat.sail(10)
        dials = boat.uplink.statistics().dials
        await wait_until(lambda: boat.uplink.statistics().dials >= dials + 3, "the boat is refused when it dials too")
        assert any("RESOURCE_EXHAUSTED: disk_full" in reason for reason in boat.downs)
        assert boat.journal.acked == 100, "nothing that was refused is acked"
        cloud.disk.is_full = False
        await boat.sail(10)
        await boat.wait_acked()
        assert_equal_logs(boat, cloud, NAME)
        await boat.close()


def test_a_backfilled_block_is_where_the_client_says_in_the_sealed_file_that_holds_its_seq(
    tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seed's file offset, end to end: read from what the real client sends, looked up in the real files."""
    sent: list[pb.BackfillUpstream] = []

    async def listening(instance: Instance, session: Session, requests: AsyncIterator[bytes]) -> None:
        async def heard() -> AsyncIterator[bytes]:
            async for data in requests:
                sent.append(pb.BackfillUpstream.FromString(data))
                yield data

        await take_backfill(instance, session, heard())

    monkeypatch.setattr(uplink_service, "take_backfill", listening)

    async def scenario() -> None:
        boat = BoatParty(tmp_path / "boat")
        for _ in range(3):
            boat.record(2_000)
            boat.journal.seal_all(wall_clock_us())
            boat.journal.sealed.roll(wall_clock_us())
        async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
            boat.dial(target(fleet, cloud.port, NAME))
            await boat.wait_acked()
            await boat.close()

    run(scenario())
    files = {path.name: path.read_bytes() for path in (tmp_path / "boat/journal/sealed").glob("*.seg")}
    found: list[tuple[range, list[str]]] = []
    for message in sent:
        for data, at in zip(message.made_blocks, message.file_offsets, strict=True):
            made = MadeBlock.parse(data)
            head = bytes(made.maker_bytes)
            found.append((made.maker.seqs, [name for name, file in files.items() if file[at : at + len(head)] == head]))
    assert sorted(seqs.start for seqs, _ in found) == [1, 2_001, 4_001]
    assert all(len(names) == 1 for _, names in found), "the offset and the base seq name one place"
    assert len({names[0] for _, names in found}) == 3
