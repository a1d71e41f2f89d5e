"""What a log does for its callers, on a disk that behaves unless a test says otherwise."""

from __future__ import annotations

import pytest

from tests.storage.logs import CHANNEL, FOLDER, contents, fill, flip, killed, made, new_disk, opened, options, stamped
from tidelog.blocks.header import HEAD_BYTES
from tidelog.blocks.messages import encode_values
from tidelog.errors import (
    BlockCorrupt,
    DamagedRange,
    DiskError,
    FolderLocked,
    LogClosed,
    NotABlockBoundary,
    NotALog,
    OffsetMismatch,
    OffsetOutOfRange,
    StaleEpoch,
)
from tidelog.storage.log.epochs import EpochHistory
from tidelog.storage.log.options import LogOptions, Retention
from tidelog.storage.log.recovery import open_log

# --- appending and reading -------------------------------------------------------------------------


def test_a_new_log_is_empty_and_says_so() -> None:
    log = opened(new_disk())
    assert (log.log_start, log.durable_end, log.log_end) == (0, 0, 0)
    assert log.read(0) == []
    assert list(log.blocks()) == []
    assert log.recovery is not None
    assert not log.recovery.bytes_cut


def test_a_log_may_begin_at_any_offset() -> None:
    log = open_log(new_disk(), FOLDER, now_us=0, options=options(), base_offset=500)
    assert log.append(made(), now_us=1) == range(500, 503)


def test_appended_records_get_the_next_offsets_and_are_read_back() -> None:
    log = opened(new_disk())
    assert log.append(made(3), now_us=1) == range(3)
    assert log.append(made(2), now_us=2) == range(3, 5)
    blocks = log.read(0)
    assert [block.offsets for block in blocks] == [range(3), range(3, 5)]
    assert [block.leader.append_time_us for block in blocks] == [1, 2]
    assert log.durable_end == 5


def test_reading_inside_a_block_gives_the_whole_block() -> None:
    log = opened(new_disk())
    fill(log, 4)
    assert log.read(4)[0].offsets == range(3, 6)


def test_a_read_stops_at_the_end_given_and_at_its_budget() -> None:
    log = opened(new_disk())
    fill(log, 4)
    assert [block.offsets.start for block in log.read(0, end=6)] == [0, 3]
    assert len(log.read(0, bytes_max=1)) == 1
    assert log.read(6, end=6) == []


def test_reading_outside_the_log_is_refused_with_its_ends() -> None:
    log = opened(new_disk())
    fill(log, 2)
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(7)
    assert (caught.value.log_start, caught.value.log_end) == (0, 6)


def test_staged_blocks_are_read_before_they_are_written() -> None:
    log = opened(new_disk())
    fill(log, 1)
    log.stage(made(2), epoch=1, now_us=5)
    assert (log.written_end, log.durable_end, log.log_end) == (3, 3, 5)
    assert [block.offsets for block in log.blocks()] == [range(3), range(3, 5)]


def test_staging_flushing_and_syncing_move_one_end_each() -> None:
    log = opened(new_disk())
    log.stage(made(2), epoch=1, now_us=1)
    assert (log.log_end, log.written_end, log.durable_end) == (2, 0, 0)
    log.flush(1)
    assert (log.log_end, log.written_end, log.durable_end) == (2, 2, 0)
    log.sync()
    assert (log.log_end, log.written_end, log.durable_end) == (2, 2, 2)


def test_watchers_hear_of_every_move_until_they_stop() -> None:
    log, moves = opened(new_disk()), []
    stop = log.watch(lambda: moves.append(log.durable_end))
    fill(log, 1)
    assert moves[-1] == 3
    stop()
    heard = len(moves)
    fill(log, 1)
    assert len(moves) == heard


def test_an_empty_block_changes_nothing() -> None:
    log = opened(new_disk())
    assert log.append(made(0), now_us=1) == range(0)
    assert log.statistics().blocks == 0


def test_discarding_staged_blocks_takes_their_offsets_and_epoch_back() -> None:
    log = opened(new_disk())
    fill(log, 1)
    log.stage(made(2), epoch=4, now_us=1)
    log.discard_staged()
    assert (log.log_end, log.epochs.pairs()) == (3, [(1, 0)])
    assert log.append(made(1), epoch=2, now_us=1) == range(3, 4)


