"""Refusals of channels: who leads, who may write, and what a role may become."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.errors.base import LogError


class InvalidTransition(LogError):
    """No cause allows this change of role. See the table in docs/protocols/replication.md."""

    code = "invalid_transition"

    def __init__(self, *, channel: str, before: str, after: str) -> None:
        super().__init__(f"channel {channel!r}: no way leads from {before} to {after}; go by the roles between")
        self.channel = channel
        self.before = before
        self.after = after


class WrongCause(LogError):
    """This change of role exists, but not for this cause."""

    code = "wrong_cause"

    def __init__(self, *, channel: str, before: str, after: str, cause: str) -> None:
        super().__init__(f"channel {channel!r}: {cause} does not lead from {before} to {after}; name the true cause")
        self.channel = channel
        self.before = before
        self.after = after
        self.cause = cause


# --- writing ---------------------------------------------------------------------------------------


class NotChannelLeader(LogError):
    """Another node leads this channel, or nobody does at the moment. Nothing was written; go to the leader it names."""

    code = "not_channel_leader"
    retriable = True

    def __init__(self, *, channel: str, leader: str | None, address: str = "", leader_epoch: int = 0) -> None:
        where = f"{leader} leads channel {channel!r}; go there" if leader else f"channel {channel!r} has no leader now"
        super().__init__(f"{where}, or ask again in a moment")
        self.channel = channel
        self.leader = leader
        self.address = address
        self.leader_epoch = leader_epoch


class LeadershipLost(LogError):
    """The leader changed before the record was committed; it may be in the log or not. A producer with an id may send
    it again."""

    code = "leadership_lost"
    retriable = True
    definite = False

    def __init__(self, *, channel: str, leader_epoch: int) -> None:
        super().__init__(
            f"leader epoch {leader_epoch} of channel {channel!r} ended before the record was committed; "
            "send it again under the same producer and seq"
        )
        self.channel = channel
        self.leader_epoch = leader_epoch


class NotEnoughReplicas(LogError):
    """Fewer in-sync replicas than min_isr: nothing can be committed, so nothing is taken (R4)."""

    code = "not_enough_replicas"
    retriable = True

    def __init__(self, *, channel: str, isr: int, min_isr: int) -> None:
        super().__init__(
            f"channel {channel!r} has {isr} in-sync replicas and needs {min_isr}; bring nodes back, or lower min_isr"
        )
        self.channel = channel
        self.isr = isr
        self.min_isr = min_isr


class ChannelPaused(LogError):
    """The channel is paused. Resume it first."""

    code = "channel_paused"

    def __init__(self, *, channel: str) -> None:
        super().__init__(f"channel {channel!r} is paused; resume it with `tidelog channel resume`")
        self.channel = channel


class ChannelReadonly(LogError):
    """The channel takes no records. Make it writable first."""

    code = "channel_readonly"

    def __init__(self, *, channel: str) -> None:
        super().__init__(f"channel {channel!r} is read-only; make it writable with `tidelog channel readonly --off`")
        self.channel = channel


class OffsetConflict(LogError):
    """The record would not get the offset that its producer expects: somebody else wrote first."""

    code = "offset_conflict"

    def __init__(self, *, channel: str, expected: int, actual: int) -> None:
        super().__init__(f"channel {channel!r} ends at {actual}, not at {expected}; read what is new and decide again")
        self.channel = channel
        self.expected = expected
        self.actual = actual


class OutOfSequence(LogError):
    """A producer's records must follow each other without a gap. Nothing was written."""

    code = "out_of_sequence"

    def __init__(self, *, channel: str, expected: int, got: int) -> None:
        super().__init__(
            f"channel {channel!r} expects seq {expected} of this producer and got {got}; first send what precedes it"
        )
        self.channel = channel
        self.expected = expected
        self.got = got


class ProducerFenced(LogError):
    """A newer opening of this producer writes now; this one is over."""

    code = "producer_fenced"

    def __init__(self, *, channel: str, epoch: int, newest: int) -> None:
        super().__init__(
            f"this producer of channel {channel!r} was opened again (epoch {newest}, this one is {epoch}); open it anew"
        )
        self.channel = channel
        self.epoch = epoch
        self.newest = newest


