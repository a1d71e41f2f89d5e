"""Whether what clients were told and what lies on the disks agree: invariants 1, 2, 4, 6 of design.md section 10."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from tests.cluster.chaos_load import Seen, Sent, sender_of
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.recovery import open_store

Records = Sequence[tuple[int, bytes]]
"""Offsets and values, in the order of the log."""


def record_violations(
    sent: Iterable[Sent], held: Records, *, log_start: int = 0, lost_before_ms: int = 0
) -> Iterator[str]:
    """Every acked record is there, once, where it was said to be; refused ones are not; each stream is in order.

    Records below `log_start` were trimmed; acks from before `lost_before_ms` are void (an unclean election).
    """
    places: dict[tuple[str, int], int] = {}
    newest: dict[str, int] = {}
    for offset, value in held:
        stream, number = sender_of(value)
        if (stream, number) in places:
            yield f"{stream}:{number} is at {places[stream, number]} and again at {offset}"
        elif number <= newest.get(stream, 0):
            yield f"{stream}:{number} at {offset} comes after {newest[stream]}"
        places[stream, number] = offset
        newest[stream] = max(newest.get(stream, 0), number)
    known = set()
    for one in sent:
        known.add((one.stream, one.number))
        place = places.get((one.stream, one.number))
        if one.outcome == "refused" and place is not None:
            yield f"{one.stream}:{one.number} was certainly refused and is at {place}"
        if one.outcome != "acked" or one.answered_ms < lost_before_ms:
            continue
        if place is None and one.offset >= log_start:
            yield f"{one.stream}:{one.number} was acknowledged at {one.offset} and is gone"
        elif place is not None and place != one.offset:
            yield f"{one.stream}:{one.number} was acknowledged at {one.offset} and is at {place}"
    for stream, number in places:
        if (stream, number) not in known:
            yield f"{stream}:{number} was never sent"


def reader_violations(seen: Seen, held: Records, *, is_lossy: bool = False) -> Iterator[str]:
    """A reader was given each committed record once, in order, and nothing else."""
    for (before, _), (after, _) in pairwise(seen.records):
        if after <= before:
            yield f"the {seen.name} reader of {seen.channel} was given {after} after {before}"
    if is_lossy:
        return  # what it saw before an unclean election may be gone, and it was told so
    values = dict(held)
    first = held[0][0] if held else 0
    given = dict(seen.records)
    for offset, value in seen.records:
        if offset >= first and values.get(offset) != value:
            yield f"the {seen.name} reader of {seen.channel} was given at {offset} what is not there any more"
    if not seen.skips:
        missing = [offset for offset in values if offset not in given]
        if missing:
            yield f"the {seen.name} reader of {seen.channel} was not given {len(missing)} records, first {missing[0]}"


def log_on_disk(data: Path, channel: str, *, end: int) -> dict[int, bytes]:
    """The blocks of a stopped node's channel below `end`: first offset to bytes, every block verified."""
    store = open_store(OsDisk(data), now_us=wall_clock_us())
    try:
        log = store.open_channel(store.channels[channel], wall_clock_us())
        return {
            block.offsets.start: block.tobytes() for block in log.blocks(log.log_start) if block.offsets.start < end
        }
    finally:
        store.close(wall_clock_us())


def replica_violations(channel: str, logs: Mapping[str, Mapping[int, bytes]], *, end: int) -> Iterator[str]:
    """All replicas hold the same bytes, from where the latest of them begins up to the committed end."""
    starts = {name: min(blocks, default=end) for name, blocks in logs.items()}
    start = max(starts.values())
    (first, expected), *others = [
        (name, {offset: data for offset, data in blocks.items() if offset >= start}) for name, blocks in logs.items()
    ]
    for name, blocks in others:
        if blocks == expected:
            continue
        wrong = min(offset for offset in {*blocks, *expected} if blocks.get(offset) != expected.get(offset))
        yield (
            f"{channel}: {first} and {name} differ at {wrong} "
            f"({len(expected)} and {len(blocks)} blocks from {start} to {end}, starts {starts})"
        )
