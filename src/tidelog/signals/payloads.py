"""The payloads of many frames side by side: the bits of one field of all of them in one step.

Payloads of a group are gathered into a matrix of 8-byte words, one row for each frame. A field of 8, 16, 32 or
64 bits at a byte's edge is then a view into that matrix and costs nothing; any other is a shift and a mask.
Where fields lie at a different place in every frame, words are read at each frame's own place instead.

Invariants:
SP1  No read leaves the buffer: it is followed by as many zeros as the widest read needs.
SP2  Bits beyond a payload's end are of another frame; a caller checks `fitting` before it uses a field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
UInt8s = npt.NDArray[np.uint8]
Integers = npt.NDArray[Any]
Place = int | Int64s
"""A bit offset that all frames share, or one for each."""

PAYLOAD_BYTES_MAX: Final = 1785
"""The longest message of ISO 11783 transport."""

_WORD_BYTES: Final = 8
_ALIGNED: Final = {
    (8, False): "<u1", (16, False): "<u2", (32, False): "<u4", (64, False): "<u8",
    (8, True): "<i1", (16, True): "<i2", (32, True): "<i4", (64, True): "<i8",
}  # fmt: skip


def padded(values: UInt8s, bytes_max: int) -> UInt8s:
    """A copy of a values buffer that may be read `bytes_max` beyond its end (SP1)."""
    buffer = np.zeros(len(values) + bytes_max + 3 * _WORD_BYTES, dtype=np.uint8)
    buffer[: len(values)] = values
    return buffer


@dataclass(frozen=True, slots=True)
class Unique:
    """Byte strings without repetition, and which one each row has."""

    strings: list[bytes]
    which: npt.NDArray[np.intp]


class Payloads:
    """The payloads of one group of frames, in a buffer made by `padded`."""

    def __init__(self, buffer: UInt8s, starts: Int64s, lengths: Int64s) -> None:
        self._buffer = buffer
        self._starts = starts
        self.bits = lengths * 8
        self.bits_min = int(self.bits.min(initial=1 << 62))
        bytes_max = int(lengths.max(initial=0))
        self._stride = max(1, -(-bytes_max // _WORD_BYTES)) * _WORD_BYTES
        self._words_at: npt.NDArray[np.uint64] = np.ndarray(
            (len(buffer) - _WORD_BYTES + 1,), dtype="<u8", buffer=buffer, strides=(1,)
        )
        self._matrix = self._gather()

    def __len__(self) -> int:
        return len(self._starts)

    def _gather(self) -> npt.NDArray[np.uint64]:
        words = self._stride // _WORD_BYTES
        # Two words more, so that the last row can be read across its end as the others can.
        flat = np.zeros(len(self) * words + 2, dtype=np.uint64)
        matrix = flat[: len(self) * words].reshape(len(self), words)
        for word in range(words):
            matrix[:, word] = self._words_at[self._starts + word * _WORD_BYTES]
        return flat

    def fitting(self, rows: Int64s | None, place: Place, length: int) -> Int64s | None:
        """The rows (of `rows`, None for all) whose payloads hold the field; None for all there are."""
        if isinstance(place, int) and rows is None and place + length <= self.bits_min:
            return None
        bits = self.bits if rows is None else self.bits[rows]
        inside = bits >= place + length
        if inside.all():
            return rows
        found = np.flatnonzero(inside)
        return found if rows is None else rows[found]

    def raw(self, rows: Int64s | None, place: Place, length: int, *, signed: bool = False) -> Integers:
        """A field of at most 64 bits, of all rows or of some; `place` is one for all or one for each of them."""
        if isinstance(place, int):
            values = self._raw_column(place, length, signed=signed)
            return values if rows is None else values[rows]
        starts = self._starts if rows is None else self._starts[rows]
        return _cut(*self._windows(starts, place), length, signed=signed)

    def _raw_column(self, place: int, length: int, *, signed: bool) -> Integers:
        byte, shift = divmod(place, 8)
        if shift == 0 and (length, signed) in _ALIGNED:
            return self._view(byte, _ALIGNED[length, signed])
        for width in (8, 16, 32, 64):
            if shift + length <= width:
                window = self._view(byte, _ALIGNED[width, False])
                mask = window.dtype.type((1 << length) - 1)
                raw: Integers = (window >> window.dtype.type(shift)) & mask
                return _signed(raw, length) if signed else raw
        low, high = self._view(byte, "<u8"), self._view(byte + _WORD_BYTES, "<u1")
        return _cut(low, high, np.uint64(shift), length, signed=signed)

    def _view(self, byte: int, dtype: str) -> Integers:
        return np.ndarray((len(self),), dtype=dtype, buffer=self._matrix.data, offset=byte, strides=(self._stride,))

    def _windows(self, starts: Int64s, place: Int64s) -> tuple[Integers, Integers, Integers]:
        bytes_ = starts + (place >> 3)
        # A place may lie beyond the end of the last payload; what is read there is thrown away (SP2).
        np.minimum(bytes_, len(self._words_at) - 2, out=bytes_)
        return self._words_at[bytes_], self._buffer[bytes_ + _WORD_BYTES], (place & 7).astype(np.uint64)

    def strings(self, rows: Int64s | None, place: Place, lengths: Int64s | int) -> Unique:
        """Byte strings at byte edges, `lengths` bytes each and cut at the end of the payload."""
        starts = self._starts if rows is None else self._starts[rows]
        bits = self.bits if rows is None else self.bits[rows]
        held: Int64s = np.clip((bits - place) // 8, 0, lengths).astype(np.int64)
        width = int(held.max(initial=0))
        columns = np.arange(width, dtype=np.int64)
        found = np.zeros((len(starts), width + 2), dtype=np.uint8)
        at = (starts + (np.asarray(place) >> 3))[:, None] + columns
        found[:, :width] = self._buffer[np.minimum(at, len(self._buffer) - 1)]
        found[:, :width][columns >= held[:, None]] = 0
        # Its length is part of a string, or those that differ in closing zeros would be one.
        found[:, width:] = held.astype("<u2").view(np.uint8).reshape(-1, 2)
        keys = np.ascontiguousarray(found).view(np.dtype((np.void, width + 2))).reshape(-1)
        unique, which = np.unique(keys, return_inverse=True)
        texts = [key.tobytes() for key in unique]
        return Unique([text[: int.from_bytes(text[width:], "little")] for text in texts], which.reshape(-1))


def _cut(low: Integers, high: Integers, shift: Any, length: int, *, signed: bool) -> Integers:
    raw = low >> shift
    if length > 64 - 7:
        # Up to seven bits have slid out of the window; at no shift there are none, and 64 would be no shift.
        raw |= np.where(shift > 0, high.astype(np.uint64) << (np.uint64(63) - shift) << np.uint64(1), 0).astype(
            np.uint64
        )
    raw &= np.uint64((1 << length) - 1)
    return _signed(raw, length) if signed else raw


def _signed(raw: Integers, length: int) -> Integers:
    """Two's complement of `length` bits."""
    wide = raw.astype(np.int64)
    if length == 64:
        return wide
    top = np.int64(1 << length - 1)
    result: Integers = (wide ^ top) - top
    return result
