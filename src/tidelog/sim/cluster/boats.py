"""The boats of a simulated cluster, and what the nodes do for them: the uplink's side of a node without its gRPC.

The code under test is the production code: `BoatAppends`, with its `UplinkChannel`, on a `LedChannel` at whatever node
leads the boat's channel. Here is what the shell around it does: a Handshake finds or makes the channel, waits until it
is led and read, or is passed on; a boat's streams end when the leader's epoch does (U2, RL1); acks leave by the clock
too; the folds are written down now and then (F3). What happens to boats and their links has its own clock and dice,
so that a run without boats is the same with this file and without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, Protocol, TypeAlias

from tidelog.cluster.boats.channel_log import open_channel_log
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.uplink.led_channel import LedChannel
from tidelog.cluster.uplink.mark import boat_config, is_boat
from tidelog.core.catalog import (
    ChannelConfig,
    ChannelRecord,
    ChannelRetention,
    CreateChannel,
    NodeState,
)
from tidelog.core.uplink.messages import Hello
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import LogError
from tidelog.sim.cluster.boat import BoatAccount, BoatConnection, ClusterBoat, HungUp
from tidelog.sim.cluster.boat_leader import BoatLeaderChannels, LedBoat
from tidelog.sim.cluster.model import ClusterModel
from tidelog.sim.cluster.node import ClusterNode
from tidelog.sim.metadata.clients import Clients
from tidelog.sim.network import Connection, Scheduler, Way
from tidelog.sim.uplink.model import UplinkBroken

HELLO_MS: Final = 10_000
"""How long a Handshake waits for its channel to be led and read."""
LOOK_MS: Final = 50
CREATE_MS: Final = 700
BACKLOG_MAX: Final = 200
"""Messages that wait for a node that is paused."""
DISHONEST: Final = frozenset(
    {"block_corrupt", "conflicting_frames", "foreign_lineage", "invalid_record", "rate_exceeded", "too_many_holes"}
)
"""What an honest boat is never refused with."""


class BoatsWorld(Protocol):
    """What the boats use of the world."""

    last_event: str

    @property
    def healed(self) -> bool: ...

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def counters(self) -> Counter[str]: ...

    @property
    def model(self) -> ClusterModel: ...

    @property
    def nodes(self) -> Mapping[str, ClusterNode]: ...

    @property
    def cuts(self) -> set[tuple[str, str]]: ...

    @property
    def clients(self) -> Clients: ...


MishapTable: TypeAlias = Mapping[str, tuple[int, Callable[[Any, Any], None]]]
"""Mishaps with their weights; each takes the boats and one of them."""


class ClusterBoats:
    """All boats, and the nodes' hands that serve them."""

    def __init__(self, world: BoatsWorld, seed: int, count: int, mishaps: MishapTable) -> None:
        self.world = world
        self.mishaps = mishaps
        self.scheduler = world.scheduler
        self.counters = world.counters
        self.rng = rng = Random(f"{seed}/boats")
        names = [f"boat-{number}" for number in range(1, count + 1)]
        self.accounts = {name: BoatAccount(world.counters) for name in names}
        self.limits = ReceiverLimits(
            rate_frames_per_s=20_000, burst_frames=5_000, ack_interval_ms=rng.choice((300, 1_000))
        )
        self.snapshot_bytes = rng.choice((600, 3_000))
        self.mishap_ms = rng.choice((300, 800, 2_000))
        self.config = ChannelConfig(
            factor=rng.choice((1, 2, 3, 3, 3)),
            heartbeat_ms=rng.choice((100, 200, 500)),
            retention=ChannelRetention(max_bytes=rng.choice((None, None, 6_000))),
        )
        self.boats = [
            ClusterBoat(
                name=name,
                boats=self,
                rng=Random(rng.getrandbits(64)),
                counters=world.counters,
                account=self.accounts[name],
            )
            for name in names
        ]
        self.led: dict[tuple[str, str], LedBoat] = {}
        """By node and boat (UB1)."""
        self._backlogs: dict[str, list[tuple[ClusterBoat, BoatConnection, Any]]] = {}
        self._asked_ms: dict[str, int] = {}

    def start(self) -> None:
        for boat in self.boats:
            self.world.scheduler.after(self.rng.randrange(200, 4_000), boat.open)
        self.world.scheduler.after(3_000, self._mishap)

    # --- what happens to them -----------------------------------------------------------------------------

    def _mishap(self) -> bool:
        if self.world.healed:
            return False
        rng = self.rng
        self.world.scheduler.after(1 + int(rng.random() * 2 * self.mishap_ms), self._mishap)
        boat = rng.choice(self.boats)
        (what,) = rng.choices(tuple(self.mishaps), [weight for weight, _ in self.mishaps.values()])
        self.world.last_event = f"{what} at {self.world.scheduler.now_ms} ms"
        self.mishaps[what][1](self, boat)
        return True

    def heal(self) -> None:
        """The buses fall silent, and the links are good."""
        for boat in self.boats:
            boat.link.weather.up, boat.bus_frames, boat.burst_frames = True, 0, 0
            boat.open()

    def unrest(self) -> str:
        return next((problem for boat in self.boats if (problem := boat.unrest())), "")

    def check_end(self) -> None:
        """Also that the running fold is that of the log (F1)."""
        for boat in self.boats:
            boat.check_end()
            record = self.world.model.reference.channel(boat.name)
            led = None if record is None or record.leader is None else self.led.get((record.leader, boat.name))
            if led is None or led.appends is None or led.node.rotten:
                continue
            again = open_channel_log(led.led_channel.log, end=led.led_channel.committed_end).fold.to_state()
            if again != led.appends.channel.receiver.fold.to_state():
                raise UplinkBroken(f"F1: the fold over the log of {boat.name} is not the running fold")

    # --- what nodes tell ------------------------------------------------------------------------------------

    def node(self, name: str) -> ClusterNode:
        return self.world.nodes[name]

    def any_node(self) -> ClusterNode | None:
        """One that answers the phone."""
        node = self.rng.choice(list(self.world.nodes.values()))
        return None if node.core is None or node.retired else node

    def is_void(self, name: str, epoch: int) -> bool:
        """Whether what happens to this channel in this epoch was given up by an election that may lose records."""
        record = self.world.model.reference.channel(name)
        channel = None if record is None else self.world.model.channels.get(record.channel_id)
        return channel is None or channel.in_doubt or channel.is_void(epoch)

    def moved(self, node: ClusterNode, replica: ChannelReplica) -> None:
        """As `Boats.moved`: begin and end what depends on a replica's role."""
        led = self.led.get((node.name, replica.name))
        if led is not None and not led.led_channel.is_held:
            self.end(led, replica.not_leader())
            led = None
        if led is None and replica.served_epoch and is_boat(replica.record):
            self._begin(node, replica)

    def _begin(self, node: ClusterNode, replica: ChannelReplica) -> None:
        channels: Any = BoatLeaderChannels(node)
        led = LedBoat(self, node, LedChannel(channels, replica), replica)
        self.led[node.name, replica.name] = led
        self.world.scheduler.after(1, led.look)

    def end(self, led: LedBoat, error: LogError | None = None) -> None:
        """UI1: its streams end, and the next Handshake begins from the log."""
        if self.led.get((led.node.name, led.name)) is led:
            del self.led[led.node.name, led.name]
        if led.appends is not None and error is not None:
            led.appends.end(error)
        if led.connection is not None:
            self.hang_up(led.connection)

    def node_is_off(self, node: ClusterNode) -> None:
        self._backlogs.pop(node.name, None)
        for key in [key for key in self.led if key[0] == node.name]:
            del self.led[key]
        for boat in self.boats:
            for connection in boat.link.connections:
                if node.name in (connection.node, connection.server[0]):
                    self._break(boat, connection)

    def _break(self, boat: ClusterBoat, connection: BoatConnection) -> None:
        """Its node is gone; a boat that hears nothing of it finds out by itself."""
        if not connection.cut:
            connection.cut = True
            if self.rng.random() < 0.7:
                self.world.scheduler.after(self.rng.randrange(1, 500), lambda: boat.broken(connection))

    def resumed(self, node: ClusterNode) -> None:
        for boat, connection, message in self._backlogs.pop(node.name, ()):
            self._arrive(boat, connection, message)
        for led in [led for key, led in self.led.items() if key[0] == node.name]:
            if led.appends is not None:
                led.settle()

    def tick(self, node: ClusterNode) -> None:
        """As the service does it, a few times in a second. Within the node's own event."""
        for led in [led for key, led in self.led.items() if key[0] == node.name]:
            led.tick()
        for boat in self.boats:
            connection = boat.connection
            if isinstance(connection, BoatConnection) and connection.node == node.name:
                self._check_relay(node, boat, connection)

    def _check_relay(self, node: ClusterNode, boat: ClusterBoat, connection: BoatConnection) -> bool:
        """RL1: what is passed on belongs to one leader in one epoch."""
        if connection.leader is None:
            return True
        record = self.record(node, boat.name)
        if record is not None and (record.leader, record.leader_epoch) == (connection.leader[0], connection.leader[2]):
            return True
        self.hang_up(connection)
        return False

    @staticmethod
    def record(node: ClusterNode, name: str) -> ChannelRecord | None:
        core = node.core
        record = None if core is None or core.catalog is None else core.catalog.channel(name)
        return record if record is not None and is_boat(record) else None

    # --- messages -------------------------------------------------------------------------------------------

    def receive(self, name: str, connection: Connection, message: Any) -> bool:
        """Something arrives at the node that a boat dialed."""
        assert isinstance(connection, BoatConnection)
        boat = next(boat for boat in self.boats if boat.name == name)
        return self._arrive(boat, connection, message)

    def _arrive(self, boat: ClusterBoat, connection: BoatConnection, message: Any) -> bool:
        node = self.world.nodes[connection.node]
        if node.core is None or node.process != connection.process or connection.cut:
            return False
        if node.paused:
            self._wait_for(node, boat, connection, message)
            return False
        if isinstance(message, Hello):
            connection.hello = message
            self._greet(boat, connection, message, self.world.scheduler.now_ms + HELLO_MS)
        elif self._check_relay(node, boat, connection):
            server = self._server(connection)
            if server is not None and server.paused:
                self._wait_for(server, boat, connection, message)
            elif server is not None:
                self._take(server, boat, connection, message)
        return True

    def _wait_for(self, node: ClusterNode, boat: ClusterBoat, connection: BoatConnection, message: Any) -> None:
        backlog = self._backlogs.setdefault(node.name, [])
        if len(backlog) < BACKLOG_MAX:
            backlog.append((boat, connection, message))
        else:
            connection.swallowed.update(Way)

    def _server(self, connection: BoatConnection) -> ClusterNode | None:
        """The node that has the session, if the dialed one reaches it; else nobody hears anything any more."""
        name, process = connection.server
        server = self.world.nodes[name]
        pair = connection.node, name
        if server.core is None or server.process != process:
            self.hang_up(connection)
            return None
        if pair in self.world.cuts or pair[::-1] in self.world.cuts:
            connection.swallowed.update(Way)
            return None
        return server

    def _take(self, server: ClusterNode, boat: ClusterBoat, connection: BoatConnection, message: Any) -> None:
        led = self.led.get((server.name, boat.name))
        if led is None or led.appends is None:
            self.hang_up(connection)  # its epoch is over: shake hands again
            return
        server.do(lambda _: led.take(connection, message))

    # --- the Handshake --------------------------------------------------------------------------------------

    def _greet(self, boat: ClusterBoat, connection: BoatConnection, hello: Hello, until_ms: int) -> bool:
        """As `Boats.instance`: until the channel is there, led and read."""
        node = self.world.nodes[connection.node]
        if connection.cut or node.core is None or node.process != connection.process:
            return False
        if boat.connection is not connection:
            return False  # the boat gave up
        now_ms = self.world.scheduler.now_ms
        if now_ms >= until_ms:
            self.hang_up(connection)
            return True
        if not node.paused:
            record = self.record(node, boat.name)
            if record is None:
                self._create(node, boat.name)
            elif self._meet(node, record, boat, connection, hello):
                return True
        self.world.scheduler.after(LOOK_MS, lambda: self._greet(boat, connection, hello, until_ms))
        return True

    def _meet(
        self, node: ClusterNode, record: ChannelRecord, boat: ClusterBoat, connection: BoatConnection, hello: Hello
    ) -> bool:
        """Whether the leader was found and took the message."""
        if record.leader is None:
            return False
        leader = self.world.nodes[record.leader]
        connection.leader = None
        if leader is not node:
            connection.leader = leader.name, leader.process, record.leader_epoch
            if self._server(connection) is None:
                return True
        replica = leader.core.channels.replicas.replica(record.channel_id) if leader.core is not None else None
        if replica is not None and not leader.paused:
            self.moved(leader, replica)  # an append was refused, and the channel is still led here
        led = self.led.get((leader.name, boat.name))
        if led is None or led.appends is None or leader.paused:
            connection.leader = None
            return False
        leader.do(lambda _: led.take(connection, hello))
        return True

    def _create(self, node: ClusterNode, name: str) -> None:
        """The first Handshake makes the channel, on whatever node it arrives."""
        core, now_ms = node.core, self.world.scheduler.now_ms
        if core is None or core.catalog is None or now_ms < self._asked_ms.get(name, 0):
            return
        self._asked_ms[name] = now_ms + CREATE_MS
        active = [record.node for record in core.catalog.nodes() if record.state is NodeState.ACTIVE]
        config = boat_config(self.config, core.catalog)
        if len(active) >= config.factor:
            replicas = tuple(self.rng.sample(active, config.factor))
            change = CreateChannel(name=name, config=config, replicas=replicas, leader=replicas[0], at_ms=1)
            self.world.clients.change(node, change)

    # --- answers --------------------------------------------------------------------------------------------

    def send_down(self, connection: BoatConnection, stream: str, message: Any) -> None:
        if connection.leader is not None and self._server(connection) is None:
            return
        connection.send(Way.DOWN, stream, message)

    def hang_up(self, connection: BoatConnection) -> None:
        """The node ends the connection; what it said before still arrives."""
        if Way.UP not in connection.closed:
            connection.close(Way.UP)
            connection.send(Way.DOWN, "live", HungUp())
            self.lost(connection)

    def lost(self, connection: BoatConnection) -> None:
        """The node that has the session knows that its streams are over."""
        for led in self.led.values():
            if led.connection is connection:
                led.connection = None
                if led.appends is not None:
                    led.appends.channel.disconnected(led.session)

    def check_told(self, led: LedBoat, cursor: int) -> None:
        """9: a boat is told of nothing that is not committed, at the moment when it is told."""
        if self.is_void(led.name, led.led_channel.epoch) or led.appends is None:
            return
        account, lineage = self.accounts[led.name], led.appends.channel.receiver.fold.current
        account.checks += 1
        if lineage is not None and cursor > account.held[lineage].cursor:
            held = account.held[lineage].cursor
            raise UplinkBroken(f"9: {led.node.name} tells {led.name} of {cursor}, {held} is committed")

    def refused(self, led: LedBoat, code: str) -> None:
        self.world.counters[f"boat_{code}"] += 1
        if code in DISHONEST:
            raise UplinkBroken(f"14: {led.node.name} refuses {led.name}, which is honest: {code}")
