"""Log replication and commitment: sections 5.3, 5.4.2 and 5.5 of the Raft paper, 10.2.1 of the dissertation."""

from __future__ import annotations

from random import Random

import pytest

from tests.core.raft.harness import Disk, Net, Packet, entries_of
from tidelog.core.raft import (
    AppendAnswer,
    AppendEntries,
    Entry,
    EntryKind,
    HardState,
    RaftConfig,
    RaftRole,
    SnapshotChunk,
    TimeoutNow,
    VoteRequest,
)
from tidelog.errors import NotLeader

HEARTBEAT_MS = RaftConfig().heartbeat_ms


def append(
    term: int, *entries: Entry, previous: tuple[int, int] = (0, 0), commit: int = 0, round_: int = 0
) -> AppendEntries:
    return AppendEntries(
        term=term, previous_index=previous[0], previous_term=previous[1], entries=entries, commit=commit, round=round_
    )


def with_logs(logs: dict[str, tuple[int, ...]], *, term: int | None = None) -> Net:
    """A group whose members hold these terms; everybody has heard of the newest one."""
    newest = term if term is not None else max((max(log, default=0) for log in logs.values()), default=0)
    disks = {name: Disk(HardState(newest), entries=entries_of(*log)) for name, log in logs.items()}
    return Net(logs, disks=disks)


# --- 5.3 ---------------------------------------------------------------------------------------------


def test_a_proposal_is_appended_sent_to_all_and_applied_once_a_majority_holds_it() -> None:
    """5.3: the leader appends, replicates in parallel, commits with a majority, and tells the followers."""
    net = Net("abcde")
    leader = net.elect("a")
    net.crash("d", "e")
    place = leader.raft.propose(b"x")
    assert (place.index, place.term) == (2, 1)
    assert leader.applied == []
    net.settle()
    assert [net[name].applied for name in "abc"] == [[b"x"]] * 3
    net.restart("d", "e")
    net.run_for(3 * HEARTBEAT_MS)
    assert [net[name].applied for name in "de"] == [[b"x"]] * 2


def test_only_the_leader_takes_proposals_and_others_name_it() -> None:
    """5.1 and 8: a member that does not lead refuses and names the leader."""
    net = Net("abc")
    with pytest.raises(NotLeader) as nobody:
        net["b"].raft.propose(b"x")
    assert nobody.value.leader is None
    net.elect("a")
    with pytest.raises(NotLeader) as follower:
        net["b"].raft.propose(b"x")
    assert follower.value.leader == "a"


def test_a_new_leader_begins_with_an_entry_of_its_term_and_never_deletes_its_own() -> None:
    """5.3: leaders only append. 8: a leader's first entry is empty, so that it learns what is committed."""
    net = with_logs({"a": (1, 1, 2), "b": (1, 1), "c": (1,)})
    leader = net.elect("a")
    assert leader.disk.terms == [1, 1, 2, 3]
    assert leader.disk.entries[:3] == entries_of(1, 1, 2)
    assert leader.disk.entries[3].kind is EntryKind.EMPTY
    assert [member.disk.entries for member in net.up] == [leader.disk.entries] * 3


@pytest.mark.parametrize(("own", "previous", "accepted"), [
    ((), (0, 0), True),
    ((1,), (1, 1), True),
    ((1, 2), (1, 1), True),
    ((1, 2), (0, 0), True),
    ((1,), (1, 2), False),
    ((1,), (2, 1), False),
    ((), (1, 1), False),
    ((1, 1, 1), (3, 2), False),
])  # fmt: skip
def test_an_append_is_accepted_only_where_the_logs_agree(
    own: tuple[int, ...], previous: tuple[int, int], accepted: bool
) -> None:
    """5.3, the consistency check: the follower must hold the entry before the new ones, of the same term."""
    net = with_logs({"a": (), "b": own}, term=3)
    before = list(net["b"].disk.entries)
    fresh = Entry(previous[0] + 1, 3, EntryKind.CHANGE, b"new")
    net["b"].raft.step("a", append(3, fresh, previous=previous), 0)
    net["b"].pump()
    (answer,) = net.messages(AppendAnswer)
    assert answer.message.accepted is accepted
    if accepted:
        assert net["b"].disk.entries == [*before[: previous[0]], fresh]
        assert answer.message.index == fresh.index
    else:
        assert net["b"].disk.entries == before
        assert answer.message.rejected_index == previous[0]
        assert answer.message.index < previous[0] or answer.message.hint_term != previous[1]


