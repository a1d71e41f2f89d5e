"""A server on a real socket, and a client that holds every answer against the server's own document."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.http.schemas import problems
from tests.patience import patient
from tidelog.blocks.columns import FrameColumns
from tidelog.http.access import AccessOptions
from tidelog.http.server import HttpOptions, HttpServer

START_US = 1_750_000_000_000_000
KEY = "one-key-for-tests"
DEADLINE_S = 20.0


def options(**changes: Any) -> HttpOptions:
    """Loopback, any port, and one key, unless the test says otherwise."""
    return HttpOptions(**{"listen": "127.0.0.1:0", "access": AccessOptions(api_key=KEY), **changes})


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Client:
    server: HttpServer
    session: aiohttp.ClientSession
    key: str | None = KEY
    scheme: str = "http"
    seen: set[str] = field(default_factory=set)
    """The paths of the document that were asked."""

    def url(self, path: str) -> str:
        return f"{self.scheme}://localhost:{self.server.port}{path}"

    def _headers(self, headers: Mapping[str, str] | None) -> dict[str, str]:
        return ({"Authorization": f"Bearer {self.key}"} if self.key else {}) | dict(headers or {})

    async def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        check: bool = True,
        **more: Any,
    ) -> Answer:
        """Ask, and hold a JSON answer against the document."""
        async with self.session.request(method, self.url(path), headers=self._headers(headers), **more) as response:
            answer = Answer(response.status, response.headers, await response.read())
        if check and method in ("GET", "PUT", "POST") and answer.status != 405:
            self._hold(path, answer, method.lower())
        return answer

    def _hold(self, path: str, answer: Answer, method: str) -> None:
        document = self.server.document
        for template, item in document["paths"].items():
            if re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", template), path.split("?")[0]):
                self.seen.add(template)
                described = item[method]["responses"].get(str(answer.status))
                assert described is not None, f"{template} does not say that it may answer {answer.status}"
                if answer.status == 204:
                    return
                content_type = answer.headers["Content-Type"].split(";")[0]
                assert content_type in described["content"], f"{template} answers {content_type}"
                if content_type == "application/json":
                    found = problems(document, described["content"][content_type]["schema"], answer.json)
                    assert not found, "\n".join(found)
                return
        assert answer.status in (400, 404), f"{path} is not in the document and answers {answer.status}"

    @asynccontextmanager
    async def events(self, path: str, headers: Mapping[str, str] | None = None) -> AsyncIterator[Events]:
        self.seen.add(re.sub(r"(?<=/instances/)[^/]+", "{id}", path.split("?")[0]))
        timeout = aiohttp.ClientTimeout(total=None, sock_read=patient(DEADLINE_S))
        async with self.session.get(self.url(path), headers=self._headers(headers), timeout=timeout) as response:
            assert response.status == 200, await response.text()
            assert response.headers["Content-Type"] == "text/event-stream"
            events = Events(self.server, response)
            assert await events.comment() == "ready"
            yield events


@dataclass
class Events:
    """An event stream, as the npm client reads it: `data:` lines, everything else passed over."""

    server: HttpServer
    response: aiohttp.ClientResponse
    comments: list[str] = field(default_factory=list)
    rest: bytes = b""

    async def line(self) -> str | None:
        """The next line; None when the stream has ended."""
        while b"\n" not in self.rest:
            # The reader's own readline has a limit for a line, and none of ours are near it.
            chunk = await self.response.content.readany()
            if not chunk:
                return None
            self.rest += chunk
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode()

    async def comment(self) -> str:
        while (line := await self.line()) is not None:
            if line.startswith(": "):
                return line[2:]
        raise AssertionError("the stream has ended")

    async def next(self) -> dict[str, Any] | None:
        """The next event; None when the stream has ended."""
        while (line := await self.line()) is not None:
            if line.startswith(": "):
                self.comments.append(line[2:])
            elif line:
                assert line.startswith("data: "), line
                event: dict[str, Any] = json.loads(line[6:])
                self._hold(event)
                return event
        return None

    def _hold(self, event: dict[str, Any]) -> None:
        document = self.server.document
        schemas = document["components"]["schemas"]
        if event.get("type") == "device":
            found = problems(document, schemas["Device"], {key: event[key] for key in event if key != "type"})
        elif event.get("type") == "device_removed":
            found = [] if set(event) == {"type", "src"} else [f"{event} is odd"]
        else:
            found = problems(document, schemas["Frame"], event)
        assert not found, "\n".join(found)


@asynccontextmanager
async def serving(
    server: HttpServer, *, key: str | None = KEY, trusting: ssl.SSLContext | None = None
) -> AsyncIterator[Client]:
    await server.start()
    connector = aiohttp.TCPConnector(ssl=trusting if trusting is not None else True, force_close=trusting is not None)
    try:
        async with aiohttp.ClientSession(connector=connector, auto_decompress=True) as session:
            yield Client(server, session, key=key, scheme="http" if trusting is None else "https")
    finally:
        await server.stop()


def columns(numbers: range, *, can_id: int = 0x09F8_010A, length: int = 8) -> FrameColumns:
    """One frame per number, half a millisecond apart, with the number as payload."""
    return FrameColumns.from_rows(
        (START_US + 500 * number, can_id, number.to_bytes(8, "big").rjust(length, b"\0")[-length:])
        for number in numbers
    )
