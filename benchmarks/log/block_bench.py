"""Frames to blocks and back: how many frames one core does in a second of its time."""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.kits.measure import Case, Results, Rounds, alternate, largest_spread, processor_timed
from benchmarks.kits.traffic import bus_frames
from tidelog.blocks.arrow import frames_to_arrow
from tidelog.blocks.block import Block, MadeBlock, iterate_blocks
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import FrameBuilder, encode_frames
from tidelog.blocks.header import Codec

BULK_FRAMES = 4_096
SEALED_FRAMES = 16_384
LIVE_FRAMES = 20
LIVE_ENCODE_FRAMES = 64

_Row = tuple[int, int, bytes]


def measure_blocks(*, bulk_blocks: int, sealed_blocks: int, live_frames: int, rounds: int) -> Results:
    """Every codec rate in turn. Data is made beforehand; each case only encodes, or only decodes."""
    bulk = [bus_frames(BULK_FRAMES, seed=number) for number in range(bulk_blocks)]
    plain = _end_to_end([encode_frames(frames) for frames in bulk])
    sealed = _end_to_end([_seal(bus_frames(SEALED_FRAMES, seed=number)) for number in range(sealed_blocks)])
    mixed_frames = [bus_frames(SEALED_FRAMES, fast_packets=True, seed=number) for number in range(sealed_blocks)]
    mixed = _end_to_end([_seal(frames) for frames in mixed_frames])
    bus = bus_frames(live_frames)
    rows = list(bus.rows())
    live = _end_to_end(
        [encode_frames(bus.slice(start, start + LIVE_FRAMES)) for start in range(0, live_frames, LIVE_FRAMES)]
    )
    work: dict[str, tuple[Callable[[], object], int]] = {
        "encode": (lambda: [encode_frames(frames) for frames in bulk], bulk_blocks * BULK_FRAMES),
        "decode": (lambda: _decode_each(plain), bulk_blocks * BULK_FRAMES),
        "decode_delta": (lambda: _decode_each(sealed), sealed_blocks * SEALED_FRAMES),
        "decode_delta_mixed": (lambda: _decode_each(mixed), sealed_blocks * SEALED_FRAMES),
        "encode_delta": (lambda: [_seal(frames) for frames in mixed_frames], sealed_blocks * SEALED_FRAMES),
        "encode_live": (lambda: _encode_live(rows, LIVE_ENCODE_FRAMES), live_frames),
        "encode_live_20": (lambda: _encode_live(rows, LIVE_FRAMES), live_frames),
        "encode_live_1000": (lambda: _encode_live(rows, 1000), live_frames),
        "decode_live": (lambda: frames_to_arrow(list(iterate_blocks(live))), live_frames),
    }
    wall_s: list[float] = []
    measured = alternate({name: _case(run, wall_s) for name, (run, _) in work.items()}, rounds=rounds, warm_up=False)
    results: Results = {f"{name}_frames_per_s": _rate(measured[name], frames) for name, (_, frames) in work.items()}
    # 1.0 on an idle machine. Far above it, the wall clock would have shown rates lower by this factor.
    results["codec_wall_vs_processor"] = round(sum(wall_s) / sum(sum(one.seconds) for one in measured.values()), 3)
    results["codec_spread"] = largest_spread(*measured.values())
    return results


def _case(run: Callable[[], object], wall_s: list[float]) -> Case:
    def case() -> float:
        start = time.perf_counter()
        processor_s = processor_timed(run)
        wall_s.append(time.perf_counter() - start)
        return processor_s

    run()  # warm-up
    return case


def _rate(measured: Rounds, frames: int) -> int:
    return round(frames / measured.median)


def _seal(frames: FrameColumns) -> MadeBlock:
    return encode_frames(frames, delta=True, codec=Codec.ZSTD)


def _end_to_end(blocks: list[MadeBlock]) -> bytes:
    """Stamped blocks as they lie in a segment."""
    parts: list[bytes] = []
    base_offset = 0
    for made in blocks:
        block = made.stamp(
            base_offset=base_offset, channel_id=1, leader_epoch=1, append_time_us=0, durable_end=base_offset, path=0
        )
        parts.append(block.tobytes())
        base_offset = block.offsets.stop
    return b"".join(parts)


def _decode_each(data: bytes) -> None:
    """One Arrow batch a block: head and body checked, nothing skipped."""
    position = 0
    while position < len(data):
        block = Block.parse(data, position)
        frames_to_arrow([block])
        position += block.size


def _encode_live(rows: list[_Row], block_frames: int) -> None:
    """One frame at a time, as a bus delivers them; a block as soon as it is full."""
    builder = FrameBuilder()
    for time_us, can_id, payload in rows:
        builder.append(time_us, can_id, payload)
        if len(builder) == block_frames:
            encode_frames(builder.take())
    if len(builder):
        encode_frames(builder.take())
