"""A disk that does not give back what it holds: whoever leads on it lets another one lead (R10)."""

from __future__ import annotations

from tests.cluster.replica_kit import Kit
from tidelog.cluster.replica_orders import BlocksRead, Folded
from tidelog.core.replication.messages import Resign
from tidelog.errors import DiskError, LogClosed, LogError

UNREADABLE = DiskError(operation="read_into", path="channels/1/0.seg", reason="Input/output error")


def fold_fails(kit: Kit, error: LogError = UNREADABLE) -> None:
    """What the writer says when the leader's log could not be folded."""
    leader = kit.leader()
    result = Folded(channel_id=1, life=leader.replica().life, fold=None, error=error)
    leader.core.storage_done(result, kit.now_ms)
    kit.run(100)


def written(*names: str, factor: int) -> Kit:
    kit = Kit(*names)
    kit.create(factor=factor)
    kit.write(b"one", b"two")
    kit.run_until(kit.is_whole)
    return kit


def test_a_leader_whose_log_cannot_be_folded_hands_over_and_writes_go_on() -> None:
    kit = written("a", "b", "c", factor=3)
    first = kit.leader().name
    fold_fails(kit)
    kit.run_until(lambda: kit.leading() not in ([], [first]), ms=5_000)
    assert any("cannot be read" in one.reason for one in kit.delivered(Resign))
    kit.write(b"three")
    kit.run_until(kit.is_whole)
    assert kit.leader().committed() == [b"one", b"two", b"three"]
    kit.check()


def test_a_leader_that_cannot_read_for_a_follower_hands_over() -> None:
    kit = written("a", "b", "c", factor=3)
    first = kit.leader()
    peer = next(name for name in ("a", "b", "c") if name != first.name)
    result = BlocksRead(
        channel_id=1,
        life=first.replica().life,
        peer=peer,
        request_id=1,
        offset=first.replica().log_start,
        blocks=(),
        error=UNREADABLE,
    )
    first.core.storage_done(result, kit.now_ms)
    kit.run_until(lambda: kit.leading() not in ([], [first.name]), ms=5_000)
    kit.check()


def test_a_leader_that_is_alone_leads_on() -> None:
    """To give up what nobody else can do helps nobody."""
    kit = written("a", factor=1)
    fold_fails(kit)
    assert kit.leading() == ["a"]
    kit.write(b"three")
    assert not kit.delivered(Resign)


def test_what_is_no_trouble_of_the_disk_moves_no_leader() -> None:
    kit = written("a", "b", "c", factor=3)
    first = kit.leader().name
    fold_fails(kit, LogClosed(log="spray"))
    assert kit.leading() == [first]


def test_an_unreadable_log_is_said_once() -> None:
    kit = written("a", factor=1)
    for _ in range(5):
        fold_fails(kit)
    assert sum("blocks cannot be read" in line for line in kit["a"].lines) == 1
