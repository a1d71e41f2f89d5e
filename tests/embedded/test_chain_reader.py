"""Readers that re-route by themselves: whom they ask, whom they believe, and when they give up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.patience import patient
from tests.replication.replica_kit import Kit
from tidelog.blocks.messages import encode_values
from tidelog.codecs.client_codec import FETCH, decode_fetch, encode_fetched
from tidelog.core.catalog import Catalog, ChannelRecord, UncleanCause, UncleanElection
from tidelog.core.client_messages import Fetch, Fetched
from tidelog.embedded import FileConfig, chain_reader
from tidelog.embedded.chain_reader import ChainReader
from tidelog.embedded.log_file import LogFile
from tidelog.embedded.replicated_file import ReplicatedFile
from tidelog.errors import (
    AccessDenied,
    ChannelDeleted,
    CommittedLost,
    Lagged,
    LogError,
    OffsetOutOfRange,
    PeerUnreachable,
    ReplicaBehind,
    WaitTimedOut,
)


class Board(Catalog):
    """A catalog in which one channel can be shown as something else."""

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.shown: dict[str, Any] = {}
        self.gone = False

    def channel(self, name_or_id: str | int) -> ChannelRecord | None:
        record = super().channel(name_or_id)
        return None if record is None or self.gone else replace(record, **self.shown)


class Sea:
    """n2 reads; n1 leads. What each node answers is said beforehand; who was asked is noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chain_reader, "PATIENCE_MS", 200)
        self.kit = Kit("n1", "n2", "n3")
        self.kit.create(leader_pinned="n1")
        self.kit.write(b"one")
        self.kit.run_until(self.kit.is_whole)
        self.board = Board(self.kit.catalog._state)
        self.answers: dict[str, Fetched | LogError] = {}
        self.asked: list[str] = []
        rtt = {"n1": 900, "n3": 100}
        self.core = SimpleNamespace(
            node="n2",
            is_leader=False,
            catalog=self.board,
            proximity=SimpleNamespace(rtt_us=lambda _, other: rtt[other]),
            channels=SimpleNamespace(replicas=self.kit["n2"].core),
        )
        self.channels = SimpleNamespace(catalog=self.board, fetch=self._here)
        self.pool = SimpleNamespace(request=self._there)
        self.reader = ChainReader(self, channel="spray", channel_id=1)  # type: ignore[arg-type]

    async def _here(self, fetch: Fetch) -> Fetched:
        return self._answer("n2", fetch)

    async def _there(self, node: str, kind: int, body: bytes, *, timeout_ms: int) -> memoryview:
        assert kind == FETCH
        assert timeout_ms > 0
        return memoryview(b"".join(encode_fetched(self._answer(node, decode_fetch(memoryview(body))))))

    def _answer(self, node: str, fetch: Fetch) -> Fetched:
        self.asked.append(node)
        answer = self.answers[node]
        if isinstance(answer, LogError):
            raise answer
        assert fetch.leader_epoch == self.reader.leader_epoch
        return answer

    async def fetch(self, offset: int = 0, *, wait_ms: int = 0) -> list[int]:
        self.asked.clear()
        blocks = await self.reader.fetch(offset, bytes_max=1000, wait_ms=wait_ms)
        return [block.leader.base_offset for block in blocks]


def holding(*values: bytes, first: int = 0, epoch: int = 1, end: int | None = None, start: int = 0) -> Fetched:
    """An answer with one block of these records, and where the replica ends."""
    data: list[bytes] = []
    if values:
        made = encode_values(values, time_us=1)
        block = made.stamp(
            base_offset=first, channel_id=1, leader_epoch=epoch, append_time_us=1, durable_end=first, path=3
        )
        data = [bytes(buffer) for buffer in block.buffers]
    committed_end = first + len(values) if end is None else end
    return Fetched(leader_epoch=epoch, committed_end=committed_end, log_start=start, data=data)


def behind(end: int = 0, epoch: int = 1) -> ReplicaBehind:
    return ReplicaBehind(channel="spray", leader_epoch=epoch, committed_end=end)


@pytest.fixture
def sea(monkeypatch: pytest.MonkeyPatch) -> Sea:
    return Sea(monkeypatch)


def play(story: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(story, patient(30)))


def test_the_own_replica_is_read_and_nobody_else_is_asked(sea: Sea) -> None:
    sea.answers = {"n2": holding(b"a", b"b")}
    assert play(sea.fetch()) == [0]
    assert sea.asked == ["n2"]
    assert (sea.reader.known_end, sea.reader.leader_epoch, sea.reader.rerouted) == (2, 1, 0)


def test_a_replica_that_cannot_answer_is_passed_over_for_the_nearest_that_can(sea: Sea) -> None:
    sea.answers = {"n2": behind(), "n3": PeerUnreachable(address="n3", problem="no link"), "n1": holding(b"a")}
    assert play(sea.fetch()) == [0]
    assert sea.asked == ["n2", "n3", "n1"]
    assert sea.reader.rerouted == 1


def test_an_own_replica_that_has_lost_its_leader_is_asked_last(sea: Sea) -> None:
    following = sea.kit["n2"].replica().following
    assert following is not None
    following.is_in_contact = False
    sea.answers = {"n3": behind(), "n1": behind(), "n2": holding(b"a")}
    assert play(sea.fetch()) == [0]
    assert sea.asked == ["n3", "n1", "n2"]


