"""How fast blocks become durable: one log, a store, and a store of many channels.

The floor writes the same bytes to a fresh file with bare system calls, one sync a block. The peer is
RedEX (`net-mesh`): append_batch and sync(), the only pair of its calls after which data is durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from typing import Any

from benchmarks.kits.measure import Case, Results, Rounds, alternate, largest_spread, speed_against, timed
from benchmarks.kits.traffic import bus_frames
from tidelog.blocks.block import MadeBlock
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.messages import encode_values
from tidelog.errors import InvalidConfig
from tidelog.storage.log.log import Log
from tidelog.storage.log.recovery import open_log
from tidelog.storage.log.writer import Append, Committer, LogWriter, wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.parts import StoreOptions
from tidelog.storage.store.recovery import open_store
from tidelog.storage.store.store import Store
from tidelog.units import GIB, MIB

FRAMES_OF_256_KIB = 13_107
"""8-byte frames whose plain body has exactly 256 KiB."""

GROUP_RECORDS = 64
RECORD_BYTES = 64
_WAIT_S = 60.0
_NEVER_MS = 10**9


def large_block() -> MadeBlock:
    """A block with a body of 256 KiB."""
    made = encode_frames(bus_frames(FRAMES_OF_256_KIB))
    assert len(made.body) == 256 * 1024
    return made


def measure_appends(folder: str, *, blocks: int, rounds: int) -> Results:
    """256 KiB blocks through a log and through a store, against the floor.

    All sides stay open from round to round, each on a file of its own that was made for this run. A
    round is only a few blocks long: disks have moods that last for seconds, and all must share them.
    """
    made = large_block()
    with ExitStack() as stack:
        append_bare = stack.enter_context(_bare_file(os.path.join(folder, "floor"), made))
        waiting = stack.enter_context(_log_writer(os.path.join(folder, "waiting")))
        pipelined = stack.enter_context(_log_writer(os.path.join(folder, "pipelined")))
        commit = stack.enter_context(_store_channel(os.path.join(folder, "store"), made))
        cases = {
            "floor": _repeated(append_bare, blocks),
            "writer": _repeated(lambda: waiting.append_wait(made), blocks),
            "pipelined": lambda: timed(lambda: _append_pipelined(pipelined, made, blocks)),
            "store": _repeated(commit, blocks),
        }
        measured = alternate(cases, rounds=rounds)
    floor, writer, store = (measured[name] for name in ("floor", "writer", "store"))
    total_mb = blocks * len(made.body) / 1e6
    return {
        "append_vs_floor": speed_against(writer, floor),
        "append_pipelined_vs_floor": speed_against(measured["pipelined"], floor),
        "store_append_vs_floor": speed_against(store, floor),
        "append_mb_per_s": round(total_mb / writer.median, 1),
        "floor_mb_per_s": round(total_mb / floor.median, 1),
        "append_spread": largest_spread(floor, writer, store),
    }


def _repeated(step: Callable[[], object], times: int) -> Case:
    def steps() -> None:
        for _ in range(times):
            step()

    return lambda: timed(steps)


@contextmanager
def _bare_file(path: str, made: MadeBlock) -> Iterator[Callable[[], None]]:
    data = made.stamp(base_offset=0, channel_id=0, leader_epoch=1, append_time_us=0, durable_end=0, path=0).tobytes()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)

    def append() -> None:
        os.write(descriptor, data)
        os.fdatasync(descriptor)

    try:
        yield append
    finally:
        os.close(descriptor)


@contextmanager
def _log_writer(path: str) -> Iterator[LogWriter]:
    writer = LogWriter(open_log(OsDisk(path), "log", now_us=wall_clock_us()))
    try:
        yield writer
    finally:
        writer.close()


@contextmanager
def _store_channel(path: str, made: MadeBlock) -> Iterator[Callable[[], object]]:
    store = open_store(OsDisk(path), now_us=wall_clock_us())
    log = store.create_channel("bench", now_us=wall_clock_us())
    committer = Committer(store)
    try:
        yield lambda: committer.commit(Append(log, made, epoch=1))
    finally:
        committer.close()


def _append_pipelined(writer: LogWriter, made: MadeBlock, blocks: int) -> None:
    """All blocks of a round in flight, as a producer does that need not wait for one ack before the next block."""
    for future in [writer.append(made) for _ in range(blocks)]:
        future.result(_WAIT_S)


# --- small records -------------------------------------------------------------------------------


def measure_group_commit(folder: str, *, commits: int, rounds: int) -> Results:
    """64 records of 64 bytes a commit, from the caller's bytes to durable, against RedEX."""
    payloads = [os.urandom(RECORD_BYTES) for _ in range(GROUP_RECORDS)]
    file = _open_redex(os.path.join(folder, "redex"))
    with _log_writer(os.path.join(folder, "tidelog")) as writer, closing(file):

        def ours() -> None:
            now_us = wall_clock_us()
            writer.append_wait(encode_values(payloads, time_us=now_us))

        def theirs() -> None:
            file.append_batch(payloads)
            file.sync()

        cases = {"ours": _repeated(ours, commits), "theirs": _repeated(theirs, commits)}
        measured = alternate(cases, rounds=rounds)
    return {
        "group_commit_vs_redex": speed_against(measured["ours"], measured["theirs"]),
        "group_commits_per_s": round(commits / measured["ours"].median, 1),
        "redex_commits_per_s": round(commits / measured["theirs"].median, 1),
        "group_commit_spread": largest_spread(*measured.values()),
    }


