"""Queries of a replica about its node, which `Replicas` answers. What a replica wants done are effects."""

from __future__ import annotations

from typing import Protocol

from tidelog.cluster.replication.first_requests import FirstRequests
from tidelog.core.catalog import ChannelRecord
from tidelog.core.replication.options import ReplicationOptions
from tidelog.storage.store.watermarks import Watermark


class Surroundings(Protocol):
    """Read-only, except that numbers of log generations are given out and the catch-up budget is charged."""

    @property
    def node(self) -> str: ...

    @property
    def options(self) -> ReplicationOptions: ...

    @property
    def incarnation(self) -> int:
        """0 while this node is not registered: it then leads nothing and counts for nothing."""

    @property
    def first_requests(self) -> FirstRequests:
        """Paces the first requests of followers without contact (RFR1)."""

    def wall_us(self) -> int:
        """The wall clock, for what is recorded, never for deciding."""

    def watermark(self, channel_id: int) -> Watermark | None:
        """The ends that an earlier process saved: hints only (R9)."""

    def silence_ms(self, peer: str, now_ms: int) -> int:
        """The time since a node was last heard."""

    def active_incarnation(self, node: str) -> int | None:
        """The incarnation as which the catalog holds a node active; None if it does not."""

    def new_generation(self) -> int: ...

    def storage_patience_ms(self) -> int:
        """How much longer than usual a log may take to open, because so many others open too."""

    def catch_up_wait_ms(self, record: ChannelRecord, peer: str, byte_count: int, now_ms: int) -> int:
        """0 if so many bytes of catch-up may be sent now, and the budget is charged; else how long to wait (R10)."""
