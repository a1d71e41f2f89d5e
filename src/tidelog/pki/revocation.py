"""Certificates that are revoked before they expire.

The list is a text file: one serial number in hex per line, then optionally the reason; `#` begins a comment. It is
small enough to be read whole, and is read again when it has changed.

What a caller must keep: ask `require_good` for every new stream and, for running ones, at least every 30 s; show
`problem` to the operator.

V1  A list that cannot be used (unreadable, damaged, too large) changes nothing: the last good one stays in force.
    Without a last good one there is no list object, so no certificate is accepted by accident.
V2  A file is used only as a whole. A last line without its newline may be half a serial, so it counts as damage; so
    does a list with entries that is suddenly empty, since that is how a file looks while an editor saves it.
V3  A change is seen within `check_interval_us`, even one that keeps size and time stamp: a file is read again as long
    as its time stamp was too young for the clock to tell a second change from the first.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass

from tidelog.errors import BadRevocationList, CertificateRevoked
from tidelog.pki.identity import serial_hex
from tidelog.units import MIB, US_PER_S

LIST_BYTES_MAX = 8 * MIB
"""About a hundred thousand entries."""
CHECK_INTERVAL_US = US_PER_S
SETTLED_US = 2 * US_PER_S
"""Age from which a time stamp can be trusted: FAT counts in steps of two seconds."""

_SERIAL = re.compile(r"[0-9A-Fa-f]{1,40}")
_Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class RevocationStatistics:
    entries: int
    loads: int
    """How often the file was read and found good."""
    failures: int
    """How often reading it failed."""
    loaded_at_us: int
    problem: str | None
    """What is wrong with the file now; None while the list in force is the one on disk."""


def parse_serial(text: str) -> int | None:
    """A serial as people write it: hex in either case, with or without colons. None if it is not one."""
    digits = text.replace(":", "")
    if _SERIAL.fullmatch(digits) is None:
        return None
    return int(digits, 16) or None


def parse_revocations(data: bytes) -> dict[int, str]:
    """Serial to reason. Raises ValueError in an operator's words: damage on one line is damage of the list (V2)."""
    if data and not data.endswith(b"\n"):
        raise ValueError("its last line does not end with a newline, so it may be cut off")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    revoked: dict[int, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        entry, _, comment = line.partition("#")
        words = entry.split(maxsplit=1)
        if not words:
            continue
        serial = parse_serial(words[0])
        if serial is None:
            raise ValueError(f"line {number} does not begin with a serial number in hex")
        revoked[serial] = words[1].strip() if len(words) > 1 else comment.strip()
    return revoked


class RevocationList:
    """The list in force. Opening it reads the file, and raises if that is not possible (V1)."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        now_us: int,
        check_interval_us: int = CHECK_INTERVAL_US,
        bytes_max: int = LIST_BYTES_MAX,
    ) -> None:
        self._path = os.fspath(path)
        self._check_interval_us = check_interval_us
        self._bytes_max = bytes_max
        self._revoked: dict[int, str] = {}
        self._stamp: _Stamp | None = None
        self._checked_at_us = self._loaded_at_us = now_us
        self._loads = self._failures = 0
        self._problem: str | None = None
        self._reload(now_us)
        if self._problem is not None:
            raise BadRevocationList(path=self._path, problem=self._problem)

    @property
    def problem(self) -> str | None:
        """Why the file on disk is not in force, for the operator; None when it is."""
        return None if self._problem is None else f"{self._path}: {self._problem}; the list read before stays in force"

    def __len__(self) -> int:
        return len(self._revoked)

    def require_good(self, serial: int, now_us: int) -> None:
        """Raise `CertificateRevoked` if this serial is on the list."""
        self.refresh(now_us)
        if serial in self._revoked:
            raise CertificateRevoked(serial=serial_hex(serial), reason=self._revoked[serial])

    def refresh(self, now_us: int) -> bool:
        """Check the file if it is due; returns whether the list in force was replaced."""
        # A clock that was set back must not stop the checks.
        if 0 <= now_us - self._checked_at_us < self._check_interval_us:
            return False
        self._checked_at_us = now_us
        return self._reload(now_us)

    def statistics(self) -> RevocationStatistics:
        return RevocationStatistics(
            entries=len(self._revoked),
            loads=self._loads,
            failures=self._failures,
            loaded_at_us=self._loaded_at_us,
            problem=self.problem,
        )

    def _reload(self, now_us: int) -> bool:
        try:
            found = self._read(now_us)
        except OSError as error:
            return self._failed(error.strerror or str(error))
        except ValueError as error:
            return self._failed(str(error))
        self._problem = None
        if found is None:
            return False
        changed = found != self._revoked
        self._revoked = found
        self._loads += 1
        self._loaded_at_us = now_us
        return changed

    def _failed(self, problem: str) -> bool:
        self._problem = problem
        self._failures += 1
        self._stamp = None  # a file that failed is tried again, changed or not
        return False

    def _read(self, now_us: int) -> dict[int, str] | None:
        """The list on disk; None if it is the one that was read last."""
        # Non-blocking: a path that leads to a pipe must not delay every stream of the server.
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("it is not a file")
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if stamp == self._stamp:
                return None
            data = file.read(self._bytes_max + 1)
        if len(data) > self._bytes_max:
            raise ValueError(f"it is larger than the limit of {self._bytes_max} bytes")
        if not data and self._revoked:
            raise ValueError("it is empty; to take every revocation back, leave a comment line in it")
        revoked = parse_revocations(data)
        settled = now_us - status.st_mtime_ns // 1000 >= SETTLED_US
        self._stamp = stamp if settled else None
        return revoked
