"""Links of a client: one to each node it needs, dialled when it is needed, shared by all that the client does.

What a caller must keep: one event loop; `close` at the end.

LI1  At most one link to a node is used, and at most one dial to an address is under way.
LI2  A caller waits for a dial no longer than its own deadline; the dial goes on for other callers.
LI3  A node that accepts the connection and does not answer does not delay the search for one that does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

from tidelog.client.routes import Routes
from tidelog.errors import ClientClosed, LogError, PeerUnreachable, WrongPeer
from tidelog.transports.link.link import Link, LinkEnd, LinkHandler, dial_link

STAGGER_S: Final = 0.25
"""After this time the next address is tried beside one that has not answered."""


class NodeLinks:
    """The links of a client. `on_down` is called for every link that ended."""

    def __init__(
        self, *, routes: Routes, end: LinkEnd, handler: LinkHandler, on_down: Callable[[Link, str], None]
    ) -> None:
        self._routes = routes
        self._end = end
        self._handler = handler
        self._on_down = on_down
        self._links: dict[str, Link] = {}
        self._dials: dict[tuple[str, str | None], asyncio.Task[Link]] = {}
        self._is_closed = False

    def usable(self, node: str) -> Link | None:
        link = self._links.get(node)
        return link if link is not None and link.is_usable else None

    def rtt_ms(self, node: str) -> float | None:
        """The round trip of the last ping; None where there is no link, or no answer to a ping yet."""
        link = self.usable(node)
        return None if link is None else link.statistics().rtt_ms

    async def link_to(self, node: str) -> Link:
        """The link to a node whose address is known."""
        link = self.usable(node)
        if link is not None:
            return link
        address = self._routes.addresses.get(node)
        if address is None:
            raise PeerUnreachable(address=node, problem="no node has said where it is")
        try:
            return await asyncio.shield(self._dial(address, node))
        except WrongPeer as error:
            # Another node has its old address: the known address is out of date, and may be requested again.
            self._routes.addresses.pop(node, None)
            raise PeerUnreachable(address=address, problem=str(error)) from error

    async def any_link(self, avoid: Collection[str] = ()) -> Link:
        """A link to any node that answers; nodes in `avoid` only if no other does."""
        for node, link in self._links.items():
            if node not in avoid and link.is_usable:
                return link
        places: dict[str, str | None] = {
            address: node
            for node, address in self._routes.addresses.items()
            if node not in avoid and node not in self._links
        }
        for address in self._routes.bootstrap:
            places.setdefault(address, None)
        problem: LogError = PeerUnreachable(address="", problem="no address was given")
        waiting: set[asyncio.Task[Link]] = set()
        found: Link | None = None
        left = list(places.items())
        while left or waiting:
            if left:
                waiting.add(self._dial(*left.pop(0)))
            done, waiting = await asyncio.wait(
                waiting, timeout=STAGGER_S if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                try:
                    found = task.result()
                except LogError as error:
                    problem = error
                    continue
                if found.peer not in avoid:
                    return found
        if found is None:
            raise problem
        return found

    async def close(self) -> None:
        self._is_closed = True
        dials = list(self._dials.values())
        for task in dials:
            task.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in list(self._links.values())))

    def _dial(self, address: str, node: str | None) -> asyncio.Task[Link]:
        if self._is_closed:
            raise ClientClosed(what="the client")
        key = (address, node)
        task = self._dials.get(key)
        if task is None:
            # Kept in `_dials` until it is over, and cancelled by `close`.
            task = asyncio.get_running_loop().create_task(self._connect(address, node))
            self._dials[key] = task
            task.add_done_callback(lambda task: self._dialled(key, task))
        return task

    def _dialled(self, key: tuple[str, str | None], task: asyncio.Task[Link]) -> None:
        self._dials.pop(key, None)
        if not task.cancelled():
            task.exception()  # its waiters have the result, or there are none left

    async def _connect(self, address: str, node: str | None) -> Link:
        link = await dial_link(address, end=self._end, handler=self._handler, expected=node)
        held = self.usable(link.peer)
        if held is not None:
            link.abort("there is a link to this node already")  # LI1
            return held
        self._links[link.peer] = link
        self._routes.addresses.setdefault(link.peer, address)
        link.on_close.append(self._ended)
        return link

    def _ended(self, link: Link, reason: str) -> None:
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
        self._on_down(link, reason)
