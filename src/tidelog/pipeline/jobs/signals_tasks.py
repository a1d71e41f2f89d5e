"""A task of the signals job: new files of `frames` of some channels, decoded and written by day.

Runs in Spark's Python workers and knows nothing of Spark. Frames come in the order of their offsets, some hundred
thousand at a time. Within such a slice they are put into the order of their seqs, lineage by lineage: late frames of a
backfill are in their right place within the slice, and `signals_state` connects slices.

JST1  Every frame gives signals or is counted with a reason, in this step or, for a message cut in two by its end, in
     the step that sees the rest.
JST2  The same files from the same state give the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.errors import HistoryGone
from tidelog.pipeline.jobs.clock_shifts import shifted_ranges
from tidelog.pipeline.jobs.signals_state import ChannelState, LineageState, SignalStretch, load_state, save_state
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT, SIGNALS_LAYOUT
from tidelog.pipeline.tables.parquet_files import PartitionedWriter, constant
from tidelog.pipeline.tables.reading import fitted
from tidelog.pipeline.tables.table import DataFile
from tidelog.signals.clocks import GpsTimes, gps_times, place_times
from tidelog.signals.decode import decode_signals
from tidelog.signals.devices import devices
from tidelog.signals.reassembly import INCOMPLETE, reassemble

SLICE_ROWS: Final = 1 << 18
_DAY_US: Final = 86_400 * 1_000_000
_TIME: Final = pa.timestamp("us", tz="UTC")
_GPS_PGNS: Final = (126992, 129029, 129033)
_READ: Final = (
    "lineage",
    "seq",
    "offset",
    "time",
    "pgn",
    "source",
    "destination",
    "data",
    "path",
    "append_time",
)
_READ_SCHEMA: Final = pa.schema([FRAMES_LAYOUT.schema.field(name) for name in _READ])


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFrames:
    """The new files of a channel, in the order of their offsets."""

    channel: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalsOrder:
    """One task. Pickled."""

    pipeline: str
    channels: tuple[ChannelFrames, ...]
    folder: str
    """The folder of the table `signals`."""
    start: int | None
    """The version of `frames` that is decoded, and the one that will be."""
    end: int


@dataclass(slots=True, kw_only=True)
class SignalsWritten:
    """The result of a task."""

    files: list[DataFile] = field(default_factory=list)
    undecoded: Counter[tuple[str, date, int, str]] = field(default_factory=Counter)
    """Frames by channel, day, PGN and reason."""
    devices: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table `devices`, one or more for a NAME and source."""
    clocks: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table `clock_shifts`."""
    frames: int = 0


def write_signals(order: SignalsOrder) -> SignalsWritten:
    """Decode the channels of one task, each from its stored state; writes its next state."""
    written = SignalsWritten()
    folder = Path(order.folder)
    for frames in order.channels:
        state = load_state(folder, order.pipeline, frames.channel, order.start)
        with PartitionedWriter(folder, SIGNALS_LAYOUT) as writer:
            decoder = ChannelDecoder(frames.channel, state, writer, written)
            for rows in _slices(frames.paths, SLICE_ROWS):
                decoder.take(rows)
            written.files += writer.close()
        save_state(folder, order.pipeline, frames.channel, state, before=order.start, version=order.end)
    return written


class ChannelDecoder:
    """Frames of one channel, slice by slice, into a writer of `signals`."""

    def __init__(self, channel: str, state: ChannelState, writer: PartitionedWriter, written: SignalsWritten) -> None:
        self._channel = channel
        self._state = state
        self._writer = writer
        self._written = written

    def take(self, rows: pa.RecordBatch) -> None:
        self._written.frames += rows.num_rows
        for lineage, frames in _by_lineage(rows):
            state = self._state.lineage(lineage)
            self._decode(lineage, self._with_tail(_in_seq_order(frames), state), state)

    def _with_tail(self, frames: pa.RecordBatch, state: LineageState) -> pa.RecordBatch:
        """The frames, with what the last slice left open before them if they go on there."""
        if state.tail is None:
            return frames
        first, last = frames.column("seq")[0].as_py(), frames.column("seq")[-1].as_py()
        if last < state.tail_next_seq:
            return frames  # older frames, late: the rest of the open messages may still come
        tail, state.tail = state.tail, None
        if first > state.tail_next_seq:
            self._count_tail(tail)  # the rest is missing for now; if it comes later it is not reassembled
            return frames
        joined = pa.Table.from_batches([tail.cast(frames.schema), frames]).combine_chunks().to_batches()[0]
        return _in_seq_order(joined)

    def _decode(self, lineage: str | None, frames: pa.RecordBatch, state: LineageState) -> None:
        found = reassemble(frames, state.assembly)
        seqs = frames.column("seq")
        first_seq, last_seq = seqs[0].as_py(), seqs[-1].as_py()
        incomplete = Counter(dict(found.incomplete))
        if found.open_tail.num_rows and (state.tail is None or last_seq >= state.tail_next_seq):
            state.tail, state.tail_next_seq = found.open_tail, last_seq + 1
            incomplete.subtract(found.open_tail.column("pgn").to_pylist())
        whole = found.whole
        if not whole.num_rows:
            self._count(incomplete, INCOMPLETE, frames.column("append_time")[0].as_py().date())
            return
        placed = self._placed(whole, state, first_seq, last_seq)
        whose = {"channel": self._channel, "lineage": lineage}
        self._written.clocks += [whose | one for one in shifted_ranges(frames, whole, placed)]
        times_us = placed.column("time").cast(pa.int64()).to_numpy()
        self._count(incomplete, INCOMPLETE, _day(int(times_us[0])))
        known = devices(placed, state.known_at(first_seq))
        self._written.devices += known.table.to_pylist()
        state.add_claims(last_seq, known.known)
        state.add_stretch(
            SignalStretch(first_seq=first_seq, last_seq=last_seq, start_us=int(times_us[0]), end_us=int(times_us[-1]))
        )
        placed = placed.append_column("device", known.device)
        for day, rows in _by_day(placed, times_us):
            self._write(lineage, day, rows)

    def _placed(self, whole: pa.RecordBatch, state: LineageState, first_seq: int, last_seq: int) -> pa.RecordBatch:
        """With corrected times, and what was done to them."""
        # Live frames were on the bus just now: the leader's clock is better than the time at which the boat was last
        # heard.
        is_live = whole.column("path")[-1].as_py() == "live"
        placed = place_times(
            whole.column("time").cast(pa.int64()).to_numpy(),
            whole.column("append_time").cast(pa.int64()).to_numpy(),
            _said_by_gps(whole),
            previous_end_us=None if is_live else state.end_before(first_seq),
            next_start_us=state.start_after(last_seq),
        )
        times = pa.array(placed.times_us).view(_TIME)
        rows = whole.num_rows
        return (
            whole.set_column(whole.schema.get_field_index("time"), "time", times)
            .append_column("clock", placed.clock_column())
            .append_column("channel", constant(self._channel, pa.string(), rows))
        )

    def _write(self, lineage: str | None, day: date, rows: pa.RecordBatch) -> None:
        rows = rows.set_column(
            rows.schema.get_field_index("lineage"), "lineage", constant(lineage, pa.string(), rows.num_rows)
        )
        decoded = decode_signals(rows)
        for one in decoded.undecoded:
            self._written.undecoded[self._channel, day, one.pgn, one.reason] += one.frames
        signals = decoded.signals
        if not signals.num_rows:
            return
        if lineage is None:
            # Its frames have no seqs; offsets stood in for them.
            place = signals.schema.get_field_index("seq")
            signals = signals.set_column(place, "seq", pa.nulls(signals.num_rows, pa.int64()))
        signals = signals.append_column("day", constant(day, pa.date32(), signals.num_rows))
        self._writer.write(signals, (day.isoformat(), self._channel))

    def _count_tail(self, tail: pa.RecordBatch) -> None:
        day = tail.column("append_time")[0].as_py().date()
        self._count(Counter(tail.column("pgn").to_pylist()), INCOMPLETE, day)

    def _count(self, frames: Mapping[int, int], reason: str, day: date) -> None:
        for pgn, count in frames.items():
            if count > 0:
                self._written.undecoded[self._channel, day, pgn, reason] += count


def _said_by_gps(whole: pa.RecordBatch) -> GpsTimes:
    """`gps_times` of the frames with a time, by their indexes in `whole`."""
    places = np.flatnonzero(np.isin(whole.column("pgn").to_numpy(), _GPS_PGNS))
    found = gps_times(whole.select(["pgn", "data"]).take(pa.array(places)))
    return GpsTimes(places[found.frames], found.times_us)


# --- slices ----------------------------------------------------------------------------------------


def _slices(paths: Sequence[str], rows_max: int) -> Iterator[pa.RecordBatch]:
    """The rows of the files, in their order, some at a time."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for path in paths:
        for batch in _batches(path):
            held.append(batch)
            rows += batch.num_rows
            if rows >= rows_max:
                yield _joined(held)
                held, rows = [], 0
    if held:
        yield _joined(held)


