"""Liftbridge's consumer groups: the native client's groups, with streams instead of channels.

Join and leave go to the metadata leader, like all administration. Assignments come from the group's coordinator, and
the request counts as the consumer's heartbeat; other nodes refuse it, and the client then looks up the coordinator.

LG1  A consumer belongs to the principal that joined: no other gets its assignments, leaves for it or subscribes as it.
LG2  A consumer's subscription ends when its partition is no longer assigned to it. This node serves at most one
     subscription per group and partition: a newer one ends the previous one.
LG3  Epochs are compared as Liftbridge does: a request with another epoch than the group's is refused, and the client
     fetches the group's metadata again. The refused request still counts as a heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from tidelog.cluster.clients.access import READ, ClientAccess
from tidelog.cluster.clients.channel_admin import ChannelAdministration
from tidelog.cluster.groups.admin import require_owner, sees_group
from tidelog.cluster.local_channels import LocalChannels
from tidelog.codecs.client_codec import GROUP
from tidelog.codecs.proto import liftbridge_pb2 as pb
from tidelog.codecs.stream_names import place_of
from tidelog.core.catalog import ChannelRecord, GroupMember, GroupRecord
from tidelog.core.groups.coordinator import GroupCoordinator
from tidelog.errors import MemberFenced, NotAssigned, NotGroupCoordinator, StaleGroupEpoch, UnknownGroup, UnknownMember
from tidelog.gateways.liftbridge.refusals import GatewayRefusedError, Status
from tidelog.gateways.liftbridge.streams import Streams

_NS_PER_MS: Final = 1_000_000


class ConsumerGroups:
    """One for each gateway."""

    def __init__(
        self,
        channels: LocalChannels,
        *,
        admin: ChannelAdministration,
        coordinator: GroupCoordinator,
        streams: Streams,
        access: ClientAccess,
    ) -> None:
        """`coordinator` is the node's own."""
        self._channels = channels
        self._admin = admin
        self._coordinator = coordinator
        self._streams = streams
        self._access = access
        self._subscribed: dict[tuple[str, int], object] = {}
        """The newest subscription of a group, by group and channel (LG2)."""

    # --- membership --------------------------------------------------------------------------------------------

    async def join(self, request: pb.JoinConsumerGroupRequest, principal: str) -> pb.JoinConsumerGroupResponse:
        _require_ids(request.groupId, request.consumerId)
        if not request.streams:
            raise GatewayRefusedError(Status.INVALID_ARGUMENT, "a consumer reads at least one stream; name it")
        for stream in request.streams:
            await self._streams.judged(partial(self._access.require, principal, stream, READ))
            for record in await self._streams.require_partitions(stream):
                self._access.require(principal, record.name, READ)
        answer = await self._administer(
            "join", request, principal, channels=[], streams=list(request.streams), again=False
        )
        return pb.JoinConsumerGroupResponse(
            coordinator=answer["coordinator"],
            epoch=answer["epoch"],
            consumerTimeout=answer["consumer_timeout_ms"] * _NS_PER_MS,
            coordinatorTimeout=answer["coordinator_timeout_ms"] * _NS_PER_MS,
        )

    async def leave(self, request: pb.LeaveConsumerGroupRequest, principal: str) -> pb.LeaveConsumerGroupResponse:
        _require_ids(request.groupId, request.consumerId)
        await self._administer("leave", request, principal, life=None)
        return pb.LeaveConsumerGroupResponse()

    async def report(
        self, request: pb.ReportConsumerGroupCoordinatorRequest, principal: str
    ) -> pb.ReportConsumerGroupCoordinatorResponse:
        _require_ids(request.groupId, request.consumerId)
        if not request.coordinator:
            raise GatewayRefusedError(Status.INVALID_ARGUMENT, "say which coordinator cannot be reached")
        await self._administer("report", request, principal, coordinator=request.coordinator, epoch=request.epoch)
        return pb.ReportConsumerGroupCoordinatorResponse()

    async def _administer(self, op: str, request: Any, principal: str, **more: Any) -> dict[str, Any]:
        fields = {"op": op, "group": request.groupId, "member": request.consumerId, **more}
        return await self._admin.ask(GROUP, fields, principal=principal)

    # --- assignments ---------------------------------------------------------------------------------------------

    async def assignments(
        self, request: pb.FetchConsumerGroupAssignmentsRequest, principal: str
    ) -> pb.FetchConsumerGroupAssignmentsResponse:
        _require_ids(request.groupId, request.consumerId)
        group, member = await self._member(request.groupId, request.consumerId, request.epoch, principal)
        if group.coordinator != self._channels.node:
            raise NotGroupCoordinator(group=group.group, coordinator=group.coordinator)
        self._coordinator.heard(group, member.member, self._channels.now_ms())
        if group.epoch != request.epoch:
            raise StaleGroupEpoch(group=group.group, expected=request.epoch, current=group.epoch)  # LG3
        found: dict[str, list[int]] = {}
        for channel_id in member.assigned:
            record = self._streams.catalog.channel(channel_id)
            if record is not None:
                place = place_of(record.name)
                found.setdefault(place.stream, []).append(place.partition)
        response = pb.FetchConsumerGroupAssignmentsResponse(epoch=group.epoch)
        for stream in sorted(found):
            response.assignments.add(stream=stream, partitions=sorted(found[stream]))
        return response

    async def _member(self, name: str, consumer: str, epoch: int, principal: str) -> tuple[GroupRecord, GroupMember]:
        """The group and the consumer, from a catalog that is not older than `epoch`."""
        group = self._streams.catalog.group(name)
        if group is None or group.epoch < epoch or group.member(consumer) is None:
            await self._streams.catch_up()
            group = self._streams.catalog.group(name)
        if group is None:
            raise UnknownGroup(group=name)
        return group, require_owner(self._access, group, consumer, principal)  # LG1

    def metadata(self, names: Iterable[str], principal: str) -> Iterable[pb.ConsumerGroupMetadata]:
        """Metadata of the named groups. A group that reads only channels hidden from the caller counts as unknown."""
        for name in dict.fromkeys(names):
            group = self._streams.catalog.group(name)
            if group is None or not sees_group(self._access, group, principal):
                yield pb.ConsumerGroupMetadata(groupId=name, error=pb.ConsumerGroupMetadata.UNKNOWN_GROUP)
            else:
                yield pb.ConsumerGroupMetadata(groupId=name, coordinator=group.coordinator, epoch=group.epoch)

    # --- subscribing -----------------------------------------------------------------------------------------------

    async def subscribed(self, consumer: pb.Consumer, record: ChannelRecord, principal: str) -> Callable[[], None]:
        """Register a consumer's new subscription. The result is to be called before every read; it raises once the
        subscription must end (LG2)."""
        _require_ids(consumer.groupId, consumer.consumerId)
        _, member = await self._member(consumer.groupId, consumer.consumerId, consumer.groupEpoch, principal)
        key, ticket, life = (consumer.groupId, record.channel_id), object(), member.life

        def check() -> None:
            if self._subscribed.get(key) is not ticket:
                raise GatewayRefusedError(
                    Status.FAILED_PRECONDITION, f"a newer subscription of group {consumer.groupId!r} replaced this one"
                )
            self._require_assigned(consumer, record, life)

        await self._streams.judged(lambda: self._require_assigned(consumer, record, life))
        self._forget_gone()
        self._subscribed[key] = ticket
        return check

    def _require_assigned(self, consumer: pb.Consumer, record: ChannelRecord, life: int) -> None:
        group = self._streams.catalog.group(consumer.groupId)
        member = None if group is None else group.member(consumer.consumerId)
        if group is None or member is None:
            raise UnknownMember(group=consumer.groupId, member=consumer.consumerId)
        if member.life != life:
            raise MemberFenced(group=group.group, member=member.member, life=life, newest=member.life)
        if not member.reads(record.channel_id):
            raise NotAssigned(group=group.group, member=member.member, channel=record.name, epoch=group.epoch)

    def _forget_gone(self) -> None:
        """Drop entries of deleted groups and channels, so that the catalog bounds their number."""
        catalog = self._streams.catalog
        self._subscribed = {
            key: ticket
            for key, ticket in self._subscribed.items()
            if catalog.group(key[0]) is not None and catalog.channel(key[1]) is not None
        }


def _require_ids(group: str, consumer: str) -> None:
    if not group:
        raise GatewayRefusedError(Status.INVALID_ARGUMENT, "a group has a name; give groupId")
    if not consumer:
        raise GatewayRefusedError(Status.INVALID_ARGUMENT, "a consumer has a name; give consumerId")
