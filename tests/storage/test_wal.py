"""The write-ahead file: what a cut, a flipped bit or a foreign file does to it, and what it never does."""

from __future__ import annotations

import random

import pytest

from tidelog.blocks.block import Block, make_block
from tidelog.blocks.header import DEFAULT_LIMITS, BlockKind
from tidelog.errors import DiskError, DiskFull
from tidelog.sim.disk import SimDisk
from tidelog.storage.store.wal import (
    ENTRY_BYTES,
    WAL_HEAD_BYTES,
    WalEntry,
    WalEntryKind,
    WalScan,
    WalWriter,
    scan_wal,
    wal_numbers,
)

FOLDER = "wal"


def fresh_disk() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.make_folder(FOLDER)
    return disk


def block(offset: int, *, channel_id: int = 3, body: bytes = b"0123456789") -> Block:
    made = make_block(body, kind=BlockKind.FRAMES, form=1, record_count=2)
    return made.stamp(
        base_offset=offset, channel_id=channel_id, leader_epoch=1, append_time_us=5, durable_end=0, path=0
    )


def commit(wal: WalWriter, *blocks: Block) -> None:
    wal.write([buffer for one in blocks for buffer in wal.block_entry(one)])
    wal.sync()


def scan(disk: SimDisk, number: int = 1) -> WalScan:
    return scan_wal(disk, FOLDER, number, DEFAULT_LIMITS)


def offsets(entries: list[WalEntry]) -> list[int]:
    return [entry.block.leader.base_offset for entry in entries if entry.block is not None]


def small_wal(disk: SimDisk) -> WalWriter:
    """Three commits: the marks of the second and third vouch for what came before them."""
    wal = WalWriter(disk, FOLDER, 1)
    commit(wal, block(0), block(2))
    wal.write([wal.other_entry(WalEntryKind.CREATE, 9, {"name": "x"})])
    wal.sync()
    commit(wal, block(4))
    return wal


def test_entries_come_back_in_order() -> None:
    disk = fresh_disk()
    small_wal(disk)
    found = scan(disk)
    assert offsets(found.entries) == [0, 2, 4]
    assert [entry.fields for entry in found.entries if entry.kind is WalEntryKind.CREATE] == [{"name": "x"}]
    assert (found.bytes_cut, found.damaged_bytes) == (0, 0)
    assert wal_numbers(disk, FOLDER) == [1]


def test_each_commit_is_marked_with_what_was_durable_before_it() -> None:
    disk = fresh_disk()
    wal = WalWriter(disk, FOLDER, 1)
    sizes = [wal.size]
    for number in range(3):
        commit(wal, block(2 * number))
        sizes.append(wal.size)
    wal.write([b"".join(wal.block_entry(block(6)))])  # not synced: the next mark must not vouch for it
    commit(wal, block(8))
    marks = [entry.subject for entry in scan(disk).entries if entry.kind is WalEntryKind.MARK]
    assert marks == [*sizes, sizes[-1]]


def test_every_byte_cut_leaves_a_prefix_and_says_how_much_it_cut() -> None:
    disk = fresh_disk()
    wal = small_wal(disk)
    path, data = wal.path, disk.durable_bytes(wal.path)
    ends: list[int] = []
    for cut in range(len(data) + 1):
        disk.replace_bytes(path, data[:cut])
        found = scan(disk)
        assert offsets(found.entries) == [0, 2, 4][: len(offsets(found.entries))]
        assert found.damaged_bytes == 0, "a file that ends early is torn, not damaged"
        whole = max([WAL_HEAD_BYTES, *(end for end in ends if end <= cut)])
        if found.bytes_cut == 0 and cut > whole:
            ends.append(cut)
            whole = cut
        assert found.bytes_cut == max(0, cut - whole)
    assert ends[-1] == len(data)
    assert offsets(scan(disk).entries) == [0, 2, 4]


