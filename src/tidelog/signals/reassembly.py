"""Fast packets of raw captures put together, over whole columns.

The same rules as `tidelog.nmea.fast_packet`, for history instead of a live bus: all frames are there at once, so
messages are found by sorting. Frames of one sender, destination, PGN and sequence counter are grouped in order of time;
a message begins at each frame 0 that is no copy, and at each pause longer than the timeout. A message takes the place
of the frame that made it whole.

Invariants:
SRE1  Frames that are no part of anything pass unchanged and in order.
SRE2  A message comes out at most once for every frame 0, and only if all its frames are there.
SRE3  Every frame passes, is in a message that came out, or is counted: `incomplete` counts frames, copies and malformed
      ones included.
SRE4  Frames that join to a message are its parts, whatever else the stream holds. Any other short payload of a fast
      packet is a message of its own only in a stream that was reassembled already: one that has shown more messages of
      more than 8 bytes, which no CAN frame has, than messages that had to be joined (`Assembly`).

Frame 0 behind its own other frames (reordered by a gateway) is taken for the next message's, so such a message
counts as incomplete here, where the assembler of a live bus would wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.nmea.fast_packet import FAST_PACKET_BYTES_MAX, TIMEOUT_US
from tidelog.signals.buffers import binary_array, binary_buffers
from tidelog.signals.layouts import fast_packet_pgns
from tidelog.signals.payloads import Int64s, UInt8s, padded

INCOMPLETE: Final = "incomplete_fast_packet"

_FRAME_BYTES_MAX: Final = 8
_FIRST_BYTES: Final = 6
_LATER_BYTES: Final = 7
_FRAMES_MAX: Final = 32
_SEEN_MAX: Final = 64
"""How much of the past a change of the stream has to outweigh."""


@dataclass(slots=True)
class Assembly:
    """What a lineage has shown so far: whether its long messages come whole or as frames.

    Counts of whole messages less those of joined ones. A PGN counts by itself too: a boat whose list of fast packets is
    older than ours passes the frames of a newer one as they are.
    """

    balance: int = 0
    by_pgn: dict[int, int] = field(default_factory=dict)

    def add(self, whole: npt.NDArray[np.int32], joined: npt.NDArray[np.int32]) -> None:
        """Messages that were seen, as their PGNs."""
        self.balance = _bounded(self.balance + len(whole) - len(joined))
        for pgns, sign in ((whole, 1), (joined, -1)):
            for pgn, count in zip(*(found.tolist() for found in np.unique(pgns, return_counts=True)), strict=True):
                self.by_pgn[pgn] = _bounded(self.by_pgn.get(pgn, 0) + sign * count)

    def whole_pgns(self, pgns: Int64s) -> Int64s:
        """Those of these PGNs whose short payloads are messages."""
        if self.balance <= 0:
            return pgns[:0]
        return np.array([pgn for pgn in pgns.tolist() if self.by_pgn.get(pgn, 0) >= 0], dtype=np.int64)


def _bounded(balance: int) -> int:
    return max(-_SEEN_MAX, min(_SEEN_MAX, balance))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassembled:
    """Whole messages of a batch."""

    whole: pa.RecordBatch
    """The batch's columns; a message has those of the frame that made it whole, and its own data."""
    incomplete: list[tuple[int, int]]
    """(pgn, frames) that gave nothing, by PGN."""
    open_tail: pa.RecordBatch
    """Frames, counted as incomplete, of messages that may go on in the next batch: put them before it."""


