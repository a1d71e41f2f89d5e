"""The devices on the bus: a registry folded from frames.

A device is known by its source address as soon as it sends; an address claim (PGN 60928) gives its 64-bit NAME, product
information (PGN 126996) the strings on its label.

Invariants:
ND1  At most one device per source, and no more than the 252 sources that can be claimed.
ND2  A new NAME on a source is a new device: nothing of the old one stays. A NAME that moves to another source takes its
     label along and leaves nothing behind.
ND3  No frame raises: what is too short to be a claim or a label only counts as a packet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from tidelog.blocks.columns import FrameColumns
from tidelog.compat.captures import parts_from_can_id
from tidelog.nmea.pgns import ISO_ADDRESS_CLAIM, PRODUCT_INFORMATION
from tidelog.units import format_time_us

SOURCES_MAX: Final = 252
"""Addresses 0 to 251; 252 and 253 are reserved, 254 is the null address and 255 is global."""

_NAME_BYTES: Final = 8
_PRODUCT: Final = struct.Struct("<HH32s40s24s32sBB")
_NMEA_VERSION: Final = 2100

MANUFACTURERS: Final = {
    78: "FW Murphy", 80: "Twin Disc", 85: "Kohler", 88: "Hemisphere GPS", 116: "BEP Marine", 135: "Airmar",
    137: "Maretron", 140: "Lowrance", 144: "Mercury Marine", 161: "Offshore Systems", 163: "Evinrude/BRP",
    168: "Xantrex", 172: "Yanmar", 174: "Volvo Penta", 229: "Garmin", 257: "Honda", 273: "Actisense", 275: "Navico",
    304: "EmpirBus", 305: "NovAtel", 306: "Sleipner", 311: "Fischer Panda", 315: "ICOM", 341: "Boening",
    355: "Mastervolt", 358: "Victron Energy", 374: "Northern Lights", 381: "B&G", 384: "Rose Point", 404: "ComNav",
    419: "Fusion", 421: "Standard Horizon", 422: "True Heading", 427: "em-trak", 431: "Tohatsu", 437: "Digital Yacht",
    440: "Cummins", 443: "VDO", 459: "Alltek Marine", 493: "Watcheye", 499: "LCJ Capteurs", 504: "Vesper Marine",
    517: "NoLand Engineering", 573: "McMurdo", 579: "KVH", 586: "Suzuki", 717: "Yacht Devices", 1850: "Teleflex",
    1851: "Raymarine", 1852: "Navionics", 1853: "Japan Radio Company", 1854: "Northstar", 1855: "Furuno",
    1856: "Trimble", 1857: "Simrad", 1862: "Yamaha", 1863: "Faria",
}  # fmt: skip
"""The ones a boat is likely to carry. Codes are given out by NMEA; an unknown one is shown by number."""


class Name(NamedTuple):
    """The fields of a 64-bit NAME."""

    unique_number: int
    manufacturer_code: int
    device_instance: int
    device_function: int
    device_class: int
    industry_group: int

    @classmethod
    def from_int(cls, name: int) -> Name:
        return cls(
            unique_number=name & 0x1F_FFFF,
            manufacturer_code=name >> 21 & 0x7FF,
            device_instance=name >> 32 & 0xFF,
            device_function=name >> 40 & 0xFF,
            device_class=name >> 49 & 0x7F,
            industry_group=name >> 60 & 7,
        )

    def to_int(self) -> int:
        """Set by a device that may take any free address (bit 63)."""
        return (
            self.unique_number & 0x1F_FFFF
            | (self.manufacturer_code & 0x7FF) << 21
            | (self.device_instance & 0xFF) << 32
            | (self.device_function & 0xFF) << 40
            | (self.device_class & 0x7F) << 49
            | (self.industry_group & 7) << 60
            | 1 << 63
        )


class Product(NamedTuple):
    """The fields of the product information that are kept."""

    product_code: int = 0
    model_id: str = ""
    software_version: str = ""
    model_version: str = ""
    model_serial: str = ""

    @classmethod
    def from_payload(cls, payload: bytes) -> Product | None:
        """None when the payload is too short to be one; what follows the fields is not looked at."""
        if len(payload) < _PRODUCT.size:
            return None
        _, code, *texts, _, _ = _PRODUCT.unpack_from(payload)
        return cls(code, *(_text(text) for text in texts))

    def to_payload(self) -> bytes:
        texts = (self.model_id, self.software_version, self.model_version, self.model_serial)
        padded = [text.encode("ascii", "replace")[:40].ljust(40, b"\xff") for text in texts]
        return _PRODUCT.pack(_NMEA_VERSION, self.product_code, *padded, 0, 1)


NO_PRODUCT: Final = Product()


def manufacturer_name(code: int) -> str:
    return MANUFACTURERS.get(code, f"Unknown ({code})")


def _text(field: bytes) -> str:
    # Padding comes as 0xFF, NUL or spaces; behind a NUL some devices leave what was in their memory.
    ends = [end for end in (field.find(b"\0"), field.find(b"\xff")) if end >= 0]
    return field[: min(ends, default=len(field))].decode("utf-8", "replace").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device, as of the last frame that was folded."""

    source: int
    name: int = 0
    """0 until it was claimed."""
    product: Product = NO_PRODUCT
    first_seen_us: int
    last_seen_us: int
    packet_count: int = 0
    byte_count: int = 0

    def to_json(self) -> dict[str, object]:
        """The shape that lplex gives its clients; what it leaves out when zero is left out here."""
        fields = Name.from_int(self.name)
        optional: dict[str, object] = {
            "unique_number": fields.unique_number,
            "model_id": self.product.model_id,
            "software_version": self.product.software_version,
            "model_version": self.product.model_version,
            "model_serial": self.product.model_serial,
            "product_code": self.product.product_code,
        }
        return {
            "src": self.source,
            "name": f"{self.name:016x}",
            "manufacturer": manufacturer_name(fields.manufacturer_code) if self.name else "",
            "manufacturer_code": fields.manufacturer_code,
            "device_class": fields.device_class,
            "device_function": fields.device_function,
            "device_instance": fields.device_instance,
            **{key: value for key, value in optional.items() if value},
            "first_seen": _short_time(self.first_seen_us),
            "last_seen": _short_time(self.last_seen_us),
            "packet_count": self.packet_count,
            "byte_count": self.byte_count,
        }


