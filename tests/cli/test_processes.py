"""`tidelog boat` and `tidelog cloud` as an operator types them: settings, files, and every way to get them wrong."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.commands import Tidelog, in_subprocess
from tests.patience import patient
from tidelog import __version__
from tidelog.cli.main import run
from tidelog.cli.settings.boat import BOAT_SETTINGS, boat_options, check_boat, interfaces, send_options
from tidelog.cli.settings.checks import check_file, check_folder
from tidelog.cli.settings.cloud import CLOUD_SETTINGS, check_cloud, cloud_options
from tidelog.cli.settings.page import PAGE, render_page
from tidelog.config import Loaded, Setting, load_settings
from tidelog.edge.sources.transmitting import SendOptions
from tidelog.edge.uplink.target import ReloadingTarget
from tidelog.storage.log.options import Retention
from tidelog.units import MIB

ROOT = Path(__file__).parents[2]
RETENTION_KEYS = {
    "journal-retention-max-age": "journal.retention.max-age",
    "journal-retention-min-keep": "journal.retention.min-keep",
    "journal-retention-max-size": "journal.retention.max-size",
    "journal-retention-soft-pct": "journal.retention.soft-pct",
    "journal-retention-overflow-policy": "journal.retention.overflow-policy",
    "journal-archive-command": "journal.archive.command",
    "journal-archive-trigger": "journal.archive.trigger",
}
LPLEX_CLOUD = RETENTION_KEYS | {
    "grpc-listen": "grpc.listen",
    "http-listen": "http.listen",
    "listen": "listen",
    "acme-domain": "acme.domain",
    "acme-email": "acme.email",
    "data-dir": "data-dir",
    "tls-cert": "grpc.tls.cert",
    "tls-key": "grpc.tls.key",
    "tls-client-ca": "tls.client-ca",
    "journal-rotate-duration": "journal.rotate-duration",
    "journal-rotate-size": "journal.rotate-size",
    "replication-rate-limit": "replication.rate-limit",
    "replication-rate-burst": "replication.rate-burst",
    "replication-max-live-lag": "replication.max-live-lag",
    "ring-size": "ring-size",
    "device-idle-timeout": "device.idle-timeout",
    "config": "",
    "version": "",
    "otel-endpoint": "",
    "otel-sample-ratio": "",
}
LPLEX_BOAT = RETENTION_KEYS | {
    "interface": "interface",
    "interfaces": "interfaces",
    "port": "port",
    "max-buffer-duration": "max-buffer-duration",
    "ring-size": "ring-size",
    "loopback": "loopback",
    "journal-dir": "journal.dir",
    "journal-prefix": "journal.prefix",
    "journal-block-size": "journal.block-size",
    "journal-compression": "journal.compression",
    "journal-rotate-duration": "journal.rotate.duration",
    "journal-rotate-size": "journal.rotate.size",
    "replication-target": "replication.target",
    "replication-instance-id": "replication.instance-id",
    "replication-tls-cert": "replication.tls.cert",
    "replication-tls-key": "replication.tls.key",
    "replication-tls-ca": "replication.tls.ca",
    "replication-max-live-lag": "replication.max-live-lag",
    "replication-lag-check-interval": "replication.lag-check-interval",
    "replication-min-lag-reconnect-interval": "replication.min-lag-reconnect-interval",
    "device-idle-timeout": "device.idle-timeout",
    "send-enabled": "send.enabled",
    "send-rules": "send.rules",
    "send-rate-limit": "send.rate-limit",
    "send-rate-burst": "send.rate-burst",
    "read-only": "read-only",
    "api-key": "api-key",
    "virtual-device": "virtual-device.enabled",
    "virtual-device-name": "virtual-device.name",
    "virtual-device-model-id": "virtual-device.model-id",
    "virtual-device-claim-heartbeat": "virtual-device.claim-heartbeat",
    "virtual-device-product-info-heartbeat": "virtual-device.product-info-heartbeat",
    "bus-silence-timeout": "bus-silence-timeout",
    "bus-silence-threshold": "health.bus-silence-threshold",
    "alert-webhook-url": "",
    "alert-dedup-window": "",
    "mqtt-broker": "",
    "mqtt-topic-prefix": "",
    "mqtt-client-id": "",
    "mqtt-qos": "",
    "mqtt-username": "",
    "mqtt-password": "",
    "otel-endpoint": "",
    "otel-sample-ratio": "",
    "mdns": "",
    "config": "",
    "validate-config": "",
    "version": "",
}
SEED_COMMAND = """-interface can0 \
-replication-target lplex.example.com:9443 \
-replication-instance-id boat-001 \
-replication-tls-cert /etc/lplex-server/boat-001.crt \
-replication-tls-key /etc/lplex-server/boat-001.key \
-replication-tls-ca /etc/lplex-server/ca.crt"""
SEED_FILE = """replication {
target = "lplex.example.com:9443"
instance-id = "boat-001"
tls {
cert = "/etc/lplex-server/boat-001.crt"
key = "/etc/lplex-server/boat-001.key"
ca = "/etc/lplex-server/ca.crt"
}
}
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """boat/boat-001.{crt,key}, boat/ca.crt, cloud/cloud-1.{crt,key}, cloud/client-ca.crt."""
    folder = tmp_path_factory.mktemp("certificates")
    ca = ["--ca", str(folder / "ca")]
    for command in (
        ["init", str(folder / "ca")],
        ["issue", "boat-001", *ca, "--out", str(folder / "boat")],
        ["issue", "cloud-1", "--node", "--server-name", "127.0.0.1", *ca, "--out", str(folder / "cloud")],
    ):
        assert run(["ca", *command]) == 0
    return folder


