"""The replication factor is a promise, kept when a channel is opened; and the seed's own names for what opens it."""

from __future__ import annotations

import asyncio
import inspect
import typing
from pathlib import Path

import pytest

from tests.embedded.parties import NAMES, Harbour, harbour, replicated
from tidelog import embedded
from tidelog.codecs.client_codec import CREATE
from tidelog.embedded import LogManager
from tidelog.errors import FactorNotMet


async def test_a_factor_that_the_cluster_cannot_hold_is_refused_and_nothing_is_created(tmp_path: Path) -> None:
    async with harbour(tmp_path, ("n1",)) as port:
        manager = LogManager(factor_timeout_ms=300)
        manager.enable_replication(port.nodes["n1"])
        with pytest.raises(FactorNotMet) as refused:
            await manager.open_file("spray", replicated(factor=3))
        assert (refused.value.factor, refused.value.nodes) == (3, ["n1"])
        assert "start more nodes" in str(refused.value)
        catalog = port.nodes["n1"].core.catalog
        assert catalog is not None
        assert catalog.channel("spray") is None
        await manager.open_file("spray", replicated(factor=1))
        await manager.close()


async def test_a_channel_that_an_operator_made_with_too_few_nodes_is_not_opened(tmp_path: Path) -> None:
    async with harbour(tmp_path, ("n1",)) as port:
        manager = LogManager(factor_timeout_ms=100)
        manager.enable_replication(port.nodes["n1"])
        assert manager._admin is not None
        wanted = {"name": "spray", "config": {"factor": 2, "persistent": False}}
        answer = await manager._admin.ask(CREATE, {"channels": [wanted]}, principal="operator:anna")
        assert "error" not in answer["results"][0]
        with pytest.raises(FactorNotMet):
            await manager.open_file("spray", replicated(factor=2))
        await manager.close()


async def test_nodes_that_start_together_are_waited_for(tmp_path: Path) -> None:
    port = Harbour(tmp_path, NAMES)
    try:
        for name in NAMES:
            await port.start(name)
        # Nobody waits for the cluster to be formed: each program opens its file as soon as its node runs.
        await asyncio.gather(*(manager.open_file("spray", replicated()) for manager in port.managers.values()))
        catalog = port.nodes["n1"].core.catalog
        assert catalog is not None
        channel = catalog.channel("spray")
        assert channel is not None
        assert sorted(channel.replicas) == list(NAMES)
    finally:
        for manager in port.managers.values():
            await manager.close()
        for node in port.nodes.values():
            await node.stop()


def test_the_names_of_seed_001_are_the_same_objects() -> None:
    assert embedded.Redex is embedded.LogManager
    assert embedded.RedexFile is embedded.LogFile
    assert embedded.RedexFileConfig is embedded.FileConfig
    assert set(typing.get_args(embedded.PlacementStrategy)) == {
        embedded.Standard,
        embedded.Pinned,
        embedded.ColocationStrict,
    }
    assert embedded.SyncNackError.BACKPRESSURE in list(embedded.SyncNackError)
    for call in ("enable_replication", "open_file", "close_file", "replication_coordinator_for", "find_chain_holders"):
        assert inspect.isfunction(getattr(embedded.Redex, call)), call
    for call in ("sweep_retention", "append", "tail"):
        assert hasattr(embedded.RedexFile, call), call
    page = (Path(__file__).parents[2] / "docs" / "embedded.md").read_text()
    for name in ("Redex", "RedexFileConfig", "RedexFile", "PlacementStrategy", "SyncNackError"):
        assert f"| `{name}` |" in page, name
