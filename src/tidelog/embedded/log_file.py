"""An open channel, on this node alone or replicated: append, read, tail.

Offsets are half-open everywhere. Every record that is read is committed: it was as durable as the channel promises, on
as many nodes as it promises, before any reader got it.

ELF1  `read_range` and `tail` give every committed record once, in order. Control records of the log itself have offsets
      and are not given, so offsets may have holes and never repeat.
ELF2  A reader whose position retention has removed gets `Lagged` before any later record.
ELF3  Every wait ends; the error of an append with unknown outcome is not definite (`definite` is False).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Final

from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.messages import encode_values
from tidelog.client.records import AnyRecord, records_of
from tidelog.core.client_messages import ANY_OFFSET
from tidelog.core.replication.config import FileConfig
from tidelog.errors import CommittedLost, InvalidRecord, LogClosed, OffsetOutOfRange
from tidelog.storage.log.writer import wall_clock_us
from tidelog.units import MIB

APPEND_MS: Final = 10_000
READ_BYTES: Final = 1 * MIB
TAIL_WAIT_MS: Final = 1_000
"""How long a tail waits for records before it checks again."""


class LogFile(ABC):
    """The result of `LogManager.open_file`."""

    def __init__(self, name: str, config: FileConfig) -> None:
        self.name = name
        self.config = config
        self._is_closed = False

    # --- where it stands ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def log_start(self) -> int:
        """The oldest record that retention has left."""

    @property
    @abstractmethod
    def log_end(self) -> int:
        """One past the newest record, committed or not."""

    @property
    @abstractmethod
    def committed_end(self) -> int:
        """One past the newest record that readers see."""

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosed(log=self.name)

    # --- writing -----------------------------------------------------------------------------------------------

    async def append(self, payload: bytes, *, timeout_ms: int = APPEND_MS) -> int:
        """Append one record; its offset, once it is committed."""
        return await self.append_batch((payload,), timeout_ms=timeout_ms)

    async def append_batch(
        self, payloads: Sequence[bytes], *, expected_offset: int | None = None, timeout_ms: int = APPEND_MS
    ) -> int:
        """Append records together, all or none; the offset of the first, once all are committed.

        With `expected_offset` only if the first would get just that one: else `OffsetConflict`.
        """
        self._check_open()
        made = _made(payloads)
        expected = ANY_OFFSET if expected_offset is None else expected_offset
        return await self._append(made, expected, timeout_ms)

    @abstractmethod
    async def _append(self, made: MadeBlock, expected_offset: int, timeout_ms: int) -> int: ...

    # --- reading -----------------------------------------------------------------------------------------------

    async def read_range(self, start: int, end: int) -> list[AnyRecord]:
        """The committed records in [start, end); fewer if less is committed. Waits for nothing."""
        self._check_open()
        if start < 0:
            raise OffsetOutOfRange(offset=start, log_start=self.log_start, log_end=self.committed_end)
        found: list[AnyRecord] = []
        while start < end:
            blocks = await self._fetch(start, 0)
            if not blocks:
                break
            for block in blocks:
                found += [record for record in records_of(block, start=start) if record.offset < end]
                start = max(start, block.end)
        return found

    async def tail(self, start: int | None = None) -> AsyncIterator[AnyRecord]:
        """Every committed record from `start` on (by default from the present committed end), and then new ones.

        Ends when the file is closed. Raises `Lagged` when retention has removed its position, `CommittedLost` after an
        unclean election. Nothing is buffered for a slow reader: it reads the log at its own pace.
        """
        self._check_open()
        offset = self.committed_end if start is None else start
        if offset < 0:
            raise OffsetOutOfRange(offset=offset, log_start=self.log_start, log_end=self.committed_end)
        unclean_epoch = self._unclean_epoch()
        while (blocks := await self._fetch_unless_closed(offset)) is not None:
            if self._unclean_epoch() > unclean_epoch:
                raise CommittedLost(
                    channel=self.name,
                    offset=offset,
                    committed_end=self.committed_end,
                    leader_epoch=self._unclean_epoch(),
                )
            for block in blocks:
                for record in records_of(block, start=offset):
                    yield record
                offset = max(offset, block.end)

    async def _fetch_unless_closed(self, offset: int) -> Sequence[Block] | None:
        if self._is_closed:
            return None
        try:
            return await self._fetch(offset, TAIL_WAIT_MS)
        except LogClosed:
            if self.is_closed:
                return None
            raise

    def _unclean_epoch(self) -> int:
        """The epoch of the newest election that may have lost committed records; 0 where there are no elections."""
        return 0

    @abstractmethod
    async def _fetch(self, offset: int, wait_ms: int) -> Sequence[Block]:
        """Committed blocks from the one that holds `offset`; none if nothing is committed there yet after the wait.

        Raises `Lagged` (ELF2).
        """

    # --- keeping -----------------------------------------------------------------------------------------------

    @abstractmethod
    async def sweep_retention(self) -> int:
        """Apply the retention limits now; returns the new start. Without limits nothing is removed."""

    @abstractmethod
    async def sync(self) -> None:
        """Wait until earlier appends are as safe as this channel can make them."""

    @abstractmethod
    async def close(self) -> None:
        """The same as `LogManager.close_file`. Closing twice is no error."""


def _made(payloads: Sequence[bytes]) -> MadeBlock:
    values: list[bytes] = []
    for payload in payloads:
        given: object = payload
        if not isinstance(given, bytes | bytearray | memoryview):
            raise InvalidRecord(problem=f"a payload is bytes, not {type(given).__name__}")
        values.append(bytes(payload))
    if not values:
        raise InvalidRecord(problem="a batch holds at least one payload")
    return encode_values(values, time_us=wall_clock_us())
