"""Group commit with real threads on real files. Nothing here sleeps: gates and events decide what happens when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.patience import patient
from tidelog.blocks.block import MadeBlock, make_block
from tidelog.blocks.header import BlockKind
from tidelog.errors import (
    DiskFull,
    LogClosed,
    LogError,
    LogPoisoned,
    QueueFull,
    StaleEpoch,
    SyncFailed,
    WaitTimedOut,
)
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import Fsync, LogOptions, Retention
from tidelog.storage.log.recovery import open_log
from tidelog.storage.log.writer import Append, Committer, LogTarget, LogWriter
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.parts import StoreOptions
from tidelog.storage.store.recovery import open_store
from tidelog.units import KIB, US_PER_S

LONG_S = patient(30.0)
"""Longer than any wait of a test that passes."""


class GatedDisk(OsDisk):
    """Syncs of segments and write-ahead files wait until they are let through."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        self.syncs = 0
        self.sync_error: SyncFailed | None = None

    def open(self, path: str, **options: Any) -> Any:
        return GatedFile(super().open(path, **options), self)

    def hold(self) -> None:
        self.waiting.clear()
        self.gate.clear()


class GatedFile:
    def __init__(self, file: Any, disk: GatedDisk) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        disk = self._disk
        if self._file.path.endswith((".seg", ".wal")):
            disk.waiting.set()
            assert disk.gate.wait(LONG_S)
            disk.syncs += 1
            if disk.sync_error is not None:
                raise disk.sync_error
        self._file.sync()


class FakeClock:
    def __init__(self) -> None:
        self.now_us = 1_000_000

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[GatedDisk]:
    gated = GatedDisk(tmp_path)
    yield gated
    gated.gate.set()


def new_log(disk: OsDisk, **options: Any) -> Log:
    return open_log(disk, "log", now_us=1, options=LogOptions(reserve_bytes=0, **options))


def made(body: bytes | int = 100) -> MadeBlock:
    raw = bytes(body) if isinstance(body, int) else body
    return make_block(raw, kind=BlockKind.FRAMES, form=1, record_count=1)


def bodies(log: Log) -> list[bytes]:
    return [bytes(block.raw_body()) for block in log.blocks()]


def test_eight_threads_append_and_every_ack_is_on_disk(disk: GatedDisk) -> None:
    writer = LogWriter(new_log(disk))

    def append_many(thread: int) -> list[tuple[range, bytes]]:
        acked = []
        for number in range(100):
            body = f"{thread}:{number}".encode()
            acked.append((writer.append_wait(made(body)), body))
        return acked

    with ThreadPoolExecutor(8) as pool:
        acked = [pair for pairs in pool.map(append_many, range(8)) for pair in pairs]
    writer.log.poison("a killed process closes nothing")
    writer.close()
    log = new_log(disk)
    found = bodies(log)
    assert len(found) == 800
    assert all(found[offsets.start] == body for offsets, body in acked)


def test_what_gathers_during_a_sync_shares_the_next_one(disk: GatedDisk) -> None:
    writer = LogWriter(new_log(disk))
    disk.hold()
    first = writer.append(made())
    assert disk.waiting.wait(LONG_S)
    rest = [writer.append(made()) for _ in range(50)]
    syncs = disk.syncs
    disk.gate.set()
    assert [future.result(LONG_S).start for future in (first, *rest)] == list(range(51))
    assert disk.syncs - syncs == 2
    writer.close()


@pytest.mark.parametrize("through", ["submit", "wait"])
def test_ack_waits_for_sync(disk: GatedDisk, through: str) -> None:
    writer = LogWriter(new_log(disk))
    disk.hold()
    with ThreadPoolExecutor(1) as pool:
        if through == "submit":
            future = writer.append(made())
        else:
            future = pool.submit(writer.append_wait, made())
        assert disk.waiting.wait(LONG_S)
        assert not future.done()
        assert writer.log.durable_end == 0
        with pytest.raises(WaitTimedOut):
            writer.wait_beyond(0, timeout_s=0)
        disk.gate.set()
        assert future.result(LONG_S) == range(1)
        assert writer.log.durable_end == 1
    writer.close()


def test_a_full_queue_says_so_and_takes_more_after_acks(disk: GatedDisk) -> None:
    writer = LogWriter(new_log(disk), queue_bytes_max=10_000)
    disk.hold()
    first = writer.append(made(20_000))  # one block is always taken, however large
    assert disk.waiting.wait(LONG_S)
    taken: list[Future[range]] = []
    with pytest.raises(QueueFull) as caught:
        fill_queue(writer, taken)
    assert caught.value.retriable
    assert 5 <= len(taken) <= 10
    disk.gate.set()
    assert [future.result(LONG_S).start for future in (first, *taken)] == list(range(1 + len(taken)))
    assert writer.append_wait(made()).start == 1 + len(taken)
    writer.close()


def fill_queue(writer: LogWriter, taken: list[Future[range]]) -> None:
    for _ in range(100):
        taken.append(writer.append(made(1_000)))


