"""Clients of simulated channels: producers that retry as they should, and readers at any replica.

They know what a client can know: a node's catalog, the answers they got, the time that passed. What they are told is
checked by the model at the moment it is told.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Protocol

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.header import NO_PRODUCER
from tidelog.blocks.messages import encode_values
from tidelog.cluster.node.core import NodeCore
from tidelog.cluster.produce_order import ProduceOrder
from tidelog.cluster.replication.effects import ProduceOutcome
from tidelog.cluster.replication.state import Storage
from tidelog.core.catalog import ChannelRecord
from tidelog.core.client_messages import ANY_OFFSET, AckPolicy
from tidelog.errors import LogError, OffsetConflict, OutOfSequence, ProducerFenced
from tidelog.sim.cluster.account import entry_of
from tidelog.sim.cluster.model import ClusterModel
from tidelog.sim.cluster.node import ClusterNode
from tidelog.sim.metadata.model import ClusterBroken
from tidelog.sim.network import Scheduler

PATIENCE_MS: Final = 1_500
READ_BYTES: Final = 4_000
STUCK_TRIES: Final = 40
"""After so many refusals in a row a producer opens itself anew."""


@dataclass(slots=True)
class ClientBatch:
    """A block that a producer wants in the log, and what it knows of its fate."""

    made: MadeBlock
    first_seq: int
    count: int
    expected_offset: int
    token: int = 0
    """The token of the try that is open; 0 if there is none."""
    tries: int = 0
    open_tries: int = 0
    """Tries whose outcome is not known: the block may be in the log."""
    sent_ms: int = 0


@dataclass(slots=True)
class Try:
    producer: SimProducer
    batch: ClientBatch
    node: str
    process: int
    epoch: int = 0
    channel_id: int = 0


class ClientWorld(Protocol):
    """What producers and readers use of the world."""

    refused: set[bytes]
    healed: bool
    producers: SimProducers

    @property
    def rng(self) -> Random: ...

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def counters(self) -> Counter[str]: ...

    @property
    def model(self) -> ClusterModel: ...

    @property
    def nodes(self) -> Mapping[str, ClusterNode]: ...

    def look_up(self, channel: str) -> ChannelRecord | None:
        """What some node's catalog says of a channel."""


