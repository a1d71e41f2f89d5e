"""`tidelog bench`: measurements, as a table or as one flat JSON object.

The benchmarks lie in the source tree (`benchmarks/`), not in the installed package: they need the development
requirements, and a wheel is half a megabyte smaller without them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from tidelog.cli.lazy import LazyGroup
from tidelog.cli.output import print_json, print_table
from tidelog.errors import InvalidConfig


@click.group(cls=LazyGroup)
def bench() -> None:
    """Measure log, journal, uplink, a fleet, metadata, link, channels, gateway and pipeline."""


_BENCHES = {
    # name: (module, what it measures)
    "log": ("log.log_bench", "Append, recover, encode, decode and the store, against their floors."),
    "journal": ("log.journal_bench", "What journaling a busy bus costs a boat: processor time and memory."),
    "uplink": ("uplink.uplink_bench", "One boat and one cloud over mTLS, against bare gRPC, rsync and lplex."),
    "fleet": ("uplink.fleet_bench", "Fifty busy boats into one cloud process, then a thousand silent ones."),
    "metadata": (
        "cluster.metadata_bench",
        "Three nodes over mTLS: how fast changes commit, how many share a sync, how long a failover takes.",
    ),
    "link": (
        "cluster.link_bench",
        "The link between nodes against a bare TLS socket: small messages, bulk, heartbeats beside bulk.",
    ),
    "cluster": (
        "cluster.cluster_bench",
        "A replicated channel on three nodes against NATS JetStream: batches, single records, latency.",
    ),
    "failover": (
        "cluster.failover_bench",
        "A channel's leader is killed, stopped or cut off: how long until the next ack, and is anything lost?",
    ),
    "idle": (
        "cluster.idle_bench",
        "Thousands of replicated channels that nobody uses: processor time and memory of each node.",
    ),
    "client": (
        "clients.client_bench",
        "The native client: producing, fetching raw blocks against a bare TLS socket, publish to subscriber.",
    ),
    "doors": (
        "clients.gateway_bench",
        "Liftbridge's API against the native client, and replication over NATS against the link.",
    ),
    "catchup": (
        "cluster.catchup_bench",
        "A replica that was away is filled while the leader takes writes, within its budget.",
    ),
    "pipeline": (
        "pipeline.pipeline_bench",
        "Blocks to tables and rows on Spark, against Spark doing the same with Parquet; decoding.",
    ),
    "freshness": (
        "pipeline.freshness_bench",
        "Ten boats, a cluster and a running pipeline: how old a row is when it can first be queried.",
    ),
}


def _add_bench(name: str, module: str, description: str) -> None:
    """Adds one command. The module has a function `run(quick=...)` that returns the results."""

    @bench.command(name, help=description)
    @click.option("--quick", is_flag=True, help="Fewer and shorter rounds: a look, not a measurement.")
    @click.option("--json", "as_json", is_flag=True, help="Print one flat JSON object.")
    def command(quick: bool, as_json: bool) -> None:
        _report(f"benchmarks.{module}", quick=quick, as_json=as_json)


for _name, (_module, _description) in _BENCHES.items():
    _add_bench(_name, _module, _description)


def _report(module: str, *, quick: bool, as_json: bool) -> None:
    _let_processes_import_benchmarks(_checkout())
    run: Callable[..., dict[str, Any]] = import_module(module).run
    results = run(quick=quick)
    if as_json:
        print_json(results)
    else:
        rows = [[name, _shown(value)] for name, value in results.items()]
        print_table("", ["measure", "value"], rows, left=frozenset({"measure"}))


def _checkout() -> Path:
    """The source tree that holds the benchmarks: the working folder, or the one that this code was installed from."""
    beside_this_code = Path(__file__).parents[3]
    for folder in (Path.cwd(), beside_this_code):
        if (folder / "benchmarks" / "kits" / "measure.py").is_file():
            return folder
    problem = "the benchmarks are part of the source tree, not of the package; run this in a clone, after `make setup`"
    raise InvalidConfig(section="bench", problems=[problem])


def _let_processes_import_benchmarks(checkout: Path) -> None:
    """For this process and for those that a benchmark starts."""
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    paths = [str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
