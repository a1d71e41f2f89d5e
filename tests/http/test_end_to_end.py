"""A real boat and a real cloud with their HTTP servers: what goes in at the bus comes out everywhere, the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.http.parties import DEADLINE_S, START_US, Client, columns, options, serving
from tests.patience import patient, wait_until
from tidelog.blocks.columns import FrameColumns
from tidelog.cluster.http.cloud_http import CloudHttp
from tidelog.cluster.node.cloud import Cloud, CloudOptions
from tidelog.edge.boat import Boat, BoatOptions
from tidelog.edge.uplink.target import UplinkTarget
from tidelog.http.frames import time_text
from tidelog.storage.log.writer import wall_clock_us


class Bus:
    """A source that gives what the test puts on it."""

    ended = False

    def __init__(self) -> None:
        self.waiting: list[FrameColumns] = []

    def read(self, now_us: int) -> FrameColumns:
        frames, self.waiting = FrameColumns.concatenate(self.waiting), []
        return frames

    def wake_at_us(self) -> int | None:
        return None

    def close(self) -> None:
        pass


async def has(client: Client, path: str, **wanted: Any) -> None:
    async def holds() -> bool:
        answer = (await client.ask(path)).json
        return bool({key: answer[key] for key in wanted} == wanted)

    await wait_until(holds, f"{path} with {wanted}")


async def test_a_frame_of_the_bus_is_seen_on_the_boat_and_in_the_cloud(tmp_path: Path) -> None:
    cloud = Cloud(CloudOptions(data_dir=tmp_path / "cloud", grpc_listen="127.0.0.1:0", insecure_dev=True))
    await cloud.start()
    bus = Bus()
    # Frames of now: a boat soon forgets devices that were last heard long ago.
    frames = columns(range(1, 301))
    frames.times_us[:] += wall_clock_us() - START_US
    target = UplinkTarget(address=f"127.0.0.1:{cloud.port}", instance="tug", insecure_dev=True)
    boat = Boat(
        BoatOptions(journal_dir=tmp_path / "journal", target=target, instance="tug", http=options()),
        open_source=lambda: bus,
    )
    boating = asyncio.ensure_future(boat.run())
    try:
        async with serving(CloudHttp(options(), view=cloud.view).server) as in_cloud:

            async def is_known() -> bool:
                return bool((await in_cloud.ask("/instances")).json["instances"])

            await wait_until(is_known, "the boat shook hands")
            assert boat.http is not None
            on_boat = Client(boat.http.server, in_cloud.session)
            await has(on_boat, "/replication/status", connected=True, instance_id="tug")
            async with on_boat.events("/events") as here, in_cloud.events("/instances/tug/events") as there:
                bus.waiting.append(frames)
                for events in (here, there):
                    seen = [(await events.next() or {}).get("seq") for _ in range(300)]
                    assert seen == list(range(1, 301))
            await has(on_boat, "/replication/status", local_head_seq=300, cloud_cursor=300, live_lag=0, holes=[])
            await has(in_cloud, "/instances/tug/status", cursor=300, boat_head_seq=300, holes=[], connected=True)
            await has(in_cloud, "/healthz", status="ok", instances_connected=1)
            since = f"?from={time_text(int(frames.times_us[0]))}"
            history = (await in_cloud.ask(f"/instances/tug/history{since}")).json
            assert [frame["seq"] for frame in history] == list(range(1, 301))
            # The boat's own history begins once the frames are on its disk.
            await has(on_boat, "/replication/status", durable_head_seq=300)
            assert (await on_boat.ask(f"/history{since}")).json == history
            for path in ("/devices", "/values"):
                for answer in (await in_cloud.ask(f"/instances/tug{path}"), await on_boat.ask(path)):
                    assert [device["src"] for device in answer.json] == [10]
            events_json = (await in_cloud.ask("/instances/tug/replication/events")).json
            assert "live_start" in [event["type"] for event in events_json]
    finally:
        boat.stop()
        async with asyncio.timeout(patient(DEADLINE_S)):
            await boating
        await cloud.stop()


async def metric(client: Client, name: str) -> float:
    lines = (await client.ask("/metrics")).body.decode().splitlines()
    return float(next(line.split()[-1] for line in lines if line.split()[0] == name))


async def test_a_second_boat_under_one_name_is_counted_on_both_sides(tmp_path: Path) -> None:
    cloud = Cloud(CloudOptions(data_dir=tmp_path / "cloud", grpc_listen="127.0.0.1:0", insecure_dev=True))
    await cloud.start()
    target = UplinkTarget(address=f"127.0.0.1:{cloud.port}", instance="tug", insecure_dev=True)

    def boat(name: str) -> Boat:
        journal = tmp_path / name
        return Boat(BoatOptions(journal_dir=journal, target=target, instance="tug", http=options()), open_source=Bus)

    first, second = boat("first"), boat("second")
    tasks = [asyncio.ensure_future(first.run())]
    in_cloud_name, on_boat_name = "tidelog_instance_name_in_use_total", "tidelog_replication_name_in_use_total"
    try:
        async with serving(CloudHttp(options(), view=cloud.view).server) as in_cloud:
            await wait_until(lambda: _is_known(in_cloud), "the first shook hands")
            assert await metric(in_cloud, f'{in_cloud_name}{{instance="tug"}}') == 0
            tasks.append(asyncio.ensure_future(second.run()))

            async def is_counted() -> bool:
                return await metric(in_cloud, f'{in_cloud_name}{{instance="tug"}}') > 0

            await wait_until(is_counted, "the second was told to wait")
            assert first.http is not None
            assert second.http is not None
            on_first, on_second = (Client(one.http.server, in_cloud.session) for one in (first, second) if one.http)

            async def is_told() -> bool:
                return await metric(on_second, on_boat_name) > 0

            await wait_until(is_told, "it counts the dials that were told to wait")
            assert await metric(on_first, on_boat_name) == 0
            assert (await in_cloud.ask("/instances/tug/status")).json["name_in_use"] >= 1
    finally:
        for one in (first, second):
            one.stop()
        async with asyncio.timeout(patient(DEADLINE_S)):
            await asyncio.gather(*tasks)
        await cloud.stop()


async def _is_known(client: Client) -> bool:
    found = (await client.ask("/instances")).json["instances"]
    return bool(found) and bool(found[0]["connected"])
