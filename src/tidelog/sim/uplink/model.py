"""The invariants of boats and their cloud: a plain account of every frame, and the checks against it.

The model knows nothing of sessions or streams. It remembers which content each boat's bus gave a seq, which seqs the
boat lost by a power cut or a disk limit, and the durable content of the cloud's log, block by block. The numbers are
those of design.md, section 10.

A *timeline* is one history of a journal: a backup that is put back, or a cloned card, starts another one
in the same lineage. Two timelines may give one seq two contents; the cloud may hold one of them only.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from tidelog.blocks.block import Block
from tidelog.blocks.control import FoldSnapshot, RangeLost, RangeVoid, decode_control
from tidelog.blocks.decode import decode_block_frames
from tidelog.blocks.frames import FrameForm
from tidelog.blocks.header import BlockKind
from tidelog.core.uplink.fold import ChannelFold
from tidelog.edge.journal.declared import Declared
from tidelog.sim.seeds import WorldBroken, WorldViolation

Frame: TypeAlias = tuple[int, int, bytes]
"""Time, CAN id, payload."""


class UplinkViolation(WorldViolation):
    """The uplink broke a promise."""

    world = "uplink"


class UplinkBroken(WorldBroken):
    """A check failed; the world adds the seed."""


@dataclass(slots=True)
class HeldInCloud:
    """The durable content of the cloud's log for one lineage."""

    frames: dict[int, int] = field(default_factory=dict)
    """Seq to the timeline it came from."""
    newest_of: dict[int, int] = field(default_factory=dict)
    """The newest seq of each timeline in `frames`."""
    lost: set[int] = field(default_factory=set)
    void: set[int] = field(default_factory=set)
    cursor: int = 0

    def advance(self) -> None:
        cursor = self.cursor + 1
        while cursor in self.frames or cursor in self.lost or cursor in self.void:
            cursor += 1
        self.cursor = cursor - 1


@dataclass(slots=True)
class IssuedFrames:
    """The bus's content for the seqs of one lineage."""

    contents: dict[int, dict[int, Frame]] = field(default_factory=lambda: defaultdict(dict))
    """Timeline to seq to content."""
    gone: set[int] = field(default_factory=set)
    """Forced out by a disk limit, or gone with a disk: these may be lost."""
    cut: set[int] = field(default_factory=set)
    """In memory only when the power went: these may be void."""
    declared: set[int] = field(default_factory=set)
    """Declared lost or void by a machine before its backup was restored. The cloud may commit that later, when the seqs
    have been issued again: true for the frames that are gone, whatever the new ones are. The cloud knows the lineage
    from beyond the backup then, so the new frames get a lineage of their own (B7) and are checked there."""
    first_of: dict[int, int] = field(default_factory=dict)
    """The first seq of each timeline."""

    def was_issued(self, seq: int) -> bool:
        return any(seq in content for content in self.contents.values())


