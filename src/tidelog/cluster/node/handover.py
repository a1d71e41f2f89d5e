"""What a node does before it stops on purpose: others lead what it leads, and nobody waits for it afterwards."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from tidelog.core.catalog import FenceNode
from tidelog.core.membership import node_of
from tidelog.errors import LogError
from tidelog.storage.log.writer import steady_clock_ms

if TYPE_CHECKING:
    from tidelog.cluster.node.process import Node

TRANSFER_MS: Final = 3_000
FENCE_MS: Final = 1_000


async def hand_over(node: Node) -> None:
    """Channels first, then the metadata. What does not succeed in time happens by silence, as after a crash."""
    core = node.core
    if core.is_registered and node.pool.nodes_up():
        await _hand_over_channels(node)
    if core.member is not None and core.is_leader:
        await _hand_over_metadata(node)


async def _hand_over_channels(node: Node) -> None:
    core = node.core
    replicas = core.channels.replicas.replicas()
    led = [replica for replica in replicas if replica.leading is not None and len(replica.record.isr) > 1]
    for replica in led:
        replica.resign("the node stops")
    node.pump_soon()
    deadline_ms = steady_clock_ms() + TRANSFER_MS
    for replica in led:
        while replica.record.leader == core.node:
            if not await node.doors.wait_moved(replica.channel_id, deadline_ms):
                break
    core.is_leaving = True  # or it would register again at once, and count and be elected until its session ends
    with contextlib.suppress(LogError):
        fence = FenceNode(node=core.node, expected_incarnation=core.incarnation)
        await node.asks.propose(fence, timeout_ms=FENCE_MS)


async def _hand_over_metadata(node: Node) -> None:
    """Nobody should have to wait for an election timeout."""
    member = node.core.member
    assert member is not None
    voters = member.raft.members.voters
    if not any(node.pool.link_to(node_of(voter)) for voter in voters if voter != member.member):
        return  # nobody is there to take over
    with contextlib.suppress(LogError, TimeoutError):
        heir = await node.asks.transfer(None, timeout_ms=TRANSFER_MS)
        node.say("leadership handed over", to=heir)
