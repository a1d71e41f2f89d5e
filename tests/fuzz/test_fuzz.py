"""The fuzz targets: their seeds pass, a short run finds nothing, and a planted bug is found."""

from __future__ import annotations

import importlib.util
import random

import pytest

from tests.fuzz.node_targets import OPTIONS, hello_frame, listen
from tests.fuzz.run import fuzz
from tests.fuzz.target import RESEALED
from tests.fuzz.targets import TARGETS
from tidelog.transports.link.frames import FrameType, frame
from tidelog.transports.link.mux import LinkMux

needs_atheris = pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed")


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_its_own_seeds(name: str) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds())
    assert seeds
    for seed in seeds:
        target.run(seed)
    target.run(b"")
    target.run(RESEALED)


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_its_seeds_with_random_damage(name: str) -> None:
    """A short blind run where atheris is missing; the seed is fixed, so a failure repeats."""
    target, dice = TARGETS[name], random.Random(20_000)
    seeds = list(target.seeds())
    for _ in range(500):
        damaged = bytearray(dice.choice(seeds))
        for _ in range(dice.randint(1, 5)):
            damaged[dice.randrange(len(damaged))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        try:
            target.run(bytes(damaged))
        except Exception as error:
            pytest.fail(f"{error!r} for {damaged.hex()}")


def test_the_seeds_of_the_link_get_past_the_hello() -> None:
    """Or the fuzzer would spend its time in front of it."""
    mux = LinkMux(options=OPTIONS, is_dialler=False, now_us=0)
    listen(mux, hello_frame())
    mux.accept(OPTIONS.taken)
    listen(mux, frame(FrameType.READY) + frame(FrameType.MESSAGE, kind=1, body=b"note"))
    assert mux.messages_received == 1


@needs_atheris
@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run_finds_nothing(name: str) -> None:
    problem = fuzz(name, seconds=1, runs=20_000, seed=1)
    assert not problem, problem


@needs_atheris
@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_a_long_run_finds_nothing(name: str) -> None:
    problem = fuzz(name, seconds=60)
    assert not problem, problem


@needs_atheris
def test_a_fuzzer_that_cannot_run_is_not_taken_for_a_clean_one() -> None:
    assert "failed" in fuzz("no such target", seconds=1)


@needs_atheris
def test_a_planted_bug_behind_the_checksums_is_found() -> None:
    problem = fuzz("planted", seconds=30, seed=1)
    assert "the planted bug" in problem
    assert "crash-" in problem
