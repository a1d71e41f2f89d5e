"""How far named cursors (pipelines, groups) hold back what retention removes (R12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.cluster.replication.replica import ChannelReplica


def cursor_floor(replica: ChannelReplica, cursor: int) -> int:
    """A named cursor holds retention back within a bound. Reaching the bound is said before anything goes (R12)."""
    bound = replica.host.options.cursor_hold_bytes_max
    held_bytes = (replica.log_end - cursor) * _record_bytes(replica)
    if held_bytes <= bound:
        if held_bytes > bound * 8 // 10:
            replica.host.say("a cursor is near its bound", channel=replica.name, cursor=cursor, held_bytes=held_bytes)
        return cursor
    replica.host.say("a cursor is past its bound", channel=replica.name, cursor=cursor, held_bytes=held_bytes)
    return end_of_last(replica, bound)


def end_of_last(replica: ChannelReplica, byte_count: int) -> int:
    """Where the newest so many bytes of a log begin, about: records are taken to be alike."""
    return replica.log_end - byte_count // _record_bytes(replica)


def _record_bytes(replica: ChannelReplica) -> int:
    return max(1, replica.log_bytes // max(1, replica.log_end - replica.log_start))
