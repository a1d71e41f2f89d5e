"""Carrying out what replicas order of storage: one call for all that gathered, appends of all channels in one commit.

No thread and no clock here: `ReplicaWriter` gives it a thread, the simulator calls it directly.

RT1  Orders of one channel take effect in the order they were given. Appends of many channels share one commit; any
     other order waits for those before it.
RT2  A failure is a result like any other: nothing raises, nobody waits in vain.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from tidelog.blocks.block import Block
from tidelog.blocks.control import ChannelSnapshot, decode_control
from tidelog.blocks.header import BlockKind
from tidelog.cluster.replication.fold import ReplicaFold
from tidelog.cluster.replication.orders import (
    AlterLog,
    AppendBlocks,
    Appended,
    BlocksRead,
    CloseLog,
    DeleteLog,
    Folded,
    FoldLog,
    LogReady,
    LookAtLog,
    OpenLog,
    ReadBlocks,
    ResetLog,
    StorageOrder,
    StorageResult,
    SweepLog,
    TruncateLog,
)
from tidelog.core.catalog import ChannelConfig, FsyncPolicy
from tidelog.errors import DamagedRange, DiskError, LogError
from tidelog.storage.log.options import Fsync, LogOptions, Retention
from tidelog.storage.store.channel_logs import ChannelLogConfig, ChannelLogs
from tidelog.units import KIB

_FSYNC: Final = {
    FsyncPolicy.ALWAYS: Fsync.ALWAYS,
    FsyncPolicy.INTERVAL: Fsync.INTERVAL,
    FsyncPolicy.NEVER: Fsync.NEVER,
}
_SEGMENTS_KEPT: Final = 8
"""Retention drops whole segments, so a channel keeps up to one part in so many too much."""
_SEGMENT_AGE_MS_MIN: Final = 1_000


class ReplicaStorage:
    """All storage of a node's channels."""

    def __init__(self, logs: ChannelLogs, *, options: LogOptions | None = None) -> None:
        self.logs = logs
        self._options = options or LogOptions()
        self.unkept: dict[int, DiskError] = {}
        """Channels whose retention failed, or whose files could not be removed, and why; until it could be done."""

    def carry_out(self, orders: Sequence[StorageOrder], now_us: int) -> list[StorageResult]:
        """Everything, in order; a result for each order that has one."""
        results: list[StorageResult] = []
        appends: dict[int, tuple[int, list[Block]]] = {}
        for order in orders:
            if type(order) is AppendBlocks:
                held = appends.get(order.channel_id)
                if held is None or held[0] != order.generation:
                    if held is not None:
                        self._append(appends, results, now_us)
                    held = appends[order.channel_id] = (order.generation, [])
                held[1].extend(order.blocks)
                continue
            if type(order) is ReadBlocks:
                results.append(self.read(order))
                continue
            self._append(appends, results, now_us)
            result = self._other(order, now_us)
            if result is not None:
                results.append(result)
        self._append(appends, results, now_us)
        return results

    def _append(self, appends: dict[int, tuple[int, list[Block]]], results: list[StorageResult], now_us: int) -> None:
        if not appends:
            return
        outcomes = self.logs.append([(key, blocks) for key, (_, blocks) in appends.items()], now_us)
        for outcome in outcomes:
            results.append(
                Appended(
                    channel_id=outcome.channel_id,
                    generation=appends[outcome.channel_id][0],
                    held_end=outcome.held_end,
                    log_end=outcome.log_end,
                    error=outcome.error,
                )
            )
        appends.clear()

    def _other(self, order: StorageOrder, now_us: int) -> StorageResult | None:
        logs, key = self.logs, order.channel_id
        state = None
        try:
            match order:
                case OpenLog():
                    state = logs.open(self.config_of(key, order.name, order.config), now_us)
                case TruncateLog():
                    state = logs.truncate(key, order.offset, now_us)
                case ResetLog():
                    state = logs.reset(key, order.base_offset, now_us)
                case SweepLog():
                    state = logs.sweep(key, now_us, floor=order.floor)
                    self.unkept.pop(key, None)
                    if state is None:
                        return None
                case LookAtLog():
                    state = logs.state(key)
                case FoldLog():
                    return Folded(channel_id=key, generation=order.generation, fold=self._fold(order))
                case AlterLog():
                    logs.alter(self.config_of(key, order.name, order.config), now_us)
                    return None
                case CloseLog():
                    logs.close(key, now_us)
                    return None
                case DeleteLog():
                    logs.delete(key, now_us)
                    self.unkept.pop(key, None)
                    return None
                case _:
                    raise AssertionError(f"{order} is no order of this kind")
        except LogError as error:
            if isinstance(order, FoldLog):
                return Folded(channel_id=key, generation=order.generation, fold=None, error=error)
            if isinstance(order, SweepLog | DeleteLog) and isinstance(error, DiskError):
                self.unkept[key] = error
            if isinstance(order, AlterLog | CloseLog | DeleteLog | SweepLog | LookAtLog):
                return None  # a log that cannot be used says so with its next append
            return LogReady(channel_id=key, generation=order.generation, state=None, error=error)
        return LogReady(
            channel_id=key, generation=order.generation, state=state, swept=isinstance(order, SweepLog | LookAtLog)
        )

    def read(self, order: ReadBlocks) -> BlocksRead:
        """Read blocks; any thread may call this."""
        blocks: Sequence[Block] = ()
        failure = None
        try:
            blocks = self.logs.read(order.channel_id, order.offset, bytes_max=order.bytes_max, end=order.end)
        except LogError as error:
            failure = error
        return BlocksRead(
            channel_id=order.channel_id,
            generation=order.generation,
            peer=order.peer,
            request_id=order.request_id,
            offset=order.offset,
            blocks=blocks,
            error=failure,
        )

    def _fold(self, order: FoldLog) -> ReplicaFold:
        log = self.logs.log(order.channel_id)
        start = log.log_start
        if order.hint is not None and log.log_start <= order.hint < log.log_end:
            found: Sequence[Block] = ()
            with suppress(DamagedRange):  # then the fold begins where the log does
                found = log.read(order.hint, bytes_max=1)
            if found and found[0].offsets.start == order.hint and _holds_snapshot(found[0]):
                start = order.hint
        fold = ReplicaFold()
        end = log.log_end
        while start < end:
            try:
                for block in log.blocks(start, end):
                    fold.note(block)
                    start = block.end
                break
            except DamagedRange as damage:
                if damage.start >= order.skip_below:
                    raise
                start = damage.end
                fold.lacks.append(range(damage.start, damage.end))
        fold.end = end
        return fold

    def config_of(self, channel_id: int, name: str, config: ChannelConfig) -> ChannelLogConfig:
        """The log options of a channel with this config."""
        kept = config.retention
        options = replace(
            self._options,
            fsync=_FSYNC[config.fsync],
            fsync_interval_ms=config.fsync_interval_ms,
            retention=Retention(max_age_ms=kept.max_age_ms, max_bytes=kept.max_bytes, max_events=kept.max_events),
        )
        if kept.max_bytes is not None:
            segment_bytes = max(4 * KIB, min(options.segment_bytes_max, kept.max_bytes // _SEGMENTS_KEPT))
            options = replace(options, segment_bytes_max=segment_bytes)
        if kept.max_age_ms is not None and options.segment_age_max_ms is None:
            age_ms = max(_SEGMENT_AGE_MS_MIN, kept.max_age_ms // _SEGMENTS_KEPT)
            options = replace(options, segment_age_max_ms=age_ms)
        if kept.max_events is not None:
            options = replace(options, segment_events_max=max(1, kept.max_events // _SEGMENTS_KEPT))
        return ChannelLogConfig(channel_id=channel_id, name=name, persistent=config.persistent, options=options)


def _holds_snapshot(block: Block) -> bool:
    if block.maker.kind != BlockKind.CONTROL:
        return False
    return any(isinstance(record, ChannelSnapshot) for record in decode_control(block.maker, block.raw_body()))
