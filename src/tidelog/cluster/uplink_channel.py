"""A boat's channel on its leader: the uplink receiver and the log it feeds.

Assembles the receiver core with a log's blocks; still no I/O of its own. What is to be appended comes
out as `LogAppend`s for whoever commits (a `Committer` in a node, the simulator's own hand), who then
calls `committed`. Blocks are checked here before they count: kind, lineage, seqs; a block that does
not decode is refused and fills no hole, and neither does one that has other frames than the log under a seq (F6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.control import (
    ControlRecord,
    FoldSnapshot,
    LineageOpened,
    RangeLost,
    RangeVoid,
    SessionOpened,
    decode_control,
    encode_control,
)
from tidelog.blocks.decode import check_block_frames, decode_block_frames
from tidelog.blocks.header import DEFAULT_LIMITS, BlockKind, BlockLimits, Path
from tidelog.core.uplink.fold import ChannelFold
from tidelog.core.uplink.messages import (
    BackfillData,
    BackfillDone,
    BackfillGone,
    Hello,
    LiveData,
    LiveStatus,
    Refused,
    ToBoat,
    ToCloud,
)
from tidelog.core.uplink.receiver import (
    Append,
    DeclareLost,
    DeclareVoid,
    Effect,
    Fact,
    Note,
    OpenLineage,
    OpenSession,
    ReceiverLimits,
    Reply,
    UplinkReceiver,
    Via,
    apply_fact,
)
from tidelog.errors import BadBlock, BlockCorrupt, DiskError, ForeignLineage, LogError
from tidelog.storage.log import Log

_OVERLAPS_COMPARED = 8

Held: TypeAlias = Callable[[bytes, int], Block | None]
"""The committed block of a lineage in which this seq counts, if it can be read."""

FRAME_KINDS: Final = frozenset({BlockKind.FRAMES, BlockKind.FOREIGN})
"""What boats send. A channel may hold messages of clients too, whose seqs are no boat's."""
_PATHS = {Via.LIVE: Path.LIVE, Via.BACKFILL: Path.BACKFILL}


@dataclass(frozen=True, slots=True)
class LogAppend:
    """Append this to the channel's log, in order."""

    made: MadeBlock
    windows: tuple[range, ...] = ()
    path: Path = Path.UNKNOWN
    frames: FrameColumns | None = None
    """Its frames, all of them: it was decoded to be checked anyway."""
    is_own: bool = False
    """Of the node's own (an event): the receiver does not count it in `committed`."""


Outcome: TypeAlias = tuple[list[LogAppend], list[ToBoat]]


