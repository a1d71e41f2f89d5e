"""The metrics of a node for Prometheus, and its readiness: both are read from its status.

Only `NodeView` is used, so a test needs no cluster. The metrics of replication have the names of seed 001
(`replication_text`). Pairs of nodes are labelled `from` and `to`: the direction from one to the other, as reported by
the receiving node. Indexes and terms are those of the metadata group. Counters of a link begin again with every new
connection, as those of a process do with every start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from tidelog.cluster.node.core import NodeCore
from tidelog.http.metrics import Metrics
from tidelog.transports.link.link import LinkStatistics
from tidelog.units import US_PER_S

_MS_PER_S: Final = 1_000
_ROLES: Final = ("follower", "pre-candidate", "candidate", "leader")
_STATES: Final = ("expected", "active", "fenced")
_REGISTERED: Final = ("learner", "voter", "leader")


class WriterCounts(Protocol):
    """See `tidelog.cluster.metadata.writer.WriterStatistics`."""

    writes: int
    entries: int
    snapshots: int


class Writer(Protocol):
    @property
    def statistics(self) -> WriterCounts: ...


class OneLink(Protocol):
    def statistics(self) -> LinkStatistics: ...


class MeasuredLinks(Protocol):
    def link_to(self, node: str, /) -> OneLink | None:
        """None while there is no link."""
        ...


class NodeView(Protocol):
    """The methods of a node that the HTTP server needs. Called on the event loop; nothing here blocks it."""

    def status(self) -> dict[str, Any]:
        """The result of `tidelog.cluster.status.node_status`."""
        ...

    @property
    def core(self) -> NodeCore:
        """The node whose channels are read; nothing is changed."""
        ...

    def now_ms(self) -> int:
        """The clock of the core."""
        ...

    @property
    def writer(self) -> Writer | None:
        """None before the node has metadata."""
        ...

    @property
    def pool(self) -> MeasuredLinks: ...


def readiness(status: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether the node takes part in the cluster, and why not."""
    if status["standing"] == "seeking":
        return False, status["waiting"] or "the node has no metadata yet and asks its peers"
    if status["standing"] not in _REGISTERED:
        refusal = status["refusal"]
        return False, f"the leader does not let it in: {refusal}" if refusal else "the node is not registered yet"
    if status["leader"] is None:
        return False, "no metadata leader is known: an election is under way, or no majority can be reached"
    if not status["session_valid"]:
        return False, f"the session with {status['leader']} is not valid: it was not renewed in time"
    return True, ""


def fill_node_metrics(metrics: Metrics, node: NodeView) -> None:
    status = node.status()
    _fill_node(metrics, status)
    _fill_raft(metrics, status)
    _fill_channels(metrics, status["channels"])
    _fill_groups(metrics, status.get("groups"))
    _fill_transport(metrics, status.get("transport", {}))
    _fill_attach(metrics, status.get("attach"))
    if node.writer is not None:
        _fill_writer(metrics, node.writer.statistics)
    _fill_pairs(metrics, status["proximity"])
    others = [record["node"] for record in status["nodes"] if record["node"] != status["node"]]
    _fill_links(metrics, {name: node.pool.link_to(name) for name in others})


def _fill_node(metrics: Metrics, status: Mapping[str, Any]) -> None:
    gauges = (
        ("tidelog_node_ready", "Whether the node takes part in the cluster.", readiness(status)[0]),
        ("tidelog_node_registered", "Whether the leader let the node in.", status["standing"] in _REGISTERED),
        ("tidelog_node_session_valid", "Whether its session is valid.", status["session_valid"]),
        ("tidelog_node_leader_known", "Whether a metadata leader is known.", status["leader"] is not None),
        ("tidelog_node_writable", "Whether its disk takes records.", not status.get("disk_problem")),
        ("tidelog_node_disk_in_order", "Whether its files can be kept in order.", not status.get("upkeep_problem")),
        ("tidelog_node_metadata_damaged", "Whether metadata was set aside at the start.", status["damage"] is not None),
        ("tidelog_node_metadata_doubtful", "Whether it may be an older copy.", bool(status.get("metadata_doubt"))),
        ("tidelog_node_synced_data_lost", "Whether its start missed synced data.", bool(status.get("synced_loss"))),
    )
    for name, help_text, value in gauges:
        metrics.gauge(name, help_text, int(value))
    metrics.gauge("tidelog_node_incarnation", "Rises with every registration; 0 without one.", status["incarnation"])
    states = Counter(record["state"] for record in status["nodes"])
    for state in _STATES:
        metrics.gauge("tidelog_cluster_nodes", "Nodes in the catalog.", states[state], {"state": state})


