"""A boat's uplink with a real journal: what leaves, byte for byte, and what it says when it cannot."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tidelog.blocks.frames import decode_frames
from tidelog.core.uplink.messages import (
    BackfillAck,
    BackfillData,
    BackfillGone,
    Hello,
    LiveAck,
    LiveData,
    LiveStatus,
    Refused,
    Welcome,
)
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.journal.journal import Journal, JournalOptions, open_journal
from tidelog.edge.journal.ring import Ring
from tidelog.edge.uplink.uplink import BoatUplink, Connect, Disconnect
from tidelog.errors import DiskError, DiskFull
from tidelog.sim.disk import SimDisk

START_US = 1_750_000_000_000_000


class Boat:
    def __init__(
        self, disk: SimDisk | None = None, *, ring_frames: int = 1_000, daily_bytes: int | None = None, **options: Any
    ) -> None:
        self.daily_bytes = daily_bytes
        self.rng = random.Random(1)
        self.disk = disk or SimDisk(random.Random(2))
        self.options = JournalOptions(**({"reserve_bytes": 0, "lease_seqs": 1_000} | options))
        self.ring_frames = ring_frames
        self.now_ms = 0
        self.open()

    def open(self) -> None:
        self.journal: Journal = open_journal(
            self.disk, "j", now_us=START_US, new_lineage=lambda: self.rng.randbytes(16), options=self.options
        )
        self.ring = Ring(frames_max=self.ring_frames)
        self.uplink = BoatUplink(
            journal=self.journal,
            ring=self.ring,
            config=SenderConfig(),
            jitter=lambda: 0.0,
            now_ms=self.now_ms,
            daily_bytes=self.daily_bytes,
        )

    def record(self, frames: int) -> None:
        for number in range(frames):
            frame = (START_US + number, 0x9F80100, b"%08d" % number)
            seq = self.journal.record(*frame, START_US)
            self.ring.append(seq, *frame)

    def poll(self) -> list[Any]:
        return self.uplink.poll(self.now_ms, now_us=START_US + 1000 * self.now_ms)

    def connect(self, **answer: Any) -> Hello:
        (connect,) = self.poll()
        assert isinstance(connect, Connect)
        self.receive(welcome(connect.hello, **answer))
        return connect.hello

    def receive(self, message: Any) -> list[Any]:
        return self.uplink.receive(message, self.now_ms, now_us=START_US + 1000 * self.now_ms)


def welcome(hello: Hello, **more: Any) -> Welcome:
    fields: dict[str, Any] = {
        "session": 1,
        "cursor": 0,
        "holes": (range(1, hello.head + 1),) if hello.head else (),
        "live_start": hello.head + 1,
        "known": True,
        "rate_frames_per_s": 2_000,
        "burst_frames": 500,
    }
    return Welcome(**(fields | more))


def test_the_handshake_says_who_the_boat_is_and_how_far_it_came() -> None:
    boat = Boat()
    boat.record(10)
    hello = boat.connect()
    assert (hello.head, hello.lineage, hello.sent_through) == (10, boat.journal.lineage, 0)
    assert hello.boot_id == boat.journal.declared.boot_id
    assert hello.journal_bytes > 0


def test_live_takes_frames_before_they_are_flushed() -> None:
    boat = Boat()
    boat.connect()
    boat.record(3)
    (live,) = boat.poll()
    assert isinstance(live, LiveData)
    assert live.seqs == live.block.maker.seqs == range(1, 4)
    assert boat.journal.durable_head == 0


def test_the_newest_part_of_a_hole_is_flushed_so_that_no_residue_stays() -> None:
    boat = Boat()
    boat.record(10)
    boat.connect()
    (block,) = boat.poll()
    assert isinstance(block, BackfillData)
    assert block.seqs == range(1, 11)
    assert boat.journal.durable_head == 10


def test_a_backfilled_block_is_the_journal_s_byte_for_byte() -> None:
    boat = Boat()
    boat.record(10)
    boat.journal.flush(START_US)
    boat.connect()
    (sent,) = boat.poll()
    stored = next(block for block in boat.journal.blocks() if block.maker.base_seq)
    assert bytes(sent.block.body) == bytes(stored.body)
    assert sent.block.maker == stored.maker
    assert len(decode_frames(sent.block.maker, stored.raw_body())) == 10


def test_a_backfilled_block_lies_where_the_boat_says_in_its_file() -> None:
    boat = Boat()
    for _ in range(3):
        boat.record(10)
        boat.journal.flush(START_US)
    boat.connect()
    sent = boat.poll()
    assert [out.seqs for out in sent] == [range(1, 11), range(11, 21), range(21, 31)]
    log = boat.journal.fresh
    (segment,) = log.segments
    with log.files.use(segment.path) as file:
        for out in sent:
            assert file.read_at(out.file_offset, 64) == bytes(out.block.maker_bytes)


def test_a_hole_inside_a_block_is_answered_with_the_whole_block() -> None:
    boat = Boat()
    boat.record(10)
    boat.connect(holes=(range(4, 6),))
    (sent,) = boat.poll()
    assert sent.seqs == range(1, 11)


def test_what_the_journal_no_longer_has_is_called_gone() -> None:
    boat = Boat()
    boat.record(10)
    boat.journal.flush(START_US)
    boat.connect(holes=(range(1, 11),), live_start=11)
    boat.journal.blocks = lambda **_: iter(())  # type: ignore[method-assign]
    (gone,) = boat.poll()
    assert isinstance(gone, BackfillGone)
    assert gone.seqs == range(1, 11)


def test_a_journal_that_cannot_be_read_for_backfill_says_so_until_it_can() -> None:
    boat = Boat()
    boat.record(10)
    boat.journal.flush(START_US)
    boat.connect()
    boat.disk.faults.fail_after, boat.disk.faults.fail_forever = 1, True
    assert boat.poll() == [], "what cannot be read now is not gone"
    assert (boat.journal.upkeep.problem or "").startswith("the journal cannot be read for Backfill: ")
    assert boat.journal.refusal is None
    boat.disk.faults.fail_after, boat.disk.faults.fail_forever = None, False
    boat.now_ms += 1_000
    (sent,) = boat.poll()
    assert isinstance(sent, BackfillData)
    assert boat.journal.upkeep.problem is None


def test_a_failed_read_for_backfill_is_forgotten_when_the_cloud_lacks_nothing_any_more() -> None:
    boat = Boat()
    boat.record(10)
    boat.journal.flush(START_US)
    boat.connect()
    boat.disk.faults.fail_after, boat.disk.faults.fail_forever = 1, True
    assert boat.poll() == []
    assert boat.journal.upkeep.problem is not None
    boat.disk.faults.fail_after, boat.disk.faults.fail_forever = None, False
    boat.receive(BackfillAck(session=1, cursor=10, answered=0, remaining=()))
    boat.poll()
    assert boat.journal.upkeep.problem is None


def test_frames_that_a_full_disk_keeps_in_memory_are_not_called_gone() -> None:
    boat = Boat()
    boat.record(5)
    boat.journal.flush(START_US)
    boat.disk.faults.capacity_bytes = 0
    boat.record(5)
    boat.connect()
    (sent,) = boat.poll()
    assert isinstance(sent, BackfillData)
    assert sent.seqs == range(1, 6)
    assert boat.uplink.wake_at_ms(boat.now_ms) > boat.now_ms, "no use in trying again at once"
    boat.disk.faults.capacity_bytes = None
    boat.now_ms += 1_000
    (rest,) = boat.poll()
    assert rest.seqs == range(6, 11)


def test_what_cannot_be_read_now_is_not_called_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    boat = Boat()
    boat.record(5)
    boat.journal.flush(START_US)
    boat.connect()

    def refuse(**_: Any) -> Any:
        raise DiskError(operation="read", path="j", reason="a test")

    with monkeypatch.context() as patch:
        patch.setattr(boat.journal, "blocks", refuse)
        assert boat.poll() == []
    boat.now_ms += 1_000
    (sent,) = boat.poll()
    assert sent.seqs == range(1, 6)


def test_acks_reach_the_journal_of_the_session_that_is_open_only() -> None:
    boat = Boat()
    boat.record(10)
    boat.connect()
    boat.poll()
    boat.receive(LiveAck(session=9, cursor=9, committed_through=0, holes=()))
    assert boat.journal.acked == 0
    boat.receive(BackfillAck(session=1, cursor=8, answered=1, remaining=()))
    assert boat.journal.acked == 8
    boat.receive(LiveAck(session=1, cursor=10, committed_through=0, holes=()))
    assert boat.journal.acked == 10


def test_the_time_of_the_last_ack_stays_while_no_ack_comes() -> None:
    """It was worked out anew at each question from two clocks, and moved with them."""
    boat = Boat()
    boat.connect()
    boat.uplink.receive(LiveAck(session=1, cursor=0, committed_through=0, holes=()), 1_000, now_us=START_US)
    for now_ms in (1_001, 2_000, 3_600_000):
        boat.uplink.poll(now_ms, now_us=START_US - 86_400_000_000 + 999 * now_ms)
        assert boat.uplink.statistics().last_ack_us == START_US
    boat.uplink.receive(LiveAck(session=9, cursor=0, committed_through=0, holes=()), 4_000, now_us=START_US + 7)
    assert boat.uplink.statistics().last_ack_us == START_US, "it was of another session"


def test_a_silent_bus_still_reports() -> None:
    boat = Boat()
    boat.connect()
    boat.now_ms = boat.uplink.wake_at_ms(0)
    assert boat.now_ms == 5_000
    (status,) = boat.poll()
    assert isinstance(status, LiveStatus)


def test_a_refusal_ends_the_session_and_the_next_dial_waits() -> None:
    boat = Boat()
    boat.connect()
    (end,) = boat.receive(Refused(session=1, code="session_fenced"))
    assert isinstance(end, Disconnect)
    assert boat.poll() == []
    boat.now_ms = boat.uplink.wake_at_ms(0)
    assert isinstance(boat.poll()[0], Connect)


def test_live_that_fell_out_of_the_ring_goes_by_backfill() -> None:
    boat = Boat(ring_frames=100)
    boat.connect()
    boat.record(300)
    assert isinstance(boat.poll()[-1], Disconnect)


def test_a_fork_starts_a_new_lineage_that_has_nothing_to_declare() -> None:
    """B7."""
    boat = Boat()
    boat.record(10)
    boat.journal.declared.void.add(range(3, 5))
    old = boat.journal.lineage
    (connect,) = boat.poll()
    (end,) = boat.receive(welcome(connect.hello, fork=True))
    assert isinstance(end, Disconnect)
    assert boat.journal.lineage != old
    boat.disk.crash()
    boat.open()
    (connect,) = boat.poll()
    assert connect.hello.lineage == boat.journal.lineage != old
    # Nothing of the old lineage's words is told of the new one, not even after a power cut.
    assert connect.hello.void == (range(1, 1_001),)


def test_a_fork_on_a_full_disk_is_tried_again_with_the_next_handshake() -> None:
    boat = Boat()
    boat.record(10)
    (connect,) = boat.poll()
    boat.disk.faults.capacity_bytes = 0
    (end,) = boat.receive(welcome(connect.hello, fork=True))
    assert isinstance(end, Disconnect)
    boat.disk.faults.capacity_bytes = None
    boat.now_ms = boat.uplink.wake_at_ms(0)
    (connect,) = boat.poll()
    assert connect.hello.lineage == boat.journal.lineage


def test_void_seqs_are_told_until_the_cursor_has_passed_them() -> None:
    boat = Boat()
    boat.record(10)
    boat.journal.flush(START_US)
    boat.disk.crash()
    boat.open()
    (connect,) = boat.poll()
    assert connect.hello.void == (range(11, 1_001),)
    assert connect.hello.head == 1_000
    boat.receive(welcome(connect.hello, cursor=1_000, holes=()))
    boat.journal.close(START_US)
    boat.open()
    (connect,) = boat.poll()
    assert connect.hello.void == ()


def test_each_opening_has_a_boot_id_and_boot_ids_are_sent_until_the_cloud_answered() -> None:
    boat = Boat()
    boot_ids = [boat.journal.declared.boot_id]
    boat.record(10)
    for _ in range(2):
        boat.journal.close(START_US)
        boat.open()
        boot_ids.append(boat.journal.declared.boot_id)
    hello = boat.connect()
    assert hello.boot_id == boot_ids[-1]
    assert hello.earlier == ((boot_ids[0], 10), (boot_ids[1], 10))
    boat.uplink.disconnected(0)
    boat.now_ms = boat.uplink.wake_at_ms(0)
    (connect,) = boat.poll()
    assert connect.hello.earlier == ()


def test_the_journal_gets_the_boat_s_clock_and_not_the_uplink_s() -> None:
    boat = Boat()
    boat.record(10)
    boat.connect()
    boat.poll()
    stored = next(block for block in boat.journal.blocks() if block.maker.base_seq)
    assert stored.leader.append_time_us == START_US


def test_a_refused_frame_has_no_seq_and_is_not_in_the_ring() -> None:
    boat = Boat(flush_frames_max=4, buffer_frames_max=4)
    boat.disk.faults.capacity_bytes = 0
    with pytest.raises(DiskFull):
        boat.record(20)
    assert boat.ring.seqs.stop == boat.journal.head + 1


# --- metered links -------------------------------------------------------------------------------


def test_when_the_days_bytes_are_used_up_the_link_rests_until_the_next_day() -> None:
    boat = Boat(daily_bytes=2_000)
    boat.connect()
    outs: list[Any] = []
    while not any(isinstance(out, Disconnect) for out in outs):
        boat.record(20)
        outs = boat.poll()
        boat.receive(LiveAck(session=1, cursor=boat.journal.head, committed_through=boat.journal.head, holes=()))
        boat.now_ms += 10
    assert "until the next day" in outs[-1].reason
    used = boat.uplink.statistics()
    assert 2_000 <= used.live_bytes_today < 3_000
    boat.now_ms += 3_600_000
    boat.record(20)
    assert boat.poll() == [], "not a byte, not even a dial"
    day_ms = 86_400_000
    boat.now_ms = day_ms - START_US // 1000 % day_ms
    (connect,) = boat.poll()
    assert isinstance(connect, Connect)


def test_backfill_leaves_live_its_share_of_the_day() -> None:
    boat = Boat(daily_bytes=20_000)
    boat.record(1_000)
    boat.journal.flush(START_US)
    boat.record(1)
    boat.connect(holes=(range(1, 1_001),), live_start=1_001)
    first = boat.poll()
    assert [type(out) for out in first] == [LiveData, BackfillData], "Live goes first"
    share = boat.uplink._meter.backfill_left(START_US)
    assert share is not None
    boat.uplink._meter.spend(START_US, backfill=share)
    boat.receive(BackfillAck(session=1, cursor=0, answered=1, remaining=(range(1, 500),)))
    boat.receive(LiveAck(session=1, cursor=0, committed_through=1_001, holes=(range(1, 500),)))
    boat.record(5)
    assert [type(out) for out in boat.poll()] == [LiveData]
    assert boat.uplink.wake_at_ms(boat.now_ms) > boat.now_ms, "and it does not spin"


def test_what_was_sent_today_is_known_after_a_restart() -> None:
    boat = Boat(daily_bytes=50_000)
    boat.connect()
    boat.record(100)
    boat.poll()
    boat.now_ms += 5_000
    assert any(isinstance(out, LiveStatus) for out in boat.poll())
    used = boat.uplink.statistics().live_bytes_today
    boat.journal.close(START_US)
    boat.open()
    assert boat.uplink.statistics().live_bytes_today == used > 0
