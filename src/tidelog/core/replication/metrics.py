"""Counters of replication per channel, under the names of seed 001, in Prometheus' text format.

Counters only rise and are those of this node since it started. A lag is that of the role the node has in the channel
now; a series is absent until it was first observed, and ends when the role does: a value that is not renewed would look
current.

ME1  Names, types, labels and order are fixed: the seed's seven, `announce_divergence`, then our own two.
ME2  At most `CHANNELS_MAX` channels have series of their own. All others share the counters of `__overflow__`, which
     has no lags: one number for many channels would mean nothing.
ME3  A snapshot is a moment: it does not change when counters do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from tidelog.units import US_PER_S

CHANNELS_MAX: Final = 1_024
OVERFLOW: Final = "__overflow__"

LAG_SECONDS: Final = "dataforts_replication_lag_seconds"
LAG_RECORDS: Final = "tidelog_replication_lag_records"
LAG_BYTES: Final = "tidelog_replication_lag_bytes"

_LAG_SECONDS_HELP: Final = (
    "Age of the last heartbeat: on a leader of the replica heard longest ago, on a replica of its leader."
)
_LAG_RECORDS_HELP: Final = "Records behind the end of the leader's log: on a leader of the replica furthest behind."
_LAG_BYTES_HELP: Final = "Bytes behind the end of the leader's log: on a leader of the replica furthest behind."

_COUNTERS: Final = (
    ("sync_bytes", "dataforts_replication_sync_bytes_total", "Bytes sent in SyncResponse."),
    ("leader_changes", "dataforts_leader_changes_total", "Times this node became leader."),
    (
        "under_capacity",
        "dataforts_replication_under_capacity_total",
        "Appends refused for want of disk or memory, whatever the policy.",
    ),
    (
        "skip_ahead",
        "dataforts_replication_skip_ahead_total",
        "BadRange answers received: retention had passed this replica.",
    ),
    (
        "election_thrash",
        "dataforts_replication_election_thrash_total",
        "Times this replica missed three heartbeats of its leader.",
    ),
    (
        "witness_withdrawals",
        "dataforts_replication_witness_withdrawals_total",
        "Reserved for the coordination of witnesses.",
    ),
    (
        "announce_divergence",
        "dataforts_replication_announce_divergence_total",
        "Times the causal tag could not be withdrawn when the role had ended.",
    ),
)
"""Attribute, name and help, in the order of the text (ME1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a channel is behind, in the role that the node has now."""

    role: str
    """`leader` or `replica`: the label of the seed."""
    silence_us: int
    records: int
    byte_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSample:
    """One channel at the moment of a snapshot."""

    channel: str
    lag: Lag | None
    sync_bytes: int
    leader_changes: int
    under_capacity: int
    skip_ahead: int
    election_thrash: int
    witness_withdrawals: int
    announce_divergence: int


class ChannelMetrics:
    """The counters of one channel. The code that replicates it holds this and counts events."""

    __slots__ = (
        "_lag",
        "_shows_lag",
        "announce_divergence",
        "channel",
        "election_thrash",
        "leader_changes",
        "skip_ahead",
        "sync_bytes",
        "under_capacity",
        "witness_withdrawals",
    )

    def __init__(self, channel: str, *, shows_lag: bool = True) -> None:
        self.channel = channel
        self._shows_lag = shows_lag
        self._lag: Lag | None = None
        self.sync_bytes = 0
        """When a SyncResponse with data is sent: its bytes."""
        self.leader_changes = 0
        """On every entry into the role Leader on this node."""
        self.under_capacity = 0
        """Counted on every refused append, before the policy acts; both policies count."""
        self.skip_ahead = 0
        """Counted on every BadRange received."""
        self.election_thrash = 0
        """Counted on every Replica -> Candidate for missed heartbeats."""
        self.witness_withdrawals = 0
        """Reserved by the seed: shown, and never counted."""
        self.announce_divergence = 0
        """Counted when withdrawing the tag failed after the role had ended."""

    def observe_leader(self, *, silence_us: int, records: int, byte_count: int) -> None:
        """As the leader: the largest lag of each kind over its replicas."""
        self._observe("leader", silence_us, records, byte_count)

    def observe_replica(self, *, silence_us: int, records: int, byte_count: int) -> None:
        """As a replica: the time since the leader was heard, and the lag behind its last known log."""
        self._observe("replica", silence_us, records, byte_count)

    def observe_nothing(self) -> None:
        """The node is neither leader nor replica any more."""
        self._lag = None

    def _observe(self, role: str, silence_us: int, records: int, byte_count: int) -> None:
        if self._shows_lag:
            # A clock that stands or an answer that overtook another must not show a negative age.
            self._lag = Lag(
                role=role, silence_us=max(0, silence_us), records=max(0, records), byte_count=max(0, byte_count)
            )

    def sample(self) -> ChannelSample:
        counts = {attribute: getattr(self, attribute) for attribute, _, _ in _COUNTERS}
        return ChannelSample(channel=self.channel, lag=self._lag, **counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationMetricsSnapshot:
    """All channels at one moment, by name (ME3)."""

    enabled: bool
    """False: replication was never switched on, and there is nothing to report."""
    channels: tuple[ChannelSample, ...]

    def prometheus_text(self) -> str:
        """The text in format 0.0.4, without timestamps. Empty if replication is off; else every name is announced."""
        return "".join(f"{line}\n" for line in self._lines()) if self.enabled else ""

    def _lines(self) -> Iterator[str]:
        lags = [(sample.channel, sample.lag) for sample in self.channels if sample.lag is not None]
        yield from _heading(LAG_SECONDS, _LAG_SECONDS_HELP, "gauge")
        for channel, lag in lags:
            yield f"{LAG_SECONDS}{_lag_labels(channel, lag)} {seconds_text(lag.silence_us)}"
        for attribute, name, help_text in _COUNTERS:
            yield from _heading(name, help_text, "counter")
            for sample in self.channels:
                yield f'{name}{{channel="{escaped(sample.channel)}"}} {getattr(sample, attribute)}'
        yield from _heading(LAG_RECORDS, _LAG_RECORDS_HELP, "gauge")
        for channel, lag in lags:
            yield f"{LAG_RECORDS}{_lag_labels(channel, lag)} {lag.records}"
        yield from _heading(LAG_BYTES, _LAG_BYTES_HELP, "gauge")
        for channel, lag in lags:
            yield f"{LAG_BYTES}{_lag_labels(channel, lag)} {lag.byte_count}"


class ReplicationMetricsRegistry:
    """The metrics of every replicated channel of this node."""

    def __init__(self, *, enabled: bool = True, channels_max: int = CHANNELS_MAX) -> None:
        assert channels_max > 0
        self._enabled = enabled
        self._channels_max = channels_max
        self._channels: dict[str, ChannelMetrics] = {}
        self._overflow: ChannelMetrics | None = None

    def enable(self) -> None:
        """Replication was switched on. Calling it again changes nothing."""
        self._enabled = True

    def channel(self, name: str) -> ChannelMetrics:
        """The channel's own counters, made at the first call, or those that all channels beyond the limit share
        (ME2)."""
        held = self._channels.get(name)
        if held is not None:
            return held
        # A channel may have this very name; two series of one name would make the whole scrape invalid.
        if name == OVERFLOW or len(self._channels) >= self._channels_max:
            if self._overflow is None:
                self._overflow = ChannelMetrics(OVERFLOW, shows_lag=False)
            return self._overflow
        made = self._channels[name] = ChannelMetrics(name)
        return made

    def forget(self, name: str) -> None:
        """The channel is closed or deleted: its series end, and its place is free."""
        self._channels.pop(name, None)

    def snapshot(self) -> ReplicationMetricsSnapshot:
        held = list(self._channels.values())
        if self._overflow is not None:
            held.append(self._overflow)
        samples = sorted((metrics.sample() for metrics in held), key=lambda sample: sample.channel)
        return ReplicationMetricsSnapshot(enabled=self._enabled, channels=tuple(samples))


def _heading(name: str, help_text: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def _lag_labels(channel: str, lag: Lag) -> str:
    return f'{{channel="{escaped(channel)}",role="{lag.role}"}}'


def escaped(text: str) -> str:
    """A label's value: backslash, quote and both line ends."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")


def seconds_text(time_us: int) -> str:
    """Seconds with up to six decimals and no trailing zeros."""
    whole, rest = divmod(time_us, US_PER_S)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".") if rest else str(whole)


assert {attribute for attribute, _, _ in _COUNTERS} == {
    field.name for field in fields(ChannelSample) if field.name not in ("channel", "lag")
}, "ME1"