@pytest.mark.parametrize(("own", "previous", "sent", "expected"), [
    # An old message that says less than the log holds must not shorten it: the rest may be acknowledged.
    ((1, 1, 1, 1), (1, 1), (1,), (1, 1, 1, 1)),
    ((1, 1, 1, 1), (2, 1), (), (1, 1, 1, 1)),
    # A real conflict removes the entry and all that follow.
    ((1, 1, 1, 1), (1, 1), (2,), (1, 2)),
    ((1, 1, 1, 1), (1, 1), (1, 2), (1, 1, 2)),
    ((1, 1), (2, 1), (2, 2), (1, 1, 2, 2)),
    ((1, 1, 2, 2), (1, 1), (1, 2, 2, 3), (1, 1, 2, 2, 3)),
])  # fmt: skip
def test_only_a_conflict_cuts_the_log(
    own: tuple[int, ...], previous: tuple[int, int], sent: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    """Figure 2, receiver 3 and 4: cut at the first entry that conflicts, append what is missing, nothing else."""
    net = with_logs({"a": (), "b": own}, term=3)
    entries = entries_of(*sent, first_index=previous[0] + 1)
    net["b"].raft.step("a", append(3, *entries, previous=previous), 0)
    net["b"].pump()
    assert tuple(net["b"].disk.terms) == expected


FIGURE_7_LEADER = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)
FIGURE_7 = {
    "a": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b": (1, 1, 1, 4),
    "c": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e": (1, 1, 1, 4, 4, 4, 4),
    "f": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}


def test_figure_7_a_new_leader_brings_every_kind_of_log_to_its_own() -> None:
    """5.3, figure 7: missing entries, extra entries, both, and of several terms: all are repaired by probing."""
    net = with_logs({"leader": FIGURE_7_LEADER, **FIGURE_7}, term=7)
    net.elect("leader")  # a, b, e and f vote for it, c and d hold more
    assert net["leader"].raft.term == 8
    assert [member.disk.terms for member in net.up] == [[*FIGURE_7_LEADER, 8]] * 7


@pytest.mark.parametrize("case", sorted(FIGURE_7))
def test_figure_7_repair_takes_at_most_one_question_per_term(case: str) -> None:
    """5.3, last paragraph: a rejection says enough to skip a whole term, not one entry."""
    net = with_logs({"leader": FIGURE_7_LEADER, "other": (), case: FIGURE_7[case]}, term=7)
    net.isolate(case)
    net.elect("leader")
    net.heal()
    net.run_for(2 * HEARTBEAT_MS)
    assert net[case].disk.terms == [*FIGURE_7_LEADER, 8]
    rejected = [packet for packet in net.messages(AppendAnswer, source=case) if not packet.message.accepted]
    assert len(rejected) <= 1 + len(set(FIGURE_7[case]) | set(FIGURE_7_LEADER))


def logs_of_a_troubled_past(random: Random, names: str) -> dict[str, tuple[int, ...]]:
    """Logs as they can really come about: in each term one member appends and a few others copy a part of it."""
    logs: dict[str, tuple[int, ...]] = dict.fromkeys(names, ())
    for term in range(1, 6):
        leader = random.choice(names)
        logs[leader] += (term,) * random.randrange(1, 4)
        for name in random.sample(names, random.randrange(len(names))):
            if name != leader:
                logs[name] = logs[leader][: random.randrange(len(logs[leader]) + 1)]
    return logs


def test_whatever_followers_hold_they_end_as_copies_of_their_leader() -> None:
    """5.3, log matching: missing, extra and conflicting entries of many terms, as found after many lost leaders."""
    for seed in range(80):
        logs = logs_of_a_troubled_past(Random(seed), "abcde")
        best = max(logs, key=lambda name: (logs[name][-1:], len(logs[name])))
        net = with_logs(logs, term=5)
        net.elect(best)
        net.run_for(2 * HEARTBEAT_MS)
        assert [member.disk.terms for member in net.up] == [[*logs[best], 6]] * 5, f"seed {seed}"


def test_a_follower_commits_only_what_the_message_vouches_for() -> None:
    """Figure 2, receiver 5: the commit index of a follower is at most the last entry that the append has checked."""
    net = with_logs({"a": (), "b": (1, 1, 1)}, term=2)
    member = net["b"]
    member.raft.step("a", append(2, previous=(1, 1), commit=3), 0)
    member.pump()
    assert member.raft.log.commit == 1, "entries 2 and 3 may still be replaced"
    member.raft.step("a", append(2, Entry(2, 2, EntryKind.CHANGE, b"new"), previous=(1, 1), commit=2), 0)
    member.pump()
    assert member.applied == [b"1.1", b"new"]


