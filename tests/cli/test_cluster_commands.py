"""`tidelog cluster` as an operator types it: a fake cluster for every answer, and a real one of a single node."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from tests.cli.commands import Tidelog
from tests.cluster.test_node_http import standing_well
from tests.patience import patient
from tests.ports import free_port
from tidelog.cli.cluster import actions as cluster_actions
from tidelog.cli.main import run
from tidelog.errors import LogError, NodeHolds, NotLeader, PeerUnreachable, UnknownNode, WaitTimedOut
from tidelog.transports.link.tls import LinkTls

REACH = ("--node", "h1:9500", "--insecure-dev")
DEADLINE_S = 60.0


def cluster_status() -> dict[str, Any]:
    """What n1 says, with the answer of its leader n2: n3 is fenced, n4 was never seen."""

    def record(node: str, state: str, *, session: bool, incarnation: int = 1) -> dict[str, Any]:
        return {
            "node": node,
            "state": state,
            "incarnation": incarnation,
            "addresses": {} if state == "expected" else {"link": f"host-{node}:9500"},
            "host": "" if state == "expected" else f"host-{node}",
            "tags": [],
            "capacity_bytes": 10**9,
            "software": "" if state == "expected" else "0.1.0",
            "session": session,
        }

    status = standing_well()
    status["nodes"] = [
        record("n1", "active", session=True, incarnation=4),
        record("n2", "active", session=True),
        record("n3", "fenced", session=False, incarnation=9),
        record("n4", "expected", session=False, incarnation=0),
    ]
    leader = json.loads(json.dumps(status)) | {"node": "n2", "standing": "leader"}
    leader["members"][0]["lag"] = 2
    return status | {"leader_status": leader}


class FakeCluster:
    """Stands where the client would be. Class state, because each command makes its own client."""

    said: dict[str, Any]
    refusal: LogError | None
    status_refusal: LogError | None
    leader: str
    asked: list[tuple[Any, ...]]
    reached: dict[str, Any]

    def __init__(self, addresses: list[str], **reach: Any) -> None:
        type(self).reached = {"addresses": addresses, **reach}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.asked.append(("close",))

    def _take(self, *asked: Any) -> None:
        self.asked.append(asked)
        if self.refusal is not None:
            raise self.refusal

    async def status(self) -> dict[str, Any]:
        self._take("status")
        if self.status_refusal is not None:
            raise self.status_refusal
        return self.said

    async def add(self, node: str) -> None:
        self._take("add", node)

    async def remove(self, node: str, *, force: bool) -> None:
        self._take("remove", node, force)

    async def transfer(self, node: str | None) -> str:
        self._take("transfer", node)
        return self.leader


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeCluster]:
    class Fresh(FakeCluster):
        said = cluster_status()
        refusal = None
        status_refusal = None
        leader = "n2"
        asked: list[tuple[Any, ...]] = []  # noqa: RUF012  (of this class alone)

    monkeypatch.setattr(cluster_actions, "ClusterClient", Fresh)
    for name in [name for name in os.environ if name.startswith("TIDELOG_CLUSTER_")]:
        monkeypatch.delenv(name)
    return Fresh


def row(out: str, node: str) -> list[str]:
    """The cells of a node's line in the table."""
    (line,) = [line for line in out.splitlines() if re.match(rf" +{node} ", line)]
    return re.split(r" {2,}", line.strip())


# --- status --------------------------------------------------------------------------------------


def test_status_for_people_says_who_leads_and_what_is_wrong(tidelog: Tidelog, fake: type[FakeCluster]) -> None:
    out = tidelog("cluster", "status", *REACH).out
    first, second = out.splitlines()[:2]
    assert "led by n2, term 7, 120 changes committed" in first
    assert second == "answered by n1 (voter, 119 changes applied)"
    assert row(out, "n1")[:6] == ["n1", "active", "voter", "4", "2", "live"]
    assert row(out, "n1")[7:] == ["1.50 ms", "host-n1:9500", "host-n1"]
    assert row(out, "n2")[2] == "leader"
    assert row(out, "n3")[1:6] == ["fenced", "learner", "9", "-", "lost"]
    assert row(out, "n4")[1:6] == ["expected", "-", "0", "-", "-"]
    assert "n3 is fenced: its session was lost" in out
    assert "n4 is expected and was not seen yet" in out
    assert "n1 has not heard n3 for 1.3 s" in out
    assert "different versions" not in out
    assert fake.asked[-1] == ("close",)


