"""The scenarios of replication once more, with a NATS server between the nodes: what held over the link holds here."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.replication import (
    test_replica_capacity,
    test_replica_damage,
    test_replica_epochs,
    test_replica_isr,
    test_replica_liftbridge,
    test_replica_redex,
    test_replica_roles,
    test_replica_weaknesses,
)
from tests.transports.nats_kit import NatsKit
from tidelog.codecs.liftbridge_envelope import MessageType, decode_envelope
from tidelog.core.replication.messages import SyncError, SyncNack, SyncResponse
from tidelog.core.replication.roles import Role
from tidelog.units import KIB

MODULES = (
    test_replica_capacity,
    test_replica_damage,
    test_replica_epochs,
    test_replica_isr,
    test_replica_liftbridge,
    test_replica_redex,
    test_replica_roles,
    test_replica_weaknesses,
)
LINK_ONLY = {
    # It puts a request into a node as if a link had brought it; over NATS there is no inbox to answer to.
    "test_messages_of_a_channel_that_is_not_here_are_dropped_and_requests_refused",
}


def scenarios() -> list[tuple[ModuleType, str]]:
    """Tests that need nothing but the kit."""
    return [
        (module, name)
        for module in MODULES
        for name, test in vars(module).items()
        if name.startswith("test_") and name not in LINK_ONLY and not inspect.signature(test).parameters
    ]


def test_there_are_scenarios_to_repeat() -> None:
    assert len(scenarios()) > 150


@pytest.mark.parametrize(("module", "name"), scenarios(), ids=[name for _, name in scenarios()])
def test_scenario_holds_over_nats(module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Kit", NatsKit)
    scenario: Callable[[], None] = getattr(module, name)
    scenario()


def kinds_on(kit: NatsKit, subject: str) -> set[MessageType]:
    return {decode_envelope(payload).kind for name, payload in kit.published if name.startswith(subject)}


def test_every_subject_of_the_seed_carries_its_messages() -> None:
    kit = NatsKit("a", "b", "c")
    kit.create("foo")
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    kit.isolate("a")
    kit.produce(b"only on a", at="a")
    kit.run(10)
    kit.fence("a")
    kit.run_until(lambda: kit.leading()[-1:] not in (["a"], []))
    kit.write(b"two")
    kit.heal()
    kit["a"].reconnect()
    kit.run_until(kit.is_whole)
    kit.lose = lambda to, sender, message: to == "a" and isinstance(message, SyncResponse)
    kit.produce(b"three")  # its answer to a is lost, so no request of a stands
    kit.run(1_000)
    kit.lose = lambda to, sender, message: False
    kit.run_until(kit.is_whole)
    assert kinds_on(kit, "ns.foo.0.replicate") == {MessageType.REPLICATION_REQUEST}
    assert kinds_on(kit, "ns.foo.0.offset") == {MessageType.LEADER_EPOCH_OFFSET_REQUEST}
    assert kinds_on(kit, "ns.notify.") == {MessageType.PARTITION_NOTIFICATION}
    answers = {MessageType.REPLICATION_RESPONSE, MessageType.LEADER_EPOCH_OFFSET_RESPONSE}
    assert kinds_on(kit, "_INBOX.") == answers
    assert kit["a"].committed() == kit["b"].committed() == kit["c"].committed() == [b"one", b"two", b"three"]


def test_while_nobody_listens_a_follower_asks_again_and_cuts_nothing() -> None:
    kit = NatsKit("a", "b", "c")
    kit.create()
    kit.write(b"one")
    kit.run_until(kit.is_whole)
    unheard = kit.unheard
    kit.lagging["b"] = []
    kit["a"].kill()  # so that not even an old leader listens
    kit.elect("b")
    kit.run(300)
    assert kit.unheard - unheard >= 2
    assert kit.delivered(SyncNack, to="c")[-1].error is SyncError.NOT_LEADER
    assert kit["c"].values() == [b"one"]
    kit.catch_up("b")
    kit.run_until(lambda: kit["b"].replica().role is Role.LEADER and kit.record().member("c") is not None)
    kit.write(b"two")
    assert kit["b"].committed()[:2] == [b"one", b"two"]


@pytest.mark.parametrize("seed", range(5))
def test_lost_parts_of_large_answers_cost_time_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    kit = NatsKit("a", "b", "c", seed=seed, part_loss=0.1)
    kit.create()
    values = [rng.randbytes(rng.randint(1, 40 * KIB)) for _ in range(12)]
    for value in values:
        kit.write(value)
    kit.run_until(kit.is_whole)
    kit.check()
    for name in ("a", "b", "c"):
        assert kit[name].committed() == values, f"seed {seed}"
    assert sum(joiner.parts_dropped for joiner in kit.joiners.values()) > 0, f"seed {seed}: nothing was lost"
