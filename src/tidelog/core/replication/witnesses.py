"""Replicas that reported a leader as silent: kept by the metadata leader, in memory only (R6).

A replica that has not heard its leader for three heartbeats of the channel reports that, and repeats the report while
it lasts. The leader is deposed when enough replicas report at the same time and the metadata leader has no fresh sign
of it either. One bad link between two nodes is therefore never enough, however small the ISR. (When the metadata leader
has itself lost a node, the session's end deposes its leaders without any witness.) A leader that the metadata leader
hears, but its followers do not, is of no use either: it is deposed if one of the reporting replicas is better connected
(WI6).

What a caller must keep: pass the channel as the catalog has it now; `elected` when its leader has changed; `clear` when
leadership of the metadata is lost. `is_silent` is about the leader *of this channel*: for a wedged channel on a live
node, which has stopped claiming, it is True (R7).

WI1  Only members of the ISR count, other than the leader, for the present leader in its present epoch, as the catalog
     has both when the count is taken; and only reports of replicas that knew the channel's present epoch when they sent
     them.
WI2  A report counts for `leader_timeout_ms`, or for two heartbeats of its channel if they take longer, then it is
     forgotten: it is repeated once in each heartbeat, and those of several witnesses must meet.
WI3  More than half of the ISR without the leader must have reported; with two in sync that is the other one, with one
     in sync no report can depose the leader.
WI4  Witnesses alone never depose a leader of which there is a fresh sign at the metadata leader.
WI5  Memory is bounded: at most `channels_max` channels, of each at most its ISR. The one that was reported longest ago
     makes room; its witnesses will report again.
WI6  A leader that is cut off is deposed all the same: more than half of the other replicas (ISR and eligible) report
     it, or are known not to be heard by it (a link that fails in one direction: they hear it, and it gets none of their
     requests), and one of them is in contact with at least `min_isr` of them, itself included, and with more than the
     leader is. So a leader is never deposed for one that is no better connected, and leadership does not oscillate
     while the network stays the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.core.catalog.records import CHANNELS_MAX, ChannelRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessStatistics:
    """Counted since this object was made, except `channels`."""

    channels: int
    """Channels with a report that is remembered."""
    reports_counted: int
    reports_ignored: int
    """Reports of unknown nodes, or about a leader or an epoch that is over."""
    channels_dropped: int
    """Reports dropped to make room (WI5)."""


class _Reports:
    """The reports about one channel's leader in one epoch."""

    __slots__ = ("at_ms", "leader", "leader_epoch", "window_ms")

    def __init__(self, leader: str, leader_epoch: int) -> None:
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.at_ms: dict[str, int] = {}
        """By witness: when its last report came."""
        self.window_ms = 0
        """How long each counts."""


