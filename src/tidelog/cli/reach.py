"""How a command reaches a cluster, as its options say it, and how it tells of a refusal.

Everything that is wrong with the options is said at once, with exit code 2, before anybody is asked. A refusal, or
nobody who answers, is one sentence on stderr and exit code 1; with --json the error stands on stdout too, with what a
program decides by.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from tidelog.cli.output import print_json
from tidelog.config import TARGET
from tidelog.errors import InvalidConfig, LogError
from tidelog.transports.link.tls import LinkTlsFiles
from tidelog.units import parse_duration_us

EXIT_REFUSED: Final = 1
_TIMEOUT_MS_MAX: Final = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Checked."""

    addresses: list[str]
    tls: LinkTlsFiles | None
    timeout_ms: int
    as_json: bool


def reach_of(
    *,
    nodes: Sequence[str],
    tls_cert: str | None,
    tls_key: str | None,
    tls_ca: str | None,
    insecure_dev: bool,
    timeout: str,
    as_json: bool,
    needs: str,
) -> Reach:
    """`needs` says which certificate is missing, and how to make one."""
    problems: list[str] = []
    addresses = _addresses(nodes, problems)
    timeout_ms = _timeout_ms(timeout, problems)
    files = {"--tls-cert": tls_cert, "--tls-key": tls_key, "--tls-ca": tls_ca}
    missing = [flag for flag, path in files.items() if not path]
    if insecure_dev and len(missing) < len(files):
        problems.append("--insecure-dev and certificates exclude each other; leave out one")
    if not insecure_dev and missing:
        problems.append(f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing{needs}")
    if problems:
        raise click.UsageError("; ".join(problems))
    tls = None
    if tls_cert and tls_key and tls_ca:
        tls = LinkTlsFiles(certificate=Path(tls_cert), key=Path(tls_key), authority=Path(tls_ca))
    return Reach(addresses=addresses, tls=tls, timeout_ms=timeout_ms, as_json=as_json)


def _addresses(nodes: Sequence[str], problems: list[str]) -> list[str]:
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


def explain(error: LogError, *, as_json: bool, advice: Mapping[str, str], unsure: str) -> None:
    """Say why, and what can be done."""
    if as_json:
        print_json(error_facts(error))
    say(with_advice(error, advice, unsure))


def error_facts(error: LogError) -> dict[str, Any]:
    return {"error": error.code, "detail": str(error), "retriable": error.retriable, "definite": error.definite}


def with_advice(error: LogError, advice: Mapping[str, str], unsure: str) -> str:
    """The error and what to do: `advice` by its code, `unsure` where it may have happened all the same."""
    found = advice.get(error.code) if error.definite else unsure
    return f"{error}; {found}" if found else str(error)


def say(message: str) -> None:
    """One line on stderr."""
    print(f"tidelog: {' '.join(message.split())}", file=sys.stderr)
