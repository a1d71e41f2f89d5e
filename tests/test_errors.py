"""Every error keeps the promises of `LogError`, and docs/errors.md tells of exactly these."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from tidelog import errors
from tidelog.cli.errors_page import error_classes, render_errors_page
from tidelog.errors import LogError

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "errors.md"
REFRESH = "python -m tidelog.cli.errors_page > docs/errors.md"

SAMPLES: dict[object, Any] = {
    bool: True,
    str | None: "n1",
    bytes: b"\x00\xff",
    float: 2.5,
    int: 2**63 + 1,
    range: range(3, 2**64),
    str: "a|b: c%s{d}\n\u00e9",
    Sequence[str]: ["one", "two"],
}
"""A value for every type an error field may have, awkward where that is cheap."""

every_error = pytest.mark.parametrize("error_class", error_classes(), ids=lambda error_class: error_class.__name__)


def fields_of(error_class: type[LogError]) -> dict[str, Any]:
    """Sample arguments for the constructor, chosen by annotation."""
    if error_class.__init__ is Exception.__init__:
        return {}
    hints = get_type_hints(error_class.__init__)
    fields = {}
    for name, parameter in list(inspect.signature(error_class.__init__).parameters.items())[1:]:
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, f"{error_class.__name__}: {name} must be keyword-only"
        assert hints[name] in SAMPLES, f"{error_class.__name__}: add a sample for {name}: {hints[name]} to SAMPLES"
        fields[name] = SAMPLES[hints[name]]
    return fields


@every_error
def test_error_has_its_own_code_and_docstring(error_class: type[LogError]) -> None:
    assert "code" in vars(error_class), "an inherited code would make two errors look the same on the wire"
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", error_class.code)
    assert (error_class.__doc__ or "").strip()
    assert isinstance(error_class.retriable, bool)
    assert isinstance(error_class.definite, bool)


def test_codes_are_unique() -> None:
    codes = [LogError.code] + [error_class.code for error_class in error_classes()]
    assert sorted(codes) == sorted(set(codes))


@every_error
def test_error_keeps_its_fields_and_has_a_message(error_class: type[LogError]) -> None:
    fields = fields_of(error_class)
    error = error_class(**fields)
    assert {name: getattr(error, name) for name in fields} == fields
    assert str(error)


@every_error
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_error_survives_pickling(error_class: type[LogError], protocol: int) -> None:
    error = error_class(**fields_of(error_class))
    error.add_note("seen by a worker")
    far_side = pickle.loads(pickle.dumps(error, protocol=protocol))
    assert type(far_side) is error_class
    assert vars(far_side) == vars(error)
    assert far_side.args == error.args
    assert str(far_side) == str(error)
    assert far_side.code == error.code


@every_error
def test_error_survives_copying(error_class: type[LogError]) -> None:
    error = error_class(**fields_of(error_class))
    twin = copy.deepcopy(error)
    assert (type(twin), str(twin), vars(twin)) == (error_class, str(error), vars(error))


def test_every_error_is_defined_in_the_errors_module() -> None:
    # Read, not imported: modules behind an optional extra count too.
    names = {"LogError"} | {error_class.__name__ for error_class in error_classes()}
    strays = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        if path.parent.name == "errors":
            continue
        for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base).split(".")[-1] in names for base in node.bases):
                strays.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert not strays, f"move these to tidelog/errors, where docs/errors.md finds them: {strays}"


def test_every_error_can_be_imported_from_the_package() -> None:
    assert sorted(errors.__all__) == sorted(["LogError", *(error_class.__name__ for error_class in error_classes())])


def test_errors_page_is_fresh() -> None:
    assert PAGE.read_text() == render_errors_page(), f"docs/errors.md is stale; refresh it: {REFRESH}"


def test_errors_page_lists_exactly_the_codes() -> None:
    # Counted on the page itself, so that a rendering that drops rows is noticed too.
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), flags=re.MULTILINE)
    assert listed == [error_class.code for error_class in error_classes()], f"refresh docs/errors.md: {REFRESH}"


def test_errors_page_rows_have_five_cells() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {7}, "five cells between six bars"
