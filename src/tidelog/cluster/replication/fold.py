"""State that a replica derives from its log: producers, named cursors, and the places of snapshots of them.

A fold over the log (F1): control records and block headers say it all, so a new leader knows exactly what the old one
knew. Every replica folds as blocks pass; after a truncation, or when a log is opened, it is folded anew from the last
snapshot. Lineages of boats have a fold of their own (`core.uplink.fold`); here is only where its snapshots are, because
retention must not pass them (F3).

FO1  A (producer, seq) is taken once: a block that was taken before is answered with where it is (invariant 6).
FO2  The log start never passes `floor`: what the folds need is above it.
FO3  A fold that lacks damaged records may not know the last batch of a producer, and would take it twice. It is used
     only where nobody can supply those records, and is made anew when they are repaired.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.blocks.block import Block
from tidelog.blocks.control import ChannelSnapshot, ControlRecord, CursorMoved, FoldSnapshot, decode_control
from tidelog.blocks.header import NO_PRODUCER, BlockKind, Maker
from tidelog.errors import OutOfSequence, ProducerFenced

BATCHES_KEPT: Final = 64
"""Blocks remembered for each producer: a repeated one among them is answered with its offset."""
PRODUCERS_KEPT: Final = 4_096
"""Producers remembered for each channel; the one that was silent longest is dropped first."""
CURSORS_MAX: Final = 256
_ID_BYTES: Final = 8


@dataclass(slots=True)
class ProducerState:
    epoch: int
    last_seq: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    """(first seq, end seq, first offset) of the last blocks, oldest first."""
    used_ms: int = 0
    """Append time of its newest block by the leader's clock. It comes from the log, so it is known after any restart
    (`producer_expiry`)."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The block is in the log already."""

    first_offset: int
    end_offset: int


