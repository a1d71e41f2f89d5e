"""The server's end of HTTP/2, byte by byte: windows, limits, and peers that break the rules."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from tidelog.transports.grpc.hpack import encode_headers
from tidelog.transports.grpc.http2_connection import (
    ConnectionFailed,
    Event,
    Http2Connection,
    Http2Options,
    Received,
    Reset,
    StreamOpened,
)
from tidelog.transports.grpc.http2_frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    PADDED,
    PREFACE,
    PRIORITY,
    WINDOW_DEFAULT,
    Code,
    Http2FrameKind,
    Http2Setting,
    frame,
    goaway_frame,
    number_of,
    reset_frame,
    settings_frame,
    window_frame,
)
from tidelog.units import KIB

HEADERS = [(b":method", b"POST"), (b":path", b"/a.B/C")]
BLOCK = encode_headers(HEADERS)
SMALL = Http2Options(streams_max=2, stream_window_bytes=1_000, connection_window_bytes=70_000, frame_bytes_max=16 * KIB)


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def frames_of(data: bytes) -> list[Frame]:
    found, position = [], 0
    while position < len(data):
        high, low, kind, flags, stream = HEAD.unpack_from(data, position)
        end = position + HEAD_BYTES + (high << 16 | low)
        found.append(Frame(kind, flags, stream, data[position + HEAD_BYTES : end]))
        position = end
    return found


def opened(stream: int, *, flags: int = 0) -> bytes:
    return frame(Http2FrameKind.HEADERS, BLOCK, flags=END_HEADERS | flags, stream=stream)


def data_frame(stream: int, payload: bytes, *, flags: int = 0) -> bytes:
    return frame(Http2FrameKind.DATA, payload, flags=flags, stream=stream)


def greeted(options: Http2Options | None = None) -> Http2Connection:
    """A connection after both sides have said how they are."""
    connection = Http2Connection(options)
    assert connection.receive(PREFACE + settings_frame({})) == []
    kinds = [(sent.kind, sent.flags) for sent in frames_of(connection.take_output())]
    assert kinds == [(Http2FrameKind.SETTINGS, 0), (Http2FrameKind.WINDOW_UPDATE, 0), (Http2FrameKind.SETTINGS, ACK)]
    return connection


def failure(connection: Http2Connection, data: bytes) -> Code:
    """With which code the connection ends for these bytes."""
    events = connection.receive(data)
    assert isinstance(events[-1], ConnectionFailed), events
    last = frames_of(connection.take_output())[-1]
    assert last.kind == Http2FrameKind.GOAWAY
    assert connection.is_over
    assert connection.receive(opened(99)) == [], "nothing is heard any more"
    return Code(number_of(last.payload[4:8]))


def sent_data(connection: Http2Connection, stream: int) -> bytes:
    sent = frames_of(connection.take_output())
    return b"".join(one.payload for one in sent if one.kind == Http2FrameKind.DATA and one.stream == stream)


# --- requests --------------------------------------------------------------------------------------------------


def test_a_request_is_the_same_in_whatever_pieces_it_comes() -> None:
    whole = PREFACE + settings_frame({}) + opened(1) + data_frame(1, b"one") + data_frame(1, b"two", flags=END_STREAM)
    for step in (1, 2, 7, len(whole)):
        connection = Http2Connection()
        events: list[Event] = []
        for start in range(0, len(whole), step):
            events += connection.receive(whole[start : start + step])
        assert events[0] == StreamOpened(stream=1, headers=HEADERS, has_ended=False)
        pieces = [event for event in events[1:] if isinstance(event, Received)]
        assert b"".join(piece for event in pieces for piece in event.pieces) == b"onetwo"
        assert [event.has_ended for event in pieces][-1]


def test_frames_that_come_together_are_told_together() -> None:
    connection = greeted()
    events = connection.receive(opened(1) + opened(3) + b"".join(data_frame(n, b"x") for n in (1, 3, 1, 3)))
    assert events[2:] == [
        Received(stream=1, pieces=[b"x", b"x"], has_ended=False),
        Received(stream=3, pieces=[b"x", b"x"], has_ended=False),
    ]


def test_padding_and_priorities_are_taken_off() -> None:
    connection = greeted()
    head = b"\x03" + bytes(5) + BLOCK + bytes(3)
    flags = END_HEADERS | PADDED | PRIORITY
    (event,) = connection.receive(frame(Http2FrameKind.HEADERS, head, flags=flags, stream=1))
    assert event == StreamOpened(stream=1, headers=HEADERS, has_ended=False)
    (event,) = connection.receive(data_frame(1, b"\x04data" + bytes(4), flags=PADDED))
    assert event == Received(stream=1, pieces=[b"data"], has_ended=False)
    assert connection.taken(1) == 4, "padding is given back at once"


def test_headers_may_go_on_in_further_frames() -> None:
    connection = greeted()
    assert connection.receive(frame(Http2FrameKind.HEADERS, BLOCK[:2], stream=1)) == []
    (event,) = connection.receive(frame(Http2FrameKind.CONTINUATION, BLOCK[2:], flags=END_HEADERS, stream=1))
    assert event == StreamOpened(stream=1, headers=HEADERS, has_ended=False)


def test_pings_are_answered_and_settings_acknowledged() -> None:
    connection = greeted()
    connection.receive(frame(Http2FrameKind.PING, b"12345678") + settings_frame({Http2Setting.MAX_FRAME_SIZE: 20_000}))
    assert frames_of(connection.take_output()) == [
        Frame(Http2FrameKind.PING, ACK, 0, b"12345678"),
        Frame(Http2FrameKind.SETTINGS, ACK, 0, b""),
    ]


def test_a_request_that_is_given_up_is_told_once_and_forgotten() -> None:
    connection = greeted()
    connection.receive(opened(1) + data_frame(1, b"x"))
    assert connection.receive(reset_frame(1, Code.CANCEL)) == [Reset(stream=1)]
    assert connection.receive(reset_frame(1, Code.CANCEL) + data_frame(1, b"late")) == [], "HT4"
    connection.send(1, b"x")
    connection.finish(1, b"")
    connection.flush()
    assert {sent.kind for sent in frames_of(connection.take_output())} == {Http2FrameKind.WINDOW_UPDATE}


# --- windows ----------------------------------------------------------------------------------------------------


def test_more_than_a_streams_window_ends_that_stream_and_no_other() -> None:
    """HT1."""
    connection = greeted(SMALL)
    events = connection.receive(opened(1) + opened(3) + data_frame(1, bytes(1_001)) + data_frame(3, b"fine"))
    assert Reset(stream=1) in events
    assert Received(stream=3, pieces=[b"fine"], has_ended=False) in events
    (reset,) = [sent for sent in frames_of(connection.take_output()) if sent.kind == Http2FrameKind.RST_STREAM]
    assert (reset.stream, number_of(reset.payload)) == (1, Code.FLOW_CONTROL_ERROR)


def test_what_is_consumed_is_granted_again() -> None:
    connection = greeted(SMALL)
    connection.receive(opened(1) + data_frame(1, bytes(900)))
    assert connection.take_output() == b""
    connection.consumed(1, 600)
    assert frames_of(connection.take_output()) == [Frame(Http2FrameKind.WINDOW_UPDATE, 0, 1, (600).to_bytes(4, "big"))]
    connection.receive(data_frame(1, bytes(700)))
    assert connection.taken(1) == 1_000


def test_the_window_of_the_connection_is_kept_whatever_becomes_of_its_streams() -> None:
    options = Http2Options(stream_window_bytes=70_000, connection_window_bytes=70_000)
    connection = greeted(options)
    granted = 0
    for stream in range(1, 41, 2):
        connection.receive(opened(stream) + data_frame(stream, bytes(20_000)))
        connection.receive(reset_frame(stream, Code.CANCEL))
        granted += sum(number_of(sent.payload) for sent in frames_of(connection.take_output()) if sent.stream == 0)
        assert stream * 10_000 + 10_000 - granted < 70_000, "the peer could not have sent it otherwise"


def test_nothing_is_sent_beyond_the_peers_windows() -> None:
    """HT2."""
    connection = greeted()
    connection.receive(opened(1, flags=END_STREAM))
    connection.send_headers(1, BLOCK)
    connection.send(1, bytes(100_000))
    connection.finish(1, BLOCK)
    connection.flush()
    assert len(sent_data(connection, 1)) == WINDOW_DEFAULT
    connection.receive(window_frame(1, 100_000))
    assert sent_data(connection, 1) == b"", "the connection has a window too"
    connection.receive(window_frame(0, 10_000))
    assert len(sent_data(connection, 1)) == 10_000
    connection.receive(window_frame(0, 100_000))
    last = frames_of(connection.take_output())[-1]
    assert (last.kind, last.flags) == (Http2FrameKind.HEADERS, END_HEADERS | END_STREAM), (
        "trailers come after the last byte"
    )


def test_a_window_that_shrinks_below_nothing_is_waited_for() -> None:
    connection = greeted()
    connection.receive(opened(1))
    connection.send(1, bytes(1_000))
    connection.flush()
    connection.take_output()
    connection.receive(settings_frame({Http2Setting.INITIAL_WINDOW_SIZE: 500}))
    connection.send(1, b"more")
    connection.flush()
    assert sent_data(connection, 1) == b""
    connection.receive(window_frame(1, 502))
    assert sent_data(connection, 1) == b"mo"
    assert connection.unsent(1) == 2


def test_streams_take_turns_so_that_a_large_answer_holds_up_no_small_one() -> None:
    connection = greeted()
    connection.receive(window_frame(0, 10**6) + window_frame(0, 10**6))
    connection.receive(settings_frame({Http2Setting.INITIAL_WINDOW_SIZE: 10**6}) + opened(1) + opened(3))
    connection.send(1, bytes(500_000))
    connection.send(3, b"small")
    connection.flush()
    order = [sent.stream for sent in frames_of(connection.take_output()) if sent.kind == Http2FrameKind.DATA]
    assert order.index(3) < len(order) - 1
    assert order.count(1) > 5


def test_a_socket_that_takes_no_more_is_waited_for() -> None:
    connection = greeted()
    connection.receive(opened(1))
    connection.is_blocked = True
    connection.send(1, b"later")
    connection.flush()
    assert sent_data(connection, 1) == b""
    connection.is_blocked = False
    connection.flush()
    assert sent_data(connection, 1) == b"later"


def test_an_answer_that_ends_before_its_request_asks_for_no_more_of_it() -> None:
    connection = greeted()
    connection.receive(opened(1))
    connection.finish(1, BLOCK)
    headers, reset = frames_of(connection.take_output())
    assert (headers.kind, reset.kind, number_of(reset.payload)) == (
        Http2FrameKind.HEADERS,
        Http2FrameKind.RST_STREAM,
        Code.NO_ERROR,
    )


# --- limits and rubbish -----------------------------------------------------------------------------------------


def test_more_streams_than_allowed_are_refused_and_the_others_go_on() -> None:
    connection = greeted(SMALL)
    events = connection.receive(opened(1) + opened(3) + opened(5) + data_frame(1, b"x"))
    assert [type(event) for event in events] == [StreamOpened, StreamOpened, Received]
    (refused,) = [sent for sent in frames_of(connection.take_output()) if sent.kind == Http2FrameKind.RST_STREAM]
    assert (refused.stream, number_of(refused.payload)) == (5, Code.REFUSED_STREAM)


def test_after_going_away_nothing_new_is_taken_and_what_runs_goes_on() -> None:
    connection = greeted()
    connection.receive(opened(1))
    connection.go_away()
    assert connection.receive(opened(3) + data_frame(1, b"x")) == [Received(stream=1, pieces=[b"x"], has_ended=False)]
    kinds = [sent.kind for sent in frames_of(connection.take_output())]
    assert kinds == [Http2FrameKind.GOAWAY, Http2FrameKind.RST_STREAM]


def test_a_peer_that_goes_away_is_served_to_the_end() -> None:
    connection = greeted()
    connection.receive(opened(1) + goaway_frame(0, Code.NO_ERROR))
    connection.send(1, b"x")
    connection.flush()
    assert sent_data(connection, 1) == b"x"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(99, b"unknown") + frame(Http2FrameKind.PING, b"short"), Code.FRAME_SIZE_ERROR),
        (opened(2), Code.PROTOCOL_ERROR),
        (data_frame(1, b"x"), Code.PROTOCOL_ERROR),
        (reset_frame(7, Code.CANCEL), Code.PROTOCOL_ERROR),
        (frame(Http2FrameKind.PUSH_PROMISE, BLOCK, stream=1), Code.PROTOCOL_ERROR),
        (frame(Http2FrameKind.CONTINUATION, BLOCK, stream=1), Code.PROTOCOL_ERROR),
        (frame(Http2FrameKind.HEADERS, BLOCK, stream=1) + frame(Http2FrameKind.PING, bytes(8)), Code.PROTOCOL_ERROR),
        (
            frame(Http2FrameKind.HEADERS, BLOCK, stream=1) + frame(Http2FrameKind.CONTINUATION, stream=3),
            Code.PROTOCOL_ERROR,
        ),
        (
            frame(Http2FrameKind.HEADERS, BLOCK, stream=1) + frame(Http2FrameKind.CONTINUATION, stream=1) * 20,
            Code.ENHANCE_YOUR_CALM,
        ),
        (frame(Http2FrameKind.HEADERS, b"\xff\xff\xff\xff\xff", flags=END_HEADERS, stream=1), Code.COMPRESSION_ERROR),
        (frame(Http2FrameKind.HEADERS, bytes(2), flags=END_HEADERS | PRIORITY, stream=1), Code.FRAME_SIZE_ERROR),
        (opened(1) + data_frame(1, b"\x09", flags=PADDED), Code.PROTOCOL_ERROR),
        (opened(1) + opened(1), Code.PROTOCOL_ERROR),
        (opened(1, flags=END_STREAM) + data_frame(1, b"x"), Code.STREAM_CLOSED),
        (window_frame(0, 0), Code.FLOW_CONTROL_ERROR),
        (window_frame(0, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
        (settings_frame({Http2Setting.INITIAL_WINDOW_SIZE: 2**31}), Code.FLOW_CONTROL_ERROR),
        (settings_frame({Http2Setting.MAX_FRAME_SIZE: 1}), Code.PROTOCOL_ERROR),
        (frame(Http2FrameKind.SETTINGS, bytes(5)), Code.FRAME_SIZE_ERROR),
        (HEAD.pack(255, 0, Http2FrameKind.DATA, 0, 1), Code.FRAME_SIZE_ERROR),
    ],
)
def test_who_breaks_the_rules_loses_the_connection_with_a_code(data: bytes, code: Code) -> None:
    assert failure(greeted(), data) is code


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", PREFACE + frame(Http2FrameKind.PING, bytes(8)), b"\x16\x03\x01"]
)
def test_what_is_no_http2_is_refused(data: bytes) -> None:
    assert failure(Http2Connection(), data) is Code.PROTOCOL_ERROR


def test_no_bytes_make_it_raise() -> None:
    """HT3: frames in any order with damage in them; the seed is printed."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    good = [
        opened(1),
        opened(3, flags=END_STREAM),
        data_frame(1, bytes(50)),
        data_frame(1, b"\x02abcd", flags=PADDED | END_STREAM),
        settings_frame({Http2Setting.INITIAL_WINDOW_SIZE: 70, Http2Setting.MAX_FRAME_SIZE: 20_000}),
        window_frame(0, 9),
        window_frame(1, 9),
        reset_frame(1, Code.CANCEL),
        frame(Http2FrameKind.PING, bytes(8)),
        frame(Http2FrameKind.HEADERS, BLOCK[:3], stream=5),
        frame(Http2FrameKind.CONTINUATION, BLOCK[3:], flags=END_HEADERS, stream=5),
    ]
    for _ in range(2_000):
        data = bytearray(b"".join(dice.choices(good, k=dice.randrange(1, 8))))
        for _ in range(dice.randrange(3)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        connection = greeted(SMALL)
        try:
            for event in connection.receive(bytes(data)):
                if isinstance(event, StreamOpened):
                    connection.send(event.stream, bytes(100))
                elif isinstance(event, Received):
                    connection.consumed(event.stream, connection.taken(event.stream))
            connection.flush()
            connection.take_output()
        except Exception as error:
            pytest.fail(f"{error!r} for {data.hex()}, seed {seed}")
