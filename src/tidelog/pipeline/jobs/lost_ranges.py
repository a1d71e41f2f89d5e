"""The table `lost_ranges`: ranges that control records of the log declare lost (no longer available) or void (never
existed).

A task that reads blocks for `frames` also reads the control records between them (`ControlWatch`), and their ranges are
committed here before `frames` passes their offsets (`LostRanges.add`). Adding a range twice changes nothing, so a batch
that is run again adds nothing. A fold snapshot repeats all earlier ranges, and counts too: the first records may have
been trimmed by then (F3).

What a caller must keep: `add` what a batch has read before its offsets are committed anywhere. One thread uses an
instance.

JLR1  A range declared in a batch is in the table no later than that batch's offsets in `frames`.
JLR2  For one pipeline, ranges of a lineage and kind are disjoint, however often they were declared. Two pipelines in
      one folder may store the same range twice, so readers count each seq once.
JLR3  A frame that is held is never lost (F4): readers compare with the missing seqs, as `fleet_health` does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tidelog.blocks.block import Block
from tidelog.blocks.control import ControlRecord, FoldSnapshot, RangeLost, RangeVoid, decode_control
from tidelog.blocks.header import BlockKind
from tidelog.core.ranges import RangeSet
from tidelog.errors import BlockCorrupt, PositionMoved, TableBusy
from tidelog.pipeline.tables import DELTA, open_table
from tidelog.pipeline.tables.layouts import LOST_RANGES_LAYOUT
from tidelog.pipeline.tables.parquet_files import PartitionedWriter
from tidelog.pipeline.tables.reading import file_rows
from tidelog.pipeline.tables.table import DataFile, Table, TableStep

LOST: Final = "lost"
VOID: Final = "void"
_UPSTREAM: Final = "said"
"""The position that the table stores instead of a source version: every addition is a step of one."""
_ATTEMPTS_MAX: Final = 10
_SEQ_END: Final = (1 << 63) - 1
"""Seqs are 64 bits without a sign on the wire and with one in tables."""

Said = tuple[str, str, str]
"""Channel, lineage (32 hex digits) and kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidRange:
    """Seqs [start, end) of a lineage in a control record. Pickled."""

    channel: str
    lineage: str
    kind: str
    start: int
    end: int


@dataclass(slots=True)
class ControlWatch:
    """Takes the control blocks out of the blocks of one channel, and collects their ranges."""

    channel: str
    _said: dict[Said, RangeSet] = field(default_factory=dict)

    def watched(self, runs: Iterable[Sequence[Block]]) -> Iterator[Sequence[Block]]:
        """The runs without their control blocks."""
        control = BlockKind.CONTROL
        for run in runs:
            data = [block for block in run if block.maker.kind != control]
            if len(data) < len(run):
                for block in run:
                    if block.maker.kind == control:
                        for record in decode_control(block.maker, block.raw_body()):
                            self._note(record)
            if data:
                yield data

    def said(self) -> list[SaidRange]:
        return [
            SaidRange(channel=channel, lineage=lineage, kind=kind, start=part.start, end=part.stop)
            for (channel, lineage, kind), parts in self._said.items()
            for part in parts
        ]

    def _note(self, record: ControlRecord) -> None:
        match record:
            case RangeLost():
                self._add(record.lineage, LOST, [[record.start, record.end]])
            case RangeVoid():
                self._add(record.lineage, VOID, [[record.start, record.end]])
            case FoldSnapshot():
                for lineage, fold in record.state.get("lineages", {}).items():
                    for kind in (LOST, VOID):
                        self._add(lineage, kind, fold.get(kind, ()))

    def _add(self, lineage: str, kind: str, pairs: Iterable[Sequence[int]]) -> None:
        try:
            found = RangeSet.from_pairs(pairs)
        except ValueError as error:
            raise BlockCorrupt(problem=f"a control record of {self.channel!r} names no ranges: {error}") from error
        for part in found:
            held = self._said.setdefault((self.channel, lineage, kind), RangeSet())
            held.add(range(part.start, min(part.stop, _SEQ_END)))


class LostRanges:
    """The table, for the job that fills it. It is created when there is something to add."""

    def __init__(self, tables: Path | str, *, pipeline: str, table_format: str = DELTA) -> None:
        self.table: Table = open_table(tables, LOST_RANGES_LAYOUT, table_format=table_format)
        self._pipeline = pipeline
        self._known: dict[Said, RangeSet] = {}
        self._known_version = -1

    def add(self, said: Collection[SaidRange]) -> int:
        """Commit the ranges that the table does not hold; returns how many (JLR2)."""
        if not said:
            return 0
        self.table.create()
        for _ in range(_ATTEMPTS_MAX):
            self._refresh()
            new = self._unknown(said)
            if not new:
                return 0
            start = self.table.consumed(self._pipeline, _UPSTREAM)
            step = TableStep(upstream=_UPSTREAM, start=start, end=(start or 0) + 1)
            try:
                commit = self.table.commit_following(self._pipeline, [step], self._written(new))
            except PositionMoved:
                continue  # another driver was faster: compare with its ranges and try again
            if commit.is_new:
                return len(new)
        raise TableBusy(table=LOST_RANGES_LAYOUT.name, attempts=_ATTEMPTS_MAX)

    def replace(self, channels: Collection[str], said: Collection[SaidRange]) -> None:
        """Let these be all ranges of these channels in the table, which exists, in one transaction."""
        self._known, self._known_version = {}, -1
        kept = [file.path for file in self.table.unguarded_files() if file.partition[0] not in channels]
        self.table.commit_reset(self._pipeline, files=self._written(self._unknown(said)), kept=kept)

    def _refresh(self) -> None:
        version = self.table.version()
        if version == self._known_version:
            return
        self._known = {}
        for row in _rows(self.table, self.table.files()).to_pylist():
            held = self._known.setdefault((row["channel"], row["lineage"], row["kind"]), RangeSet())
            held.add(range(row["seq_start"], row["seq_end"]))
        self._known_version = version

    def _unknown(self, said: Iterable[SaidRange]) -> list[SaidRange]:
        found: dict[Said, RangeSet] = {}
        for one in said:
            key = (one.channel, one.lineage, one.kind)
            for gap in self._known.get(key, RangeSet()).gaps(range(one.start, one.end)):
                found.setdefault(key, RangeSet()).add(gap)
        return [
            SaidRange(channel=channel, lineage=lineage, kind=kind, start=part.start, end=part.stop)
            for (channel, lineage, kind), parts in sorted(found.items())
            for part in parts
        ]

    def _written(self, ranges: Iterable[SaidRange]) -> list[DataFile]:
        rows: list[dict[str, Any]] = [
            {
                "channel": one.channel,
                "lineage": one.lineage,
                "seq_start": one.start,
                "seq_end": one.end,
                "kind": one.kind,
            }
            for one in ranges
        ]
        with PartitionedWriter(self.table.folder, LOST_RANGES_LAYOUT) as writer:
            writer.write_split(pa.RecordBatch.from_pylist(rows, schema=LOST_RANGES_LAYOUT.schema))
            return writer.close()


def read_lost_ranges(table: Table, channels: Collection[str]) -> pa.Table:
    """The ranges of these channels, in the columns of the table."""
    return _rows(table, table.files({(channel,) for channel in channels}))


def _rows(table: Table, files: Iterable[DataFile]) -> pa.Table:
    return pa.concat_tables([table.layout.schema.empty_table(), *(file_rows(table, file) for file in files)])
