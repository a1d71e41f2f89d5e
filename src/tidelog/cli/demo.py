"""`tidelog demo`: a boat records, the plug is pulled, nothing that was durable is lost. All on this machine."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from tidelog.blocks.block import Block
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import decode_frames
from tidelog.blocks.header import BlockKind
from tidelog.edge.journal import Journal, JournalOptions, open_journal
from tidelog.edge.voyage import Voyage
from tidelog.errors import LogError, WaitTimedOut
from tidelog.sim.disk import SimDisk
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.scrub import Scrubber
from tidelog.units import US_PER_S, format_bytes

FRAMES_PER_S = 2_000.0
POWER_CUTS = 25
_RECORD_TIMEOUT_S = 60.0


@dataclass(slots=True)
class Story:
    """What happened; the demo succeeds when `failures` is empty."""

    seed: int
    frames_durable_at_kill: int = 0
    frames_only_in_memory: int = 0
    frames_recovered: int = 0
    seqs_void: int = 0
    recover_ms: float = 0.0
    power_cuts: int = 0
    power_cut_frames_durable: int = 0
    power_cut_frames_lost: int = 0
    seqs_reused: int = 0
    damage_found: str = ""
    sealed_bytes: int = 0
    frames_by_pgn: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def check(self, held: bool, what: str) -> None:
        if not held:
            self.failures.append(what)


@click.command()
@click.option("--seed", type=int, default=None, help="Same voyage, same power cuts. Random by default.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object.")
@click.option("--keep", is_flag=True, help="Keep the recorded journal and say where it is.")
def demo(seed: int | None, as_json: bool, keep: bool) -> None:
    """Record a voyage, pull the plug in the middle, recover, verify, and show what happened."""
    story = Story(seed=random.SystemRandom().randrange(1_000_000) if seed is None else seed)
    console = Console(quiet=as_json, highlight=False)
    folder = Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    try:
        _record_and_kill(story, folder, console)
        _recover(story, folder, console)
        _seal_and_rot(story, folder, console)
        _cut_power(story, console)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        click.echo(json.dumps(asdict(story)))
    else:
        _tell_the_end(story, console, folder if keep else None)
    sys.exit(1 if story.failures else 0)


def _new_lineage() -> bytes:
    return uuid.uuid4().bytes


def _start_us() -> int:
    return 1_772_791_200 * US_PER_S  # a fixed day in 2026: the voyage is the same whenever the demo runs


def _record_and_kill(story: Story, folder: Path, console: Console) -> None:
    console.rule("[bold]1. A boat records its bus")
    command = [sys.executable, "-m", "tidelog.cli.demo_recorder", str(folder)]
    command += [str(story.seed), str(_start_us()), str(FRAMES_PER_S)]
    durable_wanted = int(FRAMES_PER_S * random.Random(story.seed).uniform(4.5, 6.5))
    last: dict[str, Any] = {"durable": 0, "head": 0}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as boat:
        try:
            with console.status("recording 2,000 frames a second, one fsync a second ...") as status:
                deadline = time.monotonic() + _RECORD_TIMEOUT_S
                assert boat.stdout is not None
                for line in boat.stdout:
                    last = json.loads(line)
                    status.update(f"recording ... seq {last['head']:,} taken, {last['durable']:,} durable")
                    # A good part of a second after the last sync: frames are in memory that no disk has seen.
                    if last["durable"] >= durable_wanted and last["head"] - last["durable"] > FRAMES_PER_S / 2:
                        break
                    if time.monotonic() > deadline:
                        raise WaitTimedOut(waiting_for="the recording", deadline_s=_RECORD_TIMEOUT_S)
        finally:
            boat.kill()
    story.frames_durable_at_kill = int(last["durable"])
    story.frames_only_in_memory = int(last["head"]) - story.frames_durable_at_kill
    story.check(story.frames_durable_at_kill > 0, "the boat recorded nothing")
    console.print(
        f"  [bold red]kill -9[/], in the middle of a second: {story.frames_durable_at_kill:,} frames are durable, "
        f"{story.frames_only_in_memory:,} were taken since the last sync"
    )


def _recover(story: Story, folder: Path, console: Console) -> None:
    console.rule("[bold]2. Recovery")
    began = time.perf_counter()
    journal = open_journal(OsDisk(folder), "journal", now_us=time.time_ns() // 1000, new_lineage=_new_lineage)
    story.recover_ms = round(1000 * (time.perf_counter() - began), 1)
    statistics = journal.statistics()
    frames, seqs = _all_frames(journal)
    story.frames_recovered = len(frames)
    story.seqs_void = sum(len(part) for part in statistics.void)
    voyage = Voyage(seed=story.seed, start_us=_start_us())
    end_us = int(frames.times_us.max()) + 1 if len(frames) else _start_us()
    expected = voyage.frames(_start_us(), end_us, frames_per_s=FRAMES_PER_S)
    story.check(len(frames) >= story.frames_durable_at_kill, "a durable frame is gone")
    story.check(np.array_equal(seqs, np.arange(1, len(seqs) + 1)), "seqs are not 1, 2, 3 ... without a gap")
    story.check(frames.equals(expected), "a recovered frame is not what the bus said")
    first = journal.record(end_us, 0x09F80203, b"\x00" * 8, time.time_ns() // 1000)
    story.check(first > len(seqs), "a seq was used twice")
    console.print(
        f"  opened in {story.recover_ms} ms: {story.frames_recovered:,} frames, each equal to what the bus said"
    )
    console.print(f"  {story.seqs_void:,} leased seqs reached no disk and are void; the next frame is seq {first:,}")
    journal.close(time.time_ns() // 1000)


def _seal_and_rot(story: Story, folder: Path, console: Console) -> None:
    console.rule("[bold]3. Sealed, then a bit rots")
    disk = OsDisk(folder)
    journal = open_journal(disk, "journal", now_us=time.time_ns() // 1000, new_lineage=_new_lineage)
    journal.seal_all(time.time_ns() // 1000)
    statistics = journal.statistics()
    story.sealed_bytes = statistics.sealed_bytes
    frames, _ = _all_frames(journal)
    story.frames_by_pgn = _count_by_pgn(frames)
    per_frame = story.sealed_bytes / max(1, len(frames))
    console.print(
        f"  {len(frames):,} frames in {format_bytes(story.sealed_bytes)}: {per_frame:.1f} bytes a frame, zstd-3"
    )
    segment = journal.sealed.segments[0]
    position = segment.index.size * 2 // 3
    file = disk.open(segment.path)
    byte = file.read_at(position, 1)[0]
    file.write_at(position, [bytes([byte ^ 0x10])])
    file.close()
    damaged = Scrubber(journal.sealed).check_all()
    story.damage_found = ", ".join(f"[{part.start}, {part.stop})" for part in damaged)
    story.check(len(damaged) == 1, "the flipped bit was not found")
    try:
        journal.sealed.read(damaged[0].start if damaged else 0)
        story.check(False, "damaged bytes reached a reader")
    except LogError as error:
        console.print(f"  one bit flipped at byte {position:,}; the scrub found it: {error}")
    journal.close(time.time_ns() // 1000)


def _cut_power(story: Story, console: Console) -> None:
    console.rule(f"[bold]4. {POWER_CUTS} power cuts on a disk that tears and loses un-synced writes")
    rng = random.Random(story.seed)
    disk = SimDisk(rng)
    voyage = Voyage(seed=story.seed, start_us=_start_us())
    options = JournalOptions(seal_age_ms=2_000, lease_seqs=1_024, reserve_bytes=0)
    kept: dict[int, tuple[int, int, bytes]] = {}
    issued: set[int] = set()
    now_us = _start_us()
    for _ in range(POWER_CUTS):
        journal = open_journal(disk, "journal", now_us=now_us, new_lineage=lambda: rng.randbytes(16), options=options)
        _check_kept(story, journal, kept)
        until_us = now_us + rng.randrange(500_000, 6_000_000)
        taken: dict[int, tuple[int, int, bytes]] = {}
        for row in voyage.frames(now_us, until_us, frames_per_s=400).rows():
            now_us = row[0]
            seq = journal.record(*row, now_us)
            story.seqs_reused += seq in issued
            issued.add(seq)
            taken[seq] = row
            if now_us >= journal.wake_at_us():
                journal.wake(now_us)
        kept |= {seq: row for seq, row in taken.items() if seq <= journal.durable_head}
        disk.crash()
        now_us = until_us
        story.power_cuts += 1
    journal = open_journal(disk, "journal", now_us=now_us, new_lineage=lambda: rng.randbytes(16), options=options)
    _check_kept(story, journal, kept)
    story.power_cut_frames_durable = len(kept)
    story.check(story.power_cut_frames_lost == 0, "a durable frame was lost in a power cut")
    story.check(story.seqs_reused == 0, "a seq was used twice after a power cut")
    console.print(
        f"  {len(kept):,} durable frames, {story.power_cut_frames_lost} lost, {story.seqs_reused} seqs used twice"
    )


def _check_kept(story: Story, journal: Journal, kept: dict[int, tuple[int, int, bytes]]) -> None:
    frames, seqs = _all_frames(journal)
    found = dict(zip(seqs.tolist(), frames.rows(), strict=True))
    story.power_cut_frames_lost += sum(found.get(seq) != row for seq, row in kept.items())


def _all_frames(journal: Journal) -> tuple[FrameColumns, Any]:
    blocks: list[Block] = [block for block in journal.blocks() if block.maker.kind == BlockKind.FRAMES]
    frames = FrameColumns.concatenate([decode_frames(block.maker, block.raw_body()) for block in blocks])
    parts = [np.arange(block.maker.seqs.start, block.maker.seqs.stop) for block in blocks]
    return frames, np.concatenate(parts) if parts else np.arange(0)


def _count_by_pgn(frames: FrameColumns) -> dict[str, int]:
    pgns, counts = np.unique(frames.can_ids >> 8 & 0x3FFFF, return_counts=True)
    return {str(pgn): int(count) for pgn, count in zip(pgns.tolist(), counts.tolist(), strict=True)}


def _tell_the_end(story: Story, console: Console, kept_folder: Path | None) -> None:
    console.rule("[bold]What the journal holds")
    table = Table("PGN", "frames", box=None)
    for pgn, count in sorted(story.frames_by_pgn.items(), key=lambda item: -item[1])[:6]:
        table.add_row(pgn, f"{count:,}")
    console.print(table)
    if kept_folder is not None:
        console.print(f"journal kept: look at it with  tidelog log inspect {kept_folder / 'journal'}")
    if story.failures:
        console.print(f"[bold red]failed[/] (seed {story.seed}): " + "; ".join(story.failures))
    else:
        console.print(f"[bold green]all held[/] (seed {story.seed}): every durable frame is there, once, unchanged")
