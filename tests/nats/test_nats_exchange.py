"""One node's replication over NATS without a server: which way each message takes, and what becomes of what comes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tidelog.cluster.nats.exchange import (
    BY_LINK_MS,
    LINES_EVERY_MS,
    UNHEARD_MS,
    ByLink,
    Deliver,
    Effect,
    NatsExchange,
    Publish,
    Say,
    Subscribe,
    Unsubscribe,
)
from tidelog.codecs.nats_replication_codec import NatsSender, encode_notify, encode_request
from tidelog.codecs.nats_response_parts import encode_nack, encode_response
from tidelog.core.replication.messages import Notify, SyncError, SyncNack, SyncRequest, SyncResponse
from tidelog.units import KIB

CLUSTER = bytes(range(16))
CHANNEL = 7
REPLICATE, OFFSET = "ns.foo.0.replicate", "ns.foo.0.offset"


@dataclass
class FakeFollowing:
    is_in_contact: bool = True


@dataclass
class FakeReplica:
    channel_id: int = CHANNEL
    name: str = "foo"
    leading: object | None = None
    following: FakeFollowing | None = field(default_factory=FakeFollowing)


class Party:
    """n1's exchange, connected, and what it has done."""

    def __init__(self, *, payload_bytes_max: int = 64 * KIB) -> None:
        self.replica = FakeReplica()
        self.exchange = NatsExchange(
            node="n1", namespace="ns", cluster=lambda: self.cluster, replica=lambda _: self.replica_or_none()
        )
        self.known = True
        self.cluster = CLUSTER
        self.now_ms = 1_000
        assert self.exchange.poll() == [Subscribe("ns.notify.n1")]
        self.exchange.connected("_INBOX.a", payload_bytes_max)

    def replica_or_none(self) -> Any:
        return self.replica if self.known else None

    def send(self, peer: str, message: Any) -> Effect:
        self.exchange.poll()
        self.exchange.send(peer, message, self.now_ms)
        (effect,) = self.exchange.poll()
        return effect

    def got(self, subject: str, payload: bytes, *, reply: str = "", no_responders: bool = False) -> list[Effect]:
        self.exchange.poll()
        self.exchange.received(subject, reply, no_responders, payload, self.now_ms)
        return self.exchange.poll()

    def unheard(self, request_id: int) -> list[Effect]:
        return self.got(f"_INBOX.a.{CHANNEL}.{request_id}", b"", no_responders=True)

    def by_link(self, peer: str, message: Any) -> None:
        self.exchange.heard_by_link(peer, message, self.now_ms)


def request(request_id: int = 1, *, last_epoch: int = 3) -> SyncRequest:
    return SyncRequest(
        channel_id=CHANNEL,
        leader_epoch=4,
        request_id=request_id,
        fetch_from=10,
        last_epoch=last_epoch,
        held_end=10,
        committed_end=9,
        incarnation=2,
        channel_epoch=5,
        chunk_bytes_max=1_000,
    )


def response(data: bytes = b"", request_id: int = 1) -> SyncResponse:
    return SyncResponse(
        channel_id=CHANNEL,
        leader_epoch=4,
        request_id=request_id,
        committed_end=9,
        log_start=0,
        log_end=12,
        first_offset=10,
        data=(data,) if data else (),
    )


NOTIFY = Notify(channel_id=CHANNEL, leader_epoch=4)
NACK = SyncNack(channel_id=CHANNEL, leader_epoch=4, request_id=1, error=SyncError.NOT_LEADER)


def speaker(node: str, cluster: bytes = CLUSTER) -> NatsSender:
    return NatsSender(node=node, cluster=cluster)


def asked_of(party: Party, replica: str, reply: str = "_INBOX.b.7.1") -> list[Effect]:
    return party.got(REPLICATE, encode_request(request(), sender=speaker(replica)), reply=reply)


# --- requests ----------------------------------------------------------------------------------------------


def test_a_request_goes_to_the_subject_of_its_channel_with_an_inbox_of_its_own() -> None:
    effect = Party().send("n2", request(9))
    assert isinstance(effect, Publish)
    assert (effect.subject, effect.reply) == (REPLICATE, f"_INBOX.a.{CHANNEL}.9")


def test_the_first_request_of_an_epoch_asks_where_histories_part() -> None:
    party = Party()
    party.replica.following = FakeFollowing(is_in_contact=False)
    effect = party.send("n2", request())
    assert isinstance(effect, Publish)
    assert effect.subject == OFFSET


def test_a_replica_without_records_has_no_history_to_compare() -> None:
    party = Party()
    party.replica.following = FakeFollowing(is_in_contact=False)
    effect = party.send("n2", request(last_epoch=0))
    assert isinstance(effect, Publish)
    assert effect.subject == REPLICATE


def test_without_a_connection_everything_goes_by_link() -> None:
    party = Party()
    asked_of(party, "n2")
    party.exchange.disconnected()
    for message in (request(), response(), NACK, NOTIFY):
        assert party.send("n2", message) == ByLink("n2", message)
    assert party.exchange.fallbacks == 4