class UplinkChannel:
    def __init__(
        self,
        *,
        instance: str,
        fold: ChannelFold,
        limits: ReceiverLimits,
        held: Held,
        block_limits: BlockLimits = DEFAULT_LIMITS,
    ) -> None:
        self.instance = instance
        self._held = held
        self.receiver: UplinkReceiver[MadeBlock] = UplinkReceiver(fold=fold, limits=limits)
        self._block_limits = block_limits

    def receive(
        self, message: ToCloud[MadeBlock], *, new_lineage: bytes, now_ms: int, now_us: int | None = None
    ) -> Outcome:
        """Take one message. A refusal is an answer, changes nothing, and ends the session."""
        try:
            frames = self._checked_frames(message)
            effects = self._effects(message, new_lineage, now_ms)
            return self._split(effects, 1000 * now_ms if now_us is None else now_us, frames)
        except LogError as error:
            session = 0 if isinstance(message, Hello) else message.session
            return [], [Refused(session=session, code=error.code, detail=str(error))]

    def _effects(self, message: ToCloud[MadeBlock], new_lineage: bytes, now_ms: int) -> list[Effect[MadeBlock]]:
        receiver = self.receiver
        match message:
            case Hello():
                return receiver.hello(message, new_lineage=new_lineage, now_ms=now_ms)
            case LiveData():
                return receiver.live(message, now_ms=now_ms)
            case BackfillData():
                return receiver.backfill(message)
            case BackfillGone():
                return receiver.gone(message)
            case BackfillDone():
                return receiver.backfill_done(message.session)
            case LiveStatus():
                receiver.status(message)
                return []

    def _checked_frames(self, message: ToCloud[MadeBlock]) -> FrameColumns | None:
        """The frames that came. Claims are compared with the bytes: a lying count or a damaged body fills no hole."""
        if not isinstance(message, LiveData | BackfillData):
            return None
        self.receiver.check_session(message.session)
        block, seqs = message.block, message.seqs
        maker = block.maker
        if maker.kind not in FRAME_KINDS or maker.seqs != seqs or not seqs:
            raise BlockCorrupt(problem=f"a block of kind {maker.kind} does not hold seqs [{seqs.start}, {seqs.stop})")
        lineage = self.receiver.lineage
        # Of foreign blocks too: the fold over the log knows the lineage of a block from its producer alone.
        if lineage is not None and maker.producer != lineage:
            raise ForeignLineage(expected=lineage.hex(), got=maker.producer.hex())
        overlaps = self.receiver.held_in(seqs)[-_OVERLAPS_COMPARED:]
        try:
            if isinstance(message, BackfillData) and not overlaps:
                check_block_frames(block, self._block_limits)
                return None  # nobody needs them now, and putting them in order is most of the price
            frames = decode_block_frames(block, self._block_limits)
        except BadBlock as error:
            raise BlockCorrupt(problem=f"the block does not decode: {error.problem}") from error
        for part in overlaps:
            self._compare(frames, seqs, part.stop - 1)
        return frames

    def _compare(self, frames: FrameColumns, seqs: range, seq: int) -> None:
        """F6: the newest frame that both have must be the same one. Two histories that parted stay apart, so it tells
        for all those before it; the rest of the stored block is compared along."""
        stored = self._held(self.receiver.lineage or b"", seq)
        if stored is None:
            return  # trimmed, or damaged on disk: nothing to compare with
        counted = next(part for part in stored.counted_seqs() if seq in part)
        both = range(max(counted.start, seqs.start), seq + 1)
        base = stored.maker.base_seq
        ours = decode_block_frames(stored.made(), self._block_limits).slice(both.start - base, both.stop - base)
        if not ours.equals(frames.slice(both.start - seqs.start, both.stop - seqs.start)):
            self.receiver.conflict(seq)

    def committed(self, count: int, *, now_ms: int) -> list[ToBoat]:
        """The next `count` appends are committed and durable."""
        return self._split(self.receiver.committed(count), 1000 * now_ms)[1]

    def disconnected(self, session: int) -> None:
        """The boat's streams of this session ended."""
        self.receiver.disconnected(session)

    def wake(self, now_ms: int) -> list[ToBoat]:
        return self._split(self.receiver.wake(now_ms), 1000 * now_ms)[1]

    def wake_at_ms(self) -> int | None:
        return self.receiver.wake_at_ms()

    def snapshot(
        self, now_ms: int, *, events: Sequence[dict[str, Any]] = (), others: Sequence[ControlRecord] = ()
    ) -> LogAppend:
        """A record of all folds, so that the log start may pass what came before it (F3).

        To be appended next, and counted in `committed` like every other append. The newest `events` are carried in it;
        `others` are snapshots of other folds over the same log, of the same moment.
        """
        state = self.receiver.snapshot()
        if events:
            state["events"] = list(events)
        return LogAppend(encode_control([FoldSnapshot(state=state), *others], time_us=1000 * now_ms))

    def _split(self, effects: Sequence[Effect[MadeBlock]], now_us: int, frames: FrameColumns | None = None) -> Outcome:
        appends: list[LogAppend] = []
        replies: list[ToBoat] = []
        for effect in effects:
            match effect:
                case Append(block, windows, via):
                    appends.append(LogAppend(block, windows, _PATHS[via], frames))
                case Note(facts):
                    records = [_record(self.instance, fact) for fact in facts]
                    appends.append(LogAppend(encode_control(records, time_us=now_us)))
                case Reply(message):
                    replies.append(message)
        return appends, replies


def held_block(log: Log, lineage: bytes, seq: int) -> Block | None:
    """The committed block in which this seq of a lineage counts."""
    found = log.blocks(end=log.durable_end, from_seq=seq, before_seq=seq + 1, producer=lineage, skip_damaged=True)
    try:
        return next((block for block in found if any(seq in part for part in block.counted_seqs())), None)
    except DiskError:
        return None


def fold_log(blocks: Iterable[Block]) -> ChannelFold:
    """The fold over a channel's log, from its last snapshot on (F1): what a restarted cloud knows."""
    fold = ChannelFold()
    for block in blocks:
        if block.maker.kind == BlockKind.CONTROL:
            for record in decode_control(block.maker, block.raw_body()):
                if isinstance(record, FoldSnapshot):
                    fold = ChannelFold.from_state(record.state)
                elif (fact := _fact(record)) is not None:
                    apply_fact(fold, fact)
        elif block.maker.base_seq and block.maker.kind in FRAME_KINDS:
            fold.data(block.maker.producer, block.counted_seqs())
    return fold


def _record(instance: str, fact: Fact) -> ControlRecord:
    lineage = fact.lineage.hex()
    match fact:
        case OpenSession():
            return SessionOpened(
                instance=instance, lineage=lineage, head=fact.head, session=fact.session, life=fact.life.hex()
            )
        case OpenLineage():
            previous = fact.previous.hex() if fact.previous else ""
            return LineageOpened(lineage=lineage, reason=fact.reason, previous=previous)
        case DeclareLost():
            return RangeLost(lineage=lineage, start=fact.seqs.start, end=fact.seqs.stop, reason=fact.reason)
        case DeclareVoid():
            return RangeVoid(lineage=lineage, start=fact.seqs.start, end=fact.seqs.stop)


def _fact(record: ControlRecord) -> Fact | None:
    match record:
        case SessionOpened():
            life, lineage = bytes.fromhex(record.life), bytes.fromhex(record.lineage)
            return OpenSession(lineage=lineage, head=record.head, session=record.session, life=life)
        case LineageOpened():
            return OpenLineage(lineage=bytes.fromhex(record.lineage), previous=None, reason=record.reason)
        case RangeLost():
            seqs = range(record.start, record.end)
            return DeclareLost(lineage=bytes.fromhex(record.lineage), seqs=seqs, reason=record.reason)
        case RangeVoid():
            return DeclareVoid(lineage=bytes.fromhex(record.lineage), seqs=range(record.start, record.end))
    return None
