"""The cloud's half of the uplink against the rules of the seed and of rules.md (F, U)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidelog.core.uplink.facts import DeclareLost, DeclareVoid, OpenLineage
from tidelog.core.uplink.fold import ChannelFold
from tidelog.core.uplink.messages import (
    BackfillAck,
    BackfillData,
    BackfillGone,
    BackfillUnread,
    Hello,
    LiveAck,
    LiveData,
    LiveStatus,
    Refused,
    Welcome,
)
from tidelog.core.uplink.receiver import (
    AppendBlock,
    Note,
    ReceiverLimits,
    Reply,
    UplinkReceiver,
)
from tidelog.errors import (
    ConflictingFrames,
    InvalidConfig,
    InvalidRecord,
    LagExceeded,
    RateExceeded,
    SessionFenced,
    TooManyHoles,
)

A, B, NEW = b"a" * 16, b"b" * 16, b"n" * 16


class Cloud:
    """A receiver whose log commits at once, unless told not to."""

    def __init__(self, fold: ChannelFold | None = None, **limits: Any) -> None:
        self.receiver: UplinkReceiver[str] = UplinkReceiver(fold=fold or ChannelFold(), limits=ReceiverLimits(**limits))
        self.appends: list[AppendBlock[str]] = []
        self.notes: list[Any] = []
        self.replies: list[Any] = []
        self.waiting = 0
        self.now_ms = 0

    def take(self, effects: list[Any], *, commit: bool = True) -> list[Any]:
        before = len(self.replies)
        for effect in effects:
            match effect:
                case AppendBlock():
                    self.appends.append(effect)
                    self.waiting += 1
                case Note(facts):
                    self.notes.extend(facts)
                    self.waiting += 1
                case Reply(message):
                    self.replies.append(message)
        if commit:
            self.commit()
        return self.replies[before:]

    def commit(self) -> list[Any]:
        before = len(self.replies)
        count, self.waiting = self.waiting, 0
        for effect in self.receiver.committed(count):
            assert isinstance(effect, Reply)
            self.replies.append(effect.message)
        return self.replies[before:]

    def hello(self, head: int, lineage: bytes | None = A, **more: Any) -> Welcome:
        commit = more.pop("commit", True)
        if lineage is not None:
            more = {"boot_id": b"1", "sent_through": head} | more
        hello = Hello(head=head, lineage=lineage, **more)
        replies = self.take(self.receiver.hello(hello, new_lineage=NEW, now_ms=self.now_ms), commit=commit)
        return next(reply for reply in replies if isinstance(reply, Welcome)) if commit else None  # type: ignore[return-value]

    def held_end(self) -> int:
        return self.receiver.appended.lineage(self.receiver.lineage or b"").held.end

    def live(self, start: int, stop: int, *, session: int | None = None, commit: bool = True) -> list[Any]:
        message = LiveData(session=session or self.receiver.session, seqs=range(start, stop), block=f"{start}-{stop}")
        return self.take(self.receiver.live(message, now_ms=self.now_ms), commit=commit)

    def backfill(self, start: int, stop: int, *, commit: bool = True) -> list[Any]:
        message = BackfillData(session=self.receiver.session, seqs=range(start, stop), block=f"{start}-{stop}")
        return self.take(self.receiver.backfill(message), commit=commit)

    def gone(self, start: int, stop: int, *, commit: bool = True) -> list[Any]:
        message = BackfillGone(session=self.receiver.session, seqs=range(start, stop))
        return self.take(self.receiver.gone(message), commit=commit)

    def status(self, head: int) -> None:
        self.receiver.status(LiveStatus(session=self.receiver.session, head=head, journal_bytes=0))


def at_cursor(cursor: int) -> Cloud:
    fold = ChannelFold()
    fold.session_opened(A, head=cursor, session=1, boot_id=b"1")
    fold.data(A, [range(1, cursor + 1)])
    return Cloud(fold)


# --- Handshake -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cursor", "head", "holes", "live_start"),
    [
        (0, 0, (), 1),
        (0, 50, (range(1, 51),), 51),
        (100, 100, (), 101),
        (100, 101, (range(101, 102),), 102),
        (100, 200, (range(101, 201),), 201),
    ],
)
def test_a_reconnect_adds_the_gap_as_a_hole_and_live_starts_at_the_head(
    cursor: int, head: int, holes: tuple[range, ...], live_start: int
) -> None:
    welcome = (at_cursor(cursor) if cursor else Cloud()).hello(head)
    assert (welcome.cursor, welcome.holes, welcome.live_start) == (cursor, holes, live_start)
    assert welcome.known == (cursor > 0)


@pytest.mark.parametrize(
    ("cursor", "head", "holes", "live_start"),
    [
        (0, 0, (), 1),
        (0, 9_000, (), 1),
        (100, 100, (), 85),
        (100, 101, (), 85),
        (100, 10_085, (), 85),
        (100, 10_086, (), 85),
        (100, 60_086, (range(101, 102),), 50_086),
    ],
)
def test_an_lplex_boat_is_asked_for_live_from_the_end_of_what_is_held_where_its_ring_reaches(
    cursor: int, head: int, holes: tuple[range, ...], live_start: int
) -> None:
    """A few frames that are held come again: they show that its run goes on."""
    cloud = Cloud()
    cloud.hello(0, lineage=None, journal_bytes=1)
    if cursor:
        cloud.live(1, cursor + 1)
    welcome = cloud.hello(head, lineage=None, journal_bytes=1)
    assert (welcome.cursor, welcome.holes, welcome.live_start) == (cursor, holes, live_start)


def test_the_welcome_carries_the_limits_and_waits_for_the_commit() -> None:
    cloud = Cloud()
    cloud.hello(10, commit=False)
    assert cloud.replies == []
    (welcome,) = cloud.commit()
    assert (welcome.rate_frames_per_s, welcome.burst_frames) == (2_000, 500)


def test_a_head_that_no_boat_can_have_is_refused_and_changes_nothing() -> None:
    cloud = Cloud()
    for hello in (
        Hello(head=-1, lineage=A),
        Hello(head=2**63, lineage=A),
        Hello(head=5, lineage=A, void=(range(0, 3),)),
        Hello(head=5, lineage=A, lost=(range(4, 9),)),
        Hello(head=5, lineage=A, lost=(range(4, 4),)),
    ):
        with pytest.raises(InvalidRecord):
            cloud.receiver.hello(hello, new_lineage=NEW, now_ms=0)
    assert cloud.receiver.session == 0
    assert cloud.receiver.lineage is None


def test_lost_and_void_ranges_of_the_handshake_let_the_cursor_pass() -> None:
    cloud = at_cursor(100)
    welcome = cloud.hello(300, lost=(range(101, 151),), void=(range(151, 201),))
    assert welcome.cursor == 200
    assert welcome.holes == (range(201, 301),)
    assert [type(note) for note in cloud.notes[-2:]] == [DeclareVoid, DeclareLost]


def test_what_is_known_is_not_written_into_the_log_again() -> None:
    cloud = at_cursor(100)
    cloud.hello(300, void=(range(151, 201),))
    notes = len(cloud.notes)
    cloud.hello(300, void=(range(151, 201),))
    assert len(cloud.notes) == notes + 1


def test_a_clone_forks_however_far_its_head_is() -> None:
    """B7: the boot that was heard last is not in its past."""
    cloud = at_cursor(100)
    assert cloud.hello(130, boot_id=b"other", sent_through=130).fork
    assert cloud.hello(90, boot_id=b"1", sent_through=90).fork


def test_a_backup_that_recorded_on_forks_when_the_cloud_holds_what_it_never_sent() -> None:
    cloud = at_cursor(100)
    assert cloud.hello(130, boot_id=b"2", sent_through=90, earlier=((b"1", 90),)).fork


def test_a_restart_is_no_fork() -> None:
    cloud = at_cursor(100)
    assert not cloud.hello(130, boot_id=b"3", sent_through=120, earlier=((b"1", 110), (b"2", 120))).fork
    assert not cloud.hello(140, boot_id=b"3", sent_through=130).fork


def test_a_fork_leaves_the_lineage_as_it_was() -> None:
    """The words of a rewound journal are not those of the true one, which may still bring its frames."""
    cloud = at_cursor(100)
    before = cloud.receiver.fold.lineages[A].to_state()
    assert cloud.hello(500, boot_id=b"x", void=(range(120, 400),), lost=(range(101, 110),)).fork
    assert cloud.receiver.fold.lineages[A].to_state() == before


def test_an_lplex_boat_whose_head_went_back_opens_a_new_lineage() -> None:
    """F6."""
    cloud = Cloud()
    cloud.hello(5, lineage=None, journal_bytes=1)
    cloud.live(5, 60)
    assert cloud.receiver.lineage == NEW
    other = b"o" * 16
    hello = Hello(head=7, journal_bytes=1)
    cloud.take(cloud.receiver.hello(hello, new_lineage=other, now_ms=0))
    assert cloud.receiver.lineage == other
    assert isinstance(cloud.notes[-2], OpenLineage)


def test_an_lplex_boat_below_the_head_that_it_said_before_has_restarted_whatever_came_of_it() -> None:
    cloud = Cloud(max_live_lag=20)
    for _ in range(2):
        welcome = cloud.hello(400, lineage=None, journal_bytes=1)
    cloud.live(welcome.live_start, 385)
    hello = Hello(head=390, journal_bytes=1)
    cloud.take(cloud.receiver.hello(hello, new_lineage=b"o" * 16, now_ms=0))
    assert cloud.receiver.lineage == b"o" * 16


def test_only_what_live_is_not_asked_for_is_lost_of_a_boat_without_journal_files() -> None:
    """F5: its ring still has the newest."""
    cloud = Cloud(max_live_lag=10)
    assert cloud.hello(50, lineage=None, journal_bytes=0).live_start == 1, "its ring is asked for all of it"
    assert cloud.receiver.cursor == 0, "and nothing is given up"
    welcome = cloud.hello(50, lineage=None, journal_bytes=0)
    assert (welcome.holes, welcome.live_start, welcome.cursor) == ((), 40, 39)
    cloud.live(40, 51)
    assert cloud.receiver.cursor == 50
    assert cloud.hello(58, lineage=None, journal_bytes=0).live_start == 35
    assert cloud.receiver.cursor == 50


def lplex_with_a_hole(**limits: Any) -> Cloud:
    """Head 100, Live from 80: it left for its lag when it was asked for more."""
    cloud = Cloud(max_live_lag=20, **limits)
    for live_start in (1, 80):
        assert cloud.hello(100, lineage=None, journal_bytes=1).live_start == live_start
    cloud.live(80, 101)
    assert cloud.receiver.holes() == [range(1, 80)]
    return cloud


def end_pass(cloud: Cloud) -> None:
    cloud.take(cloud.receiver.backfill_done(cloud.receiver.session, now_ms=0))


def test_a_hole_of_an_lplex_boat_is_lost_after_two_passes_that_went_past_it() -> None:
    """F5."""
    cloud = lplex_with_a_hole()
    for lost in ([], [range(50, 60)]):
        cloud.backfill(1, 50)
        cloud.backfill(60, 80)
        end_pass(cloud)
        assert list(cloud.receiver.fold.lineages[NEW].lost) == lost
        cloud.hello(100, lineage=None, journal_bytes=1)
        cloud.live(85, 101)


def test_a_hole_of_blocks_that_nobody_can_read_is_lost_after_two_passes() -> None:
    """F5: a journal compressed with dictionaries brings nothing, and never will."""
    cloud = lplex_with_a_hole()
    for lost in ([], [range(1, 80)]):
        unread = BackfillUnread(session=cloud.receiver.session, seqs=range(1, 80), time_us=5)
        cloud.take(cloud.receiver.unread(unread, is_current=True))
        end_pass(cloud)
        assert list(cloud.receiver.fold.lineages[NEW].lost) == lost
        cloud.hello(100, lineage=None, journal_bytes=1)
        cloud.live(85, 101)


def test_unreadable_blocks_of_an_older_run_say_nothing_of_this_one() -> None:
    cloud = lplex_with_a_hole()
    for _ in range(5):
        unread = BackfillUnread(session=cloud.receiver.session, seqs=range(1, 80), time_us=5)
        cloud.take(cloud.receiver.unread(unread, is_current=False))
        end_pass(cloud)
        cloud.hello(100, lineage=None, journal_bytes=1)
        cloud.live(85, 101)
    assert not cloud.receiver.fold.lineages[NEW].lost


def test_a_hole_that_backfill_never_went_past_is_not_lost() -> None:
    cloud = lplex_with_a_hole()
    for _ in range(5):
        cloud.backfill(1, 50)
        end_pass(cloud)
        cloud.hello(100, lineage=None, journal_bytes=1)
        cloud.live(85, 101)
    assert not cloud.receiver.fold.lineages[NEW].lost


def test_a_pass_in_which_a_run_could_not_be_told_counts_for_nothing_and_the_boat_comes_again_soon() -> None:
    cloud = lplex_with_a_hole()
    for _ in range(4):
        cloud.backfill(60, 80)
        cloud.take(cloud.receiver.undecided(cloud.receiver.session))
        end_pass(cloud)
        assert cloud.receiver.wake_at_ms() == 1_000
        assert cloud.receiver.wake(980) == []
        (refusal,) = cloud.receiver.wake(1_000)
        assert isinstance(refusal, Reply)
        assert isinstance(refusal.message, Refused)
        assert refusal.message.code == "holes_left"
        cloud.hello(100, lineage=None, journal_bytes=1)
        cloud.live(85, 101)
    assert not cloud.receiver.fold.lineages[NEW].lost


def test_an_lplex_boat_is_told_to_come_again_for_the_holes_that_a_pass_left() -> None:
    """It hears of holes in a Handshake only; what it had not written yet is there later."""
    cloud = lplex_with_a_hole()
    waits = []
    for _ in range(6):
        end_pass(cloud)
        waits.append(cloud.receiver.lplex.again_at_ms)
        cloud.hello(100, lineage=None, journal_bytes=1)
        cloud.live(85, 101)
    assert waits == [60_000, 120_000, 240_000, 480_000, 960_000, 960_000]
    cloud.backfill(1, 80)
    end_pass(cloud)
    assert cloud.receiver.lplex.again_at_ms is None, "nothing is left"


def test_a_hole_that_is_lost_makes_room_for_another_and_the_boat_comes_for_it_soon() -> None:
    """Else each hole that is named in its turn would wait for twice as long as the one before."""
    cloud = lplex_with_a_hole(holes_told_max=1)
    cloud.backfill(20, 30)
    waits = []
    for _ in range(4):
        cloud.backfill(79, 80)
        end_pass(cloud)
        waits.append(cloud.receiver.lplex.again_at_ms)
        cloud.hello(100, lineage=None, journal_bytes=1)
        cloud.live(85, 101)
    assert waits == [60_000, 60_000, 120_000, None]
    assert list(cloud.receiver.fold.lineages[NEW].lost) == [range(1, 20), range(30, 79)]


def test_what_live_was_asked_for_is_not_charged_to_the_rate() -> None:
    """An lplex boat sends what its ring holds as fast as it can."""
    cloud = Cloud(rate_frames_per_s=1, burst_frames=5, max_live_lag=400)
    cloud.hello(300, lineage=None, journal_bytes=1)
    assert cloud.live(1, 301)[0].cursor == 300
    cloud.live(301, 306)
    with pytest.raises(RateExceeded):
        cloud.live(306, 307)


def test_a_ring_that_does_not_reach_is_asked_for_less_until_it_answers() -> None:
    cloud = Cloud(max_live_lag=10_000)
    starts = [cloud.hello(8_000, lineage=None, journal_bytes=1).live_start for _ in range(5)]
    assert starts == [1, 1, 6_001, 6_001, 7_501]
    cloud.live(7_501, 8_001)
    assert cloud.hello(8_100, lineage=None, journal_bytes=1).live_start == 7_985


class LaggingBoat:
    """An lplex boat on a bus of so many frames per second: it sends what it is asked for as fast as it goes, and looks
    after every 1,000 frames how far behind it is. If that is more than its largest lag it leaves, at most every 30 s.
    """

    def __init__(self, cloud: Cloud, *, lag: int, per_s: int, journal_bytes: int = 1) -> None:
        self.cloud = cloud
        self.lag = lag
        self.per_s = per_s
        self.journal_bytes = journal_bytes
        self.head = 1_000
        cloud.hello(1_000, lineage=None, journal_bytes=journal_bytes)
        cloud.live(1, 1_001)
        self._left_ms = -30_000

    def wait(self, ms: int) -> None:
        self.cloud.now_ms += ms
        self.head += self.per_s * ms // 1_000

    def session(self) -> bool:
        """One session; True if Live reaches the head."""
        welcome = self.cloud.hello(self.head, lineage=None, journal_bytes=self.journal_bytes)
        position = welcome.live_start
        while position <= self.head:
            stop = min(position + 1_000, self.head + 1)
            self.cloud.live(position, stop)
            position = stop
            if self.head - position > self.lag:
                now_ms = self.cloud.now_ms
                self.wait(max(0, self._left_ms + 30_000 - now_ms))
                self._left_ms = self.cloud.now_ms
                return False
        return True

    def sessions_until_live(self) -> int:
        for count in range(1, 41):
            if self.session():
                return count
        return 0


@pytest.mark.parametrize(("lag", "sessions_max"), [(10_000, 1), (2_000, 4), (1_000, 6), (500, 6)])
def test_a_boat_that_stays_for_less_lag_than_the_cloud_allows_gets_to_its_head(lag: int, sessions_max: int) -> None:
    """Live was asked from 10,000 frames back every time: in 40 sessions the boat sent 1,000 frames each and left."""
    cloud = Cloud()
    boat = LaggingBoat(cloud, lag=lag, per_s=200)
    boat.wait(15_000)
    assert 1 <= boat.sessions_until_live() <= sessions_max
    assert cloud.receiver.lplex.lag >= lag, "and no less is asked for than it takes"


def test_what_a_boat_brought_in_one_session_is_asked_for_again() -> None:
    cloud = Cloud()
    boat = LaggingBoat(cloud, lag=500, per_s=200)
    boat.wait(15_000)
    assert boat.sessions_until_live()
    boat.wait(35_000)
    assert boat.sessions_until_live(), "the one before may have ended with the request for a block"
    learned = cloud.receiver.lplex.lag
    boat.lag = 10_000  # its settings were changed
    for _ in range(20):
        boat.wait(35_000)
        assert boat.sessions_until_live() == 1, "the proof asks for all of it, and it stays"
    assert learned < 7_000 <= cloud.receiver.lplex.lag <= 10_000


@pytest.mark.parametrize(("head", "is_sure"), [(4_000, False), (50_000, True)])
def test_a_boat_that_may_have_counted_up_to_its_head_again_is_asked_for_a_block_first(head: int, is_sure: bool) -> None:
    """Ten seconds after the proof a run that began since may be at 4,000 already, and never at 50,000."""
    cloud = Cloud()
    boat = LaggingBoat(cloud, lag=100, per_s=0)
    cloud.receiver.lplex.lag = 500
    boat.head = head
    assert not boat.session(), "it is asked for all of it, and leaves"
    cloud.now_ms += 10_000
    end = cloud.held_end()
    welcome = cloud.hello(head, lineage=None, journal_bytes=1)
    assert head - 2_000 < welcome.live_start < head
    assert (welcome.holes == (range(end, end + 1),)) is not is_sure
    cloud.live(welcome.live_start, head + 1)
    assert cloud.held_end() == (head + 1 if is_sure else end), "Live waits for that block"


def test_a_session_that_the_cloud_ended_shows_nothing_of_the_boat_s_lag() -> None:
    cloud = Cloud()
    for _ in range(5):
        cloud.hello(5_000, lineage=None, journal_bytes=1)
        cloud.live(1, 1_001)
        cloud.receiver.lplex.come_again(cloud.now_ms)
        cloud.now_ms += 1_000
        cloud.receiver.wake(cloud.now_ms)
    assert cloud.receiver.lplex.lag == 10_000


def test_a_link_that_breaks_now_and_then_costs_a_boat_without_a_journal_nothing() -> None:
    """It looks like a boat that leaves for its lag; but each session comes nearer to the head."""
    cloud = Cloud()
    cloud.hello(0, lineage=None, journal_bytes=0)
    for broke in range(20):
        assert cloud.hello(9_000, lineage=None, journal_bytes=0).live_start == max(1, 100 * broke - 15)
        cloud.live(max(1, 100 * broke - 15), 100 * broke + 101)
    assert cloud.receiver.lplex.lag < 9_000, "it was believed to leave"
    assert not cloud.receiver.fold.lineages[NEW].lost


def test_a_boat_without_a_journal_is_asked_for_all_that_its_ring_holds_while_it_comes_nearer_to_its_head() -> None:
    """All but the newest 10,000 was called lost at the second Handshake, though the ring had it."""
    cloud = Cloud()
    boat = LaggingBoat(cloud, lag=10_000, per_s=10, journal_bytes=0)
    boat.wait(2_000_000)
    assert boat.sessions_until_live() > 10
    assert not cloud.receiver.fold.lineages[NEW].lost
    assert cloud.receiver.cursor == boat.head


def test_a_boat_without_a_journal_whose_bus_is_faster_than_it_comes_nearer_gets_live_back() -> None:
    """1,000 frames a session, and 6,000 more at the next: Live would never be back."""
    cloud = Cloud()
    boat = LaggingBoat(cloud, lag=10_000, per_s=200, journal_bytes=0)
    boat.wait(100_000)
    assert 1 <= boat.sessions_until_live() <= 4
    (lost,) = cloud.receiver.fold.lineages[NEW].lost
    assert lost.start > 2_000


def test_a_gap_beyond_the_ring_asks_for_the_block_at_its_start_and_leaves_live_out_until_it_came() -> None:
    """Else a boat that restarted meanwhile would be taken for one whose run goes on."""
    cloud = Cloud(max_live_lag=10, ring_frames=50)
    cloud.hello(0, lineage=None, journal_bytes=1)
    cloud.live(1, 21)
    welcome = cloud.hello(200, lineage=None, journal_bytes=1)
    assert (welcome.holes, welcome.live_start) == ((range(21, 22),), 190)
    cloud.live(190, 201)
    assert list(cloud.receiver.fold.lineages[NEW].held) == [range(1, 21)]
    cloud.backfill(11, 31)
    end_pass(cloud)
    assert cloud.receiver.wake_at_ms() == 1_000
    welcome = cloud.hello(201, lineage=None, journal_bytes=1)
    assert (welcome.holes, welcome.live_start) == ((range(31, 191),), 191)
    cloud.live(191, 202)
    assert cloud.receiver.fold.lineages[NEW].held.end == 202


def test_files_are_asked_for_what_older_runs_lack_until_two_passes_brought_nothing() -> None:
    cloud = Cloud()
    cloud.hello(0, lineage=None, journal_bytes=1)
    cloud.live(1, 21)
    cloud.live(31, 41)
    for expected in (True, True, False):
        cloud.take(cloud.receiver.hello(Hello(head=3, journal_bytes=1), new_lineage=B, now_ms=0))
        (welcome,) = [found for found in cloud.replies if isinstance(found, Welcome)][-1:]
        asked = [(hole.start, hole.stop > 10**9) for hole in welcome.holes]
        assert asked == ([(21, False), (41, True)] if expected else [])
        end_pass(cloud)
    assert list(cloud.receiver.fold.lineages[NEW].lost) == [range(21, 31)]
    assert cloud.receiver.fold.lineages[NEW].closed
    assert ChannelFold.from_state(cloud.receiver.fold.to_state()).lineages[NEW].closed


# --- data ----------------------------------------------------------------------------------------


def test_nothing_is_acked_before_it_is_committed() -> None:
    """UR1."""
    cloud = Cloud()
    cloud.hello(0)
    assert cloud.live(1, 11, commit=False) == []
    assert cloud.receiver.cursor == 0
    (ack,) = cloud.commit()
    assert (ack.cursor, ack.committed_through) == (10, 10)


def test_a_part_of_the_appends_may_commit_first() -> None:
    cloud = Cloud()
    cloud.hello(0)
    cloud.live(1, 11, commit=False)
    cloud.live(11, 21, commit=False)
    assert cloud.receiver.committed(1)[0].message.cursor == 10  # type: ignore[union-attr]
    assert cloud.receiver.committed(1)[0].message.cursor == 20  # type: ignore[union-attr]


def test_a_block_over_what_is_held_counts_only_in_its_windows() -> None:
    """UR2, B1: [1000, 3000) over live [1500, 1600) needs two windows."""
    cloud = Cloud(burst_frames=5_000)
    cloud.hello(1_499)
    cloud.live(1_500, 1_600)
    cloud.backfill(1_000, 3_000)
    assert cloud.appends[-1].windows == (range(0, 500), range(600, 2_000))


def test_what_is_held_or_on_its_way_is_answered_and_not_appended_again() -> None:
    cloud = Cloud()
    cloud.hello(0)
    cloud.live(1, 11, commit=False)
    assert all(reply.cursor == 0 for reply in cloud.backfill(1, 11, commit=False))
    live_ack, backfill_ack = cloud.commit()
    assert isinstance(live_ack, LiveAck)
    assert backfill_ack.answered == 1
    assert len(cloud.appends) == 1


def test_a_gap_inside_live_is_a_hole_at_once_and_is_told() -> None:
    """U3."""
    cloud = Cloud()
    cloud.hello(0)
    cloud.live(1, 11)
    (ack,) = cloud.live(21, 31)
    assert ack.holes == (range(11, 21),)
    assert (ack.cursor, ack.committed_through) == (10, 30)


def test_live_is_clocked_by_its_own_commits_under_an_open_hole() -> None:
    """U1."""
    cloud = Cloud()
    cloud.hello(100)
    (ack,) = cloud.live(101, 111)
    assert (ack.cursor, ack.committed_through) == (0, 110)


def test_a_backfill_answer_names_what_remains() -> None:
    cloud = at_cursor(100)
    cloud.hello(199)
    (ack,) = cloud.backfill(101, 151)
    assert isinstance(ack, BackfillAck)
    assert (ack.cursor, ack.answered, ack.remaining) == (150, 1, (range(151, 200),))


def test_what_the_boat_no_longer_has_is_lost_and_what_comes_after_all_is_data() -> None:
    cloud = Cloud()
    cloud.hello(100)
    (ack,) = cloud.gone(1, 51)
    assert (ack.cursor, ack.remaining) == (50, (range(51, 101),))
    cloud.backfill(40, 101)
    fold = cloud.receiver.fold.lineages[A]
    assert list(fold.lost) == [range(1, 40)]
    assert cloud.receiver.cursor == 100


@pytest.mark.parametrize("seqs", [range(0, 5), range(5, 5), range(9, 4), range(90, 200), range(1, 9, 2)])
def test_a_gone_range_that_makes_no_sense_is_refused(seqs: range) -> None:
    cloud = Cloud()
    cloud.hello(100)
    with pytest.raises(InvalidRecord):
        cloud.receiver.gone(BackfillGone(session=1, seqs=seqs))
    assert cloud.receiver.holes() == [range(1, 101)]


def test_only_the_newest_holes_are_named_when_there_are_many() -> None:
    cloud = Cloud(holes_told_max=2)
    cloud.hello(0)
    for start in range(1, 50, 10):
        cloud.live(start, start + 5)
    assert cloud.replies[-1].holes == (range(26, 31), range(36, 41))


def test_gaps_have_a_limit_and_the_one_that_extends_a_run_is_taken() -> None:
    cloud = Cloud(holes_max=2)
    cloud.hello(100)
    cloud.backfill(10, 20)
    cloud.backfill(30, 40)
    with pytest.raises(TooManyHoles):
        cloud.backfill(50, 60)
    cloud.backfill(20, 30)
    cloud.backfill(50, 60)


def test_a_boat_with_too_many_holes_can_still_fill_them_all() -> None:
    """UR5: Live that would add a hole is left out and asked for; Backfill from a hole's start always has room."""
    cloud = Cloud(holes_max=3)
    cloud.hello(0)
    for start in range(1, 60, 10):
        cloud.live(start, start + 5)
    assert len(cloud.appends) == 3
    last = cloud.replies[-1]
    assert (last.cursor, last.committed_through) == (5, 55)
    assert last.holes == (range(6, 11), range(16, 21), range(26, 56))
    while holes := cloud.receiver.holes():
        newest = holes[-1]
        cloud.backfill(newest.start, min(newest.start + 3, newest.stop))
    assert cloud.receiver.cursor == 55


