"""Maps Liftbridge's streams, partitions, subjects and cursors to Tidelog's names. Does no I/O.

`codecs/stream_names` says which channel is which partition. Properties that only streams have (whether one checks
offsets) are kept in the channel's placement metadata.

LN1  A stream's name does not end like a partition's, so no two streams share a channel.
LN2  A request that is not permitted is refused with `InvalidConfig`, which explains it, before anything is changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.codecs.stream_names import PARTITIONS_MAX, channel_of
from tidelog.core.catalog import ChannelConfig
from tidelog.core.catalog.channel_config import FACTOR_MAX, ChannelRetention
from tidelog.core.catalog.records import CHANNEL_NAME, GROUP_NAME, SIMPLE_NAME
from tidelog.core.subjects import attached_subject, queue_group_problem, subject_problem
from tidelog.errors import InvalidConfig

ACTIVITY_STREAM: Final = "__activity"
CURSORS_STREAM: Final = "__cursors"
RESERVED: Final = frozenset({ACTIVITY_STREAM, CURSORS_STREAM})
REPLY: Final = "reply"
OWN_HEADERS: Final = frozenset({"subject", REPLY})
"""Headers that the gateway sets on outgoing messages; a client's own headers of these names are dropped."""

CHECKS_OFFSETS: Final = "liftbridge.occ"
CREATION: Final = "liftbridge.creation"
"""On partition 0: identifies the request that created the stream, so our retry is told from somebody else's stream."""
PARTITION: Final = "liftbridge.partition"
"""On partitions above 0: they are not streams of their own even while partition 0 is missing."""

_ENDS_IN_NUMBER: Final = re.compile(r".*/[0-9]+")
_HASHED: Final = "liftbridge."
_GROUP_CURSOR: Final = "__group:"


def own_headers_left_out(headers: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """A client's headers by name, without those that the gateway sets."""
    return [(name, headers[name]) for name in sorted(headers) if name not in OWN_HEADERS]


class StreamFacts(NamedTuple):
    """Properties of a stream for which channels have no field."""

    subject: str
    group: str
    checks_offsets: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedStream:
    """A stream to create, as requested. None: not given."""

    name: str
    subject: str
    group: str = ""
    replication_factor: int = 0
    partitions: int = 0
    retention_bytes: int | None = None
    retention_messages: int | None = None
    retention_age_ms: int | None = None
    compacts: bool = False
    encrypts: bool = False
    checks_offsets: bool = False
    pauses_itself: bool = False
    min_isr: int | None = None


def facts_of(channel: str, config: ChannelConfig) -> StreamFacts:
    """The properties that partition 0's config holds. A channel without a NATS subject has its name as its subject."""
    metadata = dict(config.placement_metadata)
    return StreamFacts(
        subject=config.subject or channel,
        group=config.queue_group or "",
        checks_offsets=metadata.get(CHECKS_OFFSETS) == "1",
    )


def cursor_name(cursor: str) -> str:
    """The cursor's name on its channel. An id that is no valid name, or could be taken for a hash, is hashed."""
    if SIMPLE_NAME.fullmatch(cursor) and not cursor.startswith(_HASHED):
        return cursor
    return _HASHED + hashlib.sha256(cursor.encode()).hexdigest()[:40]


def group_of_cursor(cursor: str) -> str | None:
    """The group whose position Liftbridge's clients keep in this cursor; None for other cursors."""
    group = cursor.removeprefix(_GROUP_CURSOR)
    return group if group != cursor and GROUP_NAME.fullmatch(group) else None


def name_problem(name: str) -> str | None:
    """Why a stream of this name cannot be created."""
    if name in RESERVED:
        return f"{name} is reserved; choose another name"
    if not CHANNEL_NAME.fullmatch(channel_of(name, PARTITIONS_MAX)):
        return (
            f"{name[:80]!a} is no name for a stream; use 1 to 196 letters, digits and . _ : / - beginning with a "
            "letter, a digit or _"
        )
    if _ENDS_IN_NUMBER.fullmatch(name):
        return f"{name[:80]!a} ends in a number as partitions do; choose a name that does not end in /digits"
    return None


def configs_of(wanted: WantedStream, *, nodes: int, creation: str) -> list[ChannelConfig]:
    """One config per partition. `nodes` is the number of nodes, `creation` a random text. Raises `InvalidConfig` with
    all problems (LN2)."""
    problems = [found] if (found := name_problem(wanted.name)) else []
    partitions = wanted.partitions or 1
    # Partition numbers lengthen the subject: if the longest is valid, all are.
    if problem := subject_problem(attached_subject(wanted.subject, PARTITIONS_MAX if partitions > 1 else 0)):
        problems.append(f"subject {wanted.subject[:80]!a} {problem}")
    if wanted.group and (problem := queue_group_problem(wanted.group)):
        problems.append(f"group {wanted.group[:80]!a} {problem}")
    if not 1 <= partitions <= PARTITIONS_MAX:
        problems.append(f"{wanted.partitions} partitions were asked for; choose 1 to {PARTITIONS_MAX}")
    most = min(nodes, FACTOR_MAX)
    factor = most if wanted.replication_factor == -1 else wanted.replication_factor or 1
    if not 1 <= factor <= most:
        problems.append(
            f"replication factor {wanted.replication_factor} does not fit {nodes} nodes; "
            f"choose 1 to {most}, or -1 for all"
        )
    if wanted.compacts:
        problems.append("compaction is not offered here; leave it out, and set a retention")
    if wanted.encrypts:
        problems.append("encryption by the server is not offered here; encrypt values before you publish them")
    if wanted.pauses_itself:
        problems.append("pausing by itself is not offered here; leave autoPauseTime out, and pause it where you want")
    if problems:
        raise InvalidConfig(section="stream", problems=problems)
    metadata = {CHECKS_OFFSETS: "1"} if wanted.checks_offsets else {}
    configs = [
        _config(wanted, factor, {**metadata, PARTITION: str(partition)}, partition)
        for partition in range(1, partitions)
    ]
    configs.insert(0, _config(wanted, factor, {**metadata, CREATION: creation}, 0))
    for config in configs[:2]:
        config.validate()
    return configs


def _config(wanted: WantedStream, factor: int, metadata: Mapping[str, str], partition: int) -> ChannelConfig:
    return ChannelConfig(
        subject=attached_subject(wanted.subject, partition),
        queue_group=wanted.group or None,
        factor=factor,
        min_isr=wanted.min_isr,
        placement_metadata=tuple(sorted(metadata.items())),
        retention=ChannelRetention(
            max_age_ms=wanted.retention_age_ms or None,
            max_bytes=wanted.retention_bytes or None,
            max_events=wanted.retention_messages or None,
        ),
    )
