"""The node's side of the client protocol, over real links: allowed or denied, bounded, every block answered once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.blocks.crafted import steady_frames
from tests.cluster.test_channel_admin import Metadata, admin_of
from tests.core.catalog_kit import Cluster
from tests.patience import wait_until
from tests.transports.links import HOST, TIMEOUT_MS, Recorder, plain_end, refusal_of
from tidelog.blocks.block import Block, MadeBlock, iterate_blocks
from tidelog.blocks.control import EpochStarted, encode_control
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.header import NO_PRODUCER
from tidelog.blocks.messages import encode_values
from tidelog.cluster.clients.access import ClientAccess
from tidelog.cluster.clients.produce import ClientLimits
from tidelog.cluster.clients.requests import AtSeq, AtTime, Earliest, Latest, Place
from tidelog.cluster.clients.service import ClientService
from tidelog.cluster.local_channels import OffsetsAnswer
from tidelog.codecs.client_codec import (
    ALTER,
    CREATE,
    CURSOR,
    DESCRIBE,
    FETCH,
    OFFSETS,
    OPEN_PRODUCER,
    PRODUCE,
    PRODUCED,
    decode_answer,
    decode_fetched,
    decode_produced,
    encode_fetch,
    encode_json,
    encode_produce,
)
from tidelog.core.catalog import (
    AddGrant,
    Catalog,
    ChannelConfig,
    DeleteChannel,
    OpenProducer,
    PauseChannel,
    RemoveGrant,
    SetReadonly,
    ShrinkReason,
)
from tidelog.core.client_messages import AckPolicy, Fetch, Fetched, Produce, Produced
from tidelog.errors import (
    AccessDenied,
    BadMessage,
    BlockCorrupt,
    BlockTruncated,
    ChannelDeleted,
    ChannelPaused,
    ChannelReadonly,
    InvalidConfig,
    InvalidRecord,
    LogError,
    NoReplicaHere,
    NotChannelLeader,
    NotEnoughReplicas,
    NotLeader,
    OffsetOutOfRange,
    ProducerFenced,
    ProducerNotYetKnown,
    ProducerOwned,
    TooManyInFlight,
    TooManyWaits,
    UnknownChannel,
    UnknownMethod,
    UnknownProducer,
)
from tidelog.pki.identity import Kind
from tidelog.transports.link.link import Buffers, Link, LinkListener, LinkOptions, dial_link

PLOTTER = "client:plotter"


class ChannelsInMemory:
    """A node with its logs in memory; it keeps what it should answer later, if told to."""

    node = "n1"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.metadata_leader: str | None = "n2"
        self.logs: dict[int, list[Block]] = {}
        self.held: list[Callable[[], None]] | None = None
        """Answers that wait, if any shall."""
        self.refuses: LogError | None = None
        self.appended = asyncio.Event()
        self.places: list[Place] = []
        self.fetched_for_node: list[bool] = []
        self.named: dict[int, dict[str, int]] = {}
        self.barriers = 0
        self.is_joining = False

    @property
    def catalog(self) -> Catalog:
        if self.is_joining:
            raise NotLeader(leader=None)
        return self.cluster.catalog

    def channel_here(self, channel_id: int) -> Mapping[str, Any] | None:
        channel = self.catalog.channel(channel_id)
        if channel is None or self.node not in channel.replicas:
            return None
        return {"role": "leader" if channel.leader == self.node else "replica", "log_end": self.end(channel_id)}

    def end(self, channel_id: int) -> int:
        log = self.logs.get(channel_id)
        return log[-1].offsets.stop if log else 0

    def produce(self, request: Produce, made: MadeBlock, answer: Callable[[Produced], None]) -> None:
        if self.refuses is not None:
            raise self.refuses
        block = made.stamp(
            base_offset=self.end(request.channel_id),
            channel_id=request.channel_id,
            leader_epoch=1,
            append_time_us=1,
            durable_end=0,
            path=3,
        )
        self.logs.setdefault(request.channel_id, []).append(block)
        self.appended.set()
        produced = Produced(token=request.token, first_offset=block.leader.base_offset)
        if self.held is None:
            answer(produced)
        else:
            self.held.append(lambda: answer(produced))

    async def fetch(self, fetch: Fetch, *, for_node: bool = False) -> Fetched:
        self.fetched_for_node.append(for_node)
        while fetch.offset == self.end(fetch.channel_id) and fetch.wait_ms:
            self.appended.clear()
            try:
                async with asyncio.timeout(fetch.wait_ms / 1000):
                    await self.appended.wait()
            except TimeoutError:
                break
        end = self.end(fetch.channel_id)
        if fetch.offset > end:
            raise OffsetOutOfRange(offset=fetch.offset, log_start=0, log_end=end)
        data: list[Any] = []
        for block in self.logs.get(fetch.channel_id, []):
            if block.offsets.stop > fetch.offset and sum(map(len, data)) < fetch.bytes_max:
                data += block.buffers
        return Fetched(leader_epoch=1, committed_end=end, log_start=0, data=data)

    async def offset_at(self, channel_id: int, at: Place) -> OffsetsAnswer:
        self.places.append(at)
        return OffsetsAnswer(offset=3, committed_end=self.end(channel_id), log_start=0, leader_epoch=1)

    async def cursors(self, channel_id: int) -> Mapping[str, int]:
        return self.named.get(channel_id, {})

    async def set_cursor(self, channel_id: int, name: str, offset: int | None) -> None:
        named = self.named.setdefault(channel_id, {})
        if offset is None:
            named.pop(name, None)
        else:
            named[name] = offset

    async def read_barrier(self) -> None:
        self.barriers += 1


class NodeEnd:
    """A node's link handler that leaves everything to the service."""

    def __init__(self, service: ClientService) -> None:
        self.service = service

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        self.service.on_message(link, kind, body)

    def on_turn(self) -> None:
        self.service.flush()

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        assert self.service.serves(kind)
        return await self.service.on_request(link, kind, body)