def test_a_block_that_would_be_one_gap_too_many_is_left_out_of_what_an_lplex_boat_sends() -> None:
    """Refusing it ended Live too, at every pass over the boat's files. It is no reason to call a hole lost either."""
    cloud = lplex_with_a_hole(holes_max=3)
    for _ in range(4):
        cloud.backfill(5, 8)
        cloud.backfill(10, 12)
        cloud.backfill(20, 30)
        cloud.backfill(60, 80)
        end_pass(cloud)
        assert not cloud.receiver.fold.lineages[NEW].lost
        assert cloud.receiver.lplex.again_at_ms is not None
        cloud.hello(100, lineage=None, journal_bytes=1)
        cloud.live(85, 101)
    cloud.backfill(1, 60)
    assert cloud.receiver.cursor == 100


def test_a_hello_with_more_ranges_than_are_remembered_is_refused() -> None:
    cloud = Cloud(hello_ranges_max=10)
    with pytest.raises(TooManyHoles):
        cloud.hello(100, void=tuple(range(seq, seq + 1) for seq in range(1, 23, 2)))
    assert cloud.receiver.session == 0


def test_many_declared_ranges_take_few_blocks() -> None:
    cloud = Cloud()
    cloud.hello(5_000, commit=False, lost=tuple(range(seq, seq + 1) for seq in range(1, 5_000, 2)))
    assert cloud.waiting == 5  # lineage, session, and 2,500 lost ranges in three
    cloud.commit()
    assert cloud.receiver.holes()[:2] == [range(2, 3), range(4, 5)]


