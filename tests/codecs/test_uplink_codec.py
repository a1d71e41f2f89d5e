"""The uplink's messages on the wire: lplex's bytes exactly, ours above field 100, nonsense refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.codecs import uplink_codec as codec
from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.core.uplink.messages import (
    BackfillAck,
    BackfillGone,
    Hello,
    LiveAck,
    LiveData,
    LiveStatus,
    Welcome,
)
from tidelog.errors import BadMessage, LogError

seqs = st.integers(0, 2**63 - 1)
ranges = st.lists(st.tuples(seqs, st.integers(1, 10_000)), max_size=5).map(
    lambda pairs: tuple(range(start, min(start + length, 2**63 - 1)) for start, length in pairs if start < 2**63 - 2)
)
lineages = st.binary(min_size=16, max_size=16)


def test_a_handshake_of_an_lplex_boat_is_lplex_byte_for_byte() -> None:
    hello = Hello(head=50_000, journal_bytes=52_428_800)
    data = codec.encode_hello(hello, instance="boat-001")
    assert data.hex() == "0a08626f61742d30303110d086031880808019"
    assert codec.decode_hello(data) == ("boat-001", hello)


def test_a_live_frame_is_lplex_byte_for_byte() -> None:
    frame = codec.LplexFrame(
        seq=50_001, time_us=1_750_000_000_000_000, can_id=0x09F8010A, payload=bytes.fromhex("aabbccddeeff1122")
    )
    data = codec.encode_live(frame)
    assert data.hex() == "0a1c08d186031080c0ed82daf38d03188a82e04f2208aabbccddeeff1122"
    assert codec.decode_live(data, session=1) == frame


@given(head=seqs, lineage=lineages, lost=ranges, void=ranges, size=st.integers(0, 2**64 - 1))
def test_any_hello_comes_back(
    head: int, lineage: bytes, lost: tuple[range, ...], void: tuple[range, ...], size: int
) -> None:
    hello = Hello(
        head=head,
        lineage=lineage,
        journal_bytes=size,
        boot_id=lineage[:8],
        sent_through=head,
        earlier=((b"a", 1), (b"b", head)),
        lost=lost,
        void=void,
    )
    assert codec.decode_hello(codec.encode_hello(hello, instance="b")) == ("b", hello)


@given(cursor=seqs, holes=ranges, start=seqs, session=st.integers(1, 2**32), fork=st.booleans())
def test_any_welcome_comes_back(cursor: int, holes: tuple[range, ...], start: int, session: int, fork: bool) -> None:
    welcome = Welcome(
        session=session,
        cursor=cursor,
        holes=holes,
        live_start=start,
        known=True,
        rate_frames_per_s=2_000.0,
        burst_frames=500,
        fork=fork,
    )
    assert codec.decode_welcome(codec.encode_welcome(welcome), rate_frames_per_s=1.0, burst_frames=1) == welcome


def test_the_answer_of_an_lplex_cloud_gets_the_seeds_limits_and_is_known_by_its_cursor() -> None:
    data = pb.HandshakeResponse(cursor=100, live_start_from=200).SerializeToString()
    welcome = codec.decode_welcome(data, rate_frames_per_s=2_000, burst_frames=500)
    assert (welcome.known, welcome.rate_frames_per_s, welcome.burst_frames) == (True, 2_000, 500)
    assert not codec.decode_welcome(b"", rate_frames_per_s=2_000, burst_frames=500).known


@given(cursor=seqs, through=seqs, holes=ranges, answered=st.integers(1, 2**40))
def test_any_ack_comes_back(cursor: int, through: int, holes: tuple[range, ...], answered: int) -> None:
    for statuses in (None, 0, 7):
        live = LiveAck(session=3, cursor=cursor, committed_through=through, holes=holes, statuses=statuses)
        assert codec.decode_live_ack(codec.encode_live_ack(live), session=3) == live
    backfill = BackfillAck(session=3, cursor=cursor, answered=answered, remaining=holes)
    assert codec.decode_backfill_ack(codec.encode_backfill_ack(backfill), session=3, answered=0) == backfill


def test_answers_of_an_lplex_cloud_are_counted_by_the_caller() -> None:
    data = pb.BackfillDownstream(continuous_through=150).SerializeToString()
    assert codec.decode_backfill_ack(data, session=1, answered=7).answered == 7


def test_blocks_statuses_and_gone_ranges_come_back() -> None:
    parts = [bytes(64), b"body"]
    live = codec.encode_live(LiveData(session=1, seqs=range(1, 2), block=parts))
    assert codec.decode_live(live, session=1) == codec.RawBlock(data=b"".join(parts))
    status = LiveStatus(session=9, head=77, journal_bytes=1_000)
    assert codec.decode_live(codec.encode_live(status), session=9) == status
    backfill = codec.encode_backfill_blocks([parts, parts])
    assert codec.decode_backfill(backfill, session=1) == [codec.RawBlock(data=b"".join(parts))] * 2
    gone = BackfillGone(session=4, seqs=range(10, 20))
    assert codec.decode_backfill(codec.encode_backfill(gone), session=4) == [gone]


def test_where_blocks_lie_in_the_boat_s_files_goes_along_and_need_not() -> None:
    parts = [bytes(64), b"body"]
    block = b"".join(parts)
    data = codec.encode_backfill_blocks([parts, parts], [0, 300])
    golden = 2 * (b"\xaa\x06\x44" + block) + b"\xba\x06\x03\x00\xac\x02"
    assert data == golden
    at = [codec.RawBlock(data=block, file_offset=0), codec.RawBlock(data=block, file_offset=300)]
    assert codec.decode_backfill(data, session=1) == at
    older = codec.encode_backfill_blocks([parts, parts])
    assert older == golden[: 2 * 71], "as boats sent it that did not know the field"
    assert codec.encode_backfill_blocks([parts, parts], [0, None]) == older, "of one it is not known"
    assert codec.decode_backfill(older, session=1) == [codec.RawBlock(data=block)] * 2


def test_file_offsets_that_do_not_fit_the_blocks_are_refused() -> None:
    for offsets in ([1], [1, 2, 3]):
        data = pb.BackfillUpstream(made_blocks=[bytes(64)] * 2, file_offsets=offsets).SerializeToString()
        with pytest.raises(BadMessage, match="file offsets for 2 blocks"):
            codec.decode_backfill(data, session=1)


def test_a_block_of_an_lplex_boat_comes_through_as_it_is_and_an_empty_message_is_skipped() -> None:
    block = codec.LplexBlock(
        base_seq=101, base_time_us=-5, frame_count=50, data=b"zstd", compressed=True, block_size=4_096
    )
    assert codec.decode_backfill(codec.encode_backfill(block), session=1) == [block]
    assert codec.decode_backfill(b"", session=1) == []


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff",
        pb.HandshakeRequest(head_seq=2**63).SerializeToString(),
        pb.HandshakeRequest(lineage=b"short").SerializeToString(),
        pb.HandshakeRequest(lost=[pb.SeqRange(start=5, end=5)]).SerializeToString(),
        pb.HandshakeRequest(void=[pb.SeqRange(start=9, end=3)]).SerializeToString(),
    ],
)
def test_a_hello_that_makes_no_sense_is_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        codec.decode_hello(data)


def test_too_many_ranges_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "RANGES_MAX", 3)
    data = pb.HandshakeResponse(holes=[pb.SeqRange(start=n, end=n + 1) for n in range(1, 9, 2)]).SerializeToString()
    with pytest.raises(BadMessage, match="4 ranges"):
        codec.decode_welcome(data, rate_frames_per_s=1, burst_frames=1)


def test_live_and_backfill_messages_without_content_are_refused() -> None:
    with pytest.raises(BadMessage):
        codec.decode_live(b"", session=1)
    with pytest.raises(BadMessage):
        codec.decode_live(pb.LiveUpstream(made_block=b"x").SerializeToString(), session=1)


@given(data=st.binary(max_size=200))
def test_random_bytes_are_read_or_refused_with_a_typed_error(data: bytes) -> None:
    for decode in (
        codec.decode_hello,
        lambda raw: codec.decode_welcome(raw, rate_frames_per_s=1, burst_frames=1),
        lambda raw: codec.decode_live(raw, session=1),
        lambda raw: codec.decode_live_ack(raw, session=1),
        lambda raw: codec.decode_backfill(raw, session=1),
        lambda raw: codec.decode_backfill_ack(raw, session=1, answered=0),
    ):
        with suppress(LogError):
            decode(data)
