"""Raft's messages and entries to and from bytes: for the link between nodes, and for the log on disk.

A message is a fixed head for its kind, then what varies. Everything is little-endian; docs/formats/metadata.md has the
byte tables. `encode_message` gives buffers to be written one after the other: large data stays the object it was, so
the link can send it without a copy.

What comes in was written by others and is never trusted. Whatever is odd about it is a `BadMessage`.

CRC1  Nothing is allocated from a number that has not been compared with the bytes that are there.
CRC2  A decoded message encodes to the same bytes: there is one way to say a thing.
CRC3  Entries of an Append follow each other and the place they name; terms never fall, and none is above the message's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Final, TypeAlias

from tidelog.core.raft.members import MEMBERS_MAX, Members
from tidelog.core.raft.messages import (
    AppendAnswer,
    AppendEntries,
    Entry,
    EntryKind,
    Message,
    SnapshotAnswer,
    SnapshotChunk,
    SnapshotHead,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from tidelog.errors import BadMessage
from tidelog.units import MIB

Buffer: TypeAlias = bytes | bytearray | memoryview

MESSAGE_VERSION: Final = 1
ENTRY_VERSION: Final = 1
ENTRY_BYTES_MAX: Final = 15 * MIB
"""Of one entry's data. A block of the log on disk must have room for it."""
ENTRIES_MAX: Final = 1 << 16
"""Of one Append."""
NAME_BYTES_MAX: Final = 255
NUMBER_MAX: Final = 2**62
"""Indexes, terms, rounds and sizes stay below, so that sums of them still fit everywhere."""
_APART_BYTES: Final = 4096
"""Data from this size on stays a buffer of its own; below it, a copy costs less than one more buffer."""

VOTE_REQUEST, VOTE_ANSWER, APPEND, APPEND_ANSWER, SNAPSHOT_CHUNK, SNAPSHOT_ANSWER, TIMEOUT_NOW = range(1, 8)
_PRE: Final = 1
_FORCED: Final = 2
_YES: Final = 4
_FLAGS: Final = (0, _PRE | _FORCED, _YES | _PRE, 0, _YES, 0, 0, 0)

# Every message begins with version, kind, flags and a byte that is zero, then 4 bytes that are a count or zero.
_HEAD: Final = struct.Struct("<BBBxI")
_VOTE_REQUEST: Final = struct.Struct("<BBBxIQQQ")
_VOTE_ANSWER: Final = struct.Struct("<BBBxIQ")
_APPEND: Final = struct.Struct("<BBBxIQQQQQ")
_APPEND_ANSWER: Final = struct.Struct("<BBBxIQQQQQ")
_SNAPSHOT_CHUNK: Final = struct.Struct("<BBBxIQQQQ")
_CHUNK_REST: Final = struct.Struct("<II")
_SNAPSHOT_ANSWER: Final = struct.Struct("<BBBxIQQQQ")
_TIMEOUT_NOW: Final = _VOTE_ANSWER
_ENTRY: Final = struct.Struct("<BBHIQQ")
_SNAPSHOT_HEAD: Final = struct.Struct("<QQHxxxxxx")

ENTRY_HEAD_BYTES: Final = _ENTRY.size
# Looking a kind up by its number costs less than making an enum member.
_ENTRY_KINDS: Final = {int(kind): kind for kind in EntryKind}
_KIND_MEMBERS: Final = EntryKind.MEMBERS


# --- members ---------------------------------------------------------------------------------------


def encode_members(members: Members) -> bytes:
    """Two counts, then the names, each after its length."""
    assert len(members.all) <= MEMBERS_MAX, "more members than a group may have"
    for group in (members.voters, members.learners):
        assert list(group) == sorted(set(group)), "members are sorted and named once"
    parts = [bytes((len(members.voters), len(members.learners)))]
    for name in members.all:
        data = name.encode()
        assert 0 < len(data) <= NAME_BYTES_MAX, f"a member's name has 1 to {NAME_BYTES_MAX} bytes"
        parts += (bytes((len(data),)), data)
    return b"".join(parts)


