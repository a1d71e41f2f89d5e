"""The demo ashore: the pipeline runs on the cluster, the audit proves it, SQL answers, and a report is written.

Spark runs in this process (`tidelog.pipeline`), against the three nodes, with the operator's certificate. All that it
writes is in the demo's folder, and no Java is left when the step is over.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidelog.cli.demo.answers import (
    MAX_WIND_SQL,
    POSITION_ERROR_MAX,
    last_positions,
    max_wind,
    max_wind_in_bytes,
    wrong_winds,
)
from tidelog.cli.demo.engine import DemoEngine
from tidelog.cli.demo.link import HOST
from tidelog.cli.demo.parties import NODES, OPERATOR, Parties
from tidelog.cli.demo.sea import moor
from tidelog.cli.demo.story import Stage
from tidelog.cli.log.sources import open_source
from tidelog.edge.sources.voyage import Voyage
from tidelog.errors import EngineMissing
from tidelog.units import format_bytes, format_time_us

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.pipeline.audit import AuditResult
    from tidelog.pipeline.jobs.runner import PipelineRunner
    from tidelog.pipeline.settings import PipelineSettings

PIPELINE: Final = "demo"
_NEEDED: Final = ("pyspark", "pyarrow", "deltalake", "nmea2000", "plotly")
_LOOK_S: Final = 0.2
_DIFFERENCES_TOLD: Final = 5
_HOUR_US: Final = 3_600_000_000


def require_engine() -> None:
    """Raises `EngineMissing` where the pipeline could not run: better before the boats leave than after."""
    absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise EngineMissing(problem=f"{', '.join(absent)} not installed; pip install 'tidelog[spark]'")
    from tidelog.pipeline.engine import find_java

    find_java()


class Shore:
    """What happens ashore, step by step, in the order of the methods. `close` ends Spark."""

    def __init__(self, stage: Stage, report: Path) -> None:
        self._stage = stage
        self._report = report.absolute()
        self._engine = DemoEngine(stage.parties.folder / "spark")

    def close(self) -> None:
        self._engine.close()

    def moor(self) -> None:
        """The boats come in; Spark starts meanwhile."""
        self._engine.start()
        moor(self._stage)

    def fill(self) -> None:
        with self._stage.console.status("starting Spark ..."):
            spark = self._engine.session()
        fill_tables(self._stage, spark, self._settings)

    def prove(self) -> None:
        prove(self._stage, self._engine.session(), self._settings)

    def answer(self) -> None:
        answer(self._stage, self._engine.session(), self._settings)
        write_report_of(self._stage, self._settings, self._report)

    @cached_property
    def _settings(self) -> PipelineSettings:
        return pipeline_settings(self._stage.parties)


def pipeline_settings(parties: Parties) -> PipelineSettings:
    """As `tidelog pipeline` would be told by its flags."""
    from tidelog.pipeline.settings import load_pipeline

    nodes = ",".join(f"{HOST}:{ports.link}" for ports in parties.nodes.values())
    arguments = ["-name", PIPELINE, "-cluster", nodes, "-tables", str(parties.folder / "tables")]
    arguments += ["-tls-cert", parties.certificate(OPERATOR, f"{OPERATOR}.crt")]
    arguments += ["-tls-key", parties.certificate(OPERATOR, f"{OPERATOR}.key")]
    arguments += ["-tls-ca", parties.certificate(OPERATOR, "ca.crt"), "-channels", ",".join(parties.boats)]
    return load_pipeline(arguments=arguments)


# --- the tables ----------------------------------------------------------------------------------


def fill_tables(stage: Stage, spark: SparkSession, settings: PipelineSettings) -> None:
    from tidelog.pipeline.gold.gold_job import run_gold
    from tidelog.pipeline.jobs.runner import PipelineRunner, gold_options

    story = stage.story
    with stage.console.status("from channels to frames ...") as status, PipelineRunner(spark, settings) as runner:
        with _told(stage, runner, status.update):
            summary = runner.run_once(gold=False)
        story.table_frames, story.table_bytes, story.signals = summary.frames, summary.frames_bytes, summary.signals
        status.update("from signals to gold ...")
        began_s = time.monotonic()
        outcomes = run_gold(spark, gold_options(settings))
    story.gold_rows = {one.table: one.rows for one in outcomes}
    seconds = time.monotonic() - began_s + summary.seconds
    names = list(story.gold_rows)
    stage.tell(
        f"gold      {sum(story.gold_rows.values()):>9,} rows   {', '.join(names[:4])},",
        f"{'':27}{', '.join(names[4:])}",
        f"all of it in {seconds:.0f} s",
    )


@contextlib.contextmanager
def _told(stage: Stage, runner: PipelineRunner, update: Callable[[str], object]) -> Iterator[None]:
    """Tells of each stage as soon as it has come to something, while somebody else runs them."""
    over = threading.Event()
    waiting: list[tuple[Callable[[], int], str]] = [
        (lambda: runner.frames.progress.frames, "frames    {:>9,} rows   every frame, as it was on the bus"),
        (lambda: runner.signals.progress.rows, "signals   {:>9,} rows   decoded: time, device, signal, value, unit"),
    ]

    def tell_news() -> None:
        while waiting and waiting[0][0]():
            count, line = waiting.pop(0)
            stage.tell(line.format(count()))
            update("from frames to signals ...")

    def look() -> None:
        while not over.wait(_LOOK_S):
            tell_news()

    looking = threading.Thread(target=look, name="demo-pipeline", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
    tell_news()


# --- the proof -----------------------------------------------------------------------------------


def prove(stage: Stage, spark: SparkSession, settings: PipelineSettings) -> None:
    """Journals = log = `frames`, and the replicas of the three nodes equal, frame by frame."""
    from tidelog.pipeline.audit import audit
    from tidelog.pipeline.sources.address import LogsAddress
    from tidelog.pipeline.tables import open_table
    from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT

    parties = stage.parties
    with stage.console.status("comparing every frame ..."):
        result = audit(
            spark,
            log=settings.frames.address,
            table=open_table(settings.tables, FRAMES_LAYOUT),
            pipeline=settings.name,
            channels=settings.frames.channels,
            journals={boat: LogsAddress(path=str(parties.journal(boat))) for boat in parties.boats},
            replicas={node: LogsAddress(path=str(parties.data(node))) for node in NODES},
        )
    check_audit(stage, result)
    story = stage.story
    story.journal_bytes = sum(log_bytes(parties.journal(boat)) for boat in parties.boats)
    story.log_bytes = sum(log_bytes(parties.data(NODES[0]), channel=boat) for boat in parties.boats)
    sizes = [format_bytes(size) for size in (story.journal_bytes, story.table_bytes, story.log_bytes)]
    journals = ", ".join(f"{count:,} frames of {boat}" for boat, count in story.journal_frames.items())
    stage.tell(
        f"journals   {journals}",
        f"log        {story.log_frames:,}: all of that and {story.saved_by_live:,} more, which Live saved from memory",
        f"table      {story.table_frames:,}: the same frames, each once, unchanged",
        f"replicas   {', '.join(NODES)}: equal to each other",
        f"on disk    journals {sizes[0]}, table {sizes[1]}, each replica {sizes[2]}",
        "           in the small blocks that Live sends",
    )


def log_bytes(path: Path, *, channel: str | None = None) -> int:
    return open_source(str(path), channel=channel).total_bytes


def check_audit(stage: Stage, result: AuditResult) -> None:
    story, boats = stage.story, stage.parties.boats
    story.audit_equal = result.equal
    story.audit_differences = [str(one) for one in result.differences]
    story.journal_frames = {boat: result.frames[f"journal of {boat}"] for boat in boats}
    story.log_frames = result.frames["log"]
    in_table = result.frames["frames"]
    for one in story.audit_differences[:_DIFFERENCES_TOLD]:
        story.failures.append(one)
    more = len(story.audit_differences) - _DIFFERENCES_TOLD
    story.check(more <= 0, f"and {more} more differences")
    story.check(all(story.journal_frames.values()), "a journal is empty")
    story.check(in_table == story.table_frames == story.log_frames, "the table has not as many frames as the log")
    for node in NODES[1:]:
        held = result.frames.get(f"replica on {node}", 0)
        story.check(held == in_table, f"{node} holds {held} frames of {in_table}")
    for boat, count in result.not_shipped.items():
        story.check(not count, f"{count} frames of {boat} were not shipped")
    saved = dict.fromkeys(boats, 0) | {stage.first.boat: story.saved_by_live}
    for boat, count in result.only_in_log.items():
        story.check(count == saved[boat], f"the log has {count} frames that {boat} has not; Live saved {saved[boat]}")


# --- the answers ---------------------------------------------------------------------------------


def answer(stage: Stage, spark: SparkSession, settings: PipelineSettings) -> None:
    story = stage.story
    with stage.console.status("asking ..."):
        winds = max_wind(spark, settings.tables)
        wrong = wrong_winds(winds, max_wind_in_bytes(settings.tables))
    story.failures.extend(wrong)
    story.check(bool(winds), "no wind is in the table `environment`")
    story.max_wind = [
        {"channel": channel, "hour": f"{format_time_us(hour * _HOUR_US)[:13]}:00Z", "wind_mps": round(wind, 2)}
        for (channel, hour), wind in sorted(winds.items())
    ]
    for line in MAX_WIND_SQL.splitlines():
        stage.tell(f"[dim]{line}[/]")
    for row in story.max_wind:
        stage.tell(f"{row['channel']}   {row['hour']}   [bold]{row['wind_mps']:.2f} m/s[/]")
    if not wrong:
        stage.tell("the raw bytes of the wind sensor say the same")
    _check_positions(stage, spark, settings)


def _check_positions(stage: Stage, spark: SparkSession, settings: PipelineSettings) -> None:
    """The newest position of each boat in the table must be where its voyage was at that moment."""
    found = last_positions(spark, settings.tables)
    for boat in stage.parties.boats:
        position = found.get(boat)
        if position is None:
            stage.story.check(False, f"no position of {boat} is in the tables")
            continue
        voyage = Voyage(seed=stage.seed(boat), start_us=stage.last_leg_us[boat])
        latitude, longitude = voyage.position(position.time_us)
        error = max(abs(position.latitude - latitude), abs(position.longitude - longitude))
        stage.story.check(error < POSITION_ERROR_MAX, f"the last position of {boat} is not where the boat was")
        told = f"{position} at {format_time_us(position.time_us)[:19]}Z"
        stage.story.positions[boat] = told
        stage.tell(f"{boat} lies at [bold]{told}[/]")


def write_report_of(stage: Stage, settings: PipelineSettings, path: Path) -> None:
    from tidelog.pipeline.report.page import write_report

    with stage.console.status("writing the report ..."):
        write_report(settings.tables, path)
    stage.story.report = str(path)
    stage.tell(f"report ({format_bytes(path.stat().st_size)}, needs no network):", f"[bold]{path}[/]")
