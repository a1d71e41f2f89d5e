"""Publishing record by record: the lightest way in, for clients that know nothing of blocks.

One PUBLISH is one record. The node makes a block of what has arrived in one turn, so many small requests cost one
commit, one block and one answer. docs/protocols/client.md has the bytes.

PB1  Heads are read many at a time (numpy), a few one by one: there an array costs more than it saves. Nothing of a
     body is looked at that was not compared with its length.
PB2  PUBLISHED answers a run of consecutive tokens at once: they got consecutive offsets, or the same refusal.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidelog.codecs.client_codec import decode_error, encode_error
from tidelog.core.client_messages import AckPolicy
from tidelog.errors import BadMessage, LogError

PUBLISH: Final = 0x0303
PUBLISHED: Final = 0x0304
VERSION: Final = 1
NO_PRODUCER: Final = bytes(16)
NUMBER_MAX: Final = 2**62

PUBLISH_HEAD: Final = np.dtype(
    [
        ("version", "u1"),
        ("ack", "u1"),
        ("reserved", "<u2"),
        ("key_bytes", "<u4"),
        ("token", "<u8"),
        ("channel_id", "<u8"),
        ("leader_epoch", "<u8"),
        ("producer", "V16"),
        ("seq", "<u8"),
    ]
)
HEAD_BYTES: Final = PUBLISH_HEAD.itemsize
_PUBLISH: Final = struct.Struct("<BBHIQQQ16sQ")
_PUBLISHED: Final = struct.Struct("<BBHIIIQQ")
assert _PUBLISH.size == HEAD_BYTES

Heads = NDArray[np.void]
_FEW: Final = 16


class Run(NamedTuple):
    """Records that may share a block, by their places among the bodies, and what their heads have in common."""

    start: int
    stop: int
    ack: int
    token: int
    """The token of the first; those of the others follow on."""
    channel_id: int
    leader_epoch: int
    producer: bytes
    seq: int
    """The seq of the first; 0 if they are not numbered."""
    key_bytes: list[int] | None
    """The key lengths of the records; None if none has a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What became of the records with these tokens."""

    token: int
    """The first of them."""
    count: int
    first_offset: int = 0
    error: LogError | None = None


def encode_publish(
    value: bytes,
    *,
    token: int,
    channel_id: int,
    leader_epoch: int = 0,
    ack: AckPolicy = AckPolicy.ALL,
    producer: bytes = NO_PRODUCER,
    seq: int = 0,
    key: bytes = b"",
) -> bytes:
    """The body of one PUBLISH. An empty key is none."""
    return _PUBLISH.pack(VERSION, ack, 0, len(key), token, channel_id, leader_epoch, producer, seq) + key + value


def read_runs(bodies: Sequence[memoryview]) -> list[Run]:
    """The heads of bodies that came one after the other, checked (PB1) and told apart (PB2)."""
    if len(bodies) <= _FEW:
        return _few_runs(bodies)
    heads = read_heads(bodies)
    runs = []
    for places in runs_of(heads):
        head, keys = heads[places.start], heads["key_bytes"][places.start : places.stop]
        runs.append(
            Run(
                start=places.start,
                stop=places.stop,
                ack=int(head["ack"]),
                token=int(head["token"]),
                channel_id=int(head["channel_id"]),
                leader_epoch=int(head["leader_epoch"]),
                producer=head["producer"].tobytes(),
                seq=int(head["seq"]),
                key_bytes=keys.tolist() if keys.any() else None,
            )
        )
    return runs


def _few_runs(bodies: Sequence[memoryview]) -> list[Run]:
    runs: list[Run] = []
    for place, body in enumerate(bodies):
        if len(body) < HEAD_BYTES:
            raise _cut_head()
        version, ack, reserved, key_bytes, token, channel_id, epoch, producer, seq = _PUBLISH.unpack_from(body)
        if version != VERSION or reserved or ack > AckPolicy.ALL or key_bytes > len(body) - HEAD_BYTES:
            raise _bad_head()
        if max(token, channel_id, epoch, seq) >= NUMBER_MAX:
            raise _bad_head()
        last = runs[-1] if runs else None
        if last is not None:
            count = place - last.start
            same = last.token + count == token and (last.channel_id, last.ack, last.leader_epoch) == (
                channel_id,
                ack,
                epoch,
            )
            if same and last.producer == producer and seq == (last.seq + count if last.seq else 0):
                keys = last.key_bytes
                if keys is not None or key_bytes:
                    keys = [*(keys or [0] * count), key_bytes]
                runs[-1] = last._replace(stop=place + 1, key_bytes=keys)
                continue
        keys = [key_bytes] if key_bytes else None
        runs.append(Run(place, place + 1, ack, token, channel_id, epoch, producer, seq, keys))
    return runs


def _cut_head() -> BadMessage:
    return BadMessage(problem="a record to publish ends within its head")


def _bad_head() -> BadMessage:
    return BadMessage(problem="a record to publish has a head that cannot be")


def read_heads(bodies: Sequence[memoryview]) -> Heads:
    """The heads of many bodies, checked (PB1)."""
    if min(map(len, bodies)) < HEAD_BYTES:
        raise _cut_head()
    heads = np.frombuffer(b"".join([body[:HEAD_BYTES] for body in bodies]), dtype=PUBLISH_HEAD)
    lengths = np.fromiter(map(len, bodies), dtype=np.int64, count=len(bodies))
    if (
        (heads["version"] != VERSION).any()
        or heads["reserved"].any()
        or (heads["ack"] > AckPolicy.ALL).any()
        or (heads["key_bytes"] > lengths - HEAD_BYTES).any()
        or (heads["token"] >= NUMBER_MAX).any()
        or (heads["channel_id"] >= NUMBER_MAX).any()
        or (heads["leader_epoch"] >= NUMBER_MAX).any()
        or (heads["seq"] >= NUMBER_MAX).any()
    ):
        raise _bad_head()
    return heads


def runs_of(heads: Heads) -> list[range]:
    """Records that may share a block: the same channel, producer, ack and epoch, and what is numbered follows on."""
    count = len(heads)
    if count == 1:
        return [range(1)]
    before, after = heads[:-1], heads[1:]
    same = (
        (before["channel_id"] == after["channel_id"])
        & (before["ack"] == after["ack"])
        & (before["leader_epoch"] == after["leader_epoch"])
        & (before["producer"] == after["producer"])
        & (before["token"] + np.uint64(1) == after["token"])
        & np.where(before["seq"] == 0, after["seq"] == 0, before["seq"] + np.uint64(1) == after["seq"])
    )
    edges = [0, *(np.flatnonzero(~same) + 1).tolist(), count]
    return [range(start, stop) for start, stop in pairwise(edges)]


def encode_published(answer: Published) -> bytes:
    error = b"" if answer.error is None else encode_error(answer.error)
    flags = answer.error is not None
    return _PUBLISHED.pack(VERSION, flags, 0, answer.count, len(error), 0, answer.token, answer.first_offset) + error


def decode_published(body: memoryview) -> list[Published]:
    """The answers of one PUBLISHED, in order."""
    answers: list[Published] = []
    position, end = 0, len(body)
    while position < end:
        start = position + _PUBLISHED.size
        if start > end:
            raise BadMessage(problem="an answer to a publisher ends within its head")
        version, flags, _, count, error_bytes, _, token, first_offset = _PUBLISHED.unpack_from(body, position)
        position = start + error_bytes
        if version != VERSION or flags > 1 or position > end or not count:
            raise BadMessage(problem="an answer to a publisher cannot be read")
        error = decode_error(body[start:position]) if flags else None
        answers.append(Published(token=token, count=count, first_offset=first_offset, error=error))
    return answers
