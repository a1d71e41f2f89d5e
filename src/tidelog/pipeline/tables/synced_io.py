"""Iceberg's metadata files, each on disk before anything refers to it.

`pyiceberg` writes manifests, their list and the table's metadata through a `FileIO`, and then changes the catalog,
whose SQLite syncs itself. With the library's own `FileIO` a power cut behind that leaves a catalog that names an empty
file, while the log's cursor may have moved past what was in it.

TSI1  A file is synced, name and all, when the stream that wrote it is closed: before the catalog names it.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from tidelog.pipeline.tables.parquet_files import sync_path

SYNCED_IO: Final = f"{__name__}.SyncedFileIO"
"""For the property `py-io-impl` of a catalog. It is no property of a table, so other readers need nothing of ours."""


class SyncedFileIO(PyArrowFileIO):
    """The library's, for files of this machine, with a sync after each write."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        return _SyncedFile(location=location, path=path, fs=self.fs_by_scheme(scheme, netloc))


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        return _SyncedStream(super().create(overwrite), Path(self._path))


class _SyncedStream(OutputStream):
    def __init__(self, stream: OutputStream, path: Path) -> None:
        self._stream = stream
        self._path = path
        self._written = 0

    def write(self, b: bytes) -> int:
        self._written += len(b)
        return self._stream.write(b)

    def tell(self) -> int:
        return self._written

    def close(self) -> None:
        self._stream.close()
        sync_path(self._path)
        sync_path(self._path.parent)

    def __enter__(self) -> _SyncedStream:
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        self.close()
