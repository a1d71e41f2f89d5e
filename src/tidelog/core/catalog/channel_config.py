"""How one channel is replicated and kept: every knob of seed 001, and what the rules add to them.

A config is built without checks and checked as a whole: `problems` lists everything that is wrong with it at once, so
that a user sees all problems after one call, and so that a config from the Raft log is refused the same way on every
node instead of stopping it. Fractions are whole numbers of millionths: equal configs have equal bytes everywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tidelog.core.catalog.codec import NUMBER_MAX as NUMBER_MAX
from tidelog.core.catalog.codec import later_field
from tidelog.core.subjects import queue_group_problem, subject_problem
from tidelog.errors import InvalidConfig
from tidelog.units import MIB

FACTOR_MAX: Final = 16
HEARTBEAT_MS_MIN: Final = 100
FRACTION_PPM: Final = 1_000_000
METADATA_MAX: Final = 16
METADATA_BYTES_MAX: Final = 128

NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""The name in a node's certificate (I3)."""
TEXT: Final = re.compile(r"[ -~]*")
"""Printable ASCII: safe in terminals, log lines and every JSON writer."""
_CHAIN: Final = re.compile(r"[0-9a-f]{16}")

INTENT: Final = "metadata.intent"
COLOCATE_WITH: Final = "metadata.colocate-with"
COLOCATE_WITH_STRICT: Final = "metadata.colocate-with-strict"


class Placement(Enum):
    """Where replicas live."""

    STANDARD = "standard"
    """Chosen by score: intent, colocation, scope, proximity, free resources, spread over hosts."""
    PINNED = "pinned"
    """On the nodes of `pinned_nodes`, whose number is the effective factor."""
    COLOCATION_STRICT = "colocation_strict"
    """Only on nodes that hold the chain named in the metadata."""


class UnderCapacity(Enum):
    """What a replica does whose disk or memory is full."""

    WITHDRAW = "withdraw"
    EVICT_OLDEST = "evict_oldest"


class BandwidthClass(Enum):
    """Priority of the channel's catch-up traffic."""

    FOREGROUND = "foreground"
    BACKGROUND = "background"
    REALTIME = "realtime"


class FsyncPolicy(Enum):
    """When an append counts as done."""

    ALWAYS = "always"
    INTERVAL = "interval"
    NEVER = "never"


class Keeps(Enum):
    """What a replica may lose in a crash, from most to least (R5)."""

    MEMORY = "memory"
    """It loses everything when its process ends."""
    WRITTEN = "written"
    """It loses what was not synced when it does not stop cleanly."""
    SYNCED = "synced"
    """It loses nothing that was acked, while its disk is good."""


KEEPS_ORDER: Final = (Keeps.MEMORY, Keeps.WRITTEN, Keeps.SYNCED)


