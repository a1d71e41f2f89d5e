"""Producers, tokens and grants in the catalog, and refusals."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from tests.core.catalog_kit import Cluster, three
from tidelog.core.catalog import (
    SCOPES,
    AddGrant,
    AddToken,
    AdmitNode,
    Catalog,
    CloseProducer,
    DeleteChannel,
    OpenProducer,
    RemoveGrant,
    RemoveToken,
    RevokeToken,
)
from tidelog.errors import (
    CatalogFull,
    InvalidChange,
    NothingToChange,
    ProducerOwned,
    StaleProducerEpoch,
    TokenExists,
    UnknownChannel,
    UnknownGrant,
    UnknownProducer,
    UnknownToken,
)
from tidelog.http import access

SECRET = "tdl_a-secret-that-must-not-be-in-the-catalog"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()


def opening(channel_id: int = 1, **fields: Any) -> OpenProducer:
    return replace(OpenProducer(channel_id=channel_id, name="logger", owner="operator:anna", at_ms=3), **fields)


def token(**fields: Any) -> AddToken:
    change = AddToken(token="ci", digest=DIGEST, scopes=("read:data",), channels=("boats/*",), at_ms=100)
    return replace(change, **fields)


# --- producers -------------------------------------------------------------------------------------------


def test_opening_a_producer_again_raises_its_epoch_and_so_fences_the_one_before() -> None:
    cluster, channel_id = three()
    assert cluster.take(opening()).touched.producers == (1,)
    cluster.take(opening())
    record = cluster.catalog.producer_named(channel_id, "logger")
    assert record is not None
    assert (record.producer_id, record.epoch, record.owner) == (1, 2, "operator:anna")
    assert cluster.catalog.producer(1) == record
    assert cluster.channel(channel_id).channel_epoch == 1, "producers are not part of the channel's epoch"


def test_an_opening_that_is_repeated_counts_once() -> None:
    cluster, _ = three()
    cluster.take(opening(expected_epoch=0))
    assert isinstance(cluster.refused(opening(expected_epoch=0)), StaleProducerEpoch)
    cluster.take(opening(expected_epoch=1))
    assert isinstance(cluster.refused(opening(expected_epoch=1)), StaleProducerEpoch)


def test_a_producers_name_belongs_to_who_opened_it_in_each_channel() -> None:
    cluster, _ = three()
    other = cluster.create("n1", name="other")
    cluster.take(opening())
    assert isinstance(cluster.refused(opening(owner="operator:bob")), ProducerOwned)
    cluster.take(opening(other, owner="operator:bob"))
    assert [record.producer_id for record in cluster.catalog.producers_of(other)] == [2]


def test_c9_a_producer_id_is_never_used_again() -> None:
    cluster, channel_id = three()
    cluster.take(opening())
    assert isinstance(cluster.refused(CloseProducer(producer_id=1, expected_epoch=2)), StaleProducerEpoch)
    cluster.take(CloseProducer(producer_id=1, expected_epoch=1))
    assert isinstance(cluster.refused(CloseProducer(producer_id=1, expected_epoch=1)), UnknownProducer)
    assert isinstance(cluster.refused(opening(expected_epoch=1)), StaleProducerEpoch)
    assert cluster.take(opening()).touched.producers == (2,)
    cluster.take(DeleteChannel(channel_id=channel_id, expected_channel_epoch=1, at_ms=0))
    assert cluster.catalog.producer(2) is None, "it went with its channel"
    assert isinstance(cluster.refused(opening()), UnknownChannel)
    again = cluster.create("n1")
    assert cluster.take(opening(again)).touched.producers == (3,)


@pytest.mark.parametrize("wrong", [{"name": ""}, {"name": "a b"}, {"owner": "anna"}, {"owner": "ghost:anna"}])
def test_a_producer_has_a_name_and_an_owner(wrong: dict[str, Any]) -> None:
    cluster, _ = three()
    assert isinstance(cluster.refused(opening(**wrong)), InvalidChange)


def test_c12_producers_are_limited_in_a_channel_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.core.catalog.access_rules.PRODUCERS_PER_CHANNEL_MAX", 1)
    monkeypatch.setattr("tidelog.core.catalog.access_rules.PRODUCERS_MAX", 2)
    cluster, _ = three()
    other, third = cluster.create("n1", name="other"), cluster.create("n1", name="third")
    cluster.take(opening())
    assert isinstance(cluster.refused(opening(name="second")), CatalogFull)
    cluster.take(opening(other))
    assert isinstance(cluster.refused(opening(third)), CatalogFull)


# --- tokens ------------------------------------------------------------------------------------------------


def test_c13_a_token_is_known_by_its_digest_and_the_secret_is_nowhere() -> None:
    cluster = Cluster()
    cluster.take(token(expires_at_ms=200))
    assert SECRET.encode() not in cluster.catalog.snapshot()
    assert isinstance(cluster.refused(token(token="other", digest=SECRET)), InvalidChange)
    found = cluster.catalog.token("ci")
    assert found is not None
    assert found.digest == DIGEST
    assert (found.is_good(199), found.is_good(200)) == (True, False), "it expires"


def test_a_revoked_token_is_good_for_nothing_until_it_is_removed_and_made_anew() -> None:
    cluster = Cluster()
    cluster.take(token())
    cluster.take(RevokeToken(token="ci", at_ms=150))
    revoked = cluster.catalog.token("ci")
    assert revoked is not None
    assert not revoked.is_good(0)
    assert isinstance(cluster.refused(RevokeToken(token="ci", at_ms=151)), NothingToChange)
    assert isinstance(cluster.refused(token()), TokenExists)
    assert isinstance(cluster.refused(token(token="other")), TokenExists), "the same secret under another name"
    assert isinstance(cluster.refused(RevokeToken(token="cj", at_ms=1)), UnknownToken)
    cluster.take(RemoveToken(token="ci"))
    assert isinstance(cluster.refused(RemoveToken(token="ci")), UnknownToken)
    cluster.take(token())


@pytest.mark.parametrize(
    "wrong",
    [
        {"token": ""},
        {"digest": "00"},
        {"digest": DIGEST.upper()},
        {"scopes": ()},
        {"scopes": ("read:everything",)},
        {"scopes": ("read:status", "read:data")},
        {"channels": ()},
        {"channels": ("a*b",)},
        {"channels": ("b", "a")},
        {"channels": tuple(f"c{number:02}" for number in range(65))},
        {"expires_at_ms": 100},
    ],
)
def test_a_token_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    error = Cluster().refused(token(**wrong))
    assert isinstance(error, InvalidChange)
    assert len(error.problems) == 1


def test_c12_tokens_and_grants_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.core.catalog.access_rules.TOKENS_MAX", 1)
    monkeypatch.setattr("tidelog.core.catalog.access_rules.GRANTS_MAX", 1)
    cluster = Cluster()
    cluster.take(token())
    assert isinstance(cluster.refused(token(token="cj", digest="0" * 64)), CatalogFull)
    cluster.take(AddGrant(principal="boat:spray", scope="write:data", channels="spray"))
    assert isinstance(
        cluster.refused(AddGrant(principal="boat:spray", scope="read:data", channels="spray")), CatalogFull
    )


def test_every_scope_of_http_but_that_of_a_boats_bus_is_a_scope_of_the_catalog() -> None:
    assert set(access.SCOPES) - {access.WRITE_BUS} <= set(SCOPES)


# --- grants ------------------------------------------------------------------------------------------------


def test_a_grant_allows_one_scope_on_the_channels_it_names() -> None:
    cluster = Cluster()
    cluster.take(AddGrant(principal="operator:anna", scope="admin:channels", channels="boats/*"))
    cluster.take(AddGrant(principal="boat:spray", scope="write:data", channels="boats/spray"))
    allows = cluster.catalog.allows
    assert allows("operator:anna", "admin:channels", "boats/spray", 0)
    assert not allows("operator:anna", "admin:channels", "harbour", 0)
    assert not allows("operator:anna", "write:data", "boats/spray", 0)
    assert allows("boat:spray", "write:data", "boats/spray", 0)
    assert not allows("boat:spray", "write:data", "boats/spray2", 0)
    assert not allows("boat:other", "write:data", "boats/spray", 0)
    assert [grant.principal for grant in cluster.catalog.grants()] == ["boat:spray", "operator:anna"]


def test_a_token_may_do_what_its_scopes_and_its_grants_say_while_it_is_good() -> None:
    cluster = Cluster()
    cluster.take(token(expires_at_ms=200))
    cluster.take(AddGrant(principal="token:ci", scope="write:data", channels="*"))
    allows = cluster.catalog.allows
    assert allows("token:ci", "read:data", "boats/spray", 199)
    assert not allows("token:ci", "read:data", "harbour", 199)
    assert allows("token:ci", "write:data", "harbour", 199)
    assert not allows("token:ci", "write:data", "harbour", 200)
    cluster.take(RevokeToken(token="ci", at_ms=150))
    assert not allows("token:ci", "write:data", "harbour", 199)


def test_what_was_granted_to_a_token_does_not_fall_to_the_next_of_its_name() -> None:
    cluster = Cluster()
    grant = AddGrant(principal="token:ci", scope="write:data", channels="*")
    assert isinstance(cluster.refused(grant), UnknownToken)
    cluster.take(token())
    cluster.take(grant)
    cluster.take(RemoveToken(token="ci"))
    assert cluster.catalog.grants() == []


def test_a_grant_is_given_once_and_taken_back_once() -> None:
    cluster = Cluster()
    given = {"principal": "node:n1", "scope": "read:status", "channels": "*"}
    cluster.take(AddGrant(**given))
    assert isinstance(cluster.refused(AddGrant(**given)), NothingToChange)
    cluster.take(RemoveGrant(**given))
    assert isinstance(cluster.refused(RemoveGrant(**given)), UnknownGrant)
    for name in given:
        assert isinstance(cluster.refused(AddGrant(**{**given, name: "?"})), InvalidChange)


# --- refusals ------------------------------------------------------------------------------------------------


def test_a_refusal_says_what_to_do_and_which_rule_it_keeps() -> None:
    cluster, channel_id = three()
    refusal = cluster.catalog.check(replace(cluster.shrink(channel_id, "n3"), expected_channel_epoch=9))
    assert str(refusal) == (
        "channel 'spray' is at channel epoch 1, the change was made for 9; read the channel again and decide anew (C2)"
    )


def test_a_refusal_can_be_raised() -> None:
    catalog = Catalog()
    applied = catalog.apply(7, RemoveToken(token="x"))
    assert applied.index == 7
    with pytest.raises(UnknownToken):
        applied.raise_refusal()
    catalog.apply(9, AdmitNode(node="n1")).raise_refusal()
    statistics = catalog.statistics()
    assert (statistics.applied_index, statistics.changes_applied, statistics.changes_refused) == (9, 1, 1)
    assert (statistics.nodes, statistics.nodes_active) == (1, 0)


def test_c1_the_index_only_rises() -> None:
    catalog = Catalog()
    catalog.advance(5)
    with pytest.raises(AssertionError, match="C1"):
        catalog.apply(5, AdmitNode(node="n1"))
