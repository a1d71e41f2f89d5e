"""How Liftbridge's streams, partitions, subjects and cursors are named here. Nothing in this file does I/O.

Partition 0 of the stream `foo` is the channel `foo`, partition k above 0 the channel `foo/k`. So every channel is a
stream too, of one partition. What a stream has and a channel has not (its subject, its queue group, whether it checks
offsets) lies in the channel's placement metadata.

LN1  A channel is a partition of at most one stream, and `place_of` is the inverse of `channel_of`.
LN2  Whatever a client may not say is refused with `InvalidConfig` in words, before anything was done.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.core.catalog import ChannelConfig
from tidelog.core.catalog.channel_config import FACTOR_MAX, METADATA_BYTES_MAX, ChannelRetention, is_text
from tidelog.core.catalog.records import CHANNEL_NAME, SIMPLE_NAME
from tidelog.errors import InvalidConfig

ACTIVITY_STREAM: Final = "__activity"
CURSORS_STREAM: Final = "__cursors"
RESERVED: Final = frozenset({ACTIVITY_STREAM, CURSORS_STREAM})
PARTITIONS_MAX: Final = 256

SUBJECT: Final = "liftbridge.subject"
GROUP: Final = "liftbridge.group"
CHECKS_OFFSETS: Final = "liftbridge.occ"
CREATION: Final = "liftbridge.creation"
"""On partition 0: which request made the stream, so that a retry of ours is told from a stream of somebody else."""

_PARTITION: Final = re.compile(r"(.+)/([1-9][0-9]{0,8})")
_ENDS_IN_NUMBER: Final = re.compile(r".*/[0-9]+")
_HASHED: Final = "liftbridge."


class Place(NamedTuple):
    """One partition."""

    stream: str
    partition: int


class StreamFacts(NamedTuple):
    """What Liftbridge knows of a stream and a channel has no field for."""

    subject: str
    group: str
    checks_offsets: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedStream:
    """A stream to create, as a client asked for it. None: not said."""

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
    min_isr: int | None = None


def channel_of(stream: str, partition: int) -> str:
    return stream if partition == 0 else f"{stream}/{partition}"


def place_of(channel: str) -> Place:
    """Which partition a channel is, if the stream that its name speaks of exists."""
    found = _PARTITION.fullmatch(channel)
    return Place(channel, 0) if found is None else Place(found[1], int(found[2]))


def facts_of(channel: str, config: ChannelConfig) -> StreamFacts:
    """Of partition 0. A channel that was not made through this door has its name as its subject."""
    metadata = dict(config.placement_metadata)
    return StreamFacts(
        subject=metadata.get(SUBJECT, channel),
        group=metadata.get(GROUP, ""),
        checks_offsets=metadata.get(CHECKS_OFFSETS) == "1",
    )


def cursor_name(cursor: str) -> str:
    """The name of a cursor on its channel. What is no name there, or might be taken for one of ours, is hashed."""
    if SIMPLE_NAME.fullmatch(cursor) and not cursor.startswith(_HASHED):
        return cursor
    return _HASHED + hashlib.sha256(cursor.encode()).hexdigest()[:40]


def subject_problem(subject: str) -> str | None:
    """Why it is no subject, in words."""
    if not subject or any(character.isspace() for character in subject) or "" in subject.split("."):
        return f"subject {subject[:80]!a} has white space or an empty part between dots; use one such as foo.bar"
    if {"*", ">"} & set(subject.split(".")):
        return f"subject {subject[:80]!a} is a wildcard; a stream has one subject, so name it in full"
    if not is_text(subject, METADATA_BYTES_MAX):
        return f"subject {subject[:80]!a} is not printable ASCII of at most {METADATA_BYTES_MAX} bytes"
    return None


def name_problem(name: str) -> str | None:
    """Why no stream of this name can be created, in words."""
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
    """One config for each partition. `nodes` is how many there are, `creation` a random text. Raises
    `InvalidConfig` with everything that is wrong (LN2)."""
    problems = [found for found in (name_problem(wanted.name), subject_problem(wanted.subject)) if found]
    if wanted.group and not is_text(wanted.group, METADATA_BYTES_MAX):
        problems.append(f"group {wanted.group[:80]!a} is not printable ASCII of at most {METADATA_BYTES_MAX} bytes")
    partitions = wanted.partitions or 1
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
    if problems:
        raise InvalidConfig(section="stream", problems=problems)
    metadata = {SUBJECT: wanted.subject}
    if wanted.group:
        metadata[GROUP] = wanted.group
    if wanted.checks_offsets:
        metadata[CHECKS_OFFSETS] = "1"
    configs = [_config(wanted, factor, metadata) for _ in range(1, partitions)]
    configs.insert(0, _config(wanted, factor, {**metadata, CREATION: creation}))
    for config in configs[:2]:
        config.validate()
    return configs


def _config(wanted: WantedStream, factor: int, metadata: Mapping[str, str]) -> ChannelConfig:
    return ChannelConfig(
        factor=factor,
        min_isr=wanted.min_isr,
        placement_metadata=tuple(sorted(metadata.items())),
        retention=ChannelRetention(
            max_age_ms=wanted.retention_age_ms or None,
            max_bytes=wanted.retention_bytes or None,
            max_events=wanted.retention_messages or None,
        ),
    )
