"""Who deposes a silent leader, and who never does (R6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tidelog.core.catalog.channel_config import ChannelConfig, Keeps
from tidelog.core.catalog.records import ChannelRecord, Member
from tidelog.core.replication.witnesses import Witnesses, needed

TIMEOUT_MS = 1_000


def silent(_leader: str) -> bool:
    return True


def heard(_leader: str) -> bool:
    return False


def channel(*isr: str, leader: str | None = "n1", epoch: int = 7, channel_id: int = 1) -> ChannelRecord:
    return ChannelRecord(
        channel_id=channel_id,
        name=f"c{channel_id}",
        config=ChannelConfig(),
        replicas=isr,
        leader=leader,
        leader_incarnation=1,
        isr=tuple(Member(node=node, incarnation=1, keeps=Keeps.SYNCED) for node in isr),
        eligible=(),
        leader_epoch=epoch,
        channel_epoch=epoch,
        paused=False,
        readonly=False,
        created_index=1,
        created_at_ms=0,
        changed_index=1,
    )


def tell(witnesses: Witnesses, record: ChannelRecord, *names: str, now_ms: int = 0) -> None:
    for name in names:
        witnesses.report(
            record,
            witness=name,
            leader=record.leader or "",
            leader_epoch=record.leader_epoch,
            channel_epoch=record.channel_epoch,
            now_ms=now_ms,
        )


@pytest.fixture
def witnesses() -> Witnesses:
    return Witnesses(leader_timeout_ms=TIMEOUT_MS)


@pytest.mark.parametrize(("size", "enough"), [(2, 1), (3, 2), (4, 2), (5, 3), (16, 8)])
def test_more_than_half_of_the_others_depose(witnesses: Witnesses, size: int, enough: int) -> None:
    record = channel(*(f"n{number}" for number in range(1, size + 1)))
    assert needed(record) == enough
    others = [member.node for member in record.isr[1:]]
    tell(witnesses, record, *others[: enough - 1])
    assert not witnesses.deposes(record, is_silent=silent, now_ms=0)
    tell(witnesses, record, others[enough - 1])
    assert witnesses.deposes(record, is_silent=silent, now_ms=0)


def test_one_bad_link_does_not_depose_the_leader_of_two(witnesses: Witnesses) -> None:
    """Liftbridge's weakness 7: with two in sync, one report was enough."""
    record = channel("n1", "n2")
    tell(witnesses, record, "n2")
    assert not witnesses.deposes(record, is_silent=heard, now_ms=0)
    assert witnesses.deposes(record, is_silent=silent, now_ms=0)


def test_a_leader_with_a_fresh_sign_is_kept_against_any_reports(witnesses: Witnesses) -> None:
    record = channel("n1", "n2", "n3")
    tell(witnesses, record, "n2", "n3")
    assert not witnesses.deposes(record, is_silent=heard, now_ms=0)


def test_nobody_deposes_a_leader_that_is_alone(witnesses: Witnesses) -> None:
    record = channel("n1")
    tell(witnesses, record, "n1", "n2")
    assert not witnesses.deposes(record, is_silent=silent, now_ms=0)


def test_a_channel_without_a_leader_has_none_to_depose(witnesses: Witnesses) -> None:
    record = channel("n1", "n2", leader=None)
    assert not witnesses.report(record, witness="n2", leader="n1", leader_epoch=7, channel_epoch=7, now_ms=0)
    assert not witnesses.deposes(record, is_silent=silent, now_ms=0)


def test_one_witness_that_repeats_itself_stays_one(witnesses: Witnesses) -> None:
    record = channel("n1", "n2", "n3")
    tell(witnesses, record, "n2", "n2", "n2")
    assert witnesses.witnesses(record, 0) == ("n2",)
    assert not witnesses.deposes(record, is_silent=silent, now_ms=0)


