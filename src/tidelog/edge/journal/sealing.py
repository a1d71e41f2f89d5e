"""Turning runs of small fresh blocks into large delta-plane blocks (B3), and finding the newest and the needed seqs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tidelog.blocks.block import Block, MadeBlock, missing_block
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.control import LineageOpened, RangeLost, decode_control
from tidelog.blocks.frames import decode_frames, encode_frames
from tidelog.blocks.header import BlockKind, Codec
from tidelog.edge.journal.options import JournalOptions
from tidelog.edge.journal.upkeep import Upkeep, Work
from tidelog.errors import DamagedRange
from tidelog.storage.log.log import Log
from tidelog.units import MIB, US_PER_MS

# A block may hold 16 MiB; besides its payload a frame takes some 16 bytes.
_PAYLOAD_BYTES_MAX = 8 * MIB
_RUN_BYTES_MAX = 12 * MIB


class Sealer:
    """Seals one journal's fresh log into its sealed log."""

    def __init__(self, *, fresh: Log, sealed: Log, options: JournalOptions, upkeep: Upkeep) -> None:
        self.fresh = fresh
        self.sealed = sealed
        self._options = options
        self._upkeep = upkeep
        self._unsealed_since: tuple[int, int] | None = None
        """The first offset not sealed and its append time, as last read: it is needed every second."""

    def seal(self, now_us: int, *, live_floor: int | None, everything: bool = False) -> int:
        """Seal what is due, below `live_floor` unless `everything` is; returns the blocks written to the sealed log."""
        fresh, sealed, options = self.fresh, self.sealed, self._options
        start, end = sealed.log_end, fresh.durable_end
        if live_floor is not None and not everything:
            end = min(end, live_floor)
        pending = end - start
        if pending <= 0 or not (everything or pending >= options.seal_frames or self._is_old(start, now_us)):
            return 0
        written = 0
        for run in _runs(fresh, start, end, options.seal_frames):
            short = run[-1].offsets.stop == end and sum(block.counted for block in run) < options.seal_frames // 2
            if short and not everything and not self._is_due(run[0].leader.append_time_us, now_us):
                break  # a short remainder is better sealed later, with the blocks that follow
            self._seal_run(run)
            written += 1
        sealed.commit(now_us)
        if everything:
            fresh.roll(now_us)
        self.drop_sealed(now_us)
        self._upkeep.done(Work.SEAL)
        return written

    def drop_sealed(self, now_us: int) -> bool:
        """Remove fresh segments whose sealed form is durable. A full disk may have stopped `seal` before that."""
        return bool(self.fresh.trim(self.sealed.durable_end, now_us).segments)

    def _is_old(self, offset: int, now_us: int) -> bool:
        if self._unsealed_since is None or self._unsealed_since[0] != offset:
            try:
                first = self.fresh.read(offset, bytes_max=1)
            except DamagedRange:
                return True
            if not first:
                return False
            self._unsealed_since = offset, first[0].leader.append_time_us
        return self._is_due(self._unsealed_since[1], now_us)

    def _is_due(self, append_time_us: int, now_us: int) -> bool:
        # A block from the future was written before the clock was set back: it is not known to be young.
        return not 0 <= now_us - append_time_us < self._options.seal_age_ms * US_PER_MS

    def _seal_run(self, run: list[Block]) -> None:
        first = run[0]
        if first.maker.kind != BlockKind.FRAMES:
            _stage(self.sealed, first.made(), first)
            return
        frames = FrameColumns.concatenate([decode_frames(block.maker, block.raw_body()) for block in run])
        made = encode_frames(
            frames,
            base_seq=first.maker.base_seq,
            producer=first.maker.producer,
            delta=True,
            codec=Codec.ZSTD,
            level=self._options.zstd_level,
        )
        _stage(self.sealed, made, first)


def _runs(fresh: Log, start: int, end: int, frames_max: int) -> Iterator[list[Block]]:
    """Blocks that may become one: frames that continue each other's seqs in one lineage and epoch."""
    run: list[Block] = []
    records = raw_bytes = 0
    for block in _with_placeholders(fresh, start, end):
        records += block.counted
        raw_bytes += block.maker.raw_bytes
        if run and (not _continues(run[-1], block) or records > frames_max or raw_bytes > _RUN_BYTES_MAX):
            yield run
            run, records, raw_bytes = [], block.counted, block.maker.raw_bytes
        run.append(block)
    if run:
        yield run


def cut(frames: FrameColumns, frames_max: int) -> Iterator[FrameColumns]:
    """The frames in parts that each fit a block, by number and by bytes."""
    offsets = frames.payload_offsets
    start = 0
    while start < len(frames):
        fitting = int(np.searchsorted(offsets, int(offsets[start]) + _PAYLOAD_BYTES_MAX, side="right")) - 1
        end = min(fitting, start + frames_max, len(frames))
        yield frames.slice(start, end)
        start = end


