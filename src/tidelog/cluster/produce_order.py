"""The input and output of a channel's leader: a made block with its options, and blocks as they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.blocks.block import Block, MadeBlock
from tidelog.core.client_messages import ANY_OFFSET, AckPolicy
from tidelog.core.replication.messages import Buffer
from tidelog.units import KIB

_JOINED_BLOCK_BYTES: Final = 16 * KIB


@dataclass(frozen=True, slots=True)
class ProduceOrder:
    """A made block to append. `token` comes back with the outcome."""

    token: Any
    made: MadeBlock
    ack: AckPolicy = AckPolicy.ALL
    path: int = 0
    windows: Sequence[range] = ()
    expected_offset: int = ANY_OFFSET
    is_control: bool = False
    """A record of the channel's own (a cursor, a fold): also a read-only channel takes it."""


def as_sent(blocks: Sequence[Block], size: int) -> list[Buffer]:
    """Their bytes for the link: many small blocks cost less as one piece than one by one, large ones are not copied."""
    buffers = [buffer for block in blocks for buffer in block.buffers]
    if size > _JOINED_BLOCK_BYTES * len(blocks):
        return [buffer for buffer in buffers if len(buffer)]
    return [b"".join(buffers)]
