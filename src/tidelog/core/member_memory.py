"""What a node remembers of other members of the metadata group, so that a folder restored from an old copy is noticed.

A member is a disk, and its durable state never goes back: its term does not fall, a committed entry stays, the
incarnation it was registered under stays written. Members send each other their standing, computed from durable state.
A process that opens a folder asks the others before it does anything; a member that remembers a newer state than the
folder holds answers so, and the folder is not used as that member any more.

MR1  No folder is rejected wrongly: a standing is compared only with durable state that the same disk reported before it
     was opened again. Messages of the process itself, and messages that were overtaken, are not evidence against it.
MR2  What is remembered is bounded: members are few, and of each the last few processes count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidelog.core.node_messages import Standing
from tidelog.core.raft import Message, VoteAnswer, VoteRequest

_PROCESSES_MAX: Final = 8
_MEMBERS_MAX: Final = 256


@dataclass(slots=True)
class _Memory:
    term: int = 0
    held_index: int = 0
    """What it held durably in that term as its leader, or as agreed with its leader."""
    committed: int = 0
    heard_term: int = 0
    """The newest term in any message of the group, which may be newer than its last standing."""


class MemberMemory:
    def __init__(self) -> None:
        self._members: dict[str, _Memory] = {}
        self._sequences: dict[str, dict[str, int]] = {}

    def heard(self, member: str, message: Message) -> None:
        """A message of the group: its term was durable when it was sent, unless it is a pre-vote."""
        if isinstance(message, VoteRequest | VoteAnswer) and message.pre:
            return
        memory = self._members.get(member)
        if memory is None and len(self._members) < _MEMBERS_MAX:
            memory = self._members[member] = _Memory()
        if memory is not None and message.term > memory.heard_term:
            memory.heard_term = message.term

    def judge(self, standing: Standing, *, match_index: int, registered: tuple[int, str] | None) -> str | None:
        """What is wrong with a member's standing: empty if nothing, None for a standing that was overtaken.

        `match_index` is how far it agrees with a leader here, 0 without one. `registered` is the incarnation under
        which the catalog knows its disk, and the process that registered it.
        """
        if standing.member not in self._members and len(self._members) >= _MEMBERS_MAX:
            return ""  # MR2
        sequences = self._sequences.setdefault(standing.member, {})
        if standing.sequence <= sequences.get(standing.process, 0):
            return None
        sequences.pop(standing.process, None)
        sequences[standing.process] = standing.sequence
        if len(sequences) > _PROCESSES_MAX:
            del sequences[next(iter(sequences))]
        memory = self._members.setdefault(standing.member, _Memory())
        problem = self._problem(memory, standing, match_index, registered)
        if not problem:
            self._learn(memory, standing)
        return problem

    def _problem(
        self, memory: _Memory, standing: Standing, match_index: int, registered: tuple[int, str] | None
    ) -> str:
        # A process that asks has sent nothing to the group yet, so every message heard was sent by an earlier process
        # (MR1).
        term = max(memory.term, memory.heard_term) if standing.asks else memory.term
        if standing.term < term:
            return f"it knows of term {standing.term}, and has spoken in term {term} before"
        held = memory.held_index if standing.term == memory.term else 0
        held = max(held, memory.committed, match_index if standing.asks else 0)
        if standing.last_index < held:
            return f"it holds entries up to {standing.last_index}, and held entry {held} before"
        if registered is None or standing.incarnation is None or registered[1] == standing.process:
            return ""
        if standing.incarnation < registered[0]:
            return f"it knows of incarnation {standing.incarnation}, and was registered as {registered[0]} before"
        return ""

    def _learn(self, memory: _Memory, standing: Standing) -> None:
        if standing.term > memory.term:
            memory.term, memory.held_index = standing.term, 0
        if standing.term == memory.term:
            memory.held_index = max(memory.held_index, standing.held_index)
        memory.committed = max(memory.committed, standing.committed)
