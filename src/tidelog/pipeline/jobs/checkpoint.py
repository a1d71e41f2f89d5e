"""A stream's checkpoint folder, read without Spark: its owner, and the offsets of a batch.

Spark writes the end of a batch into `offsets/<batch>` before it runs the batch, and never changes it. So the driver can
read there what it would otherwise have to compute in a job, which waits for a free core.

What a caller must keep: the folder is on a file system that the driver can read.

CK1  A checkpoint of another table, pipeline or cluster is refused: Spark would use it, and miss records.
CK2  Offsets are returned only if they are certain. Missing ones, or ones in an unknown format, are None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidelog.errors import CheckpointForeign
from tidelog.pipeline.sources.planning import Offset
from tidelog.pki.files import translated

IDENTITY_NAME: Final = "tidelog.json"
_VERSION: Final = "v1"
_NOTHING_YET: Final = "-"
"""For a source that had no offset when the line was written."""


def require_checkpoint(folder: Path, identity: Mapping[str, str]) -> None:
    """Compare the folder with its owner, or record the owner if it is new (CK1)."""
    path = folder / IDENTITY_NAME
    try:
        with translated("read", path):
            found = json.loads(path.read_text()) if path.exists() else None
    except ValueError:
        found = {}  # cut off by a crash before anything else was in the folder, or not ours
    if found is None:
        with translated("create", folder):
            if any(folder.glob("offsets/*")):
                raise CheckpointForeign(folder=str(folder), differences=["it was not made by a pipeline of Tidelog"])
            folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(dict(identity)))
        return
    differences = [
        f"its {name} is {found.get(name, 'unknown')!r}, not {value!r}"
        for name, value in identity.items()
        if found.get(name) != value
    ]
    if differences:
        raise CheckpointForeign(folder=str(folder), differences=differences)


def batch_offsets(folder: Path, batch_id: int) -> tuple[Offset, Offset] | None:
    """Where a batch of a stream with one source begins and ends (CK2)."""
    start = _offset_of(folder, batch_id - 1) if batch_id else {}
    end = _offset_of(folder, batch_id)
    return None if start is None or end is None else (start, end)


def _offset_of(folder: Path, batch_id: int) -> Offset | None:
    """The end of this batch. Lines: version, Spark's own notes, then one for each source."""
    try:
        lines = (folder / "offsets" / str(batch_id)).read_text().splitlines()
        if len(lines) != 3 or lines[0] != _VERSION:
            return None
        offset = {} if lines[2] == _NOTHING_YET else json.loads(lines[2])
    except (OSError, ValueError):
        return None
    return offset if isinstance(offset, dict) else None
