"""A cloud's HTTP over a small cloud in memory, with real feeds and registries."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.http.parties import KEY, START_US, Client, columns, options, serving
from tests.patience import wait_until
from tidelog.blocks.columns import FrameColumns
from tidelog.cluster.boats.view import FrameBlock, InstanceStatus, ReplicationEvent
from tidelog.cluster.http.cloud_http import CloudHttp
from tidelog.errors import DiskError, UnknownChannel
from tidelog.http.access import READ_STATUS, AccessOptions, new_token
from tidelog.http.feed import FrameFeed
from tidelog.http.frames import frame_seqs, frame_texts, time_text
from tidelog.http.routes import Limits
from tidelog.nmea.devices import Device, DeviceRegistry


class SmallCloud:
    """A `CloudView` of what the test put into it."""

    def __init__(self, *names: str) -> None:
        self.statuses = {name: status(name) for name in names}
        self.feeds = {name: FrameFeed() for name in names}
        self.registries = {name: DeviceRegistry() for name in names}
        self.blocks: dict[str, list[FrameBlock]] = {name: [] for name in names}
        self.happened: list[ReplicationEvent] = []
        self.is_ready = (True, "")
        self.breaks_after: int | None = None
        self.histories_open = 0
        self.loading: set[str] = set()

    def take(self, name: str, base_seq: int, numbers: range) -> None:
        frames = columns(numbers)
        self.blocks[name].append(FrameBlock(base_seq, frames))
        self.feeds[name].publish(base_seq, frames)
        self.feeds[name].publish_devices(self.registries[name].receive(frames))

    def instances(self) -> list[InstanceStatus]:
        return list(self.statuses.values())

    def instance(self, name: str) -> InstanceStatus | None:
        return self.statuses.get(name)

    def events(self, name: str, limit: int) -> list[ReplicationEvent]:
        return self.happened[-limit:][::-1]

    def devices(self, name: str) -> list[Device]:
        return self.registries[name].devices() if name in self.registries else []

    def feed(self, name: str) -> FrameFeed:
        if name not in self.feeds:
            raise UnknownChannel(channel=name)
        return self.feeds[name]

    def history(self, name: str, *, from_us: int, to_us: int) -> AsyncIterator[FrameBlock]:
        # Held on to, so that it ends when it is closed and not when it is forgotten.
        self.last_history = self._history(name)
        return self.last_history

    async def _history(self, name: str) -> AsyncIterator[FrameBlock]:
        self.histories_open += 1
        try:
            for place, block in enumerate(self.blocks[name]):
                if place == self.breaks_after:
                    raise DiskError(operation="read", path="segment", reason="rot")
                await asyncio.sleep(0)
                yield block
        finally:
            self.histories_open -= 1

    def is_loading(self, name: str) -> bool:
        return name in self.loading

    def ready(self) -> tuple[bool, str]:
        return self.is_ready


def status(name: str, **changes: Any) -> InstanceStatus:
    facts: dict[str, Any] = {
        "id": name,
        "connected": True,
        "cursor": 100,
        "head": 150,
        "journal_bytes": 4096,
        "holes": (range(101, 120), range(130, 140)),
        "lost": (range(3, 5),),
        "void": (),
        "lineage": "ab" * 16,
        "session": 7,
        "last_seen_us": START_US,
        "frames_received": 12,
        "frames_by_live": 10,
        "frames_by_backfill": 2,
    }
    return InstanceStatus(**(facts | changes))


def served(cloud: SmallCloud | None, **changes: Any) -> CloudHttp:
    return CloudHttp(options(**changes), view=cloud)


# --- status --------------------------------------------------------------------------------------


async def test_instances_are_listed_by_id_with_a_count_of_holes() -> None:
    cloud = SmallCloud("tug", "boat-2", "boat-1")
    cloud.statuses["tug"] = status("tug", cursor=200, holes=(), last_seen_us=0, connected=False)
    async with serving(served(cloud).server) as client:
        listed = (await client.ask("/instances")).json["instances"]
        assert [one["id"] for one in listed] == ["boat-1", "boat-2", "tug"]
        assert listed[0] == {
            "id": "boat-1",
            "connected": True,
            "cursor": 100,
            "boat_head_seq": 150,
            "holes": 2,
            "lag_seqs": 50,
            "last_seen": time_text(START_US),
        }
        assert (listed[2]["lag_seqs"], listed[2]["last_seen"]) == (0, "0001-01-01T00:00:00Z")
    async with serving(served(SmallCloud()).server) as client:
        assert (await client.ask("/instances")).json == {"instances": []}


async def test_status_has_the_keys_of_lplex_first() -> None:
    cloud = SmallCloud("boat-1", "whole")
    cloud.statuses["whole"] = status("whole", cursor=150, holes=())
    async with serving(served(cloud).server) as client:
        answer = (await client.ask("/instances/boat-1/status")).json
        assert list(answer)[:8] == [
            "id",
            "connected",
            "cursor",
            "boat_head_seq",
            "boat_journal_bytes",
            "holes",
            "lag_seqs",
            "last_seen",
        ]
        assert answer["holes"] == [{"start": 101, "end": 120}, {"start": 130, "end": 140}]
        assert answer["lost"] == [{"start": 3, "end": 5}]
        answer = (await client.ask("/instances/whole/status")).json
        assert (answer["holes"], answer["lag_seqs"]) == ([], 0)
        for path in ("status", "events", "devices", "values", "replication/events"):
            assert (await client.ask(f"/instances/nobody/{path}")).status == 404
        assert (await client.ask("/instances/nobody/history?from=2020-01-01")).status == 404
        assert (await client.ask("/instances/..%2Fboat-1/status")).status == 404
        cloud.loading.add("boat-9")
        early = await client.ask("/instances/boat-9/status")
        assert (early.status, early.json["error"]) == (503, "not_ready"), "not yet read is not unknown"


@pytest.mark.parametrize(
    ("query", "count"),
    [("", 100), ("?limit=5", 5), ("?limit=1024", 1024), ("?limit=9999", 1024)]
    + [(f"?limit={wrong}", 100) for wrong in ("0", "-5", "x", "", "1.5", "%D9%HA1")],
)
async def test_replication_events_are_newest_first_and_limited_as_lplex_does(query: str, count: int) -> None:
    cloud = SmallCloud("boat-1")
    async with serving(served(cloud).server) as client:
        assert (await client.ask(f"/instances/boat-1/replication/events{query}")).json == []
        cloud.happened = [
            ReplicationEvent(time_us=START_US + number, type="checkpoint", detail={"cursor": number})
            for number in range(2000)
        ]
        found = (await client.ask(f"/instances/boat-1/replication/events{query}")).json
        assert [event["detail"]["cursor"] for event in found] == list(range(1999, 1999 - count, -1))
        assert found[0] == {"time": time_text(START_US + 1999), "type": "checkpoint", "detail": {"cursor": 1999}}


# --- data ----------------------------------------------------------------------------------------


async def test_events_devices_and_values_of_one_boat_are_its_own() -> None:
    cloud = SmallCloud("boat-1", "boat-2")
    async with serving(served(cloud).server) as client:
        base = "/instances/boat-1"
        async with client.events(f"{base}/events") as one, client.events("/instances/boat-2/events") as two:
            cloud.take("boat-1", 11, range(1, 4))
            cloud.take("boat-2", 21, range(1, 3))
            assert [(await one.next() or {})["seq"] for _ in range(3)] == [11, 12, 13]
            assert [(await two.next() or {})["seq"] for _ in range(2)] == [21, 22]
            assert (await one.next() or {})["type"] == "device"
        assert [device["src"] for device in (await client.ask(f"{base}/devices")).json] == [10]
        assert (await client.ask("/devices?instance=boat-1")).json == (await client.ask(f"{base}/devices")).json
        assert (await client.ask("/devices?instance=nobody")).status == 404
        assert (await client.ask("/devices")).status == 400
        [device] = (await client.ask(f"{base}/values")).json
        assert [value["seq"] for value in device["values"]] == [13]
        assert (await client.ask(f"{base}/values?pgn=1")).json == []


async def test_decoded_values_of_one_boat_have_fields_by_name() -> None:
    pytest.importorskip("nmea2000")

    cloud = SmallCloud("boat-1", "boat-2")
    latitude, longitude = round(47.6062 * 1e7), round(-122.3321 * 1e7)
    position = latitude.to_bytes(4, "little") + longitude.to_bytes(4, "little", signed=True)
    cloud.feeds["boat-1"].publish(40, FrameColumns.from_rows([(START_US, 0x09F8_010A, position)]))
    async with serving(served(cloud).server) as client:
        path = "/instances/boat-1/values/decoded"
        [device] = (await client.ask(path)).json
        assert device["src"] == 10
        [value] = device["values"]
        assert (value["pgn"], value["seq"], value["ts"]) == (129025, 40, time_text(START_US))
        assert value["fields"] == value["decoded"]
        assert value["fields"]["latitude"] == pytest.approx(47.6062)
        assert value["fields"]["longitude"] == pytest.approx(-122.3321)
        assert (await client.ask(f"{path}?pgn=1")).json == []
        assert (await client.ask(f"{path}?pgn=x")).status == 400
        assert (await client.ask("/instances/boat-2/values/decoded")).json == []
        assert (await client.ask("/instances/nobody/values/decoded")).status == 404


async def test_history_is_sorted_by_time_inside_a_block_only() -> None:
    cloud = SmallCloud("boat-1")
    frames = columns(range(1, 4))
    frames.times_us[:] = [START_US + 30, START_US + 10, START_US + 20]
    cloud.blocks["boat-1"] = [FrameBlock(101, frames), FrameBlock(1, columns(range(0, 2)))]
    async with serving(served(cloud).server) as client:
        answer = await client.ask(f"/instances/boat-1/history?from={time_text(START_US)}")
        assert [frame["seq"] for frame in answer.json] == [102, 103, 101, 1, 2]
        answer = await client.ask(f"/instances/boat-1/history?from={time_text(START_US)}&limit=2")
        assert [frame["seq"] for frame in answer.json] == [102, 103]
        until = time_text(START_US + 20)
        answer = await client.ask(f"/instances/boat-1/history?from={time_text(START_US)}&to={until}")
        assert [frame["seq"] for frame in answer.json] == [102, 1]
        head = await client.ask("/instances/boat-1/history?from=2020-01-01", method="HEAD")
        assert (head.status, head.body) == (200, b"")
    assert cloud.histories_open == 0


async def test_history_of_many_small_blocks_is_the_same_zipped_or_not() -> None:
    cloud = SmallCloud("boat-1")
    cloud.blocks["boat-1"] = [FrameBlock(number, columns(range(number, number + 1))) for number in range(1, 9001)]
    expected = [json.loads(text) for text in frame_texts(frame_seqs(1, 9000), columns(range(1, 9001)))]
    async with serving(served(cloud).server) as client:
        for coding in ("gzip", "identity"):
            path = f"/instances/boat-1/history?from={time_text(START_US)}"
            answer = await client.ask(path, headers={"Accept-Encoding": coding})
            assert (answer.headers.get("Content-Encoding") == "gzip") == (coding == "gzip")
            assert answer.json == expected


async def test_history_that_breaks_off_does_not_look_whole() -> None:
    cloud = SmallCloud("boat-1")
    cloud.blocks["boat-1"] = [FrameBlock(1 + start, columns(range(start, start + 3000))) for start in (0, 3000)]
    async with serving(served(cloud).server) as client:
        cloud.breaks_after = 0
        answer = await client.ask("/instances/boat-1/history?from=2020-01-01")
        assert (answer.status, answer.json["error"]) == (500, "disk_error")
        cloud.breaks_after = 1
        with pytest.raises(aiohttp.ClientError):
            await client.ask("/instances/boat-1/history?from=2020-01-01")
        cloud.breaks_after = None
        assert len((await client.ask("/instances/boat-1/history?from=2020-01-01")).json) == 6000
    assert cloud.histories_open == 0


async def test_a_client_that_leaves_a_long_history_frees_it() -> None:
    cloud = SmallCloud("boat-1")
    block = FrameBlock(1, columns(range(10_000)))
    cloud.blocks["boat-1"] = [block] * 100
    async with serving(served(cloud).server) as client:
        path = client.url("/instances/boat-1/history?from=2020-01-01&limit=1000000")
        async with client.session.get(path, headers=client._headers(None)) as response:
            assert await response.content.readexactly(1) == b"["
            assert cloud.histories_open == 1
            response.close()
        await wait_until(lambda: cloud.histories_open == 0, "the history was let go")


# --- health, metrics, who may see ----------------------------------------------------------------


async def test_the_cloud_is_alive_before_it_is_ready() -> None:
    http = served(None)
    async with serving(http.server) as client:
        assert (await client.ask("/livez")).status == 200
        for path in ("/readyz", "/healthz"):
            answer = await client.ask(path)
            assert (answer.status, answer.json["status"]) == (503, "unavailable")
        answer = await client.ask("/instances")
        assert (answer.status, answer.json["error"]) == (503, "not_ready")
        cloud = http.view = SmallCloud("boat-1", "boat-2")
        cloud.statuses["boat-2"] = status("boat-2", connected=False)
        for path in ("/readyz", "/healthz"):
            answer = await client.ask(path)
            assert (answer.status, answer.json) == (
                200,
                {"status": "ok", "instances_total": 2, "instances_connected": 1},
            )
        cloud.is_ready = (False, "a sync failed")
        answer = await client.ask("/readyz")
        assert (answer.status, answer.json["detail"]) == (503, "a sync failed")
        client.key = None
        assert (await client.ask("/readyz")).json == {"status": "unavailable"}
        cloud.is_ready = (True, "")
        assert (await client.ask("/healthz")).json == {"status": "ok"}


async def series(client: Client) -> dict[str, str]:
    lines = (await client.ask("/metrics")).body.decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


async def test_metrics_have_the_names_of_lplex() -> None:
    cloud = SmallCloud("boat-1", "boat-2")
    cloud.statuses["boat-2"] = status("boat-2", connected=False, cursor=999)
    async with serving(served(cloud).server) as client:
        found = await series(client)
        assert found["lplex_cloud_instances_total"] == "2"
        assert found["lplex_cloud_instances_connected"] == "1"
        assert found['lplex_cloud_instance_connected{instance="boat-1"}'] == "1"
        assert found['lplex_cloud_instance_lag_seqs{instance="boat-1"}'] == "50"
        assert found['lplex_cloud_instance_lag_seqs{instance="boat-2"}'] == "0"
        assert found['lplex_cloud_instance_cursor{instance="boat-1"}'] == "100"
        assert found['lplex_cloud_instance_holes{instance="boat-1"}'] == "2"
        assert found['tidelog_instance_name_in_use_total{instance="boat-1"}'] == "0"
        cloud.statuses["boat-1"] = status("boat-1", name_in_use=3)
        assert (await series(client))['tidelog_instance_name_in_use_total{instance="boat-1"}'] == "3"
        await client.ask("/nothing")
        assert (await series(client))['tidelog_http_requests_total{status="404"}'] == "1"


async def test_a_token_sees_its_instances_and_the_others_do_not_exist(tmp_path: Path) -> None:
    cloud = SmallCloud("tug", "boat-1", "boat-2")
    token = new_token(name="dash", instances=["boat-*"])
    no_data = new_token(name="status", scopes=[READ_STATUS])
    path = tmp_path / "tokens"
    path.write_text(f"{token.line}\n{no_data.line}\n")
    path.chmod(0o600)
    access = AccessOptions(token_file=path, api_key=KEY)
    async with serving(served(cloud, access=access).server, key=token.secret) as client:
        listed = (await client.ask("/instances")).json["instances"]
        assert [one["id"] for one in listed] == ["boat-1", "boat-2"]
        assert (await client.ask("/instances/boat-1/status")).status == 200
        hidden, missing = await client.ask("/instances/tug/status"), await client.ask("/instances/gut/status")
        assert hidden.status == missing.status == 404
        assert hidden.json["detail"].replace("tug", "gut") == missing.json["detail"]
        assert (await client.ask("/devices?instance=tug")).status == 404
        assert (await client.ask("/healthz")).json["instances_total"] == 2
        assert not [name for name in await series(client) if "tug" in name]
        client.key = no_data.secret
        assert (await client.ask("/instances/tug/status")).status == 200
        answer = await client.ask("/instances/tug/devices")
        assert (answer.status, answer.json["error"]) == (403, "forbidden")
        assert "read:data" in answer.json["detail"]
        client.key = KEY
        assert [one["id"] for one in (await client.ask("/instances")).json["instances"]][-1] == "tug"


async def test_a_stream_ends_when_its_token_is_taken_back(tmp_path: Path) -> None:
    cloud = SmallCloud("boat-1")
    token, other = new_token(name="dash"), new_token(name="other")
    path = tmp_path / "tokens"
    path.write_text(f"{token.line}\n")
    path.chmod(0o600)
    http = served(cloud, access=AccessOptions(token_file=path), limits=Limits(recheck_s=0.05))
    async with (
        serving(http.server, key=token.secret) as client,
        client.events("/instances/boat-1/events") as events,
    ):
        cloud.take("boat-1", 1, range(1, 2))
        assert (await events.next() or {})["seq"] == 1
        assert (await events.next() or {})["type"] == "device"
        path.write_text(f"{other.line}\n")
        assert await events.next() is None
        await wait_until(lambda: cloud.feeds["boat-1"].readers == 0, "the reader is gone")


async def test_no_request_makes_the_server_fail() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    words = [
        "instances",
        "boat-1",
        "status",
        "history",
        "devices",
        "values",
        "replication",
        "events",
        "metrics",
        "healthz",
    ]
    words += ["", "..", "%2e%2e", "%00", "%ff", "%C3%BC", "a" * 300, "{id}", "*"]
    names = ["from", "to", "limit", "pgn", "src", "instance", "name", "manufacturer", "decode", "bus", "token", "%00"]
    values = [
        "",
        "0",
        "-1",
        "1",
        "129025",
        "x",
        "2026-01-01T00:00:00Z",
        "9" * 30,
        "%00",
        "%ff",
        "0001-01-01",
        "9999-12-31",
    ]
    values += ["true", "1e9", "2026-01-01T00:00:00%2B99:99", "10000-01-01", "boat-1", "0xfff"]

    cloud = SmallCloud("boat-1")
    cloud.take("boat-1", 1, range(1, 50))
    async with serving(served(cloud).server) as client:
        for _ in range(400):
            served_path = rng.choice(list(client.server.document["paths"])).replace("{id}", "boat-1")[1:]
            path = rng.choice([served_path, "/".join(rng.choices(words, k=rng.randrange(1, 5)))])
            query = "&".join(f"{rng.choice(names)}={rng.choice(values)}" for _ in range(rng.randrange(4)))
            url = URL(f"http://127.0.0.1:{client.server.port}/{path}?{query}", encoded=True)
            method = rng.choice(["GET", "GET", "GET", "HEAD", "PUT", "OPTIONS", "BREW"])
            async with client.session.request(method, url, headers=client._headers(None)) as response:
                assert response.status in (200, 400, 404, 405), f"{method} {url}"
                if response.headers["Content-Type"] != "text/event-stream":
                    await response.read()
        assert 500 not in client.server.statistics().requests


async def test_every_route_of_the_document_can_be_asked() -> None:
    cloud = SmallCloud("boat-1")
    cloud.take("boat-1", 1, range(1, 5))
    async with serving(served(cloud).server) as client:
        queries = {"/instances/{id}/history": "?from=2020-01-01T00:00:00Z", "/devices": "?instance=boat-1"}
        for template in client.server.document["paths"]:
            path = template.replace("{id}", "boat-1") + queries.get(template, "")
            if template.endswith("/events") and "replication" not in template:
                async with client.events(path):
                    continue
            assert (await client.ask(path)).status == 200
        assert client.seen == set(client.server.document["paths"])
