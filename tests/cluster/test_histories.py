"""The judge of histories: it must let every good one pass and catch every kind of bad one."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.cluster.histories import NEVER_NS, History, Operation, violations


def write(epoch: int, asked: int, returned: int, *, mark: str = "", outcome: str = "ok") -> Operation:
    return Operation(
        channel="c",
        is_write=True,
        asked_ns=asked,
        returned_ns=NEVER_NS if outcome == "unknown" else returned,
        epoch=epoch,
        mark=mark or f"m{epoch}",
        outcome=outcome,
    )


def read(epoch: int, asked: int, returned: int, *, mark: str = "") -> Operation:
    shown = mark or ("" if epoch == 1 else f"m{epoch}")
    return Operation(
        channel="c", is_write=False, asked_ns=asked, returned_ns=returned, epoch=epoch, mark=shown, outcome="ok"
    )


GOOD = {
    "one after the other": [read(1, 0, 1), write(2, 2, 3), read(2, 4, 5), write(3, 6, 7), read(3, 8, 9)],
    "a read beside a write sees either": [write(2, 0, 10), read(1, 1, 2), read(2, 3, 4), read(2, 11, 12)],
    "reads of one epoch in any order": [write(2, 0, 1), read(2, 8, 9), read(2, 2, 3), read(2, 4, 12)],
    "an unknown write that happened late": [write(2, 0, 0, outcome="unknown"), read(1, 5, 6), read(2, 7, 8)],
    "an unknown write that never happened": [write(2, 0, 0, outcome="unknown"), read(1, 50, 60)],
    "an unknown write between two known": [write(2, 0, 1), write(3, 2, 0, outcome="unknown"), write(4, 9, 10)],
    "two unknown for one epoch, one is shown": [
        write(2, 0, 0, mark="a", outcome="unknown"),
        write(2, 1, 0, mark="b", outcome="unknown"),
        read(2, 5, 6, mark="b"),
    ],
    "a refused one leaves no trace": [write(2, 0, 1), write(2, 2, 3, mark="x", outcome="refused"), read(2, 4, 5)],
}
BAD = {
    "a stale read": ([write(2, 0, 1), read(1, 2, 3)], "returned before"),
    "reads that go back": ([write(2, 0, 9), read(2, 1, 2), read(1, 3, 4)], "returned before"),
    "a lost acknowledged write": ([write(2, 0, 1), write(3, 2, 3), read(2, 4, 5)], "returned before"),
    "one epoch written twice": ([write(2, 0, 1, mark="a"), write(2, 2, 3, mark="b")], "2 writes"),
    "a read from the future": ([read(2, 0, 1), write(2, 2, 3)], "returned before"),
    "a value from nowhere": ([write(2, 0, 1), read(2, 2, 3, mark="x")], "holds m2"),
    "an epoch from nowhere": ([write(2, 0, 1), read(3, 2, 3)], "nobody"),
    "a refused write that is shown": ([write(2, 0, 1, outcome="refused"), read(2, 2, 3)], "nobody"),
    "an unknown write before it was asked for": (
        [read(2, 0, 1), write(2, 2, 0, outcome="unknown")],
        "returned before",
    ),
    "two values of one epoch": (
        [
            write(2, 0, 0, mark="a", outcome="unknown"),
            write(2, 1, 0, mark="b", outcome="unknown"),
            read(2, 5, 6, mark="a"),
            read(2, 7, 8, mark="b"),
        ],
        "holds a",
    ),
    "writes against the clock": ([write(3, 0, 1), write(2, 2, 3)], "returned before"),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_a_register_can_show_passes(name: str) -> None:
    assert violations(History(GOOD[name])) == []


@pytest.mark.parametrize("name", BAD)
def test_what_no_register_can_show_is_caught(name: str) -> None:
    operations, words = BAD[name]
    found = violations(History(operations))
    assert any(words in line for line in found), found


def test_recovery_counts_from_changes_asked_for_after_the_fault() -> None:
    history = History([write(2, 0, 20), write(3, 15, 40), write(4, 12, 0, outcome="unknown")])
    assert history.next_ack_after(10) == 40
    assert history.next_ack_after(16) is None
    assert all(one.asked_ns <= other.asked_ns for one, other in pairwise(history.acked()))