class Client:
    """The other end: what it asked, and what it was answered, by token."""

    def __init__(self, link: Link, heard: Recorder) -> None:
        self.link = link
        self._heard = heard

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, kind, body in self._heard.messages if kind == PRODUCED]

    @property
    def answers(self) -> list[Produced]:
        return [answer for body in self.bodies for answer in decode_produced(memoryview(body))]

    async def ask(self, kind: int, **request: Any) -> dict[str, Any]:
        return decode_answer(await self.link.request(kind, encode_json(request), timeout_ms=TIMEOUT_MS))

    async def fetch(self, channel_id: int, offset: int, *, wait_ms: int = 0, bytes_max: int = 1 << 20) -> Fetched:
        fetch = Fetch(channel_id=channel_id, offset=offset, bytes_max=bytes_max, wait_ms=wait_ms)
        return decode_fetched(await self.link.request(FETCH, encode_fetch(fetch), timeout_ms=TIMEOUT_MS))

    def send(self, *produces: Produce) -> None:
        self.link.post(PRODUCE, encode_produce(produces))

    async def produce(self, produce: Produce) -> Produced:
        before = len(self.answers)
        self.send(produce)
        await wait_until(lambda: len(self.answers) > before)
        return self.answers[-1]

    async def refusal(self, produce: Produce) -> LogError:
        error = (await self.produce(produce)).error
        assert error is not None
        return error


class World:
    def __init__(self, *, limits: ClientLimits | None = None, insecure_dev: bool = False) -> None:
        self.metadata = Metadata("n1", "n2", "n3")
        self.cluster = self.metadata.cluster
        self.channels = ChannelsInMemory(self.cluster)
        access = ClientAccess(catalog=lambda: self.cluster.catalog, now_ms=lambda: 0, insecure_dev=insecure_dev)
        admin = admin_of(self.metadata, insecure_dev=insecure_dev)
        # The part of `LocalChannels` that clients need.
        self.service = ClientService(self.channels, admin=admin, access=access, limits=limits)  # type: ignore[arg-type]
        self.bus = self.cluster.create("n1", "n2", "n3", name="bus")
        self.listener: LinkListener | None = None
        self.dialled: list[Link] = []

    def grant(self, scope: str, channels: str = "bus") -> None:
        self.cluster.take(AddGrant(principal=PLOTTER, scope=scope, channels=channels))

    async def client(
        self, kind: Kind = "operator", name: str = "plotter", options: LinkOptions | None = None
    ) -> Client:
        assert self.listener is not None
        heard = Recorder()
        end = replace(plain_end(name, cluster=b"", options=options), kind=kind)
        link = await dial_link(f"{HOST}:{self.listener.port}", end=end, handler=heard)
        self.dialled.append(link)
        return Client(link, heard)