def boat_files(folder: Path, **changed: Path | str) -> list[str]:
    """Flags of a boat that has a cloud; `changed` names other files."""
    flags = ["-simulate", "1", "-replication-target", "127.0.0.1:9", "-replication-instance-id", "boat-001"]
    for name, file in {"cert": "boat-001.crt", "key": "boat-001.key", "ca": "ca.crt"}.items():
        flags += [f"-replication-tls-{name}", str(changed.get(name, folder / "boat" / file))]
    return flags


def complaints(*arguments: str | Path, cwd: Path) -> list[str]:
    """What a refused command line says: a line each, exit code 2, and nothing made on the way."""
    before = sorted(cwd.iterdir())
    done = in_subprocess(*arguments, cwd=cwd)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert all(line.startswith("tidelog: ") for line in lines), done.stderr
    assert sorted(cwd.iterdir()) == before
    return [line.removeprefix("tidelog: ") for line in lines]


# --- what lplex takes ----------------------------------------------------------------------------


@pytest.mark.parametrize(("lplex", "settings"), [(LPLEX_BOAT, BOAT_SETTINGS), (LPLEX_CLOUD, CLOUD_SETTINGS)])
def test_every_flag_and_key_of_lplex_is_known(lplex: dict[str, str], settings: tuple[Setting, ...]) -> None:
    by_flag = {setting.flag: setting for setting in settings}
    missing = [flag for flag, key in lplex.items() if flag not in by_flag or (key and key not in by_flag[flag].keys)]
    assert missing == []


def test_the_defaults_are_those_of_lplex() -> None:
    boat = {setting.flag: setting.default for setting in BOAT_SETTINGS}
    assert (boat["interface"], boat["port"], boat["ring-size"]) == ("can0", 8089, 65_536)
    assert boat["journal-block-size"] == 262_144
    assert (boat["replication-max-live-lag"], boat["replication-lag-check-interval"]) == (10_000, 1_000)
    assert (boat["replication-min-lag-reconnect-interval"], boat["device-idle-timeout"]) == (30_000, 300_000)
    cloud = {setting.flag: setting.default for setting in CLOUD_SETTINGS}
    assert (cloud["grpc-listen"], cloud["http-listen"], cloud["data-dir"]) == (":9443", ":8080", "/data/lplex")
    assert (cloud["replication-rate-limit"], cloud["replication-rate-burst"]) == (2_000, 500)
    assert cloud["replication-max-live-lag"] == 10_000
    # Not its hourly files: a segment is full when it is full.
    assert boat["journal-rotate-duration"] is cloud["journal-rotate-duration"] is None


