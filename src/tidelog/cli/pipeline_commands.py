"""`tidelog pipeline`: from channels to tables, and what can be asked of the tables.

Every command takes the same settings (flags with one dash or two, variables, or a HOCON file; see
`tidelog.pipeline.settings`) and flags of its own. Everything that is wrong with them is said before anything is opened,
a line each, with exit code 2. `run` goes on until SIGINT or SIGTERM and then stops between two commits; a second one
ends it at once, which loses nothing either. `audit` ends with 1 if anything differs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tidelog.cli.output import print_facts, print_json, print_table
from tidelog.cli.settings.common import CONTROL_SETTINGS, GENERAL
from tidelog.cli.settings.page import render_help
from tidelog.config import FILE, NAMES, SWITCH, Loaded, Setting, load_settings, read_flags
from tidelog.errors import InvalidConfig
from tidelog.pipeline.settings import PIPELINE_SETTINGS, PipelineSettings, check_pipeline
from tidelog.units import format_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.audit import AuditResult
    from tidelog.pipeline.jobs.runner import PipelineRunner

PIPELINE_FILES: Final = ("tidelog-pipeline.conf", "/etc/tidelog/pipeline.conf")
"""Where settings are looked for when -config names no file; the first that exists is read."""
_LOOSE: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}
_HELP: Final = {"-h", "-help", "--help"}
_TELL_S: Final = 10.0
_DIFFERENCES_SHOWN: Final = 40
_CONTROLS: Final = tuple(setting for setting in CONTROL_SETTINGS if setting.flag in ("config", "help"))
_JSON: Final = Setting("", "Print one JSON object.", SWITCH, False, flag="json", group=GENERAL)
_JOURNALS: Final = Setting(
    "",
    "Compare boats' journals with the log too: CHANNEL=FOLDER of each, by commas.",
    NAMES,
    (),
    flag="journals",
    group=GENERAL,
)
_REPLICAS: Final = Setting(
    "",
    "Compare replicas with each other too: NODE=DATA-FOLDER of each, by commas.",
    NAMES,
    (),
    flag="replicas",
    group=GENERAL,
)
_OUT: Final = Setting("", "The page to write.", FILE, "report.html", flag="out", group=GENERAL)
_DRY_RUN: Final = Setting("", "Only say what would be removed.", SWITCH, False, flag="dry-run", group=GENERAL)
_FROM: Final = Setting(
    "",
    "The table below, to accept what other writers changed in it; of frames an offset, {channel: offset} or earliest.",
    flag="from",
    group=GENERAL,
)
_YES: Final = Setting("", "Delete them; else they are only shown.", SWITCH, False, flag="yes", group=GENERAL)


@click.group()
def pipeline() -> None:
    """Channels to tables with Spark: run, look, prove, tidy up."""


def _command(
    name: str, *own: Setting, argument: str = ""
) -> Callable[[Callable[[PipelineSettings, dict[str, Any]], None]], None]:
    """A command of the group that takes the pipeline's settings and some of its own; `argument` comes before them."""
    settings = (*_CONTROLS, *own, *PIPELINE_SETTINGS)

    def register(work: Callable[[PipelineSettings, dict[str, Any]], None]) -> None:
        @pipeline.command(name, context_settings=_LOOSE, help=work.__doc__)
        @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
        def command(arguments: tuple[str, ...]) -> None:
            if _HELP & set(arguments):
                print(render_help(f"pipeline {name}", settings, PIPELINE_FILES))
                return
            given = arguments[0] if argument and arguments and not arguments[0].startswith("-") else None
            if argument and given is None:
                print(f"tidelog: name a {argument}: tidelog pipeline {name} {argument.upper()} ...", file=sys.stderr)
                raise click.exceptions.Exit(2)
            made, values = _read(settings, arguments[1:] if argument else arguments)
            work(made, {**values, argument: given} if argument else values)

    return register