class ReplicaFold:
    def __init__(self) -> None:
        self.end = 0
        """The fold is that of the log up to here."""
        self.producers: OrderedDict[bytes, ProducerState] = OrderedDict()
        self.cursors: dict[str, int] = {}
        self.snapshot_at: int | None = None
        """The offset of the newest `ChannelSnapshot`."""
        self.lineages_at: int | None = None
        """The offset of the newest snapshot of the lineages' fold."""
        self.has_lineages = False
        self.bytes_since_snapshot = 0
        self.epoch = 0
        """The leader epoch of the newest record."""
        self.data_end = 0
        """No record but the channel's own (control records) is known to lie here or after. Records before the fold's
        beginning count as others'."""
        self.first_data_us = self.latest_data_us = 0
        """When the first block of others' records that was folded was appended, and the newest one; 0: none was."""
        self.lacks: list[range] = []
        """Records that were damaged when this was folded. Once they are repaired, the log has to be folded anew (FO3).
        """

    # --- folding -----------------------------------------------------------------------------------

    def note(self, block: Block) -> None:
        """A block that was appended next."""
        maker, offsets = block.maker, block.offsets
        if not self.epoch:
            self.data_end = offsets.start
        if maker.kind != BlockKind.CONTROL:
            self.data_end = offsets.stop
            self.latest_data_us = block.leader.append_time_us
            self.first_data_us = self.first_data_us or self.latest_data_us
        self.end = offsets.stop
        self.epoch = block.leader.leader_epoch
        self.bytes_since_snapshot += block.size
        if maker.kind == BlockKind.CONTROL:
            for record in decode_control(maker, block.raw_body()):
                self._note_control(record, offsets.start, block.leader.append_time_us // 1000)
        elif maker.base_seq and maker.producer != NO_PRODUCER:
            if maker.kind == BlockKind.MESSAGES:
                self._note_producer(maker, offsets.start, block.leader.append_time_us // 1000)
            else:
                self.has_lineages = True

    def _note_control(self, record: ControlRecord, offset: int, at_ms: int) -> None:
        match record:
            case CursorMoved():
                if record.offset < 0:
                    self.cursors.pop(record.name, None)
                elif record.name in self.cursors or len(self.cursors) < CURSORS_MAX:
                    self.cursors[record.name] = record.offset
            case ChannelSnapshot():
                self._restore(record.state, at_ms)
                self.snapshot_at = offset
                self.bytes_since_snapshot = 0
            case FoldSnapshot():
                self.has_lineages = True
                self.lineages_at = offset
            case _:
                pass

    def _note_producer(self, maker: Maker, offset: int, at_ms: int) -> None:
        producer, epoch = maker.producer[:_ID_BYTES], int.from_bytes(maker.producer[_ID_BYTES:], "little")
        state = self.producers.get(producer)
        if state is None or epoch > state.epoch:
            state = self.producers[producer] = ProducerState(epoch=epoch, last_seq=0)
            if len(self.producers) > PRODUCERS_KEPT:
                self.producers.popitem(last=False)
        self.producers.move_to_end(producer)
        seqs = maker.seqs
        state.last_seq = seqs.stop - 1
        state.used_ms = max(state.used_ms, at_ms)
        state.batches.append((seqs.start, seqs.stop, offset))

    # --- asking ------------------------------------------------------------------------------------

    def check(self, maker: Maker, channel: str) -> Repeated | None:
        """Whether this block may be appended next: raises `OutOfSequence` or `ProducerFenced` if not (FO1)."""
        if not maker.base_seq or maker.producer == NO_PRODUCER or maker.kind != BlockKind.MESSAGES:
            return None
        producer, epoch = maker.producer[:_ID_BYTES], int.from_bytes(maker.producer[_ID_BYTES:], "little")
        state = self.producers.get(producer)
        if state is not None and epoch < state.epoch:
            raise ProducerFenced(channel=channel, epoch=epoch, newest=state.epoch)
        # A new epoch of a producer begins at 1 again: its records are told apart by the epoch.
        expected = 1 if state is None or epoch > state.epoch else state.last_seq + 1
        if maker.base_seq == expected:
            return None
        if state is not None and maker.base_seq < expected:
            for first, end, offset in state.batches:
                if first == maker.base_seq and end == maker.seqs.stop:
                    return Repeated(first_offset=offset, end_offset=offset + end - first)
        raise OutOfSequence(channel=channel, expected=expected, got=maker.base_seq)

    @property
    def floor(self) -> int | None:
        """Below it nothing is needed by the folds; None means that everything may go (FO2)."""
        floors = []
        if self.producers or self.cursors:
            floors.append(-1 if self.snapshot_at is None else self.snapshot_at)
        if self.has_lineages:
            floors.append(-1 if self.lineages_at is None else self.lineages_at)
        return min(floors, default=None)

    def floor_below(self, committed_end: int) -> int:
        """How far retention may go: a snapshot that is not committed yet may vanish again, and protects nothing."""
        floor = self.floor
        if floor is None:
            return committed_end
        return floor if 0 <= floor < committed_end else 0

    @property
    def needs_snapshot(self) -> bool:
        return bool(self.producers or self.cursors)

    # --- as a record -------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        producers = {
            producer.hex(): [state.epoch, state.last_seq, [list(batch) for batch in state.batches]]
            for producer, state in self.producers.items()
        }
        used_ms = {producer.hex(): state.used_ms for producer, state in self.producers.items()}
        return {"producers": producers, "producers_used_ms": used_ms, "cursors": dict(self.cursors)}

    def used_ms(self, producer_id: int) -> int | None:
        """When a producer last wrote, or a time that is certainly not before that; None if it never did."""
        state = self.producers.get(producer_id.to_bytes(_ID_BYTES, "little"))
        if state is not None:
            return state.used_ms
        if len(self.producers) < PRODUCERS_KEPT:
            return None
        return next(iter(self.producers.values())).used_ms  # it was silent for longer than all that are kept

    def _restore(self, state: dict[str, Any], at_ms: int) -> None:
        """Snapshots of older versions do not say when producers wrote: not after the snapshot, `at_ms`."""
        self.producers.clear()
        used_ms = state.get("producers_used_ms", {})
        for producer, (epoch, last_seq, batches) in state.get("producers", {}).items():
            restored = ProducerState(epoch=int(epoch), last_seq=int(last_seq))
            restored.used_ms = int(used_ms.get(producer, at_ms))
            restored.batches.extend((int(first), int(end), int(offset)) for first, end, offset in batches)
            self.producers[bytes.fromhex(producer)] = restored
        self.cursors = {str(name): int(offset) for name, offset in state.get("cursors", {}).items()}
