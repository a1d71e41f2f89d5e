"""`CloudView` of one node: its uplink service and the store behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tidelog.cluster.cloud_view import FrameBlock, InstanceStatus, ReplicationEvent
from tidelog.cluster.history import read_history
from tidelog.cluster.uplink_service import UplinkService
from tidelog.errors import LogError, UnknownChannel
from tidelog.http.feed import FrameFeed
from tidelog.nmea.devices import Device
from tidelog.storage.writer import wall_clock_us


class StoreView:
    def __init__(self, service: UplinkService) -> None:
        self._service = service

    def instances(self) -> list[InstanceStatus]:
        found = (self.instance(name) for name in self._service.store.names())
        return [status for status in found if status is not None]

    def instance(self, name: str) -> InstanceStatus | None:
        service = self._service
        instance = service.instances.get(name)
        if instance is not None:
            return instance.status()
        if name not in service.store.channels:
            return None
        saved = service.saved.get(name)
        return saved.status if saved is not None else None

    def is_loading(self, name: str) -> bool:
        return name in self._service.store.channels and self.instance(name) is None

    def events(self, name: str, limit: int) -> list[ReplicationEvent]:
        watch = self._service.watches.get(name)
        return watch.events.newest(limit) if watch is not None else []

    def devices(self, name: str) -> list[Device]:
        watch = self._service.watches.get(name)
        if watch is None:
            return []
        watch.fold()
        return watch.devices.devices()

    def feed(self, name: str) -> FrameFeed:
        watch = self._service.watch(name)
        watch.fold()
        return watch.feed

    def history(self, name: str, *, from_us: int, to_us: int) -> AsyncIterator[FrameBlock]:
        store = self._service.store
        if name not in store.channels:
            raise UnknownChannel(channel=name)
        return read_history(lambda: store.log(name, now_us=wall_clock_us()), from_us=from_us, to_us=to_us)

    def ready(self) -> tuple[bool, str]:
        try:
            self._service.store.check_usable()
        except LogError as error:
            return False, str(error)
        if self._service.closing is not None:
            return False, "the cloud is stopping"
        if self._service.broken is not None:
            return False, self._service.broken
        if not self._service.all_listed:
            return False, "the logs of the boats are being read"
        return True, ""
