"""Arrow's binary columns as numpy arrays and back, without a step for a single value."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.signals.payloads import Int64s, UInt8s


def binary_buffers(data: pa.Array) -> tuple[npt.NDArray[np.int32], UInt8s]:
    """Offsets from 0, and the bytes between them. A null is an empty payload."""
    if not pa.types.is_binary(data.type):
        data = data.cast(pa.binary())
    if data.null_count:
        data = data.fill_null(b"")
    _, offsets_buffer, values_buffer = data.buffers()
    if offsets_buffer is None or not len(data):
        return np.zeros(1, dtype=np.int32), np.zeros(0, dtype=np.uint8)
    offsets = np.frombuffer(offsets_buffer, dtype=np.int32)[data.offset : data.offset + len(data) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    if values_buffer is None:
        return offsets - first, np.zeros(0, dtype=np.uint8)
    return offsets - first, np.frombuffer(values_buffer, dtype=np.uint8)[first:last]


def binary_array(values: UInt8s, starts: Int64s, lengths: Int64s) -> pa.Array:
    """The stretches of `values` that begin at `starts`, as a binary column."""
    offsets = np.zeros(len(starts) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    # Byte k of the result comes from: start of its stretch + its place in the stretch.
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(int(offsets[-1]), dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values[places])]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)
