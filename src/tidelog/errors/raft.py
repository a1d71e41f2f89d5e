"""Errors of the metadata group: Raft, its storage, and its membership."""

from __future__ import annotations

from tidelog.errors.base import LogError


class NotLeader(LogError):
    """This member does not lead the metadata group. Ask the leader that the error names, or try again in a moment."""

    retriable = True
    leader: str | None

    def _message(self) -> str:
        if self.leader is None:
            return "no metadata leader is known at the moment; try again"
        return f"{self.leader} leads the metadata; ask it"


class LeadershipMoving(LogError):
    """The leader is transferring its leadership and takes no new changes. Try again in a moment."""

    retriable = True
    template = "the leader is handing over to {target}; try again in a moment"
    target: str


class TooManyProposals(LogError):
    """The leader's limit of uncommitted changes is reached. Try again when some are committed."""

    retriable = True
    template = "{bytes_max} bytes of changes are not committed yet; try again when some are committed"
    bytes_max: int


class TooManyReads(LogError):
    """The leader's limit of reads that wait for its leadership to be confirmed is reached. Try again in a moment."""

    retriable = True
    template = "{reads_max} reads wait for a majority already; try again in a moment"
    reads_max: int


class ProposalTooLarge(LogError):
    """A change exceeds the size limit of an entry. Split it."""

    template = "a change of {size_bytes} bytes is larger than the {bytes_max} allowed; split it"
    size_bytes: int
    bytes_max: int


class MembershipRefused(LogError):
    """A change of the members is not possible, or not now. The message says why."""

    template = "the membership of {member} cannot change: {reason}"
    member: str
    reason: str


class MembershipPending(LogError):
    """Members change one at a time, and another change is not committed yet. Try again when it is."""

    retriable = True
    template = "the members cannot change at the moment: {reason}; try again in a moment"
    reason: str


class ProposalLost(LogError):
    """A newer leader's entry took the place of this change. It had no effect: propose it again."""

    retriable = True
    template = "the change at index {index} of term {term} was replaced by a newer leader; propose it again"
    index: int
    term: int


class MetadataDamaged(LogError):
    """A member's own metadata is damaged, so the member must not vote. Move it aside; the member then fetches the
    metadata from its peers."""

    template = "{path}: {problem}; move it aside and let this node fetch the metadata from its peers"
    path: str
    problem: str


class MetadataPoisoned(LogError):
    """Writing the metadata failed, so what the disk holds is unknown. Restart the node, which reads it again."""

    definite = False
    template = "writing the metadata failed ({problem}); restart the node once the disk is in order"
    problem: str
    is_full: bool = False
    """The disk is full, and nothing else is wrong with it."""


class OutcomeUnknown(LogError):
    """It cannot be determined here whether the change was committed. Read the state before you repeat the request."""

    retriable = True
    definite = False
    template = "it is unknown whether {what} was committed; read the state before asking again"
    what: str
