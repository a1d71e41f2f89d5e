"""`tidelog pipeline`: from a folder of logs to tables and back to a proof, and what wrong calls are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.cli.commands import Tidelog
from tests.pipeline.conftest import SmallCluster
from tests.pipeline.folders import fleet
from tidelog.cli import pipeline_commands
from tidelog.pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FRAMES = 2 * 4 * 500


@pytest.fixture
def tidelog(capsys: pytest.CaptureFixture[str]) -> Tidelog:
    return Tidelog(capsys)


@pytest.fixture
def with_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands share the session of the tests: a process has one."""

    @contextmanager
    def engine(settings: PipelineSettings) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(pipeline_commands, "_engine", engine)


@pytest.mark.usefixtures("with_spark")
def test_a_folder_of_logs_becomes_tables_that_the_audit_finds_equal(tidelog: Tidelog, tmp_path: Path) -> None:
    fleet(tmp_path / "log", blocks=4)
    where = ("-path", tmp_path / "log", "-tables", tmp_path / "lake", "-channels", "boat-*")
    before = tidelog("pipeline", "status", *where, "-json").json
    assert before["frames"]["rows"] == 0
    done = tidelog("pipeline", "backfill", *where, "-json").json
    assert done["frames"] == FRAMES
    after = tidelog("pipeline", "status", *where, "-json").json
    assert (after["frames"]["rows"], after["frames"]["lag_records"]) == (FRAMES, 0)
    assert tidelog("pipeline", "backfill", *where, "-json").json["frames"] == 0
    found = tidelog("pipeline", "audit", *where, "-json").json
    assert (found["equal"], found["frames"]) == (True, {"log": FRAMES, "frames": FRAMES})
    assert tidelog("pipeline", "audit", *where).out.splitlines()[-1] == "equal"
    assert "boat-1" in tidelog("pipeline", "status", *where).out
    assert "frames" in tidelog("pipeline", "optimize", *where).out
    assert tidelog("pipeline", "vacuum", *where, "-json", "-dry-run").json["frames"] == []
    DeltaTable(str(tmp_path / "lake" / "frames")).delete("seq < 100")
    assert "tidelog pipeline rebuild frames" in tidelog("pipeline", "status", *where, code=None).err
    done = tidelog("pipeline", "rebuild", "frames", *where, "-json").json
    assert (done["tables"], done["run"]["frames"]) == (["frames"], FRAMES)
    assert tidelog("pipeline", "audit", *where, "-json").json["equal"]
    page = tmp_path / "fleet.html"
    assert str(page) in tidelog("pipeline", "report", *where, "-out", page).out
    assert page.read_text().lstrip().lower().startswith("<!doctype html")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("status", "-paht", "x"), "did you mean -path"),
        (("status",), "give either `cluster`"),
        (("run", "-path", "x", "-format", "csv"), "delta"),
        (("status", "-path", "nowhere"), "no such file or folder"),
        (("audit", "-path", ".", "-journals", "boat-1"), "NAME=FOLDER"),
        (("audit", "-path", ".", "-replicas", "n1=nowhere"), "is not a folder"),
        (("backfill", "-path", ".", "-driver-memory", "lots"), "lots"),
        (("forget", "-path", ".", "-yes"), "keeps no cursors"),
        (("rebuild", "-path", "."), "name a table"),
    ],
)
def test_wrong_calls_are_told_in_words_with_exit_code_2(
    tidelog: Tidelog, arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in tidelog("pipeline", *arguments, code=2).err


@pytest.mark.slow  # a cluster of three
def test_a_retired_pipeline_lets_go_of_the_log_and_of_nothing_else(tidelog: Tidelog, cluster: SmallCluster) -> None:
    for name in ("retired-1", "retired-2", "kept"):
        cluster.channel(name)
    for name in ("retired-1", "retired-2"):
        cluster.client.set_cursor(name, "pipeline.old", 1)
        cluster.client.set_cursor(name, "pipeline.main", 0)
    where = ["-cluster", ",".join(cluster.address.cluster), "-tls-cert", cluster.address.certificate]
    where += ["-tls-key", cluster.address.key, "-tls-ca", cluster.address.authority, "-channels", "retired-*,kept"]
    shown = tidelog("pipeline", "forget", *where, "-name", "old", "-json").json
    assert shown == {"cursor": "pipeline.old", "channels": {"retired-1": 1, "retired-2": 1}, "deleted": False}
    assert "give -yes" in tidelog("pipeline", "forget", *where, "-name", "old").out
    assert cluster.client.cursors("retired-1") == {"pipeline.old": 1, "pipeline.main": 0}
    assert tidelog("pipeline", "forget", *where, "-name", "old", "-yes", "-json").json["deleted"]
    for name in ("retired-1", "retired-2"):
        assert cluster.client.cursors(name) == {"pipeline.main": 0}
    again = tidelog("pipeline", "forget", *where, "-name", "old", "-yes", "-json").json
    assert again["channels"] == {}, "said again it does nothing"


def test_every_command_has_help(tidelog: Tidelog) -> None:
    for command in ("run", "backfill", "status", "audit", "report", "optimize", "vacuum", "forget", "rebuild"):
        shown = tidelog("pipeline", command, "-help").out
        assert f"tidelog pipeline {command}" in shown
        assert "-tables" in shown
