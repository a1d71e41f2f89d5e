"""The table of routes, from which requests are served and the OpenAPI document is written.

A route is a path and a method, its parameters, the required scope, and the function that answers. Most are read-only:
GET, which answers HEAD too. PUT and POST take one JSON object with Content-Length and Content-Type; OPTIONS is answered
where other origins are allowed.

What a caller must keep: a route's answer fits its schema. The tests check every answer against it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from aiohttp import web

from tidelog.errors import RequestRefused
from tidelog.http.access import Principal
from tidelog.http.metrics import CONTENT_TYPE as METRICS_TYPE

JSON_TYPE: Final = "application/json"
EVENTS_TYPE: Final = "text/event-stream"

Schema: TypeAlias = Mapping[str, Any]
Query: TypeAlias = Mapping[str, Sequence[str]]

SECRETS_IN_QUERY: Final = frozenset({"token", "access_token", "api_key", "apikey", "api-key", "key"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A query parameter."""

    name: str
    description: str
    schema: Schema
    required: bool = False
    repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one long answer."""

    heartbeat_s: float = 15.0
    """How long an event stream may be silent before a comment is sent."""
    recheck_s: float = 10.0
    """How often an event stream's caller is checked again: tokens are withdrawn, certificates revoked."""
    write_timeout_s: float = 30.0
    """A client that reads nothing for this long is cut off."""
    reader_blocks_max: int = 1024
    reader_frames_max: int = 65_536
    """The limits of one event reader's queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteStatistics:
    connections: int
    readers: int
    """Event streams that are open."""
    requests: Mapping[int, int]
    """Answers by status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request that passed authentication."""

    request: web.BaseRequest
    path: Mapping[str, str]
    """The values of the path's parameters."""
    query: Query
    caller: Principal
    limits: Limits
    headers: Mapping[str, str]
    """Headers of every answer; an answer that is written piece by piece must add them itself."""
    is_allowed: Callable[[], bool]
    """Whether the caller would pass authentication now."""
    site: Callable[[], SiteStatistics]
    reader: Callable[[Callable[[], None]], ReaderSlot]
    """Reserve a place for an event stream; raises `RequestRefused` (503) when there is none."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """The JSON object of a PUT or POST."""

    @property
    def head_only(self) -> bool:
        return self.request.method == "HEAD"

    def one(self, name: str) -> str | None:
        """A parameter that may be given once."""
        values = self.query.get(name, ())
        if len(values) > 1:
            raise RequestRefused(status=400, reason="bad_parameter", detail=f"{name} may be given once")
        return values[0] if values else None


class ReaderSlot:
    """A place for an event stream, released at the end of a `with`."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back = give_back

    def __enter__(self) -> ReaderSlot:
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()


Handler: TypeAlias = Callable[[Call], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    path: str
    """Parts in braces are parameters: `/instances/{id}/status`."""
    summary: str
    answer: Handler
    scope: str | None
    """None: no authentication, and the answer holds nothing confidential."""
    method: str = "GET"
    body: Schema | None = None
    """The schema of the JSON object that a PUT or POST takes."""
    schema: Schema | None = None
    """The schema of a JSON answer with status `status`."""
    status: int = 200
    """The status of success; 204 has no body."""
    content_type: str = JSON_TYPE
    streams: bool = False
    """The answer is written piece by piece, without a time limit."""
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    """Statuses beside those of every route."""
    unhealthy_schema: Schema | None = None
    """The schema of a 503 that is an answer and not an error."""

    def match(self, parts: Sequence[str]) -> dict[str, str] | None:
        """The values of the path's parameters, if this path matches the route."""
        wanted = self.path.split("/")
        if len(wanted) != len(parts):
            return None
        found: dict[str, str] = {}
        for want, part in zip(wanted, parts, strict=True):
            if want.startswith("{"):
                if not part:
                    return None
                found[want[1:-1]] = part
            elif want != part:
                return None
        return found


def routes_at(routes: Sequence[Route], raw_path: str) -> dict[str, tuple[Route, dict[str, str]]]:
    """The routes by method, with the values of the path's parameters. Raises `RequestRefused` (404) where there is
    none.

    The path is split before it is unquoted, so %2F stays inside its part.
    """
    parts = [unquote(part) for part in raw_path.split("/")]
    served: dict[str, tuple[Route, dict[str, str]]] = {}
    for route in routes:
        if (found := route.match(parts)) is not None:
            served.setdefault(route.method, (route, found))
    if not served:
        raise RequestRefused(
            status=404, reason="not_found", detail="there is nothing here; /openapi.json lists what there is"
        )
    return served


def methods_of(served: Collection[str]) -> list[str]:
    """The value of `Allow`: a route for GET answers HEAD too."""
    return [word for method in served for word in (("GET", "HEAD") if method == "GET" else (method,))]


def parse_body(data: bytes) -> Mapping[str, Any]:
    """Raises `RequestRefused` (400)."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestRefused(status=400, reason="bad_body", detail="the body is not a JSON object")
    return found


def refuse_secrets(request: web.BaseRequest) -> None:
    """Checked first: a token in an address is compromised, whether it is good or not."""
    if any(name.lower() in SECRETS_IN_QUERY for name in request.query):
        raise RequestRefused(
            status=400,
            reason="token_in_query",
            detail="a token in an address ends up in logs; send it as Authorization: Bearer, and make a new one",
        )


def checked_query(route: Route, request: web.BaseRequest) -> Query:
    """The query by name. Refuses unknown names: a misspelt filter would let everything through."""
    known = {parameter.name: parameter for parameter in route.parameters}
    query: dict[str, list[str]] = {}
    for name, value in request.query.items():
        if name not in known:
            names = ", ".join(known) or "none"
            raise RequestRefused(
                status=400, reason="bad_parameter", detail=f"{name[:80]!a} is not known here; parameters: {names}"
            )
        query.setdefault(name, []).append(value)
    for parameter in route.parameters:
        if parameter.required and parameter.name not in query:
            raise RequestRefused(
                status=400, reason="bad_parameter", detail=f"{parameter.name} is needed: {parameter.description}"
            )
    return query


def json_answer(value: object, *, status: int = 200) -> web.Response:
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return web.Response(status=status, text=body + "\n", content_type=JSON_TYPE)


def metrics_answer(text: str) -> web.Response:
    return web.Response(body=text.encode(), headers={"Content-Type": METRICS_TYPE})


def not_found(what: str, name: str) -> RequestRefused:
    return RequestRefused(status=404, reason="not_found", detail=f"there is no {what} {name[:80]!a}")
