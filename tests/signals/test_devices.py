"""Who sent a frame, by the claims before it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.signals.frames_kit import canboat_batch, capture_path, frames_batch
from tidelog.nmea.devices import Name, Product
from tidelog.signals.devices import DEVICES_SCHEMA, devices

pytest.importorskip("nmea2000", reason="signals need the `spark` extra (nmea2000)")

CLAIM, LABEL, WIND = 60928, 126996, 130306


def name_of(unique: int) -> int:
    name = Name(
        unique_number=unique,
        manufacturer_code=135,
        device_instance=0,
        device_function=130,
        device_class=60,
        industry_group=4,
    )
    return name.to_int()


def claim(source: int, unique: int) -> tuple[int, int, bytes]:
    return CLAIM, source, name_of(unique).to_bytes(8, "little")


def wind(source: int) -> tuple[int, int, bytes]:
    return WIND, source, bytes(8)


def label(source: int, model: str) -> tuple[int, int, bytes]:
    product = Product(product_code=7, model_id=model, software_version="1.2", model_version="A", model_serial="77")
    return LABEL, source, product.to_payload()


def hexes(*uniques: int | None) -> list[str | None]:
    return [None if unique is None else f"{name_of(unique):016x}" for unique in uniques]


def test_a_frame_has_the_name_that_its_source_had_claimed_at_that_point() -> None:
    found = devices(frames_batch([wind(5), claim(5, 1), wind(5), wind(6), claim(5, 2), wind(5)]))
    assert found.device.to_pylist() == hexes(None, 1, 1, None, 2, 2)
    assert found.known == {5: name_of(2)}


def test_seq_counts_and_not_the_order_of_the_batch() -> None:
    batch = frames_batch([wind(5), claim(5, 1), wind(5)])
    turned = batch.take(pa.array([2, 1, 0]))
    assert devices(turned).device.to_pylist() == hexes(1, 1, None)


def test_a_name_that_moves_leaves_its_old_source() -> None:
    found = devices(frames_batch([claim(5, 1), wind(5), claim(6, 1), wind(5), wind(6), claim(5, 1), wind(6), wind(5)]))
    assert found.device.to_pylist() == hexes(1, 1, 1, None, 1, 1, None, 1)
    assert found.known == {5: name_of(1)}


def test_what_was_known_before_the_batch_holds_from_its_first_frame() -> None:
    found = devices(frames_batch([wind(5), claim(6, 1), wind(5), wind(6)]), known={5: name_of(1)})
    assert found.device.to_pylist() == hexes(1, 1, None, 1)


def test_the_table_has_one_row_for_each_device_with_its_label() -> None:
    batch = frames_batch([label(5, "DST810"), claim(5, 1), wind(5), claim(6, 2), wind(9)])
    batch = batch.append_column("channel", pa.array(["boat"] * 5))
    table = devices(batch).table
    assert table.schema == DEVICES_SCHEMA
    first, second = table.to_pylist()
    assert (first["channel"], first["source"], first["name"]) == ("boat", 5, hexes(1)[0])
    assert (first["manufacturer"], first["model"], first["serial"], first["software"]) == (
        "Airmar",
        "DST810",
        "77",
        "1.2",
    )
    assert first["device_function"] == "Bottom Depth"
    times = batch.column("time").to_pylist()
    assert (first["first_time"], first["last_time"]) == (times[1], times[2])
    assert (second["source"], second["model"]) == (6, None)


def test_an_empty_batch_has_no_devices() -> None:
    found = devices(frames_batch([]))
    assert (found.table.num_rows, len(found.device), found.known) == (0, 0, {})


def test_a_real_capture_names_its_devices() -> None:
    batch = canboat_batch(capture_path("dirona-actisense-serial.raw"))
    found = devices(batch)
    assert found.table.num_rows == len(found.known) > 10
    assert found.device.null_count < batch.num_rows / 2
    assert {"Maretron", "Airmar"} & set(found.table.column("manufacturer").to_pylist())
