"""The NATS subjects of replication, as seed 002 has them, and how channels and nodes are named in them.

    <namespace>.<stream>.<partition>.replicate     a follower asks; the partition's leader listens
    <namespace>.<stream>.<partition>.offset        a follower asks where an epoch ends; the leader listens
    <namespace>.notify.<node>                      a leader tells a follower of new data; that node listens
    <inbox>.<channel id>.<request id>              where the answers go; the inbox is random, of one connection

A channel `foo` is partition 0 of stream `foo`, and `foo/3` is partition 3 of it. Letters, digits, `-` and `_` of a name
stay as they are; every other byte is written as `%` and two hexadecimal digits, since a dot would end the part and a
star would be a wildcard. So plain stream names look in a subject as they do in Liftbridge.

CNS1  Two channels never have the same subjects, and a subject that parses is the one that would be built.
CNS2  No part of a subject of ours is empty or holds a dot, a wildcard or white space, whatever the names.
CNS3  A subject that a channel is attached to is one literal subject outside our own, NATS' and every inbox.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from tidelog.codecs.stream_names import PARTITIONS_MAX, channel_of, place_of
from tidelog.core.subjects import SUBJECT_BYTES_MAX, subject_problem
from tidelog.core.subjects import attached_subject as attached_subject
from tidelog.errors import BadSubject

DEFAULT_NAMESPACE: Final = "tidelog-default"

_NUMBER_BITS: Final = 62
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_NOTIFY: Final = "notify"


class Verb(Enum):
    """What a request of a follower is about; the last part of its subject."""

    REPLICATE = "replicate"
    OFFSET = "offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSubject:
    """What a request was sent to."""

    channel: str
    verb: Verb


class ReplySubject(NamedTuple):
    """What an answer, or the server's "no responders", came to."""

    channel_id: int
    request_id: int


# --- names -------------------------------------------------------------------------------------------


def checked_channel(stream: str, partition: int) -> str:
    """The channel that a partition of a stream is (CNS1). A stream whose own name looks like a partition is refused."""
    if not 0 <= partition < PARTITIONS_MAX:
        raise BadSubject(subject=f"{stream}.{partition}", problem=f"names partition {partition}, which cannot be")
    channel = channel_of(stream, partition)
    if not stream or place_of(channel) != (stream, partition):
        raise BadSubject(
            subject=f"{stream}.{partition}",
            problem="names a stream that ends like a partition, in / and a number, or not at all; rename the stream",
        )
    return channel


def escape_part(name: str) -> str:
    """A name as one part of a subject (CNS2)."""
    escaped = quote(name, safe="", errors="surrogatepass")
    # `quote` never touches these two, and a dot would begin another part.
    return escaped.replace(".", "%2E").replace("~", "%7E")


def unescape_part(part: str) -> str:
    """The name again; raises `BadSubject` for what `escape_part` would not have written."""
    try:
        name = unquote_to_bytes(part).decode(errors="surrogatepass")
    except UnicodeError:  # also where the part itself is no text
        name = ""
    if not name or escape_part(name) != part:
        raise BadSubject(subject=part, problem="is no name as Tidelog writes it in a subject; escape it with % and hex")
    return name


def check_namespace(namespace: str) -> None:
    """One part of plain characters: clusters that share a NATS server differ in it."""
    if _NAMESPACE.fullmatch(namespace) is None:
        problem = "is no namespace; use 1 to 64 letters, digits, - and _"
        raise BadSubject(subject=namespace, problem=problem)


# --- subjects of replication ---------------------------------------------------------------------------


def partition_subject(namespace: str, channel: str, verb: Verb) -> str:
    """Where a follower of this channel asks, and its leader listens."""
    stream, partition = place_of(channel)
    return f"{namespace}.{escape_part(stream)}.{partition}.{verb.value}"


def notify_subject(namespace: str, node: str) -> str:
    """Where this node hears of new data."""
    return f"{namespace}.{_NOTIFY}.{escape_part(node)}"


def reply_subject(inbox: str, *, channel_id: int, request_id: int) -> str:
    """Where the answers to one request go; `inbox` is random, and of one connection."""
    return f"{inbox}.{channel_id}.{request_id}"


def parse_partition_subject(namespace: str, subject: str) -> PartitionSubject:
    """The channel and what is asked of it."""
    match subject.removeprefix(f"{namespace}.").split("."):
        case [stream, number, "replicate" | "offset" as verb] if subject.startswith(f"{namespace}."):
            partition = int(number) if _NUMBER.fullmatch(number) else -1
            return PartitionSubject(channel=checked_channel(unescape_part(stream), partition), verb=Verb(verb))
        case _:
            problem = f"is none of replication; those are {namespace}.<stream>.<partition>.replicate or .offset"
            raise BadSubject(subject=subject, problem=problem)


def parse_reply_subject(inbox: str, subject: str) -> ReplySubject:
    """Which request an answer is for."""
    match subject.removeprefix(f"{inbox}.").split("."):
        case [channel, request] if subject.startswith(f"{inbox}."):
            if _NUMBER.fullmatch(channel) and _NUMBER.fullmatch(request):
                numbers = int(channel), int(request)
                if not (numbers[0] | numbers[1]) >> _NUMBER_BITS:
                    return ReplySubject(*numbers)
    raise BadSubject(subject=subject, problem="is not where answers to this node's requests go")


# --- subjects that channels are attached to --------------------------------------------------------------


def check_attached_subject(subject: str, *, namespace: str) -> None:
    """Refuse in words what a channel cannot be fed from (CNS3)."""
    problem = subject_problem(subject, namespace=namespace)
    if problem is not None:
        raise BadSubject(subject=subject[:SUBJECT_BYTES_MAX], problem=problem)