def _batches(path: str) -> Iterator[pa.RecordBatch]:
    try:
        source = pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise HistoryGone(table="frames", version=-1, problem=f"{path} was swept before it was decoded") from error
    with source:
        for batch in source.iter_batches(1 << 16, columns=list(_READ)):
            yield fitted(batch, _READ_SCHEMA, {})


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _by_lineage(rows: pa.RecordBatch) -> Iterator[tuple[str | None, pa.RecordBatch]]:
    lineages = pc.dictionary_encode(rows.column("lineage"), null_encoding="encode")
    if len(lineages.dictionary) == 1:
        yield lineages.dictionary[0].as_py(), rows
        return
    codes = lineages.indices.to_numpy()
    for code, lineage in enumerate(lineages.dictionary.to_pylist()):
        yield lineage, rows.filter(pa.array(codes == code))


def _in_seq_order(frames: pa.RecordBatch) -> pa.RecordBatch:
    """Sorted by seq; frames without one by offset, which then stands in for it."""
    seqs = frames.column("seq")
    if seqs.null_count:
        seqs = pc.coalesce(seqs, frames.column("offset"))
        frames = frames.set_column(frames.schema.get_field_index("seq"), "seq", seqs)
    numbers = seqs.to_numpy()
    if (np.diff(numbers) >= 0).all():
        return frames
    return frames.take(pa.array(np.argsort(numbers, kind="stable")))


def _by_day(frames: pa.RecordBatch, times_us: Any) -> Iterator[tuple[date, pa.RecordBatch]]:
    days = times_us // _DAY_US
    distinct = np.unique(days)
    for day in distinct.tolist():
        yield _day(day * _DAY_US), frames if len(distinct) == 1 else frames.filter(pa.array(days == day))


def _day(time_us: int) -> date:
    return datetime.fromtimestamp(time_us // 1_000_000, UTC).date()
