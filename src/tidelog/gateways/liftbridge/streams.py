"""The catalog as Liftbridge's clients see it: streams, their partitions, brokers.

Answers come from this node's copy of the catalog. What is missing there is looked up again after a read barrier, so a
stream that was just created at another node is found.

LS1  A stream exists if its partition 0 does. Its partitions are 0, 1, ... up to the first missing number.
LS2  A caller without any grant on a stream does not see it.
LS3  Every node that a partition names is listed as a broker: Go clients crash otherwise.
LS4  Every broker's address answers: Go clients dial all of them and give up if one does not. A node that is fenced,
     that this node has no link to, or that has no gateway, is listed with the address of the node that answers the
     call, which takes every call but Subscribe for a partition that it does not lead. While the catalog does not have
     that node's address, it is the one on which its gateway listens.
LS5  A refusal never rests on an old catalog: before it is given, the catalog is brought up to date once and the
     decision repeated. If that takes longer than `RECHECK_MS`, the refusal stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from tidelog.cluster.clients.rechecks import RECHECK_MS, SharedBarrier
from tidelog.cluster.local_channels import LocalChannels
from tidelog.codecs.nats_subjects import attached_subject
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.codecs.stream_names import PARTITIONS_MAX, StreamPlace, channel_of, place_of
from tidelog.config import split_address
from tidelog.core.catalog import Catalog, ChannelRecord, NodeRecord, NodeState
from tidelog.errors import LogError
from tidelog.gateways.liftbridge.names import CURSORS_STREAM, PARTITION, StreamFacts, facts_of
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError, Status
from tidelog.gateways.liftbridge.times import PartitionTimes

NODE_ADDRESS: Final = "liftbridge"
"""The key of this gateway among a node's addresses."""
_NS_PER_MS: Final = 1_000_000
_PER_TURN: Final = 50
_KNOWN_MAX: Final = 10_000

Seen = Callable[[str], bool]
"""Whether the caller may see a channel."""

T = TypeVar("T")


