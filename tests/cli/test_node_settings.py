"""`tidelog node` as an operator types it: settings, files, every way to get them wrong, and starts that are refused."""

from __future__ import annotations

import re
import signal
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.commands import Tidelog, in_subprocess
from tests.cli.test_cluster_commands import DEADLINE_S, running, until_led
from tests.patience import patient
from tests.ports import free_port
from tidelog import __version__
from tidelog.cli.disk_trouble import EXIT_CODES
from tidelog.cli.main import EXIT_DISK, run
from tidelog.cli.settings.node import NODE_SETTINGS, check_node, node_options
from tidelog.cluster.node import process as node_module
from tidelog.cluster.node.core import NodeOptions
from tidelog.cluster.node.node_file import NodeFile
from tidelog.cluster.node.process import INTERNAL_FOLDER, NodeProcessOptions
from tidelog.config import Loaded, load_settings
from tidelog.errors import LogError, MetadataPoisoned
from tidelog.storage.os_disk import OsDisk

PEERS = "n1=h1:9500,n2=h2:9500"
GOOD = ("-id", "n1", "-data-dir", "data", "-peers", PEERS, "-insecure-dev")


def loaded(*arguments: str, environment: dict[str, str] | None = None, file: Path | None = None) -> Loaded:
    found = load_settings(NODE_SETTINGS, arguments=arguments, environment=environment or {}, file=file)
    check_node(found)
    return found


def good(*arguments: str) -> Loaded:
    found = loaded(*GOOD, *arguments)
    found.raise_problems()
    return found


def problems(*arguments: str) -> list[str]:
    return loaded(*GOOD, *arguments).problems


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """n1.{crt,key}, n2.{crt,key}, anna.{crt,key} (an operator), ca.crt, and the authorities in ca."""
    folder = tmp_path_factory.mktemp("certificates")
    ca = ["--ca", str(folder / "ca"), "--out", str(folder)]
    for command in (
        ["init", str(folder / "ca"), "--fleet", "north"],
        ["issue", "n1", "--node", *ca],
        ["issue", "n2", "--node", *ca],
        ["issue", "anna", "--operator", *ca],
    ):
        assert run(["ca", *command]) == 0
    return folder


def tls(folder: Path, name: str = "n1") -> list[str]:
    flags = ["-id", "n1", "-data-dir", "data", "-peers", PEERS, "-tls-ca", str(folder / "ca.crt")]
    return [*flags, "-tls-cert", str(folder / f"{name}.crt"), "-tls-key", str(folder / f"{name}.key")]


# --- what the settings become ----------------------------------------------------------------------


def test_a_node_listens_where_its_peers_look_for_it() -> None:
    options = node_options(good().values)
    assert options.peers == {"n1": "h1:9500", "n2": "h2:9500"}
    assert (options.node, options.listen, options.advertise) == ("n1", "h1:9500", None)
    assert options.data_dir.is_absolute()
    assert (options.http, options.insecure_dev, options.host, options.tags) == (None, True, "", ())
    assert options.core == NodeOptions()
    elsewhere = node_options(good("-listen", ":1", "-advertise", "h9:2").values)
    assert (elsewhere.listen, elsewhere.advertise) == (":1", "h9:2")


def test_a_node_that_joins_need_not_be_among_the_peers() -> None:
    options = node_options(loaded(*GOOD[2:], "-id", "n9", "-listen", ":9500").values)
    assert (options.node, options.listen) == ("n9", ":9500")
    assert "n9" not in options.peers


