"""Which replica may lead a channel.

A leader must hold every committed record. Which replicas certainly do is decided here from the catalog alone, so that
no proposer can be wrong about it, however late its change arrives. In this order (C7):

1. an ISR member that is active and trusted;
2. an eligible member that is active and trusted: while the ISR was below its minimum nothing was committed without it
   (KIP-966), so it holds as much as the ISR does. Not while the channel has a leader. The metadata leader elects it if
   case 1 has no candidate, or if its log holds more than theirs (a disk that lost acked writes);
3. if no replica at all is trusted, whether active or not, the one with the largest (last epoch, log end), once every
   replica that is not removed has reported in its present incarnation (R5);
4. the replica that an operator names, at the cost of the records it lacks: the present leader, one of case 1 while
   there is no leader, or any replica while cases 1 and 2 have no candidate.

Cases 3 and 4 may lose records and are recorded. Case 3 waits for a trusted replica that is only fenced: it has
everything, and comes back or is removed by an operator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tidelog.core.catalog.changes import ChangeLeader
from tidelog.core.catalog.channel_config import is_text
from tidelog.core.catalog.channel_rules import channel_at, in_order, require_live, write_channel
from tidelog.core.catalog.records import (
    TEXT_BYTES_MAX,
    UNCLEAN_MAX,
    ChannelRecord,
    Member,
    NodeState,
    UncleanCause,
    UncleanElection,
)
from tidelog.core.catalog.state import State
from tidelog.errors import CatalogFull, InvalidChange, NotElectable, NothingToChange, NotInReplicas


class Basis(Enum):
    """Why a node may lead."""

    ISR = "isr"
    ELIGIBLE = "eligible"
    REPORTS = "reports"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The candidates that could lead a channel now. The metadata leader chooses among them (pinned, RTT, id: R8)."""

    basis: Basis
    """ISR or ELIGIBLE: elect one of `nodes`. REPORTS: get a report from each of `nodes` first, then elect the longest
    log."""
    nodes: tuple[str, ...]
    waiting_for: tuple[str, ...]
    """Replicas that are not active. Without candidates (or reports), one of these (or all) must come back."""


def change_leader(state: State, change: ChangeLeader, index: int) -> None:
    channel = channel_at(state, change.channel_id, change.expected_channel_epoch)
    if change.leader is None:
        _depose(state, channel, change, index)
        return
    if change.leader not in channel.replicas:
        raise NotInReplicas(channel=channel.name, node=change.leader)
    require_live(state, change.leader, change.incarnation)
    if change.operator:
        if change.reports or not is_text(change.operator, TEXT_BYTES_MAX):
            raise InvalidChange(kind="change_leader", problems=["an operator's name is short text, without reports"])
        _require_nobody_better(state, channel, change.leader)
        _elect_with_loss(state, channel, change, index, UncleanCause.OPERATOR)
    elif change.reports:
        _require_longest(state, channel, change)
        _elect_with_loss(state, channel, change, index, UncleanCause.REPORTS)
    else:
        _elect(state, channel, change.leader, change.incarnation, index)


def _depose(state: State, channel: ChannelRecord, change: ChangeLeader, index: int) -> None:
    if change.incarnation or change.reports or change.operator:
        raise InvalidChange(kind="change_leader", problems=["nobody has no incarnation, no reports and no operator"])
    if channel.leader is None:
        raise NothingToChange(state=f"channel {channel.name!r} has no leader")
    write_channel(state, channel, index, leader=None, leader_incarnation=0, leader_epoch=channel.leader_epoch + 1)


def _elect(state: State, channel: ChannelRecord, node: str, incarnation: int, index: int) -> None:
    """A replica that certainly holds everything (cases 1 and 2)."""
    member = channel.member(node)
    if member is not None and state.is_trusted(channel.channel_id, member):
        isr, eligible = channel.isr, channel.eligible
        if member.incarnation != incarnation:
            leads = replace(member, incarnation=incarnation)
            isr = tuple(leads if other.node == node else other for other in channel.isr)
    else:
        leads, others = _from_eligible(state, channel, node, incarnation)
        isr = (leads,)
        eligible = others
    write_channel(
        state,
        channel,
        index,
        leader=node,
        leader_incarnation=incarnation,
        leader_epoch=channel.leader_epoch + 1,
        isr=isr,
        eligible=eligible,
    )


def _from_eligible(
    state: State, channel: ChannelRecord, node: str, incarnation: int
) -> tuple[Member, tuple[Member, ...]]:
    """The ISR after the election: the member as leader, and which replicas stay eligible (C6)."""
    member = channel.eligible_member(node)
    if member is None and channel.member(node) is None:
        raise NotElectable(channel=channel.name, node=node, problem="it is neither in the ISR nor eligible")
    if member is None or not state.is_trusted(channel.channel_id, member):
        problem = "it may have lost records when it stopped and must catch up first"
        raise NotElectable(channel=channel.name, node=node, problem=problem)
    if state.has_live_leader(channel):
        problem = f"{channel.leader} of the ISR leads; an eligible replica takes its place once it does not"
        raise NotElectable(channel=channel.name, node=node, problem=problem)
    rest = [
        other
        for other in (*channel.isr, *channel.eligible)
        if other.node != node and state.is_trusted(channel.channel_id, other)
    ]
    return replace(member, incarnation=incarnation), in_order(channel.replicas, rest)


