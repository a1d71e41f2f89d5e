"""A boat's HTTP, with a real journal, a real feed and a real registry of devices."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, fields
from typing import Any

from tests.edge import journals
from tests.http.parties import START_US, columns, options, serving
from tidelog.blocks.columns import FrameColumns
from tidelog.edge.boat_http import BoatHttp, BoatView, journal_history
from tidelog.edge.journal.ring import Ring
from tidelog.edge.sources.transmitting import BusSender
from tidelog.edge.uplink.uplink import UplinkStatistics
from tidelog.http.access import READ_DATA, READ_METRICS, AccessOptions, new_token
from tidelog.http.feed import FrameFeed
from tidelog.http.frames import frame_seqs, frame_texts, time_text
from tidelog.http.sessions import SessionBook
from tidelog.nmea.devices import DeviceRegistry, Name, Product, introductions

NOW_US = START_US + 60_000_000
MARETRON = Name(
    unique_number=1, manufacturer_code=137, device_instance=3, device_function=130, device_class=75, industry_group=4
)


def uplink_statistics(**changes: Any) -> UplinkStatistics:
    facts: dict[str, Any] = {
        "connected": True,
        "cursor": 49_950,
        "missing": (),
        "live_frames_sent": 7,
        "backfill_blocks_sent": 2,
        "backfill_bytes_sent": 999,
        "reconnects": 1,
        "last_ack_us": NOW_US - 1_500_000,
        "trouble": "",
    }
    # Metering has its own tests; here it has counted nothing.
    others = {part.name: 0 for part in fields(UplinkStatistics) if part.name not in facts}
    return UplinkStatistics(**(others | facts | changes))


@dataclass
class Boat:
    """What edge/boat.py does with a frame, and no more."""

    instance: str = "boat-001"
    uplink: UplinkStatistics | None = field(default_factory=uplink_statistics)
    problem: str | None = None
    trouble: str | None = None

    def __post_init__(self) -> None:
        self.journal = journals.opened(journals.new_disk(), START_US)
        self.feed = FrameFeed()
        self.registry = DeviceRegistry()
        self.ring = Ring(frames_max=1_000)
        self.sessions = SessionBook()
        self.now_ms = 6_500
        self.sender = BusSender(None, transmit=lambda: None)

    def record(self, frames: FrameColumns) -> None:
        seqs = self.journal.record_many(frames, NOW_US)
        for seq, row in zip(seqs, frames.rows(), strict=True):
            self.ring.append(seq, *row)
        self.feed.publish(seqs.start, frames)
        self.feed.publish_devices(self.registry.receive(frames))

    def introduce(self, source: int) -> None:
        product = Product(product_code=5, model_id="GPS200", model_serial="HA1")
        told = introductions([(source, MARETRON, product)])
        self.record(FrameColumns.from_rows((NOW_US, can_id, payload) for can_id, payload in told))

    def http(self, **changes: Any) -> BoatHttp:
        view = BoatView(
            instance=self.instance,
            journal=self.journal,
            feed=self.feed,
            devices=self.registry.devices,
            uplink=lambda: self.uplink,
            now_us=lambda: NOW_US,
            now_ms=lambda: self.now_ms,
            problem=lambda: self.problem,
            trouble=lambda: self.trouble,
            ring=lambda: (3, 100),
            recent=self.ring,
            sessions=self.sessions,
            sender=self.sender,
            written=lambda: (4, 5_000),
            extra=lambda: {"metering": {"bytes_today": 5}, "connected": "never ours"},
        )
        return BoatHttp(view, options(**changes))


# --- replication ---------------------------------------------------------------------------------


async def test_replication_status_has_the_keys_of_lplex_first_and_in_order() -> None:
    boat = Boat(uplink=uplink_statistics(cursor=5, missing=(range(2, 4), range(7, 8))))
    boat.record(columns(range(1, 11)))
    async with serving(boat.http().server) as client:
        answer = await client.ask("/replication/status")
        assert list(answer.json)[:12] == [
            "connected",
            "instance_id",
            "local_head_seq",
            "cloud_cursor",
            "holes",
            "live_lag",
            "backfill_remaining_seqs",
            "last_ack",
            "live_frames_sent",
            "backfill_blocks_sent",
            "backfill_bytes_sent",
            "reconnects",
        ]
        assert answer.json == {
            "connected": True,
            "instance_id": "boat-001",
            "local_head_seq": 10,
            "cloud_cursor": 5,
            "holes": [{"start": 2, "end": 4}, {"start": 7, "end": 8}],
            "live_lag": 5,
            "backfill_remaining_seqs": 3,
            "last_ack": time_text(NOW_US - 1_500_000),
            "live_frames_sent": 7,
            "backfill_blocks_sent": 2,
            "backfill_bytes_sent": 999,
            "reconnects": 1,
            "lineage": boat.journal.lineage.hex(),
            "durable_head_seq": 10,
            "lost": [],
            "void": [],
            "dials": 0,
            "trouble": "",
            "name_in_use": 0,
            "metering": {"bytes_today": 5},
        }
        # The cursor may pass the head that we know of, and there may never have been an ack.
        boat.uplink = uplink_statistics(cursor=99, last_ack_us=None)
        answer = await client.ask("/replication/status")
        assert answer.json["live_lag"] == 0
        assert answer.json["last_ack"] == "0001-01-01T00:00:00Z"
        assert answer.json["holes"] == []


async def test_a_boat_that_only_records_has_no_replication_status() -> None:
    boat = Boat(uplink=None)
    async with serving(boat.http().server) as client:
        assert (await client.ask("/replication/status")).status == 404
        health = await client.ask("/healthz")
        assert (health.status, health.json["status"], "replication" in health.json) == (200, "ok", False)
        assert b"lplex_replication_connected" not in (await client.ask("/metrics")).body


# --- health and metrics --------------------------------------------------------------------------


async def test_health_is_degraded_without_the_cloud_and_unhealthy_without_a_journal() -> None:
    boat = Boat()
    boat.record(columns(range(1, 4)))
    async with serving(boat.http().server) as client:
        answer = await client.ask("/healthz")
        assert (answer.status, answer.json["status"]) == (200, "ok")
        assert answer.json["broker"] == {
            "status": "ok",
            "frames_total": 3,
            "head_seq": 4,
            "last_frame_time": time_text(START_US + 1500),
            "device_count": 1,
            "ring_entries": 3,
            "ring_capacity": 100,
        }
        boat.uplink = uplink_statistics(connected=False)
        answer = await client.ask("/healthz")
        assert (answer.status, answer.json["status"]) == (200, "degraded")
        assert answer.json["replication"]["status"] == "disconnected"
        assert (await client.ask("/readyz")).status == 200
        boat.trouble = "the journal cannot be sealed"
        answer = await client.ask("/healthz")
        assert (answer.status, answer.json["status"]) == (503, "unhealthy")
        assert answer.json["detail"] == boat.trouble
        assert answer.json["broker"]["status"] == "unhealthy"
        assert (await client.ask("/readyz")).status == 200, "it still records"
        boat.problem = "the disk is full"
        for path, status in (("/healthz", "unhealthy"), ("/readyz", "unavailable")):
            answer = await client.ask(path)
            assert (answer.status, answer.json["status"], answer.json["detail"]) == (503, status, boat.problem)
            client.key = None
            answer = await client.ask(path)
            assert (answer.status, answer.json) == (503, {"status": status})
            client.key = "one-key-for-tests"
        assert (await client.ask("/livez")).json == {"status": "ok"}


async def test_metrics_have_the_names_of_lplex() -> None:
    boat = Boat(uplink=uplink_statistics(cursor=5, missing=(range(2, 4),)))
    boat.record(columns(range(1, 11)))
    async with serving(boat.http().server) as client:
        answer = await client.ask("/metrics")
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = answer.body.decode().splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert values["lplex_replication_connected"] == "1"
        assert values["lplex_replication_live_lag_seqs"] == "5"
        assert values["lplex_replication_backfill_remaining_seqs"] == "2"
        assert values["lplex_replication_last_ack_timestamp_seconds"] == "1750000058.5"
        assert values["lplex_replication_live_frames_sent_total"] == "7"
        assert values["lplex_replication_backfill_blocks_sent_total"] == "2"
        assert values["lplex_replication_backfill_bytes_sent_total"] == "999"
        assert values["lplex_replication_reconnects_total"] == "1"
        assert values["lplex_journal_drops_total"] == "0"
        assert values["lplex_journal_blocks_written_total"] == "4"
        assert values["lplex_journal_bytes_written_total"] == "5000"
        assert values["tidelog_journal_head_seq"] == "10"
        for name in {line.split("{")[0].split()[0] for line in lines if not line.startswith("#")}:
            kind = "counter" if name.endswith("_total") else "gauge"
            assert lines.count(f"# TYPE {name} {kind}") == 1


# --- frames --------------------------------------------------------------------------------------


async def test_events_are_the_frames_of_the_bus_and_what_becomes_known_of_devices() -> None:
    boat = Boat()
    boat.record(columns(range(1, 4)))
    async with serving(boat.http().server) as client:
        async with client.events("/events") as events, client.events("/events?manufacturer=Maretron") as chosen:
            boat.record(columns(range(4, 6)))
            assert [(await events.next() or {})["seq"] for _ in range(2)] == [4, 5]
            boat.introduce(9)
            found = [await events.next() for _ in range(4)]
            assert [event.get("pgn", event.get("type")) for event in found if event] == [
                60928,
                126996,
                "device",
                "device",
            ]
            boat.record(columns(range(6, 7), can_id=0x09F8_0109))
            # A reader's filter knows what the registry knows by now, so the claim itself passes too.
            seen = [await chosen.next() for _ in range(5)]
            kinds = [event.get("type", event.get("src")) for event in seen if event]
            assert kinds == [9, 9, "device", "device", 9]
        answer = await client.ask("/devices")
        assert [device["src"] for device in answer.json] == [9, 10]
        assert answer.json[0]["model_id"] == "GPS200"
        assert (await client.ask("/events?pgn=x")).status == 400
        answer = await client.ask("/events?decode=true")
        assert (answer.status, answer.json["error"]) == (400, "not_available")


async def test_values_show_the_latest_of_each() -> None:
    boat = Boat()
    boat.record(columns(range(1, 4)))
    boat.introduce(9)
    async with serving(boat.http().server) as client:
        answer = await client.ask("/values")
        assert [(device["src"], len(device["values"])) for device in answer.json] == [(9, 2), (10, 1)]
        assert answer.json[1]["values"][0]["seq"] == 3
        answer = await client.ask("/values?instance=3&pgn=60928")
        assert [(device["src"], len(device["values"])) for device in answer.json] == [(9, 1)]
        assert (await client.ask("/values?instance=x")).status == 400


async def test_history_comes_from_the_journal_sealed_or_not() -> None:
    boat = Boat()
    boat.record(columns(range(1, 5001)))
    boat.journal.seal_all(NOW_US)
    boat.record(columns(range(5001, 6001)))
    everything = columns(range(1, 6001))
    expected = [json.loads(text) for text in frame_texts(frame_seqs(1, 6000), everything)]
    async with serving(boat.http().server) as client:
        assert (await client.ask("/history?from=2020-01-01T00:00:00Z")).json == expected
        since, until = time_text(START_US + 500 * 4000), time_text(START_US + 500 * 5500)
        answer = await client.ask(f"/history?from={since}&to={until}")
        assert answer.json == expected[3999:5499]
        answer = await client.ask(f"/history?from={since}&to={until}&limit=3")
        assert answer.json == expected[3999:4002]
        assert (await client.ask(f"/history?from={since}&to={until}&pgn=1")).json == []
        assert len((await client.ask(f"/history?from={since}&src=10&pgn=129025")).json) == 2001
        assert (await client.ask("/history?from=2030-01-01T00:00:00%2B02:00")).json == []
        assert (await client.ask("/history?from=2030-01-01T00:00:00+02:00")).json == []


async def test_history_shows_each_frame_once_when_sealing_overtakes_it() -> None:
    boat = Boat()
    rng = random.Random(1)
    # Noise does not compress, so each of these blocks is more than is read ahead.
    for start in range(1, 40_001, 8_000):
        rows = [(START_US + number, 0x09F8_0101, rng.randbytes(223)) for number in range(start, start + 8_000)]
        boat.record(FrameColumns.from_rows(rows))
    seqs: list[int] = []
    sealed = False
    async for block in journal_history(boat.journal, from_us=START_US, to_us=NOW_US):
        seqs += range(block.base_seq, block.base_seq + len(block.frames))
        if not sealed:
            boat.journal.seal_all(NOW_US)
            sealed = True
    assert seqs == list(range(1, 40_001))


async def test_history_refuses_what_it_cannot_do() -> None:
    boat = Boat()
    async with serving(boat.http().server) as client:
        for query in (
            "",
            "?to=2026-01-01T00:00:00Z",
            "?from=yesterday",
            "?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z",
            "?from=2026-01-02T00:00:00Z&limit=0",
            "?from=2026-01-02T00:00:00Z&limit=1000001",
            "?from=2026-01-02T00:00:00Z&from=2026-01-02T00:00:00Z",
            "?from=2026-01-02T00:00:00Z&pgn=x",
            "?from=2026-01-02T00:00:00Z&decode=true",
            "?from=2026-01-02T00:00:00Z&interval=10s",
        ):
            assert (await client.ask(f"/history{query}")).status == 400, query


async def test_history_without_a_limit_stops_at_ten_thousand() -> None:
    boat = Boat()
    boat.record(columns(range(1, 12_001)))
    async with serving(boat.http().server) as client:
        since = time_text(START_US)
        assert len((await client.ask(f"/history?from={since}")).json) == 10_000
        assert len((await client.ask(f"/history?from={since}&limit=11500")).json) == 11_500


# --- who may ask ---------------------------------------------------------------------------------


async def test_a_token_for_another_boat_sees_nothing_of_this_one(tmp_path: Any) -> None:
    boat = Boat()
    own, other = new_token(name="own", instances=["boat-0*"]), new_token(name="other", instances=["tug"])
    narrow = new_token(name="narrow", scopes=[READ_DATA])
    path = tmp_path / "tokens"
    path.write_text(f"{own.line}\n{other.line}\n{narrow.line}\n")
    path.chmod(0o600)
    async with serving(boat.http(access=AccessOptions(token_file=path)).server, key=own.secret) as client:
        assert (await client.ask("/devices")).status == 200
        assert "broker" in (await client.ask("/healthz")).json
        client.key = other.secret
        for route in ("/devices", "/values", "/replication/status", "/metrics", "/events"):
            assert (await client.ask(route, check=False)).status == 404
        assert (await client.ask("/healthz")).json == {"status": "ok"}
        client.key = narrow.secret
        assert (await client.ask("/devices")).status == 200
        answer = await client.ask("/metrics")
        assert (answer.status, READ_METRICS in answer.json["detail"]) == (403, True)
        assert "insufficient_scope" in answer.headers["WWW-Authenticate"]


async def test_every_route_of_the_document_can_be_asked() -> None:
    boat = Boat()
    boat.record(columns(range(1, 5)))
    async with serving(boat.http().server) as client:
        asked = {path for path, item in client.server.document["paths"].items() if "get" in item}
        asked.remove("/clients/{client}/events")  # needs a session: test_boat_clients
        for template in asked:
            if template == "/events":
                async with client.events(template):
                    continue
            query = "?from=2020-01-01T00:00:00Z" if template == "/history" else ""
            assert (await client.ask(template + query)).status == 200
        assert client.seen == asked