def _fill_raft(metrics: Metrics, status: Mapping[str, Any]) -> None:
    metadata = status["metadata"]
    if metadata is None:
        return
    gauges = (
        ("tidelog_raft_term", "The newest term.", "term"),
        ("tidelog_raft_commit_index", "The end of what is committed.", "commit"),
        ("tidelog_raft_applied_index", "The end of what is applied here.", "applied"),
        ("tidelog_raft_last_index", "The end of the log here.", "last_index"),
        ("tidelog_raft_snapshot_index", "What the newest snapshot covers.", "snapshot_index"),
        ("tidelog_raft_log_entries", "Entries kept behind it.", "log_entries"),
    )
    for name, help_text, key in gauges:
        metrics.gauge(name, help_text, metadata[key])
    for role in _ROLES:
        is_role = int(metadata["role"] == role)
        metrics.gauge("tidelog_raft_role", "1 for the role that the node has.", is_role, {"role": role})
    metrics.counter("tidelog_raft_elections_total", "Times that the node asked for votes.", metadata["elections"])
    members = status["members"]
    roles = Counter(member["role"] for member in members)
    for role in ("voter", "learner"):
        metrics.gauge("tidelog_raft_members", "Members of the metadata group.", roles[role], {"role": role})
    for member in members:
        if member["lag"] is not None:
            help_text = "Committed entries that a member lacks; known to the leader alone."
            metrics.gauge("tidelog_raft_member_lag_entries", help_text, member["lag"], {"node": member["node"]})


def _fill_channels(metrics: Metrics, counts: Mapping[str, int]) -> None:
    gauges = (
        ("tidelog_channels", "Channels in the catalog.", "total"),
        ("tidelog_channels_leaderless", "Channels that nobody leads.", "leaderless"),
        ("tidelog_channels_under_replicated", "Channels with fewer replicas in sync than wanted.", "under_replicated"),
        ("tidelog_channels_below_min_isr", "Channels that take no writes for that.", "below_min_isr"),
        ("tidelog_channels_paused", "Paused channels.", "paused"),
        ("tidelog_channels_here", "Channels with a replica on this node.", "here"),
        ("tidelog_channels_led", "Channels that this node leads.", "led"),
        ("tidelog_channels_advertised", "Chains that this node holds and advertises.", "advertised"),
    )
    for name, help_text, key in gauges:
        metrics.gauge(name, help_text, counts[key])


def _fill_groups(metrics: Metrics, counts: Mapping[str, int] | None) -> None:
    if counts is None:
        return
    metrics.gauge("tidelog_groups", "Consumer groups in the catalog.", counts["total"])
    metrics.gauge("tidelog_group_members", "Their members.", counts["members"])
    metrics.gauge("tidelog_groups_coordinated", "Groups that this node coordinates.", counts["coordinated"])
    help_text = "Members that this node expelled because they were not heard."
    metrics.counter("tidelog_group_members_expelled_total", help_text, counts["expelled"])


def _fill_attach(metrics: Metrics, attach: Mapping[str, Any] | None) -> None:
    """Metrics of channels fed from NATS; none on a node without NATS servers."""
    if attach is None:
        return
    metrics.gauge("tidelog_attach_up", "Whether this node reaches its NATS servers.", int(attach["up"]))
    metrics.gauge("tidelog_attach_subjects", "Subjects that channels led here are fed from.", attach["subjects"])
    metrics.gauge(
        "tidelog_attach_held_bytes", "Messages of subjects that wait or are being written.", attach["held_bytes"]
    )
    counters = (
        ("messages_in", "Messages that came on attached subjects."),
        ("plain", "Of them, without a good Liftbridge envelope."),
        ("appended", "Messages of subjects that were written."),
        ("acked", "Acks sent for them."),
        ("acks_lost", "Acks that the connection did not take."),
        ("refused", "Messages of subjects that could not be written; their publishers were told if they asked."),
        ("dropped", "Messages of subjects that did not fit, or came when leadership ended."),
    )
    for field, help_text in counters:
        metrics.counter(f"tidelog_attach_{field}_total", help_text, attach[field])


