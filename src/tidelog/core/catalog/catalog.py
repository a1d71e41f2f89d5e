"""The catalog: the state machine that Raft applies, the same on every node.

Nothing here does I/O or knows the time. A proposer calls `check`, encodes the change and proposes it to Raft; every
node then calls `apply` with the entry's index and gets the same answer. The state may have changed between the two, so
`apply` checks everything again: what was true at the time of the proposal does not count.

What a caller must keep: apply every change of the log once, in order, on every node; when `decode_change` or
`restore` raises, stop applying (see there). One thread at a time: `check` writes and takes back.

C1   The index only rises. A change is applied whole or refused whole, and a refusal is an answer, not an exception.
C2   A change of a channel carries the channel epoch it was decided on, takes effect only on that one, and raises it; a
     change of the leader raises the leader epoch too. Of two changes for one epoch exactly one takes effect.
C3   The ISR is never empty; ISR and eligible replicas are disjoint and among the replicas; the leader is in the ISR.
C4   Only an active node, in its present incarnation, is elected or joins an ISR.
C5   A member is trusted only while its node has lost none of the records that its membership assumes (R5). Only trusted
     members are elected.
C6   Eligible replicas exist only while the ISR is below its minimum: nothing was committed without them (KIP-966).
C7   Leaders come from the ISR, else from the eligible, else by the reports of all holders, else from an operator; the
     last two are recorded.
C8   A replica is removed only while a live replica is left that certainly holds everything.
C9   Ids of channels and producers are never used twice; a deletion leaves a tombstone (S2).
C10  An incarnation only rises. A fenced node comes back only by registering as a higher one.
C11  A node is removed only if no channel depends on it, or by force. If its name returns, none of its old copies is
     trusted.
C12  Everything has a limit, and reaching it is a typed refusal.
C13  The secret of a token is never here.
C14  Equal changes make equal bytes: on every node, with or without a snapshot in between.
C15  A channel has at most one reader in a group. A group's epoch rises with every change of its members or of their
     assignments; a process that joins under a name in use fences the earlier member. A group without members is
     deleted.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self

from tidelog.core.catalog import (
    access_rules,
    activity_rules,
    changes,
    channel_rules,
    election_rules,
    group_rules,
    node_rules,
)
from tidelog.core.catalog.changes import BATCH_MAX, Batch, Change, SingleChange
from tidelog.core.catalog.election_rules import Candidates, candidates
from tidelog.core.catalog.records import (
    ActivityEvent,
    ChannelRecord,
    GrantRecord,
    GroupRecord,
    Member,
    NodeRecord,
    NodeState,
    ProducerRecord,
    TokenRecord,
    Tombstone,
    pattern_matches,
)
from tidelog.core.catalog.refusals import rule_of
from tidelog.core.catalog.snapshot import body_of, contradictions, restore_state, snapshot_of
from tidelog.core.catalog.state import NOTHING_TOUCHED, State, Touched
from tidelog.errors import InvalidChange, LogError, UnknownChannel

_RULES: Final[dict[type[Any], Callable[[State, Any, int], None]]] = {
    changes.FoundCluster: node_rules.found_cluster,
    changes.AdmitNode: node_rules.admit_node,
    changes.RegisterNode: node_rules.register_node,
    changes.UpdateNode: node_rules.update_node,
    changes.FenceNode: node_rules.fence_node,
    changes.RemoveNode: node_rules.remove_node,
    changes.CreateChannel: channel_rules.create_channel,
    changes.AdoptChannel: channel_rules.adopt_channel,
    changes.ChangeLeader: election_rules.change_leader,
    changes.ShrinkIsr: channel_rules.shrink_isr,
    changes.ExpandIsr: channel_rules.expand_isr,
    changes.AlterChannel: channel_rules.alter_channel,
    changes.PauseChannel: channel_rules.pause_channel,
    changes.ResumeChannel: channel_rules.resume_channel,
    changes.SetReadonly: channel_rules.set_readonly,
    changes.RaiseChannelEpoch: channel_rules.raise_channel_epoch,
    changes.DeleteChannel: channel_rules.delete_channel,
    changes.OpenProducer: access_rules.open_producer,
    changes.CloseProducer: access_rules.close_producer,
    changes.AddToken: access_rules.add_token,
    changes.RevokeToken: access_rules.revoke_token,
    changes.RemoveToken: access_rules.remove_token,
    changes.AddGrant: access_rules.add_grant,
    changes.RemoveGrant: access_rules.remove_grant,
    changes.JoinGroup: group_rules.join_group,
    changes.LeaveGroup: group_rules.leave_group,
    changes.ExpelMember: group_rules.expel_member,
    changes.ChangeCoordinator: group_rules.change_coordinator,
    changes.BalanceGroup: group_rules.balance_group,
    changes.DeleteGroup: group_rules.delete_group,
    changes.ForgetActivity: activity_rules.forget_activity,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a change had no effect."""

    error: LogError
    """The typed error that a caller raises or answers with."""
    rule: str
    """The number of the rule in this module's docstring."""
    position: int = 0
    """Which change of a batch, from 0."""

    @property
    def code(self) -> str:
        return self.error.code

    def __str__(self) -> str:
        return f"{self.error} ({self.rule})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The outcome of a change."""

    index: int
    change: Change
    refusal: Refusal | None
    touched: Touched

    def raise_refusal(self) -> None:
        if self.refusal is not None:
            raise self.refusal.error


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogStatistics:
    """Counts for status pages and metrics."""

    applied_index: int
    nodes: int
    """Without the removed ones."""
    nodes_active: int
    channels: int
    producers: int
    tokens: int
    grants: int
    groups: int
    changes_applied: int
    """Counted since this object was made, like those below."""
    changes_refused: int


