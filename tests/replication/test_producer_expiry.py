"""Producers that nobody uses: who is closed, who never is, and what happens to one that comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.client.group_kit import created, opened
from tests.core.catalog_kit import three
from tests.replication.replica_kit import TO_METADATA, Kit
from tests.sim.mutations import Edit, plant
from tidelog.blocks.block import MadeBlock
from tidelog.blocks.control import ChannelSnapshot, encode_control
from tidelog.blocks.messages import encode_values
from tidelog.cluster.clients.channel_limits import require_room
from tidelog.cluster.produce_order import ProduceOrder
from tidelog.cluster.replication import producer_expiry
from tidelog.cluster.replication.fold import ReplicaFold
from tidelog.cluster.replication.producer_expiry import CLOSED_PER_LOOK, ProducerExpiry
from tidelog.core.catalog import CloseProducer, OpenProducer, encode_change
from tidelog.core.replication.messages import ProposeChange
from tidelog.core.replication.options import ReplicationOptions
from tidelog.core.replication.placement import NodeLoad
from tidelog.errors import CatalogFull

DAY_MS = 24 * 3_600_000
IDLE_MS = 600_000
OPTIONS = ReplicationOptions(producer_expiry_ms=7 * DAY_MS, producer_idle_min_ms=IDLE_MS)
NOW_MS = 100 * DAY_MS


def identity(producer_id: int, epoch: int = 1) -> bytes:
    return producer_id.to_bytes(8, "little") + epoch.to_bytes(8, "little")


class World:
    """A channel with producers, its leader's fold and its two clocks."""

    def __init__(self) -> None:
        self.cluster, self.channel_id = three()
        self.fold = ReplicaFold()
        self.expiry = ProducerExpiry(OPTIONS)
        self.wall_ms = NOW_MS
        self.now_ms = 0

    def open(self, name: str, *, at_ms: int) -> int:
        change = OpenProducer(channel_id=self.channel_id, name=name, owner="operator:anna", at_ms=at_ms)
        self.cluster.take(change)
        record = self.cluster.catalog.producer_named(self.channel_id, name)
        assert record is not None
        return record.producer_id

    def write(self, producer_id: int, seq: int, *, at_ms: int) -> None:
        self.append(encode_values([b"x"], time_us=1, base_seq=seq, producer=identity(producer_id)), at_ms=at_ms)

    def append(self, made: MadeBlock, *, at_ms: int) -> None:
        self.fold.note(
            made.stamp(
                base_offset=self.fold.end,
                channel_id=self.channel_id,
                leader_epoch=1,
                append_time_us=at_ms * 1000,
                durable_end=0,
                path=0,
            )
        )

    def look(self) -> list[int]:
        closed = self.expiry.look(
            self.cluster.catalog, self.channel_id, self.fold, wall_ms=self.wall_ms, now_ms=self.now_ms
        )
        for change in closed:
            self.cluster.take(change)
        return [change.producer_id for change in closed]

    def wait(self, ms: int) -> None:
        self.wall_ms += ms
        self.now_ms += ms


def test_px1_a_producer_is_closed_after_its_time_without_a_record() -> None:
    world = World()
    old = world.open("old", at_ms=NOW_MS - 8 * DAY_MS)
    wrote = world.open("wrote", at_ms=NOW_MS - 30 * DAY_MS)
    world.write(wrote, 1, at_ms=NOW_MS - DAY_MS)
    assert world.look() == [], "PX2: nobody has seen it silent yet"
    world.wait(IDLE_MS)
    assert world.look() == [old]
    world.wait(6 * DAY_MS)
    assert world.look() == [wrote]
    assert world.cluster.catalog.producers_of(world.channel_id) == []


def test_px2_a_clock_that_jumps_closes_nobody_who_writes() -> None:
    world = World()
    live = world.open("live", at_ms=NOW_MS)
    world.write(live, 1, at_ms=NOW_MS)
    world.look()
    world.wall_ms += 365 * DAY_MS
    assert world.look() == []
    for seq in range(2, 12):
        world.now_ms += IDLE_MS // 2
        world.write(live, seq, at_ms=NOW_MS + seq)
        assert world.look() == []
    world.now_ms += IDLE_MS
    assert world.look() == [live]


