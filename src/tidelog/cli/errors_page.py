"""The table of errors in docs/errors.md, written from the classes themselves.

Refresh the page after changing `tidelog.errors`: `python -m tidelog.cli.errors_page > docs/errors.md`.
"""

from __future__ import annotations

import inspect

from tidelog import errors
from tidelog.errors import (
    catalog,
    channels,
    client,
    embedded,
    gateways,
    groups,
    identity,
    link,
    pipeline,
    raft,
    replication,
    storage,
)

_HEADING = """\
# Errors

Every error that Tidelog raises on purpose. This page is written from the code; refresh it with
`python -m tidelog.cli.errors_page > docs/errors.md`.

- **code** is stable: it travels on the wire and is what scripts and alerts should match.
- **retriable**: the same request may succeed later.
- **definite**: the operation certainly had no effect. Where this says no, it may have had one: look
  before you retry.

| code | class | retriable | definite | meaning |
|---|---|---|---|---|
"""


def error_classes() -> list[type[errors.LogError]]:
    """Every error a caller can meet, in the order in which its module tells of it."""
    modules = (
        storage,
        replication,
        identity,
        link,
        raft,
        catalog,
        channels,
        client,
        groups,
        embedded,
        pipeline,
        gateways,
    )
    return [
        value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, errors.LogError) and value is not errors.LogError
    ]


def render_errors_page() -> str:
    return _HEADING + "".join(_row(error) for error in error_classes())


def _row(error: type[errors.LogError]) -> str:
    cells = (
        f"`{error.code}`",
        f"`{error.__name__}`",
        _yes_or_no(error.retriable),
        _yes_or_no(error.definite),
        _meaning(error),
    )
    return f"| {' | '.join(cells)} |\n"


def _yes_or_no(answer: bool) -> str:
    return "yes" if answer else "no"


def _meaning(error: type[errors.LogError]) -> str:
    """The first paragraph of the docstring on one line, safe inside a table cell."""
    paragraph = inspect.cleandoc(error.__doc__ or "").split("\n\n")[0]
    return " ".join(paragraph.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(render_errors_page(), end="")
