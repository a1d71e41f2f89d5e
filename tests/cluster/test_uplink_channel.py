"""A boat's channel: what the receiver decides becomes blocks and control records of a log, and back."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.control import LineageOpened, encode_control
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.messages import Message, encode_messages
from tidelog.cluster.uplink_channel import UplinkChannel, fold_log, held_block
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
from tidelog.storage.log import Log
from tidelog.storage.options import LogOptions
from tidelog.storage.recovery import open_log

A, B, NEW = b"a" * 16, b"b" * 16, b"n" * 16


def block(start: int, stop: int, lineage: bytes = A, *, salt: int = 0) -> MadeBlock:
    frames = FrameColumns.from_rows((seq, seq, b"%04d%d" % (seq, salt)) for seq in range(start, stop))
    return encode_frames(frames, base_seq=start, producer=lineage)


class Cloud:
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
        return UplinkChannel(instance="boat-001", fold=fold_log(self.log.blocks()), limits=ReceiverLimits(), held=held)

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
            more = {"life": b"1", "sent_through": head} | more
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


def test_two_passes_of_an_lplex_boat_make_its_hole_lost() -> None:
    cloud = Cloud()
    for _ in range(2):
        cloud.hello(100, lineage=None, journal_bytes=1)
        for start, stop in ((1, 50), (60, 100)):
            made = block(start, stop, NEW)
            cloud.receive(BackfillData(session=cloud.session, seqs=range(start, stop), block=made))
        cloud.receive(BackfillDone(session=cloud.session))
    assert list(cloud.channel.receiver.fold.lineages[NEW].lost) == [range(50, 60)]
    assert cloud.channel.receiver.cursor == 99


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
