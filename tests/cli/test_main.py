"""The command as a process: start-up, exit codes, pipes, and never a traceback."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Tidelog, in_subprocess, make_log
from tidelog import __version__
from tidelog.cli import main as main_module
from tidelog.cli.bench_commands import _BENCHES
from tidelog.cli.lazy import LazyCommand
from tidelog.cli.sim_commands import _WORLDS, merge_results


def test_help_lists_the_commands() -> None:
    done = in_subprocess("--help")
    assert done.returncode == 0
    assert all(f"\n  {name} " in done.stdout for name in ("log", "bench", "sim"))


@pytest.mark.parametrize("world", sorted(_WORLDS))
def test_every_simulated_world_runs_by_its_name(tidelog: Tidelog, world: str) -> None:
    assert json.loads(tidelog("sim", world, "--seed", "1", "--json").out)["violations"] == 0


@pytest.mark.parametrize("name", sorted(_BENCHES))
def test_every_benchmark_is_found_by_its_name(name: str) -> None:
    module, _ = _BENCHES[name]
    assert callable(importlib.import_module(f"benchmarks.{module}").run)


def test_version_is_the_package_version(tidelog: Tidelog) -> None:
    assert __version__ in tidelog("--version").out


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["log", "--help"], ["log", "verify", "--help"]])
def test_start_up_loads_no_heavy_library(arguments: list[str]) -> None:
    heavy = ("numpy", "pyarrow", "rich", "zstandard", "asyncio")
    code = (
        "import sys; from tidelog.cli.main import run; run(sys.argv[1:]); "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_asserts_must_be_on() -> None:
    done = in_subprocess("--version", flags=("-O",))
    assert done.returncode == 2
    assert done.stderr.startswith("tidelog: ")
    assert done.stderr.count("\n") == 1


def test_unusable_input_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    done = in_subprocess("log", "verify", tmp_path / "nowhere")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"tidelog: {tmp_path}/nowhere: there is no such file or folder; check the path\n"


def test_traceback_only_when_asked_for(tmp_path: Path) -> None:
    done = in_subprocess("log", "verify", tmp_path, env={**os.environ, "TIDELOG_TRACEBACK": "1"})
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_damage_is_exit_1(tmp_path: Path) -> None:
    make_log(tmp_path / "log")
    segment = sorted((tmp_path / "log").glob("*.seg"))[0]
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    done = in_subprocess("log", "verify", tmp_path / "log")
    assert done.returncode == 1
    assert "DAMAGE" in done.stdout
    assert segment.name in done.stdout


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    make_log(tmp_path / "log", blocks=200)
    command = f"{sys.executable} -m tidelog.cli log dump {tmp_path / 'log'} | head -1"
    done = subprocess.run(["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True)
    row, code = done.stdout.splitlines()
    assert json.loads(row)["offset"] == 0
    assert code == "141"
    assert done.stderr == ""


def test_output_to_a_full_device_is_one_sentence(tmp_path: Path) -> None:
    make_log(tmp_path / "log", blocks=200)
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "tidelog.cli", "log", "dump", str(tmp_path / "log")]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_interrupt_is_quiet_and_exit_130(tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, "_invoke", interrupted)
    result = tidelog("log", code=130)
    assert result.err == ""
    assert signal.SIGINT + 128 == 130


def test_a_bug_says_how_to_report_it(tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> int:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(main_module, "_invoke", broken)
    result = tidelog("log", code=70)
    assert "TIDELOG_TRACEBACK=1" in result.err


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [(["lgo"], "'log'"), (["log", "verfy"], "'verify'"), (["log", "dump", "--limt", "3", "x"], "--limit")],
)
def test_a_slip_of_the_keyboard_gets_a_suggestion(tidelog: Tidelog, arguments: list[str], suggestion: str) -> None:
    result = tidelog(*arguments, code=2)
    assert "No such" in result.err
    assert suggestion in result.err


def test_a_command_that_is_not_installed_is_not_listed(tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = LazyCommand("tidelog.cli.not_there", "command", "Nothing.")
    monkeypatch.setitem(main_module.cli.lazy, "absent", absent)
    assert "absent" not in tidelog("--help").out
    assert "not part of this installation" in tidelog("absent", code=2).err


def test_results_of_two_processes_add_up() -> None:
    merged: dict[str, Any] = {}
    merge_results(merged, {"seeds": 3, "violations": ["a"], "ok": True, "steps_max": 9, "faults": {"torn": 1}})
    merge_results(merged, {"seeds": 4, "violations": ["b"], "ok": False, "steps_max": 7, "faults": {"torn": 2}})
    merge_results(merged, {"never": ["stall", "torn"]})
    merge_results(merged, {"never": ["stall"]})
    assert merged.pop("never") == ["stall"]
    assert merged == {"seeds": 7, "violations": ["a", "b"], "ok": False, "steps_max": 9, "faults": {"torn": 3}}
