"""A pool keeps one link to every peer, whichever side dials, and whatever breaks."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.patience import wait_until
from tests.transports.links import CLUSTER, HOST, OTHER_CLUSTER, TIMEOUT_MS, Recorder, echo, plain_end, refusal_of
from tidelog.errors import InvalidConfig, LinkClosed, LogError, PeerUnreachable
from tidelog.transports.link.link import Buffers, Link, LinkListener, dial_link
from tidelog.transports.link.pool import LinkPool, PoolOptions

EAGER = PoolOptions(backoff_first_ms=10, backoff_max_ms=40, patience_ms=0)


class Node:
    """A pool with a listener, and what it was told."""

    def __init__(self, name: str, *, port: int = 0, cluster: bytes = CLUSTER, seed: int = 1) -> None:
        self.name = name
        self.handler = Recorder(answers={1: echo})
        self.told: list[tuple[str, str]] = []
        self.lines: list[str] = []
        end = replace(plain_end(name, cluster=cluster), log=self.lines.append)
        self.pool = LinkPool(
            end=end,
            handler=self.handler,
            dice=random.Random(f"{name} {seed}"),
            options=EAGER,
            on_up=lambda link: self.told.append(("up", link.peer)),
            on_down=lambda node, _: self.told.append(("down", node)),
        )
        self.listener = LinkListener(
            f"{HOST}:{port}",
            end=end,
            handler=self.handler,
            on_link=self.pool.admit,
            allowed_kinds=("node", "operator"),
        )
        self._running: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.listener.port}"

    async def start(self) -> None:
        await self.listener.start()
        self._running = asyncio.create_task(self.pool.run())
        await asyncio.sleep(0)

    async def stop(self) -> None:
        await self.listener.close()
        await self.pool.close(drain_ms=200)
        assert self._running is not None
        await self._running

    def crash(self) -> None:
        """Every connection breaks, and nothing is said."""
        for link in [*self.pool._links.values()]:
            link.abort("a crash")


@contextlib.asynccontextmanager
async def cluster(*names: str, seed: int = 1) -> AsyncIterator[list[Node]]:
    nodes = [Node(name, seed=seed) for name in names]
    for node in nodes:
        await node.start()
    try:
        yield nodes
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))


def introduce(nodes: list[Node]) -> None:
    for node in nodes:
        for other in nodes:
            if other is not node:
                node.pool.set_peer(other.name, other.address)


def all_up(nodes: list[Node]) -> bool:
    return all(len(node.pool.nodes_up()) == len(nodes) - 1 for node in nodes)


async def settled(nodes: list[Node]) -> None:
    """Until every pair has one link, and no second one is being drained."""
    await wait_until(lambda: all_up(nodes) and not any(node.pool._others for node in nodes))


async def test_every_pair_has_one_link_and_says_everything_over_it() -> None:
    async with cluster("n1", "n2", "n3") as nodes:
        introduce(nodes)
        await settled(nodes)
        assert all(node.listener.links + len(node.pool._links) >= 2 for node in nodes)
        for node in nodes:
            for other in nodes:
                if other is not node:
                    assert bytes(await node.pool.request(other.name, 1, b"hi", timeout_ms=TIMEOUT_MS)) == b"hi"
                    assert node.pool.send(other.name, [(7, node.name.encode())])
        await wait_until(lambda: all(len(node.handler.messages) == 2 for node in nodes))
        statistics = nodes[0].pool.statistics()
        assert set(statistics) == {"n2", "n3"}
        assert all(one.is_up and one.link is not None and one.ups == 1 for one in statistics.values())


@pytest.mark.parametrize("seed", range(6))
async def test_when_both_dial_at_once_the_smaller_ones_link_stays_on_both_sides(seed: int) -> None:
    async with cluster("n1", "n2", seed=seed) as (first, second):
        # Both dial by hand, at the same moment, and each admits what it is given.
        near, far = await asyncio.gather(
            dial_link(second.address, end=first.pool._end, handler=first.handler),
            dial_link(first.address, end=second.pool._end, handler=second.handler),
        )
        admissions = [(first, near), (second, far)]
        if seed % 2:
            admissions.reverse()
        for node, link in admissions:
            node.pool.admit(link)
        await settled([first, second])
        await wait_until(lambda: not any(link.is_usable for link in (far,)))
        kept, seen = first.pool.link_to("n2"), second.pool.link_to("n1")
        assert kept is near, f"seed {seed}: LP1"
        assert seen is not None
        assert not seen.is_dialler, f"seed {seed}: LP1"
        assert bytes(await kept.request(1, b"x", timeout_ms=TIMEOUT_MS)) == b"x"
        assert first.told == [("up", "n2")], "LP4"
        assert second.told == [("up", "n1")], "LP4"


async def test_what_is_under_way_on_the_losing_link_ends_with_an_answer() -> None:
    async with cluster("n1", "n2") as (first, second):
        gate = asyncio.Event()

        async def wait(link: Link, body: memoryview) -> Buffers:
            await gate.wait()
            return b"late"

        first.handler.answers[5] = wait
        far = await dial_link(first.address, end=second.pool._end, handler=second.handler)
        second.pool.admit(far)
        await wait_until(lambda: all_up([first, second]))
        asking = asyncio.create_task(far.request(5, b"", timeout_ms=TIMEOUT_MS))
        await wait_until(lambda: first.pool._links["n2"].statistics().requests_running == 1)
        near = await dial_link(second.address, end=first.pool._end, handler=first.handler)
        first.pool.admit(near)
        await wait_until(lambda: not far.is_usable)
        gate.set()
        assert bytes(await asking) == b"late"
        await settled([first, second])


@pytest.mark.parametrize("seed", range(3))
async def test_links_come_back_after_everything_broke_again_and_again(seed: int) -> None:
    dice = random.Random(seed)
    async with cluster("n1", "n2", "n3", seed=seed) as nodes:
        introduce(nodes)
        for _ in range(6):
            await wait_until(lambda: all_up(nodes))
            dice.choice(nodes).crash()
        await settled(nodes)
        for node in nodes:
            for other in nodes:
                if other is not node:
                    told = [what for what, name in node.told if name == other.name]
                    assert told[::2] == ["up"] * len(told[::2]), f"seed {seed}: LP4"
                    assert told[1::2] == ["down"] * len(told[1::2]), f"seed {seed}: LP4"


async def test_a_new_process_of_a_peer_takes_the_place_of_the_old_one() -> None:
    async with cluster("n1") as (node,):
        ends = [plain_end("n0"), plain_end("n0")]
        old = await dial_link(node.address, end=ends[0], handler=Recorder())
        await wait_until(lambda: node.pool.nodes_up() == ["n0"])
        # The old process died silently: its connection stays open, and nothing reads it.
        new = await dial_link(node.address, end=ends[1], handler=Recorder())
        await wait_until(lambda: not old.is_usable)
        kept = node.pool.link_to("n0")
        assert kept is not None
        assert kept.peer_process == ends[1].process, "LP2"
        assert node.told == [("up", "n0"), ("down", "n0"), ("up", "n0")]
        old.abort("the test is over")
        new.abort("the test is over")
        await wait_until(lambda: node.pool.nodes_up() == [])


async def test_an_operator_with_the_name_of_a_node_is_not_taken_for_it() -> None:
    async with cluster("n1", "n2") as nodes:
        introduce(nodes)
        await settled(nodes)
        before = nodes[0].pool.link_to("n2")
        operator = replace(plain_end("n2", cluster=b""), kind="operator")
        link = await dial_link(nodes[0].address, end=operator, handler=Recorder())
        assert bytes(await link.request(1, b"status", timeout_ms=TIMEOUT_MS)) == b"status"
        assert nodes[0].pool.link_to("n2") is before
        link.abort("the test is over")


async def test_peers_move_and_go_while_the_pool_runs() -> None:
    async with cluster("n1", "n2") as (first, second):
        with socket.create_server((HOST, 0)) as nobody:
            wrong = f"{HOST}:{nobody.getsockname()[1]}"
        first.pool.set_peer("n2", wrong)
        await wait_until(lambda: first.pool.statistics()["n2"].dials > 2)
        problem = first.pool.statistics()["n2"].problem
        assert problem is not None
        assert "cannot be reached" in problem
        assert len([line for line in first.lines if "link not up" in line]) == 1, "said once, not per dial"
        error = await refusal_of(first.pool.request("n2", 1, b"", timeout_ms=TIMEOUT_MS))
        assert isinstance(error, PeerUnreachable)
        assert error.definite
        assert not first.pool.send("n2", [(7, b"")])
        first.pool.set_peer("n2", second.address)
        await wait_until(lambda: all_up([first, second]))
        first.pool.remove_peer("n2")
        assert first.pool.link_to("n2") is None
        await wait_until(lambda: second.pool.nodes_up() == [])
        assert first.told == [("up", "n2"), ("down", "n2")]
        assert isinstance(await refusal_of(first.pool.request("n2", 1, b"", timeout_ms=1)), LogError)


async def test_a_peer_that_is_another_node_or_of_another_cluster_stays_down_with_its_reason() -> None:
    async with cluster("n1", "n2") as (first, second):
        foreign = Node("n3", cluster=OTHER_CLUSTER)
        await foreign.start()
        first.pool.set_peer("n9", second.address)
        first.pool.set_peer("n3", foreign.address)
        await wait_until(lambda: all(one.problem is not None for one in first.pool.statistics().values()))
        statistics = first.pool.statistics()
        assert "n9 was expected" in (statistics["n9"].problem or "")
        assert "cluster" in (statistics["n3"].problem or "")
        assert first.pool.nodes_up() == []
        await foreign.stop()


async def test_a_probe_finds_out_who_is_at_an_address() -> None:
    async with cluster("n1", "n2") as (first, second):
        link = await first.pool.probe(second.address)
        assert (link.peer, link.peer_cluster) == ("n2", CLUSTER)
        await link.close()
        assert isinstance(await refusal_of(first.pool.probe(first.address)), LogError)


async def test_closing_a_pool_drains_its_links_and_fails_what_comes_after() -> None:
    async with cluster("n1", "n2") as (first, second):
        introduce([first, second])
        await settled([first, second])
        link = first.pool.link_to("n2")
        assert link is not None
        assert first.pool.send("n2", [(7, b"last words")])
        await first.pool.close()
        assert second.handler.messages == [("n1", 7, b"last words")]
        with pytest.raises(LinkClosed):
            link.post(7, b"")


async def test_a_pool_takes_only_names_of_other_nodes() -> None:
    async with cluster("n1") as (node,):
        for name in ("n1", "../n2", ""):
            with pytest.raises(InvalidConfig):
                node.pool.set_peer(name, "host:1")
