"""The position of a reader, and the new records of an answer.

Nothing here does I/O. The input are answers of any replica, possibly late, repeated or from before a leader change; the
output are blocks with records that the reader has not seen, in order, each once.

PO1  The position, the leader epoch and the committed end never go back.
PO2  Blocks that are given out begin at the position, have no gap, and lie below the committed end of their answer.
PO3  A gap is reported: records that retention removed, that an unclean election lost, or that cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.blocks.block import Block
from tidelog.blocks.header import BlockKind
from tidelog.core.client_messages import Fetched
from tidelog.errors import (
    BadMessage,
    CommittedLost,
    DamagedRange,
    LogError,
    OffsetOutOfRange,
    OffsetTrimmed,
    ReplicaBehind,
)


class ReadPosition:
    """The position of one reader in one channel."""

    def __init__(self, *, channel: str, channel_id: int, offset: int, on_trim: str = "raise") -> None:
        self._channel = channel
        self.channel_id = channel_id
        self._skips = on_trim == "skip"
        self.offset = offset
        """The offset of the next record."""
        self.leader_epoch = 0
        """The newest leader epoch that was seen."""
        self.committed_end = 0
        self.skipped = 0
        """Records that were gone before they could be read."""

    def take(self, fetched: Fetched, blocks: Sequence[Block], *, is_leader: bool) -> list[Block]:
        """Blocks with records from `offset` on; the first may begin before it. Moves the position behind them."""
        if fetched.leader_epoch < self.leader_epoch:
            raise self._behind(fetched)  # PO1
        if fetched.committed_end < self.offset:
            self._fell_back(fetched.leader_epoch, fetched.committed_end, is_leader=is_leader)
        if fetched.log_start > self.offset:
            self._trimmed(fetched.leader_epoch, fetched.log_start, is_leader=is_leader)
        self.leader_epoch = fetched.leader_epoch
        self.committed_end = max(self.committed_end, fetched.committed_end)
        taken: list[Block] = []
        for block in blocks:
            offsets = block.offsets
            if offsets.stop <= self.offset:
                continue  # requested twice, or only records before the position
            problem = self._problem(block, offsets, fetched)
            if problem is not None:
                if taken:
                    break  # good blocks count; the problem comes again with the next answer
                raise problem
            taken.append(block)
            self.offset = offsets.stop
        return taken

    def out_of_range(self, error: OffsetOutOfRange, *, is_leader: bool, leader_epoch: int) -> None:
        """A replica does not hold the position: before its start, or after an end that may be out of date."""
        if error.offset == self.offset < error.log_start:
            self._trimmed(leader_epoch, error.log_start, is_leader=is_leader)
        else:
            raise ReplicaBehind(channel=self._channel, leader_epoch=leader_epoch, committed_end=error.log_end)

    def ends_at(self, leader_epoch: int, committed_end: int) -> None:
        """Take the leader's committed end; raises if it lies before the position."""
        if committed_end < self.offset:
            self._fell_back(leader_epoch, committed_end, is_leader=True)

    def passed(self, damaged: DamagedRange) -> None:
        """No replica can give these records, and the reader goes on after them."""
        if damaged.end > self.offset:
            self.skipped += damaged.end - self.offset
            self.offset = damaged.end

    def elected(self, unclean_epoch: int, fetched: Fetched) -> None:
        """Before the first answer of a newer epoch is taken: check the newest unclean election of the channel."""
        if unclean_epoch > self.leader_epoch > 0:
            raise CommittedLost(
                channel=self._channel,
                offset=self.offset,
                committed_end=fetched.committed_end,
                leader_epoch=unclean_epoch,
            )

    def _problem(self, block: Block, offsets: range, fetched: Fetched) -> LogError | None:
        """Why the block may not be given out (PO2)."""
        if block.leader.channel_id != self.channel_id:
            return BadMessage(problem=f"a block of channel id {block.leader.channel_id} came for {self._channel!r}")
        if offsets.stop > fetched.committed_end:
            return BadMessage(
                problem=f"a block up to {offsets.stop} came with a committed end of {fetched.committed_end}"
            )
        is_missing = block.maker.kind == BlockKind.MISSING
        if is_missing or offsets.start > self.offset:
            end = offsets.stop if is_missing else offsets.start
            return DamagedRange(start=self.offset, end=end, problem="this replica holds no bytes of them")
        return None

    def _trimmed(self, leader_epoch: int, log_start: int, *, is_leader: bool) -> None:
        if not is_leader:
            # Replicas trim independently: another may still hold what this one has removed.
            raise ReplicaBehind(channel=self._channel, leader_epoch=leader_epoch, committed_end=log_start)
        if not self._skips:
            raise OffsetTrimmed(channel=self._channel, offset=self.offset, log_start=log_start)
        self.skipped += log_start - self.offset
        self.offset = log_start

    def _fell_back(self, leader_epoch: int, end: int, *, is_leader: bool) -> None:
        """The other side ends before the position. A follower is behind; a leader of a newer epoch has lost records; at
        the very beginning, the position is wrong."""
        if is_leader and self.leader_epoch == 0:
            raise OffsetOutOfRange(offset=self.offset, log_start=0, log_end=end)
        if is_leader and leader_epoch > self.leader_epoch > 0:
            raise CommittedLost(channel=self._channel, offset=self.offset, committed_end=end, leader_epoch=leader_epoch)
        raise ReplicaBehind(channel=self._channel, leader_epoch=leader_epoch, committed_end=end)

    def _behind(self, fetched: Fetched) -> ReplicaBehind:
        return ReplicaBehind(
            channel=self._channel, leader_epoch=fetched.leader_epoch, committed_end=fetched.committed_end
        )
