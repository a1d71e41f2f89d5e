"""What a boat's journal promises (JJ1 to JJ4 of `tidelog.edge.journal.journal`), one behaviour at a time."""

from __future__ import annotations

import random
from itertools import count

import pytest

from tests.edge.journals import (
    FOLDER,
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
    segments,
)
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.control import LineageOpened, RangeLost, RangeVoid, UnknownControl
from tidelog.blocks.frames import FrameForm
from tidelog.blocks.header import BlockKind
from tidelog.edge.journal.journal import META_NAME, Journal
from tidelog.errors import (
    DamagedRange,
    DiskFull,
    FolderLocked,
    InvalidRecord,
    LogClosed,
    LogError,
    NotALog,
    SeqExhausted,
)
from tidelog.sim.power import PluggedDisk, PowerCut
from tidelog.storage.atomic import read_mark, write_mark
from tidelog.storage.log.options import Retention
from tidelog.units import US_PER_MS

META = f"{FOLDER}/{META_NAME}"


# --- flushing ------------------------------------------------------------------------------------


def test_a_frame_is_durable_within_a_second_after_it_was_recorded() -> None:
    disk = new_disk()
    journal = opened(disk)
    journal.wake(START_US)
    record(journal, range(1, 4))
    due_us = journal.wake_at_us()
    assert due_us == START_US + journal.options.flush_interval_ms * US_PER_MS <= START_US + SECOND_US
    journal.wake(due_us - 1)
    assert journal.durable_head == 0
    journal.wake(due_us)
    assert journal.durable_head == journal.head == 3
    disk.crash()
    assert held(opened(disk)) == expected(range(1, 4))


def test_a_burst_is_written_without_waiting_for_the_second() -> None:
    journal = opened(new_disk(), flush_frames_max=10)
    record(journal, range(1, 12))
    assert journal.durable_head == 10
    assert journal.statistics().frames_buffered == 1


def test_frames_taken_in_bulk_are_durable_at_once_and_follow_those_taken_one_by_one() -> None:
    disk = new_disk()
    journal = opened(disk, flush_frames_max=16)
    record(journal, range(1, 4))
    assert journal.record_many(frames(range(4, 50)), START_US) == range(4, 50)
    assert journal.record_many(frames(range(0)), START_US) == range(50, 50)
    assert journal.durable_head == 49
    disk.crash()
    assert held(opened(disk)) == expected(range(1, 50))


def test_a_clock_that_is_set_back_does_not_keep_frames_in_memory() -> None:
    journal = opened(new_disk())
    journal.wake(START_US)
    record(journal, range(1, 2))
    journal.wake(START_US - 3600 * SECOND_US)
    assert journal.durable_head == 1


def test_the_longest_frames_fit_their_blocks_however_many_come_at_once() -> None:
    disk = new_disk()
    journal = opened(disk)
    rows = [(START_US, 1, random.Random(number).randbytes(1785)) for number in range(16_384)]
    journal.record_many(FrameColumns.from_rows(rows), START_US)
    journal.seal_all(START_US)
    assert [found for _, found in held(journal)] == rows


def test_frames_that_cannot_be_written_are_refused_before_they_get_a_seq() -> None:
    journal = opened(new_disk())
    bad = frames(range(1, 3))
    bad.can_ids[1] = 1 << 29
    with pytest.raises(InvalidRecord):
        journal.record_many(bad, START_US)
    with pytest.raises(InvalidRecord):
        journal.record(START_US, 1 << 29, b"", START_US)
    with pytest.raises(InvalidRecord):
        journal.record(START_US, 1, bytes(1786), START_US)
    assert journal.head == 0
    assert record(journal, range(1, 3)) == [1, 2]
    journal.flush(START_US)
    assert held(journal) == expected(range(1, 3))


# --- sealing -------------------------------------------------------------------------------------


def test_frames_are_sealed_when_16384_have_gathered() -> None:
    journal = opened(new_disk(), lease_seqs=20_000)
    journal.seal_all(START_US)  # the control record of the opening counts too
    for start in range(1, 16_384, 1024):
        journal.record_many(frames(range(start, min(start + 1024, 16_384))), START_US)
    journal.wake(START_US)
    assert journal.sealed.log_end == 1
    journal.record_many(frames(range(16_384, 16_385)), START_US)
    journal.wake(START_US)
    assert journal.sealed.log_end == journal.log_end
    assert held(journal) == expected(range(1, 16_385))


def test_few_frames_are_sealed_after_a_minute() -> None:
    journal = opened(new_disk())
    record(journal, range(1, 4))
    journal.wake(START_US + SECOND_US)
    journal.wake(START_US + 60 * SECOND_US)  # the control record of the opening is a minute old
    assert journal.sealed.log_end == 1
    journal.wake(START_US + 61 * SECOND_US)
    assert journal.sealed.log_end == journal.log_end == 4
    assert held(journal) == expected(range(1, 4))


