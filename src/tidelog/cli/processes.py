"""`tidelog boat` and `tidelog cloud`, also installed as `lplex-server` and `lplex-cloud`, and `tidelog node`.

All take their settings as flags (one dash or two), environment or HOCON file; see `tidelog.config`. Everything
that is wrong with them is said before anything is opened, a line each, and the exit code is 2. They run until
SIGINT or SIGTERM and then stop cleanly. Log lines go to stderr, one a line, key=value. What a full or broken disk does
to them: `tidelog.cli.disk_trouble`.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog import __version__
from tidelog.cli.disk_trouble import as_failure, begin_anew_when_there_is_room, is_failed, is_full
from tidelog.cli.idle_memory import returned_when_idle
from tidelog.cli.settings.boat import BOAT_FILES, BOAT_SETTINGS, boat_options, check_boat, open_source
from tidelog.cli.settings.checks import require_free
from tidelog.cli.settings.cloud import CLOUD_FILES, CLOUD_SETTINGS, check_cloud, cloud_options
from tidelog.cli.settings.common import http_options
from tidelog.cli.settings.gateway import with_gateway
from tidelog.cli.settings.node import NODE_FILES, NODE_SETTINGS, check_node, node_options
from tidelog.cli.settings.page import render_help
from tidelog.config import Loaded, Setting, load_settings, read_flags
from tidelog.errors import LogError

if TYPE_CHECKING:
    from tidelog.cluster.node.process import Node

_LOOSE: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}
_HELP: Final = {"-h", "-help", "--help", "-help=true", "--help=true"}
_OTHER_VARIABLES: Final = (
    "TIDELOG_TRACEBACK",
    "TIDELOG_CA",
    "TIDELOG_CA_PASSPHRASE",
    "TIDELOG_CLUSTER_NODES",
    "TIDELOG_CLUSTER_TLS_CERT",
    "TIDELOG_CLUSTER_TLS_KEY",
    "TIDELOG_CLUSTER_TLS_CA",
)

Run = tuple[Callable[[], None], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    name: str
    settings: Sequence[Setting]
    files: Sequence[str]
    """Where settings are looked for when -config names no file."""
    folder: str
    """The setting that says where its data lies."""
    check: Callable[[Loaded], None]
    start: Callable[[dict[str, Any]], Coroutine[Any, Any, Run]]


@click.command(context_settings=_LOOSE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def boat(arguments: tuple[str, ...]) -> None:
    """Record a bus into a journal and ship it to the cloud."""
    _run_process(
        _Process(
            name="boat",
            settings=BOAT_SETTINGS,
            files=BOAT_FILES,
            folder="journal-dir",
            check=check_boat,
            start=_run_boat,
        ),
        arguments,
    )


@click.command(context_settings=_LOOSE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def cloud(arguments: tuple[str, ...]) -> None:
    """Take the journals of many boats and keep them."""
    _run_process(
        _Process(
            name="cloud",
            settings=CLOUD_SETTINGS,
            files=CLOUD_FILES,
            folder="data-dir",
            check=check_cloud,
            start=_run_cloud,
        ),
        arguments,
    )


@click.command(context_settings=_LOOSE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def node(arguments: tuple[str, ...]) -> None:
    """Be one node of a cluster."""
    _run_process(
        _Process(
            name="node", settings=NODE_SETTINGS, files=NODE_FILES, folder="data-dir", check=check_node, start=_run_node
        ),
        arguments,
    )


def _run_process(process: _Process, arguments: Sequence[str]) -> None:
    """Read the settings, and do what they ask for: help, version, a check, or the work."""
    if _HELP & set(arguments):
        print(render_help(process.name, process.settings, process.files))
        return
    if read_flags(process.settings, arguments, []).get("version", "") in ("true", "1", "t"):
        print(f"tidelog {process.name} {__version__}")
        return
    file = _settings_file(process, arguments)
    every = (setting.variable for setting in (*BOAT_SETTINGS, *CLOUD_SETTINGS, *NODE_SETTINGS))
    loaded = load_settings(
        process.settings,
        arguments=arguments,
        environment=os.environ,
        file=file,
        other_variables=(*_OTHER_VARIABLES, *every),
    )
    process.check(loaded)
    for problem in loaded.problems:
        print(f"tidelog: {' '.join(problem.split())}", file=sys.stderr)
    if loaded.problems:
        raise click.exceptions.Exit(2)
    if file is not None:
        _say(f"settings file={file}")
    for name, reason in loaded.without_effect:
        _say(f"setting has no effect name={name!r} reason={reason!r}")
    if loaded.values["validate-config"]:
        print("the configuration is valid")
        return
    _work(process, loaded.values)


def _work(process: _Process, values: dict[str, Any]) -> None:
    """Run until stopped. A full disk is waited for; any other trouble of the disk ends the process in its own way."""
    # gRPC writes a line of its own for every handshake that fails; what a boat or node has to say, it says itself.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    was_told = asyncio.Event()
    try:
        asyncio.run(_until_stopped(lambda: process.start(values), was_told))
    except (LogError, OSError) as error:
        if is_full(error) and not was_told.is_set():
            http = http_options(values, fleet=values.get("fleet") or None)
            begin_anew_when_there_is_room(error, folder=Path(values[process.folder]), http=http, say=_say)
            return
        if is_failed(error):
            raise as_failure(error) from error
        raise


def _settings_file(process: _Process, arguments: Sequence[str]) -> Path | None:
    """The file named by flag or variable, or the first of the usual ones that exists."""
    variable = next(setting.variable for setting in process.settings if setting.flag == "config")
    named = read_flags(process.settings, arguments, []).get("config") or os.environ.get(variable)
    if named:
        return Path(named)
    return next((Path(name) for name in process.files if os.path.isfile(name)), None)


def _say(line: str) -> None:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"{moment} {line}", file=sys.stderr, flush=True)


async def _until_stopped(start: Callable[[], Coroutine[Any, Any, Run]], was_told: asyncio.Event) -> None:
    """Run until done, or until a signal asks for a clean stop."""
    stop, work = await start()
    loop = asyncio.get_running_loop()

    def told() -> None:
        was_told.set()
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told)
    # lplex reloads on it; here it must at least not end the process.
    loop.add_signal_handler(signal.SIGHUP, _say, "nothing to reload reason='changed files are noticed by themselves'")
    async with returned_when_idle():
        await work


async def _run_boat(values: dict[str, Any]) -> Run:
    from tidelog.edge.boat import Boat

    if values["http-listen"]:
        require_free(values["http-listen"], "http-listen")
    running = Boat(boat_options(values, log=_say), open_source=lambda: open_source(values, log=_say), log=_say)
    return running.stop, running.run()


def _allow_many_files() -> None:
    """A connection is a file, and the usual soft limit of 1,024 would end at so many boats: take the hard one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _run_cloud(values: dict[str, Any]) -> Run:
    from tidelog.cluster.node.cloud import Cloud

    _allow_many_files()
    for flag in ("grpc-listen", "http-listen"):
        if values[flag]:
            require_free(values[flag], flag)
    running = Cloud(cloud_options(values), log=_say)
    stopping = asyncio.Event()

    async def work() -> None:
        try:
            # A start may take its time, and ends at once when it is told to.
            await _first_of(stopping.wait(), running.start())
            if not stopping.is_set():
                await _first_of(stopping.wait(), running.wait_stopped())
        finally:
            await running.stop()
        _require_clean(running.node)

    return stopping.set, work()