@pytest.mark.parametrize("settings", [BOAT_SETTINGS, CLOUD_SETTINGS])
def test_no_flag_and_no_key_means_two_things(settings: tuple[Setting, ...]) -> None:
    flags = [setting.flag for setting in settings]
    keys = [key for setting in settings for key in setting.keys]
    assert len(set(flags)) == len(flags)
    assert len(set(keys)) == len(keys)


def test_every_setting_says_what_it_is_for() -> None:
    for setting in (*BOAT_SETTINGS, *CLOUD_SETTINGS):
        assert setting.help or setting.no_effect or setting.refused, setting.flag


def test_the_seeds_command_line_is_understood_and_only_its_files_are_missing(tmp_path: Path) -> None:
    said = complaints("boat", *SEED_COMMAND.split(), cwd=tmp_path)
    assert [line.split(" = ")[0] for line in said] == [
        "-replication-tls-cert",
        "-replication-tls-key",
        "-replication-tls-ca",
    ]
    assert all("cannot be read: No such file or directory" in line for line in said)


def test_the_seeds_file_is_found_where_lplex_looks_and_works(tmp_path: Path, certificates: Path) -> None:
    text = SEED_FILE.replace("/etc/lplex-server", str(certificates / "boat"))
    (tmp_path / "lplex-server.conf").write_text(text)
    done = in_subprocess("boat", "-validate-config", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "the configuration is valid\n"), done.stderr
    assert "settings file=lplex-server.conf" in done.stderr
    assert not (tmp_path / "journal").exists()


