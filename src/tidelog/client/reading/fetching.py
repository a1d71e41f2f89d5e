"""Blocks from a channel's replicas: from the leader, or from the nearest that is in sync.

`FetchPath` asks one replica after the other until one answers; it is what readers and raw fetches share. Nothing of a
body is copied: blocks are views into what the link received.

RF1  Every block is verified, head and body, before a caller gets it (invariant 10).
RF2  A replica that is behind, damaged or silent is skipped for the next; the leader is asked before an error is raised.
RF3  A path that gets no answer at all raises a typed error after the client's time.
RF4  A position belongs to one channel. If that was deleted the path ends with `ChannelDeleted`, or `ChannelRecreated`
     if there is another of its name: nothing is ever read from one channel at an offset of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from tidelog.blocks.block import Block, iterate_blocks
from tidelog.client.calls import Calls, now_ms
from tidelog.client.options import Seq, Start, Time
from tidelog.client.reading.ahead import FetchesAhead
from tidelog.client.reading.positions import ReadPosition
from tidelog.client.retry import Retry
from tidelog.client.routes import ChannelRoute
from tidelog.codecs.client_codec import FETCH, OFFSETS, ChainedFetch, decode_fetched, encode_fetch
from tidelog.core.client_messages import Fetched
from tidelog.errors import (
    BadMessage,
    ChannelDeleted,
    ChannelRecreated,
    DamagedRange,
    LogError,
    NotChannelLeader,
    OffsetOutOfRange,
    ReplicaBehind,
    UnknownChannel,
    WaitTimedOut,
)

_GRACE_DOUBLINGS_MAX = 5


class FetchAnswer(NamedTuple):
    """Blocks that are new to the position they were requested for."""

    start: int
    """Records before this offset are not wanted."""
    blocks: list[Block]
    committed_end: int


class FetchPath:
    """The path of one reader to its channel."""

    def __init__(
        self, calls: Calls, *, channel: str, nearest: bool, bytes_max: int | None = None, stop: int | None = None
    ) -> None:
        """`stop`: records from there on are not wanted, though some may come."""
        self._calls = calls
        self._channel = channel
        self._nearest = nearest
        self._bytes_max = bytes_max or calls.options.fetch_bytes_max
        self._stop = stop
        self._ahead = FetchesAhead(
            chain=calls.next_chain(), bytes_max=self._bytes_max, timeout_ms=calls.options.timeout_ms
        )
        self._late = 0
        """Answers in a row that came too late."""
        self._order: list[str] = []
        """Replicas to ask, the next one first."""
        self._order_epoch = -1
        self._is_stale = False

    async def fetch(
        self, position: ReadPosition, *, wait_ms: int, timeout_ms: int | None = None, skips_damage: bool = False
    ) -> FetchAnswer:
        """The blocks at the position; none if nothing was committed within `wait_ms`. Moves the position."""
        retry = self._calls.retry(f"an answer to a fetch of {self._channel!r}", timeout_ms=timeout_ms)
        while True:
            self._calls.require_open()
            try:
                return await self._attempt(position, retry, wait_ms)
            except DamagedRange as error:
                if self._pass_over():
                    continue
                if not skips_damage:
                    raise
                position.passed(error)
            except NotChannelLeader as error:
                self._is_stale = not self._calls.routes.moved(self._channel, error)
                self._order = []
                await self._calls.pause(retry, error)
            except LogError as error:
                if not error.retriable:
                    raise
                if not self._pass_over():
                    self._is_stale = True
                    await self._calls.pause(retry, error)
                    if isinstance(error, ReplicaBehind):
                        await self._judge(position, retry)

    async def _judge(self, position: ReadPosition, retry: Retry) -> None:
        """Every replica is behind, or the position is wrong: the leader's answer decides."""
        left_ms = max(1, retry.left_ms(now_ms()))
        found = await offset_at(
            self._calls, self._channel, "latest", timeout_ms=left_ms, channel_id=position.channel_id
        )
        position.ends_at(found["leader_epoch"], found["committed_end"])

    def _pass_over(self) -> bool:
        """Switch to the next replica; False if all were asked."""
        if self._order:
            self._order.pop(0)
        return bool(self._order)

    def close(self) -> None:
        """Drop the fetches in flight."""
        self._ahead.drop()

    async def _attempt(self, position: ReadPosition, retry: Retry, wait_ms: int) -> FetchAnswer:
        try:
            # At most twice: without an answer all fetches ahead were dropped, and the next request names its offset.
            while (answer := await self._ask(position, retry, wait_ms)) is None:
                pass
            return answer
        except BaseException:
            self._ahead.drop()
            raise

    async def _ask(self, position: ReadPosition, retry: Retry, wait_ms: int) -> FetchAnswer | None:
        """One answer; None if a fetch that was sent ahead brought nothing that fits."""
        calls = self._calls
        route = await self._replicas(retry, position)
        node = self._order[0]
        is_leader = node == route.leader
        link = await calls.within(retry, calls.links.link_to(node))
        start = position.offset
        request = ChainedFetch(
            channel_id=route.channel_id,
            offset=start,
            bytes_max=self._bytes_max,
            wait_ms=wait_ms,
            leader_epoch=position.leader_epoch,
            chain=self._ahead.chain,
        )
        grace_ms = calls.options.fetch_grace_ms << min(self._late, _GRACE_DOUBLINGS_MAX)
        continues = self._ahead.has(link, start)
        try:
            if continues:
                body = await self._ahead.answer(grace_ms)
            else:
                body = await link.request(FETCH, encode_fetch(request), timeout_ms=wait_ms + grace_ms)
            fetched = calls.answer_of_leader(self._channel, decode_fetched, body)
        except WaitTimedOut:
            self._late += 1
            calls.shun(node)
            raise
        except OffsetOutOfRange as error:
            position.out_of_range(error, is_leader=is_leader, leader_epoch=route.leader_epoch)
            return FetchAnswer(position.offset, [], position.committed_end)
        self._late = 0
        if continues and not fetched.data:
            self._ahead.drop()
            return None
        if fetched.leader_epoch > position.leader_epoch > 0:
            await self._require_clean(position, fetched, retry)
        blocks = verified(fetched)
        if continues and not blocks[0].leader.base_offset <= start < blocks[-1].end:
            self._ahead.drop()
            return None
        taken = position.take(fetched, blocks, is_leader=is_leader)
        if taken and position.offset == blocks[-1].end:
            end = position.committed_end if self._stop is None else min(self._stop, position.committed_end)
            self._ahead.extend(link, request, blocks, end=end)
        else:
            self._ahead.drop()
        if not taken and not is_leader and not self._nearest:
            self._order, self._is_stale = [], True  # answered by a replica without a leader: is there a leader again?
        # After a skip the position begins later than requested, and no block reaches back before it.
        return FetchAnswer(start, taken, position.committed_end)

    async def _replicas(self, retry: Retry, position: ReadPosition) -> ChannelRoute:
        """Refill the order of replicas if it is used up or a new leader was elected."""
        is_stale, self._is_stale = self._is_stale, False
        try:
            route = await self._calls.route(self._channel, retry, is_fresh=is_stale)
            self._calls.require_channel(self._channel, route, position.channel_id)  # RF4
        except UnknownChannel as error:
            self._is_stale = is_stale
            raise ChannelDeleted(channel_id=position.channel_id) from error
        except LogError:
            self._is_stale = is_stale
            raise
        assert route.leader is not None
        if not self._order or route.leader_epoch != self._order_epoch:
            self._order_epoch = route.leader_epoch
            if self._nearest:
                self._order = _leader_last(await nearest_first(self._calls, route), route.leader)
            else:
                self._order = [route.leader, *(node for node in route.isr if node != route.leader)]
        return route

    async def _require_clean(self, position: ReadPosition, fetched: Fetched, retry: Retry) -> None:
        """Before records of a newer epoch count: check for an unclean election in between."""
        route = self._calls.routes.channel(self._channel)
        if route is None or route.leader_epoch < fetched.leader_epoch:
            route = await self._calls.route(self._channel, retry, is_fresh=True)
            self._calls.require_channel(self._channel, route, position.channel_id)
        if route.leader_epoch < fetched.leader_epoch:
            raise ReplicaBehind(
                channel=self._channel, leader_epoch=route.leader_epoch, committed_end=position.committed_end
            )
        position.elected(route.unclean_epoch, fetched)


