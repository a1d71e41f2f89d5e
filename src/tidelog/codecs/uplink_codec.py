"""The uplink's messages to and from the bytes of lplex.replication.v1.

Everything a Tidelog peer needs travels in fields above 100; an lplex peer's own shapes come out as
`LplexFrame` and `LplexBlock`, for the code that turns them into blocks. Numbers from the wire are checked
here: ranges must be ranges, counts must be bounded, or `BadMessage` says what was wrong. Blocks are
bytes on this level: parsing and checking them is the receiver's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from tidelog.codecs.proto import replication_pb2 as pb
from tidelog.core.uplink.messages import (
    BackfillAck,
    BackfillGone,
    Hello,
    LiveAck,
    LiveData,
    LiveStatus,
    Welcome,
)
from tidelog.errors import BadMessage

RANGES_MAX = 100_000
LINEAGE_BYTES = 16
BOOT_ID_BYTES_MAX = 64
BOOT_IDS_MAX = 10_000
ORPHANS_MAX = 1_000
SEQ_MAX = 2**63 - 1
"""The largest seq that a boat can use."""
_ADDRESS_CHARACTERS_MAX = 262
_MAKER_BYTES = 64

MessageT = TypeVar("MessageT", bound=Message)
Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class LplexFrame:
    """One frame of an lplex boat; seq 0 is a device seed, which has no place in the log."""

    seq: int
    time_us: int
    can_id: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LplexBlock:
    """One journal block of an lplex boat, as it lies in its file (lplex.md 2.6). Its numbers are claims."""

    base_seq: int
    base_time_us: int
    frame_count: int
    data: bytes
    compressed: bool
    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RawBlock:
    """A made block as it came: its bytes, not looked at yet."""

    data: bytes
    file_offset: int | None = None
    """Where it begins in its file on the boat, if the boat says so."""


LiveIn: TypeAlias = RawBlock | LiveStatus | LplexFrame
BackfillIn: TypeAlias = RawBlock | BackfillGone | LplexBlock


# --- Handshake -----------------------------------------------------------------------------------


def encode_hello(hello: Hello, *, instance: str) -> bytes:
    message = pb.HandshakeRequest(
        instance_id=instance,
        head_seq=hello.head,
        journal_bytes=hello.journal_bytes,
        lineage=hello.lineage or b"",
        lost=_to_ranges(hello.lost),
        void=_to_ranges(hello.void),
        life=hello.boot_id,
        sent_through=hello.sent_through,
        earlier=[pb.EarlierLife(life=boot_id, sent_through=through) for boot_id, through in hello.earlier],
        orphans=hello.orphans,
    )
    return message.SerializeToString()


def decode_hello(data: bytes) -> tuple[str, Hello]:
    """(instance id as claimed, the Hello)."""
    message = _parse(pb.HandshakeRequest(), data)
    if message.lineage and len(message.lineage) != LINEAGE_BYTES:
        raise BadMessage(problem=f"a lineage has {LINEAGE_BYTES} bytes, not {len(message.lineage)}")
    boot_ids = [message.life, *(part.life for part in message.earlier)]
    if len(boot_ids) > BOOT_IDS_MAX or max(map(len, boot_ids)) > BOOT_ID_BYTES_MAX:
        raise BadMessage(problem=f"at most {BOOT_IDS_MAX} boot ids of {BOOT_ID_BYTES_MAX} bytes are taken")
    if len(message.orphans) > ORPHANS_MAX or any(len(orphan) != LINEAGE_BYTES for orphan in message.orphans):
        raise BadMessage(problem=f"at most {ORPHANS_MAX} older lineages of {LINEAGE_BYTES} bytes are taken")
    return message.instance_id, Hello(
        head=_seq(message.head_seq),
        lineage=message.lineage or None,
        journal_bytes=message.journal_bytes,
        lost=_from_ranges(message.lost),
        void=_from_ranges(message.void),
        boot_id=message.life,
        sent_through=_seq(message.sent_through),
        earlier=tuple((part.life, _seq(part.sent_through)) for part in message.earlier),
        orphans=tuple(message.orphans),
    )


def encode_welcome(welcome: Welcome, *, leader: str = "") -> bytes:
    """`leader` is the address of the node that leads the boat's channel, for a boat that dialed another (U2)."""
    message = pb.HandshakeResponse(
        cursor=welcome.cursor,
        holes=_to_ranges(welcome.holes),
        live_start_from=welcome.live_start,
        known=welcome.known,
        session=welcome.session,
        rate_limit=welcome.rate_frames_per_s,
        rate_burst=welcome.burst_frames,
        fork=welcome.fork,
        orphan_cursors=[pb.LineageCursor(lineage=lineage, cursor=seq) for lineage, seq in welcome.orphan_cursors],
        leader=leader,
    )
    return message.SerializeToString()


