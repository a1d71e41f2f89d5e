"""One HTTP(S) server on a shared event loop.

It knows nothing of boats and clouds: it gets a table of routes, authenticates callers, enforces the limits, and gives
every error one shape: `{"error": code, "detail": words}`.

What a caller must keep: `start` once and `stop` once, on the loop that owns the routes' data.

HS1  Every request passes through `_answer`, so nothing is served without the checks in it.
HS2  Connections, event streams, sizes and times all have a limit; over it the answer is 503, 413 or 431.
HS3  `stop` ends event streams at once and waits for other answers no longer than `stop_s`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from tidelog.errors import InvalidConfig, LogError, RequestRefused, UnknownChannel
from tidelog.http.access import NOBODY, Access, AccessOptions, Principal
from tidelog.http.openapi import with_document
from tidelog.http.routes import (
    JSON_TYPE,
    Call,
    Limits,
    ReaderSlot,
    Route,
    SiteStatistics,
    checked_query,
    json_answer,
    methods_of,
    not_found,
    parse_body,
    refuse_secrets,
    routes_at,
)
from tidelog.http.streams import wants_gzip
from tidelog.http.tls import ServerTls
from tidelog.pki.revocation import RevocationList
from tidelog.transports.grpc.tls_accept import TlsAccept
from tidelog.units import KIB

RETRY_AFTER_S: Final = 5
_PREFLIGHT_MAX_AGE_S: Final = 86_400
_CORS_HEADERS: Final = "Authorization, X-API-Key, Accept, Cache-Control, Content-Type, Last-Event-ID"
_GZIP_BYTES_MIN: Final = 1 * KIB
_REFUSED_CONNECTIONS_MAX: Final = 64
"""How many connections over the limit get an answer; those beyond are closed without one."""
_LEFT: Final = 499
"""Counted, never sent: the client left before there was an answer."""
_TLS_HANDSHAKE_S: Final = 10
_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    listen: str = ":8080"
    """host:port; without a host, every interface; port 0 takes any that is free."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    """Client certificates of this authority are accepted; presenting one is optional."""
    access: AccessOptions = field(default_factory=AccessOptions)
    cors_origins: tuple[str, ...] = ()
    """Exact origins, such as https://dash.example.com, whose pages may read the answers."""
    connections_max: int = 256
    readers_max: int = 64
    header_bytes_max: int = 8_190
    body_bytes_max: int = 64 * KIB
    """Few routes take a body; elsewhere a small one is tolerated."""
    request_timeout_s: float = 30.0
    idle_timeout_s: float = 30.0
    """Also how long a client may take to send its request."""
    stop_s: float = 2.0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        problems = []
        if (self.tls_cert is None) != (self.tls_key is None):
            problems.append("a certificate and its key come together")
        if self.tls_client_ca is not None and self.tls_cert is None:
            problems.append("a client authority needs a certificate and key to serve TLS with")
        if min(self.connections_max, self.readers_max) < 1:
            problems.append("connections_max and readers_max must be positive")
        if "*" in self.cors_origins:
            problems.append("name the origins that may read; * would let every page in")
        if problems:
            raise InvalidConfig(section="http", problems=problems)


