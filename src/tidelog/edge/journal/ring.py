"""The newest frames of the bus, in memory: what Live sends before the journal has flushed them."""

from __future__ import annotations

from tidelog.blocks.columns import FrameColumns

Row = tuple[int, int, bytes]


class Ring:
    """Frames by seq, the newest `frames_max` of them. Seqs must follow each other; a jump starts anew."""

    def __init__(self, *, frames_max: int = 65_536) -> None:
        self._frames_max = frames_max
        self._rows: list[Row] = []
        self._next_seq = 1
        self._write_at = 0
        """The index of the next row, once the list has its full length: the oldest is overwritten."""

    def append(self, seq: int, time_us: int, can_id: int, payload: bytes) -> None:
        if seq != self._next_seq:
            self._rows.clear()
            self._write_at = 0
        row = (time_us, can_id, payload)
        if len(self._rows) < self._frames_max:
            self._rows.append(row)
        else:
            self._rows[self._write_at] = row
            self._write_at = (self._write_at + 1) % self._frames_max
        self._next_seq = seq + 1

    @property
    def seqs(self) -> range:
        return range(self._next_seq - len(self._rows), self._next_seq)

    def frames(self, seqs: range) -> FrameColumns | None:
        """The frames with these seqs, or None when some have left the ring."""
        held = self.seqs
        if seqs.start < held.start or seqs.stop > held.stop:
            return None
        first = self._write_at + seqs.start - held.start
        rows = self._rows[first : first + len(seqs)]
        if len(rows) < len(seqs):
            # They go on at the front of the list, where the oldest were overwritten.
            start = max(first - len(self._rows), 0)
            rows += self._rows[start : start + len(seqs) - len(rows)]
        return FrameColumns.from_rows(rows)
