"""Bad input to the frames job: one clear error each, nothing lost, and the run resumes once it is fixed.

The tasks run in this process, since what is looked at is the error and the table, not Spark. A damaged block, a foreign
checkpoint and an unknown option are in `test_frames_job`, `test_folder_logs` and `test_spark_source`.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.kits.channel_kit import create_channel
from benchmarks.kits.cluster_kit import OPERATOR, ClusterKit

from tests.pipeline.folders import BLOCK_ROWS, NOW_US, frame_blocks, put, segments, small_store
from tests.pipeline.table_kit import Here, offsets_of
from tidelog.errors import DiskFull, LogError, RecordsDamaged, UnknownChannel
from tidelog.pipeline.jobs.frames_job import FramesJob, FramesOptions
from tidelog.pipeline.jobs.supervisor import failure_of
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.logs import Piece

BLOCKS = 20


def fill_logs(folder: Path, *boats: str) -> None:
    store = small_store(folder / "logs")
    for seed, boat in enumerate(boats):
        put(store, boat, frame_blocks(BLOCKS, seed=100 * seed))
    store.close(NOW_US)


def job_of(folder: Path, *, tables: Path | None = None, address: LogsAddress | None = None) -> FramesJob:
    options = FramesOptions(
        address=address or LogsAddress(path=str(folder / "logs")),
        tables=str(tables or folder / "tables"),
        checkpoint=str(folder / "checkpoint"),
    )
    return FramesJob(Here(), options)  # type: ignore[arg-type]


def pieces_of(job: FramesJob) -> list[Piece]:
    """What a trigger would ask for: everything that the table lacks, from each channel's own place."""
    logs = job.options.address.open()
    try:
        found = logs.channels(job.options.channels)
    finally:
        logs.close()
    starts = job.prepare()
    return [
        Piece(
            channel=ends.channel,
            channel_id=ends.channel_id,
            leader_epoch=ends.leader_epoch,
            start=starts[ends.channel],
            end=ends.committed_end,
        )
        for ends in found
    ]


def require_all(job: FramesJob, *boats: str) -> None:
    for boat in boats:
        assert offsets_of(job.table, boat) == list(range(BLOCKS * BLOCK_ROWS))


def test_a_missing_segment_is_named_and_the_run_goes_on_when_it_is_back(tmp_path: Path) -> None:
    fill_logs(tmp_path, "boat-1", "boat-2")
    gone = segments(tmp_path / "logs", "boat-1")[2]
    held = gone.read_bytes()
    gone.unlink()
    job = job_of(tmp_path)
    pieces = pieces_of(job)
    version = job.table.version()
    with pytest.raises(RecordsDamaged, match="boat-1") as caught:
        job.commit_batch(pieces)
    assert caught.value.start == int(gone.stem)
    assert (job.table.version(), job.table.files()) == (version, [])
    gone.write_bytes(held)
    again = job_of(tmp_path)
    again.commit_batch(pieces_of(again))
    require_all(again, "boat-1", "boat-2")


def test_a_channel_deleted_while_it_is_read_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    fill_logs(tmp_path, "boat-1", "boat-2")
    job = job_of(tmp_path)
    pieces = pieces_of(job)
    store = small_store(tmp_path / "logs")
    store.delete_channel("boat-1", now_us=NOW_US)
    store.close(NOW_US)
    version = job.table.version()
    with pytest.raises(UnknownChannel, match="boat-1"):
        job.commit_batch(pieces)
    assert job.table.version() == version
    again = job_of(tmp_path)
    again.commit_batch(pieces_of(again))
    require_all(again, "boat-2")
    assert offsets_of(again.table, "boat-1") == []


@contextlib.contextmanager
def small_disk(folder: Path, *, kib: int) -> Iterator[Path]:
    """A file system of this size; the test is skipped, in words, where mounting is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_up(disk: Path, *, but_bytes: int) -> Path:
    """Take all the room there is, and give so much of it back."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while file.write(bytes(4_096)) == 4_096:
                pass
        file.truncate(max(0, file.tell() - but_bytes))
    return ballast


def attempted(job: FramesJob, pieces: list[Piece]) -> LogError | None:
    try:
        job.commit_batch(pieces)
    except LogError as error:
        return error
    return None


@pytest.mark.parametrize("free_kib", [0, 4, 64, 192, 288, 292, 296, 300])
def test_a_full_disk_under_the_tables_is_said_and_costs_nothing(tmp_path: Path, free_kib: int) -> None:
    """However far it came: a folder, a part of a file, all files and no commit."""
    fill_logs(tmp_path, "boat-1", "boat-2")
    with small_disk(tmp_path / "disk", kib=4_096) as disk:
        job = job_of(tmp_path, tables=disk / "tables")
        pieces = pieces_of(job)
        version = job.table.version()
        ballast = fill_up(disk, but_bytes=free_kib * 1_024)
        error = attempted(job, pieces)
        if error is None:
            assert free_kib > 192, "so little room cannot have been enough"
        else:
            assert isinstance(error, DiskFull), repr(error)
            assert "\n" not in str(error)
            assert failure_of(error).retriable, "space may be made while the pipeline runs"
            assert (job.table.version(), job.table.files()) == (version, [])
        ballast.unlink()
        job.commit_batch(pieces)
        require_all(job, "boat-1", "boat-2")
        again = job_of(tmp_path, tables=disk / "tables")
        again.commit_batch(pieces_of(again))
        require_all(again, "boat-1", "boat-2")


@pytest.mark.slow  # a node that is started three times
def test_a_segment_missing_on_the_only_node_is_named_and_the_run_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with ClusterKit(tmp_path / "cluster", nodes=1) as kit:
        (node,) = kit.names
        place = kit.folder / "certificates"
        address = LogsAddress(
            cluster=(kit.address(node),),
            certificate=str(place / f"{OPERATOR}.crt"),
            key=str(place / f"{OPERATOR}.key"),
            authority=str(place / "ca.crt"),
        )

        def start() -> None:
            async def formed() -> None:
                async with kit.caller() as caller:
                    await kit.wait_formed(caller)

            kit.start_all()
            asyncio.run(formed())

        def stop() -> None:
            kit.terminate(node)
            assert kit.wait_ended(node) == 0

        def read() -> int:
            """Runs the job over all there is; the next offset of the channel."""
            job = job_of(tmp_path, address=address)
            try:
                (piece,) = pieces_of(job)
                job.commit_batch([piece])
                return job.table.positions("main", [piece.channel_id])[piece.channel_id].next_offset
            finally:
                job.close()

        start()
        asyncio.run(create_channel(kit, "boat-1", factor=1, retention={"max_events": 16_000}))
        client = address.connect()
        for _ in range(4):
            client.producer("boat-1").send_many([bytes(1_000)] * 2_000).result(120)
        client.close()
        stop()
        gone, *_ = sorted(kit.folder.rglob("boat-1~*/*.seg"))[1:]
        held = gone.read_bytes()
        gone.unlink()
        start()
        with pytest.raises(RecordsDamaged, match="boat-1"):
            read()
        stop()
        gone.write_bytes(held)
        start()
        assert read() >= 8_000
        stop()
