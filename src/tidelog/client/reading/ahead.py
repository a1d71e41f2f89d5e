"""Fetches in flight after the one that is waited for, so that a replica always has something to send.

Only the replica knows where an answer ends: later fetches name a chain, and begin where the previous one ended
(docs/protocols/client.md).

What a caller must keep: `drop` whenever an answer was not taken whole, and at the end.

FA1  At most `DEPTH` are in flight.
FA2  An answer is taken only at the offset, and from the link, of its request; else all are dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from tidelog.blocks.block import Block
from tidelog.codecs.client_codec import FETCH, ChainedFetch, encode_fetch
from tidelog.core.client_messages import Fetch
from tidelog.errors import WaitTimedOut
from tidelog.transports.link.link import Link
from tidelog.units import KIB

DEPTH: Final = 2
_BLOCK_BYTES_MIN: Final = 8 * KIB
"""Where blocks are smaller, decoding them takes longer than the transfer; a replica would not know where answers
end."""


class FetchesAhead:
    """The fetches of one `FetchPath`, under one chain number of the client."""

    def __init__(self, *, chain: int, bytes_max: int, timeout_ms: int) -> None:
        self.chain = chain
        self._bytes_max = bytes_max
        self._timeout_ms = timeout_ms
        self._tasks: deque[asyncio.Task[memoryview]] = deque()
        self._link: Link | None = None
        self._offset = -1

    def __len__(self) -> int:
        return len(self._tasks)

    def has(self, link: Link, offset: int) -> bool:
        """Whether the records at `offset` are in flight; if other ones are, those are dropped (FA2)."""
        if self._tasks and link is self._link and offset == self._offset and link.is_usable:
            return True
        self.drop()
        return False

    async def answer(self, timeout_ms: int) -> memoryview:
        """The next answer, within this time from now. Raises as `Link.request` does."""
        task = self._tasks.popleft()
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_ms / 1000)
            if not done:
                waiting_for = "the answer to a fetch that continues"
                raise WaitTimedOut(waiting_for=waiting_for, deadline_s=timeout_ms / 1000)
        finally:
            task.cancel()
        return task.result()

    def extend(self, link: Link, request: Fetch, blocks: list[Block], *, end: int) -> None:
        """`blocks` answered `request`; request more after them, as long as records below `end` are left."""
        offset, count = blocks[-1].end, blocks[-1].end - request.offset
        if sum(block.size for block in blocks) < _BLOCK_BYTES_MIN * len(blocks):
            self.drop()
            return
        self._link, self._offset = link, offset
        while len(self._tasks) < DEPTH and offset + len(self._tasks) * count < end:
            fetch = ChainedFetch(
                channel_id=request.channel_id,
                offset=offset,
                bytes_max=self._bytes_max,
                wait_ms=0,
                leader_epoch=request.leader_epoch,
                chain=self.chain,
                continues=True,
            )
            asking = link.request(FETCH, encode_fetch(fetch), timeout_ms=self._timeout_ms)
            # Kept in `_tasks`, and cancelled by `drop`.
            task = asyncio.get_running_loop().create_task(asking)
            task.add_done_callback(_look)
            self._tasks.append(task)

    def drop(self) -> None:
        """Drop all fetches in flight."""
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self._link, self._offset = None, -1


def _look(task: asyncio.Task[memoryview]) -> None:
    """Retrieve the error of a dropped fetch, so that the loop does not report it."""
    if not task.cancelled():
        task.exception()
