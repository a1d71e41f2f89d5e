"""The producer's core against a model of a leader and a lossy way to it: whatever is lost, late, repeated or moved,
every record is in the log once and in order, and what is said of it is true."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.blocks.block import MadeBlock, raw_body
from tidelog.blocks.header import Codec
from tidelog.blocks.messages import decode_messages
from tidelog.client.producing.batching import RecordBatch
from tidelog.client.producing.core import IN_TURN_BYTES_MAX, Fate, Flight, ProducerCore
from tidelog.client.retry import Backoff
from tidelog.core.client_messages import Produced
from tidelog.errors import (
    ChannelPaused,
    ChannelReadonly,
    ChannelRecreated,
    ClientClosed,
    LeadershipLost,
    LogError,
    NotChannelLeader,
    NotEnoughReplicas,
    OutcomeUnknown,
    OutOfSequence,
    ProducerFenced,
    UnknownProducer,
    WaitTimedOut,
)
from tidelog.transports.link.frames import SMALL_BYTES_MAX

TIMEOUT_MS = 1_000
FOREVER_MS = 10**9


def new_core(*, requests_max: int = 4, outlasts_pause: bool = False) -> ProducerCore:
    backoff = Backoff(first_ms=1, max_ms=4, rng=random.Random(1))
    return ProducerCore(
        channel="a",
        requests_max=requests_max,
        timeout_ms=TIMEOUT_MS,
        backoff=backoff,
        first_token=100,
        outlasts_pause=outlasts_pause,
    )


def identity(epoch: int) -> bytes:
    return (7).to_bytes(8, "little") + epoch.to_bytes(8, "little")


def batch_of(values: list[bytes], *, deadline_ms: int = FOREVER_MS) -> RecordBatch:
    batch = RecordBatch(deadline_ms=deadline_ms, time_us=1)
    batch.values = list(values)
    return batch


def add(core: ProducerCore, *values: bytes, deadline_ms: int = FOREVER_MS) -> Flight:
    batch = batch_of(list(values), deadline_ms=deadline_ms)
    return core.add(batch, batch.encode(base_seq=core.next_seq, producer=core.identity, codec=Codec.NONE))


def ready_core(*, requests_max: int = 4, outlasts_pause: bool = False) -> ProducerCore:
    core = new_core(requests_max=requests_max, outlasts_pause=outlasts_pause)
    core.opened(identity(1))
    core.route_found()
    return core


def sends(core: ProducerCore, now_ms: int = 0) -> list[Flight]:
    found = []
    while (flight := core.next_send(now_ms)) is not None:
        found.append(flight)
    return found


def values_of(made: MadeBlock) -> list[bytes]:
    return decode_messages(made.maker, raw_body(made.maker, made.body)).values.tolist()


# --- one thing at a time ---------------------------------------------------------------------------


def test_nothing_leaves_before_the_producer_is_open_and_the_leader_known() -> None:
    core = new_core()
    assert core.wants_identity
    assert core.wants_route
    assert not core.may_cut
    core.opened(identity(1))
    add(core, b"x")
    assert not sends(core)
    core.route_found()
    assert len(sends(core)) == 1


def test_a_refused_block_goes_again_before_those_behind_it() -> None:
    core = ready_core()
    flights = [add(core, bytes([number])) for number in range(3)]
    assert sends(core) == flights
    refusal = NotEnoughReplicas(channel="a", isr=1, min_isr=2)
    assert core.answered(Produced(token=flights[0].token, error=refusal), 0) == []
    # The two behind it are still on their way: sending it now could put it in the log behind a repetition of them.
    assert not sends(core, 1_000)
    for flight in flights[1:]:
        out = OutOfSequence(channel="a", expected=1, got=flight.base_seq)
        assert core.answered(Produced(token=flight.token, error=out), 0) == []
    assert sends(core, 1_000) == flights


def test_a_new_leader_gets_the_same_seqs_in_order() -> None:
    core = ready_core()
    flights = [add(core, bytes([number])) for number in range(3)]
    sends(core)
    before = [flight.made for flight in flights]
    core.route_lost()
    assert core.wants_route
    assert not sends(core)
    core.route_found()
    assert sends(core) == flights
    assert [flight.made for flight in flights] == before


def test_an_answer_of_a_given_up_attempt_is_dropped() -> None:
    core = ready_core()
    flight = add(core, b"x")
    sends(core)
    old = flight.token
    core.route_lost()
    core.route_found()
    sends(core)
    assert core.answered(Produced(token=old, first_offset=5), 0) == []
    assert core.answered(Produced(token=flight.token, first_offset=6), 0) == [Fate(flight, 6, None)]


def test_what_may_have_happened_is_never_reported_as_a_definite_failure() -> None:
    core = ready_core()
    flight = add(core, b"x")
    sends(core)
    core.route_lost()  # the first attempt may be in the log
    core.route_found()
    sends(core)
    (fate,) = core.answered(Produced(token=flight.token, error=ChannelReadonly(channel="a")), 0)
    assert isinstance(fate.error, OutcomeUnknown)
    assert not fate.error.definite


def test_a_lost_leadership_makes_later_refusals_unsure() -> None:
    core = ready_core()
    flight = add(core, b"x", deadline_ms=100)
    sends(core)
    core.answered(Produced(token=flight.token, error=LeadershipLost(channel="a", leader_epoch=1)), 0)
    core.route_found()
    assert sends(core, 50) == [flight]
    core.answered(Produced(token=flight.token, error=NotEnoughReplicas(channel="a", isr=1, min_isr=2)), 50)
    (fate,) = core.wake(100)
    assert isinstance(fate.error, WaitTimedOut)
    assert not fate.error.definite


def test_a_definite_refusal_of_the_only_attempt_is_passed_on() -> None:
    core = ready_core()
    flight = add(core, b"x")
    sends(core)
    (fate,) = core.answered(Produced(token=flight.token, error=ChannelReadonly(channel="a")), 0)
    assert isinstance(fate.error, ChannelReadonly)


def test_after_a_failed_block_the_rest_is_numbered_anew_under_a_new_epoch() -> None:
    core = ready_core()
    first, second = add(core, b"x"), add(core, b"y", b"z")
    sends(core)
    core.answered(Produced(token=first.token, error=ChannelReadonly(channel="a")), 0)
    out = OutOfSequence(channel="a", expected=1, got=2)
    assert core.answered(Produced(token=second.token, error=out), 0) == []
    assert core.wants_identity
    core.opened(identity(2))
    assert sends(core, 1_000) == [second]
    assert second.made.maker.base_seq == 1
    assert second.made.maker.producer == identity(2)
    assert values_of(MadeBlock.parse(b"".join(second.made.buffers))) == [b"y", b"z"]
    assert core.next_seq == 3


def test_a_producer_is_not_reopened_while_old_answers_may_come() -> None:
    core = ready_core()
    first, second, third = add(core, b"x"), add(core, b"y"), add(core, b"z")
    sends(core)
    core.answered(Produced(token=first.token, error=ChannelReadonly(channel="a")), 0)
    core.answered(Produced(token=second.token, error=OutOfSequence(channel="a", expected=1, got=2)), 0)
    assert not core.wants_identity
    core.answered(Produced(token=third.token, error=OutOfSequence(channel="a", expected=1, got=3)), 0)
    assert core.wants_identity


def test_cp6_what_a_pause_stopped_half_way_is_sent_again_under_its_seqs_where_somebody_resumes() -> None:
    for outlasts in (False, True):
        core = ready_core(outlasts_pause=outlasts)
        flights = [add(core, b"half way"), add(core, b"not begun")]
        sends(core)
        core.answered(Produced(token=flights[0].token, error=LeadershipLost(channel="a", leader_epoch=1)), 0)
        (refused,) = core.answered(Produced(token=flights[1].token, error=ChannelPaused(channel="a")), 0)
        assert isinstance(refused.error, ChannelPaused), "it is certainly not in the log, and may be sent as new"
        core.route_found()
        (again,) = sends(core, 1_000)
        fates = core.answered(Produced(token=again.token, error=ChannelPaused(channel="a")), 1_000)
        if outlasts:
            assert fates == []
            assert [(flight, flight.base_seq) for flight in sends(core, 2_000)] == [(flights[0], 1)]
        else:
            assert [type(fate.error) for fate in fates] == [OutcomeUnknown]


def test_cp5_in_a_channel_that_was_created_again_all_is_numbered_anew_under_a_new_identity() -> None:
    core = ready_core()
    flights = [add(core, b"answered"), add(core, b"sent"), add(core, b"waits")]
    sends(core)
    core.answered(Produced(token=flights[0].token, first_offset=0), 0)
    assert core.recreated(ChannelRecreated(channel="a", expected_id=1, found_id=2)) == []
    core.route_found()
    assert core.wants_identity, "the old channel's seqs mean nothing to the new one"
    assert not sends(core), "nothing leaves under the old identity"
    core.opened(identity(2))
    assert [(flight.made.maker.producer, flight.base_seq) for flight in sends(core)] == [
        (identity(2), 1),
        (identity(2), 2),
    ]


def test_a_fenced_producer_ends_with_all_it_has() -> None:
    core = ready_core(requests_max=1)
    flights = [add(core, b"x"), add(core, b"y")]
    sends(core)
    fenced = ProducerFenced(channel="a", epoch=1, newest=2)
    fates = core.answered(Produced(token=flights[0].token, error=fenced), 0)
    assert [fate.flight for fate in fates] == flights
    assert all(isinstance(fate.error, ProducerFenced) for fate in fates)
    assert core.fatal is fenced
    assert not core.may_cut


def test_a_late_block_ends_as_unknown_if_it_was_sent_and_as_its_refusal_if_not() -> None:
    core = ready_core(requests_max=1)
    sent, waiting = add(core, b"x", deadline_ms=100), add(core, b"y", deadline_ms=200)
    sends(core)
    assert core.wake(99) == []
    (fate,) = core.wake(100)
    assert fate.flight is sent
    assert isinstance(fate.error, WaitTimedOut)
    core.route_problem = NotChannelLeader(channel="a", leader=None)
    core.wants_route = True
    (fate,) = core.wake(200)
    assert fate.flight is waiting
    assert isinstance(fate.error, NotChannelLeader)
    assert len(core) == 0


def test_closing_tells_sent_blocks_from_unsent_ones() -> None:
    core = ready_core(requests_max=1)
    add(core, b"x")
    add(core, b"y")
    sends(core)
    errors = [fate.error for fate in core.end()]
    assert [type(error) for error in errors] == [OutcomeUnknown, ClientClosed]


@pytest.mark.parametrize(
    ("sizes", "leaving"),
    [
        ([10, 10, 10], 3),
        ([10, SMALL_BYTES_MAX + 1], 2),
        ([SMALL_BYTES_MAX + 1, 10], 1),
        ([SMALL_BYTES_MAX + 1, SMALL_BYTES_MAX + 1], 2),
        ([IN_TURN_BYTES_MAX + 1, SMALL_BYTES_MAX + 1], 1),
        ([SMALL_BYTES_MAX + 1, IN_TURN_BYTES_MAX + 1], 1),
    ],
)
def test_nothing_leaves_that_the_link_could_let_overtake(sizes: list[int], leaving: int) -> None:
    core = ready_core()
    for size in sizes:
        add(core, bytes(size))
    assert len(sends(core)) == leaving


# --- everything at once ----------------------------------------------------------------------------


@dataclass
class Node:
    """A leader as producers know it: no gaps in seqs, and what is there already is answered with its place."""

    log: list[bytes] = field(default_factory=list)
    committed: int = 0
    epoch: int = 0
    blocks: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Producer epoch, base seq, count and offset of each block."""

    def produce(self, made: MadeBlock) -> int:
        epoch = int.from_bytes(made.maker.producer[8:], "little")
        if epoch < self.epoch:
            raise ProducerFenced(channel="a", epoch=epoch, newest=self.epoch)
        self.epoch = epoch
        base, count = made.maker.base_seq, made.maker.record_count
        expected = 1
        for other, seq, records, offset in self.blocks:
            if other == epoch:
                if seq == base:
                    return offset
                expected = seq + records
        if base != expected:
            raise OutOfSequence(channel="a", expected=expected, got=base)
        self.blocks.append((epoch, base, count, len(self.log)))
        self.log += values_of(made)
        return self.blocks[-1][3]

    def cut(self) -> None:
        """A new leader that holds nothing but what was committed."""
        del self.log[self.committed :]
        self.blocks = [block for block in self.blocks if block[3] < self.committed]


