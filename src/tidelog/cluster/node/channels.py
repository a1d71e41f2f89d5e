"""The channels of a node: its replicas, and the controllers that it runs for all channels while it leads the metadata.

Belongs to `NodeCore` and keeps its contract: no I/O, no clock. Messages of replicas to the metadata leader are sent to
that node, or taken in here if it is this one; without a leader they are lost, and the replicas repeat them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tidelog.cluster.metadata.channel_controller import ChannelController
from tidelog.cluster.replication.replicas import Replicas
from tidelog.core.catalog import Applied, Catalog, Change
from tidelog.core.groups.controller import GroupController
from tidelog.core.liveness import LivenessConfig, PairHeartbeats, ProximityGraph
from tidelog.core.liveness.measures import PEAK_BYTES_PER_S_FIRST
from tidelog.core.replication.messages import (
    AskLog,
    Notify,
    ReplicationMessage,
    SyncNack,
    SyncRequest,
    SyncResponse,
)
from tidelog.core.replication.options import ReplicationOptions
from tidelog.errors import LogError
from tidelog.storage.store.watermarks import Watermark

WatermarkOf: TypeAlias = Callable[[int], Watermark | None]
"""The watermark of a channel that an earlier process saved."""
_LONG_MS = 1 << 40
"""The silence of a node that is no peer."""


class NodeChannels:
    def __init__(
        self,
        *,
        node: str,
        options: ReplicationOptions,
        liveness: LivenessConfig,
        heartbeats: PairHeartbeats,
        proximity: ProximityGraph,
        wall_us: Callable[[], int],
        say: Callable[..., None],
        watermark_of: WatermarkOf,
        now_ms: int,
    ) -> None:
        self.node = node
        self._liveness = liveness
        self._heartbeats = heartbeats
        self._say = say
        self._tends = False
        self.replicas = Replicas(
            node=node,
            options=options,
            silence_of=self._silence_of,
            peak_of=self._peak_of,
            wall_us=wall_us,
            watermark_of=watermark_of,
            now_ms=now_ms,
        )
        self.controller = ChannelController(
            node=node,
            options=options,
            proximity=proximity,
            silence_of=self._silence_of,
            wall_ms=lambda: wall_us() // 1000,
            say=say,
        )
        self.group_controller = GroupController(say=say)

    def _silence_of(self, peer: str, now_ms: int) -> int:
        if peer == self.node:
            return 0
        if peer not in self._heartbeats.peers_known:
            return _LONG_MS
        return self._heartbeats.silence_ms(peer, now_ms)

    def _peak_of(self, peer: str) -> int:
        known = peer in self._heartbeats.peers_known
        return self._heartbeats.peak_bytes_per_s(peer) if known else PEAK_BYTES_PER_S_FIRST

    # --- inputs ------------------------------------------------------------------------------------------------

    def receive(
        self,
        peer: str,
        message: ReplicationMessage,
        now_ms: int,
        *,
        catalog: Catalog | None,
        propose: Callable[[Change], None],
    ) -> None:
        """`catalog` only where this node leads the metadata: messages for the leader are useless elsewhere."""
        if isinstance(message, SyncRequest | SyncResponse | SyncNack | Notify | AskLog):
            self.replicas.receive(peer, message, now_ms)
        elif catalog is not None:
            try:
                self.controller.receive(peer, message, catalog, propose, now_ms)
            except LogError as error:
                self._say("refused", peer=peer, message=type(message).__name__, reason=error)

    def follow(self, catalog: Catalog, applied: Sequence[Applied] | None, *, incarnation: int, now_ms: int) -> None:
        """Changes that the catalog applied; None for everything: it was replaced, or this node's registration
        changed."""
        channels: list[int] | None = None
        nodes: list[str] = []
        if applied is not None:
            channels = sorted({channel for one in applied for channel in one.touched.channels})
            self.controller.touched(channels)
            nodes = sorted({node for one in applied for node in one.touched.nodes})
            for node in nodes:
                self.controller.node_changed(catalog, node)
        if channels != [] or nodes:
            self.replicas.follow_catalog(catalog, channels, nodes=nodes, incarnation=incarnation, now_ms=now_ms)

    def tend(
        self, catalog: Catalog | None, propose: Callable[[Change], None], now_ms: int
    ) -> list[tuple[str, ReplicationMessage]]:
        """The metadata leader's work for channels; `catalog` is None where this node does not lead the metadata."""
        if catalog is None:
            if self._tends:
                self.controller.step_down()
                self.group_controller.step_down()
            self._tends = False
            return []
        self._tends = True
        self.controller.tend(catalog, propose, now_ms)
        self.group_controller.tend(catalog, propose, now_ms)
        messages, self.controller.messages = self.controller.messages, []
        for node, message in messages:
            if node == self.node:
                self.replicas.receive(node, message, now_ms)
        return [(node, message) for node, message in messages if node != self.node]

    def rounds_at_ms(self, *, tend_earliest_ms: int) -> int:
        """When all channels are checked next, or when `tend` has something to do, no earlier than this."""
        rounds_ms = self.replicas.rounds_at_ms()
        due_ms = self.controller.due_ms() if self._tends else None
        return rounds_ms if due_ms is None else min(rounds_ms, max(due_ms, tend_earliest_ms))

    # --- outputs -----------------------------------------------------------------------------------------------

    def follow_changed_beats(self) -> None:
        if self.replicas.beats_changed:
            self.follow_beats()

    def follow_beats(self) -> None:
        """Two nodes exchange heartbeats at the shortest interval of the channels that they share (R7)."""
        self.replicas.beats_changed = False
        for peer in self._heartbeats.peers():
            wish_ms = self.replicas.pair_heartbeat_ms(peer)
            self._heartbeats.set_interval(peer, wish_ms or self._liveness.heartbeat_ms)
