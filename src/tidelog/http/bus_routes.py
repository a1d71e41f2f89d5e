"""Routes for the data of a bus, on a boat and in the cloud: frames, devices, values, history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from tidelog.http.access import READ_DATA
from tidelog.http.routes import EVENTS_TYPE, Call, Parameter, Route
from tidelog.http.shapes import FILTER_PARAMETERS, HISTORY_PARAMETERS, array_of, ref


class BusPages(Protocol):
    async def events(self, call: Call, /) -> web.StreamResponse: ...

    async def devices(self, call: Call, /) -> web.StreamResponse: ...

    async def values(self, call: Call, /) -> web.StreamResponse: ...

    async def decoded_values(self, call: Call, /) -> web.StreamResponse: ...

    async def history(self, call: Call, /) -> web.StreamResponse: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BusSummaries:
    """The description of each in the OpenAPI document."""

    events: str
    devices: str
    values: str
    history: str


def bus_routes(
    prefix: str,
    pages: BusPages,
    summaries: BusSummaries,
    *,
    history_parameters: tuple[Parameter, ...] = HISTORY_PARAMETERS,
) -> list[Route]:
    return [
        Route(
            path=f"{prefix}/events",
            summary=summaries.events,
            answer=pages.events,
            scope=READ_DATA,
            content_type=EVENTS_TYPE,
            streams=True,
            parameters=FILTER_PARAMETERS,
        ),
        Route(
            path=f"{prefix}/devices",
            summary=summaries.devices,
            answer=pages.devices,
            scope=READ_DATA,
            schema=array_of(ref("Device")),
        ),
        Route(
            path=f"{prefix}/values",
            summary=summaries.values,
            answer=pages.values,
            scope=READ_DATA,
            schema=array_of(ref("DeviceValues")),
            parameters=FILTER_PARAMETERS,
        ),
        Route(
            path=f"{prefix}/values/decoded",
            summary=f"{summaries.values} Decoded; needs the extra `decode`, and is 501 without it.",
            answer=pages.decoded_values,
            scope=READ_DATA,
            schema=array_of(ref("DecodedDeviceValues")),
            parameters=FILTER_PARAMETERS,
            errors=(501,),
        ),
        Route(
            path=f"{prefix}/history",
            summary=summaries.history,
            answer=pages.history,
            scope=READ_DATA,
            streams=True,
            parameters=history_parameters,
            schema=array_of(ref("Frame")),
        ),
    ]
