"""Boats and a cluster of three: any node takes their streams, and a leader that dies takes nothing with it."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.patience import patient, wait_until
from tests.uplink.parties import (
    BoatParty,
    Fleet,
    LplexBoat,
    answer,
    backfill_block,
    code_of,
    dialed,
    live_frame,
    lpj_block,
    row,
    send_frames,
)
from tests.uplink.uplink_trio import UplinkTrio, plain_target, uplink_port, uplink_trio
from tidelog.cluster.boats.events import EventRing
from tidelog.cluster.node.process import Node
from tidelog.cluster.uplink.identity import PASSED_ON
from tidelog.cluster.uplink.service import SERVICE
from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.pki.certificates import DAY_US

NAME = "boat-001"
OURS = "Zephyr"
FAILOVER_S = 60.0


async def test_a_boat_that_dials_any_node_is_served_and_its_channel_has_three_replicas(tmp_path: Path) -> None:
    async with uplink_trio(tmp_path) as trio:
        for place, node in enumerate(trio.nodes.values()):
            async with dialed(uplink_port(node)) as channel:
                boat = LplexBoat(channel, NAME)
                assert (await boat.handshake(10 * place)).cursor == 10 * place
                seqs = range(10 * place + 1, 10 * place + 11)
                assert await send_frames(boat.live(), seqs) == 10 * place + 10
        record = trio.record(NAME)
        assert record is not None
        assert sorted(record.replicas) == ["n1", "n2", "n3"]
        leader = trio.leader_of(NAME)
        assert leader is not None
        assert [seq for seq, _ in trio.held(NAME, leader)] == list(range(1, 31)), "each frame once"
        # An ack means: on every in-sync replica.
        for name in record.isr_nodes:
            await wait_until(functools.partial(_holds, trio, trio.nodes[name], 30), f"{name} has it")


async def test_a_boat_of_ours_goes_to_the_leader_and_stays_where_it_was_if_it_cannot(tmp_path: Path) -> None:
    async with uplink_trio(tmp_path) as trio:
        boat = BoatParty(tmp_path / "boat")
        boat.dial(plain_target(trio.nodes["n1"], OURS))
        await boat.sail(5)
        await boat.wait_acked()
        leader = trio.leader_of(OURS)
        assert leader is not None
        assert leader.uplink is not None
        other = trio.others(OURS)[0]
        assert other.uplink is not None
        await boat.hang_up()
        boat.dial(plain_target(other, OURS))
        await boat.sail(5)
        await boat.wait_acked()
        assert boat.is_connected
        assert not other.uplink.relay._running, "it talks to the leader itself"
        await boat.hang_up()
        leader.uplink._address = "127.0.0.1:1"  # nobody is there
        boat.dial(plain_target(other, OURS))
        await boat.sail(5)
        await boat.wait_acked()
        assert len(other.uplink.relay._running) == 2, "Live and Backfill go through the node that was dialed"
        assert any("leader not reached" in line for line in boat.downs)
        await boat.close()


def _holds(trio: UplinkTrio, node: Node, count: int) -> bool:
    return len(trio.held(NAME, node)) == count


def _is_logged(events: EventRing) -> bool:
    return not events.has_unlogged


async def lplex_through(trio: UplinkTrio, acked: list[int], last_seq: int) -> None:
    """An lplex boat that sends until all is acked, dialing again whenever it is hung up on."""
    sent = [0]
    while not acked or acked[-1] < last_seq:
        node = trio.others(NAME)[0]
        try:
            async with dialed(uplink_port(node)) as channel:
                await lplex_session(LplexBoat(channel, NAME), sent, acked, last_seq)
        except (grpc.aio.AioRpcError, AssertionError, asyncio.InvalidStateError, TimeoutError):
            await asyncio.sleep(0.05)


async def lplex_session(boat: LplexBoat, sent: list[int], acked: list[int], last_seq: int) -> None:
    welcome = await boat.handshake(sent[-1])
    acked.append(welcome.cursor)
    backfill = boat.backfill() if welcome.holes else None
    for hole in welcome.holes:
        for start in range(hole.start, hole.end, 50):
            seqs = range(start, min(start + 50, hole.end))
            await backfill.write(backfill_block(seqs, lpj_block(seqs)))  # type: ignore[union-attr]
    live = boat.live()
    first = max(welcome.live_start_from, 1)
    sending = asyncio.ensure_future(_send(live, range(first, last_seq + 1), sent))
    try:
        while acked[-1] < last_seq:
            ack = pb.LiveDownstream.FromString(await answer(live))
            acked.append(ack.acked_through)
    finally:
        sending.cancel()
        await asyncio.wait({sending})


async def _send(live: Any, seqs: range, sent: list[int]) -> None:
    for seq in seqs:
        sent.append(max(sent[-1], seq))
        await live.write(live_frame(seq))
        if seq % 20 == 0:
            await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_leader_killed_in_the_middle_costs_no_frame_and_no_ack(tmp_path: Path) -> None:
    async with uplink_trio(tmp_path) as trio:
        ours = BoatParty(tmp_path / "boat")
        async with dialed(uplink_port(trio.nodes["n1"])) as channel:
            await LplexBoat(channel, NAME).handshake(0)
        victim = trio.leader_of(NAME)
        assert victim is not None
        ours.dial(plain_target(trio.others(NAME)[0], OURS))
        acked: list[int] = []
        lplex = asyncio.ensure_future(lplex_through(trio, acked, 2_000))
        await ours.sail(10)
        await wait_until(lambda: bool(acked) and acked[-1] > 300, "the lplex boat is in the middle")
        await trio.kill(victim.core.node)
        before = ours.journal.acked
        await ours.sail(30)
        await asyncio.wait_for(lplex, patient(FAILOVER_S))
        await ours.wait_acked(FAILOVER_S)
        assert ours.journal.acked >= before
        assert acked == sorted(acked), "acks never go back"
        for name, wanted in ((NAME, [(seq, row(seq)) for seq in range(1, 2_001)]), (OURS, ours.held())):
            leader = trio.leader_of(name)
            assert leader is not None
            assert leader is not victim
            assert sorted(trio.held(name, leader)) == wanted, "every frame once"
        await ours.close()


async def test_streams_end_with_a_status_that_says_come_again_when_leadership_moves(tmp_path: Path) -> None:
    async with uplink_trio(tmp_path) as trio:
        async with dialed(uplink_port(trio.nodes["n1"])) as channel:
            await LplexBoat(channel, NAME).handshake(0)
        await wait_until(lambda: trio.leader_of(NAME) is not None, "it is led")
        leader = trio.leader_of(NAME)
        assert leader is not None
        async with dialed(uplink_port(leader)) as direct, dialed(uplink_port(trio.others(NAME)[0])) as relayed:
            for head, channel in ((0, direct), (10, relayed)):
                boat = LplexBoat(channel, NAME)
                await boat.handshake(head)
                live = boat.live()
                await send_frames(live, range(head + 1, head + 11))
                record = trio.record(NAME)
                assert record is not None
                leader = trio.leader_of(NAME)
                assert leader is not None
                assert leader.uplink is not None
                events = leader.uplink.boats.watches[NAME].events
                await wait_until(functools.partial(_is_logged, events), "the log is told of it")
                replica = leader.core.channels.replicas.replica(record.channel_id)
                assert replica is not None
                replica.resign("the test wants it")
                leader.driver.pump_soon()
                assert await code_of(live) is grpc.StatusCode.UNAVAILABLE
                await wait_until(lambda: trio.leader_of(NAME) is not None, "somebody leads again", FAILOVER_S)
        leader = trio.leader_of(NAME)
        assert leader is not None
        assert leader.uplink is not None
        kinds = {event.type for event in leader.uplink.view.events(NAME, 100)}
        assert {"session_opened", "live_start"} <= kinds, "what happened before is known to the new leader"


async def test_a_relayed_boat_is_who_its_certificate_says_and_only_nodes_pass_boats_on(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet")
    begins_us, ends_us = fleet.now_us - DAY_US, fleet.now_us + DAY_US

    async with uplink_trio(tmp_path, fleet=fleet) as trio:
        boat = fleet.boat(NAME)
        async with dialed(uplink_port(trio.nodes["n1"]), fleet, boat) as channel:
            await LplexBoat(channel, NAME).handshake(0)
        other, leader = trio.others(NAME)[0], trio.leader_of(NAME)
        assert leader is not None
        async with dialed(uplink_port(other), fleet, boat) as channel:
            party = LplexBoat(channel, NAME)
            await party.handshake(0)
            assert await send_frames(party.live(), range(1, 11)) == 10
            assert leader.uplink is not None
            session = leader.uplink.boats.instances[NAME].session
            assert session is not None
            assert session.serials[0] == boat.serial, "the leader can tell when this certificate is revoked"
        forger = fleet.crafted(
            uris=["spiffe://fleet/node/n2"], common_names=["n2"], begins_us=begins_us, ends_us=ends_us
        )
        for credentials in (fleet.boat("boat-002"), forger):
            async with dialed(uplink_port(leader), fleet, credentials) as channel:
                hello = pb.HandshakeRequest(instance_id=NAME, head_seq=10).SerializeToString()
                call = channel.unary_unary(f"/{SERVICE}/Handshake")
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    await call(hello, metadata=((PASSED_ON, NAME),))
                assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.timeout(180)
async def test_a_cluster_that_was_stopped_and_started_again_goes_on_where_it_was(tmp_path: Path) -> None:
    boat = BoatParty(tmp_path / "boat")
    async with uplink_trio(tmp_path) as trio:
        boat.dial(plain_target(trio.nodes["n1"], OURS))
        await boat.sail(10)
        await boat.wait_acked()
        acked = boat.journal.acked
        for name in list(trio.nodes):
            await trio.nodes.pop(name).stop()
        await boat.hang_up()
        for name in trio.peers:
            await trio.start(name)
        await wait_until(trio.is_formed, f"three nodes again; {trio.lines[-20:]}", FAILOVER_S)
        boat.dial(plain_target(trio.nodes["n2"], OURS))
        await boat.sail(10)
        await boat.wait_acked(FAILOVER_S)
        assert boat.journal.acked >= acked
        leader = trio.leader_of(OURS)
        assert leader is not None
        assert sorted(trio.held(OURS, leader)) == boat.held(), "every frame once"
        assert leader.uplink is not None
        kinds = [event.type for event in leader.uplink.view.events(OURS, 100)]
        assert kinds.count("session_opened") >= 2, "what happened before the stop is known"
        await boat.close()
