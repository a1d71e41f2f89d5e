"""The latest frame of every (source, PGN) of a bus: the values that its gauges show now.

Folded from published frames, so it begins empty with the process and has only frames that came by Live. Bounded: a
hostile bus can use many PGNs, and then the pair that was silent for longest is dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final

import numpy as np

from tidelog.blocks.columns import FrameColumns
from tidelog.compat.captures import parts_from_can_id
from tidelog.http.filters import EVERYTHING, FrameFilter
from tidelog.http.frames import frame_seqs, time_text
from tidelog.nmea.devices import Device, Name, manufacturer_name

PAIRS_MAX: Final = 8_192

_PGN_BITS: Final = 18
_PENDING_FRAMES: Final = 4_096
_PENDING_BLOCKS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    source: int
    pgn: int
    time_us: int
    seq: int
    data: bytes


class LatestValues:
    """Folds many small blocks at once: at a request, or when enough have come."""

    def __init__(self, *, pairs_max: int = PAIRS_MAX) -> None:
        self._pairs_max = pairs_max
        self._values: OrderedDict[int, Value] = OrderedDict()
        self._pending: list[tuple[int, FrameColumns]] = []
        self._pending_frames = 0

    def receive(self, base_seq: int, frames: FrameColumns) -> None:
        self._pending.append((base_seq, frames))
        self._pending_frames += len(frames)
        if self._pending_frames >= _PENDING_FRAMES or len(self._pending) >= _PENDING_BLOCKS:
            self._fold()

    def values(self) -> list[Value]:
        """By source, then PGN."""
        self._fold()
        return [self._values[key] for key in sorted(self._values)]

    def _fold(self) -> None:
        """Loops over the pairs that sent, not over the frames."""
        if not self._pending:
            return
        frames = FrameColumns.concatenate([part for _, part in self._pending])
        seqs = np.concatenate([frame_seqs(base_seq, len(part)) for base_seq, part in self._pending])
        self._pending, self._pending_frames = [], 0
        parts = parts_from_can_id(frames.can_ids)
        keys = parts.source.astype(np.uint32) << _PGN_BITS | parts.pgn
        # `unique` finds the first place of each key; read backwards, that is the last.
        pairs, from_end = np.unique(keys[::-1], return_index=True)
        for key, distance in zip(pairs.tolist(), from_end.tolist(), strict=True):
            place = len(keys) - 1 - distance
            start, end = int(frames.payload_offsets[place]), int(frames.payload_offsets[place + 1])
            self._values[key] = Value(
                source=key >> _PGN_BITS,
                pgn=key & ((1 << _PGN_BITS) - 1),
                time_us=int(frames.times_us[place]),
                seq=int(seqs[place]),
                data=frames.payload[start:end].tobytes(),
            )
            self._values.move_to_end(key)
        while len(self._values) > self._pairs_max:
            self._values.popitem(last=False)


def values_json(
    values: Sequence[Value], devices: Sequence[Device], wanted: FrameFilter = EVERYTHING
) -> list[dict[str, object]]:
    """lplex's shape: one object per device, with its values by PGN, as far as they pass the filter."""
    by_source = {device.source: device for device in devices}
    pgns = np.array([value.pgn for value in values], dtype=np.uint32)
    sources = np.array([value.source for value in values], dtype=np.uint8)
    passed = wanted.passed(pgns, sources, lambda: devices).tolist()
    shown: dict[int, list[dict[str, object]]] = {}
    for value in compress(values, passed):
        entry: dict[str, object] = {
            "pgn": value.pgn,
            "ts": time_text(value.time_us),
            "data": value.data.hex(),
            "seq": value.seq,
        }
        shown.setdefault(value.source, []).append(entry)
    return [_device_values(source, by_source.get(source), entries) for source, entries in sorted(shown.items())]


def _device_values(source: int, device: Device | None, entries: list[dict[str, object]]) -> dict[str, object]:
    named = device is not None and device.name != 0
    answer: dict[str, object] = {"name": f"0x{device.name:016x}" if device is not None and named else "", "src": source}
    if device is not None and named:
        answer["manufacturer"] = manufacturer_name(Name.from_int(device.name).manufacturer_code)
    if device is not None and device.product.model_id:
        answer["model_id"] = device.product.model_id
    return {**answer, "values": entries}
