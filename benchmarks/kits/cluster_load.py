"""Asking the nodes of a cluster as another node would: the load of fault tests and of `tidelog bench metadata`.

`ClusterCaller` keeps a link to each node and dials it when needed; `MetadataClient` follows the leader. What may have
happened is never asked for twice: such an error is raised, and says so (`definite` is False).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from tidelog.codecs.node_codec import PROPOSE, READ
from tidelog.core.catalog import Change, encode_change
from tidelog.errors import BadMessage, LogError, PeerUnreachable
from tidelog.transports.link.link import Buffers, Link, LinkEnd, dial_link

RETRY_S: Final = 0.02
"""Between two rounds of nodes while none of them leads."""
_ASK_ANOTHER: Final = frozenset(
    (
        "not_leader",
        "leadership_moving",
        "too_many_proposals",
        "too_many_reads",
        "link_busy",
        "peer_unreachable",
        "tls_failed",
        "proposal_lost",
    )
)
"""Codes of refusals that had no effect and say nothing about the request itself."""


class _Deaf:
    """The load asks; nobody asks it."""

    def on_turn(self) -> None:
        """Nothing is put off."""

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        pass  # a node greets any process that calls itself a node

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        raise BadMessage(problem="the load of a test answers nothing")


class ClusterCaller:
    def __init__(self, addresses: Mapping[str, str], *, end: LinkEnd) -> None:
        self._addresses = dict(addresses)
        self._end = end
        self._links: dict[str, Link] = {}
        self._dials = {name: asyncio.Lock() for name in addresses}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.gather(*(link.close(drain_ms=100) for link in self._links.values()))

    @property
    def nodes(self) -> list[str]:
        return list(self._addresses)

    def forget(self, name: str) -> None:
        """Hang up on a node, so that the next question dials it anew."""
        link = self._links.pop(name, None)
        if link is not None:
            link.abort("forgotten")

    async def ask(self, name: str, kind: int, body: bytes, *, timeout_ms: int) -> dict[str, Any]:
        link = await self._link(name)
        answer = await link.request(kind, body, timeout_ms=timeout_ms)
        found: dict[str, Any] = json.loads(bytes(answer))
        return found

    async def _link(self, name: str) -> Link:
        link = self._links.get(name)
        if link is not None and link.is_usable:
            return link
        if self._dials[name].locked():
            # Dialling a node that hangs delays no other.
            raise PeerUnreachable(address=self._addresses[name], problem="it is being dialled")
        async with self._dials[name]:
            link = await dial_link(self._addresses[name], end=self._end, handler=_Deaf(), expected=name)
            self._links[name] = link
            return link


class MetadataClient:
    """Changes and reads, wherever the leader is."""

    def __init__(
        self, caller: ClusterCaller, nodes: Sequence[str] | None = None, *, timeout_ms: int, deadline_s: float
    ) -> None:
        """`timeout_ms` for one answer, after which a change may have happened; `deadline_s` to find a leader."""
        self._caller = caller
        self._nodes = list(nodes or caller.nodes)
        self._timeout_ms = timeout_ms
        self._deadline_s = deadline_s
        self._asked = 0
        self.tries = 0

    @property
    def node(self) -> str:
        """Who is asked next: the leader, as far as this client knows."""
        return self._nodes[self._asked]

    async def propose(self, change: Change) -> int:
        """The index at which it was committed; what the catalog refuses is raised."""
        return int((await self._follow(PROPOSE, encode_change(change)))["index"])

    async def read_channel(self, channel: str, *, at: str | None = None) -> dict[str, Any] | None:
        """A linearizable read, at any node: a record of the catalog as plain JSON, or None."""
        body = json.dumps({"channel": channel}).encode()
        if at is None:
            found = await self._follow(READ, body)
        else:
            found = await self._caller.ask(at, READ, body, timeout_ms=self._timeout_ms)
        record: dict[str, Any] | None = found["channel"]
        return record

    async def _follow(self, kind: int, body: bytes) -> dict[str, Any]:
        end = time.monotonic() + self._deadline_s
        refusals = 0
        while True:
            self.tries += 1
            try:
                return await self._caller.ask(self.node, kind, body, timeout_ms=self._timeout_ms)
            except LogError as error:
                if error.definite and error.code not in _ASK_ANOTHER:
                    raise
                self._asked = (self._asked + 1) % len(self._nodes)
                # A read may be repeated whatever became of it.
                if not (error.definite or kind == READ) or time.monotonic() >= end:
                    raise
            refusals += 1
            if refusals % len(self._nodes) == 0:
                await asyncio.sleep(RETRY_S)
