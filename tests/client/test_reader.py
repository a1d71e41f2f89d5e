"""Readers and raw fetches over real links to a fake cluster: leaders that move, retention, replicas that are behind."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.client.fake_cluster import QUICK, FakeCluster, fake_client
from tests.client.running import run
from tests.patience import patient, wait_until
from tests.transports.links import refusal_of
from tidelog.blocks.block import missing_block
from tidelog.blocks.header import BlockKind
from tidelog.blocks.messages import Message, encode_messages, encode_values
from tidelog.client import Client, ClientClosed, CommittedLost, OffsetTrimmed, Reader, Record, Seq, Time
from tidelog.errors import (
    DamagedRange,
    InvalidConfig,
    LogError,
    OffsetOutOfRange,
    PeerUnreachable,
    UnknownChannel,
    WaitTimedOut,
)


def fill(cluster: FakeCluster, *values: bytes, channel: str = "a") -> None:
    """Each value in a block of its own."""
    log = cluster.log(channel)
    for value in values:
        log.append(encode_values([value], time_us=1_000 + log.log_end, base_seq=1 + log.log_end))


async def values_of(reader: Reader) -> list[bytes | None]:
    return [record.value async for record in reader if isinstance(record, Record)]


# --- where to begin --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("earliest", [b"2", b"3", b"4"]),
        ("latest", []),
        (3, [b"3", b"4"]),
        (5, []),
        (Time(1_003), [b"3", b"4"]),
        (Time(9_999), []),
        (Seq(4), [b"3", b"4"]),
    ],
)
async def test_a_reader_begins_where_it_is_told(start: Any, found: list[bytes]) -> None:
    async with fake_client("a") as (cluster, client):
        fill(cluster, b"0", b"1", b"2", b"3", b"4")
        cluster.log("a").trim(2)
        assert await values_of(client.reader("a", start=start, follow=False)) == found


async def test_records_before_a_time_are_left_out_wherever_they_are() -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        for times in ([5, 9, 1], [2, 3], [7, 6]):
            log.append(encode_messages([Message(time_us, b"%d" % time_us) for time_us in times]))
        assert await values_of(client.reader("a", start=Time(5), follow=False)) == [b"5", b"9", b"7", b"6"]
        batches = [batch async for batch in client.reader("a", start=Time(5), follow=False).batches()]
        assert [value for batch in batches for value in batch["value"].to_pylist()] == [b"5", b"9", b"7", b"6"]


async def test_wrong_starts_are_typed_errors() -> None:
    async with fake_client("a") as (cluster, client):
        fill(cluster, b"0", b"1", b"2")
        cluster.log("a").trim(1)
        error = await refusal_of(client.reader("a", start=9).read())
        assert isinstance(error, OffsetOutOfRange)
        trimmed = await refusal_of(client.reader("a", start=0).read())
        assert isinstance(trimmed, OffsetTrimmed)
        assert trimmed.log_start == 1
        assert await values_of(client.reader("a", start=0, on_trim="skip", follow=False)) == [b"1", b"2"]
        assert isinstance(await refusal_of(client.reader("none").read()), UnknownChannel)
        with pytest.raises(InvalidConfig):
            client.reader("a", start="newest")


# --- following -------------------------------------------------------------------------------------


async def test_a_reader_follows_and_control_records_are_passed_over() -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        reader = client.reader("a")
        pending = asyncio.ensure_future(reader.read())
        await asyncio.sleep(0.12)
        assert not pending.done()
        log.move("n2")
        fill(cluster, b"x")
        found = [*await pending]
        while len(found) < 1:
            found += await reader.read()
        assert [(record.offset, record.value) for record in found if isinstance(record, Record)] == [(1, b"x")]
        await reader.close()
        with pytest.raises(ClientClosed):
            await reader.read()


async def test_uncommitted_records_are_not_read() -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        fill(cluster, b"0")
        log.commits = False
        fill(cluster, b"1")
        async with client.reader("a") as reader:
            assert (await reader.read())[0].offset == 0
            pending = asyncio.ensure_future(reader.read())
            await asyncio.sleep(0.1)
            assert not pending.done()
            log.cut(1)
            fill(cluster, b"2")
            log.commit()
            (record,) = await pending
            assert isinstance(record, Record)
            assert (record.offset, record.value) == (1, b"2")


async def test_giving_up_waiting_for_a_record_loses_none() -> None:
    async with fake_client("a") as (cluster, client), client.reader("a") as reader:
        found: list[int] = []
        for number in range(40):
            fill(cluster, b"%d" % number)
            for _ in range(3):
                try:
                    async with asyncio.timeout(0.001 * (number % 5)):
                        found.append((await anext(reader)).offset)
                except TimeoutError:
                    continue
        while len(found) < 40:
            found.append((await anext(reader)).offset)
        assert found == list(range(40))


async def test_a_frozen_leader_does_not_hold_up_readers() -> None:
    async with fake_client("a") as (cluster, client):
        fill(cluster, b"0")
        async with client.reader("a") as reader:
            await reader.read()
            cluster.nodes["n1"].is_frozen = True
            fill(cluster, b"1")  # the followers have it, and may give it
            assert [record.offset for record in await reader.read()] == [1]
            cluster.log("a").move("n2")
            fill(cluster, b"2")
            found: list[int] = []
            while 3 not in found:
                found += [record.offset for record in await reader.read()]


async def test_records_that_an_unclean_election_lost_end_the_reading() -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        fill(cluster, b"0", b"1", b"2")
        async with client.reader("a") as reader:
            await reader.read()
            log.cut(1)
            log.committed_end = 1
            log.move("n2")
            log.unclean.append({"leader_epoch": log.leader_epoch})
            fill(cluster, b"3", b"4", b"5")
            assert isinstance(await refusal_of(values_of(reader)), CommittedLost)


async def test_a_cluster_that_is_gone_is_told_within_the_time() -> None:
    async with fake_client("a", options=replace(QUICK, timeout_ms=int(patient(400)))) as (cluster, client):
        fill(cluster, b"0")
        async with client.reader("a") as reader:
            await reader.read()
            for node in cluster.nodes.values():
                await node.stop()
            error = await refusal_of(reader.read())
            assert isinstance(error, PeerUnreachable | WaitTimedOut)
            assert error.retriable
            # It comes back, and the reader goes on where it was.
            for node in cluster.nodes.values():
                await node.start()
            fill(cluster, b"1")
            assert [record.offset for record in await reader.read()] == [1]


async def test_damage_is_read_around_at_other_replicas_or_told() -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        fill(cluster, b"0", b"1", b"2")
        log.blocks[1] = missing_block(
            offsets=range(1, 2), channel_id=log.channel_id, leader_epoch=1, append_time_us=0, durable_end=0
        )
        async with client.reader("a") as reader:
            assert [record.offset for record in await reader.read()] == [0]
            assert isinstance(await refusal_of(reader.read()), DamagedRange)
        assert await values_of(client.reader("a", on_trim="skip", follow=False)) == [b"0", b"2"]


# --- cursors ---------------------------------------------------------------------------------------


async def test_a_cursor_goes_on_where_it_was_saved() -> None:
    async with fake_client("a") as (cluster, client):
        fill(cluster, b"0", b"1", b"2", b"3")
        async with client.reader("a", cursor="job", follow=False) as reader:
            assert (await anext(reader)).offset == 0
            assert (await anext(reader)).offset == 1
        assert await client.cursors("a") == {"job": 2}

        async def fail_at_the_first() -> None:
            async with client.reader("a", cursor="job") as reader:
                assert (await anext(reader)).offset == 2
                raise KeyError

        with pytest.raises(KeyError):
            await fail_at_the_first()
        # The caller was not done with record 2: it comes again.
        async with client.reader("a", cursor="job", follow=False) as reader:
            assert [record.offset async for record in reader] == [2, 3]
            assert await reader.read() == []
        assert await client.cursors("a") == {"job": 4}
        await client.set_cursor("a", "job", 1)
        assert (await client.reader("a", cursor="job").read())[0].offset == 1
        await client.delete_cursor("a", "job")
        assert await client.cursors("a") == {}


async def test_a_cursor_is_saved_while_reading() -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        fill(cluster, b"0")
        async with client.reader("a", cursor="job", cursor_interval_ms=1) as reader:
            await reader.read()
            assert "job" not in log.cursors
            pending = asyncio.ensure_future(reader.read())
            await wait_until(lambda: log.cursors.get("job") == 1)
            fill(cluster, b"1")
            await pending


# --- raw blocks ------------------------------------------------------------------------------------


async def test_fetch_gives_verified_blocks_without_copying_them() -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        for number in range(20):
            log.append(encode_values([bytes([number]) * 20_000] * 3, time_us=1))
        blocks = [block async for block in client.fetch("a", range(4, 31))]
        assert [block.offsets for block in blocks] == [range(start, start + 3) for start in range(3, 31, 3)]
        assert [block.tobytes() for block in blocks] == [block.tobytes() for block in log.blocks[1:11]]
        assert all(isinstance(block.body, memoryview) for block in blocks)
        assert [block async for block in client.fetch("a", range(5, 5))] == []


async def test_fetch_goes_to_the_nearest_and_passes_over_who_is_behind() -> None:
    async with fake_client("a") as (cluster, client):
        fill(cluster, *(b"%d" % number for number in range(10)))
        cluster.nodes["n2"].lag = cluster.nodes["n3"].lag = 4
        assert [block.offsets.start async for block in client.fetch("a", range(8, 10))] == [8, 9]
        assert cluster.nodes["n1"].fetches > 0
        await cluster.nodes["n1"].stop()
        cluster.nodes["n3"].lag = 0
        assert [block.offsets.start async for block in client.fetch("a", range(8, 10))] == [8, 9]
        assert cluster.nodes["n3"].fetches > 0


async def test_fetch_of_what_is_not_there_is_typed() -> None:
    async with fake_client("a") as (cluster, client):
        fill(cluster, b"0", b"1", b"2")

        async def fetched(offsets: range) -> LogError:
            async def all_of_it() -> None:
                async for _ in client.fetch("a", offsets):
                    pass

            return await refusal_of(all_of_it())

        assert isinstance(await fetched(range(2, 9)), OffsetOutOfRange)
        assert isinstance(await fetched(range(7, 9)), OffsetOutOfRange)
        cluster.log("a").trim(2)
        assert isinstance(await fetched(range(1, 3)), OffsetTrimmed)


async def test_blocks_of_a_reader_include_control_blocks() -> None:
    async with fake_client("a") as (cluster, client):
        cluster.log("a").move("n1")
        fill(cluster, b"x")
        kinds = [block.maker.kind async for block in client.reader("a", follow=False).blocks()]
        assert kinds == [BlockKind.CONTROL, BlockKind.MESSAGES]


# --- everything at once ----------------------------------------------------------------------------


async def read_through_faults(cluster: FakeCluster, client: Client, dice: random.Random) -> None:
    """A reader in skip mode beside appends, moves, retention and broken links."""
    log = cluster.log("a")
    history: dict[int, bytes] = {}
    trimmed: set[int] = set()
    found: list[tuple[int, bytes]] = []
    reader = client.reader("a", on_trim="skip", nearest=dice.random() < 0.5, bytes_max=dice.choice([300, 4_000]))

    async def read() -> None:
        async for record in reader:
            assert isinstance(record, Record)
            found.append((record.offset, record.value or b""))
            if dice.random() < 0.2:
                await asyncio.sleep(0.001)

    def committed() -> None:
        for block in log.blocks:
            if block.maker.kind == BlockKind.MESSAGES and block.offsets.stop <= log.committed_end:
                history.setdefault(block.offsets.start, b"")

    reading = asyncio.ensure_future(read())
    number = 0
    for _ in range(120):
        for _ in range(dice.randint(0, 3)):
            fill(cluster, b"%d" % number)
            number += 1
        committed()
        node = cluster.nodes[dice.choice(list(cluster.nodes))]
        match dice.randrange(8):
            case 0:
                log.move(dice.choice(list(cluster.nodes)), keeps_tail=dice.random() < 0.5)
            case 1:
                node.drop_links()
            case 2:
                log.commits = not log.commits
                if log.commits:
                    log.commit()
            case 3 if dice.random() < 0.4:
                gone = dice.randint(log.log_start, log.committed_end)
                log.trim(gone)
                trimmed |= {offset for offset in history if offset < log.log_start}
            case 4:
                node.lag = dice.choice([0, 0, 1, 5])
        committed()
        await asyncio.sleep(dice.choice([0, 0, 0.001, 0.004]))
    for node in cluster.nodes.values():
        node.lag = 0
    log.commits = True
    log.move("n1")
    fill(cluster, b"end")
    await wait_until(lambda: (bool(found) and found[-1][1] == b"end") or reading.done())
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await reader.close()
    committed()
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets)), "a record came twice, or out of order"
    assert set(history) - set(offsets) <= trimmed, "a record that was still there was left out"
    assert set(offsets) <= set(history), "a record was read that was never committed"
    numbers = [int(value) for _, value in found if value != b"end"]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("seed", range(6))
def test_whatever_goes_wrong_each_committed_record_is_read_once_and_in_order(seed: int) -> None:
    async def work() -> None:
        async with fake_client("a") as (cluster, client):
            await read_through_faults(cluster, client, random.Random(seed))

    print(f"seed {seed}")
    run(work())
