"""What the metadata leader makes of the answers of replicas: whom it asks, and asks again."""

from __future__ import annotations

from tests.replication.replica_kit import Kit
from tidelog.cluster.metadata.elections import Elections
from tidelog.core.replication.messages import AskLog, LogFacts, LogMemory, ReplicationMessage
from tidelog.core.replication.options import ReplicationOptions

OPTIONS = ReplicationOptions()


class Round:
    """An election of the channel of two replicas, of which `a` cannot lead."""

    def __init__(self) -> None:
        self.kit = Kit("a", "b")
        self.kit.create(factor=2)
        self.asked: list[str] = []
        self.elections = Elections(options=OPTIONS, send=self._send, say=lambda *_, **__: None)
        self.now_ms = 0

    def _send(self, node: str, message: ReplicationMessage) -> None:
        assert isinstance(message, AskLog)
        self.asked.append(node)

    def elect(self, after_ms: int = 0) -> str | None:
        self.now_ms += after_ms
        self.asked.clear()
        return self.elections.elect(
            self.kit.catalog,
            self.kit.record(),
            able=["b"],
            is_silent=lambda _: False,
            median_rtt_us=lambda _: None,
            now_ms=self.now_ms,
        )

    def forgets(self, node: str, log_end: int) -> None:
        """It answers the shorter question."""
        self._answer(node, log_end, LogMemory())

    def answer(self, node: str, log_end: int, committed_end: int) -> None:
        self._answer(node, log_end, LogMemory(epoch=1, committed_end=committed_end))

    def _answer(self, node: str, log_end: int, memory: LogMemory) -> None:
        facts = LogFacts(
            channel_id=1,
            channel_epoch=self.kit.record().channel_epoch,
            incarnation=self.kit[node].incarnation,
            last_epoch=1,
            log_end=log_end,
            memory=memory,
        )
        assert self.elections.answered(node, facts)


def test_answers_that_made_nobody_a_leader_are_asked_for_again() -> None:
    """A leader that was paused goes on for a moment: `b` has answered, then gets more of it, and so lets it commit."""
    one = Round()
    assert one.elect() is None
    assert one.asked == ["a", "b"]
    one.answer("b", 5, 3)
    one.answer("a", 9, 8)
    assert one.elect(20) is None, "b is known to lack what is committed"
    assert one.elect(OPTIONS.repeat_ms) is None
    assert one.asked == ["a", "b"], "and may hold it by now"
    one.answer("b", 8, 8)
    assert one.elect(20) == "b"


def test_who_has_answered_is_not_asked_again_while_others_are_waited_for() -> None:
    one = Round()
    assert one.elect() is None
    one.answer("b", 5, 3)
    assert one.elect(20) is None
    assert one.elect(OPTIONS.repeat_ms) == "b"
    assert one.asked == ["a"]


def test_an_answer_without_memory_takes_back_nothing_that_was_told_before() -> None:
    """Every other question does not ask for it, for nodes of older versions: a short log must not lead by that."""
    one = Round()
    assert one.elect() is None
    one.answer("b", 5, 8)
    assert one.elect(OPTIONS.repeat_ms) is None, "b itself was told that more is committed"
    assert one.asked == ["a"]
    assert one.elect(OPTIONS.repeat_ms) is None
    one.forgets("b", 5)
    assert one.elect(20) is None
    one.forgets("b", 8)
    assert one.elect(20) == "b"
