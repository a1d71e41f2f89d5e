"""Messages between nodes: what goes in comes out, and nothing odd gets through."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.node_targets import whole
from tidelog.codecs.node_codec import LIVENESS, NODE, RAFT, decode_node_messages, encode_node_messages
from tidelog.core.catalog import AdmitNode, RegisterNode, encode_change
from tidelog.core.liveness import RenewSession
from tidelog.core.node_messages import ForMember, Here, Judged, NodeMessage, Register, RegisterRefused, Standing, Who
from tidelog.core.raft import TimeoutNow
from tidelog.errors import BadMessage

REGISTER = RegisterNode(
    node="n2",
    incarnation=3,
    known_incarnation=2,
    disk_id="00112233aabbccdd",
    process_id="ffeeddcc00112233",
    clean_incarnation=None,
    verified=True,
    damaged_channels=(),
    addresses=(("link", "host:7000"),),
    host="host",
    tags=("fast",),
    capacity_bytes=1 << 40,
    software="1.0",
    catalog_version=1,
    at_ms=1_700_000_000_000,
)
KNOWN_CHANGE = (
    '{"addresses":[["link","host:7000"]],"at_ms":1700000000000,"capacity_bytes":1099511627776,"catalog_version":1,'
    '"clean_incarnation":null,"damaged_channels":[],"disk_id":"00112233aabbccdd","host":"host","incarnation":3,'
    '"kind":"register_node","known_incarnation":2,"node":"n2","process_id":"ffeeddcc00112233","software":"1.0",'
    '"tags":["fast"],"v":1,"verified":true}'
)
STANDING = Standing(
    member="n1/aa",
    process="9a00000001",
    sequence=7,
    incarnation=3,
    term=5,
    last_index=40,
    held_index=38,
    committed=38,
    asks=True,
)
JUDGED = Judged(member="n1/aa", process="9a00000001", asks=True, problem="it forgot")
MESSAGES: list[NodeMessage] = [
    Who(),
    Here(cluster=b"", leader=None),
    Here(cluster=b"c" * 16, leader="n1"),
    Register(REGISTER),
    RegisterRefused(reason="no", incarnation=7),
    STANDING,
    replace(STANDING, incarnation=None, asks=False),
    JUDGED,
    replace(JUDGED, asks=False, problem=""),
    ForMember("n1/aa", "n2/bb", TimeoutNow(term=9)),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_goes_in_comes_out(message: NodeMessage) -> None:
    ((kind, body),) = encode_node_messages([message])
    assert decode_node_messages(kind, memoryview(whole(body))) == [message]


def test_liveness_shares_bodies_of_eight_and_the_rest_keeps_its_order() -> None:
    renewals: list[NodeMessage] = [RenewSession(node="n1", incarnation=1, counter=count) for count in range(1, 11)]
    encoded = encode_node_messages([*renewals, *MESSAGES])
    assert [kind for kind, _ in encoded] == [LIVENESS, LIVENESS, *[NODE] * 9, RAFT]
    decoded = [message for kind, body in encoded for message in decode_node_messages(kind, memoryview(whole(body)))]
    assert decoded == [*renewals, *MESSAGES]


def test_known_answers() -> None:
    """A change here is a change of the wire: it needs a new link version."""
    ((kind, body),) = encode_node_messages([Here(cluster=b"\x01" * 16, leader="n1")])
    assert (kind, whole(body)) == (3, b'{"say":"here","cluster":"01010101010101010101010101010101","leader":"n1"}')
    ((kind, body),) = encode_node_messages([ForMember("n1/aa", "n2/bb", TimeoutNow(term=9))])
    assert kind == 1
    assert whole(body).startswith(b"\x05n1/aa\x05n2/bb")
    ((kind, body),) = encode_node_messages([STANDING])
    assert (kind, whole(body)) == (
        3,
        b'{"say":"standing","member":"n1/aa","process":"9a00000001","sequence":7,"incarnation":3,"term":5,'
        b'"last_index":40,"held_index":38,"committed":38,"asks":true}',
    )
    for message, known in (
        (Who(), b'{"say":"who"}'),
        (Here(cluster=b"", leader=None), b'{"say":"here","cluster":"","leader":null}'),
        (RegisterRefused(reason="no", incarnation=7), b'{"say":"refused","reason":"no","incarnation":7}'),
        (Register(REGISTER), b'{"say":"register","change":' + json.dumps(KNOWN_CHANGE).encode() + b"}"),
    ):
        ((kind, body),) = encode_node_messages([message])
        assert (kind, whole(body)) == (3, known)
    ((kind, body),) = encode_node_messages([JUDGED])
    assert (kind, whole(body)) == (
        3,
        b'{"say":"judged","member":"n1/aa","process":"9a00000001","asks":true,"problem":"it forgot"}',
    )


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"say": "where"},
        {"say": "who", "more": 1},
        {"say": "here", "cluster": "zz", "leader": None},
        {"say": "here", "cluster": "00", "leader": None},
        {"say": "here", "cluster": "", "leader": "no name"},
        {"say": "refused", "reason": "x", "incarnation": -1},
        {"say": "refused", "reason": "x", "incarnation": 1 << 63},
        {"say": "refused", "reason": "x", "incarnation": True},
        {"say": "register", "change": "{}"},
        {"say": "register", "change": encode_change(AdmitNode(node="n1")).decode()},
    ],
)
def test_odd_messages_are_refused(value: object) -> None:
    with pytest.raises(BadMessage):
        decode_node_messages(NODE, memoryview(json.dumps(value).encode()))


PLAIN_STANDING = {"say": "standing", **asdict(STANDING)}
PLAIN_JUDGED = {"say": "judged", **asdict(JUDGED)}
NUMBERS = ("sequence", "incarnation", "term", "last_index", "held_index", "committed")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, -1, 1 << 64, 1.0, "1", [], {}])
def test_a_number_of_a_standing_is_a_number(name: str, value: object) -> None:
    odd(PLAIN_STANDING | {name: value})


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "incarnation"])
def test_only_the_incarnation_of_a_standing_may_be_unknown(name: str) -> None:
    odd(PLAIN_STANDING | {name: None})


@pytest.mark.parametrize("change", [{"held_index": 41}, {"held_index": 37}, {"committed": 39}, {"last_index": 37}])
def test_a_standing_promises_nothing_that_it_does_not_hold(change: dict[str, int]) -> None:
    """Its sender would be accused of having lost it when it says the same again."""
    odd(PLAIN_STANDING | change)


@pytest.mark.parametrize("plain", [PLAIN_STANDING, PLAIN_JUDGED], ids=["standing", "judged"])
@pytest.mark.parametrize(
    "change",
    [
        {"member": "n1"},
        {"member": "n1/aa/bb"},
        {"member": "n1/" + "a" * 300},
        {"member": "n\u00e91/aa"},
        {"member": "\ud800/aa"},
        {"member": None},
        {"process": 7},
        {"process": None},
        {"asks": 1},
        {"asks": "true"},
        {"asks": None},
        {"more": 1},
    ],
)
def test_odd_standings_and_answers_are_refused(plain: dict[str, object], change: dict[str, object]) -> None:
    """As with all messages of this kind a field that is not known is refused: a later version says it with another
    word, and a node of this one drops that message alone."""
    odd(plain | change)


@pytest.mark.parametrize("plain", [PLAIN_STANDING, PLAIN_JUDGED], ids=["standing", "judged"])
def test_standings_and_answers_say_everything(plain: dict[str, object]) -> None:
    for name in plain:
        odd({key: value for key, value in plain.items() if key != name})
    odd(PLAIN_JUDGED | {"problem": 7})


def odd(value: object) -> None:
    with pytest.raises(BadMessage):
        decode_node_messages(NODE, memoryview(json.dumps(value).encode()))


def test_overlong_text_is_cut_and_not_kept() -> None:
    long = "x" * 100_000
    (standing,) = decode_node_messages(NODE, memoryview(json.dumps(PLAIN_STANDING | {"process": long}).encode()))
    assert isinstance(standing, Standing)
    assert standing.process == "x" * 4_096
    value = PLAIN_JUDGED | {"process": long, "problem": long}
    (judged,) = decode_node_messages(NODE, memoryview(json.dumps(value).encode()))
    assert isinstance(judged, Judged)
    assert (len(judged.process), len(judged.problem)) == (4_096, 4_096)


@pytest.mark.parametrize("body", [b"", b"\x05n1", b"\x05n1/aa", b"\x02n1\x02n2", b"\x05n1/aa\x05n2/bb", b"\x00\x00"])
def test_raft_messages_name_two_members(body: bytes) -> None:
    with pytest.raises(BadMessage):
        decode_node_messages(RAFT, memoryview(body))


@given(kind=st.integers(0, 5), body=st.binary(max_size=200))
def test_no_bytes_raise_anything_else(kind: int, body: bytes) -> None:
    try:
        decode_node_messages(kind, memoryview(body))
    except BadMessage:
        pass


@given(data=st.data())
def test_no_cut_or_flipped_bit_raises_anything_else(data: st.DataObject) -> None:
    message = data.draw(st.sampled_from(MESSAGES))
    ((kind, parts),) = encode_node_messages([message])
    body = bytearray(whole(parts))
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decode_node_messages(kind, memoryview(bytes(body[: data.draw(st.integers(0, len(body)))])))
    except BadMessage:
        pass
