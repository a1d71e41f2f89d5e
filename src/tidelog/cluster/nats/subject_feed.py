"""Channels fed from NATS subjects, in a running node: the shell around `nats.subject_core` and the node's NATS
connection.

Every channel with a subject that this node leads has a subscription: as a member of the channel's queue group if it has
one, so that channels of one group share the messages. Messages that arrive together become one block.

What a caller must keep: `start` once the node's NATS connection is there, `close` before that is closed; everything on
the event loop.

AF1  A subscription exists while this node leads the channel and the channel takes messages, and at most a sweep longer.
     There is one for each attached channel.
AF2  Messages wait in memory within the limits of `AttachLimits`; dropped ones are counted, and logged at most every
     `COMPLAINT_MS` for each channel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tidelog.cluster.local_channels import LocalChannels, LocalReplica
from tidelog.cluster.nats.subject_core import (
    CHECKS_OFFSETS,
    AckOut,
    Attachment,
    ChannelFeed,
    FeedCounts,
    MessageArrived,
    SubjectBatch,
)
from tidelog.cluster.produce_order import ProduceOrder
from tidelog.core.client_messages import ANY_OFFSET
from tidelog.core.subjects import subject_problem
from tidelog.errors import InvalidConfig, LogError, OffsetConflict
from tidelog.units import MIB

if TYPE_CHECKING:
    from tidelog.core.catalog import ChannelRecord
    from tidelog.transports.nats.connection import NatsConnection, NatsMessage

SWEEP_MS: Final = 250
"""How often the catalog is checked for changes."""
RETRY_MS: Final = 50
"""How often a channel that takes nothing for the moment is tried again."""
COMPLAINT_MS: Final = 10_000
_SHOWN_MAX: Final = 100
_MS_PER_S: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachLimits:
    """The limits of messages that wait in memory. Per node."""

    channel_bytes_max: int = 16 * MIB
    """Messages of one channel that wait or are being written."""
    bytes_max: int = 128 * MIB
    """The same for all channels together."""

    def __post_init__(self) -> None:
        problems = [f"{one.name} must be positive" for one in fields(self) if getattr(self, one.name) <= 0]
        if problems:
            raise InvalidConfig(section="attach", problems=problems)


@dataclass(slots=True)
class _Listening:
    """A channel that is fed here."""

    feed: ChannelFeed
    record: ChannelRecord
    """Its record when this was last checked: records are never edited, only replaced."""
    number: int
    """The number of the subscription."""
    retry_ms: int | None = None
    """When to try again, while the channel takes nothing."""
    dropped: int = 0
    complained_ms: int | None = None


class SubjectFeed:
    def __init__(
        self, channels: LocalChannels, *, namespace: str, log: Callable[[str], None], limits: AttachLimits | None = None
    ) -> None:
        self._channels = channels
        self._namespace = namespace
        self._nats: NatsConnection | None = None
        self._log = log
        self._limits = limits or AttachLimits()
        self._listening: dict[int, _Listening] = {}
        self._refused: dict[int, str] = {}
        """Channels that are led here and whose subject cannot be subscribed to, with the reason."""
        self._held_bytes = 0
        self._totals = FeedCounts()
        self._acks_lost = 0
        self._swept_index = -1
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False
        self._unwatch: Callable[[], None] = lambda: None

    def start(self, nats: NatsConnection) -> None:
        """Start feeding all channels that are led here."""
        self._nats = nats
        self._is_open = True
        self._unwatch = self._channels.watch(self._moved)
        self._on_timer()

    def close(self) -> None:
        """Stop listening. Messages being written are still acknowledged while the connection lasts."""
        if not self._is_open:
            return
        self._is_open = False
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
        for channel_id in list(self._listening):
            self._leave(channel_id)

    def statistics(self) -> FeedCounts:
        """The sum over all channels since the start."""
        counts = FeedCounts()
        counts.add(self._totals)
        for listening in self._listening.values():
            counts.add(listening.feed.counts)
        return counts

    def status(self) -> dict[str, Any]:
        """For status: the subscribed subjects, the first hundred by name, with their counters."""
        shown = sorted(self._listening.values(), key=lambda one: one.feed.attachment.channel)[:_SHOWN_MAX]
        nats = self._nats
        return {
            "up": nats is not None and nats.is_up,
            "subjects": len(self._listening),
            "held_bytes": self._held_bytes,
            "acks_lost": self._acks_lost,
            **asdict(self.statistics()),
            "refused_subjects": [self._refused[one] for one in sorted(self._refused)[:_SHOWN_MAX]],
            "channels": [_shown(one.feed) for one in shown],
        }

    # --- what is listened to ------------------------------------------------------------------------------

    def _moved(self, replica: LocalReplica) -> None:
        """Called for every channel of the node whose state changed, so it must cost nothing for those that are not
        attached."""
        channel_id = replica.channel_id
        if replica.record.config.subject is not None or channel_id in self._listening or channel_id in self._refused:
            self._follow(replica)

    def _follow(self, replica: LocalReplica) -> None:
        channel_id, record = replica.channel_id, replica.record
        listening = self._listening.get(channel_id)
        is_here = replica.leads and self._channels.find_replica(channel_id) is replica
        if listening is not None and listening.record is record and is_here:
            return
        if not is_here:
            self._refused.pop(channel_id, None)
        wanted = self._wanted(record) if is_here else None
        if listening is not None and listening.feed.attachment != wanted:
            self._leave(channel_id)
        elif listening is not None:
            listening.record = record
            return
        if wanted is not None:
            self._listen(wanted, record)

    def _wanted(self, record: ChannelRecord) -> Attachment | None:
        config, channel_id = record.config, record.channel_id
        subject = config.subject
        if subject is None or record.paused or record.readonly:
            self._refused.pop(channel_id, None)
            return None
        # Only the node knows its own namespace, so the subject is checked here and not only when the channel is made.
        problem = subject_problem(subject, namespace=self._namespace)
        if problem is not None:
            words = f"{record.name}: the subject {subject!r} {problem}"
            if self._refused.get(channel_id) != words:
                self._refused[channel_id] = words
                self._log(f"attach refused channel={record.name} subject={subject!r} problem={problem!r}")
            return None
        self._refused.pop(channel_id, None)
        return Attachment(
            channel_id=channel_id,
            channel=record.name,
            subject=subject,
            queue_group=config.queue_group,
            checks_offsets=dict(config.placement_metadata).get(CHECKS_OFFSETS) == "1",
        )

    def _listen(self, attachment: Attachment, record: ChannelRecord) -> None:
        nats = self._nats
        assert nats is not None
        namespace = self._namespace
        feed = ChannelFeed(attachment, namespace=namespace, bytes_max=self._limits.channel_bytes_max)
        number = nats.subscribe(attachment.subject, partial(self._arrived, feed), queue=attachment.queue_group or "")
        self._listening[attachment.channel_id] = _Listening(feed, record, number)
        self._log(f"attach channel={attachment.channel} subject={attachment.subject} group={attachment.queue_group}")

    def _leave(self, channel_id: int) -> None:
        nats = self._nats
        assert nats is not None
        listening = self._listening.pop(channel_id)
        feed = listening.feed
        nats.unsubscribe(listening.number)
        self._held_bytes -= feed.waiting_bytes
        feed.drop_all()
        self._log(f"attach ends channel={feed.attachment.channel} subject={feed.attachment.subject}")
        self._fold(feed)

    def _fold(self, feed: ChannelFeed) -> None:
        """The counters of a feed belong to the node once the feed has ended."""
        self._totals.add(feed.counts)
        feed.counts = FeedCounts()

    # --- what comes ---------------------------------------------------------------------------------------

    def _arrived(self, feed: ChannelFeed, messages: list[NatsMessage]) -> None:
        listening = self._listening.get(feed.attachment.channel_id)
        if listening is None or listening.feed is not feed:
            return
        arrived = [MessageArrived(one.subject, one.reply, one.payload) for one in messages if not one.no_responders]
        before = feed.held_bytes
        room_bytes = self._limits.bytes_max - self._held_bytes
        acks = feed.take(arrived, now_ns=time.time_ns(), room_bytes=room_bytes)
        self._held_bytes += feed.held_bytes - before
        self._publish(acks)
        if listening.retry_ms is None:
            self._advance(listening)
        self._complain(listening)

    def _advance(self, listening: _Listening) -> None:
        """Append the waiting messages."""
        feed = listening.feed
        listening.retry_ms = None
        while (batch := feed.next_batch()) is not None:
            before = feed.held_bytes
            try:
                self._submit(feed, batch)
            except LogError as error:
                waits, acks = feed.refused(batch, error)
                self._held_bytes += feed.held_bytes - before
                self._publish(acks)
                if waits:
                    self._retry(listening)
                    return

    def _submit(self, feed: ChannelFeed, batch: SubjectBatch) -> None:
        """A message that expects an offset gets it, if no other message has that offset or a later one: the channel's
        own records (an epoch's first, cursors) do not count. The first message of an epoch begins it, so one refusal
        may follow from that."""
        channel_id, made = feed.attachment.channel_id, feed.block_of(batch)
        wanted = batch.expected_offset
        for is_last in (False, True):
            at = wanted if wanted == ANY_OFFSET else self._end_for(channel_id, wanted)
            order = ProduceOrder(partial(self._answered, feed, batch), made, batch.ack, expected_offset=at)
            try:
                self._channels.submit(channel_id, order)
                return
            except OffsetConflict:
                if is_last or self._end_for(channel_id, wanted) == at:
                    raise

    def _end_for(self, channel_id: int, wanted: int) -> int:
        replica = self._channels.find_replica(channel_id)
        if replica is None or replica.fold is None:
            return wanted
        return replica.log_end if replica.fold.data_end <= wanted <= replica.log_end else wanted

    def _answered(self, feed: ChannelFeed, batch: SubjectBatch, first_offset: int, error: LogError | None) -> None:
        before = feed.held_bytes
        acks = feed.answered(batch, first_offset, error, now_ns=time.time_ns())
        self._held_bytes += feed.held_bytes - before
        self._publish(acks)
        listening = self._listening.get(feed.attachment.channel_id)
        if listening is None or listening.feed is not feed:
            self._fold(feed)

    def _publish(self, acks: list[AckOut]) -> None:
        nats = self._nats
        assert nats is not None
        for inbox, payload in acks:
            if not nats.publish(inbox, [payload]):
                self._acks_lost += 1

    # --- time -----------------------------------------------------------------------------------------------

    def _retry(self, listening: _Listening) -> None:
        listening.retry_ms = self._channels.now_ms() + RETRY_MS
        self._arm(RETRY_MS)

    def _arm(self, delay_ms: int) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_ms / _MS_PER_S
        if self._is_open and (self._timer is None or self._timer.cancelled() or self._timer.when() > due):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(delay_ms / _MS_PER_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self._channels.now_ms()
        for listening in list(self._listening.values()):
            if listening.retry_ms is not None and now_ms >= listening.retry_ms:
                self._advance(listening)
        self._sweep()
        self._arm(SWEEP_MS)

    def _sweep(self) -> None:
        """Role changes come with `_moved`; other changes of a channel in the catalog are found here (AF1)."""
        catalog = self._channels.known_catalog
        if catalog is None or catalog.applied_index == self._swept_index:
            return
        self._swept_index = catalog.applied_index
        for replica in list(self._channels.replicas()):
            self._moved(replica)
        for channel_id in [one for one in self._listening if self._channels.find_replica(one) is None]:
            self._leave(channel_id)

    def _complain(self, listening: _Listening) -> None:
        """AF2."""
        feed, now_ms = listening.feed, self._channels.now_ms()
        dropped = feed.counts.dropped
        is_time = listening.complained_ms is None or now_ms - listening.complained_ms >= COMPLAINT_MS
        if dropped == listening.dropped or not is_time:
            return
        listening.complained_ms = now_ms
        attachment = feed.attachment
        self._log(
            f"attach drops messages channel={attachment.channel} subject={attachment.subject} "
            f"dropped={dropped - listening.dropped} waiting_bytes={feed.held_bytes} problem={feed.problem or 'slow'}"
        )
        listening.dropped = dropped


def _shown(feed: ChannelFeed) -> dict[str, Any]:
    attachment = feed.attachment
    return {
        "channel": attachment.channel,
        "subject": attachment.subject,
        "queue_group": attachment.queue_group,
        "held_bytes": feed.held_bytes,
        "problem": feed.problem,
        **asdict(feed.counts),
    }
