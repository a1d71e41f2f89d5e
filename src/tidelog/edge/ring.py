"""The newest frames of the bus, in memory: what Live sends before the journal has flushed them."""

from __future__ import annotations

from collections import deque

from tidelog.blocks.columns import FrameColumns

Row = tuple[int, int, bytes]


class Ring:
    """Frames by seq, the newest `frames_max` of them. Seqs must follow each other; a jump starts anew."""

    def __init__(self, *, frames_max: int = 65_536) -> None:
        self._rows: deque[Row] = deque(maxlen=frames_max)
        self._next_seq = 1

    def append(self, seq: int, time_us: int, can_id: int, payload: bytes) -> None:
        if seq != self._next_seq:
            self._rows.clear()
        self._rows.append((time_us, can_id, payload))
        self._next_seq = seq + 1

    @property
    def seqs(self) -> range:
        return range(self._next_seq - len(self._rows), self._next_seq)

    def frames(self, seqs: range) -> FrameColumns | None:
        """The frames with these seqs, or None when some have left the ring."""
        held = self.seqs
        if seqs.start < held.start or seqs.stop > held.stop:
            return None
        first = seqs.start - held.start
        # Indexing a deque from its nearer end is cheap: Live asks for the newest.
        return FrameColumns.from_rows(self._rows[first + place] for place in range(len(seqs)))
