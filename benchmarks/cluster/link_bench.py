"""`tidelog bench link`: small messages, requests and large bodies between two processes over mTLS.

What every key means and what it must reach is in docs/benchmarks.md. The server is a process of its own
(`link_server`); the client is this one. Large bodies are measured in turn with a bare blocking TLS socket on the same
machine, so `bulk_vs_socket` says what the link costs, whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.cluster.link_server import CLIENT, COUNT, ECHO, HOST, NOTE, SERVER, STORE, BenchHandler, link_end
from benchmarks.kits.measure import (
    Results,
    Rounds,
    largest_spread,
    machine_facts,
    scratch_folder,
    serving_process,
    speed_against,
)
from benchmarks.kits.uplink_parties import percentile
from tidelog.errors import LinkBusy
from tidelog.pki.certificates import (
    AuthorityOptions,
    LeafOptions,
    certificate_pem,
    key_pem,
    make_authority,
    make_leaf,
    new_key,
)
from tidelog.pki.identity import Identity
from tidelog.transports.link.link import Link, dial_link
from tidelog.units import MIB

_TIMEOUT_MS: Final = 60_000
_NOTE_BYTES: Final = 48
_IN_FLIGHT: Final = 64
_BULK_IN_FLIGHT: Final = 4
_BODY_BYTES: Final = MIB
_HEARTBEAT_S: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSizes:
    messages: int = 400_000
    message_rounds: int = 5
    requests: int = 20_000
    bodies: int = 150
    """Bodies of 1 MiB per round. Many short rounds: the link and the floor then see the same load."""
    bulk_rounds: int = 15
    heartbeat_bodies: int = 2_000


FULL = LinkSizes()
QUICK = LinkSizes(messages=200_000, message_rounds=3, requests=5_000, bodies=100, bulk_rounds=9, heartbeat_bodies=800)


def bench_link(*, quick: bool = False, folder: str | None = None, sizes: LinkSizes | None = None) -> Results:
    """Measure everything; one flat object."""
    sizes = sizes or (QUICK if quick else FULL)
    with scratch_folder(folder) as scratch:
        results = machine_facts(scratch)
        results["quick"] = quick
        certificates = Path(scratch)
        write_certificates(certificates)
        with _serving("link", certificates) as port, _serving("socket", certificates) as socket_port:
            results |= asyncio.run(_measure(certificates, port, socket_port, sizes))
    return results


run = bench_link


async def _measure(folder: Path, port: int, socket_port: int, sizes: LinkSizes) -> Results:
    link = await dial_link(f"{HOST}:{port}", end=link_end(folder, CLIENT), handler=BenchHandler(), expected=SERVER)
    floor = await asyncio.to_thread(_connect_floor, folder, socket_port)
    try:
        results = await _small(link, sizes)
        results |= await _requests(link, sizes)
        results |= await _bulk(link, floor, sizes)
        results |= await _heartbeats(link, sizes)
        statistics = link.statistics()
        results |= {"rtt_ms": round(statistics.rtt_ms or 0.0, 3), "message_bytes": _NOTE_BYTES}
    finally:
        floor.close()
        await link.close()
    return results


async def _small(link: Link, sizes: LinkSizes) -> Results:
    note = bytes(_NOTE_BYTES)
    rounds = []
    for number in range(-1, sizes.message_rounds):
        begun = await _notes(link)
        start = time.perf_counter()
        left = sizes.messages
        while left:
            try:
                # A burst per turn of the loop, as many peers' messages would come about.
                for _ in range(min(left, 2_000)):
                    link.post(NOTE, note)
                    left -= 1
            except LinkBusy:
                await link.wait_room()
            await asyncio.sleep(0)
        # Small frames keep their order, so the count is asked for behind the last note.
        assert await _notes(link) - begun == sizes.messages, "LM1"
        if number >= 0:
            rounds.append(time.perf_counter() - start)
    measured = Rounds(tuple(rounds))
    return {
        "small_messages_per_s": round(sizes.messages / measured.median),
        "small_spread": largest_spread(measured),
    }


async def _notes(link: Link) -> int:
    return int(bytes(await link.request(COUNT, b"", timeout_ms=_TIMEOUT_MS)))


async def _requests(link: Link, sizes: LinkSizes) -> Results:
    took_ms: list[float] = []
    left = sizes.requests

    async def ask() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            start = time.perf_counter()
            await link.request(ECHO, bytes(_NOTE_BYTES), timeout_ms=_TIMEOUT_MS)
            took_ms.append((time.perf_counter() - start) * 1000)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(_IN_FLIGHT):
            group.create_task(ask())
    elapsed = time.perf_counter() - start
    alone_ms = []
    for _ in range(min(1_000, sizes.requests)):
        start = time.perf_counter()
        await link.request(ECHO, bytes(_NOTE_BYTES), timeout_ms=_TIMEOUT_MS)
        alone_ms.append((time.perf_counter() - start) * 1000)
    return {
        "small_requests_per_s": round(len(took_ms) / elapsed),
        "request_p50_ms": round(percentile(alone_ms, 0.5), 3),
        "request_p99_ms": round(percentile(alone_ms, 0.99), 3),
        "request_p50_ms_at_64": round(percentile(took_ms, 0.5), 3),
    }


async def _bulk(link: Link, floor: ssl.SSLSocket, sizes: LinkSizes) -> Results:
    """One way, a body at a time from memory, in turn with the floor."""
    ours, bare = [], []
    for number in range(-1, sizes.bulk_rounds):
        elapsed = await _store(link, sizes.bodies)
        bare_elapsed = await asyncio.to_thread(_send_floor, floor, sizes.bodies)
        if number >= 0:
            ours.append(elapsed)
            bare.append(bare_elapsed)
    measured, bottom = Rounds(tuple(ours)), Rounds(tuple(bare))
    megabytes = sizes.bodies * _BODY_BYTES / 1e6
    return {
        "bulk_vs_socket": speed_against(measured, bottom),
        "bulk_mb_per_s": round(megabytes / measured.median, 1),
        "socket_mb_per_s": round(megabytes / bottom.median, 1),
        "bulk_spread": largest_spread(measured, bottom),
    }


async def _store(link: Link, bodies: int) -> float:
    body = memoryview(secrets.token_bytes(_BODY_BYTES))
    left = bodies

    async def send() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await link.request(STORE, body, timeout_ms=_TIMEOUT_MS)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(_BULK_IN_FLIGHT):
            group.create_task(send())
    return time.perf_counter() - start


async def _heartbeats(link: Link, sizes: LinkSizes) -> Results:
    """Small requests every few milliseconds while large bodies go the same way."""
    took_ms: list[float] = []
    async with asyncio.TaskGroup() as group:
        bulk = group.create_task(_store(link, sizes.heartbeat_bodies))
        while not bulk.done():
            start = time.perf_counter()
            await link.request(ECHO, b"beat", timeout_ms=_TIMEOUT_MS)
            took_ms.append((time.perf_counter() - start) * 1000)
            await asyncio.sleep(_HEARTBEAT_S)
    return {
        "heartbeat_p50_ms": round(percentile(took_ms, 0.5), 3),
        "heartbeat_p99_ms": round(percentile(took_ms, 0.99), 3),
        "heartbeat_max_ms": round(max(took_ms), 3),
        "heartbeats": len(took_ms),
        "heartbeat_bulk_mb_per_s": round(sizes.heartbeat_bodies * _BODY_BYTES / 1e6 / bulk.result(), 1),
    }


def _connect_floor(folder: Path, port: int) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.load_cert_chain(folder / f"{CLIENT}.crt", folder / f"{CLIENT}.key")
    context.load_verify_locations(folder / "ca.crt")
    return context.wrap_socket(socket.create_connection((HOST, port)))


def _send_floor(floor: ssl.SSLSocket, bodies: int) -> float:
    # The same kind of body as the link carries: zeros would all be one page, and stay in the fastest cache.
    rest = secrets.token_bytes(_BODY_BYTES - 1)
    plain, last = b"\0" + rest, b"\1" + rest
    start = time.perf_counter()
    for _ in range(bodies - 1):
        floor.sendall(plain)
    floor.sendall(last)
    floor.recv(1)
    return time.perf_counter() - start


def write_certificates(folder: Path) -> None:
    """Two nodes' certificates and their authority, as files."""
    now_us = time.time_ns() // 1000
    options = AuthorityOptions(kind="node")
    signer = make_authority(options, now_us=now_us, random_bytes=secrets.token_bytes)
    (folder / "ca.crt").write_bytes(certificate_pem(signer.certificate))
    for name in (SERVER, CLIENT):
        key = new_key()
        leaf = make_leaf(
            LeafOptions(identity=Identity("node", name)),
            signer=signer,
            fleet=options.fleet,
            public_key=key.public_key(),
            now_us=now_us,
            random_bytes=secrets.token_bytes,
        )
        (folder / f"{name}.crt").write_bytes(certificate_pem(leaf))
        (folder / f"{name}.key").touch(mode=0o600)
        (folder / f"{name}.key").write_bytes(key_pem(key))


def _serving(mode: str, folder: Path) -> AbstractContextManager[int]:
    return serving_process("benchmarks.cluster.link_server", mode, str(folder))
