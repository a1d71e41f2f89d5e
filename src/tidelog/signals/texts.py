"""Texts of one batch: labels, strings and hex, each kept once and referred to by a number.

A batch's texts are its own: numbers are given in the order in which texts come, so the same frames give the
same dictionary whatever the process has decoded before.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Final

NO_TEXT: Final = -1

_EPOCH: Final = date(1970, 1, 1)
_PADDING: Final = b"\xff@ \t\n\v\f\r"
_UTF16: Final = 0


class TextPool:
    """Numbers for texts."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, text: str | None) -> int:
        return NO_TEXT if text is None else self._codes.setdefault(text, len(self._codes))

    def texts(self) -> list[str]:
        """By number."""
        return list(self._codes)


def fixed_text(field: bytes) -> str | None:
    """Text in a field of fixed length: up to the first zero, without padding; None where it is empty."""
    text = field.split(b"\0", 1)[0].rstrip(_PADDING)
    if not text:
        return None
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        return text.decode("latin-1")


def lau_text(field: bytes) -> str | None:
    """Text behind its length and encoding; what is cut off at the payload's end is read as far as it goes."""
    if len(field) <= 2:
        return None
    if field[1] != _UTF16:
        return fixed_text(field[2:])
    text = field[2 : 2 + (len(field) - 2) // 2 * 2].decode("utf-16-le", "replace")
    return text.split("\0", 1)[0].rstrip("\uffff @") or None


def lz_text(field: bytes) -> str | None:
    """Text behind its length."""
    return fixed_text(field[1 : 1 + field[0]]) if field else None


def hex_text(field: bytes) -> str | None:
    return field.hex() or None


def date_text(days: int) -> str | None:
    return (_EPOCH + timedelta(days=days)).isoformat()
