"""The records of the catalog: nodes, channels, producers, tokens, grants and groups, each frozen.

Records are values. A change replaces a record by a new one and never edits it, so a reader (an election, a status page,
a snapshot) has a consistent view of one moment. The numbered rules are in `catalog`.

When a member is trusted (R5, C5). A node's incarnation rises whenever it registers. A member of an ISR records the
incarnation in which it was last known to hold everything, and what it may lose in a crash (`Keeps`). A node records,
for each kind of `Keeps`, the incarnation since which it has lost nothing of that kind. Comparing the two tells whether
the member can be trusted, whatever happened in between, without touching a single channel when a node comes back.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from tidelog.core.catalog.channel_config import ChannelConfig, Keeps
from tidelog.core.catalog.codec import numbers_converter

NODES_MAX: Final = 64
"""The most nodes that are not removed."""
NODES_KNOWN_MAX: Final = 1_024
"""The most node records, removed ones included: their incarnations must never be used again."""
CHANNELS_MAX: Final = 100_000
TOMBSTONES_MAX: Final = 1_024
"""The most deletions that are remembered by name. The ids of older ones are still never used again."""
PRODUCERS_MAX: Final = 100_000
PRODUCERS_PER_CHANNEL_MAX: Final = 4_096
TOKENS_MAX: Final = 10_000
GRANTS_MAX: Final = 10_000
ADDRESSES_MAX: Final = 16
TAGS_MAX: Final = 64
DAMAGED_MAX: Final = 256
TEXT_BYTES_MAX: Final = 255
UNCLEAN_MAX: Final = 256
PATTERNS_MAX: Final = 64
GROUPS_MAX: Final = 10_000
GROUP_MEMBERS_MAX: Final = 256
GROUP_PATTERNS_MAX: Final = 256
"""The most channels and streams that one member may name."""
GROUP_CHANNELS_MAX: Final = 20_000
"""The most channels that the members of one group may read together."""
EVENTS_MAX: Final = 4_096
"""The most activity events that wait to be published; beyond it the oldest are dropped."""
GROUP_PARTITIONS_MAX: Final = 256
"""The most channels of a stream that a member reads: `s`, `s/1`, ..."""

ADOPTED_MAX: Final = 2**48
"""The largest id or epoch of an adopted log: an absurd one must leave room to count on from it."""
CHANNEL_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:/-]{0,199}")
CHANNEL_PATTERN: Final = re.compile(r"\*|[A-Za-z0-9_][A-Za-z0-9._:/-]{0,198}\*?")
"""A name, or a prefix of names and a star."""
SIMPLE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
PRINCIPAL: Final = re.compile(r"(boat|node|operator|client|token):[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
DIGEST: Final = re.compile(r"[0-9a-f]{64}")
HEX_ID: Final = re.compile(r"[0-9a-f]{8,64}")
GROUP_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,55}")
"""Short enough for a cursor to be named after it."""
MEMBER_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:/@-]{0,127}")

SCOPES: Final = (
    "admin:access",
    "admin:channels",
    "admin:cluster",
    "read:data",
    "read:metrics",
    "read:status",
    "write:data",
)
"""What a principal may be allowed to do. The three that read are those of HTTP."""


class NodeState(Enum):
    EXPECTED = "expected"
    """Admitted, and never registered since."""
    ACTIVE = "active"
    FENCED = "fenced"
    """Its session was lost: it has no part in any decision until it registers again."""
    REMOVED = "removed"
    """Gone for good. The record stays, so that an incarnation is never used twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Since this incarnation the node is known to have lost a part of this channel (B4)."""

    channel_id: int
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One server process, by the name in its certificate."""

    node: str
    state: NodeState
    incarnation: int
    """The incarnation of its newest registration; 0 before the first."""
    addresses: tuple[tuple[str, str], ...] = ()
    """By listener (link, http, ...), sorted."""
    host: str = ""
    """Replicas of a channel are placed on different hosts."""
    tags: tuple[str, ...] = ()
    """Sorted pairs."""
    capacity_bytes: int = 0
    software: str = ""
    catalog_version: int = 0
    """The newest version of changes that its software reads."""
    disk_id: str = ""
    process_id: str = ""
    memory_since: int = 0
    """The incarnation since which nothing in its memory was lost."""
    written_since: int = 0
    """The incarnation since which nothing written was lost, synced or not."""
    synced_since: int = 0
    """The incarnation since which nothing synced was lost."""
    damaged: tuple[Damage, ...] = ()
    """By channel, where more was lost than these three numbers say."""
    changed_index: int = 0
    registered_at_ms: int = 0

    def kept_since(self, keeps: Keeps) -> int:
        if keeps is Keeps.SYNCED:
            return self.synced_since
        return self.written_since if keeps is Keeps.WRITTEN else self.memory_since


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A replica that was known to hold every committed record in this incarnation of its node (R3, R5)."""

    node: str
    incarnation: int
    keeps: Keeps


class UncleanCause(Enum):
    OPERATOR = "operator"
    """An operator named the replica and accepted the loss."""
    REPORTS = "reports"
    """Every replica might have lost records and all had reported; the longest log leads (R5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncleanElection:
    """Records that were committed before this leader epoch may be gone. Kept so that readers learn of it (P1)."""

    leader_epoch: int
    leader: str
    cause: UncleanCause
    operator: str
    at_ms: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRecord:
    """One channel. Every change raises its channel epoch (C2)."""

    channel_id: int
    name: str
    config: ChannelConfig
    replicas: tuple[str, ...]
    """In the order of placement."""
    leader: str | None
    leader_incarnation: int
    """The incarnation in which the leader was elected. A leader that registers anew leads only after a new election
    (R1)."""
    isr: tuple[Member, ...]
    eligible: tuple[Member, ...]
    """Left the ISR while it was below its minimum, so nothing was committed without them since (KIP-966)."""
    leader_epoch: int
    channel_epoch: int
    paused: bool
    readonly: bool
    created_index: int
    created_at_ms: int
    changed_index: int
    unclean: tuple[UncleanElection, ...] = ()

    @property
    def isr_nodes(self) -> tuple[str, ...]:
        return tuple(member.node for member in self.isr)

    def member(self, node: str) -> Member | None:
        """The node's entry in the ISR."""
        for member in self.isr:
            if member.node == node:
                return member
        return None

    def eligible_member(self, node: str) -> Member | None:
        for member in self.eligible:
            if member.node == node:
                return member
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """A channel that was deleted. Its id is never used again (S2)."""

    channel_id: int
    name: str
    deleted_index: int
    deleted_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRecord:
    """A named writer of one channel. Opening it again raises the epoch and so fences the one before."""

    producer_id: int
    channel_id: int
    name: str
    owner: str
    epoch: int
    opened_index: int
    opened_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A caller that presents the secret with this SHA-256 may do this. The secret itself is never stored (C13)."""

    token: str
    digest: str
    scopes: tuple[str, ...]
    channels: tuple[str, ...]
    created_at_ms: int
    expires_at_ms: int | None
    revoked_at_ms: int | None = None

    def is_good(self, now_ms: int) -> bool:
        return self.revoked_at_ms is None and (self.expires_at_ms is None or now_ms < self.expires_at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantRecord:
    """A principal (`operator:anna`, `client:plotter`, `boat:spray`, `node:n1`, `token:ci`) may do this on these
    channels."""

    principal: str
    scope: str
    channels: str
    """A name, or a prefix of names and a star."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One reader of a group, in one generation: joining again under the same name begins another and fences this
    one."""

    member: str
    owner: str
    """The principal that joined: no other acts for the member."""
    channels: tuple[str, ...]
    """Names, and prefixes of names with a star; sorted."""
    streams: tuple[str, ...]
    """Each stands for the channels `s`, `s/1`, `s/2` ... as far as they go without a gap; sorted."""
    life: int
    """The member generation: the index of the change by which it joined."""
    assigned: tuple[int, ...] = field(default=(), metadata={"converter": numbers_converter(GROUP_CHANNELS_MAX)})
    """Ids of the channels assigned to it; sorted. One may have been deleted since."""

    def reads(self, channel_id: int) -> bool:
        place = bisect_left(self.assigned, channel_id)
        return place < len(self.assigned) and self.assigned[place] == channel_id


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A group: members that share channels between them. It exists while it has members."""

    group: str
    epoch: int
    """Rises with every change of the members or of their assignments."""
    coordinator: str
    """The node that receives the members' heartbeats and expels silent ones."""
    coordinator_epoch: int
    """Rises with every change of the coordinator."""
    members: tuple[GroupMember, ...]
    """By name."""
    balanced_index: int
    """The index at which channels were last assigned: later creations and deletions are not included yet."""
    created_at_ms: int
    changed_index: int

    def member(self, name: str) -> GroupMember | None:
        for member in self.members:
            if member.member == name:
                return member
        return None


ACTIVITY_CHANNEL: Final = "__activity"
"""While there is a channel of this name, events of channels and groups are recorded for it."""


class Happening(Enum):
    CREATED = "created"
    DELETED = "deleted"
    PAUSED = "paused"
    RESUMED = "resumed"
    READONLY = "readonly"
    WRITABLE = "writable"
    JOINED = "joined"
    LEFT = "left"
    EXPELLED = "expelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityEvent:
    """An event that is not published yet."""

    index: int
    position: int
    """Its place among the changes of a batch."""
    happening: Happening
    name: str
    """The name of the channel or group."""
    labels: tuple[tuple[str, str], ...] = ()
    """The channel's placement metadata."""
    partitions: int = 0
    """How many channels the stream of this name had, when it was created."""
    member: str = ""
    reads: tuple[str, ...] = ()
    """What a member that joined named to read."""


def group_cursor(group: str) -> str:
    """The name of the cursor that holds a group's position in a channel."""
    return f"group.{group}"


def pattern_matches(pattern: str, channel: str) -> bool:
    return channel.startswith(pattern[:-1]) if pattern.endswith("*") else channel == pattern
