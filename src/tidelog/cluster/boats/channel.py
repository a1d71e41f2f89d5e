"""A boat's channel on its leader: the uplink receiver and the log it feeds.

Connects the receiver core with a log's blocks; it does no I/O. Blocks to append come out as `LogAppend`s for the caller
that commits them (a `Committer` in a node, or the simulator) and then calls `committed`. Blocks are checked here before
they count: kind, lineage, seqs; a block that does not decode is refused and fills no hole, and neither does one that
has other frames than the log under a seq (F6). A block of a boat without lineages may belong to any of its runs:
`boats.runs` finds out which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.control import (
    ControlRecord,
    FoldSnapshot,
    LineageClosed,
    LineageOpened,
    RangeLost,
    RangeVoid,
    SessionOpened,
    decode_control,
    encode_control,
)
from tidelog.blocks.decode import check_block_frames, decode_block_frames
from tidelog.blocks.header import DEFAULT_LIMITS, NO_PRODUCER, BlockKind, BlockLimits, Path
from tidelog.cluster.boats.runs import Held, RunJudge, Verdict
from tidelog.core.uplink.facts import (
    CloseLineage,
    DeclareLost,
    DeclareVoid,
    Fact,
    OpenLineage,
    OpenSession,
    apply_fact,
)
from tidelog.core.uplink.fold import ChannelFold
from tidelog.core.uplink.messages import (
    BackfillData,
    BackfillDone,
    BackfillGone,
    BackfillUnread,
    FromSession,
    Hello,
    LiveData,
    LiveStatus,
    Refused,
    ToBoat,
    ToCloud,
)
from tidelog.core.uplink.receiver import AppendBlock, Effect, Note, ReceiverLimits, Reply, UplinkReceiver, Via
from tidelog.core.uplink.tenure import Tenure
from tidelog.errors import BadBlock, BlockCorrupt, DiskError, ForeignLineage, LogError, NameInUse
from tidelog.storage.log.log import Log
from tidelog.units import US_PER_S

_OVERLAPS_COMPARED = 8

FRAME_KINDS: Final = frozenset({BlockKind.FRAMES, BlockKind.FOREIGN})
"""The kinds of block that boats send. A channel may also hold messages of clients, whose seqs are not the boat's."""
_PATHS = {Via.LIVE: Path.LIVE, Via.BACKFILL: Path.BACKFILL}


