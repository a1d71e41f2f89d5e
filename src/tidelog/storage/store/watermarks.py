"""The committed ends of channels, saved as a hint for the next start of the node (R9).

One small file for all channels, replaced as a whole. It never truncates anything and proves nothing: its reader clamps
it to the log. Missing or damaged, it is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog.errors import DiskError
from tidelog.storage.atomic import read_mark, write_mark
from tidelog.storage.disk import Disk
from tidelog.storage.store.parts import INTERNALS

WATERMARKS_PATH = f"{INTERNALS}/watermarks"
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """What the replica of one channel reads back at the next start."""

    committed_end: int
    hints: Mapping[str, int] = field(default_factory=dict)
    """Small numbers that the owner chooses."""


class Watermarks:
    """The newest watermark of each channel; `save` writes them if any has changed. One driver at a time."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._marks = _load(disk)
        self._changed = False

    def get(self, channel_id: int) -> Watermark | None:
        return self._marks.get(channel_id)

    def channels(self) -> dict[int, Watermark]:
        return dict(self._marks)

    def note(self, channel_id: int, committed_end: int, hints: Mapping[str, int] | None = None) -> None:
        mark = Watermark(committed_end=committed_end, hints=dict(hints or {}))
        if self._marks.get(channel_id) != mark:
            self._marks[channel_id] = mark
            self._changed = True

    def forget(self, channel_id: int) -> None:
        self._changed |= self._marks.pop(channel_id, None) is not None

    def save(self) -> bool:
        """Durably replace the file; False when nothing has changed since the last time.

        Raises `DiskError` (a full disk, say): the old file stays, and the next call tries again.
        """
        if not self._changed:
            return False
        rows = [[channel_id, mark.committed_end, dict(mark.hints)] for channel_id, mark in self._marks.items()]
        write_mark(self._disk, WATERMARKS_PATH, {"format": _FORMAT, "channels": rows})
        self._changed = False
        return True


def _load(disk: Disk) -> dict[int, Watermark]:
    try:
        value = read_mark(disk, WATERMARKS_PATH) or {}
    except (DiskError, ValueError):
        return {}  # a hint that cannot be read is no hint
    if value.get("format") != _FORMAT:
        return {}
    return {
        int(channel_id): Watermark(committed_end=int(committed_end), hints=hints)
        for channel_id, committed_end, hints in value["channels"]
    }