def test_our_own_file_is_found_before_theirs(tmp_path: Path, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tidelog-boat.conf").write_text("simulate.seed = 1")
    (tmp_path / "lplex-server.conf").write_text("no-such-key = 1")
    assert "settings file=tidelog-boat.conf" in tidelog("boat", "-validate-config").err
    named = tidelog("boat", "-validate-config", "-config", "lplex-server.conf", code=2)
    assert "no-such-key in lplex-server.conf is unknown" in named.err
    monkeypatch.setenv("TIDELOG_CONFIG", "lplex-server.conf")
    assert "no-such-key" in tidelog("boat", "-validate-config", code=2).err


def test_settings_without_effect_are_said_once_and_the_rest_works(tmp_path: Path, tidelog: Tidelog) -> None:
    file = tmp_path / "all.conf"
    file.write_text(
        'virtual-device.enabled = true\nclients.slots = [{id = "a"}]\nrequests = [{pgn = 1}]\nread-only = true'
    )
    said = tidelog(
        "boat", "-simulate", "1", "-config", file, "-mqtt-broker", "tcp://x", "-mdns=false", "-validate-config"
    )
    names = re.findall(r"setting has no effect name='([^ ']+)", said.err)
    assert sorted(names) == ["-mqtt-broker", "clients.slots", "requests", "virtual-device.enabled"]
    assert all(re.search(r"reason='[^']+'$", line) for line in said.err.splitlines() if "no effect" in line)


@pytest.mark.parametrize(
    ("process", "argument"),
    [
        ("boat", "-journal-archive-command=/bin/archive"),
        ("boat", "-journal-retention-overflow-policy=pause-recording"),
        ("cloud", "-acme-domain=example.com"),
        ("cloud", "-journal-archive-command=/bin/archive"),
    ],
)
def test_what_would_betray_the_operator_is_refused(tidelog: Tidelog, process: str, argument: str) -> None:
    rest = ["-simulate", "1"] if process == "boat" else ["-insecure-dev"]
    said = tidelog(process, *rest, argument, "-validate-config", code=2).err
    assert re.search(rf"^tidelog: {argument.split('=')[0]} is not supported: .*; remove it", said, flags=re.MULTILINE)


def test_sending_needs_its_pgns_by_name(tidelog: Tidelog) -> None:
    rest = ("boat", "-simulate", "1", "-validate-config")
    assert "-send-enabled needs -send-pgns" in tidelog(*rest, "-send-enabled", code=2).err
    assert "'x' is no PGN" in tidelog(*rest, "-send-enabled", "-send-pgns", "59904,x", code=2).err
    assert "'262144' is no PGN" in tidelog(*rest, "-send-pgns", "262144", code=2).err
    rules = tidelog(*rest, "-send-enabled", "-send-pgns", "all", "-send-rules", "pgn:1", code=2)
    assert "-send-rules would have no effect" in rules.err
    tidelog(*rest, "-send-enabled", "-send-pgns", "59904,126996", "-send-rate-limit", "2")
    tidelog(*rest, "-send-rules", "pgn:1")  # harmless while nothing is sent

    def options(*arguments: str) -> SendOptions | None:
        loaded = load_settings(BOAT_SETTINGS, arguments=arguments, environment={})
        assert loaded.problems == []
        return send_options(loaded.values)

    assert options() is None
    assert options("-send-enabled", "-send-pgns", "all", "-read-only") is None
    allowed = options("-send-enabled", "-send-pgns", "59904,126996")
    assert allowed == SendOptions(pgns=frozenset({59904, 126996}), rate_per_s=10.0)
    everything = options("-send-enabled", "-send-pgns", "all", "-send-rate-limit", "2")
    assert everything == SendOptions(pgns=None, rate_per_s=2.0)


# --- what is wrong is said before anything is opened ----------------------------------------------


def test_every_problem_is_said_at_once(tmp_path: Path) -> None:
    said = complaints(
        *(
            "boat",
            "-replay",
            "nowhere.lpj",
            "-replication-traget",
            "x:1",
            "-port",
            "70000",
            "-http-listen",
            "localhost",
        ),
        *("-ring-size", "many", "-replication-target", "cloud", "-http-tls-cert", "nowhere.crt"),
        *("-http-cors-origins", "*", "-journal-block-size", "5000"),
        cwd=tmp_path,
    )
    for expected in (
        "-replication-traget is unknown; did you mean -replication-target?",
        "-port = '70000' is not a port",
        "-http-listen = 'localhost' has no port; write it like localhost:9443",
        "-ring-size = 'many' is not a whole number",
        "-replication-target = 'cloud' has no port",
        "-replay: nowhere.lpj: there is no such file; check the path",
        "-http-tls-cert needs -http-tls-key beside it",
        "-http-tls-cert = 'nowhere.crt' cannot be read",
        "-http-cors-origins has '*'",
        "-journal-block-size = 5000 is not a power of two",
    ):
        assert any(line.startswith(expected) for line in said), (expected, said)
    assert len(said) == 10


def test_a_settings_file_must_be_a_file(tmp_path: Path) -> None:
    assert complaints("boat", "-simulate", "1", "-config", tmp_path, cwd=tmp_path) == [
        f"{tmp_path} cannot be read: Is a directory; check -config"
    ]
    missing = complaints("cloud", "-insecure-dev", "-data-dir", "d", "-config", "nowhere.conf", cwd=tmp_path)
    assert missing == ["nowhere.conf cannot be read: No such file or directory; check -config"]


def test_a_file_where_a_folder_should_be(tmp_path: Path, tidelog: Tidelog) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "deeper"):
        assert (
            f"{tmp_path}/file is a file; name a folder"
            in tidelog("boat", "-simulate", "1", "-journal-dir", path, code=2).err
        )
        assert (
            f"{tmp_path}/file is a file; name a folder"
            in tidelog("cloud", "-insecure-dev", "-data-dir", path, code=2).err
        )
    assert "-journal-dir is empty; name a folder" in tidelog("boat", "-simulate", "1", "-journal-dir=", code=2).err


def test_certificates_that_cannot_work_are_told_apart(tmp_path: Path, certificates: Path, tidelog: Tidelog) -> None:
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("-----BEGIN NOTHING-----\n")

    def said(**changed: Path | str) -> str:
        flags = [*boat_files(certificates, **changed), "-journal-dir", str(tmp_path / "journal")]
        return tidelog("boat", *flags, code=2).err

    assert "is a folder; name a file in it" in said(cert=tmp_path)
    assert "is no PEM certificate; `tidelog ca issue` makes one" in said(cert=garbage)
    assert "is no PEM private key" in said(key=garbage)
    assert "-replication-target needs -replication-tls-ca" in said(ca="")
    assert "-replication-tls-cert needs -replication-tls-key" in said(key="")
    assert not (tmp_path / "journal").exists()


