"""A cluster in this process that speaks the client protocol over real links, and fails when it is told to.

All nodes look at the same channels, as if replication took no time; what a test wants to go wrong it says: links drop,
nodes stop or freeze, answers wait, leaders move with or without what was not committed, the log is trimmed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.patience import WAIT_S
from tests.transports.links import HOST, plain_end
from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.control import EpochStarted, encode_control
from tidelog.client import Client, ClientOptions, connect
from tidelog.codecs.client_codec import (
    ALTER,
    CLOSE_PRODUCER,
    CREATE,
    CURSOR,
    DESCRIBE,
    FETCH,
    OFFSETS,
    OPEN_PRODUCER,
    PRODUCE,
    PRODUCED,
    REBALANCE,
    config_json,
    config_of_json,
    decode_fetch,
    decode_json,
    decode_produce,
    encode_answer,
    encode_error_answer,
    encode_fetched,
    encode_produced,
)
from tidelog.core.client_messages import ANY_OFFSET, Fetch, Fetched, Produce, Produced
from tidelog.errors import (
    ChannelDeleted,
    LeadershipLost,
    LogError,
    NotChannelLeader,
    OffsetConflict,
    OffsetOutOfRange,
    OutOfSequence,
    ProducerFenced,
    ReplicaBehind,
    UnknownChannel,
    UnknownMethod,
)
from tidelog.transports.link.link import Buffers, Link, LinkListener

QUICK = ClientOptions(
    timeout_ms=60_000,
    backoff_first_ms=2,
    backoff_max_ms=20,
    suspect_ms=100,
    poll_ms=20,
    fetch_wait_ms=50,
    fetch_grace_ms=300,
    attempt_ms=1_000,
)
"""A client that does not wait long for what a test makes fail."""


@dataclass
class Known:
    """What a leader remembers of a producer."""

    epoch: int = 0
    next_seq: int = 1
    places: dict[int, int] = field(default_factory=dict)
    """Offset by base seq."""


class FakeLog:
    """One channel: what every node would hold of it."""

    def __init__(self, channel_id: int, name: str, nodes: Sequence[str], plain: dict[str, Any]) -> None:
        self.channel_id = channel_id
        self.name = name
        self.plain = plain
        self.replicas = list(nodes)
        self.isr = list(nodes)
        self.leader: str | None = nodes[0]
        self.leader_epoch = 1
        self.channel_epoch = 1
        self.paused = self.readonly = False
        self.unclean: list[dict[str, Any]] = []
        self.blocks: list[Block] = []
        self.log_start = 0
        self.committed_end = 0
        self.commits = True
        """Whether what is appended is committed at once."""
        self.known: dict[int, Known] = {}
        self.waiting: list[tuple[int, FakeNode, Link, Produced]] = []
        """Answers that leave when the log is committed up to the number."""
        self.cursors: dict[str, int] = {}
        self.refusals: list[LogError] = []
        """What the next produced blocks are refused with."""
        self.grown = asyncio.Event()

    @property
    def log_end(self) -> int:
        return self.blocks[-1].offsets.stop if self.blocks else self.log_start

    def append(self, made: MadeBlock) -> int:
        offset = self.log_end
        self.blocks.append(
            made.stamp(
                base_offset=offset,
                channel_id=self.channel_id,
                leader_epoch=self.leader_epoch,
                append_time_us=0,
                durable_end=0,
                path=3,
            )
        )
        if self.commits:
            self.commit()
        return offset

    def commit(self) -> None:
        self.committed_end = self.log_end
        ready = [one for one in self.waiting if one[0] <= self.committed_end]
        self.waiting = [one for one in self.waiting if one[0] > self.committed_end]
        for _, node, link, answer in ready:
            node.answer(link, answer)
        self.grown.set()
        self.grown = asyncio.Event()

    def move(self, leader: str | None, *, keeps_tail: bool = True) -> None:
        """Another leader, which holds what was not committed, or does not."""
        if not keeps_tail:
            self.cut(self.committed_end)
        self.leader_epoch += 1
        self.channel_epoch += 1
        self.leader = leader
        waiting, self.waiting = self.waiting, []
        for _, node, link, answer in waiting:
            lost = LeadershipLost(channel=self.name, leader_epoch=self.leader_epoch - 1)
            node.answer(link, Produced(token=answer.token, error=lost))
        if leader is not None:
            commits, self.commits = self.commits, True
            self.append(encode_control([EpochStarted(epoch=self.leader_epoch, node=leader)], time_us=0))
            self.commits = commits

    def cut(self, end: int) -> None:
        self.blocks = [block for block in self.blocks if block.offsets.stop <= end]
        for known in self.known.values():
            known.places = {seq: place for seq, place in known.places.items() if place < end}
        self._count_again()

    def _count_again(self) -> None:
        for known in self.known.values():
            known.next_seq = 1
        for block in self.blocks:
            producer_id, epoch = _producer(block.maker.producer)
            known_one = self.known.get(producer_id)
            if known_one is not None and epoch == known_one.epoch:
                known_one.next_seq = block.maker.base_seq + block.maker.record_count

    def trim(self, log_start: int) -> None:
        self.blocks = [block for block in self.blocks if block.offsets.stop > log_start]
        self.log_start = self.blocks[0].offsets.start if self.blocks else log_start

    def produce(self, request: Produce) -> int:
        """The offset of the block, appended or there already."""
        made = MadeBlock.parse(b"".join(request.block))
        if self.refusals:
            raise self.refusals.pop(0)
        maker = made.maker
        producer_id, epoch = _producer(maker.producer)
        known = self.known.setdefault(producer_id, Known())
        if epoch < known.epoch:
            raise ProducerFenced(channel=self.name, epoch=epoch, newest=known.epoch)
        if epoch > known.epoch:
            known.epoch, known.next_seq, known.places = epoch, 1, {}
        if maker.base_seq in known.places:
            return known.places[maker.base_seq]
        if maker.base_seq != known.next_seq:
            raise OutOfSequence(channel=self.name, expected=known.next_seq, got=maker.base_seq)
        if request.expected_offset not in (ANY_OFFSET, self.log_end):
            raise OffsetConflict(channel=self.name, expected=request.expected_offset, actual=self.log_end)
        known.next_seq += maker.record_count
        known.places[maker.base_seq] = self.log_end
        return self.append(made)

    async def fetch(self, fetch: Fetch, *, lag: int) -> Fetched:
        deadline = asyncio.get_running_loop().time() + fetch.wait_ms / 1000
        while True:
            end = max(0, self.committed_end - lag)
            if fetch.offset < self.log_start:
                raise OffsetOutOfRange(offset=fetch.offset, log_start=self.log_start, log_end=self.log_end)
            if fetch.offset > end:
                raise ReplicaBehind(channel=self.name, leader_epoch=self.leader_epoch, committed_end=end)
            blocks = [one for one in self.blocks if one.offsets.stop <= end and one.offsets.stop > fetch.offset]
            left_s = deadline - asyncio.get_running_loop().time()
            if blocks or left_s <= 0:
                break
            try:
                async with asyncio.timeout(left_s):
                    await self.grown.wait()
            except TimeoutError:
                continue
        chosen: list[Block] = []
        size = 0
        for block in blocks:
            if chosen and size + block.size > fetch.bytes_max:
                break
            chosen.append(block)
            size += block.size
        end = chosen[-1].offsets.stop if lag and chosen else max(0, self.committed_end - lag)
        buffers = [buffer for block in chosen for buffer in block.buffers]
        return Fetched(leader_epoch=self.leader_epoch, committed_end=end, log_start=self.log_start, data=buffers)

    def values(self) -> list[bytes]:
        """Every message of the log, in order."""
        from tidelog.client.records import Record, records_of

        found = [record for block in self.blocks for record in records_of(block, start=0)]
        return [record.value or b"" for record in found if isinstance(record, Record)]

    def describe(self) -> dict[str, Any]:
        return {
            "channel_id": self.channel_id,
            "name": self.name,
            "config": self.plain,
            "replicas": self.replicas,
            "leader": self.leader,
            "isr": self.isr,
            "eligible": [],
            "leader_epoch": self.leader_epoch,
            "channel_epoch": self.channel_epoch,
            "paused": self.paused,
            "readonly": self.readonly,
            "created_at_ms": 0,
            "unclean": self.unclean,
            "here": None,
        }


def _producer(identity: bytes) -> tuple[int, int]:
    return int.from_bytes(identity[:8], "little"), int.from_bytes(identity[8:], "little")


class FakeNode:
    """One node. `is_frozen`: takes everything and answers nothing, as a stopped process does."""

    def __init__(self, name: str, cluster: FakeCluster) -> None:
        self.name = name
        self.cluster = cluster
        self.links: list[Link] = []
        self.is_frozen = False
        self.holds_answers = False
        self.held: list[tuple[Link, Produced]] = []
        self.lag = 0
        """Records that this node's replica is behind in fetches."""
        self.fetches = 0
        self.asked: list[int] = []
        self.listener: LinkListener | None = None
        self.address = ""

    async def start(self) -> None:
        self.listener = LinkListener(
            self.address or f"{HOST}:0",
            end=plain_end(self.name),
            handler=self,
            on_link=self.links.append,
            allowed_kinds=frozenset({"node", "client", "operator"}),
        )
        await self.listener.start()
        self.address = f"{HOST}:{self.listener.port}"

    async def stop(self) -> None:
        if self.listener is not None:
            listener, self.listener = self.listener, None
            await listener.close()
        self.drop_links()

    def drop_links(self) -> None:
        links, self.links[:] = list(self.links), []
        for link in links:
            link.abort("the test drops it")

    # --- the handler -------------------------------------------------------------------------------

    def on_turn(self) -> None:
        """Nothing is put off."""

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        assert kind == PRODUCE
        if self.is_frozen:
            return
        for request in decode_produce(body):
            try:
                self._produce(link, request)
            except LogError as error:
                self.answer(link, Produced(token=request.token, error=error))

    def _produce(self, link: Link, request: Produce) -> None:
        log = self.cluster.by_id(request.channel_id)
        self._require_leader(log)
        self.cluster.produces += 1
        offset = log.produce(request)
        answer = Produced(token=request.token, first_offset=offset)
        if log.committed_end > offset:
            self.answer(link, answer)
        else:
            log.waiting.append((offset + 1, self, link, answer))

    def _require_leader(self, log: FakeLog) -> None:
        if log.leader != self.name:
            address = "" if log.leader is None else self.cluster.nodes[log.leader].address
            raise NotChannelLeader(channel=log.name, leader=log.leader, address=address, leader_epoch=log.leader_epoch)

    def answer(self, link: Link, answer: Produced) -> None:
        if self.holds_answers or self.is_frozen:
            self.held.append((link, answer))
        elif not link.is_closed:
            link.post(PRODUCED, encode_produced([answer]))

    def release(self) -> None:
        held, self.held = self.held, []
        for link, answer in held:
            if not link.is_closed:
                link.post(PRODUCED, encode_produced([answer]))

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        self.asked.append(kind)
        if self.is_frozen:
            await asyncio.Event().wait()
        if kind == FETCH:
            self.fetches += 1
            try:
                fetch = decode_fetch(body)
                fetched = await self.cluster.by_id(fetch.channel_id).fetch(fetch, lag=self.lag)
                return encode_fetched(fetched)
            except LogError as error:
                return encode_fetched(error)
        try:
            return encode_answer(self._answer(kind, decode_json(body)))
        except LogError as error:
            return encode_error_answer(error)

    def _answer(self, kind: int, request: dict[str, Any]) -> dict[str, Any]:
        cluster = self.cluster
        match kind:
            case _ if kind == DESCRIBE:
                return cluster.describe(self.name, request)
            case _ if kind == CREATE:
                return {"results": [cluster.create(one["name"], one["config"]) for one in request["channels"]]}
            case _ if kind == ALTER:
                return {"channel": cluster.alter(request)}
            case _ if kind == OPEN_PRODUCER:
                cluster.log(request["channel"])
                return cluster.open_producer(request["channel"], request["name"])
            case _ if kind == CLOSE_PRODUCER:
                return cluster.close_producer(request)
            case _ if kind == OFFSETS:
                return self._offsets(request)
            case _ if kind == CURSOR:
                return self._cursor(request)
            case _ if kind == REBALANCE:
                return {"moves": [{"channel": "a", "leader": "n2"}], "applied": not request["dry_run"]}
        raise UnknownMethod(kind=kind)

    def _offsets(self, request: dict[str, Any]) -> dict[str, Any]:
        log = self.cluster.by_id(request["channel_id"])
        self._require_leader(log)
        match request["at"]:
            case "earliest":
                offset = log.log_start
            case "latest":
                offset = log.committed_end
            case {"time_us": int(time_us)}:
                found = [one for one in log.blocks if one.maker.time_max_us >= time_us]
                offset = found[0].offsets.start if found else log.committed_end
            case {"seq": int(seq)}:
                found = [one for one in log.blocks if one.maker.seqs.stop > seq]
                offset = found[0].offsets.start if found else log.committed_end
        return {
            "offset": offset,
            "committed_end": log.committed_end,
            "log_start": log.log_start,
            "leader_epoch": log.leader_epoch,
        }

    def _cursor(self, request: dict[str, Any]) -> dict[str, Any]:
        log = self.cluster.by_id(request["channel_id"])
        self._require_leader(log)
        name = request.get("name", "")
        match request["op"]:
            case "set":
                log.cursors[name] = request["offset"]
            case "delete":
                log.cursors.pop(name, None)
            case "list":
                return {"cursors": [{"name": key, "offset": log.cursors[key]} for key in sorted(log.cursors)]}
        return {"name": name, "offset": log.cursors.get(name)}