def test_status_for_programs_is_the_answer_itself(tidelog: Tidelog, fake: type[FakeCluster]) -> None:
    assert tidelog("cluster", "status", *REACH, "--json").json == fake.said


def test_status_of_a_node_without_a_cluster_says_what_it_waits_for(tidelog: Tidelog, fake: type[FakeCluster]) -> None:
    fake.said |= {"cluster": None, "standing": "seeking", "metadata": None, "members": [], "nodes": []}
    fake.said |= {"leader_status": None, "findings": [], "waiting": "no answer from n3 yet", "damage": "a bad checksum"}
    out = tidelog("cluster", "status", *REACH).out
    assert "n1 belongs to no cluster yet" in out
    assert "n1 waits: no answer from n3 yet" in out
    assert "set its metadata aside when it started: a bad checksum" in out
    assert "nobody leads" not in out


def test_status_says_what_the_disk_of_the_node_that_was_asked_has_forgotten(
    tidelog: Tidelog, fake: type[FakeCluster]
) -> None:
    """The leader answers for the cluster and does not know it."""
    words = "the metadata of n1 may be an older copy of itself"
    fake.said |= {"disk_findings": [words], "findings": [words, "a view of n1 that the leader's replaces"]}
    out = tidelog("cluster", "status", *REACH).out
    assert out.count(words) == 1
    assert "n1 has not heard n3 for 1.3 s" in out
    fake.said |= {"leader_status": None}
    assert tidelog("cluster", "status", *REACH).out.count(words) == 1


def test_status_without_the_leader_shows_what_the_node_knows(tidelog: Tidelog, fake: type[FakeCluster]) -> None:
    fake.said |= {"leader_status": None, "leader_problem": "host-n2:9500 cannot be reached", "refusal": "stale"}
    for node in fake.said["nodes"]:
        node["session"] = None
    fake.said["nodes"][1]["software"] = "0.2.0"
    out = tidelog("cluster", "status", *REACH).out
    assert "lags and sessions are not known: host-n2:9500 cannot be reached" in out
    assert row(out, "n2")[5] == "-"
    assert "n1 is not let in: stale" in out
    assert "the nodes run different versions: n1, n3 0.1.0; n2 0.2.0" in out


def test_status_while_nobody_leads_says_so(tidelog: Tidelog, fake: type[FakeCluster]) -> None:
    # The name of the one before is still known, and must not be taken for a leader.
    fake.said |= {"leader": "n3", "leader_status": None}
    fake.said["members"][1]["leads"] = False
    out = tidelog("cluster", "status", *REACH).out
    assert row(out, "n3")[2] == "learner"
    assert "led by nobody that it knows of" in out
    assert "no majority of the voters can be reached" in out


# --- commands ------------------------------------------------------------------------------------


def test_add_says_how_to_start_the_node(tidelog: Tidelog, fake: type[FakeCluster]) -> None:
    out = tidelog("cluster", "add", "n4", *REACH).out
    assert ("add", "n4") in fake.asked
    assert "n4 is expected" in out
    assert "tidelog node --id n4" in out
    assert "--peers n1=host-n1:9500,n2=host-n2:9500\n" in out  # only those that are up
    assert "--insecure-dev" in out
    added = tidelog("cluster", "add", "n4", *REACH, "--json").json
    assert added == {"added": "n4", "peers": {"n1": "host-n1:9500", "n2": "host-n2:9500"}}


def test_add_is_done_even_if_the_hint_cannot_be_had(tidelog: Tidelog, fake: type[FakeCluster]) -> None:
    fake.status_refusal = NotLeader(leader=None)
    assert "--peers NODE=HOST:PORT" in tidelog("cluster", "add", "n4", *REACH).out


