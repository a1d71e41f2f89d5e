"""Both ends of a link for tests: cores joined in memory, real links over sockets, and certificates to try."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509

from tests.patience import wait_until
from tidelog.errors import LogError, UnknownMethod
from tidelog.pki.certificates import (
    AuthorityOptions,
    LeafOptions,
    Signer,
    certificate_pem,
    key_pem,
    make_authority,
    make_leaf,
    new_key,
)
from tidelog.pki.identity import Identity, Kind
from tidelog.transports.link.events import Event, HelloArrived
from tidelog.transports.link.hello import LinkHello
from tidelog.transports.link.link import (
    Buffers,
    Link,
    LinkEnd,
    LinkIdentity,
    LinkListener,
    LinkOptions,
    LinkTls,
    LinkTlsFiles,
    dial_link,
)
from tidelog.transports.link.mux import LinkMux

HOST = "127.0.0.1"
CLUSTER = bytes(range(16))
OTHER_CLUSTER = bytes(range(1, 17))
TIMEOUT_MS = 60_000
QUIET = 10_000_000
"""Milliseconds that never pass in a test."""


# --- cores -----------------------------------------------------------------------------------------


def hello_of(options: LinkOptions, *, node: str = "n1", cluster: bytes = CLUSTER) -> LinkHello:
    return LinkHello(kind="node", identity=LinkIdentity(node=node, cluster=cluster), process=7, limits=options.taken)


class CorePair:
    """Two cores and the bytes between them, delivered in pieces of the generator's choosing."""

    def __init__(self, *, options: LinkOptions | None = None, dice: random.Random | None = None) -> None:
        self.options = options or LinkOptions()
        self.dice = dice or random.Random(1)
        self.now_us = 1_000_000
        self.cores = [
            LinkMux(options=self.options, is_dialler=dialler, now_us=self.now_us) for dialler in (True, False)
        ]
        self.pipes = [bytearray(), bytearray()]
        """What each core has written and the other has not received."""
        self.events: list[list[Event]] = [[], []]
        self.cores[0].say_hello(hello_of(self.options, node="n1"))
        self.settle()

    def settle(self) -> None:
        """Deliver until nothing moves any more."""
        while self.step(0) or self.step(1):
            pass

    def step(self, side: int, *, bytes_max: int | None = None) -> bool:
        """Let one core write, and the other receive a piece of it."""
        core, pipe = self.cores[side], self.pipes[side]
        if core.has_output:
            for view in core.next_write(self.now_us):
                pipe += view
            core.wrote(self.now_us)
        if not pipe:
            return False
        self.receive(1 - side, self.dice.randint(1, bytes_max or len(pipe)))
        return True

    def receive(self, side: int, count: int) -> None:
        core, pipe = self.cores[side], self.pipes[1 - side]
        room = core.room()
        count = min(count, len(room), len(pipe))
        room[:count] = pipe[:count]
        del pipe[:count]
        for event in core.received(count, self.now_us):
            if isinstance(event, HelloArrived):
                if side == 1:
                    core.say_hello(hello_of(self.options, node="n2"))
                core.accept(event.hello.limits)
            self.events[side].append(event)

    def inject(self, side: int, data: bytes) -> None:
        """Bytes that no core of ours wrote."""
        self.pipes[1 - side] += data
        while self.pipes[1 - side]:
            self.receive(side, len(self.pipes[1 - side]))

    def taken(self, side: int) -> list[Event]:
        events, self.events[side] = self.events[side], []
        return events


# --- certificates ----------------------------------------------------------------------------------


