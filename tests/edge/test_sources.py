"""Where frames come from, in virtual time: a voyage, files at any speed, python-can's virtual bus."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.edge.bus_frames import Row, can_id, capture_path, fast_packet
from tests.odd_lpj import write_odd_lpj
from tests.patience import patient
from tidelog.blocks.columns import FrameColumns
from tidelog.compat.captures import SkipReason, write_canboat_raw, write_candump
from tidelog.compat.lpj import LpjWriter
from tidelog.edge.sources.replay import READ_FRAMES_MAX, ReplayOptions
from tidelog.edge.sources.source import FrameSource, ReplaySource, SocketCanOptions, SocketCanSource, VoyageSource
from tidelog.edge.sources.voyage import Voyage
from tidelog.errors import BadJournalFile, InvalidConfig, MissingExtra, NotALog, SourceFailed

can = pytest.importorskip("can", reason="python-can (the extra `can`) is not installed")

SECOND_US = 1_000_000
RECORDED_US = 1_600_000_000 * SECOND_US
NOW_US = 1_700_000_000 * SECOND_US
WAIT_S = 30
"""Long enough for any machine; nothing waits that long unless it fails."""


def rows_of(frames: FrameColumns) -> list[Row]:
    return list(frames.rows())


def drain(source: FrameSource, now_us: int) -> list[Row]:
    """Everything that is due at one moment."""
    rows: list[Row] = []
    while True:
        rows += rows_of(source.read(now_us))
        wake_at_us = source.wake_at_us()
        if source.ended or wake_at_us is None or wake_at_us > now_us:
            return rows


def play(source: FrameSource, now_us: int = NOW_US, *, reads_max: int = 10_000) -> list[tuple[int, Row]]:
    """Run a source to its end on a clock that jumps from wake to wake: (moment, frame)."""
    seen: list[tuple[int, Row]] = []
    for _ in range(reads_max):
        if source.ended:
            return seen
        seen += [(now_us, row) for row in rows_of(source.read(now_us))]
        wake_at_us = source.wake_at_us()
        now_us = max(now_us, now_us if wake_at_us is None else wake_at_us)
    raise AssertionError("the source does not end")


def frames_at(*seconds: float) -> FrameColumns:
    """One frame at each moment after the start of the recording."""
    return FrameColumns.from_rows(
        [
            (RECORDED_US + round(at * SECOND_US), can_id(127250, 7), bytes([place] * 8))
            for place, at in enumerate(seconds)
        ]
    )


def write(tmp_path: Path, kind: str, frames: FrameColumns) -> str:
    path = tmp_path / f"capture-{len(list(tmp_path.iterdir()))}.{kind}"
    if kind == "lpj":
        with LpjWriter(path) as writer:
            writer.append(frames, first_seq=1)
    elif kind == "raw":
        write_canboat_raw(path, [frames])
    else:
        write_candump(path, [frames])
    return str(path)


every_kind = pytest.mark.parametrize("kind", ["lpj", "raw", "candump"])


# --- the voyage ----------------------------------------------------------------------------------


def test_a_voyage_gives_every_frame_once_however_it_is_read() -> None:
    source = VoyageSource(seed=5, now_us=NOW_US, frames_per_s=700)
    got = [source.read(NOW_US + moment) for moment in (0, 10, 90_000, 90_001, 2_500_000, 30_000_000)]
    while source.wake_at_us() <= NOW_US + 30_000_000:
        got.append(source.read(NOW_US + 30_000_000))
    expected = Voyage(seed=5, start_us=NOW_US).frames(NOW_US, NOW_US + 30_000_000, frames_per_s=700)
    assert FrameColumns.concatenate(got).equals(expected)
    assert max(map(len, got)) < 9000
    assert source.frame_count == len(expected)


def test_a_voyage_asks_to_be_woken_and_keeps_its_rate() -> None:
    source = VoyageSource(seed=5, now_us=NOW_US, frames_per_s=1800)
    now_us, count = NOW_US, 0
    while now_us < NOW_US + 10 * SECOND_US:
        count += len(source.read(now_us))
        assert source.wake_at_us() >= now_us
        now_us = source.wake_at_us()
    assert count == pytest.approx(18_000, rel=0.02)


def test_a_voyage_survives_a_clock_that_leaps() -> None:
    source = VoyageSource(seed=5, now_us=NOW_US)
    counts = []
    # (the clock says, the oldest frame that may come then), in seconds since the voyage began
    for second, oldest in ((1, 0), (3600, 3600), (3601, 3600), (5, 5), (4.5, 5), (6, 5)):
        rows = drain(source, NOW_US + round(second * SECOND_US))
        assert all(oldest * SECOND_US <= row[0] - NOW_US <= second * SECOND_US for row in rows)
        counts.append(len(rows))
    assert [count > 10 for count in counts] == [True, False, True, False, False, True]
    source.close()


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_voyage_refuses_an_impossible_rate(rate: float) -> None:
    with pytest.raises(InvalidConfig):
        VoyageSource(seed=1, now_us=NOW_US, frames_per_s=rate)


# --- replay --------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("speed", [1.0, 0.5, 10.0])
def test_replay_keeps_distances_at_any_speed(tmp_path: Path, kind: str, speed: float) -> None:
    frames = frames_at(0, 0.25, 0.25, 1.5, 4)
    source = ReplaySource([write(tmp_path, kind, frames)], options=ReplayOptions(speed=speed))
    seen = play(source)
    assert [row for _, row in seen] == rows_of(frames)
    assert [moment - NOW_US for moment, _ in seen] == [round(at * SECOND_US / speed) for at in (0, 0.25, 0.25, 1.5, 4)]


def test_no_frame_comes_early(tmp_path: Path) -> None:
    source = ReplaySource([write(tmp_path, "lpj", frames_at(0, 1, 2))])
    assert len(drain(source, NOW_US)) == 1
    assert drain(source, NOW_US + SECOND_US - 1) == []
    assert len(drain(source, NOW_US + SECOND_US)) == 1
    assert (source.wake_at_us(), source.ended) == (NOW_US + 2 * SECOND_US, False)
    assert len(drain(source, NOW_US + 9 * SECOND_US)) == 1
    assert source.ended
    assert source.wake_at_us() is None
    assert len(source.read(NOW_US + 10 * SECOND_US)) == 0


def test_speed_0_gives_all_at_once_in_bounded_reads(tmp_path: Path) -> None:
    frames = Voyage(seed=1, start_us=RECORDED_US).frames(RECORDED_US, RECORDED_US + 400 * SECOND_US)
    paths = [write(tmp_path, "lpj", frames), write(tmp_path, "raw", frames)]
    source = ReplaySource(paths, options=ReplayOptions(speed=0))
    seen = play(source)
    assert [row for _, row in seen] == rows_of(frames) * 2
    assert {moment for moment, _ in seen} == {NOW_US}
    small = ReplaySource(paths, options=ReplayOptions(speed=0))
    assert len(small.read(NOW_US)) <= READ_FRAMES_MAX
    small.close()


@every_kind
def test_long_gaps_are_cut_only_when_asked(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind, frames_at(0, 3600, 3601))
    cut = play(ReplaySource([path]))
    assert [moment - NOW_US for moment, _ in cut] == [0, 5 * SECOND_US, 6 * SECOND_US]
    assert [row[0] - RECORDED_US for _, row in cut] == [0, 3600 * SECOND_US, 3601 * SECOND_US]
    kept = play(ReplaySource([path], options=ReplayOptions(gap_us_max=None)))
    assert [moment - NOW_US for moment, _ in kept] == [0, 3600 * SECOND_US, 3601 * SECOND_US]


def test_stamps_can_be_shifted_to_now(tmp_path: Path) -> None:
    path = write(tmp_path, "raw", frames_at(0, 1, 2))
    late = ReplaySource([path], options=ReplayOptions(stamps="now", speed=2))
    late.read(NOW_US)
    assert [row[0] - NOW_US for row in drain(late, NOW_US + 60 * SECOND_US)] == [SECOND_US // 2, SECOND_US]
    fast = ReplaySource([path], options=ReplayOptions(stamps="now", speed=0))
    assert [row[0] for row in drain(fast, NOW_US)] == [NOW_US] * 3


def test_a_loop_goes_on_until_closed(tmp_path: Path) -> None:
    source = ReplaySource([write(tmp_path, "lpj", frames_at(0, 1))], options=ReplayOptions(loop=True))
    with closing(source):
        for second in range(5):
            assert [row[2][0] for row in drain(source, NOW_US + second * SECOND_US)] == ([1, 0] if second else [0])
        assert source.statistics().rounds == 4
    assert source.ended


def test_a_loop_over_nothing_ends(tmp_path: Path) -> None:
    path = tmp_path / "remarks.candump"
    path.write_text("(1.0) can0 123#00\n")
    source = ReplaySource([str(path)], options=ReplayOptions(loop=True))
    assert play(source) == []
    assert source.statistics().skipped == {SkipReason.STANDARD_ID: 1}


def test_raw_candump_frames_are_assembled(tmp_path: Path) -> None:
    payload = bytes(range(43))
    parts = fast_packet(payload, 3)
    rows = [(RECORDED_US + 1000 * place, can_id(129029, 7), part) for place, part in enumerate(parts)]
    source = ReplaySource([write(tmp_path, "candump", FrameColumns.from_rows(rows))], options=ReplayOptions(speed=0))
    assert drain(source, NOW_US) == [(rows[-1][0], can_id(129029, 7), payload)]
    assert source.statistics().assembler.assembled == 1


def test_the_real_candump_without_times_plays_as_a_busy_bus() -> None:
    source = ReplaySource([str(capture_path("candumpSample1.txt"))])
    seen = play(source)
    statistics = source.statistics()
    assert len(seen) == statistics.frames == statistics.assembler.passed + statistics.assembler.assembled
    assert statistics.assembler.assembled == 406
    assert seen[-1][0] - NOW_US == pytest.approx(6_000 * 2_000, rel=0.02)


def test_damage_comes_after_the_good_frames_and_can_be_skipped(tmp_path: Path) -> None:
    path = tmp_path / "torn.candump"
    good = [f"({1_600_000_000 + place}.0) can0 09F11207#{place:016X}\n" for place in range(3)]
    path.write_text("".join([*good[:2], "no frame at all\n", good[2]]))
    whole = write(tmp_path, "raw", frames_at(0))
    source = ReplaySource([whole, str(path)], options=ReplayOptions(speed=0))
    assert (len(source.read(NOW_US)), source.ended) == (1, False)
    with pytest.raises(BadJournalFile):
        source.read(NOW_US)
    assert source.ended
    assert len(source.read(NOW_US)) == 0
    skipping = ReplaySource([str(path)], options=ReplayOptions(speed=0, on_damage="skip"))
    assert len(drain(skipping, NOW_US)) == 3
    assert skipping.statistics().skipped == {SkipReason.MALFORMED: 1}


def test_a_damaged_lpj_block_is_counted_or_raised(tmp_path: Path) -> None:
    frames = Voyage(seed=1, start_us=RECORDED_US).frames(RECORDED_US, RECORDED_US + 30 * SECOND_US)
    path = tmp_path / "damaged.lpj"
    with LpjWriter(path, block_size=4096, compression="none") as writer:
        writer.append(frames, first_seq=1)
    data = bytearray(path.read_bytes())
    data[16 + 4096 + 100] ^= 1
    path.write_bytes(data)
    skipping = ReplaySource([str(path)], options=ReplayOptions(speed=0, on_damage="skip"))
    assert 0 < len(drain(skipping, NOW_US)) < len(frames)
    assert skipping.statistics().damaged_blocks == 1
    strict = ReplaySource([str(path)], options=ReplayOptions(speed=0))
    assert len(strict.read(NOW_US)) > 0
    with pytest.raises(BadJournalFile):
        strict.read(NOW_US)


def test_good_records_of_an_odd_lpj_block_are_played_and_the_file_is_read_on(tmp_path: Path) -> None:
    """RY5: lplex's writer makes blocks with a good checksum and bad records at their end."""
    write_odd_lpj(tmp_path / "odd.lpj")
    good = Voyage(seed=1, start_us=RECORDED_US).frames(RECORDED_US, RECORDED_US + SECOND_US)
    with LpjWriter(tmp_path / "good.lpj") as writer:
        writer.append(good, first_seq=1)
    paths = [str(tmp_path / name) for name in ("odd.lpj", "good.lpj")]
    skipping = ReplaySource(paths, options=ReplayOptions(speed=0, on_damage="skip"))
    assert len(drain(skipping, NOW_US)) == 198 + len(good)
    assert skipping.statistics().damaged_blocks == 1
    source = ReplaySource(paths, options=ReplayOptions(speed=0))
    played = 0
    while len(frames := source.read(NOW_US)):
        played += len(frames)
        if played == 198:
            break
    assert not source.ended
    with pytest.raises(BadJournalFile, match="record 98 of 100"):
        source.read(NOW_US)
    assert played == 198
    assert source.statistics().damaged_blocks == 1
    assert source.ended


