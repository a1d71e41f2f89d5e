"""Control records: facts about a log that are stored in the log.

Folds (cursor, holes, lost ranges, lineages, epochs) must be computable from the log alone (F1), so
the facts that are not data are records too. They take offsets; readers skip them. A control block
is a message block in shape: the key names the type, the value is JSON with sorted keys, which is
easy to inspect and may grow fields that older readers ignore.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Final, Self

from tidelog.blocks.block import MadeBlock, make_block
from tidelog.blocks.header import DEFAULT_LIMITS, BlockKind, BlockLimits, Buffer, Maker
from tidelog.blocks.messages import Message, decode_messages, encode_messages
from tidelog.errors import BlockCorrupt

_FIELD_TYPES: Final[dict[str, type]] = {"int": int, "str": str, "dict[str, Any]": dict}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRecord:
    """Base of the control records. Lineages are 32 hex digits; ranges are half-open."""

    type_name: ClassVar[str] = ""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        try:
            loaded = json.loads(text)
            known = {item.name: loaded[item.name] for item in fields(cls) if item.name in loaded}
            record = cls(**known)
        # Deeply nested brackets exhaust the parser's stack.
        except (ValueError, TypeError, RecursionError) as error:
            raise BlockCorrupt(problem=f"a {cls.type_name} record cannot be read: {error}") from error
        for item in fields(cls):
            if type(getattr(record, item.name)) is not _FIELD_TYPES[str(item.type)]:
                raise BlockCorrupt(problem=f"{item.name} of a {cls.type_name} record is not of type {item.type}")
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochStarted(ControlRecord):
    """The first record of every leader epoch."""

    type_name = "epoch-started"
    epoch: int
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageOpened(ControlRecord):
    """A journal (or a cloud, on a boat's behalf) began a new lineage."""

    type_name = "lineage-opened"
    lineage: str
    reason: str = ""
    previous: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageClosed(ControlRecord):
    """All blocks of an older run of an lplex boat have come; the boat is not asked for more of it."""

    type_name = "lineage-closed"
    lineage: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened(ControlRecord):
    """A boat said hello: its instance, lineage and newest seq."""

    type_name = "session-opened"
    instance: str
    lineage: str
    head: int
    session: int = 0
    life: str = ""
    """The boot id of the boat; empty where the boat sends none, or was told to fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeLost(ControlRecord):
    """Seqs that existed and can no longer be had."""

    type_name = "range-lost"
    lineage: str
    start: int
    end: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeVoid(ControlRecord):
    """Seqs that were leased and never issued (B6)."""

    type_name = "range-void"
    lineage: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldSnapshot(ControlRecord):
    """The state of all folds at this offset; the log start never passes the last committed one (F3)."""

    type_name = "fold-snapshot"
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorMoved(ControlRecord):
    """A reader moved its named cursor to this offset; below 0 the cursor was deleted. Retention respects it (R12)."""

    type_name = "cursor-moved"
    name: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSnapshot(ControlRecord):
    """Producers and cursors of a channel at this offset, so that what came before may be trimmed (F3)."""

    type_name = "channel-snapshot"
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationEventNoted(ControlRecord):
    """Something that happened between a boat and the cluster which no other record says."""

    type_name = "replication-event"
    time_us: int
    kind: str
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownControl(ControlRecord):
    """A record of a type that only a newer Tidelog knows, kept unchanged."""

    type_name = "unknown"
    name: str
    text: str


_TYPES: Final[dict[bytes, type[ControlRecord]]] = {
    cls.type_name.encode(): cls
    for cls in (
        EpochStarted,
        LineageOpened,
        LineageClosed,
        SessionOpened,
        RangeLost,
        RangeVoid,
        FoldSnapshot,
        CursorMoved,
        ChannelSnapshot,
        ReplicationEventNoted,
    )
}


def encode_control(
    records: Sequence[ControlRecord], *, time_us: int, limits: BlockLimits = DEFAULT_LIMITS
) -> MadeBlock:
    shaped = encode_messages(
        [Message(time_us=time_us, key=record.type_name.encode(), value=record.to_json()) for record in records],
        limits=limits,
    )
    raw = memoryview(shaped.body)[: shaped.maker.stored_bytes]
    return make_block(
        raw.tobytes(),
        kind=BlockKind.CONTROL,
        form=shaped.maker.form,
        record_count=len(records),
        time_min_us=time_us,
        time_max_us=time_us,
        limits=limits,
    )


def decode_control(maker: Maker, raw: Buffer) -> list[ControlRecord]:
    records: list[ControlRecord] = []
    for message in decode_messages(maker, raw).rows():
        name, text = message.key or b"", message.value or b""
        known = _TYPES.get(name)
        if known is None:
            records.append(UnknownControl(name=name.decode("utf-8", "replace"), text=text.decode("utf-8", "replace")))
        else:
            records.append(known.from_json(text))
    return records
