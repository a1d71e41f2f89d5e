"""Values of keys and of commanded fields, against the package asked one payload at a time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.signals.frames_kit import frames_batch, rows_by_seq
from tidelog.signals.decode import decode_signals
from tidelog.signals.layouts import FieldKind, Variant, database, layouts_of
from tidelog.signals.values import _codec, told_fields, told_value, value_layout

pytest.importorskip("nmea2000", reason="signals need the `spark` extra (nmea2000)")

SEED = 130_824
COMMAND = 1


def key_value_variants() -> list[tuple[Variant, int]]:
    """Variants with a value whose key tells its type, and the place of the value."""
    pgns = {info.pgn for info in database().pgns()}
    return [
        (variant, place)
        for pgn in sorted(pgns)
        for variant in layouts_of(pgn).variants
        for place, item in enumerate(variant.fields)
        if item.kind is FieldKind.DYNAMIC and item.key is not None
    ]


def theirs(variant: Variant, payload: bytes) -> dict[tuple[int, int], tuple[Any, Any]]:
    """(value, raw value) by place and set, from the package's own codec."""
    message = _codec().decode(variant.pgn, payload, 0, 255, 6)
    assert message.id == variant.id
    found = {}
    for item in message.fields:
        sets = item.value if isinstance(item.value, list) else [{item.id: item}]
        for number, fields in enumerate(sets, 1 if isinstance(item.value, list) else 0):
            found.update({(int(name), number): (one.value, one.raw_value) for name, one in fields.items()})
    return found


def test_values_of_keys_are_what_the_package_says_of_each_payload() -> None:
    rng = random.Random(SEED)
    (variant,) = (one for one, _ in key_value_variants() if one.id == "bGKeyValueData")
    payloads = []
    for _ in range(600):
        payload = bytes.fromhex("7d99")
        for _ in range(rng.randrange(1, 6)):
            size = rng.choice([1, 2, 4])
            value = rng.choice([rng.randbytes(size), b"\xff" * size, b"\x7f" + b"\xff" * (size - 1), bytes(size)])
            payload += (size << 12 | rng.randrange(340)).to_bytes(2, "little") + value
        payloads.append(payload)
    rows = rows_by_seq(decode_signals(frames_batch([(130_824, 3, payload) for payload in payloads])).signals)
    numbers = 0
    for seq, payload in enumerate(payloads, 1):
        ours = {row["signal"]: row for row in rows[seq]}
        for (place, number), (value, _) in theirs(variant, payload).items():
            if place != 5:
                continue
            row = ours.get(f"b_g_key_value_data.value.{number}")
            context = f"seed {SEED}: {payload.hex()} set {number}: package {value!r}, we {row}"
            if value is None:
                assert row is None, context
                continue
            assert row is not None, context
            if isinstance(value, int | float):
                assert row["value"] == pytest.approx(value, rel=1e-9, abs=1e-12), context
                numbers += 1
            else:
                assert row["text"] == (value.hex() if isinstance(value, bytes) else value), context
    assert numbers > 500


def test_known_keys_have_numbers_of_every_size_that_the_bus_carries() -> None:
    (variant,) = (one for one, _ in key_value_variants() if one.id == "bGKeyValueData")
    roll_rate = value_layout(variant, 5, 60, 4)
    assert roll_rate is not None
    assert roll_rate.signed
    assert roll_rate.scale == pytest.approx(3.125e-8)
    assert value_layout(variant, 5, 4_000, 2) is None, "nobody knows the key"
    unknown = told_value(variant, 5, 4_000, b"\1\2")
    assert (unknown.text, unknown.is_opaque) == ("0102", True)


def test_a_value_that_is_cut_off_stays_bytes_and_is_counted() -> None:
    cut = bytes.fromhex("7d993c4021c8")
    decoded = decode_signals(frames_batch([(130_824, 3, cut)]))
    values = [row for row in rows_by_seq(decoded.signals)[1] if ".value." in row["signal"]]
    assert [(row["value"], row["text"]) for row in values] == [(None, "21c8")]
    assert [(one.reason, one.frames) for one in decoded.undecoded] == [("variable", 1)]


def test_a_command_has_all_its_parameters_with_values_and_units() -> None:
    # Engine 1 to 2500 rpm, and the priority left as it is.
    command = bytes.fromhex("0100f201f802010102") + (10_000).to_bytes(2, "little")
    decoded = decode_signals(frames_batch([(126_208, 3, command)]))
    rows = {row["signal"].split(".", 1)[1]: row for row in rows_by_seq(decoded.signals)[1]}
    assert rows["parameter.1"]["value"] == 1
    assert (rows["value.1"]["value"], rows["value.1"]["text"]) == (1, "Dual Engine Starboard")
    assert rows["parameter.2"]["value"] == 2
    assert rows["value.2"]["value"] == pytest.approx(2_500 / 60)
    assert rows["value.2"]["unit"] == "Hz"
    assert decoded.undecoded == []


def test_every_field_of_every_pgn_can_be_commanded() -> None:
    rng = random.Random(SEED)
    frames, wanted = [], []
    for info in database().pgns():
        variants = database().pgn_variants(info.pgn)
        if len(variants) != 1 or info.pgn > 0x1FFFF or info.id.startswith("0x"):
            continue
        repeated = {place for first, count, _ in info.repeating_sets for place in range(first, first + count)}
        for place, item in enumerate(info.fields):
            if item.bit_length is None or item.field_type in ("RESERVED", "SPARE") or place in repeated:
                continue
            raw = rng.getrandbits(item.bit_length).to_bytes(-(-item.bit_length // 8), "little")
            head = bytes([COMMAND]) + info.pgn.to_bytes(3, "little") + b"\xf8\x01"
            frames.append((126_208, 3, head + bytes([place + 1]) + raw))
            wanted.append((info, item))
    assert len(frames) > 1_000
    decoded = decode_signals(frames_batch(frames))
    rows = rows_by_seq(decoded.signals)
    (variant,) = (one for one in layouts_of(126_208).variants if one.id == "nmeaCommandGroupFunction")
    for seq, ((_, _, payload), (info, item)) in enumerate(zip(frames, wanted, strict=True), 1):
        ours = {row["signal"].split(".", 1)[1]: row for row in rows[seq]}
        assert ours["parameter.1"]["value"] == payload[6]
        value, raw = theirs(variant, payload).get((6, 1), (None, None))
        row = ours.get("value.1")
        context = f"seed {SEED}: {info.pgn} {item.id} {payload.hex()}: package {value!r} {raw!r}, we {row}"
        if value is None:
            assert row is None, context
            continue
        assert row is not None, context
        assert row["unit"] == item.unit, context
        if isinstance(value, str):
            assert (row["text"] or "") == value, context
        elif isinstance(value, int | float):
            assert row["value"] == pytest.approx(value), context


def test_answers_are_asked_for_once() -> None:
    (variant,) = (one for one in layouts_of(126_208).variants if one.id == "nmeaCommandGroupFunction")
    payload = bytes.fromhex("0100f201f802010102") + (10_000).to_bytes(2, "little")
    assert told_fields(variant, payload, 5) is told_fields(variant, payload, 5)
