"""Errors that only a client of a cluster meets; what nodes answer is in the other modules."""

from __future__ import annotations

from tidelog.errors.base import LogError


class ClientClosed(LogError):
    """The client, or this part of it, was closed; nothing was sent. Connect again."""

    template = "{what} is closed; connect again"
    what: str


class OffsetTrimmed(LogError):
    """Retention removed the next records to read. Read on at `log_start`, or open the reader with on_trim="skip"."""

    template = (
        "channel {channel!r} begins at {log_start} now and the reader stands at {offset}; read on at {log_start}, or "
        'skip with on_trim="skip"'
    )
    channel: str
    offset: int
    log_start: int


class CommittedLost(LogError):
    """The channel ends before the reader's position: an unclean election lost committed records. Check what was read
    after `committed_end`, then read on from there."""

    template = (
        "channel {channel!r} ends at {committed_end} in epoch {leader_epoch} and the reader stands at {offset}: an "
        "unclean election lost records; check what was read, then read on at {committed_end}"
    )
    channel: str
    offset: int
    committed_end: int
    leader_epoch: int
