"""A count and a checksum per stretch of frames: two places that agree on them hold the same frames.

A frame is hashed with its place (its seq, or its offset where it has none), so the sum over a stretch does not depend
on the order in which the frames came: a journal has them by seq, a log as they arrived, a table by file. Each frame
that is missing, doubled or different changes the sum; a doubled one changes the count too.

This is no defence against a deliberate collision: blocks have their own checksums, and transport has TLS. It finds bugs
of Tidelog.

FP1  The same frames give the same rows, however they are cut into batches and in whatever order they come.
FP2  No step of Python per frame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

STRETCH_BITS: Final = 16
"""Places are compared by stretches of 65,536."""

FINGERPRINT_SCHEMA: Final = pa.schema(
    [
        ("channel", pa.string()),
        ("lineage", pa.string()),  # null: the places are offsets
        ("stretch", pa.int64()),
        ("frames", pa.int64()),
        ("checksum", pa.int64()),
        ("last", pa.int64()),  # the largest place of the stretch that has a frame
    ]
)

HASH_SCHEMA: Final = pa.schema(
    [("channel", pa.string()), ("lineage", pa.string()), ("place", pa.int64()), ("hash", pa.int64())]
)

_UInt64s = npt.NDArray[np.uint64]
_FACTOR: Final = 0x9E3779B97F4A7C15
"""Odd, so no power of it is 0 modulo 2**64."""
_WORD_BYTES: Final = 8
_BROADCAST_FROM: Final = 0xF0
"""From this PDU format on the low byte of a PGN is its own; below, it is the destination."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameArrays:
    """The frames of one channel and lineage, as they come."""

    places: _UInt64s
    times_us: npt.NDArray[np.int64]
    can_ids: npt.NDArray[np.uint32]
    payload_offsets: npt.NDArray[np.int64]
    payload: npt.NDArray[np.uint8]


