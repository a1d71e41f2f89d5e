"""What people write is read as they mean it, and what we print can be read back."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import InvalidConfig
from tidelog.units import (
    GIB,
    KIB,
    MIB,
    US_PER_S,
    format_bytes,
    format_time_us,
    parse_bytes,
    parse_duration_us,
    parse_time_us,
)

TIME_US_MIN = (datetime(1, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
TIME_US_MAX = (datetime.max.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("17b", 17),
        ("64MiB", 64 * MIB),
        ("64m", 64 * MIB),
        ("64M", 64 * MIB),
        ("1k", KIB),
        ("1kb", 1000),
        ("1KiB", KIB),
        ("3mb", 3_000_000),
        ("2g", 2 * GIB),
        ("1.5 GB", 1_500_000_000),
        ("0.5GiB", GIB // 2),
        ("1t", 1024 * GIB),
        ("1 TB", 10**12),
        ("1TiB", 2**40),
        ("  8 KiB ", 8 * KIB),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "duration_us"),
    [
        ("0", 0),
        ("30s", 30 * US_PER_S),
        ("30", 30 * US_PER_S),
        ("500 ms", 500_000),
        ("250us", 250),
        ("0.5s", 500_000),
        ("1.5", 1_500_000),
        ("2m", 120 * US_PER_S),
        ("2h", 7_200 * US_PER_S),
        ("7d", 604_800 * US_PER_S),
        (" 5 S ", 5 * US_PER_S),
        ("1h30m", 5_400 * US_PER_S),
        ("1h2m3.5s", 3_723_500_000),
        ("100\u00b5s", 100),
        ("PT5M", 300 * US_PER_S),
        ("PT1H30M", 5_400 * US_PER_S),
        ("P7D", 604_800 * US_PER_S),
        ("P1W2DT3H4M5S", 788_645 * US_PER_S),
        ("PT0.5S", 500_000),
        ("PT0S", 0),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, duration_us: int) -> None:
    assert parse_duration_us(text) == duration_us


@pytest.mark.parametrize(
    "text", ["P", "PT", "P1Y", "P1M", "PT1.5H", "P1D2", "P1DT", "PT1M1H", "-PT5M", "1h30", "1h 30m", "1h30x", "30m1"]
)
def test_what_is_neither_go_nor_iso_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="is not a duration; write it like 30s, 1h30m or PT1H30M"):
        parse_duration_us(text)


@pytest.mark.parametrize("text", ["", " ", "s", "MiB", "-5s", "+5", "1e3", "1,5", "5.", ".5", "1 2", "0x10", "5\x00"])
def test_what_is_no_number_with_a_unit_is_refused(text: str) -> None:
    for parse in (parse_bytes, parse_duration_us):
        with pytest.raises(InvalidConfig) as caught:
            parse(text)
        assert repr(text) in str(caught.value)
        assert "write it like" in str(caught.value)


@pytest.mark.parametrize("text", ["5s", "5 bytes", "5pib", "5 ki"])
def test_unknown_size_units_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["5 min", "5w", "5k", "5ns"])
def test_unknown_duration_units_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="duration"):
        parse_duration_us(text)


@given(text=st.text(max_size=12))
def test_any_short_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_bytes, parse_duration_us, parse_time_us):
        with suppress(InvalidConfig):
            parse(text)


@given(count=st.integers(0, 2**53))
def test_bare_byte_counts_are_exact(count: int) -> None:
    assert parse_bytes(str(count)) == parse_bytes(f"{count} B") == count


@given(duration_us=st.integers(0, 2**53))
def test_microseconds_are_exact(duration_us: int) -> None:
    assert parse_duration_us(f"{duration_us}us") == duration_us


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (64 * MIB, "64.0 MiB"),
        (5 * GIB, "5.0 GiB"),
        (2048 * GIB, "2.0 TiB"),
        (5_000_000 * GIB, "4882.8 TiB"),
        (-5 * KIB, "-5.0 KiB"),
    ],
)
def test_sizes_are_printed_with_binary_units(count: int, text: str) -> None:
    assert format_bytes(count) == text


@given(count=st.integers(0, 2**60))
def test_a_printed_size_reads_back_to_within_its_last_digit(count: int) -> None:
    text = format_bytes(count)
    unit = parse_bytes("1" + text.split()[1])
    # Half a step of the last printed digit, and one byte for the rounding of the parser.
    assert abs(parse_bytes(text) - count) <= unit / 20 + 1


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("2026-03-06T10:15:30Z", 1_772_792_130_000_000),
        ("2026-03-06 10:15:30", 1_772_792_130_000_000),
        ("2026-03-06T12:15:30+02:00", 1_772_792_130_000_000),
    ],
)
def test_times_are_utc_unless_they_say_otherwise(text: str, time_us: int) -> None:
    assert parse_time_us(text) == time_us


@pytest.mark.parametrize(
    "text", ["", "now", "2026-13-01", "2026-02-30", "10:15:30", "2026-03-06T25:00:00Z", "1772792130"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_time_us(text)
    assert repr(text) in str(caught.value)
    assert "write it like" in str(caught.value)


@given(time_us=st.integers(TIME_US_MIN, TIME_US_MAX))
def test_times_read_back_exactly(time_us: int) -> None:
    text = format_time_us(time_us)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)
    assert parse_time_us(text) == time_us


@given(times_us=st.lists(st.integers(TIME_US_MIN, TIME_US_MAX), min_size=2))
def test_printed_times_sort_as_times_do(times_us: list[int]) -> None:
    assert sorted(map(format_time_us, times_us)) == [format_time_us(time_us) for time_us in sorted(times_us)]


@given(
    time_us=st.integers(TIME_US_MIN + 86_400 * US_PER_S, TIME_US_MAX - 86_400 * US_PER_S),
    offset_min=st.integers(-23 * 60, 23 * 60),
)
def test_a_time_zone_does_not_move_the_moment(time_us: int, offset_min: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_us)
    elsewhere = moment.astimezone(timezone(timedelta(minutes=offset_min)))
    assert parse_time_us(elsewhere.isoformat()) == time_us


@pytest.mark.parametrize("time_us", [TIME_US_MAX + 1, TIME_US_MIN - 1, 10**18, -(10**18), 10**40])
def test_a_time_beyond_the_calendar_is_printed_as_a_number(time_us: int) -> None:
    assert format_time_us(time_us) == f"{time_us}us"
