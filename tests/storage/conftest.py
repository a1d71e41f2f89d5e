"""Disks that several test modules use."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.storage.os_disk import OsDisk


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[OsDisk]:
    """1 MiB of real file system, with room for a handful of files."""
    if os.geteuid() != 0:
        pytest.skip("a tmpfs can be mounted only by root; run as root to test a full disk")
    folder = tmp_path / "tiny"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=8", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting a tmpfs failed ({error}); a full disk cannot be tested here")
    try:
        yield OsDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)
