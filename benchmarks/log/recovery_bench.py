"""Opening logs: after a crash, against merely reading and checksumming the files; after a clean close.

The page cache is warm for both sides: everything was read once before. A crash is played by removing
the mark of the clean close, so every round starts from the same files.
"""

from __future__ import annotations

import os
import shutil
import time

from fastcrc.crc32 import iscsi as crc32c

from benchmarks.kits.measure import Results, alternate, largest_spread, speed_against
from benchmarks.kits.traffic import bus_frames
from benchmarks.log.append_bench import large_block
from tidelog.blocks.block import MadeBlock
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.header import HEAD_BYTES
from tidelog.storage.log.log import STATE_NAME
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.recovery import open_log
from tidelog.storage.log.segment import SEGMENT_HEAD_BYTES, base_offset_of
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.units import MIB

SEGMENTS = 100
_READ_BYTES = 4 * MIB
_FOLDER = "log"
_LIVE_FRAMES = 20
_GROUP_BYTES = 256 * 1024


def measure_recovery(folder: str, *, log_bytes: int, small_log_bytes: int, rounds: int) -> Results:
    """Recovery that checks every byte, and the ordinary one that scans only the newest segment."""
    large = os.path.join(folder, "large")
    small = os.path.join(folder, "small")
    tail = os.path.join(folder, "tail")
    options = LogOptions()
    _write_log(large, large_block(), log_bytes=log_bytes, options=options)
    # Only the newest segment matters here, and a crash finds it half full on average.
    _write_log(tail, large_block(), log_bytes=min(log_bytes, options.segment_bytes_max) // 2, options=options)
    _write_log(small, encode_frames(bus_frames(_LIVE_FRAMES)), log_bytes=small_log_bytes, options=options)
    cases = {
        "scan": lambda: _scan(large),
        "recover": lambda: _recover(large, verify_all=True),
        "tail": lambda: _recover_copy(tail),
        "small_scan": lambda: _scan(small),
        "small_recover": lambda: _recover(small, verify_all=True),
    }
    measured = alternate(cases, rounds=rounds)
    scanned_bytes = sum(os.stat(name).st_size for name in _segments(large))
    return {
        "recover_vs_scan": speed_against(measured["recover"], measured["scan"]),
        "recover_small_vs_scan": speed_against(measured["small_recover"], measured["small_scan"]),
        "recover_tail_ms": round(measured["tail"].median * 1000, 2),
        "recover_gb_per_s": round(scanned_bytes / measured["recover"].median / 1e9, 3),
        "scan_gb_per_s": round(scanned_bytes / measured["scan"].median / 1e9, 3),
        "recover_spread": largest_spread(measured["recover"], measured["scan"]),
    }


def measure_open(folder: str, *, log_bytes: int, rounds: int) -> Results:
    """A cleanly closed log in 100 segments."""
    path = os.path.join(folder, "open")
    made = large_block()
    block_bytes = HEAD_BYTES + len(made.body)
    blocks_per_segment = max(1, round(log_bytes / SEGMENTS / block_bytes))
    options = LogOptions(segment_bytes_max=SEGMENT_HEAD_BYTES + blocks_per_segment * block_bytes)
    _write_log(path, made, log_bytes=SEGMENTS * blocks_per_segment * block_bytes, options=options)
    measured = alternate({"open": lambda: _open_clean(path)}, rounds=rounds)
    return {
        "open_ms": round(measured["open"].median * 1000, 2),
        "open_segments": len(_segments(path)),
        "open_spread": largest_spread(measured["open"]),
    }


def _write_log(path: str, made: MadeBlock, *, log_bytes: int, options: LogOptions) -> None:
    """Fill a log as a busy writer does: a sync every 256 KiB."""
    log = open_log(OsDisk(path), _FOLDER, now_us=wall_clock_us(), options=options)
    block_bytes = HEAD_BYTES + len(made.body)
    per_commit = max(1, _GROUP_BYTES // block_bytes)
    for number in range(log_bytes // block_bytes):
        log.stage(made, epoch=1, now_us=wall_clock_us())
        if (number + 1) % per_commit == 0:
            log.commit(wall_clock_us())
    log.close(wall_clock_us())


def _segments(path: str) -> list[str]:
    folder = os.path.join(path, _FOLDER)
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if base_offset_of(name) is not None)


def _scan(path: str) -> float:
    start = time.perf_counter()
    checksum = 0
    for name in _segments(path):
        with open(name, "rb", buffering=0) as file:
            while data := file.read(_READ_BYTES):
                checksum = crc32c(data, checksum)
    return time.perf_counter() - start


def _recover(path: str, *, verify_all: bool) -> float:
    disk = OsDisk(path)
    disk.remove(f"{_FOLDER}/{STATE_NAME}")
    start = time.perf_counter()
    log = open_log(disk, _FOLDER, now_us=wall_clock_us(), verify_all=verify_all)
    elapsed = time.perf_counter() - start
    report = log.recovery
    assert report is not None
    assert not report.clean, "the mark of the clean close was removed, so this must be a recovery"
    assert not report.bytes_cut
    assert not report.quarantined
    log.close(wall_clock_us())
    return elapsed


def _recover_copy(path: str) -> float:
    """The ordinary recovery, each time of the same files: it moves the end of the newest segment to another."""
    copy = f"{path}-copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    for name in _segments(copy):
        with open(name, "rb") as file:
            os.fsync(file.fileno())  # or the recovery would pay for writing the copy
    return _recover(copy, verify_all=False)


def _open_clean(path: str) -> float:
    disk = OsDisk(path)
    start = time.perf_counter()
    log = open_log(disk, _FOLDER, now_us=wall_clock_us())
    elapsed = time.perf_counter() - start
    assert log.recovery is not None
    assert log.recovery.clean
    log.close(wall_clock_us())
    return elapsed
