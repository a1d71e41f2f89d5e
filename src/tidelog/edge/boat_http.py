"""The HTTP server of a boat: live frames, the journal, the state of replication.

Paths and shapes are lplex's, so its clients work unchanged; Tidelog's own keys come after lplex's. The server reads a
boat through `BoatView`; `boat_clients` has the routes that change something: sessions, and frames put on the bus.

What a caller must keep: the view's functions are called on the event loop and answer at once. The recorder publishes
every frame to `feed` in the order of its seqs, with the changes of the device registry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from aiohttp import web

from tidelog.blocks.block import Block
from tidelog.blocks.decode import counted_frames
from tidelog.edge.boat_clients import ClientsView, client_routes
from tidelog.edge.journal.journal import Journal
from tidelog.edge.journal.ring import Ring
from tidelog.edge.journal.seq_log import FRAME_KINDS, JournalFrames, last_frames
from tidelog.edge.sources.transmitting import BusSender
from tidelog.edge.uplink.uplink import UplinkStatistics
from tidelog.errors import OffsetOutOfRange
from tidelog.http.access import READ_STATUS
from tidelog.http.bus_routes import BusSummaries, bus_routes
from tidelog.http.decoded import decoded_values_json
from tidelog.http.feed import FrameFeed
from tidelog.http.filters import filter_from_query
from tidelog.http.frames import time_text
from tidelog.http.health import READINESS, livez_route, metrics_route, probe_route
from tidelog.http.metrics import Metrics
from tidelog.http.routes import Call, Route, json_answer, not_found
from tidelog.http.server import HttpOptions, HttpServer
from tidelog.http.sessions import SessionBook
from tidelog.http.shapes import (
    COUNT,
    FLAG,
    LAST_HISTORY_PARAMETERS,
    SEQ_RANGES,
    TEXT,
    TIME,
    object_of,
    ranges_json,
)
from tidelog.http.streams import history_query, last_of, stream_events, stream_history
from tidelog.http.values import values_json
from tidelog.nmea.devices import Device
from tidelog.pki.revocation import RevocationList
from tidelog.units import US_PER_S

TITLE: Final = "Tidelog boat"
NEVER: Final = "0001-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoatView:
    """What a boat provides to its HTTP server."""

    instance: str
    """Its name in the cloud; empty if it has none."""
    journal: Journal
    feed: FrameFeed
    devices: Callable[[], list[Device]]
    uplink: Callable[[], UplinkStatistics | None]
    """None when no target is configured."""
    now_us: Callable[[], int]
    """The boat's clock."""
    now_ms: Callable[[], int]
    """A clock that never goes back, for how long a session was away."""
    frames_refused: Callable[[], int] = lambda: 0
    """Frames of the bus that the journal could not take."""
    written: Callable[[], tuple[int, int]] | None = None
    """Blocks and bytes written to the journal since the start, where they are counted."""
    ring: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """Frames in the ring, and how many fit."""
    recent: Ring | None = None
    """The ring itself: frames that the journal has not written yet are read from it."""
    sessions: SessionBook = field(default_factory=SessionBook)
    sender: BusSender = field(default_factory=lambda: BusSender(None, transmit=lambda: None))
    """The transmitter for the bus; by default there is none."""
    problem: Callable[[], str | None] = lambda: None
    """Why the boat does not record, in words; None when it records."""
    trouble: Callable[[], str | None] = lambda: None
    """What will stop recording if it is not fixed, in words."""
    extra: Callable[[], Mapping[str, Any]] = dict
    """More keys for /replication/status, such as metering."""


