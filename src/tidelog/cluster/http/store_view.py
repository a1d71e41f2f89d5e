"""`CloudView` of one node: the boats that it leads. Requests about other boats are relayed (`http.relay`)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tidelog.cluster.boats.history import read_history
from tidelog.cluster.boats.view import FrameBlock, InstanceStatus, ReplicationEvent
from tidelog.cluster.uplink.service import UplinkService
from tidelog.errors import NotChannelLeader, UnknownChannel
from tidelog.http.feed import FrameFeed
from tidelog.nmea.devices import Device


class StoreView:
    def __init__(self, service: UplinkService) -> None:
        self._service = service
        self._boats = service.boats

    def instances(self) -> list[InstanceStatus]:
        found = (self.instance(record.name) for record in self._boats.records())
        return [status for status in found if status is not None]

    def instance(self, name: str) -> InstanceStatus | None:
        instance = self._boats.instances.get(name)
        return None if instance is None else instance.status()

    def is_loading(self, name: str) -> bool:
        return self._boats.record(name) is not None and self.instance(name) is None

    def events(self, name: str, limit: int) -> list[ReplicationEvent]:
        watch = self._boats.watches.get(name)
        return watch.events.newest(limit) if watch is not None else []

    def devices(self, name: str) -> list[Device]:
        watch = self._boats.watches.get(name)
        if watch is None:
            return []
        watch.fold()
        return watch.devices.devices()

    def feed(self, name: str) -> FrameFeed:
        watch = self._boats.watch(name)
        watch.fold()
        return watch.feed

    def history(self, name: str, *, from_us: int, to_us: int) -> AsyncIterator[FrameBlock]:
        record, instance = self._boats.record(name), self._boats.instances.get(name)
        if record is None:
            raise UnknownChannel(channel=name)
        if instance is None:
            raise NotChannelLeader(channel=name, leader=record.leader, leader_epoch=record.leader_epoch)
        led_channel = instance.led_channel
        return read_history(lambda: led_channel.log, from_us=from_us, to_us=to_us, end=led_channel.committed_end)

    def ready(self) -> tuple[bool, str]:
        service = self._service
        if service.closing is not None:
            return False, "the cloud is stopping"
        if service.broken is not None:
            return False, service.broken
        if not service.is_open:
            return False, "the node is not registered yet"
        if not self._boats.are_all_listed():
            return False, "the logs of the boats are being read"
        if (problem := self._boats.disk_problem()) is not None:
            return False, problem
        return True, ""
