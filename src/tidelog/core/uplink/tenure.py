"""Which process owns the session of a boat: two with one certificate must not take it from each other in turns.

Nothing here does I/O. A process is known by its boot id, the random name of its journal's opening (B7): a boat that
dials again has the same one, a second machine with a copied card or certificate has another. An lplex boat has none.

What a caller must keep: call `admit` before a session is opened, then `opened`; `heard` for every message of a session,
`ended` when its streams are over.

UT1  A process takes over its own older session at once (U2), even if that one seems alive.
UT2  Another process waits until the session is over, or was silent for so long that its link is dead: a boat reports
     every five seconds.
UT3  Processes that cannot be told apart take over at once too, but only a limited number of times from a session that
     delivers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

SILENT_MS = 12_000
"""Two reports of a boat are missing: its link is dead, whatever the socket says."""
TAKEOVERS_MAX = 3
TAKEOVERS_MS = 30_000
"""The limit of takeovers, within this time, from a session that delivers, between processes that cannot be told
apart."""


@dataclass(slots=True)
class _Holder:
    boot_id: bytes
    session: int
    since_us: int
    """When this process opened its first session, by the cloud's clock; later sessions do not change it."""
    heard_ms: int
    delivers: bool = False
    """Frames came by Live."""


@dataclass(frozen=True, slots=True)
class InUse:
    """Another process owns the boat's session."""

    since_us: int
    silent_ms: int


class Tenure:
    def __init__(self) -> None:
        self._holder: _Holder | None = None
        self._takeovers_ms: deque[int] = deque(maxlen=TAKEOVERS_MAX)
        self.refusals = 0
        """Handshakes that were refused and told to wait."""

    def admit(self, boot_id: bytes, *, now_ms: int) -> InUse | None:
        """Whether the process with this boot id may open a session now; if not, why."""
        holder = self._holder
        if holder is None or now_ms - holder.heard_ms >= SILENT_MS:
            return None
        if boot_id or holder.boot_id:
            is_free = boot_id == holder.boot_id
        else:
            lately = sum(at_ms > now_ms - TAKEOVERS_MS for at_ms in self._takeovers_ms)
            is_free = not holder.delivers or lately < TAKEOVERS_MAX
        if is_free:
            return None
        self.refusals += 1
        return InUse(since_us=holder.since_us, silent_ms=max(0, now_ms - holder.heard_ms))

    def opened(self, session: int, boot_id: bytes, *, now_ms: int, now_us: int) -> None:
        holder = self._holder
        is_same = holder is not None and bool(boot_id) and holder.boot_id == boot_id
        if holder is not None and holder.delivers:
            self._takeovers_ms.append(now_ms)
        since_us = holder.since_us if holder is not None and is_same else now_us
        self._holder = _Holder(boot_id, session, since_us, now_ms)

    def heard(self, session: int, *, now_ms: int, by_live: bool = True) -> None:
        if self._holder is not None and self._holder.session == session:
            self._holder.heard_ms = now_ms
            self._holder.delivers = self._holder.delivers or by_live

    def ended(self, session: int) -> None:
        if self._holder is not None and self._holder.session == session:
            self._holder = None
