"""Bytes of the catalog that are not what they should be: typed errors only, bounded, and never a guess (K1, K2)."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.catalog_kit import three
from tests.core.test_catalog_golden import CHANGES, SNAPSHOT_BODY, SNAPSHOT_HEADER
from tidelog.core.catalog import (
    AddGrant,
    AdmitNode,
    Batch,
    Catalog,
    ChannelConfig,
    CreateChannel,
    FenceNode,
    decode_change,
    encode_change,
    kind_of,
)
from tidelog.core.catalog.changes import CHANGE_BYTES_MAX, KINDS
from tidelog.errors import CatalogCorrupt, CatalogVersion, InvalidChange, LogError

SNAPSHOT = SNAPSHOT_HEADER + SNAPSHOT_BODY

# --- any change -------------------------------------------------------------------------------------------


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Anything that a field of this type can hold, sensible or not."""
    if hint is int:
        return st.integers(0, 5) | st.integers(0, 2**64 - 1)
    if hint is str:
        return st.sampled_from(["", "n1", "n2", "spray", "*", "operator:anna"]) | st.text(max_size=20)
    if hint is bool:
        return st.booleans()
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    if isinstance(hint, type) and is_dataclass(hint):
        return records_of(hint)
    arguments = get_args(hint)
    if get_origin(hint) is not tuple:
        return st.none() | values_of(next(argument for argument in arguments if argument is not type(None)))
    if arguments[1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    return st.tuples(*map(values_of, arguments))


def records_of(record_type: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(record_type)
    return st.builds(record_type, **{item.name: values_of(hints[item.name]) for item in fields(record_type)})


SINGLES = st.one_of([records_of(kind) for kind in KINDS.values() if kind is not Batch])
ANY_CHANGE = SINGLES | st.lists(SINGLES, max_size=4).map(lambda changes: Batch(changes=tuple(changes)))


@given(change=ANY_CHANGE)
def test_k1_every_change_comes_back_from_its_bytes(change: Any) -> None:
    data = encode_change(change)
    assert decode_change(data) == change
    assert encode_change(decode_change(data)) == data
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()


@given(changes=st.lists(ANY_CHANGE, max_size=8))
def test_no_change_however_odd_makes_apply_raise_or_two_nodes_differ(changes: list[Any]) -> None:
    (one, _), (other, _) = three(), three()
    for index, change in enumerate(changes, start=100):
        said = one.catalog.check(change)
        first, second = one.catalog.apply(index, change), other.catalog.apply(index, change)
        assert (first.refusal is None) == (second.refusal is None) == (said is None)
        assert str(first.refusal) == str(second.refusal)
        assert one.catalog.contradictions() == []
    assert one.catalog.digest() == other.catalog.digest()
    assert Catalog.restore(one.catalog.snapshot()).digest() == one.catalog.digest()


def test_an_encoder_refuses_what_a_decoder_would() -> None:
    for wrong in (
        FenceNode(node="n1", expected_incarnation=-1),
        FenceNode(node="n1", expected_incarnation=2**64),
        FenceNode(node="n1", expected_incarnation=True),
        FenceNode(node="n1", expected_incarnation=1.0),  # type: ignore[arg-type]
        FenceNode(node=b"n1", expected_incarnation=1),  # type: ignore[arg-type]
        FenceNode(node="n" * 1025, expected_incarnation=1),
        Batch(changes=[AdmitNode(node="n1")]),  # type: ignore[arg-type]
        Batch(changes=(Batch(changes=()),)),  # type: ignore[arg-type]
        Batch(changes=(AdmitNode(node="n1"),) * 4097),
        CreateChannel(name="a", config=None, replicas=(), leader="", at_ms=0),  # type: ignore[arg-type]
        AdmitNode(node=None),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidChange):
            encode_change(wrong)


def test_c12_a_change_that_is_too_large_is_said_to_be() -> None:
    channels = tuple(
        CreateChannel(name=f"c{number}", config=ChannelConfig(), replicas=("n1",), leader="n1", at_ms=0)
        for number in range(4_000)
    )
    with pytest.raises(InvalidChange, match="split it"):
        encode_change(Batch(changes=channels))
    with pytest.raises(CatalogCorrupt, match="over the limit"):
        decode_change(b" " * (CHANGE_BYTES_MAX + 1))


# --- changes that are not -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", CatalogCorrupt),
        (b"null", CatalogCorrupt),
        (b"[]", CatalogCorrupt),
        (b"{}", CatalogCorrupt),
        (b"\xff", CatalogCorrupt),
        (b"{" * 1000, CatalogCorrupt),
        (b"[" * 200_000, CatalogCorrupt),
        (b'{"v":' + b"9" * 5_000 + b"}", CatalogCorrupt),
        (b'{"v":"1","kind":"admit_node","node":"n1"}', CatalogCorrupt),
        (b'{"v":true,"kind":"admit_node","node":"n1"}', CatalogCorrupt),
        (b'{"v":1.0,"kind":"admit_node","node":"n1"}', CatalogCorrupt),
        (b'{"v":NaN}', CatalogCorrupt),
        (b'{"v":2,"kind":"admit_node","node":"n1"}', CatalogVersion),
        (b'{"v":0,"kind":"admit_node","node":"n1"}', CatalogVersion),
        (b'{"v":1}', CatalogCorrupt),
        (b'{"v":1,"kind":7}', CatalogCorrupt),
        (b'{"v":1,"kind":"paint_node","node":"n1"}', CatalogVersion),
        (b'{"v":1,"kind":"admit_node"}', CatalogCorrupt),
        (b'{"v":1,"kind":"admit_node","node":"n1","colour":"red"}', CatalogVersion),
        (b'{"v":1,"kind":"admit_node","node":7}', CatalogCorrupt),
        (b'{"v":1,"kind":"admit_node","node":null}', CatalogCorrupt),
        (b'{"v":1,"kind":"fence_node","node":"n1","expected_incarnation":-1}', CatalogCorrupt),
        (b'{"v":1,"kind":"fence_node","node":"n1","expected_incarnation":18446744073709551616}', CatalogCorrupt),
        (b'{"v":1,"kind":"remove_node","node":"n1","force":1}', CatalogCorrupt),
        (b'{"v":1,"kind":"batch","changes":{}}', CatalogCorrupt),
        (b'{"v":1,"kind":"batch","changes":[{"kind":"batch","changes":[]}]}', CatalogVersion),
        (b'{"v":1,"kind":"batch","changes":[{"node":"n1"}]}', CatalogCorrupt),
        (
            b'{"v":1,"kind":"shrink_isr","channel_id":1,"expected_channel_epoch":1,"members":["a"],"reason":"bored"}',
            CatalogVersion,
        ),
        (
            b'{"v":1,"kind":"shrink_isr","channel_id":1,"expected_channel_epoch":1,"members":"a","reason":"fenced"}',
            CatalogCorrupt,
        ),
    ],
)
def test_k2_bytes_that_are_no_change_are_refused_by_kind(data: bytes, error: type[LogError]) -> None:
    with pytest.raises(error) as caught:
        decode_change(data)
    assert len(str(caught.value)) < 300


