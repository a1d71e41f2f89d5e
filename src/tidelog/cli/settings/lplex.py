"""Settings of lplex-server and lplex-cloud that Tidelog accepts without doing what they ask, in one table.

Two classes. Those that are harmless to ignore are taken, and the process says once that they have no effect. Those
whose silent absence would betray the operator are refused, in words that say what to do instead.
"""

from __future__ import annotations

from typing import Any, Final

from tidelog.config import ANYTHING, SWITCH, Setting, ValueKind, one_of

_ARCHIVES: Final = "there is no archiving"
_LISTENS: Final = "Tidelog sends nothing by itself"
_NO_ALERTS: Final = "there are no alerts; watch /healthz and /metrics"
_NO_MQTT: Final = "there is no MQTT; readers use HTTP"
_NO_OTEL: Final = "there is no tracing; use /metrics"
_NO_ACME: Final = "there is no ACME, so one port is not shared; see -grpc-listen and -http-listen"
_ARCHIVE_INSTEAD: Final = (
    "Tidelog runs no archive command, and what you meant to archive would be deleted; remove it and copy with "
    "`tidelog log export` on a timer"
)


def _ignored(
    flag: str, key: str, reason: str, *, kind: ValueKind = ANYTHING, unless: Any = None, file_only: bool = False
) -> Setting:
    return Setting(flag=flag, key=key, kind=kind, no_effect=reason, unless=unless, file_only=file_only, group="lplex")


def _refused(flag: str, key: str, instead: str, *, kind: ValueKind = ANYTHING, default: Any = None) -> Setting:
    return Setting(flag=flag, key=key, kind=kind, default=default, refused=instead, group="lplex")


_BOTH: Final = (
    _ignored(
        "journal-retention-soft-pct",
        "journal.retention.soft-pct",
        f"{_ARCHIVES}; retention acts at its limits",
    ),
    _refused(
        "journal-retention-overflow-policy",
        "journal.retention.overflow-policy",
        "Tidelog never stops recording to keep old data; remove it, and raise journal-retention-max-size or the disk",
        kind=one_of("delete-unarchived", "pause-recording"),
        default="delete-unarchived",
    ),
    _refused("journal-archive-command", "journal.archive.command", _ARCHIVE_INSTEAD),
    _ignored("journal-archive-trigger", "journal.archive.trigger", _ARCHIVES),
    _ignored("otel-endpoint", "otel.endpoint", _NO_OTEL),
    _ignored("otel-sample-ratio", "otel.sample-ratio", _NO_OTEL),
)
LPLEX_BOAT_SETTINGS: Final = (
    *_BOTH,
    _ignored("journal-prefix", "journal.prefix", "the journal's files are named by their first offset"),
    _ignored(
        "journal-compression",
        "journal.compression",
        "blocks are compressed with zstd where that makes them smaller",
        kind=one_of("none", "zstd", "zstd-dict"),
        unless="zstd",
    ),
    _ignored(
        "loopback", "loopback", "what other programs of this machine send is always heard", kind=SWITCH, unless=False
    ),
    _ignored("send-rules", "send.rules", "there are no rules; -send-pgns has the PGNs that may be sent"),
    _ignored("send-rate-burst", "send.rate-burst", "as many at once as in a second, see -send-rate-limit"),
    _ignored("virtual-device", "virtual-device.enabled", _LISTENS, kind=SWITCH, unless=False),
    _ignored("virtual-device-name", "virtual-device.name", _LISTENS),
    _ignored("virtual-device-model-id", "virtual-device.model-id", _LISTENS),
    _ignored("virtual-device-claim-heartbeat", "virtual-device.claim-heartbeat", _LISTENS),
    _ignored("virtual-device-product-info-heartbeat", "virtual-device.product-info-heartbeat", _LISTENS),
    _ignored("requests", "requests", _LISTENS, file_only=True),
    _ignored("requests-global-min-interval", "requests-global-min-interval", _LISTENS, file_only=True),
    _ignored("clients-slots", "clients.slots", "clients make their sessions: PUT /clients/{id}", file_only=True),
    _ignored("bus-silence-timeout", "bus-silence-timeout", f"{_NO_ALERTS}, with -bus-silence-threshold"),
    _ignored("alert-webhook-url", "alert.webhook-url", _NO_ALERTS),
    _ignored("alert-dedup-window", "alert.dedup-window", _NO_ALERTS),
    _ignored("mqtt-broker", "mqtt.broker", _NO_MQTT),
    _ignored("mqtt-topic-prefix", "mqtt.topic-prefix", _NO_MQTT),
    _ignored("mqtt-client-id", "mqtt.client-id", _NO_MQTT),
    _ignored("mqtt-qos", "mqtt.qos", _NO_MQTT),
    _ignored("mqtt-username", "mqtt.username", _NO_MQTT),
    _ignored("mqtt-password", "mqtt.password", _NO_MQTT),
    _ignored("mdns", "mdns", "there is no mDNS; name the boat's address", kind=SWITCH, unless=False),
)
LPLEX_CLOUD_SETTINGS: Final = (
    *_BOTH,
    _ignored("listen", "listen", _NO_ACME),
    _refused(
        "acme-domain",
        "acme.domain",
        "Tidelog gets no certificate by ACME; remove it, let another program renew the files of -tls-cert and "
        "-tls-key (they are read again when they change), and set -tls-client-ca",
    ),
    _ignored("acme-email", "acme.email", _NO_ACME),
    _ignored("ring-size", "ring-size", "readers are fed from the log and a bounded queue"),
)
