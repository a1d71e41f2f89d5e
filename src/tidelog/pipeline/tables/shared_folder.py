"""Proof that a task works in the same folder as the driver: a marker that the driver has just written.

A worker that does not have the tables' file system mounted would write into a folder of its own under the same path,
without an error. So the driver writes a marker with a new name into the table's folder, and a task that does not see
it does nothing else. `committing` compares the files once more before a commit (T6).

TSF1  A task of another folder than the driver's writes nothing into it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from tidelog.errors import FolderNotShared
from tidelog.pki.files import translated

MARKER: Final = "_driver-"
_OLD_S: Final = 24 * 3600.0
"""Longer than any step takes."""

Order = TypeVar("Order")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Stranger:
    """The answer of a worker that does not see the marker."""

    host: str


@dataclass(frozen=True, slots=True)
class InSharedFolder(Generic[Order, Result]):
    """`work`, on a worker that sees the marker (TSF1). Pickled.

    It answers instead of raising: Spark would run a task that failed again, until a worker that shares the folder has
    it, and never tell of the other one.
    """

    marker: str
    work: Callable[[Order], Result]

    def __call__(self, order: Order) -> Result | Stranger:
        if not os.path.exists(self.marker):
            return Stranger(socket.gethostname())
        return self.work(order)


@contextlib.contextmanager
def marked(folder: Path) -> Iterator[str]:
    """A marker in the folder for the time of one step; its path."""
    marker = folder / f"{MARKER}{uuid.uuid4().hex}"
    with translated("write", marker):
        for old in folder.glob(f"{MARKER}*"):  # of a driver that was killed
            with contextlib.suppress(FileNotFoundError):
                if time.time() - old.stat().st_mtime > _OLD_S:
                    old.unlink()
        marker.touch()
    try:
        yield str(marker)
    finally:
        with translated("remove", marker):
            marker.unlink(missing_ok=True)


def require_shared(folder: Path, answers: Sequence[Result | Stranger]) -> list[Result]:
    """The results, if no worker is a stranger."""
    hosts = sorted({answer.host for answer in answers if isinstance(answer, Stranger)})
    if hosts:
        raise FolderNotShared(folder=str(folder), problem=f"what the driver writes is not there on {', '.join(hosts)}")
    return [answer for answer in answers if not isinstance(answer, Stranger)]
