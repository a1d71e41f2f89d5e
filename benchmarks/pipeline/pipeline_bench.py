"""`tidelog bench pipeline`: from blocks to tables and rows, against Spark doing the same with Parquet.

What every key means and what it must reach is in docs/benchmarks.md. Rows are a simulated fleet's frames; all cases run
on one warm session, in turn, so that a busy machine is busy for all of them. Keys that end in `_processor` are the same
ratios in processor time of all processes: they stay put where the clock does not. Those with `_running` leave out what
it costs to start a query, which weighs much where there are few rows: the marginal rate.

PI1  Before anything is timed, plain log, delta log and Parquet have given the same rows.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.kits.measure import Results, machine_facts, scratch_folder
from benchmarks.pipeline.decode_measure import measure_decode
from benchmarks.pipeline.pipeline_cases import Cost, Moments, PipelineCases
from benchmarks.pipeline.pipeline_logs import DELTA, LIVE, PLAIN, write_logs
from tidelog.pipeline.engine import EngineOptions, start_engine, stop_engine


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSizes:
    frames: int = 50_000_000
    live_frames: int = 10_000_000
    tuple_frames: int = 1_000_000
    boats: int = 4
    rounds: int = 3
    growth_batches: int = 9
    """Batches of the run that shows whether cost grows with the table: three in each third."""
    decode_rounds: int = 5


FULL = PipelineSizes()
QUICK = PipelineSizes(frames=5_000_000, live_frames=5_000_000, tuple_frames=200_000, rounds=2, decode_rounds=3)

_RATIOS: Final = {
    "ingest_vs_parquet": ("ingest", "rewrite"),
    "ingest_running_vs_parquet": ("ingest_running", "rewrite"),
    "ingest_live_vs_parquet": ("ingest_live", "rewrite"),
    "ingest_live_running_vs_parquet": ("ingest_live_running", "rewrite"),
    "scan_vs_parquet": ("scan", "parquet_scan"),
    "scan_running_vs_parquet": ("scan_running", "parquet_scan_running"),
    "scan_delta_vs_parquet": ("scan_delta", "parquet_scan"),
    "scan_delta_running_vs_parquet": ("scan_delta_running", "parquet_scan_running"),
    "scan_vs_tuples": ("scan", "tuples"),
    "scan_vs_tuples_same_rows": ("few", "tuples"),
}
"""What is compared with what."""


def run(*, quick: bool = False, folder: str | None = None, sizes: PipelineSizes | None = None) -> Results:
    """Measure everything; one flat object. `folder` says where the scratch files go (default: here)."""
    sizes = sizes or (QUICK if quick else FULL)
    start = time.perf_counter()
    with scratch_folder(folder) as scratch:
        place = Path(scratch)
        results = machine_facts(scratch)
        results |= {"quick": quick, "rounds": sizes.rounds, "frames": sizes.frames, "live_frames": sizes.live_frames}
        results["load_average"] = round(os.getloadavg()[0], 2)
        results |= measure_decode(rounds=sizes.decode_rounds)
        logs = write_logs(place / "logs", frames=sizes.frames, live_frames=sizes.live_frames, boats=sizes.boats)
        results |= {
            "log_bytes_per_frame": round(logs.log_bytes(PLAIN) / sizes.frames, 2),
            "log_delta_bytes_per_frame": round(logs.log_bytes(DELTA) / sizes.frames, 2),
            "log_live_bytes_per_frame": round(logs.log_bytes(LIVE) / sizes.live_frames, 2),
        }
        settings = {"spark.sql.warehouse.dir": str(place / "warehouse")}
        spark = start_engine(EngineOptions(name="tidelog-bench", scratch=str(place / "spark"), settings=settings))
        try:
            results |= _measure(PipelineCases(spark, logs, place), sizes)
        finally:
            stop_engine()
    results["run_seconds"] = round(time.perf_counter() - start, 1)
    return results


def _measure(cases: PipelineCases, sizes: PipelineSizes) -> Results:
    results: Results = {"bytes_per_frame": round(cases.write_parquet(first_rows=sizes.tuple_frames), 2)}
    results["parquet_bytes_per_frame"] = round(cases.parquet_bytes() / sizes.frames, 2)
    cases.require_rows()  # PI1; and everything has run once
    results |= _growth(cases, sizes)
    running: dict[str, list[Cost]] = {"ingest_running": [], "ingest_live_running": []}

    def ingest(kind: str, frames: int, key: str) -> Cost:
        cost, moments = cases.ingest(kind, frames=frames)
        running[key].append(moments.whole)
        return cost

    work: dict[str, tuple[int, Callable[[], Cost]]] = {
        "rewrite": (sizes.frames, cases.rewrite),
        "ingest": (sizes.frames, lambda: ingest(PLAIN, sizes.frames, "ingest_running")),
        "ingest_live": (sizes.live_frames, lambda: ingest(LIVE, sizes.live_frames, "ingest_live_running")),
        "parquet_scan": (sizes.frames, cases.scan_parquet),
        "scan": (sizes.frames, lambda: cases.scan(PLAIN)),
        "scan_delta": (sizes.frames, lambda: cases.scan(DELTA)),
        "parquet_few": (sizes.tuple_frames, lambda: cases.scan_parquet(first=True)),
        "few": (sizes.tuple_frames, lambda: cases.scan_first(sizes.tuple_frames, tuples=False)),
        "tuples": (sizes.tuple_frames, lambda: cases.scan_first(sizes.tuple_frames, tuples=True)),
    }
    taken: dict[str, list[Cost]] = {name: [] for name in work}
    for _ in range(sizes.rounds):
        for name, (_, case) in work.items():
            taken[name].append(case())
    medians = {name: _median(costs) for name, costs in (taken | running).items()}
    rows = {name: count for name, (count, _) in work.items()}
    rows |= {"ingest_running": sizes.frames, "ingest_live_running": sizes.live_frames}
    # What a query costs that is started and reads little, taken off what it costs to read everything.
    for name, few in (("parquet_scan", "parquet_few"), ("scan", "few"), ("scan_delta", "few")):
        medians[f"{name}_running"] = medians[name] - medians[few]
        rows[f"{name}_running"] = sizes.frames - sizes.tuple_frames
    results["ingest_start_s"] = round((medians["ingest"] - medians["ingest_running"]).wall_s, 2)
    results["scan_start_s"] = round(medians["few"].wall_s, 2)
    return results | _compared(medians, rows) | _quietness(taken)


def _growth(cases: PipelineCases, sizes: PipelineSizes) -> Results:
    """`marginal_last_vs_middle`: many batches into one table; the first third is for warming up."""
    _, moments = cases.ingest(PLAIN, frames=sizes.frames, batch_records_max=-(-sizes.frames // sizes.growth_batches))
    return growth(moments, sizes.frames)


def growth(moments: Moments, frames: int) -> Results:
    """The rate of the last third of the frames against that of the middle third."""
    middle = moments.rates(frames // 3, frames * 2 // 3)
    last = moments.rates(frames * 2 // 3, frames)
    return {
        "marginal_last_vs_middle": _ratio(last.wall_s, middle.wall_s),
        "marginal_last_vs_middle_processor": _ratio(last.processor_s, middle.processor_s),
        "marginal_rows_per_s": round(last.wall_s),
        "marginal_batches": len(moments.frames) - 1,
    }


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(statistics.median(cost.wall_s for cost in costs), statistics.median(cost.processor_s for cost in costs))


def _compared(medians: Mapping[str, Cost], rows: Mapping[str, int]) -> Results:
    """Every ratio by the clock and in processor time, and what is behind them."""
    rates = {name: cost.rates(rows[name]) for name, cost in medians.items()}
    results: Results = {}
    for key, (ours, other) in _RATIOS.items():
        results[key] = _ratio(rates[ours].wall_s, rates[other].wall_s)
        results[f"{key}_processor"] = _ratio(rates[ours].processor_s, rates[other].processor_s)
    for name, rate in rates.items():
        results[f"{name}_rows_per_s"] = round(rate.wall_s)
        results[f"{name}_rows_per_processor_s"] = round(rate.processor_s)
    return results


def _ratio(ours: float, other: float) -> float | None:
    """None where so little was done that the start of a query was all there is."""
    return round(ours / other, 3) if ours > 0 and other > 0 else None


def _quietness(taken: Mapping[str, Sequence[Cost]]) -> Results:
    """How far to trust the clock: `processors_used` is about the number of cores on a machine that is ours alone."""
    costs = [cost for one in taken.values() for cost in one]
    walls = [[cost.wall_s for cost in one] for one in taken.values()]
    return {
        "processors_used": round(sum(cost.processor_s for cost in costs) / sum(cost.wall_s for cost in costs), 2),
        "spread": round(max((max(times) - min(times)) / statistics.median(times) for times in walls), 3),
    }
