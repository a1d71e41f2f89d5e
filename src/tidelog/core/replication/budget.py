"""How much of a link catch-up may use: token buckets on a fraction of the link's measured peak (seed 001).

A leader asks before it sends old records to a replica; a refusal is answered with Backpressure and the time after which
to ask again. Each link (a pair of nodes) has one bucket for all channels together, filled at the largest fraction of
the channels that use it now, and each channel has its own bucket there at its own fraction. So two channels with one
half each share that half, and one with a tenth stays at its tenth beside them. A bucket holds `burst_ms` of its rate
and starts full.

What a caller must keep: time comes in and is that of one clock.

BU1  What is granted to a channel on a link within any time is at most fraction x peak x time and one bucket more (or
     one request, where that is larger); the same holds for all channels together. Only Realtime may exceed it.
BU2  Live traffic (a replica in sync, at the end of the log) is granted at once and charged nothing.
BU3  No channel is refused for ever: a request that is larger than what its class may use at once passes when the bucket
     is full, and leaves a debt; Background that got nothing for 60 s passes once with a tenth of a bucket.
BU4  Within one class, the channel that was refused first is served first, if it comes back when it was told to. A
     request that comes at the right moment by chance does not starve the others.
BU5  A new peak, or a new fraction, keeps the proportion to which a bucket is filled.
BU6  Memory is bounded by `links_max` and `channels_max`. A channel's bucket that is full again is forgotten: a new one
     would be full as well.

Numbers are whole: a level counts millionths of a byte, for a rate of one byte a second adds one of them a microsecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from tidelog.core.catalog.channel_config import FRACTION_PPM, BandwidthClass
from tidelog.core.catalog.records import NODES_MAX
from tidelog.core.liveness.measures import PEAK_BYTES_PER_S_FIRST
from tidelog.units import US_PER_MS, US_PER_S

BACKGROUND_PPM: Final = 300_000
"""The upper part of a bucket that Background may use: it leaves seven tenths to the others."""
STARVED_US: Final = 60 * US_PER_S
STARVED_DIVISOR: Final = 10
"""Starved Background passes once with at most a tenth of a bucket."""
REALTIME_DIVISOR: Final = 2
"""Realtime passes with at most half a bucket at a time; a larger request has no privilege."""
RETRY_MS_MAX: Final = 1_000
GRACE_US: Final = 250 * US_PER_MS
"""So much later than it was told to may somebody come back and still have its turn."""
CHANNELS_MAX: Final = 4_096
"""With a bucket that is not full, per link."""

_MICRO: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Granted:
    """Send it. `charged` is nothing for live traffic."""

    charged: int


@dataclass(frozen=True, slots=True)
class WaitForBudget:
    """Not now. Answer Backpressure; the same request may pass after so long."""

    retry_after_ms: int


Verdict: TypeAlias = Granted | WaitForBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatistics:
    """The statistics of one link, since it was first used."""

    peak_bytes_per_s: int
    rate_bytes_per_s: int
    """What catch-up may use now, all channels together."""
    available_bytes: int
    """Negative after a request that was larger than the bucket."""
    channels: int
    """That have used it lately."""
    waits: int


class _Bucket:
    """Whole numbers, `_MICRO` of them a byte."""

    __slots__ = ("_burst_us", "_updated_us", "capacity", "level", "rate")

    def __init__(self, *, rate: int, burst_us: int, now_us: int) -> None:
        assert rate > 0
        self.rate = rate
        self._burst_us = burst_us
        self.capacity = rate * burst_us
        self.level = self.capacity
        self._updated_us = now_us

    def refill(self, now_us: int) -> None:
        elapsed_us = max(0, now_us - self._updated_us)
        self.level = min(self.capacity, self.level + elapsed_us * self.rate)
        self._updated_us = max(self._updated_us, now_us)

    def set_rate(self, rate: int) -> None:
        """Refill first. Keeps the proportion (BU5)."""
        assert rate > 0
        capacity = rate * self._burst_us
        self.level = self.level * capacity // self.capacity
        self.capacity = capacity
        self.rate = rate

    def lacking_us(self, cost: int, *, leave: int = 0, ahead: int = 0) -> int:
        """How long until `cost` can be taken and `leave` stays; of more than fits, until the bucket is full (BU3).

        What is kept for those `ahead` comes on top.
        """
        lacking = min(cost + leave, self.capacity) + ahead - self.level
        return -(-lacking // self.rate) if lacking > 0 else 0

    def take(self, cost: int) -> None:
        self.level -= cost

    def drain(self, cost: int) -> None:
        """Take what is there."""
        self.level -= min(cost, max(0, self.level))

    @property
    def is_full(self) -> bool:
        return self.level >= self.capacity


@dataclass(frozen=True, slots=True)
class _Turn:
    """What is kept for a channel that was refused, until it should have come back."""

    bandwidth_class: BandwidthClass
    cost: int
    until_us: int


class LinkBudget:
    """One link. `LinkBudgets` holds those of a node."""

    def __init__(
        self,
        *,
        now_us: int,
        peak_bytes_per_s: int = PEAK_BYTES_PER_S_FIRST,
        background_ppm: int = BACKGROUND_PPM,
        burst_ms: int = 1_000,
        channels_max: int = CHANNELS_MAX,
    ) -> None:
        assert peak_bytes_per_s > 0
        assert 0 <= background_ppm < FRACTION_PPM
        assert burst_ms > 0
        self._peak = peak_bytes_per_s
        self._background_ppm = background_ppm
        self._burst_us = burst_ms * US_PER_MS
        self._channels_max = channels_max
        self._shared: _Bucket | None = None
        """None while no channel has used the link: what it may carry depends on who does."""
        self._channels: dict[int, tuple[int, _Bucket]] = {}
        """By channel id: its fraction and its bucket."""
        self._turns: dict[int, _Turn] = {}
        """By channel id; who was refused first comes first (BU4)."""
        self._swept_us = now_us
        self._background_us = now_us
        """When Background was last let through."""
        self._waits = 0

    def spend(
        self,
        channel_id: int,
        byte_count: int,
        *,
        fraction_ppm: int,
        bandwidth_class: BandwidthClass,
        now_us: int,
        live: bool = False,
    ) -> Verdict:
        """May a leader send so many bytes of this channel's old records now?"""
        assert byte_count >= 0
        assert 0 < fraction_ppm <= FRACTION_PPM
        if live or byte_count == 0:
            return Granted(0)
        own = self._bucket_of(channel_id, fraction_ppm, now_us)
        if own is None:
            self._waits += 1
            return WaitForBudget(RETRY_MS_MAX)
        shared = self._shared
        assert shared is not None
        cost = byte_count * _MICRO
        if bandwidth_class is BandwidthClass.REALTIME and cost * REALTIME_DIVISOR <= min(own.capacity, shared.capacity):
            own.drain(cost)
            shared.drain(cost)
        else:
            own_us = own.lacking_us(cost)
            shared_us = self._shared_wait_us(shared, channel_id, cost, bandwidth_class, now_us)
            if own_us > 0 or shared_us > 0:
                self._waits += 1
                wait = WaitForBudget(min(max(1, -(-max(own_us, shared_us) // US_PER_MS)), RETRY_MS_MAX))
                if shared_us >= own_us:  # else it is its own fraction that it waits for, and nobody takes that away
                    self._keep_turn(channel_id, bandwidth_class, cost, now_us + wait.retry_after_ms * US_PER_MS)
                return wait
            own.take(cost)
            shared.take(cost)
        self._turns.pop(channel_id, None)
        if bandwidth_class is BandwidthClass.BACKGROUND:
            self._background_us = now_us
        return Granted(byte_count)

    def set_peak(self, peak_bytes_per_s: int, *, now_us: int) -> None:
        """The link has shown what it can carry (R10)."""
        assert peak_bytes_per_s > 0
        if peak_bytes_per_s == self._peak:
            return
        self._peak = peak_bytes_per_s
        for fraction_ppm, bucket in self._channels.values():
            bucket.refill(now_us)
            bucket.set_rate(self._rate(fraction_ppm))
        self._set_shared_rate(now_us)

    def statistics(self, *, now_us: int) -> BudgetStatistics:
        if self._shared is not None:
            self._shared.refill(now_us)
        return BudgetStatistics(
            peak_bytes_per_s=self._peak,
            rate_bytes_per_s=self._shared.rate if self._shared is not None else 0,
            available_bytes=self._shared.level // _MICRO if self._shared is not None else 0,
            channels=len(self._channels),
            waits=self._waits,
        )

    # --- the buckets -----------------------------------------------------------------------------------

    def _rate(self, fraction_ppm: int) -> int:
        return max(1, self._peak * fraction_ppm // FRACTION_PPM)

    def _bucket_of(self, channel_id: int, fraction_ppm: int, now_us: int) -> _Bucket | None:
        """The channel's bucket as of now, and the shared one as well; None if there are too many."""
        if now_us - self._swept_us >= self._burst_us:
            self._sweep(now_us)
        held = self._channels.get(channel_id)
        if held is None:
            if len(self._channels) >= self._channels_max:
                return None
            bucket = _Bucket(rate=self._rate(fraction_ppm), burst_us=self._burst_us, now_us=now_us)
        else:
            bucket = held[1]
            bucket.refill(now_us)
        if held is None or held[0] != fraction_ppm:
            bucket.set_rate(self._rate(fraction_ppm))
            self._channels[channel_id] = (fraction_ppm, bucket)
            self._set_shared_rate(now_us)
        assert self._shared is not None
        self._shared.refill(now_us)
        return bucket

    def _sweep(self, now_us: int) -> None:
        """Forget who has not used the link for a while (BU6)."""
        self._swept_us = now_us
        idle = []
        for channel_id, (_, bucket) in self._channels.items():
            bucket.refill(now_us)
            if bucket.is_full:
                idle.append(channel_id)
        for channel_id in idle:
            del self._channels[channel_id]
        self._set_shared_rate(now_us)

    def _set_shared_rate(self, now_us: int) -> None:
        """The largest fraction of those that use the link."""
        largest_ppm = max((fraction_ppm for fraction_ppm, _ in self._channels.values()), default=0)
        if not largest_ppm:
            return  # no channel: the next one sets it
        rate = self._rate(largest_ppm)
        if self._shared is None:
            self._shared = _Bucket(rate=rate, burst_us=self._burst_us, now_us=now_us)
        elif self._shared.rate != rate:
            self._shared.refill(now_us)
            self._shared.set_rate(rate)

    # --- the classes -----------------------------------------------------------------------------------

    def _shared_wait_us(
        self, shared: _Bucket, channel_id: int, cost: int, bandwidth_class: BandwidthClass, now_us: int
    ) -> int:
        ahead = self._ahead_of(channel_id, bandwidth_class, shared, now_us)
        if bandwidth_class is not BandwidthClass.BACKGROUND:
            return shared.lacking_us(cost, ahead=ahead)
        wait_us = shared.lacking_us(cost, leave=self._left_by_background(shared), ahead=ahead)
        if wait_us == 0 or cost * STARVED_DIVISOR > shared.capacity:
            return wait_us
        return min(wait_us, max(0, self._background_us + STARVED_US + 1 - now_us))

    def _ahead_of(self, channel_id: int, bandwidth_class: BandwidthClass, shared: _Bucket, now_us: int) -> int:
        """What is kept for those of the class that were refused before this one. Who did not come back is forgotten."""
        for other in [other for other, turn in self._turns.items() if turn.until_us < now_us]:
            del self._turns[other]
        ahead = 0
        for other, turn in self._turns.items():
            if other == channel_id:
                break
            if turn.bandwidth_class is bandwidth_class:
                ahead += min(turn.cost, shared.capacity)
        return ahead

    def _keep_turn(self, channel_id: int, bandwidth_class: BandwidthClass, cost: int, back_us: int) -> None:
        if channel_id in self._turns or len(self._turns) < self._channels_max:
            self._turns[channel_id] = _Turn(bandwidth_class, cost, back_us + GRACE_US)

    def _left_by_background(self, shared: _Bucket) -> int:
        return shared.capacity * (FRACTION_PPM - self._background_ppm) // FRACTION_PPM

    def _is_starved(self, now_us: int) -> bool:
        return now_us - self._background_us > STARVED_US


class LinkBudgets:
    """The links of one node, by the node at their other end."""

    def __init__(
        self, *, background_ppm: int = BACKGROUND_PPM, burst_ms: int = 1_000, links_max: int = NODES_MAX
    ) -> None:
        self._background_ppm = background_ppm
        self._burst_ms = burst_ms
        self._links_max = links_max
        self._links: dict[str, LinkBudget] = {}

    def link(self, peer: str, *, now_us: int) -> LinkBudget:
        """Made at its first use, with the peak that a link has before it has shown one (R10).

        At `links_max` the link that was made first makes room: nodes come and go, and no more than so many are active.
        """
        held = self._links.get(peer)
        if held is None:
            if len(self._links) >= self._links_max:
                del self._links[next(iter(self._links))]
            held = LinkBudget(now_us=now_us, background_ppm=self._background_ppm, burst_ms=self._burst_ms)
            self._links[peer] = held
        return held
