"""Workers that do not share the driver's folder: nothing that they wrote is committed, and the refusal says so."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.folders import NOW_US, frame_blocks, put, small_store
from tests.pipeline.table_kit import START, Here, frames_table, offsets_of, part, voyage_frames, written
from tidelog.errors import FolderNotShared
from tidelog.pipeline.jobs import frames_job, signals_job
from tidelog.pipeline.jobs.frames_job import FramesJob, FramesOptions
from tidelog.pipeline.jobs.frames_tasks import FramesOrder, PiecesWritten, write_pieces
from tidelog.pipeline.jobs.lost_ranges import LostRanges, SaidRange
from tidelog.pipeline.jobs.signals_job import SignalsJob, SignalsOptions
from tidelog.pipeline.jobs.signals_tasks import SignalsOrder, SignalsWritten, write_signals
from tidelog.pipeline.jobs.task_runs import DRIVER_RECORDS_MAX, Workplace, carried_out, workplace_of
from tidelog.pipeline.settings import load_pipeline
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.planning import piece_between
from tidelog.pipeline.sources.source_options import StartPlace
from tidelog.pipeline.tables.maintenance import optimize
from tidelog.pipeline.tables.shared_folder import MARKER, marked
from tidelog.pipeline.tables.table import Table, TableStep

FORMATS = pytest.mark.parametrize("table_format", ["delta", "iceberg"])


@FORMATS
@pytest.mark.parametrize("harm", ["gone", "cut"])
def test_a_commit_names_no_file_that_is_not_whole_where_the_driver_is(
    tmp_path: Path, table_format: str, harm: str
) -> None:
    table = frames_table(tmp_path, table_format)
    good, bad = part(table, 0, 10, channel_id=1), part(table, 0, 10, channel="boat-2", channel_id=2)
    path = table.path_of(bad.files[0])
    path.unlink() if harm == "gone" else path.write_bytes(path.read_bytes()[:-1])
    before = table.version()
    with pytest.raises(FolderNotShared, match="1 of 2 new files") as refused:
        table.commit_append("main", [good, bad])
    assert str(table.folder) in str(refused.value)
    with pytest.raises(FolderNotShared):
        table.commit_following("main", [TableStep(upstream="x", start=None, end=1)], bad.files)
    assert table.version() == before
    assert table.files() == []
    assert table.positions("main", [1, 2]) == {}


@FORMATS
def test_a_rewrite_names_no_missing_file_either(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = frames_table(tmp_path, table_format)
    for start in (0, 10):
        table.commit_append("main", [part(table, start, start + 10)])
    files = table.files()
    moved = [dataclasses.replace(file, path=f"elsewhere/{file.path}") for file in files]
    with pytest.raises(FolderNotShared):
        table.commit_rewrite(files, moved)
    assert offsets_of(table) == list(range(20))
    assert optimize(table).files_after == 1


# --- jobs --------------------------------------------------------------------------------------------


def job_over(tmp_path: Path, table_format: str) -> FramesJob:
    store = small_store(tmp_path / "logs")
    for channel in ("boat-1", "boat-2"):
        put(store, channel, frame_blocks(3))
    store.close(NOW_US)
    options = FramesOptions(
        address=LogsAddress(path=str(tmp_path / "logs")),
        tables=str(tmp_path / "lake"),
        table_format=table_format,
        checkpoint=str(tmp_path / "checkpoint"),
        keep_cursor=False,
    )
    return FramesJob(Here(), options)  # type: ignore[arg-type]


def commit_everything(job: FramesJob) -> None:
    job.prepare()
    logs = job.options.address.open()
    try:
        pieces = [
            piece_between(ends, StartPlace(), StartPlace(kind="latest"), logs, on_trimmed="fail")
            for ends in logs.channels()
        ]
    finally:
        logs.close()
    job.commit_batch(pieces)


def in_another_folder(folder: str, tmp_path: Path) -> str:
    """What a worker without the mount has under the same path."""
    other = tmp_path / "worker" / Path(folder).name
    other.mkdir(parents=True, exist_ok=True)
    return str(other)


@FORMATS
def test_frames_of_a_worker_with_a_folder_of_its_own_are_not_committed(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the files are elsewhere: the second task's."""
    job = job_over(tmp_path, table_format)
    orders: list[FramesOrder] = []

    def split_brained(order: FramesOrder) -> PiecesWritten:
        orders.append(order)
        if len(orders) % 2 == 0:
            order = dataclasses.replace(order, folder=in_another_folder(order.folder, tmp_path))
        return write_pieces(order)

    monkeypatch.setattr(frames_job, "write_pieces", split_brained)
    with pytest.raises(FolderNotShared, match="Mount the same"):
        commit_everything(job)
    assert len(orders) == 2
    assert job.table.files() == []
    assert job.table.positions("main", [1, 2]) == {}
    monkeypatch.undo()
    commit_everything(job)
    assert sum(file.rows for file in job.table.files()) == 2 * 1_500


