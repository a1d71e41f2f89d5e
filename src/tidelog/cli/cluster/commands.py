"""`tidelog cluster`: look at a cluster, add and remove nodes, move the leadership of its metadata.

Only the options live here; the work is in `tidelog.cli.cluster.actions`, loaded when a command is called.
"""

from __future__ import annotations

from typing import Any

import click

from tidelog.cli import reach_options
from tidelog.cli.lazy import LazyGroup

_reaching = reach_options.reaching(
    certificate="An operator's certificate.", timeout="10s", timeout_help="How long to wait for an answer."
)
"""The options with which every command finds the cluster."""


@click.group(cls=LazyGroup)
def cluster() -> None:
    """Look at a cluster, and change who belongs to it.

    Any node can be asked; it passes on what only the leader can do. Exit codes: 0 done; 1 refused, or nobody answered;
    2 the call is wrong.
    """


@cluster.command()
@_reaching
def status(**reach: Any) -> None:
    """Show who leads, how every node stands, and who cannot hear whom."""
    from tidelog.cli.cluster.actions import run_status

    run_status(**reach)


@cluster.command()
@click.argument("node")
@_reaching
def add(node: str, **reach: Any) -> None:
    """Expect NODE: it is let in when it comes. Says how to start it."""
    from tidelog.cli.cluster.actions import run_add

    run_add(node, **reach)


@cluster.command()
@click.argument("node")
@click.option("--force", is_flag=True, help="Even if it leads channels, or is the last to hold some: those are lost.")
@_reaching
def remove(node: str, force: bool, **reach: Any) -> None:
    """Remove NODE for good, dead or alive. Its data folder is not touched."""
    from tidelog.cli.cluster.actions import run_remove

    run_remove(node, force=force, **reach)


@cluster.command()
@click.argument("node", required=False)
@_reaching
def transfer(node: str | None, **reach: Any) -> None:
    """Let NODE lead the metadata; without it, the voter with the longest log."""
    from tidelog.cli.cluster.actions import run_transfer

    run_transfer(node, **reach)
