"""Settings that `tidelog boat` and `tidelog cloud` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.config import DURATION, FILE, NAMES, SIZE, SWITCH, Setting
from tidelog.units import KIB, MIB

if TYPE_CHECKING:
    from tidelog.http.server import HttpOptions

GENERAL: Final = "General"
HTTP: Final = "HTTP"
JOURNAL: Final = "Journal"
REPLICATION: Final = "Replication"
DEVELOPMENT: Final = "Development"

CONTROL_SETTINGS: Final = (
    Setting(flag="config", key="", kind=FILE, group=GENERAL, help="HOCON file with any of these settings."),
    Setting(
        flag="validate-config",
        key="",
        kind=SWITCH,
        default=False,
        group=GENERAL,
        help="Check all settings and files, and exit: 0 good, 2 not.",
    ),
    Setting(flag="version", key="", kind=SWITCH, default=False, group=GENERAL, help="Show the version."),
    Setting(flag="help", key="", kind=SWITCH, default=False, group=GENERAL, help="Show this list."),
)
DEVICE_SETTINGS: Final = (
    Setting(
        flag="device-idle-timeout",
        key="device.idle-timeout",
        kind=DURATION,
        default=300_000,
        zero_is_off=True,
        group=GENERAL,
        help="A device that is silent for so long is forgotten; 0 keeps all.",
    ),
)
INSECURE: Final = Setting(
    flag="insecure-dev",
    key="insecure-dev",
    kind=SWITCH,
    default=False,
    group=DEVELOPMENT,
    help="Plaintext without certificates, for development only.",
)
HTTP_SETTINGS: Final = (
    Setting(
        flag="http-tls-cert", key="http.tls.cert", kind=FILE, group=HTTP, help="Serve HTTPS with this certificate."
    ),
    Setting(flag="http-tls-key", key="http.tls.key", kind=FILE, group=HTTP, help="Its key."),
    Setting(
        flag="http-tls-client-ca",
        key="http.tls.client-ca",
        kind=FILE,
        group=HTTP,
        help="Readers may show certificates of this authority.",
    ),
    Setting(flag="http-tokens", key="http.tokens", kind=FILE, group=HTTP, help="File of tokens; see `tidelog token`."),
    Setting(
        flag="http-anonymous",
        key="http.anonymous",
        kind=SWITCH,
        default=False,
        group=HTTP,
        help="Anybody may read, without a token.",
    ),
    Setting(
        flag="http-cors-origins",
        key="http.cors-origins",
        kind=NAMES,
        default=(),
        group=HTTP,
        help="Web pages of these origins may read.",
    ),
)
ROTATE_SETTINGS: Final = (
    Setting(
        flag="journal-rotate-size",
        key="journal.rotate.size",
        aliases=("journal.rotate-size",),
        kind=SIZE,
        at_least=64 * KIB,
        zero_is_off=True,
        group=JOURNAL,
        help="Begin a new segment at this size; 0 leaves it to Tidelog.",
    ),
    Setting(
        flag="journal-rotate-duration",
        key="journal.rotate.duration",
        aliases=("journal.rotate-duration",),
        kind=DURATION,
        at_least=1_000,
        zero_is_off=True,
        group=JOURNAL,
        help="Begin a new segment at this age too, not only when one is full.",
    ),
)
RETENTION_SETTINGS: Final = (
    Setting(
        flag="journal-retention-max-age",
        key="journal.retention.max-age",
        kind=DURATION,
        at_least=1_000,
        zero_is_off=True,
        group=JOURNAL,
        help="Remove what is older, in whole segments.",
    ),
    Setting(
        flag="journal-retention-min-keep",
        key="journal.retention.min-keep",
        kind=DURATION,
        zero_is_off=True,
        group=JOURNAL,
        help="Keep at least this much against max-age, not against max-size.",
    ),
    Setting(
        flag="journal-retention-max-size",
        key="journal.retention.max-size",
        kind=SIZE,
        at_least=4 * MIB,
        zero_is_off=True,
        group=JOURNAL,
        help="Disk limit: remove the oldest above it.",
    ),
)


def age_limit_ms(values: dict[str, int | None]) -> int | None:
    """How old what is kept may become: min-keep wins over max-age, as in lplex."""
    max_age_ms, min_keep_ms = values["journal-retention-max-age"], values["journal-retention-min-keep"]
    return None if max_age_ms is None else max(max_age_ms, min_keep_ms or 0)


def http_options(values: dict[str, Any], *, fleet: str | None = None) -> HttpOptions | None:
    """How HTTP is served; None if it is off."""
    from tidelog.http.access import AccessOptions
    from tidelog.http.server import HttpOptions

    if not values["http-listen"]:
        return None
    certificate, key, client_authority, tokens = (
        Path(values[flag]) if values[flag] else None
        for flag in ("http-tls-cert", "http-tls-key", "http-tls-client-ca", "http-tokens")
    )
    return HttpOptions(
        listen=values["http-listen"],
        tls_cert=certificate,
        tls_key=key,
        tls_client_ca=client_authority,
        access=AccessOptions(
            anonymous=values["http-anonymous"], api_key=values.get("api-key") or "", token_file=tokens, fleet=fleet
        ),
        cors_origins=tuple(values["http-cors-origins"]),
    )
