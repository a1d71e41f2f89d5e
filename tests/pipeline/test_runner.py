"""The pipeline as a whole: its settings, its supervisor, a run on Spark, and its status."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.folders import put, small_store
from tidelog.blocks.frames import encode_frames
from tidelog.edge.sources.voyage import Voyage
from tidelog.errors import (
    ChannelRecreated,
    InvalidConfig,
    OffsetTrimmed,
    PositionMoved,
    StageFailed,
    StageRefused,
    TableDiffers,
)
from tidelog.pipeline.jobs.supervisor import Failure, Supervisor, failure_of
from tidelog.pipeline.settings import PIPELINE_SETTINGS, PipelineSettings, load_pipeline
from tidelog.pipeline.tables import FORMATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow  # many jobs of Spark; `test_pipeline_commands` runs all stages in the fast lane

START_US = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()) * 1_000_000
LINEAGE = b"\xab" * 16


# --- settings --------------------------------------------------------------------------------------


def test_a_file_gives_every_stage_its_options(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.conf"
    file.write_text(
        """
        pipeline {
          name = fleet
          cluster = ["a.example:9500", "b.example:9500"]
          tls { cert = c.crt, key = c.key, ca = ca.crt }
          channels = ["boats/*"]
          tables = tables
          format = iceberg
          trigger = 500ms
          on-trimmed = skip
          optimize-every = 0
        }
        """
    )
    found = load_pipeline(file=file)
    assert found.frames.address.cluster == ("a.example:9500", "b.example:9500")
    assert found.frames.channels == ("boats/*",)
    assert (found.name, found.table_format, found.trigger_ms) == ("fleet", "iceberg", 500)
    assert found.frames.on_trimmed == "skip"
    assert found.optimize_every_ms is None
    assert found.signals.pipeline == "fleet"
    assert found.frames.checkpoint.endswith("tables/_checkpoints/fleet/frames")


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.conf"
    file.write_text("pipeline { name = 'a b', chanels = [x], format = hudi, trigger = 1ms }")
    with pytest.raises(InvalidConfig) as caught:
        load_pipeline(file=file)
    told = str(caught.value)
    assert "did you mean pipeline.channels?" in told
    assert "one of delta, iceberg" in told
    assert "too low" in told
    assert "either `cluster`" in told
    assert "is no name" in told


def test_every_setting_has_a_key_under_pipeline_and_says_what_it_does() -> None:
    assert all(setting.key.startswith("pipeline.") and setting.help.endswith(".") for setting in PIPELINE_SETTINGS)
    assert len({setting.flag for setting in PIPELINE_SETTINGS}) == len(PIPELINE_SETTINGS)


# --- supervisor ------------------------------------------------------------------------------------


def test_pauses_grow_and_a_success_forgets_them() -> None:
    supervisor = Supervisor(stage="frames", restarts_max=10, wait_max_ms=5_000)
    passing = Failure(code="x", message="m", retriable=True)
    waits = [supervisor.failed(passing, 0) for _ in range(5)]
    assert waits == [1_000, 2_000, 4_000, 5_000, 5_000]
    supervisor.succeeded()
    assert supervisor.failed(passing, 0) == 1_000


def test_what_does_not_pass_by_itself_ends_the_pipeline_at_once() -> None:
    supervisor = Supervisor(stage="frames", restarts_max=10, wait_max_ms=5_000)
    refused = failure_of(ChannelRecreated(channel="boat-1", expected_id=1, found_id=2))
    with pytest.raises(StageRefused, match="deleted and created again") as caught:
        supervisor.failed(refused, 0)
    assert caught.value.cause == "channel_recreated"


def test_a_stage_that_only_fails_is_given_up() -> None:
    supervisor = Supervisor(stage="frames", restarts_max=2, wait_max_ms=5_000)
    passing = Failure(code="x", message="the link is down", retriable=True)
    supervisor.failed(passing, 0)
    supervisor.failed(passing, 0)
    with pytest.raises(StageFailed, match="3 times in a row: the link is down"):
        supervisor.failed(passing, 0)


def test_an_error_is_found_in_the_text_that_spark_passes_on() -> None:
    told = (
        "org.apache.spark.SparkException: Job aborted\nTraceback (most recent call last):\n"
        '  File "x.py", line 3, in read\n'
        "tidelog.errors.client.OffsetTrimmed: channel 'boat-1' begins at 10 now\n\tat org.apache"
    )
    found = failure_of(RuntimeError(told))
    assert (found.code, found.retriable) == (OffsetTrimmed.code, False)
    assert found.message.startswith("channel 'boat-1' begins at 10")


def test_an_error_of_ours_is_preferred_and_strangers_may_pass() -> None:
    ours = PositionMoved(table="frames", channel="boat-1", stored=5, start=0, end=9)
    assert failure_of(RuntimeError("x"), ours).code == "position_moved"
    wrapped = RuntimeError("outer")
    wrapped.__cause__ = ours
    assert failure_of(None, wrapped).retriable
    assert failure_of(OSError("Connection refused\nat java")).message == "Connection refused"
    assert failure_of(OSError("x")).retriable


# --- on Spark --------------------------------------------------------------------------------------


def sail(folder: Path, channel: str, *, start_s: int, seconds: int, first_seq: int) -> int:
    """Append a stretch of a voyage; gives the seq that comes next."""
    start_us = START_US + start_s * 1_000_000
    frames = Voyage(seed=5, start_us=START_US).frames(start_us, start_us + seconds * 1_000_000)
    store = small_store(folder / "logs")
    put(store, channel, [encode_frames(frames, base_seq=first_seq, producer=LINEAGE)])
    store.close(start_us)
    return first_seq + len(frames)


def settings_of(folder: Path, *more: str) -> PipelineSettings:
    arguments = ["-path", str(folder / "logs"), "-tables", str(folder / "tables"), "-trigger", "200ms"]
    return load_pipeline(arguments=[*arguments, "-gold-every", "0", *more])


@pytest.mark.parametrize("table_format", FORMATS)
def test_one_run_brings_all_tables_up_and_the_next_changes_nothing(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    from tidelog.pipeline.jobs.runner import PipelineRunner, keep_fit, pipeline_status

    settings = settings_of(tmp_path, "-format", table_format)
    following = sail(tmp_path, "boat-1", start_s=0, seconds=20, first_seq=1)
    with PipelineRunner(spark, settings) as runner:
        first = runner.run_once(gold=False)
    assert first.frames == following - 1
    assert first.signals > first.frames
    before = pipeline_status(settings)
    assert before["frames"]["lag_records"] == 0
    assert before["frames"]["rows"] == first.frames
    assert before["signals"]["is_current"]
    with PipelineRunner(spark, settings) as runner:
        assert runner.run_once(gold=False).frames == 0
    after = pipeline_status(settings)
    assert after == before
    sail(tmp_path, "boat-1", start_s=20, seconds=5, first_seq=following)
    assert pipeline_status(settings)["frames"]["lag_records"] > 0
    assert set(keep_fit(settings)) >= {"frames", "signals"}


def test_a_running_pipeline_decodes_what_comes_and_stops_when_told(spark: SparkSession, tmp_path: Path) -> None:
    from tidelog.pipeline.jobs.runner import PipelineRunner

    following = sail(tmp_path, "boat-1", start_s=0, seconds=5, first_seq=1)
    stop = threading.Event()
    late = threading.Timer(240, stop.set)
    late.start()
    with PipelineRunner(spark, settings_of(tmp_path)) as runner:
        added = False

        def look(running: PipelineRunner) -> None:
            nonlocal added
            if running.signals.progress.frames >= following - 1 and not added:
                sail(tmp_path, "boat-1", start_s=5, seconds=5, first_seq=following)
                added = True
            elif added and running.signals.progress.frames > following:
                stop.set()

        runner.run_until(stop, on_look=look)
        late.cancel()
        assert added, "the first frames never came through"
        assert runner.signals.progress.frames > following
        assert runner.failures() == {}


def test_frames_and_signals_go_on_while_gold_takes_long(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidelog.pipeline.jobs import runner as module

    entered, release = threading.Event(), threading.Event()

    def gold(*arguments: object, **breath: object) -> list[object]:
        entered.set()
        release.wait(240)
        return []

    monkeypatch.setattr(module, "run_gold", gold)
    following = sail(tmp_path, "boat-1", start_s=0, seconds=5, first_seq=1)
    stop = threading.Event()
    late = threading.Timer(240, stop.set)
    late.start()
    with module.PipelineRunner(spark, replace(settings_of(tmp_path), gold_every_ms=1_000)) as runner:
        added = False

        def look(running: module.PipelineRunner) -> None:
            nonlocal added
            if entered.is_set() and not added and running.signals.progress.frames >= following - 1:
                sail(tmp_path, "boat-1", start_s=5, seconds=5, first_seq=following)
                added = True
            elif added and running.signals.progress.frames > following:
                # Both came and were decoded while gold was at it all the time; now it may end, and so does the run.
                release.set()
                stop.set()

        runner.run_until(stop, on_look=look)
        late.cancel()
        assert added, "the first frames never came through"
        assert runner.signals.progress.frames > following
        assert runner.failures() == {}


def test_a_refusal_in_gold_ends_a_running_pipeline(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidelog.pipeline.jobs import runner as module

    def gold(*arguments: object, **breath: object) -> list[object]:
        raise TableDiffers(folder="tables/trips", problem="its columns are others")

    monkeypatch.setattr(module, "run_gold", gold)
    sail(tmp_path, "boat-1", start_s=0, seconds=2, first_seq=1)
    stop = threading.Event()
    late = threading.Timer(240, stop.set)
    late.start()
    settings = replace(settings_of(tmp_path), gold_every_ms=1_000)
    with module.PipelineRunner(spark, settings) as runner, pytest.raises(StageRefused, match="columns are others"):
        runner.run_until(stop)
    late.cancel()


def test_a_refusal_ends_a_running_pipeline_with_the_words_of_the_error(spark: SparkSession, tmp_path: Path) -> None:
    from tidelog.pipeline.jobs.runner import PipelineRunner

    sail(tmp_path, "boat-1", start_s=0, seconds=2, first_seq=1)
    settings = settings_of(tmp_path)
    with PipelineRunner(spark, settings) as runner:
        runner.frames.table.create()
        checkpoint = Path(settings.frames.checkpoint)
        checkpoint.mkdir(parents=True)
        (checkpoint / "tidelog.json").write_text('{"pipeline": "main", "table": "another", "cluster": ""}')
        with pytest.raises(StageRefused, match="belongs to something else"):
            runner.run_until(threading.Event())