def _require_nobody_better(state: State, channel: ChannelRecord, node: str) -> None:
    """Case 4 is for when no replica can lead without loss: an operator's mistake must not cost records. The present
    leader, or a replica that could lead, may be named: its followers may then cut committed records, which they refuse
    otherwise."""
    standing = candidates(state, channel)
    named = node == channel.leader if state.has_live_leader(channel) else node in standing.nodes
    if standing.nodes and standing.basis is not Basis.REPORTS and not named:
        problem = f"{', '.join(standing.nodes)} can lead without loss; elect one of them, or stop their nodes first"
        raise NotElectable(channel=channel.name, node=node, problem=problem)


def _require_longest(state: State, channel: ChannelRecord, change: ChangeLeader) -> None:
    """Case 3: no replica is certain, all have reported, and none has a longer log."""
    assert change.leader is not None
    holders = _holders(state, channel)
    certain = [member.node for member in holders if state.is_trusted(channel.channel_id, member)]
    if certain:
        problem = f"{', '.join(certain)} certainly holds everything, so nobody else leads by its report"
        raise NotElectable(channel=channel.name, node=change.leader, problem=problem)
    names = [member.node for member in holders]
    reported = [report.node for report in change.reports]
    if sorted(reported) != sorted(names):
        problem = f"reports are needed of {', '.join(names) or 'nobody'}, once each"
        raise NotElectable(channel=channel.name, node=change.leader, problem=problem)
    for report in change.reports:
        require_live(state, report.node, report.incarnation)
    longest = max((report.last_epoch, report.log_end) for report in change.reports)
    best = [report.node for report in change.reports if (report.last_epoch, report.log_end) == longest]
    if change.leader not in best:
        problem = f"{', '.join(sorted(best))} has a longer log"
        raise NotElectable(channel=channel.name, node=change.leader, problem=problem)


def _elect_with_loss(
    state: State, channel: ChannelRecord, change: ChangeLeader, index: int, cause: UncleanCause
) -> None:
    """From here on the leader's log is the channel's log; other replicas catch up with it first."""
    assert change.leader is not None
    record = UncleanElection(
        leader_epoch=channel.leader_epoch + 1,
        leader=change.leader,
        cause=cause,
        operator=change.operator,
        at_ms=change.at_ms,
        index=index,
    )
    leads = Member(node=change.leader, incarnation=change.incarnation, keeps=channel.config.keeps)
    write_channel(
        state,
        channel,
        index,
        leader=change.leader,
        leader_incarnation=change.incarnation,
        leader_epoch=channel.leader_epoch + 1,
        isr=(leads,),
        eligible=(),
        unclean=(*_room_for_one(channel), record),
    )


def _room_for_one(channel: ChannelRecord) -> tuple[UncleanElection, ...]:
    """Elections by an operator are kept for ever; of the others the oldest is dropped."""
    if len(channel.unclean) < UNCLEAN_MAX:
        return channel.unclean
    for position, election in enumerate(channel.unclean):
        if election.cause is UncleanCause.REPORTS:
            return channel.unclean[:position] + channel.unclean[position + 1 :]
    raise CatalogFull(what=f"unclean elections of channel {channel.name!r}", count_max=UNCLEAN_MAX)


def _holders(state: State, channel: ChannelRecord) -> list[Member]:
    """Every ISR and eligible member whose node may still come back."""
    members = (*channel.isr, *channel.eligible)
    return [
        member
        for member in members
        if (record := state.nodes.get(member.node)) is not None and record.state is not NodeState.REMOVED
    ]


def candidates(state: State, channel: ChannelRecord) -> Candidates:
    """The candidates that `change_leader` would accept now, or the replicas to wait for."""
    holders = _holders(state, channel)
    away = tuple(member.node for member in holders if not state.is_active(member.node))
    ready = tuple(member.node for member in state.can_lead_now(channel))
    if ready:
        return Candidates(basis=Basis.ISR, nodes=ready, waiting_for=away)
    certain = [member for member in holders if state.is_trusted(channel.channel_id, member)]
    standing = tuple(member.node for member in certain if state.is_active(member.node))
    if certain:
        waiting = tuple(member.node for member in certain if member.node in away)
        return Candidates(basis=Basis.ELIGIBLE, nodes=standing, waiting_for=waiting)
    return Candidates(
        basis=Basis.REPORTS,
        nodes=tuple(member.node for member in holders if member.node not in away),
        waiting_for=away,
    )
