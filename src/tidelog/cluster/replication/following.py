"""A follower of one leader in one epoch: it requests records, checks and appends them, and reports what it holds.

A request is sent again when its contents change: more was received (if the leader has still more), more is durable, or
the log was cut. Until then it waits at the leader.

FW1  Only answers of this leader in this epoch count, and only refusals of the latest request.
FW2  Every block is checked before it is appended: checksums, channel, offsets that continue, epochs that do not fall.
FW3  The log is cut only where the leader says that the histories differ, and discarded only if the leader no longer has
     the records that would continue it (R11).
FW4  After the leader has answered in this epoch, silence is measured by the heartbeats of its node; before, by the time
     since the epoch began here. A node that runs and does not lead counts as silent (R6, R7).
FW5  Memory is bounded: while too many received bytes are not durable here, no more are requested.
FW6  Records that this replica holds and knows to be committed are not cut, unless the catalog records a later unclean
     election. The replica stops, logs the conflict for an operator, and requests again after a while. A damaged end of
     the log is not held: a leader whose history differs there has it cut, and sends the records again.
FW7  Damage before the leader's log start is ignored: retention has removed those records at the leader, so no replica
     can supply them and no committed record depends on them.
"""

from __future__ import annotations

from typing import Final

from tidelog.blocks.block import Block, iterate_blocks
from tidelog.cluster.replication.state import ReplicaState
from tidelog.core.catalog import UnderCapacity
from tidelog.core.replication.messages import LeaderSilent, SyncError, SyncNack, SyncRequest, SyncResponse
from tidelog.core.replication.progress import Uncommitted
from tidelog.core.replication.roles import Cause, Role
from tidelog.errors import BadBlock, BlockCorrupt, DiskFull, LogError, MemoryLogFull
from tidelog.units import KIB

UNHELD_BYTES: Final = 64 * KIB
"""At most so many bytes, or four chunks, may wait for the disk when more are requested."""


