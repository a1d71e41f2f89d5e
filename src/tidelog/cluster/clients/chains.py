"""Fetches that follow each other: a client requests the next blocks before it has the previous answer.

Only the node knows where an answer ends, so a fetch that continues names a chain instead of an offset. While one answer
is being sent, the next is read, without waiting for a round trip.

What a caller must keep: `enter` in the order in which fetches arrive, before anything is awaited; leave the turn by its
end, whatever happens.

FC1  A fetch that continues begins exactly where the one before it in its chain ended; if that failed, returned nothing
     or is not known, it has no start, and is answered without blocks.
FC2  A link has at most `CHAINS_MAX` chains; the one used longest ago is forgotten.
"""

from __future__ import annotations

import asyncio
import struct
from collections import OrderedDict
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from tidelog.blocks.block import counted_records
from tidelog.blocks.header import HEAD_BYTES, WINDOW_BYTES, parse_head
from tidelog.codecs.client_codec import ChainedFetch
from tidelog.units import MIB

CHAINS_MAX: Final = 64
QUEUED_BYTES_MAX: Final = MIB
"""An answer waits until no more than this is left to send of earlier ones: it must not share the bandwidth with
them."""
_BLOCKS_MAX: Final = 1_024
"""Heads that are parsed to find the end of an answer; where blocks are that small a chain gains nothing."""
_STORED_BYTES_AT: Final = 56
_WINDOWS_AT: Final = 104
_NUMBER: Final = struct.Struct("<I")


class FetchChains:
    """The chains of fetches on one link."""

    def __init__(self) -> None:
        self._ends: OrderedDict[int, asyncio.Future[int | None]] = OrderedDict()
        """The end of the newest fetch of each chain, once that is known."""

    def enter(self, fetch: ChainedFetch) -> Turn:
        turn = Turn(self._ends.get(fetch.chain) if fetch.continues else None)
        self._ends[fetch.chain] = turn.end
        self._ends.move_to_end(fetch.chain)
        if len(self._ends) > CHAINS_MAX:
            self._ends.popitem(last=False)  # FC2
        return turn


class Turn:
    """The place of one fetch in its chain. Left without `ended`, later fetches have no start (FC1)."""

    def __init__(self, before: asyncio.Future[int | None] | None) -> None:
        self._before = before
        self.end: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended(None)

    async def start(self) -> int | None:
        """The start of a fetch that continues; None if it has none."""
        # Shielded: a caller that stops waiting here must not cancel the fetch that will set the end.
        return None if self._before is None else await asyncio.shield(self._before)

    def ended(self, end: int | None) -> None:
        if not self.end.done():
            self.end.set_result(end)


def end_of(data: Sequence[bytes | bytearray | memoryview]) -> int | None:
    """The offset after the last block; None if there is none, or too many to search."""
    last: memoryview | None = None
    skip = count = 0
    for piece in data:
        view, size = memoryview(piece), len(piece)
        while skip < size:
            # A head is never cut: a log gives it out whole.
            last = view[skip:]
            (stored,), (windows,) = _NUMBER.unpack_from(last, _STORED_BYTES_AT), _NUMBER.unpack_from(last, _WINDOWS_AT)
            skip += HEAD_BYTES + WINDOW_BYTES * windows + ((stored + 7) & ~7)
            count += 1
            if count > _BLOCKS_MAX:
                return None
        skip -= size
    if last is None:
        return None
    maker, leader, parts = parse_head(last)
    return leader.base_offset + counted_records(maker, parts)
