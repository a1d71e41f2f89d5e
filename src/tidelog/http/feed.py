"""Live frames and device changes of one bus, for any number of readers.

The owner (a boat, or the cloud for one instance) publishes blocks of frames and changes of devices on the event loop.
Each reader has a queue of its own with a limit. A reader that is too slow loses the oldest entries of its queue and
gets their number; it never delays the owner or another reader. Without readers a publish costs only the fold of the
latest values.

What a caller must keep: everything is called on one event loop; published frames are not changed afterwards, and
one call carries frames whose seqs follow each other.

E1  A reader gets blocks in the order in which they were published, and a notice where some are missing.
E2  The text of a block is made at most once, and only if a reader takes the whole block.
E3  A queue never holds more than its limits, whatever the owner publishes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tidelog.blocks.columns import FrameColumns
from tidelog.http.frames import Rows, frame_seqs, frame_texts
from tidelog.http.values import LatestValues
from tidelog.nmea.devices import DeviceChange

BLOCKS_MAX: Final = 1024
FRAMES_MAX: Final = 65_536
"""The limits of one reader's queue: about half a minute of a full bus."""


class FeedBlock:
    """Frames with seqs that follow each other, and their text once a reader has wanted it."""

    __slots__ = ("_events", "base_seq", "frames")

    def __init__(self, base_seq: int, frames: FrameColumns) -> None:
        self.base_seq = base_seq
        """The seq of the first frame; 0 when none of them has a number."""
        self.frames = frames
        self._events: bytes | None = None

    def __len__(self) -> int:
        return len(self.frames)

    def events(self, rows: Rows | None = None) -> bytes:
        """One server-sent event per frame, or per frame of `rows`."""
        if rows is not None:
            return _events(frame_texts(self._seqs(), self.frames, rows))
        if self._events is None:
            self._events = _events(frame_texts(self._seqs(), self.frames))
        return self._events

    def _seqs(self) -> npt.NDArray[np.int64]:
        return frame_seqs(self.base_seq, len(self.frames))


def _events(texts: Sequence[str]) -> bytes:
    return "".join([f"data: {text}\n\n" for text in texts]).encode()


@dataclass(frozen=True, slots=True)
class DeviceNews:
    """A device that is new, has changed, or left."""

    change: DeviceChange

    def events(self) -> bytes:
        device = self.change.device
        news: dict[str, object] = (
            {"type": "device_removed", "src": self.change.source}
            if device is None
            else {"type": "device", **device.to_json()}
        )
        return f"data: {json.dumps(news, separators=(',', ':'))}\n\n".encode()


@dataclass(frozen=True, slots=True)
class Dropped:
    """How much this reader lost by being slow. Sent as comments, which every Tidelog client skips."""

    frames: int
    devices: int

    def events(self) -> bytes:
        lines = [f": dropped {self.frames} frames\n"] if self.frames else []
        if self.devices:
            lines.append(f": dropped {self.devices} changes of devices, ask for /devices\n")
        return "".join(lines).encode() + b"\n"


FeedItem: TypeAlias = FeedBlock | DeviceNews | Dropped


