"""Our gRPC server under grpcio's own client: statuses, deadlines, limits, slow readers, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc
import pytest
from benchmarks.kits.grpc_pump import GrpcPump, grpc_message

from tests.patience import patient, wait_until
from tidelog.transports.grpc.call import GrpcOptions, percent_encoded, timeout_of
from tidelog.transports.grpc.hpack import encode_headers
from tidelog.transports.grpc.http2_frames import (
    END_HEADERS,
    PREFACE,
    Code,
    Http2FrameKind,
    frame,
    reset_frame,
    settings_frame,
)
from tidelog.transports.grpc.server import GrpcServer
from tidelog.units import KIB, MIB

HOST = "127.0.0.1"
Status = grpc.StatusCode


class Handlers:
    """Methods of every kind that the server has, and what happened to them."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.written = 0
        self.gate = asyncio.Event()

    async def same(self, data: bytes, context: Any) -> bytes:
        return data

    async def left(self, data: bytes, context: Any) -> bytes:
        left = context.time_remaining()
        return b"none" if left is None else b"%d" % left

    async def refuse(self, data: bytes, context: Any) -> bytes:
        await context.abort(Status.NOT_FOUND, data.decode())
        raise AssertionError("abort returned")

    async def break_down(self, data: bytes, context: Any) -> bytes:
        raise ZeroDivisionError("a bug")

    async def wait(self, data: bytes, context: Any) -> bytes:
        self.started += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return data

    async def count(self, data: bytes, context: Any) -> None:
        for number in range(int(data)):
            await context.write(b"%d" % number)

    async def flood(self, data: bytes, context: Any) -> None:
        while True:
            await context.write_batch([bytes(16 * KIB)])
            self.written += 16 * KIB

    async def echo(self, requests: Any, context: Any) -> None:
        while batch := await requests.read_batch():
            await context.write_batch(batch)

    async def one_by_one(self, requests: Any, context: Any) -> None:
        async for message in requests:
            await context.write(message)

    def generic(self) -> grpc.GenericRpcHandler:
        unary = grpc.unary_unary_rpc_method_handler
        methods = {name: unary(getattr(self, name)) for name in ("same", "left", "refuse", "break_down", "wait")}
        for name in ("count", "flood"):
            methods[name] = grpc.unary_stream_rpc_method_handler(getattr(self, name))
        for name in ("echo", "one_by_one"):
            methods[name] = grpc.stream_stream_rpc_method_handler(getattr(self, name))
        return grpc.method_handlers_generic_handler("a.B", methods)


class Party:
    def __init__(self, server: GrpcServer, handlers: Handlers, channel: grpc.aio.Channel, port: int) -> None:
        self.server = server
        self.handlers = handlers
        self.channel = channel
        self.port = port
        self.lines: list[str] = []

    async def ask(self, name: str, data: bytes = b"", **more: Any) -> bytes:
        answer: bytes = await self.channel.unary_unary(f"/a.B/{name}")(data, **more)
        return answer

    async def refusal(self, work: Awaitable[Any]) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await work
        return caught.value


@contextlib.asynccontextmanager
async def served(**options: Any) -> AsyncIterator[Party]:
    handlers = Handlers()
    lines: list[str] = []
    server = GrpcServer([handlers.generic()], options=GrpcOptions(**options), log=lines.append)
    port = server.bind(HOST, 0)
    await server.start()
    limits = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    try:
        async with grpc.aio.insecure_channel(f"{HOST}:{port}", options=limits) as channel:
            party = Party(server, handlers, channel, port)
            party.lines = lines
            yield party
    finally:
        await server.stop(0.1)


async def test_calls_of_every_kind_are_answered() -> None:
    async with served() as party:
        assert await party.ask("same", b"hello") == b"hello"
        assert await party.ask("same", b"") == b""
        numbers = [number async for number in party.channel.unary_stream("/a.B/count")(b"1000")]
        assert numbers == [b"%d" % number for number in range(1000)]
        for name in ("echo", "one_by_one"):
            call = party.channel.stream_stream(f"/a.B/{name}")(iter([b"a", b"b" * 100_000, b"", b"c"]))
            assert [answer async for answer in call] == [b"a", b"b" * 100_000, b"", b"c"]


