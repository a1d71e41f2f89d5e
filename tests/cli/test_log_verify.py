"""`tidelog log verify` and `inspect`: what is found, where, and that nothing is changed by looking."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests.cli.commands import CAPTURES, LINEAGE, START_US, Tidelog, frames, make_log, needs_captures, snapshot
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.messages import Message, encode_messages
from tidelog.compat.lpj import LpjWriter
from tidelog.edge.journal.journal import open_journal
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.recovery import open_log
from tidelog.storage.log.writer import Append
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.parts import StoreOptions
from tidelog.storage.store.recovery import open_store


def make_journal(folder: Path, *, close: bool = True) -> None:
    journal = open_journal(OsDisk(folder.parent), folder.name, now_us=START_US, new_lineage=lambda: LINEAGE)
    journal.record_many(frames(300), START_US)
    journal.seal_all(START_US)
    journal.record_many(frames(200, first=300), START_US + 1)
    if close:
        journal.close(START_US + 2)


def make_store(folder: Path, *, close: bool = True) -> None:
    store = open_store(OsDisk(folder), now_us=START_US, options=StoreOptions(large_block_bytes=4096))
    for name in ("boat one", "boat two"):
        log = store.create_channel(name, now_us=START_US)
        for number in range(3):
            made = encode_frames(frames(50, first=50 * number), base_seq=1 + 50 * number, producer=LINEAGE)
            store.commit_appends([Append(log, made, epoch=1)], START_US)
    if close:
        store.close(START_US)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << position % 8
    path.write_bytes(data)


def sampled(path: Path, count: int, seed: int) -> list[int]:
    size = path.stat().st_size
    positions = {0, size - 1, size // 2, *random.Random(seed).sample(range(size), min(size, count))}
    return sorted(positions)


# --- nothing is wrong ----------------------------------------------------------------------------


def test_a_sound_log_is_clean(tidelog: Tidelog, tmp_path: Path) -> None:
    make_log(tmp_path / "log")
    before = snapshot(tmp_path)
    report = tidelog("log", "verify", tmp_path / "log", "--json", "--deep").json
    assert (report["clean"], report["blocks"], report["records"]) == (True, 12, 480)
    assert report["segments"] > 1
    assert report["notes"] == []
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("close", [True, False])
def test_a_journal_is_one_offset_space(tidelog: Tidelog, tmp_path: Path, close: bool) -> None:
    make_journal(tmp_path / "journal", close=close)
    before = snapshot(tmp_path)
    report = tidelog("log", "verify", tmp_path / "journal", "--json").json
    assert (report["kind"], report["clean"]) == ("journal", True)
    rows = tidelog("log", "dump", tmp_path / "journal").rows
    assert [row["offset"] for row in rows] == list(range(len(rows)))
    assert [row["seq"] for row in rows if "pgn" in row] == list(range(1, 501))
    facts = tidelog("log", "inspect", tmp_path / "journal", "--json").json["streams"][0]
    assert facts["sealed_end"] == 301
    assert facts["lineages"][0]["last_seq"] == 500
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("close", [True, False])
def test_a_store_shows_what_is_only_in_its_write_ahead_file(tidelog: Tidelog, tmp_path: Path, close: bool) -> None:
    make_store(tmp_path / "store", close=close)
    before = snapshot(tmp_path)
    report = tidelog("log", "verify", tmp_path / "store", "--json").json
    assert (report["kind"], report["clean"], report["records"]) == ("store", True, 300)
    rows = tidelog("log", "dump", tmp_path / "store").rows
    assert [row["channel"] for row in rows] == ["boat one"] * 150 + ["boat two"] * 150
    one = tidelog("log", "dump", tmp_path / "store", "--channel", "boat two").rows
    assert [row["offset"] for row in one] == list(range(150))
    assert snapshot(tmp_path) == before


def test_an_unknown_channel_is_one_sentence(tidelog: Tidelog, tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    assert "there is no channel 'x'" in tidelog("log", "verify", tmp_path / "store", "--channel", "x", code=2).err
    make_log(tmp_path / "log")
    assert "--channel" in tidelog("log", "verify", tmp_path / "log", "--channel", "x", code=2).err


# --- damage --------------------------------------------------------------------------------------


def test_a_flipped_bit_in_any_file_of_a_log_is_found(tidelog: Tidelog, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    make_log(folder)
    for path in sorted(folder.iterdir()):
        if path.name == ".lock":
            continue
        good = path.read_bytes()
        for position in sampled(path, 25, seed=1):
            flip(path, position)
            report = tidelog("log", "verify", folder, "--json", code=1).json
            files = [finding["file"] for finding in report["damage"]]
            assert path.name in files, f"{path.name} at {position}: {report}"
            path.write_bytes(good)
    tidelog("log", "verify", folder)


@pytest.mark.parametrize("make", [make_journal, make_store])
def test_a_flipped_bit_in_any_file_of_a_journal_or_store_is_found(
    tidelog: Tidelog, tmp_path: Path, make: object
) -> None:
    folder = tmp_path / "data"
    assert callable(make)
    make(folder)
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name == ".lock":
            continue
        good = path.read_bytes()
        for position in sampled(path, 6, seed=2):
            flip(path, position)
            report = tidelog("log", "verify", folder, "--json", code=None).json
            found = [finding["file"] for finding in report["damage"]]
            assert any(name.endswith(path.name) for name in found), f"{path} at {position}: {report}"
            path.write_bytes(good)
    tidelog("log", "verify", folder)


def test_a_flipped_bit_in_an_lpj_file_is_found(tidelog: Tidelog, tmp_path: Path) -> None:
    path = tmp_path / "boat.lpj"
    with LpjWriter(path, block_size=4096) as writer:
        writer.append(frames(2000), first_seq=7)
    assert tidelog("log", "verify", path, "--json").json["records"] == 2000
    good = path.read_bytes()
    index_bytes = len(good) - good.index(b"LPJI") + 8 * 64
    for position in random.Random(3).sample(range(16, len(good) - index_bytes), 40):
        flip(path, position)
        tidelog("log", "verify", path, code=1)
        path.write_bytes(good)


def test_damage_says_file_position_and_offsets(tidelog: Tidelog, tmp_path: Path) -> None:
    make_log(tmp_path / "log")
    blocks = tidelog("log", "inspect", tmp_path / "log", "--json").json["streams"][0]["block_list"]
    victim = blocks[3]
    flip(tmp_path / "log" / victim["file"], victim["position"] + 140)
    (finding,) = tidelog("log", "verify", tmp_path / "log", "--json", code=1).json["damage"]
    assert (finding["file"], finding["position"]) == (victim["file"], victim["position"])
    assert (finding["start"], finding["end"]) == (victim["offset"], victim["end_offset"])


def test_a_placeholder_counts_as_damage(tidelog: Tidelog, tmp_path: Path) -> None:
    make_log(tmp_path / "log")
    segment = sorted((tmp_path / "log").glob("*.seg"))[0]
    flip(segment, 300)
    open_log(OsDisk(tmp_path), "log", now_us=START_US, verify_all=True).close(START_US)
    assert "placeholder" in tidelog("log", "verify", tmp_path / "log", code=1).out
    dumped = tidelog("log", "dump", tmp_path / "log", code=1)
    assert "placeholder" in dumped.err
    assert 400 < len(dumped.rows) < 480


def test_a_missing_segment_is_damage(tidelog: Tidelog, tmp_path: Path) -> None:
    make_log(tmp_path / "log")
    segments = sorted((tmp_path / "log").glob("*.seg"))
    for segment in (segments[1], segments[-1]):
        data = segment.read_bytes()
        segment.unlink()
        assert "ends before" in tidelog("log", "verify", tmp_path / "log", code=1).out
        segment.write_bytes(data)


def test_a_torn_tail_is_a_note_and_not_damage(tidelog: Tidelog, tmp_path: Path) -> None:
    log = make_log(tmp_path / "log", close=False)
    newest = tmp_path / log.segments[-1].path
    whole = newest.read_bytes()
    newest.write_bytes(whole + b"TLB1" + bytes(60))
    report = tidelog("log", "verify", tmp_path / "log", "--json").json
    assert report["bytes_to_cut"] == 64
    assert any("64 bytes would be cut on open" in note["problem"] for note in report["notes"])
    assert len(tidelog("log", "dump", tmp_path / "log").rows) == 480
    log.close()


@pytest.mark.parametrize("seed", range(40))
def test_verify_foretells_what_opening_will_do(tidelog: Tidelog, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = make_log(tmp_path / "log", close=False)
    log.files.close()
    newest = tmp_path / log.segments[-1].path
    data = bytearray(newest.read_bytes()[: rng.randint(0, newest.stat().st_size)] + rng.randbytes(rng.choice((0, 9))))
    if data and rng.random() < 0.5:
        data[rng.randrange(len(data))] ^= 1
    newest.write_bytes(data)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    report = tidelog("log", "verify", tmp_path / "log", "--json", code=None).json
    opened = open_log(OsDisk(tmp_path), "copy", now_us=START_US, options=LogOptions(reserve_bytes=0))
    assert opened.recovery is not None
    damage = [finding for finding in report["damage"] if finding["start"] is not None]
    lost = [range(finding["start"], finding["end"]) for finding in damage if finding["end"] is not None]
    assert lost == list(opened.recovery.quarantined), f"seed {seed}"
    assert report["bytes_to_cut"] == opened.recovery.bytes_cut, f"seed {seed}"
    opened.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_is_one_sentence(tidelog: Tidelog, tmp_path: Path) -> None:
    make_log(tmp_path / "log")
    (tmp_path / "log").chmod(0)
    try:
        assert "cannot be read" in tidelog("log", "verify", tmp_path / "log", code=2).err
    finally:
        (tmp_path / "log").chmod(0o755)


def test_seqs_that_appear_twice_are_damage_and_gaps_are_not(tidelog: Tidelog, tmp_path: Path) -> None:
    log = open_log(OsDisk(tmp_path), "log", now_us=START_US)
    for base_seq in (1, 101, 11):
        log.append(encode_frames(frames(20), base_seq=base_seq, producer=LINEAGE), now_us=START_US)
    log.close(START_US)
    report = tidelog("log", "verify", tmp_path / "log", "--json", code=1).json
    assert [finding["problem"] for finding in report["damage"]] == [
        f"seqs [11, 21) of lineage {LINEAGE.hex()} are here twice"
    ]
    assert report["notes"][0]["problem"] == f"lineage {LINEAGE.hex()} has no seqs [31, 101)"


def test_seqs_outside_the_windows_do_not_count(tidelog: Tidelog, tmp_path: Path) -> None:
    log = open_log(OsDisk(tmp_path), "log", now_us=START_US)
    log.append(encode_frames(frames(20), base_seq=1, producer=LINEAGE), now_us=START_US)
    windowed = encode_frames(frames(20), base_seq=11, producer=LINEAGE)
    log.stage(windowed, epoch=1, now_us=START_US, windows=[range(10, 20)])
    log.close(START_US)
    assert tidelog("log", "verify", tmp_path / "log", "--json").json["notes"] == []
    assert [row["seq"] for row in tidelog("log", "dump", tmp_path / "log").rows] == list(range(1, 31))


def test_one_segment_can_be_looked_at_alone(tidelog: Tidelog, tmp_path: Path) -> None:
    make_log(tmp_path / "log")
    segment = sorted((tmp_path / "log").glob("*.seg"))[1]
    report = tidelog("log", "verify", segment, "--json").json
    assert (report["kind"], report["clean"]) == ("segment", True)
    copy = tmp_path / "copy.seg"
    copy.write_bytes(segment.read_bytes()[:-8])
    report = tidelog("log", "verify", copy, "--json", code=2).json
    assert report["truncated"]
    assert report["bytes_to_cut"] > 0
    flip(segment, segment.stat().st_size - 20)
    tidelog("log", "verify", segment, code=1)


# --- what is no log ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["verify", "inspect", "dump"])
def test_what_is_no_log_is_one_sentence(tidelog: Tidelog, tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("hello\n")
    (tmp_path / "nothing.lpj").write_bytes(b"")
    (tmp_path / "short.seg").write_bytes(b"TLSEG\x01\x00\x00" + bytes(20))
    (tmp_path / "garbage.seg").write_bytes(bytes(range(256)))
    (tmp_path / "capture.log").write_text("(1.000000) can0 09F80200#00\n")
    for name in ("nowhere", "empty", "other", "other/notes.txt", "nothing.lpj", "short.seg", "garbage.seg"):
        result = tidelog("log", command, tmp_path / name, code=2)
        assert result.out == ""
        assert result.err.startswith("tidelog: ")
        assert result.err.count("\n") == 1, result.err
    assert "tidelog log import" in tidelog("log", command, tmp_path / "capture.log", code=2).err


# --- inspect -------------------------------------------------------------------------------------


def test_inspect_lists_blocks_and_what_they_add_up_to(tidelog: Tidelog, tmp_path: Path) -> None:
    make_log(tmp_path / "log")
    report = tidelog("log", "inspect", tmp_path / "log", "--json").json
    (stream,) = report["streams"]
    assert (stream["blocks"], stream["records"], stream["log_start"], stream["log_end"]) == (12, 480, 0, 480)
    assert stream["lineages"] == [{"lineage": LINEAGE.hex(), "first_seq": 1, "last_seq": 480, "records": 480}]
    assert [block["offset"] for block in stream["block_list"]] == list(range(0, 480, 40))
    (log,) = stream["logs"]
    assert (log["clean"], log["sync_point"], log["bytes_to_cut"]) == (True, 480, 0)
    assert {segment["index"] for segment in log["segments"]} == {"present"}
    assert (
        len(tidelog("log", "inspect", tmp_path / "log", "--json", "--limit", "2").json["streams"][0]["block_list"]) == 2
    )


def test_inspect_in_a_pipe_is_a_plain_table(tidelog: Tidelog, tmp_path: Path) -> None:
    make_log(tmp_path / "log", blocks=150)
    out = tidelog("log", "inspect", tmp_path / "log").out
    assert "\x1b" not in out
    assert "50 more blocks" in out
    assert "delta_planes" in out


def test_inspect_takes_every_kind_of_block(tidelog: Tidelog, tmp_path: Path) -> None:
    log = open_log(OsDisk(tmp_path), "log", now_us=START_US)
    log.append(encode_messages([Message(time_us=START_US, key=b"k", value=b"v")]), now_us=START_US)
    log.append(encode_frames(FrameColumns.from_rows([(0, 1, b"")])), now_us=START_US)
    log.close(START_US)
    stream = tidelog("log", "inspect", tmp_path / "log", "--json").json["streams"][0]
    assert [block["kind"] for block in stream["block_list"]] == ["messages", "frames"]


@needs_captures
def test_a_capture_is_clean_after_import(tidelog: Tidelog, tmp_path: Path) -> None:
    tidelog("log", "import", CAPTURES / "dirona-actisense-serial.raw", tmp_path / "log")
    report = tidelog("log", "verify", tmp_path / "log", "--json", "--deep").json
    assert report["clean"]
    assert report["blocks"] == 3
