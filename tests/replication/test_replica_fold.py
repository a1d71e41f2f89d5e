"""A replica's state of producers and cursors: a fold over the log, the same under every leader (F1 to F3)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tidelog.blocks.block import Block, MadeBlock, missing_block
from tidelog.blocks.control import ChannelSnapshot, CursorMoved, EpochStarted, FoldSnapshot, encode_control
from tidelog.blocks.header import Maker
from tidelog.blocks.messages import encode_values
from tidelog.cluster.replication.fold import (
    BATCHES_KEPT,
    CURSORS_MAX,
    PRODUCERS_KEPT,
    Repeated,
    ReplicaFold,
)
from tidelog.errors import OutOfSequence, ProducerFenced


def producer(number: int = 1, epoch: int = 1) -> bytes:
    return number.to_bytes(8, "big") + epoch.to_bytes(8, "little")


class Log:
    """Stamps what is appended, and folds it."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.fold = ReplicaFold()

    @property
    def end(self) -> int:
        return self.blocks[-1].offsets.stop if self.blocks else 0

    def append(self, made: MadeBlock) -> Block:
        block = made.stamp(base_offset=self.end, channel_id=1, leader_epoch=1, append_time_us=1, durable_end=0, path=0)
        self.blocks.append(block)
        self.fold.note(block)
        return block

    def produce(self, seq: int, count: int = 1, *, who: bytes | None = None) -> Block:
        return self.append(made(seq, count, who=who))

    def snapshot(self) -> Block:
        return self.append(encode_control([ChannelSnapshot(state=self.fold.state())], time_us=1))


def made(seq: int, count: int = 1, *, who: bytes | None = None) -> MadeBlock:
    return encode_values([b"x"] * count, time_us=1, base_seq=seq, producer=who or producer())


def maker(seq: int, count: int = 1, *, who: bytes | None = None) -> Maker:
    return made(seq, count, who=who).maker


def fold_blocks(blocks: Iterable[Block]) -> ReplicaFold:
    fold = ReplicaFold()
    for block in blocks:
        fold.note(block)
    return fold


def same(one: ReplicaFold, other: ReplicaFold) -> bool:
    return one.state() == other.state() and (one.end, one.snapshot_at) == (other.end, other.snapshot_at)


def test_fo1_a_producers_blocks_follow_each_other_and_one_that_comes_twice_is_told_where_it_is() -> None:
    log = Log()
    assert log.fold.check(maker(1, 3), "spray") is None
    log.produce(1, 3)
    log.produce(4, 2)
    assert log.fold.check(maker(6), "spray") is None
    assert log.fold.check(maker(1, 3), "spray") == Repeated(first_offset=0, end_offset=3)
    assert log.fold.check(maker(4, 2), "spray") == Repeated(first_offset=3, end_offset=5)


@pytest.mark.parametrize(("seq", "count"), [(8, 1), (2, 2), (1, 2), (1, 5)])
def test_fo1_a_gap_or_another_cut_of_the_same_records_is_refused(seq: int, count: int) -> None:
    log = Log()
    log.produce(1, 3)
    log.produce(4, 2)
    with pytest.raises(OutOfSequence) as caught:
        log.fold.check(maker(seq, count), "spray")
    assert (caught.value.expected, caught.value.got) == (6, seq)


def test_a_producer_that_nobody_knows_begins_at_1() -> None:
    with pytest.raises(OutOfSequence):
        ReplicaFold().check(maker(2), "spray")
    assert ReplicaFold().check(maker(1), "spray") is None


def test_a_producer_that_was_opened_again_fences_the_one_before() -> None:
    log = Log()
    log.produce(1, 3)
    assert log.fold.check(maker(1, who=producer(epoch=2)), "spray") is None
    log.produce(1, who=producer(epoch=2))
    with pytest.raises(ProducerFenced):
        log.fold.check(maker(4), "spray")
    with pytest.raises(OutOfSequence):
        log.fold.check(maker(3, who=producer(epoch=3)), "spray")


def test_blocks_without_a_producer_are_never_repeated() -> None:
    log = Log()
    anonymous = encode_values([b"x"], time_us=1)
    for _ in range(3):
        assert log.fold.check(anonymous.maker, "spray") is None
        log.append(anonymous)
    assert log.fold.producers == {}


def test_f1_the_fold_of_the_log_is_the_fold_that_grew_with_it() -> None:
    log = Log()
    for seq in range(1, 40):
        log.produce(seq, who=producer(seq % 3, epoch=1) if seq < 4 else None)
        if seq % 10 == 0:
            log.append(encode_control([CursorMoved(name="pipeline", offset=seq)], time_us=1))
        if seq == 25:
            log.snapshot()
    assert same(fold_blocks(log.blocks), log.fold)


