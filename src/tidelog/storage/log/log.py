"""An append-only log of blocks on a disk, for one writer and many readers.

Appending has three steps that a driver calls: `stage` gives a block its offset, `flush` writes what
is staged, `sync` makes it durable. A single log (`LogWriter`, the boat's journal) does all three for
each batch; a `Store` syncs its shared write-ahead file instead and flushes later. The log itself has
no thread and reads no clock, so it runs unchanged on a simulated disk.

What a caller must keep: one driver at a time calls the methods that change the log; any thread may
read. Ack a record only once `durable_end` has passed it.

LLO1  log_start <= durable_end <= log_end and written_end <= log_end. Only truncation lowers an end.
LLO2  Blocks continue each other's offsets; their leader epochs never fall.
LLO3  Only the newest segment is ever written; a segment is synced before a newer one exists.
LLO4  After a failed sync nothing is acked again until the log has been opened anew (D2).
LLO5  Truncation is on disk before it returns, so no stale block can come back (B5).
LLO6  No byte reaches a reader unchecked; damage becomes a placeholder, never a shorter log.
LLO7  A log may be younger than its files (`on_disk` is False): what is staged is then all there is of it,
    and the first flush makes folder and segment. Only a store has such logs: its write-ahead file holds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Unpack

from tidelog.blocks.block import Block, MadeBlock
from tidelog.errors import (
    BlockCorrupt,
    DiskError,
    NotABlockBoundary,
    OffsetMismatch,
    OffsetOutOfRange,
    StaleEpoch,
)
from tidelog.storage.atomic import write_mark
from tidelog.storage.log import reading, repair, retention
from tidelog.storage.log.epochs import EpochHistory
from tidelog.storage.log.options import LogOptions, Retention
from tidelog.storage.log.parts import LogStatistics
from tidelog.storage.log.reading import READ_BYTES
from tidelog.storage.log.segments import LogSegments
from tidelog.storage.store.reserve import Reserve

META_NAME = "log.meta"
STATE_NAME = "log.state"


class Log(LogSegments):
    """Built by `tidelog.storage.log.recovery.open_log`, which has read the disk."""

    persistent = True

    def statistics(self) -> LogStatistics:
        with self.mutex:
            indexes = [segment.index for segment in self.segments]
            return LogStatistics(
                log_start=self.log_start,
                log_end=self._log_end,
                durable_end=self._durable_end,
                segments=len(indexes),
                bytes=sum(index.size for index in indexes),
                records=self._log_end - self.log_start,
                blocks=sum(index.blocks for index in indexes) + len(self._staged),
                staged_bytes=self._staged_bytes,
                damaged=tuple(self.damaged()),
                epoch=self.epochs.newest,
                incarnation=self.incarnation,
            )

    def alter(self, options: LogOptions) -> None:
        """Go on with other options; segments that are there stay as they are."""
        with self.mutex:
            self.options = options
            self._reserve = Reserve(self.disk, reserve_bytes=options.reserve_bytes)

    # --- appending -------------------------------------------------------------------------------

    def stage(
        self, made: MadeBlock, *, epoch: int, now_us: int, path: int = 0, windows: Sequence[range] = ()
    ) -> Block | None:
        """Stamp a block as the channel's leader and give it its offsets. A block without records is no change."""
        with self.mutex:
            self._check_epoch(epoch)
            block = made.stamp(
                base_offset=self._log_end,
                channel_id=self.channel_id,
                leader_epoch=epoch,
                append_time_us=now_us,
                durable_end=self._durable_end,
                path=path,
                windows=windows,
            )
            if windows:
                edges = [0, *(edge for part in windows for edge in (part.start, part.stop)), made.maker.record_count]
                if edges != sorted(edges) or not all(windows):
                    raise BlockCorrupt(problem="windows must rise, be filled and lie inside their block")
            return self._take(block) if block.counted else None

    def stage_stamped(self, block: Block) -> Block:
        """Take over a block that another replica's leader stamped; its bytes stay as they are."""
        with self.mutex:
            self._check_epoch(block.leader.leader_epoch)
            if block.leader.base_offset != self._log_end:
                raise OffsetMismatch(expected=self._log_end, got=block.leader.base_offset)
            if block.leader.channel_id != self.channel_id or not block.counted:
                raise BlockCorrupt(problem=f"a block of channel {block.leader.channel_id} does not belong here")
            if block.leader.durable_end > self._log_end:
                raise BlockCorrupt(problem=f"a block at {self._log_end} knows {block.leader.durable_end} as durable")
            return self._take(block)

    def _check_epoch(self, epoch: int) -> None:
        self.check_usable()
        if epoch < self.epochs.newest:
            raise StaleEpoch(epoch=epoch, newest=self.epochs.newest)

    def _take(self, block: Block) -> Block:
        self._staged.append(block)
        self._staged_bytes += block.size
        self.epochs.note(block.leader.leader_epoch, block.leader.base_offset)
        self._log_end = block.offsets.stop
        return block

    def forget_staged(self, *, log_end: int, durable_end: int) -> None:
        """The segments were replaced: what was staged for the old ones is dropped."""
        with self.mutex:
            self._staged.clear()
            self._staged_bytes = 0
            self._dirty = False
            self._truncations += 1
            self._log_end = log_end
            self._durable_end = durable_end
            self._moved()

    def discard_staged(self) -> None:
        """Take back what was staged and not written: the append was refused."""
        with self.mutex:
            self._staged.clear()
            self._staged_bytes = 0
            self._log_end = self.written_end
            self.epochs.truncate(self._log_end)

    def flush(self, now_us: int) -> None:
        """Write what is staged. On an error nothing of the failed write stays, and the rest stays staged."""
        with self.mutex:
            self.check_usable()
            if self._staged and not self.on_disk:
                self._make_files(now_us)
            while self._staged:
                first = self._staged[0]
                if self._must_roll(first.size, first.end, now_us):
                    self.roll(now_us)
                room = self.options.segment_bytes_max - self.segments[-1].index.size
                last = self.segments[-1].base_offset + (self.options.segment_events_max or 1 << 62)
                count, size = 1, first.size
                while count < len(self._staged) and size + self._staged[count].size <= room:
                    if self._staged[count].end > last:
                        break
                    size += self._staged[count].size
                    count += 1
                self._write(self._staged[:count], size)
                del self._staged[:count]
                self._staged_bytes -= size
            self._moved()

    def _make_files(self, now_us: int) -> None:
        """Make the folder and the first segment of a log that had none (LLO7)."""
        self.disk.make_folder(self.segment_folder)
        self.segments = [self.create_segment(self.log_start, now_us)]
        self.on_disk = True

    def _write(self, blocks: list[Block], size: int) -> None:
        segment = self.segments[-1]
        self._reserve.check(segment.path, size)
        buffers = [buffer for block in blocks for buffer in block.buffers if len(buffer)]
        with self.files.use(segment.path) as file:
            try:
                file.write_at(segment.index.size, buffers)
            except DiskError as error:
                # A part may have been written: cut it off, or a later crash could revive it (B5).
                try:
                    file.truncate(segment.index.size)
                    file.sync()
                except DiskError:
                    self.poison(f"{error}, which could not be undone")
                raise
        self._dirty = True
        for block in blocks:
            segment.index.add(block.maker, block.leader, block.windows, block.size)

    def note_durable(self, end: int) -> None:
        """The store's write-ahead file holds everything below `end` durably."""
        with self.mutex:
            self._durable_end = max(self._durable_end, min(end, self._log_end))
            self._moved()

    def append(self, made: MadeBlock, *, epoch: int = 1, now_us: int, path: int = 0) -> range:
        """Stage, flush and sync one block: for drivers that need no batching."""
        block = self.stage(made, epoch=epoch, now_us=now_us, path=path)
        self.commit(now_us)
        return block.offsets if block else range(self._log_end, self._log_end)

    def commit(self, now_us: int) -> None:
        """Flush and sync all that is staged; a refused write is taken back."""
        try:
            self.flush(now_us)
        except DiskError:
            self.discard_staged()
            raise
        self.sync()

    # --- segments --------------------------------------------------------------------------------

    def _must_roll(self, next_bytes: int, next_end: int, now_us: int) -> bool:
        index = self.segments[-1].index
        if not index.blocks:
            return False
        events_max = self.options.segment_events_max
        if events_max is not None and next_end - index.base_offset > events_max:
            return True
        age_max_ms = self.options.segment_age_max_ms
        too_old = age_max_ms is not None and now_us - index.append_min_us >= age_max_ms * 1000
        return too_old or index.size + next_bytes > self.options.segment_bytes_max

    def roll_if_due(self, now_us: int) -> bool:
        """Seal the newest segment if it is old or large enough; timers call this on a quiet log."""
        with self.mutex:
            if not self._must_roll(0, self.written_end, now_us):
                return False
            self.roll(now_us)
            return True

    # --- reading ---------------------------------------------------------------------------------

    def read(self, offset: int, *, bytes_max: int = READ_BYTES, end: int | None = None) -> list[Block]:
        """Verified blocks from the one that holds `offset`, about `bytes_max` bytes, at least one.

        Stops at `end` (default: the log end) and before damage. Raises `DamagedRange` when `offset`
        itself is damaged, `OffsetOutOfRange` when it was trimmed or is beyond the end.
        """
        return reading.read(self, offset, bytes_max=bytes_max, end=end)

    def blocks(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        skip_damaged: bool = False,
        **wanted: Unpack[reading.Search],
    ) -> Iterator[Block]:
        """Blocks in offset order that reach into each range given, of seqs or times (B2)."""
        return reading.blocks(self, start, end, wanted=reading.WantedBlocks(**wanted), skip_damaged=skip_damaged)

    # --- cutting ---------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Remove every record at or after `offset`, on disk before this returns (LLO5)."""
        with self.mutex:
            self.check_usable()
            if offset >= self._log_end:
                return
            if offset < self.log_start:
                raise OffsetOutOfRange(offset=offset, log_start=self.log_start, log_end=self._log_end)
            if offset >= self.written_end:
                self._truncate_staged(offset)
            else:
                repair.truncate_segments(self, offset)
                self._staged.clear()
                self._staged_bytes = 0
                self._dirty = False
            self._truncations += 1
            self._log_end = offset
            self._durable_end = min(self._durable_end, offset)
            self.epochs.truncate(offset)
            # Epochs that only truncated records had are forgotten, also where a removed segment's head knew them.
            floor = max(segment.opening_epoch for segment in self.segments)
            self.epochs = EpochHistory(self.epochs.pairs(), floor=floor)
            self._moved()

    def _truncate_staged(self, offset: int) -> None:
        for block in self._staged:
            if block.leader.base_offset < offset < block.offsets.stop:
                raise NotABlockBoundary(offset=offset, block=block.offsets)
        self._staged = [block for block in self._staged if block.leader.base_offset < offset]
        self._staged_bytes = sum(block.size for block in self._staged)

    def sweep_retention(self, now_us: int, limits: Retention | None = None) -> retention.Sweep:
        """Drop whole segments that the retention options (or `limits`) no longer keep, never above a floor."""
        with self.mutex:
            self.check_usable()
            return retention.sweep(self, now_us, limits)

    def trim(self, offset: int, now_us: int) -> retention.Sweep:
        """Drop whole segments that end at or before `offset`, never above a floor."""
        with self.mutex:
            self.check_usable()
            return retention.drop_through(self, offset, now_us)

    def replace(self, blocks: Sequence[Block]) -> range:
        """Put a peer's blocks where placeholders stand. They must lie inside one damaged range."""
        with self.mutex:
            self.check_usable()
            offsets = repair.replace_damaged(self, blocks)
            self.fold_epochs()
            return offsets

    def rebuild_from(self, blocks: Iterator[Block], now_us: int) -> None:
        """Replace everything by a peer's blocks. A crash leaves the old log or the new one, whole."""
        with self.mutex:
            self.check_usable()
            if not self.on_disk:
                self._make_files(now_us)
            repair.rebuild(self, blocks, now_us)
            self.fold_epochs()
            self.forget_staged(log_end=self.written_end, durable_end=self.written_end)

    # --- the end ---------------------------------------------------------------------------------

    def close(self, now_us: int = 0) -> None:
        """Write, sync and mark the log as cleanly closed. After a failed sync, only release its files and locks."""
        with self.mutex:
            if self._closed:
                return
            try:
                if self._poison is None:
                    self.flush(now_us)
                    self.sync()
                    self.write_index(self.segments[-1])
                    if self.on_disk:
                        self.disk.sync_folder(self.segment_folder)
                    if self._folder_lock is not None:
                        write_mark(self.disk, f"{self.folder}/{STATE_NAME}", self._clean_state())
            finally:
                self._closed = True
                for segment in self.segments:
                    self.files.drop(segment.path)
                if self._folder_lock is not None:
                    self._folder_lock.release()
                self._moved()

    def _clean_state(self) -> dict[str, int | bool]:
        newest = self.segments[-1]
        return {
            "clean": True,
            "incarnation": self.incarnation,
            "log_end": self._log_end,
            "newest_base": newest.base_offset,
            "newest_size": newest.index.size,
        }
