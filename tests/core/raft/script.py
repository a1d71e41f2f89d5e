"""The little language of the transcripts: one command a line, and what the group does because of it.

A line that begins with `>` is a command, with `#` a remark; everything else is what happened. After each command the
group comes to rest: messages arrive in the order they were sent, disks write at once unless they are stalled.

    a -> b    a message, when it arrives         a disk    what a write made durable
    a -x b    a message that was lost            a apply   an entry that reached the state machine
    a role    a new role or term                 a read    how a read ended

`3@2` is the entry at index 3 of term 2.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.core.raft.harness import Net, Packet, describe_members, describe_span
from tidelog.core.raft import (
    AddLearner,
    AppendAnswer,
    AppendEntries,
    Demote,
    MembersChange,
    Promote,
    RaftConfig,
    Remove,
    SnapshotAnswer,
    SnapshotChunk,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from tidelog.errors import LogError

CONFIG = RaftConfig(snapshot_chunk_bytes=16, commit_news_ms=0)
CHANGES: dict[str, Callable[[str], MembersChange]] = {
    "add": AddLearner,
    "promote": Promote,
    "demote": Demote,
    "remove": Remove,
}


def describe(packet: Packet) -> str:
    """A message as a sentence of its sender."""
    match packet.message:
        case VoteRequest() as ask:
            log = f"my log ends at {ask.last_index}@{ask.last_term}"
            if ask.pre:
                return f"could I lead term {ask.term}? {log}"
            return f"vote for me in term {ask.term}; {log}" + (", the leader sent me" if ask.forced else "")
        case VoteAnswer(pre=True) as answer:
            return f"yes, try term {answer.term}" if answer.granted else f"no; it is term {answer.term}"
        case VoteAnswer() as answer:
            return f"my vote in term {answer.term} is yours" if answer.granted else f"no vote in term {answer.term}"
        case AppendEntries() as append:
            what = f"take {describe_span(append.entries)}" if append.entries else "I lead"
            after = f"after {append.previous_index}@{append.previous_term}"
            return f"term {append.term}: {what} {after}; commit {append.commit}, round {append.round}"
        case AppendAnswer(accepted=True) as answer:
            return f"term {answer.term}: hold all up to {answer.index}, round {answer.round}"
        case AppendAnswer(rejected_index=0) as answer:
            return f"it is term {answer.term}"
        case AppendAnswer() as answer:
            place = f"{answer.index}@{answer.hint_term}"
            return f"term {answer.term}: {answer.rejected_index} does not fit, perhaps {place}; round {answer.round}"
        case SnapshotChunk() as chunk:
            span = f"bytes {chunk.offset} to {chunk.offset + len(chunk.data)} of {chunk.size_bytes}"
            return f"term {chunk.term}: snapshot {chunk.head.index}@{chunk.head.term}, {span}"
        case SnapshotAnswer() as answer:
            return f"term {answer.term}: have {answer.received_bytes} bytes of snapshot {answer.index}"
        case TimeoutNow() as handover:
            return f"term {handover.term}: take over now"
    raise AssertionError(f"a message without words: {packet.message}")


class Script:
    """Runs commands and returns what each of them led to."""

    def __init__(self) -> None:
        self._net: Net | None = None

    @property
    def net(self) -> Net:
        assert self._net is not None, "the first command is `group`"
        return self._net

    def run(self, command: str) -> list[str]:
        verb, *words = command.split()
        if verb == "group":
            self._net = Net(words, config=CONFIG)
            self._net.start_trace(describe)
            return []
        if verb == "leader":  # an election that is not what the transcript is about
            member = self.net.elect(words[0])
            self.net.heartbeat(words[0])
            self.net.trace = []
            return [f"{member.name} role    {member.raft.role.value}, term {member.raft.term}"]
        try:
            shown = self._do(verb, words)
            self.net.settle()
        except LogError as refusal:
            shown = [f"refused   {refusal.code}: {refusal}"]
        trace, self.net.trace = self.net.trace, []
        return (trace or []) + shown

    def _do(self, verb: str, words: list[str]) -> list[str]:
        net = self.net
        match verb, words:
            case "timeout", names:
                net.time_out(*names)
            case "heartbeat", [name]:
                net.heartbeat(name)
            case "propose", [name, *text]:
                net[name].raft.propose(" ".join(text).encode())
            case "read", [name, token]:
                net[name].raft.read(int(token))
            case (("add" | "promote" | "demote" | "remove"), [name, member]):
                net[name].raft.propose_members(CHANGES[verb](member))
            case "transfer", [name, target]:
                net[name].raft.transfer(target, net[name].now_ms)
            case "join", [name]:
                net.join(name)
            case "stall", [name]:
                net[name].is_stalled = True
            case "unstall", [name]:
                net[name].is_stalled = False
                net[name].flush()
            case "crash", names:
                net.crash(*names)
            case "restart", names:
                net.restart(*names)
            case "isolate", [name]:
                net.isolate(name)
            case "heal", []:
                net.heal()
            case "compact", [name]:
                head = net[name].snapshot().head
                return [f"{name} keeps   a snapshot {head.index}@{head.term}, {describe_members(head.members)}"]
            case "status", []:
                return [line for name in net.members for line in self._status(name)]
            case _:
                raise AssertionError(f"no such command: {verb} {words}")
        return []

    def _status(self, name: str) -> list[str]:
        member = self.net[name]
        if not member.is_up:
            return [f"{name:<10}down"]
        raft, log = member.raft, member.raft.log
        changes = b" ".join(member.applied).decode() or "nothing"
        return [
            f"{name:<10}{raft.role.value}, term {raft.term}, log ends {log.last_index}@{log.last_term}, "
            f"commit {log.commit}, {describe_members(raft.members)}, holds {changes}"
        ]


def replay(path: Path) -> str:
    """The transcript as it would be written now: remarks and commands as they are, the rest as it happens."""
    script = Script()
    lines = []
    for line in path.read_text().splitlines():
        if line.startswith(">"):
            lines += [line, *script.run(line[1:].strip())]
        elif line.startswith("#") or not line:
            lines.append(line)
    return "\n".join(lines) + "\n"