class SimProducer:
    """One writer of one channel, by name."""

    def __init__(self, world: ClientWorld, number: int, channel: str, rng: Random) -> None:
        self.world = world
        self.number = number
        self.channel = channel
        self.rng = rng
        self.idempotent = rng.random() < 0.65
        self.ack = AckPolicy.ALL if self.idempotent else rng.choice((AckPolicy.ALL, AckPolicy.LEADER, AckPolicy.NONE))
        self.careful = not self.idempotent and self.ack is AckPolicy.ALL and rng.random() < 0.5
        """Says which offset it expects (optimistic concurrency)."""
        self.window = rng.choice((1, 2, 4)) if not self.careful else 1
        self.epoch = 1
        self.seq = 1
        self.expected_offset = ANY_OFFSET
        self.pending: deque[ClientBatch] = deque()
        self._channel_id = 0
        self.refusals = 0
        self.value = 0
        self.acked = 0

    @property
    def id(self) -> bytes:
        if not self.idempotent:
            return NO_PRODUCER
        return self.number.to_bytes(8, "big") + self.epoch.to_bytes(8, "little")

    def step(self) -> None:
        now_ms = self.world.scheduler.now_ms
        if len(self.pending) < self.window and not self.world.healed:
            self.pending.append(self._make())
        for batch in list(self.pending):
            if batch.token and now_ms - batch.sent_ms >= PATIENCE_MS:
                self._unheard(batch)
        for batch in list(self.pending):
            if not batch.token and batch in self.pending:
                self._send(batch)

    def _make(self) -> ClientBatch:
        count = self.rng.choice((1, 1, 2, 5))
        size = self.rng.choice((0, 10, 100, 600))
        values = []
        for _ in range(count):
            self.value += 1
            values.append(b"%d/%d/" % (self.number, self.value) + bytes(size))
        seq = self.seq if self.idempotent else 0
        made = encode_values(values, time_us=self.world.scheduler.now_ms * 1000, base_seq=seq, producer=self.id)
        self.seq += count
        return ClientBatch(made, seq, count, self.expected_offset if self.careful else ANY_OFFSET)

    def _unheard(self, batch: ClientBatch) -> None:
        self.world.producers.tries.pop(batch.token, None)
        batch.token = 0
        if not self.idempotent:
            self._drop(batch)

    def _drop(self, batch: ClientBatch) -> None:
        """It is not sent again. If every try was refused for certain, it must never be seen."""
        if batch in self.pending:
            self.pending.remove(batch)
        if batch.tries and not batch.open_tries:
            self.world.refused.add(bytes(batch.made.maker_bytes))

    def _send(self, batch: ClientBatch) -> None:
        world = self.world
        record = world.look_up(self.channel)
        if record is None or record.leader is None:
            return
        if record.channel_id > self._channel_id:
            was, self._channel_id = self._channel_id, record.channel_id
            if was:  # deleted and made anew, under another id
                self._open_anew()
                return
        node = world.nodes.get(record.leader)
        if node is None:
            return
        batch.token = world.producers.new_try(Try(self, batch, node.name, node.process, channel_id=record.channel_id))
        batch.sent_ms = world.scheduler.now_ms
        batch.tries += 1
        batch.open_tries += 1
        token, process = batch.token, node.process
        world.scheduler.after(
            1 + int(self.rng.random() * 5), lambda: node.process == process and world.producers.arrive(node, token)
        )

    def answered(self, batch: ClientBatch, first_offset: int, error: LogError | None) -> None:
        batch.token = 0
        if error is None:
            batch.open_tries -= 1
            self.refusals = 0
            self.acked += 1
            if batch in self.pending:
                self.pending.remove(batch)
            if self.careful:
                if batch.expected_offset not in (ANY_OFFSET, first_offset):
                    raise ClusterBroken(f"6: a block for {batch.expected_offset} only was put at {first_offset}")
                self.expected_offset = first_offset + batch.count
            return
        self.world.counters[f"error_{error.code}"] += 1
        if error.definite:
            batch.open_tries -= 1
        if isinstance(error, OffsetConflict):
            self.expected_offset = error.actual
        if not self.idempotent:
            self._drop(batch)
            return
        self.refusals += 1
        oldest = bool(self.pending) and batch is self.pending[0]
        if isinstance(error, ProducerFenced) or (isinstance(error, OutOfSequence) and oldest):
            self._open_anew()
        elif self.refusals > STUCK_TRIES and not self.world.healed:
            self.world.counters["producer_stuck"] += 1
            self._open_anew()

    def _open_anew(self) -> None:
        """What is pending is given up: whether it is in the log nobody will say."""
        for batch in list(self.pending):
            self.world.producers.tries.pop(batch.token, None)
            batch.token = 0
            self._drop(batch)
        self.epoch += 1
        self.seq = 1
        self.refusals = 0
        self.world.counters["producer_reopened"] += 1


