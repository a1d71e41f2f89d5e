"""Routes that every Tidelog server has: liveness, readiness, metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import web

from tidelog.http.access import READ_METRICS
from tidelog.http.metrics import Metrics
from tidelog.http.routes import Call, Handler, Route, Schema, json_answer, metrics_answer
from tidelog.http.shapes import TEXT, object_of, ref

READINESS: Final = object_of({"status": {"type": "string", "enum": ["ok", "unavailable"]}}, optional={"detail": TEXT})


def probe_route(path: str, summary: str, answer: Handler, schema: Schema) -> Route:
    """A route without authentication; its answer has the same shape when the state is bad (503)."""
    return Route(path=path, summary=summary, answer=answer, scope=None, schema=schema, unhealthy_schema=schema)


def livez_route() -> Route:
    async def answer(_: Call) -> web.StreamResponse:
        return json_answer({"status": "ok"})

    return Route(
        path="/livez", summary="Whether the process answers at all.", answer=answer, scope=None, schema=ref("Alive")
    )


def metrics_route(fill: Callable[[Metrics, Call], None]) -> Route:
    """`fill` adds the server's own metrics; those of HTTP are added here."""

    async def answer(call: Call) -> web.StreamResponse:
        metrics = Metrics()
        fill(metrics, call)
        site = call.site()
        metrics.gauge("tidelog_http_connections", "Open HTTP connections.", site.connections)
        metrics.gauge("tidelog_http_readers", "Open event streams.", site.readers)
        for status, count in sorted(site.requests.items()):
            labels = {"status": str(status)}
            metrics.counter("tidelog_http_requests_total", "Answered HTTP requests.", count, labels)
        return metrics_answer(metrics.text())

    return Route(
        path="/metrics",
        summary="Everything that is counted, for Prometheus.",
        answer=answer,
        scope=READ_METRICS,
        content_type="text/plain",
    )
