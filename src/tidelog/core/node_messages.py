"""What nodes say to each other about the metadata, free of any wire. Liveness has messages of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidelog.core.catalog import RegisterNode
from tidelog.core.liveness import messages as liveness
from tidelog.core.raft import Message
from tidelog.core.replication.messages import ReplicationMessage


@dataclass(frozen=True, slots=True)
class Who:
    """Tell me which cluster you belong to, and who leads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The answer to `Who`."""

    cluster: bytes
    """Empty for a node without metadata."""
    leader: str | None
    """The node that leads the metadata, as far as it is known."""


@dataclass(frozen=True, slots=True)
class Register:
    """To the metadata leader: take this node in, as a new incarnation."""

    change: RegisterNode


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRefused:
    reason: str
    incarnation: int
    """The highest that the catalog knows of this node: try again above it, if that was the reason."""


@dataclass(frozen=True, slots=True)
class ForMember:
    """A Raft message. Members are disks: what is meant for a disk that is gone must not reach the one in its place."""

    sender: str
    target: str
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a member's disk holds, all of it durable: for the others to remember, and to compare with later."""

    member: str
    process: str
    """Random, once per process."""
    sequence: int
    """Rises with every standing of a process."""
    incarnation: int | None
    """The highest that its folder knows; None in a folder of an earlier version."""
    term: int
    last_index: int
    held_index: int
    """What it will not give up within this term: its own entries as leader, what it knows to be committed otherwise."""
    committed: int
    """What it will never give up."""
    asks: bool
    """The process has done nothing yet and waits for the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The answer to a `Standing`."""

    member: str
    process: str
    asks: bool
    problem: str
    """Why the folder is an older copy of that member's; empty if nothing speaks against it."""


NodeMessage: TypeAlias = (
    Who | Here | Register | RegisterRefused | ForMember | Standing | Judged | liveness.Message | ReplicationMessage
)
