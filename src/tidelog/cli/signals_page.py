"""The signals of the pipeline in docs/signals.md, written from the layouts that the decoder learns.

Refresh the page when the package `nmea2000` or the decoder knows more:
`python -m tidelog.cli.signals_page > docs/signals.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Final

from tidelog.extras import optional
from tidelog.signals.layouts import FieldKind, FieldLayout, Variant, layouts_of

_HEADING = """\
# Signals

Every signal of the table `signals`: its name, unit and PGN. This page is written from the decoder; refresh it with
`python -m tidelog.cli.signals_page > docs/signals.md`.

A signal is named `<message>.<field>`. Units are SI; angles of positions are in degrees. A field that repeats has the
number of its set at its end, from 1, here `N`. Messages that tell several engines, batteries or tanks apart have the
number in `instance`. What `value` and `text` hold:

| holds | `value` | `text` |
|---|---|---|
| number | the number, in the unit | |
| code | the code | its label |
| flags | the bits | the labels of those that are set |
| date | days since 1970 | the date |
| text | | the text |
| bytes | | hexadecimal digits |
| varies | as the field says that it depends on; bytes where that is not known | |

"""
_HOLDS: Final = {
    FieldKind.NUMBER: "number",
    FieldKind.FLOAT: "number",
    FieldKind.DECIMAL: "number",
    FieldKind.LOOKUP: "code",
    FieldKind.BITS: "flags",
    FieldKind.DATE: "date",
    FieldKind.TEXT_FIXED: "text",
    FieldKind.TEXT_LAU: "text",
    FieldKind.TEXT_LZ: "text",
    FieldKind.DYNAMIC: "varies",
    FieldKind.VARIABLE: "varies",
}
"""The others are bytes."""


def render_signals_page() -> str:
    return _HEADING + "\n".join("".join(_of_pgn(pgn)) for pgn in known_pgns() if layouts_of(pgn).variants)


def known_pgns() -> list[int]:
    """Every PGN that the definitions name, in order."""
    # Imported by name: the package has no types.
    with optional("the page of signals"):
        database = import_module("nmea2000.backend").DATABASE
    # The layout of a range of makers is that of each of its PGNs that nobody has defined.
    return sorted({info.pgn for info in database.pgns() if not info.id.startswith("0x")})


def _of_pgn(pgn: int) -> Iterator[str]:
    yield f"## {pgn}\n\n| signal | unit | holds |\n|---|---|---|\n"
    # Messages of several makers may share names: what is equal is said once.
    yield from dict.fromkeys(_row(variant, place) for variant in layouts_of(pgn).variants for place in _shown(variant))


def _shown(variant: Variant) -> Iterator[int]:
    return (place for place, item in enumerate(variant.fields) if item.kind is not FieldKind.SKIPPED)


def _row(variant: Variant, place: int) -> str:
    item = variant.fields[place]
    repeats = any(one.first <= place < one.first + one.fields for one in variant.sets)
    return f"| `{item.signal}{'.N' if repeats else ''}` | {item.unit or ''} | {_holds(variant, place, item)} |\n"


def _holds(variant: Variant, place: int, item: FieldLayout) -> str:
    return _HOLDS.get(item.kind, "bytes") + (", `instance`" if place == variant.instance else "")


if __name__ == "__main__":
    print(render_signals_page(), end="")
