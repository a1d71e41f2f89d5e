"""The manager without await: the same calls, from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import patient
from tests.ports import free_port
from tidelog.cluster.node.process import Node, NodeProcessOptions
from tidelog.embedded import Cause, FileConfig, Record, ReplicationConfig, Role, SyncLogManager
from tidelog.errors import InvalidTransition, LogClosed, ReplicationNotEnabled, UnknownChannel

MEMORY = FileConfig().with_persistent(False)


def test_a_program_without_a_loop_appends_reads_and_tails(tmp_path: Path) -> None:
    with SyncLogManager(tmp_path) as manager:
        file = manager.open_file("spray")
        assert [file.append(b"%d" % number) for number in range(3)] == [0, 1, 2]
        assert file.append_batch([b"a", b"b"], expected_offset=3) == 3
        file.sync()
        assert [record.offset for record in file.read_range(1, 4)] == [1, 2, 3]
        tail = file.tail(3)
        assert [next(tail).offset for _ in range(2)] == [3, 4]
        assert (file.log_start, file.committed_end, file.log_end) == (0, 5, 5)
        assert file.sweep_retention() == 0
        with pytest.raises(ReplicationNotEnabled):
            manager.open_file("foam", MEMORY.with_replication(ReplicationConfig.new()))
        assert manager.metrics_snapshot().prometheus_text() == ""
        manager.disable_replication()
    with pytest.raises(LogClosed):
        file.append(b"late")
    with pytest.raises(LogClosed):
        manager.open_file("spray")
    manager.close()
    assert "tidelog-manager" not in {thread.name for thread in threading.enumerate()}
    with SyncLogManager(tmp_path) as manager:
        again = manager.open_file("spray")
        assert again.log_end == 5


def test_threads_share_a_file_and_a_tail_ends_when_it_is_closed() -> None:
    with SyncLogManager() as manager:
        file = manager.open_file("spray", MEMORY)
        seen: list[int] = []
        follower = threading.Thread(target=lambda: seen.extend(record.offset for record in file.tail(0)))
        follower.start()
        writers = [threading.Thread(target=lambda: [file.append(b"x") for _ in range(25)]) for _ in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(patient(30))
        assert file.committed_end == 100
        tail = file.tail(99)
        next(tail)
        deadline = threading.Event()
        for _ in range(3_000):
            if len(seen) == 100:
                break
            deadline.wait(0.01)
        file.close()
        follower.join(patient(30))
        assert seen == list(range(100))


@contextmanager
def node_elsewhere(folder: Path) -> Iterator[tuple[asyncio.AbstractEventLoop, Node]]:
    """A cluster of one that runs on a loop of its own thread, as a served node would."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    address = f"127.0.0.1:{free_port()}"

    async def start() -> Node:
        options = NodeProcessOptions(
            node="n1", listen=address, peers={"n1": address}, data_dir=folder, insecure_dev=True
        )
        node = Node(options)
        await node.start()
        return node

    async def settle() -> None:
        await loop.shutdown_asyncgens()
        await loop.shutdown_default_executor()

    def run(work: object) -> Node:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)  # type: ignore[arg-type]

    node = run(start())
    try:
        yield loop, node
    finally:
        run(node.stop())
        run(settle())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(patient(30))
        loop.close()


def test_a_thread_uses_a_node_that_runs_on_another_loop(tmp_path: Path) -> None:
    with node_elsewhere(tmp_path) as (loop, node), SyncLogManager(loop=loop) as manager:
        manager.enable_replication(node)
        file = manager.open_file("spray", MEMORY.with_replication(ReplicationConfig.new().with_factor(1)))
        first = file.append_batch([b"a", b"b"])
        found = [record.value for record in file.read_range(0, 100) if isinstance(record, Record)]
        assert found == [b"a", b"b"]
        assert file.committed_end == first + 2
        assert manager.role_of("spray") is Role.LEADER
        assert manager.find_chain_holders("spray") == ["n1"]
        with pytest.raises(InvalidTransition):
            manager.transition_to("spray", Role.CANDIDATE, Cause.ELECTION_CALLED)
        with pytest.raises(UnknownChannel):
            manager.role_of("foam")
        assert 'dataforts_leader_changes_total{channel="spray"} 1' in manager.metrics_snapshot().prometheus_text()
