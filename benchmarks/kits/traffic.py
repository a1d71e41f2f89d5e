"""Made-up bus traffic that compresses and decodes like the real thing.

Forty ids send at random, each with a counter, a value that wanders and bytes that stay as they are.
Without fast packets every payload has 8 bytes; with them a few ids send 19 to 223.
"""

from __future__ import annotations

import numpy as np

from tidelog.blocks.columns import FrameColumns

ID_COUNT = 40
SHORT_BYTES = 8
FAST_PACKET_BYTES = (19, 26, 43, 51, 134, 223)
FRAME_INTERVAL_US = 500
START_US = 1_700_000_000_000_000


def bus_frames(count: int, *, fast_packets: bool = False, seed: int = 1) -> FrameColumns:
    """`count` frames, about half a millisecond apart."""
    rng = np.random.default_rng(seed)
    can_ids = rng.integers(0x09F0_0000, 0x19FF_FFFF, size=ID_COUNT, dtype=np.uint32)
    id_lengths = np.full(ID_COUNT, SHORT_BYTES, dtype=np.int32)
    if fast_packets:
        id_lengths[-len(FAST_PACKET_BYTES) :] = FAST_PACKET_BYTES
    # A fast packet occupies the bus for as long as many short frames do, so long ids send rarely.
    weights = 1 / id_lengths.astype(np.float64)
    senders = rng.choice(ID_COUNT, size=count, p=weights / weights.sum())
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(id_lengths[senders], out=offsets[1:])
    payload = np.empty(int(offsets[-1]), dtype=np.uint8)
    for sender in range(ID_COUNT):
        rows = np.flatnonzero(senders == sender)
        length = int(id_lengths[sender])
        content = np.tile(rng.integers(0, 256, size=length, dtype=np.uint8), (len(rows), 1))
        content[:, 0] = np.arange(len(rows)) & 0xFF
        content[:, 2] += np.cumsum(rng.integers(-2, 3, size=len(rows))).astype(np.uint8)
        content[:, 4] += rng.integers(0, 8, size=len(rows), dtype=np.uint8)
        payload[offsets[rows][:, None] + np.arange(length, dtype=np.int32)] = content
    steps = rng.integers(1, 2 * FRAME_INTERVAL_US, size=count)
    return FrameColumns(
        times_us=START_US + np.cumsum(steps, dtype=np.int64),
        can_ids=can_ids[senders],
        payload_offsets=offsets,
        payload=payload,
    )
