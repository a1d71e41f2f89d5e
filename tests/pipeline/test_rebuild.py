"""Building tables anew from the log or from the table below, after other writers changed them or without a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.pipeline.folders import NOW_US, put, small_store
from tests.pipeline.table_kit import Here, in_other_hands
from tidelog.blocks.control import RangeLost, encode_control
from tidelog.blocks.frames import encode_frames
from tidelog.edge.sources.voyage import Voyage
from tidelog.errors import CheckpointAhead, DiskFull, ForeignChange, RebuildRefused
from tidelog.pipeline.jobs.frames_job import FramesJob
from tidelog.pipeline.jobs.rebuild import rebuild
from tidelog.pipeline.jobs.signals_job import SignalsJob
from tidelog.pipeline.settings import PipelineSettings, load_pipeline
from tidelog.pipeline.sources.logs import Piece
from tidelog.pipeline.tables import FORMATS, open_table
from tidelog.pipeline.tables.iceberg import IcebergFolder
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT, LOST_RANGES_LAYOUT, SIGNALS_LAYOUT
from tidelog.pipeline.tables.reading import file_rows
from tidelog.pipeline.tables.table import OffsetRange, RangeFiles, Table, TableLayout

START_US = 1_795_000_000_000_000
LINEAGE = b"\xab" * 16


def at_sea(folder: Path, *, seconds: int = 20) -> None:
    """A store with two boats at sea, one of which has lost frames."""
    store = small_store(folder)
    for seed, boat in enumerate(("boat-1", "boat-2")):
        columns = Voyage(seed=seed, start_us=START_US).frames(START_US, START_US + seconds * 1_000_000)
        put(store, boat, [encode_frames(columns, base_seq=1, producer=LINEAGE)])
    said = encode_control([RangeLost(lineage=LINEAGE.hex(), start=900_000, end=900_010)], time_us=NOW_US)
    put(store, "boat-1", [said])
    store.close(NOW_US)


def settings_of(tmp_path: Path, table_format: str = "delta") -> PipelineSettings:
    where = {"path": tmp_path / "log", "tables": tmp_path / "lake", "channels": "boat-*", "format": table_format}
    return load_pipeline(arguments=[word for name, value in where.items() for word in (f"-{name}", str(value))])


def run(settings: PipelineSettings) -> None:
    """Frames and signals up to the end of the log, as batches of a stream would bring them."""
    job = FramesJob(Here(), settings.frames)  # type: ignore[arg-type]
    starts = job.prepare()
    pieces = [
        Piece(
            channel=ends.channel,
            channel_id=ends.channel_id,
            leader_epoch=ends.leader_epoch,
            start=starts[ends.channel],
            end=ends.committed_end,
        )
        for ends in settings.frames.address.open().channels(settings.frames.channels)
        if starts[ends.channel] < ends.committed_end
    ]
    job.commit_batch(pieces)
    job.close()
    SignalsJob(Here(), settings.signals).run()  # type: ignore[arg-type]


def table_of(settings: PipelineSettings, layout: TableLayout) -> Table:
    return open_table(settings.tables, layout, table_format=settings.table_format)


def content(settings: PipelineSettings) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table that the log alone decides, in an order that does not depend on files."""
    layouts = (FRAMES_LAYOUT, SIGNALS_LAYOUT, LOST_RANGES_LAYOUT)
    found = {}
    for layout in layouts:
        table = table_of(settings, layout)
        rows = [row for file in table.files() for row in file_rows(table, file).to_pylist()]
        found[layout.name] = sorted(rows, key=lambda row: json.dumps(row, default=str, sort_keys=True))
    return found


def shorten(table: Table) -> None:
    """What another writer's DELETE leaves."""
    if isinstance(table, IcebergFolder):
        in_other_hands(table).delete("seq < 100")
    else:
        DeltaTable(str(table.folder)).delete("seq < 100")


@pytest.mark.parametrize("table_format", FORMATS)
def test_frames_are_built_anew_from_the_log_and_signals_follow(tmp_path: Path, table_format: str) -> None:
    at_sea(tmp_path / "log")
    settings = settings_of(tmp_path, table_format)
    run(settings)
    before = content(settings)
    assert all(before.values())
    shorten(table_of(settings, FRAMES_LAYOUT))
    with pytest.raises(ForeignChange, match="rebuild frames"):
        run(settings)
    assert rebuild(settings, "frames").tables == ["frames"]
    run(settings)
    assert content(settings) == before


def test_a_driver_that_still_runs_while_frames_are_built_anew_writes_nothing_twice(tmp_path: Path) -> None:
    at_sea(tmp_path / "log")
    settings = settings_of(tmp_path)
    run(settings)
    before = content(settings)
    (end,) = (one for one in settings.frames.address.open().channels(["boat-1"]))
    old = table_of(settings, FRAMES_LAYOUT)
    position = old.positions("main", [end.channel_id])[end.channel_id]
    rebuild(settings, "frames")
    span = OffsetRange(
        channel="boat-1",
        channel_id=end.channel_id,
        leader_epoch=end.leader_epoch,
        start=position.next_offset,
        end=position.next_offset + 10,
    )
    with pytest.raises(CheckpointAhead):
        old.commit_append("main", [RangeFiles(range=span)])
    run(settings)
    assert content(settings) == before


