"""All replicas of a node: their inputs, the effects that leave with the next poll, and when each is looked at again.

No I/O and no clock. There is no task per channel: a channel that has nothing to do is an entry in a table, and its
leader is judged with all others that the same node leads (R7).

What a caller must keep: tell it of every change of the catalog that touches channels or nodes; pass in messages with
the node that the link has proved; `wake` when `wake_at_ms` says so; `poll` after every input; carry orders out in
order.

RRE1  Only channels with a replica on this node cost anything here.
RRE2  A log is deleted only if the catalog says that the channel is deleted or has no replica here; never because the
     catalog does not know it (yet).
RRE3  At most `WAKES_PER_TURN` channels are woken in a turn, and followers without contact ask a few at a time (RFR1):
     with very many channels everything takes longer, and heartbeats and sessions take no longer.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tidelog.cluster.replication import effects
from tidelog.cluster.replication.first_requests import REQUESTS_MAX, FirstRequests
from tidelog.cluster.replication.lag import load_report_of, observe_lag
from tidelog.cluster.replication.orders import (
    AppendBlocks,
    Appended,
    BlocksRead,
    DeleteLog,
    Folded,
    LogReady,
    StorageOrder,
    StorageResult,
)
from tidelog.cluster.replication.pairs import PairBeats
from tidelog.cluster.replication.producer_expiry import ProducerExpiry
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.replication.state import Storage
from tidelog.core.catalog import Catalog, Change, ChannelRecord, NodeState, encode_change
from tidelog.core.replication.budget import LinkBudgets, WaitForBudget
from tidelog.core.replication.messages import (
    AskLog,
    NodeLoadReport,
    Notify,
    ProposeChange,
    ReplicationMessage,
    SyncError,
    SyncNack,
    SyncRequest,
    SyncResponse,
)
from tidelog.core.replication.metrics import ReplicationMetricsRegistry
from tidelog.core.replication.options import ReplicationOptions
from tidelog.storage.store.watermarks import Watermark

SILENCE_CHECK_MS: Final = 25
"""The interval of the checks for leaders' nodes that have been silent for too long."""
LINES_MAX: Final = 1_000
WAKES_PER_TURN: Final = 256
"""Channels that are looked at in one turn, before links and timers."""
OPEN_MS: Final = 5
"""How much each further log that is being opened may delay all others."""
_NEVER_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasOutput:
    messages: tuple[tuple[str, ReplicationMessage], ...]
    """Messages with the nodes that they go to."""
    to_metadata: tuple[ReplicationMessage, ...]
    """Messages to the metadata leader, which may be this node."""
    orders: tuple[StorageOrder, ...]
    produced: tuple[effects.ProduceOutcome, ...]
    moved: tuple[ChannelReplica, ...]
    """Replicas whose committed end, log start or role changed."""
    lines: tuple[str, ...]


