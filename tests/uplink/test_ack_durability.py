"""An ack is a promise: a cloud that is killed the moment it was read still has everything that was acked."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.uplink.parties import Fleet, LplexBoat, answer, backfill_block, dialed, live_frame, lpj_block, row, run
from tests.uplink.processes import CloudProcess, frames_of, seed_of_the_day
from tidelog.cluster.boats.channel import fold_log
from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.recovery import open_store

NAME = "boat-001"
ROUNDS = 3


class Victim:
    """A cloud to be killed, and what it had acked by then."""

    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet(folder / "fleet")
        node = (self.fleet.node.certificate, self.fleet.node.key)
        self.cloud = CloudProcess(folder, node=node, boats_authority=self.fleet.boats.certificate_pem)
        self.cursor = 0
        self.live_through = 0
        self.sent_through = 0

    def on_disk(self) -> tuple[dict[int, Any], int]:
        """The frames and the cursor that a cloud would find; read from a copy, for the next one is still to come."""
        copy = self.cloud.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.cloud.folder / "data", copy)
        store = open_store(OsDisk(copy), now_us=wall_clock_us())
        try:
            log = store.log(NAME, now_us=wall_clock_us())
            fold = fold_log(log.blocks())
            frames = {seq: found for (_, seq), found in frames_of(log.blocks()).items()}
            return frames, fold.lineages[fold.current or b""].cursor
        finally:
            store.close(wall_clock_us())


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    found = Victim(tmp_path)
    found.cloud.start()
    yield found
    found.cloud.kill()


async def acks(stream: Any) -> AsyncIterator[pb.LiveDownstream]:
    while True:
        yield pb.LiveDownstream.FromString(await answer(stream))


async def kill_after_an_ack(victim: Victim, rng: random.Random) -> None:
    """Send without waiting, and kill with SIGKILL as soon as an ack says enough."""
    enough = victim.sent_through + rng.randrange(1, 300)
    async with dialed(victim.cloud.port, victim.fleet, victim.fleet.boat(NAME)) as channel:
        boat = LplexBoat(channel, NAME)
        welcome = await boat.handshake(victim.sent_through)
        assert welcome.cursor >= victim.cursor, "the cursor never goes back"
        backfill = boat.backfill()
        for missing in welcome.holes:
            seqs = range(missing.start, missing.end)
            await backfill.write(backfill_block(seqs, lpj_block(seqs, 65_536), block_size=65_536))
        live = boat.live()

        async def send() -> None:
            first = max(victim.sent_through, 1)
            for seq in range(first, first + 400):
                await live.write(live_frame(seq))
                victim.sent_through = max(victim.sent_through, seq)

        sending = asyncio.ensure_future(send())
        async for ack in acks(live):
            victim.cursor = max(victim.cursor, ack.acked_through)
            victim.live_through = max(victim.live_through, ack.live_committed_through)
            if victim.live_through >= enough:
                victim.cloud.kill()
                break
        sending.cancel()
        await asyncio.wait({sending})


def test_a_cloud_killed_right_after_an_ack_has_everything_that_was_acked(victim: Victim) -> None:
    rng = random.Random(seed_of_the_day(21))
    for _ in range(ROUNDS):
        run(kill_after_an_ack(victim, rng))
        frames, cursor = victim.on_disk()
        assert cursor >= victim.cursor > 0
        assert victim.live_through in frames
        missing = [seq for seq in range(1, victim.cursor + 1) if frames.get(seq) != row(seq)]
        assert not missing, f"acked and not there: {missing}"
        victim.cloud.start()
