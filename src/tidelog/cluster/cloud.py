"""A cloud of one node: a store, its committer, and the uplink service on a TLS port."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from tidelog.cluster.uplink_service import MESSAGE_BYTES_MAX, UplinkService
from tidelog.core.uplink.receiver import ReceiverLimits
from tidelog.errors import InvalidConfig
from tidelog.storage.os_disk import OsDisk
from tidelog.storage.store import Store, StoreOptions, open_store
from tidelog.storage.writer import Committer, wall_clock_us
from tidelog.wire.files import read_file
from tidelog.wire.revocation import RevocationList

_PEM_BYTES_MAX = 256 * 1024
_STOP_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudOptions:
    data_dir: Path
    grpc_listen: str = ":9443"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    """The authority that signs boats; every boat must show a certificate of it."""
    revocations: Path | None = None
    insecure_dev: bool = False
    limits: ReceiverLimits = field(default_factory=ReceiverLimits)
    store: StoreOptions = field(default_factory=StoreOptions)

    def __post_init__(self) -> None:
        if not self.insecure_dev and None in (self.tls_cert, self.tls_key, self.tls_client_ca):
            raise InvalidConfig(
                section="cloud",
                problems=["tls-cert, tls-key and tls-client-ca are needed; insecure-dev serves plaintext for tests"],
            )


class Cloud:
    """Started and stopped once. `port` is the one that was bound, for a listen address ending in :0."""

    def __init__(self, options: CloudOptions, *, log: Callable[[str], None] = lambda _: None) -> None:
        self._options = options
        self._log = log
        self._server: grpc.aio.Server | None = None
        self._committer: Committer | None = None
        self._acks: asyncio.Task[None] | None = None
        self.store: Store | None = None
        self.service: UplinkService | None = None
        self.port = 0

    async def start(self) -> None:
        options = self._options
        options.data_dir.mkdir(parents=True, exist_ok=True)
        disk = OsDisk(options.data_dir)
        self.store = await asyncio.to_thread(open_store, disk, now_us=wall_clock_us(), options=options.store)
        self._committer = Committer(self.store)
        revocations = (
            RevocationList(options.revocations, now_us=wall_clock_us()) if options.revocations is not None else None
        )
        self.service = UplinkService(
            store=self.store,
            committer=self._committer,
            limits=options.limits,
            new_lineage=lambda: uuid.uuid4().bytes,
            revocations=revocations,
            insecure_dev=options.insecure_dev,
        )
        # Without this a second cloud on the same port would start silently and take half of the boats.
        settings = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX)]
        server = self._server = grpc.aio.server(options=settings)
        server.add_generic_rpc_handlers((self.service.handler(),))
        self.port = self._bind(server)
        await server.start()
        self._acks = asyncio.ensure_future(self.service.run_acks())
        recovery = self.store.recovery
        self._log(f"cloud up port={self.port} channels={len(self.store.channels)} clean={recovery and recovery.clean}")

    def _bind(self, server: grpc.aio.Server) -> int:
        options = self._options
        address = options.grpc_listen if not options.grpc_listen.startswith(":") else f"0.0.0.0{options.grpc_listen}"
        try:
            if options.insecure_dev:
                return int(server.add_insecure_port(address))
            assert options.tls_key is not None
            assert options.tls_cert is not None
            assert options.tls_client_ca is not None
            pair = (_pem(options.tls_key), _pem(options.tls_cert))
            credentials = grpc.ssl_server_credentials([pair], _pem(options.tls_client_ca), require_client_auth=True)
            return int(server.add_secure_port(address, credentials))
        except RuntimeError as error:
            raise InvalidConfig(section="grpc.listen", problems=[f"cannot listen on {address}: {error}"]) from error

    async def stop(self) -> None:
        """Refuse new streams, end the running ones, commit what is queued, close the store cleanly."""
        if self._server is not None:
            await self._server.stop(_STOP_S)
        if self._acks is not None:
            self._acks.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._acks
        if self._committer is not None:
            await asyncio.to_thread(self._committer.close)
        self._log("cloud down")


def _pem(path: Path) -> bytes:
    return read_file(path, bytes_max=_PEM_BYTES_MAX)
