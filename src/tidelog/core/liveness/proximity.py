"""The proximity graph: the distances between nodes, and which nodes cannot hear which.

Every heartbeat contains how its sender hears all others; its receiver passes that in here. The metadata leader uses the
distances for placement and election (R8), every node uses cuts for status and metrics. Nothing here decides which nodes
are alive: sessions do that.

What a caller must keep: `set_nodes` with the nodes of the catalog before any report; feed the node's own report in too,
on every wake of its heartbeats; only reports of heartbeats that were accepted.

PY1  A direction counts as cut only by a fresh report of the node at its end; if that node's reports do not arrive,
     nothing is claimed about what it hears. So a cut in one direction is seen as such.
PY2  One lost heartbeat is no cut, and one that gets through does not end one: silence must reach `deaf_percent` of the
     pair's interval, and then stay within `hears_percent` for at least half an interval and two reports.
PY3  Memory is bounded by the square of the number of nodes, which is bounded by `nodes_max`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tidelog.core.liveness.config import LivenessConfig
from tidelog.core.liveness.messages import Hearing, HearingReport
from tidelog.errors import TooManyNames

_SENTENCES_MAX: Final = 64


class _Ear:
    """How one node hears another, with hysteresis that keeps the verdict from flapping (PY2)."""

    __slots__ = ("deaf", "good_since_ms", "hearing")

    def __init__(self, hearing: Hearing) -> None:
        self.hearing = hearing
        self.deaf = False
        self.good_since_ms: int | None = None

    def take(self, hearing: Hearing, now_ms: int, config: LivenessConfig) -> None:
        self.hearing = hearing
        if hearing.silence_ms * 100 >= hearing.interval_ms * config.deaf_percent:
            self.deaf = True
            self.good_since_ms = None
        elif hearing.silence_ms * 100 > hearing.interval_ms * config.hears_percent:
            self.good_since_ms = None
        elif self.good_since_ms is None:
            self.good_since_ms = now_ms
        elif now_ms - self.good_since_ms >= hearing.interval_ms // 2:
            self.deaf = False


class _Ears:
    """The last report of one node."""

    __slots__ = ("by_node", "heard_ms")

    def __init__(self) -> None:
        self.by_node: dict[str, _Ear] = {}
        self.heard_ms = 0


class ProximityGraph:
    """Built from the hearing reports that this node gets, its own included."""

    def __init__(self, *, config: LivenessConfig) -> None:
        self._config = config
        self._nodes: tuple[str, ...] = ()
        self._ears: dict[str, _Ears] = {}
        self._now_ms = 0

    def set_nodes(self, nodes: Iterable[str]) -> None:
        """Set the nodes of the catalog. Measurements of others are dropped; nothing changes on an error."""
        wanted = sorted(set(nodes))
        if len(wanted) > self._config.nodes_max:
            raise TooManyNames(names_max=self._config.nodes_max)
        self._nodes = tuple(wanted)
        self._ears = {node: ears for node, ears in self._ears.items() if node in wanted}
        for ears in self._ears.values():
            ears.by_node = {node: ear for node, ear in ears.by_node.items() if node in wanted}

    def report(self, node: str, report: HearingReport, now_ms: int) -> None:
        """How `node` hears the others. A node missing from the list is one that it no longer listens to."""
        self._fade(now_ms)
        if node not in self._nodes:
            return
        ears = self._ears.setdefault(node, _Ears())
        if not self._is_fresh(ears, now_ms):
            # Its verdicts predate its own silence; distances stay.
            for ear in ears.by_node.values():
                ear.deaf = False
                ear.good_since_ms = None
        ears.heard_ms = now_ms
        known, ears.by_node = ears.by_node, {}
        for hearing in report.hearings:
            if hearing.node in self._nodes and hearing.node != node:
                ear = known.get(hearing.node) or _Ear(hearing)
                ear.take(hearing, now_ms, self._config)
                ears.by_node[hearing.node] = ear

    # --- distances -------------------------------------------------------------------------------

    def rtt_us(self, a: str, b: str) -> int | None:
        """The round trip between two nodes: the mean of what both measured, or what one did; None if neither has."""
        measured = [hearing.rtt_us for hearing in self._both_ways(a, b) if hearing.rtt_us > 0]
        return sum(measured) // len(measured) if measured else None

    def median_rtt_us(self, candidate: str, others: Iterable[str]) -> int | None:
        """The median round trip from a candidate to the other live replicas (R8).

        A distance that was not measured counts as the longest, so that a candidate does not win by being unknown; None
        where the median falls on such a distance, or there are no other replicas.
        """
        distances = [self.rtt_us(candidate, other) for other in sorted(set(others)) if other != candidate]
        known = sorted(distance for distance in distances if distance is not None)
        lower, upper = (len(distances) - 1) // 2, len(distances) // 2
        if not distances or upper >= len(known):
            return None
        return (known[lower] + known[upper]) // 2

    # --- cuts ------------------------------------------------------------------------------------

    def cannot_hear(self, now_ms: int) -> list[tuple[str, str]]:
        """(deaf, silent): the first does not hear the second. Both directions of a pair are told apart (PY1)."""
        self._fade(now_ms)
        return [
            (node, other)
            for node, ears in sorted(self._ears.items())
            if self._is_fresh(ears, now_ms)
            for other, ear in sorted(ears.by_node.items())
            if ear.deaf
        ]

    def is_cut(self, a: str, b: str, now_ms: int) -> bool:
        """Whether one of the two is known not to hear the other (PY1)."""
        return self.is_deaf(a, b, now_ms) or self.is_deaf(b, a, now_ms)

    def is_deaf(self, node: str, other: str, now_ms: int) -> bool:
        """Whether `node` is known not to hear `other` (PY1)."""
        ears = self._ears.get(node)
        ear = None if ears is None else ears.by_node.get(other)
        return ears is not None and ear is not None and ear.deaf and self._is_fresh(ears, now_ms)

    def silence_ms(self, node: str, now_ms: int) -> int | None:
        """How old the most recent heartbeat of `node` is that any node has had, its own reports included; None if
        unknown.

        A leader that was recently heard anywhere is not deposed (R6).
        """
        own = self._ears.get(node)
        ages_ms = [] if own is None else [now_ms - own.heard_ms]
        for ears in self._ears.values():
            if (ear := ears.by_node.get(node)) is not None:
                ages_ms.append(ear.hearing.silence_ms + now_ms - ears.heard_ms)
        return max(0, min(ages_ms)) if ages_ms else None

    def unheard(self, now_ms: int) -> list[str]:
        """The nodes whose reports do not arrive here: what they hear is not known."""
        return [node for node in self._nodes if not self._is_fresh(self._ears.get(node), now_ms)]

    def partitions(self, now_ms: int) -> list[frozenset[str]]:
        """The groups that hear each other both ways, directly or through each other; the largest first.

        Two nodes count as connected unless one is known not to hear the other, so one group means no partition.
        """
        cut = {frozenset(pair) for pair in self.cannot_hear(now_ms)}
        groups: list[frozenset[str]] = []
        left = list(self._nodes)
        while left:
            group, edge = {left[0]}, [left[0]]
            while edge:
                node = edge.pop()
                reached = [other for other in left if other not in group and frozenset((node, other)) not in cut]
                group.update(reached)
                edge += reached
            groups.append(frozenset(group))
            left = [node for node in left if node not in group]
        return sorted(groups, key=lambda group: (-len(group), min(group)))

    def explain(self, now_ms: int) -> list[str]:
        """The cuts, in words for status. Empty while every node hears every other, as far as is known."""
        cuts = self.cannot_hear(now_ms)
        gone = self._heard_by_nobody(cuts, now_ms)
        sentences = [self._gone_sentence(node, cuts) for node in gone]
        for deaf, silent in cuts:
            if silent in gone or ((silent, deaf) in cuts and deaf > silent):
                continue  # listed already, or with the pair the other way round
            sentences.append(self._cut_sentence(deaf, silent, both=(silent, deaf) in cuts, now_ms=now_ms))
        if len(sentences) > _SENTENCES_MAX:
            sentences[_SENTENCES_MAX:] = [f"and {len(sentences) - _SENTENCES_MAX} more cuts"]
        groups = self.partitions(now_ms)
        if len(groups) > 1:
            parts = " | ".join(", ".join(sorted(group)) for group in groups)
            sentences.append(f"the cluster is in {len(groups)} parts: {parts}")
        return sentences

    def snapshot(self, now_ms: int) -> dict[str, Any]:
        """All of it as plain values for JSON status; lists are sorted."""
        return {
            "nodes": list(self._nodes),
            "unheard": self.unheard(now_ms),
            "links": [
                {
                    "from": other,
                    "to": node,
                    "silence_ms": ear.hearing.silence_ms,
                    "interval_ms": ear.hearing.interval_ms,
                    "rtt_us": ear.hearing.rtt_us or None,
                    "peak_bytes_per_s": ear.hearing.peak_bytes_per_s or None,
                    "cut": ear.deaf and self._is_fresh(ears, now_ms),
                    "reported_ago_ms": max(0, now_ms - ears.heard_ms),
                }
                for node, ears in sorted(self._ears.items())
                for other, ear in sorted(ears.by_node.items())
            ],
            "cannot_hear": [list(pair) for pair in self.cannot_hear(now_ms)],
            "partitions": [sorted(group) for group in self.partitions(now_ms)],
            "words": self.explain(now_ms),
        }

    # --- leaves ----------------------------------------------------------------------------------

    def _fade(self, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)
        faded_ms = self._now_ms - self._config.fade_ms
        for node in [node for node, ears in self._ears.items() if ears.heard_ms < faded_ms]:
            del self._ears[node]

    def _is_fresh(self, ears: _Ears | None, now_ms: int) -> bool:
        return ears is not None and now_ms - ears.heard_ms < self._config.report_fresh_ms

    def _ear(self, node: str, other: str) -> _Ear | None:
        ears = self._ears.get(node)
        return None if ears is None else ears.by_node.get(other)

    def _both_ways(self, a: str, b: str) -> list[Hearing]:
        return [ear.hearing for ear in (self._ear(a, b), self._ear(b, a)) if ear is not None]

    def _heard_by_nobody(self, cuts: list[tuple[str, str]], now_ms: int) -> list[str]:
        """Nodes that no other node hears, judged by the reports that arrive; a single such report would prove
        nothing."""
        fresh = [node for node in self._nodes if self._is_fresh(self._ears.get(node), now_ms)]
        gone = []
        for node in self._nodes:
            others = [other for other in fresh if other != node]
            if len(others) > 1 and all((other, node) in cuts for other in others):
                gone.append(node)
        return gone

    def _gone_sentence(self, node: str, cuts: list[tuple[str, str]]) -> str:
        silence_ms = min(self._silence_ms(deaf, silent) for deaf, silent in cuts if silent == node)
        return f"nobody has heard {node} for {_seconds(silence_ms)}: it is down or cut off"

    def _cut_sentence(self, deaf: str, silent: str, *, both: bool, now_ms: int) -> str:
        silence_ms = self._silence_ms(deaf, silent)
        if both:
            silence_ms = min(silence_ms, self._silence_ms(silent, deaf))
            return f"{deaf} and {silent} have not heard each other for {_seconds(silence_ms)}: both ways are cut"
        unheard = f"{deaf} has not heard {silent} for {_seconds(silence_ms)}"
        if not self._is_fresh(self._ears.get(silent), now_ms) or self._ear(silent, deaf) is None:
            return f"{unheard}; whether {silent} hears {deaf} is not known"
        return f"{unheard}; {silent} hears {deaf}: the way from {silent} to {deaf} is cut"

    def _silence_ms(self, node: str, other: str) -> int:
        ear = self._ear(node, other)
        return 0 if ear is None else ear.hearing.silence_ms


def _seconds(silence_ms: int) -> str:
    return f"{silence_ms / 1000:.1f} s"