def test_a_wait_that_times_out_before_its_turn_had_no_effect(disk: GatedDisk) -> None:
    writer = LogWriter(new_log(disk))
    disk.hold()
    first = writer.append(made(b"first"))
    assert disk.waiting.wait(LONG_S)
    with pytest.raises(WaitTimedOut):
        writer.append_wait(made(b"given up"), timeout_s=0)
    last = writer.append(made(b"last"))
    disk.gate.set()
    assert first.result(LONG_S) == range(1)
    assert last.result(LONG_S) == range(1, 2)
    assert bodies(writer.log) == [b"first", b"last"]
    writer.close()


def test_a_cancelled_append_does_not_stop_the_writer(disk: GatedDisk) -> None:
    writer = LogWriter(new_log(disk))
    disk.hold()
    first = writer.append(made(b"first"))
    assert disk.waiting.wait(LONG_S)
    cancelled, last = writer.append(made(b"cancelled")), writer.append(made(b"last"))
    assert cancelled.cancel()
    assert not first.cancel(), "its turn has come"
    disk.gate.set()
    assert last.result(LONG_S) == range(1, 2)
    assert bodies(writer.log) == [b"first", b"last"]
    writer.close()


def test_followers_wake_when_records_are_durable(disk: GatedDisk) -> None:
    writer = LogWriter(new_log(disk))
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(writer.wait_beyond, offset, timeout_s=LONG_S) for offset in range(3)]
        for _ in range(3):
            writer.append_wait(made())
        assert [future.result(LONG_S) > offset for offset, future in enumerate(waiting)] == [True] * 3
        assert writer.wait_beyond(1, timeout_s=0) == 3
        with pytest.raises(WaitTimedOut):
            writer.wait_beyond(3, timeout_s=0)
        forever = pool.submit(writer.wait_beyond, 3, timeout_s=LONG_S)
        writer.close()
        with pytest.raises(LogClosed):
            forever.result(LONG_S)


def test_closing_commits_what_is_queued(disk: GatedDisk) -> None:
    writer = LogWriter(new_log(disk))
    disk.hold()
    futures = [writer.append(made()) for _ in range(20)]
    assert disk.waiting.wait(LONG_S)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(writer.close)
        disk.gate.set()
        closing.result(LONG_S)
    assert [future.result(0).start for future in futures] == list(range(20))
    with pytest.raises(LogClosed):
        writer.append(made())
    writer.close()
    log = new_log(disk)
    assert log.recovery is not None
    assert log.recovery.clean
    assert log.log_end == 20


@pytest.mark.parametrize("fsync", [Fsync.INTERVAL, Fsync.NEVER])
def test_weaker_policies_ack_before_the_sync(disk: GatedDisk, fsync: Fsync) -> None:
    clock = FakeClock()
    writer = LogWriter(new_log(disk, fsync=fsync, fsync_interval_ms=1_000), clock_us=clock)
    writer.append(made()).result(LONG_S)
    disk.hold()
    assert writer.append(made()).result(LONG_S) == range(1, 2)
    assert not disk.waiting.is_set()
    assert writer.log.durable_end == 0
    clock.now_us += 2 * US_PER_S
    writer.append(made()).result(LONG_S)
    if fsync is Fsync.INTERVAL:
        assert disk.waiting.wait(LONG_S), "the interval has passed"
        disk.gate.set()
        assert writer.wait_beyond(2, timeout_s=LONG_S) == 3
    disk.gate.set()
    writer.close()
    assert new_log(disk).log_end == 3


def test_a_sync_error_stops_acks_for_good(disk: GatedDisk) -> None:
    writer = LogWriter(new_log(disk))
    writer.append_wait(made(b"kept"))
    disk.sync_error = SyncFailed(operation="sync", path="log", reason="injected")
    refused = writer.append(made())
    with pytest.raises(SyncFailed):
        refused.result(LONG_S)
    disk.sync_error = None
    for _ in range(3):
        with pytest.raises(LogPoisoned):
            writer.append(made()).result(LONG_S)
        with pytest.raises(LogPoisoned):
            writer.append_wait(made())
    assert writer.log.durable_end == 1
    writer.close()
    log = new_log(disk)
    assert bodies(log)[0] == b"kept"


def test_a_refused_append_leaves_its_neighbours_alone(disk: GatedDisk) -> None:
    writer = LogWriter(new_log(disk))
    writer.append_wait(made(), epoch=5)
    disk.hold()
    first = writer.append(made(), epoch=5)
    assert disk.waiting.wait(LONG_S)
    stale, good = writer.append(made(), epoch=4), writer.append(made(), epoch=6)
    disk.gate.set()
    assert first.result(LONG_S) == range(1, 2)
    with pytest.raises(StaleEpoch):
        stale.result(LONG_S)
    assert good.result(LONG_S) == range(2, 3)
    writer.close()