def _leader_last(nearest: list[str], leader: str) -> list[str]:
    """The leader comes last, unless it is nearer than all others: then first, and last again."""
    others = [node for node in nearest if node != leader]
    return [*nearest[:1], *others, leader] if nearest[:1] == [leader] and others else [*others, leader]


async def nearest_first(calls: Calls, route: ChannelRoute) -> list[str]:
    """In-sync replicas by the round trip of their links; those that cannot be reached are left out."""
    members = [node for node in route.isr if node in calls.routes.addresses]
    waiting = [node for node in members if calls.links.rtt_ms(node) is None]
    if waiting:
        limit_s = calls.options.nearest_ms / 1000
        measures = [asyncio.ensure_future(_measured(calls, node)) for node in waiting]
        try:
            await asyncio.wait(measures, timeout=limit_s)
        finally:
            for task in measures:
                task.cancel()
            await asyncio.gather(*measures, return_exceptions=True)
    distances = {node: rtt_ms for node in members if (rtt_ms := calls.links.rtt_ms(node)) is not None}
    return sorted(distances, key=lambda node: (distances[node], node))


async def _measured(calls: Calls, node: str) -> None:
    """Returns once the distance to the node is known: a link pings as soon as it is up."""
    await calls.links.link_to(node)
    while calls.links.rtt_ms(node) is None and calls.links.usable(node) is not None:  # noqa: ASYNC110 - no event for it
        await asyncio.sleep(0.002)


