"""The settings of `tidelog node` for NATS: which servers it may use and how, and whether replication goes over them.

Off by default. Servers alone change nothing but what channels may be attached to; `cluster.transport = nats` moves
replication onto them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tidelog.cli.settings.checks import check_certificates, check_file, check_pair, paths
from tidelog.codecs.nats_subjects import DEFAULT_NAMESPACE, check_namespace
from tidelog.config import FILE, NAMES, Loaded, Setting, one_of, under
from tidelog.errors import BadSubject, InvalidConfig

if TYPE_CHECKING:
    from tidelog.transports.nats.connection import NatsOptions

NATS: Final = "NATS"
LINK_TRANSPORT: Final = "link"
NATS_TRANSPORT: Final = "nats"
NATS_SETTINGS: Final = under(
    NATS,
    Setting(
        "cluster.transport",
        "What replication goes over: the nodes' own links, or NATS servers while they are reached.",
        one_of(LINK_TRANSPORT, NATS_TRANSPORT),
        LINK_TRANSPORT,
        flag="transport",
    ),
    Setting(
        "nats.servers", "nats://host:port or tls://host:port, tried one after the other. None by default.", NAMES, ()
    ),
    Setting(
        "nats.namespace",
        "The first part of this cluster's subjects; the same on all its nodes and on no other cluster's.",
        default=DEFAULT_NAMESPACE,
    ),
    Setting("nats.user", "The user that the servers know."),
    Setting("nats.password-file", "Its password; read at every connection.", FILE),
    Setting("nats.credentials", "A .creds file, instead of user and password.", FILE),
    Setting(
        "nats.tls.ca", "The authority of the servers' certificates. Default: those of the system, for tls://.", FILE
    ),
    Setting("nats.tls.cert", "The certificate that servers ask for.", FILE),
    Setting("nats.tls.key", "Its key.", FILE),
)
_ONLY_WITH_SERVERS: Final = tuple(
    setting.flag for setting in NATS_SETTINGS if setting.flag not in ("transport", "nats-servers", "nats-namespace")
)


def check_nats(loaded: Loaded) -> None:
    """Add to the problems whatever stands against using NATS, if it is to be used."""
    values = loaded.values
    try:
        check_namespace(values["nats-namespace"])
    except BadSubject as error:
        loaded.problems.append(f"{loaded.named('nats-namespace')}: {error}")
    if not values["nats-servers"]:
        if values["transport"] == NATS_TRANSPORT:
            loaded.problems.append(
                f"{loaded.named('transport')} = {NATS_TRANSPORT!r} needs -nats-servers, such as nats://127.0.0.1:4222"
            )
        for flag in _ONLY_WITH_SERVERS:
            if values[flag]:
                loaded.problems.append(f"{loaded.named(flag)} needs -nats-servers beside it")
        return
    check_file(loaded, "nats-password-file")
    check_file(loaded, "nats-credentials")
    check_certificates(loaded, "nats-tls-ca")
    if values["nats-tls-cert"] and values["nats-tls-key"]:
        check_pair(loaded, certificate="nats-tls-cert", key="nats-tls-key")
    try:
        nats_options(values)
    except InvalidConfig as error:
        loaded.problems += [f"-nats settings: {problem}" for problem in error.problems]


def nats_options(values: dict[str, Any]) -> NatsOptions | None:
    """How the servers are reached; None where none are named."""
    if not values["nats-servers"]:
        return None
    from tidelog.transports.nats.connection import NatsOptions

    password, credentials, authority, certificate, key = paths(
        values, "nats-password-file", "nats-credentials", "nats-tls-ca", "nats-tls-cert", "nats-tls-key"
    )
    return NatsOptions(
        servers=tuple(values["nats-servers"]),
        name=f"tidelog-{values['id']}",
        user=values["nats-user"] or None,
        password_file=password,
        credentials=credentials,
        tls_ca=authority,
        tls_cert=certificate,
        tls_key=key,
    )
