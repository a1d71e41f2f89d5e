"""Settings that `tidelog boat` and `tidelog cloud` have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tidelog.cli.settings.checks import paths
from tidelog.config import DURATION, FILE, NAMES, SIZE, SWITCH, Setting, under
from tidelog.units import KIB, MIB

if TYPE_CHECKING:
    from tidelog.http.server import HttpOptions

GENERAL: Final = "General"
HTTP: Final = "HTTP"
JOURNAL: Final = "Journal"
REPLICATION: Final = "Replication"
DEVELOPMENT: Final = "Development"

CONTROL_SETTINGS: Final = under(
    GENERAL,
    Setting("", "HOCON file with any of these settings.", FILE, flag="config"),
    Setting("", "Check all settings and files, and exit: 0 good, 2 not.", SWITCH, False, flag="validate-config"),
    Setting("", "Show the version.", SWITCH, False, flag="version"),
    Setting("", "Show this list.", SWITCH, False, flag="help"),
)
DEVICE_SETTINGS: Final = under(
    GENERAL,
    Setting(
        "device.idle-timeout",
        "A device that is silent for so long is forgotten; 0 keeps all.",
        DURATION,
        300_000,
        zero_is_off=True,
    ),
)
INSECURE: Final = Setting(
    "insecure-dev", "Plaintext without certificates, for development only.", SWITCH, False, group=DEVELOPMENT
)
HTTP_SETTINGS: Final = under(
    HTTP,
    Setting("http.tls.cert", "Serve HTTPS with this certificate.", FILE),
    Setting("http.tls.key", "Its key.", FILE),
    Setting("http.tls.client-ca", "Readers may show certificates of this authority.", FILE),
    Setting("http.tokens", "File of tokens; see `tidelog token`.", FILE),
    Setting("http.anonymous", "Anybody may read, without a token.", SWITCH, False),
    Setting("http.cors-origins", "Web pages of these origins may read.", NAMES, ()),
)
ROTATE_SETTINGS: Final = under(
    JOURNAL,
    Setting(
        "journal.rotate.size",
        "Begin a new segment at this size; 0 leaves it to Tidelog.",
        SIZE,
        aliases=("journal.rotate-size",),
        at_least=64 * KIB,
        zero_is_off=True,
    ),
    Setting(
        "journal.rotate.duration",
        "Begin a new segment at this age too, not only when one is full.",
        DURATION,
        aliases=("journal.rotate-duration",),
        at_least=1_000,
        zero_is_off=True,
    ),
)
RETENTION_SETTINGS: Final = under(
    JOURNAL,
    Setting(
        "journal.retention.max-age",
        "Remove what is older, in whole segments.",
        DURATION,
        at_least=1_000,
        zero_is_off=True,
    ),
    Setting(
        "journal.retention.min-keep",
        "Keep at least this much against max-age, not against max-size.",
        DURATION,
        zero_is_off=True,
    ),
    Setting(
        "journal.retention.max-size",
        "Disk limit: remove the oldest above it.",
        SIZE,
        at_least=4 * MIB,
        zero_is_off=True,
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
    certificate, key, client_authority, tokens = paths(
        values, "http-tls-cert", "http-tls-key", "http-tls-client-ca", "http-tokens"
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
