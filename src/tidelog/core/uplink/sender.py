"""The boat's half of the uplink: when to dial, what to send live, what to send again.

Nothing here does I/O. The caller dials when `wake` says so, asks `next_live` and `next_backfill` what may
leave now, sends it, and passes in what comes back. Live is self-clocked: a block leaves as soon as
fewer than a few are uncommitted, and what arrived meanwhile rides in the next, so no delay is ever
added and batches grow with load (U1).

What a caller must keep: call `wake` when `wake_at_ms` says so; after `Hangup` close the connection and
report `disconnected`; pass in only answers of the current connection.

US1  At most one session at a time, and at most one dial per back-off.
US2  Live sends each seq of a session once, in order, without gaps.
US3  Live is never refused for its rate (U4), however the link delays and bunches it: what is not acked yet
     and what may leave now are together never above the burst that came with the Welcome.
US4  Backfill asks for the newest hole first and goes on until nothing is missing that the boat has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tidelog.core.ranges import RangeSet
from tidelog.core.uplink.budget import TokenBucket
from tidelog.core.uplink.messages import BackfillAck, LiveAck, Refused, Welcome
from tidelog.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderConfig:
    """How one boat sends. The first three are the seed's; the rest keep a bad link from hurting."""

    max_live_lag: int = 10_000
    """Frames that Live may be behind before the boat switches to Backfill for them."""
    lag_check_interval: int = 1_000
    """Check the lag every so many frames sent."""
    min_lag_reconnect_interval_ms: int = 30_000
    backoff_first_ms: int = 1_000
    backoff_max_ms: int = 60_000
    silence_max_ms: int = 25_000
    """No answer for so long means the link is dead, whatever the socket says."""
    status_interval_ms: int = 5_000
    live_window_blocks: int = 4
    live_block_frames_max: int = 400
    backfill_window_blocks: int = 8
    pace_fraction: float = 0.95
    """The boat stays this much below the cloud's rate limit, so that it never meets it."""
    backfill_bytes_per_s: int | None = None
    """Cap for metered links; Live is not counted."""

    def __post_init__(self) -> None:
        counts = {
            "max_live_lag": self.max_live_lag,
            "lag_check_interval": self.lag_check_interval,
            "backoff_first_ms": self.backoff_first_ms,
            "live_window_blocks": self.live_window_blocks,
            "live_block_frames_max": self.live_block_frames_max,
            "backfill_window_blocks": self.backfill_window_blocks,
            "status_interval_ms": self.status_interval_ms,
        }
        problems = [f"{name} must be positive" for name, value in counts.items() if value <= 0]
        if self.backoff_max_ms < self.backoff_first_ms:
            problems.append("backoff_max_ms must not be below backoff_first_ms")
        if self.silence_max_ms <= self.status_interval_ms:
            problems.append("silence_max_ms must exceed status_interval_ms, or a quiet link looks dead")
        if not 0 < self.pace_fraction <= 1:
            problems.append("pace_fraction must be above 0 and at most 1")
        if self.backfill_bytes_per_s is not None and self.backfill_bytes_per_s <= 0:
            problems.append("backfill_bytes_per_s must be positive")
        if problems:
            raise InvalidConfig(section="replication", problems=problems)


