"""What a replica does when it cannot read its log: it reports the problem, and a leader resigns if another can lead.

TE1  A leader that cannot read its own log delays all readers and followers. It resigns if another active node of the
     ISR or of the eligible members holds the log (R10). An I/O error marks nothing as damaged: the records may be good.
TE2  Damage that a read finds is treated like damage found at opening (B4): storage is asked for the damaged ranges, and
     the next election counts only the records before them (EL5). A leader that serves stays leader while another member
     of the ISR is active: the damaged records are committed, so that member has them for the repair.
TE3  A place that cannot be read is logged once; a successful read of it ends the problem.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.cluster.replication.state import ReplicaState, Unread
from tidelog.errors import DamagedRange, DiskError, LogError

YIELDS_MAX = 2
"""A node that is elected again so often although its log is damaged is the best candidate that there is."""


def readable(replica: ReplicaState, read: range | None, peer: str = "") -> None:
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
    replica.out.say("blocks can be read again", channel=replica.name)


def unreadable(replica: ReplicaState, error: LogError, offset: int | None, peer: str = "") -> None:
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
        replica.out.say("blocks cannot be read", channel=replica.name, error=why)
        replica.unread = Unread(offset, peer, problem)
    replica.problem = problem
    if isinstance(error, DamagedRange):
        if known:
            found_damaged(replica)
        else:
            replica.look_at_log()
    elif isinstance(error, DiskError) and replica.leading is not None and replica.others():
        replica.out.resign(problem)


def compare_damage(replica: ReplicaState, damaged: Sequence[range]) -> bool:
    """TE2: storage knows these ranges to be damaged. Returns whether that is new here; then storage is asked."""
    is_news = not set(damaged) <= set(replica.damaged)
    if is_news:
        replica.look_at_log()
    return is_news


def found_damaged(replica: ReplicaState) -> None:
    """TE2: a leader has lost records to damage while it leads."""
    leading, damaged = replica.leading, replica.damaged
    if leading is None or not damaged:
        return
    in_sync = [node for node in replica.others() if replica.record.member(node) is not None]
    if leading.serves and in_sync and damaged[-1].stop <= replica.committed_end:
        return
    yields_for_damage(replica)


def yields_for_damage(replica: ReplicaState) -> bool:
    """Resign because of damage, if another node may hold what is lost here."""
    if not replica.damaged or not replica.others() or replica.yielded >= YIELDS_MAX:
        return False
    replica.yielded += 1
    replica.out.resign(f"its log is damaged at {replica.damaged[0].start}")
    return True


def await_repair(replica: ReplicaState, since_ms: int, now_ms: int) -> None:
    """The fold of a leader needs damaged records (FO3): other nodes have a while from `since_ms` to supply them, then
    it goes on without them."""
    end_ms = since_ms + replica.around.options.replica_max_lag_ms
    if replica.others() and now_ms < end_ms:
        replica.out.wake_at(end_ms)
        return
    replica.goes_on_damaged = True
    replica.out.say("goes on without damaged records", channel=replica.name, damaged=len(replica.damaged))
    replica.need_fold()
