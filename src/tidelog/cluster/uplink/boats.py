"""The boats of a cluster as one node has them: an `Instance` for each whose channel this node leads.

A boat's channel is the catalog's channel of its name, marked as a boat's. It is made at the boat's first Handshake, on
whatever node that arrives. Instances come and go with leadership (U2): they are begun when the replica serves, from its
log, and ended when it no longer does.

What a caller must keep: everything on the event loop; `moved` hears of every replica that moved.

UB1  At most one instance of a boat exists on a node, and only where its channel is led.
UB2  A channel that is not marked as a boat's is none, whatever its name: no boat writes to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidelog.cluster.boats.channel_log import OpenedLog
from tidelog.cluster.boats.history import newest_frames
from tidelog.cluster.boats.state_file import SavedState, read_devices, read_state
from tidelog.cluster.boats.watch import InstanceWatch
from tidelog.cluster.clients.channel_admin import ChannelAdministration
from tidelog.cluster.local_channels import LocalChannels, LocalReplica
from tidelog.cluster.uplink.instance import Instance
from tidelog.cluster.uplink.led_channel import LedChannel
from tidelog.cluster.uplink.mark import boat_config, is_boat
from tidelog.codecs.client_codec import CREATE, config_json
from tidelog.codecs.error_codec import error_of_json
from tidelog.core.catalog import Catalog, ChannelConfig, ChannelRecord
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import (
    ChannelExists,
    LogError,
    NameTaken,
    NotChannelLeader,
    NotLeader,
    UnknownChannel,
    WaitTimedOut,
)
from tidelog.nmea.devices import Device
from tidelog.storage.disk import Disk
from tidelog.storage.log.log import Log
from tidelog.storage.log.writer import steady_clock_ms

OPEN_MS: Final = 10_000
"""How long a Handshake waits for its channel to be led and read."""
_LOOK_MS: Final = 250


class Boats:
    def __init__(
        self,
        channels: LocalChannels,
        *,
        admin: ChannelAdministration,
        disk: Disk,
        limits: ReceiverLimits,
        new_lineage: Callable[[], bytes],
        config: ChannelConfig,
        save_soon: Callable[[Instance], None] = lambda _: None,
    ) -> None:
        self._channels = channels
        self._admin = admin
        self.disk = disk
        self._limits = limits
        self._new_lineage = new_lineage
        self._config = config
        self._save_soon = save_soon
        self._opening: dict[str, asyncio.Lock] = {}
        self._epochs: dict[int, int] = {}
        """Channel to the epoch in which it was last seen to be served here."""
        self._by_channel: dict[int, Instance] = {}
        self.instances: dict[str, Instance] = {}
        """Boats that this node leads, folded."""
        self.watches: dict[str, InstanceWatch] = {}
        self.unopened: dict[str, None] = {}
        """Boats that are led here and not folded yet, in the order in which that came about."""
        self.led = asyncio.Event()
        """Something is unopened."""

    # --- the catalog -----------------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog | None:
        return self._channels.known_catalog

    def record(self, name: str) -> ChannelRecord | None:
        """The channel of a boat."""
        record = self.catalog.channel(name) if self.catalog is not None else None
        return record if record is not None and is_boat(record) else None

    def records(self) -> list[ChannelRecord]:
        """All boats' channels, by name."""
        channels = [] if self.catalog is None else self.catalog.channels()
        return sorted(filter(is_boat, channels), key=lambda record: record.name)

    def leader_elsewhere(self, name: str) -> str | None:
        """The other node that leads a boat's channel, if one does."""
        record = self.record(name)
        return None if record is None or record.leader == self._channels.node else record.leader

    def disk_problem(self) -> str | None:
        """Why this node's disk takes nothing from any boat; None while it does."""
        return self._channels.disk_problem

    def are_all_listed(self) -> bool:
        """Whether every boat that this node is to lead is led and read; those of others are their business."""
        me = self._channels.node
        return all(
            record.name in self.instances
            for record in self.records()
            if record.leader == me or (record.leader is None and me in record.replicas)
        )

    def watch(self, name: str) -> InstanceWatch:
        """What is told about a boat that is known."""
        if name not in self.watches:
            if self.record(name) is None:
                raise UnknownChannel(channel=name)
            self.watches[name] = InstanceWatch()
        return self.watches[name]

    async def _create(self, name: str) -> None:
        """Make the channel of a boat that is new; somebody else may do so at the same time."""
        catalog = self.catalog
        if catalog is None:
            raise NotLeader(leader=None)
        if catalog.channel(name) is not None:
            raise NameTaken(name=name, held=name, remedy="a channel of this name is there that is no boat's (UB2)")
        config = boat_config(self._config, catalog)
        request = {"channels": [{"name": name, "config": config_json(config)}]}
        answer = await self._admin.ask(CREATE, request, principal=f"node:{self._channels.node}")
        (result,) = answer["results"]
        if "error" not in result or self.record(name) is not None:
            return
        error = error_of_json(result["error"])
        if isinstance(error, ChannelExists) and error.channel != name:
            remedy = "names that differ only in case are not both allowed"
            raise NameTaken(name=name, held=error.channel, remedy=remedy)
        raise error

    # --- instances -------------------------------------------------------------------------------

    async def instance(self, name: str, *, create: bool = True) -> Instance:
        """The instance of a boat that this node leads, made or opened if need be.

        Raises `NotChannelLeader`, with the leader, if another node leads.
        """
        deadline_ms = steady_clock_ms() + OPEN_MS
        while True:
            found = self.instances.get(name)
            if found is not None and found.failure is None:
                return found
            record = self.record(name)
            if record is None:
                if not create:
                    raise UnknownChannel(channel=name)
                await self._create(name)
                if (record := self.record(name)) is None:
                    raise NotLeader(leader=None)  # made, and not heard of here yet
            if record.leader not in (None, self._channels.node):
                raise NotChannelLeader(channel=name, leader=record.leader, leader_epoch=record.leader_epoch)
            replica = self._channels.find_replica(record.channel_id)
            if replica is not None and replica.served_epoch:
                # One lock each: nobody waits for another boat's log to be read.
                async with self._opening.setdefault(name, asyncio.Lock()):
                    await self._open(name, replica, deadline_ms)
                self._opening.pop(name, None)
            elif steady_clock_ms() >= deadline_ms:
                raise WaitTimedOut(waiting_for=f"the channel of {name} to be led", deadline_s=OPEN_MS / 1000)
            else:
                await self._channels.wait_moved(record.channel_id, min(deadline_ms, steady_clock_ms() + _LOOK_MS))

    async def _open(self, name: str, replica: LocalReplica, deadline_ms: int) -> None:
        """Begin an instance, unless the replica has moved on meanwhile: then the caller looks again."""
        before = self.instances.get(name)
        if (before is not None and before.failure is None) or not replica.served_epoch:
            return
        led_channel = LedChannel(self._channels, replica)
        opened = await led_channel.open(wait_ms=max(1, deadline_ms - steady_clock_ms()))
        saved, devices = await asyncio.to_thread(self._remembered, led_channel)
        if not led_channel.is_held:
            return
        self.instances[name] = self._by_channel[replica.channel_id] = self._begin(led_channel, opened, saved, devices)
        self._epochs[replica.channel_id] = led_channel.epoch
        self.unopened.pop(name, None)

    def _begin(
        self, led_channel: LedChannel, opened: OpenedLog, saved: SavedState | None, devices: list[Device]
    ) -> Instance:
        watch = self.watch(led_channel.name)
        watch.events.replace(opened.events)
        watch.restore_devices(devices)
        end, appended_us = opened.newest_frames
        if saved is None or saved.log_end < end:  # the file may be of an earlier time at which this node led
            watch.last_seen_us = max(watch.last_seen_us, appended_us)
        if saved is not None:
            watch.last_seen_us = max(watch.last_seen_us, saved.status.last_seen_us)
            watch.journal_bytes = watch.journal_bytes or saved.status.journal_bytes
        return Instance(
            opened=opened,
            led_channel=led_channel,
            limits=self._limits,
            new_lineage=self._new_lineage,
            watch=watch,
            save_soon=self._save_soon,
        )

    def _remembered(self, led_channel: LedChannel) -> tuple[SavedState | None, list[Device]]:
        """What the log does not say, from files; devices also from the log's end. In a thread."""
        devices = read_devices(self.disk, led_channel.name)
        if devices is None:
            devices = _devices_of(led_channel.log, led_channel.committed_end)
        return read_state(self.disk, led_channel.name), devices

    def moved(self, replica: LocalReplica) -> None:
        """A replica of this node moved: begin and end what depends on its role. Called for every commit."""
        epoch, channel_id = replica.served_epoch, replica.channel_id
        instance = self._by_channel.get(channel_id)
        if self._epochs.get(channel_id, 0) == epoch and (instance is None or instance.led_channel.is_held):
            return
        self._epochs[channel_id] = epoch
        if instance is not None and not instance.led_channel.is_held:
            self._end(instance, replica.not_leader())
        if epoch and is_boat(replica.record) and replica.name not in self.instances:
            self.unopened[replica.name] = None
            self.led.set()
        else:
            self.unopened.pop(replica.name, None)

    def look_again(self, names: list[str]) -> None:
        """Boats that could not be opened: those that are still led here wait to be."""
        for name in names:
            record = self.record(name)
            if record is not None and self._epochs.get(record.channel_id) and name not in self.instances:
                self.unopened[name] = None
                self.led.set()

    def _end(self, instance: Instance, error: LogError) -> None:
        instance.end(error)
        instance.watch.feed.close()  # its readers come again, and are passed on to the new leader
        del self._by_channel[instance.led_channel.channel_id]
        if self.instances.get(instance.name) is instance:
            del self.instances[instance.name]


def _devices_of(log: Log, end: int) -> list[Device]:
    watch = InstanceWatch()
    for frames in newest_frames(log, end=end):
        watch.learn_devices(frames)
    return watch.devices.devices()
