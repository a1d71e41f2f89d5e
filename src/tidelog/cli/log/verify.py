"""`tidelog log verify`: every checksum, every offset, every seq; says what is wrong and where.

Damage makes the exit code 1. Notes do not: seqs may jump between blocks, an unclean log has a tail that
will be cut when it is opened, an index that is missing is made again. A file by itself that ends in the
middle of a block is a truncated file: exit code 2, since nothing beside it tells what is missing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

from tidelog.blocks.header import NO_PRODUCER, BlockKind
from tidelog.cli.log.files import BlockInFile, LogFiles, SegmentFile, join
from tidelog.cli.log.sources import BrokenBytes, JournalStream, LogSource, LpjStream, Stream, open_source
from tidelog.cli.output import print_json, progress
from tidelog.core.ranges import RangeSet
from tidelog.edge.journal.journal import META_NAME as JOURNAL_META_NAME
from tidelog.errors import BadBlock
from tidelog.storage.log.log import META_NAME, STATE_NAME
from tidelog.storage.log.segment import SEGMENT_HEAD_BYTES
from tidelog.units import format_bytes

_GAPS_LISTED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    file: str
    problem: str
    position: int | None = None
    """Byte position in the file."""
    start: int | None = None
    end: int | None = None
    """Offsets it is about, half-open."""
    channel: str | None = None

    def __str__(self) -> str:
        place = self.file if self.position is None else f"{self.file} at byte {self.position}"
        if self.start is None:
            offsets = ""
        elif self.end is None:
            offsets = f" (offsets from {self.start})"
        else:
            offsets = f" (offsets [{self.start}, {self.end}))"
        channel = f"channel {self.channel!r}: " if self.channel is not None else ""
        return f"{channel}{place}: {self.problem}{offsets}"


@dataclass(slots=True)
class Report:
    path: str
    kind: str
    segments: int = 0
    blocks: int = 0
    records: int = 0
    bytes: int = 0
    bytes_to_cut: int = 0
    """What opening would cut off: the torn tail of an unclean log."""
    damage: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.damage

    @property
    def truncated(self) -> bool:
        return self.kind == "segment" and self.bytes_to_cut > 0

    def to_json(self) -> dict[str, Any]:
        return {"clean": self.clean, "truncated": self.truncated, **asdict(self)}


def run_verify(path: str, *, channel: str | None, as_json: bool, deep: bool) -> int:
    report = verify(open_source(path, channel=channel), deep=deep)
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    if not report.clean:
        return 1
    return 2 if report.truncated else 0


def _print(report: Report) -> None:
    for finding in report.damage:
        print(f"DAMAGE  {finding}")
    for finding in report.notes:
        print(f"note    {finding}")
    held = f"{report.blocks} blocks, {report.records} records, {format_bytes(report.bytes)}"
    verdict = "clean"
    if report.damage:
        verdict = f"damaged in {len(report.damage)} place{'s' if len(report.damage) > 1 else ''}"
    elif report.truncated:
        verdict = f"truncated, its last {report.bytes_to_cut} bytes are no whole block"
    print(f"{report.path}: {verdict} ({report.kind}, {held})")


def verify(source: LogSource, *, deep: bool = False) -> Report:
    report = Report(path=source.path, kind=source.kind, bytes=source.total_bytes)
    if source.store is not None:
        _check_store(source, report)
    with progress("verifying", 2 * source.total_bytes) as advance:
        for stream in source.streams:
            for log in stream.logs():
                check = _LogCheck(log, report)
                check.marks()
                for segment in log.segments:
                    check.segment(segment)
                    advance(segment.size)
                report.segments += len(log.segments)
            _check_stream(stream, report)
            blocks = _BlockCheck(stream, report, deep=deep)
            for item in stream.items():
                if isinstance(item, BlockInFile):
                    blocks.block(item)
                    advance(item.block.size)
                elif not stream.logs() or item.position is None:
                    # What segments lack was found segment by segment; this is about files without any.
                    blocks.broken(item)
            blocks.finish()
    return report


def _check_store(source: LogSource, report: Report) -> None:
    store = source.store
    assert store is not None
    for path, problem in (*store.table_mark.problems, *store.state_mark.problems, *store.wal_mark_problems()):
        report.damage.append(Finding(file=path, problem=problem))
    for wal in store.wals:
        if not wal.live:
            report.notes.append(Finding(file=wal.path, problem="no longer needed; opening the store removes it"))
            continue
        if not wal.head_good:
            report.damage.append(Finding(file=wal.path, position=0, problem="its header is damaged"))
        if wal.damaged_bytes:
            problem = f"{wal.damaged_bytes} bytes below its last sync mark are damaged"
            report.damage.append(Finding(file=wal.path, problem=problem))
        if wal.bytes_cut:
            position = wal.bytes - wal.bytes_cut
            problem = f"{wal.bytes_cut} bytes would be cut on open"
            report.notes.append(Finding(file=wal.path, position=position, problem=problem))
            report.bytes_to_cut += wal.bytes_cut


def _check_stream(stream: Stream, report: Report) -> None:
    if isinstance(stream, JournalStream):
        for path, problem in stream.meta_mark.problems:
            report.damage.append(Finding(file=path, problem=problem))
        if stream.meta_mark.absent:
            problem = "it is missing; opening the journal starts a new lineage"
            report.damage.append(Finding(file=JOURNAL_META_NAME, problem=problem))
    elif isinstance(stream, LpjStream) and stream.torn_bytes:
        position = stream.total_bytes - stream.torn_bytes
        problem = f"{stream.torn_bytes} bytes after the last whole block: the writer stopped there"
        report.notes.append(Finding(file=stream.path, position=position, problem=problem))
        report.bytes_to_cut += stream.torn_bytes


class _LogCheck:
    """Marks, segment headers, blocks and indexes of one log."""

    def __init__(self, log: LogFiles, report: Report) -> None:
        self._log = log
        self._report = report

    def _damage(self, file: str, problem: str, **place: int | None) -> None:
        self._report.damage.append(Finding(file=file, problem=problem, channel=self._log.name, **place))

    def _note(self, file: str, problem: str, **place: int | None) -> None:
        self._report.notes.append(Finding(file=file, problem=problem, channel=self._log.name, **place))

    def marks(self) -> None:
        log = self._log
        if log.lone:
            return
        meta_path, state_path = join(log.folder, META_NAME), join(log.folder, STATE_NAME)
        for path, problem in (*log.meta_mark.problems, *log.state_mark.problems):
            self._damage(path, problem)
        if log.meta_mark.absent and log.segments:
            self._damage(meta_path, "it is missing")
        if log.managed is None and not log.clean:
            self._note(state_path, "the log was not closed properly; opening it will check its newest segment")
        known_end = int(log.state.get("log_end", 0)) if log.clean else 0
        if not log.segments and max(known_end, log.managed.synced_end if log.managed else 0):
            self._damage(log.segment_folder or ".", "all its segments are gone", start=0, end=known_end)

    def segment(self, segment: SegmentFile) -> None:
        sync_point = self._log.sync_point
        torn_bytes = segment.torn_bytes(sync_point)
        damages = segment.damages(sync_point)
        if not segment.head_fits:
            self._head(segment)
        for damage in damages:
            end = segment.known_end if damage.end_offset is None else damage.end_offset
            self._damage(
                segment.path,
                damage.problem,
                position=damage.start,
                start=damage.first_offset,
                end=end if end > damage.first_offset else None,
            )
        if torn_bytes:
            position = segment.size - torn_bytes
            self._note(segment.path, f"{torn_bytes} bytes would be cut on open", position=position)
            self._report.bytes_to_cut += torn_bytes
        if not damages and not torn_bytes:
            self._index(segment)

    def _head(self, segment: SegmentFile) -> None:
        if segment.newest and segment.size <= SEGMENT_HEAD_BYTES and not self._log.clean and segment.head is None:
            self._note(segment.path, "it was being made when the log stopped; opening the log makes it anew")
        elif segment.head is None:
            self._damage(segment.path, "its header is damaged", position=0)
        else:
            problem = f"its header says channel {segment.head.channel_id}, offset {segment.head.base_offset}"
            self._damage(segment.path, problem, position=0)

    def _index(self, segment: SegmentFile) -> None:
        path = f"{segment.path}.index"
        settled = not segment.newest or self._log.clean
        if segment.index_bytes is None:
            if not segment.newest:
                self._note(path, "it is missing; opening the log makes it again")
            return
        index = segment.index
        if index is None:
            report = self._damage if settled or self._log.lone else self._note
            report(path, "its checksum does not match")
            return
        stale = segment.newest and index.size < segment.size
        if stale and (self._log.managed is not None or not settled):
            return  # written at an earlier checkpoint or close; recovery does not use it
        if segment.index_bytes != segment.scan.index.pack():
            self._damage(path, "it does not agree with its segment")


class _BlockCheck:
    """What only shows when one block is compared with those before it."""

    def __init__(self, stream: Stream, report: Report, *, deep: bool) -> None:
        self._name = stream.name
        self._report = report
        self._deep = deep
        self._epoch = 0
        self._seqs: dict[bytes, RangeSet] = defaultdict(RangeSet)

    def broken(self, item: BrokenBytes) -> None:
        self._damage(item.file, item.position, item.problem, item.first_offset, item.end_offset)

    def block(self, placed: BlockInFile) -> None:
        block = placed.block
        self._report.blocks += 1
        self._report.records += block.counted
        start, end = block.offsets.start, block.offsets.stop
        if block.maker.kind == BlockKind.MISSING:
            self._damage_at(
                placed,
                "a placeholder stands here for records whose bytes were damaged",
                start,
                end,
            )
        if block.leader.leader_epoch < self._epoch:
            problem = f"epoch {block.leader.leader_epoch} comes after epoch {self._epoch}"
            self._damage_at(placed, problem, start, end)
        self._epoch = max(self._epoch, block.leader.leader_epoch)
        held = self._seqs[block.maker.producer]
        for seqs in block.counted_seqs():
            for twice in held.overlap(seqs):
                who = _lineage(block.maker.producer)
                self._damage_at(
                    placed,
                    f"seqs [{twice.start}, {twice.stop}) of {who} are here twice",
                    start,
                    end,
                )
            held.add(seqs)
        if self._deep:
            self._decode(placed)

    def _decode(self, placed: BlockInFile) -> None:
        from tidelog.cli.log.dump import DumpBounds, block_rows

        block = placed.block
        if block.maker.kind == BlockKind.MISSING:
            return
        try:
            for _ in block_rows(block, DumpBounds()):
                pass
        except BadBlock as error:
            self._damage_at(placed, error.problem, block.offsets.start, block.offsets.stop)

    def finish(self) -> None:
        for producer, held in self._seqs.items():
            gaps = held.gaps(range(held.start, held.end))
            for gap in gaps[:_GAPS_LISTED_MAX]:
                problem = f"{_lineage(producer)} has no seqs [{gap.start}, {gap.stop})"
                self._report.notes.append(Finding(file=self._report.path, problem=problem, channel=self._name))
            if len(gaps) > _GAPS_LISTED_MAX:
                problem = f"{_lineage(producer)} has {len(gaps) - _GAPS_LISTED_MAX} more gaps in its seqs"
                self._report.notes.append(Finding(file=self._report.path, problem=problem, channel=self._name))

    def _damage_at(self, placed: BlockInFile, problem: str, start: int, end: int) -> None:
        self._damage(placed.file, placed.position, problem, start, end)

    def _damage(self, file: str, position: int | None, problem: str, start: int, end: int | None) -> None:
        finding = Finding(file=file, position=position, problem=problem, start=start, end=end, channel=self._name)
        self._report.damage.append(finding)


def _lineage(producer: bytes) -> str:
    return "the file" if producer == NO_PRODUCER else f"lineage {producer.hex()}"