def test_sealed_blocks_are_delta_planes_and_smaller() -> None:
    journal = opened(new_disk(), lease_seqs=20_000)
    for second in range(100):
        journal.record_many(frames(range(1 + 100 * second, 101 + 100 * second)), START_US)
    small = journal.size_bytes()
    journal.seal_all(START_US)
    kinds = [(block.maker.kind, block.maker.form) for block in journal.blocks()]
    assert kinds == [(BlockKind.CONTROL, kinds[0][1]), (BlockKind.FRAMES, FrameForm.DELTA_PLANES)]
    assert journal.size_bytes() < small / 2
    assert held(journal) == expected(range(1, 10_001))


def test_control_records_survive_sealing() -> None:
    disk = new_disk()
    journal = opened(disk)
    record(journal, range(1, 4))
    journal.note([RangeLost(lineage="00" * 16, start=1, end=5)], START_US)
    record(journal, range(4, 6))
    journal.seal_all(START_US)
    journal.close(START_US)
    journal = opened(disk)
    assert [type(item) for item in controls(journal)] == [LineageOpened, RangeLost]
    assert held(journal) == expected(range(1, 6))


def test_blocks_that_live_still_reads_are_not_sealed() -> None:
    journal = opened(new_disk(), seal_frames=10)
    for number in range(1, 41):
        record(journal, range(number, number + 1))
        journal.flush(START_US)
    journal.live_floor = 20
    journal.wake(START_US)
    assert 10 <= journal.sealed.log_end <= 20


SEALABLE = {"fresh_segment_bytes": 4096, "seal_frames": 64, "flush_frames_max": 16}


def sealable(seed: int) -> tuple[PluggedDisk, Journal]:
    """A journal with sealed and fresh blocks of both kinds, over several fresh segments."""
    disk = PluggedDisk(random.Random(seed))
    journal = opened(disk, **SEALABLE)
    journal.record_many(frames(range(1, 100)), START_US)
    journal.seal_all(START_US)
    journal.record_many(frames(range(100, 300)), START_US)
    journal.note([UnknownControl(name="a", text="b")], START_US)
    journal.record_many(frames(range(300, 400)), START_US)
    return disk, journal


@pytest.mark.parametrize("fault", ["call fails", "power fails"])
@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_at_any_call_while_sealing_leaves_each_frame_once(seed: int, fault: str) -> None:
    for call in count(1):
        disk, journal = sealable(1000 * seed + call)
        if fault == "call fails":
            disk.faults.fail_after = call
        else:
            disk.cut_after = call
        try:
            journal.seal_all(START_US)
            finished = True
        except (LogError, PowerCut):
            finished = False
        disk.faults.fail_after = None
        disk.crash()
        journal = opened(disk, **SEALABLE)
        assert journal.sealed.damaged() == journal.fresh.damaged() == [], f"seed {seed}, call {call}"
        assert held(journal) == expected(range(1, 400)), f"seed {seed}, call {call}"
        journal.seal_all(START_US)
        assert held(journal) == expected(range(1, 400)), f"seed {seed}, call {call}, sealed again"
        if finished:
            assert call > 20
            return


def test_a_torn_seal_is_not_taken_for_damage_although_a_control_block_in_it_survived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def power_fails() -> None:
        raise PowerCut

    for seed in range(150):
        disk, journal = sealable(seed)
        monkeypatch.setattr(journal.sealed, "sync", power_fails)
        with pytest.raises(PowerCut):
            journal.seal_all(START_US)
        disk.crash()
        journal = opened(disk, **SEALABLE)
        assert journal.sealed.damaged() == [], f"seed {seed}"
        assert held(journal) == expected(range(1, 400)), f"seed {seed}"


def test_a_reader_goes_on_when_sealing_overtakes_it() -> None:
    _, journal = sealable(0)
    blocks = journal.blocks()
    seen = [next(blocks) for _ in range(12)]
    journal.seal_all(START_US)
    seen += blocks
    offsets = {offset for block in seen for offset in block.offsets}
    assert offsets == set(range(journal.log_start, journal.log_end))


