"""Every folder and file of the pipeline is a path that is mounted here, and absolute before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Tidelog
from tests.pipeline.table_kit import frames_table, offsets_of, part
from tidelog.errors import InvalidConfig
from tidelog.pipeline.jobs.frames_job import FramesJob, FramesOptions
from tidelog.pipeline.local_paths import local_path
from tidelog.pipeline.report.page import write_report
from tidelog.pipeline.settings import load_pipeline
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.source_options import SourceOptions
from tidelog.pipeline.tables import FORMATS, open_table
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT

ELSEWHERE = ("s3://bucket/lake", "S3A://bucket/lake", "hdfs://name:8020/lake", "abfss://a@b/lake", "dbfs:/lake")


@pytest.mark.parametrize("given", [*ELSEWHERE, "s3:/bucket/lake"])
def test_an_address_of_an_object_store_is_refused_in_words(given: str) -> None:
    with pytest.raises(InvalidConfig, match="object stores do not work yet") as refused:
        local_path(given, name="-tables")
    assert f"-tables is {given!r}" in str(refused.value)


def test_a_file_uri_is_its_path_and_another_hosts_file_is_refused() -> None:
    assert local_path("file:///data/my%20lake", name="tables") == "/data/my lake"
    assert local_path("file:/data/lake", name="tables") == "/data/lake"
    assert local_path("file://localhost/data", name="tables") == "/data"
    with pytest.raises(InvalidConfig, match="a file of host 'nas'"):
        local_path("file://nas/data", name="tables")


def test_a_relative_path_becomes_absolute_and_colons_are_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_path("lake", name="tables") == str(tmp_path / "lake")
    assert local_path("lake:1/boats", name="tables") == str(tmp_path / "lake:1" / "boats")
    assert local_path("/data/s3:/x", name="tables") == "/data/s3:/x"
    assert local_path("", name="tables") == ""


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("name", ["my lake", "m\u00e4rchen", "s3:", "a+b=c&d"])
def test_tables_are_in_the_folder_of_this_very_name(name: str, table_format: str, tmp_path: Path) -> None:
    table = frames_table(tmp_path / name, table_format)
    table.commit_append("main", [part(table, 0, 10)])
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert offsets_of(frames_table(tmp_path / name, table_format)) == list(range(10))


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_name_that_readers_would_unescape_is_refused(table_format: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="take % for an escape; rename the folder"):
        open_table(tmp_path / "a%20b", FRAMES_LAYOUT, table_format=table_format)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["tables", "checkpoints", "path"])
@pytest.mark.parametrize("given", ELSEWHERE)
def test_no_setting_of_the_pipeline_takes_an_object_store(
    flag: str, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["-path", "logs", "-tables", "lake", f"-{flag}", given]
    with pytest.raises(InvalidConfig, match="object stores do not work yet"):
        load_pipeline(arguments=arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "backfill", "status", "audit", "report", "optimize", "vacuum"])
def test_no_command_writes_a_folder_named_like_a_scheme(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tidelog = Tidelog(capsys)
    said = tidelog("pipeline", command, "-path", "x", "-tables", ELSEWHERE[0], code=2).err
    assert "object stores do not work yet" in said
    assert list(tmp_path.iterdir()) == []


def test_the_page_of_the_report_is_a_local_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tidelog = Tidelog(capsys)
    said = tidelog("pipeline", "report", "-path", "x", "-tables", "lake", "-out", "s3://bucket/page.html", code=2).err
    assert "-out is 's3://bucket/page.html'" in said
    with pytest.raises(InvalidConfig, match="object stores do not work yet"):
        write_report(Path("s3://bucket/lake"), tmp_path / "page.html")


def test_tables_and_jobs_refuse_it_too_without_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for given in ("s3://bucket/lake", Path("s3://bucket/lake")):
        with pytest.raises(InvalidConfig, match="object stores do not work yet"):
            open_table(given, FRAMES_LAYOUT)
    options = FramesOptions(address=LogsAddress(path="logs"), tables="lake", checkpoint="s3://bucket/checkpoint")
    with pytest.raises(InvalidConfig, match="object stores do not work yet"):
        FramesJob(None, options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_what_tasks_open_is_absolute_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["-cluster", "n1:9500", "-tls-cert", "op.crt", "-tls-key", "keys/op.key", "-tls-ca", "ca.crt"]
    made = load_pipeline(arguments=[*arguments, "-tables", "lake", "-master", "spark://head:7077"])
    address = made.frames.address
    assert (address.certificate, address.key) == (str(tmp_path / "op.crt"), str(tmp_path / "keys" / "op.key"))
    assert address.authority == str(tmp_path / "ca.crt")
    assert made.frames.tables == made.signals.tables == str(tmp_path / "lake")
    assert made.frames.checkpoint == str(tmp_path / "lake" / "_checkpoints" / "main" / "frames")
    read = SourceOptions.parse({"path": "logs"})
    assert read.address.path == str(tmp_path / "logs")
    with pytest.raises(InvalidConfig, match=r"certificate is 's3://b/op\.crt'"):
        SourceOptions.parse({"cluster": "n1:9500", "certificate": "s3://b/op.crt", "key": "k", "authority": "a"})
