"""Messages between nodes about the metadata. Liveness has messages of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidelog.core.catalog import RegisterNode
from tidelog.core.liveness import messages as liveness
from tidelog.core.raft import Message
from tidelog.core.replication.messages import ReplicationMessage


@dataclass(frozen=True, slots=True)
class Who:
    """Ask a node which cluster it belongs to and which node leads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The answer to `Who`."""

    cluster: bytes
    """Empty for a node without metadata."""
    leader: str | None
    """The node that leads the metadata, as far as it is known."""


@dataclass(frozen=True, slots=True)
class Register:
    """To the metadata leader: register this node with a new incarnation."""

    change: RegisterNode


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRefused:
    reason: str
    incarnation: int
    """The highest incarnation that the catalog knows of this node: try again above it, if that was the reason."""


@dataclass(frozen=True, slots=True)
class ForMember:
    """A Raft message. Members are disks: a message for a disk that is gone must not reach its replacement."""

    sender: str
    target: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The durable state of a member's disk: other members remember it and compare later standings with it."""

    member: str
    process: str
    """Random, once per process."""
    sequence: int
    """Rises with every standing of a process."""
    incarnation: int | None
    """The highest incarnation that its folder knows; None in a folder of an earlier version."""
    term: int
    last_index: int
    held_index: int
    """The entries that it keeps within this term: its own as leader, known committed ones otherwise."""
    committed: int
    """The entries that it keeps for ever."""
    asks: bool
    """The process has done nothing yet and waits for the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The answer to a `Standing`."""

    member: str
    process: str
    asks: bool
    problem: str
    """Why the folder is an older copy of that member's; empty if nothing indicates that."""


NodeMessage: TypeAlias = (
    Who | Here | Register | RegisterRefused | ForMember | Standing | Judged | liveness.Message | ReplicationMessage
)
