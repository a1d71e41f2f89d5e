"""The options of a node's process: its identity, its listeners, its limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from tidelog.cluster.node.core import NodeOptions
from tidelog.cluster.uplink.options import UplinkOptions
from tidelog.codecs.nats_subjects import DEFAULT_NAMESPACE
from tidelog.core.groups.coordinator import GroupOptions
from tidelog.errors import InvalidConfig
from tidelog.http.server import HttpOptions
from tidelog.storage.store.parts import StoreOptions
from tidelog.units import MIB

if TYPE_CHECKING:
    from tidelog.transports.nats.connection import NatsOptions

COPY_BYTES_MAX: Final = 16 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProcessOptions:
    node: str
    listen: str | None
    """None: no links, and no peers; a cluster of one."""
    peers: dict[str, str]
    """Node to address; this node may be among them."""
    data_dir: Path
    advertise: str | None = None
    """The address that other nodes dial; by default this node's entry in `peers`, or the address it listens on."""
    host: str = ""
    """Replicas of a channel are kept on different hosts; the machine's name by default."""
    tags: tuple[str, ...] = ()
    capacity_bytes: int | None = None
    """The size of the file system by default."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    revocations: Path | None = None
    fleet: str | None = None
    insecure_dev: bool = False
    core: NodeOptions = field(default_factory=NodeOptions)
    http: HttpOptions | None = None
    store: StoreOptions = field(default_factory=lambda: StoreOptions(copy_bytes_max=COPY_BYTES_MAX))
    """Small channels stay in the write-ahead file: thousands of them cost no file each."""
    uplink: UplinkOptions | None = None
    """The options for serving boats; None serves none."""
    groups: GroupOptions = field(default_factory=GroupOptions)
    """How long members of consumer groups may be silent."""
    nats: NatsOptions | None = None
    """The NATS servers that it may use; None for none."""
    nats_namespace: str = DEFAULT_NAMESPACE
    """The first part of all subjects of this cluster."""
    transport: Literal["link", "nats"] = "link"
    """The transport of replication."""
    gateway_addresses: tuple[tuple[str, str], ...] = ()
    """Names and addresses of the gateways of this node, for the catalog."""

    def __post_init__(self) -> None:
        files = (self.tls_cert, self.tls_key, self.tls_ca)
        if self.listen is None and set(self.peers) - {self.node}:
            problem = "a node that listens for nobody cannot have peers; give it an address to listen on"
            raise InvalidConfig(section="node", problems=(problem,))
        if self.transport == "nats" and self.nats is None:
            problem = "replication over NATS needs servers; name them, or use the link"
            raise InvalidConfig(section="node", problems=(problem,))
        if self.listen is not None and not self.insecure_dev and None in files:
            problem = "a node needs its certificate, its key and the nodes' authority; or --insecure-dev on one machine"
            raise InvalidConfig(section="node", problems=(problem,))
