"""Errors of the catalog: why a change of the cluster's memory was refused, and bytes of it that cannot be read.

A refused change had no effect on any node. Most refusals are final for the change as it stands: the state has moved
on, so the proposer reads the catalog again and decides anew. `retriable` is set where the same change may land later.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.errors.base import LogError

# --- bytes that cannot be used ---------------------------------------------------------------------


class CatalogCorrupt(LogError):
    """Bytes that should be a change or a snapshot of the catalog are not, or contradict themselves.

    The node must stop applying and learn the catalog again from its peers; skipping would let it disagree in silence.
    """

    code = "catalog_corrupt"

    def __init__(self, *, problem: str) -> None:
        super().__init__(f"{problem}; fetch the catalog from a peer, do not skip")
        self.problem = problem


class CatalogVersion(LogError):
    """A change or a snapshot says something that only newer software knows.

    The node must stop applying until it is upgraded; skipping would let it disagree in silence.
    """

    code = "catalog_version"

    def __init__(self, *, problem: str) -> None:
        super().__init__(f"{problem}; this node must be upgraded before it can go on")
        self.problem = problem


class InvalidChange(LogError):
    """A change holds values that cannot be. All problems are listed at once."""

    code = "invalid_change"

    def __init__(self, *, kind: str, problems: Sequence[str]) -> None:
        super().__init__(f"{kind}: " + "; ".join(problems))
        self.kind = kind
        self.problems = list(problems)


class NothingToChange(LogError):
    """What the change asks for is so already. Nothing needs to be done."""

    code = "nothing_to_change"

    def __init__(self, *, state: str) -> None:
        super().__init__(f"{state} already")
        self.state = state


class CatalogFull(LogError):
    """The catalog holds as many of these as it may. Remove some that are no longer needed."""

    code = "catalog_full"
    retriable = True

    def __init__(self, *, what: str, count_max: int) -> None:
        super().__init__(f"the catalog may hold {count_max} {what} and does; remove some that are no longer needed")
        self.what = what
        self.count_max = count_max


# --- nodes -----------------------------------------------------------------------------------------


class UnknownNode(LogError):
    """The catalog has no node of this name, or it was removed. An operator admits it first."""

    code = "unknown_node"

    def __init__(self, *, node: str) -> None:
        super().__init__(f"there is no node {node!r}; admit it first")
        self.node = node


class NodeExists(LogError):
    """A node of this name, or of one that differs from it only in case, is in the catalog."""

    code = "node_exists"

    def __init__(self, *, node: str, held: str) -> None:
        super().__init__(f"node {node!r} cannot be admitted beside {held!r}; remove that one, or choose another id")
        self.node = node
        self.held = held


class NodeFenced(LogError):
    """The node is not active, so it can neither lead nor join. It must register with a higher incarnation."""

    code = "node_fenced"
    retriable = True

    def __init__(self, *, node: str, state: str) -> None:
        super().__init__(f"node {node!r} is {state}; it must register with a higher incarnation first")
        self.node = node
        self.state = state


class StaleIncarnation(LogError):
    """A change names an incarnation of a node that is not the one the catalog knows, or does not exceed it."""

    code = "stale_incarnation"

    def __init__(self, *, node: str, given: int, known: int) -> None:
        super().__init__(f"incarnation {given} of node {node!r} does not fit: {known} is known; read the catalog again")
        self.node = node
        self.given = given
        self.known = known


class NodeHolds(LogError):
    """The node leads channels, or holds the only good copy of some. Move them away, or remove it by force."""

    code = "node_holds"
    retriable = True

    def __init__(self, *, node: str, channels: Sequence[str], count: int) -> None:
        more = f" and {count - len(channels)} more" if count > len(channels) else ""
        super().__init__(
            f"node {node!r} leads or is the last good holder of {', '.join(channels)}{more}; "
            "move their leaders and replicas first, or remove it by force"
        )
        self.node = node
        self.channels = list(channels)
        self.count = count


# --- channels --------------------------------------------------------------------------------------


class StaleChannelEpoch(LogError):
    """The channel has changed since the change was decided. Read it again and decide anew."""

    code = "stale_channel_epoch"

    def __init__(self, *, channel: str, expected: int, current: int) -> None:
        super().__init__(
            f"channel {channel!r} is at channel epoch {current}, the change was made for {expected}; "
            "read the channel again and decide anew"
        )
        self.channel = channel
        self.expected = expected
        self.current = current


class NotInReplicas(LogError):
    """The node is not one of the channel's replicas. Place a replica there first."""

    code = "not_in_replicas"

    def __init__(self, *, channel: str, node: str) -> None:
        super().__init__(f"node {node!r} is no replica of channel {channel!r}; place one there first")
        self.channel = channel
        self.node = node


