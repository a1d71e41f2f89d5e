"""Bytes of replication: golden ones, round trips, and everything odd refused."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.codecs.replication_codec import (
    REPLICATION,
    SYNC_REQUEST_BYTES,
    SYNC_RESPONSE_HEAD_BYTES,
    TEXT_BYTES_MAX,
    decode_replication,
    encode_replication,
)
from tidelog.core.catalog import AdmitNode, encode_change
from tidelog.core.replication.messages import (
    AskLog,
    Buffer,
    LeaderSilent,
    LogFacts,
    LogMemory,
    NodeLoadReport,
    Notify,
    ProposeChange,
    ReplicationMessage,
    Resign,
    SyncError,
    SyncNack,
    SyncRequest,
    SyncResponse,
    Withdraw,
)
from tidelog.errors import BadMessage
from tidelog.transports.link.frames import SMALL_BYTES_MAX
from tidelog.units import MIB

REQUEST = SyncRequest(
    channel_id=1,
    leader_epoch=2,
    request_id=3,
    fetch_from=4,
    last_epoch=5,
    held_end=6,
    committed_end=7,
    incarnation=8,
    channel_epoch=10,
    chunk_bytes_max=9,
)
RESPONSE = SyncResponse(
    channel_id=1,
    leader_epoch=2,
    request_id=3,
    committed_end=4,
    log_start=5,
    log_end=6,
    first_offset=7,
    data=(b"blo", b"ck"),
)
NACK = SyncNack(
    channel_id=1,
    leader_epoch=2,
    request_id=3,
    error=SyncError.DIVERGED,
    log_start=4,
    epoch=5,
    end=6,
    retry_after_ms=7,
    detail="no",
)
LOAD = NodeLoadReport(incarnation=1, free_bytes=2, capacity_bytes=3, chains=(4, 5))
ALL: list[ReplicationMessage] = [
    REQUEST,
    RESPONSE,
    NACK,
    Notify(channel_id=1, leader_epoch=2),
    LeaderSilent(channel_id=1, leader="n2", leader_epoch=2, channel_epoch=3),
    Resign(channel_id=1, leader_epoch=2, incarnation=3, reason="disk full"),
    Withdraw(channel_id=1, channel_epoch=2, incarnation=3, reason="no room"),
    AskLog(channel_id=1, channel_epoch=2),
    LogFacts(channel_id=1, channel_epoch=2, incarnation=3, last_epoch=4, log_end=5),
    ProposeChange(change=encode_change(AdmitNode(node="n1"))),
    LOAD,
]


MEMORY = LogMemory(epoch=6, committed_end=7, ends=(("n1", 8), ("n2", 9)))


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


GOLDEN: list[tuple[ReplicationMessage, bytes]] = [
    (REQUEST, b"\x20\0\0\0\x09\0\0\0" + words(1, 2, 3, 4, 5, 6, 7, 8, 10)),
    (RESPONSE, b"\x21\0\0\0\x05\0\0\0" + words(1, 2, 3, 4, 5, 6, 7) + b"block"),
    (NACK, b"\x23\0\0\0\x02\0\x05\0" + words(1, 2, 3, 4, 5, 6, 7) + b"no"),
    (ALL[3], b"\x24\0\0\0\0\0\0\0" + words(1, 2)),
    (ALL[4], b"\x25\0\0\0\x02\0\0\0" + words(1, 2, 3) + b"n2"),
    (ALL[5], b"\x26\0\0\0\x09\0\0\0" + words(1, 2, 3) + b"disk full"),
    (ALL[6], b"\x27\0\0\0\x07\0\0\0" + words(1, 2, 3) + b"no room"),
    (ALL[7], b"\x28\0\0\0\0\0\0\0" + words(1, 2)),
    (ALL[8], b"\x29\0\0\0\0\0\0\0" + words(1, 2, 3, 4, 5)),
    (ALL[9], b'\x2a\0\0\0\x27\0\0\0{"kind":"admit_node","node":"n1","v":1}'),
    (LOAD, b"\x2b\0\0\0\x02\0\0\0" + words(1, 2, 3, 4, 5)),
    (AskLog(channel_id=1, channel_epoch=2, with_memory=True), b"\x28\0\0\0\x01\0\0\0" + words(1, 2)),
    (
        LogFacts(channel_id=1, channel_epoch=2, incarnation=3, last_epoch=4, log_end=5, memory=MEMORY),
        b"\x29\0\0\0\x28\0\0\0" + words(1, 2, 3, 4, 5, 6, 7) + words(8) + b"\x02\0n1" + words(9) + b"\x02\0n2",
    ),
]


def bodies(messages: Sequence[ReplicationMessage]) -> list[bytes]:
    return [b"".join(buffers) for _, buffers in encode_replication(messages)]


def plain(message: ReplicationMessage) -> ReplicationMessage:
    """With its data in one piece, as a reader gets it."""
    if not isinstance(message, SyncResponse):
        return message
    fields = {name: getattr(message, name) for name in SyncResponse.__slots__}
    data = b"".join(message.data)
    return SyncResponse(**{**fields, "data": (data,) if data else ()})


def decoded(body: bytes) -> list[ReplicationMessage]:
    return decode_replication(memoryview(body))


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_a_message_has_the_bytes_it_always_had(message: ReplicationMessage, golden: bytes) -> None:
    assert bodies([message]) == [golden]
    assert decoded(golden) == [plain(message)]


def test_every_kind_of_message_has_golden_bytes() -> None:
    kinds = {type(message) for message, _ in GOLDEN}
    assert kinds == set(ReplicationMessage.__args__)


def test_messages_of_a_turn_share_one_body_in_order() -> None:
    encoded = encode_replication(ALL)
    assert [kind for kind, _ in encoded] == [REPLICATION]
    assert decoded(b"".join(encoded[0][1])) == [plain(message) for message in ALL]


def test_nothing_to_say_is_no_body() -> None:
    assert encode_replication([]) == []


numbers = st.integers(0, 2**62 - 1)
ids = st.integers(1, 2**62 - 1)
texts = st.text(max_size=40)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
messages = st.one_of(
    st.builds(
        SyncRequest,
        channel_id=ids,
        leader_epoch=numbers,
        request_id=numbers,
        fetch_from=numbers,
        last_epoch=numbers,
        held_end=numbers,
        committed_end=numbers,
        incarnation=numbers,
        channel_epoch=numbers,
        chunk_bytes_max=st.integers(0, 2**32 - 1),
        again=st.booleans(),
    ),
    st.builds(
        SyncResponse,
        channel_id=ids,
        leader_epoch=numbers,
        request_id=numbers,
        committed_end=numbers,
        log_start=numbers,
        log_end=numbers,
        first_offset=numbers,
        data=st.lists(st.binary(max_size=9_000), max_size=3).map(tuple),
    ),
    st.builds(
        SyncNack,
        channel_id=ids,
        leader_epoch=numbers,
        request_id=numbers,
        error=st.sampled_from(SyncError),
        log_start=numbers,
        epoch=numbers,
        end=numbers,
        retry_after_ms=numbers,
        detail=texts,
    ),
    st.builds(Notify, channel_id=ids, leader_epoch=numbers),
    st.builds(LeaderSilent, channel_id=ids, leader=names, leader_epoch=numbers, channel_epoch=numbers),
    st.builds(Resign, channel_id=ids, leader_epoch=numbers, incarnation=numbers, reason=texts),
    st.builds(Withdraw, channel_id=ids, channel_epoch=numbers, incarnation=numbers, reason=texts),
    st.builds(AskLog, channel_id=ids, channel_epoch=numbers, with_memory=st.booleans()),
    st.builds(
        LogFacts,
        channel_id=ids,
        channel_epoch=numbers,
        incarnation=numbers,
        last_epoch=numbers,
        log_end=numbers,
        memory=st.builds(
            LogMemory,
            epoch=numbers,
            committed_end=numbers,
            ends=st.dictionaries(names, numbers, max_size=4).map(lambda ends: tuple(sorted(ends.items()))),
        ),
    ),
    st.builds(ProposeChange, change=st.binary(min_size=1, max_size=20_000)),
    st.builds(
        NodeLoadReport,
        incarnation=numbers,
        free_bytes=numbers,
        capacity_bytes=numbers,
        chains=st.sets(ids, max_size=20).map(lambda chains: tuple(sorted(chains))),
    ),
)


@given(st.lists(messages, min_size=1, max_size=12))
def test_whatever_is_sent_arrives_as_it_was(sent: list[ReplicationMessage]) -> None:
    arrived = []
    for body in bodies(sent):
        arrived += decoded(body)
        assert bodies(decoded(body)) == [body], "CRE1"
        assert len(body) <= SMALL_BYTES_MAX or len(decoded(body)) == 1, "CRE3"
    assert arrived == [plain(message) for message in sent]


def test_a_thousand_requests_go_in_few_small_bodies() -> None:
    sent = bodies([REQUEST] * 1_000)
    assert max(map(len, sent)) <= SMALL_BYTES_MAX
    assert len(sent) == -(-1_000 // (SMALL_BYTES_MAX // SYNC_REQUEST_BYTES))


def test_large_data_is_neither_copied_nor_waited_behind() -> None:
    large: tuple[Buffer, ...] = (bytes(100), bytes(MIB))
    response = SyncResponse(
        channel_id=1, leader_epoch=2, request_id=3, committed_end=4, log_start=5, log_end=6, data=large
    )
    before, alone, after = encode_replication([REQUEST, response, REQUEST])
    assert alone[1][1] is large[0]
    assert alone[1][2] is large[1]
    assert before == after == (REPLICATION, [GOLDEN[0][1]])


def test_the_data_of_a_response_is_a_view_into_the_body() -> None:
    body = bytearray(bodies([RESPONSE])[0])
    (response,) = decode_replication(memoryview(body))
    assert isinstance(response, SyncResponse)
    body[-1:] = b"!"
    assert bytes(response.data[0]) == b"bloc!"


def test_text_that_is_too_long_loses_its_end_between_two_characters() -> None:
    (body,) = bodies([Resign(channel_id=1, leader_epoch=2, incarnation=3, reason="x" + "ü" * TEXT_BYTES_MAX)])
    (resign,) = decoded(body)
    assert isinstance(resign, Resign)
    assert resign.reason == "x" + "ü" * ((TEXT_BYTES_MAX - 1) // 2)


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_every_cut_of_a_message_is_refused(message: ReplicationMessage, golden: bytes) -> None:
    for length in range(len(golden)):
        with pytest.raises(BadMessage):
            decoded(golden[:length])
        with pytest.raises(BadMessage):
            decoded(GOLDEN[0][1] + (golden[:length] or b"\xff"))


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda value: type(value).__name__)
def test_bytes_after_the_end_are_refused(message: ReplicationMessage, golden: bytes) -> None:
    with pytest.raises(BadMessage):
        decoded(golden + b"\0")


ODD = {
    "no message": b"",
    "unknown number": b"\x22\0\0\0\0\0\0\0" + words(1, 2),
    "dispatch is more than a byte": b"\x24\1\0\0\0\0\0\0" + words(1, 2),
    "request with a padded dispatch": b"\x20\0\0\1\x09\0\0\0" + words(1, 2, 3, 4, 5, 6, 7, 8),
    "channel 0": b"\x24\0\0\0\0\0\0\0" + words(0, 2),
    "request for channel 0": b"\x20\0\0\0\x09\0\0\0" + words(0, 2, 3, 4, 5, 6, 7, 8),
    "request with a number too large": b"\x20\0\0\0\x09\0\0\0" + words(1, 2, 3, 2**62, 5, 6, 7, 8),
    "response with a number too large": b"\x21\0\0\0\0\0\0\0" + words(1, 2, 3, 4, 5, 2**63, 7),
    "length where none belongs": b"\x24\0\0\0\1\0\0\0" + words(1, 2),
    "unknown error": b"\x23\0\0\0\0\0\x09\0" + words(1, 2, 3, 4, 5, 6, 7),
    "nack that is padded": b"\x23\0\0\0\0\0\x01\1" + words(1, 2, 3, 4, 5, 6, 7),
    "text that is not UTF-8": b"\x26\0\0\0\x01\0\0\0" + words(1, 2, 3) + b"\xff",
    "text beyond the limit": b"\x26\0\0\0\x01\x04\0\0" + words(1, 2, 3) + bytes(TEXT_BYTES_MAX + 1),
    "a leader that is no name": b"\x25\0\0\0\x02\0\0\0" + words(1, 2, 3) + b"-x",
    "a leader without a name": b"\x25\0\0\0\0\0\0\0" + words(1, 2, 3),
    "an empty proposal": b"\x2a\0\0\0\0\0\0\0",
    "a proposal over the limit": b"\x2a\0\0\0\1\0\x10\0" + bytes(MIB + 1),
    "chains that do not rise": b"\x2b\0\0\0\x02\0\0\0" + words(1, 2, 3, 5, 5),
    "chain 0": b"\x2b\0\0\0\x01\0\0\0" + words(1, 2, 3, 0),
    "more chains than bytes": b"\x2b\0\0\0\xff\xff\0\0" + words(1, 2, 3, 4),
    "more data than bytes": b"\x21\0\0\0\xff\xff\xff\xff" + words(1, 2, 3, 4, 5, 6, 7) + b"block",
}


@pytest.mark.parametrize("case", ODD)
def test_anything_odd_is_refused(case: str) -> None:
    with pytest.raises(BadMessage):
        decoded(ODD[case])


def test_damaged_bodies_are_refused_or_read_as_what_they_say() -> None:
    seed = 20_261
    dice = random.Random(seed)
    good = bodies(ALL)[0]
    for _ in range(3_000):
        damaged = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.choice((0, 1, 0x20, 0x7F, 0xFF, dice.randrange(256)))
        try:
            found = decoded(bytes(damaged))
        except BadMessage:
            continue
        assert b"".join(bodies(found)) == bytes(damaged), f"seed {seed}: CRE1"


def test_the_page_tells_of_every_message_by_its_number() -> None:
    page = (Path(__file__).parents[2] / "docs/protocols/replication.md").read_text(encoding="utf-8")
    for message, golden in GOLDEN:
        name, number = type(message).__name__, f"0x{golden[0]:02X}"
        assert f"### {number} {name}" in page or f"| {number} | {name} |" in page, name
    assert f"SyncRequest, {SYNC_REQUEST_BYTES} bytes" in page
    assert f"SyncResponse, {SYNC_RESPONSE_HEAD_BYTES} bytes" in page
