"""Reading as a member of a consumer group: the channels are assigned to the members, each to one.

    async with client.group("billing", channels=["boats/*"]) as group:
        async for batch in group:
            work_on(batch.channel, batch.records)

Positions are stored in the channels themselves, as the cursor `group.<name>`. Every record is given at least once:
records that were read and not committed when a member left are given again, to the member that reads the channel next.

What a caller must keep: one iteration at a time; `close` it, or use `async with`; come back for the next batch, or
`commit`, more often than records may be repeated.

GR1  A batch is given only while the member has not been expelled, and only of channels that are assigned to it.
GR2  A position is committed only up to where the caller is done, and only while the channel is assigned to this member
     generation: a member that was expelled commits nothing any more.
GR3  A member that was expelled joins again by itself. One that was fenced by another of its name ends with
     `MemberFenced`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tidelog.client.calls import Calls
from tidelog.client.groups.feeds import Feed, Feeds, GroupBatch
from tidelog.client.groups.membership import Membership
from tidelog.client.options import GroupReaderOptions
from tidelog.errors import (
    ChannelDeleted,
    ChannelRecreated,
    ClientClosed,
    LogError,
    MemberFenced,
    NotAssigned,
    UnknownChannel,
    UnknownGroup,
    UnknownMember,
)

_COMMITS_MAX: Final = 16
"""How many commits run at once."""
_COMMIT_MS: Final = 5_000
_LOOK_S: Final = 0.1
"""How often a member without contact tries again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """Which channels this member reads from now on."""

    epoch: int
    channels: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    """Uncommitted records of these channels are given again, to another member."""
    expelled: bool = False
    """The member was expelled for a while: nothing that it was given before can be committed any more."""