def _read(settings: Sequence[Setting], arguments: Sequence[str]) -> tuple[PipelineSettings, dict[str, Any]]:
    named = read_flags(settings, arguments, []).get("config")
    file = Path(named) if named else next((Path(name) for name in PIPELINE_FILES if os.path.isfile(name)), None)
    # Variables that fit no setting of ours belong to another command; slips in them are that command's to tell.
    known = {setting.variable for setting in settings}
    environment = {name: value for name, value in os.environ.items() if name in known}
    loaded = load_settings(settings, arguments=arguments, environment=environment, file=file)
    made = check_pipeline(loaded)
    _require(loaded)
    assert made is not None
    return made, loaded.values


def _require(loaded: Loaded) -> None:
    for problem in loaded.problems:
        print(f"tidelog: {' '.join(problem.split())}", file=sys.stderr)
    if loaded.problems:
        raise click.exceptions.Exit(2)


@contextmanager
def _engine(settings: PipelineSettings) -> Iterator[SparkSession]:
    from tidelog.pipeline.engine import EngineOptions, start_engine, stop_engine
    from tidelog.pipeline.jobs.runner import ENGINE_SETTINGS

    options = EngineOptions(
        master=settings.master,
        name=f"tidelog-{settings.name}",
        driver_memory=settings.driver_memory,
        settings=ENGINE_SETTINGS,
    )
    _say(f"starting spark master={settings.master}")
    spark = start_engine(options)
    try:
        yield spark
    finally:
        stop_engine()


def _say(line: str) -> None:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"{moment} {line}", file=sys.stderr, flush=True)


# --- commands ----------------------------------------------------------------------------------------


@_command("run")
def _run(settings: PipelineSettings, values: dict[str, Any]) -> None:
    """Follow the channels until stopped."""
    from tidelog.pipeline.jobs.runner import PipelineRunner

    stop = threading.Event()
    with _engine(settings) as spark, PipelineRunner(spark, settings) as runner, _stopped_by_signals(stop):
        _say(f"pipeline up name={settings.name} tables={settings.tables}")
        runner.run_until(stop, on_look=_Teller())
    _say("pipeline stopped")


@_command("backfill", _JSON)
def _backfill(settings: PipelineSettings, values: dict[str, Any]) -> None:
    """Bring every table up to what the log holds now, in large batches, then end."""
    from dataclasses import asdict

    from tidelog.pipeline.jobs.runner import PipelineRunner

    with _engine(settings) as spark, PipelineRunner(spark, settings) as runner:
        summary = runner.run_once()
    if values["json"]:
        print_json(asdict(summary))
        return
    print_facts(
        {
            "frames": f"{summary.frames:,} ({format_bytes(summary.frames_bytes)})",
            "signals": f"{summary.signals:,}",
            "gold tables changed": summary.gold_tables_changed,
            "seconds": f"{summary.seconds:.1f}",
        }
    )


@_command("status", _JSON)
def _status(settings: PipelineSettings, values: dict[str, Any]) -> None:
    """How far each stage has come, and how far the log is ahead."""
    from tidelog.pipeline.jobs.runner import pipeline_status

    found = pipeline_status(settings)
    if values["json"]:
        print_json(found)
        return
    rows = [
        [
            name,
            _shown(found[name]["version"]),
            f"{found[name]['rows']:,}",
            f"{found[name]['files']:,}",
            format_bytes(found[name]["bytes"]),
            _shown(found[name]["committed_at"]),
        ]
        for name in ("frames", "signals")
    ]
    print_table("tables", ["table", "version", "rows", "files", "size", "last commit"], rows, left=frozenset({"table"}))
    channels = [
        [name, _shown(one["next_offset"]), str(one["committed_end"]), f"{one['lag_records']:,}"]
        for name, one in found["frames"]["channels"].items()
    ]
    print_table(
        "channels", ["channel", "in the table up to", "log ends at", "behind"], channels, left=frozenset({"channel"})
    )
    gold = [
        [name, _shown(one["consumed_version"]), _shown(one["source_version"])] for name, one in found["gold"].items()
    ]
    print_table("gold", ["table", "has version", "of"], gold, left=frozenset({"table"}))


