"""A real cluster as the pipeline reads it and writes into it, without Spark in between."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipeline.conftest import SmallCluster
from tests.pipeline.folders import NOW_US
from tidelog.blocks.block import MadeBlock
from tidelog.errors import (
    ChannelRecreated,
    FolderNotShared,
    HistoryRewritten,
    InvalidConfig,
    OffsetOutOfRange,
    SinkRefused,
    UnknownChannel,
)
from tidelog.pipeline.sinks.publisher import Publisher
from tidelog.pipeline.sinks.sink import BatchSink, SinkOptions, StagedRows, StreamSink
from tidelog.pipeline.sinks.staging import Key, Staging
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.columns import MESSAGES, batches
from tidelog.pipeline.sources.logs import ChannelEnds, Logs, Piece


@pytest.fixture
def logs(cluster: SmallCluster) -> Iterator[Logs]:
    opened = cluster.address.open()
    yield opened
    opened.close()


def piece(ends: ChannelEnds, **changes: int) -> Piece:
    place = {"start": ends.log_start, "end": ends.committed_end, "leader_epoch": ends.leader_epoch, **changes}
    return Piece(**{"channel": ends.channel, "channel_id": ends.channel_id, **place})  # type: ignore[arg-type]


def values(logs: Logs, wanted: Piece) -> list[bytes]:
    made = list(batches(logs.blocks(wanted), wanted, ["value"], messages=True))
    schema = pa.schema([MESSAGES.field("value")])
    found: list[bytes] = pa.Table.from_batches(made, schema=schema)["value"].to_pylist()
    return found


def all_values(logs: Logs, channel: str) -> list[bytes]:
    (ends,) = logs.channels([channel])
    return values(logs, piece(ends))


def test_committed_records_are_read_from_a_cluster(cluster: SmallCluster, logs: Logs) -> None:
    name = cluster.channel("read-1")
    sent = [b"value %d" % number for number in range(5_000)]
    with cluster.client.producer(name) as producer:
        producer.send_many(sent).result(30)
    (ends,) = logs.channels([name])
    assert ends.committed_end == 5_001, "the leader's first record says that its epoch began"
    assert values(logs, piece(ends)) == sent
    assert values(logs, piece(ends, start=11, end=21)) == sent[10:20]
    assert [one.channel for one in logs.channels(["read-*"])] == [name]
    assert logs.offset_at(name, time_us=0) <= 1
    assert logs.identity
    assert logs.set_cursors("tables", {name: 7}) == {}
    assert cluster.client.cursors(name) == {"tables": 7}


def test_a_cursor_that_cannot_be_set_is_told_and_keeps_no_other_back(cluster: SmallCluster, logs: Logs) -> None:
    name = cluster.channel("cursors-1")
    problems = logs.set_cursors("tables", {"nobody-made-it": 3, name: 0})
    assert list(problems) == ["nobody-made-it"]
    assert isinstance(problems["nobody-made-it"], UnknownChannel)
    assert cluster.client.cursors(name) == {"tables": 0}


def test_what_is_not_what_was_planned_is_not_read(cluster: SmallCluster, logs: Logs) -> None:
    name = cluster.channel("read-2")
    cluster.client.producer(name).send(b"x").result(30)
    (ends,) = logs.channels([name])
    with pytest.raises(OffsetOutOfRange):
        values(logs, piece(ends, end=ends.committed_end + 5))
    with pytest.raises(HistoryRewritten):
        values(logs, piece(ends, leader_epoch=ends.leader_epoch - 1))
    cluster.client.delete(name)
    with pytest.raises(UnknownChannel):
        values(logs, piece(ends))
    cluster.channel(name)
    with pytest.raises(ChannelRecreated):
        values(logs, piece(ends))


def test_an_address_goes_through_pickle_and_one_connection_serves_a_process(cluster: SmallCluster) -> None:
    again: LogsAddress = pickle.loads(pickle.dumps(cluster.address))
    assert again == cluster.address
    assert again.open_shared() is cluster.address.open_shared()


# --- publishing --------------------------------------------------------------------------------------


def rows(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.record_batch(
        {
            "value": pa.array([b"row %d" % number for number in numbers]),
            "key": pa.array([f"k{number % 4}" for number in numbers]),
            "time": pa.array([NOW_US + number for number in numbers], pa.timestamp("us", tz="UTC")),
        }
    )


def sink(cluster: SmallCluster, channel: str, checkpoint: Path, query: str = "query-1") -> StreamSink:
    """As Spark makes one for each batch of a query whose id is in the checkpoint."""
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": query}))
    options = {**cluster.options, "channel": channel, "checkpointLocation": f"file://{checkpoint}"}
    return StreamSink(SinkOptions.parse(options, streaming=True))


def expected(*ranges: range) -> list[bytes]:
    return [b"row %d" % number for part in ranges for number in part]


def test_a_batch_that_is_committed_again_is_published_once(cluster: SmallCluster, logs: Logs, tmp_path: Path) -> None:
    name = cluster.channel("sink-1")
    writer = sink(cluster, name, tmp_path)
    parts = [writer.write(iter([rows(0, 40), rows(40, 10)])), writer.write(iter([rows(50, 50)]))]
    writer.write(iter([rows(0, 50)]))  # an attempt that lost: nobody commits it
    for _ in range(3):
        sink(cluster, name, tmp_path).commit([*parts, StagedRows(records=0)], 0)
    other_order = [writer.write(iter([rows(50, 50)])), writer.write(iter([rows(0, 50)]))]
    sink(cluster, name, tmp_path).commit([*other_order], 0)
    sink(cluster, name, tmp_path).commit([writer.write(iter([rows(100, 5)]))], 1)
    assert all_values(logs, name) == expected(range(105))


def test_a_driver_that_died_in_the_middle_of_a_batch_is_followed_by_one_that_finishes_it(
    cluster: SmallCluster, logs: Logs, tmp_path: Path
) -> None:
    name = cluster.channel("sink-2")
    writer = sink(cluster, name, tmp_path)
    sink(cluster, name, tmp_path).commit([writer.write(iter([rows(0, 10)]))], 0)
    staging = Staging(tmp_path / "tidelog-sink")
    staged = [writer.write(iter([rows(first, 10)])) for first in (10, 20, 30)]
    intent = staging.claim(Key(name="query-1", batch=1), [(one.part, one.records) for one in staged])
    producer = staging.producer()
    assert producer is not None
    blocks: list[MadeBlock] = list(staging.blocks(intent, producer))

    async def half() -> None:
        async with Publisher(cluster.address, name) as publisher:
            await publisher.publish(blocks[:2], channel_id=producer.channel_id)

    asyncio.run(half())
    assert all_values(logs, name) == expected(range(30))
    # Spark computes the batch anew, in another order; what was frozen counts.
    again = [writer.write(iter([rows(first, 10)])) for first in (30, 10, 20)]
    sink(cluster, name, tmp_path).commit([*again], 1)
    sink(cluster, name, tmp_path).commit([writer.write(iter([rows(40, 10)]))], 2)
    assert all_values(logs, name) == expected(range(50))


def test_a_leader_that_dies_costs_a_sink_neither_loss_nor_duplicates(
    cluster: SmallCluster, logs: Logs, tmp_path: Path
) -> None:
    name = cluster.channel("sink-3")
    writer = sink(cluster, name, tmp_path)
    for batch in range(3):
        sink(cluster, name, tmp_path).commit([writer.write(iter([rows(10 * batch, 10)]))], batch)
    leader = cluster.client.describe(name)["leader"]
    cluster.kit.kill(leader)
    try:
        staged: list[StagedRows | None] = [writer.write(iter([rows(30, 10)]))]
        sink(cluster, name, tmp_path).commit(staged, 3)  # type: ignore[arg-type]
        assert all_values(logs, name) == expected(range(40))
    finally:
        cluster.kit.start(leader)


def test_a_sink_refuses_what_it_cannot_do_once(cluster: SmallCluster, tmp_path: Path) -> None:
    name = cluster.channel("sink-4")
    writer = sink(cluster, name, tmp_path)
    staged = writer.write(iter([rows(0, 10)]))
    sink(cluster, name, tmp_path).commit([staged], 0)
    other = cluster.channel("sink-5")
    with pytest.raises(SinkRefused, match="belongs to channel 'sink-4'"):
        sink(cluster, other, tmp_path).commit([writer.write(iter([rows(0, 1)]))], 1)
    assert [str(one.key) for one in Staging(tmp_path / "tidelog-sink").intents()] == ["query-1/0"], "it is not frozen"
    with pytest.raises(FolderNotShared, match="1 of 1 parts of a batch are not whole"):
        sink(cluster, name, tmp_path).commit([staged], 1)  # they are published, and so they are gone
    lost = writer.write(iter([rows(10, 10)]))
    staging = Staging(tmp_path / "tidelog-sink")
    staging.claim(Key(name="query-1", batch=1), [(lost.part, lost.records)])
    (staging.folder / lost.part).unlink()
    with pytest.raises(SinkRefused, match="restore the folder"):
        sink(cluster, name, tmp_path).commit([writer.write(iter([rows(10, 10)]))], 1)


def test_a_part_of_a_machine_with_another_folder_freezes_no_batch(
    cluster: SmallCluster, logs: Logs, tmp_path: Path
) -> None:
    name = cluster.channel("sink-6")
    here, there = sink(cluster, name, tmp_path / "here"), sink(cluster, name, tmp_path / "there")
    parts = [here.write(iter([rows(0, 10)])), there.write(iter([rows(10, 10)]))]
    with pytest.raises(FolderNotShared, match="1 of 2 parts"):
        sink(cluster, name, tmp_path / "here").commit([*parts], 0)
    again = [here.write(iter([rows(0, 10)])), here.write(iter([rows(10, 10)]))]
    sink(cluster, name, tmp_path / "here").commit([*again], 0)
    assert all_values(logs, name) == expected(range(20))


def test_a_query_with_a_new_checkpoint_drops_nothing_as_already_published(
    cluster: SmallCluster, logs: Logs, tmp_path: Path
) -> None:
    """Its batches begin at 0 again. The checkpoint is on a file system that is not visible here."""
    name = cluster.channel("sink-7")
    options = {**cluster.options, "channel": name, "checkpointLocation": "hdfs://name/checkpoint"}

    def publish(query: str, batch: int, first: int, count: int = 10) -> None:
        writer = StreamSink(SinkOptions.parse({**options, "staging": str(tmp_path / "staging")}, streaming=True))
        part = replace(writer.write(iter([rows(first, count)])), query=query)  # as a task of Spark has it
        writer.commit([part], batch)

    for batch in range(3):
        publish("first", batch, 10 * batch)
    publish("first", 2, 20)  # the last one again, after a crash
    assert all_values(logs, name) == expected(range(30))
    publish("second", 0, 30)
    assert all_values(logs, name) == expected(range(40))
    for batch in (0, 1):
        with pytest.raises(SinkRefused, match=f"batch {batch} of query first came and its batch 2 is published"):
            publish("first", batch, 100)
    with pytest.raises(SinkRefused, match="has 7 rows now and had 10"):
        publish("first", 2, 100, 7)
    with pytest.raises(SinkRefused, match="does not tell which query this is"):
        publish("", 3, 100)
    assert all_values(logs, name) == expected(range(40)), "what is refused is not published"
    publish("first", 3, 40)
    assert all_values(logs, name) == expected(range(50))


def test_a_transaction_that_is_saved_with_other_rows_is_refused(
    cluster: SmallCluster, logs: Logs, tmp_path: Path
) -> None:
    name = cluster.channel("sink-8")
    named = {"channel": name, "transaction": "import-7", "staging": str(tmp_path / "staging")}
    writer = BatchSink(SinkOptions.parse({**cluster.options, **named}, streaming=False))
    for _ in range(2):
        writer.commit([writer.write(iter([rows(0, 10)]))])
    with pytest.raises(SinkRefused, match="give it another name"):
        writer.commit([writer.write(iter([rows(10, 20)]))])
    assert all_values(logs, name) == expected(range(10))


def test_paths_of_a_sink_are_local_and_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plain = {"cluster": "n1:9500", "insecure": "true", "channel": "x"}
    with pytest.raises(InvalidConfig, match="staging is 's3://bucket/staging'"):
        SinkOptions.parse({**plain, "staging": "s3://bucket/staging"}, streaming=False)
    with pytest.raises(InvalidConfig, match="there is no local checkpoint"):
        SinkOptions.parse({**plain, "checkpointLocation": "s3://bucket/checkpoint"}, streaming=True)
    made = SinkOptions.parse({**plain, "checkpointLocation": "checkpoint", "staging": "staging"}, streaming=True)
    assert (made.checkpoint, made.staging) == (str(tmp_path / "checkpoint"), str(tmp_path / "staging"))
    made = SinkOptions.parse({**plain, "checkpointLocation": "file:///data/checkpoint"}, streaming=True)
    assert made.staging == "/data/checkpoint/tidelog-sink"
