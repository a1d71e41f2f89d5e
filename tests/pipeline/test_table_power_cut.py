"""Power cuts under tables: what a commit has returned, and what the log's cursor may follow, is on disk.

`Disk` watches every real fsync of this process and can put the folder into the state that a disk then has to have: the
content of each file at its last sync, under the names that were there when its folder was last synced. SQLite syncs
itself, out of sight, so the catalog of Iceberg is taken as it is.
"""

from __future__ import annotations

import copy
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import event

from tests.pipeline.table_kit import frames_table, offsets_of, part
from tidelog.pipeline.tables import delta, open_table
from tidelog.pipeline.tables.iceberg import CATALOG_NAME, IcebergFolder
from tidelog.pipeline.tables.layouts import FRAMES_LAYOUT
from tidelog.pipeline.tables.maintenance import optimize

FORMATS = pytest.mark.parametrize("table_format", ["delta", "iceberg"])


@dataclass(slots=True)
class Disk:
    """The folder as it is after a power cut."""

    folder: Path
    contents: dict[int, bytes] = field(default_factory=dict)
    """By inode, since files are renamed."""
    names: dict[str, dict[str, int]] = field(default_factory=dict)
    """The entries of a folder, by name: inodes."""

    def synced(self, handle: int) -> None:
        path = os.readlink(f"/proc/self/fd/{handle}")
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            self.names[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self.contents[found.st_ino] = Path(path).read_bytes()

    def cut(self) -> None:
        """Replace the folder by what is left of it."""
        before = self.folder.with_name("before the cut")
        self.folder.rename(before)
        self.folder.mkdir()
        self._restore(before, self.folder)
        if (before / CATALOG_NAME).exists():
            shutil.copy(before / CATALOG_NAME, self.folder / CATALOG_NAME)
        shutil.rmtree(before)

    def _restore(self, before: Path, after: Path) -> None:
        for name, inode in self.names.get(str(after), {}).items():
            if (before / name).is_dir():
                (after / name).mkdir()
                self._restore(before / name, after / name)
            else:
                (after / name).write_bytes(self.contents.get(inode, b""))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    watched = Disk(tmp_path / "lake")
    fsync = os.fsync

    def watch(handle: int) -> None:
        fsync(handle)
        watched.synced(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", watch)
        yield watched


@FORMATS
def test_what_a_commit_has_returned_survives_a_power_cut(disk: Disk, table_format: str) -> None:
    table = frames_table(disk.folder, table_format)
    for number in range(4):
        table.commit_append("main", [part(table, 10 * number, 10 * number + 10)])
    optimize(table)
    table.commit_append("main", [part(table, 40, 50)])
    disk.cut()
    found = open_table(disk.folder, FRAMES_LAYOUT, table_format=table_format)
    assert found.positions("main", [1])[1].next_offset == 50
    assert offsets_of(found) == list(range(50))
    found.commit_append("main", [part(found, 50, 60)])
    assert offsets_of(found) == list(range(60))


@FORMATS
def test_a_table_that_was_just_created_survives_a_power_cut(disk: Disk, table_format: str) -> None:
    made = frames_table(disk.folder, table_format)
    identity = made.identity()
    disk.cut()
    found = frames_table(disk.folder, table_format)
    assert found.identity() == identity
    assert found.files() == []


def test_a_catalog_never_names_a_file_that_is_not_on_disk(disk: Disk) -> None:
    """The cut comes right behind SQLite's own sync, before anything else of the commit."""
    table = frames_table(disk.folder, "iceberg")
    assert isinstance(table, IcebergFolder)
    seen: list[Disk] = []
    event.listen(table._opened().engine, "commit", lambda connection: seen.append(copy.deepcopy(disk)))  # type: ignore[attr-defined]
    table.commit_append("main", [part(table, 0, 10)])
    assert seen, "a commit of the table is one of its catalog"
    seen[-1].cut()
    found = open_table(disk.folder, FRAMES_LAYOUT, table_format="iceberg")
    assert found.positions("main", [1])[1].next_offset == 10
    assert offsets_of(found) == list(range(10))


def test_a_checkpoint_of_deltas_log_is_on_disk_when_its_commit_is(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers begin at the newest checkpoint: an empty one would make the table unreadable."""
    monkeypatch.setitem(delta._CONFIGURATION, "delta.checkpointInterval", "5")
    table = frames_table(disk.folder)
    for number in range(6):
        table.commit_append("main", [part(table, number, number + 1)])
    assert (disk.folder / "frames" / "_delta_log" / "_last_checkpoint").exists()
    disk.cut()
    assert (disk.folder / "frames" / "_delta_log" / "_last_checkpoint").read_bytes()
    found = open_table(disk.folder, FRAMES_LAYOUT)
    assert offsets_of(found) == list(range(6))
