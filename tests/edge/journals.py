"""A journal on a simulated disk, and what tests ask about it. Times are microseconds of a virtual clock."""

from __future__ import annotations

import random
from typing import Any

from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.control import ControlRecord, decode_control
from tidelog.blocks.frames import decode_frames
from tidelog.blocks.header import BlockKind
from tidelog.edge.journal.journal import Journal, JournalOptions, open_journal
from tidelog.sim.disk import SimDisk
from tidelog.storage.disk import Disk

START_US = 1_750_000_000_000_000
SECOND_US = 1_000_000
FOLDER = "boat"

Frame = tuple[int, int, bytes]


def new_disk(seed: int = 0) -> SimDisk:
    return SimDisk(random.Random(seed))


def opened(disk: Disk, now_us: int = START_US, **options: Any) -> Journal:
    """Open the journal of `disk`; small segments and no reserve unless the test says otherwise."""
    options = {"reserve_bytes": 0, "lease_seqs": 100, **options}
    lineages = random.Random(f"lineages {now_us}")
    return open_journal(
        disk,
        FOLDER,
        now_us=now_us,
        new_lineage=lambda: lineages.randbytes(16),
        options=JournalOptions(**options),
    )


def frame(number: int, length: int = 8) -> Frame:
    """The frame of this number: like a real bus, few ids and payloads that change slowly."""
    payload = (number.to_bytes(8, "little") * (length // 8 + 1))[:length]
    return START_US + 500 * number, 0x09F80100 + number % 7, payload


def frames(numbers: range, length: int = 8) -> FrameColumns:
    return FrameColumns.from_rows(frame(number, length) for number in numbers)


def record(journal: Journal, numbers: range, now_us: int = START_US) -> list[int]:
    return [journal.record(*frame(number), now_us) for number in numbers]


def held(journal: Journal, lineage: bytes | None = None) -> list[tuple[int, Frame]]:
    """Every (seq, frame) in the order of offsets; damaged parts are left out."""
    return [
        (block.maker.base_seq + row, found)
        for block in journal.blocks(producer=lineage or journal.lineage, skip_damaged=True)
        if block.maker.kind == BlockKind.FRAMES
        for row, found in enumerate(decode_frames(block.maker, block.raw_body()).rows())
    ]


def expected(numbers: range, first_seq: int | None = None) -> list[tuple[int, Frame]]:
    """What `held` finds when the frames of these numbers got these seqs (their own numbers if not said)."""
    shift = 0 if first_seq is None else first_seq - numbers.start
    return [(number + shift, frame(number)) for number in numbers]


def controls(journal: Journal) -> list[ControlRecord]:
    return [
        item
        for block in journal.blocks(skip_damaged=True)
        if block.maker.kind == BlockKind.CONTROL
        for item in decode_control(block.maker, block.raw_body())
    ]


def segments(disk: SimDisk, part: str) -> list[str]:
    folder = f"{FOLDER}/{part}"
    return [f"{folder}/{name}" for name in disk.list_folder(folder) if name.endswith(".seg")]
