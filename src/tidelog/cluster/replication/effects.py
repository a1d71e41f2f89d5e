"""What the parts of a replica want done: messages, storage orders, outcomes, changes of role. Plain values.

`Leading`, `Following`, `ReplicaWitness` and `trouble` decide and put effects into the replica's outbox, as Raft does.
`ChannelReplica` takes them after every input, carries out the changes of its own role, and gives the others to
`Replicas` in their order. Orders of `replication.orders` are effects too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from tidelog.cluster.replication.orders import StorageOrder
from tidelog.core.catalog import Change
from tidelog.core.replication.messages import ReplicationMessage
from tidelog.core.replication.roles import Cause, Role
from tidelog.errors import LogError


@dataclass(frozen=True, slots=True)
class SendToNode:
    peer: str
    message: ReplicationMessage


@dataclass(frozen=True, slots=True)
class TellMetadata:
    """A message to the metadata leader; lost if none is known, so the sender repeats it."""

    message: ReplicationMessage


@dataclass(frozen=True, slots=True)
class ProposeToMetadata:
    """A change for the metadata leader to propose; repeated until the catalog shows its outcome."""

    change: Change


@dataclass(frozen=True, slots=True)
class ProduceOutcome:
    """The outcome of a produced block, once for every token."""

    token: Any
    first_offset: int
    error: LogError | None


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call the replica's `wake` at this time, or earlier."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class LogLine:
    text: str


@dataclass(frozen=True, slots=True)
class ReplicaMoved:
    """The committed end, the log start or the role changed: readers look again."""


@dataclass(frozen=True, slots=True)
class ServeSoon:
    """Call the replica's `serve` before the next poll ends: there may be records for its followers."""


@dataclass(frozen=True, slots=True)
class TailGrew:
    """The replica holds more blocks in memory: all tails of the node together stay within a bound."""


@dataclass(frozen=True, slots=True)
class TurnRole:
    role: Role
    cause: Cause


@dataclass(frozen=True, slots=True)
class ResignLeading:
    """This node cannot lead the channel, and says why."""

    reason: str


@dataclass(frozen=True, slots=True)
class WithdrawReplica:
    """The copy is given up for want of capacity."""

    error: LogError


Effect: TypeAlias = (
    SendToNode
    | TellMetadata
    | ProposeToMetadata
    | ProduceOutcome
    | WakeAt
    | LogLine
    | ReplicaMoved
    | ServeSoon
    | TailGrew
    | StorageOrder
)
RoleEffect: TypeAlias = TurnRole | ResignLeading | WithdrawReplica

_MOVED, _SERVE_SOON, _TAIL_GREW = ReplicaMoved(), ServeSoon(), TailGrew()


class ReplicaOutbox:
    """Effects in the order in which they were decided."""

    __slots__ = ("_effects", "_put")

    def __init__(self) -> None:
        self._effects: list[Effect | RoleEffect] = []
        self._put = self._effects.append

    def __bool__(self) -> bool:
        return bool(self._effects)

    def take(self) -> list[Effect | RoleEffect]:
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def send(self, peer: str, message: ReplicationMessage) -> None:
        self._put(SendToNode(peer, message))

    def tell_metadata(self, message: ReplicationMessage) -> None:
        self._put(TellMetadata(message))

    def propose(self, change: Change) -> None:
        self._put(ProposeToMetadata(change))

    def produced(self, token: Any, first_offset: int, error: LogError | None) -> None:
        self._put(ProduceOutcome(token, first_offset, error))

    def wake_at(self, at_ms: int) -> None:
        self._put(WakeAt(at_ms))

    def say(self, what: str, **facts: Any) -> None:
        self._put(LogLine(line_of(what, facts)))

    def order(self, order: StorageOrder) -> None:
        self._put(order)

    def moved(self) -> None:
        self._put(_MOVED)

    def serve_soon(self) -> None:
        self._put(_SERVE_SOON)

    def tail_grew(self) -> None:
        self._put(_TAIL_GREW)

    def turn(self, role: Role, cause: Cause) -> None:
        self._put(TurnRole(role, cause))

    def resign(self, reason: str) -> None:
        self._put(ResignLeading(reason))

    def withdraw(self, error: LogError) -> None:
        self._put(WithdrawReplica(error))


class Settling(Protocol):
    out: ReplicaOutbox

    def settle(self) -> None:
        """Carry out what is in the outbox."""


S = TypeVar("S", bound=Settling)
P = ParamSpec("P")
T = TypeVar("T")


def settles(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """An input of a replica: its effects are carried out before it returns, also if it raises."""

    @wraps(method)
    def settled(self: S, /, *arguments: P.args, **named: P.kwargs) -> T:
        try:
            return method(self, *arguments, **named)
        finally:
            if self.out:
                self.settle()

    return settled


def line_of(what: str, facts: dict[str, Any]) -> str:
    return " ".join([what, *(f"{name}={value}" for name, value in facts.items())])