class BoatHttp:
    """The boat's server: started and stopped once. `port` is the one that was bound."""

    def __init__(
        self,
        view: BoatView,
        options: HttpOptions,
        *,
        revocations: RevocationList | None = None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.server = HttpServer(
            options,
            routes=boat_routes(lambda: view),
            title=TITLE,
            owner=view.instance,
            revocations=revocations,
            log=log,
        )

    @property
    def port(self) -> int:
        return self.server.port

    async def start(self) -> None:
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop()


# --- the table -----------------------------------------------------------------------------------

_STATUS: Final = {
    "connected": FLAG,
    "instance_id": TEXT,
    "local_head_seq": COUNT,
    "cloud_cursor": COUNT,
    "holes": SEQ_RANGES,
    "live_lag": COUNT,
    "backfill_remaining_seqs": COUNT,
    "last_ack": TIME,
    "live_frames_sent": COUNT,
    "backfill_blocks_sent": COUNT,
    "backfill_bytes_sent": COUNT,
    "reconnects": COUNT,
}
_STATUS_OURS: Final = {
    "lineage": TEXT,
    "durable_head_seq": COUNT,
    "lost": SEQ_RANGES,
    "void": SEQ_RANGES,
    "dials": COUNT,
    "trouble": TEXT,
    "name_in_use": COUNT,
}
# Open: what `extra` adds (metering, for one) is described where it is made.
STATUS_SCHEMA: Final = {**object_of({**_STATUS, **_STATUS_OURS}), "additionalProperties": True}

_HEALTH: Final = object_of(
    {"status": {"type": "string", "enum": ["ok", "degraded", "unhealthy"]}},
    optional={
        "detail": TEXT,
        "broker": object_of(
            {
                "status": TEXT,
                "frames_total": COUNT,
                "head_seq": COUNT,
                "last_frame_time": TIME,
                "device_count": COUNT,
                "ring_entries": COUNT,
                "ring_capacity": COUNT,
            }
        ),
        "replication": object_of(
            {
                "status": {"type": "string", "enum": ["ok", "disconnected"]},
                "connected": FLAG,
                "live_lag": COUNT,
                "backfill_remaining_seqs": COUNT,
                "last_ack": TIME,
            }
        ),
    },
)


_SUMMARIES: Final = BusSummaries(
    events="Frames and changes of devices as they happen (server-sent events).",
    devices="Who is on the bus.",
    values="The latest frame of every device and PGN since the boat started.",
    history="Frames from the journal. The newest second may still be in memory.",
)


def boat_routes(view: Callable[[], BoatView]) -> list[Route]:
    """The table; `view` is not called before somebody asks."""
    pages = _Pages(view)
    return [
        Route(
            path="/replication/status",
            summary="How far the cloud has what this boat recorded.",
            answer=pages.status,
            scope=READ_STATUS,
            schema=STATUS_SCHEMA,
            errors=(404,),
        ),
        *bus_routes("", pages, _SUMMARIES, history_parameters=LAST_HISTORY_PARAMETERS),
        *client_routes(pages.clients_view),
        probe_route(
            "/healthz",
            "Whether the boat records and replicates; more than the status for who may read it.",
            pages.healthz,
            _HEALTH,
        ),
        probe_route("/readyz", "Whether the boat records.", pages.readyz, READINESS),
        livez_route(),
        metrics_route(pages.fill_metrics),
    ]


class _Pages:
    """The answers."""

    def __init__(self, view: Callable[[], BoatView]) -> None:
        self._get_view = view

    @property
    def _view(self) -> BoatView:
        return self._get_view()

    async def status(self, _: Call) -> web.StreamResponse:
        view = self._view
        uplink = view.uplink()
        if uplink is None:
            raise not_found("replication target on", view.instance or "this boat")
        statistics = view.journal.statistics()
        # Tidelog's keys first, so that nothing in `extra` can replace keys that clients rely on.
        answer = {
            "connected": uplink.connected,
            "instance_id": view.instance,
            "local_head_seq": statistics.head,
            "cloud_cursor": uplink.cursor,
            "holes": ranges_json(uplink.missing),
            "live_lag": max(0, statistics.head - uplink.cursor),
            "backfill_remaining_seqs": sum(map(len, uplink.missing)),
            "last_ack": self._last_ack(uplink),
            "live_frames_sent": uplink.live_frames_sent,
            "backfill_blocks_sent": uplink.backfill_blocks_sent,
            "backfill_bytes_sent": uplink.backfill_bytes_sent,
            "reconnects": uplink.reconnects,
            "lineage": statistics.lineage,
            "durable_head_seq": statistics.durable_head,
            "lost": ranges_json(statistics.forced_lost),
            "void": ranges_json(statistics.void),
            "dials": uplink.dials,
            "trouble": uplink.trouble,
            "name_in_use": uplink.name_in_use,
        }
        return json_answer(answer | {key: value for key, value in view.extra().items() if key not in answer})

    def _last_ack(self, uplink: UplinkStatistics) -> str:
        return NEVER if uplink.last_ack_us is None else time_text(uplink.last_ack_us)

    async def events(self, call: Call) -> web.StreamResponse:
        return await stream_events(call, self._view.feed, devices=self._view.devices)

    async def devices(self, _: Call) -> web.StreamResponse:
        return json_answer([device.to_json() for device in self._view.devices()])

    async def values(self, call: Call) -> web.StreamResponse:
        wanted = filter_from_query(call.query)
        return json_answer(values_json(self._view.feed.values.values(), self._view.devices(), wanted))

    def clients_view(self) -> ClientsView:
        view = self._view
        return ClientsView(
            journal=view.journal,
            ring=view.recent,
            feed=view.feed,
            devices=view.devices,
            now_ms=view.now_ms,
            sessions=view.sessions,
            sender=view.sender,
        )

    async def decoded_values(self, call: Call) -> web.StreamResponse:
        wanted = filter_from_query(call.query)
        values = self._view.feed.values.values()
        return json_answer(await decoded_values_json(values, self._view.devices(), wanted))

    async def history(self, call: Call) -> web.StreamResponse:
        query, last, view = history_query(call), last_of(call), self._view
        if last is None:
            blocks = journal_history(view.journal, from_us=query.from_us, to_us=query.to_us)
        else:
            blocks = newest_frames(view.journal, view.recent, last)
            query = replace(query, limit=query.limit if call.one("limit") else last)
        return await stream_history(call, query, blocks, devices=view.devices)

    async def healthz(self, call: Call) -> web.StreamResponse:
        view = self._view
        uplink, problem = view.uplink(), view.problem() or view.trouble()
        if problem is not None:
            status = "unhealthy"
        else:
            status = "ok" if uplink is None or uplink.connected else "degraded"
        answer: dict[str, Any] = {"status": status}
        if call.caller.may(READ_STATUS) and call.caller.sees(view.instance):
            if problem is not None:
                answer["detail"] = problem
            answer["broker"] = self._broker_health(problem)
            if uplink is not None:
                answer["replication"] = self._replication_health(uplink)
        return json_answer(answer, status=503 if status == "unhealthy" else 200)

    def _broker_health(self, problem: str | None) -> dict[str, Any]:
        view = self._view
        entries, capacity = view.ring()
        newest_us = view.feed.last_frame_us
        return {
            "status": "ok" if problem is None else "unhealthy",
            "frames_total": view.feed.frames_published,
            "head_seq": view.journal.head + 1,  # lplex's word for the next seq
            "last_frame_time": NEVER if newest_us is None else time_text(newest_us),
            "device_count": len(view.devices()),
            "ring_entries": entries,
            "ring_capacity": capacity,
        }

    def _replication_health(self, uplink: UplinkStatistics) -> dict[str, Any]:
        return {
            "status": "ok" if uplink.connected else "disconnected",
            "connected": uplink.connected,
            "live_lag": max(0, self._view.journal.head - uplink.cursor),
            "backfill_remaining_seqs": sum(map(len, uplink.missing)),
            "last_ack": self._last_ack(uplink),
        }

    async def readyz(self, call: Call) -> web.StreamResponse:
        problem = self._view.problem()
        if problem is None:
            return json_answer({"status": "ok"})
        answer = {"status": "unavailable"}
        if call.caller.may(READ_STATUS) and call.caller.sees(self._view.instance):
            answer["detail"] = problem
        return json_answer(answer, status=503)

    def fill_metrics(self, metrics: Metrics, _: Call) -> None:
        view = self._view
        if (uplink := view.uplink()) is not None:
            self._fill_replication(metrics, uplink)
        journal = view.journal.statistics()
        logs = (view.journal.fresh.statistics(), view.journal.sealed.statistics())
        counter, gauge = metrics.counter, metrics.gauge
        counter("lplex_journal_drops_total", "Frames the journal could not take.", view.frames_refused())
        if view.written is not None:
            blocks, size = view.written()
            counter("lplex_journal_blocks_written_total", "Blocks written to the journal.", blocks)
            counter("lplex_journal_bytes_written_total", "Bytes written to the journal.", size)
        counter("lplex_frames_total", "Frames from the bus since the start.", view.feed.frames_published)
        gauge("lplex_devices", "Devices on the bus.", len(view.devices()))
        gauge("tidelog_journal_blocks", "Blocks in the journal.", sum(log.blocks for log in logs))
        gauge("tidelog_journal_bytes", "Bytes of the journal on the disk.", journal.fresh_bytes + journal.sealed_bytes)
        gauge("tidelog_journal_head_seq", "The newest seq issued.", journal.head)
        gauge("tidelog_journal_durable_head_seq", "The newest seq on the disk.", journal.durable_head)
        gauge("tidelog_journal_acked_seq", "The newest seq that the cloud has acked.", journal.acked)
        gauge("tidelog_journal_frames_buffered", "Frames that are in memory only.", journal.frames_buffered)
        most = view.journal.options.buffer_frames_max
        gauge("tidelog_journal_frames_buffered_max", "Frames in memory at which more are dropped.", most)
        gauge("tidelog_journal_writable", "Whether frames reach the disk.", int(view.journal.refusal is None))
        in_order = int(view.journal.upkeep.problem is None)
        gauge("tidelog_journal_in_order", "Whether the journal is sealed, trimmed, leased ahead and read.", in_order)
        lost = sum(map(len, journal.forced_lost))
        counter("tidelog_journal_lost_seqs_total", "Frames removed before the cloud had them.", lost)
        counter(
            "tidelog_feed_dropped_frames_total", "Frames that slow readers of events lost.", view.feed.frames_dropped
        )

    def _fill_replication(self, metrics: Metrics, uplink: UplinkStatistics) -> None:
        counter, gauge = metrics.counter, metrics.gauge
        lag = max(0, self._view.journal.head - uplink.cursor)
        last_ack_us = uplink.last_ack_us or 0
        prefix = "lplex_replication_"
        gauge(prefix + "connected", "Whether the cloud is reached.", int(uplink.connected))
        gauge(prefix + "live_lag_seqs", "How far the cloud's cursor is behind the head.", lag)
        gauge(prefix + "backfill_remaining_seqs", "Seqs in holes.", sum(map(len, uplink.missing)))
        gauge(prefix + "last_ack_timestamp_seconds", "When the cloud last acked; 0 for never.", last_ack_us / US_PER_S)
        counter(prefix + "live_frames_sent_total", "Frames sent by Live.", uplink.live_frames_sent)
        counter(prefix + "backfill_blocks_sent_total", "Blocks sent by Backfill.", uplink.backfill_blocks_sent)
        counter(prefix + "backfill_bytes_sent_total", "Bytes sent by Backfill.", uplink.backfill_bytes_sent)
        counter(prefix + "reconnects_total", "Connections made again.", uplink.reconnects)
        counter("tidelog_replication_dials_total", "Dials, answered or not.", uplink.dials)
        counter(
            "tidelog_replication_name_in_use_total",
            "Dials that were told to wait, for another process uses this name.",
            uplink.name_in_use,
        )


async def newest_frames(journal: Journal, recent: Ring | None, count: int) -> AsyncIterator[JournalFrames]:
    """The newest `count` frames, oldest first, those included that are in memory only."""
    for frames in last_frames(journal, recent, count):
        yield frames
        await asyncio.sleep(0)  # other tasks get their turn


async def journal_history(journal: Journal, *, from_us: int, to_us: int) -> AsyncIterator[JournalFrames]:
    """Blocks of the journal that reach into [from_us, to_us), in their order, each frame once."""
    newest: dict[bytes, int] = {}
    while True:
        log_start = journal.log_start
        try:
            for block in journal.blocks(from_time_us=from_us, before_time_us=to_us, skip_damaged=True):
                # Blocks are read on the loop, since the journal has one driver; other tasks get their turn in between.
                await asyncio.sleep(0)
                if block.maker.kind in FRAME_KINDS:
                    frames = _not_seen(block, newest)
                    if len(frames.frames):
                        yield frames
            return
        except OffsetOutOfRange:
            if journal.log_start == log_start:
                raise
            # Retention was faster than this reader: the removed frames are gone, and those already seen are known.


def _not_seen(block: Block, newest: dict[bytes, int]) -> JournalFrames:
    """The block's frames without those it repeats, as the first one does after sealing overtook the reader."""
    maker = block.maker
    frames = counted_frames(block)
    seen = min(max(0, newest.get(maker.producer, 0) + 1 - maker.base_seq), len(frames))
    newest[maker.producer] = max(newest.get(maker.producer, 0), maker.base_seq + len(frames) - 1)
    return JournalFrames(maker.base_seq + seen, frames.slice(seen, len(frames)))
