"""The manager: opens channels by name, replicated or not, with the calls of seed 001.

    manager = LogManager(persistent_dir=folder)
    manager.enable_replication(node)
    config = FileConfig().with_replication(ReplicationConfig.new().with_factor(3).with_heartbeat_ms(500))
    file = await manager.open_file("spray", config)

A channel without replication is a log of this manager alone. A replicated one is a channel of the cluster, created
through its catalog: a program that opens it on another node, an operator, and a native client all see the same channel.

What a caller must keep: use a manager from one event loop, the node's if it has one; `close` it before the node stops.

EM1  Replication is opt-in per channel: without it nothing is sent over the network.
EM2  A name is open once: opening it again returns the same file, or `ConfigMismatch` with another config.
EM3  A config is checked as a whole before anything happens; all its problems are reported at once.
EM4  `enable_replication` and `disable_replication` may be repeated and called from anywhere.
EM5  A replicated channel is opened with as many replicas as its factor says, or `FactorNotMet` says which nodes can
     hold it and why others cannot; it is not created then.
"""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tidelog.cluster.clients.access import ClientAccess
from tidelog.cluster.clients.channel_admin import ChannelAdministration
from tidelog.cluster.status.chain_holders import find_chain_holders
from tidelog.codecs.client_codec import CREATE, config_json
from tidelog.codecs.error_codec import error_of_json
from tidelog.core.catalog import ChannelConfig
from tidelog.core.catalog.records import CHANNEL_NAME
from tidelog.core.replication.config import FileConfig
from tidelog.core.replication.metrics import ReplicationMetricsRegistry
from tidelog.embedded.coordinator import ReplicationCoordinator
from tidelog.embedded.local_file import LocalFile
from tidelog.embedded.local_logs import LocalLogs
from tidelog.embedded.log_file import LogFile
from tidelog.embedded.replicated_file import ReplicatedFile
from tidelog.errors import (
    BadMessage,
    ConfigMismatch,
    FactorNotMet,
    InvalidConfig,
    LogClosed,
    ReplicationNotEnabled,
    WaitTimedOut,
)
from tidelog.storage.store.parts import StoreOptions

if TYPE_CHECKING:
    from tidelog.cluster.node.process import Node

HAND_OVER_MS: Final = 3_000
REGISTERED_MS: Final = 10_000
FACTOR_MS: Final = 10_000
_LOOK_MS: Final = 10
_FACTOR_LOOK_MS: Final = 100
_DEFAULT: Final = FileConfig()


