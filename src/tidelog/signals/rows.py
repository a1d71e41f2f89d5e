"""The long table: columns of many groups of frames, interleaved into one row for each frame and field.

What holds:
L1  Rows of a frame stand together, in the order in which its columns were added.
L2  `signal`, `unit` and `text` are dictionaries: a name is written once for a batch.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.signals.columns import Column, Int32s
from tidelog.signals.payloads import Int64s
from tidelog.signals.texts import NO_TEXT, TextPool

TIME: Final = pa.timestamp("us", tz="UTC")
NAMES: Final = pa.dictionary(pa.int32(), pa.string())

SIGNALS_SCHEMA: Final = pa.schema(
    [
        ("channel", pa.string()),
        ("lineage", pa.string()),
        ("seq", pa.int64()),
        ("time", TIME),
        ("clock", pa.string()),
        ("source", pa.int16()),
        ("device", pa.string()),
        ("pgn", pa.int32()),
        ("instance", pa.int32()),
        ("signal", pa.string()),
        ("value", pa.float64()),
        ("unit", pa.string()),
        ("text", pa.string()),
    ]
)
"""As tables have it. `decode_signals` gives its strings as dictionaries of them; `plain` makes them plain."""

DICTIONARY_SCHEMA: Final = pa.schema(
    [(item.name, NAMES if pa.types.is_string(item.type) else item.type) for item in SIGNALS_SCHEMA]
)

_SLAB_ROW_BYTES: Final = 80
"""All columns of a row, those included that are only needed on the way."""
_SLAB_COLUMNS: Final = 20
_ALIGNMENT: Final = 64

KEPT_PIECES_MAX: Final = 2
KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bounds what a thread holds between batches; larger pieces go back to the system."""

_PASSED: Final = ("channel", "lineage", "clock", "device")


