"""What holds for every test."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.patience import patient
from tests.reaper import watch_over_this_run

COROUTINE_LIMIT_S = 180
"""What a test that waits for sockets may take with its fixtures, unless it is marked with a limit of its own."""

# Hypothesis' deadline measures the machine's other work, not the code: pytest-timeout bounds every test
# instead. A failure prints the blob that reproduces it.
settings.register_profile("tidelog", deadline=None, print_blob=True)
settings.load_profile("tidelog")

# One worker may run tests of the uplink and start Spark's Java later. gRPC's handlers of fork() would start its poller
# in the new process, whose files are closed by then: it ends before Java begins. Read when gRPC is loaded.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

watch_over_this_run()

# The benchmarks lie beside the package and are not installed; processes that a test starts find them too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))


def pytest_collection_finish() -> None:
    """The kit of real nodes lies beside the benchmarks, which have no patience."""
    if "benchmarks.kits.cluster_kit" in sys.modules:
        from benchmarks.kits import cluster_kit

        cluster_kit.patience = patient


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run each coroutine test in a loop of its own.

    anyio's plugin would do the same, but fails a test for what gRPC's poller logs about loops of earlier tests.
    """
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """pytest-timeout's limit grows with the machine's slowness, as all deadlines do; around that plugin's own hook."""
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker is not None and marker.args else item.config.getini("timeout") or 0)
    if marker is None and inspect.iscoroutinefunction(getattr(item, "function", None)):
        limit_s = COROUTINE_LIMIT_S
    if limit_s:
        item.add_marker(pytest.mark.timeout(patient(limit_s)), append=False)
    yield
