"""The scrubber finds rot wherever it is, at the rate it was given, and a peer's bytes heal it."""

from __future__ import annotations

import random

import pytest

from tidelog.blocks.block import Block, make_block
from tidelog.blocks.header import BlockKind
from tidelog.errors import DamagedRange, LogPoisoned
from tidelog.sim.disk import SimDisk
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.recovery import open_log
from tidelog.storage.log.scrub import Scrubber
from tidelog.storage.log.segment import SEGMENT_HEAD_BYTES

BODY = 200


def filled_log(disk: SimDisk, blocks: int = 6, *, interval_bytes: int = 64 * 1024, body: int = BODY) -> Log:
    """A sealed segment of `blocks` blocks with two records each, and a newest one with one."""
    options = LogOptions(index_interval_bytes=interval_bytes, reserve_bytes=0)
    log = open_log(disk, "log", now_us=1, options=options)
    for number in range(blocks):
        log.append(make_block(bytes([number]) * body, kind=BlockKind.FRAMES, form=1, record_count=2), now_us=1)
    log.roll(1)
    log.append(make_block(b"newest", kind=BlockKind.FRAMES, form=1, record_count=1), now_us=1)
    return log


def test_a_good_log_is_found_good() -> None:
    log = filled_log(SimDisk(random.Random(1)))
    scrubber = Scrubber(log)
    assert scrubber.check_all() == []
    statistics = scrubber.statistics()
    assert statistics.bytes_checked == sum(segment.index.size - SEGMENT_HEAD_BYTES for segment in log.segments)
    assert (statistics.passes, statistics.heads_repaired, statistics.damaged) == (1, 0, ())


def test_an_empty_log_is_a_whole_pass() -> None:
    log = open_log(SimDisk(random.Random(1)), "log", now_us=1)
    scrubber = Scrubber(log)
    assert scrubber.check_all() == []
    assert scrubber.statistics().passes == 1


def test_a_flip_of_every_byte_of_a_sealed_segment_is_found() -> None:
    origin = SimDisk(random.Random(1))
    log = filled_log(origin, blocks=3)
    path, size = log.segments[0].path, log.segments[0].index.size
    log.close()
    for position in range(size):
        disk = origin.clone(random.Random(position))
        log = open_log(disk, "log", now_us=1)
        disk.flip_bit(path, position, position % 8)
        scrubber = Scrubber(log)
        found = scrubber.check_all()
        if position < SEGMENT_HEAD_BYTES:
            assert scrubber.statistics().heads_repaired == 1
            assert found == []
            assert log.damaged() == []
        else:
            number = (position - SEGMENT_HEAD_BYTES) // (BODY + 128)
            assert found == [range(2 * number, 2 * number + 2)]
            assert log.damaged() == found
        assert scrubber.check_all() == [], "the second pass finds what the first has settled"
        assert log.log_end == 7


def test_a_head_and_a_block_damaged_together_are_both_settled() -> None:
    disk = SimDisk(random.Random(1))
    log = filled_log(disk)
    disk.flip_bit(log.segments[0].path, 10, 0)
    disk.flip_bit(log.segments[0].path, SEGMENT_HEAD_BYTES + 150, 0)
    scrubber = Scrubber(log)
    assert scrubber.check_all() == [range(2)]
    assert scrubber.check_all() == []


def test_a_valid_block_in_the_wrong_place_is_damage() -> None:
    disk = SimDisk(random.Random(1))
    log = filled_log(disk)
    path, size = log.segments[0].path, BODY + 128
    data = disk.durable_bytes(path)
    first, second = SEGMENT_HEAD_BYTES, SEGMENT_HEAD_BYTES + size
    disk.replace_bytes(path, data[:second] + data[first:second] + data[second + size :])
    assert Scrubber(log).check_all() == [range(2, 4)]


def test_a_segment_that_ends_early_is_found() -> None:
    disk = SimDisk(random.Random(1))
    log = filled_log(disk)
    path = log.segments[0].path
    disk.replace_bytes(path, disk.durable_bytes(path)[: SEGMENT_HEAD_BYTES + 4 * (BODY + 128) + 50])
    assert Scrubber(log).check_all() == [range(8, 12)]
    assert log.damaged() == [range(8, 12)]


