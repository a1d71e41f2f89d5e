"""Records as columns: what encoders take and decoders give.

Everything is a numpy array, so nothing here loops over records in Python. Columns are not copied
when they come out of a block: treat them as read-only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from tidelog.errors import InvalidRecord

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
UInt32s = npt.NDArray[np.uint32]
UInt8s = npt.NDArray[np.uint8]

PAYLOAD_BYTES_MAX = 1785
"""The longest payload of one frame: an ISO 11783 transport message. A fast packet has 223."""


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """CAN frames, one row each: time, 29-bit id, payload."""

    times_us: Int64s
    can_ids: UInt32s
    payload_offsets: Int32s
    """One more than there are frames, as in Arrow: frame i has payload[offsets[i]:offsets[i + 1]]."""
    payload: UInt8s

    def __len__(self) -> int:
        return len(self.can_ids)

    def slice(self, start: int, end: int) -> FrameColumns:
        """The frames [start, end), without copying payload bytes."""
        offsets = self.payload_offsets[start : end + 1]
        first = int(offsets[0])
        return FrameColumns(
            times_us=self.times_us[start:end],
            can_ids=self.can_ids[start:end],
            payload_offsets=offsets if first == 0 else offsets - np.int32(first),
            payload=self.payload[first : int(offsets[-1])],
        )

    def rows(self) -> Iterator[tuple[int, int, bytes]]:
        """(time_us, can_id, payload) one by one: for tools and tests, not for hot paths."""
        payload = self.payload.tobytes()
        offsets = self.payload_offsets.tolist()
        for index, (time_us, can_id) in enumerate(zip(self.times_us.tolist(), self.can_ids.tolist(), strict=True)):
            yield time_us, can_id, payload[offsets[index] : offsets[index + 1]]

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, int, bytes]]) -> FrameColumns:
        """The inverse of `rows`."""
        listed = list(rows)
        times_us, can_ids, payloads = zip(*listed, strict=True) if listed else ((), (), ())
        return cls(
            times_us=np.array(times_us, dtype=np.int64),
            can_ids=np.array(can_ids, dtype=np.uint32),
            payload_offsets=np.array([0, *accumulate(map(len, payloads))], dtype=np.int32),
            payload=np.frombuffer(b"".join(payloads), dtype=np.uint8),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[FrameColumns]) -> FrameColumns:
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.from_rows([])
        lengths = np.concatenate([np.diff(part.payload_offsets) for part in parts])
        offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths, out=offsets[1:])
        return cls(
            times_us=np.concatenate([part.times_us for part in parts]),
            can_ids=np.concatenate([part.can_ids for part in parts]),
            payload_offsets=offsets,
            payload=np.concatenate([part.payload for part in parts]),
        )

    def equals(self, other: FrameColumns) -> bool:
        return (
            np.array_equal(self.times_us, other.times_us)
            and np.array_equal(self.can_ids, other.can_ids)
            and np.array_equal(self.payload_offsets, other.payload_offsets)
            and np.array_equal(self.payload, other.payload)
        )

    def check(self) -> None:
        """Refuse columns that do not fit together; encoders call this before they write a byte."""
        count = len(self.can_ids)
        if len(self.times_us) != count or len(self.payload_offsets) != count + 1:
            raise InvalidRecord(
                problem=f"columns disagree: {len(self.times_us)} times, {count} ids, "
                f"{len(self.payload_offsets)} payload offsets (want {count + 1})"
            )
        # By hand: `np.diff` takes longer than all the rest for the few frames of a live block.
        lengths = self.payload_offsets[1:] - self.payload_offsets[:-1]
        if int(self.payload_offsets[0]) != 0 or int(self.payload_offsets[-1]) != len(self.payload):
            raise InvalidRecord(problem="payload offsets must start at 0 and end at the payload's length")
        if count and (int(lengths.min()) < 0 or int(lengths.max()) > PAYLOAD_BYTES_MAX):
            raise InvalidRecord(problem=f"a payload must have 0 to {PAYLOAD_BYTES_MAX} bytes")
