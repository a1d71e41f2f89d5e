"""Sending a node's messages to its peers: one interface, and two ways for the messages of replicas.

`LinkTransport` sends everything over the framed links. `NatsTransport` (`nats.transport`) sends requests, answers,
refusals and reminders of replicas over a NATS server while there is one, and everything else over the links.

What a caller must keep: tell the transport of every replica that moved, and of every message that came by link.

TT1  `send` never waits and never raises. What cannot be sent is lost, as any message may be; the core sends again what
     matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.codecs.node_codec import encode_node_messages
from tidelog.core.node_messages import NodeMessage

if TYPE_CHECKING:
    from tidelog.cluster.replication.replica import ChannelReplica
    from tidelog.cluster.replication.replicas import Replicas
    from tidelog.transports.link.link import Buffers

Messages = Sequence[tuple[str, NodeMessage]]
"""Messages, each with the peer that it goes to or comes from."""


class PeerLinks(Protocol):
    """See `LinkPool`."""

    def send(self, node: str, messages: Iterable[tuple[int, Buffers]], /) -> bool: ...


class ReplicationTransport(Protocol):
    def send(self, messages: Messages) -> None:
        """Send messages to peers, in order for each peer and each way (TT1)."""
        ...

    def heard_by_link(self, peer: str, message: NodeMessage) -> None:
        """A peer's message came by link; the core gets it from there."""
        ...

    def moved(self, replicas: Iterable[ChannelReplica]) -> None:
        """Replicas whose role may have changed."""
        ...

    def status(self) -> dict[str, Any]:
        """The state of the transport as JSON; `transport` is its name."""
        ...


class LinkTransport:
    """Everything over the links."""

    def __init__(self, links: PeerLinks) -> None:
        self._links = links

    def send(self, messages: Messages) -> None:
        by_peer: dict[str, list[NodeMessage]] = {}
        for peer, message in messages:
            by_peer.setdefault(peer, []).append(message)
        for peer, gathered in by_peer.items():
            self._links.send(peer, encode_node_messages(gathered))

    def heard_by_link(self, peer: str, message: NodeMessage) -> None:
        """There is no other way."""

    def moved(self, replicas: Iterable[ChannelReplica]) -> None:
        """A link needs no subjects."""

    def status(self) -> dict[str, Any]:
        return {"transport": "link"}


def ask_again(replicas: Replicas, now_ms: int) -> None:
    """A way to other nodes came or went, and what was on it is gone: every follower here says again what it holds, and
    every follower of what is led here is told to."""
    for replica in replicas.replicas():
        replica.ask_again(now_ms)