def reassemble(batch: pa.RecordBatch, seen: Assembly | None = None) -> Reassembled:
    """Whole messages from the frames of one lineage, in order of seq.

    `seen` is what the lineage has shown before this batch, and is brought up to date.
    """
    seen = Assembly() if seen is None else seen
    offsets, values = binary_buffers(batch.column("data"))
    lengths = np.diff(offsets).astype(np.int64)
    pgns = batch.column("pgn").to_numpy(zero_copy_only=False)
    is_fast = np.isin(pgns, _fast_pgns())
    is_short = lengths <= _FRAME_BYTES_MAX
    parts = np.flatnonzero(is_fast & is_short)
    long = pgns[is_fast & ~is_short]
    if not len(parts):
        seen.add(long, long[:0])
        return Reassembled(whole=batch, incomplete=[], open_tail=batch.slice(0, 0))
    frames = _Parts(batch, parts, offsets[:-1].astype(np.int64), lengths, padded(values, _FRAME_BYTES_MAX))
    seen.add(long, pgns[parts[frames.joined()]])
    # Of these PGNs a short payload that was not joined is a message.
    passing = np.isin(pgns[parts], seen.whole_pgns(np.unique(pgns[parts])))
    messages = frames.messages(passing)
    used = np.zeros(batch.num_rows, dtype=np.bool)
    used[parts[messages.member_frames]] = True
    used[parts[passing]] = True
    left = parts[~used[parts]]
    distinct, counts = np.unique(pgns[left], return_counts=True)
    passing[messages.member_frames] = False
    return Reassembled(
        whole=_with_messages(batch, parts[~passing], parts, messages, offsets, values),
        incomplete=list(zip(distinct.tolist(), counts.tolist(), strict=True)),
        open_tail=batch.take(pa.array(frames.open_frames(used))),
    )


