"""What one replica knows of its channel and its log, shared by the parts that decide for it.

The replica stamps and counts offsets ahead of the disk: `log_end` is what was appended, `held_end` what storage has
confirmed. What changes the log puts its storage order into the outbox. The invariants RP1 and RP2 of
`replication.replica` are about the ends kept here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tidelog.blocks.block import Block
from tidelog.cluster.replication.effects import ReplicaOutbox
from tidelog.cluster.replication.fold import ReplicaFold
from tidelog.cluster.replication.orders import AppendBlocks, FoldLog, LookAtLog, ResetLog, SweepLog, TruncateLog
from tidelog.cluster.replication.surroundings import Surroundings
from tidelog.cluster.replication.tail import BlockTail
from tidelog.core.catalog import ChannelRecord, Keeps
from tidelog.core.replication.memory import ReplicaMemory
from tidelog.core.replication.metrics import ChannelMetrics
from tidelog.core.replication.roles import Role
from tidelog.errors import NotChannelLeader
from tidelog.storage.log.epochs import EpochHistory
from tidelog.storage.store.channel_logs import LogState


class Storage(Enum):
    CLOSED = "closed"
    OPENING = "opening"
    READY = "ready"
    CHANGING = "changing"
    """Being truncated, reset, or looked at after a failure: nothing is appended meanwhile."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Unread:
    """A read that failed: where, for whom, and the problem as it was said."""

    offset: int | None
    """None for a fold."""
    peer: str
    problem: str


def is_within(part: range, ranges: Sequence[range]) -> bool:
    """Whether one of the ranges holds all of this one."""
    return any(one.start <= part.start and part.stop <= one.stop for one in ranges)


class LeaderView(Protocol):
    """What the other parts of a replica see of its `Leading`."""

    epoch: int
    serves: bool