@asynccontextmanager
async def opened(world: World, *, options: LinkOptions | None = None) -> AsyncIterator[World]:
    links: list[Link] = []
    world.listener = LinkListener(
        f"{HOST}:0",
        end=plain_end("n1", options=options),
        handler=NodeEnd(world.service),
        on_link=links.append,
        allowed_kinds=("node", "operator", "client"),
    )
    await world.listener.start()
    try:
        yield world
    finally:
        for link in (*links, *world.dialled):
            link.abort("the test is over")
        await world.listener.close()


def run(work: Callable[[World], Awaitable[None]], world: World | None = None) -> None:
    async def whole() -> None:
        async with opened(world or World()) as there:
            await work(there)

    asyncio.run(whole())


def block(*values: bytes, base_seq: int = 0, producer: bytes = NO_PRODUCER) -> MadeBlock:
    return encode_values(values or (b"value",), time_us=1, base_seq=base_seq, producer=producer)


def produce(channel_id: int, made: MadeBlock | None = None, *, token: int = 1, epoch: int = 0) -> Produce:
    return Produce(
        token=token,
        channel_id=channel_id,
        leader_epoch=epoch,
        ack=AckPolicy.ALL,
        block=(made or block()).buffers,
    )


# --- producing ---------------------------------------------------------------------------------------


def test_a_block_is_appended_as_it_was_made_and_answered_with_its_offset() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        first = await client.produce(produce(world.bus, block(b"a", b"b"), token=7))
        second = await client.produce(produce(world.bus, token=8, epoch=1))
        assert (first, second) == (Produced(token=7, first_offset=0), Produced(token=8, first_offset=2))
        assert b"".join(world.channels.logs[world.bus][0].made().buffers) == b"".join(block(b"a", b"b").buffers)
        assert world.service.statistics().blocks_taken == 2

    run(work)


def test_large_blocks_arrive_whole() -> None:
    value = random.Random(3).randbytes(3_000_000)

    async def work(world: World) -> None:
        client = await world.client()
        assert (await client.produce(produce(world.bus, block(value)))).error is None
        fetched = await client.fetch(world.bus, 0)
        (found,) = iterate_blocks(fetched.data[0])
        assert found.tobytes() == world.channels.logs[world.bus][0].tobytes()

    run(work)


def test_answers_of_one_turn_go_in_few_messages_and_in_order() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        world.channels.held = []
        for start in range(0, 2_000, 50):
            client.send(*(produce(world.bus, token=token) for token in range(start, start + 50)))
        await wait_until(lambda: len(world.channels.held or ()) == 2_000)
        assert client.answers == []
        for answer in world.channels.held:
            answer()
        await wait_until(lambda: len(client.answers) == 2_000)
        assert [answer.token for answer in client.answers] == list(range(2_000))
        assert [answer.first_offset for answer in client.answers] == list(range(2_000))
        assert len(client.bodies) <= 4
        assert world.service.statistics().in_flight_bytes == 0

    run(work)


