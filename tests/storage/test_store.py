"""The store: one sync for many channels, bulk written once, few files open, and what survives what."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.blocks.block import Block, MadeBlock, make_block
from tidelog.blocks.header import BlockKind
from tidelog.blocks.messages import Message, encode_messages
from tidelog.errors import (
    ChannelExists,
    DiskFull,
    FolderLocked,
    LogClosed,
    LogError,
    LogPoisoned,
    NotABlockBoundary,
    OffsetMismatch,
    OffsetOutOfRange,
    StaleEpoch,
    SyncFailed,
    UnknownChannel,
)
from tidelog.sim.disk import SimDisk
from tidelog.storage.atomic import COPY_SUFFIX
from tidelog.storage.log.options import LogOptions, Retention
from tidelog.storage.log.writer import Append
from tidelog.storage.store.names import escape_name, unescape_name
from tidelog.storage.store.parts import CHANNELS_FOLDER, STATE_PATH, TABLE_PATH, WAL_FOLDER, StoreOptions
from tidelog.storage.store.recovery import open_store
from tidelog.storage.store.store import Store
from tidelog.units import KIB, US_PER_S

NOW = 1_000_000


def new_disk(seed: int = 1) -> SimDisk:
    return SimDisk(random.Random(seed))


def opened(disk: SimDisk, now_us: int = NOW, **options: Any) -> Store:
    options.setdefault("log", LogOptions(reserve_bytes=0))
    return open_store(disk, now_us=now_us, options=StoreOptions(**options))


def made(body: bytes | int = 100, *, records: int = 1) -> MadeBlock:
    raw = bytes(body) if isinstance(body, int) else body
    return make_block(raw, kind=BlockKind.FRAMES, form=1, record_count=records)


def append(store: Store, name: str, block: MadeBlock | Block | None = None, *, epoch: int = 1) -> Append:
    return Append(store.log(name, now_us=NOW), block or made(), epoch=epoch)


def commit(store: Store, *appends: Append, now_us: int = NOW) -> list[range]:
    store.commit_appends(appends, now_us)
    return [one.future.result(timeout=0) for one in appends]


def bodies(store: Store, name: str) -> list[bytes]:
    return [bytes(block.raw_body()) for block in store.log(name, now_us=NOW).blocks()]


# --- what it costs -----------------------------------------------------------------------------------


def test_one_sync_commits_many_channels() -> None:
    disk = new_disk()
    store = opened(disk)
    names = [f"boat-{number}" for number in range(100)]
    for name in names:
        store.create_channel(name, now_us=NOW)
    appends = [append(store, name, made(bytes([number]))) for number, name in enumerate(names)]
    before = disk.statistics()
    assert commit(store, *appends) == [range(1)] * 100
    after = disk.statistics()
    assert after.syncs - before.syncs == 1
    assert after.writes - before.writes == 2, "the entries, and the mark beside the file"
    disk.crash()
    store = opened(disk)
    assert [bodies(store, name) for name in names] == [[bytes([number])] for number in range(100)]


def test_large_blocks_are_written_once() -> None:
    disk = new_disk()
    store = opened(disk)
    store.create_channel("bulk", now_us=NOW)
    commit(store, append(store, "bulk"))
    store.checkpoint(NOW)
    before = disk.statistics()
    size = 256 * KIB
    commit(store, append(store, "bulk", made(size)))
    store.checkpoint(NOW)
    written = disk.statistics().bytes_written - before.bytes_written
    assert size < written < size + 2 * KIB
    before = disk.statistics()
    commit(store, append(store, "bulk", made(1_000)))
    store.checkpoint(NOW)
    assert disk.statistics().bytes_written - before.bytes_written > 2_000, "a small block is written twice"


def test_a_large_block_carries_the_small_ones_before_it_along() -> None:
    disk = new_disk()
    store = opened(disk)
    store.create_channel("a", now_us=NOW)
    commit(store, append(store, "a", made(b"small")))
    commit(store, append(store, "a", made(100 * KIB)))
    commit(store, append(store, "a", made(b"after")))
    disk.crash()
    store = opened(disk)
    assert [len(body) for body in bodies(store, "a")] == [5, 100 * KIB, 5]


def test_a_full_write_ahead_file_is_checkpointed_at_once() -> None:
    store = opened(new_disk(), wal_bytes_max=8 * KIB)
    store.create_channel("a", now_us=NOW)
    for _ in range(50):
        commit(store, append(store, "a", made(1_000)))
        assert store.statistics().wal_bytes < 10 * KIB
        assert store.statistics().staged_bytes < 10 * KIB
    assert store.statistics().checkpoints > 3


def test_logs_are_opened_when_they_are_asked_for() -> None:
    disk = new_disk()
    store = opened(disk)
    for number in range(20):
        store.create_channel(f"boat-{number}", now_us=NOW)
    store.close(NOW)
    before = disk.statistics()
    store = opened(disk)
    assert disk.statistics().reads - before.reads < 10
    assert store.statistics().open_logs == 0
    assert store.names() == sorted(f"boat-{number}" for number in range(20))
    commit(store, append(store, "boat-7"))
    assert store.statistics().open_logs == 1
    assert store.statistics().open_files <= 1


def test_open_files_are_bounded_and_an_idle_channel_costs_none() -> None:
    disk = new_disk()
    store = opened(disk, open_files_max=16)
    names = [f"boat-{number}" for number in range(300)]
    for name in names:
        store.create_channel(name, now_us=NOW)
    for round_number in range(2):
        commit(store, *(append(store, name, made(bytes([round_number]))) for name in names))
        store.checkpoint(NOW)
        assert len(disk._handles) <= 17, "sixteen segments and the write-ahead file"
    for name in names:
        assert bodies(store, name) == [b"\x00", b"\x01"]
        assert store.statistics().open_files <= 16
    store.close(NOW)
    assert not disk._handles


# --- what is read and refused ------------------------------------------------------------------------


def test_reads_see_blocks_before_they_are_written_back() -> None:
    store = opened(new_disk())
    log = store.create_channel("a", now_us=NOW)
    commit(store, append(store, "a", made(b"x")), append(store, "a", made(b"y")))
    assert log.written_end == 0
    assert log.durable_end == 2
    assert bodies(store, "a") == [b"x", b"y"]
    store.checkpoint(NOW)
    assert log.written_end == 2
    assert bodies(store, "a") == [b"x", b"y"]


def test_a_refused_append_leaves_the_others_alone() -> None:
    disk = new_disk()
    store = opened(disk)
    for name in ("a", "b"):
        store.create_channel(name, now_us=NOW)
    commit(store, append(store, "a", epoch=5))
    misplaced = made().stamp(base_offset=9, channel_id=1, leader_epoch=5, append_time_us=0, durable_end=0, path=0)
    batch = [
        append(store, "a", epoch=4),
        append(store, "b", made(b"good")),
        append(store, "a", misplaced),
        append(store, "a", made(b"good"), epoch=5),
    ]
    store.commit_appends(batch, NOW)
    errors = [one.future.exception(timeout=0) for one in batch]
    assert [type(error) for error in errors] == [StaleEpoch, type(None), OffsetMismatch, type(None)]
    assert batch[3].future.result() == range(1, 2)
    disk.crash()
    store = opened(disk)
    assert bodies(store, "b") == [b"good"]
    assert bodies(store, "a")[1:] == [b"good"]


def test_a_block_without_records_is_acked_and_changes_nothing() -> None:
    store = opened(new_disk())
    store.create_channel("a", now_us=NOW)
    assert commit(store, append(store, "a", made(b"", records=0))) == [range(0)]


def test_truncation_is_for_good_and_refuses_what_lies_inside_a_block() -> None:
    disk = new_disk()
    store = opened(disk)
    store.create_channel("a", now_us=NOW)
    for number in range(3):
        commit(store, append(store, "a", made(bytes([number]), records=2)))
    store.checkpoint(NOW)
    commit(store, append(store, "a", made(b"staged", records=2)))
    for offset in (3, 7):
        with pytest.raises(NotABlockBoundary):
            store.truncate("a", offset, now_us=NOW)
    assert len(bodies(store, "a")) == 4
    store.truncate("a", 100, now_us=NOW)
    store.truncate("a", 2, now_us=NOW)
    commit(store, append(store, "a", made(b"new", records=2)))
    disk.crash()
    store = opened(disk)
    assert bodies(store, "a") == [b"\x00", b"new"]
    assert store.log("a", now_us=NOW).damaged() == []
    with pytest.raises(UnknownChannel):
        store.truncate("b", 0, now_us=NOW)


def test_truncation_below_the_start_is_refused() -> None:
    options = LogOptions(segment_bytes_max=4 * KIB, retention=Retention(max_bytes=4 * KIB), reserve_bytes=0)
    store = opened(new_disk(), log=options)
    log = store.create_channel("a", now_us=NOW)
    for _ in range(20):
        commit(store, append(store, "a", made(1_000)))
    store.checkpoint(NOW)
    store.maintain(NOW)
    assert log.log_start > 0
    with pytest.raises(OffsetOutOfRange):
        store.truncate("a", 0, now_us=NOW)


# --- channels ----------------------------------------------------------------------------------------


def test_channel_ids_are_never_used_again() -> None:
    disk = new_disk()
    seen: set[int] = set()
    for round_number in range(6):
        store = opened(disk)
        for _ in range(3):
            log = store.create_channel("a", now_us=NOW)
            assert log.channel_id not in seen
            seen.add(log.channel_id)
            commit(store, append(store, "a"))
            with pytest.raises(ChannelExists):
                store.create_channel("a", now_us=NOW)
            store.delete_channel("a", now_us=NOW)
            with pytest.raises(UnknownChannel):
                store.log("a", now_us=NOW)
            with pytest.raises(LogError):
                log.append(made(), now_us=NOW)
        if round_number % 2:
            store.close(NOW)
        else:
            disk.crash()
    assert opened(disk).names() == []
    assert disk.list_folder(CHANNELS_FOLDER) == []


def test_the_layout_keeps_internals_apart() -> None:
    disk = new_disk()
    store = opened(disk)
    for name in (".tidelog", "..", "a/b", "boat-1"):
        store.create_channel(name, now_us=NOW)
        commit(store, append(store, name, made(name.encode())))
    store.close(NOW)
    assert disk.list_folder("") == [".tidelog"]
    assert disk.list_folder(".tidelog") == [
        "channels",
        "store.state",
        "store.state.copy",
        "store.table",
        "store.table.copy",
        "store.wal-mark",
        "wal",
    ]
    assert disk.list_folder(CHANNELS_FOLDER) == ["%2E.~2", "%2Etidelog~1", "a%2Fb~3", "boat-1~4"]
    store = opened(disk)
    assert all(bodies(store, name) == [name.encode()] for name in store.names())


@given(st.text(max_size=60), st.text(max_size=60))
def test_escaped_names_are_unambiguous_and_harmless(one: str, other: str) -> None:
    escaped = escape_name(one)
    assert escaped
    assert not escaped.startswith(".")
    assert not set(escaped) & set("/\\~\0 \n")
    assert len(escaped) <= 200
    assert escaped.isascii()
    if len(escaped) < 198:
        assert unescape_name(escaped) == one
        assert (escape_name(other) == escaped) == (one == other)


@pytest.mark.parametrize("name", ["", ".", "..", "~", "a~7", "%", "%2E", "\ud800", "ü" * 200, "x" * 500, "CON", "a\0b"])
def test_odd_names_make_channels(name: str) -> None:
    disk = new_disk()
    store = opened(disk)
    store.create_channel(name, now_us=NOW)
    commit(store, append(store, name, made(b"x")))
    disk.crash()
    assert bodies(opened(disk), name) == [b"x"]


def test_two_stores_on_one_folder_are_refused() -> None:
    disk = new_disk()
    store = opened(disk)
    with pytest.raises(FolderLocked):
        opened(disk)
    store.close(NOW)
    opened(disk).close(NOW)


def test_a_closed_store_is_closed() -> None:
    store = opened(new_disk())
    log = store.create_channel("a", now_us=NOW)
    one = append(store, "a")
    store.close(NOW)
    store.close(NOW)
    with pytest.raises(LogClosed):
        store.log("a", now_us=NOW)
    with pytest.raises(LogClosed):
        store.create_channel("b", now_us=NOW)
    with pytest.raises(LogClosed):
        log.read(0)
    store.commit_appends([one], NOW)
    assert isinstance(one.future.exception(timeout=0), LogError)


# --- what goes wrong ---------------------------------------------------------------------------------


def test_a_failed_sync_of_the_write_ahead_file_stops_the_store() -> None:
    disk = new_disk()
    store = opened(disk)
    for name in ("a", "b"):
        store.create_channel(name, now_us=NOW)
    commit(store, append(store, "a", made(b"kept")))
    disk.faults.fail_after, disk.faults.fail_kind = 1, "sync"
    batch = [append(store, "a"), append(store, "b")]
    store.commit_appends(batch, NOW)
    assert [type(one.future.exception(timeout=0)) for one in batch] == [SyncFailed, SyncFailed]
    later = append(store, "b")
    store.commit_appends([later], NOW)
    assert isinstance(later.future.exception(timeout=0), LogPoisoned)
    for action in (
        lambda: store.checkpoint(NOW),
        lambda: store.create_channel("c", now_us=NOW),
        lambda: store.delete_channel("a", now_us=NOW),
        lambda: store.truncate("a", 0, now_us=NOW),
    ):
        with pytest.raises(LogPoisoned):
            action()
    store.maintain(NOW)
    store.close(NOW)
    store = opened(disk)
    assert bodies(store, "a")[0] == b"kept"


@pytest.mark.parametrize("action", ["create", "delete", "truncate", "append"])
def test_a_full_disk_refuses_in_words_and_nothing_has_happened(action: str) -> None:
    disk = new_disk()
    store = opened(disk)
    store.create_channel("a", now_us=NOW)
    commit(store, append(store, "a"), append(store, "a"))
    disk.faults.capacity_bytes = 1
    actions: dict[str, Callable[[], object]] = {
        "create": lambda: store.create_channel("b", now_us=NOW),
        "delete": lambda: store.delete_channel("a", now_us=NOW),
        "truncate": lambda: store.truncate("a", 1, now_us=NOW),
        "append": lambda: commit(store, append(store, "a")),
    }
    with pytest.raises(DiskFull):
        actions[action]()
    with pytest.raises(DiskFull):
        store.checkpoint(NOW)
    disk.faults.capacity_bytes = None
    assert store.names() == ["a"]
    assert len(bodies(store, "a")) == 2
    commit(store, append(store, "a"))
    store.checkpoint(NOW)
    assert len(disk.list_folder(WAL_FOLDER)) == 0
    disk.crash()
    store = opened(disk)
    assert store.names() == ["a"]
    assert len(bodies(store, "a")) == 3


def test_a_reserve_is_left_for_truncation_and_tables() -> None:
    disk = new_disk()
    reserve = 256 * KIB
    store = opened(disk, log=LogOptions(reserve_bytes=reserve))
    store.create_channel("a", now_us=NOW)
    disk.faults.capacity_bytes = disk._used_bytes + reserve + 20 * KIB
    refused = 0
    for _ in range(100):
        one = append(store, "a", made(1_000))
        store.commit_appends([one], NOW)
        refused += isinstance(one.future.exception(timeout=0), DiskFull)
    assert refused > 50
    assert disk.free_bytes() >= reserve
    store.truncate("a", 1, now_us=NOW)
    store.create_channel("b", now_us=NOW)
    store.delete_channel("b", now_us=NOW)
    store.checkpoint(NOW)
    store.close(NOW)
    assert len(bodies(opened(disk), "a")) == 1


@pytest.mark.parametrize("path", [TABLE_PATH, STATE_PATH, TABLE_PATH + COPY_SUFFIX, STATE_PATH + COPY_SUFFIX])
def test_one_lost_mark_costs_nothing(path: str) -> None:
    disk = new_disk()
    store = opened(disk)
    for name in ("a", "b", "c"):
        store.create_channel(name, now_us=NOW)
        commit(store, append(store, name, made(name.encode())))
    store.delete_channel("c", now_us=NOW)
    store.close(NOW)
    for incarnation in range(2, 5):  # each opening makes up for the loss before
        disk.replace_bytes(path, b"rot")
        store = opened(disk)
        assert store.incarnation == incarnation
        assert store.next_channel_id == 4
        assert store.names() == ["a", "b"]
        assert bodies(store, "a") == [b"a"]
        disk.crash()


def test_without_any_table_the_folders_name_the_channels() -> None:
    disk = new_disk()
    store = opened(disk)
    for name in ("a/b", "b"):
        store.create_channel(name, now_us=NOW)
        commit(store, append(store, name, made(name.encode())))
    store.close(NOW)
    disk.remove(TABLE_PATH)
    disk.remove(TABLE_PATH + COPY_SUFFIX)
    store = opened(disk)
    assert store.recovery is not None
    assert store.recovery.table_rebuilt
    assert store.names() == ["a/b", "b"]
    assert bodies(store, "a/b") == [b"a/b"]
    assert store.create_channel("c", now_us=NOW).channel_id == 3


def test_a_channel_that_does_not_open_does_not_keep_the_others_away() -> None:
    disk = new_disk()
    store = opened(disk)
    for name in ("a", "b"):
        store.create_channel(name, now_us=NOW)
        commit(store, append(store, name, made(name.encode())))
    folder = store.channels["a"].folder
    disk.crash()
    disk.rename(f"{folder}/log.meta", f"{folder}/saved")
    disk.make_folder(f"{folder}/log.meta")  # cannot be read as a file
    store = opened(disk)
    assert bodies(store, "b") == [b"b"]
    with pytest.raises(LogError):
        store.log("a", now_us=NOW)
    store.checkpoint(NOW)
    disk.remove_folder(f"{folder}/log.meta")
    disk.rename(f"{folder}/saved", f"{folder}/log.meta")
    assert bodies(store, "a") == [b"a"], "its blocks waited in the write-ahead file"


def test_retention_of_the_others_runs_when_one_channel_has_stopped() -> None:
    options = LogOptions(segment_bytes_max=4 * KIB, retention=Retention(max_bytes=4 * KIB), reserve_bytes=0)
    store = opened(new_disk(), log=options)
    for name in ("a", "b"):
        store.create_channel(name, now_us=NOW)
        for _ in range(20):
            commit(store, append(store, name, made(1_000)))
    store.checkpoint(NOW)
    store.log("a", now_us=NOW).poison("a test")
    store.maintain(NOW)
    assert store.log("a", now_us=NOW).log_start == 0
    assert store.log("b", now_us=NOW).log_start > 0


def test_options_are_asked_for_each_channel() -> None:
    special = LogOptions(segment_bytes_max=4 * KIB, reserve_bytes=0)
    store = opened(new_disk(), options_of=lambda name: special if name == "a" else None)
    assert store.create_channel("a", now_us=NOW).options is special
    assert store.create_channel("b", now_us=NOW).options is store.options.log


def test_every_channel_is_scrubbed_in_the_background_within_the_rate() -> None:
    disk, names = SimDisk(random.Random(7)), [f"boat-{number}" for number in range(5)]
    options = StoreOptions(log=LogOptions(reserve_bytes=0), scrub_bytes_per_s=64 * KIB)
    store = open_store(disk, now_us=0, options=options)
    for name in names:
        log = store.create_channel(name, now_us=0)
        append = Append(log, encode_messages([Message(time_us=0, value=bytes(9_000))] * 2), epoch=1)
        store.commit_appends([append], 0)
    store.close(0)
    store = open_store(disk, now_us=0, options=options)
    rotten = store.log(names[3], now_us=0)
    disk.flip_bit(rotten.segments[0].path, rotten.segments[0].index.size - 100, 3)
    store.maintain(0)
    seconds = 0
    for rounds in (1, 2):
        while store.scrubber.rounds < rounds:
            seconds += 1
            assert seconds < 700
            assert store.maintain(seconds * US_PER_S) <= (seconds + 1) * US_PER_S
    assert seconds > 590, "a round that is over soon is not begun again at once"
    assert store.scrubber.damaged == [(names[3], range(0, 2))]
    assert rotten.damaged() == [range(0, 2)]
    assert 0 < store.scrubber.bytes_checked <= 60 * 64 * KIB
