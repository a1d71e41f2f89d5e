"""The read-only view of a running cloud: its boats, their events, devices and frames.

The HTTP server and the command line read the cloud through `CloudView` and nothing else, so they neither
see nor hold sessions, logs and committers. Everything here is read-only. Ranges of seqs are half-open;
`cursor` and `head` are inclusive, as in the protocol, 0 for none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from tidelog.blocks.columns import FrameColumns
from tidelog.http.feed import FrameFeed
from tidelog.nmea.devices import Device


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatus:
    """One boat, of its current lineage, as of what is committed."""

    id: str
    connected: bool
    """A Live stream of the newest session is running."""
    cursor: int
    head: int
    """The newest seq that the boat has announced."""
    journal_bytes: int
    holes: tuple[range, ...]
    lost: tuple[range, ...]
    void: tuple[range, ...]
    lineage: str
    """In hex; empty before the first Handshake."""
    session: int
    last_seen_us: int
    """When the boat was last heard, by the cloud's clock; 0 for never."""
    frames_received: int
    """Frames taken into the log since this process started; Live and Backfill are its parts."""
    frames_by_live: int
    frames_by_backfill: int
    name_in_use: int = 0
    """Handshakes of another process that were refused and told to wait, since this node leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationEvent:
    """An event between a boat and the cloud. `detail` holds JSON values."""

    time_us: int
    type: str
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FrameBlock:
    """Frames with consecutive seqs from `base_seq` on."""

    base_seq: int
    frames: FrameColumns


class CloudView(Protocol):
    """Called on the event loop; nothing here blocks it."""

    def instances(self) -> list[InstanceStatus]:
        """Every boat the store knows, by id."""
        ...

    def instance(self, name: str) -> InstanceStatus | None:
        """None for a boat that never did a Handshake, and for one whose log is still being read."""
        ...

    def is_loading(self, name: str) -> bool:
        """Whether a boat's log is still being read: a moment after the start."""
        ...

    def events(self, name: str, limit: int) -> list[ReplicationEvent]:
        """Newest first."""
        ...

    def devices(self, name: str) -> list[Device]:
        """By source address; empty for an unknown boat."""
        ...

    def feed(self, name: str) -> FrameFeed:
        """Committed Live frames of a boat, as they come. Raises `UnknownChannel` for an unknown boat."""
        ...

    def history(self, name: str, *, from_us: int, to_us: int) -> AsyncIterator[FrameBlock]:
        """Committed frames with `from_us <= time < to_us` by the boat's clock, in log order.

        Late Backfill comes after newer Live frames. Raises `UnknownChannel` for an unknown boat. Ending the iteration
        early frees everything it held.
        """
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether boats can be served, and why not."""
        ...
