"""`tidelog channel`, `tidelog pub` and `tidelog sub` as they are typed, against a fake cluster over real links."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO

import pytest

from tests.cli.commands import Tidelog
from tests.client.fake_cluster import FakeCluster, cluster_in_a_thread
from tests.patience import patient
from tidelog.cli.channels import pub_sub
from tidelog.cli.channels.standing import shortfall
from tidelog.cli.lazy import LazyCommand
from tidelog.cli.main import cli

DEADLINE_S = 60.0
COMMANDS = {
    "channel": LazyCommand("tidelog.cli.channels.commands", "channel", "Create and change channels."),
    "pub": LazyCommand("tidelog.cli.channels.pub_sub", "pub", "Write to a channel."),
    "sub": LazyCommand("tidelog.cli.channels.pub_sub", "sub", "Read from a channel."),
}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    for name, command in COMMANDS.items():
        monkeypatch.setitem(cli.lazy, name, command)
    with cluster_in_a_thread("a") as cluster:
        monkeypatch.setenv("TIDELOG_CLUSTER_NODES", " ".join(cluster.addresses))
        yield cluster


Piped = Callable[[bytes], None]


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Piped]:
    """Gives the next commands their standard input."""
    opened: list[TextIO] = []

    def pipe(text: bytes) -> None:
        path = tmp_path / f"input{len(opened)}"
        path.write_bytes(text)
        opened.append(path.open("r"))
        monkeypatch.setattr(sys, "stdin", opened[-1])

    yield pipe
    for stream in opened:
        stream.close()


# --- channel ---------------------------------------------------------------------------------------


def test_every_setting_of_a_channel_has_its_flag(cluster: FakeCluster, tidelog: Tidelog) -> None:
    result = tidelog(
        *("channel", "create", "b", "c", "--insecure-dev", "--json"),
        *("--factor", "2", "--placement", "pinned", "--pinned-nodes", "n1, n2", "--heartbeat-ms", "250"),
        *("--placement-metadata", "metadata.intent=hot", "--leader-pinned", "n1", "--min-isr", "1"),
        *("--on-under-capacity", "evict_oldest", "--replication-budget-fraction", "0.25"),
        *("--skip-threshold", "1MiB", "--fsync", "interval", "--fsync-interval-ms", "20"),
        *("--bandwidth-class", "background", "--retention-age", "1h", "--retention-bytes", "1GiB"),
        *("--retention-events", "1000", "--memory", "--replicated", "--subject", "sea.b", "--queue-group", "g"),
    )
    assert result.json == {
        "channels": [
            {"name": "b", "channel_id": 2, "existed": False},
            {"name": "c", "channel_id": 3, "existed": False},
        ]
    }
    described = tidelog("channel", "describe", "b", "--insecure-dev", "--json").json
    assert described["config"] == {
        "replicated": True,
        "factor": 2,
        "placement": "pinned",
        "pinned_nodes": ["n1", "n2"],
        "placement_metadata": [["metadata.intent", "hot"]],
        "heartbeat_ms": 250,
        "leader_pinned": "n1",
        "on_under_capacity": "evict_oldest",
        "replication_budget_ppm": 250_000,
        "min_isr": 1,
        "skip_threshold_bytes": 1 << 20,
        "fsync": "interval",
        "fsync_interval_ms": 20,
        "bandwidth_class": "background",
        "retention": {"max_age_ms": 3_600_000, "max_bytes": 1 << 30, "max_events": 1000},
        "persistent": False,
        "subject": "sea.b",
        "queue_group": "g",
    }
    assert described["offsets"] == {"log_start": 0, "committed_end": 0}
    altered = tidelog(
        *("channel", "alter", "b", "--insecure-dev", "--json", "--leader-pinned", "none", "--retention-age", "none"),
        *("--subject", "other", "--queue-group", "none"),
    ).json["channel"]
    assert altered["config"]["leader_pinned"] is None
    assert altered["config"]["subject"] == "other"
    assert "queue_group" not in altered["config"]
    assert altered["config"]["retention"]["max_age_ms"] is None
    assert altered["config"]["retention"]["max_bytes"] == 1 << 30


def test_people_read_tables_and_sentences(cluster: FakeCluster, tidelog: Tidelog) -> None:
    assert "b is created, channel id 2" in tidelog("channel", "create", "b", "--insecure-dev").out
    assert "b exists already" in tidelog("channel", "create", "b", "--insecure-dev").out
    listed = tidelog("channel", "list", "--insecure-dev").out
    assert "n1 n2 n3" in listed
    assert "disk, for ever" in listed
    shown = tidelog("channel", "describe", "a", "--insecure-dev").out
    assert "0 to 0" in shown
    assert "heartbeat_ms" in shown
    assert "a is paused" in tidelog("channel", "pause", "a", "--insecure-dev").out
    assert "paused" in tidelog("channel", "list", "--insecure-dev").out
    assert "a goes on" in tidelog("channel", "resume", "a", "--insecure-dev").out
    assert "a is read-only" in tidelog("channel", "readonly", "a", "--insecure-dev").out
    assert "a is writable" in tidelog("channel", "readonly", "a", "--off", "--insecure-dev").out
    assert "a is altered" in tidelog("channel", "alter", "a", "--factor", "1", "--insecure-dev").out
    assert "n2 leads a" in tidelog("channel", "elect", "a", "n2", "--insecure-dev").out
    assert "nothing was done" in tidelog("channel", "rebalance", "--insecure-dev").out
    assert "1 moves are under way" in tidelog("channel", "rebalance", "--apply", "--insecure-dev").out
    assert "a is deleted" in tidelog("channel", "delete", "a", "--yes", "--insecure-dev").out
    tidelog("channel", "delete", "b", "--yes", "--insecure-dev")
    assert "there are no channels" in tidelog("channel", "list", "--insecure-dev").out


def test_a_channel_without_a_leader_is_described_all_the_same(cluster: FakeCluster, tidelog: Tidelog) -> None:
    cluster.log("a").leader = None
    shown = tidelog("channel", "describe", "a", "--insecure-dev", "--timeout", "300ms")
    assert "no leader" in shown.out


@pytest.fixture
def one_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    for name, command in COMMANDS.items():
        monkeypatch.setitem(cli.lazy, name, command)
    with cluster_in_a_thread(count=1) as cluster:
        monkeypatch.setenv("TIDELOG_CLUSTER_NODES", " ".join(cluster.addresses))
        yield cluster


def test_a_channel_with_too_few_nodes_says_so_at_creation_and_in_the_list(
    one_node: FakeCluster, tidelog: Tidelog
) -> None:
    created = tidelog("channel", "create", "b", "--factor", "3", "--insecure-dev")
    assert "b is created" in created.out
    assert "b has 1 of 3 replicas, 1 in sync, on a cluster of 1 active node" in created.err
    assert "writes are refused until 2 replicas are in sync (min_isr is 2)" in created.err
    assert "tidelog channel alter b --factor 1`" in created.err
    listed = tidelog("channel", "list", "--insecure-dev").out
    assert "below_min_isr, writes refused (1 of 2 in sync)" in listed
    [row] = tidelog("channel", "list", "--insecure-dev", "--json").json["channels"]
    assert row["state"] == "below_min_isr"
    shown = tidelog("channel", "describe", "b", "--insecure-dev").out
    assert "2 (by the factor)" in shown
    described = tidelog("channel", "describe", "b", "--insecure-dev", "--json").json
    assert (described["state"], described["effective_min_isr"]) == ("below_min_isr", 2)
    # The advice works.
    tidelog("channel", "alter", "b", "--factor", "1", "--insecure-dev")
    assert "below_min_isr" not in tidelog("channel", "list", "--insecure-dev").out


def test_fewer_replicas_than_the_factor_but_enough_for_writes_is_a_milder_warning(
    one_node: FakeCluster, tidelog: Tidelog
) -> None:
    created = tidelog("channel", "create", "b", "--factor", "2", "--insecure-dev")
    assert "it takes writes (min_isr is 1)" in created.err
    assert "refused" not in created.err
    assert "under-replicated" in tidelog("channel", "list", "--insecure-dev").out
    assert tidelog("channel", "create", "c", "--factor", "1", "--insecure-dev").err == ""


def test_altering_a_channel_beyond_what_the_cluster_has_says_so_as_creating_it_does(
    one_node: FakeCluster, tidelog: Tidelog
) -> None:
    assert tidelog("channel", "create", "b", "--factor", "1", "--insecure-dev").err == ""
    more = tidelog("channel", "alter", "b", "--factor", "3", "--insecure-dev")
    assert "b is altered" in more.out
    assert "b has 1 of 3 replicas, 1 in sync, on a cluster of 1 active node" in more.err
    assert "writes are refused until 2 replicas are in sync (min_isr is 2)" in more.err
    # What does not concern the copies is not answered with what is known already.
    assert tidelog("channel", "alter", "b", "--retention-age", "1h", "--insecure-dev").err == ""
    strict = tidelog("channel", "alter", "b", "--factor", "2", "--min-isr", "2", "--insecure-dev")
    assert "writes are refused until 2 replicas are in sync" in strict.err
    assert "`tidelog channel alter b --factor 1 --min-isr 1`" in strict.err
    machine = tidelog("channel", "alter", "b", "--min-isr", "1", "--insecure-dev", "--json")
    assert machine.json["channel"]["config"]["min_isr"] == 1
    assert "it takes writes (min_isr is 1)" in machine.err
    assert tidelog("channel", "alter", "b", "--factor", "1", "--insecure-dev").err == ""


def test_replicas_that_are_on_their_way_are_not_asked_for_once_more() -> None:
    config = {"factor": 3}
    channel = {"name": "b", "leader": "n1", "isr": ["n1"], "replicas": ["n1"], "config": config}
    nodes = [{"node": name, "state": "active"} for name in ("n1", "n2", "n3")]
    words = shortfall({**channel, "effective_factor": 3, "effective_min_isr": 2}, nodes)
    assert words is not None
    assert "writes are refused until 2 replicas are in sync, which follow by themselves" in words
    assert "start more nodes" not in words
    words = shortfall({**channel, "effective_factor": 3, "effective_min_isr": 1}, nodes)
    assert words is not None
    assert "it takes writes (min_isr is 1) and the other replicas follow" in words


def test_create_waits_until_the_channel_takes_writes(one_node: FakeCluster, tidelog: Tidelog) -> None:
    late = tidelog("channel", "create", "b", "--insecure-dev", "--wait", "300ms", code=1)
    assert "writes are refused" in late.err
    assert tidelog("channel", "create", "c", "--factor", "1", "--wait", "10s", "--insecure-dev").err == ""
    assert "--wait" in tidelog("channel", "create", "d", "--wait", "soon", "--insecure-dev", code=2).err


def test_refusals_are_one_sentence_and_exit_code_1(cluster: FakeCluster, tidelog: Tidelog) -> None:
    result = tidelog("channel", "describe", "none", "--insecure-dev", code=1)
    assert result.out == ""
    assert "`tidelog channel list`" in result.err
    result = tidelog("channel", "pause", "none", "--insecure-dev", "--json", code=1)
    assert result.json["error"] == "unknown_channel"
    assert result.json["definite"] is True
    result = tidelog("channel", "list", "--insecure-dev", "--node", "127.0.0.1:1", "--timeout", "300ms", code=1)
    assert "cannot be reached" in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["channel", "list"], "--tls-cert"),
        (["channel", "list", "--insecure-dev", "--tls-ca", "x"], "exclude each other"),
        (["channel", "list", "--insecure-dev", "--node", "nowhere"], "--node"),
        (["channel", "list", "--insecure-dev", "--timeout", "soon"], "--timeout"),
        (["channel", "alter", "a", "--insecure-dev"], "at least one setting"),
        (["channel", "create", "b", "--insecure-dev", "--factor", "99"], "factor"),
        (["channel", "create", "b", "--insecure-dev", "--skip-threshold", "much"], "--skip-threshold"),
        (["channel", "create", "b", "--insecure-dev", "--retention-events", "few"], "--retention-events"),
        (["channel", "create", "b", "--insecure-dev", "--replication-budget-fraction", "nan"], "fraction"),
        (["channel", "create", "b", "--insecure-dev", "--placement-metadata", "hot"], "KEY=VALUE"),
        (["channel", "elect", "a", "--unclean", "--insecure-dev"], "name it"),
        (["channel", "delete", "a", "--insecure-dev"], "--yes"),
        (["sub", "a", "--insecure-dev", "--from", "yesterday"], "--from"),
        (["sub", "a", "--insecure-dev", "--count", "0"], "--count"),
        (["pub", "a", "x", "--insecure-dev", "--acks", "most"], "--acks"),
    ],
)
def test_wrong_calls_are_exit_code_2_and_ask_nobody(
    cluster: FakeCluster,
    tidelog: Tidelog,
    piped: Piped,
    arguments: list[str],
    words: str,
) -> None:
    piped(b"")
    result = tidelog(*arguments, code=2)
    assert words in result.err
    assert cluster.logs.keys() == {"a"}


# --- pub and sub -----------------------------------------------------------------------------------


def test_what_is_published_is_read_as_json_lines(cluster: FakeCluster, tidelog: Tidelog) -> None:
    report = tidelog("pub", "a", "one", "two", "--key", "k", "--insecure-dev", "--json").json
    assert report == {"channel": "a", "records": 2, "first_offset": 0, "last_offset": 1}
    rows = tidelog("sub", "a", "--no-follow", "--insecure-dev").rows
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [(0, "k", "one"), (1, "k", "two")]
    assert tidelog("sub", "a", "--from", "1", "--count", "1", "--insecure-dev").rows == rows[1:]
    assert tidelog("sub", "a", "--from", "latest", "--no-follow", "--insecure-dev").rows == []
    assert tidelog("sub", "a", "--from", "2001-01-01T00:00:00Z", "--count", "2", "--insecure-dev").rows == rows
    assert (
        tidelog("sub", "a", "--count", "1", "--cursor", "job", "--from", "earliest", "--insecure-dev").rows == rows[:1]
    )
    assert cluster.log("a").cursors == {"job": 1}
    assert tidelog("sub", "a", "--no-follow", "--cursor", "job", "--nearest", "--insecure-dev").rows == rows[1:]


def test_lines_of_a_pipe_are_values(cluster: FakeCluster, tidelog: Tidelog, piped: Piped) -> None:
    piped(b"first\r\n\n\xff\xfe\nlast")
    assert tidelog("pub", "a", "--insecure-dev", "--json").json["records"] == 4
    assert cluster.log("a").values() == [b"first", b"", b"\xff\xfe", b"last"]
    piped(b"")
    assert tidelog("pub", "a", "--insecure-dev", "--json").json["records"] == 0


def test_a_channel_is_copied_by_a_pipe(cluster: FakeCluster, tidelog: Tidelog, piped: Piped) -> None:
    lines = [
        {"value": "text", "key": "k", "time_us": 5, "headers": [{"name": "h", "value": "v"}]},
        {"value_base64": "//4=", "key_base64": "gA==", "headers": [{"name": "b", "value_base64": "/w=="}]},
        {"value": None, "key": ""},
    ]
    piped("".join(json.dumps(line) + "\n" for line in lines).encode())
    tidelog("pub", "a", "--format", "json", "--insecure-dev")
    printed = tidelog("sub", "a", "--no-follow", "--insecure-dev").out
    tidelog("channel", "create", "b", "--insecure-dev")
    piped(printed.encode())
    tidelog("pub", "b", "--format", "json", "--insecure-dev")
    assert tidelog("sub", "b", "--no-follow", "--insecure-dev").out == printed
    rows = [json.loads(line) for line in printed.splitlines()]
    assert rows[0]["headers"] == [{"name": "h", "value": "v"}]
    assert rows[1]["value_base64"] == "//4="
    assert (rows[2]["key"], rows[2]["value"]) == ("", None)


@pytest.mark.parametrize(
    "line", ["no json", "[]", '{"value": 5}', '{"value_base64": "%"}', '{"value": "x", "headers": 3}']
)
def test_a_line_that_is_no_record_is_named(cluster: FakeCluster, tidelog: Tidelog, piped: Piped, line: str) -> None:
    piped(f'{{"value": "good"}}\n{line}\n'.encode())
    assert "line 2" in tidelog("pub", "a", "--format", "json", "--insecure-dev", code=2).err


def test_terminals_get_words_and_nothing_they_would_obey(
    cluster: FakeCluster, tidelog: Tidelog, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidelog("pub", "a", "ding\x1b[31m\n", "x" * 500, "--key", "k", "--insecure-dev")
    lines: list[str] = []
    real = pub_sub._line

    def for_people(record: Any, *, as_json: bool) -> str:
        lines.append(real(record, as_json=False))
        return real(record, as_json=as_json)

    monkeypatch.setattr(pub_sub, "_line", for_people)
    tidelog("sub", "a", "--no-follow", "--insecure-dev")
    assert "[k]  ding\\x1b[31m\\n" in lines[0]
    assert lines[1].endswith("... (500 bytes)")


@contextmanager
def deaf_to(number: signal.Signals) -> Iterator[None]:
    """What is started meanwhile ignores the signal: so a shell starts what a script puts in the background."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(
    ("number", "is_deaf"), [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False)]
)
def test_sub_follows_until_it_is_interrupted(
    cluster: FakeCluster, tidelog: Tidelog, number: signal.Signals, is_deaf: bool
) -> None:
    script = (
        "import sys; from tidelog.cli.main import cli, main; from tidelog.cli.lazy import LazyCommand; "
        "cli.lazy['sub'] = LazyCommand('tidelog.cli.channels.pub_sub', 'sub', ''); main()"
    )
    command = [sys.executable, "-X", "faulthandler", "-c", script, "sub", "a", "--from", "earliest", "--insecure-dev"]
    with deaf_to(number) if is_deaf else nullcontext():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stdout is not None
            tidelog("pub", "a", "one", "--insecure-dev")
            assert json.loads(process.stdout.readline())["value"] == "one"
            tidelog("pub", "a", "two", "--insecure-dev")
            assert json.loads(process.stdout.readline())["value"] == "two"
            process.send_signal(number)
            deadline = time.monotonic() + patient(DEADLINE_S)
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            if process.poll() is None:
                process.send_signal(signal.SIGABRT)  # its stack says where it hangs
            assert process.stderr is not None
            said = process.stderr.read()
            assert process.wait() == 128 + number, said
            assert "Traceback" not in said
        finally:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
