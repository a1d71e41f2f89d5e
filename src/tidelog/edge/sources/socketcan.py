"""Frames from a CAN interface, by python-can (the extra `can`, loaded only here).

A thread takes frames off the bus as they come, because the kernel keeps only a few hundred and does
not say how many it threw away; the caller takes them from a bounded queue and assembles. The thread touches
nothing but the bus and that queue.

Invariants:
SSO1  A frame is given out, counted as dropped, or waits in the queue.
SSO2  The queue never has more than `queue_frames_max` frames.
SSO3  A broken bus is reported once, by `SourceFailed`, after everything heard before was given out.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import CAN_ID_MAX
from tidelog.compat.captures import SkipReason
from tidelog.errors import InvalidConfig, SourceFailed
from tidelog.extras import optional
from tidelog.nmea.fast_packet import AssemblerStatistics, FastPacketAssembler
from tidelog.units import US_PER_S

if TYPE_CHECKING:
    import can

READ_FRAMES_MAX: Final = 8192
_LISTEN_S: Final = 0.2
"""How long the thread may listen before it checks whether it must stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketCanOptions:
    channel: str = "can0"
    interface: str = "socketcan"
    """A python-can interface: socketcan, slcan, virtual and many more."""
    queue_frames_max: int = 65_536
    """At 1,800 frames a second this bridges half a minute."""

    def __post_init__(self) -> None:
        problems = []
        if not self.channel or not self.interface:
            problems.append("channel and interface need a name, like can0 and socketcan")
        if self.queue_frames_max < 1:
            problems.append("queue_frames_max must be positive")
        if problems:
            raise InvalidConfig(section="can", problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketCanStatistics:
    heard: int
    """Frames taken off the bus."""
    waiting: int
    overflowed: int
    """Frames thrown away because the queue was full."""
    skipped: dict[SkipReason, int]
    """Frames that are no NMEA 2000, by reason."""
    assembler: AssemblerStatistics


class SocketCanSource:
    """An open bus. `on_frames` is called from the reading thread when the queue was empty and is not any
    more, and when the bus breaks: for an event loop, pass something that calls `call_soon_threadsafe`."""

    def __init__(self, *, options: SocketCanOptions | None = None, on_frames: Callable[[], None] | None = None) -> None:
        self._options = options or SocketCanOptions()
        self._name = f"{self._options.interface} {self._options.channel}"
        self._on_frames = on_frames
        self._assembler = FastPacketAssembler()
        self._queue: deque[can.Message] = deque()
        self._heard = 0
        self._overflowed = 0
        self._skipped: Counter[SkipReason] = Counter()
        self._failure: Exception | None = None
        self._told = False
        self._stop = threading.Event()
        self._bus = _open_bus(self._options, self._name)
        self._thread = threading.Thread(target=self._listen, name=f"tidelog-{self._name}", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        return self._told or self._stop.is_set()

    def read(self, now_us: int) -> FrameColumns:
        rows = []
        # Seen before the queue is emptied: what the thread heard before it failed is in the queue by now.
        failure = self._failure
        for _ in range(min(len(self._queue), READ_FRAMES_MAX)):
            message = self._queue.popleft()
            reason = _no_frame(message)
            if reason is not None:
                self._skipped[reason] += 1
                continue
            # Interfaces without a clock of their own give 0.
            time_us = round(message.timestamp * US_PER_S) if message.timestamp > 0 else now_us
            row = self._assembler.receive(time_us, message.arbitration_id, bytes(message.data))
            if row is not None:
                rows.append(row)
        if failure is not None and not rows and not self._queue and not self._told:
            self._told = True
            raise SourceFailed(source=self._name, reason=str(failure)) from failure
        return FrameColumns.from_rows(rows)

    def send(self, can_id: int, payload: bytes) -> None:
        """Put one frame on the bus, at once or not at all. Raises `SourceFailed` if the interface does not take it."""
        import can

        if self._failure is not None or self._stop.is_set():
            raise SourceFailed(source=self._name, reason="the bus is closed")
        message = can.Message(arbitration_id=can_id, data=payload, is_extended_id=True)
        try:
            self._bus.send(message)
        except (can.CanError, OSError, ValueError, NotImplementedError) as error:
            raise SourceFailed(source=self._name, reason=str(error)) from error

    def wake_at_us(self) -> int | None:
        """At once while frames or a failure wait; otherwise `on_frames` is called."""
        return 0 if self._queue or (self._failure is not None and not self._told) else None

    def close(self) -> None:
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join()
        self._bus.shutdown()

    def statistics(self) -> SocketCanStatistics:
        return SocketCanStatistics(
            heard=self._heard,
            waiting=len(self._queue),
            overflowed=self._overflowed,
            skipped=dict(self._skipped),
            assembler=self._assembler.statistics(),
        )

    def _listen(self) -> None:
        try:
            while not self._stop.is_set():
                message = self._bus.recv(timeout=_LISTEN_S)
                if message is not None:
                    self._enqueue(message)
        except Exception as error:  # python-can lets errors of many drivers through, each of its own kind
            self._failure = error
            self._tell()

    def _enqueue(self, message: can.Message) -> None:
        self._heard += 1
        if len(self._queue) >= self._options.queue_frames_max:
            self._overflowed += 1
            return
        first = not self._queue
        self._queue.append(message)
        if first:
            self._tell()

    def _tell(self) -> None:
        if self._on_frames is not None:
            self._on_frames()


def _open_bus(options: SocketCanOptions, name: str) -> can.BusABC:
    with optional("reading a CAN interface"):
        import can
    settings: dict[str, Any] = {"channel": options.channel, "interface": options.interface}
    try:
        # A settings file of python-can in the home folder must not change what the operator configured here.
        return can.Bus(**settings, ignore_config=True)
    except NotImplementedError as error:
        problem = f"python-can knows no interface {options.interface!r} here; choose one, like socketcan"
        raise InvalidConfig(section="can", problems=[problem]) from error
    except (can.CanError, OSError, ValueError, ImportError) as error:
        raise SourceFailed(source=name, reason=str(error)) from error


def _no_frame(message: can.Message) -> SkipReason | None:
    """Why a message is no NMEA 2000 frame; None if it is one."""
    if message.is_error_frame:
        return SkipReason.ERROR_FRAME
    if message.is_fd:
        return SkipReason.CAN_FD
    if message.is_remote_frame:
        return SkipReason.REMOTE_FRAME
    if not message.is_extended_id:
        return SkipReason.STANDARD_ID
    return SkipReason.MALFORMED if not 0 <= message.arbitration_id <= CAN_ID_MAX else None
