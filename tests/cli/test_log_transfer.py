"""`tidelog log dump`, `import` and `export`: frames in, frames out, and what was left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import CAPTURES, LINEAGE, START_US, Tidelog, frames, make_log, needs_captures
from tests.odd_lpj import write_odd_lpj
from tidelog.blocks.control import LineageOpened, encode_control
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.lpj import LpjDevice
from tidelog.blocks.messages import Message, encode_messages
from tidelog.cli.log.dump import run_dump
from tidelog.compat.lpj import CompressionName, LpjReader, LpjWriter
from tidelog.sim.uplink.lplex_blocks import overwritten_lpj_block
from tidelog.storage.log.recovery import open_log
from tidelog.storage.os_disk import OsDisk


def data_of(rows: list[dict[str, object]]) -> list[tuple[object, ...]]:
    """What must survive any round trip."""
    return [tuple(row[name] for name in ("ts", "prio", "pgn", "src", "dst", "data")) for row in rows]


def without_lineage(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Every import makes a lineage of its own."""
    return [{name: value for name, value in row.items() if name != "lineage"} for row in rows]


def write_lpj(path: Path, *, compression: CompressionName = "zstd") -> None:
    with LpjWriter(path, block_size=4096, compression=compression) as writer:
        writer.set_devices([LpjDevice(source=3, name=77, model_id=b"sounder")])
        writer.append(frames(1000), first_seq=500)
        writer.append(frames(700, first=1000), first_seq=9000)


# --- dump ----------------------------------------------------------------------------------------


def test_dump_has_the_keys_of_lplex_and_the_offset(tidelog: Tidelog, tmp_path: Path) -> None:
    make_log(tmp_path / "log")
    rows = tidelog("log", "dump", tmp_path / "log").rows
    assert list(rows[0]) == ["offset", "seq", "ts", "prio", "pgn", "src", "dst", "data", "lineage"]
    assert rows[9] == {
        "offset": 9,
        "seq": 10,
        "ts": "2023-11-14T22:13:20.009000Z",
        "prio": 2,
        "pgn": 129026,
        "src": 2,
        "dst": 255,
        "data": "",
        "lineage": LINEAGE.hex(),
    }
    assert [row["offset"] for row in rows] == list(range(480))


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (["--from", "100"], range(100, 480)),
        (["--to", "45"], range(45)),
        (["--from", "79", "--to", "81"], range(79, 81)),
        (["--from", "2023-11-14T22:13:20.100Z"], range(100, 480)),
        (["--to", "2023-11-14T22:13:20.100Z"], range(100)),
        (["--from", "7", "--to", "2023-11-14T22:13:20.100Z"], range(7, 100)),
        (["--from", "5", "--limit", "3"], range(5, 8)),
        (["--from", "100000"], range(0)),
    ],
)
def test_dump_by_offset_and_time(tidelog: Tidelog, tmp_path: Path, bounds: list[str], expected: range) -> None:
    make_log(tmp_path / "log")
    assert [row["offset"] for row in tidelog("log", "dump", tmp_path / "log", *bounds).rows] == list(expected)


def test_a_bound_that_is_neither_is_one_sentence(tidelog: Tidelog, tmp_path: Path) -> None:
    make_log(tmp_path / "log")
    assert "'yesterday' is not a time" in tidelog("log", "dump", tmp_path / "log", "--from", "yesterday", code=2).err


def test_dump_of_messages_and_control_records(tidelog: Tidelog, tmp_path: Path) -> None:
    log = open_log(OsDisk(tmp_path), "log", now_us=START_US)
    messages = [
        Message(time_us=START_US, key=b"wind", value="7 m/s \u2191".encode(), headers=[("unit", b"\xff")]),
        Message(time_us=START_US, key=None, value=b"\xfe\xff"),
    ]
    log.append(encode_messages(messages, base_seq=4, producer=LINEAGE), now_us=START_US)
    log.append(encode_control([LineageOpened(lineage="ab", reason="new")], time_us=START_US), now_us=START_US)
    log.close(START_US)
    first, second, third = tidelog("log", "dump", tmp_path / "log").rows
    assert (first["seq"], first["key"], first["value"]) == (4, "wind", "7 m/s \u2191")
    assert first["headers"] == [{"name": "unit", "value_base64": "/w=="}]
    assert (second["key"], second["value_base64"]) == (None, "/v8=")
    assert (third["offset"], third["control"], third["record"]["lineage"]) == (2, "lineage-opened", "ab")