def _open_redex(folder: str) -> Any:
    try:
        from net import Redex
    except ImportError as error:
        problem = "net-mesh, which this compares with, is not installed; run `make setup`, or pip install tidelog[dev]"
        raise InvalidConfig(section="bench", problems=[problem]) from error
    os.mkdir(folder)
    return Redex(persistent_dir=folder).open_file("bench/group_commit", persistent=True)


# --- many channels -------------------------------------------------------------------------------


def measure_channels(folder: str, *, channels: int, in_flight: int, appends: int, rounds: int) -> Results:
    """Small durable appends spread over many channels, against one channel. A checkpoint is part of each.

    A store checkpoints when its write-ahead file has grown to a limit: so many appends, wherever they
    went. Each round is such a cycle, with the checkpoint called at its end instead of by the timer,
    so that every round has exactly one.
    """
    many = _Channels(os.path.join(folder, "many"), channels)
    one = _Channels(os.path.join(folder, "one"), 1)
    try:
        cases = {
            "one": lambda: one.cycle(appends, in_flight),
            "many": lambda: many.cycle(appends, in_flight),
        }
        measured = alternate(cases, rounds=rounds, warm_up=False)
        wal_bytes = many.wal_bytes
    finally:
        many.close()
        one.close()
    return {
        "many_channels_vs_one": speed_against(measured["many"], measured["one"]),
        "many_channels_appends_per_s": round(appends / measured["many"].median),
        "one_channel_appends_per_s": round(appends / measured["one"].median),
        "many_channels_commits_vs_one": speed_against(Rounds(tuple(many.commit_s)), Rounds(tuple(one.commit_s))),
        "many_channels_checkpoint_s": round(Rounds(tuple(many.checkpoint_s)).median, 3),
        "one_channel_checkpoint_s": round(Rounds(tuple(one.checkpoint_s)).median, 3),
        "channels": channels,
        "channel_cycle_wal_mib": round(wal_bytes / MIB, 1),
        "many_channels_spread": largest_spread(*measured.values()),
    }


class _Channels:
    """A store with some channels and a committer."""

    def __init__(self, path: str, channels: int) -> None:
        options = StoreOptions(wal_bytes_max=GIB, checkpoint_interval_ms=_NEVER_MS)
        self._store: Store = open_store(OsDisk(path), now_us=wall_clock_us(), options=options)
        self._logs: list[Log] = [
            self._store.create_channel(f"channel-{number}", now_us=wall_clock_us()) for number in range(channels)
        ]
        self._store.checkpoint(wall_clock_us())
        self._committer = Committer(self._store)
        self._made = encode_values([bytes(RECORD_BYTES)], time_us=wall_clock_us())
        self.wal_bytes = 0
        self.commit_s: list[float] = []
        self.checkpoint_s: list[float] = []

    def cycle(self, appends: int, in_flight: int) -> float:
        commit_s = timed(lambda: self._append(appends, in_flight))
        self.wal_bytes = self._store.statistics().wal_bytes
        checkpoint_s = timed(lambda: self._committer.run_exclusive(self._store.checkpoint))
        self.commit_s.append(commit_s)
        self.checkpoint_s.append(checkpoint_s)
        return commit_s + checkpoint_s

    def _append(self, appends: int, in_flight: int) -> None:
        """Two waves fly at a time, so that one gathers while the other is on its way to the disk."""
        requests = (Append(self._logs[number % len(self._logs)], self._made, epoch=1) for number in range(appends))
        previous: Sequence[Append] = ()
        while wave := list(islice(requests, max(1, in_flight // 2))):
            self._committer.submit_many(wave)
            _wait(previous)
            previous = wave
        _wait(previous)

    def close(self) -> None:
        self._committer.close()


def _wait(appends: Sequence[Append]) -> None:
    for append in appends:
        append.future.result(_WAIT_S)
