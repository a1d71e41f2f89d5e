"""The tables of the catalog, with rollback: the writes of a change can be undone until they are kept.

Rules write here as they go and raise when they refuse; `roll_back` then restores every table and index. So a batch is
all or nothing, a change is checked by applying it and rolling back, and nothing is copied: the cost of a change is that
of the records it touches.

What a caller must keep: every write happens between `begin` and `keep` or `roll_back`; nothing relies on the order of a
table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

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
)

GrantKey: TypeAlias = tuple[str, str, str]
EventKey: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """What a change wrote, each record once, in the order of writing. A created channel is the last one."""

    nodes: tuple[str, ...] = ()
    channels: tuple[int, ...] = ()
    producers: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()
    grants: tuple[GrantKey, ...] = ()
    groups: tuple[str, ...] = ()
    cluster: bool = False


NOTHING_TOUCHED = Touched()


class State:
    """All tables. Records are replaced whole."""

    def __init__(self) -> None:
        self.applied_index = 0
        self.cluster_id = ""
        self.next_channel_id = 1
        self.next_producer_id = 1
        self.nodes: dict[str, NodeRecord] = {}
        self.channels: dict[int, ChannelRecord] = {}
        self.tombstones: dict[int, Tombstone] = {}
        self.producers: dict[int, ProducerRecord] = {}
        self.tokens: dict[str, TokenRecord] = {}
        self.grants: dict[GrantKey, GrantRecord] = {}
        self.groups: dict[str, GroupRecord] = {}
        self.activity_events: dict[EventKey, ActivityEvent] = {}
        # Indexes: all can be rebuilt from the tables and none is in a snapshot.
        self.channel_ids: dict[str, int] = {}
        """By lower-case name: names that differ only in case would be one folder on some disks (I4)."""
        self.replica_of: dict[str, set[int]] = {}
        self.led_by: dict[str, set[int]] = {}
        self.producer_ids: dict[tuple[int, str], int] = {}
        self.producers_of: dict[int, set[int]] = {}
        self.token_names: dict[str, str] = {}
        """By digest of the secret."""
        self.grants_of: dict[str, set[GrantKey]] = {}
        """By principal, since every request asks for it."""
        self.coordinated_by: dict[str, set[str]] = {}
        self.channels_index = 0
        """At least the index at which a channel was last created or deleted."""
        self._undo: list[tuple[Callable[..., None], Any, Any]] = []

    # --- beginning and end of a change ---------------------------------------------------------------

    def begin(self) -> None:
        assert not self._undo, "C1: a change began inside another"

    def keep(self) -> Touched:
        """Keep the writes of the change; returns the records it touched."""
        touched = _touched(self._undo, self)
        self._undo.clear()
        return touched

    def roll_back(self) -> None:
        """Undo the writes of the change."""
        undo, self._undo = self._undo, []
        for put, key, before in reversed(undo):
            put(key, before)
        self._undo.clear()

    def copy_tables(self) -> State:
        """The tables of this moment, without indexes: records are immutable and shared."""
        assert not self._undo, "C1: a copy was taken inside a change"
        twin = State()
        for name in ("applied_index", "cluster_id", "next_channel_id", "next_producer_id"):
            setattr(twin, name, getattr(self, name))
        for name in ("nodes", "channels", "tombstones", "producers", "tokens", "grants", "groups", "activity_events"):
            setattr(twin, name, getattr(self, name).copy())
        return twin

    # --- writes --------------------------------------------------------------------------------------

    def put_number(self, name: str, value: int) -> None:
        """One of the counters."""
        self._undo.append((self.put_number, name, getattr(self, name)))
        setattr(self, name, value)

    def put_cluster(self, _key: None, cluster_id: str) -> None:
        self._undo.append((self.put_cluster, None, self.cluster_id))
        self.cluster_id = cluster_id

    def put_node(self, name: str, record: NodeRecord | None) -> None:
        self._undo.append((self.put_node, name, self.nodes.get(name)))
        _put(self.nodes, name, record)

    def put_channel(self, channel_id: int, record: ChannelRecord | None) -> None:
        before = self.channels.get(channel_id)
        self._undo.append((self.put_channel, channel_id, before))
        if before is None or record is None or before.replicas != record.replicas:
            self._index_replicas(channel_id, before.replicas if before else (), record.replicas if record else ())
        leader_before = before.leader if before else None
        leader = record.leader if record else None
        if leader_before != leader:
            if leader_before is not None:
                self.led_by[leader_before].discard(channel_id)
            if leader is not None:
                self.led_by.setdefault(leader, set()).add(channel_id)
        if before is None and record is not None:
            self.channel_ids[record.name.lower()] = channel_id
            self.channels_index = self.applied_index
        elif before is not None and record is None:
            del self.channel_ids[before.name.lower()]
            self.channels_index = self.applied_index
        _put(self.channels, channel_id, record)

    def _index_replicas(self, channel_id: int, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        for node in before:
            if node not in after:
                self.replica_of[node].discard(channel_id)
        for node in after:
            if node not in before:
                self.replica_of.setdefault(node, set()).add(channel_id)

    def put_tombstone(self, channel_id: int, record: Tombstone | None) -> None:
        self._undo.append((self.put_tombstone, channel_id, self.tombstones.get(channel_id)))
        _put(self.tombstones, channel_id, record)

    def put_producer(self, producer_id: int, record: ProducerRecord | None) -> None:
        before = self.producers.get(producer_id)
        self._undo.append((self.put_producer, producer_id, before))
        if before is None and record is not None:
            self.producer_ids[(record.channel_id, record.name)] = producer_id
            self.producers_of.setdefault(record.channel_id, set()).add(producer_id)
        elif before is not None and record is None:
            del self.producer_ids[(before.channel_id, before.name)]
            remaining = self.producers_of[before.channel_id]
            remaining.discard(producer_id)
            if not remaining:
                del self.producers_of[before.channel_id]
        _put(self.producers, producer_id, record)

    def put_token(self, name: str, record: TokenRecord | None) -> None:
        before = self.tokens.get(name)
        self._undo.append((self.put_token, name, before))
        if before is not None:
            del self.token_names[before.digest]
        if record is not None:
            self.token_names[record.digest] = name
        _put(self.tokens, name, record)

    def put_grant(self, key: GrantKey, record: GrantRecord | None) -> None:
        self._undo.append((self.put_grant, key, self.grants.get(key)))
        keys = self.grants_of.setdefault(key[0], set())
        if record is not None:
            keys.add(key)
        else:
            keys.discard(key)
            if not keys:
                del self.grants_of[key[0]]
        _put(self.grants, key, record)

    def put_group(self, name: str, record: GroupRecord | None) -> None:
        before = self.groups.get(name)
        self._undo.append((self.put_group, name, before))
        coordinator_before = before.coordinator if before else None
        coordinator = record.coordinator if record else None
        if coordinator_before != coordinator:
            if coordinator_before is not None:
                self.coordinated_by[coordinator_before].discard(name)
            if coordinator is not None:
                self.coordinated_by.setdefault(coordinator, set()).add(name)
        _put(self.groups, name, record)

    def put_activity_event(self, key: EventKey, event: ActivityEvent | None) -> None:
        self._undo.append((self.put_activity_event, key, self.activity_events.get(key)))
        _put(self.activity_events, key, event)

    # --- questions that several rules ask -------------------------------------------------------------

    def is_live(self, node: str, incarnation: int) -> bool:
        """Whether this incarnation of the node is the one that is active now."""
        record = self.nodes.get(node)
        return record is not None and record.state is NodeState.ACTIVE and record.incarnation == incarnation

    def is_active(self, node: str) -> bool:
        record = self.nodes.get(node)
        return record is not None and record.state is NodeState.ACTIVE

    def is_trusted(self, channel_id: int, member: Member) -> bool:
        """Whether the member certainly still holds the records that its membership assumes (C5)."""
        record = self.nodes.get(member.node)
        if record is None or record.state not in (NodeState.ACTIVE, NodeState.FENCED):
            return False
        if member.incarnation < record.kept_since(member.keeps):
            return False
        return not any(
            damage.channel_id == channel_id and member.incarnation < damage.incarnation for damage in record.damaged
        )

    def has_live_leader(self, channel: ChannelRecord) -> bool:
        return channel.leader is not None and self.is_live(channel.leader, channel.leader_incarnation)

    def can_lead_now(self, channel: ChannelRecord) -> Iterator[Member]:
        """ISR members that are active and trusted."""
        for member in channel.isr:
            if self.is_active(member.node) and self.is_trusted(channel.channel_id, member):
                yield member


def _put(table: dict[Any, Any], key: Any, record: Any) -> None:
    if record is None:
        table.pop(key, None)
    else:
        table[key] = record


def _touched(undo: list[tuple[Callable[..., None], Any, Any]], state: State) -> Touched:
    if len(undo) == 1 and undo[0][0] == state.put_channel:
        return Touched(channels=(undo[0][1],))  # by far the most frequent
    keys: dict[str, dict[Any, None]] = {}
    for put, key, _ in undo:
        keys.setdefault(put.__name__, {})[key] = None
    return Touched(
        nodes=tuple(keys.get("put_node", ())),
        channels=tuple(keys.get("put_channel", ())),
        producers=tuple(keys.get("put_producer", ())),
        tokens=tuple(keys.get("put_token", ())),
        grants=tuple(keys.get("put_grant", ())),
        groups=tuple(keys.get("put_group", ())),
        cluster="put_cluster" in keys,
    )
