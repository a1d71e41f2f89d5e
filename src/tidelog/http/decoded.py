"""The latest values of a bus, decoded: the fields of each message by name.

Decoding needs the `nmea2000` package (the extra `decode`), which takes a fraction of a second to load, so it is loaded
at the first request, and on another thread.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from tidelog.errors import MissingExtra, RequestRefused
from tidelog.http.filters import FrameFilter
from tidelog.http.values import Value, values_json
from tidelog.nmea.devices import Device

Fields = dict[str, Any]


async def decoded_values_json(
    values: Sequence[Value], devices: Sequence[Device], wanted: FrameFilter
) -> list[dict[str, object]]:
    """lplex's shape of /values/decoded. Raises `RequestRefused` (501) if there is no decoder.

    Messages that cannot be decoded, and devices without any that can, are left out, as lplex does.
    """
    if importlib.util.find_spec("nmea2000") is None:
        raise RequestRefused(
            status=501,
            reason=MissingExtra.code,
            detail=str(MissingExtra(extra="decode", needed_for="decoding values")),
        )
    decoded = await asyncio.to_thread(_decode, values)
    answer = []
    for device in values_json(values, devices, wanted):
        entries: Any = device["values"]
        shown = [_entry(entry, *decoded[key]) for entry in entries if (key := (device["src"], entry["pgn"])) in decoded]
        if shown:
            answer.append({**device, "values": shown})
    return answer


def _entry(value: Mapping[str, Any], description: str, fields: Fields) -> dict[str, object]:
    # lplex's server says `fields`, and its npm client's types say `decoded`; each finds what it looks for.
    return {
        "pgn": value["pgn"],
        "description": description,
        "ts": value["ts"],
        "seq": value["seq"],
        "fields": fields,
        "decoded": fields,
    }


def _decode(values: Sequence[Value]) -> dict[tuple[Any, Any], tuple[str, Fields]]:
    """Description and fields by source and PGN, of those that could be read."""
    import pyarrow as pa

    from tidelog.signals.decode import decode_signals

    batch = pa.record_batch(
        {
            # The index of the value instead of a seq: it comes back with each row.
            "seq": pa.array(range(len(values)), pa.int64()),
            "time": pa.array([value.time_us for value in values], pa.timestamp("us", tz="UTC")),
            "source": pa.array([value.source for value in values], pa.int16()),
            "pgn": pa.array([value.pgn for value in values], pa.int32()),
            "data": pa.array([value.data for value in values], pa.binary()),
        }
    )
    signals = decode_signals(batch).signals
    found: dict[tuple[Any, Any], tuple[str, Fields]] = {}
    columns = (signals.column(name).to_pylist() for name in ("seq", "signal", "value", "text"))
    for place, signal, number, text in zip(*columns, strict=True):
        message, _, name = signal.rpartition(".")
        value = values[place]
        _, fields = found.setdefault((value.source, value.pgn), (message.replace("_", " ").title(), {}))
        said = text if text is not None else number
        if name not in fields:
            fields[name] = said
        else:  # a field of a repeated set, such as one satellite of many
            before = fields[name]
            fields[name] = [*before, said] if isinstance(before, list) else [before, said]
    return found
