"""The HTTP server of a cloud: boats, their replication, live and past frames, events.

Paths and shapes are lplex's, so its clients work unchanged; Tidelog's own keys come after lplex's. The server reads the
cloud through `CloudView` and changes nothing.

What a caller must keep: it may be started before the store is open; until `view` is set, it is alive and not ready.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from aiohttp import web

from tidelog.cluster.boats.view import CloudView, InstanceStatus
from tidelog.errors import RequestRefused
from tidelog.http.access import READ_DATA, READ_STATUS
from tidelog.http.bus_routes import BusSummaries, bus_routes
from tidelog.http.decoded import decoded_values_json
from tidelog.http.filters import filter_from_query
from tidelog.http.frames import time_text
from tidelog.http.health import livez_route, metrics_route, probe_route
from tidelog.http.metrics import Metrics
from tidelog.http.routes import Call, Handler, Parameter, Route, json_answer, not_found
from tidelog.http.server import HttpOptions, HttpServer
from tidelog.http.shapes import (
    COUNT,
    FLAG,
    SEQ_RANGES,
    TEXT,
    TIME,
    array_of,
    object_of,
    ranges_json,
    ref,
)
from tidelog.http.streams import history_query, stream_events, stream_history
from tidelog.http.values import values_json
from tidelog.pki.revocation import RevocationList

TITLE: Final = "Tidelog cloud"
EVENTS_LIMIT: Final = 100
EVENTS_LIMIT_MAX: Final = 1024
NEVER: Final = "0001-01-01T00:00:00Z"


class CloudHttp:
    """The cloud's server: started and stopped once. `port` is the one that was bound."""

    def __init__(
        self,
        options: HttpOptions,
        *,
        view: CloudView | None = None,
        revocations: RevocationList | None = None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.view = view
        """Set when the store is open; set to None to stop serving."""
        self.server = HttpServer(
            options,
            routes=cloud_routes(lambda: self.view),
            title=TITLE,
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

_SUMMARY: Final = object_of(
    {
        "id": TEXT,
        "connected": FLAG,
        "cursor": COUNT,
        "boat_head_seq": COUNT,
        "holes": COUNT,
        "lag_seqs": COUNT,
        "last_seen": TIME,
    }
)
_STATUS: Final = object_of(
    {
        "id": TEXT,
        "connected": FLAG,
        "cursor": COUNT,
        "boat_head_seq": COUNT,
        "boat_journal_bytes": COUNT,
        "holes": SEQ_RANGES,
        "lag_seqs": COUNT,
        "last_seen": TIME,
        "lineage": TEXT,
        "session": COUNT,
        "lost": SEQ_RANGES,
        "void": SEQ_RANGES,
        "frames_received": COUNT,
        "frames_by_live": COUNT,
        "frames_by_backfill": COUNT,
        "name_in_use": COUNT,
    }
)
_EVENTS: Final = array_of(object_of({"time": TIME, "type": TEXT, "detail": {"type": "object"}}))
_HEALTH: Final = object_of(
    {"status": {"type": "string", "enum": ["ok", "unavailable"]}},
    optional={"detail": TEXT, "instances_total": COUNT, "instances_connected": COUNT},
)
# lplex's own rule for a limit that is no number: it counts as not given. So it has no schema to fail.
_EVENTS_LIMIT: Final = Parameter(
    name="limit", description=f"At most so many, {EVENTS_LIMIT} unless told, {EVENTS_LIMIT_MAX} at most.", schema=TEXT
)
_INSTANCE: Final = Parameter(name="instance", description="Whose devices.", schema=TEXT, required=True)


class InstanceRelay(Protocol):
    """How requests about boats of other nodes are relayed; see `http.relay`."""

    def leads_elsewhere(self, name: str) -> bool: ...

    async def pass_on(self, call: Call, name: str) -> web.StreamResponse: ...

    async def others(self, call: Call) -> list[dict[str, Any]]:
        """The boats that other nodes lead, as `/instances` lists them."""
        ...


def cloud_routes(view: Callable[[], CloudView | None]) -> list[Route]:
    """The table; `view` is not called before somebody asks."""
    pages = _Pages(view)
    return [
        *_instance_routes(pages),
        probe_route(
            "/healthz", "Whether the cloud serves; how many boats there are for who may know.", pages.health, _HEALTH
        ),
        probe_route("/readyz", "Whether boats can be served now.", pages.health, _HEALTH),
        livez_route(),
        metrics_route(pages.fill_metrics),
    ]


def instance_routes(view: Callable[[], CloudView | None], relay: InstanceRelay) -> list[Route]:
    """Routes that any node of a cluster answers about any boat: by itself, or by relaying to the one that leads it."""

    def anywhere(answer: Handler) -> Handler:
        async def passed(call: Call) -> web.StreamResponse:
            name = call.path.get("id") or call.one("instance")
            if name is not None and call.caller.sees(name) and relay.leads_elsewhere(name):
                return await relay.pass_on(call, name)
            return await answer(call)

        return passed

    listing, *of_one = _instance_routes(_Pages(view, relay))
    return [listing, *(replace(route, answer=anywhere(route.answer)) for route in of_one)]


def fill_instance_metrics(metrics: Metrics, call: Call, view: CloudView) -> None:
    """The answers about boats that this node leads."""
    _Pages(lambda: view).fill_metrics(metrics, call)


def _instance_routes(pages: _Pages) -> list[Route]:
    return [
        Route(
            path="/instances",
            summary="Every boat that this caller may see, by id.",
            answer=pages.instances,
            scope=READ_STATUS,
            schema=object_of({"instances": array_of(_SUMMARY)}),
        ),
        Route(
            path="/instances/{id}/status",
            summary="How far the cloud has what the boat recorded.",
            answer=pages.status,
            scope=READ_STATUS,
            schema=_STATUS,
        ),
        Route(
            path="/instances/{id}/replication/events",
            summary="What happened between the boat and the cloud, newest first.",
            answer=pages.replication_events,
            scope=READ_STATUS,
            schema=_EVENTS,
            parameters=(_EVENTS_LIMIT,),
        ),
        *bus_routes("/instances/{id}", pages, _SUMMARIES),
        Route(
            path="/devices",
            summary="The same as /instances/{id}/devices.",
            answer=pages.devices_alias,
            scope=READ_DATA,
            schema=array_of(ref("Device")),
            parameters=(_INSTANCE,),
            errors=(404,),
        ),
    ]


_SUMMARIES: Final = BusSummaries(
    events="The boat's frames and changes of devices as they are committed (server-sent events).",
    devices="Who is on the boat's bus.",
    values="The latest frame of every device and PGN that came by Live since the cloud started.",
    history="The boat's frames between two times, in the order in which the cloud took them.",
)


class _Pages:
    """The answers."""

    def __init__(self, view: Callable[[], CloudView | None], relay: InstanceRelay | None = None) -> None:
        self._view_now = view
        self._relay = relay

    def _view(self) -> CloudView:
        view = self._view_now()
        if view is None:
            raise RequestRefused(status=503, reason="not_ready", detail="the store is being opened; ask again soon")
        return view

    def _known(self, call: Call) -> InstanceStatus:
        name = call.path["id"]
        view = self._view()
        status = view.instance(name)
        if status is None and view.is_loading(name):
            raise RequestRefused(status=503, reason="not_ready", detail="the logs are being read; ask again soon")
        if status is None:
            raise not_found("instance", name)
        return status

    async def instances(self, call: Call) -> web.StreamResponse:
        seen = [_summary(status) for status in self._view().instances() if call.caller.sees(status.id)]
        if self._relay is not None:
            known = {item["id"] for item in seen}
            seen += [item for item in await self._relay.others(call) if item.get("id") not in known]
        return json_answer({"instances": sorted(seen, key=lambda item: str(item["id"]))})

    async def status(self, call: Call) -> web.StreamResponse:
        status = self._known(call)
        answer: dict[str, Any] = {
            "id": status.id,
            "connected": status.connected,
            "cursor": status.cursor,
            "boat_head_seq": status.head,
            "boat_journal_bytes": status.journal_bytes,
            "holes": ranges_json(status.holes),
            "lag_seqs": _lag(status),
            "last_seen": _moment(status.last_seen_us),
            "lineage": status.lineage,
            "session": status.session,
            "lost": ranges_json(status.lost),
            "void": ranges_json(status.void),
            "frames_received": status.frames_received,
            "frames_by_live": status.frames_by_live,
            "frames_by_backfill": status.frames_by_backfill,
            "name_in_use": status.name_in_use,
        }
        return json_answer(answer)

    async def replication_events(self, call: Call) -> web.StreamResponse:
        status = self._known(call)
        events = self._view().events(status.id, _events_limit(call.one("limit")))
        return json_answer(
            [{"time": time_text(event.time_us), "type": event.type, "detail": event.detail} for event in events]
        )

    async def events(self, call: Call) -> web.StreamResponse:
        view, name = self._view(), self._known(call).id
        return await stream_events(call, view.feed(name), devices=lambda: view.devices(name))

    async def devices(self, call: Call) -> web.StreamResponse:
        status = self._known(call)
        return json_answer([device.to_json() for device in self._view().devices(status.id)])

    async def devices_alias(self, call: Call) -> web.StreamResponse:
        name = call.one("instance") or ""
        view = self._view()
        if not call.caller.sees(name) or view.instance(name) is None:
            raise not_found("instance", name)
        return json_answer([device.to_json() for device in view.devices(name)])

    async def values(self, call: Call) -> web.StreamResponse:
        view, name = self._view(), self._known(call).id
        wanted = filter_from_query(call.query)
        devices = view.devices(name)  # first: it makes the cloud fold pending frames
        return json_answer(values_json(view.feed(name).values.values(), devices, wanted))

    async def decoded_values(self, call: Call) -> web.StreamResponse:
        view, name = self._view(), self._known(call).id
        wanted = filter_from_query(call.query)
        devices = view.devices(name)  # first, as above
        return json_answer(await decoded_values_json(view.feed(name).values.values(), devices, wanted))

    async def history(self, call: Call) -> web.StreamResponse:
        view, name = self._view(), self._known(call).id
        query = history_query(call)
        blocks = view.history(name, from_us=query.from_us, to_us=query.to_us)
        return await stream_history(call, query, blocks, devices=lambda: view.devices(name))

    async def health(self, call: Call) -> web.StreamResponse:
        view = self._view_now()
        ready, why = view.ready() if view is not None else (False, "the store is being opened")
        answer: dict[str, Any] = {"status": "ok" if ready else "unavailable"}
        if call.caller.may(READ_STATUS):
            if not ready:
                answer["detail"] = why
            seen = [status for status in view.instances() if call.caller.sees(status.id)] if view is not None else []
            answer["instances_total"] = len(seen)
            answer["instances_connected"] = sum(status.connected for status in seen)
        return json_answer(answer, status=200 if ready else 503)

    def fill_metrics(self, metrics: Metrics, call: Call) -> None:
        view = self._view_now()
        statuses = [status for status in view.instances() if call.caller.sees(status.id)] if view is not None else []
        ready = view is not None and view.ready()[0]
        connected = sum(status.connected for status in statuses)
        metrics.gauge("tidelog_cloud_ready", "Whether boats can be served.", int(ready))
        metrics.gauge("lplex_cloud_instances_total", "Boats that are known.", len(statuses))
        metrics.gauge("lplex_cloud_instances_connected", "Boats with a Live stream.", connected)
        for name, help_text, value in _INSTANCE_GAUGES:
            for status in statuses:
                metrics.gauge(name, help_text, value(status), {"instance": status.id})
        for name, help_text, value in _INSTANCE_COUNTERS:
            for status in statuses:
                metrics.counter(name, help_text, value(status), {"instance": status.id})


_Series = tuple[str, str, Callable[[InstanceStatus], float]]
_PREFIX: Final = "lplex_cloud_instance_"
_INSTANCE_GAUGES: Final[tuple[_Series, ...]] = (
    (_PREFIX + "connected", "Whether a Live stream is running.", lambda status: int(status.connected)),
    (_PREFIX + "lag_seqs", "How far the cursor is behind the boat's head.", lambda status: _lag(status)),
    (_PREFIX + "cursor", "The end of the run without a hole.", lambda status: status.cursor),
    (_PREFIX + "holes", "Holes that are open.", lambda status: len(status.holes)),
    ("tidelog_instance_missing_seqs", "Seqs in open holes.", lambda status: sum(map(len, status.holes))),
    ("tidelog_instance_lost_seqs", "Seqs that no one has any more.", lambda status: sum(map(len, status.lost))),
    (
        "tidelog_instance_last_seen_timestamp_seconds",
        "When the boat last said anything; 0 for never.",
        lambda status: status.last_seen_us / 1_000_000,
    ),
)
_INSTANCE_COUNTERS: Final[tuple[_Series, ...]] = (
    ("tidelog_instance_live_frames_total", "Frames taken by Live.", lambda status: status.frames_by_live),
    ("tidelog_instance_backfill_frames_total", "Frames taken by Backfill.", lambda status: status.frames_by_backfill),
    (
        "tidelog_instance_name_in_use_total",
        "Handshakes of another process under the boat's name that were told to wait.",
        lambda status: status.name_in_use,
    ),
)


def _lag(status: InstanceStatus) -> int:
    return max(0, status.head - status.cursor)


def _moment(time_us: int) -> str:
    return time_text(time_us) if time_us else NEVER


def _summary(status: InstanceStatus) -> dict[str, object]:
    return {
        "id": status.id,
        "connected": status.connected,
        "cursor": status.cursor,
        "boat_head_seq": status.head,
        "holes": len(status.holes),
        "lag_seqs": _lag(status),
        "last_seen": _moment(status.last_seen_us),
    }


def _events_limit(text: str | None) -> int:
    """lplex's rule: a value that is no positive number counts as not given."""
    if text is None or not (text.isascii() and text.isdecimal() and len(text) <= 20) or int(text) <= 0:
        return EVENTS_LIMIT
    return min(int(text), EVENTS_LIMIT_MAX)
