"""How fast frames become signals on one core, against the `nmea2000` package decoding one frame at a time.

Both get the same mix: a simulated voyage as instruments talk, fast packets whole. Ours takes batches of the size
that a task decodes and builds the whole long table; the package is called by its shortest way (`backend.decode`,
payload in, message out), and only builds its own messages. Learning the layouts and importing the package are
outside of the measured time, as they come once for each process. On a machine that others use too the clock says
how much of a core was left for us; `decode_frames_per_cpu_s` says what a whole one gives.
"""

from __future__ import annotations

import statistics
import time
from importlib import import_module

import numpy as np
import pyarrow as pa

from benchmarks.kits.measure import Results, alternate
from tidelog.blocks.columns import FrameColumns
from tidelog.compat.captures import parts_from_can_id
from tidelog.edge.sources.voyage import Voyage
from tidelog.signals.decode import decode_signals
from tidelog.units import US_PER_S

_BATCH_FRAMES = 131_072
_START_US = 1_780_000_000 * US_PER_S
_FRAMES_PER_S = 49.0
"""As a voyage's instruments talk; a little more than it takes, so that a batch is full."""


def measure_decode(*, batches: int = 4, rounds: int = 5, package_frames: int = 4_000) -> Results:
    """`decode_frames_per_s` and `decode_vs_nmea2000`, medians of rounds taken in turn."""
    frames = voyage_batches(batches)
    total = sum(batch.num_rows for batch in frames)
    rows = sum(decode_signals(batch).signals.num_rows for batch in frames)
    backend = import_module("nmea2000.backend")
    # Spread over the whole batch, or the mix would be that of its first second.
    sample = frames[0].take(pa.array(np.linspace(0, frames[0].num_rows - 1, package_frames).astype(np.int64)))
    messages = list(zip(sample.column("pgn").to_pylist(), sample.column("data").to_pylist(), strict=True))

    cpu_s: list[float] = []

    def ours() -> float:
        began, cpu_began = time.perf_counter(), time.thread_time()
        for batch in frames:
            decode_signals(batch)
        cpu_s.append(time.thread_time() - cpu_began)
        return time.perf_counter() - began

    def package() -> float:
        began = time.perf_counter()
        for pgn, payload in messages:
            backend.decode(pgn, payload, units="si")
        return time.perf_counter() - began

    measured = alternate({"ours": ours, "package": package}, rounds=rounds)
    ours_per_s = total / measured["ours"].median
    package_per_s = len(messages) / measured["package"].median
    return {
        "decode_frames_per_s": round(ours_per_s),
        "decode_vs_nmea2000": round(ours_per_s / package_per_s, 1),
        "decode_nmea2000_frames_per_s": round(package_per_s),
        "decode_rows_per_frame": round(rows / total, 2),
        "decode_frames_per_cpu_s": round(total / statistics.median(cpu_s)),
        "decode_best_frames_per_s": round(total / min(measured["ours"].seconds)),
        "decode_spread": round(measured["ours"].spread, 2),
    }


def voyage_batches(batches: int) -> list[pa.RecordBatch]:
    """Consecutive batches of one voyage, in the columns that decoding reads."""
    voyage = Voyage(seed=6, start_us=_START_US)
    end_us = _START_US + int(batches * _BATCH_FRAMES / _FRAMES_PER_S * US_PER_S)
    whole = frames_batch(voyage.frames(_START_US, end_us))
    return [whole.slice(place * _BATCH_FRAMES, _BATCH_FRAMES) for place in range(batches)]


def frames_batch(frames: FrameColumns) -> pa.RecordBatch:
    """Frames of one boat with seqs from 1 on."""
    parts = parts_from_can_id(frames.can_ids)
    count = len(frames)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(frames.payload_offsets)), pa.py_buffer(frames.payload)]
    columns = {
        "channel": pa.array(["boat"] * count).dictionary_encode(),
        "seq": pa.array(np.arange(1, count + 1)),
        "time": pa.array(frames.times_us).cast(pa.timestamp("us", tz="UTC")),
        "source": pa.array(parts.source.astype(np.int16)),
        "pgn": pa.array(parts.pgn.astype(np.int32)),
        "destination": pa.array(parts.destination.astype(np.int16)),
        "data": pa.Array.from_buffers(pa.binary(), count, buffers),
    }
    return pa.RecordBatch.from_pydict(columns)