def test_dump_on_a_terminal_is_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_log(tmp_path / "log")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run_dump(str(tmp_path / "log"), channel=None, start=None, end=None, limit=3, as_json=False) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["offset", "lineage", "seq", "time", "prio", "pgn", "src", "dst", "data"]
    assert [row.split()[0] for row in rows] == ["0", "1", "2"]
    assert {row.split()[1] for row in rows} == {LINEAGE.hex()[:8]}


# --- import and export ---------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".lpj", ".raw", ".log"])
def test_round_trip_through_every_format(tidelog: Tidelog, tmp_path: Path, suffix: str) -> None:
    make_log(tmp_path / "log")
    target = tmp_path / f"out{suffix}"
    assert tidelog("log", "export", tmp_path / "log", target, "--json").json["frames"] == 480
    result = tidelog("log", "import", target, tmp_path / "again", "--json").json
    assert (result["frames"], result["skipped"]) == (480, {})
    tidelog("log", "verify", tmp_path / "again", "--deep")
    before, after = (tidelog("log", "dump", tmp_path / name).rows for name in ("log", "again"))
    assert data_of(before) == data_of(after)
    assert [row["seq"] for row in after] == list(range(1, 481))


@pytest.mark.parametrize("compression", ["none", "zstd", "zstd-dict"])
def test_lplex_blocks_come_out_as_they_went_in(tidelog: Tidelog, tmp_path: Path, compression: CompressionName) -> None:
    write_lpj(tmp_path / "boat.lpj", compression=compression)
    tidelog("log", "import", tmp_path / "boat.lpj", tmp_path / "log")
    rows = tidelog("log", "dump", tmp_path / "log").rows
    assert [row["seq"] for row in rows] == [*range(500, 1500), *range(9000, 9700)]
    result = tidelog("log", "export", tmp_path / "log", tmp_path / "copy.lpj", "--json").json
    assert result["unchanged"]
    assert (tmp_path / "copy.lpj").read_bytes() == (tmp_path / "boat.lpj").read_bytes()


def test_reencoding_keeps_frames_and_seqs(tidelog: Tidelog, tmp_path: Path) -> None:
    write_lpj(tmp_path / "boat.lpj")
    tidelog("log", "import", tmp_path / "boat.lpj", tmp_path / "log", "--reencode")
    blocks = tidelog("log", "inspect", tmp_path / "log", "--json").json["streams"][0]["block_list"]
    assert [(block["kind"], block["records"]) for block in blocks] == [("frames", 1000), ("frames", 700)]
    tidelog("log", "export", tmp_path / "log", tmp_path / "copy.lpj")
    lpj, log, copy = (tidelog("log", "dump", tmp_path / name).rows for name in ("boat.lpj", "log", "copy.lpj"))
    assert without_lineage(lpj) == without_lineage(log) == without_lineage(copy)
    assert [row["lineage"] for row in lpj] == [None] * len(lpj), "an .lpj file knows none"


def test_reencoding_cuts_blocks_of_16384_frames(tidelog: Tidelog, tmp_path: Path) -> None:
    with LpjWriter(tmp_path / "boat.lpj", block_size=65536) as writer:
        writer.append(frames(40_000), first_seq=3)
    tidelog("log", "import", tmp_path / "boat.lpj", tmp_path / "log", "--reencode")
    blocks = tidelog("log", "inspect", tmp_path / "log", "--json").json["streams"][0]["block_list"]
    assert [block["records"] for block in blocks] == [16_384, 16_384, 7_232]
    assert [block["first_seq"] for block in blocks] == [3, 16_387, 32_771]


def test_mixed_blocks_are_encoded_anew(tidelog: Tidelog, tmp_path: Path) -> None:
    write_lpj(tmp_path / "boat.lpj")
    tidelog("log", "import", tmp_path / "boat.lpj", tmp_path / "log")
    (tmp_path / "two.log").write_text("(1700000000.000000) can0 09F80203#0102\n")
    tidelog("log", "import", tmp_path / "two.log", tmp_path / "log", "--append")
    result = tidelog("log", "export", tmp_path / "log", tmp_path / "all.lpj", "--json").json
    assert (result["unchanged"], result["frames"], result["lineages"]) == (False, 1701, 2)
    rows = tidelog("log", "dump", tmp_path / "log").rows
    assert data_of(tidelog("log", "dump", tmp_path / "all.lpj").rows) == data_of(rows)


