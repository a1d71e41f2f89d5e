"""A boat at the leader of its channel, without an event loop: appends of its blocks, and their commits in order.

The core of an `Instance`. It hands the boat's messages to the `UplinkChannel`, appends what that decides through the
`LedChannel`, and reports commits to it in the order of submission. The node's shell and the simulator drive it.

What a caller must keep: call `take_settled` after `settle_soon` was called, not inside of it, carry out what it says,
and `end` it with the error that came with it.

UA1  Acks come of what was committed, in the order in which it was submitted: one commit settles many.
UA2  After an append that was refused nothing behind it is taken: the channel believes it to be in the log (UI1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidelog.blocks.block import MadeBlock
from tidelog.cluster.boats.channel import LogAppend, UplinkChannel
from tidelog.cluster.boats.channel_log import OpenedLog, SnapshotPlace
from tidelog.cluster.uplink.led_channel import LedChannel
from tidelog.core.uplink.messages import Refused, ToBoat, ToCloud
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import LogError

_BLOCK_HEAD_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class Settled:
    """What has come of appends."""

    appends: tuple[LogAppend, ...]
    """Committed."""
    replies: tuple[ToBoat, ...]
    """What the boat is told of it."""
    error: LogError | None
    """Why the others were refused: `end` with it."""


class BoatAppends:
    def __init__(
        self, *, opened: OpenedLog, led_channel: LedChannel, limits: ReceiverLimits, settle_soon: Callable[[], None]
    ) -> None:
        self.led_channel = led_channel
        self._settle_soon = settle_soon
        self.channel = UplinkChannel(
            instance=led_channel.name, fold=opened.fold, limits=limits, held=led_channel.held_block
        )
        self.committed_end = opened.end
        """The committed fold is that of the log up to here."""
        self.snapshot = opened.snapshot
        self._snapshot_append: LogAppend | None = None
        self.bytes_since_snapshot = opened.bytes_since_snapshot
        self.submitted = 0
        self.settled_count = 0
        self.waiting_bytes = 0
        self._settled: deque[tuple[LogAppend, int, LogError | None]] = deque()
        """Committed or refused, in the order of submission, and not looked at yet."""
        self._settling_is_due = False
        self._refusal: LogError | None = None
        """The refusal of an append that was refused at once (UA2)."""
        self.failure: LogError | None = None
        """Why this boat is no longer served here (UI1)."""

    def receive(
        self, message: ToCloud[MadeBlock], *, new_lineage: bytes, now_ms: int, now_us: int
    ) -> tuple[int, list[ToBoat]]:
        """Take one message of the boat: how many appends it became, and what the boat is told at once."""
        if self.failure is not None:
            return 0, [Refused(session=0, code=self.failure.code, detail=str(self.failure))]
        appends, replies = self.channel.receive(message, new_lineage=new_lineage, now_ms=now_ms, now_us=now_us)
        for append in appends:
            self.submit(append)
        return len(appends), replies

    def submit(self, append: LogAppend, *, is_control: bool = False) -> None:
        def settled(first_offset: int, error: LogError | None) -> None:
            self._settled.append((append, first_offset, error))
            # One commit settles many: they are taken together.
            if not self._settling_is_due:
                self._settling_is_due = True
                self._settle_soon()

        self.submitted += 1
        self.waiting_bytes += _size(append)
        if self._refusal is None:
            try:
                self.led_channel.append(append, settled, is_control=is_control)
                return
            except LogError as error:
                self._refusal = error
        settled(0, self._refusal)

    def take_settled(self, *, now_ms: int, now_us: int) -> Settled:
        """In the order of submission (UA1)."""
        self._settling_is_due = False
        committed: list[LogAppend] = []
        refusal: LogError | None = None
        while self._settled:
            append, first_offset, error = self._settled.popleft()
            self.settled_count += 1
            self.waiting_bytes -= _size(append)
            if error is not None:
                refusal = refusal or error
            elif self.failure is None and refusal is None:
                offsets = range(first_offset, first_offset + _counted(append))
                self.committed_end = offsets.stop
                self.bytes_since_snapshot += _size(append)
                if append is self._snapshot_append:
                    self._snapshot_written(offsets, now_us)
                committed.append(append)
        count = sum(not append.is_own for append in committed)
        replies = self.channel.committed(count, now_ms=now_ms) if count else ()
        return Settled(tuple(committed), tuple(replies), refusal)

    def end(self, error: LogError) -> bool:
        """Everything is refused from here on (UI1). False if it was over before."""
        if self.failure is not None:
            return False
        self.failure = error
        return True

    @property
    def may_append(self) -> bool:
        """Whether what is of the node's own is still taken."""
        return self.failure is None and self._refusal is None and self.led_channel.is_held

    def submit_snapshot(self, *, now_us: int, events: Sequence[dict[str, Any]] = ()) -> None:
        """Append a record of the folds, so that the log start may pass what came before it (F3)."""
        if self.may_append and self._snapshot_append is None:
            append = self.channel.snapshot(now_us // 1000, events=events, others=self.led_channel.other_snapshots())
            self._snapshot_append = append
            self.submit(append, is_control=True)

    def _snapshot_written(self, offsets: range, now_us: int) -> None:
        self.snapshot = SnapshotPlace(offsets=offsets, time_us=now_us)
        self._snapshot_append = None
        self.bytes_since_snapshot = 0


def _size(append: LogAppend) -> int:
    return len(append.made.body) + _BLOCK_HEAD_BYTES


def _counted(append: LogAppend) -> int:
    """How many offsets it takes."""
    return sum(map(len, append.windows)) if append.windows else append.made.maker.record_count