def leader_in_welcome(data: bytes) -> str:
    """Where the boat had better dial; empty if nobody says so, or not in the form of an address."""
    leader = _parse(pb.HandshakeResponse(), data).leader
    return leader if ":" in leader and len(leader) <= _ADDRESS_CHARACTERS_MAX and leader.isascii() else ""


def decode_welcome(data: bytes, *, rate_frames_per_s: float, burst_frames: int) -> Welcome:
    """The limits given are used where the cloud, an lplex one, does not name its own."""
    message = _parse(pb.HandshakeResponse(), data)
    return Welcome(
        session=message.session,
        cursor=_seq(message.cursor),
        holes=_from_ranges(message.holes),
        live_start=_seq(message.live_start_from),
        known=message.known or message.cursor > 0,
        rate_frames_per_s=message.rate_limit if message.rate_limit > 0 else rate_frames_per_s,
        burst_frames=message.rate_burst or burst_frames,
        fork=message.fork,
        orphan_cursors=tuple((part.lineage, _seq(part.cursor)) for part in message.orphan_cursors),
    )


# --- Live ----------------------------------------------------------------------------------------


def encode_live(message: LiveData[Sequence[Buffer]] | LiveStatus | LplexFrame) -> bytes:
    """A block (as the buffers it consists of), a status, or a single frame for an lplex cloud."""
    match message:
        case LiveStatus():
            status = pb.LiveStatus(head_seq=message.head, journal_bytes=message.journal_bytes)
            return pb.LiveUpstream(status=status).SerializeToString()
        case LplexFrame():
            frame = pb.LiveFrame(
                seq=message.seq, timestamp_us=message.time_us, can_id=message.can_id, data=message.payload
            )
            return pb.LiveUpstream(frame=frame).SerializeToString()
        case LiveData():
            return pb.LiveUpstream(made_block=b"".join(message.block)).SerializeToString()


def decode_live(data: bytes, *, session: int) -> LiveIn:
    message = _parse(pb.LiveUpstream(), data)
    match message.WhichOneof("msg"):
        case "made_block":
            return _raw_block(message.made_block)
        case "status":
            status = message.status
            return LiveStatus(session=session, head=_seq(status.head_seq), journal_bytes=status.journal_bytes)
        case "frame":
            frame = message.frame
            return LplexFrame(seq=_seq(frame.seq), time_us=frame.timestamp_us, can_id=frame.can_id, payload=frame.data)
        case _:
            raise BadMessage(problem="a Live message holds neither frames nor a status")


def encode_live_ack(ack: LiveAck) -> bytes:
    message = pb.LiveDownstream(
        acked_through=ack.cursor,
        live_committed_through=ack.committed_through,
        holes=_to_ranges(ack.holes),
        statuses=ack.statuses,
    )
    return message.SerializeToString()


def decode_live_ack(data: bytes, *, session: int) -> LiveAck:
    message = _parse(pb.LiveDownstream(), data)
    return LiveAck(
        session=session,
        cursor=_seq(message.acked_through),
        committed_through=_seq(message.live_committed_through),
        holes=_from_ranges(message.holes),
        statuses=message.statuses if message.HasField("statuses") else None,
    )


# --- Backfill ------------------------------------------------------------------------------------


