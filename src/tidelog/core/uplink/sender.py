"""The boat's half of the uplink: when to dial, what to send live, what to send again.

Nothing here does I/O. The caller dials when `wake` says so, asks `next_live` and `next_backfill` what may leave now,
sends it, and passes in the answers. Live is self-clocked: a block leaves as soon as fewer than a few are uncommitted,
and frames that arrived meanwhile go into the next, so no delay is ever added and batches grow with load (U1).

An lplex cloud sends less: no session, no committed position, an ack only after a frame. Live is then clocked by its
rate alone, and silence counts only while something waits for an answer. Once no hole is left, its cursor jumps to the
head that it last heard of; if Live is beyond that, it stands still from then on. So before the last hole closes Live is
paused, and a report sends its position to the cloud.

What a caller must keep: call `wake` when `wake_at_ms` says so; after `Hangup` close the connection and
report `disconnected`; pass in only answers of the current connection.

US1  At most one session at a time, and at most one dial per back-off (BO1-BO4), except when Live fell behind.
US2  Live sends each seq of a session once, in order, without gaps.
US3  Live is never refused for its rate (U4), however the link delays and bunches it: unacked frames and those that may
     leave now are together never above the burst in the Welcome.
US4  Backfill asks for the newest hole first and goes on until nothing is missing that the boat has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tidelog.core.ranges import RangeSet
from tidelog.core.uplink.backoff import DialBackoff
from tidelog.core.uplink.budget import TokenBucket
from tidelog.core.uplink.messages import BackfillAck, LiveAck, Refused, Welcome
from tidelog.errors import InvalidConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderConfig:
    """The settings of a sending boat. The first three are the seed's; the rest limit the harm of a bad link."""

    max_live_lag: int = 10_000
    """Frames that Live may be behind before the boat leaves them to Backfill."""
    lag_check_interval: int = 1_000
    """Check the lag every so many frames sent."""
    min_lag_reconnect_interval_ms: int = 30_000
    backoff_first_ms: int = 1_000
    backoff_max_ms: int = 60_000
    backoff_steady_ms: int = 10_000
    """A session that was acked for this long, and for as long as the back-off had become, resets the back-off."""
    silence_max_ms: int = 25_000
    """No answer for so long means the link is dead, whatever the socket says."""
    status_interval_ms: int = 5_000
    live_window_blocks: int = 2
    live_block_frames_max: int = 400
    backfill_window_blocks: int = 32
    pace_fraction: float = 0.95
    """The boat stays this much below the cloud's rate limit, so that it never meets it."""
    unheard_burst_fraction: float = 0.1
    """The share of the burst that is used towards a cloud that does not report what it received (lplex): the rest is
    for frames that the link delays and delivers at once, 0.2 s of Live at lplex's limits."""
    backfill_bytes_per_s: int | None = None
    """Cap for metered links; Live is not counted."""
    backfill_ahead_ms: int = 1_000
    """How much Backfill may be in flight, in time at the measured speed of the link: Live waits behind it."""

    def __post_init__(self) -> None:
        counts = {
            "max_live_lag": self.max_live_lag,
            "lag_check_interval": self.lag_check_interval,
            "backoff_first_ms": self.backoff_first_ms,
            "backoff_steady_ms": self.backoff_steady_ms,
            "live_window_blocks": self.live_window_blocks,
            "live_block_frames_max": self.live_block_frames_max,
            "backfill_window_blocks": self.backfill_window_blocks,
            "backfill_ahead_ms": self.backfill_ahead_ms,
            "status_interval_ms": self.status_interval_ms,
        }
        problems = [f"{name} must be positive" for name, value in counts.items() if value <= 0]
        if self.backoff_max_ms < self.backoff_first_ms:
            problems.append("backoff_max_ms must not be below backoff_first_ms")
        if self.silence_max_ms <= self.status_interval_ms:
            problems.append("silence_max_ms must exceed status_interval_ms, or a quiet link looks dead")
        if not 0 < self.pace_fraction <= 1:
            problems.append("pace_fraction must be above 0 and at most 1")
        if not 0 < self.unheard_burst_fraction <= 1:
            problems.append("unheard_burst_fraction must be above 0 and at most 1")
        if self.backfill_bytes_per_s is not None and self.backfill_bytes_per_s <= 0:
            problems.append("backfill_bytes_per_s must be positive")
        if problems:
            raise InvalidConfig(section="replication", problems=problems)


