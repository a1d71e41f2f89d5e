"""All logs of a node's channels: what an append promises, what a refusal leaves, and what it costs."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.patience import patient
from tests.storage.logs import made, stamped
from tidelog.blocks.block import Block, make_block
from tidelog.blocks.header import BlockKind
from tidelog.errors import (
    BlockCorrupt,
    ChannelExists,
    DiskFull,
    LogClosed,
    LogError,
    LogPoisoned,
    MemoryLogFull,
    OffsetMismatch,
    OffsetOutOfRange,
    SyncFailed,
)
from tidelog.sim.disk import SimDisk
from tidelog.storage.atomic import COPY_SUFFIX
from tidelog.storage.log.memory_log import MemoryLog
from tidelog.storage.log.options import Fsync, LogOptions, Retention
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.channel_logs import AppendOutcome, ChannelLogConfig, ChannelLogs, LogState
from tidelog.storage.store.parts import CHANNELS_FOLDER, TABLE_PATH, WAL_FOLDER, StoreOptions
from tidelog.storage.store.recovery import open_store
from tidelog.units import KIB, MIB, US_PER_MS, US_PER_S

NOW = 1_000_000


def new_disk(seed: int = 1) -> SimDisk:
    return SimDisk(random.Random(seed))


def opened(disk: SimDisk, *, reserve_bytes: int = 0, **options: Any) -> ChannelLogs:
    log = LogOptions(reserve_bytes=reserve_bytes)
    return ChannelLogs(open_store(disk, now_us=NOW, options=StoreOptions(log=log, **options)))


def config(channel_id: int, *, name: str = "", persistent: bool = True, **how: Any) -> ChannelLogConfig:
    extra = {"memory_bytes_max": how.pop("memory_bytes_max")} if "memory_bytes_max" in how else {}
    options = LogOptions(**{"reserve_bytes": 0, **how})
    name = name or f"channel-{channel_id}"
    return ChannelLogConfig(channel_id=channel_id, name=name, persistent=persistent, options=options, **extra)


def block(channel_id: int, offset: int, *, epoch: int = 1, records: int = 2, text: str = "v", size: int = 0) -> Block:
    body = (
        made(records, text=text)
        if not size
        else make_block(bytes(size), kind=BlockKind.FRAMES, form=1, record_count=records)
    )
    return stamped(body, offset, epoch=epoch, channel_id=channel_id)


def append(logs: ChannelLogs, *blocks: Block, now_us: int = NOW) -> list[AppendOutcome]:
    """One commit; the blocks of a channel together."""
    grouped: dict[int, list[Block]] = {}
    for one in blocks:
        grouped.setdefault(one.leader.channel_id, []).append(one)
    return logs.append(list(grouped.items()), now_us)


def take(logs: ChannelLogs, *blocks: Block) -> None:
    for outcome in append(logs, *blocks):
        assert outcome.error is None
        assert outcome.held_end == outcome.log_end


def contents(logs: ChannelLogs, channel_id: int) -> list[bytes]:
    return [one.tobytes() for one in logs.log(channel_id).blocks()]


def restarted(disk: SimDisk, **options: Any) -> ChannelLogs:
    disk.crash()
    return opened(disk, **options)


# --- opening -----------------------------------------------------------------------------------------


def test_opening_a_channel_writes_nothing_and_its_first_append_makes_it() -> None:
    disk = new_disk()
    logs = opened(disk)
    before = disk.statistics()
    state = logs.open(config(7), NOW)
    assert state == LogState(log_start=0, log_end=0, durable_end=0, epochs=(), newest_epoch=0, damaged=(), bytes=0)
    assert disk.statistics() == before
    assert logs.known() == {}
    assert opened(disk.clone(random.Random(2))).known() == {}
    take(logs, block(7, 0))
    assert logs.known() == {7: "channel-7"}
    logs = restarted(disk)
    assert logs.known() == {7: "channel-7"}
    state = logs.open(config(7), NOW)
    assert (state.log_end, state.durable_end, state.epochs, state.newest_epoch) == (2, 2, ((1, 0),), 1)


def test_the_first_appends_of_a_thousand_channels_cost_one_sync() -> None:
    disk = new_disk()
    logs = opened(disk)
    blocks = [block(number, 0) for number in range(1, 1_001)]
    for number in range(1, 1_001):
        logs.open(config(number), NOW)
    take(logs, block(1, 0, epoch=1))  # the write-ahead file itself
    before = disk.statistics()
    take(logs, *blocks[1:])
    after = disk.statistics()
    assert (after.syncs - before.syncs, after.writes - before.writes) == (1, 2), (
        "the entries, and the mark of their end"
    )
    logs = restarted(disk)
    assert len(logs.known()) == 1_000
    for number in (1, 2, 999, 1_000):
        logs.open(config(number), NOW)
        assert contents(logs, number) == [blocks[number - 1].tobytes()]


def test_opening_again_is_the_same_log_with_these_options() -> None:
    logs = opened(new_disk())
    logs.open(config(1), NOW)
    take(logs, block(1, 0))
    log = logs.log(1)
    state = logs.open(config(1, fsync=Fsync.NEVER), NOW)
    assert state.log_end == 2
    assert logs.log(1) is log
    assert log.options.fsync is Fsync.NEVER


def test_a_name_belongs_to_one_id_at_a_time() -> None:
    disk = new_disk()
    logs = opened(disk)
    logs.open(config(1, name="x"), NOW)
    logs.open(config(5, name="m", persistent=False), NOW)
    for other in (config(2, name="x"), config(2, name="m"), config(1, name="y"), config(1, name="x", persistent=False)):
        with pytest.raises(ChannelExists):
            logs.open(other, NOW)
    take(logs, block(1, 0))
    logs = restarted(disk)
    for other in (config(2, name="x"), config(1, name="y"), config(1, name="x", persistent=False)):
        with pytest.raises(ChannelExists):
            logs.open(other, NOW)
    logs.delete(1, NOW)
    assert logs.open(config(2, name="x"), NOW).log_end == 0
    take(logs, block(2, 0, text="two"))
    logs = restarted(disk)
    assert logs.known() == {2: "x"}


@pytest.mark.parametrize("synced", [False, True])
def test_an_id_that_comes_back_has_nothing_of_its_earlier_life(synced: bool) -> None:
    disk = new_disk()
    logs = opened(disk)
    for life in range(4):
        assert logs.open(config(3), NOW).log_end == 0
        take(logs, block(3, 0, text=f"life {life}"))
        if synced:
            logs._store.checkpoint(NOW)
        assert contents(logs, 3) == [block(3, 0, text=f"life {life}").tobytes()]
        if life == 2:
            logs = restarted(disk)
        logs.delete(3, NOW)
        logs.delete(3, NOW)
        logs.delete(99, NOW)
        assert logs.known() == {}
        if life == 1:
            logs = restarted(disk)
    logs = restarted(disk)
    assert logs.known() == {}
    assert disk.list_folder(CHANNELS_FOLDER) == []


def test_a_closed_channel_is_closed_and_opens_again_as_it_was() -> None:
    logs = opened(new_disk())
    for number, persistent in ((1, True), (2, False), (3, True)):
        logs.open(config(number, persistent=persistent), NOW)
    take(logs, block(1, 0), block(2, 0))
    held = contents(logs, 1)
    for number in (1, 2, 3, 3):
        logs.close(number, NOW)
        with pytest.raises(LogClosed):
            logs.read(number, 0)
        with pytest.raises(LogClosed):
            logs.truncate(number, 0, NOW)
    outcome = append(logs, block(1, 2))[0]
    assert isinstance(outcome.error, LogClosed)
    logs.open(config(1), NOW)
    assert contents(logs, 1) == held
    assert logs.open(config(2, persistent=False), NOW).log_end == 0, "a memory channel exists as long as it is open"
    assert logs.open(config(9, name="channel-3"), NOW).log_end == 0, "a channel that was never on disk has no name"


# --- what an append promises -------------------------------------------------------------------------


def test_one_commit_serves_channels_of_every_kind() -> None:
    disk = new_disk()
    logs = opened(disk)
    logs.open(config(1), NOW)
    logs.open(config(2, fsync=Fsync.INTERVAL), NOW)
    logs.open(config(3, fsync=Fsync.NEVER), NOW)
    logs.open(config(4, persistent=False), NOW)
    take(logs, *(block(number, 0) for number in (1, 2, 3, 4)))
    before = disk.statistics()
    outcomes = append(logs, *(block(number, 2) for number in (4, 3, 2, 1)))
    assert [(one.channel_id, one.held_end, one.error) for one in outcomes] == [(n, 4, None) for n in (4, 3, 2, 1)]
    after = disk.statistics()
    assert (after.syncs - before.syncs, after.writes - before.writes) == (1, 2), (
        "the entries, and the mark of their end"
    )
    assert [logs.state(number).durable_end for number in (1, 2, 3, 4)] == [4, 4, 4, 4], "the sync was for all"
    assert [len(logs.read(number, 0, bytes_max=MIB, end=2)) for number in (1, 2, 3, 4)] == [1, 1, 1, 1]


@pytest.mark.parametrize("size", [0, 100 * KIB])
def test_interval_and_never_are_written_and_synced_later_or_not_at_all(size: int) -> None:
    disk = new_disk()
    logs = opened(disk)
    logs.open(config(2, fsync=Fsync.INTERVAL, fsync_interval_ms=50), NOW)
    logs.open(config(3, fsync=Fsync.NEVER), NOW)
    take(logs, block(2, 0, size=size), block(3, 0, size=size))
    syncs = disk.statistics().syncs
    take(logs, block(3, 2, size=size))
    due_us = logs.maintain(NOW)
    assert due_us <= NOW + 50 * US_PER_MS
    assert disk.statistics().syncs == syncs
    assert (logs.state(2).durable_end, logs.state(3).durable_end) == (0, 0)
    logs.maintain(NOW + 50 * US_PER_MS)
    assert disk.statistics().syncs == syncs + 1
    assert (logs.state(2).durable_end, logs.state(3).durable_end) == (2, 4)
    take(logs, block(3, 4, size=size))
    logs.maintain(NOW + 5 * US_PER_S)
    assert logs.state(3).durable_end == 4, "never means never by itself"
    logs = restarted(disk)
    assert logs.open(config(2), NOW).log_end == 2
    assert logs.open(config(3), NOW).log_end in (4, 6)


def test_a_power_cut_takes_the_tail_of_a_weaker_channel_and_never_its_middle() -> None:
    for seed in range(40):
        disk = new_disk(seed)
        logs = opened(disk)
        logs.open(config(3, fsync=Fsync.NEVER), NOW)
        sizes = random.Random(seed).choices([50, 500, 100 * KIB], k=8)
        blocks = [block(3, 2 * number, size=size) for number, size in enumerate(sizes)]
        for one in blocks:
            take(logs, one)
        logs = restarted(disk)
        state = logs.open(config(3), NOW)
        assert state.damaged == (), f"seed {seed}"
        assert contents(logs, 3) == [one.tobytes() for one in blocks[: state.log_end // 2]], f"seed {seed}"


def test_a_stricter_policy_holds_from_the_next_append_on() -> None:
    disk = new_disk()
    logs = opened(disk)
    logs.open(config(3, fsync=Fsync.NEVER), NOW)
    take(logs, block(3, 0))
    assert logs.state(3).durable_end == 0
    logs.alter(config(3), NOW)
    take(logs, block(3, 2))
    assert logs.state(3).durable_end == 4
    assert restarted(disk).open(config(3), NOW).log_end == 4


@pytest.mark.parametrize("then", ["close", "large", "sweep"])
def test_what_is_synced_to_a_segment_does_not_overtake_the_creation_of_its_channel(then: str) -> None:
    for seed in range(20):
        disk = new_disk(seed)
        logs = opened(disk)
        logs.open(config(3, fsync=Fsync.NEVER), NOW)
        take(logs, block(3, 0))
        if then == "close":
            logs.close(3, NOW)
            assert logs.open(config(3), NOW).durable_end == 2
        elif then == "large":
            logs.alter(config(3), NOW)
            take(logs, block(3, 2, size=100 * KIB))
        else:
            assert logs.sweep(3, NOW, floor=2, limits=Retention(max_age_ms=100)) is not None
        end = logs.state(3).durable_end
        logs = restarted(disk)
        assert logs.open(config(3), NOW).log_end == end, f"seed {seed}"


def test_appends_after_a_large_block_survive() -> None:
    disk = new_disk()
    logs = opened(disk)
    logs.open(config(1), NOW)
    blocks = [block(1, 2 * number, size=size) for number, size in enumerate((100 * KIB, 50, 100 * KIB, 50))]
    for one in blocks:
        take(logs, one)
    logs = restarted(disk)
    logs.open(config(1), NOW)
    assert contents(logs, 1) == [one.tobytes() for one in blocks]


# --- what is refused ---------------------------------------------------------------------------------


def test_of_one_append_all_blocks_are_taken_or_none_and_others_are_not_harmed() -> None:
    disk = new_disk()
    logs = opened(disk)
    for number in (1, 2, 3):
        logs.open(config(number, persistent=number != 3), NOW)
    take(logs, *(block(number, 0) for number in (1, 2, 3)))
    states = {number: logs.state(number) for number in (1, 3)}
    outcomes = append(
        logs, block(1, 2, epoch=4), block(1, 9, epoch=4), block(2, 2), block(3, 2, epoch=4), block(3, 9, epoch=4)
    )
    assert [type(one.error) for one in outcomes] == [OffsetMismatch, type(None), OffsetMismatch]
    assert [(one.held_end, one.log_end) for one in outcomes] == [(2, 2), (4, 4), (2, 2)]
    assert {number: logs.state(number) for number in (1, 3)} == states
    foreign = logs.append([(1, [block(2, 2)]), (1, [block(1, 2)]), (77, [block(1, 0)]), (2, [])], NOW)
    assert [type(one.error) for one in foreign] == [BlockCorrupt, type(None), LogClosed, type(None)]
    assert foreign[1].held_end == 4
    logs = restarted(disk)
    assert [logs.open(config(number), NOW).log_end for number in (1, 2)] == [4, 4]


def test_a_full_disk_refuses_and_leaves_every_log_as_it_was() -> None:
    disk = new_disk()
    logs = opened(disk)
    for number in (1, 2, 9):
        logs.open(config(number, fsync=Fsync.NEVER if number == 2 else Fsync.ALWAYS), NOW)
    logs.open(config(4, persistent=False), NOW)
    take(logs, *(block(number, 0) for number in (1, 2, 4)))
    before = {number: logs.state(number) for number in (1, 2, 9)}
    disk.faults.capacity_bytes = 1
    outcomes = append(logs, *(block(number, logs.state(number).log_end) for number in (1, 2, 9, 4)))
    assert [type(one.error) for one in outcomes] == [DiskFull, DiskFull, DiskFull, type(None)]
    assert [(one.held_end, one.log_end) for one in outcomes] == [(2, 2), (2, 2), (0, 0), (4, 4)]
    assert {number: logs.state(number) for number in (1, 2, 9)} == before
    assert 9 not in logs.known()
    with pytest.raises(DiskFull):
        logs.reset(1, 50, NOW)
    with pytest.raises(DiskFull):
        logs.truncate(1, 0, NOW)
    assert {number: logs.state(number) for number in (1, 2, 9)} == before
    disk.faults.capacity_bytes = None
    take(logs, block(1, 2), block(2, 2), block(9, 0))
    logs = restarted(disk)
    assert sorted(logs.known()) == [1, 2, 9]
    assert [logs.open(config(number), NOW).log_end for number in (1, 2, 9)] == [4, 4, 2]


def test_a_channel_too_large_for_the_room_that_is_left_does_not_take_the_others_with_it() -> None:
    disk = new_disk()
    reserve = 64 * KIB
    logs = opened(disk, reserve_bytes=reserve)
    for number in range(1, 6):
        logs.open(config(number), NOW)
    take(logs, block(1, 0))
    disk.faults.capacity_bytes = disk._used_bytes + reserve + 20 * KIB
    big = [block(3, 2 * number, size=30 * KIB) for number in range(2)]
    outcomes = append(logs, block(2, 0), *big, block(4, 0), block(5, 0))
    assert [type(one.error) for one in outcomes] == [type(None), DiskFull, type(None), type(None)]
    assert [one.held_end for one in outcomes] == [2, 0, 2, 2]
    disk.faults.capacity_bytes = None
    logs = restarted(disk)
    assert sorted(logs.known()) == [1, 2, 4, 5]


def test_the_memory_cap_refuses_and_a_sweep_makes_room() -> None:
    logs = opened(new_disk())
    how: dict[str, Any] = {"persistent": False, "segment_bytes_max": 4 * KIB, "memory_bytes_max": 20 * KIB}
    logs.open(config(1, **how), NOW)
    end = 0
    while (outcome := append(logs, block(1, end, size=900), block(1, end + 2, size=900))[0]).error is None:
        end += 4
        assert (outcome.held_end, outcome.log_end) == (end, end)
    assert isinstance(outcome.error, MemoryLogFull)
    assert (outcome.held_end, outcome.log_end) == (end, end)
    assert logs.state(1).log_end == end
    assert logs.sweep(1, NOW, floor=0, limits=Retention(max_bytes=8 * KIB)) is None
    state = logs.sweep(1, NOW, floor=end, limits=Retention(max_bytes=8 * KIB))
    assert state is not None
    assert 0 < state.log_start < end
    take(logs, block(1, end, size=900))
    logs.alter(config(1, **{**how, "memory_bytes_max": MIB}), NOW)
    for number in range(1, 30):
        take(logs, block(1, end + 2 * number, size=900))


def test_after_a_failed_sync_every_outcome_carries_the_error() -> None:
    disk = new_disk()
    logs = opened(disk)
    for number in (1, 2, 3):
        logs.open(config(number, fsync=Fsync.NEVER if number == 3 else Fsync.ALWAYS), NOW)
    logs.open(config(4, persistent=False), NOW)
    take(logs, *(block(number, 0) for number in (1, 2, 3, 4)))
    disk.faults.fail_after, disk.faults.fail_kind = 1, "sync"
    outcomes = append(logs, *(block(number, 2) for number in (1, 2, 3, 4)))
    assert [type(one.error) for one in outcomes] == [SyncFailed, SyncFailed, SyncFailed, type(None)]
    assert [one.held_end for one in outcomes] == [2, 2, 2, 4]
    outcomes = append(logs, *(block(number, 4) for number in (1, 2, 3, 4)))
    assert [type(one.error) for one in outcomes] == [LogPoisoned, LogPoisoned, LogPoisoned, type(None)]
    for action in (lambda: logs.reset(1, 0, NOW), lambda: logs.delete(1, NOW), lambda: logs.open(config(1), NOW)):
        with pytest.raises(LogPoisoned):
            action()
    logs.maintain(NOW)
    logs.close_all(NOW)
    logs = restarted(disk)
    assert logs.open(config(1), NOW).log_end in (2, 4)


def test_a_log_that_stopped_says_so_alone_and_is_verified_when_it_is_opened_again() -> None:
    logs = opened(new_disk())
    for number in (1, 2):
        logs.open(config(number), NOW)
    take(logs, block(1, 0), block(2, 0))
    logs.log(1).poison("a test")
    outcomes = append(logs, block(1, 2), block(2, 2))
    assert isinstance(outcomes[0].error, LogPoisoned)
    assert (outcomes[0].held_end, outcomes[0].log_end) == (2, 2)
    assert (outcomes[1].held_end, outcomes[1].error) == (4, None)
    assert logs.open(config(1), NOW).log_end == 2
    take(logs, block(1, 2))


# --- truncation, reset, retention --------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("rolled", [False, True])
def test_a_truncated_epoch_does_not_keep_older_ones_out(persistent: bool, rolled: bool) -> None:
    disk = new_disk()
    logs = opened(disk)
    how: dict[str, Any] = {"persistent": persistent, "segment_bytes_max": 4 * KIB}
    logs.open(config(1, **how), NOW)
    take(logs, block(1, 0, epoch=2))
    for number in range(1, 9 if rolled else 2):
        take(logs, block(1, 2 * number, epoch=5, size=900))
    if persistent:
        logs._store.checkpoint(NOW)
        logs.close(1, NOW)
        assert logs.open(config(1, **how), NOW).newest_epoch == 5
    state = logs.truncate(1, 2, NOW)
    assert (state.log_end, state.epochs, state.newest_epoch) == (2, ((2, 0),), 2)
    take(logs, block(1, 2, epoch=4), block(1, 4, epoch=6))
    if persistent:
        logs = restarted(disk)
        assert logs.open(config(1), NOW).epochs == ((2, 0), (4, 2), (6, 4))


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("base", [0, 3, 500])
@pytest.mark.parametrize("persistent", [True, False])
def test_a_reset_log_is_empty_goes_on_at_its_base_and_knows_no_epoch(
    persistent: bool, base: int, checkpointed: bool
) -> None:
    disk = new_disk()
    logs = opened(disk)
    logs.open(config(1, persistent=persistent), NOW)
    for number in range(5):
        take(logs, block(1, 2 * number, epoch=9))
    logs._store.checkpoint(NOW)
    take(logs, block(1, 10, epoch=9))
    state = logs.reset(1, base, NOW)
    assert (state.log_start, state.log_end, state.durable_end) == (base, base, base)
    assert (state.epochs, state.newest_epoch) == ((), 0)
    with pytest.raises(OffsetOutOfRange):
        logs.read(1, base + 1)
    if checkpointed:
        logs._store.checkpoint(NOW)
    if persistent:
        logs = restarted(disk)
        assert logs.open(config(1), NOW).log_end == base
        assert len(disk.list_folder(CHANNELS_FOLDER)) == 0
    take(logs, block(1, base, epoch=3))
    if persistent:
        logs = restarted(disk)
        state = logs.open(config(1), NOW)
        assert (state.log_start, state.log_end, state.epochs) == (base, base + 2, ((3, base),))


def test_a_channel_that_was_never_on_disk_can_be_reset() -> None:
    disk = new_disk()
    logs = opened(disk)
    logs.open(config(1), NOW)
    assert logs.truncate(1, 0, NOW).log_end == 0
    assert logs.reset(1, 70, NOW).log_start == 70
    logs = restarted(disk)
    assert logs.known() == {1: "channel-1"}
    assert logs.open(config(1), NOW).log_start == 70


def test_retention_stops_at_the_floor_and_reaches_what_waits_in_the_write_ahead_file() -> None:
    disk = new_disk()
    logs = opened(disk)
    logs.open(config(1, segment_bytes_max=4 * KIB, retention=Retention(max_bytes=4 * KIB)), NOW)
    for number in range(20):
        take(logs, block(1, 2 * number, size=900))
    logs.maintain(NOW + 60 * US_PER_S)
    assert logs.state(1).log_start == 0, "nobody else trims"
    assert logs.sweep(1, NOW, floor=0) is None
    state = logs.sweep(1, NOW, floor=11)
    assert state is not None
    assert 0 < state.log_start <= 11
    assert logs.sweep(1, NOW, floor=11) is None
    state = logs.sweep(1, NOW, floor=40)
    assert state is not None
    assert state.bytes <= 8 * KIB
    start = state.log_start
    logs = restarted(disk)
    state = logs.open(config(1), NOW)
    assert (state.log_start, state.log_end, state.damaged) == (start, 40, ())


def test_records_expire_by_age_although_they_were_too_few_for_a_file() -> None:
    disk = new_disk()
    logs = opened(disk, copy_bytes_max=MIB)
    logs.open(config(1, retention=Retention(max_age_ms=1_000)), NOW)
    take(logs, block(1, 0, epoch=3))  # its append time is 0
    assert logs.sweep(1, 500 * US_PER_MS, floor=2) is None
    state = logs.sweep(1, 1_001 * US_PER_MS, floor=2)
    assert state is not None
    assert (state.log_start, state.log_end, state.newest_epoch) == (2, 2, 3)
    state = restarted(disk).open(config(1), NOW)
    assert (state.log_start, state.log_end, state.newest_epoch) == (2, 2, 3)


def test_a_reset_makes_a_stopped_log_work_again() -> None:
    disk = new_disk()
    logs = opened(disk)
    logs.open(config(1), NOW)
    take(logs, block(1, 0))
    logs.log(1).poison("a test")
    assert logs.reset(1, 9, NOW).log_start == 9
    take(logs, block(1, 9))
    assert restarted(disk).open(config(1), NOW).log_end == 11


@pytest.mark.parametrize("persistent", [True, False])
def test_any_thread_reads_while_the_log_is_appended_to_truncated_and_reset(persistent: bool, tmp_path: Path) -> None:
    logs = ChannelLogs(open_store(OsDisk(tmp_path), now_us=NOW))
    logs.open(config(1, persistent=persistent), NOW)
    take(logs, block(1, 0))
    done, wrong, seen = threading.Event(), list[str](), list[int]()

    def follow() -> None:
        offset = 0
        while not done.is_set():
            try:
                found = logs.read(1, offset, bytes_max=KIB)
            except OffsetOutOfRange as error:
                offset = error.log_start
                continue
            except LogError as error:
                wrong.append(repr(error))
                return
            seen.extend(one.leader.base_offset for one in found)
            offset = found[-1].offsets.stop if found else offset

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        for turn in range(60):
            for _ in range(5):
                take(logs, block(1, logs.state(1).log_end, size=300))
            logs.truncate(1, logs.state(1).log_end - 2, NOW)
            if turn % 3 == 0:
                logs.reset(1, 2 * turn, NOW)
                take(logs, block(1, 2 * turn))
            if persistent and turn % 5 == 0:
                logs._store.checkpoint(NOW)
        deadline_s = time.monotonic() + patient(60)
        while not (seen or wrong) and time.monotonic() < deadline_s:
            time.sleep(0.01)
    finally:
        done.set()
        reader.join(timeout=patient(60))
    assert not reader.is_alive()
    assert wrong == []
    assert seen
    logs.close_all(NOW)


# --- many channels -----------------------------------------------------------------------------------


def test_channels_with_little_in_them_need_no_files_over_any_number_of_openings() -> None:
    disk = new_disk()
    logs = opened(disk, copy_bytes_max=MIB, wal_bytes_max=2 * MIB)
    numbers = range(1, 201)
    held = {number: [block(number, 0, text=f"text {number}")] for number in numbers}
    for number in numbers:
        logs.open(config(number), NOW)
    take(logs, *(held[number][0] for number in numbers))
    before = disk.statistics()
    logs.maintain(NOW + 60 * US_PER_S)
    assert disk.statistics().bytes_written == before.bytes_written, "nothing would be gained by writing it all again"
    assert disk.statistics().syncs == before.syncs + 1, "the mark of the write-ahead file, since nothing happens"
    for life in range(1, 4):
        if life == 2:
            logs.close_all(NOW)
        else:
            disk.crash()
        logs = opened(disk, copy_bytes_max=MIB, wal_bytes_max=2 * MIB)
        assert logs.verified
        assert disk.list_folder(CHANNELS_FOLDER) == []
        assert len(disk.list_folder(WAL_FOLDER)) == 1
        for number in numbers:
            logs.open(config(number), NOW)
            assert contents(logs, number) == [one.tobytes() for one in held[number]], f"life {life}"
        held[7].append(block(7, 2 * life, size=20 * KIB if life == 3 else 0))
        take(logs, held[7][-1])
    logs._store.checkpoint(NOW)
    assert disk.list_folder(CHANNELS_FOLDER) == ["channel-7~7.7"]


def test_channels_without_files_survive_the_loss_of_the_table() -> None:
    disk = new_disk()
    logs = opened(disk, copy_bytes_max=MIB)
    for number in (1, 2):
        logs.open(config(number), NOW)
    take(logs, block(1, 0), block(2, 0))
    logs.reset(2, 40, NOW)
    take(logs, block(2, 40))
    logs._store.checkpoint(NOW)
    disk.crash()
    for path in (TABLE_PATH, TABLE_PATH + COPY_SUFFIX):
        disk.replace_bytes(path, b"rot")
    logs = opened(disk, copy_bytes_max=MIB)
    assert logs.known() == {1: "channel-1", 2: "channel-2"}
    assert logs.open(config(1), NOW).log_end == 2
    assert (logs.open(config(2), NOW).log_start, logs.state(2).log_end) == (40, 42)


# --- damage ------------------------------------------------------------------------------------------


def test_damage_is_known_before_the_channel_is_opened() -> None:
    disk = new_disk()
    logs = opened(disk, scrub_bytes_per_s=0)
    for number in (1, 2):
        logs.open(config(number), NOW)
        for place in range(3):
            take(logs, block(number, 2 * place))
    logs._store.checkpoint(NOW)
    path = logs.log(1).segments[0].path
    assert logs.damaged_channels() == frozenset()
    disk.flip_bit(path, 64 + 130, 3)
    with pytest.raises(LogError):
        logs.read(1, 0)
    assert logs.damaged_channels() == {1}
    logs.close_all(NOW)
    logs = opened(disk, scrub_bytes_per_s=0)
    assert logs.damaged_channels() == {1}
    assert not logs.verified
    assert logs.open(config(1), NOW).damaged == (range(0, 2),)
    logs.reset(1, 0, NOW)
    assert logs.verified


def test_a_folder_that_is_lost_is_damage_and_no_short_log() -> None:
    disk = new_disk()
    logs = opened(disk)
    logs.open(config(1), NOW)
    take(logs, block(1, 0), block(1, 2))
    logs.close_all(NOW)
    disk.remove_folder(f"{CHANNELS_FOLDER}/{disk.list_folder(CHANNELS_FOLDER)[0]}")
    logs = opened(disk)
    state = logs.open(config(1), NOW)
    assert (state.log_start, state.log_end, state.damaged) == (0, 4, (range(0, 4),))


def test_memory_channels_are_memory_logs() -> None:
    logs = opened(new_disk())
    logs.open(config(1, persistent=False), NOW)
    assert isinstance(logs.log(1), MemoryLog)
    take(logs, block(1, 0))
    assert logs.known() == {}
    logs.delete(1, NOW)
    with pytest.raises(LogClosed):
        logs.log(1)
