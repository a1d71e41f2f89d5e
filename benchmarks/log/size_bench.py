"""The size of a journal on disk against `.lpj` files of the same frames, on real captures.

The journal is replayed second by second, as a boat would write it, sealed and closed; then every file
in its directory counts. The `.lpj` side is one file per capture with the block size and the zstd level
that lplex uses.

One capture has a clock that steps back hundreds of times. A `.lpj` block cannot hold that: lplex stores
such a frame with delta 0, our `LpjWriter` cuts the block instead, which would make the `.lpj` files
several times larger than lplex's own. So both sides get the times that lplex would have kept: none
before the one ahead of it. The ratio with the capture's own times is reported beside it.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.kits.measure import Results
from tidelog.blocks.columns import FrameColumns
from tidelog.compat.captures import read_canboat_raw
from tidelog.compat.lpj import LpjWriter
from tidelog.edge.journal.journal import JournalOptions, open_journal
from tidelog.storage.os_disk import OsDisk
from tidelog.units import US_PER_S

CAPTURES = ("dirona", "susteranna")
_LPJ_BLOCK_BYTES = 262_144
_ZSTD_LEVEL = 3
_LINEAGE = bytes(range(16))


def measure_bytes(folder: str, *, frames_max: int | None = None) -> Results:
    """`bytes_vs_lpj` over all captures, or null and the reason where they are absent."""
    captures = find_captures()
    if captures is None:
        reason = "no shared/data/nmea2000 folder above the current one; the captures are not part of the project"
        return {"bytes_vs_lpj": None, "bytes_vs_lpj_reason": reason}
    results: Results = {}
    journal_total = lpj_total = frames_total = journal_own_total = 0
    for name in CAPTURES:
        own = FrameColumns.concatenate(list(read_canboat_raw(captures / f"{name}-actisense-serial.raw")))
        own = own.slice(0, min(len(own), frames_max or len(own)))
        frames = _never_backwards(own)
        place = os.path.join(folder, name)
        os.makedirs(place)
        journal_bytes = _journal_bytes(os.path.join(place, "journal"), frames)
        journal_own_total += _journal_bytes(os.path.join(place, "journal-own-times"), own)
        lpj_bytes = _lpj_bytes(os.path.join(place, f"{name}.lpj"), frames)
        results[f"bytes_vs_lpj_{name}"] = round(journal_bytes / lpj_bytes, 3)
        results[f"journal_bytes_per_frame_{name}"] = round(journal_bytes / len(frames), 2)
        results[f"lpj_bytes_per_frame_{name}"] = round(lpj_bytes / len(frames), 2)
        journal_total += journal_bytes
        lpj_total += lpj_bytes
        frames_total += len(frames)
    return {
        "bytes_vs_lpj": round(journal_total / lpj_total, 3),
        "bytes_vs_lpj_own_times": round(journal_own_total / lpj_total, 3),
        "bytes_vs_lpj_frames": frames_total,
        **results,
    }


def find_captures() -> Path | None:
    """The captures lie beside the project, in a folder that some checkouts do not have."""
    for start in (Path.cwd(), Path(__file__).resolve()):
        for parent in (start, *start.parents):
            folder = parent / "shared" / "data" / "nmea2000"
            if all((folder / f"{name}-actisense-serial.raw").is_file() for name in CAPTURES):
                return folder
    return None


def _never_backwards(frames: FrameColumns) -> FrameColumns:
    return FrameColumns(
        times_us=np.maximum.accumulate(frames.times_us),
        can_ids=frames.can_ids,
        payload_offsets=frames.payload_offsets,
        payload=frames.payload,
    )


def _journal_bytes(path: str, frames: FrameColumns) -> int:
    """Bytes of the journal's directory after a replay in the capture's own seconds."""
    arrival_us = np.maximum.accumulate(frames.times_us)
    now_us = int(arrival_us[0])
    options = JournalOptions(zstd_level=_ZSTD_LEVEL)
    journal = open_journal(OsDisk(path), "journal", now_us=now_us, new_lineage=lambda: _LINEAGE, options=options)
    second_of = arrival_us // US_PER_S
    edges = [0, *(np.flatnonzero(np.diff(second_of)) + 1).tolist(), len(frames)]
    for start, end in pairwise(edges):
        now_us = int(arrival_us[end - 1])
        journal.record_many(frames.slice(start, end), now_us)
        journal.wake(now_us)
    journal.seal_all(now_us)
    journal.close(now_us)
    return sum(os.stat(os.path.join(parent, name)).st_size for parent, _, names in os.walk(path) for name in names)


def _lpj_bytes(path: str, frames: FrameColumns) -> int:
    with LpjWriter(path, block_size=_LPJ_BLOCK_BYTES, compression="zstd", level=_ZSTD_LEVEL) as writer:
        writer.append(frames, first_seq=1)
    return os.stat(path).st_size
