"""Streams and partitions, as Liftbridge names them, and the channels that they are here.

Partition 0 of the stream `foo` is the channel `foo`, partition k above 0 the channel `foo/k`. So every channel is a
partition, and one whose name does not end like that is partition 0 of a stream of its own name.

CSN1  A channel is one partition of one stream: `channel_of(*place_of(channel)) == channel` for every name.
CSN2  No partition is `PARTITIONS_MAX` or above: `foo/256` is a stream of its own, for every protocol.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

PARTITIONS_MAX: Final = 256
"""The most partitions of one stream."""

_PARTITION: Final = re.compile(r"(.+)/([1-9][0-9]{0,8})", re.DOTALL)


class StreamPlace(NamedTuple):
    """One partition."""

    stream: str
    partition: int


def channel_of(stream: str, partition: int) -> str:
    """Its channel, if there is such a partition. Nothing is checked: a client may have asked for any number."""
    return stream if partition == 0 else f"{stream}/{partition}"


def place_of(channel: str) -> StreamPlace:
    """The partition that a channel is."""
    found = _PARTITION.fullmatch(channel)
    if found is None or int(found[2]) >= PARTITIONS_MAX:
        return StreamPlace(channel, 0)
    return StreamPlace(found[1], int(found[2]))
