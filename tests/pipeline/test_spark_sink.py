"""`writeStream` and `write` into a real cluster, and reading it back: every row once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.pipeline.conftest import SmallCluster
from tests.pipeline.folders import NOW_US, message_block, put, small_store
from tests.pipeline.streams import run_to_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow  # many jobs of Spark; `test_pipeline_commands` runs all stages in the fast lane


def published(spark: SparkSession, cluster: SmallCluster, channel: str) -> list[bytes | None]:
    rows = spark.read.format("tidelog").options(**cluster.options, channels=channel, records="messages").load()
    return [None if row.value is None else bytes(row.value) for row in rows.orderBy("offset").collect()]


def test_a_stream_goes_into_a_channel_once_over_restarts(
    spark: SparkSession, cluster: SmallCluster, tmp_path: Path
) -> None:
    name = cluster.channel("spark-1")
    store = small_store(tmp_path / "node")

    def run() -> None:
        notes = spark.readStream.format("tidelog").options(
            path=str(tmp_path / "node"), channels="notes", records="messages", max_records_per_trigger="40"
        )
        run_to_end(
            notes.load()
            .select("value", "key", "time", "headers")
            .writeStream.format("tidelog")
            .options(**cluster.options, channel=name)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start
        )

    put(store, "notes", [message_block(0, 100)])
    run()
    put(store, "notes", [message_block(100, 30)])
    run()
    # The commit of the last batch is lost, as after a crash right behind it: Spark runs the batch again.
    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    run()
    expected = [None if number % 7 == 0 else b"value %d" % number for number in range(130)]
    assert published(spark, cluster, name) == expected


def test_a_second_query_with_a_checkpoint_that_the_sink_does_not_know_loses_nothing(
    spark: SparkSession, cluster: SmallCluster, tmp_path: Path
) -> None:
    """Where the session names the place of checkpoints, the sink is not told; both queries number batches from 0."""
    name = cluster.channel("spark-4")
    store = small_store(tmp_path / "node")
    put(store, "notes", [message_block(0, 100)])
    store.close(NOW_US)
    try:
        for number in (1, 2):
            spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / f"checkpoints-{number}"))
            notes = spark.readStream.format("tidelog").options(
                path=str(tmp_path / "node"), channels="notes", records="messages", max_records_per_trigger="40"
            )
            run_to_end(
                notes.load()
                .select("value")
                .writeStream.format("tidelog")
                .options(**cluster.options, channel=name, staging=str(tmp_path / "staging"))
                .trigger(availableNow=True)
                .start
            )
            assert len(published(spark, cluster, name)) == 100 * number
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_a_batch_that_is_named_is_published_once(spark: SparkSession, cluster: SmallCluster, tmp_path: Path) -> None:
    name = cluster.channel("spark-2")
    rows = spark.range(100).selectExpr("cast(id AS string) AS value")
    named = {**cluster.options, "channel": name, "transaction": "import-7", "staging": str(tmp_path / "staging")}
    for _ in range(2):
        rows.write.format("tidelog").options(**named).mode("append").save()
    assert sorted(published(spark, cluster, name), key=str) == sorted(
        (b"%d" % number for number in range(100)), key=str
    )
    rows.write.format("tidelog").options(**cluster.options, channel=name).mode("append").save()
    assert len(published(spark, cluster, name)) == 200


def test_a_save_without_a_name_leaves_no_producer_open(spark: SparkSession, cluster: SmallCluster) -> None:
    name = cluster.channel("spark-closes")
    rows = spark.range(10).selectExpr("cast(id AS string) AS value")
    for _ in range(3):
        rows.write.format("tidelog").options(**cluster.options, channel=name).mode("append").save()
    assert len(published(spark, cluster, name)) == 30
    assert cluster.client.producers(name) == []


def test_what_cannot_be_published_is_said_before_anything_is(
    spark: SparkSession, cluster: SmallCluster, tmp_path: Path
) -> None:
    rows = spark.range(3).selectExpr("cast(id AS string) AS value")

    def refusal(frame: Any, mode: str = "append", **options: str) -> str:
        with pytest.raises(PySparkException) as caught:
            frame.write.format("tidelog").options(**{**cluster.options, "channel": "spark-3", **options}).mode(
                mode
            ).save()
        return str(caught.value)

    assert "did you mean 'channel'" in refusal(rows, chanel="x")
    assert "cannot be overwritten" in refusal(rows, mode="overwrite")
    assert "column 'id' is none of a record's" in refusal(spark.range(3))
    assert "cast it to string or binary" in refusal(spark.range(3).withColumnRenamed("id", "value"))
    assert "no channel 'spark-3'" in refusal(rows)