def test_a_full_disk_refuses_loses_nothing_and_goes_on_when_space_returns(tiny_disk: OsDisk) -> None:
    ballast = tiny_disk.open("ballast", create=True)
    ballast.write_at(0, [bytes(400 * KIB)])
    writer = LogWriter(new_log(tiny_disk))
    acked: dict[int, bytes] = {}
    refused = 0
    for number in range(60):
        body = number.to_bytes(2, "big") * (8 * KIB)
        future = writer.append(made(body))
        error = future.exception(LONG_S)
        if error is None:
            acked[future.result().start] = body
        else:
            assert isinstance(error, DiskFull)
            assert error.retriable
            refused += 1
    assert refused > 10
    assert list(acked) == list(range(len(acked))), "refused appends leave no hole"
    ballast.truncate(0)
    ballast.close()
    assert writer.append_wait(made(b"space again")).start == len(acked)
    writer.log.poison("a killed process closes nothing")
    writer.close()
    log = new_log(tiny_disk)
    assert bodies(log) == [*acked.values(), b"space again"]
    assert log.damaged() == []


def test_retention_and_roll_by_age_run_by_themselves(disk: GatedDisk) -> None:
    clock = FakeClock()
    options = {"segment_age_max_ms": 5_000, "retention": Retention(max_age_ms=20_000), "retention_interval_ms": 1_000}
    writer = LogWriter(new_log(disk, **options), clock_us=clock)
    log = writer.log
    for _ in range(30):
        writer.append(made()).result(LONG_S)
        clock.now_us += 2 * US_PER_S
    writer.append(made()).result(LONG_S)
    writer.run_exclusive(lambda _: None)  # maintenance follows a commit in the same turn of the writer's thread
    assert log.log_start > 0
    assert len(log.segments) > 2
    oldest = log.read(log.log_start)[0].leader.append_time_us
    assert clock.now_us - oldest < 40 * US_PER_S
    assert log.log_end == 31
    writer.close()


class BuggyTarget:
    def commit_appends(self, appends: Any, now_us: int) -> None:
        raise ZeroDivisionError("a bug")

    def maintain(self, now_us: int) -> int:
        return now_us + US_PER_S

    def close(self, now_us: int) -> None:
        return


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_the_target_leaves_nobody_waiting(disk: GatedDisk) -> None:
    log = new_log(disk)
    committer = Committer(BuggyTarget(), clock_us=FakeClock())
    with pytest.raises(ZeroDivisionError):
        committer.commit(Append(log, made()))
    with pytest.raises(LogPoisoned):
        committer.commit(Append(log, made()))
    committer.close()
    log.close()


def test_exclusive_actions_run_between_commits(disk: GatedDisk) -> None:
    writer = LogWriter(new_log(disk))
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(writer.append_wait, made()) for _ in range(200)]
        for _ in range(10):
            writer.run_exclusive(lambda _: writer.log.truncate(0))
        for future in futures:
            assert len(future.result(LONG_S)) == 1
    writer.close()


def test_threads_share_one_store(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    options = StoreOptions(log=LogOptions(reserve_bytes=0), wal_bytes_max=64 * KIB, open_files_max=8)
    store = open_store(disk, now_us=1, options=options)
    names = [f"boat-{number}" for number in range(20)]
    for name in names:
        store.create_channel(name, now_us=1)
    committer = Committer(store)

    def produce(thread: int) -> None:
        for number in range(60):
            name = names[(thread + number) % len(names)]
            body = f"{thread}:{number}".encode() * (2_000 if number % 10 == 0 else 1)
            log = store.log(name, now_us=1)
            offsets = committer.commit(Append(log, made(body), epoch=1), timeout_s=LONG_S)
            assert bytes(log.read(offsets.start)[0].raw_body()) == body

    with ThreadPoolExecutor(8) as pool:
        for result in [pool.submit(produce, thread) for thread in range(8)]:
            result.result(LONG_S)
    store.poison("a killed process closes nothing")
    committer.close()
    store = open_store(disk, now_us=1, options=options)
    assert sum(store.log(name, now_us=1).log_end for name in names) == 480
    assert all(store.log(name, now_us=1).damaged() == [] for name in names)
    store.close(2)


def test_readers_that_open_one_channel_together_get_one_log(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    store = open_store(disk, now_us=1)
    for number in range(50):
        store.create_channel(f"{number}", now_us=1)
    store.close(1)
    store = open_store(disk, now_us=1)
    barrier = threading.Barrier(4)

    def open_all(_: int) -> list[Log]:
        barrier.wait(LONG_S)
        return [store.log(f"{number}", now_us=1) for number in range(50)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(open_all, range(4)))
    assert all(len({id(log) for log in logs}) == 1 for logs in zip(*found, strict=True))
    store.close(1)


def test_a_target_reports_refusals_as_typed_errors(disk: GatedDisk) -> None:
    log = new_log(disk)
    target = LogTarget(log)
    log.poison("a test")
    append = Append(log, made())
    target.commit_appends([append], 1)
    assert isinstance(append.future.exception(timeout=0), LogError)
