"""The settings of a pipeline: the section `pipeline` of a HOCON file, flags and variables, checked all at once.

`PIPELINE_SETTINGS` is what help and docs/configuration.md are written from; `load_pipeline` makes of it the options of
each stage, or one error with everything that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidelog.config import DURATION, FILE, FOLDER, INTEGER, NAMES, SIZE, SWITCH, Loaded, Setting, load_settings, one_of
from tidelog.errors import InvalidConfig
from tidelog.pipeline.jobs.frames_job import ACCEPT, FramesOptions
from tidelog.pipeline.jobs.signals_job import SignalsOptions
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.logs import FAIL, SKIP
from tidelog.pipeline.tables import DELTA, FORMATS
from tidelog.units import MIB

SOURCE: Final = "Source"
TABLES: Final = "Tables"
RUNNING: Final = "Running"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

PIPELINE_SETTINGS: Final = (
    Setting(
        flag="name",
        key="pipeline.name",
        default="main",
        group=SOURCE,
        help="Whose positions the tables keep; also names the cursor that holds the log.",
    ),
    Setting(
        flag="cluster", key="pipeline.cluster", kind=NAMES, default=(), group=SOURCE, help="host:port of some nodes."
    ),
    Setting(flag="tls-cert", key="pipeline.tls.cert", kind=FILE, group=SOURCE, help="Certificate to show the nodes."),
    Setting(flag="tls-key", key="pipeline.tls.key", kind=FILE, group=SOURCE, help="Its key."),
    Setting(flag="tls-ca", key="pipeline.tls.ca", kind=FILE, group=SOURCE, help="The nodes' authority."),
    Setting(
        flag="insecure-dev",
        key="pipeline.insecure-dev",
        kind=SWITCH,
        default=False,
        group=SOURCE,
        help="The nodes run with -insecure-dev.",
    ),
    Setting(
        flag="path",
        key="pipeline.path",
        kind=FOLDER,
        group=SOURCE,
        help="A folder of logs, a journal or lplex files, instead of a cluster.",
    ),
    Setting(
        flag="channels",
        key="pipeline.channels",
        kind=NAMES,
        default=("*",),
        group=SOURCE,
        help="Names or patterns; channels that fit and appear later are taken too.",
    ),
    Setting(
        flag="cursor",
        key="pipeline.cursor",
        kind=SWITCH,
        default=True,
        group=SOURCE,
        help="Hold the log with a named cursor until the table has it.",
    ),
    Setting(
        flag="on-trimmed",
        key="pipeline.on-trimmed",
        kind=one_of(FAIL, SKIP),
        default=FAIL,
        group=SOURCE,
        help="What retention took before it was read: stop, or go on without it.",
    ),
    Setting(
        flag="on-damaged",
        key="pipeline.on-damaged",
        kind=one_of(FAIL, SKIP),
        default=FAIL,
        group=SOURCE,
        help="What no replica can give: stop, or go on without it.",
    ),
    Setting(
        flag="on-recreated",
        key="pipeline.on-recreated",
        kind=one_of(FAIL, ACCEPT),
        default=FAIL,
        group=SOURCE,
        help="A channel that was deleted and made again: stop, or add the new one's records.",
    ),
    Setting(
        flag="tables", key="pipeline.tables", kind=FOLDER, default="tables", group=TABLES, help="The tables' folder."
    ),
    Setting(
        flag="format", key="pipeline.format", kind=one_of(*FORMATS), default=DELTA, group=TABLES, help="Table format."
    ),
    Setting(
        flag="checkpoints",
        key="pipeline.checkpoints",
        kind=FOLDER,
        group=TABLES,
        help="Spark's checkpoints; without it a folder `_checkpoints` beside the tables. May be deleted at any time.",
    ),
    Setting(
        flag="file-size",
        key="pipeline.file-size",
        kind=SIZE,
        default=128 * MIB,
        at_least=MIB,
        group=TABLES,
        help="`optimize` makes files of about this size out of smaller ones.",
    ),
    Setting(
        flag="keep-files",
        key="pipeline.keep-files",
        kind=DURATION,
        default=24 * 3_600_000,
        at_least=60_000,
        at_most=7 * 24 * 3_600_000,
        group=TABLES,
        help="`vacuum` keeps files that no table names for so long; longer than any batch, reader or stage lags.",
    ),
    Setting(
        flag="optimize-every",
        key="pipeline.optimize-every",
        kind=DURATION,
        default=3_600_000,
        at_least=60_000,
        zero_is_off=True,
        group=TABLES,
        help="How often a running pipeline rewrites small files and sweeps; 0 never does.",
    ),
    Setting(flag="master", key="pipeline.master", default="local[*]", group=RUNNING, help="Spark's master."),
    Setting(flag="driver-memory", key="pipeline.driver-memory", default="2g", group=RUNNING, help="Of Spark's driver."),
    Setting(
        flag="trigger",
        key="pipeline.trigger",
        kind=DURATION,
        default=2_000,
        at_least=100,
        group=RUNNING,
        help="How often a running pipeline looks for new records.",
    ),
    Setting(
        flag="gold-every",
        key="pipeline.gold-every",
        kind=DURATION,
        default=300_000,
        at_least=1_000,
        zero_is_off=True,
        group=RUNNING,
        help="How often at most a running pipeline brings the gold tables up to date; 0 leaves them.",
    ),
    Setting(
        flag="batch-records",
        key="pipeline.batch-records",
        kind=INTEGER,
        default=20_000_000,
        at_least=1,
        group=RUNNING,
        help="Records of one batch, and frames of one step of decoding.",
    ),
    Setting(
        flag="task-records",
        key="pipeline.task-records",
        kind=INTEGER,
        default=2_000_000,
        at_least=1,
        group=RUNNING,
        help="Records of one task.",
    ),
    Setting(
        flag="restarts-max",
        key="pipeline.restarts-max",
        kind=INTEGER,
        default=20,
        at_least=0,
        group=RUNNING,
        help="A stage that fails so many times in a row ends the pipeline.",
    ),
    Setting(
        flag="restart-wait-max",
        key="pipeline.restart-wait-max",
        kind=DURATION,
        default=60_000,
        at_least=100,
        group=RUNNING,
        help="The longest pause before a stage that failed is started again; the first one is a second.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """Everything a pipeline needs to know."""

    frames: FramesOptions
    signals: SignalsOptions
    master: str = "local[*]"
    driver_memory: str = "2g"
    trigger_ms: int = 2_000
    gold_every_ms: int | None = 300_000
    optimize_every_ms: int | None = 3_600_000
    file_bytes: int = 128 * MIB
    keep_files_ms: int = 24 * 3_600_000
    restarts_max: int = 20
    restart_wait_max_ms: int = 60_000

    @property
    def name(self) -> str:
        return self.frames.pipeline

    @property
    def tables(self) -> Path:
        return Path(self.frames.tables)

    @property
    def table_format(self) -> str:
        return self.frames.table_format


def load_pipeline(
    *, arguments: Sequence[str] = (), environment: Mapping[str, str] | None = None, file: Path | None = None
) -> PipelineSettings:
    """Read and check; raises `InvalidConfig` with all that is wrong."""
    loaded = load_settings(PIPELINE_SETTINGS, arguments=arguments, environment=environment or {}, file=file)
    made = check_pipeline(loaded)
    loaded.raise_problems()
    assert made is not None
    return made


def check_pipeline(loaded: Loaded) -> PipelineSettings | None:
    """The settings, or None with the reasons added to the problems."""
    values = loaded.values
    if not _NAME.fullmatch(values["name"] or ""):
        loaded.problems.append(
            f"{loaded.named('name')} = {values['name']!r} is no name; use letters, digits and ._- up to 64"
        )
    if not values["tables"]:
        loaded.problems.append(f"{loaded.named('tables')} is empty; name a folder for the tables")
    try:
        address = LogsAddress(
            cluster=tuple(values["cluster"]),
            certificate=values["tls-cert"] or "",
            key=values["tls-key"] or "",
            authority=values["tls-ca"] or "",
            insecure=values["insecure-dev"],
            path=values["path"] or "",
        )
    except InvalidConfig as error:
        loaded.problems += error.problems
        return None
    return None if loaded.problems else _made(values, address)


def _made(values: Mapping[str, Any], address: LogsAddress) -> PipelineSettings:
    tables = Path(values["tables"]).absolute()
    checkpoints = Path(values["checkpoints"] or tables / "_checkpoints").absolute()
    return PipelineSettings(
        frames=FramesOptions(
            pipeline=values["name"],
            address=address,
            channels=tuple(values["channels"]) or ("*",),
            tables=str(tables),
            table_format=values["format"],
            checkpoint=str(checkpoints / values["name"] / "frames"),
            on_trimmed=values["on-trimmed"],
            on_damaged=values["on-damaged"],
            on_recreated=values["on-recreated"],
            batch_records_max=values["batch-records"],
            task_records_max=values["task-records"],
            keep_cursor=values["cursor"],
        ),
        signals=SignalsOptions(
            pipeline=values["name"],
            tables=str(tables),
            table_format=values["format"],
            step_frames_max=values["batch-records"],
        ),
        master=values["master"],
        driver_memory=values["driver-memory"],
        trigger_ms=values["trigger"],
        gold_every_ms=values["gold-every"],
        optimize_every_ms=values["optimize-every"],
        file_bytes=values["file-size"],
        keep_files_ms=values["keep-files"],
        restarts_max=values["restarts-max"],
        restart_wait_max_ms=values["restart-wait-max"],
    )