class LogManager:
    def __init__(
        self,
        persistent_dir: str | os.PathLike[str] | None = None,
        *,
        store: StoreOptions | None = None,
        factor_timeout_ms: int = FACTOR_MS,
    ) -> None:
        """`persistent_dir` is for persistent channels without replication; replicated ones are in the node's folder.

        `factor_timeout_ms` is how long `open_file` waits for as many nodes as the factor of a replicated channel.
        """
        self._folder = None if persistent_dir is None else Path(persistent_dir)
        self._store_options = store
        self._factor_timeout_ms = factor_timeout_ms
        self._local: LocalLogs | None = None
        self._files: dict[str, LogFile] = {}
        self._changing = asyncio.Lock()
        self._node: Node | None = None
        self._admin: ChannelAdministration | None = None
        self._no_metrics = ReplicationMetricsRegistry(enabled=False)
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- replication -----------------------------------------------------------------------------------------------

    @property
    def is_replicating(self) -> bool:
        return self._node is not None

    def enable_replication(self, node: Node) -> None:
        """Use this running node to replicate channels. With the same node again nothing changes (EM4)."""
        self._check_open()
        if self._node is node:
            return
        if self._node is not None:
            problem = f"replication is on with node {self._node.core.node}; disable it before another takes its place"
            raise InvalidConfig(section="embedded", problems=[problem])
        channels = node.channels
        # The program that runs the node may do anything in its name.
        access = ClientAccess(catalog=lambda: channels.catalog, now_ms=channels.wall_ms, insecure_dev=True)
        rng = random.Random(random.SystemRandom().getrandbits(64))
        self._admin = ChannelAdministration(channels, access=access, rng=rng)
        self._node = node

    async def disable_replication(self) -> None:
        """Close replicated files and release the node. Files without replication stay open (EM4).

        The node keeps its copies and serves them: a copy that continued by itself would be another log.
        """
        async with self._changing:
            names = [name for name, file in self._files.items() if isinstance(file, ReplicatedFile)]
            await asyncio.gather(*(self._close_file(name) for name in names))
            self._node = self._admin = None

    def replication_coordinator_for(self, name: str) -> ReplicationCoordinator | None:
        """The handle on a replicated channel that is open here; None for any other name."""
        file = self._files.get(name)
        return file.coordinator if isinstance(file, ReplicatedFile) else None

    def find_chain_holders(self, name: str) -> list[str]:
        """Nodes that hold a replicated channel, this one first, then by round trip; empty if there is none."""
        return [] if self._node is None else find_chain_holders(self._node.core, name)

    @property
    def metrics(self) -> ReplicationMetricsRegistry:
        """The metrics of replication on this node, with present lags. Empty while replication is off."""
        if self._node is None:
            return self._no_metrics
        replicas = self._node.core.channels.replicas
        replicas.observe(self._node.now_ms())
        return replicas.metrics

    # --- files -----------------------------------------------------------------------------------------------------

    async def open_file(self, name: str, config: FileConfig = _DEFAULT) -> LogFile:
        """Open a channel; create it if it is not there. Raises everything that is wrong with the config at once."""
        self._check_open()
        self._validate(name, config)
        if config.replication is not None and self._node is None:
            raise ReplicationNotEnabled(channel=name)
        async with self._changing:
            self._check_open()
            held = self._files.get(name)
            if held is not None:
                _check_same(name, held.config.to_channel_config(), config.to_channel_config())
            if config.replication is None:
                return held or await self._open_local(name, config)
            return await self._open_replicated(name, config, held)

    def _validate(self, name: str, config: FileConfig) -> None:
        """EM3."""
        problems = config.problems()
        if not isinstance(name, str) or not CHANNEL_NAME.fullmatch(name):
            problems.insert(0, f"{str(name)[:80]!a} is no channel name; use letters, digits and . _ : / -")
        if config.persistent is True and config.replication is None and self._folder is None:
            problems.append("a persistent file needs LogManager(persistent_dir=...); or open it with_persistent(False)")
        if problems:
            raise InvalidConfig(section="file", problems=problems)

    async def _open_local(self, name: str, config: FileConfig) -> LogFile:
        catalog = None if self._node is None else self._node.core.catalog
        if catalog is not None and catalog.channel(name) is not None:
            raise ConfigMismatch(channel=name, setting="replicated")
        if self._local is None:
            self._local = await asyncio.to_thread(LocalLogs, self._folder, options=self._store_options)
        channel = await asyncio.wrap_future(self._local.open(name, config.to_channel_config()))
        file = LocalFile(name, config, logs=self._local, channel=channel, close=self.close_file)
        self._files[name] = file
        return file

    async def _open_replicated(self, name: str, config: FileConfig, held: LogFile | None) -> LogFile:
        """Alter the config through the catalog, also if the file is open: an operator may have altered the channel
        since."""
        node, admin = self._node, self._admin
        if node is None or admin is None:
            raise ReplicationNotEnabled(channel=name)
        if self._local is not None and name in self._local.names():
            raise ConfigMismatch(channel=name, setting="replicated")
        await _registered(node)
        wanted = {"name": name, "config": config_json(config.to_channel_config()), "needs_factor": held is None}
        channel_id = await self._placed(admin, wanted, principal=f"node:{node.core.node}")
        if isinstance(held, ReplicatedFile) and held.channel_id == channel_id:
            return held
        if isinstance(held, ReplicatedFile):  # it was deleted, and is another channel of the same name now
            await self._close_file(name)
        coordinator = ReplicationCoordinator(node, admin=admin, channel=name, channel_id=channel_id)
        file = ReplicatedFile(name, config, node=node, coordinator=coordinator, close=self.close_file)
        self._files[name] = file
        return file

    async def _placed(self, admin: ChannelAdministration, wanted: dict[str, Any], *, principal: str) -> int:
        """The channel's id, once it exists. Waits for nodes that start at the same time (EM5)."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._factor_timeout_ms / 1000
        while True:
            try:
                (result,) = (await admin.ask(CREATE, {"channels": [wanted]}, principal=principal))["results"]
            except BadMessage:
                # The metadata leader is of a version that does not check the factor; it will be upgraded.
                if wanted.pop("needs_factor", None) is None:
                    raise
                continue
            if "error" not in result:
                return int(result["channel_id"])
            error = error_of_json(result["error"])
            if not isinstance(error, FactorNotMet) or loop.time() >= deadline_s:
                raise error
            await asyncio.sleep(_FACTOR_LOOK_MS / 1000)

    async def close_file(self, name: str) -> None:
        """Close a file; one that is not open is no error. A leader hands over first, if another node can lead.

        A replicated channel continues without this file: to end it, pause it or delete it.
        """
        async with self._changing:
            await self._close_file(name)

    async def _close_file(self, name: str) -> None:
        file = self._files.pop(name, None)
        if isinstance(file, ReplicatedFile):
            await file.let_go(timeout_ms=HAND_OVER_MS)
        elif isinstance(file, LocalFile):
            await file.let_go()

    def file(self, name: str) -> LogFile | None:
        """The file of this name, if it is open."""
        return self._files.get(name)

    async def close(self) -> None:
        """Close every file, then the logs of this manager. The node keeps running."""
        async with self._changing:
            if self._is_closed:
                return
            self._is_closed = True
            await asyncio.gather(*(self._close_file(name) for name in list(self._files)))
            self._node = self._admin = None
            if self._local is not None:
                await asyncio.to_thread(self._local.close)

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosed(log="the manager")


async def _registered(node: Node) -> None:
    """A node that has just started is admitted within moments; before that nothing can be placed on it."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + REGISTERED_MS / 1000
    while not node.core.is_registered:
        if loop.time() >= deadline_s:
            waiting_for = f"node {node.core.node} to be let in; see tidelog cluster status for what it waits for"
            raise WaitTimedOut(waiting_for=waiting_for, deadline_s=REGISTERED_MS / 1000)
        await asyncio.sleep(_LOOK_MS / 1000)


def _check_same(name: str, live: ChannelConfig, wanted: ChannelConfig) -> None:
    """EM2."""
    for setting in fields(live):
        if getattr(live, setting.name) != getattr(wanted, setting.name):
            raise ConfigMismatch(channel=name, setting=setting.name)
