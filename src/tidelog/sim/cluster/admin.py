"""Operators of simulated channels: what kinds there are, and what is done to them while they run."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

from tidelog.core.catalog import (
    AlterChannel,
    Change,
    ChannelConfig,
    ChannelRecord,
    ChannelRetention,
    CreateChannel,
    DeleteChannel,
    FsyncPolicy,
    NodeState,
    PauseChannel,
    Placement,
    ResumeChannel,
    SetReadonly,
    UnderCapacity,
)

if TYPE_CHECKING:
    from tidelog.core.catalog import Catalog

CHANNELS: Final = tuple(f"c{number}" for number in range(6))


def random_config(rng: Random, nodes: list[str]) -> ChannelConfig:
    """A channel of any kind that this many nodes can hold."""
    factor = min(len(nodes), rng.choice((1, 2, 3, 3, 3, 3, 5)))
    pinned = rng.random() < 0.1
    persistent = rng.random() < 0.8
    kept = ChannelRetention()
    if rng.random() < 0.4:
        kept = ChannelRetention(max_bytes=rng.choice((4_000, 20_000)))
    return ChannelConfig(
        factor=factor,
        placement=Placement.PINNED if pinned else Placement.STANDARD,
        pinned_nodes=tuple(sorted(rng.sample(nodes, factor))) if pinned else (),
        heartbeat_ms=rng.choice((100, 200, 500)),
        leader_pinned=rng.choice(nodes) if not pinned and rng.random() < 0.3 else None,
        on_under_capacity=rng.choice((UnderCapacity.WITHDRAW, UnderCapacity.EVICT_OLDEST)),
        replication_budget_ppm=rng.choice((500_000, 500_000, 200)),
        min_isr=rng.choice((None, None, None, *range(1, factor + 1))),
        skip_threshold_bytes=rng.choice((1, 3_000, 1 << 20)),
        fsync=rng.choice((FsyncPolicy.ALWAYS,) * 4 + (FsyncPolicy.INTERVAL, FsyncPolicy.NEVER)),
        fsync_interval_ms=rng.choice((100, 1_000)),
        retention=kept,
        persistent=persistent,
    )


def random_change(rng: Random, catalog: Catalog, count: int) -> Change | None:
    """Make a channel while there are few; else change one."""
    active = [record.node for record in catalog.nodes() if record.state is NodeState.ACTIVE]
    missing = [name for name in CHANNELS[:count] if catalog.channel(name) is None]
    if missing:
        return create(rng, missing[0], active)
    channel = catalog.channel(rng.choice(CHANNELS[:count]))
    assert channel is not None
    return _alter(rng, channel, active)


def create(rng: Random, name: str, active: list[str]) -> Change | None:
    if not active:
        return None
    config = random_config(rng, active)
    replicas = config.pinned_nodes or tuple(rng.sample(active, config.factor))
    leader = config.leader_pinned if config.leader_pinned in replicas else rng.choice(replicas)
    assert leader is not None
    return CreateChannel(name=name, config=config, replicas=replicas, leader=leader, at_ms=1)


def _alter(rng: Random, channel: ChannelRecord, active: list[str]) -> Change | None:
    key, epoch, config = channel.channel_id, channel.channel_epoch, channel.config
    if channel.paused:
        return ResumeChannel(channel_id=key, expected_channel_epoch=epoch)
    kind = rng.random()
    if kind < 0.02:
        return DeleteChannel(channel_id=key, expected_channel_epoch=epoch, at_ms=1)
    if kind < 0.12:
        return PauseChannel(channel_id=key, expected_channel_epoch=epoch)
    if kind < 0.27 or channel.readonly:
        return SetReadonly(channel_id=key, expected_channel_epoch=epoch, readonly=not channel.readonly)
    if kind < 0.45 and config.placement is not Placement.PINNED:
        factor = rng.randint(1, max(1, len(active)))
        least = None if config.min_isr is None else min(config.min_isr, factor)
        return AlterChannel(
            channel_id=key, expected_channel_epoch=epoch, config=replace(config, factor=factor, min_isr=least)
        )
    if kind < 0.6:
        fsync = rng.choice(list(FsyncPolicy))
        return AlterChannel(channel_id=key, expected_channel_epoch=epoch, config=replace(config, fsync=fsync))
    if kind < 0.7 and config.placement is not Placement.PINNED:
        pinned = rng.choice((None, *active)) if active else None
        return AlterChannel(channel_id=key, expected_channel_epoch=epoch, config=replace(config, leader_pinned=pinned))
    return _move(rng, channel, active)


def _move(rng: Random, channel: ChannelRecord, active: list[str]) -> Change | None:
    """As a rebalance does it: the new replica is among those that are meant, an old one goes last and leaves later."""
    others = [node for node in active if node not in channel.replicas]
    if not others or channel.config.placement is Placement.PINNED:
        return None
    new, leaving = rng.choice(others), rng.choice(channel.replicas)
    replicas = (*(node for node in channel.replicas if node != leaving), new, leaving)
    return AlterChannel(channel_id=channel.channel_id, expected_channel_epoch=channel.channel_epoch, replicas=replicas)