@dataclass(frozen=True, slots=True)
class LogAppend:
    """Append this to the channel's log, in order."""

    made: MadeBlock
    windows: tuple[range, ...] = ()
    path: Path = Path.UNKNOWN
    frames: FrameColumns | None = None
    """All of its frames: the block was decoded to be checked anyway."""
    is_own: bool = False
    """A record of the node itself (an event): the receiver does not count it in `committed`."""


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
        self.receiver: UplinkReceiver[MadeBlock] = UplinkReceiver(
            fold=fold, limits=limits, span_of=lambda made: (made.maker.time_min_us, made.maker.time_max_us)
        )
        self._block_limits = block_limits
        self._runs = RunJudge(receiver=self.receiver, held=held, limits=block_limits)
        self.tenure = Tenure()

    def receive(
        self, message: ToCloud[MadeBlock], *, new_lineage: bytes, now_ms: int, now_us: int | None = None
    ) -> Outcome:
        """Take one message. A refusal is an answer, changes nothing, and ends the session."""
        now_us = 1000 * now_ms if now_us is None else now_us
        session = 0 if isinstance(message, Hello) else message.session
        switched: list[Effect[MadeBlock]] = []
        """The new lineage of a boat that restarted: it stays, even if the message that shows it is refused."""
        try:
            frames: FrameColumns | None = None
            if isinstance(message, Hello):
                effects = self._hello(message, new_lineage, now_ms, now_us)
            else:
                if isinstance(message, LiveData | BackfillData | BackfillUnread) and not self.receiver.can_say_gone:
                    frames, effects = self._receive_lplex(message, new_lineage, now_ms, switched)
                else:
                    frames = self._checked_frames(message)
                    effects = self._effects(message, now_ms)
                self.tenure.heard(session, now_ms=now_ms, by_live=isinstance(message, LiveData | LiveStatus))
            return self._split([*switched, *effects], now_us, frames)
        except LogError as error:
            appends, replies = self._split(switched, now_us)
            return appends, [*replies, Refused(session=session, code=error.code, detail=str(error))]

    def _hello(self, hello: Hello, new_lineage: bytes, now_ms: int, now_us: int) -> list[Effect[MadeBlock]]:
        """Open a session, unless another process of this name holds one that delivers (UT2)."""
        in_use = self.tenure.admit(hello.boot_id, now_ms=now_ms)
        if in_use is not None:
            raise NameInUse(name=self.instance, since=_moment(in_use.since_us), silent_ms=in_use.silent_ms)
        self._runs.session_opened()
        effects = self.receiver.hello(hello, new_lineage=new_lineage, now_ms=now_ms)
        self.tenure.opened(self.receiver.session, hello.boot_id, now_ms=now_ms, now_us=now_us)
        return effects

    def _effects(self, message: FromSession[MadeBlock], now_ms: int) -> list[Effect[MadeBlock]]:
        receiver = self.receiver
        match message:
            case LiveData():
                return receiver.live(message, now_ms=now_ms)
            case BackfillData():
                return receiver.backfill(message)
            case BackfillGone():
                return receiver.gone(message)
            case BackfillUnread():
                return receiver.unread(message, is_current=False)
            case BackfillDone():
                self._runs.pass_ended()
                return receiver.backfill_done(message.session, now_ms=now_ms)
            case LiveStatus():
                receiver.status(message)
                return []

    def _checked_frames(self, message: FromSession[MadeBlock]) -> FrameColumns | None:
        """The frames of a message. Its fields are compared with the bytes: a wrong count or a damaged body fills no
        hole."""
        if not isinstance(message, LiveData | BackfillData):
            return None
        self._check_claims(message)
        block, seqs = message.block, message.seqs
        maker = block.maker
        lineage = self.receiver.lineage
        # Also for foreign blocks: the fold over the log knows the lineage of a block from its producer alone.
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

    def _check_claims(self, message: LiveData[MadeBlock] | BackfillData[MadeBlock]) -> None:
        self.receiver.check_session(message.session)
        maker, seqs = message.block.maker, message.seqs
        if maker.kind not in FRAME_KINDS or maker.seqs != seqs or not seqs:
            raise BlockCorrupt(problem=f"a block of kind {maker.kind} does not hold seqs [{seqs.start}, {seqs.stop})")

    def _receive_lplex(
        self,
        message: LiveData[MadeBlock] | BackfillData[MadeBlock] | BackfillUnread,
        new_lineage: bytes,
        now_ms: int,
        switched: list[Effect[MadeBlock]],
    ) -> tuple[FrameColumns | None, list[Effect[MadeBlock]]]:
        """Frames of a boat that has no lineages. They are assigned to their run; none of them ends the session (F6)."""
        receiver, runs = self.receiver, self._runs
        if isinstance(message, BackfillUnread):
            receiver.check_session(message.session)
            found = runs.home(None, message.seqs, first_us=message.time_us, last_us=message.time_us)
            if found is Verdict.RESTARTED:
                switched += receiver.restarted(new_lineage, now_ms=now_ms)
                runs.restarted()
            if found in (Verdict.UNDECIDED, Verdict.RESTARTED):
                return None, receiver.undecided(message.session)
            return None, receiver.unread(message, is_current=found == receiver.lineage)
        self._check_claims(message)
        producer = message.block.maker.producer
        if producer not in (receiver.lineage, NO_PRODUCER):
            raise ForeignLineage(expected=(receiver.lineage or b"").hex(), got=producer.hex())
        try:
            frames = decode_block_frames(message.block, self._block_limits)
        except BadBlock as error:
            raise BlockCorrupt(problem=f"the block does not decode: {error.problem}") from error
        if isinstance(message, LiveData):
            if runs.is_later_run(frames, message.seqs):
                switched += receiver.restarted(new_lineage, now_ms=now_ms)
                runs.restarted()
            runs.live_came(frames, message.seqs)
            block = _of_lineage(message.block, receiver.lineage or b"")
            return frames, receiver.live(replace(message, block=block), now_ms=now_ms)
        first_us, last_us = int(frames.times_us.min()), int(frames.times_us.max())
        claimed = range(message.seqs.start, max(message.seqs.stop, message.lost.stop))
        home = runs.home(frames, claimed, first_us=first_us, last_us=last_us)
        if home is Verdict.RESTARTED:
            # The block may belong to a run between the one that is held and the current one: it is requested again.
            switched += receiver.restarted(new_lineage, now_ms=now_ms)
            runs.restarted()
        if home in (Verdict.UNDECIDED, Verdict.RESTARTED):
            return None, receiver.undecided(message.session)
        lineage = home if isinstance(home, bytes) else new_lineage
        runs.placed((claimed.start, claimed.stop, first_us, last_us), lineage)
        block = _of_lineage(message.block, lineage)
        return frames, receiver.backfill(replace(message, block=block, lineage=lineage))

    def _compare(self, frames: FrameColumns, seqs: range, seq: int) -> None:
        """F6: the newest frame that both have must be the same one. Two histories that diverged stay different, so it
        represents all those before it; the rest of the stored block is compared too."""
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
        self.tenure.ended(session)
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
                case AppendBlock(block, windows, via):
                    appends.append(LogAppend(block, windows, _PATHS[via], frames))
                case Note(facts):
                    records = [_record(self.instance, fact) for fact in facts]
                    appends.append(LogAppend(encode_control(records, time_us=now_us)))
                case Reply(message):
                    replies.append(message)
        return appends, replies


