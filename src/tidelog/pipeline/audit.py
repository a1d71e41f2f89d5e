"""Proof that journal, log, replicas and table hold the same frames, and which differ if any do.

Every side is read by Spark tasks and compared by fingerprints: a count and a checksum per stretch of 65,536 seqs
(`fingerprint`). Where two sides agree nothing more is read. Where they do not, the stretches that differ are read
again, hash by hash, so that what is missing, different or doubled is named by seq.

What is compared:
- the log with the table, from the log's start to the table's position: both must hold the same;
- a boat's journal with the log: what the journal holds must be in the log. What Live saved and the journal lost, and
  what retention took from the journal, is in the log alone, and is no difference; what the boat has not shipped yet
  is told apart;
- replicas with each other, over the offsets that all of them hold.

AU1  Equal means every frame was read on both sides, from its bytes, in this run; nothing is taken from statistics.
AU2  A difference is never left out: beyond the limit on detail it is still counted and reported by stretch.
AU3  Every offset of the log is read once, whatever it is compared with, as long as all is equal.
"""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.pipeline.fingerprint import FINGERPRINT_SCHEMA, HASH_SCHEMA, STRETCH_BITS, fingerprints, hashes
from tidelog.pipeline.sources.address import LogsAddress
from tidelog.pipeline.sources.columns import FRAMES, ROWS_MAX, batches
from tidelog.pipeline.sources.logs import ChannelEnds, Piece
from tidelog.pipeline.tables.reading import fitted
from tidelog.pipeline.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG: Final = "log"
TABLE: Final = "frames"
_COLUMNS: Final = (
    "channel",
    "lineage",
    "seq",
    "offset",
    "time",
    "priority",
    "pgn",
    "source",
    "destination",
    "data",
)
_SHARE_OFFSETS: Final = 1 << 20
_SHARE_BYTES: Final = 64 << 20
_STRETCHES_IN_DETAIL: Final = 256
"""How many differing stretches of one pair of sides are reported frame by frame."""
_MODULUS: Final = 1 << 64

Key = tuple[str, str | None, int]
"""Channel, lineage (None where offsets are the places) and stretch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogShare:
    """A range of a log for one task."""

    address: LogsAddress
    piece: Piece
    channel: str
    """The name of the frames' channel in the comparison: a journal has none of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShare:
    """Some files of the table for one task; only these offsets of each channel count."""

    files: tuple[tuple[str, str], ...]
    """Path and channel of each."""
    offsets: Mapping[str, tuple[int, int]]