def test_a_server_that_takes_too_little_is_not_used() -> None:
    party = Party(payload_bytes_max=1_000)
    assert any(isinstance(effect, Say) and "max_payload" in effect.line for effect in party.exchange.poll())
    assert party.send("n2", request()) == ByLink("n2", request())


def test_what_the_connection_does_not_take_goes_by_link() -> None:
    party = Party()
    publish = party.send("n2", request())
    assert isinstance(publish, Publish)
    party.exchange.not_published(publish)
    assert party.exchange.poll() == [ByLink("n2", request())]
    assert (party.exchange.sent, party.exchange.fallbacks) == (0, 1)


# --- nobody listens ----------------------------------------------------------------------------------------


def test_no_responders_is_a_refusal_by_the_leader_that_was_asked_and_changes_no_log() -> None:
    party = Party()
    party.send("n2", request(3))
    (effect,) = party.unheard(3)
    assert isinstance(effect, Deliver)
    assert effect.peer == "n2"
    assert isinstance(effect.message, SyncNack)
    assert effect.message.error is SyncError.NOT_LEADER
    assert effect.message.request_id == 3


def test_no_responders_to_an_older_request_is_dropped() -> None:
    party = Party()
    party.send("n2", request(3))
    party.send("n2", request(4))
    assert party.unheard(3) == []


def test_a_leader_that_stays_unheard_is_asked_by_link_and_later_over_nats_again() -> None:
    party = Party()
    party.send("n2", request(1))
    party.unheard(1)
    party.now_ms += UNHEARD_MS
    party.send("n2", request(2))
    assert party.unheard(2) == [ByLink("n2", request(2))]
    assert party.send("n2", request(3)) == ByLink("n2", request(3))
    party.now_ms += BY_LINK_MS
    assert isinstance(party.send("n2", request(4)), Publish)


def test_a_leader_that_was_heard_meanwhile_is_not_given_up() -> None:
    party = Party()
    party.send("n2", request(1))
    party.unheard(1)
    party.got("_INBOX.a.7.1", encode_nack(NACK, sender=speaker("n2")))
    party.now_ms += UNHEARD_MS
    party.send("n2", request(2))
    (effect,) = party.unheard(2)
    assert isinstance(effect, Deliver)


# --- answers -----------------------------------------------------------------------------------------------


def test_an_answer_goes_to_the_inbox_of_the_latest_request() -> None:
    party = Party()
    asked_of(party, "n2", "_INBOX.b.7.1")
    asked_of(party, "n2", "_INBOX.c.7.2")
    effect = party.send("n2", response())
    assert isinstance(effect, Publish)
    assert effect.subject == "_INBOX.c.7.2"


def test_an_answer_goes_the_way_that_the_request_came() -> None:
    party = Party()
    asked_of(party, "n2")
    party.by_link("n2", request(2))
    assert party.send("n2", response()) == ByLink("n2", response())
    asked_of(party, "n2")
    assert isinstance(party.send("n2", response()), Publish)


def test_a_replica_that_never_asked_is_answered_by_link() -> None:
    assert Party().send("n3", NACK) == ByLink("n3", NACK)


def test_a_large_answer_comes_out_whole_or_not_at_all() -> None:
    party = Party()
    party.send("n2", request())
    parts = encode_response(response(b"x" * 9_000), sender=speaker("n2"), payload_bytes_max=4 * KIB)
    payloads = [b"".join(part) for part in parts]
    assert len(payloads) > 2
    for payload in payloads[:-1]:
        assert party.got("_INBOX.a.7.1", payload) == []
    (effect,) = party.got("_INBOX.a.7.1", payloads[-1])
    assert isinstance(effect, Deliver)
    assert isinstance(effect.message, SyncResponse)
    assert b"".join(effect.message.data) == b"x" * 9_000
    for payload in (*payloads[:1], *payloads[2:]):
        assert party.got("_INBOX.a.7.1", payload) == []


def test_an_answer_to_a_channel_that_is_not_followed_any_more_is_dropped() -> None:
    party = Party()
    party.send("n2", request())
    party.replica.following = None
    replicas: Any = [party.replica]
    party.exchange.moved(replicas)
    (payload,) = encode_response(response(b"x"), sender=speaker("n2"), payload_bytes_max=4 * KIB)
    assert party.got("_INBOX.a.7.1", b"".join(payload)) == []


def test_what_comes_to_the_inbox_of_an_old_connection_is_dropped() -> None:
    party = Party()
    party.exchange.connected("_INBOX.z", 64 * KIB)
    assert Unsubscribe("_INBOX.a.>") in party.exchange.poll()
    assert party.got("_INBOX.a.7.1", encode_nack(NACK, sender=speaker("n2"))) == []
    assert not party.exchange.bad


# --- reminders ---------------------------------------------------------------------------------------------


