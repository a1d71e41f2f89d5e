"""A boat of a simulated cluster: the production journal, ring and `BoatUplink`, a bus, and a link to any node.

The boat is that of the uplink's world. New is whom it talks to: it dials any node, which may lead its channel or
pass everything on to the one that does; a boat that reaches other nodes too goes to the leader by itself (U2). Its
account hears of every block of its channel as it is committed, and holds it against what the boat's bus gave.

6   Each seq of a lineage counts once in the channel, and its frame is the one that the bus gave.
8   What is called lost or void is what the boat lost, or never had.
9   What the boat was told is committed; cursors never go back. Only an election that may lose records, which is on
    record in the catalog, takes that back: the account is made anew of what is left, and what is missing comes again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final, Protocol

from tidelog.blocks.block import Block
from tidelog.blocks.header import BlockKind, Path
from tidelog.cluster.node.core import NodeCore
from tidelog.core.uplink.fold import ChannelFold
from tidelog.core.uplink.messages import BackfillAck, Hello, LiveAck, Welcome
from tidelog.core.uplink.sender import LinkState as LinkState
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.journal.journal import JournalOptions
from tidelog.sim.cluster.account import AccountEntry
from tidelog.sim.network import Connection, Scheduler, SimLink, Way, Weather
from tidelog.sim.power import PluggedDisk
from tidelog.sim.uplink.boat import FOLDER, SimBoat
from tidelog.sim.uplink.model import UplinkBroken, UplinkModel

_PATHS: Final = {Path.LIVE: "boat_live", Path.BACKFILL: "boat_backfill"}


class BoatAccount(UplinkModel):
    """One boat and its replicated channel: what was committed there, block by block."""

    def __init__(self, counters: Counter[str]) -> None:
        super().__init__(counters)
        self._blocks: dict[bytes, Block] = {}
        """By their heads: what a full disk refused leaves its place to another block of the same epoch."""
        self.is_lossy = False
        """An election may take back what had been committed: what the boat was told before need not hold."""

    def ordered(self, block: Block) -> None:
        """A block is on its way into some replica's log."""
        self._blocks.setdefault(bytes(block.head), block)

    def committed(self, entry: AccountEntry) -> None:
        block = self._blocks[entry.head]
        if self.is_lossy:
            self.verified_end = entry.base
        self.take_committed([block], entry.end)
        self.counters["boat_repeated"] += bool(block.windows)
        name = _PATHS.get(Path(block.leader.path))
        if name is not None:
            self.counters[name] += 1

    def _take(self, block: Block) -> None:
        if block.maker.kind == BlockKind.MESSAGES:  # of a client, whose seqs are no boat's
            self.verified_end = block.offsets.stop
        else:
            super()._take(block)

    def cut(self, entries: Iterable[AccountEntry]) -> None:
        """An election lost records: the account is that of what the new leader holds."""
        self.is_lossy = True
        self.held.clear()
        self.seen_cursor.clear()
        for entry in entries:
            self.committed(entry)

    def check_ack(self, lineage: bytes, cursor: int, timeline: int, stream: str) -> None:
        if not self.is_lossy:
            super().check_ack(lineage, cursor, timeline, stream)

    def check_opened(self, fold: ChannelFold, end: int) -> None:
        """F1, 8: a leader that begins knows of the boat what all before it knew."""
        if end == self.verified_end:
            self.touched.update(self.held)
            self.check_fold(fold)


class BoatConnection(Connection):
    """A connection to one node, and the node that serves it."""

    def __init__(
        self, link: SimLink, deliver: Callable[[Connection, Way, Any], bool], *, node: str, process: int
    ) -> None:
        super().__init__(link, deliver)
        self.node = node
        self.process = process
        self.leader: tuple[str, int, int] | None = None
        """The node that the dialed one passes everything on to, its process, and its epoch (RL1)."""
        self.hello: Hello | None = None
        self.has_moved = False
        """The boat went to the leader that it was told."""

    @property
    def server(self) -> tuple[str, int]:
        """The node that has the boat's session, and its process."""
        return (self.node, self.process) if self.leader is None else self.leader[:2]


