"""The long table: columns of many groups of frames, one behind the other, with a row for each frame and field.

A signal's rows stand together, so everything is copied in long runs and nothing is moved again. It serves the tables
too: a file is mostly runs of one name, and a query for one signal skips the pages of the others.

Invariants:
SR1  Rows come in the order in which columns were added, those of a column in the order of its frames.
SR2  `signal`, `unit` and `text` are dictionaries: a name is written once for a batch.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
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
        ("destination", pa.int16()),
        ("device", pa.string()),
        ("pgn", pa.int32()),
        ("instance", pa.int32()),
        ("signal", pa.string()),
        ("value", pa.float64()),
        ("unit", pa.string()),
        ("text", pa.string()),
    ]
)
"""The schema of the tables. `decode_signals` gives its strings as dictionaries of them; `plain` makes them plain."""

DICTIONARY_SCHEMA: Final = pa.schema(
    [(item.name, NAMES if pa.types.is_string(item.type) else item.type) for item in SIGNALS_SCHEMA]
)

_SLAB_ROW_BYTES: Final = 84
"""All columns of a row, including those that are only needed in between."""
_SLAB_COLUMNS: Final = 22
_ALIGNMENT: Final = 64

KEPT_PIECES_MAX: Final = 2
KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bounds what a thread holds between batches; larger pieces go back to the system."""

_TAKEN: Final = ("seq", "time", "source", "destination")
_PASSED: Final = ("channel", "lineage", "clock", "device")


