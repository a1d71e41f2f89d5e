"""Bytes of the client protocol: golden ones, round trips, errors that keep their fields, everything odd refused."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_errors import fields_of
from tidelog.cli.errors_page import error_classes
from tidelog.codecs.client_codec import (
    CLIENT_MESSAGES,
    CLIENT_REQUESTS,
    FETCHED_HEAD_BYTES,
    JSON_BYTES_MAX,
    PRODUCE_HEAD_BYTES,
    PRODUCED,
    PRODUCED_HEAD_BYTES,
    WAIT_MS_MAX,
    ChainedFetch,
    channel_json,
    config_json,
    config_of_json,
    decode_answer,
    decode_error,
    decode_fetch,
    decode_fetched,
    decode_json,
    decode_produce,
    decode_produced,
    encode_answer,
    encode_error,
    encode_error_answer,
    encode_fetch,
    encode_fetched,
    encode_json,
    encode_produce,
    encode_produced,
    node_json,
)
from tidelog.codecs.error_codec import FIELDS_BYTES_MAX, WORDS_MAX, error_json, error_of_json
from tidelog.core.catalog import ChannelConfig, ChannelRetention, FsyncPolicy, Placement
from tidelog.core.catalog.channel_config import Keeps
from tidelog.core.catalog.records import ChannelRecord, Member, NodeRecord, NodeState, UncleanCause, UncleanElection
from tidelog.core.client_messages import AckPolicy, Fetch, Fetched, Produce, Produced
from tidelog.errors import (
    BadMessage,
    InvalidConfig,
    LogError,
    NotABlockBoundary,
    NotChannelLeader,
    NotEnoughReplicas,
    PeerRefused,
)

PRODUCE = Produce(token=1, channel_id=2, leader_epoch=3, ack=AckPolicy.ALL, expected_offset=4, block=(b"blo", b"ck"))
FETCH = Fetch(channel_id=1, offset=2, bytes_max=3, wait_ms=4, leader_epoch=5)
MOVED = NotChannelLeader(channel="bus", leader="n2", address="h:1", leader_epoch=7)


def words(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}Q", *numbers)


def body(parts: Sequence[bytes | bytearray | memoryview]) -> memoryview:
    return memoryview(b"".join(parts))


def plain(produce: Produce) -> Produce:
    """With its block in one piece, as a reader gets it."""
    fields = {name: getattr(produce, name) for name in Produce.__slots__}
    return Produce(**{**fields, "block": (b"".join(produce.block),)})


# --- producing ---------------------------------------------------------------------------------------


def test_a_produce_has_the_bytes_it_always_had() -> None:
    golden = b"\x01\x02\0\0\x05\0\0\0" + words(1, 2, 3, 4) + b"block"
    assert bytes(body(encode_produce([PRODUCE]))) == golden
    assert decode_produce(memoryview(golden)) == [plain(PRODUCE)]


def test_a_produce_without_an_expected_offset_says_minus_one() -> None:
    produce = Produce(token=1, channel_id=2, leader_epoch=3, ack=AckPolicy.NONE, block=(b"",))
    golden = b"\x01\0\0\0\0\0\0\0" + words(1, 2, 3, 2**64 - 1)
    assert bytes(body(encode_produce([produce]))) == golden
    assert decode_produce(memoryview(golden)) == [produce]


def test_answers_have_the_bytes_they_always_had() -> None:
    refusal = encode_error(MOVED)
    golden = b"\x01\0\0\0\0\0\0\0" + words(1, 2) + b"\x01\x01\0\0" + len(refusal).to_bytes(4, "little") + words(3, 0)
    encoded = body(encode_produced([Produced(token=1, first_offset=2), Produced(token=3, error=MOVED)]))
    assert bytes(encoded) == golden + refusal
    taken, refused = decode_produced(encoded)
    assert taken == Produced(token=1, first_offset=2)
    assert (refused.token, type(refused.error), vars(refused.error)) == (3, NotChannelLeader, vars(MOVED))


numbers = st.integers(0, 2**62 - 1)
ids = st.integers(1, 2**62 - 1)
tokens = st.integers(0, 2**64 - 1)
produces = st.builds(
    Produce,
    token=tokens,
    channel_id=ids,
    leader_epoch=numbers,
    ack=st.sampled_from(AckPolicy),
    expected_offset=st.integers(-1, 2**62 - 1),
    block=st.lists(st.binary(max_size=200), min_size=1, max_size=3).map(tuple),
)


@given(st.lists(produces, min_size=1, max_size=8))
def test_blocks_arrive_as_they_were_sent(sent: list[Produce]) -> None:
    assert decode_produce(body(encode_produce(sent))) == [plain(one) for one in sent]


@given(st.lists(st.builds(Produced, token=tokens, first_offset=numbers), min_size=1, max_size=50))
def test_offsets_arrive_as_they_were_sent(sent: list[Produced]) -> None:
    assert decode_produced(body(encode_produced(sent))) == sent


def test_blocks_are_not_copied_on_either_side() -> None:
    parts = encode_produce([PRODUCE])
    assert parts[1] is PRODUCE.block[0]
    whole = bytearray(b"".join(parts))
    (produce,) = decode_produce(memoryview(whole))
    whole[-1:] = b"!"
    assert bytes(produce.block[0]) == b"bloc!"


# --- fetching ----------------------------------------------------------------------------------------


def test_a_fetch_has_the_bytes_it_always_had() -> None:
    golden = b"\x01\0\0\0\x03\0\0\0\x04\0\0\0\0\0\0\0" + words(1, 2, 5)
    assert encode_fetch(FETCH) == golden
    assert decode_fetch(memoryview(golden)) == FETCH


def test_a_fetch_of_a_chain_says_whether_it_continues() -> None:
    for continues in (False, True):
        fetch = ChainedFetch(
            channel_id=1, offset=2, bytes_max=3, wait_ms=4, leader_epoch=5, chain=6, continues=continues
        )
        golden = bytes([1, continues]) + b"\0\0\x03\0\0\0\x04\0\0\0\x06\0\0\0" + words(1, 2, 5)
        assert encode_fetch(fetch) == golden
        assert decode_fetch(memoryview(golden)) == fetch
    with pytest.raises(BadMessage):
        decode_fetch(memoryview(b"\x01\x01\0\0\x03\0\0\0\x04\0\0\0\0\0\0\0" + words(1, 2, 5)))


def test_what_was_fetched_has_the_bytes_it_always_had() -> None:
    fetched = Fetched(leader_epoch=1, committed_end=2, log_start=3, data=(b"blo", b"ck"))
    golden = b"\x01\0\0\0\0\0\0\0" + words(1, 2, 3) + b"block"
    assert bytes(body(encode_fetched(fetched))) == golden
    whole = bytearray(golden)
    found = decode_fetched(memoryview(whole))
    assert found == Fetched(leader_epoch=1, committed_end=2, log_start=3, data=(b"block",))
    whole[-1:] = b"!"
    assert bytes(found.data[0]) == b"bloc!"


def test_nothing_new_is_fetched_as_no_data() -> None:
    fetched = Fetched(leader_epoch=1, committed_end=2, log_start=3)
    assert decode_fetched(body(encode_fetched(fetched))) == fetched


def test_a_refused_fetch_raises_what_was_refused() -> None:
    with pytest.raises(NotChannelLeader) as caught:
        decode_fetched(body(encode_fetched(MOVED)))
    assert caught.value.leader == "n2"


ODD_BODIES = {
    "produce: nothing": (decode_produce, b""),
    "produce: another version": (decode_produce, b"\x02\x02\0\0\0\0\0\0" + words(1, 2, 3, 4)),
    "produce: unknown policy": (decode_produce, b"\x01\x03\0\0\0\0\0\0" + words(1, 2, 3, 4)),
    "produce: padding": (decode_produce, b"\x01\x02\1\0\0\0\0\0" + words(1, 2, 3, 4)),
    "produce: channel 0": (decode_produce, b"\x01\x02\0\0\0\0\0\0" + words(1, 0, 3, 4)),
    "produce: epoch too large": (decode_produce, b"\x01\x02\0\0\0\0\0\0" + words(1, 2, 2**62, 4)),
    "produce: offset below -1": (decode_produce, b"\x01\x02\0\0\0\0\0\0" + words(1, 2, 3, 2**64 - 2)),
    "produce: more than there is": (decode_produce, b"\x01\x02\0\0\xff\xff\xff\xff" + words(1, 2, 3, 4)),
    "produced: nothing": (decode_produced, b""),
    "produced: another version": (decode_produced, b"\x02\0\0\0\0\0\0\0" + words(1, 2)),
    "produced: unknown flag": (decode_produced, b"\x01\2\0\0\0\0\0\0" + words(1, 2)),
    "produced: error without bytes": (decode_produced, b"\x01\1\0\0\0\0\0\0" + words(1, 0)),
    "produced: bytes without error": (decode_produced, b"\x01\0\0\0\1\0\0\0" + words(1, 2) + b"x"),
    "produced: an error that is none": (decode_produced, b"\x01\1\0\0\2\0\0\0" + words(1, 0) + b"{}"),
    "produced: an offset and an error": (decode_produced, b"\x01\1\0\0\2\0\0\0" + words(1, 1) + b"{}"),
    "fetch: too long": (decode_fetch, encode_fetch(FETCH) + b"\0"),
    "fetch: another version": (decode_fetch, b"\x02\0\0\0\x03\0\0\0\x04\0\0\0\0\0\0\0" + words(1, 2, 5)),
    "fetch: padding": (decode_fetch, b"\x01\0\1\0\x03\0\0\0\x04\0\0\0\0\0\0\0" + words(1, 2, 5)),
    "fetch: no bytes": (decode_fetch, b"\x01\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0" + words(1, 2, 5)),
    "fetch: channel 0": (decode_fetch, b"\x01\0\0\0\x03\0\0\0\x04\0\0\0\0\0\0\0" + words(0, 2, 5)),
    "fetch: waits for ever": (
        decode_fetch,
        b"\x01\0\0\0\x03\0\0\0" + (WAIT_MS_MAX + 1).to_bytes(4, "little") + bytes(4) + words(1, 2, 5),
    ),
    "fetched: another version": (decode_fetched, b"\x02\0\0\0\0\0\0\0" + words(1, 2, 3)),
    "fetched: padding": (decode_fetched, b"\x01\0\0\0\1\0\0\0" + words(1, 2, 3)),
    "fetched: number too large": (decode_fetched, b"\x01\0\0\0\0\0\0\0" + words(1, 2**62, 3)),
    "json: none": (decode_json, b"\xff"),
    "json: no object": (decode_json, b"[1]"),
    "json: not a number": (decode_json, b'{"a":NaN}'),
    "json: too deep": (decode_json, b'{"a":' + b"[" * 100_000),
    "json: too long": (decode_json, b'{"a":"' + b"x" * JSON_BYTES_MAX + b'"}'),
    "answer: neither": (decode_answer, b'{"good":{}}'),
    "answer: both": (decode_answer, b'{"ok":{},"error":{}}'),
    "answer: an error that is none": (decode_answer, b'{"error":{"code":1}}'),
}


@pytest.mark.parametrize("case", ODD_BODIES)
def test_anything_odd_is_refused(case: str) -> None:
    decode, data = ODD_BODIES[case]
    with pytest.raises(BadMessage):
        decode(memoryview(data))


def test_every_cut_of_a_message_is_refused() -> None:
    produce, produced = bytes(body(encode_produce([PRODUCE]))), bytes(body(encode_produced([Produced(token=1)])))
    fetched = bytes(body(encode_fetched(Fetched(leader_epoch=1, committed_end=2, log_start=3))))
    for decode, whole in ((decode_produce, produce), (decode_produced, produced), (decode_fetched, fetched)):
        for length in range(len(whole)):
            with pytest.raises(BadMessage):
                decode(memoryview(whole[:length]))
    for length in range(len(encode_fetch(FETCH))):
        with pytest.raises(BadMessage):
            decode_fetch(memoryview(encode_fetch(FETCH)[:length]))


# --- errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error_class", error_classes(), ids=lambda error_class: error_class.__name__)
def test_every_error_arrives_with_its_class_and_fields(error_class: type[LogError]) -> None:
    sent = error_class(**fields_of(error_class))
    arrived = decode_error(encode_error(sent))
    assert (arrived.code, arrived.retriable, arrived.definite) == (sent.code, sent.retriable, sent.definite)
    assert str(arrived) == str(sent)[:WORDS_MAX]
    if error_class is NotABlockBoundary:
        assert type(arrived) is PeerRefused, "a range is nothing that JSON can say"
    else:
        assert type(arrived) is error_class
        assert vars(arrived) == vars(sent)


def test_an_error_of_newer_software_keeps_its_code_and_promises() -> None:
    said = {"code": "new_thing", "message": "wait", "retriable": True, "definite": False, "fields": {"at": 1}}
    arrived = error_of_json(said)
    assert type(arrived) is PeerRefused
    assert (arrived.code, str(arrived), arrived.retriable, arrived.definite) == ("new_thing", "wait", True, False)
    assert decode_error(encode_error(arrived)).code == "new_thing"


@pytest.mark.parametrize(
    "change",
    [
        {"fields": {"channel": "bus", "isr": "1", "min_isr": 2}},
        {"fields": {"channel": "bus", "isr": True, "min_isr": 2}},
        {"fields": {"channel": "bus", "isr": 1}},
        {"fields": {"channel": "bus", "isr": 1, "min_isr": 2, "args": []}},
        {"retriable": False},
        {"definite": False},
    ],
)
def test_an_error_whose_fields_or_promises_do_not_fit_its_class_is_a_plain_refusal(change: dict[str, object]) -> None:
    said = error_json(NotEnoughReplicas(channel="bus", isr=1, min_isr=2))
    assert type(error_of_json(said)) is NotEnoughReplicas
    arrived = error_of_json({**said, **change})
    assert type(arrived) is PeerRefused
    assert arrived.code == "not_enough_replicas"


def test_words_and_fields_of_an_error_are_bounded() -> None:
    said = error_json(NotChannelLeader(channel="x" * 2 * FIELDS_BYTES_MAX, leader=None))
    assert len(said["message"]) == WORDS_MAX
    assert said["fields"] == {}


@pytest.mark.parametrize(
    "said", [None, {}, {"code": "x"}, {"code": 1, "message": "", "retriable": True, "definite": True, "fields": {}}]
)
def test_what_is_no_error_is_refused(said: object) -> None:
    with pytest.raises(BadMessage):
        error_of_json(said)


def test_answers_are_what_was_found_or_the_error() -> None:
    assert decode_answer(encode_answer({"offset": 3})) == {"offset": 3}
    with pytest.raises(NotChannelLeader):
        decode_answer(encode_error_answer(MOVED))


# --- what the catalog holds ----------------------------------------------------------------------------


def test_a_config_arrives_as_it_was() -> None:
    config = ChannelConfig(
        factor=5,
        placement=Placement.PINNED,
        pinned_nodes=("n1", "n2"),
        placement_metadata=(("metadata.intent", "hot"),),
        leader_pinned="n1",
        retention=ChannelRetention(max_age_ms=5),
        fsync=FsyncPolicy.NEVER,
        persistent=False,
    )
    assert config_of_json(json.loads(encode_json(config_json(config)))) == config
    assert config_of_json({}) == ChannelConfig()


def test_only_what_is_named_changes_of_retention_too() -> None:
    before = ChannelConfig(factor=2, retention=ChannelRetention(max_age_ms=5, max_bytes=6))
    after = config_of_json({"fsync": "never", "retention": {"max_bytes": None, "max_events": 7}}, before)
    retention = ChannelRetention(max_age_ms=5, max_events=7)
    assert after == ChannelConfig(factor=2, fsync=FsyncPolicy.NEVER, retention=retention)


def test_everything_that_is_wrong_with_a_config_is_said_at_once() -> None:
    with pytest.raises(InvalidConfig) as caught:
        config_of_json({"factor": "three", "speed": 1, "fsync": "often", "retention": {"max_days": 1}})
    problems = " ".join(caught.value.problems)
    assert all(name in problems for name in ("factor", "speed", "fsync", "max_days"))
    odd: object
    for odd in (None, [], {"retention": 5}, {"factor": 1.5}, {"factor": -1}):
        with pytest.raises(InvalidConfig):
            config_of_json(odd)


def test_a_channel_and_a_node_say_all_that_a_client_needs() -> None:
    channel = ChannelRecord(
        channel_id=7,
        name="bus",
        config=ChannelConfig(),
        replicas=("n1", "n2"),
        leader="n1",
        leader_incarnation=1,
        isr=(Member(node="n1", incarnation=1, keeps=Keeps.SYNCED),),
        eligible=(Member(node="n2", incarnation=1, keeps=Keeps.SYNCED),),
        leader_epoch=3,
        channel_epoch=4,
        paused=False,
        readonly=True,
        created_index=1,
        created_at_ms=2,
        changed_index=3,
        unclean=(
            UncleanElection(
                leader_epoch=2, leader="n2", cause=UncleanCause.OPERATOR, operator="anna", at_ms=5, index=6
            ),
        ),
    )
    said = json.loads(encode_json(channel_json(channel, {"role": "leader"})))
    assert said.pop("config") == json.loads(encode_json(config_json(ChannelConfig())))
    assert said == {
        "channel_id": 7,
        "name": "bus",
        "effective_factor": 3,
        "effective_min_isr": 2,
        "replicas": ["n1", "n2"],
        "leader": "n1",
        "isr": ["n1"],
        "eligible": ["n2"],
        "leader_epoch": 3,
        "channel_epoch": 4,
        "paused": False,
        "readonly": True,
        "created_at_ms": 2,
        "unclean": [
            {"leader_epoch": 2, "leader": "n2", "cause": "operator", "operator": "anna", "at_ms": 5, "index": 6}
        ],
        "here": {"role": "leader"},
    }
    node = NodeRecord(node="n1", state=NodeState.ACTIVE, incarnation=2, addresses=(("link", "h:1"),), host="h")
    assert node_json(node) == {
        "node": "n1",
        "state": "active",
        "incarnation": 2,
        "addresses": {"link": "h:1"},
        "host": "h",
        "tags": [],
    }


def test_damaged_bodies_are_refused_or_read_as_what_they_say() -> None:
    seed = 20_262
    dice = random.Random(seed)
    good = bytes(body(encode_produce([PRODUCE, PRODUCE])))
    for _ in range(2_000):
        damaged = bytearray(good)
        damaged[dice.randrange(len(damaged))] = dice.choice((0, 1, 0x7F, 0xFF, dice.randrange(256)))
        try:
            found = decode_produce(memoryview(damaged))
        except BadMessage:
            continue
        assert bytes(body(encode_produce(found))) == bytes(damaged), f"seed {seed}: CCC1"


def test_the_page_tells_of_every_kind_by_its_number() -> None:
    page = (Path(__file__).parents[2] / "docs/protocols/client.md").read_text(encoding="utf-8")
    for kind in (*CLIENT_MESSAGES, *CLIENT_REQUESTS, PRODUCED):
        assert f"0x{kind:04X}" in page, hex(kind)
    for name, size in (
        ("Produce: client to node", PRODUCE_HEAD_BYTES),
        ("Produced: node to client", PRODUCED_HEAD_BYTES),
    ):
        assert f"{name}, {size} bytes" in page
    assert f"fetch, {len(encode_fetch(FETCH))} bytes" in page
    assert f"The answer, {FETCHED_HEAD_BYTES} bytes" in page