def test_px1_room_is_made_by_closing_who_was_silent_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_expiry, "PRODUCERS_PER_CHANNEL_MAX", 8)
    world = World()
    ids = [world.open(f"p{number}", at_ms=NOW_MS - DAY_MS) for number in range(8)]
    for place, producer_id in enumerate(ids):
        world.write(producer_id, 1, at_ms=NOW_MS - DAY_MS + (7 - place) * 1000)
    world.look()
    world.wait(IDLE_MS)
    assert world.look() == [ids[7], ids[6]], "down to three quarters"
    assert world.look() == []


def test_px4_each_leader_closes_its_share_of_what_the_cluster_has_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_expiry, "PRODUCERS_MAX", 40)
    world = World()
    first, other = world.channel_id, world.cluster.create("n1", name="other")
    for number in range(24):
        world.open(f"p{number}", at_ms=NOW_MS - DAY_MS)
    for number in range(11):
        change = OpenProducer(channel_id=other, name=f"p{number}", owner="operator:anna", at_ms=NOW_MS - DAY_MS)
        world.cluster.take(change)
    looks = {channel_id: ProducerExpiry(OPTIONS) for channel_id in (first, other)}

    def closed() -> dict[int, int]:
        """Both leaders look before either of them hears of the other's."""
        found = {
            channel_id: expiry.look(
                world.cluster.catalog, channel_id, world.fold, wall_ms=world.wall_ms, now_ms=world.now_ms
            )
            for channel_id, expiry in looks.items()
        }
        for changes in found.values():
            for change in changes:
                world.cluster.take(change)
        return {channel_id: len(changes) for channel_id, changes in found.items()}

    closed()
    world.wait(IDLE_MS)
    assert world.cluster.catalog.producer_count == 35
    assert closed() == {first: 4, other: 2}, "5 are too many: 24/35 and 11/35 of them, rounded up"
    assert closed() == {first: 0, other: 0}


def test_a_leader_that_closes_who_still_writes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the time since its last block is not asked for (PX1)."""
    plant(
        monkeypatch,
        Edit(ProducerExpiry, "look", "or wall_ms - used_ms >= options.producer_expiry_ms", "or True"),
    )
    for caught in (
        test_px1_a_producer_is_closed_after_its_time_without_a_record,
        test_a_leader_has_the_catalog_close_who_is_silent_and_nobody_else,
    ):
        with pytest.raises(AssertionError):
            caught()


def test_a_clock_believed_at_once_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: silence is not seen in steady time (PX2)."""
    plant(monkeypatch, Edit(ProducerExpiry, "look", "if now_ms - seen[2] >= options.producer_idle_min_ms:", "if True:"))
    with pytest.raises(AssertionError):
        test_px2_a_clock_that_jumps_closes_nobody_who_writes()


def test_px3_a_look_closes_so_many_and_no_more() -> None:
    world = World()
    for number in range(CLOSED_PER_LOOK + 10):
        world.open(f"p{number}", at_ms=0)
    world.look()
    world.wait(IDLE_MS)
    assert [len(world.look()) for _ in range(3)] == [CLOSED_PER_LOOK, 10, 0]


def test_f3_when_a_producer_wrote_is_known_after_a_snapshot_and_from_one_of_an_older_version() -> None:
    world = World()
    world.write(7, 1, at_ms=5_000)
    state: dict[str, Any] = world.fold.state()
    assert world.fold.used_ms(7) == 5_000
    assert world.fold.used_ms(8) is None
    for with_times, found in ((True, 5_000), (False, 9_000)):
        other = World()
        if not with_times:
            del state["producers_used_ms"]
        other.append(encode_control([ChannelSnapshot(state=state)], time_us=1), at_ms=9_000)
        assert other.fold.used_ms(7) == found
        assert other.fold.producers[identity(7)[:8]].last_seq == 1


# --- of a leader among others ----------------------------------------------------------------------------


EXPIRY_MS = 20_000
SEEN_MS = 2_000


