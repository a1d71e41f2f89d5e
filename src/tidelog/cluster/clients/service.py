"""The node's side of the client protocol: requests of clients, operators and other nodes about channels.

Producing is in `clients.produce`, administration in `channel_admin`; here requests are dispatched, authorised and
answered. docs/protocols/client.md has the table of requests.

What a caller must keep: pass in every message and request whose kind `serves` knows; nothing else of a client's link
may reach other parts of the node. Call from the event loop only.

CS1  A request is answered with `{"ok"}` or with a typed error that has its fields; only a bug ends otherwise.
CS2  A caller without the right gets a refusal, and nothing was done.
CS3  A link has at most `fetch_waits_max` fetches that wait. One that asks for no wait is always served.
CS4  A refusal by an old catalog is checked by a newer one (`clients.rechecks`).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from tidelog.cluster.clients.access import ANY_OF_THEM, READ, ClientAccess
from tidelog.cluster.clients.chains import QUEUED_BYTES_MAX, end_of
from tidelog.cluster.clients.channel_admin import ChannelAdministration
from tidelog.cluster.clients.produce import (
    ClientLimits,
    ClientLink,
    Producing,
    known_channel,
    with_address,
)
from tidelog.cluster.clients.publish import RecordPublishing
from tidelog.cluster.clients.rechecks import MAY_BE_STALE
from tidelog.cluster.clients.requests import (
    CursorOperation,
    DescribeRequest,
    GroupClaim,
    read_cursor,
    read_describe,
    read_offsets,
    read_producers,
)
from tidelog.cluster.local_channels import LocalChannels
from tidelog.codecs.client_codec import (
    ALTER,
    CLIENT_MESSAGES,
    CLIENT_REQUESTS,
    CLOSE_PRODUCER,
    CREATE,
    CURSOR,
    DESCRIBE,
    FETCH,
    GROUP,
    GROUP_ASK,
    OFFSETS,
    OPEN_PRODUCER,
    PRODUCE,
    PRODUCERS,
    REBALANCE,
    ChainedFetch,
    channel_json,
    decode_fetch,
    decode_json,
    encode_answer,
    encode_error_answer,
    encode_fetched,
    node_json,
)
from tidelog.codecs.publish_codec import PUBLISH
from tidelog.core.catalog import Catalog, ChannelRecord
from tidelog.core.client_messages import Fetch, Fetched
from tidelog.errors import AccessDenied, ChannelPaused, LogError, NoReplicaHere, TooManyWaits, UnknownMethod
from tidelog.transports.link.link import Buffers, Link

_ADMINISTRATION: Final = frozenset({CREATE, ALTER, OPEN_PRODUCER, REBALANCE, GROUP, CLOSE_PRODUCER})
_DESCRIBED_PER_TURN: Final = 50

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatistics:
    links: int
    """Links that requested or sent anything."""
    in_flight_bytes: int
    fetches_waiting: int
    blocks_taken: int
    blocks_refused: int
    requests: int
    requests_refused: int


class GroupService(Protocol):
    """The handler of consumer groups (see `groups.coordinators`)."""

    async def ask(self, plain: dict[str, Any], principal: str) -> dict[str, Any]: ...

    async def answer_node(self, plain: dict[str, Any]) -> dict[str, Any]: ...

    async def require_reader(self, claim: GroupClaim, channel_id: int, principal: str) -> None: ...


class ClientService:
    def __init__(
        self,
        channels: LocalChannels,
        *,
        admin: ChannelAdministration,
        access: ClientAccess,
        limits: ClientLimits | None = None,
        groups: GroupService | None = None,
    ) -> None:
        self._channels = channels
        self._groups = groups
        self._admin = admin
        self._access = access
        self._limits = limits or ClientLimits()
        self._producing = Producing(channels, access=access, limits=self._limits)
        self._publishing = RecordPublishing(channels, self._producing)
        self._clients: dict[Link, ClientLink] = {}
        self._requests = self._requests_refused = 0
        self._answers: dict[int, Callable[[ClientLink, dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            DESCRIBE: self._describe,
            OFFSETS: self._offsets,
            CURSOR: self._cursor,
            GROUP_ASK: self._group_ask,
            PRODUCERS: self._producers,
        }

    @staticmethod
    def serves(kind: int) -> bool:
        return kind in CLIENT_MESSAGES or kind in CLIENT_REQUESTS or kind == PUBLISH

    def statistics(self) -> ClientStatistics:
        return ClientStatistics(
            links=len(self._clients),
            in_flight_bytes=self._producing.in_flight_bytes,
            fetches_waiting=sum(client.waits for client in self._clients.values()),
            blocks_taken=self._producing.blocks_taken,
            blocks_refused=self._producing.blocks_refused,
            requests=self._requests,
            requests_refused=self._requests_refused,
        )

    # --- from the link ---------------------------------------------------------------------------------------

    def on_message(self, link: Link, kind: int, body: memoryview) -> None:
        if kind == PUBLISH:
            self._publishing.receive(self._client(link), body)
        elif kind == PRODUCE:
            self._producing.receive(self._client(link), body)
        else:
            raise UnknownMethod(kind=kind)

    def gather(self) -> None:
        """Make blocks of the single records of this turn: before the node's core is polled."""
        if self._publishing.has_records:
            self._publishing.gather()

    def flush(self) -> None:
        """Send answers to producers now: at the end of a turn (see `LinkHandler.on_turn`)."""
        self._producing.flush()
        self._publishing.flush()

    async def on_request(self, link: Link, kind: int, body: memoryview) -> Buffers:
        client = self._client(link)
        self._requests += 1
        if kind == FETCH:
            return await self._fetch(client, body)
        try:
            request = decode_json(body)
            if kind in self._answers:
                answer = self._answers[kind]
                return encode_answer(await self._checked(answer, client, request))
            if kind not in _ADMINISTRATION:
                raise UnknownMethod(kind=kind)
            if link.peer_kind == "node":
                return encode_answer(await self._admin.carry_out(kind, request))
            return encode_answer(await self._admin.ask(kind, request, principal=client.principal))
        except LogError as error:
            self._requests_refused += 1
            return encode_error_answer(with_address(error, self._channels))

    async def _checked(
        self, ask: Callable[[ClientLink, RequestT], Awaitable[AnswerT]], client: ClientLink, request: RequestT
    ) -> AnswerT:
        """The answer to a request, checked once more if an old catalog may have refused it (CS4)."""
        try:
            return await ask(client, request)
        except MAY_BE_STALE:
            await self._producing.rechecks.catch_up()
            return await ask(client, request)

    def _client(self, link: Link) -> ClientLink:
        client = self._clients.get(link)
        if client is None:
            client = self._clients[link] = ClientLink(link)
            link.on_close.append(self._forget)
        return client

    def _forget(self, link: Link, _: str) -> None:
        self._clients.pop(link, None)

    def _readable(self, client: ClientLink, channel_id: int) -> ChannelRecord:
        channel = known_channel(self._channels.catalog, channel_id)
        self._access.require(client.principal, channel.name, READ)
        return channel

    # --- reading -----------------------------------------------------------------------------------------------

    async def _fetch(self, client: ClientLink, body: memoryview) -> Buffers:
        try:
            fetch = decode_fetch(body)
            if isinstance(fetch, ChainedFetch):
                return encode_fetched(await self._fetch_chained(client, fetch))
            return encode_fetched(await self._checked(self._fetch_one, client, fetch))
        except LogError as error:
            self._requests_refused += 1
            return encode_fetched(with_address(error, self._channels))

    async def _fetch_chained(self, client: ClientLink, fetch: ChainedFetch) -> Fetched:
        """The next blocks are read while these are sent; passed to the link when the previous ones are nearly sent."""
        with client.chains.enter(fetch) as turn:
            wanted: Fetch = fetch
            if fetch.continues:
                start = await turn.start()
                if start is None:
                    return Fetched(leader_epoch=fetch.leader_epoch, committed_end=fetch.offset, log_start=0)
                wanted = replace(fetch, offset=start, wait_ms=0)
            fetched = await self._checked(self._fetch_one, client, wanted)
            turn.ended(end_of(fetched.data))
        await client.link.wait_bulk_room(QUEUED_BYTES_MAX)
        return fetched

    async def _fetch_one(self, client: ClientLink, fetch: Fetch) -> Fetched:
        channel = self._readable(client, fetch.channel_id)
        if channel.paused:
            raise ChannelPaused(channel=channel.name)
        if self._channels.channel_here(channel.channel_id) is None:
            raise NoReplicaHere(channel=channel.name, replicas=channel.replicas)
        if fetch.bytes_max > self._limits.fetch_bytes_max:
            fetch = replace(fetch, bytes_max=self._limits.fetch_bytes_max)
        return await self._fetch_waiting(client, fetch)

    async def _fetch_waiting(self, client: ClientLink, fetch: Fetch) -> Fetched:
        if not fetch.wait_ms:
            return await self._channels.fetch(fetch, for_node=client.link.peer_kind == "node")
        if client.waits >= self._limits.fetch_waits_max:
            raise TooManyWaits(waits_max=self._limits.fetch_waits_max)
        client.waits += 1
        try:
            return await self._channels.fetch(fetch)
        finally:
            client.waits -= 1

    async def _offsets(self, client: ClientLink, plain: dict[str, Any]) -> dict[str, Any]:
        request = read_offsets(plain)
        self._readable(client, request.channel_id)
        return asdict(await self._channels.offset_at(request.channel_id, request.at))

    async def _cursor(self, client: ClientLink, plain: dict[str, Any]) -> dict[str, Any]:
        request = read_cursor(plain)
        self._readable(client, request.channel_id)
        key, name = request.channel_id, request.name
        if request.claim is not None:
            if self._groups is None:
                raise UnknownMethod(kind=GROUP)
            await self._groups.require_reader(request.claim, key, client.principal)
        match request.operation:
            case CursorOperation.SET:
                await self._channels.set_cursor(key, name, request.offset)
                return {"name": name, "offset": request.offset}
            case CursorOperation.DELETE:
                await self._channels.set_cursor(key, name, None)
                return {"name": name, "offset": None}
            case CursorOperation.GET:
                return {"name": name, "offset": (await self._channels.cursors(key)).get(name)}
            case _:
                found = await self._channels.cursors(key)
                return {"cursors": [{"name": name, "offset": found[name]} for name in sorted(found)]}

    async def _producers(self, client: ClientLink, plain: dict[str, Any]) -> dict[str, Any]:
        request = read_producers(plain)
        channel = known_channel(self._channels.catalog, request.channel_id)
        self._access.require(client.principal, channel.name, *ANY_OF_THEM)
        return self._channels.producers(request)

    async def _group_ask(self, client: ClientLink, plain: dict[str, Any]) -> dict[str, Any]:
        if self._groups is None:
            raise UnknownMethod(kind=GROUP_ASK)
        if client.link.peer_kind == "node":
            return await self._groups.answer_node(plain)
        return await self._groups.ask(plain, client.principal)

    # --- what there is -------------------------------------------------------------------------------------------

    async def _describe(self, client: ClientLink, plain: dict[str, Any]) -> dict[str, Any]:
        request = read_describe(plain)
        if request.barrier:
            await self._channels.read_barrier()
        catalog = self._channels.catalog
        missing: list[str] = []
        following: str | None = None
        if request.names is None:
            channels, following = self._page(client, catalog, request)
        else:
            channels = []
            for name in request.names:
                self._require_any(client, name)
                channel = catalog.channel(name)
                if channel is None:
                    missing.append(name)
                else:
                    channels.append(channel)
        described = []
        for position, channel in enumerate(channels):
            if position % _DESCRIBED_PER_TURN == _DESCRIBED_PER_TURN - 1:
                await asyncio.sleep(0)  # a thousand channels take long enough to delay heartbeats
            described.append(channel_json(channel, self._channels.channel_here(channel.channel_id)))
        return {
            "cluster": catalog.cluster_id,
            "node": self._channels.node,
            "metadata_leader": self._channels.metadata_leader,
            "index": catalog.applied_index,
            "nodes": [node_json(node) for node in catalog.nodes()],
            "channels": described,
            "missing": missing,
            "next": following,
        }

    def _page(
        self, client: ClientLink, catalog: Catalog, request: DescribeRequest
    ) -> tuple[list[ChannelRecord], str | None]:
        """The next channels by name, of those that the caller may see; and the name to continue after."""
        may_all = self._access.may_everything(client.principal)
        visible = (
            channel
            for channel in catalog.channels()
            if channel.name > request.after
            and (may_all or self._access.allows(client.principal, channel.name, *ANY_OF_THEM))
        )
        found = heapq.nsmallest(request.limit + 1, visible, key=lambda channel: channel.name)
        page = found[: request.limit]
        return page, page[-1].name if len(found) > request.limit else None

    def _require_any(self, client: ClientLink, name: str) -> None:
        """Checked before the catalog, so that a refusal reveals nothing about what exists."""
        if not self._access.allows(client.principal, name, *ANY_OF_THEM):
            raise AccessDenied(principal=client.principal, scope=READ, channel=name)