class Link(Enum):
    DOWN = "down"
    DIALING = "dialing"
    """A Handshake is on its way."""
    UP = "up"


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect and send a Hello."""


@dataclass(frozen=True, slots=True)
class SendStatus:
    session: int


@dataclass(frozen=True, slots=True)
class Hangup:
    """Close the connection, then report `disconnected`."""

    reason: str


Effect: TypeAlias = Dial | SendStatus | Hangup


class UplinkSender:
    """`jitter` gives numbers in [0, 1): a fleet that lost its cloud must not come back in one second."""

    def __init__(self, *, config: SenderConfig, jitter: Callable[[], float], now_ms: int) -> None:
        self._config = config
        self._jitter = jitter
        self.link = Link.DOWN
        self.session = 0
        self.cursor = 0
        self.reconnects = 0
        self.last_ack_ms: int | None = None
        self._dial_at_ms = now_ms
        self._backoff_ms = config.backoff_first_ms
        self._lag_exit_at_ms: int | None = None
        self._heard_ms = now_ms
        self._status_at_ms = now_ms
        self._statuses_heard = 0
        self._statuses_unheard: deque[int] = deque()
        """When each report left that the cloud has not confirmed: it may be deaf, and acks on a timer hide that."""
        self._progress = False
        self._live_next = 0
        self._live_flight: deque[range] = deque()
        self._live_bucket: TokenBucket | None = None
        self._live_sent = 0
        self._lag_checked = 0
        self._holes = RangeSet()
        self._backfill_sent = 0
        self._backfill_answered = 0
        self._backfill_flight: deque[range] = deque()
        self._backfill_bucket: TokenBucket | None = None

    # --- the connection --------------------------------------------------------------------------

    def wake(self, now_ms: int) -> list[Effect]:
        if self.link is Link.DOWN:
            if now_ms < self._dial_at_ms:
                return []
            self.link = Link.DIALING
            self._heard_ms = now_ms
            return [Dial()]
        if now_ms >= self._dead_at_ms():
            return [Hangup("no answer: the link is dead")]
        if self.link is Link.UP and now_ms >= self._status_at_ms:
            self._status_at_ms = now_ms + self._config.status_interval_ms
            self._statuses_unheard.append(now_ms)
            return [SendStatus(self.session)]
        return []

    def _dead_at_ms(self) -> int:
        waits_since_ms = min(self._heard_ms, *self._statuses_unheard) if self._statuses_unheard else self._heard_ms
        return waits_since_ms + self._config.silence_max_ms

    def wake_at_ms(self) -> int:
        if self.link is Link.DOWN:
            return self._dial_at_ms
        return min(self._dead_at_ms(), self._status_at_ms) if self.link is Link.UP else self._dead_at_ms()

    def welcomed(self, welcome: Welcome, *, now_ms: int) -> None:
        self.link = Link.UP
        self.session = welcome.session
        self.cursor = welcome.cursor
        self._heard_ms = now_ms
        self._status_at_ms = now_ms + self._config.status_interval_ms
        self._progress = False
        self._statuses_heard = 0
        self._statuses_unheard.clear()
        self._live_next = welcome.live_start
        self._live_flight.clear()
        fraction = self._config.pace_fraction
        self._live_bucket = TokenBucket(
            per_s=welcome.rate_frames_per_s * fraction,
            burst=max(1.0, welcome.burst_frames * fraction),
            now_ms=now_ms,
        )
        self._live_sent = self._lag_checked = 0
        self._backfill_sent = self._backfill_answered = 0
        self._backfill_flight.clear()
        self._holes_are(welcome.holes)
        per_s = self._config.backfill_bytes_per_s
        self._backfill_bucket = None if per_s is None else TokenBucket(per_s=per_s, burst=per_s, now_ms=now_ms)

    def disconnected(self, *, now_ms: int) -> None:
        """The connection is gone, or could not be made. The next dial waits for the back-off."""
        if self.link is Link.DOWN:
            return
        if self._progress:
            self._backoff_ms = self._config.backoff_first_ms
        self.link = Link.DOWN
        self._statuses_unheard.clear()
        self.reconnects += 1
        self._holes = RangeSet()
        wait_ms = self._backoff_ms / 2 + self._backoff_ms / 2 * self._jitter()
        self._dial_at_ms = now_ms + int(wait_ms)
        self._backoff_ms = min(2 * self._backoff_ms, self._config.backoff_max_ms)

    def refused(self, refusal: Refused) -> Hangup:
        return Hangup(f"{refusal.code}: {refusal.detail}")

    # --- Live ------------------------------------------------------------------------------------

    def next_live(self, head: int, *, now_ms: int) -> range | Hangup | None:
        """Seqs that may leave now, or None; `Hangup` when Live is too far behind to catch up (seed 000)."""
        if self.link is not Link.UP or head < self._live_next:
            return None
        if self._live_sent - self._lag_checked >= self._config.lag_check_interval:
            self._lag_checked = self._live_sent
            if head - self._live_next + 1 > self._config.max_live_lag:
                return self._lag_exit(now_ms)
        if len(self._live_flight) >= self._config.live_window_blocks:
            return None
        assert self._live_bucket is not None
        room = int(self._live_bucket.available(now_ms))
        count = min(head + 1 - self._live_next, self._config.live_block_frames_max, room)
        if count <= 0:
            return None
        taken = self._live_bucket.take_and_hold(count, now_ms)
        assert taken, "US3"
        seqs = range(self._live_next, self._live_next + count)
        self._live_next = seqs.stop
        self._live_flight.append(seqs)
        self._live_sent += count
        return seqs

    def live_ready_at_ms(self, head: int, *, now_ms: int) -> int | None:
        """When the pace allows the next live frame, if nothing else holds it back."""
        blocked = self.link is not Link.UP or head < self._live_next
        if blocked or len(self._live_flight) >= self._config.live_window_blocks or self._live_bucket is None:
            return None
        if self._live_bucket.ceiling < 1:
            return None  # the answers to what is on its way make room
        return self._live_bucket.ready_at_ms(1, now_ms)

    def live_position(self) -> int:
        """The next seq that Live will send."""
        return self._live_next

    def _lag_exit(self, now_ms: int) -> Hangup:
        """Reconnect at once, so that the gap becomes a hole for Backfill; but not more often than allowed."""
        previous, self._lag_exit_at_ms = self._lag_exit_at_ms, now_ms
        self._progress = True
        wait_until_ms = now_ms
        if previous is not None:
            wait_until_ms = max(now_ms, previous + self._config.min_lag_reconnect_interval_ms)
        self.disconnected(now_ms=now_ms)
        self._dial_at_ms = wait_until_ms
        self._backoff_ms = self._config.backoff_first_ms
        return Hangup("Live fell behind; the gap goes by Backfill")

    def live_acked(self, ack: LiveAck, *, now_ms: int) -> bool:
        """False for an answer of a session that is over: its cursor may be that of another lineage."""
        if ack.session != self.session or self.link is not Link.UP:
            return False
        self._heard(now_ms)
        self._advance(ack.cursor)
        while self._live_flight and self._live_flight[0].stop - 1 <= ack.committed_through:
            seqs = self._live_flight.popleft()
            self._progress = True
            if self._live_bucket is not None:
                self._live_bucket.release(len(seqs), now_ms)
        self._holes_are(ack.holes)
        self._note_statuses(ack.statuses)
        return True

    def _note_statuses(self, heard: int | None) -> None:
        if heard is None:
            self._statuses_unheard.clear()  # an lplex cloud does not say
        while self._statuses_unheard and heard is not None and self._statuses_heard < heard:
            self._statuses_unheard.popleft()
            self._statuses_heard += 1

    # --- Backfill --------------------------------------------------------------------------------

    def next_backfill(self, *, now_ms: int, through: int | None = None) -> range | None:
        """The newest stretch that is missing and not on its way, or None when nothing may leave now.

        `through` leaves out what lies above it: frames that the boat's disk has not taken yet.
        """
        if self.link is not Link.UP or len(self._backfill_flight) >= self._config.backfill_window_blocks:
            return None
        if self._backfill_bucket is not None and self._backfill_bucket.available(now_ms) <= 0:
            return None
        if through is None or self._holes.end <= through + 1:
            return self._holes.last
        below = self._holes.overlap(range(through + 1))
        return below[-1] if below else None

    def backfill_ready_at_ms(self, *, now_ms: int) -> int | None:
        blocked = self.link is not Link.UP or not self._holes
        if blocked or len(self._backfill_flight) >= self._config.backfill_window_blocks:
            return None
        return now_ms if self._backfill_bucket is None else self._backfill_bucket.ready_at_ms(1, now_ms)

    def backfilled(self, seqs: range, *, size_bytes: int, now_ms: int) -> None:
        """A block with these seqs left, or a word that they are gone."""
        self._holes.remove(seqs)
        self._backfill_flight.append(seqs)
        self._backfill_sent += 1
        if self._backfill_bucket is not None:
            self._backfill_bucket.spend(size_bytes, now_ms)

    def backfill_acked(self, ack: BackfillAck, *, now_ms: int) -> bool:
        """False for an answer of a session that is over."""
        if ack.session != self.session or self.link is not Link.UP:
            return False
        self._heard(now_ms)
        self._advance(ack.cursor)
        while self._backfill_flight and self._backfill_answered < ack.answered:
            self._backfill_flight.popleft()
            self._backfill_answered += 1
            self._progress = True
        self._holes_are(ack.remaining)
        return True

    def missing(self) -> list[range]:
        """What the cloud still lacks and the boat has not sent in this session."""
        return list(self._holes)

    def _holes_are(self, holes: tuple[range, ...]) -> None:
        """What the cloud says is missing, less what is on its way, less what Live has yet to send."""
        told = RangeSet(holes)
        for seqs in self._backfill_flight:
            told.remove(seqs)
        if told and told.end > self._live_next:
            told.remove(range(self._live_next, told.end))
        self._holes = told

    def _heard(self, now_ms: int) -> None:
        self._heard_ms = now_ms
        self.last_ack_ms = now_ms

    def _advance(self, cursor: int) -> None:
        if cursor > self.cursor:
            self._progress = True
        self.cursor = max(self.cursor, cursor)
