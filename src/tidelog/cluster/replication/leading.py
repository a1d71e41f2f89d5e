"""The leader of a channel in one epoch: it stamps records, sends them to followers, and decides the committed end.

RLE1  A record is acknowledged as committed only after every counted replica holds it durably (PG1). No committed end is
     sent before the epoch's own first record is committed (R2); an empty log needs no such record.
RLE2  One change of the ISR is proposed at a time, against the channel epoch it was decided on. A joining replica counts
     from the proposal until the channel epoch has risen above that one: then the outcome is known (R3).
RLE3  A request whose history differs from this log is answered with the place to cut at, and counts for nothing else.
RLE4  Messages of an earlier process count for nothing, and are not answered over the link of the next one: its disk
     may hold other records. A member of the ISR that holds less than the committed end leaves the ISR at once and is
     not eligible. A leader that lacks records which a follower knows to be committed, and that has committed nothing
     itself, resigns.
RLE5  Followers at the end of the log are served from memory. For a follower that is behind, blocks are read from disk
     within the catch-up budget; that delays no other follower.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from typing import Any

from tidelog.blocks.block import Block, MadeBlock, buffers_to_send
from tidelog.blocks.control import ChannelSnapshot, ControlRecord, EpochStarted, encode_control
from tidelog.cluster.produce_order import ProduceOrder
from tidelog.cluster.replication.history import history_problem, lacks_committed, refuse, short_member
from tidelog.cluster.replication.orders import BlocksRead, ReadBlocks
from tidelog.cluster.replication.state import ReplicaState
from tidelog.cluster.replication.trouble import await_repair, readable, unreadable
from tidelog.core.catalog import ExpandIsr, RaiseChannelEpoch, ShrinkIsr, ShrinkReason
from tidelog.core.client_messages import ANY_OFFSET, AckPolicy
from tidelog.core.replication.messages import Notify, SyncError, SyncNack, SyncRequest, SyncResponse
from tidelog.core.replication.progress import Lags, ReplicaProgress, Uncommitted, committed_end
from tidelog.errors import (
    ChannelReadonly,
    LeadershipLost,
    LogError,
    NotChannelLeader,
    NotEnoughReplicas,
    OffsetConflict,
    TooManyInFlight,
)
from tidelog.units import KIB


class Leading:
    def __init__(self, replica: ReplicaState, *, epoch: int, now_ms: int) -> None:
        self._replica = replica
        self._around = replica.around
        self._out = replica.out
        self.epoch = epoch
        self._progress: dict[str, ReplicaProgress] = {}
        self._members = set(replica.record.isr_nodes)
        self._lags = Lags(replica.log_end, now_ms)
        self._uncommitted = Uncommitted()
        self._since_ms = now_ms
        self._started_end: int | None = None
        """Where the epoch's first record ends; None before it was appended."""
        self.serves = False
        self._acks: deque[tuple[int, int, Any]] = deque()
        """(end, first offset, token) of what waits to be committed, by end."""
        self._own_acks: deque[tuple[int, int, Any]] = deque()
        """... of what waits to be durable here."""
        self._pending_epoch: int | None = None
        """The channel epoch against which a change is proposed (RLE2)."""
        self._pending_since_ms = 0
        self._pending_sent_ms = 0
        self._joining: set[str] = set()
        self._notice_at_ms: int | None = None
        self._own_stuck_ms: int | None = None
        self._is_over = False

    # --- its beginning and its end -----------------------------------------------------------------------

    def begin(self, now_ms: int) -> None:
        replica = self._replica
        self._follow_replicas(now_ms)
        if replica.log_end == 0:
            # Nothing was ever written, so nothing is committed: its first record can wait for the first writer's.
            self.serves = True
        else:
            self._append_control([EpochStarted(epoch=self.epoch, node=self._around.node)], now_ms)
            self._started_end = replica.log_end
        replica.goes_on_damaged = False
        replica.need_fold()
        self._advance(now_ms)
        self._out.wake_at(now_ms + self._around.options.repeat_ms)

    def end(self) -> None:
        """This epoch is over for this node: waiting producers are told that the outcome is unknown."""
        self._is_over = True
        lost = LeadershipLost(channel=self._replica.name, leader_epoch=self.epoch)
        for waiting in (self._acks, self._own_acks):
            for _, _, token in waiting:
                self._out.produced(token, 0, lost)
            waiting.clear()

    def _follow_replicas(self, now_ms: int) -> None:
        others = [node for node in self._replica.record.replicas if node != self._around.node]
        self._progress = {node: self._progress.get(node) or ReplicaProgress(now_ms) for node in others}

    def updated(self, now_ms: int) -> None:
        """The catalog's record changed, and this node still leads in this epoch."""
        replica = self._replica
        self._follow_replicas(now_ms)
        members = set(replica.record.isr_nodes)
        for node, progress in self._progress.items():
            left = node in self._members - members and progress.channel_epoch < replica.record.channel_epoch
            if progress.is_known and (left or progress.incarnation < (self._around.active_incarnation(node) or 0)):
                # Sent before the node knew that it had left the ISR, so it may have deleted its copy since; or sent by
                # an earlier process, whose disk may have lost records (RLE4).
                progress.forget(now_ms)
        self._members = members
        if self._pending_epoch is not None and replica.record.channel_epoch > self._pending_epoch:
            self._pending_epoch = None
            self._joining.clear()
        self._advance(now_ms)
        for node, progress in self._progress.items():
            self._consider_expansion(node, progress, now_ms)
        self._out.serve_soon()

    # --- appending -----------------------------------------------------------------------------------------

    def produce(self, order: ProduceOrder, now_ms: int) -> None:
        replica, record = self._replica, self._replica.record
        if replica.storage.value != "ready":
            raise NotChannelLeader(channel=replica.name, leader=None, leader_epoch=self.epoch)
        if record.readonly and not order.is_control:
            raise ChannelReadonly(channel=replica.name)
        min_isr = record.config.effective_min_isr
        if len(record.isr) < min_isr:
            raise NotEnoughReplicas(channel=replica.name, isr=len(record.isr), min_isr=min_isr)
        waiting_bytes, bytes_max = self._uncommitted.bytes, self._around.options.uncommitted_bytes_max
        if waiting_bytes > bytes_max:
            raise TooManyInFlight(waiting_bytes=waiting_bytes, bytes_max=bytes_max)
        if not replica.need_fold():
            raise NotChannelLeader(channel=replica.name, leader=None, leader_epoch=self.epoch)
        assert replica.fold is not None
        repeated = replica.fold.check(order.made.maker, replica.name)
        if repeated is not None:
            self._await(order, repeated.first_offset, repeated.end_offset, in_order=False)
            return
        if self._started_end is None:
            self._append_control([EpochStarted(epoch=self.epoch, node=self._around.node)], now_ms)
            self._started_end = replica.log_end
        if order.expected_offset not in (ANY_OFFSET, replica.log_end):
            raise OffsetConflict(channel=replica.name, expected=order.expected_offset, actual=replica.log_end)
        block = self._stamp(order.made, order.path, order.windows)
        if not block.counted:
            self._out.produced(order.token, replica.log_end, None)
            return
        self._append(block, now_ms)
        self._await(order, block.leader.base_offset, replica.log_end, in_order=True)

    def _stamp(self, made: MadeBlock, path: int = 0, windows: Sequence[range] = ()) -> Block:
        replica = self._replica
        return made.stamp(
            base_offset=replica.log_end,
            channel_id=replica.channel_id,
            leader_epoch=self.epoch,
            append_time_us=self._around.wall_us(),
            durable_end=replica.held_end,
            path=path,
            windows=windows,
        )

    def _append(self, block: Block, now_ms: int) -> None:
        replica = self._replica
        before = replica.log_end
        replica.append((block,))
        self._lags.grew(before, replica.log_end, now_ms)
        self._uncommitted.grew(replica.log_end, block.size)
        if self._own_stuck_ms is None:
            self._own_stuck_ms = now_ms
        self._out.serve_soon()
        self._out.wake_at(now_ms + self._around.options.repeat_ms)

    def _append_control(self, records: list[ControlRecord], now_ms: int) -> None:
        self._append(self._stamp(encode_control(records, time_us=self._around.wall_us())), now_ms)

    def _await(self, order: ProduceOrder, first: int, end: int, *, in_order: bool) -> None:
        replica = self._replica
        if order.ack is AckPolicy.NONE:
            self._out.produced(order.token, first, None)
            return
        reached = replica.committed_end if order.ack is AckPolicy.ALL else replica.held_end
        if end <= reached:
            self._out.produced(order.token, first, None)
            return
        waiting = self._acks if order.ack is AckPolicy.ALL else self._own_acks
        if in_order or not waiting or waiting[-1][0] <= end:
            waiting.append((end, first, order.token))
        else:
            insort(waiting, (end, first, order.token), key=lambda one: one[0])

    def append_failed(self, error: LogError, log_end: int, now_ms: int) -> None:
        """Storage refused blocks. If none was sent, they are dropped; otherwise this epoch is over (RP2)."""
        replica = self._replica
        sent_end = max((progress.sent_end for progress in self._progress.values()), default=0)
        others = [node for node in replica.record.isr_nodes if node != self._around.node]
        if sent_end > log_end or others:
            self._out.resign(f"an append was refused: {error}"[:200])
            return
        for waiting in (self._acks, self._own_acks):
            while waiting and waiting[-1][0] > log_end:
                _, _, token = waiting.pop()
                self._out.produced(token, 0, error)
        if self._started_end is not None and self._started_end > log_end:
            self._started_end = None
        self._uncommitted.cut(log_end)
        self._own_stuck_ms = None
        self._out.wake_at(now_ms + self._around.options.repeat_ms)

    # --- what is committed ---------------------------------------------------------------------------------

    def held(self, now_ms: int) -> None:
        """This node's own log is durable further."""
        held_end = self._replica.held_end
        self._own_stuck_ms = None if held_end >= self._replica.log_end else now_ms
        while self._own_acks and self._own_acks[0][0] <= held_end:
            _, first, token = self._own_acks.popleft()
            self._out.produced(token, first, None)
        self._advance(now_ms)

    def _advance(self, now_ms: int) -> None:
        """The one place where the committed end moves (RLE1)."""
        replica, record = self._replica, self._replica.record
        current, held, min_isr = replica.committed_end, replica.held_end, record.config.effective_min_isr
        if held <= current:
            return
        counted = [self._progress[member.node] for member in record.isr if member.node != self._around.node]
        counted += [self._progress[node] for node in self._joining]
        end = committed_end(current=current, own_end=held, counted=counted, isr_count=len(record.isr), min_isr=min_isr)
        if end <= current:
            return
        if not self.serves:
            if self._started_end is None or end < self._started_end:
                return  # R2: records of earlier epochs count once this epoch's first one does
            self.serves = True
        replica.set_committed(end)
        replica.memory.committed(end)
        self._lags.forget_before(end)
        self._uncommitted.settled(end)
        acks, produced = self._acks, self._out.produced
        while acks and acks[0][0] <= end:
            _, first, token = acks.popleft()
            produced(token, first, None)
        if self._progress:
            self._notice_soon(now_ms)
        self._snapshot_if_due(now_ms)

    def _notice_soon(self, now_ms: int) -> None:
        """Send the committed end with the next records, or after `commit_notice_ms` if none come."""
        if self._notice_at_ms is None:
            self._notice_at_ms = now_ms + self._around.options.commit_notice_ms
            self._out.wake_at(self._notice_at_ms)

    def _snapshot_if_due(self, now_ms: int) -> None:
        fold = self._replica.fold
        if (
            fold is not None
            and fold.needs_snapshot
            and fold.bytes_since_snapshot >= self._around.options.snapshot_bytes
        ):
            self.snapshot(now_ms)

    def snapshot(self, now_ms: int) -> None:
        """Append a record of producers and cursors, so that retention may remove the records before it (F3)."""
        fold = self._replica.fold
        if fold is not None and self._replica.storage.value == "ready":
            self._append_control([ChannelSnapshot(state=fold.state())], now_ms)

    def snapshot_for_retention(self, now_ms: int) -> None:
        """Retention waits for a snapshot: write one, unless only a few records came since the last."""
        fold, kept = self._replica.fold, self._replica.record.config.retention
        assert fold is not None
        enough = 256 * KIB if kept.max_bytes is None else max(4 * KIB, kept.max_bytes // 8)
        enough = min(enough, self._around.options.snapshot_bytes)
        if fold.needs_snapshot and fold.bytes_since_snapshot >= enough and self.serves:
            self.snapshot(now_ms)

    def folded(self, now_ms: int) -> None:
        self._out.moved()

    # --- followers -----------------------------------------------------------------------------------------

    def link_up(self, peer: str, now_ms: int) -> None:
        """A new link to a follower, perhaps to its next process: it has to ask before it hears anything (RLE4)."""
        progress = self._progress.get(peer)
        if progress is not None and progress.is_known:
            progress.forget(now_ms)

    def on_request(self, peer: str, request: SyncRequest, now_ms: int) -> None:
        replica = self._replica
        progress = self._progress.get(peer)
        if request.leader_epoch != self.epoch or progress is None:
            refuse(replica, peer, request)
            return
        if progress.is_known and request.incarnation == progress.incarnation:
            if request.request_id <= progress.request_id:
                return  # overtaken by a newer one
        elif request.incarnation < max(progress.incarnation, self._around.active_incarnation(peer) or 0):
            return  # of a process that is gone (R3)
        nack = history_problem(replica, self.epoch, request)
        if nack is not None:
            progress.is_known = progress.stands = False  # RLE3
            self._out.send(peer, nack)
            self._out.wake_at(now_ms + self._around.options.repeat_ms)
            if not self.serves and (lacks := lacks_committed(replica, self.epoch, peer, request, nack)):
                self._out.resign(lacks)  # RLE4
            return
        first = not progress.is_known or request.incarnation != progress.incarnation
        progress.is_known = True
        progress.incarnation = request.incarnation
        progress.request_id, progress.channel_epoch = request.request_id, request.channel_epoch
        progress.held_end = min(request.held_end, request.fetch_from)
        progress.committed_told = -1 if first else max(progress.committed_told, request.committed_end)
        progress.seen_ms = progress.notified_ms = now_ms
        replica.memory.held(peer, progress.held_end)
        may_shrink = first or now_ms - progress.shrunk_ms >= self._around.options.repeat_ms
        if may_shrink and self._pending_epoch is None and (shrunk := short_member(replica, peer, request)):
            progress.shrunk_ms = now_ms
            self._out.propose(shrunk)  # RLE4
        if first or request.again or request.fetch_from >= progress.fetch_from:
            progress.fetch_from = request.fetch_from
            progress.sent_end = max(progress.sent_end, request.fetch_from)
            progress.stands = True
        self._advance(now_ms)
        self._consider_expansion(peer, progress, now_ms)
        if progress.stands and progress.fetch_from < replica.log_end:
            self._out.serve_soon()
        elif first or request.again:
            self._tell(peer, progress)  # the last answer was lost, or the follower checks that the leader answers
        elif progress.committed_told < replica.committed_end and progress.held_end >= replica.committed_end:
            self._notice_soon(now_ms)

    def serve(self, now_ms: int) -> None:
        """Send new records to every follower with a standing request."""
        replica = self._replica
        options = self._around.options
        for peer, progress in self._progress.items():
            if not progress.stands or progress.reading or progress.fetch_from >= replica.log_end:
                continue
            if now_ms < progress.wait_until_ms:
                continue
            blocks = replica.tail.take(progress.fetch_from, bytes_max=options.chunk_bytes_max, end=replica.log_end)
            if blocks is None or blocks[0].leader.base_offset != progress.fetch_from:
                progress.reading = True
                self._out.order(
                    ReadBlocks(
                        channel_id=replica.channel_id,
                        generation=replica.generation,
                        peer=peer,
                        request_id=progress.request_id,
                        offset=progress.fetch_from,
                        bytes_max=options.chunk_bytes_max,
                        end=replica.log_end,
                    )
                )
                continue
            self._send_blocks(peer, progress, blocks, now_ms)

    def _send_blocks(self, peer: str, progress: ReplicaProgress, blocks: Sequence[Block], now_ms: int) -> None:
        replica = self._replica
        size = sum(block.size for block in blocks)
        if not self._is_live(peer):
            wait_ms = self._around.catch_up_wait_ms(replica.record, peer, size, now_ms)
            if wait_ms:
                progress.wait_until_ms = now_ms + wait_ms
                progress.stands = False
                self._out.send(
                    peer,
                    SyncNack(
                        channel_id=replica.channel_id,
                        leader_epoch=self.epoch,
                        request_id=progress.request_id,
                        error=SyncError.BACKPRESSURE,
                        retry_after_ms=wait_ms,
                    ),
                )
                return
        data = buffers_to_send(blocks, size)
        self._out.send(
            peer,
            SyncResponse(
                channel_id=replica.channel_id,
                leader_epoch=self.epoch,
                request_id=progress.request_id,
                committed_end=replica.committed_end if self.serves else 0,
                log_start=replica.log_start,
                log_end=replica.log_end,
                first_offset=progress.fetch_from,
                data=data,
            ),
        )
        replica.counts.sync_bytes += size
        progress.stands = False
        progress.fetch_from = blocks[-1].end
        progress.sent_end = max(progress.sent_end, progress.fetch_from)
        progress.notified_ms = now_ms
        if self.serves:
            progress.committed_told = replica.committed_end

    def _is_live(self, peer: str) -> bool:
        """Replicas needed for the commit bypass the catch-up budget: members, joining replicas, below min_isr all."""
        record = self._replica.record
        is_below = len(record.isr) < record.config.effective_min_isr
        return is_below or record.member(peer) is not None or peer in self._joining

    def blocks_read(self, result: BlocksRead, now_ms: int) -> None:
        progress = self._progress.get(result.peer)
        if progress is None:
            return
        progress.reading = False
        blocks = result.blocks
        if result.error is not None or not blocks:
            if result.error is not None and result.offset >= self._replica.log_start:
                unreadable(self._replica, result.error, result.offset, result.peer)
            progress.wait_until_ms = now_ms + self._around.options.retry_ms
            self._out.wake_at(progress.wait_until_ms)
            return
        readable(self._replica, range(blocks[0].leader.base_offset, blocks[-1].end), result.peer)
        stands = progress.stands and progress.request_id >= result.request_id
        if not stands or progress.fetch_from != blocks[0].leader.base_offset or not self._are_ours(blocks):
            self._out.serve_soon()
            return
        self._send_blocks(result.peer, progress, blocks, now_ms)

    def _are_ours(self, blocks: Sequence[Block]) -> bool:
        """Whether these blocks are still in the log: it may have been truncated while they were read (RP4)."""
        replica = self._replica
        if replica.storage.value != "ready" or blocks[-1].offsets.stop > replica.log_end:
            return False
        return all(replica.epochs.epoch_at(one.leader.base_offset) == one.leader.leader_epoch for one in blocks)

    def _tell(self, peer: str, progress: ReplicaProgress) -> None:
        """Send the committed end, without records (MS3)."""
        replica = self._replica
        told = replica.committed_end if self.serves else 0
        progress.committed_told = max(progress.committed_told, told)
        self._out.send(
            peer,
            SyncResponse(
                channel_id=replica.channel_id,
                leader_epoch=self.epoch,
                request_id=progress.request_id,
                committed_end=told,
                log_start=replica.log_start,
                log_end=replica.log_end,
                first_offset=replica.log_end,
            ),
        )

    # --- the ISR ---------------------------------------------------------------------------------------------

    def _consider_expansion(self, node: str, progress: ReplicaProgress, now_ms: int) -> None:
        """Propose a follower that has caught up as a member of the ISR; it counts from now on (RLE2)."""
        replica, record = self._replica, self._replica.record
        if self._pending_epoch is not None or not progress.is_known:
            return  # (a leader that serves nothing yet lets others join too, or below min_isr it would wait for ever)
        member = record.member(node)
        if member is not None and member.incarnation == progress.incarnation:
            return
        if progress.channel_epoch != record.channel_epoch:
            return  # sent in an earlier channel epoch: the node may have deleted its copy since
        if self._started_end is None and not self.serves:
            return  # the committed end of earlier epochs is not known yet, so neither is who has caught up
        started = self._started_end or 0
        if progress.held_end < max(replica.committed_end, started):
            return
        if self._around.active_incarnation(node) != progress.incarnation:
            return
        self._joining.add(node)
        self._propose(now_ms)

    def _propose(self, now_ms: int) -> None:
        self._pending_epoch = self._replica.record.channel_epoch
        self._pending_since_ms = now_ms
        self._pending_sent_ms = 0
        self._repeat_proposal(now_ms)

    def _repeat_proposal(self, now_ms: int) -> None:
        """Propose the pending change again; if it stays undecided for long, raise the channel epoch instead."""
        replica, options = self._replica, self._around.options
        assert self._pending_epoch is not None
        self._pending_sent_ms = now_ms
        self._out.wake_at(now_ms + options.repeat_ms)
        late = now_ms - self._pending_since_ms >= 4 * options.repeat_ms
        for node in self._joining:
            incarnation = self._progress[node].incarnation if node in self._progress else 0
            if late or self._around.active_incarnation(node) != incarnation:
                break
            self._out.propose(
                ExpandIsr(
                    channel_id=replica.channel_id,
                    expected_channel_epoch=self._pending_epoch,
                    member=node,
                    incarnation=incarnation,
                )
            )
            return
        self._out.propose(RaiseChannelEpoch(channel_id=replica.channel_id, expected_channel_epoch=self._pending_epoch))

    def _shrink_if_lagging(self, now_ms: int) -> None:
        """Propose to remove members from the ISR that have been behind for too long."""
        replica, record, options = self._replica, self._replica.record, self._around.options
        if self._pending_epoch is not None:
            return
        lagging = [
            node
            for node in record.isr_nodes
            if node != self._around.node and now_ms - self._behind_since_ms(node, now_ms) > options.replica_max_lag_ms
        ]
        if lagging:
            self._out.say("isr shrinks", channel=replica.name, lagging=",".join(lagging))
            self._out.propose(
                ShrinkIsr(
                    channel_id=replica.channel_id,
                    expected_channel_epoch=record.channel_epoch,
                    members=tuple(lagging),
                    reason=ShrinkReason.LAGGING,
                )
            )

    def _behind_since_ms(self, node: str, now_ms: int) -> int:
        progress = self._progress.get(node)
        if progress is None or not progress.is_known:
            return self._since_ms if progress is None else max(self._since_ms, progress.since_ms)
        since_ms = self._lags.behind_since_ms(progress.held_end)
        return now_ms if since_ms is None else max(since_ms, self._since_ms)

    # --- time ------------------------------------------------------------------------------------------------

    def wake(self, now_ms: int) -> None:
        replica, options = self._replica, self._around.options
        if self._notice_at_ms is not None and now_ms >= self._notice_at_ms:
            self._notice_at_ms = None
            for peer, progress in self._progress.items():
                if progress.is_known and progress.committed_told < replica.committed_end:
                    self._tell(peer, progress)
        if self._pending_epoch is not None and now_ms - self._pending_sent_ms >= options.repeat_ms:
            self._repeat_proposal(now_ms)
        self._shrink_if_lagging(now_ms)
        if self._own_stuck_ms is not None and now_ms - self._own_stuck_ms > options.replica_max_lag_ms:
            self._out.resign("its own disk has not answered for too long")
            return
        if not self.serves and self._started_end is None and replica.storage.value == "ready":
            # The epoch's first record was refused; readers wait for it.
            self._append_control([EpochStarted(epoch=self.epoch, node=self._around.node)], now_ms)
            self._started_end = replica.log_end
        if replica.fold is None and not replica.goes_on_damaged and replica.damaged:
            await_repair(replica, self._since_ms, now_ms)
        busy = self._wake_followers(now_ms)
        if busy or self._pending_epoch is not None or replica.held_end < replica.log_end:
            self._out.wake_at(now_ms + options.repeat_ms // 2)
        if self._notice_at_ms is not None:
            self._out.wake_at(self._notice_at_ms)

    def _wake_followers(self, now_ms: int) -> bool:
        """Remind followers that should have sent a request. Returns whether any follower is behind."""
        replica, options = self._replica, self._around.options
        busy = False
        for peer, progress in self._progress.items():
            if progress.is_known and progress.held_end >= replica.log_end:
                continue
            if self._around.active_incarnation(peer) is None:
                continue
            busy = True
            if progress.stands and progress.is_known and progress.fetch_from < replica.log_end:
                self._out.serve_soon()
            elif now_ms - progress.notified_ms >= options.repeat_ms and now_ms >= progress.wait_until_ms:
                progress.notified_ms = now_ms
                self._out.send(peer, Notify(channel_id=replica.channel_id, leader_epoch=self.epoch))
        return busy

    def lag_records(self) -> int:
        """How many records the slowest follower is behind."""
        return max((self._replica.log_end - progress.held_end for progress in self._progress.values()), default=0)

    def heard_ms(self) -> dict[str, int]:
        """The time of the last request of each follower."""
        return {peer: progress.seen_ms for peer, progress in self._progress.items()}

    def slowest_end(self, behind_bytes_max: int) -> int:
        """The offset that retention must not pass while followers are behind, within the bound in bytes (R11)."""
        ends = [progress.held_end for progress in self._progress.values() if progress.is_known]
        return max(min([self._replica.committed_end, *ends]), self._replica.end_of_last(behind_bytes_max))
