"""The gateway: a gRPC server on Liftbridge's port, in a running node.

The gateway is a client of its own cluster: it publishes and administers through the native client, so any node can
take any request, and it reads from the node's own replicas. On links to the cluster it uses a client's or an operator's
certificate: with the node's certificate its link would replace the node's own link to that peer.

The caller calls `bind` before the node starts, so that the catalog gets the address; `start` once the node runs; `stop`
before the node stops.

GY1  No call is served before the node is registered: calls wait for it and are refused after a timeout.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.client import Client, ClientOptions, LinkTls, LinkTlsFiles
from tidelog.cluster.clients.access import ClientAccess
from tidelog.config import split_address
from tidelog.errors import InvalidConfig
from tidelog.gateways.liftbridge.activity import ActivityPublisher
from tidelog.gateways.liftbridge.admin import Administration
from tidelog.gateways.liftbridge.callers import Callers
from tidelog.gateways.liftbridge.expected import ExpectedOffsets
from tidelog.gateways.liftbridge.groups import ConsumerGroups
from tidelog.gateways.liftbridge.producers import GatewayProducers
from tidelog.gateways.liftbridge.publish import GatewayPublishing
from tidelog.gateways.liftbridge.service import LiftbridgeService
from tidelog.gateways.liftbridge.streams import NODE_ADDRESS, Streams
from tidelog.gateways.liftbridge.subjects import SubjectPublishing
from tidelog.gateways.liftbridge.subscribe import Subscriptions
from tidelog.gateways.liftbridge.times import PartitionTimes
from tidelog.http.tls import ServerTls
from tidelog.pki.identity import identity_of
from tidelog.pki.revocation import RevocationList
from tidelog.pki.tls_files import read_pem
from tidelog.storage.log.writer import wall_clock_us
from tidelog.transports.grpc.call import GrpcOptions
from tidelog.transports.grpc.server import GrpcServer
from tidelog.transports.link.socket import reached_host
from tidelog.units import MIB

if TYPE_CHECKING:
    from tidelog.cluster.node.process import Node

PORT: Final = 9292
"""Liftbridge's default port."""
_MESSAGE_BYTES_MAX: Final = 8 * MIB
"""Above the largest permitted message, so that a message that is too large gets a refusal that explains it."""
_STOP_S: Final = 1.0
_KINDS: Final = ("client", "operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftbridgeOptions:
    """How one node serves Liftbridge's clients."""

    listen: str
    advertise: str | None = None
    """The address given to clients; by default the node's host and the port of `listen`."""
    insecure_dev: bool = False
    tls_cert: Path | None = None
    """The server certificate; by default the node's own."""
    tls_key: Path | None = None
    tls_ca: Path | None = None
    """The nodes' authority, which also issues client certificates."""
    link_cert: Path | None = None
    """A client's or an operator's certificate, used on links to the cluster."""
    link_key: Path | None = None
    anonymous: str | None = None
    """The client whose grants all callers have, without certificates. None: each caller needs a certificate."""
    revocations: Path | None = None
    fleet: str | None = None
    activity: bool = False
    """Publish stream and group events as the stream `__activity` while this node leads the metadata. Set it alike on
    all nodes."""

    def __post_init__(self) -> None:
        files = (self.tls_cert, self.tls_key, self.tls_ca, self.link_cert, self.link_key)
        if not self.insecure_dev and None in files:
            problem = (
                "the gateway needs a certificate for its clients, the nodes' authority, and a certificate of an "
                "operator or a client to speak to the cluster (`tidelog ca issue liftbridge --operator`)"
            )
            raise InvalidConfig(section="liftbridge", problems=[problem])


class LiftbridgeGateway:
    """Started and stopped once. `port` is the port that was bound if the listen address ends in :0."""

    def __init__(self, options: LiftbridgeOptions, *, log: Callable[[str], None] = lambda _: None) -> None:
        self._options = options
        self._log = log
        self._server: GrpcServer | None = None
        self._client: Client | None = None
        self._producers: GatewayProducers | None = None
        self.subscriptions: Subscriptions | None = None
        self._activity: ActivityPublisher | None = None
        self._subjects: SubjectPublishing | None = None
        self._times: PartitionTimes | None = None
        self._tls: ServerTls | None = None
        self.port = 0

    def bind(self) -> None:
        """Bind the port without serving yet."""
        options = self._options
        self._tls = self._certificates()
        server = GrpcServer(options=GrpcOptions(message_bytes_max=_MESSAGE_BYTES_MAX), log=self._log)
        address = options.listen if not options.listen.startswith(":") else f"0.0.0.0{options.listen}"
        try:
            self.port = server.bind(*split_address(address))
        except OSError as error:
            problem = f"cannot listen on {address}: {error}"
            raise InvalidConfig(section="liftbridge.listen", problems=[problem]) from error
        self._server = server

    def _certificates(self) -> ServerTls | None:
        options = self._options
        if options.insecure_dev:
            return None
        assert options.tls_cert is not None
        assert options.tls_key is not None
        return ServerTls(
            certificate=options.tls_cert,
            key=options.tls_key,
            client_ca=options.tls_ca if options.anonymous is None else None,
            require_client=options.anonymous is None,
            protocols=("h2",),
            section="liftbridge.tls",
            log=self._log,
        )

    def address(self, host: str) -> tuple[str, str]:
        """For the catalog: this gateway's name and the address for clients; `host` is the node's host."""
        options = self._options
        return NODE_ADDRESS, options.advertise or f"{reached_host(options.listen, host)}:{self.port}"

    def _own_address(self, node: Node) -> str:
        """The address for clients, computed here rather than read from the catalog."""
        link = node.link_address
        host = split_address(link)[0] if link else ""
        return self.address(host or socket.gethostname())[1]

    async def start(self, node: Node) -> None:
        """Start serving; the node is running (GY1)."""
        assert self._server is not None, "bind() first"
        options, channels = self._options, node.channels
        access = ClientAccess(
            catalog=lambda: channels.catalog, now_ms=channels.wall_ms, insecure_dev=options.insecure_dev
        )
        revocations = None
        if options.revocations is not None:
            revocations = RevocationList(options.revocations, now_us=wall_clock_us())
        callers = Callers(
            access,
            insecure_dev=options.insecure_dev,
            anonymous=options.anonymous,
            fleet=options.fleet,
            revocations=revocations,
        )
        client = self._client = self._connected(node)
        producers = self._producers = GatewayProducers(client, node=node.options.node)
        streams = Streams(channels, address=self._own_address(node))
        self._times = streams.times
        self._times.start()
        if node.nats is not None:
            self._subjects = SubjectPublishing(node.nats)
            self._subjects.start()
        groups = ConsumerGroups(
            channels, admin=node.admin, coordinator=node.groups.coordinator, streams=streams, access=access
        )
        self.subscriptions = Subscriptions(channels, client=client, streams=streams, access=access, groups=groups)
        service = LiftbridgeService(
            callers=callers,
            streams=streams,
            administration=Administration(channels, client=client, streams=streams, access=access),
            publishing=GatewayPublishing(
                client=client,
                producers=producers,
                expected=ExpectedOffsets(channels, client=client, producers=producers),
                streams=streams,
                access=access,
                rng=random.Random(random.SystemRandom().getrandbits(64)),
                subjects=self._subjects,
                namespace=node.options.nats_namespace,
            ),
            subscriptions=self.subscriptions,
            groups=groups,
            channels=channels,
        )
        self._server.handlers += service.handlers()
        await self._server.start(None if self._tls is None else self._tls.context)
        if options.activity:
            self._activity = ActivityPublisher(channels, client=client, log=self._log)
            self._activity.start()
        self._log(f"liftbridge gateway up port={self.port}")

    def _connected(self, node: Node) -> Client:
        """A client of the cluster; it connects on first use."""
        options = self._options
        own = node.link_address
        others = [address for peer, address in node.options.peers.items() if peer != node.options.node and address]
        addresses = [address for address in (own, *others) if address]
        if not addresses:
            problem = "the gateway connects to its node over the link; give the node an address to listen on"
            raise InvalidConfig(section="liftbridge", problems=[problem])
        client_options = ClientOptions(timeout_ms=10_000)
        if options.insecure_dev:
            return Client(addresses, insecure_dev=True, name="liftbridge", kind="operator", options=client_options)
        assert options.link_cert is not None
        assert options.link_key is not None
        assert options.tls_ca is not None
        identity = identity_of(read_pem(options.link_cert), fleet=options.fleet)
        if identity.kind not in _KINDS:
            problem = f"{options.link_cert} is the certificate of {identity}; use one of an operator or a client"
            raise InvalidConfig(section="liftbridge", problems=[problem])
        files = LinkTlsFiles(
            certificate=options.link_cert, key=options.link_key, authority=options.tls_ca, revoked=options.revocations
        )
        tls = LinkTls(files, fleet=options.fleet, log=self._log)
        return Client(addresses, tls=tls, name=identity.name, kind=identity.kind, options=client_options)

    async def stop(self) -> None:
        """End all calls, wait for messages under way, close the connections."""
        if self._activity is not None:
            await self._activity.stop()
        if self.subscriptions is not None:
            self.subscriptions.close()
        if self._server is not None:
            await self._server.stop(_STOP_S)
        if self._subjects is not None:
            self._subjects.close()
        if self._times is not None:
            self._times.close()
        if self._producers is not None:
            try:
                async with asyncio.timeout(_STOP_S):
                    await self._producers.close()
            except TimeoutError:
                pass  # their calls have ended, so nobody needs the answers
        if self._client is not None:
            await self._client.close(flush=False)
