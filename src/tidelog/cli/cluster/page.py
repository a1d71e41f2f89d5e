"""The status of a cluster as people read it: who leads, a line for every node, and what is wrong, in words.

What only the leader knows (how far behind a member is, whose session is live) is taken from the leader's own status
where it could be asked; without it those columns hold a dash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tidelog.cli.output import print_table

_UNKNOWN: Final = "-"
_COLUMNS: Final = (
    ("node", True),
    ("state", True),
    ("part", True),
    ("incarnation", False),
    ("lag", False),
    ("session", True),
    ("heard", False),
    ("rtt", False),
    ("address", True),
    ("host", True),
)
"""Name, and whether it is text."""


def print_status(status: Mapping[str, Any]) -> None:
    """Both the answer of the node that was asked and, inside it, that of the leader."""
    best = status.get("leader_status") or status
    for line in _headline(status, best):
        print(line)
    rows = [_row(node, best) for node in best["nodes"]]
    channels = best.get("channels")  # nodes of an older version do not tell
    if channels and channels["total"]:
        print(_channels(channels))
    if rows:
        left = frozenset(name for name, is_text in _COLUMNS if is_text)
        print_table("", [name for name, _ in _COLUMNS], rows, left=left)
    for line in _troubles(status, best):
        print(line)


def _headline(status: Mapping[str, Any], best: Mapping[str, Any]) -> Iterator[str]:
    if status["cluster"] is None:
        yield f"{status['node']} belongs to no cluster yet"
        return
    metadata = best["metadata"]
    leader = _leader(status)
    led = "led by nobody that it knows of" if leader is None else f"led by {leader}"
    yield f"cluster {status['cluster']}, {led}, term {metadata['term']}, {metadata['commit']} changes committed"
    if status["node"] != leader:
        yield f"answered by {status['node']} ({status['standing']}, {status['metadata']['applied']} changes applied)"


def _channels(counts: Mapping[str, int]) -> str:
    """How the channels stand, in one line; what is in order is not told."""
    parts = [
        f"{counts[key]} {words}"
        for key, words in (
            ("leaderless", "without a leader"),
            ("below_min_isr", "refuse writes for want of replicas"),
            ("under_replicated", "under-replicated"),
            ("paused", "paused"),
        )
        if counts[key]
    ]
    return f"{_count(counts['total'], 'channel')}: {', '.join(parts) or 'all led, and in sync as many times as wanted'}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _row(node: Mapping[str, Any], best: Mapping[str, Any]) -> list[str]:
    name = node["node"]
    member = next((member for member in best["members"] if member["node"] == name), None)
    way = next(
        (link for link in best["proximity"]["links"] if (link["from"], link["to"]) == (name, best["node"])), None
    )
    lag = None if member is None else member["lag"]
    session = None if node["state"] == "expected" else node["session"]
    return [
        name,
        node["state"],
        _UNKNOWN if member is None else "leader" if member["leads"] else member["role"],
        str(node["incarnation"]),
        _UNKNOWN if lag is None else str(lag),
        _UNKNOWN if session is None else "live" if session else "lost",
        _UNKNOWN if way is None else f"{way['silence_ms'] / 1000:.1f} s ago",
        _UNKNOWN if way is None or way["rtt_us"] is None else f"{way['rtt_us'] / 1000:.2f} ms",
        node["addresses"].get("link", _UNKNOWN),
        node["host"] or _UNKNOWN,
    ]


def _leader(status: Mapping[str, Any]) -> str | None:
    """Who leads. A node that takes part knows it from the group; what it heard from others may be old."""
    if status["standing"] in ("seeking", "joining"):
        heard: str | None = status["leader"]
        return heard
    return next((str(member["node"]) for member in status["members"] if member["leads"]), None)


def _troubles(status: Mapping[str, Any], best: Mapping[str, Any]) -> Iterator[str]:
    """Everything that should not be so, worst first."""
    name = status["node"]
    if status["waiting"]:
        yield f"{name} waits: {status['waiting']}"
    if status["refusal"]:
        yield f"{name} is not let in: {status['refusal']}"
    if status["damage"]:
        yield f"{name} set its metadata aside when it started: {status['damage']}"
    if status["cluster"] is not None and _leader(status) is None:
        yield "nobody leads: an election is under way, or no majority of the voters can be reached"
    if status.get("leader_problem"):
        yield f"the leader could not be asked, so lags and sessions are not known: {status['leader_problem']}"
    transport = status.get("transport", {})  # nodes of an older version do not tell
    if transport.get("transport") == "nats" and not transport["up"]:
        yield f"{name} does not reach its NATS servers: replication goes over the links meanwhile"
    for node in best["nodes"]:
        if node["state"] == "fenced":
            yield f"{node['node']} is fenced: its session was lost, and it counts for nothing until it registers again"
        elif node["state"] == "expected":
            yield f"{node['node']} is expected and was not seen yet"
    if (best.get("channels") or {}).get("leaderless"):
        yield "channels without a leader wait for a holder of all their records: see tidelog channel list"
    if best is not status:
        yield from status.get("disk_findings", ())  # nodes of an older version do not tell
    yield from best["findings"]
    versions = sorted({node["software"] for node in best["nodes"] if node["software"]})
    if len(versions) > 1:
        parts = [f"{', '.join(_running(best, version))} {version}" for version in versions]
        yield f"the nodes run different versions: {'; '.join(parts)}"


def _running(best: Mapping[str, Any], version: str) -> list[str]:
    return [node["node"] for node in best["nodes"] if node["software"] == version]