async def test_small_answers_do_not_wait_for_the_peers_acks() -> None:
    async with served() as party:
        assert await party.ask("same", b"x") == b"x"
        (connection,) = party.server.connections
        assert connection._transport is not None
        accepted: socket.socket = connection._transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_messages_larger_than_every_window_pass_both_ways() -> None:
    async with served(message_bytes_max=8 * MIB) as party:
        data = bytes(range(256)) * (6 * MIB // 256)
        assert await party.ask("same", data) == data
        call = party.channel.stream_stream("/a.B/echo")(iter([data, b"x", data]))
        assert [len(answer) async for answer in call] == [len(data), 1, len(data)]


async def test_messages_may_come_in_any_pieces() -> None:
    messages = [b"", b"a", bytes(range(256)) * 3, b"", b"z" * 5]
    whole = b"".join(map(grpc_message, messages))

    async with served() as party:
        for step in (1, 2, 6, 100):
            pump = await GrpcPump.dial(HOST, party.port, "/a.B/echo")
            for start in range(0, len(whole), step):
                await pump.send(whole[start : start + step])
                await asyncio.sleep(0)
            while pump.answers < len(messages):
                await pump.wait_changed()
            pump.end()
            while not pump.is_closed:
                await pump.wait_changed()
            assert (pump.answers, pump.trailers[b"grpc-status"]) == (len(messages), b"0"), step
            pump.close()


async def test_refusals_keep_their_status_and_their_words() -> None:
    async with served(message_bytes_max=1_000) as party:
        error = await party.refusal(party.ask("refuse", "n\u00f6 100%\n".encode()))
        assert (error.code(), error.details()) == (Status.NOT_FOUND, "n\u00f6 100%\n")
        assert (await party.refusal(party.ask("nothing"))).code() is Status.UNIMPLEMENTED
        error = await party.refusal(party.ask("same", bytes(1_001)))
        assert error.code() is Status.RESOURCE_EXHAUSTED
        assert "1000" in (error.details() or "")
        assert await party.ask("same", bytes(1_000)) == bytes(1_000)


async def test_a_bug_in_a_handler_ends_its_call_alone() -> None:
    """GS1."""

    async with served() as party:
        error = await party.refusal(party.ask("break_down"))
        assert error.code() is Status.UNKNOWN
        assert "ZeroDivisionError" in (error.details() or "")
        assert any("grpc handler failed" in line for line in party.lines)
        assert await party.ask("same", b"on") == b"on"


async def test_deadlines_are_known_and_kept() -> None:
    """GCA3."""

    async with served() as party:
        assert await party.ask("left") == b"none"
        # On its way a long timeout is rounded up to a tenth.
        assert 500 < int(await party.ask("left", timeout=1_000)) <= 1_100
        assert (await party.refusal(party.ask("wait", timeout=0.1))).code() is Status.DEADLINE_EXCEEDED
        await wait_until(lambda: party.handlers.cancelled == 1, "the handler ends too")


async def test_who_gives_up_is_sent_nothing_and_its_handler_ends() -> None:
    async with served() as party:
        call = party.channel.unary_unary("/a.B/wait")(b"")
        await wait_until(lambda: party.handlers.started == 1, "it is under way")
        call.cancel()
        await wait_until(lambda: party.handlers.cancelled == 1, "it ends")
        (connection,) = party.server.connections
        await wait_until(lambda: not connection.calls, "nothing is left of it")


async def test_compressed_messages_are_refused_in_words() -> None:
    async with served() as party:
        work = party.ask("same", bytes(10_000), compression=grpc.Compression.Gzip)
        error = await party.refusal(work)
        assert error.code() is Status.UNIMPLEMENTED
        assert "identity" in (error.details() or "")


async def test_a_client_that_does_not_read_stops_its_own_call_and_nobody_elses() -> None:
    """GCA2."""

    async with served() as party:
        call = party.channel.unary_stream("/a.B/flood")(b"")
        assert len(await call.read()) == 16 * KIB
        before = -1
        while before != party.handlers.written:
            before = party.handlers.written
            await asyncio.sleep(0.2)
        assert before < 32 * MIB, "what sockets and both windows hold"
        assert await party.ask("same", b"still") == b"still"
        for _ in range(100):
            await call.read()
        call.cancel()


async def test_a_handler_that_does_not_read_stops_its_client() -> None:
    """GCA2: the other way."""

    async with served() as party:
        call = party.channel.stream_stream("/a.B/one_by_one")()
        sent, is_stuck = 0, False
        while sent < 64 * MIB and not is_stuck:  # the answers are not read, so in the end nothing is taken
            writing = asyncio.ensure_future(call.write(bytes(64 * KIB)))
            done, _ = await asyncio.wait({writing}, timeout=2)
            sent += 64 * KIB
            is_stuck = not done
        assert is_stuck
        call.cancel()
        await asyncio.gather(writing, return_exceptions=True)


async def test_peers_that_speak_something_else_are_let_go() -> None:
    """GS2."""

    async with served() as party:
        for rubbish in (
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            bytes(1_000),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nrubbish!!!!",
        ):
            reader, writer = await asyncio.open_connection(HOST, party.port)
            writer.write(rubbish)
            await reader.read()
            writer.close()
            await writer.wait_closed()
        assert await party.ask("same", b"x") == b"x"


async def test_streams_that_are_opened_and_given_up_at_once_pile_up_nothing() -> None:
    """GS2: more in one write than may run at the same time."""
    block = encode_headers([(b":path", b"/a.B/wait"), (b"content-type", b"application/grpc")])

    async with served() as party:
        _, writer = await asyncio.open_connection(HOST, party.port)
        pairs = [
            frame(Http2FrameKind.HEADERS, block, flags=END_HEADERS, stream=number) + reset_frame(number, Code.CANCEL)
            for number in range(1, 10_001, 2)
        ]
        writer.write(PREFACE + settings_frame({}) + b"".join(pairs))
        assert await party.ask("same", b"x") == b"x"
        most = 0
        while any(connection.calls for connection in party.server.connections):
            most = max(most, *(len(connection.calls) for connection in party.server.connections))
            await asyncio.sleep(0)
        assert most <= 1_024
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_silent_connection_is_pinged_and_closed() -> None:
    """GS3."""

    async with served(idle_ping_s=0.2, ping_answer_s=patient(1.0)) as party:
        assert await party.ask("same", b"x") == b"x"
        reader, writer = await asyncio.open_connection(HOST, party.port)
        await reader.read()  # ends, since nothing was ever said
        writer.close()
        await asyncio.sleep(1)
        assert len(party.server.connections) == 1, "who answers pings stays"
        assert await party.ask("same", b"x") == b"x"


async def test_more_connections_than_allowed_are_closed() -> None:
    async with served(connections_max=1) as party:
        assert await party.ask("same", b"x") == b"x"
        reader, writer = await asyncio.open_connection(HOST, party.port)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert await party.ask("same", b"x") == b"x"


async def test_stopping_lets_calls_end_and_tells_the_others() -> None:
    async with served() as party:
        short = asyncio.ensure_future(party.ask("wait", b"short"))
        await wait_until(lambda: party.handlers.started == 1, "it runs")
        stopping = asyncio.ensure_future(party.server.stop(30))
        await asyncio.sleep(0.05)
        party.handlers.gate.set()
        assert await short == b"short"
        await stopping
    async with served() as party:
        long = asyncio.ensure_future(party.ask("wait"))
        await wait_until(lambda: party.handlers.started == 1, "it runs")
        await party.server.stop(0.05)
        assert (await party.refusal(long)).code() is Status.UNAVAILABLE


async def test_a_port_that_is_taken_cannot_be_had_twice() -> None:
    first, second = GrpcServer(), GrpcServer()
    port = first.bind(HOST, 0)
    with pytest.raises(OSError, match="in use"):
        second.bind(HOST, port)
    await first.stop(0)
    with socket.socket() as probe:
        assert probe.connect_ex((HOST, port)) != 0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"1S", 1.0), (b"20m", 0.02), (b"2H", 7200.0), (b"5u", 5e-6), (b"x", None), (b"123456789S", None), (None, None)],
)
def test_timeouts_are_read_as_grpc_writes_them(value: bytes | None, seconds: float | None) -> None:
    assert timeout_of(value) == (None if seconds is None else pytest.approx(seconds))


def test_words_become_a_header() -> None:
    assert percent_encoded("a b%\n\u00e9") == b"a b%25%0A%C3%A9"
