"""A reader's position against a model of a channel: old answers, answers of replicas that are behind, leader moves and
retention in any order, and still each committed record once, in order."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.blocks.block import Block, missing_block
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.control import EpochStarted, encode_control
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.messages import Message, encode_messages, encode_values
from tidelog.client.options import Seq, Time
from tidelog.client.reading.positions import ReadPosition
from tidelog.client.records import FrameRecord, Record, batches_of, records_of
from tidelog.core.client_messages import Fetched
from tidelog.errors import (
    BadMessage,
    CommittedLost,
    DamagedRange,
    LogError,
    OffsetOutOfRange,
    OffsetTrimmed,
    ReplicaBehind,
)

CHANNEL = 3


def block_of(*values: bytes, offset: int, epoch: int = 1, channel_id: int = CHANNEL) -> Block:
    return encode_values(values, time_us=1, base_seq=offset + 1).stamp(
        base_offset=offset, channel_id=channel_id, leader_epoch=epoch, append_time_us=0, durable_end=0, path=3
    )


def control_at(offset: int, epoch: int) -> Block:
    return encode_control([EpochStarted(epoch=epoch)], time_us=0).stamp(
        base_offset=offset, channel_id=CHANNEL, leader_epoch=epoch, append_time_us=0, durable_end=0, path=3
    )


def position_at(offset: int = 0, *, epoch: int = 1, on_trim: str = "raise") -> ReadPosition:
    position = ReadPosition(channel="a", channel_id=CHANNEL, offset=offset, on_trim=on_trim)
    position.leader_epoch = epoch
    return position


def fetched(*, epoch: int = 1, end: int, start: int = 0) -> Fetched:
    return Fetched(leader_epoch=epoch, committed_end=end, log_start=start)


# --- one thing at a time ---------------------------------------------------------------------------


def test_a_block_that_began_before_the_position_counts_from_the_position_on() -> None:
    position = position_at(1)
    block = block_of(b"a", b"b", b"c", offset=0)
    assert position.take(fetched(end=3), [block], is_leader=True) == [block]
    assert [record.offset for record in records_of(block, start=1)] == [1, 2]
    assert position.offset == 3


def test_an_answer_of_an_older_epoch_is_not_taken() -> None:
    position = position_at(0, epoch=5)
    with pytest.raises(ReplicaBehind):
        position.take(fetched(epoch=4, end=3), [block_of(b"a", offset=0)], is_leader=True)
    assert position.offset == 0


def test_uncommitted_and_foreign_blocks_are_refused() -> None:
    position = position_at()
    with pytest.raises(BadMessage):
        position.take(fetched(end=0), [block_of(b"a", offset=0)], is_leader=True)
    with pytest.raises(BadMessage):
        position.take(fetched(end=1), [block_of(b"a", offset=0, channel_id=9)], is_leader=True)
    assert position.offset == 0


def test_good_blocks_before_a_bad_one_are_not_lost() -> None:
    position = position_at()
    good, bad = block_of(b"a", offset=0), block_of(b"b", offset=1, channel_id=9)
    assert position.take(fetched(end=2), [good, bad], is_leader=True) == [good]
    assert position.offset == 1
    with pytest.raises(BadMessage):
        position.take(fetched(end=2), [bad], is_leader=True)


def test_retention_that_overtook_the_reader_is_told_or_skipped() -> None:
    answer = fetched(end=9, start=5)
    with pytest.raises(OffsetTrimmed) as caught:
        position_at(2).take(answer, [], is_leader=True)
    assert (caught.value.offset, caught.value.log_start) == (2, 5)
    skipping = position_at(2, on_trim="skip")
    assert skipping.take(answer, [block_of(b"x", offset=5)], is_leader=True)
    assert (skipping.offset, skipping.skipped) == (6, 3)


def test_a_follower_that_has_trimmed_more_is_only_passed_over() -> None:
    position = position_at(2, on_trim="skip")
    with pytest.raises(ReplicaBehind):
        position.take(fetched(end=9, start=5), [], is_leader=False)
    assert position.offset == 2


def test_a_leader_that_ends_before_the_reader_has_lost_records() -> None:
    position = position_at(10, epoch=2)
    with pytest.raises(CommittedLost) as caught:
        position.take(fetched(epoch=3, end=4), [], is_leader=True)
    assert (caught.value.committed_end, caught.value.leader_epoch) == (4, 3)
    with pytest.raises(ReplicaBehind):
        position.take(fetched(epoch=3, end=4), [], is_leader=False)
    with pytest.raises(CommittedLost):
        position.elected(3, fetched(epoch=3, end=40))
    position.elected(2, fetched(epoch=3, end=40))


def test_a_position_beyond_the_end_is_wrong_from_the_beginning() -> None:
    fresh = ReadPosition(channel="a", channel_id=CHANNEL, offset=10)
    with pytest.raises(OffsetOutOfRange):
        fresh.take(fetched(end=4), [], is_leader=True)
    with pytest.raises(OffsetOutOfRange):
        fresh.ends_at(1, 4)
    with pytest.raises(ReplicaBehind):
        # A leader that has just begun may not know its end yet.
        fresh.out_of_range(OffsetOutOfRange(offset=10, log_start=0, log_end=4), is_leader=True, leader_epoch=1)


def test_a_placeholder_is_a_gap_that_can_be_passed() -> None:
    hole = missing_block(offsets=range(0, 4), channel_id=CHANNEL, leader_epoch=1, append_time_us=0, durable_end=0)
    position = position_at(1)
    with pytest.raises(DamagedRange) as caught:
        position.take(fetched(end=9), [hole], is_leader=True)
    assert (caught.value.start, caught.value.end) == (1, 4)
    position.passed(caught.value)
    assert (position.offset, position.skipped) == (4, 3)
    with pytest.raises(DamagedRange):
        position.take(fetched(end=9), [block_of(b"x", offset=6)], is_leader=True)


# --- what records are made of ----------------------------------------------------------------------


def test_records_carry_everything_a_message_has() -> None:
    rows = [
        Message(5, b"v", b"k", (("h", b"1"), ("h", b"2"))),
        Message(6, None, b""),
        Message(7, b"", None),
    ]
    block = encode_messages(rows, base_seq=11).stamp(
        base_offset=4, channel_id=CHANNEL, leader_epoch=1, append_time_us=0, durable_end=0, path=3
    )
    assert records_of(block, start=4) == [
        Record(4, 5, b"k", b"v", (("h", b"1"), ("h", b"2")), 11),
        Record(5, 6, b"", None, (), 12),
        Record(6, 7, None, b"", (), 13),
    ]
    assert records_of(block, start=4, floor=Time(6)) == records_of(block, start=5)
    assert records_of(block, start=4, floor=Seq(13)) == records_of(block, start=6)
    assert records_of(block, start=4, floor=Time(8)) == []
    (batch,) = batches_of([control_at(3, 1), block], start=5, floor=Time(6))
    assert batch["offset"].to_pylist() == [5, 6]
    (batch,) = batches_of([block], start=0, floor=Seq(12))
    assert batch["seq"].to_pylist() == [12, 13]


def test_frames_and_windows_are_read_like_any_other() -> None:
    frames = FrameColumns.from_rows([(5 + i, 0x100 + i, bytes([i])) for i in range(4)])
    block = encode_frames(frames, base_seq=21).stamp(
        base_offset=10,
        channel_id=CHANNEL,
        leader_epoch=1,
        append_time_us=0,
        durable_end=0,
        path=1,
        windows=[range(0, 1), range(2, 4)],
    )
    assert records_of(block, start=11) == [
        FrameRecord(11, 7, 0x102, b"\x02", 23),
        FrameRecord(12, 8, 0x103, b"\x03", 24),
    ]
    message = block_of(b"x", offset=13)
    first, second = batches_of([block, message], start=11)
    assert first["can_id"].to_pylist() == [0x102, 0x103]
    assert second["value"].to_pylist() == [b"x"]


def test_windows_of_messages_are_kept_apart() -> None:
    block = encode_values([b"a", b"b", b"c"], time_us=1, base_seq=5).stamp(
        base_offset=0,
        channel_id=CHANNEL,
        leader_epoch=1,
        append_time_us=0,
        durable_end=0,
        path=3,
        windows=[range(0, 1), range(2, 3)],
    )
    found = records_of(block, start=0)
    assert [(record.offset, record.seq) for record in found] == [(0, 5), (1, 7)]
    assert [record.value for record in found if isinstance(record, Record)] == [b"a", b"c"]


# --- everything at once ----------------------------------------------------------------------------


@dataclass
class Answer:
    fetched: Fetched
    blocks: list[Block]
    is_leader: bool


class World:
    """A channel whose history changes, and answers about it that may be old when they arrive."""

    def __init__(self, dice: random.Random, *, on_trim: str) -> None:
        self.dice = dice
        self.epoch = 1
        self.blocks: list[Block] = []
        self.start = 0
        self.committed = 0
        self.count = 0
        self.history: list[bytes] = []
        """All records that were ever committed."""
        self.trimmed: set[bytes] = set()
        self.position = position_at(0, on_trim=on_trim)
        self.answers: list[Answer] = []
        self.read: list[bytes] = []

    @property
    def end(self) -> int:
        return self.blocks[-1].offsets.stop if self.blocks else self.start

    def append(self) -> None:
        values = [f"{self.count + number}".encode() for number in range(self.dice.randint(1, 3))]
        self.count += len(values)
        self.blocks.append(block_of(*values, offset=self.end, epoch=self.epoch))

    def commit(self) -> None:
        for block in self.blocks:
            if block.offsets.start >= self.committed:
                self.history += [record.value or b"" for record in records_of(block, start=0)]  # type: ignore[union-attr]
        self.committed = self.end

    def move(self) -> None:
        if self.dice.random() < 0.7:
            self.blocks = [block for block in self.blocks if block.offsets.stop <= self.committed]
        self.epoch += 1
        self.blocks.append(control_at(self.end, self.epoch))
        self.commit()

    def trim(self) -> None:
        whole = [block for block in self.blocks if block.offsets.stop <= self.committed]
        for block in whole[: self.dice.randint(0, len(whole))]:
            self.blocks.remove(block)
            self.start = block.offsets.stop
            self.trimmed |= {record.value or b"" for record in records_of(block, start=0)}  # type: ignore[union-attr]

    def ask(self, *, is_leader: bool | None = None) -> None:
        """An answer as some replica would give it now, from where the reader stands or stood."""
        leads = self.dice.random() < 0.5 if is_leader is None else is_leader
        end = self.committed if leads else self.dice.randint(0, self.committed)
        is_here = leads or self.dice.random() < 0.5
        offset = self.position.offset if is_here else self.dice.randint(0, self.position.offset)
        blocks = [one for one in self.blocks if one.offsets.stop > offset and one.offsets.stop <= end]
        start = self.start
        if not leads and blocks and self.dice.random() < 0.3:
            # A follower that has trimmed more, or has lost a block and does not know it.
            gone = blocks.pop(0)
            start = gone.offsets.stop if self.dice.random() < 0.5 else start
        blocks = blocks[: self.dice.randint(0, len(blocks))]
        answer = Fetched(leader_epoch=self.epoch, committed_end=end, log_start=start)
        self.answers.append(Answer(answer, blocks, leads))

    def hear(self) -> None:
        if self.answers:
            answer = self.answers.pop(self.dice.randrange(len(self.answers)))
            self.take(answer)

    def take(self, answer: Answer) -> None:
        start = self.position.offset
        before = (self.position.offset, self.position.leader_epoch, self.position.committed_end)
        try:
            blocks = self.position.take(answer.fetched, answer.blocks, is_leader=answer.is_leader)
        except (ReplicaBehind, DamagedRange):
            blocks = []
        for block in blocks:
            self.read += [record.value or b"" for record in records_of(block, start=start)]  # type: ignore[union-attr]
        after = (self.position.offset, self.position.leader_epoch, self.position.committed_end)
        assert all(new >= old for new, old in zip(after, before, strict=True)), "PO1"

    def step(self) -> None:
        actions = [
            self.append,
            self.append,
            self.commit,
            self.move,
            self.trim,
            self.ask,
            self.ask,
            self.hear,
            self.hear,
        ]
        self.dice.choice(actions)()

    def catch_up(self) -> None:
        self.commit()
        for _ in range(10_000):
            if self.position.offset >= self.committed:
                return
            self.answers.clear()
            self.ask(is_leader=True)
            self.take(self.answers.pop())
        raise AssertionError("the reader never gets to the end")


@settings(deadline=None, max_examples=300)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 200))
def test_any_interleaving_yields_each_committed_record_once_in_order(seed: int, steps: int) -> None:
    world = World(random.Random(seed), on_trim="skip")
    for _ in range(steps):
        world.step()
    world.catch_up()
    assert world.read == [value for value in world.history if value in set(world.read)]
    assert len(set(world.read)) == len(world.read)
    unread = set(world.history) - set(world.read)
    assert unread <= world.trimmed, "a record that was still there was left out"
    assert world.position.skipped >= len(unread)


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 200))
def test_without_skipping_a_gap_always_ends_the_reading(seed: int, steps: int) -> None:
    world = World(random.Random(seed), on_trim="raise")
    error: LogError | None = None
    try:
        for _ in range(steps):
            world.step()
        world.catch_up()
    except OffsetTrimmed as trimmed:
        error = trimmed
    assert world.read == world.history[: len(world.read)], "something was left out without a word"
    if error is None:
        assert world.read == world.history
