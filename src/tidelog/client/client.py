"""The native client: one object for all that an application does with a cluster.

`connect` gives a `Client`; it needs a few addresses and learns the rest. All producers and readers of a client share
its links, one to each node.

What a caller must keep: use it from the loop it was made on; `close` it, or use `async with`.

CC1  Every call ends within its time, and every error is typed; after `close` every call raises `ClientClosed`.
CC2  Answers to produced blocks find their producer by the upper half of their token; others are dropped.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tidelog.blocks.block import Block
from tidelog.client.admin import ChannelAdmin
from tidelog.client.calls import Calls
from tidelog.client.groups.group import Group, Rebalance
from tidelog.client.links import NodeLinks
from tidelog.client.options import ClientOptions, GroupReaderOptions, ProducerOptions, ReaderOptions
from tidelog.client.producing.producer import Producer
from tidelog.client.reading.fetching import fetch_blocks
from tidelog.client.reading.reader import Reader
from tidelog.client.routes import Routes
from tidelog.codecs.client_codec import DESCRIBE, PRODUCED, decode_produced
from tidelog.config import TARGET
from tidelog.errors import BadMessage, InvalidConfig, LogError
from tidelog.pki.identity import Kind, identity_of
from tidelog.pki.tls_files import read_pem
from tidelog.transports.link.link import Buffers, Link, LinkEnd, LinkIdentity, LinkTls, LinkTlsFiles

_TOKEN_BITS: Final = 40
_PRODUCERS_MAX: Final = 1 << 22
_KINDS: Final[frozenset[Kind]] = frozenset({"client", "operator"})


class Client(ChannelAdmin):
    """Made by `connect`."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: LinkTls | None = None,
        insecure_dev: bool = False,
        name: str = "client",
        kind: Kind = "client",
        options: ClientOptions | None = None,
    ) -> None:
        options = options or ClientOptions()
        _require_addresses(addresses)
        end = LinkEnd(
            identity=lambda: LinkIdentity(node=name, cluster=b""),
            tls=tls,
            insecure_dev=insecure_dev,
            kind=kind,
            options=options.link,
        )
        routes = Routes(addresses)
        links = NodeLinks(routes=routes, end=end, handler=self, on_down=self._link_down)
        super().__init__(Calls(links=links, routes=routes, options=options, rng=random.Random(secrets.randbits(64))))
        self._producers: dict[int, Producer] = {}
        self._next_producer = 1
        self._groups: list[Group] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(flush=error is None)

    @property
    def is_closed(self) -> bool:
        return self._calls.is_closed

    async def close(self, *, flush: bool = True) -> None:
        """Send what producers have taken, leave groups, then close the links; raises the first error that no caller has
        seen. Without `flush` records without an answer end with an error of their own, and groups expel this member
        after a while."""
        if self._calls.is_closed:
            return
        try:
            if flush:
                closing = [producer.close() for producer in self._producers.values()]
                closing += [group.close() for group in self._groups]
                outcomes = await asyncio.gather(*closing, return_exceptions=True)
                for outcome in outcomes:
                    if isinstance(outcome, BaseException):
                        raise outcome
        finally:
            self._calls.is_closed = True
            for group in self._groups:
                await group.abandon()
            for producer in self._producers.values():
                producer.abort()
            self._producers.clear()
            await self._calls.links.close()

    # --- records -----------------------------------------------------------------------------------

    def producer(self, channel: str, **options: Any) -> Producer:
        """A producer for one channel; the options are those of `ProducerOptions`."""
        self._calls.require_open()
        self._producers = {key: one for key, one in self._producers.items() if not one.is_closed}
        if len(self._producers) >= _PRODUCERS_MAX:
            raise InvalidConfig(section="client", problems=[f"at most {_PRODUCERS_MAX} producers are open at once"])
        number, self._next_producer = self._next_producer, self._next_producer + 1
        producer = Producer(
            self._calls,
            channel=channel,
            options=ProducerOptions(**options),
            first_token=(number % _PRODUCERS_MAX) << _TOKEN_BITS,
        )
        self._producers[number % _PRODUCERS_MAX] = producer
        return producer

    def reader(self, channel: str, **options: Any) -> Reader:
        """A reader of one channel; the options are those of `ReaderOptions`."""
        self._calls.require_open()
        return Reader(self._calls, channel=channel, options=ReaderOptions(**options))

    def group(
        self,
        name: str,
        channels: Sequence[str],
        *,
        on_rebalance: Callable[[Rebalance], None] | None = None,
        **options: Any,
    ) -> Group:
        """A member of a consumer group, which shares these channels (names, or prefixes and a star) with the other
        members; the options are those of `GroupReaderOptions`. `on_rebalance` gets the channels that this member
        reads."""
        self._calls.require_open()
        names = (channels,) if isinstance(channels, str) else tuple(channels)
        wanted = GroupReaderOptions(channels=names, **options)
        member = wanted.member or f"member-{secrets.token_hex(8)}"
        self._groups = [group for group in self._groups if not group.is_closed]
        self._groups.append(Group(self._calls, group=name, member=member, options=wanted, on_rebalance=on_rebalance))
        return self._groups[-1]

    def fetch(
        self,
        channel: str,
        offsets: range,
        *,
        nearest: bool = True,
        timeout_ms: int | None = None,
        channel_id: int | None = None,
    ) -> AsyncIterator[Block]:
        """The verified blocks that hold these offsets, from the nearest in-sync replica. Their buffers are views of
        what the link received; nothing is copied. The first and the last may reach beyond the offsets. With
        `channel_id` only of that channel, and no other of its name."""
        self._calls.require_open()
        return fetch_blocks(
            self._calls, channel, offsets, nearest=nearest, timeout_ms=timeout_ms, channel_id=channel_id
        )

    # --- what nodes say ----------------------------------------------------------------------------

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        if kind != PRODUCED:
            raise BadMessage(problem=f"a client takes no messages of kind {kind:#06x}")
        producers = self._producers
        for answer in decode_produced(body):
            producer = producers.get(answer.token >> _TOKEN_BITS)
            if producer is not None:
                producer.answered(answer)

    def on_turn(self) -> None:
        """A client delays no message."""

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        raise BadMessage(problem="a client answers nothing")

    def _link_down(self, link: Link, reason: str) -> None:
        for producer in self._producers.values():
            producer.link_down(link, reason)