def test_a_reminder_that_brings_no_request_is_repeated_by_link() -> None:
    party = Party()
    asked_of(party, "n2")
    effect = party.send("n2", NOTIFY)
    assert isinstance(effect, Publish)
    assert effect.subject == "ns.notify.n2"
    assert party.send("n2", NOTIFY) == ByLink("n2", NOTIFY)
    assert isinstance(party.send("n2", NOTIFY), Publish)
    asked_of(party, "n2")
    assert isinstance(party.send("n2", NOTIFY), Publish)


def test_a_leader_that_speaks_by_link_is_asked_by_link_for_a_while() -> None:
    party = Party()
    party.send("n2", request(1))
    party.by_link("n2", NOTIFY)
    assert party.send("n2", request(2)) == ByLink("n2", request(2))
    party.by_link("n2", response(request_id=2))
    party.now_ms += BY_LINK_MS
    assert isinstance(party.send("n2", request(3)), Publish)


def test_a_leader_that_speaks_over_nats_is_asked_there_at_once() -> None:
    party = Party()
    party.send("n2", request(1))
    party.by_link("n2", NOTIFY)
    (effect,) = party.got("ns.notify.n1", encode_notify(NOTIFY, channel="foo", sender=speaker("n2")))
    assert effect == Deliver("n2", NOTIFY)
    assert isinstance(party.send("n2", request(2)), Publish)


def test_with_a_new_connection_those_who_asked_by_link_are_reminded_over_nats() -> None:
    party = Party()
    party.by_link("n2", request(2))
    assert party.send("n2", NOTIFY) == ByLink("n2", NOTIFY)
    party.exchange.connected("_INBOX.z", 64 * KIB)
    assert isinstance(party.send("n2", NOTIFY), Publish)


# --- who leads ---------------------------------------------------------------------------------------------


def test_a_leader_listens_and_nobody_else() -> None:
    party = Party()
    party.exchange.poll()
    party.replica.leading = object()
    replicas: Any = [party.replica]
    party.exchange.moved(replicas)
    party.exchange.moved(replicas)
    assert party.exchange.poll() == [Subscribe(REPLICATE), Subscribe(OFFSET)]
    party.replica.leading = None
    party.exchange.moved(replicas)
    assert party.exchange.poll() == [Unsubscribe(REPLICATE), Unsubscribe(OFFSET)]


def test_a_channel_created_anew_under_its_name_keeps_being_listened_to() -> None:
    party = Party()
    old: Any = FakeReplica(leading=object(), following=None)
    new: Any = FakeReplica(channel_id=CHANNEL + 1, leading=object(), following=None)
    party.exchange.moved([old, new])
    old.leading = None
    party.exchange.poll()
    party.exchange.moved([old])
    assert party.exchange.poll() == []


# --- what cannot be used -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "payload", "reply", "code"),
    [
        (REPLICATE, b"", "_INBOX.b.7.1", "bad_envelope"),
        (REPLICATE, b"\xb9\x0e\x43\xb4\x00\x08\x00\x02garbage", "_INBOX.b.7.1", "bad_message"),
        (REPLICATE, encode_request(request(), sender=speaker("n2", bytes(16))), "_INBOX.b.7.1", "wrong_cluster"),
        (REPLICATE, encode_request(request(), sender=speaker("n2")), "", "bad_message"),
        (REPLICATE, encode_request(request(), sender=speaker("n2")), REPLICATE, "bad_message"),
        (REPLICATE, encode_request(request(), sender=speaker("n2")), "_INBOX.>", "bad_message"),
        (REPLICATE, encode_request(request(), sender=speaker("n2")), "_INBOX..7.1", "bad_message"),
        ("ns.foo.x.replicate", encode_request(request(), sender=speaker("n2")), "_INBOX.b.7.1", "bad_subject"),
        ("_INBOX.a.7.1", b"hello", "", "bad_envelope"),
        ("ns.notify.n1", b"hello", "", "bad_envelope"),
    ],
)
def test_what_cannot_be_used_is_counted_and_said_once_a_minute(
    subject: str, payload: bytes, reply: str, code: str
) -> None:
    party = Party()
    (said,) = party.got(subject, payload, reply=reply)
    assert isinstance(said, Say)
    assert subject in said.line
    assert party.got(subject, payload, reply=reply) == []
    party.now_ms += LINES_EVERY_MS
    assert len(party.got(subject, payload, reply=reply)) == 1
    assert party.exchange.bad == {code: 3}


def test_a_node_without_a_cluster_takes_nothing_and_blames_nobody() -> None:
    party = Party()
    party.cluster = b""
    assert party.got("ns.notify.n1", encode_notify(NOTIFY, channel="foo", sender=speaker("n2"))) == []
    assert not party.exchange.bad


def test_no_responders_at_an_inbox_that_is_none_of_ours_is_counted() -> None:
    party = Party()
    party.got("_INBOX.a.x.y", b"", no_responders=True)
    assert party.exchange.bad == {"bad_subject": 1}


def test_a_channel_that_is_unknown_here_is_asked_for_by_link() -> None:
    party = Party()
    party.known = False
    assert party.send("n2", request()) == ByLink("n2", request())
