"""What a member of the metadata group keeps: durable when `write` returns, whole when it opens, or damaged in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.raft import (
    FOLDER,
    FOUNDED,
    IDENTITY,
    LIVE,
    MEMBERS,
    SMALL,
    after_power_cut,
    created,
    entries,
    entry,
    files_below,
    killed,
    new_disk,
    opened,
    ready,
    snapshot_at,
    state_of,
)
from tidelog.blocks.messages import encode_values
from tidelog.codecs.raft_codec import encode_entry
from tidelog.core.raft.messages import Entry, EntryKind, EntryPlace, HardState, Snapshot, SnapshotHead
from tidelog.errors import DiskError, FolderLocked, LogClosed, MetadataDamaged, MetadataPoisoned
from tidelog.sim.disk import SimDisk
from tidelog.sim.metadata.stored_state import StoredState
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.recovery import open_log
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.raft.block import entry_block
from tidelog.storage.raft.files import MARK_SLOT_STEP, write_hard_state
from tidelog.storage.raft.opening import open_raft_storage, set_aside

# --- opening and creating --------------------------------------------------------------------------


def test_a_folder_without_metadata_is_blank_and_stays_untouched() -> None:
    disk = new_disk()
    assert open_raft_storage(disk, FOLDER, now_us=1) is None
    assert disk.list_folder("") == []
    disk.make_folder(FOLDER)
    assert open_raft_storage(disk, FOLDER, now_us=1) is None
    assert open_raft_storage(disk, FOLDER, now_us=1) is None, "the lock is given back"


def test_what_was_created_opens_as_it_was_given() -> None:
    disk = new_disk()
    storage = created(disk)
    assert state_of(storage) == FOUNDED
    storage.close()
    storage = opened(disk)
    assert state_of(storage) == FOUNDED
    assert storage.identity == IDENTITY
    assert storage.last == EntryPlace(0, 0)


def test_a_learner_begins_without_a_term() -> None:
    disk = new_disk()
    blank = StoredState(HardState(), Snapshot(SnapshotHead()), ())
    created(disk, blank).write([ready(hard_state=HardState(7)), ready(snapshot=snapshot_at(90, 6))])
    assert after_power_cut(disk) == (HardState(7), snapshot_at(90, 6), ())


def test_a_half_created_folder_is_blank_and_can_be_created() -> None:
    disk = new_disk()
    disk.make_folder(f"{FOLDER}/making/log-1")
    disk.open(f"{FOLDER}/making/hard-state", create=True).close()
    assert open_raft_storage(disk, FOLDER, now_us=1) is None
    assert state_of(created(disk)) == FOUNDED


def test_metadata_is_never_created_over_metadata() -> None:
    disk = new_disk()
    storage = created(disk)
    storage.write([ready(entry(1))])
    storage.close()
    with pytest.raises(DiskError, match="open it instead"):
        created(disk)
    assert opened(disk).entries == [entry(1)]


def test_a_second_opener_is_refused(tmp_path: Path) -> None:
    for disk in (new_disk(), OsDisk(tmp_path)):
        storage = created(disk)
        for second in (opened, created):
            with pytest.raises(FolderLocked):
                second(disk)
        storage.close()
        opened(disk).close()


def test_it_works_on_a_real_disk(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    storage = created(disk)
    storage.write([ready(*entries(1, 40, size=400), hard_state=HardState(2, "n2"))])
    storage.write([ready(*entries(30, 35, term=2))])
    storage.save_snapshot(snapshot_at(20), keep_from_index=15)
    storage.settle()
    storage.close()
    storage = opened(disk)
    assert storage.entries == [*entries(21, 29, size=400), *entries(30, 35, term=2)]
    storage.write([ready(snapshot=snapshot_at(100, 2)), ready(entry(101, 2))])
    killed(storage)
    storage = opened(disk)
    assert (storage.snapshot, storage.entries) == (snapshot_at(100, 2), [entry(101, 2)])
    storage.close()
    assert {path.name for path in tmp_path.iterdir()} == {".tidelog"}
    assert sorted(disk.list_folder(LIVE)) == ["hard-state", "identity", "log-2", "mark-2", "snapshot"]


# --- writing ---------------------------------------------------------------------------------------


def test_what_write_returned_for_survives_a_power_cut() -> None:
    for seed in range(20):
        disk = new_disk(seed)
        storage = created(disk)
        members = Entry(3, 2, EntryKind.MEMBERS, b"", MEMBERS)
        storage.write([ready(entry(1), hard_state=HardState(2, "n3")), ready(entry(2), members)])
        state = after_power_cut(disk)
        assert state == (HardState(2, "n3"), FOUNDED.snapshot, (entry(1), entry(2), members)), f"seed {seed}"


def test_one_fdatasync_covers_the_entries_of_all_readys() -> None:
    disk = new_disk()
    storage = created(disk, options=LogOptions(reserve_bytes=0))
    before = disk.statistics()
    storage.write([ready(*entries(first, first + 7), number=first) for first in range(1, 65, 8)])
    after = disk.statistics()
    assert after.syncs - before.syncs == 1
    assert after.writes - before.writes == 2, "one for the entries, one for the mark"
    storage.write([ready()])
    assert disk.statistics().syncs == after.syncs, "nothing to write costs nothing"


def test_an_unchanged_hard_state_is_not_written_again() -> None:
    disk = new_disk()
    storage = created(disk)
    storage.write([ready(entry(1), hard_state=FOUNDED.hard_state)])
    assert storage.statistics().hard_states_written == 0
    storage.write([ready(hard_state=HardState(2)), ready(hard_state=HardState(2, "n2"))])
    assert storage.statistics().hard_states_written == 1
    assert after_power_cut(disk).hard_state == HardState(2, "n2")


@pytest.mark.parametrize("size", [8, 800])
def test_a_replaced_suffix_never_comes_back(size: int) -> None:
    """Also across segments, and when what replaces it is of an older term than what it replaces."""
    for seed in range(10):
        disk = new_disk(seed)
        storage = created(disk)
        storage.write([ready(*entries(1, 3, 1), hard_state=HardState(5))])
        storage.write([ready(*entries(4, 20, 5, size))])
        storage.write([ready(*entries(4, 6, 3), hard_state=HardState(6))])
        assert storage.last == EntryPlace(6, 3)
        storage.write([ready(entry(7, 6))])
        assert after_power_cut(disk).entries == (*entries(1, 3, 1), *entries(4, 6, 3), entry(7, 6)), f"seed {seed}"


def test_readys_that_replace_each_other_come_to_the_last_word() -> None:
    disk = new_disk()
    storage = created(disk)
    storage.write([ready(*entries(1, 5), hard_state=HardState(3))])
    storage.write([ready(*entries(4, 9, 1)), ready(*entries(6, 7, 2)), ready(*entries(5, 5, 3))])
    assert after_power_cut(disk).entries == (*entries(1, 4), entry(5, 3))


def test_a_large_entry_is_kept() -> None:
    disk = new_disk()
    storage = created(disk)
    large = entry(1, 1, bytes(range(256)) * 4096)
    storage.write([ready(large, entry(2))])
    assert after_power_cut(disk).entries == (large, entry(2))


def test_an_entry_lies_in_the_log_as_an_ordinary_message() -> None:
    one = Entry(7, 3, EntryKind.MEMBERS, b"with data", MEMBERS)
    direct, through_columns = entry_block(one, time_us=9), encode_values([encode_entry(one)], time_us=9)
    assert bytes(direct.maker_bytes) == bytes(through_columns.maker_bytes)
    assert bytes(direct.body) == bytes(through_columns.body)


def test_what_breaks_the_rules_of_raft_is_a_bug_and_changes_nothing() -> None:
    disk = new_disk()
    storage = created(disk)
    storage.write([ready(entry(1), hard_state=HardState(2, "n1"))])
    storage.save_snapshot(snapshot_at(1), keep_from_index=1)
    for wrong in (
        ready(hard_state=HardState(1)),
        ready(hard_state=HardState(2, "n2")),
        ready(entry(3)),
        ready(entry(1)),
        ready(entry(2, 3)),
        ready(entry(2, 2), entry(3, 1)),
        ready(entry(2), entry(4)),
        ready(snapshot=snapshot_at(0)),
        ready(snapshot=snapshot_at(9, 3)),
    ):
        with pytest.raises(AssertionError):
            storage.write([wrong])
    storage.write([ready(entry(2, 2))])
    assert after_power_cut(disk).entries == (entry(2, 2),)


# --- snapshots -------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [3, 10, 50])
def test_an_installed_snapshot_replaces_the_whole_log(index: int) -> None:
    disk = new_disk()
    storage = created(disk)
    storage.write([ready(*entries(1, 10))])
    storage.write([ready(snapshot=snapshot_at(index, 1, b"from the leader"))])
    assert storage.last == EntryPlace(index, 1)
    storage.write([ready(entry(index + 1))])
    state = after_power_cut(disk)
    assert (state.snapshot, state.entries) == (snapshot_at(index, 1, b"from the leader"), (entry(index + 1),))


def test_only_the_last_snapshot_of_several_readys_counts() -> None:
    disk = new_disk()
    storage = created(disk)
    given = [ready(*entries(1, 2), snapshot=None), ready(snapshot=snapshot_at(5)), ready(*entries(6, 8))]
    storage.write([*given, ready(entry(21), snapshot=snapshot_at(20))])
    state = after_power_cut(disk)
    assert (state.snapshot, state.entries) == (snapshot_at(20), (entry(21),))


def test_compaction_keeps_the_tail_and_trims_whole_segments() -> None:
    disk = new_disk()
    storage = created(disk)
    for index in range(1, 61):
        storage.write([ready(entry(index, 1, bytes(400)))])
    before = storage.statistics()
    storage.save_snapshot(snapshot_at(50), keep_from_index=40)
    after = storage.statistics()
    assert before.first_index == 1
    assert 30 < after.first_index <= 40
    assert after.segments < before.segments
    state = after_power_cut(disk)
    assert state.snapshot == snapshot_at(50)
    assert state.entries == tuple(entry(index, 1, bytes(400)) for index in range(51, 61))


def test_compaction_of_everything_leaves_a_log_that_goes_on() -> None:
    disk = new_disk()
    storage = created(disk)
    storage.write([ready(*entries(1, 9))])
    storage.save_snapshot(snapshot_at(9), keep_from_index=1000)
    assert storage.statistics().first_index == 10
    storage.write([ready(entry(10))])
    assert after_power_cut(disk).entries == (entry(10),)


def test_a_local_snapshot_that_is_not_newer_is_no_change() -> None:
    disk = new_disk()
    storage = created(disk)
    storage.write([ready(*entries(1, 9))])
    storage.save_snapshot(snapshot_at(5), keep_from_index=1)
    storage.write([ready(snapshot=snapshot_at(30))])
    for stale in (4, 5, 9, 30):
        storage.save_snapshot(snapshot_at(stale, 1, b"stale"), keep_from_index=1)
    assert after_power_cut(disk).snapshot == snapshot_at(30)


# --- failing disks ---------------------------------------------------------------------------------


def test_after_a_failed_sync_every_call_is_refused_until_it_is_opened_anew() -> None:
    disk = new_disk()
    storage = created(disk)
    storage.write([ready(entry(1))])
    disk.faults.fail_after, disk.faults.fail_kind = 1, "sync"
    with pytest.raises(MetadataPoisoned, match="restart"):
        storage.write([ready(entry(2))])
    calls: tuple[Callable[[], None], ...] = (
        lambda: storage.write([ready(entry(2))]),
        lambda: storage.save_snapshot(snapshot_at(1), keep_from_index=1),
        lambda: storage.save_snapshot(snapshot_at(0), keep_from_index=1),
        storage.settle,
    )
    for call in calls:
        with pytest.raises(MetadataPoisoned):
            call()
    storage.close()
    assert opened(disk).entries[:1] == [entry(1)]


def test_a_closed_storage_refuses_everything_but_closing() -> None:
    storage = created(new_disk())
    storage.close()
    storage.close()
    calls: tuple[Callable[[], None], ...] = (lambda: storage.write([ready(entry(1))]), storage.settle)
    for call in calls:
        with pytest.raises(LogClosed):
            call()


def test_metadata_may_use_the_space_that_other_logs_leave_alone() -> None:
    disk = new_disk()
    storage = created(disk)
    other = open_log(disk, "channel", now_us=1, options=LogOptions(reserve_bytes=100_000))
    disk.faults.capacity_bytes = disk._used_bytes + 60_000
    with pytest.raises(DiskError, match="reserve"):
        other.append(entry_block(entry(1), time_us=1), now_us=1)
    storage.write([ready(*entries(1, 50))])
    assert after_power_cut(disk).entries == entries(1, 50)


def test_a_disk_without_any_space_poisons_and_says_what_to_do() -> None:
    disk = new_disk()
    storage = created(disk)
    storage.write([ready(entry(1))])
    disk.faults.capacity_bytes = disk._used_bytes + 10
    with pytest.raises(MetadataPoisoned, match="make room"):
        storage.write([ready(entry(2))])
    storage.close()
    disk.faults.capacity_bytes = None
    assert opened(disk).entries == [entry(1)]


# --- damage ----------------------------------------------------------------------------------------


def filled() -> SimDisk:
    disk = new_disk()
    storage = created(disk)
    storage.write([ready(*entries(1, 6), hard_state=HardState(4, "n2"))])
    storage.settle()
    killed(storage)
    return disk.clone(disk._rng)


@pytest.mark.parametrize("name", ["identity", "hard-state", "snapshot", "mark-1", "log-1"])
def test_a_missing_part_is_damage_and_not_a_blank_folder(name: str) -> None:
    disk = filled()
    remove = disk.remove_folder if name.startswith("log") else disk.remove
    remove(f"{LIVE}/{name}")
    for _ in range(2):
        with pytest.raises(MetadataDamaged, match=name):
            opened(disk)


@pytest.mark.parametrize("keep", [0, 1, 40])
@pytest.mark.parametrize("name", ["identity", "hard-state", "snapshot", "mark-1"])
def test_a_shortened_file_is_damage(name: str, keep: int) -> None:
    disk = filled()
    content = files_below(disk)[f"{LIVE}/{name}"]
    disk.replace_bytes(f"{LIVE}/{name}", content[: min(keep, len(content) - 2)])
    if name == "mark-1" and keep == 40:
        assert opened(disk).entries == [*entries(1, 6)], "one slot is enough"
        return
    with pytest.raises(MetadataDamaged, match=name):
        opened(disk)


def test_missing_segments_are_damage() -> None:
    disk = filled()
    for path in files_below(disk):
        if ".seg" in path:
            disk.remove(path)
    for _ in range(2):
        with pytest.raises(MetadataDamaged):
            opened(disk)


def test_the_last_entry_rotten_is_damage_once_the_mark_was_settled() -> None:
    disk = filled()
    path = f"{LIVE}/log-1/{1:020d}.seg"
    disk.flip_bit(path, len(files_below(disk)[path]) - 20, 1)
    for _ in range(2):
        with pytest.raises(MetadataDamaged, match="6 to 6"):
            opened(disk)


def test_before_the_mark_is_settled_rot_of_the_last_write_after_a_power_cut_is_taken_for_a_torn_one() -> None:
    """The window that is left, as docs/formats/metadata.md says; `settle` closes it, and so does the next write."""
    disk = new_disk()
    storage = created(disk)
    storage.write([ready(*entries(1, 5))])
    storage.write([ready(entry(6))])
    other = disk.clone(disk._rng)
    path = f"{LIVE}/log-1/{1:020d}.seg"
    other.flip_bit(path, len(files_below(other)[path]) - 20, 1)
    assert opened(other).entries == [*entries(1, 5)]


def test_without_a_power_cut_the_mark_speaks_for_the_last_write_at_once() -> None:
    disk = new_disk()
    storage = created(disk)
    storage.write([ready(entry(1))])
    killed(storage)
    path = f"{LIVE}/log-1/{1:020d}.seg"
    disk.flip_bit(path, len(files_below(disk)[path]) - 20, 1)
    with pytest.raises(MetadataDamaged):
        opened(disk)


def test_one_rotten_slot_of_the_mark_is_harmless_and_two_are_damage() -> None:
    for slots in ((0,), (1,), (0, 1)):
        disk = filled()
        for slot in slots:
            disk.flip_bit(f"{LIVE}/mark-1", slot * MARK_SLOT_STEP + 10, 2)
        if len(slots) == 1:
            assert opened(disk).entries == [*entries(1, 6)]
        else:
            with pytest.raises(MetadataDamaged, match="slots"):
                opened(disk)


def test_entries_of_a_later_term_than_the_one_remembered_are_damage() -> None:
    disk = new_disk()
    storage = created(disk)
    storage.write([ready(entry(1, 4), hard_state=HardState(4, "n2"))])
    killed(storage)
    write_hard_state(disk, LIVE, HardState(3, "n2"))
    with pytest.raises(MetadataDamaged, match="term"):
        opened(disk)


def test_a_snapshot_without_the_log_that_continues_it_is_damage() -> None:
    disk = new_disk()
    storage = created(disk)
    for index in range(1, 40):
        storage.write([ready(entry(index, 1, bytes(400)))])
    old = files_below(disk)[f"{LIVE}/snapshot"]
    storage.save_snapshot(snapshot_at(30), keep_from_index=31)
    killed(storage)
    disk.replace_bytes(f"{LIVE}/snapshot", old)
    with pytest.raises(MetadataDamaged, match="begins at"):
        opened(disk)


def test_damaged_metadata_is_set_aside_whole_and_under_a_new_name_each_time() -> None:
    disk = new_disk()
    quarantine = ".tidelog/quarantine"
    disk.make_folder("boat-7")
    for number in (1, 2, 3):
        created(disk).close()
        before = files_below(disk)
        place = set_aside(disk, FOLDER, to=quarantine)
        disk.crash()
        assert place == f"{quarantine}/metadata-{number}"
        assert {path.replace(place, LIVE): data for path, data in files_below(disk, place).items()} == before
        assert open_raft_storage(disk, FOLDER, now_us=1) is None
    assert disk.list_folder("") == [".tidelog", "boat-7"]


def test_metadata_in_use_is_not_set_aside() -> None:
    disk = new_disk()
    storage = created(disk)
    with pytest.raises(FolderLocked):
        set_aside(disk, FOLDER, to="quarantine")
    storage.write([ready(entry(1))])


def test_statistics_say_what_was_done() -> None:
    storage = created(new_disk(), options=SMALL)
    storage.write([ready(*entries(1, 3), hard_state=HardState(2))])
    assert not storage.statistics().settled
    storage.settle()
    storage.write([ready(entry(9), snapshot=snapshot_at(8))])
    statistics = storage.statistics()
    assert (statistics.generation, statistics.first_index, statistics.last_index) == (2, 9, 9)
    assert (statistics.writes, statistics.entries_written, statistics.hard_states_written) == (2, 4, 1)
    assert (statistics.snapshot_index, statistics.snapshots_written, statistics.last_term) == (8, 1, 1)