class ServingNode(Protocol):
    """What a boat sees of a node that serves it."""

    name: str
    process: int

    @property
    def core(self) -> NodeCore | None: ...


class BoatServers(Protocol):
    """The nodes, as boats reach them."""

    @property
    def scheduler(self) -> Scheduler: ...

    def any_node(self) -> ServingNode | None:
        """A node that takes a call."""

    def node(self, name: str) -> ServingNode: ...

    def lost(self, connection: BoatConnection) -> None:
        """The node hears that the connection is gone."""


class BoatLink(SimLink):
    """From a boat to whatever node it dials."""

    def __init__(self, scheduler: Scheduler, rng: Random, weather: Weather, boats: BoatServers) -> None:
        super().__init__(scheduler, rng, weather)
        self._boats = boats
        self.connections: list[BoatConnection] = []

    def dial(self, deliver: Callable[[Connection, Way, Any], bool]) -> Connection | None:
        if not self.weather.up:
            return None
        node = self._boats.any_node()
        if node is None:
            return None
        connection = BoatConnection(self, deliver, node=node.name, process=node.process)
        if self.weather.swallows is not None:
            connection.swallowed.add(self.weather.swallows)
        self.connections = [known for known in self.connections if not known.cut][-8:]
        self.connections.append(connection)
        return connection


class HungUp:
    """The last that comes over a connection: the node has ended it."""