class Group:
    """Made by `Client.group`. Iterate over it for batches."""

    def __init__(
        self,
        calls: Calls,
        *,
        group: str,
        member: str,
        options: GroupReaderOptions,
        on_rebalance: Callable[[Rebalance], None] | None = None,
    ) -> None:
        self._calls = calls
        self._options = options
        self._on_rebalance = on_rebalance
        self._membership = Membership(calls, group=group, member=member, channels=options.channels)
        self._feeds = Feeds(calls, self._membership, options)
        self._beats: asyncio.Task[None] | None = None
        self._saves: asyncio.Task[None] | None = None
        self._given: tuple[Feed, GroupBatch] | None = None
        """The batch that the caller works on."""
        self._was_expelled = False
        self.is_closed = False

    async def __aenter__(self) -> Self:
        await self.join()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(is_done=error is None)

    @property
    def name(self) -> str:
        return self._membership.group

    @property
    def member(self) -> str:
        return self._membership.member

    @property
    def epoch(self) -> int:
        """The group's epoch, as this member knows it; 0 before the first assignment."""
        return self._membership.epoch

    @property
    def channels(self) -> tuple[str, ...]:
        """The channels that are assigned to this member now."""
        return tuple(sorted(self._feeds.feeds))

    @property
    def problems(self) -> dict[str, LogError]:
        """Channels that cannot be read at the moment, with the error. They are tried again."""
        return dict(self._feeds.problems)

    # --- membership --------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Join the group; iterating does it by itself."""
        self._require_open()
        if self._beats is not None:
            return
        await self._membership.join()
        # Kept here, and cancelled by `close`.
        self._beats = asyncio.get_running_loop().create_task(self._beat())
        if self._options.commit == "after":
            self._saves = asyncio.get_running_loop().create_task(self._keep_saving())

    async def _beat(self) -> None:
        """Run the heartbeat for as long as the group is open (GR3)."""
        while True:
            try:
                if self._was_expelled:
                    await self._membership.join()
                channels = await self._membership.heartbeat()
                if channels is not None:
                    self._assigned(channels)
            except (UnknownMember, UnknownGroup):
                self._was_expelled = True
                self._feeds.assign({})
                continue
            except LogError as error:
                if not error.retriable:
                    self._feeds.failure = error
                    self._feeds.changed.set()
                    return
            if not self._membership.is_fresh:
                self._feeds.changed.set()
            await asyncio.sleep(self._membership.heartbeat_ms / 1000)

    def _assigned(self, channels: dict[str, int]) -> None:
        expelled, self._was_expelled = self._was_expelled, False
        added, removed = self._feeds.assign(channels)
        if self._on_rebalance is not None:
            self._on_rebalance(
                Rebalance(
                    epoch=self._membership.epoch,
                    channels=self.channels,
                    added=tuple(sorted(added)),
                    removed=tuple(sorted(removed)),
                    expelled=expelled,
                )
            )

    # --- reading -------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> GroupBatch:
        return await self.read()

    async def read(self) -> GroupBatch:
        """The next batch of any channel. Asking for it means that the caller is done with the previous one."""
        await self.join()
        self._came_back()
        while True:
            self._require_open()
            self._feeds.changed.clear()
            if self._feeds.failure is not None:
                raise self._feeds.failure
            if self._membership.is_fresh and not self._was_expelled:
                self._given = self._feeds.take()  # GR1
                if self._given is not None:
                    return self._given[1]
            await self._wait()

    async def _wait(self) -> None:
        """Wait until something is ready, or contact may be back."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await self._feeds.changed.wait()

    def _came_back(self) -> None:
        """The caller is done with the batch it was given."""
        if self._given is not None:
            feed, batch = self._given
            self._given = None
            if self._options.commit == "after":
                feed.done_end = batch.next_offset

    # --- committing ------------------------------------------------------------------------------------------------

    async def _keep_saving(self) -> None:
        """Commit in the background: a channel without a leader must not delay the others."""
        while True:
            await asyncio.sleep(self._options.commit_interval_ms / 1000)
            try:
                await self._save()
            except LogError as error:
                self._feeds.failure = error
                self._feeds.changed.set()
                return

    async def _save(self) -> None:
        """Commit finished offsets. Channels that are assigned elsewhere by now are skipped: their records are given
        again there."""
        room = asyncio.Semaphore(_COMMITS_MAX)

        async def save(feed: Feed) -> None:
            async with room:
                try:
                    await self._save_one(feed, timeout_ms=_COMMIT_MS)
                except (
                    NotAssigned,
                    UnknownMember,
                    UnknownGroup,
                    UnknownChannel,
                    ChannelDeleted,
                    ChannelRecreated,
                ):
                    return  # the next heartbeat takes the channel away (GR2)
                except LogError as error:
                    if not error.retriable:
                        raise
                    self._feeds.problems[feed.channel] = error  # it is tried again

        await asyncio.gather(*(save(feed) for feed in self._feeds.unsaved()))

    async def _save_one(self, feed: Feed, *, timeout_ms: int | None = None) -> None:
        assert feed.done_end is not None
        end = feed.done_end
        await self._membership.commit(feed.channel, feed.channel_id, end, timeout_ms=timeout_ms)
        feed.saved_end = end

    async def commit(self, batch: GroupBatch | None = None) -> None:
        """Commit up to the end of a batch, or everything given so far, now.

        Raises `NotAssigned`, `MemberFenced` or `UnknownMember` when the channel is no longer assigned to this member:
        its records are given again elsewhere. `ChannelRecreated` for a batch of a channel that is gone.
        """
        self._require_open()
        membership = self._membership
        if batch is None:
            for feed in self._feeds.feeds.values():
                feed.done_end = feed.given_end
            for feed in self._feeds.unsaved():
                await self._save_one(feed)
            return
        if batch.life != membership.life:
            raise MemberFenced(
                group=membership.group, member=membership.member, life=batch.life, newest=membership.life
            )
        held = self._feeds.feeds.get(batch.channel)
        if held is None:
            raise NotAssigned(
                group=membership.group, member=membership.member, channel=batch.channel, epoch=membership.epoch
            )
        if batch.channel_id < held.channel_id:
            raise ChannelRecreated(channel=batch.channel, expected_id=batch.channel_id, found_id=held.channel_id)
        await membership.commit(batch.channel, batch.channel_id, batch.next_offset)
        held.done_end = held.saved_end = batch.next_offset

    # --- the end -----------------------------------------------------------------------------------------------------

    async def close(self, *, is_done: bool = True) -> None:
        """Commit finished offsets, and leave: the channels go to the other members at once. With `is_done` False the
        batch that the caller works on counts as unfinished."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            if self._beats is not None and not self._calls.is_closed:
                if is_done and self._given is not None and self._options.commit == "after":
                    feed, batch = self._given
                    feed.done_end = batch.next_offset
                await self._save()
        finally:
            await self._stop()
        if not self._calls.is_closed and self._membership.life:
            await self._membership.leave()

    async def abandon(self) -> None:
        """Stop without leaving, as if the process had died. The group expels the member after its timeout."""
        self.is_closed = True
        await self._stop()

    async def _stop(self) -> None:
        tasks = [task for task in (self._beats, self._saves) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._feeds.close()
        await self._feeds.wait_closed()

    def _require_open(self) -> None:
        if self.is_closed or self._calls.is_closed:
            raise ClientClosed(what=f"the member of group {self._membership.group!r}")