def test_a_block_of_nothing_but_bad_records_is_damage_and_no_more(tmp_path: Path) -> None:
    write_odd_lpj(tmp_path / "odd.lpj", records=1, bad_records=1)
    skipping = ReplaySource([str(tmp_path / "odd.lpj")], options=ReplayOptions(speed=0, on_damage="skip"))
    assert len(drain(skipping, NOW_US)) == 100
    assert skipping.statistics().damaged_blocks == 1


def test_absurd_times_neither_raise_nor_stall(tmp_path: Path) -> None:
    times_us = [0, 2**62, 5, 2**40, -(2**40), 2**61]
    frames = [FrameColumns.from_rows([(time_us, can_id(127250, 7), b"x")]) for time_us in times_us]
    path = tmp_path / "absurd.lpj"
    with LpjWriter(path) as writer:
        for place, part in enumerate(frames):
            writer.append(part, first_seq=1 + place)
    options = ReplayOptions(gap_us_max=None, speed=0.001)
    assert [row[0] for _, row in play(ReplaySource([str(path)], options=options))] == times_us


def test_a_clock_set_back_does_not_silence_a_replay(tmp_path: Path) -> None:
    source = ReplaySource([write(tmp_path, "lpj", frames_at(0, 1, 2))])
    drain(source, NOW_US)
    assert drain(source, NOW_US - 3600 * SECOND_US) == []
    assert len(drain(source, NOW_US - 3599 * SECOND_US)) == 1


