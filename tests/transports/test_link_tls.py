"""Who may open a link: certificates of every wrong kind, files that change, names that do not match."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from pathlib import Path

import pytest

from tests.patience import wait_until
from tests.pki.certificates import KEY, crafted
from tests.transports.links import CLUSTER, HOST, OTHER_CLUSTER, TIMEOUT_MS, Recorder, Tree, duo, echo, refusal_of
from tests.transports.links import secure_end as end_of
from tidelog.errors import AuthorityError, CertificateRevoked, LogError, PeerRefused, TlsFailed, WrongKind, WrongPeer
from tidelog.pki.certificates import DAY_US, key_pem
from tidelog.pki.identity import Kind, serial_hex
from tidelog.transports.link import connection as link_connection
from tidelog.transports.link.link import NODES_ONLY, Link, LinkEnd, LinkListener, LinkOptions, LinkTls, dial_link
from tidelog.units import MIB


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    tree = Tree.make(tmp_path_factory.mktemp("trees") / "nodes")
    for name in ("n1", "n2"):
        tree.issue(name)
    return tree


@contextlib.asynccontextmanager
async def server(
    end: LinkEnd, *, allowed_kinds: Collection[Kind] = NODES_ONLY
) -> AsyncIterator[tuple[LinkListener, list[Link], list[str]]]:
    """A listening node, its links, and what it logged."""
    links: list[Link] = []
    lines: list[str] = []
    listener = LinkListener(
        f"{HOST}:0",
        end=replace(end, log=lines.append),
        handler=Recorder(answers={1: echo}),
        on_link=links.append,
        allowed_kinds=allowed_kinds,
    )
    await listener.start()
    try:
        yield listener, links, lines
    finally:
        await listener.close()
        for link in links:
            link.abort("the test is over")


async def refused(end: LinkEnd, listener: LinkListener) -> LogError:
    """How a caller that must not come in is refused; with a good one beside it, that is not."""
    return await refusal_of(dial_link(f"{HOST}:{listener.port}", end=end, handler=Recorder()))


async def test_two_nodes_talk_over_tls_in_both_directions(tree: Tree) -> None:
    async with duo(end_of(tree.files("n1"), "n1"), end_of(tree.files("n2"), "n2")) as both:
        body = bytes(range(256)) * 10_000
        for link in (both.near, both.far):
            assert await link.request(1, body, timeout_ms=TIMEOUT_MS) == body
        for number in range(3_000):
            both.near.post(7, number.to_bytes(4, "little"))
        await both.near.request(1, b"", timeout_ms=TIMEOUT_MS)
        assert [int.from_bytes(body, "little") for _, _, body in both.far_handler.messages] == list(range(3_000))
        await both.near.close()
        await both.far.wait_closed()


async def test_large_bodies_go_both_ways_at_once_over_tls(tree: Tree) -> None:
    async with duo(end_of(tree.files("n1"), "n1"), end_of(tree.files("n2"), "n2")) as both:
        body = bytes(range(256)) * (MIB // 64)

        async def carry(link: Link) -> None:
            for _ in range(3):
                assert await link.request(1, body, timeout_ms=TIMEOUT_MS) == body

        async with asyncio.TaskGroup() as group:
            for link in (both.near, both.far) * 2:
                group.create_task(carry(link))
            for _ in range(20):
                assert bytes(await both.near.request(1, b"beat", timeout_ms=TIMEOUT_MS)) == b"beat"


# --- certificates that are not accepted ---------------------------------------------------------


async def test_a_caller_without_a_certificate_is_refused(tree: Tree) -> None:
    async with server(end_of(tree.files("n2"), "n2")) as (listener, links, lines):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(tree.authority)

        def call() -> bytes:
            connection = socket.create_connection((HOST, listener.port))
            with context.wrap_socket(connection) as secure:
                return secure.recv(100)

        with pytest.raises(ssl.SSLError):
            await asyncio.to_thread(call)
        await wait_until(lambda: listener.refused == 1)
        assert "code=tls_failed" in lines[0]
        assert links == []


async def test_plain_tcp_and_old_tls_do_not_get_in(tree: Tree) -> None:
    async with server(end_of(tree.files("n2"), "n2")) as (listener, links, lines):
        with socket.create_connection((HOST, listener.port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
            await wait_until(lambda: listener.refused == 1)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(tree.authority)
        context.load_cert_chain(tree.folder / "n1.crt", tree.folder / "n1.key")
        context.maximum_version = ssl.TLSVersion.TLSv1_2

        def call() -> None:
            with socket.create_connection((HOST, listener.port)) as connection, context.wrap_socket(connection):
                pass

        with pytest.raises(ssl.SSLError):
            await asyncio.to_thread(call)
        await wait_until(lambda: listener.refused == 2)
        assert all("code=tls_failed" in line for line in lines)
        assert links == []


async def test_half_open_tls_is_closed_by_the_deadline(tree: Tree) -> None:
    end = replace(end_of(tree.files("n2"), "n2"), options=LinkOptions(handshake_timeout_ms=100))
    async with server(end) as (listener, links, _):
        with socket.create_connection((HOST, listener.port)):
            await wait_until(lambda: listener.refused == 1)
        assert links == []


async def test_a_boat_of_the_other_tree_is_refused_by_tls(tree: Tree, tmp_path: Path) -> None:
    boats = Tree.make(tmp_path / "boats", "boat")
    boats.issue("n1", kind="boat")

    async with server(end_of(tree.files("n2"), "n2")) as (listener, links, lines):
        boat = end_of(boats.files("n1", authority=tree.authority), "n1")
        assert isinstance(await refused(boat, listener), TlsFailed)
        await wait_until(lambda: listener.refused == 1)
        assert "code=tls_failed" in lines[0]
        assert links == []


async def test_a_node_certificate_of_the_boats_authority_is_refused_by_tls(tree: Tree, tmp_path: Path) -> None:
    boats = Tree.make(tmp_path / "boats", "boat")
    boats.issue("n1", kind="node")

    async with server(end_of(tree.files("n2"), "n2")) as (listener, links, _):
        assert isinstance(await refused(end_of(boats.files("n1", authority=tree.authority), "n1"), listener), TlsFailed)
        assert links == []


async def test_a_boat_or_an_operator_of_our_own_tree_is_refused_by_kind(tree: Tree) -> None:
    tree.issue("b1", kind="boat")
    tree.issue("o1", kind="operator")

    async with server(end_of(tree.files("n2"), "n2")) as (listener, links, lines):
        claims: tuple[tuple[str, Kind], ...] = (("b1", "node"), ("o1", "operator"))
        for name, kind in claims:
            error = await refused(end_of(tree.files(name), name, kind=kind), listener)
            assert (type(error), error.code) == (PeerRefused, WrongKind.code)
        await wait_until(lambda: listener.refused == 2)
        assert all("code=wrong_kind" in line for line in lines)
        assert links == []


async def test_an_operator_comes_in_where_the_listener_says_so(tree: Tree) -> None:
    tree.issue("o2", kind="operator")

    async with server(end_of(tree.files("n2"), "n2"), allowed_kinds=("node", "operator")) as (listener, links, _):
        end = end_of(tree.files("o2"), "o2", kind="operator", cluster=b"")
        link = await dial_link(f"{HOST}:{listener.port}", end=end, handler=Recorder())
        assert bytes(await link.request(1, b"status", timeout_ms=TIMEOUT_MS)) == b"status"
        assert (links[0].peer, links[0].peer_kind) == ("o2", "operator")
        link.abort("the test is over")


async def test_a_client_comes_in_as_a_client_and_cannot_say_that_it_is_an_operator(tree: Tree) -> None:
    tree.issue("c1", kind="client")

    kinds: tuple[Kind, ...] = ("node", "operator", "client")
    async with server(end_of(tree.files("n2"), "n2"), allowed_kinds=kinds) as (listener, links, _):
        place = f"{HOST}:{listener.port}"
        link = await dial_link(
            place, end=end_of(tree.files("c1"), "c1", kind="client", cluster=b""), handler=Recorder()
        )
        assert bytes(await link.request(1, b"status", timeout_ms=TIMEOUT_MS)) == b"status"
        assert (links[0].peer, links[0].peer_kind) == ("c1", "client")
        liar = end_of(tree.files("c1"), "c1", kind="operator", cluster=b"")
        assert (await refusal_of(dial_link(place, end=liar, handler=Recorder()))).code == "wrong_peer"
        link.abort("the test is over")


def test_a_certificate_without_a_uri_is_no_node(tree: Tree) -> None:
    named = crafted(common_names=["n1"], signer=tree.signer)
    tree.write("plain", named, key_pem(KEY))
    strict = LinkTls(tree.files("n2"))
    with pytest.raises(WrongKind):
        strict.proof_of(ssl.PEM_cert_to_DER_cert((tree.folder / "plain.crt").read_text()), allowed_kinds=NODES_ONLY)


async def test_an_expired_certificate_is_refused(tree: Tree) -> None:
    tree.issue("old", now_us=time.time_ns() // 1000 - 40 * DAY_US, days=30)

    async with server(end_of(tree.files("n2"), "n2")) as (listener, links, lines):
        error = await refused(end_of(tree.files("old"), "old"), listener)
        assert isinstance(error, TlsFailed)
        assert "expired" in str(error)
        await wait_until(lambda: listener.refused == 1)
        assert "expired" in lines[0]
        assert links == []


async def test_a_server_with_a_wrong_certificate_is_refused_by_its_caller(tree: Tree, tmp_path: Path) -> None:
    stranger = Tree.make(tmp_path / "others")
    stranger.issue("n2")

    async with server(end_of(stranger.files("n2"), "n2")) as (listener, links, _):
        assert isinstance(await refused(end_of(tree.files("n1"), "n1"), listener), TlsFailed)
        assert links == []


async def test_a_revoked_certificate_is_refused_and_its_running_link_ended(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_connection, "_REVOKED_CHECK_US", 20_000)
    leaf = tree.issue("stolen")
    revoked = tmp_path / "revoked.txt"
    revoked.write_text("# nobody\n")

    async with server(end_of(tree.files("n2", revoked=revoked), "n2")) as (listener, _, _):
        thief = end_of(tree.files("stolen"), "stolen")
        link = await dial_link(f"{HOST}:{listener.port}", end=thief, handler=Recorder())
        good = await dial_link(f"{HOST}:{listener.port}", end=end_of(tree.files("n1"), "n1"), handler=Recorder())
        revoked.write_text(f"{serial_hex(leaf.serial_number)} stolen\n")
        await wait_until(lambda: link.is_closed)
        assert CertificateRevoked.code in (link.close_reason or "")
        error = await refused(thief, listener)
        assert (type(error), error.code) == (PeerRefused, CertificateRevoked.code)
        assert good.is_usable
        good.abort("the test is over")


async def test_another_name_than_the_certificates_is_refused(tree: Tree) -> None:
    async with server(end_of(tree.files("n2"), "n2")) as (listener, links, lines):
        error = await refused(end_of(tree.files("n1"), "n3"), listener)
        assert (type(error), error.code) == (PeerRefused, WrongPeer.code)
        await wait_until(lambda: listener.refused == 1)
        assert "code=wrong_peer" in lines[0]
        assert links == []


async def test_another_cluster_is_refused_over_tls(tree: Tree) -> None:
    async with server(end_of(tree.files("n2"), "n2", cluster=CLUSTER)) as (listener, links, _):
        error = await refused(end_of(tree.files("n1"), "n1", cluster=OTHER_CLUSTER), listener)
        assert (type(error), error.code) == (PeerRefused, "wrong_cluster")
        assert links == []


# --- files that change -----------------------------------------------------------------------------


async def test_new_certificates_are_taken_for_new_links_and_half_written_ones_are_not(tmp_path: Path) -> None:
    tree = Tree.make(tmp_path / "nodes")
    for name in ("n1", "n2"):
        tree.issue(name)
    lines: list[str] = []
    tls = LinkTls(tree.files("n2"), log=lines.append)
    first = tls.server_context()
    assert tls.server_context() is first

    before = (tree.folder / "n2.crt").read_bytes()
    tree.issue("n2")
    after = (tree.folder / "n2.crt").read_bytes()
    (tree.folder / "n2.crt").write_bytes(before)
    assert tls.server_context() is first, "LT1: a new key with an old certificate is not taken"
    assert "not taken" in lines[-1]
    (tree.folder / "n2.crt").write_bytes(after)
    assert tls.server_context() is not first
    assert tls.generation == 2

    end = replace(end_of(tree.files("n2"), "n2"), tls=tls)
    async with duo(end_of(tree.files("n1"), "n1"), end) as both:
        assert bytes(await both.near.request(1, b"new", timeout_ms=TIMEOUT_MS)) == b"new"


def test_files_that_do_not_fit_together_are_refused_at_the_start(tree: Tree, tmp_path: Path) -> None:
    other = Tree.make(tmp_path / "others")
    other.issue("n1")
    with pytest.raises(AuthorityError):
        LinkTls(replace(tree.files("n1"), key=other.folder / "n1.key"))
