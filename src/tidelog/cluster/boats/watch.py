"""Events, counters, devices and the feed of live frames of one boat.

The instance reports what it received and what is committed; readers (HTTP, state files) look here. A committed block
costs one entry in a list. It is processed at once only if the feed has a reader; otherwise many are folded together by
`fold`, which the owner calls every second.

What a caller must keep: everything is called on the event loop.

BW1  The feed shows committed frames that came by Live, each once, and the device seeds of an lplex boat.
BW2  A backfilled frame changes the facts about a device only if it is newer than they are, or fills a gap in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np

from tidelog.blocks.block import MadeBlock, raw_body
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.control import LineageOpened, RangeLost, SessionOpened, decode_control
from tidelog.blocks.decode import decode_block_frames
from tidelog.blocks.header import BlockKind, Path
from tidelog.cluster.boats.channel import LogAppend
from tidelog.cluster.boats.events import EventRing
from tidelog.codecs.uplink_codec import LplexFrame
from tidelog.compat.captures import parts_from_can_id
from tidelog.http.feed import FrameFeed
from tidelog.nmea.devices import NO_PRODUCT, Device, DeviceRegistry
from tidelog.nmea.pgns import ISO_ADDRESS_CLAIM, PRODUCT_INFORMATION
from tidelog.storage.log.writer import wall_clock_us
from tidelog.units import MIB

_UNFOLDED_BYTES_MAX: Final = 1 * MIB
_BACKFILLED_BYTES_MAX: Final = 8 * MIB
_FRAME_BYTES: Final = 16
"""The size of a frame in columns, beside its payload."""
_SOURCES: Final = 256
_LONG_AGO: Final = np.iinfo(np.int64).min

Identity: TypeAlias = tuple[tuple[int, int, tuple[object, ...]], ...]


class InstanceWatch:
    def __init__(self) -> None:
        self.events = EventRing()
        self.feed = FrameFeed()
        self.devices = DeviceRegistry()
        self.last_seen_us = 0
        self.journal_bytes = 0
        self.head_said = 0
        """The newest seq that the boat has announced since the cloud started."""
        self.frames_by_live = 0
        self.frames_by_backfill = 0
        self.has_news = False
        """Frames came since the last fold."""
        self._unfolded: list[tuple[int, FrameColumns, tuple[range, ...]]] = []
        self._unfolded_bytes = 0
        self._backfilled: list[FrameColumns] = []
        self._backfilled_bytes = 0

    def add_event(self, kind: str, **detail: object) -> None:
        """There is an event that no record of the log shows."""
        self.events.note(wall_clock_us(), kind, **detail)

    # --- what is committed -----------------------------------------------------------------------

    def committed(self, append: LogAppend) -> None:
        """Process one committed append."""
        self.has_news = True
        made, windows = append.made, append.windows
        if made.maker.kind == BlockKind.CONTROL:
            self._control(made)
            return
        count = sum(map(len, windows)) if windows else made.maker.record_count
        if append.path == Path.BACKFILL:
            self.frames_by_backfill += count
            self._note_backfilled(made, append.frames)
            return
        frames = append.frames if append.frames is not None else decode_block_frames(made)
        self.frames_by_live += count
        self._unfolded.append((made.maker.base_seq, frames, windows))
        self._unfolded_bytes += _size(frames)
        if self.feed.readers or self._unfolded_bytes > _UNFOLDED_BYTES_MAX:
            self.fold()

    def _control(self, made: MadeBlock) -> None:
        self.events.fold_control(
            [
                record
                for record in decode_control(made.maker, raw_body(made.maker, made.body))
                if isinstance(record, SessionOpened | LineageOpened | RangeLost)  # the others are in the ring already
            ],
            time_us=wall_clock_us(),
        )

    def _note_backfilled(self, made: MadeBlock, frames: FrameColumns | None) -> None:
        self.events.backfilled(made, wall_clock_us())
        # Faster than they can be processed: those that came first belong to the newest hole, and matter most.
        if self._backfilled_bytes < _BACKFILLED_BYTES_MAX:
            frames = frames if frames is not None else decode_block_frames(made)
            self._backfilled.append(frames)
            self._backfilled_bytes += _size(frames)

    def seed(self, frame: LplexFrame) -> None:
        """A device that an lplex boat announces: readers and the registry get it, the log does not."""
        frames = FrameColumns.from_rows([(frame.time_us, frame.can_id, frame.payload)])
        self.has_news = True
        self.fold()
        self.feed.publish(0, frames)
        self.feed.publish_devices(self.devices.receive(frames))

    # --- devices and the feed --------------------------------------------------------------------

    def fold(self) -> None:
        """Show Live frames to the readers, and update the devices."""
        if not self._unfolded:
            return
        unfolded, self._unfolded, self._unfolded_bytes = self._unfolded, [], 0
        run: list[FrameColumns] = []
        base_seq = next_seq = 0
        for block_seq, frames, windows in unfolded:
            for window in windows or (range(len(frames)),):
                start_seq = block_seq + window.start
                if start_seq != next_seq:
                    self._publish(base_seq, run)
                    run, base_seq = [], start_seq
                run.append(frames.slice(window.start, window.stop) if windows else frames)
                next_seq = start_seq + len(window)
        self._publish(base_seq, run)

    def _publish(self, base_seq: int, run: list[FrameColumns]) -> None:
        if run:
            frames = FrameColumns.concatenate(run)
            self.feed.publish(base_seq, frames)
            self.feed.publish_devices(self.devices.receive(frames))

    def take_backfilled(self) -> list[FrameColumns]:
        """Backfilled frames that are not processed yet, for `learn_devices`: oldest block first."""
        taken, self._backfilled, self._backfilled_bytes = self._backfilled, [], 0
        return sorted(taken, key=lambda frames: int(frames.times_us[0]))

    def learn_devices(self, frames: FrameColumns) -> None:
        """Fold older frames into the registry, as far as they have new facts (BW2)."""
        self.feed.publish_devices(self.devices.receive(_news(self.devices, frames)))

    def forget_idle(self, idle_us: int) -> None:
        """Drop devices that were silent for this long while others sent; a boat that is away keeps all of them."""
        devices = self.devices.devices()
        newest_us = max((device.last_seen_us for device in devices), default=0)
        self.feed.publish_devices(self.devices.forget_idle(newest_us, idle_us))

    def identities(self) -> Identity:
        """The devices on the bus, without fields that change with every frame."""
        return tuple((device.source, device.name, device.product) for device in self.devices.devices())

    def restore_devices(self, devices: Iterable[Device]) -> None:
        """Start from the saved devices, unless the boat has sent frames already."""
        if not len(self.devices):
            self.devices.restore(devices)


def _size(frames: FrameColumns) -> int:
    return len(frames.payload) + _FRAME_BYTES * len(frames)


def _news(devices: DeviceRegistry, frames: FrameColumns) -> FrameColumns:
    """The frames that are newer than the known facts about their source, or that fill a gap in them."""
    if not len(frames):
        return frames
    seen_us = np.full(_SOURCES, _LONG_AGO, np.int64)
    unnamed, unlabelled = np.ones(_SOURCES, bool), np.ones(_SOURCES, bool)
    for device in devices.devices():
        seen_us[device.source] = device.last_seen_us
        unnamed[device.source] = device.name == 0
        unlabelled[device.source] = device.product == NO_PRODUCT
    parts = parts_from_can_id(frames.can_ids)
    last_us = seen_us[parts.source]
    wanted = frames.times_us > last_us
    wanted |= (parts.pgn == ISO_ADDRESS_CLAIM) & unnamed[parts.source]
    wanted |= (parts.pgn == PRODUCT_INFORMATION) & unlabelled[parts.source]
    chosen = _select(frames, wanted)
    # A NAME that is learned late does not make its device older than it was.
    times_us = np.maximum(chosen.times_us, last_us[wanted])
    return FrameColumns(
        times_us=times_us,
        can_ids=chosen.can_ids,
        payload_offsets=chosen.payload_offsets,
        payload=chosen.payload,
    )


def _select(frames: FrameColumns, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> FrameColumns:
    lengths = np.diff(frames.payload_offsets)
    offsets = np.zeros(int(wanted.sum()) + 1, np.int32)
    np.cumsum(lengths[wanted], out=offsets[1:])
    return FrameColumns(
        times_us=frames.times_us[wanted],
        can_ids=frames.can_ids[wanted],
        payload_offsets=offsets,
        payload=frames.payload[np.repeat(wanted, lengths)],
    )
