"""The long table: order, counts, names and what is passed on."""

from __future__ import annotations

import datetime as dt
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tests.signals.frames_kit import START_US, frames_batch, rows_by_seq
from tidelog.signals.decode import Undecoded, decode_signals
from tidelog.signals.rows import SIGNALS_SCHEMA, plain

pytest.importorskip("nmea2000", reason="signals need the `spark` extra (nmea2000)")

WIND = bytes.fromhex("2c0f0164 75fa ffff".replace(" ", ""))
HEADING = bytes.fromhex("ff2bc2ff7fff7ffd")
ENGINE_0, ENGINE_1 = bytes.fromhex("00920cffff7fffff"), bytes.fromhex("01920cffff7fffff")


def test_rows_come_by_pgn_and_field_and_then_by_frame() -> None:
    decoded = decode_signals(frames_batch([(127250, 15, HEADING), (130306, 20, WIND), (127250, 15, HEADING)]))
    assert [(row["seq"], row["signal"]) for row in plain(decoded.signals).to_pylist()] == [
        (1, "vessel_heading.heading"),
        (3, "vessel_heading.heading"),
        (1, "vessel_heading.reference"),
        (3, "vessel_heading.reference"),
        (2, "wind_data.sid"),
        (2, "wind_data.wind_speed"),
        (2, "wind_data.wind_angle"),
        (2, "wind_data.reference"),
    ]


def test_a_row_says_value_unit_and_text() -> None:
    rows = rows_by_seq(decode_signals(frames_batch([(130306, 20, WIND)])).signals)[1]
    speed, reference = rows[1], rows[3]
    assert (speed["value"], speed["unit"], speed["text"]) == (2.71, "m/s", None)
    assert (reference["value"], reference["unit"], reference["text"]) == (2.0, None, "Apparent")
    assert speed["time"] == dt.datetime.fromtimestamp(START_US / 1e6, dt.UTC)
    assert (speed["source"], speed["pgn"], speed["instance"], speed["device"]) == (20, 130306, None, None)


def test_two_engines_are_told_apart_by_instance() -> None:
    rows = rows_by_seq(decode_signals(frames_batch([(127488, 1, ENGINE_0), (127488, 1, ENGINE_1)])).signals)
    assert {row["instance"] for row in rows[1]} == {0}
    assert {row["instance"] for row in rows[2]} == {1}


def test_plain_signals_have_the_tables_schema() -> None:
    decoded = decode_signals(frames_batch([(130306, 20, WIND)]))
    assert plain(decoded.signals).schema == SIGNALS_SCHEMA
    empty = decode_signals(frames_batch([]))
    assert plain(empty.signals).schema == SIGNALS_SCHEMA
    assert (empty.frames, empty.decoded, empty.undecoded) == (0, 0, [])


def test_columns_of_the_batch_are_passed_on() -> None:
    batch = frames_batch([(130306, 20, WIND), (130306, 20, WIND)])
    batch = batch.append_column("channel", pa.array(["boat", "boat"]))
    batch = batch.append_column("device", pa.array([None, "00a1b2c3d4e5f607"]))
    batch = batch.append_column("clock", pa.array(["ok", "gps"]).dictionary_encode())
    place = batch.schema.get_field_index("destination")
    bare = decode_signals(batch.remove_column(place)).signals
    assert bare.column("destination").null_count == bare.num_rows
    batch = batch.set_column(place, "destination", pa.array([255, 35], pa.int16()))
    rows = rows_by_seq(decode_signals(batch).signals)
    assert ({row["destination"] for row in rows[1]}, {row["destination"] for row in rows[2]}) == ({255}, {35})
    assert {(row["channel"], row["lineage"], row["device"], row["clock"]) for row in rows[1]} == {
        ("boat", None, None, "ok")
    }
    assert {(row["device"], row["clock"]) for row in rows[2]} == {("00a1b2c3d4e5f607", "gps")}


