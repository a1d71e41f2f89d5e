"""Producers, tokens and grants in the catalog, and explanations in words."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from tests.core.catalog_kit import Cluster, registration, three
from tidelog.core.catalog import (
    SCOPES,
    AddGrant,
    AddToken,
    AdmitNode,
    Batch,
    Catalog,
    Change,
    ChannelConfig,
    CloseProducer,
    CreateChannel,
    DeleteChannel,
    FenceNode,
    FoundCluster,
    OpenProducer,
    PauseChannel,
    RemoveGrant,
    RemoveNode,
    RemoveToken,
    ResumeChannel,
    RevokeToken,
    SetReadonly,
    UpdateNode,
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
    found = cluster.catalog.token_by_digest(DIGEST, now_ms=199)
    assert found is not None
    assert found.token == "ci"
    assert cluster.catalog.token_by_digest(DIGEST, now_ms=200) is None, "expired"
    assert cluster.catalog.token_by_digest("0" * 64, now_ms=0) is None


def test_a_revoked_token_is_good_for_nothing_until_it_is_removed_and_made_anew() -> None:
    cluster = Cluster()
    cluster.take(token())
    cluster.take(RevokeToken(token="ci", at_ms=150))
    assert cluster.catalog.token_by_digest(DIGEST, now_ms=0) is None
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


# --- in words ------------------------------------------------------------------------------------------------


def test_every_acceptable_change_is_explained() -> None:
    cluster, channel_id = three()
    at = {"channel_id": channel_id, "expected_channel_epoch": 1}
    cluster.take(token())
    cluster.take(opening())
    cluster.take(AddGrant(principal="node:n1", scope="read:status", channels="*"))
    cluster.take(AdmitNode(node="n4"))
    explained: dict[str, Change] = {
        "would found cluster c105fe40": FoundCluster(cluster_id="c105fe40"),
        "would expect node 'n5'": AdmitNode(node="n5"),
        "would make node 'n4' active as incarnation 1": registration("n4", 1),
        "would change the facts about node 'n1'": UpdateNode(node="n1", expected_incarnation=1, host="h"),
        "would fence node 'n1', incarnation 1; it leads 1 channels, which then need leaders": FenceNode(
            node="n1", expected_incarnation=1
        ),
        "would remove node 'n1' by force; its 1 replicas then need other places": RemoveNode(node="n1", force=True),
        "would create channel 'b' on n1, n2, led by 'n2'": CreateChannel(
            name="b", config=ChannelConfig(), replicas=("n1", "n2"), leader="n2", at_ms=0
        ),
        "would elect 'n2', incarnation 1, leader of channel 'spray'": cluster.elect(channel_id, "n2"),
        "would leave channel 'spray' without a leader": cluster.elect(channel_id, None),
        "would take n2, n3 (lagging) out of the ISR of channel 'spray'": cluster.shrink(channel_id, "n2", "n3"),
        "would change the config and the replicas to n1, n2 of channel 'spray'": cluster.alter(
            channel_id, config=ChannelConfig(factor=2), replicas=("n1", "n2")
        ),
        "would pause channel 'spray'": PauseChannel(**at),
        "would make channel 'spray' read-only": SetReadonly(**at, readonly=True),
        "would delete channel 'spray' for good": DeleteChannel(**at, at_ms=0),
        "would raise the epoch of producer 'logger' of channel 'spray' for operator:anna": opening(),
        "would close producer 1": CloseProducer(producer_id=1, expected_epoch=1),
        "would let token 'cj' do read:data on boats/*": token(token="cj", digest="0" * 64),
        "would revoke token 'ci'": RevokeToken(token="ci", at_ms=1),
        "would forget token 'ci' and what was granted to it": RemoveToken(token="ci"),
        "would let boat:spray do write:data on spray": AddGrant(
            principal="boat:spray", scope="write:data", channels="spray"
        ),
        "would no longer let node:n1 do read:status on *": RemoveGrant(
            principal="node:n1", scope="read:status", channels="*"
        ),
        "would at once expect node 'n5'; expect node 'n6'": Batch(changes=(AdmitNode(node="n5"), AdmitNode(node="n6"))),
    }
    before = cluster.catalog.digest()
    assert {cluster.catalog.explain(change): change for change in explained.values()} == explained
    assert cluster.catalog.digest() == before, "asking changes nothing"
    cluster.take(cluster.shrink(channel_id, "n3"))
    said = cluster.catalog.explain(cluster.expand(channel_id, "n3"))
    assert said == "would count 'n3', incarnation 1, in the ISR of channel 'spray'"
    cluster.take(PauseChannel(channel_id=channel_id, expected_channel_epoch=2))
    resume = ResumeChannel(channel_id=channel_id, expected_channel_epoch=3)
    assert cluster.catalog.explain(resume) == "would resume channel 'spray' in a new leader epoch"


def test_a_refusal_is_explained_with_its_rule_and_what_to_do() -> None:
    cluster, channel_id = three()
    said = cluster.catalog.explain(replace(cluster.shrink(channel_id, "n3"), expected_channel_epoch=9))
    assert said == (
        "refused: channel 'spray' is at channel epoch 1, the change was made for 9; "
        "read the channel again and decide anew (C2)"
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
