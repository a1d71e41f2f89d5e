"""What commands print: tables and progress for people, JSON for programs.

Progress goes to stderr and only when that is a terminal. Colours are rich's business: off in pipes and
with NO_COLOR.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 200
"""Columns of a table that nobody looks at yet."""


def console() -> Console:
    from rich.console import Console

    class PlainPipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return PlainPipeConsole(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)


def print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False))


def print_table(title: str, columns: list[str], rows: list[list[str]], *, left: frozenset[str] = frozenset()) -> None:
    """A table; numbers line up on the right unless their column is in `left`."""
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, box=box.SIMPLE, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def print_facts(facts: dict[str, Any]) -> None:
    """Name and value, one per line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")


def warn(message: str) -> None:
    print(f"tidelog: {message}", file=sys.stderr)


@contextmanager
def progress(description: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A function that moves a progress bar on; on anything but a terminal it does nothing."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda step: bar.advance(task, step)
