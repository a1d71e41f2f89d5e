"""Several buses as one source: merged by time, and one that breaks does not silence the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tidelog.blocks.columns import FrameColumns
from tidelog.edge.sources.source import BUS_RETRY_US, FrameSource, MergedSource
from tidelog.errors import InvalidConfig, SourceFailed

START_US = 1_700_000_000_000_000
Rows = list[tuple[int, int, bytes]]


class Bus:
    """A source that gives what the test put into it, and breaks when told to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: Rows = []
        self.broken = False
        self.ended = False
        self.closed = 0

    def read(self, now_us: int) -> FrameColumns:
        if self.broken:
            raise SourceFailed(source=self.name, reason="the cable is out")
        given, self.rows = self.rows, []
        return FrameColumns.from_rows(given)

    def wake_at_us(self) -> int | None:
        return None

    def close(self) -> None:
        self.closed += 1


class Buses:
    def __init__(self, *names: str) -> None:
        self.opened: list[Bus] = []
        self.absent: set[str] = set()
        self.lines: list[str] = []
        self.source = MergedSource({name: self._opener(name) for name in names}, log=self.lines.append)

    def _opener(self, name: str) -> Callable[[], FrameSource]:
        def open_bus() -> Bus:
            if name in self.absent:
                raise SourceFailed(source=name, reason="no such device")
            self.opened.append(Bus(name))
            return self.opened[-1]

        return open_bus

    def bus(self, name: str) -> Bus:
        return next(bus for bus in reversed(self.opened) if bus.name == name)

    def read(self, now_us: int) -> Rows:
        return list(self.source.read(now_us).rows())


def frame(time_us: int, number: int) -> tuple[int, int, bytes]:
    return START_US + time_us, 0x09F8_0200 + number, bytes([number])


def test_frames_of_two_buses_come_out_by_time_and_each_bus_keeps_its_order() -> None:
    buses = Buses("can0", "can1")
    assert buses.read(START_US) == []
    # can1's clock goes back once: its frames must not change places for that.
    buses.bus("can0").rows = [frame(1, 1), frame(5, 2), frame(9, 3)]
    buses.bus("can1").rows = [frame(4, 4), frame(2, 5), frame(8, 6)]
    assert [payload[0] for _, _, payload in buses.read(START_US)] == [1, 4, 5, 2, 6, 3]
    assert buses.read(START_US) == []


def test_a_bus_that_breaks_is_opened_again_after_a_pause_while_the_other_goes_on() -> None:
    buses = Buses("can0", "can1")
    buses.read(START_US)
    broken = buses.bus("can0")
    broken.broken = True
    buses.bus("can1").rows = [frame(1, 1)]
    assert buses.read(START_US) == [frame(1, 1)]
    assert broken.closed == 1
    assert len(buses.lines) == 1
    assert "the cable is out" in buses.lines[0]
    assert buses.source.wake_at_us() == START_US + BUS_RETRY_US
    buses.bus("can1").rows = [frame(2, 2)]
    assert buses.read(START_US + BUS_RETRY_US - 1) == [frame(2, 2)]
    assert buses.bus("can0") is broken
    buses.read(START_US + BUS_RETRY_US)
    assert buses.bus("can0") is not broken


def test_a_bus_that_is_absent_at_the_start_joins_later() -> None:
    buses = Buses("can0", "can1")
    buses.absent = {"can1"}
    buses.read(START_US)
    assert [bus.name for bus in buses.opened] == ["can0"]
    assert not buses.source.ended
    buses.absent = set()
    buses.read(START_US + BUS_RETRY_US)
    assert [bus.name for bus in buses.opened] == ["can0", "can1"]


def test_a_clock_that_is_set_back_does_not_keep_a_bus_closed() -> None:
    buses = Buses("can0")
    buses.absent = {"can0"}
    buses.read(START_US)
    buses.absent = set()
    buses.read(START_US - 3600 * 1_000_000)
    assert len(buses.opened) == 1


def test_it_ends_when_all_have_ended_and_closes_all() -> None:
    buses = Buses("can0", "can1")
    buses.read(START_US)
    ended = []
    for name in ("can0", "can1"):
        ended.append(buses.source.ended)
        buses.bus(name).ended = True
    assert [*ended, buses.source.ended] == [False, False, True]
    buses.source.close()
    assert [bus.closed for bus in buses.opened] == [1, 1]


def test_no_bus_at_all_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="name at least one"):
        MergedSource({})