def test_every_setting_reaches_the_node(certificates: Path) -> None:
    flags = ["-host", "rack-1", "-tags", "ssd,fast", "-capacity", "1GiB", "-fleet", "north", "-max-voters", "3"]
    flags += ["-snapshot-entries", "100", "-raft-heartbeat", "50ms", "-raft-election-timeout", "1s"]
    flags += ["-heartbeat", "20s", "-session-timeout", "1m", "-http-listen", "127.0.0.1:0", "-http-anonymous"]
    flags += ["-tls-revocations", str(certificates / "ca" / "nodes" / "revoked.txt")]
    flags += ["-replica-max-lag-time", "3s", "-replica-max-leader-timeout", "4s", "-replica-max-idle-wait", "7s"]
    found = loaded(*tls(certificates), *flags)
    found.raise_problems()
    options = node_options(found.values)
    assert (options.host, options.tags, options.capacity_bytes) == ("rack-1", ("ssd", "fast"), 2**30)
    assert (options.tls_cert, options.tls_ca) == (certificates / "n1.crt", certificates / "ca.crt")
    assert options.revocations is not None
    assert options.fleet == "north"
    core = options.core
    assert (core.voters_max, core.metadata.snapshot_entries) == (3, 100)
    assert (core.metadata.raft.heartbeat_ms, core.metadata.raft.election_timeout_ms) == (50, 1_000)
    assert (core.liveness.heartbeat_ms, core.liveness.session_timeout_ms) == (20_000, 60_000)
    replication = core.replication
    assert (replication.replica_max_lag_ms, replication.replica_max_leader_timeout_ms) == (3_000, 4_000)
    assert replication.replica_max_idle_wait_ms == 7_000
    assert options.http is not None
    assert (options.http.listen, options.http.access.anonymous) == ("127.0.0.1:0", True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-heartbeat", "100ms", "-session-timeout", "300ms", "-max-voters", "1", "-snapshot-entries", "16"],
        ["-heartbeat", "1m", "-session-timeout", "1h", "-max-voters", "9", "-snapshot-entries", "1000000"],
        ["-raft-heartbeat", "10ms", "-raft-election-timeout", "30ms"],
        ["-raft-heartbeat", "1m", "-raft-election-timeout", "10m"],
    ],
)
def test_what_the_settings_allow_the_parts_behind_them_allow_too(arguments: list[str]) -> None:
    node_options(good(*arguments).values)


def test_flag_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "node.conf"
    file.write_text(
        """
        node { id = n2, tags = [a, b] }
        data-dir = data
        cluster { peers = ["n1=h1:9500", "n2=h2:9500"], max-voters = 3 }
        raft.heartbeat = 20ms
        liveness { heartbeat = 1s, session-timeout = 4s }
        insecure-dev = true
        """
    )
    found = loaded("-id", "n1", environment={"TIDELOG_ID": "n3", "TIDELOG_HEARTBEAT": "500ms"}, file=file)
    found.raise_problems()
    options = node_options(found.values)
    assert (options.node, options.listen) == ("n1", "h1:9500")
    assert options.core.liveness.heartbeat_ms == 500
    assert options.core.liveness.session_timeout_ms == 4_000
    assert (options.core.metadata.raft.heartbeat_ms, options.core.voters_max) == (20, 3)
    assert options.tags == ("a", "b")


def test_the_example_of_the_page_is_a_file_that_works(certificates: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    example = re.search(r"A whole file:\n\n```\n(.*?)```", page, flags=re.DOTALL)
    assert example is not None
    file = tmp_path / "node.conf"
    file.write_text(example[1])
    found = load_settings(NODE_SETTINGS, arguments=[], environment={}, file=file)
    assert found.problems == []
    assert len(found.given) == 12
    # The files that it names are elsewhere here.
    found.values |= {f"tls-{name}": str(certificates / f"n1.{end}") for name, end in (("cert", "crt"), ("key", "key"))}
    found.values |= {"tls-ca": str(certificates / "ca.crt"), "data-dir": str(tmp_path)}
    found.values |= {"tls-revocations": None, "http-tokens": None}
    check_node(found)
    assert found.problems == []
    assert node_options(found.values).peers["n3"] == "10.0.0.3:9500"


# --- what is wrong -----------------------------------------------------------------------------------


def test_everything_that_is_missing_is_said_at_once() -> None:
    found = loaded().problems
    assert [words.split()[0] for words in found] == ["-id", "-peers", "-listen", "-data-dir", "-tls-cert"]
    assert "tidelog ca issue NAME --node" in found[-1]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["-id", "../n1"], "is no name"),
        (["-id", "n9"], "-listen is missing"),
        (["-peers", "n1"], "has no address"),
        (["-peers", "n1=h1"], "has no port"),
        (["-peers", "n1=h1:0"], "port that is not 0"),
        (["-peers", "n1=h1:1,N1=h2:1"], "in this or another case"),
        (["-peers", "n1=h1:1,n2=h1:1"], "another node has already"),
        (["-peers", "n1=h1:1,n 2=h1:1"], "is no name"),
        (["-peers", ",".join(f"n{number}=h:{number}" for number in range(1, 66))], "at most 64"),
        (["-advertise", ":1"], "must name a host"),
        (["-raft-election-timeout", "250ms"], "less than 3 x -raft-heartbeat"),
        (["-session-timeout", "1s"], "less than 3 x -heartbeat"),
        (["-heartbeat", "1ms"], "too low"),
        (["-max-voters", "0"], "too low"),
        (["-max-voters", "99"], "too high"),
        (["-host", "b\u043eat"], "no label"),
        (["-tags", "a,a"], "a tag twice"),
        (["-fleet", "Not A Fleet"], "is no fleet"),
        (["-http-listen", ":9500"], "the same port"),
        (["-tls-ca", "nowhere.crt"], "cannot be read"),
        (["-peer", "n1=h1:1"], "did you mean -peers?"),
        (["-raft-hartbeat", "1s"], "did you mean -raft-heartbeat?"),
    ],
)
def test_what_is_wrong_is_said_in_words(arguments: list[str], word: str) -> None:
    found = problems(*arguments)
    assert any(word in problem for problem in found), found


