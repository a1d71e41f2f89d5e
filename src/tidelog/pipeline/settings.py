"""The settings of a pipeline: the section `pipeline` of a HOCON file, flags and variables, checked all at once.

Help and docs/configuration.md are written from `PIPELINE_SETTINGS`; `load_pipeline` returns the options of each stage,
or raises one error with everything that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidelog.config import (
    DURATION,
    FILE,
    FOLDER,
    INTEGER,
    NAMES,
    SIZE,
    SWITCH,
    Loaded,
    Setting,
    load_settings,
    one_of,
    under,
)
from tidelog.errors import InvalidConfig
from tidelog.pipeline.jobs.frames_job import ACCEPT, FramesOptions
from tidelog.pipeline.jobs.signals_job import SignalsOptions
from tidelog.pipeline.jobs.task_runs import DRIVER_RECORDS_MAX
from tidelog.pipeline.local_paths import local_path
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.logs import FAIL, SKIP
from tidelog.pipeline.tables import DELTA, FORMATS
from tidelog.units import MIB

SOURCE: Final = "Source"
TABLES: Final = "Tables"
RUNNING: Final = "Running"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

PIPELINE_SETTINGS: Final = (
    *under(
        SOURCE,
        Setting("name", "Whose positions the tables keep; also names the cursor that holds the log.", default="main"),
        Setting("cluster", "host:port of some nodes.", NAMES, ()),
        Setting("tls.cert", "Certificate to show the nodes.", FILE),
        Setting("tls.key", "Its key.", FILE),
        Setting("tls.ca", "The nodes' authority.", FILE),
        Setting("insecure-dev", "The nodes run with -insecure-dev.", SWITCH, False),
        Setting("path", "A folder of logs, a journal or lplex files, instead of a cluster.", FOLDER),
        Setting("channels", "Names or patterns; channels that fit and appear later are taken too.", NAMES, ("*",)),
        Setting("cursor", "Hold the log with a named cursor until the table has it.", SWITCH, True),
        Setting(
            "on-trimmed", "What retention took before it was read: stop, or go on without it.", one_of(FAIL, SKIP), FAIL
        ),
        Setting("on-damaged", "What no replica can give: stop, or go on without it.", one_of(FAIL, SKIP), FAIL),
        Setting(
            "on-recreated",
            "A channel that was deleted and made again: stop, or add the new one's records.",
            one_of(FAIL, ACCEPT),
            FAIL,
        ),
        section="pipeline",
    ),
    *under(
        TABLES,
        Setting("tables", "The tables' folder.", FOLDER, "tables"),
        Setting("format", "Table format.", one_of(*FORMATS), DELTA),
        Setting(
            "checkpoints",
            "Spark's checkpoints; without it a folder `_checkpoints` beside the tables. May be deleted at any time.",
            FOLDER,
        ),
        Setting(
            "file-size", "`optimize` makes files of about this size out of smaller ones.", SIZE, 128 * MIB, at_least=MIB
        ),
        Setting(
            "keep-files",
            "`vacuum` keeps files that no table names for so long; longer than any batch, reader or stage lags.",
            DURATION,
            24 * 3_600_000,
            at_least=60_000,
            at_most=7 * 24 * 3_600_000,
        ),
        Setting(
            "optimize-every",
            "How often a running pipeline rewrites small files and sweeps; 0 never does.",
            DURATION,
            3_600_000,
            at_least=60_000,
            zero_is_off=True,
        ),
        section="pipeline",
    ),
    *under(
        RUNNING,
        Setting("master", "Spark's master.", default="local[*]"),
        Setting("driver-memory", "Of Spark's driver.", default="2g"),
        Setting("trigger", "How often a running pipeline looks for new records.", DURATION, 2_000, at_least=100),
        Setting(
            "gold-every",
            "How often at most a running pipeline brings the gold tables up to date; 0 leaves them.",
            DURATION,
            300_000,
            at_least=1_000,
            zero_is_off=True,
        ),
        Setting(
            "batch-records",
            "Records of one batch, and frames of one step of decoding.",
            INTEGER,
            20_000_000,
            at_least=1,
        ),
        Setting("task-records", "Records of one task.", INTEGER, 2_000_000, at_least=1),
        Setting(
            "driver-records",
            "Batches and steps of up to so many records are done by the driver itself, without a job of Spark; 0 gives "
            f"every one to Spark's tasks. By default {DRIVER_RECORDS_MAX} on a local master and 0 on any other.",
            INTEGER,
            at_least=0,
        ),
        Setting(
            "restarts-max", "A stage that fails so many times in a row ends the pipeline.", INTEGER, 20, at_least=0
        ),
        Setting(
            "restart-wait-max",
            "The longest pause before a stage that failed is started again; the first one is a second.",
            DURATION,
            60_000,
            at_least=100,
        ),
        section="pipeline",
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
    tables = _folder(loaded, "tables")
    checkpoints = _folder(loaded, "checkpoints") or f"{tables}/_checkpoints"
    return None if loaded.problems else _made(values, address, tables, Path(checkpoints))


def _folder(loaded: Loaded, flag: str) -> str:
    """The absolute path; the reason is among the problems if there is none."""
    try:
        return local_path(loaded.values[flag] or "", name=loaded.named(flag))
    except InvalidConfig as error:
        loaded.problems += error.problems
        return ""


def _made(values: Mapping[str, Any], address: LogsAddress, tables: str, checkpoints: Path) -> PipelineSettings:
    return PipelineSettings(
        frames=FramesOptions(
            pipeline=values["name"],
            address=address,
            channels=tuple(values["channels"]) or ("*",),
            tables=tables,
            table_format=values["format"],
            checkpoint=str(checkpoints / values["name"] / "frames"),
            on_trimmed=values["on-trimmed"],
            on_damaged=values["on-damaged"],
            on_recreated=values["on-recreated"],
            batch_records_max=values["batch-records"],
            task_records_max=values["task-records"],
            driver_records_max=values["driver-records"],
            keep_cursor=values["cursor"],
        ),
        signals=SignalsOptions(
            pipeline=values["name"],
            tables=tables,
            table_format=values["format"],
            step_frames_max=values["batch-records"],
            driver_frames_max=values["driver-records"],
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
