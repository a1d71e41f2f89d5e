"""Offsets of a stream without a Spark session: what is planned, how it is limited, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from tests.pipeline.folders import BLOCK_ROWS, NOW_US, frame_blocks, put, segments, small_store
from tidelog.errors import CommittedLost, OffsetTrimmed, SourceChanged, UnknownChannel
from tidelog.pipeline.sources.columns import FRAMES
from tidelog.pipeline.sources.logs import Piece
from tidelog.pipeline.sources.planning import shares, split
from tidelog.pipeline.sources.source_options import SourceOptions
from tidelog.pipeline.sources.stream_source import TidelogStreamReader
from tidelog.storage.store.store import Store

ALL = ReadAllAvailable()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = small_store(tmp_path)
    put(store, "boat-1", frame_blocks(4))
    return store


@pytest.fixture
def reader(tmp_path: Path, store: Store) -> Callable[..., TidelogStreamReader]:
    def made(**options: str) -> TidelogStreamReader:
        return TidelogStreamReader(SourceOptions.parse({"path": str(tmp_path), **options}, streaming=True), FRAMES)

    return made


def following(reader: TidelogStreamReader, start: dict[str, Any], limit: ReadLimit = ALL) -> dict[str, Any]:
    """The next offset, as Spark would keep and give it back."""
    found: dict[str, Any] = json.loads(json.dumps(reader.latestOffset(start, limit)))
    return found


def ranges(reader: TidelogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int]]:
    parts = reader.partitions(start, end)
    return [(piece.channel, piece.start, piece.end) for part in parts for piece in part.value]


def test_batches_follow_each_other_and_new_channels_begin_at_their_beginning(
    reader: Callable[..., TidelogStreamReader], store: Store
) -> None:
    stream = reader(starting="latest")
    first = following(stream, {})
    assert ranges(stream, {}, first) == []
    put(store, "boat-1", frame_blocks(1, first_seq=9_000))
    put(store, "boat-2", frame_blocks(2))
    second = following(stream, first, ReadMaxRows(600))
    assert ranges(stream, first, second) == [("boat-1", 2_000, 2_300), ("boat-2", 0, 300)]
    put(store, "boat-2", frame_blocks(1, first_seq=9_000))
    assert ranges(reader(), first, second) == [("boat-1", 2_000, 2_300), ("boat-2", 0, 300)], "planned again, the same"
    third = following(reader(), second)
    assert ranges(stream, second, third) == [("boat-1", 2_300, 2_500), ("boat-2", 300, 1_500)]
    assert following(reader(), third) == third


def test_a_limit_in_bytes_is_about_kept(reader: Callable[..., TidelogStreamReader]) -> None:
    stream = reader(max_bytes_per_trigger="10000")
    end = following(stream, {}, stream.getDefaultReadLimit())
    assert 200 < end["boat-1"]["next"] < 1_000, "a frame of these has about 20 bytes"


def test_what_is_available_now_does_not_grow(reader: Callable[..., TidelogStreamReader], store: Store) -> None:
    stream = reader()
    stream.prepareForTriggerAvailableNow()
    put(store, "boat-1", frame_blocks(1, first_seq=9_000))
    put(store, "boat-2", frame_blocks(1))
    end = following(stream, {})
    assert ranges(stream, {}, end) == [("boat-1", 0, 4 * BLOCK_ROWS)]
    assert following(stream, end) == end
    assert stream.reportLatestOffset()["boat-1"]["next"] == 5 * BLOCK_ROWS


def test_a_checkpoint_of_another_place_or_time_is_refused(
    reader: Callable[..., TidelogStreamReader], store: Store, tmp_path: Path
) -> None:
    end = following(reader(), {})
    with pytest.raises(SourceChanged, match="made on cluster abc"):
        following(reader(), {**end, "": {"cluster": "abc"}})
    with pytest.raises(CommittedLost):
        following(reader(), {**end, "boat-1": {**end["boat-1"], "next": 9_999}})
    store.close(NOW_US)
    segments(tmp_path, "boat-1")[0].unlink()
    old = {**end, "boat-1": {**end["boat-1"], "next": 5}}
    with pytest.raises(OffsetTrimmed):
        following(reader(), old)
    assert following(reader(on_trimmed="skip"), old)["boat-1"]["next"] == 4 * BLOCK_ROWS


def test_a_deleted_channel_is_told_once_and_the_next_run_goes_on(
    reader: Callable[..., TidelogStreamReader], store: Store
) -> None:
    put(store, "boat-2", frame_blocks(1))
    stream = reader()
    end = following(stream, {})
    store.delete_channel("boat-2", now_us=NOW_US)
    put(store, "boat-1", frame_blocks(1, first_seq=9_000))
    with pytest.raises(UnknownChannel):
        following(stream, end)
    again = reader()
    assert ranges(again, end, following(again, end)) == [("boat-1", 2_000, 2_500)]
    with pytest.raises(UnknownChannel):
        following(reader(channels="boat-1,boat-2"), end)


@given(available=st.dictionaries(st.text(max_size=3), st.integers(0, 1_000)), limit=st.integers(1, 2_000))
def test_shares_fill_the_limit_and_starve_nobody(available: dict[str, int], limit: int) -> None:
    given_out = shares(available, limit)
    assert all(0 <= given_out[name] <= amount for name, amount in available.items())
    assert sum(given_out.values()) == min(limit, sum(available.values()))
    waiting = [name for name, amount in available.items() if given_out[name] < amount]
    if waiting:
        assert max(given_out.values()) - min(given_out[name] for name in waiting) <= 1


def piece(channel: str, size: int) -> Piece:
    return Piece(channel=channel, channel_id=1, leader_epoch=1, start=0, end=size)


def test_pieces_are_cut_and_gathered_into_tasks() -> None:
    pieces = [piece(name, size) for name, size in (("a", 3), ("b", 4), ("c", 25))]
    tasks = [[(piece.channel, piece.start, piece.end) for piece in task] for task in split(pieces, 10)]
    assert tasks == [[("a", 0, 3), ("b", 0, 4)], [("c", 0, 10)], [("c", 10, 20)], [("c", 20, 25)]]


def test_tasks_grow_with_what_there_is_to_read() -> None:
    for records, tasks in ((400_000, 1), (10_000_000, 20), (64_000_000, 32), (200_000_000, 100)):
        assert len(split([piece("a", records)], None)) == tasks
