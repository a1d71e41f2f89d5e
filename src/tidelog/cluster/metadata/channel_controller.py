"""The metadata leader's work for channels: it elects leaders, removes members from the ISR, places replicas.

On every other node it does nothing. Every decision becomes a compare-and-set change of the catalog, so a wrong or late
one is refused without harm. It is repeated until the catalog shows that it is done.

What a caller must keep: report the changes that the catalog applied; call `tend` on every wake while this node leads
the metadata, and `step_down` when it no longer does.

CD1  A live leader is deposed only if a majority of the other ISR members has reported it within the window, and this
     node has not heard it either for three of the channel's heartbeats (R6); or if it is cut off from its followers,
     and one of them is not (WI6); or if it resigned.
CD2  Among replicas that can lead, those with the most complete logs come first (`metadata.elections`); among equal ones
     the pinned one, then the nearest to the others, then the smallest name (R8). A replica that takes over from a live
     leader must have joined the ISR since its node started.
CD3  Replicas beyond the factor are removed once all that stay are in the ISR: a copy is removed after its replacement
     is in sync.
CD4  Of other nodes' proposals only changes of the ISR are accepted, and only from the channel's leader.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from tidelog.cluster.metadata.elections import Elections, is_compared, who_can_lead
from tidelog.core.catalog import (
    AlterChannel,
    Basis,
    Batch,
    Catalog,
    Change,
    ChangeLeader,
    ChannelRecord,
    CloseProducer,
    ExpandIsr,
    NodeState,
    Placement,
    RaiseChannelEpoch,
    ShrinkIsr,
    ShrinkReason,
    SingleChange,
    decode_change,
)
from tidelog.core.liveness import ProximityGraph
from tidelog.core.replication.election import hand_back_to
from tidelog.core.replication.messages import (
    LeaderSilent,
    LogFacts,
    NodeLoadReport,
    ProposeChange,
    ReplicationMessage,
    Resign,
    Withdraw,
)
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.replication.placement import NodeLoad, choose_replicas
from tidelog.core.replication.witnesses import Witnesses
from tidelog.errors import LogError, PlacementRefused

SCAN_MS: Final = 1_000
"""How often every channel is checked, whatever happened."""
SCAN_STEP: Final = 50
"""How many channels of the scan are checked in one wake. With very many channels a scan takes longer."""
DUE_PER_TURN: Final = 500
"""Channels that are processed in one wake: thousands at a time would delay sessions."""
HANDBACK_WAIT_MS: Final = 2_000
"""How long a pinned leader must be back before it leads again."""
AGAIN_MS: Final = 5_000
"""A leader that resigns and has no successor is elected again at once, and then no more often than this."""


class ChannelController:
    def __init__(
        self,
        *,
        node: str,
        options: ReplicationOptions,
        proximity: ProximityGraph,
        silence_of: Callable[[str, int], int],
        wall_ms: Callable[[], int],
        say: Callable[..., None],
    ) -> None:
        self.node = node
        self._options = options
        self._proximity = proximity
        self._silence_of = silence_of
        self._wall_ms = wall_ms
        self._say = say
        self.witnesses = Witnesses(leader_timeout_ms=options.replica_max_leader_timeout_ms)
        self.loads: dict[str, NodeLoadReport] = {}
        self._due: set[int] = set()
        self._tended = 0
        """The last channel of a wake that left some for the next."""
        self._later: set[int] = set()
        """Channels to check again once an open proposal should have been decided."""
        self._later_due_ms = 0
        self._looks: list[tuple[int, int]] = []
        """(when, channel) of elections that wait for answers, as a heap."""
        self._scan: list[int] = []
        self._scan_due_ms = 0
        self._proposed: dict[int, tuple[int, int]] = {}
        """(channel epoch, when) of the last proposal for a channel."""
        self._resigned: dict[int, Resign] = {}
        self._withdrawn: dict[tuple[int, str], tuple[int, str]] = {}
        """(channel, node) to (until when, why): not chosen again before."""
        self._unable: dict[tuple[int, str], int] = {}
        """(channel, node) to until when: it resigned, and is not elected again just because it is pinned."""
        self._again_ms: dict[int, int] = {}
        """When a channel's leader, which had resigned, was last elected again for lack of another."""
        self._leads_since: dict[int, tuple[int, int]] = {}
        """(leader epoch, when it was first seen) of channels whose pinned leader does not lead."""
        self.messages: list[tuple[str, ReplicationMessage]] = []
        """Messages to send; taken by the caller."""
        self.elections = Elections(
            options=options, send=lambda node, message: self.messages.append((node, message)), say=say
        )

    # --- inputs ------------------------------------------------------------------------------------------------

    def step_down(self) -> None:
        """This node no longer leads the metadata."""
        self.witnesses.clear()
        self._due.clear()
        self._scan.clear()
        self._later.clear()
        self._looks.clear()
        self._scan_due_ms = 0
        self._proposed.clear()
        self._resigned.clear()
        self.elections.clear()
        self._leads_since.clear()

    def touched(self, channel_ids: Iterable[int]) -> None:
        """The catalog changed these."""
        self._due.update(channel_ids)

    def node_changed(self, catalog: Catalog, node: str) -> None:
        """A node was fenced, registered or removed: all its channels are checked."""
        self._due.update(channel.channel_id for channel in catalog.channels_on(node))

    def receive(
        self, peer: str, message: ReplicationMessage, catalog: Catalog, propose: Callable[[Change], None], now_ms: int
    ) -> None:
        match message:
            case ProposeChange():
                change = decode_change(message.change)
                if self._may_propose(peer, change, catalog):
                    propose(change)
            case LeaderSilent():
                channel = catalog.channel(message.channel_id)
                if channel is not None and self.witnesses.report(
                    channel,
                    witness=peer,
                    leader=message.leader,
                    leader_epoch=message.leader_epoch,
                    channel_epoch=message.channel_epoch,
                    now_ms=now_ms,
                ):
                    self._due.add(message.channel_id)
            case Resign():
                channel = catalog.channel(message.channel_id)
                if (
                    channel is not None
                    and (channel.leader, channel.leader_incarnation) == (peer, message.incarnation)
                    and channel.leader_epoch == message.leader_epoch
                ):
                    self._resigned[message.channel_id] = message
                    self._unable[(message.channel_id, peer)] = now_ms + self._options.withdrawn_retry_ms
                    self._due.add(message.channel_id)
            case Withdraw():
                channel = catalog.channel(message.channel_id)
                record = catalog.node(peer)
                present = record is not None and record.incarnation == message.incarnation
                if channel is not None and present and peer in channel.replicas and channel.leader != peer:
                    until_ms = now_ms + self._options.withdrawn_retry_ms
                    self._withdrawn[(message.channel_id, peer)] = (until_ms, message.reason)
                    self._due.add(message.channel_id)
                    if message.channel_epoch == channel.channel_epoch and channel.member(peer) is None:
                        # After that none of its earlier requests can bring it back into the ISR, and it may delete its
                        # copy.
                        propose(
                            RaiseChannelEpoch(
                                channel_id=message.channel_id, expected_channel_epoch=message.channel_epoch
                            )
                        )
            case LogFacts():
                if self.elections.answered(peer, message):
                    self._due.add(message.channel_id)
            case NodeLoadReport():
                self.loads[peer] = message
            case _:
                pass

    def _may_propose(self, peer: str, change: Change, catalog: Catalog) -> bool:
        """CD4. A replica that its leader adds to the ISR has come back, whatever it reported before."""
        if isinstance(change, CloseProducer):
            producer = catalog.producer(change.producer_id)
            led = None if producer is None else catalog.channel(producer.channel_id)
            return led is not None and led.leader == peer
        if not isinstance(change, ExpandIsr | ShrinkIsr | RaiseChannelEpoch):
            return False
        channel = catalog.channel(change.channel_id)
        if channel is None or channel.leader != peer:
            return False
        if isinstance(change, ExpandIsr):
            self._withdrawn.pop((change.channel_id, change.member), None)
        return True

    # --- tending -----------------------------------------------------------------------------------------------

    def tend(self, catalog: Catalog, propose: Callable[[Change], None], now_ms: int) -> None:
        """Process all channels that need something now."""
        if now_ms >= self._scan_due_ms and not self._scan:
            self._scan = [channel.channel_id for channel in catalog.channels()]
            self._scan_due_ms = now_ms + max(SCAN_MS, len(self._scan))
            self._withdrawn = {key: held for key, held in self._withdrawn.items() if held[0] > now_ms}
            self._unable = {key: until_ms for key, until_ms in self._unable.items() if until_ms > now_ms}
            self._again_ms = {key: at_ms for key, at_ms in self._again_ms.items() if now_ms - at_ms < AGAIN_MS}
        if self._scan:
            self._due.update(self._scan[-SCAN_STEP:])
            del self._scan[-SCAN_STEP:]
        if self._later and now_ms >= self._later_due_ms:
            self._later_due_ms = now_ms + self._options.repeat_ms
            self._due |= self._later
            self._later.clear()
        while self._looks and self._looks[0][0] <= now_ms:
            self._due.add(heapq.heappop(self._looks)[1])
        for channel_id in self._take_due():
            channel = catalog.channel(channel_id)
            if channel is None:
                self._forget(channel_id)
                continue
            proposed = self._proposed.get(channel_id)
            is_open = proposed is not None and proposed[0] == channel.channel_epoch
            if proposed is not None and is_open and now_ms - proposed[1] < self._options.repeat_ms:
                self._later.add(channel_id)  # its outcome is not known yet
                continue
            change = self._next_change(catalog, channel, now_ms)
            if change is None:
                continue
            self._proposed[channel_id] = (channel.channel_epoch, now_ms)
            try:
                propose(change)
            except LogError:
                self._due.add(channel_id)  # too many at once: next time

    def _take_due(self) -> list[int]:
        """At most so many, in turn: the rest is first in the next wake."""
        due = sorted(self._due)
        if len(due) <= DUE_PER_TURN:
            self._due = set()
            return due
        place = bisect_right(due, self._tended)
        due = due[place:] + due[:place]
        due, self._due = due[:DUE_PER_TURN], set(due[DUE_PER_TURN:])
        self._tended = due[-1]
        return due

    def _look_again(self, channel: ChannelRecord, now_ms: int) -> None:
        """Check a channel whose election waits for answers; each answer triggers it too."""
        wait_ms = self.elections.wait_ms(channel, now_ms)
        heapq.heappush(self._looks, (now_ms + wait_ms, channel.channel_id))

    def due_ms(self) -> int | None:
        """When `tend` has something to do that cannot wait for its next scan."""
        if self._due:
            return 0
        return self._looks[0][0] if self._looks else None

    def _forget(self, channel_id: int) -> None:
        self.witnesses.elected(channel_id)
        self.elections.forget(channel_id)
        for table in (self._proposed, self._resigned, self._leads_since):
            table.pop(channel_id, None)

    def _next_change(self, catalog: Catalog, channel: ChannelRecord, now_ms: int) -> Change | None:
        if channel.paused:
            return None
        if not catalog.has_live_leader(channel):
            return self._elect(catalog, channel, now_ms)
        leader = channel.leader
        assert leader is not None
        resigned = self._resigned.get(channel.channel_id)
        if resigned is not None and resigned.leader_epoch != channel.leader_epoch:
            resigned = self._resigned.pop(channel.channel_id, None) and None
        if resigned is not None:
            return self._elect(catalog, channel, now_ms, instead_of=leader, or_again=True)
        if self.witnesses.deposes(
            channel, is_silent=lambda node: self._is_silent(node, channel, now_ms), now_ms=now_ms
        ):
            return self._elect(catalog, channel, now_ms, instead_of=leader)
        if self.witnesses.is_cut_off(
            channel,
            hears=lambda one, other: self._is_connected(catalog, one, other, now_ms),
            is_deaf=lambda one, other: self._proximity.is_deaf(one, other, now_ms),
            now_ms=now_ms,
        ):
            return self._elect(catalog, channel, now_ms, instead_of=leader, cut_off=True)
        return (
            self._shrink(catalog, channel)
            or self._hand_back(catalog, channel, now_ms)
            or self._replace_replicas(catalog, channel, now_ms)
        )

    def _is_silent(self, node: str, channel: ChannelRecord, now_ms: int) -> bool:
        if node == self.node:
            return False
        return self._silence_of(node, now_ms) >= 3 * channel.config.heartbeat_ms

    def _is_connected(self, catalog: Catalog, one: str, other: str, now_ms: int) -> bool:
        """Whether two nodes are active, and hear each other as far as is known here."""
        active = _is_active(catalog, one) and _is_active(catalog, other)
        return active and not self._proximity.is_cut(one, other, now_ms)

    # --- elections ---------------------------------------------------------------------------------------------

    def _elect(
        self,
        catalog: Catalog,
        channel: ChannelRecord,
        now_ms: int,
        *,
        instead_of: str | None = None,
        or_again: bool = False,
        cut_off: bool = False,
    ) -> Change | None:
        candidates = catalog.candidates(channel.channel_id)
        if candidates.basis is Basis.REPORTS:
            self._look_again(channel, now_ms)
            return self.elections.by_reports(catalog, channel, candidates, at_ms=self._wall_ms(), now_ms=now_ms)
        able = [node for node in who_can_lead(catalog, channel, candidates) if node != instead_of]
        waited_ms = now_ms - self._again_ms.get(channel.channel_id, -AGAIN_MS)
        # If no other replica holds everything it leads again, in an epoch of its own.
        again = instead_of if or_again and instead_of in candidates.nodes and waited_ms >= AGAIN_MS else None
        chosen = self.elections.elect(
            catalog,
            channel,
            able=able,
            last_resort=again,
            is_silent=lambda node: self._is_silent(node, channel, now_ms),
            median_rtt_us=lambda node: self._proximity.median_rtt_us(
                node, [other for other in channel.replicas if other != node]
            ),
            now_ms=now_ms,
        )
        if chosen is None:
            self._look_again(channel, now_ms)  # answers are on their way, or nobody can: asked again
            return None
        if chosen == again:
            self._again_ms[channel.channel_id] = now_ms
        self.elections.forget(channel.channel_id)
        record = catalog.node(chosen)
        assert record is not None
        self._say("elects", channel=channel.name, leader=chosen, was=channel.leader, epoch=channel.leader_epoch + 1)
        self.witnesses.elected(channel.channel_id)
        elected = ChangeLeader(
            channel_id=channel.channel_id,
            expected_channel_epoch=channel.channel_epoch,
            leader=chosen,
            incarnation=record.incarnation,
            at_ms=self._wall_ms(),
        )
        gone = tuple(
            member.node
            for member in channel.isr
            if member.node != chosen
            and (
                not _is_active(catalog, member.node)
                or (member.node == instead_of and (cut_off or self._is_silent(member.node, channel, now_ms)))
            )
        )
        if cut_off:
            self._say(
                "deposes", channel=channel.name, leader=instead_of, why="it and its followers do not hear each other"
            )
        return _without(catalog, _instead(catalog, channel, elected), gone)

    def _hand_back(self, catalog: Catalog, channel: ChannelRecord, now_ms: int) -> Change | None:
        """A pinned leader that is healthy again leads again, after it was back for a while."""
        pinned = channel.config.leader_pinned
        if pinned is None or channel.leader == pinned:
            self._leads_since.pop(channel.channel_id, None)
            return None
        candidates = catalog.candidates(channel.channel_id)
        able = candidates.nodes if candidates.basis is Basis.ISR else ()
        target = hand_back_to(leader=channel.leader, pinned=pinned, candidates=able)
        unable = (channel.channel_id, pinned) in self._unable
        compared = target is not None and is_compared(catalog, channel, target)
        if target is None or unable or not compared or self._is_silent(target, channel, now_ms):
            self._leads_since.pop(channel.channel_id, None)
            return None
        epoch, since_ms = self._leads_since.setdefault(channel.channel_id, (channel.leader_epoch, now_ms))
        if epoch != channel.leader_epoch:
            self._leads_since[channel.channel_id] = (channel.leader_epoch, now_ms)
            return None
        if now_ms - since_ms < HANDBACK_WAIT_MS:
            return None
        record = catalog.node(target)
        assert record is not None
        self._say("hands back", channel=channel.name, to=target)
        return ChangeLeader(
            channel_id=channel.channel_id,
            expected_channel_epoch=channel.channel_epoch,
            leader=target,
            incarnation=record.incarnation,
            at_ms=self._wall_ms(),
        )

    # --- the ISR and the replicas ------------------------------------------------------------------------------

    def _shrink(self, catalog: Catalog, channel: ChannelRecord) -> Change | None:
        """Remove members from the ISR that are gone, or that gave their copy up."""
        gone, withdrawn = [], []
        for member in (*channel.isr, *channel.eligible):
            if member.node == channel.leader:
                continue
            if (channel.channel_id, member.node) in self._withdrawn:
                withdrawn.append(member.node)
            elif member in channel.isr and not _is_active(catalog, member.node):
                gone.append(member.node)
        for members, reason in ((withdrawn, ShrinkReason.WITHDRAWN), (gone, ShrinkReason.FENCED)):
            if members:
                return ShrinkIsr(
                    channel_id=channel.channel_id,
                    expected_channel_epoch=channel.channel_epoch,
                    members=tuple(members),
                    reason=reason,
                )
        return None

    def _replace_replicas(self, catalog: Catalog, channel: ChannelRecord, now_ms: int) -> Change | None:
        """Adjust the replicas to the factor and to the nodes that are available (CD3)."""
        factor = channel.config.effective_factor
        lost = [node for node in channel.replicas if _is_removed(catalog, node)]
        avoid = {
            node: f"withdrew from it: {why}"
            for (channel_id, node), (_, why) in self._withdrawn.items()
            if channel_id == channel.channel_id
        }
        stay = tuple(node for node in channel.replicas if node not in lost and node not in avoid)
        if len(stay) > factor:
            return self._let_extras_go(catalog, channel, stay[:factor])
        missing = len(stay) < factor
        pinned_elsewhere = channel.config.placement is Placement.PINNED and not set(stay) >= set(
            channel.config.pinned_nodes
        )
        if not (lost or avoid or missing or pinned_elsewhere):
            return None
        try:
            placed = choose_replicas(
                channel=channel.name,
                config=channel.config,
                nodes=catalog.nodes(),
                loads=self.node_loads(catalog),
                rtt_us=self._proximity.rtt_us,
                keep=stay,
                leader=channel.leader,
                avoid=avoid,
            )
        except PlacementRefused:
            return None
        # A replica that withdrew keeps its place while no other node can take it: it may come back.
        kept_away = [node for node in channel.replicas if node in avoid and node not in placed.nodes]
        if len(placed.nodes) >= factor:
            kept_away = []
        replicas = (*placed.nodes, *kept_away)
        if set(replicas) == set(channel.replicas) or channel.leader not in replicas:
            return None
        self._say("places", channel=channel.name, replicas=",".join(replicas))
        return AlterChannel(
            channel_id=channel.channel_id, expected_channel_epoch=channel.channel_epoch, replicas=replicas
        )

    def _let_extras_go(self, catalog: Catalog, channel: ChannelRecord, meant: tuple[str, ...]) -> Change | None:
        if any(channel.member(node) is None for node in meant):
            return None
        if channel.leader not in meant:
            heir = catalog.node(meant[0])
            if heir is None or heir.node not in catalog.candidates(channel.channel_id).nodes:
                return None
            if not is_compared(catalog, channel, heir.node):
                return None
            return ChangeLeader(
                channel_id=channel.channel_id,
                expected_channel_epoch=channel.channel_epoch,
                leader=heir.node,
                incarnation=heir.incarnation,
                at_ms=self._wall_ms(),
            )
        return AlterChannel(channel_id=channel.channel_id, expected_channel_epoch=channel.channel_epoch, replicas=meant)

    def node_loads(self, catalog: Catalog) -> dict[str, NodeLoad]:
        """The facts about every node that placement uses."""
        found = {}
        for record in catalog.nodes():
            report = self.loads.get(record.node)
            fresh = report is not None and report.incarnation == record.incarnation
            found[record.node] = NodeLoad(
                replicas=catalog.replica_count(record.node),
                leaders=catalog.leader_count(record.node),
                free_bytes=report.free_bytes if report is not None and fresh else 0,
                capacity_bytes=report.capacity_bytes if report is not None and fresh else 0,
                chains=frozenset(report.chains) if report is not None and fresh else frozenset(),
            )
        return found


