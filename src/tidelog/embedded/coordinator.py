"""The handle of this node on one replicated channel: role, metrics, observers, and manual transitions.

Roles follow from the catalog; the handle shows them and allows the manual transitions that are safe. Every manual
transition is checked by the table of `core.replication.roles` first, including its cause. A transition that the table
allows but no operator may cause (to lead without an election, to follow without a placement) is refused with what to do
instead.

ECO1  No manual transition makes a leader: only the catalog elects one.
ECO2  A manual transition loses no committed record: a leader that steps down leaves its ISR unchanged, and a withdrawn
      copy is kept until the catalog no longer counts it.
ECO3  Observers are called on the node's event loop, after the change. Changes within one turn of the loop are one
      change: a Candidate that wins at once is seen as Replica, then Leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.cluster.clients.channel_admin import ChannelAdministration
from tidelog.cluster.replication.lag import ReplicaStatistics, channel_tag, statistics_of
from tidelog.cluster.replication.replica import ChannelReplica
from tidelog.cluster.status.chain_holders import find_chain_holders, holds_chain
from tidelog.codecs.client_codec import ALTER
from tidelog.core.catalog import ChannelRecord
from tidelog.core.replication.roles import WITHDRAWAL, Cause, Role, check_transition
from tidelog.errors import ChannelDeleted, TransitionReserved, WaitTimedOut, WithdrawnByHand

if TYPE_CHECKING:
    from tidelog.cluster.node.process import Node

_WAIT_MS: Final = 10_000
_LOOK_MS: Final = 10

_INSTEAD: Final = {
    Cause.CAPABILITY_SELECTED: "change the channel's replicas or its placement",
    Cause.MISSED_HEARTBEATS: "only silence is evidence; call an election with ELECTION_CALLED",
    Cause.ELECTION_WON: "call an election with ELECTION_CALLED, the catalog decides it",
    Cause.ELECTION_LOST: "the catalog decides elections",
    Cause.LEADER_HEARD: "it happens when the leader speaks",
    Cause.PEER_LEADER_OBSERVED: "step down with GRACEFUL_RELINQUISH",
    Cause.LEADER_DISK_PRESSURE_WITHDRAW: "step down with GRACEFUL_RELINQUISH first, then withdraw the replica",
    Cause.CHANNEL_CLOSE: "pause or delete the channel, or stop the node",
    Cause.PLACEMENT_DESELECTED: "change the channel's replicas or its placement",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChange:
    """A change of role, for an observer."""

    channel: str
    before: Role
    after: Role
    leader_epoch: int


Observer = Callable[[RoleChange], None]


class ReplicationCoordinator:
    def __init__(self, node: Node, *, admin: ChannelAdministration, channel: str, channel_id: int) -> None:
        self._node = node
        self._admin = admin
        self.channel = channel
        self.channel_id = channel_id
        self._seen = self.role
        self._observers: list[Observer] = []
        self._unwatch = node.channels.watch(self._moved, channel_id=channel_id)

    def detach(self) -> None:
        """Called by the manager when the file is closed."""
        self._unwatch()
        self._observers.clear()

    # --- what is so ----------------------------------------------------------------------------------------------

    @property
    def _replica(self) -> ChannelReplica | None:
        return self._node.core.channels.replicas.replica(self.channel_id)

    @property
    def record(self) -> ChannelRecord:
        """The channel in this node's catalog."""
        record = self._node.channels.catalog.channel(self.channel_id)
        if record is None:
            raise ChannelDeleted(channel_id=self.channel_id)
        return record

    @property
    def role(self) -> Role:
        """The role; Idle where the channel has no replica on this node."""
        replica = self._replica
        return Role.IDLE if replica is None else replica.role

    @property
    def leader(self) -> str | None:
        return self.record.leader

    @property
    def tag(self) -> str:
        return channel_tag(self.channel_id)

    @property
    def is_advertised(self) -> bool:
        """Whether this node holds the chain and advertises it."""
        replica = self._replica
        return replica is not None and holds_chain(replica)

    def find_chain_holders(self) -> list[str]:
        """Nodes that hold the chain: this one first, then by round trip, ties by id."""
        return find_chain_holders(self._node.core, self.channel_id)

    def statistics(self) -> ReplicaStatistics:
        replica = self._replica
        if replica is not None:
            return statistics_of(replica)
        record = self.record
        return ReplicaStatistics(
            channel_id=self.channel_id,
            name=self.channel,
            role=Role.IDLE,
            storage="closed",
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            log_start=0,
            log_end=0,
            held_end=0,
            committed_end=0,
            serves=False,
            lag_records=0,
            problem="",
        )

    # --- observers -----------------------------------------------------------------------------------------------

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call this whenever the role changes here; the result unsubscribes."""
        self._observers.append(observer)

        def end() -> None:
            if observer in self._observers:
                self._observers.remove(observer)

        return end

    def _moved(self, replica: ChannelReplica) -> None:
        before, self._seen = self._seen, replica.role
        if before is replica.role:
            return
        change = RoleChange(
            channel=self.channel, before=before, after=replica.role, leader_epoch=replica.record.leader_epoch
        )
        for observer in self._observers:
            # In a callback of its own: an exception of an observer is reported by the loop and does not stop the node.
            asyncio.get_running_loop().call_soon(observer, change)

    async def wait_for_role(self, *roles: Role, timeout_ms: int = _WAIT_MS) -> Role:
        """Wait until this node has one of these roles in the channel."""
        deadline_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        while self.role not in roles:
            if asyncio.get_running_loop().time() >= deadline_s:
                names = " or ".join(role.name.lower() for role in roles)
                raise WaitTimedOut(waiting_for=f"the role {names} in {self.channel!r}", deadline_s=timeout_ms / 1000)
            await asyncio.sleep(_LOOK_MS / 1000)
        return self.role

    # --- by hand -------------------------------------------------------------------------------------------------

    async def transition_to(self, role: Role, cause: Cause) -> Role:
        """Change the role by hand, for recovery; the role right after it.

        `GRACEFUL_RELINQUISH` makes a leader step down: it is Idle for a moment, then a replica again, and another one
        is elected (or itself anew, if nobody else could). `ELECTION_CALLED` asks the catalog to elect this node, if it
        is in the ISR. `DISK_PRESSURE_WITHDRAW` gives a replica's copy up, as a full disk would.
        """
        before = self.role
        check_transition(self.channel, before, role, cause)
        replica = self._replica
        if replica is not None and cause is Cause.GRACEFUL_RELINQUISH:
            replica.relinquish("stepped down by hand", self._node.now_ms())
        elif replica is not None and cause is Cause.ELECTION_CALLED:
            await self._elect_here()
        elif replica is not None and before is not Role.LEADER and cause is WITHDRAWAL.get(before):
            replica.withdraw(WithdrawnByHand(channel=self.channel), self._node.now_ms())
        else:
            raise TransitionReserved(
                channel=self.channel,
                before=before.name.lower(),
                after=role.name.lower(),
                cause=cause.value,
                instead=_INSTEAD[cause],
            )
        self._node.driver.pump_soon()
        return self.role

    async def _elect_here(self) -> None:
        """ECO1."""
        node = self._node.core.node
        request = {"channel": self.channel, "op": "elect", "leader": node}
        await self._admin.ask(ALTER, request, principal=f"node:{node}")

    async def hand_over(self, *, timeout_ms: int) -> None:
        """If this node leads and another could: step down, and wait until another leads, within the time."""
        replica = self._replica
        if replica is None or replica.leading is None:
            return
        if not [holder for holder in self.find_chain_holders() if holder != self._node.core.node]:
            return
        epoch = replica.record.leader_epoch
        replica.relinquish("the file was closed", self._node.now_ms())
        self._node.driver.pump_soon()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_ms / 1000
        while replica.record.leader_epoch == epoch:
            if loop.time() >= deadline_s:
                return  # it goes on by itself
            await asyncio.sleep(_LOOK_MS / 1000)
