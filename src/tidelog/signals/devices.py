"""The device that sent a frame: the NAME that its source address had claimed at that point, by seq.

The same rules as `tidelog.nmea.devices` (ND2), for history: claims are sorted by source and seq, and every
frame finds the last one of its source before it.

Invariants:
SDE1  A frame's device is the last NAME claimed by its source at or before it; none after the NAME has moved to another
      source, until the source is claimed again.
SDE2  Python steps are taken for claims with a new NAME, never for frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.nmea.devices import SOURCES_MAX, Name, Product, manufacturer_name
from tidelog.nmea.pgns import ISO_ADDRESS_CLAIM, PRODUCT_INFORMATION
from tidelog.signals.buffers import binary_buffers
from tidelog.signals.layouts import layouts_of
from tidelog.signals.payloads import Int64s, Payloads, padded
from tidelog.signals.rows import TIME

DEVICES_SCHEMA: Final = pa.schema(
    [
        ("channel", pa.string()),
        ("name", pa.string()),
        ("source", pa.int16()),
        ("manufacturer", pa.string()),
        ("device_function", pa.string()),
        ("model", pa.string()),
        ("serial", pa.string()),
        ("software", pa.string()),
        ("first_time", TIME),
        ("last_time", TIME),
    ]
)

_SEQ_BITS: Final = 54
_NAME_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices on the bus in a batch."""

    table: pa.Table
    """One row for each NAME and source, in DEVICES_SCHEMA; times are those of the frames it sent in this batch."""
    device: pa.Array
    """For each frame its device's NAME as 16 hex digits, null while it is unknown."""
    known: dict[int, int]
    """NAME by source at the end of the batch, for the next one."""


