"""Hand-made rows of `frames` and the files, ranges and readers that tests of tables share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table as IcebergTable

from tidelog.blocks.frames import encode_frames
from tidelog.blocks.header import Path as BlockPath
from tidelog.edge.sources.voyage import Voyage
from tidelog.pipeline.jobs.frames_tasks import frame_rows
from tidelog.pipeline.sources.logs import Piece
from tidelog.pipeline.tables import open_table
from tidelog.pipeline.tables.iceberg import CATALOG_NAME
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT
from tidelog.pipeline.tables.parquet_files import PartitionedWriter
from tidelog.pipeline.tables.table import DataFile, OffsetRange, RangeFiles, Table

START = datetime(2026, 11, 15, 12, tzinfo=UTC)
LINEAGE = "ab" * 16
SPARK_S = 120.0
"""For what a Spark job does beside the test."""


def frames_batch(start: int, end: int, *, channel: str = "boat-1", day: int = 0) -> pa.RecordBatch:
    """One row per offset, ten milliseconds apart, appended on the given day."""
    count = end - start
    offsets = np.arange(start, end, dtype=np.int64)
    appended = START + timedelta(days=day)
    times = offsets * 10_000 + int(START.timestamp() * 1e6)
    columns = {
        "channel": pa.repeat(pa.scalar(channel, pa.string()), count),
        "lineage": pa.repeat(pa.scalar(LINEAGE, pa.string()), count),
        "seq": pa.array(offsets + 1),
        "offset": pa.array(offsets),
        "epoch": pa.array(np.full(count, 3, np.int64)),
        "time": pa.array(times).view(pa.timestamp("us", tz="UTC")),
        "priority": pa.array(np.full(count, 2, np.int8)),
        "pgn": pa.array(np.where(offsets % 2 == 0, 130306, 128267).astype(np.int32)),
        "source": pa.array(np.full(count, 7, np.int16)),
        "destination": pa.array(np.full(count, 255, np.int16)),
        "data": pa.array([int(offset).to_bytes(8, "little") for offset in offsets], pa.binary()),
        "path": pa.repeat(pa.scalar("live", pa.string()), count),
        "append_time": pa.array([appended] * count, pa.timestamp("us", tz="UTC")),
        "append_day": pa.array([appended.date()] * count, pa.date32()),
    }
    return pa.RecordBatch.from_pydict(columns, schema=FRAMES_LAYOUT.schema)


def frames_table(folder: Path, table_format: str = "delta") -> Table:
    table = open_table(folder, FRAMES_LAYOUT, table_format=table_format)
    table.create()
    return table


def written(table: Table, *batches: pa.RecordBatch) -> tuple[DataFile, ...]:
    with PartitionedWriter(table.folder, table.layout) as writer:
        for batch in batches:
            writer.write_split(batch)
        return tuple(writer.close())


def part(
    table: Table, start: int, end: int, *, channel: str = "boat-1", channel_id: int = 1, epoch: int = 3, day: int = 0
) -> RangeFiles:
    """The range with its rows on disk, not yet committed."""
    return RangeFiles(
        range=OffsetRange(channel=channel, channel_id=channel_id, leader_epoch=epoch, start=start, end=end),
        files=written(table, frames_batch(start, end, channel=channel, day=day)),
    )


def offsets_of(table: Table, channel: str | None = None) -> list[int]:
    """Every offset a reader sees, doubles and all, in order."""
    found: list[int] = []
    for file in table.files():
        rows = _read(table, file)
        if channel is not None:
            rows = rows.filter(pc.equal(rows["channel"], channel))
        found += rows["offset"].to_pylist()
    return sorted(found)


def _read(table: Table, file: DataFile) -> pa.Table:
    with pq.ParquetFile(table.path_of(file)) as source:
        return source.read(columns=["channel", "offset"])


def voyage_frames(
    start: datetime, *, seconds: int, first_seq: int = 1, channel: str = "boat-1", without: Sequence[int] = ()
) -> pa.RecordBatch:
    """A boat at sea as rows of `frames`, appended the moment they were on the bus."""
    start_us = int(start.timestamp()) * 1_000_000
    columns = Voyage(seed=3, start_us=start_us).frames(start_us, start_us + seconds * 1_000_000)
    made = encode_frames(columns, base_seq=first_seq, producer=bytes.fromhex(LINEAGE))
    block = made.stamp(
        base_offset=0, channel_id=1, leader_epoch=1, append_time_us=start_us, durable_end=0, path=BlockPath.LIVE
    )
    piece = Piece(channel=channel, channel_id=1, leader_epoch=1, start=0, end=block.counted)
    ((_, rows),) = frame_rows([[block]], piece)
    plain = pa.Table.from_batches([rows]).cast(FRAMES_LAYOUT.schema).combine_chunks().to_batches()[0]
    return plain.filter(pc.invert(pc.is_in(plain["pgn"], value_set=pa.array(list(without), pa.int32()))))


def in_other_hands(table: Table) -> IcebergTable:
    """The same Iceberg table, opened as another program opens it."""
    root = table.folder.parent
    catalog = SqlCatalog("tidelog", uri=f"sqlite:///{root / CATALOG_NAME}", warehouse=root.as_uri())
    return catalog.load_table(f"tidelog.{table.layout.name}")


class Here:
    """Runs what would be Spark's tasks in this process."""

    defaultParallelism = 2  # noqa: N815 - Spark's name
    master = "here"

    def __init__(self) -> None:
        self._orders: Sequence[Any] = ()

    @property
    def sparkContext(self) -> Here:  # noqa: N802
        return self

    def parallelize(self, orders: Sequence[Any], slices: int) -> Here:
        assert len(orders) == slices
        self._orders = orders
        return self

    def map(self, work: Callable[[Any], Any]) -> Here:
        self._orders = [work(order) for order in self._orders]
        return self

    def collect(self) -> Sequence[Any]:
        return self._orders
