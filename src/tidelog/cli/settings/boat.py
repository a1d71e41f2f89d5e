"""The settings of `tidelog boat`: their list, what must hold between them, and the options they become.

The list has every flag and key of lplex-server (those that do nothing here: `settings.lplex`) and our own.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tidelog.cli.settings.checks import (
    check_certificate_names,
    check_certificates,
    check_folder,
    check_http,
    check_pair,
    check_replay,
)
from tidelog.cli.settings.common import (
    CONTROL_SETTINGS,
    DEVELOPMENT,
    DEVICE_SETTINGS,
    HTTP,
    HTTP_SETTINGS,
    INSECURE,
    JOURNAL,
    REPLICATION,
    RETENTION_SETTINGS,
    ROTATE_SETTINGS,
    age_limit_ms,
    http_options,
)
from tidelog.cli.settings.lplex import LPLEX_BOAT_SETTINGS
from tidelog.config import (
    DURATION,
    FILE,
    FOLDER,
    INTEGER,
    LISTEN,
    NAMES,
    NUMBER,
    PORT,
    SIZE,
    SWITCH,
    TARGET,
    Loaded,
    Setting,
)
from tidelog.units import KIB

if TYPE_CHECKING:
    from tidelog.edge.boat import BoatOptions
    from tidelog.edge.journal.options import JournalOptions
    from tidelog.edge.sources.source import FrameSource
    from tidelog.edge.sources.transmitting import SendOptions
    from tidelog.edge.uplink.target import ReloadingTarget, UplinkTarget

BUS: Final = "Bus"
PGN_MAX: Final = (1 << 18) - 1
BOAT_FILES: Final = (
    "tidelog-boat.conf",
    "lplex-server.conf",
    "/etc/lplex/lplex-server.conf",
    "lplex.conf",
    "/etc/lplex/lplex.conf",
)
"""Where settings are looked for when -config names no file; the first that exists is read."""
_BLOCK_BYTES_PER_FRAME: Final = 16
"""What a frame takes in a block of lplex, so that a block size of theirs gives blocks of as many frames here."""
_TLS_FLAGS: Final = ("replication-tls-cert", "replication-tls-key", "replication-tls-ca")

_BUS_SETTINGS: Final = (
    Setting(flag="interface", key="interface", default="can0", group=BUS, help="CAN interface to listen on."),
    Setting(
        flag="interfaces",
        key="interfaces",
        kind=NAMES,
        default=(),
        group=BUS,
        help="Several of them (can0,can1), as one bus; wins over -interface.",
    ),
    Setting(
        flag="ring-size",
        key="ring-size",
        kind=INTEGER,
        default=65_536,
        at_least=1,
        group=BUS,
        help="Newest frames kept in memory.",
    ),
    Setting(
        flag="bus-silence-threshold",
        key="health.bus-silence-threshold",
        kind=DURATION,
        zero_is_off=True,
        group=BUS,
        help="A bus that is silent for so long is unhealthy.",
    ),
    *DEVICE_SETTINGS,
)
_JOURNAL_SETTINGS: Final = (
    Setting(
        flag="journal-dir", key="journal.dir", kind=FOLDER, default="journal", group=JOURNAL, help="Where it lies."
    ),
    Setting(
        flag="journal-block-size",
        key="journal.block-size",
        kind=SIZE,
        default=256 * KIB,
        at_least=4 * KIB,
        group=JOURNAL,
        help="Size of a block before compression, at 16 bytes a frame and 65,536 frames at most.",
    ),
    *ROTATE_SETTINGS,
    *RETENTION_SETTINGS,
)
_REPLICATION_SETTINGS: Final = (
    Setting(flag="replication-target", key="replication.target", kind=TARGET, group=REPLICATION, help="The cloud."),
    Setting(flag="replication-instance-id", key="replication.instance-id", group=REPLICATION, help="This boat's name."),
    Setting(
        flag="replication-tls-cert",
        key="replication.tls.cert",
        kind=FILE,
        group=REPLICATION,
        help="This boat's certificate.",
    ),
    Setting(flag="replication-tls-key", key="replication.tls.key", kind=FILE, group=REPLICATION, help="Its key."),
    Setting(
        flag="replication-tls-ca",
        key="replication.tls.ca",
        kind=FILE,
        group=REPLICATION,
        help="The authority that signed the cloud.",
    ),
    Setting(
        flag="replication-server-name",
        key="replication.server-name",
        group=REPLICATION,
        help="The name in the cloud's certificate, if it is not the host of the target.",
    ),
    Setting(
        flag="replication-max-live-lag",
        key="replication.max-live-lag",
        kind=INTEGER,
        default=10_000,
        at_least=1,
        zero_is_default=True,
        group=REPLICATION,
        help="Frames that Live may be behind; what is beyond goes by Backfill.",
    ),
    Setting(
        flag="replication-lag-check-interval",
        key="replication.lag-check-interval",
        kind=INTEGER,
        default=1_000,
        at_least=1,
        zero_is_default=True,
        group=REPLICATION,
        help="Look at the lag every so many frames.",
    ),
    Setting(
        flag="replication-min-lag-reconnect-interval",
        key="replication.min-lag-reconnect-interval",
        kind=DURATION,
        default=30_000,
        zero_is_default=True,
        group=REPLICATION,
        help="The shortest time between two hang-ups for lag.",
    ),
    Setting(
        flag="replication-backfill-bytes-per-s",
        key="replication.backfill-bytes-per-s",
        kind=SIZE,
        at_least=1,
        zero_is_off=True,
        group=REPLICATION,
        help="Cap of Backfill on a metered link.",
    ),
    Setting(
        flag="replication-daily-bytes",
        key="replication.daily-bytes",
        kind=SIZE,
        at_least=1,
        group=REPLICATION,
        help="Most bytes sent in a day; none by default.",
    ),
    Setting(
        flag="replication-daily-reset-hour",
        key="replication.daily-reset-hour",
        kind=INTEGER,
        default=0,
        at_least=0,
        at_most=23,
        group=REPLICATION,
        help="The hour (UTC) at which that day begins.",
    ),
)
_HTTP_SETTINGS: Final = (
    Setting(flag="port", key="port", kind=PORT, default=8089, group=HTTP, help="On all interfaces; 0 any, or off."),
    Setting(
        flag="http-listen",
        key="http.listen",
        kind=LISTEN,
        group=HTTP,
        help="An address instead, such as 127.0.0.1:8089, or off; wins over -port.",
    ),
    *HTTP_SETTINGS,
    Setting(
        flag="api-key", key="api-key", group=HTTP, help="One token with every right; the environment hides it best."
    ),
)
_CLIENT_SETTINGS: Final = (
    Setting(
        flag="max-buffer-duration",
        key="max-buffer-duration",
        kind=DURATION,
        default=300_000,
        zero_is_default=True,
        group=HTTP,
        help="How long a reader's session (/clients) is kept while it is away, at most.",
    ),
    Setting(
        flag="send-enabled",
        key="send.enabled",
        kind=SWITCH,
        default=False,
        group=HTTP,
        help="Let tokens with the scope write:bus put messages on the bus.",
    ),
    Setting(
        flag="send-pgns",
        key="send.pgns",
        kind=NAMES,
        default=(),
        group=HTTP,
        help="The PGNs that may be sent or asked for, or all.",
    ),
    Setting(
        flag="send-rate-limit",
        key="send.rate-limit",
        kind=NUMBER,
        default=10.0,
        at_least=0,
        at_most=1000,
        zero_is_default=True,
        group=HTTP,
        help="Messages a second that may be sent.",
    ),
    Setting(
        flag="read-only",
        key="read-only",
        kind=SWITCH,
        default=False,
        group=HTTP,
        help="Send nothing, whatever -send-enabled says.",
    ),
)
_SOURCE_SETTINGS: Final = (
    Setting(
        flag="replay",
        key="replay.files",
        kind=NAMES,
        default=(),
        group=DEVELOPMENT,
        help="Replay these files instead of a bus: .lpj, candump, canboat .raw.",
    ),
    Setting(
        flag="replay-speed",
        key="replay.speed",
        kind=NUMBER,
        default=1.0,
        at_least=0,
        at_most=1e6,
        group=DEVELOPMENT,
        help="1 is real time, 0 as fast as possible.",
    ),
    Setting(
        flag="simulate",
        key="simulate.seed",
        kind=INTEGER,
        at_least=0,
        group=DEVELOPMENT,
        help="Sail a simulated voyage with this seed instead of a bus.",
    ),
    Setting(
        flag="simulate-rate",
        key="simulate.rate",
        kind=NUMBER,
        at_least=1e-3,
        at_most=1e6,
        group=DEVELOPMENT,
        help="Frames a second of the simulated bus.",
    ),
    INSECURE,
)
BOAT_SETTINGS: Final[tuple[Setting, ...]] = (
    *CONTROL_SETTINGS,
    *_BUS_SETTINGS,
    *_JOURNAL_SETTINGS,
    *_REPLICATION_SETTINGS,
    *_HTTP_SETTINGS,
    *_CLIENT_SETTINGS,
    *_SOURCE_SETTINGS,
    *LPLEX_BOAT_SETTINGS,
)


def check_boat(loaded: Loaded) -> None:
    """Add to the problems whatever would stop this boat later, and open nothing.

    Afterwards the value of `http-listen` is where HTTP listens, None if it is off, whichever setting said so.
    """
    values = loaded.values
    if "http-listen" not in loaded.given and values["port"] is not None:
        values["http-listen"] = f":{values['port']}"
    check_folder(loaded, "journal-dir", needed_for="the journal, which is what is shipped")
    block_bytes = values["journal-block-size"]
    if block_bytes & (block_bytes - 1):
        loaded.problems.append(f"{loaded.named('journal-block-size')} = {block_bytes} is not a power of two")
    if values["replay"] and values["simulate"] is not None:
        loaded.problems.append(f"{loaded.named('replay')} and {loaded.named('simulate')} exclude each other; keep one")
    check_replay(loaded, "replay")
    if 0 < values["replay-speed"] < 1e-3:
        loaded.problems.append(f"{loaded.named('replay-speed')} is too low; the least is 0.001, or 0 for no pause")
    _check_interfaces(loaded)
    _check_replication(loaded)
    check_http(loaded)
    _check_sending(loaded)


def _check_sending(loaded: Loaded) -> None:
    """What may be sent is said PGN by PGN: engines and rudders listen to the bus."""
    values = loaded.values
    pgns = values["send-pgns"]
    wrong = [text for text in pgns if text != "all" and not (text.isascii() and text.isdecimal())]
    wrong += [text for text in pgns if text not in ("all", *wrong) and int(text) > PGN_MAX]
    if wrong:
        loaded.problems.append(f"{loaded.named('send-pgns')}: {wrong[0]!r} is no PGN from 0 to {PGN_MAX}, nor all")
    if not values["send-enabled"]:
        return
    if not pgns:
        loaded.problems.append(
            f"{loaded.named('send-enabled')} needs -send-pgns beside it: the PGNs that may be sent, or all"
        )
    if "send-rules" in loaded.given:
        loaded.problems.append(
            f"{loaded.named('send-rules')} would have no effect, and sending is on; say it with -send-pgns instead"
        )


def send_options(values: dict[str, Any]) -> SendOptions | None:
    """What callers may put on the bus; None for nothing."""
    from tidelog.edge.sources.transmitting import SendOptions

    if not values["send-enabled"] or values["read-only"]:
        return None
    pgns = values["send-pgns"]
    return SendOptions(
        pgns=None if "all" in pgns else frozenset(int(text) for text in pgns), rate_per_s=values["send-rate-limit"]
    )


def _check_interfaces(loaded: Loaded) -> None:
    values = loaded.values
    if values["replay"] or values["simulate"] is not None:
        return
    names = interfaces(values)
    if not all(names):
        loaded.problems.append(f"{loaded.named('interface')} is empty; name a CAN interface such as can0")
    if len(set(names)) < len(names):
        loaded.problems.append(f"{loaded.named('interfaces')} names one interface twice")
    if importlib.util.find_spec("can") is None:
        loaded.problems.append(
            "a CAN interface needs the extra 'can'; install it with: pip install 'tidelog[can]', or use -replay"
        )


def _check_replication(loaded: Loaded) -> None:
    from tidelog.pki.identity import is_name

    values = loaded.values
    target, instance = values["replication-target"], values["replication-instance-id"]
    if bool(target) != bool(instance):
        there, missing = ("target", "instance-id") if target else ("instance-id", "target")
        loaded.problems.append(f"{loaded.named(f'replication-{there}')} needs -replication-{missing} beside it")
    if instance and not is_name(instance):
        loaded.problems.append(
            f"{loaded.named('replication-instance-id')} = {instance!r} is no name; use 1 to 63 letters, digits, dots, "
            "dashes and underscores, beginning with a letter or digit"
        )
    certificate = check_pair(loaded, certificate="replication-tls-cert", key="replication-tls-key")
    check_certificates(loaded, "replication-tls-ca")
    if certificate is not None and instance and is_name(instance):
        check_certificate_names(loaded, certificate, "replication-instance-id")
    missing_files = [f"-{flag}" for flag in _TLS_FLAGS if not values[flag]]
    if target and missing_files and not values["insecure-dev"]:
        loaded.problems.append(
            f"{loaded.named('replication-target')} needs {' and '.join(missing_files)}: the uplink is never plaintext "
            "and trusts no authority by itself; `tidelog ca issue` writes the files"
        )


def interfaces(values: dict[str, Any]) -> tuple[str, ...]:
    """The CAN interfaces to listen on."""
    several: tuple[str, ...] = values["interfaces"]
    return several or (values["interface"],)


def boat_options(values: dict[str, Any], *, log: Callable[[str], None] = lambda _: None) -> BoatOptions:
    """What the boat's process is made of. Reads the certificates; they are read again at every dial."""
    from tidelog.core.uplink.sender import SenderConfig
    from tidelog.edge.boat import BoatOptions

    return BoatOptions(
        journal_dir=Path(values["journal-dir"]).absolute(),
        target=_target(values, log),
        daily_bytes=values["replication-daily-bytes"],
        daily_reset_hour=values["replication-daily-reset-hour"],
        instance=values["replication-instance-id"] or "",
        http=http_options(values),
        device_idle_ms=values["device-idle-timeout"] or None,
        bus_silence_ms=values["bus-silence-threshold"] or None,
        ring_frames=values["ring-size"],
        send=send_options(values),
        buffer_ms_max=values["max-buffer-duration"],
        journal=_journal_options(values),
        sender=SenderConfig(
            max_live_lag=values["replication-max-live-lag"],
            lag_check_interval=values["replication-lag-check-interval"],
            min_lag_reconnect_interval_ms=values["replication-min-lag-reconnect-interval"],
            backfill_bytes_per_s=values["replication-backfill-bytes-per-s"],
        ),
    )


