"""The base of every error: what a caller may decide by."""

from __future__ import annotations

from typing import Any, ClassVar


class LogError(Exception):
    """Base of everything Tidelog raises on purpose."""

    code: ClassVar[str] = "log_error"
    """Stable; travels on the wire and names the row in docs/errors.md."""
    retriable: ClassVar[bool] = False
    definite: ClassVar[bool] = True

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors are built by keyword, so the default (class, args) recipe would not rebuild them
        # on the far side of a pickle (Spark workers, process pools).
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(cls: type[LogError], args: tuple[Any, ...], state: dict[str, Any]) -> LogError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
