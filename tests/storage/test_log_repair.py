"""What a log does about rot, strays, peers and a full disk: it reports, repairs and never becomes shorter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.storage.logs import FOLDER, contents, fill, flip, killed, made, new_disk, opened, stamped
from tidelog.blocks.block import Block
from tidelog.blocks.header import BlockKind
from tidelog.errors import (
    DamagedRange,
    DiskError,
    DiskFull,
    OffsetMismatch,
    ReplacementRefused,
    StaleEpoch,
)

# --- damage ----------------------------------------------------------------------------------------


def test_rot_is_found_on_read_and_becomes_a_placeholder_with_evidence() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 5)
    before = contents(log)
    flip(disk, log, 6)
    assert [block.offsets.start for block in log.read(0)] == [0, 3], "a read stops before damage"
    with pytest.raises(DamagedRange) as caught:
        log.read(7)
    assert (caught.value.start, caught.value.end) == (7, 9)
    assert log.damaged() == [range(6, 9)]
    assert contents(log, skip_damaged=True) == before[:2] + before[3:]
    with pytest.raises(DamagedRange):
        list(log.blocks())
    (evidence,) = disk.list_folder(f"{FOLDER}/quarantine")
    kept = disk.open(f"{FOLDER}/quarantine/{evidence}").read_at(0, 10_000)
    assert len(kept) == len(before[2])
    assert kept != before[2]
    assert log.log_end == 15


def test_damage_survives_reopening_as_damage() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 5)
    flip(disk, log, 6)
    disk.crash()
    log = opened(disk)
    assert log.recovery is not None
    assert (log.recovery.quarantined, log.log_end) == ((range(6, 9),), 15)
    log.close()
    log = opened(disk)
    assert (log.damaged(), log.log_end) == ([range(6, 9)], 15)


def test_a_peers_block_replaces_a_placeholder() -> None:
    disk = new_disk()
    log = opened(disk)
    for epoch in (1, 1, 2, 2, 2):
        fill(log, 1, epoch=epoch)
    before = contents(log)
    flip(disk, log, 6)
    disk.crash()
    log = opened(disk)
    assert log.epochs.pairs() == [(1, 0), (2, 9)], "nobody knows the epoch of what is gone"
    assert log.replace([Block.parse(before[2])]) == range(6, 9)
    assert (contents(log), log.damaged()) == (before, [])
    assert log.epochs.pairs() == [(1, 0), (2, 6)]
    disk.crash()
    assert contents(opened(disk)) == before


def test_a_part_of_a_damaged_range_may_be_replaced_first() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 6)
    before = contents(log)
    flip(disk, log, 3, 6, 9, byte=20)
    with pytest.raises(DamagedRange):
        log.read(3)
    assert log.damaged() == [range(3, 12)]
    log.replace([Block.parse(before[2])])
    assert log.damaged() == [range(3, 6), range(9, 12)]
    log.replace([Block.parse(before[1])])
    log.replace([Block.parse(before[3])])
    assert contents(log) == before


def test_a_replacement_must_fit_the_damage() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 5)
    flip(disk, log, 6)
    with pytest.raises(DamagedRange):
        log.read(6)
    for blocks in (
        [],
        [stamped(made(4), 6)],
        [stamped(made(3), 9)],
        [stamped(made(1), 6), stamped(made(1), 8)],
        [stamped(made(3), 6, channel_id=1)],
    ):
        with pytest.raises(ReplacementRefused):
            log.replace(blocks)
    assert log.damaged() == [range(6, 9)]


def test_a_replacement_finds_what_else_has_rotted_in_its_segment() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 6)
    before = contents(log)
    flip(disk, log, 3)
    with pytest.raises(DamagedRange):
        log.read(3)
    path, size = log.segments[0].path, log.segments[0].index.size
    disk.flip_bit(path, size - 10, 1)
    log.replace([Block.parse(before[1])])
    assert (log.log_end, log.written_end, log.damaged()) == (18, 18, [range(15, 18)])


def test_a_rewrite_that_went_astray_leaves_the_segment_as_it_was() -> None:
    for skipped in range(6):
        disk = new_disk(skipped)
        log = opened(disk)
        fill(log, 4)
        before = contents(log)
        flip(disk, log, 3)
        with pytest.raises(DamagedRange):
            log.read(3)
        disk.faults.misdirect_next_write = True
        with pytest.raises(DiskError):
            log.replace([Block.parse(before[1])])
        assert log.log_end == 12
        while gaps := log.damaged():
            held = [Block.parse(data) for data in before]
            log.replace([block for block in held if gaps[0].start <= block.offsets.start < gaps[0].stop])
            list(log.blocks(skip_damaged=True))
        assert contents(log) == before


def test_a_valid_block_in_a_wrong_place_is_not_read() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 4)
    sizes = [len(data) for data in contents(log)]
    assert len(set(sizes)) == 1, "the copy must fit exactly"
    file = disk.open(log.segments[0].path)
    file.write_at(64 + sizes[0], [file.read_at(64 + 2 * sizes[0], sizes[0])])
    with pytest.raises(DamagedRange):
        log.read(3)
    assert log.damaged() == [range(3, 6)]
    assert log.read(6)[0].offsets == range(6, 9)


def test_a_stray_block_does_not_cost_the_good_ones_after_it() -> None:
    """A newer block lies in an older one's place: what is between their offsets was once taken for damage."""
    disk = new_disk()
    log = opened(disk)
    fill(log, 8)
    size = len(contents(log)[0])
    file = disk.open(log.segments[0].path)
    stray = file.read_at(64 + 7 * size, size)
    file.write_at(64 + size + 8, [stray])
    file.write_at(64 + 7 * size, [bytes(size)])
    file.sync()
    disk.crash()
    log = opened(disk)
    assert log.damaged() == [range(3, 9)]
    assert [block.offsets.start for block in log.blocks(skip_damaged=True)] == [0, 9, 12, 15, 18]


