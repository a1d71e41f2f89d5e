"""A boat's journal: every frame of its bus, in order, each with a permanent number.

Frames gather in memory for at most a second, then become a small block in the *fresh* log, synced.
Runs of small blocks are later sealed into large delta-plane blocks in the *sealed* log, half the size
(B3). Both logs share one offset space: readers take a record from the sealed log below its end, from
the fresh log above it. A crash while sealing leaves both forms; the sealed one wins, and fresh segments
are dropped only after it is durable.

What a caller must keep: one driver calls `record`, `wake`, `acknowledge` and `fork_lineage`; call
`wake` when `wake_at_us` says so, and a second after the clock may have been set back, or a frame may
stay in memory for longer than that.

JJ1  No seq is used twice in a lineage. Seqs are leased ahead durably; after an unclean stop the journal
    goes on above its lease and declares what was leased and never issued void (B6).
JJ2  A journal that cannot prove which seqs it used (its meta file is gone) starts a new lineage (B7).
JJ3  Retention keeps everything above the acked cursor. Only the disk limit overrides that, and what it
    removed is recorded as lost, in the journal and in the statistics.
JJ4  A power cut loses what was recorded since the last flush: at most a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Unpack

from tidelog.blocks.block import Block, MadeBlock
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.control import ControlRecord, LineageOpened, RangeLost, RangeVoid, encode_control
from tidelog.blocks.frames import CAN_ID_MAX, FrameBuilder, codec_for, encode_frames
from tidelog.blocks.header import Path
from tidelog.edge.journal import sealing
from tidelog.edge.journal.declared import META_NAME as META_NAME
from tidelog.edge.journal.declared import Declared, read_meta
from tidelog.edge.journal.options import JournalOptions as JournalOptions
from tidelog.edge.journal.options import JournalStatistics as JournalStatistics
from tidelog.edge.journal.upkeep import Upkeep, Work
from tidelog.errors import (
    DiskError,
    DiskFull,
    InvalidRecord,
    LogClosed,
    OffsetOutOfRange,
    SeqExhausted,
    SyncFailed,
)
from tidelog.storage.atomic import write_mark
from tidelog.storage.disk import Disk
from tidelog.storage.log.log import Log
from tidelog.storage.log.reading import READ_BYTES, Search
from tidelog.storage.log.recovery import open_log
from tidelog.units import US_PER_MS

FRESH = "fresh"
SEALED = "sealed"
SEQ_MAX = 2**63 - 1


class Journal:
    """Built by `open_journal`."""

    def __init__(
        self,
        *,
        disk: Disk,
        folder: str,
        options: JournalOptions,
        fresh: Log,
        sealed: Log,
        lineage: bytes,
        new_lineage: Callable[[], bytes],
    ) -> None:
        self.disk = disk
        self.folder = folder
        self.options = options
        self.fresh = fresh
        self.sealed = sealed
        self.lineage = lineage
        # A journal raises its epoch whenever it is opened, as any unreplicated channel does (R1).
        # The incarnations keep it rising even when one of the logs was lost with the epochs in it.
        self.epoch = max(fresh.epochs.newest, sealed.epochs.newest, fresh.incarnation, sealed.incarnation) + 1
        self._new_lineage = new_lineage
        self._builder = FrameBuilder()
        self._unwritten: FrameColumns | None = None
        """Frames that a flush has gathered; they stay here only while the disk refuses them."""
        self._notes: list[ControlRecord] = []
        """Control records that wait for room on the disk, to be written before any later frame."""
        self.refusal: DiskError | None = None
        """Why the last flush failed; None while frames reach the disk."""
        self.upkeep = Upkeep()
        """Why sealing, trimming or leasing failed, though frames may reach the disk."""
        self._sealer = sealing.Sealer(fresh=fresh, sealed=sealed, options=options, upkeep=self.upkeep)
        self._closed = False
        self._next_seq = 1
        self._durable_head = 0
        self._leased_end = 1
        self._acks: dict[bytes, int] = {}
        self._acks_saved: dict[bytes, int] = {}
        self._flush_due_us: int | None = None
        self._sweep_due_us = 0
        self._forced_lost: list[range] = []
        self._void: list[range] = []
        self.declared = Declared()
        self.live_floor: int | None = None
        """Blocks at or above this offset are not sealed yet: Live is still reading them."""
        self.kept: dict[str, Any] = {}
        """Entries of other components in the meta file, by name; see `keep`."""
        self.orphans: set[bytes] = set()
        """Older lineages of which it is not known what the cluster holds: the meta file was lost."""
        self.written = (0, 0)
        """Blocks and bytes written since it was opened, in their fresh form."""

    # --- recording -------------------------------------------------------------------------------

    @property
    def head(self) -> int:
        """The newest seq issued; 0 when there is none."""
        return self._next_seq - 1

    @property
    def durable_head(self) -> int:
        return self._durable_head

    @property
    def log_start(self) -> int:
        # Below the sealed end the sealed form counts, even where the fresh one still exists.
        return self.sealed.log_start

    @property
    def log_end(self) -> int:
        return self.fresh.log_end

    def record(self, time_us: int, can_id: int, payload: bytes, now_us: int) -> int:
        """Take one frame from the bus; returns its seq. A frame that is refused got no seq."""
        if self._next_seq >= self._leased_end:
            self._lease()
        if self._unwritten is not None or len(self._builder) >= self.options.flush_frames_max:
            self._flush_burst(now_us)
        self._builder.append(time_us, can_id, payload)
        seq = self._next_seq
        self._next_seq = seq + 1
        if self._flush_due_us is None:
            self._flush_due_us = now_us + self.options.flush_interval_ms * US_PER_MS
        return seq

    def record_many(self, frames: FrameColumns, now_us: int) -> range:
        """Take many frames at once, as columns, and write them; returns their seqs.

        All of them are taken, or none. While the disk is full they stay in memory, up to the limit.
        """
        frames.check()
        if len(frames) and int(frames.can_ids.max()) > CAN_ID_MAX:
            raise InvalidRecord(problem="a CAN id has more than 29 bits")
        self.fresh.check_usable()
        if self._buffered() + len(frames) > self.options.buffer_frames_max:
            self.flush(now_us)
        if self._next_seq + len(frames) > self._leased_end:
            self._lease(at_least=len(frames))
        seqs = range(self._next_seq, self._next_seq + len(frames))
        if frames:
            self._gather()
            self._unwritten = self._merged(frames)
            self._next_seq = seqs.stop
            try:
                self.flush(now_us)
            except DiskFull:
                pass  # they were taken: the caller must not offer them again
        return seqs

    def _flush_burst(self, now_us: int) -> None:
        """Flush; while the disk refuses, go on in memory up to the limit and try again once per interval."""
        self.fresh.check_usable()
        full = self._buffered() >= self.options.buffer_frames_max
        if (refusal := self.refusal) is not None and not self._is_flush_due(now_us):
            if full:
                raise type(refusal)(operation=refusal.operation, path=refusal.path, reason=refusal.reason)
            return
        try:
            self.flush(now_us)
        except SyncFailed:
            raise
        except DiskError:
            if full:
                raise

    def _gather(self) -> None:
        if len(self._builder):
            self._unwritten = self._merged(self._builder.take())

    def _merged(self, more: FrameColumns) -> FrameColumns:
        return more if self._unwritten is None else FrameColumns.concatenate([self._unwritten, more])

    def _buffered(self) -> int:
        return len(self._builder) + (len(self._unwritten) if self._unwritten is not None else 0)

    def _lease(self, at_least: int = 1) -> None:
        """Durably reserve more seqs before any of them is used (JJ1)."""
        if self._closed:
            raise LogClosed(log=self.folder)
        leased_end = self._next_seq + max(self.options.lease_seqs, at_least)
        if leased_end > SEQ_MAX:
            raise SeqExhausted(head=self.head)
        with self.upkeep.attempt(Work.LEASE):
            self._save_meta(leased_end=leased_end)
        self._leased_end = leased_end
        self.upkeep.done(Work.LEASE)

    def _save_meta(self, *, leased_end: int, clean: bool = False, kept: dict[str, Any] | None = None) -> None:
        self.declared.forget_through(self.acked)
        meta = self.declared.to_meta() | {
            "format": 1,
            "lineage": self.lineage.hex(),
            "leased_end": leased_end,
            "head": self._durable_head,
            "acks": {lineage.hex(): seq for lineage, seq in self._acks.items()},
            "orphans": [lineage.hex() for lineage in sorted(self.orphans)],
            "kept": kept or self.kept,
            "clean": clean,
        }
        write_mark(self.disk, f"{self.folder}/{META_NAME}", meta)
        self._acks_saved = dict(self._acks)

    def keep(self, name: str, value: Any) -> None:
        """Remember this across restarts; durable when it returns. Not even in memory when the disk refuses."""
        kept = self.kept | {name: value}
        self._save_meta(leased_end=self._leased_end, kept=kept)
        self.kept = kept

    def flush(self, now_us: int) -> None:
        """Write and sync what was recorded. After `DiskFull` the frames stay in memory for the next try."""
        self._flush_due_us = None
        if not self._buffered() and not self._notes:
            return
        # Whatever fails below, what is still in memory is tried again.
        self._flush_due_us = now_us + self.options.flush_interval_ms * US_PER_MS
        try:
            try:
                self._write(now_us)
            except DiskFull:
                if not self._make_room(now_us):
                    raise
                self._write(now_us)
        except DiskError as error:
            self.refusal = error
            raise
        self.refusal = None
        self._flush_due_us = None
        self._after_flush(now_us)

    def _after_flush(self, now_us: int) -> None:
        """The frames are durable: a later failure must not write them again."""
        limit = self.options.disk_bytes_max
        if limit is not None and self.size_bytes() > limit:
            self._sweep_due_us = now_us
        if self._leased_end - self._next_seq < self.options.lease_seqs // 2:
            with suppress(DiskFull):  # there is still half a lease; `record` insists once it is used up
                self._lease()

    def _write(self, now_us: int) -> None:
        """Write and sync the waiting control records and frames; forgets those that went in, even if not all did."""
        self._gather()  # all frames in memory, up to the head: their seqs are counted back from it
        fresh, notes, frames = self.fresh, self._notes, self._unwritten
        fresh.check_usable()
        waiting = len(frames) if frames is not None else 0
        made = [encode_control(notes, time_us=now_us)] if notes else []
        if frames is not None:
            made += self._encoded(frames, self._next_seq - waiting)
        start = fresh.log_end
        try:
            for block in made:
                fresh.stage(block, epoch=self.epoch, now_us=now_us, path=Path.LIVE)
            fresh.commit(now_us)
            blocks, size = self.written
            self.written = blocks + len(made), size + sum(len(part) for block in made for part in block.buffers)
        finally:
            # A refusal in the middle leaves whole blocks behind: writing them again would double them.
            written = fresh.log_end - start
            if written:
                self._notes = []
                rest = written - len(notes)
                self._unwritten = frames.slice(rest, waiting) if frames is not None and rest < waiting else None
        if frames is not None:
            self._durable_head = self._next_seq - 1

    def _encoded(self, frames: FrameColumns, seq: int) -> list[MadeBlock]:
        made = []
        for part in sealing.cut(frames, self.options.flush_frames_max):
            made.append(
                encode_frames(
                    part,
                    base_seq=seq,
                    producer=self.lineage,
                    codec=codec_for(part),
                    level=self.options.zstd_level,
                )
            )
            seq += len(part)
        return made

    def note(self, records: list[ControlRecord], now_us: int) -> None:
        """Write control records after the frames recorded so far."""
        self.flush(now_us)
        self.fresh.append(encode_control(records, time_us=now_us), epoch=self.epoch, now_us=now_us)

    def _announce(self, records: Sequence[ControlRecord], now_us: int) -> None:
        """Write control records before any frame that is not written yet; while the disk is full they wait too."""
        self._notes += records
        try:
            self._write(now_us)
        except DiskFull:
            self._flush_due_us = now_us + self.options.flush_interval_ms * US_PER_MS

    # --- time passes -----------------------------------------------------------------------------

    def wake(self, now_us: int) -> None:
        """Flush, seal and trim when due. Failures are kept in `refusal` or `upkeep`, and tried again."""
        try:
            if self._is_flush_due(now_us):
                self.flush(now_us)
            with self.upkeep.attempt(Work.SEAL):
                self._sealer.seal(now_us, live_floor=self.live_floor)
        finally:
            # On a full disk too: retention is what makes room.
            interval_us = self.options.retention_interval_ms * US_PER_MS
            if not self._sweep_due_us - interval_us <= now_us < self._sweep_due_us:
                self._sweep_due_us = now_us + interval_us
                with self.upkeep.attempt(Work.SWEEP):
                    self.sweep_retention(now_us)
                self.upkeep.done(Work.SWEEP)

    def _is_flush_due(self, now_us: int) -> bool:
        # A clock that was set back must not keep frames in memory until it has caught up.
        due_us = self._flush_due_us
        return due_us is not None and not due_us - self.options.flush_interval_ms * US_PER_MS <= now_us < due_us

    def wake_at_us(self) -> int:
        return self._sweep_due_us if self._flush_due_us is None else min(self._flush_due_us, self._sweep_due_us)

    def seal_all(self, now_us: int) -> None:
        """Seal everything that was recorded, however little, and drop the fresh form."""
        self.flush(now_us)
        self._sealer.seal(now_us, live_floor=self.live_floor, everything=True)

    # --- retention -------------------------------------------------------------------------------

    @property
    def acked(self) -> int:
        return self._acks.get(self.lineage, 0)

    def acknowledge(self, seq: int, lineage: bytes | None = None) -> None:
        """The cluster holds every seq of this lineage (default: the current one) up to this one."""
        lineage = lineage or self.lineage
        if lineage == self.lineage:
            seq = min(seq, self.head)
        self._acks[lineage] = max(self._acks.get(lineage, 0), seq)

    def acked_of(self, lineage: bytes) -> int:
        return self._acks.get(lineage, 0)

    def lineages(self) -> list[bytes]:
        return list(self._acks)

    def size_bytes(self) -> int:
        return self.fresh.statistics().bytes + self.sealed.statistics().bytes

    def sweep_retention(self, now_us: int) -> None:
        """Apply retention below the acked cursor, then the disk limit wherever it must (JJ3)."""
        if self._acks != self._acks_saved:
            with suppress(DiskFull):  # retention is what makes room
                # Otherwise a power cut would make acked seqs that retention removed look lost.
                self._save_meta(leased_end=self._leased_end)
        self.sealed.set_floor("acked", sealing.needed_offset(self.sealed, self._acks))
        self.sealed.sweep_retention(now_us)
        self._sealer.drop_sealed(now_us)
        while self.options.is_outlived(self.sealed.segments[0].index, now_us) and self._force_out_oldest(now_us):
            pass  # no cloud is there to ack it
        limit = self.options.disk_bytes_max
        while limit is not None and self.size_bytes() > limit:
            if len(self.sealed.segments) == 1:
                # The bytes over the limit are in the fresh log, or in one sealed segment.
                self._sealer.seal(now_us, live_floor=self.live_floor, everything=True)
                self.sealed.roll(now_us)
            if not self._force_out_oldest(now_us):
                break

    def _make_room(self, now_us: int) -> bool:
        """The disk is full: drop what is held twice or by the cluster, and others only when memory is full too."""
        self.sealed.set_floor("acked", sealing.needed_offset(self.sealed, self._acks))
        oldest_end = self.sealed.segments[0].index.end_offset
        if self._sealer.drop_sealed(now_us) or self.sealed.trim(oldest_end, now_us).segments:
            return True
        return self._buffered() >= self.options.buffer_frames_max and self._force_out_oldest(now_us)

    def _force_out_oldest(self, now_us: int) -> bool:
        oldest = self.sealed.segments[0]
        if oldest is self.sealed.segments[-1]:
            return False
        end_offset = oldest.index.end_offset
        lost = [
            RangeLost(lineage=lineage.hex(), start=part.start, end=part.stop, reason="the journal reached its limit")
            for lineage, acked in self._acks.items()
            if (part := sealing.needed_seqs(self.sealed, oldest.base_offset, end_offset, lineage, acked))
        ]
        if lost:
            # Declared before the removal: a power cut between the two must not make the loss a silent one.
            for record in lost:
                self._forced_lost.append(range(record.start, record.end))
                if record.lineage == self.lineage.hex():
                    self.declared.lost.add(self._forced_lost[-1])
            self._announce(lost, now_us)
        self.sealed.set_floor("acked", None)
        self.sealed.trim(end_offset, now_us)
        return True

    # --- reading ---------------------------------------------------------------------------------

    def read(self, offset: int, *, bytes_max: int = READ_BYTES, end: int | None = None) -> list[Block]:
        """Verified blocks from the one that holds `offset`; sealed form where there is one."""
        while True:
            sealed_end = self.sealed.log_end
            if offset < sealed_end:
                return self.sealed.read(
                    offset, bytes_max=bytes_max, end=sealed_end if end is None else min(end, sealed_end)
                )
            try:
                return self.fresh.read(offset, bytes_max=bytes_max, end=end)
            except OffsetOutOfRange:
                if offset >= self.sealed.log_end:
                    raise
                # Sealed between the question and the answer: ask again.

    def blocks(self, *, skip_damaged: bool = False, **wanted: Unpack[Search]) -> Iterator[Block]:
        """Blocks in offset order that reach into each range given, of seqs or times (B2).

        When sealing overtakes a reader, the next block may begin with records that it has seen already.
        """
        offset, stop = self.log_start, self.log_end
        while offset < stop:
            sealed_end = self.sealed.log_end
            log, end = (self.sealed, min(stop, sealed_end)) if offset < sealed_end else (self.fresh, stop)
            try:
                for block in log.blocks(offset, end, skip_damaged=skip_damaged, **wanted):
                    if log is self.fresh and offset < self.sealed.log_end:
                        break  # a search steps over what was sealed meanwhile, and the sealed form still has it
                    yield block
                    offset = block.offsets.stop
            except OffsetOutOfRange:
                if log is self.sealed or offset >= self.sealed.log_end:
                    raise
            else:
                if log is self.sealed or offset >= self.sealed.log_end:
                    offset = max(offset, end)

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            lineage=self.lineage.hex(),
            head=self.head,
            durable_head=self._durable_head,
            leased_end=self._leased_end,
            acked=self.acked,
            frames_buffered=self._buffered(),
            fresh_bytes=self.fresh.statistics().bytes,
            sealed_bytes=self.sealed.statistics().bytes,
            sealed_end=self.sealed.log_end,
            log_end=self.log_end,
            forced_lost=tuple(self._forced_lost),
            void=tuple(self._void),
        )

    # --- lineage and the end ---------------------------------------------------------------------

    def fork_lineage(self, reason: str, now_us: int) -> bytes:
        """Start a new lineage at seq 1: this journal is not the one that the cluster knows (B7)."""
        self.flush(now_us)
        previous, lineage = self.lineage, self._new_lineage()
        # Written before the meta file names it: a lineage without frames does no harm, the reverse does.
        self.note([LineageOpened(lineage=lineage.hex(), reason=reason, previous=previous.hex())], now_us)
        numbering = self._next_seq, self._durable_head, self._leased_end, self.declared
        self.lineage, self._acks[lineage], self.declared = lineage, 0, self.declared.forked()
        self._next_seq, self._durable_head, self._leased_end = 1, 0, 1
        try:
            self._lease()
        except DiskError:
            self.lineage = previous
            self._next_seq, self._durable_head, self._leased_end, self.declared = numbering
            raise
        return lineage

    def begin(self, meta: dict[str, Any] | None, now_us: int) -> None:
        """Continue the numbering after opening (JJ1, JJ2)."""
        if meta is None:
            older = sealing.lineages(self.sealed) | sealing.lineages(self.fresh)
            self._acks = dict.fromkeys(sorted(older), 0)
            self.lineage = self._new_lineage()
            self._acks[self.lineage], self.orphans = 0, older
            self.declared.open_boot(self._new_lineage(), self.head)
            self._lease()
            reason = "the journal's meta file was lost" if older else "new journal"
            self._announce([LineageOpened(lineage=self.lineage.hex(), reason=reason)], now_us)
            return
        last = max(sealing.last_seq(self.sealed, self.lineage), sealing.last_seq(self.fresh, self.lineage))
        known, leased_end = int(meta["head"]), int(meta["leased_end"])
        self._acks = {bytes.fromhex(lineage): int(seq) for lineage, seq in meta["acks"].items()}
        self._durable_head = max(last, known)
        self.declared = Declared.from_meta(meta)
        self.kept = meta.get("kept", {})
        self.orphans = {bytes.fromhex(lineage) for lineage in meta.get("orphans", [])}
        records: list[ControlRecord] = []
        lineage = self.lineage.hex()
        # Frames that the cluster holds may have been trimmed; the others are lost.
        if lost := range(max(last, self.acked) + 1, known + 1):
            self.declared.lost.add(lost)
            records.append(RangeLost(lineage=lineage, start=lost.start, end=lost.stop, reason="damaged on the boat"))
        # A clean close leases nothing beyond the issued seqs. Its lease still counts in full, since it may be above the
        # newest frame: seqs that were once declared void stay void.
        void = range(self._durable_head + 1, leased_end)
        if void and not meta["clean"]:
            self._void.append(void)
            self.declared.void.add(void)
            records.append(RangeVoid(lineage=lineage, start=void.start, end=void.stop))
        self._next_seq = self._leased_end = max(leased_end, self._durable_head + 1)
        self.declared.open_boot(self._new_lineage(), self.head)
        self._lease()
        if records:
            self._announce(records, now_us)

    def close(self, now_us: int) -> None:
        """Flush, save the exact head, and close both logs cleanly.

        A full disk leaves the journal open, to be closed once there is room. After any other error its files are
        released.
        """
        if self._closed:
            return
        try:
            self.flush(now_us)
            # While the folder is still locked: the next process to open it must find the final lease.
            self._save_meta(leased_end=self._next_seq, clean=True)
        except DiskFull:
            raise
        except BaseException:
            self.let_go(now_us)
            raise
        self.let_go(now_us)

    def let_go(self, now_us: int) -> None:
        """Close both logs and release their folders, without a last flush."""
        self._closed = True
        self._leased_end = self._next_seq  # so that `record` asks for a lease, and is refused
        try:
            self.sealed.close(now_us)
        finally:
            self.fresh.close(now_us)


def open_journal(
    disk: Disk, folder: str, *, now_us: int, new_lineage: Callable[[], bytes], options: JournalOptions | None = None
) -> Journal:
    """Open the journal in `folder`, making it if there is none. `new_lineage` gives 16 random bytes."""
    options = options or JournalOptions()
    disk.make_folder(folder)
    read_meta(disk, folder)  # a format that is not ours is refused before anything is touched
    fresh = open_log(disk, f"{folder}/{FRESH}", now_us=now_us, options=options.fresh_log())
    try:
        # Fresh segments go only after their sealed form was durable, so the sealed log reached here once.
        known = fresh.log_start
        path = f"{folder}/{SEALED}"
        sealed = open_log(disk, path, now_us=now_us, options=options.sealed_log(), known_synced_end=known)
    except BaseException:
        fresh.close(now_us)
        raise
    try:
        if fresh.log_end < sealed.log_end:
            # The fresh log was lost: it goes on where the sealed one ends.
            fresh.close(now_us)
            disk.remove_folder(f"{folder}/{FRESH}")
            fresh = open_log(
                disk, f"{folder}/{FRESH}", now_us=now_us, options=options.fresh_log(), base_offset=sealed.log_end
            )
        sealing.settle(sealed, fresh, now_us)
        # Read again under the locks: the previous owner may have written it since.
        meta = read_meta(disk, folder)
        journal = Journal(
            disk=disk,
            folder=folder,
            options=options,
            fresh=fresh,
            sealed=sealed,
            lineage=bytes.fromhex(meta["lineage"]) if meta else b"",
            new_lineage=new_lineage,
        )
        journal.begin(meta, now_us)
    except BaseException:
        try:
            sealed.close(now_us)
        finally:
            fresh.close(now_us)
        raise
    return journal
