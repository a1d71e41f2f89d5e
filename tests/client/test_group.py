"""Consumer groups of the native client, on real nodes: shared out, resumed, fenced, taken over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.client.group_kit import Member, all_values, created, hasty, members, opened, shared_out
from tests.patience import wait_until
from tests.transports.links import refusal_of
from tidelog.client import Client, connect_sync
from tidelog.errors import (
    AccessDenied,
    BadMessage,
    InvalidChange,
    InvalidConfig,
    MemberFenced,
    NotAssigned,
    UnknownGroup,
    UnknownMember,
)

CHANNELS = [f"bus/{number}" for number in range(6)]


async def fill(client: Client, count: int, *, first: int = 0, channels: list[str] = CHANNELS) -> set[tuple[str, bytes]]:
    """Records for every channel."""
    values = [b"%d" % number for number in range(first, first + count)]
    for channel in channels:
        await client.producer(channel).send_many(values)
    return {(channel, value) for channel in channels for value in values}


async def test_members_share_the_channels_and_each_record_is_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as nodes:
        client = await nodes.client()
        await created(client, CHANNELS, 1)
        wanted = await fill(client, 20)
        readers = await members(nodes, 3, ["bus/*"])
        await wait_until(lambda: shared_out(readers, CHANNELS), "all is shared out")
        assert sorted(len(member.group.channels) for member in readers) == [2, 2, 2]
        await wait_until(lambda: all_values(readers) >= wanted, "all is read")
        wanted |= await fill(client, 20, first=20)
        await wait_until(lambda: all_values(readers) == wanted, "what came later too")
        # A channel that is created later is shared out within a moment, and nobody had to ask for it.
        await client.create_channel("bus/new", factor=1)
        wanted |= await fill(client, 3, channels=["bus/new"])
        await wait_until(lambda: all_values(readers) == wanted, "the new channel too")
        described = await client.describe_group("billing")
        assert [member["member"] for member in described["members"]] == ["m0", "m1", "m2"]
        assert described["channels"] == 7
        assert [group["group"] for group in await client.groups()] == ["billing"]
        for member in readers:
            await member.stop()
        assert await client.groups() == []
        assert isinstance(await refusal_of(client.describe_group("billing")), UnknownGroup)
        # Everything was committed: who joins next is given nothing twice.
        wanted = await fill(client, 5, first=100)
        (late,) = await members(nodes, 1, ["bus/*"])
        await wait_until(lambda: all_values([late]) >= wanted, "the group goes on where it was")
        assert all_values([late]) == wanted
        await late.stop()
        await client.close()


async def test_a_member_that_dies_is_missed_and_nothing_is_skipped(tmp_path: Path) -> None:
    async with opened(tmp_path, groups=hasty()) as nodes:
        client = await nodes.client()
        await created(client, CHANNELS, 1)
        wanted = await fill(client, 10)
        readers = await members(nodes, 3, ["bus/*"])
        await wait_until(lambda: shared_out(readers, CHANNELS), "all is shared out")
        await wait_until(lambda: all_values(readers) >= wanted, "all is read")
        dead, alive = readers[0], readers[1:]
        lost = dead.group.channels
        await dead.die()
        wanted |= await fill(client, 10, first=10)
        await wait_until(lambda: shared_out(alive, CHANNELS), "its channels went to the others")
        await wait_until(lambda: all_values([dead, *alive]) >= wanted, "nothing is skipped")
        taken = {name for member in alive for rebalance in member.rebalances for name in rebalance.added}
        assert set(lost) <= taken, "and the others were told"
        assert any("member expelled group=billing member=m0" in line for line in nodes.lines)
        counted = nodes.nodes["n1"].status()["groups"]
        assert counted == {"total": 1, "members": 2, "coordinated": 1, "expelled": 1}
        for member in alive:
            await member.stop()
        await client.close()


async def test_a_member_that_was_expelled_commits_nothing_and_comes_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as nodes:
        client = await nodes.client()
        await client.create_channel("bus/0", factor=1)
        await fill(client, 5, channels=["bus/0"])
        member = Member(await nodes.client(), "billing", ["bus/*"], member="slow", commit="explicit")
        batch = await member.group.read()
        await client.delete_group("billing")  # as an expulsion does, at once
        assert isinstance(await refusal_of(member.group.commit(batch)), UnknownMember | NotAssigned | MemberFenced)
        again = await member.group.read()
        assert again.records == batch.records, "it joined again, and what was not committed comes again"
        assert member.rebalances[-1].expelled
        assert isinstance(await refusal_of(member.group.commit(batch)), MemberFenced), "that was another generation"
        await member.group.commit(again)
        assert await client.cursors("bus/0") == {"group.billing": again.next_offset}
        await member.stop()
        await client.close()


async def test_who_joins_under_a_taken_name_fences_the_one_before(tmp_path: Path) -> None:
    async with opened(tmp_path) as nodes:
        client = await nodes.client()
        await client.create_channel("bus/0", factor=1)
        wanted = await fill(client, 3, channels=["bus/0"])
        (first,) = await members(nodes, 1, ["bus/0"])
        await wait_until(lambda: all_values([first]) == wanted, "the first reads")
        (second,) = await members(nodes, 1, ["bus/0"])
        await wait_until(lambda: isinstance(first.failure, MemberFenced), "the first is told")
        wanted = await fill(client, 3, first=3, channels=["bus/0"])
        await wait_until(lambda: all_values([second]) >= wanted, "the second reads")
        await first.die()
        await second.stop()
        await client.close()


async def test_a_batch_that_is_not_done_comes_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as nodes:
        client = await nodes.client()
        await client.create_channel("bus/0", factor=1)
        await fill(client, 3, channels=["bus/0"])

        async def fails() -> None:
            async with client.group("billing", ["bus/0"]) as group:
                async for batch in group:
                    assert len(batch.records) == 3
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fails()
        async with client.group("billing", ["bus/0"]) as group:
            assert len((await group.read()).records) == 3
        await fill(client, 1, first=9, channels=["bus/0"])
        async with client.group("billing", ["bus/0"]) as group:
            assert [record.value for record in (await group.read()).records] == [b"9"]  # type: ignore[union-attr]
        await client.close()


async def test_more_channels_than_fetches_are_all_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as nodes:
        client = await nodes.client()
        channels = [f"bus/{number}" for number in range(20)]
        await created(client, channels, 1)
        wanted = await fill(client, 2, channels=channels)
        (member,) = await members(nodes, 1, ["bus/*"], fetches_max=3, idle_ms=20)
        await wait_until(lambda: all_values([member]) == wanted, "all is read")
        wanted |= await fill(client, 2, first=2, channels=channels)
        await wait_until(lambda: all_values([member]) == wanted, "and goes on being read")
        await member.stop()
        await client.close()


async def test_what_cannot_be_joined_is_refused_in_words(tmp_path: Path) -> None:
    async with opened(tmp_path) as nodes:
        client = await nodes.client()
        with pytest.raises(InvalidConfig):
            client.group("billing", [])
        with pytest.raises(InvalidConfig):
            client.group("billing", ["a"], commit="never")
        assert isinstance(await refusal_of(client.group("bad name", ["a"]).join()), InvalidChange)
        assert isinstance(await refusal_of(client.group("billing", ["a*b"]).join()), InvalidChange)
        assert isinstance(await refusal_of(client.delete_group("nobody")), UnknownGroup)
        await client.create_channel("bus/0", factor=1)
        channel_id = (await client.describe("bus/0"))["channel_id"]
        claim = {"group": "billing", "member": "m", "life": 1, "epoch": 1}
        for name in ("group.other", "billing"):
            request = {"channel_id": channel_id, "op": "set", "name": name, "offset": 0, "as": claim}
            assert isinstance(await refusal_of(client._calls.ask(0x0207, request, what="a cursor")), BadMessage)
        request = {"channel_id": channel_id, "op": "set", "name": "group.billing", "offset": 0, "as": claim}
        assert isinstance(await refusal_of(client._calls.ask(0x0207, request, what="a cursor")), UnknownMember)
        await client.close()


@pytest.mark.slow
async def test_a_coordinator_that_stops_is_replaced_and_the_group_goes_on(tmp_path: Path) -> None:
    async with opened(tmp_path, count=3, groups=hasty()) as nodes:
        client = await nodes.client()
        await created(client, CHANNELS, 3)
        wanted = await fill(client, 10)
        readers = await members(nodes, 3, ["bus/*"])
        await wait_until(lambda: shared_out(readers, CHANNELS), "all is shared out")
        await wait_until(lambda: all_values(readers) >= wanted, "all is read")
        coordinator = (await client.describe_group("billing"))["coordinator"]
        await nodes.nodes.pop(coordinator).stop()
        wanted |= await fill(client, 10, first=10)
        await wait_until(lambda: all_values(readers) >= wanted, "nothing is skipped")

        def moved() -> bool:
            catalog = next(iter(nodes.nodes.values())).core.catalog
            group = None if catalog is None else catalog.group("billing")
            return group is not None and group.coordinator != coordinator and len(group.members) == 3

        await wait_until(moved, "another node coordinates")
        dead, alive = readers[0], readers[1:]
        await dead.die()
        await wait_until(lambda: shared_out(alive, CHANNELS), "the new coordinator misses who dies")
        for member in alive:
            await member.stop()
        await client.close()


def test_nobody_else_speaks_for_a_member(tmp_path: Path) -> None:
    """Here names are believed, so everybody may do everything: the check itself is looked at in its own place."""
    from tidelog.cluster.clients.access import ClientAccess
    from tidelog.cluster.groups.admin import require_owner
    from tidelog.core.catalog import Catalog, GroupMember, GroupRecord

    access = ClientAccess(catalog=Catalog, now_ms=lambda: 0, insecure_dev=False)
    member = GroupMember(member="a", owner="client:billing", channels=("x",), streams=(), life=1)
    group = GroupRecord(
        group="g",
        epoch=1,
        coordinator="n1",
        coordinator_epoch=1,
        members=(member,),
        balanced_index=1,
        created_at_ms=0,
        changed_index=1,
    )
    assert require_owner(access, group, "a", "client:billing") is member
    assert require_owner(access, group, "a", "operator:anna") is member
    with pytest.raises(AccessDenied):
        require_owner(access, group, "a", "client:other")
    with pytest.raises(UnknownMember):
        require_owner(access, group, "b", "client:billing")


async def test_the_sync_client_reads_as_a_member_too(tmp_path: Path) -> None:
    async with opened(tmp_path) as nodes:
        address = nodes.peers["n1"]

        def whole() -> None:
            with connect_sync(address, insecure_dev=True) as client:
                client.create_channel("bus/0", factor=1)
                client.producer("bus/0").send_many([b"a", b"b"]).result()
                with client.group("billing", ["bus/*"]) as group:
                    batch = next(iter(group))
                    assert batch.channel == "bus/0"
                    group.commit(batch)
                    assert group.channels == ("bus/0",)
                    assert [one["group"] for one in client.groups()] == ["billing"]
                assert client.cursors("bus/0") == {"group.billing": batch.next_offset}

        await asyncio.to_thread(whole)