class Catalog:
    """One node's copy of the catalog."""

    def __init__(self, state: State | None = None) -> None:
        self._state = State() if state is None else state
        self._changes_applied = 0
        self._changes_refused = 0

    # --- changes -------------------------------------------------------------------------------------

    def apply(self, index: int, change: Change) -> Applied:
        """Apply a committed change. A refused one is counted and answered, and changes nothing but the index (C1)."""
        self.advance(index)
        refusal = self._attempt(index, change)
        if refusal is None:
            self._changes_applied += 1
            return Applied(index=index, change=change, refusal=None, touched=self._state.keep())
        self._state.roll_back()
        self._changes_refused += 1
        return Applied(index=index, change=change, refusal=refusal, touched=NOTHING_TOUCHED)

    def advance(self, index: int) -> None:
        """An entry of the log that holds no change, such as a new Raft leader's first."""
        assert index > self._state.applied_index, "C1: the index only rises"
        self._state.applied_index = index

    def check(self, change: Change) -> Refusal | None:
        """What `apply` would answer now. A proposer that checks first saves a Raft round; the answer may change before
        `apply`."""
        refusal = self._attempt(self._state.applied_index + 1, change)
        self._state.roll_back()
        return refusal

    def _attempt(self, index: int, change: Change) -> Refusal | None:
        """Write the change to the state; the caller keeps it or rolls it back."""
        self._state.begin()
        done = 0
        try:
            for single in _singles(change):
                event = activity_rules.event_of(self._state, single, index, done)
                _RULES[type(single)](self._state, single, index)
                if event is not None:
                    activity_rules.note(self._state, event)
                done += 1
        except LogError as error:
            return Refusal(error=error, rule=rule_of(error), position=done)
        except BaseException:
            self._state.roll_back()
            raise
        return None

    # --- as bytes ------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Everything, canonical and checksummed (C14)."""
        return snapshot_of(self._state)

    def snapshot_of_now(self) -> Callable[[], bytes]:
        """A function that makes the snapshot of this moment, at any time and in any thread, while changes go on being
        applied.

        With thousands of channels a snapshot takes long enough to delay heartbeats; this call does not.
        """
        return partial(snapshot_of, self._state.copy_tables())

    @classmethod
    def restore(cls, data: bytes) -> Self:
        """Raises `CatalogVersion` or `CatalogCorrupt`; the node then learns the catalog from a peer, and serves
        nothing."""
        return cls(restore_state(data))

    def digest(self) -> bytes:
        """For comparing two nodes at the same index. Costs as much as a snapshot."""
        return hashlib.sha256(body_of(self._state)).digest()

    def contradictions(self) -> list[str]:
        """Rules that the state breaks; always empty, and checkers assert it."""
        return list(contradictions(self._state))

    # --- nodes ---------------------------------------------------------------------------------------

    @property
    def applied_index(self) -> int:
        return self._state.applied_index

    @property
    def cluster_id(self) -> str:
        """Empty until the cluster is founded."""
        return self._state.cluster_id

    def node(self, node: str) -> NodeRecord | None:
        return self._state.nodes.get(node)

    def nodes(self) -> list[NodeRecord]:
        """Nodes that are not removed, by name."""
        found = (record for record in self._state.nodes.values() if record.state is not NodeState.REMOVED)
        return sorted(found, key=lambda record: record.node)

    def version_read_by_all(self) -> int:
        """The newest version of changes that every node reads. No newer one may be proposed."""
        versions = [record.catalog_version for record in self.nodes() if record.state is not NodeState.EXPECTED]
        return min(versions, default=changes.CATALOG_VERSION)

    # --- channels ------------------------------------------------------------------------------------

    def channel(self, name_or_id: str | int) -> ChannelRecord | None:
        if isinstance(name_or_id, int):
            return self._state.channels.get(name_or_id)
        channel_id = self._state.channel_ids.get(name_or_id.lower())
        found = self._state.channels[channel_id] if channel_id is not None else None
        return found if found is not None and found.name == name_or_id else None

    def channels(self) -> list[ChannelRecord]:
        """All channels, by id."""
        return self._sorted(self._state.channels)

    def channels_on(self, node: str) -> list[ChannelRecord]:
        """Channels with a replica on the node."""
        return self._sorted(self._state.replica_of.get(node, ()))

    def replica_count(self, node: str) -> int:
        return len(self._state.replica_of.get(node, ()))

    def leader_count(self, node: str) -> int:
        return len(self._state.led_by.get(node, ()))

    def has_live_leader(self, channel: ChannelRecord) -> bool:
        """Whether its leader is active in the incarnation that was elected."""
        return self._state.has_live_leader(channel)

    def was_deleted(self, channel_id: int) -> bool:
        """Whether the id was given out and its channel deleted. Only then may a node delete what it holds under it."""
        return 0 < channel_id < self._state.next_channel_id and channel_id not in self._state.channels

    def tombstones(self) -> list[Tombstone]:
        """The latest deletions, by id."""
        return [self._state.tombstones[channel_id] for channel_id in sorted(self._state.tombstones)]

    def candidates(self, channel_id: int) -> Candidates:
        """The candidates that could lead the channel now, and the nodes that it waits for (C7)."""
        return candidates(self._state, self._known(channel_id))

    def is_trusted(self, channel_id: int, member: Member) -> bool:
        """Whether the member certainly still holds the records that its membership assumes, as far as nodes have said
        (C5)."""
        return self._state.is_trusted(channel_id, member)

    def doubtful(self, channel_id: int) -> tuple[str, ...]:
        """ISR members that may have lost records and must be confirmed by `ExpandIsr` once they have caught up (C5)."""
        channel = self._known(channel_id)
        return tuple(member.node for member in channel.isr if not self._state.is_trusted(channel_id, member))

    def _known(self, channel_id: int) -> ChannelRecord:
        channel = self._state.channels.get(channel_id)
        if channel is None:
            raise UnknownChannel(channel=f"id {channel_id}")
        return channel

    def _sorted(self, channel_ids: Iterable[int]) -> list[ChannelRecord]:
        return [self._state.channels[channel_id] for channel_id in sorted(channel_ids)]

    # --- producers, tokens, grants -------------------------------------------------------------------

    def producer(self, producer_id: int) -> ProducerRecord | None:
        return self._state.producers.get(producer_id)

    def producer_named(self, channel_id: int, name: str) -> ProducerRecord | None:
        producer_id = self._state.producer_ids.get((channel_id, name))
        return self._state.producers[producer_id] if producer_id is not None else None

    @property
    def channel_count(self) -> int:
        return len(self._state.channels)

    @property
    def producer_count(self) -> int:
        return len(self._state.producers)

    def was_opened(self, producer_id: int) -> bool:
        """Whether a producer has or had this id (C9)."""
        return producer_id < self._state.next_producer_id

    def producers_of(self, channel_id: int) -> list[ProducerRecord]:
        return [self._state.producers[key] for key in sorted(self._state.producers_of.get(channel_id, ()))]

    def token(self, name: str) -> TokenRecord | None:
        return self._state.tokens.get(name)

    def grants(self, principal: str | None = None) -> list[GrantRecord]:
        keys = self._state.grants if principal is None else self._state.grants_of.get(principal, ())
        return [self._state.grants[key] for key in sorted(keys)]

    def allows(self, principal: str, scope: str, channel: str, now_ms: int) -> bool:
        """Whether a grant, or a good token's own scopes, let the principal do this on this channel."""
        kind, _, name = principal.partition(":")
        if kind == "token":
            token = self._state.tokens.get(name)
            if token is None or not token.is_good(now_ms):
                return False
            if scope in token.scopes and any(pattern_matches(pattern, channel) for pattern in token.channels):
                return True
        return any(
            grant.scope == scope and pattern_matches(grant.channels, channel) for grant in self.grants(principal)
        )

    # --- groups --------------------------------------------------------------------------------------

    def group(self, name: str) -> GroupRecord | None:
        return self._state.groups.get(name)

    def groups(self) -> list[GroupRecord]:
        """All groups, by name."""
        return [self._state.groups[name] for name in sorted(self._state.groups)]

    def groups_coordinated_by(self, node: str) -> list[GroupRecord]:
        return [self._state.groups[name] for name in sorted(self._state.coordinated_by.get(node, ()))]

    def group_count(self, node: str) -> int:
        """How many groups the node coordinates."""
        return len(self._state.coordinated_by.get(node, ()))

    def groups_needing_coordinator(self) -> list[GroupRecord]:
        """Groups whose coordinator is not active."""
        idle = [node for node in self._state.coordinated_by if not self._state.is_active(node)]
        return [group for node in sorted(idle) for group in self.groups_coordinated_by(node)]

    @property
    def channels_index(self) -> int:
        """At least the index at which a channel was last created or deleted."""
        return self._state.channels_index

    def needs_balance(self, group: GroupRecord) -> bool:
        """Whether channels were created or deleted since the group last changed, so that its assignments are out of
        date. Looks at every channel, unless none was created or deleted at all."""
        return group_rules.needs_balance(self._state, group)

    def activity(self, count: int) -> list[ActivityEvent]:
        """The oldest events that wait to be published."""
        keys = heapq.nsmallest(count, self._state.activity_events)
        return [self._state.activity_events[key] for key in keys]

    def statistics(self) -> CatalogStatistics:
        nodes = self.nodes()
        return CatalogStatistics(
            applied_index=self._state.applied_index,
            nodes=len(nodes),
            nodes_active=sum(record.state is NodeState.ACTIVE for record in nodes),
            channels=len(self._state.channels),
            producers=len(self._state.producers),
            tokens=len(self._state.tokens),
            grants=len(self._state.grants),
            groups=len(self._state.groups),
            changes_applied=self._changes_applied,
            changes_refused=self._changes_refused,
        )


def _singles(change: Change) -> tuple[SingleChange, ...]:
    if not isinstance(change, Batch):
        return (change,)
    if not 1 <= len(change.changes) <= BATCH_MAX:
        problem = f"a batch holds 1 to {BATCH_MAX} changes, this one {len(change.changes)}"
        raise InvalidChange(kind="batch", problems=[problem])
    return change.changes
