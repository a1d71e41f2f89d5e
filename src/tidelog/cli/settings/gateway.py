"""The settings of the doors in front of a node, of `tidelog node`: Liftbridge's API.

Off by default. With certificates the door has two sides: clients see the node's own certificate and show theirs;
towards the cluster the door is an operator or a client with a certificate of its own.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.cli.settings.checks import check_pair, check_ports
from tidelog.config import FILE, LISTEN, SWITCH, TARGET, Loaded, Setting, split_address

if TYPE_CHECKING:
    from tidelog.cluster.node.process import NodeProcessOptions
    from tidelog.gateways.liftbridge.gateway import LiftbridgeGateway, LiftbridgeOptions

LIFTBRIDGE: Final = "Liftbridge"
DOOR_SETTINGS: Final = (
    Setting(
        flag="liftbridge-listen",
        key="liftbridge.listen",
        kind=LISTEN,
        group=LIFTBRIDGE,
        help="For clients of Liftbridge's API, such as :9292. Off by default.",
    ),
    Setting(
        flag="liftbridge-advertise",
        key="liftbridge.advertise",
        kind=TARGET,
        group=LIFTBRIDGE,
        help="What its clients are told to dial. Default: this node's host and -liftbridge-listen's port.",
    ),
    Setting(
        flag="liftbridge-link-cert",
        key="liftbridge.link.cert",
        kind=FILE,
        group=LIFTBRIDGE,
        help="As whom the door speaks to the cluster: a certificate of an operator, or of a client with grants.",
    ),
    Setting(flag="liftbridge-link-key", key="liftbridge.link.key", kind=FILE, group=LIFTBRIDGE, help="Its key."),
    Setting(
        flag="liftbridge-anonymous",
        key="liftbridge.anonymous",
        group=LIFTBRIDGE,
        help="Ask no client for a certificate: all may do what the client of this name was granted. Off by default.",
    ),
    Setting(
        flag="liftbridge-activity",
        key="liftbridge.activity",
        kind=SWITCH,
        default=False,
        group=LIFTBRIDGE,
        help="Publish what happens to streams and groups as the stream __activity. The same on all nodes.",
    ),
)


def check_doors(loaded: Loaded) -> None:
    """Add to the problems whatever stands against serving Liftbridge's clients, if they are to be served."""
    from tidelog.pki.identity import is_name

    values = loaded.values
    if not values["liftbridge-listen"]:
        return
    check_pair(loaded, certificate="liftbridge-link-cert", key="liftbridge-link-key")
    files = ("liftbridge-link-cert", "liftbridge-link-key")
    missing = [f"-{flag}" for flag in files if not values[flag]]
    if missing and not values["insecure-dev"]:
        loaded.problems.append(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: the door is a client of its own "
            "cluster; `tidelog ca issue liftbridge --operator` writes the files"
        )
    if values["liftbridge-anonymous"] and not is_name(values["liftbridge-anonymous"]):
        loaded.problems.append(f"{loaded.named('liftbridge-anonymous')} is no name of a client")
    check_ports(loaded, "liftbridge-listen", "listen", "http-listen", "grpc-listen")


def liftbridge_options(values: dict[str, Any]) -> LiftbridgeOptions | None:
    """After `check_doors`; None where the door stays shut."""
    if not values["liftbridge-listen"]:
        return None
    from tidelog.gateways.liftbridge.gateway import LiftbridgeOptions

    certificate, key, authority, link_certificate, link_key, revocations = (
        Path(values[flag]) if values[flag] else None
        for flag in (
            "tls-cert",
            "tls-key",
            "tls-ca",
            "liftbridge-link-cert",
            "liftbridge-link-key",
            "tls-revocations",
        )
    )
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


def with_door(
    values: dict[str, Any], node: NodeProcessOptions, log: Callable[[str], None]
) -> tuple[NodeProcessOptions, LiftbridgeGateway | None]:
    """The door with its port taken (None where it stays shut), and a node whose catalog entry tells of it."""
    options = liftbridge_options(values)
    if options is None:
        return node, None
    from tidelog.gateways.liftbridge.gateway import LiftbridgeGateway

    door = LiftbridgeGateway(options, log=log)
    door.bind()
    link = node.advertise or node.peers.get(node.node) or node.listen
    host = (split_address(link)[0] if link else "") or socket.gethostname()
    return replace(node, other_doors=(door.address(host),)), door