class HttpServer:
    """Serves `routes` and /openapi.json. `port` is the one that was bound."""

    def __init__(
        self,
        options: HttpOptions,
        *,
        routes: Sequence[Route],
        title: str,
        owner: str | None = None,
        revocations: RevocationList | None = None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`owner` is the one instance that all of this server's data belongs to, if there is one."""
        self._options = options
        self._owner = owner
        self._log = log
        self._access = Access(options.access, revocations=revocations)
        self._routes, self.document = with_document(routes, title=title)
        self._told_problem: str | None = None
        self._requests: Counter[int] = Counter()
        self._readers: set[Callable[[], None]] = set()
        self._stopping = False
        self._site: _Site | None = None
        self._listener: asyncio.Server | None = None
        self.tls: ServerTls | None = None
        self.port = 0

    @property
    def problem(self) -> str | None:
        """Problems that an operator should fix: the token file, or the certificate."""
        return self._access.problem or (self.tls.problem if self.tls is not None else None)

    def statistics(self) -> SiteStatistics:
        connections = len(self._site.held) if self._site is not None else 0
        return SiteStatistics(connections=connections, readers=len(self._readers), requests=dict(self._requests))

    async def start(self) -> None:
        options = self._options
        if options.tls_cert is not None and options.tls_key is not None:
            self.tls = ServerTls(
                certificate=options.tls_cert, key=options.tls_key, client_ca=options.tls_client_ca, log=self._log
            )
        self._site = _Site(self._answer, options)
        listening = open_listener(options.listen)
        self.port = listening.getsockname()[1]
        accept: Callable[[], asyncio.BaseProtocol] = self._site
        if self.tls is not None:
            accept = TlsAccept(
                self.tls.context, self._site, handshakes_max=options.connections_max, handshake_s=_TLS_HANDSHAKE_S
            )
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(accept, sock=listening, backlog=_BACKLOG)
        self._log(f"http up port={self.port} tls={self.tls is not None} anonymous={options.access.anonymous}")

    async def stop(self) -> None:
        """Take no new requests, end event streams at once, and wait briefly for other answers (HS3)."""
        self._stopping = True
        if self._listener is not None:
            self._listener.close()
        for end in list(self._readers):
            end()
        if self._site is not None:
            self._site.pre_shutdown()
            await self._site.shutdown(self._options.stop_s)
        if self._listener is not None:
            await self._listener.wait_closed()
            self._log("http down")

    # --- one request -----------------------------------------------------------------------------

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Handles every request, whatever its outcome (HS1)."""
        status = _LEFT
        headers = self._common_headers(request)
        try:
            try:
                response = await self._routed(request, headers)
            except RequestRefused as refusal:
                response = _refusal(refusal)
            except UnknownChannel as error:
                response = _refusal(not_found("instance", error.channel))
            except TimeoutError:
                late = RequestRefused(status=503, reason="timed_out", detail="this took too long; ask for less")
                response = _refusal(late)
            except LogError as error:
                self._log(f"http failed path={request.path!r} code={error.code} reason={str(error)!r}")
                # The message may name files, which is for the operator only.
                words = "the server could not do this now; its log says why"
                failed = RequestRefused(status=503 if error.retriable else 500, reason=error.code, detail=words)
                response = _refusal(failed)
            status = response.status
        finally:
            # Readers of events disconnect when they like; what they got was an answer.
            begun = status == _LEFT and request.writer.output_size > 0
            self._requests[200 if begun else status] += 1
        if not response.prepared:
            response.headers.update(headers)
            if _body_bytes(response) >= _GZIP_BYTES_MIN and wants_gzip(request):
                response.enable_compression(web.ContentCoding.gzip)
        return response

    def _common_headers(self, request: web.BaseRequest) -> Mapping[str, str]:
        headers = {"Server": "tidelog", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
        if self._options.cors_origins:
            headers["Vary"] = "Origin"
            if (origin := request.headers.get("Origin")) in self._options.cors_origins and origin is not None:
                headers["Access-Control-Allow-Origin"] = origin
        return headers

    async def _routed(self, request: web.BaseRequest, headers: Mapping[str, str]) -> web.StreamResponse:
        self._check_limits(request)
        served = routes_at(self._routes, request.rel_url.raw_path)
        if request.method == "OPTIONS" and self._options.cors_origins:
            return self._preflight(request, headers, methods_of(served))
        chosen = served.get("GET" if request.method == "HEAD" else request.method)
        if chosen is None:
            allowed = methods_of(served)
            detail = f"{request.method[:20]} is not for this; use {' or '.join(allowed)}"
            refused = _refusal(RequestRefused(status=405, reason="method_not_allowed", detail=detail))
            refused.headers["Allow"] = ", ".join(allowed)
            return refused
        route, path = chosen
        refuse_secrets(request)
        caller = self._caller(route, request)
        self._authorize(route, caller, path)
        call = Call(
            request=request,
            path=path,
            query=checked_query(route, request),
            caller=caller,
            limits=self._options.limits,
            headers=headers,
            is_allowed=lambda: self._is_allowed(route, request, path),
            site=self.statistics,
            reader=self._take_reader,
            body=await self._body(route, request),
        )
        if route.streams:
            return await route.answer(call)
        async with asyncio.timeout(self._options.request_timeout_s):
            return await route.answer(call)

    def _check_limits(self, request: web.BaseRequest) -> None:
        assert self._site is not None
        if self._stopping:
            raise RequestRefused(status=503, reason="stopping", detail="the server is stopping; ask again in a moment")
        if request.protocol in self._site.surplus:
            limit = self._options.connections_max
            raise RequestRefused(
                status=503, reason="too_many_connections", detail=f"{limit} connections are open, the most there may be"
            )
        length = request.content_length
        if (length or 0) > self._options.body_bytes_max or (length is None and request.body_exists):
            most = f"a body has at most {self._options.body_bytes_max} bytes here, and says how many in Content-Length"
            raise RequestRefused(status=413, reason="body_too_large", detail=most)

    async def _body(self, route: Route, request: web.BaseRequest) -> Mapping[str, Any]:
        """The body of a PUT or POST; read after authentication, so unknown callers cost no parsing."""
        if route.body is None:
            return {}
        # A page of another origin can send any other content type without asking the browser's permission.
        if request.content_type != JSON_TYPE:
            detail = f"the body must be JSON; say Content-Type: {JSON_TYPE}"
            raise RequestRefused(status=415, reason="not_json", detail=detail)
        async with asyncio.timeout(self._options.request_timeout_s):
            return parse_body(await request.read())

    def _caller(self, route: Route, request: web.BaseRequest) -> Principal:
        certificate = None
        if (tls := request.get_extra_info("ssl_object")) is not None:
            certificate = tls.getpeercert(binary_form=True)
        try:
            return self._access.caller(request.headers, certificate)
        except RequestRefused:
            if route.scope is None:
                return NOBODY  # a health check must not fail for an old token
            raise
        finally:
            self._tell_problem()

    def _tell_problem(self) -> None:
        problem = self._access.problem
        if problem != self._told_problem:
            self._log(f"http tokens problem={problem!r}")
            self._told_problem = problem

    def _authorize(self, route: Route, caller: Principal, path: Mapping[str, str]) -> None:
        if route.scope is None:
            return
        if caller is NOBODY:
            raise RequestRefused(
                status=401, reason="unauthenticated", detail="send a token: Authorization: Bearer <token>"
            )
        if not caller.may(route.scope):
            raise RequestRefused(
                status=403, reason="forbidden", detail=f"{caller.name} has not the scope {route.scope}"
            )
        instance = path.get("id", self._owner)
        # As if it did not exist: even its existence may be confidential.
        if instance is not None and not caller.sees(instance):
            raise not_found("instance", instance)

    def _is_allowed(self, route: Route, request: web.BaseRequest, path: Mapping[str, str]) -> bool:
        try:
            self._authorize(route, self._caller(route, request), path)
        except RequestRefused:
            return False
        return True

    def _preflight(self, request: web.BaseRequest, headers: Mapping[str, str], methods: Sequence[str]) -> web.Response:
        if "Access-Control-Allow-Origin" not in headers:
            origin = request.headers.get("Origin", "")[:80]
            raise RequestRefused(status=403, reason="origin_not_allowed", detail=f"{origin!a} may not read from here")
        allowed = {
            "Access-Control-Allow-Methods": ", ".join([*methods, "OPTIONS"]),
            "Access-Control-Allow-Headers": _CORS_HEADERS,
            "Access-Control-Max-Age": str(_PREFLIGHT_MAX_AGE_S),
        }
        return web.Response(status=204, headers=allowed)

    def _take_reader(self, end: Callable[[], None]) -> ReaderSlot:
        if len(self._readers) >= self._options.readers_max:
            raise RequestRefused(
                status=503,
                reason="too_many_readers",
                detail=f"{self._options.readers_max} event streams are open, the most there may be",
            )
        self._readers.add(end)
        return ReaderSlot(lambda: self._readers.discard(end))


def _body_bytes(response: web.StreamResponse) -> int:
    body = response.body if isinstance(response, web.Response) else None
    return len(body) if isinstance(body, bytes | bytearray) else 0


def _refusal(refusal: RequestRefused) -> web.Response:
    response = json_answer({"error": refusal.reason, "detail": refusal.detail}, status=refusal.status)
    if refusal.status == 401:
        invalid = ', error="invalid_token"' if refusal.reason != "unauthenticated" else ""
        response.headers["WWW-Authenticate"] = f'Bearer realm="tidelog"{invalid}'
    elif refusal.status == 403:
        response.headers["WWW-Authenticate"] = 'Bearer realm="tidelog", error="insufficient_scope"'
    elif refusal.status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
    if refusal.status == 413 or refusal.reason in ("too_many_connections", "stopping"):
        response.force_close()
    return response


# --- connections ---------------------------------------------------------------------------------


class _Site(web.Server):
    """aiohttp's server, with a limit to its connections."""

    def __init__(self, handler: Callable[[web.BaseRequest], Any], options: HttpOptions) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._options = options
        self.held: set[web.RequestHandler] = set()
        self.surplus: set[web.RequestHandler] = set()
        """Connections over the limit: their first request is refused."""

    def __call__(self) -> web.RequestHandler:
        options = self._options
        return _Protocol(
            self,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=options.idle_timeout_s,
            max_line_size=options.header_bytes_max,
            max_field_size=options.header_bytes_max,
            access_log=None,  # type: ignore[arg-type]
            lingering_time=1.0,
            auto_decompress=False,
        )

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self.held.add(handler)
        surplus = len(self.held) - self._options.connections_max
        if surplus > _REFUSED_CONNECTIONS_MAX:
            transport.abort()
        elif surplus > 0:
            self.surplus.add(handler)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self.held.discard(handler)
        self.surplus.discard(handler)
        super().connection_lost(handler, exc)


class _Protocol(web.RequestHandler):
    """Answers requests that could not be parsed, and bugs, in the one shape of errors."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status >= 500:
            self.log_exception("Error handling a request", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun, so there is no room for an error")
        if isinstance(exc, LineTooLong):
            refusal = RequestRefused(status=431, reason="headers_too_large", detail="the request's head is too large")
        elif status >= 500:
            refusal = RequestRefused(status=500, reason="internal", detail="a bug of ours; the server's log has it")
        else:
            refusal = RequestRefused(status=400, reason="bad_request", detail="this is not HTTP that can be read")
        response = _refusal(refusal)
        response.force_close()
        return response


def open_listener(listen: str) -> socket.socket:
    """A socket that listens on host:port; with no host, on every interface of IPv4 and IPv6."""
    host, colon, port_text = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port_text.isdecimal() or int(port_text) > 65_535:
        raise InvalidConfig(section="http.listen", problems=[f"{listen!r} is not host:port; write it like :8080"])
    port = int(port_text)
    try:
        if host:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=_BACKLOG)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
        return socket.create_server(("0.0.0.0", port), backlog=_BACKLOG)
    except OSError as error:
        raise InvalidConfig(
            section="http.listen", problems=[f"cannot listen on {listen}: {error.strerror or error}"]
        ) from error
