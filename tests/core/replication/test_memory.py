"""What a replica remembers beside its log, over restarts and elections."""

from __future__ import annotations

from tidelog.core.replication.memory import ReplicaMemory


def test_it_survives_in_the_hints_of_a_watermark() -> None:
    memory = ReplicaMemory()
    memory.in_contact(4)
    memory.committed(120)
    memory.held("n1", 120)
    memory.held("n2", 118)
    again = ReplicaMemory()
    again.load(memory.hints(), 100)
    assert again.told() == memory.told()


def test_a_watermark_of_an_older_version_says_nothing_about_elections() -> None:
    memory = ReplicaMemory()
    memory.load({"snapshot": 7}, 100)
    assert memory.told() == ReplicaMemory().told()


def test_ends_rise_until_a_leader_has_one_cut() -> None:
    memory = ReplicaMemory()
    memory.in_contact(1)
    memory.held("n1", 120)
    memory.held("n1", 62)
    assert memory.ends == {"n1": 120}, "a shorter log is what it is there to notice"
    memory.cut("n1", 100)
    assert memory.ends == {"n1": 100}


def test_contact_in_a_later_epoch_begins_a_new_list_and_keeps_what_is_committed() -> None:
    memory = ReplicaMemory()
    memory.in_contact(1)
    memory.held("n2", 120)
    memory.committed(110)
    memory.in_contact(1)
    assert memory.ends == {"n2": 120}
    memory.in_contact(2)
    assert (memory.ends, memory.committed_end, memory.epoch) == ({}, 110, 2)


def test_an_unclean_election_of_a_later_epoch_voids_everything_and_an_older_one_nothing() -> None:
    memory = ReplicaMemory()
    memory.in_contact(3)
    memory.committed(110)
    memory.elected_with_loss(2)
    assert memory.committed_end == 110
    memory.elected_with_loss(4)
    assert (memory.committed_end, memory.ends, memory.epoch) == (0, {}, 4)


def test_what_was_saved_before_an_unclean_election_stays_void_when_it_is_loaded_after_it() -> None:
    memory = ReplicaMemory()
    assert memory.elected_with_loss(3), "the catalog is known before the log is open"
    memory.load({"epoch": 2, "committed": 14, "end:n3": 14}, 14)
    assert (memory.epoch, memory.committed_end, memory.ends) == (3, 0, {})