async def connect(
    addresses: Sequence[str] | str,
    *,
    tls: LinkTlsFiles | LinkTls | None = None,
    insecure_dev: bool = False,
    name: str | None = None,
    options: ClientOptions | None = None,
    timeout_ms: int | None = None,
) -> Client:
    """A client of the cluster that any of these addresses (host:port) belongs to; the cluster has answered when this
    returns.

    `tls` names a client's or an operator's certificate, its key and the nodes' authority; `insecure_dev` is for nodes
    that run without.
    """
    kind: Kind = "client"
    link_tls = tls if isinstance(tls, LinkTls) else None
    if isinstance(tls, LinkTlsFiles):
        identity = identity_of(read_pem(Path(tls.certificate)))
        if identity.kind not in _KINDS:
            raise InvalidConfig(
                section="client",
                problems=[f"{identity} is the certificate of a {identity.kind}; use one of a client or an operator"],
            )
        name, kind = identity.name, identity.kind
        link_tls = LinkTls(tls)
    client = Client(
        [addresses] if isinstance(addresses, str) else list(addresses),
        tls=link_tls,
        insecure_dev=insecure_dev,
        name=name or "client",
        kind=kind,
        options=options,
    )
    try:
        answer = await client._calls.ask(
            DESCRIBE, {"channels": [], "barrier": False}, what="an answer of the cluster", timeout_ms=timeout_ms
        )
        client._calls.routes.described(answer)
    except BaseException:
        await client.close(flush=False)
        raise
    return client


def _require_addresses(addresses: Sequence[str]) -> None:
    problems = [] if addresses else ["give the address of at least one node, host:port"]
    for address in addresses:
        try:
            TARGET.parse(address)
        except (ValueError, LogError) as error:
            problems.append(f"{address!r} {error}")
    if problems:
        raise InvalidConfig(section="client", problems=problems)
