"""A snapshot that arrives in chunks, until it is whole.

RG1  At most one snapshot is being received, and never more than the limit is kept.
RG2  A snapshot is passed on only when every byte is there and its checksum is right.
"""

from __future__ import annotations

import zlib

from tidelog.core.raft.messages import Snapshot, SnapshotChunk, SnapshotHead


class SnapshotReceiver:
    __slots__ = ("_buffer", "_bytes_max", "_key")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._key: tuple[SnapshotHead, int, int] | None = None
        self._buffer = bytearray()

    @property
    def received_bytes(self) -> int:
        return len(self._buffer)

    def clear(self) -> None:
        self._key = None
        self._buffer = bytearray()

    def receive(self, chunk: SnapshotChunk) -> Snapshot | None:
        """The snapshot, once it is whole. Chunks may come twice, late, or from another snapshot."""
        key = (chunk.head, chunk.size_bytes, chunk.checksum)
        if chunk.size_bytes > self._bytes_max or chunk.offset + len(chunk.data) > chunk.size_bytes:
            return None
        if key != self._key:
            self._key = key
            self._buffer = bytearray()
        if chunk.offset == len(self._buffer):
            self._buffer += chunk.data
        if len(self._buffer) < chunk.size_bytes:
            return None
        data = bytes(self._buffer)
        self.clear()
        return Snapshot(chunk.head, data) if zlib.crc32(data) == chunk.checksum else None