class SimProducers:
    """All producers, and the tries that are open."""

    def __init__(self, world: ClientWorld) -> None:
        self.world = world
        self.all: list[SimProducer] = []
        self.tries: dict[int, Try] = {}
        self._open: dict[int, Try] = {}
        """Tries at nodes: each is answered once, or its process ends."""
        self._token = 0

    def new_try(self, one: Try) -> int:
        self._token += 1
        self.tries[self._token] = one
        return self._token

    def arrive(self, node: ClusterNode, token: int) -> bool:
        """A block reaches a node."""
        one = self.tries.get(token)
        if one is None or node.core is None or node.paused:
            return False

        def produce(core: NodeCore) -> None:
            replica = core.channels.replicas.replica(one.channel_id)
            leading = None if replica is None else replica.leading
            one.epoch = 0 if leading is None else leading.epoch
            batch, producer = one.batch, one.producer
            before = 0 if replica is None else replica.log_end
            order = ProduceOrder(token, batch.made, producer.ack, expected_offset=batch.expected_offset)
            self._open[token] = one
            try:
                node.submit(one.channel_id, order)
            except LogError as error:
                del self._open[token]
                if isinstance(error, OutOfSequence):
                    self._check_remembered(node, one, error)
                self._answer(token, 0, error)
                return
            if replica is not None and replica.log_end == before:
                self.world.counters["repeated"] += 1

        node.do(produce)
        return True

    def _check_remembered(self, node: ClusterNode, one: Try, error: OutOfSequence) -> None:
        """6: all that came before a producer's oldest block is committed, so the present leader knows of it."""
        producer, channel = one.producer, self.world.model.channels.get(one.channel_id)
        oldest = bool(producer.pending) and one.batch is producer.pending[0] and producer.ack is AckPolicy.ALL
        if channel is None or not oldest or channel.losses or channel.in_doubt:
            return
        if one.epoch == channel.record.leader_epoch and error.expected < one.batch.first_seq:
            problem = f"{node.name} leads {channel.name} and expects seq {error.expected} of a producer"
            raise ClusterBroken(f"6: {problem} that was acked up to {one.batch.first_seq}")

    def produced(self, node: ClusterNode, produced: ProduceOutcome) -> None:
        """A node tells what became of a block."""
        one = self._open.pop(produced.token, None)
        if one is None:
            raise ClusterBroken(f"12: {node.name} answers a block twice, or one that nobody sent")
        batch = one.batch
        if produced.error is None and one.producer.ack is not AckPolicy.NONE:
            first = produced.first_offset
            model = self.world.model
            if one.producer.ack is AckPolicy.ALL:
                maker = bytes(batch.made.maker_bytes)
                model.acked(node.name, one.channel_id, first, maker, batch.count, one.epoch)
                self.world.counters["acked"] += 1
            else:
                model.held_by_leader(node.name, one.channel_id, first + batch.count)
        self._answer(produced.token, produced.first_offset, produced.error)

    def _answer(self, token: int, first_offset: int, error: LogError | None) -> None:
        """On its way to the client, if nothing happens to it."""
        world = self.world
        if not world.healed and world.rng.random() < 0.03:
            world.counters["answer_lost"] += 1
            return

        def hear() -> bool:
            one = self.tries.pop(token, None)
            if one is None or one.batch.token != token:
                return False
            one.producer.answered(one.batch, first_offset, error)
            return True

        world.scheduler.after(1 + int(world.rng.random() * 4), hear)

    def node_is_off(self, node: ClusterNode) -> None:
        """The process is gone: its clients get no answer."""
        self._open = {token: one for token, one in self._open.items() if one.node != node.name}

    def open_at(self) -> Counter[str]:
        return Counter(one.node for one in self._open.values())


class SimReader:
    """Follows one channel at whatever replica it finds, and remembers what it has seen."""

    def __init__(self, world: ClientWorld, channel: str, rng: Random) -> None:
        self.world = world
        self.channel = channel
        self.rng = rng
        self._channel_id = 0
        self._losses = 0
        self._position = self._floor = self._epoch = 0

    def step(self) -> None:
        world = self.world
        record = world.look_up(self.channel)
        if record is None:
            return
        account = world.model.channels.get(record.channel_id)
        if account is None:
            return
        if record.channel_id != self._channel_id or account.losses != self._losses or account.in_doubt:
            self._channel_id, self._losses = record.channel_id, account.losses
            self._position = self._floor = self._epoch = 0
        node = world.nodes.get(self.rng.choice(record.replicas))
        if node is not None:
            node.do(lambda core: self._read(node, core, record))

    def _read(self, node: ClusterNode, core: NodeCore, record: ChannelRecord) -> None:
        replica = core.channels.replicas.replica(record.channel_id)
        if replica is None or not replica.serves or replica.storage is not Storage.READY:
            return
        leading, following = replica.leading, replica.following
        epoch = leading.epoch if leading is not None else following.epoch if following is not None else 0
        end = replica.committed_end
        self._position = max(self._position, replica.log_start)
        blocks: list[Any] = []
        if self._position < end:
            try:
                blocks = node.logs.read(record.channel_id, self._position, bytes_max=READ_BYTES, end=end)
            except LogError:
                self.world.counters["read_failed"] += 1
                return
        entries = [entry_of(block) for block in blocks]
        if not self.world.model.check_served(node.name, record.channel_id, entries, end, epoch):
            return
        if leading is not None and epoch >= self._epoch:
            if end < self._floor:
                raise ClusterBroken(
                    f"4: {node.name} says {end} of {self.channel} is committed; a reader saw {self._floor}"
                )
            self._epoch = epoch
        elif epoch > self._epoch:
            self._epoch = epoch
        self.world.counters["read_at_leader" if leading is not None else "read_at_replica"] += 1
        self._floor = max(self._floor, end)
        if entries:
            if not entries[0].base <= self._position < entries[0].end:
                raise ClusterBroken(
                    f"4: asked for {self._position} of {self.channel}, {node.name} gave {entries[0].base}"
                )
            if entries[-1].end > end:
                raise ClusterBroken(f"4: {node.name} served {self.channel} beyond its committed end {end}")
            self._position = entries[-1].end
