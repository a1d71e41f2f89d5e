"""Frames of an older lineage get new numbers: all of them, once, whatever happens in between."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import Any

import pytest

from tests.edge.test_boat_uplink import welcome
from tidelog.blocks.decode import decode_block_frames
from tidelog.core.uplink.messages import LiveAck, LiveData, LiveStatus
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.journal.journal import META_NAME, Journal, JournalOptions, open_journal
from tidelog.edge.journal.re_recording import FRAMES_MAX, ReRecording
from tidelog.edge.journal.ring import Ring
from tidelog.edge.uplink.uplink import BoatUplink, Connect
from tidelog.errors import DiskFull
from tidelog.sim.disk import SimDisk
from tidelog.sim.power import PluggedDisk, PowerCut

START_US = 1_750_000_000_000_000


def open_it(disk: Any, rng: random.Random) -> Journal:
    options = JournalOptions(reserve_bytes=0, lease_seqs=1_000)
    return open_journal(disk, "j", now_us=START_US, new_lineage=lambda: rng.randbytes(16), options=options)


def record(journal: Journal, frames: int, first: int = 0) -> None:
    for number in range(first, first + frames):
        journal.record(START_US + number, 0x9F80100, b"%08d" % number, START_US)


def numbers(journal: Journal, lineage: bytes) -> Counter[int]:
    """How often each frame is in the journal under this lineage."""
    found: Counter[int] = Counter()
    for block in journal.blocks(producer=lineage):
        found.update(int(payload) for _, _, payload in decode_block_frames(block.made()).rows())
    return found


def re_record_all(journal: Journal) -> None:
    carry = ReRecording(journal)
    while carry.step(START_US) is not None:
        pass
    assert not carry.pending


def test_what_was_not_acked_gets_new_numbers_with_its_own_content() -> None:
    rng = random.Random(1)
    journal = open_it(SimDisk(rng), rng)
    record(journal, 1_000)
    journal.acknowledge(300)
    old = journal.lineage
    journal.fork_lineage("a clone", START_US)
    record(journal, 10, first=5_000)
    re_record_all(journal)
    assert numbers(journal, journal.lineage) == Counter([*range(300, 1_000), *range(5_000, 5_010)])
    assert journal.acked_of(old) == 1_000, "retention may have the old form"
    assert journal.head == 710


def test_one_step_carries_a_few_frames_and_says_which() -> None:
    rng = random.Random(1)
    journal = open_it(SimDisk(rng), rng)
    record(journal, 1_000)
    journal.fork_lineage("a clone", START_US)
    carried = ReRecording(journal).step(START_US)
    assert carried is not None
    seqs, frames = carried
    assert (seqs, len(frames)) == (range(1, FRAMES_MAX + 1), FRAMES_MAX)


def test_nothing_is_carried_from_a_lineage_until_it_is_known_what_the_cloud_holds_of_it() -> None:
    rng = random.Random(1)
    disk = SimDisk(rng)
    journal = open_it(disk, rng)
    record(journal, 500)
    old = journal.lineage
    journal.close(START_US)
    disk.remove(f"j/{META_NAME}")
    journal = open_it(disk, rng)
    assert journal.orphans == {old}
    assert ReRecording(journal).step(START_US) is None
    uplink = BoatUplink(journal=journal, ring=Ring(), config=SenderConfig(), jitter=lambda: 0.0, now_ms=0)
    (connect,) = uplink.poll(0, now_us=START_US)
    assert isinstance(connect, Connect)
    assert connect.hello.orphans == (old,)
    uplink.receive(welcome(connect.hello, holes=(), orphan_cursors=((old, 450),)), 0, now_us=START_US)
    outs = uplink.poll(0, now_us=START_US)
    assert numbers(journal, journal.lineage) == Counter(range(450, 500))
    assert sum(len(out.seqs) for out in outs if isinstance(out, LiveData)) == 50, "and they leave by Live at once"


@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_at_any_moment_neither_loses_a_frame_nor_carries_it_twice(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    disk = PluggedDisk(random.Random(seed))
    journal = open_it(disk, rng)
    record(journal, 900)
    journal.flush(START_US)
    journal.fork_lineage("a clone", START_US)
    disk.cut_after = seed
    cuts = 0
    while True:
        try:
            re_record_all(journal)
            disk.cut_after = None
            break
        except PowerCut:
            cuts += 1
            disk.crash()
            disk.cut_after = None
            journal = open_it(disk, rng)
            disk.cut_after = rng.randrange(40) if cuts < 3 else None
    assert numbers(journal, journal.lineage) == Counter(range(900))
    assert cuts or seed > 30, "the cut came too late"


def test_a_full_disk_holds_the_carrying_up_and_breaks_nothing() -> None:
    rng = random.Random(3)
    disk = SimDisk(rng)
    journal = open_it(disk, rng)
    record(journal, 900)
    journal.flush(START_US)
    journal.fork_lineage("a clone", START_US)
    carry = ReRecording(journal)
    disk.faults.capacity_bytes = 0
    with pytest.raises(DiskFull):
        carry.step(START_US)
    disk.faults.capacity_bytes = None
    while carry.step(START_US) is not None:
        pass
    assert numbers(journal, journal.lineage) == Counter(range(900))


@pytest.mark.parametrize("calls", range(1, 30))
def test_a_disk_that_fills_up_in_the_middle_of_a_step_while_the_bus_goes_on(calls: int) -> None:
    """The bus may then get the numbers that were meant for old frames: that must not pass for having carried them."""
    rng = random.Random(calls)
    disk = SimDisk(rng)
    journal = open_it(disk, rng)
    record(journal, 300)
    journal.flush(START_US)
    journal.fork_lineage("a clone", START_US)
    carry = ReRecording(journal)
    disk.faults.fail_kind, disk.faults.fail_after, disk.faults.fail_forever = "full", calls, True
    for _ in range(3):
        with contextlib.suppress(DiskFull):
            carry.step(START_US)
        with contextlib.suppress(DiskFull):
            record(journal, 300, first=5_000)
            journal.flush(START_US)
    disk.faults.fail_after = None
    journal.flush(START_US)
    journal.close(START_US)
    journal = open_it(disk, rng)
    re_record_all(journal)
    found = numbers(journal, journal.lineage)
    assert {number: count for number, count in found.items() if number < 300} == dict.fromkeys(range(300), 1)


def test_a_restart_long_after_the_carrying_does_it_no_second_time() -> None:
    rng = random.Random(4)
    disk = SimDisk(rng)
    journal = open_it(disk, rng)
    record(journal, 500)
    journal.fork_lineage("a clone", START_US)
    re_record_all(journal)
    record(journal, 100, first=5_000)
    journal.close(START_US)
    journal = open_it(disk, rng)
    re_record_all(journal)
    assert numbers(journal, journal.lineage) == Counter([*range(500), *range(5_000, 5_100)])


def test_a_step_is_no_larger_than_what_live_may_send_at_once() -> None:
    """A larger one would end the session, for Live fell behind, and the next one too, before Backfill had a chance."""
    rng = random.Random(5)
    journal = open_it(SimDisk(rng), rng)
    record(journal, 900)
    journal.fork_lineage("a clone", START_US)
    config = SenderConfig(max_live_lag=60, lag_check_interval=10, live_block_frames_max=40)
    uplink = BoatUplink(journal=journal, ring=Ring(), config=config, jitter=lambda: 0.0, now_ms=0)
    (connect,) = uplink.poll(0, now_us=START_US)
    assert isinstance(connect, Connect)
    uplink.receive(welcome(connect.hello, burst_frames=60), 0, now_us=START_US)
    now_ms = committed = 0
    while committed < 900:
        outs = uplink.poll(now_ms, now_us=START_US)
        assert all(isinstance(out, LiveData | LiveStatus) for out in outs)
        assert uplink.sender.live_position() == journal.head + 1, "nothing that was recorded waits for Live"
        committed, now_ms = journal.head, now_ms + 20
        ack = LiveAck(session=1, cursor=committed, committed_through=committed, holes=())
        uplink.receive(ack, now_ms, now_us=START_US)
        now_ms = uplink.wake_at_ms(now_ms)
    assert now_ms < 10_000, "small steps follow each other sooner"
