"""One contract for logs, run against a memory log and a persistent one, and what only one of them does."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from tidelog.blocks.block import MadeBlock, make_block
from tidelog.blocks.header import BlockKind
from tidelog.errors import (
    LogClosed,
    MemoryLogFull,
    NotABlockBoundary,
    OffsetMismatch,
    OffsetOutOfRange,
    StaleEpoch,
)
from tidelog.sim.disk import SimDisk
from tidelog.storage.log.log import Log
from tidelog.storage.log.memory_log import MemoryLog
from tidelog.storage.log.options import MEMORY_LOG_BYTES_MAX, LogOptions, Retention
from tidelog.storage.log.recovery import open_log
from tidelog.units import GIB, KIB

NewLog = Callable[[LogOptions], Log]


@pytest.fixture(params=["memory", "persistent"])
def new_log(request: pytest.FixtureRequest) -> NewLog:
    def new(options: LogOptions) -> Log:
        if request.param == "memory":
            return MemoryLog("channel", now_us=1, options=options, channel_id=7)
        return open_log(SimDisk(random.Random(1)), "channel", now_us=1, options=options, channel_id=7)

    return new


def made(size: int = 40, *, records: int = 2, base_seq: int = 0, time_us: int = 0) -> MadeBlock:
    return make_block(
        bytes(size),
        kind=BlockKind.FRAMES,
        form=1,
        record_count=records,
        base_seq=base_seq,
        time_min_us=time_us,
        time_max_us=time_us,
    )


SMALL = LogOptions(segment_bytes_max=4 * KIB)


def test_records_are_read_back_where_they_were_put(new_log: NewLog) -> None:
    log = new_log(SMALL)
    bodies = [bytes([number]) * 500 for number in range(40)]
    for number, body in enumerate(bodies):
        block = make_block(body, kind=BlockKind.FRAMES, form=1, record_count=2)
        assert log.append(block, now_us=number) == range(2 * number, 2 * number + 2)
    assert (log.log_start, log.log_end, log.durable_end) == (0, 80, 80)
    assert [bytes(block.body)[:500] for block in log.blocks()] == bodies
    assert log.read(31)[0].offsets == range(30, 32)
    assert log.read(80) == []
    assert log.statistics().segments > 3
    with pytest.raises(OffsetOutOfRange):
        log.read(81)


def test_a_peers_blocks_are_taken_over_unchanged(new_log: NewLog) -> None:
    leader, follower = new_log(SMALL), new_log(SMALL)
    for number in range(5):
        leader.append(made(), epoch=3, now_us=number)
    for block in leader.blocks():
        follower.stage_stamped(block)
    follower.commit(9)
    assert [block.tobytes() for block in follower.blocks()] == [block.tobytes() for block in leader.blocks()]
    with pytest.raises(OffsetMismatch):
        follower.stage_stamped(leader.read(0)[0])


def test_truncation_takes_back_whole_blocks(new_log: NewLog) -> None:
    log = new_log(SMALL)
    for number in range(30):
        log.append(made(500), now_us=number)
    with pytest.raises(NotABlockBoundary):
        log.truncate(21)
    log.truncate(20)
    assert (log.log_end, log.durable_end) == (20, 20)
    assert log.append(made(), now_us=1) == range(20, 22)
    assert [block.leader.base_offset for block in log.blocks()] == list(range(0, 22, 2))
    log.truncate(0)
    assert log.log_end == 0
    assert list(log.blocks()) == []


def test_epochs_rise_and_their_ends_are_known(new_log: NewLog) -> None:
    log = new_log(SMALL)
    log.append(made(), epoch=2, now_us=1)
    log.append(made(), epoch=5, now_us=1)
    with pytest.raises(StaleEpoch):
        log.append(made(), epoch=4, now_us=1)
    assert log.epochs.pairs() == [(2, 0), (5, 2)]
    assert log.epochs.end_of(4, log.log_end) == (2, 2)
    log.truncate(2)
    assert log.epochs.newest == 2


def test_retention_drops_whole_segments_and_honours_floors(new_log: NewLog) -> None:
    log = new_log(LogOptions(segment_bytes_max=4 * KIB, retention=Retention(max_bytes=8 * KIB)))
    for number in range(60):
        log.append(made(500), now_us=number)
    log.set_floor("reader", 20)
    sweep = log.sweep_retention(100)
    assert sweep.segments > 0
    assert sweep.held_back > 0
    assert 0 < log.log_start <= 20
    log.set_floor("reader", None)
    log.sweep_retention(100)
    assert log.log_start > 20
    assert sum(segment.index.size for segment in log.segments) <= 8 * KIB
    assert next(iter(log.blocks())).leader.base_offset == log.log_start
    with pytest.raises(OffsetOutOfRange):
        log.read(0)


def test_an_aged_log_keeps_its_end(new_log: NewLog) -> None:
    log = new_log(LogOptions(retention=Retention(max_age_ms=1_000)))
    for number in range(5):
        log.append(made(), now_us=number)
    log.sweep_retention(10_000_000)
    assert (log.log_start, log.log_end) == (10, 10)
    assert log.append(made(), now_us=10_000_000) == range(10, 12)


def test_seeks_by_seq_and_time_find_every_record_at_or_after(new_log: NewLog) -> None:
    log = new_log(LogOptions(segment_bytes_max=4 * KIB, index_interval_bytes=600))
    order = list(range(40))
    random.Random(3).shuffle(order)
    for number in order:
        log.append(made(300, base_seq=1 + 2 * number, time_us=1_000 * number), now_us=1)
    for wanted in (0, 7, 39):
        by_seq = [block.maker.base_seq for block in log.blocks(from_seq=1 + 2 * wanted)]
        assert by_seq == [1 + 2 * number for number in order if number >= wanted]
        by_time = [block.maker.time_min_us for block in log.blocks(from_time_us=1_000 * wanted)]
        assert by_time == [1_000 * number for number in order if number >= wanted]


def test_a_closed_log_is_closed(new_log: NewLog) -> None:
    log = new_log(SMALL)
    log.append(made(), now_us=1)
    log.close(2)
    with pytest.raises(LogClosed):
        log.append(made(), now_us=3)
    with pytest.raises(LogClosed):
        log.read(0)


def fill(log: Log, body: int) -> None:
    for number in range(100):
        log.append(made(body), now_us=number)


def test_a_memory_log_is_capped_and_goes_on_after_a_sweep() -> None:
    options = LogOptions(segment_bytes_max=4 * KIB, retention=Retention(max_events=2))
    log = MemoryLog("channel", now_us=1, options=options, bytes_max=20 * KIB)
    with pytest.raises(MemoryLogFull) as caught:
        fill(log, 500)
    appended = log.log_end // 2
    assert caught.value.retriable
    assert log.held_bytes <= caught.value.bytes_max == 20 * KIB
    assert log.durable_end == log.log_end, "the refused block was taken back"
    assert len(list(log.blocks())) == appended
    log.sweep_retention(1_000)
    assert log.append(made(500), now_us=1_000).start == 2 * appended


@pytest.mark.parametrize("body", range(430, 570, 8))
def test_a_memory_log_full_to_the_brim_can_be_swept(body: int) -> None:
    options = LogOptions(retention=Retention(max_bytes=1))  # one segment that never rolls by itself
    log = MemoryLog("channel", now_us=1, options=options, bytes_max=8 * KIB)
    for _ in range(3):
        with pytest.raises(MemoryLogFull):
            fill(log, body)
        assert log.held_bytes <= 8 * KIB
        end = log.log_end
        log.sweep_retention(1_000)
        assert (log.log_start, log.log_end) == (end, end)


def test_the_default_cap_is_three_gib() -> None:
    assert MEMORY_LOG_BYTES_MAX == 3 * GIB
    assert MemoryLog("channel", now_us=1).disk.free_bytes() == pytest.approx(3 * GIB, abs=100)


def test_a_memory_log_begins_anew_where_its_leader_still_has_records() -> None:
    log = MemoryLog("channel", now_us=1, options=SMALL)
    for number in range(30):
        log.append(made(500), epoch=4, now_us=number)
    log.stage(made(), epoch=4, now_us=31)
    log.reset(1_000, 33)
    assert (log.log_start, log.log_end, log.durable_end) == (1_000, 1_000, 1_000)
    assert log.held_bytes < KIB
    assert log.append(made(), epoch=4, now_us=34) == range(1_000, 1_002)
    assert [block.leader.base_offset for block in log.blocks()] == [1_000]
    with pytest.raises(OffsetOutOfRange):
        log.read(0)


def test_reading_a_memory_log_while_it_grows() -> None:
    """A byte array cannot be resized while a reader looks at it; neither side may notice."""
    log = MemoryLog("channel", now_us=1)
    problems: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                for block in log.blocks(max(0, log.durable_end - 50)):
                    assert block.counted == 2
        except BaseException as error:
            problems.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(2_000):
        log.append(made(2_000), now_us=number)
    stop.set()
    for reader in readers:
        reader.join()
    assert problems == []
