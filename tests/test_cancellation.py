"""No code swallows the cancellation of the task that it runs in: such a task does not end when it is told to.

`asyncio.wait_for` of Python 3.11 does, if what it waits for ends in the same moment; `asyncio.timeout` does not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "tidelog"
ENDS_WITH_IT = {
    ("cluster/uplink/service.py", "live"),
    ("cluster/uplink/service.py", "backfill"),
    ("cluster/uplink/relay.py", "_send"),
    ("gateways/liftbridge/service.py", "_streamed"),
}
"""Functions that are over with their cancellation: it is the last thing in them that is caught. gRPC would print a
traceback for each call that its caller broke."""


def inside(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        yield function, child
        name = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield from inside(child, name)


@cache
def nodes() -> tuple[tuple[str, str, ast.AST], ...]:
    """Whatever may swallow a cancellation: handlers and calls, with their module and function."""
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text()
        if "CancelledError" in text or "wait_for" in text:
            name = path.relative_to(SOURCES).as_posix()
            found += [(name, function, node) for function, node in inside(ast.parse(text), "")]
    return tuple(found)


def swallows(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        caught = node.type is not None and "CancelledError" in ast.unparse(node.type)
        return caught and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
    if isinstance(node, ast.Call) and "suppress" in ast.unparse(node.func):
        return any("CancelledError" in ast.unparse(argument) for argument in node.args)
    return False


def test_a_cancellation_is_swallowed_nowhere() -> None:
    assert {(path, function) for path, function, node in nodes() if swallows(node)} == ENDS_WITH_IT


def test_wait_for_of_asyncio_is_not_used() -> None:
    calls = [
        (path, function)
        for path, function, node in nodes()
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "asyncio.wait_for"
    ]
    assert calls == []
