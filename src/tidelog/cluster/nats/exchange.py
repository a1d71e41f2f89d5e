"""One node's replication over NATS, without I/O: subjects, received messages, and which messages use the link instead.

Messages go in through `send` and `received`, effects come out of `poll`, to be carried out in order. Whether a message
goes over NATS or the link is decided for each one; both ends accept both transports at any time:

- a request goes over NATS; its answers use the same transport, so a replica that cannot be reached over NATS asks by
  link and is answered there;
- where no leader listens, the follower asks again as if refused (NR3), and if that lasts asks by link: a leader that
  lost the server, or never used it, still leads;
- a leader that uses the link to a replica that asked over NATS was not heard there, or does not hear: the next requests
  of that channel go by link for a moment. Every second reminder without a following request goes by link for that.

Why two transports are safe. The replicas never rely on order, nor on anything arriving once: a request counts if it is
newer than the last (request id, incarnation), a refusal if it is of the latest request, data if they begin where the
log ends, and all of it only in its leader epoch (MS1, FW1, FW2). So a message that comes twice, late, or overtaken by
one on the other transport is dropped like any stale one, and a lost one is requested again.

What a caller must keep: carry effects out in order; report a `Publish` that was not taken to `not_published`; after
`connected` and `disconnected` let every follower ask again (`replication_transport.ask_again`), since messages in
flight, and requests that stood at a leader with the inbox of the last connection, are gone.

NE1  No received message raises: an unusable one is counted by its code, logged once a minute, and dropped.
NE2  "No responders" becomes NOT_LEADER of the leader that was asked, or the same request by link. It changes no log.
NE3  An answer goes to the inbox of the replica's latest request, never to an older one.
NE4  Memory is bounded: a request per channel of this node, an inbox for each of `REPLIES_MAX` replicas at most, and
     unfinished answers of `JOINING_BYTES_MAX`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.codecs.nats_replication_codec import (
    NatsSender,
    ReceivedRefusal,
    decode_notify,
    decode_request,
    encode_notify,
    encode_offset_request,
    encode_request,
    nobody_listens,
)
from tidelog.codecs.nats_response_parts import (
    PAYLOAD_BYTES_MIN,
    ResponseJoiner,
    decode_answer,
    encode_nack,
    encode_response,
)
from tidelog.codecs.nats_subjects import (
    Verb,
    notify_subject,
    parse_partition_subject,
    parse_reply_subject,
    partition_subject,
    reply_subject,
)
from tidelog.core.replication.messages import Buffer, Notify, SyncNack, SyncRequest, SyncResponse
from tidelog.errors import BadEnvelope, BadMessage, BadSubject, LogError, WrongCluster
from tidelog.units import MIB

if TYPE_CHECKING:
    from tidelog.cluster.replication.replica import ChannelReplica

NatsMessageKind: TypeAlias = SyncRequest | SyncResponse | SyncNack | Notify
"""What travels over NATS (`NATS_MESSAGES`)."""

BY_LINK_MS: Final = 1_000
"""How long requests of a channel go by link after its leader was not reached over NATS; then NATS is tried again."""
UNHEARD_MS: Final = 150
"""A leader that is not heard for this long over NATS is asked by link. A new leader has subscribed by then."""
REPLIES_MAX: Final = 131_072
JOINING_BYTES_MAX: Final = 64 * MIB
LINES_EVERY_MS: Final = 60_000
_INBOXES: Final = "_INBOX."
_REPLY: Final = re.compile(r"_INBOX\.[A-Za-z0-9]{1,64}\.[0-9]{1,19}\.[0-9]{1,19}")
"""What is published to must be a subject, or the server would end the connection."""
_BY_LINK: Final = ""
"""Instead of an inbox: the latest request came by link."""


@dataclass(frozen=True, slots=True)
class Subscribe:
    subject: str


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    subject: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish these payloads, in order, all or none; if they are not taken, call `not_published`."""

    subject: str
    payloads: Sequence[Sequence[Buffer]]
    reply: str
    peer: str
    message: NatsMessageKind


@dataclass(frozen=True, slots=True)
class Deliver:
    """A message of a peer, for the core."""

    peer: str
    message: NatsMessageKind


