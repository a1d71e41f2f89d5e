"""Arrow batches from a caller, as columns of blocks.

Only this module and `tidelog.blocks.arrow` load pyarrow; code that needs it imports this module at the point of use.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.blocks.messages import HAS_KEY, HAS_VALUE, BytesColumn, Message, MessageColumns
from tidelog.client.producing.batching import HEADER_BYTES, RECORD_BYTES
from tidelog.errors import InvalidRecord

_TIME: Final = pa.timestamp("us", tz="UTC")
_KNOWN: Final = frozenset({"offset", "seq", "time", "key", "value", "headers"})


def columns_of(batch: pa.RecordBatch, *, bytes_max: int, now_us: int) -> list[tuple[MessageColumns, int]]:
    """The batch in pieces that each fit a block of `bytes_max`, with their sizes. `offset` and `seq` are left out.

    Raises `InvalidRecord` for columns that are missing, unknown or of the wrong type.
    """
    names = set(batch.schema.names)
    if "can_id" in names:
        raise InvalidRecord(problem="frames come from boats, by the uplink; a producer writes messages")
    if unknown := sorted(names - _KNOWN):
        raise InvalidRecord(problem=f"column {unknown[0]!r} is none of a record's: {', '.join(sorted(_KNOWN))}")
    if "value" not in names:
        raise InvalidRecord(problem="column 'value' is missing")
    try:
        return _pieces(batch, bytes_max, now_us)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError) as error:
        raise InvalidRecord(problem=f"a column cannot be read as what its name says: {error}") from error


def _pieces(batch: pa.RecordBatch, bytes_max: int, now_us: int) -> list[tuple[MessageColumns, int]]:
    if not batch.num_rows:
        return []
    columns = _messages(batch, now_us)
    size = _size(columns)
    if size <= bytes_max or batch.num_rows == 1:
        return [(columns, size)]
    middle = batch.num_rows // 2
    halves = (batch.slice(0, middle), batch.slice(middle))
    return [piece for half in halves for piece in _pieces(half, bytes_max, now_us)]


def _size(columns: MessageColumns) -> int:
    strings = (columns.keys, columns.values, columns.header_names, columns.header_values)
    return (
        sum(len(column.data) for column in strings)
        + RECORD_BYTES * len(columns)
        + HEADER_BYTES * len(columns.header_names)
    )


def _messages(batch: pa.RecordBatch, now_us: int) -> MessageColumns:
    count = batch.num_rows
    names = batch.schema.names
    if "headers" in names and batch["headers"].null_count < count:
        return MessageColumns.from_rows([_row(row, now_us) for row in batch.to_pylist()])
    flags = np.zeros(count, dtype=np.uint8)
    keys = BytesColumn(np.zeros(count + 1, dtype=np.int32), np.zeros(0, dtype=np.uint8))
    if "key" in names:
        keys = _strings(batch["key"])
        flags |= _valid(batch["key"]) * np.uint8(HAS_KEY)
    flags |= _valid(batch["value"]) * np.uint8(HAS_VALUE)
    times = np.full(count, now_us, dtype=np.int64)
    if "time" in names:
        times = _times(batch["time"].fill_null(pa.scalar(now_us, pa.int64()).cast(_TIME)))
    nothing = BytesColumn(np.zeros(1, dtype=np.int32), np.zeros(0, dtype=np.uint8))
    return MessageColumns(
        times_us=times,
        flags=flags,
        keys=keys,
        values=_strings(batch["value"]),
        header_ends=np.zeros(count + 1, dtype=np.int32),
        header_names=nothing,
        header_values=nothing,
    )


def _row(row: dict[str, Any], now_us: int) -> Message:
    moment = row.get("time")
    time_us = now_us if moment is None else pa.scalar(moment, _TIME).cast(pa.int64()).as_py()
    headers = tuple((header["name"], _bytes(header["value"])) for header in row["headers"] or ())
    return Message(time_us=time_us, value=_bytes(row["value"]), key=_bytes(row.get("key")), headers=headers)


def _bytes(value: str | bytes | None) -> Any:
    return value.encode() if isinstance(value, str) else value


def _valid(column: pa.Array) -> npt.NDArray[np.uint8]:
    return column.is_valid().cast(pa.uint8()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _times(column: pa.Array) -> npt.NDArray[np.int64]:
    return column.cast(_TIME).cast(pa.int64()).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _strings(column: pa.Array) -> BytesColumn:
    """Strings end to end from 0, whatever slice of whatever buffer they are; a null takes no bytes."""
    plain = column.cast(pa.binary()).fill_null(b"")
    _, ends, data = plain.buffers()
    offsets = np.frombuffer(ends, dtype=np.int32, count=len(plain) + 1, offset=4 * plain.offset)
    first, last = int(offsets[0]), int(offsets[-1])
    held = np.frombuffer(data, dtype=np.uint8)[first:last] if data is not None else np.zeros(0, dtype=np.uint8)
    return BytesColumn(offsets - np.int32(first) if first else offsets, held)
