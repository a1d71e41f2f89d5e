"""A boat that cannot reach its cloud says why, once, and what to do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import ssl
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.patience import patient, wait_until
from tests.uplink.parties import HOST, BoatParty, CloudParty, Credentials, Fleet, target
from tidelog.edge.uplink.target import UplinkTarget
from tidelog.edge.uplink.trouble import own_trouble, probe
from tidelog.pki.certificates import DAY_US

NAME = "boat-001"
URI = f"spiffe://fleet/boat/{NAME}"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("fleet"))


def later(fleet: Fleet) -> Credentials:
    return fleet.crafted(common_names=[NAME], uris=[URI], begins_us=fleet.now_us + DAY_US)


BAD: dict[str, tuple[Callable[[Fleet, Path], Credentials], str, str]] = {
    "expired": (
        lambda fleet, _: fleet.crafted(
            common_names=[NAME], uris=[URI], begins_us=fleet.now_us - 20 * DAY_US, ends_us=fleet.now_us - DAY_US
        ),
        "certificate_expired: the certificate of boat boat-001 expired at",
        "renew it with `tidelog ca renew`, or set the clock",
    ),
    "not yet valid": (
        lambda fleet, _: later(fleet),
        "certificate_not_yet_valid: the certificate of boat boat-001 is valid from",
        "set the clock first",
    ),
    "unknown": (
        lambda fleet, folder: fleet.issue(NAME, authority=fleet.authority(folder / "impostor")),
        "certificate_rejected: the cloud refuses the certificate of boat-001: its authority is unknown there",
        "issue it with the boats' authority, whose ca.crt the cloud has as -tls-client-ca, and compare both clocks",
    ),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_certificate_is_named_once_with_what_to_do(tmp_path: Path, fleet: Fleet, what: str) -> None:
    """gRPC said "Socket closed", at every dial."""
    make, words, remedy = BAD[what]

    boat = BoatParty(tmp_path / "boat")
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        credentials = make(fleet, tmp_path)
        shown = [credentials]
        boat.dial_as(lambda: target(fleet, cloud.port, NAME, shown[0]))
        await wait_until(lambda: boat.uplink.statistics().dials >= 4, "it dials on")
        (line,) = boat.downs
        assert words in line
        assert remedy in line
        assert words in boat.uplink.statistics().trouble
        assert remedy in boat.uplink.statistics().trouble
        shown[0] = fleet.crafted(common_names=[NAME], uris=[URI])
        boat.record(10)
        await boat.wait_acked()
        assert boat.ups[0].startswith("uplink up session=1 ")
        assert boat.uplink.statistics().trouble == ""
        await boat.close()


@pytest.mark.parametrize("what", ["expired", "another cloud"])
async def test_a_boat_process_that_is_never_let_in_writes_one_line_about_it(
    tmp_path: Path, fleet: Fleet, what: str
) -> None:
    """However often it dials; gRPC's own lines, one for each handshake that it sees fail, stay out of it."""
    good = (lambda fleet, _: fleet.boat(NAME), "cloud_not_trusted: ", "must be the nodes' ca.crt")
    make, words, remedy = BAD.get(what, good)

    credentials = make(fleet, tmp_path)
    known = fleet if what == "expired" else Fleet(tmp_path / "other")
    trusted = (known.nodes.folder / "ca.crt").read_bytes()
    flags = ["-simulate", "1", "-http-listen", f"{HOST}:0", "-http-anonymous=true"]
    for name, data in (("cert", credentials.certificate), ("key", credentials.key), ("ca", trusted)):
        (tmp_path / name).write_bytes(data)
        (tmp_path / name).chmod(0o600)
        flags += [f"-replication-tls-{name}", str(tmp_path / name)]
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        flags += ["-replication-target", f"{HOST}:{cloud.port}", "-replication-instance-id", NAME]
        lines = await log_of_three_dials([*flags, "-journal-dir", str(tmp_path / "journal")])
    assert all(re.match(r"20\d\d-\d\d-\d\dT\S+Z (boat|http|uplink) ", line) for line in lines), lines
    (line,) = [line for line in lines if " uplink " in line]
    assert words in line
    assert remedy in line


async def log_of_three_dials(flags: list[str]) -> list[str]:
    """What a boat process writes until it was told to stop, after its third dial."""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    command = [sys.executable, "-m", "tidelog.cli", "boat", *flags]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE, env=environment)
    assert process.stderr is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(patient(30)):
            while not lines or " http up port=" not in lines[-1]:
                lines.append((await process.stderr.readline()).decode())
                assert lines[-1], "".join(lines)
            url = f"http://{HOST}:{lines[-1].partition('port=')[2].split()[0]}/replication/status"
            await asyncio.to_thread(_wait_dials, url, 3)
    finally:
        process.terminate()
        rest = await asyncio.wait_for(process.stderr.read(), patient(30))
        await process.wait()
    return lines + rest.decode().splitlines()


