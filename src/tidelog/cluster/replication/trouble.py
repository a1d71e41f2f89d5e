"""What a replica does about a log that it cannot read: it says so, and lets another one lead that can.

TE1  Who leads and cannot read its own log holds everybody up. It resigns while another holder (ISR or eligible) is
     there (R10). An I/O error marks nothing as damaged: the disk did not answer, and the records may be right.
TE2  What a read found damaged is damage like that found at opening (B4): storage is asked what it is, and the next
     election counts only what lies before it (EL5). A leader that serves leads on while another member of the ISR is
     there: what is damaged is committed, so that one holds it and it is mended in its place.
TE3  A place that cannot be read is said once, and is no trouble any more when a read of it succeeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.cluster.replication.orders import LookAtLog
from tidelog.cluster.replication.statistics import Storage
from tidelog.errors import DamagedRange, DiskError, LogError

if TYPE_CHECKING:
    from tidelog.cluster.replication.replica import ChannelReplica

YIELDS_MAX = 2
"""Who is elected again so often though its log is damaged is the best there is."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A read that failed: where, for whom, and the problem as it was said."""

    offset: int | None
    """None for a fold."""
    peer: str
    problem: str


def others(replica: ChannelReplica) -> list[str]:
    """Who else is there and holds what is committed, as far as the catalog knows."""
    record, host = replica.record, replica.host
    members = (*record.isr, *record.eligible)
    return [one.node for one in members if one.node != host.node and host.active_incarnation(one.node)]


def readable(replica: ChannelReplica, read: range | None, peer: str = "") -> None:
    """TE3: these records were read (for `peer`), or with None the log was folded."""
    unread = replica.unread
    if unread is None:
        return
    if read is None or unread.offset is None:
        over = read is None and unread.offset is None
    else:
        over = unread.offset in read or (peer != "" and peer == unread.peer)
    if not over:
        return
    replica.unread = None
    if replica.problem == unread.problem:
        replica.problem = ""
    replica.host.say("blocks can be read again", channel=replica.name)


def unreadable(replica: ChannelReplica, error: LogError, offset: int | None, peer: str = "") -> None:
    """TE1, TE2: a read at `offset` (for `peer`) failed, or with None a fold."""
    why, known = str(error), False
    if isinstance(error, DamagedRange):
        lost = range(error.start, error.end)
        for part in replica.damaged:
            if part.start <= lost.start and lost.stop <= part.stop:
                lost, known = part, True
        why = f"records [{lost.start}, {lost.stop}) are damaged"
    problem = f"blocks cannot be read: {why}"[:200]
    if replica.unread is None or replica.unread.problem != problem:  # asked for again and again, said once
        replica.host.say("blocks cannot be read", channel=replica.name, error=why)
        replica.unread = Unread(offset, peer, problem)
    replica.problem = problem
    if isinstance(error, DamagedRange):
        if known:
            found_damaged(replica)
        else:
            look_at_log(replica)
    elif isinstance(error, DiskError) and replica.leading is not None and others(replica):
        replica.resign(problem)


def compare_damage(replica: ChannelReplica, damaged: Sequence[range]) -> bool:
    """TE2: storage knows these ranges to be damaged, whoever read there. Whether that is news here, and looked at."""
    is_news = not set(damaged) <= set(replica.damaged)
    if is_news:
        look_at_log(replica)
    return is_news


def look_at_log(replica: ChannelReplica) -> None:
    """Somebody read in the log and found damage: ask storage what it is (TE2)."""
    if replica.storage is Storage.READY:
        replica.host.order(LookAtLog(channel_id=replica.channel_id, life=replica.life))


def found_damaged(replica: ChannelReplica) -> None:
    """TE2: whoever leads and has lost records to damage, while it leads."""
    leading, damaged = replica.leading, replica.damaged
    if leading is None or not damaged:
        return
    in_sync = [node for node in others(replica) if replica.record.member(node) is not None]
    if leading.serves and in_sync and damaged[-1].stop <= replica.committed_end:
        return
    yields_for_damage(replica)


def yields_for_damage(replica: ChannelReplica) -> bool:
    """Another one may hold what this one lost: it leads, if there is one."""
    if not replica.damaged or not others(replica) or replica.yielded >= YIELDS_MAX:
        return False
    replica.yielded += 1
    replica.resign(f"its log is damaged at {replica.damaged[0].start}")
    return True