def make_tree(kind: Kind) -> Signer:
    return make_authority(AuthorityOptions(kind=kind), now_us=time.time_ns() // 1000, random_bytes=secrets.token_bytes)


@dataclass(frozen=True)
class Tree:
    """An authority on disk that issues whatever a test wants."""

    folder: Path
    signer: Signer

    @classmethod
    def make(cls, folder: Path, kind: Kind = "node") -> Tree:
        folder.mkdir(parents=True)
        tree = cls(folder, make_tree(kind))
        (folder / "ca.crt").write_bytes(certificate_pem(tree.signer.certificate))
        return tree

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    def issue(
        self,
        name: str,
        *,
        kind: Kind = "node",
        now_us: int | None = None,
        days: int = 30,
        server_names: Sequence[str] = (),
    ) -> x509.Certificate:
        """Writes `<name>.crt` and `<name>.key`."""
        key = new_key()
        leaf = make_leaf(
            LeafOptions(identity=Identity(kind, name), days=days, server_names=server_names),
            signer=self.signer,
            fleet="fleet",
            public_key=key.public_key(),
            now_us=time.time_ns() // 1000 if now_us is None else now_us,
            random_bytes=secrets.token_bytes,
        )
        self.write(name, leaf, key_pem(key))
        return leaf

    def write(self, name: str, certificate: x509.Certificate, key: bytes) -> None:
        (self.folder / f"{name}.crt").write_bytes(certificate_pem(certificate))
        (self.folder / f"{name}.key").write_bytes(key)

    def files(self, name: str, *, authority: Path | None = None, revoked: Path | None = None) -> LinkTlsFiles:
        return LinkTlsFiles(
            certificate=self.folder / f"{name}.crt",
            key=self.folder / f"{name}.key",
            authority=authority or self.authority,
            revoked=revoked,
        )


def secure_end(files: LinkTlsFiles, node: str, *, cluster: bytes = CLUSTER, kind: Kind = "node") -> LinkEnd:
    return LinkEnd(identity=lambda: LinkIdentity(node=node, cluster=cluster), tls=LinkTls(files), kind=kind)


# --- links -----------------------------------------------------------------------------------------


def plain_end(node: str, *, cluster: bytes = CLUSTER, options: LinkOptions | None = None) -> LinkEnd:
    return LinkEnd(
        identity=lambda: LinkIdentity(node=node, cluster=cluster),
        insecure_dev=True,
        options=options or LinkOptions(),
    )


@dataclass
class Recorder:
    """A handler that keeps what it hears and answers as `answers` says."""

    messages: list[tuple[str, int, bytes]] = field(default_factory=list)
    answers: dict[int, Callable[[Link, memoryview], Awaitable[Buffers]]] = field(default_factory=dict)
    refuses: dict[int, Exception] = field(default_factory=dict)

    def on_turn(self) -> None:
        """Nothing is put off."""

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        if kind in self.refuses:
            raise self.refuses[kind]
        self.messages.append((link.peer, kind, bytes(body)))

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        if kind in self.refuses:
            raise self.refuses[kind]
        if kind not in self.answers:
            raise UnknownMethod(kind=kind)
        return await self.answers[kind](link, body)


async def echo(link: Link, body: memoryview) -> Buffers:
    return body


@dataclass
class Duo:
    """A node that listens (`far`) and one that dialled it (`near`)."""

    listener: LinkListener
    near: Link
    far: Link
    near_handler: Recorder
    far_handler: Recorder


@asynccontextmanager
async def duo(
    near_end: LinkEnd | None = None, far_end: LinkEnd | None = None, *, options: LinkOptions | None = None
) -> AsyncIterator[Duo]:
    near_handler, far_handler = Recorder(answers={1: echo}), Recorder(answers={1: echo})
    links: list[Link] = []
    far_end = far_end or plain_end("n2", options=options)
    listener = LinkListener(f"{HOST}:0", end=far_end, handler=far_handler, on_link=links.append)
    await listener.start()
    try:
        near_end = near_end or plain_end("n1", options=options)
        near = await dial_link(f"{HOST}:{listener.port}", end=near_end, handler=near_handler)
        await wait_until(lambda: bool(links))
        yield Duo(listener, near, links[0], near_handler, far_handler)
        near.abort("the test is over")
        links[0].abort("the test is over")
    finally:
        await listener.close()


async def refusal_of(work: Awaitable[object]) -> LogError:
    """The typed error that this must end with."""
    try:
        await work
    except LogError as error:
        return error
    raise AssertionError("it was not refused")
