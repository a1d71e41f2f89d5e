"""A disk that does not give back what it holds: a leader on it lets another node lead (R10, TE1 to TE3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.replication.replica_kit import Kit
from tests.replication.test_replica_damage import numbered
from tidelog.cluster.replication.fold import ReplicaFold
from tidelog.cluster.replication.orders import BlocksRead, Folded, FoldLog, ReadBlocks
from tidelog.core.replication.messages import Resign, SyncRequest
from tidelog.core.replication.options import ReplicationOptions
from tidelog.errors import DamagedRange, DiskError, LogClosed, LogError
from tidelog.sim.lying import durable_files

UNREADABLE = DiskError(operation="read_into", path="channels/1/0.seg", reason="Input/output error")


def fold_fails(kit: Kit, error: LogError = UNREADABLE) -> None:
    """What the writer says when the leader's log could not be folded."""
    leader = kit.leader()
    result = Folded(channel_id=1, generation=leader.replica().generation, fold=None, error=error)
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
        generation=first.replica().generation,
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


# --- nobody else is in sync ---------------------------------------------------------------------------------------


def alone_in_sync() -> Kit:
    """`a` leads and has outlived its followers' patience: they are eligible, hold everything and are there."""
    kit = Kit("a", "b", "c", options=ReplicationOptions(replica_max_lag_ms=300))
    kit.create(factor=3, min_isr=2)
    kit.write(b"one", b"two")
    kit.run_until(kit.is_whole)
    kit.lose = lambda to, _, message: to == "a" and isinstance(message, SyncRequest)
    kit.produce(b"three")
    kit.run_until(lambda: kit.record().isr_nodes == ("a",))
    assert {member.node for member in kit.record().eligible} == {"b", "c"}
    return kit


def test_a_leader_that_cannot_read_hands_over_to_an_eligible_replica() -> None:
    kit = alone_in_sync()
    fold_fails(kit)
    kit.run_until(lambda: kit.leading() in (["b"], ["c"]), ms=5_000)
    assert "cannot be read" in kit.delivered(Resign)[0].reason
    kit.lose = lambda *_: False
    kit.write(b"four")
    kit.run_until(kit.is_whole)
    kit.check()


def test_a_damaged_leader_hands_over_to_an_eligible_replica() -> None:
    kit = alone_in_sync()
    kit["a"].replica().damaged = (range(1, 2),)
    kit.elect("a")
    kit.run_until(lambda: kit.leading() in (["b"], ["c"]), ms=5_000)
    assert "damaged at 1" in kit.delivered(Resign)[0].reason


def test_a_leader_whose_eligible_replicas_are_gone_leads_on() -> None:
    kit = alone_in_sync()
    kit.stop("b")
    kit.stop("c")
    fold_fails(kit)
    assert kit.leading() == ["a"]
    assert not kit.delivered(Resign)


# --- rot that a read finds ----------------------------------------------------------------------------------------


def rot(kit: Kit, name: str, offset: int) -> None:
    """A record of this log rots on the disk of a node that runs on, and has it no more in memory."""
    node = kit[name]
    logs = node.storage.logs
    logs._store.write_back(logs._channels[1], kit.now_us)
    logs._store.maintain(kit.now_us + 3_600_000_000)
    block = next(block for block in logs.log(1).blocks() if offset in block.offsets)
    target = b"".join(bytes(buffer) for buffer in block.buffers)
    found = 0
    for path in durable_files(node.disk, ".tidelog/channels"):
        place = node.disk.durable_bytes(path).find(target)
        if place >= 0:
            node.disk.flip_bit(path, place + len(target) - 30, 1)
            found += 1
    assert found
    node.replica().tail.clear()


def read_for(kit: Kit, name: str, peer: str, offset: int) -> BlocksRead:
    """As the leader orders it for a follower that is behind; the result is given to it."""
    node = kit[name]
    order = ReadBlocks(
        channel_id=1,
        generation=node.replica().generation,
        peer=peer,
        request_id=1,
        offset=offset,
        bytes_max=1,
        end=node.replica().log_end,
    )
    result = node.storage.read(order)
    node.core.storage_done(result, kit.now_ms)
    kit.run(20)
    return result


def test_a_leader_that_finds_a_record_damaged_that_nobody_else_holds_hands_over() -> None:
    kit = Kit("a", "b", "c")
    kit.create(factor=3, min_isr=2)
    kit.write(*numbered(4))
    kit.run_until(kit.is_whole)
    end = kit["a"].replica().log_end
    kit.cut("a", "b")
    kit.cut("a", "c")
    kit.controller_on = False
    kit.produce(*numbered(1, 4))
    kit.run()
    rot(kit, "a", end)
    kit.controller_on = True
    kit.heal()
    kit.run_until(lambda: kit.leading() in (["b"], ["c"]), ms=5_000)
    assert f"damaged at {end}" in kit.delivered(Resign)[0].reason
    kit.write(b"goes on")
    kit.run_until(kit.is_whole)
    assert kit["a"].replica().damaged == (), "what nobody could read was cut, as the new leader said"
    assert kit.leader().committed()[-1] == b"goes on"
    kit.check()


