"""state.json: what it shows, and that nothing depends on it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import wait_until
from tests.uplink.clouds import log_end_on_disk, running_cloud, saved
from tests.uplink.parties import LplexBoat, backfill_block, dialed, holes, lpj_block, run, send_frames
from tidelog.cluster.boats.state_file import SavedState, read_devices, read_state, write_state
from tidelog.cluster.boats.view import InstanceStatus
from tidelog.storage.os_disk import OsDisk
from tidelog.units import parse_time_us

NAME = "boat-001"
KEYS = ["id", "cursor", "holes", "boat_head_seq", "boat_journal_bytes", "last_seen", "lost", "void", "lineage"]
KEYS += ["session", "log_end", "snapshot"]


async def sail(port: int) -> None:
    """Frames 1 to 100 by Live, then a Handshake at 200: 101 to 199 are missing."""
    async with dialed(port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        await send_frames(boat.live(), range(1, 101))
    async with dialed(port) as channel:
        boat = LplexBoat(channel, NAME)
        assert holes(await boat.handshake(200, journal_bytes=5_000)) == [(101, 200)]
        await send_frames(boat.live(), range(200, 211))


def test_state_file_shows_the_boat_as_the_seed_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cloud(tmp_path) as house:
            await sail(house.port)
            await wait_until(lambda: not house.status(NAME).connected, "the boat has hung up")
            await wait_until(lambda: saved(tmp_path, NAME)["boat_head_seq"] == 210, "the file is up to date")
            state = saved(tmp_path, NAME)
            assert list(state) == KEYS
            assert (state["id"], state["cursor"], state["boat_journal_bytes"]) == (NAME, 100, 5_000)
            assert state["holes"] == [{"start": 101, "end": 200}]
            assert state["lost"] == state["void"] == []
            assert (state["session"], len(state["lineage"])) == (2, 32)
            assert parse_time_us(state["last_seen"]) == house.status(NAME).last_seen_us
            # What happened is noted in the log a moment later, and then in the file.
            await wait_until(
                lambda: saved(tmp_path, NAME)["log_end"] == house.log(NAME).log_end, "the file speaks of the whole log"
            )

    run(scenario())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tidelog", NAME], "internals have their own folder"


async def test_state_file_is_written_at_the_handshake(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        await LplexBoat(channel, NAME).handshake(7, journal_bytes=123)
        await wait_until(lambda: (tmp_path / NAME / "state.json").exists(), "the file is there")
        state = saved(tmp_path, NAME)
        assert (state["cursor"], state["boat_head_seq"], state["boat_journal_bytes"]) == (0, 7, 123)
        assert state["holes"] == [{"start": 1, "end": 7}]


async def test_state_file_is_written_at_the_stop_and_fits_the_log(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house:
        await sail(house.port)
        await wait_until(lambda: not house.status(NAME).connected, "the boat has hung up")
        before = house.status(NAME)
    assert saved(tmp_path, NAME)["log_end"] == log_end_on_disk(tmp_path, NAME)
    async with running_cloud(tmp_path) as house:
        await house.wait_ready()
        after = house.status(NAME)
        assert [status.id for status in house.view.instances()] == [NAME]
        for field in ("cursor", "head", "holes", "lost", "void", "lineage", "session", "journal_bytes"):
            assert getattr(after, field) == getattr(before, field), field
        assert after.last_seen_us == before.last_seen_us
        assert not after.connected


def _lie(path: Path) -> None:
    state = json.loads(path.read_text())
    state.update(cursor=9_999, holes=[], boat_head_seq=9_999, session=77, lineage="ab" * 16, snapshot=60)
    path.write_text(json.dumps(state))


def _age(path: Path) -> None:
    state = json.loads(path.read_text())
    state.update(cursor=3, holes=[{"start": 4, "end": 9}], boat_head_seq=9, session=1, log_end=4)
    path.write_text(json.dumps(state))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.unlink(), id="deleted"),
        pytest.param(lambda path: shutil.rmtree(path.parent), id="folder-deleted"),
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.write_bytes(b"[" * 100_000), id="nested"),
        pytest.param(lambda path: path.write_text('{"id": "boat-001", "cursor": -1}'), id="nonsense"),
        pytest.param(_lie, id="lying"),
        pytest.param(_age, id="older"),
    ],
)
async def test_a_state_file_never_changes_what_the_cloud_answers(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    async with running_cloud(tmp_path) as house:
        await sail(house.port)
        await wait_until(lambda: not house.status(NAME).connected, "the boat has hung up")
        before = house.status(NAME)
    damage(tmp_path / NAME / "state.json")
    async with running_cloud(tmp_path) as house:
        await house.wait_ready()
        await wait_until(lambda: house.status(NAME).session == 2, "the log has been read")
        after = house.status(NAME)
        for field in ("cursor", "head", "holes", "lost", "void", "lineage", "session"):
            assert getattr(after, field) == getattr(before, field), field
        async with dialed(house.port) as channel:
            welcome = await LplexBoat(channel, NAME).handshake(210)
            assert (welcome.cursor, holes(welcome), welcome.session) == (100, [(101, 200)], 3)

            def is_rebuilt() -> bool:
                found = read_state(OsDisk(tmp_path), NAME)
                return found is not None and found.status.session == 3

            await wait_until(is_rebuilt, "the file is written anew")
            assert saved(tmp_path, NAME)["cursor"] == 100


async def test_boats_that_have_not_spoken_since_the_start_are_listed_by_id(tmp_path: Path) -> None:
    names = ["boat-010", "boat-002", "Zephyr", "a.b_c"]

    async with running_cloud(tmp_path) as house:
        for place, name in enumerate(names):
            async with dialed(house.port) as channel:
                boat = LplexBoat(channel, name)
                await boat.handshake(1)
                await send_frames(boat.live(), range(1, 10 + place))
    (tmp_path / "boat-002" / "state.json").unlink()
    async with running_cloud(tmp_path) as house:
        await house.wait_ready()
        assert [status.id for status in house.view.instances()] == sorted(names)
        assert {status.id: status.cursor for status in house.view.instances()} == {
            name: 9 + place for place, name in enumerate(names)
        }
        assert house.view.instance("nobody") is None


async def test_connected_is_true_exactly_while_a_live_stream_of_the_newest_session_runs(tmp_path: Path) -> None:
    async with running_cloud(tmp_path) as house, dialed(house.port) as channel:
        boat = LplexBoat(channel, NAME)
        await boat.handshake(1)
        assert not house.status(NAME).connected, "a Handshake alone is no stream"
        live = boat.live()
        await send_frames(live, range(1, 4))
        assert house.status(NAME).connected
        backfill = boat.backfill()
        await backfill.write(backfill_block(range(1, 4), lpj_block(range(1, 4))))
        await backfill.done_writing()
        await wait_until(lambda: house.events(NAME)[-1][0] == "backfill_stop", "Backfill has ended")
        assert house.status(NAME).connected, "Live goes on"
        await live.done_writing()
        await wait_until(lambda: not house.status(NAME).connected, "Live has ended")
        assert house.instance(NAME).channel.wake_at_ms() is None, "no acks for nobody"
        seen_us = house.status(NAME).last_seen_us
        await boat.handshake(3)
        assert house.status(NAME).last_seen_us > seen_us


def test_state_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    status = InstanceStatus(
        id=NAME,
        connected=False,
        cursor=5,
        head=90,
        journal_bytes=2**40,
        holes=(range(6, 10), range(20, 30)),
        lost=(range(40, 41),),
        void=(range(50, 60),),
        lineage="0f" * 16,
        session=3,
        last_seen_us=1_750_000_000_000_001,
        frames_received=0,
        frames_by_live=0,
        frames_by_backfill=0,
    )
    state = SavedState(status=status, log_end=12, snapshot=7)
    write_state(OsDisk(tmp_path), state)
    assert read_state(OsDisk(tmp_path), NAME) == state
    assert saved(tmp_path, NAME)["last_seen"] == "2025-06-15T15:06:40.000001Z"


def test_no_bytes_in_the_files_raise(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    folder = tmp_path / NAME
    folder.mkdir()
    whole = json.dumps(dict.fromkeys(KEYS, 1)).encode()
    values: list[object] = [None, -1, 2**64, 1.5, "x", [], {}, [1], [{"start": 2, "end": 1}], [[0, [1]]], True]
    for _ in range(500):
        state: dict[str, object] = {key: rng.choice(values) for key in KEYS}
        state["id"] = NAME
        text = json.dumps(state).encode() if rng.random() < 0.7 else whole[: rng.randrange(len(whole))]
        (folder / "state.json").write_bytes(text)
        assert read_state(OsDisk(tmp_path), NAME) is None
        device = {"source": rng.choice(values), "name": rng.choice(values), "product": rng.choice(values)}
        (folder / "devices.json").write_text(json.dumps([device]))
        assert read_devices(OsDisk(tmp_path), NAME) is None
