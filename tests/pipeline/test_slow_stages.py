"""Stages that take their time: nobody waits for them, their failures are the pipeline's, and they end when told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.patience import block_until, patient
from tidelog.errors import ChannelRecreated, StageFailed, StageRefused
from tidelog.pipeline.jobs.slow_stages import SlowStage, SlowStages, now_ms
from tidelog.pipeline.jobs.supervisor import Supervisor

DEADLINE_S = 60.0


def stage(work: Callable[[], object], *, every_ms: int = 1, restarts_max: int = 10) -> SlowStage:
    supervisor = Supervisor(stage="gold", restarts_max=restarts_max, wait_max_ms=1)
    return SlowStage(work=work, every_ms=every_ms, supervisor=supervisor, due_ms=now_ms())


def test_work_is_done_again_and_again_until_it_is_stopped() -> None:
    done: list[int] = []
    slow = SlowStages([stage(lambda: done.append(1))])
    slow.start()
    block_until(lambda: len(done) >= 3)
    assert slow.stop()
    count = len(done)
    slow.raise_failure()
    assert len(done) == count


def test_what_is_not_due_is_not_done() -> None:
    done: list[int] = []
    later = stage(lambda: done.append(2), every_ms=1)
    later.due_ms = now_ms() + 3_600_000
    slow = SlowStages([stage(lambda: done.append(1)), later])
    slow.start()
    block_until(lambda: len(done) >= 2)
    assert slow.stop()
    assert set(done) == {1}


def test_a_stage_rests_longer_than_it_took() -> None:
    """SL3"""
    moments: list[float] = []

    def work() -> None:
        moments.append(time.monotonic())
        time.sleep(0.05)
        moments.append(time.monotonic())

    slow = SlowStages([stage(work)])
    slow.start()
    block_until(lambda: len(moments) >= 4)
    assert slow.stop()
    first_start, first_end, second_start, *_ = moments
    assert second_start - first_end > 3.9 * (first_end - first_start)
    assert slow.runs("gold") >= 1


def test_a_stage_that_breathes_waits_as_long_as_its_step_took() -> None:
    """SL4"""
    moments: list[float] = []
    held: list[SlowStages] = []

    def work() -> None:
        moments.append(time.monotonic())
        time.sleep(0.05)
        moments.append(time.monotonic())
        held[0].breathe()
        moments.append(time.monotonic())

    slow = SlowStages([stage(work)])
    held.append(slow)
    slow.start()
    block_until(lambda: len(moments) >= 4)
    assert slow.stop()
    began, worked, breathed, again, *_ = moments
    assert breathed - worked >= 0.9 * (worked - began)
    assert again - breathed > 3.9 * (worked - began), "SL3"


def test_who_is_stopped_breathes_no_more() -> None:
    slow = SlowStages([stage(lambda: None)])
    slow.start()
    assert slow.stop()
    slow._step_began_ms = now_ms() - 3_600_000  # a step of an hour
    slow.breathe()


def test_a_passing_failure_is_tried_again_and_forgotten() -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise OSError("not now")

    one = stage(work)
    slow = SlowStages([one])
    slow.start()
    block_until(lambda: len(calls) >= 4)
    assert slow.stop()
    slow.raise_failure()
    assert one.supervisor.failures == 0


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (ChannelRecreated(channel="boat-1", expected_id=1, found_id=2), StageRefused),
        (OSError("never"), StageFailed),
    ],
)
def test_what_ends_a_stage_for_good_is_raised_where_the_pipeline_runs(
    error: Exception, ending: type[Exception]
) -> None:
    def work() -> None:
        raise error

    slow = SlowStages([stage(work, restarts_max=0)])
    slow.start()

    def looked() -> bool:
        slow.raise_failure()
        return False

    with pytest.raises(ending):
        block_until(looked)
    assert slow.stop()


def test_work_that_blocks_is_given_up_after_a_while_and_is_no_failure() -> None:
    entered, given_up = threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        assert given_up.wait(patient(DEADLINE_S))
        raise OSError("the job was cancelled")

    slow = SlowStages([stage(work, restarts_max=0)], give_up=given_up.set)
    slow.start()
    assert entered.wait(patient(DEADLINE_S))
    assert slow.stop(wait_s=0.01, give_up_wait_s=patient(DEADLINE_S))
    assert given_up.is_set()
    slow.raise_failure()


def test_work_that_never_ends_is_left_behind() -> None:
    entered, release = threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        release.wait(patient(DEADLINE_S))

    slow = SlowStages([stage(work)])
    slow.start()
    assert entered.wait(patient(DEADLINE_S))
    assert not slow.stop(wait_s=0.01, give_up_wait_s=0.01)
    release.set()
    assert slow.stop()


def test_without_stages_there_is_no_thread() -> None:
    slow = SlowStages([])
    slow.start()
    slow.raise_failure()
    assert slow.stop()
