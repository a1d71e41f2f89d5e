"""`spark.readStream.format("tidelog")`: exact offsets, limits by trigger, channels that appear while it runs.

The offset of a stream is `{channel: {"id", "epoch", "next"}}`: which channel it is, under which leader epoch its end
was read, and the offset that comes next. The first time a channel appears in an end, "from" has its first offset, so
that a batch which is planned again after a crash reads exactly the same range, whatever the log contains by then. The
empty name has the identity of the cluster.

A batch may be planned and read more than once, and the source acknowledges nothing: the job that writes tables moves a
named cursor once the table has committed (R12).

SSS1  Batches of a stream follow each other without gap and overlap, per channel.
SSS2  A checkpoint of another cluster, a recreated channel, a lost or rewritten history are refused with an explanation.
SSS3  The initial offset is always empty: the start of a stream is stored with its first batch and not computed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from tidelog.errors import (
    ChannelRecreated,
    CommittedLost,
    HistoryRewritten,
    SourceChanged,
    UnknownChannel,
)
from tidelog.pipeline.sources.logs import SKIP, ChannelEnds, Logs, Piece, trimmed
from tidelog.pipeline.sources.planning import ABOUT, Offset, offset_of, pieces_of_batch, shares, split
from tidelog.pipeline.sources.rows import rows_of
from tidelog.pipeline.sources.source_options import SourceOptions, StartPlace

_BYTES_GUESSED: Final = 32
"""The assumed bytes of a record, where there is none to look at."""


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark keeps one on the driver for the duration of a query, and copies of it in the tasks."""

    def __init__(self, options: SourceOptions, columns: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._target: dict[str, int] | None = None
        """Ends that a run over present records does not pass."""
        self._seen: set[str] = set()
        """Channels that were there in this run of the query."""
        self._record_bytes: dict[str, float] = {}
        self._asked: list[ChannelEnds] | None = None
        """The leaders' answers when the batch was planned."""

    # --- offsets -----------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, all of these
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.max_records_per_trigger is not None:
            return ReadMaxRows(options.max_records_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = {ends.channel: ends.committed_end for ends in self._ends()}

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """What the channels held when the batch was planned: Spark shows it beside the batch's end, and so the lag."""
        asked, self._asked = self._asked, None  # once: a look without a batch asks again
        return {
            ends.channel: {"id": ends.channel_id, "epoch": ends.leader_epoch, "next": ends.committed_end}
            for ends in (self._ends() if asked is None else asked)
        }

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        logs = self._logs()
        self._asked = found = self._ends()
        self._require_same(start, logs, found)
        begins = {ends.channel: self._begin(start, ends, logs) for ends in found}
        target = self._target
        stops = {
            ends.channel: ends.committed_end
            if target is None
            else max(begins[ends.channel], min(ends.committed_end, target.get(ends.channel, ends.log_start)))
            for ends in found
            if target is None or ends.channel in target or ends.channel in start
        }
        available = {name: stop - begins[name] for name, stop in stops.items()}
        given = self._given(available, begins, found, limit)
        end: Offset = {ABOUT: {"cluster": logs.identity}, **{name: at for name, at in start.items() if name}}
        for ends in found:
            name = ends.channel
            if name not in given:
                continue
            if name in start and not given[name]:
                continue  # nothing new: the same entry, so that Spark sees that nothing moved
            entry = {"id": ends.channel_id, "epoch": ends.leader_epoch, "next": begins[name] + given[name]}
            end[name] = entry if name in start else {**entry, "from": begins[name]}
        return end

    def _require_same(self, start: Offset, logs: Logs, found: Sequence[ChannelEnds]) -> None:
        """SSS2."""
        known = start.get(ABOUT, {}).get("cluster", logs.identity)
        if known != logs.identity:
            raise SourceChanged(
                problem=f"it was made on cluster {known or 'none'} and this is {logs.identity or 'none'}"
            )
        names = {ends.channel for ends in found}
        for name in start:
            # In the middle of a run it is an error; a run that begins without the channel has reported it.
            if name and name not in names and name in self._seen:
                raise UnknownChannel(channel=name)
        self._seen |= names
        for ends in found:
            entry = start.get(ends.channel)
            if entry is None:
                continue
            if entry["id"] != ends.channel_id:
                raise ChannelRecreated(channel=ends.channel, expected_id=entry["id"], found_id=ends.channel_id)
            if ends.unclean_epoch > entry["epoch"]:
                raise HistoryRewritten(
                    channel=ends.channel,
                    offset=min(entry["next"], ends.committed_end),
                    leader_epoch=entry["epoch"],
                    found_epoch=ends.unclean_epoch,
                )
            if ends.committed_end < entry["next"]:
                raise CommittedLost(
                    channel=ends.channel,
                    offset=entry["next"],
                    committed_end=ends.committed_end,
                    leader_epoch=ends.leader_epoch,
                )

    def _begin(self, start: Offset, ends: ChannelEnds, logs: Logs) -> int:
        """The first offset of the channel's next batch."""
        options = self._options
        entry = start.get(ends.channel)
        if entry is not None:
            begin = int(entry["next"])
            if begin < ends.log_start and options.on_trimmed != SKIP:
                raise trimmed(ends.channel, begin, ends.log_start)
            return begin
        if start and options.starting.kind != "time":
            return ends.log_start  # it is new since the stream began: all of it is
        place: StartPlace = options.starting
        return offset_of(place, ends, logs, default=ends.log_start, on_trimmed=options.on_trimmed)

    # --- limits ------------------------------------------------------------------------------------

    def _given(
        self, available: dict[str, int], begins: dict[str, int], found: Sequence[ChannelEnds], limit: ReadLimit
    ) -> dict[str, int]:
        """How many offsets of each channel the next batch takes."""
        if isinstance(limit, ReadMaxRows):
            return shares(available, limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            waiting = {name: count for name, count in available.items() if count}
            sizes = {
                ends.channel: self._bytes_of(ends, begins[ends.channel]) for ends in found if ends.channel in waiting
            }
            total = sum(waiting.values())
            if not total:
                return available
            mean = sum(sizes[name] * count for name, count in waiting.items()) / total
            return shares(available, max(1, int(limit.max_bytes / mean)))
        return available

    def _bytes_of(self, ends: ChannelEnds, begin: int) -> float:
        """The approximate size of a record of the channel: looks at the next block, once."""
        known = self._record_bytes.get(ends.channel)
        if known is None:
            begin = max(begin, ends.log_start)
            piece = Piece(
                channel=ends.channel,
                channel_id=ends.channel_id,
                leader_epoch=ends.leader_epoch,
                start=begin,
                end=begin + 1,
            )
            known = float(_BYTES_GUESSED)
            for run in self._logs().blocks(piece, on_trimmed=SKIP, on_damaged=SKIP):
                known = max(1.0, run[0].size / max(1, run[0].counted))
                break
            self._record_bytes[ends.channel] = known
        return known

    # --- batches -----------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return [InputPartition(task) for task in split(pieces_of_batch(start, end), self._options.split_records)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(partition.value, self._options, self._columns, {})

    def commit(self, end: Offset) -> None:
        """Returns nothing: Spark calls it late, and never for the last batch of a run."""

    def stop(self) -> None:
        """The process ends with the query, and its connection with it."""

    def _logs(self) -> Logs:
        return self._options.address.open_shared()

    def _ends(self) -> list[ChannelEnds]:
        return self._logs().channels(self._options.channels)
