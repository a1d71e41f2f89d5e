"""Damaged logs: who lost records says so, does not count as holding them, and gets them again (B4, RP5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.replication.replica_kit import Kit
from tidelog.blocks.header import BlockKind
from tidelog.cluster.node.repairer import fitting
from tidelog.cluster.replication.orders import LogReady
from tidelog.cluster.replication.trouble import YIELDS_MAX
from tidelog.core.catalog import ChannelRetention
from tidelog.core.replication.messages import SyncRequest
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.replication.roles import Role
from tidelog.errors import DamagedRange, NotChannelLeader
from tidelog.storage.log.epochs import EpochHistory


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"record %d " % number * 40 for number in range(first, first + count)]


def damaged(kit: Kit, name: str, *, offset: int = 6) -> None:
    """Kill the node, rot a record in a segment of its disk, start it again. Nobody but itself knows."""
    node = kit[name]
    log = node.storage.logs.log(1)
    kit.run(10)
    node.storage.logs._store.write_back(node.storage.logs._channels[1], kit.now_us)
    node.storage.logs._store.maintain(kit.now_us + 3_600_000_000)
    block = next(block for block in log.blocks() if offset in block.offsets)
    target = b"".join(bytes(buffer) for buffer in block.buffers)
    node.kill()
    for path in paths(kit, name, ""):
        data = node.disk.durable_bytes(path)
        place = data.find(target)
        if place >= 0:
            node.disk.flip_bit(path, place + len(target) - 30, 1)
    node.start()
    kit.run(10)


def paths(kit: Kit, name: str, folder: str) -> list[str]:
    disk = kit[name].disk
    found = []
    for entry in disk.list_folder(folder):
        path = f"{folder}/{entry}" if folder else entry
        try:
            disk.durable_bytes(path)
            found.append(path)
        except Exception:  # a folder
            found += paths(kit, name, path)
    return found


QUICK = ReplicationOptions(withdrawn_retry_ms=2_000)


def test_b4_a_damaged_replica_does_not_count_as_holding_what_it_lost_and_gets_it_again() -> None:
    kit = Kit("a", "b", "c", options=QUICK)
    kit.create()
    kit.write(*numbered(12))
    kit.run_until(kit.is_whole)
    begin = len(kit.sent)
    damaged(kit, "c")
    asked = [one for _, sender, one in kit.sent[begin:] if isinstance(one, SyncRequest) and sender == "c"]
    assert asked[0].held_end <= 6 < asked[0].fetch_from
    assert kit["c"].replica().damaged
    kit.run_until(lambda: not kit["c"].replica().damaged, ms=20_000)
    kit.run_until(kit.is_whole)
    assert kit["c"].committed() == numbered(12)
    assert kit["a"].bytes_of() == kit["c"].bytes_of()
    assert all(block.maker.kind != BlockKind.MISSING for block in kit["c"].blocks())


def test_b4_a_damaged_leader_hands_over_to_who_has_everything() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(*numbered(12))
    kit.run_until(kit.is_whole)
    damaged(kit, "a")  # it is in sync, and the catalog knows nothing of the damage; its answer does (EL5)
    kit.run_until(lambda: kit.leading() in (["b"], ["c"]), ms=5_000)
    assert kit.record().leader_epoch == 2
    kit.run_until(kit.is_whole, ms=60_000)
    assert kit["a"].committed() == kit.leader().committed() == numbered(12)


def test_b4_a_damaged_leader_that_is_alone_leads_and_says_what_it_lost() -> None:
    kit = Kit("a")
    kit.create(factor=1)
    kit.write(*numbered(12))
    damaged(kit, "a")
    kit.run_until(lambda: kit.leading() == ["a"])
    kit.write(b"goes on")
    assert kit["a"].replica().damaged
    assert kit["a"].core.load_report().chains == (), "it does not claim to hold all of it"


def test_b4_who_is_in_doubt_reports_only_what_it_can_read() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(*numbered(12))
    kit.run_until(kit.is_whole)
    replica = kit["b"].replica()
    assert replica.sound_end > replica.log_end
    replica.damaged = (range(6, 7),)
    assert replica.sound_end == 6
    assert replica.last_epoch(6) == 1
    assert replica.role is Role.REPLICA
    assert replace(kit.record()).isr_nodes == ("a", "b")


def test_fw7_damage_before_the_leaders_log_start_keeps_nothing_from_being_committed() -> None:
    """Retention was faster at the leader. It has not got what `b` lost, and so can never give it back."""
    kit = Kit("a", "b", segment_bytes_max=4096)
    kit.create(factor=2, min_isr=2, retention=ChannelRetention(max_bytes=4096))
    kit.write(*numbered(40))
    kit.run_until(kit.is_whole)
    kit["a"].core.apply_retention(kit.now_ms)
    kit.run(100)
    kit["a"].core.apply_retention(kit.now_ms)
    kit.run(100)
    damaged(kit, "b")
    with pytest.raises(DamagedRange):
        kit["b"].storage.logs.read(1, 6)
    kit["b"].replica().look_at_log()
    kit["b"].replica().settle()
    kit.run(10)
    lost = kit["b"].replica().damaged
    assert lost[-1].stop <= kit["a"].replica().log_start
    kit.write(b"goes on")
    kit.run_until(kit.is_whole)
    assert kit["b"].replica().damaged == lost


def test_fw7_damage_counts_again_where_another_leader_holds_what_was_lost() -> None:
    kit = Kit("a", "b")
    kit.create(factor=2)
    kit.write(*numbered(12))
    kit.run_until(kit.is_whole)
    replica = kit["b"].replica()
    replica.damaged, replica.leader_start = (range(6, 7), range(9, 10)), 7
    assert replica.sound_end == 9
    begin = len(kit.sent)
    kit.produce(b"on")
    kit.run(10)
    assert replica.sound_end == 6
    asked = [one for _, sender, one in kit.sent[begin:] if isinstance(one, SyncRequest) and sender == "b"]
    assert asked[-1].held_end == 6


def test_b4_a_replica_that_was_repaired_in_place_reports_it_at_once() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(*numbered(12))
    kit.run_until(kit.is_whole)
    damaged(kit, "c")
    gap = kit["c"].storage.logs.log(1).damaged()[0]
    blocks = [block for block in kit["a"].blocks() if gap.start <= block.offsets.start and block.end <= gap.stop]
    kit.produce(b"on its way")  # appended while the log is being repaired
    kit["c"].held_back = []
    kit.run()
    kit["c"].storage.logs.log(1).replace(blocks)
    replica = kit["c"].replica()
    state = kit["c"].storage.logs.state(1)
    end = replica.log_end
    assert end > state.log_end
    begin = len(kit.sent)
    kit["c"].core.storage_done(
        LogReady(channel_id=1, generation=replica.generation, state=state, swept=True), kit.now_ms
    )
    kit.run()
    assert replica.log_end == end, "what is on its way to the disk stays"
    asked = [one for _, sender, one in kit.sent[begin:] if isinstance(one, SyncRequest) and sender == "c"]
    assert asked[0].held_end == state.log_end
    kit.release("c")
    kit.run_until(kit.is_whole)
    assert kit["a"].bytes_of() == kit["c"].bytes_of()


PRODUCER = (7).to_bytes(8, "big") + (1).to_bytes(8, "little")


def damaged_in_its_last_batch(kit: Kit, name: str) -> range:
    """The last batch of a producer is damaged on this node, which is elected again and again. Where the batch is."""
    kit.create(factor=2)
    kit.write(*numbered(4))
    kit.produce(b"batch one" * 40, token="one", base_seq=1, producer=PRODUCER)
    kit.run_until(lambda: "one" in kit.results() and kit.is_whole())
    batch = kit.leader().blocks()[-1].offsets
    assert kit.results()["one"].first_offset == batch.start
    kit.controller_on = False
    damaged(kit, name, offset=batch.start)
    for _ in range(YIELDS_MAX + 1):  # it is the best candidate there is
        kit.elect(name)
        kit.run(50)
    assert kit.leading() == [name]
    assert kit[name].replica().damaged
    return batch


def again(kit: Kit, token: str) -> None:
    kit.produce(b"batch one" * 40, token=token, base_seq=1, producer=PRODUCER)


def test_fo3_a_leader_takes_no_batch_twice_whose_first_copy_is_damaged() -> None:
    kit = Kit("a", "b")
    batch = damaged_in_its_last_batch(kit, "a")
    end = kit["a"].replica().log_end
    with pytest.raises(NotChannelLeader):
        again(kit, "refused")
    assert kit["a"].replica().served_epoch == 0
    blocks = [block for block in kit["b"].blocks() if block.offsets == batch]
    kit["a"].storage.logs.log(1).replace(blocks)
    replica = kit["a"].replica()
    replica.look_at_log()
    replica.settle()
    kit.run(50)
    again(kit, "repaired")
    kit.run_until(lambda: "repaired" in kit.results())
    assert kit.results()["repaired"].first_offset == batch.start
    assert replica.log_end == end


def test_fo3_a_leader_goes_on_after_a_while_when_nobody_repairs_its_log_and_folds_anew_when_somebody_does() -> None:
    kit = Kit("a", "b")
    batch = damaged_in_its_last_batch(kit, "a")
    replica = kit["a"].replica()
    kit.run(kit.options.replica_max_lag_ms - 500)
    assert replica.served_epoch == 0
    kit.run_until(lambda: replica.served_epoch > 0, ms=1_000)
    assert replica.fold is not None
    assert replica.fold.lacks == [batch]
    assert any("goes on without damaged records" in line for line in kit["a"].lines)
    blocks = [block for block in kit["b"].blocks() if block.offsets == batch]
    kit["a"].storage.logs.log(1).replace(blocks)
    replica.look_at_log()
    replica.settle()
    kit.run(50)
    assert replica.fold.lacks == []
    again(kit, "repaired")
    kit.run_until(lambda: "repaired" in kit.results())
    assert kit.results()["repaired"].first_offset == batch.start


def test_md2_only_blocks_of_the_epoch_that_the_log_had_there_repair_it() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.write(*numbered(6))
    kit.run_until(kit.is_whole)
    replica, blocks = kit["c"].replica(), kit["a"].blocks()
    inside = [block for block in blocks if block.offsets.start >= 2 and block.end <= 5]
    data = kit["a"].bytes_of()
    gap = range(inside[0].offsets.start, inside[-1].end)
    assert [bytes(block.head) for block in fitting(data, replica, gap)] == [bytes(block.head) for block in inside]
    kit.elect("b")
    kit.write(*numbered(3))
    later = kit["b"].blocks()[-1]
    replica.epochs = EpochHistory()
    replica.epochs.note(1, 0)
    assert fitting(kit["b"].bytes_of(), replica, later.offsets) == [], "a block of an epoch that was not there"
