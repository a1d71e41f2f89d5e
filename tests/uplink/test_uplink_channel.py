"""A boat's channel: what the receiver decides becomes blocks and control records of a log, and back."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.control import LineageOpened, RangeLost, decode_control, encode_control
from tidelog.blocks.decode import decode_block_frames
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.header import BlockKind
from tidelog.blocks.messages import Message, encode_messages
from tidelog.cluster.boats.channel import UplinkChannel, fold_log, held_block
from tidelog.core.uplink.messages import (
    BackfillData,
    BackfillDone,
    BackfillGone,
    Hello,
    LiveData,
    LiveStatus,
    Refused,
    Welcome,
)
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.sim.disk import SimDisk
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.recovery import open_log

A, B, NEW = b"a" * 16, b"b" * 16, b"n" * 16


def block(start: int, stop: int, lineage: bytes = A, *, salt: int = 0) -> MadeBlock:
    frames = FrameColumns.from_rows((seq, seq, b"%04d%d" % (seq, salt)) for seq in range(start, stop))
    return encode_frames(frames, base_seq=start, producer=lineage)


class Cloud:
    limits = ReceiverLimits()

    def __init__(self) -> None:
        self.disk = SimDisk(random.Random(1))
        self.log = self._open()
        self.channel = self._channel()
        self.staged = 0

    def _open(self) -> Log:
        options = LogOptions(reserve_bytes=0, segment_bytes_max=4_096)
        return open_log(self.disk, "c", now_us=0, options=options)

    def _channel(self) -> UplinkChannel:
        held = functools.partial(held_block, self.log)
        return UplinkChannel(instance="boat-001", fold=fold_log(self.log.blocks()), limits=self.limits, held=held)

    def receive(self, message: Any, *, commit: bool = True) -> list[Any]:
        appends, replies = self.channel.receive(message, new_lineage=NEW, now_ms=0)
        for append in appends:
            self.stage(append)
        return replies + (self.commit() if commit else [])

    def stage(self, append: Any) -> int:
        staged = self.log.stage(append.made, epoch=1, now_us=0, path=append.path, windows=append.windows)
        assert staged is not None
        self.staged += 1
        return staged.offsets.start

    def commit(self) -> list[Any]:
        count, self.staged = self.staged, 0
        self.log.commit(0)
        return self.channel.committed(count, now_ms=0)

    def hello(self, head: int, lineage: bytes | None = A, **more: Any) -> Welcome:
        if lineage is not None:
            more = {"boot_id": b"1", "sent_through": head} | more
        (welcome,) = self.receive(Hello(head=head, lineage=lineage, **more))
        assert isinstance(welcome, Welcome)
        return welcome

    def live(self, start: int, stop: int, **more: Any) -> list[Any]:
        return self.receive(LiveData(session=self.session, seqs=range(start, stop), block=block(start, stop)), **more)

    def backfill(self, start: int, stop: int, *, salt: int = 0) -> list[Any]:
        made = block(start, stop, salt=salt)
        return self.receive(BackfillData(session=self.session, seqs=range(start, stop), block=made))

    @property
    def session(self) -> int:
        return self.channel.receiver.session

    def restart(self) -> None:
        self.disk.crash()
        self.log = self._open()
        self.channel = self._channel()
        self.staged = 0

    def counted(self) -> list[int]:
        return [seq for found in self.log.blocks() for part in found.counted_seqs() for seq in part]


def a_voyage(cloud: Cloud) -> None:
    cloud.hello(100, void=(range(81, 91),))
    cloud.live(101, 121)
    cloud.backfill(41, 81)
    cloud.live(131, 141)
    cloud.backfill(91, 135)
    cloud.receive(BackfillGone(session=cloud.session, seqs=range(1, 41)))


def test_overlaps_are_stored_whole_and_each_seq_counts_once() -> None:
    cloud = Cloud()
    a_voyage(cloud)
    assert sorted(cloud.counted()) == [*range(41, 81), *range(91, 141)]
    assert any(found.windows == (range(0, 10), range(30, 40)) for found in cloud.log.blocks())
    assert cloud.channel.receiver.cursor == 140


def test_the_fold_over_the_log_is_the_running_fold() -> None:
    """F1."""
    cloud = Cloud()
    a_voyage(cloud)
    assert fold_log(cloud.log.blocks()).to_state() == cloud.channel.receiver.fold.to_state()


def test_a_restarted_cloud_knows_what_the_old_one_knew() -> None:
    cloud = Cloud()
    a_voyage(cloud)
    before = cloud.channel.receiver.fold.to_state()
    cloud.restart()
    assert cloud.channel.receiver.fold.to_state() == before
    welcome = cloud.hello(200, sent_through=140)
    assert (welcome.session, welcome.cursor, welcome.holes) == (2, 140, (range(141, 201),))


def test_nothing_is_acked_that_a_crash_can_take_back() -> None:
    cloud = Cloud()
    cloud.hello(0)
    assert cloud.live(1, 11, commit=False) == []
    cloud.restart()
    assert cloud.hello(10, sent_through=10).cursor == 0


def test_trimming_up_to_a_snapshot_forgets_nothing() -> None:
    """F3."""
    cloud = Cloud()
    a_voyage(cloud)
    cloud.live(141, 151, commit=False)
    offset = cloud.stage(cloud.channel.snapshot(0))
    cloud.live(151, 161, commit=False)
    cloud.commit()
    before = cloud.channel.receiver.fold.to_state()
    cloud.log.roll(0)
    cloud.log.set_floor("snapshot", offset)
    cloud.log.trim(offset, 0)
    cloud.restart()
    assert cloud.channel.receiver.fold.to_state() == before
    assert cloud.channel.receiver.cursor == 160


def test_a_snapshot_between_appends_counts_as_one_of_them() -> None:
    cloud = Cloud()
    cloud.hello(0)
    cloud.live(1, 11, commit=False)
    cloud.stage(cloud.channel.snapshot(0))
    cloud.live(11, 21, commit=False)
    assert cloud.commit()[-1].cursor == 20
    assert fold_log(cloud.log.blocks()).to_state() == cloud.channel.receiver.fold.to_state()


def damaged(start: int, stop: int) -> MadeBlock:
    made = block(start, stop)
    return MadeBlock(made.maker_bytes, made.maker, bytes(len(made.body)))


@pytest.mark.parametrize(
    ("made", "seqs", "code"),
    [
        (block(1, 11), range(1, 12), "block_corrupt"),
        (block(1, 11), range(2, 12), "block_corrupt"),
        (block(1, 11, B), range(1, 11), "foreign_lineage"),
        (damaged(1, 11), range(1, 11), "block_corrupt"),
        (encode_control([LineageOpened(lineage="aa", reason="x")], time_us=0), range(1, 2), "block_corrupt"),
    ],
)
def test_a_bad_block_is_refused_and_fills_nothing(made: MadeBlock, seqs: range, code: str) -> None:
    cloud = Cloud()
    cloud.hello(20)
    end = cloud.log.log_end
    for message in (
        LiveData(session=1, seqs=seqs, block=made),
        BackfillData(session=1, seqs=seqs, block=made),
    ):
        (refused,) = cloud.receive(message)
        assert isinstance(refused, Refused)
        assert refused.code == code
    assert cloud.log.log_end == end
    assert cloud.channel.receiver.holes() == [range(1, 21)]


def test_an_older_session_is_fenced_whatever_it_sends() -> None:
    """U2."""
    cloud = Cloud()
    cloud.hello(0)
    cloud.hello(0)
    for message in (
        LiveData(session=1, seqs=range(1, 3), block=block(1, 3)),
        BackfillData(session=1, seqs=range(1, 3), block=block(1, 3, B)),
        BackfillGone(session=1, seqs=range(1, 3)),
        BackfillDone(session=1),
        LiveStatus(session=1, head=0, journal_bytes=0),
    ):
        (refused,) = cloud.receive(message)
        assert refused.code == "session_fenced"
    assert cloud.counted() == []


def test_a_stream_without_a_handshake_is_fenced() -> None:
    (refused,) = Cloud().receive(LiveData(session=0, seqs=range(1, 3), block=block(1, 3)))
    assert refused.code == "session_fenced"


def test_a_flood_is_refused_and_the_log_keeps_what_came_before() -> None:
    cloud = Cloud()
    cloud.hello(0)
    cloud.live(1, 501)
    (refused,) = cloud.live(501, 600)
    assert refused.code == "rate_exceeded"
    assert cloud.channel.receiver.cursor == 500


def test_two_lineages_of_one_boat_are_kept_apart() -> None:
    cloud = Cloud()
    cloud.hello(0)
    cloud.live(1, 11)
    cloud.hello(0, lineage=B)
    cloud.receive(LiveData(session=2, seqs=range(1, 6), block=block(1, 6, B)))
    fold = cloud.channel.receiver.fold
    assert (fold.lineages[A].cursor, fold.lineages[B].cursor) == (10, 5)
    assert fold_log(cloud.log.blocks()).to_state() == fold.to_state()


# --- boats without lineages -----------------------------------------------------------------------


class LplexCloud(Cloud):
    """Spoken to by a boat that says its head only. Lineages are named by their number."""

    def __init__(self, *, max_live_lag: int = 20, ring_frames: int = 60_000) -> None:
        self.limits = ReceiverLimits(max_live_lag=max_live_lag, ring_frames=ring_frames)
        self.lineages = 0
        super().__init__()

    def receive(self, message: Any, *, commit: bool = True) -> list[Any]:
        self.lineages += 1
        appends, replies = self.channel.receive(message, new_lineage=bytes([self.lineages]) * 16, now_ms=0)
        for append in appends:
            self.stage(append)
        return replies + (self.commit() if commit else [])

    def say_hello(self, head: int) -> Welcome:
        return self.hello(head, lineage=None, journal_bytes=1)

    def bring(
        self, run: int, seqs: range, *, live: bool = False, late_us: int = 0, commit: bool = True, **more: Any
    ) -> list[Any]:
        kind: Any = LiveData if live else BackfillData
        made = run_block(run, seqs, late_us=late_us)
        return self.receive(kind(session=self.session, seqs=seqs, block=made, **more), commit=commit)

    def held(self) -> dict[bytes, dict[int, bytes]]:
        """Payload by lineage and seq; a seq that counts twice fails."""
        found: dict[bytes, dict[int, bytes]] = {}
        for stored in self.log.blocks():
            if stored.maker.kind == BlockKind.CONTROL:
                continue
            rows = list(decode_block_frames(stored).rows())
            known = found.setdefault(stored.maker.producer, {})
            for part in stored.counted_ranges():
                for place in part:
                    assert known.setdefault(stored.maker.base_seq + place, rows[place][2]) is rows[place][2]
        return found

    def assert_runs(self, *runs: Mapping[int, Iterable[int]]) -> None:
        """Each lineage holds these seqs of one run, and no other lineage is there."""
        held = sorted(sorted(seqs.items()) for seqs in self.held().values())
        assert held == sorted([(seq, payload(run, seq)) for seq in seqs] for one in runs for run, seqs in one.items())
        assert fold_log(self.log.blocks()).to_state() == self.channel.receiver.fold.to_state()


RUN_US = 10**9
"""From the start of one run to that of the next."""


def payload(run: int, seq: int) -> bytes:
    return b"%d-%d" % (run, seq)


def run_block(run: int, seqs: range, *, late_us: int = 0, steady: bool = False) -> MadeBlock:
    rows = [(run * RUN_US + 1000 * seq + late_us, 5, b"steady" if steady else payload(run, seq)) for seq in seqs]
    return encode_frames(FrameColumns.from_rows(rows), base_seq=seqs.start)


def test_two_passes_of_an_lplex_boat_make_its_hole_lost() -> None:
    cloud = LplexCloud()
    assert cloud.say_hello(100).live_start == 1
    cloud.bring(1, range(1, 11), live=True)  # then it leaves for its lag
    assert cloud.say_hello(100).live_start == 80
    cloud.bring(1, range(80, 101), live=True)
    for _ in range(2):
        cloud.bring(1, range(1, 50))
        cloud.bring(1, range(60, 80))
        cloud.receive(BackfillDone(session=cloud.session))
        cloud.say_hello(100)
        cloud.bring(1, range(85, 101), live=True)
    assert list(cloud.channel.receiver.fold.lineages[cloud.channel.receiver.lineage or b""].lost) == [range(50, 60)]
    assert cloud.channel.receiver.cursor == 100


def restarted_cloud(head: int = 30) -> LplexCloud:
    """Run 1 came to 100 with a hole, run 2 speaks now, from its first frame on."""
    cloud = LplexCloud()
    cloud.say_hello(0)
    cloud.bring(1, range(1, 41), live=True)
    cloud.bring(1, range(61, 101), live=True)
    cloud.say_hello(head)
    assert cloud.channel.receiver.lineage is not None
    cloud.bring(2, range(1, head + 1), live=True)
    return cloud


def test_old_files_of_a_restarted_boat_fill_the_old_run_and_never_the_new_one() -> None:
    cloud = restarted_cloud()
    session = cloud.session
    cloud.bring(2, range(51, 81), live=True)  # a gap: the new run lacks 31 to 50 now
    for seqs in (range(1, 31), range(31, 71), range(71, 111), range(111, 131)):
        assert not [found for found in cloud.bring(1, seqs) if isinstance(found, Refused)]
    cloud.bring(2, range(1, 61))
    assert cloud.session == session
    assert cloud.channel.receiver.cursor == 80
    cloud.assert_runs({1: range(1, 131)}, {2: range(1, 81)})


def test_files_of_a_run_that_the_cloud_never_heard_of_get_a_lineage_of_their_own() -> None:
    cloud = restarted_cloud()
    cloud.bring(3, range(31, 61), live=True)  # no boat counts so, but time tells a later run all the same
    cloud = LplexCloud()
    cloud.say_hello(20)
    cloud.bring(5, range(1, 21), live=True)
    cloud.bring(5, range(61, 81), live=True)
    for seqs in (range(21, 41), range(41, 71)):
        cloud.bring(2, seqs)
    cloud.bring(4, range(11, 31))
    cloud.bring(5, range(11, 71))
    cloud.bring(2, range(1, 21))
    cloud.assert_runs({2: range(1, 71)}, {4: range(11, 31)}, {5: range(1, 81)})


def test_boat_that_restarted_and_counted_past_what_is_known_goes_on_in_a_new_lineage() -> None:
    """Its bus spoke before the Handshake: only the frames tell."""
    cloud = LplexCloud()
    cloud.say_hello(0)
    cloud.bring(1, range(1, 41), live=True)
    assert cloud.say_hello(45).live_start == 25
    assert not [found for found in cloud.bring(2, range(25, 46), live=True) if isinstance(found, Refused)]
    cloud.assert_runs({1: range(1, 41)}, {2: range(25, 46)})
    assert cloud.say_hello(46).live_start == 30
    assert cloud.channel.receiver.holes() == [range(1, 25)]


def test_block_of_a_later_run_over_what_is_held_shows_a_restart_too() -> None:
    """The gap is beyond the boat's ring: the block at its start tells."""
    cloud = LplexCloud(ring_frames=30)
    cloud.say_hello(0)
    cloud.bring(1, range(1, 41), live=True)
    assert cloud.say_hello(200).holes == (range(41, 42),)
    cloud.bring(2, range(180, 201), live=True)
    cloud.bring(1, range(31, 51))
    cloud.bring(2, range(21, 61))
    # The block may be of a run before the one that speaks: it is left out until Live has shown that one.
    cloud.assert_runs({1: range(1, 51)})
    cloud.receive(BackfillDone(session=cloud.session))
    cloud.say_hello(200)
    cloud.bring(2, range(180, 201), live=True)
    cloud.bring(1, range(31, 51))
    cloud.bring(2, range(21, 61))
    cloud.assert_runs({1: range(1, 51)}, {2: [*range(21, 61), *range(180, 201)]})