# --- 5.4.2 figure 8 ------------------------------------------------------------------------------------


def test_figure_8_an_entry_of_an_older_term_is_not_committed_by_counting() -> None:
    """5.4.2, figure 8: an old entry on a majority may still be overwritten; it commits with one of the own term."""
    logs = {"s1": (1, 2), "s2": (1, 2), "s3": (1,), "s4": (1,), "s5": (1, 3)}
    net = with_logs(logs, term=3)
    # (c) s1 leads term 4 and brings entry 2 of term 2 to s3; its own first entry reaches nobody.
    net.crash("s4", "s5")

    def without_the_new_entry(packet: Packet) -> bool:
        message = packet.message
        return isinstance(message, AppendEntries) and any(entry.term == 4 for entry in message.entries)

    net.losing = without_the_new_entry
    leader = net.elect("s1")
    assert leader.raft.term == 4
    net["s2"].raft.step("s1", append(4, previous=(2, 2)), net["s2"].now_ms)
    net["s3"].raft.step("s1", append(4, *entries_of(2, first_index=2), previous=(1, 1)), net["s3"].now_ms)
    net.settle()
    assert [net[name].disk.terms[:2] for name in ("s1", "s2", "s3")] == [[1, 2]] * 3, "on a majority"
    assert leader.raft.leading is not None
    assert [leader.raft.leading.progress[name].match for name in ("s2", "s3")] == [2, 2], "and the leader knows"
    assert leader.raft.log.commit == 0
    assert leader.applied == []
    # (d) s1 crashes; s5, whose last entry is of term 3, may be elected and overwrites it.
    net.crash("s1")
    net.heal()
    net.restart("s4", "s5")
    net.time_out("s5")
    net.settle()  # it hears which term it is
    net.elect("s5")
    net.run_for(2 * HEARTBEAT_MS)
    assert [net[name].disk.terms for name in ("s2", "s3", "s4", "s5")] == [[1, 3, 5]] * 4
    net.restart("s1")
    net.run_for(2 * HEARTBEAT_MS)
    assert net["s1"].disk.terms == [1, 3, 5]
    assert net["s1"].applied == [b"1.1", b"2.3"]


def test_figure_8_an_entry_of_the_own_term_commits_all_before_it() -> None:
    """5.4.2, figure 8 (e): once an entry of term 4 is on a majority, s5 cannot win and entry 2 is safe."""
    logs = {"s1": (1, 2), "s2": (1, 2), "s3": (1,), "s4": (1,), "s5": (1, 3)}
    net = with_logs(logs, term=3)
    net.crash("s4", "s5")
    leader = net.elect("s1")
    assert leader.raft.log.commit == 3
    assert leader.applied == [b"1.1", b"2.2"]
    net.crash("s1")
    net.restart("s4", "s5")
    for _ in range(3):
        net.time_out("s5")
        net.settle()
        assert not net["s5"].leads
    net.elect("s3")
    net.run_for(2 * HEARTBEAT_MS)
    assert net["s5"].disk.terms == [1, 2, 4, net["s3"].raft.term]


# --- 5.5 repeated, late and reordered messages -----------------------------------------------------------


def test_every_message_twice_changes_nothing() -> None:
    """5.5: requests are idempotent; a follower that already holds the entries ignores them."""
    net = Net("abc")
    leader = net.elect("a")
    for number in range(5):
        leader.raft.propose(f"{number}".encode())
        net.settle()
    expected = [list(member.disk.entries) for member in net.up]
    for packet in [*net.sent, *reversed(net.sent)]:
        if not isinstance(packet.message, TimeoutNow):
            net.deliver(packet)
    net.settle()
    assert [list(member.disk.entries) for member in net.up] == expected
    assert [member.applied for member in net.up] == [[b"0", b"1", b"2", b"3", b"4"]] * 3


