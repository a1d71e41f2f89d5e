"""Reading a replicated channel: from this node's own replica, and without one, from the next node that holds it.

A replica that withdrew, fell behind, or whose node died is skipped without the reader noticing (seed 001: "reads
re-route automatically"). Only committed records are ever given out.

ECR1  A record seen as committed never disappears: a replica with an older epoch, or with less than is known here to be
      committed, is skipped. Only an unclean election ends that, and a tail raises an error then.
ECR2  Records count as gone when the leader reports that, or every replica does.
ECR3  Without a wait the end is the leader's, or a replica's if the leader does not answer: a record that was
      acknowledged before the read is found, whichever node is nearest.
ECR4  Reading is tried for `PATIENCE_MS` while no node can answer, then the reason is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tidelog.blocks.block import Block, iterate_blocks
from tidelog.cluster.status.chain_holders import find_chain_holders
from tidelog.codecs.client_codec import FETCH, decode_fetched, encode_fetch
from tidelog.core.catalog import ChannelRecord
from tidelog.core.client_messages import Fetch, Fetched
from tidelog.errors import (
    ChannelDeleted,
    ChannelPaused,
    Lagged,
    LogError,
    NoReplicaHere,
    OffsetOutOfRange,
    ReplicaBehind,
)
from tidelog.storage.log.writer import steady_clock_ms

if TYPE_CHECKING:
    from tidelog.cluster.node.process import Node

PATIENCE_MS: Final = 5_000
RETRY_MS: Final = 25
ANSWER_MS: Final = 2_000
"""How long another node may take beyond the requested wait."""
_NEXT_HOLDER: Final = frozenset(
    (
        "replica_behind",
        "no_replica_here",
        "unknown_channel",
        "log_closed",
        "log_poisoned",
        "damaged_range",
        "link_closed",
        "link_busy",
        "peer_unreachable",
        "wait_timed_out",
        "too_many_waits",
        "not_leader",
    )
)
"""Error codes that concern one node only."""


class ChainReader:
    """The reader of one channel on one node; shared by everything that reads it there."""

    def __init__(self, node: Node, *, channel: str, channel_id: int) -> None:
        self._node = node
        self._channel = channel
        self._channel_id = channel_id
        self.leader_epoch = 0
        self.known_end = 0
        """The newest committed end in any answer."""
        self.log_start = 0
        self._unclean_epoch = 0
        self.rerouted = 0
        """Answers that came from another node than the nearest replica."""

    def record(self) -> ChannelRecord:
        """The channel in the catalog; raises if it cannot be used at all."""
        record = self._node.channels.catalog.channel(self._channel_id)
        if record is None:
            raise ChannelDeleted(channel_id=self._channel_id)
        if record.paused:
            raise ChannelPaused(channel=record.name)
        return record

    async def fetch(self, offset: int, *, bytes_max: int, wait_ms: int) -> Sequence[Block]:
        """Committed blocks from the one that holds `offset`; none if nothing is committed there after the wait."""
        deadline_ms = steady_clock_ms() + wait_ms + PATIENCE_MS
        while True:
            record = self.record()
            self._note_loss()
            problems: dict[str, LogError] = {}
            ends_here = False
            for node in self._holders():
                left_ms = max(0, min(wait_ms, deadline_ms - PATIENCE_MS - steady_clock_ms()))
                try:
                    fetched = await self._ask(node, offset, bytes_max, left_ms)
                    data = b"".join(fetched.data)
                    self._take(fetched, is_empty=not data)
                except LogError as error:
                    if error.code not in _NEXT_HOLDER and not isinstance(error, OffsetOutOfRange):
                        raise
                    problems[node] = error
                    continue
                if not data and not wait_ms and node != record.leader:
                    ends_here = True  # a replica hears of a commit a moment later than the leader: ask that one too
                    continue
                self.rerouted += bool(problems)
                return [block for block in iterate_blocks(data) if block.end > offset]
            if ends_here or self._is_beyond(offset, record, problems):
                return ()
            self._check_lagged(offset, record, problems)
            if steady_clock_ms() >= deadline_ms:
                raise next(iter(problems.values()), NoReplicaHere(channel=record.name, replicas=record.replicas))
            await asyncio.sleep(RETRY_MS / 1000)

    def _holders(self) -> list[str]:
        """Nodes to ask, nearest first. This node's own replica only while it can answer."""
        core = self._node.core
        holders = find_chain_holders(core, self._channel_id)
        own = core.channels.replicas.replica(self._channel_id)
        if len(holders) > 1 and holders[0] == core.node and (own is None or not own.serves):
            return [*holders[1:], core.node]
        return holders

    async def _ask(self, node: str, offset: int, bytes_max: int, wait_ms: int) -> Fetched:
        fetch = Fetch(
            channel_id=self._channel_id,
            offset=offset,
            bytes_max=bytes_max,
            wait_ms=wait_ms,
            leader_epoch=self.leader_epoch,
        )
        if node == self._node.core.node:
            return await self._node.channels.fetch(fetch)
        body = encode_fetch(fetch)
        answer = await self._node.pool.request(node, FETCH, body, timeout_ms=wait_ms + ANSWER_MS)
        return decode_fetched(answer)

    def unclean_epoch(self) -> int:
        """The epoch of the newest election that may have lost committed records; 0 if there was none."""
        return max((election.leader_epoch for election in self.record().unclean), default=0)

    def _note_loss(self) -> None:
        newest = self.unclean_epoch()
        if newest > self._unclean_epoch:
            self._unclean_epoch, self.known_end = newest, 0

    def _take(self, fetched: Fetched, *, is_empty: bool) -> None:
        """ECR1."""
        if fetched.leader_epoch < self.leader_epoch or (is_empty and fetched.committed_end < self.known_end):
            raise ReplicaBehind(
                channel=self._channel, leader_epoch=fetched.leader_epoch, committed_end=fetched.committed_end
            )
        self.leader_epoch = fetched.leader_epoch
        self.known_end = max(self.known_end, fetched.committed_end)
        self.log_start = fetched.log_start

    def _is_beyond(self, offset: int, record: ChannelRecord, problems: dict[str, LogError]) -> bool:
        """Whether the leader ends before an offset that was never known as committed: the record does not exist yet."""
        told = problems.get(record.leader or "")
        return isinstance(told, ReplicaBehind) and offset > max(self.known_end, told.committed_end)

    def _check_lagged(self, offset: int, record: ChannelRecord, problems: dict[str, LogError]) -> None:
        """ECR2."""
        starts = {
            node: error.log_start
            for node, error in problems.items()
            if isinstance(error, OffsetOutOfRange) and offset < error.log_start
        }
        if starts and (record.leader in starts or len(starts) == len(problems)):
            log_start = starts.get(record.leader or "", min(starts.values()))
            raise Lagged(channel=self._channel, offset=offset, log_start=log_start)