@pytest.mark.parametrize("table_format", FORMATS)
def test_signals_are_built_anew_and_what_stands_beside_them_too(tmp_path: Path, table_format: str) -> None:
    at_sea(tmp_path / "log")
    settings = settings_of(tmp_path, table_format)
    run(settings)
    before = content(settings)
    shorten(table_of(settings, SIGNALS_LAYOUT))
    assert rebuild(settings, "devices").tables == ["signals", "undecoded", "devices", "clock_shifts"]
    run(settings)
    assert content(settings) == before


def test_signals_accept_the_changes_of_frames_only_if_they_are_told_to(tmp_path: Path) -> None:
    at_sea(tmp_path / "log")
    settings = settings_of(tmp_path)
    run(settings)
    shorten(table_of(settings, FRAMES_LAYOUT))
    with pytest.raises(ForeignChange, match="-from frames"):
        rebuild(settings, "signals")
    assert rebuild(settings, "signals", "frames").accepted == ["frames"]
    run(settings)
    assert min(row["seq"] for row in content(settings)["signals"]) >= 100
    assert min(row["seq"] for row in content(settings)["frames"]) == 100


def test_rows_below_a_position_stay_and_those_above_are_read_again(tmp_path: Path) -> None:
    at_sea(tmp_path / "log")
    settings = settings_of(tmp_path)
    run(settings)
    before = content(settings)
    DeltaTable(str(settings.tables / "frames")).delete("offset > 300")
    done = rebuild(settings, "frames", '{"boat-1": 150, "boat-2": 250}')
    assert done.kept_rows == {"boat-1": 150, "boat-2": 250}
    run(settings)
    assert content(settings) == before


@pytest.mark.parametrize(
    ("name", "origin", "words"),
    [
        ("frames", "yesterday", "no position of the log"),
        ("frames", '{"boat-9": 1}', "has no channel 'boat-9'"),
        ("signals", "tracks", "built from frames"),
        ("trips", "frames", "built from signals and tracks"),
        ("lost_ranges", "frames", "from the log alone"),
        ("trajectories", None, "choose one of frames"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_changed(
    tmp_path: Path, name: str, origin: str | None, words: str
) -> None:
    at_sea(tmp_path / "log", seconds=2)
    settings = settings_of(tmp_path)
    run(settings)
    version = table_of(settings, FRAMES_LAYOUT).version()
    with pytest.raises(RebuildRefused, match=words):
        rebuild(settings, name, origin)
    assert table_of(settings, FRAMES_LAYOUT).version() == version


def test_rows_that_the_log_no_longer_has_are_not_removed_unless_they_may_stay(tmp_path: Path) -> None:
    at_sea(tmp_path / "log")
    settings = settings_of(tmp_path)
    run(settings)
    before = content(settings)
    for place in (tmp_path / "log" / ".tidelog" / "channels").glob("boat-2~*"):
        place.rename(tmp_path / "gone")
    at_sea_alone = small_store(tmp_path / "log3")
    columns = Voyage(seed=0, start_us=START_US).frames(START_US, START_US + 20_000_000)
    put(at_sea_alone, "boat-1", [encode_frames(columns, base_seq=1, producer=LINEAGE)])
    at_sea_alone.close(NOW_US)
    (tmp_path / "log").rename(tmp_path / "log-before")
    (tmp_path / "log3").rename(tmp_path / "log")
    with pytest.raises(RebuildRefused, match=r"'boat-2', which the log does not have.*-from earliest"):
        rebuild(settings, "frames")
    done = rebuild(settings, "frames", "earliest")
    assert set(done.kept_rows) == {"boat-2"}
    run(settings)
    assert content(settings)["frames"] == before["frames"]


def test_a_table_that_cannot_be_used_is_set_aside_and_made_again(tmp_path: Path) -> None:
    at_sea(tmp_path / "log")
    settings = settings_of(tmp_path)
    run(settings)
    before = content(settings)
    table = table_of(settings, FRAMES_LAYOUT)
    version = table.version() + 1
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    (table.folder / "_delta_log" / f"{version:020d}.json").write_text(json.dumps({"protocol": protocol}))
    done = rebuild(settings, "frames")
    assert Path(done.set_aside["frames"]).is_dir()
    run(settings)
    assert content(settings) == before


def test_lost_ranges_are_read_from_the_log_again(tmp_path: Path) -> None:
    at_sea(tmp_path / "log")
    settings = settings_of(tmp_path)
    run(settings)
    before = content(settings)
    assert before["lost_ranges"]
    DeltaTable(str(settings.tables / "lost_ranges")).delete()
    with pytest.raises(ForeignChange, match="rebuild lost_ranges"):
        rebuild(settings, "fleet_health")
    rebuild(settings, "lost_ranges")
    assert content(settings) == before


def test_a_rebuild_that_died_before_its_transaction_has_changed_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_sea(tmp_path / "log")
    settings = settings_of(tmp_path)
    run(settings)
    before = content(settings)

    def refuse(*arguments: object, **options: object) -> None:
        raise DiskFull(operation="commit to", path="frames", reason="no space")

    with monkeypatch.context() as broken:
        broken.setattr("tidelog.pipeline.tables.delta.DeltaFolder.commit_reset", refuse)
        with pytest.raises(DiskFull):
            rebuild(settings, "frames")
    run(settings)
    assert content(settings) == before
    rebuild(settings, "frames")
    rebuild(settings, "frames")
    run(settings)
    assert content(settings) == before