@pytest.mark.parametrize(
    ("witness", "leader", "epoch", "channel_epoch"),
    [
        ("n9", "n1", 7, 7),
        ("n1", "n1", 7, 7),
        ("n2", "n3", 7, 7),
        ("n2", "n1", 6, 7),
        ("n2", "n1", 8, 7),
        ("n2", "n1", 7, 6),
        ("n2", "n1", 7, 8),
    ],
    ids=[
        "a stranger",
        "the leader itself",
        "another leader",
        "an old epoch",
        "an epoch to come",
        "an old epoch of the channel",
        "one to come",
    ],
)
def test_what_does_not_fit_the_catalog_is_ignored(
    witnesses: Witnesses, witness: str, leader: str, epoch: int, channel_epoch: int
) -> None:
    record = channel("n1", "n2", "n3")
    assert not witnesses.report(
        record, witness=witness, leader=leader, leader_epoch=epoch, channel_epoch=channel_epoch, now_ms=0
    )
    assert witnesses.witnesses(record, 0) == ()
    assert witnesses.statistics().reports_ignored == 1
    assert witnesses.statistics().channels == 0


def test_a_report_counts_for_the_timeout_and_not_longer(witnesses: Witnesses) -> None:
    record = channel("n1", "n2")
    tell(witnesses, record, "n2", now_ms=100)
    assert witnesses.deposes(record, is_silent=silent, now_ms=100 + TIMEOUT_MS - 1)
    assert not witnesses.deposes(record, is_silent=silent, now_ms=100 + TIMEOUT_MS)


def test_reports_that_never_met_within_the_timeout_do_not_add_up(witnesses: Witnesses) -> None:
    record = channel("n1", "n2", "n3")
    tell(witnesses, record, "n2", now_ms=0)
    tell(witnesses, record, "n3", now_ms=TIMEOUT_MS)
    assert not witnesses.deposes(record, is_silent=silent, now_ms=TIMEOUT_MS)
    tell(witnesses, record, "n2", now_ms=TIMEOUT_MS + 1)
    assert witnesses.deposes(record, is_silent=silent, now_ms=TIMEOUT_MS + 1)


def test_reports_of_a_channel_with_a_slow_heartbeat_count_until_they_are_repeated(witnesses: Witnesses) -> None:
    """Each is repeated once in a heartbeat; with a shorter window those of two witnesses might never meet."""
    heartbeat_ms = 10 * TIMEOUT_MS
    record = replace(channel("n1", "n2", "n3"), config=ChannelConfig(heartbeat_ms=heartbeat_ms))
    tell(witnesses, record, "n2", now_ms=0)
    tell(witnesses, channel("n1", "n2", channel_id=2), "n2", now_ms=5_000)  # also when what is old is forgotten
    tell(witnesses, record, "n3", now_ms=9_000)
    assert witnesses.deposes(record, is_silent=silent, now_ms=9_000)
    assert witnesses.deposes(record, is_silent=silent, now_ms=2 * heartbeat_ms - 1)
    assert not witnesses.deposes(record, is_silent=silent, now_ms=2 * heartbeat_ms)
    assert witnesses.witnesses(record, 9_000 + 2 * heartbeat_ms) == ()
    witnesses.wake(9_000 + 2 * heartbeat_ms)
    assert witnesses.statistics().channels == 0


def test_an_election_clears_the_witnesses(witnesses: Witnesses) -> None:
    """Liftbridge's weakness 7: the next single report deposed the new leader."""
    before = channel("n1", "n2", "n3")
    tell(witnesses, before, "n2", "n3")
    witnesses.elected(before.channel_id)
    assert witnesses.witnesses(before, 0) == ()
    after = channel("n1", "n2", "n3", leader="n2", epoch=8)
    tell(witnesses, after, "n3")
    assert witnesses.witnesses(after, 0) == ("n3",)
    assert not witnesses.deposes(after, is_silent=silent, now_ms=0)


def test_witnesses_of_an_older_epoch_count_for_nothing_even_if_nobody_cleared_them(witnesses: Witnesses) -> None:
    tell(witnesses, channel("n1", "n2", "n3"), "n2", "n3")
    after = channel("n1", "n2", "n3", epoch=8)
    assert not witnesses.deposes(after, is_silent=silent, now_ms=0)
    tell(witnesses, after, "n2")
    assert witnesses.witnesses(after, 0) == ("n2",)


def test_a_witness_that_left_the_isr_no_longer_counts(witnesses: Witnesses) -> None:
    tell(witnesses, channel("n1", "n2", "n3"), "n2", "n3")
    shrunk = channel("n1", "n3", "n4")
    assert witnesses.witnesses(shrunk, 0) == ("n3",)
    assert not witnesses.deposes(shrunk, is_silent=silent, now_ms=0)