def test_a_hole_that_an_lplex_boat_was_not_asked_for_is_not_lost() -> None:
    """F5: only what a Handshake named can have been looked for."""
    cloud = lplex_with_a_hole(holes_told_max=1)
    cloud.backfill(40, 60)
    cloud.hello(100, lineage=None, journal_bytes=1)
    for _ in range(2):
        cloud.backfill(70, 80)
        end_pass(cloud)
        cloud.hello(100, lineage=None, journal_bytes=1)
        cloud.live(85, 101)
    assert [fact.seqs for fact in cloud.notes if isinstance(fact, DeclareLost)] == [range(60, 70)]
    assert cloud.receiver.holes() == [range(1, 40)]


# --- two frames under one number (F6) ------------------------------------------------------------


def test_a_tidelog_boat_with_other_frames_is_told_to_fork_at_its_next_handshake() -> None:
    cloud = Cloud()
    cloud.hello(0)
    cloud.live(1, 11)
    with pytest.raises(ConflictingFrames):
        cloud.receiver.conflict(10)
    assert cloud.hello(20).fork
    assert not cloud.hello(20, lineage=B).fork
    # Another journal of that lineage is judged by its own past alone.
    assert not cloud.hello(20, boot_id=b"2", earlier=((b"1", 20),)).fork


