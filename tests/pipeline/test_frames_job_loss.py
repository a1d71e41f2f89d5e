"""Records that are gone when the pipeline comes for them, or gone after it had them: that is said, never passed over.

Retention may take records between the first try of a batch and the next one, once nothing holds the log any more. An
operator's unclean election may take records that the table holds already.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.kits.uplink_parties import BenchBoat, no_limits, sailing
from benchmarks.pipeline.boat_cluster import BoatCluster, boat_cluster

from tests.patience import block_until, wait_until
from tests.pipeline.folders import BLOCK_ROWS, NOW_US, control_block, frame_blocks, put, small_store
from tests.pipeline.table_kit import SPARK_S, Here, offsets_of
from tidelog.core.uplink.sender import SenderConfig
from tidelog.edge.sources.voyage import Voyage
from tidelog.errors import HistoryRewritten, LogError, NotElectable, OffsetTrimmed, StaleIncarnation
from tidelog.pipeline.jobs.frames_job import FramesJob, FramesOptions
from tidelog.pipeline.jobs.supervisor import failure_of
from tidelog.pipeline.settings import load_pipeline
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.cluster_logs import ClusterLogs
from tidelog.pipeline.sources.logs import Logs, Piece
from tidelog.units import US_PER_S

BLOCKS = 20


class DiesOnce(Here):
    """Its first job is done by all tasks, and lost on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.has_died = False

    def collect(self) -> Sequence[Any]:
        if not self.has_died:
            self.has_died = True
            raise ConnectionError("the executor is gone")
        return super().collect()


def pieces_of(logs: Logs) -> list[Piece]:
    return [
        Piece(
            channel=ends.channel,
            channel_id=ends.channel_id,
            leader_epoch=ends.leader_epoch,
            start=ends.log_start,
            end=ends.committed_end,
        )
        for ends in logs.channels()
    ]


# --- retention during a retry ------------------------------------------------------------------------


def failed_batch(folder: Path, **changes: str) -> tuple[FramesJob, list[Piece]]:
    """A job whose first try of these pieces has failed after its tasks had written."""
    store = small_store(folder / "logs")
    put(store, "boat-1", [control_block(), *frame_blocks(BLOCKS)])
    store.close(NOW_US)
    options = FramesOptions(
        address=LogsAddress(path=str(folder / "logs")),
        tables=str(folder / "tables"),
        checkpoint=str(folder / "checkpoint"),
    )
    job = FramesJob(DiesOnce(), replace(options, **changes))  # type: ignore[arg-type]
    job.prepare()
    logs = options.address.open()
    pieces = pieces_of(logs)
    logs.close()
    with pytest.raises(ConnectionError):
        job.commit_batch(pieces)
    return job, pieces


def trim(folder: Path, offset: int) -> int:
    """Let retention take whole segments below the offset; where the log starts then."""
    store = small_store(folder / "logs")
    log = store.log("boat-1", now_us=NOW_US)
    log.trim(offset, NOW_US)
    start = log.log_start
    store.close(NOW_US)
    assert 0 < start < log.log_end, "the trim took nothing, or all"
    return start