class ProducerNotYetKnown(LogError):
    """The leader has not heard of this opening of the producer. Nothing was written; send it again in a moment.

    If it lasts, the producer was closed: open it again.
    """

    code = "producer_not_yet_known"
    retriable = True

    def __init__(self, *, channel: str, producer: int, epoch: int) -> None:
        super().__init__(
            f"the leader of channel {channel!r} does not know epoch {epoch} of producer {producer}; "
            "send again in a moment, or open the producer again"
        )
        self.channel = channel
        self.producer = producer
        self.epoch = epoch


class TooManyInFlight(LogError):
    """More waits to be committed than a channel or a link may keep. Wait for answers, then go on."""

    code = "too_many_in_flight"
    retriable = True

    def __init__(self, *, waiting_bytes: int, bytes_max: int) -> None:
        super().__init__(f"{waiting_bytes} bytes wait to be committed, at most {bytes_max} may; wait for answers")
        self.waiting_bytes = waiting_bytes
        self.bytes_max = bytes_max


# --- reading ---------------------------------------------------------------------------------------


class ReplicaBehind(LogError):
    """This replica does not know the leader epoch or the offset yet. Ask another, or the leader."""

    code = "replica_behind"
    retriable = True

    def __init__(self, *, channel: str, leader_epoch: int, committed_end: int) -> None:
        super().__init__(
            f"this replica of channel {channel!r} knows it up to {committed_end} in epoch {leader_epoch}; "
            "ask the leader, or again in a moment"
        )
        self.channel = channel
        self.leader_epoch = leader_epoch
        self.committed_end = committed_end


class NoReplicaHere(LogError):
    """This node holds no replica of the channel. Ask one of those it names."""

    code = "no_replica_here"
    retriable = True

    def __init__(self, *, channel: str, replicas: Sequence[str]) -> None:
        super().__init__(f"no replica of channel {channel!r} here; ask {', '.join(replicas) or 'again later'}")
        self.channel = channel
        self.replicas = list(replicas)


# --- whoever asks ----------------------------------------------------------------------------------


class AccessDenied(LogError):
    """The principal has no grant for this. Nothing was done; an operator gives the grant."""

    code = "access_denied"

    def __init__(self, *, principal: str, scope: str, channel: str) -> None:
        super().__init__(f"{principal} may not {scope} on channel {channel!r}; let an operator grant it")
        self.principal = principal
        self.scope = scope
        self.channel = channel


class ChannelDeleted(LogError):
    """The channel of this id was deleted. One of the same name is another channel: look it up again."""

    code = "channel_deleted"

    def __init__(self, *, channel_id: int) -> None:
        super().__init__(f"channel id {channel_id} was deleted; look the channel up by its name again")
        self.channel_id = channel_id


class TooManyWaits(LogError):
    """As many fetches of one link wait for records as may. Ask again without waiting, or for fewer channels."""

    code = "too_many_waits"
    retriable = True

    def __init__(self, *, waits_max: int) -> None:
        super().__init__(f"{waits_max} fetches wait on this link and no more may; end some, or ask without waiting")
        self.waits_max = waits_max


class PlacementRefused(LogError):
    """No node, or not every node that was named, can take a replica of the channel. Says for each node why not."""

    code = "placement_refused"
    retriable = True

    def __init__(self, *, channel: str, problems: Sequence[str]) -> None:
        super().__init__(
            f"channel {channel!r} cannot be placed: {'; '.join(problems)}; bring nodes back or change the placement"
        )
        self.channel = channel
        self.problems = list(problems)


class FactorNotMet(LogError):
    """Fewer nodes than the replication factor can take the channel, and whoever opens it relies on the factor."""

    code = "factor_not_met"
    retriable = True

    def __init__(self, *, channel: str, factor: int, nodes: Sequence[str], problems: Sequence[str]) -> None:
        can = ", ".join(nodes) or "none"
        why = f" ({'; '.join(problems)})" if problems else ""
        super().__init__(
            f"channel {channel!r} wants {factor} replicas and {len(nodes)} of the nodes can hold it: {can}{why};"
            " start more nodes, or open it with a smaller factor"
        )
        self.channel = channel
        self.factor = factor
        self.nodes = list(nodes)
        self.problems = list(problems)
