"""Errors of channels: leadership, writing, reading, access, placement and changes of role."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.errors.base import LogError


class InvalidTransition(LogError):
    """No event leads from one of these roles to the other. See the table in docs/protocols/replication.md."""

    template = (
        "channel {channel!r}: the role cannot change from {before} to {after}; change it step by step through the "
        "roles between"
    )
    channel: str
    before: str
    after: str


class WrongCause(LogError):
    """This change of role is possible, but not for this cause."""

    template = "channel {channel!r}: {cause} does not lead from {before} to {after}; give the cause that does"
    channel: str
    before: str
    after: str
    cause: str


# --- writing ---------------------------------------------------------------------------------------


class NotChannelLeader(LogError):
    """Another node leads this channel, or none does at the moment. Nothing was written; send the request to the leader
    that the error names."""

    retriable = True
    channel: str
    leader: str | None
    address: str = ""
    leader_epoch: int = 0

    def _message(self) -> str:
        if self.leader:
            return f"{self.leader} leads channel {self.channel!r}; go there, or ask again in a moment"
        return f"channel {self.channel!r} has no leader now; ask again in a moment"


class LeadershipLost(LogError):
    """The leader changed before the record was committed; it may or may not be in the log. A producer with
    an id may send it again."""

    retriable = True
    definite = False
    template = (
        "leader epoch {leader_epoch} of channel {channel!r} ended before the record was committed; send it again "
        "under the same producer and seq"
    )
    channel: str
    leader_epoch: int


class NotEnoughReplicas(LogError):
    """Fewer in-sync replicas than min_isr: nothing can be committed, so no record is accepted (R4)."""

    retriable = True
    template = "channel {channel!r} has {isr} in-sync replicas and needs {min_isr}; bring nodes back, or lower min_isr"
    channel: str
    isr: int
    min_isr: int


class ChannelPaused(LogError):
    """The channel is paused. Resume it first."""

    template = "channel {channel!r} is paused; resume it with `tidelog channel resume`"
    channel: str


class ChannelReadonly(LogError):
    """The channel is read-only. Make it writable first."""

    template = "channel {channel!r} is read-only; make it writable with `tidelog channel readonly --off`"
    channel: str


class OffsetConflict(LogError):
    """The record would not get the offset that its producer expects, because another producer wrote first."""

    template = "channel {channel!r} ends at {actual}, not at {expected}; read what is new and decide again"
    channel: str
    expected: int
    actual: int


class OutOfSequence(LogError):
    """A producer's records must follow each other without a gap. Nothing was written."""

    template = "channel {channel!r} expects seq {expected} of this producer and got {got}; first send what precedes it"
    channel: str
    expected: int
    got: int


class ProducerFenced(LogError):
    """This producer was opened again elsewhere; only the newest opening may write."""

    template = (
        "this producer of channel {channel!r} was opened again (epoch {newest}, this one is {epoch}); open it again "
        "to write"
    )
    channel: str
    epoch: int
    newest: int


class ProducerNotYetKnown(LogError):
    """The leader does not know this epoch of the producer yet. Nothing was written; send the record again in a moment.

    If it lasts, the producer was closed: open it again.
    """

    retriable = True
    template = (
        "the leader of channel {channel!r} does not know epoch {epoch} of producer {producer}; send again in a "
        "moment, or open the producer again"
    )
    channel: str
    producer: int
    epoch: int


class TooManyInFlight(LogError):
    """The limit of uncommitted bytes of a channel or a link is reached. Wait for answers, then send again."""

    retriable = True
    template = "{waiting_bytes} bytes wait to be committed, at most {bytes_max} may; wait for answers"
    waiting_bytes: int
    bytes_max: int


# --- reading ---------------------------------------------------------------------------------------


class ReplicaBehind(LogError):
    """This replica does not know the leader epoch or the offset yet. Ask another replica, or the leader."""

    retriable = True
    template = (
        "this replica of channel {channel!r} knows it up to {committed_end} in epoch {leader_epoch}; ask the leader, "
        "or again in a moment"
    )
    channel: str
    leader_epoch: int
    committed_end: int


class NoReplicaHere(LogError):
    """This node holds no replica of the channel. Ask one of the nodes that the error names."""

    retriable = True
    channel: str
    replicas: Sequence[str]

    def _message(self) -> str:
        return f"no replica of channel {self.channel!r} here; ask {', '.join(self.replicas) or 'again later'}"


# --- access and placement --------------------------------------------------------------------------


class AccessDenied(LogError):
    """The principal has no grant for this. Nothing was done; an operator can grant it."""

    template = "{principal} may not {scope} on channel {channel!r}; let an operator grant it"
    principal: str
    scope: str
    channel: str


class ChannelDeleted(LogError):
    """The channel of this id was deleted. A channel of the same name is another one: look it up by name again."""

    template = "channel id {channel_id} was deleted; look the channel up by its name again"
    channel_id: int


class TooManyWaits(LogError):
    """The limit of waiting fetches on one link is reached. Fetch again without waiting, or from fewer channels."""

    retriable = True
    template = "{waits_max} fetches wait on this link and no more may; end some, or ask without waiting"
    waits_max: int


class PlacementRefused(LogError):
    """No node, or not every node that was named, can take a replica of the channel. The message says why."""

    retriable = True
    channel: str
    problems: Sequence[str]

    def _message(self) -> str:
        problems = "; ".join(self.problems)
        return f"channel {self.channel!r} cannot be placed: {problems}; bring nodes back or change the placement"


class FactorNotMet(LogError):
    """Fewer nodes than the replication factor can hold the channel, and it was opened on condition that all replicas
    are placed."""

    retriable = True
    channel: str
    factor: int
    nodes: Sequence[str]
    problems: Sequence[str]

    def _message(self) -> str:
        can = ", ".join(self.nodes) or "none"
        why = f" ({'; '.join(self.problems)})" if self.problems else ""
        return (
            f"channel {self.channel!r} wants {self.factor} replicas and {len(self.nodes)} of the nodes can hold it: "
            f"{can}{why}; start more nodes, or open it with a smaller factor"
        )
