"""Where a node is reached, and by whom: what the catalog is told of it, and others dial.

`link` is for nodes, operators and clients, `uplink` for boats and for nodes that pass their calls on, `http` (a URL)
for nodes that pass requests of readers on. Doors in front of a node (`liftbridge`) bring theirs along.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from tidelog.core.catalog import Catalog, NodeState

if TYPE_CHECKING:
    from tidelog.cluster.node.core import NodeCore
    from tidelog.cluster.node.process import Node
    from tidelog.transports.link.pool import LinkPool

Addresses = tuple[tuple[str, str], ...]


def own_addresses(node: Node) -> Addresses:
    """Of a node whose ports are bound, sorted."""
    options = node.options
    found = dict(options.other_doors)
    link = options.advertise or options.peers.get(options.node)
    if options.listen is not None:
        host, _, port = options.listen.rpartition(":")
        link = link or f"{host or socket.gethostname()}:{node.port if port == '0' else port}"
        found["link"] = link
    host = (link or "").rpartition(":")[0] or socket.gethostname()
    if node.uplink is not None:
        found["uplink"] = node.uplink.advertised(host)
    if node.http_port is not None and options.http is not None:
        scheme = "http" if options.http.tls_cert is None else "https"
        found["http"] = f"{scheme}://{reached_host(options.http.listen, host)}:{node.http_port}"
    return tuple(sorted(found.items()))


def reached_host(listen: str, host: str) -> str:
    """The host of an address that is listened on, or `host` where that is every interface."""
    named = listen.rpartition(":")[0]
    return host if named in ("", "0.0.0.0", "[::]", "::") else named


class PeerAddresses:
    """Which peers a node's links go to, and where those are."""

    def __init__(self, pool: LinkPool) -> None:
        self._pool = pool
        self._addresses: dict[str, str] = {}

    def set(self, peer: str, address: str) -> None:
        if self._addresses.get(peer) != address:
            self._addresses[peer] = address
            self._pool.set_peer(peer, address)

    def follow(self, core: NodeCore) -> None:
        """The catalog knows better than the configuration where a node is."""
        for peer, address in core.addresses().items():
            self.set(peer, address)
        catalog = core.catalog
        if catalog is not None:
            for peer in [peer for peer in self._addresses if _is_removed(catalog, peer)]:
                del self._addresses[peer]
                self._pool.remove_peer(peer)


def _is_removed(catalog: Catalog, peer: str) -> bool:
    record = catalog.node(peer)
    return record is not None and record.state is NodeState.REMOVED