def test_remove_says_what_to_do_with_the_process(tidelog: Tidelog, fake: type[FakeCluster]) -> None:
    assert "n3 is removed. Stop its process" in tidelog("cluster", "remove", "n3", *REACH).out
    assert tidelog("cluster", "remove", "n3", "--force", *REACH, "--json").json == {"removed": "n3", "force": True}
    assert [one for one in fake.asked if one[0] == "remove"] == [("remove", "n3", False), ("remove", "n3", True)]


def test_transfer_names_the_new_leader(tidelog: Tidelog, fake: type[FakeCluster]) -> None:
    assert tidelog("cluster", "transfer", *REACH).out == "n2 leads the metadata now\n"
    assert tidelog("cluster", "transfer", "n2", *REACH, "--json").json == {"leader": "n2", "asked": "n2"}
    # Somebody leads, but not who was asked for: a script must notice.
    result = tidelog("cluster", "transfer", "n3", *REACH, code=1)
    assert "n3 was asked for and n2 leads" in result.err


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (NodeHolds(node="n3", channels=["boat-001"], count=1), "--force"),
        (UnknownNode(node="n3"), "tidelog cluster status"),
        (NotLeader(leader=None), "a majority of the voters must be up"),
        (WaitTimedOut(waiting_for="the commit", deadline_s=5), "may have happened all the same"),
        (PeerUnreachable(address="h1:9500", problem="refused"), "h1:9500 cannot be reached"),
    ],
)
def test_a_refusal_is_one_sentence_with_advice_and_exit_1(
    tidelog: Tidelog, fake: type[FakeCluster], refusal: LogError, words: str
) -> None:
    fake.refusal = refusal
    result = tidelog("cluster", "remove", "n3", *REACH, code=1)
    assert result.out == ""
    assert result.err.startswith(f"tidelog: {refusal}")
    assert words in result.err
    assert result.err.count("\n") == 1
    said = tidelog("cluster", "remove", "n3", *REACH, "--json", code=1).json
    assert said == {
        "error": refusal.code,
        "detail": str(refusal),
        "retriable": refusal.retriable,
        "definite": refusal.definite,
    }


# --- how the cluster is reached --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("status",), ["--node host:port", "TIDELOG_CLUSTER_NODES", "--tls-cert and --tls-key and --tls-ca"]),
        (("status", "--node", "h1", "--insecure-dev"), ["has no port"]),
        (("status", "--node", "h1:0", "--insecure-dev"), ["port that is not 0"]),
        (("status", *REACH, "--timeout", "0s"), ["--timeout"]),
        (("status", *REACH, "--timeout", "soon"), ["--timeout"]),
        (("status", *REACH, "--tls-ca", "ca.crt"), ["exclude each other"]),
        (("status", "--node", "h1:1", "--tls-ca", "ca.crt", "--tls-key", "k"), ["--tls-cert is missing"]),
        (("add", "../n4", *REACH), ["no node's name"]),
        (("remove", *REACH), ["NODE"]),
        (("transfer", "n 2", *REACH), ["no node's name"]),
        (("stauts", *REACH), ["'status'"]),
    ],
)
def test_a_wrong_call_is_exit_2_and_asks_nobody(
    tidelog: Tidelog, fake: type[FakeCluster], arguments: tuple[str, ...], words: list[str]
) -> None:
    result = tidelog("cluster", *arguments, code=2)
    assert all(word in result.err for word in words), result.err
    assert fake.asked == []