def decode_members(data: Buffer) -> Members:
    """The members that fill `data` exactly."""
    data = bytes(data)
    if len(data) < 2:
        raise BadMessage(problem="a membership is shorter than its head")
    voters, learners = data[0], data[1]
    if voters + learners > MEMBERS_MAX:
        raise BadMessage(problem=f"{voters + learners} members are more than the {MEMBERS_MAX} there can be")
    names, position = [], 2
    for _ in range(voters + learners):
        end = position + 1 + data[position] if position < len(data) else len(data) + 1
        if end > len(data) or end == position + 1:
            raise BadMessage(problem="a member's name is empty or cut off")
        try:
            names.append(data[position + 1 : end].decode())
        except UnicodeDecodeError as error:
            raise BadMessage(problem="a member's name is not UTF-8") from error
        position = end
    if position != len(data):
        raise BadMessage(problem=f"{len(data) - position} bytes follow a membership")
    first, second = tuple(names[:voters]), tuple(names[voters:])
    if not (_rises(first) and _rises(second)) or len(set(names)) != len(names):
        raise BadMessage(problem="members are not sorted, or one is named twice")
    return Members(first, second)


def _rises(names: tuple[str, ...]) -> bool:
    return all(one < other for one, other in pairwise(names))


# --- entries ---------------------------------------------------------------------------------------


def encode_entry(entry: Entry) -> bytes:
    """One entry as it travels and as it lies in the log."""
    return b"".join(_entry_parts(entry))


def _entry_parts(entry: Entry) -> tuple[bytes, bytes]:
    """(head with members, data)."""
    members, data = entry.members, entry.data
    assert (members is not None) == (entry.kind is _KIND_MEMBERS), "a membership and its entry go together"
    assert len(data) <= ENTRY_BYTES_MAX, "the core refuses changes of this size"
    if members is None:
        return _ENTRY.pack(ENTRY_VERSION, entry.kind, 0, len(data), entry.index, entry.term), data
    packed = encode_members(members)
    head = _ENTRY.pack(ENTRY_VERSION, entry.kind, len(packed), len(data), entry.index, entry.term)
    return head + packed, data


def decode_entry(data: Buffer) -> Entry:
    """The entry that fills `data` exactly."""
    view = memoryview(data)
    entry, end = _entry_at(view, 0)
    if end != len(view):
        raise BadMessage(problem=f"{len(view) - end} bytes follow an entry")
    return entry


def _entry_at(view: memoryview, position: int) -> tuple[Entry, int]:
    body = position + ENTRY_HEAD_BYTES
    if body > len(view):
        raise BadMessage(problem="an entry is shorter than its head")
    version, number, members_bytes, data_bytes, index, term = _ENTRY.unpack_from(view, position)
    if version != ENTRY_VERSION:
        raise BadMessage(problem=f"entry version {version} is unknown; a newer Tidelog wrote it")
    kind = _ENTRY_KINDS.get(number)
    if kind is None:
        raise BadMessage(problem=f"entry kind {number} is unknown; a newer Tidelog wrote it")
    middle = body + members_bytes
    end = middle + data_bytes
    if data_bytes > ENTRY_BYTES_MAX or end > len(view):
        raise BadMessage(problem=f"an entry claims {data_bytes} bytes of data, more than there are or may be")
    if not 0 < index < NUMBER_MAX or not 0 < term < NUMBER_MAX:
        raise BadMessage(problem=f"an entry claims index {index} of term {term}")
    members = None
    if kind is _KIND_MEMBERS:
        members = decode_members(view[body:middle])
    elif members_bytes:
        raise BadMessage(problem="an entry that is no membership carries one")
    return Entry(index, term, kind, bytes(view[middle:end]), members), end


# --- snapshot heads --------------------------------------------------------------------------------


def encode_snapshot_head(head: SnapshotHead) -> bytes:
    packed = encode_members(head.members)
    return _SNAPSHOT_HEAD.pack(head.index, head.term, len(packed)) + packed


def decode_snapshot_head(data: Buffer) -> SnapshotHead:
    """The head that fills `data` exactly."""
    view = memoryview(data)
    if len(view) < _SNAPSHOT_HEAD.size:
        raise BadMessage(problem="the head of a snapshot is cut off")
    index, term, members_bytes = _SNAPSHOT_HEAD.unpack_from(view)
    if any(view[18:24]) or len(view) != _SNAPSHOT_HEAD.size + members_bytes:
        raise BadMessage(problem="the head of a snapshot has another length than it says")
    if index >= NUMBER_MAX or term >= NUMBER_MAX:
        raise BadMessage(problem=f"a snapshot claims index {index} of term {term}")
    return SnapshotHead(index, term, decode_members(view[_SNAPSHOT_HEAD.size :]))


