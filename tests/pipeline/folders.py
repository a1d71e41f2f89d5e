"""Folders of logs for tests of the pipeline: a store with frames and messages, a journal, and ways to hurt them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from tests.blocks.crafted import LINEAGE, steady_frames
from tidelog.blocks.block import MadeBlock
from tidelog.blocks.control import EpochStarted, encode_control
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.header import Codec
from tidelog.blocks.header import Path as BlockPath
from tidelog.blocks.messages import Message, encode_messages
from tidelog.edge.journal.journal import JournalOptions, open_journal
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.writer import Append
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.parts import StoreOptions
from tidelog.storage.store.recovery import open_store
from tidelog.storage.store.store import Store

NOW_US = 1_790_000_000_000_000
BLOCK_ROWS = 500


def small_store(folder: Path, *, segment_bytes: int = 32 << 10) -> Store:
    """A store whose segments are small, so that there are many of them."""
    log = LogOptions(reserve_bytes=0, segment_bytes_max=segment_bytes, index_interval_bytes=4 << 10)
    return open_store(OsDisk(folder), now_us=NOW_US, options=StoreOptions(log=log, large_block_bytes=1 << 20))


def put(store: Store, channel: str, blocks: Sequence[MadeBlock], *, epoch: int = 1, path: int = BlockPath.LIVE) -> int:
    """Append blocks, each committed; the channel's end."""
    if channel not in store.names():
        store.create_channel(channel, now_us=NOW_US)
    log = store.log(channel, now_us=NOW_US)
    for block in blocks:
        store.commit_appends([Append(log, block, epoch=epoch, path=path)], NOW_US)
    return log.log_end


def frame_blocks(count: int, *, first_seq: int = 1, rows: int = BLOCK_ROWS, seed: int = 0) -> list[MadeBlock]:
    """Blocks of a steady bus, plain and delta in turn, seqs from `first_seq` on."""
    made = []
    for number in range(count):
        frames = steady_frames(rows, seed=seed + number)
        delta = number % 3 == 2
        made.append(
            encode_frames(
                frames,
                base_seq=first_seq + number * rows,
                producer=LINEAGE,
                delta=delta,
                codec=Codec.ZSTD if delta else Codec.NONE,
            )
        )
    return made


def control_block() -> MadeBlock:
    return encode_control([EpochStarted(epoch=1, node="n1")], time_us=NOW_US)


def message_block(first: int, count: int) -> MadeBlock:
    return encode_messages(
        Message(
            time_us=NOW_US + number,
            value=None if number % 7 == 0 else b"value %d" % number,
            key=b"key %d" % (number % 3) if number % 2 else None,
            headers=(("n", b"%d" % number),) if number % 5 == 0 else (),
        )
        for number in range(first, first + count)
    )


def fleet(folder: Path, *, blocks: int = 20) -> None:
    """Two boats and a channel of messages, in a store that was closed properly."""
    store = small_store(folder)
    for seed, boat in enumerate(("boat-1", "boat-2")):
        put(store, boat, [control_block(), *frame_blocks(blocks, seed=100 * seed)])
    put(store, "notes", [message_block(0, 50), message_block(50, 70)], path=BlockPath.PUBLISH)
    store.close(NOW_US)


def journal(folder: Path, frames: int) -> None:
    """A boat's journal with so many frames, sealed in part."""
    options = JournalOptions(reserve_bytes=0, lease_seqs=1_000)
    lineages = random.Random(7)
    opened = open_journal(
        OsDisk(folder.parent), folder.name, now_us=NOW_US, new_lineage=lambda: lineages.randbytes(16), options=options
    )
    now_us = NOW_US
    for number in range(frames):
        now_us += 1_000
        opened.record(now_us, 0x09F80100 + number % 7, number.to_bytes(8, "little"), now_us)
        if number % 100 == 0:
            opened.wake(now_us)
    opened.close(now_us)


def segments(folder: Path, channel: str) -> list[Path]:
    return sorted((folder / ".tidelog" / "channels").glob(f"{channel}~*/*.seg"))


def spoil(path: Path, position: int) -> None:
    """Flip a bit."""
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(bytes(data))
