"""The role of a node in a channel, and every transition between roles: seed 001's table, checked by cause.

A transition names its cause. A transition that no cause allows is `InvalidTransition`; one that this cause does not
allow is `WrongCause`. Nothing changes then. No code outside this table decides roles.

RO1  Leader is reached from Candidate only, and a Candidate becomes Leader only because the catalog elected it.
RO2  A role always ends in Idle, from where only a placement leads back.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from tidelog.errors import InvalidTransition, WrongCause


class Role(Enum):
    """The number is what seed 001's wire uses."""

    LEADER = 0
    REPLICA = 1
    CANDIDATE = 2
    IDLE = 3


class Cause(Enum):
    CAPABILITY_SELECTED = "capability_selected"
    """Placement put a replica here."""
    MISSED_HEARTBEATS = "missed_heartbeats"
    """The leader was silent for three heartbeats."""
    ELECTION_CALLED = "election_called"
    """The catalog elects although no leader was silent: a first leader, a pinned one that is back."""
    ELECTION_WON = "election_won"
    ELECTION_LOST = "election_lost"
    LEADER_HEARD = "leader_heard"
    """The leader that had been silent was heard before another was elected."""
    PEER_LEADER_OBSERVED = "peer_leader_observed"
    """The catalog has another leader, or this one's epoch is over."""
    GRACEFUL_RELINQUISH = "graceful_relinquish"
    DISK_PRESSURE_WITHDRAW = "disk_pressure_withdraw"
    LEADER_DISK_PRESSURE_WITHDRAW = "leader_disk_pressure_withdraw"
    CANDIDATE_DISK_PRESSURE_WITHDRAW = "candidate_disk_pressure_withdraw"
    CHANNEL_CLOSE = "channel_close"
    """Closed, paused, deleted, or the node stops."""
    PLACEMENT_DESELECTED = "placement_deselected"
    """This node is no longer among the channel's replicas."""


TRANSITIONS: Final[dict[tuple[Role, Role], frozenset[Cause]]] = {
    (Role.IDLE, Role.REPLICA): frozenset({Cause.CAPABILITY_SELECTED}),
    (Role.REPLICA, Role.CANDIDATE): frozenset({Cause.MISSED_HEARTBEATS, Cause.ELECTION_CALLED}),
    (Role.CANDIDATE, Role.LEADER): frozenset({Cause.ELECTION_WON}),
    (Role.CANDIDATE, Role.REPLICA): frozenset({Cause.ELECTION_LOST, Cause.LEADER_HEARD}),
    (Role.LEADER, Role.REPLICA): frozenset({Cause.PEER_LEADER_OBSERVED}),
    (Role.LEADER, Role.IDLE): frozenset(
        {
            Cause.GRACEFUL_RELINQUISH,
            Cause.LEADER_DISK_PRESSURE_WITHDRAW,
            Cause.CHANNEL_CLOSE,
            Cause.PLACEMENT_DESELECTED,
        }
    ),
    (Role.REPLICA, Role.IDLE): frozenset(
        {Cause.DISK_PRESSURE_WITHDRAW, Cause.CHANNEL_CLOSE, Cause.PLACEMENT_DESELECTED}
    ),
    (Role.CANDIDATE, Role.IDLE): frozenset(
        {Cause.CANDIDATE_DISK_PRESSURE_WITHDRAW, Cause.CHANNEL_CLOSE, Cause.PLACEMENT_DESELECTED}
    ),
    (Role.IDLE, Role.IDLE): frozenset({Cause.CHANNEL_CLOSE}),
}

WITHDRAWAL: Final = {
    Role.LEADER: Cause.LEADER_DISK_PRESSURE_WITHDRAW,
    Role.REPLICA: Cause.DISK_PRESSURE_WITHDRAW,
    Role.CANDIDATE: Cause.CANDIDATE_DISK_PRESSURE_WITHDRAW,
}
"""The cause that a full disk is, by role."""


def check_transition(channel: str, before: Role, after: Role, cause: Cause) -> None:
    """Raise unless the table allows it."""
    causes = TRANSITIONS.get((before, after))
    if causes is None:
        raise InvalidTransition(channel=channel, before=before.name.lower(), after=after.name.lower())
    if cause not in causes:
        raise WrongCause(channel=channel, before=before.name.lower(), after=after.name.lower(), cause=cause.value)