@pytest.mark.parametrize("seed", range(8))
def test_appends_in_any_order_with_loss_and_repetition_end_in_the_same_log(seed: int) -> None:
    """5.3 and 5.5: appends travel side by side; order, repetition and loss cost time, never agreement."""
    random = Random(seed)
    net = Net("abc", seed=seed, config=RaftConfig(append_bytes_max=1, inflight_max=8))
    leader = net.elect("a")
    for number in range(60):
        leader.raft.propose(f"{number}".encode())
        net.pump()
        packets = list(net.wire)
        net.wire.clear()
        packets += random.choices(packets, k=len(packets) // 3) if packets else []
        random.shuffle(packets)
        kept = [packet for packet in packets if random.random() < 0.8]
        late = [packet for packet in kept if random.random() < 0.3]
        for packet in kept:
            if packet not in late:
                net.deliver(packet)
        net.wire.extend(late)
        if number % 7 == 0:
            leader.now_ms += HEARTBEAT_MS
            leader.raft.tick(leader.now_ms)
    net.run_for(5 * HEARTBEAT_MS)
    expected = [f"{number}".encode() for number in range(60)]
    assert [member.applied for member in net.up] == [expected] * 3, f"seed {seed}"


# --- 10.2.1 the leader's own disk --------------------------------------------------------------------------


def test_appends_leave_while_the_leader_still_writes() -> None:
    """10.2.1: the leader writes to its disk in parallel with replicating, which saves one wait for a disk."""
    net = Net("abc")
    leader = net.elect("a")
    leader.is_stalled = True
    leader.raft.propose(b"x")
    net.settle()
    assert [net[name].disk.last_index for name in "abc"] == [1, 2, 2]


def test_a_leader_counts_itself_only_once_its_write_is_durable() -> None:
    """10.2.1: two followers are a majority without the leader's disk; one follower and a promise are not."""
    net = Net("abc")
    leader = net.elect("a")
    leader.is_stalled = True
    net.crash("c")
    leader.raft.propose(b"x")
    net.settle()
    assert leader.raft.log.commit == 1
    leader.flush()
    net.settle()
    assert leader.raft.log.commit == 2


def test_an_entry_may_commit_before_the_leaders_own_disk_has_it_but_is_applied_after() -> None:
    """10.2.1: followers may commit what the leader has not written yet; we apply only what is durable here."""
    net = Net("abc")
    leader = net.elect("a")
    leader.is_stalled = True
    leader.raft.propose(b"x")
    net.settle()
    assert leader.raft.log.commit == 2
    assert leader.applied == []
    assert net["b"].applied == [b"x"]
    leader.is_stalled = False
    leader.flush()
    net.settle()
    assert leader.applied == [b"x"]


def test_a_leader_that_crashes_before_its_write_keeps_nothing_and_harms_nobody() -> None:
    """10.2.1: what only the followers wrote is theirs to commit; the old leader learns it from them."""
    net = Net("abc")
    leader = net.elect("a")
    leader.is_stalled = True
    leader.raft.propose(b"x")
    net.settle()
    net.crash("a")
    assert leader.disk.last_index == 1
    net.restart("a")
    net.elect("b")
    net.run_for(2 * HEARTBEAT_MS)
    assert [member.applied for member in net.up] == [[b"x"]] * 3


def test_a_follower_answers_heartbeats_while_its_disk_is_busy_but_claims_nothing() -> None:
    """RA6: a slow disk is not a lost follower, and what is not durable is not said to be held."""
    net = Net("abc")
    net.elect("a")
    net.crash("c")
    net["b"].is_stalled = True
    net["a"].raft.propose(b"x")
    net.run_for(10 * RaftConfig().election_timeout_ms)
    assert net["a"].leads
    assert net["a"].raft.log.commit == 1
    claimed = max(packet.message.index for packet in net.messages(AppendAnswer, source="b"))
    assert claimed == net["b"].disk.last_index == 1
    net["b"].is_stalled = False
    net["b"].flush()
    net.settle()
    assert net["a"].raft.log.commit == 2


# --- ABA: the log is cut while a write is in progress ---------------------------------------------------------


def test_a_write_of_entries_that_were_cut_does_not_count_for_their_successors() -> None:
    """RD2: `persisted` of an old write must not make the new entries of the same indexes look durable."""
    net = Net("abc")
    member = net["b"]
    member.is_stalled = True
    member.raft.step("a", append(1, *entries_of(1, 1, 1)), 0)
    member.pump()  # write 1: entries 1 to 3 of term 1
    member.raft.step("c", append(2, *entries_of(2, 2, first_index=2), previous=(1, 1), commit=3), 0)
    member.pump()  # write 2: entries 2 and 3 of term 2 take their place
    member.flush(1)
    assert member.raft.log.stable == 1, "of what the log holds now only entry 1 is on disk"
    member.pump()
    assert member.applied == [b"1.1"]
    answers = net.messages(AppendAnswer, source="b", target="c")
    assert all(packet.message.index <= 1 for packet in answers if packet.message.accepted)
    member.flush()
    member.pump()
    assert member.raft.log.stable == 3
    assert member.applied == [b"1.1", b"2.2", b"3.2"]


def test_a_log_cut_and_grown_back_to_the_same_entries_waits_for_the_last_write() -> None:
    """RD2, ABA: A is being written, B replaces it, A comes back; the first write of A proves nothing."""
    net = Net("abcde")
    member = net["b"]
    member.is_stalled = True
    first = entries_of(1, 1, 1)
    member.raft.step("a", append(1, *first), 0)
    member.pump()
    member.raft.step("c", append(2, *entries_of(2, first_index=2), previous=(1, 1)), 0)
    member.pump()
    member.raft.step("d", append(3, *first[1:], previous=(1, 1)), 0)
    member.pump()
    assert [len(ready.entries) for ready in member.pending if ready.must_persist] == [3, 1, 2]
    for expected in (1, 1, 3):
        member.flush(1)
        assert member.raft.log.stable == expected
    assert member.disk.terms == [1, 1, 1]


def test_a_restored_snapshot_is_not_made_durable_by_an_older_write() -> None:
    """RD2, ABA with a snapshot: the writes before it say nothing of it."""
    net = Net("abc")
    leader = net.elect("a")
    net.holding = lambda packet: packet.target == "c"
    for number in range(5):
        leader.raft.propose(f"{number}".encode())
        net.settle()
    late = net.held[0]
    net.held.clear()
    leader.snapshot()
    net.holding = lambda packet: isinstance(packet.message, SnapshotChunk)
    net.heartbeat("a")
    assert [packet.target for packet in net.held] == ["c"]
    member = net["c"]
    member.is_stalled = True
    net.deliver(late)
    net.release()
    net.settle()
    assert member.raft.log.base_index == 6
    while len([ready for ready in member.pending if ready.must_persist]) > 1:
        member.flush(1)
        assert member.raft.log.stable == 0
    member.is_stalled = False
    member.flush()
    net.run_for(2 * HEARTBEAT_MS)
    assert member.raft.log.stable == 6
    assert member.applied == leader.applied


def test_an_answer_to_a_leader_that_was_overtaken_in_the_same_batch_commits_nothing() -> None:
    """5.4.1: the old leader's entries were cut before they were written; its count of holders stays a minority."""
    net = Net("abcde")
    old = net.elect("a")
    net.split("ab", "cde")
    old.raft.propose(b"lost")
    net.pump()
    (packet,) = [packet for packet in net.wire if packet.target == "b"]
    net.wire.clear()
    new = net.elect("c")
    replacement = append(2, *new.disk.entries[1:], previous=(1, 1), commit=2)
    member = net["b"]
    member.raft.step("a", packet.message, member.now_ms)
    member.raft.step("c", replacement, member.now_ms)  # before anybody took a Ready
    net.settle()
    assert old.raft.log.commit == 1
    assert member.disk.terms == [1, 2]
    net.heal()
    net.heartbeat("a")
    net.run_for(5 * RaftConfig().election_timeout_ms)
    assert all(b"lost" not in member.applied for member in net.up)


def test_a_role_change_sends_nothing_of_an_old_term() -> None:
    """5.1: a member that became a follower neither heartbeats nor asks for votes in the term it left."""
    net = Net("abc")
    leader = net.elect("a")
    leader.raft.step("c", VoteRequest(term=7, last_index=9, last_term=6, pre=False, forced=True), leader.now_ms)
    leader.pump()
    assert leader.raft.role is RaftRole.FOLLOWER
    count = len(net.messages(AppendEntries, source="a"))
    leader.now_ms += HEARTBEAT_MS
    leader.raft.tick(leader.now_ms)
    leader.pump()
    assert len(net.messages(AppendEntries, source="a")) == count


def test_followers_hear_of_a_commit_soon_even_if_nothing_follows() -> None:
    """5.3: the commit travels with the next append, or on its own after a few milliseconds, long before a heartbeat."""
    config = RaftConfig()
    net = Net("abc", config=config)
    leader = net.elect("a")
    net.run_for(config.commit_news_ms)
    leader.raft.propose(b"x")
    net.settle()
    assert leader.applied[-1] == b"x"
    assert net["b"].applied[-1:] != [b"x"]
    net.run_for(config.commit_news_ms)
    assert [member.applied[-1] for member in net.up] == [b"x"] * 3


def test_the_next_append_brings_the_news_of_the_commit_before() -> None:
    """5.3: under load nobody is told anything twice."""
    net = Net("abc", config=RaftConfig())
    leader = net.elect("a")
    for number in range(5):
        leader.raft.propose(b"%d" % number)
        net.settle()
    assert net["b"].applied[-1] == b"3"
