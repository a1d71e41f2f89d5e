"""Fuzz targets of replication and of the client protocol: every body that a peer or a client may send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.fuzz.target import Target
from tidelog.codecs.client_codec import (
    config_json,
    config_of_json,
    decode_answer,
    decode_fetch,
    decode_fetched,
    decode_json,
    decode_produce,
    decode_produced,
    encode_answer,
    encode_error_answer,
    encode_fetch,
    encode_fetched,
    encode_json,
    encode_produce,
    encode_produced,
)
from tidelog.codecs.replication_codec import decode_replication, encode_replication
from tidelog.core.client_messages import AckPolicy, Fetch, Fetched, Produce, Produced
from tidelog.core.replication.messages import (
    AskLog,
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
from tidelog.errors import BadMessage, InvalidConfig, LogError, NotChannelLeader

MOVED: Final = NotChannelLeader(channel="bus", leader="n2", address="h:1", leader_epoch=7)


def replication_seeds() -> Iterator[bytes]:
    request = SyncRequest(
        channel_id=1,
        leader_epoch=2,
        request_id=3,
        fetch_from=4,
        last_epoch=2,
        held_end=4,
        committed_end=3,
        incarnation=1,
        channel_epoch=1,
        chunk_bytes_max=1 << 20,
    )
    response = SyncResponse(
        channel_id=1, leader_epoch=2, request_id=3, committed_end=4, log_start=0, log_end=9, data=(b"block",)
    )
    nack = SyncNack(channel_id=1, leader_epoch=2, request_id=3, error=SyncError.DIVERGED, epoch=1, end=4, detail="no")
    messages: list[ReplicationMessage] = [
        request,
        response,
        nack,
        Notify(channel_id=1, leader_epoch=2),
        LeaderSilent(channel_id=1, leader="n2", leader_epoch=2, channel_epoch=3),
        Resign(channel_id=1, leader_epoch=2, incarnation=3, reason="disk full"),
        Withdraw(channel_id=1, channel_epoch=2, incarnation=3, reason="no room"),
        AskLog(channel_id=1, channel_epoch=2),
        LogFacts(channel_id=1, channel_epoch=2, incarnation=3, last_epoch=4, log_end=5),
        LogFacts(
            channel_id=1,
            channel_epoch=2,
            incarnation=3,
            last_epoch=4,
            log_end=5,
            memory=LogMemory(epoch=6, committed_end=7, ends=(("n1", 8), ("n2", 9))),
        ),
        ProposeChange(change=b"{}"),
        NodeLoadReport(incarnation=1, free_bytes=2, capacity_bytes=3, chains=(4, 5)),
    ]
    for some in (*([message] for message in messages), messages):
        for _, buffers in encode_replication(some):
            yield b"".join(buffers)


def run_replication(data: bytes) -> None:
    try:
        messages = decode_replication(memoryview(data))
    except BadMessage:
        return
    again = b"".join(part for _, buffers in encode_replication(messages) for part in buffers)
    assert again == data, "CRE1"


# --- clients: the first byte chooses the decoder -------------------------------------------------------


def client_seeds() -> Iterator[bytes]:
    produce = Produce(token=1, channel_id=2, leader_epoch=3, ack=AckPolicy.ALL, block=(b"block",))
    yield b"\0" + b"".join(encode_produce([produce, produce]))
    yield b"\1" + b"".join(encode_produced([Produced(token=1, first_offset=2), Produced(token=3, error=MOVED)]))
    yield b"\2" + encode_fetch(Fetch(channel_id=1, offset=2, bytes_max=3, wait_ms=4))
    yield b"\3" + b"".join(encode_fetched(Fetched(leader_epoch=1, committed_end=2, log_start=3, data=(b"block",))))
    yield b"\3" + b"".join(encode_fetched(MOVED))
    yield b"\4" + encode_answer({"offset": 3})
    yield b"\4" + encode_error_answer(MOVED)
    yield b"\5" + encode_json(config_json(config_of_json({"factor": 2, "fsync": "never"})))


def run_client(data: bytes) -> None:
    body = memoryview(data[1:])
    try:
        match data[0] % 6 if data else 0:
            case 0:
                assert b"".join(encode_produce(decode_produce(body))) == body, "CCC1"
            case 1:
                answers = decode_produced(body)
                again = decode_produced(memoryview(b"".join(encode_produced(answers))))
                assert [one.token for one in again] == [one.token for one in answers], "CCC1"
            case 2:
                assert encode_fetch(decode_fetch(body)) == body, "CCC1"
            case 3:
                _fetched(body)
            case 4:
                _answer(body)
            case _:
                config = config_of_json(decode_json(body))
                assert config_of_json(config_json(config)) == config
    except (BadMessage, InvalidConfig):
        return


def _fetched(body: memoryview) -> None:
    """An error that arrives is typed, and can be sent on."""
    try:
        fetched = decode_fetched(body)
    except BadMessage:
        raise
    except LogError as error:
        encode_fetched(error)
    else:
        assert b"".join(encode_fetched(fetched)) == body, "CCC1"


def _answer(body: memoryview) -> None:
    try:
        found = decode_answer(body)
    except BadMessage:
        raise
    except LogError as error:
        encode_error_answer(error)
    else:
        assert decode_answer(encode_answer(found)) == found, "CCC1"


CHANNEL_TARGETS: Final = {
    "replication": Target(run=run_replication, seeds=replication_seeds),
    "client": Target(run=run_client, seeds=client_seeds),
}
