"""Errors that only a client of a cluster meets; what nodes answer is in the other modules."""

from __future__ import annotations

from tidelog.errors.base import LogError


class ClientClosed(LogError):
    """The client, or this part of it, was closed; nothing was sent. Connect again."""

    code = "client_closed"

    def __init__(self, *, what: str) -> None:
        super().__init__(f"{what} is closed; connect again")
        self.what = what


class OffsetTrimmed(LogError):
    """Retention removed what would be read next. Read on at `log_start`, or open the reader with on_trim="skip"."""

    code = "offset_trimmed"

    def __init__(self, *, channel: str, offset: int, log_start: int) -> None:
        super().__init__(
            f"channel {channel!r} begins at {log_start} now and the reader stands at {offset}; "
            f'read on at {log_start}, or skip with on_trim="skip"'
        )
        self.channel = channel
        self.offset = offset
        self.log_start = log_start


class CommittedLost(LogError):
    """The channel ends before what was already read: an unclean election cost committed records. Look at what was
    read after `committed_end`, then read on there."""

    code = "committed_lost"

    def __init__(self, *, channel: str, offset: int, committed_end: int, leader_epoch: int) -> None:
        super().__init__(
            f"channel {channel!r} ends at {committed_end} in epoch {leader_epoch} and the reader stands at {offset}: "
            f"an unclean election lost records; look at what was read, then read on at {committed_end}"
        )
        self.channel = channel
        self.offset = offset
        self.committed_end = committed_end
        self.leader_epoch = leader_epoch
