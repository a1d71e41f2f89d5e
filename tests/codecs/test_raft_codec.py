"""Raft's messages as bytes: fixed for ever, the same both ways, and nonsense is refused in words."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidelog.codecs.raft_codec import (
    ENTRY_HEAD_BYTES,
    NUMBER_MAX,
    decode_entry,
    decode_members,
    decode_message,
    decode_snapshot_head,
    encode_entry,
    encode_members,
    encode_message,
    encode_snapshot_head,
)
from tidelog.core.raft.members import MEMBERS_MAX, Members
from tidelog.core.raft.messages import (
    AppendAnswer,
    AppendEntries,
    Entry,
    EntryKind,
    Message,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotHead,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from tidelog.errors import BadMessage

numbers = st.integers(0, NUMBER_MAX - 1)
names = st.text(min_size=1, max_size=60).filter(lambda text: _is_name(text))


def _is_name(text: str) -> bool:
    with suppress(UnicodeEncodeError):
        return len(text.encode()) <= 255
    return False


@st.composite
def memberships(draw: st.DrawFn) -> Members:
    chosen = draw(st.lists(names, unique=True, max_size=6))
    split = draw(st.integers(0, len(chosen)))
    return Members(tuple(sorted(chosen[:split])), tuple(sorted(chosen[split:])))


heads = st.builds(SnapshotHead, numbers, numbers, memberships())


@st.composite
def entry_runs(draw: st.DrawFn, first: int, term: int, term_max: int) -> tuple[Entry, ...]:
    made = []
    for index in range(first, first + draw(st.integers(0, 4))):
        term = draw(st.integers(max(term, 1), term_max))
        kind = draw(st.sampled_from(EntryKind))
        data = draw(st.binary(max_size=40) | st.binary(min_size=4095, max_size=4097))
        made.append(Entry(index, term, kind, data, draw(memberships()) if kind is EntryKind.MEMBERS else None))
    return tuple(made)


@st.composite
def appends(draw: st.DrawFn) -> AppendEntries:
    term = draw(st.integers(1, NUMBER_MAX - 1))
    previous_index, previous_term = draw(st.integers(0, NUMBER_MAX - 10)), draw(st.integers(0, term))
    return AppendEntries(
        term=term,
        previous_index=previous_index,
        previous_term=previous_term,
        entries=draw(entry_runs(previous_index + 1, previous_term, term)),
        commit=draw(numbers),
        round=draw(numbers),
    )


@st.composite
def chunks(draw: st.DrawFn) -> SnapshotChunk:
    data, offset = draw(st.binary(max_size=100)), draw(st.integers(0, 2**40))
    return SnapshotChunk(
        term=draw(numbers),
        round=draw(numbers),
        head=draw(heads),
        size_bytes=offset + len(data) + draw(st.integers(0, 2**40)),
        checksum=draw(st.integers(0, 2**32 - 1)),
        offset=offset,
        data=data,
    )


flags = st.booleans()
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(VoteRequest, term=numbers, last_index=numbers, last_term=numbers, pre=flags, forced=flags),
    st.builds(VoteAnswer, term=numbers, granted=flags, pre=flags),
    appends(),
    st.builds(
        AppendAnswer,
        term=numbers,
        round=numbers,
        accepted=flags,
        index=numbers,
        rejected_index=numbers,
        hint_term=numbers,
    ),
    chunks(),
    st.builds(SnapshotAnswer, term=numbers, round=numbers, index=numbers, received_bytes=numbers),
    st.builds(TimeoutNow, term=numbers),
)


def encoded(message: Message) -> bytes:
    return b"".join(encode_message(message))


# --- known answers ---------------------------------------------------------------------------------

MEMBERS = Members(("a", "b"), ("c",))
HEAD = SnapshotHead(9, 2, MEMBERS)
ENTRIES = (Entry(5, 2, EntryKind.CHANGE, b"hi"), Entry(6, 3, EntryKind.MEMBERS, b"", MEMBERS))
KNOWN: list[tuple[Message, str]] = [
    (
        VoteRequest(term=3, last_index=7, last_term=2, pre=True, forced=False),
        "01010100 00000000 0300000000000000 0700000000000000 0200000000000000",
    ),
    (VoteAnswer(term=3, granted=True, pre=True), "01020500 00000000 0300000000000000"),
    (
        AppendEntries(term=3, previous_index=4, previous_term=2, entries=ENTRIES, commit=4, round=8),
        "01030000 02000000 0300000000000000 0400000000000000 0200000000000000 0400000000000000 0800000000000000"
        "01 01 0000 02000000 0500000000000000 0200000000000000 6869"
        "01 02 0800 00000000 0600000000000000 0300000000000000 02 01 0161 0162 0163",
    ),
    (
        AppendAnswer(term=3, round=8, accepted=True, index=6),
        "01040400 00000000 0300000000000000 0800000000000000 0600000000000000 0000000000000000 0000000000000000",
    ),
    (
        SnapshotChunk(term=3, round=8, head=HEAD, size_bytes=100, checksum=0xAABBCCDD, offset=90, data=b"end"),
        "01050000 20000000 0300000000000000 0800000000000000 6400000000000000 5a00000000000000 ddccbbaa 03000000"
        "0900000000000000 0200000000000000 0800 000000000000 02 01 0161 0162 0163 656e64",
    ),
    (
        SnapshotAnswer(term=3, round=8, index=9, received_bytes=93),
        "01060000 00000000 0300000000000000 0800000000000000 0900000000000000 5d00000000000000",
    ),
    (TimeoutNow(term=3), "01070000 00000000 0300000000000000"),
]


@pytest.mark.parametrize(("message", "known"), KNOWN, ids=lambda value: type(value).__name__)
def test_a_message_has_these_bytes_for_ever(message: Message, known: str) -> None:
    assert encoded(message) == bytes.fromhex(known)
    assert decode_message(bytes.fromhex(known)) == message


def test_an_entry_and_a_snapshot_head_have_these_bytes_for_ever() -> None:
    assert encode_entry(ENTRIES[0]).hex() == "0101000002000000050000000000000002000000000000006869"
    assert encode_members(MEMBERS) == b"\x02\x01\x01a\x01b\x01c"
    assert encode_snapshot_head(HEAD)[:24].hex() == "090000000000000002000000000000000800000000000000"


# --- both ways -------------------------------------------------------------------------------------


@given(messages)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    data = encoded(message)
    for given_as in (data, bytearray(data), memoryview(data)):
        assert decode_message(given_as) == message


@given(memberships(), heads)
def test_members_and_snapshot_heads_come_back_as_they_were(members: Members, head: SnapshotHead) -> None:
    assert decode_members(encode_members(members)) == members
    assert decode_snapshot_head(encode_snapshot_head(head)) == head


@given(entry_runs(1, 1, 9))
def test_entries_come_back_as_they_were(run: tuple[Entry, ...]) -> None:
    for entry in run:
        assert decode_entry(memoryview(encode_entry(entry))) == entry


def test_large_data_is_handed_on_without_a_copy() -> None:
    large = bytes(100_000)
    small = Entry(1, 1, EntryKind.CHANGE, b"small")
    run = (small, Entry(2, 1, EntryKind.CHANGE, large), Entry(3, 1, EntryKind.CHANGE, b"small"))
    message = AppendEntries(term=1, previous_index=0, previous_term=0, entries=run, commit=0, round=0)
    buffers = encode_message(message)
    assert len(buffers) == 3
    assert buffers[1] is large
    assert decode_message(b"".join(buffers)) == message
    chunk = SnapshotChunk(term=1, round=1, head=HEAD, size_bytes=100_000, checksum=0, offset=0, data=large)
    assert encode_message(chunk)[1] is large


def test_what_was_decoded_does_not_hold_on_to_the_buffer_it_came_in() -> None:
    buffer = bytearray(encoded(KNOWN[2][0]))
    message = decode_message(memoryview(buffer))
    buffer.clear()  # fails while a view of it is alive
    assert message == KNOWN[2][0]


# --- nonsense --------------------------------------------------------------------------------------


@given(st.binary(max_size=200))
@example(b"")
@example(b"\x01\x03\x00\x00\xff\xff\xff\xff" + bytes(40))
def test_random_bytes_are_refused_or_understood_but_nothing_else(data: bytes) -> None:
    for decode in (decode_message, decode_entry, decode_members, decode_snapshot_head):
        with suppress(BadMessage):
            decode(data)


@given(messages, st.data())
def test_a_changed_message_is_refused_or_says_exactly_what_its_bytes_say(message: Message, data: st.DataObject) -> None:
    changed = bytearray(encoded(message))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        understood = decode_message(bytes(changed))
    except BadMessage:
        return
    assert encoded(understood) == bytes(changed), "CRC2"


@given(messages, st.data())
def test_a_message_cut_off_or_followed_by_anything_is_refused(message: Message, data: st.DataObject) -> None:
    whole = encoded(message)
    for changed in (whole[: data.draw(st.integers(0, len(whole) - 1))], whole + b"\x00"):
        with pytest.raises(BadMessage):
            decode_message(changed)


def corrupted(message: Message, position: int, layout: str, value: int) -> bytes:
    data = bytearray(encoded(message))
    struct.pack_into(layout, data, position, value)
    return bytes(data)


APPEND = KNOWN[2][0]
FIRST_ENTRY = 48


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x01", "shorter than its head"),
        (corrupted(APPEND, 0, "<B", 2), "version 2"),
        (corrupted(APPEND, 1, "<B", 0), "kind 0"),
        (corrupted(APPEND, 1, "<B", 8), "kind 8"),
        (corrupted(APPEND, 2, "<B", 1), "flags 1"),
        (corrupted(APPEND, 3, "<B", 1), "mean nothing"),
        (corrupted(APPEND, 4, "<I", 2**32 - 1), "4294967295 entries"),
        (corrupted(APPEND, 4, "<I", 1), "follow the entries"),
        (corrupted(APPEND, 8, "<Q", 2**64 - 1), "beyond every limit"),
        (corrupted(APPEND, 8, "<Q", 1), "follows an entry of term 2"),
        (corrupted(APPEND, FIRST_ENTRY, "<B", 9), "entry version 9"),
        (corrupted(APPEND, FIRST_ENTRY + 1, "<B", 9), "entry kind 9"),
        (corrupted(APPEND, FIRST_ENTRY + 2, "<H", 1), "no membership carries one"),
        (corrupted(APPEND, FIRST_ENTRY + 4, "<I", 2**31), "more than there are"),
        (corrupted(APPEND, FIRST_ENTRY + 8, "<Q", 6), "in place of 5"),
        (corrupted(APPEND, FIRST_ENTRY + 8, "<Q", 0), "index 0"),
        (corrupted(APPEND, FIRST_ENTRY + 16, "<Q", 1), "term 1 in place"),
        (corrupted(APPEND, FIRST_ENTRY + 16, "<Q", 4), "term 4 in place"),
        (corrupted(KNOWN[0][0], 4, "<I", 1), "not its length"),
        (corrupted(KNOWN[4][0], 4, "<I", 500), "claims 500"),
        (corrupted(KNOWN[4][0], 32, "<Q", 99), "do not belong"),
        (corrupted(KNOWN[4][0], 66, "<B", 1), "another length"),
    ],
)
def test_a_refusal_says_what_is_wrong(data: bytes, words: str) -> None:
    with pytest.raises(BadMessage, match=words):
        decode_message(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "shorter"),
        (b"\x01\x00\x05ab", "cut off"),
        (b"\x01\x00\x00", "empty"),
        (b"\x01\x00\x01\xff", "UTF-8"),
        (b"\x01\x00\x01ax", "1 bytes follow"),
        (b"\x02\x00\x01b\x01a", "sorted"),
        (b"\x02\x00\x01a\x01a", "twice"),
        (b"\x01\x01\x01a\x01a", "twice"),
        (bytes([MEMBERS_MAX, 1]) + b"\x01a" * 65, "65 members"),
    ],
)
def test_an_odd_membership_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(BadMessage, match=words):
        decode_members(data)


def test_an_entry_that_claims_much_is_refused_before_anything_is_allocated() -> None:
    head = struct.pack("<BBHIQQ", 1, 1, 0, 2**32 - 1, 1, 1)
    assert len(head) == ENTRY_HEAD_BYTES
    with pytest.raises(BadMessage, match="4294967295"):
        decode_entry(head)
