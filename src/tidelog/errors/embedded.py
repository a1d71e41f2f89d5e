"""Refusals that only embedded use meets (`tidelog.embedded`)."""

from __future__ import annotations

from tidelog.errors.base import LogError


class ReplicationNotEnabled(LogError):
    """A replicated channel was to be opened, and the manager has no node yet. Nothing was created."""

    code = "replication_not_enabled"

    def __init__(self, *, channel: str) -> None:
        super().__init__(
            f"channel {channel!r} asks for replication and this manager has no node; call enable_replication(node) "
            "first, or open it without replication"
        )
        self.channel = channel


class Lagged(LogError):
    """Retention has passed the reader: what it would read next is gone. Read on at `log_start`."""

    code = "lagged"

    def __init__(self, *, channel: str, offset: int, log_start: int) -> None:
        super().__init__(
            f"channel {channel!r} begins at {log_start} now, and {offset} was to be read; read on at {log_start}, "
            "and keep more if that happens often"
        )
        self.channel = channel
        self.offset = offset
        self.log_start = log_start


class TransitionReserved(LogError):
    """The table allows this change of role, but no hand: it follows from what the catalog decides or a replica hears.

    A role taken by hand alone would be a second leader, or a copy that nobody counts on.
    """

    code = "transition_reserved"

    def __init__(self, *, channel: str, before: str, after: str, cause: str, instead: str) -> None:
        super().__init__(f"channel {channel!r}: {cause} from {before} to {after} is not given by hand; {instead}")
        self.channel = channel
        self.before = before
        self.after = after
        self.cause = cause
        self.instead = instead


class WithdrawnByHand(LogError):
    """A replica gave its copy up because it was told to. It is tried again after a while, as after a full disk."""

    code = "withdrawn_by_hand"
    retriable = True

    def __init__(self, *, channel: str) -> None:
        super().__init__(
            f"the copy of channel {channel!r} was withdrawn by hand; it comes back by itself after a while"
        )
        self.channel = channel
