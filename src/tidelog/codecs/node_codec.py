"""What nodes say about the metadata, to and from the bodies of the link: docs/protocols/node.md has the table.

Raft messages and liveness have codecs of their own; here they get the link kind under which they travel, and the few
messages of founding and registration their JSON. Decoding is strict: anything odd is `BadMessage`, and nothing of it
counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any, Final, get_args

from tidelog.codecs.liveness_codec import MESSAGES_MAX, decode_liveness, encode_liveness
from tidelog.codecs.raft_codec import NUMBER_MAX, decode_message, encode_message
from tidelog.codecs.replication_codec import REPLICATION, decode_replication, encode_replication
from tidelog.core.catalog import RegisterNode, decode_change, encode_change
from tidelog.core.liveness import Heartbeat, RenewSession, SessionRefused, SessionRenewed
from tidelog.core.node_messages import ForMember, Here, Judged, NodeMessage, Register, RegisterRefused, Standing, Who
from tidelog.core.replication.messages import ReplicationMessage
from tidelog.errors import BadMessage, LogError
from tidelog.pki.identity import is_name
from tidelog.transports.link.frames import Buffers

# One-way messages.
RAFT: Final = 0x0001
LIVENESS: Final = 0x0002
NODE: Final = 0x0003
# Requests.
PROPOSE: Final = 0x0101
READ_INDEX: Final = 0x0102
READ: Final = 0x0103
STATUS: Final = 0x0104
TRANSFER: Final = 0x0105

_MEMBER_BYTES_MAX: Final = 255
_TEXT_MAX: Final = 4_096
_CLUSTER_BYTES: Final = 16
_STANDING_FIELDS: Final = {one.name for one in fields(Standing)}
LIVENESS_TYPES: Final = (Heartbeat, RenewSession, SessionRefused, SessionRenewed)
REPLICATION_TYPES: Final = get_args(ReplicationMessage)


def encode_node_messages(messages: Sequence[NodeMessage]) -> list[tuple[int, Buffers]]:
    """(kind, body) for the link, in order; what liveness has to say goes in one body."""
    encoded: list[tuple[int, Buffers]] = []
    replication = [message for message in messages if isinstance(message, REPLICATION_TYPES)]
    if replication:
        encoded += encode_replication(replication)
        if len(replication) == len(messages):
            return encoded
    liveness = [message for message in messages if isinstance(message, LIVENESS_TYPES)]
    for start in range(0, len(liveness), MESSAGES_MAX):
        encoded.append((LIVENESS, [encode_liveness(liveness[start : start + MESSAGES_MAX])]))
    for message in messages:
        if isinstance(message, ForMember):
            names = _name_bytes(message.sender) + _name_bytes(message.target)
            encoded.append((RAFT, [names, *encode_message(message.message)]))
        elif not isinstance(message, LIVENESS_TYPES) and not isinstance(message, REPLICATION_TYPES):
            encoded.append((NODE, [json.dumps(_plain(message), separators=(",", ":")).encode()]))
    return encoded


def _name_bytes(member: str) -> bytes:
    name = member.encode("ascii")
    assert len(name) <= _MEMBER_BYTES_MAX
    return bytes([len(name)]) + name


def _plain(message: NodeMessage) -> dict[str, Any]:
    match message:
        case Who():
            return {"say": "who"}
        case Here():
            return {"say": "here", "cluster": message.cluster.hex(), "leader": message.leader}
        case Register():
            return {"say": "register", "change": encode_change(message.change).decode()}
        case RegisterRefused():
            return {"say": "refused", "reason": message.reason[:_TEXT_MAX], "incarnation": message.incarnation}
        case Standing() | Judged():
            return {"say": "standing" if isinstance(message, Standing) else "judged", **asdict(message)}
        case _:
            raise AssertionError(f"{message} has a codec of its own")


def decode_node_messages(kind: int, body: memoryview) -> Sequence[NodeMessage]:
    """The messages in one body of the link, of kind RAFT, LIVENESS, NODE or REPLICATION."""
    if kind == REPLICATION:
        return decode_replication(body)
    if kind == LIVENESS:
        return decode_liveness(body)
    if kind == RAFT:
        sender, rest = _take_name(body)
        target, rest = _take_name(rest)
        return [ForMember(sender, target, decode_message(rest))]
    if kind == NODE:
        return [_decode_plain(bytes(body))]
    raise BadMessage(problem=f"no message has kind {kind:#06x}")


def _take_name(body: memoryview) -> tuple[str, memoryview]:
    if not body or len(body) < 1 + body[0]:
        raise BadMessage(problem="a Raft message ends within the names of its members")
    return _member(bytes(body[1 : 1 + body[0]])), body[1 + body[0] :]


@lru_cache(maxsize=256)
def _member(name: bytes) -> str:
    """The same few names come with every message."""
    node, slash, disk = name.decode("latin-1").partition("/")
    if not slash or not is_name(node) or not is_name(disk):
        raise BadMessage(problem="a Raft message names a member that cannot be one")
    return f"{node}/{disk}"


def _decode_plain(data: bytes) -> NodeMessage:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadMessage(problem=f"a node's message is no JSON: {error}") from error
    match value:
        case {"say": "who", **rest} if not rest:
            return Who()
        case {"say": "here", "cluster": str(cluster), "leader": (str() | None) as leader, **rest} if not rest:
            return Here(cluster=_cluster(cluster), leader=_node(leader))
        case {"say": "register", "change": str(text), **rest} if not rest:
            return Register(_register(text))
        case {"say": "refused", "reason": str(reason), "incarnation": int(incarnation), **rest} if not rest:
            if type(incarnation) is not int or not 0 <= incarnation < 1 << 63:
                raise BadMessage(problem="an incarnation is out of range")
            return RegisterRefused(reason=reason[:_TEXT_MAX], incarnation=incarnation)
        case {"say": "standing", **rest}:
            return _standing({str(name): part for name, part in rest.items()})
        case {"say": "judged", "member": str(member), "process": str(process), "asks": bool(asks), **rest}:
            problem = rest.pop("problem", None)
            if rest or not isinstance(problem, str):
                raise BadMessage(problem="an answer about a member cannot be read")
            member = _member(member.encode("utf-8", "replace"))
            return Judged(member=member, process=process[:_TEXT_MAX], asks=asks, problem=problem[:_TEXT_MAX])
        case _:
            raise BadMessage(problem="a node says what this software does not know")


def _standing(value: dict[str, Any]) -> Standing:
    if value.keys() != _STANDING_FIELDS:
        raise BadMessage(problem="a member's standing has other fields than it should")
    for name in ("sequence", "term", "last_index", "held_index", "committed", "incarnation"):
        number = value[name]
        if number is None and name == "incarnation":
            continue
        if type(number) is not int or not 0 <= number < NUMBER_MAX:
            raise BadMessage(problem=f"{name} of a member's standing is out of range")
    if not value["committed"] <= value["held_index"] <= value["last_index"]:
        raise BadMessage(problem="a member's standing promises entries that it does not hold")
    member, process, asks = value["member"], value["process"], value["asks"]
    if not isinstance(member, str) or not isinstance(process, str) or type(asks) is not bool:
        raise BadMessage(problem="a member's standing cannot be read")
    names = {"member": _member(member.encode("utf-8", "replace")), "process": process[:_TEXT_MAX]}
    return Standing(**{**value, **names})


def _cluster(text: str) -> bytes:
    try:
        cluster = bytes.fromhex(text)
    except ValueError:
        cluster = b"?"
    if len(cluster) not in (0, _CLUSTER_BYTES):
        raise BadMessage(problem=f"a cluster id has {_CLUSTER_BYTES} bytes or none")
    return cluster


def _node(leader: str | None) -> str | None:
    if leader is not None and not is_name(leader):
        raise BadMessage(problem="a leader's name cannot be one")
    return leader


def _register(text: str) -> RegisterNode:
    try:
        change = decode_change(text.encode())
    except LogError as error:
        raise BadMessage(problem=f"a registration cannot be read: {error}") from error
    if not isinstance(change, RegisterNode):
        raise BadMessage(problem="a registration holds another change")
    return change