_NEVER_MS = 2**62
_SETTLE_MS = 500
"""A status and a block travel in streams of their own: the block may come later by this much."""
_AHEAD_BYTES_MIN = 32 * 1024


class LinkState(Enum):
    DOWN = "down"
    DIALING = "dialing"
    """A Handshake is in flight."""
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


class _Flight:
    """Backfill that is in flight, and the measured speed of the link."""

    def __init__(self) -> None:
        self._left: deque[tuple[range, int, int]] = deque()
        self._bytes = 0
        self._bytes_per_ms: float | None = None
        self._arrived_ms = 0

    def seqs(self) -> list[range]:
        return [seqs for seqs, _, _ in self._left]

    def left(self, seqs: range, size_bytes: int, now_ms: int) -> None:
        self._left.append((seqs, size_bytes, now_ms))
        self._bytes += size_bytes

    def arrived(self, count: int, now_ms: int) -> int:
        """The oldest `count` were answered; returns how many that were."""
        count = min(count, len(self._left))
        since_ms, size_bytes = self._arrived_ms, 0
        for number in range(count):
            _, size, left_ms = self._left.popleft()
            since_ms = max(since_ms, left_ms) if number == 0 else since_ms
            size_bytes += size
        if size_bytes:
            self._bytes -= size_bytes
            speed = size_bytes / max(now_ms - since_ms, 1)
            self._bytes_per_ms = speed if self._bytes_per_ms is None else 0.7 * self._bytes_per_ms + 0.3 * speed
        self._arrived_ms = now_ms
        return count

    def waits_since_ms(self) -> int | None:
        """Since when the oldest waits for an answer, and no other was answered."""
        return max(self._left[0][2], self._arrived_ms) if self._left else None

    def is_full(self, *, blocks_max: int, ahead_ms: int) -> bool:
        """A little may always be in flight; more only as far as it arrives soon."""
        return len(self._left) >= blocks_max or self._bytes >= max(
            _AHEAD_BYTES_MIN, (self._bytes_per_ms or 0.0) * ahead_ms
        )