def test_live_of_a_later_run_before_all_that_is_held_shows_a_restart_by_its_times() -> None:
    """Only frames from 23 on are held of the run before, so that no seq is in both."""
    cloud = LplexCloud(max_live_lag=200)
    cloud.say_hello(62)
    cloud.bring(1, range(23, 63), live=True)
    assert cloud.say_hello(70).live_start == 1
    cloud.bring(2, range(1, 17), live=True)
    cloud.assert_runs({1: range(23, 63)}, {2: range(1, 17)})


def test_live_before_all_that_is_held_goes_on_with_the_run_of_earlier_times() -> None:
    cloud = LplexCloud(max_live_lag=200)
    cloud.say_hello(62)
    cloud.bring(1, range(23, 63), live=True)
    assert cloud.say_hello(70).live_start == 1
    cloud.bring(1, range(1, 71), live=True)
    cloud.assert_runs({1: range(1, 71)})


def test_block_over_one_that_is_on_its_way_into_the_log_is_of_another_run() -> None:
    """RU5: the last record of the first block was spoiled. What is held cannot be compared before it is committed."""
    cloud = LplexCloud()
    cloud.say_hello(0)
    cloud.bring(1, range(1, 9), live=True)
    cloud.say_hello(20)
    cloud.bring(1, range(1, 4), live=True)
    cloud.bring(1, range(9, 16), lost=range(16, 17), problem="record 8 of 8 is not a frame record", commit=False)
    cloud.bring(2, range(9, 17), commit=False)
    cloud.commit()
    cloud.assert_runs({1: range(1, 16)})