class World:
    """A core, a node, and two lossy ways between them. Every step is drawn from the generator."""

    def __init__(self, dice: random.Random, *, deadlines: bool) -> None:
        self.dice = dice
        self.deadlines = deadlines
        self.now_ms = 0
        self.core = new_core(requests_max=dice.choice([1, 2, 4]))
        self.node = Node()
        self.has_leader = True
        self.opened = 0
        self.way_out: list[tuple[int, MadeBlock]] = []
        self.late: list[MadeBlock] = []
        """Blocks of links that broke; some still arrive."""
        self.pending: list[tuple[int, int]] = []
        """Tokens and ends that wait for the commit."""
        self.way_back: list[Produced] = []
        self.sent: list[bytes] = []
        self.fates: dict[bytes, Fate] = {}
        self.refusals: list[LogError] = []

    def step(self) -> None:
        actions = [
            self.add,
            self.add,
            self.pump,
            self.pump,
            self.arrive,
            self.arrive,
            self.commit,
            self.back,
            self.back,
        ]
        actions += [self.lose_link, self.move, self.refuse, self.stray, self.tick]
        self.dice.choice(actions)()

    def add(self) -> None:
        if self.core.may_cut and len(self.core) < 8:
            count = self.dice.randint(1, 3)
            values = [f"{len(self.sent) + number}".encode() for number in range(count)]
            self.sent += values
            deadline_ms = self.now_ms + self.dice.randint(1, 60) if self.deadlines else FOREVER_MS
            add(self.core, *values, deadline_ms=deadline_ms)

    def pump(self) -> None:
        if self.core.wants_identity:
            self.opened += 1
            self.core.opened(identity(self.opened))
        if self.core.wants_route and self.has_leader:
            if self.dice.random() < 0.5:
                # Another leader; the link to the old one stays open, and its answers still come.
                self.core.route_lost()
                self.late += [made for _, made in self.way_out]
                self.way_out = []
            self.core.route_found()
        for flight in sends(self.core, self.now_ms):
            self.way_out.append((flight.token, flight.made))

    def arrive(self) -> None:
        if self.way_out:
            token, made = self.way_out.pop(0)
            try:
                if not self.has_leader:
                    raise NotChannelLeader(channel="a", leader=None)
                if self.refusals:
                    raise self.refusals.pop()
                offset = self.node.produce(made)
            except LogError as error:
                self.way_back.append(Produced(token=token, error=error))
            else:
                self.pending.append((token, offset))
                self.settle()

    def commit(self) -> None:
        if self.has_leader:
            self.node.committed = len(self.node.log)
        self.settle()

    def settle(self) -> None:
        for token, offset in list(self.pending):
            if offset < self.node.committed:
                self.pending.remove((token, offset))
                self.way_back.append(Produced(token=token, first_offset=offset))

    def back(self) -> None:
        if self.way_back:
            self.take(self.core.answered(self.way_back.pop(0), self.now_ms))

    def lose_way(self) -> None:
        self.late += [made for _, made in self.way_out]
        self.way_out, self.way_back, self.pending = [], [], []

    def lose_link(self) -> None:
        self.core.route_lost()
        self.lose_way()

    def stray(self) -> None:
        """What was on a broken link arrives after all, while the producer waits for nothing else."""
        if self.late and self.has_leader and not self.core.wants_identity:
            made = self.late.pop(0)
            if made.maker.producer == self.core.identity:
                try:
                    self.node.produce(made)
                except LogError:
                    return

    def move(self) -> None:
        self.has_leader = not self.has_leader
        self.late.clear()
        for token, _ in self.pending:
            self.way_back.append(Produced(token=token, error=LeadershipLost(channel="a", leader_epoch=1)))
        self.pending.clear()
        if self.dice.random() < 0.5:
            self.node.cut()

    def refuse(self) -> None:
        self.refusals.append(NotEnoughReplicas(channel="a", isr=1, min_isr=2))

    def tick(self) -> None:
        self.now_ms += self.dice.randint(0, 20)
        self.take(self.core.wake(self.now_ms))

    def take(self, fates: list[Fate]) -> None:
        for fate in fates:
            for index, value in enumerate(values_of(fate.flight.made)):
                assert value not in self.fates, "CP2: told twice"
                self.fates[value] = Fate(fate.flight, fate.first_offset + index, fate.error)
            fate.flight.batch.finish(fate.first_offset, fate.error)

    def heal(self) -> None:
        self.has_leader = True
        self.refusals.clear()
        for _ in range(200):
            self.now_ms += 5
            self.pump()
            while self.way_out:
                self.arrive()
            self.commit()
            while self.way_back:
                self.back()
            if not len(self.core):
                return
        raise AssertionError("the producer never comes to rest")


