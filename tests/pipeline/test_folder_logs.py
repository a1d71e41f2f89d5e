"""Folders of logs as the pipeline reads them: whole, while they grow, and damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.odd_lpj import write_odd_lpj
from tests.pipeline.folders import (
    BLOCK_ROWS,
    NOW_US,
    fleet,
    frame_blocks,
    journal,
    message_block,
    put,
    segments,
    small_store,
    spoil,
)
from tidelog.blocks.block import Block
from tidelog.blocks.columns import FrameColumns
from tidelog.compat.lpj import LpjWriter
from tidelog.errors import (
    ChannelRecreated,
    HistoryRewritten,
    InvalidConfig,
    NotALog,
    OffsetOutOfRange,
    OffsetTrimmed,
    RecordsDamaged,
    UnknownChannel,
)
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.columns import FRAMES, MESSAGES, batches
from tidelog.pipeline.sources.folder_segments import SegmentFiles
from tidelog.pipeline.sources.logs import BlockFilter, ChannelEnds, Logs, Piece
from tidelog.storage.log.segment import FileWindow


def opened(path: Path) -> Logs:
    return LogsAddress(path=str(path)).open()


def whole(ends: ChannelEnds, **changes: int) -> Piece:
    place = {"start": ends.log_start, "end": ends.committed_end, "leader_epoch": ends.leader_epoch, **changes}
    return Piece(**{"channel": ends.channel, "channel_id": ends.channel_id, **place})  # type: ignore[arg-type]


def rows(logs: Logs, piece: Piece, *, messages: bool = False, **how: Any) -> pa.Table:
    schema = MESSAGES if messages else FRAMES
    made = list(batches(logs.blocks(piece, **how), piece, schema.names, messages=messages, rows_max=700))
    assert all(batch.num_rows <= 700 for batch in made)
    return pa.Table.from_batches(made, schema=schema)


def test_every_channel_of_a_store_is_found_and_read_whole(tmp_path: Path) -> None:
    fleet(tmp_path)
    logs = opened(tmp_path)
    found = logs.channels()
    assert [ends.channel for ends in found] == ["boat-1", "boat-2", "notes"]
    table = rows(logs, whole(found[0]))
    assert table.num_rows == 20 * BLOCK_ROWS
    assert found[0].committed_end == table.num_rows + 1, "the control record has an offset and is no row"
    assert table["seq"].to_pylist() == list(range(1, 20 * BLOCK_ROWS + 1))
    assert table["offset"].to_pylist() == list(range(1, 20 * BLOCK_ROWS + 1))
    assert set(table["path"].to_pylist()) == {"live"}
    assert len(segments(tmp_path, "boat-1")) > 3
    notes = rows(logs, whole(found[2]), messages=True)
    assert notes["value"].to_pylist()[:3] == [None, b"value 1", b"value 2"]
    assert notes["headers"].to_pylist()[5] == [{"name": "n", "value": b"5"}]
    assert rows(logs, whole(found[2])).num_rows == 0, "messages are no frames"


def test_any_two_cuts_of_a_channel_make_up_the_whole(tmp_path: Path) -> None:
    fleet(tmp_path)
    logs = opened(tmp_path)
    (ends,) = logs.channels(["boat-1"])
    together = rows(logs, whole(ends))
    for cut in (0, 1, 2, 499, 501, 777, 5_000, 9_999, ends.committed_end):
        parts = [rows(logs, whole(ends, end=cut)), rows(logs, whole(ends, start=cut))]
        assert pa.concat_tables(parts).equals(together), cut


def test_what_waits_in_the_write_ahead_file_of_a_running_node_is_read_too(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    put(store, "boat-1", frame_blocks(4))
    logs = opened(tmp_path)
    assert rows(logs, whole(logs.channels()[0])).num_rows == 4 * BLOCK_ROWS
    put(store, "boat-1", frame_blocks(3, first_seq=4 * BLOCK_ROWS + 1))
    store.checkpoint(NOW_US)
    put(store, "boat-1", frame_blocks(2, first_seq=7 * BLOCK_ROWS + 1))
    put(store, "boat-9", [message_block(0, 5)])
    assert [ends.channel for ends in logs.channels()] == ["boat-1", "boat-9"]
    table = rows(logs, whole(logs.channels(["boat-1"])[0]))
    assert table["seq"].to_pylist() == list(range(1, 9 * BLOCK_ROWS + 1))
    store.close(NOW_US)
    assert rows(logs, whole(logs.channels(["boat-1"])[0])).equals(table)


def test_a_journal_is_one_channel_from_its_sealed_to_its_fresh_blocks(tmp_path: Path) -> None:
    journal(tmp_path / "egret", 3_000)
    logs = opened(tmp_path / "egret")
    (ends,) = logs.channels()
    assert ends.channel == "egret"
    assert rows(logs, whole(ends))["seq"].to_pylist() == list(range(1, 3_001))
    (again,) = opened(tmp_path).channels(["egret"])
    assert again == ends, "a folder of journals names them alike"


def test_lplex_files_are_channels_by_their_names(tmp_path: Path) -> None:
    for boat in ("heron", "tern"):
        with LpjWriter(tmp_path / f"{boat}.lpj") as writer:
            times = range(NOW_US, NOW_US + 2_000)
            writer.append(FrameColumns.from_rows((time, 0x09F80100, bytes(8)) for time in times), first_seq=40)
    logs = opened(tmp_path)
    heron, tern = logs.channels(["*er*"])
    assert (heron.channel, tern.channel) == ("heron", "tern")
    assert heron.channel_id != tern.channel_id
    table = rows(logs, whole(heron, start=5))
    assert table["seq"].to_pylist() == list(range(45, 2_040))
    assert table["offset"].to_pylist()[0] == 5


def test_good_records_of_an_odd_lplex_block_are_read_and_only_the_rest_is_damaged(tmp_path: Path) -> None:
    """lplex can write a device entry over the last records of a block: good checksum, two bad records."""
    write_odd_lpj(tmp_path / "heron.lpj")
    logs = opened(tmp_path)
    (heron,) = logs.channels(["heron"])
    assert heron.committed_end == 200
    assert rows(logs, whole(heron, end=98))["seq"].to_pylist() == list(range(1, 99))
    with pytest.raises(RecordsDamaged, match="record 98 of 100") as damage:
        rows(logs, whole(heron))
    assert (damage.value.start, damage.value.end) == (98, 100)
    for start in (0, 50, 98, 99, 100, 120):
        table = rows(logs, whole(heron, start=start), on_damaged="skip")
        expected = [*range(98), *range(100, 200)]
        assert table["offset"].to_pylist() == [offset for offset in expected if offset >= start]
    table = rows(logs, whole(heron), on_damaged="skip")
    assert table["seq"].to_pylist() == [*range(1, 99), *range(201, 301)]


def test_blocks_that_cannot_hold_what_is_wanted_are_passed_over(tmp_path: Path) -> None:
    fleet(tmp_path)
    logs = opened(tmp_path)
    (ends,) = logs.channels(["boat-1"])
    wanted = BlockFilter(from_seq=1_200, before_seq=1_501)
    held = [block for run in logs.blocks(whole(ends), wanted=wanted) for block in run]
    assert [block.maker.base_seq for block in held] == [1_001]
    assert logs.offset_at("boat-1", seq=1_200) == 1_200
    assert logs.offset_at("notes", time_us=NOW_US + 60) == 60
    assert logs.offset_at("notes", time_us=NOW_US + 9_999) == 120


def test_a_damaged_block_is_named_and_can_be_skipped(tmp_path: Path) -> None:
    fleet(tmp_path)
    paths = segments(tmp_path, "boat-1")
    spoil(paths[1], paths[1].stat().st_size // 2)
    logs = opened(tmp_path)
    (ends,) = logs.channels(["boat-1"])
    with pytest.raises(RecordsDamaged, match="on_damaged=skip") as caught:
        rows(logs, whole(ends))
    lost = range(caught.value.start, caught.value.end)
    assert len(lost) == BLOCK_ROWS
    left = rows(logs, whole(ends), on_damaged="skip")
    assert set(range(1, ends.committed_end)) - set(left["offset"].to_pylist()) == set(lost)


def test_damage_in_the_newest_segment_does_not_hide_what_follows(tmp_path: Path) -> None:
    fleet(tmp_path)
    newest = segments(tmp_path, "boat-2")[-1]
    spoil(newest, 200)
    logs = opened(tmp_path)
    (ends,) = logs.channels(["boat-2"])
    assert ends.committed_end == 20 * BLOCK_ROWS + 1
    with pytest.raises(RecordsDamaged):
        rows(logs, whole(ends))


def long_segment(folder: Path, *, rows: int = BLOCK_ROWS) -> Path:
    """The files of a closed store: one segment of 60 blocks in two epochs, and its index."""
    store = small_store(folder, segment_bytes=8 << 20)
    put(store, "boat-1", frame_blocks(30, rows=rows))
    put(store, "boat-1", frame_blocks(30, first_seq=1 + 30 * rows, rows=rows), epoch=4)
    store.close(NOW_US)
    (segment,) = segments(folder, "boat-1")
    return segment


def test_a_look_at_a_long_segment_begins_where_its_index_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = long_segment(tmp_path)
    looked: list[int] = []
    whole_block = SegmentFiles._whole_block

    def watched(files: SegmentFiles, window: FileWindow, position: int, expected: int) -> Block:
        looked.append(expected)
        return whole_block(files, window, position, expected)

    monkeypatch.setattr(SegmentFiles, "_whole_block", watched)
    (found,) = opened(tmp_path).channels()
    assert (found.committed_end, found.leader_epoch) == (60 * BLOCK_ROWS, 4)
    assert looked
    assert len(looked) < 5
    segment.with_name(segment.name + ".index").unlink()
    looked.clear()
    assert opened(tmp_path).channels() == [found]
    assert len(looked) == 60


@pytest.mark.parametrize("harm", ["segment cut", "index torn", "index of another", "block at its end spoilt"])
def test_an_index_that_does_not_fit_its_segment_is_not_believed(tmp_path: Path, harm: str) -> None:
    segment = long_segment(tmp_path)
    index = segment.with_name(segment.name + ".index")
    match harm:
        case "segment cut":
            with segment.open("r+b") as file:
                file.truncate(segment.stat().st_size // 2)
        case "index torn":
            spoil(index, index.stat().st_size // 2)
        case "index of another":
            index.write_bytes(long_segment(tmp_path / "other", rows=300).with_name(index.name).read_bytes())
        case _:
            spoil(segment, segment.stat().st_size - 5)
    told = opened(tmp_path).channels()
    index.unlink()
    assert told == opened(tmp_path).channels(), "as if there were no index"


def test_a_missing_segment_is_named_and_can_be_skipped(tmp_path: Path) -> None:
    fleet(tmp_path)
    gone = segments(tmp_path, "boat-1")[2]
    start, end = int(gone.stem), int(segments(tmp_path, "boat-1")[3].stem)
    gone.unlink()
    logs = opened(tmp_path)
    (ends,) = logs.channels(["boat-1"])
    with pytest.raises(RecordsDamaged) as caught:
        rows(logs, whole(ends))
    assert (caught.value.start, caught.value.end) == (start, end)
    assert rows(logs, whole(ends), on_damaged="skip").num_rows == 20 * BLOCK_ROWS - (end - start)


def test_what_was_trimmed_is_refused_or_skipped_as_asked(tmp_path: Path) -> None:
    fleet(tmp_path)
    first, second = segments(tmp_path, "boat-1")[:2]
    first.unlink()
    logs = opened(tmp_path)
    (ends,) = logs.channels(["boat-1"])
    assert ends.log_start == int(second.stem)
    with pytest.raises(OffsetTrimmed):
        rows(logs, whole(ends, start=0))
    assert rows(logs, whole(ends, start=0), on_trimmed="skip")["offset"].to_pylist()[0] == ends.log_start
    with pytest.raises(OffsetOutOfRange):
        rows(logs, whole(ends, end=ends.committed_end + 1))


def test_another_channel_or_another_history_is_not_read(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    put(store, "boat-1", frame_blocks(2))
    logs = opened(tmp_path)
    (before,) = logs.channels()
    put(store, "boat-1", frame_blocks(2, first_seq=5_000), epoch=4)
    (now,) = logs.channels()
    assert now.leader_epoch == 4
    with pytest.raises(HistoryRewritten):
        rows(logs, whole(now, leader_epoch=before.leader_epoch))
    store.delete_channel("boat-1", now_us=NOW_US)
    with pytest.raises(UnknownChannel):
        rows(logs, whole(now))
    put(store, "boat-1", frame_blocks(9), epoch=4)
    with pytest.raises(ChannelRecreated):
        rows(logs, whole(now))
    store.close(NOW_US)


def test_wrong_paths_and_addresses_are_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotALog):
            opened(path)
    fleet(tmp_path)
    with pytest.raises(UnknownChannel):
        opened(tmp_path).channels(["boat-7"])
    assert opened(tmp_path).channels(["ship-*"]) == []
    with pytest.raises(InvalidConfig, match="either"):
        LogsAddress()
    with pytest.raises(InvalidConfig, match="certificate, key, authority missing"):
        LogsAddress(cluster=("a:1",))
