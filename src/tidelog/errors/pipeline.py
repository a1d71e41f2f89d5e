"""Errors of the pipeline: channels, checkpoints or tables that do not fit, and a missing Spark or Java."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.errors.base import LogError


class ChannelRecreated(LogError):
    """The channel was deleted and created again under the same name, so offsets of the old channel mean nothing in it.
    Nothing was read or written. To read the new channel, start over: with a new reader (or `on_recreate="restart"`),
    a new checkpoint or another pipeline name."""

    template = (
        "channel {channel!r} has id {found_id} and {expected_id} was expected: it was deleted and created again, or "
        "this is another cluster; to read the new channel, start over with a new reader or a new checkpoint"
    )
    channel: str
    expected_id: int
    found_id: int


class HistoryRewritten(LogError):
    """Offsets that were planned or read under one leader epoch now hold records of a newer epoch, because of an unclean
    election or a truncated log. Nothing was read. Compare what was read with the channel, then start over."""

    template = (
        "channel {channel!r} was read under leader epoch {leader_epoch}, and from offset {offset} on it may hold "
        "other records of epoch {found_epoch}: there was an unclean election; compare what was read with the "
        "channel, then read it again: a pipeline into other tables"
    )
    channel: str
    offset: int
    leader_epoch: int
    found_epoch: int


class RecordsDamaged(LogError):
    """Records of a channel are damaged in every replica, or in the folder that was read. Nothing after them was
    delivered. Repair the log or bring a replica back and run again, or read with on_damaged=skip."""

    retriable = True
    template = (
        "channel {channel!r} cannot be read from offset {start} to {end}: {problem}; restore it (`tidelog log verify`"
        " says where) and run again, or go on without these records with on_damaged=skip"
    )
    channel: str
    start: int
    end: int
    problem: str


class SourceChanged(LogError):
    """A stream's checkpoint names channels or positions that do not fit what is read now. Nothing was read."""

    template = "this checkpoint does not fit: {problem}; use the one that was made here, or a new one"
    problem: str


class ChannelTaken(LogError):
    """The tables already hold this channel's rows from another pipeline; a second one would write every row twice.
    Nothing was read. Use the other pipeline's name, or give this one its own tables."""

    template = (
        "channel {channel!r} is in {tables} already, written by another pipeline than {pipeline!r}; use "
        "that pipeline's -name, or give this one other -tables"
    )
    channel: str
    pipeline: str
    tables: str


class FolderNotShared(LogError):
    """A folder is not the same one for the driver and for the workers that write into it. Nothing was committed, and
    what was written is named by no table. Mount one file system under this path on every machine, then run again."""

    template = (
        "{folder} is not one folder for Spark's driver and its workers: {problem}; nothing was committed. Mount the "
        "same file system under this path on the driver and on every worker, or run with -master local[*]"
    )
    folder: str
    problem: str


class SinkRefused(LogError):
    """The sink cannot go on without risking lost or duplicate records. Records that are already published stay."""

    template = "nothing more is published into channel {channel!r}: {problem}"
    channel: str
    problem: str


class EngineMissing(LogError):
    """Spark, or the Java that it needs, is missing."""

    template = "the pipeline cannot start: {problem}"
    problem: str


class PositionMoved(LogError):
    """Another driver of the same pipeline committed part of the range that this one had prepared. Nothing of this
    attempt was committed. It is retried from the table's position; stop one of the drivers if this goes on."""

    retriable = True
    template = (
        "table {table!r} is at {stored} for {channel!r} and [{start}, {end}) was to be committed: another driver "
        "of this pipeline is running; run only one, this one goes on from the table's position"
    )
    table: str
    channel: str
    stored: int
    start: int
    end: int


class CheckpointAhead(LogError):
    """The checkpoint is ahead of the table: it was made for another table, or the table was restored to an older state.
    Nothing was committed. Delete the checkpoint; the table knows where to go on."""

    template = (
        "table {table!r} is at {stored} for channel {channel!r} and the checkpoint goes on at {start}: records "
        "would be missing; delete the checkpoint's folder and run again, the table knows where to go on"
    )
    table: str
    channel: str
    stored: int
    start: int


class CheckpointForeign(LogError):
    """The checkpoint was made for another cluster, folder, table or pipeline. Nothing was read or written."""

    folder: str
    differences: Sequence[str]

    def _message(self) -> str:
        return (
            f"the checkpoint in {self.folder!r} belongs to something else: {'; '.join(self.differences)}; name the "
            "right one, or delete it: the table knows where to go on"
        )


class TableBusy(LogError):
    """Other writers committed first at every attempt to write the table's next version. Nothing was committed; try
    again."""

    retriable = True
    template = "table {table!r} was changed by others {attempts} times in a row; try again, with fewer writers"
    table: str
    attempts: int


class TableDiffers(LogError):
    """The folder holds a table whose columns or partitions are not those of the pipeline."""

    template = "the table in {folder!r} was not written by this pipeline: {problem}; use another folder, or move it"
    folder: str
    problem: str


class TableUnsupported(LogError):
    """Another writer has given the table a feature of its format that Tidelog does not handle, or a newer Tidelog has
    changed it. Nothing was read or written. Remove the feature with that writer, or build the table anew."""

    template = (
        "the table in {folder!r} cannot be read or written safely: {problem}; undo that with the writer that did it, "
        "or stop the pipeline and build the table anew with `tidelog pipeline rebuild {table}`"
    )
    folder: str
    table: str
    problem: str


class ForeignChange(LogError):
    """Another writer than this pipeline changed the rows of one of its tables. Nothing was read or written since. Undo
    the change, build the table anew, or accept the change by building the tables above from it."""

    template = (
        "the rows of table {table!r} were changed by another writer: {problem} in version {version}; `tidelog pipeline "
        "rebuild {table}` builds the table anew{accepted}"
    )
    table: str
    version: int
    problem: str
    accepted: str
    """How to keep the change instead, if that is possible."""


class UpstreamReplaced(LogError):
    """The table below is not the one from which this table was built: it was made again, or an older copy was put back.
    Nothing was read or written."""

    template = (
        "table {upstream!r} is not the one that {table!r} was built from: it was made again or put back from a copy; "
        "`tidelog pipeline rebuild {table}` builds {table!r} from the present one"
    )
    table: str
    upstream: str


class RebuildRefused(LogError):
    """A table cannot be built anew as asked without losing rows. Nothing was changed."""

    template = "table {table!r} is not built anew: {problem}"
    table: str
    problem: str


class HistoryGone(LogError):
    """A table no longer has the changes since the version from which a derived table was built. Rebuild that one."""

    template = (
        "table {table!r} no longer has the changes after version {version}: {problem}; the table derived from "
        "it has to be built anew, with `tidelog pipeline rebuild`"
    )
    table: str
    version: int
    problem: str


class StageFailed(LogError):
    """A stage of the pipeline failed too many times in a row and is not tried again. What was committed stays."""

    retriable = True
    template = "stage {stage!r} failed {attempts} times in a row: {problem}; correct it and run again"
    stage: str
    attempts: int
    problem: str


class StageRefused(LogError):
    """A stage of the pipeline stopped because of an error that retrying does not cure; `cause` is the code of that
    error, and its row here says what to do. What was committed stays."""

    template = "stage {stage!r} stopped ({cause}): {problem}"
    stage: str
    cause: str
    problem: str