class Following:
    def __init__(self, replica: ReplicaState, *, leader: str, epoch: int, now_ms: int) -> None:
        self._replica = replica
        self._around = replica.around
        self._out = replica.out
        self.leader = leader
        self.epoch = epoch
        self.is_in_contact = False
        """The leader has answered in this epoch."""
        self.leader_end = replica.log_end
        self._since_ms = now_ms
        self._heard_ms = now_ms
        self._request_id = 0
        self._incarnation = self._channel_epoch = 0
        """The incarnation and the channel epoch of the last request."""
        self._asked_ms = now_ms
        self._retry_ms: int | None = None
        self._committed_end = 0
        """The leader's committed end; readers get the part of it that is durable here."""
        self._reported_ms: int | None = None
        self._bad_blocks = 0
        self._refetch_at_ms: int | None = None
        self._unheld = Uncommitted()
        """Received, and not durable here yet."""
        self._is_queued = False
        """It has sent no request yet: other channels of that node come first (RFR1)."""
        self._evicts = False
        """Retention is making room; no more is requested until it has."""
        self._refuses = False
        """The leader lacks records that are committed here (FW6)."""

    # --- asking ----------------------------------------------------------------------------------------------

    def ask(self, now_ms: int, *, again: bool = True) -> None:
        """Send a request. Without `again`, records that the leader has already sent are still expected."""
        replica = self._replica
        if replica.storage.value != "ready" or self._around.incarnation == 0 or self._evicts:
            return
        if self.is_in_contact and self._unheld.bytes > max(UNHELD_BYTES, 4 * self._around.options.chunk_bytes_max):
            return  # FW5
        if not self.is_in_contact and not self._may_ask(now_ms):
            return
        self._request_id = replica.next_request_id()
        self._incarnation, self._channel_epoch = self._around.incarnation, replica.record.channel_epoch
        self._asked_ms = now_ms
        self._retry_ms = None
        end = replica.log_end
        self._out.send(
            self.leader,
            SyncRequest(
                channel_id=replica.channel_id,
                leader_epoch=self.epoch,
                request_id=self._request_id,
                fetch_from=end,
                last_epoch=replica.last_epoch(end),
                held_end=min(replica.held_end, replica.sound_end),
                # Lost records are not held against the leader (FW6): at the end of the log they name an epoch in which
                # they may not have been written, and every leader would resign for lacking them.
                committed_end=replica.readable_end(replica.committed_end),
                incarnation=self._around.incarnation,
                channel_epoch=replica.record.channel_epoch,
                chunk_bytes_max=self._around.options.chunk_bytes_max,
                again=again,
            ),
        )
        if not self.is_in_contact:
            self._retry_paced(self._around.options.repeat_ms, now_ms)

    def _may_ask(self, now_ms: int) -> bool:
        """Whether it is this channel's turn (RFR1). A leader that was not asked yet is not silent because it did not
        answer."""
        is_turn = self._around.first_requests.may_ask(self.leader, self._replica.channel_id)
        if is_turn and self._is_queued:
            self._is_queued, self._since_ms = False, now_ms
        elif not is_turn and not self._request_id:
            self._is_queued = True
        return is_turn

    def _retry_paced(self, wait_ms: int, now_ms: int) -> None:
        """Retry later than usual while very many channels are without contact (RFR3)."""
        options = self._around.options
        self._retry(self._around.first_requests.paced_ms(wait_ms, options.replica_max_leader_timeout_ms), now_ms)

    def _retry(self, wait_ms: int, now_ms: int) -> None:
        self._retry_ms = now_ms + wait_ms
        self._out.wake_at(self._retry_ms)

    def held(self, now_ms: int) -> None:
        """More is durable here: report it to the leader."""
        self._unheld.settled(self._replica.held_end)
        self._update_committed()
        self.ask(now_ms, again=False)

    def registered(self, now_ms: int) -> None:
        """The catalog's record was read again. If this node registered meanwhile, its leader must hear as what; and who
        wants to join must speak in the channel's present epoch."""
        record, incarnation = self._replica.record, self._around.incarnation
        member = record.member(self._around.node)
        is_in = member is not None and member.incarnation == incarnation
        if self._incarnation != incarnation or (not is_in and self._channel_epoch != record.channel_epoch):
            self.ask(now_ms)
        self._refetch_damaged(now_ms)

    def _refetch_damaged(self, now_ms: int) -> None:
        """Fetch damaged records and all after them again, if they were not repaired for a while and the catalog does
        not count on this copy (B4, RP5)."""
        replica, record, node = self._replica, self._replica.record, self._around.node
        counts = record.member(node) or record.eligible_member(node)
        if replica.sound_end >= replica.log_end or counts or not self.is_in_contact or replica.storage.value != "ready":
            self._refetch_at_ms = None
            return
        if self._refetch_at_ms is None:
            self._refetch_at_ms = now_ms + self._around.options.withdrawn_retry_ms
        if now_ms < self._refetch_at_ms:
            self._out.wake_at(self._refetch_at_ms)
            return
        if self.leader_end < replica.committed_known:
            return  # its leader could not give back what is committed (FW6)
        self._out.say("fetches again", channel=replica.name, had=replica.log_end, from_offset=replica.sound_end)
        replica.truncate(replica.sound_end)

    def log_changed(self, now_ms: int) -> None:
        """Storage has cut or reset the log, or settled it after a refused append."""
        if self._evicts:
            self._evict(now_ms)
        self._unheld.cut(self._replica.log_end)
        self._unheld.settled(self._replica.held_end)
        self.ask(now_ms)

    # --- answers ---------------------------------------------------------------------------------------------

    def on_response(self, peer: str, response: SyncResponse, now_ms: int) -> None:
        replica = self._replica
        if peer != self.leader or response.leader_epoch != self.epoch:
            return  # FW1
        self._in_contact(now_ms)
        if self._refuses:
            self._refuses, replica.problem = False, ""
        self.leader_end = max(self.leader_end, response.log_end)
        self._note_leader_start(response.log_start, now_ms)
        if not response.data or response.first_offset != replica.log_end:
            # (Data that is here already, or before which the log was cut; a leader never stamps an offset twice, RP2.)
            self._note_committed(response.committed_end)
            return
        try:
            blocks = self._checked(response)
        except BadBlock as error:
            self._bad_blocks += 1
            self._out.say("bad blocks received", channel=replica.name, leader=peer, error=str(error))
            self._retry(self._around.options.retry_ms * min(self._bad_blocks, 50), now_ms)
            return
        self._bad_blocks = 0
        replica.append(blocks)
        self._unheld.grew(replica.log_end, response.data_bytes)
        self._note_committed(response.committed_end)
        if replica.log_end < response.log_end:
            self.ask(now_ms, again=False)  # there is more: it need not wait for the disk

    def _note_leader_start(self, log_start: int, now_ms: int) -> None:
        """FW7: what is held may be more than it was, and then the leader waits to hear of it."""
        replica = self._replica
        before = replica.sound_end
        replica.leader_start = log_start
        if replica.sound_end != before:
            self.ask(now_ms, again=False)

    def _checked(self, response: SyncResponse) -> list[Block]:
        """FW2."""
        replica = self._replica
        data = response.data[0] if len(response.data) == 1 else b"".join(response.data)
        blocks: list[Block] = []
        offset, epoch = replica.log_end, replica.epochs.newest
        for block in iterate_blocks(data):
            leader = block.leader
            if leader.channel_id != replica.channel_id or leader.base_offset != offset or not block.counted:
                raise _bad_block(
                    f"a block at {leader.base_offset} of channel {leader.channel_id} where {offset} is due"
                )
            if not epoch <= leader.leader_epoch <= self.epoch or leader.durable_end > offset:
                raise _bad_block(f"a block of epoch {leader.leader_epoch} after one of epoch {epoch}")
            offset, epoch = block.end, leader.leader_epoch
            blocks.append(block)
        if not blocks:
            raise _bad_block("no block in the data")
        return blocks

    def _in_contact(self, now_ms: int) -> None:
        self._heard_ms = now_ms
        self._retry_ms = None
        if not self.is_in_contact:
            self.is_in_contact = True
            self._around.first_requests.in_contact(self._replica.channel_id)
            self._replica.memory.in_contact(self.epoch)
            self._out.moved()
        if self._replica.role is Role.CANDIDATE:
            self._out.turn(Role.REPLICA, Cause.LEADER_HEARD)

    def _note_committed(self, committed_end: int) -> None:
        self._committed_end = max(self._committed_end, committed_end)
        self._replica.memory.committed(committed_end)
        self._update_committed()

    def _update_committed(self) -> None:
        """Readers of this replica see records that are committed and durable here (KIP-392, W13)."""
        self._replica.set_committed(min(self._committed_end, self._replica.held_end))

    # --- refusals --------------------------------------------------------------------------------------------

    def on_nack(self, peer: str, nack: SyncNack, now_ms: int) -> None:
        replica, options = self._replica, self._around.options
        if peer != self.leader or nack.request_id != self._request_id:
            return
        if nack.error is SyncError.NOT_LEADER or nack.leader_epoch != self.epoch:
            # Either that node does not know of its election yet, or this node does not know of the next one.
            if self.is_in_contact:
                self.is_in_contact = False
                self._since_ms = now_ms
            self._around.first_requests.answered(replica.channel_id)
            self._retry_paced(options.retry_ms, now_ms)
            return
        if nack.error is SyncError.CHANNEL_CLOSED:
            self._around.first_requests.answered(replica.channel_id)
            self._retry_paced(options.repeat_ms, now_ms)
            return
        self._in_contact(now_ms)
        match nack.error:
            case SyncError.BACKPRESSURE:
                self._retry(max(1, nack.retry_after_ms), now_ms)
            case SyncError.DIVERGED:
                self._cut(nack, now_ms)
            case SyncError.BAD_RANGE:
                if self._must_keep(nack.log_start, now_ms):
                    return
                replica.counts.skip_ahead += 1
                self._out.say("begins anew", channel=replica.name, had=replica.log_end, at=nack.log_start)
                self._let_committed_go(nack.log_start)
                replica.reset(nack.log_start)

    def _must_keep(self, end: int, now_ms: int) -> bool:
        """FW6: whether cutting at `end` would remove records known to be committed; then nothing is cut."""
        replica, kept_end = self._replica, self._replica.protected_end
        if end >= kept_end:
            return False
        self._refuses = True
        replica.problem = (
            f"{self.leader} leads and lacks records {end} to {kept_end}, which were committed and are held here; "
            f"nothing is cut. To have the log of {self.leader} count: tidelog channel elect {replica.name} "
            f"{self.leader} --unclean; to have this one count: stop {self.leader}, then tidelog channel elect "
            f"{replica.name} {self._around.node} --unclean"
        )
        self._out.say("keeps committed records", channel=replica.name, leader=self.leader, at=end, end=kept_end)
        self._retry(self._around.options.replica_max_lag_ms, now_ms)
        return True

    def _cut(self, nack: SyncNack, now_ms: int) -> None:
        """FW3: cut to the end of the last epoch that both logs have, then request again (KIP-279)."""
        replica = self._replica
        mine = replica.epochs.end_of(nack.epoch, replica.log_end)
        target = replica.log_start
        if mine is not None:
            target = min(mine[1], nack.end) if mine[0] == nack.epoch else mine[1]
        begins_anew = mine is None or target < replica.log_start or target < nack.log_start
        if self._must_keep(nack.log_start if begins_anew else target, now_ms):
            return
        if begins_anew:
            replica.counts.skip_ahead += 1
            self._let_committed_go(nack.log_start)
            replica.reset(nack.log_start)
            return
        self._out.say("truncates", channel=replica.name, had=replica.log_end, to=target, epoch=nack.epoch)
        self._let_committed_go(target)
        replica.truncate(target)

    def _let_committed_go(self, end: int) -> None:
        """Committed records may be cut too after an unclean election, which the catalog records, and where they are
        lost to damage."""
        if end < self._replica.committed_end:
            self._out.say("committed records are cut", channel=self._replica.name, to=end)
            self._replica.committed_end = end

    def append_failed(self, error: LogError) -> None:
        """Under capacity (seed 001): withdraw, or evict the oldest records once storage has settled the log."""
        replica = self._replica
        policy = replica.record.config.on_under_capacity
        if policy is UnderCapacity.WITHDRAW or not _is_want_of_space(error):
            self._out.withdraw(error)
            return
        self._evicts = True

    def folded(self, now_ms: int) -> None:
        if self._evicts:
            self._evict(now_ms)

    def _evict(self, now_ms: int) -> None:
        """Let retention make room, as far as the folds allow (F3), and request the refused records again later."""
        replica = self._replica
        if replica.need_fold():
            assert replica.fold is not None
            self._evicts = False
            replica.sweep(replica.fold.floor_below(replica.committed_end))
        self._retry(self._around.options.retry_ms, now_ms)

    # --- time ------------------------------------------------------------------------------------------------

    def wake(self, now_ms: int) -> None:
        if self._retry_ms is not None and now_ms >= self._retry_ms:
            if not self.is_in_contact:
                self._around.first_requests.answered(self._replica.channel_id)  # no answer came: others go first (RFR2)
            self.log_changed(now_ms)
        elif self._retry_ms is not None:
            self._out.wake_at(self._retry_ms)
        elif now_ms - self._asked_ms >= self._around.options.replica_max_idle_wait_ms:
            self.ask(now_ms)
        self.check_silence(now_ms)
        self._refetch_damaged(now_ms)

    def silence_ms(self, now_ms: int) -> int:
        """How long the leader has been silent (FW4)."""
        if self.is_in_contact:
            return min(now_ms - self._heard_ms, self._around.silence_ms(self.leader, now_ms))
        if self._is_queued:
            return self._around.silence_ms(self.leader, now_ms)
        return now_ms - self._since_ms

    def check_silence(self, now_ms: int) -> None:
        """After three heartbeats of silence, report to the metadata leader until it acts."""
        replica = self._replica
        limit_ms = 3 * replica.record.config.heartbeat_ms
        silent_ms = self.silence_ms(now_ms)
        if silent_ms < limit_ms:
            if not self.is_in_contact and not self._is_queued:  # else `leader_fell_silent` tells
                self._out.wake_at(now_ms + limit_ms - silent_ms)
            elif replica.role is Role.CANDIDATE:
                self._out.turn(Role.REPLICA, Cause.LEADER_HEARD)
            return
        if replica.role is Role.REPLICA:
            self._out.turn(Role.CANDIDATE, Cause.MISSED_HEARTBEATS)
            self._reported_ms = None
        # A report counts for a while (WI2): very many of them are repeated no more often than that needs.
        again_ms = self._around.first_requests.paced_ms(
            replica.record.config.heartbeat_ms, self._around.options.replica_max_leader_timeout_ms // 2
        )
        if self._reported_ms is None or now_ms - self._reported_ms >= again_ms:
            self._reported_ms = now_ms
            self._out.tell_metadata(
                LeaderSilent(
                    channel_id=replica.channel_id,
                    leader=self.leader,
                    leader_epoch=self.epoch,
                    channel_epoch=replica.record.channel_epoch,
                )
            )
        self._out.wake_at(now_ms + again_ms)


def _is_want_of_space(error: LogError) -> bool:
    return isinstance(error, DiskFull | MemoryLogFull)


def _bad_block(problem: str) -> BadBlock:
    return BlockCorrupt(problem=problem)
