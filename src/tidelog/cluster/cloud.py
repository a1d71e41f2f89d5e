"""A cloud of one node: a store, its committer, the uplink service on a TLS port, its keeper, and HTTP.

Everything of the node's own lies under `.tidelog` in the data folder; beside it each boat has a folder with its
state file, which people may read.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import grpc

from tidelog.cluster.cloud_http import CloudHttp
from tidelog.cluster.keeper import Keeper, KeeperOptions
from tidelog.cluster.store_view import StoreView
from tidelog.cluster.tls_reload import TlsFiles, TlsReloader
from tidelog.cluster.uplink_instance import Instance
from tidelog.cluster.uplink_service import MESSAGE_BYTES_MAX, UplinkService
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import InvalidConfig
from tidelog.http.server import HttpOptions
from tidelog.storage.options import LogOptions, Retention
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store import Store, StoreOptions, open_store
from tidelog.storage.writer import Committer, wall_clock_us
from tidelog.units import KIB, MIB
from tidelog.wire.identity import is_fleet
from tidelog.wire.revocation import RevocationList

_FLOW_CONTROL: Final = (
    # gRPC's probing for the right window costs a boat with little to say a tenth of its bytes. Without it the window
    # stays as it is here: room for the Backfill that a boat keeps unanswered, however long the link.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 * MIB),
)
_KEEPALIVE: Final = (
    # A boat that vanished is noticed within half a minute. One that is there reports every 5 s, and is not asked.
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_STREAMS_STOP_S: Final = 1.0
_COMMIT_STOP_S: Final = 1.0
_SAVE_STOP_S: Final = 1.0
_SEGMENTS_KEPT: Final = 8
"""Retention drops whole segments, so a channel keeps up to one part in so many too much."""
_SEGMENT_AGE_MIN_MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudOptions:
    data_dir: Path
    grpc_listen: str = ":9443"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    """The authority that signs boats; every boat must show a certificate of it."""
    revocations: Path | None = None
    fleet: str | None = None
    """Boats whose certificate names another fleet are refused. One that names none is not."""
    http: HttpOptions | None = None
    """None serves no HTTP."""
    insecure_dev: bool = False
    limits: ReceiverLimits = field(default_factory=ReceiverLimits)
    store: StoreOptions = field(default_factory=StoreOptions)
    keeper: KeeperOptions = field(default_factory=KeeperOptions)

    def __post_init__(self) -> None:
        problems = []
        if not self.insecure_dev and None in (self.tls_cert, self.tls_key, self.tls_client_ca):
            problems.append("tls-cert, tls-key and tls-client-ca are needed; insecure-dev serves plaintext for tests")
        if self.fleet is not None and not is_fleet(self.fleet):
            problems.append(f"{self.fleet!a} is not a fleet: use lower-case letters, digits, dots and dashes")
        if self.store.log.retention != Retention():
            # The store's own sweep does not know of fold snapshots (F3).
            problems.append("retention belongs to the keeper, not to the store's log options")
        if problems:
            raise InvalidConfig(section="cloud", problems=problems)


class Cloud:
    """Started and stopped once. `port` is the one that was bound, for a listen address ending in :0."""

    def __init__(self, options: CloudOptions, *, log: Callable[[str], None] = lambda _: None) -> None:
        self._options = options
        self._log = log
        self._server: grpc.aio.Server | None = None
        self._committer: Committer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.keeper: Keeper | None = None
        self.store: Store | None = None
        self.service: UplinkService | None = None
        self.view: StoreView | None = None
        self.http: CloudHttp | None = None
        self.port = 0

    async def start(self) -> None:
        """Open everything; what was opened before a failure is closed again."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        options = self._options
        options.data_dir.mkdir(parents=True, exist_ok=True)
        revocations = (
            RevocationList(options.revocations, now_us=wall_clock_us()) if options.revocations is not None else None
        )
        if options.http is not None:
            # Before the store, which may take its time: alive, and not ready.
            self.http = CloudHttp(options.http, revocations=revocations, log=self._log)
            await self.http.start()
        disk = OsDisk(options.data_dir)
        store_options = replace(options.store, log=_log_options(options.store.log, options.keeper.retention))
        self.store = await asyncio.to_thread(open_store, disk, now_us=wall_clock_us(), options=store_options)
        committer = self._committer = Committer(self.store)
        service = self.service = UplinkService(
            store=self.store,
            committer=committer,
            limits=options.limits,
            new_lineage=lambda: uuid.uuid4().bytes,
            revocations=revocations,
            insecure_dev=options.insecure_dev,
            fleet=options.fleet,
            save_soon=self._save_soon,
        )
        self.view = StoreView(service)
        if self.http is not None:
            self.http.view = self.view
        self.keeper = Keeper(service=service, committer=committer, options=options.keeper, log=self._log)
        # Without this a second cloud on the same port would start silently and take half of the boats.
        settings = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), *_FLOW_CONTROL]
        settings += _KEEPALIVE
        server = self._server = grpc.aio.server(options=settings)
        server.add_generic_rpc_handlers((service.handler(),))
        self.port = self._bind(server)
        await server.start()
        self._tasks = [asyncio.ensure_future(service.run_acks()), asyncio.ensure_future(self.keeper.run())]
        for task in self._tasks:
            task.add_done_callback(self._ended)
        recovery = self.store.recovery
        self._log(f"cloud up port={self.port} channels={len(self.store.channels)} clean={recovery and recovery.clean}")

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Both run until the stop; one that ends before it is a bug, and the cloud is no longer ready."""
        if not task.cancelled() and (error := task.exception()) is not None and self.service is not None:
            self.service.broken = f"a part of the cloud stopped: {error!r}"
            self._log(f"cloud broken detail={self.service.broken!r}")

    def _save_soon(self, instance: Instance) -> None:
        if self.keeper is not None:
            self.keeper.save_soon(instance)

    def _bind(self, server: grpc.aio.Server) -> int:
        options = self._options
        address = options.grpc_listen if not options.grpc_listen.startswith(":") else f"0.0.0.0{options.grpc_listen}"
        try:
            if options.insecure_dev:
                return int(server.add_insecure_port(address))
            assert options.tls_key is not None
            assert options.tls_cert is not None
            assert options.tls_client_ca is not None
            files = TlsFiles(certificate=options.tls_cert, key=options.tls_key, client_authority=options.tls_client_ca)
            return int(server.add_secure_port(address, TlsReloader(files, log=self._log).credentials()))
        except RuntimeError as error:
            raise InvalidConfig(section="grpc.listen", problems=[f"cannot listen on {address}: {error}"]) from error

    async def stop(self) -> None:
        """Refuse new streams, end the running ones, commit what is queued, write the state files, close the store.

        Nothing here waits for a boat: one that does not read is hung up on.
        """
        if self.http is not None:
            await self.http.stop()
        if self.service is not None:
            self.service.close()
        if self._server is not None:
            await self._server.stop(_STREAMS_STOP_S)
        if self.service is not None and self.keeper is not None and self._tasks:
            acks, keeping = self._tasks
            acks.cancel()
            self.keeper.stop()
            await asyncio.wait({acks, keeping}, timeout=_COMMIT_STOP_S)
            keeping.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_COMMIT_STOP_S):
                    for instance in self.service.instances.values():
                        await instance.wait_settled()
            await self.keeper.save_all(deadline_s=_SAVE_STOP_S)
        if self._committer is not None:
            await asyncio.to_thread(self._committer.close)
            self._log("cloud down")


def _log_options(options: LogOptions, retention: Retention) -> LogOptions:
    """Segments small and young enough that retention, which drops whole ones, comes near its limits."""
    if retention.max_bytes is not None:
        segment_bytes = max(4 * KIB, min(options.segment_bytes_max, retention.max_bytes // _SEGMENTS_KEPT))
        options = replace(options, segment_bytes_max=segment_bytes)
    if retention.max_age_ms is not None and options.segment_age_max_ms is None:
        age_ms = max(_SEGMENT_AGE_MIN_MS, retention.max_age_ms // _SEGMENTS_KEPT)
        options = replace(options, segment_age_max_ms=age_ms)
    return options
