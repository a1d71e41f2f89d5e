"""Any order of appends, reads, sweeps, closes and restarts: a local file gives back what was appended, in order."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tidelog.embedded import FileConfig, FsyncPolicy, Record, SyncLogManager, local_logs
from tidelog.errors import Lagged, OffsetConflict

payloads = st.lists(st.binary(max_size=40), min_size=1, max_size=20)


class LocalFileModel(RuleBasedStateMachine):
    """The model is the list of everything ever appended; retention may take its front, in whole segments."""

    @initialize(fsync=st.sampled_from(FsyncPolicy), persistent=st.booleans(), events=st.none() | st.integers(10, 400))
    def start(self, fsync: FsyncPolicy, persistent: bool, events: int | None) -> None:
        # Only the rule below sweeps: a sweep of the writer's own between a look and a read would confuse the model.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(local_logs, "RETENTION_MS", 10**9)
        self.folder = Path(tempfile.mkdtemp())
        self.config = FileConfig().with_fsync(fsync).with_persistent(persistent).with_retention_max_events(events)
        self.appended: list[bytes] = []
        self.epochs: list[int] = []
        self.open_manager()

    def open_manager(self) -> None:
        self.manager = SyncLogManager(self.folder)
        self.open_file()
        self.epochs.append(self.epoch)

    def open_file(self) -> None:
        self.file = self.manager.open_file("spray", self.config)

    @property
    def epoch(self) -> int:
        file: Any = self.file._file
        return int(file.epoch)

    @rule(values=payloads)
    def append(self, values: list[bytes]) -> None:
        assert self.file.append_batch(values) == len(self.appended)
        self.appended += values

    @rule(values=payloads, offset=st.integers(0, 300))
    def append_guarded(self, values: list[bytes], offset: int) -> None:
        try:
            first = self.file.append_batch(values, expected_offset=offset)
        except OffsetConflict:
            assert offset != len(self.appended)
        else:
            assert first == offset == len(self.appended)
            self.appended += values

    @rule(start=st.integers(0, 500), length=st.integers(0, 100))
    def read(self, start: int, length: int) -> None:
        if length and start < self.file.log_start:
            with pytest.raises(Lagged) as refusal:
                self.file.read_range(start, start + length)
            assert refusal.value.log_start == self.file.log_start
            return
        found = self.file.read_range(start, start + length)
        expected = list(enumerate(self.appended))[start : start + length]
        assert [(one.offset, one.value) for one in found if isinstance(one, Record)] == expected

    @rule()
    def sweep(self) -> None:
        before = self.file.log_start
        start = self.file.sweep_retention()
        assert start >= before
        events = self.config.retention_max_events
        if events is None:
            assert start == 0
        else:
            assert len(self.appended) - start >= min(events, len(self.appended)), "never more than it may"

    @rule()
    def close_and_open(self) -> None:
        self.file.close()
        if not self.config.persistent:
            self.appended.clear()
        self.open_file()

    @rule()
    def restart(self) -> None:
        self.manager.close()
        if not self.config.persistent:
            self.appended.clear()
        self.open_manager()
        assert self.epochs == sorted(set(self.epochs)), "R1"

    @invariant()
    def everything_is_counted(self) -> None:
        if hasattr(self, "file"):
            assert self.file.committed_end == self.file.log_end == len(self.appended)

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.close()
            shutil.rmtree(self.folder)
            self.patch.undo()


TestLocalFile = LocalFileModel.TestCase
TestLocalFile.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
