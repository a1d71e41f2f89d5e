"""Real nodes whose disk has lost what it had synced: every acked record is still there, whichever node starts first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.kits.cluster_kit import ClusterKit

from tests.nats.test_subject_kills import operator_files
from tests.patience import patient
from tidelog.client import Client, connect
from tidelog.errors import LogError

RECORDS = 120
DEADLINE_S = 60.0


def newest_wal(data: Path) -> Path:
    files = [path for path in sorted((data / ".tidelog" / "wal").glob("*.wal")) if path.stat().st_size > 64]
    assert files, "there is something to damage"
    return files[-1]


def remove(path: Path) -> None:
    path.unlink()


def zero(path: Path) -> None:
    """From the middle of what was written."""
    data = path.read_bytes()
    half = len(data.rstrip(b"\0")) // 2
    path.write_bytes(data[:half] + bytes(len(data) - half))


def flip(path: Path) -> None:
    """The last bytes that were written."""
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    path.write_bytes(data[: end - 4] + bytes(byte ^ 0xFF for byte in data[end - 4 : end]) + data[end:])


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterKit]:
    with ClusterKit(tmp_path_factory.mktemp("lying"), nodes=3) as kit:
        yield kit


async def connected(kit: ClusterKit) -> Client:
    return await connect([kit.address(name) for name in kit.names], tls=operator_files(kit))


async def written(kit: ClusterKit, channel: str, victim: str) -> None:
    """Acked by all three, led by the one whose disk will lie."""
    kit.start_all()
    async with kit.caller() as caller:
        await kit.wait_formed(caller)
    async with await connected(kit) as client:
        await client.create_channel(channel, factor=3, min_isr=2, leader_pinned=victim, heartbeat_ms=100)
        producer = client.producer(channel, timeout_ms=int(DEADLINE_S * 1000))
        for number in range(RECORDS):
            receipt = producer.send(b"%d" % number)
            if number % 10 == 9:
                await receipt
        await producer.close()


async def all_records(client: Client, channel: str) -> list[bytes]:
    """All that can be read, once somebody leads."""
    end = time.monotonic() + patient(DEADLINE_S)
    found: list[bytes] = []
    while len(found) < RECORDS and time.monotonic() < end:
        found = []
        try:
            async with asyncio.timeout(patient(5)), client.reader(channel, follow=False, start="earliest") as reader:
                while records := await reader.read():
                    found += [record.value or b"" for record in records]  # type: ignore[union-attr]
        except (LogError, TimeoutError):
            await asyncio.sleep(0.2)
    return found


async def status_of(kit: ClusterKit, name: str) -> dict[str, Any]:
    async with kit.caller() as caller:
        end = time.monotonic() + patient(DEADLINE_S)
        while time.monotonic() < end:
            if (status := await kit.status(caller, name)) is not None:
                return status
            await asyncio.sleep(0.1)
    raise AssertionError(kit.last_words())


CASES = [
    pytest.param(
        damage,
        others,
        id=f"{damage.__name__}-{'all' if others == 2 else 'one'}",
        marks=() if (damage, others) == (remove, 1) else pytest.mark.slow,
    )
    for damage in (remove, zero, flip)
    for others in (1, 2)
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("damage", "others"), CASES)
def test_all_acked_records_are_there_after_a_disk_lost_what_it_had_synced(
    kit: ClusterKit, damage: Callable[[Path], None], others: int
) -> None:
    channel, victim = f"c-{damage.__name__}-{others}", kit.names[-1]
    asyncio.run(written(kit, channel, victim))
    kit.kill_all()
    damage(newest_wal(kit.nodes[victim].data))
    for name in (victim, *kit.names[:others]):
        kit.start(name)

    async def story() -> list[bytes]:
        async with await connected(kit) as client:
            return await all_records(client, channel)

    found = asyncio.run(story())
    assert found == [b"%d" % number for number in range(RECORDS)], kit.last_words()
    status = asyncio.run(status_of(kit, victim))
    assert status["synced_loss"], "the disk's own mark tells that something is gone"
    assert any(f"the disk of {victim} lost what it had synced" in words for words in status["findings"]), status
    kit.start_all()
    assert len(asyncio.run(story())) == RECORDS, kit.last_words()
