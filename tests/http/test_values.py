"""The latest value of every source and PGN."""

from __future__ import annotations

import random

from tidelog.blocks.columns import FrameColumns
from tidelog.compat.captures import parts_from_can_id_scalar
from tidelog.http.filters import FrameFilter
from tidelog.http.values import LatestValues, values_json
from tidelog.nmea.devices import Device, Name, Product

NAME = Name(
    unique_number=5,
    manufacturer_code=137,
    device_instance=1,
    device_function=130,
    device_class=75,
    industry_group=4,
).to_int()


def test_the_latest_wins_whatever_the_blocks() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    latest = LatestValues()
    expected: dict[tuple[int, int], tuple[int, int, bytes]] = {}
    seq = 1
    for _ in range(300):
        rows = [
            (
                rng.randrange(10**15),
                rng.choice([0x09F80100, 0x09F80200, 0x18EA2300]) + rng.randrange(4),
                rng.randbytes(8),
            )
            for _ in range(rng.randrange(1, 40))
        ]
        latest.receive(seq, FrameColumns.from_rows(rows))
        for time_us, can_id, payload in rows:
            parts = parts_from_can_id_scalar(can_id)
            expected[parts.source, parts.pgn] = (time_us, seq, payload)
            seq += 1
        if rng.random() < 0.05:
            latest.values()
    found = {(value.source, value.pgn): (value.time_us, value.seq, value.data) for value in latest.values()}
    assert found == expected


def test_pairs_that_are_quiet_longest_are_forgotten_first() -> None:
    latest = LatestValues(pairs_max=2)
    for source in (1, 2, 1, 3):
        latest.receive(1, FrameColumns.from_rows([(0, 0x09F80100 + source, b"")]))
        latest.values()
    assert [value.source for value in latest.values()] == [1, 3]


def test_values_are_shown_by_device_and_filtered() -> None:
    latest = LatestValues()
    rows = [(0, 0x09F80105, b"\x01"), (1_000_000, 0x09F80205, b"\x02"), (0, 0x09F80109, b"\x03")]
    latest.receive(10, FrameColumns.from_rows(rows))
    product = Product(model_id="GPS")
    devices = [Device(source=5, name=NAME, product=product, first_seen_us=0, last_seen_us=0)]
    assert values_json(latest.values(), devices) == [
        {
            "name": f"0x{NAME:016x}",
            "src": 5,
            "manufacturer": "Maretron",
            "model_id": "GPS",
            "values": [
                {"pgn": 129025, "ts": "1970-01-01T00:00:00Z", "data": "01", "seq": 10},
                {"pgn": 129026, "ts": "1970-01-01T00:00:01Z", "data": "02", "seq": 11},
            ],
        },
        {"name": "", "src": 9, "values": [{"pgn": 129025, "ts": "1970-01-01T00:00:00Z", "data": "03", "seq": 12}]},
    ]
    chosen = values_json(latest.values(), devices, FrameFilter(names=frozenset({NAME}), pgns=frozenset({129026})))
    assert [(device["src"], device["values"]) for device in chosen] == [
        (5, [{"pgn": 129026, "ts": "1970-01-01T00:00:01Z", "data": "02", "seq": 11}])
    ]
    assert values_json([], devices) == []
