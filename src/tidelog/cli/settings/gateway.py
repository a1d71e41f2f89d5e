"""The settings of `tidelog node` for the Liftbridge gateway.

Off by default. With certificates the gateway has two sides: clients see the node's own certificate and show theirs;
towards the cluster the gateway is an operator or a client with a certificate of its own.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tidelog.cli.settings.checks import check_pair, check_ports, missing, paths
from tidelog.config import FILE, LISTEN, SWITCH, TARGET, Loaded, Setting, split_address, under

if TYPE_CHECKING:
    from tidelog.cluster.node.process import NodeProcessOptions
    from tidelog.gateways.liftbridge.gateway import LiftbridgeGateway, LiftbridgeOptions

LIFTBRIDGE: Final = "Liftbridge"
GATEWAY_SETTINGS: Final = under(
    LIFTBRIDGE,
    Setting("liftbridge.listen", "For clients of Liftbridge's API, such as :9292. Off by default.", LISTEN),
    Setting(
        "liftbridge.advertise",
        "What its clients are told to dial. Default: this node's host and -liftbridge-listen's port.",
        TARGET,
    ),
    Setting(
        "liftbridge.link.cert",
        "As whom the gateway speaks to the cluster: a certificate of an operator, or of a client with grants.",
        FILE,
    ),
    Setting("liftbridge.link.key", "Its key.", FILE),
    Setting(
        "liftbridge.anonymous",
        "Ask no client for a certificate: all may do what the client of this name was granted. Off by default.",
    ),
    Setting(
        "liftbridge.activity",
        "Publish what happens to streams and groups as the stream __activity. The same on all nodes.",
        SWITCH,
        False,
    ),
)


def check_gateway(loaded: Loaded) -> None:
    """Add to the problems whatever stands against serving Liftbridge's clients, if they are to be served."""
    from tidelog.pki.identity import is_name

    values = loaded.values
    if not values["liftbridge-listen"]:
        return
    check_pair(loaded, certificate="liftbridge-link-cert", key="liftbridge-link-key")
    absent = missing(loaded, "liftbridge-link-cert", "liftbridge-link-key")
    if absent and not values["insecure-dev"]:
        loaded.problems.append(
            f"{absent}: the gateway is a client of its own cluster; `tidelog ca issue liftbridge --operator` writes "
            "the files"
        )
    if values["liftbridge-anonymous"] and not is_name(values["liftbridge-anonymous"]):
        loaded.problems.append(f"{loaded.named('liftbridge-anonymous')} is no name of a client")
    check_ports(loaded, "liftbridge-listen", "listen", "http-listen", "grpc-listen")


def liftbridge_options(values: dict[str, Any]) -> LiftbridgeOptions | None:
    """After `check_gateway`; None if it is off."""
    if not values["liftbridge-listen"]:
        return None
    from tidelog.gateways.liftbridge.gateway import LiftbridgeOptions

    certificate, key, authority, revocations = paths(values, "tls-cert", "tls-key", "tls-ca", "tls-revocations")
    link_certificate, link_key = paths(values, "liftbridge-link-cert", "liftbridge-link-key")
    return LiftbridgeOptions(
        listen=values["liftbridge-listen"],
        advertise=values["liftbridge-advertise"],
        insecure_dev=values["insecure-dev"],
        tls_cert=certificate,
        tls_key=key,
        tls_ca=authority,
        link_cert=link_certificate,
        link_key=link_key,
        anonymous=values["liftbridge-anonymous"] or None,
        revocations=revocations,
        fleet=values["fleet"] or None,
        activity=values["liftbridge-activity"],
    )


def with_gateway(
    values: dict[str, Any], node: NodeProcessOptions, log: Callable[[str], None]
) -> tuple[NodeProcessOptions, LiftbridgeGateway | None]:
    """The gateway with its port taken (None if it is off), and a node whose catalog entry has its address."""
    options = liftbridge_options(values)
    if options is None:
        return node, None
    from tidelog.gateways.liftbridge.gateway import LiftbridgeGateway

    gateway = LiftbridgeGateway(options, log=log)
    gateway.bind()
    link = node.advertise or node.peers.get(node.node) or node.listen
    host = (split_address(link)[0] if link else "") or socket.gethostname()
    return replace(node, gateway_addresses=(gateway.address(host),)), gateway
