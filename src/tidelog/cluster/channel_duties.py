"""What the node that leads the metadata does for channels: it elects leaders, takes out who is gone, places replicas.

On every other node it does nothing. All it decides becomes a change of the catalog, compare-and-set, so being wrong or
late costs a refusal and nothing else. Repeated until the catalog shows that it is done.

What a caller must keep: tell it what the catalog applied; call `tend` on every wake while this node leads the metadata,
and `step_down` when it no longer does.

CD1  A live leader is deposed only if a majority of the other ISR members has reported it within the window, and this
     node too has not heard it for three of the channel's heartbeats (R6); or if it resigned.
CD2  Among those who can lead, the pinned one goes first, then the nearest to the others, then the smallest name (R8).
     A node that is silent here is elected only if nobody else can.
CD3  Replicas beyond the factor leave once all that are meant to stay are in the ISR: a copy goes after its replacement
     has come.
CD4  Of what other nodes propose, only changes of the ISR are passed on, and only those of the channel's leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from tidelog.core.catalog import (
    AlterChannel,
    Basis,
    Batch,
    Catalog,
    Change,
    ChangeLeader,
    ChannelRecord,
    ExpandIsr,
    LogReport,
    NodeState,
    Placement,
    RaiseChannelEpoch,
    ShrinkIsr,
    ShrinkReason,
    decode_change,
)
from tidelog.core.liveness import ProximityGraph
from tidelog.core.replication.election import hand_back_to, winner
from tidelog.core.replication.messages import (
    AskLog,
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
"""How often every channel is looked at, whatever happened."""
SCAN_STEP: Final = 50
"""So many of them at once: the rest waits for the next wake. With very many channels a scan takes longer."""
HANDBACK_WAIT_MS: Final = 2_000
"""A pinned leader that came back is given this long to settle before it leads again."""
AGAIN_MS: Final = 5_000
"""A leader that resigns and has no successor is elected again at once, and then no more often than this."""


@dataclass(slots=True)
class _Questions:
    """Who was asked how far its log goes, for one channel at one epoch (R5)."""

    channel_epoch: int
    asked_ms: int
    facts: dict[str, LogFacts]


class ChannelDuties:
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
        self._later: set[int] = set()
        """To be looked at again once an open proposal should have been decided."""
        self._later_due_ms = 0
        self._scan: list[int] = []
        self._scan_due_ms = 0
        self._proposed: dict[int, tuple[int, int]] = {}
        """(channel epoch, when) of the last proposal for a channel."""
        self._resigned: dict[int, Resign] = {}
        self._withdrawn: dict[tuple[int, str], tuple[int, str]] = {}
        """(channel, node) to (until when, why): not chosen again before."""
        self._unable: dict[tuple[int, str], int] = {}
        """(channel, node) to until when: it resigned, and is not asked back just because it is pinned."""
        self._again_ms: dict[int, int] = {}
        """When a channel's leader, which had resigned, was last elected again for want of another."""
        self._questions: dict[int, _Questions] = {}
        self._leads_since: dict[int, tuple[int, int]] = {}
        """(leader epoch, when it was first seen) of channels whose pinned leader does not lead."""
        self.messages: list[tuple[str, ReplicationMessage]] = []
        """To be sent; taken by the caller."""

    # --- inputs ------------------------------------------------------------------------------------------------

    def step_down(self) -> None:
        """Leadership of the metadata is lost."""
        self.witnesses.clear()
        self._due.clear()
        self._scan.clear()
        self._later.clear()
        self._scan_due_ms = 0
        self._proposed.clear()
        self._resigned.clear()
        self._questions.clear()
        self._leads_since.clear()

    def touched(self, channel_ids: Iterable[int]) -> None:
        """The catalog changed these."""
        self._due.update(channel_ids)

    def node_changed(self, catalog: Catalog, node: str) -> None:
        """A node was fenced, registered or removed: everything it holds is looked at."""
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
                    channel, witness=peer, leader=message.leader, leader_epoch=message.leader_epoch, now_ms=now_ms
                ):
                    self._due.add(message.channel_id)
            case Resign():
                channel = catalog.channel(message.channel_id)
                if channel is not None and channel.leader == peer and channel.leader_epoch == message.leader_epoch:
                    self._resigned[message.channel_id] = message
                    self._unable[(message.channel_id, peer)] = now_ms + self._options.withdrawn_retry_ms
                    self._due.add(message.channel_id)
            case Withdraw():
                channel = catalog.channel(message.channel_id)
                if channel is not None and peer in channel.replicas and channel.leader != peer:
                    until_ms = now_ms + self._options.withdrawn_retry_ms
                    self._withdrawn[(message.channel_id, peer)] = (until_ms, message.reason)
                    self._due.add(message.channel_id)
                    if message.channel_epoch == channel.channel_epoch and channel.member(peer) is None:
                        # Whatever it said in this epoch can then no longer bring it in, and it may let its copy go.
                        propose(
                            RaiseChannelEpoch(
                                channel_id=message.channel_id, expected_channel_epoch=message.channel_epoch
                            )
                        )
            case LogFacts():
                questions = self._questions.get(message.channel_id)
                if questions is not None and questions.channel_epoch == message.channel_epoch:
                    questions.facts[peer] = message
                    self._due.add(message.channel_id)
            case NodeLoadReport():
                self.loads[peer] = message
            case _:
                pass

    def _may_propose(self, peer: str, change: Change, catalog: Catalog) -> bool:
        """CD4. Who is let in by its leader has come back, whatever it said before."""
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
        """Whatever channels need at this moment."""
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
        due, self._due = self._due, set()
        for channel_id in sorted(due):
            channel = catalog.channel(channel_id)
            if channel is None:
                self._forget(channel_id)
                continue
            proposed = self._proposed.get(channel_id)
            is_open = proposed is not None and proposed[0] == channel.channel_epoch
            if proposed is not None and is_open and now_ms - proposed[1] < self._options.repeat_ms:
                self._later.add(channel_id)  # its fate is not known yet
                continue
            change = self._next_change(catalog, channel, now_ms)
            if change is None:
                continue
            self._proposed[channel_id] = (channel.channel_epoch, now_ms)
            try:
                propose(change)
            except LogError:
                self._due.add(channel_id)  # too many at once: next time

    def _forget(self, channel_id: int) -> None:
        self.witnesses.elected(channel_id)
        for table in (self._proposed, self._resigned, self._questions, self._leads_since):
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
        return (
            self._shrink(catalog, channel)
            or self._hand_back(catalog, channel, now_ms)
            or self._replace_replicas(catalog, channel, now_ms)
        )

    def _is_silent(self, node: str, channel: ChannelRecord, now_ms: int) -> bool:
        if node == self.node:
            return False
        return self._silence_of(node, now_ms) >= 3 * channel.config.heartbeat_ms

    # --- elections ---------------------------------------------------------------------------------------------

    def _elect(
        self,
        catalog: Catalog,
        channel: ChannelRecord,
        now_ms: int,
        *,
        instead_of: str | None = None,
        or_again: bool = False,
    ) -> Change | None:
        candidates = catalog.candidates(channel.channel_id)
        if candidates.basis is Basis.REPORTS:
            return self._elect_by_reports(catalog, channel, candidates.nodes, candidates.waiting_for, now_ms)
        able = [node for node in candidates.nodes if node != instead_of]
        heard = [node for node in able if not self._is_silent(node, channel, now_ms)]
        chosen = winner(
            heard or able,
            pinned=channel.config.leader_pinned,
            median_rtt_us=lambda node: self._proximity.median_rtt_us(
                node, [other for other in channel.replicas if other != node]
            ),
        )
        if chosen is None and or_again and instead_of in candidates.nodes:
            if now_ms - self._again_ms.get(channel.channel_id, -AGAIN_MS) < AGAIN_MS:
                return None
            self._again_ms[channel.channel_id] = now_ms
            chosen = instead_of  # nobody else holds everything: it leads again, in an epoch of its own
        if chosen is None:
            return None  # NoEligible: tried again
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
                or (member.node == instead_of and self._is_silent(member.node, channel, now_ms))
            )
        )
        return _without(catalog, elected, gone)

    def _elect_by_reports(
        self,
        catalog: Catalog,
        channel: ChannelRecord,
        nodes: tuple[str, ...],
        waiting_for: tuple[str, ...],
        now_ms: int,
    ) -> Change | None:
        """Every holder is in doubt: once all have said how far their logs go, the longest leads (R5)."""
        if waiting_for or not nodes:
            return None
        key = channel.channel_id
        questions = self._questions.get(key)
        if questions is None or questions.channel_epoch != channel.channel_epoch:
            questions = self._questions[key] = _Questions(channel.channel_epoch, -self._options.repeat_ms, {})
        active = {node: record.incarnation for node in nodes if (record := catalog.node(node)) is not None}
        answers = {node: facts for node, facts in questions.facts.items() if active.get(node) == facts.incarnation}
        if set(answers) != set(nodes):
            if now_ms - questions.asked_ms >= self._options.repeat_ms:
                questions.asked_ms = now_ms
                question = AskLog(channel_id=key, channel_epoch=channel.channel_epoch)
                self.messages += [(node, question) for node in nodes if node not in answers]
            self._due.add(key)
            return None
        del self._questions[key]
        reports = tuple(
            LogReport(node=node, incarnation=facts.incarnation, last_epoch=facts.last_epoch, log_end=facts.log_end)
            for node, facts in sorted(answers.items())
        )
        longest = max((report.last_epoch, report.log_end) for report in reports)
        leader = min(
            (report for report in reports if (report.last_epoch, report.log_end) == longest),
            key=lambda report: report.node,
        )
        self._say("elects by reports", channel=channel.name, leader=leader.node, log_end=leader.log_end)
        return ChangeLeader(
            channel_id=key,
            expected_channel_epoch=channel.channel_epoch,
            leader=leader.node,
            incarnation=leader.incarnation,
            at_ms=self._wall_ms(),
            reports=reports,
        )

    def _hand_back(self, catalog: Catalog, channel: ChannelRecord, now_ms: int) -> Change | None:
        """A pinned leader that is healthy again leads again, once it has settled."""
        pinned = channel.config.leader_pinned
        if pinned is None or channel.leader == pinned:
            self._leads_since.pop(channel.channel_id, None)
            return None
        candidates = catalog.candidates(channel.channel_id)
        able = candidates.nodes if candidates.basis is Basis.ISR else ()
        target = hand_back_to(leader=channel.leader, pinned=pinned, candidates=able)
        unable = (channel.channel_id, pinned) in self._unable
        if target is None or unable or self._is_silent(target, channel, now_ms):
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
        """A leader does not wait for members that are gone, or that gave their copy up."""
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
        """Bring the replicas in line with the factor and with who is there for good (CD3)."""
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
        # Whoever withdrew keeps its place while nobody can take it: it may come back.
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
            return ChangeLeader(
                channel_id=channel.channel_id,
                expected_channel_epoch=channel.channel_epoch,
                leader=heir.node,
                incarnation=heir.incarnation,
                at_ms=self._wall_ms(),
            )
        return AlterChannel(channel_id=channel.channel_id, expected_channel_epoch=channel.channel_epoch, replicas=meant)

    def node_loads(self, catalog: Catalog) -> dict[str, NodeLoad]:
        """What placement knows of every node."""
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


def _without(catalog: Catalog, elected: ChangeLeader, gone: tuple[str, ...]) -> Change:
    """The election, and in the same step nobody waits for those who are gone: their session may take longer to end than
    the channel's own patience."""
    if not gone:
        return elected
    shrunk = ShrinkIsr(
        channel_id=elected.channel_id,
        expected_channel_epoch=elected.expected_channel_epoch + 1,
        members=gone,
        reason=ShrinkReason.FENCED,
    )
    both = Batch(changes=(elected, shrunk))
    return elected if catalog.check(both) is not None else both


def _is_active(catalog: Catalog, node: str) -> bool:
    record = catalog.node(node)
    return record is not None and record.state is NodeState.ACTIVE


def _is_removed(catalog: Catalog, node: str) -> bool:
    record = catalog.node(node)
    return record is None or record.state is NodeState.REMOVED
