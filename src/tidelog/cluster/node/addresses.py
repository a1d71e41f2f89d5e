"""The addresses of a node: registered in the catalog, dialled by others.

`link` is for nodes, operators and clients, `uplink` for boats and for nodes that relay their calls, `http` (a URL) for
nodes that relay requests of readers. Gateways (`liftbridge`) add theirs.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

from tidelog.cluster.node.core import NodeCore
from tidelog.cluster.node.options import NodeProcessOptions
from tidelog.core.catalog import Catalog, NodeState
from tidelog.transports.link.pool import LinkPool
from tidelog.transports.link.socket import reached_host

Addresses = tuple[tuple[str, str], ...]


def own_link(options: NodeProcessOptions, port: int | None) -> str | None:
    """Where nodes and clients find this node; None if it does not listen."""
    if options.listen is None:
        return None
    host, _, listened = options.listen.rpartition(":")
    configured = options.advertise or options.peers.get(options.node)
    return configured or f"{host or socket.gethostname()}:{port if listened == '0' else listened}"


def own_addresses(
    options: NodeProcessOptions, *, port: int | None, http_port: int | None, uplink: Callable[[str], str] | None
) -> Addresses:
    """The addresses of a node whose ports are bound, sorted. `uplink` gives the boats' address on a host."""
    found = dict(options.gateway_addresses)
    link = own_link(options, port)
    if link is not None:
        found["link"] = link
    host = (link or options.advertise or options.peers.get(options.node) or "").rpartition(":")[0]
    host = host or socket.gethostname()
    if uplink is not None:
        found["uplink"] = uplink(host)
    if http_port is not None and options.http is not None:
        scheme = "http" if options.http.tls_cert is None else "https"
        found["http"] = f"{scheme}://{reached_host(options.http.listen, host)}:{http_port}"
    return tuple(sorted(found.items()))


class PeerAddresses:
    """The peers that a node's links go to, and their addresses."""

    def __init__(self, pool: LinkPool) -> None:
        self._pool = pool
        self._addresses: dict[str, str] = {}

    def set(self, peer: str, address: str) -> None:
        if self._addresses.get(peer) != address:
            self._addresses[peer] = address
            self._pool.set_peer(peer, address)

    def follow(self, core: NodeCore) -> None:
        """The catalog's address of a node overrides the configured one."""
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
