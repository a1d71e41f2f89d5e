"""Sessions: a node gives itself up before the leader does; nobody is given up for the leader's own pause (L1-L4)."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.liveness import (
    LivenessConfig,
    RenewSession,
    SessionHolder,
    SessionLost,
    SessionRefused,
    SessionRenewed,
    Sessions,
)
from tidelog.core.liveness import sessions as sessions_module
from tidelog.core.liveness.config import believed_ms
from tidelog.errors import TooManyNames

CONFIG = LivenessConfig()


def leading(**nodes: int) -> Sessions:
    sessions = Sessions(config=CONFIG)
    sessions.leader_since(0, nodes)
    return sessions


def run(sessions: Sessions, until_ms: int, *, renewed: tuple[str, ...] = (), start_ms: int = 0) -> list[SessionLost]:
    """Wake it as it wants to be woken; `renewed` nodes renew every 500 ms."""
    lost: list[SessionLost] = []
    now_ms = start_ms
    while now_ms < until_ms:
        if now_ms % 500 == 0:
            for node in renewed:
                sessions.renew(node, 1, now_ms)
        lost += sessions.wake(now_ms)
        wake_at_ms = sessions.wake_at_ms()
        assert wake_at_ms is not None
        now_ms = min(wake_at_ms, (now_ms // 500 + 1) * 500, until_ms)
    return lost + sessions.wake(until_ms)


# --- the metadata leader -------------------------------------------------------------------------


def test_a_silent_node_is_lost_after_the_timeout_and_only_once() -> None:
    """L3"""
    sessions = leading(n1=1, n2=1)
    assert run(sessions, 1_499, renewed=("n1",)) == []
    assert run(sessions, 1_500, renewed=("n1",), start_ms=1_499) == [SessionLost(node="n2", incarnation=1)]
    assert run(sessions, 10_000, renewed=("n1",), start_ms=1_500) == []
    assert (sessions.is_live("n1"), sessions.is_live("n2"), sessions.is_live("n3")) == (True, False, False)


def test_a_fenced_incarnation_is_refused_until_a_higher_one_comes() -> None:
    """L4"""
    sessions = leading(n1=7)
    assert run(sessions, 1_500) == [SessionLost(node="n1", incarnation=7)]
    assert sessions.renew("n1", 7, 1_600) == SessionRefused(node="n1", incarnation=7)
    assert sessions.renew("n1", 6, 1_600) == SessionRefused(node="n1", incarnation=6)
    answer = sessions.renew("n1", 8, 1_600, counter=3)
    assert answer == SessionRenewed(node="n1", incarnation=8, counter=3, timeout_ms=1_500)
    assert sessions.renew("n1", 7, 1_700) == SessionRefused(node="n1", incarnation=7)
    assert run(sessions, 3_100, start_ms=1_600) == [SessionLost(node="n1", incarnation=8)]


def test_a_loss_that_could_not_be_made_a_fence_is_said_again_after_another_timeout() -> None:
    """L3"""
    sessions = leading(n1=1)
    assert run(sessions, 1_500) == [SessionLost(node="n1", incarnation=1)]
    sessions.keep("n1", 1_600)
    sessions.keep("n9", 1_600)
    assert sessions.is_live("n1")
    assert run(sessions, 3_099, start_ms=1_500) == []
    assert run(sessions, 3_100, start_ms=3_099) == [SessionLost(node="n1", incarnation=1)]


def test_a_fence_by_the_catalog_is_not_said_again_and_does_not_touch_a_later_incarnation() -> None:
    sessions = leading(n1=1, n2=5)
    sessions.fence("n1", 1)
    sessions.fence("n2", 4)
    sessions.fence("n9", 1)
    assert sessions.renew("n1", 1, 10) == SessionRefused(node="n1", incarnation=1)
    assert run(sessions, 1_500) == [SessionLost(node="n2", incarnation=5)]


def test_a_removed_node_is_forgotten() -> None:
    sessions = leading(n1=1)
    sessions.forget("n1")
    assert run(sessions, 2_000) == []


def test_a_new_leader_gives_everybody_a_whole_timeout_and_remembers_who_is_fenced() -> None:
    """L2"""
    sessions = Sessions(config=CONFIG)
    sessions.leader_since(10_000, {"n1": 1, "n2": 2}, fenced={"n3": 3})
    assert run(sessions, 11_499, start_ms=10_000) == []
    assert sessions.renew("n3", 3, 11_499) == SessionRefused(node="n3", incarnation=3)
    assert [lost.node for lost in run(sessions, 11_500, start_ms=11_499)] == ["n1", "n2"]


def test_who_does_not_lead_says_nothing() -> None:
    sessions = leading(n1=1)
    sessions.step_down()
    assert sessions.renew("n1", 1, 10) is None
    assert sessions.wake(100_000) == []
    assert sessions.wake_at_ms() is None
    assert not sessions.is_leading


def test_a_leader_that_was_stopped_gives_grace_instead_of_fencing_all_at_once() -> None:
    """L2: SIGSTOP of the leader; the renewals of everybody wait in its socket buffers."""
    sessions = leading(n1=1, n2=1)
    run(sessions, 1_000, renewed=("n1", "n2"))
    assert sessions.wake(61_000) == []
    assert sessions.statistics().graces == 1
    assert run(sessions, 62_499, renewed=("n1",), start_ms=61_000) == []
    assert [lost.node for lost in run(sessions, 62_500, renewed=("n1",), start_ms=62_499)] == ["n2"]


def test_a_leader_that_is_woken_as_it_asks_gives_no_grace() -> None:
    sessions = leading(n1=1)
    run(sessions, 20_000)
    statistics = sessions.statistics()
    assert (statistics.graces, statistics.losses, statistics.live, statistics.lost) == (0, 1, 0, 1)


def test_there_is_a_limit_to_the_number_of_sessions() -> None:
    sessions = Sessions(config=LivenessConfig(nodes_max=2))
    sessions.leader_since(0, {"n1": 1})
    sessions.renew("n2", 1, 0)
    with pytest.raises(TooManyNames):
        sessions.renew("n3", 1, 0)
    with pytest.raises(TooManyNames):
        sessions.leader_since(0, {"n1": 1, "n2": 1}, fenced={"n3": 1})


# --- the node ------------------------------------------------------------------------------------


def holder_of(leader: str | None = "n9", incarnation: int = 1) -> SessionHolder:
    holder = SessionHolder(node="n1", incarnation=incarnation, config=CONFIG, now_ms=0)
    holder.set_leader(leader, 0)
    return holder


def answered(renewal: RenewSession, *, timeout_ms: int = 1_500, confirmed_ago_ms: int = 0) -> SessionRenewed:
    return SessionRenewed(
        node=renewal.node,
        incarnation=renewal.incarnation,
        counter=renewal.counter,
        timeout_ms=timeout_ms,
        confirmed_ago_ms=confirmed_ago_ms,
    )


def test_a_node_renews_on_every_heartbeat_interval_and_at_once_with_a_new_leader() -> None:
    holder = holder_of(None)
    assert holder.wake_at_ms() is None
    assert holder.wake(0) == []
    holder.set_leader("n9", 10)
    assert holder.wake_at_ms() == 10
    assert holder.wake(10) == [("n9", RenewSession(node="n1", incarnation=1, counter=1))]
    assert holder.wake(509) == []
    holder.set_leader("n9", 509)
    assert holder.wake_at_ms() == 510, "the same leader is no news"
    holder.set_leader("n8", 100)
    assert holder.wake(100) == [("n8", RenewSession(node="n1", incarnation=1, counter=2))]


def test_a_session_counts_from_the_sending_of_the_renewal_and_ends_a_margin_early() -> None:
    """L1"""
    holder = holder_of()
    ((_, renewal),) = holder.wake(0)
    assert not holder.is_valid(0)
    holder.receive(answered(renewal))  # whenever it arrives
    assert holder.valid_until_ms() == 1_346
    assert holder.is_valid(1_345)
    assert not holder.is_valid(1_346)


def test_the_age_of_the_leaders_proof_and_a_shorter_timeout_make_a_session_shorter() -> None:
    """L1: a successor may count from when the proof was begun."""
    for answer, until_ms in [
        ({"confirmed_ago_ms": 90}, 1_246),
        ({"timeout_ms": 900}, 806),
        ({"timeout_ms": 9_000}, 1_346),
    ]:
        holder = holder_of()
        ((_, renewal),) = holder.wake(0)
        holder.receive(answered(renewal, **answer))
        assert holder.valid_until_ms() == until_ms


def test_an_answer_counts_once_and_only_for_this_node_and_incarnation() -> None:
    holder = holder_of(incarnation=4)
    ((_, first),) = holder.wake(0)
    ((_, second),) = holder.wake(500)
    stranger = SessionRenewed(node="n2", incarnation=4, counter=second.counter, timeout_ms=1_500)
    former = SessionRenewed(node="n1", incarnation=3, counter=second.counter, timeout_ms=1_500)
    made_up = SessionRenewed(node="n1", incarnation=4, counter=99, timeout_ms=1_500)
    for answer in (stranger, former, made_up):
        holder.receive(answer)
        assert not holder.is_valid(500)
    holder.receive(answered(second))
    assert holder.valid_until_ms() == 1_846
    holder.receive(answered(first))
    assert holder.valid_until_ms() == 1_846, "an overtaken answer takes nothing away"
    ((_, third),) = holder.wake(1_000)
    holder.receive(answered(third, confirmed_ago_ms=1_200))
    assert holder.valid_until_ms() == 1_846, "nor does a weaker promise: the stronger one was given"


def test_an_expired_session_comes_back_with_the_next_answer() -> None:
    holder = holder_of()
    ((_, renewal),) = holder.wake(0)
    holder.receive(answered(renewal))
    assert not holder.is_valid(5_000)
    ((_, renewal),) = holder.wake(5_000)
    holder.receive(answered(renewal))
    assert holder.is_valid(5_001)


def test_a_fenced_node_is_silent_until_it_restarts_with_a_higher_incarnation() -> None:
    holder = holder_of(incarnation=4)
    ((_, renewal),) = holder.wake(0)
    holder.receive(answered(renewal))
    holder.receive(SessionRefused(node="n1", incarnation=3))
    holder.receive(SessionRefused(node="n2", incarnation=4))
    assert holder.is_valid(10), "old news, and somebody else's"
    holder.fenced(4)
    assert holder.is_fenced
    assert not holder.is_valid(10)
    assert (holder.wake(1_000), holder.wake_at_ms(), holder.valid_until_ms()) == ([], None, None)
    holder.restart(5, 1_000)
    assert not holder.is_valid(1_000), "what was promised to the former incarnation is void"
    assert holder.wake(1_000)[0][1].incarnation == 5


def test_renewals_that_nobody_answers_take_bounded_memory() -> None:
    holder = holder_of()
    for now_ms in range(0, 100_000, 500):
        assert len(holder.wake(now_ms)) == 1
    holder.receive(SessionRenewed(node="n1", incarnation=1, counter=100, timeout_ms=1_500))
    assert holder.valid_until_ms() is None, "so old an answer promises nothing any more"


# --- both, through a bad network and with bad clocks ---------------------------------------------


@dataclass
class Clock:
    """A steady clock that runs a little fast or slow and started at any time."""

    rate_percent: int
    offset_ms: int

    def __call__(self, true_us: int) -> int:
        return self.offset_ms + true_us * self.rate_percent // 100_000


@dataclass
class Story:
    """One node, a metadata leader and its successor. The first may go on answering after it was replaced."""

    seed: int
    rates_percent: tuple[int, int, int]
    config: LivenessConfig = CONFIG
    given_up_us: int | None = None
    believed_while_given_up: bool = False
    valid_steps: int = 0
    flight: list[tuple[int, str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        offsets = [self.rng.randrange(10**9) for _ in range(3)]
        self.node_clock, *self.leader_clocks = map(Clock, self.rates_percent, offsets)
        self.holder = SessionHolder(node="n1", incarnation=1, config=self.config, now_ms=self.node_clock(0))
        self.holder.set_leader("a", self.node_clock(0))
        self.leaders = [Sessions(config=self.config), Sessions(config=self.config)]
        self.leaders[0].leader_since(self.leader_clocks[0](0), {"n1": 1})
        self.confirmed_us = [0, 0]
        self.loss = self.rng.choice((0.0, 0.2, 0.6))
        self.delay_us = self.rng.choice((1_000, 100_000, 2_000_000))

    def post(self, true_us: int, to: str, message: object) -> None:
        if self.rng.random() >= self.loss:
            self.flight.append((true_us + self.rng.randrange(self.delay_us), to, message))

    def deliver(self, true_us: int) -> None:
        arrived = [item for item in self.flight if item[0] <= true_us]
        self.flight = [item for item in self.flight if item[0] > true_us]
        for _, to, message in arrived:
            if isinstance(message, RenewSession):
                number = "ab".index(to)
                clock = self.leader_clocks[number]
                answer = self.leaders[number].renew(
                    "n1", 1, clock(true_us), counter=message.counter, confirmed_ms=clock(self.confirmed_us[number])
                )
                if answer is not None:
                    self.post(true_us, "n1", answer)
            else:
                assert isinstance(message, SessionRenewed | SessionRefused)
                # The word that it is fenced would only help; the node must know without it.
                if isinstance(message, SessionRenewed):
                    self.holder.receive(message)

    def succeed(self, true_us: int) -> None:
        """The successor begins to lead; a loss that the first one said may have become a fence, or come to nothing."""
        fenced = self.given_up_us is not None and self.rng.random() < 0.5
        node = {"n1": 1}
        now_ms = self.leader_clocks[1](true_us)
        self.leaders[1].leader_since(now_ms, {} if fenced else node, fenced=node if fenced else {})
        self.given_up_us = self.given_up_us if fenced else None
        self.confirmed_us[1] = true_us

    def play(self, seconds: int = 12) -> Story:
        true_us, replaced_us = 0, self.rng.randrange(1, 8_000_000)
        follow_us = replaced_us + self.rng.randrange(0, 6_000_000)
        dies_us = self.rng.choice((10**12, self.rng.randrange(12_000_000)))
        while true_us < seconds * 1_000_000 and not self.believed_while_given_up:
            true_us += self.rng.randrange(1, 40_000)
            acting = int(true_us >= replaced_us)
            if self.rng.random() < 0.3:
                self.confirmed_us[acting] = true_us
            if acting and not self.leaders[1].is_leading:
                self.succeed(true_us)
            if true_us >= follow_us:
                self.holder.set_leader("b", self.node_clock(true_us))
            self.deliver(true_us)
            if true_us < dies_us:
                for to, renewal in self.holder.wake(self.node_clock(true_us)):
                    self.post(true_us, to, renewal)
            if self.leaders[acting].wake(self.leader_clocks[acting](true_us)):
                self.given_up_us = true_us
            valid = self.holder.is_valid(self.node_clock(true_us))
            self.valid_steps += valid
            self.believed_while_given_up = valid and self.given_up_us is not None
        return self


@given(
    seed=st.integers(0, 2**32),
    rates_percent=st.tuples(*[st.sampled_from((95, 97, 100, 103, 105))] * 3),
    heartbeat_ms=st.sampled_from((100, 500)),
)
def test_a_node_never_believes_in_a_session_that_was_given_up(
    seed: int, rates_percent: tuple[int, int, int], heartbeat_ms: int
) -> None:
    """L1: any delay, loss, order, change of leader, and clocks that run up to 5 % wrong."""
    config = LivenessConfig(heartbeat_ms=heartbeat_ms, session_timeout_ms=3 * heartbeat_ms)
    story = Story(seed, rates_percent, config).play()
    assert not story.believed_while_given_up, f"seed {seed}, rates {rates_percent}, given up at {story.given_up_us} us"


def test_the_stories_contain_sessions_that_live_and_sessions_that_are_lost() -> None:
    stories = [Story(seed, (100, 100, 100)).play() for seed in range(40)]
    assert sum(story.given_up_us is not None for story in stories) >= 5
    assert sum(story.valid_steps > 300 for story in stories) >= 5


@pytest.mark.parametrize("planted", ["no margin", "the proof's age is ignored", "twice the timeout"])
def test_the_stories_catch_a_planted_bug(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = believed_ms

    def broken(*, timeout_ms: int, confirmed_ago_ms: int, margin_percent: int) -> int:
        if planted == "no margin":
            return timeout_ms - confirmed_ago_ms
        if planted == "twice the timeout":
            timeout_ms *= 2
        return honest(timeout_ms=timeout_ms, confirmed_ago_ms=0, margin_percent=margin_percent)

    monkeypatch.setattr(sessions_module, "believed_ms", broken)
    caught = (seed for seed in range(2_000) if Story(seed, (95, 105, 105)).play().believed_while_given_up)
    assert next(caught, None) is not None


@given(seed=st.integers(0, 2**32), rate_percent=st.integers(95, 105))
def test_a_session_lasts_as_long_as_messages_get_through(seed: int, rate_percent: int) -> None:
    story = Story(seed, (rate_percent, 100, 100))
    story.loss, story.delay_us = 0.0, 200_000
    first_us: int | None = None
    for true_us in range(0, 10_000_000, 20_000):
        story.confirmed_us[0] = true_us
        story.deliver(true_us)
        for to, renewal in story.holder.wake(story.node_clock(true_us)):
            story.post(true_us, to, renewal)
        assert story.leaders[0].wake(story.leader_clocks[0](true_us)) == [], f"seed {seed}"
        valid = story.holder.is_valid(story.node_clock(true_us))
        first_us = true_us if valid and first_us is None else first_us
        assert valid or first_us is None, f"seed {seed}: lost at {true_us} us"
    assert first_us is not None
    assert first_us <= 500_000, f"seed {seed}"
