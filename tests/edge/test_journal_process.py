"""A real process on a real disk, killed with no chance to tidy up."""

from __future__ import annotations

import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tests.edge.recorder import PAYLOAD, can_id
from tests.patience import patient
from tidelog.blocks.frames import decode_frames
from tidelog.blocks.header import BlockKind
from tidelog.edge.journal.journal import open_journal
from tidelog.storage.os_disk import OsDisk

ROOT = Path(__file__).parents[2]
ROUNDS = 3
WAIT_S_MAX = 60
SECOND_US = 1_000_000

Report = tuple[int, int, int]
"""When, head, durable head."""


def reports(process: subprocess.Popen[bytes], deadline_s: float) -> Iterator[Report]:
    """What the recorder says, line by line, until it ends."""
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, "the recorder makes no progress"
            if not selector.select(left_s):
                continue
            data = os.read(process.stdout.fileno(), 65_536)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                now_us, head, durable_head = map(int, line.split())
                yield now_us, head, durable_head


def record_and_kill(folder: Path, number: int, frames: int) -> list[Report]:
    """Let a recorder run until it has recorded this many frames, then kill it; returns all that it said."""
    command = [sys.executable, "-m", "tests.edge.recorder", str(folder), str(number)]
    said: list[Report] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        try:
            for report in reports(process, time.monotonic() + patient(WAIT_S_MAX)):
                said.append(report)
                if report[1] >= said[0][1] + frames and process.poll() is None:
                    process.send_signal(signal.SIGKILL)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    return said


def held_after(folder: Path) -> dict[int, int]:
    """The round of each seq in the journal, after checking that each is there once and as it was recorded."""
    now_us = time.time_ns() // 1000
    journal = open_journal(OsDisk(str(folder)), "journal", now_us=now_us, new_lineage=lambda: os.urandom(16))
    found: dict[int, int] = {}
    for block in journal.blocks():
        if block.maker.kind != BlockKind.FRAMES:
            continue
        assert block.maker.producer == journal.lineage, "the lineage was kept"
        rows = decode_frames(block.maker, block.raw_body()).rows()
        for seq, (_, found_id, payload) in enumerate(rows, start=block.maker.base_seq):
            number, recorded_seq = PAYLOAD.unpack(payload)
            assert (found_id, recorded_seq) == (can_id(seq), seq)
            assert seq not in found, f"seq {seq} is there twice"
            found[seq] = number
    journal.close(now_us)
    return found


def test_a_killed_recorder_loses_at_most_the_last_second_and_never_reuses_a_seq(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    issued_before = 0
    for number in range(ROUNDS):
        said = record_and_kill(tmp_path, number, frames=rng.randrange(2_500, 5_000))
        first = said[0][1] + 1
        assert first > issued_before, f"seed {seed}: seq {first} was issued before"
        issued_before = said[-1][1]
        found = held_after(tmp_path)
        durable = max(report[2] for report in said)
        missing = [seq for seq in range(first, durable + 1) if found.get(seq) != number]
        assert not missing, f"seed {seed}: {len(missing)} durable frames are gone, from {missing[:1]} on"
        # A busy machine may not let the recorder run for a while; it can wake no sooner than it runs.
        stall_us = max(later[0] - earlier[0] for earlier, later in pairwise(said))
        before_us = said[-1][0] - SECOND_US - stall_us
        old = max((head for now_us, head, _ in said if now_us <= before_us), default=0)
        assert all(seq in found for seq in range(first, old + 1)), f"seed {seed}: more than the last second is missing"
        assert durable > first, f"seed {seed}: nothing was durable in round {number}"