def test_short_run_between_is_no_part_of_the_run_that_speaks() -> None:
    """A pass for other seqs showed how runs began, and nothing of one that never had those: the block waits until the
    boat went through its files for this one."""
    cloud = LplexCloud(ring_frames=30)
    cloud.say_hello(0)
    cloud.bring(1, range(1, 101), live=True)
    cloud.say_hello(0)
    cloud.bring(3, range(31, 71), live=True)
    cloud.restart()
    assert cloud.say_hello(200).holes == (range(71, 72),), "is it the same run?"
    cloud.bring(1, range(61, 81))
    cloud.bring(3, range(61, 81))
    cloud.receive(BackfillDone(session=cloud.session))
    for _ in range(2):
        assert cloud.say_hello(200).holes[0].start == 1
        cloud.bring(3, range(180, 201), live=True)
        for seqs in (range(81, 101), range(101, 181)):
            cloud.bring(3, seqs)
        for run in (2, 3):
            cloud.bring(run, range(1, 13))
        cloud.bring(3, range(13, 41))
        cloud.receive(BackfillDone(session=cloud.session))
    cloud.assert_runs({1: range(1, 101)}, {2: range(1, 13)}, {3: range(1, 201)})


def test_block_beyond_what_is_held_waits_until_live_has_shown_whose_it_is() -> None:
    """The boat restarted unseen and counted past what is held; its files came before the first frame of Live."""
    cloud = LplexCloud(max_live_lag=200)
    cloud.say_hello(0)
    cloud.bring(1, range(1, 41), live=True)
    assert cloud.say_hello(120).live_start == 25
    cloud.bring(2, range(61, 81))
    cloud.assert_runs({1: range(1, 41)})
    cloud.bring(2, range(25, 121), live=True)
    cloud.receive(BackfillDone(session=cloud.session))
    cloud.say_hello(120)
    cloud.bring(2, range(1, 41))
    cloud.assert_runs({1: range(1, 41)}, {2: range(1, 121)})


