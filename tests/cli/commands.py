"""What the tests of the command line share: running it, and making things to look at."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.patience import patient
from tidelog.blocks.columns import FrameColumns
from tidelog.blocks.frames import encode_frames
from tidelog.blocks.header import Codec
from tidelog.cli.main import run
from tidelog.storage.log.log import Log
from tidelog.storage.log.options import LogOptions
from tidelog.storage.log.recovery import open_log
from tidelog.storage.os_disk import OsDisk

CAPTURES = Path(__file__).parents[3] / "shared" / "data" / "nmea2000"
LINEAGE = bytes(range(16))
START_US = 1_700_000_000_000_000

needs_captures = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures of shared/data are not here")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.out)
        return loaded

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


class Tidelog:
    """Runs command lines in this process, through the same entry point as the `tidelog` command."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str | Path, code: int | None = 0) -> Result:
        self._capsys.readouterr()
        exit_code = run([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        assert code is None or exit_code == code, f"exit {exit_code}\n{out}\n{err}"
        return Result(exit_code, out, err)


def in_subprocess(
    *arguments: str | Path, flags: tuple[str, ...] = (), **options: Any
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *flags, "-m", "tidelog.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=patient(120), **options)


def frames(count: int, *, first: int = 0) -> FrameColumns:
    rows = [
        (START_US + 1000 * i, 0x09F8_0200 + i % 7, bytes([i & 0xFF] * (i % 9))) for i in range(first, first + count)
    ]
    return FrameColumns.from_rows(rows)


def make_log(folder: Path, *, blocks: int = 12, size: int = 40, close: bool = True) -> Log:
    """A log of several segments, with every seq of one lineage."""
    log = open_log(
        OsDisk(folder.parent), folder.name, now_us=START_US, options=LogOptions(segment_bytes_max=4096, reserve_bytes=0)
    )
    for number in range(blocks):
        part = frames(size, first=number * size)
        codec = Codec.ZSTD if number % 2 else Codec.NONE
        made = encode_frames(part, base_seq=1 + number * size, producer=LINEAGE, delta=number % 3 == 0, codec=codec)
        log.append(made, now_us=START_US + number)
    if close:
        log.close(START_US)
    return log


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
