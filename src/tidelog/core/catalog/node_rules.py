"""Changes of nodes: admission, registration, fencing and removal.

Every function takes the state and one change, writes the outcome, and raises a typed error to refuse it. The rules by
number are in `catalog`; what a node has lost by the time it registers (R5) is decided in `_kept`.
"""

from __future__ import annotations

from dataclasses import replace

from tidelog.core.catalog.changes import AdmitNode, FenceNode, FoundCluster, RegisterNode, RemoveNode, UpdateNode
from tidelog.core.catalog.channel_config import is_node_name, is_text
from tidelog.core.catalog.records import (
    ADDRESSES_MAX,
    DAMAGED_MAX,
    HEX_ID,
    NODES_KNOWN_MAX,
    NODES_MAX,
    TAGS_MAX,
    TEXT_BYTES_MAX,
    ChannelRecord,
    Damage,
    NodeRecord,
    NodeState,
)
from tidelog.core.catalog.state import State
from tidelog.errors import (
    CatalogFull,
    InvalidChange,
    NodeExists,
    NodeFenced,
    NodeHolds,
    NothingToChange,
    StaleIncarnation,
    UnknownNode,
)

_NAMED_MAX = 20
"""The most channels that a refusal names; for the rest it gives their number."""


def found_cluster(state: State, change: FoundCluster, index: int) -> None:
    if not HEX_ID.fullmatch(change.cluster_id):
        raise InvalidChange(kind="found_cluster", problems=["a cluster id is 8 to 64 lower-case hex digits"])
    if state.cluster_id:
        raise NothingToChange(state=f"this is cluster {state.cluster_id}")
    state.put_cluster(None, change.cluster_id)


def admit_node(state: State, change: AdmitNode, index: int) -> None:
    if not is_node_name(change.node):
        raise InvalidChange(kind="admit_node", problems=[f"{change.node!a} is not a node id"])
    record = state.nodes.get(change.node)
    if record is not None and record.state is not NodeState.REMOVED:
        raise NodeExists(node=change.node, held=change.node)
    lowered = change.node.lower()
    twins = [name for name in state.nodes if name.lower() == lowered and name != change.node]
    if twins:
        raise NodeExists(node=change.node, held=min(twins))
    if sum(known.state is not NodeState.REMOVED for known in state.nodes.values()) >= NODES_MAX:
        raise CatalogFull(what="nodes", count_max=NODES_MAX)
    if record is None and len(state.nodes) >= NODES_KNOWN_MAX:
        raise CatalogFull(what="nodes, removed ones included,", count_max=NODES_KNOWN_MAX)
    known_incarnation = record.incarnation if record is not None else 0
    state.put_node(
        change.node,
        NodeRecord(node=change.node, state=NodeState.EXPECTED, incarnation=known_incarnation, changed_index=index),
    )


def register_node(state: State, change: RegisterNode, index: int) -> None:
    record = _known_node(state, change.node)
    problems = _registration_problems(change)
    # A copied data folder under another name would bring copies of logs that both nodes then write.
    owners = [other.node for other in state.nodes.values() if other.disk_id == change.disk_id != ""]
    problems += [f"disk {change.disk_id} is that of node {owner!r}" for owner in sorted(owners) if owner != change.node]
    if problems:
        raise InvalidChange(kind="register_node", problems=problems)
    # The only way back from a fence; it also fences every older process of this name (C10).
    if change.incarnation <= record.incarnation:
        raise StaleIncarnation(node=change.node, given=change.incarnation, known=record.incarnation)
    memory_since, written_since, synced_since = _kept(record, change)
    damaged = _damaged(state, record, change)
    if len(damaged) > DAMAGED_MAX:
        # Not worth telling them apart: the disk cannot be trusted.
        damaged, written_since, synced_since = (), change.incarnation, change.incarnation
        memory_since = change.incarnation
    state.put_node(
        change.node,
        NodeRecord(
            node=change.node,
            state=NodeState.ACTIVE,
            incarnation=change.incarnation,
            addresses=change.addresses,
            host=change.host,
            tags=change.tags,
            capacity_bytes=change.capacity_bytes,
            software=change.software,
            catalog_version=change.catalog_version,
            disk_id=change.disk_id,
            process_id=change.process_id,
            memory_since=memory_since,
            written_since=written_since,
            synced_since=synced_since,
            damaged=damaged,
            changed_index=index,
            registered_at_ms=change.at_ms,
        ),
    )


def _same_disk(record: NodeRecord, change: RegisterNode) -> bool:
    """Whether this is the disk that was there, in its newest state: neither another disk nor an older copy.

    The process that is registered may not know its newest incarnation: it asked again before the answer arrived.
    """
    knows_newest = change.known_incarnation >= record.incarnation or change.process_id == record.process_id
    return bool(record.disk_id) and change.disk_id == record.disk_id and knows_newest


def _kept(record: NodeRecord, change: RegisterNode) -> tuple[int, int, int]:
    """The incarnations since which memory, written bytes and synced bytes were kept (R5)."""
    now = change.incarnation
    if not _same_disk(record, change) or not change.verified:
        return now, now, now
    if change.process_id == record.process_id:
        return record.memory_since, record.written_since, record.synced_since
    if change.clean_incarnation == record.incarnation:
        return now, record.written_since, record.synced_since
    return now, now, record.synced_since


