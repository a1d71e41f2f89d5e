"""candump and canboat captures: parsing, counting what is left out, and writing them back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compat.test_lpj_files import capture_path
from tidelog.blocks.columns import FrameColumns
from tidelog.compat.capture_kinds import sniff
from tidelog.compat.captures import (
    LINE_BYTES_MAX,
    CanIdParts,
    CaptureReader,
    SkipReason,
    can_id_from_parts_scalar,
    parts_from_can_id,
    parts_from_can_id_scalar,
    read_canboat_raw,
    read_candump,
    write_canboat_raw,
    write_candump,
)
from tidelog.compat.lpj import LpjWriter
from tidelog.errors import BadJournalFile, DiskError, InvalidConfig, InvalidRecord, NotALog

Row = tuple[int, int, bytes]

LOG_LINE = "(1436509052.249713) can0 09F8027F#FFFC000000000001"
RAW_LINE = "2016-02-28T19:57:02.364Z,2,127250,7,255,8,ff,10,3b,ff,7f,ce,f5,fc"


def rows_of(reader: CaptureReader) -> list[Row]:
    return [row for chunk in reader for row in chunk.rows()]


def candump_rows(tmp_path: Path, text: str, **options: int) -> list[Row]:
    path = tmp_path / "a.log"
    path.write_text(text)
    return rows_of(read_candump(path, **options))  # type: ignore[arg-type]


def raw_rows(tmp_path: Path, text: str) -> list[Row]:
    path = tmp_path / "a.raw"
    path.write_text(text)
    return rows_of(read_canboat_raw(path))


# --- CAN ids ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("can_id", "parts"),
    [
        (0x09F8027F, CanIdParts(2, 129_026, 0x7F, 255)),
        (0x18EEFF01, CanIdParts(6, 60_928, 1, 255)),  # PDU1: an address claim to everybody
        (0x18EA2301, CanIdParts(6, 59_904, 1, 0x23)),  # PDU1: a request to one
        (0x0DED2301, CanIdParts(3, 0x1ED00, 1, 0x23)),  # PDU1 on data page 1
        (0x18F00001, CanIdParts(6, 0xF000, 1, 255)),  # 240 is the first PDU2 format
        (0x18EFFF01, CanIdParts(6, 0xEF00, 1, 255)),  # 239 the last PDU1 one
        (0x1FFFFFFF, CanIdParts(7, 0x3FFFF, 255, 255)),
        (0, CanIdParts(0, 0, 0, 0)),
    ],
)
def test_can_ids_split_by_the_pdu_rule(can_id: int, parts: CanIdParts) -> None:
    assert parts_from_can_id_scalar(can_id) == parts
    assert can_id_from_parts_scalar(*parts) == can_id


@given(can_ids=st.lists(st.integers(0, 2**29 - 1), max_size=50))
def test_vectors_and_scalars_agree_and_every_id_comes_back(can_ids: list[int]) -> None:
    array = np.array(can_ids, dtype=np.uint32)
    columns = parts_from_can_id(array)
    assert [tuple(map(int, row)) for row in zip(*columns, strict=True)] == [
        tuple(parts_from_can_id_scalar(can_id)) for can_id in can_ids
    ]
    assert [can_id_from_parts_scalar(*parts_from_can_id_scalar(can_id)) for can_id in can_ids] == can_ids


@pytest.mark.parametrize(
    "parts", [(8, 0, 0, 0), (-1, 0, 0, 0), (0, 262_144, 0, 0), (0, 0, 256, 0), (0, 0, 0, 256), (0, 59_905, 0, 0)]
)
def test_parts_that_fit_no_id_are_refused(parts: tuple[int, int, int, int]) -> None:
    with pytest.raises(InvalidRecord):
        can_id_from_parts_scalar(*parts)


def test_the_destination_of_a_broadcast_pgn_is_everybody() -> None:
    assert can_id_from_parts_scalar(2, 127_250, 7, 3) == can_id_from_parts_scalar(2, 127_250, 7, 255)


# --- candump ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (LOG_LINE, (1_436_509_052_249_713, 0x09F8027F, bytes.fromhex("fffc000000000001"))),
        (LOG_LINE + " R", (1_436_509_052_249_713, 0x09F8027F, bytes.fromhex("fffc000000000001"))),
        ("(0000000001.5) vcan1 09f8027f#", (1_500_000, 0x09F8027F, b"")),
        (" (1436509052.249713)  can0  09F8027F   [3]  FF FC 01", (1_436_509_052_249_713, 0x09F8027F, b"\xff\xfc\1")),
        ("  can0  09F8027F   [3]  FF FC 01", (77, 0x09F8027F, b"\xff\xfc\1")),
        ("<0x09f80200> [8] e8 fc 5b 95 01 00 ff ff ", (77, 0x09F80200, bytes.fromhex("e8fc5b950100ffff"))),
        ("<0x09f80200> [0] ", (77, 0x09F80200, b"")),
    ],
)
def test_candump_lines_in_each_spelling(tmp_path: Path, line: str, row: Row) -> None:
    assert candump_rows(tmp_path, f"# a comment\n\n{line}\r\n", untimed_at_us=77) == [row]
    assert sniff(tmp_path / "a.log") == "candump"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("(1.0) can0 123#00", SkipReason.STANDARD_ID),
        ("can0 123 [1] 00", SkipReason.STANDARD_ID),
        ("(1.0) can0 09F8027F#R8", SkipReason.REMOTE_FRAME),
        ("can0 09F8027F [8] remote request", SkipReason.REMOTE_FRAME),
        ("(1.0) can0 09F8027F##1001122", SkipReason.CAN_FD),
        ("(1.0) can0 20000004#0004000000000000", SkipReason.ERROR_FRAME),
    ],
)
def test_frames_that_are_no_nmea_2000_are_counted(tmp_path: Path, line: str, reason: SkipReason) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"{LOG_LINE}\n{line}\n{line}\n")
    reader = read_candump(path)
    assert len(rows_of(reader)) == reader.frame_count == 1
    assert reader.skipped == {reason: 2}
    assert reader.first_skipped == {reason: 2}


BAD_CANDUMP = [
    "hello",
    "(1.0) can0 09F8027F#F",
    "(1.0) can0 09F8027F#000102030405060708",
    "(1.0) can0 09F8027#00",
    "(1.0) can0 49F8027F#00",
    "(1.0) can0 09F8027F#0R",
    "(x) can0 09F8027F#00",
    "<0x09f80200> [8] e8 fc",
    "<0x09f80200> [1] e8 fc",
    "<0x09f80200> [1] zz",
    "\u00e9",
]


@pytest.mark.parametrize("line", BAD_CANDUMP)
def test_a_malformed_candump_line_is_named_or_counted(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"{LOG_LINE}\n{line}\n{LOG_LINE}\n", encoding="utf-8")
    with pytest.raises(BadJournalFile, match="line 2 ") as caught:
        rows_of(read_candump(path))
    assert caught.value.position == len(LOG_LINE) + 1
    reader = read_candump(path, on_malformed="skip")
    assert len(rows_of(reader)) == 2
    assert reader.skipped == {SkipReason.MALFORMED: 1}


def test_an_endless_line_is_malformed_and_not_held(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"{LOG_LINE}\n{'0' * (5 * LINE_BYTES_MAX + 3)}\n{LOG_LINE}\n{'1' * LINE_BYTES_MAX}")
    reader = read_candump(path, on_malformed="skip")
    assert len(rows_of(reader)) == 2
    assert reader.skipped == {SkipReason.MALFORMED: 2}
    assert reader.first_skipped == {SkipReason.MALFORMED: 2}


# --- canboat ---------------------------------------------------------------------------------------------------------

RAW_PAYLOAD = bytes.fromhex("ff103bff7fcef5fc")
RAW_TIME_US = 1_456_689_422_364_000


@pytest.mark.parametrize(
    ("time", "time_us"),
    [
        ("2016-02-28T19:57:02.364Z", RAW_TIME_US),
        ("2016-02-28-19:57:02.364", RAW_TIME_US),
        ("2016-02-28Z19:57:02.364", RAW_TIME_US),
        ("2016-02-28T19:57:02.364001Z", RAW_TIME_US + 1),
        ("2016-02-28-19:57:02", RAW_TIME_US - 364_000),
    ],
)
def test_canboat_times_in_each_spelling(tmp_path: Path, time: str, time_us: int) -> None:
    line = time + RAW_LINE[24:]
    assert raw_rows(tmp_path, line + "\n") == [(time_us, 0x09F11207, RAW_PAYLOAD)]
    assert sniff(tmp_path / "a.raw") == "canboat"


def test_long_and_empty_canboat_payloads(tmp_path: Path) -> None:
    long_line = f"2016-02-28T19:57:02.364Z,6,126996,1,255,1785{',ab' * 1785}\n"
    assert raw_rows(tmp_path, long_line)[0][2] == b"\xab" * 1785
    assert raw_rows(tmp_path, "2016-02-28T19:57:02.364Z,6,59904,1,35,0\n") == [(RAW_TIME_US, 0x18EA2301, b"")]


def test_gateway_reports_beyond_18_bits_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.raw"
    path.write_text(f"{RAW_LINE}\n2016-04-09T16:41:09.078Z,0,262161,0,0,2,01,0e\n{RAW_LINE}\n")
    reader = read_canboat_raw(path)
    assert len(rows_of(reader)) == 2
    assert reader.skipped == {SkipReason.PGN_TOO_LARGE: 1}
    assert reader.first_skipped == {SkipReason.PGN_TOO_LARGE: 2}


@pytest.mark.parametrize(
    "line",
    [
        "hello",
        RAW_LINE[:-3],  # a byte less than announced
        RAW_LINE + ",00",
        RAW_LINE[:-1],
        "2016-02-30T19:57:02.364Z,2,127250,7,255,1,ff",
        "2016-02-28T25:57:02.364Z,2,127250,7,255,1,ff",
        "2016-02-28T19:57:02.364Z,8,127250,7,255,1,ff",
        "2016-02-28T19:57:02.364Z,2,127250,256,255,1,ff",
        "2016-02-28T19:57:02.364Z,2,59905,7,255,1,ff",
        f"2016-02-28T19:57:02.364Z,2,127250,7,255,1786{',ab' * 1786}",
    ],
)
def test_a_malformed_canboat_line_is_named_or_counted(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.raw"
    path.write_text(f"{RAW_LINE}\n{line}\n{RAW_LINE}\n")
    with pytest.raises(BadJournalFile, match="line 2 "):
        rows_of(read_canboat_raw(path))
    reader = read_canboat_raw(path, on_malformed="skip")
    assert len(rows_of(reader)) == 2
    assert reader.skipped == {SkipReason.MALFORMED: 1}


# --- chunks, closing, sniffing ---------------------------------------------------------------------------------------


def test_chunks_have_the_size_asked_for_and_the_reader_can_be_left_early(tmp_path: Path) -> None:
    path = tmp_path / "a.raw"
    path.write_text(f"{RAW_LINE}\n" * 25)
    assert [len(chunk) for chunk in read_canboat_raw(path, chunk_frames=10)] == [10, 10, 5]
    with read_canboat_raw(path, chunk_frames=10) as reader:
        assert len(next(reader)) == 10
    with pytest.raises(StopIteration):
        next(reader)
    with read_canboat_raw(path):
        pass
    with pytest.raises(InvalidConfig):
        read_canboat_raw(path, chunk_frames=0)


def test_sniffing_and_opening_what_is_not_there(tmp_path: Path) -> None:
    for missing in (sniff, read_candump, read_canboat_raw):
        with pytest.raises(NotALog, match="there is no such file"):
            missing(tmp_path / "missing")
    with LpjWriter(tmp_path / "a.lpj"):
        pass
    assert sniff(tmp_path / "a.lpj") == "lpj"
    path = tmp_path / "other"
    for data in (b"", b"# only a comment\n", b"\0\1\2", b"hello\n" + LOG_LINE.encode()):
        path.write_bytes(data)
        assert sniff(path) is None
    path.write_text("interface = can0, family = 29, type = 3, proto = 1\n<0x09f80200> [1] 00 \n")
    assert sniff(path) == "candump"


# --- writing ---------------------------------------------------------------------------------------------------------

frames_of = st.lists(st.tuples(st.integers(0, 2**52), st.integers(0, 2**29 - 1), st.binary(max_size=8)), max_size=30)
messages_of = st.lists(
    st.tuples(st.integers(-(2**52), 2**52), st.integers(0, 2**29 - 1), st.binary(max_size=300)), max_size=30
)


@given(rows=frames_of)
@settings(deadline=None)
def test_candump_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> None:
    path = tmp_path_factory.mktemp("candump") / "a.log"
    frames = FrameColumns.from_rows(rows)
    assert write_candump(path, [frames.slice(0, len(rows) // 2), frames.slice(len(rows) // 2, len(rows))]) == len(rows)
    assert rows_of(read_candump(path, chunk_frames=7)) == rows


@given(rows=messages_of)
@settings(deadline=None)
def test_canboat_round_trip(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> None:
    path = tmp_path_factory.mktemp("canboat") / "a.raw"
    assert write_canboat_raw(path, [FrameColumns.from_rows(rows)]) == len(rows)
    assert rows_of(read_canboat_raw(path)) == rows


def test_written_lines_look_as_their_own_tools_write_them(tmp_path: Path) -> None:
    write_candump(tmp_path / "a.log", [FrameColumns.from_rows([(1_436_509_052_249_713, 0x09F8027F, b"\xff\xfc")])])
    assert (tmp_path / "a.log").read_text() == "(1436509052.249713) can0 09F8027F#FFFC\n"
    write_canboat_raw(tmp_path / "a.raw", [FrameColumns.from_rows([(RAW_TIME_US, 0x09F11207, RAW_PAYLOAD)])])
    assert (tmp_path / "a.raw").read_text() == RAW_LINE + "\n"


@pytest.mark.parametrize(
    ("row", "match"),
    [((1, 1, b"123456789"), r"\.raw or \.lpj"), ((-1, 1, b""), "1970"), ((1, 1 << 29, b""), "29 bits")],
)
def test_what_candump_cannot_hold_is_refused_and_leaves_no_file(tmp_path: Path, row: Row, match: str) -> None:
    good = FrameColumns.from_rows([(1, 1, b"")])
    with pytest.raises(InvalidRecord, match=match):
        write_candump(tmp_path / "a.log", [good, FrameColumns.from_rows([row])])
    assert not (tmp_path / "a.log").exists()


def test_a_time_outside_the_calendar_is_refused_by_canboat(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecord, match="calendar"):
        write_canboat_raw(tmp_path / "a.raw", [FrameColumns.from_rows([(2**62, 1, b"")])])
    with pytest.raises(InvalidConfig):
        write_candump(tmp_path / "a.log", [], interface="can 0")
    assert list(tmp_path.iterdir()) == []


def test_existing_captures_are_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"precious")
    for write in (write_candump, write_canboat_raw):
        with pytest.raises(DiskError, match="not overwritten"):
            write(path, [])
    assert path.read_bytes() == b"precious"


# --- real captures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "lines", "skipped"),
    [("dirona-actisense-serial.raw", 40_000, 130), ("susteranna-actisense-serial.raw", 10_295, 2)],
)
def test_real_canboat_captures_are_read_whole_and_come_back(
    tmp_path: Path, name: str, lines: int, skipped: int
) -> None:
    path = capture_path(name)
    assert sniff(path) == "canboat"
    reader = read_canboat_raw(path)
    frames = FrameColumns.concatenate(list(reader))
    assert len(frames) == reader.frame_count == lines - skipped
    assert reader.skipped == {SkipReason.PGN_TOO_LARGE: skipped}
    write_canboat_raw(tmp_path / "a.raw", [frames])
    assert FrameColumns.concatenate(list(read_canboat_raw(tmp_path / "a.raw"))).equals(frames)
    # Apart from times without a fraction, the lines themselves are the same.
    kept = [line for line in path.read_text().splitlines() if int(line.split(",")[2]) < 2**18 and "T" in line]
    written = set((tmp_path / "a.raw").read_text().splitlines())
    assert set(kept) <= written


def test_the_real_candump_capture_is_read_whole_and_comes_back(tmp_path: Path) -> None:
    path = capture_path("candumpSample1.txt")
    assert sniff(path) == "candump"
    reader = read_candump(path, untimed_at_us=5_000_000)
    frames = FrameColumns.concatenate(list(reader))
    assert reader.skipped == {}
    assert len(frames) == sum(line.startswith("<") for line in path.read_text().splitlines())
    assert set(frames.times_us.tolist()) == {5_000_000}
    write_candump(tmp_path / "a.log", [frames])
    assert FrameColumns.concatenate(list(read_candump(tmp_path / "a.log"))).equals(frames)
