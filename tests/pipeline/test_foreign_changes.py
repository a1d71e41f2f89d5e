"""Changes of other writers on our tables: followed where the rows stay, refused in words where they do not (T7, T8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from pyiceberg.types import StringType

from tests.pipeline.table_kit import frames_table, in_other_hands, offsets_of, part, voyage_frames
from tests.pipeline.test_signals_job import append, job_of, sorted_rows
from tidelog.errors import ForeignChange, LogError, TableDiffers, TableUnsupported, UpstreamReplaced
from tidelog.pipeline.tables.iceberg import IcebergFolder
from tidelog.pipeline.tables.maintenance import gather, optimize, vacuum
from tidelog.pipeline.tables.reading import file_rows
from tidelog.pipeline.tables.table import Table

PIPELINE = "main"
START = datetime(2026, 11, 15, 12, tzinfo=UTC)


def reopened(table: Table) -> Table:
    return type(table)(table.folder, table.layout)


def filled(folder: Path, table_format: str = "delta") -> Table:
    table = frames_table(folder, table_format)
    for start in (0, 100):
        table.commit_append(PIPELINE, [part(table, start, start + 100)])
    return table


def delta(table: Table) -> DeltaTable:
    return DeltaTable(str(table.folder))


def rows_of(table: Table) -> pa.Table:
    return pa.concat_tables(file_rows(table, file) for file in table.files()).sort_by("offset")


def refused_everywhere(table: Table, match: str) -> None:
    """Both an object that was open before and a new one refuse, reading as well as writing."""
    for one in (table, reopened(table)):
        before = delta(table).version()
        ways: list[Callable[[Table], object]] = [
            lambda opened: opened.files(),
            lambda opened: opened.added_since(0),
            lambda opened: opened.commit_append(PIPELINE, [part(opened, 200, 300)]),
            lambda opened: optimize(opened),
            lambda opened: gather(opened, files_min=1),
            lambda opened: vacuum(opened, keep_hours=0),
            lambda opened: opened.positions(PIPELINE, [1]),
        ]
        for way in ways:
            with pytest.raises(LogError, match=match) as caught:
                way(one)
            assert "tidelog pipeline rebuild" in str(caught.value)
            assert not caught.value.retriable
        assert delta(table).version() == before, "nothing was written"


def delete(table: Table) -> None:
    delta(table).delete("offset < 10")


def update(table: Table) -> None:
    delta(table).update(updates={"source": "9"}, predicate="offset = 3")


def merge(table: Table) -> None:
    rows = rows_of(table).slice(0, 5)
    merger = delta(table).merge(rows, "target.offset = source.offset", source_alias="source", target_alias="target")
    merger.when_matched_delete().execute()


def insert(table: Table) -> None:
    write_deltalake(str(table.folder), rows_of(table).slice(0, 5), mode="append")


def overwrite(table: Table) -> None:
    write_deltalake(str(table.folder), rows_of(table).slice(0, 5), mode="overwrite")


def restore(table: Table) -> None:
    delta(table).restore(1)


CHANGES = (delete, update, merge, insert, overwrite, restore)


@pytest.mark.parametrize("change", CHANGES)
def test_rows_that_another_writer_changed_are_neither_news_nor_undone(
    tmp_path: Path, change: Callable[[Table], None]
) -> None:
    table = filled(tmp_path)
    change(table)
    refused_everywhere(table, "changed by another writer")


def test_a_change_between_two_commits_of_a_running_driver_is_noticed(tmp_path: Path) -> None:
    table = filled(tmp_path)
    prepared = part(table, 200, 300)
    delete(table)
    with pytest.raises(ForeignChange, match="DELETE in version 3"):
        table.commit_append(PIPELINE, [prepared])


def test_a_change_before_a_commit_of_ours_that_accepted_it_counts_no_more(tmp_path: Path) -> None:
    table = filled(tmp_path)
    delete(table)
    table.accept()
    for one in (table, reopened(table)):
        assert offsets_of(one) == list(range(10, 200))
    table.commit_append(PIPELINE, [part(table, 200, 210)])
    assert offsets_of(reopened(table)) == list(range(10, 210))
    assert table.news_since(2).removed_at == 3, "followers see that rows were taken away"


def compact(table: Table) -> None:
    delta(table).optimize.compact()


def z_order(table: Table) -> None:
    delta(table).optimize.z_order(["pgn"])


@pytest.mark.parametrize("rearrange", [compact, z_order])
def test_a_rearrangement_by_another_writer_is_no_news_and_stays_readable(
    tmp_path: Path, rearrange: Callable[[Table], None]
) -> None:
    table = filled(tmp_path)
    before = rows_of(table)
    version = table.version()
    rearrange(table)
    for one in (table, reopened(table)):
        assert rows_of(one).equals(before), "partition columns that the files lack are filled from the log"
        news = one.news_since(version)
        assert (news.added, news.removed_at) == ([], None)
    table.commit_append(PIPELINE, [part(table, 200, 300)])
    optimize(table)
    assert offsets_of(reopened(table)) == list(range(300))
    assert rows_of(reopened(table)).slice(0, 200).equals(before)


def test_a_commit_that_only_says_it_keeps_the_rows_is_refused(tmp_path: Path) -> None:
    table = filled(tmp_path)
    compact(table)
    path = table.folder / "_delta_log" / f"{3:020d}.json"
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [one for one in kept if "remove" not in one or one is not next(two for two in kept if "remove" in two)]
    path.write_text("\n".join(json.dumps(one) for one in kept))
    with pytest.raises(ForeignChange, match="did not keep the number of rows"):
        reopened(table).files()


def with_action(table: Table, *actions: dict[str, object]) -> None:
    version = table.version() + 1
    path = table.folder / "_delta_log" / f"{version:020d}.json"
    told: dict[str, object] = {"commitInfo": {"operation": "ALTER TABLE", "timestamp": 1}}
    path.write_text("\n".join(json.dumps(one) for one in (told, *actions)))


@pytest.mark.parametrize("feature", ["deletionVectors", "rowTracking", "domainMetadata", "somethingNew"])
def test_a_feature_outside_the_list_is_refused_before_anything_is_read(tmp_path: Path, feature: str) -> None:
    table = filled(tmp_path)
    of_readers = [feature] if feature == "deletionVectors" else []
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": of_readers,
        "writerFeatures": [feature, "appendOnly", "invariants"],
    }
    with_action(table, {"protocol": protocol})
    for one in (table, reopened(table)):
        with pytest.raises(TableUnsupported, match=f"{feature}.*rebuild frames"):
            one.files()


def test_features_that_ask_nothing_of_us_are_no_reason_to_refuse(tmp_path: Path) -> None:
    table = filled(tmp_path)
    delta(table).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    table.commit_append(PIPELINE, [part(table, 200, 300)])
    assert offsets_of(reopened(table)) == list(range(300))


@pytest.mark.parametrize(
    ("properties", "match"),
    [({"delta.appendOnly": "true"}, "appendOnly"), ({"delta.columnMapping.mode": "name"}, "mapped")],
)
def test_properties_that_ask_more_of_a_writer_are_refused(
    tmp_path: Path, properties: dict[str, str], match: str
) -> None:
    table = filled(tmp_path)
    lines = (table.folder / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    (defined,) = [one["metaData"] for one in map(json.loads, lines) if "metaData" in one]
    with_action(table, {"metaData": {**defined, "configuration": properties}})
    with pytest.raises(TableUnsupported, match=match):
        reopened(table).files()


def test_a_constraint_of_another_writer_is_refused(tmp_path: Path) -> None:
    table = filled(tmp_path)
    delta(table).alter.add_constraint({"small": "source < 300"})
    with pytest.raises(TableUnsupported, match="constraint small"):
        table.files()


# --- columns -----------------------------------------------------------------------------------------


def test_columns_that_users_add_are_left_alone_and_written_as_null(tmp_path: Path) -> None:
    table = filled(tmp_path)
    delta(table).alter.add_columns([Field("note", PrimitiveType("string"))])
    for start, one in ((200, table), (300, reopened(table))):
        one.create()
        one.commit_append(PIPELINE, [part(one, start, start + 100)])
    assert optimize(table).files_after == 1
    found = pa.table(delta(table).to_pyarrow_table())
    assert found["note"].null_count == found.num_rows == 400


def test_a_column_of_ours_that_somebody_dropped_is_refused(tmp_path: Path) -> None:
    table = filled(tmp_path)
    lines = (table.folder / "_delta_log" / f"{0:020d}.json").read_text().splitlines()
    (defined,) = [one["metaData"] for one in map(json.loads, lines) if "metaData" in one]
    schema = json.loads(defined["schemaString"])
    schema["fields"] = [one for one in schema["fields"] if one["name"] != "pgn"]
    with_action(table, {"metaData": {**defined, "schemaString": json.dumps(schema)}})
    with pytest.raises(TableDiffers, match="pgn is missing"):
        reopened(table).files()


# --- Iceberg -----------------------------------------------------------------------------------------


def test_iceberg_snapshots_of_another_writer_are_refused(tmp_path: Path) -> None:
    table = filled(tmp_path, "iceberg")
    in_other_hands(table).delete("offset < 10")
    for one in (table, reopened(table)):
        with pytest.raises(ForeignChange, match=r"overwrite in version 3.*rebuild frames"):
            one.commit_append(PIPELINE, [part(one, 200, 300)])
    table.accept()
    assert offsets_of(reopened(table)) == list(range(10, 200))
    assert table.news_since(2).removed_at == 3


def test_iceberg_put_back_to_an_older_snapshot_is_refused(tmp_path: Path) -> None:
    table = filled(tmp_path, "iceberg")
    opened = in_other_hands(table)
    opened.manage_snapshots().rollback_to_snapshot(opened.snapshots()[0].snapshot_id).commit()
    with pytest.raises(ForeignChange, match="older state was put back"):
        reopened(table).files()


def test_iceberg_branches_of_others_are_no_news(tmp_path: Path) -> None:
    table = filled(tmp_path, "iceberg")
    opened = in_other_hands(table)
    current = opened.current_snapshot()
    assert current is not None
    opened.manage_snapshots().create_branch(current.snapshot_id, "trial").commit()
    opened.append(rows_of(table).slice(0, 5), branch="trial")
    assert table.added_since(2) == []
    table.commit_append(PIPELINE, [part(table, 200, 300)])
    assert offsets_of(reopened(table)) == list(range(300))
    assert sum(one.file.rows for one in table.added_since(2)) == 100


def test_iceberg_columns_that_users_add_are_left_alone(tmp_path: Path) -> None:
    table = filled(tmp_path, "iceberg")
    with in_other_hands(table).update_schema() as change:
        change.add_column("note", StringType())
    table.create()
    table.commit_append(PIPELINE, [part(table, 200, 300)])
    optimize(table)
    assert in_other_hands(table).scan().to_arrow()["note"].null_count == 300


# --- followers ---------------------------------------------------------------------------------------


def decoded(folder: Path, table_format: str = "delta") -> Table:
    """`frames` of 20 seconds at sea in two commits, and `signals` of them."""
    frames = frames_table(folder, table_format)
    whole = voyage_frames(START, seconds=20)
    append(frames, whole.slice(0, 200))
    append(frames, whole.slice(200))
    job_of(folder, table_format).run()
    return frames


def test_frames_rearranged_by_another_writer_are_not_decoded_again(tmp_path: Path) -> None:
    frames = decoded(tmp_path)
    before = sorted_rows(job_of(tmp_path).signals)
    compact(frames)
    compact(job_of(tmp_path).signals)
    job_of(tmp_path).run()
    assert sorted_rows(job_of(tmp_path).signals).equals(before)


@pytest.mark.parametrize("change", [delete, restore])
def test_changed_frames_stop_decoding_with_a_way_out(tmp_path: Path, change: Callable[[Table], None]) -> None:
    frames = decoded(tmp_path)
    before = sorted_rows(job_of(tmp_path).signals)
    change(frames)
    with pytest.raises(ForeignChange, match=r"rebuild frames.*rebuild signals -from frames"):
        job_of(tmp_path).run()
    assert sorted_rows(job_of(tmp_path).signals).equals(before)


def test_changed_signals_stop_decoding_with_a_way_out(tmp_path: Path) -> None:
    decoded(tmp_path)
    delta(job_of(tmp_path).signals).delete("seq < 10")
    append(frames_table(tmp_path), voyage_frames(START, seconds=1, first_seq=5_000))
    with pytest.raises(ForeignChange, match="rebuild signals"):
        job_of(tmp_path).run()


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_accepted_deletes_take_the_rows_above_with_them(tmp_path: Path, table_format: str) -> None:
    frames = decoded(tmp_path / "one", table_format)
    if isinstance(frames, IcebergFolder):
        in_other_hands(frames).delete("offset < 100")
    else:
        delta(frames).delete("offset < 100")
    frames.accept()
    append(frames, voyage_frames(START, seconds=2, first_seq=5_000))
    job_of(tmp_path / "one", table_format).run()
    anew = frames_table(tmp_path / "two")
    append(anew, voyage_frames(START, seconds=20).slice(100))
    append(anew, voyage_frames(START, seconds=2, first_seq=5_000))
    job_of(tmp_path / "two").run()
    rows = sorted_rows(job_of(tmp_path / "one", table_format).signals)
    assert rows.num_rows > 0
    expected = sorted_rows(job_of(tmp_path / "two").signals)
    assert rows.select(["seq", "signal", "value"]).equals(expected.select(["seq", "signal", "value"]))
    assert job_of(tmp_path / "one", table_format).run().steps == 0


def test_frames_made_again_in_the_same_folder_are_not_taken_for_the_old_ones(tmp_path: Path) -> None:
    frames = decoded(tmp_path)
    frames.folder.rename(tmp_path / "old")
    anew = frames_table(tmp_path)
    for first in (1, 1_000, 2_000, 3_000):
        append(anew, voyage_frames(START, seconds=2, first_seq=first))
    with pytest.raises(UpstreamReplaced, match="rebuild signals"):
        job_of(tmp_path).run()
    job_of(tmp_path).reset()
    job_of(tmp_path).run()
    assert max(sorted_rows(job_of(tmp_path).signals)["seq"].to_pylist()) > 3_000


def test_a_reset_that_died_between_the_tables_is_finished_by_the_next_run(tmp_path: Path) -> None:
    decoded(tmp_path)
    job = job_of(tmp_path)
    before = sorted_rows(job.signals)
    devices = sum(file.rows for file in job.devices.files())
    job.signals.commit_reset(PIPELINE, upstreams=["frames"])
    job_of(tmp_path).run()
    assert sorted_rows(job.signals).equals(before)
    assert sum(file.rows for file in job.devices.files()) == devices
    assert job.devices.generation(PIPELINE) == job.signals.generation(PIPELINE) == 1