# --- windows ---------------------------------------------------------------------------------------


def test_only_records_inside_the_windows_have_offsets() -> None:
    log = opened(new_disk())
    block = log.stage(made(10, seq=100), epoch=1, now_us=1, windows=[range(1, 3), range(5, 9)])
    log.commit(1)
    assert block is not None
    assert (block.offsets, log.log_end) == (range(6), 6)
    assert log.read(5)[0].counted_seqs() == [range(101, 103), range(105, 109)]
    killed(log)
    assert opened(log.disk).log_end == 6


@pytest.mark.parametrize(
    "windows", [[range(8, 12)], [range(5, 5)], [range(3, 6), range(2, 4)], [range(3, 6), range(5, 7)]]
)
def test_windows_that_no_reader_could_parse_are_refused(windows: list[range]) -> None:
    log = opened(new_disk())
    with pytest.raises(BlockCorrupt):
        log.stage(made(10), epoch=1, now_us=1, windows=windows)
    assert log.log_end == 0


def test_a_seq_search_looks_at_the_records_that_count() -> None:
    log = opened(new_disk())
    log.stage(made(10, seq=1), epoch=1, now_us=1, windows=[range(5)])
    log.commit(1)
    assert [block.offsets for block in log.blocks(from_seq=5)] == [range(5)]
    assert list(log.blocks(from_seq=6)) == []


# --- replicated blocks -----------------------------------------------------------------------------


def test_a_peers_block_is_stored_byte_for_byte() -> None:
    log = opened(new_disk())
    block = stamped(made(4), 0, epoch=3)
    log.stage_stamped(block)
    log.commit(1)
    assert contents(log) == [block.tobytes()]
    assert log.epochs.newest == 3


def test_a_peers_block_must_continue_the_log() -> None:
    log = opened(new_disk())
    fill(log, 1)
    for offset in (2, 4):
        with pytest.raises(OffsetMismatch) as caught:
            log.stage_stamped(stamped(made(), offset))
        assert caught.value.expected == 3
    assert log.log_end == 3


def test_a_block_of_another_channel_is_refused() -> None:
    with pytest.raises(BlockCorrupt):
        opened(new_disk()).stage_stamped(stamped(made(), 0, channel_id=CHANNEL + 1))


def test_a_block_that_knows_the_future_is_refused() -> None:
    """Its sync mark would make recovery invent records up to there."""
    with pytest.raises(BlockCorrupt):
        opened(new_disk()).stage_stamped(stamped(made(), 0, mark=1 << 40))


def test_a_stale_epoch_is_refused_from_leader_and_peer() -> None:
    log = opened(new_disk())
    fill(log, 1, epoch=5)
    with pytest.raises(StaleEpoch):
        log.stage(made(), epoch=4, now_us=1)
    with pytest.raises(StaleEpoch):
        log.stage_stamped(stamped(made(), 3, epoch=4))
    assert log.log_end == 3


# --- epochs ----------------------------------------------------------------------------------------


def test_the_epoch_history_survives_rolling_and_reopening() -> None:
    disk = new_disk()
    log = opened(disk)
    for epoch in (1, 1, 3, 7):
        fill(log, 1, epoch=epoch)
        log.roll(0)
    expected = [(1, 0), (3, 6), (7, 9)]
    assert log.epochs.pairs() == expected
    disk.crash()
    log = opened(disk)
    assert log.epochs.pairs() == expected
    assert log.epochs.end_of(5, log.log_end) == (3, 9)
    assert log.epochs.end_of(9, log.log_end) == (7, 12)
    assert log.epochs.end_of(0, log.log_end) is None


def test_truncation_forgets_the_epochs_it_cuts_off() -> None:
    log = opened(new_disk())
    for epoch in (1, 2, 3):
        fill(log, 1, epoch=epoch)
    log.truncate(3)
    assert log.epochs.pairs() == [(1, 0)]
    assert log.append(made(), epoch=2, now_us=1) == range(3, 6)


