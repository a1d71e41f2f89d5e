"""One node of a simulated cluster with its channels: the production core, and its logs on a simulated disk.

Stands in for the shell: orders of storage are carried out in order, some time later, a few at once; reads on their own
and sooner. A store that has stopped ends the process (S3). What was ordered and not carried out dies with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from tidelog.blocks.block import Block
from tidelog.cluster.nats.exchange import ByLink, Deliver, NatsExchange, Publish, Say, Subscribe, Unsubscribe
from tidelog.cluster.node.core import NodeCore, NodeFacts, NodeOptions
from tidelog.cluster.node.repairer import fitting
from tidelog.cluster.produce_order import ProduceOrder
from tidelog.cluster.replication.effects import ProduceOutcome
from tidelog.cluster.replication.orders import (
    AppendBlocks,
    Appended,
    CloseLog,
    DeleteLog,
    LogReady,
    OpenLog,
    ReadBlocks,
    ResetLog,
    StorageOrder,
    StorageResult,
    SweepLog,
    TruncateLog,
)
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.replication.replicas import ReplicasOutput
from tidelog.cluster.replication.state import Storage
from tidelog.cluster.replication.storage import ReplicaStorage
from tidelog.cluster.replication.transport import ask_again
from tidelog.codecs.nats_replication_codec import NATS_MESSAGES
from tidelog.core.node_messages import NodeMessage
from tidelog.core.replication.messages import Resign, SyncError, SyncNack, Withdraw
from tidelog.errors import LogError, LogPoisoned, UnknownChannel
from tidelog.sim.cluster.account import AccountEntry, entry_of
from tidelog.sim.cluster.boat import BoatAccount
from tidelog.sim.cluster.model import ClusterModel
from tidelog.sim.cluster.nats_server import NAMESPACE, NatsArrival, SimNatsClient, SimNatsServer
from tidelog.sim.lying import Picture
from tidelog.sim.metadata.model import ClusterBroken
from tidelog.sim.metadata.node import BACKLOG_MAX, NodeWorld, SimNode
from tidelog.sim.power import PowerCut
from tidelog.storage.log.options import LogOptions
from tidelog.storage.store.channel_logs import ChannelLogs, LogState
from tidelog.storage.store.parts import StoreOptions
from tidelog.storage.store.recovery import open_store
from tidelog.storage.store.store import Store
from tidelog.storage.store.wal import WAL_SUFFIX, scan_wal
from tidelog.storage.store.watermarks import Watermark, Watermarks

KEEP_MS: Final = 400
"""How often storage looks after itself, and retention runs."""
PAUSED_READ_MS: Final = 50
ORDERS_MAX: Final = 5_000


class NodeProducers(Protocol):
    """The clients that produce, as a node uses them."""

    def node_is_off(self, node: ClusterNode) -> None: ...

    def produced(self, node: ClusterNode, outcome: ProduceOutcome) -> None: ...


class NodeBoats(Protocol):
    """The boats, as a node uses them."""

    accounts: dict[str, BoatAccount]

    def node_is_off(self, node: ClusterNode) -> None: ...

    def resumed(self, node: ClusterNode) -> None: ...

    def tick(self, node: ClusterNode) -> None: ...

    def moved(self, node: ClusterNode, replica: ChannelReplica) -> None: ...


class ClusterNodeWorld(NodeWorld, Protocol):
    """What a node with channels uses of the world around it."""

    @property
    def model(self) -> ClusterModel: ...

    @property
    def nodes(self) -> Mapping[str, ClusterNode]: ...

    @property
    def log_options(self) -> LogOptions: ...

    @property
    def store_options(self) -> StoreOptions: ...

    @property
    def producers(self) -> NodeProducers: ...

    @property
    def boats(self) -> NodeBoats | None: ...

    @property
    def nats(self) -> SimNatsServer | None: ...

    @property
    def cuts(self) -> set[tuple[str, str]]: ...

    @property
    def drops(self) -> Callable[[str, str, Any], bool] | None: ...

    def said(self, node: ClusterNode, line: str) -> None:
        """A line of the node's log."""

    def power_is_gone(self, node: ClusterNode) -> None:
        """Called just before the node's disk crashes."""


