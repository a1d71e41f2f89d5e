"""The tree explains itself: small folders that say what is in them, one name for one class, one label for one rule."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "tidelog"
BENCHMARKS = ROOT / "benchmarks"

MODULES_MAX = 20
RESTATED_IN = "sim/metadata/model.py"
"""The checker of the metadata's world names the rules that it checks by the labels of the modules under test."""
LABEL = re.compile(r"^([A-Z]{1,3}\d{1,2})  ", re.MULTILINE)
RULES = {"B": 7, "S": 5, "F": 6, "U": 5, "R": 12, "P": 3}
"""Prefixes of the design's own rules, with the highest number of each."""


@cache
def trees() -> dict[str, ast.Module]:
    """Every module that we wrote, parsed, by its place."""
    files = (path for path in written() if not path.name.endswith("_pb2.py"))
    return {placed(path): ast.parse(path.read_text()) for path in files}


def written() -> list[Path]:
    return sorted([*SRC.rglob("*.py"), *BENCHMARKS.rglob("*.py")])


def placed(path: Path) -> str:
    """`core/ranges.py` for a module of the package, `benchmarks/...` for what lies beside it."""
    return str(path.relative_to(SRC if path.is_relative_to(SRC) else ROOT))


def folders() -> Iterator[tuple[Path, list[str]]]:
    """Packages with the names of what lies in them; what protoc writes is left out."""
    for init in written():
        folder = init.parent
        if init.name != "__init__.py":
            continue
        if folder.name == "proto":
            continue
        modules = [path.stem for path in folder.glob("*.py") if path.stem not in ("__init__", "__main__")]
        rooms = [f"{path.parent.name}/" for path in folder.glob("*/__init__.py") if path.parent.name != "proto"]
        yield folder, sorted(modules + rooms)


def duplicates(found: dict[str, set[str]]) -> list[str]:
    return [f"{name}: {', '.join(sorted(places))}" for name, places in sorted(found.items()) if len(places) > 1]


def test_no_folder_holds_more_modules_than_one_can_survey() -> None:
    crowded = {
        placed(folder): count
        for folder, names in folders()
        if (count := sum(not name.endswith("/") for name in names)) > MODULES_MAX
    }
    assert not crowded, "split these by the state that their modules own, or merge what belongs together"


def test_every_package_says_what_each_of_its_modules_is_for() -> None:
    unsaid = []
    for folder, names in folders():
        if folder == SRC:
            continue
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        listed = {match[1] for match in re.finditer(r"^    (\w+/?)(?:  +\S|$)", text, re.MULTILINE)}
        unsaid += [f"{placed(folder)}: {name} is not listed" for name in names if name not in listed]
        unsaid += [f"{placed(folder)}: {name} is listed and not there" for name in listed - set(names)]
    assert not unsaid, "\n".join(unsaid)


def test_no_two_public_classes_share_a_name() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(name)
    assert not duplicates(found), "\n".join(duplicates(found))


@cache
def labels() -> dict[str, set[str]]:
    """Where each invariant is stated: in the docstring of a module, or of a class."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees().items():
        if name == RESTATED_IN:
            continue
        nodes: list[ast.Module | ast.ClassDef] = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
        for node in nodes:
            for label in LABEL.findall(ast.get_docstring(node) or ""):
                found[label].add(name)
    return found


def test_no_two_modules_state_an_invariant_under_one_label() -> None:
    assert len(labels()) > 500, "the labels are not found any more"
    assert not duplicates(labels()), "\n".join(duplicates(labels()))


def test_no_label_looks_like_a_rule_of_the_design() -> None:
    taken = [
        f"{label}: {', '.join(places)}"
        for label, places in labels().items()
        if (match := re.fullmatch(r"([A-Z])(\d+)", label)) and int(match[2]) <= RULES.get(match[1], 0)
    ]
    assert not taken, "\n".join(taken)


def test_the_page_of_invariants_lists_all_of_them() -> None:
    page = (ROOT / "docs" / "invariants.md").read_text()
    listed = set(re.findall(r"^\| ([A-Z]{1,3}\d{1,2}) \|", page, re.MULTILINE))
    assert listed == set(labels()), "write it anew: python -m tests.invariants_page > docs/invariants.md"


def modules() -> dict[str, ast.Module]:
    """Modules of the package by dotted name."""
    found = {}
    for place, tree in trees().items():
        parts = Path(place).with_suffix("").parts
        if parts[0] != "benchmarks":
            found[".".join(("tidelog", *parts)).removesuffix(".__init__")] = tree
    return found


def imports_of(tree: ast.Module, known: Collection[str]) -> set[str]:
    """The known modules that a module imports anywhere in it: for types only and inside of functions too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{name.name}" for name in node.names}
            found |= inner & set(known) or {node.module}
    return found & set(known)


def cycles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, directly or through others."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        rest = {name: targets - {cycle[0]} for name, targets in imports.items() if name != cycle[0]}
        return [cycle, *cycles(rest)]
    return []


def test_no_module_imports_itself_through_others() -> None:
    known = modules()
    imports = {name: imports_of(tree, known) - {name} for name, tree in known.items()}
    assert sum(map(len, imports.values())) > 3_000, "the imports are not found any more"
    found = cycles(imports)
    assert not found, "\n".join(" -> ".join(cycle) for cycle in found)


def test_a_cycle_through_an_import_for_types_is_found() -> None:
    trees = {
        "tidelog.a": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tidelog.b import B",
        "tidelog.b": "def f():\n    from tidelog import c",
        "tidelog.c": "from tidelog.a import A",
    }
    assert cycles({name: imports_of(ast.parse(text), trees) for name, text in trees.items()})
