"""Single frames of an lplex boat, gathered into blocks.

An lplex boat sends one frame a message. The first goes into the log at once; what arrives while that is being
committed becomes the next block, as with a boat of ours. No frame waits for a clock.
"""

from __future__ import annotations

from typing import Final

from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import FrameBuilder
from tidelog.codecs.uplink_codec import LplexFrame
from tidelog.units import KIB

FRAMES_MAX: Final = 256
_PAYLOAD_BYTES_MAX: Final = 64 * KIB


class FrameGatherer:
    """Frames with consecutive seqs that are not in a block yet."""

    def __init__(self, *, frames_max: int) -> None:
        self._frames_max = frames_max
        self._frames = FrameBuilder()
        self._base_seq = 0

    def __len__(self) -> int:
        return len(self._frames)

    def fits(self, seq: int) -> bool:
        """Whether the frame with this seq continues what is gathered, and there is room for it."""
        count = len(self._frames)
        if not count:
            return True
        has_room = count < self._frames_max and self._frames.payload_bytes < _PAYLOAD_BYTES_MAX
        return has_room and seq == self._base_seq + count

    def add(self, frame: LplexFrame) -> None:
        """Take a frame that fits. One that is no frame is refused, and the others stay."""
        assert self.fits(frame.seq)
        self._frames.append(frame.time_us, frame.can_id, frame.payload)
        if len(self._frames) == 1:
            self._base_seq = frame.seq

    def take(self) -> tuple[int, FrameColumns]:
        """All that is gathered, with the first one's seq."""
        return self._base_seq, self._frames.take()

    def drop(self) -> None:
        self._frames = FrameBuilder()