def test_an_lplex_boat_with_other_frames_has_restarted_and_its_session_goes_on_in_a_new_lineage() -> None:
    cloud = Cloud()
    cloud.hello(0, lineage=None)
    cloud.live(1, 11)
    cloud.hello(20, lineage=None, journal_bytes=1)
    cloud.take(cloud.receiver.restarted(B, now_ms=7))
    cloud.live(11, 21)
    assert cloud.receiver.lineage == B
    assert cloud.receiver.holes() == [range(1, 11)]
    assert cloud.receiver.fold.lineages[NEW].cursor == 10
    assert cloud.receiver.wake_at_ms() == 1_007, "what the new run lacks must be asked for in a Handshake"


# --- sessions and limits -------------------------------------------------------------------------


def test_a_newer_session_fences_the_older() -> None:
    """U2."""
    cloud = Cloud()
    cloud.hello(0)
    cloud.hello(0)
    with pytest.raises(SessionFenced):
        cloud.live(1, 2, session=1)
    assert cloud.receiver.holes() == []


def test_no_session_survives_a_restart_of_the_cloud() -> None:
    cloud = Cloud()
    cloud.hello(0)
    again = Cloud(cloud.receiver.fold)
    with pytest.raises(SessionFenced):
        again.live(1, 2, session=1)