class ReplicaState:
    leading: LeaderView | None = None
    """Set while this replica leads."""

    def __init__(self, around: Surroundings, record: ChannelRecord, counts: ChannelMetrics) -> None:
        self.around = around
        self.out = ReplicaOutbox()
        self.record = record
        self.channel_id = record.channel_id
        self.name = record.name
        self.counts = counts
        self.role = Role.IDLE
        self.storage = Storage.CLOSED
        self.generation = 0
        """The log generation: orders and results of an earlier one no longer count."""
        self.problem = ""
        """Why it does not do what the catalog wants of it."""
        self.unread: Unread | None = None
        """The last read that failed, until one succeeds."""
        # --- the log, as far as this node knows it
        self.log_start = self.log_end = self.held_end = 0
        self.committed_end = 0
        """Invariant: committed_end <= held_end <= log_end."""
        self.log_bytes = 0
        self.damaged: tuple[range, ...] = ()
        self.leader_start = 0
        """Where the log of its leader began, by the last answer."""
        self.epochs = EpochHistory()
        self.memory = ReplicaMemory()
        self.tail = BlockTail(bytes_max=around.options.tail_bytes_max)
        self.fold: ReplicaFold | None = None
        """None until it is needed, because folding reads the log."""
        self.fold_hint: int | None = None
        self.folding = False
        self.goes_on_damaged = False
        """This leader has waited for the repair of damage for long enough: its fold may lack the damaged records."""
        self.yielded = 0
        """How often this node gave up leadership because of the damage that its log has now."""
        self._request_id = around.new_generation() << 32

    # --- queries -------------------------------------------------------------------------------------------

    @property
    def sound_end(self) -> int:
        """Where the first record lies that was lost to damage; beyond every offset if none was (B4, FW7)."""
        return next((part.start for part in self.damaged if part.stop > self.leader_start), 1 << 62)

    @property
    def committed_known(self) -> int:
        """The end of what this replica knows to be committed, in its log; some of it may be lost to damage."""
        return min(self.memory.committed_end, self.log_end)

    @property
    def protected_end(self) -> int:
        """The end of what this replica holds and knows to be committed."""
        return self.readable_end(self.committed_known)

    def readable_end(self, end: int) -> int:
        """`end`, or where the damage begins that reaches up to it. Nothing is left of those records, not even their
        epoch: their placeholder has the newest epoch that storage could still read (B4)."""
        for part in reversed(self.damaged):
            if part.start < end <= part.stop:
                end = part.start
        return end

    def last_epoch(self, end: int) -> int:
        """The epoch of the record before `end`, also if retention has removed it; 0 if this log knows none there."""
        if end > self.log_start:
            return self.epochs.epoch_at(end - 1)
        return self.epochs.newest if self.log_end == self.log_start else 0

    def not_leader(self) -> NotChannelLeader:
        leader = self.record.leader
        if leader == self.around.node:
            leader = None  # elected, and not ready yet
        return NotChannelLeader(channel=self.name, leader=leader, leader_epoch=self.record.leader_epoch)

    def others(self) -> list[str]:
        """The other active nodes that hold what is committed, as far as the catalog knows."""
        members = (*self.record.isr, *self.record.eligible)
        return [
            one.node for one in members if one.node != self.around.node and self.around.active_incarnation(one.node)
        ]

    def end_of_last(self, byte_count: int) -> int:
        """About where the newest `byte_count` bytes of the log begin: records are taken to be of equal size."""
        return self.log_end - byte_count // self.record_bytes

    @property
    def record_bytes(self) -> int:
        """The mean size of a record."""
        return max(1, self.log_bytes // max(1, self.log_end - self.log_start))

    # --- changes -------------------------------------------------------------------------------------------

    def next_request_id(self) -> int:
        """Rises for as long as the process runs, whatever happens to the role or to the log."""
        self._request_id += 1
        return self._request_id

    def append(self, blocks: Sequence[Block]) -> None:
        """Append stamped blocks that continue the log, ahead of the disk (RP2)."""
        for block in blocks:
            assert block.leader.base_offset == self.log_end, "L2: blocks continue each other"
            self.epochs.note(block.leader.leader_epoch, self.log_end)
            self.log_end = block.end
            self.log_bytes += block.size
            self.tail.push(block)
            if self.fold is not None:
                self.fold.note(block)
        self.out.tail_grew()
        self.out.order(AppendBlocks(channel_id=self.channel_id, generation=self.generation, blocks=blocks))

    def truncate(self, offset: int) -> None:
        """Cut what is not the leader's history; nothing is appended until storage has done it."""
        self.storage = Storage.CHANGING
        self.memory.cut(self.around.node, offset)
        self.out.order(TruncateLog(channel_id=self.channel_id, generation=self.generation, offset=offset))

    def reset(self, base_offset: int) -> None:
        """Begin again, empty, at the leader's log start."""
        self.storage = Storage.CHANGING
        self.memory.cut(self.around.node, base_offset)
        self.out.order(ResetLog(channel_id=self.channel_id, generation=self.generation, base_offset=base_offset))

    def sweep(self, floor: int) -> None:
        """Apply retention below `floor`."""
        self.out.order(SweepLog(channel_id=self.channel_id, generation=self.generation, floor=floor))

    def look_at_log(self) -> None:
        """Ask storage for the log's state, because a read found damage."""
        if self.storage is Storage.READY:
            self.out.order(LookAtLog(channel_id=self.channel_id, generation=self.generation))

    def need_fold(self) -> bool:
        """Whether the fold is here; if not, it is ordered."""
        if self.fold is not None:
            return True
        if not self.folding and self.storage is Storage.READY:
            if self.log_end == self.log_start == 0:
                self.fold = ReplicaFold()
                return True
            self.folding = True
            # What a leader's log no longer has cannot be supplied to this one (FW7).
            skip_below = self.log_end if self.goes_on_damaged else self.leader_start
            self.out.order(
                FoldLog(
                    channel_id=self.channel_id,
                    generation=self.generation,
                    hint=self.fold_hint,
                    skip_below=skip_below,
                )
            )
        return False

    def set_committed(self, committed_end: int) -> None:
        if committed_end > self.committed_end:
            self.committed_end = committed_end
            self.out.moved()

    def take_log(self, log: LogState) -> None:
        """Storage has opened, cut or reset the log: this is what it holds now."""
        self.log_start, self.log_end = log.log_start, log.log_end
        # Under a weaker promise than "synced" everything that is there is held (CL1).
        synced = self.record.config.keeps is Keeps.SYNCED
        self.held_end = log.durable_end if synced else log.log_end
        self.log_bytes = log.bytes
        self.note_damage(log.damaged)
        self.epochs = EpochHistory(log.epochs, floor=log.newest_epoch)
        self.tail.clear()
        self.fold = None
        self.folding = False
        self.committed_end = max(min(self.committed_end, self.log_end), self.log_start)
        self.out.moved()

    def note_damage(self, damaged: tuple[range, ...]) -> bool:
        """Whether it differs from what was known."""
        before, self.damaged = self.damaged, damaged
        if not damaged:
            self.yielded = 0
        if self.fold is not None and not all(is_within(lacked, damaged) for lacked in self.fold.lacks):
            self.fold = None  # FO3: they were repaired
            self.need_fold()
        return damaged != before

    def forget_log(self) -> None:
        """The log is closed."""
        self.storage = Storage.CLOSED
        self.generation = self.around.new_generation()
        self.tail.clear()
        self.fold = None
        self.folding = False
