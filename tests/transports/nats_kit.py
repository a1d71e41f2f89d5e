"""The replica kit with a NATS server between the nodes: every message that rides on NATS goes through its bytes.

Requests go to every subscriber of the channel's subject, not only to the intended one; answers go in parts to the
inbox of the request, and parts can be lost; where nobody listens the server says so.
"""

from __future__ import annotations

import random
from typing import Any

from tests.replication.replica_kit import Kit
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
    parse_partition_subject,
    parse_reply_subject,
    partition_subject,
    reply_subject,
)
from tidelog.core.replication.messages import Notify, ReplicationMessage, SyncNack, SyncRequest, SyncResponse
from tidelog.units import MIB

NAMESPACE = "ns"
CLUSTER = bytes(16)


class NatsKit(Kit):
    def __init__(self, *names: str, part_loss: float = 0.0, **settings: Any) -> None:
        self.rng = random.Random(settings.get("seed", 1))
        self.part_loss = part_loss
        self.joiners = {name: ResponseJoiner(bytes_max=8 * MIB) for name in names}
        self.inboxes: dict[tuple[str, str, int], str] = {}
        """(leader, replica, channel): where the answers to its latest request go."""
        self.published: list[tuple[str, bytes]] = []
        """All that a subscriber on the server sees: (subject, payload)."""
        self.unheard = 0
        super().__init__(*names, **settings)

    def _deliver(self, target: str, sender: str, message: ReplicationMessage) -> None:
        match message:
            case SyncRequest():
                self._ask(target, sender, message)
            case SyncResponse() | SyncNack():
                self._answer(target, sender, message)
            case Notify():
                channel = self.record(message.channel_id).name
                payload = encode_notify(message, channel=channel, sender=speaker(sender))
                self.published.append((f"{NAMESPACE}.notify.{target}", payload))
                received = decode_notify(payload, cluster=CLUSTER)
                assert received.channel == channel
                super()._deliver(target, received.leader, received.notify)
            case _:
                super()._deliver(target, sender, message)

    def _ask(self, target: str, sender: str, request: SyncRequest) -> None:
        node = self.nodes[sender]
        if not node.alive:
            return
        following = node.replica(request.channel_id).following
        verb, encode = Verb.REPLICATE, encode_request
        if request.last_epoch and following is not None and not following.is_in_contact:
            verb, encode = Verb.OFFSET, encode_offset_request
        channel = self.record(request.channel_id).name
        subject = partition_subject(NAMESPACE, channel, verb)
        payload = encode(request, sender=speaker(sender))
        self.published.append((subject, payload))
        inbox = reply_subject(f"_INBOX.{sender}", channel_id=request.channel_id, request_id=request.request_id)
        heard = False
        for name in self._listeners(parse_partition_subject(NAMESPACE, subject).channel):
            if name != sender:
                heard = True
                received = decode_request(payload, cluster=CLUSTER)
                self.inboxes[name, received.replica, request.channel_id] = inbox
                super()._deliver(name, received.replica, received.request)
        if not heard:
            self.unheard += 1
            channel_id, request_id = parse_reply_subject(f"_INBOX.{sender}", inbox)
            super()._deliver(sender, target, nobody_listens(channel_id=channel_id, request_id=request_id))

    def _listeners(self, channel: str) -> list[str]:
        return [
            node.name
            for node in self.nodes.values()
            if node.alive
            for replica in node.core.replicas()
            if replica.name == channel and replica.leading is not None
        ]

    def _answer(self, target: str, sender: str, answer: SyncResponse | SyncNack) -> None:
        inbox = self.inboxes.get((sender, target, answer.channel_id))
        if inbox is None:
            return  # nobody asked
        for payload in payloads_of(answer, sender):
            assert len(payload) <= PAYLOAD_BYTES_MIN
            self.published.append((inbox, payload))
            if self.rng.random() < self.part_loss:
                continue
            received = decode_answer(payload, cluster=CLUSTER)
            if isinstance(received, ReceivedRefusal):
                super()._deliver(target, received.leader, received.nack)
                continue
            whole = self.joiners[target].take(received)
            if whole is not None:
                super()._deliver(target, received.leader, whole)


def payloads_of(answer: SyncResponse | SyncNack, sender: str) -> list[bytes]:
    if isinstance(answer, SyncNack):
        return [encode_nack(answer, sender=speaker(sender))]
    encoded = encode_response(answer, sender=speaker(sender), payload_bytes_max=PAYLOAD_BYTES_MIN)
    return [b"".join(buffers) for buffers in encoded]


def speaker(node: str) -> NatsSender:
    return NatsSender(node=node, cluster=CLUSTER)
