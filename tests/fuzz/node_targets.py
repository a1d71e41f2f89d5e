"""Fuzz targets of what nodes say to each other: every body of the link, and the link's own frames."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tests.fuzz.target import AS_IT_IS, RESEALED, Target
from tidelog.codecs.node_codec import NODE, decode_node_messages, encode_node_messages
from tidelog.core.catalog import AdmitNode, Batch, Catalog, FenceNode, FoundCluster, decode_change, encode_change
from tidelog.core.liveness import Echo, Hearing, HearingReport, Heartbeat, RenewSession
from tidelog.core.member_memory import MemberMemory
from tidelog.core.node_messages import ForMember, Here, Judged, NodeMessage, RegisterRefused, Standing, Who
from tidelog.core.raft import (
    AppendAnswer,
    AppendEntries,
    Entry,
    EntryKind,
    Members,
    Message,
    SnapshotChunk,
    SnapshotHead,
    TimeoutNow,
    VoteRequest,
)
from tidelog.errors import BadFrame, BadMessage, CatalogCorrupt, CatalogVersion, WrongVersion
from tidelog.transports.link.events import LinkOptions
from tidelog.transports.link.frames import Buffers, FrameType, frame, pieces_of
from tidelog.transports.link.hello import LinkHello, LinkIdentity, PeerLimits
from tidelog.transports.link.mux import LinkMux
from tidelog.units import KIB, MIB

MEMBERS: Final = Members(("n1/aa", "n2/bb"), ("n3/cc",))
STANDING: Final = Standing(
    member="n1/aa",
    process="p1",
    sequence=1,
    incarnation=3,
    term=5,
    last_index=40,
    held_index=38,
    committed=38,
    asks=True,
)
JUDGED: Final = Judged(member="n1/aa", process="p1", asks=True, problem="it forgot")
OPTIONS: Final = LinkOptions(
    taken=PeerLimits(body_bytes_max=MIB, transfers_max=3, initial_credit=32 * KIB, requests_max=4),
    bulk_bytes_max=2 * MIB,
    queue_bytes_max=64 * KIB,
    bulk_queue_bytes_max=4 * MIB,
    calls_max=8,
)


# --- messages of nodes, Raft and liveness: the first byte is the kind ---------------------------------


def whole(body: Buffers) -> bytes:
    pieces, _ = pieces_of(body)
    return b"".join(pieces)


def message_seeds() -> Iterator[bytes]:
    entries = (Entry(8, 2, EntryKind.CHANGE, b"x"), Entry(9, 2, EntryKind.MEMBERS, b"", MEMBERS))
    chunk = SnapshotChunk(
        term=3, round=1, head=SnapshotHead(9, 2, MEMBERS), size_bytes=4, checksum=7, offset=0, data=b"data"
    )
    raft: list[Message] = [
        VoteRequest(term=3, last_index=9, last_term=2, pre=True),
        AppendEntries(term=3, previous_index=7, previous_term=1, entries=entries, commit=8, round=4),
        AppendAnswer(term=3, round=4, accepted=False, index=3, rejected_index=7, hint_term=1),
        chunk,
        TimeoutNow(term=3),
    ]
    report = HearingReport(hearings=(Hearing(node="n3", silence_ms=20, interval_ms=500, rtt_us=90),))
    beat = Heartbeat(
        incarnation=1, counter=2, interval_ms=500, echo=Echo(incarnation=1, counter=1, held_us=5), report=report
    )
    messages: list[NodeMessage] = [
        Who(),
        Here(cluster=b"c" * 16, leader="n1"),
        RegisterRefused(reason="no", incarnation=1),
        STANDING,
        JUDGED,
        beat,
        RenewSession(node="n1", incarnation=1, counter=1),
        *(ForMember("n1/aa", "n2/bb", message) for message in raft),
    ]
    for message in messages:
        for kind, body in encode_node_messages([message]):
            yield bytes([kind]) + whole(body)


def run_messages(data: bytes) -> None:
    kind = data[0] if data else 0
    try:
        messages = decode_node_messages(kind, memoryview(data[1:]))
    except BadMessage:
        return
    again = [part for kind, body in encode_node_messages(messages) for part in (kind, whole(body))]
    assert decode_node_messages(again[0], memoryview(again[1])) == list(messages)  # type: ignore[arg-type]


# --- what members say of their disks: each line a message ------------------------------------------------


def standing_seeds() -> Iterator[bytes]:
    later = replace(STANDING, sequence=2, term=6, incarnation=None, asks=False)
    seeds: tuple[list[NodeMessage], ...] = (
        [STANDING],
        [STANDING, later],
        [later, STANDING],
        [replace(STANDING, process="p2"), JUDGED],
    )
    for messages in seeds:
        yield b"\n".join(whole(body) for _, body in encode_node_messages(messages))


def run_standing(data: bytes) -> None:
    """Whatever peers say, memory stays bounded (MR2), and who repeats what it said is not accused (MR1)."""
    memory = MemberMemory()
    for line in data.split(b"\n"):
        try:
            (message,) = decode_node_messages(NODE, memoryview(line))
        except BadMessage:
            continue
        if isinstance(message, Standing) and memory.judge(message, match_index=3, registered=(2, "p")) == "":
            again = replace(message, sequence=message.sequence + 1, asks=False)
            assert memory.judge(again, match_index=3, registered=(2, "p")) == "", "MR1"
    assert all(len(processes) <= 8 for processes in memory._sequences.values()), "MR2"
    assert len(memory._sequences) <= 256, "MR2"


# --- the catalog ---------------------------------------------------------------------------------------


def catalog_of_some() -> Catalog:
    catalog = Catalog()
    catalog.apply(2, Batch(changes=(FoundCluster(cluster_id="00" * 16), AdmitNode(node="n1"))))
    return catalog


def catalog_seeds() -> Iterator[bytes]:
    for change in (AdmitNode(node="n1"), FenceNode(node="n1", expected_incarnation=3)):
        yield AS_IT_IS + encode_change(change)
    yield RESEALED + catalog_of_some().snapshot()


_CHECKED_FROM: Final = 20
_BODY_FROM: Final = _CHECKED_FROM + 32


def resealed(snapshot: bytes) -> bytes:
    """With a length and a checksum that fit."""
    body = snapshot[_BODY_FROM:]
    head = snapshot[:12].ljust(12, b"\0") + len(body).to_bytes(8, "little")
    return head + hashlib.sha256(head + body).digest() + body


def run_catalog(data: bytes) -> None:
    try:
        if data[:1] == RESEALED:
            catalog = Catalog.restore(resealed(data[1:]))
            assert Catalog.restore(catalog.snapshot()).digest() == catalog.digest(), "C14"
        else:
            change = decode_change(data[1:])
            assert decode_change(encode_change(change)) == change
            catalog_of_some().apply(3, change)
    except (CatalogCorrupt, CatalogVersion):
        return


# --- the link ------------------------------------------------------------------------------------------


def hello_frame() -> bytes:
    hello = LinkHello(kind="node", identity=LinkIdentity(node="n2", cluster=b"c" * 16), process=7, limits=OPTIONS.taken)
    return frame(FrameType.HELLO, body=hello.encode())


def link_seeds() -> Iterator[bytes]:
    said = [
        frame(FrameType.MESSAGE, kind=1, body=b"note"),
        frame(FrameType.REQUEST, kind=2, number=1, body=b"question"),
        frame(FrameType.PING, body=bytes(8)),
        frame(FrameType.CANCEL, number=1),
        frame(FrameType.CREDIT, number=2, body=bytes(8)),
        frame(FrameType.DRAIN),
        frame(FrameType.DONE),
    ]
    yield AS_IT_IS + hello_frame()
    yield RESEALED + b"".join(said)
    for one in said:
        yield RESEALED + one


def run_link(data: bytes) -> None:
    """As the listening end. With the mark, the peer was polite until the link was open."""
    mux = LinkMux(options=OPTIONS, is_dialler=False, now_us=0)
    try:
        if data[:1] == RESEALED:
            listen(mux, hello_frame())
            mux.accept(OPTIONS.taken)
            listen(mux, frame(FrameType.READY))
        listen(mux, data[1:])
    except (BadFrame, WrongVersion):
        return


def listen(mux: LinkMux, said: bytes) -> None:
    position = 0
    while position < len(said) and mux.wants_input:
        room = mux.room()
        count = min(len(room), len(said) - position)
        room[:count] = said[position : position + count]
        position += count
        mux.received(count, position)
        while mux.has_output and list(mux.next_write(position)):
            mux.wrote(position)
        assert mux.held_bytes <= 2 * OPTIONS.bulk_bytes_max, "bodies are bounded"


NODE_TARGETS: Final = {
    "messages": Target(run=run_messages, seeds=message_seeds),
    "standing": Target(run=run_standing, seeds=standing_seeds),
    "catalog": Target(run=run_catalog, seeds=catalog_seeds),
    "link": Target(run=run_link, seeds=link_seeds),
}