def test_the_epoch_before_the_first_known_one_is_zero() -> None:
    history = EpochHistory([(5, 100)])
    assert (history.epoch_at(99), history.epoch_at(100)) == (0, 5)


# --- segments --------------------------------------------------------------------------------------


def test_a_segment_is_sealed_before_it_grows_too_large() -> None:
    log = opened(new_disk(), segment_bytes_max=4096)
    fill(log, 40)
    assert len(log.segments) > 1
    assert all(segment.index.size <= 4096 for segment in log.segments)
    assert len(contents(log)) == 40


def test_a_block_larger_than_a_segment_gets_one_of_its_own() -> None:
    log = opened(new_disk(), segment_bytes_max=4096)
    fill(log, 1)
    log.append(made(1000), now_us=1)
    fill(log, 1)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 1003]


def test_a_segment_is_sealed_when_its_first_block_is_old() -> None:
    log = opened(new_disk(), segment_age_max_ms=1_000)
    fill(log, 1, now_us=0)
    assert not log.roll_if_due(999_999)
    assert log.roll_if_due(1_000_000)
    assert not log.roll_if_due(9_000_000), "an empty segment has no age"
    assert len(log.segments) == 2


def test_rolling_an_empty_segment_changes_nothing() -> None:
    log = opened(new_disk())
    log.roll(0)
    assert len(log.segments) == 1