def test_frames_of_a_hole_come_behind_the_proof_that_the_run_goes_on() -> None:
    """Asked from the hole on, those of a later run would fill it before any is there to compare with."""
    cloud = LplexCloud(max_live_lag=200)
    cloud.say_hello(0)
    cloud.bring(1, range(1, 41), live=True)
    cloud.bring(1, range(61, 81), live=True)
    start = cloud.say_hello(120).live_start
    assert start == 25
    for first in range(start, 121, 16):
        cloud.bring(2, range(first, min(first + 16, 121)), live=True)
    cloud.assert_runs({1: [*range(1, 41), *range(61, 81)]}, {2: range(25, 121)})


def test_proof_that_was_asked_for_and_did_not_come_is_asked_for_again() -> None:
    cloud = LplexCloud()
    cloud.say_hello(0)
    cloud.bring(1, range(1, 41), live=True)
    assert [cloud.say_hello(100).live_start for _ in range(2)] == [25, 25], "the link broke before Live came"
    cloud.bring(1, range(25, 35), live=True)  # then it leaves for its lag
    assert cloud.say_hello(100).live_start == 80


def test_block_before_all_that_is_held_is_told_when_the_log_was_trimmed_too() -> None:
    """What is held cannot be read any more, only when it was: the block waited for ever."""
    cloud = LplexCloud()
    cloud.say_hello(30)
    cloud.bring(1, range(21, 31), live=True)
    cloud.channel._runs._held = lambda lineage, seq: None
    for _ in range(2):
        cloud.bring(1, range(1, 11))
        cloud.receive(BackfillDone(session=cloud.session))
        cloud.say_hello(30)
    cloud.assert_runs({1: [*range(1, 11), *range(21, 31)]})


