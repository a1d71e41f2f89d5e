"""The load generator of `tidelog bench fleet`: many boats in one process, without their journals.

Each boat has its own certificate, connection and sender core: Handshake, then Live with the core's window and pace, a
status every five seconds, acks. Frames come at an even pace: which seqs exist follows from the clock. Frames of a
block are made once for each number of frames and only their head is packed anew, so that fifty busy buses fit one core.

Started with one argument, a JSON file with the fields of `FleetVoyage`; prints one JSON object. With `report` it prints
"ready" first, once every boat is connected, and waits for a line on its standard input before it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import grpc

from benchmarks.kits.traffic import bus_frames
from benchmarks.kits.uplink_parties import PartyFailed, percentile, wait_until
from tidelog.blocks.block import MadeBlock
from tidelog.blocks.frames import codec_for, encode_frames
from tidelog.codecs import uplink_codec as codec
from tidelog.core.uplink.messages import Hello, LiveAck, LiveData, LiveStatus
from tidelog.core.uplink.sender import Hangup, SenderConfig, SendStatus, UplinkSender
from tidelog.edge.uplink.target import UplinkTarget
from tidelog.storage.log.writer import steady_clock_ms

_SERVICE = "/lplex.replication.v1.Replication"
_HANDSHAKE_S = 120.0
_HANDSHAKES_AT_ONCE = 16
_DRAIN_S = 60.0
_SAMPLE_SEQS = 9
"""Every ninth frame's way is timed; all of them would cost the generator more than the boats do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetVoyage:
    """What the process is told to do."""

    port: int
    names: Sequence[str]
    credentials: str
    """Folder with `<name>.crt` and `<name>.key` of each boat, and `ca.crt`."""
    frames_per_s: float
    seconds: float
    report: bool = False

    def command(self, file: Path) -> list[str]:
        file.write_text(json.dumps(asdict(self)))
        return [sys.executable, "-m", "benchmarks.uplink.fleet_boats", str(file)]


@cache
def _pattern(frame_count: int) -> MadeBlock:
    frames = bus_frames(frame_count, fast_packets=True)
    return encode_frames(frames, codec=codec_for(frames), level=1)


def _message(seqs: range, lineage: bytes) -> bytes:
    """A Live message with these seqs; only the head of the block is new."""
    made = _pattern(len(seqs)).renumbered(base_seq=seqs.start, producer=lineage)
    return codec.encode_live(LiveData(session=0, seqs=seqs, block=made.buffers))


class FleetBoat:
    """One boat: a bus that exists only as a number, a sender core, and a connection."""

    def __init__(self, name: str, target: UplinkTarget, *, frames_per_s: float) -> None:
        self._name = name
        self._target = target
        self._frames_per_s = frames_per_s
        self._lineage = os.urandom(16)
        self._sender = UplinkSender(config=SenderConfig(), jitter=lambda: 0.5, now_ms=steady_clock_ms())
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._started_s: float | None = None
        """When its bus came alive, on the clock of the event loop."""
        self._ended_s = 0.0
        self._channel: Any = None
        self._live: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._next_sample = 1
        self._holes: tuple[range, ...] = ()
        self.waits_s: list[float] = []
        self.blocks = 0
        self.disconnects = 0

    async def connect(self) -> None:
        self._sender.wake(steady_clock_ms())
        self._channel = self._target.open_channel()
        hello = Hello(head=0, lineage=self._lineage, boot_id=self._lineage)
        shake = self._channel.unary_unary(f"{_SERVICE}/Handshake")
        answer = await shake(codec.encode_hello(hello, instance=self._name), timeout=_HANDSHAKE_S)
        welcome = codec.decode_welcome(answer, rate_frames_per_s=2_000, burst_frames=500)
        self._sender.welcomed(welcome, now_ms=steady_clock_ms())
        metadata = (("x-instance-id", self._name), ("x-session", str(welcome.session)))
        self._live = self._channel.stream_stream(f"{_SERVICE}/Live")(metadata=metadata)
        self._tasks = [asyncio.ensure_future(self._write()), asyncio.ensure_future(self._read())]

    def sail(self, starts_s: float, seconds: float) -> None:
        """Frames come from `starts_s` on, on the clock of the event loop, for so long."""
        self._started_s, self._ended_s = starts_s, starts_s + seconds
        self._wake.set()

    @property
    def head(self) -> int:
        """The newest seq that exists now."""
        if self._started_s is None:
            return 0
        sailed_s = min(self._loop.time(), self._ended_s) - self._started_s
        return max(0, int(sailed_s * self._frames_per_s))

    @property
    def acked(self) -> int:
        return self._sender.cursor

    @property
    def missing(self) -> int:
        """Frames that the cloud does not hold, and ranges that it knows as holes."""
        return self.head - self._sender.cursor + len(self._holes)

    async def _write(self) -> None:
        try:
            while True:
                self._wake.clear()
                for effect in self._sender.wake(steady_clock_ms()):
                    if isinstance(effect, Hangup):
                        raise PartyFailed(effect.reason)
                    if isinstance(effect, SendStatus):
                        status = LiveStatus(session=effect.session, head=self.head, journal_bytes=0)
                        await self._live.write(codec.encode_live(status))
                seqs = self._sender.next_live(self.head, now_ms=steady_clock_ms())
                if isinstance(seqs, Hangup):
                    raise PartyFailed(seqs.reason)
                if seqs is not None:
                    self.blocks += 1
                    await self._live.write(_message(seqs, self._lineage))
                    continue
                timer = self._loop.call_at(self._look_again_s(), self._wake.set)
                await self._wake.wait()
                timer.cancel()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, PartyFailed):
            self.disconnects += 1

    def _look_again_s(self) -> float:
        """When there is something to do without an ack: the next frame, the pace, or a status."""
        now_s, now_ms = self._loop.time(), steady_clock_ms()
        waits_s = [(self._sender.wake_at_ms() - now_ms) / 1000]
        head = self.head
        if self._started_s is not None and now_s < self._ended_s and self._sender.live_position() > head:
            waits_s.append(self._started_s + (head + 1) / self._frames_per_s - now_s)
        ready_ms = self._sender.live_ready_at_ms(head, now_ms=now_ms)
        if ready_ms is not None:
            waits_s.append((ready_ms - now_ms) / 1000)
        return now_s + max(0.0, min(waits_s))

    async def _read(self) -> None:
        try:
            while (data := await self._live.read()) is not grpc.aio.EOF:
                self._acked(codec.decode_live_ack(data, session=self._sender.session))
        except grpc.aio.AioRpcError:
            pass
        self.disconnects += 1
        self._wake.set()

    def _acked(self, ack: LiveAck) -> None:
        self._sender.live_acked(ack, now_ms=steady_clock_ms())
        self._holes = ack.holes
        sailed_s = self._loop.time() - (self._started_s or 0.0)
        while self._next_sample <= ack.committed_through:
            self.waits_s.append(sailed_s - self._next_sample / self._frames_per_s)
            self._next_sample += _SAMPLE_SEQS
        self._wake.set()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for task in self._tasks:
            if not task.cancelled() and (crash := task.exception()) is not None:
                raise crash
        if self._channel is not None:
            await self._channel.close()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _target(voyage: FleetVoyage, name: str) -> UplinkTarget:
    folder = Path(voyage.credentials)
    return UplinkTarget(
        address=f"127.0.0.1:{voyage.port}",
        instance=name,
        certificate=(folder / f"{name}.crt").read_bytes(),
        key=(folder / f"{name}.key").read_bytes(),
        authority=(folder / "ca.crt").read_bytes(),
    )


