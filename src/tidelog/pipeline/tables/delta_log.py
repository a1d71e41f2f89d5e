"""The commits of a Delta log, read without the library: who made them, and what they did to the rows.

The library says what a table holds. It does not say which commit brought it, which a follower must know, nor whether a
commit was one of ours.

DLG1  A commit is ours if and only if it stores a number of ours (`OWN_PREFIX`): a `txn` action, which no other writer
      makes.
DLG2  A commit of another writer keeps the rows if it says so (`dataChange` is false), has no deletion vector, and puts
      as many rows into every partition as it takes out. Whatever cannot be counted did not keep them.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq

from tidelog.pki.files import translated

LOG: Final = "_delta_log"
OWN_PREFIX: Final = "tidelog/"
_COMMIT_NAME: Final = re.compile(r"(\d{20})\.json")

Action = dict[str, Any]


class DeltaLog:
    """The commits of one table that are still there as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._newest: tuple[int, list[Action]] = (-1, [])

    def commits(self) -> dict[int, Path]:
        log = self._folder / LOG
        with translated("list", log):
            names = os.listdir(log)
        return {int(match[1]): log / name for name in names if (match := _COMMIT_NAME.fullmatch(name))}

    def path(self, version: int) -> Path:
        return self._folder / LOG / f"{version:020d}.json"

    def actions(self, version: int) -> list[Action] | None:
        """The actions of this commit; None if it was cleaned up. The newest one is cached: it is asked for twice."""
        if self._newest[0] == version:
            return self._newest[1]
        path = self.path(version)
        if not path.exists():
            return None
        found = list(read_actions(path))
        if version > self._newest[0]:
            self._newest = (version, found)
        return found

    def changed_rows(self, actions: Sequence[Action]) -> str | None:
        """How a commit of another writer changed the rows, in words; None if it did not (DLG2)."""
        adds = [one["add"] for one in actions if "add" in one]
        removes = [one["remove"] for one in actions if "remove" in one]
        told: Action = next((one["commitInfo"] for one in actions if "commitInfo" in one), {})
        operation = str(told.get("operation", "a commit without a name"))
        files = [*adds, *removes]
        if any(one.get("deletionVector") for one in files):
            return f"{operation} with deletion vectors"
        if any(one.get("dataChange", True) for one in files):
            return operation
        after, before = self._counts(adds), self._counts(removes)
        if after is None or before is None:
            return f"{operation}, whose rows cannot be counted any more,"
        return None if after == before else f"{operation}, which did not keep the number of rows,"

    def _counts(self, files: Sequence[Mapping[str, Any]]) -> Counter[str] | None:
        """Rows by partition; None if a file is gone whose rows the log does not give."""
        counts: Counter[str] = Counter()
        for one in files:
            rows = json.loads(one.get("stats") or "{}").get("numRecords")
            if rows is None:
                rows = rows_in(self._folder / unquote(one["path"]))
            if rows is None:
                return None
            counts[json.dumps(one.get("partitionValues") or {}, sort_keys=True)] += rows
        return +counts


def read_actions(commit: Path) -> Iterator[Action]:
    with translated("read", commit), open(commit, encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def is_ours(actions: Sequence[Action]) -> bool:
    """DLG1."""
    return any("txn" in one and one["txn"]["appId"].startswith(OWN_PREFIX) for one in actions)


def rows_in(path: Path) -> int | None:
    """By the file's own footer; None if there is no such file."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, ValueError):
        return None


# --- features ----------------------------------------------------------------------------------------

_HANDLED: Final = frozenset(
    {
        # Each of these asks something of a writer only when it is used, which `unhandled_use` looks for.
        "allowColumnDefaults",
        "appendOnly",
        "checkConstraints",
        "columnMapping",
        "generatedColumns",
        "identityColumns",
        "invariants",
        # Readers of changes take files that were added or removed whole, as all of ours are.
        "changeDataFeed",
        "timestampNtz",
        "vacuumProtocolCheck",
    }
)
_USED_BY_COLUMN: Final = {
    "CURRENT_DEFAULT": "a default value",
    "delta.generationExpression": "a generated value",
    "delta.identity.start": "generated numbers",
    "delta.invariants": "an invariant",
}
READER_VERSION_MAX: Final = 3
WRITER_VERSION_MAX: Final = 7


def unhandled_feature(reader_version: int, writer_version: int, features: Sequence[str]) -> str | None:
    """What in this protocol Tidelog does not handle, in words."""
    if reader_version > READER_VERSION_MAX or writer_version > WRITER_VERSION_MAX:
        return f"its protocol is {reader_version}/{writer_version}, newer than this Tidelog knows"
    unknown = sorted(set(features) - _HANDLED)
    return f"it has the feature {', '.join(unknown)}, which Tidelog does not handle" if unknown else None


def unhandled_use(configuration: Mapping[str, str], columns: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The use of a feature that asks more of a writer than Tidelog does, in words. `columns` have their metadata."""
    if configuration.get("delta.appendOnly", "false").lower() == "true":
        return "its property delta.appendOnly is true"
    if configuration.get("delta.columnMapping.mode", "none").lower() != "none":
        return "its columns are mapped to other names (delta.columnMapping.mode)"
    if configuration.get("delta.enableDeletionVectors", "false").lower() == "true":
        return "its property delta.enableDeletionVectors is true"
    for name in configuration:
        if name.startswith("delta.constraints."):
            return f"it has the constraint {name.removeprefix('delta.constraints.')}"
    for column, metadata in columns.items():
        for key, told in _USED_BY_COLUMN.items():
            if key in metadata:
                return f"its column {column} has {told}"
    return None
