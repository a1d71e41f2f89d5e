"""random runs of a member's metadata against a model, and bugs planted on purpose that those runs must find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.storage.raft_storage_run import ACTIONS, SOMETIMES, run_raft_storage
from tidelog.core.raft.messages import EntryPlace, Snapshot
from tidelog.errors import MetadataPoisoned
from tidelog.storage.disk import Buffer, Disk
from tidelog.storage.log.log import Log
from tidelog.storage.raft import storage as raft_storage
from tidelog.storage.raft.files import MarkFile, StoredSnapshot, read_hard_state, write_hard_state, write_snapshot
from tidelog.storage.raft.storage import RaftStorage


def live_through(seeds: range, *, actions: int) -> None:
    """Not `run_seeds`, which looks for garbage after each run: under pytest that takes longer than the run."""
    counters: Counter[str] = Counter()
    for seed in seeds:
        counters.update(run_raft_storage(seed, actions=actions).counters)
    assert not [name for name in SOMETIMES if not counters[name]], "these runs prove less than they seem to"


@pytest.mark.parametrize("first", [1, 101, 201])
def test_a_hundred_short_runs_keep_every_promise(first: int) -> None:
    live_through(range(first, first + 100), actions=25)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_001, 3_001, 250))
def test_many_long_runs_keep_every_promise(first: int) -> None:
    live_through(range(first, first + 250), actions=ACTIONS)


def test_a_run_depends_on_its_seed_only() -> None:
    assert run_raft_storage(7) == run_raft_storage(7)
    assert run_raft_storage(7).counters != run_raft_storage(8).counters


# --- planted bugs ----------------------------------------------------------------------------------


def entries_not_synced(patch: pytest.MonkeyPatch) -> None:
    def sync(log: Log) -> None:
        log._dirty = False
        log._durable_end = max(log._durable_end, log.written_end)

    patch.setattr(Log, "sync", sync)


def mark_not_lowered_before_truncation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftStorage, "_lower_mark", lambda storage, place: None)


def mark_lowered_without_a_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftStorage, "_lower_mark", lambda storage, place: storage._mark.note(place))


def mark_lowered_after_truncation(patch: pytest.MonkeyPatch) -> None:
    cut = RaftStorage._cut
    lower = RaftStorage._lower_mark

    def cut_first(storage: RaftStorage, index: int) -> None:
        cut(storage, index)
        lower(storage, storage._last)

    patch.setattr(RaftStorage, "_lower_mark", lambda storage, place: None)
    patch.setattr(RaftStorage, "_cut", cut_first)


def mark_never_raised(patch: pytest.MonkeyPatch) -> None:
    note = MarkFile.note

    def lower(storage: RaftStorage, place: EntryPlace) -> None:
        note(storage._mark, place)
        storage._mark.settle()

    patch.setattr(RaftStorage, "_lower_mark", lower)
    patch.setattr(MarkFile, "note", lambda mark, place: None)


def mark_not_synced_by_settle(patch: pytest.MonkeyPatch) -> None:
    settle = MarkFile.settle

    def lower(storage: RaftStorage, place: EntryPlace) -> None:
        storage._mark.note(place)
        settle(storage._mark)

    patch.setattr(RaftStorage, "_lower_mark", lower)
    patch.setattr(MarkFile, "settle", lambda mark: None)


def mark_raised_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    append = RaftStorage._append

    def append_after_mark(storage: RaftStorage, entries: Any) -> None:
        storage._mark.note(EntryPlace(entries[-1].index, entries[-1].term))
        storage._mark.settle()
        append(storage, entries)

    patch.setattr(RaftStorage, "_append", append_after_mark)


def mark_turns_to_the_other_slot_each_time(patch: pytest.MonkeyPatch) -> None:
    note = MarkFile.note

    def note_and_turn(mark: MarkFile, place: EntryPlace) -> None:
        note(mark, place)
        mark._slot = 1 - mark._slot

    patch.setattr(MarkFile, "note", note_and_turn)


class _Unsynced:
    """A disk whose files and folders are synced only in word."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, path: str, **how: Any) -> Any:
        return _Unsynced(self._disk.open(path, **how))

    def sync(self) -> None:
        pass

    def sync_folder(self, path: str) -> None:
        pass


def vote_file_not_synced(patch: pytest.MonkeyPatch) -> None:
    def write(disk: Any, folder: str, state: Any) -> None:
        write_hard_state(_Unsynced(disk), folder, state)

    patch.setattr(raft_storage, "write_hard_state", write)


