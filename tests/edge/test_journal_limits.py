"""What a journal does at its limits: retention, the disk limit, full and failing disks."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest

from tests.edge.journals import (
    SECOND_US,
    START_US,
    controls,
    expected,
    frame,
    frames,
    held,
    new_disk,
    opened,
    record,
)
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.control import RangeLost
from tidelog.edge.journal.journal import Journal, JournalOptions
from tidelog.errors import (
    DiskError,
    DiskFull,
    InvalidConfig,
    LogError,
    LogPoisoned,
    SyncFailed,
)
from tidelog.sim.disk import FailKind, SimDisk
from tidelog.storage.log.options import Retention

# --- what goes ------------------------------------------------------------------------------------


def limited(disk: SimDisk, **options: Any) -> Journal:
    return opened(disk, fresh_segment_bytes=4096, sealed_segment_bytes=4096, flush_frames_max=64, **options)


def fill(journal: Journal, numbers: range, now_us: int = START_US) -> None:
    """Frames that do not compress, sealed as they come."""
    for start in range(numbers.start, numbers.stop, 50):
        part = range(start, min(start + 50, numbers.stop))
        rows = [(START_US, number, random.Random(number).randbytes(60)) for number in part]
        journal.record_many(FrameColumns.from_rows(rows), now_us)
        journal.seal_all(now_us)


@pytest.mark.parametrize("keep_unacked", [True, False])
def test_age_removes_what_nobody_will_ever_ack_and_says_so(keep_unacked: bool) -> None:
    journal = limited(new_disk(), retention=Retention(max_age_ms=60_000), keep_unacked=keep_unacked)
    fill(journal, range(1, 301))
    later_us = START_US + 61 * SECOND_US
    fill(journal, range(301, 401), later_us)
    journal.sweep_retention(later_us)
    kept = [seq for seq, _ in held(journal)]
    assert kept[-1] == 400
    if keep_unacked:
        assert kept[0] == 1
    else:
        assert 250 < kept[0] <= 301
        gone = [record for record in controls(journal) if isinstance(record, RangeLost)]
        assert {seq for record in gone for seq in range(record.start, record.end)} == set(range(1, kept[0]))


def test_retention_keeps_what_is_not_acked() -> None:
    journal = limited(new_disk(), retention=Retention(max_bytes=4096))
    fill(journal, range(1, 501))
    journal.sweep_retention(START_US)
    assert [seq for seq, _ in held(journal)] == list(range(1, 501))
    journal.acknowledge(300)
    journal.sweep_retention(START_US)
    kept = [seq for seq, _ in held(journal)]
    assert 200 < kept[0] <= 301
    assert kept[-1] == 500
    assert journal.statistics().forced_lost == ()


def test_retention_waits_for_every_lineage_in_the_journal() -> None:
    journal = limited(new_disk(), retention=Retention(max_bytes=4096))
    old = journal.lineage
    fill(journal, range(1, 301))
    journal.fork_lineage("a test", START_US)
    fill(journal, range(1, 301))
    journal.acknowledge(300)
    journal.sweep_retention(START_US)
    assert len(held(journal, old)) == 300
    journal.acknowledge(300, old)
    journal.sweep_retention(START_US)
    assert held(journal, old) == []


def test_an_ack_never_goes_back_nor_beyond_the_head() -> None:
    journal = opened(new_disk())
    record(journal, range(1, 11))
    journal.acknowledge(7)
    journal.acknowledge(3)
    assert journal.acked == 7
    journal.acknowledge(50)
    assert journal.acked == 10


@pytest.mark.parametrize("live", [False, True])
def test_the_disk_limit_holds_and_what_it_removes_is_reported(live: bool) -> None:
    disk = new_disk()
    limit = 5 * 4096
    journal = limited(disk, disk_bytes_max=limit)
    journal.live_floor = 0 if live else None
    for start in range(1, 2001, 50):
        rows = [(START_US, number, random.Random(number).randbytes(60)) for number in range(start, start + 50)]
        journal.record_many(FrameColumns.from_rows(rows), START_US)
        assert journal.size_bytes() <= limit or journal.wake_at_us() <= START_US
        journal.wake(START_US)
        assert journal.size_bytes() <= limit
    kept = {seq for seq, _ in held(journal)}
    gone = set(range(1, 2001)) - kept
    reported = {seq for part in journal.statistics().forced_lost for seq in part}
    assert gone
    assert reported == gone
    disk.crash()
    journal = limited(disk, disk_bytes_max=limit)
    assert {seq for seq, _ in held(journal)} == kept


@pytest.mark.parametrize("seed", range(5))
def test_a_power_cut_while_the_disk_limit_removes_frames_leaves_none_missing_without_a_word(seed: int) -> None:
    for call in count(1):
        disk = new_disk(seed)
        journal = limited(disk)
        fill(journal, range(1, 501))
        journal.close(START_US)
        journal = limited(disk, disk_bytes_max=5 * 4096)
        disk.faults.fail_after = call
        try:
            journal.sweep_retention(START_US)
        except LogError:
            pass
        finished = disk.faults.fail_after is not None
        disk.faults.fail_after = None
        disk.crash()
        journal = limited(disk)
        kept = {seq for seq, _ in held(journal)}
        said = {seq for item in controls(journal) if isinstance(item, RangeLost) for seq in range(item.start, item.end)}
        assert kept | said >= set(range(1, 501)), f"seed {seed}, call {call}"
        if finished:
            return


def test_frames_that_wait_for_room_keep_their_seqs_when_the_disk_limit_writes_them() -> None:
    disk = new_disk()
    journal = limited(disk, disk_bytes_max=5 * 4096, lease_seqs=10_000)
    fill(journal, range(1, 501))
    disk.faults.fail_kind, disk.faults.fail_after, disk.faults.fail_forever = "full", 1, True
    assert record(journal, range(501, 571)) == list(range(501, 571)), "64 wait after a refused flush, 6 came later"
    disk.faults.fail_after, disk.faults.fail_forever = None, False
    journal.sweep_retention(START_US)
    assert journal.statistics().forced_lost
    journal.flush(START_US)
    assert journal.durable_head == 570
    assert [found for found in held(journal) if found[0] > 500] == expected(range(501, 571))


def test_what_the_disk_limit_removed_is_lost_and_not_void_after_a_power_cut_even_if_nothing_is_left() -> None:
    disk = new_disk()
    journal = opened(disk, fresh_segment_bytes=4096, flush_frames_max=64, disk_bytes_max=4 * 4096, lease_seqs=1_000)
    rows = [(START_US, number, random.Random(number).randbytes(60)) for number in range(1, 501)]
    journal.record_many(FrameColumns.from_rows(rows), START_US)
    journal.sweep_retention(START_US)
    assert held(journal) == []
    disk.crash()
    journal = opened(disk)
    assert journal.durable_head == 500
    assert journal.statistics().void == (range(501, 1_001),)


def test_a_small_disk_limit_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="four fresh segments"):
        JournalOptions(disk_bytes_max=1000)
    with pytest.raises(InvalidConfig, match=r"lease_seqs must be positive.*buffer_frames_max"):
        JournalOptions(lease_seqs=0, buffer_frames_max=1)
    with pytest.raises(InvalidConfig, match="65536"):
        JournalOptions(seal_frames=100_000)


# --- a disk that fails -----------------------------------------------------------------------------


def test_a_full_disk_keeps_frames_in_memory_up_to_the_limit_and_loses_none_when_there_is_room_again() -> None:
    disk = new_disk()
    journal = opened(disk, flush_frames_max=10, buffer_frames_max=100, lease_seqs=10_000)
    record(journal, range(1, 6))
    journal.flush(START_US)
    disk.faults.fail_kind, disk.faults.fail_after, disk.faults.fail_forever = "full", 1, True
    assert record(journal, range(6, 106)) == list(range(6, 106))
    for attempt in range(50):
        now_us = START_US + attempt * SECOND_US // 5
        with pytest.raises(DiskFull):
            journal.record(*frame(106), now_us)
        with pytest.raises(DiskFull):
            journal.record_many(frames(range(106, 110)), now_us)
    assert journal.head == 105
    assert journal.durable_head == 5
    with pytest.raises(DiskFull):
        journal.wake(START_US + 20 * SECOND_US)
    assert journal.wake_at_us() > START_US + 20 * SECOND_US, "a driver must not spin while the disk is full"
    disk.faults.fail_after, disk.faults.fail_forever = None, False
    journal.wake(START_US + 21 * SECOND_US)
    assert journal.durable_head == 105
    assert record(journal, range(106, 107), START_US + 21 * SECOND_US) == [106]
    journal.close(START_US + 22 * SECOND_US)
    assert held(opened(disk)) == expected(range(1, 107))


def test_a_full_disk_that_stopped_a_seal_gives_back_what_is_held_in_both_forms() -> None:
    disk = new_disk()
    segments = {"fresh_segment_bytes": 4096, "sealed_segment_bytes": 4096}
    journal = opened(disk, seal_frames=50, flush_frames_max=50, buffer_frames_max=100, lease_seqs=2_000, **segments)
    rows = [(START_US, number, random.Random(number).randbytes(60)) for number in range(1, 801)]
    journal.record_many(FrameColumns.from_rows(rows[:600]), START_US)
    disk.faults.capacity_bytes = disk._used_bytes + 12_000
    with pytest.raises(DiskFull):
        journal.seal_all(START_US)
    assert journal.sealed.durable_end > journal.fresh.segments[0].index.end_offset
    for row in rows[600:]:
        journal.record(*row, START_US)
    assert journal.durable_head > 600, "there was room for more than memory takes"
    assert journal.statistics().forced_lost == ()
    assert held(journal) == list(enumerate(rows[: journal.durable_head], 1))


def test_a_disk_that_is_full_in_the_middle_of_a_flush_doubles_nothing() -> None:
    for call in count(1):
        disk = new_disk(call)
        journal = opened(disk, flush_frames_max=10, fresh_segment_bytes=4096, lease_seqs=2_000)
        rows = [(START_US, number, random.Random(number).randbytes(200)) for number in range(1, 101)]
        disk.faults.fail_kind, disk.faults.fail_after = "full", call
        assert journal.record_many(FrameColumns.from_rows(rows), START_US) == range(1, 101)
        finished = disk.faults.fail_after is not None
        disk.faults.fail_after = None
        journal.wake(START_US + SECOND_US)
        assert journal.durable_head == 100
        disk.crash()
        found = held(opened(disk))
        assert found == list(zip(range(1, 101), rows, strict=True)), f"call {call}"
        if finished:
            assert call > 5
            return


def test_a_write_error_that_was_undone_is_tried_again_without_a_new_frame() -> None:
    disk = new_disk()
    journal = opened(disk)
    journal.wake(START_US)
    record(journal, range(1, 4))
    disk.faults.fail_after = 1
    with pytest.raises(DiskError):
        journal.wake(START_US + SECOND_US)
    assert journal.wake_at_us() <= START_US + 2 * SECOND_US
    journal.wake(START_US + 2 * SECOND_US)
    assert held(journal) == expected(range(1, 4))


@pytest.mark.parametrize("kind", ["io", "full"])
def test_a_seal_that_fails_is_remembered_until_one_succeeds_and_loses_nothing(kind: str) -> None:
    disk = new_disk()
    journal = opened(disk, seal_frames=10)
    record(journal, range(1, 21))
    journal.flush(START_US)
    disk.faults.fail_kind, disk.faults.fail_after, disk.faults.fail_forever = kind, 1, True  # type: ignore[assignment]
    with pytest.raises(DiskError):
        journal.wake(START_US)
    assert journal.refusal is None, "what was recorded reached the disk"
    assert (journal.upkeep.problem or "").startswith("the journal cannot be sealed: ")
    disk.faults.fail_after, disk.faults.fail_forever = None, False
    journal.live_floor = 0
    journal.wake(START_US)
    problem = journal.upkeep.problem
    assert problem is not None, "UK1: nothing was due"
    journal.live_floor = None
    journal.wake(START_US)
    assert journal.upkeep.problem is None
    assert held(journal) == expected(range(1, 21))


def test_a_sweep_that_fails_is_remembered_until_one_succeeds() -> None:
    disk = new_disk()
    journal = limited(disk, retention=Retention(max_bytes=4096))
    fill(journal, range(1, 501))
    journal.acknowledge(500)
    disk.faults.fail_after, disk.faults.fail_forever = 1, True
    with pytest.raises(DiskError):
        journal.wake(START_US)
    assert (journal.upkeep.problem or "").startswith("the journal cannot be trimmed: ")
    disk.faults.fail_after, disk.faults.fail_forever = None, False
    journal.wake(START_US + SECOND_US)
    problem = journal.upkeep.problem
    assert problem is not None, "UK1: no sweep was due"
    journal.wake(journal.wake_at_us())
    assert journal.upkeep.problem is None


def fail_call(disk: SimDisk, number: int, kind: FailKind) -> None:
    disk.faults.fail_kind, disk.faults.fail_after = kind, number


@pytest.mark.parametrize("kind", ["io", "full"])
def test_a_lease_ahead_that_fails_is_remembered_until_one_succeeds(kind: FailKind) -> None:
    for call in count(1):
        disk = new_disk()
        journal = opened(disk, lease_seqs=100)
        record(journal, range(1, 61))
        fail_call(disk, call, kind)
        try:
            journal.flush(START_US)
        except DiskError:
            pass
        assert disk.faults.fail_after is None, "no call was the lease's"
        if journal.refusal is None and journal.upkeep.problem is not None:
            break
    assert journal.durable_head == 60
    assert (journal.upkeep.problem or "").startswith("the journal cannot lease more seqs: ")
    record(journal, range(61, 62))
    journal.flush(START_US)
    assert journal.upkeep.problem is None


def test_after_a_failed_sync_nothing_is_acked_until_the_journal_is_opened_anew() -> None:
    disk = new_disk()
    journal = opened(disk, flush_frames_max=10, buffer_frames_max=20)
    record(journal, range(1, 4))
    journal.flush(START_US)
    record(journal, range(4, 6))
    disk.faults.fail_kind, disk.faults.fail_after = "sync", 1
    with pytest.raises(SyncFailed):
        journal.flush(START_US)
    assert journal.durable_head == 3
    with pytest.raises(LogPoisoned):
        journal.record_many(frames(range(6, 8)), START_US)
    with pytest.raises(LogPoisoned):
        record(journal, range(6, 100))
    assert journal.durable_head == 3
    with pytest.raises(LogPoisoned):
        journal.close(START_US)
    reopened = opened(disk)
    assert held(reopened)[:3] == expected(range(1, 4))
    assert reopened.head > journal.head, "JJ1"


def test_a_close_on_a_full_disk_can_be_repeated_when_there_is_room() -> None:
    disk = new_disk()
    journal = opened(disk)
    record(journal, range(1, 4))
    disk.faults.fail_kind, disk.faults.fail_after, disk.faults.fail_forever = "full", 1, True
    with pytest.raises(DiskFull):
        journal.close(START_US)
    disk.faults.fail_after, disk.faults.fail_forever = None, False
    journal.close(START_US)
    journal.close(START_US)
    journal = opened(disk)
    assert held(journal) == expected(range(1, 4))
    assert journal.statistics().void == ()


@pytest.mark.parametrize("kind", ["io", "full"])
def test_an_open_that_fails_at_any_call_lets_go_and_the_next_one_works(kind: FailKind) -> None:
    for call in count(1):
        disk = new_disk()
        journal = opened(disk)
        record(journal, range(1, 4))
        journal.flush(START_US)
        disk.crash()
        fail_call(disk, call, kind)
        try:
            opened(disk)
        except DiskError:
            assert held(opened(disk)) == expected(range(1, 4)), f"call {call}"
        else:
            if disk.faults.fail_after is not None:
                assert call > 10
                return
