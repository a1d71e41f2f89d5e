"""The device table of the block that an .lpj writer has open: what it began with, and what was learned since.

An entry holds from a frame of the block on (`active_from`), so a device that is new needs no new block while the table
has room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidelog.blocks.lpj import LPJ_DEVICE_TABLE_BYTES_MAX, LpjDevice, lpj_device_table_bytes, lpj_space_bytes


class OpenTable:
    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.known: tuple[LpjDevice, ...] = ()
        """When the block was begun."""
        self._added: list[LpjDevice] = []
        self._gone: set[int] = set()
        """Addresses that somebody left since."""

    @property
    def entries(self) -> tuple[LpjDevice, ...]:
        return (*self.known, *self._added)

    @property
    def space_bytes(self) -> int:
        """What the table leaves for frames."""
        return lpj_space_bytes(self._block_size, lpj_device_table_bytes(self.entries))

    def begin(self, devices: Sequence[LpjDevice]) -> None:
        self.known, self._added, self._gone = tuple(devices), [], set()

    def known_with(self, device: LpjDevice) -> list[LpjDevice]:
        """The table of a new block that includes this device."""
        rest = [entry for entry in self.known if entry.source != device.source]
        return [*rest, replace(device, active_from=0)]

    def add(self, device: LpjDevice, *, frame_count: int, used_bytes: int) -> bool:
        """Add the device to the open block from its next frame on; False if there is no room."""
        entry = replace(device, active_from=frame_count)
        table_bytes = lpj_device_table_bytes((*self.entries, entry))
        space_bytes = lpj_space_bytes(self._block_size, table_bytes)
        if table_bytes > LPJ_DEVICE_TABLE_BYTES_MAX or space_bytes < max(used_bytes, self._block_size // 2):
            return False
        self._added.append(entry)
        return True

    def forget(self, source: int) -> None:
        """The address is free: from the next block on it is not listed."""
        self._gone.add(source)

    def fold(self) -> None:
        """The block was written: the next one begins with the latest entry of each address."""
        latest = {entry.source: replace(entry, active_from=0) for entry in self.entries}
        self.begin([entry for source, entry in latest.items() if source not in self._gone])
