from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SeqRange(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class HandshakeRequest(_message.Message):
    __slots__ = ("instance_id", "head_seq", "journal_bytes", "lineage", "lost", "void", "life", "sent_through", "earlier", "orphans")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    HEAD_SEQ_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    VOID_FIELD_NUMBER: _ClassVar[int]
    LIFE_FIELD_NUMBER: _ClassVar[int]
    SENT_THROUGH_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    ORPHANS_FIELD_NUMBER: _ClassVar[int]
    instance_id: str
    head_seq: int
    journal_bytes: int
    lineage: bytes
    lost: _containers.RepeatedCompositeFieldContainer[SeqRange]
    void: _containers.RepeatedCompositeFieldContainer[SeqRange]
    life: bytes
    sent_through: int
    earlier: _containers.RepeatedCompositeFieldContainer[EarlierLife]
    orphans: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, instance_id: _Optional[str] = ..., head_seq: _Optional[int] = ..., journal_bytes: _Optional[int] = ..., lineage: _Optional[bytes] = ..., lost: _Optional[_Iterable[_Union[SeqRange, _Mapping]]] = ..., void: _Optional[_Iterable[_Union[SeqRange, _Mapping]]] = ..., life: _Optional[bytes] = ..., sent_through: _Optional[int] = ..., earlier: _Optional[_Iterable[_Union[EarlierLife, _Mapping]]] = ..., orphans: _Optional[_Iterable[bytes]] = ...) -> None: ...

class EarlierLife(_message.Message):
    __slots__ = ("life", "sent_through")
    LIFE_FIELD_NUMBER: _ClassVar[int]
    SENT_THROUGH_FIELD_NUMBER: _ClassVar[int]
    life: bytes
    sent_through: int
    def __init__(self, life: _Optional[bytes] = ..., sent_through: _Optional[int] = ...) -> None: ...

class HandshakeResponse(_message.Message):
    __slots__ = ("cursor", "holes", "live_start_from", "known", "session", "rate_limit", "rate_burst", "fork", "orphan_cursors", "leader")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    LIVE_START_FROM_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    RATE_BURST_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_CURSORS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    holes: _containers.RepeatedCompositeFieldContainer[SeqRange]
    live_start_from: int
    known: bool
    session: int
    rate_limit: float
    rate_burst: int
    fork: bool
    orphan_cursors: _containers.RepeatedCompositeFieldContainer[LineageCursor]
    leader: str
    def __init__(self, cursor: _Optional[int] = ..., holes: _Optional[_Iterable[_Union[SeqRange, _Mapping]]] = ..., live_start_from: _Optional[int] = ..., known: _Optional[bool] = ..., session: _Optional[int] = ..., rate_limit: _Optional[float] = ..., rate_burst: _Optional[int] = ..., fork: _Optional[bool] = ..., orphan_cursors: _Optional[_Iterable[_Union[LineageCursor, _Mapping]]] = ..., leader: _Optional[str] = ...) -> None: ...

class LineageCursor(_message.Message):
    __slots__ = ("lineage", "cursor")
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    lineage: bytes
    cursor: int
    def __init__(self, lineage: _Optional[bytes] = ..., cursor: _Optional[int] = ...) -> None: ...

class LiveUpstream(_message.Message):
    __slots__ = ("frame", "status", "made_block")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MADE_BLOCK_FIELD_NUMBER: _ClassVar[int]
    frame: LiveFrame
    status: LiveStatus
    made_block: bytes
    def __init__(self, frame: _Optional[_Union[LiveFrame, _Mapping]] = ..., status: _Optional[_Union[LiveStatus, _Mapping]] = ..., made_block: _Optional[bytes] = ...) -> None: ...

class LiveFrame(_message.Message):
    __slots__ = ("seq", "timestamp_us", "can_id", "data")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    CAN_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    seq: int
    timestamp_us: int
    can_id: int
    data: bytes
    def __init__(self, seq: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., can_id: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class LiveStatus(_message.Message):
    __slots__ = ("head_seq", "journal_bytes")
    HEAD_SEQ_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    head_seq: int
    journal_bytes: int
    def __init__(self, head_seq: _Optional[int] = ..., journal_bytes: _Optional[int] = ...) -> None: ...

class LiveDownstream(_message.Message):
    __slots__ = ("acked_through", "live_committed_through", "holes", "statuses")
    ACKED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    LIVE_COMMITTED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    HOLES_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    acked_through: int
    live_committed_through: int
    holes: _containers.RepeatedCompositeFieldContainer[SeqRange]
    statuses: int
    def __init__(self, acked_through: _Optional[int] = ..., live_committed_through: _Optional[int] = ..., holes: _Optional[_Iterable[_Union[SeqRange, _Mapping]]] = ..., statuses: _Optional[int] = ...) -> None: ...

class BackfillUpstream(_message.Message):
    __slots__ = ("block", "made_blocks", "gone", "file_offsets")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    MADE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    FILE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    block: Block
    made_blocks: _containers.RepeatedScalarFieldContainer[bytes]
    gone: SeqRange
    file_offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, block: _Optional[_Union[Block, _Mapping]] = ..., made_blocks: _Optional[_Iterable[bytes]] = ..., gone: _Optional[_Union[SeqRange, _Mapping]] = ..., file_offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class Block(_message.Message):
    __slots__ = ("base_seq", "base_time_us", "frame_count", "data", "compressed", "block_size")
    BASE_SEQ_FIELD_NUMBER: _ClassVar[int]
    BASE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    FRAME_COUNT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    COMPRESSED_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    base_seq: int
    base_time_us: int
    frame_count: int
    data: bytes
    compressed: bool
    block_size: int
    def __init__(self, base_seq: _Optional[int] = ..., base_time_us: _Optional[int] = ..., frame_count: _Optional[int] = ..., data: _Optional[bytes] = ..., compressed: _Optional[bool] = ..., block_size: _Optional[int] = ...) -> None: ...

class BackfillDownstream(_message.Message):
    __slots__ = ("continuous_through", "remaining", "answered")
    CONTINUOUS_THROUGH_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    continuous_through: int
    remaining: _containers.RepeatedCompositeFieldContainer[SeqRange]
    answered: int
    def __init__(self, continuous_through: _Optional[int] = ..., remaining: _Optional[_Iterable[_Union[SeqRange, _Mapping]]] = ..., answered: _Optional[int] = ...) -> None: ...
