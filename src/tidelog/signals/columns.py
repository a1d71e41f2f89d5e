"""Fields of one variant, each read from all of its frames at once.

`read_variant` walks through a variant's fields in order and gives a column for every field of every repeated
set. The place of a field is one number as long as all frames agree; behind a text of no fixed length it is one
number for each frame. Either way no step is taken for a single frame.

Invariants:
SC1  Columns come in the order of the fields, the sets of a repeated run one behind the other.
SC2  A column has no row for a frame whose field is missing, "not available" or out of range.
SC3  A frame with a value whose type only its payload defines is reported in `opaque_rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tidelog.signals.layouts import FieldKind, FieldLayout, RepeatedSet, Variant
from tidelog.signals.payloads import PAYLOAD_BYTES_MAX, Int64s, Integers, Payloads, Place, Unique
from tidelog.signals.texts import TextPool, date_text, fixed_text, hex_text, lau_text, lz_text
from tidelog.signals.values import ValueLayout, told_fields, told_value, value_layout

Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]

# The methods of an array come to these two by a detour, which counts with a hundred fields in a batch.
_max, _min = np.maximum.reduce, np.minimum.reduce

_TABLE_BITS_MAX: Final = 16
"""Codes of up to this many bits are looked up in a table of all of them."""


@dataclass(slots=True)
class Column:
    """One signal of the frames of a group."""

    signal: str
    unit: str | None
    rows: Int64s | None
    """Places in the group; None for all of it."""
    raws: Integers | None
    """Numbers before they are scaled; None for a text that is no number."""
    texts: Int32s | None
    scale: float = 1.0
    shift: float = 0.0

    @property
    def may_lack_numbers(self) -> bool:
        return self.raws is None or (self.texts is not None and self.raws.dtype.kind == "f")

    def write_values(self, out: Floats) -> None:
        """The scaled numbers, computed when they are needed: kept for all columns they would be a lot."""
        if self.raws is None:
            out.fill(np.nan)
        else:
            _scale(self.raws, self.scale, self.shift, out)


@dataclass(slots=True)
class VariantColumns:
    """The signals of the frames of one variant."""

    columns: list[Column] = field(default_factory=list)
    instances: Int32s | None = None
    """-1 where it is not available; None where the variant has no such field."""
    opaque_rows: Int64s | None = None


@dataclass(slots=True)
class _Found:
    """Raw values of a field: which rows have it, and what they have."""

    rows: Int64s | None
    raws: Integers


def read_variant(variant: Variant, payloads: Payloads, pool: TextPool) -> VariantColumns:
    """All columns of the payloads, which are of this variant."""
    reader = _Reader(variant, payloads, pool)
    reader.read()
    return reader.result


class _Reader:
    def __init__(self, variant: Variant, payloads: Payloads, pool: TextPool) -> None:
        self._variant = variant
        self._payloads = payloads
        self._pool = pool
        self._raws: dict[int, _Found] = {}
        """The values of fields read earlier: counts, lengths and codes that later fields need."""
        self.result = VariantColumns()

    def read(self) -> None:
        at: Place = 0
        place = 0
        sets = {item.first: item for item in self._variant.sets}
        while place < len(self._variant.fields):
            if place == self._variant.told_from:
                self._read_told(place)
                return
            if place in sets:
                following = self._read_sets(sets[place], at)
                place += sets[place].fields
            else:
                following = self._read_field(place, None, at, "")
                place += 1
            if following is None:
                return
            at = following

    def _read_sets(self, repeated: RepeatedSet, at: Place) -> Place | None:
        """Where the sets end in every frame; None when nothing can be read after them."""
        payloads = self._payloads
        counts = self._counts(repeated)
        rows: Int64s | None = None
        follows = repeated.first + repeated.fields < len(self._variant.fields)
        ends = np.broadcast_to(np.asarray(at, dtype=np.int64), (len(payloads),)).copy() if follows else None
        for number in range(PAYLOAD_BYTES_MAX):
            bits = payloads.bits if rows is None else payloads.bits[rows]
            active = bits > at
            if counts is not None:
                active &= (counts if rows is None else counts[rows]) > number
            if not active.all():
                kept = np.flatnonzero(active)
                rows = kept if rows is None else rows[kept]
                at = at if isinstance(at, int) else at[kept]
                if not len(rows):
                    break
            for place in range(repeated.first, repeated.first + repeated.fields):
                following = self._read_field(place, rows, at, f".{number + 1}")
                if following is None:
                    return None
                at = following
            if ends is not None:
                ends[slice(None) if rows is None else rows] = at
        return at if ends is None else ends

    def _counts(self, repeated: RepeatedSet) -> Int64s | None:
        if repeated.count_field is None:
            return None
        found = self._raws.get(repeated.count_field)
        counts = np.zeros(len(self._payloads), dtype=np.int64)
        if found is not None:
            # A sender without a count means one set, as canboat reads it.
            unsaid = found.raws > self._variant.fields[repeated.count_field].raw_max
            counts[slice(None) if found.rows is None else found.rows] = np.where(unsaid, 1, found.raws)
        return counts

    # --- one field ----------------------------------------------------------------------------------

    def _read_field(self, place: int, rows: Int64s | None, at: Place, suffix: str) -> Place | None:
        """Read one field of some rows; returns where the next one begins, or None where that is unknown."""
        item = self._variant.fields[place]
        kind = item.kind
        assert kind is not FieldKind.VARIABLE, "read with all that follows it"
        if item.bit_length is None or kind in (FieldKind.TEXT_FIXED, FieldKind.TEXT_LZ):
            return self._read_bytes(item, rows, at, suffix)
        if kind is FieldKind.BINARY and (
            item.bit_length > 64 or (isinstance(at, int) and not (at | item.bit_length) & 7)
        ):
            return self._read_bytes(item, rows, at, suffix)
        following = at + item.bit_length
        if kind is FieldKind.SKIPPED:
            return following
        fitting = self._payloads.fitting(rows, at, item.bit_length)
        if fitting is not None and not len(fitting):
            self._raws.pop(place, None)
            return following
        if fitting is not rows and not isinstance(at, int):
            at = at[_among(rows, fitting)]
        found = _Found(fitting, self._payloads.raw(fitting, at, item.bit_length, signed=item.signed))
        self._raws[place] = found
        self._add_raws(place, item, found, suffix)
        if place == self._variant.instance:
            self._set_instances(item, found)
        return following

    def _add_raws(self, place: int, item: FieldLayout, found: _Found, suffix: str) -> None:
        match item.kind:
            case FieldKind.NUMBER | FieldKind.DATE:
                self._add_numbers(item, found, suffix)
            case FieldKind.LOOKUP | FieldKind.BITS:
                self._add_codes(place, item, found, suffix)
            case FieldKind.FLOAT:
                with np.errstate(invalid="ignore"):
                    values = found.raws.astype(np.uint32).view(np.float32).astype(np.float64) * item.scale
                kept = np.flatnonzero(np.isfinite(values))
                self._add(item, suffix, _some(found.rows, kept, len(values)), values[kept], None, plain=True)
            case FieldKind.DECIMAL:
                self._add_decimals(item, found, suffix)
            case FieldKind.NAME:
                kept = np.flatnonzero(found.raws != np.uint64(item.raw_max))
                texts = _coded(found.raws[kept], lambda raw: self._pool.code(f"{raw:016x}"))
                self._add(item, suffix, _some(found.rows, kept, len(found.raws)), None, texts)
            case FieldKind.BINARY:
                size = -(-(item.bit_length or 0) // 8)
                texts = _coded(found.raws, lambda raw: self._pool.code(raw.to_bytes(size, "little").hex()))
                self._add(item, suffix, found.rows, None, texts)

    def _add_numbers(self, item: FieldLayout, found: _Found, suffix: str) -> None:
        rows, raws = found.rows, found.raws
        if not len(raws):
            return
        bounded_below = item.signed or item.raw_min > 0
        if int(_max(raws)) > item.raw_max or (bounded_below and int(_min(raws)) < item.raw_min):
            inside = raws <= item.raw_max
            if bounded_below:
                inside &= raws >= item.raw_min
            kept = np.flatnonzero(inside)
            if not len(kept):
                return
            rows, raws = _some(rows, kept, len(raws)), raws[kept]
        texts = None
        if item.kind is FieldKind.DATE:
            texts = _coded(raws, lambda raw: self._pool.code(date_text(raw)))
        self._add(item, suffix, rows, raws, texts)

    def _add_codes(self, place: int, item: FieldLayout, found: _Found, suffix: str) -> None:
        raws, rows = found.raws, found.rows
        none = (1 << (item.bit_length or 0)) - 1
        other = self._raws.get(item.indirect) if item.indirect is not None else None
        if item.indirect is not None:
            # The field that the label depends on may lie behind this one.
            raws, combined, rows = self._with_master(item, found, other)
        else:
            combined = raws

        def code(key: int) -> int:
            raw, master = (key & none, key >> (item.bit_length or 0)) if item.indirect is not None else (key, 0)
            label = self._variant.label(place, raw, master)
            missing = label is None and item.kind is FieldKind.LOOKUP and raw > none - _reserved(none)
            return _MISSING if missing else self._pool.code(label)

        texts = _coded(combined, code)
        if len(texts) and int(texts.min()) == _MISSING:
            kept = np.flatnonzero(texts != _MISSING)
            if not len(kept):
                return
            rows, raws, texts = _some(rows, kept, len(texts)), raws[kept], texts[kept]
        self._add(item, suffix, rows, raws, texts, plain=True)

    def _with_master(
        self, item: FieldLayout, found: _Found, known: _Found | None
    ) -> tuple[Integers, Integers, Int64s | None]:
        assert item.indirect is not None, "only for indirect lookups"
        assert item.bit_length is not None, "codes have fixed lengths"
        master = self._variant.fields[item.indirect]
        raws, rows = found.raws, found.rows
        if master.bit_offset is not None and master.bit_length is not None and not self._variant.sets:
            masters = self._payloads.raw(rows, master.bit_offset, master.bit_length)
        elif known is not None and len(known.raws) == len(raws):
            masters = known.raws
        else:
            # A set that is cut off behind the master: the code stays, without a name.
            masters = np.full(len(raws), (1 << (master.bit_length or 0)) - 1, dtype=np.int64)
        combined = raws.astype(np.uint64) | masters.astype(np.uint64) << np.uint64(item.bit_length)
        return raws, combined, rows

    def _add_decimals(self, item: FieldLayout, found: _Found, suffix: str) -> None:
        size = (item.bit_length or 0) // 8
        digits = found.raws.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :size]
        kept = np.flatnonzero((digits < 100).all(axis=1))
        values = digits[kept].astype(np.float64) @ (100.0 ** np.arange(size - 1, -1, -1))
        self._add(item, suffix, _some(found.rows, kept, len(digits)), values, None, plain=True)

    def _set_instances(self, item: FieldLayout, found: _Found) -> None:
        instances = np.full(len(self._payloads), -1, dtype=np.int32)
        raws = found.raws.astype(np.int64)
        none = (1 << (item.bit_length or 0)) - 1
        raws[(raws > item.raw_max) | (raws == none)] = -1
        instances[slice(None) if found.rows is None else found.rows] = raws
        self.result.instances = instances

    # --- bytes --------------------------------------------------------------------------------------

    def _read_bytes(self, item: FieldLayout, rows: Int64s | None, at: Place, suffix: str) -> Place | None:
        payloads = self._payloads
        starting = payloads.fitting(rows, at, 8)
        lengths: Int64s | int
        if item.kind is FieldKind.TEXT_LAU or (item.kind is FieldKind.TEXT_LZ and item.bit_length is None):
            count = len(payloads) if rows is None else len(rows)
            first = payloads.raw(rows, _per_row(at, count), 8).astype(np.int64)
            lengths = np.maximum(first, 2) if item.kind is FieldKind.TEXT_LAU else first + 1
            following: Place = at + lengths * 8
        elif item.bit_length is not None:
            lengths = item.bit_length // 8
            following = at + item.bit_length
        else:
            lengths = self._told_length(item, rows)
            following = at + lengths * 8
        if starting is not None and not len(starting):
            return following
        if starting is not rows:
            among = _among(rows, starting)
            at = at if isinstance(at, int) else at[among]
            lengths = lengths if isinstance(lengths, int) else lengths[among]
        if item.kind is FieldKind.DYNAMIC:
            self._read_dynamic(item, starting, at, lengths, suffix)
        elif item.kind is not FieldKind.SKIPPED:
            self._add_strings(item, suffix, starting, payloads.strings(starting, at, lengths))
        return following

    # --- values whose type the payload tells ----------------------------------------------------------

    def _read_told(self, place: int) -> None:
        """Group functions: the package is asked for each payload, which are few and repeat."""
        everything = self._payloads.strings(None, 0, PAYLOAD_BYTES_MAX)
        cells: dict[tuple[int, int, str | None], tuple[list[Int64s], list[float], list[int]]] = {}
        opaque = []
        rows_of = np.split(np.argsort(everything.which, kind="stable"), np.cumsum(np.bincount(everything.which))[:-1])
        for payload, rows in zip(everything.strings, rows_of, strict=True):
            fields, is_whole = told_fields(self._variant, payload, place)
            if not is_whole:
                opaque.append(rows)
            for one in fields:
                if one.told.number is None and one.told.text is None:
                    continue
                held, numbers, texts = cells.setdefault((one.place, one.number, one.unit), ([], [], []))
                held.append(rows)
                numbers.append(np.nan if one.told.number is None else one.told.number)
                texts.append(self._pool.code(one.told.text))
        for (field_place, number, unit), (held, numbers, texts) in sorted(cells.items(), key=_by_place):
            counts = [len(rows) for rows in held]
            rows = np.concatenate(held)
            order = np.argsort(rows, kind="stable")
            item = replace(self._variant.fields[field_place], unit=unit)
            suffix = f".{number}" if number else ""
            values = np.repeat(np.array(numbers), counts)[order]
            codes = np.repeat(np.array(texts, dtype=np.int32), counts)[order]
            self._add(item, suffix, rows[order], values, codes, plain=True)
        if opaque:
            self._mark_opaque(np.sort(np.concatenate(opaque)))

    def _read_dynamic(
        self, item: FieldLayout, rows: Int64s | None, at: Place, lengths: Int64s | int, suffix: str
    ) -> None:
        """Values of keys: numbers over all rows at once, what else there is by key."""
        if item.key is None or item.key not in self._raws:
            self._mark_opaque(rows)
            self._add_strings(item, suffix, rows, self._payloads.strings(rows, at, lengths))
            return
        known = self._raws[item.key]
        keys = (known.raws if known.rows is rows else known.raws[_among(known.rows, rows)]).astype(np.int64)
        places = _per_row(at, len(keys))
        bits = self._payloads.bits if rows is None else self._payloads.bits[rows]
        held = np.clip(np.minimum((bits - places) // 8, lengths), 0, PAYLOAD_BYTES_MAX)
        is_cut = (held < lengths) & (np.asarray(lengths) < PAYLOAD_BYTES_MAX)
        if is_cut.any():
            chosen = np.flatnonzero(is_cut) if rows is None else rows[is_cut]
            self._mark_opaque(chosen)
            self._add_strings(item, suffix, chosen, self._payloads.strings(chosen, places[is_cut], held[is_cut]))
            rows = np.flatnonzero(~is_cut) if rows is None else rows[~is_cut]
            keys, places, held = keys[~is_cut], places[~is_cut], held[~is_cut]
        pairs, which = np.unique(keys << 12 | held, return_inverse=True)
        place = self._variant.fields.index(item)
        found = [value_layout(self._variant, place, pair >> 12, pair & 0xFFF) for pair in pairs.tolist()]
        is_number = np.array([layout is not None for layout in found])[which]
        some = np.flatnonzero(is_number)
        if len(some):
            self._add_numbers_of_keys(item, suffix, rows, some, places, held, found, which)
        for number, pair in enumerate(pairs.tolist()):
            if found[number] is None:
                self._add_told_values(item, suffix, rows, np.flatnonzero(which == number), places, held, pair >> 12)

    def _add_numbers_of_keys(
        self,
        item: FieldLayout,
        suffix: str,
        rows: Int64s | None,
        some: npt.NDArray[np.intp],
        at: Int64s,
        held: Int64s,
        found: list[ValueLayout | None],
        which: npt.NDArray[np.intp],
    ) -> None:
        layouts = [layout or _NO_NUMBER for layout in found]
        of_some = which[some]
        chosen = some if rows is None else rows[some]
        words = self._payloads.raw(chosen, at[some], 64).astype(np.uint64)
        spare = (64 - held[some] * 8).astype(np.uint64)
        unsigned = (words << spare) >> spare
        signed = (words << spare).view(np.int64) >> spare.astype(np.int64)
        raws = np.where(np.array([one.signed for one in layouts])[of_some], signed, unsigned.astype(np.int64))
        lowest = np.array([one.raw_min for one in layouts], dtype=np.int64)[of_some]
        highest = np.array([one.raw_max for one in layouts], dtype=np.int64)[of_some]
        kept = np.flatnonzero((raws >= lowest) & (raws <= highest))
        values = np.empty(len(raws))
        for number in np.unique(of_some[kept]).tolist():
            here = of_some == number
            out = np.empty(int(here.sum()))
            _scale(raws[here], layouts[number].scale, layouts[number].shift, out)
            values[here] = out
        self._add(item, suffix, chosen[kept], values[kept], None, plain=True)

    def _add_told_values(
        self,
        item: FieldLayout,
        suffix: str,
        rows: Int64s | None,
        some: npt.NDArray[np.intp],
        at: Int64s,
        held: Int64s,
        key: int,
    ) -> None:
        chosen = some if rows is None else rows[some]
        unique = self._payloads.strings(chosen, at[some], held[some])
        place = self._variant.fields.index(item)
        told = [told_value(self._variant, place, key, content) for content in unique.strings]
        is_opaque = np.array([one.is_opaque for one in told])[unique.which]
        if is_opaque.any():
            self._mark_opaque(chosen[is_opaque])
        is_there = np.array([one.number is not None or one.text is not None for one in told])[unique.which]
        numbers = np.array([np.nan if one.number is None else one.number for one in told])[unique.which]
        texts = np.array([self._pool.code(one.text) for one in told], dtype=np.int32)[unique.which]
        if is_there.any():
            self._add(item, suffix, chosen[is_there], numbers[is_there], texts[is_there], plain=True)

    def _told_length(self, item: FieldLayout, rows: Int64s | None) -> Int64s:
        """Bytes of a binary or dynamic value: as many as a field before it says, else the rest of the payload."""
        count = len(self._payloads) if rows is None else len(rows)
        lengths = np.full(count, PAYLOAD_BYTES_MAX, dtype=np.int64)
        teller = _teller(self._variant, item)
        found = None if teller is None else self._raws.get(teller)
        if found is not None and teller is not None:
            told = found.raws.astype(np.int64)
            if item.kind is FieldKind.BINARY:
                told = -(-told // 8)
            else:
                # What lies between a length and its value counts too; a length that is no number is no limit.
                told = told - _bytes_between(self._variant, teller, item)
                told[found.raws > self._variant.fields[teller].raw_max] = PAYLOAD_BYTES_MAX
            among: Int64s | slice = slice(None)
            if found.rows is not rows and found.rows is not None:
                among = found.rows if rows is None else np.searchsorted(rows, found.rows)
            lengths[among] = np.clip(told, 0, PAYLOAD_BYTES_MAX)
        return lengths

    def _add_strings(self, item: FieldLayout, suffix: str, rows: Int64s | None, unique: Unique) -> None:
        read = _READERS[item.kind]
        codes = np.array([_MISSING if (text := read(raw)) is None else self._pool.code(text) for raw in unique.strings])
        texts = codes.astype(np.int32)[unique.which]
        kept = np.flatnonzero(texts != _MISSING)
        if len(kept):
            self._add(item, suffix, _some(rows, kept, len(texts)), None, texts[kept])

    def _mark_opaque(self, rows: Int64s | None) -> None:
        rows = np.arange(len(self._payloads)) if rows is None else rows
        before = self.result.opaque_rows
        self.result.opaque_rows = rows if before is None else np.union1d(before, rows)

    def _add(
        self,
        item: FieldLayout,
        suffix: str,
        rows: Int64s | None,
        raws: Integers | None,
        texts: Int32s | None,
        *,
        plain: bool = False,
    ) -> None:
        """A column; `plain` for numbers that are not to be scaled."""
        if rows is not None and not len(rows):
            return
        column = Column(item.signal + suffix, item.unit, rows, raws, texts)
        if not plain:
            column.scale, column.shift = item.scale, item.shift
        self.result.columns.append(column)


_NO_NUMBER: Final = ValueLayout(signed=False, scale=1.0, shift=0.0, raw_min=0, raw_max=-1)

_MISSING: Final = -2
"""A code or text that means "not available"; -1 is one without a name."""

_READERS: Final[dict[FieldKind, Callable[[bytes], str | None]]] = {
    FieldKind.TEXT_FIXED: fixed_text,
    FieldKind.TEXT_LAU: lau_text,
    FieldKind.TEXT_LZ: lz_text,
    FieldKind.BINARY: hex_text,
    FieldKind.DYNAMIC: hex_text,
}


def _by_place(cell: tuple[tuple[int, int, str | None], object]) -> tuple[int, int, str]:
    place, number, unit = cell[0]
    return number, place, unit or ""


def _reserved(none: int) -> int:
    """How many of the highest codes mean "not available", "error" or nothing yet, unless they have a name."""
    return 3 if none >= 15 else 2 if none > 1 else 0


def _among(rows: Int64s | None, some: Int64s | None) -> npt.NDArray[np.intp]:
    """Where in `rows`, None for all, the rows of a part of them stand."""
    assert some is not None, "a part of all rows that is not all of them has rows"
    return some if rows is None else np.searchsorted(rows, some)


def _per_row(at: Place, count: int) -> Int64s:
    return np.full(count, at, dtype=np.int64) if isinstance(at, int) else at


def _some(rows: Int64s | None, kept: npt.NDArray[np.intp], count: int) -> Int64s | None:
    """The kept ones of `rows`."""
    if len(kept) == count:
        return rows
    return kept if rows is None else rows[kept]


def _scale(raws: Integers, scale: float, shift: float, out: Floats) -> None:
    # A step of a thousandth is better divided by 1000: 36 * 0.001 is 0.036000000000000004.
    divisor = round(1 / scale)
    out[:] = raws
    if divisor > 1 and abs(divisor * scale - 1) < 1e-12:
        out /= divisor
    elif scale != 1.0:
        out *= scale
    if shift:
        out += shift


def _coded(raws: Integers, code: Callable[[int], int]) -> Int32s:
    """`code` of every raw value, called once for each that occurs, in rising order."""
    if not len(raws):
        return np.zeros(0, dtype=np.int32)
    lowest, highest = int(_min(raws)), int(_max(raws))
    if lowest == highest:
        return np.full(len(raws), code(lowest), dtype=np.int32)
    if highest < 1 << _TABLE_BITS_MAX and lowest >= 0:
        places = raws.astype(np.intp)
        seen = np.flatnonzero(np.bincount(places))
        table = np.full(highest + 1, _MISSING, dtype=np.int32)
        table[seen] = [code(raw) for raw in seen.tolist()]
        return table.take(places)
    unique, which = np.unique(raws, return_inverse=True)
    return np.array([code(raw) for raw in unique.tolist()], dtype=np.int32)[which.reshape(-1)]


def _teller(variant: Variant, item: FieldLayout) -> int | None:
    """Index of the field with the length of `item`."""
    place = variant.fields.index(item)
    for before in range(place - 1, -1, -1):
        name = variant.fields[before].id
        if item.kind is FieldKind.BINARY and name.startswith("numberOfBits"):
            return before
        if item.kind is FieldKind.DYNAMIC and name == "length":
            return before
    return None


def _bytes_between(variant: Variant, teller: int, item: FieldLayout) -> int:
    between = variant.fields[teller + 1 : variant.fields.index(item)]
    return sum(field.bit_length or 0 for field in between) // 8
