"""Errors of the catalog: refused changes, and catalog bytes that cannot be read.

A refused change had no effect on any node. Most refusals are final for the change as it stands: the state has moved
on, so the proposer reads the catalog again and decides anew. `retriable` is set where the same change may land later.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.errors.base import LogError

# --- bytes that cannot be used ---------------------------------------------------------------------


class CatalogCorrupt(LogError):
    """A change or a snapshot of the catalog cannot be parsed, or contradicts itself.

    The node must stop applying changes and fetch the catalog from its peers; if it skipped the change, its catalog
    would silently differ from theirs.
    """

    template = "{problem}; fetch the catalog from a peer, do not skip"
    problem: str


class CatalogVersion(LogError):
    """A change or a snapshot was written by newer software, in a form that this version cannot read.

    The node must stop applying changes until it is upgraded; if it skipped the change, its catalog would silently
    differ from those of its peers.
    """

    template = "{problem}; this node must be upgraded before it can go on"
    problem: str


class InvalidChange(LogError):
    """A change holds invalid values. All problems are listed at once."""

    kind: str
    problems: Sequence[str]

    def _message(self) -> str:
        return f"{self.kind}: " + "; ".join(self.problems)


class NothingToChange(LogError):
    """The catalog is already in the state that the change asks for. Nothing needs to be done."""

    template = "{state} already"
    state: str


class CatalogFull(LogError):
    """The catalog has reached its limit for this kind of entry. Remove some that are no longer needed."""

    retriable = True
    template = "the catalog may hold {count_max} {what} and does; remove some that are no longer needed"
    what: str
    count_max: int


# --- nodes -----------------------------------------------------------------------------------------


class UnknownNode(LogError):
    """The catalog has no node of this name, or it was removed. An operator admits it first."""

    template = "there is no node {node!r}; admit it first"
    node: str


class NodeExists(LogError):
    """The catalog already has a node of this name, or of a name that differs only in case."""

    template = "node {node!r} cannot be admitted beside {held!r}; remove that one, or choose another id"
    node: str
    held: str


class NodeFenced(LogError):
    """The node is not active, so it can neither lead nor join. It must register with a higher incarnation."""

    retriable = True
    template = "node {node!r} is {state}; it must register with a higher incarnation first"
    node: str
    state: str


class StaleIncarnation(LogError):
    """A change names another incarnation of a node than the catalog has, or a registration does not exceed it."""

    template = "incarnation {given} of node {node!r} does not fit: {known} is known; read the catalog again"
    node: str
    given: int
    known: int


class NodeHolds(LogError):
    """The node leads channels, or holds the only good copy of some. Move them away, or remove it by force."""

    retriable = True
    node: str
    channels: Sequence[str]
    count: int

    def _message(self) -> str:
        more = f" and {self.count - len(self.channels)} more" if self.count > len(self.channels) else ""
        return (
            f"node {self.node!r} leads or is the last good holder of {', '.join(self.channels)}{more}; "
            "move their leaders and replicas first, or remove it by force"
        )


# --- channels --------------------------------------------------------------------------------------


class StaleChannelEpoch(LogError):
    """The channel has changed since the change was prepared. Read it again and decide anew."""

    template = (
        "channel {channel!r} is at channel epoch {current}, the change was made for {expected}; read the channel "
        "again and decide anew"
    )
    channel: str
    expected: int
    current: int


class NotInReplicas(LogError):
    """The node is not one of the channel's replicas. Place a replica there first."""

    template = "node {node!r} is no replica of channel {channel!r}; place one there first"
    channel: str
    node: str


class NotInIsr(LogError):
    """The node is not in the ISR, so it cannot leave it."""

    template = "node {node!r} is not in the ISR of channel {channel!r}; read the channel again"
    channel: str
    node: str


class LeaderOutsideIsr(LogError):
    """The change would leave the leader outside the ISR or the replicas. Elect another leader first."""

    template = "{leader!r} leads channel {channel!r} and must stay in its ISR; elect another leader first"
    channel: str
    leader: str


class LastHolder(LogError):
    """The change would drop the last replica that is known to hold every committed record."""

    retriable = True
    template = "channel {channel!r}: {problem}; let another replica catch up first"
    channel: str
    problem: str


class NotElectable(LogError):
    """The node may lack committed records, so it cannot lead. Wait for a replica that has them all, or let an operator
    accept the loss."""

    retriable = True
    template = (
        "node {node!r} cannot lead channel {channel!r}: {problem}; wait for a replica that holds everything, or let "
        "an operator name one and accept the loss"
    )
    channel: str
    node: str
    problem: str


class NoLiveLeader(LogError):
    """The channel has no live leader, and only a leader can say which replicas have caught up. Elect one first."""

    retriable = True
    template = "channel {channel!r} has no live leader; elect one first"
    channel: str


class ConfigMismatch(LogError):
    """The channel exists with another value of this setting, or the setting cannot change any more. Use the channel
    as it is, alter it, or create a new one."""

    template = (
        "channel {channel!r} exists with another value of {setting}; use it as it is, alter it, or create a new "
        "channel (persistent cannot be altered)"
    )
    channel: str
    setting: str


# --- producers, tokens, grants ---------------------------------------------------------------------


class UnknownProducer(LogError):
    """The catalog has no such producer. Open it first."""

    template = "there is no producer {producer}; open it first"
    producer: int


class ProducerOwned(LogError):
    """The name of this producer belongs to somebody else. Choose another name."""

    template = "producer {name!r} belongs to {owner}; choose another name"
    name: str
    owner: str


class StaleProducerEpoch(LogError):
    """The producer was opened again since, so this older epoch is fenced. Open it again to go on."""

    template = "producer {producer} is at epoch {current}, not {expected}; open it again to go on"
    producer: int
    expected: int
    current: int


class TokenExists(LogError):
    """A token of this name or this secret exists. Revoked ones count until they are removed."""

    template = "token {token!r} exists; remove it first, or choose another name and secret"
    token: str


class UnknownToken(LogError):
    """The catalog has no token of this name."""

    template = "there is no token {token!r}; list the tokens to see their names"
    token: str


class UnknownGrant(LogError):
    """There is no such grant, so it cannot be revoked."""

    template = "{principal} has no grant of {scope} on {channels}; list the grants to see them"
    principal: str
    scope: str
    channels: str
