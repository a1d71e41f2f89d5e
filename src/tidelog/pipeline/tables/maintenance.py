"""Maintenance of tables: many small files into few, and removing files that no version names.

A trigger of two seconds leaves a file per channel and batch. `plan_rewrites` finds the small ones of each partition and
`rewrite` puts one in the place of many; both keep rows, their order and positions (T5). `vacuum` removes files that no
version names: those of failed attempts and of rewrites.

What a caller must keep: `keep_hours` of `vacuum` is longer than any batch runs and than any reader or follower lags,
since a file is written before the table names it, and may be read after the table has dropped it.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from tidelog.pipeline.tables.parquet_files import SUFFIX, PartitionedWriter
from tidelog.pipeline.tables.reading import file_batches
from tidelog.pipeline.tables.table import DataFile, Table
from tidelog.pki.files import translated
from tidelog.units import MIB

TARGET_BYTES: Final = 128 * MIB
KEEP_HOURS: Final = 24.0
GATHER_BYTES: Final = 8 * MIB
GATHER_FILES_MIN: Final = 8
"""A partition with fewer small files is not worth a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimized:
    """The result of a pass over a table."""

    partitions: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


def plan_rewrites(table: Table, *, target_bytes: int = TARGET_BYTES) -> list[list[DataFile]]:
    """Groups of small files of one partition to be joined: in the order of their rows, about `target_bytes`."""
    by_partition: dict[tuple[str | None, ...], list[DataFile]] = defaultdict(list)
    for file in table.files():
        if file.bytes < target_bytes // 2:
            by_partition[file.partition].append(file)
    groups = []
    for files in by_partition.values():
        groups += [group for group in _packed(sorted(files, key=_order), target_bytes) if len(group) > 1]
    return groups


def rewrite(table: Table, group: Sequence[DataFile]) -> list[DataFile]:
    """The rows of these files in new ones, a few rows at a time. Commit them with `Table.commit_rewrite`."""
    columns = table.columns()  # those of users too
    with PartitionedWriter(table.folder, replace(table.layout, schema=columns)) as writer:
        for file in group:
            for batch in file_batches(table, file, schema=columns):
                writer.write(batch, file.partition)
        return writer.close()


def optimize(table: Table, *, target_bytes: int = TARGET_BYTES) -> Optimized:
    """Rewrite all small files, and those of which some readers miss rows; each group is a transaction of its own."""
    partitions = set()
    before: list[DataFile] = []
    after: list[DataFile] = []
    groups = plan_rewrites(table, target_bytes=target_bytes)
    planned = {file.path for group in groups for file in group}
    groups += [[file] for file in table.files() if file.path not in planned and table.hides_rows(file)]
    for group in groups:
        files = rewrite(table, group)
        if table.commit_rewrite(group, files):
            partitions.add(group[0].partition)
            before += group
            after += files
    return Optimized(
        partitions=len(partitions),
        files_before=len(before),
        files_after=len(after),
        bytes_before=sum(file.bytes for file in before),
        bytes_after=sum(file.bytes for file in after),
    )


def gather(table: Table, *, target_bytes: int = GATHER_BYTES, files_min: int = GATHER_FILES_MIN) -> int:
    """Join the smallest files where there are many, in one transaction; returns how many files were removed.

    For a job that is about to read a table several times while a stream fills it: opening a file costs Spark more than
    reading the rows of one trigger. Files that have grown to half of `target_bytes` are left to `optimize`.
    """
    groups = [group for group in plan_rewrites(table, target_bytes=target_bytes) if len(group) >= files_min]
    taken = [file for group in groups for file in group]
    files = [file for group in groups for file in rewrite(table, group)]
    if not groups or not table.commit_rewrite(taken, files):
        return 0
    return len(taken) - len(files)


def vacuum(table: Table, *, keep_hours: float = KEEP_HOURS, dry_run: bool = False) -> list[str]:
    """Remove Parquet files that no version names and that are older than `keep_hours`; returns their relative paths."""
    oldest_s = time.time() - keep_hours * 3600
    # The folder is listed first: a file that is named in between is then referenced, not an orphan.
    listed = [(path, modified_s) for path, modified_s in _walk(table.folder) if modified_s < oldest_s]
    referenced = table.referenced(removed_after=datetime.now(UTC) - timedelta(hours=keep_hours))
    orphans = [path for path, _ in listed if path not in referenced]
    if not dry_run:
        for path in orphans:
            with translated("remove", table.folder / path):
                (table.folder / path).unlink(missing_ok=True)
    return sorted(orphans)


def _walk(folder: Path) -> Iterator[tuple[str, float]]:
    """Data files under the table's folder with their times, without the formats' own metadata."""
    for parent, folders, names in os.walk(folder):
        if Path(parent) == folder:
            folders[:] = [name for name in folders if not name.startswith("_") and name != "metadata"]
        for name in names:
            path = Path(parent) / name
            if name.endswith(SUFFIX):
                try:
                    yield str(path.relative_to(folder)), path.stat().st_mtime
                except FileNotFoundError:
                    continue  # another vacuum removed it


def _order(file: DataFile) -> tuple[int, str]:
    """By offset or seq where the table has them; else by name, so that the order is always the same."""
    first = file.minimums.get("offset", file.minimums.get("seq", 0))
    return (int(first), file.path)


def _packed(files: Sequence[DataFile], target_bytes: int) -> Iterator[list[DataFile]]:
    group: list[DataFile] = []
    size = 0
    for file in files:
        if group and size + file.bytes > target_bytes:
            yield group
            group, size = [], 0
        group.append(file)
        size += file.bytes
    if group:
        yield group
