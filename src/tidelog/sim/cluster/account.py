"""The account of one channel: every copy of its log, what was committed, who led, and what clients were promised.

Plain facts without checks; `ClusterModel` writes them and holds them against each other.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from tidelog.blocks.block import Block
from tidelog.blocks.header import NO_PRODUCER, BlockKind, Maker
from tidelog.cluster.replication.leading import Leading
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.core.catalog import ChannelRecord


class AccountEntry(NamedTuple):
    """One block: its place, and the head that names its bytes (the body's checksum is in it)."""

    base: int
    end: int
    epoch: int
    head: bytes
    maker: Maker


def entry_of(block: Block) -> AccountEntry:
    offsets = block.offsets
    return AccountEntry(offsets.start, offsets.stop, block.leader.leader_epoch, bytes(block.head), block.maker)


class Copy:
    """One replica's log on one node: everything that was ordered, and how much of it storage has confirmed."""

    __slots__ = (
        "committed_end",
        "damaged",
        "durable_end",
        "entries",
        "held_end",
        "leading",
        "lossy",
        "opened_end",
        "start",
        "unsure",
    )

    def __init__(self) -> None:
        self.entries: list[AccountEntry] = []
        self.start = self.held_end = self.durable_end = 0
        self.committed_end = 0
        """As its replica last said."""
        self.leading: Leading | None = None
        """While it leads."""
        self.lossy = False
        """It lost what its policy lets a crash take, or its disk was tampered with: the catalog must not trust it."""
        self.unsure = False
        """The power went while its log was being cut."""
        self.damaged = False
        self.opened_end = 0
        """Where it ended when it was opened: its last blocks may have rotted, and are not among the entries then."""

    @property
    def end(self) -> int:
        return max(self.entries[-1].end if self.entries else self.start, self.opened_end)

    def cut(self, end: int) -> None:
        self.opened_end = min(self.opened_end, end)
        while self.entries and self.entries[-1].end > end:
            self.entries.pop()
        self.held_end = min(self.held_end, end)
        self.durable_end = min(self.durable_end, end)

    def trim(self, start: int) -> None:
        place = bisect_right(self.entries, start, key=end_of)
        del self.entries[:place]
        self.start = start

    def place(self, offset: int) -> int:
        """The index of the first entry that ends beyond this offset."""
        return bisect_right(self.entries, offset, key=end_of)

    def has_rotted_at(self, entry: AccountEntry) -> bool:
        """Whether there is nothing in the place of this block, though the log goes on behind it."""
        place = self.place(entry.base)
        empty = place >= len(self.entries) or self.entries[place].base >= entry.end
        return self.damaged and empty and self.start <= entry.base and entry.end <= self.end


def end_of(entry: AccountEntry) -> int:
    return entry.end


def is_of_producer(maker: Maker) -> bool:
    return maker.kind == BlockKind.MESSAGES and maker.base_seq > 0 and maker.producer != NO_PRODUCER


class ChannelAccount:
    """One channel's account."""

    def __init__(self, record: ChannelRecord) -> None:
        self.record = record
        self.channel_id = record.channel_id
        self.name = record.name
        self.stamped: dict[tuple[int, int], bytes] = {}
        self.entries: list[AccountEntry] = []
        """Everything that was committed, from 0 on."""
        self.end = 0
        self.copies: dict[str, Copy] = {}
        self.leaders: dict[int, Leading] = {}
        self.leader_of: dict[int, tuple[str | None, int]] = {}
        """Epoch to the leader and its incarnation, as the catalog had it."""
        self.unclean_epoch = 0
        self.settled_epoch = 0
        """Up to this unclean election the account was cut."""
        self.seqs: dict[bytes, int] = {}
        """Producer with its epoch to the last committed seq."""
        self.acks: dict[int, AccountEntry] = {}
        """First offset to what a client was promised."""
        self.snapshots: dict[tuple[int, int], int] = {}
        """Blocks that hold a snapshot of producers and cursors."""
        self.losses = 0
        self.left: set[str] = set()
        """Nodes that were no replicas for a while: what they had may be deleted, then or later."""
        self.enough: dict[int, bool] = {}
        """Channel epoch to whether there were `min_isr` members in sync."""
        self.retained = False
        """Retention was ever allowed."""
        self.note(record)

    def note(self, record: ChannelRecord) -> None:
        self.record = record
        self.enough[record.channel_epoch] = len(record.isr) >= record.config.effective_min_isr
        self.leader_of[record.leader_epoch] = record.leader, record.leader_incarnation
        if record.unclean:
            self.unclean_epoch = record.unclean[-1].leader_epoch
        kept = record.config.retention
        self.retained |= any(limit is not None for limit in (kept.max_age_ms, kept.max_bytes, kept.max_events))

    def leading_at(self, node: str, replica: ChannelReplica) -> Leading | None:
        """Who leads at this node after an event, or did before it and has committed in it: a node may hear in one go
        that members have left the ISR, which lets it commit, and that it was fenced, which deposes it."""
        leading, copy = replica.leading, self.copies.get(node)
        if copy is None:
            return leading
        before, copy.leading = copy.leading, leading
        return before if leading is None and replica.committed_end > copy.committed_end else leading

    def is_void(self, epoch: int) -> bool:
        """Whether what happens in this epoch was given up by an election that may lose records."""
        return epoch < self.unclean_epoch

    @property
    def in_doubt(self) -> bool:
        return self.settled_epoch < self.unclean_epoch

    def at(self, offset: int) -> AccountEntry | None:
        """What was committed at this offset."""
        place = bisect_right(self.entries, offset, key=end_of)
        return self.entries[place] if place < len(self.entries) else None
