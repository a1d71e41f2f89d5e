"""What is read from a stream's checkpoint folder: whose it is, and where a batch begins and ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidelog.errors import CheckpointForeign
from tidelog.pipeline.jobs.checkpoint import batch_offsets, require_checkpoint
from tidelog.pipeline.sources.planning import Offset


def test_a_checkpoint_of_something_else_is_refused_with_what_to_do(tmp_path: Path) -> None:
    identity = {"pipeline": "main", "table": "t1", "cluster": "c1"}
    require_checkpoint(tmp_path / "new", identity)
    require_checkpoint(tmp_path / "new", identity)
    with pytest.raises(CheckpointForeign, match="delete it: the table knows"):
        require_checkpoint(tmp_path / "new", {**identity, "table": "t2"})
    (tmp_path / "spark" / "offsets").mkdir(parents=True)
    (tmp_path / "spark" / "offsets" / "0").touch()
    with pytest.raises(CheckpointForeign, match="not made by a pipeline"):
        require_checkpoint(tmp_path / "spark", identity)


def entry(next_offset: int) -> dict[str, int]:
    return {"id": 7, "epoch": 3, "next": next_offset}


def written(folder: Path, batch_id: int, offset: Offset | str, *, version: str = "v1") -> None:
    """As Spark writes it."""
    (folder / "offsets").mkdir(exist_ok=True)
    last = offset if isinstance(offset, str) else json.dumps(offset)
    notes = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1})
    (folder / "offsets" / str(batch_id)).write_text(f"{version}\n{notes}\n{last}")


def test_a_batch_lies_between_the_end_of_the_one_before_and_its_own(tmp_path: Path) -> None:
    written(tmp_path, 0, {"boat-1": entry(10)})
    written(tmp_path, 1, {"boat-1": entry(25)})
    assert batch_offsets(tmp_path, 0) == ({}, {"boat-1": entry(10)})
    assert batch_offsets(tmp_path, 1) == ({"boat-1": entry(10)}, {"boat-1": entry(25)})


def test_a_stream_that_had_nothing_at_first_begins_empty(tmp_path: Path) -> None:
    written(tmp_path, 0, "-")
    written(tmp_path, 1, {"boat-1": entry(5)})
    assert batch_offsets(tmp_path, 1) == ({}, {"boat-1": entry(5)})


@pytest.mark.parametrize("spoilt", ["gone", "version", "cut", "sources", "no object"])
def test_what_is_not_certain_is_not_given(tmp_path: Path, spoilt: str) -> None:
    written(tmp_path, 0, {"boat-1": entry(10)})
    written(tmp_path, 1, {"boat-1": entry(25)})
    path = tmp_path / "offsets" / "0"
    match spoilt:
        case "gone":
            path.unlink()
        case "version":
            written(tmp_path, 0, {"boat-1": entry(10)}, version="v2")
        case "cut":
            path.write_text(path.read_text()[:-3])
        case "sources":
            path.write_text(path.read_text() + "\n{}")
        case "no object":
            written(tmp_path, 0, "[1]")
    assert batch_offsets(tmp_path, 1) is None
    assert batch_offsets(tmp_path, 2) is None, "nobody has planned it yet"
