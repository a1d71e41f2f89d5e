"""The device registry: who is on the bus, told from claims, labels and plain traffic."""

from __future__ import annotations

import gzip
import json
import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.edge.bus_frames import Row, can_id, capture_path
from tidelog.blocks.columns import FrameColumns
from tidelog.compat.captures import read_canboat_raw
from tidelog.edge.sources.voyage import Voyage
from tidelog.nmea.devices import SOURCES_MAX, Device, DeviceRegistry, Name, Product, introductions, manufacturer_name

START_US = 1_700_000_000_000_000
GARMIN = Name(1234, 229, 3, 145, 60, 4)
LABEL = Product(4321, "GPS 19x", "5.30", "1", "SN-77")


def claim(source: int, name: Name, time_us: int = START_US) -> Row:
    return time_us, can_id(60928, source, priority=6), name.to_int().to_bytes(8, "little")


def label(source: int, product: Product, time_us: int = START_US) -> Row:
    return time_us, can_id(126996, source, priority=6), product.to_payload()


def plain(source: int, time_us: int = START_US, size: int = 8) -> Row:
    return time_us, can_id(127250, source), bytes(size)


def fold(*rows: Row) -> DeviceRegistry:
    registry = DeviceRegistry()
    registry.receive(FrameColumns.from_rows(rows))
    return registry


def device_at(registry: DeviceRegistry, source: int) -> Device:
    device = registry.get(source)
    assert device is not None
    return device


@given(
    st.builds(
        Name,
        st.integers(0, 2**21 - 1),
        st.integers(0, 2**11 - 1),
        st.integers(0, 255),
        st.integers(0, 255),
        st.integers(0, 127),
        st.integers(0, 7),
    )
)
def test_a_name_survives_its_64_bits(name: Name) -> None:
    assert Name.from_int(name.to_int()) == name


@given(st.builds(Product, st.integers(0, 65535), *[st.from_regex(r"[!-~]{0,24}", fullmatch=True)] * 4))
def test_a_label_survives_its_134_bytes(product: Product) -> None:
    payload = product.to_payload()
    assert len(payload) == 134
    assert Product.from_payload(payload) == product


def test_strings_lose_their_padding_and_what_lies_behind_it() -> None:
    payload = bytearray(LABEL.to_payload())
    payload[4:36] = b" Chart plotter \0garbage".ljust(32, b"\x20")
    payload[36:76] = b"\xff" * 40
    payload[76:100] = b" " * 24
    assert Product.from_payload(bytes(payload)) == Product(4321, "Chart plotter", "", "", "SN-77")


def test_the_json_has_the_keys_of_lplex_in_order() -> None:
    registry = fold(plain(7), claim(7, GARMIN), label(7, LABEL), plain(7, START_US + 1_500_000, size=3))
    assert list(device_at(registry, 7).to_json().items()) == [
        ("src", 7),
        ("name", f"{GARMIN.to_int():016x}"),
        ("manufacturer", "Garmin"),
        ("manufacturer_code", 229),
        ("device_class", 60),
        ("device_function", 145),
        ("device_instance", 3),
        ("unique_number", 1234),
        ("model_id", "GPS 19x"),
        ("software_version", "5.30"),
        ("model_version", "1"),
        ("model_serial", "SN-77"),
        ("product_code", 4321),
        ("first_seen", "2023-11-14T22:13:20Z"),
        ("last_seen", "2023-11-14T22:13:21.5Z"),
        ("packet_count", 4),
        ("byte_count", 8 + 8 + 134 + 3),
    ]


def test_what_is_zero_is_left_out() -> None:
    fields = device_at(fold(plain(7)), 7).to_json()
    optional = {"unique_number", "model_id", "software_version", "model_version", "model_serial", "product_code"}
    assert not optional & set(fields)
    assert fields["name"] == "0" * 16
    assert fields["device_instance"] == 0


def test_an_unknown_manufacturer_is_shown_by_number() -> None:
    assert manufacturer_name(2047) == "Unknown (2047)"


def test_a_new_name_on_a_source_replaces_the_device() -> None:
    other = GARMIN._replace(unique_number=99)
    rows = [claim(7, GARMIN), label(7, LABEL), plain(7), claim(7, other, START_US + 9), plain(7, START_US + 10)]
    device = device_at(fold(*rows), 7)
    assert device.name == other.to_int()
    assert device.product == Product()
    assert (device.first_seen_us, device.packet_count) == (START_US + 9, 2)


