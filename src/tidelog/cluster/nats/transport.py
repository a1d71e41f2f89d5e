"""Replication over a NATS server, in a running node: the shell around `NatsExchange` and the node's NATS connection.

Requests, answers, refusals and reminders of replicas go over NATS while the server is reached; everything else, and
these four while it is not, over the links. So a failed server costs a moment, and not the cluster. Both transports are
accepted at all times; `nats.exchange` documents which is used when, and why that is safe.

What a caller must keep: call `up` and `down` when the connection does; all calls on the event loop.

TN1  A message that the connection did not take goes by link, whole: an answer is never split over both.
TN2  When the connection comes up or goes down, every follower asks again: nothing waits for messages that the old one
     lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from tidelog.cluster.nats.exchange import (
    ByLink,
    Deliver,
    NatsExchange,
    Publish,
    Say,
    Subscribe,
    Unsubscribe,
)
from tidelog.cluster.replication.transport import LinkTransport, Messages, PeerLinks, ReplicationTransport
from tidelog.codecs.nats_replication_codec import NATS_MESSAGES
from tidelog.core.node_messages import NodeMessage

if TYPE_CHECKING:
    from tidelog.cluster.replication.replica import ChannelReplica
    from tidelog.transports.nats.connection import NatsConnection, NatsMessage, NatsOptions


class TransportNode(Protocol):
    """The methods of the node that the transport needs."""

    def now_ms(self) -> int: ...

    def take(self, messages: Messages) -> None:
        """Messages of peers, for the core."""
        ...

    def ask_again(self) -> None:
        """See `replication_transport.ask_again`."""
        ...


class NatsTransport:
    def __init__(
        self,
        node: TransportNode,
        *,
        exchange: NatsExchange,
        connection: NatsConnection,
        links: PeerLinks,
        log: Callable[[str], None],
    ) -> None:
        self._node = node
        self._exchange = exchange
        self._connection = connection
        self._link = LinkTransport(links)
        self._log = log
        self._subscriptions: dict[str, int] = {}
        self._carry_out()

    # --- the connection ----------------------------------------------------------------------------------

    def up(self) -> None:
        self._exchange.connected(self._connection.inbox, self._connection.max_payload)
        self._carry_out()
        self._node.ask_again()  # TN2

    def down(self) -> None:
        self._exchange.disconnected()
        self._carry_out()
        self._node.ask_again()  # TN2

    def _on_messages(self, messages: list[NatsMessage]) -> None:
        now_ms = self._node.now_ms()
        for subject, reply, no_responders, payload in messages:
            self._exchange.received(subject, reply, no_responders, payload, now_ms)
        self._carry_out()

    # --- as a transport ------------------------------------------------------------------------------------

    def send(self, messages: Messages) -> None:
        now_ms = self._node.now_ms()
        others = []
        for peer, message in messages:
            if isinstance(message, NATS_MESSAGES):
                self._exchange.send(peer, message, now_ms)
            else:
                others.append((peer, message))
        if others:
            self._link.send(others)
        self._carry_out()

    def heard_by_link(self, peer: str, message: NodeMessage) -> None:
        if isinstance(message, NATS_MESSAGES):
            self._exchange.heard_by_link(peer, message, self._node.now_ms())

    def moved(self, replicas: Iterable[ChannelReplica]) -> None:
        self._exchange.moved(replicas)
        self._carry_out()

    def status(self) -> dict[str, Any]:
        exchange = self._exchange
        return {
            "transport": "nats",
            "up": exchange.is_up,
            "sent": exchange.sent,
            "fallbacks": exchange.fallbacks,
            "unheard": exchange.unheard,
            "parts_dropped": exchange.parts_dropped,
            "bad_messages": dict(exchange.bad),
        }

    # --- carrying out --------------------------------------------------------------------------------------

    def _carry_out(self) -> None:
        delivered: list[tuple[str, NodeMessage]] = []
        by_link: list[tuple[str, NodeMessage]] = []
        while effects := self._exchange.poll():
            for effect in effects:
                match effect:
                    case Publish():
                        self._publish(effect)
                    case Deliver(peer, message):
                        delivered.append((peer, message))
                    case ByLink(peer, message):
                        by_link.append((peer, message))
                    case Subscribe(subject):
                        number = self._connection.subscribe(subject, self._on_messages)
                        self._subscriptions[subject] = number
                    case Unsubscribe(subject):
                        self._connection.unsubscribe(self._subscriptions.pop(subject))
                    case Say(line):
                        self._log(line)
        if by_link:
            self._link.send(by_link)
        if delivered:
            self._node.take(delivered)

    def _publish(self, publish: Publish) -> None:
        """TN1. If one part is not taken, the parts before it are useless, and the receiver drops them (NRP3)."""
        for buffers in publish.payloads:
            if not self._connection.publish(publish.subject, buffers, reply=publish.reply):
                self._exchange.not_published(publish)
                return


def open_nats(
    node: TransportNode,
    *,
    options: NatsOptions,
    exchange: NatsExchange | None,
    links: PeerLinks,
    log: Callable[[str], None],
) -> tuple[NatsConnection, ReplicationTransport]:
    """The NATS connection of a node, not started yet, and its transport: over NATS if there is an exchange."""
    from tidelog.transports.nats.connection import NatsConnection

    transport: NatsTransport | None = None

    def up() -> None:
        if transport is not None:
            transport.up()

    def down(_: str) -> None:
        if transport is not None:
            transport.down()

    connection = NatsConnection(options, on_up=up, on_down=down, log=log)
    if exchange is None:
        return connection, LinkTransport(links)
    transport = NatsTransport(node, exchange=exchange, connection=connection, links=links, log=log)
    return connection, transport
