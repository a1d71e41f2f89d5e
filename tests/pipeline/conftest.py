"""One Spark session and one small cluster for all tests of the pipeline that a test process runs.

Both cost seconds to start, so they are started when the first test asks for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from benchmarks.kits.channel_kit import create_channel
from benchmarks.kits.cluster_kit import OPERATOR, ClusterKit

from tidelog.client.sync import SyncClient
from tidelog.pipeline.sources.address import LogsAddress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from tidelog.pipeline.engine import EngineOptions, start_engine, stop_engine

    options = EngineOptions(
        master="local[2]",
        driver_memory="1g",
        shuffle_partitions=2,
        scratch=str(tmp_path_factory.mktemp("spark")),
        settings={
            # Off by default in Spark, which then looks at the first batch only.
            "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield start_engine(options)
    stop_engine()


class SmallCluster:
    """Three nodes as processes of their own, with TLS, and a client of them."""

    def __init__(self, kit: ClusterKit) -> None:
        self.kit = kit
        place = kit.folder / "certificates"
        self.address = LogsAddress(
            cluster=tuple(kit.address(name) for name in kit.names),
            certificate=str(place / f"{OPERATOR}.crt"),
            key=str(place / f"{OPERATOR}.key"),
            authority=str(place / "ca.crt"),
        )
        self.client: SyncClient = self.address.connect()

    @property
    def options(self) -> dict[str, str]:
        """The same for Spark."""
        address = self.address
        return {
            "cluster": ",".join(address.cluster),
            "certificate": address.certificate,
            "key": address.key,
            "authority": address.authority,
        }

    def channel(self, name: str, **config: object) -> str:
        """A new channel whose replicas are all in sync."""

        async def made() -> None:
            async with self.kit.caller() as caller:
                await self.kit.wait_formed(caller)  # a node that a test has killed may be on its way back
            await create_channel(self.kit, name, **config)

        asyncio.run(made())
        return name


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCluster]:
    with ClusterKit(tmp_path_factory.mktemp("cluster"), nodes=3) as kit:
        kit.start_all()

        async def formed() -> None:
            async with kit.caller() as caller:
                await kit.wait_formed(caller)

        asyncio.run(formed())
        small = SmallCluster(kit)
        yield small
        small.client.close(flush=False)
