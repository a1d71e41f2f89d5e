"""`tidelog bench`: measurements, as a table or as one flat JSON object."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from tidelog.cli.lazy import LazyGroup
from tidelog.cli.output import print_json, print_table


@click.group(cls=LazyGroup)
def bench() -> None:
    """Measure the log, the journal, the uplink, a fleet, the metadata and the link between nodes."""


@bench.command("log")
@click.option("--quick", is_flag=True, help="Fewer and shorter rounds: a look, not a measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print one flat JSON object.")
def bench_log(quick: bool, as_json: bool) -> None:
    """Append, recover, encode, decode and the store, against their floors."""
    _report("tidelog.bench.log_bench", quick=quick, as_json=as_json)


@bench.command("journal")
@click.option("--quick", is_flag=True, help="Fewer and shorter rounds: a look, not a measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print one flat JSON object.")
def bench_journal(quick: bool, as_json: bool) -> None:
    """What journaling a busy bus costs a boat: processor time and memory."""
    _report("tidelog.bench.journal_bench", quick=quick, as_json=as_json)


@bench.command("uplink")
@click.option("--quick", is_flag=True, help="Fewer and shorter rounds: a look, not a measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print one flat JSON object.")
def bench_uplink(quick: bool, as_json: bool) -> None:
    """One boat and one cloud over mTLS, against bare gRPC, rsync and lplex."""
    _report("tidelog.bench.uplink_bench", quick=quick, as_json=as_json)


@bench.command("fleet")
@click.option("--quick", is_flag=True, help="Fewer and shorter rounds: a look, not a measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print one flat JSON object.")
def bench_fleet(quick: bool, as_json: bool) -> None:
    """Fifty busy boats into one cloud process, then a thousand silent ones."""
    _report("tidelog.bench.fleet_bench", quick=quick, as_json=as_json)


@bench.command("metadata")
@click.option("--quick", is_flag=True, help="Fewer and shorter rounds: a look, not a measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print one flat JSON object.")
def bench_metadata(quick: bool, as_json: bool) -> None:
    """Three nodes over mTLS: how fast changes commit, how many share a sync, how long a failover takes."""
    _report("tidelog.bench.metadata_bench", quick=quick, as_json=as_json)


@bench.command("link")
@click.option("--quick", is_flag=True, help="Fewer and shorter rounds: a look, not a measurement.")
@click.option("--json", "as_json", is_flag=True, help="Print one flat JSON object.")
def bench_link(quick: bool, as_json: bool) -> None:
    """The link between nodes against a bare TLS socket: small messages, bulk, heartbeats beside bulk."""
    _report("tidelog.bench.link_bench", quick=quick, as_json=as_json)


def _report(module: str, *, quick: bool, as_json: bool) -> None:
    run: Callable[..., dict[str, Any]] = import_module(module).run
    results = run(quick=quick)
    if as_json:
        print_json(results)
    else:
        rows = [[name, _shown(value)] for name, value in results.items()]
        print_table("", ["measure", "value"], rows, left=frozenset({"measure"}))


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