def test_damage_in_the_fresh_log_becomes_a_placeholder_and_sealing_goes_on() -> None:
    disk = new_disk()
    journal = opened(disk, flush_frames_max=10)
    journal.record_many(frames(range(1, 41)), START_US)
    (path,) = segments(disk, "fresh")
    third = next(block for block in journal.blocks() if block.maker.base_seq == 21)
    before = sum(block.size for block in journal.blocks() if block.offsets.start < third.offsets.start)
    disk.flip_bit(path, 64 + before + third.size // 2, 3)
    journal.seal_all(START_US)
    assert journal.sealed.log_end == journal.log_end
    assert held(journal) == expected(range(1, 21)) + expected(range(31, 41))
    assert journal.sealed.damaged() == [third.offsets]
    with pytest.raises(DamagedRange):
        journal.read(third.offsets.start)


def test_damage_in_the_sealed_log_is_repaired_while_the_fresh_form_is_still_there() -> None:
    disk = new_disk()
    journal = opened(disk, flush_frames_max=10, seal_frames=30)
    journal.record_many(frames(range(1, 71)), START_US)
    journal.wake(START_US)
    assert 0 < journal.sealed.log_end < journal.log_end
    (path,) = segments(disk, "sealed")
    disk.flip_bit(path, 64 + 128 + 5, 0)
    disk.crash()
    journal = opened(disk, flush_frames_max=10, seal_frames=30)
    assert held(journal) == expected(range(1, 71))
    journal.seal_all(START_US)
    assert held(journal) == expected(range(1, 71))


# --- seqs ----------------------------------------------------------------------------------------


def test_a_power_cut_never_gives_a_seq_out_again() -> None:
    disk = new_disk()
    journal = opened(disk)
    record(journal, range(1, 31))
    journal.flush(START_US)
    record(journal, range(31, 51))  # issued, and lost with the power
    leased_end = journal.statistics().leased_end
    disk.crash()
    journal = opened(disk)
    assert journal.durable_head == 30
    assert journal.statistics().void == (range(31, leased_end),)
    assert RangeVoid(lineage=journal.lineage.hex(), start=31, end=leased_end) in controls(journal)
    assert record(journal, range(51, 52)) == [leased_end]


def test_a_clean_close_leaves_nothing_void_and_goes_on_with_the_next_seq() -> None:
    disk = new_disk()
    journal = opened(disk)
    record(journal, range(1, 31))
    journal.close(START_US)
    journal = opened(disk)
    assert journal.statistics().void == ()
    assert journal.head == journal.durable_head == 30
    assert record(journal, range(31, 32)) == [31]


def test_a_clean_close_after_a_power_cut_does_not_give_void_seqs_out_again() -> None:
    disk = new_disk()
    record(opened(disk), range(1, 31))
    disk.crash()
    journal = opened(disk)
    head = journal.head
    assert head >= 30
    journal.close(START_US)
    journal = opened(disk)
    assert record(journal, range(1, 2)) == [head + 1]


def test_acked_frames_that_retention_removed_are_not_reported_lost() -> None:
    disk = new_disk()
    retention = Retention(max_age_ms=1)
    journal = opened(disk, lease_seqs=10, retention=retention)
    record(journal, range(1, 31))
    journal.seal_all(START_US)
    journal.acknowledge(30)
    journal.sweep_retention(START_US + SECOND_US)
    assert held(journal) == []
    disk.crash()
    journal = opened(disk, retention=retention)
    assert not [item for item in controls(journal) if isinstance(item, RangeLost)]
    assert journal.acked == 30
    assert journal.durable_head == 30


def test_the_last_seq_is_refused_with_a_typed_error() -> None:
    disk = new_disk()
    journal = opened(disk)
    journal.close(START_US)
    meta = read_mark(disk, META)
    assert meta is not None
    write_mark(disk, META, {**meta, "leased_end": 2**63 - 200})
    journal = opened(disk, lease_seqs=100)
    with pytest.raises(SeqExhausted):
        record(journal, range(300))


# --- lineage -------------------------------------------------------------------------------------


def test_the_lineage_survives_restarts_and_power_cuts() -> None:
    disk = new_disk()
    journal = opened(disk)
    lineage = journal.lineage
    journal.close(START_US)
    assert opened(disk, START_US + 1).lineage == lineage
    disk.crash()
    assert opened(disk, START_US + 2).lineage == lineage


@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_a_journal_that_lost_its_meta_file_starts_a_new_lineage_and_keeps_the_old_frames(how: str) -> None:
    disk = new_disk()
    journal = opened(disk)
    record(journal, range(1, 6))
    journal.close(START_US)
    if how == "removed":
        disk.remove(META)
    else:
        disk.flip_bit(META, 20, 1)
    reopened = opened(disk, START_US + 1)
    assert reopened.lineage != journal.lineage
    assert held(reopened, journal.lineage) == expected(range(1, 6))
    assert record(reopened, range(1, 2)) == [1]
    reopened.seal_all(START_US)
    reopened.sweep_retention(START_US)
    assert held(reopened, journal.lineage) == expected(range(1, 6)), "not acked, so it stays"


def test_a_fork_starts_a_new_lineage_at_seq_one_and_says_so() -> None:
    disk = new_disk()
    journal = opened(disk)
    old = journal.lineage
    record(journal, range(1, 6))
    new = journal.fork_lineage("the cluster is ahead", START_US)
    assert new == journal.lineage != old
    assert record(journal, range(1, 3)) == [1, 2]
    journal.close(START_US)
    journal = opened(disk, START_US + 1)
    assert journal.lineage == new
    assert held(journal, old) == expected(range(1, 6))
    assert held(journal) == expected(range(1, 3))
    opening = [item for item in controls(journal) if isinstance(item, LineageOpened)][-1]
    assert (opening.lineage, opening.previous) == (new.hex(), old.hex())


def test_a_fork_that_fails_leaves_the_old_lineage_in_use() -> None:
    for call in count(1):
        disk = new_disk()
        journal = opened(disk)
        old = journal.lineage
        record(journal, range(1, 6))
        disk.faults.fail_kind, disk.faults.fail_after = "full", call
        try:
            journal.fork_lineage("a test", START_US)
        except DiskFull:
            assert journal.lineage == old
            assert record(journal, range(6, 8)) == [6, 7]
            journal.flush(START_US)
            assert held(journal) == expected(range(1, 8))
        else:
            assert call > 2
            return


# --- opening ---------------------------------------------------------------------------------------


def test_a_second_opener_is_refused() -> None:
    disk = new_disk()
    journal = opened(disk)
    with pytest.raises(FolderLocked):
        opened(disk)
    record(journal, range(1, 3))
    journal.close(START_US)
    assert held(opened(disk)) == expected(range(1, 3))


def test_a_closed_journal_takes_nothing_and_leaves_the_files_alone() -> None:
    disk = new_disk()
    journal = opened(disk)
    journal.close(START_US)
    second = opened(disk)
    with pytest.raises(LogClosed):
        journal.record(*frame(1), START_US)
    with pytest.raises(LogClosed):
        journal.record_many(frames(range(1, 3)), START_US)
    assert record(second, range(1, 3)) == [1, 2]
    second.close(START_US)
    assert opened(disk).head == 2


def test_a_journal_of_a_newer_format_is_refused_and_not_touched() -> None:
    disk = new_disk()
    disk.make_folder(FOLDER)
    write_mark(disk, META, {"format": 2})
    with pytest.raises(NotALog, match="format 2"):
        opened(disk)
    assert disk.list_folder(FOLDER) == [META_NAME]


def test_a_lost_fresh_folder_costs_only_what_was_not_sealed() -> None:
    disk = new_disk()
    journal = opened(disk)
    record(journal, range(1, 11))
    journal.seal_all(START_US)
    record(journal, range(11, 15))
    journal.close(START_US)
    disk.remove_folder(f"{FOLDER}/fresh")
    journal = opened(disk)
    assert held(journal) == expected(range(1, 11))
    assert RangeLost(lineage=journal.lineage.hex(), start=11, end=15, reason="damaged on the boat") in controls(journal)
    assert record(journal, range(15, 17)) == [15, 16]
    journal.seal_all(START_US)
    assert held(journal) == expected(range(1, 11)) + expected(range(15, 17))


def test_a_lost_sealed_folder_costs_only_what_was_sealed() -> None:
    disk = new_disk()
    journal = opened(disk)
    record(journal, range(1, 11))
    journal.seal_all(START_US)
    record(journal, range(11, 15))
    journal.close(START_US)
    disk.remove_folder(f"{FOLDER}/sealed")
    journal = opened(disk)
    assert held(journal) == expected(range(11, 15))
    assert record(journal, range(15, 17)) == [15, 16]
    journal.seal_all(START_US)
    journal.wake(START_US + 100 * SECOND_US)
    assert held(journal) == expected(range(11, 17))


def test_the_log_start_is_where_reading_can_begin() -> None:
    disk = new_disk()
    # One fresh segment that is only partly sealed, while the sealed form of its beginning is already trimmed.
    journal = opened(
        disk, flush_frames_max=50, seal_frames=50, sealed_segment_bytes=4096, retention=Retention(max_events=1)
    )
    for start in range(1, 1001, 50):
        rows = [(START_US, number, random.Random(number).randbytes(60)) for number in range(start, start + 50)]
        journal.record_many(FrameColumns.from_rows(rows), START_US)
        journal.live_floor = journal.log_end - 100
        journal.wake(START_US)
    journal.acknowledge(900)
    journal.sweep_retention(START_US)
    assert journal.log_start > 0
    assert journal.read(journal.log_start)
    assert next(journal.blocks()).offsets.start == journal.log_start
