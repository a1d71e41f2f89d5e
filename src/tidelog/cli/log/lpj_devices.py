"""Device tables for an .lpj file that is written anew: who had which address, from which frame on.

The frames tell it themselves (address claims and product information), and so do the tables of lplex blocks among them.

What a caller must keep: frames come in the order of their seqs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.lpj import LpjDevice
from tidelog.compat.captures import parts_from_can_id
from tidelog.compat.lpj import LpjWriter
from tidelog.errors import InvalidRecord
from tidelog.nmea.devices import Device, DeviceRegistry
from tidelog.nmea.pgns import ISO_ADDRESS_CLAIM, PRODUCT_INFORMATION

_TEXT_BYTES_MAX = 40


class DeviceTables:
    """Appends frames to a writer and tells it of devices where they become known."""

    def __init__(self, writer: LpjWriter) -> None:
        self._writer = writer
        self._registry = DeviceRegistry()
        self._told: dict[int, LpjDevice] = {}
        self.left_out = 0
        """Entries that did not fit into a block."""

    def append(self, frames: FrameColumns, first_seq: int, *, known: Sequence[LpjDevice]) -> None:
        """`known` is what an lplex table said of the block that the frames are of."""
        for device in known:
            # Later entries are said again by the claim among the frames that made them.
            if device.active_from == 0 and device.source not in self._told:
                self._tell(device)
        done = 0
        for place in _introductions(frames):
            self._writer.append(frames.slice(done, place), first_seq=first_seq + done)
            done = place
            for change in self._registry.receive(frames.slice(place, place + 1)):
                if change.device is None:
                    self._told.pop(change.source, None)
                    self._writer.forget_device(change.source)
                elif change.device.name:
                    self._tell(_entry(change.device))
        self._writer.append(frames.slice(done, len(frames)), first_seq=first_seq + done)

    def _tell(self, device: LpjDevice) -> None:
        if self._told.get(device.source) == device:
            return
        try:
            self._writer.add_device(device)
            self._told[device.source] = device
        except InvalidRecord:
            self.left_out += 1


def _introductions(frames: FrameColumns) -> list[int]:
    pgns = parts_from_can_id(frames.can_ids).pgn
    places: list[int] = np.flatnonzero(np.isin(pgns, (ISO_ADDRESS_CLAIM, PRODUCT_INFORMATION))).tolist()
    return places


def _entry(device: Device) -> LpjDevice:
    product = device.product

    def text(value: str) -> bytes:
        return value.encode("utf-8", "replace")[:_TEXT_BYTES_MAX]

    return LpjDevice(
        source=device.source,
        name=device.name,
        product_code=product.product_code,
        model_id=text(product.model_id),
        software_version=text(product.software_version),
        model_version=text(product.model_version),
        serial=text(product.model_serial),
    )
