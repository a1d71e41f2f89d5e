"""Blocks made to hurt: each is refused with a typed error, quickly, and without taking memory.

The inputs carry right checksums where it matters: a liar can compute a CRC too. Memory is measured
in a process of its own, whose high-water mark is not yet raised by other tests.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.blocks.crafted import (
    CODEC,
    FORM,
    KIND,
    RAW_BYTES,
    RECORD_COUNT,
    STORED_BYTES,
    WINDOW_COUNT,
    decode_all,
    forged,
    refusal,
    reseal,
    stamped,
    steady_frames,
    with_body,
)
from tests.patience import patient
from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.control import EpochStarted, encode_control
from tidelog.blocks.frames import FrameForm, encode_frames
from tidelog.blocks.header import DEFAULT_LIMITS, HEAD_BYTES, BlockKind, BlockLimits, Codec
from tidelog.blocks.messages import Message, encode_messages
from tidelog.errors import BadBlock, BlockCorrupt, BlockTooLarge, BlockTruncated
from tidelog.units import GIB, KIB, MIB

RSS_GROWTH_MAX = 64 * MIB


def zstd_bomb(*, named: bool) -> bytes:
    """A gibibyte of zeros in some 32 KB, with or without its size in the frame header."""
    chunk = bytes(4 * MIB)
    squeezer = zstandard.ZstdCompressor(level=1, write_content_size=named).compressobj(size=GIB if named else -1)
    parts = [squeezer.compress(chunk) for _ in range(GIB // len(chunk))]
    return b"".join((*parts, squeezer.flush()))


def bomb_with_size(bomb: bytes, size: int) -> bytes:
    """The bomb with another content size in its frame header (a four-byte field, as 1 GiB needs)."""
    assert bomb[4] >> 6 == 2, "the size has four bytes"
    size_at = 5 if bomb[4] & 0x20 else 6
    return bomb[:size_at] + struct.pack("<I", size) + bomb[size_at + 4 :]


def small() -> Block:
    return stamped(encode_frames(steady_frames(3), base_seq=1))


def inflating(body: bytes, raw_bytes: int) -> bytes:
    return with_body(small(), body, (CODEC, "B", Codec.ZSTD), (RAW_BYTES, "I", raw_bytes))


def hostile_blocks() -> Iterator[tuple[str, bytes, type[BadBlock]]]:
    """What is sent, and the error it must give."""
    bomb, unnamed = zstd_bomb(named=True), zstd_bomb(named=False)
    assert len(bomb) < 128 * KIB
    wide_window = bytes.fromhex("28b52ffd 80 a8") + struct.pack("<I", 8 * MIB) + bytes.fromhex("030000")
    yield "a bomb that names its size", inflating(bomb, GIB), BlockTooLarge
    yield "a bomb under a header that lies", inflating(bomb, 8 * MIB), BlockCorrupt
    yield "a bomb without a size", inflating(unnamed, 8 * MIB), BlockCorrupt
    yield "a bomb that claims to be small", inflating(bomb_with_size(bomb, 8 * MIB), 8 * MIB), BlockCorrupt
    yield "a frame that asks for a huge window", inflating(wide_window, 8 * MIB), BlockTooLarge
    yield "a raw length that is too short", inflating(zstandard.compress(bytes(1000)), 999), BlockCorrupt
    yield "a raw length that is too long", inflating(zstandard.compress(bytes(1000)), 1001), BlockCorrupt
    yield "a body that is no zstd", inflating(b"not zstd at all", 100), BlockCorrupt
    yield "a zstd body cut in two", inflating(zstandard.compress(bytes(range(256)) * 9)[:-20], 2304), BlockCorrupt
    yield "an empty zstd body", inflating(b"", 0), BlockCorrupt
    yield "4 GiB stored", forged(small(), (STORED_BYTES, "I", 2**32 - 1)), BlockTooLarge
    yield "4 GiB raw", forged(small(), (RAW_BYTES, "I", 2**32 - 1)), BlockTooLarge
    yield "4 GiB of both", forged(small(), (RAW_BYTES, "I", 2**32 - 1), (STORED_BYTES, "I", 2**32 - 1)), BlockTooLarge
    yield "4 G records", forged(small(), (RECORD_COUNT, "I", 2**32 - 1)), BlockTooLarge
    yield "a body that is not there", forged(small(), (RAW_BYTES, "I", MIB), (STORED_BYTES, "I", MIB)), BlockTruncated
    yield "a million windows", forged(small(), (WINDOW_COUNT, "I", 1_000_000)), BlockTooLarge
    yield "all windows there may be", forged(small(), (WINDOW_COUNT, "I", 1 << 16)), BlockTruncated
    for form in FrameForm:
        million = (RECORD_COUNT, "I", 1 << 20), (FORM, "B", form)
        yield f"a million records of form {form.name}", forged(small(), *million), BlockCorrupt
    texts = stamped(encode_messages([Message(time_us=1, value=b"v")]))
    yield "a million messages", forged(texts, (RECORD_COUNT, "I", 1 << 20)), BlockCorrupt
    yield "4 G headers", forged(texts, (HEAD_BYTES, "I", 2**32 - 1)), BlockCorrupt
    control = stamped(encode_control([EpochStarted(epoch=1)], time_us=1))
    yield "a million control records", forged(control, (RECORD_COUNT, "I", 1 << 20)), BlockCorrupt
    deep = stamped(encode_messages([Message(time_us=1, key=b"epoch-started", value=b"[" * MIB)]))
    yield (
        "brackets a million deep",
        with_body(deep, bytes(deep.raw_body()), (KIND, "B", BlockKind.CONTROL)),
        BlockCorrupt,
    )
    delta = stamped(encode_frames(steady_frames(3), delta=True))
    yield "4 G groups", forged(delta, (HEAD_BYTES, "I", 2**32 - 1)), BlockCorrupt
    yield "64 KiB a frame", forged(delta, (HEAD_BYTES + 8 + 4 * 3, "H", 0xFFFF)), BlockCorrupt


def rss_bytes_max() -> int:
    """The most memory this process ever held. Not `getrusage`: its value is inherited from the parent."""
    (line,) = re.findall(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), flags=re.MULTILINE)
    return int(line) * KIB


def refuse_all() -> None:
    """Run every hostile block; fails if any of them made the process grow."""
    blocks = list(hostile_blocks())
    decode_all(small().tobytes())
    before = rss_bytes_max()
    for name, data, expected in blocks:
        error = refusal(data)
        assert type(error) is expected, f"{name}: {error!r}"
        growth = rss_bytes_max() - before
        assert growth < RSS_GROWTH_MAX, f"{name}: {growth} bytes"


@pytest.fixture(scope="module")
def blocks() -> dict[str, tuple[bytes, type[BadBlock]]]:
    return {name: (data, expected) for name, data, expected in hostile_blocks()}


def test_every_hostile_block_is_refused(blocks: dict[str, tuple[bytes, type[BadBlock]]]) -> None:
    for name, (data, expected) in blocks.items():
        assert type(refusal(data)) is expected, name


def test_refusing_takes_no_memory() -> None:
    root = Path(__file__).parents[2]
    code = "from tests.blocks.test_hostile_blocks import refuse_all; refuse_all()"
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=patient(120))


def test_a_body_is_measured_by_the_limits_of_the_process_that_inflates_it() -> None:
    block = stamped(encode_frames(steady_frames(1000), delta=True, codec=Codec.ZSTD))
    assert block.maker.codec == Codec.ZSTD
    with pytest.raises(BlockTooLarge):
        block.raw_body(BlockLimits(raw_bytes_max=block.maker.raw_bytes - 1))


# --- noise ---------------------------------------------------------------------------------------


@given(st.binary(max_size=400))
def test_noise_is_refused(data: bytes) -> None:
    assert isinstance(refusal(data), BadBlock)
    with pytest.raises(BadBlock):
        MadeBlock.parse(data)


@given(st.binary(max_size=400))
def test_noise_behind_a_magic_is_refused(data: bytes) -> None:
    assert isinstance(refusal(b"TLB1" + data), BadBlock)


HONEST = [
    small().tobytes(),
    stamped(encode_frames(steady_frames(5), base_seq=7), windows=[range(1, 3), range(4, 5)]).tobytes(),
    stamped(encode_frames(steady_frames(40), delta=True)).tobytes(),
    stamped(encode_frames(steady_frames(40), delta=True, codec=Codec.ZSTD)).tobytes(),
    stamped(encode_messages([Message(time_us=1, key=b"k", value=b"v", headers=(("n", b"c"),))] * 3)).tobytes(),
    stamped(encode_control([EpochStarted(epoch=1)], time_us=1)).tobytes(),
]


@given(data=st.data())
def test_resealed_damage_decodes_or_is_refused(data: st.DataObject) -> None:
    """Past the checksums every decoder stands alone: it may give other records, never another error."""
    damaged = bytearray(data.draw(st.sampled_from(HONEST)))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    reseal(damaged)
    try:
        decode_all(bytes(damaged), DEFAULT_LIMITS)
    except BadBlock as error:
        assert error.problem  # noqa: PT017 - either outcome is fine, another exception is not


@pytest.mark.parametrize("honest", HONEST, ids=range(len(HONEST)))
def test_a_block_cut_anywhere_is_refused(honest: bytes) -> None:
    for end in range(len(honest)):
        assert isinstance(refusal(honest[:end]), BlockTruncated)
