"""Liftbridge's records: the golden one and its index entry, round trips, damage refused in words."""

from __future__ import annotations

import struct

import pytest
from fastcrc.crc32 import iscsi as crc32c
from hypothesis import given
from hypothesis import strategies as st

from tidelog.codecs.liftbridge_records import (
    SET_HEAD_BYTES,
    IndexEntry,
    LiftbridgeRecord,
    decode_index,
    decode_records,
    encode_index,
    encode_records,
    encode_run,
    index_records,
)
from tidelog.errors import BadLiftbridgeRecord, InvalidRecord

RECORD = LiftbridgeRecord(0, 1, 7, b"k", b"v", (("subject", b"foo"), ("reply", b"")))
GOLDEN = bytes.fromhex(
    "0000000000000000 0000000000000001 0000000000000007 0000002d 30ba5eb4 01 00 00000001 6b 00000001 76"
    "0002 0007 7375626a656374 00000003 666f6f 0005 7265706c79 00000000"
)
GOLDEN_ENTRY = bytes.fromhex("00000000 0000000000000001 00000000 00000049")


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
records = st.builds(
    LiftbridgeRecord,
    st.integers(0, 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1),
    st.none() | st.binary(max_size=9),
    st.none() | st.binary(max_size=30),
    st.lists(st.tuples(names, st.binary(max_size=9)), max_size=4).map(tuple),
)


def with_checksum(message: bytes) -> bytes:
    """A record of any message, sound or not, with a right checksum."""
    return struct.pack(">qqQi", 5, 6, 7, len(message) + 4) + struct.pack(">I", crc32c(message)) + message


def test_the_golden_record_is_written_and_read() -> None:
    assert len(GOLDEN) == 73
    assert encode_records([RECORD]) == GOLDEN
    assert decode_records(GOLDEN) == [RECORD]


def test_the_golden_index_entry_is_written_and_read() -> None:
    (entry,) = index_records(GOLDEN, base_offset=0)
    assert entry == IndexEntry(0, 1, 0, 73)
    assert encode_index([entry]) == GOLDEN_ENTRY
    assert decode_index(GOLDEN_ENTRY) == [entry]


def test_an_index_counts_from_its_segments_base_and_place() -> None:
    data = encode_records([RECORD._replace(offset=12), RECORD._replace(offset=13, timestamp_ns=9)])
    assert index_records(data, base_offset=10, position=100) == [IndexEntry(2, 1, 100, 73), IndexEntry(3, 9, 173, 73)]
    with pytest.raises(BadLiftbridgeRecord, match="no segment from 13 on can index"):
        index_records(data, base_offset=13)
    with pytest.raises(BadLiftbridgeRecord, match="at byte 20 is an entry of an index that ends within itself"):
        decode_index(GOLDEN_ENTRY + b"\0")


@given(listed=st.lists(records, max_size=5))
def test_records_come_back_as_they_were(listed: list[LiftbridgeRecord]) -> None:
    data = encode_records(listed)
    assert decode_records(memoryview(data)) == listed
    assert encode_records(decode_records(data)) == data


def test_no_key_and_an_empty_key_are_two_things() -> None:
    listed = [RECORD._replace(key=None, value=b""), RECORD._replace(key=b"", value=None)]
    assert decode_records(encode_records(listed)) == listed


def test_a_run_from_columns_has_the_bytes_of_its_records() -> None:
    run = encode_run(
        base_offset=40,
        leader_epoch=7,
        timestamps_ns=[1, 2],
        keys=[b"k", None],
        values=[b"v", b"w"],
        headers=[RECORD.headers, ()],
    )
    assert run == encode_records([RECORD._replace(offset=40), LiftbridgeRecord(41, 2, 7, None, b"w", ())])


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidRecord, match="as many times, keys, values"):
        encode_run(base_offset=0, leader_epoch=1, timestamps_ns=[1], keys=[None], values=[], headers=[()])


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (RECORD._replace(offset=-1), "offset -1"),
        (RECORD._replace(timestamp_ns=2**63), "out of range"),
        (RECORD._replace(leader_epoch=2**64), "out of range"),
        (RECORD._replace(headers=(("n" * 2**15, b""),)), "name of 32768 bytes"),
        (RECORD._replace(headers=(("n", b""),) * 2**15), "32768 headers"),
        (RECORD._replace(headers=(("\ud800", b""),)), "cannot be written as UTF-8"),
    ],
)
def test_what_liftbridge_cannot_hold_is_refused_before_it_is_written(record: LiftbridgeRecord, words: str) -> None:
    with pytest.raises(InvalidRecord, match=words):
        encode_records([record])


def test_a_header_name_that_is_no_text_survives_the_round_trip() -> None:
    message = b"\x01\x00" + b"\xff" * 8 + struct.pack(">hh", 1, 2) + b"\xff\xfe" + struct.pack(">i", 0)
    data = with_checksum(message)
    assert encode_records(decode_records(data)) == data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (GOLDEN[:27], "at byte 0 ends within its head"),
        (GOLDEN[:-1], "at byte 0 claims 45 bytes where 44 are left"),
        (GOLDEN + GOLDEN[:30], "at byte 73 claims 45 bytes where 2 are left"),
        (GOLDEN[:24] + bytes(4) + GOLDEN[28:], "claims 0 bytes"),
        (GOLDEN[:24] + b"\xff" * 4 + GOLDEN[28:], "claims -1 bytes"),
        (b"\xff" + GOLDEN[1:], "has offset -"),
        (GOLDEN[:-1] + b"\x01", "has checksum 30ba5eb4 but"),
        (with_checksum(b"\x02\x00" + b"\xff" * 8 + bytes(2)), "has magic 2 and attributes 0"),
        (with_checksum(b"\x01\x01" + b"\xff" * 8 + bytes(2)), "has magic 1 and attributes 1"),
        (with_checksum(b"\x01\x00\xff\xff\xff\xfe" + b"\xff" * 4 + bytes(2)), "a part of -2 bytes"),
        (with_checksum(b"\x01\x00" + b"\x7f\xff\xff\xff" * 2 + bytes(2)), "parts that are longer than itself"),
        (with_checksum(b"\x01\x00" + b"\xff" * 8 + b"\xff\xff"), "claims -1 headers"),
        (with_checksum(b"\x01\x00" + b"\xff" * 8 + b"\x7f\xff"), "longer than itself"),
        (with_checksum(b"\x01\x00" + b"\xff" * 8 + b"\0\x01" + b"\xff" * 6), "a part of -1 bytes"),
        (with_checksum(b"\x01\x00" + b"\xff" * 8 + bytes(3)), "has 1 bytes left over"),
    ],
)
def test_a_damaged_record_is_refused_with_its_place_and_why(data: bytes, words: str) -> None:
    with pytest.raises(BadLiftbridgeRecord, match=words):
        decode_records(data)


@given(place=st.integers(SET_HEAD_BYTES, len(GOLDEN) - 1), bit=st.integers(0, 7))
def test_every_flipped_bit_behind_the_head_is_noticed(place: int, bit: int) -> None:
    data = bytearray(GOLDEN)
    data[place] ^= 1 << bit
    with pytest.raises(BadLiftbridgeRecord):
        decode_records(bytes(data))


@given(message=st.binary(min_size=12, max_size=60))
def test_a_right_checksum_does_not_make_nonsense_a_record(message: bytes) -> None:
    data = with_checksum(b"\x01\x00" + message)
    try:
        found = decode_records(data)
    except BadLiftbridgeRecord:
        return
    assert encode_records(found) == data