@settings(max_examples=300)
@given(line=st.sampled_from(CHANGES), data=st.data())
def test_k2_a_damaged_change_is_read_whole_or_refused(line: bytes, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(line) - 1))
    damaged = line[:position] + data.draw(st.binary(max_size=4)) + line[data.draw(st.integers(position, len(line))) :]
    try:
        change = decode_change(damaged)
    except (CatalogCorrupt, CatalogVersion):
        return
    assert decode_change(encode_change(change)) == change


@given(data=st.binary(max_size=200))
def test_k2_random_bytes_are_no_change_and_no_snapshot(data: bytes) -> None:
    with pytest.raises((CatalogCorrupt, CatalogVersion)):
        decode_change(data)
    with pytest.raises((CatalogCorrupt, CatalogVersion)):
        Catalog.restore(data)


def test_every_kind_of_change_has_a_name_of_its_own() -> None:
    assert len(KINDS) == 32
    assert kind_of(AddGrant(principal="", scope="", channels="")) == "add_grant"
    assert KINDS["add_grant"] is AddGrant


# --- snapshots ----------------------------------------------------------------------------------------------


def sealed(plain: Any, version: int = 1) -> bytes:
    """A snapshot with a good checksum, whatever is in it."""
    body = json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
    header = struct.pack("<8sIQ", b"tidecat\n", version, len(body))
    return header + hashlib.sha256(header + body).digest() + body


@given(position=st.integers(0, len(SNAPSHOT) - 1), bit=st.integers(0, 7))
def test_every_flipped_bit_of_a_snapshot_is_noticed(position: int, bit: int) -> None:
    damaged = bytearray(SNAPSHOT)
    damaged[position] ^= 1 << bit
    with pytest.raises(CatalogCorrupt):
        Catalog.restore(bytes(damaged))


@pytest.mark.parametrize("end", [0, 1, 51, 52, 53, len(SNAPSHOT) - 1])
def test_a_snapshot_that_is_cut_off_is_noticed(end: int) -> None:
    with pytest.raises(CatalogCorrupt):
        Catalog.restore(SNAPSHOT[:end])
    with pytest.raises(CatalogCorrupt):
        Catalog.restore(SNAPSHOT + b"\0")


