"""What a node answers over HTTP, asked on a real socket, of a node that is only its status."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.http.parties import KEY, Client, options, serving
from tests.replication.replica_kit import Kit
from tidelog.cli.openapi_page import render_openapi_page
from tidelog.cluster.http.node_http import NodeHttp
from tidelog.cluster.metadata.writer import MetadataWriterStatistics
from tidelog.cluster.node.core import NodeCore, NodeFacts, NodeOptions
from tidelog.cluster.status.node_status import node_status
from tidelog.core.membership import node_of
from tidelog.errors import WithdrawnByHand
from tidelog.http.access import READ_METRICS, READ_STATUS, AccessOptions, new_token
from tidelog.storage.os_disk import OsDisk
from tidelog.transports.link.link import LinkStatistics

DOCS = Path(__file__).parents[2] / "docs" / "openapi"
START_US = 1_750_000_000_000_000


class SomeLink:
    def statistics(self) -> LinkStatistics:
        return LinkStatistics(
            bytes_sent=1_000,
            bytes_received=2_000,
            messages_sent=10,
            messages_received=20,
            messages_refused=1,
            requests_sent=3,
            requests_received=4,
            calls_open=0,
            requests_running=0,
            queue_bytes=77,
            held_bytes=0,
            rtt_ms=0.5,
            bulk_bytes_per_s=0.0,
            bulk_peak_bytes_per_s=0.0,
        )


class SmallPool:
    def __init__(self, *up: str) -> None:
        self.up = set(up)

    def link_to(self, node: str) -> SomeLink | None:
        return SomeLink() if node in self.up else None


class SomeWriter:
    def __init__(self) -> None:
        self.statistics = MetadataWriterStatistics(writes=5, entries=40, snapshots=1)


class NoProximity:
    def rtt_us(self, a: str, b: str) -> int | None:
        return None


class SmallCore:
    """The channels of a node: those of one in a `Kit`, or none."""

    def __init__(self, kit: Kit | None = None, node: str = "n1") -> None:
        self.node = node
        self.is_leader = False
        self.catalog = None if kit is None else kit.catalog
        self.proximity = NoProximity()
        self.channels = SimpleNamespace(replicas=(kit or Kit(node))[node].core)


class SmallNode:
    """A node as its own HTTP side sees it."""

    def __init__(self, **changes: Any) -> None:
        self.core: Any = SmallCore()
        self.clock_ms = 20_000
        self.said = standing_well() | changes
        self.pool = SmallPool("n2")
        self.writer: SomeWriter | None = SomeWriter()

    def status(self) -> dict[str, Any]:
        return self.said

    def now_ms(self) -> int:
        return self.clock_ms


def standing_well() -> dict[str, Any]:
    """The status of n1, which follows n2; the way from n3 to n1 is cut."""
    ways = [("n2", "n1", False), ("n3", "n1", True), ("n1", "n2", False)]
    return {
        "node": "n1",
        "cluster": "ab" * 16,
        "standing": "voter",
        "waiting": None,
        "refusal": None,
        "damage": None,
        "incarnation": 4,
        "session_valid": True,
        "leader": "n2",
        "metadata": {
            "role": "follower",
            "term": 7,
            "commit": 120,
            "applied": 119,
            "last_index": 121,
            "snapshot_index": 100,
            "log_entries": 21,
            "elections": 2,
        },
        "groups": {"total": 3, "members": 7, "coordinated": 2, "expelled": 1},
        "members": [
            {"member": "n1/aa", "node": "n1", "role": "voter", "leads": False, "match": 121, "lag": None},
            {"member": "n2/bb", "node": "n2", "role": "voter", "leads": True, "match": None, "lag": 3},
            {"member": "n3/cc", "node": "n3", "role": "learner", "leads": False, "match": None, "lag": None},
        ],
        "nodes": [
            {"node": "n1", "state": "active", "addresses": {"link": "h1:1"}},
            {"node": "n2", "state": "active", "addresses": {"link": "h2:1"}},
            {"node": "n3", "state": "fenced", "addresses": {}},
        ],
        "channels": {
            "total": 12,
            "paused": 1,
            "leaderless": 2,
            "below_min_isr": 1,
            "under_replicated": 3,
            "here": 9,
            "led": 4,
            "advertised": 8,
        },
        "proximity": {
            "nodes": ["n1", "n2", "n3"],
            "unheard": ["n3"],
            "links": [
                {
                    "from": source,
                    "to": target,
                    "silence_ms": 250,
                    "interval_ms": 500,
                    "rtt_us": None if cut else 1_500,
                    "peak_bytes_per_s": None,
                    "cut": cut,
                    "reported_ago_ms": 10,
                }
                for source, target, cut in ways
            ],
            "cannot_hear": [["n1", "n3"]],
            "partitions": [["n1", "n2", "n3"]],
            "words": [],
        },
        "findings": ["n1 has not heard n3 for 1.3 s; whether n3 hears n1 is not known"],
    }


def served(node: Any, **changes: Any) -> NodeHttp:
    return NodeHttp(options(**changes), node=node)


async def metrics_of(client: Client) -> dict[str, float]:
    answer = await client.ask("/metrics")
    assert answer.status == 200
    samples = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, _, value in (line.rpartition(" ") for line in samples)}
    assert len(found) == len(samples), "a series is there twice"
    return found


# --- status and health ---------------------------------------------------------------------------


async def test_status_is_what_the_node_says_and_has_two_addresses() -> None:
    node = SmallNode()
    async with serving(served(node).server) as client:
        assert (await client.ask("/status")).json == node.said
        assert (await client.ask("/cluster/status")).json == node.said
        assert (await client.ask("/livez")).json == {"status": "ok"}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"standing": "seeking", "metadata": None, "waiting": "no answer from n3 yet"}, "no answer from n3"),
        ({"standing": "seeking", "metadata": None}, "no metadata"),
        ({"standing": "joining"}, "not registered"),
        ({"standing": "joining", "refusal": "n1 is alive with another disk"}, "another disk"),
        ({"leader": None}, "no metadata leader"),
        ({"session_valid": False}, "session with n2"),
    ],
)
async def test_a_node_that_takes_no_part_is_not_ready_and_says_why(changes: dict[str, Any], word: str) -> None:
    async with serving(served(SmallNode(**changes)).server) as client:
        for path in ("/readyz", "/healthz"):
            answer = await client.ask(path)
            assert (answer.status, answer.json["status"]) == (503, "unavailable")
            assert word in answer.json["detail"]
        assert (await client.ask("/livez")).status == 200
        assert (await metrics_of(client))["tidelog_node_ready"] == 0
        client.key = None
        assert (await client.ask("/readyz")).json == {"status": "unavailable"}


@pytest.mark.parametrize("standing", ["learner", "voter", "leader"])
async def test_a_registered_node_is_ready(standing: str) -> None:
    async with serving(served(SmallNode(standing=standing)).server) as client:
        assert (await client.ask("/readyz")).json == {"status": "ok"}
        health = (await client.ask("/healthz")).json
        assert (health["standing"], health["leader"]) == (standing, "n2")
        assert "has not heard n3" in health["findings"][0]
        client.key = None
        assert (await client.ask("/healthz")).json == {"status": "ok"}
        assert (await client.ask("/status")).status == 401


async def test_who_sees_some_instances_only_does_not_see_the_cluster(tmp_path: Path) -> None:
    lines = [
        new_token(name="boats", scopes=[READ_STATUS, READ_METRICS], instances=["boat-*"], secret="some"),
        new_token(name="all", scopes=[READ_STATUS, READ_METRICS], secret="all"),
    ]
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{made.line}\n" for made in lines))
    tokens.chmod(0o600)

    access = AccessOptions(token_file=tokens)
    async with serving(served(SmallNode(), access=access).server, key="some") as client:
        for path in ("/status", "/cluster/status", "/channels", "/channels/spray", "/metrics"):
            refused = await client.ask(path)
            assert refused.status == 403
            assert "some instances only" in refused.json["detail"]
        assert (await client.ask("/healthz")).json == {"status": "ok"}
        client.key = "all"
        assert (await client.ask("/status")).status == 200


async def test_what_a_disk_forgot_is_a_finding_of_health_and_a_metric() -> None:
    words = "the disk of n1 lost what it had synced"

    node = SmallNode()
    async with serving(served(node).server) as client:
        found = await metrics_of(client)
        assert (found["tidelog_node_metadata_doubtful"], found["tidelog_node_synced_data_lost"]) == (0, 0)
        node.said |= {"metadata_doubt": "as n2 remembers", "findings": [words]}
        found = await metrics_of(client)
        assert (found["tidelog_node_metadata_doubtful"], found["tidelog_node_synced_data_lost"]) == (1, 0)
        node.said |= {"metadata_doubt": None, "synced_loss": "a file is missing"}
        found = await metrics_of(client)
        assert (found["tidelog_node_metadata_doubtful"], found["tidelog_node_synced_data_lost"]) == (0, 1)
        health = await client.ask("/healthz")
        assert (health.status, health.json["findings"]) == (200, [words]), "it takes part, and says so"


# --- metrics -------------------------------------------------------------------------------------


async def test_metrics_say_how_the_group_the_pairs_and_the_links_stand() -> None:
    async with serving(served(SmallNode()).server) as client:
        found = await metrics_of(client)
    expected = {
        "tidelog_node_ready": 1,
        "tidelog_node_incarnation": 4,
        "tidelog_node_metadata_damaged": 0,
        'tidelog_cluster_nodes{state="active"}': 2,
        'tidelog_cluster_nodes{state="fenced"}': 1,
        "tidelog_raft_term": 7,
        "tidelog_raft_commit_index": 120,
        "tidelog_raft_applied_index": 119,
        "tidelog_raft_snapshot_index": 100,
        "tidelog_raft_elections_total": 2,
        'tidelog_raft_role{role="follower"}': 1,
        'tidelog_raft_role{role="leader"}': 0,
        'tidelog_raft_members{role="voter"}': 2,
        'tidelog_raft_members{role="learner"}': 1,
        'tidelog_raft_member_lag_entries{node="n2"}': 3,
        "tidelog_raft_syncs_total": 5,
        "tidelog_raft_entries_written_total": 40,
        'tidelog_pair_rtt_seconds{from="n2",to="n1"}': 0.0015,
        'tidelog_pair_silence_seconds{from="n3",to="n1"}': 0.25,
        'tidelog_pair_cut{from="n3",to="n1"}': 1,
        'tidelog_pair_cut{from="n2",to="n1"}': 0,
        "tidelog_cluster_cut_pairs": 1,
        "tidelog_cluster_parts": 1,
        "tidelog_cluster_unheard_nodes": 1,
        "tidelog_channels": 12,
        "tidelog_channels_leaderless": 2,
        "tidelog_channels_under_replicated": 3,
        "tidelog_channels_below_min_isr": 1,
        "tidelog_channels_paused": 1,
        "tidelog_channels_here": 9,
        "tidelog_channels_led": 4,
        "tidelog_channels_advertised": 8,
        "tidelog_groups": 3,
        "tidelog_group_members": 7,
        "tidelog_groups_coordinated": 2,
        "tidelog_group_members_expelled_total": 1,
        'tidelog_link_up{peer="n2"}': 1,
        'tidelog_link_up{peer="n3"}': 0,
        'tidelog_link_bytes_sent_total{peer="n2"}': 1_000,
        'tidelog_link_queue_bytes{peer="n2"}': 77,
    }
    assert {name: found.get(name) for name in expected} == expected
    # What nobody has measured is left out, and so is a link to ourselves.
    assert 'tidelog_pair_rtt_seconds{from="n3",to="n1"}' not in found
    assert not any("peak" in name for name in found)
    assert not any('peer="n1"' in name for name in found)


async def test_a_node_without_metadata_has_metrics_too() -> None:
    node = SmallNode(standing="seeking", metadata=None, members=[], nodes=[], leader=None, session_valid=False)
    node.writer = None
    async with serving(served(node).server) as client:
        found = await metrics_of(client)
    assert found["tidelog_node_leader_known"] == 0
    assert not any(name.startswith(("tidelog_raft_", "tidelog_link_")) for name in found)


# --- channels ------------------------------------------------------------------------------------


def with_channels(*names: str) -> tuple[Kit, SmallNode]:
    """Three nodes that share these channels, led by n1 and whole; the node is n2."""
    kit = Kit("n1", "n2", "n3")
    for number, name in enumerate(names, 1):
        kit.create(name, leader_pinned="n1")
        kit.write(b"one", channel_id=number)
        kit.run_until(lambda number=number: kit.is_whole(number))  # type: ignore[misc]
    node = SmallNode()
    node.core = SmallCore(kit, "n2")
    node.clock_ms = kit.now_ms
    return kit, node


async def test_channels_are_listed_by_name_in_pages() -> None:
    _, node = with_channels("spray", "deck/foam", "wake")
    async with serving(served(node).server) as client:
        found = (await client.ask("/channels")).json
        assert [line["name"] for line in found["channels"]] == ["deck/foam", "spray", "wake"]
        assert "next" not in found
        first = found["channels"][0]
        assert (first["leader"], first["state"], first["role"]) == ("n1", "ok", "replica")
        assert sorted(first["isr"]) == ["n1", "n2", "n3"]
        page = (await client.ask("/channels?limit=2")).json
        assert (len(page["channels"]), page["next"]) == (2, "spray")
        rest = (await client.ask("/channels?limit=2&after=spray")).json
        assert [line["name"] for line in rest["channels"]] == ["wake"]
        for wrong in ("limit=0", "limit=1001", "limit=ten", "limit=", "name=spray"):
            assert (await client.ask(f"/channels?{wrong}")).status == 400, wrong


async def test_one_channel_has_its_epochs_its_offsets_and_its_problem() -> None:
    kit, node = with_channels("spray", "deck/foam")
    async with serving(served(node).server) as client:
        found = (await client.ask("/channels/spray")).json
        record = kit.record()
        assert (found["leader_epoch"], found["channel_epoch"]) == (record.leader_epoch, record.channel_epoch)
        assert found["tag"] == "causal:0000000000000001"
        assert found["holders"][0] == "n2"
        assert found["config"]["factor"] == 3
        here = found["here"]
        assert (here["role"], here["log_end"], here["committed_end"], here["lag_records"]) == ("replica", 2, 2, 0)
        assert (here["serves"], here["problem"]) == (True, "")
        kit["n2"].replica().withdraw(WithdrawnByHand(channel="spray"), kit.now_ms)
        here = (await client.ask("/channels/spray")).json["here"]
        assert here["role"] == "idle"
        assert "withdrawn by hand" in here["problem"]
        assert (await client.ask("/channels/deck%2Ffoam")).json["name"] == "deck/foam"
        missing = await client.ask("/channels/nothing")
        assert missing.status == 404
        assert "nothing" in missing.json["detail"]
        client.key = None
        assert (await client.ask("/channels")).status == 401
        assert (await client.ask("/channels/spray")).status == 401


async def test_metrics_hold_those_of_the_seed_with_lags_as_of_now() -> None:
    kit, node = with_channels("spray")
    async with serving(served(node).server) as client:
        found = await metrics_of(client)
        labels = '{channel="spray"}'
        assert found[f"dataforts_leader_changes_total{labels}"] == 0, "n2 never led"
        assert found[f"dataforts_replication_witness_withdrawals_total{labels}"] == 0
        lag = 'dataforts_replication_lag_seconds{channel="spray",role="replica"}'
        before = found[lag]
        kit["n1"].kill()
        kit.controller_on = False
        kit.run(3_000)
        node.clock_ms = kit.now_ms
        found = await metrics_of(client)
        assert found[lag] >= before + 2.9
        assert found[f"dataforts_replication_election_thrash_total{labels}"] == 1
        body = (await client.ask("/metrics")).body.decode()
        assert body.count("# TYPE dataforts_replication_lag_seconds gauge\n") == 1


# --- what a real node says ---------------------------------------------------------------------------


class LonelyNode:
    """A cluster of one: the real core, without links and threads."""

    def __init__(self, folder: Path) -> None:
        self.clock_ms = 1_000
        self.pool = SmallPool()
        self.writer = None
        self.core = NodeCore(
            node="n1",
            peers=("n1",),
            facts=NodeFacts(addresses=(("link", "127.0.0.1:1"),)),
            disk=OsDisk(folder),
            folder=".tidelog",
            options=NodeOptions(),
            rng=Random(1),
            now_ms=self.clock_ms,
            now_us=lambda: START_US,
        )

    def live(self, span_ms: int) -> None:
        end_ms = self.clock_ms + span_ms
        while self.clock_ms < end_ms:
            self.clock_ms += 10
            self.core.wake(self.clock_ms)
            while (output := self.core.poll(self.clock_ms)) is not None:
                member = output.member
                if member is not None and member.write is not None:
                    assert self.core.storage is not None
                    self.core.storage.write([member.write])
                    self.core.written(member.write.number)

    def status(self) -> dict[str, Any]:
        return node_status(self.core, now_ms=self.clock_ms)

    def now_ms(self) -> int:
        return self.clock_ms


async def test_the_status_of_a_real_core_fits_the_document_and_becomes_ready(tmp_path: Path) -> None:
    node = LonelyNode(tmp_path)
    async with serving(served(node).server) as client:
        assert (await client.ask("/status")).json["standing"] == "seeking"
        assert (await client.ask("/readyz")).status == 503
        node.live(3_000)
        status = (await client.ask("/status")).json
        assert (status["standing"], status["leader"]) == ("leader", "n1")
        assert status["channels"]["total"] == 0
        assert (await client.ask("/channels")).json == {"channels": []}
        assert [node_of(member["member"]) for member in status["members"]] == ["n1"]
        assert (await client.ask("/readyz")).status == 200
        found = await metrics_of(client)
        assert found['tidelog_raft_role{role="leader"}'] == 1
        assert found["tidelog_raft_commit_index"] == status["metadata"]["commit"] > 0


def test_the_status_of_a_real_core_says_what_its_disk_forgot(tmp_path: Path) -> None:
    node = LonelyNode(tmp_path)
    node.live(3_000)
    quiet = node.status()
    assert (quiet["metadata_doubt"], quiet["synced_loss"], quiet["disk_findings"]) == (None, None, [])
    lost = node_status(node.core, now_ms=node.clock_ms, synced_loss="wal-3 is missing")
    assert lost["synced_loss"] == "wal-3 is missing"
    assert "the disk of n1 lost what it had synced, as its last start found: wal-3 is missing" in lost["findings"][0]
    assert lost["disk_findings"] == lost["findings"]


def test_the_document_is_fresh() -> None:
    page = render_openapi_page("node")
    refresh = "python -m tidelog.cli.openapi_page node > docs/openapi/node.json"
    assert (DOCS / "node.json").read_text() == page, f"refresh it: {refresh}"
    assert re.fullmatch(r"get_\w+", json.loads(page)["paths"]["/cluster/status"]["get"]["operationId"])
    assert KEY not in page
