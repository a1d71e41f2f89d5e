"""One channel on one node: its role, the state of its log, and the role that the catalog assigns to it.

Combines the decisions of `core.replication` with blocks, without I/O or a clock. Writes leave as storage orders, and
their results are passed in. The replica stamps offsets itself, ahead of the disk, so records are sent to followers
while they are written here. `Leading` and `Following` decide for it while it has these roles.

What a caller must keep: pass in every change of the channel's record in the catalog, in order; carry effects out in
order and pass the results of storage orders in; call `wake` at the time of a `WakeAt`.

RP1  `held_end` is never above what storage has confirmed, and only it is acknowledged to a leader (invariant 5).
RP2  `log_end` runs ahead of the disk. A block that was refused ends the role in which it was appended: no offset of an
     epoch is ever stamped twice (invariant 2).
RP3  A leader leads only in an epoch in which its node has not led before (R1): the catalog's leader incarnation is its
     own, no record of that epoch is in its log, and it has not led in it since the process began.
RP4  Histories are made equal by epochs, never by the committed end (KIP-101).
RP5  A copy that the catalog counts on is kept: a withdrawn replica, or one paused in memory, keeps its log until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidelog.cluster.produce_order import ProduceOrder
from tidelog.cluster.replication.effects import Effect, ResignLeading, RoleEffect, TurnRole, WithdrawReplica, settles
from tidelog.cluster.replication.following import Following
from tidelog.cluster.replication.history import refuse
from tidelog.cluster.replication.leading import Leading
from tidelog.cluster.replication.orders import (
    AlterLog,
    Appended,
    BlocksRead,
    CloseLog,
    DeleteLog,
    Folded,
    LogReady,
    OpenLog,
)
from tidelog.cluster.replication.state import ReplicaState, Storage, is_within
from tidelog.cluster.replication.surroundings import Surroundings
from tidelog.cluster.replication.trouble import compare_damage, found_damaged, readable, unreadable, yields_for_damage
from tidelog.cluster.replication.witness import ReplicaWitness
from tidelog.core.catalog import ChannelRecord
from tidelog.core.replication.messages import AskLog, Notify, Resign, SyncNack, SyncRequest, SyncResponse, Withdraw
from tidelog.core.replication.metrics import ReplicationMetricsRegistry
from tidelog.core.replication.roles import WITHDRAWAL, Cause, Role, check_transition
from tidelog.errors import LogError


class ReplicaHost(Surroundings, Protocol):
    """The node, which carries effects out."""

    @property
    def metrics(self) -> ReplicationMetricsRegistry: ...

    def carry_out(self, replica: ChannelReplica, effects: Sequence[Effect]) -> None: ...


class ChannelReplica(ReplicaState):
    leading: Leading | None

    def __init__(self, host: ReplicaHost, record: ChannelRecord, now_ms: int) -> None:
        super().__init__(host, record, host.metrics.channel(record.name))
        self._host = host
        self.leading = None
        self.following: Following | None = None
        self.witness = ReplicaWitness(self)
        self._withdrawn_until_ms: int | None = None
        self._withdrawn_epoch = 0
        self._retry_open_ms: int | None = None
        self._led_epoch = 0
        self._elected_ms: int | None = None
        """Since when the catalog wants this node to lead, and it does not yet."""
        self._now_ms = now_ms

    # --- effects ---------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Carry out what the last input brought about: changes of the role here, everything else by the host."""
        others: list[Effect] = []
        for effect in self.out.take():
            if isinstance(effect, (TurnRole, ResignLeading, WithdrawReplica)):
                self._host.carry_out(self, others)
                others = []
                self._change_role(effect)
                self.settle()
            else:
                others.append(effect)
        self._host.carry_out(self, others)

    def _change_role(self, effect: RoleEffect) -> None:
        match effect:
            case TurnRole(role, cause):
                self.turn(role, cause)
            case ResignLeading(reason):
                self.resign(reason)
            case WithdrawReplica(error):
                self.withdraw(error, self._now_ms)

    # --- what the catalog wants ----------------------------------------------------------------------

    @settles
    def update(self, record: ChannelRecord, now_ms: int) -> None:
        """The catalog's record of this channel, new or again; also whenever this node's registration changed."""
        self._now_ms = now_ms
        before, self.record = self.record, record
        self.witness.updated(record)
        if record.config != before.config and self.storage not in (Storage.CLOSED, Storage.FAILED):
            self.out.order(
                AlterLog(channel_id=self.channel_id, generation=self.generation, name=self.name, config=record.config)
            )
        if self.around.node not in record.replicas:
            # Before it is registered a node may be reading the catalog's past, in which it had left and not yet come
            # back: then nothing is deleted (RRE2). What is to go is found by `forget_strays` later.
            self._leave(Cause.PLACEMENT_DESELECTED, delete=self.around.incarnation != 0)
            return
        if record.paused:
            self._leave(Cause.CHANNEL_CLOSE, keep=not record.config.persistent)
            return
        if record.leader_epoch != before.leader_epoch:
            self._elected_ms = None
        if self._withdrawn_until_ms is not None and not self.is_elected:
            self._let_copy_go()
            return
        if self.role is Role.IDLE:
            self._withdrawn_until_ms = None
            self.turn(Role.REPLICA, Cause.CAPABILITY_SELECTED)
            if self.storage is Storage.CLOSED:
                self._open()
        self._take_part(now_ms)

    @property
    def leads(self) -> bool:
        return self.leading is not None

    @property
    def served_epoch(self) -> int:
        """The epoch in which it leads and can be appended to; 0 if none (R2)."""
        is_ready = self.fold is not None and self.storage is Storage.READY
        return self.leading.epoch if self.leading is not None and self.leading.serves and is_ready else 0

    @property
    def is_elected(self) -> bool:
        """Whether the catalog names this node leader, in its present incarnation (R1)."""
        record, incarnation = self.record, self.around.incarnation
        return record.leader == self.around.node and incarnation != 0 and record.leader_incarnation == incarnation

    def _take_part(self, now_ms: int) -> None:
        """Lead, follow or wait, as the catalog's record says."""
        if self.role is Role.IDLE:
            return
        record, leads = self.record, self.is_elected
        if self.leading is not None:
            if leads and self.leading.epoch == record.leader_epoch:
                self.leading.updated(now_ms)
                return
            self._stop_leading()
        if self.storage is not Storage.READY:
            self._watch_storage(now_ms)
            if leads:
                self._await_storage(now_ms)
            return
        if leads:
            self._lead(now_ms)
            return
        following = self.following
        if following is not None and (following.leader, following.epoch) == (record.leader, record.leader_epoch):
            following.registered(now_ms)
            return
        self.following = None
        if self.role is Role.CANDIDATE and record.leader not in (None, self.around.node):
            self.turn(Role.REPLICA, Cause.ELECTION_LOST)
        if record.leader is not None and record.leader != self.around.node:
            self.problem = ""
            self.following = Following(self, leader=record.leader, epoch=record.leader_epoch, now_ms=now_ms)
            self.following.ask(now_ms)

    def _lead(self, now_ms: int) -> None:
        record = self.record
        self.following = None
        if yields_for_damage(self):
            self._led_epoch = record.leader_epoch
            return
        if max(self.epochs.newest, self._led_epoch) >= record.leader_epoch:
            # RP3: records of this epoch, or of a later one, are here or were sent: this node must not add to them.
            self.resign(self.problem or "it has led in this leader epoch already")
            return
        self._led_epoch = record.leader_epoch
        if self.role is Role.REPLICA:
            self.turn(Role.CANDIDATE, Cause.ELECTION_CALLED)
        self.turn(Role.LEADER, Cause.ELECTION_WON)
        self.problem = ""
        self.memory.in_contact(record.leader_epoch)
        self.leading = Leading(self, epoch=record.leader_epoch, now_ms=now_ms)
        self.leading.begin(now_ms)

    def _stop_leading(self) -> None:
        self._end_leading()
        if self.role is Role.LEADER:
            self.turn(Role.REPLICA, Cause.PEER_LEADER_OBSERVED)

    def _end_leading(self) -> None:
        if self.leading is not None:
            self.leading.end()
            self.leading = None

    def _leave(self, cause: Cause, *, delete: bool = False, keep: bool = False) -> None:
        """Give the role up and close the log; `delete` also deletes it, `keep` leaves it open."""
        self._end_leading()
        self.following = None
        self._withdrawn_until_ms = None
        if self.role is not Role.IDLE:
            self.turn(Role.IDLE, cause)
        if keep:
            return
        if self.storage is not Storage.CLOSED or delete:
            order = DeleteLog if delete else CloseLog
            self.out.order(order(channel_id=self.channel_id, generation=self.generation))
        self.forget_log()

    @settles
    def close(self, *, delete: bool) -> None:
        """The channel is gone, or the node stops."""
        self._leave(Cause.CHANNEL_CLOSE, delete=delete)

    # --- roles -----------------------------------------------------------------------------------------

    @settles
    def turn(self, role: Role, cause: Cause) -> None:
        """Change the role, if the table allows it."""
        check_transition(self.name, self.role, role, cause)
        before, self.role = self.role, role
        if role is Role.LEADER:
            self.counts.leader_changes += 1
        if cause is Cause.MISSED_HEARTBEATS:
            self.counts.election_thrash += 1
        self.out.say("role", channel=self.name, was=before.name.lower(), now=role.name.lower(), cause=cause.value)
        self.out.moved()

    @settles
    def resign(self, reason: str) -> None:
        """This node cannot lead the channel: the metadata leader elects another, or this one anew (R10)."""
        self.problem = reason
        self._stop_leading()
        self.following = None
        self._tell_resignation(self._now_ms)

    def _tell_resignation(self, now_ms: int) -> None:
        record = self.record
        self.out.tell_metadata(
            Resign(
                channel_id=self.channel_id,
                leader_epoch=record.leader_epoch,
                incarnation=self.around.incarnation,
                reason=self.problem,
            )
        )
        self.out.wake_at(now_ms + self.around.options.repeat_ms)

    @settles
    def relinquish(self, reason: str, now_ms: int) -> None:
        """A leader steps down: Idle first (seed 001), then a replica again, since the catalog still counts its copy.

        It never leads again in the epoch that it gave up (R1), and reports that until another epoch has begun.
        """
        assert self.leading is not None, "only a leader steps down"
        self._end_leading()
        self.turn(Role.IDLE, Cause.GRACEFUL_RELINQUISH)
        self.problem = reason
        self.update(self.record, now_ms)

    @settles
    def withdraw(self, error: LogError, now_ms: int) -> None:
        """Give the copy up for want of capacity, so that another node may take its place (seed 001)."""
        self.problem = str(error)
        cause = WITHDRAWAL[self.role]
        self._end_leading()
        self.following = None
        self.turn(Role.IDLE, cause)
        self._withdrawn_until_ms = now_ms + self.around.options.withdrawn_retry_ms
        self._withdrawn_epoch = self.record.channel_epoch
        self._tell_withdrawal(now_ms)
        self._let_copy_go()

    def _tell_withdrawal(self, now_ms: int) -> None:
        self.out.tell_metadata(
            Withdraw(
                channel_id=self.channel_id,
                channel_epoch=self.record.channel_epoch,
                incarnation=self.around.incarnation,
                reason=self.problem[:200],
            )
        )
        self.out.wake_at(now_ms + self.around.options.repeat_ms)

    def _let_copy_go(self) -> None:
        """Close the log of a withdrawn replica once it can no longer be elected (RP5)."""
        node, record = self.around.node, self.record
        if record.member(node) or record.eligible_member(node) or self.storage is Storage.CLOSED:
            return
        if record.channel_epoch <= self._withdrawn_epoch and not record.config.persistent:
            return  # what it said before may yet bring it into the ISR; on disk a closed log would still hold it all
        self.out.order(CloseLog(channel_id=self.channel_id, generation=self.generation))
        self.forget_log()

    # --- storage ---------------------------------------------------------------------------------------

    def _open(self) -> None:
        self.generation = self.around.new_generation()
        self.storage = Storage.OPENING
        self._retry_open_ms = None
        self.out.order(
            OpenLog(channel_id=self.channel_id, generation=self.generation, name=self.name, config=self.record.config)
        )

    def retention_floor(self) -> int | None:
        """Retention stays below it; None while that is not known, because the log has not been folded (F3, R12)."""
        if not self.need_fold():
            return None
        assert self.fold is not None
        floor = self.fold.floor_below(self.committed_end)
        if self.fold.cursors:
            floor = min(floor, self._cursor_floor(min(self.fold.cursors.values())))
        if self.leading is not None:
            floor = min(floor, self.leading.slowest_end(self.record.config.skip_threshold_bytes))
        return max(0, floor)

    def _cursor_floor(self, cursor: int) -> int:
        """A named cursor holds retention back within a bound; the log says so before the bound is reached (R12)."""
        bound = self.around.options.cursor_hold_bytes_max
        held_bytes = (self.log_end - cursor) * self.record_bytes
        if held_bytes <= bound:
            if held_bytes > bound * 8 // 10:
                self.out.say("a cursor is near its bound", channel=self.name, cursor=cursor, held_bytes=held_bytes)
            return cursor
        self.out.say("a cursor is past its bound", channel=self.name, cursor=cursor, held_bytes=held_bytes)
        return self.end_of_last(bound)

    @settles
    def apply_retention(self, now_ms: int) -> None:
        """Trim what the settings no longer keep. Then the leader writes a snapshot for the next time: one that is not
        committed yet protects nothing, and written first it would hold retention back for as long as records come."""
        kept = self.record.config.retention
        if self.storage is not Storage.READY or (kept.max_age_ms, kept.max_bytes, kept.max_events) == (None,) * 3:
            return
        floor = self.retention_floor()
        if floor is not None and floor > self.log_start:
            self.sweep(floor)
        if self.leading is not None and self.fold is not None:
            self.leading.snapshot_for_retention(now_ms)

    @settles
    def opened(self, result: LogReady, now_ms: int) -> None:
        """The log was opened, truncated, reset or swept."""
        self._now_ms = now_ms
        if result.error is not None or result.state is None:
            self._storage_failed(result.error, now_ms)
            return
        state = result.state
        if result.swept:
            self.log_start, self.log_bytes = state.log_start, state.bytes
            self.epochs.trim(state.log_start)
            self.out.moved()
            if self.note_damage(state.damaged):
                if self.leading is not None:
                    self.need_fold()  # it may have waited for a repair (FO3)
                if self.following is not None:
                    self.following.held(now_ms)
                found_damaged(self)
            return
        was_opening = self.storage is Storage.OPENING
        self.take_log(state)
        if was_opening:
            committed_end, self.fold_hint = self.witness.opened(self.around.watermark(self.channel_id))
            self.set_committed(min(committed_end, self.held_end))
            self.problem = ""
        self.storage = Storage.READY
        self.witness.answer()
        if not was_opening and self.following is not None:
            self.following.log_changed(now_ms)
        self._take_part(now_ms)

    def _storage_failed(self, error: LogError | None, now_ms: int) -> None:
        """The log cannot be used: close it, resign if this node leads, and try again later."""
        if self.problem != str(error):  # it is tried every second, and said once
            self.problem = str(error)
            self.out.say("channel log failed", channel=self.name, error=self.problem)
        self.out.order(CloseLog(channel_id=self.channel_id, generation=self.generation))
        if self.leading is not None or self.record.leader == self.around.node:
            self.resign(self.problem)
        self.following = None
        self.forget_log()
        self.storage = Storage.FAILED
        self._retry_open_ms = now_ms + 10 * self.around.options.retry_ms
        self.out.wake_at(self._retry_open_ms)

    @settles
    def appended(self, result: Appended, now_ms: int) -> None:
        self._now_ms = now_ms
        if self.storage is not Storage.READY:
            return  # it is being cut anyway; its state comes with that
        if result.error is not None:
            self._append_failed(result.error, result.log_end, now_ms)
            return
        if result.held_end > self.held_end:
            self.held_end = min(result.held_end, self.log_end)
            if self.leading is not None:
                self.leading.held(now_ms)
            elif self.following is not None:
                self.following.held(now_ms)

    def _append_failed(self, error: LogError, log_end: int, now_ms: int) -> None:
        """RP2. Queued appends behind the failed one fail too; cutting at the log's true end settles all of them."""
        self.counts.under_capacity += 1
        self.out.say("append refused", channel=self.name, role=self.role.name.lower(), error=str(error))
        leading, following = self.leading, self.following
        self.truncate(log_end)
        if leading is not None:
            leading.append_failed(error, log_end, now_ms)
        elif following is not None:
            following.append_failed(error)

    @settles
    def folded(self, result: Folded, now_ms: int) -> None:
        self.folding = False
        fold = result.fold
        if result.error is None:
            readable(self, None)
        else:
            unreadable(self, result.error, None)
        if fold is None or self.storage is not Storage.READY:
            return
        if fold.end != self.log_end:
            # Blocks came meanwhile. Those in memory bring it up to date; else it is ordered again.
            missing = self.tail.take(fold.end, bytes_max=1 << 62, end=self.log_end)
            if missing is None or missing[0].offsets.start != fold.end:
                self.out.wake_at(now_ms + self.around.options.retry_ms)
                return
            for block in missing:
                fold.note(block)
        self.fold = fold
        if not all(is_within(lacked, self.damaged) for lacked in fold.lacks):
            self.look_at_log()
        if self.leading is not None:
            self.leading.folded(now_ms)
        elif self.following is not None:
            self.following.folded(now_ms)

    @settles
    def blocks_read(self, result: BlocksRead, now_ms: int) -> None:
        if self.leading is not None:
            self.leading.blocks_read(result, now_ms)

    @settles
    def on_request(self, peer: str, request: SyncRequest, now_ms: int) -> None:
        self._now_ms = now_ms
        if self.leading is None:
            refuse(self, peer, request)
            return
        self.leading.on_request(peer, request, now_ms)

    @settles
    def on_response(self, peer: str, response: SyncResponse, now_ms: int) -> None:
        self._now_ms = now_ms
        if self.following is not None and self.storage is Storage.READY:
            self.following.on_response(peer, response, now_ms)

    @settles
    def on_nack(self, peer: str, nack: SyncNack, now_ms: int) -> None:
        self._now_ms = now_ms
        if self.following is not None and self.storage is Storage.READY:
            self.following.on_nack(peer, nack, now_ms)

    @settles
    def on_ask_log(self, peer: str, question: AskLog) -> None:
        self.witness.on_ask_log(peer, question)

    @settles
    def ask_leader(self, now_ms: int) -> None:
        """Send the request again: its turn has come, or the link to the leader is new."""
        if self.following is not None:
            self.following.ask(now_ms)

    @settles
    def ask_again(self, now_ms: int) -> None:
        """Messages on their way may be lost: a follower asks again, a leader reminds its followers to."""
        if self.following is not None:
            self.following.ask(now_ms)
        elif self.leading is not None:
            reminder = Notify(channel_id=self.channel_id, leader_epoch=self.leading.epoch)
            for peer in self.record.replicas:
                if peer != self.around.node:
                    self.out.send(peer, reminder)

    @settles
    def read_succeeded(self, read: range) -> None:
        readable(self, read)

    @settles
    def read_failed(self, error: LogError, offset: int) -> None:
        unreadable(self, error, offset)

    @settles
    def compare_damage(self, damaged: Sequence[range]) -> bool:
        """Whether storage knows damage that is new here; then its state is asked for."""
        return compare_damage(self, damaged)

    @settles
    def order_fold(self) -> bool:
        """Whether the fold is here; if not, it is ordered."""
        return self.need_fold()

    @settles
    def on_notify(self, peer: str, notify: Notify, now_ms: int) -> None:
        following = self.following
        if following is not None and (peer, notify.leader_epoch) == (following.leader, following.epoch):
            following.ask(now_ms)

    # --- producing and serving ---------------------------------------------------------------------------

    @settles
    def produce(self, order: ProduceOrder, now_ms: int) -> None:
        """Append as the leader; raises what stands against it. The outcome comes through `host.produced`."""
        if self.leading is None:
            raise self.not_leader()
        self.leading.produce(order, now_ms)

    @settles
    def serve(self, now_ms: int) -> None:
        """Answer the followers whose requests stand; not while blocks in memory may have been refused by the disk."""
        if self.leading is not None and self.storage is Storage.READY:
            self.leading.serve(now_ms)

    @property
    def serves(self) -> bool:
        """Whether it may tell readers what is committed (R2)."""
        if self.leading is not None:
            return self.leading.serves
        following = self.following
        return following is not None and following.is_in_contact

    # --- time --------------------------------------------------------------------------------------------

    @settles
    def wake(self, now_ms: int) -> None:
        self._now_ms = now_ms
        if self._withdrawn_until_ms is not None:
            self._wake_withdrawn(self._withdrawn_until_ms, now_ms)
        self._watch_storage(now_ms)
        if self.leading is not None:
            self.leading.wake(now_ms)
            self.settle()  # it may have resigned
        elif self.following is not None:
            self.following.wake(now_ms)
        elif self.role is not Role.IDLE and self.is_elected:
            if self.storage is Storage.READY:
                self._tell_resignation(now_ms)  # elected, and unable: until somebody else is
            else:
                self._await_storage(now_ms)
        if not self.folding and self.fold is None and self.leading is not None:
            self.need_fold()

    def _wake_withdrawn(self, until_ms: int, now_ms: int) -> None:
        if now_ms >= until_ms:
            self._withdrawn_until_ms = None
            self.update(self.record, now_ms)
        elif self.storage is not Storage.CLOSED:
            self._tell_withdrawal(now_ms)
        else:
            self.out.wake_at(until_ms)

    def _await_storage(self, now_ms: int) -> None:
        """Elected before the log is open: resign after three heartbeats, as a silent leader is deposed (R7)."""
        if self._elected_ms is None:
            self._elected_ms = now_ms
        if now_ms - self._elected_ms >= 3 * self.record.config.heartbeat_ms + self.around.storage_patience_ms():
            self.problem = self.problem or "its log is not open yet"
            self._tell_resignation(now_ms)
        else:
            self.out.wake_at(now_ms + self.record.config.heartbeat_ms)

    def _watch_storage(self, now_ms: int) -> None:
        if self._retry_open_ms is None:
            return
        if now_ms >= self._retry_open_ms and self.role is not Role.IDLE:
            self._open()
        elif now_ms < self._retry_open_ms:
            self.out.wake_at(self._retry_open_ms)

    @settles
    def leader_fell_silent(self, now_ms: int) -> None:
        """The leader's node has not been heard for a while: decide whether that is too long for this channel."""
        if self.following is not None:
            self.following.check_silence(now_ms)