# --- messages out ----------------------------------------------------------------------------------


def encode_message(message: Message) -> list[bytes]:
    """The message as buffers to be written one after the other."""
    version = MESSAGE_VERSION
    match message:
        case AppendEntries():
            return _encode_append(message)
        case AppendAnswer(term=term, round=number, index=index, rejected_index=rejected, hint_term=hint):
            flags = _YES if message.accepted else 0
            return [_APPEND_ANSWER.pack(version, APPEND_ANSWER, flags, 0, term, number, index, rejected, hint)]
        case VoteRequest(term=term, last_index=index, last_term=last_term):
            flags = (_PRE if message.pre else 0) | (_FORCED if message.forced else 0)
            return [_VOTE_REQUEST.pack(version, VOTE_REQUEST, flags, 0, term, index, last_term)]
        case VoteAnswer(term=term):
            flags = (_YES if message.granted else 0) | (_PRE if message.pre else 0)
            return [_VOTE_ANSWER.pack(version, VOTE_ANSWER, flags, 0, term)]
        case SnapshotChunk(term=term, round=number, size_bytes=size, offset=offset):
            packed = encode_snapshot_head(message.head)
            place = (len(packed), term, number, size, offset)
            head = _SNAPSHOT_CHUNK.pack(version, SNAPSHOT_CHUNK, 0, *place)
            sizes = _CHUNK_REST.pack(message.checksum, len(message.data))
            return [b"".join((head, sizes, packed)), message.data]
        case SnapshotAnswer(term=term, round=number, index=index, received_bytes=received):
            return [_SNAPSHOT_ANSWER.pack(version, SNAPSHOT_ANSWER, 0, 0, term, number, index, received)]
        case TimeoutNow(term=term):
            return [_TIMEOUT_NOW.pack(version, TIMEOUT_NOW, 0, 0, term)]


def _encode_append(message: AppendEntries) -> list[bytes]:
    entries = message.entries
    place = (message.term, message.previous_index, message.previous_term, message.commit, message.round)
    head = _APPEND.pack(MESSAGE_VERSION, APPEND, 0, len(entries), *place)
    if not entries:
        return [head]
    assert len(entries) <= ENTRIES_MAX, "the core bounds what one message carries"
    buffers: list[bytes] = []
    small = [head]
    for entry in entries:
        entry_head, data = _entry_parts(entry)
        small.append(entry_head)
        if len(data) < _APART_BYTES:
            small.append(data)
        else:
            buffers += (b"".join(small), data)
            small = []
    if small:
        buffers.append(b"".join(small))
    return buffers


# --- messages in -----------------------------------------------------------------------------------


def decode_message(data: Buffer) -> Message:
    """The message that fills `data` exactly, or `BadMessage`."""
    view = memoryview(data)
    if view.ndim != 1 or view.itemsize != 1:
        view = view.cast("B")
    if len(view) < _HEAD.size:
        raise BadMessage(problem="a Raft message is shorter than its head")
    version, kind, flags, count = _HEAD.unpack_from(view)
    if version != MESSAGE_VERSION:
        raise BadMessage(problem=f"Raft message version {version} is unknown; upgrade the older node")
    if not VOTE_REQUEST <= kind <= TIMEOUT_NOW:
        raise BadMessage(problem=f"Raft message kind {kind} is unknown")
    if flags & ~_FLAGS[kind] or view[3]:
        raise BadMessage(problem=f"a Raft message of kind {kind} has flags {flags}, which mean nothing there")
    layout, decode = _DECODERS[kind]
    if len(view) < layout.size or (kind not in (APPEND, SNAPSHOT_CHUNK) and (count or len(view) != layout.size)):
        raise BadMessage(problem=f"a Raft message of kind {kind} has {len(view)} bytes, which is not its length")
    numbers = layout.unpack_from(view)[4:]
    if max(numbers) >= NUMBER_MAX:
        raise BadMessage(problem=f"a Raft message claims {max(numbers)}, beyond every limit")
    return decode(view, flags, count, numbers)


