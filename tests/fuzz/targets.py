"""What is fuzzed: each target takes any bytes and may only return, or raise the errors it promises.

The first byte says whether checksums are made to fit before the decoder sees the rest. Without that
the fuzzer would spend its time in front of a CRC; with it alone, the code in front of the CRC would
never run. Everything else that a target raises is a bug, and so is a result that breaks an assert.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from fastcrc.crc32 import iscsi as crc32c

from tests.blocks.crafted import decode_all, reseal, reseal_made, stamped, steady_frames
from tests.fuzz.channel_targets import CHANNEL_TARGETS
from tests.fuzz.gateway_targets import GATEWAY_TARGETS
from tests.fuzz.node_targets import NODE_TARGETS
from tests.fuzz.target import AS_IT_IS, RESEALED, Target
from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.control import EpochStarted, RangeLost, encode_control
from tidelog.blocks.foreign import wrap_foreign
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.header import MAGIC, BlockLimits, Codec
from tidelog.blocks.lpj import (
    LpjCompression,
    LpjDevice,
    decode_lpj_block,
    encode_lpj_block,
    inflate_lpj,
    split_lpj_dictionary,
)
from tidelog.blocks.messages import Message, encode_messages
from tidelog.errors import BadBlock
from tidelog.storage.log.index import SegmentIndex
from tidelog.storage.log.segment import SEGMENT_HEAD_BYTES, SegmentHead, scan_segment
from tidelog.units import KIB, MIB

CHANNEL: Final = 7
LIMITS: Final = BlockLimits(raw_bytes_max=MIB, stored_bytes_max=MIB, records_max=1 << 16, windows_max=1 << 10)
LPJ_BYTES: Final = 4 * KIB


# --- blocks --------------------------------------------------------------------------------------


def sample_blocks() -> list[Block]:
    """One block of each kind and form, small, end to end in offset."""
    frames = steady_frames(12)
    made = [
        encode_frames(frames, base_seq=1),
        encode_frames(frames, codec=Codec.ZSTD),
        encode_frames(frames, delta=True),
        encode_frames(steady_frames(64), delta=True, codec=Codec.ZSTD),
        encode_messages([Message(time_us=1, key=b"k", value=b"v", headers=(("n", b"c"),)), Message(time_us=2)]),
        encode_control([EpochStarted(epoch=1), RangeLost(lineage="00" * 16, start=1, end=9)], time_us=3),
        wrap_foreign(
            encode_lpj_block(frames, base_seq=1, block_size=LPJ_BYTES),
            version=2,
            compression=LpjCompression.NONE,
            block_size=LPJ_BYTES,
        ),
    ]
    blocks: list[Block] = []
    for block in made:
        windows = [range(1, 2), range(4, 7)] if not blocks else []
        blocks.append(stamped(block, base_offset=blocks[-1].offsets.stop if blocks else 0, windows=windows))
    return blocks


def block_seeds() -> Iterator[bytes]:
    for block in sample_blocks():
        yield AS_IT_IS + block.tobytes()
        yield RESEALED + block.tobytes()


def run_block(data: bytes) -> None:
    block = bytearray(data[1:])
    if data[:1] == RESEALED:
        reseal(block)
    try:
        decode_all(bytes(block), LIMITS)
    except BadBlock:
        return


def made_seeds() -> Iterator[bytes]:
    for block in sample_blocks():
        yield AS_IT_IS + b"".join(block.made().buffers)
        yield RESEALED + b"".join(block.made().buffers)


def run_made(data: bytes) -> None:
    block = bytearray(data[1:])
    if data[:1] == RESEALED:
        reseal_made(block)
    try:
        made = MadeBlock.parse(bytes(block), LIMITS)
        decode_all(stamped(made).tobytes(), LIMITS)
    except BadBlock:
        return


# --- segments ------------------------------------------------------------------------------------


class BytesFile:
    """A file that is only there to be read."""

    def __init__(self, data: bytes) -> None:
        self.path = "fuzz.seg"
        self._data = data

    def read_at(self, position: int, length: int) -> bytes:
        return self._data[position : position + length]

    def write_at(self, position: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        raise AssertionError("a scan writes nothing")

    def sync(self) -> None:
        raise AssertionError("a scan syncs nothing")

    def truncate(self, size: int) -> None:
        raise AssertionError("a scan cuts nothing")

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        return


def segment_seeds() -> Iterator[bytes]:
    head = SegmentHead(channel_id=CHANNEL, base_offset=0, generation=0, created_us=0).pack()
    blocks = b"".join(block.tobytes() for block in sample_blocks())
    yield AS_IT_IS + head + blocks
    yield RESEALED + head + blocks
    yield RESEALED + head + blocks[:600] + bytes(64) + blocks[600:]


def run_segment(data: bytes) -> None:
    segment = bytearray(data[1:])
    if data[:1] == RESEALED:
        position = SEGMENT_HEAD_BYTES
        while (position := segment.find(MAGIC, position)) >= 0:
            reseal(segment, position)
            position += 4
    SegmentHead.unpack(bytes(segment[:SEGMENT_HEAD_BYTES]))
    scan = scan_segment(
        BytesFile(bytes(segment)), channel_id=CHANNEL, base_offset=0, interval_bytes=4 * KIB, limits=LIMITS
    )
    edges = [edge for damage in scan.damages for edge in (damage.start, damage.end)]
    assert edges == sorted(edges), "damages lie one after the other"
    assert all(SEGMENT_HEAD_BYTES <= edge <= len(segment) for edge in edges), "damages lie in the file"
    assert scan.index.size <= max(len(segment), SEGMENT_HEAD_BYTES), "the index ends with the file"
    assert SegmentIndex.unpack(scan.index.pack()) is not None


def index_seeds() -> Iterator[bytes]:
    index = SegmentIndex(base_offset=0, size=SEGMENT_HEAD_BYTES, interval_bytes=400)
    yield RESEALED + index.pack()[:-4]
    for block in sample_blocks():
        index.add(block.maker, block.leader, block.windows, block.size)
    yield AS_IT_IS + index.pack()
    yield RESEALED + index.pack()[:-4]


def run_index(data: bytes) -> None:
    packed = data[1:] + struct.pack("<I", crc32c(data[1:])) if data[:1] == RESEALED else data[1:]
    index = SegmentIndex.unpack(packed)
    if index is None:
        return
    assert index.pack() == packed, "an index that is taken says the same when packed again"
    for entry in {0, len(index.entry_positions) - 1} if index.entry_positions else set():
        index.entry_end(entry)
        index.first_entry_in(entry, seqs=(1, 2), times_us=(1, None))
    index.entry_before(5)


# --- foreign blocks ------------------------------------------------------------------------------


def lpj_seeds() -> Iterator[bytes]:
    yield AS_IT_IS + bytes(LPJ_BYTES)
    yield RESEALED + bytes(LPJ_BYTES)
    devices = [LpjDevice(source=1, name=2, model_id=b"compass")]
    block = encode_lpj_block(steady_frames(40), base_seq=1, block_size=LPJ_BYTES, devices=devices)
    yield RESEALED + bytes(block)


def run_lpj(data: bytes) -> None:
    version = 1 + (data[0] >> 1 & 1) if data else 2
    block = data[1:]
    if data and data[0] & 1:
        body = block[: LPJ_BYTES - 4].ljust(LPJ_BYTES - 4, b"\0")
        block = body + struct.pack("<I", crc32c(body))
    for salvage in (False, True):
        try:
            decode_lpj_block(block, version=version, salvage=salvage).frames.check()
        except BadBlock:
            continue
    try:
        dictionary, payload = split_lpj_dictionary(data[1:])
        inflate_lpj(payload, block_size=LPJ_BYTES, dictionary=dictionary)
    except BadBlock:
        return


# --- a bug on purpose ----------------------------------------------------------------------------


def run_planted(data: bytes) -> None:
    """Fails on a block that no seed holds and no checksum stops: what a fuzzer that works must find."""
    block = bytearray(data[1:])
    reseal(block)
    try:
        assert not 1 < Block.parse(bytes(block), 0, LIMITS).maker.base_seq < 2**40, "the planted bug"
    except BadBlock:
        return


TARGETS: Final = {
    "block": Target(run=run_block, seeds=block_seeds),
    "made": Target(run=run_made, seeds=made_seeds),
    "index": Target(run=run_index, seeds=index_seeds),
    "segment": Target(run=run_segment, seeds=segment_seeds),
    "lpj": Target(run=run_lpj, seeds=lpj_seeds),
    **NODE_TARGETS,
    **CHANNEL_TARGETS,
    **GATEWAY_TARGETS,
}
PLANTED: Final = {"planted": Target(run=run_planted, seeds=block_seeds)}