def test_losing_the_metadata_clears_everything(witnesses: Witnesses) -> None:
    record = channel("n1", "n2")
    tell(witnesses, record, "n2")
    witnesses.clear()
    assert not witnesses.deposes(record, is_silent=silent, now_ms=0)
    assert witnesses.statistics().channels == 0


def test_waking_forgets_what_is_too_old(witnesses: Witnesses) -> None:
    tell(witnesses, channel("n1", "n2", channel_id=1), "n2", now_ms=0)
    tell(witnesses, channel("n1", "n2", channel_id=2), "n2", now_ms=500)
    witnesses.wake(TIMEOUT_MS)
    assert witnesses.statistics().channels == 1


def test_beyond_its_limit_the_channel_reported_longest_ago_makes_room() -> None:
    witnesses = Witnesses(leader_timeout_ms=TIMEOUT_MS, channels_max=2)
    records = [channel("n1", "n2", channel_id=number) for number in (1, 2, 3)]
    tell(witnesses, records[0], "n2", now_ms=0)
    tell(witnesses, records[1], "n2", now_ms=1)
    tell(witnesses, records[0], "n2", now_ms=2)
    tell(witnesses, records[2], "n2", now_ms=3)
    assert [bool(witnesses.witnesses(record, 3)) for record in records] == [True, False, True]
    assert witnesses.statistics().channels_dropped == 1
    tell(witnesses, records[2], "n2", now_ms=4)
    assert witnesses.statistics().channels_dropped == 1, "who is there already needs no room"


def cut_from(*pairs: tuple[str, str]) -> Callable[[str, str], bool]:
    """All hear each other, but for these."""
    return lambda one, other: (one, other) not in pairs and (other, one) not in pairs


def no_one(one: str, other: str) -> bool:
    """No two nodes are known not to hear each other."""
    return False


def test_a_leader_that_does_not_hear_its_followers_is_cut_off_though_they_hear_it(witnesses: Witnesses) -> None:
    """They do not report it: to them it is there, and their requests are lost."""
    record = channel("n1", "n2", "n3")
    for deaf_to, is_over in (({"n2"}, False), ({"n2", "n3"}, True)):
        hears = cut_from(*(("n1", node) for node in deaf_to))
        is_deaf = lambda one, other, deaf_to=deaf_to: one == "n1" and other in deaf_to  # noqa: E731
        assert witnesses.is_cut_off(record, hears=hears, is_deaf=is_deaf, now_ms=0) is is_over
    tell(witnesses, record, "n2")
    alone = cut_from(("n1", "n2"), ("n1", "n3"))
    assert witnesses.is_cut_off(
        record, hears=alone, is_deaf=lambda one, other: (one, other) == ("n1", "n3"), now_ms=0
    ), "one does not hear it, the other is not heard by it"


def test_a_leader_that_its_followers_do_not_hear_is_cut_off_though_it_is_heard_elsewhere(witnesses: Witnesses) -> None:
    record = channel("n1", "n2", "n3")
    tell(witnesses, record, "n2")
    alone = cut_from(("n1", "n2"), ("n1", "n3"))
    assert not witnesses.is_cut_off(record, hears=alone, is_deaf=no_one, now_ms=0), "one of two is no majority"
    tell(witnesses, record, "n3")
    assert not witnesses.deposes(record, is_silent=heard, now_ms=0)
    assert witnesses.is_cut_off(record, hears=alone, is_deaf=no_one, now_ms=0)


def test_nobody_is_deposed_for_one_that_is_no_better_off(witnesses: Witnesses) -> None:
    two = channel("n1", "n2")
    tell(witnesses, two, "n2")
    assert not witnesses.is_cut_off(two, hears=cut_from(("n1", "n2")), is_deaf=no_one, now_ms=0)
    three = replace(channel("n1", "n2", "n3", channel_id=2), config=ChannelConfig(min_isr=2))
    tell(witnesses, three, "n2", "n3")
    nobody = cut_from(("n1", "n2"), ("n1", "n3"), ("n2", "n3"))
    assert not witnesses.is_cut_off(three, hears=nobody, is_deaf=no_one, now_ms=0), "none of them reaches another"


def test_a_leader_whose_isr_has_shrunk_is_cut_off_by_those_who_are_eligible(witnesses: Witnesses) -> None:
    whole = channel("n1", "n2", "n3")
    shrunk = replace(whole, isr=whole.isr[:1], eligible=whole.isr[1:])
    tell(witnesses, shrunk, "n2", "n3")
    assert not witnesses.witnesses(shrunk, 0), "of the ISR nobody is left to report it"
    assert witnesses.is_cut_off(shrunk, hears=cut_from(("n1", "n2"), ("n1", "n3")), is_deaf=no_one, now_ms=0)