def devices(batch: pa.RecordBatch, known: Mapping[int, int] | None = None) -> Devices:
    """Devices of the whole messages of one lineage; `known` is what was claimed before the batch.

    The batch may be in any order; what counts is seq.
    """
    seqs = batch.column("seq").to_numpy(zero_copy_only=False).astype(np.int64)
    sources = batch.column("source").to_numpy(zero_copy_only=False).astype(np.int64)
    claims = _changes(batch, seqs, sources, dict(known or {}))
    names = _names_at(claims, sources, seqs)
    unique, which = np.unique(names, return_inverse=True)
    hexes = [f"{name:016x}" for name in unique.tolist()]
    indices = pa.array(which.reshape(-1).astype(np.int32), mask=names == 0)
    last = {source: name for source, name in claims.last.items() if name}
    return Devices(
        table=_table(batch, names, sources),
        device=pa.DictionaryArray.from_arrays(indices, pa.array(hexes, pa.string())),
        known=last,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claims:
    """The NAME of each source from which seq on, sorted by both; 0 is none."""

    keys: Int64s
    names: npt.NDArray[np.uint64]
    last: dict[int, int]


def _changes(batch: pa.RecordBatch, seqs: Int64s, sources: Int64s, known: dict[int, int]) -> _Claims:
    frames, payloads = _messages(batch, ISO_ADDRESS_CLAIM, _NAME_BYTES)
    said = payloads.raw(None, 0, 64).astype(np.uint64)
    kept = np.flatnonzero((said != 0) & (sources[frames] < SOURCES_MAX))
    frames, said = frames[kept], said[kept]
    order = np.lexsort((seqs[frames], sources[frames]))
    frames, said = frames[order], said[order]
    # Devices repeat their claims all day; only the first of equal ones in a row can change anything.
    again = np.zeros(len(frames), dtype=np.bool)
    again[1:] = (said[1:] == said[:-1]) & (sources[frames][1:] == sources[frames][:-1])
    # A claim that follows one by another source is no repetition: the NAME moves back.
    moved = np.isin(said, _names_of_many_sources(said, sources[frames]))
    new = np.flatnonzero(~again | moved)
    new = new[np.argsort(seqs[frames][new], kind="stable")]
    events = [(source, -1, name) for source, name in sorted(known.items())]
    current = dict(known)
    holder = {name: source for source, name in known.items()}
    for place in new.tolist():
        source, seq, name = int(sources[frames[place]]), int(seqs[frames[place]]), int(said[place])
        before = holder.get(name)
        if before == source:
            continue
        if before is not None:
            current[before] = 0
            events.append((before, seq, 0))
        holder.pop(current.get(source, 0), None)
        holder[name] = source
        current[source] = name
        events.append((source, seq, name))
    keys = np.array([_key(source, seq) for source, seq, _ in events], dtype=np.int64)
    order = np.argsort(keys, kind="stable")
    names = np.array([name for _, _, name in events], dtype=np.uint64)
    return _Claims(keys=keys[order], names=names[order], last=current)


def _names_of_many_sources(said: npt.NDArray[np.uint64], sources: Int64s) -> npt.NDArray[np.uint64]:
    pairs = np.unique(np.stack([said, sources.astype(np.uint64)]), axis=1)
    names, counts = np.unique(pairs[0], return_counts=True)
    return names[counts > 1]


def _key(source: Any, seq: Any) -> Any:
    # One more, so that claims from before the batch come before its first frame.
    return (source << _SEQ_BITS) + seq + 1


def _names_at(claims: _Claims, sources: Int64s, seqs: Int64s) -> npt.NDArray[np.uint64]:
    names = np.zeros(len(sources), dtype=np.uint64)
    if not len(claims.keys):
        return names
    place = np.searchsorted(claims.keys, _key(sources, seqs), side="right") - 1
    found = np.flatnonzero((place >= 0) & (claims.keys[np.maximum(place, 0)] >> _SEQ_BITS == sources))
    names[found] = claims.names[place[found]]
    return names


def _messages(batch: pa.RecordBatch, pgn: int, bytes_min: int) -> tuple[Int64s, Payloads]:
    offsets, values = binary_buffers(batch.column("data"))
    lengths = np.diff(offsets).astype(np.int64)
    pgns = batch.column("pgn").to_numpy(zero_copy_only=False)
    frames = np.flatnonzero((pgns == pgn) & (lengths >= bytes_min))
    buffer = padded(values, int(lengths.max(initial=0)))
    return frames, Payloads(buffer, offsets[:-1][frames].astype(np.int64), lengths[frames])


def _table(batch: pa.RecordBatch, names: npt.NDArray[np.uint64], sources: Int64s) -> pa.Table:
    times = batch.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)
    named = np.flatnonzero(names)
    pairs = np.stack([names[named], sources[named].astype(np.uint64)], axis=1)
    unique, which = np.unique(pairs, axis=0, return_inverse=True)
    first = np.full(len(unique), np.iinfo(np.int64).max)
    last = np.full(len(unique), np.iinfo(np.int64).min)
    np.minimum.at(first, which.reshape(-1), times[named])
    np.maximum.at(last, which.reshape(-1), times[named])
    labels = _labels(batch, names, sources)
    channel = batch.column("channel")[0].as_py() if "channel" in batch.schema.names and batch.num_rows else None
    rows = []
    for (name, source), first_us, last_us in zip(unique.tolist(), first.tolist(), last.tolist(), strict=True):
        product = labels.get(name)
        manufacturer, function = _called(name)
        rows.append(
            {
                "channel": channel,
                "name": f"{name:016x}",
                "source": source,
                "manufacturer": manufacturer,
                "device_function": function,
                "model": product.model_id if product else None,
                "serial": product.model_serial if product else None,
                "software": product.software_version if product else None,
                "first_time": first_us,
                "last_time": last_us,
            }
        )
    return pa.Table.from_pylist(rows, schema=DEVICES_SCHEMA)


def _labels(batch: pa.RecordBatch, names: npt.NDArray[np.uint64], sources: Int64s) -> dict[int, Product]:
    """Product information by NAME: the last that a device gave."""
    frames, payloads = _messages(batch, PRODUCT_INFORMATION, 1)
    unique = payloads.strings(None, 0, 1 << 16)
    # A label that came before its device's first claim belongs to the device all the same.
    named = np.flatnonzero(names)
    claimed, at = np.unique(sources[named], return_index=True)
    first_name = dict(zip(claimed.tolist(), names[named[at]].tolist(), strict=True))
    labels: dict[int, Product] = {}
    seen: set[tuple[int, int, int]] = set()
    for frame, which in zip(frames.tolist(), unique.which.tolist(), strict=True):
        key = (int(sources[frame]), int(names[frame]), which)
        if key in seen:
            continue
        seen.add(key)
        product = Product.from_payload(unique.strings[which])
        name = key[1] or first_name.get(key[0], 0)
        if product is not None and name:
            labels[name] = product
    return labels


def _called(name: int) -> tuple[str, str]:
    """Manufacturer and device function in words."""
    fields = Name.from_int(name)
    variants = layouts_of(ISO_ADDRESS_CLAIM).variants
    places = {item.id: place for place, item in enumerate(variants[0].fields)}
    manufacturer = variants[0].label(places["manufacturerCode"], fields.manufacturer_code)
    function = variants[0].label(places["deviceFunction"], fields.device_function, fields.device_class)
    return manufacturer or manufacturer_name(fields.manufacturer_code), function or str(fields.device_function)
