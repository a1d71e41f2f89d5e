"""The HTTP server of a process that waits for its disk: alive, not healthy, and why.

No data is served, and the disk is not used.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from tidelog.http.access import READ_STATUS
from tidelog.http.health import READINESS, livez_route, metrics_route, probe_route
from tidelog.http.metrics import Metrics
from tidelog.http.routes import Call, Route, json_answer

TITLE: Final = "Tidelog, waiting for its disk"


def waiting_routes(reason: str) -> list[Route]:
    """`reason` is shown to callers who may read the status."""

    async def unwell(call: Call) -> web.StreamResponse:
        answer = {"status": "unavailable"}
        if call.caller.may(READ_STATUS):
            answer["detail"] = reason
        return json_answer(answer, status=503)

    def fill(metrics: Metrics, _: Call) -> None:
        metrics.gauge("tidelog_waits_for_disk", "Whether the process waits for room on its disk.", 1)

    summary = "Always 503: the disk is full."
    return [
        probe_route("/healthz", summary, unwell, READINESS),
        probe_route("/readyz", summary, unwell, READINESS),
        livez_route(),
        metrics_route(fill),
    ]
