"""The HTTP server of a node: health, the cluster's status as this node sees it, and metrics.

The server reads the node through `NodeView` and changes nothing; commands go over the link (`tidelog cluster`).

What a caller must keep: stop it before the node stops.

NH1  Ready means: registered with the metadata leader, with a valid session, and a leader is known. A node that is not
     ready is alive all the same; restarting it would not help.
NH2  The cluster concerns all boats: only callers who may see every instance read its status and metrics.
NH3  A node whose disk accepts no writes is not healthy, but stays ready: it serves reads, and others lead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aiohttp import web

from tidelog.cluster.http.channel_http import channel_routes, with_replication_metrics
from tidelog.cluster.http.cloud_http import fill_instance_metrics, instance_routes
from tidelog.cluster.status.node_metrics import NodeView, fill_node_metrics, readiness
from tidelog.errors import RequestRefused
from tidelog.http.access import EVERY_INSTANCE, READ_STATUS
from tidelog.http.health import READINESS, livez_route, metrics_route, probe_route
from tidelog.http.metrics import Metrics
from tidelog.http.routes import Call, Route, Schema, json_answer
from tidelog.http.server import HttpOptions, HttpServer
from tidelog.http.shapes import COUNT, FLAG, TEXT, array_of, object_of
from tidelog.pki.revocation import RevocationList

if TYPE_CHECKING:
    from tidelog.cluster.uplink.process import NodeUplink

__all__ = ["TITLE", "NodeHttp", "NodeView", "node_routes"]

FillMetrics: TypeAlias = Callable[[Metrics, Call], None]

TITLE: Final = "Tidelog node"
STANDINGS: Final = ("seeking", "joining", "learner", "voter", "leader")


class NodeHttp:
    """The node's server: started and stopped once. `port` is the one that was bound."""

    def __init__(
        self,
        options: HttpOptions,
        *,
        node: NodeView,
        uplink: NodeUplink | None = None,
        revocations: RevocationList | None = None,
        log: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`revocations` is the nodes' list: it holds for client certificates here too. With `uplink`, boats are served
        here as well, whichever node leads them."""
        routes = node_routes(lambda: node)
        if uplink is not None:
            view = uplink.view
            routes = [
                *instance_routes(lambda: view, uplink.http_relay),
                *node_routes(lambda: node, lambda metrics, call: fill_instance_metrics(metrics, call, view)),
            ]
        self.server = HttpServer(options, routes=routes, title=TITLE, revocations=revocations, log=log)

    @property
    def port(self) -> int:
        return self.server.port

    async def start(self) -> None:
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop()


# --- the table -----------------------------------------------------------------------------------

_OBJECT: Final[Schema] = {"type": "object"}
_STATUS: Final[Schema] = {
    # An open schema, unlike other answers: null values are left out here, and later versions have more fields.
    "type": "object",
    "properties": {
        "node": TEXT,
        "standing": {"type": "string", "enum": list(STANDINGS)},
        "incarnation": COUNT,
        "session_valid": FLAG,
        "members": array_of(_OBJECT),
        "nodes": array_of(_OBJECT),
        "channels": _OBJECT,
        "groups": _OBJECT,
        "proximity": _OBJECT,
        "findings": array_of(TEXT),
    },
    "required": ["node", "standing", "incarnation", "session_valid", "members", "nodes", "proximity", "findings"],
}
_HEALTH: Final = object_of(
    {"status": {"type": "string", "enum": ["ok", "unavailable"]}},
    optional={"detail": TEXT, "standing": TEXT, "leader": TEXT, "findings": array_of(TEXT)},
)


def node_routes(node: Callable[[], NodeView], more_metrics: FillMetrics = lambda _metrics, _call: None) -> list[Route]:
    """The table; `node` is not called before somebody asks."""
    pages = _Pages(node, more_metrics)
    same = "How the cluster stands, as this node sees it."
    return [
        Route(path="/status", summary=same, answer=pages.status, scope=READ_STATUS, schema=_STATUS),
        Route(
            path="/cluster/status",
            summary="The same as /status.",
            answer=pages.status,
            scope=READ_STATUS,
            schema=_STATUS,
        ),
        probe_route(
            "/healthz", "Whether the node takes part; who hears whom, for who may know.", pages.health, _HEALTH
        ),
        probe_route(
            "/readyz", "Whether the node is registered, its session valid and a leader known.", pages.ready, READINESS
        ),
        livez_route(),
        *channel_routes(node, _require_everything),
        with_replication_metrics(metrics_route(pages.fill_metrics), node),
    ]


class _Pages:
    """The answers."""

    def __init__(self, node: Callable[[], NodeView], more_metrics: FillMetrics) -> None:
        self._node = node
        self._more_metrics = more_metrics

    async def status(self, call: Call) -> web.StreamResponse:
        _require_everything(call)
        return json_answer(self._node().status())

    async def health(self, call: Call) -> web.StreamResponse:
        status = self._node().status()
        answer, code = _probe(status, call, needs_disk=True)
        if _may_know(call):
            answer["standing"] = status["standing"]
            answer["findings"] = status["findings"]
            if status["leader"] is not None:
                answer["leader"] = status["leader"]
        return json_answer(answer, status=code)

    async def ready(self, call: Call) -> web.StreamResponse:
        answer, code = _probe(self._node().status(), call)
        return json_answer(answer, status=code)

    def fill_metrics(self, metrics: Metrics, call: Call) -> None:
        _require_everything(call)
        fill_node_metrics(metrics, self._node())
        self._more_metrics(metrics, call)


def _probe(status: dict[str, Any], call: Call, *, needs_disk: bool = False) -> tuple[dict[str, Any], int]:
    ready, why = readiness(status)  # NH1
    if ready and needs_disk and status.get("disk_problem"):
        ready, why = False, status["disk_problem"]  # NH3
    answer: dict[str, Any] = {"status": "ok" if ready else "unavailable"}
    if not ready and _may_know(call):
        answer["detail"] = why
    return answer, 200 if ready else 503


def _may_know(call: Call) -> bool:
    return call.caller.may(READ_STATUS) and call.caller.instances == EVERY_INSTANCE


def _require_everything(call: Call) -> None:
    """NH2. The scope is checked by then."""
    if call.caller.instances != EVERY_INSTANCE:
        detail = f"{call.caller.name} may see some instances only, and the cluster is all of them"
        raise RequestRefused(status=403, reason="forbidden", detail=detail)
