"""Running many seeds: what the command says of those that failed."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.cli.commands import Tidelog
from tidelog.cli.sim_commands import VIOLATING_MAX
from tidelog.sim.log import world as log_world
from tidelog.sim.log.model import Violation
from tidelog.sim.seeds import WorldResult, run_seeds


def live_badly(seed: int) -> WorldResult:
    """Every odd seed breaks a promise."""
    if seed % 2:
        raise Violation(seed, f"problem of {seed}")
    return WorldResult(seed=seed, events=1, checks=1, counters=Counter())


def run_badly(first: int, count: int) -> dict[str, Any]:
    return run_seeds(first, count, live=live_badly, sometimes=())


@pytest.fixture
def tidelog(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tidelog:
    monkeypatch.setattr(log_world, "run_log_seeds", run_badly)
    return Tidelog(capsys)


def test_the_command_names_violating_seeds_with_their_problems_in_both_forms(tidelog: Tidelog) -> None:
    result = json.loads(tidelog("sim", "log", "--seed", "10", "--seeds", "5", "--json", code=1).out)
    assert result["violations"] == 2
    expected = [{"seed": 11, "problem": "problem of 11"}, {"seed": 13, "problem": "problem of 13"}]
    assert result["violating"] == expected
    assert "problem of 11" in result["first_violation"]
    lines = tidelog("sim", "log", "--seed", "10", "--seeds", "5", code=1).out.splitlines()
    assert [line for line in lines if line.startswith("VIOLATION") and "problem of 13" in line]


def test_the_command_names_no_more_violating_seeds_than_somebody_reads(tidelog: Tidelog) -> None:
    seeds = str(4 * VIOLATING_MAX)
    result = json.loads(tidelog("sim", "log", "--seed", "0", "--seeds", seeds, "--json", code=1).out)
    assert [one["seed"] for one in result["violating"]] == list(range(1, 2 * VIOLATING_MAX, 2))
    assert result["violations"] == 2 * VIOLATING_MAX


def test_a_clean_run_names_none(tidelog: Tidelog) -> None:
    result = json.loads(tidelog("sim", "log", "--seed", "10", "--seeds", "1", "--json").out)
    assert result["violations"] == 0
    assert "violating" not in result
