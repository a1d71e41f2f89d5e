"""`tidelog boat` and `tidelog cloud`, also installed as `lplex-server` and `lplex-cloud`.

Both take their settings as flags (one dash or two), environment or HOCON file; see `tidelog.config`. They
run until SIGINT or SIGTERM and then stop cleanly. Log lines go to stderr, one a line, key=value.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidelog.config import DURATION, INTEGER, NUMBER, SIZE, SWITCH, Setting, load_settings
from tidelog.errors import InvalidConfig

if TYPE_CHECKING:
    from tidelog.edge.sources import Source
    from tidelog.edge.uplink_client import UplinkTarget

_CONFIG = Setting(flag="config", key="config", help="HOCON file with any of these settings.")
_INSECURE = Setting(
    flag="insecure-dev", key="insecure-dev", kind=SWITCH, default=False, help="Plaintext, for development only."
)
BOAT_SETTINGS: tuple[Setting, ...] = (
    _CONFIG,
    Setting(flag="interface", key="interface", default="can0", help="SocketCAN interface to listen on."),
    Setting(flag="replay", key="replay.files", help="Replay these files instead (comma-separated)."),
    Setting(flag="replay-speed", key="replay.speed", kind=NUMBER, default=1.0, help="0 is as fast as possible."),
    Setting(flag="simulate", key="simulate.seed", kind=INTEGER, help="Sail a simulated voyage with this seed instead."),
    Setting(flag="simulate-rate", key="simulate.rate", kind=NUMBER, help="Frames a second of the simulated bus."),
    Setting(flag="ring-size", key="ring-size", kind=INTEGER, default=65_536, help="Newest frames kept in memory."),
    Setting(flag="journal-dir", key="journal.dir", default="journal", help="Where the journal lies."),
    Setting(flag="journal-retention-max-size", key="journal.retention.max-size", kind=SIZE, help="Disk limit."),
    Setting(flag="replication-target", key="replication.target", help="host:port of the cloud."),
    Setting(flag="replication-instance-id", key="replication.instance-id", help="This boat's name."),
    Setting(flag="replication-tls-cert", key="replication.tls.cert", help="This boat's certificate."),
    Setting(flag="replication-tls-key", key="replication.tls.key", help="Its key."),
    Setting(flag="replication-tls-ca", key="replication.tls.ca", help="The authority that signed the cloud."),
    Setting(flag="replication-max-live-lag", key="replication.max-live-lag", kind=INTEGER, default=10_000),
    Setting(flag="replication-lag-check-interval", key="replication.lag-check-interval", kind=INTEGER, default=1_000),
    Setting(
        flag="replication-min-lag-reconnect-interval",
        key="replication.min-lag-reconnect-interval",
        kind=DURATION,
        default=30_000,
    ),
    Setting(
        flag="replication-backfill-bytes-per-s",
        key="replication.backfill-bytes-per-s",
        kind=SIZE,
        help="Cap of Backfill on a metered link.",
    ),
    _INSECURE,
)
CLOUD_SETTINGS: tuple[Setting, ...] = (
    _CONFIG,
    Setting(flag="grpc-listen", key="grpc.listen", default=":9443", help="Address of the uplink."),
    Setting(flag="data-dir", key="data-dir", default="data", help="Where the channels lie."),
    Setting(flag="tls-cert", key="grpc.tls.cert", help="The cloud's certificate."),
    Setting(flag="tls-key", key="grpc.tls.key", help="Its key."),
    Setting(flag="tls-client-ca", key="grpc.tls.client-ca", help="The authority that signs boats."),
    Setting(flag="tls-revocations", key="grpc.tls.revocations", help="File of revoked serial numbers."),
    Setting(flag="replication-rate-limit", key="replication.rate-limit", kind=NUMBER, default=2_000.0),
    Setting(flag="replication-rate-burst", key="replication.rate-burst", kind=INTEGER, default=500),
    Setting(flag="replication-max-live-lag", key="replication.max-live-lag", kind=INTEGER, default=10_000),
    _INSECURE,
)

_LOOSE = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": []}


@click.command(context_settings=_LOOSE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def boat(arguments: tuple[str, ...]) -> None:
    """Record a bus into a journal and ship it to the cloud."""
    values = _settings(BOAT_SETTINGS, arguments, "boat")
    if values is not None:
        asyncio.run(_until_stopped(lambda: _run_boat(values)))


@click.command(context_settings=_LOOSE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def cloud(arguments: tuple[str, ...]) -> None:
    """Take the journals of many boats and keep them."""
    values = _settings(CLOUD_SETTINGS, arguments, "cloud")
    if values is not None:
        asyncio.run(_until_stopped(lambda: _run_cloud(values)))


def _settings(settings: Sequence[Setting], arguments: Sequence[str], name: str) -> dict[str, Any] | None:
    """The values, or None when only help was asked for."""
    if {"-h", "-help", "--help"} & set(arguments):
        print(f"Usage: tidelog {name} [-setting value] ...\n")
        for setting in settings:
            default = "" if setting.default is None else f" (default {setting.default})"
            print(f"  -{setting.flag:<42} {setting.help}{default}")
        print("\nEach is also an environment variable (TIDELOG_...) and a key of the file given with -config.")
        return None
    # The file is named by a flag or a variable, and the flags win over what it says: so it is looked up first.
    first = load_settings(settings, arguments=arguments, environment=os.environ)
    file = Path(first["config"]) if first["config"] else None
    return load_settings(settings, arguments=arguments, environment=os.environ, file=file)


def _say(line: str) -> None:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"{moment} {line}", file=sys.stderr, flush=True)


async def _until_stopped(
    start: Callable[[], Coroutine[Any, Any, tuple[Callable[[], None], Coroutine[Any, Any, None]]]],
) -> None:
    """Run until done, or until a signal asks for a clean stop."""
    stop, work = await start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await work


async def _run_boat(values: dict[str, Any]) -> tuple[Callable[[], None], Coroutine[Any, Any, None]]:
    from tidelog.core.uplink.sender import SenderConfig
    from tidelog.edge.boat import Boat, BoatOptions
    from tidelog.edge.journal import JournalOptions

    options = BoatOptions(
        journal_dir=_absolute(values["journal-dir"]),
        target=_target(values),
        ring_frames=values["ring-size"],
        journal=JournalOptions(disk_bytes_max=values["journal-retention-max-size"]),
        sender=SenderConfig(
            max_live_lag=values["replication-max-live-lag"],
            lag_check_interval=values["replication-lag-check-interval"],
            min_lag_reconnect_interval_ms=values["replication-min-lag-reconnect-interval"],
            backfill_bytes_per_s=values["replication-backfill-bytes-per-s"],
        ),
    )
    running = Boat(options, open_source=lambda: _source(values), log=_say)
    return running.stop, running.run()


def _target(values: dict[str, Any]) -> UplinkTarget | None:
    from tidelog.edge.uplink_client import UplinkTarget

    address, instance = values["replication-target"], values["replication-instance-id"]
    if bool(address) != bool(instance):
        raise InvalidConfig(section="replication", problems=["target and instance-id are needed together"])
    if not address:
        return None
    return UplinkTarget(
        address=address,
        instance=instance,
        certificate=_file(values["replication-tls-cert"]),
        key=_file(values["replication-tls-key"]),
        authority=_file(values["replication-tls-ca"]),
        insecure_dev=values["insecure-dev"],
    )


def _absolute(path: str) -> Path:
    return Path(path).absolute()


def _file(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _source(values: dict[str, Any]) -> Source:
    from tidelog.edge.sources import ReplayOptions, ReplaySource, SocketCanOptions, SocketCanSource, VoyageSource

    if values["replay"]:
        return ReplaySource(values["replay"].split(","), options=ReplayOptions(speed=values["replay-speed"]))
    if values["simulate"] is not None:
        now_us = time.time_ns() // 1000
        return VoyageSource(seed=values["simulate"], now_us=now_us, frames_per_s=values["simulate-rate"])
    return SocketCanSource(options=SocketCanOptions(channel=values["interface"]))


async def _run_cloud(values: dict[str, Any]) -> tuple[Callable[[], None], Coroutine[Any, Any, None]]:
    from tidelog.cluster.cloud import Cloud, CloudOptions
    from tidelog.core.uplink.receiver import ReceiverLimits

    paths = {name: Path(values[name]) if values[name] else None for name in ("tls-cert", "tls-key", "tls-client-ca")}
    options = CloudOptions(
        data_dir=Path(values["data-dir"]),
        grpc_listen=values["grpc-listen"],
        tls_cert=paths["tls-cert"],
        tls_key=paths["tls-key"],
        tls_client_ca=paths["tls-client-ca"],
        revocations=Path(values["tls-revocations"]) if values["tls-revocations"] else None,
        insecure_dev=values["insecure-dev"],
        limits=ReceiverLimits(
            rate_frames_per_s=values["replication-rate-limit"],
            burst_frames=values["replication-rate-burst"],
            max_live_lag=values["replication-max-live-lag"],
        ),
    )
    running = Cloud(options, log=_say)
    stopping = asyncio.Event()

    async def work() -> None:
        await running.start()
        try:
            await stopping.wait()
        finally:
            await running.stop()

    return stopping.set, work()


def boat_main() -> None:
    """Entry point of `lplex-server`."""
    from tidelog.cli.main import run

    sys.exit(run(["boat", *sys.argv[1:]]))


def cloud_main() -> None:
    """Entry point of `lplex-cloud`."""
    from tidelog.cli.main import run

    sys.exit(run(["cloud", *sys.argv[1:]]))
