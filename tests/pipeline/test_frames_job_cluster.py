"""The frames job against a real cluster, without Spark in between: positions, cursors, identity, recreated channels.

The channels hold messages, which give `frames` no rows: what is looked at here is what moves, not what is written.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline.conftest import SmallCluster
from tests.pipeline.folders import fleet
from tests.pipeline.table_kit import Here
from tidelog.errors import ChannelRecreated, CheckpointForeign, SourceChanged
from tidelog.pipeline.jobs.frames_job import FramesJob, FramesOptions
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.logs import Piece

pytestmark = pytest.mark.slow  # many jobs of Spark; `test_pipeline_commands` runs all stages in the fast lane


def job_of(cluster: SmallCluster, folder: Path, channel: str) -> FramesJob:
    options = FramesOptions(
        address=cluster.address,
        channels=(channel,),
        tables=str(folder / "tables"),
        checkpoint=str(folder / "checkpoint"),
    )
    return FramesJob(Here(), options)  # type: ignore[arg-type]


def pieces_of(job: FramesJob) -> list[Piece]:
    logs = job.options.address.open_shared()
    (ends,) = logs.channels(job.options.channels)
    found = job.table.positions("main", [ends.channel_id]).get(ends.channel_id)
    start = ends.log_start if found is None else found.next_offset
    place = Piece(
        channel=ends.channel,
        channel_id=ends.channel_id,
        leader_epoch=ends.leader_epoch,
        start=start,
        end=ends.committed_end,
    )
    return [place]


def test_the_cursor_holds_the_log_until_the_table_has_it(cluster: SmallCluster, tmp_path: Path) -> None:
    name = cluster.channel("job-1")
    cluster.client.producer(name).send_many([b"x"] * 1_500).result(30)
    job = job_of(cluster, tmp_path, name)
    starts = job.prepare()
    assert job.progress.cursor_problem == ""
    assert cluster.client.cursors(name) == {"pipeline.main": starts[name]}
    assert sum(job.lag_records().values()) == 1_500 + 2
    (piece,) = pieces_of(job)
    job.commit_batch([piece])
    assert cluster.client.cursors(name) == {"pipeline.main": piece.end}
    assert set(job.lag_records().values()) == {0}
    version = job.table.version()
    (rest,) = pieces_of(job)
    assert rest.end == piece.end + 1, "a cursor is a record of the log, and must not be answered by another one"
    job.commit_batch([rest])
    assert job.table.version() == version
    assert cluster.client.cursors(name) == {"pipeline.main": piece.end}
    assert job.progress.cursor_problem == ""
    job.close()


def test_a_table_stays_with_its_cluster_and_its_channel(cluster: SmallCluster, tmp_path: Path) -> None:
    name = cluster.channel("job-2")
    cluster.client.producer(name).send_many([b"x"] * 1_500).result(30)
    job = job_of(cluster, tmp_path, name)
    job.prepare()
    job.commit_batch(pieces_of(job))
    job.close()
    fleet(tmp_path / "folder", blocks=1)
    elsewhere = replace(job.options, address=LogsAddress(path=str(tmp_path / "folder")), channels=("*",))
    with pytest.raises(SourceChanged, match="another cluster"):
        FramesJob(Here(), elsewhere).prepare()  # type: ignore[arg-type]
    other_table = replace(job.options, tables=str(tmp_path / "other"))
    with pytest.raises(CheckpointForeign, match="its table is"):
        FramesJob(Here(), other_table).prepare()  # type: ignore[arg-type]
    cluster.client.delete(name)
    cluster.channel(name)
    with pytest.raises(ChannelRecreated):
        job_of(cluster, tmp_path, name).prepare()