def test_a_folder_that_is_a_file_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert any("is a file" in problem for problem in problems("-data-dir", str(tmp_path / "file" / "data")))


def test_the_certificate_must_be_this_nodes(certificates: Path) -> None:
    assert loaded(*tls(certificates)).problems == []
    (other,) = loaded(*tls(certificates, "n2")).problems
    assert "the certificate of node n2, and this is node n1" in other
    (operator,) = loaded(*tls(certificates, "anna")).problems
    assert "the certificate of operator anna" in operator
    (fleet,) = loaded(*tls(certificates), "-fleet", "south").problems
    assert "of fleet north, not of south" in fleet
    assert any("exclude each other" in problem for problem in loaded(*tls(certificates), "-insecure-dev").problems)
    (missing,) = loaded(*tls(certificates), "-tls-key", "").problems[:1]
    assert "-tls-key" in missing


# --- the command -------------------------------------------------------------------------------------


def test_help_and_version(tidelog: Tidelog) -> None:
    shown = tidelog("node", "-help").out
    assert shown == tidelog("node", "--help").out
    assert re.findall(r"^([A-Z]\w+):$", shown, flags=re.MULTILINE)[0] == "General"
    for setting in NODE_SETTINGS:
        assert re.search(rf"-{setting.flag}\b", shown), setting.flag
        assert setting.help, setting.flag
    assert "lplex" not in shown
    assert tidelog("node", "-version").out == f"tidelog node {__version__}\n"


def test_no_flag_and_no_key_means_two_things() -> None:
    flags = [setting.flag for setting in NODE_SETTINGS]
    keys = [key for setting in NODE_SETTINGS for key in setting.keys]
    assert len(set(flags)) == len(flags)
    assert len(set(keys)) == len(keys)