def test_nodes_may_be_given_again_and_again_and_by_the_environment(
    tidelog: Tidelog, fake: type[FakeCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELOG_CLUSTER_NODES", "h1:9500, h2:9500,h1:9500")
    tidelog("cluster", "status", "--insecure-dev", "--timeout", "1m")
    assert fake.reached["addresses"] == ["h1:9500", "h2:9500"]
    assert (fake.reached["timeout_ms"], fake.reached["insecure_dev"]) == (60_000, True)
    tidelog("cluster", "status", "--insecure-dev", "--node", "h3:1", "--node", "h4:1")
    assert fake.reached["addresses"] == ["h3:1", "h4:1"]


def test_an_operators_certificate_gives_the_name_and_no_other_kind_will_do(
    tidelog: Tidelog, fake: type[FakeCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (["init"], ["issue", "anna", "--operator"], ["issue", "n1", "--node"]):
        assert run(["ca", *command]) == 0
    monkeypatch.setenv("TIDELOG_CLUSTER_TLS_KEY", "anna.key")
    monkeypatch.setenv("TIDELOG_CLUSTER_TLS_CA", "ca.crt")
    tidelog("cluster", "status", "--node", "h1:1", "--tls-cert", "anna.crt")
    assert (fake.reached["name"], fake.reached["insecure_dev"]) == ("anna", False)
    assert isinstance(fake.reached["tls"], LinkTls)
    assert "--tls-cert n4.crt" in tidelog("cluster", "add", "n4", "--node", "h1:1", "--tls-cert", "anna.crt").out
    fake.asked.clear()
    refused = tidelog("cluster", "status", "--node", "h1:1", "--tls-cert", "n1.crt", code=2)
    assert "the certificate of node n1" in refused.err
    assert "--operator" in refused.err
    assert (
        "is not the key"
        in tidelog("cluster", "status", "--node", "h1:1", "--tls-cert", "anna.crt", "--tls-key", "n1.key", code=2).err
    )
    assert "nowhere.crt" in tidelog("cluster", "status", "--node", "h1:1", "--tls-cert", "nowhere.crt", code=2).err
    assert fake.asked == []


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; from tidelog.cli.main import run; run(['cluster', '--help']); print('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(f"\n  {name} " in done.stdout for name in ("add", "remove", "status", "transfer"))
    assert done.stdout.splitlines()[-1] == "False"


# --- a real node -----------------------------------------------------------------------------------


@contextmanager
def running(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tidelog.cli", "node", *arguments]
    process = subprocess.Popen(command, cwd=cwd, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until_led(tidelog: Tidelog, *reach: str) -> dict[str, Any]:
    """The status once a leader is known and the node is registered."""
    deadline_s = time.monotonic() + patient(DEADLINE_S)
    while True:
        result = tidelog("cluster", "status", *reach, "--json", code=None)
        if result.code == 0 and result.json["standing"] == "leader":
            return result.json
        assert time.monotonic() < deadline_s, result
        time.sleep(0.05)


def test_a_cluster_of_one_is_commanded_over_tls(
    tidelog: Tidelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (["init"], ["issue", "n1", "--node"], ["issue", "anna", "--operator"]):
        assert run(["ca", *command]) == 0
    address = f"127.0.0.1:{free_port()}"
    node = ["-id", "n1", "-peers", f"n1={address}", "-data-dir", "data"]
    node += ["-tls-cert", "n1.crt", "-tls-key", "n1.key", "-tls-ca", "ca.crt"]
    reach = ("--node", address, "--tls-cert", "anna.crt", "--tls-key", "anna.key", "--tls-ca", "ca.crt")
    with running(*node, cwd=tmp_path) as process:
        status = until_led(tidelog, *reach)
        assert [(one["node"], one["state"]) for one in status["nodes"]] == [("n1", "active")]
        assert "led by n1" in tidelog("cluster", "status", *reach).out
        assert f"--peers n1={address}" in tidelog("cluster", "add", "n2", *reach).out
        assert "only needs to be started" in tidelog("cluster", "add", "n2", *reach, code=1).err
        assert "n2 is expected and was not seen yet" in tidelog("cluster", "status", *reach).out
        tidelog("cluster", "remove", "n2", *reach)
        assert "tidelog cluster status" in tidelog("cluster", "remove", "n2", *reach, code=1).err
        assert tidelog("cluster", "transfer", *reach).out == "n1 leads the metadata now\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(patient(DEADLINE_S)) == 0
    assert "cannot be reached" in tidelog("cluster", "status", *reach, code=1).err