def _of_lineage(made: MadeBlock, lineage: bytes) -> MadeBlock:
    """The fold over the log knows the lineage of a block from its producer alone."""
    maker = made.maker
    return made if maker.producer == lineage else made.renumbered(base_seq=maker.base_seq, producer=lineage)


def _moment(time_us: int) -> str:
    return datetime.fromtimestamp(time_us // US_PER_S, tz=UTC).isoformat().replace("+00:00", "Z")


def held_block(log: Log, lineage: bytes, seq: int) -> Block | None:
    """The committed block in which this seq of a lineage counts."""
    found = log.blocks(end=log.durable_end, from_seq=seq, before_seq=seq + 1, producer=lineage, skip_damaged=True)
    try:
        return next((block for block in found if any(seq in part for part in block.counted_seqs())), None)
    except DiskError:
        return None


def fold_log(blocks: Iterable[Block]) -> ChannelFold:
    """The fold over a channel's log, from its last snapshot on (F1): the state of a restarted cloud."""
    fold = ChannelFold()
    for block in blocks:
        if block.maker.kind == BlockKind.CONTROL:
            for record in decode_control(block.maker, block.raw_body()):
                if isinstance(record, FoldSnapshot):
                    fold = ChannelFold.from_state(record.state)
                elif (fact := _fact(record)) is not None:
                    apply_fact(fold, fact)
        elif block.maker.base_seq and block.maker.kind in FRAME_KINDS:
            maker = block.maker
            fold.data(maker.producer, block.counted_seqs(), (maker.time_min_us, maker.time_max_us))
    return fold


def _record(instance: str, fact: Fact) -> ControlRecord:
    lineage = fact.lineage.hex()
    match fact:
        case OpenSession():
            return SessionOpened(
                instance=instance, lineage=lineage, head=fact.head, session=fact.session, life=fact.boot_id.hex()
            )
        case OpenLineage():
            previous = fact.previous.hex() if fact.previous else ""
            return LineageOpened(lineage=lineage, reason=fact.reason, previous=previous)
        case DeclareLost():
            return RangeLost(lineage=lineage, start=fact.seqs.start, end=fact.seqs.stop, reason=fact.reason)
        case DeclareVoid():
            return RangeVoid(lineage=lineage, start=fact.seqs.start, end=fact.seqs.stop)
        case CloseLineage():
            return LineageClosed(lineage=lineage, reason=fact.reason)


def _fact(record: ControlRecord) -> Fact | None:
    match record:
        case SessionOpened():
            boot_id, lineage = bytes.fromhex(record.life), bytes.fromhex(record.lineage)
            return OpenSession(lineage=lineage, head=record.head, session=record.session, boot_id=boot_id)
        case LineageOpened():
            return OpenLineage(lineage=bytes.fromhex(record.lineage), previous=None, reason=record.reason)
        case RangeLost():
            seqs = range(record.start, record.end)
            return DeclareLost(lineage=bytes.fromhex(record.lineage), seqs=seqs, reason=record.reason)
        case RangeVoid():
            return DeclareVoid(lineage=bytes.fromhex(record.lineage), seqs=range(record.start, record.end))
        case LineageClosed():
            return CloseLineage(lineage=bytes.fromhex(record.lineage), reason=record.reason)
    return None