class Streams:
    """The streams of one node's catalog."""

    def __init__(self, channels: LocalChannels, *, address: str) -> None:
        """`address`: where clients reach this gateway, used while the catalog does not have it (LS4)."""
        self._channels = channels
        self._address = address
        self.barrier = SharedBarrier(lambda: channels.read_barrier())
        self.times = PartitionTimes(channels)
        self._known_index = -1
        self._known: dict[StreamPlace, ChannelRecord] = {}
        """Partitions above 0, valid at `_known_index`: finding one takes a walk over those before it."""
        self._subjects_index = -1
        self._subjects: dict[str, list[StreamPlace]] = {}

    @property
    def catalog(self) -> Catalog:
        return self._channels.catalog

    # --- one partition -------------------------------------------------------------------------------

    def find(self, place: StreamPlace) -> ChannelRecord | None:
        """The partition's channel in this node's catalog."""
        catalog = self.catalog
        if place.partition == 0:
            return catalog.channel(place.stream)
        if not 0 < place.partition < PARTITIONS_MAX:
            return None
        if catalog.applied_index != self._known_index or len(self._known) > _KNOWN_MAX:
            self._known_index = catalog.applied_index
            self._known.clear()
        record = self._known.get(place)
        if record is None:
            records = self.partitions(place.stream)
            if place.partition >= len(records):
                return None
            record = self._known[place] = records[place.partition]
        return record

    async def catch_up(self) -> None:
        """Wait until this node's catalog has everything that was committed before the call."""
        await self.barrier.wait()

    async def judged(self, judge: Callable[[], T]) -> T:
        """The result of `judge`. If it refuses, it is called once more with a newer catalog (LS5)."""
        try:
            return judge()
        except (LogError, GatewayRefusedError):
            await self.look_again()
            return judge()

    async def look_again(self) -> None:
        """Like `catch_up`, but gives up after `RECHECK_MS`."""
        try:
            async with asyncio.timeout(RECHECK_MS / 1000):
                await self.catch_up()
        except (LogError, TimeoutError):
            return  # the local catalog has to do

    async def require(self, place: StreamPlace) -> ChannelRecord:
        if self.find(place) is None:
            await self.catch_up()
        return self.found(place)

    def found(self, place: StreamPlace) -> ChannelRecord:
        """The partition's channel in this node's catalog; raises if there is none."""
        record = self.find(place)
        if record is None:
            raise no_partition(place)
        return record

    def partitions(self, stream: str) -> list[ChannelRecord]:
        """In order; empty if there is no such stream (LS1)."""
        catalog = self.catalog
        found: list[ChannelRecord] = []
        while len(found) < PARTITIONS_MAX and (record := catalog.channel(channel_of(stream, len(found)))) is not None:
            found.append(record)
        return found

    async def require_partitions(self, stream: str, wanted: Iterable[int] = ()) -> list[ChannelRecord]:
        """The partitions `wanted` of a stream, all by default; raises if one does not exist."""
        await self.catch_up()
        records = self.partitions(stream)
        if not records:
            raise GatewayRefusedError(Status.NOT_FOUND, f"there is no stream {stream[:80]!a}")
        numbers = sorted(set(wanted))
        if numbers and not 0 <= numbers[0] <= numbers[-1] < len(records):
            raise GatewayRefusedError(
                Status.NOT_FOUND,
                f"stream {stream!r} has partitions 0 to {len(records) - 1}, and not all of {numbers[:20]}",
            )
        return [records[number] for number in numbers] if numbers else records

    def facts(self, stream: str) -> StreamFacts:
        record = self.catalog.channel(stream)
        return StreamFacts(stream, "", False) if record is None else facts_of(stream, record.config)

    def listening(self, subject: str) -> list[StreamPlace]:
        """Partitions attached to a subject."""
        catalog = self.catalog
        if catalog.applied_index != self._subjects_index:
            self._subjects = {}
            for stream in self._names():
                facts = self.facts(stream)
                for partition, _ in enumerate(self.partitions(stream)):
                    fed = attached_subject(facts.subject, partition)
                    self._subjects.setdefault(fed, []).append(StreamPlace(stream, partition))
            self._subjects_index = catalog.applied_index
        return self._subjects.get(subject, [])

    def _names(self) -> list[str]:
        """Names of all streams: channels that are not a partition above 0 of another stream."""
        return sorted(record.name for record in self.catalog.channels() if self._is_stream(record))

    def _is_stream(self, record: ChannelRecord) -> bool:
        stream, partition = place_of(record.name)
        if partition == 0:
            return True
        is_ours = any(key == PARTITION for key, _ in record.config.placement_metadata)
        return not is_ours and self.find(StreamPlace(stream, partition)) is None

    # --- responses -----------------------------------------------------------------------------------

    async def metadata(self, request: pb.FetchMetadataRequest, sees: Seen) -> pb.FetchMetadataResponse:
        response = pb.FetchMetadataResponse()
        names = list(dict.fromkeys(request.streams)) or [*self._names(), CURSORS_STREAM]
        unknown = [group for group in request.groups if self.catalog.group(group) is None]
        if request.streams:
            streams = [name for name in names if name != CURSORS_STREAM]
            unknown += [name for name in streams if not self.partitions(name) or not sees(name)]
        if unknown:
            await self.catch_up()
        for number, name in enumerate(names):
            if number % _PER_TURN == _PER_TURN - 1:
                await asyncio.sleep(0)  # without a break, thousands of streams would delay heartbeats
            if name == CURSORS_STREAM:
                response.streamMetadata.append(self._cursors_stream())
            elif sees(name):
                response.streamMetadata.append(self._stream(name))
            elif request.streams:
                response.streamMetadata.append(_unknown(name))  # LS2: as if it did not exist
        response.brokers.extend(self._brokers())
        return response

    def _stream(self, name: str) -> pb.StreamMetadata:
        records = self.partitions(name)
        if not records:
            return _unknown(name)
        found = pb.StreamMetadata(
            name=name, subject=self.facts(name).subject, creationTimestamp=records[0].created_at_ms * _NS_PER_MS
        )
        for number, record in enumerate(records):
            found.partitions[number].CopyFrom(self.partition(number, record))
        return found

    def partition(self, number: int, record: ChannelRecord) -> pb.PartitionMetadata:
        """Offsets are those of this node's replica, -1 without one; exact on the leader."""
        here = self._channels.channel_here(record.channel_id)
        found = pb.PartitionMetadata(
            id=number,
            leader=record.leader or "",
            replicas=record.replicas,
            isr=record.isr_nodes,
            highWatermark=-1 if here is None else here["committed_end"] - 1,
            newestOffset=-1 if here is None else here["log_end"] - 1,
            paused=record.paused,
            readonly=record.readonly,
        )
        self.times.fill(record.channel_id, found)
        return found

    def _cursors_stream(self) -> pb.StreamMetadata:
        """Clients send cursors to the leader of this stream. Every node takes them, so this one is named."""
        name = self._channels.node
        found = pb.StreamMetadata(name=CURSORS_STREAM, subject=CURSORS_STREAM)
        partition = pb.PartitionMetadata(leader=name, replicas=[name], isr=[name], highWatermark=-1, newestOffset=-1)
        found.partitions[0].CopyFrom(partition)
        return found

    def _brokers(self) -> list[pb.Broker]:
        """Active and fenced nodes, and all others that hold a replica (LS3)."""
        catalog = self.catalog
        here = (NodeState.ACTIVE, NodeState.FENCED)
        own = catalog.node(self._channels.node)
        fallback = (None if own is None else _gateway_of(own)) or self._address
        return [
            self._broker(record, fallback)
            for record in catalog.nodes()
            if record.state in here or catalog.replica_count(record.node)
        ]

    def _broker(self, record: NodeRecord, fallback: str) -> pb.Broker:
        """With its own gateway's address if it answers as far as this node knows, else with `fallback` (LS4)."""
        catalog, channels = self.catalog, self._channels
        is_reached = record.node == channels.node or channels.is_linked(record.node)
        gateway = _gateway_of(record) if record.state is NodeState.ACTIVE and is_reached else None
        host, port = split_address(gateway or fallback)
        return pb.Broker(
            id=record.node,
            host=host,
            port=port,
            partitionCount=catalog.replica_count(record.node),
            leaderCount=catalog.leader_count(record.node),
        )


def _gateway_of(record: NodeRecord) -> str | None:
    return dict(record.addresses).get(NODE_ADDRESS)


def no_partition(place: StreamPlace) -> GatewayRefusedError:
    return GatewayRefusedError(Status.NOT_FOUND, f"there is no partition {place.partition} of {place.stream[:80]!a}")


def require_stream(name: str) -> None:
    """For Publish and cursors, which answer a missing name and an unknown one differently, as Liftbridge does."""
    if not name:
        raise GatewayRefusedError(Status.INVALID_ARGUMENT, "no stream provided; name the stream")


def _unknown(name: str) -> pb.StreamMetadata:
    return pb.StreamMetadata(name=name, error=pb.StreamMetadata.UNKNOWN_STREAM)
