"""From a boat's bus to an event stream of the cloud: the whole way, over real sockets (lplex's integration_test.go)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http.parties import Client, Events, options, serving
from tests.patience import patient
from tests.uplink.parties import BoatParty, CloudParty, Fleet, LplexBoat, answer, dialed, row, target
from tidelog.cluster.http.cloud_http import CloudHttp
from tidelog.cluster.http.store_view import StoreView
from tidelog.codecs.proto import replication_pb2 as pb

NAME, OTHER = "boat-001", "boat-002"
POSITION, ENGINE = 129025, 127488


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


@asynccontextmanager
async def cloud_with_http(folder: Path, fleet: Fleet) -> AsyncIterator[tuple[CloudParty, Client]]:
    async with CloudParty(folder / "cloud", fleet).running() as cloud:
        http = CloudHttp(options(), view=StoreView(cloud.service))
        async with serving(http.server) as client:
            yield cloud, client


async def frames(events: Events, count: int) -> list[dict[str, Any]]:
    """The next frames; what else is on the stream is passed over."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        event = await asyncio.wait_for(events.next(), patient(10))
        assert event is not None, "the stream ended"
        if "type" not in event:
            found.append(event)
    return found


async def test_live_frames_arrive_in_order_with_seq_and_pgn(tmp_path: Path, fleet: Fleet) -> None:
    boat = BoatParty(tmp_path / "boat")
    async with cloud_with_http(tmp_path, fleet) as (cloud, client):
        boat.dial(target(fleet, cloud.port, NAME))
        boat.record(1)
        await boat.wait_acked()
        async with client.events(f"/instances/{NAME}/events") as events:
            await boat.sail(10)
            found = await frames(events, 100)
        assert [event["seq"] for event in found] == list(range(2, 102))
        assert {event["pgn"] for event in found} == {POSITION}
        assert [bytes.fromhex(event["data"]) for event in found] == [row(seq)[2] for seq in range(2, 102)]
        await boat.close()


async def test_an_unknown_boat_is_404_and_a_known_one_is_listed(tmp_path: Path, fleet: Fleet) -> None:
    boat = BoatParty(tmp_path / "boat")
    async with cloud_with_http(tmp_path, fleet) as (cloud, client):
        for path in ("events", "status", "devices", "values"):
            assert (await client.ask(f"/instances/{OTHER}/{path}", check=False)).status == 404
        boat.dial(target(fleet, cloud.port, NAME))
        await boat.sail(5)
        await boat.wait_acked()
        listed = (await client.ask("/instances")).json["instances"]
        assert [found["id"] for found in listed] == [NAME]
        status = (await client.ask(f"/instances/{NAME}/status")).json
        assert (status["connected"], status["cursor"], status["boat_head_seq"]) == (True, 50, 50)
        assert status["holes"] == []
        await boat.close()


async def send(live: Any, seq: int, pgn: int) -> None:
    frame = pb.LiveFrame(seq=seq, timestamp_us=row(seq)[0], can_id=0x08000000 | pgn << 8 | 3, data=bytes(8))
    await live.write(pb.LiveUpstream(frame=frame).SerializeToString())


async def test_a_filter_leaves_out_other_pgns(tmp_path: Path, fleet: Fleet) -> None:
    async with (
        cloud_with_http(tmp_path, fleet) as (cloud, client),
        dialed(cloud.port, fleet, fleet.boat(NAME)) as channel,
    ):
        boat = LplexBoat(channel, NAME)
        await boat.handshake(0)
        live = boat.live()
        async with client.events(f"/instances/{NAME}/events?pgn={ENGINE}") as events:
            for seq in range(1, 21):
                await send(live, seq, ENGINE if seq % 5 == 0 else POSITION)
            await answer(live)
            found = await frames(events, 4)
        assert [(event["seq"], event["pgn"]) for event in found] == [(seq, ENGINE) for seq in (5, 10, 15, 20)]


async def test_streams_of_two_boats_do_not_mix(tmp_path: Path, fleet: Fleet) -> None:
    boats = {name: BoatParty(tmp_path / name) for name in (NAME, OTHER)}
    async with cloud_with_http(tmp_path, fleet) as (cloud, client):
        for name, boat in boats.items():
            boat.dial(target(fleet, cloud.port, name))
            boat.record(1)
            await boat.wait_acked()
        async with (
            client.events(f"/instances/{NAME}/events") as mine,
            client.events(f"/instances/{OTHER}/events") as theirs,
        ):
            boats[NAME].record(20)
            found = await frames(mine, 20)
            boats[OTHER].record(5)
            others = await frames(theirs, 5)
        assert [event["seq"] for event in found] == list(range(2, 22))
        assert [event["seq"] for event in others] == list(range(2, 7)), "nothing of the first boat came before"
        for boat in boats.values():
            await boat.close()


async def test_a_stream_goes_on_after_the_boat_came_back_and_shows_no_history(tmp_path: Path, fleet: Fleet) -> None:
    boat = BoatParty(tmp_path / "boat")
    async with cloud_with_http(tmp_path, fleet) as (cloud, client):
        boat.dial(target(fleet, cloud.port, NAME))
        boat.record(10)
        await boat.wait_acked()
        async with client.events(f"/instances/{NAME}/events") as events:
            await boat.hang_up()
            boat.record(30)  # these go by Backfill
            boat.dial(target(fleet, cloud.port, NAME))
            await boat.wait_acked()
            boat.record(10)
            found = await frames(events, 10)
        assert [event["seq"] for event in found] == list(range(41, 51))
        await boat.close()
