"""The channels that are assigned to a member, read concurrently: batches wait for the caller, within limits.

GF1  Of one channel at most one batch is waiting or with the caller's next turn, and at most `fetches_max` in all.
GF2  A channel that is no longer assigned gives no more records, not even those that were read and not given out yet.
GF3  After a retriable error the channel is read again, and `problems` has the error; any other error ends the reading,
     and is raised.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Final, NamedTuple

from tidelog.client.calls import Calls, now_ms
from tidelog.client.groups.membership import Membership
from tidelog.client.options import GroupReaderOptions
from tidelog.client.reading.fetching import FetchPath
from tidelog.client.reading.positions import ReadPosition
from tidelog.client.reading.reader import position_at
from tidelog.client.records import AnyRecord, records_of
from tidelog.errors import LogError

AGAIN_MS: Final = 1_000
"""The wait after a retriable error."""
_LEFT_ALONE: Final = frozenset(
    {"not_assigned", "unknown_channel", "channel_deleted", "channel_recreated", "unknown_member"}
)
"""The channel is assigned to another member, or deleted: the next heartbeat shows that too."""
_PASSES: Final = frozenset({"channel_paused"})


class GroupBatch(NamedTuple):
    """Records of one channel, as many as one answer had."""

    channel: str
    records: list[AnyRecord]
    next_offset: int
    """The offset that is committed once the batch is done: the group goes on from here."""
    life: int
    """The member generation in which the channel was assigned."""
    channel_id: int = 0
    """The channel's id: a later channel of the same name has other offsets."""


class Feed:
    """One channel of this member."""

    def __init__(self, channel: str, channel_id: int) -> None:
        self.channel = channel
        self.channel_id = channel_id
        self.position: ReadPosition | None = None
        self.path: FetchPath | None = None
        self.given_end: int | None = None
        """Everything below was given to the caller."""
        self.done_end: int | None = None
        """The caller is done with everything below."""
        self.saved_end: int | None = None
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True
        if self.path is not None:
            self.path.close()


class Feeds:
    """All channels of this member."""

    def __init__(self, calls: Calls, membership: Membership, options: GroupReaderOptions) -> None:
        self._calls = calls
        self._membership = membership
        self._options = options
        self.feeds: dict[str, Feed] = {}
        self.problems: dict[str, LogError] = {}
        self._ready: deque[tuple[Feed, GroupBatch]] = deque()
        self._turns: list[tuple[int, int, Feed]] = []
        """(when, number, feed): the feeds to fetch, the earliest first."""
        self._numbers = count()
        self._fetching = 0
        self._workers: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.changed = asyncio.Event()
        """Something is ready, has failed, or is no longer assigned."""
        self.failure: LogError | None = None

    # --- which channels --------------------------------------------------------------------------------------

    def assign(self, channels: Mapping[str, int]) -> tuple[list[str], list[str]]:
        """Set the channels, by name; returns those added and those removed."""
        gone = [name for name, feed in self.feeds.items() if channels.get(name) != feed.channel_id]
        for name in gone:
            self.feeds.pop(name).close()
            self.problems.pop(name, None)
        self._ready = deque(item for item in self._ready if not item[0].is_closed)  # GF2
        came = [name for name in channels if name not in self.feeds]
        for name in came:
            feed = self.feeds[name] = Feed(name, channels[name])
            self._queue(feed, now_ms())
        self._turns = [turn for turn in self._turns if not turn[2].is_closed]
        heapq.heapify(self._turns)
        self._start()
        return came, gone

    def close(self) -> None:
        self.assign({})
        if self._timer is not None:
            self._timer.cancel()
        for worker in self._workers:
            worker.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._workers, return_exceptions=True)

    # --- what is ready ---------------------------------------------------------------------------------------

    def take(self) -> tuple[Feed, GroupBatch] | None:
        """The next batch; the channel is then read further while the caller works on it."""
        if not self._ready:
            return None
        feed, batch = self._ready.popleft()
        feed.given_end = batch.next_offset
        self._queue(feed, now_ms())
        self._start()
        return feed, batch

    def unsaved(self) -> Iterable[Feed]:
        return [feed for feed in self.feeds.values() if feed.done_end is not None and feed.done_end != feed.saved_end]

    # --- reading -----------------------------------------------------------------------------------------------

    def _queue(self, feed: Feed, due_ms: int) -> None:
        heapq.heappush(self._turns, (due_ms, next(self._numbers), feed))

    def _start(self) -> None:
        """Start as many fetches as are allowed at once (GF1)."""
        now = now_ms()
        while (
            self._turns
            and self._turns[0][0] <= now
            and self._fetching + len(self._ready) < self._options.fetches_max
            and self.failure is None
        ):
            feed = heapq.heappop(self._turns)[2]
            if feed.is_closed:
                continue
            self._fetching += 1
            # Kept in `_workers`, and cancelled by `close`.
            task = asyncio.get_running_loop().create_task(self._fetch(feed))
            self._workers.add(task)
            task.add_done_callback(self._fetched)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._turns and self._turns[0][0] > now:
            delay_s = (self._turns[0][0] - now) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._start)

    def _fetched(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        self._fetching -= 1
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                raise error  # a bug in Tidelog: the loop's handler reports it
            self._start()

    async def _fetch(self, feed: Feed) -> None:
        try:
            batch = await self._next_batch(feed)
        except LogError as error:
            self._failed(feed, error)
            return
        if feed.is_closed:
            return
        self.problems.pop(feed.channel, None)
        if batch is not None:
            self._ready.append((feed, batch))
            self.changed.set()
        elif len(self.feeds) <= self._options.fetches_max:
            self._queue(feed, now_ms())
        else:
            self._queue(feed, now_ms() + self._options.idle_ms)

    async def _next_batch(self, feed: Feed) -> GroupBatch | None:
        options, life = self._options, self._membership.life
        if feed.position is None:
            saved = await self._membership.position(feed.channel, feed.channel_id)
            feed.saved_end = saved
            feed.position, _ = await position_at(
                self._calls,
                feed.channel,
                saved=saved,
                start=options.start,
                on_trim=options.on_trim,
                channel_id=feed.channel_id,
            )
            feed.path = FetchPath(self._calls, channel=feed.channel, nearest=False, bytes_max=options.bytes_max)
        assert feed.path is not None
        waits = len(self.feeds) <= options.fetches_max
        answer = await feed.path.fetch(
            feed.position,
            wait_ms=self._calls.options.fetch_wait_ms if waits else 0,
            skips_damage=options.on_trim == "skip",
        )
        records: list[AnyRecord] = []
        for block in answer.blocks:
            records += records_of(block, start=answer.start)
        if not records:
            return None
        return GroupBatch(feed.channel, records, records[-1].offset + 1, life, feed.channel_id)

    def _failed(self, feed: Feed, error: LogError) -> None:
        """GF3. Errors that the next heartbeat will explain are left to it."""
        if feed.is_closed or error.code in _LEFT_ALONE:
            return
        if error.retriable or error.code in _PASSES:
            self.problems[feed.channel] = error
            self._queue(feed, now_ms() + AGAIN_MS)
            return
        self.failure = error
        self.changed.set()