def test_block_of_an_older_run_does_not_pass_over_the_run_that_followed_it() -> None:
    """Run 2 cannot have gone on behind run 3: runs follow each other."""
    cloud = LplexCloud()
    for run, stop in ((1, 101), (2, 4), (3, 23), (5, 4)):
        cloud.say_hello(0)
        cloud.bring(run, range(1, stop), live=True)
    for _ in range(2):
        cloud.bring(4, range(4, 25))
        cloud.receive(BackfillDone(session=cloud.session))
        cloud.channel.disconnected(cloud.session)
        cloud.say_hello(4)
        cloud.bring(5, range(1, 4), live=True)
    cloud.assert_runs({1: range(1, 101)}, {2: range(1, 4)}, {3: range(1, 23)}, {4: range(4, 25)}, {5: range(1, 4)})


def test_block_that_continues_an_older_run_is_of_it_although_a_later_run_was_seen_to_begin() -> None:
    """Two blocks show only that the later run began between them, not that it began right after the first."""
    cloud = LplexCloud()
    for run, stop in ((1, 41), (5, 4)):
        cloud.say_hello(0)
        cloud.bring(run, range(1, stop), live=True)
    cloud.bring(1, range(31, 51))
    cloud.bring(3, range(11, 31))
    cloud.bring(1, range(51, 61))
    cloud.assert_runs({1: range(1, 61)}, {3: range(11, 31)}, {5: range(1, 4)})