# --- truncation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(0, 31, 3))
def test_truncating_to_any_boundary_keeps_exactly_what_is_before(offset: int) -> None:
    disk = new_disk()
    log = opened(disk)
    for _ in range(5):
        fill(log, 2)
        log.roll(0)
    before = contents(log)
    log.truncate(offset)
    assert (log.log_end, contents(log)) == (offset, before[: offset // 3])
    disk.crash()
    log = opened(disk)
    assert (log.log_end, contents(log)) == (offset, before[: offset // 3])
    assert log.append(made(1), now_us=1) == range(offset, offset + 1)


def test_truncating_inside_a_block_is_refused_and_cuts_nothing() -> None:
    log = opened(new_disk())
    fill(log, 3)
    log.stage(made(3), epoch=1, now_us=1)
    for offset, block in ((4, range(3, 6)), (10, range(9, 12))):
        with pytest.raises(NotABlockBoundary) as caught:
            log.truncate(offset)
        assert caught.value.block == block
    assert log.log_end == 12


def test_truncating_staged_blocks_leaves_the_written_ones() -> None:
    log = opened(new_disk())
    fill(log, 1)
    log.stage(made(3), epoch=1, now_us=1)
    log.stage(made(3), epoch=1, now_us=1)
    log.truncate(6)
    log.commit(1)
    assert [block.offsets for block in log.blocks()] == [range(3), range(3, 6)]


def test_truncating_beyond_the_end_changes_nothing_and_before_the_start_is_refused() -> None:
    log = opened(new_disk())
    fill(log, 2)
    log.roll(0)
    fill(log, 1)
    log.truncate(100)
    assert log.log_end == 9
    log.trim(6, 0)
    with pytest.raises(OffsetOutOfRange):
        log.truncate(3)


def test_a_truncated_block_never_comes_back() -> None:
    for seed in range(30):
        disk = new_disk(seed)
        log = opened(disk)
        fill(log, 4)
        log.truncate(6)
        log.stage(made(3, text="new"), epoch=2, now_us=1)
        log.flush(1)
        disk.crash()
        log = opened(disk)
        assert log.log_end in (6, 9)
        assert all(block.leader.leader_epoch == 2 for block in log.blocks(6))


def test_rot_before_the_cut_neither_stops_a_truncation_nor_shortens_the_log() -> None:
    """The index is folded anew after a cut; it used to end at the first rotten block, and the next append there."""
    disk = new_disk()
    log = opened(disk)
    fill(log, 8)
    before = contents(log)
    flip(disk, log, 6)
    log.truncate(15)
    assert (log.log_end, log.written_end) == (15, 15)
    assert log.damaged() == [range(6, 9)]
    log.append(made(3), now_us=1)
    assert contents(log, skip_damaged=True)[:4] == [before[0], before[1], before[3], before[4]]


def test_a_truncation_into_a_damaged_range_keeps_the_first_part_of_it() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 4)
    flip(disk, log, 3)
    with pytest.raises(DamagedRange):
        log.read(3)
    log.truncate(5)
    assert (log.log_end, log.damaged()) == (5, [range(3, 5)])
    disk.crash()
    log = opened(disk)
    assert (log.log_end, log.damaged()) == (5, [range(3, 5)])


# --- retention -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retention", "now_us", "start"),
    [
        (Retention(), 10**12, 0),
        (Retention(max_age_ms=2_500), 4_000_000, 12),
        (Retention(max_events=12), 0, 18),
        (Retention(max_events=13), 0, 12),
        (Retention(max_bytes=1), 0, 30),
    ],
)
def test_retention_drops_whole_segments_by_age_bytes_and_events(retention: Retention, now_us: int, start: int) -> None:
    log = opened(new_disk(), retention=retention)
    for second in range(5):
        fill(log, 2, now_us=second * 1_000_000)
        log.roll(second * 1_000_000)
    swept = log.sweep_retention(now_us)
    assert (log.log_start, swept.records) == (start, start)
    assert log.log_end == 30
    if start:
        with pytest.raises(OffsetOutOfRange):
            log.read(0)


def test_age_is_the_leaders_append_time_and_not_the_boats_clock() -> None:
    log = opened(new_disk(), retention=Retention(max_age_ms=1_000))
    log.append(made(time_us=0), now_us=50_000_000)
    log.roll(50_000_000)
    assert log.sweep_retention(50_500_000).segments == 0
    assert log.sweep_retention(51_500_000).segments == 1


def test_retention_never_passes_the_lowest_floor_and_says_what_it_held_back() -> None:
    log = opened(new_disk(), retention=Retention(max_events=1))
    for _ in range(4):
        fill(log, 2)
        log.roll(0)
    log.set_floor("cursor", 13)
    log.set_floor("watermark", 20)
    assert log.floor() == 13
    swept = log.sweep_retention(0)
    assert (log.log_start, swept.segments, swept.held_back) == (12, 2, 1)
    log.set_floor("cursor", None)
    log.sweep_retention(0)
    assert log.log_start == 18


def test_retention_may_empty_a_log_without_forgetting_where_it_ends() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 3)
    log.trim(9, 0)
    assert (log.log_start, log.log_end) == (9, 9)
    disk.crash()
    log = opened(disk)
    assert log.append(made(1), now_us=0) == range(9, 10)


def test_retention_trims_the_epoch_history() -> None:
    disk = new_disk()
    log = opened(disk)
    for epoch in (1, 2, 3):
        fill(log, 2, epoch=epoch)
        log.roll(0)
    log.trim(9, 0)
    assert log.log_start == 6
    assert log.epochs.pairs() == [(2, 6), (3, 12)]
    killed(log)
    assert opened(disk).epochs.pairs() == [(2, 6), (3, 12)]


# --- closing and opening ---------------------------------------------------------------------------


def test_a_clean_close_makes_the_next_open_scan_nothing() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 5)
    log.stage(made(2), epoch=1, now_us=1)
    log.close(1)
    log = opened(disk)
    assert log.recovery is not None
    assert (log.recovery.clean, log.recovery.bytes_scanned, log.log_end) == (True, 0, 17)
    disk.crash()
    log = opened(disk)
    assert log.recovery is not None
    assert not log.recovery.clean, "the mark is for one run"
    assert log.recovery.bytes_scanned > 0


def test_every_opening_has_a_higher_incarnation() -> None:
    disk = new_disk()
    seen = []
    for ending in ("close", "crash", "kill", "close"):
        log = opened(disk)
        seen.append(log.incarnation)
        if ending == "close":
            log.close()
        elif ending == "kill":
            killed(log)
        else:
            disk.crash()
    assert seen == [1, 2, 3, 4]