def test_a_name_that_moves_takes_its_label_along() -> None:
    registry = fold(claim(7, GARMIN), label(7, LABEL))
    changes = registry.receive(FrameColumns.from_rows([claim(8, GARMIN, START_US + 5)]))
    assert [(change.source, change.device is None) for change in changes] == [(7, True), (8, False)]
    assert registry.get(7) is None
    assert device_at(registry, 8).product == LABEL


def test_only_news_are_changes() -> None:
    registry = DeviceRegistry()
    rows = FrameColumns.from_rows([claim(7, GARMIN), label(7, LABEL), plain(7)])
    assert [change.source for change in registry.receive(rows)] == [7, 7]
    assert registry.receive(rows) == []
    assert registry.receive(FrameColumns.from_rows([])) == []


def test_silent_devices_are_forgotten() -> None:
    registry = fold(plain(7), plain(8, START_US + 100))
    changes = registry.forget_idle(START_US + 150, 100)
    assert [(change.source, change.device) for change in changes] == [(7, None)]
    assert [device.source for device in registry.devices()] == [8]


hostile = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.one_of(st.integers(0, 2**32 - 1), st.builds(can_id, st.sampled_from([60928, 126996]), st.integers(0, 255))),
    st.one_of(st.binary(max_size=20), st.binary(min_size=134, max_size=140)),
)


@given(st.lists(hostile, max_size=40))
def test_no_frame_raises_and_sources_are_bounded(rows: list[Row]) -> None:
    registry = DeviceRegistry()
    registry.receive(FrameColumns.from_rows(rows))
    assert all(device.source < SOURCES_MAX for device in registry.devices())
    json.dumps([device.to_json() for device in registry.devices()])
    assert sum(device.packet_count for device in registry.devices()) <= len(rows)


def test_256_sources_make_252_devices() -> None:
    registry = fold(*(claim(source, GARMIN._replace(unique_number=source + 1)) for source in range(256)))
    assert len(registry) == SOURCES_MAX


@given(cut=st.lists(st.integers(0, 400), max_size=6), seed=st.integers(0, 50))
def test_how_frames_are_cut_into_batches_does_not_matter(cut: list[int], seed: int) -> None:
    rng = random.Random(seed)
    rows = []
    for place in range(400):
        source, time_us = rng.randrange(5), START_US + place
        name = GARMIN._replace(unique_number=rng.randrange(1, 4))
        kinds = [plain(source, time_us), claim(source, name, time_us), label(source, LABEL, time_us)]
        rows.append(rng.choice(kinds))
    whole, parts = fold(*rows), DeviceRegistry()
    edges = [0, *sorted(cut), len(rows)]
    for start, end in pairwise(edges):
        parts.receive(FrameColumns.from_rows(rows[start:end]))
    assert parts.devices() == whole.devices()


def test_the_voyage_introduces_its_devices_every_minute() -> None:
    voyage = Voyage(seed=3, start_us=START_US)
    registry = DeviceRegistry()
    registry.receive(voyage.frames(START_US, START_US + 1_000_000))
    assert len(registry) == 7
    assert all(device.name and device.product.model_id for device in registry.devices())
    frames = voyage.frames(START_US, START_US + 180_000_000, frames_per_s=50)
    claims = [time_us for time_us, identifier, _ in frames.rows() if identifier == can_id(60928, 3, priority=6)]
    assert claims == [START_US, START_US + 60_000_000, START_US + 120_000_000]


def test_introductions_are_what_the_registry_reads() -> None:
    rows = [(START_US, identifier, payload) for identifier, payload in introductions([(7, GARMIN, LABEL)])]
    device = device_at(fold(*rows), 7)
    assert (device.name, device.product) == (GARMIN.to_int(), LABEL)


def test_claims_of_a_real_capture_say_what_canboat_says() -> None:
    expected = {}
    with gzip.open(capture_path("susteranna.decoded.jsonl.gz"), "rt") as lines:
        for line in lines:
            message = json.loads(line)
            if message.get("pgn") == 60928:
                fields = message["fields"]
                maker = str(fields["Manufacturer Code"]).replace(" ", "")
                expected[message["src"]] = (fields["Unique Number"], maker)
    registry = DeviceRegistry()
    for chunk in read_canboat_raw(capture_path("susteranna-actisense-serial.raw"), on_malformed="skip"):
        registry.receive(chunk)
    got = {
        device.source: (Name.from_int(device.name).unique_number, device.to_json()["manufacturer"])
        for device in registry.devices()
        if device.name
    }
    assert expected
    assert got == expected
