"""Who takes part in an uplink benchmark: authorities, a cloud process, and a boat on this event loop.

The cloud is the real `tidelog cloud` in a process of its own, with mTLS and its store on disk. The boat is the real
journal, ring, `BoatUplink` and `UplinkClient`; only the bus is missing, and the benchmark records the frames.

What a caller must keep: one `BenchBoat` per journal folder, opened and closed on the same event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import secrets
import select
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidelog.blocks.columns import FrameColumns
from tidelog.core.uplink.messages import BackfillAck, LiveAck, ToBoat
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.journal.journal import Journal, JournalOptions, open_journal
from tidelog.edge.journal.ring import Ring
from tidelog.edge.uplink.client import UplinkClient
from tidelog.edge.uplink.target import UplinkTarget
from tidelog.edge.uplink.uplink import BoatUplink, Out
from tidelog.pki.certificates import (
    AuthorityOptions,
    LeafOptions,
    certificate_pem,
    key_pem,
    make_authority,
    make_leaf,
    new_key,
)
from tidelog.pki.identity import Identity, Kind
from tidelog.storage.log.writer import steady_clock_ms, wall_clock_us
from tidelog.storage.os_disk import OsDisk

HOST = "127.0.0.1"
_KINDS: tuple[Kind, ...] = ("boat", "node")
UNLIMITED_FRAMES = 1_000_000_000
"""A rate that no limiter will ever meet."""
_START_S_MAX = 60.0
_STOP_S_MAX = 30.0
_DEADLINE_S = 120.0


class PartyFailed(RuntimeError):
    """A process of the benchmark did not come up, or a condition was not met in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """PEM bytes of one party, and of the authority it trusts."""

    certificate: bytes
    key: bytes
    trusted: bytes


class Fleet:
    """Both authorities of a cloud, in memory; issues certificates as they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        now_us = wall_clock_us()
        self._signers = {
            kind: make_authority(AuthorityOptions(kind=kind), now_us=now_us, random_bytes=secrets.token_bytes)
            for kind in _KINDS
        }
        self.node = self._issue(Identity("node", "cloud-1"), trusted="boat", server_names=[HOST])

    def boat(self, name: str) -> Credentials:
        return self._issue(Identity("boat", name), trusted="node")

    def _issue(self, identity: Identity, *, trusted: Kind, server_names: Sequence[str] = ()) -> Credentials:
        key = new_key()
        certificate = make_leaf(
            LeafOptions(identity=identity, server_names=server_names),
            signer=self._signers[identity.kind],
            fleet=AuthorityOptions(kind=identity.kind).fleet,
            public_key=key.public_key(),
            now_us=wall_clock_us(),
            random_bytes=secrets.token_bytes,
        )
        return Credentials(
            certificate=certificate_pem(certificate),
            key=key_pem(key),
            trusted=certificate_pem(self._signers[trusted].certificate),
        )

    def target(self, name: str, port: int) -> UplinkTarget:
        """How a new boat of this name reaches the cloud on this machine."""
        mine = self.boat(name)
        return UplinkTarget(
            address=f"{HOST}:{port}",
            instance=name,
            certificate=mine.certificate,
            key=mine.key,
            authority=mine.trusted,
        )

    def write_node(self) -> tuple[Path, Path, Path]:
        """The cloud's certificate, key and the authority of its boats, as files."""
        paths = self.folder / "node.crt", self.folder / "node.key", self.folder / "client-ca.crt"
        for path, content in zip(paths, (self.node.certificate, self.node.key, self.node.trusted), strict=True):
            path.touch(mode=0o600)
            path.write_bytes(content)
        return paths


