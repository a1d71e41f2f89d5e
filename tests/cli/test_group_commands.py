"""`tidelog group` and `tidelog cursor` as they are typed, against a node in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cli.commands import Tidelog
from tests.client.group_kit import opened


async def test_groups_and_cursors_are_seen_and_changed(
    tmp_path: Path, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as nodes:
        monkeypatch.setenv("TIDELOG_CLUSTER_NODES", " ".join(nodes.peers.values()))

        async def call(*arguments: str, code: int = 0) -> str:
            result = await asyncio.to_thread(tidelog, *arguments, "--insecure-dev", code=code)
            return result.out + result.err

        client = await nodes.client()
        await client.create_channels(["bus/1", "bus/2"], factor=1)
        await client.producer("bus/1").send_many([b"x"] * 5)
        async with client.group("billing", ["bus/*"], member="anna", commit="explicit") as group:
            batch = await group.read()
            await group.commit(batch)
            listed = await call("group", "list")
            assert "billing" in listed
            assert '"members": 1' in await call("group", "list", "--json")
            described = await call("group", "describe", "billing")
            assert "anna" in described
            assert "bus/2" in described
            assert f'"position": {batch.next_offset}' in await call("group", "describe", "billing", "--json")
        assert "unknown_group" in await call("group", "delete", "billing", "--json", code=1)
        assert "group.billing" in await call("cursor", "list", "bus/1")
        assert "stands at 2" in await call("cursor", "set", "bus/1", "group.billing", "2")
        assert '"group.billing": 2' in await call("cursor", "list", "bus/1", "--json")
        assert "is deleted" in await call("cursor", "delete", "bus/1", "group.billing")
        assert await client.cursors("bus/1") == {}
        group = client.group("billing", ["bus/*"])
        await group.join()
        assert "is deleted" in await call("group", "delete", "billing")
        await group.close()
        await client.close()
