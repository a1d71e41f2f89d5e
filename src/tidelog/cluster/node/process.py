"""A node of the cluster as a process: builds the parts, starts and stops them, and gives requests to the right one.

All decisions are `NodeCore`'s. `NodeDriver` feeds it and carries out its output.

What a caller must keep: `start` once, `stop` once; watch `wait_stopped`, which ends when the node cannot go on.

NS1  One process per data folder and per port; a second one is refused before it touches anything.
NS2  Everything that arrives in one turn of the event loop is processed together, so proposals share writes.
NS3  Every request ends within its time; the error of one that may have had an effect is not definite.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tidelog import __version__
from tidelog.cluster.clients.access import ClientAccess
from tidelog.cluster.clients.channel_admin import ChannelAdministration
from tidelog.cluster.clients.service import ClientService
from tidelog.cluster.groups.admin import GroupAdmin
from tidelog.cluster.groups.coordinators import NodeGroups
from tidelog.cluster.metadata.writer import MetadataWriter
from tidelog.cluster.nats.exchange import NatsExchange
from tidelog.cluster.nats.subject_feed import SubjectFeed
from tidelog.cluster.nats.transport import open_nats
from tidelog.cluster.node.addresses import PeerAddresses, own_addresses, own_link
from tidelog.cluster.node.adoption import adopt_channels, follow_settings
from tidelog.cluster.node.core import NodeCore, NodeFacts
from tidelog.cluster.node.driver import NodeDriver
from tidelog.cluster.node.handover import hand_over
from tidelog.cluster.node.options import COPY_BYTES_MAX, NodeProcessOptions
from tidelog.cluster.node.repairer import ReplicaRepairer
from tidelog.cluster.node.replica_channels import ReplicaChannels
from tidelog.cluster.node.requests import NodeRequests
from tidelog.cluster.node.store_thread import StoreThread
from tidelog.cluster.replication.transport import LinkTransport, ReplicationTransport
from tidelog.cluster.status.node_status import node_status
from tidelog.cluster.uplink.options import RelayOptions, UplinkOptions
from tidelog.errors import BadMessage, LogError, RequestRefused
from tidelog.pki.identity import Kind
from tidelog.pki.revocation import RevocationList
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.channel_logs import ChannelLogs
from tidelog.transports.link.link import Buffers, Link, LinkEnd, LinkIdentity, LinkListener, LinkTls, LinkTlsFiles
from tidelog.transports.link.pool import LinkPool, PoolOptions

if TYPE_CHECKING:
    from tidelog.cluster.uplink.process import NodeUplink
    from tidelog.transports.nats.connection import NatsConnection

__all__ = ["COPY_BYTES_MAX", "INTERNAL_FOLDER", "REQUEST_MS", "RETRY_MS", "Node", "NodeProcessOptions"]

INTERNAL_FOLDER: Final = ".tidelog"
REQUEST_MS: Final = 5_000
RETRY_MS: Final = 50
"""Between two attempts while there is no leader."""
_ALLOWED_KINDS: Final[frozenset[Kind]] = frozenset({"node", "operator", "client"})
_POOL: Final = PoolOptions(backoff_max_ms=1_000)
"""A peer that comes back is found within a second, whichever of the two dials."""


class Node:
    def __init__(self, options: NodeProcessOptions, *, log: Callable[[str], None] = lambda _: None) -> None:
        self.options = options
        self._log = log
        self.driver = driver = NodeDriver(log=log)
        self._pool: LinkPool | None = None
        self._pool_task: asyncio.Task[None] | None = None
        self._listener: LinkListener | None = None
        self._http: Any = None
        self._repairing: asyncio.Task[None] | None = None
        self.repairer = ReplicaRepairer(driver)
        self.nats: NatsConnection | None = None
        """None where no NATS servers are configured."""
        self.requests = NodeRequests(driver, status=self.status)
        self.channels = channels = ReplicaChannels(driver, self.requests)
        self.attach = SubjectFeed(channels, namespace=options.nats_namespace, log=log)
        access = ClientAccess(
            catalog=lambda: channels.catalog, now_ms=channels.wall_ms, insecure_dev=options.insecure_dev
        )
        group_admin = GroupAdmin(channels, access=access, options=options.groups)
        rng = random.Random(random.SystemRandom().getrandbits(64))
        self.admin = ChannelAdministration(
            channels, access=access, rng=rng, groups=group_admin.carry_out, limits=options.core.replication
        )
        self.groups = NodeGroups(channels, options.groups, access=access, say=driver.say)
        self.clients = ClientService(channels, admin=self.admin, access=access, groups=self.groups)
        driver.after_pump = self.clients.flush
        self.uplink: NodeUplink | None = None

    # --- the driver's parts, for those who watch this node -------------------------------------------------

    @property
    def core(self) -> NodeCore:
        return self.driver.core

    @property
    def pool(self) -> LinkPool:
        return self.driver.pool

    @property
    def channel_logs(self) -> ChannelLogs:
        return self.driver.channel_logs

    @property
    def storage(self) -> StoreThread | None:
        return self.driver.storage

    @property
    def writer(self) -> MetadataWriter | None:
        return self.driver.writer

    @property
    def transport(self) -> ReplicationTransport:
        return self.driver.transport

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the node, or kept it from stopping cleanly."""
        return self.driver.failure

    def now_ms(self) -> int:
        """The clock of the core."""
        return self.driver.now_ms()

    async def wait_stopped(self) -> None:
        """Until the node is stopped; raises what made it impossible to go on."""
        await self.driver.wait_stopped()

    @property
    def link_address(self) -> str | None:
        """Where nodes and clients find this node; None if it does not listen."""
        return own_link(self.options, None if self._listener is None else self._listener.port)

    @property
    def port(self) -> int:
        assert self._listener is not None, "start() first"
        return self._listener.port

    @property
    def http_port(self) -> int | None:
        return None if self._http is None else int(self._http.port)

    # --- start and stop --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        options, driver = self.options, self.driver
        driver.begin()
        options.data_dir.mkdir(parents=True, exist_ok=True)
        disk = OsDisk(options.data_dir)
        driver.storage = storage = await StoreThread.open(
            disk, options=options.store, on_results=driver.storage_done, on_failed=driver.fail, log=self._log
        )  # NS1: its lock is the node's
        await self._listen()
        await self._bind_servers(disk)
        driver.drive(
            NodeCore(
                node=options.node,
                peers=tuple(options.peers),
                facts=self._facts(),
                disk=disk,
                folder=INTERNAL_FOLDER,
                options=options.core,
                rng=random.Random(random.SystemRandom().getrandbits(256)),
                now_ms=driver.now_ms(),
                now_us=wall_clock_us,
                watermark_of=storage.watermark,
            )
        )
        if lost := self.channel_logs.synced_loss_reason:
            self._log(f"synced data is gone, this node's replicas count once they were compared reason={lost!r}")
        await self._open_ways()
        # Kept in `_repairing`, and cancelled by `stop`.
        self._repairing = asyncio.get_running_loop().create_task(self.repairer.run())
        self.groups.start()
        if self._listener is not None:
            self._log(f"node id={options.node} listen={options.listen} port={self.port} data={options.data_dir}")
        driver.pump()
        if self.uplink is not None:
            await self.uplink.start()

    async def _listen(self) -> None:
        """Open the pool of links, and the listener if others may connect."""
        options, driver = self.options, self.driver
        end = LinkEnd(
            identity=self._identity,
            tls=self._tls(),
            insecure_dev=options.insecure_dev or options.listen is None,
            log=self._log,
        )
        self._pool = pool = LinkPool(
            end=end,
            handler=self,
            dice=random.SystemRandom(),
            options=_POOL,
            on_up=driver.link_up,
            on_down=driver.link_down,
        )
        driver.connect(pool)
        # Kept in `_pool_task`; ends when the pool is closed.
        self._pool_task = asyncio.get_running_loop().create_task(pool.run())
        await asyncio.sleep(0)  # until it runs, no link can come about
        if options.listen is not None:
            self._listener = LinkListener(
                options.listen, end=end, handler=self, on_link=pool.admit, allowed_kinds=_ALLOWED_KINDS
            )
            await self._listener.start()

    async def _bind_servers(self, disk: OsDisk) -> None:
        """Bind the ports for boats and for HTTP, as far as the options name them."""
        options = self.options
        if (boats := options.uplink) is not None:
            from tidelog.cluster.uplink.process import NodeUplink

            self.uplink = NodeUplink(
                self.channels,
                boats,
                admin=self.admin,
                adopt=lambda: self._adopt(boats),
                relaying=self._relaying(),
                disk=disk,
                log=self._log,
            )
            self.uplink.bind()
        if options.http is not None:
            from tidelog.cluster.http.node_http import NodeHttp

            revoked = None
            if options.revocations is not None:
                revoked = RevocationList(options.revocations, now_us=wall_clock_us())
            self._http = NodeHttp(options.http, node=self, uplink=self.uplink, revocations=revoked, log=self._log)
            await self._http.start()

    async def _open_ways(self) -> None:
        """Open the transports to the other nodes: links, and NATS."""
        addresses = PeerAddresses(self.pool)
        for peer, address in self.options.peers.items():
            if peer != self.options.node:
                addresses.set(peer, address)
        self.driver.reach(self._open_transport(), addresses)
        if self.nats is not None:
            await self.nats.start()
            self.attach.start(self.nats)

    def _open_transport(self) -> ReplicationTransport:
        """Makes the NATS connection too, and does not start it: its users subscribe first."""
        options, core = self.options, self.core
        if options.nats is None:
            return LinkTransport(self.pool)
        exchange = None
        if options.transport == "nats":
            exchange = NatsExchange(
                node=options.node,
                namespace=options.nats_namespace,
                cluster=lambda: core.cluster,
                replica=core.channels.replicas.replica,
            )
        self.nats, transport = open_nats(
            self.driver, options=options.nats, exchange=exchange, links=self.pool, log=self._log
        )
        return transport

    async def _adopt(self, options: UplinkOptions) -> None:
        """Take over the channels of a cloud that had no catalog; a cloud also sets its boats' retention."""
        await adopt_channels(self.driver, self.requests, options.channel_config)
        if options.is_alone:
            await follow_settings(self.channels, self.admin, options.channel_config)

    def _relaying(self) -> RelayOptions:
        """The certificate and settings with which this node passes on calls of boats and readers."""
        options = self.options
        return RelayOptions(
            certificate=options.tls_cert,
            key=options.tls_key,
            authority=options.tls_ca,
            revocations=options.revocations,
            insecure_dev=options.insecure_dev,
            serves_https=options.http is not None and options.http.tls_cert is not None,
        )

    def _identity(self) -> LinkIdentity:
        if not self.driver.has_core:
            return LinkIdentity(node=self.options.node, cluster=b"")
        core = self.core
        return LinkIdentity(node=self.options.node, cluster=core.cluster, incarnation=core.incarnation)

    def _tls(self) -> LinkTls | None:
        options = self.options
        if options.insecure_dev or options.listen is None:
            return None
        assert options.tls_cert is not None
        assert options.tls_key is not None
        assert options.tls_ca is not None
        files = LinkTlsFiles(
            certificate=options.tls_cert, key=options.tls_key, authority=options.tls_ca, revoked=options.revocations
        )
        return LinkTls(files, fleet=options.fleet, log=self._log)

    def _facts(self) -> NodeFacts:
        options = self.options
        capacity = options.capacity_bytes
        return NodeFacts(
            addresses=own_addresses(
                options,
                port=None if self._listener is None else self._listener.port,
                http_port=self.http_port,
                uplink=None if self.uplink is None else self.uplink.advertised,
            ),
            host=options.host or socket.gethostname(),
            tags=tuple(sorted(options.tags)),
            capacity_bytes=shutil.disk_usage(options.data_dir).total if capacity is None else capacity,
            software=__version__,
            verified=self.channel_logs.verified,
            damaged_channels=tuple(sorted(self.channel_logs.damaged_channels())),
        )

    async def stop(self) -> None:
        """Hand leadership over, finish pending writes, and leave the mark of a clean stop."""
        driver = self.driver
        if driver.stopping:
            return
        if self.uplink is not None:
            await self.uplink.stop()
        if driver.has_core and not driver.has_failed:
            await hand_over(driver, self.requests, self.channels)
        driver.stop()
        await self.groups.stop()
        if self._repairing is not None:
            self._repairing.cancel()
        await self._close_ways()
        if driver.writer is not None:
            await asyncio.to_thread(driver.writer.stop)
        driver.cancel_waiting()
        self.channels.close()
        if driver.storage is not None:
            if driver.has_core:
                driver.storage.note_watermarks(self.core.channels.replicas.replicas())
            await driver.storage.close()
        if driver.has_core:
            self._stop_core()
        driver.end()

    async def _close_ways(self) -> None:
        if self._http is not None:
            await self._http.stop()
        if self._listener is not None:
            await self._listener.close()
        if self.nats is not None:
            self.attach.close()
            await self.nats.close()
        if self._pool is not None:
            await self._pool.close()
        if self._pool_task is not None:
            await self._pool_task

    def _stop_core(self) -> None:
        if not self.driver.has_failed:
            self.core.stop_cleanly()
        elif self.core.storage is not None:
            with contextlib.suppress(LogError):
                self.core.storage.close()  # the files stay as they are

    # --- feeding the core -------------------------------------------------------------------------------

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        """From a peer's link (see `LinkHandler`)."""
        self.driver.begin_turn()
        if self.clients.serves(kind):
            self.clients.on_message(link, kind, body)
        else:
            self.driver.receive(link, kind, body)

    def on_turn(self) -> None:
        """A link has delivered everything that arrived (see `LinkHandler`)."""
        self.clients.gather()
        self.driver.end_turn()
        self.clients.flush()

    # --- requests -----------------------------------------------------------------------------

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        """A request of a client, of a node for one of its clients, or of an operator's tool (see `LinkHandler`)."""
        if self.clients.serves(kind):
            return await self.clients.on_request(link, kind, body)
        if link.peer_kind == "client":
            raise BadMessage(problem="clients produce, fetch and administer channels; nothing else")
        return await self.requests.answer(kind, bytes(body), from_operator=link.peer_kind != "node")

    def status(self) -> dict[str, Any]:
        """The state of this node as JSON, for status pages and tools."""
        if not self.driver.has_core:
            raise RequestRefused(status=503, reason="not_ready", detail="the node is starting; ask again soon")
        storage, writer = self.storage, self.writer
        lost = "" if storage is None else storage.logs.synced_loss_reason
        status = node_status(self.core, now_ms=self.now_ms(), synced_loss=lost)
        status["disk_problem"] = None if storage is None else storage.problem
        status["upkeep_problem"] = None if storage is None else storage.upkeep_problem
        status["transport"] = self.transport.status()
        status["groups"] = self.groups.status()
        if self.nats is not None:
            status["attach"] = self.attach.status()
        if writer is not None and status["metadata"] is not None:
            counts = writer.statistics
            status["metadata"] |= {
                "writes": counts.writes,
                "settles": counts.settles,
                "commit_p50_ms": self.requests.commit_p50_ms(),
                "entries_written": counts.entries,
                "snapshots_saved": counts.snapshots,
            }
        return status