def test_a_wrong_path_or_option_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(NotALog):
        ReplaySource([str(tmp_path / "nowhere.lpj")])
    (tmp_path / "letter.txt").write_text("Dear captain,\n")
    with pytest.raises(NotALog):
        ReplaySource([str(tmp_path / "letter.txt")])
    with pytest.raises(InvalidConfig):
        ReplaySource([])
    for speed in (-1, float("nan"), 1e9, 1e-9):
        with pytest.raises(InvalidConfig):
            ReplayOptions(speed=speed)
    with pytest.raises(InvalidConfig):
        ReplayOptions(gap_us_max=-1)


# --- the bus -------------------------------------------------------------------------------------


class Listener:
    """A source on python-can's virtual bus, and a way to wait for what its thread has heard."""

    def __init__(self, channel: str, **options: Any) -> None:
        self.told = threading.Event()
        self.source = SocketCanSource(
            options=SocketCanOptions(interface="virtual", channel=channel, **options), on_frames=self.told.set
        )
        self.sender = can.Bus(interface="virtual", channel=channel)

    def send(self, identifier: int, data: bytes, **fields: Any) -> None:
        message = can.Message(arbitration_id=identifier, data=data, **{"is_extended_id": True, **fields})
        self.sender.send(message)

    def wait_read(self, count: int) -> list[Row]:
        rows: list[Row] = []
        while len(rows) < count:
            assert self.source.wake_at_us() is not None or self.told.wait(patient(WAIT_S)), (
                f"only {len(rows)} frames came"
            )
            self.told.clear()
            rows += rows_of(self.source.read(NOW_US))
        return rows

    def close(self) -> None:
        self.sender.shutdown()
        self.source.close()