def _instead(catalog: Catalog, channel: ChannelRecord, elected: ChangeLeader) -> list[SingleChange]:
    """The election; for an eligible replica in two steps where the channel has a leader, which must be deposed
    first."""
    assert elected.leader is not None
    if channel.member(elected.leader) is not None or not catalog.has_live_leader(channel):
        return [elected]
    epoch = elected.expected_channel_epoch
    deposed = ChangeLeader(
        channel_id=elected.channel_id, expected_channel_epoch=epoch, leader=None, incarnation=0, at_ms=elected.at_ms
    )
    return [deposed, replace(elected, expected_channel_epoch=epoch + 1)]


def _without(catalog: Catalog, steps: list[SingleChange], gone: tuple[str, ...]) -> Change:
    """The election, which also removes members that are gone: their sessions may take longer to end than the channel's
    own timeout."""
    elected = steps[-1]
    assert isinstance(elected, ChangeLeader)
    whole = steps[0] if len(steps) == 1 else Batch(changes=tuple(steps))
    if not gone:
        return whole
    shrunk = ShrinkIsr(
        channel_id=elected.channel_id,
        expected_channel_epoch=elected.expected_channel_epoch + 1,
        members=gone,
        reason=ShrinkReason.FENCED,
    )
    both = Batch(changes=(*steps, shrunk))
    return whole if catalog.check(both) is not None else both


def _is_active(catalog: Catalog, node: str) -> bool:
    record = catalog.node(node)
    return record is not None and record.state is NodeState.ACTIVE


def _is_removed(catalog: Catalog, node: str) -> bool:
    record = catalog.node(node)
    return record is None or record.state is NodeState.REMOVED