class Subscription:
    """One reader's queue. `close` it when the reader has gone; a `with` statement does."""

    def __init__(self, feed: FrameFeed, *, blocks_max: int, frames_max: int) -> None:
        self._feed = feed
        self._blocks_max = blocks_max
        self._frames_max = frames_max
        self._waiting: deque[FeedBlock | DeviceNews] = deque()
        self._frames_waiting = 0
        self._frames_dropped = 0
        self._devices_dropped = 0
        self._ended = False
        self._changed = asyncio.Event()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ended(self) -> bool:
        """Nothing more will come; waiting entries can still be taken."""
        return self._ended

    def take_nowait(self) -> FeedItem | None:
        """The next waiting entry, if there is one."""
        if self._frames_dropped or self._devices_dropped:
            # The dropped entries are older than everything that still waits (E1).
            dropped = Dropped(frames=self._frames_dropped, devices=self._devices_dropped)
            self._frames_dropped = self._devices_dropped = 0
            return dropped
        if not self._waiting:
            return None
        item = self._waiting.popleft()
        if isinstance(item, FeedBlock):
            self._frames_waiting -= len(item)
        return item

    async def wait_item(self, timeout_s: float) -> FeedItem | None:
        """The next entry; None after `timeout_s`, and at once when the feed has ended."""
        if (item := self.take_nowait()) is not None or self._ended:
            return item
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return None
        return self.take_nowait()

    def close(self) -> None:
        self._feed.unsubscribe(self)
        self.end()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    def cancel(self) -> None:
        """End at once and drop the waiting entries."""
        self._waiting.clear()
        self._frames_waiting = self._frames_dropped = self._devices_dropped = 0
        self.close()

    def offer(self, item: FeedBlock | DeviceNews) -> None:
        """Called by the feed. Drops the oldest entries, so that a slow reader sees the newest (E3)."""
        self._waiting.append(item)
        if isinstance(item, FeedBlock):
            self._frames_waiting += len(item)
        while len(self._waiting) > self._blocks_max or self._frames_waiting > self._frames_max:
            oldest = self._waiting.popleft()
            if isinstance(oldest, FeedBlock):
                self._frames_waiting -= len(oldest)
                self._frames_dropped += len(oldest)
                self._feed.frames_dropped += len(oldest)
            else:
                self._devices_dropped += 1
        self._changed.set()


class Notice:
    """Signals one reader that something was published, without the data: for readers of the log itself."""

    def __init__(self, feed: FrameFeed) -> None:
        self._feed = feed
        self._changed = asyncio.Event()
        self.ended = False

    def __enter__(self) -> Notice:
        return self

    def __exit__(self, *_: object) -> None:
        self._feed.forget(self)

    def clear(self) -> None:
        self._changed.clear()

    def tell(self) -> None:
        self._changed.set()

    def end(self) -> None:
        self.ended = True
        self._changed.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait until something was published since the last `clear`, or `timeout_s` have passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()


class FrameFeed:
    """One bus and its readers."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()
        self._notices: set[Notice] = set()
        self.values = LatestValues()
        self.frames_published = 0
        self.last_frame_us: int | None = None
        """The bus time of the newest published frame."""
        self.frames_dropped = 0
        """Summed over all readers so far."""

    @property
    def readers(self) -> int:
        return len(self._subscriptions) + len(self._notices)

    def publish(self, base_seq: int, frames: FrameColumns) -> None:
        """Publish frames to every reader. `base_seq` is the first one's seq; 0 means that none has one."""
        if not len(frames):
            return
        self.frames_published += len(frames)
        self.last_frame_us = int(frames.times_us[-1])
        self.values.receive(base_seq, frames)
        if self._subscriptions:
            self._offer(FeedBlock(base_seq, frames))
        for notice in self._notices:
            notice.tell()

    def publish_devices(self, changes: Sequence[DeviceChange]) -> None:
        """Publish the result of `DeviceRegistry.receive` or `forget_idle`."""
        if self._subscriptions:
            for change in changes:
                self._offer(DeviceNews(change))

    def _offer(self, item: FeedBlock | DeviceNews) -> None:
        for subscription in self._subscriptions:
            subscription.offer(item)

    def subscribe(self, *, blocks_max: int = BLOCKS_MAX, frames_max: int = FRAMES_MAX) -> Subscription:
        """A reader that sees what is published from now on."""
        subscription = Subscription(self, blocks_max=blocks_max, frames_max=frames_max)
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)

    def notice(self) -> Notice:
        """A signal for a reader of the log; a `with` statement ends it."""
        notice = Notice(self)
        self._notices.add(notice)
        return notice

    def forget(self, notice: Notice) -> None:
        self._notices.discard(notice)

    def close(self) -> None:
        """Nothing more will come: every reader's stream ends when it has taken its queue."""
        for subscription in self._subscriptions:
            subscription.end()
        self._subscriptions.clear()
        for notice in self._notices:
            notice.end()
