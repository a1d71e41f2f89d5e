"""What a replica does about a log that it cannot read: it says so, and does not lead on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.errors import DiskError, LogError

if TYPE_CHECKING:
    from tidelog.cluster.replica import ChannelReplica


def unreadable(replica: ChannelReplica, error: LogError) -> None:
    """Who leads and cannot read its own log holds everybody up, so another one leads, if there is one (R10).

    Nothing is marked as damaged: an I/O error says that the disk did not answer, not that the records are wrong.
    """
    problem = f"blocks cannot be read: {error}"[:200]
    if replica.problem != problem:  # asked for again and again, said once
        replica.host.say("blocks cannot be read", channel=replica.name, error=str(error))
    replica.problem = problem
    if replica.leading is not None and isinstance(error, DiskError) and len(replica.record.isr) > 1:
        replica.resign(problem)