def test_acks_of_an_older_session_go_nowhere() -> None:
    cloud = Cloud()
    cloud.hello(0)
    cloud.live(1, 11, commit=False)
    cloud.hello(10, commit=False)
    (welcome,) = cloud.commit()
    assert isinstance(welcome, Welcome)
    assert (welcome.cursor, welcome.session) == (10, 2)


def test_frames_beyond_rate_and_burst_are_refused_hard() -> None:
    cloud = Cloud()
    cloud.hello(0)
    cloud.live(1, 501)
    with pytest.raises(RateExceeded):
        cloud.live(501, 502)
    assert cloud.receiver.cursor == 500
    cloud.now_ms = 250
    cloud.live(501, 1_001)


def test_backfill_has_no_rate_limit() -> None:
    cloud = Cloud()
    cloud.hello(100_000)
    cloud.backfill(1, 100_001)
    assert cloud.receiver.cursor == 100_000


def test_the_cloud_s_lag_check_looks_at_the_newest_live_seq_and_not_at_the_cursor() -> None:
    cloud = Cloud()
    cloud.hello(50_000)
    cloud.status(70_000)  # nothing came by Live yet
    cloud.live(50_001, 50_101)
    cloud.status(60_100)
    with pytest.raises(LagExceeded):
        cloud.status(60_101)


