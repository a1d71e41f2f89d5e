"""The common part of tables of every format: decide by the stored position, try, and decide again when another driver
was faster.

A format gives its state, a check of what others did to it, numbers stored under names in it, its live files, its
version, and one try at writing a change. The rest, with the rules T1 to T7 of `table`, is here.

Names: `tidelog/<pipeline>/<channel id>` is the next offset, `.../epoch` the leader epoch it was read under,
`tidelog/<pipeline>/channel/<name>` the id behind a name, `tidelog/<pipeline>/<table>` a consumed version (-1 for none),
`.../mark` what tells that table from another, `tidelog/<pipeline>/generation` how often this one was emptied,
`tidelog/owner/<channel name>` the pipeline that owns the channel. `tidelog/commit` is the version of the latest commit
of ours. Each commit was decided on a state whose every change was known, so only the commits after it have to be looked
at (T7).
"""

from __future__ import annotations

import random
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import pyarrow as pa

from tidelog.errors import ChannelTaken, DiskError, FolderNotShared, TableBusy, TableDiffers
from tidelog.pipeline.tables.table import (
    Commit,
    DataFile,
    OffsetRange,
    Partition,
    Position,
    RangeFiles,
    Table,
    TableStep,
    judge_ranges,
    judge_steps,
    text_mark,
)

ATTEMPTS_MAX: Final = 20
COMMIT_NAME: Final = "tidelog/commit"
LAYOUT_NAME: Final = "tidelog.layout"
"""The property that holds the version of a table's layout; a table without it has the first one."""
_NOTHING: Final = -1
_WAIT_MAX_S: Final = 0.5

_ABOVE: Final = {"frames": "signals", "signals": "tracks", "lost_ranges": "fleet_health"}

State = TypeVar("State")


@dataclass(slots=True, kw_only=True)
class Change:
    """The content of one transaction, decided against one version."""

    adds: Sequence[DataFile] = ()
    removes: Sequence[DataFile] = ()
    stores: Mapping[str, int] = field(default_factory=dict)
    ranges: tuple[OffsetRange, ...] = ()
    is_rewrite: bool = False


