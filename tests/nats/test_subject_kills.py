"""An attached subject while leaders are killed and frozen and the NATS server dies: every acked message is kept."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest
from benchmarks.kits.cluster_kit import OPERATOR, ClusterKit

from tests.nats.subject_kit import Publisher
from tests.patience import patient, wait_until
from tests.transports.nats_server import NatsServer
from tidelog.client import Client, LinkTlsFiles, connect
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.errors import LogError

SUBJECT = "fleet.positions"
CHANNEL = "positions"
WINDOW = 200
RESEND_S = 2.0
BETWEEN = 300
"""Acks between two faults: each one must be lived through."""
FAULT_S = 90.0


class Load:
    """Numbered messages on the subject, each sent until it is acked; NATS loses what nobody listens to."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._sent: dict[str, float] = {}
        self._next = 0
        self.acked: dict[str, int] = {}
        """Token to offset: the promise of the cluster."""
        self.errors: list[pb.Ack] = []
        self.resent = 0
        self.is_ending = False

    def on_ack(self, ack: pb.Ack) -> None:
        if ack.ackError != pb.Ack.OK:
            self.errors.append(ack)
        elif ack.correlationId in self._sent:
            del self._sent[ack.correlationId]
            self.acked[ack.correlationId] = ack.offset

    async def run(self) -> None:
        while self._sent or not self.is_ending:
            now = time.monotonic()
            for token in [token for token, sent in self._sent.items() if now - sent > RESEND_S]:
                self.resent += 1
                self._send(token)
            while len(self._sent) < WINDOW and not self.is_ending:
                self._next += 1
                self._send(str(self._next))
            await asyncio.sleep(0.005)

    def _send(self, token: str) -> None:
        self._sent[token] = time.monotonic()
        self._publisher.send(SUBJECT, b"message " + token.encode(), token=token, policy=pb.ALL)


def operator_files(kit: ClusterKit) -> LinkTlsFiles:
    place = kit.folder / "certificates"
    return LinkTlsFiles(
        certificate=place / f"{OPERATOR}.crt", key=place / f"{OPERATOR}.key", authority=place / "ca.crt"
    )


async def leader_of(client: Client, *, other_than: str = "") -> str:
    end = time.monotonic() + patient(FAULT_S)
    while time.monotonic() < end:
        with contextlib.suppress(LogError):
            found = (await client.describe(CHANNEL, timeout_ms=2_000))["leader"]
            if found is not None and found != other_than:
                return str(found)
        await asyncio.sleep(0.1)
    raise AssertionError("nobody leads the channel")


async def goes_on(kit: ClusterKit, load: Load) -> None:
    target = len(load.acked) + BETWEEN
    await wait_until(lambda: len(load.acked) >= target, f"acks go on\n{kit.last_words()}", deadline_s=FAULT_S)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["link", "nats"])
def test_every_acked_message_is_kept_while_leaders_and_the_server_die(tmp_path: Path, transport: str) -> None:
    async def story(kit: ClusterKit, server: NatsServer) -> None:
        kit.start_all()
        async with kit.caller() as caller:
            await kit.wait_formed(caller)
        async with (
            await connect([kit.address(name) for name in kit.names], tls=operator_files(kit)) as client,
            Publisher(server.url, on_ack=lambda ack: load.on_ack(ack)) as publisher,
            asyncio.TaskGroup() as group,
        ):
            load = Load(publisher)
            await client.create_channel(CHANNEL, factor=3, subject=SUBJECT, heartbeat_ms=100)
            group.create_task(load.run())
            for fault in ("kill", "freeze", "kill", "server", "kill", "freeze", "kill", "server", "kill", "kill"):
                await goes_on(kit, load)
                await strike(kit, server, client, fault)
            await goes_on(kit, load)
            load.is_ending = True
            await wait_until(lambda: not load._sent, "all are acked", deadline_s=FAULT_S)
            await check(client, load)

    with NatsServer(tmp_path / "nats") as server:
        settings = ("-nats-servers", server.url, "-transport", transport)
        with ClusterKit(tmp_path, settings=settings) as kit:
            asyncio.run(asyncio.wait_for(story(kit, server), patient(570)))


async def strike(kit: ClusterKit, server: NatsServer, client: Client, fault: str) -> None:
    if fault == "server":
        server.kill()
        await asyncio.sleep(0.5)  # the time that it is away
        server.start()
        return
    leader = await leader_of(client)
    (kit.kill if fault == "kill" else kit.pause)(leader)
    await leader_of(client, other_than=leader)
    (kit.start if fault == "kill" else kit.resume)(leader)


async def check(client: Client, load: Load) -> None:
    """What an ack said is where it said, and nothing was acked as refused."""
    end = max(load.acked.values()) + 1
    found: dict[int, bytes | None] = {}
    async with asyncio.timeout(patient(FAULT_S)), client.reader(CHANNEL) as reader:
        while not found or max(found) < end - 1:
            found |= {record.offset: record.value for record in await reader.read()}  # type: ignore[union-attr]
    wrong = {token: offset for token, offset in load.acked.items() if found.get(offset) != b"message " + token.encode()}
    assert not wrong, f"{len(wrong)} of {len(load.acked)} acked messages are not there: {list(wrong.items())[:5]}"
    assert len(set(load.acked.values())) == len(load.acked)
    assert not load.errors, load.errors[:3]
    print(f"acked={len(load.acked)} stored={len(found)} resent={load.resent}")
