"""Refusals of the metadata group: Raft, its storage, and the node that runs it."""

from __future__ import annotations

from tidelog.errors.base import LogError


class NotLeader(LogError):
    """This member does not lead the metadata group. Ask the one it names, or try again in a moment."""

    code = "not_leader"
    retriable = True

    def __init__(self, *, leader: str | None) -> None:
        super().__init__(
            "no metadata leader is known at the moment; try again"
            if leader is None
            else f"{leader} leads the metadata; ask it"
        )
        self.leader = leader


class LeadershipMoving(LogError):
    """The leader is handing over and takes nothing new. Try again in a moment."""

    code = "leadership_moving"
    retriable = True

    def __init__(self, *, target: str) -> None:
        super().__init__(f"the leader is handing over to {target}; try again in a moment")
        self.target = target


class TooManyProposals(LogError):
    """More changes wait for their commit than a leader may keep. Try again when some are through."""

    code = "too_many_proposals"
    retriable = True

    def __init__(self, *, bytes_max: int) -> None:
        super().__init__(f"{bytes_max} bytes of changes are not committed yet; try again when some are through")
        self.bytes_max = bytes_max


class TooManyReads(LogError):
    """More reads wait for the leader to be confirmed than it may keep. Try again in a moment."""

    code = "too_many_reads"
    retriable = True

    def __init__(self, *, reads_max: int) -> None:
        super().__init__(f"{reads_max} reads wait for a majority already; try again in a moment")
        self.reads_max = reads_max


class ProposalTooLarge(LogError):
    """A change is larger than an entry may be. Split it."""

    code = "proposal_too_large"

    def __init__(self, *, size_bytes: int, bytes_max: int) -> None:
        super().__init__(f"a change of {size_bytes} bytes is larger than the {bytes_max} allowed; split it")
        self.size_bytes = size_bytes
        self.bytes_max = bytes_max


class MembershipRefused(LogError):
    """A change of the members is not possible, or not now. The message says why."""

    code = "membership_refused"

    def __init__(self, *, member: str, reason: str) -> None:
        super().__init__(f"the membership of {member} cannot change: {reason}")
        self.member = member
        self.reason = reason


class MembershipPending(LogError):
    """Members change one at a time, and another change is not committed yet. Try again when it is."""

    code = "membership_pending"
    retriable = True

    def __init__(self, *, reason: str) -> None:
        super().__init__(f"the members cannot change at the moment: {reason}; try again in a moment")
        self.reason = reason


class ProposalLost(LogError):
    """A newer leader's entry took the place of this change. It had no effect: propose it again."""

    code = "proposal_lost"
    retriable = True

    def __init__(self, *, index: int, term: int) -> None:
        super().__init__(f"the change at index {index} of term {term} was replaced by a newer leader; propose it again")
        self.index = index
        self.term = term


class MetadataDamaged(LogError):
    """A member's own metadata cannot be trusted any more: it must not vote. Set it aside and learn from the peers."""

    code = "metadata_damaged"

    def __init__(self, *, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}; set it aside and let this node learn the metadata from its peers")
        self.path = path
        self.problem = problem


class MetadataPoisoned(LogError):
    """Writing the metadata failed, so what the disk holds is unknown. Restart the node; it reads the disk anew."""

    code = "metadata_poisoned"
    definite = False

    def __init__(self, *, problem: str, is_full: bool = False) -> None:
        super().__init__(f"writing the metadata failed ({problem}); restart the node once the disk is in order")
        self.problem = problem
        self.is_full = is_full
        """For want of space alone."""


class OutcomeUnknown(LogError):
    """Whether it happened can no longer be known here. Look before you ask for it again."""

    code = "outcome_unknown"
    retriable = True
    definite = False

    def __init__(self, *, what: str) -> None:
        super().__init__(f"whether {what} was committed cannot be known here any more; read before asking again")
        self.what = what
