"""The audit: equal places are found equal, and each kind of difference is named by side and seq."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.blocks.crafted import LINEAGE, steady_frames
from tests.pipeline.folders import NOW_US, control_block, fleet, frame_blocks, put, small_store
from tidelog.blocks.frames import encode_frames
from tidelog.pipeline import audit as audit_module
from tidelog.pipeline.audit import AuditResult, audit
from tidelog.pipeline.jobs.frames_tasks import FramesOrder, write_pieces
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.logs import Piece
from tidelog.pipeline.tables import open_table
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT
from tidelog.pipeline.tables.table import OffsetRange, RangeFiles, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = "audited"
BLOCKS = 6
FRAMES = BLOCKS * 500
Change = Callable[[pa.Table], pa.Table]


def unchanged(rows: pa.Table) -> pa.Table:
    return rows


@pytest.fixture
def log(tmp_path: Path) -> LogsAddress:
    fleet(tmp_path / "log", blocks=BLOCKS)
    return LogsAddress(path=str(tmp_path / "log"))


def ingested(folder: Path, log: LogsAddress, *, change: Change = unchanged) -> Table:
    """The table `frames` of all channels; boat-1's rows pass through `change` on their way."""
    table = open_table(folder, FRAMES_LAYOUT)
    table.create()
    logs = log.open()
    parts = []
    for ends in logs.channels(("boat-*",)):
        piece = Piece(
            channel=ends.channel,
            channel_id=ends.channel_id,
            leader_epoch=ends.leader_epoch,
            start=0,
            end=ends.committed_end,
        )
        files = [
            one.file for one in write_pieces(FramesOrder(address=log, pieces=(piece,), folder=str(table.folder))).files
        ]
        if ends.channel == "boat-1":
            (file,) = files
            with pq.ParquetFile(table.path_of(file)) as source:
                rows = change(source.read())
            pq.write_table(rows, table.path_of(file))
            files = [replace(file, rows=rows.num_rows, bytes=table.path_of(file).stat().st_size)]
        covered = OffsetRange(
            channel=ends.channel,
            channel_id=ends.channel_id,
            leader_epoch=ends.leader_epoch,
            start=0,
            end=ends.committed_end,
        )
        parts.append(RangeFiles(range=covered, files=tuple(files)))
    logs.close()
    table.commit_append(PIPELINE, parts)
    return table


def told(result: AuditResult) -> list[tuple[str, str, str, int, int]]:
    return [(one.channel, one.what, one.side, one.first, one.last) for one in result.differences]


def test_log_and_table_that_are_equal_are_found_equal(spark: SparkSession, tmp_path: Path, log: LogsAddress) -> None:
    table = ingested(tmp_path / "frames", log)
    result = audit(spark, log=log, table=table, pipeline=PIPELINE, channels=("boat-*",))
    assert result.equal, [str(one) for one in result.differences]
    assert result.frames == {"log": 2 * FRAMES, "frames": 2 * FRAMES}
    assert result.plain()["equal"] is True


def without_rows(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows["seq"], value_set=pa.array([7, 8, 9, 1_200]))))


def with_another_byte(rows: pa.Table) -> pa.Table:
    data = rows["data"].to_pylist()
    at = rows["seq"].to_pylist().index(11)
    data[at] = bytes([data[at][0] ^ 1]) + data[at][1:]
    return rows.set_column(rows.schema.get_field_index("data"), "data", pa.array(data, pa.binary()))


def with_a_row_twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(20, 1)])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            without_rows,
            [("boat-1", "missing", "frames", 7, 9), ("boat-1", "missing", "frames", 1_200, 1_200)],
        ),
        (with_another_byte, [("boat-1", "different", "frames", 11, 11)]),
        (with_a_row_twice, [("boat-1", "twice", "frames", 21, 21)]),
    ],
    ids=["missing", "different", "twice"],
)
def test_what_differs_in_the_table_is_named_by_seq(
    spark: SparkSession,
    tmp_path: Path,
    log: LogsAddress,
    change: Change,
    expected: list[tuple[str, str, str, int, int]],
) -> None:
    table = ingested(tmp_path / "frames", log, change=change)
    result = audit(spark, log=log, table=table, pipeline=PIPELINE, channels=("boat-*",))
    assert told(result) == expected
    assert not result.equal