def refused_blocks(world: World) -> dict[str, tuple[Produce, type[LogError]]]:
    """Everything that can stand against a block, each with the error that says so."""
    cluster = world.cluster

    def change(channel_id: int) -> dict[str, int]:
        return {"channel_id": channel_id, "expected_channel_epoch": cluster.channel(channel_id).channel_epoch}

    paused = cluster.create("n1", "n2", name="paused", config=ChannelConfig(factor=2))
    cluster.take(PauseChannel(**change(paused)))
    readonly = cluster.create("n1", "n2", name="readonly", config=ChannelConfig(factor=2))
    cluster.take(SetReadonly(**change(readonly), readonly=True))
    deleted = cluster.create("n1", name="deleted", config=ChannelConfig(factor=1))
    cluster.take(DeleteChannel(**change(deleted), at_ms=1))
    elsewhere = cluster.create("n2", "n1", name="elsewhere", config=ChannelConfig(factor=2))
    nobody = cluster.create("n1", "n2", name="nobody", config=ChannelConfig(factor=2))
    cluster.take(cluster.elect(nobody, None))
    thin = cluster.create("n1", "n2", name="thin", config=ChannelConfig(factor=2, min_isr=2))
    cluster.take(cluster.shrink(thin, "n2", reason=ShrinkReason.LAGGING))
    whole = b"".join(block().buffers)
    damaged = Produce(
        token=1, channel_id=world.bus, leader_epoch=0, ack=AckPolicy.ALL, block=(whole[:-1] + bytes([whole[-1] ^ 1]),)
    )
    nothing = Produce(token=1, channel_id=world.bus, leader_epoch=0, ack=AckPolicy.ALL, block=(b"",))
    control = encode_control([EpochStarted(epoch=9, node="n1")], time_us=1)
    return {
        "paused": (produce(paused), ChannelPaused),
        "readonly": (produce(readonly), ChannelReadonly),
        "deleted": (produce(deleted), ChannelDeleted),
        "unknown": (produce(9_999), UnknownChannel),
        "elsewhere": (produce(elsewhere), NotChannelLeader),
        "nobody": (produce(nobody), NotChannelLeader),
        "another epoch": (produce(world.bus, epoch=5), NotChannelLeader),
        "below min ISR": (produce(thin), NotEnoughReplicas),
        "damaged": (damaged, BlockCorrupt),
        "nothing": (nothing, BlockTruncated),
        "control": (produce(world.bus, control), InvalidRecord),
        "empty": (produce(world.bus, encode_values((), time_us=1)), InvalidRecord),
        "unknown producer": (produce(world.bus, block(base_seq=1, producer=b"x" * 16)), ProducerNotYetKnown),
        "lineage": (produce(world.bus, encode_frames(steady_frames(3), base_seq=1, producer=b"x" * 16)), InvalidRecord),
    }


def test_whatever_stands_against_a_block_is_a_typed_error_that_leaves_no_doubt() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        for case, (request, error_class) in refused_blocks(world).items():
            error = await client.refusal(request)
            assert isinstance(error, error_class), f"{case}: {error!r}"
            assert error.definite, case
        assert world.channels.logs == {}
        assert world.service.statistics().in_flight_bytes == 0
        assert (await client.produce(produce(world.bus))).error is None, "the link stays open"

    run(work)


def test_who_leads_instead_is_told_with_its_address() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        elsewhere = world.cluster.create("n2", "n1", name="elsewhere", config=ChannelConfig(factor=2))
        error = await client.refusal(produce(elsewhere))
        assert isinstance(error, NotChannelLeader)
        assert (error.channel, error.leader, error.address, error.leader_epoch) == (
            "elsewhere",
            "n2",
            "n2.example:7400",
            1,
        )
        # What the replica itself says gets its address on the way.
        world.channels.refuses = NotChannelLeader(channel="bus", leader="n3", leader_epoch=4)
        error = await client.refusal(produce(world.bus))
        assert isinstance(error, NotChannelLeader)
        assert (error.address, error.leader_epoch) == ("n3.example:7400", 4)

    run(work)


def test_a_body_that_cannot_be_read_ends_the_link() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        client.link.post(PRODUCE, b"nonsense")
        await wait_until(lambda: client.link.is_closed)
        assert world.service.statistics().links == 0

    run(work)


@pytest.mark.parametrize("seed", range(5))
def test_every_block_is_answered_once_however_answers_and_links_come_and_go(seed: int) -> None:
    dice = random.Random(seed)

    async def work(world: World) -> None:
        held = world.channels.held = []
        clients = [await world.client("operator", f"o{number}") for number in range(4)]
        tokens = [0] * len(clients)
        gone: set[int] = set()
        for _ in range(200):
            number = dice.randrange(len(clients))
            if dice.random() < 0.6 and number not in gone:
                count = dice.randint(1, 5)
                channels = dice.choices((world.bus, 9_999), weights=(2, 1), k=count)
                made = [produce(channel, token=tokens[number] + n) for n, channel in enumerate(channels)]
                tokens[number] += count
                clients[number].send(*made)
            elif held and dice.random() < 0.8:
                held.pop(dice.randrange(len(held)))()
            elif len(gone) < 2 and dice.random() < 0.05:
                gone.add(number)
                clients[number].link.abort("the client went away")
            if dice.random() < 0.3:
                await asyncio.sleep(0)
        stay = [number for number in range(len(clients)) if number not in gone]
        # A request on each link comes after all that was sent on it.
        for number in stay:
            await clients[number].ask(DESCRIBE, channels=[])
        while held:
            held.pop(dice.randrange(len(held)))()
        for number in stay:
            await wait_until(lambda number=number: len(clients[number].answers) >= tokens[number])  # type: ignore[misc]
            found = sorted(answer.token for answer in clients[number].answers)
            assert found == list(range(tokens[number])), f"seed {seed}: PR1"
        await wait_until(lambda: world.service.statistics().links == len(stay))
        assert world.service.statistics().in_flight_bytes == 0, f"seed {seed}: PR2"

    run(work)


