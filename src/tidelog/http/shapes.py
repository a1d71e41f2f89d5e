"""The shapes of JSON answers that boat and cloud share, as JSON Schema, and the parameters that they take.

Objects are closed where clients depend on them: a new key must be added here first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tidelog.compat.captures import PGN_MAX
from tidelog.http.filters import INSTANCE_MAX, SOURCE_MAX
from tidelog.http.routes import Parameter, Schema
from tidelog.http.streams import HISTORY_LIMIT, HISTORY_LIMIT_MAX

COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_BYTE: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 255}
_PGN: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": PGN_MAX}
_HEX: Final[Schema] = {"type": "string", "pattern": "^([0-9a-f]{2})*$"}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def array_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def object_of(properties: Mapping[str, Schema], *, optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with these keys and no others; those in `optional` may be missing."""
    return {
        "type": "object",
        "properties": {**properties, **(optional or {})},
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: Final[Mapping[str, Any]] = {
    "Error": object_of({"error": TEXT, "detail": TEXT}),
    "SeqRange": object_of({"start": COUNT, "end": COUNT}),
    "Frame": object_of(
        {"seq": COUNT, "ts": TIME, "prio": {"type": "integer", "minimum": 0, "maximum": 7}, "pgn": _PGN, "src": _BYTE}
        | {"dst": _BYTE, "data": _HEX}
    ),
    "Device": object_of(
        {
            "src": _BYTE,
            "name": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
            "manufacturer": TEXT,
            "manufacturer_code": COUNT,
            "device_class": COUNT,
            "device_function": COUNT,
            "device_instance": COUNT,
            "first_seen": TIME,
            "last_seen": TIME,
            "packet_count": COUNT,
            "byte_count": COUNT,
        },
        optional={
            "unique_number": COUNT,
            "model_id": TEXT,
            "software_version": TEXT,
            "model_version": TEXT,
            "model_serial": TEXT,
            "product_code": COUNT,
        },
    ),
    "DeviceValues": object_of(
        {
            "name": {"type": "string", "pattern": "^(0x[0-9a-f]{16})?$"},
            "src": _BYTE,
            "values": array_of(object_of({"pgn": _PGN, "ts": TIME, "data": _HEX, "seq": COUNT})),
        },
        optional={"manufacturer": TEXT, "model_id": TEXT},
    ),
    "DecodedDeviceValues": object_of(
        {
            "name": {"type": "string", "pattern": "^(0x[0-9a-f]{16})?$"},
            "src": _BYTE,
            "values": array_of(
                object_of(
                    {"pgn": _PGN, "description": TEXT, "ts": TIME, "seq": COUNT}
                    | {"fields": {"type": "object"}, "decoded": {"type": "object"}}
                )
            ),
        },
        optional={"manufacturer": TEXT, "model_id": TEXT},
    ),
    "Alive": object_of({"status": {"type": "string", "enum": ["ok"]}}),
}

SEQ_RANGES: Final = array_of(ref("SeqRange"))


def ranges_json(ranges: tuple[range, ...] | list[range]) -> list[dict[str, int]]:
    """Half-open ranges as in the clients' types."""
    return [{"start": part.start, "end": part.stop} for part in ranges]


_PGN_PARAMETER: Final = Parameter(name="pgn", description="Only these PGNs.", schema=_PGN, repeated=True)
_DECODE: Final = Parameter(name="decode", description="Not available yet; leave it out.", schema=FLAG)
_DEVICE_INSTANCE: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": INSTANCE_MAX}
_SOURCE: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": SOURCE_MAX}

FILTER_PARAMETERS: Final = (
    _PGN_PARAMETER,
    Parameter(name="exclude_pgn", description="Not these PGNs.", schema=_PGN, repeated=True),
    Parameter(name="src", description="Only these source addresses.", schema=_SOURCE, repeated=True),
    Parameter(name="manufacturer", description="Only devices of these, by name or code.", schema=TEXT, repeated=True),
    Parameter(
        name="instance", description="Only devices with these instances.", schema=_DEVICE_INSTANCE, repeated=True
    ),
    Parameter(name="name", description="Only devices with these NAMEs, in hex.", schema=TEXT, repeated=True),
    Parameter(name="exclude_name", description="Not devices with these NAMEs, in hex.", schema=TEXT, repeated=True),
    Parameter(name="bus", description="Frames carry no bus, so this asks for none.", schema=TEXT, repeated=True),
    _DECODE,
)

HISTORY_PARAMETERS: Final = (
    Parameter(name="from", description="First moment, such as 2026-03-06T10:15:30Z.", schema=TIME, required=True),
    Parameter(name="to", description="First moment that is no longer wanted.", schema=TIME),
    _PGN_PARAMETER,
    Parameter(name="src", description="Only these source addresses.", schema=_SOURCE, repeated=True),
    Parameter(
        name="limit",
        description=f"The most frames in the answer, {HISTORY_LIMIT} unless told.",
        schema={"type": "integer", "minimum": 1, "maximum": HISTORY_LIMIT_MAX},
    ),
    _DECODE,
)

LAST_HISTORY_PARAMETERS: Final = (
    replace(HISTORY_PARAMETERS[0], required=False, description="First moment; needed unless `last` is given."),
    *HISTORY_PARAMETERS[1:],
    Parameter(
        name="last",
        description="The newest so many frames, oldest first, before any filter.",
        schema={"type": "integer", "minimum": 1, "maximum": HISTORY_LIMIT_MAX},
    ),
)
