"""The store under every fault of the simulated disk; and proof that the simulation would notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.mutations import Edit, plant
from tidelog.errors import LogError
from tidelog.sim.store.world import StoreViolation, run_store_seeds, run_store_world
from tidelog.storage.log import recovery
from tidelog.storage.log.log import Log
from tidelog.storage.store import store
from tidelog.storage.store.losses import StoreState
from tidelog.storage.store.parts import StoreChannel
from tidelog.storage.store.store import Store
from tidelog.storage.store.wal import WalEntryKind, WalWriter
from tidelog.storage.store.wal_mark import WalMark
from tidelog.storage.store.wals import WalChain, WalFiles

MUTATION_SEEDS = 8
LYING_SEEDS = 120


def check(result: dict[str, Any]) -> None:
    assert result["violations"] == []
    assert result["never"] == []


def test_the_store_survives_one_hundred_seeds() -> None:
    check(run_store_seeds(0, 100))


@pytest.mark.slow
def test_the_store_survives_a_thousand_seeds() -> None:
    check(run_store_seeds(1_000, 1_000))


def test_a_seed_is_a_replay() -> None:
    assert run_store_world(7) == run_store_world(7)


def assert_noticed() -> None:
    violations = run_store_seeds(0, MUTATION_SEEDS)["violations"]
    assert violations, f"{MUTATION_SEEDS} seeds did not notice"
    seed = violations[0]["seed"]
    with pytest.raises(StoreViolation, match=f"tidelog sim store --seed {seed}"):
        run_store_world(seed)


def test_acks_without_a_sync_of_the_write_ahead_file_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(wal: WalWriter) -> None:
        wal.durable_size = wal.size

    monkeypatch.setattr(WalWriter, "sync", sync)
    assert_noticed()


def test_a_checkpoint_without_a_sync_of_the_segments_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def write_back(_: Store, channel: StoreChannel, log: Log, now_us: int) -> LogError | None:
        try:
            log.flush(now_us)
        except LogError as error:
            return error
        channel.synced_end = log.written_end
        channel.unsynced.clear()
        return None

    monkeypatch.setattr(Store, "_write_back", write_back)
    assert_noticed()


def test_forgotten_truncations_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    write_entry: Callable[..., None] = Store._write_entry

    def without_truncations(store: Store, kind: WalEntryKind, *rest: Any) -> None:
        if kind is not WalEntryKind.TRUNCATE:
            write_entry(store, kind, *rest)

    monkeypatch.setattr(Store, "_write_entry", without_truncations)
    assert_noticed()


def test_a_write_ahead_file_dropped_for_all_because_one_channel_failed_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "log_again", lambda *_: True)
    assert_noticed()


# --- disks that lie ------------------------------------------------------------------------------------

LIES = {
    "end of the write-ahead file not marked": [Edit(WalFiles, "sync", "self._note(wal.durable_size)", "pass")],
    "mark not synced": [Edit(WalMark, "settle", "self._file.sync()", "pass")],
    "missing file taken for none": [Edit(WalChain, "missing", ".difference(live)", ".intersection(())")],
    "mark not held against the file": [
        Edit(WalChain, "scan", "self._durable_sizes.get(number, 0) if number >= self._floor else 0", "0")
    ],
    "loss told only once": [Edit(StoreState, "save", "if self.lost:", "if False:")],
    "loss never forgotten": [Edit(Store, "forget_loss", 'self.state.lost = ""', "pass")],
    "short segment taken for the end": [
        Edit(recovery._Opening, "_settle_newest", "segment.index.end_offset < sync_point", "False"),
        Edit(Store, "_find_log", "stage_gap(log, channel.synced_end, now_us)", "stage_gap(log, 0, now_us)"),
    ],
    "mark promises too much": [Edit(WalFiles, "_note", "self.current.number, size", "self.current.number, size + 8")],
}
LATE = {"short segment taken for the end": 300}
"""Where to begin, for what takes many seeds."""


@pytest.mark.parametrize("name", list(LIES))
def test_a_store_that_does_not_miss_what_its_disk_lost_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *LIES[name])
    first = LATE.get(name, 0)
    for seed in range(first, first + LYING_SEEDS):
        try:
            run_store_world(seed, steps=25)
        except StoreViolation:
            return
    pytest.fail(f"{LYING_SEEDS} seeds did not notice: {name}")