def test_steady_bus_of_a_run_between_is_not_taken_for_late_times_of_the_one_before() -> None:
    """Times of lplex's journal are late by steps that grow from the first frame of a block on, which is never late."""
    cloud = LplexCloud()

    def bring(run: int, seqs: range, kind: Any) -> None:
        cloud.receive(kind(session=cloud.session, seqs=seqs, block=run_block(run, seqs, steady=True)))

    for run, stop in ((1, 41), (3, 4)):
        cloud.say_hello(0)
        bring(run, range(1, stop), LiveData)
    for _ in range(2):
        bring(2, range(11, 31), BackfillData)
        cloud.receive(BackfillDone(session=cloud.session))
        cloud.say_hello(3)
        bring(3, range(1, 4), LiveData)
    held = sorted(sorted(seqs) for seqs in cloud.held().values())
    assert held == [[1, 2, 3], [*range(1, 41)], [*range(11, 31)]]


def test_block_behind_a_gap_may_be_of_a_run_whose_first_files_are_deleted() -> None:
    """Nothing can show the run between: its last block gets a lineage of its own, and the older run is not mixed."""
    cloud = LplexCloud()
    for run, stop in ((2, 11), (4, 20)):
        cloud.say_hello(0)
        cloud.bring(run, range(1, stop), live=True)
    for _ in range(2):
        cloud.bring(3, range(49, 55))
        cloud.receive(BackfillDone(session=cloud.session))
        cloud.say_hello(19)
        cloud.bring(4, range(4, 20), live=True)
    cloud.assert_runs({2: range(1, 11)}, {3: range(49, 55)}, {4: range(1, 20)})


