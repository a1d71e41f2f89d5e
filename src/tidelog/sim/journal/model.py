"""What a boat's journal must hold: a plain account of every seq, and the checks against it.

The model knows nothing of files. It remembers each frame that got a seq, which of them the journal
called durable, what the cluster acked, what the journal itself reported lost or void, and which frames
the world may have damaged on purpose. A frame that is missing must be explained by one of these. The
numbers JJ1 to JJ4 are those of `tidelog.edge.journal.journal`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from tidelog.blocks.block import Block
from tidelog.blocks.control import LineageOpened, RangeLost, RangeVoid, decode_control
from tidelog.blocks.frames import decode_frames
from tidelog.blocks.header import BlockKind
from tidelog.edge.journal.journal import Journal
from tidelog.errors import DamagedRange
from tidelog.sim.seeds import WorldBroken, WorldViolation

Frame: TypeAlias = tuple[int, int, bytes]
"""Time, CAN id, payload."""

LIMIT_REASON = "the journal reached its limit"


class JournalViolation(WorldViolation):
    """The journal broke a promise."""

    world = "journal"


class JournalBroken(WorldBroken):
    """A check failed; the world adds the seed."""


@dataclass(slots=True)
class LineageModel:
    """The outcome of the seqs of one lineage."""

    issued: dict[int, Frame] = field(default_factory=dict)
    issued_at_us: dict[int, int] = field(default_factory=dict)
    """By the world's own clock, which never jumps; only of frames that are not durable yet."""
    durable: set[int] = field(default_factory=set)
    acked: int = 0
    lost: set[int] = field(default_factory=set)
    forced_out: set[int] = field(default_factory=set)
    """The disk limit's removals by the statistics, in case the record was lost in a power cut on a full disk."""
    void: set[int] = field(default_factory=set)
    damaged: set[int] = field(default_factory=set)
    """The world flipped a bit of their block, or threw their file away."""
    given_up: set[int] = field(default_factory=set)
    """Not durable at the power cut; they may be there all the same."""


@dataclass(slots=True)
class HeldInJournal:
    """What one walk over the journal found."""

    seqs: dict[bytes, set[int]] = field(default_factory=lambda: defaultdict(set))
    places: list[tuple[int, int, int]] = field(default_factory=list)
    """(first offset, end offset, kind) of each block."""


