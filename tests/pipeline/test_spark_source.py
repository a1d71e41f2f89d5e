"""`format("tidelog")` in a real Spark session: batches and streams from folders of logs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

from tests.pipeline.folders import (
    BLOCK_ROWS,
    NOW_US,
    fleet,
    frame_blocks,
    message_block,
    put,
    segments,
    small_store,
    spoil,
)
from tests.pipeline.streams import run_to_end

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow  # many jobs of Spark; `test_pipeline_commands` runs all stages in the fast lane

ROWS = 20 * BLOCK_ROWS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fleet(tmp_path / "node")
    return tmp_path / "node"


def read(spark: SparkSession, folder: Path, **options: Any) -> DataFrame:
    return spark.read.format("tidelog").options(path=str(folder), **options).load()


def test_rows_of_all_channels_are_read_once_in_any_split(spark: SparkSession, folder: Path) -> None:
    for split in (700, 500_000):
        frames = read(spark, folder, split_records=split)
        counted = frames.groupBy("channel").agg({"seq": "max", "*": "count", "offset": "sum"}).orderBy("channel")
        found = [tuple(row) for row in counted.collect()]
        total = ROWS * (ROWS + 1) // 2
        assert sorted(found[0][1:], key=str) == sorted((ROWS, ROWS, total), key=str)
        assert [row[0] for row in found] == ["boat-1", "boat-2"]
    assert frames.rdd.getNumPartitions() == 1, "small pieces share a task"


def test_narrow_schemas_and_messages_and_sql_work(spark: SparkSession, folder: Path) -> None:
    narrow = spark.read.format("tidelog").schema("offset bigint, pgn int").option("path", str(folder)).load()
    assert narrow.columns == ["offset", "pgn"]
    assert narrow.count() == 2 * ROWS
    notes = read(spark, folder, records="messages", channels="notes").orderBy("offset").collect()
    assert [bytes(row.value) if row.value is not None else None for row in notes[:3]] == [None, b"value 1", b"value 2"]
    assert notes[5].headers[0].name == "n"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW boats USING tidelog OPTIONS (path '{folder}', channels 'boat-*')")
    assert spark.sql("SELECT count(*) FROM boats WHERE channel = 'boat-2'").collect()[0][0] == ROWS


def test_tables_in_sql_see_the_present_and_views_say_as_of_when(spark: SparkSession, folder: Path) -> None:
    options = f"OPTIONS (path '{folder}', channels 'boat-*')"
    spark.sql(f"CREATE TABLE boats_now USING tidelog {options} TBLPROPERTIES (team 'sea')")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW boats_then USING tidelog {options}")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW boats_too AS SELECT * FROM boats_now")
    try:
        for late in (0, 1, 2):
            if late:
                store = small_store(folder)
                put(store, f"boat-{late}", frame_blocks(1, first_seq=ROWS + 1))
                store.close(NOW_US)
            counts = {
                name: spark.sql(f"SELECT count(*) FROM {name}").collect()[0][0]
                for name in ("boats_now", "boats_too", "boats_then")
            }
            now = 2 * ROWS + late * BLOCK_ROWS
            assert counts == {"boats_now": now, "boats_too": now, "boats_then": 2 * ROWS}
        said = {row.col_name: row.comment for row in spark.sql("DESCRIBE boats_then").collect()}
        assert said["channel"].startswith("as of 20")
        chosen = spark.sql(
            "SELECT count(*) FROM boats_now WITH ('channels' = 'boat-1') WHERE offset BETWEEN 1 AND 10"
        ).collect()
        assert chosen[0][0] == 10
        assert "did you mean 'channels'" in refusal(
            lambda: spark.sql(f"CREATE TABLE slip USING tidelog OPTIONS (path '{folder}', chanels 'x')")
        )
    finally:
        before = sorted(folder.rglob("*"))
        spark.sql("DROP TABLE boats_now")
    assert sorted(folder.rglob("*")) == before, "the log stays when the table goes"


def test_what_cannot_be_null_is_declared_so_unless_asked_for_otherwise(spark: SparkSession, folder: Path) -> None:
    whole = read(spark, folder)
    assert [field.name for field in whole.schema.fields if field.nullable] == ["lineage", "seq", "path"]
    narrow = spark.read.format("tidelog").option("path", str(folder))
    assert (
        narrow.schema("pgn int, offset bigint NOT NULL, seq bigint").load().filter("pgn IS NOT NULL").count()
        == 2 * ROWS
    )
    notes = read(spark, folder, records="messages", channels="notes")
    assert [field.name for field in notes.schema.fields if field.nullable] == ["seq", "key", "value", "headers"]
    assert notes.filter("value IS NULL").count() > 0
    assert "column 'seq' may be null" in refusal(lambda: narrow.schema("seq bigint NOT NULL").load().count())


def test_filters_that_the_source_hears_of_choose_the_same_rows(spark: SparkSession, folder: Path) -> None:
    whole = read(spark, folder).cache()
    pgn = whole.filter("channel = 'boat-1' AND seq = 77").collect()[0].pgn
    filters = [
        "seq BETWEEN 990 AND 1010",
        f"pgn IN ({pgn}, 1) AND offset < 5000",
        "channel IN ('boat-2', 'nobody') AND offset >= 9000",
        "time > timestamp'2023-11-14 22:13:21' AND seq IN (400, 4000, 9000)",
        "seq < 0",
    ]
    for condition in filters:
        pushed = read(spark, folder, push_filters="true").filter(condition).select("channel", "offset").collect()
        expected = whole.filter(condition).select("channel", "offset").collect()
        assert sorted(map(tuple, pushed)) == sorted(map(tuple, expected)), condition
    chosen = read(spark, folder, pgns=f"{pgn},1")
    assert chosen.count() == whole.filter(f"pgn = {pgn}").count() > 0
    whole.unpersist()


def test_a_frame_that_is_filtered_in_one_query_is_whole_in_the_next(spark: SparkSession, folder: Path) -> None:
    """Spark keeps the plan of a filtered query; see `push_filters`."""
    frames = read(spark, folder)
    assert frames.filter("seq = 77").count() == 2
    assert frames.count() == 2 * ROWS
    both = frames.filter("seq = 77").union(frames.filter("seq = 7777"))
    assert sorted(row.seq for row in both.collect()) == [77, 77, 7_777, 7_777]


def test_starts_and_ends_are_offsets_times_or_the_edges(spark: SparkSession, folder: Path) -> None:
    def offsets(**options: str) -> tuple[int | None, int]:
        rows = read(spark, folder, records="messages", channels="notes", **options).agg({"offset": "min", "*": "count"})
        row = rows.collect()[0].asDict()
        return row["min(offset)"], row["count(1)"]

    assert offsets(starting='{"notes": 30}', ending='{"notes": 90}') == (30, 60)
    assert offsets(starting='{"time": "2026-09-21T14:13:20.000100Z"}') == (100, 20)
    assert offsets(starting="latest") == (None, 0)


def test_descriptors_name_channel_epoch_and_range(spark: SparkSession, folder: Path) -> None:
    rows = read(spark, folder, descriptors="true", channels="boat-1", split_records=4_000).orderBy("start").collect()
    assert [(row.start, row.end) for row in rows] == [(0, 4_000), (4_000, 8_000), (8_000, ROWS + 1)]
    assert {(row.channel, row.channel_id, row.leader_epoch) for row in rows} == {("boat-1", 1, 1)}


def refusal(action: Callable[[], Any]) -> str:
    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


def test_wrong_options_are_one_clear_error(spark: SparkSession, folder: Path) -> None:
    with pytest.raises(AnalysisException, match="did you mean 'channels'"):
        read(spark, folder, chanels="x")
    assert "split_records is '0'" in refusal(lambda: read(spark, folder, split_records=0, records="both"))
    assert "either `cluster`" in refusal(lambda: spark.read.format("tidelog").load())
    assert "there is no column 'can_id'" in refusal(
        lambda: spark.read.format("tidelog").schema("can_id bigint").option("path", str(folder)).load().count()
    )
    assert "no channel" in refusal(lambda: read(spark, folder, channels="boat-9").count())


def test_damage_and_trimmed_starts_fail_in_words_or_are_skipped(spark: SparkSession, folder: Path) -> None:
    paths = segments(folder, "boat-1")
    spoil(paths[1], paths[1].stat().st_size // 2)
    boat = {"channels": "boat-1"}
    assert "on_damaged=skip" in refusal(lambda: read(spark, folder, **boat).count())
    assert read(spark, folder, on_damaged="skip", **boat).count() == ROWS - BLOCK_ROWS
    segments(folder, "boat-2")[0].unlink()
    start = {"channels": "boat-2", "starting": '{"boat-2": 3}'}
    assert "begins at" in refusal(lambda: read(spark, folder, **start).count())
    first = int(segments(folder, "boat-2")[0].stem)
    assert read(spark, folder, on_trimmed="skip", **start).count() == ROWS + 1 - first


# --- streams -----------------------------------------------------------------------------------------


class Stream:
    """A stream into Parquet that is run again and again, each time for what is available."""

    def __init__(self, spark: SparkSession, folder: Path, place: Path, **options: Any) -> None:
        self.spark, self.folder, self.place, self.options = spark, folder, place, options

    def run(self) -> list[dict[str, Any]]:
        """The progress of its batches."""
        frames = self.spark.readStream.format("tidelog").options(path=str(self.folder), **self.options).load()
        return run_to_end(
            frames.writeStream.format("parquet")
            .option("checkpointLocation", str(self.place / "checkpoint"))
            .option("path", str(self.place / "out"))
            .trigger(availableNow=True)
            .start
        )

    def rows(self) -> list[tuple[Any, ...]]:
        found = self.spark.read.parquet(str(self.place / "out")).select("channel", "offset").collect()
        return sorted((row.channel, row.offset) for row in found)


def test_a_stream_reads_each_record_once_over_restarts_limits_and_new_channels(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "node"
    store = small_store(folder)
    put(store, "boat-1", frame_blocks(10))
    stream = Stream(spark, folder, tmp_path, channels="boat-*", max_records_per_trigger=2_000)
    batches = [progress for progress in stream.run() if progress["numInputRows"]]
    assert [progress["numInputRows"] for progress in batches] == [2_000, 2_000, 1_000]
    assert len(stream.rows()) == 5_000
    put(store, "boat-1", frame_blocks(2, first_seq=10 * BLOCK_ROWS + 1))
    put(store, "boat-2", frame_blocks(3))
    put(store, "buoy", [message_block(0, 5)])
    batches = [progress for progress in stream.run() if progress["numInputRows"]]
    assert sum(progress["numInputRows"] for progress in batches) == 5 * BLOCK_ROWS
    latest = json.loads(json.dumps(batches[-1]["sources"][0]["latestOffset"]))
    assert latest["boat-1"]["next"] == 12 * BLOCK_ROWS if isinstance(latest, dict) else "boat-1" in latest
    assert not [progress for progress in stream.run() if progress["numInputRows"]], "nothing new, no rows"
    expected = [("boat-1", n) for n in range(12 * BLOCK_ROWS)] + [("boat-2", n) for n in range(3 * BLOCK_ROWS)]
    assert stream.rows() == expected
    store.close(NOW_US)


def test_a_stream_refuses_another_history(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "node"
    store = small_store(folder)
    put(store, "boat-1", frame_blocks(4))
    stream = Stream(spark, folder, tmp_path)
    stream.run()
    store.delete_channel("boat-1", now_us=NOW_US)
    put(store, "boat-1", frame_blocks(6))
    store.close(NOW_US)
    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        stream.run()
    shutil.rmtree(folder)
    store = small_store(folder)
    put(store, "boat-1", frame_blocks(1))
    store.close(NOW_US)
    with pytest.raises(StreamingQueryException, match="lost records"):
        stream.run()
