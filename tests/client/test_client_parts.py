"""The small decisions of the client: what is gathered, what is asked again, who is believed about leaders."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.blocks.block import raw_body
from tidelog.blocks.header import Codec
from tidelog.blocks.messages import Message, decode_messages
from tidelog.client.options import BLOCK_BYTES_MAX, ClientOptions, ProducerOptions, ReaderOptions, Seq, Time
from tidelog.client.producing.batching import RECORD_BYTES, Gathering, RecordBatch
from tidelog.client.producing.receipts import ManyReceipt, Receipt
from tidelog.client.retry import Backoff, Retry
from tidelog.client.routes import ChannelRoute, Routes
from tidelog.errors import (
    BadMessage,
    ChannelReadonly,
    InvalidConfig,
    InvalidRecord,
    LinkClosed,
    LogError,
    NotChannelLeader,
    NotEnoughReplicas,
    WaitTimedOut,
)

# --- gathering -------------------------------------------------------------------------------------


def values_of(batch: RecordBatch) -> list[bytes]:
    made = batch.encode(base_seq=1, producer=bytes(16), codec=Codec.NONE)
    return decode_messages(made.maker, raw_body(made.maker, made.body)).values.tolist()


def drained(gathering: Gathering) -> list[RecordBatch]:
    return [gathering.take() for _ in range(len(gathering))]


@given(
    sizes=st.lists(st.lists(st.integers(0, 60), max_size=8), max_size=12),
    bytes_max=st.integers(1, 200),
    records_max=st.integers(1, 6),
)
def test_records_stay_in_order_and_batches_within_their_limits(
    sizes: list[list[int]], bytes_max: int, records_max: int
) -> None:
    gathering = Gathering(batch_bytes_max=bytes_max, batch_records_max=records_max)
    sent: list[bytes] = []
    places: list[tuple[RecordBatch, int]] = []
    for group in sizes:
        values = [bytes([len(sent) + number & 0xFF]) * size for number, size in enumerate(group)]
        sent += values
        if len(values) == 1:
            joined = gathering.join(values[0], len(values[0]) + RECORD_BYTES)
            if joined is not None:
                places.append((joined, len(joined) - 1))
            else:
                places.append(gathering.add_value(values[0], deadline_ms=1, time_us=1))
        elif len(values) == 2:
            for value in values:
                places.append(gathering.add_row(Message(1, value, b""), deadline_ms=1))
        else:
            for batch, run in gathering.add_values(values, deadline_ms=1, time_us=1):
                places += [(batch, index) for index in run]
    total = gathering.bytes
    batches = drained(gathering)
    assert sum(batch.bytes for batch in batches) == total
    assert gathering.bytes == 0
    assert [value for batch in batches for value in values_of(batch)] == sent
    assert [(id(batch), index) for batch, index in places] == [
        (id(batch), index) for batch in batches for index in range(len(batch))
    ]
    for batch in batches:
        assert len(batch) <= records_max
        assert batch.bytes <= bytes_max or len(batch) == 1


def test_a_record_that_fits_no_block_is_refused_and_nothing_is_taken() -> None:
    gathering = Gathering(batch_bytes_max=100, batch_records_max=10)
    huge = bytes(BLOCK_BYTES_MAX + 1)
    with pytest.raises(InvalidRecord):
        gathering.add_value(huge, deadline_ms=1, time_us=1)
    with pytest.raises(InvalidRecord):
        gathering.add_values([b"small", huge], deadline_ms=1, time_us=1)
    with pytest.raises(InvalidRecord):
        gathering.add_row(Message(1, huge, b"k"), deadline_ms=1)
    assert len(gathering) == 0


def test_receipts_tell_offsets_errors_and_that_there_is_no_answer_yet() -> None:
    first, second = RecordBatch(deadline_ms=1, time_us=1), RecordBatch(deadline_ms=1, time_us=1)
    one, many = Receipt(first, 3), ManyReceipt([(first, range(3, 5)), (second, range(2))])
    called: list[str] = []
    many.when_done(lambda: called.append("many"))
    assert not one.is_done
    first.finish(10)
    assert one.result() == 13
    assert not many.is_done
    assert not called
    second.finish(20)
    assert many.result() == [range(13, 15), range(20, 22)]
    assert called == ["many"]
    failed = RecordBatch(deadline_ms=1, time_us=1)
    failed.finish(0, ChannelReadonly(channel="a"))
    with pytest.raises(ChannelReadonly):
        Receipt(failed, 0).result()


# --- asking again ----------------------------------------------------------------------------------


def retry_of(*, timeout_ms: int = 100, is_repeatable: bool = True) -> Retry:
    backoff = Backoff(first_ms=10, max_ms=40, rng=random.Random(3))
    return Retry(what="it", now_ms=0, timeout_ms=timeout_ms, backoff=backoff, is_repeatable=is_repeatable)


BUSY = NotEnoughReplicas(channel="a", isr=1, min_isr=2)
BROKEN = LinkClosed(peer="n1", reason="it broke")


def test_waits_grow_to_their_limit_and_start_over_after_a_success() -> None:
    backoff = Backoff(first_ms=10, max_ms=40, rng=random.Random(3))
    waits = [backoff.failed() for _ in range(6)]
    for wait, step in zip(waits, (10, 20, 40, 40, 40, 40), strict=True):
        assert step // 2 <= wait <= step
    backoff.succeeded()
    assert backoff.failed() <= 10


@pytest.mark.parametrize(
    ("error", "is_repeatable", "again"),
    [
        (BUSY, False, True),
        (BROKEN, True, True),
        (BROKEN, False, False),
        (ChannelReadonly(channel="a"), True, False),
    ],
)
def test_only_what_may_be_asked_twice_is_asked_again(error: LogError, is_repeatable: bool, again: bool) -> None:
    retry = retry_of(is_repeatable=is_repeatable)
    if again:
        assert retry.after(error, 0) > 0
    else:
        with pytest.raises(type(error)):
            retry.after(error, 0)


def test_at_the_deadline_a_definite_refusal_stays_definite() -> None:
    with pytest.raises(NotEnoughReplicas):
        retry_of().after(BUSY, 99)


def test_at_the_deadline_an_unknown_attempt_makes_the_outcome_unknown() -> None:
    retry = retry_of()
    retry.after(BROKEN, 0)
    with pytest.raises(WaitTimedOut) as caught:
        retry.after(BUSY, 99)
    assert not caught.value.definite


# --- who is believed -------------------------------------------------------------------------------


def route(epoch: int, *, leader: str | None = "n1", channel_id: int = 1) -> ChannelRoute:
    return ChannelRoute(channel_id=channel_id, name="a", leader=leader, leader_epoch=epoch, channel_epoch=epoch)


def test_old_news_of_a_leader_is_not_believed() -> None:
    routes = Routes(["h:1"])
    routes.learn(route(5))
    routes.learn(route(4, leader="n2"))
    assert routes.channel("a") == route(5)
    routes.learn(route(6, leader="n3"))
    assert routes.channel("a") == route(6, leader="n3")


def test_a_channel_created_again_replaces_the_one_that_is_gone() -> None:
    routes = Routes(["h:1"])
    routes.learn(route(9))
    routes.learn(route(1, channel_id=2))
    assert routes.channel("a") == route(1, channel_id=2)
    routes.learn(route(9))
    assert routes.channel("a") == route(1, channel_id=2)


def test_a_refusal_that_names_a_newer_leader_is_followed() -> None:
    routes = Routes(["h:1"])
    routes.learn(route(5))
    old = NotChannelLeader(channel="a", leader="n2", address="h:2", leader_epoch=5)
    assert not routes.moved("a", old)
    new = NotChannelLeader(channel="a", leader="n2", address="h:2", leader_epoch=6)
    assert routes.moved("a", new)
    found = routes.channel("a")
    assert found is not None
    assert (found.leader, found.leader_epoch) == ("n2", 6)
    assert routes.addresses["n2"] == "h:2"
    nobody = NotChannelLeader(channel="a", leader=None, leader_epoch=7)
    assert not routes.moved("a", nobody)


@pytest.mark.parametrize("answer", [{}, {"nodes": [{}], "channels": []}, {"nodes": [], "channels": [{"name": "a"}]}])
def test_a_description_that_makes_no_sense_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        Routes(["h:1"]).described(answer)


# --- options ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wrong", "words"),
    [
        (ClientOptions, {"timeout_ms": 0, "poll_ms": -1}, ["timeout_ms", "poll_ms"]),
        (ClientOptions, {"backoff_first_ms": 9, "backoff_max_ms": 3}, ["backoff_max_ms"]),
        (ProducerOptions, {"acks": "some", "linger_ms": -1, "requests_max": 0}, ["acks", "linger_ms", "requests_max"]),
        (ProducerOptions, {"batch_bytes_max": BLOCK_BYTES_MAX + 1}, ["batch_bytes_max"]),
        (ReaderOptions, {"start": "first", "on_trim": "ignore"}, ["start", "on_trim"]),
        (ReaderOptions, {"start": -1, "bytes_max": 0}, ["start", "bytes_max"]),
    ],
)
def test_wrong_options_are_told_all_at_once(options: Any, wrong: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        options(**wrong)
    for word in words:
        assert word in str(caught.value)


def test_times_and_seqs_are_starts_of_their_own() -> None:
    assert ReaderOptions(start=Time(5)).start == Time(5)
    assert ReaderOptions(start=Seq(5)).start == Seq(5, None)
