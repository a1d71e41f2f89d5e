"""kill -9 at moments that nobody chose, against real nodes and a real Spark cluster: every frame is in the table once.

Each round strikes one of four: the pipeline's driver with its whole process group, an executor, the Python worker of a
task, or the node that leads a boat's channel. The driver is started again; the others must be survived without help.
After each round journals, log, replicas and table are compared frame by frame, and a plain SQL count is asked too.

TIDELOG_KILL_ROUNDS is the number of rounds, TIDELOG_KILL_SEED repeats a run's dice.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import duckdb
import pytest
from deltalake import DeltaTable

from tests.pipeline.kill_kit import DRIVER, KillRounds, dealt_victims, kill_rounds
from tests.pipeline.table_kit import in_other_hands
from tests.pipeline.test_standalone import require_equal
from tidelog.pipeline.audit import AuditResult, audit
from tidelog.pipeline.jobs.runner import PipelineRunner
from tidelog.pipeline.jobs.supervisor import failure_of
from tidelog.pipeline.tables import FORMATS
from tidelog.pipeline.tables.iceberg import IcebergFolder
from tidelog.pipeline.tables.maintenance import vacuum
from tidelog.pipeline.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = int(os.environ.get("TIDELOG_KILL_ROUNDS", "20"))
_AUDITS_MAX = 3


@pytest.mark.slow
@pytest.mark.timeout(600 + 240 * ROUNDS)
@pytest.mark.parametrize("table_format", FORMATS)
def test_whichever_process_is_killed_every_frame_is_in_the_table_once(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    seed = int(os.environ.get("TIDELOG_KILL_SEED") or random.SystemRandom().randrange(1 << 30))
    dice = random.Random(seed)
    victims = dealt_victims(ROUNDS, dice)
    with kill_rounds(tmp_path, dice, table_format) as rounds:
        for number, victim in enumerate(victims, 1):
            told = f"round {number} of {ROUNDS}, struck: {victim}; TIDELOG_KILL_SEED={seed}"
            began_s = time.monotonic()
            try:
                rounds.round_of(victim)
                settled_s = time.monotonic() - began_s
                require_each_once(spark, rounds)
            except BaseException as error:
                error.add_note(told)
                raise
            print(f"{told}; {rounds.frames_sailed} frames, {settled_s:.0f} s, {time.monotonic() - began_s:.0f} s")
        assert rounds.drivers_started == 1 + victims.count(DRIVER), f"a driver died by itself; seed {seed}"
        rounds.stop_driver()
        require_swept(rounds.table)
        require_as_if_nothing_had_happened(spark, rounds, tmp_path / "calm")


def require_each_once(spark: SparkSession, rounds: KillRounds) -> None:
    """By the audit, which reads every byte of every side, and by a count that knows nothing of us."""
    result = audited(spark, rounds)
    assert result.equal, [str(one) for one in result.differences]
    assert result.frames["frames"] == rounds.frames_sailed
    assert set(result.not_shipped.values()) == set(result.only_in_log.values()) == {0}, result.plain()
    assert len([pair for pair in result.compared if pair[0].startswith("replica")]) == 2 * len(rounds.sailed)
    files = files_of(rounds.table)
    asked = "select count(*), count(distinct (channel, lineage, seq)) from read_parquet(?)"
    with duckdb.connect() as database:
        ((rows, different),) = database.execute(asked, [files]).fetchall()
    assert rows == different == rounds.frames_sailed


def files_of(table: Table) -> list[str]:
    """As another reader of the table finds them."""
    if isinstance(table, IcebergFolder):
        uris = [task.file.file_path for task in in_other_hands(table).scan().plan_files()]
        return [unquote(urlsplit(uri).path) for uri in uris]
    return DeltaTable(str(table.folder)).file_uris()


def audited(spark: SparkSession, rounds: KillRounds) -> AuditResult:
    """Spark runs it in this process, where a worker that is slow to start costs the whole job: then once more."""
    for attempt in range(1, _AUDITS_MAX + 1):
        try:
            return audit(
                spark,
                log=rounds.settings.frames.address,
                table=rounds.table,
                pipeline=rounds.settings.name,
                channels=rounds.settings.frames.channels,
                journals=rounds.journals,
                replicas=rounds.replicas,
            )
        except Exception as error:
            if attempt == _AUDITS_MAX or not failure_of(error).retriable:
                raise
    raise AssertionError("unreachable")


def require_swept(table: Table) -> None:
    """Sweeping leaves the files of the table, all of them, and no other."""
    named = {file.path for file in table.files()}
    orphans = vacuum(table, keep_hours=0)
    print(f"{len(orphans)} orphans swept, {len(named)} files stay")
    left = {str(path.relative_to(table.folder)) for path in table.folder.rglob("*.parquet")}
    assert {name for name in left if not name.startswith("_")} == named


def require_as_if_nothing_had_happened(spark: SparkSession, rounds: KillRounds, folder: Path) -> None:
    """A pipeline that nobody disturbs makes the same tables of the same log, decoded ones too."""
    calm = rounds.settings_of("calm", folder)
    for settings in (rounds.settings, calm):
        with PipelineRunner(spark, settings) as runner:
            runner.run_once(gold=False)
    require_equal(rounds.settings, calm)