@dataclass(frozen=True, slots=True)
class ByLink:
    """A message to a peer, over the link."""

    peer: str
    message: NatsMessageKind


@dataclass(frozen=True, slots=True)
class Say:
    line: str


Effect: TypeAlias = Subscribe | Unsubscribe | Publish | Deliver | ByLink | Say


@dataclass(slots=True)
class _Ask:
    """The latest request of a channel that is followed here."""

    leader: str
    request: SyncRequest
    over_nats: bool = False
    by_link_until_ms: int = 0
    unheard_since_ms: int | None = None


class NatsExchange:
    def __init__(
        self,
        *,
        node: str,
        namespace: str,
        cluster: Callable[[], bytes],
        replica: Callable[[int], ChannelReplica | None],
    ) -> None:
        """`cluster` and `replica` query the node's core: which cluster it is in, and its replica of a channel."""
        self._node = node
        self._namespace = namespace
        self._cluster = cluster
        self._replica = replica
        self._sender: NatsSender | None = None
        self._notify_subject = notify_subject(namespace, node)
        self.inbox = ""
        """The inbox of the present connection; empty for none."""
        self._payload_bytes_max = 0
        self._led: dict[str, int] = {}
        """Channels that are led here, by name: their subjects are subscribed to."""
        self._asks: dict[int, _Ask] = {}
        self._replies: dict[tuple[int, str], str] = {}
        """(channel, replica): the inbox of its latest request, or `_BY_LINK`."""
        self._reminded: dict[int, set[str]] = {}
        """By channel that is led here: replicas that were reminded over NATS, and have not asked since."""
        self._joiner = ResponseJoiner(bytes_max=JOINING_BYTES_MAX)
        self._said_ms: dict[str, int] = {}
        self._effects: list[Effect] = [Subscribe(self._notify_subject)]
        self.sent = self.fallbacks = self.unheard = 0
        """Messages over NATS; by link instead; requests without a listener."""
        self.bad: Counter[str] = Counter()
        """Messages that could not be used, by the code of what is wrong."""

    @property
    def is_up(self) -> bool:
        return bool(self.inbox)

    @property
    def parts_dropped(self) -> int:
        return self._joiner.parts_dropped

    def poll(self) -> list[Effect]:
        """The effects to carry out, in order."""
        effects, self._effects = self._effects, []
        return effects

    # --- the connection ------------------------------------------------------------------------------------

    def connected(self, inbox: str, payload_bytes_max: int) -> None:
        """The server is reached. `inbox` belongs to this connection and was never used before."""
        self.disconnected()
        if payload_bytes_max < PAYLOAD_BYTES_MIN:
            self._effects.append(
                Say(
                    f"nats server takes too little payload_bytes={payload_bytes_max} needed={PAYLOAD_BYTES_MIN}: "
                    "replication stays on the link; raise max_payload"
                )
            )
            return
        self.inbox, self._payload_bytes_max = inbox, payload_bytes_max
        # Replicas that asked by link while there was no other transport are reminded over NATS, and may ask there
        # again.
        self._replies = {key: way for key, way in self._replies.items() if way != _BY_LINK}
        self._effects.append(Subscribe(f"{inbox}.>"))

    def disconnected(self) -> None:
        """From now on everything goes by link."""
        if self.inbox:
            self._effects.append(Unsubscribe(f"{self.inbox}.>"))
            self.inbox = ""
        self._reminded.clear()
        for channel_id, ask in self._asks.items():
            ask.by_link_until_ms, ask.unheard_since_ms = 0, None
            self._joiner.forget(channel_id)

    # --- who leads what --------------------------------------------------------------------------------------

    def moved(self, replicas: Iterable[ChannelReplica]) -> None:
        """Replicas that may have changed their role: a leader listens on the subjects of its channel, nobody else."""
        for replica in replicas:
            channel_id, name = replica.channel_id, replica.name
            if replica.leading is not None:
                if name not in self._led:
                    self._effects += [Subscribe(subject) for subject in _subjects(self._namespace, name)]
                self._led[name] = channel_id
            elif self._led.get(name) == channel_id:
                del self._led[name]
                self._effects += [Unsubscribe(subject) for subject in _subjects(self._namespace, name)]
            if replica.leading is None:
                self._reminded.pop(channel_id, None)
            if replica.following is None and self._asks.pop(channel_id, None) is not None:
                self._joiner.forget(channel_id)

    # --- sending ---------------------------------------------------------------------------------------------

    def send(self, peer: str, message: NatsMessageKind, now_ms: int) -> None:
        """A message to a peer, over NATS if it can be reached there."""
        publish: Publish | None
        match message:
            case SyncRequest():
                publish = self._request(peer, message, now_ms)
            case SyncResponse() | SyncNack():
                publish = self._answer(peer, message)
            case Notify():
                publish = self._reminder(peer, message)
        if publish is None:
            self._by_link(peer, message)
            return
        self.sent += 1
        self._effects.append(publish)

    def not_published(self, publish: Publish) -> None:
        """The connection did not take it: it is gone, or too much waits to be sent."""
        ask = self._asks.get(publish.message.channel_id)
        if ask is not None and ask.request is publish.message:
            ask.over_nats = False
        self.sent -= 1
        self._by_link(publish.peer, publish.message)

    def _by_link(self, peer: str, message: NatsMessageKind) -> None:
        self.fallbacks += 1
        self._effects.append(ByLink(peer, message))

    def _request(self, peer: str, request: SyncRequest, now_ms: int) -> Publish | None:
        channel_id, replica = request.channel_id, self._replica(request.channel_id)
        if replica is None:
            return None
        ask = self._asks.get(channel_id)
        if ask is None or ask.leader != peer or ask.request.leader_epoch != request.leader_epoch:
            ask = self._asks[channel_id] = _Ask(peer, request)
        ask.request = request
        ask.over_nats = self.is_up and now_ms >= ask.by_link_until_ms
        if not ask.over_nats:
            return None
        following, sender = replica.following, self._speaker()
        subject, offset_subject = _subjects(self._namespace, replica.name)
        if request.last_epoch and following is not None and not following.is_in_contact:
            subject, payload = offset_subject, encode_offset_request(request, sender=sender)
        else:
            payload = encode_request(request, sender=sender)
        reply = reply_subject(self.inbox, channel_id=channel_id, request_id=request.request_id)
        return Publish(subject, ((payload,),), reply, peer, request)

    def _answer(self, peer: str, answer: SyncResponse | SyncNack) -> Publish | None:
        inbox = self._replies.get((answer.channel_id, peer), _BY_LINK)
        if inbox == _BY_LINK or not self.is_up:
            return None
        sender = self._speaker()
        payloads: Sequence[Sequence[Buffer]]
        if isinstance(answer, SyncNack):
            payloads = ((encode_nack(answer, sender=sender),),)
        else:
            payloads = encode_response(answer, sender=sender, payload_bytes_max=self._payload_bytes_max)
        return Publish(inbox, payloads, "", peer, answer)

    def _reminder(self, peer: str, notify: Notify) -> Publish | None:
        channel_id, replica = notify.channel_id, self._replica(notify.channel_id)
        if replica is None or not self.is_up or self._replies.get((channel_id, peer)) == _BY_LINK:
            return None
        reminded = self._reminded.setdefault(channel_id, set())
        if peer in reminded:
            reminded.discard(peer)
            return None  # it was reminded over NATS and did not ask: the other way
        reminded.add(peer)
        payload = encode_notify(notify, channel=replica.name, sender=self._speaker())
        return Publish(notify_subject(self._namespace, peer), ((payload,),), "", peer, notify)

    def _speaker(self) -> NatsSender:
        cluster = self._cluster()
        if self._sender is None or self._sender.cluster != cluster:
            self._sender = NatsSender(node=self._node, cluster=cluster)
        return self._sender

    # --- receiving -------------------------------------------------------------------------------------------

    def received(self, subject: str, reply: str, no_responders: bool, payload: Buffer, now_ms: int) -> None:
        """A message from the server (NE1)."""
        if not self._cluster():
            return  # a node that belongs to no cluster yet has no replicas: the sender will repeat the message
        try:
            if subject.startswith(_INBOXES):
                self._came_to_inbox(subject, no_responders, payload, now_ms)
            elif subject == self._notify_subject:
                reminder = decode_notify(payload, cluster=self._cluster())
                self._heard(reminder.notify.channel_id, reminder.leader)
                self._effects.append(Deliver(reminder.leader, reminder.notify))
            else:
                self._came_to_leader(subject, reply, payload)
        except (BadMessage, BadEnvelope, BadSubject, WrongCluster) as error:
            self._refuse(subject, error, now_ms)

    def _came_to_leader(self, subject: str, reply: str, payload: Buffer) -> None:
        parse_partition_subject(self._namespace, subject)
        received = decode_request(payload, cluster=self._cluster())
        if _REPLY.fullmatch(reply) is None:
            raise BadMessage(problem="a replication request names no inbox of a node for its answer")
        self._note_way(received.request.channel_id, received.replica, reply)
        self._effects.append(Deliver(received.replica, received.request))

    def _came_to_inbox(self, subject: str, no_responders: bool, payload: Buffer, now_ms: int) -> None:
        if not self.inbox or not subject.startswith(f"{self.inbox}."):
            return  # of the last connection
        if no_responders:
            self._nobody_heard(subject, now_ms)
            return
        received = decode_answer(payload, cluster=self._cluster())
        if isinstance(received, ReceivedRefusal):
            self._heard(received.nack.channel_id, received.leader)
            self._effects.append(Deliver(received.leader, received.nack))
            return
        if received.response.channel_id not in self._asks:
            return  # nothing is followed here any more, so parts being joined would never be dropped
        self._heard(received.response.channel_id, received.leader)
        whole = self._joiner.take(received)
        if whole is not None:
            self._effects.append(Deliver(received.leader, whole))

    def _nobody_heard(self, subject: str, now_ms: int) -> None:
        """NE2."""
        channel_id, request_id = parse_reply_subject(self.inbox, subject)
        ask = self._asks.get(channel_id)
        if ask is None or not ask.over_nats or ask.request.request_id != request_id:
            return  # it has asked again since
        self.unheard += 1
        if ask.unheard_since_ms is None:
            ask.unheard_since_ms = now_ms
        if now_ms - ask.unheard_since_ms < UNHEARD_MS:
            self._effects.append(Deliver(ask.leader, nobody_listens(channel_id=channel_id, request_id=request_id)))
            return
        ask.by_link_until_ms, ask.over_nats = now_ms + BY_LINK_MS, False
        self._by_link(ask.leader, ask.request)

    def _heard(self, channel_id: int, leader: str) -> None:
        """A leader used NATS, so it can be asked there."""
        ask = self._asks.get(channel_id)
        if ask is not None and ask.leader == leader:
            ask.by_link_until_ms, ask.unheard_since_ms = 0, None

    def heard_by_link(self, peer: str, message: NatsMessageKind, now_ms: int) -> None:
        """A peer used the link; the core gets the message from there."""
        if isinstance(message, SyncRequest):
            self._note_way(message.channel_id, peer, _BY_LINK)
            return
        ask = self._asks.get(message.channel_id)
        if ask is not None and ask.leader == peer and ask.over_nats:
            ask.by_link_until_ms = now_ms + BY_LINK_MS

    def _note_way(self, channel_id: int, replica: str, inbox: str) -> None:
        """Where the answers to a replica's latest request go (NE3, NE4)."""
        key = channel_id, replica
        if channel_id in self._reminded:
            self._reminded[channel_id].discard(replica)
        if key not in self._replies and len(self._replies) >= REPLIES_MAX:
            del self._replies[next(iter(self._replies))]  # if it still asks, it is answered by link
        self._replies[key] = inbox

    def _refuse(self, subject: str, error: LogError, now_ms: int) -> None:
        self.bad[error.code] += 1
        said_ms = self._said_ms.get(error.code)
        if said_ms is None or now_ms - said_ms >= LINES_EVERY_MS:
            self._said_ms[error.code] = now_ms
            count = self.bad[error.code]
            self._effects.append(Say(f"nats message refused subject={subject!r} count={count} reason={str(error)!r}"))


@lru_cache(maxsize=4_096)
def _subjects(namespace: str, channel: str) -> tuple[str, str]:
    """The subjects on which its leader listens: for requests, and for the first of an epoch."""
    return (
        partition_subject(namespace, channel, Verb.REPLICATE),
        partition_subject(namespace, channel, Verb.OFFSET),
    )