def test_a_closed_log_refuses_everything() -> None:
    log = opened(new_disk())
    fill(log, 1)
    log.close()
    log.close()
    for action in (
        lambda: log.append(made(), now_us=0),
        lambda: log.read(0),
        log.sync,
        lambda: log.truncate(0),
        lambda: log.trim(0, 0),
    ):
        with pytest.raises(LogClosed):
            action()


def test_a_folder_is_open_once() -> None:
    disk = new_disk()
    log = opened(disk)
    with pytest.raises(FolderLocked):
        opened(disk)
    log.close()
    opened(disk).close()


def test_a_failed_open_lets_the_folder_go() -> None:
    disk = new_disk()
    opened(disk).close()
    disk.faults.fail_after = 4
    with pytest.raises(DiskError):
        opened(disk)
    opened(disk).close()


def test_a_lost_meta_file_is_rebuilt_from_the_segments() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 3)
    log.rebuild_from(iter([stamped(made(2), 40)]), 0)
    log.close()
    disk.remove(f"{FOLDER}/log.meta")
    log = opened(disk, channel_id=99)
    assert (log.channel_id, log.log_start, log.log_end) == (CHANNEL, 40, 42)


def test_a_lost_state_file_only_costs_a_scan() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 3)
    log.close()
    disk.flip_bit(f"{FOLDER}/log.state", 12, 1)
    log = opened(disk)
    assert log.recovery is not None
    assert (log.recovery.clean, log.log_end) == (False, 9)


def test_a_format_of_the_future_is_not_a_log() -> None:
    from tidelog.storage.atomic import write_mark

    disk = new_disk()
    opened(disk).close()
    write_mark(disk, f"{FOLDER}/log.meta", {"format": 2})
    with pytest.raises(NotALog):
        opened(disk)


@pytest.mark.parametrize("how", ["missing", "damaged", "empty"])
def test_an_index_that_cannot_be_used_is_built_again(how: str) -> None:
    disk = new_disk()
    log = opened(disk)
    for _ in range(3):
        fill(log, 3)
        log.roll(0)
    fill(log, 1)
    before = contents(log)
    path = log.segments[1].index_path
    log.close()
    if how == "missing":
        disk.remove(path)
    elif how == "damaged":
        disk.flip_bit(path, 50, 1)
    else:
        disk.replace_bytes(path, b"")
    log = opened(disk)
    assert log.recovery is not None
    assert log.recovery.bytes_scanned > 0
    assert contents(log) == before
    log.close()
    log = opened(disk)
    assert log.recovery is not None
    assert log.recovery.clean


def test_a_log_whose_segments_vanished_does_not_give_out_its_offsets_again() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 3)
    path = log.segments[0].path
    log.close()
    disk.remove(path)
    assert opened(disk).log_end == 9


def test_a_segment_missing_in_the_middle_is_a_damaged_range() -> None:
    disk = new_disk()
    log = opened(disk)
    for _ in range(3):
        fill(log, 2)
        log.roll(0)
    fill(log, 1)
    path = log.segments[1].path
    log.close()
    disk.remove(path)
    log = opened(disk)
    assert log.damaged() == [range(6, 12)]
    assert [block.offsets.start for block in log.blocks(skip_damaged=True)] == [0, 3, 12, 15, 18]


def test_statistics_say_what_is_there() -> None:
    log = opened(new_disk())
    fill(log, 2)
    log.roll(0)
    fill(log, 1, epoch=4)
    log.stage(made(2), epoch=4, now_us=0)
    found = log.statistics()
    assert (found.segments, found.records, found.blocks, found.epoch) == (2, 11, 4, 4)
    assert (found.log_start, found.durable_end, found.log_end) == (0, 9, 11)
    assert found.staged_bytes == log.staged_bytes > HEAD_BYTES
    assert found.damaged == ()


def test_a_segment_is_sealed_before_it_holds_too_many_records() -> None:
    log = open_log(new_disk(), FOLDER, now_us=1, options=LogOptions(segment_events_max=3, reserve_bytes=0))
    for number in range(10):
        log.stage(encode_values([b"%d" % number], time_us=1), epoch=1, now_us=1)
    log.commit(1)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9]
    assert log.sweep_retention(2, Retention(max_events=4)).segments == 2
    assert log.log_start == 6