def test_a_snapshot_of_newer_software_is_told_from_a_damaged_one() -> None:
    plain = json.loads(SNAPSHOT_BODY)
    assert sealed(plain) == SNAPSHOT
    with pytest.raises(CatalogVersion):
        Catalog.restore(sealed(plain, version=2))
    with pytest.raises(CatalogVersion):
        Catalog.restore(sealed({**plain, "moons": []}))
    plain["channels"][0]["colour"] = "red"
    with pytest.raises(CatalogVersion):
        Catalog.restore(sealed(plain))


def contradict(**changes: Any) -> Any:
    """The golden state with fields of its first channel replaced."""
    plain = json.loads(SNAPSHOT_BODY)
    plain["channels"][0].update(changes)
    return plain


def with_rows(name: str, change: Any) -> Any:
    plain = json.loads(SNAPSHOT_BODY)
    plain[name] = change(plain[name])
    return plain


MEMBER = {"node": "n1", "incarnation": 1, "keeps": "synced"}


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        {},
        contradict(isr=[]),
        contradict(leader="n2"),
        contradict(replicas=["n2", "n3"]),
        contradict(replicas=["n1", "n1", "n2", "n3"]),
        contradict(isr=[MEMBER, MEMBER]),
        contradict(isr=[MEMBER], eligible=[MEMBER]),
        contradict(isr=[{**MEMBER, "incarnation": 9}]),
        contradict(channel_id=4),
        contradict(channel_id=2),
        contradict(channel_id=3),
        contradict(name="Scratch"),
        contradict(channel_epoch=1),
        contradict(leader_epoch=0),
        contradict(paused=0),
        with_rows("channels", lambda rows: rows[::-1]),
        with_rows("nodes", lambda rows: rows[:2]),
        with_rows("nodes", lambda rows: [{**rows[0], "memory_since": 9}, *rows[1:]]),
        with_rows("nodes", lambda rows: [{**rows[0], "memory_since": 0, "written_since": 1}, *rows[1:]]),
        with_rows("producers", lambda rows: [{**rows[0], "channel_id": 9}]),
        with_rows("producers", lambda rows: [*rows, {**rows[0], "producer_id": 2}]),
        with_rows("tokens", lambda rows: [*rows, {**rows[0], "token": "cj"}]),
        with_rows("tombstones", lambda rows: [{**rows[0], "channel_id": 1}]),
        with_rows("tombstones", lambda rows: [{**rows[0], "channel_id": number} for number in range(1, 1030)]),
        with_rows("grants", lambda rows: {}),
        with_rows("applied_index", lambda number: -1),
        with_rows("applied_index", lambda number: "1"),
        with_rows("next_channel_id", lambda number: 2),
        with_rows("next_producer_id", lambda number: 1),
        with_rows("cluster_id", lambda text: None),
    ],
)
def test_a_snapshot_that_contradicts_itself_is_refused_whatever_its_checksum(plain: Any) -> None:
    with pytest.raises(CatalogCorrupt):
        Catalog.restore(sealed(plain))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2**65) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300)
@given(data=st.data())
def test_k2_a_sealed_snapshot_with_anything_in_it_is_read_whole_or_refused(data: st.DataObject) -> None:
    plain = json.loads(SNAPSHOT_BODY)
    place: Any = plain
    while isinstance(place, dict | list) and place:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(JUNK)
            break
        place = place[key]
    try:
        catalog = Catalog.restore(sealed(plain))
    except (CatalogCorrupt, CatalogVersion):
        return
    assert catalog.contradictions() == []
    assert Catalog.restore(catalog.snapshot()).digest() == catalog.digest()


def test_a_snapshot_of_now_is_of_now_whenever_it_is_made() -> None:
    cluster, channel_id = three()
    now, make = cluster.catalog.snapshot(), cluster.catalog.snapshot_of_now()
    cluster.take(cluster.shrink(channel_id, "n3"))
    cluster.fence("n3")
    assert make() == now != cluster.catalog.snapshot()


def test_c14_the_order_in_which_things_came_is_not_in_the_bytes() -> None:
    grants = [AddGrant(principal=f"boat:b{number}", scope="write:data", channels="*") for number in range(5)]
    one, other = Catalog(), Catalog()
    for index, grant in enumerate(grants, start=1):
        one.apply(index, grant)
    for index, grant in enumerate(reversed(grants), start=1):
        other.apply(index, grant)
    assert one.snapshot() == other.snapshot()