def test_an_idle_session_is_acked_every_five_seconds_and_says_how_many_reports_it_heard() -> None:
    cloud = Cloud()
    cloud.hello(0)
    assert cloud.receiver.wake_at_ms() == 5_000
    assert cloud.receiver.wake(4_999) == []
    cloud.status(0)
    (ack,) = cloud.take(cloud.receiver.wake(5_000))
    assert ack.statuses == 1
    assert cloud.receiver.wake_at_ms() == 10_000
    cloud.receiver.disconnected(1)
    assert cloud.receiver.wake_at_ms() is None


def test_no_ack_leaves_before_the_handshake_is_answered() -> None:
    """The committed fold may still speak of another lineage."""
    cloud = at_cursor(100)
    cloud.hello(5, lineage=B, commit=False)
    assert cloud.receiver.wake(10_000) == []


def test_a_snapshot_speaks_for_what_is_on_its_way_too() -> None:
    """F3: a reader that folds the log uses it for everything before it."""
    cloud = Cloud()
    cloud.hello(0)
    cloud.live(1, 11, commit=False)
    fold = ChannelFold.from_state(cloud.receiver.snapshot())
    assert fold.lineages[A].cursor == 10
    cloud.waiting += 1
    cloud.commit()
    assert cloud.receiver.fold.to_state() == fold.to_state()