def verified(fetched: Fetched) -> list[Block]:
    """The blocks of an answer (RF1)."""
    blocks: list[Block] = []
    for data in fetched.data:
        blocks += iterate_blocks(data)
    return blocks


async def fetch_blocks(
    calls: Calls,
    channel: str,
    offsets: range,
    *,
    nearest: bool = True,
    timeout_ms: int | None = None,
    channel_id: int | None = None,
) -> AsyncIterator[Block]:
    """The blocks that hold these offsets, in order; the first and the last may reach beyond them.

    Raises `OffsetOutOfRange` where they are not all committed, and `OffsetTrimmed` where they are gone. Offsets belong
    to one channel: with `channel_id` to that one, else to the one that has the name when this begins (RF4).
    """
    if offsets.step != 1 or offsets.start < 0:
        raise OffsetOutOfRange(offset=offsets.start, log_start=0, log_end=0)
    retry = calls.retry(f"where channel {channel!r} is", timeout_ms=timeout_ms)
    route = await _known_route(calls, channel, retry)
    path = FetchPath(calls, channel=channel, nearest=nearest, stop=offsets.stop)
    position = ReadPosition(channel=channel, channel_id=channel_id or route.channel_id, offset=offsets.start)
    wait_ms = calls.options.fetch_wait_ms
    ahead: asyncio.Task[FetchAnswer] | None = None
    try:
        while position.offset < offsets.stop or ahead is not None:
            try:
                answer = await (ahead or path.fetch(position, wait_ms=wait_ms, timeout_ms=timeout_ms))
            except ChannelRecreated as error:
                if channel_id is not None or position.offset != offsets.start:
                    raise
                # The known route was old, and nothing was read from it: the name means the new channel.
                position = ReadPosition(channel=channel, channel_id=error.found_id, offset=offsets.start)
                continue
            ahead = None
            if not answer.blocks:
                await _require_committed(calls, channel, position, offsets, timeout_ms)
            elif position.offset < offsets.stop:
                # The next answer is transferred while the caller works on this one.
                ahead = asyncio.ensure_future(path.fetch(position, wait_ms=wait_ms, timeout_ms=timeout_ms))
                await let_leave()
            for block in answer.blocks:
                if block.offsets.start < offsets.stop:
                    yield block
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)
        path.close()


async def let_leave() -> None:
    """Two turns of the loop: in the first a task starts, in the second its request is sent. A caller that never waits
    would otherwise delay the request until it asks for the answer."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def _require_committed(
    calls: Calls, channel: str, position: ReadPosition, offsets: range, timeout_ms: int | None
) -> None:
    """Nothing came: is the replica only behind, or are the requested offsets not committed?"""
    found = await offset_at(calls, channel, "latest", timeout_ms=timeout_ms, channel_id=position.channel_id)
    if found["committed_end"] < offsets.stop:
        raise OffsetOutOfRange(offset=position.offset, log_start=found["log_start"], log_end=found["committed_end"])


async def _known_route(calls: Calls, channel: str, retry: Retry) -> ChannelRoute:
    while True:
        calls.require_open()
        try:
            return await calls.route(channel, retry)
        except UnknownChannel:
            raise
        except LogError as error:
            await calls.pause(retry, error)


async def offset_at(
    calls: Calls, channel: str, start: Start, *, timeout_ms: int | None = None, channel_id: int | None = None
) -> dict[str, int]:
    """The offset of a start, and the state of the log (committed_end, log_start, leader_epoch and channel_id); with
    `channel_id` of that channel, and no other of its name."""
    at: Any = start
    if isinstance(start, Time):
        at = {"time_us": start.time_us}
    elif isinstance(start, Seq):
        at = {"seq": start.seq, "lineage": start.lineage}
    elif isinstance(start, int):
        at = "earliest"
    asked_id = 0

    def request(route: Any) -> dict[str, Any]:
        nonlocal asked_id
        asked_id = route.channel_id
        return {"channel_id": asked_id, "at": at}

    answer = await calls.ask_leader(
        channel, OFFSETS, request, what=f"offsets of {channel!r}", timeout_ms=timeout_ms, channel_id=channel_id
    )
    names = ("offset", "committed_end", "log_start", "leader_epoch")
    found = {name: answer.get(name) for name in names}
    if not all(type(value) is int for value in found.values()):
        raise BadMessage(problem="an answer about offsets lacks some")
    return {**{name: int(answer[name]) for name in names}, "channel_id": asked_id}
