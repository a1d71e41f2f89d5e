"""Commands that are loaded when they are called, so that `tidelog --help` starts fast.

A `LazyGroup` knows its commands by name, by the place of their code and by one line of help. Listing
them imports nothing; a command whose module is not installed is not listed, and calling it says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from importlib.util import find_spec
from typing import Any, NamedTuple

import click


def forwards(module: str, function: str, **fixed: Any) -> Callable[[Callable[[], None]], Callable[..., None]]:
    """A command that only declares its options: `function` of `module` does the work, and gets them by their names.

    The module is imported when the command is called. A number that the function returns is the exit code.
    """

    def decorate(declared: Callable[[], None]) -> Callable[..., None]:
        @wraps(declared)
        def call(**options: Any) -> None:
            code: int | None = getattr(importlib.import_module(module), function)(**options, **fixed)
            if code is not None:
                click.get_current_context().exit(code)

        call.forwards_to = (module, function, fixed)  # type: ignore[attr-defined]
        return call

    return decorate


class LazyCommand(NamedTuple):
    module: str
    attribute: str
    help: str

    def is_installed(self) -> bool:
        return find_spec(self.module) is not None


class LazyGroup(click.Group):
    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        installed = (name for name, command in self.lazy.items() if command.is_installed())
        return sorted({*super().list_commands(ctx), *installed})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.lazy.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        if not entry.is_installed():
            raise click.UsageError(f"The command {cmd_name!r} is not part of this installation.", ctx)
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command), entry
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            entry = self.lazy.get(name)
            command = None if entry else self.get_command(ctx, name)
            rows.append((name, entry.help if entry else command.get_short_help_str() if command else ""))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx) and name not in self.lazy:
            near = get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)
