"""`tidelog bench journal`: what journaling a busy bus costs a boat, and what a kill costs the journal.

What every key means and what it must reach is in docs/benchmarks.md. The journal runs in a process of
its own (`journal_boat`); this one only starts it, kills it and reads what it left behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.kits.measure import Results, machine_facts, scratch_folder
from benchmarks.log.journal_boat import FOLDER, Trip, new_lineage, now_us
from tidelog.blocks.decode import counted_frames
from tidelog.blocks.header import BlockKind
from tidelog.edge.journal.journal import Journal, open_journal
from tidelog.storage.os_disk import OsDisk
from tidelog.units import US_PER_S

_SEALINGS = 8
_START_S_MAX = 60.0


class BoatFailed(RuntimeError):
    """The measured process ended without a result: a bug in it, or a machine that cannot run it."""

    def __init__(self, *, output: str) -> None:
        super().__init__(f"the journaling process failed; its last words: {output.strip()[-2000:] or 'none'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalSizes:
    seconds: float = 60.0
    frames_per_s: int = 2_000
    kill_after_s: Sequence[float] = (2.1, 2.3, 2.5, 2.7, 2.95)
    """One run each, killed at another moment between two flushes."""


FULL = JournalSizes()
QUICK = JournalSizes(seconds=10.0, kill_after_s=(1.6, 1.9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """What one kill cost."""

    frames_lost: int
    seconds_lost: float
    seqs_reused: int


def run(*, quick: bool = False, folder: str | None = None, sizes: JournalSizes | None = None) -> Results:
    """Measure a trip, then kill a few; one flat object."""
    sizes = sizes or (QUICK if quick else FULL)
    seal_age_ms = max(1, int(sizes.seconds * 1000) // _SEALINGS)
    with scratch_folder(folder) as scratch:
        results = machine_facts(scratch)
        results["quick"] = quick
        trip = Trip(
            root=os.path.join(scratch, "trip"),
            seconds=sizes.seconds,
            frames_per_s=sizes.frames_per_s,
            seal_age_ms=seal_age_ms,
        )
        results |= _sail(trip)
        root = os.path.join(scratch, "killed")
        killed = [_kill_one(root, sizes, kill_after_s) for kill_after_s in sizes.kill_after_s]
    results |= {
        "kills": len(killed),
        "lost_after_kill": max(one.frames_lost for one in killed),
        "seconds_lost": round(max(one.seconds_lost for one in killed), 3),
        "seq_reused": sum(one.seqs_reused for one in killed),
        "frames_per_s": sizes.frames_per_s,
        "seal_age_ms": seal_age_ms,
    }
    return results


def _sail(trip: Trip) -> Results:
    done = subprocess.run(trip.command(), capture_output=True, text=True, timeout=trip.seconds + _START_S_MAX)
    if done.returncode:
        raise BoatFailed(output=done.stderr)
    measured: Results = json.loads(done.stdout)
    return measured


def _kill_one(root: str, sizes: JournalSizes, kill_after_s: float) -> Killed:
    """Start a boat, kill it without warning, and compare what it did with what its journal still has."""
    trip = Trip(
        root=root,
        seconds=kill_after_s + _START_S_MAX,
        frames_per_s=sizes.frames_per_s,
        seal_age_ms=max(1, int(kill_after_s * 1000) // 2),
        report=True,
    )
    boat = subprocess.Popen(trip.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert boat.stdout is not None
    try:
        first = boat.stdout.readline()
        time.sleep(kill_after_s if first else 0.0)
    finally:
        boat.kill()
        rest, complaints = boat.communicate()
    lines = [*first.splitlines(), *rest.splitlines()]
    if not lines:
        raise BoatFailed(output=complaints.decode(errors="replace"))
    last_burst_us, issued_head = map(int, lines[-1].split())
    journal = open_journal(OsDisk(root), FOLDER, now_us=now_us(), new_lineage=new_lineage)
    try:
        return _compare(journal, last_burst_us, issued_head)
    finally:
        journal.close(now_us())


def _compare(journal: Journal, last_burst_us: int, issued_head: int) -> Killed:
    newest_us = survived = 0
    overlaps = 0
    for block in journal.blocks():
        if block.maker.kind != BlockKind.FRAMES:
            continue
        # Blocks come in the order they were written: a seq at or below the newest so far was used twice.
        overlaps += max(0, survived - block.maker.base_seq + 1)
        survived = block.maker.seqs.stop - 1
        newest_us = int(counted_frames(block).times_us[-1])
    recorded_us = now_us()
    next_seq = journal.record(recorded_us, 0x09F1_0100, bytes(8), recorded_us)
    return Killed(
        # The last burst was announced and may not have been recorded: these are upper bounds.
        frames_lost=max(0, issued_head - survived),
        seconds_lost=max(0, last_burst_us - newest_us) / US_PER_S,
        seqs_reused=overlaps + max(0, issued_head - next_seq + 1),
    )
