"""Frames, hellos and refusals: every cut gives the same frames, and nothing hostile gets further than a `BadFrame`."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transports.links import CLUSTER, OTHER_CLUSTER, hello_of
from tidelog.errors import BadFrame, DiskFull, InvalidConfig, LogError, PeerRefused, WrongCluster, WrongVersion
from tidelog.transports.link.events import LinkOptions
from tidelog.transports.link.frames import (
    BUFFER_BYTES,
    CHUNK_BYTES_MAX,
    HEAD,
    SMALL_BYTES_MAX,
    FrameReader,
    FrameType,
    frame,
    pieces_of,
)
from tidelog.transports.link.hello import (
    REFUSAL_BYTES_MAX,
    LinkHello,
    LinkIdentity,
    PeerLimits,
    as_typed,
    decode_hello,
    decode_refusal,
    encode_refusal,
    require_same_cluster,
)


class Bodies:
    """Where DATA goes in these tests: one long buffer per transfer."""

    def __init__(self) -> None:
        self.held: dict[int, bytearray] = {}

    def place(self, transfer: int, length: int) -> memoryview:
        body = self.held.setdefault(transfer, bytearray())
        # Grown by a new object: a view of the old one may still be filled.
        grown = bytearray(len(body) + length)
        grown[: len(body)] = body
        self.held[transfer] = grown
        return memoryview(grown)[len(body) :]


def feed(reader: FrameReader, data: bytes, cuts: Sequence[int]) -> list[tuple[int, int, int, int, bytes]]:
    frames = []
    position = 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        while position < cut:
            room = reader.room()
            assert room
            count = min(len(room), cut - position)
            room[:count] = data[position : position + count]
            position += count
            frames += [(*one[:4], bytes(one[4])) for one in reader.received(count)]
    return frames


small_frames = st.tuples(
    st.sampled_from([kind for kind in FrameType if kind != FrameType.DATA]),
    st.integers(0, 255),
    st.integers(0, 0xFFFF),
    st.integers(0, 2**64 - 1),
    st.one_of(st.binary(max_size=80), st.just(bytes(SMALL_BYTES_MAX))),
)


@given(st.lists(small_frames, max_size=12), st.lists(st.integers(0, 400_000), max_size=40))
def test_small_frames_are_the_same_whatever_the_cuts(
    frames: list[tuple[int, int, int, int, bytes]], cuts: list[int]
) -> None:
    data = b"".join(
        frame(kind, flags=flags, kind=number, number=identity, body=body)
        for kind, flags, number, identity, body in frames
    )
    assert feed(FrameReader(Bodies().place), data, cuts) == frames


@given(
    st.lists(st.integers(1, 3 * BUFFER_BYTES), min_size=1, max_size=4),
    st.lists(st.integers(0, 2**20), max_size=30),
    st.integers(0, 2**32),
)
def test_data_lands_whole_whatever_the_cuts(sizes: list[int], cuts: list[int], seed: int) -> None:
    dice = random.Random(seed)
    bodies = Bodies()
    wanted = [dice.randbytes(size) for size in sizes]
    data = b"".join(
        HEAD.pack(len(body), FrameType.DATA, 0, 0, number) + body + frame(FrameType.PING, number=number)
        for number, body in enumerate(wanted)
    )
    frames = feed(FrameReader(bodies.place), data, cuts)
    assert [bytes(bodies.held[number]) for number in range(len(wanted))] == wanted
    assert [one[:4] for one in frames] == [
        one
        for number, body in enumerate(wanted)
        for one in ((FrameType.DATA, 0, len(body), number), (FrameType.PING, 0, 0, number))
    ]


@given(st.binary(min_size=1, max_size=2_000), st.lists(st.integers(0, 2_000), max_size=10))
def test_random_bytes_are_frames_or_a_bad_frame(data: bytes, cuts: list[int]) -> None:
    reader = FrameReader(Bodies().place)
    with contextlib.suppress(BadFrame):
        feed(reader, data, cuts)
        assert len(reader.room()) > 0, "LF1"


@pytest.mark.parametrize("length", [SMALL_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_a_huge_length_is_refused_before_its_body_is_waited_for(length: int) -> None:
    with pytest.raises(BadFrame):
        feed(FrameReader(Bodies().place), HEAD.pack(length, FrameType.MESSAGE, 0, 1, 0), [])


@pytest.mark.parametrize("length", [0, CHUNK_BYTES_MAX + 1, 2**32 - 1])
def test_data_of_an_impossible_length_is_refused(length: int) -> None:
    with pytest.raises(BadFrame):
        feed(FrameReader(Bodies().place), HEAD.pack(length, FrameType.DATA, 0, 0, 1), [])


@pytest.mark.parametrize("frame_type", [0, max(FrameType) + 1, 255])
def test_a_frame_of_an_unknown_type_is_refused(frame_type: int) -> None:
    with pytest.raises(BadFrame):
        feed(FrameReader(Bodies().place), HEAD.pack(0, frame_type, 0, 0, 0), [])


def test_a_small_body_stays_good_when_the_buffer_is_used_again() -> None:
    reader = FrameReader(Bodies().place)
    kept = []
    for number in range(3_000):
        data = frame(FrameType.MESSAGE, body=number.to_bytes(4, "little") * 16)
        reader.room()[: len(data)] = data
        kept += [one[4] for one in reader.received(len(data))]
    assert [int.from_bytes(body[:4], "little") for body in kept] == list(range(3_000)), "LF2"


def test_pieces_of_a_body_may_be_views_of_anything() -> None:
    numbers = memoryview(bytearray(8)).cast("I")
    pieces, size = pieces_of([b"ab", numbers, b"", memoryview(b"cd")[1:]])
    assert (b"".join(pieces), size) == (b"ab" + bytes(8) + b"d", 11)
    assert pieces_of(bytearray(b"xy"))[1] == 2


# --- hellos ----------------------------------------------------------------------------------------

HELLO = hello_of(LinkOptions())


@given(
    st.sampled_from(["n1", "a" * 63, "A.b-c_9"]),
    st.sampled_from([b"", CLUSTER]),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=20),
)
def test_a_hello_is_read_as_it_was_written(
    node: str, cluster: bytes, incarnation: int, process: int, addition: bytes
) -> None:
    identity = LinkIdentity(node=node, cluster=cluster, incarnation=incarnation)
    hello = LinkHello(kind="operator", identity=identity, process=process, limits=PeerLimits(requests_max=3))
    assert decode_hello(memoryview(hello.encode() + addition)) == hello, "LH1: what comes later is skipped"


@pytest.mark.parametrize("versions", [(2, 9), (0, 0), (3, 2)])
def test_a_hello_of_another_version_is_refused_before_the_rest_is_read(versions: tuple[int, int]) -> None:
    head = b"TIDELINK" + versions[0].to_bytes(2, "little") + versions[1].to_bytes(2, "little")
    with pytest.raises(WrongVersion):
        decode_hello(memoryview(head + b"what version nine has to say"))


def test_every_cut_of_a_hello_is_refused() -> None:
    data = HELLO.encode()
    for size in range(len(data)):
        with pytest.raises(BadFrame):
            decode_hello(memoryview(data[:size]))


@given(st.binary(max_size=120), st.integers(0, 80))
def test_no_damaged_hello_is_more_than_refused(noise: bytes, position: int) -> None:
    data = bytearray(HELLO.encode())
    data[position : position + len(noise)] = noise
    with contextlib.suppress(BadFrame, WrongVersion):
        decode_hello(memoryview(bytes(data)))


def test_clusters_match_unless_both_have_one_and_they_differ() -> None:
    def identity(cluster: bytes) -> LinkIdentity:
        return LinkIdentity(node="n1", cluster=cluster)

    for ours, theirs in [(b"", b""), (CLUSTER, b""), (b"", CLUSTER), (CLUSTER, CLUSTER)]:
        require_same_cluster(identity(ours), identity(theirs))
    with pytest.raises(WrongCluster):
        require_same_cluster(identity(CLUSTER), identity(OTHER_CLUSTER))


def test_an_identity_that_cannot_be_says_everything_that_is_wrong() -> None:
    with pytest.raises(InvalidConfig) as refused:
        LinkIdentity(node="../x", cluster=b"short", incarnation=-1)
    assert len(refused.value.problems) == 3


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        DiskFull(operation="append", path="x", reason="no space"),
        WrongCluster(ours="aa", theirs="bb"),
        BadFrame(problem="\u00e9\n" * 5_000),
    ],
)
def test_a_refusal_keeps_what_a_caller_decides_by(error: LogError) -> None:
    data = encode_refusal(error)
    assert len(data) <= REFUSAL_BYTES_MAX
    seen = decode_refusal(memoryview(data))
    assert isinstance(seen, PeerRefused)
    assert (seen.code, seen.retriable, seen.definite) == (error.code, error.retriable, error.definite)
    assert str(error).startswith(str(seen).rstrip("\ufffd"))


@given(st.binary(max_size=200))
def test_no_bytes_are_more_than_a_refusal(data: bytes) -> None:
    with contextlib.suppress(BadFrame):
        decode_refusal(memoryview(data))


def test_an_untyped_failure_tells_the_peer_its_name_and_nothing_else() -> None:
    told = as_typed(KeyError("a secret"), 9)
    assert "secret" not in str(told)
    assert (told.code, told.definite) == ("handler_failed", False)
