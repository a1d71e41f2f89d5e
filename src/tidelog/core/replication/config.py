"""How a channel is opened by the embedded API: seed 001's `ReplicationConfig`, and the file it belongs to.

Both are values that are built freely (`with_...` returns a changed copy and judges nothing) and judged as a whole:
`validate` raises with everything that is wrong at once. What the catalog stores is a `ChannelConfig`; the two here
convert to it and back without loss, so that a channel opened in a program and one created by an operator are the same
thing.

What a caller must keep: `validate` before `to_channel_config`.

CF1  A valid config makes a valid `ChannelConfig`, and that one makes an equal config again; a fraction is kept to a
     millionth, and never becomes 0.
CF2  Values of a wrong type are problems in words like others, and do not hide the other problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeAlias

from tidelog.core.catalog.channel_config import (
    FRACTION_PPM,
    NUMBER_MAX,
    BandwidthClass,
    ChannelConfig,
    ChannelRetention,
    FsyncPolicy,
    Placement,
    UnderCapacity,
)
from tidelog.errors import InvalidConfig
from tidelog.units import MIB

SILENT_AFTER_HEARTBEATS: Final = 3


@dataclass(frozen=True, slots=True)
class Standard:
    """Scored: intent, colocation, scope, proximity, free resources, spread over hosts."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """On exactly these nodes; their number is the effective factor."""

    nodes: Sequence[str]

    def __post_init__(self) -> None:
        # A list is what people write; a lone name is left as it is and found by `problems`.
        given: Any = self.nodes
        if isinstance(given, Iterable) and not isinstance(given, str):
            object.__setattr__(self, "nodes", tuple(given))


@dataclass(frozen=True, slots=True)
class ColocationStrict:
    """Only on nodes that hold the chain of `metadata.colocate-with-strict`."""


PlacementStrategy: TypeAlias = Standard | Pinned | ColocationStrict

_STANDARD: Final = Standard()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """The replication of one channel; the same on every node."""

    factor: int = 3
    """Replicas including the leader, 1 to 16. The list of `Pinned` wins over it."""
    placement: PlacementStrategy = _STANDARD
    placement_metadata: tuple[tuple[str, str], ...] = ()
    """Sorted pairs: `metadata.intent`, `metadata.colocate-with`, `metadata.colocate-with-strict`, `scope:...`."""
    heartbeat_ms: int = 500
    """At least 100. A leader counts as silent after three of them."""
    leader_pinned: str | None = None
    """This node leads whenever it is healthy."""
    on_under_capacity: UnderCapacity = UnderCapacity.WITHDRAW
    replication_budget_fraction: float = 0.5
    """The share of a link's measured peak that catch-up may use: (0, 1]."""
    min_isr: int | None = None
    """None: 2 for an effective factor of 3 or more, else 1 (R4)."""
    skip_threshold_bytes: int = 100 * MIB
    """R11."""
    bandwidth_class: BandwidthClass = BandwidthClass.FOREGROUND

    @classmethod
    def new(cls) -> Self:
        """The defaults, to be changed by `with_...`."""
        return cls()

    def with_factor(self, factor: int) -> Self:
        return replace(self, factor=factor)

    def with_placement(self, placement: PlacementStrategy) -> Self:
        return replace(self, placement=placement)

    def with_placement_metadata(self, metadata: Mapping[str, str]) -> Self:
        """Replaces the value that was there."""
        return replace(self, placement_metadata=tuple(sorted(metadata.items())))

    def with_heartbeat_ms(self, heartbeat_ms: int) -> Self:
        return replace(self, heartbeat_ms=heartbeat_ms)

    def with_leader_pinned(self, leader_pinned: str | None) -> Self:
        return replace(self, leader_pinned=leader_pinned)

    def with_on_under_capacity(self, on_under_capacity: UnderCapacity) -> Self:
        return replace(self, on_under_capacity=on_under_capacity)

    def with_replication_budget_fraction(self, fraction: float) -> Self:
        return replace(self, replication_budget_fraction=fraction)

    def with_min_isr(self, min_isr: int | None) -> Self:
        return replace(self, min_isr=min_isr)

    def with_skip_threshold_bytes(self, skip_threshold_bytes: int) -> Self:
        return replace(self, skip_threshold_bytes=skip_threshold_bytes)

    def with_bandwidth_class(self, bandwidth_class: BandwidthClass) -> Self:
        return replace(self, bandwidth_class=bandwidth_class)

    @property
    def effective_factor(self) -> int:
        return len(self.placement.nodes) if isinstance(self.placement, Pinned) else self.factor

    @property
    def silence_ms(self) -> int:
        """How long a leader may say nothing. Exact, however large `heartbeat_ms` is."""
        return SILENT_AFTER_HEARTBEATS * self.heartbeat_ms

    def problems(self) -> list[str]:
        """Everything that is wrong, in words; empty for a config that can be used (CF2)."""
        wrong = self._wrong_types()
        fraction = self.replication_budget_fraction
        if "replication_budget_fraction" not in wrong and not 0 < fraction <= 1:  # NaN is in no range
            wrong["replication_budget_fraction"] = (
                f"replication_budget_fraction is {fraction}; choose more than 0 and at most 1"
            )
        # A field that is wrong in itself is replaced by its default, so that the others can still be checked.
        sound = replace(self, **{name: getattr(_DEFAULT, name) for name in wrong})
        return [*wrong.values(), *sound.to_channel_config().problems()]

    def _wrong_types(self) -> dict[str, str]:
        """By field name."""
        wrong = _wrong_numbers(self, ("factor", "heartbeat_ms", "skip_threshold_bytes"))
        if self.min_isr is not None:
            wrong |= _wrong_numbers(self, ("min_isr",))
        if not _is(self.replication_budget_fraction, float | int) or _is(self.replication_budget_fraction, bool):
            wrong["replication_budget_fraction"] = "replication_budget_fraction must be a number"
        if not _is(self.placement, Standard | Pinned | ColocationStrict):
            wrong["placement"] = "placement must be Standard(), Pinned([...]) or ColocationStrict()"
        elif isinstance(self.placement, Pinned) and not _are_names(self.placement.nodes):
            wrong["placement"] = "Pinned takes a list of node ids"
        if not _is(self.leader_pinned, str | None):
            wrong["leader_pinned"] = "leader_pinned must be a node id or None"
        if not _are_pairs(self.placement_metadata):
            wrong["placement_metadata"] = "placement_metadata must be pairs of texts; set it by with_placement_metadata"
        if not _is(self.on_under_capacity, UnderCapacity):
            wrong["on_under_capacity"] = "on_under_capacity must be an UnderCapacity"
        if not _is(self.bandwidth_class, BandwidthClass):
            wrong["bandwidth_class"] = "bandwidth_class must be a BandwidthClass"
        return wrong

    def validate(self) -> None:
        """Raise `InvalidConfig` with all problems at once."""
        if found := self.problems():
            raise InvalidConfig(section="replication", problems=found)

    def to_channel_config(self, base: ChannelConfig | None = None) -> ChannelConfig:
        """In the form that the catalog stores; fields that replication does not have are taken from `base`."""
        placement, nodes = _to_catalog(self.placement)
        return replace(
            base or ChannelConfig(),
            replicated=True,
            factor=self.factor,
            placement=placement,
            pinned_nodes=nodes,
            placement_metadata=self.placement_metadata,
            heartbeat_ms=self.heartbeat_ms,
            leader_pinned=self.leader_pinned,
            on_under_capacity=self.on_under_capacity,
            replication_budget_ppm=max(1, round(self.replication_budget_fraction * FRACTION_PPM)),
            min_isr=self.min_isr,
            skip_threshold_bytes=self.skip_threshold_bytes,
            bandwidth_class=self.bandwidth_class,
        )

    @classmethod
    def from_channel_config(cls, config: ChannelConfig) -> Self | None:
        """None for a channel that is not replicated."""
        if not config.replicated:
            return None
        return cls(
            factor=config.factor,
            placement=_from_catalog(config),
            placement_metadata=config.placement_metadata,
            heartbeat_ms=config.heartbeat_ms,
            leader_pinned=config.leader_pinned,
            on_under_capacity=config.on_under_capacity,
            replication_budget_fraction=config.replication_budget_fraction,
            min_isr=config.min_isr,
            skip_threshold_bytes=config.skip_threshold_bytes,
            bandwidth_class=config.bandwidth_class,
        )