def test_past_the_limit_on_detail_a_difference_is_told_by_stretch(
    spark: SparkSession, tmp_path: Path, log: LogsAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "_STRETCHES_IN_DETAIL", 0)
    table = ingested(tmp_path / "frames", log, change=without_rows)
    result = audit(spark, log=log, table=table, pipeline=PIPELINE, channels=("boat-*",))
    assert told(result) == [("boat-1", "differs", "frames", 0, 65_535)]


def test_a_journal_may_be_ahead_and_may_have_lost_what_the_log_holds(spark: SparkSession, tmp_path: Path) -> None:
    # The log: seqs 501 to 2,000 without 1,201 to 1,300. The journal: seqs 1 to 500 are trimmed, 2,001 to 2,500 to come.
    blocks = frame_blocks(5)
    log = small_store(tmp_path / "log")
    put(log, "boat-1", [control_block(), *blocks[:2], part(1_001, 200), part(1_301, 200), blocks[3]])
    log.close(NOW_US)
    journal = small_store(tmp_path / "journal")
    put(journal, "own", [blocks[1], part(1_001, 200), part(1_201, 100), part(1_301, 200), *blocks[3:]])
    journal.close(NOW_US)
    result = audit(
        spark,
        log=LogsAddress(path=str(tmp_path / "log")),
        channels=("boat-1",),
        journals={"boat-1": LogsAddress(path=str(tmp_path / "journal"))},
    )
    assert told(result) == [("boat-1", "missing", "log", 1_201, 1_300)]
    assert result.not_shipped == {"boat-1": 500}
    assert result.only_in_log == {"boat-1": 500}


def test_the_log_is_read_once_for_table_and_journal_together(spark: SparkSession, tmp_path: Path) -> None:
    """Also where the table is behind: a stretch that is read in two parts is compared as a whole."""
    store = small_store(tmp_path / "log")
    put(store, "boat-1", [control_block(), part(1, 700), part(701, 300)])
    address = LogsAddress(path=str(tmp_path / "log"))
    table = ingested(tmp_path / "frames", address, change=lambda rows: rows)
    put(store, "boat-1", [part(1_001, 400), part(1_501, 100)])
    store.close(NOW_US)
    journal = small_store(tmp_path / "journal")
    put(journal, "own", [part(1, 1_000), part(1_001, 800)])
    journal.close(NOW_US)
    journals = {"boat-1": LogsAddress(path=str(tmp_path / "journal"))}
    result = audit(spark, log=address, table=table, pipeline=PIPELINE, channels=("boat-1",), journals=journals)
    assert told(result) == [("boat-1", "missing", "log", 1_401, 1_500)]
    assert result.frames == {"log": 1_500, "frames": 1_000, "journal of boat-1": 1_800}
    assert (result.not_shipped, result.only_in_log) == ({"boat-1": 200}, {"boat-1": 0})


def part(first_seq: int, rows: int):  # type: ignore[no-untyped-def]
    """Frames that depend on their seqs only, however they are cut."""
    whole = steady_frames(3_000, seed=9)
    return encode_frames(whole.slice(first_seq, first_seq + rows), base_seq=first_seq, producer=LINEAGE)


def test_replicas_are_compared_over_what_both_hold(spark: SparkSession, tmp_path: Path, log: LogsAddress) -> None:
    shutil.copytree(log.path, tmp_path / "other")
    behind = small_store(tmp_path / "behind")
    put(behind, "boat-1", [control_block(), *frame_blocks(2), *frame_blocks(2, first_seq=1_001, seed=50)])
    behind.close(NOW_US)
    nodes = {name: LogsAddress(path=str(tmp_path / name)) for name in ("log", "other")}
    equal = audit(spark, log=log, channels=("boat-*",), replicas=nodes)
    assert equal.equal
    assert equal.frames == {"replica on log": 2 * FRAMES, "replica on other": 2 * FRAMES}
    unlike = audit(
        spark,
        log=log,
        channels=("boat-1",),
        replicas={**nodes, "behind": LogsAddress(path=str(tmp_path / "behind"))},
    )
    assert told(unlike) == [("boat-1", "different", "replica on behind", 1_001, 2_000)]
