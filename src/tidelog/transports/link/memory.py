"""Memory for large bodies that arrive, reused once no view of it is left.

Fresh memory costs a page fault for every 4 KiB, half the price of receiving a body; so blocks go back to a pool when
the last view of them is gone. That may happen in any thread.

LY1  A block is given out again only after every view of it is gone.
LY2  The pool holds at most `bytes_max` of unused memory; more is freed.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final

import numpy

from tidelog.units import KIB, MIB

_BLOCK_BYTES_MIN: Final = 32 * KIB
_BLOCK_BYTES_MAX: Final = 10 * MIB
"""Larger bodies are rare, and would keep too much. The largest answer to a fetch fits."""
_DOUBLED_BYTES_MAX: Final = MIB
"""Up to here blocks double in size; beyond, that would waste too much, and they grow in steps of an eighth."""


class BodyMemory:
    """One for all links of a process."""

    def __init__(self, *, bytes_max: int = 32 * MIB) -> None:
        self._bytes_max = bytes_max
        self._free: dict[int, list[Any]] = {}
        self._free_bytes = 0
        self._guard = threading.RLock()  # a collection inside it may drop a view, and come back here

    @property
    def free_bytes(self) -> int:
        return self._free_bytes

    def take(self, size: int) -> memoryview:
        """`size` bytes of memory, not cleared."""
        if size > _BLOCK_BYTES_MAX:
            # Not zeroed, and pages that were never touched cost nothing: memory is used as bytes arrive.
            return numpy.empty(size, dtype=numpy.uint8).data
        block_bytes = _block_bytes(size)
        block = self._reuse(block_bytes)
        if block is None:
            block = numpy.empty(block_bytes, dtype=numpy.uint8)
        # Every view of the body holds this array, and nothing else does: it goes with the last one (LY1).
        holder = block[:size]
        weakref.finalize(holder, self._give_back, block).atexit = False
        view: memoryview = holder.data
        return view

    def _reuse(self, block_bytes: int) -> Any:
        with self._guard:
            blocks = self._free.get(block_bytes)
            if not blocks:
                return None
            self._free_bytes -= block_bytes
            return blocks.pop()

    def _give_back(self, block: Any) -> None:
        with self._guard:
            if self._free_bytes + len(block) <= self._bytes_max:
                self._free_bytes += len(block)
                self._free.setdefault(len(block), []).append(block)


def _block_bytes(size: int) -> int:
    doubled = max(_BLOCK_BYTES_MIN, 1 << (size - 1).bit_length())
    if doubled <= _DOUBLED_BYTES_MAX:
        return doubled
    step = doubled // 8
    return -(-size // step) * step