def _fill_transport(metrics: Metrics, transport: Mapping[str, Any]) -> None:
    """Metrics of replication over NATS; none on a node that uses the links alone."""
    if transport.get("transport") != "nats":
        return
    metrics.gauge("tidelog_nats_up", "Whether replication goes over NATS now.", int(transport["up"]))
    counters = (
        ("sent", "Messages of replication sent over NATS."),
        ("fallbacks", "Messages of replication that took the link instead."),
        ("unheard", "Requests that nobody listened to on the server."),
        ("parts_dropped", "Parts of answers that could not be joined."),
    )
    for field, help_text in counters:
        metrics.counter(f"tidelog_nats_{field}_total", help_text, transport[field])
    for code, count in sorted(transport["bad_messages"].items()):
        metrics.counter("tidelog_nats_bad_messages_total", "Messages dropped as unusable.", count, {"code": code})


def replication_text(node: NodeView) -> str:
    """The metrics of replication, under the names of seed 001, with present lags."""
    replicas = node.core.channels.replicas
    replicas.observe(node.now_ms())
    return replicas.metrics.snapshot().prometheus_text()


def _fill_writer(metrics: Metrics, counts: WriterCounts) -> None:
    metrics.counter("tidelog_raft_syncs_total", "Writes of the metadata log, each with one fsync.", counts.writes)
    metrics.counter("tidelog_raft_entries_written_total", "Entries in them.", counts.entries)
    metrics.counter("tidelog_raft_snapshots_total", "Snapshots written.", counts.snapshots)


def _fill_pairs(metrics: Metrics, proximity: Mapping[str, Any]) -> None:
    links: list[dict[str, Any]] = proximity["links"]
    series = (
        ("tidelog_pair_silence_seconds", "Since the one was last heard by the other.", "silence_ms", _MS_PER_S),
        ("tidelog_pair_rtt_seconds", "Round trip of heartbeats, as the other measured it.", "rtt_us", US_PER_S),
        ("tidelog_pair_peak_bytes_per_second", "The most that a transfer has shown.", "peak_bytes_per_s", 1),
    )
    for name, help_text, key, parts_per_unit in series:
        for link, labels in _labelled(links):
            if link[key] is not None:
                metrics.gauge(name, help_text, link[key] / parts_per_unit, labels)
    for link, labels in _labelled(links):
        metrics.gauge("tidelog_pair_cut", "1 while the other does not hear the one.", int(link["cut"]), labels)
    metrics.gauge("tidelog_cluster_cut_pairs", "Ways that are cut.", len(proximity["cannot_hear"]))
    metrics.gauge("tidelog_cluster_parts", "Parts the cluster is in; 1 is whole.", len(proximity["partitions"]))
    metrics.gauge("tidelog_cluster_unheard_nodes", "Nodes that this one does not hear.", len(proximity["unheard"]))


def _labelled(links: Iterable[dict[str, Any]]) -> Iterable[tuple[dict[str, Any], dict[str, str]]]:
    return [(link, {"from": link["from"], "to": link["to"]}) for link in links]


def _fill_links(metrics: Metrics, links: Mapping[str, OneLink | None]) -> None:
    for peer, link in links.items():
        metrics.gauge("tidelog_link_up", "Whether there is a link to the peer.", int(link is not None), {"peer": peer})
    found = {peer: link.statistics() for peer, link in links.items() if link is not None}
    counters = (
        ("bytes_sent", "Bytes sent on the link, TLS not counted."),
        ("bytes_received", "Bytes received on it."),
        ("messages_sent", "One-way messages sent."),
        ("messages_received", "One-way messages received."),
        ("messages_refused", "One-way messages that could not be used."),
        ("requests_sent", "Requests sent."),
        ("requests_received", "Requests received."),
    )
    for field, help_text in counters:
        for peer, statistics in found.items():
            metrics.counter(f"tidelog_link_{field}_total", help_text, getattr(statistics, field), {"peer": peer})
    for peer, statistics in found.items():
        metrics.gauge("tidelog_link_queue_bytes", "Bytes that wait to be sent.", statistics.queue_bytes, {"peer": peer})
