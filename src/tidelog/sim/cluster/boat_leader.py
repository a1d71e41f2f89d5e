"""A boat at the simulated node that leads its channel: the production core of the uplink, and the hand around it."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, Protocol

from tidelog.cluster.boats.channel_log import open_channel_log
from tidelog.cluster.produce_order import ProduceOrder
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.uplink.appends import BoatAppends
from tidelog.cluster.uplink.led_channel import LedChannel
from tidelog.core.uplink.messages import BackfillAck, BackfillData, Hello, LiveAck, LiveData, Refused, ToBoat, Welcome
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import LogError
from tidelog.sim.cluster.boat import BoatAccount, BoatConnection
from tidelog.sim.cluster.node import ClusterNode
from tidelog.sim.network import Scheduler
from tidelog.storage.log.log import Log


class BoatLeaderChannels:
    """`LocalChannels` of a simulated node, as far as a `LedChannel` uses them."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node

    def log(self, channel_id: int) -> Log:
        return self._node.logs.log(channel_id)

    def submit(self, channel_id: int, order: ProduceOrder) -> None:
        self._node.submit(channel_id, order)


class LeadingNodes(Protocol):
    """The nodes that lead boats, as one `LedBoat` uses them."""

    led: dict[tuple[str, str], LedBoat]
    accounts: dict[str, BoatAccount]
    limits: ReceiverLimits
    rng: Random
    snapshot_bytes: int

    @property
    def scheduler(self) -> Scheduler: ...

    @property
    def counters(self) -> Counter[str]: ...

    def is_void(self, name: str, epoch: int) -> bool: ...

    def end(self, led: LedBoat, error: LogError | None = None) -> None: ...

    def refused(self, led: LedBoat, code: str) -> None: ...

    def hang_up(self, connection: BoatConnection) -> None: ...

    def check_told(self, led: LedBoat, cursor: int) -> None: ...

    def send_down(self, connection: BoatConnection, stream: str, message: Any) -> None: ...


class LedBoat:
    """A boat at the leader of its channel, in one epoch of one process."""

    def __init__(
        self, boats: LeadingNodes, node: ClusterNode, led_channel: LedChannel, replica: ChannelReplica
    ) -> None:
        self._boats = boats
        self.node = node
        self.process = node.process
        self.name = led_channel.name
        self.led_channel = led_channel
        self.replica = replica
        self.connection: BoatConnection | None = None
        """The connection of the newest Handshake."""
        self.session = 0
        self.appends: BoatAppends | None = None
        """None until the log is read."""
        self.fold_end = replica.log_end
        """The end of what was appended before this epoch was served."""

    @property
    def is_current(self) -> bool:
        return self._boats.led.get((self.node.name, self.name)) is self and self.node.process == self.process

    # --- opening, as `LedChannel.open` does it -------------------------------------------------------------

    def look(self) -> bool:
        """Fold the log once all that was appended before is committed."""
        if not self.is_current or self.appends is not None:
            return False
        if not self.node.paused and self.led_channel.is_held:
            if self.replica.committed_end >= self.fold_end and self._open():
                return True
        elif not self.node.paused:
            self._boats.end(self)
            return False
        self._boats.scheduler.after(10, self.look)
        return True

    def _open(self) -> bool:
        fold = self.replica.fold
        assert fold is not None
        try:
            opened = open_channel_log(self.led_channel.log, end=self.fold_end, hint=fold.lineages_at)
        except LogError:
            self._boats.counters["boat_log_unread"] += 1
            return False
        if not self._boats.is_void(self.name, self.led_channel.epoch):
            self._boats.accounts[self.name].check_opened(opened.fold, self.fold_end)
        self.appends = BoatAppends(
            opened=opened, led_channel=self.led_channel, limits=self._boats.limits, settle_soon=self._settle_soon
        )
        return True

    # --- messages --------------------------------------------------------------------------------------------

    def take(self, connection: BoatConnection, message: Any) -> None:
        """A message of the boat's, within the node's own event."""
        assert self.appends is not None
        node = self.node
        lineage = self._boats.rng.randbytes(16) if isinstance(message, Hello) else b""
        count, replies = self.appends.receive(
            message, new_lineage=lineage, now_ms=node.clock_ms(), now_us=node.now_us()
        )
        if isinstance(message, LiveData | BackfillData) and not count:
            self._boats.counters["boat_repeated"] += 1
        refusal = next((reply for reply in replies if isinstance(reply, Refused)), None)
        if refusal is not None:
            self._boats.refused(self, refusal.code)
            self._boats.hang_up(connection)
            return
        if isinstance(message, Hello):
            if self.connection is not None and self.connection is not connection:
                self._boats.hang_up(self.connection)
            self.connection = connection
        self.answer(replies)

    def answer(self, replies: list[ToBoat] | tuple[ToBoat, ...]) -> None:
        for reply in replies:
            if isinstance(reply, Welcome):
                self.session = reply.session
            if isinstance(reply, Welcome | LiveAck | BackfillAck) and self.connection is not None:
                self._boats.check_told(self, reply.cursor)
                stream = "backfill" if isinstance(reply, BackfillAck) else "live"
                self._boats.send_down(self.connection, stream, reply)

    def _settle_soon(self) -> None:
        self._boats.scheduler.after(0, self.settle)

    def settle(self) -> bool:
        if not self.is_current or self.node.paused or self.node.core is None:
            return False  # (a node that was paused looks again)
        self.node.do(lambda _: self._settle())
        return True

    def _settle(self) -> None:
        appends = self.appends
        assert appends is not None
        settled = appends.take_settled(now_ms=self.node.clock_ms(), now_us=self.node.now_us())
        if settled.appends and not self._boats.is_void(self.name, self.led_channel.epoch):
            account = self._boats.accounts[self.name]
            if appends.committed_end == account.verified_end:
                account.check_fold(appends.channel.receiver.fold)
        self.answer(settled.replies)
        if settled.error is not None:
            self._boats.counters["boat_append_refused"] += 1
            self._boats.end(self, settled.error)

    def tick(self) -> None:
        """What the clock brings: acks, and records of the folds (F3)."""
        appends = self.appends
        if appends is None:
            return
        now_ms = self.node.clock_ms()
        due_ms = appends.channel.wake_at_ms()
        if due_ms is not None and due_ms <= now_ms:
            self.answer(appends.channel.wake(now_ms))
        if appends.bytes_since_snapshot >= self._boats.snapshot_bytes:
            appends.submit_snapshot(now_us=self.node.now_us())
