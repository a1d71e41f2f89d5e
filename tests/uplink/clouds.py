"""A whole cloud, as `tidelog cloud` runs it, for tests: with TLS files on disk, or in plaintext."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.patience import wait_until
from tests.uplink.parties import HOST, Fleet, log_of
from tidelog.cluster.boats.view import InstanceStatus
from tidelog.cluster.http.store_view import StoreView
from tidelog.cluster.node.cloud import Cloud, CloudOptions
from tidelog.cluster.node.process import Node
from tidelog.cluster.uplink.instance import Instance
from tidelog.cluster.uplink.maintenance import MaintenanceOptions
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.writer import wall_clock_us
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store.parts import StoreOptions
from tidelog.storage.store.recovery import open_store
from tidelog.storage.store.store import Store

QUICK = MaintenanceOptions(state_interval_ms=50)


class TlsFolder:
    """The files that a cloud is given; a roll replaces them."""

    def __init__(self, folder: Path, fleet: Fleet) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.cert, self.key, self.authority = folder / "node.pem", folder / "node.key", folder / "boats.pem"
        self.cert.write_bytes(fleet.node.certificate)
        self.key.write_bytes(fleet.node.key)
        self.authority.write_bytes(fleet.boats.certificate_pem)


class CloudHouse:
    """A running `Cloud` and shortcuts into it."""

    def __init__(self, cloud: Cloud, folder: Path, lines: list[str]) -> None:
        self.cloud = cloud
        self.folder = folder
        self.lines = lines

    @property
    def port(self) -> int:
        return self.cloud.port

    @property
    def view(self) -> StoreView:
        assert self.cloud.view is not None
        return self.cloud.view

    @property
    def node(self) -> Node:
        assert self.cloud.node is not None
        return self.cloud.node

    @property
    def store(self) -> Store:
        return self.node.channel_logs._store

    def instance(self, name: str) -> Instance:
        assert self.cloud.service is not None
        return self.cloud.service.instances[name]

    def status(self, name: str) -> InstanceStatus:
        found = self.view.instance(name)
        assert found is not None
        return found

    def log(self, name: str) -> Log:
        return log_of(self.node, name)

    def events(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """Oldest first."""
        return [(event.type, event.detail) for event in reversed(self.view.events(name, 1_024))]

    async def wait_ready(self) -> None:
        await wait_until(lambda: self.view.ready()[0], "every boat is listed")


@contextlib.asynccontextmanager
async def running_cloud(
    folder: Path, tls: TlsFolder | None = None, *, store: StoreOptions | None = None, **options: Any
) -> AsyncIterator[CloudHouse]:
    """Nothing is asked of a boat's ring: the lplex boats of these tests have a journal alone."""
    lines: list[str] = []
    options["limits"] = replace(options.get("limits", ReceiverLimits()), ring_frames=0)
    files = {"tls_cert": tls.cert, "tls_key": tls.key, "tls_client_ca": tls.authority} if tls is not None else {}
    cloud = Cloud(
        CloudOptions(
            data_dir=folder,
            grpc_listen=f"{HOST}:0",
            insecure_dev=tls is None,
            store=store or StoreOptions(log=LogOptions(reserve_bytes=0)),
            **{"maintenance": QUICK, **files, **options},
        ),
        log=lines.append,
    )
    await cloud.start()
    try:
        yield CloudHouse(cloud, folder, lines)
    finally:
        await cloud.stop()


def saved(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name / "state.json").read_text())
    return found


def log_end_on_disk(folder: Path, name: str) -> int:
    """The log end of a boat's channel, read from the folder of a stopped cloud."""
    store = open_store(OsDisk(folder), now_us=wall_clock_us())
    try:
        return store.log(name, now_us=wall_clock_us()).log_end
    finally:
        store.close(wall_clock_us())
