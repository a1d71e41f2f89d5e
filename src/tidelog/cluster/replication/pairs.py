"""Heartbeat intervals of pairs of nodes, from the channels that they share (R7)."""

from __future__ import annotations

from collections import Counter


class PairBeats:
    """The heartbeat intervals between one node and all others."""

    def __init__(self) -> None:
        self._shares: dict[int, tuple[tuple[str, ...], int]] = {}
        """The other replicas of each channel, and its `heartbeat_ms`."""
        self._beats: dict[str, Counter[int]] = {}

    def note(self, channel_id: int, peers: tuple[str, ...], heartbeat_ms: int) -> bool:
        """Note a channel; returns whether an interval may have changed."""
        before = self._shares.get(channel_id, ((), 0))
        after = (peers, heartbeat_ms)
        if before == after:
            return False
        for peer in before[0]:
            self._beats[peer][before[1]] -= 1
        for peer in peers:
            self._beats.setdefault(peer, Counter())[heartbeat_ms] += 1
        self._shares[channel_id] = after
        return True

    def forget(self, channel_id: int) -> bool:
        is_new = self.note(channel_id, (), 0)
        self._shares.pop(channel_id, None)
        return is_new

    def shortest_ms(self, peer: str) -> int | None:
        """The smallest `heartbeat_ms` of the channels shared with a node."""
        return min((beat for beat, count in self._beats.get(peer, Counter()).items() if count > 0), default=None)
