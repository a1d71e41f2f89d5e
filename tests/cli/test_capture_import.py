"""`tidelog log import` of every kind of capture."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cli.commands import Tidelog
from tests.compat.capture_samples import ALL, ROWS, YDWG, kind_of, rows_of, written
from tidelog.cli.log.commands import log
from tidelog.compat.capture_kinds import KINDS, open_capture


@pytest.mark.parametrize("name", ALL)
def test_an_import_comes_out_again_as_it_went_in(tidelog: Tidelog, tmp_path: Path, name: str) -> None:
    path = written(tmp_path, ALL[name])
    result = tidelog("log", "import", path, tmp_path / "log", "--json").json
    assert (result["frames"], result["format"]) == (3, kind_of(name))
    tidelog("log", "export", tmp_path / "log", tmp_path / "out.log")
    assert rows_of(open_capture(tmp_path / "out.log", "candump")) == ROWS


def test_an_import_without_any_frame_is_an_error_and_leaves_no_log(tidelog: Tidelog, tmp_path: Path) -> None:
    path = written(tmp_path, YDWG)
    said = tidelog("log", "import", path, tmp_path / "log", "--format", "candump", code=2).err
    assert "read as candump it holds no frame: skipped 3 (malformed), the first one at line 1" in said
    assert not (tmp_path / "log").exists()
    assert (
        "holds no frame"
        in tidelog("log", "import", written(tmp_path, "# nothing\n"), tmp_path / "log", "--format", "ydwg", code=2).err
    )
    assert (
        "it is not an .lpj journal" in tidelog("log", "import", path.with_name("capture"), tmp_path / "log", code=2).err
    )


def test_an_import_takes_the_time_at_which_a_file_begins(tidelog: Tidelog, tmp_path: Path) -> None:
    path = written(tmp_path, "12:00:00.000 R 09F50B23 01\n")
    tidelog("log", "import", path, tmp_path / "log", "--start", "2026-07-01")
    (row,) = tidelog("log", "dump", tmp_path / "log").rows
    assert row["ts"] == "2026-07-01T12:00:00.000000Z"


def test_the_command_offers_every_kind() -> None:
    said = CliRunner().invoke(log, ["import", "--help"]).output
    assert all(kind in said for kind in KINDS)
