"""`tidelog cluster`: look at a cluster, add and remove nodes, move the leadership of its metadata.

Only the options live here; the work is in `tidelog.cli.cluster.actions`, loaded when a command is called.
"""

from __future__ import annotations

from typing import Final

import click

from tidelog.cli import reach_options
from tidelog.cli.lazy import LazyGroup, forwards

_ACTIONS: Final = "tidelog.cli.cluster.actions"
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
@forwards(_ACTIONS, "run_status")
def status() -> None:
    """Show who leads, how every node stands, and who cannot hear whom."""


@cluster.command()
@click.argument("node")
@_reaching
@forwards(_ACTIONS, "run_add")
def add() -> None:
    """Expect NODE: it is let in when it comes. Says how to start it."""


@cluster.command()
@click.argument("node")
@click.option("--force", is_flag=True, help="Even if it leads channels, or is the last to hold some: those are lost.")
@_reaching
@forwards(_ACTIONS, "run_remove")
def remove() -> None:
    """Remove NODE for good, dead or alive. Its data folder is not touched."""


@cluster.command()
@click.argument("node", required=False)
@_reaching
@forwards(_ACTIONS, "run_transfer")
def transfer() -> None:
    """Let NODE lead the metadata; without it, the voter with the longest log."""