@settings(deadline=None, max_examples=300)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 150))
def test_any_interleaving_of_answers_losses_and_moves_leaves_each_record_once_in_order(seed: int, steps: int) -> None:
    world = World(random.Random(seed), deadlines=False)
    for _ in range(steps):
        world.step()
    world.heal()
    assert world.node.log == world.sent
    assert {value: fate.first_offset for value, fate in world.fates.items()} == {
        value: offset for offset, value in enumerate(world.sent)
    }


@settings(deadline=None, max_examples=300)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 150))
def test_with_deadlines_what_is_said_of_a_record_is_true(seed: int, steps: int) -> None:
    world = World(random.Random(seed), deadlines=True)
    for _ in range(steps):
        world.step()
    world.heal()
    log = world.node.log
    assert len(set(log)) == len(log), "a record is in the log twice"
    assert log == [value for value in world.sent if value in set(log)], "records changed places"
    assert world.fates.keys() == set(world.sent)
    for value, fate in world.fates.items():
        if fate.error is None:
            assert log[fate.first_offset] == value
        elif fate.error.definite:
            assert value not in log


def test_cp3_what_may_be_in_the_log_is_not_sent_again_under_another_identity() -> None:
    """The producer was closed while the answer to a block was lost: nobody can say any more whether it is there."""
    core = ready_core(requests_max=1)
    unsure, fresh = add(core, b"0"), add(core, b"1")
    assert sends(core) == [unsure]
    core.route_lost()
    core.route_found()
    assert sends(core) == [unsure]
    fates = core.answered(Produced(token=unsure.token, error=UnknownProducer(producer=7)), 2)
    assert [(fate.flight, type(fate.error)) for fate in fates] == [(unsure, OutcomeUnknown)]
    assert core.wants_identity
    core.opened(identity(2))
    assert (fresh.base_seq, fresh.made.maker.producer) == (1, identity(2))
