"""The document says what is served, and the validator that the tests lean on can say no."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.schemas import problems
from tidelog.cli.openapi_page import render_openapi_page
from tidelog.cluster.http.cloud_http import cloud_routes
from tidelog.edge.boat_http import BoatView, boat_routes
from tidelog.http.openapi import with_document
from tidelog.http.routes import Route

DOCS = Path(__file__).parents[2] / "docs" / "openapi"


def no_boat() -> BoatView:
    raise AssertionError("nobody asks")


def tables() -> dict[str, list[Route]]:
    return {"boat": boat_routes(no_boat), "cloud": cloud_routes(lambda: None)}


@pytest.mark.parametrize("side", ["boat", "cloud"])
def test_every_route_is_in_the_document(side: str) -> None:
    served, document = with_document(tables()[side], title=side)
    assert list(dict.fromkeys(route.path for route in served)) == list(document["paths"])
    assert {(route.path, route.method.lower()) for route in served} == {
        (path, method) for path, item in document["paths"].items() for method in item
    }
    assert "/openapi.json" in document["paths"]
    identifiers = [described["operationId"] for item in document["paths"].values() for described in item.values()]
    assert len(set(identifiers)) == len(identifiers)
    for route in served:
        described = document["paths"][route.path][route.method.lower()]
        assert ("requestBody" in described) == (route.body is not None)
        names = {parameter["name"] for parameter in described["parameters"]}
        assert names >= {parameter.name for parameter in route.parameters}
        assert bool(described["security"]) == (route.scope is not None)
        if route.scope is not None:
            assert route.scope in described["description"]


@pytest.mark.parametrize("side", ["boat", "cloud"])
def test_references_lead_somewhere_and_the_page_is_fresh(side: str) -> None:
    page = render_openapi_page(side)
    document = json.loads(page)
    for name in set(_references(document)):
        assert name.removeprefix("#/components/schemas/") in document["components"]["schemas"]
    refresh = f"python -m tidelog.cli.openapi_page {side} > docs/openapi/{side}.json"
    assert (DOCS / f"{side}.json").read_text() == page, f"refresh it: {refresh}"


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        found = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return found + [name for item in value.values() for name in _references(item)]
    if isinstance(value, list):
        return [name for item in value for name in _references(item)]
    return []


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, True),
        ({"type": "integer", "minimum": 0}, -1),
        ({"type": "integer", "maximum": 7}, 8),
        ({"type": "string"}, 1),
        ({"type": "string", "enum": ["ok"]}, "no"),
        ({"type": "string", "pattern": "^a$"}, "b"),
        ({"type": "string", "format": "date-time"}, "yesterday"),
        ({"type": "array", "items": {"type": "string"}}, ["a", 1]),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, {}),
        ({"type": "object", "properties": {}, "additionalProperties": False}, {"a": 1}),
        ({"$ref": "#/components/schemas/Seq"}, "x"),
    ],
)
def test_the_validator_says_no(schema: dict[str, Any], value: object) -> None:
    assert problems({"components": {"schemas": {"Seq": {"type": "integer"}}}}, schema, value)
