"""Fuzz targets of the gateways: what comes over NATS, Liftbridge's envelopes, HTTP/2 and its headers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from fastcrc.crc32 import iscsi as crc32c

from tests.fuzz.target import AS_IT_IS, RESEALED, Target
from tidelog.codecs.liftbridge_envelope import (
    CHECKED_HEAD_BYTES,
    HEAD_BYTES,
    MessageType,
    PlainMessage,
    decode_envelope,
    encode_envelope,
    try_message,
)
from tidelog.codecs.nats_replication_codec import (
    NatsSender,
    decode_notify,
    decode_request,
    encode_diverged,
    encode_notify,
    encode_offset_request,
    encode_request,
)
from tidelog.codecs.nats_response_parts import (
    PAYLOAD_BYTES_MIN,
    ReceivedPart,
    ResponseJoiner,
    decode_answer,
    encode_nack,
    encode_response,
)
from tidelog.codecs.nats_subjects import (
    Verb,
    check_attached_subject,
    parse_partition_subject,
    parse_reply_subject,
    partition_subject,
    reply_subject,
)
from tidelog.core.replication.messages import Notify, SyncError, SyncNack, SyncRequest, SyncResponse
from tidelog.errors import BadEnvelope, BadMessage, BadSubject, WrongCluster
from tidelog.transports.grpc.hpack import HeaderDecoder, encode_headers
from tidelog.transports.grpc.http2_connection import (
    ConnectionFailed,
    Http2Connection,
    Http2Options,
    Received,
    StreamOpened,
)
from tidelog.transports.grpc.http2_frames import (
    END_HEADERS,
    END_STREAM,
    PADDED,
    PREFACE,
    Code,
    Http2FrameKind,
    Http2Setting,
    frame,
    reset_frame,
    settings_frame,
    window_frame,
)
from tidelog.units import KIB

CLUSTER: Final = bytes(range(16))
SENDER: Final = NatsSender(node="n1", cluster=CLUSTER)
NAMESPACE: Final = "ns"
INBOX: Final = "_INBOX.word"
JOINER_BYTES: Final = 64 * KIB
NATS_ERRORS: Final = (BadEnvelope, BadMessage, WrongCluster)


# --- envelopes -------------------------------------------------------------------------------------


def message_seeds() -> Iterator[bytes]:
    for checksum in (False, True):
        for mode in (AS_IT_IS, RESEALED):
            yield mode + encode_envelope(MessageType.PUBLISH, b"\x1a\x05value", checksum=checksum)
    yield AS_IT_IS + encode_request(_request(), sender=SENDER)
    yield AS_IT_IS + encode_offset_request(_request(), sender=SENDER)
    for channel in ("bus", "bus/3"):
        yield AS_IT_IS + encode_notify(Notify(channel_id=1, leader_epoch=2), channel=channel, sender=SENDER)


def run_message(data: bytes) -> None:
    """One message on any subject of ours: on a stream's, on a leader's, on a node's own."""
    payload = bytearray(data[1:])
    if data[:1] == RESEALED and len(payload) >= CHECKED_HEAD_BYTES:
        payload[HEAD_BYTES:CHECKED_HEAD_BYTES] = struct.pack(">I", crc32c(bytes(payload[CHECKED_HEAD_BYTES:])))
    message = try_message(bytes(payload))
    if isinstance(message, PlainMessage):
        assert bytes(message.value) == payload, "CLE3: nothing is lost"
    try:
        envelope = decode_envelope(bytes(payload))
    except BadEnvelope:
        return
    again = encode_envelope(envelope.kind, envelope.payload, checksum=envelope.is_checked)
    assert again == bytes(payload), "CLE1"
    _run_request(bytes(payload))
    _run_notify(bytes(payload))


# --- replication over NATS ---------------------------------------------------------------------------


def _request() -> SyncRequest:
    return SyncRequest(
        channel_id=1,
        leader_epoch=2,
        request_id=3,
        fetch_from=4,
        last_epoch=2,
        held_end=4,
        committed_end=3,
        incarnation=1,
        channel_epoch=1,
        chunk_bytes_max=1 << 20,
    )


def _run_request(data: bytes) -> None:
    try:
        received = decode_request(data, cluster=CLUSTER)
    except NATS_ERRORS:
        return
    again = encode_request(received.request, sender=NatsSender(node=received.replica, cluster=CLUSTER))
    assert decode_request(again, cluster=CLUSTER) == received, "NR1"


def answer_seeds() -> Iterator[bytes]:
    for size in (0, 100, 2 * PAYLOAD_BYTES_MIN):
        response = SyncResponse(
            channel_id=1, leader_epoch=2, request_id=3, committed_end=4, log_start=0, log_end=9, data=(bytes(size),)
        )
        parts = encode_response(response, sender=SENDER, payload_bytes_max=PAYLOAD_BYTES_MIN)
        payloads = [b"".join(buffers) for buffers in parts]
        yield b"".join(len(payload).to_bytes(2, "big") + payload for payload in payloads)
    nack = SyncNack(channel_id=1, leader_epoch=2, request_id=3, error=SyncError.NOT_LEADER, detail="no")
    payload = encode_nack(nack, sender=SENDER)
    yield len(payload).to_bytes(2, "big") + payload
    nack = SyncNack(channel_id=1, leader_epoch=2, request_id=3, error=SyncError.DIVERGED, epoch=1, end=4)
    payload = encode_diverged(nack, sender=SENDER)
    yield len(payload).to_bytes(2, "big") + payload


