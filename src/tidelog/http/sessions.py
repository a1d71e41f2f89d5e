"""Buffered sessions of lplex's clients: a name, a filter, and how far its reader has come.

A session holds no frames: its reader gets them from the log of the bus, by seq, after the last one that it acked. So a
reader that was away for a minute gets what it missed, and a slow one loses nothing that the log still has. Sessions are
kept in memory: after a restart a client makes its session anew, and begins with new frames.

What a caller must keep: everything on one event loop; `now_ms` never goes back.

BS1  A session belongs to the credential that made it: another credential with the same id has a session of its own.
BS2  A session without a reader is deleted after its buffer timeout; there are never more than `sessions_max`.
BS3  A reader gets every frame that is held, once, in the order of the seqs, and a notice where frames are gone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from aiohttp import web

from tidelog.errors import InvalidConfig, RequestRefused
from tidelog.http.feed import FrameFeed
from tidelog.http.filters import EVERYTHING, FrameFilter, filter_from_query
from tidelog.http.frames import frame_seqs, frame_texts
from tidelog.http.routes import Call
from tidelog.http.streams import EVENT_HEADERS, NumberedFrames, next_due_s, was_written
from tidelog.nmea.devices import Device
from tidelog.units import parse_duration_us

SESSIONS_MAX: Final = 64
BUFFER_MS_MAX: Final = 300_000
"""lplex's -max-buffer-duration."""
UNBUFFERED_MS: Final = 30_000
"""How long a session without a buffer waits for its reader."""
CLIENT_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

_TEXT_FRAMES: Final = 2_000
"""Frames formatted at once: some milliseconds during which the event loop does nothing else."""
_FILTER_VALUES_MAX: Final = 256
_FILTER_KEYS: Final = ("pgn", "exclude_pgn", "src", "manufacturer", "instance", "name", "exclude_name", "bus")


@dataclass(slots=True, kw_only=True)
class ClientSession:
    client_id: str
    buffer_ms: int
    wanted: FrameFilter
    touched_ms: int
    cursor: int = 0
    """The last seq that was acked; 0 for none yet."""
    lineage: bytes = b""
    """The lineage of that seq."""
    readers: int = 0

    def is_over(self, now_ms: int) -> bool:
        return not self.readers and now_ms - self.touched_ms > (self.buffer_ms or UNBUFFERED_MS)