def _wait_dials(url: str, dials: int) -> None:
    deadline = time.monotonic() + patient(25)
    while time.monotonic() < deadline:
        with urllib.request.urlopen(url, timeout=patient(5)) as answer:
            if json.load(answer)["dials"] >= dials:
                return
        time.sleep(0.1)
    raise AssertionError(f"no {dials} dials in time")


async def test_a_cloud_of_another_authority_is_named_too(tmp_path: Path, fleet: Fleet) -> None:
    other = Fleet(tmp_path / "other")
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        shown = target(other, cloud.port, NAME)
        found = await asyncio.to_thread(probe, shown)
        assert found is not None
        assert found.code == "cloud_not_trusted"
        assert "replication.tls.ca must be the nodes' ca.crt" in str(found)


ALERTS = {
    42: ("BAD_CERTIFICATE", "compare both clocks, else issue it anew with `tidelog ca issue`"),
    43: ("UNSUPPORTED_CERTIFICATE", "it is not one for a boat: issue one with `tidelog ca issue`"),
    44: ("CERTIFICATE_REVOKED", "it is revoked: issue a new one with `tidelog ca issue`"),
    45: ("CERTIFICATE_EXPIRED", "by the cloud's clock it has expired: renew it with `tidelog ca renew`"),
    46: ("CERTIFICATE_UNKNOWN", "the cloud cannot use it: issue it anew with `tidelog ca issue`"),
    48: ("UNKNOWN_CA", "issue it with the boats' authority, whose ca.crt the cloud has as -tls-client-ca"),
    116: ("CERTIFICATE_REQUIRED", "the cloud saw none: set replication.tls cert and key"),
}
"""By the numbers of RFC 8446, 6."""


@pytest.mark.parametrize("number", ALERTS)
async def test_each_tls_alert_about_the_certificate_has_its_remedy(fleet: Fleet, number: int) -> None:
    """A proxy in front of the cloud, or another TLS library, sends the alerts that gRPC's server keeps to itself."""

    async with alerting(number) as port:
        found: Any = await asyncio.to_thread(probe, target(fleet, port, NAME))
    name, remedy = ALERTS[number]
    assert found.code == "certificate_rejected"
    assert found.alert.endswith(name)
    assert f"the cloud refuses the certificate of {NAME}: " in str(found)
    assert remedy in str(found)


async def test_an_alert_that_is_not_about_the_certificate_is_no_verdict_on_it(fleet: Fleet) -> None:
    async with alerting(40) as port:
        assert await asyncio.to_thread(probe, target(fleet, port, NAME)) is None


async def test_the_alert_of_a_server_that_knows_another_authority_is_understood(tmp_path: Path, fleet: Fleet) -> None:
    (tmp_path / "node.crt").write_bytes(fleet.node.certificate)
    (tmp_path / "node.key").write_bytes(fleet.node.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "node.crt", tmp_path / "node.key")
    context.load_verify_locations(cadata=fleet.nodes.certificate_pem.decode())
    context.verify_mode = ssl.CERT_REQUIRED

    with socket.create_server((HOST, 0)) as listening:
        shown = target(fleet, listening.getsockname()[1], NAME)
        found: Any
        found, _ = await asyncio.gather(
            asyncio.to_thread(probe, shown), asyncio.to_thread(refuse_one, listening, context)
        )
    assert found.code == "certificate_rejected"
    assert found.alert.endswith("UNKNOWN_CA")
    assert "its authority is unknown there" in str(found)


def refuse_one(listening: socket.socket, context: ssl.SSLContext) -> None:
    """One handshake as OpenSSL does it, which says in an alert why it fails."""
    plain, _ = listening.accept()
    with plain, contextlib.suppress(ssl.SSLError), context.wrap_socket(plain, server_side=True):
        pass


@contextlib.asynccontextmanager
async def alerting(number: int) -> AsyncIterator[int]:
    """A TLS server that answers every hello with this fatal alert."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(5)
        await reader.readexactly(int.from_bytes(head[3:], "big"))
        writer.write(bytes([21, 3, 3, 0, 2, 2, number]))
        writer.close()

    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_nothing_is_wrong_with_a_good_certificate_and_a_cloud_that_is_not_there(
    tmp_path: Path, fleet: Fleet
) -> None:
    async with CloudParty(tmp_path / "cloud", fleet).running() as cloud:
        good = target(fleet, cloud.port, NAME)
        assert own_trouble(good, fleet.now_us) is None
        assert await asyncio.to_thread(probe, good) is None
    assert await asyncio.to_thread(probe, good) is None
    assert own_trouble(UplinkTarget(address=f"{HOST}:1", instance=NAME, insecure_dev=True), 0) is None


def test_a_boat_whose_clock_says_1970_is_told_to_set_it(fleet: Fleet) -> None:
    found: Any = own_trouble(target(fleet, 1, NAME), 0)
    assert found.code == "certificate_not_yet_valid"
    assert "set the clock first" in str(found)
