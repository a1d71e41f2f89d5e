"""Records that wait to become blocks: natural batching, without an object for each record.

Nothing here does I/O. All records that have gathered when another block may be sent become that block, so an idle
producer adds no delay and a busy one makes large blocks. A batch also receives the outcome of its records: waiting for
a record means waiting for its batch and adding the record's place in it.

CB1  Records leave in the order in which they came, and a batch holds nothing else between its first and its last.
CB2  A batch ends once, with the offset of its first record or with an error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from tidelog.blocks.block import MadeBlock
from tidelog.blocks.header import Codec
from tidelog.blocks.messages import Message, MessageColumns, encode_messages, encode_values
from tidelog.client.options import BLOCK_BYTES_MAX
from tidelog.core.client_messages import ANY_OFFSET
from tidelog.errors import InvalidRecord, LogError

RECORD_BYTES: Final = 17
"""What a message costs beside its strings: time, three ends, flags."""
HEADER_BYTES: Final = 8


class RecordBatch:
    """A run of records that becomes one block, and its outcome."""

    __slots__ = (
        "_callbacks",
        "bytes",
        "columns",
        "deadline_ms",
        "error",
        "expected_offset",
        "first_offset",
        "is_done",
        "is_seen",
        "rows",
        "time_us",
        "values",
    )

    def __init__(self, *, deadline_ms: int, time_us: int) -> None:
        self.values: list[bytes] = []
        self.rows: list[Message] | None = None
        """Used instead of `values` when a record has more than a value."""
        self.columns: MessageColumns | None = None
        """Used instead of both: records that came as columns."""
        self.bytes = 0
        """The approximate size of the body."""
        self.deadline_ms = deadline_ms
        self.time_us = time_us
        """The time of records that came without one."""
        self.expected_offset = ANY_OFFSET
        self.first_offset = 0
        self.error: LogError | None = None
        self.is_done = False
        self.is_seen = False
        """Whether a caller has seen the error."""
        self._callbacks: list[Callable[[], None]] = []

    def __len__(self) -> int:
        if self.columns is not None:
            return len(self.columns)
        return len(self.values if self.rows is None else self.rows)

    def add_row(self, row: Message, size: int) -> int:
        """Add a record with more than a value; returns its place in the batch."""
        self.add_rows((row,), size)
        return len(self) - 1

    def add_rows(self, rows: Sequence[Message], size: int) -> None:
        if self.rows is None:
            self.rows = [Message(self.time_us, value) for value in self.values]
            self.values = []
        self.rows += rows
        self.bytes += size

    def encode(self, *, base_seq: int, producer: bytes, codec: Codec) -> MadeBlock:
        if self.columns is not None or self.rows is not None:
            messages = self.rows if self.columns is None else self.columns
            assert messages is not None
            return encode_messages(messages, base_seq=base_seq, producer=producer, codec=codec)
        return encode_values(self.values, time_us=self.time_us, base_seq=base_seq, producer=producer, codec=codec)

    def when_done(self, callback: Callable[[], None]) -> None:
        if self.is_done:
            callback()
        else:
            self._callbacks.append(callback)

    def finish(self, first_offset: int, error: LogError | None = None) -> None:
        assert not self.is_done, "CB2"
        self.is_done = True
        self.first_offset = first_offset
        self.error = error
        self.values, self.rows, self.columns = [], None, None
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class Gathering:
    """Batches that are not blocks yet; only the last one still grows."""

    def __init__(self, *, batch_bytes_max: int, batch_records_max: int) -> None:
        self._bytes_max = batch_bytes_max
        self._records_max = batch_records_max
        self._batches: deque[RecordBatch] = deque()
        self._open: RecordBatch | None = None
        """The newest batch, while records may join it."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def first(self) -> RecordBatch | None:
        return self._batches[0] if self._batches else None

    def take(self) -> RecordBatch:
        """Take the oldest batch; no record joins it any more."""
        batch = self._batches.popleft()
        self.bytes -= batch.bytes
        if batch is self._open:
            self._open = None
        return batch

    def take_conditional(self) -> list[RecordBatch]:
        """Batches that are wanted at one offset only."""
        taken = [batch for batch in self._batches if batch.expected_offset != ANY_OFFSET]
        if taken:
            self._batches = deque(batch for batch in self._batches if batch.expected_offset == ANY_OFFSET)
            self.bytes -= sum(batch.bytes for batch in taken)
        return taken

    def is_ripe(self) -> bool:
        """Whether the oldest batch cannot grow, so that waiting for more records is useless."""
        return len(self._batches) > 1 or (bool(self._batches) and self._open is None)

    def seal(self) -> None:
        """The next record begins a batch of its own."""
        self._open = None

    def join(self, value: bytes, size: int) -> RecordBatch | None:
        """Append a value to a batch of plain values, if one is open: the usual case, without reading the clock."""
        batch = self._open
        if batch is None or batch.rows is not None or batch.bytes + size > self._bytes_max:
            return None
        values = batch.values
        if len(values) >= self._records_max:
            return None
        values.append(value)
        batch.bytes += size
        self.bytes += size
        return batch

    def add_value(self, value: bytes, *, deadline_ms: int, time_us: int) -> tuple[RecordBatch, int]:
        size = len(value) + RECORD_BYTES
        batch = self._open
        if batch is None or batch.bytes + size > self._bytes_max or len(batch) >= self._records_max:
            _require_size(size)
            batch = self._begin(deadline_ms, time_us)
        if batch.rows is not None:
            index = batch.add_row(Message(time_us, value), size)
        else:
            index = len(batch.values)
            batch.values.append(value)
            batch.bytes += size
        self.bytes += size
        return batch, index

    def add_row(self, row: Message, *, deadline_ms: int) -> tuple[RecordBatch, int]:
        size = row_bytes(row)
        batch = self._open
        if batch is None or batch.bytes + size > self._bytes_max or len(batch) >= self._records_max:
            _require_size(size)
            batch = self._begin(deadline_ms, row.time_us)
        self.bytes += size
        return batch, batch.add_row(row, size)

    def add_rows(self, rows: Sequence[Message], *, deadline_ms: int) -> list[tuple[RecordBatch, range]]:
        """Many at once, like `add_values`."""
        sizes = [row_bytes(row) for row in rows]
        if sizes:
            _require_size(max(sizes))
        taken: list[tuple[RecordBatch, range]] = []
        ends = list(accumulate(sizes, initial=0))
        start = 0
        while start < len(rows):
            batch = self._open
            if batch is None or not (count := self._fits_rows(batch, ends, start)):
                batch = self._begin(deadline_ms, rows[start].time_us)
                count = max(1, self._fits_rows(batch, ends, start))
            first = len(batch)
            batch.add_rows(rows[start : start + count], size := ends[start + count] - ends[start])
            self.bytes += size
            taken.append((batch, range(first, first + count)))
            start += count
        return taken

    def _fits_rows(self, batch: RecordBatch, ends: list[int], start: int) -> int:
        """How many of the rows from `start` on the batch still takes."""
        last = bisect_right(ends, ends[start] + self._bytes_max - batch.bytes) - 1
        return max(0, min(last - start, self._records_max - len(batch)))

    def add_values(self, values: Sequence[bytes], *, deadline_ms: int, time_us: int) -> list[tuple[RecordBatch, range]]:
        """Add many records at once, in as few batches as hold them; returns their places in the batches."""
        ends = [0, *accumulate(map(len, values))]
        # Everything is checked before anything is taken: a call has all of its records in the queue or none.
        if values:
            _require_size(max(map(len, values)) + RECORD_BYTES)
        taken: list[tuple[RecordBatch, range]] = []
        start = 0
        while start < len(values):
            batch = self._open
            if batch is None or batch.rows is not None or not (count := self._fits(batch, ends, start)):
                batch = self._begin(deadline_ms, time_us)
                count = self._fits(batch, ends, start)
            first = len(batch.values)
            part = values if count == len(values) else values[start : start + count]
            batch.values += part
            size = ends[start + count] - ends[start] + RECORD_BYTES * count
            batch.bytes += size
            self.bytes += size
            taken.append((batch, range(first, first + count)))
            start += count
        return taken

    def _fits(self, batch: RecordBatch, ends: list[int], start: int) -> int:
        """How many of the values from `start` on the batch still takes; a fresh one takes at least one."""
        room = self._bytes_max - batch.bytes
        left = min(len(ends) - 1 - start, self._records_max - len(batch.values))
        if ends[start + left] - ends[start] + RECORD_BYTES * left <= room:
            return left
        # Ends rise by the values' lengths; with a fixed cost added for each they still rise, so they can be searched.
        sizes = [ends[start + i] - ends[start] + RECORD_BYTES * i for i in range(1, left + 1)]
        fitting = bisect_right(sizes, room)
        return max(fitting, 1) if not batch.values else fitting

    def add_columns(self, columns: MessageColumns, size: int, *, deadline_ms: int) -> RecordBatch:
        """Add records that came as columns: a block of their own."""
        _require_size(size)
        batch = self._begin(deadline_ms, 0)
        batch.columns = columns
        batch.bytes = size
        self.bytes += size
        self._open = None
        return batch

    def add_alone(
        self, values: Sequence[bytes], *, expected_offset: int, deadline_ms: int, time_us: int
    ) -> RecordBatch:
        """One block of exactly these values, wanted only at this offset."""
        size = sum(map(len, values)) + RECORD_BYTES * len(values)
        if size > self._bytes_max or len(values) > self._records_max:
            raise InvalidRecord(problem="what is expected at one offset must fit one block; send less at a time")
        batch = self._begin(deadline_ms, time_us)
        batch.values = list(values)
        batch.bytes = size
        batch.expected_offset = expected_offset
        self.bytes += size
        self._open = None
        return batch

    def add_row_alone(self, row: Message, *, expected_offset: int, deadline_ms: int) -> RecordBatch:
        """One block of this record, wanted only at this offset."""
        size = row_bytes(row)
        _require_size(size)
        batch = self._begin(deadline_ms, row.time_us)
        batch.rows = []
        batch.add_row(row, size)
        batch.expected_offset = expected_offset
        self.bytes += size
        self._open = None
        return batch

    def _begin(self, deadline_ms: int, time_us: int) -> RecordBatch:
        batch = RecordBatch(deadline_ms=deadline_ms, time_us=time_us)
        self._batches.append(batch)
        self._open = batch
        return batch


def row_bytes(row: Message) -> int:
    """The approximate size of a message in a body; names of headers may have four bytes a letter."""
    size = RECORD_BYTES + len(row.value or b"") + len(row.key or b"")
    return size + sum(HEADER_BYTES + len(name) * 4 + len(content) for name, content in row.headers)


def _require_size(size: int) -> None:
    if size > BLOCK_BYTES_MAX:
        raise InvalidRecord(problem=f"a record of {size} bytes does not fit a block of {BLOCK_BYTES_MAX}; split it")