@pytest.fixture
def listener(request: pytest.FixtureRequest) -> Iterator[Listener]:
    made = Listener(request.node.name)
    yield made
    made.close()


def test_frames_of_a_bus_come_out_in_order_and_assembled(listener: Listener) -> None:
    payload = bytes(range(100))
    for number in range(50):
        listener.send(can_id(127250, 7), bytes([number] * 8))
    for part in fast_packet(payload, 1):
        listener.send(can_id(129540, 7), part)
    rows = listener.wait_read(51)
    assert [row[2] for row in rows] == [*(bytes([number] * 8) for number in range(50)), payload]
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert rows[0][0] > RECORDED_US
    statistics = listener.source.statistics()
    assert (statistics.heard, statistics.waiting, statistics.overflowed) == (50 + 15, 0, 0)
    assert listener.source.wake_at_us() is None


def test_frames_that_are_not_nmea_2000_are_counted(listener: Listener) -> None:
    listener.send(0x123, b"x", is_extended_id=False)
    listener.send(0x0AF11207, b"", is_remote_frame=True)
    listener.send(0x0AF11207, b"", is_error_frame=True)
    listener.send(0x0AF11207, b"x" * 12, is_fd=True)
    listener.send(can_id(127250, 7), b"good")
    assert [row[2] for row in listener.wait_read(1)] == [b"good"]
    reasons = [SkipReason.STANDARD_ID, SkipReason.REMOTE_FRAME, SkipReason.ERROR_FRAME, SkipReason.CAN_FD]
    assert listener.source.statistics().skipped == dict.fromkeys(reasons, 1)


