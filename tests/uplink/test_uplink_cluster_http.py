"""Any node of a cluster answers about any boat: by itself, or by asking the node that leads it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from tests.patience import patient, wait_until
from tests.uplink.parties import HOST, LplexBoat, dialed, send_frames
from tests.uplink.uplink_trio import UplinkTrio, uplink_port, uplink_trio
from tidelog.cluster.http.relay import PASSED_ON
from tidelog.cluster.node.process import Node

BOATS = ["boat-001", "boat-002", "boat-003", "boat-004"]


def url(node: Node, path: str) -> str:
    return f"http://{HOST}:{node.http_port}{path}"


async def ask(session: aiohttp.ClientSession, node: Node, path: str, **headers: str) -> tuple[int, Any]:
    async with session.get(url(node, path), headers=headers) as answer:
        return answer.status, await answer.json()


async def sail_all(trio: UplinkTrio) -> None:
    for name in BOATS:
        async with dialed(uplink_port(trio.nodes["n1"])) as channel:
            boat = LplexBoat(channel, name)
            await boat.handshake(0)
            await send_frames(boat.live(), range(1, 21))
    await wait_until(lambda: all(trio.leader_of(name) is not None for name in BOATS), "every boat is led")


async def test_every_node_lists_and_describes_every_boat(tmp_path: Path) -> None:
    async with uplink_trio(tmp_path, http=True) as trio, aiohttp.ClientSession() as session:
        await sail_all(trio)
        for node in trio.nodes.values():
            status, listed = await ask(session, node, "/instances")
            assert status == 200, listed
            assert [item["id"] for item in listed["instances"]] == BOATS
            assert {item["cursor"] for item in listed["instances"]} == {20}
            for name in BOATS:
                status, found = await ask(session, node, f"/instances/{name}/status")
                assert (status, found["id"], found["cursor"]) == (200, name, 20)
                status, events = await ask(session, node, f"/instances/{name}/replication/events")
                assert "session_opened" in [event["type"] for event in events]
                status, frames = await ask(session, node, f"/instances/{name}/history?from=2020-01-01T00:00:00Z")
                assert status == 200, frames
                assert [frame["seq"] for frame in frames] == list(range(1, 21))
            status, refused = await ask(session, node, "/instances/nobody/status")
            assert (status, refused["error"]) == (404, "not_found")


async def test_an_event_stream_is_passed_on_and_ends_when_leadership_moves(tmp_path: Path) -> None:
    async with uplink_trio(tmp_path, http=True) as trio, aiohttp.ClientSession() as session:
        await sail_all(trio)
        name = BOATS[0]
        leader, other = trio.leader_of(name), trio.others(name)[0]
        assert leader is not None
        async with (
            session.get(url(other, f"/instances/{name}/events")) as stream,
            dialed(uplink_port(other)) as channel,
        ):
            assert stream.content_type == "text/event-stream"
            boat = LplexBoat(channel, name)
            await boat.handshake(20)
            await send_frames(boat.live(), range(21, 31))
            seen: list[int] = []
            while len(seen) < 10:
                line = await asyncio.wait_for(stream.content.readline(), patient(20))
                if line.startswith(b"data:"):
                    seen.append(json.loads(line[5:])["seq"])
            assert seen == list(range(21, 31))
            record = trio.record(name)
            assert record is not None
            replica = leader.core.channels.replicas.replica(record.channel_id)
            assert replica is not None
            replica.resign("the test wants it")
            leader.driver.pump_soon()
            while await asyncio.wait_for(stream.content.readline(), patient(20)):
                pass


async def test_requests_never_go_in_circles_and_a_leader_without_http_is_said_so(tmp_path: Path) -> None:
    async with uplink_trio(tmp_path, http=True) as trio, aiohttp.ClientSession() as session:
        await sail_all(trio)
        name = BOATS[0]
        other = trio.others(name)[0]
        status, refused = await ask(session, other, f"/instances/{name}/status", **{PASSED_ON: "n9"})
        assert (status, refused["error"]) == (503, "leader_moved")
        assert other.uplink is not None
        relay = other.uplink.http_relay
        leader = trio.leader_of(name)
        assert leader is not None
        await trio.kill(leader.core.node)
        status, refused = await ask(session, other, f"/instances/{name}/status")
        assert status in (200, 503)
        assert status == 200 or refused["error"] in ("leader_unreachable", "not_ready", "leader_moved"), refused
        assert relay._session is not None
