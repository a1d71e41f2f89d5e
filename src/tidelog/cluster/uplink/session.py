"""One session of a boat: its streams, what they still have to answer, and how it ended.

Acks are cumulative, so each stream's outbox holds only the newest: a boat that does not read costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib

from tidelog.core.uplink.messages import Refused
from tidelog.errors import BadMessage


class AnswerOutbox:
    """The newest answer of one stream; a newer one replaces it. One stream at a time reads it."""

    def __init__(self) -> None:
        self._message: bytes | None = None
        self._ready = asyncio.Event()
        self._refusal: Refused | None = None
        self._finishing = False
        self.in_use = False

    def open(self) -> None:
        if self.in_use:
            raise BadMessage(problem="this session has such a stream already")
        self.in_use, self._finishing = True, False

    def put(self, message: bytes) -> None:
        self._message = message
        self._ready.set()

    def close(self, refusal: Refused) -> None:
        self._refusal = self._refusal or refusal
        self._ready.set()

    def finish(self) -> None:
        """Nothing more is to be answered: what is left goes out, then the stream ends."""
        self._finishing = True
        self._ready.set()

    async def wait_message(self) -> bytes | Refused | None:
        """The newest answer; else why there will be none, None for a stream that the boat ended itself."""
        while True:
            await self._ready.wait()
            message, self._message = self._message, None
            if message is not None:
                return message
            if self._refusal is not None or self._finishing:
                return self._refusal
            self._ready.clear()


class Session:
    """Opened by a Handshake. Over once it was refused, fenced, or its streams have ended."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.serials: tuple[int, ...] = ()
        """Serial numbers of the certificates that opened it, the boat's own first; none in insecure development."""
        self.live = AnswerOutbox()
        self.backfill = AnswerOutbox()
        self.refusal: Refused | None = None
        self.streams = 0
        """Streams that run now, and those that ended but are not accounted for yet."""
        self.had_live = False
        self.live_frames = 0
        """Frames that came by the Live stream that runs now."""
        self.backfill_blocks = 0
        self.seeds = 0
        self._closed = asyncio.Event()
        self._live_frame = asyncio.Event()

    @property
    def over(self) -> bool:
        """A boat that does not read would not hear of it, so nothing more is taken from it."""
        return self.refusal is not None

    def close(self, refusal: Refused) -> None:
        if self.refusal is None:
            self.refusal = refusal
            self.live.close(refusal)
            self.backfill.close(refusal)
            self._closed.set()
            self._live_frame.set()

    def live_frame_came(self) -> None:
        self._live_frame.set()

    async def wait_live_frame(self, deadline_s: float) -> None:
        """Wait for the first frame on Live, or for the session's end; once, and not for ever."""
        if not self._live_frame.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(deadline_s):
                    await self._live_frame.wait()
            self._live_frame.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()