def _require_clean(node: Node | None) -> None:
    """A stop that could not write everything is not what was asked for: the exit code says so."""
    if node is not None and node.failure is not None:
        raise node.failure


async def _run_node(values: dict[str, Any]) -> Run:
    from tidelog.cluster.node.process import Node

    _allow_many_files()
    for flag in ("listen", "grpc-listen", "http-listen", "liftbridge-listen"):
        if values[flag]:
            require_free(values[flag], flag)
    options, gateway = with_gateway(values, node_options(values), _say)
    running = Node(options, log=_say)
    stopping = asyncio.Event()

    async def work() -> None:
        try:
            # A start may take its time, and ends at once when it is told to.
            await _first_of(stopping.wait(), running.start())
            if gateway is not None and not stopping.is_set():
                await gateway.start(running)
            if not stopping.is_set():
                await _first_of(stopping.wait(), running.wait_stopped())
        finally:
            if gateway is not None:
                await gateway.stop()
            await running.stop()
        _require_clean(running)

    return stopping.set, work()


async def _first_of(*ends: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of them ends; raises what it raises."""
    tasks = [asyncio.ensure_future(end) for end in ends]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()


def boat_main() -> None:
    """Entry point of `lplex-server`."""
    from tidelog.cli.main import main

    main(["boat"])


def cloud_main() -> None:
    """Entry point of `lplex-cloud`."""
    from tidelog.cli.main import main

    main(["cloud"])
