"""What a channel holds of each lineage: data, lost, void and missing seqs, as a fold over its log.

Nothing here is stored by itself. The state is what remains after applying, in log order, the data
blocks and control records of a channel (F1), so a new leader or a restarted cloud knows exactly what
the old one knew. A receiver keeps two of these: one over what is appended (it decides what counts in
a new block), one over what is committed (it decides acks) (F2).

UF1  Data, lost, void and holes are disjoint and together cover [1, head].
UF2  Data overrides lost and void (F4): seqs that arrive after all are data from then on.
UF3  The cursor is the end of the run without a hole that begins at seq 1. It never falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidelog.core.ranges import RangeSet

Pairs = list[list[int]]


@dataclass(slots=True)
class LineageFold:
    """One lineage of a boat. `head` is the newest seq known to exist, inclusive; 0 for none."""

    held: RangeSet = field(default_factory=RangeSet)
    lost: RangeSet = field(default_factory=RangeSet)
    void: RangeSet = field(default_factory=RangeSet)
    head: int = 0
    boot_id: bytes = b""
    """The boot id that was heard last (B7)."""
    span_us: tuple[int, int] | None = None
    """The oldest and the newest time of the blocks with its data: they tell runs of an lplex boat apart."""
    closed: bool = False
    """An older run of an lplex boat; its files will bring no more."""
    _settled: int = field(default=1, compare=False)
    """The first missing seq at the last query: below it nothing changes any more (UF3)."""

    def data(self, seqs: range) -> None:
        if not seqs:
            return
        self.held.add(seqs)
        self.lost.remove(seqs)
        self.void.remove(seqs)
        self.head = max(self.head, seqs.stop - 1)

    def declare_lost(self, seqs: range) -> None:
        """These existed and can no longer be had, except where they are already held."""
        for part in self.undecided(seqs):
            self.lost.add(part)
        self.head = max(self.head, seqs.stop - 1)

    def declare_void(self, seqs: range) -> None:
        """These were leased and never issued, except where they are already held."""
        for part in self.undecided(seqs):
            self.void.add(part)
        self.head = max(self.head, seqs.stop - 1)

    def undecided(self, seqs: range) -> list[range]:
        """Parts of `seqs` that are neither held nor lost nor void."""
        return [rest for part in self.held.gaps(seqs) for gap in self.lost.gaps(part) for rest in self.void.gaps(gap)]

    def announce(self, head: int) -> None:
        """The boat reports that its newest seq is `head`: every seq up to it that is not held is missing."""
        self.head = max(self.head, head)

    def known_end(self) -> int:
        """One past the newest seq that is held, lost or void; seqs that were only announced do not count."""
        return max(self.held.end, self.lost.end, self.void.end, 1)

    def holes(self) -> list[range]:
        """Missing seqs, ascending."""
        return self.undecided(range(self.cursor + 1, self.head + 1))

    def newest_holes(self, count: int) -> list[range]:
        """At most so many holes, the newest, ascending. The cost grows with what it returns, not with the number of
        holes."""
        found: list[range] = []
        held, lost, void = self.held, self.lost, self.void
        stop, floor = self.head + 1, self.cursor + 1
        while stop > floor and len(found) < count:
            start = min(held.start_of_run(stop), lost.start_of_run(stop), void.start_of_run(stop))
            if start == stop:
                start = max(floor, held.end_before(stop), lost.end_before(stop), void.end_before(stop))
                found.append(range(start, stop))
            stop = start
        return found[::-1]

    def missing_in(self, seqs: range) -> list[range]:
        """Parts of `seqs` that are not held as data: what would count if they arrived now."""
        return self.held.gaps(seqs)

    def ranges(self) -> int:
        """The memory that this fold uses, as a number of ranges."""
        return len(self.held) + len(self.lost) + len(self.void)

    def would_split_hole(self, seqs: range) -> bool:
        """Whether taking `seqs` would leave holes on both sides of them."""
        below, above = range(seqs.start - 1, seqs.start), range(seqs.stop, seqs.stop + 1)
        return seqs.start > 1 and bool(self.undecided(below)) and bool(self.undecided(above))

    @property
    def cursor(self) -> int:
        """The last seq up to which nothing is missing, inclusive; 0 for none."""
        position = self._settled
        while True:
            end = max(self.held.end_of_run(position), self.lost.end_of_run(position), self.void.end_of_run(position))
            if end == position:
                self._settled = position
                return position - 1
            position = end

    def check(self) -> None:
        """Assert UF1."""
        parts = [*self.held, *self.lost, *self.void, *self.undecided(range(1, self.head + 1))]
        ordered = sorted(parts, key=lambda part: part.start)
        position = 1
        for part in ordered:
            assert part.start == position, "UF1"
            position = part.stop
        assert position == self.head + 1, "UF1"

    def to_state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "held": self.held.pairs(),
            "lost": self.lost.pairs(),
            "void": self.void.pairs(),
            "head": self.head,
            "life": self.boot_id.hex(),
        }
        if self.span_us is not None:
            state["span_us"] = list(self.span_us)
        return state | {"closed": True} if self.closed else state

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> LineageFold:
        return cls(
            held=RangeSet.from_pairs(state["held"]),
            lost=RangeSet.from_pairs(state["lost"]),
            void=RangeSet.from_pairs(state["void"]),
            head=int(state["head"]),
            boot_id=bytes.fromhex(state.get("life", "")),
            span_us=_span(state.get("span_us")),
            closed=bool(state.get("closed", False)),
        )

    def copy(self) -> LineageFold:
        return replace(self, held=self.held.copy(), lost=self.lost.copy(), void=self.void.copy(), _settled=1)

    def note_span(self, span_us: tuple[int, int]) -> None:
        known = self.span_us or span_us
        self.span_us = min(known[0], span_us[0]), max(known[1], span_us[1])


class ChannelFold:
    """All lineages of one boat's channel, and the current one."""

    def __init__(self) -> None:
        self.lineages: dict[bytes, LineageFold] = {}
        self.current: bytes | None = None
        self.session = 0
        """The newest session; an older one is fenced (U2)."""

    def lineage(self, lineage: bytes) -> LineageFold:
        fold = self.lineages.get(lineage)
        if fold is None:  # not setdefault, which would make one for nothing on every call
            fold = self.lineages[lineage] = LineageFold()
        return fold

    def data(self, lineage: bytes, seqs: Sequence[range], span_us: tuple[int, int] | None = None) -> None:
        """These seqs came, in a block of these times."""
        fold = self.lineage(lineage)
        if span_us is not None:
            fold.note_span(span_us)
        for part in seqs:
            fold.data(part)
        if self.current is None:
            self.current = lineage

    def session_opened(self, lineage: bytes, *, head: int, session: int, boot_id: bytes = b"") -> None:
        self.current = lineage
        self.session = max(self.session, session)
        fold = self.lineage(lineage)
        fold.announce(head)
        fold.boot_id = boot_id or fold.boot_id

    def lineage_opened(self, lineage: bytes) -> None:
        self.current = lineage
        self.lineage(lineage)

    def check(self) -> None:
        for fold in self.lineages.values():
            fold.check()

    def to_state(self) -> dict[str, Any]:
        return {
            "current": self.current.hex() if self.current else "",
            "session": self.session,
            "lineages": {lineage.hex(): fold.to_state() for lineage, fold in sorted(self.lineages.items())},
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> ChannelFold:
        fold = cls()
        fold.current = bytes.fromhex(state["current"]) or None
        fold.session = int(state["session"])
        fold.lineages = {bytes.fromhex(key): LineageFold.from_state(value) for key, value in state["lineages"].items()}
        return fold

    def copy(self) -> ChannelFold:
        twin = ChannelFold()
        twin.current, twin.session = self.current, self.session
        twin.lineages = {lineage: fold.copy() for lineage, fold in self.lineages.items()}
        return twin


def _span(pair: Sequence[int] | None) -> tuple[int, int] | None:
    return None if pair is None else (int(pair[0]), int(pair[1]))
