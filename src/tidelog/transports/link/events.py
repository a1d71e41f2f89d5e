"""The options of a link, and the events of its core."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple, TypeAlias

from tidelog.errors import InvalidConfig, PeerRefused
from tidelog.transports.link.hello import LinkHello, PeerLimits
from tidelog.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """Limits and times of one end of a link. Two ends may differ."""

    taken: PeerLimits = field(default_factory=PeerLimits)
    """The limits of what the peer may send."""
    bulk_bytes_max: int = 64 * MIB
    """Memory for large bodies that arrive or are being worked on."""
    queue_bytes_max: int = 4 * MIB
    """The most bytes of small frames that wait to be sent."""
    bulk_queue_bytes_max: int = 256 * MIB
    """The most bytes of large bodies that wait to be sent."""
    calls_max: int = 4_096
    """Own requests without an answer."""
    handshake_timeout_ms: int = 5_000
    """The time from the connection to the first message: TLS and the hello."""
    ping_interval_ms: int = 1_000
    silence_max_ms: int = 5_000
    """A peer that is silent for this long is gone."""
    stall_max_ms: int = 10_000
    """A peer that reads nothing for this long, while something waits for it, counts as gone."""
    turn_ms_max: int = 2
    """Time one link may take from the event loop before others get their turn."""

    def __post_init__(self) -> None:
        limits = [one.name for one in fields(self) if one.name != "taken"]
        problems = [f"{name} must be positive" for name in limits if getattr(self, name) <= 0]
        if self.silence_max_ms <= self.ping_interval_ms:
            problems.append("silence_max_ms must exceed ping_interval_ms, or a quiet peer looks dead")
        if problems:
            raise InvalidConfig(section="link", problems=problems)


class Arrived(NamedTuple):
    kind: int
    body: memoryview


class Asked(NamedTuple):
    call: int
    kind: int
    body: memoryview


class Answered(NamedTuple):
    call: int
    body: memoryview


class Failed(NamedTuple):
    call: int
    refusal: PeerRefused


class Cancelled(NamedTuple):
    """The peer no longer wants an answer."""

    call: int


class HelloArrived(NamedTuple):
    """Check it, then `accept` or `refuse`."""

    hello: LinkHello


class Opened(NamedTuple):
    """The dialling peer accepted the hello; messages may flow."""


class LinkRefused(NamedTuple):
    """The peer refuses the link; nothing more will come."""

    refusal: PeerRefused


class Draining(NamedTuple):
    """The peer wants to end the link gracefully."""


Event: TypeAlias = Arrived | Asked | Answered | Failed | Cancelled | HelloArrived | Opened | LinkRefused | Draining
