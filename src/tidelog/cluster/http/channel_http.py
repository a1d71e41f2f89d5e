"""HTTP pages of a node about channels: the list, one of them, and the metrics of replication.

Read from the node's own catalog and replicas without requests to others, so it answers while there is no leader.

Missing values (a leader, a replica here, a next page) are left out.

CN1  A page holds at most `LIMIT_MAX` channels, and names the channel to continue after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from aiohttp import web

from tidelog.cluster.status.channel_status import STATES, channel_detail, channels_page
from tidelog.cluster.status.node_metrics import NodeView, replication_text
from tidelog.core.replication.roles import Role
from tidelog.errors import RequestRefused
from tidelog.http.access import READ_STATUS
from tidelog.http.routes import Call, Parameter, Route, Schema, json_answer, not_found
from tidelog.http.shapes import COUNT, FLAG, TEXT, array_of, object_of

LIMIT: Final = 100
LIMIT_MAX: Final = 1_000

_STATE: Final[Schema] = {"type": "string", "enum": list(STATES)}
_ROLE: Final[Schema] = {"type": "string", "enum": [role.name.lower() for role in Role]}
_LINE: Final = object_of(
    {
        "name": TEXT,
        "channel_id": COUNT,
        "state": _STATE,
        "leader_epoch": COUNT,
        "replicas": array_of(TEXT),
        "isr": array_of(TEXT),
        "problem": TEXT,
    },
    optional={"leader": TEXT, "role": _ROLE},
)
_PAGE: Final = object_of({"channels": array_of(_LINE)}, optional={"next": TEXT})
_HERE: Final = object_of(
    {
        "role": _ROLE,
        "storage": TEXT,
        "log_start": COUNT,
        "log_end": COUNT,
        "held_end": COUNT,
        "committed_end": COUNT,
        "serves": FLAG,
        "lag_records": COUNT,
        "problem": TEXT,
    },
    optional={"leader_silence_ms": COUNT},
)
_CHANNEL: Final[Schema] = {
    # An open schema like that of the status: the config has more settings in later versions.
    "type": "object",
    "properties": {
        "name": TEXT,
        "channel_id": COUNT,
        "state": _STATE,
        "tag": TEXT,
        "config": {"type": "object"},
        "leader": TEXT,
        "leader_epoch": COUNT,
        "channel_epoch": COUNT,
        "replicas": array_of(TEXT),
        "isr": array_of(TEXT),
        "holders": array_of(TEXT),
        "paused": FLAG,
        "readonly": FLAG,
        "unclean": array_of({"type": "object"}),
        "here": _HERE,
    },
    "required": ["name", "channel_id", "state", "tag", "leader_epoch", "channel_epoch", "replicas", "isr", "holders"],
}
_PARAMETERS: Final = (
    Parameter(name="after", description="Go on after the channel of this name.", schema=TEXT),
    Parameter(
        name="limit",
        description=f"How many channels at most; {LIMIT} by default.",
        schema={"type": "integer", "minimum": 1, "maximum": LIMIT_MAX},
    ),
)


def channel_routes(node: Callable[[], NodeView], require: Callable[[Call], None]) -> list[Route]:
    """`require` raises for callers who may not see the cluster (NH2)."""

    async def page(call: Call) -> web.StreamResponse:
        require(call)
        found = channels_page(node().core, after=call.one("after") or "", limit=_limit(call.one("limit")))
        return json_answer(_present({**found, "channels": [_present(line) for line in found["channels"]]}))

    async def one(call: Call) -> web.StreamResponse:
        require(call)
        name = call.path["name"]
        found = channel_detail(node().core, name, now_ms=node().now_ms())
        if found is None:
            raise not_found("channel", name)
        return json_answer(_present(found))

    return [
        Route(
            path="/channels",
            summary="The channels of the cluster by name: who leads them, who is in sync, what this node is to them.",
            answer=page,
            scope=READ_STATUS,
            schema=_PAGE,
            parameters=_PARAMETERS,
            errors=(400,),
        ),
        Route(
            path="/channels/{name}",
            summary="One channel, with this node's own replica of it; a slash in its name is written %2F.",
            answer=one,
            scope=READ_STATUS,
            schema=_CHANNEL,
            errors=(404,),
        ),
    ]


def with_replication_metrics(route: Route, node: Callable[[], NodeView]) -> Route:
    """The route of the metrics, with those of replication after the others."""

    async def answer(call: Call) -> web.StreamResponse:
        found = await route.answer(call)
        if isinstance(found, web.Response) and isinstance(found.body, bytes):
            found.body = found.body + replication_text(node()).encode()
        return found

    return replace(route, answer=answer)


def _present(found: Mapping[str, Any]) -> dict[str, Any]:
    """Without fields that are None, also in this node's own part; the config stays as it is stored."""
    present = {name: value for name, value in found.items() if value is not None}
    if "here" in present:
        present["here"] = _present(present["here"])
    return present


def _limit(text: str | None) -> int:
    if text is None:
        return LIMIT
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= LIMIT_MAX:
        raise RequestRefused(status=400, reason="bad_parameter", detail=f"limit is a number from 1 to {LIMIT_MAX}")
    return int(text)
