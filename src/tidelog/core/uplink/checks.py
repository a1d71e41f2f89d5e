"""Limits of the seqs in a message: seqs that a boat can have."""

from __future__ import annotations

from typing import Final

from tidelog.core.uplink.messages import Hello
from tidelog.errors import InvalidRecord, TooManyHoles

SEQ_END: Final = 2**63
"""One past the largest seq a boat can use."""


def check_hello(hello: Hello, *, ranges_max: int) -> None:
    if len(hello.lost) + len(hello.void) > ranges_max:
        raise TooManyHoles(holes_max=ranges_max)
    if not 0 <= hello.head < SEQ_END or hello.journal_bytes < 0:
        raise InvalidRecord(problem=f"a head of {hello.head} is no seq")
    for seqs in (*hello.lost, *hello.void):
        check_seqs(seqs, head=hello.head)


def check_seqs(seqs: range, *, head: int) -> None:
    if seqs.step != 1 or not 1 <= seqs.start < seqs.stop <= head + 1:
        raise InvalidRecord(problem=f"[{seqs.start}, {seqs.stop}) is no range of seqs up to the head {head}")