def test_import_says_what_it_skipped(tidelog: Tidelog, tmp_path: Path) -> None:
    lines = ["(1.0) can0 09F80200#01", "(1.0) can0 123#01", "nonsense", "(2.0) can0 09F80200#02"]
    (tmp_path / "bus.log").write_text("\n".join(lines) + "\n")
    result = tidelog("log", "import", tmp_path / "bus.log", tmp_path / "log", "--json").json
    assert (result["frames"], result["skipped"]) == (2, {"standard_id": 1, "malformed": 1})
    assert result["first_skipped"]["malformed"] == "line 3"
    assert "line 3" in tidelog("log", "import", tmp_path / "bus.log", tmp_path / "strict", "--strict", code=2).err
    assert not (tmp_path / "strict").exists()


def test_import_of_a_damaged_journal_takes_the_rest(tidelog: Tidelog, tmp_path: Path) -> None:
    write_lpj(tmp_path / "boat.lpj")
    with LpjReader(tmp_path / "boat.lpj") as reader:
        victim = reader.block_at(1)
    data = bytearray((tmp_path / "boat.lpj").read_bytes())
    data[victim.position + 60] ^= 1
    (tmp_path / "boat.lpj").write_bytes(data)
    result = tidelog("log", "import", tmp_path / "boat.lpj", tmp_path / "log", "--json").json
    assert 0 < result["frames"] < 1700
    assert any("damaged block" in reason for reason in result["skipped"])
    dumped = tidelog("log", "dump", tmp_path / "boat.lpj", code=1)
    assert len(dumped.rows) == result["frames"]
    tidelog("log", "import", tmp_path / "boat.lpj", tmp_path / "other", "--strict", code=2)


@pytest.mark.parametrize("options", [[], ["--reencode"]])
def test_import_keeps_the_good_records_of_a_block_with_a_bad_one(
    tidelog: Tidelog, tmp_path: Path, options: list[str]
) -> None:
    """lplex can write a device entry over the last record of a block: good checksum, one bad record."""
    with LpjWriter(tmp_path / "boat.lpj", block_size=4096, compression="none") as writer:
        writer.append(frames(100), first_seq=1)
        writer.append(frames(100, first=100), first_seq=201)
    data = bytearray((tmp_path / "boat.lpj").read_bytes())
    data[16 : 16 + 4096] = overwritten_lpj_block(frames(100), base_seq=1, block_size=4096, records=2)
    (tmp_path / "boat.lpj").write_bytes(data)
    result = tidelog("log", "import", tmp_path / "boat.lpj", tmp_path / "log", "--json", *options).json
    assert result["frames"] == 198
    assert [reason for reason in result["skipped"] if "record 98 of 100" in reason]
    assert sum(result["skipped"].values()) == 2
    seqs = [row["seq"] for row in tidelog("log", "dump", tmp_path / "log").rows if "seq" in row]
    assert sorted(seqs) == [*range(1, 99), *range(201, 301)]
    assert result["end"] == 199, "the log says what is lost, in a record of its own"
    assert "record 98" in tidelog("log", "import", tmp_path / "boat.lpj", tmp_path / "no", "--strict", code=2).err


@pytest.mark.parametrize("options", [[], ["--reencode"]])
def test_import_says_what_a_block_of_nothing_but_bad_records_should_have_held(
    tidelog: Tidelog, tmp_path: Path, options: list[str]
) -> None:
    write_odd_lpj(tmp_path / "boat.lpj", records=1, bad_records=1)
    result = tidelog("log", "import", tmp_path / "boat.lpj", tmp_path / "log", "--json", *options).json
    assert (result["frames"], sum(result["skipped"].values())) == (100, 1)
    (lost,) = [row["record"] for row in tidelog("log", "dump", tmp_path / "log").rows if "record" in row]
    assert (lost["start"], lost["end"]) == (1, 2)


