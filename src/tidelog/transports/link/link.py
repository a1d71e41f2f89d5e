"""The link between nodes: one connection per pair for all their messages. This module opens links.

`LinkListener` waits for peers, `dial_link` calls one; both give a `Link` once TLS, certificate and hello are good.
The bytes are in docs/protocols/link.md; `LinkPool` keeps links to many peers.

What a caller must keep: pass one `LinkHandler` that exists as long as its links; close every link it got.

LK1  A link exists only when both ends have accepted each other: certificate, kind, name, cluster, version.
LK2  A refused peer gets a typed reason, if its TLS handshake succeeds; a silent one is closed after
     `handshake_timeout_ms`.
LK3  At most `handshakes_max` callers are in their handshake and `links_max` links are open; more are closed at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tidelog.errors import (
    AddressTaken,
    InvalidConfig,
    LogError,
    PeerRefused,
    PeerUnreachable,
    TlsFailed,
    WaitTimedOut,
    WrongPeer,
)
from tidelog.pki.identity import Identity, Kind
from tidelog.transports.link.connection import Link, LinkHandler, LinkStatistics
from tidelog.transports.link.events import Event, HelloArrived, LinkOptions, LinkRefused, Opened
from tidelog.transports.link.frames import Buffers
from tidelog.transports.link.hello import LinkHello, LinkIdentity, PeerLimits, require_same_cluster
from tidelog.transports.link.memory import BodyMemory
from tidelog.transports.link.mux import LinkMux
from tidelog.transports.link.socket import LinkSocket, connect, split_address, words
from tidelog.transports.link.tls import LinkTls, LinkTlsFiles, Proof

__all__ = [
    "Buffers",
    "Link",
    "LinkEnd",
    "LinkHandler",
    "LinkIdentity",
    "LinkListener",
    "LinkOptions",
    "LinkStatistics",
    "LinkTls",
    "LinkTlsFiles",
    "PeerLimits",
    "dial_link",
]

NODES_ONLY: Final[frozenset[Kind]] = frozenset({"node"})
_LAST_WORDS_S: Final = 1.0
_BACKLOG: Final = 128
_ACCEPTS_PER_TURN: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEnd:
    """What this process uses for every link: its identity, its certificates, its limits. Shared by listener and
    dials."""

    identity: Callable[[], LinkIdentity]
    """Asked for every new link: a node's cluster is set once, after the process began."""
    tls: LinkTls | None = None
    insecure_dev: bool = False
    """Plain TCP, and names are accepted unchecked. For development only, and never beside certificates."""
    kind: Kind = "node"
    """The kind in this process's certificate: a tool of an operator has "operator", an application "client"."""
    options: LinkOptions = field(default_factory=LinkOptions)
    process: int = field(default_factory=lambda: secrets.randbits(64))
    log: Callable[[str], None] = lambda _: None
    memory: BodyMemory = field(default_factory=BodyMemory)

    def __post_init__(self) -> None:
        problems = []
        if (self.tls is None) != self.insecure_dev:
            problems.append("give certificates, or insecure_dev for plain TCP in development, and not both")
        if self.kind == "boat":
            problems.append("a boat has no link; it comes by the uplink")
        if problems:
            raise InvalidConfig(section="link", problems=problems)


async def dial_link(
    address: str,
    *,
    end: LinkEnd,
    handler: LinkHandler,
    expected: str | None = None,
    allowed_kinds: Collection[Kind] = NODES_ONLY,
) -> Link:
    """A link to the node at `host:port`; with `expected`, only if it is that node.

    Raises `PeerUnreachable`, `TlsFailed`, `PeerRefused` (the other side will not have us), or what we hold against
    it: `WrongPeer`, `WrongCluster`, `WrongVersion`, `WrongKind`, `CertificateRevoked`, `BadFrame`.
    """
    timeout_ms = end.options.handshake_timeout_ms
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            connection = await connect(address)
            link = await _Handshake(
                connection, end=end, handler=handler, is_dialler=True, expected=expected, allowed_kinds=allowed_kinds
            ).run()
            link.start()
            return link
    except TimeoutError:
        raise PeerUnreachable(address=address, problem=f"no link came about within {timeout_ms} ms") from None