class FakeCluster:
    """Nodes n1, n2, ... and their channels."""

    def __init__(self, count: int = 3) -> None:
        self.nodes = {f"n{number + 1}": FakeNode(f"n{number + 1}", self) for number in range(count)}
        self.logs: dict[str, FakeLog] = {}
        self.deleted: set[int] = set()
        self.produces = 0
        self._next_id = 1
        self._producers: dict[tuple[int, str], tuple[int, int]] = {}
        self.closed: list[tuple[int, str]] = []
        """(channel, name) of producers that clients closed."""
        self.stale: dict[str, dict[str, Any]] = {}
        """Descriptions of channels that nodes give who have not heard the newest, unless they are told to catch up."""

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self.nodes.values()]

    def log(self, name: str) -> FakeLog:
        if name not in self.logs:
            raise UnknownChannel(channel=name)
        return self.logs[name]

    def by_id(self, channel_id: int) -> FakeLog:
        for log in self.logs.values():
            if log.channel_id == channel_id:
                return log
        if channel_id in self.deleted:
            raise ChannelDeleted(channel_id=channel_id)
        raise UnknownChannel(channel=f"id {channel_id}")

    def create(self, name: str, plain: dict[str, Any] | None = None) -> dict[str, Any]:
        config = config_json(config_of_json(plain or {}))
        if name in self.logs:
            return {"channel_id": self.logs[name].channel_id, "existed": True}
        self.logs[name] = FakeLog(self._next_id, name, list(self.nodes), config)
        self._next_id += 1
        return {"channel_id": self.logs[name].channel_id, "existed": False}

    def alter(self, request: dict[str, Any]) -> dict[str, Any] | None:
        log = self.log(request["channel"])
        match request["op"]:
            case "delete":
                self.deleted.add(log.channel_id)
                del self.logs[log.name]
                return None
            case "pause" | "resume":
                log.paused = request["op"] == "pause"
            case "readonly" | "writable":
                log.readonly = request["op"] == "readonly"
            case "elect":
                log.move(request["leader"] or log.isr[0])
            case "alter":
                log.plain = config_json(config_of_json(request["config"], config_of_json(log.plain)))
        log.channel_epoch += 1
        return log.describe()

    def recreate(self, name: str) -> FakeLog:
        """Behind the clients' backs; the new channel is led by another node than the old one."""
        old = self.logs[name]
        self.stale[name] = old.describe()
        self.alter({"channel": name, "op": "delete"})
        self.create(name)
        new = self.logs[name]
        new.leader = next(node for node in self.nodes if node != old.leader)
        return new

    def open_producer(self, channel: str, name: str) -> dict[str, Any]:
        channel_id = self.log(channel).channel_id
        producer_id, epoch = self._producers.get((channel_id, name), (len(self._producers) + 1, 0))
        self._producers[channel_id, name] = (producer_id, epoch + 1)
        return {"producer_id": producer_id, "epoch": epoch + 1, "channel_id": channel_id}

    def close_producer(self, request: dict[str, Any]) -> dict[str, Any]:
        ids = [key for key, (producer_id, _) in self._producers.items() if producer_id == request["producer_id"]]
        self.closed += ids
        return {"closed": bool(ids)}

    def describe(self, node: str, request: dict[str, Any]) -> dict[str, Any]:
        names = request["channels"]
        after = request.get("after", "")
        if names is None:
            wanted = sorted(name for name in self.logs if name > after)[: request.get("limit", 1000)]
        else:
            wanted = [name for name in names if name in self.logs]
        stale = {} if request["barrier"] else self.stale
        return {
            "cluster": "00" * 16,
            "node": node,
            "metadata_leader": "n1",
            "index": 1,
            "nodes": [
                {
                    "node": one.name,
                    "state": "active",
                    "incarnation": 1,
                    "addresses": {"link": one.address},
                    "host": "",
                    "tags": [],
                }
                for one in self.nodes.values()
            ],
            "channels": [stale.get(name) or self.logs[name].describe() for name in wanted],
            "missing": [name for name in names or [] if name not in self.logs],
            "next": None,
        }