def _decode_vote_request(view: memoryview, flags: int, count: int, numbers: tuple[int, ...]) -> VoteRequest:
    term, last_index, last_term = numbers
    pre, forced = bool(flags & _PRE), bool(flags & _FORCED)
    return VoteRequest(term=term, last_index=last_index, last_term=last_term, pre=pre, forced=forced)


def _decode_vote_answer(view: memoryview, flags: int, count: int, numbers: tuple[int, ...]) -> VoteAnswer:
    return VoteAnswer(term=numbers[0], granted=bool(flags & _YES), pre=bool(flags & _PRE))


def _decode_append(view: memoryview, flags: int, count: int, numbers: tuple[int, ...]) -> AppendEntries:
    term, previous_index, previous_term, commit, number = numbers
    position = _APPEND.size
    if count > ENTRIES_MAX or count * ENTRY_HEAD_BYTES > len(view) - position:
        raise BadMessage(problem=f"an Append claims {count} entries in {len(view)} bytes")
    if previous_term > term:
        raise BadMessage(problem=f"an Append of term {term} follows an entry of term {previous_term}")
    entries = []
    newest = previous_term
    for index in range(previous_index + 1, previous_index + 1 + count):
        entry, position = _entry_at(view, position)
        if entry.index != index or not newest <= entry.term <= term:
            raise BadMessage(problem=f"an Append holds index {entry.index} of term {entry.term} in place of {index}")
        newest = entry.term
        entries.append(entry)
    if position != len(view):
        raise BadMessage(problem=f"{len(view) - position} bytes follow the entries of an Append")
    return AppendEntries(
        term=term,
        previous_index=previous_index,
        previous_term=previous_term,
        entries=tuple(entries),
        commit=commit,
        round=number,
    )


def _decode_append_answer(view: memoryview, flags: int, count: int, numbers: tuple[int, ...]) -> AppendAnswer:
    term, number, index, rejected_index, hint_term = numbers
    return AppendAnswer(
        term=term,
        round=number,
        accepted=bool(flags & _YES),
        index=index,
        rejected_index=rejected_index,
        hint_term=hint_term,
    )


def _decode_snapshot_chunk(view: memoryview, flags: int, count: int, numbers: tuple[int, ...]) -> SnapshotChunk:
    term, number, size_bytes, offset = numbers
    start = _SNAPSHOT_CHUNK.size + _CHUNK_REST.size
    if start > len(view):
        raise BadMessage(problem="a chunk of a snapshot is shorter than its head")
    checksum, data_bytes = _CHUNK_REST.unpack_from(view, _SNAPSHOT_CHUNK.size)
    if start + count + data_bytes != len(view):
        raise BadMessage(problem=f"a chunk claims {count} and {data_bytes} bytes, which is not its length")
    head = decode_snapshot_head(view[start : start + count])
    data = view[start + count :]
    if offset + len(data) > size_bytes:
        raise BadMessage(problem=f"{len(data)} bytes at {offset} do not belong to a snapshot of {size_bytes}")
    return SnapshotChunk(
        term=term,
        round=number,
        head=head,
        size_bytes=size_bytes,
        checksum=checksum,
        offset=offset,
        data=bytes(data),
    )


def _decode_snapshot_answer(view: memoryview, flags: int, count: int, numbers: tuple[int, ...]) -> SnapshotAnswer:
    term, number, index, received_bytes = numbers
    return SnapshotAnswer(term=term, round=number, index=index, received_bytes=received_bytes)


def _decode_timeout_now(view: memoryview, flags: int, count: int, numbers: tuple[int, ...]) -> TimeoutNow:
    return TimeoutNow(term=numbers[0])


_Decoder: TypeAlias = Callable[[memoryview, int, int, tuple[int, ...]], Message]
_DECODERS: Final[dict[int, tuple[struct.Struct, _Decoder]]] = {
    VOTE_REQUEST: (_VOTE_REQUEST, _decode_vote_request),
    VOTE_ANSWER: (_VOTE_ANSWER, _decode_vote_answer),
    APPEND: (_APPEND, _decode_append),
    APPEND_ANSWER: (_APPEND_ANSWER, _decode_append_answer),
    SNAPSHOT_CHUNK: (_SNAPSHOT_CHUNK, _decode_snapshot_chunk),
    SNAPSHOT_ANSWER: (_SNAPSHOT_ANSWER, _decode_snapshot_answer),
    TIMEOUT_NOW: (_TIMEOUT_NOW, _decode_timeout_now),
}