class _Handshake:
    """From a connection to a link, or to a typed refusal on both sides (LK1, LK2)."""

    def __init__(
        self,
        connection: LinkSocket,
        *,
        end: LinkEnd,
        handler: LinkHandler,
        is_dialler: bool,
        expected: str | None,
        allowed_kinds: Collection[Kind],
    ) -> None:
        self._connection = connection
        self._end = end
        self._handler = handler
        self._is_dialler = is_dialler
        self._expected = expected
        self._allowed_kinds = allowed_kinds
        now_us = time.monotonic_ns() // 1000
        self._mux = LinkMux(options=end.options, is_dialler=is_dialler, now_us=now_us, memory=end.memory)
        self._proof: Proof | None = None
        self._ours = end.identity()

    async def run(self) -> Link:
        try:
            return await self._run()
        except PeerRefused:
            self._close()
            raise
        except LogError as error:
            if not isinstance(error, TlsFailed):
                await self._refuse(error)
            self._close()
            raise
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        self._connection.close()
        self._mux.close()

    async def _run(self) -> Link:
        tls = self._end.tls
        if tls is not None:
            context = tls.client_context() if self._is_dialler else tls.server_context()
            await self._connection.secure(context, server_side=not self._is_dialler)
            self._proof = tls.proof_of(self._connection.certificate(), allowed_kinds=self._allowed_kinds)
        if self._is_dialler:
            self._say_hello()
        rest = await self._receive()
        hello = rest.pop(0)
        if not isinstance(hello, HelloArrived):
            raise _unexpected(hello)
        self._judge(hello.hello)
        if not self._is_dialler:
            self._say_hello()
        self._mux.accept(hello.hello.limits)
        await self._write()
        if not self._is_dialler:
            rest = rest or await self._receive()
            opened = rest.pop(0)
            if not isinstance(opened, Opened):
                raise _unexpected(opened)
        return Link(
            self._connection,
            mux=self._mux,
            theirs=hello.hello,
            handler=self._handler,
            options=self._end.options,
            is_dialler=self._is_dialler,
            recheck=self._recheck,
            log=self._end.log,
            early=rest,
        )

    def _recheck(self) -> None:
        if self._end.tls is not None and self._proof is not None:
            self._end.tls.require_good(self._proof.serial)

    def _say_hello(self) -> None:
        end = self._end
        self._mux.say_hello(
            LinkHello(kind=end.kind, identity=self._ours, process=end.process, limits=end.options.taken)
        )

    def _judge(self, hello: LinkHello) -> None:
        claimed = Identity(hello.kind, hello.identity.node)
        if self._proof is not None and self._proof.identity != claimed:
            raise WrongPeer(expected=str(self._proof.identity), got=str(claimed))
        if hello.kind not in self._allowed_kinds:
            raise WrongPeer(expected=" or ".join(sorted(self._allowed_kinds)), got=str(claimed))
        if self._expected is not None and hello.identity.node != self._expected:
            raise WrongPeer(expected=f"node {self._expected}", got=str(claimed))
        if hello.kind == self._end.kind == "node" and hello.identity.node == self._ours.node:
            raise WrongPeer(expected="another node", got=f"{claimed}, which is our own name")
        require_same_cluster(self._ours, hello.identity)

    async def _receive(self) -> list[Event]:
        """The next events; there is at least one."""
        await self._write()
        while True:
            try:
                count = self._connection.receive_into(self._mux.room())
            except OSError as error:
                raise TlsFailed(peer=self._connection.name, problem=words(error)) from error
            if count is None:
                await self._connection.wait_readable()
                continue
            if count == 0:
                raise TlsFailed(peer=self._connection.name, problem="it hung up during the hello")
            events = self._mux.received(count, time.monotonic_ns() // 1000)
            if events:
                return events

    async def _write(self) -> None:
        now_us = time.monotonic_ns() // 1000
        for view in self._mux.next_write(now_us):
            while view:
                try:
                    sent = self._connection.send(view)
                except OSError as error:
                    raise TlsFailed(peer=self._connection.name, problem=words(error)) from error
                view = view[sent:]
                if not sent:
                    await self._connection.wait_writable()
        self._mux.wrote(now_us)

    async def _refuse(self, error: LogError) -> None:
        """Send the reason to the peer before the connection is closed."""
        self._mux.refuse(error)
        with contextlib.suppress(TlsFailed, TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._write()
                await self._connection.finish()


def _unexpected(event: Event) -> LogError:
    if isinstance(event, LinkRefused):
        return event.refusal
    raise AssertionError(f"{event} before the link is open")


class LinkListener:
    """Waits for peers on one address. `on_link` gets every link that was opened."""

    def __init__(
        self,
        address: str,
        *,
        end: LinkEnd,
        handler: LinkHandler,
        on_link: Callable[[Link], None],
        allowed_kinds: Collection[Kind] = NODES_ONLY,
        handshakes_max: int = 64,
        links_max: int = 256,
    ) -> None:
        self._address = address
        self._end = end
        self._handler = handler
        self._on_link = on_link
        self._allowed_kinds = allowed_kinds
        self._handshakes_max = handshakes_max
        self._links_max = links_max
        self._socket: socket.socket | None = None
        self._handshakes: set[asyncio.Task[None]] = set()
        self._links: set[Link] = set()
        self.refused = 0
        """Callers that did not become a link."""

    @property
    def port(self) -> int:
        assert self._socket is not None, "start() first"
        return int(self._socket.getsockname()[1])

    @property
    def links(self) -> int:
        return len(self._links)

    async def start(self) -> None:
        """Bind and listen; `AddressTaken` if another process does already."""
        host, port = split_address(self._address)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, place = found[0]
            listening = socket.socket(family, kind, protocol)
        except OSError as error:
            raise AddressTaken(address=self._address, problem=words(error)) from error
        try:
            # So that a restart need not wait for old connections to time out; it does not allow two listeners at once.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setblocking(False)
            listening.bind(place)
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            raise AddressTaken(address=self._address, problem=words(error)) from error
        self._socket = listening
        loop.add_reader(listening.fileno(), self._accept)

    async def close(self) -> None:
        """Accept no more, and close callers that are not links yet. Links stay."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
        for task in list(self._handshakes):
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _accept(self) -> None:
        assert self._socket is not None
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, place = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Out of descriptors, most likely. The caller stays in the backlog; the next turn tries again.
                self._end.log(f"link accept failed detail={words(error)!r}")
                return
            if len(self._handshakes) >= self._handshakes_max or len(self._links) >= self._links_max:
                self.refused += 1
                connection.close()
                continue
            caller = LinkSocket(connection, name=f"{place[0]}:{place[1]}")
            # Kept in `_handshakes`, bounded, and cancelled by `close`.
            task = asyncio.get_running_loop().create_task(self._welcome(caller))
            self._handshakes.add(task)
            task.add_done_callback(partial(self._welcomed, caller))

    def _welcomed(self, caller: LinkSocket, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        if task.cancelled():
            caller.close()  # a task that is cancelled before its first step closes nothing by itself

    async def _welcome(self, caller: LinkSocket) -> None:
        timeout_ms = self._end.options.handshake_timeout_ms
        handshake = _Handshake(
            caller,
            end=self._end,
            handler=self._handler,
            is_dialler=False,
            expected=None,
            allowed_kinds=self._allowed_kinds,
        )
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                link = await handshake.run()
        except TimeoutError:
            self._refused(caller.name, WaitTimedOut(waiting_for="the caller's hello", deadline_s=timeout_ms / 1000))
        except LogError as error:
            self._refused(caller.name, error)
        else:
            self._links.add(link)
            link.on_close.append(lambda link, _: self._links.discard(link))
            self._on_link(link)
            link.start()

    def _refused(self, name: str, error: LogError) -> None:
        self.refused += 1
        self._end.log(f"link refused caller={name} code={error.code} detail={str(error)!r}")
