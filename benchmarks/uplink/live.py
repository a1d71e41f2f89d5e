"""Live: how fast one boat goes flat out against bare gRPC, and how long a frame waits for its ack on a busy bus.

Flat out, the frames of a round lie in journal and ring before the clock starts; what is timed is everything from
there: blocks are made, sent over mTLS, checked, stored, synced and acked. The floor moves messages of the same
sizes through bare grpcio in the same run, with the same number unanswered.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from pathlib import Path

from benchmarks.kits.measure import Results, Rounds, largest_spread, speed_against
from benchmarks.kits.traffic import bus_frames
from benchmarks.kits.uplink_parties import (
    UNLIMITED_FRAMES,
    BenchBoat,
    Fleet,
    no_limits,
    percentile,
    running_cloud,
    sailing,
    wait_until,
)
from benchmarks.uplink.floor import FloorClient, start_floor
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import codec_for, encode_frames
from tidelog.codecs import uplink_codec as codec
from tidelog.core.uplink.messages import LiveAck, LiveData
from tidelog.core.uplink.sender import SenderConfig
from tidelog.storage.log.writer import wall_clock_us

BLOCK_FRAMES = 64
WINDOW_BLOCKS = 64
"""Flat out, so that both sides are busy all the time; a real bus needs four."""
_BUS_FRAMES = 8_000
_SYNC_BYTES = 4096


def measure_live(folder: Path, fleet: Fleet, *, blocks: int, rounds: int) -> Results:
    """`live_vs_grpc` and the numbers behind it."""
    floor = start_floor(fleet, folder)
    try:
        with running_cloud(fleet, folder / "live", *no_limits()) as cloud:
            ours, bare = asyncio.run(_race(folder, fleet, cloud.port, floor.port, blocks=blocks, rounds=rounds))
    finally:
        floor.stop()
    frames = blocks * BLOCK_FRAMES
    return {
        "live_vs_grpc": speed_against(ours, bare),
        "live_frames_per_s": round(frames / ours.median),
        "grpc_frames_per_s": round(frames / bare.median),
        "live_block_frames": BLOCK_FRAMES,
        "live_window_blocks": WINDOW_BLOCKS,
        "live_spread": largest_spread(ours, bare),
    }


async def _race(
    folder: Path, fleet: Fleet, cloud_port: int, floor_port: int, *, blocks: int, rounds: int
) -> tuple[Rounds, Rounds]:
    frames = bus_frames(blocks * BLOCK_FRAMES)
    messages = _messages(frames)
    config = SenderConfig(
        live_window_blocks=WINDOW_BLOCKS, live_block_frames_max=BLOCK_FRAMES, max_live_lag=UNLIMITED_FRAMES
    )
    boat = BenchBoat(
        folder / "live-boat",
        fleet.target("live-boat", cloud_port),
        config=config,
        ring_frames=len(frames),
    )
    ours: list[float] = []
    bare: list[float] = []
    client = FloorClient(fleet.target("floor-boat", floor_port))
    try:
        async with sailing(boat):
            for number in range(-1, rounds):
                bare_s = await client.move(messages, window=WINDOW_BLOCKS)
                our_s = await _ship(boat, frames)
                if number >= 0:  # the first round of each only warms up
                    bare.append(bare_s)
                    ours.append(our_s)
    finally:
        await client.close()
    return Rounds(tuple(ours)), Rounds(tuple(bare))


async def _ship(boat: BenchBoat, frames: FrameColumns) -> float:
    """Seconds from the word that there are frames until all of them are acked."""
    boat.record_many(frames)
    done = asyncio.Event()

    def note(ack: LiveAck) -> None:
        if ack.cursor >= boat.journal.head:
            done.set()

    boat.uplink.on_live_ack = note
    start = time.perf_counter()
    boat.client.notify()
    async with asyncio.timeout(120):
        await done.wait()
    return time.perf_counter() - start


def _messages(frames: FrameColumns) -> list[bytes]:
    """What a boat sends for these frames."""
    messages = []
    for start in range(0, len(frames), BLOCK_FRAMES):
        part = frames.slice(start, start + BLOCK_FRAMES)
        made = encode_frames(part, base_seq=start + 1, producer=bytes(16), codec=codec_for(part), level=1)
        messages.append(codec.encode_live(LiveData(session=1, seqs=made.maker.seqs, block=made.buffers)))
    return messages


def measure_acks(folder: Path, fleet: Fleet, *, seconds: float, frames_per_s: int) -> Results:
    """`ack_p99_ms`: from handing a frame to the boat until its ack, beside the price of a sync."""
    syncs = _sync_ms(folder)
    with running_cloud(fleet, folder / "acks") as cloud:
        waits = asyncio.run(_sail(folder, fleet, cloud.port, seconds=seconds, frames_per_s=frames_per_s))
    syncs += _sync_ms(folder)
    waits_ms = [1000 * wait for wait in waits]
    return {
        "ack_p50_ms": round(percentile(waits_ms, 0.5), 2),
        "ack_p99_ms": round(percentile(waits_ms, 0.99), 2),
        "ack_max_ms": round(max(waits_ms), 2),
        "fsync_p99_ms": round(percentile(syncs, 0.99), 2),
        "ack_frames": len(waits),
        "ack_frames_per_s": frames_per_s,
    }


async def _sail(folder: Path, fleet: Fleet, port: int, *, seconds: float, frames_per_s: int) -> list[float]:
    """How long each frame waited. Frames come at an even pace, as a bus gives them; the journal flushes as ever."""
    rows = [(can_id, payload) for _, can_id, payload in bus_frames(_BUS_FRAMES, fast_packets=True).rows()]
    boat = BenchBoat(folder / "ack-boat", fleet.target("ack-boat", port), config=SenderConfig())
    waiting: deque[tuple[int, float]] = deque()
    waits: list[float] = []

    def note(ack: LiveAck) -> None:
        now = time.perf_counter()
        while waiting and waiting[0][0] <= ack.committed_through:
            waits.append(now - waiting.popleft()[1])

    async with sailing(boat):
        boat.uplink.on_live_ack = note
        start = time.perf_counter()
        total, sent = int(seconds * frames_per_s), 0
        while sent < total:
            due = min(total, int((time.perf_counter() - start) * frames_per_s) + 1)
            for _ in range(sent, due):
                can_id, payload = rows[sent % len(rows)]
                waiting.append((boat.record(wall_clock_us(), can_id, payload), time.perf_counter()))
                sent += 1
            boat.client.notify()
            if (now_us := wall_clock_us()) >= boat.journal.wake_at_us():
                boat.journal.wake(now_us)
            await asyncio.sleep(max(0.0, start + sent / frames_per_s - time.perf_counter()))
        await wait_until(lambda: not waiting, "the last ack")
    return waits


def _sync_ms(folder: Path, samples: int = 200) -> list[float]:
    """Milliseconds of single appends of 4 KiB, each synced."""
    page = os.urandom(_SYNC_BYTES)
    taken = []
    descriptor = os.open(folder / "fsync", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for _ in range(samples):
            start = time.perf_counter()
            os.write(descriptor, page)
            os.fdatasync(descriptor)
            taken.append(1000 * (time.perf_counter() - start))
    finally:
        os.close(descriptor)
    return taken
