"""Seed 001 end to end, embedded: three nodes in one process, over real sockets, driven by nothing but the API.

The list is that of the reference's end-to-end tests (redex.md, section 10), without anybody setting roles by hand, and
with what it lacks: a follower refuses to write, acknowledged records survive, readers re-route.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.embedded.parties import MEMORY, harbour, replicated, values
from tidelog.core.catalog import ChannelRecord
from tidelog.embedded import (
    Cause,
    ColocationStrict,
    FileConfig,
    Pinned,
    ReplicationConfig,
    Role,
    RoleChange,
)
from tidelog.embedded.replicated_file import ReplicatedFile
from tidelog.errors import (
    ConfigMismatch,
    InvalidConfig,
    InvalidTransition,
    LogClosed,
    NoReplicaHere,
    NotChannelLeader,
    PlacementRefused,
    ReplicationNotEnabled,
    TransitionReserved,
    WrongCause,
)

EVENTS = [b"event %d" % number for number in range(32)]


async def test_the_snippet_of_the_seed_works_as_it_reads(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        manager, node = port.managers["n1"], port.nodes["n1"]
        manager.enable_replication(node)  # again: nothing changes
        manager.enable_replication(node)
        with pytest.raises(InvalidConfig, match="disable"):
            manager.enable_replication(port.nodes["n2"])
        config = FileConfig().with_replication(ReplicationConfig.new().with_factor(3).with_heartbeat_ms(500))
        file = await manager.open_file("spray", config)
        assert await manager.open_file("spray", config) is file
        files = await port.open("spray", config)
        leader = await port.leader(files)
        first = await files[leader].append_batch(EVENTS)
        assert [record.offset for record in await files[leader].read_range(0, 100)] == [
            first + number for number in range(32)
        ]
        coordinator = manager.replication_coordinator_for("spray")
        assert coordinator is not None
        assert coordinator.role in (Role.LEADER, Role.REPLICA)
        text = manager.metrics.snapshot().prometheus_text()
        assert 'dataforts_replication_sync_bytes_total{channel="spray"}' in text
        record = node.core.catalog and node.core.catalog.channel("spray")
        assert record
        assert FileConfig.from_channel_config(record.config) == config, "an operator sees what the program asked for"


async def test_e1_a_second_node_catches_up_with_32_events_in_order(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        files = await port.open("spray", replicated(placement=Pinned(["n1", "n2"]), leader_pinned="n1"))
        assert await port.leader(files) == "n1"
        for event in EVENTS:
            await files["n1"].append(event)
        end = files["n1"].committed_end
        await port.until(lambda: files["n2"].committed_end == end, "the replica knows all as committed")
        assert await values(files["n2"]) == EVENTS
        assert port.counts("n1", "spray").sync_bytes > 0
        assert port.counts("n1", "spray").leader_changes == 1
        assert port.counts("n2", "spray").leader_changes == 0
        assert port.counts("n2", "spray").sync_bytes == 0, "only who sends counts"


async def test_e3_when_the_leader_closes_the_file_a_replica_leads(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        files = await port.open("spray", replicated())
        old = await port.leader(files)
        await files[old].append_batch(EVENTS)
        await port.managers[old].close_file("spray")
        rest = {name: file for name, file in files.items() if name != old}
        new = await port.leader(rest)
        await rest[new].append(b"after")
        assert await values(rest[new]) == [*EVENTS, b"after"]
        with pytest.raises(LogClosed):
            await files[old].append(b"late")
        assert port.managers[old].replication_coordinator_for("spray") is None
        # Its node keeps the copy that the catalog counts on, and opening again finds it.
        again = await port.managers[old].open_file("spray", replicated())
        assert isinstance(again, ReplicatedFile)
        assert port.role(again) is Role.REPLICA
        await port.until(lambda: again.committed_end == rest[new].committed_end, "it went on following")
        assert await values(again) == [*EVENTS, b"after"]


async def test_e4_24_events_fan_out_and_every_field_of_the_metrics_is_there(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        files = await port.open("spray", replicated())
        leader = await port.leader(files)
        await asyncio.gather(*(files[leader].append(event) for event in EVENTS[:24]))
        end = files[leader].committed_end
        for name, file in files.items():
            await port.until(lambda file=file: file.committed_end == end, f"{name} has all")  # type: ignore[misc]
            assert sorted(map(bytes, filter(None, await values(file)))) == sorted(EVENTS[:24])
        orders = [await values(file) for file in files.values()]
        assert orders[0] == orders[1] == orders[2]
        for name in files:
            counts = port.counts(name, "spray")
            assert counts.under_capacity == counts.skip_ahead == counts.witness_withdrawals == 0
            assert counts.leader_changes == (name == leader)
            assert counts.lag is not None
            assert counts.lag.role == ("leader" if name == leader else "replica")
            assert counts.lag.silence_us < 30_000_000
            await port.until(
                lambda name=name: (
                    (lag := port.counts(name, "spray").lag) is not None  # type: ignore[misc]
                    and (lag.records, lag.byte_count) == (0, 0)
                ),
                "nobody is behind",
            )
        text = port.managers[leader].metrics.snapshot().prometheus_text()
        for metric, kind in (
            ("dataforts_replication_lag_seconds", "gauge"),
            ("dataforts_replication_sync_bytes_total", "counter"),
            ("dataforts_leader_changes_total", "counter"),
            ("dataforts_replication_under_capacity_total", "counter"),
            ("dataforts_replication_skip_ahead_total", "counter"),
            ("dataforts_replication_election_thrash_total", "counter"),
            ("dataforts_replication_witness_withdrawals_total", "counter"),
        ):
            assert f"# TYPE {metric} {kind}\n" in text
            assert f'\n{metric}{{channel="spray"' in text
        assert f'dataforts_replication_lag_seconds{{channel="spray",role="{"leader"}"}}' in text


async def test_a_pinned_leader_leads_and_replicates_16(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        files = await port.open("spray", replicated(leader_pinned="n3"))
        assert await port.leader(files) == "n3"
        await files["n3"].append_batch(EVENTS[:16])
        for file in files.values():
            await port.until(lambda file=file: file.committed_end >= 16, "it has all 16")  # type: ignore[misc]
            assert await values(file) == EVENTS[:16]


async def test_a_follower_never_takes_a_write_and_names_the_leader(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        files = await port.open("spray", replicated())
        leader = await port.leader(files)
        await files[leader].append(b"one")
        for name, file in files.items():
            if name == leader:
                continue
            with pytest.raises(NotChannelLeader) as refusal:
                await file.append(b"mine")
            assert refusal.value.leader == leader
            assert refusal.value.address == port.peers[leader]
            assert refusal.value.definite
        assert await values(files[leader]) == [b"one"]


async def test_disabling_replication_lets_go_of_the_node_and_keeps_local_files(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        files = await port.open("spray", replicated())
        leader = await port.leader(files)
        manager = port.managers[leader]
        local = await manager.open_file("notes", MEMORY)
        await manager.disable_replication()
        await manager.disable_replication()
        assert not manager.is_replicating
        with pytest.raises(LogClosed):
            await files[leader].append(b"x")
        assert await local.append(b"on") == 0
        assert manager.metrics.snapshot().prometheus_text() == ""
        with pytest.raises(ReplicationNotEnabled):
            await manager.open_file("spray", replicated())
        rest = {name: file for name, file in files.items() if name != leader}
        new = await port.leader(rest)
        await rest[new].append(b"without it")
        manager.enable_replication(port.nodes[leader])
        again = await manager.open_file("spray", replicated())
        assert isinstance(again, ReplicatedFile)
        await port.until(lambda: again.committed_end == rest[new].committed_end, "it goes on")
        assert await values(again) == [b"without it"]


async def test_standard_placement_of_two_leaves_the_third_idle_and_it_still_reads(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        files = await port.open("spray", replicated(factor=2))
        leader = await port.leader(files)
        await files[leader].append_batch(EVENTS)
        idle = [name for name, file in files.items() if port.role(file) is Role.IDLE]
        assert len(idle) == 1
        outside = files[idle[0]]
        statistics = outside.coordinator.statistics()
        assert (statistics.role, statistics.log_end, statistics.leader) == (Role.IDLE, 0, leader)
        assert not outside.coordinator.is_advertised
        holders = port.managers[idle[0]].find_chain_holders("spray")
        assert sorted(holders) == sorted(name for name in files if name != idle[0])
        assert await values(outside) == EVENTS, "read from a holder"
        assert outside.committed_end == files[leader].committed_end
        with pytest.raises(NotChannelLeader, match=leader):
            await outside.append(b"x")
        with pytest.raises(NoReplicaHere):
            await outside.sweep_retention()


async def test_strict_colocation_goes_only_where_the_chain_is(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        first = await port.open("spray", replicated(placement=Pinned(["n1", "n3"])))
        leader = await port.leader(first)
        await first[leader].append_batch(EVENTS)
        chain = first[leader].coordinator.tag.removeprefix("causal:")
        assert first[leader].coordinator.is_advertised
        beside = MEMORY.with_replication(
            ReplicationConfig.new()
            .with_factor(2)
            .with_placement(ColocationStrict())
            .with_placement_metadata({"metadata.colocate-with-strict": chain})
        )
        record: ChannelRecord | None = None
        refusals: list[str] = []
        while record is None or len(record.replicas) < 2:
            # Placement believes load reports, which come now and then.
            try:
                await port.managers["n2"].open_file("foam", beside)
                record = port.nodes["n2"].channels.catalog.channel("foam")
            except PlacementRefused as refusal:
                refusals.append(str(refusal))
            await asyncio.sleep(0.05)
        assert set(record.replicas) == {"n1", "n3"}
        assert all(chain in words for words in refusals), refusals


async def test_closing_one_channel_keeps_the_tags_of_the_others(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        both = [await port.open(name, replicated()) for name in ("spray", "foam")]
        for files in both:
            leader = await port.leader(files)
            await files[leader].append(b"x")
        tags = {files["n1"].coordinator.tag for files in both}
        assert len(tags) == 2, "a tag of its own for each channel"
        await port.until(lambda: len(port.managers["n2"].find_chain_holders("foam")) == 3, "everybody holds the second")
        await port.managers["n1"].close_file("spray")
        await port.until(
            lambda: sorted(port.managers["n2"].find_chain_holders("foam")) == ["n1", "n2", "n3"], "still all"
        )
        assert both[1]["n1"].coordinator.is_advertised


async def test_opening_with_another_config_than_the_live_one_is_refused_on_every_node(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        await port.managers["n1"].open_file("spray", replicated())
        for name, manager in port.managers.items():
            with pytest.raises(ConfigMismatch) as refusal:
                await manager.open_file("spray", replicated(heartbeat_ms=700))
            assert (refusal.value.channel, refusal.value.setting) == ("spray", "heartbeat_ms")
            with pytest.raises(ConfigMismatch) as refusal:
                await manager.open_file("spray", MEMORY)
            assert refusal.value.setting == "replicated", name
        local = await port.managers["n2"].open_file("notes")
        await local.append(b"mine")
        await local.close()
        with pytest.raises(ConfigMismatch, match="replicated"):
            await port.managers["n2"].open_file("notes", FileConfig().with_replication(ReplicationConfig.new()))


# --- the coordinator -----------------------------------------------------------------------------


async def test_a_leader_steps_down_by_hand_and_may_be_elected_again_by_hand(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        files = await port.open("spray", replicated())
        old = await port.leader(files)
        await files[old].append_batch(EVENTS)
        handle = files[old].coordinator
        changes: list[RoleChange] = []
        end = handle.observe(changes.append)
        assert await handle.transition_to(Role.IDLE, Cause.GRACEFUL_RELINQUISH) is Role.REPLICA
        await port.until(lambda: handle.leader not in (old, None), "another one leads")
        assert await handle.wait_for_role(Role.REPLICA) is Role.REPLICA
        new = await port.leader(files)
        await files[new].append(b"between")
        await port.until(lambda: files[old].committed_end == files[new].committed_end, "it follows")
        epoch = handle.record.leader_epoch
        await handle.transition_to(Role.CANDIDATE, Cause.ELECTION_CALLED)
        await handle.wait_for_role(Role.LEADER)
        assert handle.record.leader_epoch == epoch + 1
        await port.until(lambda: [c.after for c in changes][-1:] == [Role.LEADER], "the observer saw it")
        assert [(c.before, c.after) for c in changes] == [(Role.LEADER, Role.REPLICA), (Role.REPLICA, Role.LEADER)]
        end()
        await files[old].append(b"again")
        assert await values(files[old]) == [*EVENTS, b"between", b"again"]
        assert port.counts(old, "spray").leader_changes == 2
        assert port.counts(old, "spray").election_thrash == 0, "nobody missed a heartbeat"


async def test_an_observer_that_fails_is_reported_and_harms_nobody(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        files = await port.open("spray", replicated())
        leader = await port.leader(files)
        handle = files[leader].coordinator
        reported: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(str(context["exception"])))
        seen: list[Role] = []

        def fail(change: RoleChange) -> None:
            raise ValueError(f"cannot stand {change.after.name}")

        handle.observe(fail)
        end = handle.observe(lambda change: seen.append(change.after))
        await handle.transition_to(Role.IDLE, Cause.GRACEFUL_RELINQUISH)
        await port.until(lambda: seen == [Role.REPLICA], "the next observer was told")
        assert reported == ["cannot stand REPLICA"]
        end()
        end()
        new = await port.leader(files)
        await files[new].append(b"on")


async def test_a_transition_that_is_not_in_the_table_or_not_for_hands_is_refused(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        files = await port.open("spray", replicated())
        leader = await port.leader(files)
        follower = next(name for name in files if name != leader)
        led, followed = files[leader].coordinator, files[follower].coordinator
        await followed.wait_for_role(Role.REPLICA)
        refusals = (
            (led, Role.CANDIDATE, Cause.ELECTION_CALLED, InvalidTransition),
            (led, Role.LEADER, Cause.ELECTION_WON, InvalidTransition),
            (led, Role.IDLE, Cause.ELECTION_LOST, WrongCause),
            (led, Role.REPLICA, Cause.PEER_LEADER_OBSERVED, TransitionReserved),
            (led, Role.IDLE, Cause.LEADER_DISK_PRESSURE_WITHDRAW, TransitionReserved),
            (led, Role.IDLE, Cause.CHANNEL_CLOSE, TransitionReserved),
            (followed, Role.LEADER, Cause.ELECTION_WON, InvalidTransition),
            (followed, Role.IDLE, Cause.GRACEFUL_RELINQUISH, WrongCause),
            (followed, Role.CANDIDATE, Cause.MISSED_HEARTBEATS, TransitionReserved),
            (followed, Role.IDLE, Cause.PLACEMENT_DESELECTED, TransitionReserved),
        )
        for handle, role, cause, error in refusals:
            before = handle.role
            with pytest.raises(error):
                await handle.transition_to(role, cause)
            assert handle.role is before, (role, cause)


async def test_a_copy_withdrawn_by_hand_loses_its_tag_and_readers_go_elsewhere(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        files = await port.open("spray", replicated(min_isr=2))
        leader = await port.leader(files)
        await files[leader].append_batch(EVENTS[:10])
        gone = next(name for name in files if name != leader)
        file, handle = files[gone], files[gone].coordinator
        await port.until(lambda: file.committed_end == files[leader].committed_end, "it has all")
        assert handle.find_chain_holders()[0] == gone, "this node first"
        tail = file.tail(0)
        seen = [(await anext(tail)).offset for _ in range(10)]
        assert await handle.transition_to(Role.IDLE, Cause.DISK_PRESSURE_WITHDRAW) is Role.IDLE
        assert not handle.is_advertised
        assert gone not in handle.find_chain_holders()
        await files[leader].append_batch(EVENTS[10:])
        while len(seen) < len(EVENTS):
            seen.append((await anext(tail)).offset)
        assert seen == sorted(set(seen)), "once each, in order"
        assert await values(file) == EVENTS
        await tail.aclose()  # type: ignore[attr-defined]


async def test_acknowledged_records_survive_the_node_that_took_them(tmp_path: Path) -> None:
    async with harbour(tmp_path) as port:
        config = FileConfig().with_replication(ReplicationConfig.new().with_factor(3))
        files = await port.open("spray", config)
        old = await port.leader(files)
        reader = files[next(name for name in files if name != old)]
        tail = reader.tail(0)
        acked = [event for event in EVENTS if await files[old].append(event) >= 0]
        await port.stop(old)
        rest = {name: file for name, file in files.items() if name != old}
        new = await port.leader(rest)
        await rest[new].append(b"after")
        seen = []
        while b"after" not in seen:
            record = await anext(tail)
            seen.append(getattr(record, "value", None))
        assert seen == [*acked, b"after"]
        await tail.aclose()  # type: ignore[attr-defined]
