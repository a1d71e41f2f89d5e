"""Taking over a data folder of a cloud that knew no catalog: its channels are boats', and stay under their ids.

AD1  A channel is adopted once, in the order of the ids, before boats are served: the catalog gives out higher ids only.
AD2  Its leader begins in an epoch above every one that its log has seen (R1).
AD3  Nothing is deleted. A log that cannot be adopted is logged, and stays where it is.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tidelog.cluster.clients.channel_admin import ChannelAdministration
from tidelog.cluster.clients.requests import AlterOperation
from tidelog.cluster.local_channels import LocalChannels
from tidelog.cluster.node.driver import NodeDriver
from tidelog.cluster.node.requests import NodeRequests
from tidelog.cluster.uplink.mark import boat_config, is_boat
from tidelog.codecs.client_codec import ALTER, config_json
from tidelog.core.catalog import AdoptChannel, ChannelConfig
from tidelog.errors import LogError
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.store.channel_logs import ChannelLogConfig

_PROPOSE_MS: Final = 10_000


async def adopt_channels(driver: NodeDriver, requests: NodeRequests, config: ChannelConfig) -> int:
    """Take over logs on the disk that the catalog does not know; returns how many."""
    await requests.read_barrier()  # a catalog that is behind would take known channels for strays
    catalog = driver.core.catalog
    assert catalog is not None, "a read barrier has passed"
    strays = {
        channel_id: name
        for channel_id, name in sorted(driver.channel_logs.known().items())
        if catalog.channel(channel_id) is None and not catalog.was_deleted(channel_id)
    }
    adopted = 0
    for channel_id, name in strays.items():
        try:
            change = AdoptChannel(
                name=name,
                config=boat_config(config, catalog),
                node=driver.core.node,
                channel_id=channel_id,
                newest_epoch=await _newest_epoch(driver, channel_id, name),
                at_ms=wall_clock_us() // 1000,
            )
            await requests.propose(change, timeout_ms=_PROPOSE_MS)
        except LogError as error:
            if error.retriable:
                raise
            driver.log(
                f"channel not adopted channel={name} id={channel_id} code={error.code} detail={str(error)!r}"
            )  # AD3
        else:
            adopted += 1
    if adopted:
        driver.log(f"channels adopted count={adopted}")
    return adopted


async def _newest_epoch(driver: NodeDriver, channel_id: int, name: str) -> int:
    """The newest epoch in a log that is not open yet; read in the writer's thread."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[int] = loop.create_future()
    logs = driver.channel_logs
    assert driver.storage is not None

    def look(now_us: int) -> None:
        config = ChannelLogConfig(channel_id=channel_id, name=name, persistent=True, options=LogOptions())
        try:
            epoch = logs.open(config, now_us).newest_epoch
        except LogError as error:
            loop.call_soon_threadsafe(found.set_exception, error)
        else:
            loop.call_soon_threadsafe(found.set_result, epoch)

    driver.storage.writer.run_exclusive(look)
    return await found


async def follow_settings(channels: LocalChannels, admin: ChannelAdministration, config: ChannelConfig) -> None:
    """Give boats' channels the configured retention: in a cluster of one no other node decides."""
    for record in channels.catalog.channels():
        if is_boat(record) and record.config.retention != config.retention:
            request = {
                "channel": record.name,
                "op": AlterOperation.ALTER.value,
                "config": {"retention": config_json(config)["retention"]},
            }
            await admin.ask(ALTER, request, principal=f"node:{channels.node}")
