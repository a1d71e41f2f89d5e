"""The input of a channel's leader: a made block with its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.blocks.block import MadeBlock
from tidelog.core.client_messages import ANY_OFFSET, AckPolicy


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
