"""Channels into `frames` on a real Spark, and what is refused before it starts."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.patience import block_until, patient
from tests.pipeline.folders import BLOCK_ROWS, control_block, frame_blocks, put, segments, small_store, spoil
from tests.pipeline.table_kit import SPARK_S, Here, frames_table, offsets_of, part
from tidelog.errors import (
    ChannelRecreated,
    CommittedLost,
    HistoryRewritten,
    LogError,
    OffsetTrimmed,
    SourceChanged,
)
from tidelog.pipeline.jobs.frames_job import (
    FramesJob,
    FramesOptions,
    cut,
    deal,
    lag_of,
    require_cluster,
    require_fitting,
    source_options,
)
from tidelog.pipeline.jobs.frames_tasks import FramesOrder, write_pieces
from tidelog.pipeline.jobs.supervisor import failure_of
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.logs import ChannelEnds, Piece
from tidelog.pipeline.tables.maintenance import vacuum
from tidelog.pipeline.tables.table import OffsetRange, Position, RangeFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow  # many jobs of Spark; `test_pipeline_commands` runs all stages in the fast lane

NOW_US = 1_790_000_000_000_000


def options_of(folder: Path, **changes: object) -> FramesOptions:
    made = FramesOptions(
        address=LogsAddress(path=str(folder / "logs")),
        tables=str(folder / "tables"),
        checkpoint=str(folder / "checkpoint"),
        batch_records_max=6_000,
        driver_records_max=0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def add_blocks(folder: Path, channel: str, count: int, *, first: int = 0) -> None:
    """`count` blocks of `BLOCK_ROWS` frames, after a control record if the channel is new."""
    store = small_store(folder / "logs")
    blocks = frame_blocks(count, first_seq=1 + first * BLOCK_ROWS, seed=first)
    put(store, channel, blocks if first else [control_block(), *blocks])
    store.close(NOW_US)


def run(job: FramesJob) -> FramesJob:
    """As its supervisor would: what may pass is tried again. A loaded machine is enough to lose a Python worker, for
    Spark gives it ten seconds to start."""
    for attempt in range(5):
        query = job.start()
        try:
            query.awaitTermination(180)
            assert not query.isActive, "the run does not come to an end"
            return job
        except Exception as error:
            if attempt == 4 or not failure_of(job.failure, error).retriable:
                raise
        finally:
            query.stop()
    raise AssertionError("unreachable")


def held(blocks: int) -> list[int]:
    """Offsets of so many blocks behind the control record at 0."""
    return list(range(1, 1 + blocks * BLOCK_ROWS))


# --- on Spark --------------------------------------------------------------------------------------


def test_a_run_moves_every_frame_once_and_a_rerun_makes_no_version(spark: SparkSession, tmp_path: Path) -> None:
    add_blocks(tmp_path, "boat-1", 20)
    add_blocks(tmp_path, "boat-2", 8)
    job = run(FramesJob(spark, options_of(tmp_path)))
    assert offsets_of(job.table, "boat-1") == held(20)
    assert offsets_of(job.table, "boat-2") == held(8)
    assert job.progress.frames == 28 * BLOCK_ROWS
    assert job.progress.commits >= 2, "the limit of a batch was not kept"
    assert set(job.lag_records().values()) == {0}
    version = job.table.version()
    again = run(FramesJob(spark, options_of(tmp_path)))
    assert (again.table.version(), again.progress.commits) == (version, 0)


def test_a_checkpoint_that_does_not_say_where_a_batch_ends_is_asked_through_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_blocks(tmp_path, "boat-1", 20)
    monkeypatch.setattr("tidelog.pipeline.jobs.frames_job.batch_offsets", lambda folder, batch_id: None)
    job = run(FramesJob(spark, options_of(tmp_path)))
    assert offsets_of(job.table, "boat-1") == held(20)
    assert job.progress.commits >= 2, "the limit of a batch was not kept"


def test_a_small_batch_is_written_by_the_driver_with_the_same_result(spark: SparkSession, tmp_path: Path) -> None:
    add_blocks(tmp_path, "boat-1", 4)
    pieces = pieces_of(options_of(tmp_path).address)
    by_tasks = FramesJob(spark, options_of(tmp_path))
    here = FramesJob(spark, options_of(tmp_path, tables=str(tmp_path / "here"), driver_records_max=10_000))
    for job in (by_tasks, here):
        job.table.create()
        job.commit_batch(pieces)
        assert offsets_of(job.table) == held(4)
    (theirs,), (ours,) = by_tasks.table.files(), here.table.files()
    assert replace(theirs, path=ours.path, bytes=ours.bytes) == ours


def test_without_its_checkpoint_a_run_goes_on_where_the_table_stands(spark: SparkSession, tmp_path: Path) -> None:
    add_blocks(tmp_path, "boat-1", 4)
    run(FramesJob(spark, options_of(tmp_path)))
    shutil.rmtree(tmp_path / "checkpoint")
    add_blocks(tmp_path, "boat-1", 3, first=4)
    job = run(FramesJob(spark, options_of(tmp_path)))
    assert job.progress.frames == 3 * BLOCK_ROWS
    assert offsets_of(job.table) == held(7)


def test_two_drivers_at_once_move_every_frame_once(spark: SparkSession, tmp_path: Path) -> None:
    """A driver that loses a race is refused and starts again from the table, as its supervisor would have it."""
    add_blocks(tmp_path, "boat-1", 12)
    add_blocks(tmp_path, "boat-2", 12)
    failures: list[BaseException] = []

    def drive(name: str) -> None:
        try:
            run(FramesJob(spark, options_of(tmp_path, checkpoint=str(tmp_path / name), batch_records_max=2_000)))
        except BaseException as error:
            failures.append(error)

    drivers = [threading.Thread(target=drive, args=(name,)) for name in ("first", "second")]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(patient(240))
    assert not failures
    table = frames_table(tmp_path / "tables")
    assert offsets_of(table, "boat-1") == held(12)
    assert offsets_of(table, "boat-2") == held(12)


def test_a_worker_killed_while_it_writes_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Its job fails, the next one takes the same batch again; what it had written is swept later."""
    add_blocks(tmp_path, "boat-1", 30)
    add_blocks(tmp_path, "boat-2", 30)
    job = FramesJob(spark, options_of(tmp_path, batch_records_max=3_000))
    done = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        while not done.wait(0.05):
            if job.progress.commits >= 2 and not killed:
                killed.extend(kill_workers(spark))

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run(job)
    finally:
        done.set()
        killer.join(patient(10))
    assert killed, "nobody was there to be killed"
    assert offsets_of(job.table, "boat-1") == held(30)
    assert offsets_of(job.table, "boat-2") == held(30)
    vacuum(job.table, keep_hours=0)
    files = {str(path.relative_to(job.table.folder)) for path in job.table.folder.rglob("*.parquet")}
    assert {name for name in files if not name.startswith("_")} == {file.path for file in job.table.files()}


