"""What must hold between boats and their cloud: a plain account of every frame, and the checks against it.

The model knows nothing of sessions or streams. It remembers which content each boat's bus gave a seq,
which seqs a power cut or a disk limit took from the boat, and what the cloud's log durably says, block
by block. The numbers are those of design.md, section 10.

A *timeline* is one history of a journal: a backup that is put back, or a cloned card, starts another one
in the same lineage. Two timelines may give one seq two contents; the cloud may hold one of them only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from tidelog.blocks.block import Block
from tidelog.blocks.control import FoldSnapshot, RangeLost, RangeVoid, decode_control
from tidelog.blocks.frames import decode_frames
from tidelog.blocks.header import BlockKind
from tidelog.sim.seeds import WorldViolation

Frame: TypeAlias = tuple[int, int, bytes]
"""Time, CAN id, payload."""


class UplinkViolation(WorldViolation):
    """The uplink broke a promise."""

    world = "uplink"


class Broken(Exception):
    """A check failed; the world adds the seed."""


@dataclass(slots=True)
class Held:
    """What the cloud's log durably says of one lineage."""

    frames: dict[int, int] = field(default_factory=dict)
    """Seq to the timeline it came from."""
    lost: set[int] = field(default_factory=set)
    void: set[int] = field(default_factory=set)
    cursor: int = 0

    def advance(self) -> None:
        cursor = self.cursor + 1
        while cursor in self.frames or cursor in self.lost or cursor in self.void:
            cursor += 1
        self.cursor = cursor - 1


@dataclass(slots=True)
class Issued:
    """What the bus gave the seqs of one lineage."""

    frames: dict[int, dict[int, Frame]] = field(default_factory=lambda: defaultdict(dict))
    """Seq to content by timeline."""
    gone: set[int] = field(default_factory=set)
    """Forced out by a disk limit, or gone with a disk: these may be lost."""
    cut: set[int] = field(default_factory=set)
    """In memory only when the power went: these may be void."""
    first_of: dict[int, int] = field(default_factory=dict)
    """The first seq of each timeline."""


