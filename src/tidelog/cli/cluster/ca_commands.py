"""`tidelog ca`: make, renew, revoke and list the certificates of boats, nodes, operators and clients.

Only the options live here; the work is in `tidelog.cli.cluster.ca_actions`, loaded when a command is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tidelog.cli.lazy import LazyGroup

if TYPE_CHECKING:
    from tidelog.pki.identity import Kind

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


def _kind(*, node: bool, operator: bool, client: bool) -> Kind:
    if node + operator + client > 1:
        raise click.UsageError("--node, --operator and --client exclude each other; give one, or none for a boat.")
    return "node" if node else "operator" if operator else "client" if client else "boat"


@ca.command()
@click.argument("folder", default="ca", envvar="TIDELOG_CA")
@click.option("--only", type=click.Choice(["boats", "nodes"]), help="Make one authority instead of both.")
@click.option("--fleet", default="fleet", show_default=True, help="The fleet's name in every certificate.")
@click.option(
    "--days", default=3650, show_default=True, type=click.IntRange(1, 36_500), help="Days until the authorities expire."
)
@_PASSPHRASE
@_JSON
def init(folder: str, only: str | None, fleet: str, days: int, passphrase_file: str | None, as_json: bool) -> None:
    """Make the authorities of a fleet, in ./ca by default."""
    from tidelog.cli.cluster.ca_actions import run_init

    run_init(folder, only=only, fleet=fleet, days=days, passphrase_file=passphrase_file, as_json=as_json)


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
def issue(
    name: str,
    node: bool,
    operator: bool,
    client: bool,
    server_names: tuple[str, ...],
    days: int,
    out: str,
    folder: str,
    passphrase_file: str | None,
    as_json: bool,
) -> None:
    """Write NAME.crt, NAME.key and the ca.crt that goes with them."""
    from tidelog.cli.cluster.ca_actions import run_issue

    run_issue(
        name,
        kind=_kind(node=node, operator=operator, client=client),
        server_names=server_names,
        days=days,
        out=out,
        folder=folder,
        passphrase_file=passphrase_file,
        as_json=as_json,
    )


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
def renew(
    name: str,
    node: bool,
    operator: bool,
    client: bool,
    server_names: tuple[str, ...],
    new_key: bool,
    days: int,
    out: str,
    folder: str,
    passphrase_file: str | None,
    as_json: bool,
) -> None:
    """Write a new NAME.crt for the key its holder has.

    The certificate before it stays good until it expires.
    """
    from tidelog.cli.cluster.ca_actions import run_renew

    run_renew(
        name,
        kind=_kind(node=node, operator=operator, client=client),
        server_names=server_names,
        new_key=new_key,
        days=days,
        out=out,
        folder=folder,
        passphrase_file=passphrase_file,
        as_json=as_json,
    )


@ca.command()
@click.argument("name_or_serial", metavar="NAME|SERIAL")
@_NODE
@_OPERATOR
@_CLIENT
@click.option("--reason", default="", help="One line, for the list.")
@_FOLDER
@_JSON
def revoke(
    name_or_serial: str, node: bool, operator: bool, client: bool, reason: str, folder: str, as_json: bool
) -> None:
    """Put every certificate of NAME, or the one of SERIAL, on the revocation list."""
    from tidelog.cli.cluster.ca_actions import run_revoke

    kind = _kind(node=node, operator=operator, client=client)
    run_revoke(name_or_serial, kind=kind, reason=reason, folder=folder, as_json=as_json)


@ca.command("list")
@_FOLDER
@_JSON
def list_(folder: str, as_json: bool) -> None:
    """Show every certificate, when it expires, and whether it is revoked."""
    from tidelog.cli.cluster.ca_actions import run_list

    run_list(folder, as_json=as_json)
