"""Relays a request to the node that leads the boat, with the caller's own token.

What a caller must keep: the request has passed authentication here; `close` once.

HR1  A relayed request is answered by its receiver, or refused: two nodes that each take the other for the leader never
     send a request back and forth.
HR2  The leader checks the token against its own file. A certificate cannot be relayed, so a caller with one gets the
     leader's address instead.
HR3  Bytes are passed on as they come, also of event streams; nothing is buffered here.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
from aiohttp import web

from tidelog.cluster.local_channels import LocalChannels
from tidelog.cluster.uplink.boats import Boats
from tidelog.cluster.uplink.options import RelayOptions
from tidelog.errors import RequestRefused
from tidelog.http.access import ANYBODY
from tidelog.http.routes import EVENTS_TYPE, Call
from tidelog.http.streams import cut_off

PASSED_ON: Final = "X-Tidelog-Passed-On"
_CREDENTIALS: Final = ("Authorization", "X-API-Key")
_ASKED: Final = (*_CREDENTIALS, "Accept", "Accept-Encoding")
_ANSWERED: Final = ("Content-Type", "Content-Encoding", "Retry-After", "WWW-Authenticate", "X-Accel-Buffering")
_CONNECT_S: Final = 3.0
_SILENT_S: Final = 60.0
"""An event stream has an event every few seconds; one that is silent for this long is dead."""
_LIST_S: Final = 5.0
_LIST_BYTES_MAX: Final = 64 * 1024 * 1024
_UNREACHABLE: Final = (aiohttp.ClientError, TimeoutError, OSError)


class HttpRelay:
    def __init__(self, channels: LocalChannels, boats: Boats, options: RelayOptions) -> None:
        self._channels = channels
        self._options = options
        self._boats = boats
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def leads_elsewhere(self, name: str) -> bool:
        """Whether another node leads this boat, so that the request must be relayed."""
        return self._boats.leader_elsewhere(name) is not None

    async def pass_on(self, call: Call, name: str) -> web.StreamResponse:
        """The leader's answer, as it comes."""
        leader = self._boats.leader_elsewhere(name)
        assert leader is not None
        url = self._url(leader, call)
        try:
            async with self._client().request(
                call.request.method, url + call.request.path_qs, headers=self._headers(call), allow_redirects=False
            ) as found:
                if found.content_type != EVENTS_TYPE or call.head_only:
                    return await self._copy(call, found)
                with call.reader(found.close):
                    return await self._copy(call, found)
        except _UNREACHABLE as error:
            if call.request.writer.output_size > 0:
                cut_off(call.request)  # an interrupted answer is left without its end
            raise _not_reached(leader) from error

    async def _copy(self, call: Call, found: aiohttp.ClientResponse) -> web.StreamResponse:
        headers = {**call.headers, **_chosen(found.headers, _ANSWERED)}
        if call.head_only:
            return web.Response(status=found.status, headers=headers)
        response = web.StreamResponse(status=found.status, headers=headers)
        await response.prepare(call.request)
        async for data in found.content.iter_any():
            async with asyncio.timeout(call.limits.write_timeout_s):
                await response.write(data)
        await response.write_eof()
        return response

    async def others(self, call: Call) -> list[dict[str, Any]]:
        """The boats that the other nodes lead, as `/instances` lists them."""
        if PASSED_ON in call.request.headers:
            return []  # HR1: the node that relayed it asks the others itself
        me = self._channels.node
        leaders = {record.leader for record in self._boats.records() if call.caller.sees(record.name)}
        wanted = sorted(leader for leader in leaders if leader not in (None, me))
        lists = await asyncio.gather(*(self._list(call, leader) for leader in wanted))
        return [item for found in lists for item in found]

    async def _list(self, call: Call, leader: str) -> list[dict[str, Any]]:
        url = self._url(leader, call)
        headers = {**self._headers(call), "Accept-Encoding": "identity"}
        try:
            async with (
                asyncio.timeout(_LIST_S),
                self._client().get(f"{url}/instances", headers=headers, allow_redirects=False) as found,
            ):
                if found.status != 200:
                    raise _not_reached(leader)
                body = await found.content.read(_LIST_BYTES_MAX)
                while chunk := await found.content.read(_LIST_BYTES_MAX - len(body)):
                    body += chunk
        except _UNREACHABLE as error:
            raise _not_reached(leader) from error
        return _listed(body, leader)

    # --- where and how -----------------------------------------------------------------------------

    def _url(self, leader: str, call: Call) -> str:
        if PASSED_ON in call.request.headers:
            detail = "leadership of this boat has just moved; ask again in a moment"
            raise RequestRefused(status=503, reason="leader_moved", detail=detail)  # HR1
        catalog = self._channels.known_catalog
        node = None if catalog is None else catalog.node(leader)
        url = "" if node is None else dict(node.addresses).get("http", "")
        if not url:
            detail = f"node {leader} leads this boat and serves no HTTP; give it -http-listen, or read from its channel"
            raise RequestRefused(status=503, reason="leader_without_http", detail=detail)
        if self._options.serves_https and not url.startswith("https:"):
            detail = f"node {leader} leads this boat and serves HTTP without TLS; no token is sent there"
            raise RequestRefused(status=503, reason="leader_without_tls", detail=detail)
        if call.caller is not ANYBODY and not any(name in call.request.headers for name in _CREDENTIALS):
            detail = f"node {leader} leads this boat, and a certificate cannot be passed on; ask {url}, or use a token"
            raise RequestRefused(status=503, reason="led_elsewhere", detail=detail)  # HR2
        return url

    def _headers(self, call: Call) -> dict[str, str]:
        return {**_chosen(call.request.headers, _ASKED), PASSED_ON: self._channels.node}

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENT_S)
            authority = self._options.authority
            context = ssl.create_default_context()
            if authority is not None:
                context.load_verify_locations(cafile=authority)
            connector = aiohttp.TCPConnector(ssl=context, limit=0)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        return self._session


def _chosen(headers: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


def _listed(body: bytes, leader: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(body)["instances"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _not_reached(leader) from error
    return [item for item in found if isinstance(item, dict)]


def _not_reached(leader: str) -> RequestRefused:
    detail = f"node {leader} leads what you ask for and did not answer; ask again in a moment"
    return RequestRefused(status=503, reason="leader_unreachable", detail=detail)
