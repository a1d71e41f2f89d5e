"""Commands that only declare their options: the function that does the work is there and takes them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module

import click

from tidelog.cli.main import cli


def commands_of(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands_of(command)
        elif command is not None:
            yield command


def test_what_a_command_forwards_to_takes_its_options() -> None:
    forwarded = 0
    for command in commands_of(cli):
        place = getattr(command.callback, "forwards_to", None)
        if place is None:
            continue
        module, function, fixed = place
        names = [parameter.name for parameter in command.params if parameter.name]
        inspect.signature(getattr(import_module(module), function)).bind(**dict.fromkeys(names), **fixed)
        forwarded += 1
    assert forwarded > 15
