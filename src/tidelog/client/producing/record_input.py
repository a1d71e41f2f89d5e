"""One record from a caller: checked, and copied to immutable bytes."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.blocks.messages import Message
from tidelog.errors import InvalidRecord


def checked_row(value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, bytes]], time_us: int) -> Message:
    """A message with immutable bytes."""
    try:
        return Message(
            time_us=_whole(time_us),
            value=None if value is None else _bytes(value),
            key=None if key is None else _bytes(key),
            headers=tuple((_text(name), _bytes(content)) for name, content in headers),
        )
    except (TypeError, ValueError) as error:
        raise InvalidRecord(
            problem=f"a record has bytes as key and value, and pairs of text and bytes: {error}"
        ) from error


def _bytes(value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} is not bytes")


def _text(name: object) -> str:
    if isinstance(name, str):
        return name
    raise TypeError(f"{type(name).__name__} is not a header's name")


def _whole(time_us: object) -> int:
    if type(time_us) is int and -(2**63) <= time_us < 2**63:
        return time_us
    raise TypeError(f"{time_us!r} is not a time in whole microseconds")
