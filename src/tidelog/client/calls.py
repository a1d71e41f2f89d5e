"""Requests to any node or to a channel's leader, repeated while that is safe and useful.

CQ1  Every call ends within its time, with an answer or a typed error.
CQ2  A node that did not answer is tried last the next time.
CQ3  A channel counts as unknown only if a node says so that has caught up with all that was committed.
CQ4  A channel that was deleted is looked up by its name again. A request for one channel never reaches another of its
     name: a request with an id gets `ChannelDeleted` or `ChannelRecreated`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar

from tidelog.client.links import NodeLinks
from tidelog.client.options import ClientOptions
from tidelog.client.retry import Backoff, Retry
from tidelog.client.routes import ChannelRoute, Routes
from tidelog.codecs.client_codec import DESCRIBE, decode_answer, encode_json
from tidelog.errors import (
    ChannelDeleted,
    ChannelRecreated,
    ClientClosed,
    LinkClosed,
    LogError,
    NotChannelLeader,
    PeerUnreachable,
    UnknownChannel,
    WaitTimedOut,
)
from tidelog.transports.link.link import Link

_CHAIN_MAX: Final = 2**32 - 1
_SHUNNED_MS: Final = 5_000

T = TypeVar("T")


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Calls:
    """The requests that the parts of a client send."""

    def __init__(self, *, links: NodeLinks, routes: Routes, options: ClientOptions, rng: random.Random) -> None:
        self.links = links
        self.routes = routes
        self.options = options
        self.rng = rng
        self.is_closed = False
        self._shunned: dict[str, int] = {}
        self._chains = 0
        """Nodes that did not answer, and until when others are tried first (CQ2)."""

    def next_chain(self) -> int:
        """A number for a chain of fetches; not 0, and reused only after four billion others."""
        self._chains = self._chains % _CHAIN_MAX + 1
        return self._chains

    def shun(self, node: str) -> None:
        self._shunned[node] = now_ms() + _SHUNNED_MS

    def shunned(self) -> set[str]:
        now = now_ms()
        self._shunned = {node: until_ms for node, until_ms in self._shunned.items() if until_ms > now}
        return set(self._shunned)

    def require_open(self, what: str = "the client") -> None:
        if self.is_closed:
            raise ClientClosed(what=what)

    def backoff(self) -> Backoff:
        return Backoff(first_ms=self.options.backoff_first_ms, max_ms=self.options.backoff_max_ms, rng=self.rng)

    def retry(self, what: str, *, timeout_ms: int | None = None, is_repeatable: bool = True) -> Retry:
        return Retry(
            what=what,
            now_ms=now_ms(),
            timeout_ms=self.options.timeout_ms if timeout_ms is None else timeout_ms,
            backoff=self.backoff(),
            is_repeatable=is_repeatable,
        )

    # --- any node ----------------------------------------------------------------------------------

    async def ask(
        self,
        kind: int,
        request: dict[str, Any],
        *,
        what: str,
        timeout_ms: int | None = None,
        is_repeatable: bool = True,
        attempt_ms: int | None = None,
        settled: Callable[[LogError], bool] = lambda _: False,
    ) -> dict[str, Any]:
        """The answer of any node. After an attempt with unknown outcome, an error for which `settled` holds shows that
        the attempt had succeeded: the answer is then empty."""
        retry = self.retry(what, timeout_ms=timeout_ms, is_repeatable=is_repeatable)
        body = encode_json(request)
        avoid: set[str] = set()
        while True:
            self.require_open()
            try:
                return await self.ask_once(kind, body, retry, avoid=avoid, attempt_ms=attempt_ms)
            except LogError as error:
                if retry.may_have_happened and settled(error):
                    return {}
                await self.pause(retry, error)

    async def ask_once(
        self,
        kind: int,
        body: bytes,
        retry: Retry,
        *,
        avoid: set[str],
        attempt_ms: int | None = None,
    ) -> dict[str, Any]:
        """One attempt; a node that failed is added to `avoid`."""
        link = await self.within(retry, self.links.any_link(avoid | self.shunned()))
        try:
            return decode_answer(await self._request(link, kind, body, retry, attempt_ms))
        except (LinkClosed, WaitTimedOut):
            avoid.add(link.peer)
            self.shun(link.peer)
            raise

    async def pause(self, retry: Retry, error: LogError) -> None:
        """Wait as long as the retry says, or raise its error."""
        self.require_open()
        await asyncio.sleep(retry.after(error, now_ms()) / 1000)

    async def within(self, retry: Retry, link: Any) -> Link:
        """A link that is up in time. A dial that takes longer goes on, and the next attempt finds it."""
        limit_ms = min(retry.left_ms(now_ms()), self.options.attempt_ms)
        try:
            async with asyncio.timeout(limit_ms / 1000):
                found: Link = await link
                return found
        except TimeoutError:
            raise PeerUnreachable(address="the node", problem=f"no link came about within {limit_ms} ms") from None

    async def _request(self, link: Link, kind: int, body: bytes, retry: Retry, attempt_ms: int | None) -> memoryview:
        left_ms = max(1, retry.left_ms(now_ms()))
        return await link.request(kind, body, timeout_ms=min(attempt_ms or self.options.attempt_ms, left_ms))

    # --- a channel's leader ------------------------------------------------------------------------

    async def ask_leader(
        self,
        name: str,
        kind: int,
        request: Callable[[ChannelRoute], dict[str, Any]],
        *,
        what: str,
        timeout_ms: int | None = None,
        channel_id: int | None = None,
    ) -> dict[str, Any]:
        """The answer of the node that leads the channel. Only for requests that may be repeated. With `channel_id` only
        that channel is meant, and no other of the name (CQ4)."""
        retry = self.retry(what, timeout_ms=timeout_ms)
        avoid: set[str] = set()
        is_fresh = False
        while True:
            self.require_open()
            try:
                route = await self.route(name, retry, is_fresh=is_fresh, avoid=avoid)
                self.require_channel(name, route, channel_id)
                assert route.leader is not None
                link = await self.within(retry, self.links.link_to(route.leader))
                body = await self._request(link, kind, encode_json(request(route)), retry, None)
                return self.answer_of_leader(name, decode_answer, body)
            except UnknownChannel as error:
                if channel_id is None:
                    raise
                raise ChannelDeleted(channel_id=channel_id) from error
            except NotChannelLeader as error:
                is_fresh = not self.routes.moved(name, error)
                await self.pause(retry, error)
            except LogError as error:
                is_fresh = True
                await self.pause(retry, error)

    def answer_of_leader(self, name: str, decode: Callable[[memoryview], T], body: memoryview) -> T:
        """A node may not have heard of a new channel yet, or a deleted one was created again: DESCRIBE tells whether it
        exists (CQ3, CQ4)."""
        try:
            return decode(body)
        except UnknownChannel as error:
            raise NotChannelLeader(channel=name, leader=None) from error
        except ChannelDeleted as error:
            self.routes.deleted(name, error.channel_id)
            raise NotChannelLeader(channel=name, leader=None) from error

    def require_channel(self, name: str, route: ChannelRoute, channel_id: int | None) -> None:
        """Raise unless the route is that of the channel of this id (CQ4)."""
        if channel_id is None or route.channel_id == channel_id:
            return
        if route.channel_id > channel_id:
            raise ChannelRecreated(channel=name, expected_id=channel_id, found_id=route.channel_id)
        self.routes.deleted(name, route.channel_id)
        raise NotChannelLeader(channel=name, leader=None)

    async def route(
        self, name: str, retry: Retry, *, is_fresh: bool = False, avoid: Collection[str] = ()
    ) -> ChannelRoute:
        """The route to the channel's leader, known or requested. `NotChannelLeader` where there is no leader."""
        known = self.routes.channel(name)
        if is_fresh or known is None or known.leader is None:
            await self.describe_once([name], retry, avoid=set(avoid))
            known = self.routes.channel(name)
        if known is None:
            raise UnknownChannel(channel=name)
        if known.leader is None:
            raise NotChannelLeader(channel=name, leader=None, leader_epoch=known.leader_epoch)
        return known

    async def describe_once(self, names: Sequence[str], retry: Retry, *, avoid: set[str]) -> dict[str, Any]:
        """One attempt to get the routes of these channels; those that do not exist are forgotten (CQ3)."""
        for barrier in (False, True):
            request = {"channels": list(names), "barrier": barrier}
            answer = await self.ask_once(DESCRIBE, encode_json(request), retry, avoid=avoid)
            if barrier:
                self.routes.believe(names)
            self.routes.described(answer)
            missing = [name for name in names if self.routes.channel(name) is None]
            missing += [name for name in map(str, answer.get("missing") or []) if name not in missing]
            if not missing:
                return answer
        for name in missing:
            self.routes.forget(name)
        return answer
