"""The settings of `tidelog node`: their list, what must hold between them, and the options they become.

Two have no default, on purpose. Without peers every node would found a cluster of its own, and a folder for the data is
chosen by an operator who knows the disks. HTTP is off unless an address is given: several nodes on one host are normal,
and a default port would stop the second one; `tidelog cluster status` needs none.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.cli.settings.channel_limits import CHANNEL_LIMIT_SETTINGS, with_channel_limits
from tidelog.cli.settings.checks import (
    check_certificates,
    check_folder,
    check_http,
    check_pair,
    check_ports,
    check_revocations,
    missing,
    paths,
)
from tidelog.cli.settings.cloud import LIMIT_SETTINGS, UPLINK, log_options, maintenance_options, receiver_limits
from tidelog.cli.settings.common import (
    CONTROL_SETTINGS,
    GENERAL,
    HTTP,
    HTTP_SETTINGS,
    INSECURE,
    RETENTION_SETTINGS,
    ROTATE_SETTINGS,
    http_options,
)
from tidelog.cli.settings.gateway import GATEWAY_SETTINGS, check_gateway
from tidelog.cli.settings.groups import GROUP_SETTINGS, group_options
from tidelog.cli.settings.nats import NATS_SETTINGS, check_nats, nats_options
from tidelog.config import DURATION, FILE, FOLDER, INTEGER, LISTEN, NAMES, SIZE, TARGET, Loaded, Setting, under

if TYPE_CHECKING:
    from cryptography import x509

    from tidelog.cluster.node.core import NodeOptions
    from tidelog.cluster.node.process import NodeProcessOptions
    from tidelog.cluster.uplink.options import UplinkOptions

CLUSTER: Final = "Cluster"
TIMING: Final = "Timing"
NODE_FILES: Final = ("tidelog-node.conf", "/etc/tidelog/node.conf")
"""Where settings are looked for when -config names no file; the first that exists is read."""
VOTERS_MAX: Final = 9
_TLS_FLAGS: Final = ("tls-cert", "tls-key", "tls-ca")
_TEXT_BYTES_MAX: Final = 255
_TAGS_MAX: Final = 64
_PEERS_MAX: Final = 64
_FADE_MS: Final = 60_000
_MINUTE_MS: Final = 60_000
_NAME_HINT: Final = "use 1 to 63 letters, digits, dots, dashes and underscores, beginning with a letter or digit"

_IDENTITY_SETTINGS: Final = under(
    GENERAL,
    Setting("node.id", "This node's name, as in its certificate. Needed.", flag="id"),
    Setting("data-dir", "Where everything of this node lies; one process at a time. Needed.", FOLDER),
    Setting(
        "node.host",
        "Label of the machine: replicas of a channel are kept apart by it. Default: its host name.",
        flag="host",
    ),
    Setting("node.tags", "Labels for placement.", NAMES, (), flag="tags"),
    Setting(
        "node.capacity",
        "Bytes that this node offers. Default: the size of its file system.",
        SIZE,
        flag="capacity",
        at_least=1,
    ),
)
_CLUSTER_SETTINGS: Final = (
    *under(
        CLUSTER,
        Setting(
            "peers",
            "The nodes to found the cluster with, or to find it by: n1=host:port,n2=host:port. Needed.",
            NAMES,
            (),
        ),
        Setting("listen", "For the other nodes and `tidelog cluster`. Default: this node's address in -peers.", LISTEN),
        Setting("advertise", "What other nodes dial. Default: this node's address in -peers, else -listen.", TARGET),
        Setting("tls.cert", "This node's certificate.", FILE),
        Setting("tls.key", "Its key.", FILE),
        Setting("tls.ca", "The nodes' authority: who is let in as a node or as an operator.", FILE),
        Setting(
            "tls.revocations", "The nodes' file of revoked serial numbers, as `tidelog ca revoke` writes it.", FILE
        ),
        section="cluster",
    ),
    Setting("fleet", "Let in certificates of this fleet only; any by default.", group=CLUSTER),
    *under(
        CLUSTER,
        Setting(
            "max-voters",
            "Nodes that vote on the metadata; further ones hold a copy and do not vote.",
            INTEGER,
            5,
            at_least=1,
            at_most=VOTERS_MAX,
        ),
        Setting(
            "snapshot-entries",
            "Changes of the metadata after which a snapshot of it is written.",
            INTEGER,
            4_096,
            at_least=16,
            at_most=1_000_000,
        ),
        section="cluster",
    ),
)
_TIMING_SETTINGS: Final = under(
    TIMING,
    Setting("raft.heartbeat", "How often the metadata leader speaks.", DURATION, 100, at_least=10, at_most=_MINUTE_MS),
    Setting(
        "raft.election-timeout",
        "Its silence, at least, before another node asks for votes; 3 x the heartbeat or more.",
        DURATION,
        600,
        at_least=30,
        at_most=10 * _MINUTE_MS,
    ),
    Setting(
        "liveness.heartbeat",
        "How often two nodes speak and a session is renewed. The same on all nodes.",
        DURATION,
        500,
        flag="heartbeat",
        at_least=100,
        at_most=_MINUTE_MS,
    ),
    Setting(
        "liveness.session-timeout",
        "Silence after which a node is fenced; 3 x the heartbeat or more. The same on all nodes.",
        DURATION,
        1_500,
        flag="session-timeout",
        at_least=300,
        at_most=60 * _MINUTE_MS,
    ),
    Setting(
        "replica.max.lag.time",
        "How long an in-sync replica may be behind before its leader goes on without it.",
        DURATION,
        5_000,
        at_least=100,
        at_most=60 * _MINUTE_MS,
    ),
    Setting(
        "replica.max.leader.timeout",
        "Within so long, or two of the channel's heartbeats, reports of a silent channel leader count together.",
        DURATION,
        5_000,
        at_least=500,
        at_most=60 * _MINUTE_MS,
    ),
    Setting(
        "replica.max.idle.wait",
        "A replica asks its leader again after so long, even if nothing happens.",
        DURATION,
        10_000,
        at_least=250,
        at_most=60 * _MINUTE_MS,
    ),
)
_UPLINK_SETTINGS: Final = under(
    UPLINK,
    Setting("grpc.listen", "For boats, such as :9443. Off by default: this node then serves none.", LISTEN),
    Setting(
        "grpc.advertise",
        "What boats dial, and nodes that pass their calls on. Default: this node's host and -grpc-listen's port.",
        TARGET,
    ),
    Setting("grpc.tls.cert", "The certificate that boats see. Default: this node's own.", FILE),
    Setting("grpc.tls.key", "Its key.", FILE),
    Setting("grpc.tls.client-ca", "The authority that signs boats; each must show a certificate of it.", FILE),
    Setting(
        "grpc.tls.revocations", "The boats' file of revoked serial numbers, as `tidelog ca revoke` writes it.", FILE
    ),
    Setting(
        "boats.factor",
        "Replicas of the channel of a boat that is new; as many as there are nodes, if those are fewer.",
        INTEGER,
        3,
        flag="boat-factor",
        at_least=1,
        at_most=16,
    ),
)
NODE_SETTINGS: Final[tuple[Setting, ...]] = (
    *CONTROL_SETTINGS,
    *_IDENTITY_SETTINGS,
    *_CLUSTER_SETTINGS,
    *_TIMING_SETTINGS,
    *_UPLINK_SETTINGS,
    *NATS_SETTINGS,
    *GATEWAY_SETTINGS,
    *GROUP_SETTINGS,
    *CHANNEL_LIMIT_SETTINGS,
    *ROTATE_SETTINGS,
    *RETENTION_SETTINGS,
    *LIMIT_SETTINGS,
    Setting("http.listen", "For health, status and metrics, such as :8081. Off by default.", LISTEN, group=HTTP),
    *HTTP_SETTINGS,
    INSECURE,
)


def check_node(loaded: Loaded) -> None:
    """Add to the problems whatever would stop this node later, and open nothing.

    Afterwards the value of `peers` is a dict of node to address, and `listen` is where the node listens.
    """
    values = loaded.values
    _check_names(loaded)
    values["peers"] = peers = _checked_peers(loaded)
    if values["listen"] is None:
        values["listen"] = peers.get(values["id"])
        if values["listen"] is None:
            loaded.problems.append(
                f"{loaded.named('listen')} is missing: other nodes must reach this one; give an address such as :9500, "
                "or list this node in -peers"
            )
    check_folder(loaded, "data-dir", needed_for="this node's data")
    _check_certificate(loaded)
    _check_timing(loaded)
    check_ports(loaded, "listen", "http-listen")
    _check_uplink(loaded)
    check_nats(loaded)
    check_gateway(loaded)
    check_http(loaded)


def _check_uplink(loaded: Loaded) -> None:
    """Whatever stands against serving boats, if they are to be served."""
    values = loaded.values
    if not values["grpc-listen"]:
        return
    check_pair(loaded, certificate="grpc-tls-cert", key="grpc-tls-key")
    check_certificates(loaded, "grpc-tls-client-ca")
    check_revocations(loaded, "grpc-tls-revocations")
    if not values["insecure-dev"] and not values["grpc-tls-client-ca"]:
        loaded.problems.append(
            "-grpc-tls-client-ca is missing: boats are let in by certificate alone; `tidelog ca issue NAME --node` "
            "writes the file"
        )
    if bool(values["grpc-tls-cert"]) != bool(values["grpc-tls-key"]):
        loaded.problems.append("-grpc-tls-cert and -grpc-tls-key come together, or not at all")
    check_ports(loaded, "grpc-listen", "listen", "http-listen")


def _check_names(loaded: Loaded) -> None:
    from tidelog.pki.identity import is_fleet, is_name

    values = loaded.values
    if not values["id"]:
        loaded.problems.append(f"{loaded.named('id')} is missing; give this node a name such as n1")
    elif not is_name(values["id"]):
        loaded.problems.append(f"{loaded.named('id')} = {values['id']!r} is no name; {_NAME_HINT}")
    if values["fleet"] and not is_fleet(values["fleet"]):
        loaded.problems.append(
            f"{loaded.named('fleet')} = {values['fleet']!r} is no fleet; use lower-case letters, digits, dots, dashes"
        )
    labels = [("host", values["host"] or ""), *(("tags", tag) for tag in values["tags"])]
    for flag, label in labels:
        if len(label) > _TEXT_BYTES_MAX or not (label.isascii() and label.isprintable()):
            loaded.problems.append(
                f"{loaded.named(flag)} has {label[:40]!r}, which is no label: at most {_TEXT_BYTES_MAX} printable "
                "ASCII characters"
            )
    if len(set(values["tags"])) < len(values["tags"]) or len(values["tags"]) > _TAGS_MAX:
        loaded.problems.append(f"{loaded.named('tags')} has a tag twice, or more than {_TAGS_MAX} of them")


def _checked_peers(loaded: Loaded) -> dict[str, str]:
    """Node to address. What cannot be one is a problem and left out."""
    label, entries = loaded.named("peers"), loaded.values["peers"]
    if not entries:
        loaded.problems.append(
            f"{label} is missing; list all nodes that found the cluster, this one too, or some of the cluster to join: "
            "n1=host1:9500,n2=host2:9500"
        )
    if len(entries) > _PEERS_MAX:
        loaded.problems.append(f"{label} has {len(entries)} nodes; a cluster has at most {_PEERS_MAX}")
        return {}
    peers: dict[str, str] = {}
    for entry in entries:
        node, _, address = entry.partition("=")
        problem = _peer_problem(node.strip(), address.strip(), peers)
        if problem:
            loaded.problems.append(f"{label} has {entry!r}, {problem}")
        else:
            peers[node.strip()] = address.strip()
    return peers


def _peer_problem(node: str, address: str, peers: dict[str, str]) -> str:
    from tidelog.pki.identity import is_name

    if not address:
        return "which has no address; write it like n1=host:9500"
    if not is_name(node):
        return f"but {node!r} is no name; {_NAME_HINT}"
    try:
        TARGET.parse(address)
    except ValueError as error:
        return f"whose address {error}"
    if node.lower() in (known.lower() for known in peers):
        return "but that node is listed before it, in this or another case"
    if address in peers.values():
        return "whose address another node has already"
    return ""


def _check_certificate(loaded: Loaded) -> None:
    values = loaded.values
    certificate = check_pair(loaded, certificate="tls-cert", key="tls-key")
    check_certificates(loaded, "tls-ca")
    check_revocations(loaded, "tls-revocations")
    given = [f"-{flag}" for flag in _TLS_FLAGS if values[flag]]
    absent = missing(loaded, *_TLS_FLAGS)
    if values["insecure-dev"] and given:
        loaded.problems.append(
            f"{loaded.named('insecure-dev')} and {' and '.join(given)} exclude each other: a node speaks TLS with all "
            "or with nobody"
        )
    elif absent and not values["insecure-dev"]:
        loaded.problems.append(
            f"{absent}: nodes let each other in by certificate alone; `tidelog ca issue NAME --node` writes the files"
        )
    if certificate is not None and values["id"]:
        _check_certificate_names(loaded, certificate)


def _check_certificate_names(loaded: Loaded, certificate: x509.Certificate) -> None:
    """Peers believe the certificate alone, so another name or kind would be refused by all of them."""
    from tidelog.errors import LogError
    from tidelog.pki.identity import Identity, identity_of_certificate

    shown = f"{loaded.named('tls-cert')} = {loaded.values['tls-cert']!r}"
    try:
        identity = identity_of_certificate(certificate, fleet=loaded.values["fleet"] or None)
    except LogError as error:
        loaded.problems.append(f"{shown}: {error}")
        return
    if identity != Identity("node", loaded.values["id"]):
        loaded.problems.append(
            f"{shown} is the certificate of {identity}, and this is node {loaded.values['id']}; use the certificate "
            f"that `tidelog ca issue {loaded.values['id']} --node` wrote, or the right -id"
        )


def _check_timing(loaded: Loaded) -> None:
    values = loaded.values
    for shorter, longer in (("raft-heartbeat", "raft-election-timeout"), ("heartbeat", "session-timeout")):
        if values[longer] < 3 * values[shorter]:
            loaded.problems.append(
                f"{loaded.named(longer)} = {values[longer]} ms is less than 3 x {loaded.named(shorter)} "
                f"({values[shorter]} ms), so one late heartbeat would be taken for a failure"
            )


def node_options(values: dict[str, Any]) -> NodeProcessOptions:
    """What the node's process is made of; after `check_node`."""
    from tidelog.cluster.node.process import COPY_BYTES_MAX, NodeProcessOptions
    from tidelog.storage.store.parts import StoreOptions

    certificate, key, authority, revocations = paths(values, *_TLS_FLAGS, "tls-revocations")
    return NodeProcessOptions(
        node=values["id"],
        listen=values["listen"],
        peers=values["peers"],
        data_dir=Path(values["data-dir"]).absolute(),
        advertise=values["advertise"],
        host=values["host"] or "",
        tags=tuple(values["tags"]),
        capacity_bytes=values["capacity"],
        tls_cert=certificate,
        tls_key=key,
        tls_ca=authority,
        revocations=revocations,
        fleet=values["fleet"] or None,
        insecure_dev=values["insecure-dev"],
        core=with_channel_limits(_core_options(values), values),
        http=http_options(values, fleet=values["fleet"] or None),
        store=StoreOptions(log=log_options(values), copy_bytes_max=COPY_BYTES_MAX),
        uplink=_uplink_options(values),
        groups=group_options(values),
        nats=nats_options(values),
        nats_namespace=values["nats-namespace"],
        transport=values["transport"],
    )