def test_a_part_of_a_batch_decodes_as_it_does_alone() -> None:
    frames = [(127250, 15, HEADING), (130306, 20, WIND), (127488, 1, ENGINE_1)]
    part = decode_signals(frames_batch(frames).slice(1, 2))
    alone = [row for row in plain(decode_signals(frames_batch(frames)).signals).to_pylist() if row["seq"] > 1]
    assert plain(part.signals).to_pylist() == alone


def test_what_is_not_understood_is_counted_by_reason() -> None:
    frames = [
        (126_990, 1, bytes(8)),  # nobody knows it
        (130306, 1, b""),
        (65280, 1, bytes.fromhex("7d990801000300")),
        (126208, 1, bytes.fromhex("0102fd01f8020234120902")),  # that PGN has no ninth field
        (130306, 1, WIND),
    ]
    decoded = decode_signals(frames_batch(frames))
    assert decoded.undecoded == [
        Undecoded(pgn=65280, reason="proprietary", frames=1),
        Undecoded(pgn=126208, reason="variable", frames=1),
        Undecoded(pgn=126990, reason="unknown_pgn", frames=1),
        Undecoded(pgn=130306, reason="too_short", frames=1),
    ]
    assert (decoded.frames, decoded.decoded) == (5, 1)
    proprietary = rows_by_seq(decoded.signals)[3]
    assert [row["text"] for row in proprietary] == ["B & G", "Marine Industry", "0801000300"]


def test_a_field_that_the_payload_cuts_off_gives_no_row() -> None:
    decoded = decode_signals(frames_batch([(130306, 1, WIND[:4])]))
    assert plain(decoded.signals).column("signal").to_pylist() == ["wind_data.sid", "wind_data.wind_speed"]
    assert decoded.decoded == 1


def test_repeated_sets_are_numbered_from_one() -> None:
    line = bytes.fromhex("05 2c01 8813 e803 8015 00000000 00000000 64".replace(" ", ""))
    rows = rows_by_seq(decode_signals(frames_batch([(127503, 1, b"\0\2" + line + line)])).signals)[1]
    voltages = [row for row in rows if row["signal"].startswith("ac_input_status.voltage")]
    assert [(row["signal"], row["value"]) for row in voltages] == [
        ("ac_input_status.voltage.1", 3.0),
        ("ac_input_status.voltage.2", 3.0),
    ]


def test_texts_of_no_fixed_length_move_what_follows_them() -> None:
    point = b"\1\0" + b"\4\1w1" + (525_500_000).to_bytes(4, "little") + bytes(4)
    payload = bytes.fromhex("000002000100010000") + b"\5\1abc\xff" + point + point
    short = bytes.fromhex("000002000100010000") + b"\2\1\xff" + point
    rows = rows_by_seq(decode_signals(frames_batch([(129285, 1, payload), (129285, 1, short)])).signals)
    name = "navigation_route_wp_information"
    first = {row["signal"]: row for row in rows[1]}
    assert first[f"{name}.route_name"]["text"] == "abc"
    assert first[f"{name}.wp_latitude.2"]["value"] == 52.55
    second = {row["signal"]: row for row in rows[2]}
    assert f"{name}.route_name" not in second
    assert second[f"{name}.wp_name.1"]["text"] == "w1"
    assert f"{name}.wp_name.2" not in second


def test_positions_beyond_the_poles_and_times_beyond_the_day_are_no_values() -> None:
    north = (910_000_000).to_bytes(4, "little") + bytes(4)
    late = bytes.fromhex("00f0aa4a") + (900_000_000).to_bytes(4, "little")
    rows = rows_by_seq(decode_signals(frames_batch([(129025, 1, north), (126992, 1, late)])).signals)
    assert [row["signal"] for row in rows[1]] == ["position_rapid_update.longitude"]
    assert "system_time.time" not in {row["signal"] for row in rows[2]}


def test_equal_batches_give_equal_results_in_threads_too() -> None:
    batch = frames_batch([(127250, 15, HEADING), (130306, 20, WIND), (127488, 1, ENGINE_1)] * 50)
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda _: decode_signals(batch).signals, range(8)))
    assert all(result.equals(results[0]) for result in results)