def encode_backfill(message: BackfillGone | LplexBlock) -> bytes:
    match message:
        case BackfillGone():
            gone = pb.SeqRange(start=message.seqs.start, end=message.seqs.stop)
            return pb.BackfillUpstream(gone=gone).SerializeToString()
        case LplexBlock():
            block = pb.Block(
                base_seq=message.base_seq,
                base_time_us=message.base_time_us,
                frame_count=message.frame_count,
                data=message.data,
                compressed=message.compressed,
                block_size=message.block_size,
            )
            return pb.BackfillUpstream(block=block).SerializeToString()


def encode_backfill_blocks(blocks: Iterable[Sequence[Buffer]], file_offsets: Sequence[int | None] = ()) -> bytes:
    """Journal blocks, each as the buffers it consists of, in one message: each message costs as much as many blocks."""
    known = [offset for offset in file_offsets if offset is not None]
    message = pb.BackfillUpstream(
        made_blocks=[b"".join(block) for block in blocks],
        file_offsets=known if len(known) == len(file_offsets) else (),
    )
    return message.SerializeToString()


def decode_backfill(data: bytes, *, session: int) -> list[BackfillIn]:
    """What came, in order; nothing for an empty message, which lplex sends and skips."""
    message = _parse(pb.BackfillUpstream(), data)
    found: list[BackfillIn] = _raw_blocks(message.made_blocks, message.file_offsets)
    if message.HasField("gone"):
        found.append(BackfillGone(session=session, seqs=_from_ranges([message.gone])[0]))
    if message.HasField("block"):
        block = message.block
        found.append(
            LplexBlock(
                base_seq=block.base_seq,
                base_time_us=block.base_time_us,
                frame_count=block.frame_count,
                data=block.data,
                compressed=block.compressed,
                block_size=block.block_size,
            )
        )
    return found


def encode_backfill_ack(ack: BackfillAck) -> bytes:
    message = pb.BackfillDownstream(
        continuous_through=ack.cursor, remaining=_to_ranges(ack.remaining), answered=ack.answered
    )
    return message.SerializeToString()


def decode_backfill_ack(data: bytes, *, session: int, answered: int) -> BackfillAck:
    """`answered` counts the answers of this stream, for a cloud that does not: lplex sends one per block."""
    message = _parse(pb.BackfillDownstream(), data)
    return BackfillAck(
        session=session,
        cursor=_seq(message.continuous_through),
        answered=message.answered or answered,
        remaining=_from_ranges(message.remaining),
    )


# --- numbers -------------------------------------------------------------------------------------


def _parse(message: MessageT, data: bytes) -> MessageT:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise BadMessage(problem=f"not a {message.DESCRIPTOR.name}: {error}") from error
    return message


def _raw_blocks(blocks: Sequence[bytes], file_offsets: Sequence[int]) -> list[BackfillIn]:
    if file_offsets and len(file_offsets) != len(blocks):
        raise BadMessage(
            problem=f"{len(file_offsets)} file offsets for {len(blocks)} blocks: send one for each, or none"
        )
    offsets: Sequence[int | None] = file_offsets or [None] * len(blocks)
    return [_raw_block(data, offset) for data, offset in zip(blocks, offsets, strict=True)]


def _raw_block(data: bytes, file_offset: int | None = None) -> RawBlock:
    if len(data) < _MAKER_BYTES:
        raise BadMessage(problem=f"a block has at least {_MAKER_BYTES} bytes, not {len(data)}")
    return RawBlock(data=data, file_offset=file_offset)


def _seq(number: int) -> int:
    if number > SEQ_MAX:
        raise BadMessage(problem=f"seq {number} is beyond 2^63: no boat counts that far")
    return number


def _to_ranges(ranges: Iterable[range]) -> list[pb.SeqRange]:
    return [pb.SeqRange(start=part.start, end=part.stop) for part in ranges]


def _from_ranges(ranges: Sequence[pb.SeqRange]) -> tuple[range, ...]:
    if len(ranges) > RANGES_MAX:
        raise BadMessage(problem=f"{len(ranges)} ranges in one message, at most {RANGES_MAX} are taken")
    found = tuple(range(_seq(part.start), _seq(part.end)) for part in ranges)
    if not all(found):
        raise BadMessage(problem="a range of seqs is empty or runs backwards")
    return found
