"""Answers that are written piece by piece: event streams and arrays of frames.

Neither holds more than a piece in memory, and a client that reads nothing is cut off after a while. An array that fails
in the middle (the disk failed, say) is left without its end, so no client takes it for complete.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from aiohttp import web

from tidelog.blocks.columns import FrameColumns
from tidelog.errors import InvalidConfig, RequestRefused
from tidelog.http.feed import FeedBlock, FeedItem, FrameFeed
from tidelog.http.filters import FrameFilter, bad_parameter, filter_from_query, whole_number
from tidelog.http.frames import Rows, frame_seqs, frame_texts
from tidelog.http.routes import EVENTS_TYPE, JSON_TYPE, Call, Limits
from tidelog.nmea.devices import Device
from tidelog.units import parse_time_us

HISTORY_LIMIT: Final = 10_000
HISTORY_LIMIT_MAX: Final = 1_000_000
TIME_MAX_US: Final = 2**63 - 1

_CHUNK_FRAMES: Final = 2_000
"""How many frames are formatted at once: some milliseconds during which the event loop does nothing else."""

EVENT_HEADERS: Final = {
    "Content-Type": EVENTS_TYPE,
    "Cache-Control": "no-cache",
    "Connection": "keep-alive",
    "X-Accel-Buffering": "no",
}


def wants_gzip(request: web.BaseRequest) -> bool:
    """Whether gzip is named in Accept-Encoding and not refused with q=0."""
    for part in request.headers.get("Accept-Encoding", "").lower().split(","):
        coding, *options = (word.strip() for word in part.split(";"))
        if coding == "gzip":
            return not any(option.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for option in options)
    return False


# --- events --------------------------------------------------------------------------------------


async def stream_events(call: Call, feed: FrameFeed, *, devices: Callable[[], Iterable[Device]]) -> web.StreamResponse:
    """Everything that `feed` publishes from now on and that passes the query's filters, until one side ends."""
    wanted = filter_from_query(call.query)
    headers = {**call.headers, **EVENT_HEADERS}
    if call.head_only:
        return web.Response(headers=headers)
    limits = call.limits
    with (
        feed.subscribe(blocks_max=limits.reader_blocks_max, frames_max=limits.reader_frames_max) as subscription,
        call.reader(subscription.cancel),
    ):
        response = web.StreamResponse(headers=headers)
        await response.prepare(call.request)
        # A first comment, so that every proxy forwards the headers.
        pending = b": ready\n\n"
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
            item = await subscription.wait_item(next_due_s(now_s, written_s, checked_s, limits))
            if item is None and subscription.ended:
                return response
            if item is not None:
                pending = _event_text(item, wanted, devices)
            else:
                silent = time.monotonic() - written_s >= limits.heartbeat_s
                pending = b": heartbeat\n\n" if silent else b""


def next_due_s(now_s: float, written_s: float, checked_s: float, limits: Limits) -> float:
    """How long to wait for entries before something else is due."""
    return max(0.0, min(written_s + limits.heartbeat_s, checked_s + limits.recheck_s) - now_s)


def _event_text(item: FeedItem, wanted: FrameFilter, devices: Callable[[], Iterable[Device]]) -> bytes:
    if not isinstance(item, FeedBlock):
        return item.events()
    return item.events(wanted.rows(item.frames, devices))


async def was_written(call: Call, response: web.StreamResponse, data: bytes) -> bool:
    """Whether the client took it; if not, it has disconnected or was cut off for reading nothing."""
    try:
        async with asyncio.timeout(call.limits.write_timeout_s):
            await response.write(data)
    except TimeoutError:
        cut_off(call.request)
        return False
    except ConnectionError:
        return False
    return True


def cut_off(request: web.BaseRequest) -> None:
    """End the connection at once, without an end of the answer."""
    if request.transport is not None:
        request.transport.abort()


# --- history -------------------------------------------------------------------------------------


class NumberedFrames(Protocol):
    """Frames with seqs that follow each other from `base_seq` on."""

    @property
    def base_seq(self) -> int: ...

    @property
    def frames(self) -> FrameColumns: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery:
    from_us: int
    to_us: int
    """Half-open."""
    wanted: FrameFilter
    limit: int