def _journal_options(values: dict[str, Any]) -> JournalOptions:
    from tidelog.edge.journal.options import FRAMES_MAX, JournalOptions
    from tidelog.storage.log.options import Retention

    unset = JournalOptions()
    return JournalOptions(
        seal_frames=min(values["journal-block-size"] // _BLOCK_BYTES_PER_FRAME, FRAMES_MAX),
        disk_bytes_max=values["journal-retention-max-size"],
        retention=Retention(max_age_ms=age_limit_ms(values)),
        sealed_segment_bytes=values["journal-rotate-size"] or unset.sealed_segment_bytes,
        segment_age_max_ms=values["journal-rotate-duration"],
        keep_unacked=bool(values["replication-target"]),
    )


def _target(values: dict[str, Any], log: Callable[[str], None]) -> UplinkTarget | ReloadingTarget | None:
    from tidelog.edge.uplink.target import ReloadingTarget, UplinkTarget
    from tidelog.pki.tls_files import read_pem

    if not values["replication-target"]:
        return None
    paths = [Path(values[flag]) if values[flag] else None for flag in _TLS_FLAGS]
    certificate, key, authority = (read_pem(path) if path else None for path in paths)
    target = UplinkTarget(
        address=values["replication-target"],
        instance=values["replication-instance-id"],
        certificate=certificate,
        key=key,
        authority=authority,
        server_name=values["replication-server-name"],
        insecure_dev=values["insecure-dev"],
    )
    certificate_path, key_path, authority_path = paths
    if certificate_path is None or key_path is None or authority_path is None:
        return target
    return ReloadingTarget(target, certificate=certificate_path, key=key_path, authority=authority_path, log=log)


def open_source(values: dict[str, Any], *, log: Callable[[str], None]) -> FrameSource:
    """The boat's frames: a replay, a simulated voyage, or one or more buses."""
    from tidelog.edge.sources.source import (
        MergedSource,
        ReplayOptions,
        ReplaySource,
        SocketCanOptions,
        SocketCanSource,
        VoyageSource,
    )

    if values["replay"]:
        return ReplaySource(values["replay"], options=ReplayOptions(speed=values["replay-speed"]))
    now_us = time.time_ns() // 1000
    if values["simulate"] is not None:
        return VoyageSource(seed=values["simulate"], now_us=now_us, frames_per_s=values["simulate-rate"])

    def bus(name: str) -> Callable[[], FrameSource]:
        return lambda: SocketCanSource(options=SocketCanOptions(channel=name))

    names = interfaces(values)
    return bus(names[0])() if len(names) == 1 else MergedSource({name: bus(name) for name in names}, log=log)
