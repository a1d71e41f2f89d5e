"""The signals job without Spark's scheduler: its tasks, its state, its commits. Spark only carries the orders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.table_kit import LINEAGE, Here, frames_table, voyage_frames, written
from tidelog.errors import DiskFull, HistoryGone
from tidelog.nmea.pgns import FAST_PACKET_PGNS
from tidelog.pipeline.jobs.signals_job import SignalsJob, SignalsOptions, is_device_news, join_devices, step_end
from tidelog.pipeline.jobs.signals_state import ChannelState, LineageState, SignalStretch, load_state, save_state
from tidelog.pipeline.tables import FORMATS
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT
from tidelog.pipeline.tables.maintenance import optimize, vacuum
from tidelog.pipeline.tables.table import AddedFile, DataFile, OffsetRange, RangeFiles, Table
from tidelog.signals.reassembly import Assembly

PIPELINE = "main"
START = datetime(2026, 11, 15, 12, tzinfo=UTC)


def job_of(folder: Path, table_format: str = "delta", **options: Any) -> SignalsJob:
    return SignalsJob(Here(), SignalsOptions(tables=str(folder), table_format=table_format, **options))  # type: ignore[arg-type]


def append(table: Table, rows: pa.RecordBatch, *, channel: str = "boat-1", channel_id: int = 1) -> None:
    """Rows with offsets that go on where the table stands."""
    found = table.positions(PIPELINE, [channel_id]).get(channel_id)
    start = 0 if found is None else found.next_offset
    offsets = pa.array(range(start, start + rows.num_rows), pa.int64())
    rows = rows.set_column(rows.schema.get_field_index("offset"), "offset", offsets)
    span = OffsetRange(channel=channel, channel_id=channel_id, leader_epoch=1, start=start, end=start + rows.num_rows)
    table.commit_append(PIPELINE, [RangeFiles(range=span, files=written(table, rows))])


def read(table: Table) -> pa.Table:
    parts = []
    for file in table.files():
        with pq.ParquetFile(table.path_of(file)) as source:
            parts.append(source.read())
    return pa.concat_tables(parts) if parts else table.layout.schema.empty_table()


def sorted_rows(table: Table) -> pa.Table:
    order = [("seq", "ascending"), ("signal", "ascending")]
    return read(table).select(["seq", "signal", "value", "text", "device", "time", "day"]).sort_by(order)


@pytest.mark.parametrize("table_format", FORMATS)
def test_new_frames_become_signals_once_and_a_rerun_is_a_no_op(tmp_path: Path, table_format: str) -> None:
    frames = frames_table(tmp_path, table_format)
    append(frames, voyage_frames(START, seconds=20))
    job = job_of(tmp_path, table_format)
    done = job.run()
    assert done.frames == sum(file.rows for file in frames.files())
    rows = read(job.signals)
    assert {"wind_data.wind_speed", "position_rapid_update.latitude"} <= set(rows["signal"].to_pylist())
    assert set(rows["day"].to_pylist()) == {START.date()}
    assert rows["device"].null_count == 0
    versions = [table.version() for table in (job.signals, job.undecoded, job.devices)]
    again = job_of(tmp_path, table_format)
    assert again.run().steps == 0
    assert [table.version() for table in (job.signals, job.undecoded, job.devices)] == versions


def test_steps_of_any_size_give_the_same_rows(tmp_path: Path) -> None:
    whole = voyage_frames(START, seconds=30)
    for folder, cuts in (("one", 1), ("many", 5)):
        frames = frames_table(tmp_path / folder)
        share = whole.num_rows // cuts + 1
        for start in range(0, whole.num_rows, share):
            append(frames, whole.slice(start, share))
            job_of(tmp_path / folder).run()
    assert sorted_rows(job_of(tmp_path / "one").signals).equals(sorted_rows(job_of(tmp_path / "many").signals))


def test_late_frames_only_add_rows(tmp_path: Path) -> None:
    whole = voyage_frames(START, seconds=30)
    third = whole.num_rows // 3
    frames = frames_table(tmp_path)
    append(frames, whole.slice(2 * third))
    job = job_of(tmp_path)
    job.run()
    before = {file.path for file in job.signals.files()}
    append(frames, whole.slice(0, 2 * third))
    job.run()
    after = {file.path for file in job.signals.files()}
    assert before < after
    seqs = read(job.signals)["seq"].to_pylist()
    assert set(seqs) == set(whole["seq"].to_pylist())


def test_a_wrong_clock_never_makes_a_day_of_its_own(tmp_path: Path) -> None:
    rows = voyage_frames(START, seconds=10, without=(126992, 129029, 129033))
    wrong = pa.array([time - timedelta(days=20_000) for time in rows["time"].to_pylist()], rows["time"].type)
    frames = frames_table(tmp_path)
    append(frames, rows.set_column(rows.schema.get_field_index("time"), "time", wrong))
    job = job_of(tmp_path)
    job.run()
    found = read(job.signals)
    assert set(found["clock"].to_pylist()) == {"placed"}
    assert set(found["day"].to_pylist()) == {START.date()}
    assert {file.partition for file in job.signals.files()} == {("2026-11-15", "boat-1")}
    assert clocks_of(job, rows) == {"placed"}


def clocks_of(job: SignalsJob, frames: pa.RecordBatch) -> set[str]:
    """What the table `clock_shifts` says: with it every frame must have the time at which it really was on the bus."""
    moved: dict[int, int] = {}
    shifts = read(job.clocks).to_pylist()
    for one in shifts:
        for seq in range(one["seq_start"], one["seq_end"]):
            assert moved.setdefault(seq, one["shift_us"]) == one["shift_us"]
    by_seq = {row["seq"]: row["time"] for row in read(job.signals).to_pylist()}
    stored = {row["seq"]: row["time"] for row in read(job.frames).to_pylist()}
    assert set(moved) == set(frames["seq"].to_pylist())
    for seq, time in by_seq.items():
        assert stored[seq] + timedelta(microseconds=moved[seq]) == time
    return {one["clock"] for one in shifts}


def test_a_clock_that_the_gps_corrects_is_in_the_table_of_shifts(tmp_path: Path) -> None:
    rows = voyage_frames(START, seconds=30)
    late = pa.array([time - timedelta(hours=5) for time in rows["time"].to_pylist()], rows["time"].type)
    rows = rows.set_column(rows.schema.get_field_index("time"), "time", late)
    frames = frames_table(tmp_path)
    job = job_of(tmp_path)
    half = rows.num_rows // 2
    for part in (rows.slice(half), rows.slice(0, half)):  # the first half comes late
        append(frames, part)
        job.run()
    assert clocks_of(job, rows) == {"gps"}


def test_a_clock_that_is_right_has_no_shifts(tmp_path: Path) -> None:
    append(frames_table(tmp_path), voyage_frames(START, seconds=10))
    job = job_of(tmp_path)
    job.run()
    assert read(job.clocks).num_rows == 0


def test_a_message_cut_by_the_end_of_a_step_comes_out_whole_in_the_next(tmp_path: Path) -> None:
    raw = raw_fast_packet(START, sequence=3)
    frames = frames_table(tmp_path)
    append(frames, raw.slice(0, 2))
    job = job_of(tmp_path)
    job.run()
    assert read(job.signals).num_rows == 0
    assert read(job.undecoded).num_rows == 0
    append(frames, raw.slice(2))
    job.run()
    assert "Vessel" in set(read(job.signals)["text"].to_pylist())
    assert read(job.undecoded).num_rows == 0


def test_a_message_whose_rest_never_comes_is_counted(tmp_path: Path) -> None:
    raw = raw_fast_packet(START, sequence=3)
    frames = frames_table(tmp_path)
    append(frames, raw.slice(0, 2))
    job = job_of(tmp_path)
    job.run()
    later = raw_fast_packet(START + timedelta(minutes=1), sequence=4, first_seq=1_000)
    append(frames, later)
    job.run()
    counted = read(job.undecoded).to_pylist()
    assert [(row["pgn"], row["reason"], row["frames"]) for row in counted] == [(129809, "incomplete_fast_packet", 2)]


def test_a_step_that_died_between_its_tables_is_taken_again_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = frames_table(tmp_path)
    append(frames, unknown_pgn(START, 5))
    job = job_of(tmp_path)
    died = DiskFull(operation="commit to", path="signals", reason="no space")

    def refuse(*arguments: object, **options: object) -> None:
        raise died

    with monkeypatch.context() as broken:
        broken.setattr(job.signals, "commit_following", refuse)
        with pytest.raises(DiskFull):
            job.run()
    append(frames, unknown_pgn(START, 7, first_seq=100))
    again = job_of(tmp_path)
    assert again.run().steps == 2
    assert sum(row["frames"] for row in read(again.undecoded).to_pylist()) == 12


def test_every_frame_is_decoded_or_counted(tmp_path: Path) -> None:
    frames = frames_table(tmp_path)
    append(frames, unknown_pgn(START, 9))
    job = job_of(tmp_path)
    job.run()
    (row,) = read(job.undecoded).to_pylist()
    assert row == {"channel": "boat-1", "day": START.date(), "pgn": 65280 + 200, "reason": row["reason"], "frames": 9}


def test_optimized_frames_are_not_decoded_again(tmp_path: Path) -> None:
    frames = frames_table(tmp_path)
    whole = voyage_frames(START, seconds=10)
    append(frames, whole.slice(0, 100))
    append(frames, whole.slice(100))
    job = job_of(tmp_path)
    job.run()
    rows = sum(file.rows for file in job.signals.files())
    optimize(frames)
    assert job.run().steps == 1
    assert sum(file.rows for file in job.signals.files()) == rows


def test_frames_that_were_swept_before_they_were_decoded_are_told(tmp_path: Path) -> None:
    frames = frames_table(tmp_path)
    whole = voyage_frames(START, seconds=10)
    append(frames, whole.slice(0, 100))
    append(frames, whole.slice(100))
    optimize(frames)
    vacuum(frames, keep_hours=0)
    with pytest.raises(HistoryGone, match="swept"):
        job_of(tmp_path).run()


def test_devices_are_kept_up_without_a_version_for_every_word(tmp_path: Path) -> None:
    frames = frames_table(tmp_path)
    whole = voyage_frames(START, seconds=20)
    append(frames, whole.slice(0, whole.num_rows // 2))
    job = job_of(tmp_path)
    job.run()
    known = read(job.devices).to_pylist()
    assert known
    assert all(row["manufacturer"] for row in known)
    version = job.devices.version()
    append(frames, whole.slice(whole.num_rows // 2))
    job.run()
    assert job.devices.version() == version
    append(frames, voyage_frames(START + timedelta(minutes=5), seconds=5, first_seq=1 << 20))
    job.run()
    assert job.devices.version() == version + 1
    assert len(read(job.devices)) == len(known)


def test_frames_without_a_lineage_have_signals_without_seqs(tmp_path: Path) -> None:
    rows = voyage_frames(START, seconds=5)
    for name in ("lineage", "seq"):
        empty = pa.nulls(rows.num_rows, rows.schema.field(name).type)
        rows = rows.set_column(rows.schema.get_field_index(name), name, empty)
    append(frames_table(tmp_path), rows)
    job = job_of(tmp_path)
    job.run()
    found = read(job.signals)
    assert found.num_rows
    assert found["seq"].null_count == found["lineage"].null_count == found.num_rows


# --- parts -----------------------------------------------------------------------------------------


def test_a_step_ends_before_it_grows_too_large() -> None:
    added = [
        AddedFile(version=version, file=DataFile(path=str(version), bytes=1, rows=rows))
        for version, rows in ((3, 50), (4, 40), (4, 30), (7, 10))
    ]
    assert step_end(added, 1_000) == 7
    assert step_end(added, 120) == 4
    assert step_end(added, 100) == 3
    assert step_end(added, 1) == 3
    assert step_end([], 1) is None


def test_state_survives_its_file_and_old_versions_go(tmp_path: Path) -> None:
    state = ChannelState()
    lineage = state.lineage(LINEAGE)
    lineage.assembly = Assembly(balance=64, by_pgn={129029: 64, 130568: -3})
    lineage.add_stretch(SignalStretch(first_seq=1, last_seq=10, start_us=100, end_us=200))
    lineage.add_claims(10, {3: 0xC0788C00112FFAC7})
    lineage.tail, lineage.tail_next_seq = raw_fast_packet(START, sequence=1).slice(0, 2), 3
    for before, version in ((None, 4), (4, 6), (6, 9)):
        save_state(tmp_path, PIPELINE, "a/b", state, before=before, version=version)
    assert load_state(tmp_path, PIPELINE, "a/b", None).lineages == {}
    assert load_state(tmp_path, PIPELINE, "a/b", 5).lineages == {}
    found = load_state(tmp_path, PIPELINE, "a/b", 8).lineage(LINEAGE)
    assert found.assembly == lineage.assembly
    assert found.claims == lineage.claims
    assert found.stretches == lineage.stretches
    assert found.tail is not None
    assert found.tail.equals(lineage.tail)
    assert len(list(tmp_path.rglob("*.json"))) == 2


@pytest.mark.parametrize(("before", "balance"), [(True, 1), (False, 0), (None, 0)])
def test_state_of_an_earlier_version_is_read(tmp_path: Path, before: bool | None, balance: int) -> None:
    save_state(tmp_path, PIPELINE, "a", state_of(LINEAGE), before=None, version=4)
    (path,) = tmp_path.rglob("*.json")
    written = json.loads(path.read_text())
    del written[LINEAGE]["assembly"]
    written[LINEAGE]["assembled"] = before
    path.write_text(json.dumps(written))
    assert load_state(tmp_path, PIPELINE, "a", 4).lineage(LINEAGE).assembly == Assembly(balance=balance)


def state_of(lineage: str) -> ChannelState:
    state = ChannelState()
    state.lineage(lineage)
    return state


def test_stretches_grow_together_and_tell_the_times_around() -> None:
    state = LineageState()
    for first, last in ((100, 199), (0, 49), (50, 99), (300, 399)):
        state.add_stretch(SignalStretch(first_seq=first, last_seq=last, start_us=first * 10, end_us=last * 10))
    assert [(one.first_seq, one.last_seq) for one in state.stretches] == [(0, 199), (300, 399)]
    assert state.end_before(250) == 1990
    assert state.start_after(250) == 3000
    assert state.end_before(0) is None
    assert state.start_after(300) is None


def test_who_claimed_an_address_is_known_by_seq() -> None:
    state = LineageState()
    state.add_claims(100, {1: 11})
    state.add_claims(200, {1: 12})
    state.add_claims(50, {1: 10})
    state.add_claims(250, {1: 12})
    assert [state.known_at(seq) for seq in (50, 51, 150, 500)] == [{}, {1: 10}, {1: 11}, {1: 12}]
    assert len(state.claims) == 3


def test_devices_are_joined_by_name_and_source() -> None:
    old = device("n1", 3, 0, 10, model="x")
    new = device("n1", 3, 20, 30, model=None)
    (joined,) = join_devices([new, old])
    assert (joined["first_time"], joined["last_time"], joined["model"]) == (old["first_time"], new["last_time"], "x")
    assert not is_device_news([old], join_devices([old, device("n1", 3, 5, 40, model=None)]))
    assert is_device_news([old], join_devices([old, device("n1", 3, 5, 400, model=None)]))
    assert is_device_news([old], join_devices([old, device("n2", 4, 5, 6, model=None)]))


def device(name: str, source: int, first_s: int, last_s: int, *, model: str | None) -> dict[str, Any]:
    return {
        "channel": "boat-1",
        "name": name,
        "source": source,
        "manufacturer": "m",
        "device_function": "f",
        "model": model,
        "serial": None,
        "software": None,
        "first_time": START + timedelta(seconds=first_s),
        "last_time": START + timedelta(seconds=last_s),
    }


def frames_rows(rows: Sequence[tuple[datetime, int, bytes]], *, first_seq: int) -> pa.RecordBatch:
    made = [
        {
            "channel": "boat-1",
            "lineage": LINEAGE,
            "seq": first_seq + place,
            "offset": place,
            "epoch": 1,
            "time": time,
            "priority": 6,
            "pgn": pgn,
            "source": 9,
            "destination": 255,
            "data": data,
            "path": "live",
            "append_time": time,
            "append_day": date(time.year, time.month, time.day),
        }
        for place, (time, pgn, data) in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(made, schema=FRAMES_LAYOUT.schema)


def raw_fast_packet(start: datetime, *, sequence: int, first_seq: int = 1) -> pa.RecordBatch:
    """AIS class B static data, part A (129809), as it crosses a bus: frames of eight bytes."""
    assert 129809 in FAST_PACKET_PGNS
    payload = bytes([24]) + (235_000_001).to_bytes(4, "little") + b"Vessel".ljust(20, b"@") + bytes([0, 0])
    first = bytes([sequence << 5, len(payload)]) + payload[:6]
    rest = payload[6:]
    later = [
        bytes([sequence << 5 | number + 1]) + rest[7 * number : 7 * number + 7].ljust(7, b"\xff")
        for number in range(-(-len(rest) // 7))
    ]
    rows = [(start + timedelta(milliseconds=place), 129809, data) for place, data in enumerate((first, *later))]
    return frames_rows(rows, first_seq=first_seq)


def unknown_pgn(start: datetime, count: int, *, first_seq: int = 1) -> pa.RecordBatch:
    rows = [(start + timedelta(milliseconds=place), 65280 + 200, bytes(8)) for place in range(count)]
    return frames_rows(rows, first_seq=first_seq)