def _damaged(state: State, record: NodeRecord, change: RegisterNode) -> tuple[Damage, ...]:
    """Old entries that still matter and the new ones, by channel."""
    if not _same_disk(record, change) or not change.verified:
        return ()  # everything may be lost already
    found = {damage.channel_id: damage for damage in record.damaged if _still_matters(state, record.node, damage)}
    for channel_id in change.damaged_channels:
        found[channel_id] = Damage(channel_id=channel_id, incarnation=change.incarnation)
    return tuple(found[channel_id] for channel_id in sorted(found))


def _still_matters(state: State, node: str, damage: Damage) -> bool:
    channel = state.channels.get(damage.channel_id)
    if channel is None:
        return False
    member = channel.member(node) or channel.eligible_member(node)
    return member is not None and member.incarnation < damage.incarnation


def update_node(state: State, change: UpdateNode, index: int) -> None:
    record = _known_node(state, change.node)
    if change.expected_incarnation != record.incarnation:
        raise StaleIncarnation(node=change.node, given=change.expected_incarnation, known=record.incarnation)
    updated = replace(
        record,
        addresses=record.addresses if change.addresses is None else change.addresses,
        host=record.host if change.host is None else change.host,
        tags=record.tags if change.tags is None else change.tags,
        capacity_bytes=record.capacity_bytes if change.capacity_bytes is None else change.capacity_bytes,
        changed_index=index,
    )
    if problems := _fact_problems(updated.addresses, updated.host, updated.tags):
        raise InvalidChange(kind="update_node", problems=problems)
    if updated == replace(record, changed_index=index):
        raise NothingToChange(state=f"node {change.node!r} is so")
    state.put_node(change.node, updated)


def fence_node(state: State, change: FenceNode, index: int) -> None:
    record = _known_node(state, change.node)
    if change.expected_incarnation != record.incarnation:
        raise StaleIncarnation(node=change.node, given=change.expected_incarnation, known=record.incarnation)
    if record.state is not NodeState.ACTIVE:
        raise NodeFenced(node=change.node, state=record.state.value)
    # ISRs and leaders stay as they are: each channel changes by its own compare-and-set (C2). Until then the fence
    # alone keeps the node from leading and joining.
    state.put_node(change.node, replace(record, state=NodeState.FENCED, changed_index=index))


def remove_node(state: State, change: RemoveNode, index: int) -> None:
    record = _known_node(state, change.node)
    if not change.force:
        held = [
            channel.name
            for channel_id in state.replica_of.get(change.node, ())
            if _rests_on(state, channel := state.channels[channel_id], change.node)
        ]
        if held:
            held.sort()
            raise NodeHolds(node=change.node, channels=held[:_NAMED_MAX], count=len(held))
    # A node that returns under this name has to catch up first: its disk counts as another one.
    state.put_node(
        change.node,
        replace(record, state=NodeState.REMOVED, disk_id="", process_id="", damaged=(), changed_index=index),
    )


def _rests_on(state: State, channel: ChannelRecord, node: str) -> bool:
    """Whether the channel is led by the node, or has no other live replica that holds everything (C11)."""
    if channel.leader == node:
        return True
    if channel.member(node) is None and channel.eligible_member(node) is None:
        return False
    return all(member.node == node for member in state.can_lead_now(channel))


def _known_node(state: State, node: str) -> NodeRecord:
    record = state.nodes.get(node)
    if record is None or record.state is NodeState.REMOVED:
        raise UnknownNode(node=node)
    return record


def _registration_problems(change: RegisterNode) -> list[str]:
    found = _fact_problems(change.addresses, change.host, change.tags)
    if change.known_incarnation >= change.incarnation:
        found.append("known_incarnation must be below incarnation")
    if not HEX_ID.fullmatch(change.disk_id):
        found.append("disk_id must be 8 to 64 lower-case hex digits")
    if not HEX_ID.fullmatch(change.process_id):
        found.append("process_id must be 8 to 64 lower-case hex digits")
    if not is_text(change.software, TEXT_BYTES_MAX):
        found.append(f"software must be printable ASCII of at most {TEXT_BYTES_MAX} bytes")
    if len(change.damaged_channels) > DAMAGED_MAX:
        found.append(
            f"damaged_channels has {len(change.damaged_channels)} entries; above {DAMAGED_MAX} say verified=False"
        )
    if list(change.damaged_channels) != sorted(set(change.damaged_channels)):
        found.append("damaged_channels must be sorted, each channel once")
    return found


def _fact_problems(addresses: tuple[tuple[str, str], ...], host: str, tags: tuple[str, ...]) -> list[str]:
    found = []
    listeners = [listener for listener, _ in addresses]
    if listeners != sorted(set(listeners)) or len(listeners) > ADDRESSES_MAX:
        found.append(f"addresses must be sorted by listener, each listener once, at most {ADDRESSES_MAX}")
    texts = [text for address in addresses for text in address]
    if not all(listeners) or not all(is_text(text, TEXT_BYTES_MAX) for text in texts):
        found.append(f"addresses must be printable ASCII of at most {TEXT_BYTES_MAX} bytes")
    if not is_text(host, TEXT_BYTES_MAX):
        found.append(f"host must be printable ASCII of at most {TEXT_BYTES_MAX} bytes")
    if list(tags) != sorted(set(tags)) or len(tags) > TAGS_MAX:
        found.append(f"tags must be sorted, each once, at most {TAGS_MAX}")
    if not all(tag and is_text(tag, TEXT_BYTES_MAX) for tag in tags):
        found.append(f"tags must be printable ASCII of at most {TEXT_BYTES_MAX} bytes")
    return found