class CommittedTable(Table, Generic[State]):
    """See `Table` for what each call does."""

    @abstractmethod
    def _load(self) -> State:
        """The table as it is now, changes of other writers included."""

    @abstractmethod
    def _require_handled(self, state: State) -> None:
        """Raise for features and columns that Tidelog does not handle (T8)."""

    @abstractmethod
    def _require_known(self, state: State) -> None:
        """Raise `ForeignChange` if another writer has changed the rows since the latest commit of ours (T7)."""

    @abstractmethod
    def _layout_version(self, state: State) -> int: ...

    @abstractmethod
    def _schema(self, state: State) -> pa.Schema: ...

    @abstractmethod
    def _upgrade(self, state: State) -> None:
        """Add the columns that came with later layouts, and store the layout's version; nothing if another driver was
        faster (T9)."""

    def _latest(self) -> State:
        """The table as it is now, if every change of it is known."""
        state = self._load_handled()
        self._require_known(state)
        return state

    def _load_handled(self) -> State:
        state = self._load()
        self._require_handled(state)
        return state

    @abstractmethod
    def _version_of(self, state: State) -> int: ...

    @abstractmethod
    def _stored(self, state: State, name: str) -> int | None:
        """The number stored under a name."""

    @abstractmethod
    def _live(self, state: State, partitions: Collection[Partition] | None) -> list[DataFile]: ...

    @abstractmethod
    def _try(self, state: State, change: Change) -> int | None:
        """Write the change onto this very state, durably: the new version, or None if another driver was faster."""

    def _bring_up(self) -> None:
        """Let the table have the present layout (T9)."""
        for _ in range(ATTEMPTS_MAX):
            state = self._latest()
            if self._layout_version(state) == self.layout.version:
                return
            self._upgrade(state)
        raise TableBusy(table=self.layout.name, attempts=ATTEMPTS_MAX)

    def _require_columns(self, state: State, split: Sequence[str]) -> None:
        """T8, T9. `split` are the partition columns."""
        folder = str(self.folder)
        version = self._layout_version(state)
        if version > self.layout.version:
            problem = f"its layout is {version}, and this Tidelog knows {self.layout.version}; use a newer Tidelog"
            raise TableDiffers(folder=folder, problem=problem)
        fields = {one.name: one for one in self._schema(state)}
        is_complete = version == self.layout.version
        for wanted in self.layout.schema:
            found = fields.pop(wanted.name, None)
            if found is None and (is_complete or wanted.name in self.layout.partition_by):
                raise TableDiffers(folder=folder, problem=f"its column {wanted.name} is missing")
            if found is not None and not _is_same(found.type, wanted.type):
                raise TableDiffers(folder=folder, problem=f"its column {wanted.name} is a {found.type}")
        required = [name for name, field in fields.items() if not field.nullable]
        if required:
            raise TableDiffers(folder=folder, problem=f"its column {required[0]} may not be null")
        if tuple(split) != self.layout.partition_by:
            raise TableDiffers(folder=folder, problem=f"it is split by {', '.join(split)}")

    def _missing(self, state: State) -> pa.Schema:
        """The columns that the table has yet to gain."""
        held = set(self._schema(state).names)
        return pa.schema([one for one in self.layout.schema if one.name not in held])

    def columns(self, *, guarded: bool = True) -> pa.Schema:
        ours, state = self.layout.schema, self._latest() if guarded else self._load_handled()
        return pa.schema([*ours, *(one for one in self._schema(state) if one.name not in ours.names)])

    def version(self) -> int:
        return self._version_of(self._latest())

    def positions(self, pipeline: str, channel_ids: Iterable[int]) -> dict[int, Position]:
        return self._positions(self._latest(), pipeline, channel_ids)

    def channel_id(self, pipeline: str, channel: str) -> int | None:
        return self._stored(self._latest(), f"tidelog/{pipeline}/channel/{channel}")

    def consumed(self, pipeline: str, upstream: str) -> int | None:
        return self._consumed(self._latest(), pipeline, upstream)

    def consumed_mark(self, pipeline: str, upstream: str) -> int | None:
        return self._stored(self._latest(), f"tidelog/{pipeline}/{upstream}/mark")

    def _consumed(self, state: State, pipeline: str, upstream: str) -> int | None:
        found = self._stored(state, f"tidelog/{pipeline}/{upstream}")
        return None if found == _NOTHING else found

    def cluster_mark(self, pipeline: str) -> int | None:
        return self._stored(self._latest(), f"tidelog/{pipeline}/cluster")

    def owner_mark(self, channel: str) -> int | None:
        return self._stored(self._latest(), f"tidelog/owner/{channel}")

    def files(self, partitions: Collection[Partition] | None = None) -> list[DataFile]:
        return self._live(self._latest(), partitions)

    def commit_append(self, pipeline: str, parts: Sequence[RangeFiles], *, cluster: str = "") -> Commit:
        def decide(state: State, attempt: int) -> Change | None:
            stored = self._positions(state, pipeline, [part.range.channel_id for part in parts])
            new = judge_ranges(parts, stored, table=self.layout.name, started=attempt > 0)
            if not new:
                return None
            stores: dict[str, int] = {}
            if cluster:
                stores[f"tidelog/{pipeline}/cluster"] = text_mark(cluster)
            for part in new:
                name = f"tidelog/{pipeline}/{part.range.channel_id}"
                stores[name] = part.range.end
                stores[f"{name}/epoch"] = part.range.leader_epoch
                stores[f"tidelog/{pipeline}/channel/{part.range.channel}"] = part.range.channel_id
                stores |= self._owned(state, pipeline, part.range.channel)
            return Change(
                adds=[file for part in new for file in part.files],
                stores=stores,
                ranges=tuple(part.range for part in new),
            )

        return self._commit(decide)

    def _owned(self, state: State, pipeline: str, channel: str) -> dict[str, int]:
        """The entry that keeps other pipelines from adding this channel's rows a second time."""
        name, mark = f"tidelog/owner/{channel}", text_mark(pipeline)
        held = self._stored(state, name)
        if held not in (None, mark):
            raise ChannelTaken(channel=channel, pipeline=pipeline, tables=str(self.folder))
        return {} if held == mark else {name: mark}

    def commit_following(
        self,
        pipeline: str,
        steps: Sequence[TableStep],
        files: Sequence[DataFile],
        *,
        replaced: Collection[Partition] = (),
    ) -> Commit:
        def decide(state: State, attempt: int) -> Change | None:
            del attempt
            consumed = {step.upstream: self._consumed(state, pipeline, step.upstream) for step in steps}
            if not judge_steps(steps, consumed, table=self.layout.name):
                return None
            return Change(
                adds=files,
                removes=self._live(state, replaced) if replaced else (),
                stores=_stored_steps(pipeline, steps),
            )

        return self._commit(decide)

    def commit_reset(
        self,
        pipeline: str,
        *,
        positions: Mapping[str, Position] | None = None,
        upstreams: Collection[str] = (),
        files: Sequence[DataFile] = (),
        kept: Collection[str] = (),
        generation: int | None = None,
    ) -> Commit:
        stores = {f"tidelog/{pipeline}/{upstream}": _NOTHING for upstream in upstreams}
        for channel, one in (positions or {}).items():
            name = f"tidelog/{pipeline}/{one.channel_id}"
            stores[name] = one.next_offset
            stores[f"{name}/epoch"] = one.leader_epoch
            stores[f"tidelog/{pipeline}/channel/{channel}"] = one.channel_id

        def decide(state: State, attempt: int) -> Change | None:
            del attempt
            held = self._generation(state, pipeline)
            if generation is not None and held >= generation:
                return None
            stores[f"tidelog/{pipeline}/generation"] = held + 1 if generation is None else generation
            removed = [file for file in self._live(state, None) if file.path not in kept]
            return Change(adds=files, removes=removed, stores=stores)

        return self._commit(decide, load=self._load_handled)

    def generation(self, pipeline: str) -> int:
        return self._generation(self._load_handled(), pipeline)

    def _generation(self, state: State, pipeline: str) -> int:
        return self._stored(state, f"tidelog/{pipeline}/generation") or 0

    def accept(self) -> int:
        return self._commit(lambda state, attempt: Change(), load=self._load_handled).version

    def unguarded_files(self) -> list[DataFile]:
        return self._live(self._load_handled(), None)

    def commit_rewrite(self, taken: Sequence[DataFile], files: Sequence[DataFile]) -> bool:
        lost = False

        def decide(state: State, attempt: int) -> Change | None:
            nonlocal lost
            del attempt
            live = {file.path for file in self._live(state, {file.partition for file in taken})}
            lost = not live.issuperset(file.path for file in taken)
            return None if lost else Change(adds=files, removes=taken, is_rewrite=True)

        assert sum(file.rows for file in taken) == sum(file.rows for file in files), "T5"
        self._commit(decide)
        return not lost

    def _commit(
        self, decide: Callable[[State, int], Change | None], *, load: Callable[[], State] | None = None
    ) -> Commit:
        for attempt in range(ATTEMPTS_MAX):
            state = (load or self._latest)()
            if self._layout_version(state) != self.layout.version:
                self._upgrade(state)
                continue
            change = decide(state, attempt)
            if change is None:
                return Commit(version=self._version_of(state))
            self._require_whole(change.adds)
            version = self._try(state, change)
            if version is not None:
                return Commit(
                    version=version,
                    ranges=change.ranges,
                    files=len(change.adds),
                    rows=sum(file.rows for file in change.adds),
                    bytes=sum(file.bytes for file in change.adds),
                )
            # A random wait, or the contenders meet again.
            time.sleep(random.uniform(0, min(_WAIT_MAX_S, 0.01 * 2**attempt)))
        raise TableBusy(table=self.layout.name, attempts=ATTEMPTS_MAX)

    def _require_whole(self, files: Sequence[DataFile]) -> None:
        """T6. A worker with a folder of its own reports files that are not here."""
        problems = []
        for file in files:
            try:
                size = self.path_of(file).stat().st_size
            except FileNotFoundError:
                problems.append(f"{file.path} is not there")
                continue
            except OSError as error:
                raise DiskError(
                    operation="look at", path=str(self.path_of(file)), reason=error.strerror or str(error)
                ) from error
            if size != file.bytes:
                problems.append(f"{file.path} has {size} bytes of {file.bytes}")
        if problems:
            problem = f"{len(problems)} of {len(files)} new files are not whole where the driver is; {problems[0]}"
            raise FolderNotShared(folder=str(self.folder), problem=problem)

    def _positions(self, state: State, pipeline: str, channel_ids: Iterable[int]) -> dict[int, Position]:
        found = {}
        for channel_id in channel_ids:
            name = f"tidelog/{pipeline}/{channel_id}"
            next_offset = self._stored(state, name)
            if next_offset is not None:
                epoch = self._stored(state, f"{name}/epoch") or 0
                found[channel_id] = Position(channel_id=channel_id, next_offset=next_offset, leader_epoch=epoch)
        return found


def _stored_steps(pipeline: str, steps: Sequence[TableStep]) -> dict[str, int]:
    stores = {f"tidelog/{pipeline}/{step.upstream}": step.end for step in steps}
    marks = {f"tidelog/{pipeline}/{step.upstream}/mark": step.mark for step in steps}
    return stores | {name: mark for name, mark in marks.items() if mark is not None}


def _is_same(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Iceberg knows no short integers, and texts of one length only."""
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(found) and found.bit_width >= wanted.bit_width)
    if pa.types.is_string(wanted):
        return found in (wanted, pa.large_string())
    if pa.types.is_binary(wanted):
        return found in (wanted, pa.large_binary())
    return bool(found == wanted)


def accepting(table: str) -> str:
    """How a change of rows of this table is kept, in the words of `ForeignChange`."""
    above = _ABOVE.get(table)
    if above is None:
        return ""
    return f"; to keep the change, `tidelog pipeline rebuild {above} -from {table}` builds the tables above from it"
