"""The server itself: one shape of errors, methods, limits, CORS, gzip, stopping."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

import pytest
from aiohttp import web

from tests.http.parties import KEY, Client, columns, options, serving
from tests.patience import patient, wait_until
from tidelog.errors import DiskError, DiskFull, InvalidConfig, UnknownChannel
from tidelog.http.access import READ_DATA, READ_STATUS, AccessOptions
from tidelog.http.feed import FrameFeed
from tidelog.http.health import livez_route, metrics_route
from tidelog.http.routes import EVENTS_TYPE, Call, Limits, Route, json_answer
from tidelog.http.server import HttpOptions, HttpServer, open_listener
from tidelog.http.shapes import FILTER_PARAMETERS, TEXT, object_of
from tidelog.http.streams import stream_events

LARGE = {"text": "abc " * 1000}
SCHEMA = object_of({"text": TEXT})


class Toy:
    """A server with a route of every sort."""

    def __init__(self, **changes: object) -> None:
        self.feed = FrameFeed()
        self.held = asyncio.Event()
        routes = [
            Route(path="/text", summary="", answer=self.text, scope=READ_STATUS, schema=SCHEMA),
            Route(path="/things/{id}/text", summary="", answer=self.text, scope=READ_DATA, schema=SCHEMA),
            Route(path="/fails/{id}/now", summary="", answer=self.fail, scope=READ_DATA, schema=SCHEMA),
            Route(path="/slow", summary="", answer=self.slow, scope=READ_DATA, schema=SCHEMA),
            Route(
                path="/events",
                summary="",
                answer=self.events,
                scope=READ_DATA,
                content_type=EVENTS_TYPE,
                streams=True,
                parameters=FILTER_PARAMETERS,
            ),
            livez_route(),
            metrics_route(lambda metrics, call: metrics.gauge("one", "One.", 1)),
        ]
        self.server = HttpServer(options(**changes), routes=[*routes], title="Toy")

    async def text(self, call: Call) -> web.StreamResponse:
        return json_answer(LARGE)

    async def fail(self, call: Call) -> web.StreamResponse:
        raise {
            "channel": UnknownChannel(channel="x"),
            "full": DiskFull(operation="write", path="/secret/path", reason="no space"),
            "disk": DiskError(operation="read", path="/secret/path", reason="rot"),
        }.get(call.path["id"], ZeroDivisionError("a bug"))

    async def slow(self, call: Call) -> web.StreamResponse:
        await self.held.wait()
        return json_answer(LARGE)

    async def events(self, call: Call) -> web.StreamResponse:
        return await stream_events(call, self.feed, devices=list)


def error_of(body: bytes) -> str:
    answer = json.loads(body)
    assert set(answer) == {"error", "detail"}
    assert answer["detail"]
    return str(answer["error"])


# --- paths, methods, callers ---------------------------------------------------------------------


async def test_every_refusal_has_one_shape() -> None:
    toy = Toy(access=AccessOptions(api_key=KEY))
    async with serving(toy.server) as client:
        assert (await client.ask("/text")).json == LARGE
        for path in ("/nothing", "/text/", "/things/text", "/things//text", "//text", "/text/more"):
            answer = await client.ask(path)
            assert (answer.status, error_of(answer.body)) == (404, "not_found")
        answer = await client.ask("/text", method="POST", data=b"{}")
        assert (answer.status, error_of(answer.body)) == (405, "method_not_allowed")
        assert answer.headers["Allow"] == "GET, HEAD"
        answer = await client.ask("/text", method="OPTIONS", headers={"Origin": "https://a.example"})
        assert answer.status == 405
        assert "Access-Control-Allow-Origin" not in answer.headers
        answer = await client.ask("/text?colour=red")
        assert (answer.status, error_of(answer.body)) == (400, "bad_parameter")
        assert answer.headers["Server"] == "tidelog"


async def test_head_gives_the_headers_of_get_and_no_body() -> None:
    toy = Toy()
    async with serving(toy.server) as client:
        for coding in ("identity", "gzip"):
            headers = {"Accept-Encoding": coding}
            got = await client.ask("/text", headers=headers)
            head = await client.ask("/text", method="HEAD", headers=headers)
            assert (head.status, head.body) == (200, b"")
            assert head.headers["Content-Length"] == got.headers["Content-Length"]
        events = await client.ask("/events", method="HEAD")
        assert (events.status, events.headers["Content-Type"]) == (200, "text/event-stream")
        assert toy.feed.readers == 0
        assert (await client.ask("/nothing", method="HEAD")).status == 404


async def test_anonymous_callers_are_refused_and_told_how_to_come_in() -> None:
    async with serving(Toy().server, key=None) as client:
        answer = await client.ask("/text")
        assert (answer.status, error_of(answer.body)) == (401, "unauthenticated")
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="tidelog"'
        answer = await client.ask("/text", headers={"Authorization": "Bearer wrong"})
        assert (answer.status, error_of(answer.body)) == (401, "invalid_token")
        assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]
        assert (await client.ask("/text", headers={"X-API-Key": KEY})).status == 200
        assert (await client.ask("/metrics")).status == 401
        assert (await client.ask("/openapi.json")).status == 200
        # A health check does not fail for a token that was taken back.
        assert (await client.ask("/livez", headers={"Authorization": "Bearer wrong"})).json == {"status": "ok"}
    async with serving(Toy(access=AccessOptions(anonymous=True)).server, key=None) as client:
        assert (await client.ask("/text")).status == 200
        assert b"one 1\n" in (await client.ask("/metrics")).body


@pytest.mark.parametrize("name", ["token", "access_token", "api_key", "apikey", "Key"])
async def test_a_token_in_the_address_is_refused_even_if_it_is_good(name: str) -> None:
    async with serving(Toy().server) as client:
        for key in (KEY, None):
            client.key = key
            answer = await client.ask(f"/text?{name}={KEY}")
            assert (answer.status, error_of(answer.body)) == (400, "token_in_query")


async def test_errors_of_ours_become_statuses_and_tell_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Toy().server) as client:
        expected = {"channel": (404, "not_found"), "full": (503, "disk_full"), "disk": (500, "disk_error")}
        for path, wanted in (expected | {"bug": (500, "internal")}).items():
            answer = await client.ask(f"/fails/{path}/now")
            assert (answer.status, error_of(answer.body)) == wanted
            assert b"secret" not in answer.body
            assert b'a bug"' not in answer.body


# --- CORS and gzip -------------------------------------------------------------------------------


async def test_browsers_of_named_origins_may_read_and_no_others() -> None:
    toy = Toy(cors_origins=("https://dash.example",))
    async with serving(toy.server) as client:
        answer = await client.ask("/text", headers={"Origin": "https://dash.example"})
        assert answer.headers["Access-Control-Allow-Origin"] == "https://dash.example"
        assert answer.headers["Vary"] == "Origin"
        for origin in ("https://dash.example.evil", "https://DASH.example", "null"):
            answer = await client.ask("/text", headers={"Origin": origin})
            assert answer.status == 200
            assert "Access-Control-Allow-Origin" not in answer.headers
        client.key = None
        asked = {"Origin": "https://dash.example", "Access-Control-Request-Method": "GET"}
        answer = await client.ask("/text", method="OPTIONS", headers=asked)
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers["Access-Control-Max-Age"] == "86400"
        assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
        answer = await client.ask("/text", method="OPTIONS", headers=asked | {"Origin": "https://other.example"})
        assert (answer.status, error_of(answer.body)) == (403, "origin_not_allowed")
        # What went wrong must be readable for the page too.
        answer = await client.ask("/text", headers={"Origin": "https://dash.example"})
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (401, "https://dash.example")
        client.key = KEY
        async with client.session.get(client.url("/events"), headers=client._headers(asked)) as response:
            assert response.headers["Access-Control-Allow-Origin"] == "https://dash.example"


async def test_large_answers_are_zipped_when_asked_for() -> None:
    async with serving(Toy().server) as client:
        headers = client._headers({"Accept-Encoding": "br;q=1, GZIP;q=0.5"})
        async with client.session.get(client.url("/text"), headers=headers) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            assert await response.json() == LARGE
        for refused in ("gzip;q=0", "identity", "gzip;q=0.0"):
            headers = client._headers({"Accept-Encoding": refused})
            async with client.session.get(client.url("/text"), headers=headers) as response:
                assert "Content-Encoding" not in response.headers
                assert await response.json() == LARGE
        headers = client._headers({"Accept-Encoding": "gzip"})
        async with client.session.get(client.url("/livez"), headers=headers) as response:
            assert "Content-Encoding" not in response.headers
        async with client.session.get(client.url("/events"), headers=headers) as response:
            assert "Content-Encoding" not in response.headers


# --- limits --------------------------------------------------------------------------------------


async def say(client: Client, text: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes as they are; the status, headers and body that come back before the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.server.port)
    writer.write(text)
    async with asyncio.timeout(patient(10)):
        answer = await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {line.split(": ")[0]: line.split(": ", 1)[1] for line in lines}, body


async def test_what_is_not_http_and_what_is_too_large_is_refused() -> None:
    async with serving(Toy(header_bytes_max=1000).server) as client:
        status, _, body = await say(client, b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
        assert (status, error_of(body)) == (400, "bad_request")
        status, _, body = await say(client, b"GET /text HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 5000 + b"\r\n\r\n")
        assert (status, error_of(body)) == (431, "headers_too_large")
        request = f"GET /text HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n".encode()
        status, headers, body = await say(client, request + b"Content-Length: 99999999\r\n\r\n")
        assert (status, error_of(body), headers["Connection"]) == (413, "body_too_large", "close")
        status, _, body = await say(client, request + b"Transfer-Encoding: chunked\r\n\r\n")
        assert (status, error_of(body)) == (413, "body_too_large")
        assert (await client.ask("/text")).status == 200


async def test_a_client_that_sends_no_request_is_let_go() -> None:
    async with serving(Toy(idle_timeout_s=0.2).server) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.server.port)
        writer.write(b"GET /text HTTP/1.1\r\nHost: ")
        async with asyncio.timeout(patient(10)):
            assert await reader.read() == b""
        writer.close()


async def test_connections_over_the_limit_are_told_to_come_back() -> None:
    async with serving(Toy(connections_max=2).server) as client:
        idle = [await asyncio.open_connection("127.0.0.1", client.server.port) for _ in range(2)]
        await wait_until(lambda: client.server.statistics().connections == 2, "two connections")
        answer = await client.ask("/livez")
        assert (answer.status, error_of(answer.body)) == (503, "too_many_connections")
        assert int(answer.headers["Retry-After"]) > 0
        for _, writer in idle:
            writer.close()
            await writer.wait_closed()
        await wait_until(lambda: client.server.statistics().connections == 0, "the connections ended")
        assert (await client.ask("/livez")).status == 200


async def test_a_flood_of_connections_is_cut_off() -> None:
    async with serving(Toy(connections_max=1).server) as client:
        sockets = [socket.create_connection(("127.0.0.1", client.server.port)) for _ in range(120)]
        try:
            await wait_until(lambda: 0 < client.server.statistics().connections <= 65, "some were cut")
            await asyncio.sleep(0)
            assert client.server.statistics().connections <= 65
        finally:
            for one in sockets:
                one.close()


async def test_readers_over_the_limit_are_told_to_come_back() -> None:
    toy = Toy(readers_max=1)
    async with serving(toy.server) as client:
        async with client.events("/events"):
            answer = await client.ask("/events")
            assert (answer.status, error_of(answer.body)) == (503, "too_many_readers")
            assert int(answer.headers["Retry-After"]) > 0
            assert toy.feed.readers == 1
        await wait_until(lambda: toy.feed.readers == 0, "the reader's place was given back")
        async with client.events("/events"):
            assert toy.server.statistics().readers == 1


async def test_an_answer_that_takes_too_long_is_given_up() -> None:
    async with serving(Toy(request_timeout_s=0.05).server) as client:
        answer = await client.ask("/slow")
        assert (answer.status, error_of(answer.body)) == (503, "timed_out")


# --- event streams -------------------------------------------------------------------------------


async def test_a_silent_stream_has_heartbeats_even_when_everything_is_filtered_out() -> None:
    toy = Toy(limits=Limits(heartbeat_s=0.05))
    async with serving(toy.server) as client, client.events("/events?pgn=1") as events:
        toy.feed.publish(1, columns(range(1, 10)))
        assert await events.comment() == "heartbeat"
        assert await events.comment() == "heartbeat"


async def test_a_reader_that_leaves_counts_as_answered_and_one_that_never_got_anything_does_not() -> None:
    toy = Toy()
    async with serving(toy.server) as client:
        async with client.events("/events"):
            pass
        await wait_until(lambda: toy.server.statistics().requests == {200: 1}, "the stream was counted")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.ask("/slow")
        await wait_until(lambda: toy.server.statistics().requests == {200: 1, 499: 1}, "the other was counted")


async def test_a_slow_reader_is_told_what_it_lost_and_delays_nobody() -> None:
    toy = Toy(limits=Limits(reader_blocks_max=4))
    async with serving(toy.server) as client, client.events("/events") as slow, client.events("/events") as quick:
        # The slow one takes nothing until its socket is full and its queue has overflowed.
        sent = 0
        while toy.feed.frames_dropped < 500:
            toy.feed.publish(sent + 1, columns(range(sent + 1, sent + 101), length=1785))
            sent += 100
            seen = 0
            while seen < sent:
                event = await quick.next()
                assert event is not None
                seen = event["seq"]
        assert not quick.comments
        toy.feed.publish(sent + 1, columns(range(sent + 1, sent + 2)))
        seqs: list[int] = []
        while not seqs or seqs[-1] <= sent:
            event = await slow.next()
            assert event is not None
            seqs.append(event["seq"])
        assert seqs == sorted(set(seqs))
        dropped = [int(line.split()[1]) for line in slow.comments if line.startswith("dropped")]
        assert sum(dropped) == sent + 1 - len(seqs)
        assert sum(dropped) == toy.feed.frames_dropped


async def test_a_client_that_takes_nothing_is_cut_off() -> None:
    toy = Toy(limits=Limits(write_timeout_s=0.1))
    async with serving(toy.server) as client, client.events("/events"):
        sent = 0
        while toy.feed.readers:
            toy.feed.publish(sent + 1, columns(range(sent + 1, sent + 1001), length=223))
            sent += 1000
            await asyncio.sleep(0.005)
            assert sent < 10_000_000


async def test_stopping_ends_streams_at_once_and_gives_answers_a_moment() -> None:
    toy = Toy(stop_s=10.0)
    async with serving(toy.server) as client, client.events("/events") as events:
        answering = asyncio.ensure_future(client.ask("/slow"))
        await wait_until(lambda: toy.server.statistics().connections == 2, "both requests are there")
        stopping = asyncio.ensure_future(toy.server.stop())
        assert await events.next() is None
        assert not answering.done()
        toy.held.set()
        assert (await answering).json == LARGE
        await stopping
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", toy.server.port)


# --- addresses -----------------------------------------------------------------------------------


@pytest.mark.parametrize("listen", ["", "8080", "host:", "host:x", ":99999", "127.0.0.1:-1"])
def test_a_bad_address_is_refused(listen: str) -> None:
    with pytest.raises(InvalidConfig, match=r"http\.listen"):
        open_listener(listen)


def test_an_address_without_a_host_is_every_interface() -> None:
    with open_listener(":0") as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            pass
        with pytest.raises(InvalidConfig, match="in use"):
            open_listener(f":{port}")


def test_options_that_cannot_work_are_refused() -> None:
    wrong_ones: tuple[dict[str, Any], ...] = (
        {"tls_cert": "a"},
        {"tls_client_ca": "a"},
        {"connections_max": 0},
        {"cors_origins": ("*",)},
    )
    for wrong in wrong_ones:
        with pytest.raises(InvalidConfig):
            HttpOptions(**wrong)
