"""What a journal has to do besides writing frames, and why it could not: leasing seqs, sealing, retention, Backfill.

A failure there loses nothing at once and is tried again, so nobody who records sees it. But the journal then grows
until the disk is full, or the cloud misses what the disk holds; whoever drives it says so.

UK1  A failure stands until the same work has been done without one, or need not be done any more. That it was not due
     proves nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import Enum

from tidelog.errors import DiskError


class Work(Enum):
    """The value ends the sentence "the journal cannot ..."."""

    SEAL = "be sealed"
    SWEEP = "be trimmed"
    LEASE = "lease more seqs"
    READ = "be read for Backfill"
    RE_RECORD = "re-record frames of an older lineage"


class Upkeep:
    def __init__(self) -> None:
        self._failures: dict[Work, DiskError] = {}

    @contextlib.contextmanager
    def attempt(self, work: Work) -> Iterator[None]:
        """Notes a failure and lets it pass on."""
        try:
            yield
        except DiskError as error:
            self._failures[work] = error
            raise

    def done(self, work: Work) -> None:
        self._failures.pop(work, None)

    @property
    def problem(self) -> str | None:
        """What cannot be done and why, each with its reason; None while all is well."""
        return "; ".join(f"the journal cannot {work.value}: {error}" for work, error in self._failures.items()) or None