def test_a_foreign_key_and_a_missing_authority_are_a_line_each(tmp_path: Path, certificates: Path) -> None:
    flags = boat_files(certificates, key=certificates / "cloud" / "cloud-1.key", ca="nowhere.crt")
    foreign, missing = complaints("boat", *flags, cwd=tmp_path)
    assert "is not the key of" in foreign
    assert "name the two files that were issued together" in foreign
    assert missing.startswith("-replication-tls-ca = 'nowhere.crt' cannot be read: No such file or directory; check")


def test_the_certificate_must_be_that_of_the_instance(tmp_path: Path, certificates: Path, tidelog: Tidelog) -> None:
    flags = [*boat_files(certificates), "-replication-instance-id", "boat-002", "-journal-dir", str(tmp_path / "j")]
    assert "but the certificate is that of boat boat-001" in tidelog("boat", *flags, code=2).err
    flags[-3] = "../boat"
    assert "is no name" in tidelog("boat", *flags, code=2).err


def test_target_and_instance_need_each_other(tidelog: Tidelog) -> None:
    alone = tidelog("boat", "-simulate", "1", "-insecure-dev", "-replication-target", "c:1", code=2).err
    assert alone == "tidelog: -replication-target needs -replication-instance-id beside it\n"


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything, so be somebody else for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_files_without_permission_are_said_and_raise_nothing(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    (tmp_path / "secret.key").write_text("")
    (tmp_path / "secret.key").chmod(0)
    loaded = Loaded(
        values={"key": str(tmp_path / "secret.key"), "ca": str(closed / "ca.crt"), "dir": str(closed / "new")}
    )
    closed.chmod(0)
    try:
        with as_nobody():
            assert check_file(loaded, "key") is None
            assert check_file(loaded, "ca") is None
            check_folder(loaded, "dir", needed_for="the test")
    finally:
        closed.chmod(0o700)
    assert len(loaded.problems) == 3
    assert all("ermission denied" in problem for problem in loaded.problems), loaded.problems


def test_the_cloud_checks_its_files_too(tmp_path: Path, certificates: Path, tidelog: Tidelog) -> None:
    cloud, boat = certificates / "cloud", certificates / "boat"
    flags: list[str | Path] = [
        "-data-dir",
        tmp_path,
        "-tls-cert",
        cloud / "cloud-1.crt",
        "-tls-client-ca",
        cloud / "client-ca.crt",
    ]
    good = tidelog("cloud", *flags, "-tls-key", cloud / "cloud-1.key", "-validate-config")
    assert good.out == "the configuration is valid\n"
    wrong = tidelog(
        "cloud", *flags, "-tls-key", boat / "boat-001.key", "-fleet", "No Fleet", "-http-listen", ":9443", code=2
    )
    assert len(wrong.err.splitlines()) == 3
    assert "is not the key of" in wrong.err
    assert "is no fleet" in wrong.err
    assert "-grpc-listen and -http-listen are the same port" in wrong.err
    assert "-tls-key is missing" in tidelog("cloud", *flags, code=2).err
    (tmp_path / "revoked.txt").write_text("no serial at all\n")
    revoked: list[str | Path] = ["-insecure-dev", "-data-dir", tmp_path, "-tls-revocations"]
    for name in ("revoked.txt", "nowhere.txt"):
        assert re.match(
            rf"tidelog: -tls-revocations: .*{name}", tidelog("cloud", *revoked, tmp_path / name, code=2).err
        )
    good_list = certificates / "ca" / "boats" / "revoked.txt"
    assert tidelog("cloud", *revoked, good_list, "-validate-config").code == 0


# --- two at once ----------------------------------------------------------------------------------


@contextmanager
def running(*arguments: str | Path, until: str) -> Iterator[str]:
    """A process that is up, and the line that said so; stopped cleanly at the end."""
    command = [sys.executable, "-m", "tidelog.cli", *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        try:
            yield next(line for line in process.stderr if until in line)
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            assert process.wait(timeout=patient(30)) == 0


def test_two_boats_do_not_share_a_journal(tmp_path: Path) -> None:
    arguments: list[str | Path] = ["boat", "-simulate", "1", "-port", "off", "-journal-dir", tmp_path / "journal"]
    with running(*arguments, until="boat up"):
        done = in_subprocess(*arguments)
    assert done.returncode == 2
    assert re.fullmatch(
        r"tidelog: .*journal.*: process \d+ has it open; stop it or choose another folder\n", done.stderr
    ), done.stderr


def test_two_clouds_share_neither_a_port_nor_a_folder(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    common = ["cloud", "-insecure-dev", "-http-listen", "off"]
    with running(*common, "-data-dir", first, "-grpc-listen", "127.0.0.1:0", until="cloud up") as line:
        port = re.search(r"port=(\d+)", line)
        assert port
        taken = in_subprocess(*common, "-data-dir", second, "-grpc-listen", f"127.0.0.1:{port[1]}")
        locked = in_subprocess(*common, "-data-dir", first, "-grpc-listen", "127.0.0.1:0")
    assert (taken.returncode, locked.returncode) == (2, 2)
    assert taken.stderr == (
        f"tidelog: -grpc-listen: cannot listen on 127.0.0.1:{port[1]}: Address already in use; "
        "stop what listens there or choose another port\n"
    )
    assert not second.exists()
    assert re.fullmatch(r"tidelog: .*: process \d+ has it open; stop it or choose another folder\n", locked.stderr)


def test_a_reload_signal_does_not_end_a_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidelog.cli", "boat", "-simulate", "1", "-port", "off", "-journal-dir", "journal"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=tmp_path, text=True) as process:
        assert process.stderr is not None
        assert any("boat up" in line for line in process.stderr)
        process.send_signal(signal.SIGHUP)
        assert any("nothing to reload" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        assert any("boat down" in line for line in process.stderr)
        assert process.wait(timeout=patient(30)) == 0


def test_an_address_of_another_machine_is_said(tmp_path: Path, tidelog: Tidelog) -> None:
    flags: list[str | Path] = ["-insecure-dev", "-data-dir", tmp_path / "d", "-grpc-listen", "192.0.2.1:0"]
    assert "cannot listen on 192.0.2.1:0" in tidelog("cloud", *flags, code=2).err


def test_a_port_that_somebody_else_has_is_said(tmp_path: Path, tidelog: Tidelog) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        flags: list[str | Path] = ["-insecure-dev", "-data-dir", tmp_path / "d", "-grpc-listen", address]
        assert f"cannot listen on {address}" in tidelog("cloud", *flags, code=2).err


# --- what the settings become ----------------------------------------------------------------------


def loaded_boat(*arguments: str) -> Loaded:
    loaded = load_settings(BOAT_SETTINGS, arguments=["-simulate", "1", *arguments], environment={})
    check_boat(loaded)
    loaded.raise_problems()
    return loaded


def loaded_cloud(*arguments: str) -> Loaded:
    loaded = load_settings(CLOUD_SETTINGS, arguments=["-insecure-dev", "-data-dir", "data", *arguments], environment={})
    check_cloud(loaded)
    loaded.raise_problems()
    return loaded


def test_journal_settings_reach_the_journal() -> None:
    options = boat_options(
        loaded_boat(
            *("-journal-block-size", "65536", "-journal-rotate-duration", "PT10M", "-journal-rotate-size", "2MiB"),
            *("-journal-retention-max-age", "P7D", "-journal-retention-max-size", "64MiB", "-ring-size", "10"),
        ).values
    )
    journal = options.journal
    assert (journal.seal_frames, journal.segment_age_max_ms) == (4096, 600_000)
    assert (journal.sealed_segment_bytes, journal.disk_bytes_max) == (2 * MIB, 64 * MIB)
    assert journal.retention.max_age_ms == 7 * 86_400_000
    assert journal.sealed_log().segment_age_max_ms == 600_000
    assert not journal.keep_unacked
    assert options.ring_frames == 10
    assert boat_options(loaded_boat().values).journal.seal_frames == 16_384


def test_min_keep_holds_against_max_age() -> None:
    longer = ["-journal-retention-max-age", "1h", "-journal-retention-min-keep", "2h"]
    assert boat_options(loaded_boat(*longer).values).journal.retention.max_age_ms == 7_200_000
    cloud = cloud_options(loaded_cloud(*longer, "-journal-retention-max-size", "1GiB", "-fleet", "north").values)
    assert cloud.maintenance.retention == Retention(max_age_ms=7_200_000, max_bytes=2**30)
    assert cloud.fleet == "north"
    assert cloud_options(loaded_cloud("-journal-retention-min-keep", "2h").values).maintenance.retention == Retention()


def test_replication_settings_reach_the_uplink(certificates: Path) -> None:
    flags = boat_files(certificates)[2:]
    flags += ["-replication-server-name", "cloud-1", "-replication-backfill-bytes-per-s", "1MB"]
    flags += ["-replication-daily-bytes", "1GB", "-replication-daily-reset-hour", "5"]
    loaded = loaded_boat(*flags, "-replication-max-live-lag", "77")
    options = boat_options(loaded.values)
    assert isinstance(options.target, ReloadingTarget)
    target = options.target()
    assert target.server_name == "cloud-1"
    assert target.certificate == (certificates / "boat" / "boat-001.crt").read_bytes()
    assert (options.sender.max_live_lag, options.sender.backfill_bytes_per_s) == (77, 1_000_000)
    assert options.journal.keep_unacked
    assert (options.daily_bytes, options.daily_reset_hour) == (10**9, 5)


def test_cloud_settings_reach_the_cloud() -> None:
    options = cloud_options(
        loaded_cloud(
            "-replication-rate-limit", "0", "-replication-rate-burst", "9", "-journal-rotate-size", "1MiB"
        ).values
    )
    assert (options.limits.rate_frames_per_s, options.limits.burst_frames) == (2_000, 9)
    assert options.store.log.segment_bytes_max == MIB
    assert options.store.log.segment_age_max_ms is None


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ([], ":8089"),
        (["-port", "0"], ":0"),
        (["-port", "off"], None),
        (["-port", "1", "-http-listen", "127.0.0.1:2"], "127.0.0.1:2"),
        (["-http-listen", "off"], None),
    ],
)
def test_one_setting_says_where_http_listens(arguments: list[str], address: str | None) -> None:
    assert loaded_boat(*arguments).values["http-listen"] == address


def test_several_interfaces_win_over_one() -> None:
    assert interfaces(loaded_boat("-interface", "can1").values) == ("can1",)
    assert interfaces(loaded_boat("-interface", "can1", "-interfaces", "can0,can2").values) == ("can0", "can2")


@pytest.mark.parametrize(("entry", "process"), [("boat_main", "boat"), ("cloud_main", "cloud")])
def test_the_names_of_lplex_start_the_same_processes(entry: str, process: str) -> None:
    code = f"from tidelog.cli.processes import {entry}; {entry}()"
    done = subprocess.run([sys.executable, "-c", code, "-version"], capture_output=True, text=True, timeout=patient(60))
    assert (done.returncode, done.stdout) == (0, f"tidelog {process} {__version__}\n")
    optimized = subprocess.run(
        [sys.executable, "-O", "-c", code, "-version"], capture_output=True, text=True, timeout=patient(60)
    )
    assert (optimized.returncode, optimized.stdout) == (2, "")


# --- help and documents ----------------------------------------------------------------------------


@pytest.mark.parametrize("process", ["boat", "cloud"])
def test_help_and_version(tidelog: Tidelog, process: str) -> None:
    shown = tidelog(process, "-help").out
    assert shown == tidelog(process, "--help").out
    assert re.findall(r"^([A-Z]\w+):$", shown, flags=re.MULTILINE)[0] == "General"
    for setting in BOAT_SETTINGS if process == "boat" else CLOUD_SETTINGS:
        assert setting.file_only or re.search(rf"-{setting.flag}\b", shown), setting.flag
    assert tidelog(process, "-version").out == f"tidelog {process} {__version__}\n"


def test_the_page_lists_the_settings_that_are_in_the_code() -> None:
    text = (ROOT / PAGE).read_text()
    assert render_page(text) == text, "refresh it: python -m tidelog.cli.settings.page"