class UplinkSender:
    """`jitter` gives numbers in [0, 1): a fleet that lost its cloud must not come back in one second."""

    def __init__(self, *, config: SenderConfig, jitter: Callable[[], float], now_ms: int) -> None:
        self._config = config
        self._backoff = DialBackoff(
            first_ms=config.backoff_first_ms,
            longest_ms=config.backoff_max_ms,
            steady_ms=config.backoff_steady_ms,
            jitter=jitter,
        )
        self.link = LinkState.DOWN
        self.session = 0
        self.cursor = 0
        self.reconnects = 0
        self.dials = 0
        self.last_ack_ms: int | None = None
        self._dial_at_ms = now_ms
        self._lag_exit_at_ms: int | None = None
        self._heard_ms = now_ms
        self._status_at_ms = now_ms
        self._statuses_heard = 0
        self._statuses_unheard: deque[int] = deque()
        """When each report left that the cloud has not confirmed: the link may be dead in one direction, which acks on
        a timer hide."""
        self._welcomed_ms = now_ms
        self._live_next = 0
        self._live_flight: deque[range] = deque()
        self._live_bucket: TokenBucket | None = None
        self._live_sent = 0
        self._lag_checked = 0
        self._holes = RangeSet()
        self._backfill_answered = 0
        self._backfill_flight = _Flight()
        self._backfill_bucket: TokenBucket | None = None
        self.speaks_lplex = False
        """The cloud is an lplex one."""
        self._live_heard_ms = now_ms
        self._live_unanswered_ms: int | None = None
        """When the first frame left that an lplex cloud should answer and has not."""
        self._settled_at_ms: int | None = None
        """Live is paused since the last hole of an lplex cloud is about to close; from this moment on it may close."""
        self._backfill_ends = False

    # --- the connection --------------------------------------------------------------------------

    def wake(self, now_ms: int) -> list[Effect]:
        if self.link is LinkState.DOWN:
            if now_ms < self._dial_at_ms:
                return []
            self.link = LinkState.DIALING
            self.dials += 1
            self._heard_ms = now_ms
            return [Dial()]
        if now_ms >= self._dead_at_ms():
            return [Hangup("no answer: the link is dead")]
        if self.link is LinkState.UP and now_ms >= self._status_at_ms:
            self._status_at_ms = now_ms + self._config.status_interval_ms
            if not self.speaks_lplex:
                self._statuses_unheard.append(now_ms)
            return [SendStatus(self.session)]
        return []

    def _dead_at_ms(self) -> int:
        if self.link is LinkState.UP and self.speaks_lplex:
            # Either stream may fall silent alone: an answer of one is none for what waits in the other.
            waits = [self._live_unanswered_ms, self._backfill_flight.waits_since_ms()]
            silent_since_ms = min((since_ms for since_ms in waits if since_ms is not None), default=_NEVER_MS)
            return silent_since_ms + self._config.silence_max_ms
        waits_since_ms = min(self._heard_ms, *self._statuses_unheard) if self._statuses_unheard else self._heard_ms
        return waits_since_ms + self._config.silence_max_ms

    def wake_at_ms(self) -> int:
        if self.link is LinkState.DOWN:
            return self._dial_at_ms
        return min(self._dead_at_ms(), self._status_at_ms) if self.link is LinkState.UP else self._dead_at_ms()

    def welcomed(self, welcome: Welcome, *, now_ms: int) -> None:
        self.link = LinkState.UP
        self.session = welcome.session
        self.cursor = welcome.cursor
        self._heard_ms = now_ms
        self._status_at_ms = now_ms + self._config.status_interval_ms
        self._welcomed_ms = now_ms
        self._statuses_heard = 0
        self._statuses_unheard.clear()
        self.speaks_lplex = welcome.session == 0
        # An lplex cloud that has all asks for its newest frame once more.
        has_all = self.speaks_lplex and welcome.live_start == welcome.cursor
        self._live_next = welcome.live_start + has_all
        self._live_flight.clear()
        fraction = self._config.pace_fraction
        of_burst = self._config.unheard_burst_fraction if self.speaks_lplex else fraction
        self._live_bucket = TokenBucket(
            per_s=welcome.rate_frames_per_s * fraction,
            burst=max(1.0, welcome.burst_frames * of_burst),
            now_ms=now_ms,
        )
        self._live_sent = self._lag_checked = 0
        self._backfill_answered = 0
        self._backfill_flight = _Flight()
        self._live_heard_ms = now_ms
        self._live_unanswered_ms = None
        self._settled_at_ms = None
        self._backfill_ends = self.speaks_lplex and bool(welcome.holes)
        self._holes_are(welcome.holes)
        per_s = self._config.backfill_bytes_per_s
        self._backfill_bucket = None if per_s is None else TokenBucket(per_s=per_s, burst=per_s, now_ms=now_ms)

    def disconnected(self, *, now_ms: int) -> None:
        """The connection is gone, or could not be made. The next dial waits for the back-off."""
        if self.link is LinkState.DOWN:
            return
        self._end_session()
        self._dial_at_ms = now_ms + self._backoff.wait_ms()

    def _end_session(self) -> None:
        if self.link is LinkState.UP and self.last_ack_ms is not None:
            self._backoff.session_was_acked(self.last_ack_ms - self._welcomed_ms)
        self.link = LinkState.DOWN
        self._statuses_unheard.clear()
        self.reconnects += 1
        self._holes = RangeSet()

    def rest_until(self, at_ms: int, *, now_ms: int) -> None:
        """Hang up, and do not dial before then: the day's bytes are used up. This is no failure (BO4)."""
        self._end_session()
        self._dial_at_ms = max(at_ms, now_ms)

    def refused(self, refusal: Refused) -> Hangup:
        return Hangup(f"{refusal.code}: {refusal.detail}")

    # --- Live ------------------------------------------------------------------------------------

    def next_live(self, head: int, *, now_ms: int) -> range | Hangup | None:
        """Seqs that may leave now, or None; `Hangup` when Live is too far behind to catch up (seed 000)."""
        if self.link is not LinkState.UP or head < self._live_next:
            return None
        if self._live_sent - self._lag_checked >= self._config.lag_check_interval:
            self._lag_checked = self._live_sent
            if head - self._live_next + 1 > self._config.max_live_lag:
                return self._lag_exit(now_ms)
        room = self.live_room(now_ms)
        count = min(head + 1 - self._live_next, self._config.live_block_frames_max, room)
        if count <= 0:
            return None
        assert self._live_bucket is not None
        seqs = range(self._live_next, self._live_next + count)
        if self.speaks_lplex:
            taken = self._live_bucket.take(count, now_ms)
            is_due = now_ms - self._live_heard_ms >= self._config.status_interval_ms
            if is_due and self._live_unanswered_ms is None:
                self._live_unanswered_ms = now_ms  # it answers a frame, but not sooner than that after its last answer
        else:
            taken = self._live_bucket.take_and_hold(count, now_ms)
            self._live_flight.append(seqs)
        assert taken, "US3"
        self._live_next = seqs.stop
        self._live_sent += count
        return seqs

    def live_room(self, now_ms: int) -> int:
        """How many frames Live may send now, in one block or several."""
        if self.link is not LinkState.UP or self._settled_at_ms is not None or self._live_bucket is None:
            return 0
        blocks = self._config.live_window_blocks - len(self._live_flight)
        return max(0, min(blocks * self._config.live_block_frames_max, int(self._live_bucket.available(now_ms))))

    def _live_window_is_full(self) -> bool:
        return len(self._live_flight) >= self._config.live_window_blocks

    def live_ready_at_ms(self, head: int, *, now_ms: int) -> int | None:
        """When the rate allows the next live frame, if nothing else delays it."""
        blocked = self.link is not LinkState.UP or head < self._live_next or self._settled_at_ms is not None
        if blocked or self._live_window_is_full() or self._live_bucket is None:
            return None
        if self._live_bucket.ceiling < 1:
            return None  # answers to blocks in flight make room
        return self._live_bucket.ready_at_ms(1, now_ms)

    def live_position(self) -> int:
        """The next seq that Live will send."""
        return self._live_next

    def _lag_exit(self, now_ms: int) -> Hangup:
        """Reconnect at once, so that the gap becomes a hole for Backfill; but not more often than allowed."""
        previous, self._lag_exit_at_ms = self._lag_exit_at_ms, now_ms
        wait_until_ms = now_ms
        if previous is not None:
            wait_until_ms = max(now_ms, previous + self._config.min_lag_reconnect_interval_ms)
        self._end_session()  # our own choice, and no failed dial: the back-off stays as it is (BO4)
        self._dial_at_ms = wait_until_ms
        return Hangup("Live fell behind; the gap goes by Backfill")

    def live_acked(self, ack: LiveAck, *, now_ms: int) -> bool:
        """False for an answer of a session that is over: its cursor may belong to another lineage."""
        if ack.session != self.session or self.link is not LinkState.UP:
            return False
        self._heard(now_ms)
        self._live_heard_ms, self._live_unanswered_ms = now_ms, None
        self._advance(ack.cursor)
        while self._live_flight and self._live_flight[0].stop - 1 <= ack.committed_through:
            seqs = self._live_flight.popleft()
            if self._live_bucket is not None:
                self._live_bucket.release(len(seqs), now_ms)
        if not self.speaks_lplex:
            self._holes_are(ack.holes)
            self._note_statuses(ack.statuses)
        return True

    def _note_statuses(self, heard: int | None) -> None:
        if heard is None:
            self._statuses_unheard.clear()  # a cloud that does not say
        while self._statuses_unheard and heard is not None and self._statuses_heard < heard:
            self._statuses_unheard.popleft()
            self._statuses_heard += 1

    # --- Backfill --------------------------------------------------------------------------------

    def next_backfill(self, *, now_ms: int, through: int | None = None) -> range | None:
        """The newest missing range that is not in flight, or None when nothing may leave now.

        `through` excludes seqs above it: frames that the boat's disk has not taken yet.
        """
        if self._backfill_is_blocked():
            return None
        if self._backfill_bucket is not None and self._backfill_bucket.available(now_ms) <= 0:
            return None
        if through is None or self._holes.end <= through + 1:
            return self._holes.last
        below = self._holes.overlap(range(through + 1))
        return below[-1] if below else None

    def _backfill_is_blocked(self) -> bool:
        if self.link is not LinkState.UP:
            return True
        flight, config = self._backfill_flight, self._config
        return flight.is_full(blocks_max=config.backfill_window_blocks, ahead_ms=config.backfill_ahead_ms)

    def backfill_ready_at_ms(self, *, now_ms: int) -> int | None:
        if not self._holes or self._backfill_is_blocked():
            return None
        if self._settled_at_ms is not None and self._backfill_flight.seqs():
            return None
        ready_ms = now_ms if self._backfill_bucket is None else self._backfill_bucket.ready_at_ms(1, now_ms)
        return ready_ms if self._settled_at_ms is None else max(ready_ms, self._settled_at_ms)

    def backfilled(self, seqs: range, *, size_bytes: int, now_ms: int) -> None:
        """A block with these seqs was sent, or a message that they are gone."""
        self._holes.remove(seqs)
        self._backfill_flight.left(seqs, size_bytes, now_ms)
        if self._backfill_bucket is not None:
            self._backfill_bucket.spend(size_bytes, now_ms)

    def closes_last_hole(self, seqs: range) -> bool:
        """Whether nothing is missing once these have arrived."""
        left = self._holes.copy()
        left.remove(seqs)
        return not left

    def settle(self, now_ms: int) -> bool:
        """An lplex cloud's last hole is about to close: pause Live. True the first time: report Live's position."""
        if self._settled_at_ms is not None:
            return False
        self._settled_at_ms = now_ms + _SETTLE_MS
        return True

    def is_settled(self, now_ms: int) -> bool:
        """Whether that report has surely arrived, and all of Backfill before it."""
        return self._settled_at_ms is not None and now_ms >= self._settled_at_ms and not self._backfill_flight.seqs()

    def _release_live(self) -> None:
        """The last hole of an lplex cloud has closed. If its cursor is below Live all the same, it needs the frames in
        between once more: it moves only by the next seq."""
        if self._settled_at_ms is not None and not self._holes and not self._backfill_flight.seqs():
            self._settled_at_ms = None
            self._live_next = min(self._live_next, self.cursor + 1)

    def backfill_acked(self, ack: BackfillAck, *, now_ms: int) -> bool:
        """False for an answer of a session that is over."""
        if ack.session != self.session or self.link is not LinkState.UP:
            return False
        self._heard(now_ms)
        self._advance(ack.cursor)
        if arrived := self._backfill_flight.arrived(ack.answered - self._backfill_answered, now_ms):
            self._backfill_answered += arrived
        self._holes_are(ack.remaining)
        self._release_live()
        return True

    def take_backfill_end(self) -> bool:
        """True once, when an lplex cloud has all it can get: it saves its state when Backfill ends."""
        if not self._backfill_ends or self.link is not LinkState.UP or self._holes or self._backfill_flight.seqs():
            return False
        self._backfill_ends = False
        return True

    def is_missing_any(self) -> bool:
        return bool(self._holes)

    def missing(self) -> list[range]:
        """Seqs that the cloud lacks and the boat has not sent in this session."""
        return list(self._holes)

    def _holes_are(self, holes: tuple[range, ...]) -> None:
        """Seqs that the cloud reports missing, without those in flight and those that Live has yet to send."""
        told = RangeSet(holes)
        for seqs in self._backfill_flight.seqs():
            told.remove(seqs)
        if told and told.end > self._live_next:
            told.remove(range(self._live_next, told.end))
        self._holes = told

    def _heard(self, now_ms: int) -> None:
        self._heard_ms = now_ms
        self.last_ack_ms = now_ms

    def _advance(self, cursor: int) -> None:
        self.cursor = max(self.cursor, cursor)