class FakeBus:
    """A driver that has a few frames and then is silent, or breaks."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.messages = [can.Message(arbitration_id=can_id(127250, 7), data=bytes([n])) for n in range(count)]
        self.error = error
        self.silent = threading.Event()
        self.closed = threading.Event()

    def recv(self, timeout: float) -> Any:
        if self.messages:
            return self.messages.pop(0)
        self.silent.set()
        if self.error is not None:
            raise self.error
        self.closed.wait(timeout)
        return None

    def shutdown(self) -> None:
        self.closed.set()


def test_a_full_queue_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = FakeBus(25)
    monkeypatch.setattr(can, "Bus", lambda **_: bus)
    source = SocketCanSource(options=SocketCanOptions(queue_frames_max=10))
    assert bus.silent.wait(patient(WAIT_S))
    rows = rows_of(source.read(NOW_US))
    source.close()
    assert [row[2][0] for row in rows] == list(range(10))
    assert {row[0] for row in rows} == {NOW_US}, "a driver without a clock gets the caller's"
    assert (source.statistics().heard, source.statistics().overflowed) == (25, 15)
    assert bus.closed.is_set()


@pytest.mark.parametrize(
    "error", [OSError(100, "Network is down"), can.CanOperationError("no more"), RuntimeError("?")]
)
def test_a_broken_bus_is_told_once_after_the_last_frame(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    bus = FakeBus(3, error)
    monkeypatch.setattr(can, "Bus", lambda **_: bus)
    broken = threading.Event()
    source = SocketCanSource(on_frames=lambda: broken.set() if not bus.messages and bus.silent.is_set() else None)
    assert broken.wait(patient(WAIT_S))
    assert len(source.read(NOW_US)) == 3
    assert source.wake_at_us() == 0
    with pytest.raises(SourceFailed) as caught:
        source.read(NOW_US)
    assert (caught.value.retriable, caught.value.source) == (True, "socketcan can0")
    assert source.ended
    assert source.wake_at_us() is None
    assert len(source.read(NOW_US)) == 0
    source.close()


def test_a_bus_can_be_closed_twice_and_opened_again() -> None:
    for _ in range(2):
        listener = Listener("again")
        listener.send(can_id(127250, 7), b"hello")
        assert len(listener.wait_read(1)) == 1
        listener.close()
        listener.source.close()
        assert listener.source.ended


def test_a_bus_that_cannot_be_opened_is_a_typed_error() -> None:
    with pytest.raises(SourceFailed):
        SocketCanSource(options=SocketCanOptions(channel="can-that-is-not-there"))
    with pytest.raises(InvalidConfig, match="no-such-interface"):
        SocketCanSource(options=SocketCanOptions(interface="no-such-interface"))


def test_without_python_can_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "can", None)
    with pytest.raises(MissingExtra, match=r"tidelog\[can\]"):
        SocketCanSource()


def test_importing_the_sources_does_not_import_python_can() -> None:
    script = "import sys, tidelog.edge.sources.source; sys.exit('can' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_bus_options_are_checked() -> None:
    with pytest.raises(InvalidConfig) as caught:
        SocketCanOptions(channel="", queue_frames_max=0)
    assert len(caught.value.problems) == 2


def test_every_source_reads_the_same_way(tmp_path: Path, listener: Listener) -> None:
    path = write(tmp_path, "lpj", frames_at(0))
    sources: list[FrameSource] = [VoyageSource(seed=1, now_us=NOW_US), ReplaySource([path]), listener.source]
    for source in sources:
        frames = source.read(NOW_US + SECOND_US)
        frames.check()
        assert frames.times_us.dtype == np.int64
        source.close()
        source.close()
