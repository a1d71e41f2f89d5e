"""The base of every error: its message, its fields, and the facts that callers decide by.

An error class names its fields and their types, as a dataclass does, and gives a `template` that `str.format` fills
with them, or a method `_message` where that takes logic:

    class ChannelExists(LogError):
        template = "channel {channel!r} exists; open it, or delete it first"
        channel: str

    raise ChannelExists(channel="trips")
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(kw_only_default=True, eq_default=False)
@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LogError(Exception):
    """Base of everything Tidelog raises on purpose. Errors are built by keyword only."""

    code: ClassVar[str] = "log_error"
    """The name of the class in snake case. It travels on the wire and names the row in docs/errors.md: a class that is
    renamed keeps its code by an assignment of its own."""
    retriable: ClassVar[bool] = False
    definite: ClassVar[bool] = True
    template: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        if "code" not in vars(cls):
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        # Not `frozen`: raising sets the traceback and the notes of an exception.
        dataclasses.dataclass(cls, kw_only=True, eq=False, repr=False)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, list | tuple):
                setattr(self, name, list(value))  # the error keeps a copy: the caller's list may go on changing
        self.args = (self._message(),)

    def _message(self) -> str:
        return self.template.format_map(vars(self))

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors are built by keyword, so the default (class, args) recipe would not rebuild them
        # on the far side of a pickle (Spark workers, process pools).
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(cls: type[LogError], args: tuple[Any, ...], state: dict[str, Any]) -> LogError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