def test_every_flipped_bit_costs_one_entry_at_most_and_is_reported() -> None:
    disk = fresh_disk()
    wal = small_wal(disk)
    entries = scan(disk).entries
    last_mark = max(entry.subject for entry in entries if entry.kind is WalEntryKind.MARK)
    for position in range(WAL_HEAD_BYTES, wal.size):
        for bit in range(8):
            disk.flip_bit(wal.path, position, bit)
            found = scan(disk)
            if position < last_mark:
                assert found.damaged_bytes > 0
                assert found.bytes_cut == 0
                assert len(found.entries) == len(entries) - 1
            else:  # the last commit: nothing after it says that it was durable
                assert found.bytes_cut > 0
                assert found.damaged_bytes == 0
            survivors = {0, 2, 4} - set(offsets(found.entries))
            assert len(survivors) <= 1
            disk.flip_bit(wal.path, position, bit)


def test_a_damaged_file_header_costs_nothing() -> None:
    disk = fresh_disk()
    wal = small_wal(disk)
    for position in range(WAL_HEAD_BYTES):
        disk.flip_bit(wal.path, position, 3)
    assert offsets(scan(disk).entries) == [0, 2, 4]


def test_entries_of_another_file_are_not_taken_for_its_own() -> None:
    disk = fresh_disk()
    small_wal(disk)
    foreign = WalWriter(disk, FOLDER, 2)
    disk.replace_bytes(foreign.path, disk.durable_bytes(f"{FOLDER}/000000000001.wal"))
    found = scan(disk, 2)
    assert found.entries == []
    assert found.bytes_cut == len(disk.durable_bytes(foreign.path)) - WAL_HEAD_BYTES


def test_a_block_of_another_channel_than_its_entry_says_is_refused() -> None:
    disk = fresh_disk()
    wal = WalWriter(disk, FOLDER, 1)
    head = wal.block_entry(block(0, channel_id=4))[0]
    wal.write([head, *block(0, channel_id=5).buffers])
    wal.sync()
    assert offsets(scan(disk).entries) == []


def test_what_lies_inside_a_damaged_block_is_never_carried_out() -> None:
    disk = fresh_disk()
    wal = WalWriter(disk, FOLDER, 1)
    poison = wal.other_entry(WalEntryKind.DELETE, 3, {"name": "x"})
    position = wal.size + 2 * ENTRY_BYTES
    commit(wal, block(0, body=poison))
    commit(wal, block(2))
    disk.flip_bit(wal.path, position + 70, 0)
    found = scan(disk)
    assert WalEntryKind.DELETE not in [entry.kind for entry in found.entries]
    assert offsets(found.entries) == [2]
    assert found.damaged_bytes > 0


def test_random_bytes_are_cut_and_never_raise() -> None:
    disk = fresh_disk()
    rng = random.Random(5)
    wal = WalWriter(disk, FOLDER, 1)
    for _ in range(300):
        junk = b"".join(rng.choice((b"TLW1", rng.randbytes(7), b"TLB1", bytes(8))) for _ in range(rng.randrange(60)))
        disk.replace_bytes(wal.path, junk)
        assert scan(disk).entries == []


def test_a_refused_write_leaves_nothing_behind_even_after_a_crash() -> None:
    for seed in range(40):
        disk = SimDisk(random.Random(seed))
        disk.make_folder(FOLDER)
        wal = WalWriter(disk, FOLDER, 1)
        commit(wal, block(0))
        disk.faults.capacity_bytes = wal.size + ENTRY_BYTES + 400
        with pytest.raises(DiskFull):
            commit(wal, *(block(offset) for offset in range(2, 20, 2)))
        assert not wal.undo_failed
        disk.faults.capacity_bytes = None
        disk.crash()
        assert offsets(scan(disk).entries) == [0]


def test_a_write_that_cannot_be_undone_says_so() -> None:
    disk = fresh_disk()
    wal = WalWriter(disk, FOLDER, 1)
    disk.faults.fail_after, disk.faults.fail_forever = 1, True
    with pytest.raises(DiskError):
        commit(wal, block(0))
    assert wal.undo_failed


def test_a_file_that_could_not_be_started_can_be_started_again() -> None:
    disk = fresh_disk()
    for calls in range(1, 6):
        disk.faults.fail_after = calls
        try:
            WalWriter(disk, FOLDER, 1).close()
        except DiskError:
            continue
        break
    disk.faults.fail_after = None
    commit(WalWriter(disk, FOLDER, 1), block(0))
    disk.crash()
    assert offsets(scan(disk).entries) == [0]