class UplinkModel:
    """One boat (with its clones) and its channel."""

    def __init__(self, counters: Counter[str]) -> None:
        self.counters = counters
        self.checks = 0
        self.issued: dict[bytes, Issued] = defaultdict(Issued)
        self.held: dict[bytes, Held] = defaultdict(Held)
        self.seen_cursor: dict[tuple[int, bytes], dict[str, int]] = defaultdict(dict)
        """What a boat was told, by timeline and lineage, and by kind of message."""
        self.contested: set[bytes] = set()
        """Lineages that two running boats have claimed: what one lost the other may have."""
        self.verified_end = 0
        """The cloud's log below this offset has been read and is committed."""

    # --- the boat --------------------------------------------------------------------------------

    def issue(self, lineage: bytes, seq: int, frame: Frame, timeline: int) -> None:
        known = self.issued[lineage]
        contents = known.frames[seq]
        if timeline in contents:
            raise Broken(f"9: seq {seq} of lineage {_name(lineage)} was issued twice")
        contents[timeline] = frame
        known.gone.discard(seq)
        known.cut.discard(seq)
        known.first_of.setdefault(timeline, seq)

    def check_ack(self, lineage: bytes, cursor: int, timeline: int, stream: str) -> None:
        """A cursor arrived at a boat: durable in the cloud, and never below an older one of its stream.

        Live and Backfill may overtake each other; a Handshake comes after everything.
        """
        self.checks += 1
        durable = self.held[lineage].cursor
        if cursor > durable:
            raise Broken(f"9: the boat was told {cursor}, lineage {_name(lineage)} is durable up to {durable}")
        seen = self.seen_cursor[timeline, lineage]
        newest = max(seen.values(), default=0) if stream == "Welcome" else seen.get(stream, 0)
        if cursor < newest:
            raise Broken(f"9: the cursor of lineage {_name(lineage)} went back from {newest} to {cursor}")
        seen[stream] = cursor

    # --- the cloud -------------------------------------------------------------------------------

    def read_log(self, blocks: Iterable[Block], durable_end: int) -> None:
        """Take over what became durable since the last time."""
        for block in blocks:
            if block.offsets.start < self.verified_end:
                continue
            self.checks += 1
            if block.maker.kind == BlockKind.CONTROL:
                self._take_control(block)
            else:
                self._take_frames(block)
            self.verified_end = block.offsets.stop
        if self.verified_end < durable_end:
            raise Broken(f"the cloud's log is durable up to {durable_end} and readable up to {self.verified_end}")

    def _take_frames(self, block: Block) -> None:
        lineage, base = block.maker.producer, block.maker.base_seq
        issued, held = self.issued[lineage], self.held[lineage]
        rows = list(decode_frames(block.maker, block.raw_body()).rows())
        self.counters["window"] += bool(block.windows)
        for part in block.counted_ranges():
            for place in part:
                seq = base + place
                if seq in held.frames:
                    raise Broken(f"6: seq {seq} of lineage {_name(lineage)} is counted twice in the cloud's log")
                contents = issued.frames.get(seq, {})
                timeline = next((number for number, frame in contents.items() if frame == rows[place]), None)
                if timeline is None:
                    raise Broken(f"6: seq {seq} of lineage {_name(lineage)} is not what any bus gave it")
                held.frames[seq] = timeline
                if len(issued.first_of) > 1:
                    _check_unmixed(seq, timeline, issued, held)
                held.lost.discard(seq)
                held.void.discard(seq)
        held.advance()

    def _take_control(self, block: Block) -> None:
        for record in decode_control(block.maker, block.raw_body()):
            if isinstance(record, RangeLost):
                self._take_lost(bytes.fromhex(record.lineage), range(record.start, record.end))
            elif isinstance(record, RangeVoid):
                self._take_void(bytes.fromhex(record.lineage), range(record.start, record.end))
            elif isinstance(record, FoldSnapshot):
                self.counters["snapshot"] += 1

    def _take_lost(self, lineage: bytes, seqs: range) -> None:
        issued, held = self.issued[lineage], self.held[lineage]
        new = [seq for seq in seqs if seq not in held.frames and seq not in held.void]
        self.counters["lost"] += bool(new)
        for seq in new:
            if seq not in issued.gone and lineage not in self.contested:
                raise Broken(f"8: seq {seq} of lineage {_name(lineage)} is called lost; the boat did not lose it")
        held.lost.update(new)
        held.advance()

    def _take_void(self, lineage: bytes, seqs: range) -> None:
        issued, held = self.issued[lineage], self.held[lineage]
        new = [seq for seq in seqs if seq not in held.frames and seq not in held.lost]
        self.counters["void"] += bool(new)
        for seq in new:
            taken = seq in issued.cut or seq in issued.gone or lineage in self.contested
            if seq in issued.frames and not taken:
                raise Broken(f"8: seq {seq} of lineage {_name(lineage)} is called void; the boat recorded it")
        held.void.update(new)
        held.advance()

    # --- the end ---------------------------------------------------------------------------------

    def check_end(self, lineage: bytes, head: int, journaled: Iterable[int], own: Iterable[int]) -> None:
        """Everything that the boat's journal speaks of has its place in the cloud, once."""
        self.checks += 1
        held = self.held[lineage]
        name = _name(lineage)
        if missing := [seq for seq in journaled if seq not in held.frames]:
            raise Broken(f"seqs {_some(missing)} of lineage {name} are in the journal and not in the cloud's log")
        if unexplained := [seq for seq in own if seq not in held.frames]:
            raise Broken(f"seqs {_some(unexplained)} of lineage {name} are neither in the cloud nor lost nor void")
        if held.cursor != head:
            raise Broken(f"14: the cursor of lineage {name} is {held.cursor}, the head {head}")


def _check_unmixed(seq: int, timeline: int, issued: Issued, held: Held) -> None:
    """B7: of two timelines that use the same seqs the cloud holds one."""
    for other, first in issued.first_of.items():
        start = max(first, issued.first_of.get(timeline, 0))
        if other == timeline or seq < start:
            continue
        mixed = next((known for known, owner in held.frames.items() if owner == other and known >= start), None)
        if mixed is not None:
            raise Broken(f"B7: seqs {mixed} and {seq} come from two journals of one lineage")


def _name(lineage: bytes) -> str:
    return lineage.hex()[:8]


def _some(seqs: list[int]) -> str:
    return f"{min(seqs)}..{max(seqs)} ({len(seqs)})"
