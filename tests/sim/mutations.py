"""Bugs to plant in the metadata's code: a word of the source is changed, and the simulator must notice."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any, NamedTuple

import pytest

from tidelog.cluster.metadata import member_controller
from tidelog.cluster.metadata.member import MetadataMember
from tidelog.cluster.metadata.member_controller import MemberController
from tidelog.cluster.node import core as node_core
from tidelog.cluster.node.core import NodeCore
from tidelog.cluster.node.node_file import NodeFile
from tidelog.core import membership
from tidelog.core.catalog import RegisterNode, catalog, channel_rules
from tidelog.core.founding import Founding
from tidelog.core.liveness import SessionHolder, Sessions
from tidelog.core.raft.leading import RaftLeading
from tidelog.core.raft.log import RaftLog
from tidelog.core.raft.members import Members
from tidelog.core.raft.raft import Raft
from tidelog.core.raft.receiving import SnapshotReceiver
from tidelog.storage.raft import opening as raft_opening
from tidelog.storage.raft.files import MarkFile
from tidelog.storage.raft.storage import RaftStorage


class Edit(NamedTuple):
    """In the source of `owner.name`, or of what stands under `name` in a table, `old` becomes `new`."""

    owner: Any
    name: Any
    old: str
    new: str


def plant(monkeypatch: pytest.MonkeyPatch, *edits: Edit) -> None:
    """Change the code as told. A word that is no longer there fails the test: the bug would not be planted."""
    for first in {(id(edit.owner), edit.name): edit for edit in edits}.values():
        owner, name = first.owner, first.name
        function = owner[name] if isinstance(owner, dict) else inspect.getattr_static(owner, name)
        is_property = isinstance(function, property)
        if is_property:
            function = function.fget
        source = textwrap.dedent(inspect.getsource(function))
        for edit in edits:
            if edit.owner is owner and edit.name == name:
                count = source.count(edit.old)
                assert count == 1, f"{name} holds {edit.old!r} {count} times; write this mutation anew"
                source = source.replace(edit.old, edit.new)
        scope: dict[str, Any] = {}
        code = compile("from __future__ import annotations\n" + source, f"<{name}, mutated>", "exec")
        exec(code, function.__globals__, scope)
        if isinstance(owner, dict):
            monkeypatch.setitem(owner, name, scope[function.__name__])
        else:
            monkeypatch.setattr(owner, name, scope[name])


MUTATIONS: dict[str, tuple[Edit, ...]] = {
    "vote not persisted": (
        Edit(
            RaftStorage,
            "_write_hard_state",
            "write_hard_state(self._disk, self._folder, hard_state)",
            "write_hard_state(self._disk, self._folder, HardState(hard_state.term, None))",
        ),
    ),
    "term not persisted": (
        Edit(RaftStorage, "_write_hard_state", "write_hard_state(self._disk, self._folder, hard_state)", "pass"),
    ),
    "vote told before it is durable": (
        Edit(Raft, "_on_vote_request", "self._outbox.send_after(sender, answer)", "self._outbox.send(sender, answer)"),
        Edit(Raft, "ready", "elif self._hard_stable != hard_state:", "elif False:"),
    ),
    "acked tail lost in a crash": (
        Edit(RaftStorage, "_append", "log.commit(now_us)", "log.flush(now_us); log.note_durable(log.log_end)"),
    ),
    "append answered before it is durable": (
        Edit(
            Raft,
            "_accept",
            "self._outbox.send_after(sender, AppendAnswer(term=self.term, round=round_, accepted=True, index=index))",
            "self._outbox.send(sender, AppendAnswer(term=self.term, round=round_, accepted=True, index=index))",
        ),
    ),
    "entries of older terms committed by counting": (
        Edit(RaftLeading, "advance_commit", "and log.term_at(index) == self.term", ""),
    ),
    "leader counts itself before its write": (Edit(RaftLeading, "_match", "self._log.stable", "self._log.last_index"),),
    "read without a round": (
        Edit(
            RaftLeading,
            "_start_reads",
            "self._reads.append((token, self._log.commit, self._round))",
            "self._outbox.reads.append(ReadReady(token, self._log.commit))",
        ),
    ),
    "read before an entry of the own term is committed": (
        Edit(RaftLeading, "_start_reads", "or not self.has_committed", ""),
    ),
    "read served before it is applied": (
        Edit(MetadataMember, "_finish_reads", "if pair[0] <= self._applied_index", "if True"),
        Edit(MetadataMember, "_finish_reads", "if pair[0] > self._applied_index", "if False"),
    ),
    "two membership changes at once": (
        Edit(RaftLeading, "propose_members", "if log.members_index > log.commit:", "if False:"),
        Edit(member_controller, "next_step", "or raft.log.members_index > raft.log.commit", ""),
    ),
    "learner counted as a voter": (Edit(Members, "agreed", "for voter in self.voters)", "for voter in self.all)"),),
    "log not cut where it differs": (
        Edit(RaftLog, "accept", "self.term_at(entry.index) == entry.term", "self.term_at(entry.index) is not None"),
    ),
    "commit above what agrees": (Edit(Raft, "_on_append", "min(message.commit, last_index)", "message.commit"),),
    "vote for a log that lacks entries": (
        Edit(RaftLog, "is_at_least", "(last_term, last_index) >= (self.last_term, self.last_index)", "True"),
    ),
    "vote given twice": (Edit(Raft, "_on_vote_request", "self.vote is None and self.leader is None", "True"),),
    "snapshot over a newer commit": (
        Edit(Raft, "_on_snapshot_chunk", "if head.index <= log.commit:", "if False:"),
        Edit(Raft, "_on_snapshot_chunk", "if log.term_at(head.index) == head.term:", "if False:"),
        Edit(RaftLog, "restore", 'assert snapshot.head.index > self.commit, "G2"', "pass"),
    ),
    "snapshot not checked": (Edit(SnapshotReceiver, "receive", "if zlib.crc32(data) == chunk.checksum else None", ""),),
    "snapshot with an older membership": (
        Edit(MetadataMember, "_due_snapshot", "log.members_at(index)", "log.members_at(log.base_index)"),
    ),
    "damaged log taken for a torn one": (
        Edit(raft_opening, "_open_entries", "known_synced_end=synced_end", "known_synced_end=0"),
        Edit(raft_opening, "_open_entries", "if not damaged and log.log_end >= synced_end:", "if True:"),
        Edit(
            raft_opening,
            "_read_entries",
            "raise MetadataDamaged(path=log.folder, problem=str(error)) from error",
            "return",
        ),
    ),
    "end of the log not marked": (Edit(MarkFile, "note", "self._file.write_at(", "(lambda *_: None)("),),
    "wiped disk keeps its name": (
        Edit(NodeCore, "_seek", "self._rng.randbytes(8).hex()", 'self.node.encode().hex().ljust(16, "0")'),
    ),
    "cluster founded before all have answered": (Edit(Founding, "decide", "if silent:", "if False:"),),
    "quarantine deleted": (
        Edit(node_core, "set_aside", "disk.sync_folder(to)", "disk.remove_folder(target); disk.sync_folder(to)"),
    ),
    "removed node stays a member": (Edit(membership, "_must_go", "return True  #", "return False  #"),),
    "session believed too long": (
        Edit(SessionHolder, "receive", "self._valid_until_ms = until_ms", "self._valid_until_ms = until_ms + 1_000"),
    ),
    "session judged without the proof's age": (
        Edit(SessionHolder, "receive", "confirmed_ago_ms=answer.confirmed_ago_ms", "confirmed_ago_ms=0"),
    ),
    "new leader gives no time": (Edit(Sessions, "leader_since", "now_ms + self._config.session_timeout_ms", "now_ms"),),
    "fence ignored": (
        Edit(MemberController, "renew", "or record.state is not NodeState.ACTIVE", ""),
        Edit(Sessions, "renew", "session is not None and session.is_over(incarnation)", "False"),
    ),
    "incarnation not written down": (Edit(NodeFile, "raise_incarnation", "self._write()", "pass"),),
    "incarnation of the past let in": (
        Edit(catalog._RULES, RegisterNode, "change.incarnation <= record.incarnation", "False"),
    ),
    "channel epoch not compared": (
        Edit(channel_rules, "channel_at", "channel.channel_epoch != expected_channel_epoch", "False"),
    ),
    "entry skipped": (
        Edit(
            MetadataMember,
            "_apply",
            "if entry.kind is EntryKind.CHANGE:",
            'if entry.kind is EntryKind.CHANGE and (entry.index % 9 or self.member < "n2"):',
        ),
    ),
    "lost change told as done": (Edit(MetadataMember, "_apply", "if term != entry.term:", "if False:"),),
    "lost change forgotten": (
        Edit(
            MetadataMember,
            "_await",
            "self._places.setdefault(place.index, {})[place.term] = token",
            "self._places[place.index] = {place.term: token}",
        ),
    ),
    "lost registration not forgotten": (Edit(MemberController, "_begin", "self._own.clear()", "pass"),),
    "removed node hears of no leader": (
        Edit(NodeCore, "_register", "self.leader or self._leader_hint", "self.leader"),
    ),
    "link that was up before its node was known": (
        Edit(NodeCore, "_follow_nodes", "and peer in self._links", "and False"),
    ),
    "message of a term that is not durable": (
        Edit(Raft, "ready", "elif self._hard_stable != hard_state:", "elif False:"),
    ),
    "answer of a term that is over": (Edit(MetadataMember, "written", " if sent.message.term >= self.raft.term", ""),),
    "write of a cut log counted": (
        Edit(Raft, "_distrust_writes", "writing.index = min(writing.index, max(0, from_index - 1))", "pass"),
    ),
}