class SessionBook:
    """The sessions of one bus."""

    def __init__(self, *, buffer_ms_max: int = BUFFER_MS_MAX, sessions_max: int = SESSIONS_MAX) -> None:
        self._buffer_ms_max = buffer_ms_max
        self._sessions_max = sessions_max
        self._sessions: dict[tuple[str, str], ClientSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def make(self, owner: str, client_id: str, body: Mapping[str, Any], now_ms: int) -> ClientSession:
        """A new session, or the existing one with another timeout and filter. Raises `RequestRefused`."""
        if CLIENT_ID.fullmatch(client_id) is None:
            detail = f"{client_id[:80]!a} is no client id; use 1 to 64 letters, digits, dashes and underscores"
            raise RequestRefused(status=400, reason="bad_client_id", detail=detail)
        if unknown := [name for name in body if name not in ("buffer_timeout", "filter")]:
            raise _bad_body(f"{unknown[0][:80]!a} is not known here; a session has buffer_timeout and filter")
        buffer_ms = min(_buffer_ms(body.get("buffer_timeout")), self._buffer_ms_max)
        wanted = _filter(body.get("filter"))
        self._forget_old(now_ms)
        session = self._sessions.get((owner, client_id))
        if session is None:
            if len(self._sessions) >= self._sessions_max:
                detail = f"{self._sessions_max} sessions are open, the most there may be; use /events, or end others"
                raise RequestRefused(status=503, reason="too_many_sessions", detail=detail)
            session = ClientSession(client_id=client_id, buffer_ms=buffer_ms, wanted=wanted, touched_ms=now_ms)
            self._sessions[owner, client_id] = session
        session.buffer_ms, session.wanted, session.touched_ms = buffer_ms, wanted, now_ms
        if not buffer_ms:
            session.cursor = 0
        return session

    def find(self, owner: str, client_id: str, now_ms: int) -> ClientSession:
        """Raises `RequestRefused` (404)."""
        self._forget_old(now_ms)
        session = self._sessions.get((owner, client_id))
        if session is None:
            detail = f"there is no session {client_id[:80]!a} of yours; make it with PUT /clients/{{id}}"
            raise RequestRefused(status=404, reason="not_found", detail=detail)
        session.touched_ms = now_ms
        return session

    def ack(self, session: ClientSession, body: Mapping[str, Any], *, head: int, lineage: bytes) -> None:
        """Set the position, forwards or back: lplex's `tail --last` begins by setting it back."""
        seq = body.get("seq")
        if type(seq) is not int or not 0 <= seq <= head or len(body) > 1:
            raise _bad_body(f'an ack is {{"seq": n}} with a seq from 0 to the head, {head}')
        session.cursor, session.lineage = seq, lineage

    def _forget_old(self, now_ms: int) -> None:
        for key in [key for key, session in self._sessions.items() if session.is_over(now_ms)]:
            del self._sessions[key]


def _bad_body(detail: str) -> RequestRefused:
    return RequestRefused(status=400, reason="bad_body", detail=detail)


def _buffer_ms(text: Any) -> int:
    if text in (None, ""):
        return 0
    try:
        if not isinstance(text, str):
            raise InvalidConfig(section="session", problems=["it is no text"])
        return parse_duration_us(text) // 1000
    except InvalidConfig:
        raise _bad_body("buffer_timeout is not a duration such as PT5M") from None


def _filter(plain: Any) -> FrameFilter:
    """lplex's object of lists, checked like the same values in a query."""
    if plain is None:
        return EVERYTHING
    if not isinstance(plain, dict):
        raise _bad_body("filter is not an object of lists")
    query: dict[str, list[str]] = {}
    for name, values in plain.items():
        if name not in _FILTER_KEYS or not isinstance(values, list | None):
            raise _bad_body(f"filter has lists under {', '.join(_FILTER_KEYS)}; {name[:80]!a} is none of them")
        if len(values or ()) > _FILTER_VALUES_MAX:
            raise _bad_body(f"filter.{name} has more than {_FILTER_VALUES_MAX} values")
        query[name] = [str(value) for value in values or ()]
    return filter_from_query(query)


# --- reading ---------------------------------------------------------------------------------------


class SeqLog(Protocol):
    """Frames of one bus by seq: in memory, on disk, or gone."""

    @property
    def head(self) -> int: ...

    @property
    def lineage(self) -> bytes: ...

    def read(self, seq: int) -> NumberedFrames | None:
        """Frames from `seq` on, or from the next one that is held; None if none is, or cannot be read yet."""
        ...


class _Position:
    """The position of a reader, and the text of the next events."""

    def __init__(self, session: ClientSession, log: SeqLog, devices: Callable[[], Iterable[Device]]) -> None:
        self._session = session
        self._log = log
        self._devices = devices
        self._lineage = log.lineage
        resumes = session.cursor > 0 and session.lineage == log.lineage
        self._next = session.cursor + 1 if resumes else log.head + 1

    def text(self) -> bytes | None:
        """The next events; None when nothing is there yet."""
        if self._log.lineage != self._lineage:
            self._lineage, self._next = self._log.lineage, 1
            return b": the boat began a new lineage, so seqs begin anew\n\n"
        found = self._log.read(self._next)
        if found is None:
            return None
        gone = found.base_seq - self._next
        count = min(len(found.frames), _TEXT_FRAMES)
        frames = found.frames.slice(0, count)
        rows = self._session.wanted.rows(frames, self._devices)
        texts = frame_texts(frame_seqs(found.base_seq, count), frames, rows)
        self._next = found.base_seq + count
        lines = [f": dropped {gone} frames\n\n"] if gone > 0 else []
        return "".join([*lines, *(f"data: {text}\n\n" for text in texts)]).encode()


async def stream_session(
    call: Call,
    session: ClientSession,
    *,
    log: SeqLog,
    feed: FrameFeed,
    devices: Callable[[], Iterable[Device]],
    now_ms: Callable[[], int],
) -> web.StreamResponse:
    """Everything after the session's position, then new frames, until one side ends (BS3)."""
    headers = {**call.headers, **EVENT_HEADERS}
    if call.head_only:
        return web.Response(headers=headers)
    limits = call.limits
    with feed.notice() as notice, call.reader(notice.end):
        session.readers += 1
        try:
            position = _Position(session, log, devices)
            response = web.StreamResponse(headers=headers)
            await response.prepare(call.request)
            pending: bytes | None = b": ready\n\n"
            written_s = checked_s = time.monotonic()
            while True:
                if pending:
                    if not await was_written(call, response, pending):
                        return response
                    written_s = time.monotonic()
                if (now_s := time.monotonic()) - checked_s >= limits.recheck_s:
                    checked_s = now_s
                    if not call.is_allowed():
                        return response
                if notice.ended:
                    return response
                notice.clear()  # before reading, so that frames which come meanwhile are not missed
                pending = position.text()
                if pending is None:
                    await notice.wait(next_due_s(now_s, written_s, checked_s, limits))
                    if time.monotonic() - written_s >= limits.heartbeat_s:
                        pending = b": heartbeat\n\n"
        finally:
            session.readers -= 1
            session.touched_ms = now_ms()