def silent_kit() -> Kit:
    """Three nodes; "quiet" wrote once, "busy" writes all the time."""
    kit = Kit("a", "b", "c", options=ReplicationOptions(producer_expiry_ms=EXPIRY_MS, producer_idle_min_ms=SEEN_MS))
    kit.create(leader="b", factor=3)
    kit.run_until(lambda: kit.is_whole())
    for name in ("quiet", "busy"):
        kit.take(OpenProducer(channel_id=1, name=name, owner="operator:anna", at_ms=kit.now_us // 1000))
    return kit


def write(kit: Kit, name: str, seq: int) -> None:
    record = kit.catalog.producer_named(1, name)
    assert record is not None
    leader = kit["b"].replica()
    made = encode_values([b"x"], time_us=1, base_seq=seq, producer=identity(record.producer_id, record.epoch))
    leader.produce(ProduceOrder((name, seq), made), kit.now_ms)
    kit.run(10)


def test_a_leader_has_the_catalog_close_who_is_silent_and_nobody_else() -> None:
    """From its own looks to the metadata leader's controller, which takes it from the channel's leader alone (CD4)."""
    kit = silent_kit()
    write(kit, "quiet", 1)
    for seq in range(1, 2 * EXPIRY_MS // SEEN_MS):
        write(kit, "busy", seq)
        kit.run(SEEN_MS // 2)
    assert kit.catalog.producer_named(1, "quiet") is not None, "PX1: its time has not come"
    for seq in range(2 * EXPIRY_MS // SEEN_MS, 3 * EXPIRY_MS // SEEN_MS):
        write(kit, "busy", seq)
        kit.run(SEEN_MS // 2)
    assert [one.name for one in kit.catalog.producers_of(1)] == ["busy"]


def test_cd4_a_node_that_does_not_lead_the_channel_closes_nobodys_producer() -> None:
    kit = silent_kit()
    record = kit.catalog.producer_named(1, "quiet")
    assert record is not None
    change = CloseProducer(producer_id=record.producer_id, expected_epoch=record.epoch)
    kit.queue.append((TO_METADATA, "a", ProposeChange(change=encode_change(change))))
    kit.run(100)
    assert kit.catalog.producer_named(1, "quiet") is not None
    kit.queue.append((TO_METADATA, "b", ProposeChange(change=encode_change(change))))
    kit.run(100)
    assert kit.catalog.producer_named(1, "quiet") is None


# --- on nodes ------------------------------------------------------------------------------------------


async def test_clients_close_what_has_no_name_and_operators_what_has_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as nodes:
        client = await nodes.client()
        await created(client, ["a"], 1)
        for number in range(3):
            async with client.producer("a") as unnamed:
                await unnamed.send(b"%d" % number)
        assert await client.producers("a") == []
        async with client.producer("a", name="mine") as named:
            await named.send(b"x")
        (found,) = await client.producers("a")
        assert (found["name"], found["epoch"], found["owner"]) == ("mine", 1, "client:client")
        assert found["used_at_ms"] >= found["opened_at_ms"] - 5_000
        assert await client.remove_producer("a", "mine")
        assert not await client.remove_producer("a", "mine")
        assert await client.producers("a") == []
        await client.close()


async def test_a_producer_that_was_closed_opens_itself_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as nodes:
        client = await nodes.client()
        await created(client, ["a"], 1)
        producer = client.producer("a", name="mine")
        assert await producer.send(b"0") == 1
        assert await client.remove_producer("a", "mine")
        assert await producer.send(b"1") == 2
        (found,) = await client.producers("a")
        assert found["name"] == "mine"
        await client.close()


def test_channels_beyond_the_limits_are_refused_in_words() -> None:
    cluster, _ = three()
    limits = ReplicationOptions(channels_max=1, replicas_per_node_max=5)
    with pytest.raises(CatalogFull, match=r"channels\.max"):
        require_room(cluster.catalog, {}, ["n1"], limits)
    limits = ReplicationOptions(channels_max=10, replicas_per_node_max=5)
    require_room(cluster.catalog, {"n1": NodeLoad(replicas=4)}, ["n1", "n2"], limits)
    with pytest.raises(CatalogFull, match=r"node n1 \(the setting channels\.max-replicas-per-node\)"):
        require_room(cluster.catalog, {"n1": NodeLoad(replicas=5)}, ["n1", "n2"], limits)
