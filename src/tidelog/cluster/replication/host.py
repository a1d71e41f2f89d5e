"""What one replica needs of the node it lives on. `Replicas` is the only one that gives it; tests give less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tidelog.cluster.replication.orders import StorageOrder
from tidelog.core.catalog import Change
from tidelog.core.replication.messages import ReplicationMessage
from tidelog.core.replication.metrics import ReplicationMetricsRegistry
from tidelog.core.replication.options import ReplicationOptions
from tidelog.errors import LogError
from tidelog.storage.store.watermarks import Watermark

if TYPE_CHECKING:
    from tidelog.cluster.replication.replica import ChannelReplica


class ReplicaHost(Protocol):
    """All of it returns at once; what it brings about leaves with the host's next `poll`."""

    @property
    def node(self) -> str: ...
    @property
    def options(self) -> ReplicationOptions: ...
    @property
    def metrics(self) -> ReplicationMetricsRegistry: ...
    @property
    def incarnation(self) -> int:
        """0 while this node is not registered: it then leads nothing and counts for nothing."""
        ...

    def wall_us(self) -> int:
        """The wall clock, for what is recorded, never for deciding."""
        ...

    def watermark(self, channel_id: int) -> Watermark | None:
        """As saved in an earlier life: hints, no more (R9)."""
        ...

    def silence_ms(self, peer: str, now_ms: int) -> int:
        """How long a node has not been heard."""
        ...

    def active_incarnation(self, node: str) -> int | None:
        """As which the catalog holds a node active; None if it does not."""
        ...

    def new_life(self) -> int: ...

    def send(self, peer: str, message: ReplicationMessage) -> None: ...

    def may_ask(self, replica: ChannelReplica, peer: str) -> bool:
        """Whether a follower without contact asks its leader now; if not, its `ask` is called when its turn comes."""
        ...

    def answered(self, replica: ChannelReplica) -> None:
        """Such a request was answered, and needs to be repeated; or no answer is expected any more."""
        ...

    def in_contact(self, replica: ChannelReplica) -> None:
        """It has its answer."""
        ...

    def paced_ms(self, wait_ms: int, limit_ms: int) -> int:
        """`wait_ms`, or up to `limit_ms` while very many channels are without contact."""
        ...

    def storage_patience_ms(self) -> int:
        """How much longer than usual a log may take to open, because so many others open too."""
        ...

    def tell_metadata(self, message: ReplicationMessage) -> None:
        """To whoever leads the metadata; lost if nobody does."""
        ...

    def propose(self, change: Change) -> None:
        """Ask the metadata leader for a change. Repeated by the caller until the catalog shows its fate."""
        ...

    def order(self, order: StorageOrder) -> None: ...

    def produced(self, token: Any, first_offset: int, error: LogError | None) -> None:
        """The fate of a produced block, once for every token."""
        ...

    def moved(self, replica: ChannelReplica) -> None:
        """Its committed end, its log start or its role changed: readers want to know."""
        ...

    def serve_soon(self, replica: ChannelReplica) -> None:
        """Call its `serve` before the next `poll` ends: there may be records for its followers."""
        ...

    def watch(self, replica: ChannelReplica, at_ms: int) -> None:
        """Call its `wake` at this time, or earlier."""
        ...

    def catch_up_wait_ms(self, replica: ChannelReplica, peer: str, byte_count: int, now_ms: int) -> int:
        """0 if so many bytes of catch-up may be sent now, and the budget is charged; else how long to wait (R10)."""
        ...

    def tail_grew(self, replica: ChannelReplica) -> None:
        """Its blocks in memory are more; the host keeps all of them together within bounds."""
        ...

    def say(self, what: str, **facts: Any) -> None: ...
