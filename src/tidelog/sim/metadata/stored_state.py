"""What the storage of a member of the metadata group may hold after a write, or after a crash in the middle of one."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.core.raft.messages import Entry, HardState, Ready, Snapshot
from tidelog.storage.raft.storage import gathered


class StoredState(NamedTuple):
    """What a storage holds."""

    hard_state: HardState
    snapshot: Snapshot
    entries: tuple[Entry, ...]

    @property
    def last_index(self) -> int:
        return self.snapshot.head.index + len(self.entries)

    def term_at(self, index: int) -> int:
        base = self.snapshot.head
        return base.term if index == base.index else self.entries[index - base.index - 1].term


def states_of_write(before: StoredState, readys: list[Ready]) -> list[StoredState]:
    """Every state that a crash in this write may leave; the last one is that of a finished write."""
    hard_state, snapshot, entries = gathered(readys)
    states = [before]
    if hard_state is not None:
        states.append(before._replace(hard_state=hard_state))
    if snapshot is not None:
        states.append(states[-1]._replace(snapshot=snapshot, entries=()))
    base = states[-1]
    if entries:
        count = entries[0].index - base.snapshot.head.index - 1
        # A suffix that is being replaced may be gone in part: it lies in several segments, and the newest goes first.
        states += [base._replace(entries=base.entries[:end]) for end in range(count, len(base.entries))]
        kept = base.entries[:count]
        states += [base._replace(entries=kept + tuple(entries[:end])) for end in range(len(entries) + 1)]
    return states


def state_after_compaction(before: StoredState, snapshot: Snapshot) -> StoredState:
    covered = snapshot.head.index - before.snapshot.head.index
    return before._replace(snapshot=snapshot, entries=before.entries[covered:]) if covered > 0 else before
