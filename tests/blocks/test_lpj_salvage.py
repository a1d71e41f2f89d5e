"""What is kept of an lplex block with a bad record under a good checksum."""

from __future__ import annotations

import pytest
import zstandard

from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.decode import decode_block_frames
from tidelog.blocks.foreign import ForeignForm, salvage_foreign, wrap_foreign
from tidelog.blocks.header import BlockKind
from tidelog.blocks.lpj import LpjCompression, encode_lpj_block
from tidelog.errors import BlockCorrupt
from tidelog.sim.uplink.lplex_blocks import overwritten_lpj_block

ROWS = [(1_750_000_000_000_000 + 5_000 * place, 0x09F80100, place.to_bytes(8, "little")) for place in range(60)]
FRAMES = FrameColumns.from_rows(ROWS)
PRODUCER = b"p" * 16


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("records", [1, 3])
def test_records_before_a_device_entry_written_over_the_last_ones_are_kept(compressed: bool, records: int) -> None:
    block = overwritten_lpj_block(FRAMES, base_seq=900, block_size=4096, records=records)
    stored = zstandard.ZstdCompressor().compress(block) if compressed else block
    compression = LpjCompression.ZSTD if compressed else LpjCompression.NONE
    with pytest.raises(BlockCorrupt, match="not a frame record"):
        wrap_foreign(stored, version=2, compression=compression, block_size=4096)
    found = salvage_foreign(stored, version=2, compression=compression, block_size=4096, producer=PRODUCER)
    assert found.made is not None
    assert list(decode_block_frames(found.made).rows()) == ROWS[: 60 - records]
    assert (found.made.maker.kind, found.made.maker.producer) == (BlockKind.FRAMES, PRODUCER)
    assert found.made.maker.seqs == range(900, 960 - records)
    assert found.lost == range(960 - records, 960)
    assert f"record {60 - records} of 60" in found.problem


def test_block_of_nothing_but_bad_records_gives_none_and_says_what_is_lost() -> None:
    block = overwritten_lpj_block(FRAMES.slice(0, 1), base_seq=7, block_size=4096, records=1)
    found = salvage_foreign(block, version=2, compression=LpjCompression.NONE, block_size=4096)
    assert (found.made, len(found.frames), found.lost) == (None, 0, range(7, 8))


def test_whole_block_is_carried_byte_for_byte() -> None:
    block = encode_lpj_block(FRAMES, base_seq=900, block_size=4096)
    found = salvage_foreign(block, version=2, compression=LpjCompression.NONE, block_size=4096)
    assert found.made is not None
    assert bytes(found.made.body) == block
    assert (found.made.maker.form, found.lost, found.problem) == (ForeignForm.LPJ_V2_NONE, range(960, 960), "")


def test_wrong_checksum_gives_nothing() -> None:
    block = bytearray(encode_lpj_block(FRAMES, base_seq=900, block_size=4096))
    block[100] ^= 1
    with pytest.raises(BlockCorrupt, match="checksum"):
        salvage_foreign(bytes(block), version=2, compression=LpjCompression.NONE, block_size=4096)
