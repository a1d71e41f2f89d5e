"""What replicas say to each other, as bodies of link kind 0x0E00: docs/protocols/replication.md has the tables.

A body holds one or more messages of one node for another, each with its dispatch number in front; seed 001 gives the
numbers of the first. Numbers are little-endian and fixed in place. This is the hot path of every append, so messages
go straight from their fields to bytes and back, and the blocks of a large `SyncResponse` are never copied.

What a caller must keep: leave the buffers of a response alone until they are sent; what is decoded holds the body for
as long as a block of it is held.

CRE1  What is encoded decodes to the same messages, and what decodes encodes to the same bytes.
CRE2  No input makes decoding raise anything but `BadMessage`; nothing is allocated from a number that has not been
     compared with the bytes that are there.
CRE3  A body is at most one small frame of the link, or one message that is larger. So small messages stay in order,
     and none waits behind the bulk of another channel.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeAlias

from tidelog.codecs.layout import Layout
from tidelog.core.catalog.changes import CHANGE_BYTES_MAX
from tidelog.core.catalog.records import CHANNELS_MAX
from tidelog.core.replication.messages import (
    AskLog,
    Buffer,
    LeaderSilent,
    LogFacts,
    LogMemory,
    NodeLoadReport,
    Notify,
    ProposeChange,
    ReplicationMessage,
    Resign,
    SyncError,
    SyncNack,
    SyncRequest,
    SyncResponse,
    Withdraw,
)
from tidelog.errors import BadMessage
from tidelog.pki.identity import is_name
from tidelog.transports.link.frames import SMALL_BYTES_MAX

REPLICATION: Final = 0x0E00
"""The kind of the link under which all of it travels."""

SYNC_REQUEST: Final = 0x20
SYNC_RESPONSE: Final = 0x21
SYNC_NACK: Final = 0x23
NOTIFY: Final = 0x24
LEADER_SILENT: Final = 0x25
RESIGN: Final = 0x26
WITHDRAW: Final = 0x27
ASK_LOG: Final = 0x28
LOG_FACTS: Final = 0x29
PROPOSE_CHANGE: Final = 0x2A
NODE_LOAD: Final = 0x2B

TEXT_BYTES_MAX: Final = 1_024
"""The most bytes of a reason or a detail; a longer one is cut."""
NUMBER_BITS: Final = 62
"""Ids, epochs, offsets and sizes stay below 2^62, so that sums of them still fit everywhere."""

# Every message begins with its dispatch number in four bytes, of which the last three are zero, and four bytes that
# are the length or the count of what follows its fields, or a field, or zero.
_REQUEST: Final = struct.Struct("<IIQQQQQQQQQ")
_RESPONSE: Final = struct.Struct("<IIQQQQQQQ")
_NACK: Final = Layout(
    SyncNack,
    "IHBB",
    *("channel_id", "leader_epoch", "request_id", "log_start", "epoch", "end", "retry_after_ms"),
)
_FACTS: Final = Layout(LogFacts, "II", "channel_id", "channel_epoch", "incarnation", "last_epoch", "log_end")
_LOAD: Final = Layout(NodeLoadReport, "II", "incarnation", "free_bytes", "capacity_bytes")
_SMALL: Final = {
    NOTIFY: Layout(Notify, "II", "channel_id", "leader_epoch"),
    LEADER_SILENT: Layout(LeaderSilent, "II", "channel_id", "leader_epoch", "channel_epoch"),
    RESIGN: Layout(Resign, "II", "channel_id", "leader_epoch", "incarnation"),
    WITHDRAW: Layout(Withdraw, "II", "channel_id", "channel_epoch", "incarnation"),
    ASK_LOG: Layout(AskLog, "II", "channel_id", "channel_epoch", flags={"with_memory": 1}),
}
"""Messages of numbers alone, or with one text behind them, whose length is the second number of the head."""
_TEXTS: Final = {LEADER_SILENT: "leader", RESIGN: "reason", WITHDRAW: "reason"}
_BARE: Final = struct.Struct("<II")
_MEMORY: Final = struct.Struct("<QQ")
_END: Final = struct.Struct("<QH")
NO_MEMORY: Final = LogMemory()
ENDS_MAX: Final = 64
"""The most other replicas in the memory of one."""

SYNC_REQUEST_BYTES: Final = _REQUEST.size
SYNC_RESPONSE_HEAD_BYTES: Final = _RESPONSE.size
_DATA_BYTES_MAX: Final = 2**32 - 1

_AGAIN: Final = 0x100
"""In the dispatch number of a request: its only flag."""

# Looking an error up by its number costs less than making an enum member.
_ERRORS: Final = {error.value: error for error in SyncError}

_Decoded: TypeAlias = tuple[ReplicationMessage, int]


# --- encoding ----------------------------------------------------------------------------------------


def encode_replication(messages: Sequence[ReplicationMessage]) -> list[tuple[int, list[Buffer]]]:
    """(kind, buffers) for the link, in order (CRE3). The cores make only what fits; anything else is a bug in us."""
    encoded: list[tuple[int, list[Buffer]]] = []
    parts: list[Buffer] = []
    size = 0
    for message in messages:
        data: Sequence[Buffer] = ()
        if type(message) is SyncRequest:
            head = _REQUEST.pack(
                SYNC_REQUEST | _AGAIN if message.again else SYNC_REQUEST,
                message.chunk_bytes_max,
                message.channel_id,
                message.leader_epoch,
                message.request_id,
                message.fetch_from,
                message.last_epoch,
                message.held_end,
                message.committed_end,
                message.incarnation,
                message.channel_epoch,
            )
            length = SYNC_REQUEST_BYTES
        elif type(message) is SyncResponse:
            data = message.data
            data_bytes = sum(map(len, data)) if data else 0
            head = _RESPONSE.pack(
                SYNC_RESPONSE,
                data_bytes,
                message.channel_id,
                message.leader_epoch,
                message.request_id,
                message.committed_end,
                message.log_start,
                message.log_end,
                message.first_offset,
            )
            length = SYNC_RESPONSE_HEAD_BYTES + data_bytes
        else:
            head = _ENCODERS[type(message)](message)
            length = len(head)
        if length > SMALL_BYTES_MAX:
            encoded += _joined(parts)
            encoded.append((REPLICATION, [head, *data]))
            parts, size = [], 0
            continue
        if size + length > SMALL_BYTES_MAX:
            encoded += _joined(parts)
            parts, size = [], 0
        parts.append(head)
        parts += data
        size += length
    return encoded + _joined(parts)


def _joined(parts: list[Buffer]) -> list[tuple[int, list[Buffer]]]:
    """A small body as one buffer: the link copies it anyway, and one copy of all costs least."""
    return [(REPLICATION, parts if len(parts) == 1 else [b"".join(parts)])] if parts else []


def _text(text: str) -> bytes:
    data = text.encode(errors="replace")
    # Cut between two characters, or the other side could not read it.
    return data if len(data) <= TEXT_BYTES_MAX else data[:TEXT_BYTES_MAX].decode(errors="ignore").encode()


def _encode_nack(nack: SyncNack) -> bytes:
    detail = _text(nack.detail)
    return _NACK.pack(nack, SYNC_NACK, len(detail), nack.error.value, 0) + detail


def _encode_small(kind: int, message: ReplicationMessage) -> bytes:
    layout, field = _SMALL[kind], _TEXTS.get(kind)
    if field is None:
        return layout.pack(message, kind, layout.flags_of(message))
    text = _text(getattr(message, field))
    return layout.pack(message, kind, len(text)) + text


def _encode_facts(facts: LogFacts) -> bytes:
    memory = b"" if facts.memory == NO_MEMORY else _encode_memory(facts.memory)
    return _FACTS.pack(facts, LOG_FACTS, len(memory)) + memory


def _encode_memory(memory: LogMemory) -> bytes:
    assert len(memory.ends) <= ENDS_MAX, "a channel has fewer replicas"
    parts = [_MEMORY.pack(memory.epoch, memory.committed_end)]
    for node, end in memory.ends:
        name = node.encode()
        parts.append(_END.pack(end, len(name)) + name)
    return b"".join(parts)


def _encode_proposal(proposal: ProposeChange) -> bytes:
    assert 0 < len(proposal.change) <= CHANGE_BYTES_MAX, "the catalog encodes no larger change"
    return _BARE.pack(PROPOSE_CHANGE, len(proposal.change)) + proposal.change


def _encode_load(report: NodeLoadReport) -> bytes:
    chains = sorted(report.chains)
    assert len(chains) <= CHANNELS_MAX, "more chains than there can be channels"
    return _LOAD.pack(report, NODE_LOAD, len(chains)) + struct.pack(f"<{len(chains)}Q", *chains)


_ENCODERS: Final[dict[type[Any], Callable[[Any], bytes]]] = {
    **{layout.message: partial(_encode_small, kind) for kind, layout in _SMALL.items()},
    SyncNack: _encode_nack,
    LogFacts: _encode_facts,
    ProposeChange: _encode_proposal,
    NodeLoadReport: _encode_load,
}


# --- decoding ----------------------------------------------------------------------------------------


def decode_replication(body: memoryview) -> list[ReplicationMessage]:
    """The messages of one body, in order; the data of responses are views into it."""
    messages: list[ReplicationMessage] = []
    position, end = 0, len(body)
    try:
        while position < end:
            dispatch = body[position]
            if dispatch == SYNC_REQUEST:
                message: ReplicationMessage = _request_at(body, position)
                position += SYNC_REQUEST_BYTES
            else:
                decoder = _DECODERS.get(dispatch)
                if decoder is None:
                    raise BadMessage(problem=f"no message of replication has the number {dispatch:#04x}")
                message, position = decoder(body, position)
                if position > end:
                    raise BadMessage(problem="a message of replication claims more bytes than there are")
            messages.append(message)
    except struct.error as error:
        raise BadMessage(problem="a message of replication ends within its fields") from error
    if not messages:
        raise BadMessage(problem="a body of replication without a message")
    return messages


def _request_at(body: memoryview, position: int) -> SyncRequest:
    (
        dispatch,
        chunk_bytes_max,
        channel_id,
        leader_epoch,
        request_id,
        fetch_from,
        last_epoch,
        held_end,
        committed_end,
        incarnation,
        channel_epoch,
    ) = _REQUEST.unpack_from(body, position)
    numbers = channel_id | leader_epoch | request_id | fetch_from | last_epoch | held_end | committed_end
    numbers |= incarnation | channel_epoch
    if dispatch & ~_AGAIN != SYNC_REQUEST or numbers >> NUMBER_BITS or not channel_id:
        raise _odd("a sync request")
    return SyncRequest(
        channel_id=channel_id,
        leader_epoch=leader_epoch,
        request_id=request_id,
        fetch_from=fetch_from,
        last_epoch=last_epoch,
        held_end=held_end,
        committed_end=committed_end,
        incarnation=incarnation,
        channel_epoch=channel_epoch,
        chunk_bytes_max=chunk_bytes_max,
        again=bool(dispatch & _AGAIN),
    )


def _response_at(body: memoryview, position: int) -> _Decoded:
    (
        dispatch,
        data_bytes,
        channel_id,
        leader_epoch,
        request_id,
        committed_end,
        log_start,
        log_end,
        first_offset,
    ) = _RESPONSE.unpack_from(body, position)
    numbers = channel_id | leader_epoch | request_id | committed_end | log_start | log_end | first_offset
    if dispatch != SYNC_RESPONSE or numbers >> NUMBER_BITS or not channel_id:
        raise _odd("a sync response")
    start = position + SYNC_RESPONSE_HEAD_BYTES
    response = SyncResponse(
        channel_id=channel_id,
        leader_epoch=leader_epoch,
        request_id=request_id,
        committed_end=committed_end,
        log_start=log_start,
        log_end=log_end,
        first_offset=first_offset,
        data=(body[start : start + data_bytes],) if data_bytes else (),
    )
    return response, start + data_bytes


def _nack_at(body: memoryview, position: int) -> _Decoded:
    dispatch, detail_bytes, number, zero, *numbers = _NACK.struct.unpack_from(body, position)
    error = _ERRORS.get(number)
    if dispatch != SYNC_NACK or error is None or zero:
        raise _odd("a sync nack")
    fields = _NACK.fields(_checked(numbers, "a sync nack"))
    detail, after = _text_at(body, position + _NACK.size, detail_bytes)
    return SyncNack(error=error, detail=detail, **fields), after


def _small_at(kind: int, body: memoryview, position: int) -> _Decoded:
    layout, field = _SMALL[kind], _TEXTS.get(kind)
    dispatch, more, *numbers = layout.struct.unpack_from(body, position)
    if dispatch != kind or (field is None and more & ~layout.flags_known):
        raise _odd("a message of replication")
    fields = layout.fields(_checked(numbers, "a message of replication"), more)
    after = position + layout.size
    if field is not None:
        fields[field], after = _text_at(body, after, more)
        if kind == LEADER_SILENT and not is_name(fields[field]):
            raise BadMessage(problem="a message of replication names a node that cannot be one")
    return layout.message(**fields), after


def _facts_at(body: memoryview, position: int) -> _Decoded:
    dispatch, memory_bytes, *numbers = _FACTS.struct.unpack_from(body, position)
    if dispatch != LOG_FACTS:
        raise _odd("a message of replication")
    fields = _FACTS.fields(_checked(numbers, "a message of replication"))
    start = position + _FACTS.size
    if memory_bytes > len(body) - start:
        raise BadMessage(problem=f"facts of a log claim {memory_bytes} bytes of memory, more than there are")
    memory = _memory_at(body[start : start + memory_bytes]) if memory_bytes else NO_MEMORY
    return LogFacts(memory=memory, **fields), start + memory_bytes


def _memory_at(body: memoryview) -> LogMemory:
    epoch, committed_end = _MEMORY.unpack_from(body)
    ends: list[tuple[str, int]] = []
    position = _MEMORY.size
    while position < len(body):
        end, name_bytes = _END.unpack_from(body, position)
        node, position = _text_at(body, position + _END.size, name_bytes)
        rises = not ends or ends[-1][0] < node
        if end >> NUMBER_BITS or not is_name(node) or not rises or len(ends) >= ENDS_MAX:
            raise _odd("the memory of a log")
        ends.append((node, end))
    memory = LogMemory(epoch=epoch, committed_end=committed_end, ends=tuple(ends))
    if (epoch | committed_end) >> NUMBER_BITS or memory == NO_MEMORY:
        raise _odd("the memory of a log")
    return memory


def _proposal_at(body: memoryview, position: int) -> _Decoded:
    dispatch, size = _BARE.unpack_from(body, position)
    start = position + _BARE.size
    if dispatch != PROPOSE_CHANGE or not 0 < size <= min(CHANGE_BYTES_MAX, len(body) - start):
        raise _odd("a proposal")
    return ProposeChange(change=bytes(body[start : start + size])), start + size


def _load_at(body: memoryview, position: int) -> _Decoded:
    dispatch, count, *numbers = _LOAD.struct.unpack_from(body, position)
    start = position + _LOAD.size
    after = start + 8 * count
    if dispatch != NODE_LOAD or any(number >> NUMBER_BITS for number in numbers):
        raise _odd("a node's load")
    if count > CHANNELS_MAX or after > len(body):
        raise BadMessage(problem=f"a node's load claims {count} chains, more than there are or may be")
    chains = struct.unpack_from(f"<{count}Q", body, start)
    rises = all(one < other for one, other in pairwise(chains))
    if not rises or (chains and (not chains[0] or chains[-1] >> NUMBER_BITS)):
        raise BadMessage(problem="the chains of a node's load do not rise, or cannot be")
    return NodeLoadReport(chains=chains, **_LOAD.fields(numbers)), after


_DECODERS: Final[dict[int, Callable[[memoryview, int], _Decoded]]] = {
    **{kind: partial(_small_at, kind) for kind in _SMALL},
    SYNC_RESPONSE: _response_at,
    SYNC_NACK: _nack_at,
    LOG_FACTS: _facts_at,
    PROPOSE_CHANGE: _proposal_at,
    NODE_LOAD: _load_at,
}


def _odd(what: str) -> BadMessage:
    return BadMessage(problem=f"{what} holds numbers that cannot be")


def _checked(numbers: Sequence[int], what: str) -> Sequence[int]:
    """The numbers, of which the first is the channel, checked."""
    if not numbers[0] or any(number >> NUMBER_BITS for number in numbers):
        raise _odd(what)
    return numbers


def _text_at(body: memoryview, start: int, size: int) -> tuple[str, int]:
    if size > min(TEXT_BYTES_MAX, len(body) - start):
        raise BadMessage(problem=f"a message of replication claims {size} bytes of text, more than there are or may be")
    try:
        return str(body[start : start + size], "utf-8"), start + size
    except UnicodeDecodeError as error:
        raise BadMessage(problem="the text of a message of replication is not UTF-8") from error