class JournalModel:
    def __init__(self) -> None:
        self.lineages: dict[bytes, LineageModel] = defaultdict(LineageModel)
        self.counters: Counter[str] = Counter()
        self.checks = 0
        self.may_trim_acked = False
        """Retention is on, or the disk was short: acked frames may go."""
        self.may_force_out = False
        """The journal has a disk limit, or the disk was full: even frames that are not acked may be removed, if that is
        declared."""

    # --- what happens ----------------------------------------------------------------------------

    def issue(self, lineage: bytes, first_seq: int, frames: Iterable[Frame], true_us: int) -> None:
        known = self.lineages[lineage]
        for seq, frame in enumerate(frames, start=first_seq):
            if seq in known.issued:
                raise JournalBroken(f"JJ1: seq {seq} was issued twice in lineage {lineage.hex()[:8]}")
            if seq in known.void or seq in known.lost:
                raise JournalBroken(
                    f"JJ1: seq {seq} was declared void or lost and is issued in lineage {lineage.hex()[:8]}"
                )
            known.issued[seq] = frame
            known.issued_at_us[seq] = true_us

    def note_durable(self, journal: Journal) -> None:
        """The journal promises that everything up to its durable head would survive a power cut."""
        known = self.lineages[journal.lineage]
        if not known.issued_at_us:
            return
        now_durable = {seq for seq in known.issued_at_us if seq <= journal.durable_head}
        known.durable |= now_durable
        for seq in now_durable:
            del known.issued_at_us[seq]

    def close_lineage(self, lineage: bytes) -> None:
        """The journal has forked, after it wrote all that it had of the old lineage."""
        known = self.lineages[lineage]
        known.durable |= set(known.issued_at_us)
        known.issued_at_us.clear()

    def note_forced_lost(self, journal: Journal) -> None:
        """The statistics name no lineage, so they count for every lineage that has such seqs."""
        for part in journal.statistics().forced_lost:
            for known in self.lineages.values():
                known.forced_out.update(part)

    def oldest_waiting_us(self) -> int | None:
        """When the oldest frame that is in memory only was recorded."""
        return min((at for known in self.lineages.values() for at in known.issued_at_us.values()), default=None)

    def power_cut(self) -> None:
        for known in self.lineages.values():
            known.given_up |= set(known.issued_at_us)
            known.issued_at_us.clear()

    def damage(self, block: Block) -> None:
        if block.maker.kind == BlockKind.FRAMES:
            self.lineages[block.maker.producer].damaged.update(block.maker.seqs)

    # --- what must hold --------------------------------------------------------------------------

    def check(self, journal: Journal, *, everything_flushed: bool) -> HeldInJournal:
        """Walk over the whole journal; every frame is there once, or its absence is explained."""
        self.checks += 1
        held = self._walk(journal)
        for lineage, known in self.lineages.items():
            self._check_lineage(lineage, known, held.seqs[lineage])
        if everything_flushed:
            self._check_cover(journal, held.seqs[journal.lineage])
        return held

    def _walk(self, journal: Journal) -> HeldInJournal:
        held = HeldInJournal()
        damaged = [*journal.sealed.damaged(), *journal.fresh.damaged()]
        expected = journal.log_start
        for block in journal.blocks(skip_damaged=True):
            # Reading may have found more damage.
            if block.offsets.start != expected:
                damaged = [*journal.sealed.damaged(), *journal.fresh.damaged()]
                _check_gap(range(expected, block.offsets.start), damaged)
            expected = block.offsets.stop
            held.places.append((block.offsets.start, block.offsets.stop, int(block.maker.kind)))
            if block.maker.kind == BlockKind.FRAMES:
                self._check_frames(block, held.seqs[block.maker.producer])
            elif block.maker.kind == BlockKind.CONTROL:
                self._take_control(block)
        if expected != journal.log_end:
            _check_gap(range(expected, journal.log_end), [*journal.sealed.damaged(), *journal.fresh.damaged()])
        return held

    def _check_frames(self, block: Block, held: set[int]) -> None:
        known = self.lineages[block.maker.producer]
        for seq, frame in enumerate(decode_frames(block.maker, block.raw_body()).rows(), start=block.maker.base_seq):
            if seq in held:
                raise JournalBroken(f"seq {seq} of lineage {block.maker.producer.hex()[:8]} is there twice")
            if known.issued.get(seq) != frame:
                raise JournalBroken(f"seq {seq} reads {frame}, recorded was {known.issued.get(seq)}")
            held.add(seq)

    def _take_control(self, block: Block) -> None:
        for record in decode_control(block.maker, block.raw_body()):
            if isinstance(record, RangeLost):
                if record.reason == LIMIT_REASON and not self.may_force_out:
                    raise JournalBroken(
                        f"JJ3: seqs [{record.start}, {record.end}) were forced out without a disk limit"
                    )
                self.lineages[bytes.fromhex(record.lineage)].lost.update(range(record.start, record.end))
            elif isinstance(record, RangeVoid):
                self.lineages[bytes.fromhex(record.lineage)].void.update(range(record.start, record.end))
            elif isinstance(record, LineageOpened):
                self.lineages[bytes.fromhex(record.lineage)]

    def _check_lineage(self, lineage: bytes, known: LineageModel, held: set[int]) -> None:
        name = lineage.hex()[:8]
        missing = known.durable - held - known.damaged
        if voided := (known.durable & known.void) - known.damaged:
            raise JournalBroken(f"durable seqs {_some(voided)} of lineage {name} were declared void")
        not_acked = {seq for seq in missing if seq > known.acked} - known.lost - known.forced_out
        if not_acked:
            raise JournalBroken(
                f"durable seqs {_some(not_acked)} of lineage {name} are gone, not acked and not reported"
            )
        if missing and not self.may_trim_acked:
            raise JournalBroken(
                f"acked seqs {_some(missing)} of lineage {name} are gone, though nothing limits the journal"
            )
        # Trimming goes from the front: an acked frame may be missing only where all before it are.
        oldest = min(held & known.durable, default=None)
        if oldest is not None and (inside := {seq for seq in missing - known.lost - known.forced_out if seq > oldest}):
            raise JournalBroken(f"seqs {_some(inside)} of lineage {name} are missing in the middle")

    def _check_cover(self, journal: Journal, held: set[int]) -> None:
        """Data, lost, void and trimmed seqs together are [1, head] of the running lineage."""
        known = self.lineages[journal.lineage]
        explained = held | known.lost | known.forced_out | known.void | known.damaged | set(range(1, known.acked + 1))
        if rest := set(range(1, journal.head + 1)) - explained:
            raise JournalBroken(f"seqs {_some(rest)} up to the head {journal.head} are neither held nor lost nor void")

    def check_numbering(self, journal: Journal) -> None:
        """After opening: the head is above all that was ever issued, the durable head at the newest that was kept."""
        known = self.lineages[journal.lineage]
        newest_issued = max(known.issued, default=0)
        newest_durable = max(known.durable - known.damaged, default=0)
        if journal.head < newest_issued:
            raise JournalBroken(f"JJ1: the head is {journal.head} after opening, seq {newest_issued} was issued before")
        if not newest_durable <= journal.durable_head <= max(newest_issued, newest_durable):
            raise JournalBroken(
                f"the durable head is {journal.durable_head} after opening; "
                f"{newest_durable} was durable, {newest_issued} issued"
            )

    def check_reading(self, journal: Journal, held: HeldInJournal) -> None:
        """`read` from offset to offset finds the same blocks as `blocks`."""
        offset, places = journal.log_start, []
        while offset < journal.log_end:
            try:
                found = journal.read(offset)
            except DamagedRange as damage:
                offset = damage.end
                continue
            if not found or found[0].offsets.start != offset:
                raise JournalBroken(f"read({offset}) found {found[0].offsets if found else 'nothing'}")
            places += [(block.offsets.start, block.offsets.stop, int(block.maker.kind)) for block in found]
            offset = found[-1].offsets.stop
        if places != held.places:
            raise JournalBroken("read and blocks disagree about what the journal holds")


def _check_gap(gap: range, damaged: list[range]) -> None:
    if gap.stop < gap.start:
        raise JournalBroken(f"a block begins at {gap.stop}, inside the one before it, which ends at {gap.start}")
    position = gap.start
    for part in sorted(damaged, key=lambda part: part.start):
        if part.start <= position < part.stop:
            position = part.stop
    if position < gap.stop:
        raise JournalBroken(f"offsets [{position}, {gap.stop}) are neither held nor known as damaged")


def _some(seqs: set[int]) -> str:
    listed = sorted(seqs)
    return f"{listed[0]}..{listed[-1]} ({len(listed)})"
