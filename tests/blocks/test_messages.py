"""Message bodies: null and empty stay apart, headers stay in order, lies are refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.blocks.crafted import FORM, INT64_MAX, INT64_MIN, messages, refusal, stamped, with_body
from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.header import BlockKind, Codec
from tidelog.blocks.messages import Message, MessageColumns, decode_messages, encode_messages, encode_values
from tidelog.errors import BlockCorrupt


def decoded(made: MadeBlock) -> list[Message]:
    block = Block.parse(stamped(made).tobytes())
    assert block.maker.kind == BlockKind.MESSAGES
    return list(decode_messages(block.maker, block.raw_body()).rows())


@given(records=messages, codec=st.sampled_from(Codec))
def test_any_messages_come_back(records: list[Message], codec: Codec) -> None:
    made = encode_messages(records, codec=codec, base_seq=1)
    assert decoded(made) == records
    assert made.maker.record_count == len(records)


@pytest.mark.parametrize(
    "records",
    [
        [],
        [Message(time_us=0)],
        [Message(time_us=5, key=b"", value=None), Message(time_us=3, key=None, value=b"")],
        [Message(time_us=INT64_MIN), Message(time_us=INT64_MAX)],
        [Message(time_us=1, headers=(("trace", b"\xff"), ("trace", b""), ("", b"x")))],
        [Message(time_us=index, key=b"%d" % index, headers=(("n", b"v"),) * (index % 3)) for index in range(1000)],
    ],
    ids=["empty block", "one", "null and empty", "extreme clock", "repeated header", "a thousand"],
)
def test_ordinary_blocks_come_back(records: list[Message]) -> None:
    assert decoded(encode_messages(records)) == records
    assert decoded(encode_messages(MessageColumns.from_rows(records))) == records


def body(
    *,
    header_count: int = 1,
    wide: int = 0,
    distances: tuple[int, ...] = (0, 1),
    keys: tuple[int, ...] = (0, 1, 1),
    values: tuple[int, ...] = (0, 1, 2),
    owners: tuple[int, ...] = (0, 0, 1),
    names: tuple[int, ...] = (0, 1),
    contents: tuple[int, ...] = (0, 1),
    tail: bytes = b"\x03\x02kvwnc",
) -> bytes:
    """The body of two messages, right by default."""
    numbers = (*keys, *values, *owners, *names, *contents)
    return struct.pack(f"<II2I{len(numbers)}i", header_count, wide, *distances, *numbers) + tail


HONEST = [Message(time_us=0, key=b"k", value=b"v"), Message(time_us=1, value=b"w", headers=(("n", b"c"),))]


@pytest.mark.parametrize(
    "lie",
    [
        b"",
        body()[:-6],
        body(header_count=2**32 - 1),
        body(header_count=0),
        body(wide=2),
        body(wide=1),
        body(keys=(1, 1, 1)),
        body(values=(0, 2, 1)),
        body(values=(0, 1, 2**31 - 1)),
        body(owners=(0, 0, 0)),
        body(owners=(0, 2, 1)),
        body(names=(0, 2)),
        body(contents=(0, 0)),
        body(contents=(-1, 1)),
        body(tail=b"\x03\x02kvwnc!"),
        body(distances=(0, 2)),
    ],
    ids=range(16),
)
def test_a_body_that_lies_is_refused(lie: bytes) -> None:
    honest = stamped(encode_messages(HONEST))
    assert with_body(honest, body()) == honest.tobytes()
    assert isinstance(refusal(with_body(honest, lie)), BlockCorrupt)


def test_a_form_of_a_newer_version_is_refused() -> None:
    honest = stamped(encode_messages(HONEST))
    assert "newer" in refusal(with_body(honest, body(), (FORM, "B", 9))).problem


def test_a_header_name_that_is_no_text_is_replaced_not_refused() -> None:
    block = Block.parse(with_body(stamped(encode_messages(HONEST)), body(tail=b"\x03\x02kvw\xffc")))
    records = list(decode_messages(block.maker, block.raw_body()).rows())
    assert records[1].headers == (("\N{REPLACEMENT CHARACTER}", b"c"),)


@given(values=st.lists(st.binary(max_size=40), max_size=20), time_us=st.integers(INT64_MIN, INT64_MAX))
def test_plain_values_make_the_same_bytes_as_messages_of_them(values: list[bytes], time_us: int) -> None:
    made = encode_values(values, time_us=time_us, base_seq=5)
    same = encode_messages([Message(time_us=time_us, value=value) for value in values], base_seq=5)
    assert b"".join(made.buffers) == b"".join(same.buffers)
