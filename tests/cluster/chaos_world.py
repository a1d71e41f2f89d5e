"""A cluster of real nodes whose network and disks can be broken: every link runs through a proxy that can be cut, and
every data folder is a small file system that can be filled."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.kits.channel_kit import committed_end, describe, dial_node, fetch
from benchmarks.kits.cluster_kit import HOST, OPERATOR, ClusterKit
from benchmarks.kits.cluster_load import ClusterCaller
from benchmarks.kits.fault_proxy import FaultProxy

from tests.transports.nats_server import NatsServer
from tidelog.blocks.block import iterate_blocks
from tidelog.client import Client, LinkTlsFiles, connect
from tidelog.errors import LogError, NotChannelLeader
from tidelog.transports.link.link import Link
from tidelog.units import MIB

NATS = "nats"
"""The server's name at the proxy, among those of the nodes."""
DISK = "192m"
NEARLY_BYTES = 8 * MIB
"""Less than a node keeps in reserve: channels take nothing, the metadata still does."""
_FILLER = "filler"
_STEP_BYTES = 4_096


class ChaosWorld:
    """`disks` is empty where no file system could be mounted: then no disk can be filled. `nats` is the server that
    replication goes over; None for the links."""

    def __init__(
        self, kit: ClusterKit, proxy: FaultProxy, disks: dict[str, Path], nats: NatsServer | None = None
    ) -> None:
        self.kit = kit
        self.nats = nats
        self.proxy = proxy
        self.disks = disks
        self.proxy_addresses = {
            name: f"{HOST}:{proxy.open_proxy_port(name, kit.nodes[name].port)}" for name in kit.names
        }

    @property
    def names(self) -> list[str]:
        return self.kit.names

    def start_all(self) -> None:
        """Every node dials every other through its proxy, and tells clients to do so too."""
        peers = self.kit.peers(**self.proxy_addresses)
        for name in self.names:
            self.kit.start(name, "-advertise", self.proxy_addresses[name], "-host", name, peers=peers)

    async def connect(self) -> Client:
        place = self.kit.folder / "certificates"
        files = {"certificate": f"{OPERATOR}.crt", "key": f"{OPERATOR}.key", "authority": "ca.crt"}
        tls = LinkTlsFiles(**{kind: place / file for kind, file in files.items()})
        return await connect(list(self.proxy_addresses.values()), tls=tls)

    # --- disks ---------------------------------------------------------------------------------------------

    def fill(self, name: str, *, leave_bytes: int = 0) -> None:
        """Leave so many bytes free and no more; in one go, so that nothing else takes them first."""
        place = self.disks[name]
        assert place.is_mount(), f"{place} is no file system of its own: the machine's disk is never filled"
        with (place / _FILLER).open("wb", buffering=0) as file:
            wanted = shutil.disk_usage(place).free - leave_bytes
            while wanted > 0:
                with contextlib.suppress(OSError):
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), wanted)
                    return
                wanted = min(wanted - _STEP_BYTES, shutil.disk_usage(place).free - leave_bytes)

    def free(self, name: str) -> None:
        (self.disks[name] / _FILLER).unlink(missing_ok=True)

    # --- all well again --------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Nothing is broken any more; who does not run is started."""
        self.proxy.heal()
        for name in self.disks:
            self.free(name)
        if self.nats is not None:
            if not self.nats.is_running:
                self.nats.start()
            self.nats.resume()
        for node in self.kit.nodes.values():
            if node.is_paused and node.is_running:
                self.kit.resume(node.name)
            if not node.is_running:
                self.kit.start(node.name)

    async def transports(self, caller: ClusterCaller) -> dict[str, Any]:
        """What each node says of what its replication goes over."""
        statuses = {name: await self.kit.status(caller, name) for name in self.names}
        return {name: status["transport"] for name, status in statuses.items() if status is not None}

    async def wait_whole(self, client: Client, *, deadline_s: float) -> None:
        """Until every channel is led and all its replicas are in sync."""
        unwell: list[str] = []

        async def is_whole() -> bool:
            unwell[:] = ["nobody answers"]
            try:
                channels = await client.channels(timeout_ms=5_000)
            except LogError as error:
                if not error.retriable:
                    raise
                return False
            unwell[:] = [standing(one) for one in channels if not is_well(one)]
            return not unwell

        try:
            await self.kit.wait(is_whole, deadline_s=deadline_s, what="all channels to be whole")
        except LogError as error:
            error.add_note("not whole: " + "; ".join(unwell))
            raise

    @contextlib.asynccontextmanager
    async def links(self) -> Any:
        """An operator's link to each node, past the proxies."""
        found: dict[str, Link] = {}
        try:
            for name in self.names:
                found[name] = await dial_node(self.kit, name)
            yield found
        finally:
            for link in found.values():
                await link.close()

    async def wait_level(self, channels: list[str], *, deadline_s: float) -> dict[str, dict[str, Any]]:
        """Until all replicas of each channel hold and know the same committed end; the channels as they are then."""
        found: dict[str, dict[str, Any]] = {}
        async with self.links() as links:

            async def is_level() -> bool:
                for channel in channels:
                    views = {name: await describe(link, channel) for name, link in links.items()}
                    record = next(iter(views.values()))
                    ends = {tuple((views[name]["here"] or {}).get(key) for key in _ENDS) for name in record["replicas"]}
                    found[channel] = record | {"ends": ends}
                    if len(ends) != 1 or None in next(iter(ends)) or len(set(next(iter(ends)))) != 1:
                        return False
                return True

            try:
                await self.kit.wait(is_level, deadline_s=deadline_s, what="all replicas to be level")
            except LogError as error:
                error.add_note(f"ends {_ENDS}: " + "; ".join(f"{name} {one['ends']}" for name, one in found.items()))
                raise
        return found

    async def who_knows_the_end(self, channel: dict[str, Any]) -> list[str]:
        """Replicas that answer for the committed end: the leader alone, or one client could see it go back."""
        found = []
        async with self.links() as links:
            for name in channel["replicas"]:
                try:
                    await committed_end(links[name], channel["channel_id"])
                except NotChannelLeader:
                    continue
                found.append(name)
        return found

    async def logs_in_memory(self, channel: dict[str, Any], *, end: int) -> dict[str, dict[int, bytes]]:
        """The committed blocks that each replica gives out: node to first offset to bytes, every block verified."""
        logs: dict[str, dict[int, bytes]] = {}
        async with self.links() as links:
            for name in channel["replicas"]:
                held = logs.setdefault(name, {})
                offset = (await describe(links[name], channel["name"]))["here"]["log_start"]
                while offset < end:
                    for data in (await fetch(links[name], channel["channel_id"], offset)).data:
                        for block in iterate_blocks(data):
                            held[block.offsets.start] = block.tobytes()
                            offset = max(offset, block.offsets.stop)
        return logs


