"""What native clients and nodes say to each other, as bodies of the link: docs/protocols/client.md has the tables.

Producing and fetching are binary, and blocks travel as they lie in the log: encoding gives buffers to be written one
after the other, decoding gives views into the body. Everything else is one JSON object per body. Answers of requests
are `{"ok": ...}` or `{"error": ...}`, so that a typed error keeps its fields (see `error_codec`); a refusal of the link
itself (an unknown kind, too many requests) still comes as `PeerRefused`.

What a caller must keep: what is decoded holds the body for as long as a block of it is held.

CCC1  What is encoded decodes to the same messages.
CCC2  No input makes decoding raise anything but `BadMessage`, and nothing is allocated from a number that has not been
     compared with the bytes that are there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from tidelog.codecs.error_codec import error_json, error_of_json
from tidelog.core.catalog.channel_config import ChannelConfig
from tidelog.core.catalog.codec import BadValue, from_plain, to_plain
from tidelog.core.catalog.records import ChannelRecord, NodeRecord
from tidelog.core.client_messages import ANY_OFFSET, AckPolicy, Buffer, Fetch, Fetched, Produce, Produced
from tidelog.errors import BadMessage, CatalogCorrupt, CatalogVersion, InvalidConfig, LogError
from tidelog.transports.link.views import side_by_side
from tidelog.units import MIB

# One-way messages.
PRODUCE: Final = 0x0301
PRODUCED: Final = 0x0302
# Requests.
DESCRIBE: Final = 0x0201
CREATE: Final = 0x0202
ALTER: Final = 0x0203
OPEN_PRODUCER: Final = 0x0204
FETCH: Final = 0x0205
OFFSETS: Final = 0x0206
CURSOR: Final = 0x0207
REBALANCE: Final = 0x0208
GROUP: Final = 0x0209
GROUP_ASK: Final = 0x020A
CLOSE_PRODUCER: Final = 0x020B
PRODUCERS: Final = 0x020C

CLIENT_MESSAGES: Final = frozenset({PRODUCE})
"""One way, from a client to a node."""
CLIENT_REQUESTS: Final = frozenset(
    {
        DESCRIBE,
        CREATE,
        ALTER,
        OPEN_PRODUCER,
        FETCH,
        OFFSETS,
        CURSOR,
        REBALANCE,
        GROUP,
        GROUP_ASK,
        CLOSE_PRODUCER,
        PRODUCERS,
    }
)

VERSION: Final = 1
MESSAGES_MAX: Final = 1 << 16
"""The most bytes of one body."""
JSON_BYTES_MAX: Final = 8 * MIB
NUMBER_MAX: Final = 2**62
"""Ids, epochs and offsets stay below it."""
WAIT_MS_MAX: Final = 60_000
CREATE_MAX: Final = 500
"""Channels of one CREATE."""
DESCRIBE_MAX: Final = 1_000
"""Channels of one answer to DESCRIBE."""

_PRODUCE: Final = struct.Struct("<BBHIQQQq")
"""Version, ack, zero, bytes of the block, token, channel id, leader epoch, expected offset."""
_PRODUCED: Final = struct.Struct("<BBHIQQ")
"""Version, whether it is an error, zero, bytes of the error, token, first offset."""
_FETCH: Final = struct.Struct("<BBHIIIQQQ")
"""Version, whether it continues, zero, most bytes, wait in ms, chain, channel id, offset, leader epoch."""
_FETCHED: Final = struct.Struct("<BBHIQQQ")
"""Version, whether it is an error, zero, zero, leader epoch, committed end, log start; then blocks or the error."""

PRODUCE_HEAD_BYTES: Final = _PRODUCE.size
PRODUCED_HEAD_BYTES: Final = _PRODUCED.size
FETCHED_HEAD_BYTES: Final = _FETCHED.size

# Looking a policy up by its number costs less than making an enum member.
_ACKS: Final = {int(policy): policy for policy in AckPolicy}


# --- producing ---------------------------------------------------------------------------------------


def encode_produce(messages: Sequence[Produce]) -> list[Buffer]:
    """The body of one PRODUCE. The caller sees to it that it is within what the peer takes."""
    parts: list[Buffer] = []
    for message in messages:
        block = message.block
        size = len(block[0]) + len(block[1]) if len(block) == 2 else sum(map(len, block))
        parts.append(
            _PRODUCE.pack(
                VERSION,
                message.ack,
                0,
                size,
                message.token,
                message.channel_id,
                message.leader_epoch,
                message.expected_offset,
            )
        )
        parts += block
    return parts


def decode_produce(body: memoryview) -> list[Produce]:
    """The messages of one PRODUCE, in order; their blocks are views into `body` and not looked into."""
    messages: list[Produce] = []
    position, end = 0, len(body)
    while position < end:
        start = position + PRODUCE_HEAD_BYTES
        if start > end:
            raise BadMessage(problem="a produce message ends within its head")
        version, ack, zero, size, token, channel_id, leader_epoch, expected = _PRODUCE.unpack_from(body, position)
        position = start + size
        policy = _ACKS.get(ack)
        if version != VERSION or zero or policy is None:
            raise BadMessage(problem=f"a produce message of version {version} with ack policy {ack} is not known here")
        if position > end:
            raise BadMessage(problem=f"a produce message claims a block of {size} bytes, more than there are")
        if not 0 < channel_id < NUMBER_MAX or leader_epoch >= NUMBER_MAX or not ANY_OFFSET <= expected < NUMBER_MAX:
            raise BadMessage(
                problem=f"a produce message names channel {channel_id}, epoch {leader_epoch}, offset {expected}"
            )
        messages.append(
            Produce(
                token=token,
                channel_id=channel_id,
                leader_epoch=leader_epoch,
                ack=policy,
                expected_offset=expected,
                block=(body[start:position],),
            )
        )
        if len(messages) > MESSAGES_MAX:
            raise _wrong_count(len(messages))
    if not messages:
        raise _wrong_count(0)
    return messages


def encode_produced(messages: Sequence[Produced]) -> list[bytes]:
    """The body of one PRODUCED."""
    parts = []
    for message in messages:
        if message.error is None:
            parts.append(_PRODUCED.pack(VERSION, 0, 0, 0, message.token, message.first_offset))
        else:
            words = encode_error(message.error)
            parts += (_PRODUCED.pack(VERSION, 1, 0, len(words), message.token, 0), words)
    return parts


def decode_produced(body: memoryview) -> list[Produced]:
    messages: list[Produced] = []
    position, end = 0, len(body)
    while position < end:
        start = position + PRODUCED_HEAD_BYTES
        if start > end:
            raise BadMessage(problem="an answer to a produce message ends within its head")
        version, is_error, zero, size, token, first_offset = _PRODUCED.unpack_from(body, position)
        position = start + size
        if version != VERSION or is_error > 1 or zero or first_offset >= NUMBER_MAX:
            raise BadMessage(problem=f"an answer to a produce message of version {version} is not known here")
        if position > end or bool(size) != bool(is_error) or (is_error and first_offset):
            raise BadMessage(problem=f"an answer to a produce message claims {size} bytes of an error")
        error = decode_error(body[start:position]) if is_error else None
        messages.append(Produced(token=token, first_offset=first_offset, error=error))
        if len(messages) > MESSAGES_MAX:
            raise _wrong_count(len(messages))
    if not messages:
        raise _wrong_count(0)
    return messages


def _wrong_count(count: int) -> BadMessage:
    return BadMessage(problem=f"a body holds {count} messages; 1 to {MESSAGES_MAX} are allowed")


# --- fetching ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainedFetch(Fetch):
    """One of many fetches that follow each other, so that the next is read while this one is sent."""

    chain: int
    """Chosen by the client; not 0. Of its link alone."""
    continues: bool = False
    """Begin where the answer before it in the chain ended, not at `offset`, and do not wait for records. An answer
    without blocks says that there is no such place: ask with an offset."""


def encode_fetch(fetch: Fetch) -> bytes:
    chain, continues = (fetch.chain, fetch.continues) if isinstance(fetch, ChainedFetch) else (0, False)
    asked = (fetch.bytes_max, fetch.wait_ms, chain, fetch.channel_id, fetch.offset, fetch.leader_epoch)
    return _FETCH.pack(VERSION, continues, 0, *asked)


def decode_fetch(body: memoryview) -> Fetch:
    if len(body) != _FETCH.size:
        raise BadMessage(problem=f"a fetch has {_FETCH.size} bytes, not {len(body)}")
    version, continues, zero, bytes_max, wait_ms, chain, channel_id, offset, leader_epoch = _FETCH.unpack(body)
    if version != VERSION or zero or continues > bool(chain):
        raise BadMessage(problem=f"a fetch of version {version} is not known here")
    if not 0 < channel_id < NUMBER_MAX or offset >= NUMBER_MAX or leader_epoch >= NUMBER_MAX:
        raise BadMessage(problem=f"a fetch names channel {channel_id}, offset {offset}, epoch {leader_epoch}")
    if bytes_max == 0 or wait_ms > WAIT_MS_MAX:
        raise BadMessage(
            problem=f"a fetch asks for {bytes_max} bytes and waits {wait_ms} ms; at most {WAIT_MS_MAX} ms are allowed"
        )
    if not chain:
        return Fetch(
            channel_id=channel_id, offset=offset, bytes_max=bytes_max, wait_ms=wait_ms, leader_epoch=leader_epoch
        )
    return ChainedFetch(
        channel_id=channel_id,
        offset=offset,
        bytes_max=bytes_max,
        wait_ms=wait_ms,
        leader_epoch=leader_epoch,
        chain=chain,
        continues=bool(continues),
    )


def encode_fetched(answer: Fetched | LogError) -> list[Buffer]:
    """The answer to FETCH: whole blocks, or why there are none."""
    if isinstance(answer, LogError):
        return [_FETCHED.pack(VERSION, 1, 0, 0, 0, 0, 0), encode_error(answer)]
    head = _FETCHED.pack(VERSION, 0, 0, 0, answer.leader_epoch, answer.committed_end, answer.log_start)
    return [head, *side_by_side(answer.data)]


def decode_fetched(body: memoryview) -> Fetched:
    """What was fetched, as one view into `body`; raises the typed error that came instead."""
    if len(body) < FETCHED_HEAD_BYTES:
        raise BadMessage(problem="an answer to a fetch ends within its head")
    version, is_error, zero, none, leader_epoch, committed_end, log_start = _FETCHED.unpack_from(body)
    if version != VERSION or is_error > 1 or zero or none:
        raise BadMessage(problem=f"an answer to a fetch of version {version} is not known here")
    rest = body[FETCHED_HEAD_BYTES:]
    if is_error:
        raise decode_error(rest)
    if max(leader_epoch, committed_end, log_start) >= NUMBER_MAX:
        raise BadMessage(problem="an answer to a fetch holds numbers that cannot be")
    return Fetched(
        leader_epoch=leader_epoch, committed_end=committed_end, log_start=log_start, data=(rest,) if rest else ()
    )


# --- JSON --------------------------------------------------------------------------------------------


def encode_json(plain: Mapping[str, Any]) -> bytes:
    """A request, or what follows "ok"."""
    return json.dumps(plain, separators=(",", ":")).encode()


def decode_json(body: Buffer) -> dict[str, Any]:
    """One JSON object, or `BadMessage`."""
    if len(body) > JSON_BYTES_MAX:
        raise BadMessage(problem=f"a body of {len(body)} bytes is over the limit of {JSON_BYTES_MAX} for JSON")
    try:
        plain = json.loads(bytes(body), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadMessage(problem="a body is not JSON") from error
    if type(plain) is not dict:
        raise BadMessage(problem="a body is not a JSON object")
    return plain


def _refuse_constant(text: str) -> float:
    raise ValueError(text)


def encode_answer(found: Mapping[str, Any]) -> bytes:
    """{"ok": found}."""
    return encode_json({"ok": found})


def encode_error_answer(error: LogError) -> bytes:
    """{"error": {code, message, retriable, definite, fields}}."""
    return encode_json({"error": error_json(error)})


def decode_answer(body: Buffer) -> dict[str, Any]:
    """What follows "ok"; raises the typed error that came instead."""
    match decode_json(body):
        case {"ok": dict(found), **rest} if not rest:
            return found
        case {"error": plain, **rest} if not rest:
            raise error_of_json(plain)
        case _:
            raise BadMessage(problem='an answer is neither {"ok": {...}} nor {"error": {...}}')


def encode_error(error: LogError) -> bytes:
    return encode_json(error_json(error))


def decode_error(body: Buffer) -> LogError:
    """The typed error of these bytes; `PeerRefused` for one that this software does not know."""
    return error_of_json(decode_json(body))


# --- what the catalog holds, as JSON -------------------------------------------------------------------


def config_json(config: ChannelConfig) -> dict[str, Any]:
    """Every setting, enums by their values."""
    return to_plain(config)


def config_of_json(changed: Any, base: ChannelConfig | None = None) -> ChannelConfig:
    """`base` (the defaults) with the settings in `changed`; of retention too only what is named changes.

    Raises `InvalidConfig` for a setting that does not exist or has another type. Values are not judged here.
    """
    plain = to_plain(ChannelConfig() if base is None else base)
    if type(changed) is not dict:
        raise InvalidConfig(section="channel", problems=["a channel's config is a JSON object"])
    retention = changed.get("retention", {})
    if type(retention) is not dict:
        raise InvalidConfig(section="channel", problems=["retention is a JSON object"])
    known = {setting.name for setting in fields(ChannelConfig)}
    problems = [f"{name[:40]!a} is not a setting of a channel" for name in sorted(changed.keys() - known)]
    problems += [
        f"{name[:40]!a} is not a setting of retention" for name in sorted(retention.keys() - plain["retention"].keys())
    ]
    retention = {**plain["retention"], **retention}
    merged = {**plain, **changed, "retention": retention}
    try:
        config: ChannelConfig = from_plain(ChannelConfig, merged)
    except _BAD_SETTINGS:
        # Told one at a time; that is sixteen times the work, which a config that is good need not pay.
        problems += [
            problem
            for name in sorted(known & merged.keys())
            if (problem := _setting_problem(name, merged[name], plain))
        ]
        if not problems:
            raise
    if problems:
        raise InvalidConfig(section="channel", problems=problems)
    return config


_BAD_SETTINGS: Final = (CatalogCorrupt, CatalogVersion, BadValue)


def _setting_problem(name: str, value: Any, base: Mapping[str, Any]) -> str | None:
    """One setting at a time, so that all problems are told at once."""
    try:
        from_plain(ChannelConfig, {**base, name: value})
    except _BAD_SETTINGS as error:
        words = error.problem if isinstance(error, CatalogCorrupt | CatalogVersion) else str(error)
        return f"{name}: {words}"
    return None


def channel_json(channel: ChannelRecord, here: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A channel for DESCRIBE; `here` is what the answering node's own replica says."""
    return {
        "channel_id": channel.channel_id,
        "name": channel.name,
        "config": config_json(channel.config),
        "effective_factor": channel.config.effective_factor,
        "effective_min_isr": channel.config.effective_min_isr,
        "replicas": list(channel.replicas),
        "leader": channel.leader,
        "isr": list(channel.isr_nodes),
        "eligible": [member.node for member in channel.eligible],
        "leader_epoch": channel.leader_epoch,
        "channel_epoch": channel.channel_epoch,
        "paused": channel.paused,
        "readonly": channel.readonly,
        "created_at_ms": channel.created_at_ms,
        "unclean": [to_plain(election) for election in channel.unclean],
        "here": None if here is None else dict(here),
    }


def node_json(node: NodeRecord) -> dict[str, Any]:
    """A node for DESCRIBE: what a client must know to reach it."""
    return {
        "node": node.node,
        "state": node.state.value,
        "incarnation": node.incarnation,
        "addresses": dict(node.addresses),
        "host": node.host,
        "tags": list(node.tags),
    }