def test_steady_bus_of_a_later_run_is_told_when_the_log_was_trimmed_too() -> None:
    """Neither the frames nor the log show it: all that the boat had said before was deleted. Its times do."""
    cloud = LplexCloud()
    cloud.say_hello(0)

    def bring(run: int, seqs: range, kind: Any) -> None:
        cloud.receive(kind(session=cloud.session, seqs=seqs, block=run_block(run, seqs, steady=True)))

    bring(1, range(1, 103), LiveData)
    cloud.channel._runs._held = lambda lineage, seq: None
    first = cloud.channel.receiver.lineage
    assert cloud.say_hello(138).live_start == 87
    bring(2, range(87, 139), LiveData)
    assert cloud.channel.receiver.lineage != first
    bring(2, range(49, 103), BackfillData)
    bring(1, range(97, 121), BackfillData)
    held = sorted((seqs[0], seqs[-1]) for seqs in map(sorted, cloud.held().values()))
    assert held == [(1, 120), (49, 138)]


def test_clock_that_was_set_back_makes_no_conflict() -> None:
    """lplex's journal tells what follows a step back too late, until its block ends."""
    cloud = LplexCloud()
    cloud.say_hello(0)
    cloud.bring(1, range(1, 41), live=True)
    cloud.bring(1, range(61, 81), live=True, late_us=-50_000)
    cloud.bring(1, range(31, 71))
    cloud.assert_runs({1: range(1, 81)})


def test_steady_bus_of_another_run_is_told_by_its_times() -> None:
    """Every frame says the same in both runs."""
    cloud = LplexCloud()
    cloud.say_hello(0)

    def bring(run: int, seqs: range, kind: Any) -> None:
        cloud.receive(kind(session=cloud.session, seqs=seqs, block=run_block(run, seqs, steady=True)))

    bring(1, range(1, 41), LiveData)
    cloud.say_hello(45)
    bring(2, range(25, 46), LiveData)
    bring(1, range(21, 61), BackfillData)
    bring(2, range(1, 31), BackfillData)
    held = sorted(sorted(seqs) for seqs in cloud.held().values())
    assert held == [[*range(1, 46)], [*range(1, 61)]]


def test_steady_bus_that_came_frame_by_frame_is_told_by_its_times_too() -> None:
    """One frame alone may be late by anything; the first one of a block is not late at all."""
    cloud = LplexCloud()
    cloud.say_hello(0)

    def bring(run: int, seqs: range, kind: Any) -> None:
        cloud.receive(kind(session=cloud.session, seqs=seqs, block=run_block(run, seqs, steady=True)))

    for seq in range(1, 41):
        bring(1, range(seq, seq + 1), LiveData)
    first = cloud.channel.receiver.lineage or b""
    cloud.say_hello(0)
    bring(3, range(1, 4), LiveData)
    bring(1, range(33, 41), BackfillData)
    bring(2, range(33, 41), BackfillData)
    bring(2, range(41, 61), BackfillData)
    assert cloud.channel.receiver.fold.lineages[first].span_us == (RUN_US + 1_000, RUN_US + 40_000)


