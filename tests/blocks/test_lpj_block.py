"""The .lpj block codec, against a reader and a writer that are as dumb as can be."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import zstandard
from fastcrc import crc32
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.blocks import lpj
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.lpj import (
    LpjCompression,
    LpjDevice,
    decode_lpj_block,
    encode_lpj_block,
    inflate_lpj,
    join_lpj_dictionary,
    lpj_device_table_bytes,
    lpj_frames_that_fit,
    open_lpj_stored,
    split_lpj_dictionary,
)
from tidelog.errors import BadBlock, BlockCorrupt, BlockTooLarge, BlockTruncated, InvalidRecord

Row = tuple[int, int, bytes]
SMALL = 4096
BASE_US = 1_750_000_000_000_000


# --- the oracle: one frame at a time ---------------------------------------------------------------


def dumb_uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def dumb_records(rows: list[Row]) -> bytes:
    out = b""
    previous_us = rows[0][0] if rows else 0
    for time_us, can_id, payload in rows:
        out += dumb_uvarint(time_us - previous_us)
        if len(payload) == 8:
            out += struct.pack("<I", can_id | 0x8000_0000) + payload
        else:
            out += struct.pack("<I", can_id) + dumb_uvarint(len(payload)) + payload
        previous_us = time_us
    return out


def dumb_block(
    records: bytes,
    *,
    count: int,
    base_time_us: int,
    base_seq: int | None,
    block_size: int = SMALL,
    table: bytes = b"\0\0",
    table_bytes: int | None = None,
) -> bytes:
    """A block with a good checksum around whatever records and fields it is given. No base seq: version 1."""
    header = struct.pack("<q", base_time_us) + (b"" if base_seq is None else struct.pack("<Q", base_seq))
    trailer = struct.pack("<HI", len(table) if table_bytes is None else table_bytes, count)
    padding = block_size - len(header) - len(records) - len(table) - len(trailer) - 4
    assert padding >= 0
    body = header + records + bytes(padding) + table + trailer
    return body + struct.pack("<I", crc32.iscsi(body))


def dumb_encode(rows: list[Row], *, base_seq: int, block_size: int = SMALL) -> bytes:
    base_time_us = rows[0][0] if rows else 0
    return dumb_block(
        dumb_records(rows), count=len(rows), base_time_us=base_time_us, base_seq=base_seq, block_size=block_size
    )


def dumb_decode(block: bytes, *, version: int) -> list[Row]:
    """The frames up to the count or the first record that makes no sense."""
    table_bytes, count, _ = struct.unpack("<HII", block[-10:])
    region = block[8 if version == 1 else 16 : len(block) - 10 - table_bytes]
    (time_us,) = struct.unpack_from("<q", block)
    rows: list[Row] = []
    at = 0

    def uvarint(bytes_max: int) -> int:
        nonlocal at
        value = 0
        for index in range(bytes_max):
            byte = region[at]
            at += 1
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return value
        raise IndexError

    try:
        for _ in range(count):
            time_us += uvarint(9)
            (stored_id,) = struct.unpack_from("<I", region, at)
            at += 4
            length = 8 if stored_id >> 31 else uvarint(2)
            if length > 1785 or at + length > len(region) or time_us >= 1 << 63:
                raise IndexError
            rows.append((time_us, stored_id & 0x7FFF_FFFF, region[at : at + length]))
            at += length
    except (IndexError, struct.error):
        pass
    return rows


# --- strategies --------------------------------------------------------------------------------------

payloads = st.one_of(
    st.binary(min_size=8, max_size=8),
    st.binary(max_size=20),
    st.sampled_from([b"", b"\xff" * 127, b"\x80" * 128, b"\x7f" * 223, b"\xaa" * 1785]),
)
deltas = st.one_of(
    st.integers(0, 300),
    st.just(0),
    st.sampled_from([127, 128, 16383, 16384, 2**28 - 1, 2**28, 2**35, 2**49, 2**56 - 1, 2**56, 2**60]),
)


@st.composite
def frame_rows(draw: st.DrawFn) -> list[Row]:
    time_us = draw(st.integers(-(2**40), 2**51))
    rows: list[Row] = []
    count = draw(st.integers(0, 60))
    for _ in range(count):
        rows.append((time_us, draw(st.integers(0, 2**29 - 1)), draw(payloads)))
        time_us = min(time_us + draw(deltas), 2**63 - 1)
    return rows


devices_strategy = st.lists(
    st.builds(
        LpjDevice,
        source=st.integers(0, 255),
        name=st.integers(0, 2**64 - 1),
        active_from=st.integers(0, 2**32 - 1),
        product_code=st.integers(0, 2**16 - 1),
        model_id=st.binary(max_size=32),
        software_version=st.binary(max_size=40),
        model_version=st.just(b"\xff" * 255),
        serial=st.binary(max_size=32),
    ),
    max_size=4,
)


def decoded_rows(block: bytes, *, version: int = 2, salvage: bool = False) -> list[Row]:
    frames = decode_lpj_block(block, version=version, salvage=salvage).frames
    frames.check()
    return list(frames.rows())


# --- known answers -----------------------------------------------------------------------------------


def test_known_answer_of_a_version_1_block() -> None:
    rows = [(1_750_000_000_000_000, 0x09F8010A, bytes.fromhex("aabbccddeeff1122"))]
    block = dumb_block(dumb_records(rows), count=1, base_time_us=rows[0][0], base_seq=None)
    assert block[-4:] == struct.pack("<I", 0xF9128DC6)
    decoded = decode_lpj_block(block, version=1)
    assert (decoded.base_time_us, decoded.base_seq, list(decoded.frames.rows())) == (rows[0][0], 0, rows)


def test_known_answer_of_a_version_2_block() -> None:
    frames = FrameColumns.from_rows([(1000, 0x09F80100, bytes(range(1, 9)))])
    block = encode_lpj_block(frames, base_seq=42, block_size=SMALL)
    assert len(block) == SMALL
    assert block[-4:] == struct.pack("<I", 0x2382D56E)
    decoded = decode_lpj_block(block, version=2)
    assert (decoded.base_time_us, decoded.base_seq, decoded.devices) == (1000, 42, [])
    assert decoded.frames.equals(frames)


# --- round trips against the oracle --------------------------------------------------------------------


@given(rows=frame_rows(), base_seq=st.integers(0, 2**64 - 100), devices=devices_strategy)
@settings(max_examples=150)
def test_what_fits_is_encoded_as_the_oracle_does_and_comes_back(
    rows: list[Row], base_seq: int, devices: list[LpjDevice]
) -> None:
    frames = FrameColumns.from_rows(rows)
    device_bytes = lpj_device_table_bytes(devices)
    count = lpj_frames_that_fit(frames, SMALL, device_bytes)
    space = SMALL - 16 - 10 - device_bytes
    # The oracle's count: the longest prefix whose records fit.
    assert len(dumb_records(rows[:count])) <= space
    assert count == len(rows) or len(dumb_records(rows[: count + 1])) > space
    block = encode_lpj_block(frames.slice(0, count), base_seq=base_seq, block_size=SMALL, devices=devices)
    assert dumb_decode(block, version=2) == rows[:count]
    if not devices:
        assert block == dumb_encode(rows[:count], base_seq=base_seq)
    decoded = decode_lpj_block(memoryview(block), version=2)
    assert list(decoded.frames.rows()) == rows[:count]
    assert (decoded.base_seq, decoded.devices, decoded.damage) == (base_seq, devices, None)


@given(records=st.binary(max_size=400), count=st.integers(0, 66), version=st.sampled_from([1, 2]))
@settings(max_examples=300)
def test_random_records_under_a_good_checksum_decode_as_the_oracle_says(
    records: bytes, count: int, version: int
) -> None:
    block = dumb_block(records, count=count, base_time_us=BASE_US, base_seq=None if version == 1 else 7)
    wanted = dumb_decode(block, version=version)
    assert decoded_rows(block, version=version, salvage=True) == wanted
    if len(wanted) < count:
        with pytest.raises(BlockCorrupt, match=f"record {len(wanted)} of {count}"):
            decode_lpj_block(block, version=version)


@pytest.mark.parametrize("window_bytes", [16, 64, 1000])
def test_records_across_window_borders_are_found(window_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lpj, "_WINDOW_BYTES", window_bytes)
    generator = np.random.default_rng(window_bytes)
    rows: list[Row] = []
    time_us = BASE_US
    for _ in range(300):
        time_us += int(generator.integers(0, 2 ** int(generator.integers(1, 40))))
        length = int(generator.choice([0, 8, 8, 8, 3, 130, 900], p=[0.1, 0.3, 0.2, 0.2, 0.1, 0.07, 0.03]))
        rows.append((time_us, int(generator.integers(0, 2**29)), generator.bytes(length)))
    assert decoded_rows(dumb_encode(rows, base_seq=1, block_size=65536)) == rows


@pytest.mark.parametrize("length", [0, 8, 1785])
def test_a_full_default_block_of_one_payload_length(length: int) -> None:
    generator = np.random.default_rng(length)
    rows = [(BASE_US + index * 137, 0x09F80100 + index % 7, generator.bytes(length)) for index in range(45_000)]
    frames = FrameColumns.from_rows(rows[: 300 if length > 8 else None])
    count = lpj_frames_that_fit(frames, 262_144, 2)
    assert 100 < count < len(frames)
    block = encode_lpj_block(frames.slice(0, count), base_seq=5)
    assert block == dumb_encode(rows[:count], base_seq=5, block_size=262_144)
    assert decode_lpj_block(block, version=2).frames.equals(frames.slice(0, count))
    with pytest.raises(InvalidRecord, match="do not fit"):
        encode_lpj_block(frames.slice(0, count + 1), base_seq=5)


def test_a_largest_block_costs_time_but_little_memory() -> None:
    block = dumb_block(b"", count=1_000_000, base_time_us=0, base_seq=1, block_size=lpj.LPJ_BLOCK_BYTES_MAX)
    frames = decode_lpj_block(block, version=2).frames
    assert len(frames) == 1_000_000
    assert len(frames.payload) == 0


def test_an_empty_block_and_equal_times() -> None:
    assert decoded_rows(encode_lpj_block(FrameColumns.from_rows([]), base_seq=9, block_size=SMALL)) == []
    rows = [(BASE_US, 1, b"x"), (BASE_US, 2, b""), (BASE_US, 3, b"12345678")]
    assert decoded_rows(encode_lpj_block(FrameColumns.from_rows(rows), base_seq=9, block_size=SMALL)) == rows


# --- what the format cannot say ------------------------------------------------------------------------


def test_a_backward_clock_ends_the_run_and_is_refused_by_the_encoder() -> None:
    frames = FrameColumns.from_rows([(10, 1, b"a"), (12, 1, b"b"), (11, 1, b"c"), (20, 1, b"d")])
    assert lpj_frames_that_fit(frames, SMALL, 2) == 2
    with pytest.raises(InvalidRecord, match="frame 2 is older"):
        encode_lpj_block(frames, base_seq=1, block_size=SMALL)


@pytest.mark.parametrize("pair", [(-(2**63), 2**63 - 1), (2**63 - 1, -(2**63)), (-2, 2**63 - 2)])
def test_times_too_far_apart_for_a_delta_end_the_run(pair: tuple[int, int]) -> None:
    frames = FrameColumns.from_rows([(time_us, 1, b"") for time_us in pair])
    assert lpj_frames_that_fit(frames, SMALL, 2) == 1
    with pytest.raises(InvalidRecord):
        encode_lpj_block(frames, base_seq=1, block_size=SMALL)


def test_a_device_table_beyond_u16_is_refused_instead_of_wrapping() -> None:
    device = LpjDevice(source=1, name=2)
    most = (65_535 - 2) // 19
    block = encode_lpj_block(FrameColumns.from_rows([]), base_seq=1, devices=[device] * most)
    assert decode_lpj_block(block, version=2).devices == [device] * most
    with pytest.raises(InvalidRecord, match="device table"):
        encode_lpj_block(FrameColumns.from_rows([]), base_seq=1, devices=[device] * (most + 1))


@pytest.mark.parametrize(
    "device",
    [
        LpjDevice(source=256, name=1),
        LpjDevice(source=1, name=1 << 64),
        LpjDevice(source=1, name=-1),
        LpjDevice(source=1, name=1, product_code=65_536),
        LpjDevice(source=1, name=1, serial=b"x" * 256),
    ],
)
def test_devices_out_of_range_are_refused(device: LpjDevice) -> None:
    with pytest.raises(InvalidRecord):
        encode_lpj_block(FrameColumns.from_rows([]), base_seq=1, devices=[device])


def test_ids_and_seqs_out_of_range_are_refused() -> None:
    frame = FrameColumns.from_rows([(1, 0x8000_0001, b"")])
    with pytest.raises(InvalidRecord, match="bit 31"):
        encode_lpj_block(frame, base_seq=1)
    good = FrameColumns.from_rows([(1, 1, b"")])
    for base_seq in (-1, 1 << 64):
        with pytest.raises(InvalidRecord, match="seq"):
            encode_lpj_block(good, base_seq=base_seq)
    assert decode_lpj_block(encode_lpj_block(good, base_seq=(1 << 64) - 1), version=2).base_seq == (1 << 64) - 1


def test_a_device_holds_from_its_frame_on() -> None:
    old, new = LpjDevice(source=5, name=1), LpjDevice(source=5, name=2, active_from=3)
    rows: list[Row] = [(index, 5, b"") for index in range(5)]
    block = encode_lpj_block(FrameColumns.from_rows(rows), base_seq=1, block_size=SMALL, devices=[old, new])
    decoded = decode_lpj_block(block, version=2)
    assert [decoded.device_at(5, index) for index in (0, 2, 3, 4)] == [old, old, new, new]
    assert decoded.device_at(6, 0) is None


# --- damage ----------------------------------------------------------------------------------------------


@given(bit=st.integers(0, SMALL * 8 - 1))
def test_any_flipped_bit_is_caught_by_the_checksum(bit: int) -> None:
    block = bytearray(dumb_encode([(BASE_US, 7, b"abc")], base_seq=3))
    block[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BlockCorrupt, match="checksum"):
        decode_lpj_block(bytes(block), version=2, salvage=True)


GOOD = dumb_records([(BASE_US, 7, b"abc"), (BASE_US + 5, 8, b"12345678")])


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff" * 9 + b"\x01" + b"\1\0\0\x80" + b"12345678",  # a delta of ten bytes
        b"\xff" * 400,  # a delta that never ends
        b"\0\1\0\0\0\xfa\x0d" + b"x" * 1786,  # one byte more than a transport message
        b"\0\1\0\0\0\x88\x80\0" + b"x" * 8,  # a length in three bytes
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f\1\0\0\x80" + b"12345678",  # a time past the end of int64
    ],
    ids=["wide delta", "endless delta", "long payload", "wide length", "time overflow"],
)
def test_a_bad_record_is_typed_and_salvage_keeps_the_frames_before_it(bad: bytes) -> None:
    block = dumb_block(GOOD + bad, count=4, base_time_us=BASE_US, base_seq=1)
    with pytest.raises(BlockCorrupt, match="record 2 of 4"):
        decode_lpj_block(block, version=2)
    salvaged = decode_lpj_block(block, version=2, salvage=True)
    assert list(salvaged.frames.rows()) == [(BASE_US, 7, b"abc"), (BASE_US + 5, 8, b"12345678")]
    assert salvaged.damage is not None


def test_a_record_that_runs_into_the_device_table_is_bad() -> None:
    space = SMALL - 16 - 10 - 2
    filler = dumb_records([(BASE_US, 1, b"x" * 1785), (BASE_US, 1, b"x" * 1785)])
    tail = dumb_records([(BASE_US, 1, b"y" * (space - len(filler) - 7))])
    assert len(filler + tail) == space
    block = dumb_block(filler + tail, count=3, base_time_us=BASE_US, base_seq=1)
    assert len(decoded_rows(block)) == 3
    longer = bytearray(block)
    longer[16 + len(filler) + 5] += 1
    longer[-4:] = struct.pack("<I", crc32.iscsi(bytes(longer[:-4])))
    assert len(decoded_rows(bytes(longer), salvage=True)) == 2


@pytest.mark.parametrize("count", [683, 0xFFFF_FFFF])
def test_a_count_that_cannot_fit_is_refused_before_any_work(count: int) -> None:
    with pytest.raises(BlockCorrupt, match="cannot fit"):
        decode_lpj_block(dumb_block(b"", count=count, base_time_us=0, base_seq=1), version=2, salvage=True)


@pytest.mark.parametrize("table_bytes", [0, 1, SMALL - 16 - 10 + 1, 65_535])
def test_a_device_table_length_outside_the_block_is_refused(table_bytes: int) -> None:
    block = dumb_block(b"", count=0, base_time_us=0, base_seq=1, table_bytes=table_bytes)
    with pytest.raises(BlockCorrupt, match="device table"):
        decode_lpj_block(block, version=2, salvage=True)


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_device_table_that_ends_early_is_typed(cut: int) -> None:
    entry = struct.pack("<BQIH", 1, 2, 0, 3) + b"\3abc\0\0\1z"
    table = struct.pack("<H", 2) + entry + entry[:-cut]
    block = dumb_block(GOOD, count=2, base_time_us=BASE_US, base_seq=1, table=table)
    with pytest.raises(BlockCorrupt, match="device 1 of 2"):
        decode_lpj_block(block, version=2)
    salvaged = decode_lpj_block(block, version=2, salvage=True)
    assert [device.model_id for device in salvaged.devices] == [b"abc"]
    assert len(salvaged.frames) == 2


def test_seqs_that_run_past_64_bits_and_unknown_versions_are_refused() -> None:
    block = dumb_block(GOOD, count=2, base_time_us=BASE_US, base_seq=(1 << 64) - 1)
    with pytest.raises(BlockCorrupt, match="last seq"):
        decode_lpj_block(block, version=2)
    with pytest.raises(BlockCorrupt, match="version 3"):
        decode_lpj_block(dumb_encode([], base_seq=1), version=3)


@pytest.mark.parametrize("size", [0, 9, 2048, 4095, 5000, 12_288])
def test_sizes_that_are_no_power_of_two_from_4096_are_refused(size: int) -> None:
    with pytest.raises(BlockCorrupt, match="power of two"):
        decode_lpj_block(bytes(size), version=2)
    with pytest.raises(BlockCorrupt, match="power of two"):
        encode_lpj_block(FrameColumns.from_rows([]), base_seq=1, block_size=size)


def test_a_block_above_the_size_limit_is_too_large() -> None:
    with pytest.raises(BlockTooLarge):
        encode_lpj_block(FrameColumns.from_rows([]), base_seq=1, block_size=lpj.LPJ_BLOCK_BYTES_MAX * 2)


# --- stored forms ----------------------------------------------------------------------------------------


def deflate(data: bytes, *, write_content_size: bool = True) -> bytes:
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=write_content_size)
    return compressor.compress(data)


def test_a_zstd_frame_inflates_with_and_without_a_size_in_its_header() -> None:
    block = dumb_encode([(BASE_US, 7, b"abc")], base_seq=3)
    assert inflate_lpj(deflate(block), block_size=SMALL) == block
    assert inflate_lpj(deflate(block, write_content_size=False), block_size=SMALL) == block


def test_a_zstd_bomb_is_refused_from_its_header() -> None:
    bomb = deflate(bytes(256 << 20))
    assert len(bomb) < 32_768
    with pytest.raises(BlockTooLarge):
        inflate_lpj(bomb, block_size=SMALL)


def test_a_zstd_bomb_that_names_no_size_stops_at_the_block_size() -> None:
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    bomb = compressor.compress(bytes(64 << 20)) + compressor.flush()
    with pytest.raises(BlockCorrupt):
        inflate_lpj(bomb, block_size=SMALL)


def test_a_zstd_frame_that_wants_a_huge_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = compressor.compress(bytes(SMALL)) + compressor.flush()
    with pytest.raises(BlockTooLarge, match="window"):
        inflate_lpj(frame, block_size=SMALL)


@pytest.mark.parametrize("size", [0, SMALL - 1, SMALL // 2])
def test_a_zstd_frame_of_another_size_is_refused(size: int) -> None:
    for named in (True, False):
        with pytest.raises(BlockCorrupt):
            inflate_lpj(deflate(bytes(size), write_content_size=named), block_size=SMALL)


def test_no_cut_or_tail_of_a_zstd_frame_is_taken() -> None:
    frame = deflate(dumb_encode([(BASE_US, 7, b"abc")], base_seq=3))
    for length in range(len(frame)):
        with pytest.raises(BadBlock):
            inflate_lpj(frame[:length], block_size=SMALL)
    for tail in (b"\0", frame):
        with pytest.raises(BadBlock):
            inflate_lpj(frame + tail, block_size=SMALL)


@given(data=st.binary(max_size=200))
def test_random_bytes_are_never_more_than_a_typed_error(data: bytes) -> None:
    for compression in LpjCompression:
        for prefix in (b"", b"\x28\xb5\x2f\xfd"):
            with pytest.raises(BadBlock):
                open_lpj_stored(prefix + data, compression=compression, block_size=SMALL)


def test_dictionary_lengths_are_checked() -> None:
    stored = join_lpj_dictionary(b"dict", b"payload")
    assert split_lpj_dictionary(stored) == (b"dict", b"payload")
    assert split_lpj_dictionary(join_lpj_dictionary(None, b"payload")) == (None, b"payload")
    for length in range(len(stored)):
        with pytest.raises(BlockTruncated):
            split_lpj_dictionary(stored[:length])
    with pytest.raises(BlockCorrupt, match="follow"):
        split_lpj_dictionary(stored + b"x")
    with pytest.raises(BlockTooLarge):
        split_lpj_dictionary(struct.pack("<II", 1 << 30, 5))
