"""What lplex's own clients do beyond reading: buffered sessions with acks, values decoded, sending and asking."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import can
import pytest

from tests.http.parties import START_US, Answer, Client, columns, serving
from tests.http.test_boat_http import Boat
from tests.patience import patient, wait_until
from tidelog.blocks.columns import FrameColumns
from tidelog.edge.sources.socketcan import SocketCanOptions, SocketCanSource
from tidelog.edge.sources.transmitting import BusSender, SendOptions, Transmit
from tidelog.http.access import READ_DATA, WRITE_BUS, AccessOptions, new_token
from tidelog.http.sessions import SessionBook
from tidelog.nmea.fast_packet import FastPacketAssembler, split_message

POSITION = 129025


async def put(client: Client, path: str, body: object, **more: Any) -> Answer:
    return await client.ask(path, method="PUT", json=body, **more)


async def post(client: Client, path: str, body: object, **more: Any) -> Answer:
    return await client.ask(path, method="POST", json=body, **more)


async def seqs_of(client: Client, count: int, path: str = "/clients/tug/events") -> list[int]:
    async with client.events(path) as events:
        found = [await events.next() for _ in range(count)]
    return [event["seq"] for event in found if event is not None]


# --- sessions ------------------------------------------------------------------------------------


async def test_tail_last_replays_the_newest_frames_and_follows() -> None:
    """Call for call what `lplex tail --last 5` does."""

    boat = Boat()
    boat.introduce(10)
    boat.record(columns(range(3, 41)))
    head = boat.journal.head
    async with serving(boat.http().server) as client:
        made = await put(client, "/clients/tug", {"buffer_timeout": "PT1M"})
        assert (made.status, made.json["client_id"], made.json["seq"]) == (200, "tug", head)
        assert "cursor" not in made.json
        assert made.json["devices"][0]["src"] == 10
        assert (await put(client, "/clients/tug/ack", {"seq": head - 5})).status == 204
        again = await put(client, "/clients/tug", {"buffer_timeout": "PT1M"})
        assert again.json["cursor"] == head - 5
        async with client.events("/clients/tug/events") as events:
            replayed = [(await events.next() or {})["seq"] for _ in range(5)]
            assert replayed == list(range(head - 4, head + 1))
            boat.record(columns(range(41, 43)))
            assert [(await events.next() or {})["seq"] for _ in range(2)] == [head + 1, head + 2]


async def test_a_session_that_acked_nothing_begins_with_what_is_new() -> None:
    boat = Boat()
    boat.record(columns(range(1, 11)))
    async with serving(boat.http().server) as client:
        await put(client, "/clients/tug", {"buffer_timeout": "PT1M"})
        async with client.events("/clients/tug/events") as events:
            boat.record(columns(range(11, 12)))
            assert (await events.next() or {})["seq"] == 11


async def test_a_reader_that_was_away_misses_nothing_that_the_journal_holds() -> None:
    """More than the ring holds, so most of it comes from disk, sealed and fresh."""

    boat = Boat()
    boat.record(columns(range(1, 4)))
    async with serving(boat.http().server) as client:
        await put(client, "/clients/tug", {"buffer_timeout": "PT5M"})
        await put(client, "/clients/tug/ack", {"seq": 3})
        boat.record(columns(range(4, 3_001)))
        boat.journal.flush(START_US + 61_000_000)
        boat.journal.seal_all(START_US + 61_000_000)
        boat.record(columns(range(3_001, 4_001)))
        assert boat.ring.seqs.start > 2_000
        assert await seqs_of(client, 3_997) == list(range(4, 4_001))


async def test_what_retention_removed_is_told_where_it_is_missing() -> None:
    boat = Boat()
    for start in range(1, 3_001, 100):
        boat.record(columns(range(start, start + 100)))
        boat.journal.flush(START_US + 60_000_000 + start)
    async with serving(boat.http().server) as client:
        await put(client, "/clients/tug", {"buffer_timeout": "PT5M"})
        await put(client, "/clients/tug/ack", {"seq": 10})
        boat.journal.seal_all(START_US + 61_000_000)
        boat.journal.sealed.set_floor("acked", None)
        boat.journal.sealed.trim(boat.journal.sealed.log_end, START_US + 62_000_000)
        held = next(iter(boat.journal.blocks(from_seq=1)), None)
        first = min(boat.ring.seqs.start, held.maker.base_seq if held is not None else 1 << 40)
        assert first > 11, "the trim removed something"
        async with client.events("/clients/tug/events") as events:
            assert (await events.next() or {})["seq"] == first
            assert f"dropped {first - 11} frames" in events.comments


async def test_a_session_filters_as_it_was_made() -> None:
    boat = Boat()
    async with serving(boat.http().server) as client:
        body = {"buffer_timeout": "PT1M", "filter": {"pgn": [POSITION], "exclude_name": ["ff"], "name": None}}
        assert (await put(client, "/clients/tug", body)).status == 200
        boat.record(columns(range(1, 2), can_id=0x09F8_020A))
        await put(client, "/clients/tug/ack", {"seq": 0})
        async with client.events("/clients/tug/events") as events:
            boat.record(columns(range(2, 3), can_id=0x09F8_020A))
            boat.record(columns(range(3, 4)))
            assert (await events.next() or {})["seq"] == 3


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/clients/a%2Fb", {}, "bad_client_id"),
        ("/clients/" + "a" * 65, {}, "bad_client_id"),
        ("/clients/tug", {"buffer_timeout": "soon"}, "bad_body"),
        ("/clients/tug", {"buffer_timeout": 5}, "bad_body"),
        ("/clients/tug", {"filter": []}, "bad_body"),
        ("/clients/tug", {"filter": {"pgn": 5}}, "bad_body"),
        ("/clients/tug", {"filter": {"pgn": ["x"]}}, "bad_parameter"),
        ("/clients/tug", {"filter": {"colour": ["red"]}}, "bad_body"),
        ("/clients/tug", {"filter": {"pgn": [1] * 257}}, "bad_body"),
        ("/clients/tug", {"timeout": "PT1M"}, "bad_body"),
        ("/clients/tug", ["PT1M"], "bad_body"),
        ("/clients/made/ack", {"seq": 3}, "bad_body"),
        ("/clients/made/ack", {"seq": -1}, "bad_body"),
        ("/clients/made/ack", {"seq": True}, "bad_body"),
        ("/clients/made/ack", {}, "bad_body"),
    ],
)
async def test_a_body_that_cannot_be_is_refused_in_words(path: str, body: object, reason: str) -> None:
    boat = Boat()
    boat.record(columns(range(1, 3)))
    async with serving(boat.http().server) as client:
        await put(client, "/clients/made", {"buffer_timeout": "PT1M"})
        answer = await put(client, path, body)
        assert (answer.status, answer.json["error"]) == (400, reason)


async def test_bodies_are_json_of_a_known_length_and_methods_are_told() -> None:
    boat = Boat()
    async with serving(boat.http().server) as client:
        for body in (b"{", b"\xff", b"[" * 50_000):
            headers = {"Content-Type": "application/json"}
            answer = await client.ask("/clients/tug", method="PUT", data=body, headers=headers)
            assert (answer.status, answer.json["error"]) == (400, "bad_body")
        answer = await client.ask("/clients/tug", method="PUT", data=b"{}", headers={"Content-Type": "text/plain"})
        assert (answer.status, answer.json["error"]) == (415, "not_json")
        answer = await client.ask("/clients/tug", method="PUT", data=b"{" + b" " * 70_000)
        assert answer.status == 413
        answer = await client.ask("/clients/tug")
        assert (answer.status, answer.headers["Allow"]) == (405, "PUT")
        answer = await client.ask("/clients/tug/events", method="POST", data=b"{}")
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


async def test_sessions_are_forgotten_after_their_buffer_timeout_and_kept_while_read() -> None:
    boat = Boat()
    async with serving(boat.http().server) as client:
        await put(client, "/clients/tug", {"buffer_timeout": "PT1M"})
        async with client.events("/clients/tug/events"):
            boat.now_ms += 120_000
            await put(client, "/clients/other", {"buffer_timeout": "PT1H"})
            assert len(boat.sessions) == 2
        await wait_until(lambda: boat.feed.readers == 0, "the reader's end")
        boat.now_ms += 61_000
        answer = await put(client, "/clients/tug/ack", {"seq": 0})
        assert (answer.status, answer.json["error"]) == (404, "not_found")
        assert "PUT /clients/" in answer.json["detail"]
        boat.now_ms += 240_000  # an hour was asked for, and five minutes is the most there is
        assert (await put(client, "/clients/other/ack", {"seq": 0})).status == 404
        assert len(boat.sessions) == 0


async def test_the_number_of_sessions_has_a_limit() -> None:
    boat = Boat()
    boat.sessions = SessionBook(sessions_max=2)
    async with serving(boat.http().server) as client:
        for name in ("a", "b"):
            assert (await put(client, f"/clients/{name}", {"buffer_timeout": "PT1M"})).status == 200
        answer = await put(client, "/clients/c", {"buffer_timeout": "PT1M"})
        assert (answer.status, answer.json["error"]) == (503, "too_many_sessions")
        assert "Retry-After" in answer.headers
        boat.now_ms += 61_000
        assert (await put(client, "/clients/c", {"buffer_timeout": "PT1M"})).status == 200


async def test_a_session_is_its_makers_and_needs_the_scope(tmp_path: Path) -> None:
    reader, other = new_token(name="reader", scopes=[READ_DATA]), new_token(name="other", scopes=[READ_DATA])
    status = new_token(name="status", scopes=["read:status"])
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{made.line}\n" for made in (reader, other, status)))
    tokens.chmod(0o600)
    boat = Boat()
    async with serving(boat.http(access=AccessOptions(token_file=tokens)).server, key=reader.secret) as client:
        assert (await put(client, "/clients/tug", {"buffer_timeout": "PT1M"})).status == 200
        client.key = other.secret
        assert (await put(client, "/clients/tug/ack", {"seq": 0})).status == 404
        client.key = status.secret
        answer = await put(client, "/clients/tug/ack", {"seq": 0})
        assert (answer.status, READ_DATA in answer.json["detail"]) == (403, True)
        client.key = None
        assert (await put(client, "/clients/tug", {})).status == 401


async def test_a_new_lineage_moves_a_session_to_its_first_seq() -> None:
    boat = Boat()
    boat.record(columns(range(1, 6)))
    async with serving(boat.http().server) as client:
        await put(client, "/clients/tug", {"buffer_timeout": "PT1M"})
        await put(client, "/clients/tug/ack", {"seq": 4})
        async with client.events("/clients/tug/events") as events:
            assert (await events.next() or {})["seq"] == 5
            boat.journal.fork_lineage("a test", START_US + 61_000_000)
            boat.record(columns(range(1, 3)))
            assert [(await events.next() or {})["seq"] for _ in range(2)] == [1, 2]
            assert any("new lineage" in comment for comment in events.comments)


async def test_stopping_the_server_ends_a_sessions_stream() -> None:
    boat = Boat()
    served = boat.http()
    async with serving(served.server) as client:
        await put(client, "/clients/tug", {"buffer_timeout": "PT1M"})
        async with client.events("/clients/tug/events") as events:
            await served.stop()
            assert await events.next() is None


async def test_history_gives_the_last_frames_from_memory_too() -> None:
    boat = Boat()
    boat.record(columns(range(1, 2_501)))
    boat.journal.flush(START_US + 60_000_000)
    boat.record(columns(range(2_501, 2_511)))
    async with serving(boat.http().server) as client:
        found = (await client.ask("/history?last=2005")).json
        assert [frame["seq"] for frame in found] == list(range(506, 2_511))
        assert len((await client.ask("/history?last=10000")).json) == 2_510
        assert [frame["seq"] for frame in (await client.ask("/history?last=5&limit=2")).json] == [2_506, 2_507]
        for query in ("", "?last=0", "?last=x"):
            assert (await client.ask(f"/history{query}")).status == 400


# --- values, decoded -----------------------------------------------------------------------------


async def test_decoded_values_have_fields_by_name() -> None:
    pytest.importorskip("nmea2000")

    boat = Boat()
    boat.introduce(10)
    latitude, longitude = round(47.6062 * 1e7), round(-122.3321 * 1e7)
    payload = latitude.to_bytes(4, "little") + longitude.to_bytes(4, "little", signed=True)
    boat.record(FrameColumns.from_rows([(START_US, 0x09F8_010A, payload), (START_US, 0x1DEF_FF0B, b"\x01\x02")]))
    async with serving(boat.http().server) as client:
        answer = (await client.ask("/values/decoded")).json
        device = next(device for device in answer if device["src"] == 10)
        assert device["manufacturer"] == "Maretron"
        value = next(value for value in device["values"] if value["pgn"] == POSITION)
        assert value["description"] == "Position Rapid Update"
        assert value["fields"] == value["decoded"]
        assert value["fields"]["latitude"] == pytest.approx(47.6062)
        assert value["fields"]["longitude"] == pytest.approx(-122.3321)
        assert (value["ts"], value["seq"]) == ("2025-06-15T15:06:40Z", boat.journal.head - 1)
        only = (await client.ask("/values/decoded?pgn=129025&src=10")).json
        assert [value["pgn"] for device in only for value in device["values"]] == [POSITION]
        assert (await client.ask("/values/decoded?pgn=x")).status == 400


async def test_without_the_decoder_the_answer_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        return None if name == "nmea2000" else real(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)

    async with serving(Boat().http().server) as client:
        answer = await client.ask("/values/decoded")
        assert (answer.status, answer.json["error"]) == (501, "missing_extra")
        assert "tidelog[decode]" in answer.json["detail"]


# --- sending -------------------------------------------------------------------------------------


class Bus:
    """What would be on the wire."""

    def __init__(self, boat: Boat, send: SendOptions | None) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.is_open = True
        self.answers: Callable[[], None] = lambda: None
        boat.sender = BusSender(send, transmit=lambda: self._transmit if self.is_open else None)

    @property
    def _transmit(self) -> Transmit:
        def put_on(can_id: int, payload: bytes) -> None:
            self.frames.append((can_id, payload))
            self.answers()

        return put_on


async def test_sending_is_off_until_the_operator_allows_the_pgn() -> None:
    boat = Boat()
    bus = Bus(boat, None)
    async with serving(boat.http().server) as client:
        answer = await post(client, "/send", {"pgn": POSITION, "data": "00"})
        assert (answer.status, answer.json["error"]) == (403, "send_disabled")
        assert "-send-enabled" in answer.json["detail"]
    bus = Bus(boat, SendOptions(pgns=frozenset({POSITION})))
    async with serving(boat.http().server) as client:
        answer = await post(client, "/send", {"pgn": 127250, "data": "00"})
        assert (answer.status, answer.json["error"]) == (403, "pgn_not_allowed")
        answer = await post(client, "/query", {"pgn": 126996})
        assert (answer.status, answer.json["error"]) == (403, "pgn_not_allowed")
        sent = {"pgn": POSITION, "src": 5, "dst": 255, "prio": 2, "data": "aabbccddeeff1122"}
        assert (await post(client, "/send", sent)).status == 202
        assert bus.frames == [(0x09F8_0105, bytes.fromhex("aabbccddeeff1122"))]
        bus.is_open = False
        answer = await post(client, "/send", sent)
        assert (answer.status, answer.json["error"]) == (501, "cannot_send")
        assert len(bus.frames) == 1


async def test_nobody_sends_without_the_scope_even_where_anybody_may_read(tmp_path: Path) -> None:
    reader, sender = new_token(name="reader"), new_token(name="sender", scopes=[WRITE_BUS])
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{reader.line}\n{sender.line}\n")
    tokens.chmod(0o600)
    boat = Boat()
    bus = Bus(boat, SendOptions(pgns=None))
    access = AccessOptions(token_file=tokens, anonymous=True)
    async with serving(boat.http(access=access).server, key=None) as client:
        for key in (None, reader.secret):
            client.key = key
            answer = await post(client, "/send", {"pgn": POSITION, "data": "00"})
            assert (answer.status, WRITE_BUS in answer.json["detail"]) == (403, True)
        client.key = sender.secret
        assert (await post(client, "/send", {"pgn": POSITION, "data": "00"})).status == 202
        assert len(bus.frames) == 1


async def test_a_burst_of_messages_is_slowed_down() -> None:
    boat = Boat()
    bus = Bus(boat, SendOptions(pgns=None, rate_per_s=2))
    async with serving(boat.http().server) as client:
        statuses = [(await post(client, "/send", {"pgn": POSITION, "data": "00"})).status for _ in range(3)]
        assert statuses == [202, 202, 429]
        boat.now_ms += 500
        assert (await post(client, "/send", {"pgn": POSITION, "data": "00"})).status == 202
        assert len(bus.frames) == 3


@pytest.mark.parametrize(
    "body",
    [
        {"pgn": 1 << 18, "data": "00"},
        {"pgn": POSITION, "data": "0"},
        {"pgn": POSITION, "data": 5},
        {"pgn": POSITION, "data": "00" * 224},
        {"pgn": POSITION, "data": "00", "src": 254},
        {"pgn": POSITION, "data": "00", "prio": 8},
        {"pgn": POSITION, "data": "00", "bus": "can1"},
        {"pgn": POSITION, "data": "00", "speed": 1},
        {"pgn": 59905, "data": "00"},
        {"data": "00"},
    ],
)
async def test_a_message_that_cannot_be_is_not_sent(body: dict[str, Any]) -> None:
    boat = Boat()
    bus = Bus(boat, SendOptions(pgns=None))
    async with serving(boat.http().server) as client:
        answer = await post(client, "/send", body)
        assert (answer.status, answer.json["error"]) == (400, "bad_body")
        assert bus.frames == []


async def test_a_request_waits_for_the_device_that_was_asked() -> None:
    """Call for call what `lplex request` does."""

    boat = Boat()
    bus = Bus(boat, SendOptions(pgns=None))

    def answer() -> None:
        boat.record(columns(range(1, 2), can_id=0x09F8_020A))  # another PGN
        boat.record(columns(range(2, 3), can_id=0x09F8_010B))  # another device
        boat.record(columns(range(3, 4), can_id=0x09F8_010A))

    bus.answers = answer
    async with serving(boat.http().server) as client:
        found = await post(client, "/query", {"pgn": POSITION, "dst": 10})
        assert (found.status, found.json["seq"], found.json["src"]) == (200, 3, 10)
        assert bus.frames == [(0x18EA_0AFE, bytes.fromhex("01f801"))]
        bus.answers = lambda: None
        late = await post(client, "/query", {"pgn": POSITION, "dst": 255, "timeout": "50ms"})
        assert (late.status, late.json["error"]) == (504, "no_answer")
        for body in ({"pgn": 0}, {"pgn": POSITION, "timeout": "PT1H"}, {"pgn": POSITION, "timeout": "x"}, {}):
            assert (await post(client, "/query", body)).status == 400


@pytest.mark.parametrize("size", [1, 6, 7, 8, 13, 14, 100, 223])
def test_a_long_message_is_split_as_others_put_it_together(size: int) -> None:
    payload = bytes(number % 251 for number in range(size))
    assembler = FastPacketAssembler()
    frames = split_message(126996, payload, counter=5)
    assert all(len(frame) == 8 for frame in frames)
    rows = [assembler.receive(START_US, 0x19F0_1405, frame) for frame in frames]
    assert [row for row in rows if row is not None] == [(START_US, 0x19F0_1405, payload)]
    assert split_message(POSITION, payload[:8], counter=0) == [payload[:8]]


def test_frames_reach_the_interface() -> None:
    source = SocketCanSource(options=SocketCanOptions(interface="virtual", channel="boat-clients"))
    listener = can.Bus(interface="virtual", channel="boat-clients")
    try:
        source.send(0x09F8_0105, b"\x01\x02")
        heard = listener.recv(timeout=patient(10))
        assert heard is not None
        assert (heard.arbitration_id, bytes(heard.data), heard.is_extended_id) == (0x09F8_0105, b"\x01\x02", True)
    finally:
        listener.shutdown()
        source.close()


def test_every_route_for_clients_is_in_the_boats_document() -> None:
    document = Boat().http().server.document
    assert {"/clients/{client}", "/clients/{client}/events", "/clients/{client}/ack", "/send", "/query"} <= set(
        document["paths"]
    )
    assert json.dumps(document)