@pytest.mark.parametrize(("records", "bad"), [(100, 2), (1, 1)])
def test_dump_export_and_verify_take_the_good_records_of_an_odd_block_and_say_so(
    tidelog: Tidelog, tmp_path: Path, records: int, bad: int
) -> None:
    path = tmp_path / "boat.lpj"
    write_odd_lpj(path, records=records, bad_records=bad)
    good = records - bad
    seqs = [*range(1, good + 1), *range(201, 301)]
    dumped = tidelog("log", "dump", path, code=1)
    assert [row["seq"] for row in dumped.rows] == seqs
    assert [row["offset"] for row in dumped.rows] == list(range(len(seqs)))
    assert f"record {good} of {records}" in dumped.err
    exported = tidelog("log", "export", path, tmp_path / "out.lpj", "--json", code=1)
    assert (exported.json["frames"], exported.json["damaged"]) == (len(seqs), 1)
    assert [row["seq"] for row in tidelog("log", "dump", tmp_path / "out.lpj").rows] == seqs
    assert f"record {good} of {records}" in tidelog("log", "verify", path, code=1).out


def test_import_leaves_a_filled_folder_alone(tidelog: Tidelog, tmp_path: Path) -> None:
    (tmp_path / "bus.log").write_text("(1.0) can0 09F80200#01\n")
    make_log(tmp_path / "log")
    assert "not empty" in tidelog("log", "import", tmp_path / "bus.log", tmp_path / "log", code=2).err
    result = tidelog("log", "import", tmp_path / "bus.log", tmp_path / "log", "--append", "--json").json
    assert (result["start"], result["end"]) == (480, 481)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").touch()
    tidelog("log", "import", tmp_path / "bus.log", tmp_path / "other", "--append", code=2)
    assert "this is a file" in tidelog("log", "import", tmp_path / "bus.log", tmp_path / "bus.log", code=2).err


def test_a_failed_append_takes_everything_back(tidelog: Tidelog, tmp_path: Path) -> None:
    make_log(tmp_path / "log")
    lines = "(1.0) can0 09F80200#01\n" * 40_000 + "nonsense\n"
    (tmp_path / "bus.log").write_text(lines)
    tidelog("log", "import", tmp_path / "bus.log", tmp_path / "log", "--append", "--strict", code=2)
    assert len(tidelog("log", "dump", tmp_path / "log").rows) == 480
    tidelog("log", "verify", tmp_path / "log")


def test_import_of_what_it_does_not_know(tidelog: Tidelog, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello\n")
    assert "--format" in tidelog("log", "import", tmp_path / "notes.txt", tmp_path / "log", code=2).err
    assert "no such file" in tidelog("log", "import", tmp_path / "nowhere", tmp_path / "log", code=2).err
    assert not (tmp_path / "log").exists()


def test_export_that_cannot_be_written(tidelog: Tidelog, tmp_path: Path) -> None:
    log = open_log(OsDisk(tmp_path), "log", now_us=START_US)
    long = frames(1).from_rows([(START_US, 0x09F8_0200, bytes(20))])
    log.append(encode_frames(long, base_seq=1, producer=LINEAGE), now_us=START_US)
    log.close(START_US)
    assert "no CAN frame" in tidelog("log", "export", tmp_path / "log", tmp_path / "out.log", code=2).err
    assert not (tmp_path / "out.log").exists()
    assert "--format" in tidelog("log", "export", tmp_path / "log", tmp_path / "out.xyz", code=2).err
    (tmp_path / "there.raw").touch()
    assert "exists" in tidelog("log", "export", tmp_path / "log", tmp_path / "there.raw", code=2).err


@needs_captures
@pytest.mark.parametrize("name", ["susteranna-actisense-serial.raw", "candumpSample1.txt"])
def test_real_captures_make_the_round_trip(tidelog: Tidelog, tmp_path: Path, name: str) -> None:
    tidelog("log", "import", CAPTURES / name, tmp_path / "one")
    target = tmp_path / ("out.raw" if name.endswith(".raw") else "out.log")
    tidelog("log", "export", tmp_path / "one", target)
    tidelog("log", "export", tmp_path / "one", tmp_path / "out.lpj")
    tidelog("log", "import", target, tmp_path / "two")
    tidelog("log", "import", tmp_path / "out.lpj", tmp_path / "three")
    one, two, three = (tidelog("log", "dump", tmp_path / folder).rows for folder in ("one", "two", "three"))
    assert without_lineage(one) == without_lineage(two) == without_lineage(three)