@pytest.mark.parametrize("bytes_per_s", [100, 1_000, 5_000, 1_000_000])
@pytest.mark.parametrize("interval_bytes", [1, 1_000, 64 * 1024])
def test_the_rate_is_kept_and_every_block_is_reached(bytes_per_s: int, interval_bytes: int) -> None:
    disk = SimDisk(random.Random(1))
    log = filled_log(disk, blocks=20, interval_bytes=interval_bytes)
    disk.flip_bit(log.segments[0].path, log.segments[0].index.size - 1, 0)
    scrubber = Scrubber(log, bytes_per_s=bytes_per_s)
    found: list[range] = []
    now_ms = 0
    total = sum(segment.index.size for segment in log.segments)
    while scrubber.statistics().passes < 2:
        found += scrubber.wake(now_ms)
        seconds = now_ms / 1000 + 1
        assert scrubber.statistics().bytes_checked <= seconds * bytes_per_s + BODY + 128 + SEGMENT_HEAD_BYTES
        now_ms = scrubber.wake_at_ms()
        assert now_ms <= 4_000 * (total // bytes_per_s + 4), "the scrubber makes no progress"
    assert found == [range(38, 40)]


def test_time_without_calls_is_not_saved_up() -> None:
    log = filled_log(SimDisk(random.Random(1)), blocks=200)
    scrubber = Scrubber(log, bytes_per_s=1_000)
    scrubber.wake(0)
    before = scrubber.statistics().bytes_checked
    scrubber.wake(86_400_000)
    assert scrubber.statistics().bytes_checked - before <= 10_000 + BODY + 128
    scrubber.wake(0)  # a clock that runs backwards earns nothing
    assert scrubber.statistics().bytes_checked - before <= 10_000 + BODY + 128


def test_it_starts_over_and_finds_what_rotted_since() -> None:
    disk = SimDisk(random.Random(1))
    log = filled_log(disk)
    scrubber = Scrubber(log)
    assert scrubber.check_all() == []
    disk.flip_bit(log.segments[0].path, SEGMENT_HEAD_BYTES + 5, 1)
    now_ms = 0
    found: list[range] = []
    while not found:
        found = scrubber.wake(now_ms)
        now_ms += 1_000
        assert now_ms < 10_000
    assert found == [range(2)]


def test_a_log_that_moves_under_the_scrubber_does_not_confuse_it() -> None:
    disk = SimDisk(random.Random(1))
    log = filled_log(disk, blocks=30, interval_bytes=500)
    scrubber = Scrubber(log, bytes_per_s=2_000)
    rng = random.Random(2)
    for second in range(200):
        assert scrubber.wake(second * 1_000) == []
        if rng.random() < 0.2 and log.log_end > 30:
            log.truncate(log.read(rng.randrange(10, log.log_end), bytes_max=1)[0].leader.base_offset)
        log.append(make_block(rng.randbytes(100), kind=BlockKind.FRAMES, form=1, record_count=2), now_us=second)
        if second == 100:
            log.trim(20, second)
    assert scrubber.statistics().passes > 1


def test_a_damaged_range_is_replaced_from_a_peer_and_then_reads() -> None:
    disk, peer_disk = SimDisk(random.Random(1)), SimDisk(random.Random(1))
    log, peer = filled_log(disk), filled_log(peer_disk)
    disk.flip_bit(log.segments[0].path, SEGMENT_HEAD_BYTES + 2 * (BODY + 128) + 140, 4)
    (damaged,) = Scrubber(log).check_all()
    with pytest.raises(DamagedRange) as caught:
        log.read(damaged.start)
    assert (caught.value.start, caught.value.end) == (damaged.start, damaged.stop)
    wanted = peer.read(damaged.start, end=damaged.stop)
    assert log.replace(wanted) == damaged
    assert log.damaged() == []
    assert everything(log) == everything(peer)
    assert Scrubber(log).check_all() == []


def everything(log: Log) -> list[bytes]:
    found: list[Block] = list(log.blocks())
    return [block.tobytes() for block in found]


def test_a_stopped_log_is_not_scrubbed() -> None:
    log = filled_log(SimDisk(random.Random(1)))
    log.poison("a test")
    with pytest.raises(LogPoisoned):
        Scrubber(log).check_all()
