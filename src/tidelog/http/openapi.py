"""The OpenAPI 3.1 document of a server, written from the routes that it serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from tidelog import __version__
from tidelog.http.access import SCOPES
from tidelog.http.routes import JSON_TYPE, Call, Route, Schema, json_answer
from tidelog.http.shapes import SCHEMAS

OPENAPI_PATH: Final = "/openapi.json"

_ERRORS: Final = {
    400: "A parameter is unknown or cannot be.",
    401: "A token is needed, or this one is not known.",
    403: "The token lacks a scope, which `detail` names.",
    404: "There is no such thing, or this caller may not see it.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too many in a short time; ask again later.",
    500: "The server failed; its log says why.",
    501: "This server cannot do it as it is set up; `detail` says what is missing.",
    503: "A limit is reached, or the server is not ready; ask again after Retry-After seconds.",
    504: "Nobody on the bus answered in time.",
}


def with_document(routes: Sequence[Route], *, title: str) -> tuple[list[Route], Mapping[str, Any]]:
    """The routes, and one more that serves their document, in which it is listed too."""
    served = [*routes, _document_route(lambda: document)]
    document = openapi_document(served, title=title)
    return served, document


def _document_route(document: Callable[[], Mapping[str, Any]]) -> Route:
    async def answer(_: Call) -> web.StreamResponse:
        return json_answer(document())

    return Route(path=OPENAPI_PATH, summary="This document.", answer=answer, scope=None, schema={"type": "object"})


def openapi_document(routes: Sequence[Route], *, title: str) -> Mapping[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__},
        "paths": _paths(routes),
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": f"Scopes: {', '.join(SCOPES)}."},
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "certificate": {"type": "mutualTLS"},
            },
        },
    }


def _paths(routes: Sequence[Route]) -> dict[str, dict[str, Any]]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return paths


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": _responses(route),
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON_TYPE: {"schema": route.body}}}
    if route.scope is not None:
        operation["description"] = f"Needs the scope `{route.scope}`."
        operation["security"] = [{"bearer": []}, {"apiKey": []}, {"certificate": []}]
    else:
        operation["security"] = []
    return operation


def _operation_id(route: Route) -> str:
    words = [part.strip("{}").replace(".", "_") for part in route.path.split("/") if part]
    return "_".join([route.method.lower(), *words])


def _parameters(route: Route) -> list[dict[str, Any]]:
    in_path = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in route.path.split("/")
        if part.startswith("{")
    ]
    in_query = [
        {
            "name": parameter.name,
            "in": "query",
            "required": parameter.required,
            "description": parameter.description,
            "schema": {"type": "array", "items": parameter.schema} if parameter.repeated else parameter.schema,
        }
        for parameter in route.parameters
    ]
    return [*in_path, *in_query]


def _responses(route: Route) -> dict[str, Any]:
    schema: Schema = route.schema if route.schema is not None else {"type": "string"}
    answer: dict[str, Any] = {"description": "The answer."}
    if route.status != 204:
        answer["content"] = {route.content_type: {"schema": schema}}
    responses: dict[str, Any] = {str(route.status): answer}
    statuses = {*route.errors}
    if route.body is not None:
        statuses |= {413, 415}
    if route.scope is not None:
        statuses |= {401, 403}
        if "{" in route.path:
            statuses.add(404)
    statuses |= {400, 500, 503}
    for status in sorted(statuses):
        shape: Schema = {"$ref": "#/components/schemas/Error"}
        if status == 503 and route.unhealthy_schema is not None:
            shape = route.unhealthy_schema
        responses[str(status)] = {"description": _ERRORS[status], "content": {JSON_TYPE: {"schema": shape}}}
    return responses