def test_a_node_that_has_no_catalog_yet_says_so() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        world.channels.is_joining = True
        assert isinstance(await client.refusal(produce(world.bus)), NotLeader)
        with pytest.raises(NotLeader):
            await client.ask(DESCRIBE, channels=[])
        with pytest.raises(NotLeader):
            await client.fetch(world.bus, 0)

    run(work)


# --- producers -----------------------------------------------------------------------------------------


def test_a_producer_writes_under_its_own_id_and_newest_epoch_only() -> None:
    async def work(world: World) -> None:
        operator = await world.client()
        found = await operator.ask(OPEN_PRODUCER, channel="bus", name="p")

        def named(epoch: int, producer_id: int = found["producer_id"]) -> Produce:
            producer = producer_id.to_bytes(8, "little") + epoch.to_bytes(8, "little")
            return produce(world.bus, block(base_seq=1, producer=producer))

        assert found["epoch"] == 1
        assert (await operator.produce(named(1))).error is None
        assert isinstance(await operator.refusal(named(2)), ProducerNotYetKnown)
        await operator.ask(OPEN_PRODUCER, channel="bus", name="p")
        fenced = await operator.refusal(named(1))
        assert isinstance(fenced, ProducerFenced)
        assert (fenced.epoch, fenced.newest) == (1, 2)
        assert not fenced.retriable
        world.grant("write:data")
        client = await world.client("client")
        assert isinstance(await client.refusal(named(2)), ProducerOwned)
        other = world.cluster.create("n1", name="other", config=ChannelConfig(factor=1))
        opening = OpenProducer(channel_id=other, name="p", owner="operator:plotter", at_ms=1)
        world.cluster.take(opening)
        producer = world.cluster.catalog.producer_named(other, "p")
        assert producer is not None
        assert isinstance(await operator.refusal(named(1, producer.producer_id)), UnknownProducer)

    run(work)


# --- limits --------------------------------------------------------------------------------------------


def test_a_link_that_sends_more_than_it_may_have_in_flight_is_told_to_wait() -> None:
    size = sum(map(len, block(bytes(1_000)).buffers))
    limits = ClientLimits(produce_bytes_max=3 * size, produce_bytes_total_max=4 * size)

    async def work(world: World) -> None:
        greedy, other = await world.client(), await world.client("operator", "other")
        world.channels.held = []
        greedy.send(*(produce(world.bus, block(bytes(1_000)), token=token) for token in range(5)))
        await wait_until(lambda: len(greedy.answers) == 2)
        assert [answer.token for answer in greedy.answers] == [3, 4]
        error = greedy.answers[0].error
        assert isinstance(error, TooManyInFlight)
        assert (error.retriable, error.definite, error.bytes_max) == (True, True, 3 * size)
        # All links together have a limit too.
        other.send(*(produce(world.bus, block(bytes(1_000)), token=token) for token in range(2)))
        await wait_until(lambda: len(other.answers) == 1)
        assert isinstance(other.answers[0].error, TooManyInFlight)
        for answer in world.channels.held:
            answer()
        world.channels.held = None
        await wait_until(lambda: len(greedy.answers) == 5)
        assert (await greedy.produce(produce(world.bus, block(bytes(1_000))))).error is None

    run(work, World(limits=limits))


def test_a_block_larger_than_the_limit_gets_through_alone() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        assert (await client.produce(produce(world.bus, block(bytes(10_000))))).error is None

    run(work, World(limits=ClientLimits(produce_bytes_max=100, produce_bytes_total_max=100)))


