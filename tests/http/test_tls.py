"""HTTPS with real handshakes: certificates that change under a running server, and callers that show one."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from pathlib import Path

import aiohttp
import pytest

from tests.http.parties import Client, options, serving
from tests.patience import patient, wait_until
from tests.pki.certificates import KEY as LEAF_KEY
from tests.pki.certificates import NOW_US, Files, crafted
from tidelog.errors import InvalidConfig
from tidelog.http.access import READ_DATA, READ_METRICS, AccessOptions
from tidelog.http.health import livez_route
from tidelog.http.routes import Call, Route, json_answer
from tidelog.http.server import HttpServer
from tidelog.http.shapes import TEXT, object_of
from tidelog.http.tls import ServerTls
from tidelog.pki.certificates import (
    AuthorityOptions,
    LeafOptions,
    Signer,
    certificate_pem,
    make_authority,
    make_leaf,
    new_key,
)
from tidelog.pki.identity import Identity, identity_of
from tidelog.pki.revocation import RevocationList


def authority(kind: str) -> Signer:
    made = AuthorityOptions(kind=kind)  # type: ignore[arg-type]
    return make_authority(made, now_us=NOW_US, random_bytes=secrets.token_bytes)


def node_files(folder: Path, signer: Signer, name: str) -> Files:
    key = new_key()
    leaf = make_leaf(
        LeafOptions(identity=Identity("node", name), server_names=["localhost"]),
        signer=signer,
        fleet="fleet",
        public_key=key.public_key(),
        now_us=NOW_US,
        random_bytes=secrets.token_bytes,
    )
    return Files.write(folder, name, certificate_pem(leaf), key)


def client_files(folder: Path, signer: Signer, uri: str) -> Files:
    kind, name = uri.split("/")
    leaf = crafted(common_names=[name], uris=[f"spiffe://fleet/{uri}"], signer=signer)
    return Files.write(folder, f"{kind}-{name}", certificate_pem(leaf), LEAF_KEY)


def trusting(signer: Signer, client: Files | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=certificate_pem(signer.certificate).decode())
    if client is not None:
        context.load_cert_chain(client.certificate, client.key)
    return context


async def hello(_: Call) -> aiohttp.web.StreamResponse:
    return json_answer({"text": "hello"})


SCHEMA = object_of({"text": TEXT})


def served(node: Files, **changes: object) -> HttpServer:
    revocations = changes.pop("revocations", None)
    routes = [
        Route(path="/instances/{id}/hello", summary="", answer=hello, scope=READ_DATA, schema=SCHEMA),
        Route(path="/counts", summary="", answer=hello, scope=READ_METRICS, schema=SCHEMA),
        livez_route(),
    ]
    chosen = options(tls_cert=node.certificate, tls_key=node.key, access=AccessOptions(fleet="fleet"), **changes)
    return HttpServer(chosen, routes=routes, title="Toy", revocations=revocations)  # type: ignore[arg-type]


async def common_name(client: Client) -> str:
    """Whose certificate the server shows to a new connection."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", client.server.port, ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    return identity_of(shown).name


async def test_old_tls_and_plain_http_are_not_served(tmp_path: Path) -> None:
    nodes = authority("node")
    async with serving(served(node_files(tmp_path, nodes, "a")), trusting=trusting(nodes)) as client:
        assert (await client.ask("/livez")).json == {"status": "ok"}
        assert (await client.ask("/counts", headers={})).status == 401
        old = trusting(nodes)
        old.minimum_version = ssl.TLSVersion.TLSv1_2
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        async with client.session.get(client.url("/livez"), ssl=old) as response:
            assert response.status == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", client.server.port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(patient(10)):
            assert await reader.read() == b""
        writer.close()


async def test_a_certificate_speaks_for_its_holder(tmp_path: Path) -> None:
    nodes, boats = authority("node"), authority("boat")
    ca = tmp_path / "clients.crt"
    ca.write_bytes(certificate_pem(boats.certificate))
    revoked = tmp_path / "revoked"
    revoked.write_text("# nobody\n")
    server = served(
        node_files(tmp_path, nodes, "a"), tls_client_ca=ca, revocations=RevocationList(revoked, now_us=NOW_US)
    )
    async with serving(server, key=None, trusting=trusting(nodes)) as client:
        # Showing one is optional: the rest is for who has a token.
        assert (await client.ask("/livez")).status == 200
        assert (await client.ask("/counts")).status == 401
        boat = trusting(nodes, client_files(tmp_path, boats, "boat/tug"))
        assert (await client.ask("/instances/tug/hello", ssl=boat)).status == 200
        assert (await client.ask("/instances/other/hello", ssl=boat)).status == 404
        answer = await client.ask("/counts", ssl=boat)
        assert (answer.status, READ_METRICS in answer.json["detail"]) == (403, True)
        operator = trusting(nodes, client_files(tmp_path, boats, "operator/alice"))
        for path in ("/instances/tug/hello", "/instances/other/hello", "/counts"):
            assert (await client.ask(path, ssl=operator)).status == 200
        node = trusting(nodes, client_files(tmp_path, boats, "node/n1"))
        assert (await client.ask("/instances/tug/hello", ssl=node)).status == 403
        revoked.write_text("abcdef stolen\n")

        async def is_refused() -> bool:
            return (await client.ask("/counts", ssl=operator)).status != 200

        await wait_until(is_refused, "the revoked certificate is refused")
        answer = await client.ask("/counts", ssl=operator)
        assert (answer.status, answer.json["error"]) == (401, "certificate_revoked")
        # Of another authority: the handshake fails.
        stranger = trusting(nodes, client_files(tmp_path, authority("boat"), "operator/mallory"))
        with pytest.raises(aiohttp.ClientError):
            await client.ask("/livez", ssl=stranger)


async def test_a_new_certificate_is_shown_without_a_restart_and_half_of_one_is_not(tmp_path: Path) -> None:
    nodes = authority("node")
    current = Files(tmp_path / "server.crt", tmp_path / "server.key")
    first, second = node_files(tmp_path, nodes, "first"), node_files(tmp_path, nodes, "second")
    current.certificate.write_bytes(first.certificate.read_bytes())
    current.key.write_bytes(first.key.read_bytes())
    server = served(current)
    async with serving(server, trusting=trusting(nodes)) as client:
        assert server.tls is not None
        assert await common_name(client) == "first"
        current.certificate.write_bytes(second.certificate.read_bytes())
        assert not server.tls.refresh()
        assert "belong together" in (server.problem or "")
        assert await common_name(client) == "first"
        current.key.write_bytes(second.key.read_bytes())
        # Nobody tells the server: it looks by itself.

        async def is_new() -> bool:
            return await common_name(client) != "first"

        await wait_until(is_new, "the new certificate is shown")
        assert await common_name(client) == "second"
        assert server.problem is None
        current.key.unlink()
        assert not server.tls.refresh()
        assert await common_name(client) == "second"
        assert (await client.ask("/livez")).status == 200


def test_a_pair_that_does_not_belong_together_does_not_start(tmp_path: Path) -> None:
    nodes = authority("node")
    one, other = node_files(tmp_path, nodes, "one"), node_files(tmp_path, nodes, "other")
    for certificate, key in (
        (one.certificate, other.key),
        (one.certificate, tmp_path / "missing"),
        (one.key, one.key),
    ):
        with pytest.raises(InvalidConfig, match=r"http\.tls"):
            ServerTls(certificate=certificate, key=key)
