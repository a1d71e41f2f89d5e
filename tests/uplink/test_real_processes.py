"""Boat and cloud as real processes over mTLS, killed at random: nothing durable is lost, nothing counts twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.uplink.processes import FULL_BUS, Parties, check_equal, live_through_kills


@pytest.fixture
def parties(tmp_path: Path) -> Iterator[Parties]:
    both = Parties(tmp_path)
    yield both
    both.stop()


@pytest.mark.parametrize("seed", [pytest.param(11, id="fast"), pytest.param(12, marks=pytest.mark.slow, id="slow")])
def test_kills_of_boat_and_cloud_lose_nothing_and_double_nothing(parties: Parties, seed: int) -> None:
    print(f"seed {seed}")
    rounds = 5 if seed == 11 else 40
    parties.start_cloud()
    parties.start_boat(*FULL_BUS)
    live_through_kills(parties, random.Random(seed), rounds)
    parties.finish()
    check_equal(parties)
