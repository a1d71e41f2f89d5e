from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReplicationRequest(_message.Message):
    __slots__ = ("replicaID", "offset", "leaderEpoch", "cluster", "channelID", "requestID", "lastEpoch", "heldEnd", "committedEnd", "incarnation", "channelEpoch", "chunkBytesMax", "again")
    REPLICAID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    CHANNELID_FIELD_NUMBER: _ClassVar[int]
    REQUESTID_FIELD_NUMBER: _ClassVar[int]
    LASTEPOCH_FIELD_NUMBER: _ClassVar[int]
    HELDEND_FIELD_NUMBER: _ClassVar[int]
    COMMITTEDEND_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CHANNELEPOCH_FIELD_NUMBER: _ClassVar[int]
    CHUNKBYTESMAX_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    replicaID: str
    offset: int
    leaderEpoch: int
    cluster: bytes
    channelID: int
    requestID: int
    lastEpoch: int
    heldEnd: int
    committedEnd: int
    incarnation: int
    channelEpoch: int
    chunkBytesMax: int
    again: bool
    def __init__(self, replicaID: _Optional[str] = ..., offset: _Optional[int] = ..., leaderEpoch: _Optional[int] = ..., cluster: _Optional[bytes] = ..., channelID: _Optional[int] = ..., requestID: _Optional[int] = ..., lastEpoch: _Optional[int] = ..., heldEnd: _Optional[int] = ..., committedEnd: _Optional[int] = ..., incarnation: _Optional[int] = ..., channelEpoch: _Optional[int] = ..., chunkBytesMax: _Optional[int] = ..., again: _Optional[bool] = ...) -> None: ...

class LeaderEpochOffsetRequest(_message.Message):
    __slots__ = ("leaderEpoch", "request")
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    leaderEpoch: int
    request: ReplicationRequest
    def __init__(self, leaderEpoch: _Optional[int] = ..., request: _Optional[_Union[ReplicationRequest, _Mapping]] = ...) -> None: ...

class LeaderEpochOffsetResponse(_message.Message):
    __slots__ = ("endOffset", "cluster", "channelID", "requestID", "leader", "leaderEpoch", "epoch", "logStart", "detail")
    ENDOFFSET_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    CHANNELID_FIELD_NUMBER: _ClassVar[int]
    REQUESTID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOGSTART_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    endOffset: int
    cluster: bytes
    channelID: int
    requestID: int
    leader: str
    leaderEpoch: int
    epoch: int
    logStart: int
    detail: str
    def __init__(self, endOffset: _Optional[int] = ..., cluster: _Optional[bytes] = ..., channelID: _Optional[int] = ..., requestID: _Optional[int] = ..., leader: _Optional[str] = ..., leaderEpoch: _Optional[int] = ..., epoch: _Optional[int] = ..., logStart: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class PartitionNotification(_message.Message):
    __slots__ = ("stream", "partition", "cluster", "channelID", "leader", "leaderEpoch")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    CHANNELID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LEADEREPOCH_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    cluster: bytes
    channelID: int
    leader: str
    leaderEpoch: int
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., cluster: _Optional[bytes] = ..., channelID: _Optional[int] = ..., leader: _Optional[str] = ..., leaderEpoch: _Optional[int] = ...) -> None: ...

class ReplicationAnswer(_message.Message):
    __slots__ = ("cluster", "channelID", "requestID", "leader", "logStart", "logEnd", "firstOffset", "dataBytes", "part", "parts", "error", "retryAfterMs", "detail")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    CHANNELID_FIELD_NUMBER: _ClassVar[int]
    REQUESTID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    LOGSTART_FIELD_NUMBER: _ClassVar[int]
    LOGEND_FIELD_NUMBER: _ClassVar[int]
    FIRSTOFFSET_FIELD_NUMBER: _ClassVar[int]
    DATABYTES_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RETRYAFTERMS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    cluster: bytes
    channelID: int
    requestID: int
    leader: str
    logStart: int
    logEnd: int
    firstOffset: int
    dataBytes: int
    part: int
    parts: int
    error: int
    retryAfterMs: int
    detail: str
    def __init__(self, cluster: _Optional[bytes] = ..., channelID: _Optional[int] = ..., requestID: _Optional[int] = ..., leader: _Optional[str] = ..., logStart: _Optional[int] = ..., logEnd: _Optional[int] = ..., firstOffset: _Optional[int] = ..., dataBytes: _Optional[int] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., error: _Optional[int] = ..., retryAfterMs: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...
