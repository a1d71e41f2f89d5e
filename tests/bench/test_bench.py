"""Both benchmarks answer with one flat object that has every named key and only finite numbers.

The fast lane runs them tiny and asserts no bar: a ratio of two milliseconds says nothing. The slow
lane runs `--quick` and asserts the bars of the issue. It wants a quiet machine: if a bar fails there,
look at the `_spread` keys first, and measure again in full before you believe it.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.kits import measure
from benchmarks.kits.traffic import bus_frames
from benchmarks.log import append_bench, journal_bench, log_bench, recovery_bench, size_bench

from tidelog.errors import InvalidConfig
from tidelog.units import MIB

AT_LEAST = {
    "append_vs_floor": 0.8,
    "group_commit_vs_redex": 1.0,
    "encode_frames_per_s": 15e6,
    "decode_frames_per_s": 25e6,
    "decode_delta_frames_per_s": 8e6,
    "encode_live_frames_per_s": 500e3,
    "recover_vs_scan": 0.5,
    "many_channels_vs_one": 0.5,
    "store_append_vs_floor": 0.7,
    "decode_live_frames_per_s": 1e6,
}
AT_MOST = {"open_ms": 300.0, "bytes_vs_lpj": 0.70}
JOURNAL_AT_MOST = {"cpu_fraction": 0.05, "rss_mb": 80.0, "seconds_lost": 1.0, "seq_reused": 0.0}
JOURNAL_COUNTS = ("frames", "fsyncs", "sealed_blocks", "lost_after_kill")

TINY = log_bench.LogSizes(
    rounds=1,
    disk_rounds=1,
    codec_rounds=1,
    append_blocks=2,
    group_commits=2,
    bulk_blocks=1,
    sealed_blocks=1,
    live_frames=200,
    log_bytes=4 * MIB,
    small_log_bytes=MIB // 8,
    channels=4,
    channel_in_flight=8,
    channel_appends=16,
    channel_rounds=1,
    capture_frames_max=2_000,
)


def assert_flat_and_finite(results: dict[str, object]) -> None:
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    for key, value in results.items():
        assert value is None or isinstance(value, str | int | float), f"{key} is not a plain value"
        assert not isinstance(value, float) or math.isfinite(value), f"{key} is {value}"


def number(results: dict[str, object], key: str) -> float:
    value = results[key]
    assert isinstance(value, int | float), f"{key} is {value!r}"
    return value


def missed(results: dict[str, object], *, at_least: dict[str, float], at_most: dict[str, float]) -> list[str]:
    low = [f"{key} {number(results, key)} < {bar}" for key, bar in at_least.items() if number(results, key) < bar]
    high = [f"{key} {number(results, key)} > {bar}" for key, bar in at_most.items() if number(results, key) > bar]
    return low + high


# --- the fast lane: the shape ----------------------------------------------------------------------


def test_log_bench_answers_with_every_named_key(tmp_path: Path) -> None:
    results = log_bench.run(folder=str(tmp_path), sizes=TINY)
    assert_flat_and_finite(results)
    assert {*AT_LEAST, *AT_MOST, "fdatasync_p50_ms", "rounds", "quick", "append_mb_per_s"} <= results.keys()
    for key in AT_LEAST:
        assert number(results, key) > 0, key
    assert list(tmp_path.iterdir()) == [], "the scratch folder stays behind"


def test_journal_bench_answers_with_every_named_key(tmp_path: Path) -> None:
    sizes = journal_bench.JournalSizes(seconds=2.0, kill_after_s=(1.3,))
    results = journal_bench.run(folder=str(tmp_path), sizes=sizes)
    assert_flat_and_finite(results)
    assert {*JOURNAL_AT_MOST, *JOURNAL_COUNTS} <= results.keys()
    assert results["frames"] == 4_000
    assert number(results, "sealed_blocks") > 0
    assert number(results, "fsyncs") > 0
    assert results["seq_reused"] == 0
    assert list(tmp_path.iterdir()) == [], "the scratch folder stays behind"


def test_missing_captures_are_null_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_bench, "CAPTURES", ("no-such-boat",))
    results = size_bench.measure_bytes(str(tmp_path))
    assert results["bytes_vs_lpj"] is None
    assert "shared/data" in str(results["bytes_vs_lpj_reason"])


def test_missing_peer_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "net", None)
    with pytest.raises(InvalidConfig, match="make setup"):
        append_bench.measure_group_commit(str(tmp_path), commits=1, rounds=1)


def test_unwritable_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot be written"), measure.scratch_folder(str(tmp_path / "absent")):
        pass


def test_cases_alternate_and_the_warm_up_is_thrown_away() -> None:
    order: list[str] = []
    seconds = {"a": iter([99.0, 1.0, 2.0, 3.0]), "b": iter([99.0, 4.0, 4.0, 10.0])}

    def case(name: str) -> measure.Case:
        def run() -> float:
            order.append(name)
            return next(seconds[name])

        return run

    measured = measure.alternate({"a": case("a"), "b": case("b")}, rounds=3)
    assert order == ["a", "b"] * 4
    assert measured["a"].seconds == (1.0, 2.0, 3.0)
    assert measure.speed_against(measured["a"], measured["b"]) == 2.0
    assert measured["b"].spread == 1.5


def test_large_block_has_256_kib() -> None:
    assert append_bench.large_block().maker.stored_bytes == 256 * 1024


def test_open_is_measured_on_exactly_100_segments(tmp_path: Path) -> None:
    results = recovery_bench.measure_open(str(tmp_path), log_bytes=MIB, rounds=1)
    assert results["open_segments"] == recovery_bench.SEGMENTS


def test_traffic_is_valid_and_repeatable() -> None:
    for fast_packets in (False, True):
        frames = bus_frames(2_000, fast_packets=fast_packets)
        frames.check()
        assert frames.equals(bus_frames(2_000, fast_packets=fast_packets))
        assert (len(set(frames.payload_offsets[1:] - frames.payload_offsets[:-1])) > 1) is fast_packets


def test_the_boat_does_not_import_pyarrow() -> None:
    check = "import sys, benchmarks.log.journal_boat; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


# --- the slow lane: the bars -----------------------------------------------------------------------


@pytest.mark.slow
def test_log_bench_reaches_its_bars(tmp_path: Path) -> None:
    results = log_bench.run(quick=True, folder=str(tmp_path))
    assert_flat_and_finite(results)
    at_most = {key: bar for key, bar in AT_MOST.items() if results[key] is not None}
    assert not missed(results, at_least=AT_LEAST, at_most=at_most), results


@pytest.mark.slow
def test_journal_bench_reaches_its_bars(tmp_path: Path) -> None:
    results = journal_bench.run(quick=True, folder=str(tmp_path))
    assert_flat_and_finite(results)
    assert number(results, "sealed_blocks") >= 3
    assert not missed(results, at_least={}, at_most=JOURNAL_AT_MOST), results
