"""What the commands of `tidelog cluster` do: reach a node, ask it, and say what came of it.

A refusal, or nobody who answers, is one sentence on stderr and exit code 1; with --json the error stands on stdout too,
with what a program decides by. What is wrong with the call itself is exit code 2, before anybody is asked.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from tidelog.cli.cluster_page import print_status
from tidelog.cli.output import print_json
from tidelog.cluster.cluster_client import OPERATOR, ClusterClient
from tidelog.config import TARGET
from tidelog.errors import InvalidConfig, LogError
from tidelog.units import parse_duration_us
from tidelog.wire.identity import identity_of, is_name
from tidelog.wire.link_tls import LinkTls, LinkTlsFiles
from tidelog.wire.tls_files import read_pem

EXIT_REFUSED: Final = 1
_TIMEOUT_MS_MAX: Final = 600_000
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
class _Reach:
    """How to reach the cluster, as the options say it; checked."""

    addresses: list[str]
    tls: LinkTls | None
    name: str
    timeout_ms: int
    as_json: bool


def run_status(**options: Any) -> None:
    reach = _reach(**options)
    status = _ask(reach, lambda client: client.status())
    if reach.as_json:
        print_json(status)
    else:
        print_status(status)


def run_add(node: str, **options: Any) -> None:
    _require_name(node)
    reach = _reach(**options)

    async def add(client: ClusterClient) -> dict[str, str]:
        await client.add(node)
        try:
            return _addresses(await client.status())
        except LogError:
            return {}  # it is added; only the hint below is less complete

    peers = _ask(reach, add)
    if reach.as_json:
        print_json({"added": node, "peers": peers})
        return
    shown = ",".join(f"{name}={address}" for name, address in peers.items()) or "NODE=HOST:PORT,..."
    files = "--insecure-dev" if reach.tls is None else f"--tls-cert {node}.crt --tls-key {node}.key --tls-ca ca.crt"
    print(f"{node} is expected. Start it on its machine, with an empty data folder:")
    if reach.tls is not None:
        print(f"  tidelog ca issue {node} --node --server-name HOST     (where the authorities are)")
    print(f"  tidelog node --id {node} --listen HOST:PORT --data-dir FOLDER {files} \\\n    --peers {shown}")


def run_remove(node: str, *, force: bool, **options: Any) -> None:
    _require_name(node)
    reach = _reach(**options)
    _ask(reach, lambda client: client.remove(node, force=force))
    if reach.as_json:
        print_json({"removed": node, "force": force})
        return
    print(f"{node} is removed. Stop its process if it still runs; its data folder is not touched.")
    print(f"To have it back, or another machine in its place: tidelog cluster add {node}, then start it.")


def run_transfer(node: str | None, **options: Any) -> None:
    if node is not None:
        _require_name(node)
    reach = _reach(**options)
    leader = _ask(reach, lambda client: client.transfer(node))
    if reach.as_json:
        print_json({"leader": leader, "asked": node})
    else:
        print(f"{leader} leads the metadata now")
    if node not in (None, leader):
        _say(f"{node} was asked for and {leader} leads; {node} may be behind or down: see `tidelog cluster status`")
        raise click.exceptions.Exit(EXIT_REFUSED)


def _ask(reach: _Reach, question: Callable[[ClusterClient], Awaitable[T]]) -> T:
    async def ask() -> T:
        client = ClusterClient(
            reach.addresses,
            tls=reach.tls,
            name=reach.name,
            insecure_dev=reach.tls is None,
            timeout_ms=reach.timeout_ms,
        )
        async with client:
            return await question(client)

    try:
        return asyncio.run(ask())
    except LogError as error:
        _explain(error, as_json=reach.as_json)
        raise click.exceptions.Exit(EXIT_REFUSED) from error


def _explain(error: LogError, *, as_json: bool) -> None:
    if as_json:
        facts = {"error": error.code, "detail": str(error), "retriable": error.retriable, "definite": error.definite}
        print_json(facts)
    advice = _ADVICE.get(error.code) if error.definite else _UNSURE
    _say(f"{error}; {advice}" if advice else str(error))


def _say(message: str) -> None:
    print(f"tidelog: {' '.join(message.split())}", file=sys.stderr)


# --- the options -----------------------------------------------------------------------------------


def _reach(
    *,
    nodes: Sequence[str],
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    insecure_dev: bool,
    timeout: str,
    as_json: bool,
) -> _Reach:
    """Everything that is wrong with the options is said at once."""
    problems: list[str] = []
    addresses = _addresses_given(nodes, problems)
    timeout_ms = _timeout_ms(timeout, problems)
    files = {"--tls-cert": tls_cert, "--tls-key": tls_key, "--tls-ca": tls_ca}
    missing = [flag for flag, path in files.items() if not path]
    if insecure_dev and len(missing) < len(files):
        problems.append("--insecure-dev and certificates exclude each other; leave out one")
    if not insecure_dev and missing:
        problems.append(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: a cluster is commanded with an "
            "operator's certificate; `tidelog ca issue NAME --operator` writes the files"
        )
    if problems:
        raise click.UsageError("; ".join(problems))
    name, tls = OPERATOR, None
    if tls_cert and tls_key and tls_ca:
        name = _operator_name(Path(tls_cert))
        tls = LinkTls(LinkTlsFiles(certificate=Path(tls_cert), key=Path(tls_key), authority=Path(tls_ca)))
    return _Reach(addresses=addresses, tls=tls, name=name, timeout_ms=timeout_ms, as_json=as_json)


def _addresses_given(nodes: Sequence[str], problems: list[str]) -> list[str]:
    found = [part.strip() for text in nodes for part in text.split(",") if part.strip()]
    if not found:
        problems.append("name a node to ask: --node host:port, or set TIDELOG_CLUSTER_NODES")
    for address in found:
        try:
            TARGET.parse(address)
        except ValueError as error:
            problems.append(f"--node {address!r} {error}")
    return list(dict.fromkeys(found))


def _timeout_ms(text: str, problems: list[str]) -> int:
    try:
        timeout_ms = parse_duration_us(text) // 1000
    except InvalidConfig:
        timeout_ms = 0
    if not 1 <= timeout_ms <= _TIMEOUT_MS_MAX:
        problems.append(f"--timeout {text!r} is no duration from 1ms to 10m, such as 10s")
    return timeout_ms


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