def vote_not_written_when_only_the_vote_changed(patch: pytest.MonkeyPatch) -> None:
    def write(disk: Disk, folder: str, state: Any) -> None:
        if read_hard_state(disk, folder).term != state.term:
            write_hard_state(disk, folder, state)

    patch.setattr(raft_storage, "write_hard_state", write)


def entries_before_the_hard_state(patch: pytest.MonkeyPatch) -> None:
    write = RaftStorage._write

    def in_wrong_order(storage: RaftStorage, hard_state: Any, snapshot: Any, entries: Any) -> None:
        write(storage, None, snapshot, entries)
        write(storage, hard_state, None, [])

    patch.setattr(RaftStorage, "_write", in_wrong_order)


def generation_ignored_by_an_installed_snapshot(patch: pytest.MonkeyPatch) -> None:
    install = RaftStorage._install

    def keep_the_log(storage: RaftStorage, snapshot: Snapshot) -> None:
        inside = storage.snapshot.head.index <= snapshot.head.index < storage._last.index
        if inside and storage._terms.epoch_at(snapshot.head.index) == snapshot.head.term:
            storage._save_snapshot(snapshot, snapshot.head.index + 1)
        else:
            install(storage, snapshot)

    patch.setattr(RaftStorage, "_install", keep_the_log)


def old_log_removed_before_the_snapshot_is_durable(patch: pytest.MonkeyPatch) -> None:
    def write(disk: Disk, folder: str, stored: StoredSnapshot) -> None:
        if stored.generation > 1:
            raft_storage.remove_generation(disk, folder, stored.generation - 1)
        write_snapshot(disk, folder, stored)

    patch.setattr(raft_storage, "write_snapshot", write)


def log_trimmed_before_the_snapshot_is_durable(patch: pytest.MonkeyPatch) -> None:
    save = RaftStorage._save_snapshot

    def trim_first(storage: RaftStorage, snapshot: Snapshot, keep_from_index: int) -> None:
        storage._log.trim(min(keep_from_index, snapshot.head.index + 1), storage._now_us)
        save(storage, snapshot, keep_from_index)

    patch.setattr(RaftStorage, "_save_snapshot", trim_first)


def snapshot_written_in_place(patch: pytest.MonkeyPatch) -> None:
    def write(disk: Disk, path: str, buffers: Sequence[Buffer]) -> None:
        file = disk.open(path, create=True)
        file.truncate(0)
        file.write_at(0, buffers)
        file.sync()
        file.close()
        disk.sync_folder(path.rpartition("/")[0])

    patch.setattr("tidelog.storage.raft.files.replace_file", write)


def suffix_not_truncated_on_disk(patch: pytest.MonkeyPatch) -> None:
    """Only memory forgets it: the new entries are written after the old ones."""
    truncate = Log.truncate

    def forget(log: Log, offset: int) -> None:
        path, size = log.segments[-1].path, log.segments[-1].index.size
        segments = len(log.segments)
        file = log.disk.open(path)
        old = file.read_at(0, size)
        file.close()
        truncate(log, offset)
        if len(log.segments) == segments:
            file = log.disk.open(path)
            file.write_at(0, [old])
            file.sync()
            file.close()

    patch.setattr(Log, "truncate", forget)


def poison_forgotten(patch: pytest.MonkeyPatch) -> None:
    change = RaftStorage._change

    def forgiving(storage: RaftStorage, action: Callable[[], None]) -> None:
        try:
            change(storage, action)
        except MetadataPoisoned:
            storage._poison = None
            raise

    patch.setattr(RaftStorage, "_change", forgiving)


PLANTED = [
    entries_not_synced,
    mark_not_lowered_before_truncation,
    mark_lowered_without_a_sync,
    mark_lowered_after_truncation,
    mark_never_raised,
    mark_not_synced_by_settle,
    mark_raised_before_the_sync,
    mark_turns_to_the_other_slot_each_time,
    vote_file_not_synced,
    vote_not_written_when_only_the_vote_changed,
    entries_before_the_hard_state,
    generation_ignored_by_an_installed_snapshot,
    old_log_removed_before_the_snapshot_is_durable,
    log_trimmed_before_the_snapshot_is_durable,
    snapshot_written_in_place,
    suffix_not_truncated_on_disk,
    poison_forgotten,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(1, 301):
        try:
            run_raft_storage(seed)
        except AssertionError:
            return
    pytest.fail("300 runs did not notice")