def test_a_holder_of_an_older_epoch_or_of_less_than_is_known_is_passed_over(sea: Sea) -> None:
    sea.reader.leader_epoch, sea.reader.known_end = 5, 40
    sea.answers = {"n2": holding(b"a", epoch=4), "n3": holding(epoch=5, end=30), "n1": holding(b"b", first=30, epoch=5)}
    assert play(sea.fetch(30)) == [30]
    assert sea.asked == ["n2", "n3", "n1"]


def test_the_end_is_believed_of_the_leader(sea: Sea) -> None:
    sea.answers = {"n2": holding(end=10), "n3": holding(end=10), "n1": holding(b"new", first=10)}
    assert play(sea.fetch(10)) == [10], "the replicas had not heard of it yet"
    sea.reader.known_end = 0
    sea.answers["n1"] = holding(end=10)
    assert play(sea.fetch(10)) == []
    sea.answers["n1"] = PeerUnreachable(address="n1", problem="no link")
    assert play(sea.fetch(10)) == [], "without the leader a replica's word is taken"


def test_a_tail_waits_at_the_nearest_and_asks_nobody_else(sea: Sea) -> None:
    sea.answers = {"n2": holding(end=10)}
    assert play(sea.fetch(10, wait_ms=50)) == []
    assert sea.asked == ["n2"]


def test_what_lies_beyond_everything_that_was_ever_committed_is_not_there(sea: Sea) -> None:
    sea.answers = {"n2": behind(10), "n3": behind(10), "n1": behind(10)}
    assert play(sea.fetch(50)) == []


def test_what_was_seen_as_committed_is_waited_for_and_then_refused(sea: Sea) -> None:
    sea.reader.known_end = 60
    sea.answers = {"n2": behind(10), "n3": behind(10), "n1": behind(10)}
    with pytest.raises(ReplicaBehind):
        play(sea.fetch(50))
    assert len(sea.asked) > 3, "asked again and again"


def test_that_records_are_gone_is_believed_of_the_leader_or_of_all(sea: Sea) -> None:
    trimmed = OffsetOutOfRange(offset=3, log_start=20, log_end=90)
    sea.answers = {"n2": trimmed, "n3": holding(b"x", first=3), "n1": trimmed}
    assert play(sea.fetch(3)) == [3], "replicas trim for themselves: one still had it"
    sea.answers["n3"] = PeerUnreachable(address="n3", problem="no link")
    with pytest.raises(Lagged) as refusal:
        play(sea.fetch(3))
    assert (refusal.value.offset, refusal.value.log_start) == (3, 20)
    sea.answers["n1"] = PeerUnreachable(address="n1", problem="no link")
    with pytest.raises(OffsetOutOfRange):
        play(sea.fetch(3))  # one replica's word is not enough
    later = OffsetOutOfRange(offset=3, log_start=30, log_end=90)
    sea.answers |= {"n1": later, "n3": later, "n2": trimmed}
    with pytest.raises(Lagged) as refusal:
        play(sea.fetch(3))
    assert refusal.value.log_start == 30, "the leader's"


def test_a_refusal_that_is_not_about_one_node_is_raised_at_once(sea: Sea) -> None:
    sea.answers = {"n2": AccessDenied(principal="client:x", scope="read:data", channel="spray")}
    with pytest.raises(AccessDenied):
        play(sea.fetch())
    assert sea.asked == ["n2"]


def test_when_nobody_answers_the_reason_is_raised_in_time(sea: Sea) -> None:
    late = WaitTimedOut(waiting_for="an answer", deadline_s=1.0)
    sea.answers = {"n2": late, "n3": late, "n1": late}
    with pytest.raises(WaitTimedOut):
        play(sea.fetch())


def test_a_deleted_channel_is_told_as_that(sea: Sea) -> None:
    sea.board.gone = True
    with pytest.raises(ChannelDeleted):
        play(sea.fetch())


async def test_a_tail_is_told_of_an_unclean_election_before_it_sees_what_came_after(sea: Sea) -> None:
    coordinator = SimpleNamespace(channel_id=1)

    async def close(_: str) -> None: ...

    file: LogFile = ReplicatedFile(
        "spray",
        FileConfig(),
        node=sea,  # type: ignore[arg-type]
        coordinator=coordinator,  # type: ignore[arg-type]
        close=close,
    )
    assert isinstance(file, ReplicatedFile)
    sea.reader = file.reader
    sea.answers = {"n2": holding(b"a", b"b")}
    tail = file.tail(0)
    assert [(await anext(tail)).offset for _ in range(2)] == [0, 1]
    lost = UncleanElection(
        leader_epoch=9, leader="n1", cause=UncleanCause.OPERATOR, operator="operator:anna", at_ms=0, index=0
    )
    sea.board.shown = {"unclean": (lost,)}
    sea.answers = {"n2": holding(b"other", first=1, epoch=9)}
    with pytest.raises(CommittedLost) as refusal:
        await anext(tail)
    assert refusal.value.leader_epoch == 9
    # A reader that begins now knows of it and reads on.
    fresh = file.tail(1)
    record: Any = await anext(fresh)
    assert record.value == b"other"
    await fresh.aclose()  # type: ignore[attr-defined]
