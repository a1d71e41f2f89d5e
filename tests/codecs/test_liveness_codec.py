"""The bytes of liveness: known answers, round trips, and typed refusal of everything else (LC1, LC2)."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.codecs.liveness_codec import BUNDLE_BYTES_MAX, decode_liveness, encode_liveness
from tidelog.core.liveness import (
    CLAIMS_BYTES_MAX,
    Echo,
    Hearing,
    HearingReport,
    Heartbeat,
    LivenessConfig,
    Message,
    PairHeartbeats,
    RenewSession,
    SessionRefused,
    SessionRenewed,
)
from tidelog.errors import BadMessage

FULL = Heartbeat(
    incarnation=3,
    counter=258,
    interval_ms=500,
    echo=Echo(incarnation=2, counter=7, held_us=1_000),
    claims=b"\xaa\xbb",
    report=HearingReport(
        hearings=(
            Hearing(node="n2", silence_ms=20, interval_ms=100, rtt_us=300, peak_bytes_per_s=125_000_000),
            Hearing(node="n3", silence_ms=655_350, interval_ms=500),
        )
    ),
)
BARE = Heartbeat(incarnation=1, counter=1, interval_ms=500)

KNOWN: list[tuple[Message, str]] = [
    (
        FULL,
        # incarnation, counter, interval, flags
        "0300000000000000 0201000000000000 f4010000 01"
        # echo: incarnation, counter, held
        "0200000000000000 0700000000000000 e8030000"
        # claims, number of hearings
        "02000000 aabb 02"
        # n2: silence in steps, interval, round trip, peak
        "02 6e32 0200 6400 2c010000 4059730700000000"
        "02 6e33 ffff f401 00000000 0000000000000000",
    ),
    (BARE, "0100000000000000 0100000000000000 f4010000 00 00000000 00"),
    (RenewSession(node="n1", incarnation=4, counter=9), "02 6e31 0400000000000000 0900000000000000"),
    (
        SessionRenewed(node="n1", incarnation=4, counter=9, timeout_ms=1_500, confirmed_ago_ms=40),
        "02 6e31 0400000000000000 0900000000000000 dc050000 28000000",
    ),
    (SessionRefused(node="n1", incarnation=4), "02 6e31 0400000000000000"),
]
KINDS = (1, 1, 2, 3, 4)


def bundled(*bodies: tuple[int, bytes], version: int = 1, count: int | None = None) -> bytes:
    parts = [bytes((version, len(bodies) if count is None else count))]
    parts += [bytes((kind,)) + struct.pack("<I", len(body)) + body for kind, body in bodies]
    return b"".join(parts)


@pytest.mark.parametrize("number", range(len(KNOWN)))
def test_version_1_bytes_stay_what_they_are(number: int) -> None:
    """Known answers: a change here needs a new version, or nodes of one cluster would stop hearing each other."""
    message, body = KNOWN[number]
    data = bundled((KINDS[number], bytes.fromhex(body)))
    assert encode_liveness([message]).hex() == data.hex()
    assert decode_liveness(data) == [message]


def test_all_that_a_node_has_for_a_peer_goes_in_one_bundle() -> None:
    messages = [message for message, _ in KNOWN]
    data = encode_liveness(messages)
    assert decode_liveness(data) == decode_liveness(memoryview(data)) == decode_liveness(bytearray(data)) == messages


def test_an_idle_pair_of_three_nodes_costs_less_than_150_bytes_an_interval() -> None:
    heartbeats = PairHeartbeats(node="n1", incarnation=1, config=LivenessConfig(), now_ms=0)
    heartbeats.set_peers(["n2", "n3"], 0)
    heartbeats.peer_up("n2", 0)
    ((_, heartbeat),) = heartbeats.wake(0)
    renewal = RenewSession(node="n1", incarnation=1, counter=1)
    assert len(encode_liveness([heartbeat, renewal])) < 150


def test_the_largest_heartbeat_fits() -> None:
    hearings = tuple(Hearing(node=f"{number:063}", silence_ms=0, interval_ms=500) for number in range(63))
    report = HearingReport(hearings=hearings)
    largest = Heartbeat(
        incarnation=1, counter=1, interval_ms=500, echo=FULL.echo, claims=bytes(CLAIMS_BYTES_MAX), report=report
    )
    data = encode_liveness([largest, KNOWN[2][0], KNOWN[3][0]])
    assert len(data) <= BUNDLE_BYTES_MAX
    assert decode_liveness(data)[0] == largest


U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
INTERVALS = st.integers(100, 60_000)
HEARINGS = st.builds(
    Hearing,
    node=NAMES,
    silence_ms=st.integers(0, 65_535).map(lambda steps: steps * 10),
    interval_ms=INTERVALS,
    rtt_us=U32,
    peak_bytes_per_s=U64,
)
REPORTS = st.lists(HEARINGS, max_size=5, unique_by=lambda hearing: hearing.node).map(
    lambda hearings: HearingReport(hearings=tuple(sorted(hearings, key=lambda hearing: hearing.node)))
)
HEARTBEATS = st.builds(
    Heartbeat,
    incarnation=U64,
    counter=st.integers(1, 2**64 - 1),
    interval_ms=INTERVALS,
    echo=st.none() | st.builds(Echo, incarnation=U64, counter=U64, held_us=U32),
    claims=st.binary(max_size=50),
    report=REPORTS,
)
MESSAGES = st.one_of(
    HEARTBEATS,
    st.builds(RenewSession, node=NAMES, incarnation=U64, counter=U64),
    st.builds(SessionRenewed, node=NAMES, incarnation=U64, counter=U64, timeout_ms=U32, confirmed_ago_ms=U32),
    st.builds(SessionRefused, node=NAMES, incarnation=U64),
)


@given(messages=st.lists(MESSAGES, min_size=1, max_size=8))
def test_what_is_encoded_decodes_to_the_same(messages: list[Message]) -> None:
    """LC1"""
    assert decode_liveness(encode_liveness(messages)) == messages


HEAD = "0100000000000000 0100000000000000 f4010000"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "ends too early"),
        (b"\x01", "ends too early"),
        (bundled((4, bytes.fromhex(KNOWN[4][1])), version=2), "version 2"),
        (bundled(), "0 messages"),
        (bundled((4, bytes.fromhex(KNOWN[4][1])), count=9), "9 messages"),
        (bundled((4, bytes.fromhex(KNOWN[4][1])), count=2), "ends too early"),
        (bundled((4, bytes.fromhex(KNOWN[4][1]))) + b"\0", "after its end"),
        (bundled((9, b"")), "unknown kind 9"),
        (bundled((4, bytes.fromhex(KNOWN[4][1]) + b"\0")), "after its end"),
        (bundled((4, b"\x00" + bytes(8))), "not a name"),
        (bundled((4, b"\x02n\xff" + bytes(8))), "not a name"),
        (bundled((4, b"\x02n/" + bytes(8))), "not a name"),
        (bundled((4, b"\x40" + b"n" * 64 + bytes(8))), "not a name"),
        (bundled((4, b"\xff" + b"n" * 10)), "ends too early"),
        (bytes((1, 1, 4)) + struct.pack("<I", 2**32 - 1), "ends too early"),
        (bundled((1, bytes.fromhex(HEAD + "02 00000000 00"))), "unknown flags"),
        (bundled((1, bytes.fromhex(HEAD + "01 00000000 00"))), "ends too early"),
        (bundled((1, bytes.fromhex(HEAD + "00 01000100 00"))), "65537 bytes of claims"),
        (bundled((1, bytes.fromhex(HEAD + "00 05000000 00"))), "ends too early"),
        (bundled((1, bytes.fromhex(HEAD + "00 00000000 41"))), "reports on 65 nodes"),
        (bundled((1, bytes.fromhex(KNOWN[0][1].replace("6e33", "6e32")))), "names must rise"),
        (bundled((1, bytes.fromhex(KNOWN[0][1].replace("0200 6400", "0200 6300")))), "interval of 99 ms"),
        (bundled((1, bytes.fromhex(KNOWN[1][1].replace("f4010000", "61ea0000")))), "interval of 60001 ms"),
        (bundled((1, bytes.fromhex("0100000000000000 0000000000000000 f4010000 00 00000000 00"))), "numbered 0"),
        (bytes(BUNDLE_BYTES_MAX + 1), "at most"),
    ],
)
def test_what_is_wrong_is_refused_in_words(data: bytes, problem: str) -> None:
    with pytest.raises(BadMessage, match=problem):
        decode_liveness(data)


def test_every_cut_is_refused() -> None:
    data = encode_liveness([message for message, _ in KNOWN])
    for length in range(len(data)):
        with pytest.raises(BadMessage):
            decode_liveness(data[:length])


@given(seed=st.integers(0, 2**32))
def test_damaged_bytes_raise_nothing_but_bad_message(seed: int) -> None:
    """LC2; and what is still accepted is a message that encodes again."""
    rng = random.Random(seed)
    data = bytearray(encode_liveness([message for message, _ in KNOWN]))
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    try:
        messages = decode_liveness(data)
    except BadMessage:
        return
    assert encode_liveness(messages) == bytes(data), f"seed {seed}"


def test_a_lie_about_lengths_costs_no_memory() -> None:
    """LC2"""
    lie = bytes((1, 8, 1)) + struct.pack("<I", 2**32 - 1) + bytes(1_000)
    tracemalloc.start()
    try:
        for _ in range(100):
            with pytest.raises(BadMessage):
                decode_liveness(lie)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
