"""The whole catalog as bytes: for Raft's snapshots, and for comparing two nodes.

A header, then one canonical JSON object with every table sorted by its key. So equal states are equal bytes, whatever
way each node came to its state.

| offset | size | field |
|---|---|---|
| 0 | 8 | magic, `tidecat` and a newline |
| 8 | 4 | version, little-endian |
| 12 | 8 | length of the body, little-endian |
| 20 | 32 | SHA-256 of the bytes before it and of the body |
| 52 | | body |

A snapshot is not only checked against its checksum: the tables must also agree with each other, since the node that
restores it has nothing else to compare with.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from tidelog.core.catalog.changes import CATALOG_VERSION
from tidelog.core.catalog.channel_config import NUMBER_MAX
from tidelog.core.catalog.codec import dump, from_plain, load, to_plain
from tidelog.core.catalog.records import (
    CHANNELS_MAX,
    EVENTS_MAX,
    GRANTS_MAX,
    GROUPS_MAX,
    NODES_KNOWN_MAX,
    PRODUCERS_MAX,
    TOKENS_MAX,
    TOMBSTONES_MAX,
    ActivityEvent,
    ChannelRecord,
    GrantRecord,
    GroupRecord,
    NodeRecord,
    ProducerRecord,
    TokenRecord,
    Tombstone,
)
from tidelog.core.catalog.state import State
from tidelog.errors import CatalogCorrupt, CatalogVersion
from tidelog.units import MIB

MAGIC: Final = b"tidecat\n"
SNAPSHOT_BYTES_MAX: Final = 512 * MIB
_HEADER: Final = struct.Struct("<8sIQ")
_CHECKSUM_BYTES: Final = 32
_NUMBERS: Final = ("applied_index", "next_channel_id", "next_producer_id")
_TABLES: Final[tuple[tuple[str, type[Any], Callable[[Any], Any], int], ...]] = (
    ("nodes", NodeRecord, lambda record: record.node, NODES_KNOWN_MAX),
    ("channels", ChannelRecord, lambda record: record.channel_id, CHANNELS_MAX),
    ("tombstones", Tombstone, lambda record: record.channel_id, TOMBSTONES_MAX),
    ("producers", ProducerRecord, lambda record: record.producer_id, PRODUCERS_MAX),
    ("tokens", TokenRecord, lambda record: record.token, TOKENS_MAX),
    ("grants", GrantRecord, lambda record: (record.principal, record.scope, record.channels), GRANTS_MAX),
    ("groups", GroupRecord, lambda record: record.group, GROUPS_MAX),
    ("activity_events", ActivityEvent, lambda event: (event.index, event.position), EVENTS_MAX),
)
_LATER: Final = frozenset({"groups", "activity_events"})
"""Tables that came after the first catalogs were written: one without rows is left out, so that older catalogs keep
their bytes."""


def body_of(state: State) -> bytes:
    """The canonical bytes of the state (C14)."""
    plain: dict[str, Any] = {name: getattr(state, name) for name in _NUMBERS}
    plain["cluster_id"] = state.cluster_id
    for name, _, _, _ in _TABLES:
        table = getattr(state, name)
        if name in _LATER and not table:
            continue
        plain[name] = [to_plain(table[key]) for key in sorted(table)]
    return dump(plain)


def snapshot_of(state: State) -> bytes:
    body = body_of(state)
    header = _HEADER.pack(MAGIC, CATALOG_VERSION, len(body))
    return header + _checksum(header, body) + body


def _checksum(header: bytes, body: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(header)
    digest.update(body)
    return digest.digest()


def restore_state(data: bytes) -> State:
    """The state in a snapshot. Raises `CatalogVersion` or `CatalogCorrupt`; then the node gets it from a peer."""
    body = _checked_body(data)
    plain = load(body)
    names = {*_NUMBERS, "cluster_id", *(name for name, _, _, _ in _TABLES)}
    if type(plain) is not dict or not names - _LATER <= plain.keys():
        raise CatalogCorrupt(problem="a snapshot lacks one of its tables")
    if unknown := sorted(plain.keys() - names):
        raise CatalogVersion(problem=f"a snapshot has a table {unknown[0][:40]!a} that is not known")
    state = State()
    for name in _NUMBERS:
        number = plain[name]
        if type(number) is not int or not 0 <= number <= NUMBER_MAX:
            raise CatalogCorrupt(problem=f"{name} in a snapshot is not a number")
        setattr(state, name, number)
    if type(plain["cluster_id"]) is not str:
        raise CatalogCorrupt(problem="cluster_id in a snapshot is not text")
    state.cluster_id = plain["cluster_id"]
    for name, record_type, key_of, count_max in _TABLES:
        _fill(state, name, record_type, key_of, count_max, plain.get(name, []))
    state.channels_index = state.applied_index
    state.keep()
    for problem in contradictions(state):
        raise CatalogCorrupt(problem=f"a snapshot contradicts itself: {problem}")
    return state


def _checked_body(data: bytes) -> bytes:
    start = _HEADER.size + _CHECKSUM_BYTES
    if len(data) > SNAPSHOT_BYTES_MAX:
        raise CatalogCorrupt(problem=f"a snapshot of {len(data)} bytes is over the limit of {SNAPSHOT_BYTES_MAX}")
    if len(data) < start or data[: len(MAGIC)] != MAGIC:
        raise CatalogCorrupt(problem="these bytes are not a snapshot of a catalog")
    _, version, length = _HEADER.unpack_from(data)
    body = data[start:]
    if len(body) != length or data[_HEADER.size : start] != _checksum(data[: _HEADER.size], body):
        raise CatalogCorrupt(problem="a snapshot fails its checksum or is cut off")
    # After the checksum: a flipped bit must not look like a newer version.
    if version != CATALOG_VERSION:
        raise CatalogVersion(problem=f"a snapshot is of version {version}, this software reads {CATALOG_VERSION}")
    return body


def _fill(
    state: State, name: str, record_type: type[Any], key_of: Callable[[Any], Any], count_max: int, rows: Any
) -> None:
    if type(rows) is not list or len(rows) > count_max:
        raise CatalogCorrupt(problem=f"{name} in a snapshot is not a list of at most {count_max}")
    put = getattr(state, f"put_{name.removesuffix('s')}")
    last: Any = None
    for row in rows:
        record = from_plain(record_type, row)
        key = key_of(record)
        if last is not None and key <= last:
            raise CatalogCorrupt(problem=f"{name} in a snapshot is not in order")
        if name == "channels" and record.name.lower() in state.channel_ids:
            raise CatalogCorrupt(problem=f"two channels are named {record.name!a}")
        if name == "producers" and (record.channel_id, record.name) in state.producer_ids:
            raise CatalogCorrupt(problem=f"two producers of a channel are named {record.name!a}")
        if name == "tokens" and record.digest in state.token_names:
            raise CatalogCorrupt(problem=f"token {record.token!a} has the digest of another one")
        put(key, record)
        last = key


# --- what must agree ---------------------------------------------------------------------------------


def contradictions(state: State) -> Iterator[str]:
    """Every rule that the tables break. Always empty; tests assert it after each change."""
    for channel in state.channels.values():
        for problem in _channel_contradictions(state, channel):
            yield f"channel {channel.name!r}: {problem}"
    for channel_id in state.tombstones:
        if channel_id in state.channels or channel_id >= state.next_channel_id:
            yield f"C9: id {channel_id} is deleted and in use"
    for producer in state.producers.values():
        if producer.channel_id not in state.channels or producer.producer_id >= state.next_producer_id:
            yield f"C9: producer {producer.producer_id} has no channel, or an id that was never given out"
    for group in state.groups.values():
        for problem in _group_contradictions(group):
            yield f"group {group.group!r}: {problem}"
    for node in state.nodes.values():
        if max(node.memory_since, node.written_since, node.synced_since) > node.incarnation:
            yield f"C10: node {node.node!r} has lost something in an incarnation it never had"
        if not node.memory_since >= node.written_since >= node.synced_since:
            yield f"C5: node {node.node!r} kept more of what is weaker"


def _group_contradictions(group: GroupRecord) -> Iterable[str]:
    names = [member.member for member in group.members]
    if not names or names != sorted(set(names)):
        yield "C15: it has no members, or not in order"
    assigned = [channel_id for member in group.members for channel_id in member.assigned]
    if len(set(assigned)) != len(assigned):
        yield "C15: a channel has two readers"
    if any(list(member.assigned) != sorted(member.assigned) for member in group.members):
        yield "C15: assigned channels are not in order"
    if any(not 1 <= member.life <= group.changed_index for member in group.members):
        yield "C15: a member joined after the group last changed"


def _channel_contradictions(state: State, channel: ChannelRecord) -> Iterable[str]:
    isr = [member.node for member in channel.isr]
    eligible = [member.node for member in channel.eligible]
    if not 1 <= channel.channel_id < state.next_channel_id:
        yield "C9: its id was never given out"
    if not isr:
        yield "C3: the ISR is empty"
    if len(set(isr + eligible)) != len(isr + eligible):
        yield "C3: a node holds two places"
    if not set(isr + eligible) <= set(channel.replicas) or len(set(channel.replicas)) != len(channel.replicas):
        yield "C3: the ISR and the eligible are not among the replicas"
    if channel.leader is not None and channel.leader not in isr:
        yield "C3: the leader is outside the ISR"
    if channel.eligible and len(isr) >= channel.config.effective_min_isr:
        yield "C6: there are eligible replicas beside a full ISR"
    if channel.leader_epoch < 1 or channel.channel_epoch < channel.leader_epoch:
        yield "C2: the leader epoch is ahead of the channel epoch"
    for member in (*channel.isr, *channel.eligible):
        node = state.nodes.get(member.node)
        if node is None or member.incarnation > node.incarnation:
            yield f"C4: {member.node!r} is a member as an incarnation it never had"