def _with_placeholders(fresh: Log, start: int, end: int) -> Iterator[Block]:
    """The blocks, with a placeholder where they are damaged: sealing must not stop there."""
    while start < end:
        try:
            for block in fresh.blocks(start, end):
                yield block
                start = block.offsets.stop
        except DamagedRange as damage:
            yield missing_block(
                offsets=range(start, damage.end),
                channel_id=fresh.channel_id,
                leader_epoch=fresh.epochs.epoch_at(start),
                append_time_us=0,
                durable_end=start,
            )
            start = damage.end


def _continues(last: Block, block: Block) -> bool:
    return (
        last.maker.kind == block.maker.kind == BlockKind.FRAMES
        and last.maker.producer == block.maker.producer
        and last.maker.seqs.stop == block.maker.base_seq
        and last.leader.leader_epoch == block.leader.leader_epoch
    )


def _stage(sealed: Log, made: MadeBlock, first: Block) -> None:
    """Stamp a block anew. The stamp of the fresh log cannot be kept: its sync mark is about the fresh log's file, and
    recovery of the sealed one would take a torn write below it for damage.

    The append time stays that of the first frame written: retention by age must not start anew.
    """
    leader = first.leader
    # A placeholder may not know its epoch, when all before it is sealed and gone.
    epoch = max(leader.leader_epoch, sealed.epochs.newest)
    staged = sealed.stage(made, epoch=epoch, now_us=leader.append_time_us, path=leader.path)
    assert staged is not None
    assert staged.leader.base_offset == leader.base_offset


def settle(sealed: Log, fresh: Log, now_us: int) -> None:
    """Make the two logs consistent after opening them: the sealed one reaches to the fresh one, which holds no more
    than needed."""
    _bridge(sealed, fresh.log_start)
    _heal(sealed, fresh)
    sealed.commit(now_us)
    fresh.trim(sealed.durable_end, now_us)


def _bridge(sealed: Log, fresh_start: int) -> None:
    """Put placeholders where the sealed log should reach to the fresh one and does not: its files are gone."""
    while sealed.log_end < fresh_start:
        start = sealed.log_end
        missing = missing_block(
            offsets=range(start, min(fresh_start, start + 2**32 - 1)),
            channel_id=sealed.channel_id,
            leader_epoch=sealed.epochs.newest,
            append_time_us=0,
            durable_end=0,
        )
        _stage(sealed, missing.made(), missing)


def _heal(sealed: Log, fresh: Log) -> None:
    """Drop damaged parts of the sealed log that are still whole in the fresh one, so that they are sealed again."""
    rotten = next((part for part in sealed.damaged() if part.start >= fresh.log_start), None)
    if rotten is None:
        return
    try:
        for _ in fresh.blocks(rotten.start, sealed.log_end):
            pass
    except DamagedRange:
        return  # the sealed log may hold what the fresh one lost
    sealed.truncate(rotten.start)


def last_seq(log: Log, lineage: bytes) -> int:
    """The newest seq of a lineage in a log, looking from its end back to where it was opened; 0 for none.

    A seq that was declared lost was issued and written, although the disk limit has removed it.
    """
    lost = 0
    for segment in reversed(log.segments):
        index = segment.index
        for entry in reversed(range(len(index.entry_positions))):
            start = index.entry_offsets[entry]
            end = index.entry_offsets[entry + 1] if entry + 1 < len(index.entry_offsets) else index.end_offset
            newest, opened = 0, False
            for block in log.blocks(start, end, skip_damaged=True):
                if block.maker.base_seq and block.maker.producer == lineage:
                    newest = max(newest, block.maker.seqs.stop - 1)
                for record in _control_records(block, lineage):
                    opened = opened or isinstance(record, LineageOpened)
                    lost = max(lost, record.end - 1) if isinstance(record, RangeLost) else lost
            if newest or opened:
                return max(newest, lost)
    return lost


def _control_records(block: Block, lineage: bytes) -> list[LineageOpened | RangeLost]:
    if block.maker.kind != BlockKind.CONTROL:
        return []
    records = decode_control(block.maker, block.raw_body())
    return [
        record
        for record in records
        if isinstance(record, LineageOpened | RangeLost) and record.lineage == lineage.hex()
    ]


def lineages(log: Log) -> set[bytes]:
    """Every lineage that has frames in a log. Reads all of it: only for a journal that lost its meta file."""
    return {block.maker.producer for block in log.blocks(skip_damaged=True) if block.maker.base_seq}


def needed_offset(sealed: Log, acked: Mapping[bytes, int]) -> int:
    """The first sealed offset that the cluster may still need, of any lineage; `acked` has the newest acked seqs."""
    needed = sealed.log_end
    for lineage, seq in acked.items():
        found = next(sealed.blocks(from_seq=seq + 1, producer=lineage, skip_damaged=True), None)
        if found is not None:
            needed = min(needed, found.leader.base_offset)
    return needed


def needed_seqs(sealed: Log, start: int, end: int, lineage: bytes, acked: int) -> range:
    """The seqs between two offsets that the cluster does not hold, from the first to the last."""
    blocks = sealed.blocks(start, end, from_seq=acked + 1, producer=lineage, skip_damaged=True)
    seqs = [block.maker.seqs for block in blocks]
    return range(max(seqs[0].start, acked + 1), seqs[-1].stop) if seqs else range(0)
