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
    paths,
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
    under,
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
    *under(
        BUS,
        Setting("interface", "CAN interface to listen on.", default="can0"),
        Setting("interfaces", "Several of them (can0,can1), as one bus; wins over -interface.", NAMES, ()),
        Setting("ring-size", "Newest frames kept in memory.", INTEGER, 65_536, at_least=1),
        Setting(
            "health.bus-silence-threshold",
            "A bus that is silent for so long is unhealthy.",
            DURATION,
            flag="bus-silence-threshold",
            zero_is_off=True,
        ),
    ),
    *DEVICE_SETTINGS,
)
_JOURNAL_SETTINGS: Final = (
    *under(
        JOURNAL,
        Setting("journal.dir", "Where it lies.", FOLDER, "journal"),
        Setting(
            "journal.block-size",
            "Size of a block before compression, at 16 bytes a frame and 65,536 frames at most.",
            SIZE,
            256 * KIB,
            at_least=4 * KIB,
        ),
    ),
    *ROTATE_SETTINGS,
    *RETENTION_SETTINGS,
)
_REPLICATION_SETTINGS: Final = under(
    REPLICATION,
    Setting("replication.target", "The cloud.", TARGET),
    Setting("replication.instance-id", "This boat's name."),
    Setting("replication.tls.cert", "This boat's certificate.", FILE),
    Setting("replication.tls.key", "Its key.", FILE),
    Setting("replication.tls.ca", "The authority that signed the cloud.", FILE),
    Setting("replication.server-name", "The name in the cloud's certificate, if it is not the host of the target."),
    Setting(
        "replication.max-live-lag",
        "Frames that Live may be behind; what is beyond goes by Backfill.",
        INTEGER,
        10_000,
        at_least=1,
        zero_is_default=True,
    ),
    Setting(
        "replication.lag-check-interval",
        "Look at the lag every so many frames.",
        INTEGER,
        1_000,
        at_least=1,
        zero_is_default=True,
    ),
    Setting(
        "replication.min-lag-reconnect-interval",
        "The shortest time between two hang-ups for lag.",
        DURATION,
        30_000,
        zero_is_default=True,
    ),
    Setting(
        "replication.backfill-bytes-per-s", "Cap of Backfill on a metered link.", SIZE, at_least=1, zero_is_off=True
    ),
    Setting("replication.daily-bytes", "Most bytes sent in a day; none by default.", SIZE, at_least=1),
    Setting(
        "replication.daily-reset-hour", "The hour (UTC) at which that day begins.", INTEGER, 0, at_least=0, at_most=23
    ),
)
_HTTP_SETTINGS: Final = (
    Setting("port", "On all interfaces; 0 any, or off.", PORT, 8089, group=HTTP),
    Setting("http.listen", "An address instead, such as 127.0.0.1:8089, or off; wins over -port.", LISTEN, group=HTTP),
    *HTTP_SETTINGS,
    Setting("api-key", "One token with every right; the environment hides it best.", group=HTTP),
)
_CLIENT_SETTINGS: Final = under(
    HTTP,
    Setting(
        "max-buffer-duration",
        "How long a reader's session (/clients) is kept while it is away, at most.",
        DURATION,
        300_000,
        zero_is_default=True,
    ),
    Setting("send.enabled", "Let tokens with the scope write:bus put messages on the bus.", SWITCH, False),
    Setting("send.pgns", "The PGNs that may be sent or asked for, or all.", NAMES, ()),
    Setting(
        "send.rate-limit",
        "Messages a second that may be sent.",
        NUMBER,
        10.0,
        at_least=0,
        at_most=1000,
        zero_is_default=True,
    ),
    Setting("read-only", "Send nothing, whatever -send-enabled says.", SWITCH, False),
)
_SOURCE_SETTINGS: Final = (
    *under(
        DEVELOPMENT,
        Setting(
            "replay.files",
            "Replay these files instead of a bus: .lpj, candump, canboat .raw, and all that `log import` reads.",
            NAMES,
            (),
            flag="replay",
        ),
        Setting("replay.speed", "1 is real time, 0 as fast as possible.", NUMBER, 1.0, at_least=0, at_most=1e6),
        Setting(
            "simulate.seed",
            "Sail a simulated voyage with this seed instead of a bus.",
            INTEGER,
            flag="simulate",
            at_least=0,
        ),
        Setting("simulate.rate", "Frames a second of the simulated bus.", NUMBER, at_least=1e-3, at_most=1e6),
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
    certificate_path, key_path, authority_path = files = paths(values, *_TLS_FLAGS)
    certificate, key, authority = (read_pem(path) if path else None for path in files)
    target = UplinkTarget(
        address=values["replication-target"],
        instance=values["replication-instance-id"],
        certificate=certificate,
        key=key,
        authority=authority,
        server_name=values["replication-server-name"],
        insecure_dev=values["insecure-dev"],
    )
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
