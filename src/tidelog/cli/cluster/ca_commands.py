"""`tidelog ca`: make, renew, revoke and list the certificates of boats, nodes, operators and clients.

Only the options live here; the work is in `tidelog.cli.cluster.ca_actions`, loaded when a command is called.
"""

from __future__ import annotations

from typing import Final

import click

from tidelog.cli.lazy import LazyGroup, forwards

_ACTIONS: Final = "tidelog.cli.cluster.ca_actions"
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
_FOLDER = click.option(
    "--ca", "folder", default="ca", show_default=True, envvar="TIDELOG_CA", metavar="FOLDER", help="The authorities."
)
_OUT = click.option("--out", default=".", metavar="FOLDER", help="Where to write the files; here by default.")
_NODE = click.option("--node", is_flag=True, help="A node of the cluster, or the cloud; without it a boat.")
_OPERATOR = click.option("--operator", is_flag=True, help="A person or tool that commands the cluster.")
_CLIENT = click.option("--client", is_flag=True, help="An application that writes and reads what its grants allow.")
_DAYS = click.option(
    "--days", default=730, show_default=True, type=click.IntRange(1, 36_500), help="Days until it expires."
)
_SERVER_NAME = click.option(
    "--server-name",
    "server_names",
    multiple=True,
    metavar="HOST",
    help="Host name or address that clients will call; may be given again. Nodes only.",
)
_PASSPHRASE = click.option(
    "--passphrase-file", metavar="FILE", help="First line: the passphrase of ca.key. Or set TIDELOG_CA_PASSPHRASE."
)


@click.group(cls=LazyGroup)
def ca() -> None:
    """Make, renew and revoke the certificates of boats, nodes, operators and clients.

    Boats and nodes have an authority each, so that neither can pass for the other. Operators command the nodes and
    clients write to them, so the nodes' authority signs both.
    """


@ca.command()
@click.argument("folder", default="ca", envvar="TIDELOG_CA")
@click.option("--only", type=click.Choice(["boats", "nodes"]), help="Make one authority instead of both.")
@click.option("--fleet", default="fleet", show_default=True, help="The fleet's name in every certificate.")
@click.option(
    "--days", default=3650, show_default=True, type=click.IntRange(1, 36_500), help="Days until the authorities expire."
)
@_PASSPHRASE
@_JSON
@forwards(_ACTIONS, "run_init")
def init() -> None:
    """Make the authorities of a fleet, in ./ca by default."""


@ca.command()
@click.argument("name")
@_NODE
@_OPERATOR
@_CLIENT
@_SERVER_NAME
@_DAYS
@_OUT
@_FOLDER
@_PASSPHRASE
@_JSON
@forwards(_ACTIONS, "run_issue")
def issue() -> None:
    """Write NAME.crt, NAME.key and the ca.crt that goes with them."""


@ca.command()
@click.argument("name")
@_NODE
@_OPERATOR
@_CLIENT
@_SERVER_NAME
@click.option("--new-key", is_flag=True, help="Make a new key too; without it the holder keeps its own.")
@_DAYS
@_OUT
@_FOLDER
@_PASSPHRASE
@_JSON
@forwards(_ACTIONS, "run_renew")
def renew() -> None:
    """Write a new NAME.crt for the key its holder has.

    The certificate before it stays good until it expires.
    """


@ca.command()
@click.argument("name_or_serial", metavar="NAME|SERIAL")
@_NODE
@_OPERATOR
@_CLIENT
@click.option("--reason", default="", help="One line, for the list.")
@_FOLDER
@_JSON
@forwards(_ACTIONS, "run_revoke")
def revoke() -> None:
    """Put every certificate of NAME, or the one of SERIAL, on the revocation list."""


@ca.command("list")
@_FOLDER
@_JSON
@forwards(_ACTIONS, "run_list")
def list_() -> None:
    """Show every certificate, when it expires, and whether it is revoked."""