def weaker(one: Keeps, other: Keeps) -> Keeps:
    return min(one, other, key=KEEPS_ORDER.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRetention:
    """What may be trimmed from the front. None means no limit of that kind."""

    max_age_ms: int | None = None
    max_bytes: int | None = None
    max_events: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig:
    """Per channel, the same on every node. Check it with `problems` or `validate` before use."""

    replicated: bool = True
    """False: the channel stays on one node and is not replicated."""
    factor: int = 3
    """Replicas including the leader, 1 to 16. `pinned_nodes` overrides it."""
    placement: Placement = Placement.STANDARD
    pinned_nodes: tuple[str, ...] = ()
    """With PINNED placement: the nodes of the replicas, each once."""
    placement_metadata: tuple[tuple[str, str], ...] = ()
    """Sorted pairs: intent, colocate-with, colocate-with-strict and other keys that a placement filter reads."""
    heartbeat_ms: int = 500
    """At least 100. A leader counts as silent after three of them (R6)."""
    leader_pinned: str | None = None
    """This node leads whenever it is healthy."""
    on_under_capacity: UnderCapacity = UnderCapacity.WITHDRAW
    replication_budget_ppm: int = 500_000
    """The share of a link's measured peak that catch-up may use, in millionths: (0, 1] as a fraction."""
    min_isr: int | None = None
    """None: 2 for an effective factor of 3 or more, else 1 (R4). Below it the channel refuses writes."""
    skip_threshold_bytes: int = 100 * MIB
    """How far behind a replica skips or rebuilds once the range is gone at the leader (R11)."""
    fsync: FsyncPolicy = FsyncPolicy.ALWAYS
    fsync_interval_ms: int = 1_000
    bandwidth_class: BandwidthClass = BandwidthClass.FOREGROUND
    retention: ChannelRetention = field(default_factory=ChannelRetention)
    persistent: bool = True
    """False: in memory, up to the hard cap of seed 001. Cannot be changed later."""
    subject: str | None = later_field(None)
    """The NATS subject from which the leader feeds the channel. Without effect on a node without NATS servers."""
    queue_group: str | None = later_field(None)
    """With a subject: channels of one group share its messages, each message goes to one of them."""

    @property
    def effective_factor(self) -> int:
        if not self.replicated:
            return 1
        return len(self.pinned_nodes) if self.placement is Placement.PINNED else self.factor

    @property
    def effective_min_isr(self) -> int:
        if self.min_isr is not None:
            return self.min_isr
        return 2 if self.effective_factor >= 3 else 1

    @property
    def replication_budget_fraction(self) -> float:
        return self.replication_budget_ppm / FRACTION_PPM

    @property
    def keeps(self) -> Keeps:
        """Which records a replica with this config still has after a crash (R5)."""
        if not self.persistent:
            return Keeps.MEMORY
        return Keeps.SYNCED if self.fsync is FsyncPolicy.ALWAYS else Keeps.WRITTEN

    def problems(self) -> list[str]:
        """Everything that is wrong, in words; empty for a config that can be used."""
        found = []
        if not 1 <= self.factor <= FACTOR_MAX:
            found.append(f"factor is {self.factor}; choose 1 to {FACTOR_MAX}")
        if not HEARTBEAT_MS_MIN <= self.heartbeat_ms <= NUMBER_MAX:
            found.append(f"heartbeat_ms is {self.heartbeat_ms}; the least is {HEARTBEAT_MS_MIN}")
        if not 0 < self.replication_budget_ppm <= FRACTION_PPM:
            found.append(f"replication_budget_ppm is {self.replication_budget_ppm}; choose 1 to {FRACTION_PPM}")
        if self.skip_threshold_bytes < 1:
            found.append("skip_threshold_bytes must be positive")
        if self.fsync_interval_ms < 1:
            found.append("fsync_interval_ms must be positive")
        limits = {
            "max_age_ms": self.retention.max_age_ms,
            "max_bytes": self.retention.max_bytes,
            "max_events": self.retention.max_events,
        }
        found += [
            f"retention {name} must be positive" for name, value in limits.items() if value is not None and value < 1
        ]
        found += self._pin_problems()
        found += self._metadata_problems()
        found += self._subject_problems()
        if self.min_isr is not None and not 1 <= self.min_isr <= max(1, self.effective_factor):
            found.append(f"min_isr is {self.min_isr}; choose 1 to the effective factor, {self.effective_factor}")
        return found

    def _pin_problems(self) -> list[str]:
        found = []
        pinned = self.placement is Placement.PINNED
        if pinned and not self.pinned_nodes:
            found.append("pinned placement needs at least one node in pinned_nodes")
        if not pinned and self.pinned_nodes:
            found.append("pinned_nodes has an effect with pinned placement only; leave it out or choose that placement")
        if len(self.pinned_nodes) > FACTOR_MAX:
            return [*found, f"pinned_nodes has {len(self.pinned_nodes)} nodes; the most is {FACTOR_MAX}"]
        repeated = sorted({node for node in self.pinned_nodes if self.pinned_nodes.count(node) > 1})
        if repeated:
            found.append(f"pinned_nodes names {repeated[0]!r} more than once")
        found += [f"{node!a} in pinned_nodes is not a node id" for node in self.pinned_nodes if not is_node_name(node)]
        if self.leader_pinned is not None:
            if not is_node_name(self.leader_pinned):
                found.append(f"leader_pinned {self.leader_pinned!a} is not a node id")
            elif pinned and self.leader_pinned not in self.pinned_nodes:
                found.append(f"leader_pinned {self.leader_pinned!r} is not one of pinned_nodes")
        if not self.replicated and pinned and len(self.pinned_nodes) > 1:
            found.append("a channel that is not replicated has one replica; pin one node only")
        return found

    def _metadata_problems(self) -> list[str]:
        found = []
        keys = [key for key, _ in self.placement_metadata]
        if keys != sorted(set(keys)):
            found.append("placement_metadata must be sorted by key, each key once")
        if len(keys) > METADATA_MAX:
            return [*found, f"placement_metadata has {len(keys)} entries; the most is {METADATA_MAX}"]
        for key, value in self.placement_metadata:
            if not key or not is_text(key, METADATA_BYTES_MAX) or not is_text(value, METADATA_BYTES_MAX):
                found.append(
                    f"placement_metadata {key!a} must be printable ASCII of at most {METADATA_BYTES_MAX} bytes"
                )
            elif key in (COLOCATE_WITH, COLOCATE_WITH_STRICT) and not _CHAIN.fullmatch(value):
                found.append(f"{key} is {value!a}; a chain is 16 lower-case hex digits")
        if self.placement is Placement.COLOCATION_STRICT and COLOCATE_WITH_STRICT not in keys:
            found.append(f"strict colocation needs {COLOCATE_WITH_STRICT} in placement_metadata")
        return found

    def _subject_problems(self) -> list[str]:
        found = []
        if self.subject is not None and (problem := subject_problem(self.subject)):
            found.append(f"the subject {self.subject[:80]!a} {problem}")
        if self.queue_group is not None:
            if problem := queue_group_problem(self.queue_group):
                found.append(f"the queue group {self.queue_group[:80]!a} {problem}")
            if self.subject is None:
                found.append("a queue group shares the messages of a subject; name the subject too")
        return found

    def validate(self) -> None:
        """Raise `InvalidConfig` with all problems at once."""
        if found := self.problems():
            raise InvalidConfig(section="channel", problems=found)


def is_node_name(text: str) -> bool:
    return NODE_NAME.fullmatch(text) is not None


def is_text(text: str, bytes_max: int) -> bool:
    """Short and printable."""
    return len(text) <= bytes_max and TEXT.fullmatch(text) is not None
