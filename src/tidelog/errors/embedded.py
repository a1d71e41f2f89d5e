"""Errors that only embedded use raises (`tidelog.embedded`)."""

from __future__ import annotations

from tidelog.errors.base import LogError


class ReplicationNotEnabled(LogError):
    """A replicated channel needs a node, and the manager has none yet. Nothing was created."""

    template = (
        "channel {channel!r} asks for replication and this manager has no node; call enable_replication(node) first, "
        "or open it without replication"
    )
    channel: str


class Lagged(LogError):
    """Retention removed the records that the reader would read next. Read on at `log_start`."""

    template = (
        "channel {channel!r} begins at {log_start} now, and offset {offset} is gone; read on at {log_start}, and "
        "keep records longer if that happens often"
    )
    channel: str
    offset: int
    log_start: int


class TransitionReserved(LogError):
    """This change of role cannot be made by the caller: it follows from the catalog or from what a replica receives.

    A role taken by the caller alone would make a second leader, or a replica that no leader counts.
    """

    template = "channel {channel!r}: {cause} from {before} to {after} cannot be triggered by the caller; {instead}"
    channel: str
    before: str
    after: str
    cause: str
    instead: str


class WithdrawnByHand(LogError):
    """The caller withdrew a replica. It is tried again after a while, as after a full disk."""

    retriable = True
    template = "the copy of channel {channel!r} was withdrawn by hand; it comes back by itself after a while"
    channel: str
