"""What a node remembers of other members' disks: bounded, and never held against a disk that said it itself."""

from __future__ import annotations

from dataclasses import replace

from tidelog.core.member_memory import MemberMemory
from tidelog.core.node_messages import Standing
from tidelog.core.raft import AppendAnswer, VoteRequest

TOLD = Standing(
    member="n1/aa",
    process="p1",
    sequence=1,
    incarnation=3,
    term=5,
    last_index=40,
    held_index=38,
    committed=38,
    asks=False,
)
ASKS = replace(TOLD, process="p2", asks=True)


def judged(memory: MemberMemory, standing: Standing, *, match: int = 0, known: tuple[int, str] | None = None) -> str:
    problem = memory.judge(standing, match_index=match, registered=known)
    assert problem is not None
    return problem


def remembering() -> MemberMemory:
    memory = MemberMemory()
    assert judged(memory, TOLD) == ""
    return memory


def test_a_disk_that_knows_what_it_said_is_believed() -> None:
    memory = remembering()
    assert judged(memory, ASKS, match=40, known=(3, "p1")) == ""


def test_an_older_term_is_remembered() -> None:
    assert "term 4" in judged(remembering(), replace(ASKS, term=4))


def test_a_term_that_was_only_heard_counts_for_the_next_process_not_for_the_one_that_spoke() -> None:
    """MR1: a standing may be overtaken by what its process said later."""
    memory = remembering()
    memory.heard("n1/aa", AppendAnswer(term=7, round=1, accepted=True, index=40))
    assert judged(memory, replace(TOLD, sequence=2)) == ""
    assert "term 7" in judged(memory, ASKS)


def test_asking_ahead_for_a_term_proves_nothing() -> None:
    memory = remembering()
    memory.heard("n1/aa", VoteRequest(term=9, last_index=1, last_term=1, pre=True))
    assert judged(memory, ASKS) == ""


def test_a_shorter_log_is_held_against_what_was_committed_held_and_counted() -> None:
    assert "entry 38" in judged(remembering(), replace(ASKS, last_index=37))
    assert judged(remembering(), replace(ASKS, last_index=38)) == ""
    assert "entry 39" in judged(remembering(), replace(ASKS, last_index=38), match=39)
    memory = MemberMemory()
    assert judged(memory, replace(TOLD, held_index=40)) == ""
    assert "entry 40" in judged(memory, replace(ASKS, last_index=39)), "it led, and held its own entries"
    assert judged(memory, replace(ASKS, sequence=2, term=6, last_index=39)) == "", "a later leader may have cut them"


def test_an_older_incarnation_is_remembered_by_the_catalog() -> None:
    assert "incarnation 3" in judged(MemberMemory(), ASKS, known=(4, "p1"))
    assert judged(MemberMemory(), ASKS, known=(4, "p2")) == "", "it registered itself meanwhile"
    assert judged(MemberMemory(), replace(ASKS, incarnation=None), known=(4, "p1")) == "", "it does not know"


def test_what_was_overtaken_is_not_judged() -> None:
    memory = remembering()
    assert memory.judge(replace(TOLD, term=1), match_index=0, registered=None) is None


def test_a_member_on_probation_teaches_nothing() -> None:
    memory = remembering()
    assert judged(memory, replace(ASKS, term=4, committed=99, last_index=99))
    assert judged(memory, replace(ASKS, process="p3")) == "", "what an older copy says of itself counts for nothing"


def test_mr2_a_node_that_names_disk_after_disk_fills_no_memory() -> None:
    memory = remembering()
    for number in range(1_000):
        assert judged(memory, replace(TOLD, member=f"n2/{number:04x}")) == ""
        assert judged(memory, replace(TOLD, process=f"p{number + 2}")) == ""
    assert len(memory._members) == len(memory._sequences) == 256
    assert len(memory._sequences["n1/aa"]) == 8
    assert "term 4" in judged(memory, replace(ASKS, sequence=9_000, term=4)), "those that were first are still known"
