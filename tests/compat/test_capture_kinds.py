"""Captures of gateways and analysers: one small file of every kind, the same three frames in each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.capture_samples import (
    ALL,
    BINARIES,
    IKONVERT,
    NOON_US,
    PACKETS,
    ROWS,
    TEXTS,
    TRC_1_0,
    TRC_1_1,
    TRC_1_3,
    TRC_2_1,
    YDWG,
    ebl_of_a_gateway,
    kind_of,
    pcap,
    rows_of,
    socketcan,
    written,
)
from tidelog.compat.capture_kinds import holds_messages, open_capture, sniff
from tidelog.compat.captures import Row, SkipReason
from tidelog.edge.sources.replay import ReplayOptions, ReplaySource
from tidelog.errors import BadJournalFile


@pytest.mark.parametrize("name", ALL)
def test_every_kind_is_recognized_and_gives_the_same_frames(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, ALL[name])
    assert sniff(path) == kind_of(name)
    reader = open_capture(path, kind_of(name), chunk_frames=2)
    assert rows_of(reader) == ROWS
    assert set(reader.skipped) <= {SkipReason.OTHER_RECORD}


@pytest.mark.parametrize("name", TEXTS)
def test_a_bad_line_is_named_or_counted_and_comments_of_any_encoding_are_comments(tmp_path: Path, name: str) -> None:
    comment = ";" if name.startswith("trc") else "#"
    lines = [f"{comment} Caf\u00e9, \u5e06\u8239", *TEXTS[name].splitlines()]
    path = written(tmp_path, "\n".join([*lines[:-1], "12:00:00.100 R broken", lines[-1]]))
    if not name.startswith("garmin"):
        assert sniff(path) == kind_of(name)
    with pytest.raises(BadJournalFile, match=f"line {len(lines)} has "):
        rows_of(open_capture(path, kind_of(name)))
    reader = open_capture(path, kind_of(name), on_malformed="skip")
    assert rows_of(reader) == ROWS
    assert reader.skipped == {SkipReason.MALFORMED: 1}
    assert (reader.unit, reader.first_skipped) == ("line", {SkipReason.MALFORMED: len(lines)})


@pytest.mark.parametrize(
    ("kind", "line", "reason"),
    [
        ("ydwg", "12:00:00.100 R 09F50B23 01 02 03 04 05 06 07 08 09", None),
        ("ydwg", "12:61:00.100 R 09F50B23 01", None),
        ("ydwg", "12:00:00.100 R F9F50B23 01", None),
        ("n2k-ascii", "A120000.000 23FF2 1F50B 01E", None),
        ("n2k-ascii", "A120000.000 23FFF 1F50B 01", None),
        ("n2k-ascii", "A120000.000 23FF2 4F50B 01", SkipReason.PGN_TOO_LARGE),
        ("ikonvert", "!PDGY,128267,2,35,255,77.000,Aeg?", None),
        ("ikonvert", "!PDGY,128267,9,35,255,77.000,Aeg=", None),
        ("garmin", "0,486942,128267,Depth,Garmin,35,255,2,1,9,0x01E8030000F4010A", None),
        ("garmin", "0,13_1_2026_12_0_0_1,128267,P,Depth,Garmin,35,255,2,1,1,0x01", None),
        ("trc", "     1)  0  0300 7 00 00 00 00 04 00 00", SkipReason.STANDARD_ID),
        ("trc", "     1)  0  09F50B23 8 RTR", SkipReason.REMOTE_FRAME),
        ("trc", "     1)  0  FFFFFFFF 4 00 00 00 08", SkipReason.OTHER_RECORD),
        ("trc", "     1)  0  09F50B23 8 00", None),
        ("trc", ";$FILEVERSION=7.0", None),
    ],
)
def test_what_is_no_frame_is_counted_by_reason(tmp_path: Path, kind: str, line: str, reason: SkipReason | None) -> None:
    reader = open_capture(written(tmp_path, line), kind, on_malformed="skip")
    assert rows_of(reader) == []
    assert reader.skipped == {reason or SkipReason.MALFORMED: 1}


def test_frames_of_other_kinds_in_a_pcap_are_counted(tmp_path: Path) -> None:
    odd = [
        (0, socketcan(0x123, b"\1", flags=0)),
        (0, socketcan(4, b"", flags=1 << 29)),
        (0, socketcan(0x09F50B23, b"", flags=3 << 30)),
        (0, socketcan(0x09F50B23, b"\0" * 12)),
        (0, b"\x89\xf5\x0b"),
    ]
    reader = open_capture(written(tmp_path, pcap([*odd, *PACKETS])), "pcap", on_malformed="skip")
    assert rows_of(reader) == ROWS
    assert reader.skipped == dict.fromkeys(
        (
            SkipReason.STANDARD_ID,
            SkipReason.ERROR_FRAME,
            SkipReason.REMOTE_FRAME,
            SkipReason.CAN_FD,
            SkipReason.MALFORMED,
        ),
        1,
    )


@pytest.mark.parametrize("name", BINARIES)
def test_a_binary_capture_that_is_cut_anywhere_gives_what_is_before_the_cut(tmp_path: Path, name: str) -> None:
    data = BINARIES[name]
    for cut in range(4, len(data), 3):
        path = written(tmp_path, data[:cut])
        reader = open_capture(path, kind_of(name), on_malformed="skip")
        rows = rows_of(reader)
        assert rows == ROWS[: len(rows)], cut
        assert reader.skipped[SkipReason.MALFORMED] <= 2
    with pytest.raises(BadJournalFile, match="at byte "):
        rows_of(open_capture(written(tmp_path, data[:-3]), kind_of(name)))


def test_a_damaged_message_of_a_gateway_is_left_out_and_the_others_are_not(tmp_path: Path) -> None:
    data = bytearray(ebl_of_a_gateway())
    place = data.index(bytes.fromhex("e8030000f4010a"))
    data[place] ^= 1
    reader = open_capture(written(tmp_path, bytes(data)), "ebl", on_malformed="skip")
    assert rows_of(reader) == ROWS[1:]
    assert reader.skipped == {SkipReason.MALFORMED: 1, SkipReason.OTHER_RECORD: 1}


# --- dates -------------------------------------------------------------------------------------------


def test_a_file_without_any_date_begins_in_1970_or_when_the_caller_says(tmp_path: Path) -> None:
    day_us = 86_400 * 1_000_000
    path = written(tmp_path, "12:00:00.000 R 09F50B23 01\n23:59:59.000 R 09F50B23 02\n00:00:01.000 R 09F50B23 03\n")
    found = [time_us for time_us, _, _ in rows_of(open_capture(path, "ydwg"))]
    assert found == [day_us // 2, day_us - 1_000_000, day_us + 1_000_000]
    given = [time_us for time_us, _, _ in rows_of(open_capture(path, "ydwg", start_us=NOON_US + 5))]
    assert [time_us - NOON_US + day_us // 2 for time_us in given] == found
    path = written(tmp_path, IKONVERT.replace("126992", "126993"))
    assert rows_of(open_capture(path, "ikonvert"))[0][0] == 77_000_000
    assert [row[0] for row in rows_of(open_capture(path, "ikonvert", start_us=NOON_US))] == [row[0] for row in ROWS]


def test_times_of_day_take_their_day_from_the_gps_and_not_its_jitter(tmp_path: Path) -> None:
    late = YDWG.replace("12:00:0", "12:00:3")
    found = rows_of(open_capture(written(tmp_path, late), "ydwg"))
    assert [time_us - row[0] for (time_us, _, _), row in zip(found, ROWS, strict=True)] == [30_000_000] * 3


@pytest.mark.parametrize(
    ("zone", "hours"), [("-07:00", 7), ("+0530", -5.5), ("+02", -2), ("Z", 0), ("", 0), ("-00:30", 0.5)]
)
def test_canboat_times_with_a_zone_are_moved_to_utc(tmp_path: Path, zone: str, hours: float) -> None:
    for separator, comma in (("T", "."), ("-", "."), (" ", ",")):
        line = f"2026-07-01{separator}12:00:00{comma}250{zone},2,128267,35,255,8,01,e8,03,00,00,f4,01,0a\n"
        ((time_us, can_id, payload),) = rows_of(open_capture(written(tmp_path, line), "canboat"))
        assert (time_us, can_id, payload) == (NOON_US + 250_000 + int(hours * 3.6e9), *ROWS[0][1:])


def test_candump_with_dates_and_comments_in_any_encoding(tmp_path: Path) -> None:
    data = "# Caf\u00e9\n (2026-07-01 12:00:00.250000)  can0  09F50B23   [2]  01 E8\n".encode("latin-1")
    path = written(tmp_path, b"\xef\xbb\xbf" + data)
    assert sniff(path) == "candump"
    assert rows_of(open_capture(path, "candump")) == [(NOON_US + 250_000, 0x09F50B23, b"\x01\xe8")]


def test_trc_is_read_as_python_can_reads_it(tmp_path: Path) -> None:
    can = pytest.importorskip("can")
    for text in (TRC_1_0, TRC_1_1, TRC_1_3, TRC_2_1):
        path = tmp_path / "boat.trc"
        path.write_text(text)
        theirs = [(message.arbitration_id, bytes(message.data)) for message in can.TRCReader(str(path))]
        assert [row[1:] for row in rows_of(open_capture(path, "trc"))] == theirs
    path.unlink()
    writer = can.TRCWriter(str(path))
    for time_us, can_id, payload in ROWS:
        writer(can.Message(timestamp=time_us / 1e6, arbitration_id=can_id, is_extended_id=True, data=payload))
    writer.stop()
    assert rows_of(open_capture(path, "trc")) == ROWS


# --- the replay ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_every_kind_can_be_replayed(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, ALL[name])
    source = ReplaySource([str(path)], options=ReplayOptions(speed=0))
    rows: list[Row] = []
    while not source.ended:
        rows += source.read(0).rows()
    assert rows == ROWS
    assert holds_messages(path, kind_of(name)) == (
        kind_of(name) in ("n2k-ascii", "ikonvert", "garmin") or name == "ebl"
    )