def plain(signals: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with plain strings, for readers that know no dictionaries."""
    return signals.cast(SIGNALS_SCHEMA)


@dataclass(frozen=True, slots=True)
class _Group:
    pgn: int
    members: Int64s
    columns: list[Column]
    instances: Int32s | None


class SignalRows:
    """Collects the columns of groups, then lays all of them out."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._groups: list[_Group] = []
        self._rows = 0

    def add(self, pgn: int, members: Int64s, columns: list[Column], instances: Int32s | None) -> None:
        """Columns of the frames `members`, which all have this PGN; no frame is in two groups."""
        self._groups.append(_Group(pgn, members, columns, instances))
        self._rows += sum(len(members) if column.rows is None else len(column.rows) for column in columns)

    def to_arrow(self, pool: TextPool) -> pa.RecordBatch:
        """All rows (SR1)."""
        slab = Slab(self._rows)
        taken = {
            name: _Taken(self._batch.column(name), SIGNALS_SCHEMA.field(name).type, slab)
            for name in _TAKEN
            if name in self._batch.schema.names
        }
        passed = {name: _Passed(self._batch, name, slab) for name in _PASSED}
        columns: dict[str, _Taken | _Passed] = {**taken, **passed}
        spreads = [spread for column in columns.values() for spread in column.spreads]
        cells = _Cells(slab)
        for group in self._groups:
            cells.add(group, spreads)
        built = {name: column.to_arrow() for name, column in columns.items()}
        built |= {
            "pgn": _fixed(pa.int32(), cells.pgns, None),
            "instance": _fixed(pa.int32(), cells.instances, cells.instances >= 0),
            "signal": _dictionary(cells.signals, list(cells.signal_names), valid=None),
            "value": _fixed(pa.float64(), cells.values, ~np.isnan(cells.values) if cells.has_texts_only else None),
            "unit": _named(cells.units, list(cells.unit_names)),
            "text": _named(cells.texts, pool.texts()),
        }
        if "destination" not in built:
            built["destination"] = pa.nulls(self._rows, SIGNALS_SCHEMA.field("destination").type)
        return pa.RecordBatch.from_arrays([built[name] for name in DICTIONARY_SCHEMA.names], schema=DICTIONARY_SCHEMA)


class _Spread:
    """A number for every frame, and the rows' copies of it."""

    __slots__ = ("of_frames", "of_rows")

    def __init__(self, of_frames: npt.NDArray[Any], slab: Slab) -> None:
        self.of_frames = of_frames
        self.of_rows = slab.array(of_frames.dtype)


class _Taken:
    """A column of numbers that rows have from their frames."""

    def __init__(self, column: pa.Array, kind: pa.DataType, slab: Slab) -> None:
        if column.type != kind:
            column = column.cast(kind)
        self._kind = kind
        dtype = f"i{kind.bit_width // 8}"
        numbers = np.frombuffer(column.buffers()[1], dtype=dtype)[column.offset : column.offset + len(column)]
        self.spreads = [_Spread(numbers, slab)]
        if column.null_count:
            self.spreads.append(_Spread(column.is_valid().to_numpy(zero_copy_only=False), slab))

    def to_arrow(self) -> pa.Array:
        values, *valid = (spread.of_rows for spread in self.spreads)
        return _fixed(self._kind, values, valid[0] if valid else None)


class _Passed:
    """A column of names that rows have from their frames, where the frames have it."""

    def __init__(self, batch: pa.RecordBatch, name: str, slab: Slab) -> None:
        self._slab = slab
        self.spreads: list[_Spread] = []
        self._names: pa.Array | None = None
        if name not in batch.schema.names:
            return
        column = batch.column(name)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        self._names = column.dictionary.cast(pa.string())
        # One name for all, as nearly always: the numbers are zeros that all such columns share.
        if len(self._names) == 1 and not column.null_count:
            return
        numbers = column.indices.cast(pa.int32()).fill_null(-1).to_numpy(zero_copy_only=False)
        if len(numbers) and bool((numbers == numbers[0]).all()):
            self._names = self._names.slice(int(numbers[0]), 1) if numbers[0] >= 0 else None
            return
        self.spreads.append(_Spread(numbers, slab))

    def to_arrow(self) -> pa.Array:
        if self.spreads:
            assert self._names is not None, "numbers are of names"
            return _named(self.spreads[0].of_rows, self._names)
        return self._slab.constant(self._names)


class _Cells:
    """What the rows have from their own column, and the copying of all the rest."""

    def __init__(self, slab: Slab) -> None:
        self._used = 0
        self.signal_names: dict[str, int] = {}
        self.unit_names: dict[str, int] = {}
        self.pgns: Int32s = slab.array(np.int32)
        self.instances: Int32s = slab.array(np.int32)
        self.signals: Int32s = slab.array(np.int32)
        self.units: Int32s = slab.array(np.int32)
        self.texts: Int32s = slab.array(np.int32)
        self.values: npt.NDArray[np.float64] = slab.array(np.float64)
        self.has_texts_only = False
        """Whether there are rows without a number."""

    def add(self, group: _Group, spreads: list[_Spread]) -> None:
        of_group = [(spread.of_rows, spread.of_frames.take(group.members)) for spread in spreads]
        if group.instances is not None:
            of_group.append((self.instances, group.instances))
        start = self._used
        for column in group.columns:
            end = start + (len(group.members) if column.rows is None else len(column.rows))
            for of_rows, numbers in of_group:
                if column.rows is None:
                    of_rows[start:end] = numbers
                else:
                    # A mode that needs no check: with one it costs ten times as much.
                    numbers.take(column.rows, out=of_rows[start:end], mode="clip")
            self.signals[start:end] = self.signal_names.setdefault(column.signal, len(self.signal_names))
            unit = column.unit
            self.units[start:end] = -1 if unit is None else self.unit_names.setdefault(unit, len(self.unit_names))
            self.texts[start:end] = NO_TEXT if column.texts is None else column.texts
            column.write_values(self.values[start:end])
            self.has_texts_only |= column.may_lack_numbers
            start = end
        self.pgns[self._used : start] = group.pgn
        if group.instances is None:
            self.instances[self._used : start] = -1
        self._used = start


class Slab:
    """One piece of memory for the columns of a batch.

    Getting pages from the system would cost a third of the time of decoding. So a piece is kept, and reused once no
    column of it is in use: a process that writes one batch and then decodes the next gets warm memory.
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

    def constant(self, name: pa.Array | None) -> pa.Array:
        """A dictionary column with one name, or none, in all rows; all such columns share their numbers."""
        if self._zeros is None:
            zeros = self.array(np.int32)
            zeros.fill(0)
            self._zeros = pa.py_buffer(zeros)
        bitmap = None if name is not None else pa.py_buffer(np.zeros(-(-self.rows // 8), dtype=np.uint8))
        numbers = pa.Array.from_buffers(pa.int32(), self.rows, [bitmap, self._zeros])
        names = pa.array([], pa.string()) if name is None else name
        return pa.DictionaryArray.from_arrays(numbers, names, safe=False)


_kept = threading.local()


def _memory(size: int) -> npt.NDArray[np.uint8]:
    """At least `size` unused bytes. A thread keeps the last few pieces it got."""
    pieces: list[npt.NDArray[np.uint8]] = _kept.__dict__.setdefault("pieces", [])
    for place in range(len(pieces)):
        # Two references are the list's and the call's; every column in use is one more.
        if len(pieces[place]) >= size and sys.getrefcount(pieces[place]) == 2:
            return pieces[place]
    memory = np.empty(size + size // 4, dtype=np.uint8)
    if len(memory) <= KEPT_BYTES_MAX:
        pieces.append(memory)
        del pieces[:-KEPT_PIECES_MAX]
    return memory


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
        # Readers may look at the index of a null.
        numbers = np.maximum(numbers, 0, out=numbers)
    indices = _fixed(pa.int32(), numbers, valid)
    names = names if isinstance(names, pa.Array) else pa.array(names, pa.string())
    return pa.DictionaryArray.from_arrays(indices, names, safe=False)