def test_limits_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidConfig):
        ReceiverLimits(rate_frames_per_s=0, holes_max=0)


# --- any order, any commit -----------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """Blocks, gone ranges, hellos, commits and restarts in any order, against plain sets."""

    def __init__(self) -> None:
        super().__init__()
        self.cloud = Cloud(rate_frames_per_s=1e9, burst_frames=10**9)
        self.held: set[int] = set()
        self.lost: set[int] = set()
        self.durable: set[int] = set()
        self.head = 0
        self.acked = 0
        self.connected = False

    spans = st.tuples(st.integers(1, 40), st.integers(1, 12))

    @rule(more=st.integers(0, 5))
    def hello(self, more: int) -> None:
        self.head += more
        self.cloud.hello(self.head, commit=False)
        self.connected = True

    @precondition(lambda self: self.connected)
    @rule(span=spans, live=st.booleans())
    def data(self, span: tuple[int, int], live: bool) -> None:
        seqs = set(range(span[0], span[0] + span[1]))
        before = len(self.cloud.appends)
        send = self.cloud.live if live else self.cloud.backfill
        send(span[0], span[0] + span[1], commit=False)
        self.head = max(self.head, max(seqs))
        counted: set[int] = set()
        for append in self.cloud.appends[before:]:
            windows = append.windows or (range(span[1]),)
            counted = {span[0] + place for window in windows for place in window}
        assert counted == seqs - self.held, "UR2"
        self.held |= seqs
        self.lost -= seqs

    @precondition(lambda self: self.connected and self.head > 0)
    @rule(span=spans)
    def gone(self, span: tuple[int, int]) -> None:
        start = min(span[0], self.head)
        stop = min(start + span[1], self.head + 1)
        self.cloud.gone(start, stop, commit=False)
        self.lost |= set(range(start, stop)) - self.held

    @rule()
    def commit(self) -> None:
        for reply in self.cloud.commit():
            assert reply.cursor >= self.acked, "UR1"
            self.acked = reply.cursor
        self.durable = self.held | self.lost
        assert set(range(1, self.acked + 1)) <= self.durable

    @invariant()
    def the_folds_agree_with_the_sets(self) -> None:
        receiver = self.cloud.receiver
        receiver.fold.check()
        assert {seq for hole in receiver.holes() for seq in hole} == set(
            range(1, self.head + 1)
        ) - self.held - self.lost
        assert set(range(1, receiver.cursor + 1)) <= self.durable, "UR1"


AnyOrder.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase
