"""The journal in the simulator: random runs, and proof that the simulator would notice broken promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.blocks.block import Block
from tidelog.edge.journal.journal import META_NAME, Journal
from tidelog.edge.journal.sealing import Sealer
from tidelog.sim.journal.model import JournalViolation
from tidelog.sim.journal.world import run_journal_seeds, run_journal_world
from tidelog.storage.log.log import Log

FAST_SEEDS = 100
SLOW_SEEDS = 1_000
MUTATION_SEEDS = 100


def check_lane(first: int, count: int) -> None:
    result = run_journal_seeds(first, count)
    assert result["violations"] == [], "replay with: tidelog sim journal --seed N"
    assert result["never"] == [], "the run proves less than it says"
    assert result["seeds"] == count
    assert result["events"] > count


def test_random_runs_of_a_journal_keep_every_promise() -> None:
    check_lane(0, FAST_SEEDS)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_random_runs_of_a_journal_keep_every_promise() -> None:
    check_lane(10_000, SLOW_SEEDS)


def test_a_seed_replays_the_same_run() -> None:
    assert run_journal_world(7) == run_journal_world(7)


def test_a_violation_names_its_seed_and_how_to_see_it_again() -> None:
    violation = JournalViolation(12, "a frame is gone")
    assert str(violation) == "seed 12: a frame is gone\nreplay: tidelog sim journal --seed 12"


# --- the simulator proves itself: break the code on purpose, and it must notice -----------------------


def first_violation() -> str:
    for seed in range(MUTATION_SEEDS):
        try:
            run_journal_world(seed)
        except JournalViolation as violation:
            return violation.problem
    return ""


def test_a_lease_that_is_not_persisted_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    save: Callable[..., None] = Journal._save_meta

    def save_once(journal: Journal, **arguments: Any) -> None:
        if not journal.disk.exists(f"{journal.folder}/{META_NAME}"):
            save(journal, **arguments)

    monkeypatch.setattr(Journal, "_save_meta", save_once)
    assert "JJ1" in first_violation()


def test_trimming_the_fresh_form_before_the_sealed_one_is_durable_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    seal_run = Sealer._seal_run

    def seal_and_trim(sealer: Sealer, run: list[Block]) -> None:
        seal_run(sealer, run)
        sealer.fresh.trim(sealer.sealed.log_end, 0)

    monkeypatch.setattr(Sealer, "_seal_run", seal_and_trim)
    assert first_violation()


def test_a_flush_without_a_sync_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(log: Log, now_us: int) -> None:
        log.flush(now_us)
        log.note_durable(log.log_end)

    monkeypatch.setattr(Log, "commit", commit)
    assert first_violation()


def test_a_loss_without_a_word_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "_announce", lambda *_: None)
    assert first_violation()


def test_seqs_counted_back_from_the_head_over_frames_that_came_later_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write, flush, gather = Journal._write, Journal.flush, Journal._gather

    def write_what_was_refused(journal: Journal, now_us: int) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "_gather", lambda _: None)
            write(journal, now_us)

    def gather_and_flush(journal: Journal, now_us: int) -> None:
        gather(journal)
        flush(journal, now_us)

    monkeypatch.setattr(Journal, "_write", write_what_was_refused)
    monkeypatch.setattr(Journal, "flush", gather_and_flush)
    assert "reads" in first_violation()


def test_a_clean_close_that_forgets_its_lease_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    save: Callable[..., None] = Journal._save_meta

    def save_durable_head(journal: Journal, *, leased_end: int, clean: bool = False) -> None:
        save(journal, leased_end=journal.durable_head + 1 if clean else leased_end, clean=clean)

    monkeypatch.setattr(Journal, "_save_meta", save_durable_head)
    assert first_violation()