_DEFAULT: Final = ReplicationConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileConfig:
    """The settings of one channel as a program opens it. By default it is on disk, synced, never trimmed and not
    replicated."""

    persistent: bool = True
    """False: in memory, up to the hard cap of seed 001."""
    fsync: FsyncPolicy = FsyncPolicy.ALWAYS
    fsync_interval_ms: int = 1_000
    retention_max_events: int | None = None
    retention_max_bytes: int | None = None
    retention_max_age_ms: int | None = None
    replication: ReplicationConfig | None = None
    """None: the channel stays on this node and is not replicated."""

    def with_persistent(self, persistent: bool) -> Self:
        return replace(self, persistent=persistent)

    def with_fsync(self, fsync: FsyncPolicy, *, interval_ms: int | None = None) -> Self:
        return replace(
            self, fsync=fsync, fsync_interval_ms=self.fsync_interval_ms if interval_ms is None else interval_ms
        )

    def with_retention_max_events(self, events: int | None) -> Self:
        return replace(self, retention_max_events=events)

    def with_retention_max_bytes(self, byte_count: int | None) -> Self:
        return replace(self, retention_max_bytes=byte_count)

    def with_retention_max_age_ms(self, age_ms: int | None) -> Self:
        return replace(self, retention_max_age_ms=age_ms)

    def with_replication(self, replication: ReplicationConfig | None) -> Self:
        return replace(self, replication=replication)

    def problems(self) -> list[str]:
        """Everything that is wrong, in words, the replication included."""
        wrong = _wrong_numbers(self, ("fsync_interval_ms",))
        limits = ("retention_max_events", "retention_max_bytes", "retention_max_age_ms")
        wrong |= _wrong_numbers(self, [name for name in limits if getattr(self, name) is not None])
        if not _is(self.persistent, bool):
            wrong["persistent"] = "persistent must be True or False"
        if not _is(self.fsync, FsyncPolicy):
            wrong["fsync"] = "fsync must be a FsyncPolicy"
        if not _is(self.replication, ReplicationConfig | None):
            inner = ["replication must be a ReplicationConfig or None"]
        else:
            inner = self.replication.problems() if self.replication is not None else []
        sound = replace(self, replication=None, **{name: getattr(_DEFAULT_FILE, name) for name in wrong})
        return [*wrong.values(), *sound.to_channel_config().problems(), *inner]

    def validate(self) -> None:
        """Raise `InvalidConfig` with all problems at once."""
        if found := self.problems():
            raise InvalidConfig(section="file", problems=found)

    def to_channel_config(self) -> ChannelConfig:
        """In the form that the catalog stores."""
        own = ChannelConfig(
            replicated=False,
            fsync=self.fsync,
            fsync_interval_ms=self.fsync_interval_ms,
            retention=ChannelRetention(
                max_age_ms=self.retention_max_age_ms,
                max_bytes=self.retention_max_bytes,
                max_events=self.retention_max_events,
            ),
            persistent=self.persistent,
        )
        return own if self.replication is None else self.replication.to_channel_config(own)

    @classmethod
    def from_channel_config(cls, config: ChannelConfig) -> Self:
        """Fields that only replication would use are left out for a channel that is not replicated."""
        return cls(
            persistent=config.persistent,
            fsync=config.fsync,
            fsync_interval_ms=config.fsync_interval_ms,
            retention_max_events=config.retention.max_events,
            retention_max_bytes=config.retention.max_bytes,
            retention_max_age_ms=config.retention.max_age_ms,
            replication=ReplicationConfig.from_channel_config(config),
        )


