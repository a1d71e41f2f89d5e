"""`df.write.format("tidelog")` and `writeStream`: rows as message records into a channel, each once.

Tasks encode their rows into blocks and stage them; nothing is published from a task, since Spark may run a task again
and gives it no batch number. When the batch commits, the driver freezes it (`sinks.staging`): after that it is
published under fixed seqs, repeatedly if needed, until the channel has all of it (`sinks.publisher`). So a task that
dies half way, a batch that is retried, a commit that fails and a driver that is killed anywhere all end with every row
of the batch in the channel once; a batch that never committed leaves nothing. The order of rows within a batch is that
of its partitions. It costs one more write and read of every byte, and all of them pass through the driver.

A stream stages in its checkpoint folder unless `staging` names another; lose that folder, and what follows is published
like a new stream. Its batches are known by the id that Spark keeps in the checkpoint, wherever that is, and gives to
every task. A batch is published once per `save()`; to make it survive a kill of the driver too, name it: `transaction`
and `staging` together mean that the same transaction is published once, however often it is saved.

SIK1  Rows are left out only as a repetition of the same batch: one that comes after a later batch was published, or
      with another number of rows than before, is refused.
SIK2  A batch is frozen only if the driver sees all of its parts whole.

Columns: `value`, and if wanted `key`, `time` and `headers`; strings are written as UTF-8.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructType, TimestampType

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.header import Codec
from tidelog.blocks.messages import encode_messages
from tidelog.client.producing.arrow_input import columns_of
from tidelog.errors import ChannelRecreated, FolderNotShared, InvalidConfig, SinkRefused
from tidelog.pipeline.local_paths import local_path
from tidelog.pipeline.sinks.publisher import Publisher
from tidelog.pipeline.sinks.staging import Key, SinkProducer, Staging, StagingIntent, unpacked
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.source_options import SECTION, WRITE_OPTIONS, OptionReader
from tidelog.units import MIB

BLOCK_BYTES: Final = 1 * MIB
INLINE_BYTES_MAX: Final = 64 * MIB
"""The most bytes of one task's records without a folder to stage them in."""
_STAGED: Final = "tidelog-sink"
_COLUMNS: Final = ("value", "key", "time", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one write. Pickled into tasks."""

    address: LogsAddress
    channel: str
    staging: str = ""
    checkpoint: str = ""
    transaction: str = ""
    codec: Codec = Codec.ZSTD

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        reader = OptionReader(options, WRITE_OPTIONS)
        checkpoint = _local(options.get("checkpointLocation", "")) if streaming else ""
        made = cls(
            address=reader.address(),
            channel=reader.text("channel"),
            staging=reader.path("staging") or (f"{checkpoint}/{_STAGED}" if checkpoint else ""),
            checkpoint=checkpoint,
            transaction=reader.text("transaction"),
            codec=Codec.NONE if reader.choice("codec", ("zstd", "none")) == "none" else Codec.ZSTD,
        )
        if not made.channel:
            reader.problems.append("name the `channel` to publish into")
        if made.address.path:
            reader.problems.append("a folder of logs is only read; give a `cluster` to publish into")
        if streaming and not made.staging:
            reader.problems.append(
                "give `staging`, a folder for what waits to be published: there is no local checkpoint"
            )
        if streaming and made.transaction:
            reader.problems.append("a stream names its batches by itself; leave `transaction` out")
        if made.transaction and not made.staging:
            reader.problems.append("a `transaction` needs `staging`, a folder in which it is remembered")
        reader.require_good()
        return made


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceArrowWriter:
    if overwrite:
        raise InvalidConfig(section=SECTION, problems=["a log cannot be overwritten; write with mode append"])
    require_columns(schema)
    return BatchSink(SinkOptions.parse(options, streaming=False))


def stream_writer(options: Mapping[str, str], schema: StructType) -> DataSourceStreamArrowWriter:
    require_columns(schema)
    return StreamSink(SinkOptions.parse(options, streaming=True))


def require_columns(schema: StructType) -> None:
    """Report everything that is wrong with the rows before the first task runs."""
    problems = [] if "value" in schema.names else ["column 'value' is missing"]
    for field in schema.fields:
        kind = field.dataType
        if field.name not in _COLUMNS:
            problems.append(f"column {field.name!r} is none of a record's: {', '.join(_COLUMNS)}; drop it")
        elif field.name in ("value", "key") and not isinstance(kind, StringType | BinaryType):
            problems.append(f"column {field.name!r} is {kind.simpleString()}; cast it to string or binary")
        elif field.name == "time" and not isinstance(kind, TimestampType):
            problems.append(f"column 'time' is {kind.simpleString()}; cast it to timestamp")
        elif field.name == "headers" and not _is_headers(kind):
            problems.append("column 'headers' must be array<struct<name: string, value: binary>>")
    if problems:
        raise InvalidConfig(section=SECTION, problems=problems)


def _is_headers(kind: Any) -> bool:
    inner = kind.elementType if isinstance(kind, ArrayType) else None
    return isinstance(inner, StructType) and inner.names == ["name", "value"]


def _local(location: str) -> str:
    """The path of a checkpoint on a file system that is visible here; empty for any other."""
    try:
        return local_path(location, name="checkpointLocation", section=SECTION)
    except InvalidConfig:
        return ""  # Spark can write there, and we cannot


# --- tasks -------------------------------------------------------------------------------------------


@dataclass
class StagedRows(WriterCommitMessage):
    """The result of one task for the batch: a file in the staging folder, or the bytes themselves."""

    records: int
    part: str = ""
    part_bytes: int = 0
    inline: bytes = b""
    query: str = ""
    """The id of the stream's query."""


def _running_query() -> str:
    """The id of the query that this task belongs to: Spark gives it to every task of a stream, as a property."""
    context = TaskContext.get()
    return "" if context is None else context.getLocalProperty("sql.streaming.queryId") or ""


class _RowSink:
    """The common part of batch and stream in a task."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        options = self._options
        blocks: list[MadeBlock] = []
        size = 0
        for batch in iterator:
            for columns, _ in columns_of(batch, bytes_max=BLOCK_BYTES, now_us=time.time_ns() // 1000):
                blocks.append(encode_messages(columns, codec=options.codec))
                size += len(blocks[-1].body)
            if not options.staging and size > INLINE_BYTES_MAX:
                raise SinkRefused(
                    channel=options.channel,
                    problem=f"a task has more than {INLINE_BYTES_MAX} bytes; give `staging`, a folder that driver and "
                    "executors share, or more partitions",
                )
        records = sum(block.maker.record_count for block in blocks)
        query = _running_query()
        if options.staging and blocks:
            part, size = Staging(options.staging).write_part(blocks)
            return StagedRows(records=records, part=part, part_bytes=size, query=query)
        inline = b"".join(bytes(part) for block in blocks for part in block.buffers)
        return StagedRows(records=records, inline=inline, query=query)


class StreamSink(_RowSink, DataSourceStreamArrowWriter):
    """Spark makes a new one for every commit: nothing is kept in it."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        query, rows = self._query(messages), _staged(messages)
        if query:
            asyncio.run(_publish_staged(self._options, Key(name=query, batch=batchId), rows))
        elif rows:
            raise SinkRefused(
                channel=self._options.channel,
                problem="Spark does not tell which query this is, and its checkpoint cannot be read here: batches of "
                "another query could be taken for these; give a checkpointLocation on a local file system",
            )

    def _query(self, messages: list[WriterCommitMessage | None]) -> str:
        """The id in the checkpoint: a new checkpoint in the same place is another query."""
        told = {message.query for message in messages if isinstance(message, StagedRows)} - {""}
        return told.pop() if len(told) == 1 else _query_id(self._options.checkpoint)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing: an intent may name these files. Files without an intent are removed when they are old."""


class BatchSink(_RowSink, DataSourceArrowWriter):
    """One `save()`."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        options = self._options
        if options.transaction:
            asyncio.run(_publish_staged(options, Key(name=options.transaction), _staged(messages)))
        else:
            asyncio.run(_publish_once(options, _staged(messages)))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """See `StreamSink.abort`."""


def _staged(messages: list[WriterCommitMessage | None]) -> list[StagedRows]:
    return [message for message in messages if isinstance(message, StagedRows) and message.records]


# --- the driver --------------------------------------------------------------------------------------


async def _publish_staged(options: SinkOptions, key: Key, rows: list[StagedRows]) -> None:
    staging = Staging(options.staging)
    _require_new_or_same(options, staging, key, sum(message.records for message in rows))
    if staging.is_published(key):
        return
    if staging.intent(key) is None:
        # What is frozen here is published, so it must be meant for this channel and be whole.
        _require_channel(staging.producer(), options.channel)
        _require_parts(staging, rows)
    intent = staging.claim(key, [(message.part, message.records) for message in rows])
    if intent.number <= staging.published_through():
        return
    async with Publisher(options.address, options.channel) as publisher:
        producer = await _producer(staging, publisher, options.channel)
        # Batches that an earlier driver froze and did not finish come first: seqs have no gaps.
        for waiting in staging.intents():
            if staging.published_through() < waiting.number <= intent.number:
                await publisher.publish(staging.blocks(waiting, producer), channel_id=producer.channel_id)
                staging.mark_published(waiting)
    staging.sweep()


def _require_new_or_same(options: SinkOptions, staging: Staging, key: Key, records: int) -> None:
    """SIK1."""
    last, frozen = staging.last_batch(key.name), staging.intent(key)
    if 0 <= key.batch < last:
        raise SinkRefused(
            channel=options.channel,
            problem=f"batch {key.batch} of query {key.name} came and its batch {last} is published: this checkpoint is "
            f"older than {options.staging}, or another driver runs the query; go on with the checkpoint that belongs "
            "to it, or publish everything again with a new checkpoint and a new staging folder",
        )
    if frozen is not None and frozen.records != records:
        way_out = (
            "give it another name"
            if key.batch < 0
            else "a query whose rows differ when a batch is computed again cannot be published once; make it "
            "deterministic, and go on with a new checkpoint and a new staging folder"
        )
        raise SinkRefused(
            channel=options.channel,
            problem=f"{key} has {records} rows now and had {frozen.records} when it was frozen in {options.staging}; "
            + way_out,
        )


def _require_channel(producer: SinkProducer | None, channel: str) -> None:
    if producer is not None and producer.channel != channel:
        raise SinkRefused(
            channel=channel, problem=f"its staging folder belongs to channel {producer.channel!r}; use another"
        )


def _require_parts(staging: Staging, rows: list[StagedRows]) -> None:
    """SIK2. A task on a machine that does not share the folder has written somewhere else."""
    absent = [message.part for message in rows if staging.part_bytes(message.part) != message.part_bytes]
    if absent:
        problem = f"{len(absent)} of {len(rows)} parts of a batch are not whole where the driver is"
        raise FolderNotShared(folder=str(staging.folder), problem=problem)


async def _producer(staging: Staging, publisher: Publisher, channel: str) -> SinkProducer:
    """The sink's producer; opened the first time, and never for another channel."""
    producer = staging.producer()
    channel_id = await publisher.channel_id()
    if producer is None:
        identity = await publisher.open_producer(f"spark-{secrets.token_hex(12)}")
        producer = staging.keep_producer(SinkProducer(channel=channel, channel_id=channel_id, identity=identity.hex()))
    _require_channel(producer, channel)
    if producer.channel_id != channel_id:
        raise ChannelRecreated(channel=channel, expected_id=producer.channel_id, found_id=channel_id)
    return producer


async def _publish_once(options: SinkOptions, rows: list[StagedRows]) -> None:
    """Without a name there is nothing to resume: a driver that dies in here has published a part."""
    staging = Staging(options.staging) if options.staging else None
    if staging is not None:
        _require_parts(staging, rows)
    async with Publisher(options.address, options.channel) as publisher:
        identity = await publisher.open_producer(f"spark-{secrets.token_hex(12)}")
        await publisher.publish(_numbered(rows, staging, identity), channel_id=await publisher.channel_id())
        await publisher.close_producer(identity)
    if staging is not None:
        staging.drop_parts(message.part for message in rows)


def _numbered(rows: list[StagedRows], staging: Staging | None, identity: bytes) -> Iterator[MadeBlock]:
    """The blocks of all tasks, in the order of their partitions, under seqs from 1 on."""
    if staging is not None:
        intent = StagingIntent(
            number=0, key=Key(name="once"), first_seq=1, records=0, parts=tuple(message.part for message in rows)
        )
        yield from staging.blocks(intent, SinkProducer(channel="", channel_id=0, identity=identity.hex()))
        return
    seq = 1
    for message in rows:
        for made in unpacked(message.inline):
            yield made.renumbered(base_seq=seq, producer=identity)
            seq += made.maker.record_count


def _query_id(checkpoint: str) -> str:
    """The id that Spark keeps in a checkpoint; empty if it cannot be read."""
    try:
        return str(json.loads((Path(checkpoint) / "metadata").read_text())["id"]) if checkpoint else ""
    except (OSError, ValueError, KeyError):
        return ""
