"""Bytes on the wire: a real capture over a long link, against the same frames sent one per message as lplex does.

Both go at the same moment, each over a link of its own that delays and counts: everything from the first byte of the
connection, TLS and HTTP/2 included, both ways. The lplex side sends a `LiveFrame` per frame and a status every five
seconds, and is answered every five seconds; ours is the real boat and the real cloud.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.kits.measure import Results
from benchmarks.kits.uplink_parties import BenchBoat, Fleet, running_cloud, sailing, wait_until
from benchmarks.log.size_bench import find_captures
from benchmarks.uplink.floor import LPLEX_METHOD, start_floor
from benchmarks.uplink.link import ShapedLink, open_link
from tidelog.blocks.columns import FrameColumns
from tidelog.codecs import uplink_codec as codec
from tidelog.compat.captures import read_canboat_raw
from tidelog.core.uplink.messages import LiveStatus
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.uplink.target import UplinkTarget
from tidelog.storage.log.writer import wall_clock_us

CAPTURE = "dirona"
FRAMES_PER_S = 200
ROUND_TRIP_S = 0.1
_STATUS_S = 5.0

Row = tuple[int, bytes]


def measure_wire(folder: Path, fleet: Fleet, *, seconds: float) -> Results:
    """`wire_vs_lplex`, or null and the reason where the captures are absent."""
    captures = find_captures()
    if captures is None:
        reason = "no shared/data/nmea2000 folder above the current one; the captures are not part of the project"
        return {"wire_vs_lplex": None, "wire_vs_lplex_reason": reason}
    rows = _capture_rows(captures / f"{CAPTURE}-actisense-serial.raw", int(seconds * FRAMES_PER_S))
    floor = start_floor(fleet, folder)
    try:
        with running_cloud(fleet, folder / "wire") as cloud:
            ours, lplex = asyncio.run(_both(folder, fleet, cloud.port, floor.port, rows))
    finally:
        floor.stop()
    return {
        "wire_vs_lplex": round(sum(ours) / sum(lplex), 3),
        "wire_bytes_per_frame": round(sum(ours) / len(rows), 1),
        "wire_bytes_up_per_frame": round(ours[0] / len(rows), 1),
        "lplex_wire_bytes_per_frame": round(sum(lplex) / len(rows), 1),
        "lplex_wire_bytes_up_per_frame": round(lplex[0] / len(rows), 1),
        "wire_frames": len(rows),
        "wire_frames_per_s": FRAMES_PER_S,
        "wire_round_trip_ms": round(1000 * ROUND_TRIP_S),
        "wire_capture": CAPTURE,
    }


def _capture_rows(path: Path, count: int) -> list[Row]:
    frames = FrameColumns.concatenate(list(read_canboat_raw(path)))
    return [(can_id, payload) for _, can_id, payload in frames.slice(0, min(count, len(frames))).rows()]


async def _both(
    folder: Path, fleet: Fleet, cloud_port: int, floor_port: int, rows: list[Row]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Bytes up and down of ours, and of lplex's way."""
    async with (
        open_link(cloud_port, round_trip_s=ROUND_TRIP_S) as our_link,
        open_link(floor_port, round_trip_s=ROUND_TRIP_S) as lplex_link,
        asyncio.TaskGroup() as group,
    ):
        ours = group.create_task(_ours(folder, fleet, our_link, rows))
        lplex = group.create_task(_lplex(fleet.target("wire-lplex", lplex_link.port), lplex_link, rows))
    return ours.result(), lplex.result()


async def _ours(folder: Path, fleet: Fleet, link: ShapedLink, rows: list[Row]) -> tuple[int, int]:
    boat = BenchBoat(folder / "wire-boat", fleet.target("wire-boat", link.port), config=SenderConfig())

    def take(row: Row) -> None:
        now_us = wall_clock_us()
        boat.record(now_us, *row)
        boat.client.notify()
        if now_us >= boat.journal.wake_at_us():
            boat.journal.wake(now_us)

    async with sailing(boat):
        await _at_pace(rows, take)
        await wait_until(boat.all_acked, "the last ack")
        return link.bytes_up, link.bytes_down


async def _lplex(target: UplinkTarget, link: ShapedLink, rows: list[Row]) -> tuple[int, int]:
    channel = target.open_channel()
    call = channel.stream_stream(LPLEX_METHOD)()
    waiting: asyncio.Queue[bytes] = asyncio.Queue()
    seq = 0

    def take(row: Row) -> None:
        nonlocal seq
        seq += 1
        frame = codec.LplexFrame(seq=seq, time_us=wall_clock_us(), can_id=row[0], payload=row[1])
        waiting.put_nowait(codec.encode_live(frame))

    async def write() -> None:
        status_at = time.monotonic() + _STATUS_S
        while True:
            message = await waiting.get()
            if time.monotonic() >= status_at:
                status_at = time.monotonic() + _STATUS_S
                await call.write(codec.encode_live(LiveStatus(session=0, head=seq, journal_bytes=0)))
            await call.write(message)

    await channel.channel_ready()
    writing = asyncio.ensure_future(write())
    reading = asyncio.ensure_future(_drain(call))
    try:
        await _at_pace(rows, take)
        await asyncio.sleep(2 * ROUND_TRIP_S)
        return link.bytes_up, link.bytes_down
    finally:
        writing.cancel()
        reading.cancel()
        call.cancel()
        await asyncio.wait({writing, reading})
        await channel.close()


async def _drain(call: object) -> None:
    async for _ in call:  # type: ignore[attr-defined]
        pass


async def _at_pace(rows: list[Row], take: Callable[[Row], None]) -> None:
    """Hand over a frame at a time, evenly."""
    start = time.perf_counter()
    for number, row in enumerate(rows):
        await asyncio.sleep(max(0.0, start + number / FRAMES_PER_S - time.perf_counter()))
        take(row)
