"""The durable state of this node's disk, reported to the other members and compared with what they remember.

A process that opens metadata is on *probation*: it takes no part in the group (it neither sends, receives nor votes)
until every other voter that it knows has answered, or `PROBATION_MS` have passed, since one may be away for good. A
folder that knows no other voter asks the configured peers: it may have been copied before there were any. If a member
remembers a newer state of this disk than it holds, the folder is set aside: it is an older copy of itself (NC3).

SD1  A standing contains durable state only. It is sent with every new term, every `TELL_MS`, and when a link comes up;
     never while the present term is not durable: the log may have been cut for it already, and a shorter log in the
     older term would look like an older copy.
SD2  An answer counts for the process that asked. Only an answer during probation sets the folder aside. Later the
     member may have written more, and the group counts on it: the problem is reported (`doubt`), and an operator
     decides.
SD3  A single voter stands for election as soon as it takes part, not while it is on probation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidelog.cluster.metadata.member import MetadataMember
from tidelog.core.catalog import NodeRecord, RegisterNode, decode_change
from tidelog.core.member_memory import MemberMemory
from tidelog.core.membership import node_of
from tidelog.core.node_messages import Judged, Standing
from tidelog.core.raft import Entry, EntryKind
from tidelog.storage.raft.storage import RaftStorage

PROBATION_MS: Final = 1_000
ASK_MS: Final = 100
TELL_MS: Final = 1_000


class MemberStanding:
    def __init__(self, *, process: str) -> None:
        self.memory = MemberMemory()
        self.on_probation = False
        self.problem = ""
        """Evidence of peers against the open folder."""
        self.doubt = ""
        """The same, reported when the folder had been accepted."""
        self._process = process
        self._sequence = 0
        self._unanswered: set[str] = set()
        self._until_ms = self._due_ms = 0
        self._told: tuple[int, int, int] = (0, 0, 0)
        self._logged: dict[str, RegisterNode] = {}
        """Registrations in the log when it was opened; the catalog knows those that are committed."""

    def begin(
        self, member: MetadataMember, entries: Iterable[Entry], now_ms: int, *, peers: Iterable[str] = ()
    ) -> None:
        """Metadata was opened, or made: a folder without other members to ask is accepted.

        `peers` are asked where the folder knows no other voter; none for a folder that was just made.
        """
        for change in (decode_change(entry.data) for entry in entries if entry.kind is EntryKind.CHANGE):
            # A process that registers has written its incarnation, whether the entry is committed or not.
            if isinstance(change, RegisterNode):
                self._logged[change.node] = change
        voters = {node_of(voter) for voter in member.raft.members.voters}
        self._unanswered = (voters - {node_of(member.member)} or set(peers)) - {node_of(member.member)}
        self.on_probation = bool(self._unanswered)
        self.problem, self.doubt, self._told = "", "", (0, 0, 0)
        self._until_ms, self._due_ms = now_ms + PROBATION_MS, now_ms
        if not self.on_probation:
            self._take_part(member, now_ms)

    def _take_part(self, member: MetadataMember, now_ms: int) -> None:
        self.on_probation = False
        if member.raft.members.voters == (member.member,):
            member.campaign(now_ms)  # SD3

    def wake_at_ms(self) -> int:
        return min(self._due_ms, self._until_ms) if self.on_probation else self._due_ms

    def link_up(self, now_ms: int) -> None:
        self._due_ms = now_ms

    # --- telling -----------------------------------------------------------------------------------------

    def wake(self, member: MetadataMember, storage: RaftStorage, now_ms: int) -> list[tuple[str, Standing]]:
        """The standings to send now, and their receivers."""
        if self.on_probation and now_ms >= self._until_ms:
            self._take_part(member, now_ms)
        raft = member.raft
        committed = min(raft.log.commit, raft.log.stable)
        found = (raft.durable_term, raft.log.stable, committed)
        if now_ms < self._due_ms and found[0] == self._told[0]:
            return []
        if found[0] < raft.term:
            self._due_ms = now_ms + ASK_MS
            return []  # SD1
        if found[1] < self._told[2]:
            self._due_ms = now_ms + ASK_MS
            return []  # a leader's snapshot is being written in place of the log
        peers = sorted({node_of(other) for other in raft.members.all if other != member.member})
        if self.on_probation:
            self._due_ms = now_ms + ASK_MS
            peers = sorted(self._unanswered)
        else:
            self._due_ms = now_ms + TELL_MS  # again although nothing changed: the last one may have been lost
            self._told = found
        if not peers:
            return []
        self._sequence += 1
        standing = Standing(
            member=member.member,
            process=self._process,
            sequence=self._sequence,
            incarnation=storage.incarnation,
            term=found[0],
            last_index=found[1],
            held_index=found[1] if raft.leading is not None and found[0] == raft.term else committed,
            committed=committed,
            asks=self.on_probation,
        )
        return [(peer, standing) for peer in peers]

    # --- judging -----------------------------------------------------------------------------------------

    def judge(self, standing: Standing, member: MetadataMember | None, record: NodeRecord | None) -> Judged | None:
        """The answer for another node; None if it was overtaken."""
        match_index = 0
        if member is not None and member.raft.leading is not None:
            match_index = member.raft.leading.match_of(standing.member)
        node, _, disk = standing.member.partition("/")
        known = [one for one in (record, self._logged.get(node)) if one is not None and one.disk_id == disk]
        registered = max(((one.incarnation, one.process_id) for one in known), default=None)
        problem = self.memory.judge(standing, match_index=match_index, registered=registered)
        if problem is None:
            return None
        return Judged(member=standing.member, process=standing.process, asks=standing.asks, problem=problem)

    def judged(self, peer: str, answer: Judged, member: MetadataMember | None, now_ms: int) -> None:
        if member is None or answer.member != member.member or answer.process != self._process:
            return
        if answer.problem:  # SD2
            words = f"{answer.problem}, as {peer} remembers"
            if answer.asks and self.on_probation:
                self.problem = words
            elif not answer.asks and not self.on_probation:
                self.doubt = self.doubt or words  # one of them is enough: others would repeat each other in the log
            return
        if answer.asks:
            self._unanswered.discard(peer)
            if not self._unanswered and self.on_probation:
                self._take_part(member, now_ms)
                self._due_ms = now_ms