class NotInIsr(LogError):
    """The node is not in the ISR, so it cannot leave it."""

    code = "not_in_isr"

    def __init__(self, *, channel: str, node: str) -> None:
        super().__init__(f"node {node!r} is not in the ISR of channel {channel!r}; read the channel again")
        self.channel = channel
        self.node = node


class LeaderOutsideIsr(LogError):
    """The change would leave the leader outside the ISR or the replicas. Elect another leader first."""

    code = "leader_outside_isr"

    def __init__(self, *, channel: str, leader: str) -> None:
        super().__init__(f"{leader!r} leads channel {channel!r} and must stay in its ISR; elect another leader first")
        self.channel = channel
        self.leader = leader


class LastHolder(LogError):
    """The change would drop the last replica that is known to hold every committed record."""

    code = "last_holder"
    retriable = True

    def __init__(self, *, channel: str, problem: str) -> None:
        super().__init__(f"channel {channel!r}: {problem}; let another replica catch up first")
        self.channel = channel
        self.problem = problem


class NotElectable(LogError):
    """The node may lack committed records, so it cannot lead. Wait for a holder, or let an operator decide."""

    code = "not_electable"
    retriable = True

    def __init__(self, *, channel: str, node: str, problem: str) -> None:
        super().__init__(
            f"node {node!r} cannot lead channel {channel!r}: {problem}; "
            "wait for a replica that holds everything, or let an operator name one and accept the loss"
        )
        self.channel = channel
        self.node = node
        self.problem = problem


class NoLiveLeader(LogError):
    """Only a live leader can say who has caught up or who may go. Elect one first."""

    code = "no_live_leader"
    retriable = True

    def __init__(self, *, channel: str) -> None:
        super().__init__(f"channel {channel!r} has no live leader; elect one first")
        self.channel = channel


class ConfigMismatch(LogError):
    """A channel is there with another setting than was asked for, or one that is fixed for its life would change. Take
    it as it is, alter it, or make a new channel."""

    code = "config_mismatch"

    def __init__(self, *, channel: str, setting: str) -> None:
        super().__init__(
            f"{setting} of channel {channel!r} is another one; take it as it is, alter it, or create a new channel "
            "(persistent is fixed for its life)"
        )
        self.channel = channel
        self.setting = setting


# --- producers, tokens, grants ---------------------------------------------------------------------


class UnknownProducer(LogError):
    """The catalog has no such producer. Open it first."""

    code = "unknown_producer"

    def __init__(self, *, producer: int) -> None:
        super().__init__(f"there is no producer {producer}; open it first")
        self.producer = producer


class ProducerOwned(LogError):
    """The name of this producer belongs to somebody else. Choose another name."""

    code = "producer_owned"

    def __init__(self, *, name: str, owner: str) -> None:
        super().__init__(f"producer {name!r} belongs to {owner}; choose another name")
        self.name = name
        self.owner = owner


class StaleProducerEpoch(LogError):
    """The producer was opened again since, so an older one is fenced. Open it again to go on."""

    code = "stale_producer_epoch"

    def __init__(self, *, producer: int, expected: int, current: int) -> None:
        super().__init__(f"producer {producer} is at epoch {current}, not {expected}; open it again to go on")
        self.producer = producer
        self.expected = expected
        self.current = current


class TokenExists(LogError):
    """A token of this name or this secret exists. Revoked ones count until they are removed."""

    code = "token_exists"

    def __init__(self, *, token: str) -> None:
        super().__init__(f"token {token!r} exists; remove it first, or choose another name and secret")
        self.token = token


class UnknownToken(LogError):
    """The catalog has no token of this name."""

    code = "unknown_token"

    def __init__(self, *, token: str) -> None:
        super().__init__(f"there is no token {token!r}; list the tokens to see their names")
        self.token = token


class UnknownGrant(LogError):
    """Nobody was granted this, so it cannot be taken back."""

    code = "unknown_grant"

    def __init__(self, *, principal: str, scope: str, channels: str) -> None:
        super().__init__(f"{principal} has no grant of {scope} on {channels}; list the grants to see them")
        self.principal = principal
        self.scope = scope
        self.channels = channels