class AgainstADumbModel(RuleBasedStateMachine):
    """Every report ever made is kept, and counted anew each time."""

    @initialize(size=st.integers(1, 5))
    def start(self, size: int) -> None:
        self.nodes = [f"n{number}" for number in range(1, 7)]
        self.record = channel(*self.nodes[:size])
        self.witnesses = Witnesses(leader_timeout_ms=TIMEOUT_MS)
        self.said: list[tuple[int, str, str | None, int]] = []
        self.now_ms = 0

    @rule(witness=st.integers(0, 5), behind=st.integers(0, 1), leader=st.sampled_from(["n1", "n2", None]))
    def report(self, witness: int, behind: int, leader: str | None) -> None:
        named = leader or self.record.leader or "n1"
        epoch = self.record.leader_epoch - behind
        name = self.nodes[witness]
        counted = self.witnesses.report(
            self.record,
            witness=name,
            leader=named,
            leader_epoch=epoch,
            channel_epoch=self.record.channel_epoch,
            now_ms=self.now_ms,
        )
        assert counted == (
            named == self.record.leader and not behind and name != named and name in self.record.isr_nodes
        )
        if counted:
            self.said.append((self.now_ms, name, named, epoch))

    @rule(elapsed_ms=st.integers(1, 700))
    def pass_time(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.witnesses.wake(self.now_ms)

    @rule(leader=st.integers(0, 4))
    def elect(self, leader: int) -> None:
        isr = self.record.isr_nodes
        self.record = replace(self.record, leader=isr[leader % len(isr)], leader_epoch=self.record.leader_epoch + 1)
        self.witnesses.elected(self.record.channel_id)
        self.said.clear()

    @rule(size=st.integers(1, 6))
    def resize(self, size: int) -> None:
        """A member that leaves and comes back within the timeout may count again or not: its report is still true."""
        leader = self.record.leader or "n1"
        names = sorted({leader, *self.nodes[:size]})
        gone = set(self.record.isr_nodes) - set(names)
        self.said = [entry for entry in self.said if entry[1] not in gone]
        self.record = replace(
            self.record, isr=tuple(Member(node=name, incarnation=1, keeps=Keeps.SYNCED) for name in names)
        )
        if gone:  # the model is strict about those, so the real one is told again from nothing
            self.witnesses.elected(self.record.channel_id)
            for at_ms, name, named, epoch in self.said:
                self.witnesses.report(
                    self.record,
                    witness=name,
                    leader=named or "",
                    leader_epoch=epoch,
                    channel_epoch=self.record.channel_epoch,
                    now_ms=at_ms,
                )

    @rule()
    def lose_the_metadata(self) -> None:
        self.witnesses.clear()
        self.said.clear()

    @invariant()
    def counts_as_the_model_does(self) -> None:
        if not hasattr(self, "record"):
            return
        names = {
            name
            for at_ms, name, leader, epoch in self.said
            if self.now_ms < at_ms + TIMEOUT_MS
            and (leader, epoch) == (self.record.leader, self.record.leader_epoch)
            and name in self.record.isr_nodes
        }
        assert set(self.witnesses.witnesses(self.record, self.now_ms)) == names
        others = len(self.record.isr) - 1
        majority = len(names) * 2 > others
        assert self.witnesses.deposes(self.record, is_silent=silent, now_ms=self.now_ms) == majority
        assert not self.witnesses.deposes(self.record, is_silent=heard, now_ms=self.now_ms)


TestAgainstADumbModel = AgainstADumbModel.TestCase


@given(
    reports=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 300)), max_size=60),
    channels_max=st.integers(1, 5),
)
def test_memory_stays_within_its_limit(reports: list[tuple[int, int]], channels_max: int) -> None:
    witnesses = Witnesses(leader_timeout_ms=TIMEOUT_MS, channels_max=channels_max)
    now_ms = 0
    for channel_id, elapsed_ms in reports:
        now_ms += elapsed_ms
        tell(witnesses, channel("n1", "n2", channel_id=channel_id), "n2", now_ms=now_ms)
        assert witnesses.statistics().channels <= channels_max
