"""The messages of liveness: heartbeats and sessions.

Two conversations: every pair of nodes exchanges a `Heartbeat`, and every node renews its session with the metadata
leader (`RenewSession`; `SessionRenewed`, `SessionRefused`). Who sent a message is known from the link it came over. No
message contains a clock reading: a time in a message is always an age or a length, measured by its sender alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

SILENCE_STEP_MS: Final = 10
"""Silence is reported in steps of this length."""
SILENCE_MS_MAX: Final = 65_535 * SILENCE_STEP_MS
"""Longer silence is reported as this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """The last heartbeat of the other side that arrived, and how long ago. Round trips need no common clock so."""

    incarnation: int
    counter: int
    held_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """How the sender of a report hears one other node."""

    node: str
    silence_ms: int
    """Since it was last heard, in whole steps of `SILENCE_STEP_MS`."""
    interval_ms: int
    """The interval of the pair; silence means little without it."""
    rtt_us: int = 0
    """Median round trip; 0 where none has been measured."""
    peak_bytes_per_s: int = 0
    """The measured peak; 0 while there is none (R10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HearingReport:
    """How one node hears all the others, by name. The proximity graph is built from these."""

    hearings: tuple[Hearing, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """One per pair of nodes and interval, whatever the number of channels (R7)."""

    incarnation: int
    counter: int
    """Rises by one with every heartbeat to this peer, from 1 in every incarnation."""
    interval_ms: int
    """The interval that the sender prefers; the smaller of both preferences holds."""
    echo: Echo | None = None
    claims: bytes = b""
    """Reserved: no node sends any, and what arrives here is ignored."""
    report: HearingReport = HearingReport()


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewSession:
    """A node to the metadata leader: start or renew my session."""

    node: str
    incarnation: int
    counter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRenewed:
    """The metadata leader's promise not to end the session before `timeout_ms` have passed."""

    node: str
    incarnation: int
    counter: int
    """That of the renewal it answers."""
    timeout_ms: int
    confirmed_ago_ms: int = 0
    """How old the leader's last proof of leadership is: a successor may already count from then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRefused:
    """This incarnation and every earlier one are over; the node may come back with a higher one."""

    node: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLost:
    """To the caller, not sent: propose that the node be fenced at this incarnation."""

    node: str
    incarnation: int


Message: TypeAlias = Heartbeat | RenewSession | SessionRenewed | SessionRefused