def _short_time(time_us: int) -> str:
    """RFC 3339 without trailing zeros, as Go writes it."""
    text = format_time_us(time_us)
    return text.removesuffix("Z").rstrip("0").rstrip(".") + "Z" if text.endswith("Z") else text


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChange:
    """A device that is new or has new facts; `device` is None when it left the source."""

    source: int
    device: Device | None


class DeviceRegistry:
    def __init__(self) -> None:
        self._devices: dict[int, Device] = {}

    def __len__(self) -> int:
        return len(self._devices)

    def devices(self) -> list[Device]:
        """By source."""
        return [self._devices[source] for source in sorted(self._devices)]

    def get(self, source: int) -> Device | None:
        return self._devices.get(source)

    def restore(self, devices: Iterable[Device]) -> None:
        """Start again from devices that were saved."""
        self._devices = {device.source: device for device in devices if device.source < SOURCES_MAX}

    def receive(self, frames: FrameColumns) -> list[DeviceChange]:
        """Fold frames in; returns the changes, in order. Loops over claims and labels, not over frames."""
        if not len(frames):
            return []
        parts = parts_from_can_id(frames.can_ids)
        changes: list[DeviceChange] = []
        done = 0
        for place in np.flatnonzero(np.isin(parts.pgn, (ISO_ADDRESS_CLAIM, PRODUCT_INFORMATION))).tolist():
            source = int(parts.source[place])
            if source >= SOURCES_MAX:
                continue
            # Frames before a claim are of the old device, the claim itself is the first of the new one.
            changes += self._count(frames.slice(done, place), parts.source[done:place])
            done = place
            payload = frames.payload[frames.payload_offsets[place] : frames.payload_offsets[place + 1]].tobytes()
            time_us = int(frames.times_us[place])
            if parts.pgn[place] == ISO_ADDRESS_CLAIM:
                changes += self._claim(source, time_us, payload)
            else:
                changes += self._label(source, time_us, payload)
        return changes + self._count(frames.slice(done, len(frames)), parts.source[done:])

    def forget_idle(self, now_us: int, idle_us: int) -> list[DeviceChange]:
        """Drop devices that were silent for longer than `idle_us`."""
        idle = [device.source for device in self.devices() if now_us - device.last_seen_us > idle_us]
        return [self._remove(source) for source in idle]

    def _count(self, frames: FrameColumns, sources: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> list[DeviceChange]:
        lengths = np.diff(frames.payload_offsets)
        packets = np.bincount(sources, minlength=SOURCES_MAX)
        bytes_ = np.bincount(sources, weights=lengths, minlength=SOURCES_MAX)
        changes = []
        for source in np.flatnonzero(packets[:SOURCES_MAX]).tolist():
            times_us = frames.times_us[sources == source]
            known = self._devices.get(source)
            device = known or Device(source=source, first_seen_us=int(times_us[0]), last_seen_us=int(times_us[0]))
            self._devices[source] = replace(
                device,
                last_seen_us=int(times_us[-1]),
                packet_count=device.packet_count + int(packets[source]),
                byte_count=device.byte_count + int(bytes_[source]),
            )
            if known is None:
                changes.append(DeviceChange(source=source, device=self._devices[source]))
        return changes

    def _claim(self, source: int, time_us: int, payload: bytes) -> list[DeviceChange]:
        if len(payload) < _NAME_BYTES:
            return []
        name = int.from_bytes(payload[:_NAME_BYTES], "little")
        known = self._devices.get(source)
        if name == 0 or (known is not None and known.name == name):
            return []
        before = next((device for device in self._devices.values() if device.name == name), None)
        changes = [self._remove(before.source)] if before is not None else []
        if before is not None:
            device = replace(before, source=source)
        elif known is not None and known.name == 0:
            device = replace(known, name=name)
        else:
            device = Device(source=source, name=name, first_seen_us=time_us, last_seen_us=time_us)
        return [*changes, self._set(device)]

    def _label(self, source: int, time_us: int, payload: bytes) -> list[DeviceChange]:
        product = Product.from_payload(payload)
        if product is None:
            return []
        known = self._devices.get(source)
        device = known or Device(source=source, first_seen_us=time_us, last_seen_us=time_us)
        if device.product == product:
            return []
        return [self._set(replace(device, product=product))]

    def _set(self, device: Device) -> DeviceChange:
        self._devices[device.source] = device
        assert len(self._devices) <= SOURCES_MAX, "ND1"
        return DeviceChange(source=device.source, device=device)

    def _remove(self, source: int) -> DeviceChange:
        del self._devices[source]
        return DeviceChange(source=source, device=None)


def introductions(devices: Sequence[tuple[int, Name, Product]]) -> list[tuple[int, bytes]]:
    """(can_id, payload) of a claim and a label for each (source, name, product), as the devices send them."""
    return [frame for source, name, product in devices for frame in _introduction(source, name.to_int(), product)]


def introductions_again(devices: Iterable[Device]) -> list[tuple[int, bytes]]:
    """The claims and labels of these devices, for a receiver that did not hear them."""
    return [frame for device in devices for frame in _introduction(device.source, device.name, device.product)]


def _introduction(source: int, name: int, product: Product) -> list[tuple[int, bytes]]:
    frames = []
    if name:
        claim = name.to_bytes(_NAME_BYTES, "little")
        frames.append((6 << 26 | (ISO_ADDRESS_CLAIM | 0xFF) << 8 | source, claim))
    if product != NO_PRODUCT:
        frames.append((6 << 26 | PRODUCT_INFORMATION << 8 | source, product.to_payload()))
    return frames