class Replicas:
    """Answers what replicas ask (`Surroundings`) and carries their effects out."""

    def __init__(
        self,
        *,
        node: str,
        options: ReplicationOptions,
        silence_of: Callable[[str, int], int],
        peak_of: Callable[[str], int],
        wall_us: Callable[[], int],
        now_ms: int,
        watermark_of: Callable[[int], Watermark | None] = lambda _: None,
    ) -> None:
        """`silence_of(peer, now_ms)` and `peak_of(peer)` come from the heartbeats of the pairs of nodes."""
        self._node = node
        self._options = options
        self._silence_of = silence_of
        self._peak_of = peak_of
        self._wall_us = wall_us
        self._watermark_of = watermark_of
        self._metrics = ReplicationMetricsRegistry()
        self._budgets = LinkBudgets()
        self._expiry = ProducerExpiry(options)
        self.first_requests = FirstRequests(REQUESTS_MAX)
        self._to_follow: dict[int, None] = {}
        """Channels whose records are looked at in the next turns (RRE3)."""
        self._to_ask: dict[int, None] = {}
        """... and those that ask again, because the link to their leader is new."""
        self._unopened = 0
        """Logs that are not open yet, as of a moment ago."""
        self.turn_wakes = 0
        """Channels that were looked at in the last turn (RRE3)."""
        self._catalog: Catalog | None = None
        self._incarnation = 0
        self._replicas: dict[int, ChannelReplica] = {}
        self._by_leader: dict[str, set[int]] = {}
        """Channels that this node follows, by the node that leads them."""
        self._leader_of: dict[int, str] = {}
        self._pairs = PairBeats()
        self.beats_changed = False
        """Some pair of nodes may have to speak more or less often; read `pair_heartbeat_ms` (R7)."""
        self._silence_due_ms = now_ms
        self._heartbeat_ms: dict[str, int] = {}
        """The shortest `heartbeat_ms` of the channels that a node leads, or led."""
        self._silent_due_ms: dict[str, int] = {}
        """The next check of the channels of a silent node."""
        self._silent_left: dict[str, list[int]] = {}
        """Those that were not looked at in this round yet (RRE3)."""
        self._idle_due_ms = now_ms
        self._idle_keys: list[int] = []
        self._watched: dict[int, int] = {}
        self._agenda: list[tuple[int, int]] = []
        self.is_due_earlier = False
        """`wake_at_ms` may be earlier than it was; the driver resets it when it has looked."""
        self._serving: dict[int, ChannelReplica] = {}
        self._moved: dict[int, ChannelReplica] = {}
        self._tails: OrderedDict[int, ChannelReplica] = OrderedDict()
        self._tails_bytes: dict[int, int] = {}
        self._tails_total = 0
        self._messages: list[tuple[str, ReplicationMessage]] = []
        self._to_metadata: list[ReplicationMessage] = []
        self._orders: list[StorageOrder] = []
        self._produced: list[effects.ProduceOutcome] = []
        self._lines: list[str] = []
        self._generation = 0
        self._now_ms = now_ms
        self._load_due_ms = now_ms
        self.free_bytes = self.capacity_bytes = 0
        """Free and total bytes of the disk, as last measured by the shell."""

    # --- what replicas ask (Surroundings) ----------------------------------------------------------------

    @property
    def node(self) -> str:
        return self._node

    @property
    def options(self) -> ReplicationOptions:
        return self._options

    @property
    def metrics(self) -> ReplicationMetricsRegistry:
        return self._metrics

    @property
    def incarnation(self) -> int:
        return self._incarnation

    def wall_us(self) -> int:
        return self._wall_us()

    def watermark(self, channel_id: int) -> Watermark | None:
        return self._watermark_of(channel_id)

    def silence_ms(self, peer: str, now_ms: int) -> int:
        return self._silence_of(peer, now_ms)

    def active_incarnation(self, node: str) -> int | None:
        record = None if self._catalog is None else self._catalog.node(node)
        return record.incarnation if record is not None and record.state is NodeState.ACTIVE else None

    def new_generation(self) -> int:
        self._generation += 1
        return self._generation

    def storage_patience_ms(self) -> int:
        return max(0, self._unopened + len(self._to_follow) - WAKES_PER_TURN) * OPEN_MS

    def catch_up_wait_ms(self, record: ChannelRecord, peer: str, byte_count: int, now_ms: int) -> int:
        now_us = now_ms * 1000
        budget = self._budgets.link(peer, now_us=now_us)
        budget.set_peak(self._peak_of(peer), now_us=now_us)
        config = record.config
        verdict = budget.spend(
            record.channel_id,
            byte_count,
            fraction_ppm=config.replication_budget_ppm,
            bandwidth_class=config.bandwidth_class,
            now_us=now_us,
        )
        return verdict.retry_after_ms if isinstance(verdict, WaitForBudget) else 0

    # --- effects of replicas -----------------------------------------------------------------------------

    def carry_out(self, replica: ChannelReplica, wanted: Sequence[effects.Effect]) -> None:
        """Gather what leaves with the next `poll`, and note when the replica wants to be called."""
        for effect in wanted:  # the most frequent kinds first
            if isinstance(effect, effects.SendToNode):
                self._messages.append((effect.peer, effect.message))
            elif isinstance(effect, effects.WakeAt):
                self._watch(replica.channel_id, effect.at_ms)
            elif isinstance(effect, AppendBlocks):
                self._orders.append(effect)
            elif isinstance(effect, effects.ServeSoon):
                self._serving[replica.channel_id] = replica
            elif isinstance(effect, effects.TailGrew):
                self._tail_grew(replica)
            elif isinstance(effect, effects.ProduceOutcome):
                self._produced.append(effect)
            elif isinstance(effect, effects.ReplicaMoved):
                self._moved[replica.channel_id] = replica
            elif isinstance(effect, effects.LogLine):
                self._say(effect.text)
            elif isinstance(effect, effects.TellMetadata):
                self._to_metadata.append(effect.message)
            elif isinstance(effect, effects.ProposeToMetadata):
                self._propose(effect.change)
            else:
                self._orders.append(effect)

    def _propose(self, change: Change) -> None:
        self._to_metadata.append(ProposeChange(change=encode_change(change)))

    def _watch(self, channel_id: int, at_ms: int) -> None:
        due = self._watched.get(channel_id)
        if due is None or at_ms < due:
            self._watched[channel_id] = at_ms
            heapq.heappush(self._agenda, (at_ms, channel_id))
            if self._agenda[0][0] == at_ms:
                self.is_due_earlier = True

    def _say(self, line: str) -> None:
        if len(self._lines) < LINES_MAX:
            self._lines.append(line)

    def _tail_grew(self, replica: ChannelReplica) -> None:
        """All tails together stay within bounds: those that were used longest ago go first."""
        key, tails = replica.channel_id, self._tails
        before = self._tails_bytes.get(key, 0)
        self._tails_bytes[key] = replica.tail.bytes
        self._tails_total += replica.tail.bytes - before
        tails[key] = replica
        tails.move_to_end(key)
        while self._tails_total > self._options.tails_bytes_max and len(tails) > 1:
            oldest, other = tails.popitem(last=False)
            self._tails_total -= self._tails_bytes.pop(oldest)
            other.tail.clear()

    # --- the catalog -----------------------------------------------------------------------------------------

    def follow_catalog(
        self,
        catalog: Catalog,
        channel_ids: Iterable[int] | None,
        *,
        nodes: Iterable[str] = (),
        incarnation: int,
        now_ms: int,
    ) -> None:
        """Channels and nodes that changed; None for all: the catalog was replaced, or this node registered anew."""
        self._now_ms = now_ms
        self._catalog = catalog
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            channel_ids = None
        is_first = not self._to_follow
        if channel_ids is None:
            channel_ids = sorted(self._replicas)  # at once, so that none acts as what this node no longer is
            wanted = {record.channel_id for record in catalog.channels_on(self._node)}
            self._to_follow = dict.fromkeys(sorted(wanted - self._replicas.keys()))
        else:
            # Who registered anew may join what is led here, and nothing else would tell the leader.
            shared = {record.channel_id for node in nodes for record in catalog.channels_on(node)}
            self._to_follow |= dict.fromkeys(sorted(shared & self._replicas.keys()))
        for channel_id in sorted(channel_ids):
            self._to_follow.pop(channel_id, None)
            self._follow_channel(catalog, channel_id, now_ms)
        if is_first:  # else once in a turn, by `wake`
            self._follow_some(now_ms)

    def _follow_some(self, now_ms: int) -> None:
        """RRE3. What has changed since they were noted is in the catalog too."""
        for channel_id in list(islice(self._to_follow, WAKES_PER_TURN)):
            assert self._catalog is not None
            del self._to_follow[channel_id]
            self._follow_channel(self._catalog, channel_id, now_ms)

    def _ask_some(self, now_ms: int) -> None:
        """RRE3."""
        for channel_id in list(islice(self._to_ask, WAKES_PER_TURN)):
            del self._to_ask[channel_id]
            replica = self._replicas.get(channel_id)
            if replica is not None:
                replica.ask_leader(now_ms)

    def _follow_channel(self, catalog: Catalog, channel_id: int, now_ms: int) -> None:
        record = catalog.channel(channel_id)
        replica = self._replicas.get(channel_id)
        if record is None:
            if replica is not None and catalog.was_deleted(channel_id):
                replica.close(delete=True)
                self._forget(replica)
            return
        if replica is None:
            if self._node not in record.replicas:
                return
            replica = self._replicas[channel_id] = ChannelReplica(self, record, now_ms)
        replica.update(record, now_ms)
        if self._node not in record.replicas:
            self._forget(replica)
            return
        self._note_leader(replica)
        peers = tuple(node for node in record.replicas if node != self._node)
        self.beats_changed |= self._pairs.note(channel_id, peers, record.config.heartbeat_ms)

    def _note_leader(self, replica: ChannelReplica) -> None:
        channel_id = replica.channel_id
        leader = replica.following.leader if replica.following is not None else None
        before = self._leader_of.get(channel_id)
        if leader is not None:
            heartbeat_ms = replica.record.config.heartbeat_ms
            self._heartbeat_ms[leader] = min(self._heartbeat_ms.get(leader, heartbeat_ms), heartbeat_ms)
        else:
            self.first_requests.forget(channel_id)
        if leader == before:
            return
        if before is not None:
            self._by_leader[before].discard(channel_id)
        if leader is None:
            self._leader_of.pop(channel_id, None)
        else:
            self._leader_of[channel_id] = leader
            self._by_leader.setdefault(leader, set()).add(channel_id)

    def pair_heartbeat_ms(self, peer: str) -> int | None:
        """The smallest `heartbeat_ms` of the channels shared with a node (R7)."""
        return self._pairs.shortest_ms(peer)

    def _forget(self, replica: ChannelReplica) -> None:
        channel_id = replica.channel_id
        del self._replicas[channel_id]
        self.beats_changed |= self._pairs.forget(channel_id)
        leader = self._leader_of.pop(channel_id, None)
        if leader is not None:
            self._by_leader[leader].discard(channel_id)
        self._watched.pop(channel_id, None)
        self._serving.pop(channel_id, None)
        self._expiry.forget(channel_id)
        self.first_requests.forget(channel_id)
        self._to_ask.pop(channel_id, None)
        if self._tails.pop(channel_id, None) is not None:
            self._tails_total -= self._tails_bytes.pop(channel_id)
        self._metrics.forget(replica.name)
        self._moved[channel_id] = replica

    def forget_strays(self, channel_ids: Iterable[int]) -> None:
        """Logs that lie on the disk: those go whose channel the catalog remembers to have deleted, or has placed
        elsewhere (RRE2). Only once this node is registered: before that its catalog may be an old one."""
        catalog = self._catalog
        if catalog is None or not self._incarnation:
            return
        deleted = {stone.channel_id for stone in catalog.tombstones()}
        for channel_id in channel_ids:
            record = catalog.channel(channel_id)
            gone = channel_id in deleted if record is None else self._node not in record.replicas
            if gone and channel_id not in self._replicas:
                self._orders.append(DeleteLog(channel_id=channel_id, generation=0))

    # --- inputs ------------------------------------------------------------------------------------------------

    def receive(self, peer: str, message: ReplicationMessage, now_ms: int) -> None:
        """A message of another node's replica."""
        self._now_ms = now_ms
        replica = self._replicas.get(message.channel_id)  # type: ignore[union-attr]
        if replica is None:
            if isinstance(message, SyncRequest):
                self._send_closed(peer, message)
            return
        match message:
            case SyncRequest():
                replica.on_request(peer, message, now_ms)
            case SyncResponse():
                replica.on_response(peer, message, now_ms)
            case SyncNack():
                replica.on_nack(peer, message, now_ms)
            case Notify():
                replica.on_notify(peer, message, now_ms)
            case AskLog():
                replica.on_ask_log(peer, message)
            case _:
                pass

    def _send_closed(self, peer: str, request: SyncRequest) -> None:
        nack = SyncNack(
            channel_id=request.channel_id,
            leader_epoch=0,
            request_id=request.request_id,
            error=SyncError.NOT_LEADER,
        )
        self._messages.append((peer, nack))

    def storage_done(self, result: StorageResult, now_ms: int) -> None:
        self._now_ms = now_ms
        replica = self._replicas.get(result.channel_id)
        if replica is None or replica.generation != result.generation:
            return
        match result:
            case Appended():
                replica.appended(result, now_ms)
            case LogReady():
                replica.opened(result, now_ms)
                self._note_leader(replica)
            case Folded():
                replica.folded(result, now_ms)
            case BlocksRead():
                replica.blocks_read(result, now_ms)

    def link_up(self, peer: str, now_ms: int) -> None:
        """Messages of the last link may be lost: followers of leaders on that node send their requests again."""
        self._now_ms = now_ms
        for replica in self._replicas.values():
            if replica.leading is not None:
                replica.leading.link_up(peer, now_ms)
        self._to_ask |= dict.fromkeys(sorted(self._by_leader.get(peer, ())))
        self._ask_some(now_ms)

    # --- time ------------------------------------------------------------------------------------------------

    def wake(self, now_ms: int) -> None:
        self.wake_agenda(now_ms)
        self._follow_some(now_ms)
        self._ask_some(now_ms)
        if now_ms >= self._silence_due_ms:
            self._silence_due_ms = now_ms + SILENCE_CHECK_MS
            self._check_silence(now_ms)
        if now_ms >= self._idle_due_ms:
            self._wake_idle(now_ms)
        if now_ms >= self._load_due_ms and self._incarnation:
            self._load_due_ms = now_ms + self._options.load_report_ms
            self._to_metadata.append(self.load_report())

    def wake_agenda(self, now_ms: int) -> None:
        """Only the channels that asked for it; cheap enough to be done between any two records."""
        self._now_ms = now_ms
        agenda, watched = self._agenda, self._watched
        self.turn_wakes = 0
        while agenda and agenda[0][0] <= now_ms and self.turn_wakes < WAKES_PER_TURN:
            due_ms, channel_id = heapq.heappop(agenda)
            if watched.get(channel_id) != due_ms:
                continue  # it was asked for earlier since
            del watched[channel_id]
            replica = self._replicas.get(channel_id)
            if replica is not None:
                self.turn_wakes += 1
                replica.wake(now_ms)
                self._note_leader(replica)
        self.is_due_earlier |= self.turn_wakes == WAKES_PER_TURN  # the rest in the next turn

    def _check_silence(self, now_ms: int) -> None:
        for leader, channel_ids in self._by_leader.items():
            if not channel_ids:
                continue
            heartbeat_ms = self._heartbeat_ms[leader]
            if self._silence_of(leader, now_ms) < 3 * heartbeat_ms or now_ms < self._silent_due_ms.get(leader, 0):
                continue
            left = self._silent_left.get(leader) or list(channel_ids)
            for channel_id in left[:WAKES_PER_TURN]:
                if channel_id in channel_ids:
                    self._replicas[channel_id].leader_fell_silent(now_ms)
            self._silent_left[leader] = left[WAKES_PER_TURN:]
            if not self._silent_left[leader]:
                self._silent_due_ms[leader] = now_ms + heartbeat_ms // 2

    def _wake_idle(self, now_ms: int) -> None:
        """Look at every channel once in `replica_max_idle_wait_ms`, a few at a time."""
        if not self._idle_keys:
            self._idle_keys = list(self._replicas)
        self._unopened = sum(replica.storage is Storage.OPENING for replica in self._replicas.values())
        steps = max(1, self._options.replica_max_idle_wait_ms // 250)
        count = -(-max(1, len(self._replicas)) // steps)
        for _ in range(min(count, len(self._idle_keys))):
            replica = self._replicas.get(self._idle_keys.pop())
            if replica is not None:
                replica.wake(now_ms)
                self._note_leader(replica)
                self._expire_producers(replica, now_ms)
        self._idle_due_ms = now_ms + 250

    def _expire_producers(self, replica: ChannelReplica, now_ms: int) -> None:
        if replica.leading is None or replica.fold is None or self._catalog is None:
            self._expiry.forget(replica.channel_id)
            return
        closed = self._expiry.look(
            self._catalog, replica.channel_id, replica.fold, wall_ms=self._wall_us() // 1000, now_ms=now_ms
        )
        for change in closed:
            self._propose(change)
        if closed:
            self._say(effects.line_of("producers expire", {"channel": replica.name, "count": len(closed)}))

    def wake_at_ms(self) -> int:
        return min(self.rounds_at_ms(), self.agenda_at_ms())

    def rounds_at_ms(self) -> int:
        """The time of the next look at all channels, or at the next of them in turn."""
        if self._to_follow or self._to_ask:
            return self._now_ms
        return min(self._silence_due_ms if self._by_leader else _NEVER_MS, self._idle_due_ms)

    def agenda_at_ms(self) -> int:
        return self._agenda[0][0] if self._agenda else _NEVER_MS

    # --- outputs -----------------------------------------------------------------------------------------------

    def poll(self, now_ms: int) -> ReplicasOutput | None:
        self._now_ms = now_ms
        while granted := self.first_requests.granted():
            self._ask_granted(granted)
        while self._serving:
            serving, self._serving = self._serving, {}
            for replica in serving.values():
                replica.serve(self._now_ms)
        if not (self._messages or self._to_metadata or self._orders or self._produced or self._moved or self._lines):
            return None
        output = ReplicasOutput(
            messages=tuple(self._messages),
            to_metadata=tuple(self._to_metadata),
            orders=tuple(self._orders),
            produced=tuple(self._produced),
            moved=tuple(self._moved.values()),
            lines=tuple(self._lines),
        )
        self._messages, self._to_metadata, self._orders = [], [], []
        self._produced, self._moved, self._lines = [], {}, []
        return output

    def _ask_granted(self, channel_ids: list[int]) -> None:
        """RFR1: who does not ask after all, because its log is being changed, leaves its place to the next."""
        for channel_id in channel_ids:
            replica, sent = self._replicas.get(channel_id), len(self._messages)
            if replica is not None:
                replica.ask_leader(self._now_ms)
            if len(self._messages) == sent:
                self.first_requests.answered(channel_id)

    def apply_retention(self, now_ms: int) -> None:
        """Trim what may go, on every replica by itself: they end up alike, because their settings are."""
        for replica in self._replicas.values():
            replica.apply_retention(now_ms)

    def observe(self, now_ms: int) -> None:
        """Renew every channel's lag before the metrics are read."""
        for replica in self._replicas.values():
            observe_lag(replica, self._silence_of, now_ms)

    # --- queries -----------------------------------------------------------------------------------------------

    def replica(self, channel_id: int) -> ChannelReplica | None:
        return self._replicas.get(channel_id)

    def replicas(self) -> list[ChannelReplica]:
        return list(self._replicas.values())

    def load_report(self) -> NodeLoadReport:
        room = (self.free_bytes, self.capacity_bytes)
        return load_report_of(self._node, self._replicas.values(), self._incarnation, *room)

    def close_all(self) -> None:
        """The node stops: every role ends, every log is closed."""
        for replica in list(self._replicas.values()):
            replica.close(delete=False)