@_command("audit", _JSON, _JOURNALS, _REPLICAS)
def _audit(settings: PipelineSettings, values: dict[str, Any]) -> None:
    """Prove that journals, log, replicas and the table `frames` hold the same."""
    from tidelog.pipeline.audit import audit
    from tidelog.pipeline.sources.address import LogsAddress
    from tidelog.pipeline.tables import open_table
    from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT

    folders = {flag: _pairs(values[flag], flag) for flag in ("journals", "replicas")}
    table = open_table(settings.tables, FRAMES_LAYOUT, table_format=settings.table_format)
    with _engine(settings) as spark:
        result = audit(
            spark,
            log=settings.frames.address,
            table=table if table.exists() else None,
            pipeline=settings.name,
            channels=settings.frames.channels,
            journals={name: LogsAddress(path=path) for name, path in folders["journals"].items()},
            replicas={name: LogsAddress(path=path) for name, path in folders["replicas"].items()},
        )
    if values["json"]:
        print_json(result.plain())
    else:
        _tell_audit(result)
    if not result.equal:
        raise click.exceptions.Exit(1)


@_command("report", _OUT)
def _report(settings: PipelineSettings, values: dict[str, Any]) -> None:
    """Write one HTML page of what the tables hold; it needs no network."""
    from tidelog.pipeline.local_paths import local_path
    from tidelog.pipeline.report.page import write_report

    path = Path(local_path(values["out"], name="-out"))
    write_report(settings.tables, path, table_format=settings.table_format)
    print(f"{path} ({format_bytes(path.stat().st_size)})")


@_command("optimize", _JSON)
def _optimize(settings: PipelineSettings, values: dict[str, Any]) -> None:
    """Make large files of small ones; rows and positions stay as they are."""
    from dataclasses import asdict

    from tidelog.pipeline.jobs.runner import tables_of
    from tidelog.pipeline.tables.maintenance import optimize

    done = {table.layout.name: optimize(table, target_bytes=settings.file_bytes) for table in tables_of(settings)}
    if values["json"]:
        print_json({name: asdict(one) for name, one in done.items()})
        return
    rows = [[name, *(f"{value:,}" for value in asdict(one).values())] for name, one in done.items()]
    columns = ["table", *(next(iter(done.values())).__dataclass_fields__ if done else ())]
    print_table("", [column.replace("_", " ") for column in columns], rows, left=frozenset({"table"}))


@_command("vacuum", _JSON, _DRY_RUN)
def _vacuum(settings: PipelineSettings, values: dict[str, Any]) -> None:
    """Remove files that no table names and that are older than -keep-files."""
    from tidelog.pipeline.jobs.runner import tables_of
    from tidelog.pipeline.tables.maintenance import vacuum

    hours = settings.keep_files_ms / 3_600_000
    swept = {
        table.layout.name: vacuum(table, keep_hours=hours, dry_run=values["dry-run"]) for table in tables_of(settings)
    }
    if values["json"]:
        print_json(swept)
        return
    rows = [[name, f"{len(paths):,}"] for name, paths in swept.items()]
    title = "would be removed" if values["dry-run"] else "removed"
    print_table(title, ["table", "files"], rows, left=frozenset({"table"}))


