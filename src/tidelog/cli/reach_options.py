"""The options with which a command finds a cluster. They load nothing, so that `--help` answers at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import click

Command: TypeAlias = Callable[..., Any]


def reaching(*, certificate: str, timeout: str, timeout_help: str) -> Callable[[Command], Command]:
    """Whose certificate is wanted, and how long a command waits, differ; the rest is the same everywhere."""
    options = (
        click.option(
            "--node",
            "nodes",
            multiple=True,
            envvar="TIDELOG_CLUSTER_NODES",
            metavar="HOST:PORT",
            help="A node to ask; give several, and the first that answers is asked.",
        ),
        click.option("--tls-cert", envvar="TIDELOG_CLUSTER_TLS_CERT", metavar="FILE", help=certificate),
        click.option("--tls-key", envvar="TIDELOG_CLUSTER_TLS_KEY", metavar="FILE", help="Its key."),
        click.option("--tls-ca", envvar="TIDELOG_CLUSTER_TLS_CA", metavar="FILE", help="The nodes' authority."),
        click.option("--insecure-dev", is_flag=True, help="The nodes run with -insecure-dev."),
        click.option("--timeout", default=timeout, show_default=True, help=timeout_help),
        click.option("--json", "as_json", is_flag=True, help="Print JSON for programs."),
    )
    return with_options(options)


def with_options(options: tuple[Callable[[Command], Command], ...]) -> Callable[[Command], Command]:
    """One decorator for many options, shown in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