def fingerprints(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows for a batch in the layout of the table `frames`: one per channel, lineage and stretch."""
    rows: list[dict[str, Any]] = []
    for channel, lineage, frames in _groups(batch):
        stretches, counts, sums, lasts = stretch_sums(frames)
        rows.extend(
            {
                "channel": channel,
                "lineage": lineage,
                "stretch": int(stretch),
                "frames": int(count),
                "checksum": int(total),
                "last": int(last),
            }
            for stretch, count, total, last in zip(stretches, counts, sums.view(np.int64), lasts, strict=True)
        )
    return pa.RecordBatch.from_pylist(rows, schema=FINGERPRINT_SCHEMA)


def hashes(batch: pa.RecordBatch, stretches: Collection[tuple[str, str | None, int]]) -> pa.RecordBatch:
    """Place and hash of each frame of a batch that lies in one of these stretches."""
    parts: list[pa.RecordBatch] = []
    for channel, lineage, frames in _groups(batch):
        wanted = [stretch for name, of, stretch in stretches if (name, of) == (channel, lineage)]
        inside = np.isin(frames.places >> np.uint64(STRETCH_BITS), np.array(wanted, dtype=np.uint64))
        count = int(inside.sum())
        columns = [
            pa.repeat(pa.scalar(channel, pa.string()), count),
            pa.repeat(pa.scalar(lineage, pa.string()), count),
            pa.array(frames.places[inside].view(np.int64)),
            pa.array(frame_hashes(frames)[inside].view(np.int64)),
        ]
        parts.append(pa.RecordBatch.from_arrays(columns, schema=HASH_SCHEMA))
    return pa.concat_batches(parts) if parts else HASH_SCHEMA.empty_table().combine_chunks().to_batches()[0]


def _groups(batch: pa.RecordBatch) -> Iterator[tuple[str, str | None, FrameArrays]]:
    """The frames of each channel and lineage by themselves."""
    channels, lineages = pc.dictionary_encode(batch.column("channel")), pc.dictionary_encode(batch.column("lineage"))
    width = len(lineages.dictionary) + 1
    channel_codes = channels.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    lineage_codes = pc.fill_null(lineages.indices, width - 1).to_numpy(zero_copy_only=False)
    codes = channel_codes * width + lineage_codes
    present = np.unique(codes)
    names = [*lineages.dictionary.to_pylist(), None]
    for code in present:
        chosen = batch.filter(pa.array(codes == code)) if len(present) > 1 else batch
        channel, lineage = divmod(int(code), width)
        yield channels.dictionary[channel].as_py(), names[lineage], _arrays(chosen)


def stretch_sums(frames: FrameArrays) -> tuple[_UInt64s, npt.NDArray[np.int64], _UInt64s, _UInt64s]:
    """Stretches that hold frames, how many, their checksums and last places; sums wrap modulo 2**64."""
    hashes = frame_hashes(frames)
    stretches = frames.places >> np.uint64(STRETCH_BITS)
    order = np.argsort(stretches, kind="stable")
    ordered = stretches[order]
    begins = np.ones(len(ordered), dtype=np.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(ordered))[: len(starts)]
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes[order], dtype=np.uint64)])
    lasts: _UInt64s = np.maximum.reduceat(frames.places[order], starts) if len(starts) else ordered
    return ordered[starts], (ends - starts).astype(np.int64), running[ends] - running[starts], lasts


def frame_hashes(frames: FrameArrays) -> _UInt64s:
    """64 bits per frame, of its place, time, id, length and bytes."""
    lengths = np.diff(frames.payload_offsets)
    of_bytes = np.zeros(len(lengths), dtype=np.uint64)
    is_word = lengths == _WORD_BYTES
    of_bytes[is_word] = _words(frames, is_word)
    of_bytes[~is_word] = _sums_of_bytes(frames, ~is_word)
    hashes = _mixed(frames.places)
    hashes = _mixed(hashes ^ frames.times_us.view(np.uint64))
    hashes = _mixed(hashes ^ (frames.can_ids.astype(np.uint64) | lengths.astype(np.uint64) << np.uint64(32)))
    return _mixed(hashes ^ of_bytes)


def _words(frames: FrameArrays, chosen: npt.NDArray[np.bool]) -> _UInt64s:
    """The bytes of eight-byte frames, nearly all of a bus, as one number each."""
    starts = frames.payload_offsets[:-1][chosen]
    payload = frames.payload
    if len(starts) and int(starts[-1]) - int(starts[0]) == _WORD_BYTES * (len(starts) - 1):
        laid = np.ascontiguousarray(payload[starts[0] : starts[-1] + _WORD_BYTES])
    else:
        laid = payload[starts[:, None] + np.arange(_WORD_BYTES)]
    words: _UInt64s = laid.reshape(-1).view("<u8")
    return words


def _sums_of_bytes(frames: FrameArrays, chosen: npt.NDArray[np.bool]) -> _UInt64s:
    """The hash of frames of any length: each byte is weighted by its place; one is added, so that a zero byte
    counts."""
    starts = frames.payload_offsets[:-1][chosen]
    lengths = np.diff(frames.payload_offsets)[chosen]
    ends = np.cumsum(lengths)
    within = np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
    payload = frames.payload[np.repeat(starts, lengths) + within]
    weighed = (payload.astype(np.uint64) + np.uint64(1)) * _powers(int(lengths.max(initial=0)))[within]
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(weighed, dtype=np.uint64)])
    sums: _UInt64s = running[ends] - running[ends - lengths]
    return sums


def _powers(count: int) -> _UInt64s:
    powers = np.full(count, _FACTOR, dtype=np.uint64)
    return np.multiply.accumulate(powers) if count else powers


def _mixed(bits: _UInt64s) -> _UInt64s:
    """Every bit of the result depends on every bit of the input (the finisher of splitmix64)."""
    bits = bits + np.uint64(_FACTOR)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _arrays(batch: pa.RecordBatch) -> FrameArrays:
    """One channel's and one lineage's frames, as the table has them."""
    places = batch.column("offset") if batch.column("lineage").null_count else batch.column("seq")
    data = batch.column("data")
    buffers = data.buffers()
    offsets = np.frombuffer(buffers[1], dtype=np.int32, count=len(data) + 1 + data.offset)[data.offset :]
    payload = np.frombuffer(buffers[2], dtype=np.uint8) if buffers[2] is not None else np.zeros(0, np.uint8)
    return FrameArrays(
        places=_numbers(places, np.uint64),
        times_us=_numbers(batch.column("time").cast(pa.int64()), np.int64),
        can_ids=_can_ids(batch),
        payload_offsets=offsets.astype(np.int64),
        payload=payload,
    )


def _can_ids(batch: pa.RecordBatch) -> npt.NDArray[np.uint32]:
    """The 29-bit ids of the bus, rebuilt from the columns."""
    priority, pgn, source, destination = (
        _numbers(batch.column(name), np.uint32) for name in ("priority", "pgn", "source", "destination")
    )
    is_addressed = (pgn >> np.uint32(8) & np.uint32(0xFF)) < _BROADCAST_FROM
    to = np.where(is_addressed, destination, np.uint32(0))
    joined: npt.NDArray[np.uint32] = priority << np.uint32(26) | (pgn | to) << np.uint32(8) | source
    return joined


def _numbers(column: pa.Array, kind: type[np.generic]) -> Any:
    return column.to_numpy(zero_copy_only=False).astype(kind)
