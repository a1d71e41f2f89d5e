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
from itertools import pairwise
from typing import Final, TypeAlias

from tidelog.codecs.layout import Layout
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
"""The most bytes of one entry's data. A block of the log on disk must have room for it."""
ENTRIES_MAX: Final = 1 << 16
"""The most bytes of one Append."""
NAME_BYTES_MAX: Final = 255
NUMBER_MAX: Final = 2**62
"""Indexes, terms, rounds and sizes stay below, so that sums of them still fit everywhere."""
_APART_BYTES: Final = 4096
"""Data from this size on stays a buffer of its own; below it, a copy costs less than one more buffer."""

VOTE_REQUEST, VOTE_ANSWER, APPEND, APPEND_ANSWER, SNAPSHOT_CHUNK, SNAPSHOT_ANSWER, TIMEOUT_NOW = range(1, 8)
_PRE: Final = 1
_FORCED: Final = 2
_YES: Final = 4
_HEAD_SHAPE: Final = "BBBxI"
"""Every message begins with version, kind, flags and a byte that is zero, then 4 bytes that are a count or zero."""
_HEAD: Final = struct.Struct(f"<{_HEAD_SHAPE}")
_APPEND: Final = Layout(AppendEntries, _HEAD_SHAPE, "term", "previous_index", "previous_term", "commit", "round")
_CHUNK: Final = Layout(SnapshotChunk, _HEAD_SHAPE, "term", "round", "size_bytes", "offset")
_LAYOUTS: Final = {
    VOTE_REQUEST: Layout(
        VoteRequest, _HEAD_SHAPE, "term", "last_index", "last_term", flags={"pre": _PRE, "forced": _FORCED}
    ),
    VOTE_ANSWER: Layout(VoteAnswer, _HEAD_SHAPE, "term", flags={"granted": _YES, "pre": _PRE}),
    APPEND: _APPEND,
    APPEND_ANSWER: Layout(
        AppendAnswer,
        _HEAD_SHAPE,
        *("term", "round", "index", "rejected_index", "hint_term"),
        flags={"accepted": _YES},
    ),
    SNAPSHOT_CHUNK: _CHUNK,
    SNAPSHOT_ANSWER: Layout(SnapshotAnswer, _HEAD_SHAPE, "term", "round", "index", "received_bytes"),
    TIMEOUT_NOW: Layout(TimeoutNow, _HEAD_SHAPE, "term"),
}
_KINDS: Final = {layout.message: kind for kind, layout in _LAYOUTS.items()}
_CHUNK_REST: Final = struct.Struct("<II")
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
    kind = _KINDS[type(message)]
    match message:
        case AppendEntries():
            return _encode_append(message)
        case SnapshotChunk():
            packed = encode_snapshot_head(message.head)
            head = _CHUNK.pack(message, MESSAGE_VERSION, kind, 0, len(packed))
            sizes = _CHUNK_REST.pack(message.checksum, len(message.data))
            return [b"".join((head, sizes, packed)), message.data]
        case _:
            layout = _LAYOUTS[kind]
            return [layout.pack(message, MESSAGE_VERSION, kind, layout.flags_of(message), 0)]


def _encode_append(message: AppendEntries) -> list[bytes]:
    entries = message.entries
    head = _APPEND.pack(message, MESSAGE_VERSION, APPEND, 0, len(entries))
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
    layout = _LAYOUTS.get(kind)
    if layout is None:
        raise BadMessage(problem=f"Raft message kind {kind} is unknown")
    if flags & ~layout.flags_known or view[3]:
        raise BadMessage(problem=f"a Raft message of kind {kind} has flags {flags}, which mean nothing there")
    if len(view) < layout.size or (kind not in (APPEND, SNAPSHOT_CHUNK) and (count or len(view) != layout.size)):
        raise BadMessage(problem=f"a Raft message of kind {kind} has {len(view)} bytes, which is not its length")
    numbers = layout.struct.unpack_from(view)[4:]
    if max(numbers) >= NUMBER_MAX:
        raise BadMessage(problem=f"a Raft message claims {max(numbers)}, beyond every limit")
    if kind == APPEND:
        return _decode_append(view, count, numbers)
    if kind == SNAPSHOT_CHUNK:
        return _decode_snapshot_chunk(view, count, numbers)
    message: Message = layout.message(**layout.fields(numbers, flags))
    return message


def _decode_append(view: memoryview, count: int, numbers: tuple[int, ...]) -> AppendEntries:
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


def _decode_snapshot_chunk(view: memoryview, count: int, numbers: tuple[int, ...]) -> SnapshotChunk:
    start = _CHUNK.size + _CHUNK_REST.size
    if start > len(view):
        raise BadMessage(problem="a chunk of a snapshot is shorter than its head")
    checksum, data_bytes = _CHUNK_REST.unpack_from(view, _CHUNK.size)
    if start + count + data_bytes != len(view):
        raise BadMessage(problem=f"a chunk claims {count} and {data_bytes} bytes, which is not its length")
    head = decode_snapshot_head(view[start : start + count])
    data = view[start + count :]
    chunk = SnapshotChunk(head=head, checksum=checksum, data=bytes(data), **_CHUNK.fields(numbers))
    if chunk.offset + len(data) > chunk.size_bytes:
        raise BadMessage(
            problem=f"{len(data)} bytes at {chunk.offset} do not belong to a snapshot of {chunk.size_bytes}"
        )
    return chunk