def history_query(call: Call) -> HistoryQuery:
    """Raises `RequestRefused` (400)."""
    from_us = _time("from", call.one("from"), default_us=0)
    to_us = _time("to", call.one("to"), default_us=TIME_MAX_US)
    if to_us < from_us:
        raise bad_parameter("to", call.one("to") or "", "at or after from")
    limit = call.one("limit")
    return HistoryQuery(
        from_us=from_us,
        to_us=to_us,
        wanted=filter_from_query(call.query),
        limit=HISTORY_LIMIT if limit is None else whole_number("limit", limit, smallest=1, largest=HISTORY_LIMIT_MAX),
    )


def last_of(call: Call) -> int | None:
    """How many of the newest frames are requested; None where a time is. Raises `RequestRefused` (400)."""
    if (text := call.one("last")) is None:
        if call.one("from") is None:
            raise RequestRefused(
                status=400, reason="bad_parameter", detail="give from, the first moment, or last, a number of frames"
            )
        return None
    return whole_number("last", text, smallest=1, largest=HISTORY_LIMIT_MAX)


def _time(name: str, text: str | None, *, default_us: int) -> int:
    if text is None:
        return default_us
    try:
        # In a query an unescaped + arrives as a space.
        return parse_time_us(text.replace(" ", "+"))
    except InvalidConfig:
        raise bad_parameter(name, text, "a time such as 2026-03-06T10:15:30Z") from None


async def stream_history(
    call: Call, query: HistoryQuery, blocks: AsyncIterator[NumberedFrames], *, devices: Callable[[], Iterable[Device]]
) -> web.StreamResponse:
    """An array of frames: in the order of `blocks`, and by time inside of each."""
    headers = {**call.headers, "Content-Type": f"{JSON_TYPE}; charset=utf-8"}
    if call.head_only:
        return web.Response(headers=headers)
    # The first piece is made before the status line is sent: errors up to then get a proper answer.
    async with aclosing(_pieces(query, blocks, devices)) as pieces:
        first = await anext(pieces, "")
        response = web.StreamResponse(headers=headers)
        if wants_gzip(call.request):
            response.enable_compression(web.ContentCoding.gzip)
        await response.prepare(call.request)
        if not await was_written(call, response, f"[{first}".encode()):
            return response
        try:
            async for piece in pieces:
                if not await was_written(call, response, f",{piece}".encode()):
                    return response
        except Exception:
            cut_off(call.request)
            raise
        await was_written(call, response, b"]\n")
        return response


async def _pieces(
    query: HistoryQuery, blocks: AsyncIterator[NumberedFrames], devices: Callable[[], Iterable[Device]]
) -> AsyncGenerator[str, None]:
    left = query.limit
    async with aclosing(_gathered(blocks)) as gathered:
        async for group in gathered:
            frames = FrameColumns.concatenate([block.frames for block in group])
            seqs = np.concatenate([frame_seqs(block.base_seq, len(block.frames)) for block in group])
            rows = _history_rows(query, group, frames, devices)[:left]
            left -= len(rows)
            for part in _cut(rows):
                yield ",".join(frame_texts(seqs, frames, part))
                # Other tasks get their turn between two pieces.
                await asyncio.sleep(0)
            if left <= 0:
                return


async def _gathered(blocks: AsyncIterator[NumberedFrames]) -> AsyncGenerator[list[NumberedFrames], None]:
    """Blocks, as many together as make a piece: a log may have many with a single frame."""
    group: list[NumberedFrames] = []
    count = 0
    try:
        async for block in blocks:
            group.append(block)
            count += len(block.frames)
            if count >= _CHUNK_FRAMES:
                yield group
                group, count = [], 0
        if group:
            yield group
    finally:
        # A generator that is not exhausted would otherwise hold its files until it is collected.
        if isinstance(blocks, AsyncGenerator):
            await blocks.aclose()


def _history_rows(
    query: HistoryQuery,
    group: Sequence[NumberedFrames],
    frames: FrameColumns,
    devices: Callable[[], Iterable[Device]],
) -> Rows:
    """The indexes of the requested frames: block by block, by time in each, else in their order."""
    inside = (frames.times_us >= query.from_us) & (frames.times_us < query.to_us)
    if (passed := query.wanted.rows(frames, devices)) is not None:
        chosen = np.zeros(len(frames), dtype=np.bool_)
        chosen[passed] = True
        inside &= chosen
    rows = np.flatnonzero(inside)
    block_of = np.repeat(np.arange(len(group)), [len(block.frames) for block in group])
    return rows[np.lexsort((frames.times_us[rows], block_of[rows]))]


def _cut(rows: Rows) -> Iterator[Rows]:
    for start in range(0, len(rows), _CHUNK_FRAMES):
        yield rows[start : start + _CHUNK_FRAMES]