def run_answer(data: bytes) -> None:
    """Payloads, each after its length: so the fuzzer can drop, repeat and cross parts of answers."""
    joiner = ResponseJoiner(bytes_max=JOINER_BYTES)
    position = 0
    while position + 2 <= len(data):
        end = position + 2 + int.from_bytes(data[position : position + 2], "big")
        try:
            part = decode_answer(data[position + 2 : end], cluster=CLUSTER)
        except NATS_ERRORS:
            part = None
        if isinstance(part, ReceivedPart):
            whole = joiner.take(part)
            assert whole is None or whole.data_bytes == part.data_bytes, "NRP3: all of it or nothing"
        assert 0 <= joiner.bytes <= JOINER_BYTES, "NRP4"
        position = end


def _run_notify(data: bytes) -> None:
    try:
        received = decode_notify(data, cluster=CLUSTER)
    except NATS_ERRORS:
        return
    sender = NatsSender(node=received.leader, cluster=CLUSTER)
    again = encode_notify(received.notify, channel=received.channel, sender=sender)
    assert decode_notify(again, cluster=CLUSTER) == received, "NR1"


def subject_seeds() -> Iterator[bytes]:
    for channel in ("foo", "foo/3", "a.b c/256"):
        for verb in Verb:
            yield partition_subject(NAMESPACE, channel, verb).encode()
    yield reply_subject(INBOX, channel_id=1, request_id=2).encode()
    yield b"sensors.wind"


def run_subject(data: bytes) -> None:
    subject = data.decode(errors="surrogateescape")
    try:
        parsed = parse_partition_subject(NAMESPACE, subject)
    except BadSubject:
        pass
    else:
        assert partition_subject(NAMESPACE, parsed.channel, parsed.verb) == subject, "CNS1"
    try:
        reply = parse_reply_subject(INBOX, subject)
    except BadSubject:
        pass
    else:
        assert reply_subject(INBOX, channel_id=reply.channel_id, request_id=reply.request_id) == subject
    try:
        check_attached_subject(subject, namespace=NAMESPACE)
    except BadSubject:
        return
    assert not {" ", "*", ">"} & set(subject), "CNS3"


# --- HTTP/2 --------------------------------------------------------------------------------------------


HTTP2: Final = Http2Options(
    streams_max=3, stream_window_bytes=500, connection_window_bytes=70_000, frame_bytes_max=16 * KIB
)


def http2_seeds() -> Iterator[bytes]:
    block = encode_headers([(b":method", b"POST"), (b":path", b"/a.B/C")])
    opened = [frame(Http2FrameKind.HEADERS, block, flags=END_HEADERS, stream=stream) for stream in (1, 3)]
    yield b"".join(
        (
            settings_frame({Http2Setting.INITIAL_WINDOW_SIZE: 70, Http2Setting.MAX_FRAME_SIZE: 20_000}),
            *opened,
            frame(Http2FrameKind.DATA, bytes(300), stream=1),
            frame(Http2FrameKind.DATA, b"\x02abcd", flags=PADDED | END_STREAM, stream=1),
            window_frame(0, 9),
            window_frame(3, 9),
            reset_frame(3, Code.CANCEL),
            frame(Http2FrameKind.PING, bytes(8)),
        )
    )
    yield b"".join(
        (
            settings_frame({}),
            frame(Http2FrameKind.HEADERS, block[:3], stream=5),
            frame(Http2FrameKind.CONTINUATION, block[3:], flags=END_HEADERS, stream=5),
            frame(Http2FrameKind.GOAWAY, bytes(8)),
        )
    )
    for text in (
        "828684418cf1e3c2e5f23a6ba0ab90f4ff828684be5886a8eb10649cbf",
        "3f00828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
    ):
        yield settings_frame({}) + frame(Http2FrameKind.HEADERS, bytes.fromhex(text), flags=END_HEADERS, stream=1)


def run_http2(data: bytes) -> None:
    """After the preface; a program that answers every request and takes all data."""
    connection = Http2Connection(HTTP2)
    connection.receive(PREFACE)
    for event in connection.receive(data):
        match event:
            case StreamOpened(stream=stream, headers=headers):
                assert HeaderDecoder().decode(encode_headers(headers)) == headers, "HC1"
                connection.send_headers(stream, b"")
                connection.send(stream, bytes(100))
            case Received(stream=stream, has_ended=has_ended):
                assert connection.taken(stream) <= HTTP2.stream_window_bytes, "HT1"
                connection.consumed(stream, connection.taken(stream))
                if has_ended:
                    connection.finish(stream, b"")
            case ConnectionFailed():
                assert connection.is_over
    connection.flush()
    connection.take_output()


GATEWAY_TARGETS: Final = {
    "nats_message": Target(run=run_message, seeds=message_seeds),
    "nats_answer": Target(run=run_answer, seeds=answer_seeds),
    "nats_subject": Target(run=run_subject, seeds=subject_seeds),
    "http2": Target(run=run_http2, seeds=http2_seeds),
}
