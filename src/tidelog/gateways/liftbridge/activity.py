"""Publishes what happens to streams and consumer groups as messages of the stream `__activity`.

The catalog records these events while the channel `__activity` exists (`core.catalog.activity_rules`). The node that
leads the metadata publishes the pending events, oldest first, and removes them from the catalog once the messages are
committed.

LV1  Every event is published at least once, in the order of the catalog's log; a repeated event has the same id.
     Ids rise. While no node can publish, the catalog keeps the newest `EVENTS_MAX` events.
LV2  One node publishes at a time: all use the same producer name, so a node that opens it fences the previous one.
LV3  Partitions above 0 are created and deleted with their stream: only their pause and readonly events are published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidelog.client import Client, Producer
from tidelog.cluster.local_channels import LocalChannels
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.codecs.stream_names import StreamPlace, place_of
from tidelog.core.catalog import ACTIVITY_CHANNEL, BATCH_MAX, ActivityEvent, ForgetActivity, Happening, NodeState
from tidelog.core.catalog.channel_config import FACTOR_MAX
from tidelog.core.catalog.records import EVENTS_MAX
from tidelog.errors import ConfigMismatch, LogError
from tidelog.gateways.liftbridge.names import PARTITION

_LOOK_S: Final = 0.1
_AGAIN_S: Final = 1.0
_PRODUCER: Final = "activity"
_FORGET_MS: Final = 5_000


class ActivityPublisher:
    """One per gateway with `activity` on. Publishes while its node leads the metadata."""

    def __init__(self, channels: LocalChannels, *, client: Client, log: Callable[[str], None]) -> None:
        self._channels = channels
        self._client = client
        self._log = log
        self._producer: Producer | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_problem = ""

    def start(self) -> None:
        # The reference keeps the task alive; `stop` cancels it.
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._drop_producer()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if not (self._channels.is_registered and self._channels.is_metadata_leader):
                self._drop_producer()
                continue
            try:
                await self._publish()
                self._last_problem = ""
            except LogError as error:
                self._drop_producer()
                if error.code != self._last_problem:
                    self._last_problem = error.code
                    self._log(f"activity waits reason={error.code}")
                await asyncio.sleep(_AGAIN_S)

    def _drop_producer(self) -> None:
        if self._producer is not None:
            self._producer.abort()
            self._producer = None

    async def _publish(self) -> None:
        """Publish all pending events (LV1)."""
        catalog = self._channels.catalog
        if catalog.channel(ACTIVITY_CHANNEL) is None:
            await self._create()
            return
        events = catalog.activity(EVENTS_MAX)
        if not events:
            return
        messages = [found.SerializeToString() for event in events if (found := self.message_of(event)) is not None]
        if messages:
            if self._producer is None:
                self._producer = self._client.producer(ACTIVITY_CHANNEL, name=_PRODUCER)  # LV2
            await self._producer.send_many(messages)
        await self._channels.propose(ForgetActivity(upto_index=events[-1].index), timeout_ms=_FORGET_MS)

    async def _create(self) -> None:
        nodes = [record for record in self._channels.catalog.nodes() if record.state is NodeState.ACTIVE]
        try:
            await self._client.create_channel(ACTIVITY_CHANNEL, factor=max(1, min(len(nodes), FACTOR_MAX)))
        except ConfigMismatch:
            return  # another leader created it first, for another number of nodes

    @staticmethod
    def message_of(event: ActivityEvent) -> pb.ActivityStreamEvent | None:
        """The event as a Liftbridge message; None for events that Liftbridge does not have."""
        found = pb.ActivityStreamEvent(id=event.index * BATCH_MAX + event.position)
        is_further = any(key == PARTITION for key, _ in event.labels)
        place = place_of(event.name) if is_further else StreamPlace(event.name, 0)
        match event.happening:
            case Happening.CREATED | Happening.DELETED if place.partition:
                return None  # LV3
            case Happening.CREATED:
                found.op = pb.CREATE_STREAM
                partitions = range(event.partitions)
                found.createStreamOp.CopyFrom(pb.CreateStreamOp(stream=event.name, partitions=partitions))
            case Happening.DELETED:
                found.op = pb.DELETE_STREAM
                found.deleteStreamOp.stream = event.name
            case Happening.PAUSED:
                found.op = pb.PAUSE_STREAM
                found.pauseStreamOp.CopyFrom(pb.PauseStreamOp(stream=place.stream, partitions=[place.partition]))
            case Happening.RESUMED:
                found.op = pb.RESUME_STREAM
                found.resumeStreamOp.CopyFrom(pb.ResumeStreamOp(stream=place.stream, partitions=[place.partition]))
            case Happening.READONLY | Happening.WRITABLE:
                found.op = pb.SET_STREAM_READONLY
                is_readonly = event.happening is Happening.READONLY
                changed = pb.SetStreamReadonlyOp(
                    stream=place.stream, partitions=[place.partition], readonly=is_readonly
                )
                found.setStreamReadonlyOp.CopyFrom(changed)
            case Happening.JOINED:
                found.op = pb.JOIN_CONSUMER_GROUP
                joined = pb.JoinConsumerGroupOp(groupId=event.name, consumerId=event.member, streams=event.reads)
                found.joinConsumerGroupOp.CopyFrom(joined)
            case Happening.LEFT | Happening.EXPELLED:
                found.op = pb.LEAVE_CONSUMER_GROUP
                is_expired = event.happening is Happening.EXPELLED
                left = pb.LeaveConsumerGroupOp(groupId=event.name, consumerId=event.member, expired=is_expired)
                found.leaveConsumerGroupOp.CopyFrom(left)
        return found