def test_what_a_link_had_in_flight_is_free_again_when_it_ends() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        world.channels.held = []
        client.send(produce(world.bus))
        await wait_until(lambda: bool(world.channels.held))
        assert world.service.statistics().in_flight_bytes > 0
        client.link.abort("gone")
        await wait_until(lambda: world.service.statistics().links == 0)
        world.channels.held[0]()
        assert world.service.statistics().in_flight_bytes == 0

    run(work)


async def test_a_client_that_takes_no_answers_loses_its_link() -> None:
    small = LinkOptions(queue_bytes_max=30_000)

    async with opened(World(), options=small) as world:
        client = await world.client()
        world.channels.held = []
        # More answers than the queue of the link holds, all in one turn.
        for start in range(0, 4_000, 100):
            client.send(*(produce(world.bus, token=token) for token in range(start, start + 100)))
        await wait_until(lambda: len(world.channels.held or ()) == 4_000)
        for answer in world.channels.held:
            answer()
        await wait_until(lambda: client.link.is_closed)


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidConfig) as caught:
        ClientLimits(produce_bytes_max=10, produce_bytes_total_max=5, fetch_waits_max=0)
    assert len(caught.value.problems) == 2


# --- fetching ------------------------------------------------------------------------------------------


def test_a_fetch_waits_for_records_and_is_answered_when_they_come() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        reader = asyncio.ensure_future(client.fetch(world.bus, 0, wait_ms=30_000))
        await wait_until(lambda: world.service.statistics().fetches_waiting == 1)
        await client.produce(produce(world.bus, block(b"news")))
        fetched = await reader
        assert fetched.committed_end == 1
        assert [found.offsets for found in iterate_blocks(fetched.data[0])] == [range(1)]
        assert world.service.statistics().fetches_waiting == 0

    run(work)


def test_only_so_many_fetches_of_a_link_wait() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        waiting = [asyncio.ensure_future(client.fetch(world.bus, 0, wait_ms=30_000)) for _ in range(2)]
        await wait_until(lambda: world.service.statistics().fetches_waiting == 2)
        with pytest.raises(TooManyWaits):
            await client.fetch(world.bus, 0, wait_ms=30_000)
        assert (await client.fetch(world.bus, 0)).data == (), "without waiting it is served"
        other = await world.client("operator", "other")
        waiting.append(asyncio.ensure_future(other.fetch(world.bus, 0, wait_ms=30_000)))
        await wait_until(lambda: world.service.statistics().fetches_waiting == 3)
        for task in waiting:
            task.cancel()
        await wait_until(lambda: world.service.statistics().fetches_waiting == 0)

    run(work, World(limits=ClientLimits(fetch_waits_max=2)))


def test_a_fetch_that_asks_for_too_much_gets_what_may_be() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        for _ in range(5):
            await client.produce(produce(world.bus, block(bytes(1_000))))
        fetched = await client.fetch(world.bus, 0, bytes_max=2**32 - 1)
        assert len(list(iterate_blocks(fetched.data[0]))) == 2

    run(work, World(limits=ClientLimits(fetch_bytes_max=1_500)))


def test_what_stands_against_a_fetch_is_a_typed_error() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        refused = refused_blocks(world)
        elsewhere = world.cluster.create("n2", "n3", name="not-here", config=ChannelConfig(factor=2))
        for channel_id, error_class in (
            (refused["paused"][0].channel_id, ChannelPaused),
            (refused["deleted"][0].channel_id, ChannelDeleted),
            (9_999, UnknownChannel),
        ):
            with pytest.raises(error_class):
                await client.fetch(channel_id, 0)
        with pytest.raises(NoReplicaHere) as caught:
            await client.fetch(elsewhere, 0)
        assert caught.value.replicas == ["n2", "n3"]
        with pytest.raises(OffsetOutOfRange) as beyond:
            await client.fetch(world.bus, 5)
        assert (beyond.value.offset, beyond.value.log_end) == (5, 0)

    run(work)


def test_only_a_node_that_repairs_is_given_what_is_not_served_yet() -> None:
    async def work(world: World) -> None:
        for kind in ("operator", "node"):
            client = await world.client(kind=kind)
            await client.fetch(world.bus, 0)
        assert world.channels.fetched_for_node == [False, True]

    run(work)