@asynccontextmanager
async def fake_cluster(*channels: str, count: int = 3) -> AsyncIterator[FakeCluster]:
    """A running cluster with these channels, led by n1."""
    cluster = FakeCluster(count)
    for node in cluster.nodes.values():
        await node.start()
    for channel in channels:
        cluster.create(channel)
    try:
        yield cluster
    finally:
        for node in cluster.nodes.values():
            await node.stop()


@asynccontextmanager
async def fake_client(
    *channels: str, count: int = 3, options: ClientOptions = QUICK
) -> AsyncIterator[tuple[FakeCluster, Client]]:
    """A running cluster and a client of it."""
    async with (
        fake_cluster(*channels, count=count) as cluster,
        await connect(cluster.addresses, insecure_dev=True, options=options) as client,
    ):
        yield cluster, client


@contextmanager
def cluster_in_a_thread(*channels: str, count: int = 3) -> Iterator[FakeCluster]:
    """A fake cluster for tests that have no loop of their own."""
    ready = threading.Event()
    found: list[Any] = []

    async def serve() -> None:
        stop = asyncio.Event()
        async with fake_cluster(*channels, count=count) as cluster:
            found.extend([cluster, asyncio.get_running_loop(), stop])
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(WAIT_S)
    cluster, loop, stop = found
    try:
        yield cluster
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(WAIT_S)
