"""The channels of the cluster as plain JSON, as one node sees them: for status pages, tools and metrics.

The catalog's part is the same on every node; `here` is about this node's own replica only.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Any, Final
from weakref import WeakKeyDictionary

from tidelog.cluster.node.core import NodeCore
from tidelog.cluster.replication.lag import channel_tag, statistics_of
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.status.chain_holders import find_chain_holders, holds_chain
from tidelog.codecs.client_codec import channel_json
from tidelog.core.catalog import Catalog, ChannelRecord

STATES: Final = ("ok", "paused", "leaderless", "below_min_isr", "under_replicated")
"""The state of a channel, from the catalog alone. The first that holds counts, in the order of `channel_state`."""

_counted: Final[WeakKeyDictionary[Catalog, tuple[int, Counter[str]]]] = WeakKeyDictionary()
"""(applied index, channels by state) of a catalog."""


def channel_state(catalog: Catalog, channel: ChannelRecord) -> str:
    """The state in one word, worst first: no leader, no writes, fewer copies in sync than configured."""
    if channel.paused:
        return "paused"
    if not catalog.has_live_leader(channel):
        return "leaderless"
    if len(channel.isr) < channel.config.effective_min_isr:
        return "below_min_isr"
    return "ok" if len(channel.isr) >= channel.config.effective_factor else "under_replicated"


def channels_summary(core: NodeCore) -> dict[str, int]:
    """How many there are, how many have problems, and how many this node has."""
    catalog = core.catalog
    states = Counter[str]() if catalog is None else _states(catalog)
    return {
        "total": sum(states.values()),
        "paused": states["paused"],
        "leaderless": states["leaderless"],
        "below_min_isr": states["below_min_isr"],
        # A channel with too few copies for writes, or without a leader, counts as under-replicated too.
        "under_replicated": states["under_replicated"] + states["below_min_isr"],
        "here": len(core.channels.replicas.replicas()),
        "led": 0 if catalog is None else catalog.leader_count(core.node),
        "advertised": sum(map(holds_chain, core.channels.replicas.replicas())),
    }


def _states(catalog: Catalog) -> Counter[str]:
    """Counted anew when the catalog has changed: health is requested often, and there may be thousands."""
    counted = _counted.get(catalog)
    if counted is None or counted[0] != catalog.applied_index:
        states = Counter(channel_state(catalog, channel) for channel in catalog.channels())
        counted = _counted[catalog] = catalog.applied_index, states
    return counted[1]


def channels_page(core: NodeCore, *, after: str, limit: int) -> dict[str, Any]:
    """The next channels by name, and the name to continue after, if there are more."""
    catalog = core.catalog
    if catalog is None:
        return {"channels": [], "next": None}
    later = (channel for channel in catalog.channels() if channel.name > after)
    found = heapq.nsmallest(limit + 1, later, key=lambda channel: channel.name)
    page = found[:limit]
    return {
        "channels": [_line(core, catalog, channel) for channel in page],
        "next": page[-1].name if len(found) > limit else None,
    }


def _line(core: NodeCore, catalog: Catalog, channel: ChannelRecord) -> dict[str, Any]:
    replica = core.channels.replicas.replica(channel.channel_id)
    return {
        "name": channel.name,
        "channel_id": channel.channel_id,
        "state": channel_state(catalog, channel),
        "leader": channel.leader,
        "leader_epoch": channel.leader_epoch,
        "replicas": list(channel.replicas),
        "isr": list(channel.isr_nodes),
        "role": None if replica is None else replica.role.name.lower(),
        "problem": "" if replica is None else replica.problem,
    }


def channel_detail(core: NodeCore, name: str, *, now_ms: int) -> dict[str, Any] | None:
    """Everything about one channel; None if there is none of this name."""
    catalog = core.catalog
    channel = None if catalog is None else catalog.channel(name)
    if catalog is None or channel is None:
        return None
    replica = core.channels.replicas.replica(channel.channel_id)
    here = None if replica is None else _here(replica, now_ms)
    return {
        **channel_json(channel, here),
        "state": channel_state(catalog, channel),
        "tag": channel_tag(channel.channel_id),
        "holders": find_chain_holders(core, name),
    }


def _here(replica: ChannelReplica, now_ms: int) -> dict[str, Any]:
    found = statistics_of(replica)
    silence_ms = None if replica.following is None else replica.following.silence_ms(now_ms)
    return {
        "role": found.role.name.lower(),
        "storage": found.storage,
        "log_start": found.log_start,
        "log_end": found.log_end,
        "held_end": found.held_end,
        "committed_end": found.committed_end,
        "serves": found.serves,
        "lag_records": found.lag_records,
        "leader_silence_ms": silence_ms,
        "problem": found.problem,
    }
