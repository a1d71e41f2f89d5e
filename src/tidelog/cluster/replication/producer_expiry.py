"""Producers that nobody uses any more: closed by the leader of their channel, which knows when they last wrote.

Nothing here does I/O. A producer costs an entry of the catalog for as long as it is open. Clients close those without a
name themselves; what a crash left behind is closed here, and under the name of the change that a client would propose,
so every node sees the same.

PX1  A producer is closed only after `producer_expiry_ms` without a block, or, where there are nearly as many as there
     may be, the one that was silent longest, after `producer_idle_min_ms`. Its last block counts as the log says it.
PX2  No clock alone closes a producer: the leader has seen it silent for `producer_idle_min_ms` of its own steady time.
     That is longer than anybody sends a block again, so no dedup state is lost that could still be asked for (F3).
PX3  At most `CLOSED_PER_LOOK` of a channel are closed at a look.
PX4  What the cluster has too many is closed by all leaders together: each takes the share of it that its channel has of
     all producers, rounded up.
"""

from __future__ import annotations

from typing import Final

from tidelog.cluster.replication.fold import ReplicaFold
from tidelog.core.catalog import Catalog, CloseProducer
from tidelog.core.catalog.records import PRODUCERS_MAX, PRODUCERS_PER_CHANNEL_MAX
from tidelog.core.replication.options import ReplicationOptions

CLOSED_PER_LOOK: Final = 64
_NEARLY_FULL: Final = 3, 4
"""Numerator and denominator: from here on room is made."""


class ProducerExpiry:
    """The expiry of producers on one node, for the channels that it leads."""

    def __init__(self, options: ReplicationOptions) -> None:
        self._options = options
        self._silent: dict[int, dict[int, tuple[int, int, int]]] = {}
        """By channel and producer: (epoch, last use, since when it was seen so). Only of those that may be closed."""

    def look(
        self, catalog: Catalog, channel_id: int, fold: ReplicaFold, *, wall_ms: int, now_ms: int
    ) -> list[CloseProducer]:
        """The producers of a channel that is led here that are closed now."""
        producers = catalog.producers_of(channel_id)
        if not producers:
            self._silent.pop(channel_id, None)
            return []
        options = self._options
        before = self._silent.get(channel_id, {})
        silent: dict[int, tuple[int, int, int]] = {}
        candidates: list[tuple[int, int, int]] = []
        for producer in producers:
            used_ms = max(producer.opened_at_ms, fold.used_ms(producer.producer_id) or 0)
            if wall_ms - used_ms < options.producer_idle_min_ms:
                continue
            seen = before.get(producer.producer_id)
            if seen is None or seen[:2] != (producer.epoch, used_ms):
                seen = (producer.epoch, used_ms, now_ms)
            silent[producer.producer_id] = seen
            if now_ms - seen[2] >= options.producer_idle_min_ms:  # PX2
                candidates.append((used_ms, producer.producer_id, producer.epoch))
        if silent:
            self._silent[channel_id] = silent
        else:
            self._silent.pop(channel_id, None)
        candidates.sort()
        evicted = max(
            _beyond(len(producers), PRODUCERS_PER_CHANNEL_MAX),
            _share(_beyond(catalog.producer_count, PRODUCERS_MAX), len(producers), catalog.producer_count),
        )
        closed = [
            CloseProducer(producer_id=producer_id, expected_epoch=epoch)
            for place, (used_ms, producer_id, epoch) in enumerate(candidates)
            if place < evicted or wall_ms - used_ms >= options.producer_expiry_ms
        ]
        return closed[:CLOSED_PER_LOOK]

    def forget(self, channel_id: int) -> None:
        """It is led elsewhere, or gone."""
        self._silent.pop(channel_id, None)


def _beyond(count: int, count_max: int) -> int:
    numerator, denominator = _NEARLY_FULL
    return max(0, count - count_max * numerator // denominator)


def _share(excess: int, own: int, total: int) -> int:
    """PX4. Leaders do not ask each other, and all see the same count."""
    return -(-excess * own // total) if excess else 0