def test_a_configuration_can_be_checked_without_a_start(
    tidelog: Tidelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tidelog("node", *GOOD, "-validate-config").out == "the configuration is valid\n"
    result = tidelog("node", *GOOD, "-peers", "n1", "-max-voters", "0", "-validate-config", code=2)
    assert all(line.startswith("tidelog: ") for line in result.err.splitlines())
    assert len(result.err.splitlines()) == 3  # and no -listen, as peers do not say
    assert list(tmp_path.iterdir()) == []


def test_variables_of_the_cluster_command_are_no_slips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELOG_CLUSTER_TLS_CA", "ca.crt")
    monkeypatch.setenv("TIDELOG_CLUSTER_NODES", "h1:1")
    done = in_subprocess("node", *GOOD, "-validate-config", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


# --- starts that are refused ---------------------------------------------------------------------------


@contextmanager
def busy_port() -> Iterator[str]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield f"127.0.0.1:{held.getsockname()[1]}"


def refused(*arguments: str, cwd: Path) -> str:
    """The one line that a start ends with, exit code 2."""
    done = in_subprocess("node", *arguments, cwd=cwd)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("tidelog: ")
    assert "Traceback" not in done.stderr
    return last.removeprefix("tidelog: ")


@pytest.mark.parametrize("flag", ["listen", "http-listen"])
def test_a_busy_port_is_one_sentence_and_makes_no_folder(tmp_path: Path, flag: str) -> None:
    with busy_port() as address:
        words = refused(*GOOD, "-listen", "127.0.0.1:0", f"-{flag}", address, cwd=tmp_path)
    assert words.startswith(f"-{flag}: cannot listen on {address}")
    assert not (tmp_path / "data").exists()


def test_a_folder_in_use_is_refused_with_the_process_that_has_it(tidelog: Tidelog, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    flags = ["-id", "n1", "-data-dir", "data", "-insecure-dev", "-peers", f"n1={address}"]
    with running(*flags, cwd=tmp_path) as first:
        until_led(tidelog, "--node", address, "--insecure-dev")
        words = refused(*flags, "-listen", "127.0.0.1:0", cwd=tmp_path)
        assert f"process {first.pid} has it open" in words
        first.send_signal(signal.SIGINT)
        assert first.wait(patient(DEADLINE_S)) == 0


def test_the_folder_of_another_node_is_refused_by_name(tmp_path: Path) -> None:
    NodeFile(OsDisk(tmp_path), f"data/{INTERNAL_FOLDER}", node="n2").raise_incarnation(0)
    words = refused(*GOOD, "-listen", "127.0.0.1:0", cwd=tmp_path)
    assert "belongs to node n2; start it with --id n2" in words


def test_limits_of_channels_and_producers_are_settings(tmp_path: Path) -> None:
    limits = node_options(good().values).core.replication
    assert (limits.channels_max, limits.replicas_per_node_max) == (100_000, 25_000)
    flags = ("-max-channels", "7", "-max-replicas-per-node", "5", "-producers-expiry", "36h")
    limits = node_options(good(*flags).values).core.replication
    assert (limits.channels_max, limits.replicas_per_node_max) == (7, 5)
    assert limits.producer_expiry_ms == 36 * 3_600_000
    file = tmp_path / "node.conf"
    file.write_text("channels.max = 9\nchannels.max-replicas-per-node = 4\n")
    found = loaded(*GOOD, file=file)
    assert found.problems == []
    limits = node_options(found.values).core.replication
    assert (limits.channels_max, limits.replicas_per_node_max) == (9, 4)
    for flag in ("max-channels", "max-replicas-per-node"):
        assert any(flag in problem for problem in problems(f"-{flag}", "0")), "nothing could be created"


class DoomedNode:
    """Starts, and soon cannot go on; or ends in peace if there is no reason."""

    reason: LogError | None = None
    failure: LogError | None = None
    stops = 0

    def __init__(self, options: NodeProcessOptions, *, log: object) -> None:
        assert options.node == "n1"

    async def start(self) -> None:
        pass

    async def wait_stopped(self) -> None:
        if self.reason is not None:
            raise self.reason

    async def stop(self) -> None:
        type(self).stops += 1


@pytest.mark.parametrize("reason", [None, MetadataPoisoned(problem="fsync failed")])
def test_a_node_that_cannot_go_on_stops_and_says_why(
    tidelog: Tidelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: LogError | None
) -> None:
    class Doomed(DoomedNode):
        stops = 0

    Doomed.reason = reason
    monkeypatch.setattr(node_module, "Node", Doomed)
    monkeypatch.chdir(tmp_path)
    result = tidelog("node", *GOOD, "-listen", "127.0.0.1:0", code=0 if reason is None else EXIT_DISK)
    if reason is None:
        assert result.err == ""
    else:
        assert str(reason) in result.err
        assert result.err.count("\n") == 1
    assert Doomed.stops == 1


def test_a_node_serves_http_when_told_where(tidelog: Tidelog, tmp_path: Path) -> None:
    address, http = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    flags = ["-id", "n1", "-data-dir", "data", "-insecure-dev", "-peers", f"n1={address}", "-http-listen", http]
    with running(*flags, "-http-anonymous", cwd=tmp_path):
        until_led(tidelog, "--node", address, "--insecure-dev")
        with urllib.request.urlopen(f"http://{http}/livez", timeout=patient(DEADLINE_S)) as answer:
            assert (answer.status, answer.read()) == (200, b'{"status":"ok"}\n')


def test_help_and_the_page_of_failures_name_the_same_exit_codes(tidelog: Tidelog) -> None:
    page = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()
    for command in ("boat", "cloud", "node"):
        said = tidelog(command, "--help").out
        for code, meaning, _ in EXIT_CODES:
            assert f"  {code:<4} {meaning}" in said
            assert f"| {code} | {meaning} |" in page
