"""`tidelog sim`: run logs, boats or whole clusters through seeded faults. The same seed gives the same run.

A world's result is one dict: counters, and `violations`, a list (or a count) of what must not have
happened, each naming its seed; `never` lists the events that the seeds failed to bring about. Printed
as JSON it is flat but for one list: `violations` is their number, `first_violation` says what the first one was, and
`violating` has the first of them, each with its seed.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from typing import Any

import click

from tidelog.cli.lazy import LazyGroup
from tidelog.cli.output import print_facts, print_json

PARALLEL_ABOVE_SEEDS = 100
VIOLATING_MAX = 20
"""Violations that a run names as JSON; it counts them all."""
PROVING_SEEDS = 200
PROCESSES = os.cpu_count() or 1
_CHUNKS_PER_PROCESS = 8
_NOT_COUNTERS = frozenset({"first_seed", "seed"})


@click.group(cls=LazyGroup)
def sim() -> None:
    """Run log, store, journal, uplink, metadata and whole clusters through simulated faults."""


_WORLDS = {
    "log": "Random appends, syncs, rolls, truncations, crashes and rot of one log.",
    "store": "The same for a store: many channels behind one write-ahead file.",
    "journal": "A boat's journal: leases, sealing, retention, power cuts, full disks and lost files.",
    "uplink": "Boats and a cloud: bad links, crashes on either side, restored and cloned journals, full disks.",
    "metadata": "A cluster's memory: Raft, catalog and sessions; bad links, bad disks, nodes that come and go.",
    "cluster": "Whole clusters: replicated channels, writers, readers and operators; everything above, and more.",
}


_TRANSPORT = click.Option(
    ["--transport"],
    type=click.Choice(["link", "nats"]),
    default="link",
    show_default=True,
    help="What replication goes over; a NATS server has faults of its own.",
)


def _add_world(name: str, description: str) -> None:
    """Every world lies in `tidelog.sim.{name}.world` and is run by its `run_{name}_seeds`, or over NATS by its
    `run_nats_{name}_seeds`."""

    @sim.command(name, help=description)
    @click.option("--seeds", default=200, show_default=True, type=click.IntRange(min=1), help="How many seeds to run.")
    @click.option("--seed", default=None, type=click.IntRange(min=0), help="First seed; alone, the only one.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @click.pass_context
    def command(context: click.Context, seeds: int, seed: int | None, as_json: bool, transport: str = "link") -> None:
        module, function = f"tidelog.sim.{name}.world", f"run_{'nats_' if transport == 'nats' else ''}{name}_seeds"
        _run(context, module, function, seeds=seeds, seed=seed, as_json=as_json)

    if name == "cluster":
        command.params.append(_TRANSPORT)


for _name, _description in _WORLDS.items():
    _add_world(_name, _description)


def _run(context: click.Context, module: str, function: str, *, seeds: int, seed: int | None, as_json: bool) -> None:
    counted = context.get_parameter_source("seeds") is not click.core.ParameterSource.DEFAULT
    count = seeds if seed is None or counted else 1
    began = time.monotonic()
    result = run_seeds(module, function, first=seed or 0, count=count)
    violations = _violations(result)
    result["seconds"] = round(time.monotonic() - began, 2)
    # A handful of seeds cannot bring everything about; a run that is meant to prove something must.
    never = result.get("never", []) if count >= PROVING_SEEDS else []
    if as_json:
        result |= {"violations": len(violations), "never": ",".join(result.get("never", []))}
        if violations:
            # One long run is enough to know which seeds to replay.
            result |= {"first_violation": str(violations[0]), "violating": violations[:VIOLATING_MAX]}
        print_json(result)
    else:
        print_facts({name: value for name, value in result.items() if name != "violations"})
        for violation in violations:
            print(f"VIOLATION  {violation}")
    if violations or never:
        context.exit(1)


def run_seeds(module: str, function: str, *, first: int, count: int) -> dict[str, Any]:
    """Results of the seeds [first, first + count), from a process per core where that is worth their start."""
    if count <= PARALLEL_ABOVE_SEEDS:
        return _run_part(module, function, first, count)
    step = -(-count // (PROCESSES * _CHUNKS_PER_PROCESS))
    starts = range(first, first + count, step)
    counts = [min(step, first + count - start) for start in starts]
    # Fresh processes, not forks: a caller may have threads of gRPC, which do not survive one.
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(_run_part, module, function, *part) for part in zip(starts, counts, strict=True)]
        merged: dict[str, Any] = {}
        for task in tasks:
            merge_results(merged, task.result())
        return merged


def _run_part(module: str, function: str, first: int, count: int) -> dict[str, Any]:
    result: dict[str, Any] = getattr(import_module(module), function)(first, count)
    return result


def merge_results(into: dict[str, Any], part: dict[str, Any]) -> None:
    """Counters add up, lists are joined, dicts of counters are merged; what is neither stays as first seen."""
    for name, value in part.items():
        known = into.get(name)
        if known is None or name in _NOT_COUNTERS:
            into.setdefault(name, value)
        elif isinstance(value, bool):
            into[name] = known and value
        elif isinstance(value, int | float):
            total = max(known, value) if name.endswith("_max") else known + value
            into[name] = round(total, 3) if isinstance(total, float) else total
        elif name == "never":
            into[name] = [what for what in known if what in value]  # what no part brought about
        elif isinstance(value, list):
            into[name] = [*known, *value]
        elif isinstance(value, dict):
            merge_results(known, value)


def _violations(result: dict[str, Any]) -> list[Any]:
    found = result.get("violations", [])
    if isinstance(found, int):
        return [f"{found} violations"] if found else []
    return list(found)
