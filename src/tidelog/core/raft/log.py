"""The entries of one member that are newer than its snapshot, in memory.

G1  base_index <= snapshot index, base_index <= commit, stable <= last_index; handed <= min(commit, stable), but while a
    leader's snapshot is still being written.
G2  Committed entries are never replaced.
G3  The membership in force is the newest one in the log, committed or not; truncation brings the one before back.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.core.raft.members import Members
from tidelog.core.raft.messages import Entry, EntryKind, Snapshot


class RaftLog:
    __slots__ = (
        "_entries",
        "_memberships",
        "base_index",
        "base_term",
        "commit",
        "handed",
        "snapshot",
        "stable",
        "stored",
    )

    def __init__(self, snapshot: Snapshot, entries: Sequence[Entry]) -> None:
        head = snapshot.head
        self.snapshot = snapshot
        self.base_index, self.base_term = head.index, head.term
        self._entries = list(entries)
        assert all(entry.index == head.index + 1 + place for place, entry in enumerate(entries)), "G1"
        self._memberships = [(head.index, head.members)]
        self._note_memberships(entries)
        self.commit = self.handed = head.index
        """Invariant: see G1. `handed` is the index up to which entries were given to the caller to be applied."""
        self.stable = self.stored = self.last_index
        """Durable up to here; entries up to here were given to the caller to be written."""

    def _note_memberships(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if entry.kind is EntryKind.MEMBERS:
                assert entry.members is not None
                self._memberships.append((entry.index, entry.members))

    @property
    def last_index(self) -> int:
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base_term

    @property
    def members(self) -> Members:
        return self._memberships[-1][1]

    @property
    def members_index(self) -> int:
        return self._memberships[-1][0]

    def members_at(self, index: int) -> Members:
        """The membership in force at `index`, which is not below the base."""
        return next(members for at, members in reversed(self._memberships) if at <= index)

    def term_at(self, index: int) -> int | None:
        """The term at `index`; None where the log holds nothing: before its base or after its end."""
        place = index - self.base_index
        if place == 0:
            return self.base_term
        if 0 < place <= len(self._entries):
            return self._entries[place - 1].term
        return None

    def between(self, start: int, end: int) -> tuple[Entry, ...]:
        """Entries of [start, end)."""
        return tuple(self._entries[start - self.base_index - 1 : end - self.base_index - 1])

    def some_from(self, index: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from `index` on, as many as fit, and at least one if there is one."""
        first = place = index - self.base_index - 1
        entries, size_bytes = self._entries, 0
        while place < len(entries):
            size_bytes += entries[place].size_bytes
            if size_bytes > bytes_max and place > first:
                break
            place += 1
        return tuple(entries[first:place])

    def is_at_least(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends so is as complete as this one (section 5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    # --- growing ---------------------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        assert entry.index == self.last_index + 1
        self._entries.append(entry)
        self._note_memberships((entry,))

    def accept(self, entries: Sequence[Entry]) -> int | None:
        """Take entries that follow a place where the logs agree; the index of the first new one (section 5.3)."""
        for place, entry in enumerate(entries):
            if self.term_at(entry.index) == entry.term:
                continue  # the same index and term is the same entry: log matching
            if entry.index <= self.last_index:
                self._cut(entry.index)
            for fresh in entries[place:]:
                self.append(fresh)
            return entry.index
        return None

    def _cut(self, index: int) -> None:
        """Drop the entries from `index` on: another leader's entries replace them."""
        assert index > self.commit, "G2"
        del self._entries[index - self.base_index - 1 :]
        while self._memberships[-1][0] >= index:
            self._memberships.pop()
        self.stable = min(self.stable, index - 1)
        self.stored = min(self.stored, index - 1)

    def agreed_place(self, index: int, term: int) -> int:
        """The last place at or before `index` where a log with this term there may agree with this one.

        Skips whole terms at once, so a long divergence costs one question per term (end of section 5.3).
        """
        index = min(index, self.last_index)
        while index > self.base_index:
            own = self.term_at(index)
            assert own is not None
            if own <= term:
                return index
            index -= 1
        return index

    # --- shrinking -------------------------------------------------------------------------------

    def compact(self, snapshot: Snapshot, keep_from_index: int) -> None:
        """The state machine's own snapshot replaces entries; some are kept for followers that are a little behind."""
        head = snapshot.head
        assert self.snapshot.head.index <= head.index <= self.handed, "G1"
        base = max(self.base_index, min(keep_from_index - 1, head.index))
        base_term = self.term_at(base)
        assert base_term is not None
        members = self.members_at(base)
        del self._entries[: base - self.base_index]
        self.base_index, self.base_term = base, base_term
        self._memberships = [(base, members)] + [pair for pair in self._memberships if pair[0] > base]
        self.snapshot = snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """A leader's snapshot replaces everything."""
        assert snapshot.head.index > self.commit, "G2"
        self.__init__(snapshot, ())  # type: ignore[misc]
        # Nothing of it is on disk yet; entries are written from here on.
        self.stable = 0
