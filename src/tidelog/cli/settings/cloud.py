"""The settings of `tidelog cloud`: their list, what must hold between them, and the options they become.

The list has every flag and key of lplex-cloud (those that do nothing here: `settings.lplex`) and our own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from tidelog.cli.settings.common import (
    CONTROL_SETTINGS,
    DEVICE_SETTINGS,
    GENERAL,
    HTTP,
    HTTP_SETTINGS,
    INSECURE,
    REPLICATION,
    RETENTION_SETTINGS,
    ROTATE_SETTINGS,
    age_limit_ms,
    http_options,
)
from tidelog.cli.settings.lplex import LPLEX_CLOUD_SETTINGS
from tidelog.config import FILE, FOLDER, INTEGER, LISTEN, NUMBER, Loaded, Setting, under

if TYPE_CHECKING:
    from tidelog.cluster.node.cloud import CloudOptions
    from tidelog.cluster.uplink.options import MaintenanceOptions
    from tidelog.core.uplink.receiver import ReceiverLimits
    from tidelog.storage.log.options import LogOptions

UPLINK: Final = "Uplink"
CLOUD_FILES: Final = ("tidelog-cloud.conf", "lplex-cloud.conf", "/etc/lplex-cloud/lplex-cloud.conf")
"""Where settings are looked for when -config names no file; the first that exists is read."""
_TLS_FLAGS: Final = ("tls-cert", "tls-key", "tls-client-ca")

_UPLINK_SETTINGS: Final = under(
    UPLINK,
    Setting("grpc.listen", "For boats.", LISTEN, ":9443"),
    Setting("grpc.tls.cert", "The cloud's certificate.", FILE, flag="tls-cert"),
    Setting("grpc.tls.key", "Its key.", FILE, flag="tls-key"),
    Setting(
        "grpc.tls.client-ca",
        "The authority that signs boats; each must show a certificate of it.",
        FILE,
        flag="tls-client-ca",
        aliases=("tls.client-ca",),
    ),
    Setting(
        "grpc.tls.revocations",
        "File of revoked serial numbers, as `tidelog ca revoke` writes it.",
        FILE,
        flag="tls-revocations",
    ),
    Setting("fleet", "Let in boats of this fleet only; any by default."),
)
LIMIT_SETTINGS: Final = under(
    REPLICATION,
    Setting(
        "replication.rate-limit",
        "Most frames a second of one Live stream.",
        NUMBER,
        2_000.0,
        at_least=1,
        at_most=1e9,
        zero_is_default=True,
    ),
    Setting(
        "replication.rate-burst",
        "Frames that may come at once above it.",
        INTEGER,
        500,
        at_least=1,
        zero_is_default=True,
    ),
    Setting(
        "replication.max-live-lag",
        "Frames that Live may be behind before the stream is closed.",
        INTEGER,
        10_000,
        at_least=1,
        zero_is_default=True,
    ),
)
_HTTP_SETTINGS: Final = (
    Setting("http.listen", "For readers; or off.", LISTEN, ":8080", group=HTTP),
    *HTTP_SETTINGS,
)
CLOUD_SETTINGS: Final[tuple[Setting, ...]] = (
    *CONTROL_SETTINGS,
    Setting("data-dir", "Where the boats' channels lie.", FOLDER, "/data/lplex", group=GENERAL),
    Setting(
        "node.id",
        "This node's name in its cluster of one. Default: the name it had before, else the host name.",
        flag="node",
        group=GENERAL,
    ),
    *DEVICE_SETTINGS,
    *_UPLINK_SETTINGS,
    *ROTATE_SETTINGS,
    *RETENTION_SETTINGS,
    *LIMIT_SETTINGS,
    *_HTTP_SETTINGS,
    INSECURE,
    *LPLEX_CLOUD_SETTINGS,
)


def check_cloud(loaded: Loaded) -> None:
    """Add to the problems whatever would stop this cloud later, and open nothing."""
    from tidelog.pki.identity import is_fleet, is_name

    values = loaded.values
    check_folder(loaded, "data-dir", needed_for="the boats' channels")
    if values["node"] and not is_name(values["node"]):
        loaded.problems.append(
            f"{loaded.named('node')} = {values['node']!r} is no name; use letters, digits, dots, dashes and underscores"
        )
    if values["grpc-listen"] is None:
        loaded.problems.append(f"{loaded.named('grpc-listen')} is off; a cloud without boats has nothing to do")
    check_pair(loaded, certificate="tls-cert", key="tls-key")
    check_certificates(loaded, "tls-client-ca")
    check_revocations(loaded, "tls-revocations")
    if (absent := missing(loaded, *_TLS_FLAGS)) and not values["insecure-dev"]:
        loaded.problems.append(
            f"{absent}: boats are let in by certificate alone; `tidelog ca issue NAME --node` writes the files"
        )
    if values["fleet"] and not is_fleet(values["fleet"]):
        loaded.problems.append(
            f"{loaded.named('fleet')} = {values['fleet']!r} is no fleet; use lower-case letters, digits, dots, dashes"
        )
    check_ports(loaded, "grpc-listen", "http-listen")
    check_http(loaded)


def cloud_options(values: dict[str, Any]) -> CloudOptions:
    """What the cloud's process is made of."""
    from tidelog.cluster.node.cloud import CloudOptions
    from tidelog.storage.store.parts import StoreOptions

    certificate, key, client_authority, revocations = paths(values, *_TLS_FLAGS, "tls-revocations")
    return CloudOptions(
        data_dir=Path(values["data-dir"]),
        node=values["node"] or None,
        grpc_listen=values["grpc-listen"],
        tls_cert=certificate,
        tls_key=key,
        tls_client_ca=client_authority,
        revocations=revocations,
        fleet=values["fleet"],
        http=http_options(values, fleet=values["fleet"]),
        insecure_dev=values["insecure-dev"],
        limits=receiver_limits(values),
        store=StoreOptions(log=log_options(values)),
        maintenance=maintenance_options(values),
    )


def receiver_limits(values: dict[str, Any]) -> ReceiverLimits:
    """What one boat may send."""
    from tidelog.core.uplink.receiver import ReceiverLimits

    return ReceiverLimits(
        rate_frames_per_s=values["replication-rate-limit"],
        burst_frames=values["replication-rate-burst"],
        max_live_lag=values["replication-max-live-lag"],
    )


def maintenance_options(values: dict[str, Any]) -> MaintenanceOptions:
    """How long boats' frames are kept."""
    from tidelog.cluster.uplink.options import MaintenanceOptions
    from tidelog.storage.log.options import Retention

    return MaintenanceOptions(
        retention=Retention(max_age_ms=age_limit_ms(values), max_bytes=values["journal-retention-max-size"])
    )


def log_options(values: dict[str, Any]) -> LogOptions:
    """How channels are cut into segments."""
    from tidelog.storage.log.options import LogOptions

    unset = LogOptions()
    return LogOptions(
        segment_bytes_max=values["journal-rotate-size"] or unset.segment_bytes_max,
        segment_age_max_ms=values["journal-rotate-duration"],
    )
