"""The nodes that hold a channel's chain: the tag `causal:<hex>` of seed 001, and the choice of nodes for readers.

A node advertises the tag of every chain of which it holds all retained, committed records. The tag is not a list beside
the catalog, which could disagree with it: every node derives it from the catalog (the ISR and the active nodes), and
for itself from its own replica. The same set goes to the metadata leader with each load report, where strict colocation
needs it. A replica that becomes Idle withdraws its tag here at once, and everywhere with the change of the ISR that
follows; until then a reader that tries it gets an error and goes on to the next.

CH1  A node is a holder if it is in the ISR and active; this node, if its own replica holds the chain now.
CH2  Holders are given with this node first, then by measured round trip, those without a measure last, ties by id.
"""

from __future__ import annotations

from tidelog.cluster.node.core import NodeCore
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.replication.state import Storage
from tidelog.core.catalog import NodeState
from tidelog.core.replication.roles import Role


def holds_chain(replica: ChannelReplica) -> bool:
    """Whether this node advertises the channel's tag."""
    if replica.role is Role.IDLE or replica.storage is not Storage.READY or replica.damaged:
        return False
    return replica.role is Role.LEADER or replica.record.member(replica.around.node) is not None


def advertised_chains(core: NodeCore) -> dict[str, int]:
    """How many chains each node advertises, as reported to the metadata leader; empty on every other node."""
    if not core.is_leader:
        return {}
    reports = core.channels.controller.loads
    return {node: len(report.chains) for node, report in sorted(reports.items())}


def find_chain_holders(core: NodeCore, channel: str | int) -> list[str]:
    """Nodes that hold the channel's chain (CH1), nearest first (CH2); empty for a channel that does not exist."""
    catalog = core.catalog
    record = None if catalog is None else catalog.channel(channel)
    if catalog is None or record is None or record.paused:
        return []
    own = core.channels.replicas.replica(record.channel_id)
    found = [core.node] if own is not None and holds_chain(own) else []
    others = []
    for member in record.isr:
        node = catalog.node(member.node)
        if member.node != core.node and node is not None and node.state is NodeState.ACTIVE:
            others.append(member.node)

    def distance(node: str) -> tuple[bool, int, str]:
        rtt_us = core.proximity.rtt_us(core.node, node)
        return rtt_us is None, rtt_us or 0, node

    return found + sorted(others, key=distance)
