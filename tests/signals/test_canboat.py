"""Decoding against canboat's own analyzer, field by field, over a real capture."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from tests.signals.frames_kit import canboat_batch, capture_path, rows_by_seq
from tidelog.signals.decode import decode_signals
from tidelog.signals.layouts import FieldKind, FieldLayout, Variant, layouts_of, snake_case

pytest.importorskip("nmea2000", reason="signals need the `spark` extra (nmea2000)")

VALUES_BY_KEY = {
    (130822, "value"): "Navico's object dump: the type is told by `data type`; kept as bytes",
    (130822, "length"): "the database of canboat 9 cuts the object dump otherwise than canboat 8 did",
    (130822, "class"): "as above",
    (130822, "data_type"): "as above",
    (130845, "value"): "Simnet's key 2324, which the database does not know; kept as bytes",
}
"""What the database cannot tell, by PGN and field."""

RENAMED = {(61184, "proprietary_id"): "pid"}
"""Fields that canboat 9 calls otherwise than canboat 8 did."""

UNITS = {"Hz": ("rpm", 60.0), "ratio": ("%", 100.0)}
"""canboat 8 said these two in other units under `SI`; canboat 9 and we say hertz and a ratio."""

NOT_SIGNALS = re.compile(r"^(reserved|spare|regional)")


def canboat_fields(fields: dict[str, Any]) -> dict[tuple[str, int], Any]:
    """By name and number of the set, 0 outside of sets."""
    found: dict[tuple[str, int], Any] = {}
    for name, value in fields.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for number, inner in enumerate(value, 1):
                found.update({(plain_name(key), number): item for key, item in inner.items()})
        else:
            found[plain_name(name), 0] = value
    return found


def plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def seconds(text: str) -> float:
    sign = -1.0 if text.startswith("-") else 1.0
    hours, minutes, rest = text.lstrip("-").split(":")
    return sign * (int(hours) * 3600 + int(minutes) * 60 + float(rest))


def agrees(row: dict[str, Any], said: Any, resolution: float) -> bool:
    value, text = row["value"], row["text"]
    if isinstance(said, list):
        return (text or "") == ", ".join(str(item) for item in said)
    if isinstance(said, int | float):
        if value is None:
            return False
        factor = UNITS[row["unit"]][1] if row["unit"] in UNITS else 1.0
        # canboat prints as many digits as the resolution has, of positions never more than seven.
        printed = 1e-7 if row["unit"] == "deg" else 0.0
        tolerance = 0.51 * max(resolution, printed)
        return any(abs(value * each - said) <= tolerance * each for each in {1.0, factor})
    if said == text:
        return True
    if re.fullmatch(r"\d{4}\.\d\d\.\d\d", said):
        return bool(text == said.replace(".", "-"))
    if re.fullmatch(r"-?\d+:\d\d:\d\d(\.\d+)?", said):
        return value is not None and abs(value - seconds(said)) <= resolution
    if re.fullmatch(r"[0-9A-F]{2}( [0-9A-F]{2})*", said) and text is not None:
        return bool(text == said.replace(" ", "").lower())
    return bool(said.isdigit() and value == int(said))


def printed_digit(said: Any) -> float:
    """The last digit that canboat printed of a number."""
    exponent = Decimal(repr(said)).as_tuple().exponent if isinstance(said, int | float) else 0
    assert isinstance(exponent, int), f"{said} is a number"
    return 10.0**exponent


def layout_field(pgn: int, signal: str) -> tuple[Variant, FieldLayout]:
    name = ".".join(signal.split(".")[:2])
    return next(
        (variant, field) for variant in layouts_of(pgn).variants for field in variant.fields if field.signal == name
    )


def test_every_field_of_a_real_capture_is_what_canboat_says() -> None:
    batch = canboat_batch(capture_path("susteranna-actisense-serial.raw"))
    decoded = decode_signals(batch)
    rows = rows_by_seq(decoded.signals)
    with gzip.open(capture_path("susteranna.decoded.jsonl.gz"), "rt") as lines:
        messages = [json.loads(line) for line in lines][1:]
    pgns, lengths = batch.column("pgn").to_pylist(), [len(data) for data in batch.column("data").to_pylist()]
    # canboat skips two damaged lines without a payload.
    frames = [place for place, length in enumerate(lengths) if length]
    assert len(frames) == len(messages)
    wrong: list[str] = []
    listed: set[tuple[int, str]] = set()
    equal: Counter[int] = Counter()
    told_by_key = 0
    for place, message in zip(frames, messages, strict=True):
        pgn = pgns[place]
        assert message["pgn"] == pgn
        ours = {}
        for signal in rows.get(place + 1, []):
            _, name, *number = signal["signal"].split(".")
            ours[plain_name(name), int(number[0]) if number else 0] = signal
        for (name, number), said in canboat_fields(message["fields"]).items():
            if NOT_SIGNALS.match(name):
                continue
            renamed = {plain_name(old): new for (at, old), new in RENAMED.items() if at == pgn}
            row = ours.get((renamed.get(name, name), number))
            field = None if row is None else layout_field(pgn, row["signal"])[1]
            told = field is not None and field.kind in (FieldKind.DYNAMIC, FieldKind.VARIABLE)
            scale = printed_digit(said) if told else 1.0 if field is None else field.scale
            if row is not None and agrees(row, said, scale):
                equal[pgn] += 1
                told_by_key += told
                continue
            key = next(((pgn, old) for at, old in VALUES_BY_KEY if at == pgn and plain_name(old) == name), None)
            if key is None:
                wrong.append(f"{pgn} {message['description']} {name} {number}: canboat {said!r}, we {row}")
            else:
                listed.add(key)
    assert not wrong, "\n".join(wrong[:20])
    assert listed <= set(VALUES_BY_KEY)
    assert set(equal) == set(pgns) - {16057090}
    assert sum(equal.values()) > 52_000
    assert told_by_key > 4_800, "values of keys and of commanded fields"


@pytest.mark.parametrize(
    ("name", "frames"), [("susteranna-actisense-serial.raw", 10_295), ("dirona-actisense-serial.raw", 40_000)]
)
def test_real_captures_decode_without_a_gap(name: str, frames: int) -> None:
    batch = canboat_batch(capture_path(name))
    decoded = decode_signals(batch)
    assert decoded.frames == batch.num_rows == frames
    assert decoded.decoded + sum(item.frames for item in decoded.undecoded) == frames
    assert {item.reason for item in decoded.undecoded} <= {"proprietary", "variable", "too_short", "unknown_pgn"}
    unknown = {item.pgn for item in decoded.undecoded if item.reason == "unknown_pgn"}
    assert unknown <= {16057090}
    with_rows = set(rows_by_seq(decoded.signals))
    silent = Counter(pgn for seq, pgn in enumerate(batch.column("pgn").to_pylist(), 1) if seq not in with_rows)
    counted = {item.pgn for item in decoded.undecoded}
    # A frame without a row either was counted or has nothing available in it.
    assert all(pgn in counted or pgn in {127258, 65284, 130818} or count < 20 for pgn, count in silent.items()), silent


def test_signals_are_named_after_message_and_field() -> None:
    assert snake_case("gnssPositionData") == "gnss_position_data"
    assert snake_case("cogSogRapidUpdate") == "cog_sog_rapid_update"
    assert snake_case("discreteStatus1") == "discrete_status_1"
    assert (
        snake_case("0xff000xffffManufacturerProprietarySingleFrameNonAddressed")
        == "manufacturer_proprietary_single_frame_non_addressed"
    )
    assert layouts_of(130306).variants[0].fields[1].signal == "wind_data.wind_speed"