class UplinkModel:
    """One boat (with its clones) and its channel."""

    honest = True
    refusals: Container[str] = ()
    """Codes that this boat may be refused with, besides those that any boat may get."""

    def __init__(self, counters: Counter[str]) -> None:
        self.counters = counters
        self.checks = 0
        self.issued: dict[bytes, IssuedFrames] = defaultdict(IssuedFrames)
        self.held: dict[bytes, HeldInCloud] = defaultdict(HeldInCloud)
        self.seen_cursor: dict[tuple[int, bytes], dict[str, int]] = defaultdict(dict)
        """The positions that a boat was sent, by timeline and lineage, and by kind of message."""
        self.contested: set[bytes] = set()
        """Lineages that two running boats have claimed: frames that one lost the other may have."""
        self.touched: set[bytes] = set()
        """Lineages with new records in the cloud's log since the last `check_fold`."""
        self.verified_end = 0
        """The cloud's log below this offset is committed and accounted for."""
        self._written: dict[int, tuple[int, int, int]] = {}
        """Every committed block by its offset."""

    # --- the boat --------------------------------------------------------------------------------

    def issue(self, lineage: bytes, seq: int, frame: Frame, timeline: int) -> None:
        known = self.issued[lineage]
        content = known.contents[timeline]
        if seq in content:
            raise UplinkBroken(f"9: seq {seq} of lineage {_name(lineage)} was issued twice")
        if not content:
            known.first_of[timeline] = seq
        content[seq] = frame
        if known.gone or known.cut:
            known.gone.discard(seq)
            known.cut.discard(seq)

    def take_back(self, lineage: bytes, seqs: range, timeline: int) -> None:
        """The journal refused these after all."""
        for seq in seqs:
            del self.issued[lineage].contents[timeline][seq]

    def backup_put_back(self, lineage: bytes, declared: Declared) -> None:
        """A journal that declared this to the cloud is replaced by an older copy of itself."""
        for seqs in (*declared.lost, *declared.void):
            self.issued[lineage].declared.update(seqs)

    def contents(self, lineage: bytes, seqs: Iterable[int], timeline: int) -> set[Frame]:
        issued = self.issued[lineage].contents
        return {issued[timeline][seq] for seq in seqs if seq in issued[timeline]}

    def held_contents(self) -> set[Frame]:
        """Every frame that the cloud holds, of whatever lineage."""
        return {
            self.issued[lineage].contents[timeline][seq]
            for lineage, held in self.held.items()
            for seq, timeline in held.frames.items()
        }

    def check_ack(self, lineage: bytes, cursor: int, timeline: int, stream: str) -> None:
        """A cursor arrived at a boat: durable in the cloud, and never below an older one of its stream.

        Live and Backfill may overtake each other; a Handshake comes after everything.
        """
        self.checks += 1
        durable = self.held[lineage].cursor
        if cursor > durable:
            raise UplinkBroken(f"9: the boat was told {cursor}, lineage {_name(lineage)} is durable up to {durable}")
        seen = self.seen_cursor[timeline, lineage]
        newest = max(seen.values(), default=0) if stream == "Welcome" else seen.get(stream, 0)
        if cursor < newest:
            raise UplinkBroken(f"9: the cursor of lineage {_name(lineage)} went back from {newest} to {cursor}")
        seen[stream] = cursor

    # --- the cloud -------------------------------------------------------------------------------

    def take_committed(self, blocks: list[Block], durable_end: int) -> None:
        """These blocks of the cloud's log are durable from now on."""
        for block in blocks:
            if block.offsets.start != self.verified_end:
                raise UplinkBroken(
                    f"a block was committed at {block.offsets.start}, the log ended at {self.verified_end}"
                )
            self._take(block)
        if self.verified_end != durable_end:
            raise UplinkBroken(f"the cloud's log is durable up to {durable_end} and was given {self.verified_end}")

    def read_log(self, blocks: list[Block], *, log_start: int, durable_end: int) -> None:
        """The log was read from its disk, such as after a crash: all that was ever committed must be there, unchanged.

        Appends that became durable without an answer count from now on.
        """
        position = log_start
        for block in blocks:
            if block.offsets.start != position:
                raise UplinkBroken(f"the cloud's log has nothing at {position}, then a block at {block.offsets.start}")
            position = block.offsets.stop
            if block.offsets.start >= self.verified_end:
                self._take(block)
            elif self._written.get(block.offsets.start) != _print(block):
                raise UplinkBroken(
                    f"the block at {block.offsets.start} of the cloud's log is not what was committed there"
                )
        if position != durable_end or durable_end < self.verified_end:
            told = f"durable up to {durable_end}, committed up to {self.verified_end}"
            raise UplinkBroken(f"9: the cloud's log is readable up to {position}, {told}")

    def _take(self, block: Block) -> None:
        self.checks += 1
        if block.maker.kind == BlockKind.CONTROL:
            self._take_control(block)
        else:
            self._take_frames(block)
        self._written[block.offsets.start] = _print(block)
        self.verified_end = block.offsets.stop

    def check_fold(self, fold: ChannelFold) -> None:
        """The committed fold and this plain account agree (8), wherever the log has moved on."""
        self.checks += 1
        for lineage in sorted(self.touched):
            held, known = self.held[lineage], fold.lineages.get(lineage)
            if known:
                known.check()
            cursor = known.cursor if known else 0
            if cursor != held.cursor:
                raise UplinkBroken(f"8: the cursor of {lineage.hex()[:8]} is {cursor}, the log says {held.cursor}")
            if known and known.held.count() != len(held.frames):
                raise UplinkBroken(f"8: the fold holds {known.held.count()} frames, the log {len(held.frames)}")
        self.touched.clear()

    def _take_frames(self, block: Block) -> None:
        lineage, base = block.maker.producer, block.maker.base_seq
        issued, held = self.issued[lineage], self.held[lineage]
        rows = frame_rows(block)
        self.touched.add(lineage)
        self.counters["window"] += bool(block.windows)
        for part in block.counted_ranges():
            seqs = range(base + part.start, base + part.stop)
            if not held.frames.keys().isdisjoint(seqs):
                seq = next(seq for seq in seqs if seq in held.frames)
                raise UplinkBroken(f"6: seq {seq} of lineage {_name(lineage)} is counted twice in the cloud's log")
            self._take_run(lineage, issued, held, seqs, rows[part.start : part.stop])
        held.advance()

    def _take_run(
        self, lineage: bytes, issued: IssuedFrames, held: HeldInCloud, seqs: range, rows: list[Frame]
    ) -> None:
        """Find the timeline that gave these seqs this content; almost always it is one for all of them."""
        owners = (number for number, known in issued.contents.items() if [known.get(seq) for seq in seqs] == rows)
        timeline = next(owners, None)
        if timeline is None:
            if len(seqs) == 1:
                raise UplinkBroken(f"6: seq {seqs.start} of lineage {_name(lineage)} is not what any bus gave it")
            for seq, row in zip(seqs, rows, strict=True):
                self._take_run(lineage, issued, held, range(seq, seq + 1), [row])
            return
        held.frames.update(dict.fromkeys(seqs, timeline))
        held.newest_of[timeline] = max(held.newest_of.get(timeline, 0), seqs[-1])
        if len(issued.first_of) > 1:
            _check_unmixed(seqs, timeline, issued, held)
        if held.lost or held.void:
            held.lost.difference_update(seqs)
            held.void.difference_update(seqs)

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
        self.touched.add(lineage)
        new = [seq for seq in seqs if seq not in held.frames and seq not in held.void]
        self.counters["lost"] += bool(new)
        for seq in new:
            taken = seq in issued.gone or seq in issued.declared or lineage in self.contested
            if not taken:
                raise UplinkBroken(f"8: seq {seq} of lineage {_name(lineage)} is called lost; the boat did not lose it")
        held.lost.update(new)
        held.advance()

    def _take_void(self, lineage: bytes, seqs: range) -> None:
        issued, held = self.issued[lineage], self.held[lineage]
        self.touched.add(lineage)
        new = [seq for seq in seqs if seq not in held.frames and seq not in held.lost]
        self.counters["void"] += bool(new)
        for seq in new:
            taken = seq in issued.cut or seq in issued.gone or seq in issued.declared or lineage in self.contested
            if not taken and issued.was_issued(seq):
                raise UplinkBroken(f"8: seq {seq} of lineage {_name(lineage)} is called void; the boat recorded it")
        held.void.update(new)
        held.advance()

    # --- the end ---------------------------------------------------------------------------------

    def check_end(self, lineage: bytes, head: int, journaled: Iterable[int], own: Iterable[int]) -> None:
        """Every seq of the boat's journal has its place in the cloud, once."""
        self.checks += 1
        held = self.held[lineage]
        name = _name(lineage)
        # A file that retention removed may come back with a backup, after the cloud was told that it is gone.
        settled = held.frames.keys() | (held.lost & self.issued[lineage].gone)
        if missing := set(journaled) - settled:
            raise UplinkBroken(f"seqs {_some(missing)} of lineage {name} are in the journal and not in the cloud's log")
        if unexplained := set(own) - settled:
            raise UplinkBroken(
                f"seqs {_some(unexplained)} of lineage {name} are neither in the cloud nor lost nor void"
            )
        if held.cursor != head:
            raise UplinkBroken(f"14: the cursor of lineage {name} is {held.cursor}, the head {head}")