@cache
def _fast_pgns() -> npt.NDArray[np.int32]:
    """From the definitions that decode them: with an older list, the frames of a PGN would be decoded one by one."""
    return np.array(sorted(fast_packet_pgns()), dtype=np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Messages:
    """Whole messages in the order in which they became whole."""

    finished_by: Int64s
    """Place, among the parts, of the frame that made each whole."""
    offsets: npt.NDArray[np.int32]
    data: UInt8s
    member_frames: Int64s
    """Places among the parts of all frames that are in a message."""


class _Parts:
    """The frames of fast packets, sorted by sender and PGN and then by their order in the batch."""

    def __init__(self, batch: pa.RecordBatch, parts: Int64s, starts: Int64s, lengths: Int64s, buffer: UInt8s) -> None:
        self._parts = parts
        self._times = batch.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)[parts]
        self._lengths = lengths[parts]
        self._starts = starts[parts]
        self._buffer = buffer
        control = np.where(self._lengths > 0, buffer[self._starts], 0).astype(np.int64)
        self._number = control & 0x1F
        self._told = np.where(self._lengths > 1, buffer[self._starts + 1], 0).astype(np.int64)
        words: npt.NDArray[np.uint64] = np.ndarray((len(buffer) - 7,), dtype="<u8", buffer=buffer, strides=(1,))
        self._words = words[self._starts]
        key = _key(batch, parts) << 3 | control >> 5
        self._order = np.argsort(key, kind="stable")
        self._key = key[self._order]
        self._find()

    def _find(self) -> None:
        """The messages of which all frames are there."""
        order = self._order
        number, told, length = self._number[order], self._told[order], self._lengths[order]
        sound = (length >= 2) & ((number > 0) | ((told >= 1) & (told <= FAST_PACKET_BYTES_MAX)))
        run = self._runs(number, sound)
        # A frame that its message has already is a copy, or the frame of a message that lost its frame 0.
        slot = run * _FRAMES_MAX + number
        first = np.zeros(len(slot), dtype=np.bool)
        usable = np.flatnonzero(sound)
        first[usable[np.unique(slot[usable], return_index=True)[1]]] = True
        runs = int(run[-1]) + 1
        heads = np.flatnonzero(first & (number == 0))
        told_of_run = np.zeros(runs, dtype=np.int64)
        told_of_run[run[heads]] = told[heads]
        needed = np.where(told_of_run > 0, 1 + np.maximum(0, -(-(told_of_run - _FIRST_BYTES) // _LATER_BYTES)), 0)
        # The last frame need hold no more than what is left of the message.
        room = np.where(number == 0, _FIRST_BYTES, _LATER_BYTES)
        before = np.where(number == 0, 0, _FIRST_BYTES + (number - 1) * _LATER_BYTES)
        content = np.clip(told_of_run[run] - before, 0, room)
        holds = length - np.where(number == 0, 2, 1) >= content
        member = first & holds & (number < needed[run])
        present = np.bincount(run[member], minlength=runs)
        whole = (needed > 0) & (present == needed)
        self._run, self._before, self._content = run, before, content
        self._told_of_run, self._needed = told_of_run, needed
        self._members = np.flatnonzero(member & whole[run])

    def joined(self) -> Int64s:
        """The first frame of each message of several frames."""
        members = self._members
        heads = members[(self._number[self._order[members]] == 0) & (self._needed[self._run[members]] > 1)]
        found: Int64s = self._order[heads]
        return found

    def messages(self, passing: npt.NDArray[np.bool]) -> _Messages:
        """Whole messages. Of the frames marked in `passing` one alone is none, but a message already."""
        members = self._members
        alone = passing[self._order[members]] & (self._needed[self._run[members]] == 1)
        return self._joined(members[~alone])

    def _runs(self, number: Int64s, sound: npt.NDArray[np.bool]) -> Int64s:
        """To which message each sorted frame belongs."""
        order, key = self._order, self._key
        times = self._times[order]
        begins = np.ones(len(order), dtype=np.bool)
        begins[1:] = (key[1:] != key[:-1]) | (np.abs(np.diff(times)) > TIMEOUT_US)
        # A controller repeats a frame at once: frame 0 right behind its twin is a copy and begins nothing, unless
        # the twin was a whole message.
        words = self._words[order]
        twin = np.zeros(len(order), dtype=np.bool)
        open_still = self._told[order] > _FIRST_BYTES
        twin[1:] = (words[1:] == words[:-1]) & (number[:-1] == 0) & sound[:-1] & open_still[:-1]
        begins |= (number == 0) & sound & ~twin
        runs: Int64s = np.cumsum(begins) - 1
        return runs

    def _joined(self, members: Int64s) -> _Messages:
        order, run, before, content = self._order, self._run, self._before, self._content
        runs = np.unique(run[members])
        finished = np.full(int(run[-1]) + 1, -1, dtype=np.int64)
        np.maximum.at(finished, run[members], order[members])
        by_finish = np.argsort(finished[runs], kind="stable")
        runs = runs[by_finish]
        sizes = self._told_of_run[runs]
        offsets = np.zeros(len(runs) + 1, dtype=np.int32)
        np.cumsum(sizes, out=offsets[1:])
        start_of_run = np.zeros(int(run[-1]) + 1, dtype=np.int64)
        start_of_run[runs] = offsets[:-1]
        data = np.zeros(int(offsets[-1]), dtype=np.uint8)
        skipped = np.where(self._number[order[members]] == 0, 2, 1)
        for byte in range(_LATER_BYTES):
            some = members[content[members] > byte]
            at = start_of_run[run[some]] + before[some] + byte
            data[at] = self._buffer[self._starts[order[some]] + skipped[content[members] > byte] + byte]
        return _Messages(finished_by=finished[runs], offsets=offsets, data=data, member_frames=order[members])

    def open_frames(self, used: npt.NDArray[np.bool]) -> Int64s:
        """Places in the batch of frames that are in no message and younger than the timeout."""
        newest = int(self._times[-1])
        recent = np.abs(newest - self._times) <= TIMEOUT_US
        found: Int64s = self._parts[recent & ~used[self._parts]]
        return found


def _key(batch: pa.RecordBatch, parts: Int64s) -> Int64s:
    """One number for source, destination and PGN."""
    key = np.zeros(len(parts), dtype=np.int64)
    for name, bits in (("source", 8), ("destination", 8), ("pgn", 20)):
        column = batch.column(name).to_numpy(zero_copy_only=False)[parts].astype(np.int64)
        key = key << bits | column & (1 << bits) - 1
    return key


def _with_messages(
    batch: pa.RecordBatch,
    dropped: Int64s,
    parts: Int64s,
    messages: _Messages,
    offsets: npt.NDArray[np.int32],
    values: UInt8s,
) -> pa.RecordBatch:
    """The batch without the dropped rows and with the messages in the place of the parts that made them whole."""
    keep = np.ones(batch.num_rows, dtype=np.bool)
    keep[dropped] = False
    finished = parts[messages.finished_by]
    keep[finished] = True
    kept = np.flatnonzero(keep)
    # All bytes behind one another, those of the messages last; each row takes its own stretch.
    together = np.concatenate([values, messages.data])
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    starts[finished] = len(values) + messages.offsets[:-1].astype(np.int64)
    lengths[finished] = np.diff(messages.offsets)
    data = binary_array(together, starts[kept], lengths[kept])
    whole = batch.take(pa.array(kept))
    return whole.set_column(whole.schema.get_field_index("data"), "data", data)