async def _connect_all(boats: Sequence[FleetBoat]) -> None:
    at_once = asyncio.Semaphore(_HANDSHAKES_AT_ONCE)

    async def connect(boat: FleetBoat) -> None:
        async with at_once:
            await boat.connect()

    async with asyncio.TaskGroup() as group:
        for boat in boats:
            group.create_task(connect(boat))


async def _run(voyage: FleetVoyage) -> dict[str, object]:
    boats = [FleetBoat(name, _target(voyage, name), frames_per_s=voyage.frames_per_s) for name in voyage.names]
    loop = asyncio.get_running_loop()
    try:
        await _connect_all(boats)
        start_s = loop.time() + 0.1
        # No two buses beat together.
        spacing_s = 1 / voyage.frames_per_s / len(boats)
        for number, boat in enumerate(boats):
            boat.sail(start_s + number * spacing_s, voyage.seconds)
        processor_start, wall_start = time.process_time(), time.monotonic()
        if voyage.report:
            _say("ready")
            await loop.run_in_executor(None, sys.stdin.readline)
        else:
            await asyncio.sleep(start_s + voyage.seconds - loop.time())
            with contextlib.suppress(PartyFailed):  # then there are holes, and the summary says so
                await wait_until(lambda: not any(boat.missing for boat in boats), "the last ack", deadline_s=_DRAIN_S)
        return _summary(boats, voyage, processor_start, wall_start)
    finally:
        for boat in boats:
            await boat.close()


def _summary(
    boats: Sequence[FleetBoat], voyage: FleetVoyage, processor_start: float, wall_start: float
) -> dict[str, object]:
    waits_ms = [1000 * wait for boat in boats for wait in boat.waits_s] or [0.0]
    frames, blocks = sum(boat.head for boat in boats), sum(boat.blocks for boat in boats)
    wall_s = time.monotonic() - wall_start
    return {
        "frames": frames,
        "seconds": round(wall_s, 2),
        "frames_per_s": round(frames / max(voyage.seconds, 1e-9)) if not voyage.report else 0,
        "acked_frames_per_s": round(sum(boat.acked for boat in boats) / wall_s),
        "disconnects": sum(boat.disconnects for boat in boats),
        "holes": sum(boat.missing for boat in boats),
        "ack_p50_ms": round(percentile(waits_ms, 0.5), 1),
        "ack_p99_ms": round(percentile(waits_ms, 0.99), 1),
        "ack_max_ms": round(max(waits_ms), 1),
        "block_frames_mean": round(frames / blocks, 1) if blocks else 0.0,
        "generator_cpu_fraction": round((time.process_time() - processor_start) / wall_s, 3),
    }


def main() -> None:
    voyage = FleetVoyage(**json.loads(Path(sys.argv[1]).read_text()))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection is a file
    _say(json.dumps(asyncio.run(_run(voyage))))


if __name__ == "__main__":
    main()