# --- offsets, cursors, describing --------------------------------------------------------------------------


def test_places_are_read_as_they_are_asked_for() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        lineage = bytes(range(16))
        for at in (
            "earliest",
            "latest",
            {"time_us": -5},
            {"seq": 7},
            {"seq": 8, "lineage": lineage.hex()},
            {"seq": 8, "lineage": None},
        ):
            found = await client.ask(OFFSETS, channel_id=world.bus, at=at)
            assert found == {"offset": 3, "committed_end": 0, "log_start": 0, "leader_epoch": 1}
        assert world.channels.places == [
            Earliest(),
            Latest(),
            AtTime(-5),
            AtSeq(7, None),
            AtSeq(8, lineage),
            AtSeq(8, None),
        ]
        for odd in ("first", 5, {"time_us": 1.5}, {"time_us": True}, {"seq": -1}, {"seq": 1, "lineage": "xy"}, {}):
            with pytest.raises(BadMessage):
                await client.ask(OFFSETS, channel_id=world.bus, at=odd)

    run(work)


def test_cursors_are_set_read_listed_and_deleted() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        key = {"channel_id": world.bus}
        assert await client.ask(CURSOR, **key, op="get", name="b") == {"name": "b", "offset": None}
        assert await client.ask(CURSOR, **key, op="set", name="b", offset=4) == {"name": "b", "offset": 4}
        await client.ask(CURSOR, **key, op="set", name="a", offset=0)
        assert await client.ask(CURSOR, **key, op="list") == {
            "cursors": [{"name": "a", "offset": 0}, {"name": "b", "offset": 4}]
        }
        await client.ask(CURSOR, **key, op="delete", name="b")
        assert await client.ask(CURSOR, **key, op="get", name="b") == {"name": "b", "offset": None}
        for odd in ({"op": "set", "name": "x"}, {"op": "get"}, {"op": "get", "name": "../x"}, {"op": "?", "name": "x"}):
            with pytest.raises(BadMessage):
                await client.ask(CURSOR, **key, **odd)

    run(work)


def test_a_description_has_nodes_channels_and_what_is_missing() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        found = await client.ask(DESCRIBE, channels=["bus", "gone"], barrier=True)
        assert world.channels.barriers == 1
        assert (found["node"], found["metadata_leader"], found["missing"]) == ("n1", "n2", ["gone"])
        assert [node["addresses"]["link"] for node in found["nodes"]] == [
            f"n{number}.example:7400" for number in (1, 2, 3)
        ]
        (bus,) = found["channels"]
        assert (bus["channel_id"], bus["leader"], bus["isr"]) == (world.bus, "n1", ["n1", "n2", "n3"])
        assert bus["here"] == {"role": "leader", "log_end": 0}
        assert bus["config"]["factor"] == 3

    run(work)


def test_all_channels_come_in_pages_by_name() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        for number in random.Random(5).sample(range(120), 120):
            world.cluster.create("n1", name=f"c{number:03}", config=ChannelConfig(factor=1))
        names: list[str] = []
        after: str | None = ""
        pages = 0
        while after is not None:
            page = await client.ask(DESCRIBE, channels=None, after=after, limit=50)
            names += [channel["name"] for channel in page["channels"]]
            after = page["next"]
            pages += 1
        assert names == ["bus", *(f"c{number:03}" for number in range(120))]
        assert pages == 3
        for odd in ({"limit": 0}, {"limit": 1_001}, {"channels": "bus"}, {"barrier": 1}, {"what": 1}):
            with pytest.raises(BadMessage):
                await client.ask(DESCRIBE, **odd)

    run(work)


# --- administration ------------------------------------------------------------------------------------


def test_channels_are_created_and_altered_over_the_link() -> None:
    async def work(world: World) -> None:
        client = await world.client()
        (result,) = (await client.ask(CREATE, channels=[{"name": "new", "config": {"factor": 2}}]))["results"]
        assert not result["existed"]
        answer = await client.ask(ALTER, channel="new", op="readonly")
        assert answer["channel"]["readonly"]
        with pytest.raises(UnknownChannel):
            await client.ask(ALTER, channel="none", op="readonly")

    run(work)


