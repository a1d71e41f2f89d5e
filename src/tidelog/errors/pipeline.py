"""Refusals of the pipeline: what a Spark job meets when the log is not what it was told, or has no engine to run on."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.errors.base import LogError


class ChannelRecreated(LogError):
    """The channel of this name is another one now: it was deleted and created again, and offsets of the old one mean
    nothing in it. Nothing was read or written. If the new channel is meant, begin anew: with a new reader (or
    `on_recreate="restart"`), a new checkpoint or pipeline name."""

    code = "channel_recreated"

    def __init__(self, *, channel: str, expected_id: int, found_id: int) -> None:
        super().__init__(
            f"channel {channel!r} has id {found_id} and {expected_id} was expected: it was deleted and created again, "
            "or this is another cluster; if the new channel is meant, begin anew: with a new reader or a new checkpoint"
        )
        self.channel = channel
        self.expected_id = expected_id
        self.found_id = found_id


class HistoryRewritten(LogError):
    """Offsets that were planned or read under one leader epoch hold records of a newer one: an unclean election, or a
    log that was truncated, lies between. Nothing was read. Compare what was read with the channel, then start over."""

    code = "history_rewritten"

    def __init__(self, *, channel: str, offset: int, leader_epoch: int, found_epoch: int) -> None:
        super().__init__(
            f"channel {channel!r} was read under leader epoch {leader_epoch}, and from offset {offset} on it may hold "
            f"other records of epoch {found_epoch}: an unclean election lies between; compare what was read with the "
            "channel, then read it anew: a pipeline into other tables"
        )
        self.channel = channel
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.found_epoch = found_epoch


class RecordsDamaged(LogError):
    """Records of a channel cannot be read: no replica, or the folder, holds good bytes of them. Nothing after them was
    delivered. Repair the log or bring a replica back and run again, or read with on_damaged=skip."""

    code = "records_damaged"
    retriable = True

    def __init__(self, *, channel: str, start: int, end: int, problem: str) -> None:
        super().__init__(
            f"channel {channel!r} cannot be read from offset {start} to {end}: {problem}; restore it (`tidelog log "
            "verify` says where) and run again, or go on without these records with on_damaged=skip"
        )
        self.channel = channel
        self.start = start
        self.end = end
        self.problem = problem


class SourceChanged(LogError):
    """A stream's checkpoint names channels or positions that do not fit what is read now. Nothing was read."""

    code = "source_changed"

    def __init__(self, *, problem: str) -> None:
        super().__init__(f"this checkpoint does not fit: {problem}; use the one that was made here, or a new one")
        self.problem = problem


class ChannelTaken(LogError):
    """The tables hold this channel for another pipeline: filled by two, they would hold every row twice. Nothing was
    read. Go on under the other pipeline's name, or give this one tables of its own."""

    code = "channel_taken"

    def __init__(self, *, channel: str, pipeline: str, tables: str) -> None:
        super().__init__(
            f"channel {channel!r} is in {tables} already, brought there by another pipeline than {pipeline!r}; go on "
            "under that one's -name, or give this one other -tables"
        )
        self.channel = channel
        self.pipeline = pipeline
        self.tables = tables


class SinkRefused(LogError):
    """The sink cannot publish without the risk of a loss or a duplicate. What was published before stays."""

    code = "sink_refused"

    def __init__(self, *, channel: str, problem: str) -> None:
        super().__init__(f"nothing more is published into channel {channel!r}: {problem}")
        self.channel = channel
        self.problem = problem


class EngineMissing(LogError):
    """There is no Spark or no Java to run it on."""

    code = "engine_missing"

    def __init__(self, *, problem: str) -> None:
        super().__init__(f"the pipeline cannot start: {problem}")
        self.problem = problem


class PositionMoved(LogError):
    """Another driver of the same pipeline committed into the middle of what this one had prepared. Nothing of this
    attempt was committed. It is tried again from where the table stands; stop one of the drivers if this goes on."""

    code = "position_moved"
    retriable = True

    def __init__(self, *, table: str, channel: str, stored: int, start: int, end: int) -> None:
        super().__init__(
            f"table {table!r} stands at {stored} for {channel!r} and [{start}, {end}) was to be committed: another "
            "driver of this pipeline is at work; run one of them, this one goes on from the table"
        )
        self.table = table
        self.channel = channel
        self.stored = stored
        self.start = start
        self.end = end


class CheckpointAhead(LogError):
    """The checkpoint says that more is done than the table holds: it was made for another table, or the table was put
    back to an older state. Nothing was committed. Delete the checkpoint; the table knows where to go on."""

    code = "checkpoint_ahead"

    def __init__(self, *, table: str, channel: str, stored: int, start: int) -> None:
        super().__init__(
            f"table {table!r} stands at {stored} for channel {channel!r} and the checkpoint goes on at {start}: "
            "records would be missing; delete the checkpoint's folder and run again, the table knows where to go on"
        )
        self.table = table
        self.channel = channel
        self.stored = stored
        self.start = start


class CheckpointForeign(LogError):
    """The checkpoint was made for another cluster, folder, table or pipeline. Nothing was read or written."""

    code = "checkpoint_foreign"

    def __init__(self, *, folder: str, differences: Sequence[str]) -> None:
        super().__init__(
            f"the checkpoint in {folder!r} belongs to something else: {'; '.join(differences)}; name the right one, or "
            "delete it: the table knows where to go on"
        )
        self.folder = folder
        self.differences = list(differences)


class TableBusy(LogError):
    """Other writers won every race for the table's next version. Nothing was committed; try again."""

    code = "table_busy"
    retriable = True

    def __init__(self, *, table: str, attempts: int) -> None:
        super().__init__(
            f"table {table!r} was changed by others {attempts} times in a row; try again, with fewer writers"
        )
        self.table = table
        self.attempts = attempts


class TableDiffers(LogError):
    """There is a table in this folder, and its columns or partitions are not those of the pipeline."""

    code = "table_differs"

    def __init__(self, *, folder: str, problem: str) -> None:
        super().__init__(f"the table in {folder!r} is not ours: {problem}; name another folder, or move it away")
        self.folder = folder
        self.problem = problem


class HistoryGone(LogError):
    """A table no longer remembers the changes since the version that its follower has. Rebuild the follower."""

    code = "history_gone"

    def __init__(self, *, table: str, version: int, problem: str) -> None:
        super().__init__(
            f"table {table!r} cannot tell what came after version {version}: {problem}; move the table that follows it "
            "away and run again, it is built anew from all rows"
        )
        self.table = table
        self.version = version
        self.problem = problem


class StageFailed(LogError):
    """A stage of the pipeline failed again and again, and whoever watches it gave up. What was committed stays."""

    code = "stage_failed"
    retriable = True

    def __init__(self, *, stage: str, attempts: int, problem: str) -> None:
        super().__init__(f"stage {stage!r} failed {attempts} times in a row: {problem}; put it right and run again")
        self.stage = stage
        self.attempts = attempts
        self.problem = problem


class StageRefused(LogError):
    """A stage of the pipeline met something that does not pass by itself; `cause` is the code of the error it met, and
    its row here says what to do. What was committed stays."""

    code = "stage_refused"

    def __init__(self, *, stage: str, cause: str, problem: str) -> None:
        super().__init__(f"stage {stage!r} stopped ({cause}): {problem}")
        self.stage = stage
        self.cause = cause
        self.problem = problem
