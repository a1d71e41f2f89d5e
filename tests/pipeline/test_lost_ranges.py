"""What control records say of lost and void ranges: collected by tasks, committed once, and shown by fleet health."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from tests.blocks.crafted import LINEAGE, steady_frames
from tests.pipeline.folders import BLOCK_ROWS, control_block, frame_blocks, put, small_store
from tests.pipeline.table_kit import Here
from tidelog.blocks.block import MadeBlock
from tidelog.blocks.control import ControlRecord, FoldSnapshot, RangeLost, RangeVoid, encode_control
from tidelog.blocks.frames import encode_frames
from tidelog.pipeline.jobs.frames_job import FramesJob, FramesOptions
from tidelog.pipeline.jobs.lost_ranges import LostRanges, SaidRange, read_lost_ranges
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.logs import Piece
from tidelog.pipeline.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_US = 1_790_000_000_000_000
NAME = LINEAGE.hex()
Row = tuple[str, int, int]


def control(*records: ControlRecord) -> MadeBlock:
    return encode_control(records, time_us=NOW_US)


def append(folder: Path, blocks: Sequence[MadeBlock]) -> None:
    store = small_store(folder / "logs")
    put(store, "boat-1", blocks)
    store.close(NOW_US)


def job_of(folder: Path, spark: Any = None) -> FramesJob:
    options = FramesOptions(
        address=LogsAddress(path=str(folder / "logs")),
        tables=str(folder / "tables"),
        checkpoint=str(folder / "checkpoint"),
    )
    return FramesJob(spark or Here(), options)  # type: ignore[arg-type]


def piece_of(job: FramesJob) -> Piece:
    logs = job.options.address.open()
    (ends,) = logs.channels()
    logs.close()
    return Piece(
        channel=ends.channel,
        channel_id=ends.channel_id,
        leader_epoch=ends.leader_epoch,
        start=ends.log_start,
        end=ends.committed_end,
    )


def held(job: FramesJob) -> list[Row]:
    found = read_lost_ranges(job.lost.table, ["boat-1"]).to_pylist() if job.lost.table.exists() else []
    return sorted((row["kind"], row["seq_start"], row["seq_end"]) for row in found)


def test_ranges_reach_the_table_once_although_no_frames_follow(tmp_path: Path) -> None:
    lost = RangeLost(lineage=NAME, start=501, end=601)
    append(tmp_path, [control_block(), *frame_blocks(1), control(lost, RangeVoid(lineage=NAME, start=601, end=701))])
    job = job_of(tmp_path)
    job.prepare()
    whole = piece_of(job)
    job.commit_batch([replace(whole, end=1 + BLOCK_ROWS)])
    assert held(job) == []
    frames_version = job.table.version()
    job.commit_batch([replace(whole, start=1 + BLOCK_ROWS)])
    assert held(job) == [("lost", 501, 601), ("void", 601, 701)]
    assert job.table.version() == frames_version, "FJ4"
    version = job.lost.table.version()
    job.commit_batch([replace(whole, start=1 + BLOCK_ROWS)])
    again = job_of(tmp_path)
    again.commit_batch([replace(whole, start=1 + BLOCK_ROWS)])
    assert again.lost.table.version() == version, "said again it is the same"


def test_ranges_are_committed_before_frames_pass_them(tmp_path: Path) -> None:
    """A driver that dies between the two leaves them in the table, and the batch that is run again adds nothing."""
    append(tmp_path, [control(RangeLost(lineage=NAME, start=1, end=9)), *frame_blocks(1, first_seq=9)])
    job = job_of(tmp_path)
    job.prepare()

    class Died(Exception):
        pass

    def die(*arguments: object, **more: object) -> None:
        raise Died

    commit = job.table.commit_append
    job.table.commit_append = die  # type: ignore[method-assign, assignment]
    with pytest.raises(Died):
        job.commit_batch([piece_of(job)])
    assert held(job) == [("lost", 1, 9)]
    job.table.commit_append = commit  # type: ignore[method-assign]
    version = job.lost.table.version()
    job.commit_batch([piece_of(job)])
    assert (job.lost.table.version(), job.progress.frames) == (version, BLOCK_ROWS)


def test_a_snapshot_says_again_what_was_trimmed_before_it(tmp_path: Path) -> None:
    fold = {"held": [[1, 501]], "lost": [[501, 601], [700, 800]], "void": [[601, 650]], "head": 900, "life": ""}
    state = {"current": NAME, "session": 1, "lineages": {NAME: fold}}
    append(tmp_path, [control(RangeLost(lineage=NAME, start=701, end=750)), control(FoldSnapshot(state=state))])
    job = job_of(tmp_path)
    job.prepare()
    job.commit_batch([piece_of(job)])
    assert held(job) == [("lost", 501, 601), ("lost", 700, 800), ("void", 601, 650)]


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_of_overlapping_ranges_only_what_is_new_is_added(tmp_path: Path, table_format: str) -> None:
    def said(start: int, end: int) -> SaidRange:
        return SaidRange(channel="boat-1", lineage=NAME, kind="lost", start=start, end=end)

    first, second = (LostRanges(tmp_path, pipeline="main", table_format=table_format) for _ in range(2))
    assert first.add([]) == 0
    assert not first.table.exists(), "no table where nothing is lost"
    assert first.add([said(10, 20), said(15, 30)]) == 1
    assert second.add([said(5, 40)]) == 2, "another driver sees what is there"
    assert first.add([said(5, 40), said(12, 13)]) == 0
    rows = read_lost_ranges(first.table, ["boat-1"]).to_pylist()
    assert sorted((row["seq_start"], row["seq_end"]) for row in rows) == [(5, 10), (10, 30), (30, 40)]
    assert read_lost_ranges(first.table, ["boat-2"]).num_rows == 0


@pytest.mark.slow  # a run of gold is a dozen jobs of Spark
def test_a_range_that_the_log_calls_lost_is_a_lost_row_of_fleet_health(spark: SparkSession, tmp_path: Path) -> None:
    """Also when the word comes long after the last frame: gold follows it without new frames."""
    from tidelog.pipeline.gold.gold_job import GoldOptions, run_gold
    from tidelog.pipeline.gold.schemas import FLEET_HEALTH

    frames = steady_frames(1_000, seed=1)
    append(
        tmp_path,
        [
            encode_frames(frames.slice(0, 400), base_seq=1, producer=LINEAGE),
            encode_frames(frames.slice(600, 1_000), base_seq=601, producer=LINEAGE),
        ],
    )
    options = GoldOptions(tables=tmp_path / "tables", pipeline="main")

    def shown() -> tuple[int, int, int]:
        table = open_table(options.tables, FLEET_HEALTH.table)
        rows = [row for file in table.files() for row in pq.ParquetFile(table.path_of(file)).read().to_pylist()]
        return sum(row["held"] for row in rows), sum(row["holes"] for row in rows), sum(row["lost"] for row in rows)

    job = job_of(tmp_path, spark)
    job.prepare()
    job.commit_batch([piece_of(job)])
    run_gold(spark, options)
    assert shown() == (800, 200, 0)
    said = RangeLost(lineage=NAME, start=401, end=501), RangeVoid(lineage=NAME, start=501, end=551)
    append(tmp_path, [control(*said)])
    job.commit_batch([piece_of(job)])
    outcomes = {one.table: one for one in run_gold(spark, options)}
    assert outcomes["fleet_health"].replaced == 1
    assert not outcomes["coverage"].is_new
    # The voids never were, so nobody misses them.
    assert shown() == (800, 50, 100)
    assert not any(one.is_new for one in run_gold(spark, options))