def test_records_trimmed_before_the_retry_of_a_batch_are_refused_in_words(tmp_path: Path) -> None:
    job, pieces = failed_batch(tmp_path)
    version = job.table.version()
    start = trim(tmp_path, pieces[0].end // 2)
    with pytest.raises(OffsetTrimmed, match=str(start)) as refused:
        job.commit_batch(pieces)
    assert (job.table.version(), job.table.files()) == (version, [])
    assert not failure_of(refused.value).retriable, "trying again brings nothing back; somebody must decide"
    job.close()


def test_records_trimmed_before_the_retry_are_skipped_if_so_configured_and_no_others(tmp_path: Path) -> None:
    job, pieces = failed_batch(tmp_path, on_trimmed="skip")
    start = trim(tmp_path, pieces[0].end // 2)
    job.commit_batch(pieces)
    assert offsets_of(job.table) == list(range(start, 1 + BLOCKS * BLOCK_ROWS))
    version = job.table.version()
    job.commit_batch(pieces)
    assert job.table.version() == version
    job.close()


def test_a_table_whose_next_records_were_trimmed_is_not_started_unless_skipping_was_asked_for(tmp_path: Path) -> None:
    job, (whole,) = failed_batch(tmp_path)
    job.commit_batch([replace(whole, end=1 + 2 * BLOCK_ROWS)])
    start = trim(tmp_path, whole.end // 2)
    held = list(range(1, 1 + 2 * BLOCK_ROWS))
    with pytest.raises(OffsetTrimmed, match=str(start)):
        FramesJob(Here(), job.options).prepare()  # type: ignore[arg-type]
    assert offsets_of(job.table) == held
    shutil.rmtree(tmp_path / "checkpoint")
    skipping = FramesJob(Here(), replace(job.options, on_trimmed="skip"))  # type: ignore[arg-type]
    assert skipping.prepare() == {"boat-1": start}
    skipping.commit_batch([replace(whole, start=start)])
    assert offsets_of(job.table) == [*held, *range(start, whole.end)]
    job.close()


# --- an unclean election -----------------------------------------------------------------------------

BOAT = "boat-1"
START_US = 1_790_000_000 * US_PER_S
SAIL_S = 20


def sail(sea: BoatCluster, folder: Path, *, stretch: int, node: str) -> int:
    """The boat sends another stretch of its voyage by way of this node; how many frames it has sent in all."""

    async def sent() -> int:
        boat = BenchBoat(folder / BOAT, sea.target(BOAT, node=sea.kit.names.index(node)), config=SenderConfig())
        start_us = START_US + stretch * SAIL_S * US_PER_S
        async with sailing(boat):
            boat.record_many(Voyage(seed=1, start_us=START_US).frames(start_us, start_us + SAIL_S * US_PER_S))
            boat.client.notify()
            await wait_until(boat.all_acked, "all frames acked", SPARK_S)
            return boat.journal.head

    return asyncio.run(sent())


def elect_unclean(logs: ClusterLogs, leader: str) -> None:
    """As soon as the cluster believes that nobody else can lead."""

    def is_elected() -> bool:
        try:
            logs.client.elect(BOAT, leader, unclean=True)
        except (NotElectable, StaleIncarnation):
            return False  # the old leader is not given up yet, or the new one has only just come back
        except LogError as error:
            if not error.retriable:
                raise
        return bool(logs.client.describe(BOAT)["leader"] == leader)

    block_until(is_elected, f"{leader} to lead by an operator's word", SPARK_S)


@pytest.mark.slow
def test_an_unclean_election_that_costs_records_of_the_table_is_refused_and_doubles_nothing(tmp_path: Path) -> None:
    settings = [*no_limits(), "-boat-factor", "2"]
    with boat_cluster(tmp_path / "sea", boats=[BOAT], nodes=3, settings=settings) as sea:
        kit = sea.kit
        sail(sea, tmp_path, stretch=0, node="n1")
        options = load_pipeline(
            arguments=[*sea.pipeline_arguments(), "-tables", str(tmp_path / "tables"), "-channels", BOAT]
        ).frames
        logs = ClusterLogs(options.address.connect())
        found = logs.client.describe(BOAT)
        leader = found["leader"]
        (follower,) = set(found["replicas"]) - {leader}
        (witness,) = set(kit.names) - set(found["replicas"])
        block_until(lambda: len(logs.client.describe(BOAT)["isr"]) == 2, "both replicas in sync", SPARK_S)
        kit.kill(follower)
        sent = sail(sea, tmp_path, stretch=1, node=witness)
        job = FramesJob(Here(), options)  # type: ignore[arg-type]
        job.prepare()
        planned = pieces_of(logs)
        job.commit_batch(planned)
        held, version = offsets_of(job.table), job.table.version()
        assert len(held) == sent
        later = [replace(piece, start=piece.end, end=piece.end + 100) for piece in planned]

        kit.kill(leader)
        kit.start(follower)
        elect_unclean(logs, follower)
        kit.start(leader)
        block_until(lambda: len(logs.client.describe(BOAT)["isr"]) == 2, "the old leader to have cut its log", SPARK_S)
        (ends,) = logs.channels([BOAT])
        assert ends.committed_end < planned[0].end, "the election cost nothing"

        with pytest.raises(HistoryRewritten, match="unclean election") as refused:
            job.commit_batch(later)
        assert not failure_of(refused.value).retriable
        shutil.rmtree(options.checkpoint)
        willing = replace(options, on_trimmed="skip", on_damaged="skip", on_recreated="accept")
        for again in (options, willing):
            with pytest.raises(HistoryRewritten, match="unclean election"):
                FramesJob(Here(), again).prepare()  # type: ignore[arg-type]
        assert (offsets_of(job.table), job.table.version()) == (held, version)

        # There is no setting that accepts it: accepting it means to begin with other tables.
        sail(sea, tmp_path, stretch=2, node=witness)
        afresh = FramesJob(Here(), replace(options, tables=str(tmp_path / "afresh")))  # type: ignore[arg-type]
        afresh.prepare()
        afresh.commit_batch(pieces_of(logs))
        taken = offsets_of(afresh.table)
        assert taken == sorted(set(taken))
        assert afresh.lag_records() == {BOAT: 0}
        for one in (job, afresh, logs):
            one.close()
