"""What the commands of `tidelog cluster` do: reach a node, ask it, and say what came of it.

A refusal, or nobody who answers, is one sentence on stderr and exit code 1; with --json the error stands on stdout too,
with what a program decides by. What is wrong with the call itself is exit code 2, before anybody is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tidelog.cli.cluster.page import print_status
from tidelog.cli.interrupts import run_until_told
from tidelog.cli.output import print_json
from tidelog.cli.reach import EXIT_REFUSED, Reach, explain, reach_of, say
from tidelog.cluster.node.cluster_client import OPERATOR, ClusterClient
from tidelog.errors import LogError
from tidelog.pki.identity import identity_of, is_name
from tidelog.pki.tls_files import read_pem
from tidelog.transports.link.tls import LinkTls

_ADVICE: Final = {
    "node_holds": "or give --force; what only that node holds is lost then",
    "node_exists": "a node that is expected already only needs to be started",
    "unknown_node": "`tidelog cluster status` shows the nodes",
    "not_leader": "a majority of the voters must be up; `tidelog cluster status` shows who is",
}
"""What an operator can do with this command about a refusal, by its code."""
_UNSURE: Final = "it may have happened all the same: look with `tidelog cluster status` before you ask again"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operator:
    """How to reach the cluster, and as whom."""

    reach: Reach
    tls: LinkTls | None
    name: str

    @property
    def as_json(self) -> bool:
        return self.reach.as_json


def run_status(**options: Any) -> None:
    operator = _operator(**options)
    status = _ask(operator, lambda client: client.status())
    if operator.as_json:
        print_json(status)
    else:
        print_status(status)


def run_add(node: str, **options: Any) -> None:
    _require_name(node)
    operator = _operator(**options)

    async def add(client: ClusterClient) -> dict[str, str]:
        await client.add(node)
        try:
            return _addresses(await client.status())
        except LogError:
            return {}  # it is added; only the hint below is less complete

    peers = _ask(operator, add)
    if operator.as_json:
        print_json({"added": node, "peers": peers})
        return
    shown = ",".join(f"{name}={address}" for name, address in peers.items()) or "NODE=HOST:PORT,..."
    files = (
        "--insecure-dev"
        if operator.reach.tls is None
        else f"--tls-cert {node}.crt --tls-key {node}.key --tls-ca ca.crt"
    )
    print(f"{node} is expected. Start it on its machine, with an empty data folder:")
    if operator.tls is not None:
        print(f"  tidelog ca issue {node} --node --server-name HOST     (where the authorities are)")
    print(f"  tidelog node --id {node} --listen HOST:PORT --data-dir FOLDER {files} \\\n    --peers {shown}")


def run_remove(node: str, *, force: bool, **options: Any) -> None:
    _require_name(node)
    operator = _operator(**options)
    _ask(operator, lambda client: client.remove(node, force=force))
    if operator.as_json:
        print_json({"removed": node, "force": force})
        return
    print(f"{node} is removed. Stop its process if it still runs; its data folder is not touched.")
    print(f"To have it back, or another machine in its place: tidelog cluster add {node}, then start it.")


def run_transfer(node: str | None, **options: Any) -> None:
    if node is not None:
        _require_name(node)
    operator = _operator(**options)
    leader = _ask(operator, lambda client: client.transfer(node))
    if operator.as_json:
        print_json({"leader": leader, "asked": node})
    else:
        print(f"{leader} leads the metadata now")
    if node not in (None, leader):
        say(f"{node} was asked for and {leader} leads; {node} may be behind or down: see `tidelog cluster status`")
        raise click.exceptions.Exit(EXIT_REFUSED)


def _ask(operator: _Operator, question: Callable[[ClusterClient], Awaitable[T]]) -> T:
    reach = operator.reach

    async def ask() -> T:
        client = ClusterClient(
            reach.addresses,
            tls=operator.tls,
            name=operator.name,
            insecure_dev=reach.tls is None,
            timeout_ms=reach.timeout_ms,
        )
        async with client:
            return await question(client)

    try:
        return run_until_told(ask())
    except LogError as error:
        explain(error, as_json=reach.as_json, advice=_ADVICE, unsure=_UNSURE)
        raise click.exceptions.Exit(EXIT_REFUSED) from error


def _operator(**options: Any) -> _Operator:
    """The options of every command, checked."""
    needs = (
        ": a cluster is commanded with an operator's certificate; `tidelog ca issue NAME --operator` writes the files"
    )
    reach = reach_of(**options, needs=needs)
    if reach.tls is None:
        return _Operator(reach=reach, tls=None, name=OPERATOR)
    name = _operator_name(reach.tls.certificate)
    return _Operator(reach=reach, tls=LinkTls(reach.tls), name=name)


def _operator_name(path: Path) -> str:
    """The name in the certificate, by which the nodes know the caller."""
    identity = identity_of(read_pem(path))
    if identity.kind != OPERATOR:
        raise click.UsageError(
            f"--tls-cert {str(path)!r} is the certificate of {identity}, and nodes take commands from operators only; "
            "`tidelog ca issue NAME --operator` makes one"
        )
    return identity.name


def _require_name(node: str) -> None:
    if not is_name(node):
        raise click.UsageError(
            f"{node!a} is no node's name; use 1 to 63 letters, digits, dots, dashes and underscores, beginning with a "
            "letter or digit"
        )


def _addresses(status: dict[str, Any]) -> dict[str, str]:
    """Where the nodes are that a new one can find the cluster by."""
    return {
        node["node"]: node["addresses"]["link"]
        for node in status["nodes"]
        if node["state"] == "active" and node["addresses"].get("link")
    }
