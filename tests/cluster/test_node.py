"""Three nodes in this process, over real sockets: any of them takes any request, and every request ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.patience import patient, wait_until
from tests.ports import free_port
from tidelog.blocks.messages import encode_values
from tidelog.cluster.node.cluster_client import ClusterClient
from tidelog.cluster.node.process import Node, NodeProcessOptions
from tidelog.cluster.produce_order import ProduceOrder
from tidelog.core.catalog import AddGrant, AdmitNode, FenceNode, RemoveNode
from tidelog.errors import AddressTaken, FolderLocked, InvalidConfig, LogError, PeerRefused, UnknownChannel, UnknownNode

DEADLINE_S = 60.0


class Trio:
    """n1, n2 and n3, formed."""

    def __init__(self, folder: Path, names: tuple[str, ...] = ("n1", "n2", "n3")) -> None:
        self.folder = folder
        self.peers = {name: f"127.0.0.1:{free_port()}" for name in names}
        self.nodes: dict[str, Node] = {}
        self.lines: list[str] = []

    async def start(self, name: str, *, folder: str | None = None) -> Node:
        options = NodeProcessOptions(
            node=name,
            listen=self.peers[name],
            peers=self.peers,
            data_dir=self.folder / (folder or name),
            insecure_dev=True,
        )
        node = Node(options, log=lambda line: self.lines.append(f"{name} {line}"))
        await node.start()
        self.nodes[name] = node
        return node

    async def stop(self, name: str) -> None:
        await self.nodes.pop(name).stop()

    @property
    def leader(self) -> Node:
        return next(node for node in self.nodes.values() if node.core.is_leader)

    @property
    def followers(self) -> list[Node]:
        return [node for node in self.nodes.values() if not node.core.is_leader]

    def is_formed(self) -> bool:
        def stands(node: Node) -> bool:
            member = node.core.member
            return node.core.is_registered and member is not None and member.raft.is_voter

        return all(map(stands, self.nodes.values())) and any(node.core.is_leader for node in self.nodes.values())


@contextlib.asynccontextmanager
async def formed(folder: Path) -> AsyncIterator[Trio]:
    trio = Trio(folder)
    try:
        for name in trio.peers:
            await trio.start(name)
        await wait_until(trio.is_formed, f"three voters; {trio.lines}")
        yield trio
    finally:
        for name in list(trio.nodes):
            await trio.stop(name)


def grant(channels: str) -> AddGrant:
    return AddGrant(principal="boat:b1", scope="read:data", channels=channels)


async def test_any_node_takes_a_change_and_all_apply_it(tmp_path: Path) -> None:
    async with formed(tmp_path) as trio:
        for place, node in enumerate(trio.nodes.values()):
            index = await node.requests.propose(grant(f"c{place}"))
            assert await node.requests.read_barrier() >= index
            assert node.core.catalog is not None
            assert any(found.channels == f"c{place}" for found in node.core.catalog.grants())
        digests = set()
        for node in trio.nodes.values():
            await node.requests.read_barrier()
            assert node.core.catalog is not None
            digests.add(node.core.catalog.digest())
        assert len(digests) == 1


async def test_a_refusal_is_the_same_wherever_it_was_asked(tmp_path: Path) -> None:
    async with formed(tmp_path) as trio:
        change = FenceNode(node="n9", expected_incarnation=1)
        with pytest.raises(LogError) as here:
            await trio.leader.requests.propose(change)
        with pytest.raises(LogError) as there:
            await trio.followers[0].requests.propose(change)
        assert here.value.code == there.value.code == "unknown_node"
        assert str(here.value) in str(there.value)
        with pytest.raises(UnknownChannel):
            trio.leader.channels.submit(99, ProduceOrder(None, encode_values([b"two"], time_us=1)))


async def test_many_changes_at_once_share_writes(tmp_path: Path) -> None:
    async with formed(tmp_path) as trio:
        writer = trio.leader.writer
        assert writer is not None
        before = writer.statistics.writes
        await asyncio.gather(*(trio.leader.requests.propose(grant(f"c{number}")) for number in range(64)))
        assert writer.statistics.writes - before <= 16


async def test_leadership_moves_where_it_is_asked_to_and_a_stopping_leader_hands_over(tmp_path: Path) -> None:
    async with formed(tmp_path) as trio:
        target = trio.followers[-1].core.node
        assert await trio.followers[0].requests.transfer(target) == target
        await wait_until(lambda: trio.nodes[target].core.is_leader, "the target leads")
        with pytest.raises(UnknownNode):
            await trio.leader.requests.transfer("n9")
        term = trio.leader.core.member.raft.term  # type: ignore[union-attr]
        await trio.stop(target)
        await wait_until(lambda: any(node.core.is_leader for node in trio.nodes.values()), "another leads")
        assert trio.leader.core.member.raft.term == term + 1  # type: ignore[union-attr]


async def test_a_node_that_comes_back_is_a_higher_incarnation_of_the_same_member(tmp_path: Path) -> None:
    async with formed(tmp_path) as trio:
        name = trio.followers[0].core.node
        member, incarnation = trio.nodes[name].core.member, trio.nodes[name].core.incarnation
        await trio.stop(name)
        await trio.leader.requests.propose(grant("meanwhile"))
        again = await trio.start(name)
        await wait_until(lambda: again.core.is_registered, "it is registered again")
        assert again.core.incarnation > incarnation
        assert again.core.member is not None
        assert member is not None
        assert again.core.member.member == member.member
        await again.requests.read_barrier()
        assert again.core.catalog is not None
        assert len(again.core.catalog.grants()) == 1


async def test_a_node_with_an_empty_folder_comes_back_as_another_disk(tmp_path: Path) -> None:
    async with formed(tmp_path) as trio:
        name = trio.followers[0].core.node
        old = trio.nodes[name].core.member
        assert old is not None
        await trio.stop(name)
        again = await trio.start(name, folder="empty")
        await wait_until(trio.is_formed, f"it is a voter again; {trio.lines}")
        members = trio.leader.core.member.raft.members  # type: ignore[union-attr]
        assert old.member not in members
        assert again.core.member is not None
        assert again.core.member.member in members.voters


async def test_the_same_folder_and_the_same_port_are_refused(tmp_path: Path) -> None:
    """NS1."""

    trio = Trio(tmp_path, ("n1",))
    await trio.start("n1")
    try:
        alone = {"n1": f"127.0.0.1:{free_port()}"}
        twin = Node(
            NodeProcessOptions(node="n1", listen=alone["n1"], peers=alone, data_dir=tmp_path / "n1", insecure_dev=True)
        )
        with pytest.raises(FolderLocked):
            await twin.start()
        squatter = Node(
            NodeProcessOptions(
                node="n1", listen=trio.peers["n1"], peers={}, data_dir=tmp_path / "other", insecure_dev=True
            )
        )
        with pytest.raises(AddressTaken):
            await squatter.start()
        await wait_until(lambda: trio.nodes["n1"].core.is_registered, "the first one goes on")
    finally:
        await trio.stop("n1")


def test_a_node_without_certificates_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="certificate"):
        NodeProcessOptions(node="n1", listen="127.0.0.1:0", peers={}, data_dir=tmp_path)


async def test_an_operator_may_add_and_remove_nodes_and_nothing_else(tmp_path: Path) -> None:
    async with formed(tmp_path) as trio:
        follower = trio.followers[0].core.node
        async with ClusterClient([trio.peers[follower]], tls=None, insecure_dev=True) as client:
            await client.add("n4")
            assert (await client.read("node", "n4"))["node"]["state"] == "expected"
            await client.remove("n4")
            assert (await client.read("node", "n4"))["node"]["state"] == "removed"
            with pytest.raises(PeerRefused, match="operator adds and removes"):
                await client.propose(grant("x"))
            status = await client.status()
            assert status["leader_status"]["standing"] == "leader"
            assert {node["node"] for node in status["nodes"]} == {"n1", "n2", "n3"}
            for nonsense in (b"", b"[]", b"{}", b'{"channel": 3}', b'{"x": "y"}'):
                with pytest.raises(PeerRefused, match="one channel or one node"):
                    await client._ask(0x0103, nonsense)
            with pytest.raises(PeerRefused):
                await client._ask(0x0999, b"")


async def test_a_removed_node_leaves_the_group_and_does_not_come_back_by_itself(tmp_path: Path) -> None:
    async with formed(tmp_path) as trio:
        name = trio.followers[0].core.node
        await trio.leader.requests.propose(RemoveNode(node=name))
        leader = trio.leader.core.member
        assert leader is not None
        await wait_until(lambda: len(leader.raft.members.all) == 2, "it left the group")
        await trio.stop(name)
        again = await trio.start(name)
        await wait_until(lambda: again.core.registration.refusal is not None, "it is told why")
        assert not again.core.is_registered
        await trio.leader.requests.propose(AdmitNode(node=name))
        await wait_until(lambda: again.core.is_registered, "admitted again, it comes back")


async def test_large_bodies_show_what_a_link_can_carry(tmp_path: Path) -> None:
    """R10: 1 Gbit/s is assumed until a transfer has shown the real peak."""

    async with formed(tmp_path) as trio:
        sender, receiver = trio.nodes["n1"], trio.nodes["n2"]
        assert receiver.core.heartbeats.peak_bytes_per_s("n1") == 125_000_000
        body = bytes(8 << 20)

        async def shown() -> bool:
            with pytest.raises(PeerRefused, match="one channel or one node"):
                await sender.pool.request("n2", 0x0103, body, timeout_ms=30_000)
            return receiver.core.heartbeats.peak_bytes_per_s("n1") != 125_000_000

        async with asyncio.timeout(patient(DEADLINE_S)):
            while not await shown():
                pass
        report = receiver.core.heartbeats.report(receiver.now_ms())
        assert next(hearing for hearing in report.hearings if hearing.node == "n1").peak_bytes_per_s > 0
