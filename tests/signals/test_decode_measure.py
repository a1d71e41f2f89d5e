"""The measure of decoding, small: what it reports and that the voyage it decodes is understood whole."""

from __future__ import annotations

import pytest
from benchmarks.pipeline.decode_measure import frames_batch, measure_decode

from tidelog.edge.sources.voyage import Voyage
from tidelog.signals.decode import decode_signals

pytest.importorskip("nmea2000", reason="signals need the `spark` extra (nmea2000)")


def test_a_voyage_is_decoded_whole() -> None:
    voyage = Voyage(seed=1, start_us=1_780_000_000_000_000)
    decoded = decode_signals(frames_batch(voyage.frames(voyage.start_us, voyage.start_us + 90_000_000)))
    assert decoded.undecoded == []
    assert decoded.decoded == decoded.frames > 4_000
    assert decoded.signals.num_rows > 3 * decoded.frames


def test_the_measure_reports_its_figures() -> None:
    results = measure_decode(batches=1, rounds=1, package_frames=50)
    assert set(results) == {
        "decode_frames_per_s",
        "decode_vs_nmea2000",
        "decode_nmea2000_frames_per_s",
        "decode_rows_per_frame",
        "decode_frames_per_cpu_s",
        "decode_best_frames_per_s",
        "decode_spread",
    }
    assert float(str(results["decode_vs_nmea2000"])) > 1