@_command("rebuild", _JSON, _FROM, argument="table")
def _rebuild(settings: PipelineSettings, values: dict[str, Any]) -> None:
    """Empty a table and fill it again, from the log or from the table below; `tidelog pipeline rebuild TABLE`."""
    from dataclasses import asdict

    from tidelog.pipeline.jobs.rebuild import rebuild
    from tidelog.pipeline.jobs.runner import PipelineRunner

    done = rebuild(settings, values["table"], values["from"])
    _say(f"emptied {', '.join(done.tables)}; if this is stopped, `backfill` or `run` goes on with filling")
    with _engine(settings) as spark, PipelineRunner(spark, settings) as runner:
        summary = runner.run_once()
    if values["json"]:
        print_json({**asdict(done), "run": asdict(summary)})
        return
    facts: dict[str, Any] = {"tables built anew": ", ".join(done.tables)}
    facts |= {f"changes accepted in {name}": "yes" for name in done.accepted}
    facts |= {f"old content of {name}": place for name, place in done.set_aside.items()}
    facts |= {f"rows of {channel} that stayed": f"{rows:,}" for channel, rows in done.kept_rows.items()}
    print_facts({**facts, "frames": f"{summary.frames:,}", "signals": f"{summary.signals:,}"})


@_command("forget", _JSON, _YES)
def _forget(settings: PipelineSettings, values: dict[str, Any]) -> None:
    """Delete the cursors of a pipeline that nobody runs any more, so that the log is held for it no longer."""
    from tidelog.pipeline.jobs.cursors import cursor_name, delete_cursors, held_cursors

    address, name = settings.frames.address, settings.name
    held = held_cursors(address, name, settings.frames.channels)
    if values["yes"]:
        delete_cursors(address, name, held)
    if values["json"]:
        print_json({"cursor": cursor_name(name), "channels": held, "deleted": values["yes"]})
        return
    rows = [[channel, f"{offset:,}"] for channel, offset in held.items()]
    title = f"cursor {cursor_name(name)}, {'deleted' if values['yes'] else 'not deleted: give -yes'}"
    print_table(title, ["channel", "holds the log from"], rows, left=frozenset({"channel"}))


# --- helpers -----------------------------------------------------------------------------------------


class _Teller:
    """A line now and then about how a running pipeline stands."""

    def __init__(self) -> None:
        self._due_s = time.monotonic() + _TELL_S
        self._failures: dict[str, str] = {}

    def __call__(self, runner: PipelineRunner) -> None:
        failures = runner.failures()
        for stage, why in failures.items():
            if self._failures.get(stage) != why:
                _say(f"stage failed stage={stage} reason={why!r}")
        self._failures = failures
        if time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + _TELL_S
            frames, signals = runner.frames.progress, runner.signals.progress
            _say(f"progress frames={frames.frames} commits={frames.commits} signals={signals.rows}")


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """The first signal asks, the second ends the process at once."""

    def ask(number: int, frame: object) -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pairs(given: Sequence[str], flag: str) -> dict[str, str]:
    found: dict[str, str] = {}
    problems = []
    for one in given:
        name, equals, path = one.partition("=")
        if not (name and equals and path):
            problems.append(f"-{flag}: {one!r} is not NAME=FOLDER")
        elif not os.path.isdir(path):
            problems.append(f"-{flag}: {path} is not a folder")
        found[name] = path
    if problems:
        raise InvalidConfig(section="pipeline audit", problems=problems)
    return found


def _tell_audit(result: AuditResult) -> None:
    facts: dict[str, Any] = {f"frames in {side}": f"{count:,}" for side, count in result.frames.items()}
    facts |= {f"not shipped yet from {name}": f"{count:,}" for name, count in result.not_shipped.items() if count}
    facts |= {f"no longer in the journal of {name}": f"{n:,}" for name, n in result.only_in_log.items() if n}
    print_facts(facts)
    for difference in result.differences[:_DIFFERENCES_SHOWN]:
        print(f"DIFFERS  {difference}")
    more = len(result.differences) - _DIFFERENCES_SHOWN
    if more > 0:
        print(f"... and {more:,} more; -json has them all")
    print("equal" if result.equal else f"{len(result.differences):,} differences")


def _shown(value: object) -> str:
    return "-" if value is None else str(value)
