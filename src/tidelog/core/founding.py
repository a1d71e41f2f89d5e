"""How a node without metadata decides: found a cluster, join one, or wait.

Nothing here does I/O. The caller queries every configured peer from time to time, passes the answers in, and acts on
`decide`.

O1  A cluster is founded by the smallest of its configured nodes alone, and only when every other one has just said that
    it has no metadata either. So a node that lost its disk never founds a second cluster beside the first.
O2  A node that ever belonged to a cluster joins that one again and no other, and never founds. It also queries nodes
    that are not among its configured peers once they have sent it anything: its founder may have been configured alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

ANSWER_FRESH_MS = 3_000
"""An older answer no longer counts."""
PEERS_MAX = 64


@dataclass(frozen=True, slots=True)
class Found:
    """Start a cluster of one; the others join it."""


@dataclass(frozen=True, slots=True)
class Join:
    cluster: bytes


@dataclass(frozen=True, slots=True)
class WaitForVoters:
    """Nothing can be done yet; the reason is shown in status and log."""

    reason: str


Decision: TypeAlias = Found | Join | WaitForVoters


class Founding:
    def __init__(self, *, node: str, peers: Iterable[str], belonged_to: bytes = b"") -> None:
        self._node = node
        self.peers = sorted(set(peers) - {node})
        """The nodes to query."""
        self._belonged_to = belonged_to
        self._answers: dict[str, tuple[bytes, int]] = {}

    def heard(self, peer: str) -> None:
        """A node sent something (O2)."""
        if self._belonged_to and peer != self._node and peer not in self.peers and len(self.peers) < PEERS_MAX:
            self.peers.append(peer)

    def answered(self, peer: str, cluster: bytes, now_ms: int) -> None:
        """A peer reported its cluster; empty bytes mean that it has none."""
        if peer in self.peers:
            self._answers[peer] = (cluster, now_ms)

    def decide(self, now_ms: int) -> Decision:
        fresh = {peer: cluster for peer, (cluster, at_ms) in self._answers.items() if now_ms - at_ms <= ANSWER_FRESH_MS}
        clusters = sorted({cluster for cluster in fresh.values() if cluster})
        if self._belonged_to:
            if self._belonged_to in clusters:
                return Join(self._belonged_to)
            return WaitForVoters(
                f"this node belonged to cluster {self._belonged_to.hex()} and lost its metadata; "
                "it waits for a node of that cluster"
            )
        if len(clusters) > 1:
            names = ", ".join(f"{peer} in {cluster.hex()}" for peer, cluster in sorted(fresh.items()) if cluster)
            return WaitForVoters(
                f"the configured peers belong to different clusters ({names}); correct the list of peers"
            )
        if clusters:
            return Join(clusters[0])
        silent = [peer for peer in self.peers if peer not in fresh]
        if silent:
            return WaitForVoters(
                f"no answer from {', '.join(silent)} yet; a cluster is founded once all configured nodes are there"
            )
        if self.peers and self._node > self.peers[0]:
            return WaitForVoters(f"{self.peers[0]} founds the cluster")
        return Found()
