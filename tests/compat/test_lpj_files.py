"""Reading and writing .lpj files: every shape lplex writes, and every way such a file can be hurt."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.blocks.test_lpj_block import Row, dumb_block, dumb_encode, dumb_records
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.lpj import LpjCompression, LpjDevice, join_lpj_dictionary
from tidelog.compat.captures import read_canboat_raw
from tidelog.compat.lpj import CompressionName, LpjReader, LpjStoredBlock, LpjWriter
from tidelog.errors import BadJournalFile, DiskError, InvalidConfig, InvalidRecord, LogClosed, NotALog

BASE_US = 1_750_000_000_000_000
SMALL = 4096
COMPRESSIONS: list[CompressionName] = ["none", "zstd", "zstd-dict"]
# The rows below take 14 bytes each, the header, empty device table and trailer 28.
FRAMES_PER_BLOCK = (SMALL - 28) // 14


def rows_of(count: int, *, start: int = 0) -> list[Row]:
    """Frames that differ, 14 bytes each as records."""
    return [
        (BASE_US + index * 200, 0x09F80100 + index % 5, struct.pack("<Q", index))
        for index in range(start, start + count)
    ]


def numbered_rows(blocks: list[LpjStoredBlock]) -> list[tuple[int, Row]]:
    """Every frame with its seq."""
    out: list[tuple[int, Row]] = []
    for stored in blocks:
        decoded = stored.decode()
        out += [(decoded.base_seq + index, row) for index, row in enumerate(decoded.frames.rows())]
    return out


def read_rows(path: Path) -> list[Row]:
    with LpjReader(path) as reader:
        return [row for _, row in numbered_rows(list(reader))]


# --- files as lplex writes them, made by hand ------------------------------------------------------------


def dumb_file(
    blocks: list[bytes], *, version: int, compression: LpjCompression, index: bool, dictionaries: bool = True
) -> bytes:
    """A file around ready blocks of 4096 bytes."""
    out = b"LPJ" + bytes([version]) + struct.pack("<III", SMALL, compression, 0)
    positions: list[int] = []
    for block in blocks:
        positions.append(len(out))
        bases = block[: 8 if version == 1 else 16]
        if compression is LpjCompression.NONE:
            out += block
        elif compression is LpjCompression.ZSTD:
            payload = zstandard.ZstdCompressor(write_checksum=True).compress(block)
            out += bases + struct.pack("<I", len(payload)) + payload
        else:
            dictionary = zstandard.ZstdCompressionDict(block[:512]) if dictionaries else None
            payload = zstandard.ZstdCompressor(dict_data=dictionary, write_checksum=True).compress(block)
            out += bases + join_lpj_dictionary(block[:512] if dictionaries else None, payload)
    if index and compression is not LpjCompression.NONE:
        out += struct.pack(f"<{len(positions)}Q", *positions) + struct.pack("<I", len(positions)) + b"LPJI"
    return out


def dumb_blocks(version: int, count: int = 3) -> list[bytes]:
    blocks = []
    for number in range(count):
        rows = rows_of(4, start=number * 4)
        if version == 1:
            blocks.append(dumb_block(dumb_records(rows), count=4, base_time_us=rows[0][0], base_seq=None))
        else:
            blocks.append(dumb_encode(rows, base_seq=1 + number * 4))
    return blocks


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("compression", list(LpjCompression))
@pytest.mark.parametrize("version", [1, 2])
def test_every_shape_of_file_is_read_with_its_bytes_unchanged(
    tmp_path: Path, version: int, compression: LpjCompression, index: bool
) -> None:
    blocks = dumb_blocks(version)
    data = dumb_file(blocks, version=version, compression=compression, index=index)
    path = tmp_path / "a.lpj"
    path.write_bytes(data)
    with LpjReader(path) as reader:
        assert (reader.version, reader.block_size, reader.compression) == (version, SMALL, compression)
        assert len(reader) == 3
        assert reader.indexed == (index and compression is not LpjCompression.NONE)
        assert reader.torn_bytes == 0
        stored = list(reader)
        assert [reader.block_at(number) for number in range(3)] == stored
    for block, logical in zip(stored, blocks, strict=True):
        assert bytes(block.inflate()) == logical
        framing_bytes = {LpjCompression.NONE: 0, LpjCompression.ZSTD: 12, LpjCompression.ZSTD_DICT: 8}[compression]
        framing_bytes += 8 if version == 2 and framing_bytes else 0
        start = block.position + framing_bytes
        assert data[start : start + len(block.stored)] == block.stored
        assert block.frame_count == 4
        assert block.base_time_us == struct.unpack_from("<q", logical)[0]
        assert block.dictionary == (logical[:512] if compression is LpjCompression.ZSTD_DICT else None)
    wanted = rows_of(12)
    assert [row for _, row in numbered_rows(stored)] == wanted
    if version == 2:
        assert [seq for seq, _ in numbered_rows(stored)] == list(range(1, 13))
    else:
        assert {block.base_seq for block in stored} == {0}


def test_a_dictionary_of_length_zero_means_plain_zstd(tmp_path: Path) -> None:
    path = tmp_path / "a.lpj"
    path.write_bytes(
        dumb_file(dumb_blocks(2), version=2, compression=LpjCompression.ZSTD_DICT, index=True, dictionaries=False)
    )
    with LpjReader(path) as reader:
        assert [block.dictionary for block in reader] == [None] * 3
    assert read_rows(path) == rows_of(12)


# --- writing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_what_is_written_is_read_across_block_borders(tmp_path: Path, compression: CompressionName) -> None:
    wanted = rows_of(1000)
    frames = FrameColumns.from_rows(wanted)
    path = tmp_path / "a.lpj"
    with LpjWriter(path, block_size=SMALL, compression=compression) as writer:
        for start in range(0, 1000, 37):
            writer.append(frames.slice(start, min(1000, start + 37)), first_seq=100 + start)
        assert writer.frame_count == 1000
    with LpjReader(path) as reader:
        assert reader.indexed == (compression != "none")
        assert numbered_rows(list(reader)) == [(100 + index, row) for index, row in enumerate(wanted)]
        assert [block.frame_count for block in reader][:-1] == [FRAMES_PER_BLOCK] * (len(reader) - 1)
        if compression == "zstd-dict":
            assert all(len(block.dictionary or b"") <= 8192 for block in reader)


def test_a_dictionary_is_trained_where_there_is_enough_to_learn_from(tmp_path: Path) -> None:
    path = tmp_path / "a.lpj"
    wanted = rows_of(30_000)
    with LpjWriter(path, compression="zstd-dict") as writer:
        writer.append(FrameColumns.from_rows(wanted), first_seq=1)
        writer.append(FrameColumns.from_rows(wanted[:3]), first_seq=50_001)
    with LpjReader(path) as reader:
        dictionaries = [block.dictionary for block in reader]
    assert dictionaries[0] is not None
    assert zstandard.ZstdCompressionDict(dictionaries[0]).dict_id() == 1
    assert dictionaries[-1] is None
    assert read_rows(path) == wanted + wanted[:3]


@given(sizes=st.lists(st.integers(0, 300), max_size=8), jumps=st.lists(st.integers(0, 3), min_size=8, max_size=8))
@settings(max_examples=30, deadline=None)
def test_any_cutting_into_appends_gives_the_same_frames(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], jumps: list[int]
) -> None:
    path = tmp_path_factory.mktemp("lpj") / "a.lpj"
    wanted: list[tuple[int, Row]] = []
    seq = 1
    with LpjWriter(path, block_size=SMALL, compression="zstd") as writer:
        for size, jump in zip(sizes, jumps, strict=False):
            seq += jump
            # Each append's clock starts anew, so it runs backwards between them.
            rows = rows_of(size)
            writer.append(FrameColumns.from_rows(rows), first_seq=seq)
            wanted += [(seq + index, row) for index, row in enumerate(rows)]
            seq += size
    with LpjReader(path) as reader:
        assert numbered_rows(list(reader)) == wanted


def test_a_seq_jump_and_a_backward_clock_start_a_new_block(tmp_path: Path) -> None:
    path = tmp_path / "a.lpj"
    with LpjWriter(path, block_size=SMALL) as writer:
        writer.append(FrameColumns.from_rows([(10, 1, b""), (20, 1, b"")]), first_seq=1)
        writer.append(FrameColumns.from_rows([(30, 1, b"")]), first_seq=3)
        writer.append(FrameColumns.from_rows([(40, 1, b"")]), first_seq=10)  # a jump
        writer.append(FrameColumns.from_rows([(39, 1, b""), (38, 1, b"")]), first_seq=11)  # twice back
        writer.append(FrameColumns.from_rows([(50, 1, b"")]), first_seq=5)  # seqs go back
    with LpjReader(path) as reader:
        blocks = list(reader)
        assert [(block.base_seq, block.base_time_us, block.frame_count) for block in blocks] == [
            (1, 10, 3),
            (10, 40, 1),
            (11, 39, 1),
            (12, 38, 1),
            (5, 50, 1),
        ]


def test_an_existing_file_is_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.lpj"
    path.write_bytes(b"precious")
    with pytest.raises(DiskError, match="not overwritten"):
        LpjWriter(path)
    assert path.read_bytes() == b"precious"


def test_devices_are_in_every_block_and_a_change_starts_one(tmp_path: Path) -> None:
    path = tmp_path / "a.lpj"
    first, second = LpjDevice(source=1, name=11, model_id=b"GPS 17x"), LpjDevice(source=2, name=22)
    with LpjWriter(path, block_size=SMALL) as writer:
        writer.append(FrameColumns.from_rows(rows_of(2)), first_seq=1)
        writer.set_devices([first])
        writer.set_devices([first])
        writer.append(FrameColumns.from_rows(rows_of(400, start=2)), first_seq=3)
        writer.set_devices([first, second])
        writer.append(FrameColumns.from_rows(rows_of(1, start=402)), first_seq=403)
        with pytest.raises(InvalidRecord, match="devices"):
            writer.set_devices([first] * 100)
    with LpjReader(path) as reader:
        assert [block.decode().devices for block in reader] == [[], [first], [first], [first, second]]
    assert read_rows(path) == rows_of(403)


def test_the_writer_refuses_bad_settings_and_bad_frames_and_stays_usable(tmp_path: Path) -> None:
    for block_size in (5000, 2048, 1 << 25):
        with pytest.raises(InvalidConfig):
            LpjWriter(tmp_path / "b.lpj", block_size=block_size)
    with pytest.raises(InvalidConfig):
        LpjWriter(tmp_path / "b.lpj", compression="gzip")  # type: ignore[arg-type]
    assert not (tmp_path / "b.lpj").exists()
    with LpjWriter(tmp_path / "a.lpj") as writer:
        with pytest.raises(InvalidRecord):
            writer.append(FrameColumns.from_rows([(1, 1 << 31, b"")]), first_seq=1)
        with pytest.raises(InvalidRecord):
            writer.append(FrameColumns.from_rows([(1, 1, b"")]), first_seq=1 << 64)
        writer.append(FrameColumns.from_rows([(1, 1, b"")]), first_seq=1)
    writer.close()
    with pytest.raises(LogClosed):
        writer.append(FrameColumns.from_rows([]), first_seq=2)
    assert read_rows(tmp_path / "a.lpj") == [(1, 1, b"")]


def test_a_full_disk_is_typed_and_ends_the_writer() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    writer = LpjWriter.__new__(LpjWriter)
    writer.path = "/dev/full"
    writer._position = 0
    writer._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with pytest.raises(DiskError) as caught:
        writer._write(b"x")
    assert caught.value.code == "disk_full"
    writer.close()


# --- files that end early -------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", list(LpjCompression))
@pytest.mark.parametrize("version", [1, 2])
def test_a_file_cut_at_any_byte_gives_its_whole_blocks_and_counts_the_rest(
    tmp_path: Path, version: int, compression: LpjCompression
) -> None:
    data = dumb_file(dumb_blocks(version, 2), version=version, compression=compression, index=False)
    path = tmp_path / "a.lpj"
    path.write_bytes(data)
    with LpjReader(path) as reader:
        first_block_end = reader.block_at(1).position
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with LpjReader(path) as reader:
            blocks = list(reader)
            whole = 16 if length >= 16 else 0
            if length >= first_block_end:
                whole = first_block_end
            assert len(blocks) == len(reader) == (length >= first_block_end)
            assert reader.torn_bytes == length - whole
            assert reader.damaged == []


def test_an_index_cut_at_any_byte_still_gives_every_block(tmp_path: Path) -> None:
    whole = dumb_file(dumb_blocks(2), version=2, compression=LpjCompression.ZSTD, index=True)
    blocks_end = len(whole) - 3 * 8 - 8
    path = tmp_path / "a.lpj"
    for length in range(blocks_end, len(whole)):
        path.write_bytes(whole[:length])
        with LpjReader(path) as reader:
            # What is left of the index looks like framing of a block that ends far behind the file, or has no length.
            assert not reader.indexed
            assert len(list(reader)) == 3
            assert reader.torn_bytes == length - blocks_end


def test_a_file_with_only_a_header_or_an_empty_index_has_no_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.lpj"
    for compression in LpjCompression:
        for index in (True, False):
            path.write_bytes(dumb_file([], version=2, compression=compression, index=index))
            with LpjReader(path) as reader:
                assert list(reader) == []
                assert reader.torn_bytes == 0
    for name in COMPRESSIONS:
        with LpjWriter(tmp_path / f"{name}.lpj", compression=name):
            pass
        assert read_rows(tmp_path / f"{name}.lpj") == []


def test_a_zero_filled_tail_is_torn(tmp_path: Path) -> None:
    data = dumb_file(dumb_blocks(2), version=2, compression=LpjCompression.ZSTD, index=False)
    path = tmp_path / "a.lpj"
    path.write_bytes(data + bytes(500))
    with LpjReader(path) as reader:
        assert len(list(reader)) == 3
        assert reader.torn_bytes == 500


# --- files that are hurt in the middle ------------------------------------------------------------------------


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("compression", list(LpjCompression))
def test_a_block_with_a_bad_checksum_raises_with_its_position_or_is_skipped(
    tmp_path: Path, compression: LpjCompression, index: bool
) -> None:
    blocks = dumb_blocks(2)
    blocks[1] = blocks[1][:20] + b"\xee" + blocks[1][21:]
    path = tmp_path / "a.lpj"
    path.write_bytes(dumb_file(blocks, version=2, compression=compression, index=index))
    with LpjReader(path) as reader:
        position = reader.block_at(1).position
        iterator = iter(reader)
        assert next(iterator).base_seq == 1
        with pytest.raises(BadJournalFile, match="checksum") as caught:
            next(iterator)
        assert caught.value.position == position
    with LpjReader(path, on_damage="skip") as reader:
        assert [block.base_seq for block in reader] == [1, 9]
        assert [block.base_seq for block in reader] == [1, 9]
        assert [(damage.position, "checksum" in damage.problem) for damage in reader.damaged] == [(position, True)]


@pytest.mark.parametrize("compression", [LpjCompression.ZSTD, LpjCompression.ZSTD_DICT])
def test_a_flipped_bit_anywhere_in_a_framed_block_never_gives_wrong_frames(
    tmp_path: Path, compression: LpjCompression
) -> None:
    data = dumb_file(dumb_blocks(2), version=2, compression=compression, index=True)
    path = tmp_path / "a.lpj"
    path.write_bytes(data)
    with LpjReader(path) as reader:
        start, end = reader.block_at(1).position, reader.block_at(2).position
    good = dict(enumerate(rows_of(12), start=1))
    for position in range(start, end):
        hurt = bytearray(data)
        hurt[position] ^= 1 << position % 8
        path.write_bytes(hurt)
        with LpjReader(path, on_damage="skip") as reader:
            found = numbered_rows(list(reader))
        # A flip in a dictionary's unused part changes nothing; any other costs exactly its block.
        assert [seq for seq, _ in found] in ([*range(1, 5), *range(9, 13)], [*range(1, 13)])
        assert all(good[seq] == row for seq, row in found)


def test_framing_that_contradicts_its_block_is_damage(tmp_path: Path) -> None:
    data = bytearray(dumb_file(dumb_blocks(2), version=2, compression=LpjCompression.ZSTD, index=True))
    data[16 + 8] ^= 1  # the base seq of the first block's framing
    path = tmp_path / "a.lpj"
    path.write_bytes(data)
    with LpjReader(path) as reader, pytest.raises(BadJournalFile, match="framing"):
        list(reader)


def test_a_bad_record_in_a_good_block_is_typed_and_can_be_salvaged(tmp_path: Path) -> None:
    rows = rows_of(2)
    bad = dumb_block(dumb_records(rows) + b"\xff" * 40, count=5, base_time_us=rows[0][0], base_seq=1)
    path = tmp_path / "a.lpj"
    path.write_bytes(dumb_file([bad, dumb_blocks(2)[1]], version=2, compression=LpjCompression.ZSTD, index=True))
    with LpjReader(path) as reader:
        first, second = list(reader)
    assert list(first.decode(salvage=True).frames.rows()) == rows
    assert len(second.decode().frames) == 4


def test_a_zstd_bomb_in_a_file_is_damage(tmp_path: Path) -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(64 << 20))[:4000]
    data = b"LPJ\2" + struct.pack("<III", SMALL, 1, 0) + struct.pack("<qQI", 0, 1, len(bomb)) + bomb
    path = tmp_path / "a.lpj"
    path.write_bytes(data)
    with LpjReader(path) as reader, pytest.raises(BadJournalFile, match="zstd frame holds"):
        list(reader)


def test_a_stored_length_no_block_can_need_is_damage_not_memory(tmp_path: Path) -> None:
    data = b"LPJ\2" + struct.pack("<III", SMALL, 1, 0) + struct.pack("<qQI", 0, 1, 1 << 20) + bytes(1 << 20)
    path = tmp_path / "a.lpj"
    path.write_bytes(data)
    with LpjReader(path, on_damage="skip") as reader:
        assert list(reader) == []
        assert [damage.length for damage in reader.damaged] == [(1 << 20) + 20]


@pytest.mark.parametrize(
    "index",
    [
        struct.pack("<QQQI", 16, 16, 16, 3),  # not rising
        struct.pack("<QQQI", 15, 300, 301, 3),  # inside the header
        struct.pack("<QQQI", 17, 300, 301, 3),  # hides the first block
        struct.pack("<QQQI", 16, 300, 1 << 40, 3),  # behind the file
        struct.pack("<QQQI", 16, 300, (1 << 64) - 1, 3),
        struct.pack("<I", 262_145),  # more than an index may have
        struct.pack("<I", 0xFFFF_FFFF),
        struct.pack("<I", 0),  # says there are no blocks, but there are
        b"",
    ],
)
def test_an_index_that_lies_is_not_believed(tmp_path: Path, index: bytes) -> None:
    data = dumb_file(dumb_blocks(2), version=2, compression=LpjCompression.ZSTD, index=False)
    path = tmp_path / "a.lpj"
    path.write_bytes(data + index + b"LPJI")
    with LpjReader(path) as reader:
        assert not reader.indexed
        blocks = [reader.block_at(number) for number in range(3)]
        assert [block.base_seq for block in blocks] == [1, 5, 9]
        assert numbered_rows(blocks) == list(enumerate(rows_of(12), start=1))


def test_an_index_with_wrong_offsets_inside_the_file_is_damage_at_those_blocks(tmp_path: Path) -> None:
    data = dumb_file(dumb_blocks(2), version=2, compression=LpjCompression.ZSTD, index=True)
    first, second, third = struct.unpack("<3Q", data[-32:-8])
    path = tmp_path / "a.lpj"
    path.write_bytes(data[:-32] + struct.pack("<3Q", first, second + 1, third) + data[-8:])
    with LpjReader(path, on_damage="skip") as reader:
        assert [block.base_seq for block in reader] == [9]
        assert [damage.position for damage in reader.damaged] == [first, second + 1]


# --- what is no .lpj file ---------------------------------------------------------------------------------------


def test_what_is_no_lpj_file_is_said_clearly(tmp_path: Path) -> None:
    with pytest.raises(NotALog, match="there is no such file"):
        LpjReader(tmp_path / "missing.lpj")
    with pytest.raises(NotALog, match="folder"):
        LpjReader(tmp_path)
    path = tmp_path / "a.lpj"
    for data in (b"X", b"LX", b"PK\3\4" + bytes(100), b"\0" * 16):
        path.write_bytes(data)
        with pytest.raises(NotALog, match="LPJ"):
            LpjReader(path)


@pytest.mark.parametrize(
    ("version", "block_size", "flags", "position"),
    [(0, SMALL, 0, 3), (3, SMALL, 1, 3), (2, 5000, 1, 4), (2, 0, 0, 4), (2, 1 << 25, 0, 4), (2, SMALL, 3, 8)],
)
def test_a_header_with_unknown_fields_names_their_place(
    tmp_path: Path, version: int, block_size: int, flags: int, position: int
) -> None:
    path = tmp_path / "a.lpj"
    path.write_bytes(b"LPJ" + bytes([version]) + struct.pack("<III", block_size, flags, 0))
    with pytest.raises(BadJournalFile) as caught:
        LpjReader(path)
    assert caught.value.position == position


@given(data=st.binary(max_size=300), version=st.sampled_from([1, 2]), flags=st.sampled_from([0, 1, 2]))
@settings(max_examples=200, deadline=None)
def test_random_bytes_behind_a_header_are_counted_and_never_crash(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, version: int, flags: int
) -> None:
    path = tmp_path_factory.mktemp("lpj") / "a.lpj"
    path.write_bytes(b"LPJ" + bytes([version]) + struct.pack("<III", SMALL, flags, 0) + data)
    with LpjReader(path, on_damage="skip") as reader:
        assert list(reader) == []
        indexed_bytes = 8 + 8 * len(reader) if reader.indexed else 0
        assert sum(damage.length for damage in reader.damaged) + reader.torn_bytes + indexed_bytes == len(data)


# --- real frames ----------------------------------------------------------------------------------------------------


def capture_path(name: str) -> Path:
    """A real capture, searched upward from the repository; the test is skipped where it is not."""
    for folder in Path(__file__).resolve().parents:
        path = folder / "shared" / "data" / "nmea2000" / name
        if path.exists():
            return path
    pytest.skip(f"the capture {name} is not on this machine (looked for shared/data/nmea2000 above the repository)")


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_real_capture_survives_a_journal(tmp_path: Path, compression: CompressionName) -> None:
    frames = FrameColumns.concatenate(list(read_canboat_raw(capture_path("dirona-actisense-serial.raw"))))
    path = tmp_path / "a.lpj"
    with LpjWriter(path, compression=compression) as writer:
        writer.append(frames, first_seq=1)
    with LpjReader(path) as reader:
        blocks = [block.decode() for block in reader]
    assert FrameColumns.concatenate([block.frames for block in blocks]).equals(frames)
    seq = 1
    for block in blocks:
        assert block.base_seq == seq
        seq += len(block.frames)
