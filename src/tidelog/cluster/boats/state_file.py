"""`state.json` and `devices.json`: the state of a boat on disk, for operators and as a checkpoint.

The cursor and the holes come from the channel's log and from nowhere else. These files only show them, and save a
restarted cloud from reading logs that are not used. So a file that is missing, damaged, older than the log or plainly
wrong is ignored.

SF1  A file is replaced as a whole: temporary file, sync, rename, sync of the folder.
SF2  `snapshot` is a hint where folding may start; it is ignored if there is no fold snapshot there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tidelog.cluster.boats.view import InstanceStatus
from tidelog.errors import DiskError, InvalidConfig
from tidelog.nmea.devices import SOURCES_MAX, Device, Product
from tidelog.storage.atomic import folder_of
from tidelog.storage.disk import Disk
from tidelog.storage.store.names import escape_name
from tidelog.units import format_time_us, parse_time_us

_FILE_BYTES_MAX: Final = 64 * 1024 * 1024
_NEVER: Final = "0001-01-01T00:00:00Z"
_NUMBER_MAX: Final = 2**63
_UNBELIEVABLE: Final = (KeyError, TypeError, ValueError, AttributeError, InvalidConfig)
"""The errors of reading a file with unexpected content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A boat's status, and the offset up to which its log had been folded."""

    status: InstanceStatus
    log_end: int
    snapshot: int | None = None
    """Offset of the newest fold snapshot in the log (SF2)."""


def state_path(name: str) -> str:
    return f"{escape_name(name)}/state.json"


def devices_path(name: str) -> str:
    return f"{escape_name(name)}/devices.json"


def write_state(disk: Disk, saved: SavedState) -> None:
    status = saved.status
    value = {
        "id": status.id,
        "cursor": status.cursor,
        "holes": _to_json(status.holes),
        "boat_head_seq": status.head,
        "boat_journal_bytes": status.journal_bytes,
        "last_seen": _time_text(status.last_seen_us),
        "lost": _to_json(status.lost),
        "void": _to_json(status.void),
        "lineage": status.lineage,
        "session": status.session,
        "log_end": saved.log_end,
        "snapshot": saved.snapshot,
    }
    _replace(disk, state_path(status.id), value)


def read_state(disk: Disk, name: str) -> SavedState | None:
    """The saved state of this boat, or None when it is missing or invalid."""
    value = _load(disk, state_path(name))
    try:
        if not isinstance(value, dict) or value["id"] != name:
            return None
        snapshot = value.get("snapshot")
        status = InstanceStatus(
            id=name,
            connected=False,
            cursor=_number(value["cursor"]),
            head=_number(value["boat_head_seq"]),
            journal_bytes=_number(value["boat_journal_bytes"]),
            holes=_from_json(value.get("holes", ())),
            lost=_from_json(value["lost"]),
            void=_from_json(value["void"]),
            lineage=bytes.fromhex(value["lineage"]).hex(),
            session=_number(value["session"]),
            last_seen_us=0 if value["last_seen"] == _NEVER else parse_time_us(str(value["last_seen"])),
            frames_received=0,
            frames_by_live=0,
            frames_by_backfill=0,
        )
        return SavedState(
            status=status,
            log_end=_number(value["log_end"]),
            snapshot=None if snapshot is None else _number(snapshot),
        )
    except _UNBELIEVABLE:
        return None


def write_devices(disk: Disk, name: str, devices: Iterable[Device]) -> None:
    value = [
        {
            "source": device.source,
            "name": f"{device.name:016x}",
            "product": list(device.product),
            "first_seen_us": device.first_seen_us,
            "last_seen_us": device.last_seen_us,
            "packet_count": device.packet_count,
            "byte_count": device.byte_count,
        }
        for device in devices
    ]
    _replace(disk, devices_path(name), value)


def read_devices(disk: Disk, name: str) -> list[Device] | None:
    """The saved devices, or None when they are missing or invalid."""
    value = _load(disk, devices_path(name))
    try:
        if not isinstance(value, list) or len(value) > SOURCES_MAX:
            return None
        return [_device(item) for item in value]
    except _UNBELIEVABLE:
        return None


def _device(item: dict[str, Any]) -> Device:
    code, *texts = item["product"]
    source = _number(item["source"])
    if source >= SOURCES_MAX or len(texts) != len(Product._fields) - 1 or not all(type(text) is str for text in texts):
        raise ValueError(f"device {source} cannot be")
    return Device(
        source=source,
        name=int(item["name"], 16),
        product=Product(_number(code), *texts),
        first_seen_us=_time(item["first_seen_us"]),
        last_seen_us=_time(item["last_seen_us"]),
        packet_count=_number(item["packet_count"]),
        byte_count=_number(item["byte_count"]),
    )


def _replace(disk: Disk, path: str, value: object) -> None:
    """SF1."""
    text = json.dumps(value, indent=2).encode() + b"\n"
    temporary = f"{path}.tmp"
    disk.make_folder(folder_of(path))
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write_at(0, [text])
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_folder(folder_of(path))


def _load(disk: Disk, path: str) -> object:
    try:
        file = disk.open(path, writable=False)
        try:
            return json.loads(file.read_at(0, min(file.size(), _FILE_BYTES_MAX)))
        finally:
            file.close()
    except (DiskError, ValueError, RecursionError):
        return None


def _to_json(ranges: Iterable[range]) -> list[dict[str, int]]:
    return [{"start": part.start, "end": part.stop} for part in ranges]


def _from_json(items: Iterable[dict[str, Any]]) -> tuple[range, ...]:
    found = tuple(range(_number(item["start"]), _number(item["end"])) for item in items)
    if not all(found):
        raise ValueError("an empty range")
    return found


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < _NUMBER_MAX:
        raise ValueError(f"{value!r} is no count")
    return value


def _time(value: object) -> int:
    if type(value) is not int or not -_NUMBER_MAX <= value < _NUMBER_MAX:
        raise ValueError(f"{value!r} is no time")
    return value


def _time_text(time_us: int) -> str:
    """RFC 3339 as Go writes it, without trailing zeros."""
    if not time_us:
        return _NEVER
    text = format_time_us(time_us).removesuffix("Z")
    return text.rstrip("0").rstrip(".") + "Z"