_ENDS = ("log_end", "held_end", "committed_end")


def is_well(channel: dict[str, Any]) -> bool:
    return channel["leader"] is not None and set(channel["isr"]) == set(channel["replicas"])


def standing(channel: dict[str, Any]) -> str:
    keys = ("name", "leader", "leader_epoch", "isr", "eligible", "replicas")
    return " ".join(f"{key}={channel[key]}" for key in keys)


@contextlib.contextmanager
def chaos_world(folder: Path, *, nodes: int, transport: str = "link") -> Iterator[ChaosWorld]:
    with contextlib.ExitStack() as stack:
        kit: ClusterKit
        proxy = stack.enter_context(
            FaultProxy(lambda: {one.name: one.process.pid for one in kit.nodes.values() if one.process is not None})
        )
        nats, settings = None, ["-transport", transport]
        if transport == "nats":
            nats = stack.enter_context(NatsServer(folder / NATS))
            settings += ["-nats-servers", f"nats://{HOST}:{proxy.open_proxy_port(NATS, nats.port)}"]
        kit = stack.enter_context(ClusterKit(folder / "kit", nodes=nodes, settings=settings))
        disks = {}
        for name in kit.names:
            place = folder / f"disk-{name}"
            place.mkdir()
            if not _mounted(place):
                break
            stack.callback(subprocess.run, ["umount", "-l", str(place)], check=False, capture_output=True)
            disks[name] = place
            kit.nodes[name].data = place / "data"
        # Nodes end before their disks go.
        stack.callback(kit.close)
        yield ChaosWorld(kit, proxy, disks if len(disks) == nodes else {}, nats)


def _mounted(place: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