def _uplink_options(values: dict[str, Any]) -> UplinkOptions | None:
    from tidelog.cluster.uplink.options import UplinkOptions

    if not values["grpc-listen"]:
        return None
    own_certificate, own_key = paths(values, "tls-cert", "tls-key")
    certificate, key, client_authority, revocations = paths(
        values, "grpc-tls-cert", "grpc-tls-key", "grpc-tls-client-ca", "grpc-tls-revocations"
    )
    return UplinkOptions(
        listen=values["grpc-listen"],
        advertise=values["grpc-advertise"],
        tls_cert=certificate or own_certificate,
        tls_key=key or own_key,
        tls_client_ca=client_authority,
        revocations=revocations,
        fleet=values["fleet"] or None,
        insecure_dev=values["insecure-dev"],
        limits=receiver_limits(values),
        maintenance=maintenance_options(values),
        factor=values["boat-factor"],
    )


def _core_options(values: dict[str, Any]) -> NodeOptions:
    from tidelog.cluster.metadata.member import MetadataOptions
    from tidelog.cluster.node.core import NodeOptions
    from tidelog.core.liveness import LivenessConfig
    from tidelog.core.raft import RaftConfig
    from tidelog.core.replication.options import ReplicationOptions

    return NodeOptions(
        replication=ReplicationOptions(
            replica_max_lag_ms=values["replica-max-lag-time"],
            replica_max_leader_timeout_ms=values["replica-max-leader-timeout"],
            replica_max_idle_wait_ms=values["replica-max-idle-wait"],
        ),
        metadata=MetadataOptions(
            raft=RaftConfig(heartbeat_ms=values["raft-heartbeat"], election_timeout_ms=values["raft-election-timeout"]),
            snapshot_entries=values["snapshot-entries"],
        ),
        liveness=LivenessConfig(
            heartbeat_ms=values["heartbeat"],
            session_timeout_ms=values["session-timeout"],
            fade_ms=max(_FADE_MS, 10 * values["heartbeat"]),
        ),
        voters_max=values["max-voters"],
    )