def test_a_node_passes_on_for_somebody_and_not_for_itself() -> None:
    async def work(world: World) -> None:
        node = await world.client("node", "n2")
        asked = {"channel": "bus", "op": "pause"}
        with pytest.raises(AccessDenied) as caught:
            await node.ask(ALTER, **{"for": PLOTTER, "ask": asked})
        assert caught.value.principal == PLOTTER
        assert (await node.ask(ALTER, **{"for": "operator:anna", "ask": asked}))["changed"]
        with pytest.raises(BadMessage):
            await node.ask(ALTER, **asked)
        # What only nodes may say is nothing from a client.
        world.grant("admin:channels")
        client = await world.client("client")
        with pytest.raises(BadMessage):
            await client.ask(ALTER, **{"for": "operator:anna", "ask": asked})

    run(work)


# --- who may -------------------------------------------------------------------------------------------


def reads(client: Client, channel_id: int) -> dict[str, Coroutine[Any, Any, object]]:
    return {
        "fetch": client.fetch(channel_id, 0),
        "offsets": client.ask(OFFSETS, channel_id=channel_id, at="latest"),
        "cursor": client.ask(CURSOR, channel_id=channel_id, op="set", name="x", offset=1),
    }


def test_a_client_may_nothing_until_it_is_granted() -> None:
    async def work(world: World) -> None:
        client = await world.client("client")
        denied = await client.refusal(produce(world.bus))
        assert isinstance(denied, AccessDenied)
        assert (denied.principal, denied.scope, denied.channel) == (PLOTTER, "write:data", "bus")
        requests = reads(client, world.bus) | {
            "describe": client.ask(DESCRIBE, channels=["bus"]),
            "describe what is not there": client.ask(DESCRIBE, channels=["gone"]),
            "alter": client.ask(ALTER, channel="bus", op="pause"),
            "open producer": client.ask(OPEN_PRODUCER, channel="bus", name="p"),
        }
        for case, request in requests.items():
            assert isinstance(await refusal_of(request), AccessDenied), case
        assert (await client.ask(DESCRIBE, channels=None))["channels"] == []
        assert (world.channels.logs, world.channels.named, world.cluster.channel(world.bus).paused) == ({}, {}, False)

    run(work)


def test_each_grant_permits_its_own_actions() -> None:
    async def work(world: World) -> None:
        world.cluster.create("n1", name="other", config=ChannelConfig(factor=1))
        client = await world.client("client")
        world.grant("read:data")
        for request in reads(client, world.bus).values():
            await request
        assert isinstance(await client.refusal(produce(world.bus)), AccessDenied)
        assert [one["name"] for one in (await client.ask(DESCRIBE, channels=None))["channels"]] == ["bus"]
        world.cluster.take(RemoveGrant(principal=PLOTTER, scope="read:data", channels="bus"))
        world.grant("write:data")
        assert (await client.produce(produce(world.bus))).error is None
        assert (await client.ask(DESCRIBE, channels=["bus"]))["channels"], "who writes must find the leader"
        with pytest.raises(AccessDenied):
            await client.fetch(world.bus, 0)

    run(work)


def test_a_grant_that_is_taken_back_ends_at_once() -> None:
    async def work(world: World) -> None:
        client = await world.client("client")
        world.grant("write:data")
        assert (await client.produce(produce(world.bus))).error is None
        world.cluster.take(RemoveGrant(principal=PLOTTER, scope="write:data", channels="bus"))
        assert isinstance(await client.refusal(produce(world.bus)), AccessDenied)

    run(work)


def test_in_development_clients_need_no_grants() -> None:
    async def work(world: World) -> None:
        client = await world.client("client")
        assert (await client.produce(produce(world.bus))).error is None
        assert (await client.fetch(world.bus, 0)).committed_end == 1
        assert "results" in await client.ask(CREATE, channels=[{"name": "new", "config": {}}])

    run(work, World(insecure_dev=True))


def test_kinds_that_are_not_the_services_are_unknown_to_it() -> None:
    async def work(world: World) -> None:
        assert not world.service.serves(0x0101)
        assert world.service.serves(PRODUCE)
        assert not world.service.serves(PRODUCED)
        client = await world.client()
        with pytest.raises(UnknownMethod):
            world.service.on_message(client.link, PRODUCED, memoryview(b""))

    run(work)