class ClusterNode(SimNode):
    world: ClusterNodeWorld

    def __init__(self, world: ClusterNodeWorld, name: str, peers: tuple[str, ...], options: NodeOptions) -> None:
        super().__init__(world, name, peers, options)
        self.world = world
        self.storage: ReplicaStorage | None = None
        self._store: Store | None = None
        self._watermarks: Watermarks | None = None
        self.orders: list[StorageOrder] = []
        self.store_ms = 0
        """How long the disk takes for what channels order."""
        self.store_usual_ms = 0
        self.tampered = False
        """Its disk was wiped, or bits of a log were flipped."""
        self.rotten = False
        """Bits of a log were flipped."""
        self.store_copy: tuple[str, Picture] | None = None
        """A backup of its folder, and of whose disk it is."""
        self.disk.before_crash = lambda: world.power_is_gone(self)
        self._orders_due = False
        self.nats: SimNatsClient | None = None
        self.exchange: NatsExchange | None = None
        """The exchange of the present process, in a world whose replication goes over NATS."""

    @property
    def logs(self) -> ChannelLogs:
        assert self.storage is not None
        return self.storage.logs

    def now_us(self) -> int:
        return self.clock_ms() * 1_000

    # --- start and end ------------------------------------------------------------------------------------

    def _facts(self) -> NodeFacts:
        self._orders_due = False
        options = self.world.log_options
        self._store = open_store(self.disk, now_us=self.now_us(), options=self.world.store_options)
        self._watermarks = Watermarks(self.disk)
        logs = ChannelLogs(self._store)
        self.storage = ReplicaStorage(logs, options=options)
        if not logs.verified:
            self.world.counters["not_verified"] += 1
        if self.world.nats is not None:
            self.exchange = NatsExchange(
                node=self.name,
                namespace=NAMESPACE,
                cluster=lambda: b"" if self.core is None else self.core.cluster,
                replica=lambda key: None if self.core is None else self.core.channels.replicas.replica(key),
            )
            self.nats = self.world.nats.attach(self)
            self._carry_out_nats()
        return NodeFacts(
            addresses=(("link", f"{self.name}:1"),),
            verified=logs.verified,
            damaged_channels=tuple(sorted(logs.damaged_channels())),
        )

    def _watermark_of(self, channel_id: int) -> Watermark | None:
        assert self._watermarks is not None
        return self._watermarks.get(channel_id)

    def start(self) -> bool:
        started = super().start()
        if self.core is not None and started:
            process = self.process
            self.world.scheduler.after(self.rng.randrange(KEEP_MS), lambda: self._keep(process))
        return started

    def _let_channels_go(self, *, crashed: bool) -> None:
        if self.world.nats is not None and self.nats is not None:
            self.world.nats.detach(self.nats)
            self.nats = self.exchange = None
        self.orders.clear()
        store, self._store, self.storage = self._store, None, None
        if store is not None and not crashed:
            store.poison("the process was killed")  # the machine goes on: close, write nothing
            store.close(0)
        model = self.world.model
        for channel in model.channels.values():
            if not channel.record.config.persistent:
                model.gone(self.name, channel.channel_id)
            copy = channel.copies.get(self.name)
            if copy is not None:
                copy.committed_end = 0
        self.world.producers.node_is_off(self)
        if self.world.boats is not None:
            self.world.boats.node_is_off(self)

    def _stop_cleanly(self, core: NodeCore) -> None:
        """All that was ordered is carried out, every log is closed, then the mark is left."""
        self._save_watermarks(core)
        core.channels.replicas.close_all()
        self._after()
        while self.orders:
            self._carry_out(len(self.orders))
            self._after()
        assert self._store is not None
        self.logs.close_all(self.now_us())
        self._store = None
        core.stop_cleanly()

    def _resume(self, process: int) -> bool:
        resumed = super()._resume(process)
        if resumed and self.orders and not self._orders_due:
            self._schedule_orders()
        if resumed and self.world.boats is not None:
            self.world.boats.resumed(self)
        if resumed:
            self.follow_nats()
        return resumed

    # --- replication over NATS, as the shell does it -----------------------------------------------------------

    def follow_nats(self) -> None:
        """The connection came or went."""
        client, exchange = self.nats, self.exchange
        if client is not None and exchange is not None and exchange.inbox != client.inbox:
            self.do(self._follow_nats)

    def _follow_nats(self, core: NodeCore) -> None:
        assert self.nats is not None
        assert self.exchange is not None
        assert self.world.nats is not None
        if self.nats.inbox:
            self.exchange.connected(self.nats.inbox, self.world.nats.max_payload)
        else:
            self.exchange.disconnected()
        self._carry_out_nats()
        ask_again(core.channels.replicas, self.clock_ms())

    def deliver(self, sender: str, message: Any) -> bool:
        if self.core is None or self.exchange is None:
            return super().deliver(sender, message)
        if isinstance(message, NatsArrival):
            if self.paused:
                if len(self.backlog) >= BACKLOG_MAX and self.nats is not None and self.world.nats is not None:
                    self.world.nats.drop(self.nats)  # a slow consumer
                return super().deliver(sender, message)
            self._guarded(self._nats_arrived, message)
            return True
        if not self.paused and isinstance(message, NATS_MESSAGES):
            self.exchange.heard_by_link(sender, message, self.clock_ms())
        return super().deliver(sender, message)

    def _nats_arrived(self, arrival: NatsArrival) -> None:
        assert self.exchange is not None
        self.exchange.received(arrival.subject, arrival.reply, arrival.no_responders, arrival.payload, self.clock_ms())
        self._carry_out_nats()

    def _carry_out_nats(self) -> None:
        client, exchange, counters = self.nats, self.exchange, self.world.counters
        assert client is not None
        assert exchange is not None
        while effects := exchange.poll():
            for effect in effects:
                match effect:
                    case Publish():
                        counters["nats_sent"] += 1
                        counters["nats_parts"] += len(effect.payloads) > 1
                        counters["nats_offset_asked"] += effect.subject.endswith(".offset")
                        if not all(
                            client.publish(effect.subject, b"".join(payload), effect.reply)
                            for payload in effect.payloads
                        ):
                            exchange.not_published(effect)
                    case Deliver(peer, message):
                        assert self.core is not None
                        self.core.receive(peer, message, self.clock_ms())
                    case ByLink(peer, message):
                        counters["nats_fallback"] += 1
                        self.world.send(self, peer, message)
                    case Subscribe(subject):
                        client.subscribe(subject)
                    case Unsubscribe(subject):
                        client.unsubscribe(subject)
                    case Say(line):
                        self.world.said(self, line)
        if exchange.bad:
            raise ClusterBroken(f"NE1: {self.name} was sent what it cannot use: {exchange.bad}")

    # --- what the channels want ------------------------------------------------------------------------------

    def _channels_said(self, core: NodeCore, output: ReplicasOutput) -> None:
        model, boats = self.world.model, self.world.boats
        for order in output.orders:
            if type(order) is AppendBlocks:
                model.ordered(self.name, order.channel_id, order.blocks)
            if type(order) is ReadBlocks:
                self._schedule_read(order)
            else:
                self.orders.append(order)
        if self.exchange is not None and output.moved:
            self.exchange.moved(output.moved)
            self._carry_out_nats()
        for replica in output.moved:
            model.moved(self.name, replica)
            if boats is not None and replica.name in boats.accounts:
                boats.moved(self, replica)
        for produced in output.produced:
            if callable(produced.token):  # of a part of the node itself: a boat's
                produced.token(produced.first_offset, produced.error)
            else:
                self.world.producers.produced(self, produced)
        for message in output.to_metadata:
            self.world.counters["resigned"] += isinstance(message, Resign)
            self.world.counters["withdrawn"] += isinstance(message, Withdraw)
        for line in output.lines:
            self.world.said(self, line)
        if self.orders and not self._orders_due:
            self._schedule_orders()
        if len(self.orders) > ORDERS_MAX:
            raise ClusterBroken(f"12: {self.name} has {len(self.orders)} orders of storage waiting")

    def _send(self, core: NodeCore, target: str, message: NodeMessage) -> None:
        self.world.model.check_channel_message(self.name, message)
        if isinstance(message, SyncNack):
            self.world.counters["backpressure"] += message.error is SyncError.BACKPRESSURE
        if self.exchange is not None and isinstance(message, NATS_MESSAGES):
            if self.world.drops is not None and self.world.drops(self.name, target, message):
                self.world.counters["lost_message"] += 1
                return
            self.exchange.send(target, message, self.clock_ms())
            self._carry_out_nats()
            return
        super()._send(core, target, message)

    def _schedule_orders(self) -> None:
        self._orders_due = True
        process = self.process
        self.world.scheduler.after(self.store_ms, lambda: self._orders_are_done(process))

    def _orders_are_done(self, process: int) -> bool:
        if process != self.process or self.core is None:
            return False
        self._orders_due = False
        if self.paused or not self.orders:
            return False
        count = len(self.orders)
        if self.rng.random() < 0.3:
            count = self.rng.randint(1, count)
        self._guarded(self._carry_out, count)
        if process == self.process and self.core is not None and self.orders and not self._orders_due:
            self._schedule_orders()
        return True

    def _carry_out(self, count: int) -> None:
        """The oldest orders, in order; appends that stand together in one commit."""
        orders, self.orders = self.orders[:count], self.orders[count:]
        place = 0
        while place < len(orders):
            end = place + 1
            if type(orders[place]) is AppendBlocks:
                while end < len(orders) and type(orders[end]) is AppendBlocks:
                    end += 1
            self._carry_out_some(orders[place:end])
            place = end

    def _carry_out_some(self, orders: list[StorageOrder]) -> None:
        core, storage = self.core, self.storage
        assert core is not None
        assert storage is not None
        try:
            results = storage.carry_out(orders, self.now_us())
        except PowerCut:
            self._note_interrupted(orders)
            raise
        for result in results:
            self._note_result(orders[0], result)
        for order in orders:
            if isinstance(order, DeleteLog):
                self.world.model.deleted_log(self.name, order.channel_id)
            elif isinstance(order, CloseLog) and self._is_gone(order.channel_id):
                self.world.model.gone(self.name, order.channel_id)
        for result in results:
            core.channels.replicas.storage_done(result, self.clock_ms())
        self._check_store()

    def _check_store(self) -> None:
        """S3: a store that cannot sync any more ends the process."""
        assert self._store is not None
        try:
            self._store.check_usable()
        except LogPoisoned:
            self.world.counters["store_stopped"] += 1
            raise

    def _is_gone(self, channel_id: int) -> bool:
        """Whether closing its log has thrown it away."""
        channel = self.world.model.channels.get(channel_id)
        return channel is not None and not channel.record.config.persistent

    def _note_interrupted(self, orders: list[StorageOrder]) -> None:
        for order in orders:
            if isinstance(order, TruncateLog | ResetLog | SweepLog | DeleteLog):
                channel = self.world.model.channels.get(order.channel_id)
                if channel is not None and self.name in channel.copies:
                    channel.copies[self.name].unsure = True

    def _note_result(self, order: StorageOrder, result: StorageResult) -> None:
        model, key = self.world.model, result.channel_id
        if isinstance(result, Appended):
            if result.error is None:
                model.held(self.name, key, result.held_end, self.logs.log(key).durable_end)
            else:
                self.world.counters["append_refused"] += 1
        elif isinstance(result, LogReady) and result.state is not None:
            match order:
                case OpenLog():
                    entries = self.entries(key, result.state)
                    model.opened(self.name, key, result.state, entries, tampered=self.tampered)
                case TruncateLog():
                    model.truncated(self.name, key, result.state)
                case ResetLog():
                    model.reset(self.name, key, result.state)
                case SweepLog():
                    model.swept(self.name, key, result.state)
                case _:
                    pass

    def entries(self, channel_id: int, state: LogState | None = None) -> list[AccountEntry]:
        """What a log holds, as it is read from the disk."""
        log = self.logs.log(channel_id)
        skip = state is not None and bool(state.damaged)
        try:
            return [entry_of(block) for block in log.blocks(log.log_start, skip_damaged=skip)]
        except LogError:
            self.world.counters["damage_read"] += 1
            return [entry_of(block) for block in log.blocks(log.log_start, skip_damaged=True)]

    # --- reads, and what goes on by itself ---------------------------------------------------------------------

    def _schedule_read(self, order: ReadBlocks) -> None:
        process = self.process

        def read() -> bool:
            if process != self.process or self.core is None:
                return False
            if self.paused:
                # A paused process reads later: its leader waits for the answer of every read that it has ordered.
                self.world.scheduler.after(PAUSED_READ_MS, read)
                return False
            self.world.counters["old_blocks_read"] += 1
            self._guarded(self._read, order)
            return True

        self.world.scheduler.after(self.rng.randint(0, 3), read)

    def _read(self, order: ReadBlocks) -> None:
        assert self.core is not None
        assert self.storage is not None
        self.core.channels.replicas.storage_done(self.storage.read(order), self.clock_ms())

    def _keep(self, process: int) -> bool:
        if process != self.process or self.core is None:
            return False
        self.world.scheduler.after(KEEP_MS, lambda: self._keep(process))
        if self.paused:
            return False
        self._guarded(self._maintain)
        return True

    def _maintain(self) -> None:
        core = self.core
        assert core is not None
        self.logs.maintain(self.now_us())
        self._check_store()
        core.channels.replicas.free_bytes = self.disk.free_bytes()
        core.channels.replicas.capacity_bytes = 1 << 40
        core.channels.replicas.forget_strays(self.logs.known())
        if self.logs.synced_loss_reason and core.is_registered:
            self.logs.forget_loss()
        core.channels.replicas.apply_retention(self.clock_ms())
        if self.world.boats is not None:
            self.world.boats.tick(self)
        if (self.rotten or self.tampered) and not self.orders:
            self._repair(core)
        if self.rng.random() < 0.3:
            self._save_watermarks(core)

    def _save_watermarks(self, core: NodeCore) -> None:
        assert self._watermarks is not None
        for replica in core.channels.replicas.replicas():
            if replica.storage is Storage.READY and replica.log_end:
                mark = replica.witness.watermark()
                self._watermarks.note(replica.channel_id, mark.committed_end, mark.hints)
        with suppress(LogError):
            self._watermarks.save()

    def submit(self, channel_id: int, order: ProduceOrder) -> None:
        """As `LocalChannels.submit` does."""
        assert self.core is not None
        replica = self.core.channels.replicas.replica(channel_id)
        if replica is None:
            raise UnknownChannel(channel=f"id {channel_id}")
        replica.produce(order, self.clock_ms())

    # --- repair, as the shell does it -------------------------------------------------------------------------

    def _repair(self, core: NodeCore) -> None:
        """Fetch damaged records from another replica and put them in their place."""
        for channel_id in sorted(self.logs.damaged_channels()):
            replica = core.channels.replicas.replica(channel_id)
            if replica is None or replica.storage is not Storage.READY:
                continue
            log = self.logs.log(channel_id)
            replica.compare_damage(log.damaged())
            for gap in log.damaged()[:2]:
                blocks = self._fetch(replica, gap)
                if not blocks:
                    continue
                with suppress(LogError):
                    log.replace(blocks)
                    state = self.logs.state(channel_id)
                    self.world.counters["repaired"] += 1
                    self.world.model.repaired(self.name, channel_id, self.entries(channel_id, state), state)
                    ready = LogReady(channel_id=channel_id, generation=replica.generation, state=state, swept=True)
                    core.channels.replicas.storage_done(ready, self.clock_ms())

    def _fetch(self, replica: ChannelReplica, gap: range) -> list[Block]:
        """Blocks inside the gap, of any replica that can be reached: of a leader all that it holds, of others what they
        know to be committed (MD1, MD2)."""
        for name in replica.record.isr_nodes:
            node = self.world.nodes[name]
            if node.core is None or node is self or (name, self.name) in self.world.cuts:
                continue
            other = node.core.channels.replicas.replica(replica.channel_id)
            if other is None or other.storage is not Storage.READY:
                continue
            end = other.held_end if other.leading is not None else other.committed_end
            with suppress(LogError):
                blocks = node.logs.read(replica.channel_id, gap.start, end=min(gap.stop, end))
                if found := fitting(b"".join(part for block in blocks for part in block.buffers), replica, gap):
                    return found
        return []

    # --- for checks ------------------------------------------------------------------------------------------

    def channel_files(self) -> list[str]:
        """Paths of segments and write-ahead files, for rot to choose from."""
        found, folders = [], [".tidelog/channels", ".tidelog/wal"]
        while folders:
            folder = folders.pop()
            for name in self.disk.list_folder(folder) if self.disk.exists(folder) else ():
                path = f"{folder}/{name}"
                try:
                    size = self.disk.open(path, writable=False).size()
                except LogError:
                    folders.append(path)
                else:
                    found += [path] if size else []
        return sorted(found)

    def torn_bytes(self, path: str) -> int:
        """How many bytes at the end of a write-ahead file would be cut as a torn write."""
        folder, _, name = path.rpartition("/")
        if not name.endswith(WAL_SUFFIX):
            return 0
        number = int(name.removesuffix(WAL_SUFFIX))
        return scan_wal(self.disk, folder, number, self.world.log_options.limits).bytes_cut