@FORMATS
def test_signals_of_a_worker_with_a_folder_of_its_own_are_not_committed(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = frames_table(tmp_path / "lake", table_format)
    files = written(frames, voyage_frames(START, seconds=20))
    frames.commit_append("main", [dataclasses.replace(part(frames, 0, 1), files=files)])
    signals = SignalsJob(Here(), SignalsOptions(tables=str(tmp_path / "lake"), table_format=table_format))  # type: ignore[arg-type]

    def elsewhere(order: SignalsOrder) -> SignalsWritten:
        return write_signals(dataclasses.replace(order, folder=in_another_folder(order.folder, tmp_path)))

    monkeypatch.setattr(signals_job, "write_signals", elsewhere)
    with pytest.raises(FolderNotShared):
        signals.run()
    assert signals.signals.files() == []
    assert signals.signals.consumed("main", "frames") is None
    monkeypatch.undo()
    assert signals.run().rows > 0


class Abroad(Here):
    """A cluster whose workers have another file system under the folder."""

    def __init__(self, mounted: Path) -> None:
        super().__init__()
        self._mounted = mounted

    def collect(self) -> Any:
        return super().collect()

    def map(self, work: Any) -> Abroad:
        hidden = self._mounted.with_name("of the driver")
        self._mounted.rename(hidden)
        self._mounted.mkdir()
        try:
            super().map(work)
            assert list(self._mounted.iterdir()) == [], "nothing is written into a stranger's folder"
        finally:
            shutil.rmtree(self._mounted)
            hidden.rename(self._mounted)
        return self


def test_a_worker_that_does_not_see_the_drivers_folder_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "frames"
    folder.mkdir()
    done: list[int] = []

    def work(order: int) -> int:
        done.append(order)
        (folder / f"rows-{order}").touch()
        return order

    cluster: Any = Abroad(folder)
    with pytest.raises(FolderNotShared, match="what the driver writes is not there"):
        carried_out(Workplace(cluster, 2), [1, 2, 3], work, folder=folder)
    assert done == []
    here: Any = Here()
    assert carried_out(Workplace(here, 2), [1, 2, 3], work, folder=folder) == [1, 2, 3]
    assert not list(folder.glob(f"{MARKER}*")), "markers are gone after the step"


def test_a_marker_of_a_killed_driver_is_swept_when_it_is_old(tmp_path: Path) -> None:
    old, running = tmp_path / f"{MARKER}1", tmp_path / f"{MARKER}2"
    for path in (old, running):
        path.touch()
    os.utime(old, (0, 0))
    with marked(tmp_path) as marker:
        assert {str(path) for path in tmp_path.iterdir()} == {marker, str(running)}


# --- where a step is carried out -----------------------------------------------------------------------


class Master(Here):
    def __init__(self, master: str) -> None:
        super().__init__()
        self.master = master


@pytest.mark.parametrize(
    ("master", "limit", "records", "is_driver"),
    [
        ("local[2]", None, DRIVER_RECORDS_MAX, True),
        ("local", None, 1, True),
        ("local[2]", None, DRIVER_RECORDS_MAX + 1, False),
        ("local[*]", 0, 1, False),
        ("local[*]", 0, 0, False),
        ("spark://head:7077", None, 1, False),
        ("local-cluster[2,1,1024]", None, 1, False),
        ("yarn", 0, 1, False),
        ("spark://head:7077", 500, 500, True),
        ("spark://head:7077", 500, 501, False),
    ],
)
def test_small_steps_stay_in_the_driver_by_a_setting_that_is_off_on_a_cluster(
    master: str, limit: int | None, records: int, is_driver: bool
) -> None:
    spark: Any = Master(master)
    chosen = workplace_of(spark, records=records, driver_records_max=limit, at_once=3)
    assert (chosen.spark is None) == is_driver


def test_the_threshold_is_a_setting_of_the_pipeline() -> None:
    given = ["-path", "x", "-tables", "lake"]
    plain = load_pipeline(arguments=given)
    assert (plain.frames.driver_records_max, plain.signals.driver_frames_max) == (None, None)
    for value in (0, 700):
        made = load_pipeline(arguments=[*given, "-driver-records", str(value)])
        assert (made.frames.driver_records_max, made.signals.driver_frames_max) == (value, value)


# --- other tables --------------------------------------------------------------------------------------


@FORMATS
def test_lost_ranges_are_added_as_before(tmp_path: Path, table_format: str) -> None:
    lost = LostRanges(tmp_path, pipeline="main", table_format=table_format)
    assert lost.add([SaidRange(channel="boat-1", lineage="ab" * 16, kind="lost", start=3, end=9)]) == 1
    table: Table = lost.table
    assert [file.rows for file in table.files()] == [1]
