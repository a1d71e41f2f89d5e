"""lplex's filters: alternatives inside a parameter, all parameters together, 400 for what cannot be."""

from __future__ import annotations

import pytest

from tidelog.blocks.columns import FrameColumns
from tidelog.errors import RequestRefused
from tidelog.http.filters import filter_from_query
from tidelog.nmea.devices import Device, Name

POSITION, COURSE, CLAIM_REQUEST = 129025, 129026, 59904


def name_of(manufacturer: int, instance: int) -> int:
    return Name(
        unique_number=manufacturer,
        manufacturer_code=manufacturer,
        device_instance=instance,
        device_function=1,
        device_class=1,
        industry_group=4,
    ).to_int()


MARETRON, GARMIN = name_of(137, 0), name_of(229, 2)
DEVICES = [
    Device(source=1, name=MARETRON, first_seen_us=0, last_seen_us=0),
    Device(source=2, name=GARMIN, first_seen_us=0, last_seen_us=0),
    Device(source=3, first_seen_us=0, last_seen_us=0),
]
# (source, pgn) of each frame; source 4 has not been heard of.
FRAMES = FrameColumns.from_rows(
    [
        (0, 0x09F80101, b""),
        (0, 0x09F80202, b""),
        (0, 0x18EA_0103, b""),
        (0, 0x09F80104, b""),
        (0, 0x09F80201, b""),
    ]
)
ALL = [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("query", "passed"),
    [
        ({}, ALL),
        ({"pgn": ["129025"]}, [0, 3]),
        ({"pgn": ["129025", "59904"]}, [0, 2, 3]),
        ({"pgn": ["129025"], "src": ["4", "1"]}, [0, 3]),
        ({"exclude_pgn": ["129025", "129026"]}, [2]),
        ({"pgn": ["129025"], "exclude_pgn": ["129025"]}, []),
        ({"manufacturer": ["Maretron"]}, [0, 4]),
        ({"manufacturer": ["maretron", "229"]}, [0, 1, 4]),
        ({"manufacturer": ["Nobody"]}, []),
        ({"instance": ["2"]}, [1]),
        ({"instance": ["0", "2"], "manufacturer": ["Garmin"]}, [1]),
        ({"name": [f"{MARETRON:x}"]}, [0, 4]),
        ({"name": [f"0x{GARMIN:016X}"]}, [1]),
        ({"exclude_name": [f"{MARETRON:016x}"]}, [1, 2, 3]),
        ({"exclude_name": [f"{MARETRON:016x}"], "pgn": ["129026"]}, [1]),
        ({"bus": ["can0"]}, []),
        ({"decode": ["false"]}, ALL),
    ],
)
def test_filters_choose(query: dict[str, list[str]], passed: list[int]) -> None:
    rows = filter_from_query(query).rows(FRAMES, lambda: DEVICES)
    assert (ALL if rows is None else rows.tolist()) == passed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pgn", ""),
        ("pgn", "x"),
        ("pgn", "-1"),
        ("pgn", "262144"),
        ("pgn", "\u0661"),
        ("pgn", "1" * 5000),
        ("exclude_pgn", "1.5"),
        ("src", "256"),
        ("instance", "300"),
        ("manufacturer", " "),
        ("name", "xyz"),
        ("name", ""),
        ("name", "0x"),
        ("name", "1" * 17),
        ("exclude_name", "-1"),
        ("bus", ""),
        ("decode", "true"),
    ],
)
def test_what_cannot_be_is_refused(name: str, value: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        filter_from_query({name: [value]})
    assert refused.value.status == 400
    assert name in refused.value.detail
    assert len(refused.value.detail) < 300


def test_decoding_says_that_it_is_not_available() -> None:
    with pytest.raises(RequestRefused, match="not available") as refused:
        filter_from_query({"decode": ["1"]})
    assert refused.value.reason == "not_available"
