"""The connection to a NATS server, against a real one: order, reconnection, limits, TLS, users, credentials."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.patience import wait_until
from tests.transports.links import Tree
from tests.transports.nats_jwt import trust
from tests.transports.nats_server import NatsServer
from tidelog.core.subjects import is_reply_subject, queue_group_problem, subject_problem
from tidelog.errors import BadSubject, InvalidConfig, MissingExtra
from tidelog.transports.nats.connection import BACKOFF_S, LASTED_S, NatsConnection, NatsMessage, NatsOptions, wait_after
from tidelog.units import KIB

SECRET = "beware of the tide"


class Told:
    """What a connection told its callers."""

    def __init__(self) -> None:
        self.ups = 0
        self.downs: list[str] = []
        self.lines: list[str] = []

    def up(self) -> None:
        self.ups += 1


@contextlib.asynccontextmanager
async def connected(
    options: NatsOptions, *, pending_bytes_max: int | None = None, waits: bool = True
) -> AsyncIterator[tuple[NatsConnection, Told]]:
    told = Told()
    more = {} if pending_bytes_max is None else {"pending_bytes_max": pending_bytes_max}
    nats = NatsConnection(options, on_up=told.up, on_down=told.downs.append, log=told.lines.append, **more)
    await nats.start()
    try:
        if waits:
            await wait_until(lambda: nats.is_up)
        yield nats, told
    finally:
        await nats.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> object:
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


def options_of(server: NatsServer, **more: object) -> NatsOptions:
    return NatsOptions(servers=(server.url,), **more)  # type: ignore[arg-type]


def tasks_of_the_connection() -> list[Any]:
    """Tasks that still run code of Tidelog; the test is a task as well."""
    running: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
    return [coro for coro in running if coro.cr_frame.f_globals["__name__"].startswith("tidelog.")]


def payloads(messages: list[NatsMessage]) -> list[bytes]:
    return [message.payload for message in messages]


# --- messages -----------------------------------------------------------------------------------------


async def test_messages_keep_their_order_and_those_of_one_read_come_in_one_call(server: NatsServer) -> None:
    calls: list[list[NatsMessage]] = []
    async with connected(options_of(server)) as (nats, _):
        nats.subscribe("order", calls.append)
        for number in range(2_000):
            assert nats.publish("order", [b"number ", memoryview(b"%d" % number)], reply="back.here")
        await wait_until(lambda: sum(map(len, calls)) == 2_000)
    messages = [message for call in calls for message in call]
    assert payloads(messages) == [b"number %d" % number for number in range(2_000)]
    assert messages[0] == NatsMessage("order", "back.here", False, b"number 0")
    assert len(calls) < 1_000


async def test_a_request_that_nobody_listens_to_is_answered_by_the_server(server: NatsServer) -> None:
    answers: list[NatsMessage] = []
    async with connected(options_of(server)) as (nats, _):
        nats.subscribe(f"{nats.inbox}.>", answers.extend)
        nats.publish("nobody.here", [b"question"], reply=f"{nats.inbox}.7.1")
        await wait_until(lambda: bool(answers))
        assert answers == [NatsMessage(f"{nats.inbox}.7.1", "", True, b"")]


async def test_an_empty_message_of_a_publisher_is_no_word_of_the_server(server: NatsServer) -> None:
    got: list[NatsMessage] = []
    async with connected(options_of(server)) as (nats, _):
        nats.subscribe("empty", got.extend)
        nats.publish("empty", [])
        await wait_until(lambda: bool(got))
        assert got == [NatsMessage("empty", "", False, b"")]


async def test_after_unsubscribing_nothing_more_comes_and_the_server_forgets_it(server: NatsServer) -> None:
    got: list[NatsMessage] = []
    nobody: list[NatsMessage] = []
    async with connected(options_of(server)) as (nats, _):
        nats.subscribe(f"{nats.inbox}.>", nobody.extend)
        number = nats.subscribe("left", got.extend)
        nats.publish("left", [b"1"])
        nats.unsubscribe(number)
        nats.publish("left", [b"2"], reply=f"{nats.inbox}.1.1")
        await wait_until(lambda: bool(nobody))
    assert got == []


async def test_members_of_a_queue_group_share_the_messages(server: NatsServer) -> None:
    got: tuple[list[NatsMessage], list[NatsMessage]] = ([], [])
    async with connected(options_of(server)) as (nats, _):
        for share in got:
            nats.subscribe("shared", share.extend, queue="workers")
        for number in range(200):
            nats.publish("shared", [b"%d" % number])
        await wait_until(lambda: sum(map(len, got)) == 200)
    assert all(got)
    assert sorted(int(text) for share in got for text in payloads(share)) == list(range(200))


# --- limits -------------------------------------------------------------------------------------------


async def test_what_may_wait_has_a_limit_and_what_is_too_large_is_refused(server: NatsServer) -> None:
    async with connected(options_of(server), pending_bytes_max=100 * KIB) as (nats, told):
        assert nats.publish("limit", [bytes(60 * KIB)])
        assert not nats.publish("limit", [bytes(60 * KIB)])
        await wait_until(lambda: nats.statistics().pending_bytes == 0)
        assert nats.publish("limit", [bytes(60 * KIB)])
    async with connected(options_of(server)) as (nats, told):
        assert not nats.publish("limit", [bytes(nats.max_payload), b"1"])
        assert nats.statistics().dropped == 1
        assert "larger than the server takes" in told.lines[-1]


@pytest.mark.parametrize("subject", ["", "a b", "a\r\nPUB x 0", "a..b", ".a", "a."])
async def test_a_subject_that_could_be_a_command_is_never_sent(server: NatsServer, subject: str) -> None:
    async with connected(options_of(server)) as (nats, _):
        with pytest.raises(BadSubject):
            nats.publish(subject, [b""])
        with pytest.raises(BadSubject):
            nats.subscribe(subject, lambda _: None)
        if subject:
            with pytest.raises(BadSubject):
                nats.publish("good", [b""], reply=subject)


@given(st.text(max_size=20))
def test_whatever_the_catalog_and_acks_let_through_can_be_sent(text: str) -> None:
    nats = NatsConnection(
        NatsOptions(servers=("nats://127.0.0.1:4222",)), on_up=lambda: None, on_down=lambda _: None, log=lambda _: None
    )
    if is_reply_subject(text):
        assert not nats.publish(text, [b""], reply=text)
    if subject_problem(text) is None:
        nats.subscribe(text, lambda _: None)
    if queue_group_problem(text) is None:
        nats.subscribe("good", lambda _: None, queue=text)


# --- servers that come and go ------------------------------------------------------------------------------


async def test_a_server_that_is_away_at_the_start_is_found_when_it_comes(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)

    got: list[NatsMessage] = []
    async with connected(options_of(server), waits=False) as (nats, told):
        nats.subscribe("early", got.extend)
        await wait_until(lambda: nats.statistics().failures >= 2)
        assert not nats.is_up
        assert not nats.publish("early", [b"lost"])
        assert len(told.lines) == 1, told.lines
        with server:
            await wait_until(lambda: nats.is_up)
            nats.publish("early", [b"there"])
            await wait_until(lambda: bool(got))
    assert payloads(got) == [b"there"]
    assert told.downs == []


async def test_subscriptions_stand_again_before_on_up_when_the_server_was_killed(tmp_path: Path) -> None:
    got: list[NatsMessage] = []
    with NatsServer(tmp_path) as server:
        told = Told()

        def on_up() -> None:
            told.up()
            nats.publish("again", [b"%d" % told.ups])

        nats = NatsConnection(options_of(server), on_up=on_up, on_down=told.downs.append, log=told.lines.append)
        nats.subscribe("again", got.extend)
        await nats.start()
        await wait_until(lambda: len(got) == 1)
        inboxes = {nats.inbox}

        def went_down(times: int) -> bool:
            return len(told.downs) == times

        def heard(count: int) -> bool:
            return len(got) == count

        for kills in (1, 2):
            # Something is on its way when it dies.
            for _ in range(50):
                nats.publish("elsewhere", [bytes(100 * KIB)])
            server.kill()
            await wait_until(partial(went_down, kills))
            assert not nats.is_up
            server.start()
            await wait_until(partial(heard, kills + 1))
            inboxes.add(nats.inbox)
        await nats.close()
    assert payloads(got) == [b"1", b"2", b"3"]
    assert len(inboxes) == 3
    assert nats.statistics().connections == 3
    assert not tasks_of_the_connection()


async def test_nx3_what_comes_with_a_subscription_is_delivered_after_on_up_and_not_lost() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"headers":true,"max_payload":1048576}\r\n')
        while data := await reader.read(1_000):
            writer.write(b"MSG early 1 1\r\n1\r\n" * data.count(b"SUB early"))
            await writer.drain()
            await asyncio.sleep(0.05)  # the confirmation comes in a later read
            writer.write(b"PONG\r\n" * data.count(b"PING"))
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    seen: list[object] = []
    nats = NatsConnection(
        NatsOptions(servers=(f"nats://127.0.0.1:{port}",)),
        on_up=lambda: seen.append("up"),
        on_down=lambda _: None,
        log=lambda _: None,
    )
    nats.subscribe("early", lambda messages: seen.append(payloads(messages)))
    await nats.start()
    await wait_until(lambda: len(seen) == 2)
    await nats.close()
    listener.close()
    await listener.wait_closed()
    assert seen == ["up", [b"1"]]


async def test_nx7_a_server_that_lets_us_in_and_breaks_is_dialed_ever_more_seldom() -> None:
    """It was dialed 13 to 40 times a second: each connection that came up started the waits over."""

    dialed_s: list[float] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialed_s.append(time.monotonic())
        writer.write(b'INFO {"headers":true,"max_payload":1048576}\r\n')
        while data := await reader.read(1_000):
            if b"PING" in data:
                writer.write(b"PONG\r\n")
                await writer.drain()
                break
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    options = NatsOptions(servers=(f"nats://127.0.0.1:{port}",))
    async with connected(options, waits=False) as (_, told):
        await wait_until(lambda: len(dialed_s) == 6, deadline_s=30)
    assert told.ups >= 5, "each of them came up"
    # At least half of 0.1, 0.2, 0.4, 0.8 and 1 s.
    assert dialed_s[-1] - dialed_s[0] >= 1.25
    listener.close()
    await listener.wait_closed()


def test_nx7_the_waits_start_over_after_a_connection_that_lasted() -> None:
    waits, wait_s = [], BACKOFF_S[0]
    for stood_s in (0.0, 0.0, 0.9, LASTED_S, 0.0):
        wait_s = wait_after(wait_s, stood_s=stood_s)
        waits.append(wait_s)
    assert waits == [0.1, 0.2, 0.4, 0.05, 0.1]


async def test_the_next_server_is_taken_when_one_is_gone(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "one") as one, NatsServer(tmp_path / "two") as two:
        async with connected(NatsOptions(servers=(one.url, two.url))) as (_, told):
            at_one = f":{one.port} " in told.lines[0]
            (one if at_one else two).kill()
            await wait_until(lambda: told.ups == 2)
            assert f":{(two if at_one else one).port} " in told.lines[-1]


async def test_closing_sends_what_waits_and_leaves_no_task(server: NatsServer) -> None:
    got: list[NatsMessage] = []
    async with connected(options_of(server)) as (listener, _):
        listener.subscribe("closing", got.extend)
        async with connected(options_of(server)) as (nats, _):
            for number in range(500):
                nats.publish("closing", [b"%d" % number])
        await wait_until(lambda: len(got) == 500)
    assert not tasks_of_the_connection()


# --- who we are, who they are --------------------------------------------------------------------------------


async def test_user_and_password_are_taken_and_a_wrong_one_is_told_once(tmp_path: Path) -> None:
    config = f'authorization {{ user: sea, password: "{SECRET}" }}'

    with NatsServer(tmp_path / "server", config=config) as server:
        file = tmp_path / "password"
        file.write_text("wrong\n")
        async with connected(options_of(server, user="sea", password_file=file), waits=False) as (nats, told):
            await wait_until(lambda: nats.statistics().failures >= 3)
            assert len(told.lines) == 1
            assert "uthorization" in told.lines[0]
            # It is read again each time.
            file.write_text(f"{SECRET}\n")
            await wait_until(lambda: nats.is_up)


async def test_what_we_may_not_do_is_told_once_and_the_connection_stays(tmp_path: Path) -> None:
    may = "permissions: { publish: allowed, subscribe: allowed }"
    config = f'authorization {{ users: [ {{ user: sea, password: "{SECRET}", {may} }} ] }}'

    file = tmp_path / "password"
    file.write_text(SECRET)
    got: list[NatsMessage] = []
    with NatsServer(tmp_path / "server", config=config) as server:
        async with connected(options_of(server, user="sea", password_file=file)) as (nats, told):
            for _ in range(3):
                nats.publish("forbidden", [b""])
            nats.subscribe("allowed", got.extend)
            nats.publish("allowed", [b"yes"])
            await wait_until(lambda: bool(got) and nats.statistics().failures == 3)
            assert told.downs == []
            assert sum("ermissions violation" in line for line in told.lines) == 1


async def test_a_credentials_file_opens_a_server_that_trusts_signed_users(tmp_path: Path) -> None:
    config, credentials = trust(tmp_path, user="boat")

    got: list[NatsMessage] = []
    with NatsServer(tmp_path / "server", config=config) as server:
        async with connected(options_of(server, credentials=credentials)) as (nats, _):
            nats.subscribe("signed", got.extend)
            nats.publish("signed", [b"yes"])
            await wait_until(lambda: bool(got))
        async with connected(options_of(server), waits=False) as (stranger, told):
            await wait_until(lambda: stranger.statistics().failures >= 1)
            assert "uthorization" in told.lines[0]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree.make(tmp_path_factory.mktemp("trees") / "nodes")


async def test_tls_both_ways_and_a_server_of_another_authority_is_not_believed(tmp_path: Path, tree: Tree) -> None:
    tree.issue("nats1", server_names=("127.0.0.1", "localhost"))
    tree.issue("n1")
    theirs, ours = tree.files("nats1"), tree.files("n1")
    other = Tree.make(tmp_path / "other").authority
    pair = f'cert_file: "{theirs.certificate}", key_file: "{theirs.key}"'
    config = f'tls {{ {pair}, ca_file: "{theirs.authority}", verify: true }}'

    got: list[NatsMessage] = []
    with NatsServer(tmp_path / "server", config=config, scheme="tls") as server:
        good = options_of(server, tls_ca=ours.authority, tls_cert=ours.certificate, tls_key=ours.key)
        async with connected(good) as (nats, _):
            nats.subscribe("secret", got.extend)
            nats.publish("secret", [b"yes"])
            await wait_until(lambda: bool(got))
        bad = options_of(server, tls_ca=other, tls_cert=ours.certificate, tls_key=ours.key)
        async with connected(bad, waits=False) as (nats, told):
            await wait_until(lambda: nats.statistics().failures >= 1)
            assert "certificate" in told.lines[0].lower()


async def test_no_password_goes_to_a_server_without_tls_where_tls_is_asked_for(tmp_path: Path) -> None:
    heard = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"auth_required":true,"headers":true,"max_payload":1048576}\r\n')
        while data := await reader.read(1_000):
            heard.extend(data)
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    file = tmp_path / "password"
    file.write_text(SECRET)
    options = NatsOptions(servers=(f"tls://127.0.0.1:{port}",), user="sea", password_file=file)
    async with connected(options, waits=False) as (nats, told):
        await wait_until(lambda: nats.statistics().failures >= 1)
        assert "TLS is asked for" in told.lines[0]
    listener.close()
    await listener.wait_closed()
    assert not heard


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"servers": ()}, "at least one"),
        ({"servers": ("http://a:1",)}, "no address"),
        ({"servers": ("nats://a",)}, "no address"),
        ({"servers": ("nats://a:b",)}, "no address"),
        ({"servers": ("nats://u:p@a:1",)}, "logs"),
        ({"user": "u"}, "together"),
        ({"user": "u", "password_file": Path("p"), "credentials": Path("c")}, "credentials"),
        ({"tls_cert": Path("c")}, "together"),
    ],
)
def test_options_that_cannot_work_are_refused_in_words(more: dict[str, object], word: str) -> None:
    with pytest.raises(InvalidConfig, match=word):
        NatsOptions(**{"servers": ("nats://127.0.0.1:4222",)} | more)  # type: ignore[arg-type]


def test_without_nats_py_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats", None)
    options = NatsOptions(servers=("nats://127.0.0.1:4222",))
    with pytest.raises(MissingExtra, match=r"tidelog\[nats\]"):
        NatsConnection(options, on_up=lambda: None, on_down=lambda _: None, log=lambda _: None)


@pytest.mark.slow
async def test_a_server_that_falls_silent_is_left() -> None:
    """It takes our bytes and answers nothing: found by pings, and tried again."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"headers":true,"max_payload":1048576}\r\n')
        pongs = 0
        while data := await reader.read(1_000):
            for _ in range(data.count(b"PING")):
                pongs += 1
                if pongs <= 2:
                    writer.write(b"PONG\r\n")
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with connected(NatsOptions(servers=(f"nats://127.0.0.1:{port}",))) as (_, told):
        await wait_until(lambda: told.ups == 2, deadline_s=30)
    assert len(told.downs) == 1
    listener.close()
    await listener.wait_closed()
