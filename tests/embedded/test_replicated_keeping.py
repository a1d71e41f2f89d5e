"""Replicated files over time: retention and readers it passes, guarded appends, a factor of one, a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.embedded.parties import harbour, play, replicated, values
from tests.patience import patient
from tidelog.client.records import AnyRecord
from tidelog.cluster.clients.requests import AlterOperation
from tidelog.codecs.client_codec import ALTER
from tidelog.embedded import FileConfig, LogManager, Pinned, ReplicationConfig, Role
from tidelog.embedded.replicated_file import ReplicatedFile
from tidelog.errors import ChannelDeleted, ChannelPaused, ChannelReadonly, ConfigMismatch, Lagged, OffsetConflict


async def alter(manager: LogManager, operation: AlterOperation, channel: str = "spray", **more: object) -> None:
    """As an operator would, over any node."""
    assert manager._admin is not None
    await manager._admin.ask(ALTER, {"channel": channel, "op": operation.value, **more}, principal="operator:anna")


async def test_a_factor_of_one_is_a_file_with_a_coordinator(tmp_path: Path) -> None:
    async with harbour(tmp_path, ("n1",)) as port:
        manager = port.managers["n1"]
        config = FileConfig().with_replication(ReplicationConfig.new().with_factor(1))
        file = await manager.open_file("spray", config)
        assert isinstance(file, ReplicatedFile)
        await file.coordinator.wait_for_role(Role.LEADER)
        first = await file.append_batch([b"a", b"b"])
        await file.sync()
        assert await values(file) == [b"a", b"b"]
        assert file.committed_end == file.log_end == first + 2
        with pytest.raises(OffsetConflict):
            await file.append_batch([b"c"], expected_offset=first)
        assert await file.append_batch([b"c"], expected_offset=first + 2) == first + 2
        assert manager.find_chain_holders("spray") == ["n1"]
        await manager.close_file("spray")  # nobody could take over, so it goes on leading
        again = await manager.open_file("spray", config)
        assert isinstance(again, ReplicatedFile)
        assert again.coordinator.role is Role.LEADER
        assert await values(again) == [b"a", b"b", b"c"]


def test_persistent_channels_are_there_after_every_node_was_stopped(tmp_path: Path) -> None:
    config = FileConfig().with_replication(ReplicationConfig.new().with_factor(3))

    async def write() -> None:
        async with harbour(tmp_path) as port:
            files = await port.open("spray", config)
            leader = await port.leader(files)
            for number in range(10):
                await files[leader].append(b"%d" % number)

    async def read() -> None:
        async with harbour(tmp_path) as port:
            files = await port.open("spray", config)
            leader = await port.leader(files)
            assert await values(files[leader]) == [b"%d" % number for number in range(10)]
            await files[leader].append(b"ten")
            for file in files.values():
                assert len(await values(file)) == 11

    play(write())
    play(read())


async def test_a_tail_that_retention_passed_is_told_so_on_every_node(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        config = FileConfig().with_retention_max_bytes(64 * 1024).with_persistent(False)
        config = config.with_replication(ReplicationConfig.new().with_placement(Pinned(["n1", "n2"])))
        files = await port.open("spray", config)
        leader = await port.leader(files)
        tails = {name: file.tail(0) for name, file in files.items()}
        await files[leader].append(b"first")
        for name, tail in tails.items():
            record: AnyRecord = await asyncio.wait_for(anext(tail), patient(30))
            assert record.offset <= 1, name
        for _ in range(100):
            await files[leader].append(bytes(4 * 1024))
        starts = {}
        end = files[leader].committed_end
        for name in ("n1", "n2"):
            # A replica trims only what it knows to be committed, and may hear of that a moment later.
            await port.until(lambda name=name: files[name].committed_end == end, "all is committed")  # type: ignore[misc]
            starts[name] = await files[name].sweep_retention()
        assert min(starts.values()) > 1, starts
        for name, tail in tails.items():
            with pytest.raises(Lagged) as refusal:
                await asyncio.wait_for(anext(tail), patient(30))
            assert refusal.value.log_start > 1, name
            start = refusal.value.log_start
            rest = await files[name].read_range(start, 1 << 40)
            assert rest, name
            assert rest[-1].offset == files[leader].committed_end - 1
        assert len({file.committed_end for file in files.values()}) == 1


async def test_what_an_operator_does_to_a_channel_is_told_in_types(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        files = await port.open("spray", replicated())
        leader = await port.leader(files)
        file, manager = files[leader], port.managers[leader]
        await file.append(b"one")
        await alter(manager, AlterOperation.READONLY)
        with pytest.raises(ChannelReadonly):
            await file.append(b"two")
        assert await values(file) == [b"one"]
        await alter(manager, AlterOperation.WRITABLE)
        await file.append(b"two")
        await alter(manager, AlterOperation.PAUSE)
        with pytest.raises(ChannelPaused):
            await file.append(b"three")
        with pytest.raises(ChannelPaused):
            await file.read_range(0, 10)
        await alter(manager, AlterOperation.RESUME)
        leader = await port.leader(files)
        file, manager = files[leader], port.managers[leader]
        await file.append(b"three")
        assert await values(file) == [b"one", b"two", b"three"]
        await alter(manager, AlterOperation.ALTER, config={"heartbeat_ms": 600})
        with pytest.raises(ConfigMismatch, match="heartbeat_ms"):
            await manager.open_file("spray", replicated())
        assert file.coordinator.record.config.heartbeat_ms == 600
        await alter(manager, AlterOperation.DELETE)
        with pytest.raises(ChannelDeleted):
            await file.append(b"four")
        with pytest.raises(ChannelDeleted):
            await file.read_range(0, 10)
        again = await manager.open_file("spray", replicated())
        assert again is not file
        assert isinstance(again, ReplicatedFile)
        assert again.channel_id != file.channel_id
        assert file.is_closed
