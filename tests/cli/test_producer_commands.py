"""`tidelog producer` as it is typed, against a node in this process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.cli.commands import Tidelog
from tests.client.group_kit import opened


async def test_producers_are_listed_and_removed(
    tmp_path: Path, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as nodes:
        monkeypatch.setenv("TIDELOG_CLUSTER_NODES", " ".join(nodes.peers.values()))

        async def call(*arguments: str, code: int = 0) -> str:
            result = await asyncio.to_thread(tidelog, "producer", *arguments, "--insecure-dev", code=code)
            return result.out + result.err

        client = await nodes.client()
        await client.create_channels(["bus", "empty"], factor=1)
        async with client.producer("bus", name="engine") as engine, client.producer("bus", name="wind") as wind:
            await engine.send(b"x")
            await wind.send(b"x")
        listed = await call("list", "bus")
        rows = listed.splitlines()
        assert all(heading in listed for heading in ("producer", "owner", "id", "epoch", "opened", "last wrote"))
        assert sum("engine" in row for row in rows) == sum("wind" in row for row in rows) == 1
        assert "client:client" in listed
        told = json.loads(await call("list", "bus", "--json"))
        assert told["channel"] == "bus"
        assert {one["name"]: one["epoch"] for one in told["producers"]} == {"engine": 1, "wind": 1}
        assert all(one["used_at_ms"] for one in told["producers"])
        assert json.loads(await call("list", "empty", "--json"))["producers"] == []

        assert await call("remove", "bus", "engine") == "producer engine of bus is closed\n"
        assert await call("remove", "bus", "engine") == "channel bus has no producer engine\n"
        assert json.loads(await call("remove", "bus", "wind", "--json"))["removed"] is True
        assert json.loads(await call("remove", "bus", "wind", "--json"))["removed"] is False
        assert await client.producers("bus") == []
        assert "unknown_channel" in await call("list", "nothing", "--json", code=1)
        assert "unknown_channel" in await call("remove", "nothing", "engine", "--json", code=1)
        await call("remove", "bus", code=2)
        await client.close()


async def test_who_was_silent_longest_is_listed_first(
    tmp_path: Path, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as nodes:
        monkeypatch.setenv("TIDELOG_CLUSTER_NODES", " ".join(nodes.peers.values()))
        client = await nodes.client()
        await client.create_channels(["bus"], factor=1)
        first, second = client.producer("bus", name="first"), client.producer("bus", name="second")
        await first.send(b"x")
        await second.send(b"x")
        (record,) = [one for one in await client.producers("bus") if one["name"] == "second"]
        clock_ms = record["used_at_ms"]
        while True:  # until the clock of the log has moved on
            await first.send(b"y")
            (found,) = [one for one in await client.producers("bus") if one["name"] == "first"]
            if found["used_at_ms"] > clock_ms:
                break
        result = await asyncio.to_thread(tidelog, "producer", "list", "bus", "--json", "--insecure-dev")
        assert [one["name"] for one in result.json["producers"]] == ["second", "first"]
        await first.close()
        await second.close()
        await client.close()
