"""The client benchmark counts acknowledged records and verified bytes, against a floor that is a real socket."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.clients import client_bench
from benchmarks.cluster.link_bench import write_certificates
from benchmarks.cluster.link_server import CLIENT, SERVER
from benchmarks.kits.client_floor import connect_floor, floor_serving, receive_floor

from tests.bench.test_bench import assert_flat_and_finite, number
from tidelog.units import MIB

KEYS = {"produce_records_per_s", "produce_many_records_per_s", "fetch_vs_socket", "p50_ms", "p99_ms"}
TINY = client_bench.ClientSizes(rounds=1, produce_s=0.2, fetch_bytes=2 * MIB, follow_s=0.3)


@pytest.mark.slow
def test_client_bench_answers_with_every_named_key(tmp_path: Path) -> None:
    results = client_bench.bench_client(folder=str(tmp_path), sizes=TINY)
    assert_flat_and_finite(results)
    assert results.keys() >= KEYS
    for key in KEYS:
        assert number(results, key) > 0, key
    assert number(results, "p99_ms") >= number(results, "p50_ms")
    assert list(tmp_path.iterdir()) == [], "the scratch folder stays behind"


def test_the_floor_sends_as_much_as_is_asked_for(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    with floor_serving(tmp_path, SERVER) as port:
        for _ in range(2):
            connection = connect_floor(tmp_path, CLIENT, port)
            try:
                assert receive_floor(connection, 3 * MIB + 17) > 0
                assert receive_floor(connection, 1) > 0
            finally:
                connection.close()
