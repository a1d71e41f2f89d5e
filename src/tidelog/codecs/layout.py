"""Where the numbers of a message lie in its bytes: one declaration for both ways.

A codec names the fields of each of its messages once, in the order of the bytes. What stands before them (a kind, a
count) and after them (texts, blocks) is the codec's own, as are the checks of what it reads. Little-endian.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from struct import Struct
from typing import Any, Final

_NONE: Final[Mapping[str, int]] = {}


class Layout:
    """A head whose values the codec gives, then the message's own numbers, each of eight bytes unless `shape` says
    otherwise; and the flags of the message, as bits of one of the head's numbers."""

    __slots__ = ("_get", "_is_single", "flags", "flags_known", "message", "names", "size", "struct")

    def __init__(
        self, message: type[Any], head: str, *names: str, shape: str = "", flags: Mapping[str, int] = _NONE
    ) -> None:
        self.message = message
        self.names = names
        self.flags = flags
        self.flags_known = sum(flags.values())
        self.struct = Struct(f"<{head}{shape or 'Q' * len(names)}")
        self.size = self.struct.size
        self._get = attrgetter(*names)
        self._is_single = len(names) == 1

    def pack(self, message: Any, *head: int) -> bytes:
        """The head and the numbers as bytes."""
        numbers = self._get(message)
        return self.struct.pack(*head, numbers) if self._is_single else self.struct.pack(*head, *numbers)

    def flags_of(self, message: Any) -> int:
        bits = 0
        for name, bit in self.flags.items():
            if getattr(message, name):
                bits |= bit
        return bits

    def fields(self, numbers: Iterable[int], flags: int = 0) -> dict[str, Any]:
        """What a message is built with: its numbers, without the head, and its flags."""
        found: dict[str, Any] = dict(zip(self.names, numbers, strict=True))
        for name, bit in self.flags.items():
            found[name] = bool(flags & bit)
        return found