def _print(block: Block) -> tuple[int, int, int]:
    """What tells a block from any other: its size and both its checksums, which were compared with its bytes."""
    return block.size, block.leader.header_checksum, block.maker.body_checksum


def frame_rows(block: Block) -> list[Frame]:
    """The frames of a block. Plain bodies are read here by hand: a second opinion on the decoder, and a fast one."""
    maker = block.maker
    if maker.kind != BlockKind.FRAMES or maker.form != FrameForm.PLAIN:
        return list(decode_block_frames(block).rows())
    raw = block.raw_body()
    count, first_us = maker.record_count, maker.time_min_us
    numbers = struct.unpack_from(f"<{3 * count + 1}I", raw)
    payload = bytes(raw[12 * count + 4 :])
    payloads = [payload[start:stop] for start, stop in pairwise(numbers[2 * count :])]
    times_us = [first_us + distance for distance in numbers[:count]]
    return list(zip(times_us, numbers[count : 2 * count], payloads, strict=True))


def _check_unmixed(seqs: range, timeline: int, issued: IssuedFrames, held: HeldInCloud) -> None:
    """B7: of two timelines that use the same seqs the cloud holds one."""
    for other, first in issued.first_of.items():
        start = max(first, issued.first_of.get(timeline, 0))
        if other == timeline or seqs[-1] < start:
            continue
        if held.newest_of.get(other, 0) >= start:
            mixed = held.newest_of[other]
            raise UplinkBroken(f"B7: seqs {mixed} and {seqs[-1]} come from two journals of one lineage")


def _name(lineage: bytes) -> str:
    return lineage.hex()[:8]


def _some(seqs: set[int]) -> str:
    return f"{min(seqs)}..{max(seqs)} ({len(seqs)})"
