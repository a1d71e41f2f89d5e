"""Write docs/invariants.md anew: every numbered rule of the code, where it is stated, asserted and tested.

python -m tests.invariants_page > docs/invariants.md
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.test_tree import LABEL, RESTATED_IN, ROOT, trees

TOP = """# Invariants

Every module opens with what its caller must keep, and numbers the rules that it keeps itself. Their labels are unique
over the tree; comments, asserts and tests cite them. Rules of the design (B1, S3, R5 and so on) are another list: the
code says how it keeps each where it does. This page is written by `python -m tests.invariants_page`.

*Checked in* names modules that cite the label in an assertion or in a checker of the simulator; *tests* those that name
it.
"""
HEAD = "| label | what holds | stated in | checked in | tests |\n|---|---|---|---|---|"
CITED = re.compile(r"(?<![\w.])([A-Z]{1,3}\d{1,2})(?!\w)")


def stated() -> Iterator[tuple[str, str, str]]:
    """(label, its first sentence, module)"""
    for name, tree in trees().items():
        if name == RESTATED_IN:
            continue
        nodes: list[ast.Module | ast.ClassDef] = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
        for node in nodes:
            text = ast.get_docstring(node) or ""
            found = list(LABEL.finditer(text))
            for place, match in enumerate(found):
                end = found[place + 1].start() if place + 1 < len(found) else len(text)
                paragraph = " ".join(text[match.end() : end].split("\n\n")[0].split())
                yield match[1], re.split(r"(?<=[.:;])\s", paragraph, maxsplit=1)[0].rstrip(":;"), name


def checked() -> dict[str, set[str]]:
    """Modules that cite a label where they check it: in an assert, or in what a checker says when it is broken."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert) or (name.startswith("sim/") and isinstance(node, ast.Call | ast.Raise)):
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        for label in CITED.findall(part.value):
                            found[label].add(name)
    return found


def tested() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        cited = set(CITED.findall(text))
        # The name of a test may begin with the label: test_fw6_a_follower_stops.
        cited |= {match.upper() for match in re.findall(r"def test_([a-z]{1,3}\d{1,2})_", text)}
        for label in cited:
            found[label].add(str(path.relative_to(ROOT / "tests").with_suffix("")))
    return found


def code(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def main() -> None:
    where_checked, where_tested = checked(), tested()
    rooms: dict[str, list[str]] = defaultdict(list)
    for label, sentence, name in stated():
        shown = sentence.replace("|", "\\|")
        files = (where_checked.get(label, set()), where_tested.get(label, set()))
        module = Path(name).with_suffix("")
        row = f"| {label} | {shown} | `{module.name}` | {code({str(Path(one).with_suffix('')) for one in files[0]})}"
        rooms[str(module.parent)].append(f"{row} | {code(files[1])} |")
    sys.stdout.write(TOP)
    for room in sorted(rooms):
        sys.stdout.write(f"\n## {'tidelog' if room == '.' else room}\n\n{HEAD}\n")
        sys.stdout.write("".join(f"{row}\n" for row in rooms[room]))


if __name__ == "__main__":
    main()
