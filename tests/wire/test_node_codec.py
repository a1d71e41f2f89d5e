"""Messages between nodes: what goes in comes out, and nothing odd gets through."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.core.catalog import AdmitNode, RegisterNode, encode_change
from tidelog.core.liveness import RenewSession
from tidelog.core.node_messages import ForMember, Here, NodeMessage, Register, RegisterRefused, Who
from tidelog.core.raft import TimeoutNow
from tidelog.errors import BadMessage
from tidelog.wire.node_codec import LIVENESS, NODE, RAFT, decode_node_messages, encode_node_messages

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
MESSAGES: list[NodeMessage] = [
    Who(),
    Here(cluster=b"", leader=None),
    Here(cluster=b"c" * 16, leader="n1"),
    Register(REGISTER),
    RegisterRefused(reason="no", incarnation=7),
    ForMember("n1/aa", "n2/bb", TimeoutNow(term=9)),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_what_goes_in_comes_out(message: NodeMessage) -> None:
    ((kind, body),) = encode_node_messages([message])
    assert decode_node_messages(kind, memoryview(b"".join(body))) == [message]


def test_liveness_shares_bodies_of_eight_and_the_rest_keeps_its_order() -> None:
    renewals: list[NodeMessage] = [RenewSession(node="n1", incarnation=1, counter=count) for count in range(1, 11)]
    encoded = encode_node_messages([*renewals, *MESSAGES])
    assert [kind for kind, _ in encoded] == [LIVENESS, LIVENESS, NODE, NODE, NODE, NODE, NODE, RAFT]
    decoded = [message for kind, body in encoded for message in decode_node_messages(kind, memoryview(b"".join(body)))]
    assert decoded == [*renewals, *MESSAGES]


def test_known_answers() -> None:
    """A change here is a change of the wire: it needs a new link version."""
    ((kind, body),) = encode_node_messages([Here(cluster=b"\x01" * 16, leader="n1")])
    assert (kind, b"".join(body)) == (3, b'{"say":"here","cluster":"01010101010101010101010101010101","leader":"n1"}')
    ((kind, body),) = encode_node_messages([ForMember("n1/aa", "n2/bb", TimeoutNow(term=9))])
    assert kind == 1
    assert b"".join(body).startswith(b"\x05n1/aa\x05n2/bb")


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
    body = bytearray(b"".join(parts))
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decode_node_messages(kind, memoryview(bytes(body[: data.draw(st.integers(0, len(body)))])))
    except BadMessage:
        pass