def test_a_stray_block_of_a_later_segment_does_not_stretch_an_older_one() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 4)
    log.roll(0)
    fill(log, 4)
    size = len(contents(log)[0])
    newest = disk.open(log.segments[1].path)
    disk.open(log.segments[0].path).write_at(64 + size, [newest.read_at(64, size)])
    with pytest.raises(DamagedRange):
        log.read(3)
    assert (log.damaged(), log.segments[0].index.end_offset) == ([range(3, 6)], 12)
    log.close()
    assert opened(disk, verify_all=True).damaged() == [range(3, 6)]


def test_a_segment_that_was_shortened_behind_the_log_is_damaged_and_not_shorter() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 4)
    log.roll(0)
    fill(log, 1)
    size = len(contents(log)[0])
    disk.open(log.segments[0].path).truncate(64 + 2 * size)
    with pytest.raises(DamagedRange):
        log.read(6)
    assert (log.damaged(), log.log_end) == ([range(6, 12)], 15)


def test_a_damaged_middle_and_a_lost_tail_of_a_sealed_segment_are_both_reported() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 5)
    log.roll(0)
    fill(log, 1)
    size = len(contents(log)[0])
    flip(disk, log, 3)
    file = disk.open(log.segments[0].path)
    file.truncate(64 + 4 * size)
    file.sync()
    disk.crash()
    log = opened(disk)
    assert log.damaged() == [range(3, 6), range(12, 15)]
    assert [block.offsets.start for block in log.blocks(skip_damaged=True)] == [0, 6, 9, 15]


def test_placeholders_keep_the_epochs_that_began_in_the_damage() -> None:
    disk = new_disk()
    log = opened(disk)
    for epoch in (1, 2, 3, 3):
        fill(log, 1, epoch=epoch)
    flip(disk, log, 3, 6, byte=20)
    with pytest.raises(DamagedRange):
        log.read(3)
    log.close()
    log = opened(disk, verify_all=True)
    assert log.epochs.pairs() == [(1, 0), (2, 3), (3, 6)]
    assert log.damaged() == [range(3, 6), range(6, 9)]


def test_an_epoch_is_not_moved_forward_by_damage_at_the_start_of_the_log() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 3, epoch=5)
    log.roll(0)
    fill(log, 2, epoch=7)
    flip(disk, log, 0)
    disk.crash()
    log = opened(disk, verify_all=True)
    assert log.epochs.epoch_at(3) == 5
    assert log.epochs.end_of(5, log.log_end) == (5, 9)


# --- rebuilding ------------------------------------------------------------------------------------


def test_a_rebuild_replaces_everything_and_survives_a_crash() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 5)
    peer = [stamped(made(4), 100, epoch=2), stamped(made(4), 104, epoch=3)]
    for _ in range(2):
        log.rebuild_from(iter(peer), 0)
        assert (log.log_start, log.durable_end, log.log_end) == (100, 108, 108)
        assert log.epochs.pairs() == [(2, 100), (3, 104)]
        disk.crash()
        log = opened(disk)
        assert contents(log) == [block.tobytes() for block in peer]
    assert log.append(made(1), epoch=3, now_us=0) == range(108, 109)


def test_a_rebuild_from_nothing_leaves_an_empty_log_at_its_end() -> None:
    log = opened(new_disk())
    fill(log, 2)
    log.rebuild_from(iter([]), 0)
    assert (log.log_start, log.log_end) == (6, 6)