_DEFAULT_FILE: Final = FileConfig()


def _to_catalog(placement: PlacementStrategy) -> tuple[Placement, tuple[str, ...]]:
    if isinstance(placement, Pinned):
        return Placement.PINNED, tuple(placement.nodes)
    return (Placement.STANDARD if isinstance(placement, Standard) else Placement.COLOCATION_STRICT), ()


def _from_catalog(config: ChannelConfig) -> PlacementStrategy:
    if config.placement is Placement.PINNED:
        return Pinned(config.pinned_nodes)
    return Standard() if config.placement is Placement.STANDARD else ColocationStrict()


def _wrong_numbers(config: ReplicationConfig | FileConfig, names: Sequence[str]) -> dict[str, str]:
    wrong = {}
    for name in names:
        value = getattr(config, name)
        if not _is(value, int) or _is(value, bool):
            wrong[name] = f"{name} must be a whole number"
        elif value > NUMBER_MAX:
            wrong[name] = f"{name} is {value}; the most is {NUMBER_MAX}"
    return wrong


def _is(value: Any, kind: Any) -> bool:
    """Check the annotations: the caller may not use a type checker."""
    return isinstance(value, kind)


def _are_names(nodes: Any) -> bool:
    return isinstance(nodes, tuple) and all(isinstance(node, str) for node in nodes)


def _are_pairs(metadata: Any) -> bool:
    return isinstance(metadata, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in metadata
    )