def test_block_that_shows_a_restart_may_be_of_a_run_between() -> None:
    cloud = LplexCloud()
    cloud.say_hello(0)
    cloud.bring(1, range(1, 41), live=True)
    cloud.say_hello(200)
    cloud.bring(2, range(31, 51))  # run 3 speaks
    cloud.bring(2, range(51, 61))
    cloud.bring(3, range(180, 201), live=True)
    cloud.assert_runs({1: range(1, 41)}, {3: range(180, 201)})


def test_block_that_came_before_any_frame_of_live_waits_for_the_next_pass() -> None:
    cloud = LplexCloud()
    cloud.say_hello(30)
    cloud.bring(1, range(1, 21))
    assert cloud.held() == {}
    cloud.receive(BackfillDone(session=cloud.session))
    assert cloud.channel.wake_at_ms() == 1_000


def test_good_records_of_a_damaged_block_are_kept_and_the_others_lost_with_the_reason() -> None:
    cloud = LplexCloud()
    cloud.say_hello(0)
    cloud.bring(1, range(1, 11), live=True)
    cloud.bring(1, range(21, 31), live=True)
    cloud.bring(1, range(5, 19), lost=range(19, 23), problem="record 14 of 18 is not a frame record")
    fold = cloud.channel.receiver.fold.lineages[cloud.channel.receiver.lineage or b""]
    assert (list(fold.lost), fold.cursor) == ([range(19, 21)], 30)
    records = [
        record
        for found in cloud.log.blocks()
        if found.maker.kind == BlockKind.CONTROL
        for record in decode_control(found.maker, found.raw_body())
    ]
    assert any(isinstance(record, RangeLost) and "record 14 of 18" in record.reason for record in records)


def test_acks_on_a_timer_end_with_the_connection() -> None:
    cloud = Cloud()
    cloud.hello(0)
    assert cloud.channel.wake_at_ms() == 5_000
    assert len(cloud.channel.wake(5_000)) == 1
    cloud.channel.disconnected(1)
    assert cloud.channel.wake_at_ms() is None


# --- two frames under one number (F6) ------------------------------------------------------------


def test_a_block_with_another_frame_under_a_held_seq_is_refused_and_fills_nothing() -> None:
    cloud = Cloud()
    cloud.hello(100)
    cloud.backfill(41, 81)
    (refusal,) = cloud.backfill(71, 91, salt=1)
    assert refusal.code == "conflicting_frames"
    assert cloud.channel.receiver.holes() == [range(1, 41), range(81, 101)]
    assert cloud.hello(100).fork


def test_the_same_frames_in_another_cut_are_no_conflict() -> None:
    cloud = Cloud()
    cloud.hello(100)
    for start in range(41, 81, 10):
        cloud.backfill(start, start + 10)
    (ack,) = cloud.backfill(1, 101)
    assert (ack.cursor, ack.remaining) == (100, ())


def test_frames_are_compared_after_a_restart_too() -> None:
    cloud = Cloud()
    cloud.hello(100)
    cloud.backfill(41, 81)
    cloud.restart()
    cloud.hello(100)
    (refusal,) = cloud.backfill(31, 51, salt=1)
    assert refusal.code == "conflicting_frames"


def test_messages_of_clients_in_a_boats_channel_are_no_frames_of_the_boat() -> None:
    cloud = Cloud()
    before = fold_log(cloud.log.blocks()).to_state()
    made = encode_messages([Message(time_us=1, value=b"hello")], base_seq=1, producer=bytes(15) + b"\x07")
    cloud.log.stage(made, epoch=1, now_us=0)
    cloud.log.commit(0)
    assert fold_log(cloud.log.blocks()).to_state() == before
