"""Scenarios of replicated channels on the production cores, without a network or a clock."""

from __future__ import annotations

from tests.replication.replica_kit import Kit
from tidelog.core.replication.roles import Role


def test_three_replicas_hold_the_same_bytes_and_commit_what_all_hold() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    for number in range(16):
        kit.produce(b"value %d" % number)
    kit.run(100)
    assert all(result.error is None for result in kit.results().values())
    assert len(kit.results()) == 16
    assert kit.nodes["a"].values() == [b"value %d" % number for number in range(16)]
    assert kit.nodes["a"].bytes_of() == kit.nodes["b"].bytes_of() == kit.nodes["c"].bytes_of()
    assert {node.replica().committed_end for node in kit.nodes.values()} == {17}
    assert kit.roles() == {"a": Role.LEADER, "b": Role.REPLICA, "c": Role.REPLICA}


def test_a_dead_leader_is_replaced_and_nothing_acknowledged_is_lost() -> None:
    kit = Kit("a", "b", "c")
    kit.create()
    kit.produce(b"one")
    kit.run(50)
    kit.nodes["a"].kill()
    kit.fence("a")
    kit.run(100)
    assert kit.leader().name in ("b", "c")
    kit.produce(b"two")
    kit.run(50)
    assert kit.results()[(b"two",)].error is None
    assert kit.nodes["b"].values() == [b"one", b"two"] == kit.nodes["c"].values()
    kit.nodes["a"].start()
    kit.run(2000)
    record = kit.catalog.channel(1)
    assert record is not None
    assert set(record.isr_nodes) == {"a", "b", "c"}
    assert kit.nodes["a"].bytes_of() == kit.nodes["b"].bytes_of()