Share = LogShare | TableShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A run of places at which one side differs from the other."""

    channel: str
    lineage: str | None
    what: str
    """missing, different, twice, or differs (past the limit on detail)."""
    side: str
    """The place."""
    against: str
    first: int
    last: int
    frames: int

    def __str__(self) -> str:
        places = f"seqs {self.first} to {self.last}" if self.lineage else f"offsets {self.first} to {self.last}"
        of = f" of lineage {self.lineage}" if self.lineage else ""
        return f"{self.channel}{of}: {self.frames} frames {self.what} in {self.side}, {places} (against {self.against})"


@dataclass(slots=True, kw_only=True)
class AuditResult:
    """What an audit found."""

    frames: dict[str, int] = field(default_factory=dict)
    """Frames read, by side."""
    compared: list[tuple[str, str]] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    not_shipped: dict[str, int] = field(default_factory=dict)
    """Frames of a journal that are newer than all that the log has of their lineage, by channel."""
    only_in_log: dict[str, int] = field(default_factory=dict)
    """Frames that a journal no longer has, by channel."""

    @property
    def equal(self) -> bool:
        return not self.differences

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "equal": self.equal,
            "frames": dict(self.frames),
            "compared": [list(pair) for pair in self.compared],
            "differences": [
                {name: getattr(one, name) for name in Difference.__dataclass_fields__} for one in self.differences
            ],
            "not_shipped": dict(self.not_shipped),
            "only_in_log": dict(self.only_in_log),
        }


def audit(
    spark: SparkSession,
    *,
    log: LogsAddress,
    table: Table | None = None,
    pipeline: str = "",
    channels: Sequence[str] = ("*",),
    journals: Mapping[str, LogsAddress] | None = None,
    replicas: Mapping[str, LogsAddress] | None = None,
) -> AuditResult:
    """Compare the named sides. `journals` are by channel; `replicas` by node, each with all its channels."""
    auditor = _Auditor(spark)
    journals = journals or {}
    logs = log.open()
    try:
        ends = {one.channel: one for one in logs.channels(channels)}
    finally:
        logs.close()
    held: dict[str, tuple[int, int]] = {}
    if table is not None:
        positions = table.positions(pipeline, [one.channel_id for one in ends.values()])
        held = {
            one.channel: (one.log_start, min(positions[one.channel_id].next_offset, one.committed_end))
            for one in ends.values()
            if one.channel_id in positions
        }
    # The part of the log that the table is compared with counts for the journals too; they need the rest of their
    # channels besides (AU3).
    rest = {
        name: (max(one.log_start, held[name][1]) if name in held else one.log_start, one.committed_end)
        for name, one in ends.items()
        if name in journals
    }
    below = beyond = _Side(name=LOG, shares=())
    if journals:
        beyond = auditor.side(LOG, log_shares(log, [ends[name] for name in rest], rest))
    if table is not None:
        below = auditor.side(LOG, log_shares(log, [ends[name] for name in held], held))
        auditor.compare_equal(below, auditor.side(TABLE, table_shares(table, held)))
    for channel, address in journals.items():
        auditor.compare_journal(channel, address, _joined(channel, below, beyond))
    auditor.compare_replicas(replicas or {}, channels)
    return auditor.result


@dataclass(slots=True, kw_only=True)
class _Side:
    """One side of a comparison: how to read it, and the result once it was read."""

    name: str
    shares: Sequence[Share]
    sums: dict[Key, tuple[int, int]] = field(default_factory=dict)
    """Frames and checksum of every stretch."""
    newest: dict[tuple[str, str | None], int] = field(default_factory=dict)
    """The last place of each channel and lineage."""

    def add(self, key: Key, frames: int, checksum: int, last: int) -> None:
        known = self.sums.get(key, (0, 0))
        self.sums[key] = known[0] + frames, (known[1] + checksum) % _MODULUS
        self.newest[key[:2]] = max(last, self.newest.get(key[:2], last))


def _joined(channel: str, *sides: _Side) -> _Side:
    """The results of several parts of one side for a channel."""
    shares = [
        share for side in sides for share in side.shares if isinstance(share, LogShare) and share.channel == channel
    ]
    joined = _Side(name=sides[0].name, shares=shares)
    for side in sides:
        for key, (frames, checksum) in side.sums.items():
            if key[0] == channel:
                joined.add(key, frames, checksum, side.newest[key[:2]])
    return joined


class _Auditor:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.result = AuditResult()

    def compare_equal(self, left: _Side, right: _Side) -> None:
        ours, theirs = left.sums, right.sums
        self.result.compared.append((left.name, right.name))
        unlike = sorted((key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)), key=_sortable)
        detailed = unlike[:_STRETCHES_IN_DETAIL]
        left_frames, right_frames = self._frames_of(left.shares, detailed), self._frames_of(right.shares, detailed)
        for key in detailed:
            mine, other = left_frames.get(key, []), right_frames.get(key, [])
            for name, against, here, there in (
                (left.name, right.name, mine, other),
                (right.name, left.name, other, mine),
            ):
                self._tell("missing", key, name, against, _places(there) - _places(here))
                self._tell("twice", key, name, against, _doubled(here))
            self._tell("different", key, right.name, left.name, _changed(mine, other))
        for key in unlike[_STRETCHES_IN_DETAIL:]:
            self._tell_stretch(key, left.name, right.name)

    def compare_journal(self, channel: str, address: LogsAddress, log: _Side) -> None:
        """All of the journal must be in the log; the log may have more of the same lineages."""
        logs = address.open()
        try:
            shares = log_shares(address, logs.channels(("*",)), None, channel=channel)
        finally:
            logs.close()
        journal = self.side(f"journal of {channel}", shares)
        ours, theirs, newest = journal.sums, log.sums, log.newest
        self.result.compared.append((journal.name, LOG))
        lineages = {key[1] for key in ours}
        self.result.not_shipped[channel] = sum(
            count for key, (count, _) in ours.items() if key[2] << STRETCH_BITS > newest.get(key[:2], -1)
        )
        self.result.only_in_log[channel] = sum(
            count for key, (count, _) in theirs.items() if key[1] in lineages and key not in ours
        )
        unlike = sorted(
            (key for key in ours if ours[key] != theirs.get(key) and key[2] << STRETCH_BITS <= newest.get(key[:2], -1)),
            key=_sortable,
        )
        detailed = unlike[:_STRETCHES_IN_DETAIL]
        held, shipped = self._frames_of(shares, detailed), self._frames_of(log.shares, detailed)
        for key in detailed:
            mine, other = held.get(key, []), shipped.get(key, [])
            absent = _places(mine) - _places(other)
            ahead = {place for place in absent if place > newest[key[:2]]}
            self.result.not_shipped[channel] += len(ahead)
            self.result.only_in_log[channel] += len(_places(other) - _places(mine))
            self._tell("missing", key, LOG, journal.name, absent - ahead)
            self._tell("different", key, LOG, journal.name, _changed(mine, other))
            self._tell("twice", key, LOG, journal.name, _doubled(other))
            self._tell("twice", key, journal.name, LOG, _doubled(mine))
        for key in unlike[_STRETCHES_IN_DETAIL:]:
            self._tell_stretch(key, journal.name, LOG)

    def compare_replicas(self, replicas: Mapping[str, LogsAddress], channels: Sequence[str]) -> None:
        """Compare each replica with the first one, over the offsets that both hold of a channel."""
        ends: dict[str, dict[str, ChannelEnds]] = {}
        for node, address in replicas.items():
            logs = address.open()
            try:
                ends[node] = {one.channel: one for one in logs.channels(channels)}
            finally:
                logs.close()
        for channel in sorted({name for known in ends.values() for name in known}):
            holders = [node for node in ends if channel in ends[node]]
            first = holders[0]
            for other in holders[1:]:
                pair = ends[first][channel], ends[other][channel]
                common = {
                    channel: (max(one.log_start for one in pair), min(one.committed_end for one in pair)),
                }
                self.compare_equal(
                    self.side(f"replica on {first}", log_shares(replicas[first], [pair[0]], common)),
                    self.side(f"replica on {other}", log_shares(replicas[other], [pair[1]], common)),
                )

    # --- reading ---------------------------------------------------------------------------------------

    def side(self, name: str, shares: Sequence[Share]) -> _Side:
        """Read a side, every frame of it."""
        side = _Side(name=name, shares=shares)
        for row in _run(self._spark, shares, None):
            side.add((row["channel"], row["lineage"], row["stretch"]), row["frames"], row["checksum"], row["last"])
        read = sum(frames for frames, _ in side.sums.values())
        self.result.frames[name] = self.result.frames.get(name, 0) + read
        return side

    def _frames_of(self, shares: Sequence[Share], stretches: Sequence[Key]) -> dict[Key, list[tuple[int, int]]]:
        """Place and hash of every frame in these stretches."""
        if not stretches:
            return {}
        found: dict[Key, list[tuple[int, int]]] = {}
        for row in _run(self._spark, shares, frozenset(stretches)):
            key = row["channel"], row["lineage"], row["place"] >> STRETCH_BITS
            found.setdefault(key, []).append((row["place"], row["hash"]))
        return found

    # --- telling ---------------------------------------------------------------------------------------

    def _tell(self, what: str, key: Key, side: str, against: str, places: Iterable[int]) -> None:
        for first, last in _runs(places):
            self.result.differences.append(
                Difference(
                    channel=key[0],
                    lineage=key[1],
                    what=what,
                    side=side,
                    against=against,
                    first=first,
                    last=last,
                    frames=last - first + 1,
                )
            )

    def _tell_stretch(self, key: Key, left: str, right: str) -> None:
        """AU2."""
        first = key[2] << STRETCH_BITS
        self.result.differences.append(
            Difference(
                channel=key[0],
                lineage=key[1],
                what="differs",
                side=right,
                against=left,
                first=first,
                last=first + (1 << STRETCH_BITS) - 1,
                frames=0,
            )
        )


# --- shares ------------------------------------------------------------------------------------------


def log_shares(
    address: LogsAddress,
    ends: Iterable[ChannelEnds],
    offsets: Mapping[str, tuple[int, int]] | None,
    *,
    channel: str | None = None,
) -> list[Share]:
    """These channels of a log, or these offsets of them, cut for tasks."""
    shares: list[Share] = []
    for one in ends:
        start, end = offsets[one.channel] if offsets is not None else (one.log_start, one.committed_end)
        shares.extend(
            LogShare(
                address=address,
                channel=channel or one.channel,
                piece=Piece(
                    channel=one.channel,
                    channel_id=one.channel_id,
                    leader_epoch=one.leader_epoch,
                    start=first,
                    end=min(first + _SHARE_OFFSETS, end),
                ),
            )
            for first in range(start, end, _SHARE_OFFSETS)
        )
    return shares


def table_shares(table: Table, offsets: Mapping[str, tuple[int, int]]) -> list[Share]:
    """The files of these channels in groups of a sensible size."""
    column = table.layout.partition_by.index("channel")
    shares: list[Share] = []
    group: list[tuple[str, str]] = []
    group_bytes = 0
    for file in sorted(table.files(), key=lambda one: one.path):
        channel = file.partition[column]
        if channel is None or channel not in offsets:
            continue
        if group and group_bytes + file.bytes > _SHARE_BYTES:
            shares.append(TableShare(files=tuple(group), offsets=dict(offsets)))
            group, group_bytes = [], 0
        group.append((str(table.path_of(file)), channel))
        group_bytes += file.bytes
    if group:
        shares.append(TableShare(files=tuple(group), offsets=dict(offsets)))
    return shares


def share_batches(share: Share) -> Iterator[pa.RecordBatch]:
    """The frames of a share, in the columns that fingerprints need."""
    if isinstance(share, LogShare):
        runs = share.address.open_shared().blocks(share.piece)
        for batch in batches(runs, share.piece, _COLUMNS):
            if share.channel == share.piece.channel:
                yield batch
            else:
                name = pa.repeat(pa.scalar(share.channel, pa.string()), batch.num_rows)
                yield batch.set_column(0, "channel", name)
        return
    wanted = pa.schema([FRAMES.field(name) for name in _COLUMNS])
    for path, channel in share.files:
        with pq.ParquetFile(Path(path)) as file:
            for read in file.iter_batches(batch_size=ROWS_MAX, columns=list(_COLUMNS)):
                batch = fitted(read, wanted, {"channel": channel})
                yield batch.filter(_within(batch, share.offsets))


def _within(batch: pa.RecordBatch, offsets: Mapping[str, tuple[int, int]]) -> pa.Array:
    names = batch.column("channel")
    known = pa.array(list(offsets), pa.string())
    place = pc.index_in(names, value_set=known)
    starts = pa.array([start for start, _ in offsets.values()], pa.int64()).take(place)
    ends = pa.array([end for _, end in offsets.values()], pa.int64()).take(place)
    column = batch.column("offset")
    held = pc.and_(pc.greater_equal(column, starts), pc.less(column, ends))
    return pc.fill_null(held, False)


def _run(spark: SparkSession, shares: Sequence[Share], stretches: frozenset[Key] | None) -> Iterator[dict[str, Any]]:
    """The rows of the shares, read by Spark's tasks, one share each."""
    if not shares:
        return
    column = pa.array([pickle.dumps(share) for share in shares], pa.binary())
    pickled = spark.createDataFrame(pa.table({"share": column})).repartition(len(shares))
    schema = FINGERPRINT_SCHEMA if stretches is None else HASH_SCHEMA

    def read(incoming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for taken in incoming:
            for one in taken.column("share").to_pylist():
                yield from _told(pickle.loads(one), stretches)

    made = pickled.mapInArrow(read, _spark_schema(schema))
    for batch in made.toArrow().to_batches():
        yield from batch.to_pylist()


def _told(share: Share, stretches: frozenset[Key] | None) -> Iterator[pa.RecordBatch]:
    for batch in share_batches(share):
        if stretches is None:
            yield fingerprints(batch)
        else:
            yield hashes(batch, stretches)


def _spark_schema(schema: pa.Schema) -> str:
    kinds = {pa.string(): "string", pa.int64(): "bigint"}
    return ", ".join(f"{one.name} {kinds[one.type]}" for one in schema)


# --- sets of frames ----------------------------------------------------------------------------------


def _places(frames: Sequence[tuple[int, int]]) -> set[int]:
    return {place for place, _ in frames}


def _changed(mine: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> set[int]:
    """Places that both have, with different frames."""
    ours, theirs = dict(mine), dict(other)
    return {place for place in ours.keys() & theirs.keys() if ours[place] != theirs[place]}


def _doubled(frames: Sequence[tuple[int, int]]) -> set[int]:
    return {place for place, count in Counter(place for place, _ in frames).items() if count > 1}


def _runs(places: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of every run of neighbours."""
    ordered = sorted(places)
    for _, run in itertools.groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
        listed = [place for _, place in run]
        yield listed[0], listed[-1]


def _sortable(key: Key) -> tuple[str, str, int]:
    return key[0], key[1] or "", key[2]
