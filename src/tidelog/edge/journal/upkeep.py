"""Failures of a journal's maintenance: leasing seqs, sealing, retention, reading for Backfill.

A failure there loses nothing at once and is tried again, so recording does not notice it. But the journal then grows
until the disk is full, or the cloud misses what the disk holds; so its driver logs the failure.

UK1  A failure is kept until the same work has succeeded, or is no longer needed. That it was not due proves nothing.
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
        """Note a failure and re-raise it."""
        try:
            yield
        except DiskError as error:
            self._failures[work] = error
            raise

    def done(self, work: Work) -> None:
        self._failures.pop(work, None)

    @property
    def problem(self) -> str | None:
        """The work that fails, each with its reason; None while all is well."""
        return "; ".join(f"the journal cannot {work.value}: {error}" for work, error in self._failures.items()) or None
