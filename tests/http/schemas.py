"""Holds an answer against its schema. Knows the part of JSON Schema that Tidelog's documents use, and refuses more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
}
KNOWN = {"type", "properties", "required", "additionalProperties", "items", "enum", "minimum", "maximum", "pattern"}
KNOWN |= {"format", "$ref"}
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")


def problems(document: Mapping[str, Any], schema: Mapping[str, Any], value: object, where: str = "$") -> list[str]:
    """Everything in `value` that `schema` does not allow."""
    assert set(schema) <= KNOWN, f"{where}: {set(schema) - KNOWN} is not understood here"
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/components/schemas/")
        return problems(document, document["components"]["schemas"][name], value, where)
    kind = schema["type"]
    if not isinstance(value, TYPES[kind]) or (kind == "integer" and isinstance(value, bool)):
        return [f"{where}: {value!r} is no {kind}"]
    found = [
        f"{where}: {value!r} is not one of {schema['enum']}" for _ in [0] if value not in schema.get("enum", [value])
    ]
    if isinstance(value, dict):
        found += _object_problems(document, schema, value, where)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            found += problems(document, schema["items"], item, f"{where}[{place}]")
    elif isinstance(value, str):
        if re.search(schema.get("pattern", ""), value) is None:
            found.append(f"{where}: {value!r} is not like {schema['pattern']}")
        if schema.get("format") == "date-time" and RFC_3339.fullmatch(value) is None:
            found.append(f"{where}: {value!r} is no time")
    elif isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        found.append(f"{where}: {value} is out of range")
    return found


def _object_problems(
    document: Mapping[str, Any], schema: Mapping[str, Any], value: dict[str, Any], where: str
) -> list[str]:
    properties = schema.get("properties", {})
    found = [f"{where}: {name} is missing" for name in schema.get("required", []) if name not in value]
    for name, item in value.items():
        if name in properties:
            found += problems(document, properties[name], item, f"{where}.{name}")
        elif schema.get("additionalProperties", True) is False:
            found.append(f"{where}: {name} is not in the schema")
    return found
