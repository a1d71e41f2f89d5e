"""Changes of producers, tokens and grants.

Every function takes the state and one change, writes the outcome, and raises a typed error to refuse it.
"""

from __future__ import annotations

from dataclasses import replace

from tidelog.core.catalog.changes import (
    AddGrant,
    AddToken,
    CloseProducer,
    OpenProducer,
    RemoveGrant,
    RemoveToken,
    RevokeToken,
)
from tidelog.core.catalog.records import (
    CHANNEL_PATTERN,
    DIGEST,
    GRANTS_MAX,
    PATTERNS_MAX,
    PRINCIPAL,
    PRODUCERS_MAX,
    PRODUCERS_PER_CHANNEL_MAX,
    SCOPES,
    SIMPLE_NAME,
    TOKENS_MAX,
    GrantRecord,
    ProducerRecord,
    TokenRecord,
)
from tidelog.core.catalog.state import State
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

# --- producers -------------------------------------------------------------------------------------


def open_producer(state: State, change: OpenProducer, index: int) -> None:
    problems = []
    if not SIMPLE_NAME.fullmatch(change.name):
        problems.append(f"{change.name!a} is not a producer's name")
    if not PRINCIPAL.fullmatch(change.owner):
        problems.append(f"{change.owner!a} is not a principal; write it like operator:anna")
    if problems:
        raise InvalidChange(kind="open_producer", problems=problems)
    if change.channel_id not in state.channels:
        raise UnknownChannel(channel=f"id {change.channel_id}")
    producer_id = state.producer_ids.get((change.channel_id, change.name))
    if producer_id is None:
        _new_producer(state, change, index)
        return
    record = state.producers[producer_id]
    if record.owner != change.owner:
        raise ProducerOwned(name=change.name, owner=record.owner)
    if change.expected_epoch is not None and change.expected_epoch != record.epoch:
        raise StaleProducerEpoch(producer=producer_id, expected=change.expected_epoch, current=record.epoch)
    opened = replace(record, epoch=record.epoch + 1, opened_index=index, opened_at_ms=change.at_ms)
    state.put_producer(producer_id, opened)


def _new_producer(state: State, change: OpenProducer, index: int) -> None:
    if change.expected_epoch:
        # It was closed since: its number must not be taken for that of the earlier producer.
        raise StaleProducerEpoch(producer=0, expected=change.expected_epoch, current=0)
    if len(state.producers) >= PRODUCERS_MAX:
        raise CatalogFull(what="producers", count_max=PRODUCERS_MAX)
    if len(state.producers_of.get(change.channel_id, ())) >= PRODUCERS_PER_CHANNEL_MAX:
        raise CatalogFull(what="producers of one channel", count_max=PRODUCERS_PER_CHANNEL_MAX)
    producer_id = state.next_producer_id
    state.put_number("next_producer_id", producer_id + 1)
    state.put_producer(
        producer_id,
        ProducerRecord(
            producer_id=producer_id,
            channel_id=change.channel_id,
            name=change.name,
            owner=change.owner,
            epoch=1,
            opened_index=index,
            opened_at_ms=change.at_ms,
        ),
    )


def close_producer(state: State, change: CloseProducer, index: int) -> None:
    record = state.producers.get(change.producer_id)
    if record is None:
        raise UnknownProducer(producer=change.producer_id)
    if record.epoch != change.expected_epoch:
        raise StaleProducerEpoch(producer=change.producer_id, expected=change.expected_epoch, current=record.epoch)
    state.put_producer(change.producer_id, None)


# --- tokens ----------------------------------------------------------------------------------------


def add_token(state: State, change: AddToken, index: int) -> None:
    problems = []
    if not SIMPLE_NAME.fullmatch(change.token):
        problems.append(f"{change.token!a} is not a token's name")
    if not DIGEST.fullmatch(change.digest):
        problems.append("digest must be a SHA-256 of 64 lower-case hex digits, never the secret itself")
    if not change.scopes or list(change.scopes) != sorted(set(change.scopes)):
        problems.append("scopes must name at least one scope, sorted, each once")
    problems += [_scope_problem(scope) for scope in change.scopes if scope not in SCOPES]
    if not change.channels or len(change.channels) > PATTERNS_MAX:
        problems.append(f"channels must hold 1 to {PATTERNS_MAX} patterns; * means every channel")
    if list(change.channels) != sorted(set(change.channels)):
        problems.append("channels must be sorted, each pattern once")
    problems += [_pattern_problem(pattern) for pattern in change.channels if not CHANNEL_PATTERN.fullmatch(pattern)]
    if change.expires_at_ms is not None and change.expires_at_ms <= change.at_ms:
        problems.append("the token would have expired before it began")
    if problems:
        raise InvalidChange(kind="add_token", problems=problems)
    if change.token in state.tokens or change.digest in state.token_names:
        raise TokenExists(token=change.token)
    if len(state.tokens) >= TOKENS_MAX:
        raise CatalogFull(what="tokens", count_max=TOKENS_MAX)
    state.put_token(
        change.token,
        TokenRecord(
            token=change.token,
            digest=change.digest,
            scopes=change.scopes,
            channels=change.channels,
            created_at_ms=change.at_ms,
            expires_at_ms=change.expires_at_ms,
        ),
    )


def revoke_token(state: State, change: RevokeToken, index: int) -> None:
    record = _known_token(state, change.token)
    if record.revoked_at_ms is not None:
        raise NothingToChange(state=f"token {change.token!r} is revoked")
    state.put_token(change.token, replace(record, revoked_at_ms=change.at_ms))


def remove_token(state: State, change: RemoveToken, index: int) -> None:
    _known_token(state, change.token)
    state.put_token(change.token, None)
    # Grants to this name must not pass to the next token of the same name.
    for key in sorted(state.grants_of.get(f"token:{change.token}", ())):
        state.put_grant(key, None)


def _known_token(state: State, token: str) -> TokenRecord:
    record = state.tokens.get(token)
    if record is None:
        raise UnknownToken(token=token)
    return record


# --- grants ----------------------------------------------------------------------------------------


def add_grant(state: State, change: AddGrant, index: int) -> None:
    problems = []
    if not PRINCIPAL.fullmatch(change.principal):
        problems.append(f"{change.principal!a} is not a principal; write it like operator:anna")
    if change.scope not in SCOPES:
        problems.append(_scope_problem(change.scope))
    if not CHANNEL_PATTERN.fullmatch(change.channels):
        problems.append(_pattern_problem(change.channels))
    if problems:
        raise InvalidChange(kind="add_grant", problems=problems)
    key = (change.principal, change.scope, change.channels)
    if key in state.grants:
        raise NothingToChange(state=f"{change.principal} has {change.scope} on {change.channels}")
    kind, _, name = change.principal.partition(":")
    if kind == "token":
        _known_token(state, name)
    if len(state.grants) >= GRANTS_MAX:
        raise CatalogFull(what="grants", count_max=GRANTS_MAX)
    record = GrantRecord(principal=change.principal, scope=change.scope, channels=change.channels)
    state.put_grant(key, record)


def remove_grant(state: State, change: RemoveGrant, index: int) -> None:
    key = (change.principal, change.scope, change.channels)
    if key not in state.grants:
        raise UnknownGrant(principal=change.principal, scope=change.scope, channels=change.channels)
    state.put_grant(key, None)


def _scope_problem(scope: str) -> str:
    return f"{scope!a} is not a scope; the scopes are {', '.join(SCOPES)}"


def _pattern_problem(pattern: str) -> str:
    return f"{pattern!a} is neither a channel's name nor the beginning of one and a star"