def plain(signals: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with plain strings, for readers that know no dictionaries."""
    return signals.cast(SIGNALS_SCHEMA)


class SignalRows:
    """Collects the columns of groups, then lays all of them out."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._counts = np.zeros(batch.num_rows, dtype=np.int64)
        self._groups: list[tuple[Int64s, list[Column]]] = []
        self._instances: Int32s | None = None

    def add(self, members: Int64s, columns: list[Column], instances: Int32s | None) -> None:
        """Columns of the frames `members`; no frame is in two groups."""
        if instances is not None:
            if self._instances is None:
                self._instances = np.full(self._batch.num_rows, -1, dtype=np.int32)
            self._instances[members] = instances
        whole = sum(column.rows is None for column in columns)
        if whole == len(columns):
            self._counts[members] = whole
        else:
            counts = np.full(len(members), whole, dtype=np.int64)
            for column in columns:
                if column.rows is not None:
                    counts[column.rows] += 1
            self._counts[members] = counts
        self._groups.append((members, columns))

    def to_arrow(self, pool: TextPool) -> pa.RecordBatch:
        """All rows, in the order of the frames (L1)."""
        ends = np.cumsum(self._counts)
        total = int(ends[-1]) if len(ends) else 0
        starts = ends - self._counts
        slab = Slab(total)
        frame_of_row = _frame_of_row(self._counts, starts, slab)
        cells = _Cells(starts, slab)
        for members, columns in self._groups:
            cells.add(members, columns)
        signals, values, texts, units = cells.signals, cells.values, cells.texts, cells.units
        unit_names = sorted({unit for unit in units if unit is not None})
        unit_numbers = np.array(
            [-1 if unit is None else unit_names.index(unit) for unit in units] or [-1], dtype=np.int32
        )
        built = {
            "seq": self._repeated("seq", np.int64, frame_of_row, slab),
            "time": self._repeated("time", np.int64, frame_of_row, slab),
            "source": self._repeated("source", np.int16, frame_of_row, slab),
            "pgn": self._repeated("pgn", np.int32, frame_of_row, slab),
            "instance": self._instance_column(frame_of_row, slab),
            "signal": _dictionary(slab.filled(np.int32, signals), cells.names, valid=None),
            "value": _fixed(pa.float64(), values, ~np.isnan(values)),
            "unit": _named(slab.taken(unit_numbers, signals), unit_names),
            "text": _named(texts, pool.texts()),
        }
        for name in _PASSED:
            built[name] = self._passed_on(name, frame_of_row, slab)
        return pa.RecordBatch.from_arrays([built[name] for name in DICTIONARY_SCHEMA.names], schema=DICTIONARY_SCHEMA)

    def _repeated(self, name: str, dtype: npt.DTypeLike, frame_of_row: Int64s, slab: Slab) -> pa.Array:
        column = self._batch.column(name)
        wanted = DICTIONARY_SCHEMA.field(name).type
        if column.type != wanted:
            column = column.cast(wanted)
        if column.null_count:
            return column.take(pa.array(frame_of_row))
        numbers = np.frombuffer(column.buffers()[1], dtype=dtype)[column.offset : column.offset + len(column)]
        return _fixed(wanted, slab.taken(numbers, frame_of_row), None)

    def _instance_column(self, frame_of_row: Int64s, slab: Slab) -> pa.Array:
        if self._instances is None:
            return pa.nulls(slab.rows, pa.int32())
        instances = slab.taken(self._instances, frame_of_row)
        return _fixed(pa.int32(), instances, instances >= 0)

    def _passed_on(self, name: str, frame_of_row: Int64s, slab: Slab) -> pa.Array:
        if name not in self._batch.schema.names:
            return slab.constant(None)
        column = self._batch.column(name)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        names = column.dictionary.cast(pa.string())
        # One name for all, as nearly always: the numbers are zeros that all such columns share.
        if len(names) == 1 and not column.null_count:
            return slab.constant(names)
        numbers = column.indices.cast(pa.int32()).fill_null(-1).to_numpy(zero_copy_only=False)
        if len(numbers) and bool((numbers == numbers[0]).all()):
            return slab.constant(names.slice(int(numbers[0]), 1) if numbers[0] >= 0 else None)
        return _named(slab.taken(numbers, frame_of_row), names)


class _Cells:
    """Values, texts and signals of all rows, written group by group.

    Where all frames of a group have all of its columns, the cells of a frame are written together: memory is then
    walked through once and in order, which is three times as fast as once for each column. Columns of other groups
    are written one by one.
    """

    def __init__(self, starts: Int64s, slab: Slab) -> None:
        self._starts = starts
        self._numbers: dict[str, int] = {}
        self.values: npt.NDArray[np.float64] = slab.array(np.float64)
        self.values.fill(np.nan)
        self.texts: Int32s = slab.array(np.int32)
        self.texts.fill(NO_TEXT)
        self.signals: Int64s = slab.array(np.int64)
        self.units: list[str | None] = []

    @property
    def names(self) -> list[str]:
        """Signals by number."""
        return list(self._numbers)

    def add(self, members: Int64s, columns: list[Column]) -> None:
        numbers = [self._number(column) for column in columns]
        starts = self._starts.take(members)
        if columns and all(column.rows is None for column in columns):
            self._add_together(starts, numbers, columns)
        else:
            self._add_one_by_one(starts, numbers, columns)

    def _add_together(self, starts: Int64s, numbers: list[int], columns: list[Column]) -> None:
        at = starts[:, None] + np.arange(len(columns))
        # Flat, as numpy has a faster way for that.
        flat = at.reshape(-1)
        self.signals[flat] = np.tile(np.array(numbers), len(starts))
        values = np.empty(at.shape)
        for place, column in enumerate(columns):
            column.write_values(values[:, place])
        self.values[flat] = values.reshape(-1)
        for place, column in enumerate(columns):
            if column.texts is not None:
                self.texts[at[:, place]] = column.texts

    def _add_one_by_one(self, starts: Int64s, numbers: list[int], columns: list[Column]) -> None:
        for number, column in zip(numbers, columns, strict=True):
            at = starts if column.rows is None else starts.take(column.rows)
            self.signals[at] = number
            values = np.empty(len(at))
            column.write_values(values)
            self.values[at] = values
            if column.texts is not None:
                self.texts[at] = column.texts
            if column.rows is None:
                starts += 1
            else:
                starts[column.rows] += 1

    def _number(self, column: Column) -> int:
        number = self._numbers.setdefault(column.signal, len(self._numbers))
        if number == len(self.units):
            self.units.append(column.unit)
        return number


class Slab:
    """One piece of memory for the columns of a batch.

    Getting pages from the system would cost a third of the time of decoding. So a piece is kept, and taken again
    once nobody holds a column of it any more: who writes one batch and then decodes the next gets warm memory.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._memory = _memory(rows * _SLAB_ROW_BYTES + _SLAB_COLUMNS * _ALIGNMENT)
        self._used = 0
        self._zeros: pa.Buffer | None = None

    def array(self, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A column, not filled."""
        size = self.rows * np.dtype(dtype).itemsize
        start = self._used
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        assert self._used <= len(self._memory), "the slab has room for all columns"
        return self._memory[start : start + size].view(dtype)

    def filled(self, dtype: npt.DTypeLike, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        column = self.array(dtype)
        column[:] = values
        return column

    def taken(self, numbers: npt.NDArray[Any], places: Int64s) -> npt.NDArray[Any]:
        # Places of numpy's own width, and a mode that needs no check: anything else costs ten times as much.
        return numbers.take(places, out=self.array(numbers.dtype), mode="clip")

    def constant(self, name: pa.Array | None) -> pa.Array:
        """A dictionary column with one name, or none, in all rows; all such columns share their numbers."""
        if self._zeros is None:
            self._zeros = pa.py_buffer(self.filled(np.int32, np.zeros(1, dtype=np.int32)))
        bitmap = None if name is not None else pa.py_buffer(np.zeros(-(-self.rows // 8), dtype=np.uint8))
        numbers = pa.Array.from_buffers(pa.int32(), self.rows, [bitmap, self._zeros])
        names = pa.array([], pa.string()) if name is None else name
        return pa.DictionaryArray.from_arrays(numbers, names, safe=False)


_kept = threading.local()


def _memory(size: int) -> npt.NDArray[np.uint8]:
    """At least `size` bytes that nobody uses. A thread keeps the last few pieces it was given."""
    pieces: list[npt.NDArray[np.uint8]] = _kept.__dict__.setdefault("pieces", [])
    for place in range(len(pieces)):
        # Two references are the list's and the call's; every column that somebody holds is one more.
        if len(pieces[place]) >= size and sys.getrefcount(pieces[place]) == 2:
            return pieces[place]
    memory = np.empty(size + size // 4, dtype=np.uint8)
    if len(memory) <= KEPT_BYTES_MAX:
        pieces.append(memory)
        del pieces[:-KEPT_PIECES_MAX]
    return memory


def _frame_of_row(counts: Int64s, starts: Int64s, slab: Slab) -> Int64s:
    """Which frame each row is of; frames without rows are passed over."""
    steps = slab.array(np.int64)
    steps.fill(0)
    if len(counts) and int(counts.min()) > 0:
        steps[starts[1:]] = 1
    else:
        having = np.flatnonzero(counts)
        steps[starts[having]] = np.diff(having, prepend=0)
    return np.cumsum(steps, out=steps)


def _fixed(kind: pa.DataType, values: npt.NDArray[np.generic], valid: npt.NDArray[np.bool] | None) -> pa.Array:
    bitmap = None
    if valid is not None and not valid.all():
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(values)])


def _named(numbers: Int32s, names: list[str] | pa.Array) -> pa.Array:
    """-1 is no name."""
    return _dictionary(numbers, names, valid=numbers >= 0)


def _dictionary(numbers: Int32s, names: list[str] | pa.Array, *, valid: npt.NDArray[np.bool] | None) -> pa.Array:
    if valid is not None and not valid.all():
        # Readers may look at the number of a null.
        numbers = np.maximum(numbers, 0, out=numbers)
    indices = _fixed(pa.int32(), numbers, valid)
    names = names if isinstance(names, pa.Array) else pa.array(names, pa.string())
    return pa.DictionaryArray.from_arrays(indices, names, safe=False)
