"""Control records: every type comes back, newer ones are kept, nonsense is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.blocks.crafted import KIND, refusal, stamped, with_body
from tidelog.blocks.block import Block
from tidelog.blocks.control import (
    ControlRecord,
    EpochStarted,
    FoldSnapshot,
    LineageOpened,
    RangeLost,
    RangeVoid,
    SessionOpened,
    UnknownControl,
    decode_control,
    encode_control,
)
from tidelog.blocks.header import BlockKind
from tidelog.blocks.messages import Message, encode_messages
from tidelog.errors import BlockCorrupt

lineages = st.binary(min_size=16, max_size=16).map(bytes.hex)
numbers = st.integers(0, 2**64 - 1)
texts = st.text(max_size=20)
json_values = st.recursive(st.none() | st.booleans() | numbers | texts, st.lists, max_leaves=5)
records = st.lists(
    st.one_of(
        st.builds(EpochStarted, epoch=numbers, node=texts),
        st.builds(LineageOpened, lineage=lineages, reason=texts, previous=lineages),
        st.builds(SessionOpened, instance=texts, lineage=lineages, head=numbers, session=numbers),
        st.builds(RangeLost, lineage=lineages, start=numbers, end=numbers, reason=texts),
        st.builds(RangeVoid, lineage=lineages, start=numbers, end=numbers),
        st.builds(FoldSnapshot, state=st.dictionaries(texts, json_values, max_size=4)),
    ),
    max_size=6,
)


@given(records=records, time_us=st.integers(-(2**63), 2**63 - 1))
def test_any_records_come_back(records: list[ControlRecord], time_us: int) -> None:
    block = Block.parse(stamped(encode_control(records, time_us=time_us)).tobytes())
    assert block.maker.kind == BlockKind.CONTROL
    assert (block.maker.time_min_us, block.maker.time_max_us) == (time_us, time_us)
    assert block.counted == len(records)
    assert decode_control(block.maker, block.raw_body()) == records


def raw_control(key: bytes, value: bytes) -> bytes:
    shaped = stamped(encode_messages([Message(time_us=1, key=key, value=value)]))
    return with_body(shaped, bytes(shaped.raw_body()), (KIND, "B", BlockKind.CONTROL))


def test_a_type_of_a_newer_version_is_kept() -> None:
    block = Block.parse(raw_control(b"tide-table", b'{"a":1}'))
    assert decode_control(block.maker, block.raw_body()) == [UnknownControl(name="tide-table", text='{"a":1}')]


def test_a_field_of_a_newer_version_is_ignored() -> None:
    block = Block.parse(raw_control(b"epoch-started", b'{"epoch":4,"mood":"calm"}'))
    assert decode_control(block.maker, block.raw_body()) == [EpochStarted(epoch=4)]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'"epoch"',
        b"null",
        b"{}",
        b'{"epoch":"4"}',
        b'{"epoch":true}',
        b'{"epoch":4.0}',
        b'{"epoch":null}',
        b'{"epoch":4,"node":[]}',
        b'{"epoch":\xff}',
        b'{"epoch":' + b"9" * 10_000 + b"}",
        b"[" * 100_000,
        b'{"epoch":4,"node":' + b'{"a":' * 100_000,
    ],
    ids=lambda text: repr(text[:24]),
)
def test_nonsense_is_refused(text: bytes) -> None:
    assert isinstance(refusal(raw_control(b"epoch-started", text)), BlockCorrupt)


def test_a_message_block_out_of_shape_is_no_control_block_either() -> None:
    shaped = stamped(encode_control([EpochStarted(epoch=1)], time_us=1))
    assert isinstance(refusal(with_body(shaped, b"")), BlockCorrupt)
