"""Handing leadership over before a node stops on purpose, so that no other node waits for it afterwards."""

from __future__ import annotations

import contextlib
from typing import Final

from tidelog.cluster.node.driver import NodeDriver
from tidelog.cluster.node.replica_channels import ReplicaChannels
from tidelog.cluster.node.requests import NodeRequests
from tidelog.core.catalog import FenceNode
from tidelog.core.membership import node_of
from tidelog.errors import LogError
from tidelog.storage.log.writer import steady_clock_ms

TRANSFER_MS: Final = 3_000
FENCE_MS: Final = 1_000


async def hand_over(driver: NodeDriver, requests: NodeRequests, channels: ReplicaChannels) -> None:
    """Hand over the channels, then the metadata. What fails in time is settled by timeouts, as after a crash."""
    core = driver.core
    if core.is_registered and driver.pool.nodes_up():
        await _hand_over_channels(driver, requests, channels)
    if core.member is not None and core.is_leader:
        await _hand_over_metadata(driver, requests)


async def _hand_over_channels(driver: NodeDriver, requests: NodeRequests, channels: ReplicaChannels) -> None:
    core = driver.core
    replicas = core.channels.replicas.replicas()
    led = [replica for replica in replicas if replica.leading is not None and len(replica.record.isr) > 1]
    for replica in led:
        replica.resign("the node stops")
    driver.pump_soon()
    deadline_ms = steady_clock_ms() + TRANSFER_MS
    for replica in led:
        while replica.record.leader == core.node:
            if not await channels.wait_moved(replica.channel_id, deadline_ms):
                break
    # Otherwise it would register again at once, and count and be elected until its session ends.
    core.registration.is_leaving = True
    with contextlib.suppress(LogError):
        fence = FenceNode(node=core.node, expected_incarnation=core.incarnation)
        await requests.propose(fence, timeout_ms=FENCE_MS)


async def _hand_over_metadata(driver: NodeDriver, requests: NodeRequests) -> None:
    """Transfer the leadership of the metadata, so that no election timeout has to pass."""
    member = driver.core.member
    assert member is not None
    voters = member.raft.members.voters
    if not any(driver.pool.link_to(node_of(voter)) for voter in voters if voter != member.member):
        return  # no node is there to take over
    with contextlib.suppress(LogError, TimeoutError):
        heir = await requests.transfer(None, timeout_ms=TRANSFER_MS)
        driver.say("leadership handed over", to=heir)