def test_a_serving_leader_that_finds_a_committed_record_damaged_leads_on_and_does_not_claim_it() -> None:
    kit = Kit("a", "b", "c")
    kit.create(factor=3)
    kit.write(*numbered(4))
    kit.run_until(kit.is_whole)
    rot(kit, "a", 2)
    assert isinstance(read_for(kit, "a", "b", 2).error, DamagedRange)
    assert kit["a"].replica().damaged == (range(2, 3),)
    assert kit["a"].replica().sound_end == 2
    for _ in range(3):
        read_for(kit, "a", "b", 2)
    assert said(kit, "a") == 1
    assert kit.leading() == ["a"], "the others have it, and it is repaired in place"
    assert not kit.delivered(Resign)


def test_damage_that_the_scrubber_found_in_a_replica_is_not_reported_as_held() -> None:
    kit = Kit("a", "b", "c")
    kit.create(factor=3)
    kit.write(*numbered(4))
    kit.run_until(kit.is_whole)
    rot(kit, "b", 2)
    log, replica = kit["b"].storage.logs.log(1), kit["b"].replica()
    with pytest.raises(DamagedRange):
        log.read(2, bytes_max=1)  # as the scrubber reads: no replica hears of it
    assert replica.damaged == ()
    begin = len(kit.sent)
    assert replica.compare_damage(log.damaged())
    kit.run(20)
    assert kit["b"].replica().damaged == (range(2, 3),)
    asked = [one for _, sender, one in kit.sent[begin:] if isinstance(one, SyncRequest) and sender == "b"]
    assert asked[0].held_end == 2
    assert not replica.compare_damage(log.damaged())


def test_a_damaged_leader_that_nobody_can_follow_up_yields_only_a_few_times() -> None:
    kit = Kit("a", "b", "c")
    kit.create(factor=3, min_isr=2)
    kit.write(*numbered(4))
    kit.run_until(kit.is_whole)
    kit.controller_on = False
    replica = kit["a"].replica()
    for _ in range(5):
        replica.damaged = (range(2, 3),)
        kit.elect("a")
        kit.run(50)
    assert len({one.leader_epoch for one in kit.delivered(Resign)}) == 2
    assert kit.leading() == ["a"]


def test_a_snapshot_that_rotted_costs_the_fold_time_and_not_the_channel() -> None:
    kit = Kit("a")
    kit.create(factor=1)
    kit.write(*numbered(4))
    rot(kit, "a", 2)
    replica = kit["a"].replica()
    order = FoldLog(channel_id=1, generation=replica.generation, hint=2, skip_below=replica.log_end)
    (result,) = kit["a"].storage.carry_out([order], kit.now_us)
    assert isinstance(result, Folded)
    assert result.error is None
    assert result.fold is not None
    assert (result.fold.end, result.fold.lacks) == (replica.log_end, [range(2, 3)])
    (strict,) = kit["a"].storage.carry_out([replace(order, skip_below=0)], kit.now_us)
    assert isinstance(strict, Folded)
    assert (strict.fold, type(strict.error)) == (None, DamagedRange)


# --- once it can be read again ------------------------------------------------------------------------------------


def folds(kit: Kit) -> None:
    replica = kit.leader().replica()
    fold = ReplicaFold()
    fold.end = replica.log_end
    kit.leader().core.storage_done(Folded(channel_id=1, generation=replica.generation, fold=fold), kit.now_ms)
    kit.run(20)


def said(kit: Kit, name: str) -> int:
    return sum("blocks cannot be read" in line for line in kit[name].lines)


def test_a_log_that_can_be_read_again_is_no_trouble_any_more_and_new_trouble_is_said_again() -> None:
    kit = written("a", factor=1)
    fold_fails(kit)
    assert "cannot be read" in kit["a"].replica().problem
    folds(kit)
    assert kit["a"].replica().problem == ""
    assert any("can be read again" in line for line in kit["a"].lines)
    fold_fails(kit)
    assert said(kit, "a") == 2


def test_only_a_read_of_the_same_place_or_for_the_same_replica_ends_the_trouble() -> None:
    kit = written("a", "b", "c", factor=3)
    replica = kit["a"].replica()
    replica.tail.clear()
    # (Nobody else is there, so it leads on.)
    kit.stop("b")
    kit.stop("c")
    failed = BlocksRead(
        channel_id=1, generation=replica.generation, peer="b", request_id=1, offset=1, blocks=(), error=UNREADABLE
    )
    for _ in range(3):
        kit["a"].core.storage_done(failed, kit.now_ms)
        assert read_for(kit, "a", "c", 0).blocks
        assert "cannot be read" in replica.problem, "another place was read"
    assert said(kit, "a") == 1
    assert read_for(kit, "a", "c", 1).blocks
    assert replica.problem == ""
    kit["a"].core.storage_done(failed, kit.now_ms)
    assert read_for(kit, "a", "b", 0).blocks
    assert replica.problem == "", "it was given what it asked for next"
