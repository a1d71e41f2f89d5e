"""What the tests of the log share: small blocks, a log on a simulated disk, everything it holds."""

from __future__ import annotations

import random
from typing import Any

from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.messages import Message, encode_messages
from tidelog.sim.disk import SimDisk
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.recovery import open_log
from tidelog.storage.log.segment import SEGMENT_HEAD_BYTES

FOLDER = "channel"
CHANNEL = 7


def made(
    count: int = 3, *, seq: int = 0, time_us: int = 1_000, text: str = "value", producer: bytes = bytes(16)
) -> MadeBlock:
    messages = [Message(time_us=time_us + i, value=f"{text} {i}".encode()) for i in range(count)]
    return encode_messages(messages, base_seq=seq, producer=producer)


def stamped(block: MadeBlock, offset: int, *, epoch: int = 1, mark: int = 0, channel_id: int = CHANNEL) -> Block:
    """As another replica's leader stamped it, fresh from the wire."""
    placed = block.stamp(
        base_offset=offset, channel_id=channel_id, leader_epoch=epoch, append_time_us=0, durable_end=mark, path=0
    )
    return Block.parse(placed.tobytes())


def new_disk(seed: int = 1) -> SimDisk:
    return SimDisk(random.Random(seed))


def options(**changes: Any) -> LogOptions:
    return LogOptions(**{"reserve_bytes": 0, "index_interval_bytes": 256, **changes})


def opened(disk: Any, *, now_us: int = 0, verify_all: bool = False, channel_id: int = CHANNEL, **changes: Any) -> Log:
    return open_log(
        disk, FOLDER, now_us=now_us, options=options(**changes), channel_id=channel_id, verify_all=verify_all
    )


def fill(log: Log, blocks: int, *, records: int = 3, epoch: int = 1, now_us: int = 0) -> None:
    """Append blocks of one size one by one, each synced."""
    for number in range(blocks):
        log.append(made(records, text=f"block {log.log_end:06} {number:06}"), epoch=epoch, now_us=now_us)


def killed(log: Log) -> None:
    """The process is gone, the machine is not."""
    log.poison("the process was killed")
    log.close()


def contents(log: Log, **how: Any) -> list[bytes]:
    return [block.tobytes() for block in log.blocks(**how)]


def flip(disk: SimDisk, log: Log, *offsets: int, byte: int = 130) -> None:
    """Rot one bit of each of the blocks that start at these offsets."""
    places = {}
    for segment in log.segments:
        position = SEGMENT_HEAD_BYTES
        for block in log.blocks(segment.base_offset, segment.index.end_offset):
            places[block.offsets.start] = segment.path, position
            position += block.size
    for offset in offsets:
        path, position = places[offset]
        disk.flip_bit(path, position + byte, 3)