class ServerProcess:
    """A process that listens: knows its port, its memory and its processor time."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=output)
        try:
            self.port = self._wait_port()
        except BaseException:
            self.stop()
            raise

    def _wait_port(self) -> int:
        give_up = time.monotonic() + _START_S_MAX
        while time.monotonic() < give_up and self._process.poll() is None:
            found = re.search(r"port=(\d+)", self.said())
            if found:
                return int(found[1])
            select.select([], [], [], 0.02)
        raise PartyFailed(f"{self._process.args!r} did not start; its last words: {self.said()[-2000:] or 'none'}")

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def processor_s(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        """Resident memory now."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def stop(self) -> None:
        """Ask for a clean stop; insist if it takes too long."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def running_cloud(fleet: Fleet, data: Path, *settings: str) -> Iterator[ServerProcess]:
    """`tidelog cloud` over mTLS on a free port, with more settings if given."""
    certificate, key, boats = fleet.write_node()
    command = [
        sys.executable,
        "-m",
        "tidelog.cli",
        "cloud",
        "-http-listen",
        "off",
        "-grpc-listen",
        f"{HOST}:0",
        "-data-dir",
        str(data),
    ]
    command += ["-tls-cert", str(certificate), "-tls-key", str(key), "-tls-client-ca", str(boats), *settings]
    cloud = ServerProcess(command, data.with_suffix(".log"))
    try:
        yield cloud
    finally:
        cloud.stop()


def no_limits() -> tuple[str, ...]:
    """Settings of a cloud that takes whatever a boat can send."""
    most = str(UNLIMITED_FRAMES)
    return (
        "-replication-rate-limit",
        most,
        "-replication-rate-burst",
        most,
        "-replication-max-live-lag",
        most,
    )


class TimedUplink(BoatUplink):
    """The real thing; tells somebody of every ack when it arrives."""

    on_live_ack: Callable[[LiveAck], None] | None = None
    on_backfill_ack: Callable[[BackfillAck], None] | None = None

    def receive(self, message: ToBoat, now_ms: int, *, now_us: int | None = None) -> list[Out]:
        out = super().receive(message, now_ms, now_us=now_us)
        if isinstance(message, LiveAck) and self.on_live_ack is not None:
            self.on_live_ack(message)
        elif isinstance(message, BackfillAck) and self.on_backfill_ack is not None:
            self.on_backfill_ack(message)
        return out


class BenchBoat:
    """A journal and its uplink. Frames are recorded by hand, then `client.notify()`."""

    def __init__(
        self,
        folder: Path,
        target: UplinkTarget,
        *,
        config: SenderConfig,
        ring_frames: int = 65_536,
        journal: JournalOptions | None = None,
    ) -> None:
        self.journal: Journal = open_journal(
            OsDisk(str(folder)),
            "journal",
            now_us=wall_clock_us(),
            new_lineage=lambda: uuid.uuid4().bytes,
            options=journal,
        )
        self.ring = Ring(frames_max=ring_frames)
        now_ms = steady_clock_ms()
        self.uplink = TimedUplink(
            journal=self.journal, ring=self.ring, config=config, jitter=lambda: 0.5, now_ms=now_ms
        )
        self.troubles: list[str] = []
        self.client = UplinkClient(uplink=self.uplink, target=target, log=self._note)

    def _note(self, line: str) -> None:
        """That it is connected is no trouble."""
        if not line.startswith("uplink up"):
            self.troubles.append(line)

    def record(self, time_us: int, can_id: int, payload: bytes) -> int:
        """One frame as a boat takes it: into the journal, then into the ring."""
        seq = self.journal.record(time_us, can_id, payload, time_us)
        self.ring.append(seq, time_us, can_id, payload)
        return seq

    def record_many(self, frames: FrameColumns) -> range:
        """Many frames at once. They are on disk when this returns."""
        seqs = self.journal.record_many(frames, wall_clock_us())
        for seq, (time_us, can_id, payload) in zip(seqs, frames.rows(), strict=True):
            self.ring.append(seq, time_us, can_id, payload)
        return seqs

    def connected(self) -> bool:
        return self.uplink.statistics().connected

    def all_acked(self) -> bool:
        return self.journal.acked >= self.journal.head


@asynccontextmanager
async def sailing(boat: BenchBoat) -> AsyncIterator[BenchBoat]:
    """The boat with its uplink running and the Handshake done; closes its journal at the end."""
    task = asyncio.ensure_future(boat.client.run())
    try:
        await wait_until(boat.connected, "the Handshake")
        yield boat
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        boat.journal.close(wall_clock_us())


async def wait_until(condition: Callable[[], bool], what: str, *, deadline_s: float = _DEADLINE_S) -> None:
    give_up = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > give_up:
            raise PartyFailed(f"not within {deadline_s:g} s: {what}")
        await asyncio.sleep(0.005)


def percentile(values: Sequence[float], fraction: float) -> float:
    """The value that `fraction` of all are not above (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]