def kill_workers(spark: SparkSession) -> list[int]:
    """SIGKILL to the Python workers of this session's tasks: children of its daemon, which itself goes on."""
    del spark
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or not _descends_from(int(entry.name), os.getpid()):
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            of_parent = Path(f"/proc/{parent}/cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if b"pyspark.daemon" in words and b"pyspark.daemon" in of_parent:
            os.kill(int(entry.name), signal.SIGKILL)
            found.append(int(entry.name))
    return found


def _descends_from(process: int, ancestor: int) -> bool:
    while process > 1:
        if process == ancestor:
            return True
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return False
    return False


def test_a_channel_that_was_made_again_is_refused_and_may_be_accepted(spark: SparkSession, tmp_path: Path) -> None:
    add_blocks(tmp_path, "boat-1", 2)
    run(FramesJob(spark, options_of(tmp_path)))
    shutil.rmtree(tmp_path / "logs")
    add_blocks(tmp_path, "other", 1)
    add_blocks(tmp_path, "boat-1", 3)
    with pytest.raises(ChannelRecreated):
        FramesJob(spark, options_of(tmp_path)).start()
    shutil.rmtree(tmp_path / "checkpoint")
    job = run(FramesJob(spark, options_of(tmp_path, on_recreated="accept", channels=("boat-1",))))
    assert offsets_of(job.table, "boat-1") == sorted(held(2) + held(3))


def test_a_trigger_picks_up_what_comes_and_new_channels(spark: SparkSession, tmp_path: Path) -> None:
    add_blocks(tmp_path, "boat-1", 2)
    job = FramesJob(spark, options_of(tmp_path))
    query = job.start(interval_s=0.2)
    try:
        block_until(lambda: job.progress.frames == 2 * BLOCK_ROWS, "two blocks", SPARK_S)
        add_blocks(tmp_path, "boat-2", 1)
        block_until(lambda: job.progress.frames == 3 * BLOCK_ROWS, "the third block", SPARK_S)
    finally:
        query.stop()
    assert offsets_of(job.table, "boat-2") == held(1)


# --- batches -----------------------------------------------------------------------------------------


def pieces_of(address: LogsAddress) -> list[Piece]:
    logs = address.open()
    try:
        return [
            Piece(
                channel=ends.channel,
                channel_id=ends.channel_id,
                leader_epoch=ends.leader_epoch,
                start=ends.log_start,
                end=ends.committed_end,
            )
            for ends in logs.channels()
        ]
    finally:
        logs.close()


def test_a_batch_that_is_run_again_reads_nothing_that_the_table_holds(tmp_path: Path) -> None:
    """Retention may have taken it by then."""
    add_blocks(tmp_path, "boat-1", 3)
    job = FramesJob(Here(), options_of(tmp_path))  # type: ignore[arg-type]
    job.prepare()
    pieces = pieces_of(job.options.address)
    job.commit_batch(pieces)
    for segment in segments(tmp_path / "logs", "boat-1"):
        segment.unlink()
    version = job.table.version()
    job.commit_batch(pieces)
    assert job.table.version() == version
    assert offsets_of(job.table) == held(3)


def test_a_batch_whose_records_are_gone_commits_nothing(tmp_path: Path) -> None:
    add_blocks(tmp_path, "boat-1", 2)
    add_blocks(tmp_path, "boat-2", 2)
    job = FramesJob(Here(), options_of(tmp_path))  # type: ignore[arg-type]
    job.prepare()
    pieces = pieces_of(job.options.address)
    version = job.table.version()
    for segment in segments(tmp_path / "logs", "boat-2"):
        spoil(segment, 200)
    with pytest.raises(LogError):
        job.commit_batch(pieces)
    assert job.table.version() == version
    assert job.table.files() == []


def test_cursors_follow_the_table_and_never_run_ahead(tmp_path: Path) -> None:
    add_blocks(tmp_path, "boat-1", 2)
    job = FramesJob(Here(), options_of(tmp_path))  # type: ignore[arg-type]
    logs = job.options.address.open()
    moved: list[tuple[str, str, int]] = []
    held_at_move: list[int] = []

    def set_cursors(name: str, offsets: Mapping[str, int]) -> dict[str, LogError]:
        moved.extend((name, channel, offset) for channel, offset in offsets.items())
        held_at_move.append(max((one.next_offset for one in job.table.positions("main", [1]).values()), default=0))
        return {}

    logs.set_cursors = set_cursors  # type: ignore[method-assign]
    job._logs = logs
    job.prepare()
    pieces = pieces_of(job.options.address)
    job.commit_batch(pieces)
    end = pieces[0].end
    assert moved == [("pipeline.main", "boat-1", 0), ("pipeline.main", "boat-1", end)]
    assert held_at_move == [0, end]
    job.close()


# --- tasks -----------------------------------------------------------------------------------------


def test_a_task_writes_the_rows_of_its_pieces_with_lineage_path_and_day(tmp_path: Path) -> None:
    add_blocks(tmp_path, "boat-1", 3)
    address = LogsAddress(path=str(tmp_path / "logs"))
    logs = address.open()
    (ends,) = logs.channels()
    logs.close()
    piece = Piece(channel="boat-1", channel_id=ends.channel_id, leader_epoch=ends.leader_epoch, start=100, end=1_200)
    table = frames_table(tmp_path / "tables")
    (found,) = write_pieces(FramesOrder(address=address, pieces=(piece,), folder=str(table.folder))).files
    assert (found.file.rows, found.file.minimums["offset"], found.file.maximums["offset"]) == (1_100, 100, 1_199)
    span = OffsetRange(channel="boat-1", channel_id=ends.channel_id, leader_epoch=1, start=100, end=1_200)
    table.commit_append("main", [RangeFiles(range=span, files=(found.file,))])
    from deltalake import DeltaTable

    rows = DeltaTable(str(table.folder)).to_pyarrow_table()
    assert rows["offset"].to_pylist() == list(range(100, 1_200))
    assert rows["seq"].to_pylist() == list(range(100, 1_200))
    assert set(rows["path"].to_pylist()) == {"live"}
    assert {len(lineage) for lineage in rows["lineage"].to_pylist()} == {32}
    assert {str(day) for day in rows["append_day"].to_pylist()} == {found.file.partition[0]}


# --- what must fit ---------------------------------------------------------------------------------

ENDS = ChannelEnds(channel="boat-1", channel_id=7, leader_epoch=5, log_start=100, committed_end=900)


def at(next_offset: int, epoch: int = 5) -> Position:
    return Position(channel_id=7, next_offset=next_offset, leader_epoch=epoch)


@pytest.mark.parametrize(
    ("ends", "position", "known_id", "refusal"),
    [
        (ENDS, at(500), 6, ChannelRecreated),
        (replace(ENDS, unclean_epoch=5), at(500, epoch=4), 7, HistoryRewritten),
        (ENDS, at(901), 7, CommittedLost),
        (ENDS, at(99), 7, OffsetTrimmed),
    ],
)
def test_a_log_that_is_not_what_the_table_was_filled_from_is_refused(
    tmp_path: Path, ends: ChannelEnds, position: Position, known_id: int, refusal: type[LogError]
) -> None:
    with pytest.raises(refusal):
        require_fitting(ends, position, known_id, options_of(tmp_path))


def test_a_log_that_fits_is_taken(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    require_fitting(ENDS, None, None, options)
    require_fitting(ENDS, at(100), 7, options)
    require_fitting(ENDS, at(900), 7, options)
    require_fitting(replace(ENDS, unclean_epoch=5), at(500, epoch=5), 7, options)
    require_fitting(ENDS, at(99), 7, replace(options, on_trimmed="skip"))
    require_fitting(ENDS, None, 6, replace(options, on_recreated="accept"))


def test_a_table_of_another_cluster_is_refused(tmp_path: Path) -> None:
    table = frames_table(tmp_path)
    require_cluster(table, "main", "c1")
    table.commit_append("main", [part(table, 0, 5)], cluster="c1")
    require_cluster(table, "main", "c1")
    for other in ("c2", ""):
        with pytest.raises(SourceChanged, match="another cluster"):
            require_cluster(table, "main", other)


# --- arithmetic ------------------------------------------------------------------------------------


def piece(start: int, end: int, channel_id: int = 7) -> Piece:
    return Piece(channel=f"boat-{channel_id}", channel_id=channel_id, leader_epoch=5, start=start, end=end)


def test_pieces_are_cut_by_what_the_table_holds() -> None:
    pieces = [piece(0, 10), piece(10, 20), piece(20, 30), piece(0, 5, channel_id=8)]
    left, ranges = cut(pieces, {7: at(15), 8: replace(at(5), channel_id=8)})
    assert [(one.start, one.end) for one in left] == [(15, 20), (20, 30)]
    assert [(one.channel_id, one.start, one.end) for one in ranges] == [(7, 15, 30)]


def test_what_the_table_lacks_is_read_although_the_checkpoint_is_ahead() -> None:
    left, ranges = cut([piece(20, 30), piece(30, 40)], {7: at(15)})
    assert [(one.start, one.end) for one in left] == [(15, 30), (30, 40)]
    assert [(one.start, one.end) for one in ranges] == [(15, 40)]


def test_small_pieces_share_tasks_and_large_ones_do_not() -> None:
    small = [piece(0, 10, channel_id=number) for number in range(100)]
    loads = [sum(one.end - one.start for one in dealt) for dealt in deal(small, tasks=2, records_max=10_000)]
    assert loads == [500, 500]
    large = [piece(start, start + 1_000) for start in range(0, 8_000, 1_000)]
    assert len(deal(large, tasks=2, records_max=1_000)) == 8
    assert [one for dealt in deal(large, tasks=3, records_max=5_000) for one in dealt] == large
    assert deal([], tasks=2, records_max=10) == []
    huge = deal([piece(0, 1_000_000)], tasks=2, records_max=5_000_000)
    assert [(one.start, one.end) for dealt in huge for one in dealt] == [(0, 500_000), (500_000, 1_000_000)]


def test_lag_counts_what_the_table_does_not_hold(tmp_path: Path) -> None:
    add_blocks(tmp_path, "boat-1", 3)
    logs = LogsAddress(path=str(tmp_path / "logs")).open()
    found = logs.channels()
    number, end = found[0].channel_id, found[0].committed_end
    assert lag_of(found, {}, logs) == {"boat-1": end}
    assert lag_of(found, {number: replace(at(end - 50), channel_id=number)}, logs) == {"boat-1": 50}
    assert lag_of([replace(found[0], committed_end=1)], {}, logs) == {"boat-1": 0}, "a control record is no frame"
    logs.close()


def test_control_records_alone_make_no_version(tmp_path: Path) -> None:
    add_blocks(tmp_path, "boat-1", 1)
    job = FramesJob(Here(), options_of(tmp_path))  # type: ignore[arg-type]
    job.prepare()
    (whole,) = pieces_of(job.options.address)
    version = job.table.version()
    job.commit_batch([replace(whole, end=1)])
    assert job.table.version() == version
    job.commit_batch([replace(whole, start=1)])
    assert job.table.positions("main", [whole.channel_id])[whole.channel_id].next_offset == whole.end
    assert offsets_of(job.table) == held(1)


def test_the_source_is_asked_in_its_own_words(tmp_path: Path) -> None:
    from tidelog.pipeline.sources.source_options import SourceOptions

    said = source_options(options_of(tmp_path, channels=("a*", "b")), {"a1": 5})
    parsed = SourceOptions.parse(said, streaming=True)
    assert parsed.descriptors
    assert parsed.channels == ("a*", "b")
    assert parsed.starting.offsets == {"a1": 5}
    assert parsed.max_records_per_trigger == 6_000
    assert SourceOptions.parse(source_options(options_of(tmp_path), {}), streaming=True).starting.kind == "earliest"
