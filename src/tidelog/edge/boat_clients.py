"""Requests of lplex's own clients to a boat beyond reading: buffered sessions, sending, querying a device.

`lplex tail --last`, `lplex dump` with a buffer, `lplex request` and `lplex send` use these routes. Paths, bodies and
statuses are lplex's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

from tidelog.compat.captures import parts_from_can_id
from tidelog.edge.journal.journal import Journal
from tidelog.edge.journal.ring import Ring
from tidelog.edge.journal.seq_log import JournalSeqs
from tidelog.edge.sources.transmitting import BROADCAST, ISO_REQUEST, BusSender, Query
from tidelog.errors import RequestRefused
from tidelog.http.access import READ_DATA, WRITE_BUS
from tidelog.http.feed import FeedBlock, FrameFeed, Subscription
from tidelog.http.filters import FrameFilter
from tidelog.http.frames import Rows, frame_seqs, frame_texts
from tidelog.http.routes import EVENTS_TYPE, JSON_TYPE, Call, Route, json_answer
from tidelog.http.sessions import ClientSession, SessionBook, stream_session
from tidelog.http.shapes import COUNT, TEXT, array_of, object_of, ref
from tidelog.nmea.devices import Device

_LIST: Final = {"type": "array", "items": {"type": "integer"}}
_TEXTS: Final = array_of(TEXT)
_SESSION: Final = object_of(
    {},
    optional={
        "buffer_timeout": TEXT,
        "filter": object_of(
            {},
            optional={
                **dict.fromkeys(("pgn", "exclude_pgn", "src", "instance"), _LIST),
                **dict.fromkeys(("manufacturer", "name", "exclude_name", "bus"), _TEXTS),
            },
        ),
    },
)
_SESSION_ANSWER: Final = object_of(
    {"client_id": TEXT, "seq": COUNT, "devices": array_of(ref("Device"))}, optional={"cursor": COUNT}
)
_SEND: Final = object_of(
    {"pgn": COUNT, "data": TEXT}, optional={"src": COUNT, "dst": COUNT, "prio": COUNT, "bus": TEXT}
)
_QUERY: Final = object_of({"pgn": COUNT}, optional={"dst": COUNT, "timeout": TEXT, "bus": TEXT})


def _no_sender() -> BusSender:
    return BusSender(None, transmit=lambda: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsView:
    """What a boat provides to these routes."""

    journal: Journal
    ring: Ring | None
    feed: FrameFeed
    devices: Callable[[], list[Device]]
    now_ms: Callable[[], int]
    sessions: SessionBook = field(default_factory=SessionBook)
    sender: BusSender = field(default_factory=_no_sender)


def client_routes(view: Callable[[], ClientsView]) -> list[Route]:
    pages = _Pages(view)
    return [
        Route(
            path="/clients/{client}",
            method="PUT",
            summary="Make a buffered session, or give the one of this id another timeout and filter.",
            answer=pages.make,
            scope=READ_DATA,
            body=_SESSION,
            schema=_SESSION_ANSWER,
        ),
        Route(
            path="/clients/{client}/events",
            summary="Frames after the last one that the session acked, then as they happen (server-sent events).",
            answer=pages.events,
            scope=READ_DATA,
            content_type=EVENTS_TYPE,
            streams=True,
        ),
        Route(
            path="/clients/{client}/ack",
            method="PUT",
            summary="Say up to which seq the session has what it read.",
            answer=pages.ack,
            scope=READ_DATA,
            body=object_of({"seq": COUNT}),
            status=204,
        ),
        Route(
            path="/send",
            method="POST",
            summary="Put a message on the bus, where the boat's operator allows its PGN.",
            answer=pages.send,
            scope=WRITE_BUS,
            body=_SEND,
            schema={"type": "object"},
            status=202,
            errors=(429, 501),
        ),
        Route(
            path="/query",
            method="POST",
            summary="Ask devices to send a PGN (an ISO request), and wait for the first that does.",
            answer=pages.query,
            scope=WRITE_BUS,
            body=_QUERY,
            schema=ref("Frame"),
            errors=(429, 501, 504),
        ),
    ]


class _Pages:
    def __init__(self, view: Callable[[], ClientsView]) -> None:
        self._get_view = view

    async def make(self, call: Call) -> web.StreamResponse:
        view = self._get_view()
        session = view.sessions.make(call.caller.name, call.path["client"], call.body, view.now_ms())
        answer: dict[str, Any] = {"client_id": session.client_id, "seq": view.journal.head}
        if session.cursor and session.lineage == view.journal.lineage:
            answer["cursor"] = session.cursor
        return json_answer({**answer, "devices": [device.to_json() for device in view.devices()]})

    async def events(self, call: Call) -> web.StreamResponse:
        view = self._get_view()
        return await stream_session(
            call,
            self._session(call),
            log=JournalSeqs(view.journal, view.ring),
            feed=view.feed,
            devices=view.devices,
            now_ms=view.now_ms,
        )

    async def ack(self, call: Call) -> web.StreamResponse:
        view = self._get_view()
        journal = view.journal
        view.sessions.ack(self._session(call), call.body, head=journal.head, lineage=journal.lineage)
        return web.Response(status=204)

    def _session(self, call: Call) -> ClientSession:
        view = self._get_view()
        return view.sessions.find(call.caller.name, call.path["client"], view.now_ms())

    async def send(self, call: Call) -> web.StreamResponse:
        view = self._get_view()
        view.sender.send(call.body, view.now_ms())
        return json_answer({}, status=202)

    async def query(self, call: Call) -> web.StreamResponse:
        view = self._get_view()
        # Subscribed before the request is sent, or a quick device would be missed.
        with view.feed.subscribe() as subscription:
            asked = view.sender.ask(call.body, view.now_ms())
            try:
                async with asyncio.timeout(asked.timeout_ms / 1000):
                    text = await _first_answer(subscription, asked)
            except TimeoutError:
                text = None
        if text is None:
            detail = f"no device sent PGN {asked.pgn} within {asked.timeout_ms / 1000:g} s of PGN {ISO_REQUEST}"
            raise RequestRefused(status=504, reason="no_answer", detail=detail)
        return web.Response(text=text + "\n", content_type=JSON_TYPE)


async def _first_answer(subscription: Subscription, asked: Query) -> str | None:
    """The first frame of the PGN, from the requested device if one was named; None when the feed ends."""
    sources = frozenset() if asked.destination == BROADCAST else frozenset({asked.destination})
    wanted = FrameFilter(pgns=frozenset({asked.pgn}), sources=sources)
    while not subscription.ended:
        item = await subscription.wait_item(asked.timeout_ms / 1000)
        if not isinstance(item, FeedBlock):
            continue
        parts = parts_from_can_id(item.frames.can_ids)
        rows: Rows = wanted.passed(parts.pgn, parts.source, tuple).nonzero()[0]
        if len(rows):
            seqs = frame_seqs(item.base_seq, len(item.frames))
            return frame_texts(seqs, item.frames, rows[:1])[0]
    return None
