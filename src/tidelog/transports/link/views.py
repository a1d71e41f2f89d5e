"""Adjacent pieces of a body in memory, as one piece.

A log reads many blocks into one piece of memory and gives them out as views. Sent one by one, every head and every end
of a block would be a TLS record of its own.

VW1  The bytes and their order are the same; nothing is copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


def side_by_side(pieces: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes in as few pieces as possible without a copy.

    Only writable memory is examined, like that of `BodyMemory`: for other memory Python does not give the address.
    """
    joined: list[Buffer] = []
    run: list[memoryview] = []
    run_end = 0
    for piece in pieces:
        if type(piece) is not memoryview or piece.readonly or not piece.contiguous or not piece.nbytes:
            joined += _whole(run)
            run = []
            joined.append(piece)
            continue
        address = _address(piece)
        if run and (piece.obj is not run[0].obj or address != run_end):
            joined += _whole(run)
            run = []
        run.append(piece)
        run_end = address + piece.nbytes
    return joined + _whole(run)


def _whole(run: list[memoryview]) -> list[memoryview]:
    """One view of the whole run."""
    if len(run) < 2:
        return run
    memory = memoryview(run[0].obj).cast("B")
    start = _address(run[0]) - _address(memory)
    return [memory[start : start + sum(view.nbytes for view in run)]]


def _address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
