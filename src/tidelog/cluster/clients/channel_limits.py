"""Whether the cluster has room for another channel: by its own settings, below what the catalog could hold.

Every channel costs each of its nodes memory, and a part of the time after a restart in which all of them ask their
leaders. A script that creates channels without end is refused before existing channels suffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidelog.core.catalog import Catalog
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.replication.placement import NodeLoad
from tidelog.errors import CatalogFull


def require_room(
    catalog: Catalog,
    loads: Mapping[str, NodeLoad],
    nodes: Sequence[str],
    limits: ReplicationOptions,
    *,
    placed: int = 0,
) -> None:
    """Raise `CatalogFull` if a channel with replicas on these nodes is one too many. `placed` channels of the same
    request come before it, and `loads` count their replicas."""
    if catalog.channel_count + placed >= limits.channels_max:
        raise CatalogFull(what="channels (the setting channels.max)", count_max=limits.channels_max)
    for node in nodes:
        load = loads.get(node)
        if load is not None and load.replicas >= limits.replicas_per_node_max:
            raise CatalogFull(
                what=f"replicas on node {node} (the setting channels.max-replicas-per-node)",
                count_max=limits.replicas_per_node_max,
            )
