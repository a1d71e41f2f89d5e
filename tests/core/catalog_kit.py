"""A small vocabulary for tests of the catalog: nodes that come and go, channels, and the answer to each change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidelog.core.catalog import (
    AdmitNode,
    AlterChannel,
    Applied,
    Catalog,
    Change,
    ChangeLeader,
    ChannelConfig,
    ChannelRecord,
    CreateChannel,
    ExpandIsr,
    FenceNode,
    FsyncPolicy,
    LogReport,
    NodeRecord,
    RegisterNode,
    ShrinkIsr,
    ShrinkReason,
    decode_change,
    encode_change,
)
from tidelog.errors import LogError

WEAK = ChannelConfig(fsync=FsyncPolicy.INTERVAL)
MEMORY = ChannelConfig(persistent=False)


def registration(node: str, incarnation: int, **facts: Any) -> RegisterNode:
    """A first start on a disk of its own, unless the facts say otherwise."""
    first = RegisterNode(
        node=node,
        incarnation=incarnation,
        known_incarnation=incarnation - 1,
        disk_id="d15c" + node.encode().hex().ljust(8, "0"),
        process_id="9a" + f"{incarnation:08x}",
        clean_incarnation=None,
        verified=True,
        damaged_channels=(),
        addresses=(("link", f"{node}.example:7400"),),
        host=f"host-{node}",
        tags=(),
        capacity_bytes=1_000_000,
        software="tidelog 1",
        catalog_version=1,
        at_ms=1_000,
    )
    return replace(first, **facts)


class Cluster:
    """A catalog, its next index, and shorthands. Every change goes through its bytes first."""

    def __init__(self, *nodes: str) -> None:
        self.catalog = Catalog()
        self.index = 0
        for node in nodes:
            self.take(AdmitNode(node=node))
            self.take(registration(node, 1))

    def apply(self, change: Change) -> Applied:
        self.index += 1
        applied = self.catalog.apply(self.index, decode_change(encode_change(change)))
        assert self.catalog.contradictions() == []
        return applied

    def take(self, change: Change) -> Applied:
        """Apply what must be accepted."""
        refusal = self.catalog.check(change)
        assert refusal is None, refusal
        applied = self.apply(change)
        assert applied.refusal is None
        return applied

    def refused(self, change: Change) -> LogError:
        """Apply what must be refused, without a trace."""
        said = self.catalog.check(change)
        before = self.catalog.snapshot()
        applied = self.apply(change)
        assert applied.refusal is not None, f"was accepted: {change}"
        assert said is not None
        assert (said.code, str(said), said.position) == (
            applied.refusal.code,
            str(applied.refusal),
            applied.refusal.position,
        )
        after = Catalog.restore(before)
        after.advance(self.index)
        assert after.digest() == self.catalog.digest(), "C1: a refused change left something behind"
        return applied.refusal.error

    # --- nodes ---------------------------------------------------------------------------------------

    def node(self, name: str) -> NodeRecord:
        record = self.catalog.node(name)
        assert record is not None
        return record

    def fence(self, *nodes: str) -> None:
        for node in nodes:
            self.take(FenceNode(node=node, expected_incarnation=self.node(node).incarnation))

    def restart(self, node: str, *, clean: bool = False, **facts: Any) -> None:
        """A new process on the same disk."""
        known = self.node(node).incarnation
        self.take(registration(node, known + 1, clean_incarnation=known if clean else None, **facts))

    def reconnect(self, node: str) -> None:
        """The same process, which only lost its session."""
        record = self.node(node)
        self.take(registration(node, record.incarnation + 1, process_id=record.process_id))

    # --- channels ------------------------------------------------------------------------------------

    def create(
        self,
        *replicas: str,
        name: str = "spray",
        leader: str | None = None,
        config: ChannelConfig | None = None,
    ) -> int:
        change = CreateChannel(
            name=name, config=config or ChannelConfig(), replicas=replicas, leader=leader or replicas[0], at_ms=5_000
        )
        return self.take(change).touched.channels[-1]

    def channel(self, channel_id: int) -> ChannelRecord:
        record = self.catalog.channel(channel_id)
        assert record is not None
        return record

    def isr(self, channel_id: int) -> list[str]:
        return list(self.channel(channel_id).isr_nodes)

    def eligible(self, channel_id: int) -> list[str]:
        return [member.node for member in self.channel(channel_id).eligible]

    def elect(self, channel_id: int, leader: str | None, **facts: Any) -> ChangeLeader:
        """An election decided on what the catalog says now."""
        change = ChangeLeader(
            channel_id=channel_id,
            expected_channel_epoch=self.channel(channel_id).channel_epoch,
            leader=leader,
            incarnation=0 if leader is None else self.node(leader).incarnation,
            at_ms=9_000,
        )
        return replace(change, **facts)

    def shrink(self, channel_id: int, *members: str, reason: ShrinkReason = ShrinkReason.LAGGING) -> ShrinkIsr:
        epoch = self.channel(channel_id).channel_epoch
        return ShrinkIsr(channel_id=channel_id, expected_channel_epoch=epoch, members=members, reason=reason)

    def expand(self, channel_id: int, member: str, incarnation: int | None = None) -> ExpandIsr:
        return ExpandIsr(
            channel_id=channel_id,
            expected_channel_epoch=self.channel(channel_id).channel_epoch,
            member=member,
            incarnation=self.node(member).incarnation if incarnation is None else incarnation,
        )

    def alter(
        self, channel_id: int, config: ChannelConfig | None = None, replicas: tuple[str, ...] | None = None
    ) -> AlterChannel:
        epoch = self.channel(channel_id).channel_epoch
        return AlterChannel(channel_id=channel_id, expected_channel_epoch=epoch, config=config, replicas=replicas)

    def report(self, node: str, last_epoch: int, log_end: int) -> LogReport:
        return LogReport(node=node, incarnation=self.node(node).incarnation, last_epoch=last_epoch, log_end=log_end)


def three() -> tuple[Cluster, int]:
    """Three nodes and a channel on all of them, led by n1; min ISR is 2."""
    cluster = Cluster("n1", "n2", "n3")
    return cluster, cluster.create("n1", "n2", "n3")
