"""A node's side of the uplink: the gRPC server for boats, who leads which boat, state files, and what is passed on.

What a caller must keep: `bind` before the node registers, so that the catalog hears the address; `start` once the
node's core runs; `stop` before the node's channels are handed over.

NU1  Boats are served once the node is registered and what an older cloud left on its disk is adopted (AD1).
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import grpc

from tidelog.cluster.clients.channel_admin import ChannelAdministration
from tidelog.cluster.http.relay import HttpRelay
from tidelog.cluster.http.store_view import StoreView
from tidelog.cluster.local_channels import LocalChannels
from tidelog.cluster.uplink.boats import Boats
from tidelog.cluster.uplink.identity import UplinkIdentity
from tidelog.cluster.uplink.instance import Instance
from tidelog.cluster.uplink.maintenance import BoatMaintenance
from tidelog.cluster.uplink.options import RelayOptions, UplinkOptions
from tidelog.cluster.uplink.relay import MESSAGE_BYTES_MAX, UplinkRelay
from tidelog.cluster.uplink.service import UplinkService
from tidelog.cluster.uplink.tls_reload import TlsFiles, TlsReloader
from tidelog.errors import InvalidConfig, LogError
from tidelog.pki.revocation import RevocationList
from tidelog.storage.disk import Disk
from tidelog.storage.log.writer import wall_clock_us
from tidelog.transports.link.socket import reached_host
from tidelog.units import MIB

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
_LAST_SNAPSHOT_BYTES: Final = 1 * MIB
_OPEN_LOOK_S: Final = 0.02
_TRY_AGAIN_S: Final = 0.5


class NodeUplink:
    """Started and stopped once. `port` is the one that was bound, for a listen address ending in :0."""

    def __init__(
        self,
        channels: LocalChannels,
        options: UplinkOptions,
        *,
        admin: ChannelAdministration,
        adopt: Callable[[], Awaitable[None]],
        relaying: RelayOptions,
        disk: Disk,
        log: Callable[[str], None],
    ) -> None:
        """`adopt` takes over what an older cloud left on this disk (AD1)."""
        self._channels = channels
        self._options = options
        self._adopt = adopt
        self._relaying = relaying
        self._log = log
        self._server: grpc.aio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unwatch: Callable[[], None] = lambda: None
        self.port = 0
        self._address = ""
        self.boats = Boats(
            channels,
            admin=admin,
            disk=disk,
            limits=options.limits,
            new_lineage=lambda: uuid.uuid4().bytes,
            config=options.channel_config,
            save_soon=self._save_soon,
        )
        self.relay = UplinkRelay(self.boats, relaying)
        self.service = UplinkService(
            boats=self.boats,
            identity=self._identity(),
            relay=self.relay,
            own_address=lambda: self._address,
            log=log,
        )
        self.maintenance = BoatMaintenance(boats=self.boats, options=options.maintenance, log=log)
        self.view = StoreView(self.service)
        self.http_relay = HttpRelay(channels, self.boats, relaying)

    def _identity(self) -> UplinkIdentity:
        options, relaying = self._options, self._relaying
        return UplinkIdentity(
            insecure_dev=options.insecure_dev,
            fleet=options.fleet,
            revocations=_revocations(options.revocations),
            node_authority=relaying.authority,
            node_revocations=_revocations(relaying.revocations),
        )

    def _save_soon(self, instance: Instance) -> None:
        self.maintenance.save_soon(instance)

    def advertised(self, host: str) -> str:
        """Where boats and other nodes find this one; `host` is where the node is found otherwise."""
        options = self._options
        self._address = options.advertise or f"{reached_host(options.listen, host)}:{self.port}"
        return self._address

    # --- start and stop ------------------------------------------------------------------------------------

    def bind(self) -> None:
        """Take the port; nobody is served yet."""
        # Without this a second node on the same port would start silently and take half of the boats.
        settings = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX), *_FLOW_CONTROL]
        settings += _KEEPALIVE
        server = self._server = grpc.aio.server(options=settings)
        server.add_generic_rpc_handlers((self.service.handler(),))
        options = self._options
        address = options.listen if not options.listen.startswith(":") else f"0.0.0.0{options.listen}"
        try:
            if options.insecure_dev:
                self.port = int(server.add_insecure_port(address))
                return
            assert options.tls_key is not None
            assert options.tls_cert is not None
            assert options.tls_client_ca is not None
            # Nodes that pass boats' calls on show a certificate of their own authority.
            others = () if self._relaying.authority is None else (self._relaying.authority,)
            files = TlsFiles(
                certificate=options.tls_cert,
                key=options.tls_key,
                client_authority=options.tls_client_ca,
                other_authorities=others,
            )
            self.port = int(server.add_secure_port(address, TlsReloader(files, log=self._log).credentials()))
        except RuntimeError as error:
            raise InvalidConfig(section="grpc.listen", problems=[f"cannot listen on {address}: {error}"]) from error

    async def start(self) -> None:
        """Serve; boats wait until the node is registered (NU1)."""
        assert self._server is not None, "bind() first"
        self._unwatch = self._channels.watch(self.boats.moved)
        await self._server.start()
        self._tasks = [
            asyncio.ensure_future(work)
            for work in (self.service.run_acks(), self.maintenance.run(), self._open_when_registered())
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """They run until the stop; one that fails before it is a bug, and boats are no longer served well."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.service.broken = f"a part of the uplink stopped: {error!r}"
            self._log(f"uplink broken detail={self.service.broken!r}")
            if not self._opened.done():
                self._opened.set_exception(error)

    async def _open_when_registered(self) -> None:
        while True:
            await asyncio.sleep(_OPEN_LOOK_S)
            if not self._channels.is_registered:
                continue
            try:
                await self._adopt()
                break
            except LogError as error:
                if not error.retriable:
                    raise
                self._log(f"uplink not open yet code={error.code} detail={str(error)!r}")
                await asyncio.sleep(_TRY_AGAIN_S)
        self.service.open()
        self._log(f"uplink up port={self.port}")
        if not self._opened.done():
            self._opened.set_result(None)

    async def wait_open(self) -> None:
        """Until boats are served."""
        await asyncio.shield(self._opened)

    async def stop(self) -> None:
        """Refuse new streams, end the running ones, commit what is queued, write the state files.

        Nothing here waits for a boat: one that does not read is hung up on.
        """
        self.service.close()
        if self._server is not None:
            await self._server.stop(_STREAMS_STOP_S)
        await self.relay.close()
        await self.http_relay.close()
        if not self._tasks:
            return
        acks, keeping, opening = self._tasks
        for task in (acks, opening):
            task.cancel()
        self.maintenance.stop()
        await asyncio.wait({acks, keeping, opening}, timeout=_COMMIT_STOP_S)
        keeping.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_COMMIT_STOP_S):
                for instance in list(self.boats.instances.values()):
                    instance.log_events()
                    if instance.bytes_since_snapshot >= _LAST_SNAPSHOT_BYTES:
                        instance.submit_snapshot()  # the next start has little to read
                for instance in list(self.boats.instances.values()):
                    await instance.wait_settled()
        await self.maintenance.save_all(deadline_s=_SAVE_STOP_S)
        self._unwatch()


def _revocations(path: Path | None) -> RevocationList | None:
    return None if path is None else RevocationList(path, now_us=wall_clock_us())
