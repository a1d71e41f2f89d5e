"""Links to all peers of a node: one each, dialled again when it breaks.

Give `admit` to the listener as `on_link`, call `set_peer` for every node that is known, and keep `run` running. Peers
may come, move and go at any time. Operators' links are accepted and closed with the rest, but never count as a node's,
whatever their name.

What a caller must keep: one pool per process, on one event loop; `run` in the process's task group.

LP1  At most one link per node is used. When both sides dialled, the one dialled by the smaller node id stays, without
     agreement between them. The other is drained: requests on it end, or fail with a typed error.
LP2  A link of a newer process of the peer replaces one of an older process, and so does a newer one by the same
     dialler: the peer has already dropped the old one.
LP3  Dialling backs off, with jitter from the generator that was passed in, and starts over after a link that lasted.
LP4  `on_up` and `on_down` alternate for each node; a change of links to the same process of the peer is not reported.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tidelog.errors import InvalidConfig, LinkBusy, LinkClosed, LogError, PeerUnreachable
from tidelog.pki.identity import is_name
from tidelog.transports.link.connection import DRAIN_MS
from tidelog.transports.link.link import Buffers, Link, LinkEnd, LinkHandler, LinkStatistics, dial_link

_LASTED_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """How a pool dials."""

    backoff_first_ms: int = 100
    backoff_max_ms: int = 5_000
    patience_ms: int = 300
    """The larger node id waits this long before its first dial, since the smaller one's link would stay."""
    peers_max: int = 256

    def __post_init__(self) -> None:
        problems = []
        if self.backoff_first_ms <= 0 or self.backoff_max_ms < self.backoff_first_ms:
            problems.append("backoff_first_ms must be positive and at most backoff_max_ms")
        if self.patience_ms < 0 or self.peers_max <= 0:
            problems.append("patience_ms must not be negative and peers_max must be positive")
        if problems:
            raise InvalidConfig(section="link", problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatistics:
    address: str | None
    """The address; None for a node that dialled this one."""
    is_up: bool
    dials: int
    ups: int
    problem: str | None
    """Why the last dial failed; None after one that did not."""
    link: LinkStatistics | None


@dataclass(slots=True)
class _Peer:
    address: str
    task: asyncio.Task[None] | None = None
    dials: int = 0
    problem: str | None = None
    problem_code: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the address changed or a link was opened: the wait before the next dial ends."""


class LinkPool:
    """See the module. `on_up` gets the new link, `on_down` the node and the reason."""

    def __init__(
        self,
        *,
        end: LinkEnd,
        handler: LinkHandler,
        dice: random.Random,
        options: PoolOptions | None = None,
        on_up: Callable[[Link], None] = lambda _: None,
        on_down: Callable[[str, str], None] = lambda _node, _reason: None,
    ) -> None:
        self._end = end
        self._handler = handler
        self._dice = dice
        self._options = options or PoolOptions()
        self._on_up = on_up
        self._on_down = on_down
        self._node = end.identity().node
        self._peers: dict[str, _Peer] = {}
        self._links: dict[str, Link] = {}
        self._others: set[Link] = set()
        """Links of operators, and those that are being drained."""
        self._group: asyncio.TaskGroup | None = None
        self._stop = asyncio.Event()
        self._ups: dict[str, int] = {}

    # --- who there is ------------------------------------------------------------------------------

    def set_peer(self, node: str, address: str) -> None:
        """Keep a link to this node; a new address counts from the next dial."""
        if not is_name(node) or node == self._node:
            raise InvalidConfig(section="link", problems=[f"{node!a} is not the name of another node"])
        peer = self._peers.get(node)
        if peer is None:
            if len(self._peers) >= self._options.peers_max:
                raise InvalidConfig(section="link", problems=[f"more than {self._options.peers_max} peers"])
            peer = self._peers[node] = _Peer(address)
            self._start(node, peer)
        elif peer.address != address:
            peer.address = address
            peer.changed.set()

    def remove_peer(self, node: str) -> None:
        """Stop dialling it, and drain the link to it."""
        peer = self._peers.pop(node, None)
        if peer is not None and peer.task is not None:
            peer.task.cancel()
        link = self._links.get(node)
        if link is not None:
            self._drop(link, "the peer was removed")

    def link_to(self, node: str) -> Link | None:
        """The usable link to a node, if there is one."""
        link = self._links.get(node)
        return link if link is not None and link.is_usable else None

    def nodes_up(self) -> list[str]:
        return sorted(node for node, link in self._links.items() if link.is_usable)

    # --- what is said ------------------------------------------------------------------------------

    def send(self, node: str, messages: Iterable[tuple[int, Buffers]]) -> bool:
        """Send all of them one way, now and not after this turn of the loop; False if not all could be."""
        link = self.link_to(node)
        if link is None:
            return False
        try:
            for kind, body in messages:
                link.put(kind, body)
        except (LinkBusy, LinkClosed):
            return False
        finally:
            link.flush()
        return True

    async def request(self, node: str, kind: int, body: Buffers, *, timeout_ms: int) -> memoryview:
        """Ask a node; `PeerUnreachable` at once, and definitely without effect, if there is no link to it."""
        link = self.link_to(node)
        if link is None:
            peer = self._peers.get(node)
            problem = (peer and peer.problem) or "there is no link to it now"
            raise PeerUnreachable(address=peer.address if peer else node, problem=problem)
        return await link.request(kind, body, timeout_ms=timeout_ms)

    async def probe(self, address: str) -> Link:
        """A link to the node at an address, to ask for its name. The caller closes it; the pool does not use it."""
        return await dial_link(address, end=self._end, handler=self._handler)

    def statistics(self) -> dict[str, PeerStatistics]:
        return {node: self._statistics_of(node) for node in sorted({*self._peers, *self._links})}

    def _statistics_of(self, node: str) -> PeerStatistics:
        peer, link = self._peers.get(node), self._links.get(node)
        return PeerStatistics(
            address=peer.address if peer else None,
            is_up=link is not None and link.is_usable,
            dials=peer.dials if peer else 0,
            ups=self._ups.get(node, 0),
            problem=peer.problem if peer else None,
            link=link.statistics() if link else None,
        )

    # --- running -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep links until `close`."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for node, peer in self._peers.items():
                self._start(node, peer)
            await self._stop.wait()
            for peer in self._peers.values():
                if peer.task is not None:
                    peer.task.cancel()
        self._group = None

    async def close(self, *, drain_ms: int = DRAIN_MS) -> None:
        """Stop dialling, drain every link, and let `run` return."""
        self._stop.set()
        for peer in self._peers.values():
            if peer.task is not None:
                peer.task.cancel()
        links = [*self._links.values(), *self._others]
        await asyncio.gather(*(link.close(drain_ms=drain_ms) for link in links))

    def admit(self, link: Link) -> None:
        """A new link, dialled by either side (LP1, LP2)."""
        if link.is_closed:
            return
        if link.peer_kind != "node":
            self._keep_aside(link)
            return
        if self._stop.is_set():
            link.abort("this node is going down")
            return
        held = self._links.get(link.peer)
        if held is not None and held.is_usable and not self._replaces(link, held):
            self._drain(link)
            return
        self._links[link.peer] = link
        link.on_close.append(self._gone)
        if held is not None:
            self._drain(held)
        if held is None or held.peer_process != link.peer_process:
            if held is not None:
                self._on_down(link.peer, "a new life of the peer took its place")
            self._ups[link.peer] = self._ups.get(link.peer, 0) + 1
            self._on_up(link)
        peer = self._peers.get(link.peer)
        if peer is not None:
            peer.changed.set()

    def _replaces(self, link: Link, held: Link) -> bool:
        if link.peer_process != held.peer_process or link.is_dialler == held.is_dialler:
            return True
        return link.is_dialler == (self._node < link.peer)

    def _drop(self, link: Link, reason: str) -> None:
        """Take a link out of use before it ends."""
        del self._links[link.peer]
        self._drain(link)
        self._on_down(link.peer, reason)

    def _drain(self, link: Link) -> None:
        if self._group is None:
            link.abort("the pool does not run")
            return
        self._keep_aside(link)
        self._spawn(link.close())

    def _keep_aside(self, link: Link) -> None:
        self._others.add(link)
        link.on_close.append(lambda link, _: self._others.discard(link))

    def _gone(self, link: Link, reason: str) -> None:
        if self._links.get(link.peer) is link:
            del self._links[link.peer]
            if link.peer not in self._peers:
                self._ups.pop(link.peer, None)
            self._on_down(link.peer, reason)

    def _start(self, node: str, peer: _Peer) -> None:
        if self._group is not None and not self._stop.is_set():
            peer.task = self._spawn(self._keep(node, peer))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        assert self._group is not None, "links come about while run() runs"
        return self._group.create_task(work)

    async def _keep(self, node: str, peer: _Peer) -> None:
        """Keep a link to one node, for ever (LP3)."""
        if self._node > node:
            await self._pause(peer, self._options.patience_ms)
        failures = 0
        while True:
            link = self._links.get(node)
            if link is not None:
                began_s = time.monotonic()
                await link.wait_closed()
                lasted = (time.monotonic() - began_s) * 1000 >= _LASTED_MS
                failures = 0 if lasted else failures + 1
            else:
                try:
                    await self._dial(node, peer)
                except LogError as error:
                    self._note(node, peer, error)
                    failures += 1
                else:
                    failures += node not in self._links
            if node not in self._links:
                await self._pause(peer, self._backoff_ms(failures))

    async def _dial(self, node: str, peer: _Peer) -> None:
        peer.dials += 1
        peer.changed.clear()
        link = await dial_link(peer.address, end=self._end, handler=self._handler, expected=node)
        peer.problem = peer.problem_code = None
        self.admit(link)

    def _note(self, node: str, peer: _Peer, error: LogError) -> None:
        """Remember the reason, and log it once for each new one."""
        peer.problem = str(error)
        if error.code != peer.problem_code:
            peer.problem_code = error.code
            self._end.log(f"link not up peer={node} address={peer.address} code={error.code} detail={str(error)!r}")

    def _backoff_ms(self, failures: int) -> float:
        options = self._options
        longest_ms = min(options.backoff_max_ms, options.backoff_first_ms << min(max(0, failures - 1), 16))
        return longest_ms * self._dice.uniform(0.5, 1.0)

    async def _pause(self, peer: _Peer, pause_ms: float) -> None:
        try:
            async with asyncio.timeout(pause_ms / 1000):
                await peer.changed.wait()
        except TimeoutError:
            pass  # nothing changed during the pause
        peer.changed.clear()
