"""Producers over real links to a fake cluster: leaders that move, links that break, nodes that freeze, limits."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.client.fake_cluster import QUICK, FakeCluster, fake_client
from tests.client.running import run
from tests.patience import patient, wait_until
from tests.transports.links import refusal_of
from tidelog.blocks.header import Codec
from tidelog.client import Client, ClientClosed, ManyReceipt, Receipt, Record
from tidelog.errors import (
    ChannelDeleted,
    ChannelReadonly,
    InvalidConfig,
    InvalidRecord,
    LogError,
    NotChannelLeader,
    NotEnoughReplicas,
    OffsetConflict,
    OutcomeUnknown,
    ProducerFenced,
    QueueFull,
    UnknownChannel,
    WaitTimedOut,
)
from tidelog.transports.link.link import LinkOptions


async def test_receipts_give_the_offsets_and_records_come_back_as_they_were() -> None:
    async with fake_client("a") as (_, client):
        producer = client.producer("a", codec=Codec.ZSTD)
        first = producer.send(b"one")
        second = producer.send(b"two", key=b"k", headers=[("h", b"v")], time_us=5)
        third = producer.send(None, key=bytearray(b"k"))  # type: ignore[arg-type]
        many = producer.send_many([b"x", b"y"])
        assert await first == 0
        assert list(await asyncio.gather(second, third)) == [1, 2]
        assert await many == [range(3, 5)]
        async with client.reader("a", follow=False) as reader:
            found = [record async for record in reader]
        assert [record.offset for record in found] == [0, 1, 2, 3, 4]
        two = found[1]
        assert isinstance(two, Record)
        assert two[1:] == (5, b"k", b"two", (("h", b"v"),), 2)
        none = found[2]
        assert isinstance(none, Record)
        assert (none.key, none.value) == (b"k", None)


async def test_what_gathers_while_requests_are_under_way_goes_as_one_block() -> None:
    async with fake_client("a") as (cluster, client):
        node, log = cluster.nodes["n1"], cluster.log("a")
        producer = client.producer("a", requests_max=1)
        await producer.send(b"0")
        node.holds_answers = True
        receipts = [producer.send(b"1")]
        await wait_until(lambda: bool(node.held))
        receipts += [producer.send(b"%d" % number) for number in range(2, 50)]
        assert len(log.blocks) == 2
        node.holds_answers = False
        node.release()
        assert await asyncio.gather(*receipts) == list(range(1, 50))
        assert len(log.blocks) == 3


async def test_a_producer_that_lingers_waits_for_company_and_flush_does_not() -> None:
    async with fake_client("a") as (cluster, client):
        producer = client.producer("a", linger_ms=10_000)
        receipt = producer.send(b"1")
        await asyncio.sleep(0.05)
        producer.send(b"2")
        await producer.flush()
        assert await receipt == 0
        assert len(cluster.log("a").blocks) == 1
        quick = client.producer("a", linger_ms=5)
        assert await quick.send(b"3") == 2


async def test_a_moved_leader_is_followed_and_nothing_is_lost_or_doubled() -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        producer = client.producer("a", requests_max=3, batch_records_max=2)
        sent = 0
        receipts: list[Receipt] = []
        for leader in ("n2", "n3", "n1"):
            for _ in range(20):
                receipts.append(producer.send(b"%d" % sent))
                sent += 1
            await asyncio.sleep(0)
            log.move(leader)
        await asyncio.gather(*receipts)
        assert log.values() == [b"%d" % number for number in range(sent)]
        for number, receipt in enumerate(receipts):
            assert (await receipt) >= number


@pytest.mark.parametrize("keeps_tail", [True, False])
async def test_what_a_deposed_leader_had_not_committed_is_sent_again(keeps_tail: bool) -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        producer = client.producer("a")
        await producer.send(b"0")
        log.commits = False
        receipt = producer.send(b"1")
        await wait_until(lambda: bool(log.waiting))
        log.commits = True
        log.move("n2", keeps_tail=keeps_tail)
        await receipt
        assert log.values() == [b"0", b"1"]


async def test_a_broken_link_loses_nothing() -> None:
    async with fake_client("a") as (cluster, client):
        node, log = cluster.nodes["n1"], cluster.log("a")
        producer = client.producer("a")
        await producer.send(b"0")
        node.holds_answers = True
        receipt = producer.send(b"1")
        await wait_until(lambda: bool(node.held))
        node.held.clear()
        node.holds_answers = False
        node.drop_links()
        assert await receipt == 1
        assert log.values() == [b"0", b"1"]


async def test_a_frozen_leader_is_left_for_the_new_one_without_waiting_for_its_link() -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        producer = client.producer("a")
        await producer.send(b"0")
        cluster.nodes["n1"].is_frozen = True
        receipt = producer.send(b"1")
        await wait_until(lambda: len(cluster.nodes["n2"].asked) + len(cluster.nodes["n3"].asked) > 0)
        log.move("n2")
        await receipt
        assert log.values() == [b"0", b"1"]
        assert any(not link.is_closed for link in cluster.nodes["n1"].links)


async def test_a_channel_without_a_leader_is_waited_for() -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        log.leader = None
        receipt = client.producer("a").send(b"0")
        await asyncio.sleep(0.05)
        assert not receipt.is_done
        log.move("n3")
        assert await receipt == 1


async def test_without_a_leader_the_deadline_ends_with_a_definite_refusal() -> None:
    async with fake_client("a") as (cluster, client):
        cluster.log("a").leader = None
        producer = client.producer("a", timeout_ms=int(patient(200)))
        error = await refusal_of(producer.send(b"0"))
        assert isinstance(error, NotChannelLeader)
        assert error.definite
        assert cluster.log("a").values() == []


async def test_without_an_answer_the_deadline_ends_with_an_indefinite_error() -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        log.commits = False
        producer = client.producer("a", timeout_ms=int(patient(300)))
        error = await refusal_of(producer.send(b"0"))
        assert isinstance(error, WaitTimedOut)
        assert not error.definite
        log.commits = True
        log.commit()
        # The producer goes on behind it.
        later = client.producer("a", name=producer.name)
        await later.send(b"1")
        assert log.values() == [b"0", b"1"]


async def test_a_refused_block_fails_alone_and_the_producer_goes_on() -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        producer = client.producer("a", batch_records_max=1)
        log.refusals = [ChannelReadonly(channel="a"), NotEnoughReplicas(channel="a", isr=1, min_isr=2)]
        receipts = [producer.send(b"%d" % number) for number in range(4)]
        assert isinstance(await refusal_of(receipts[0]), ChannelReadonly)
        await asyncio.gather(*receipts[1:])
        assert log.values() == [b"1", b"2", b"3"]
        await producer.flush()


async def test_flush_raises_what_no_receipt_has_told() -> None:
    async with fake_client("a") as (cluster, client):
        producer = client.producer("a")
        cluster.log("a").refusals = [ChannelReadonly(channel="a")]
        producer.send(b"0")
        with pytest.raises(ChannelReadonly):
            await producer.flush()
        await producer.flush()


async def test_a_second_producer_of_the_same_name_fences_the_first() -> None:
    async with fake_client("a") as (_, client):
        first = client.producer("a", name="ship-7")
        await first.send(b"0")
        second = client.producer("a", name="ship-7")
        await second.send(b"1")
        assert isinstance(await refusal_of(first.send(b"2")), ProducerFenced)
        with pytest.raises(ProducerFenced):
            first.send(b"3")
        with pytest.raises(ProducerFenced):
            await first.send_room()
        assert await second.send(b"4") == 2


async def test_a_conflict_about_the_expected_offset_is_told() -> None:
    async with fake_client("a") as (_, client):
        producer = client.producer("a")
        assert await producer.send_many([b"0", b"1"], expected_offset=0) == [range(0, 2)]
        error = await refusal_of(producer.send_many([b"2"], expected_offset=0))
        assert isinstance(error, OffsetConflict)
        assert error.actual == 2
        assert await producer.send_many([b"2"], expected_offset=2) == [range(2, 3)]
        assert await producer.send(b"3") == 3


async def test_a_single_record_may_expect_its_offset_with_key_and_headers_or_without() -> None:
    async with fake_client("a") as (_, client):
        producer = client.producer("a")
        assert await producer.send(b"0", b"k", [("h", b"1")], expected_offset=0) == 0
        sent = [producer.send(b"1"), producer.send(b"2", expected_offset=2), producer.send(b"3")]
        assert [await receipt for receipt in sent] == [1, 2, 3], "others keep their places around it"
        error = await refusal_of(producer.send(b"x", b"k", expected_offset=2))
        assert isinstance(error, OffsetConflict)
        assert await producer.send(b"4", expected_offset=4) == 4


async def test_each_part_of_many_records_is_told_of_once_with_its_offsets() -> None:
    async with fake_client("a") as (_, client):
        producer = client.producer("a", batch_records_max=4)
        told: list[tuple[range, int, LogError | None]] = []
        first = producer.send(b"before")
        receipt = producer.send_many([b"%d" % number for number in range(10)])
        receipt.when_each_done(lambda which, offset, error: told.append((which, offset, error)))
        offsets = await receipt
        assert await first == 0
        assert [which.start for which, _, _ in told] == [0, 3, 7], "three joined the record before them"
        assert [(offset, error) for _, offset, error in told] == [(1, None), (4, None), (8, None)]
        assert [range(offset, offset + len(which)) for which, offset, _ in told] == offsets
        await producer.close()
        late = []
        receipt.when_each_done(lambda which, offset, error: late.append(offset))
        assert late == [1, 4, 8], "at once, where there is an answer"


async def test_back_pressure_is_typed_and_ends_when_answers_come() -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        log.commits = False
        producer = client.producer("a", in_flight_max_bytes=1_000)
        receipts: list[Receipt | ManyReceipt] = []
        for _ in range(1_000 // (50 + 17)):
            receipts.append(producer.send(bytes(50)))
        with pytest.raises(QueueFull):
            producer.send(bytes(50))
        with pytest.raises(QueueFull):
            producer.send_many([bytes(500)])
        with pytest.raises(QueueFull):
            producer.send(bytes(50), key=b"k")
        room = asyncio.ensure_future(producer.send_room(50))
        await wait_until(lambda: bool(log.waiting))
        assert not room.done()
        log.commits = True
        log.commit()
        await room
        await producer.send(bytes(50))
        assert len(log.values()) == len(receipts) + 1
        # What is larger than the limit goes when nothing else does.
        await producer.flush()
        await producer.send_many([bytes(500)] * 5)


async def test_a_full_link_only_delays_blocks() -> None:
    options = replace(QUICK, link=LinkOptions(queue_bytes_max=4_000))
    async with fake_client("a", options=options) as (cluster, client):
        producer = client.producer("a", batch_records_max=1, requests_max=1_000)
        sizes = [10, 3_000, 7_000]
        receipts = [producer.send(b"%d:" % number + bytes(sizes[number % 3])) for number in range(300)]
        assert await asyncio.gather(*receipts) == list(range(300))
        assert [int(value.partition(b":")[0]) for value in cluster.log("a").values()] == list(range(300))


async def test_wrong_calls_are_refused_in_words() -> None:
    async with fake_client("a") as (_, client):
        producer = client.producer("a")
        wrong: list[Any] = ["text", 5]
        for value in wrong:
            with pytest.raises(InvalidRecord):
                producer.send(value)
        with pytest.raises(InvalidRecord):
            producer.send_many(["text"])  # type: ignore[list-item]
        with pytest.raises(InvalidRecord):
            producer.send(b"x", headers=[(b"h", b"v")])  # type: ignore[list-item]
        with pytest.raises(InvalidRecord):
            producer.send(b"x", time_us=2**70)
        with pytest.raises(InvalidConfig):
            client.producer("a", acks="most")
        assert await producer.send_many([]) == []
        await producer.flush()


async def test_an_unknown_or_deleted_channel_ends_the_producer() -> None:
    async with fake_client("a") as (_, client):
        lost = client.producer("nothing")
        assert isinstance(await refusal_of(lost.send(b"x")), UnknownChannel)
        with pytest.raises(UnknownChannel):
            lost.send(b"y")
        producer = client.producer("a")
        await producer.send(b"0")
        await client.delete("a")
        assert isinstance(await refusal_of(producer.send(b"1")), ChannelDeleted)


async def test_closing_tells_of_failures_that_nobody_has_seen() -> None:
    async with fake_client("a") as (cluster, client):
        lost = client.producer("nothing")
        receipt = lost.send(b"x")
        await wait_until(lambda: receipt.is_done)
        with pytest.raises(UnknownChannel):
            await lost.close()
        good, bad = client.producer("a"), client.producer("nothing")
        bad.send(b"x")
        good.send(b"y")
        with pytest.raises(UnknownChannel):
            await client.close()
        assert cluster.log("a").values() == [b"y"]


async def test_closing_sends_what_was_taken_and_ends_what_cannot_be_sent() -> None:
    async with fake_client("a") as (cluster, client):
        log = cluster.log("a")
        producer = client.producer("a")
        receipt = producer.send(b"0")
        await producer.close()
        assert await receipt == 0
        with pytest.raises(ClientClosed):
            producer.send(b"1")
        other = client.producer("a", batch_records_max=1, requests_max=1)
        log.commits = False
        sent, waiting = other.send(b"2"), other.send(b"3")
        await wait_until(lambda: bool(log.waiting))
        await client.close(flush=False)
        assert isinstance(await refusal_of(sent), OutcomeUnknown)
        assert isinstance(await refusal_of(waiting), ClientClosed)
        with pytest.raises(ClientClosed):
            client.producer("a")


async def test_arrow_batches_go_in_whole_and_in_pieces() -> None:
    async with fake_client("a") as (cluster, client):
        producer = client.producer("a", batch_bytes_max=2_000)
        table = pa.record_batch(
            {
                "value": pa.array([b"%d" % number * 10 for number in range(300)], pa.binary()),
                "key": pa.array([None if number % 3 else "k" for number in range(300)], pa.string()),
                "time": pa.array(range(300), pa.timestamp("ms", tz="UTC")),
            }
        ).slice(7)
        ranges = await producer.send_arrow(table)
        assert len(ranges) > 1
        assert sum(map(len, ranges)) == 293
        headed = pa.record_batch(
            {
                "value": pa.array([b"x", None], pa.binary()),
                "headers": pa.array(
                    [[{"name": "h", "value": b"v"}], None],
                    pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
                ),
            }
        )
        await producer.send_arrow(headed)
        batches = [batch async for batch in client.reader("a", follow=False).batches()]
        found = pa.Table.from_batches(batches)
        assert found["value"].to_pylist()[:293] == table["value"].to_pylist()
        assert found["key"].to_pylist()[:293] == [value and value.encode() for value in table["key"].to_pylist()]
        assert found["time"].to_pylist()[:293] == table["time"].to_pylist()
        assert found["headers"].to_pylist()[-2:] == [[{"name": "h", "value": b"v"}], []]
        assert found["value"].to_pylist()[-1] is None
        for wrong in (
            pa.record_batch({"key": [b"k"]}),
            pa.record_batch({"value": [b"v"], "colour": [1]}),
            pa.record_batch({"value": [1.5]}),
            pa.record_batch({"can_id": [1], "data": [b""], "time": [1]}),
        ):
            with pytest.raises(InvalidRecord):
                producer.send_arrow(wrong)
        assert len(cluster.log("a").values()) == 295


async def produce_through_faults(cluster: FakeCluster, client: Client, dice: random.Random, count: int) -> None:
    """Send records while everything that can go wrong does; then heal."""
    log = cluster.log("a")
    producer = client.producer(
        "a", requests_max=dice.choice([1, 2, 4]), batch_records_max=dice.choice([1, 3, 100]), timeout_ms=100_000
    )
    receipts: list[Receipt] = []
    while len(receipts) < count:
        for _ in range(dice.randint(0, 4)):
            size = dice.choice([1, 1, 10, 20_000, 120_000])
            receipts.append(producer.send(b"%d:" % len(receipts) + bytes(size)))
        node = cluster.nodes[dice.choice(list(cluster.nodes))]
        match dice.randrange(8):
            case 0:
                log.move(dice.choice(list(cluster.nodes)), keeps_tail=dice.random() < 0.5)
            case 1:
                node.drop_links()
            case 2:
                node.holds_answers = not node.holds_answers
                node.release()
            case 3:
                log.commits = not log.commits
            case 4:
                log.refusals.append(NotEnoughReplicas(channel="a", isr=1, min_isr=2))
            case 5 if dice.random() < 0.3:
                log.move(None)
        await asyncio.sleep(dice.choice([0, 0, 0, 0.001, 0.005]))
    for node in cluster.nodes.values():
        node.holds_answers = False
        node.release()
    log.commits = True
    log.refusals.clear()
    log.commit()
    log.move("n1")
    await producer.flush()
    offsets = [receipt.result() for receipt in receipts]
    assert [int(value.partition(b":")[0]) for value in log.values()] == list(range(len(receipts)))
    assert offsets == sorted(set(offsets))
    found = [record async for record in client.reader("a", follow=False)]
    assert [record.offset for record in found] == offsets


@pytest.mark.parametrize("seed", range(6))
def test_whatever_goes_wrong_each_record_is_in_the_log_once_and_in_order(seed: int) -> None:
    async def work() -> None:
        async with fake_client("a", options=replace(QUICK, timeout_ms=100_000)) as (cluster, client):
            await produce_through_faults(cluster, client, random.Random(seed), 150)

    print(f"seed {seed}")
    run(work())
