"""A node of the cluster as a process: the link to its peers, the thread that writes, the timer, and who asks for what.

All decisions are `NodeCore`'s. This shell feeds it what arrives and carries out what it says, in order: messages to the
links, writes to the writer's thread, results to the futures of those who wait.

What a caller must keep: `start` once, `stop` once; watch `wait_stopped`, which ends when the node cannot go on.

NS1  One process per data folder and per port; a second one is refused before it touches anything.
NS2  Everything that arrives in one turn of the event loop is carried out in one go, so proposals share writes.
NS3  Every request ends within its time; one that may have happened says so (`definite` is False).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from tidelog import __version__
from tidelog.cluster.clients.access import ClientAccess
from tidelog.cluster.clients.channel_admin import ChannelAdministration
from tidelog.cluster.clients.service import ClientService
from tidelog.cluster.groups.admin import GroupAdmin
from tidelog.cluster.groups.coordinators import NodeGroups
from tidelog.cluster.metadata.member import Output, RequestFailed, Result
from tidelog.cluster.metadata.writer import MetadataWriter
from tidelog.cluster.nats.subject_feed import SubjectFeed
from tidelog.cluster.nats.transport import open_transport
from tidelog.cluster.node.addresses import PeerAddresses, own_addresses
from tidelog.cluster.node.core import NodeCore, NodeFacts
from tidelog.cluster.node.handover import hand_over
from tidelog.cluster.node.local_channels import LocalChannels
from tidelog.cluster.node.options import COPY_BYTES_MAX, NodeProcessOptions
from tidelog.cluster.node.repairer import ReplicaRepairer
from tidelog.cluster.node.requests import NodeRequests
from tidelog.cluster.node.store_thread import StoreThread
from tidelog.cluster.replication.orders import StorageResult
from tidelog.cluster.replication.replicas import ReplicasOutput
from tidelog.cluster.replication.transport import Messages, ReplicationTransport, ask_again
from tidelog.cluster.status.node_status import node_status
from tidelog.codecs.node_codec import decode_node_messages
from tidelog.core.raft import Snapshot
from tidelog.errors import BadMessage, LogError, RequestRefused, WaitTimedOut
from tidelog.pki.identity import Kind
from tidelog.pki.revocation import RevocationList
from tidelog.storage.log.writer import session_clock_us, wall_clock_us
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
"""Between two tries while nobody leads."""
_ALLOWED_KINDS: Final[frozenset[Kind]] = frozenset({"node", "operator", "client"})
_POOL: Final = PoolOptions(backoff_max_ms=1_000)
"""A peer that comes back is found within a second, whoever dials."""
_LOOK_MS: Final = 5
_US_PER_S: Final = 1_000_000
_TRANSFERS_MS: Final = 250


class Node:
    def __init__(self, options: NodeProcessOptions, *, log: Callable[[str], None] = lambda _: None) -> None:
        self.options = options
        self._log = log
        self._storage: StoreThread | None = None
        self._core: NodeCore | None = None
        self._pool: LinkPool | None = None
        self._pool_task: asyncio.Task[None] | None = None
        self._listener: LinkListener | None = None
        self._writer: MetadataWriter | None = None
        self._http: Any = None
        self._mending: asyncio.Task[None] | None = None
        self.mender: ReplicaRepairer | None = None
        self._waiting: dict[int, asyncio.Future[Result]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._has_input = False
        self._turn_ends = False
        """A link hands out what arrived, and `on_turn` follows."""
        self._pump_is_due = False
        self._addresses: PeerAddresses | None = None
        self._transport: ReplicationTransport | None = None
        self.nats: NatsConnection | None = None
        """None where no NATS servers are configured."""
        self.attach = SubjectFeed(self, log=log)
        self._rates: dict[str, int] = {}
        """Bytes per second of the last large bodies from each peer, as noted."""
        self._wake_ms = self._looked_ms = self._transfers_due_ms = 0
        self._member_spoke = False
        """The metadata group did something, which may have moved when it wants to be woken."""
        self._stopping = False
        self._ended: asyncio.Future[None] | None = None
        self.asks = NodeRequests(self)
        self.doors = LocalChannels(self)
        access = ClientAccess(
            catalog=lambda: self.doors.catalog, now_ms=self.doors.wall_ms, insecure_dev=options.insecure_dev
        )
        group_admin = GroupAdmin(self.doors, access=access, options=options.groups, now_ms=self.now_ms)
        rng = random.Random(random.SystemRandom().getrandbits(64))
        self.admin = ChannelAdministration(
            self.doors, access=access, rng=rng, groups=group_admin.carry_out, limits=options.core.replication
        )
        self.groups = NodeGroups(self, options.groups, access=access)
        self.clients = ClientService(self.doors, admin=self.admin, access=access, groups=self.groups)
        self.uplink: NodeUplink | None = None

    @staticmethod
    def now_ms() -> int:
        """The clock of the core."""
        return session_clock_us() // 1000

    @property
    def core(self) -> NodeCore:
        assert self._core is not None, "start() first"
        return self._core

    @property
    def port(self) -> int:
        assert self._listener is not None, "start() first"
        return self._listener.port

    @property
    def http_port(self) -> int | None:
        return None if self._http is None else int(self._http.port)

    @property
    def channel_logs(self) -> ChannelLogs:
        assert self._storage is not None, "start() first"
        return self._storage.logs

    @property
    def storage(self) -> StoreThread | None:
        return self._storage

    @property
    def writer(self) -> MetadataWriter | None:
        return self._writer

    @property
    def pool(self) -> LinkPool:
        assert self._pool is not None, "start() first"
        return self._pool

    @property
    def transport(self) -> ReplicationTransport:
        assert self._transport is not None, "start() first"
        return self._transport

    # --- life --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        options = self.options
        self._ended = asyncio.get_running_loop().create_future()
        options.data_dir.mkdir(parents=True, exist_ok=True)
        disk = OsDisk(options.data_dir)
        self._storage = await StoreThread.open(
            disk, options=options.store, on_results=self._storage_done, on_failed=self._fail, log=self._log
        )  # NS1: its lock is the node's
        end = LinkEnd(
            identity=self._identity,
            tls=self._tls(),
            insecure_dev=options.insecure_dev or options.listen is None,
            log=self._log,
        )
        self._pool = LinkPool(
            end=end,
            handler=self,
            dice=random.SystemRandom(),
            options=_POOL,
            on_up=self._link_up,
            on_down=self._link_down,
        )
        # Kept in `_pool_task`; ends when the pool is closed.
        self._pool_task = asyncio.get_running_loop().create_task(self._pool.run())
        await asyncio.sleep(0)  # until it runs, no link can come about
        if options.listen is not None:
            self._listener = LinkListener(
                options.listen, end=end, handler=self, on_link=self._pool.admit, allowed_kinds=_ALLOWED_KINDS
            )
            await self._listener.start()
        if options.uplink is not None:
            from tidelog.cluster.uplink.process import NodeUplink

            self.uplink = NodeUplink(self, options.uplink, disk=disk, log=self._log)
            self.uplink.bind()
        if options.http is not None:
            from tidelog.cluster.http.node_http import NodeHttp

            revoked = None
            if options.revocations is not None:
                revoked = RevocationList(options.revocations, now_us=wall_clock_us())
            self._http = NodeHttp(options.http, node=self, uplink=self.uplink, revocations=revoked, log=self._log)
            await self._http.start()
        self._core = NodeCore(
            node=options.node,
            peers=tuple(options.peers),
            facts=self._facts(),
            disk=disk,
            folder=INTERNAL_FOLDER,
            options=options.core,
            rng=random.Random(random.SystemRandom().getrandbits(256)),
            now_ms=self.now_ms(),
            now_us=wall_clock_us,
            watermark_of=self._storage.watermark,
        )
        if lost := self.channel_logs.synced_loss_reason:
            self._log(f"synced data is gone, this node's replicas count once they were compared reason={lost!r}")
        await self._open_ways()
        self.mender = ReplicaRepairer(self)
        # Kept in `_mending`, and cancelled by `stop`.
        self._mending = asyncio.get_running_loop().create_task(self.mender.run())
        self.groups.start()
        if self._listener is not None:
            self._log(f"node id={options.node} listen={options.listen} port={self.port} data={options.data_dir}")
        self._pump()
        if self.uplink is not None:
            await self.uplink.start()

    async def _open_ways(self) -> None:
        """To the other nodes: links, and NATS."""
        self._addresses = PeerAddresses(self.pool)
        for peer, address in self.options.peers.items():
            if peer != self.options.node:
                self._addresses.set(peer, address)
        self._transport = open_transport(self, log=self._log)
        if self.nats is not None:
            await self.nats.start()
            self.attach.start()

    def _identity(self) -> LinkIdentity:
        core = self._core
        if core is None:
            return LinkIdentity(node=self.options.node, cluster=b"")
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
            addresses=own_addresses(self),
            host=options.host or socket.gethostname(),
            tags=tuple(sorted(options.tags)),
            capacity_bytes=shutil.disk_usage(options.data_dir).total if capacity is None else capacity,
            software=__version__,
            verified=self.channel_logs.verified,
            damaged_channels=tuple(sorted(self.channel_logs.damaged_channels())),
        )

    async def stop(self) -> None:
        """Hand leadership over, finish what is being written, and leave the mark of a clean stop."""
        if self._stopping:
            return
        if self.uplink is not None:
            await self.uplink.stop()
        if self._core is not None and not self._has_failed:
            await hand_over(self)
        self._stopping = True
        await self.groups.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._mending is not None:
            self._mending.cancel()
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
        if self._writer is not None:
            await asyncio.to_thread(self._writer.stop)
        for future in self._waiting.values():
            future.cancel()
        self.doors.close()
        if self._storage is not None:
            if self._core is not None:
                self._storage.note_watermarks(self._core.channels.replicas.replicas())
            await self._storage.close()
        if self._core is not None and not self._has_failed:
            self._core.stop_cleanly()
        elif self._core is not None and self._core.storage is not None:
            with contextlib.suppress(LogError):
                self._core.storage.close()  # only lets go
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    @property
    def failure(self) -> BaseException | None:
        """What made it impossible to go on, or to stop cleanly."""
        return self._ended.exception() if self._ended is not None and self._ended.done() else None

    @property
    def _has_failed(self) -> bool:
        return self.failure is not None

    async def wait_stopped(self) -> None:
        """Until the node is stopped; raises what made it impossible to go on."""
        assert self._ended is not None, "start() first"
        await asyncio.shield(self._ended)

    def _fail(self, error: Exception) -> None:
        """What is in memory can no longer be trusted, or cannot be understood: nothing more leaves this node."""
        if self._ended is not None and not self._ended.done():
            self._log(f"node stops reason={str(error)!r}")
            self._ended.set_exception(error)
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error)

    def say(self, what: str, **facts: Any) -> None:
        """A line for the log."""
        self._log(" ".join([what, *(f"{name}={value}" for name, value in facts.items())]))

    # --- feeding the core -------------------------------------------------------------------------------

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        """From a peer's link (see `LinkHandler`)."""
        self._turn_ends = True
        if self.clients.serves(kind):
            self.clients.on_message(link, kind, body)
            return
        if link.peer_kind != "node":
            raise BadMessage(problem="only nodes take part in the metadata group")
        now_us = session_clock_us()
        now_ms = now_us // 1000
        for message in decode_node_messages(kind, body):
            self.transport.heard_by_link(link.peer, message)
            self.core.receive(link.peer, message, now_ms, now_us)
        self._has_input = True

    def take(self, messages: Messages) -> None:
        """Messages of peers that came another way than by link."""
        if self._core is None or self._stopping or self._has_failed:
            return
        now_us = session_clock_us()
        try:
            for peer, message in messages:
                self._core.receive(peer, message, now_us // 1000, now_us)
        except Exception as error:
            self._fail(error)  # a bug, as in `_pump`
            return
        self.pump_soon()

    def ask_again(self) -> None:
        """A way to other nodes came or went (see `replication_transport.ask_again`)."""
        if self._core is not None:
            ask_again(self._core.channels.replicas, self.now_ms())
            self.pump_soon()

    def on_turn(self) -> None:
        """A link has handed out all that arrived (see `LinkHandler`)."""
        self.clients.gather()
        self._turn_ends = False
        if self._has_input or self._pump_is_due:
            self._pump()
        self.clients.flush()

    def _storage_done(self, results: Sequence[StorageResult]) -> None:
        """Orders of replicas were carried out."""
        if self._core is None:
            return
        replicas, now_ms = self._core.channels.replicas, self.now_ms()
        for result in results:
            replicas.storage_done(result, now_ms)
        self._pump()
        self.clients.flush()

    def _link_up(self, link: Link) -> None:
        if self._core is not None:
            self._core.link_up(link.peer, self.now_ms())
            self.pump_soon()

    def _link_down(self, peer: str, _: str) -> None:
        if self._core is not None:
            self._core.link_down(peer, self.now_ms())

    # --- carrying out what it says ------------------------------------------------------------------------

    def pump_soon(self) -> None:
        """Carry out what the core has to say, once, after this turn of the event loop."""
        if self._turn_ends:
            self._has_input = True  # `on_turn` follows
        elif not self._pump_is_due:
            self._pump_is_due = True
            asyncio.get_running_loop().call_soon(self._pump_if_due)  # NS2

    def _pump_if_due(self) -> None:
        if self._pump_is_due:
            self._pump()
            self.clients.flush()

    def _pump(self) -> None:
        self._pump_is_due = self._has_input = False
        if self._stopping or self._has_failed:
            return
        try:
            self._carry_out()
        except Exception as error:
            # A typed error is a catalog that this software cannot read; anything else is a bug. Both end the node.
            self._fail(error)
            return
        self._arm_timer()

    def _carry_out(self) -> None:
        core, now_ms = self.core, self.now_ms()
        if now_ms >= self._wake_ms:
            if now_ms >= self._transfers_due_ms:
                self._transfers_due_ms = now_ms + _TRANSFERS_MS
                self._note_transfers(now_ms)
            core.wake(now_ms, session_clock_us())
            if self._storage is not None:
                self._storage.look(core.channels.replicas, now_ms)
            self._wake_ms = core.rounds_at_ms()
        elif now_ms >= core.channels.replicas.agenda_at_ms():
            core.channels.replicas.wake_agenda(now_ms)
        while (output := core.poll(now_ms)) is not None:
            for line in output.lines:
                self._log(line)
            # The links come first: the disk would keep them waiting.
            if output.messages:
                self.transport.send(output.messages)
            if output.member is not None:
                self._carry_out_member(output.member)
            if output.replicas is not None:
                self._carry_out_channels(output.replicas)
            for result in output.results:
                future = self._waiting.pop(result.token, None)
                if future is not None and not future.done():
                    future.set_result(result)
            if output.member is None and not (output.replicas and output.replicas.to_metadata):
                break  # nothing more without another input

    def _carry_out_member(self, output: Output) -> None:
        """What the metadata group asks for."""
        if self._writer is None:
            assert self.core.storage is not None
            self._writer = MetadataWriter(
                self.core.storage, on_written=self._written, on_saved=self._saved, on_failed=self._fail
            )
        self._member_spoke = True
        if output.write is not None:
            self._writer.put(output.write)
        if output.save is not None:
            self._writer.put(output.save)
        if any(applied.touched.nodes for applied in output.applied):
            self._follow_addresses()
        if output.applied:
            for watcher in self.doors.catalog_watchers:
                watcher(output.applied)

    def _carry_out_channels(self, output: ReplicasOutput) -> None:
        assert self._storage is not None
        if output.orders:
            self._storage.put(output.orders)
        if output.produced:
            self.doors.answered(output.produced)
        if output.moved:
            self.transport.moved(output.moved)
            self.doors.moved(output.moved)

    def _follow_addresses(self) -> None:
        assert self._addresses is not None
        self._addresses.follow(self.core)

    def _note_transfers(self, now_ms: int) -> None:
        """What large bodies have shown of each link, for the proximity graph (R10)."""
        for peer in self.core.heartbeats.peers():
            link = self.pool.link_to(peer)
            rate = 0 if link is None else round(link.statistics().bulk_bytes_per_s)
            if rate and self._rates.get(peer) != rate:
                self._rates[peer] = rate
                self.core.heartbeats.record_transfer(peer, rate, _US_PER_S, now_ms)

    def _arm_timer(self) -> None:
        """One that fires too early finds nothing to do and is set anew: cheaper than moving it every time. When the
        core wants to be woken is looked at every few milliseconds at most: under load that moves all the time."""
        replicas = self.core.channels.replicas
        if self._timer is not None and not self._member_spoke and not replicas.is_due_earlier:
            return
        now_ms = self.now_ms()
        looks_ms = self._looked_ms + _LOOK_MS if self._member_spoke else self._wake_ms
        if now_ms >= min(self._wake_ms, looks_ms):
            self._wake_ms, self._looked_ms, self._member_spoke = self.core.rounds_at_ms(), now_ms, False
            looks_ms = self._wake_ms
        # What channels want moves with every record, and is known for free.
        replicas.is_due_earlier = False
        due_ms = min(self._wake_ms, looks_ms, replicas.agenda_at_ms())
        if self._timer is None or due_ms < self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = due_ms
            self._timer = asyncio.get_running_loop().call_later(max(0, due_ms - now_ms) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._pump()

    def _written(self, number: int) -> None:
        member = self.core.member
        assert member is not None
        restores = member.restores
        self.core.written(number)
        if member.restores != restores:
            self._follow_addresses()  # a leader's snapshot brought the whole catalog
        self._pump()

    def _saved(self, snapshot: Snapshot, keep_from_index: int) -> None:
        member = self.core.member
        assert member is not None
        member.saved(snapshot, keep_from_index)
        self.pump_soon()

    # --- what others ask for -----------------------------------------------------------------------------

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        """From a client, from a node for one of its clients, or from an operator's tool (see `LinkHandler`)."""
        if self.clients.serves(kind):
            return await self.clients.on_request(link, kind, body)
        if link.peer_kind == "client":
            raise BadMessage(problem="clients produce, fetch and administer channels; nothing else")
        return await self.asks.answer(kind, bytes(body), from_operator=link.peer_kind != "node")

    async def wait_for(self, token: int, ask: Callable[[], None], *, timeout_ms: int, what: str) -> Result:
        """Ask the core for something, and wait for the result with this token (NS3)."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        try:
            ask()
            self.pump_soon()
            async with asyncio.timeout(timeout_ms / 1000):
                result = await future
        except TimeoutError:
            raise WaitTimedOut(waiting_for=what, deadline_s=timeout_ms / 1000) from None
        finally:
            if self._waiting.pop(token, None) is not None and self.core.member is not None:
                self.core.member.forget(token)
        if isinstance(result, RequestFailed):
            raise result.error
        return result

    def status(self) -> dict[str, Any]:
        """For people and programs: where this node stands."""
        if self._core is None:
            raise RequestRefused(status=503, reason="not_ready", detail="the node is starting; ask again soon")
        lost = "" if self._storage is None else self._storage.logs.synced_loss_reason
        status = node_status(self.core, now_ms=self.now_ms(), synced_loss=lost)
        status["disk_problem"] = None if self._storage is None else self._storage.problem
        status["upkeep_problem"] = None if self._storage is None else self._storage.upkeep_problem
        status["transport"] = self.transport.status()
        status["groups"] = self.groups.status()
        if self.nats is not None:
            status["attach"] = self.attach.status()
        if self._writer is not None and status["metadata"] is not None:
            counts = self._writer.statistics
            status["metadata"] |= {
                "writes": counts.writes,
                "settles": counts.settles,
                "commit_p50_ms": self.asks.commit_p50_ms(),
                "entries_written": counts.entries,
                "snapshots_saved": counts.snapshots,
            }
        return status
