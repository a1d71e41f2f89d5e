"""A cluster of real nodes that takes boats over mTLS, and the certificates of those boats: for what measures or tests
the way from a boat to a table.

    with boat_cluster(folder, boats=["boat-1"], nodes=3) as sea:
        target = sea.target("boat-1")

What a caller must keep: use it as a context manager; boats end before it does.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kits.cluster_kit import HOST, OPERATOR, ClusterKit
from tidelog.cli.demo.ports import free_port
from tidelog.edge.uplink.target import UplinkTarget
from tidelog.pki.authority import Authority
from tidelog.pki.certificates import AuthorityOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class BoatCluster:
    kit: ClusterKit
    uplinks: tuple[str, ...]
    """Where boats dial, an address for each node."""
    credentials: Path
    """Folder with `<name>.crt` and `<name>.key` of every boat, and `ca.crt`, which they trust."""

    def target(self, boat: str, *, node: int = 0) -> UplinkTarget:
        return boat_target(self.credentials, boat, self.uplinks[node % len(self.uplinks)])

    def pipeline_arguments(self) -> list[str]:
        """The flags of `tidelog pipeline` that lead to this cluster, as its operator."""
        place = self.kit.folder / "certificates"
        return [
            *("-cluster", ",".join(self.kit.address(name) for name in self.kit.names)),
            *("-tls-cert", str(place / f"{OPERATOR}.crt"), "-tls-key", str(place / f"{OPERATOR}.key")),
            *("-tls-ca", str(place / "ca.crt")),
        ]


def boat_target(credentials: Path, boat: str, address: str) -> UplinkTarget:
    """How a boat whose certificate is in this folder reaches a node."""
    return UplinkTarget(
        address=address,
        instance=boat,
        certificate=(credentials / f"{boat}.crt").read_bytes(),
        key=(credentials / f"{boat}.key").read_bytes(),
        authority=(credentials / "ca.crt").read_bytes(),
    )


@contextmanager
def boat_cluster(
    folder: Path, *, boats: Sequence[str], nodes: int, settings: Sequence[str] = ()
) -> Iterator[BoatCluster]:
    """Nodes that run and have found each other; `settings` are given to each of them."""
    credentials = folder / "boats"
    authority = _write_credentials(folder / "fleet", credentials, boats)
    with ClusterKit(folder / "cluster", nodes=nodes) as kit:
        (credentials / "ca.crt").write_bytes(kit.authority.certificate_pem)
        taken = {node.port for node in kit.nodes.values()}
        uplinks = []
        for name in kit.names:
            port = free_port(random.Random(), taken=taken)
            taken.add(port)
            uplinks.append(f"{HOST}:{port}")
            kit.start(name, "-grpc-listen", uplinks[-1], "-grpc-tls-client-ca", str(authority), *settings)

        async def formed() -> None:
            async with kit.caller() as caller:
                await kit.wait_formed(caller)

        asyncio.run(formed())
        yield BoatCluster(kit=kit, uplinks=tuple(uplinks), credentials=credentials)


def _write_credentials(authority_folder: Path, credentials: Path, boats: Sequence[str]) -> Path:
    """A certificate for every boat; where that of their authority is."""
    now_us = time.time_ns() // 1000
    fleet = Authority.create(authority_folder, AuthorityOptions(kind="boat"), now_us=now_us)
    credentials.mkdir(parents=True)
    for name in boats:
        issued = fleet.issue(name, now_us=now_us)
        assert issued.key_pem is not None
        (credentials / f"{name}.crt").write_bytes(issued.certificate_pem)
        (credentials / f"{name}.key").touch(mode=0o600)
        (credentials / f"{name}.key").write_bytes(issued.key_pem)
    path = credentials / "fleet.crt"
    path.write_bytes(fleet.certificate_pem)
    return path
