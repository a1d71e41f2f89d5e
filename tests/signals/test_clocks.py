"""Wrong clocks are placed by seq and never poison a day."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.signals.frames_kit import frames_batch
from tidelog.signals.clocks import Clock, GpsTimes, gps_times, place_times

SECOND = 1_000_000
NOW = 1_790_000_000 * SECOND
YEAR_2038 = 2_147_483_000 * SECOND


def run(start_us: int, count: int) -> list[int]:
    """Frames a second apart."""
    return [start_us + SECOND * place for place in range(count)]


def array(numbers: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


def appended(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.full(count, NOW + 3_600 * SECOND, dtype=np.int64)


def test_a_clock_that_can_be_right_is_left_alone() -> None:
    times = run(NOW, 5) + run(NOW + 7_200 * SECOND - 10**7, 3)  # a pause of two hours, both sides plausible
    placed = place_times(array(times), array([NOW + 9_000 * SECOND] * 8))
    assert placed.times_us.tolist() == times
    assert set(placed.clocks.tolist()) == {Clock.OK}


def test_a_run_in_1970_ends_where_the_next_good_one_starts() -> None:
    placed = place_times(array(run(0, 4) + run(NOW, 3)), appended(7))
    assert placed.times_us.tolist() == run(NOW - 3 * SECOND, 4) + run(NOW, 3)
    assert placed.clocks.tolist() == [Clock.PLACED] * 4 + [Clock.OK] * 3
    assert placed.clock_column().to_pylist() == ["placed"] * 4 + ["ok"] * 3


def test_two_runs_in_1970_are_placed_one_behind_the_other() -> None:
    placed = place_times(array(run(0, 4) + run(0, 3) + run(NOW, 1)), appended(8))
    assert placed.times_us.tolist() == [*run(NOW - 5 * SECOND, 4), *run(NOW - 2 * SECOND, 3), NOW]


def test_the_gps_moves_a_wrong_run() -> None:
    times = run(100 * SECOND, 6) + run(NOW + 600 * SECOND, 2)
    gps = GpsTimes(array([1, 2, 4]), array([NOW + SECOND, NOW + 2 * SECOND, NOW + 4 * SECOND]))
    placed = place_times(array(times), appended(8), gps)
    assert placed.times_us.tolist() == run(NOW, 6) + times[6:]
    assert placed.clocks.tolist() == [Clock.GPS] * 6 + [Clock.OK] * 2


def test_a_plausible_clock_that_is_off_the_gps_is_moved_and_a_near_one_is_not() -> None:
    times = array(run(NOW, 4))
    far = place_times(times, appended(4), GpsTimes(array([0]), array([NOW + 61 * SECOND])))
    near = place_times(times, appended(4), GpsTimes(array([0]), array([NOW + 60 * SECOND])))
    assert far.times_us.tolist() == run(NOW + 61 * SECOND, 4)
    assert near.times_us.tolist() == times.tolist()


def test_a_gps_that_cannot_be_right_is_not_believed() -> None:
    gps = GpsTimes(array([0, 1]), array([0, YEAR_2038]))
    placed = place_times(array(run(NOW, 4)), appended(4), gps)
    assert set(placed.clocks.tolist()) == {Clock.OK}


def test_a_run_in_2038_starts_where_the_good_one_before_it_ended() -> None:
    placed = place_times(array(run(NOW, 3) + run(YEAR_2038, 2)), appended(5))
    assert placed.times_us.tolist() == [*run(NOW, 3), *run(NOW + 2 * SECOND, 2)]
    assert placed.clocks.tolist() == [Clock.OK] * 3 + [Clock.PLACED] * 2


def test_a_wrong_run_without_neighbours_ends_when_it_was_appended() -> None:
    placed = place_times(array(run(0, 3)), array([NOW, NOW + SECOND, NOW + 5 * SECOND]))
    assert placed.times_us.tolist() == run(NOW + 3 * SECOND, 3)


def test_neighbours_outside_of_the_stretch_count() -> None:
    after = place_times(array(run(0, 3)), appended(3), next_start_us=NOW)
    assert after.times_us.tolist() == run(NOW - 2 * SECOND, 3)
    before = place_times(array(run(0, 3)), appended(3), previous_end_us=NOW)
    assert before.times_us.tolist() == run(NOW, 3)


def test_no_frames_are_no_problem() -> None:
    assert len(place_times(array([]), array([])).times_us) == 0


@settings(max_examples=200, deadline=None)
@given(
    runs=st.lists(
        st.tuples(st.sampled_from(["good", "1970", "2038", "jump"]), st.integers(1, 5)), min_size=1, max_size=8
    ),
    seed=st.integers(0, 2**16),
)
def test_no_placed_time_lies_outside_of_what_can_be(runs: list[tuple[str, int]], seed: int) -> None:
    times: list[int] = []
    clock = NOW
    for kind, count in runs:
        begin = {"good": clock, "1970": seed * SECOND, "2038": YEAR_2038, "jump": clock + 4_000 * SECOND}[kind]
        times += run(begin, count)
        clock = times[-1] + SECOND if kind in ("good", "jump") else clock
    append_us = np.full(len(times), clock + SECOND, dtype=np.int64)
    placed = place_times(array(times), append_us)
    good = (array(times) > NOW - 1) & (array(times) <= append_us)
    assert (placed.times_us[good] == array(times)[good]).all(), seed
    assert (placed.clocks[good] == Clock.OK).all(), seed
    assert (placed.clocks[~good] == Clock.PLACED).all(), seed
    assert (placed.times_us > NOW - 3_600 * SECOND).all(), seed
    assert (placed.times_us <= append_us + 300 * SECOND).all(), seed
    again = place_times(array(times), append_us)
    assert (again.times_us == placed.times_us).all()


def test_receivers_tell_the_time_in_three_messages() -> None:
    days, ticks = (20_000).to_bytes(2, "little"), (36_000_000 * 10).to_bytes(4, "little")
    frames = [
        (126992, 1, b"\0\xf0" + days + ticks),
        (126992, 1, b"\0\xf5" + days + ticks),  # its own crystal
        (129033, 1, days + ticks + b"\xff\x7f"),
        (129033, 1, b"\xff\xff\xff\xff\xff\xff\xff\x7f"),
        (129029, 1, b"\0" + days + ticks + bytes(24) + b"\x10" + bytes(11)),
        (129029, 1, b"\0" + days + ticks + bytes(24) + b"\x00" + bytes(11)),  # no fix
        (129029, 1, b"\0"),
    ]
    found = gps_times(frames_batch(frames))
    assert found.frames.tolist() == [0, 2, 4]
    assert set(found.times_us.tolist()) == {20_000 * 86_400 * SECOND + 36_000 * SECOND}


def test_messages_that_are_not_there_or_too_short_say_nothing() -> None:
    assert len(gps_times(frames_batch([(129_033, 1, b"\x01\x02")])).frames) == 0
    assert len(gps_times(frames_batch([(127_250, 1, bytes(8))])).frames) == 0
    assert len(gps_times(frames_batch([])).frames) == 0