def test_f1_a_fold_from_a_snapshot_on_is_the_fold_from_the_beginning() -> None:
    log = Log()
    for seq in range(1, 30):
        log.produce(seq)
    log.append(encode_control([CursorMoved(name="pipeline", offset=7)], time_us=1))
    place = len(log.blocks)
    log.snapshot()
    for seq in range(30, 40):
        log.produce(seq)
    late = fold_blocks(log.blocks[place:])
    assert same(late, log.fold)
    assert late.cursors == {"pipeline": 7}
    assert late.check(maker(20), "spray") == Repeated(first_offset=19, end_offset=20)


def test_fo2_the_floor_is_where_the_newest_snapshot_lies_or_nowhere() -> None:
    log = Log()
    log.append(encode_values([b"x"], time_us=1))
    assert (log.fold.floor, log.fold.floor_below(1)) == (None, 1), "nothing is needed: everything may go"
    log.produce(1)
    assert log.fold.floor == -1, "needed, and nowhere but in the records themselves"
    assert log.fold.floor_below(2) == 0
    snapshot = log.snapshot()
    assert log.fold.floor == snapshot.leader.base_offset == 2
    assert log.fold.floor_below(3) == 2
    assert log.fold.floor_below(2) == 0, "a snapshot that is not committed protects nothing yet"


def test_fo2_the_snapshot_of_the_lineages_counts_as_well() -> None:
    log = Log()
    log.append(encode_control([FoldSnapshot(state={})], time_us=1))
    assert log.fold.floor == 0
    log.produce(1)
    assert log.fold.floor == -1
    log.snapshot()
    assert log.fold.floor == 0, "the older of the two"


def test_cursors_are_set_moved_removed_and_bounded() -> None:
    log = Log()
    names = [f"cursor-{number}" for number in range(CURSORS_MAX + 5)]
    log.append(encode_control([CursorMoved(name=name, offset=1) for name in names], time_us=1))
    assert len(log.fold.cursors) == CURSORS_MAX
    log.append(encode_control([CursorMoved(name=names[0], offset=9), CursorMoved(name=names[1], offset=-1)], time_us=1))
    assert log.fold.cursors[names[0]] == 9
    assert names[1] not in log.fold.cursors
    log.append(encode_control([CursorMoved(name="late", offset=3)], time_us=1))
    assert log.fold.cursors["late"] == 3


def test_memory_is_bounded_the_producer_that_was_silent_longest_goes_first() -> None:
    log = Log()
    for number in range(PRODUCERS_KEPT):
        log.produce(1, who=producer(number))
    log.produce(2, who=producer(0))
    log.produce(1, who=producer(PRODUCERS_KEPT))
    assert len(log.fold.producers) == PRODUCERS_KEPT
    assert log.fold.check(maker(3, who=producer(0)), "spray") is None
    with pytest.raises(OutOfSequence):
        log.fold.check(maker(2, who=producer(1)), "spray")


def test_batches_are_remembered_as_far_back_as_it_says() -> None:
    log = Log()
    for seq in range(1, BATCHES_KEPT + 3):
        log.produce(seq)
    assert log.fold.check(maker(3), "spray") == Repeated(first_offset=2, end_offset=3)
    with pytest.raises(OutOfSequence):
        log.fold.check(maker(2), "spray")


def test_a_snapshot_of_a_full_fold_is_a_block_that_can_be_read() -> None:
    log = Log()
    for number in range(PRODUCERS_KEPT):
        for seq in (1, 2):
            log.produce(seq, who=producer(number))
    log.snapshot()
    assert same(fold_blocks(log.blocks[-1:]), log.fold)


def test_placeholders_of_damaged_records_are_passed_over() -> None:
    log = Log()
    log.produce(1)
    gap = missing_block(offsets=range(1, 4), channel_id=1, leader_epoch=1, append_time_us=1, durable_end=1)
    log.blocks.append(gap)
    log.fold.note(gap)
    assert log.fold.end == 4
    assert log.fold.check(maker(2), "spray") is None


def test_other_control_records_change_nothing_but_the_end() -> None:
    log = Log()
    log.append(encode_control([EpochStarted(epoch=1, node="a")], time_us=1))
    assert (log.fold.end, log.fold.state()) == (1, {"producers": {}, "producers_used_ms": {}, "cursors": {}})
    assert not log.fold.needs_snapshot


def test_truncation_folds_anew() -> None:
    """A replica drops its fold when its log is cut; the fold of what is left knows nothing of what went."""
    log = Log()
    log.produce(1)
    log.produce(2)
    left: Iterable[Block] = log.blocks[:1]
    assert fold_blocks(left).check(maker(2), "spray") is None