class Witnesses:
    """All reports that this metadata leader has had lately."""

    def __init__(self, *, leader_timeout_ms: int, channels_max: int = CHANNELS_MAX) -> None:
        assert leader_timeout_ms > 0
        assert channels_max > 0
        self._timeout_ms = leader_timeout_ms
        self._channels_max = channels_max
        self._reports: dict[int, _Reports] = {}
        """By channel id; the one that was reported longest ago comes first."""
        self._counted = 0
        self._ignored = 0
        self._dropped = 0

    def report(
        self,
        channel: ChannelRecord,
        *,
        witness: str,
        leader: str,
        leader_epoch: int,
        channel_epoch: int,
        now_ms: int,
    ) -> bool:
        """`witness` has not heard `leader`, which it believes to lead in this epoch. Returns whether the report counts
        (WI1)."""
        present = channel.leader == leader and channel.leader_epoch == leader_epoch
        present = present and channel.channel_epoch == channel_epoch
        if not present or witness == leader or not _is_holder(channel, witness):
            self._ignored += 1
            return False
        self._forget_old(now_ms)
        held = self._reports.pop(channel.channel_id, None)
        if held is None or (held.leader, held.leader_epoch) != (leader, leader_epoch):
            held = _Reports(leader, leader_epoch)
        if len(self._reports) >= self._channels_max:
            del self._reports[next(iter(self._reports))]
            self._dropped += 1
        self._reports[channel.channel_id] = held
        for other in [node for node in held.at_ms if not _is_holder(channel, node)]:
            del held.at_ms[other]
        held.at_ms[witness] = now_ms
        held.window_ms = self._window_ms(channel)
        self._counted += 1
        return True

    def witnesses(self, channel: ChannelRecord, now_ms: int) -> tuple[str, ...]:
        """The witnesses whose reports count now, by name (WI1, WI2)."""
        return tuple(node for node in self._reporting(channel, now_ms) if channel.member(node) is not None)

    def _reporting(self, channel: ChannelRecord, now_ms: int) -> tuple[str, ...]:
        """Replicas in the ISR or eligible whose reports count now, by name."""
        held = self._reports.get(channel.channel_id)
        if held is None or (held.leader, held.leader_epoch) != (channel.leader, channel.leader_epoch):
            return ()
        window_ms = self._window_ms(channel)
        return tuple(
            sorted(
                node for node, at_ms in held.at_ms.items() if now_ms - at_ms < window_ms and _is_holder(channel, node)
            )
        )

    def _window_ms(self, channel: ChannelRecord) -> int:
        return max(self._timeout_ms, 2 * channel.config.heartbeat_ms)

    def deposes(self, channel: ChannelRecord, *, is_silent: Callable[[str], bool], now_ms: int) -> bool:
        """Whether the channel's leader is to be replaced now (WI3, WI4)."""
        if channel.leader is None:
            return False
        count = len(self.witnesses(channel, now_ms))
        return count >= needed(channel) and is_silent(channel.leader)

    def is_cut_off(
        self,
        channel: ChannelRecord,
        *,
        hears: Callable[[str, str], bool],
        is_deaf: Callable[[str, str], bool],
        now_ms: int,
    ) -> bool:
        """Whether the channel's leader, though it is alive, is to be replaced by a replica that reaches more (WI6).

        `hears(one, other)` is False where the two are known not to hear each other, one way or both, or one is gone;
        `is_deaf(one, other)` is True where the first is known not to hear the second.
        """
        leader = channel.leader
        if leader is None:
            return False
        others = [member.node for member in (*channel.isr, *channel.eligible) if member.node != leader]
        reporting = set(self._reporting(channel, now_ms)) | {node for node in others if is_deaf(leader, node)}
        if 2 * len(reporting) <= len(others):
            return False
        reached = 1 + sum(hears(leader, node) for node in others if node not in reporting)
        best = max(1 + sum(hears(node, other) for other in others if other != node) for node in reporting)
        return best >= channel.config.effective_min_isr and best > reached

    def elected(self, channel_id: int) -> None:
        """The channel has a new leader, or is gone: reports about the old one are dropped."""
        self._reports.pop(channel_id, None)

    def clear(self) -> None:
        """This node no longer leads the metadata. The next metadata leader gets reports of its own."""
        self._reports.clear()

    def wake(self, now_ms: int) -> None:
        """Drop reports that are too old to count (WI2). Optional: old reports do not count either way."""
        self._forget_old(now_ms)

    def statistics(self) -> WitnessStatistics:
        return WitnessStatistics(
            channels=len(self._reports),
            reports_counted=self._counted,
            reports_ignored=self._ignored,
            channels_dropped=self._dropped,
        )

    def _forget_old(self, now_ms: int) -> None:
        while self._reports:
            channel_id, oldest = next(iter(self._reports.items()))
            if now_ms - max(oldest.at_ms.values()) < oldest.window_ms:
                return
            del self._reports[channel_id]


def _is_holder(channel: ChannelRecord, node: str) -> bool:
    return channel.member(node) is not None or channel.eligible_member(node) is not None


def needed(channel: ChannelRecord) -> int:
    """How many witnesses are enough: a majority of the ISR without the leader, and at least one (WI3)."""
    others = len(channel.isr) - (channel.leader is not None and channel.member(channel.leader) is not None)
    return others // 2 + 1
