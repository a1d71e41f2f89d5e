"""`LocalChannels`: how the uplink, clients' requests, groups and gateways reach the channels of the node they run in.

`cluster.node.replica_channels` implements it over the node's replicas. What is used beside the channels themselves is
the catalog that they are listed in, and the node's way to the metadata leader.

What an implementation must keep: everything runs on the event loop and every wait ends. `produce` and `submit` report
the outcome of a block exactly once, then or later, unless they raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tidelog.blocks.block import MadeBlock
from tidelog.cluster.clients.requests import Place, ProducersRequest
from tidelog.cluster.produce_order import ProduceOrder
from tidelog.cluster.replication.fold import ReplicaFold
from tidelog.core.catalog import Applied, Catalog, Change, ChannelRecord
from tidelog.core.client_messages import Fetch, Fetched, Produce, Produced
from tidelog.core.replication.placement import NodeLoad
from tidelog.errors import LogError
from tidelog.storage.log.log import Log

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsAnswer:
    """Where a place in a channel is, and between what."""

    offset: int
    committed_end: int
    log_start: int
    leader_epoch: int


class Proximity(Protocol):
    """Measured round trips between nodes."""

    def rtt_us(self, a: str, b: str, /) -> int | None: ...

    def median_rtt_us(self, candidate: str, others: Sequence[str], /) -> int | None: ...


class LocalReplica(Protocol):
    """This node's replica of a channel, to be read."""

    @property
    def channel_id(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def record(self) -> ChannelRecord: ...

    @property
    def log_start(self) -> int: ...

    @property
    def log_end(self) -> int: ...

    @property
    def committed_end(self) -> int: ...

    @property
    def log_bytes(self) -> int: ...

    @property
    def fold(self) -> ReplicaFold | None:
        """None while the log has not been folded."""

    @property
    def serves(self) -> bool:
        """Whether it may say what is committed."""

    @property
    def leads(self) -> bool: ...

    @property
    def served_epoch(self) -> int:
        """The epoch in which it leads and can be appended to; 0 if none (R2)."""

    def not_leader(self) -> LogError:
        """The refusal for what only the leader does."""


class LocalChannels(Protocol):
    # --- describe

    @property
    def node(self) -> str:
        """The name of this node."""

    @property
    def catalog(self) -> Catalog:
        """Raises `NotLeader` while this node has no metadata."""

    @property
    def known_catalog(self) -> Catalog | None:
        """None while this node has no metadata."""

    @property
    def is_registered(self) -> bool: ...

    @property
    def disk_problem(self) -> str | None:
        """Why no channel takes records here, in words; None while they do."""

    def now_ms(self) -> int: ...

    def wall_ms(self) -> int: ...

    def find_replica(self, channel_id: int) -> LocalReplica | None: ...

    def replica(self, channel_id: int) -> LocalReplica:
        """Raises `UnknownChannel` or `NoReplicaHere`."""

    def replicas(self) -> Iterable[LocalReplica]: ...

    def channel_here(self, channel_id: int) -> Mapping[str, Any] | None:
        """Role and offsets of this node's replica, as DESCRIBE shows them; None if it has none."""

    def producers(self, request: ProducersRequest) -> dict[str, Any]:
        """A page of the producers of a channel that this node leads; raises `NotChannelLeader` elsewhere."""

    # --- produce

    def produce(self, request: Produce, made: MadeBlock, answer: Callable[[Produced], None]) -> None:
        """Append a client's block."""

    def submit(self, channel_id: int, order: ProduceOrder) -> None:
        """Append a block of this node's own; `order.token` is called with the first offset and the error."""

    async def set_cursor(self, channel_id: int, name: str, offset: int | None) -> None:
        """Committed when it returns; None deletes."""

    def apply_retention(self, channel_id: int) -> None:
        """Remove what the channel's settings no longer keep."""

    # --- read

    async def fetch(self, fetch: Fetch, *, for_node: bool = False) -> Fetched:
        """Committed blocks of this node's replica. Raises `ReplicaBehind`, `OffsetOutOfRange` and the like."""

    async def offset_at(self, channel_id: int, at: Place) -> OffsetsAnswer: ...

    async def cursors(self, channel_id: int) -> Mapping[str, int]:
        """The cursors of a channel that this node leads; raises `NotChannelLeader` elsewhere."""

    def log(self, channel_id: int) -> Log:
        """The log on this node's disk; read it in `in_reader`."""

    async def in_reader(self, read: Callable[..., T], *arguments: Any) -> T:
        """Run a function that reads from the disk, in a reader's thread."""

    # --- watch

    async def wait_moved(self, channel_id: int, deadline_ms: int) -> bool:
        """Wait until the replica's role, committed end or log start changes; False if the deadline passes first."""

    def watch(self, watcher: Callable[[LocalReplica], None], *, channel_id: int | None = None) -> Callable[[], None]:
        """Call `watcher` when the replica of a channel changed, or any replica; the returned function ends it."""

    def watch_catalog(self, watcher: Callable[[Sequence[Applied]], None]) -> Callable[[], None]:
        """Call `watcher` with the changes that the catalog here applied; the returned function ends it."""

    # --- the metadata

    @property
    def metadata_leader(self) -> str | None: ...

    @property
    def is_metadata_leader(self) -> bool: ...

    @property
    def proximity(self) -> Proximity: ...

    def node_loads(self) -> Mapping[str, NodeLoad]:
        """What placement knows of every node; call it on the metadata leader only."""

    def is_linked(self, node: str) -> bool:
        """Whether that node is reached over the link now."""

    async def propose(self, change: Change, *, timeout_ms: int) -> int:
        """Have a change applied; returns its index once it is applied here or at the leader. Raises refusals, typed."""

    async def ask_node(self, node: str | None, kind: int, body: bytes, *, timeout_ms: int) -> memoryview:
        """A request to another node, or with None to the metadata leader; `NotLeader` if none is known."""

    async def wait_applied(self, index: int, *, timeout_ms: int) -> None:
        """Wait until the catalog here has applied the change of this index."""

    async def read_barrier(self) -> None:
        """Wait until the catalog here holds all that was committed before the call."""