def breaking_off() -> Iterator[Block]:
    yield stamped(made(4), 50)
    raise DamagedRange(start=54, end=60, problem="the peer has lost it")


@pytest.mark.parametrize(
    ("blocks", "error"),
    [
        (breaking_off(), DamagedRange),
        (iter([stamped(made(), 0), stamped(made(), 4)]), OffsetMismatch),
        (iter([stamped(made(), 0, epoch=3), stamped(made(), 3, epoch=2)]), StaleEpoch),
        (iter([stamped(made(), 0, channel_id=1)]), ReplacementRefused),
    ],
)
def test_a_rebuild_that_breaks_off_changes_nothing_and_may_be_repeated(
    blocks: Iterator[Block], error: type[Exception]
) -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 3)
    before = contents(log)
    with pytest.raises(error):
        log.rebuild_from(blocks, 0)
    assert contents(log) == before
    fill(log, 1)
    again = [stamped(made(4), 50), stamped(made(4), 54)]
    log.rebuild_from(iter(again), 0)
    disk.crash()
    assert contents(opened(disk)) == [block.tobytes() for block in again], "it was written to a file that is gone"


def test_every_failure_of_a_rebuild_leaves_the_old_log_or_the_new_one() -> None:
    peer = [stamped(made(4), 100), stamped(made(4), 104)]
    new = [block.tobytes() for block in peer]
    outcomes = set()
    for call in range(1, 100):
        for power_cut in (False, True):
            disk = new_disk(call)
            log = opened(disk)
            fill(log, 3)
            before = contents(log)
            disk.faults.fail_after = call
            try:
                log.rebuild_from(iter(peer), 0)
            except DiskError:
                outcomes.add("failed")
            done = disk.faults.fail_after is not None
            disk.faults.fail_after = None
            if power_cut:
                disk.crash()
            else:
                killed(log)
            log = opened(disk)
            assert contents(log) in (before, new)
            held = contents(log)
            disk.crash()
            assert contents(opened(disk)) == held
            outcomes.add("old" if log.log_start == 0 else "new")
        if done:
            break
    assert outcomes == {"failed", "old", "new"}
    assert done


# --- a full disk -----------------------------------------------------------------------------------


def test_a_reserve_is_left_for_truncation_and_retention() -> None:
    disk = new_disk()
    disk.faults.capacity_bytes = 20_000
    log = opened(disk, reserve_bytes=8_000, segment_bytes_max=4096)
    with pytest.raises(DiskFull) as caught:
        fill(log, 1_000)
    assert caught.value.definite
    assert disk.free_bytes() >= 8_000
    end = log.log_end
    assert log.durable_end == end, "the refused block is taken back"
    log.truncate(log.segments[-1].base_offset)
    log.trim(log.segments[1].base_offset, 0)
    fill(log, 1)
    assert log.log_start > 0


def test_a_full_disk_loses_nothing_and_goes_on_when_space_returns() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 3)
    disk.faults.capacity_bytes = 1 << 40
    disk.faults.capacity_bytes -= disk.free_bytes() - 100
    for _ in range(3):
        with pytest.raises(DiskFull):
            log.append(made(3, text="refused"), now_us=1)
    before = contents(log)
    assert log.log_end == 9
    disk.faults.capacity_bytes = None
    disk.crash()
    log = opened(disk)
    assert contents(log) == before, "a refused block came back"
    assert log.append(made(3), now_us=1) == range(9, 12)


def test_a_placeholder_is_never_handed_out() -> None:
    disk = new_disk()
    log = opened(disk)
    fill(log, 3)
    flip(disk, log, 3)
    with pytest.raises(DamagedRange):
        log.read(3)
    assert all(block.maker.kind is not BlockKind.MISSING for block in log.blocks(skip_damaged=True))


def test_garbage_between_good_blocks_is_cut_and_counted_and_costs_no_record() -> None:
    """A stray copy lies where a damaged block was: what follows it continues the offsets of the copy."""
    disk = new_disk()
    log = opened(disk)
    fill(log, 6)
    size = len(contents(log)[0])
    file = disk.open(log.segments[0].path)
    stray = file.read_at(64 + 2 * size, size)
    file.write_at(64 + size, [bytes(2 * size)])
    file.write_at(64 + size + 8, [stray])
    file.sync()
    disk.crash()
    log = opened(disk)
    assert log.recovery is not None
    assert (log.recovery.quarantined, log.recovery.bytes_cut) == ((range(3, 6),), size - 8)
    assert [block.offsets.start for block in log.blocks(skip_damaged=True)] == [0, 6, 9, 12, 15]
