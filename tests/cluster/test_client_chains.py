"""Fetches that follow each other, on the node's side."""

from __future__ import annotations

import asyncio

from tests.cluster.test_client_service import Client, World, block, produce, run
from tests.transports.links import TIMEOUT_MS
from tidelog.blocks.block import Block, iterate_blocks
from tidelog.cluster.clients.chains import CHAINS_MAX, FetchChains, end_of
from tidelog.codecs.client_codec import FETCH, ChainedFetch, decode_fetched, encode_fetch
from tidelog.core.client_messages import Fetched


def chained(world: World, *, chain: int = 1, offset: int = 0, continues: bool = False) -> ChainedFetch:
    return ChainedFetch(
        channel_id=world.bus, offset=offset, bytes_max=1_500, wait_ms=0, chain=chain, continues=continues
    )


async def ask(client: Client, fetch: ChainedFetch) -> Fetched:
    return decode_fetched(await client.link.request(FETCH, encode_fetch(fetch), timeout_ms=TIMEOUT_MS))


def offsets(fetched: Fetched) -> list[int]:
    return [one.leader.base_offset for data in fetched.data for one in iterate_blocks(data)]


def test_fetches_of_a_chain_go_on_where_the_one_before_ended() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        for _ in range(6):
            await client.produce(produce(world.bus, block(bytes(1_000))))
        asked = [ask(client, chained(world))] + [ask(client, chained(world, continues=True)) for _ in range(4)]
        answers = await asyncio.gather(*asked)
        assert [offsets(answer) for answer in answers] == [[0, 1], [2, 3], [4, 5], [], []], "FC1"
        assert offsets(await ask(client, chained(world, offset=3))) == [3, 4], "an offset begins the chain anew"
        assert offsets(await ask(client, chained(world, continues=True))) == [5]

    run(work)


def test_a_fetch_without_a_place_to_go_on_from_is_answered_without_blocks() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        await client.produce(produce(world.bus, block(bytes(1_000))))
        assert offsets(await ask(client, chained(world, chain=9, continues=True))) == []
        refused, behind = await asyncio.gather(
            ask(client, chained(world, offset=50)), ask(client, chained(world, continues=True)), return_exceptions=True
        )
        assert isinstance(refused, Exception)
        assert isinstance(behind, Fetched)
        assert offsets(behind) == [], "FC1: the one before it failed"
        other = await world.client("operator", "other")
        await ask(client, chained(world, chain=3))
        assert offsets(await ask(other, chained(world, chain=3, continues=True))) == [], "chains are of one link"

    run(work)


def test_a_link_remembers_so_many_chains_and_no_more() -> None:
    async def work(world: World) -> None:
        chains = FetchChains()
        for number in range(1, CHAINS_MAX + 2):
            with chains.enter(chained(world, chain=number)) as turn:
                turn.ended(number)
        assert await chains.enter(chained(world, chain=1, continues=True)).start() is None, "FC2"
        assert await chains.enter(chained(world, chain=CHAINS_MAX, continues=True)).start() == CHAINS_MAX

    run(work)


def test_the_end_of_an_answer_is_found_whatever_its_pieces() -> None:
    def stamped(offset: int, windows: tuple[range, ...] = ()) -> Block:
        made = block(b"one", b"two", b"three")
        return made.stamp(
            base_offset=offset,
            channel_id=1,
            leader_epoch=1,
            append_time_us=0,
            durable_end=0,
            path=0,
            windows=windows,
        )

    blocks = [stamped(0), stamped(3, (range(1), range(2, 3))), stamped(5)]
    assert end_of([]) is None
    assert end_of([buffer for one in blocks for buffer in one.buffers]) == 8
    assert end_of([b"".join(one.tobytes() for one in blocks)]) == 8
    assert end_of([one.tobytes() for one in blocks[:2]]) == 5
    assert end_of([b"".join(stamped(0).tobytes() for _ in range(2_000))]) is None, "too many to look at"
