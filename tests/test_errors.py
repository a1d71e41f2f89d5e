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
from tidelog.errors import ChannelExists, LogError, NotChannelLeader, PlacementRefused

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


def fields_of(error_class: type[LogError]) -> dict[str, Any]:
    """Sample arguments for the constructor, chosen by annotation."""
    hints = get_type_hints(error_class.__init__)
    fields = {}
    for name, parameter in list(inspect.signature(error_class.__init__).parameters.items())[1:]:
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, f"{error_class.__name__}: {name} must be keyword-only"
        assert hints[name] in SAMPLES, f"{error_class.__name__}: add a sample for {name}: {hints[name]} to SAMPLES"
        fields[name] = SAMPLES[hints[name]]
    return fields


def test_every_error_has_its_own_code_and_docstring() -> None:
    for error_class in error_classes():
        assert "code" in vars(error_class), f"{error_class}: an inherited code makes two errors look the same"
        assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", error_class.code), error_class
        assert (vars(error_class)["__doc__"] or "").strip(), error_class
        assert isinstance(error_class.retriable, bool), error_class
        assert isinstance(error_class.definite, bool), error_class
    codes = [LogError.code] + [error_class.code for error_class in error_classes()]
    assert sorted(codes) == sorted(set(codes))


def test_every_error_keeps_its_fields_and_survives_pickling_and_copying() -> None:
    for error_class in error_classes():
        fields = fields_of(error_class)
        error = error_class(**fields)
        assert {name: getattr(error, name) for name in fields} == fields, error_class
        assert str(error), error_class
        error.add_note("seen by a worker")
        twins = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
        for twin in (*twins, copy.deepcopy(error)):
            assert type(twin) is error_class
            assert (str(twin), twin.args, vars(twin)) == (str(error), error.args, vars(error)), error_class
            assert twin.code == error.code, error_class


def test_message_shows_every_field_of_its_template() -> None:
    assert str(ChannelExists(channel="a {b}")) == "channel 'a {b}' exists; open it, or delete it first"


def test_fields_with_defaults_may_be_left_out_and_others_may_not() -> None:
    assert NotChannelLeader(channel="trips", leader=None).address == ""
    with pytest.raises(TypeError, match="channel"):
        NotChannelLeader(leader=None)  # type: ignore[call-arg]


def test_error_keeps_a_copy_of_a_list() -> None:
    problems = ["full"]
    error = PlacementRefused(channel="trips", problems=problems)
    problems.append("gone")
    assert error.problems == ["full"]


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
    classes: list[type[LogError]] = [LogError, *error_classes()]
    missing = [error_class for error_class in classes if not hasattr(errors, error_class.__name__)]
    assert not missing


def test_errors_page_is_fresh() -> None:
    assert PAGE.read_text() == render_errors_page(), f"docs/errors.md is stale; refresh it: {REFRESH}"


def test_errors_page_lists_exactly_the_codes() -> None:
    # Counted on the page itself, so that a rendering that drops rows is noticed too.
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), flags=re.MULTILINE)
    assert listed == [error_class.code for error_class in error_classes()], f"refresh docs/errors.md: {REFRESH}"


def test_errors_page_rows_have_five_cells() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {7}, "five cells between six bars"
