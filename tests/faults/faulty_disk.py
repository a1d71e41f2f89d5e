"""A disk that fails on demand, under a real process: EIO, ENOSPC or EROFS for the calls and files that a test names.

    disk = FaultyDisk(tmp_path / "control", data)
    process = subprocess.Popen(command, env=os.environ | disk.environment)
    disk.strike(errno.EIO, SYNC, part="/wal/")
    disk.heal()

`faulty_disk.c` stands between the process and its C library. It is compiled by the first test that needs it; where no
compiler is found that test is skipped, in words.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pytest

from tests.patience import patient

OPEN: Final = 1
CREATE: Final = 2
"""Making a file; with EROFS also opening one for writing."""
READ: Final = 4
WRITE: Final = 8
SYNC: Final = 16
RENAME: Final = 32
UNLINK: Final = 64
MKDIR: Final = 128
TRUNCATE: Final = 256
SPACE: Final = 512
"""Asking how much is free: nothing, with ENOSPC."""

FULL: Final = CREATE | WRITE | MKDIR | SPACE
READ_ONLY: Final = CREATE | WRITE | RENAME | UNLINK | MKDIR | TRUNCATE

_SOURCE: Final = Path(__file__).with_name("faulty_disk.c")
_HEAD: Final = struct.Struct("<I12x")
_RULE: Final = struct.Struct("<384s112sIiiiII8x")
_RULES_MAX: Final = 8
_SIZE: Final = _HEAD.size + _RULES_MAX * _RULE.size


@functools.cache
def _library() -> Path | str:
    """The compiled library, or why there is none."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return "no C compiler is installed, so no disk can be made to fail"
    target = Path(tempfile.mkdtemp(prefix="tidelog-faulty-disk-")) / "faulty_disk.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(target), str(_SOURCE), "-ldl"]
    made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=patient(120))
    return target if made.returncode == 0 else f"the C compiler does not take {_SOURCE.name}: {made.stderr[:300]}"


def require_faulty_disks() -> Path:
    """The library; skips the test where it cannot be made."""
    library = _library()
    if isinstance(library, str):
        pytest.skip(library)
    return library


class FaultyDisk:
    """`control` is made here; what lies under `data` fails as told, for processes with `environment`."""

    def __init__(self, control: Path, data: Path) -> None:
        self.data = data
        self._count = 0
        with control.open("wb") as file:
            file.truncate(_SIZE)
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self.environment = {"LD_PRELOAD": str(require_faulty_disks()), "FAULTY_DISK": str(control)}

    def strike(self, error: int, calls: int, *, part: str = "", after: int = 0, times: int = 0) -> None:
        """These calls fail from now on, on files with `part` in their path: after so many went well, so many times
        (0: until `heal`)."""
        assert self._count < _RULES_MAX, "heal first"
        prefix = os.fspath(self.data).encode()
        assert len(prefix) < 384, "the folder's path is too long for a rule"
        rule = _RULE.pack(prefix, part.encode(), calls, error, after, times, 0, 0)
        place = _HEAD.size + self._count * _RULE.size
        self._map[place : place + _RULE.size] = rule
        self._count += 1
        self._map[: _HEAD.size] = _HEAD.pack(self._count)

    def fill(self) -> None:
        self.strike(errno.ENOSPC, FULL)

    def heal(self) -> None:
        self._count = 0
        self._map[: _HEAD.size] = _HEAD.pack(0)

    @property
    def hits(self) -> int:
        """Calls that have failed since the last `strike` of a healed disk."""
        places = range(_HEAD.size, _HEAD.size + self._count * _RULE.size, _RULE.size)
        rules = [_RULE.unpack_from(self._map, place) for place in places]
        return sum(min(hits, times or hits) for *_, times, _seen, hits in rules)