class ClusterBoat(SimBoat):
    link: BoatLink
    model: BoatAccount

    def __init__(
        self, *, name: str, boats: BoatServers, rng: Random, counters: Counter[str], account: BoatAccount
    ) -> None:
        self.boats = boats
        self._sessions = 0
        self._served_by = ""
        self.follows_leaders = rng.random() < 0.6
        """It reaches every node, and goes to the one that it is told (U2)."""
        scheduler = boats.scheduler
        weather = Weather(delay_ms=rng.choice((1, 5, 40)), jitter_ms=rng.choice((0, 10)))
        super().__init__(
            name=name,
            scheduler=scheduler,
            rng=rng,
            link=BoatLink(scheduler, rng, weather, boats),
            cloud=boats,  # type: ignore[arg-type]
            model=account,
            counters=counters,
            journal_options=_random_journal(rng),
            sender_config=_random_sender(rng),
            ring_frames=rng.choice((60, 400)),
            disk=PluggedDisk(Random(rng.getrandbits(64))),
        )
        self.bus_frames = rng.choice((1, 3, 6))
        self.bus_pause_ms = rng.choice((150, 300, 600))

    # --- the link ----------------------------------------------------------------------------------------

    def _deliver(self, connection: Connection, way: Way, message: Any) -> bool:
        assert isinstance(connection, BoatConnection)
        if way is Way.DOWN and isinstance(message, HungUp):
            self.broken(connection)
            return True
        if way is Way.DOWN and isinstance(message, Welcome) and self._goes_on(connection):
            return True
        return super()._deliver(connection, way, message)

    def _goes_on(self, connection: BoatConnection) -> bool:
        """The leader was named: shake hands with it; if it cannot be reached, again with the one that passes all on."""
        if connection is not self.connection or connection.leader is None or connection.has_moved:
            return False
        if not self.follows_leaders or connection.hello is None:
            return False
        name, process, _ = connection.leader
        connection.has_moved = True
        node = self.boats.node(name)
        if node.core is not None and node.process == process:
            connection.node, connection.process, connection.leader = name, process, None
        connection.send(Way.UP, "live", connection.hello)
        return True

    def _receive(self, message: Any) -> None:
        journal, uplink, account = self.journal, self.uplink, self.model
        outs = uplink.receive(message, self.scheduler.now_ms, now_us=self.clock_us())
        current = isinstance(message, Welcome | LiveAck | BackfillAck) and message.session == uplink.sender.session
        if current and uplink.sender.link is LinkState.UP:
            account.check_ack(journal.lineage, message.cursor, self.timeline, type(message).__name__)
            if isinstance(message, Welcome):
                self._welcomed()
        held = account.held[journal.lineage].cursor
        if journal.acked > held and not account.is_lossy:
            raise UplinkBroken(f"9: acked is {journal.acked}, the cluster holds {held}")
        self._carry_out(outs)
        self.poll()

    def _welcomed(self) -> None:
        connection = self.connection
        assert isinstance(connection, BoatConnection)
        self._sessions += 1
        self.counters["boat_reconnected"] += self._sessions > 1
        self.counters["boat_relayed"] += connection.leader is not None
        before, self._served_by = self._served_by, connection.server[0]
        self.counters["boat_moved_node"] += before not in ("", self._served_by)

    def cut(self) -> None:
        """The link breaks: what is on its way is lost. The boat hears of it soon, late or never; the node too."""
        for connection in self.link.connections:
            if not connection.cut:
                connection.cut = True
                if self.rng.random() < 0.7:
                    self.scheduler.after(self.rng.randrange(500), lambda one=connection: self.broken(one))  # type: ignore[misc]
                if self.rng.random() < 0.5:
                    self.boats.lost(connection)

    # --- processes and disks -----------------------------------------------------------------------------------------

    def wipe(self) -> None:
        """The journal's folder is gone: a new lineage."""
        self.power_cut()
        self.disk.remove_folder(FOLDER)
        self.disk.sync_folder("")
        for lineage, own in self.own.items():
            self.model.issued[lineage].gone |= own
        self.own.clear()
        self.counters["boat_wiped"] += 1

    def unrest(self) -> str:
        """What keeps this boat from being at rest; empty if all that it has is in its channel, and it knows."""
        if not self.running:
            return f"{self.name} is off"
        journal = self.journal
        held, sender = self.model.held[journal.lineage], self.uplink.sender
        if not self.is_connected() or held.cursor != journal.head or journal.acked != journal.head:
            told = f"head {journal.head}, acked {journal.acked}, committed {held.cursor}"
            return f"{self.name} is {sender.link.value}: {told}, {sender.missing()} are missing"
        return ""

    def check_end(self) -> None:
        """14: the channel holds what the journal holds; nothing is missing but what was lost, with a word."""
        journal = self.journal
        journal.flush(self.clock_us())
        self.check_journal()
        self.model.check_end(journal.lineage, journal.head, self.journaled(), self.own[journal.lineage])


def _random_sender(rng: Random) -> SenderConfig:
    """The seed's numbers, scaled down to a run of seconds."""
    return SenderConfig(
        max_live_lag=rng.choice((60, 400)),
        lag_check_interval=10,
        min_lag_reconnect_interval_ms=1_000,
        backoff_first_ms=100,
        backoff_max_ms=rng.choice((400, 1_500)),
        silence_max_ms=3_000,
        status_interval_ms=1_000,
        live_window_blocks=rng.choice((1, 2, 4)),
        live_block_frames_max=rng.choice((5, 40)),
        backfill_window_blocks=rng.choice((1, 8)),
    )


def _random_journal(rng: Random) -> JournalOptions:
    flush_frames = rng.choice((16, 64))
    return JournalOptions(
        flush_interval_ms=rng.choice((100, 900)),
        flush_frames_max=flush_frames,
        buffer_frames_max=8 * flush_frames,
        seal_frames=rng.choice((80, 250)),
        seal_age_ms=5_000,
        lease_seqs=rng.choice((40, 400)),
        zstd_level=1,
        fresh_segment_bytes=4_096,
        sealed_segment_bytes=4_096,
        reserve_bytes=0,
    )
